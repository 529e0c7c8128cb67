"""Trained and attacked models of the UC-FedRec paper's tables and figures.

A `Cell` is one training run. Each user's latest item is for test, the second-latest for validation;
both are kept from training, and one training serves both. The round is chosen on validation.
What came out is kept on disk, so that an interrupted study goes on where it was, tables and figures
share their runs, and runs can be brought from a machine with a GPU.

Attackers hold the whole table of representations. They learn from users who share the attribute and
guess it of those who hide it, who are drawn from the seed and the attribute alone: all systems are
attacked on the same users. Where everybody hides it, attackers learn from a random 30 % of users
whose attribute leaked, and guess the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.uc.settings import SYSTEMS, FilterConfig, UCConfig
from sottovoce.attacks.suite.a08_attributes import Inference, TooLittle, infer
from sottovoce.core.arrays import each
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.recommender import Scorer
from sottovoce.data.dataset import Labels
from sottovoce.errors import ConfigError
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.runs.train import Report
from sottovoce_papers.fmf_study import laid_over
from sottovoce_papers.study import installed, kept
from sottovoce_papers.uc_training import (
    ATTRIBUTES,
    CUT,
    KEPT,
    Measured,
    Trained,
    Trainer,
    Training,
    World,
    federated,
    measure,
    run,
)

# What attackers found out in the UC-FedRec study, as it is kept.


@dataclass(frozen=True, slots=True)
class Attacked:
    """The strongest attackers on one attribute of those who hide it."""

    attribute: str
    auc: float
    """Of the attacker that ranks best; 0.5 where no two private users differ."""
    auc_low: float
    auc_high: float
    auc_by: str
    f1: float
    """Micro-F1, the share guessed right, of the attacker that guesses best."""
    f1_low: float
    f1_high: float
    f1_by: str
    majority: float
    """The share that the best constant guess gets right."""
    strong: str
    """An attacker that beats chance; empty where none does."""
    families: Mapping[str, float]
    """The AUC of each attacker."""
    classes: int
    public: int
    private: int
    verdict: str
    lowest: float = 0.5
    """The AUC of the attacker that ranks worst. Far below 0.5 it tells as much as far above:
    protection has overshot, and whoever knows that turns the guesses round."""
    turned: str = ""
    """An attacker that beats chance when it is turned round; empty where none does."""

    @property
    def wins(self) -> bool:
        """Whether an attacker is better than chance, as it is or turned round."""
        return bool(self.strong or self.turned)

    @property
    def either(self) -> float:
        """The best AUC, of attackers as they are and turned round."""
        return max(self.auc, 1.0 - self.lowest)

    @property
    def auc_gain(self) -> float:
        """Either way."""
        return self.either - 0.5

    @property
    def f1_gain(self) -> float:
        return self.f1 - self.majority

    @property
    def gain(self) -> float:
        """As the paper measures: AUC above 0.5 of two classes, F1 above the majority's of more."""
        return self.auc_gain if self.classes == 2 else self.f1_gain

    @classmethod
    def of(cls, found: Inference) -> Attacked:
        ranks, guesses = found.by_auc, found.by_accuracy
        known = ranks.auc is not None
        worst = min(found.outcomes, key=lambda o: 0.5 if o.auc is None else o.auc)
        lowest = 0.5 if worst.auc is None else worst.auc
        turned = 1.0 - lowest > worst.auc_ceiling and worst.auc_interval.high < 0.5
        return cls(
            attribute=found.attribute,
            auc=ranks.auc if ranks.auc is not None else 0.5,
            auc_low=float(ranks.auc_interval.low) if known else 0.0,
            auc_high=float(ranks.auc_interval.high) if known else 1.0,
            auc_by=ranks.name,
            f1=guesses.accuracy,
            f1_low=float(guesses.accuracy_interval.low),
            f1_high=float(guesses.accuracy_interval.high),
            f1_by=guesses.name,
            majority=guesses.majority,
            strong="" if found.strong is None else found.strong.name,
            lowest=lowest,
            turned=f"{worst.name}, turned round" if turned else "",
            families={o.name: 0.5 if o.auc is None else o.auc for o in found.outcomes},
            classes=found.classes,
            public=found.public,
            private=found.private,
            verdict=found.verdict,
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        return {"attacked": np.array(json.dumps(asdict(self)))}

    @classmethod
    def of_arrays(cls, found: Mapping[str, NDArray[Any]]) -> Attacked | None:
        table = json.loads(str(found["attacked"]))
        return None if table is None else cls(**table)


@dataclass(frozen=True, slots=True, repr=False)
class Attack:
    """An attacker's work: the table, and whose attribute is private."""

    table: NDArray[Any]
    labels: Labels
    private: NDArray[np.bool_]
    seed: int
    attribute: str

    def run(self) -> dict[str, NDArray[Any]]:
        """What is kept of it; null where there is too little to learn from."""
        rng = Streams.from_seed(self.seed).child("attack")
        try:
            found = infer(self.table, self.labels, self.private, rng, attribute=self.attribute)
        except TooLittle:
            return {"attacked": np.array(json.dumps(None))}
        return Attacked.of(found).to_arrays()


if TYPE_CHECKING:
    from sottovoce.algorithms.uc.system import UC

Mask = NDArray[np.bool_]
Recommender = Literal["mf", "ncf", "neumf", "gnn"]
LEAKED = 0.3
"""Share of users whose attribute the attacker knows where everybody hides it."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One training run. With α = 0, or without attributes, it is the base model."""

    source: str = "movielens-1m"
    recommender: Recommender = "gnn"
    attributes: tuple[str, ...] = ()
    """Those that have filters; none for the base model."""
    alpha: float = 0.3
    """Share of users who hide each attribute, drawn apart for each of them."""
    beta: float = 0.5
    target: Literal["prior", "uniform"] = "prior"
    seed: int = 0
    stop: int = 0
    """Early stopping: training ends with this round, which is the one that counts."""
    epsilon: float = 0.0
    hiding_epsilon: float = 0.0
    norm: Literal["l2", "l1", "scalar"] = "l2"
    clip: float = 0.0
    """Of the release; 0 takes the settings' own."""
    overrides: tuple[tuple[str, Any], ...] = ()
    """Other values for keys of `UCConfig`."""

    def base(self) -> Cell:
        """The same without filters."""
        return replace(self, attributes=())

    def words(self) -> str:
        """A line's name: the system, and what is not as usual."""
        parts = [SYSTEMS[self.recommender]]
        if self.attributes:
            parts = [f"UC-{parts[0]}", f"β={self.beta:g}"]
        if self.stop:
            parts.append(f"stopped after {self.stop} rounds")
        if self.epsilon:
            parts.append(f"ε={self.epsilon:g} ({self.norm})")
        if self.hiding_epsilon:
            parts.append(f"ε={self.hiding_epsilon:g} for private users")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class StudyConfig:
    sources: tuple[str, ...] = ("movielens-1m",)
    recommenders: tuple[Recommender, ...] = ("gnn", "ncf", "mf")
    attributes: tuple[str, ...] = ()
    """Those under study; all of the source's where there are none."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each with a training, private users and attackers of its own; figures are means."""
    alpha: float = 0.3
    alphas: tuple[float, ...] = (0.3, 0.5, 1.0)
    betas: tuple[float, ...] = (0.5, 0.8)
    sigmas: tuple[float, ...] = (1.0, 3.0, 5.0, 7.0)
    """Of Gaussian noise on private users' embeddings, in their standard deviations."""
    epsilons: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7)
    """Of stronger noise for private users."""
    target: Literal["prior", "uniform"] = "prior"
    as_published: bool = False
    """Whether UC-FedRec is also run with the paper's filters and target."""
    stops: int = 10
    """Rounds between two looks at validation, and between two candidates for the end."""
    final: bool = False
    """Train on everything but the test items for all rounds, which were chosen on validation
    before; otherwise validation items are kept from training, and choose the round."""
    early: float = 0.5
    """Where early stopping stops in final trainings, as a share of the rounds; 0 leaves it out."""
    choose_from: float = 0.0
    """Share of the rounds before which no round is chosen: filters must have had time."""
    negatives: int = 49
    """Sampled, beside the held-out item."""
    scalar_clip: float = 0.1
    scalar_epsilon: float = 1.0
    """Largest number in an upload, and ε of each, where numbers get noise one by one."""
    protect_rate: float = 0.1
    protect_below: float = 0.01
    protect_furthest: float = 100.0
    protect_steps: int = 100
    """Of central protection: see `algorithms.uc_protect.Stopping`."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.sources) - set(ATTRIBUTES))
        if unknown or not self.sources:
            raise ConfigError(f"sources must be among {sorted(ATTRIBUTES)}, not {unknown}")
        if not self.seeds or not self.recommenders:
            raise ConfigError("seeds and recommenders must not be empty")
        config.require_whole("stops", self.stops, 1)
        config.require_whole("negatives", self.negatives, 1)
        config.require_number("choose_from", self.choose_from, 0.0, 1.0, above=False)


@dataclass(frozen=True, slots=True, repr=False)
class Job:
    """An attack."""

    cell: Cell
    attribute: str
    table: NDArray[Any] | None = None
    """Representations other than those of the trained cell."""
    tag: str = ""
    """How they were made, in a word that no other way has."""
    alpha: float | None = None
    """Share of users who hide it now; the cell's where there is none."""

    @property
    def hiding(self) -> Cell:
        """By which the attribute's hiders are drawn."""
        return self.cell if self.alpha is None else replace(self.cell, alpha=self.alpha)


class UCStudy:
    """Trained and attacked cells of one table or figure."""

    def __init__(
        self,
        settings: StudyConfig,
        recommenders: Mapping[str, Mapping[str, Mapping[str, Any]]],
        cells: Path,
        threads: int,
        report: Report,
        device: str = "cpu",
        trainer: Trainer = federated,
    ) -> None:
        """`recommenders` has, by source and recommender, the values of `UCConfig`, and `clip`."""
        self.config = settings
        self.threads = threads
        self.report = report
        self.device = device
        self.folder = cells
        self._recommenders = recommenders
        self._trainer = trainer
        self._worlds: dict[str, World] = {}

    @classmethod
    def read(
        cls,
        name: str,
        quick: bool,
        cells: Path,
        threads: int,
        report: Report,
        device: str = "cpu",
    ) -> UCStudy:
        """The installed file of a table or figure, laid over the one that it extends; `quick` lays
        their [quick] tables over all."""
        table = installed(name)
        if "extends" in table:
            table = laid_over(installed(table["extends"]), table)
        if quick:
            table = laid_over(table, table.get("quick", {}))
        study = config.build(StudyConfig, table.get("study", {}), "study")
        return cls(study, table.get("settings", {}), cells, threads, report, device)

    # --- cells ------------------------------------------------------------------------------------

    def world(self, source: str) -> World:
        if source not in self._worlds:
            self._worlds[source] = World.read(source)
        return self._worlds[source]

    def add_world(self, world: World) -> None:
        """Data of one's own under the name of a source."""
        self._worlds[world.source] = world

    def attributes(self, source: str) -> tuple[str, ...]:
        """Those under study."""
        known = ATTRIBUTES[source]
        if not self.config.attributes:
            return known
        return tuple(name for name in known if name in self.config.attributes)

    def cell(
        self,
        source: str,
        recommender: Recommender,
        seed: int,
        beta: float | None = None,
        **changes: Any,
    ) -> Cell:
        """UC-FedRec with this β, for all attributes under study; the base model without a β."""
        usual = Cell(
            source,
            recommender,
            self.attributes(source) if beta is not None else (),
            self.config.alpha,
            0.5 if beta is None else beta,
            self.config.target,
            seed,
        )
        return replace(usual, **changes)

    def settings(self, cell: Cell) -> UCConfig:
        """Of the training, with the classes of the data."""
        values = dict(self._values(cell))
        values.pop("clip", None)
        values |= dict(cell.overrides)
        values |= {"recommender": cell.recommender, "target": cell.target}
        built = config.build(UCConfig, values, f"settings.{cell.source}.{cell.recommender}")
        filters = tuple(FilterConfig(name) for name in cell.attributes)
        return replace(built, attributes=filters).resolved(
            self.world(cell.source).labels, self.consent(cell)
        )

    def release(self, cell: Cell) -> Clipped:
        clip = cell.clip or float(self._values(cell).get("clip", Clipped().clip))
        return Clipped(clip, cell.norm, cell.epsilon, cell.hiding_epsilon)

    def algorithm(self, cell: Cell) -> UC:
        """Both halves, to look at a trained model with."""
        release = self.release(cell)
        return self.settings(cell).build(release.clip, release.norm)

    def stops(self, cell: Cell) -> tuple[int, ...]:
        """Rounds at which validation is looked at."""
        last, step = cell.stop or self.settings(cell).rounds, self.config.stops
        if self.config.final:
            return (last,)
        return tuple(sorted({*range(step, last + 1, step), last}))

    # --- consent ----------------------------------------------------------------------------------

    def private(self, cell: Cell, attribute: str) -> Mask:
        """Who hides an attribute, with or without a filter: by seed, attribute and α alone."""
        rng = Streams.from_seed(cell.seed).child("private", attribute)
        return self.world(cell.source).draw(cell.alpha, rng)

    def hiders(self, cell: Cell) -> Mask:
        """Who hides what, [users, attributes with a filter]."""
        columns = [self.private(cell, name) for name in cell.attributes]
        users = self.world(cell.source).n_users
        return np.stack(columns, axis=1) if columns else np.zeros((users, 0), dtype=bool)

    def targets(self, cell: Cell, attribute: str) -> Mask:
        """Whom attackers guess: those who hide the attribute; where all do, all but the leaked."""
        if cell.alpha < 1:
            return self.private(cell, attribute)
        rng = Streams.from_seed(cell.seed).child("leaked", attribute)
        return ~self.world(cell.source).draw(LEAKED, rng)

    def consent(self, cell: Cell) -> Consent:
        users = np.arange(self.world(cell.source).n_users, dtype=np.int64)
        everyone = Consent.uniform(
            users, Choice(share_positives=1.0, strength=cell.beta), cell.attributes
        )
        return replace(everyone, hidden_attributes=self.hiders(cell))

    # --- training ---------------------------------------------------------------------------------

    def trained(self, cell: Cell) -> Trained:
        """Trains, or reads what was kept of the same training."""
        found = kept(self.folder, "uc-", self._key(cell), KEPT, lambda: self._train(cell))
        return Trained.of_arrays(found)

    def train_all(self, cells: Sequence[Cell], what: str = "training") -> list[Trained]:
        """One after the other: each takes all cores, or the GPU. Needs no attackers."""
        found = []
        self.report(what, 0, len(cells))
        for done, cell in enumerate(cells, start=1):
            found.append(self.trained(cell))
            self.report(what, done, len(cells))
        return found

    def measure(self, scorer: Scorer, source: str) -> Measured:
        """Another model on the same test."""
        return measure(scorer, self.world(source), self.config.negatives, self.threads)

    def _train(self, cell: Cell) -> Mapping[str, NDArray[Any]]:
        settings, stops = self.settings(cell), self.stops(cell)
        # A run that was stopped early counts as it ended.
        first = stops[-1] if cell.stop else round(self.config.choose_from * settings.rounds)
        return run(
            Training(
                self.world(cell.source),
                settings,
                self.consent(cell),
                self.release(cell),
                cell.seed,
                stops,
                first,
                self.config.negatives,
                self.config.final,
                self.device,
                self.threads,
            ),
            self._trainer,
        )

    def _values(self, cell: Cell) -> Mapping[str, Any]:
        try:
            return self._recommenders[cell.source][cell.recommender]
        except KeyError:
            raise ConfigError(
                f"there are no settings of {cell.recommender} for {cell.source}"
            ) from None

    def _key(self, cell: Cell) -> list[object]:
        """What a training depends on. Without filters nobody hides anything."""
        study, settings = self.config, self.settings(cell)
        alone = not cell.attributes
        return [
            "uc", self.world(cell.source).fingerprint, repr(settings), repr(self.release(cell)),
            0.0 if alone else cell.alpha, 0.0 if alone else cell.beta, cell.seed, cell.stop,
            study.stops, study.choose_from, study.negatives, study.final,
        ]  # fmt: skip

    # --- attacking --------------------------------------------------------------------------------

    def attacked(
        self, cell: Cell, attribute: str, table: NDArray[Any] | None = None, tag: str = ""
    ) -> Attacked | None:
        """Attackers on the representations of a trained cell, or on another `table` that was made
        from it in the way that `tag` names. None where there is too little to learn from."""
        return self.attack_all([Job(cell, attribute, table, tag)])[0]

    def attack_all(self, jobs: Sequence[Job], what: str = "attacks") -> list[Attacked | None]:
        """Many, side by side in processes; those that were run before are read."""
        done = 0
        self.report(what, 0, len(jobs))
        side_by_side = min(self.threads, len(jobs))
        # Workers start with the first attack that is not there yet.
        with ProcessPoolExecutor(side_by_side or 1, mp_context=get_context("spawn")) as pool:

            def one(job: Job) -> Attacked | None:
                nonlocal done
                found = kept(
                    self.folder, "uc-", self._attack_key(job), ["attacked"],
                    lambda: self._attack(job, pool if side_by_side > 1 else None),
                )  # fmt: skip
                done += 1
                self.report(what, done, len(jobs))
                return Attacked.of_arrays(found)

            return each(one, jobs, side_by_side)

    def _attack(self, job: Job, pool: Executor | None) -> Mapping[str, NDArray[Any]]:
        cell, labels = job.cell, self.world(job.cell.source).labels[job.attribute]
        table = self.trained(cell).table if job.table is None else job.table
        private = self.targets(job.hiding, job.attribute)
        work = Attack(table, labels, private, cell.seed, job.attribute)
        return work.run() if pool is None else pool.submit(Attack.run, work).result()

    def _attack_key(self, job: Job) -> list[object]:
        return ["attack 2", *self._key(job.cell), job.hiding.alpha, job.attribute, job.tag]

    # --- words ------------------------------------------------------------------------------------

    def describe(self) -> str:
        c = self.config
        seeds = f"{len(c.seeds)} seed{'s' * (len(c.seeds) > 1)}"
        chosen = f"the round chosen by HR@{CUT} on validation, every {c.stops} rounds"
        if c.final:
            chosen = "the number of rounds chosen on validation in earlier trainings"
        return (
            f"top {CUT}; each held-out item among {c.negatives} sampled candidates, the same for "
            f"all systems, and among all items (full); ties against the system; {chosen}; "
            f"α = {c.alpha:g} of users hide each attribute; {seeds}"
        )
