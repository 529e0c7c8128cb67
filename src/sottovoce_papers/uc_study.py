"""Trained and attacked models of the UC-FedRec paper's tables and figures.

A `UCCell` is one training. Each user's latest item is for test, the second-latest for validation;
both are kept from training, and one training serves both. The round is chosen on validation.
What came out is kept on disk, so that an interrupted study goes on where it was, tables and figures
share their runs, and runs can be brought from a machine with a GPU.

Attackers hold the whole table of representations. They learn from users who share the attribute and
guess it of those who hide it, who are drawn from the seed and the attribute alone: all systems are
attacked on the same users. Where everybody hides it, attackers learn from a random 30 % of users
whose attribute leaked, and guess the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.uc.settings import SYSTEMS, FilterConfig, UCConfig
from sottovoce.attacks.suite.a08_attributes import Each, Inference, TooLittle, infer, one_by_one
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.recommender import Scorer
from sottovoce.data.dataset import Labels
from sottovoce.errors import ConfigError
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.runs.train import Report
from sottovoce_papers.study import Arrays, Study, count_of, installed
from sottovoce_papers.uc_training import (
    ATTRIBUTES,
    CUT,
    KEPT,
    Trained,
    Trainer,
    UCData,
    UCMeasured,
    UCTraining,
    federated,
    measure,
    run,
)


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
    def of_arrays(cls, found: Arrays) -> Attacked | None:
        table = json.loads(str(found["attacked"]))
        return None if table is None else cls(**table)


@dataclass(frozen=True, slots=True, repr=False)
class AttackWork:
    """An attacker's work: the table, and whose attribute is private."""

    table: NDArray[Any]
    labels: Labels
    private: NDArray[np.bool_]
    seed: int
    attribute: str
    each: Each = one_by_one
    """How its models are trained: one by one, or in processes."""

    def run(self) -> dict[str, NDArray[Any]]:
        """What is kept of it; null where there is too little to learn from."""
        rng = Streams.from_seed(self.seed).child("attack")
        given = self.table, self.labels, self.private, rng
        try:
            found = infer(*given, attribute=self.attribute, each=self.each)
        except TooLittle:
            return {"attacked": np.array(json.dumps(None))}
        return Attacked.of(found).to_arrays()


if TYPE_CHECKING:
    from sottovoce.algorithms.uc.system import UC

Mask = NDArray[np.bool_]
Recommender = Literal["mf", "ncf", "neumf", "gnn"]
LEAKED = 0.3
"""Share of users whose attribute the attacker knows where everybody hides it."""
_AT_ONCE = 2
"""Attacks under way at a time, and one more for every four processors: each has a few long lessons,
and many short ones."""


@dataclass(frozen=True, slots=True)
class UCCell:
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

    def base(self) -> UCCell:
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
class UCStudyConfig:
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
class AttackJob:
    """An attack."""

    cell: UCCell
    attribute: str
    table: NDArray[Any] | None = None
    """Representations other than those of the trained cell."""
    tag: str = ""
    """How they were made, in a word that no other way has."""
    alpha: float | None = None
    """Share of users who hide it now; by default the cell's."""
    hidden: str = ""
    """Whose hiders are guessed, and whose sharers are learnt from, if that is another attribute."""

    @property
    def hiding(self) -> UCCell:
        """By which the attribute's hiders are drawn."""
        return self.cell if self.alpha is None else replace(self.cell, alpha=self.alpha)


class UCStudy(Study):
    """Trained and attacked cells of one table or figure."""

    prefix = "uc-"

    def __init__(
        self,
        settings: UCStudyConfig,
        recommenders: Mapping[str, Mapping[str, Mapping[str, Any]]],
        cells: Path,
        threads: int,
        report: Report,
        device: str = "cpu",
        trainer: Trainer = federated,
    ) -> None:
        """`recommenders` has, by source and recommender, the values of `UCConfig`, and `clip`."""
        super().__init__(cells, threads, report)
        self.config, self.device = settings, device
        self._recommenders = recommenders
        self._trainer = trainer
        self._worlds: dict[str, UCData] = {}

    @classmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        table = installed(name, quick)
        study = config.build(UCStudyConfig, table.get("study", {}), "study")
        return cls(study, table.get("settings", {}), cells, threads, report, device)

    # --- cells ------------------------------------------------------------------------------------

    def world(self, source: str) -> UCData:
        if source not in self._worlds:
            self._worlds[source] = UCData.read(source)
        return self._worlds[source]

    def add_world(self, world: UCData) -> None:
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
    ) -> UCCell:
        """UC-FedRec with this β, for all attributes under study; the base model without a β."""
        usual = UCCell(
            source,
            recommender,
            self.attributes(source) if beta is not None else (),
            self.config.alpha,
            0.5 if beta is None else beta,
            self.config.target,
            seed,
        )
        return replace(usual, **changes)

    def settings(self, cell: UCCell) -> UCConfig:
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

    def release(self, cell: UCCell) -> Clipped:
        clip = cell.clip or float(self._values(cell).get("clip", Clipped().clip))
        return Clipped(clip, cell.norm, cell.epsilon, cell.hiding_epsilon)

    def algorithm(self, cell: UCCell) -> UC:
        """Both halves, to look at a trained model with."""
        release = self.release(cell)
        return self.settings(cell).build(release.clip, release.norm)

    def stops(self, cell: UCCell) -> tuple[int, ...]:
        """Rounds at which validation is looked at."""
        last, step = cell.stop or self.settings(cell).rounds, self.config.stops
        if self.config.final:
            return (last,)
        return tuple(sorted({*range(step, last + 1, step), last}))

    # --- consent ----------------------------------------------------------------------------------

    def private(self, cell: UCCell, attribute: str) -> Mask:
        """Who hides an attribute, with or without a filter: by seed, attribute and α alone."""
        rng = Streams.from_seed(cell.seed).child("private", attribute)
        return self.world(cell.source).draw(cell.alpha, rng)

    def hiders(self, cell: UCCell) -> Mask:
        """Who hides what, [users, attributes with a filter]."""
        columns = [self.private(cell, name) for name in cell.attributes]
        users = self.world(cell.source).n_users
        return np.stack(columns, axis=1) if columns else np.zeros((users, 0), dtype=bool)

    def targets(self, cell: UCCell, attribute: str) -> Mask:
        """Whom attackers guess: those who hide the attribute; where all do, all but the leaked."""
        if cell.alpha < 1:
            return self.private(cell, attribute)
        rng = Streams.from_seed(cell.seed).child("leaked", attribute)
        return ~self.world(cell.source).draw(LEAKED, rng)

    def consent(self, cell: UCCell) -> Consent:
        users = np.arange(self.world(cell.source).n_users, dtype=np.int64)
        everyone = Consent.uniform(
            users, Choice(share_positives=1.0, strength=cell.beta), cell.attributes
        )
        return replace(everyone, hidden_attributes=self.hiders(cell))

    # --- training ---------------------------------------------------------------------------------

    def trained(self, cell: UCCell) -> Trained:
        """Trains, or reads what was kept of the same training."""
        return Trained.of_arrays(self.kept(self._key(cell), KEPT, lambda: self._train(cell)))

    def train_all(self, cells: Sequence[UCCell], what: str = "training") -> list[Trained]:
        """One after the other: each takes all cores, or the GPU. What another process is training
        comes last. Needs no attackers."""
        left, found = list(dict.fromkeys(cells)), {}
        count = len(left)
        self.report(what, 0, count)
        while left:
            free = (cell for cell in left if not self.busy(self._key(cell)))
            cell = next(free, left[0])
            left.remove(cell)
            found[cell] = self.trained(cell)
            self.report(what, count - len(left), count)
        return [found[cell] for cell in cells]

    def measure(self, scorer: Scorer, source: str) -> UCMeasured:
        """Another model on the same test."""
        return measure(scorer, self.world(source), self.config.negatives, self.threads)

    def _train(self, cell: UCCell) -> Arrays:
        settings, stops = self.settings(cell), self.stops(cell)
        # A run that was stopped early counts as it ended.
        first = stops[-1] if cell.stop else round(self.config.choose_from * settings.rounds)
        return run(
            UCTraining(
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
                partial(self.report, f"{cell.source}, {cell.words()}, seed {cell.seed}: rounds"),
            ),
            self._trainer,
        )

    def _values(self, cell: UCCell) -> Mapping[str, Any]:
        try:
            return self._recommenders[cell.source][cell.recommender]
        except KeyError:
            raise ConfigError(
                f"there are no settings of {cell.recommender} for {cell.source}"
            ) from None

    def _key(self, cell: UCCell) -> list[object]:
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
        self, cell: UCCell, attribute: str, table: NDArray[Any] | None = None, tag: str = ""
    ) -> Attacked | None:
        """Attackers on the representations of a trained cell, or on another `table` that was made
        from it in the way that `tag` names. None where there is too little to learn from."""
        return self.attack_all([AttackJob(cell, attribute, table, tag)])[0]

    def attack_all(self, jobs: Sequence[AttackJob], what: str = "attacks") -> list[Attacked | None]:
        """Many. Their models are trained side by side in processes, those of a few attacks at a
        time, so that what is finished is soon on disk; attacks that were run before are read."""
        missing = sum(not self.has(self._attack_key(job)) for job in jobs)
        with ExitStack() as stack:
            each: Each = one_by_one
            if missing and self.threads > 1:
                spawn = get_context("spawn")
                pool = stack.enter_context(ProcessPoolExecutor(self.threads, mp_context=spawn))

                def each(work: Any, parts: Any, /) -> list[Any]:
                    return list(pool.map(work, parts))

            def one(job: AttackJob) -> Attacked | None:
                return Attacked.of_arrays(
                    self.kept(self._attack_key(job), ["attacked"], lambda: self._attack(job, each))
                )

            return self.many(what, one, jobs, min(self.threads, _AT_ONCE + self.threads // 4))

    def _attack(self, job: AttackJob, each: Each) -> Arrays:
        cell, labels = job.cell, self.world(job.cell.source).labels[job.attribute]
        table = self.trained(cell).table if job.table is None else job.table
        private = self.targets(job.hiding, job.attribute)
        if job.hidden:
            private = self.private(cell, job.hidden)
        return AttackWork(table, labels, private, cell.seed, job.attribute, each).run()

    def _attack_key(self, job: AttackJob) -> list[object]:
        cell = job.cell
        if not job.hidden:
            return ["attack 2", *self._key(cell), job.hiding.alpha, job.attribute, job.tag]
        content = hashlib.blake2b(self.trained(cell).table.tobytes(), digest_size=16).hexdigest()
        fingerprint = self.world(cell.source).fingerprint
        return ["elsewhere", content, fingerprint, cell.seed, cell.alpha, job.attribute, job.hidden]

    # --- words ------------------------------------------------------------------------------------

    def describe_data(self) -> str:
        return "; ".join(self.world(source).describe() for source in self.config.sources)

    def describe(self) -> str:
        c = self.config
        chosen = f"the round chosen by HR@{CUT} on validation, every {c.stops} rounds"
        if c.final:
            chosen = "the number of rounds chosen on validation in earlier trainings"
        return (
            f"top {CUT}; each held-out item among {c.negatives} sampled candidates, the same for "
            f"all systems, and among all items (full); ties against the system; {chosen}; "
            f"α = {c.alpha:g} of users hide each attribute; {count_of(c.seeds)}"
        )
