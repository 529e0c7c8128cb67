"""Trained cells of the FMF-LDP paper's figures.

A cell is one system with one setting on one split of one world: the rank of each user's held-out
item among the sampled negatives, after one or more rounds. Cells are kept on disk, so that an
interrupted study goes on where it was and figures share their runs.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

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
from sottovoce_papers.study import Part, installed, kept

# Data of the FMF-LDP paper's figures: draws of users and items, and leave-one-out splits.

HoldOut = Literal["latest", "random"]
GENERATED = "generated"


@dataclass(frozen=True, slots=True)
class WorldConfig:
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


class World:
    """Interactions, and their splits."""

    def __init__(self, settings: WorldConfig, shape: ShapeConfig, draw_seed: int) -> None:
        self.config = settings
        self.table = _drawn(settings, shape, draw_seed)
        self.fingerprint = self.table.fingerprint()
        self._splits: dict[tuple[HoldOut, Part, int], Split] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<World {self.name}>"

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


def _drawn(settings: WorldConfig, shape: ShapeConfig, draw_seed: int) -> Interactions:
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


# Figures printed in the FMF-LDP paper (Minto et al. 2021), for comparison with ours.

FIGURE4 = {
    (1_000, 1_000): 0.1160,
    (1_000, 5_000): 0.1010,
    (1_000, 9_781): 0.1090,
    (10_000, 1_000): 0.6325,
    (10_000, 5_000): 0.1988,
    (10_000, 9_781): 0.1216,
    (50_000, 1_000): 0.6972,
    (50_000, 5_000): 0.6801,
    (50_000, 9_781): 0.5654,
}
"""HR@10 by users and items, k = 100, ε = 2.5, 20 epochs."""

FIGURE5 = {
    "mf-np": (0.4310, 0.6700, 0.8179),
    "dplcf": (0.4203, 0.5969, 0.7000),
    "published": (0.2163, 0.3755, 0.5131),
    "published-250": (0.2315, 0.3980, 0.5384),
    "random": (0.0200, 0.0500, 0.1000),
}
"""HR@2, HR@5 and HR@10 on the latest split of 75,040 users and 9,781 items."""

RATIO = 0.5131 / 0.8179
"""FMF-LDP-100 over MF-NP in Figure 5."""

DPLCF_RATIO = 0.7000 / 0.8179
"""DPLCF over MF-NP in Figure 5."""

UP_PER_EPOCH = 400
"""§5.3: bytes that a device sends in an epoch at k = 100."""

DOWN_PER_EPOCH = {1_000: 20_000, 9_781: 196_000}
"""§5.3: bytes of V by items, at five factors."""

EPOCHS = 20


Ranks = NDArray[np.int16]
"""Of each user's held-out item among the candidates, from 1."""
UNRANKED = 32_767
"""Where the item cannot be ranked, or the model ran off to infinity."""
FMF = "fmf"
CHOSEN_BY = 10
"""Settings are chosen by the hit ratio at this cut-off."""


@dataclass(frozen=True, slots=True)
class StudyConfig:
    worlds: tuple[WorldConfig, ...] = (WorldConfig(),)
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
class Setting:
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
class System:
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
    def read(cls, key: str, table: Mapping[str, Any]) -> System:
        known = {"label", "kind", "settings", "grid", "reports", "sources"}
        unknown = sorted(set(table) - known)
        if unknown or not isinstance(table.get("label"), str):
            raise ConfigError(f"[systems.{key}] needs a label and knows no keys {unknown}")
        return cls(**{"kind": FMF, **table})

    def on(self, source: str) -> System:
        """As it is run on data of this source."""
        if source not in self.sources:
            return self
        other = self.sources[source]
        settings = {**self.settings, **other.get("settings", {})}
        return replace(self, settings=settings, grid=other.get("grid", {}))

    def candidates(self, reports: int, epsilon: float) -> list[Setting]:
        names = list(self.grid)
        private = (self.reports or reports, epsilon) if self.kind == FMF else (0, 0.0)
        return [
            Setting(self.kind, (*self.settings.items(), *zip(names, v, strict=True)), *private)
            for v in itertools.product(*self.grid.values())
        ]

    def varied(self, setting: Setting) -> str:
        """What validation chose, in words."""
        chosen = dict(setting.values)
        known = {"embedding_size": "F", "alpha": "α", "learning_rate": "γ", "reg": "λ"}
        names = [name for name in self.grid if name in chosen]
        return ", ".join(f"{known.get(name, name)}={chosen[name]:g}" for name in names)


@dataclass(frozen=True, slots=True)
class Job:
    world: World
    hold_out: HoldOut
    part: Part
    seed: int
    setting: Setting
    stops: tuple[int, ...] = ()
    """Rounds after which ranks are kept; only the end where there are none."""


@dataclass(frozen=True, slots=True, repr=False)
class Cell:
    ranks: Mapping[int, Ranks]
    """By round; a system that is trained in one go has round 0."""
    model_bytes: int = 0
    """Of the last model that devices fetched; 0 where none does."""

    @property
    def last(self) -> Ranks:
        return self.ranks[max(self.ranks)]


class FMFStudy:
    """Trained cells of the systems of one figure."""

    def __init__(
        self,
        settings: StudyConfig,
        systems: Mapping[str, System],
        cells: Path,
        threads: int,
        report: Report,
    ) -> None:
        self.config = settings
        self.systems = systems
        self.threads = threads
        self._report = report
        self._folder = cells
        self._worlds: dict[WorldConfig, World] = {}

    @classmethod
    def read(cls, name: str, quick: bool, cells: Path, threads: int, report: Report) -> FMFStudy:
        """The installed file of a figure; `quick` lays its [quick] table over the rest."""
        table = installed(name)
        if quick:
            table = laid_over(table, table.get("quick", {}))
        study = config.build(StudyConfig, table.get("study", {}), "study")
        systems = {key: System.read(key, part) for key, part in table.get("systems", {}).items()}
        return cls(study, systems, cells, threads, report)

    def world(self, settings: WorldConfig) -> World:
        if settings not in self._worlds:
            self._worlds[settings] = World(settings, self.config.generated, self.config.draw_seed)
        return self._worlds[settings]

    @property
    def worlds(self) -> list[World]:
        return [self.world(w) for w in self.config.worlds]

    def short(self, key: str) -> str:
        """A system's name in a legend, where room is scarce."""
        label = self.systems[key].label
        return label if len(label) <= 14 else key

    def describe(self) -> str:
        c = self.config
        seeds = f"{len(c.seeds)} seed{'s' * (len(c.seeds) > 1)}"
        return (
            f"leave-one-out ({' and '.join(c.hold_outs)}), each test item among {c.negatives} "
            f"sampled negatives, ties against the system; {seeds}; settings chosen by "
            f"HR@{CHOSEN_BY} on another held-out item, with one seed"
        )

    # --- training ---------------------------------------------------------------------------------

    def cell(self, job: Job) -> Cell:
        component = job.setting.component()
        if job.setting.federated:  # a server may plan ahead: the length is a setting
            component = replace(cast(FMFConfig, component), rounds=self.config.rounds)
        key = [
            job.world.fingerprint, job.hold_out, job.part, job.seed, self.config.negatives,
            repr(component), job.setting.reports, job.setting.epsilon,
        ]  # fmt: skip
        stops = self._stops(job, component)
        names = [str(stop) for stop in stops]
        found = kept(self._folder, "fmf-", key, names, lambda: self._train(job, component, stops))
        return Cell({s: found[str(s)] for s in stops}, int(found.get("model_bytes", np.array(0))))

    def many(self, what: str, jobs: Sequence[Job]) -> list[Cell]:
        """Several cells, side by side on the study's threads."""
        done = 0
        self._report(what, 0, len(jobs))

        def one(job: Job) -> Cell:
            nonlocal done
            found = self.cell(job)
            done += 1
            self._report(what, done, len(jobs))
            return found

        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(one, jobs))

    def choose(
        self,
        world: World,
        system: System,
        hold_out: HoldOut,
        reports: int | None = None,
        epsilon: float | None = None,
    ) -> Setting:
        """The candidate with the best hit ratio on validation, with the first seed."""
        study = self.config
        tried = system.on(world.config.source).candidates(
            reports or study.reports[0], epsilon or study.epsilons[0]
        )
        if len(tried) == 1:
            return tried[0]
        jobs = [Job(world, hold_out, "validation", study.seeds[0], s) for s in tried]
        cells = self.many(f"{system.label} on validation, {world.name}", jobs)
        scores = [hit_ratio(cell.last, CHOSEN_BY) for cell in cells]
        return tried[int(np.argmax(scores))]

    def final(
        self,
        world: World,
        label: str,
        setting: Setting,
        hold_out: HoldOut,
        stops: tuple[int, ...] = (),
    ) -> list[Cell]:
        """The setting on test with every seed."""
        seeds = self.config.seeds[: world.config.seeds or None]
        jobs = [Job(world, hold_out, "test", s, setting, stops) for s in seeds]
        return self.many(f"{label} on test, {world.name}", jobs)

    # --- inside -----------------------------------------------------------------------------------

    def _stops(self, job: Job, component: FMFConfig | Baseline) -> tuple[int, ...]:
        federated = job.setting.federated
        if job.stops and (federated or hasattr(component, "fit_steps")):
            return job.stops
        return (self.config.rounds,) if federated else (0,)

    def _train(
        self, job: Job, component: FMFConfig | Baseline, stops: tuple[int, ...]
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
        self, settings: FMFConfig, job: Job, split: Split, stops: tuple[int, ...]
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


def mean_hit_ratio(cells: Sequence[Cell], cutoff: int, round: int | None = None) -> float:
    """The mean over seeds."""
    ranks = [cell.last if round is None else cell.ranks[round] for cell in cells]
    return float(np.mean([hit_ratio(r, cutoff) for r in ranks]))


def spread(cells: Sequence[Cell], cutoff: int) -> float | None:
    """Standard deviation over seeds, where there are several."""
    values = [hit_ratio(cell.last, cutoff) for cell in cells]
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables within tables are laid over each other, everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = laid_over(old, value) if both and old is not None else value
    return merged
