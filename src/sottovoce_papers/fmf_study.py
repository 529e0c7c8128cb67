"""Trained cells of the FMF-LDP paper's figures.

A cell is one system with one setting on one split of one world: the rank of each user's held-out
item among the sampled negatives, after one or more rounds. Cells are kept on disk, so that an
interrupted study goes on where it was and figures share their runs.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.baselines import BASELINES, Baseline
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.messages import ModelView
from sottovoce.core.recommender import Scorer
from sottovoce.data.shaped import ShapeConfig, generate_shaped
from sottovoce.data.sources import load
from sottovoce.data.splitting import Split, keep_active, leave_one_out, validation_split
from sottovoce.engines.observers import AtRounds, Moment
from sottovoce.errors import ConfigError, Diverged
from sottovoce.evaluation.protocol import Protocol, Sampled, evaluate
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.runs.train import Report
from sottovoce.wire.versions import encode_model
from sottovoce_papers.study import Part, Study, count_of, installed

HoldOut = Literal["latest", "random"]
GENERATED = "generated"


@dataclass(frozen=True, slots=True)
class CrowdConfig:
    """Data of one shape. Users are drawn first, then items, uniformly; who is left with fewer than
    two items is dropped."""

    source: str = "movielens-1m"
    """A prepared data set, or "generated"."""
    users: int = 0
    """How many are drawn; 0 takes all."""
    items: int = 0
    """How many are drawn; 0 takes all."""
    min_item_users: int = 0
    """Only items with so many users, before the draws."""
    seeds: int = 0
    """How many of the study's seeds; 0 takes all."""


class Crowd:
    """Interactions, and their splits."""

    def __init__(self, settings: CrowdConfig, shape: ShapeConfig, draw_seed: int) -> None:
        self.config = settings
        self.table = _drawn(settings, shape, draw_seed)
        self.fingerprint = self.table.fingerprint()
        self._splits: dict[tuple[HoldOut, Part, int], Split] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Crowd {self.name}>"

    @property
    def name(self) -> str:
        return f"{self.config.source}, {self.table.n_users:,} × {self.table.n_items:,}"

    def describe(self) -> str:
        return f"{self.name}, {self.table.n_interactions:,} interactions"

    def split(self, hold_out: HoldOut, part: Part, seed: int) -> Split:
        place = (hold_out, part, seed if hold_out == "random" else 0)
        with self._lock:
            if place not in self._splits:
                rng = Streams.from_seed(place[2])
                found = leave_one_out(self.table, hold_out, rng.child("split"))
                if part == "validation":
                    found = validation_split(found, None, hold_out, rng.child("validation"))
                self._splits[place] = found
            return self._splits[place]


def _drawn(settings: CrowdConfig, shape: ShapeConfig, draw_seed: int) -> Interactions:
    if settings.source == GENERATED:
        table = _generated(shape)
    else:
        table = load(settings.source).interactions
    rng = Streams.from_seed(draw_seed)
    if settings.min_item_users:
        table = keep_active(table, 1, settings.min_item_users)
    if settings.users:
        table = table.take_users(rng.child("users").choose(table.n_users, settings.users))
    if settings.items:
        chosen = np.zeros(table.n_items, dtype=bool)
        chosen[rng.child("items").choose(table.n_items, settings.items)] = True
        table = table.select(chosen[table.items])
    return keep_active(table, 2)


@lru_cache(maxsize=1)
def _generated(shape: ShapeConfig) -> Interactions:
    return generate_shaped(shape, threads=2)


Ranks = NDArray[np.int16]
"""Of each user's held-out item among the candidates, from 1."""
UNRANKED = 32_767
"""Where the item cannot be ranked, or the model ran off to infinity."""
FMF = "fmf"
CHOSEN_BY = 10
"""Settings are chosen by the hit ratio at this cut-off."""


@dataclass(frozen=True, slots=True)
class FMFStudyConfig:
    worlds: tuple[CrowdConfig, ...] = (CrowdConfig(),)
    hold_outs: tuple[HoldOut, ...] = ("random",)
    """Which interaction of each user is the test item."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each with a training and negatives of its own, and where the hold-out is random, a split of
    its own; figures are means."""
    negatives: int = 99
    cutoffs: tuple[int, ...] = (2, 5, 10)
    epsilons: tuple[float, ...] = (2.5,)
    """ε of one report."""
    reports: tuple[int, ...] = (100,)
    """k."""
    rounds: int = 20
    generated: ShapeConfig = field(default_factory=ShapeConfig)
    draw_seed: int = 0
    """For the draws of users and items."""


@dataclass(frozen=True, slots=True)
class FMFSetting:
    """One system as trained."""

    kind: str
    """"fmf", or the name of a baseline."""
    values: tuple[tuple[str, Any], ...] = ()
    reports: int = 0
    epsilon: float = 0.0

    @property
    def federated(self) -> bool:
        return self.kind == FMF

    def component(self) -> FMFConfig | Baseline:
        if self.federated:
            return config.build(FMFConfig, dict(self.values), FMF)
        if self.kind not in BASELINES:
            raise ConfigError(f"there is no system {self.kind!r}")
        return config.build(BASELINES[self.kind], dict(self.values), self.kind)


@dataclass(frozen=True, slots=True)
class FMFSystem:
    """A line of a table: a kind, its settings, and those among which validation chooses."""

    label: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    reports: int = 0
    """k of its own; 0 takes the study's."""
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Other settings and grids for some sources of data."""

    @classmethod
    def read(cls, key: str, table: Mapping[str, Any]) -> FMFSystem:
        known = {"label", "kind", "settings", "grid", "reports", "sources"}
        unknown = sorted(set(table) - known)
        if unknown or not isinstance(table.get("label"), str):
            raise ConfigError(f"[systems.{key}] needs a label and knows no keys {unknown}")
        return cls(**{"kind": FMF, **table})

    def on(self, source: str) -> FMFSystem:
        """As it is run on data of this source."""
        if source not in self.sources:
            return self
        other = self.sources[source]
        settings = {**self.settings, **other.get("settings", {})}
        return replace(self, settings=settings, grid=other.get("grid", {}))

    def candidates(self, reports: int, epsilon: float) -> list[FMFSetting]:
        names = list(self.grid)
        private = (self.reports or reports, epsilon) if self.kind == FMF else (0, 0.0)
        return [
            FMFSetting(self.kind, (*self.settings.items(), *zip(names, v, strict=True)), *private)
            for v in itertools.product(*self.grid.values())
        ]

    def varied(self, setting: FMFSetting) -> str:
        """What validation chose, in words."""
        chosen = dict(setting.values)
        known = {"embedding_size": "F", "alpha": "α", "learning_rate": "γ", "reg": "λ"}
        names = [name for name in self.grid if name in chosen]
        return ", ".join(f"{known.get(name, name)}={chosen[name]:g}" for name in names)


@dataclass(frozen=True, slots=True)
class FMFJob:
    world: Crowd
    hold_out: HoldOut
    part: Part
    seed: int
    setting: FMFSetting
    stops: tuple[int, ...] = ()
    """Rounds after which ranks are kept; only the end where there are none."""


@dataclass(frozen=True, slots=True, repr=False)
class RankCell:
    ranks: Mapping[int, Ranks]
    """By round; a system that is trained in one go has round 0."""
    model_bytes: int = 0
    """Of the last model that devices fetched; 0 where none does."""

    @property
    def last(self) -> Ranks:
        return self.ranks[max(self.ranks)]


@dataclass(frozen=True, slots=True, repr=False)
class FMFLine:
    """One system on one crowd and hold-out, with a training for each seed."""

    world: Crowd
    hold_out: HoldOut
    system: str
    setting: FMFSetting
    cells: Sequence[RankCell]

    def score(self, cutoff: int = 10, round: int | None = None) -> float:
        """The hit ratio in the end or after a round, the mean over seeds."""
        ranks = [cell.last if round is None else cell.ranks[round] for cell in self.cells]
        return float(np.mean([hit_ratio(r, cutoff) for r in ranks]))

    def spread(self, cutoff: int = 10) -> float | None:
        """Standard deviation over seeds, if there are several."""
        values = [hit_ratio(cell.last, cutoff) for cell in self.cells]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    def hits(self, cutoff: int = 10) -> NDArray[np.float64]:
        """Of each user, the mean over seeds."""
        means: NDArray[np.float64] = np.mean([c.last <= cutoff for c in self.cells], axis=0)
        return means


class FMFStudy(Study):
    """Trained cells of the systems of one figure."""

    prefix = "fmf-"

    def __init__(
        self,
        settings: FMFStudyConfig,
        systems: Mapping[str, FMFSystem],
        cells: Path,
        threads: int,
        report: Report,
    ) -> None:
        super().__init__(cells, threads, report)
        self.config, self.systems = settings, systems
        self._worlds: dict[CrowdConfig, Crowd] = {}

    @classmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        table = installed(name, quick)
        study = config.build(FMFStudyConfig, table.get("study", {}), "study")
        systems = {k: FMFSystem.read(k, part) for k, part in table.get("systems", {}).items()}
        return cls(study, systems, cells, threads, report)

    def world(self, settings: CrowdConfig) -> Crowd:
        if settings not in self._worlds:
            self._worlds[settings] = Crowd(settings, self.config.generated, self.config.draw_seed)
        return self._worlds[settings]

    @property
    def worlds(self) -> list[Crowd]:
        return [self.world(w) for w in self.config.worlds]

    def short(self, key: str) -> str:
        """A system's name in a legend, where room is scarce."""
        label = self.systems[key].label
        return label if len(label) <= 14 else key

    def describe_data(self) -> str:
        return "; ".join(crowd.describe() for crowd in self.worlds)

    def describe(self) -> str:
        c = self.config
        return (
            f"leave-one-out ({' and '.join(c.hold_outs)}), each test item among {c.negatives} "
            f"sampled negatives, ties against the system; {count_of(c.seeds)}; settings chosen by "
            f"HR@{CHOSEN_BY} on another held-out item, with one seed"
        )

    # --- training ---------------------------------------------------------------------------------

    def cell(self, job: FMFJob) -> RankCell:
        component = job.setting.component()
        if job.setting.federated:  # a server may plan ahead: the length is a setting
            component = replace(cast(FMFConfig, component), rounds=self.config.rounds)
        key = [
            job.world.fingerprint, job.hold_out, job.part, job.seed, self.config.negatives,
            repr(component), job.setting.reports, job.setting.epsilon,
        ]  # fmt: skip
        stops = self._stops(job, component)
        names = [str(stop) for stop in stops]
        found = self.kept(key, names, lambda: self._train(job, component, stops))
        return RankCell(
            {s: found[str(s)] for s in stops}, int(found.get("model_bytes", np.array(0)))
        )

    def choose(
        self,
        world: Crowd,
        system: FMFSystem,
        hold_out: HoldOut,
        reports: int | None = None,
        epsilon: float | None = None,
    ) -> FMFSetting:
        """The candidate with the best hit ratio on validation, with the first seed."""
        study = self.config
        tried = system.on(world.config.source).candidates(
            reports or study.reports[0], epsilon or study.epsilons[0]
        )
        if len(tried) == 1:
            return tried[0]
        jobs = [FMFJob(world, hold_out, "validation", study.seeds[0], s) for s in tried]
        cells = self.many(f"{system.label} on validation, {world.name}", self.cell, jobs)
        scores = [hit_ratio(cell.last, CHOSEN_BY) for cell in cells]
        return tried[int(np.argmax(scores))]

    def line(
        self,
        crowd: Crowd,
        key: str,
        hold_out: HoldOut,
        setting: FMFSetting,
        stops: tuple[int, ...] = (),
    ) -> FMFLine:
        """A system with this setting on test, with every seed."""
        seeds = self.config.seeds[: crowd.config.seeds or None]
        jobs = [FMFJob(crowd, hold_out, "test", s, setting, stops) for s in seeds]
        what = f"{self.systems[key].label} on test, {crowd.name}"
        return FMFLine(crowd, hold_out, key, setting, self.many(what, self.cell, jobs))

    # --- inside -----------------------------------------------------------------------------------

    def _stops(self, job: FMFJob, component: FMFConfig | Baseline) -> tuple[int, ...]:
        federated = job.setting.federated
        if job.stops and (federated or hasattr(component, "fit_steps")):
            return job.stops
        return (self.config.rounds,) if federated else (0,)

    def _train(
        self, job: FMFJob, component: FMFConfig | Baseline, stops: tuple[int, ...]
    ) -> Mapping[str, NDArray[Any]]:
        split, rng = job.world.split(job.hold_out, job.part, job.seed), Streams.from_seed(job.seed)
        try:
            if job.setting.federated:
                return self._federated(cast(FMFConfig, component), job, split, stops)
            component = cast(Baseline, component)
            if stops != (0,):
                scorers = component.fit_steps(split.train, rng, list(stops))  # type: ignore[attr-defined]
                return {
                    str(s): self._ranks(scorer, split, job.seed)
                    for s, scorer in zip(stops, scorers, strict=True)
                }
            return {"0": self._ranks(component.fit(split.train, rng), split, job.seed)}
        except Diverged:
            lost = np.full(int((split.test.counts > 0).sum()), UNRANKED, dtype=np.int16)
            return {str(s): lost for s in stops}

    def _federated(
        self, settings: FMFConfig, job: FMFJob, split: Split, stops: tuple[int, ...]
    ) -> dict[str, NDArray[Any]]:
        k, epsilon = job.setting.reports, job.setting.epsilon
        users = np.arange(split.train.n_users, dtype=np.int64)
        federation = Federation.build(
            settings,
            split.train,
            Consent.uniform(users, Choice(epsilon=epsilon, max_reports=k)),
            KReports(k, (Tier(epsilon),)),
            Streams.from_seed(job.seed),
        )
        found: dict[str, NDArray[Any]] = {}

        def look(moment: Moment) -> None:
            found[str(moment.round)] = self._ranks(federation.scorer(), split, job.seed)

        federation.devices.ledger.keep_rows = False
        federation.run([AtRounds(stops, look)])
        last = encode_model(ModelView(settings.rounds, federation.server.items))
        return found | {"model_bytes": np.array(len(last))}

    def _ranks(self, scorer: Scorer, split: Split, seed: int) -> Ranks:
        """Every user's rank: with a cut-off behind the last candidate, AP is its reciprocal."""
        every = self.config.negatives + 1
        protocol = Protocol(every, Sampled(self.config.negatives, seed))
        found = evaluate(scorer, split.train, split.test, protocol, threads=1)
        precision = found.per_user(f"AP@{every}")
        ranks = np.full(len(precision), UNRANKED, dtype=np.int16)
        ranks[precision > 0] = np.rint(1.0 / precision[precision > 0]).astype(np.int16)
        return ranks


def hit_ratio(ranks: Ranks, cutoff: int) -> float:
    """The share of users whose item is among the first `cutoff` candidates."""
    return float((ranks <= cutoff).mean())
