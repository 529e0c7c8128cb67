"""Training runs of the DRIFT thesis's figures, and how they are measured.

A run is one system with one seed on one split. It keeps the loss after every epoch and the model
after some, on disk, so that an interrupted study goes on where it was and figures share their runs.
All systems are measured on the same blocks and the same users, whatever they were trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.drift.blocks import Blocks, DriftModel, Events, losses
from sottovoce.algorithms.drift.messages import OwnerTable
from sottovoce.algorithms.drift.replay import plan
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.baselines import SAROS, Random, TopPop
from sottovoce.core.recommender import FactorScorer, Scorer
from sottovoce.data.dataset import Dataset
from sottovoce.data.sources import load
from sottovoce.data.splitting import Split, temporal_holdout, validation_split
from sottovoce.engines.silo_simulation import Sealing, SiloSimulation
from sottovoce.errors import ConfigError, DataError
from sottovoce.evaluation import saros_metrics
from sottovoce.evaluation.saros_metrics import Measured
from sottovoce.rng import Streams
from sottovoce.runs.train import Report
from sottovoce_papers.study import Floats, Part, Study, count_of, installed

Kind = Literal["saros", "drift", "top-pop", "random"]
SAROS_B, SAROS_M, DRIFT, DRIFT_USER = "saros-b", "saros-m", "drift-time", "drift-user"
"""Keys of systems that figures speak of by name."""
WAYS = ("own", "full", "legacy")
"""How lists are measured; see evaluation.saros_metrics."""
METRICS = ("MAP@5", "NDCG@5", "MAP@10", "NDCG@10")
CHOSEN_BY = "MAP@5"
"""On the users' own validation items; says where training has converged."""


@dataclass(frozen=True, slots=True)
class DriftStudyConfig:
    source: str = "movielens-1m"
    test_fraction: float = 0.2
    """The latest of each user's interactions; the rest is for training."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    stops: tuple[int, ...] = (1, 2, 5, 10, 20, 30, 50, 75, 100, 125, 150, 175, 200)
    """Epochs after which the model is kept; training ends with the last."""
    positive_from: tuple[float, ...] = (4.0, 3.0)
    """Ratings from which an interaction is positive: SAROS's and the thesis's."""
    events: int = 0
    """Interactions that go through the parties message by message, from the first on; 0 for all."""
    thetas: tuple[int, ...] = ()
    """Of DRIFT, where they are compared."""

    def __post_init__(self) -> None:
        if not self.stops or list(self.stops) != sorted({*self.stops}) or self.stops[0] != 1:
            raise ConfigError("stops must begin with 1 and ascend")
        if not self.seeds or not self.positive_from:
            raise ConfigError("seeds and positive_from must not be empty")

    @property
    def epochs(self) -> int:
        return self.stops[-1]


@dataclass(frozen=True, slots=True)
class DriftSystem:
    """A line of a table."""

    label: str
    kind: Kind
    settings: Mapping[str, Any] = field(default_factory=dict)
    owners: Literal["genre", "one"] = "genre"
    """Of DRIFT: an owner for every genre, or one for everything."""

    @classmethod
    def read(cls, key: str, table: Mapping[str, Any]) -> DriftSystem:
        unknown = sorted(set(table) - {"label", "kind", "settings", "owners"})
        if unknown or not {"label", "kind"} <= set(table):
            raise ConfigError(f"[systems.{key}] needs a label and a kind and knows no {unknown}")
        if table["kind"] not in ("saros", "drift", "top-pop", "random"):
            raise ConfigError(f"[systems.{key}] has no kind {table['kind']!r}")
        if table.get("owners", "genre") not in ("genre", "one"):
            raise ConfigError(f'[systems.{key}] owners are "genre" or "one"')
        return cls(**table)

    @property
    def trained(self) -> bool:
        return self.kind in ("saros", "drift")

    def component(self, positive_from: float) -> SAROS | DRIFTConfig:
        made = self.without_owners if self.kind == "saros" else self.with_owners
        return made(positive_from)

    def without_owners(self, positive_from: float) -> SAROS:
        """The settings of one that has none."""
        return config.build(SAROS, {**self.settings, "positive_from": positive_from}, "saros")

    def with_owners(self, positive_from: float) -> DRIFTConfig:
        """The settings of a system that has data owners."""
        if self.kind != "drift":
            raise ConfigError(f"{self.label} must be of the kind drift")
        values = {**self.settings, "positive_from": positive_from}
        return config.build(DRIFTConfig, values, "drift")


class EpochSize(NamedTuple):
    """What an epoch is made of."""

    steps: int
    """Updates of the model."""
    blocks: int
    """Blocks whose gradients they use; an update of DRIFT sums those of Θ blocks."""


@dataclass(frozen=True, slots=True)
class DriftJob:
    system: DriftSystem
    positive_from: float
    part: Part
    seed: int
    marks: tuple[int, ...] = ()
    """Numbers of steps after which the model is kept as well; for systems of one block a step."""


@dataclass(frozen=True, slots=True, repr=False)
class DriftRun:
    """One training."""

    job: DriftJob
    pace: EpochSize
    train_loss: Floats
    """After 0, 1, 2, ... epochs: the mean ranking loss of all blocks of the training part."""
    test_loss: Floats
    models: Mapping[str, DriftModel]
    """By `at_epoch` or `at_step`."""


def at_epoch(epoch: int) -> str:
    return f"e{epoch}"


def at_step(step: int) -> str:
    return f"s{step}"


class DriftStudy(Study):
    """Runs of the systems of one figure on one data set."""

    prefix = "drift-"

    def __init__(
        self,
        settings: DriftStudyConfig,
        systems: Mapping[str, DriftSystem],
        dataset: Dataset,
        cells: Path,
        threads: int,
        report: Report,
    ) -> None:
        super().__init__(cells, threads, report)
        self.config, self.systems, self.dataset = settings, systems, dataset
        self._test = temporal_holdout(dataset.interactions, settings.test_fraction)
        self._validation = validation_split(self._test, settings.test_fraction)
        self._fingerprint = dataset.fingerprint()
        self._membership = dataset.category_matrix()
        self._paces: dict[tuple[str, float, Part], EpochSize] = {}

    @classmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        table = installed(name, quick)
        study = config.build(DriftStudyConfig, table.get("study", {}), "study")
        systems = {k: DriftSystem.read(k, part) for k, part in table.get("systems", {}).items()}
        return cls(study, systems, load(study.source), cells, threads, report)

    # --- data -------------------------------------------------------------------------------------

    def split(self, part: Part) -> Split:
        return self._test if part == "test" else self._validation

    def owners(self, split: Split, system: DriftSystem) -> OwnerTable:
        """Who holds the training items: a data owner per genre, or one that has them all."""
        numbers = split.dataset_items(np.arange(split.train.n_items))
        if system.owners == "one":
            return OwnerTable.of_membership(np.ones((len(numbers), 1), dtype=bool))
        return OwnerTable.of_membership(self._membership[numbers])

    def blocks(self, job: DriftJob) -> Blocks:
        """What an epoch learns from."""
        split = self.split(job.part)
        if job.system.kind == "saros":
            saros = job.system.without_owners(job.positive_from)
            return saros.blocks(split.train, Streams.from_seed(job.seed))
        component = job.system.with_owners(job.positive_from)
        events = Events.of(split.train, component.positive_from, component.order)
        table = self.owners(split, job.system)
        return plan(events, table, component.theta, component.window)

    def pace(self, job: DriftJob) -> EpochSize:
        key = (job.system.label, job.positive_from, job.part)
        if key not in self._paces:
            blocks = self.blocks(job)
            self._paces[key] = EpochSize(blocks.steps, len(blocks))
        return self._paces[key]

    def reference(self, positive_from: float) -> EpochSize:
        """An epoch of DRIFT by time on the test split: others are looked at after as much, too."""
        return self.pace(DriftJob(self.systems[DRIFT], positive_from, "test", 0))

    def jobs(self, system: DriftSystem, positive_from: float) -> list[DriftJob]:
        """On test, with every seed. SAROS, of one block a step, is also kept after as many steps as
        an epoch of DRIFT has steps, and has blocks."""
        marks = tuple(self.reference(positive_from)) if system.kind == "saros" else ()
        return [DriftJob(system, positive_from, "test", seed, marks) for seed in self.config.seeds]

    def loss_blocks(self, job: DriftJob) -> tuple[Blocks, Blocks]:
        """The blocks on which losses are taken, of training and test: every user's, less items that
        no model has learnt."""
        split = self.split(job.part)
        tables = [p.select(p.items < split.train.n_items) for p in (split.train, split.test)]
        train, test = (Blocks.of_users(Events.of(t, job.positive_from, "user")) for t in tables)
        return train, test

    def describe_data(self) -> str:
        train, owned = self._test.train, self._membership.any(axis=0).sum()
        share = self._membership.sum(axis=1).mean() if self._membership.size else 0.0
        return (
            f"{self.dataset.name}: {train.n_users:,} users, {train.n_items:,} training items, "
            f"{train.n_interactions:,} training and {self._test.test.n_interactions:,} test "
            f"interactions; {owned} genres, each a data owner, {share:.2f} per item"
        )

    def describe(self) -> str:
        c = self.config
        last = f"{c.test_fraction:.0%}"
        return (
            f"each user's latest {last} held out; at convergence: the epoch, of {c.stops[0]} to "
            f"{c.epochs}, with the best {CHOSEN_BY} on the latest {last} of training, then trained "
            f"on both; {count_of(c.seeds)}"
        )

    # --- training ---------------------------------------------------------------------------------

    def run(self, job: DriftJob) -> DriftRun:
        """Trains, or reads what was kept of the same training."""
        if not job.system.trained:
            raise ConfigError(f"{job.system.label} is not trained by epochs")
        places = [*map(at_epoch, self.config.stops), *map(at_step, job.marks)]
        component = job.system.component(job.positive_from)
        # The length of a training is in what was kept, not in the key.
        key = [
            "drift", self._fingerprint, self.config.test_fraction,
            repr(replace(component, epochs=1)), job.system.owners, job.part, job.seed,
        ]  # fmt: skip
        names = [f"{place}.users" for place in places]
        found = self.kept(key, names, lambda: self._train(job, component))
        size = self.config.epochs + 1
        models = {p: DriftModel(found[f"{p}.users"], found[f"{p}.items"]) for p in places}
        pace = EpochSize(*(int(n) for n in found["pace"]))
        return DriftRun(job, pace, found["train_loss"][:size], found["test_loss"][:size], models)

    def runs(self, what: str, jobs: Sequence[DriftJob]) -> list[DriftRun]:
        """Several runs, side by side on the study's threads."""
        return self.many(what, self.run, jobs)

    def _train(self, job: DriftJob, component: SAROS | DRIFTConfig) -> dict[str, NDArray[Any]]:
        split, blocks = self.split(job.part), self.blocks(job)
        train = split.train
        rng = Streams.from_seed(job.seed)
        model = DriftModel.start(train.n_users, train.n_items, component.embedding_size, rng)
        measured = self.loss_blocks(job)
        found: dict[str, NDArray[Any]] = {"pace": np.array([blocks.steps, len(blocks)])}

        def keep(place: str, now: DriftModel) -> None:
            found[f"{place}.users"], found[f"{place}.items"] = now.users, now.items

        curves = [[mean_loss(model, part)] for part in measured]
        # A short training goes on to its last mark.
        last = -(-max(job.marks, default=0) // max(1, blocks.steps))
        for epoch in range(1, max(last, self.config.epochs) + 1):
            before = (epoch - 1) * blocks.steps
            for mark in job.marks:
                if before < mark <= before + blocks.steps:
                    # On a copy: a momentum does not survive a break within a user.
                    partly = model.copy()
                    component.epoch(partly, blocks.take(np.arange(mark - before)))
                    keep(at_step(mark), partly)
            component.epoch(model, blocks)
            for curve, part in zip(curves, measured, strict=True):
                curve.append(mean_loss(model, part))
            if epoch in self.config.stops:
                keep(at_epoch(epoch), model.copy())
        found["train_loss"], found["test_loss"] = (np.array(curve) for curve in curves)
        return found

    # --- measuring --------------------------------------------------------------------------------

    def scorer(self, system: DriftSystem, positive_from: float, part: Part, seed: int) -> Scorer:
        """Of a system without training: popularity counts the likes alone."""
        train = self.split(part).train
        if system.kind == "random":
            return Random().fit(train, Streams.from_seed(seed))
        if train.ratings is None:
            raise ConfigError("without ratings nothing says what was liked")
        return TopPop().fit(train.select(train.ratings >= positive_from), Streams.from_seed(seed))

    def measure(
        self, scorer: Scorer, positive_from: float, part: Part, ways: Sequence[str] = WAYS
    ) -> dict[str, Measured]:
        """By way."""
        split, threads = self.split(part), 1
        measures: dict[str, Callable[[], Measured]] = {
            "own": lambda: saros_metrics.own(scorer, split.test, positive_from, threads=threads),
            "legacy": lambda: saros_metrics.legacy(
                scorer, split.test, positive_from, threads=threads
            ),
            "full": lambda: saros_metrics.full(
                scorer, split.train, split.test, positive_from, threads=threads
            ),
        }
        return {way: measures[way]() for way in ways}

    def converged(self, system: DriftSystem, positive_from: float) -> int:
        """The epoch with the best figure on validation, by the first seed."""
        job = DriftJob(system, positive_from, "validation", self.config.seeds[0])
        run = self.run(job)
        scores = []
        for stop in self.config.stops:
            found = self.measure(scorer_of(run, at_epoch(stop)), positive_from, job.part, ("own",))
            scores.append(found["own"].means()[CHOSEN_BY])
        return self.config.stops[int(np.argmax(scores))]


def scorer_of(run: DriftRun, place: str) -> FactorScorer:
    model = run.models[place]
    return FactorScorer.of(model.users, model.items)


def mean_loss(model: DriftModel, blocks: Blocks) -> float:
    return float(losses(model, blocks).mean()) if len(blocks) else 0.0


class EpochStudy(DriftStudy):
    """What the figures on an epoch and on Θ share: DRIFT by time, an owner for each genre, on the
    test split with the first seed, by messages or all at once."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        config, dataset, ours = self.config, self.dataset, self.systems[DRIFT]
        self.settings = replace(ours.with_owners(config.positive_from[0]), epochs=config.epochs)
        train = self.test.train
        self.membership = dataset.category_matrix()[self.test.item_map[: train.n_items]]
        if not self.membership.any(axis=1).all():
            raise DataError(f"{dataset.name} has items without a category, which no owner holds")
        self.table = self.owners(self.test, ours)

    @property
    def test(self) -> Split:
        return self.split("test")

    @cached_property
    def events(self) -> Events:
        """The whole training part."""
        return Events.of(self.test.train, self.settings.positive_from, self.settings.order)

    def first(self, n: int) -> Events:
        """The first n interactions of the training part; all where n is 0."""
        e, n = self.events, n or len(self.events)
        return Events(e.user[:n], e.item[:n], e.positive[:n], e.time[:n], e.order)

    @property
    def seed(self) -> int:
        return self.config.seeds[0]

    def rng(self) -> Streams:
        return Streams.from_seed(self.seed)

    def start(self) -> DriftModel:
        train = self.test.train
        return DriftModel.start(
            train.n_users, train.n_items, self.settings.embedding_size, self.rng()
        )

    def simulation(self, settings: DRIFTConfig, sealing: Sealing, **more: Any) -> SiloSimulation:
        users = range(self.test.n_users)
        return SiloSimulation(settings, self.table, users, self.rng(), sealing, **more)

    def trained(self) -> dict[int, dict[int, DriftModel]]:
        """Models by Θ and epochs: after one, and after all."""
        ours, liked = self.systems[DRIFT], self.settings.positive_from
        jobs = [
            DriftJob(
                replace(ours, label=f"Θ={theta}", settings={**ours.settings, "theta": theta}),
                liked, "test", self.seed,
            )
            for theta in self.config.thetas
        ]  # fmt: skip
        stops = sorted({1, self.config.epochs})
        return {
            theta: {stop: run.models[at_epoch(stop)] for stop in stops}
            for theta, run in zip(self.config.thetas, self.runs("training", jobs), strict=True)
        }

    def describe_data(self) -> str:
        copies = int(self.membership.sum(axis=1)[self.events.item].sum())
        return f"{super().describe_data()}; {copies:,} messages to owners"

    def describe(self) -> str:
        s = self.settings
        return (
            f"{self.test.protocol}; rated {s.positive_from:g} or better is liked; F="
            f"{s.embedding_size}, α={s.learning_rate:g}, μ={s.reg:g}, in the order of {s.order}"
        )


def same_model(one: DriftModel, other: DriftModel) -> bool:
    """Bit for bit."""
    return np.array_equal(one.users, other.users) and np.array_equal(one.items, other.items)
