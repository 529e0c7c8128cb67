"""Systems of UC-FedRec's figures over seeds: how well they serve whom, what attackers guess, and
what they are held against at equal cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.attacks.filters import unmasked
from sottovoce.evaluation.significance import Paired, paired_t
from sottovoce.evaluation.tables import Column
from sottovoce.rng import Streams
from sottovoce_papers.study import Floats, Row
from sottovoce_papers.uc_study import Attacked, AttackJob, UCCell, UCStudy
from sottovoce_papers.uc_training import Trained, UCMeasured

Mask = NDArray[np.bool_]
Users = Callable[[UCCell], Mask]
"""Some of the users; which ones depends on the seed."""
BASE, UC = "base model", "UC-FedRec"
ML, DOUBAN = "movielens-1m", "douban-book"
SAME = 0.005
"""Differences in HR@10 below this are not taken for a fall."""


@dataclass(frozen=True, slots=True, repr=False)
class UCSystem:
    """One system, with a run for each seed."""

    group: str
    """What kind of protection, such as Gaussian noise."""
    strength: str
    """How much of it, such as σ=3."""
    cells: tuple[UCCell, ...]
    runs: tuple[UCMeasured, ...]
    tables: tuple[NDArray[Any] | None, ...] = ()
    """Representations, where they are not those that were trained."""
    tag: str = ""
    """How they were made."""

    @property
    def label(self) -> str:
        return f"{self.group}, {self.strength}" if self.strength else self.group

    @property
    def trained(self) -> list[Trained]:
        """Its runs that are trainings of their own."""
        return [run for run in self.runs if isinstance(run, Trained)]

    def scores(self, users: Users | None = None) -> tuple[float, float]:
        """HR@10 and NDCG@10, the mean over seeds, of these users or of all."""
        pairs = zip(self.cells, self.runs, strict=True)
        found = [(r.hr, r.ndcg) if users is None else r.of(users(c)) for c, r in pairs]
        hr, ndcg = np.nanmean(found, axis=0)  # a seed may have no such user
        return float(hr), float(ndcg)

    def jobs(self, attribute: str) -> list[AttackJob]:
        tables = self.tables or (None,) * len(self.cells)
        return [
            AttackJob(c, attribute, t, self.tag) for c, t in zip(self.cells, tables, strict=True)
        ]


def places(study: UCStudy) -> list[tuple[str, Any]]:
    """Sources and recommenders under study."""
    c = study.config
    return [(source, recommender) for source in c.sources for recommender in c.recommenders]


def described(study: UCStudy, source: str, recommender: Any) -> Row:
    plain = study.cell(source, recommender, 0).words()
    return {"data": study.world(source).title, "system": plain}


def named(study: UCStudy, source: str, recommender: Any) -> str:
    row = described(study, source, recommender)
    return f"{row['system']} on {row['data']}"


PLACE = (Column("data", ""), Column("system", ""))
SCORES = (Column("HR@10", format=".4f"), Column("NDCG@10", format=".4f"))
GAP = (
    Column("apart", "HR − base", "+.4f"), Column("low", "95 % from", "+.4f"),
    Column("high", "to", "+.4f"), Column("paper_hr", "paper HR", ".3f"),
    Column("paper_ndcg", "paper NDCG", ".3f"),
)  # fmt: skip
"""How far a line is from the base model, and what was printed."""


def train(
    study: UCStudy, source: str, recommender: Any, beta: float | None = None, **changes: Any
) -> UCSystem:
    """UC-FedRec with this β, or the base model; `changes` are to its cells."""
    cells = [study.cell(source, recommender, s, beta, **changes) for s in study.config.seeds]
    group, strength = (BASE, "") if beta is None else (UC, f"β={beta:g}")
    return trained(study, group, strength, cells)


def trained(study: UCStudy, group: str, strength: str, cells: Sequence[UCCell]) -> UCSystem:
    """A system by its cells, one for each seed."""
    what = f"{cells[0].source}, {cells[0].words()}"
    return UCSystem(group, strength, tuple(cells), tuple(study.train_all(cells, what)))


def share(ours: float, theirs: float) -> float:
    """What is kept; all of it where there was nothing."""
    return ours / theirs if theirs > 0 else 1.0


def hidden_count(study: UCStudy, cell: UCCell) -> NDArray[np.int64]:
    """How many attributes each user hides."""
    return np.asarray(study.hiders(cell).sum(axis=1), dtype=np.int64)


def apart(ours: UCSystem, base: UCSystem, users: Users) -> Paired:
    """HR@10 of these users less that of the same users under the base model. The interval is over
    users; of one who is in several seeds, the mean counts."""
    total: Floats = np.zeros(len(base.runs[0].hits))
    times: Floats = np.zeros(len(total))
    for cell, mine, theirs in zip(ours.cells, ours.runs, base.runs, strict=True):
        mask = users(cell)
        total += mask * (mine.hits.astype(np.float64) - theirs.hits)
        times += mask
    gaps = total[times > 0] / times[times > 0]
    return paired_t(gaps, np.zeros(len(gaps)))


def gap_cells(gap: Paired) -> Row:
    """Its columns of a table; a single user has no interval."""
    ends = (gap.low, gap.high) if gap.n > 1 else (None, None)
    return {"apart": gap.difference, "low": ends[0], "high": ends[1]}


# --- attackers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guessed:
    """The strongest attackers on one attribute of a system, seed by seed."""

    attribute: str
    seeds: tuple[Attacked, ...]

    @property
    def two_classes(self) -> bool:
        return all(a.classes == 2 for a in self.seeds)

    @property
    def auc(self) -> float:
        return self._mean("auc")

    @property
    def f1(self) -> float:
        return self._mean("f1")

    @property
    def gain(self) -> float:
        """AUC above 0.5 of two classes, F1 above the best constant guess of more."""
        return self._mean("gain")

    @property
    def ranked(self) -> float:
        """AUC above 0.5, whatever the classes: what tells little of many classes may still rank."""
        return self.auc - 0.5

    @property
    def measure(self) -> str:
        """As in the paper."""
        return "AUC" if self.two_classes else "micro-F1"

    @property
    def leak(self) -> float:
        """By that measure."""
        return self.auc if self.two_classes else self.f1

    @property
    def wins(self) -> int:
        """Seeds in which some attacker is better than chance."""
        return sum(a.wins for a in self.seeds)

    def cells(self) -> Row:
        """Its columns of a table."""
        return {
            "AUC": self.auc,
            "AUC_low": self._mean("auc_low"),
            "AUC_high": self._mean("auc_high"),
            "F1": self.f1,
            "majority": self._mean("majority"),
            "gain": self.gain,
            "wins": f"{self.wins} of {len(self.seeds)}",
        }

    def values(self, name: str) -> list[float]:
        return [float(getattr(a, name)) for a in self.seeds]

    def _mean(self, name: str) -> float:
        return float(np.mean(self.values(name)))

    def verdict(self) -> str:
        """Whether a strong attacker still wins, in words."""
        n = len(self.seeds)
        if not self.wins:
            return "does not beat chance"
        turned = sum(bool(one.turned and not one.strong) for one in self.seeds)
        how = f", {turned} turned round" if turned else ""
        return f"still wins ({self.wins} of {n} seed{'s' * (n > 1)}{how})"


ATTACKERS = (
    Column("AUC", "attackers' AUC", ".3f"), Column("AUC_low", "95 % from", ".3f"),
    Column("AUC_high", "to", ".3f"), Column("F1", "micro-F1", ".3f"),
    Column("majority", "constant guess", ".3f"), Column("gain", "gain", "+.3f"),
    Column("wins", "beat chance: seeds"),
)  # fmt: skip


def guess(
    study: UCStudy, systems: Sequence[UCSystem], attributes: Sequence[str]
) -> list[dict[str, Guessed]]:
    """Of each system, by attribute; nothing where there is too little to learn from."""
    asked = [(k, name) for k in range(len(systems)) for name in attributes]
    jobs = [systems[k].jobs(name) for k, name in asked]
    every = iter(study.attack_all([job for some in jobs for job in some]))
    found: list[dict[str, Guessed]] = [{} for _ in systems]
    for (k, name), some in zip(asked, jobs, strict=True):
        seeds = [next(every) for _ in some]
        there = tuple(a for a in seeds if a is not None)
        if there:
            found[k][name] = Guessed(name, there)
    return found


# --- what UC-FedRec is held against ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Rival:
    """A trained model whose users' embeddings were changed afterwards."""

    cell: UCCell
    tag: str
    """For `UCStudy.attacked`, beside `table`."""
    measured: UCMeasured
    table: NDArray[np.float16]
    """h_u, looked up again from the changed embeddings."""
    changed: NDArray[np.bool_]
    """Whose embedding was."""


def stopped(study: UCStudy, base: UCCell, rival: UCCell) -> UCCell:
    """Early stopping: the base model at the first look whose HR on validation is that of `rival` or
    better; where it never is, at the base's own best round. Final trainings have no validation:
    they stop at a settled share of the rounds."""
    if study.config.final:
        return replace(base, stop=round(study.config.early * study.settings(base).rounds))
    curve, goal = study.trained(base), study.trained(rival).validation
    good = np.flatnonzero(curve.validation_hr >= goal)
    return replace(base, stop=int(curve.stops[good[0]]) if len(good) else curve.round)


def noisier(study: UCStudy, cell: UCCell, epsilon: float) -> UCCell:
    """Stronger noise for private users: the base model with noise on every number that leaves, and
    more of it (`epsilon` for each number) for those who hide something. Filters are there only to
    say who does: with β = 0 they pull at nothing."""
    return replace(
        cell,
        attributes=study.attributes(cell.source),
        beta=0.0,
        norm="scalar",
        clip=study.config.scalar_clip,
        epsilon=study.config.scalar_epsilon,
        hiding_epsilon=epsilon,
    )


def perturbed(study: UCStudy, cell: UCCell, sigma: float, attributes: Sequence[str] = ()) -> Rival:
    """Gaussian noise on the trained embeddings of those who hide one of these attributes (all under
    study where none is named): σ standard deviations of the embeddings' numbers."""
    names = tuple(attributes) or study.attributes(cell.source)
    private = np.any([study.private(cell, name) for name in names], axis=0)
    trained = study.trained(cell)
    users = np.flatnonzero(private)
    rng = Streams.from_seed(cell.seed).child("perturbation")
    noise = rng.normal(users, trained.embeddings.shape[1])
    changed = trained.embeddings.copy()
    changed[users] += (sigma * float(trained.embeddings.std()) * noise).astype(np.float32)
    return moved(study, cell, changed, f"gaussian {sigma:g} {' '.join(names)}")


def moved(study: UCStudy, cell: UCCell, embeddings: NDArray[np.float32], tag: str) -> Rival:
    """The cell's model with other embeddings of its users: measured and looked up again."""
    trained = study.trained(cell)
    algorithm = study.algorithm(cell)
    measured = study.measure(algorithm.device_scorer(embeddings, trained.rows), cell.source)
    table = algorithm.representations(embeddings, trained.rows).astype(np.float16)
    changed: NDArray[np.bool_] = (embeddings != trained.embeddings).any(axis=1)
    return Rival(cell, tag, measured, table, changed)


def knowing(study: UCStudy, cell: UCCell, attribute: str) -> AttackJob | None:
    """The attack of somebody who knows the published filter and looks where it does not; None where
    the filter is a network."""
    if attribute not in cell.attributes or study.settings(cell).filters != "moments":
        return None
    import torch

    from sottovoce.algorithms.uc.networks import Guesses

    trained, settings = study.trained(cell), study.settings(cell)
    column = settings.names.index(attribute)
    weights = study.algorithm(cell).model(trained.rows, trained.embeddings).filters[column]
    guesses = Guesses.of(weights, torch.tensor(settings.attributes[column].shares))
    center, lines = guesses.center.double().numpy(), guesses.lines.double().numpy()
    table = unmasked(trained.embeddings.astype(np.float64), center, lines)
    return AttackJob(cell, attribute, table.astype(np.float16), "knows the filter")
