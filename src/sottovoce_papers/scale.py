"""Accuracy against the number of users and ε: systems on one generated crowd, of which more and
more users take part (`data.crowd`; MovieLens 20M's catalogue and average user)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sottovoce import config
from sottovoce.algorithms.base import AlgorithmSettings
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.baselines.simple import TopPop
from sottovoce.core.consent import Choice
from sottovoce.core.interactions import Interactions
from sottovoce.data.crowd import SeededCrowd, SeededCrowdConfig
from sottovoce.data.splitting import Split
from sottovoce.errors import ConfigError
from sottovoce.privacy.base import Release
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce_papers.cells import differing
from sottovoce_papers.claims import Claim, Row, Sets, Spec, claim, groups
from sottovoce_papers.kinds import alike
from sottovoce_papers.lines import END, Job, Kind, TrainedLine, TrainedSystem
from sottovoce_papers.worlds import Part, StudyData, StudyWorld

METRIC = "HR@10"


@dataclass(frozen=True, slots=True)
class CrowdData(StudyData):
    """A crowd that is made from its seed, `[data.NAME]` of a study. `users` take part."""

    crowd: SeededCrowdConfig = field(default_factory=SeededCrowdConfig)
    tested: int = 10_000
    """Users whose held-out item is looked for, the first ones; all take part."""

    def __post_init__(self) -> None:
        if self.users < 100 or self.tested < 1:
            raise ConfigError("a crowd needs 100 users at least, and some who are tested")

    def world(self, name: str) -> StudyWorld:
        return CrowdWorld(name, self)


class CrowdWorld(StudyWorld):
    """What a crowd has, what its tested users have, and what is held out of theirs."""

    config: CrowdData

    @property
    def fingerprint(self) -> str:
        """A key of the crowd's settings; the crowd follows from them."""
        return repr([differing(self.config.crowd), self.config.users, self.config.tested])

    @property
    def title(self) -> str:
        return f"{self.config.users:,} users"

    def describe(self) -> str:
        crowd = self.config.crowd
        return (
            f"a generated crowd, {crowd.items:,} items, {crowd.count:,} of each user, "
            f"{crowd.tastes} tastes; {self.title}"
        )

    def words(self) -> dict[str, Any]:
        return {"data": self.title, "size": self.describe(), "users": self.config.users}

    @cached_property
    def _crowd(self) -> SeededCrowd:
        return SeededCrowd(replace(self.config.crowd, held_out=True))

    def everybody(self, threads: int) -> tuple[Interactions, Interactions]:
        """Return what all users learn from, and what is held out of the tested ones."""
        train, out = self._crowd.generate(0, self.config.users, threads)
        tested = min(self.config.tested, self.config.users)
        return train, Interactions(
            indptr=np.arange(tested + 1, dtype=np.int64), items=out[:tested], n_items=train.n_items
        )

    def split(self, part: Part, seed: int) -> Split:
        """Return what the tested users have, and what is held out of theirs."""
        with self._lock:
            if (part, 0) not in self._splits:
                train, test = self.everybody(1)
                some, _ = self._crowd.generate(0, test.n_users)
                items = np.arange(train.n_items)
                self._splits[part, 0] = Split(some, test, items, protocol="one item each")
            return self._splits[part, 0]


class CrowdKind(Kind):
    """A system that a whole crowd trains, `name` among its settings, and that its tested users
    fit at home: FPL with a share π, FMF-LDP with k reports of ε, or gram at an ε."""

    def key(self, job: Job) -> object:
        made = parts_of(job)
        return job.settings["name"] if made is None else list(made)

    def train(self, job: Job) -> TrainedSystem:
        if not isinstance(job.world, CrowdWorld):
            raise ConfigError("a crowd's system needs data with a crowd")
        rng, made = Streams.from_seed(job.seed), parts_of(job)
        train, _ = job.world.everybody(job.cells.threads)
        if made is None:
            return TrainedSystem({END: job.measure(TopPop().fit(train, rng))})
        settings, release, choice = made
        federation = alike(settings, train, choice, release, rng)
        if job.cells.device != "cpu":
            federation.check_device(job.cells.device)
            federation.accelerate(job.cells.device)
        federation.run(threads=job.cells.threads)
        algorithm, view = federation.server.algorithm, federation.server.recommending
        everybody = np.arange(job.split.train.n_users, dtype=np.int64)
        tested = federation.devices.cohort.take(everybody)
        algorithm.device_fit(view, tested, rng)
        return TrainedSystem(
            {END: job.measure(algorithm.device_scorer(tested.vectors, view.items))}
        )


def parts_of(job: Job) -> tuple[AlgorithmSettings, Release, Choice] | None:
    """What a system is made of; None for popularity, which nobody needs to train."""
    own = ("name", "share", "epsilon", "reports")
    values = {name: value for name, value in job.settings.items() if name not in own}
    name, get = job.settings["name"], job.settings.get
    if name == "top-pop":
        return None
    if name == "fpl":
        fpl = config.build(FPLConfig, values, "fpl")
        users = job.world.config.users
        size = users if isinstance(fpl.cohort_size, str) else min(users, fpl.cohort_size)
        fpl = replace(fpl, cohort_size=size)
        return fpl, ShareFraction("draw"), Choice(share_positives=float(get("share", 0.5)))
    epsilon = float(job.settings["epsilon"])
    if name == "fmf":
        k = int(get("reports", 100))
        release = KReports(k, (Tier(epsilon),))
        settings = config.build(FMFConfig, values, "fmf")
        return settings, release, Choice(epsilon=epsilon, max_reports=k)
    if name == "gram":
        gram = config.build(GramConfig, {"recency": False, **values}, "gram")
        return gram, OwnEpsilon(epsilon=epsilon), Choice(epsilon=epsilon)
    raise ConfigError(f"a crowd trains fpl, fmf, gram or top-pop, not {name!r}")


def over_users(line: TrainedLine) -> Row:
    """Half of the 95 % interval over the tested users."""
    values = line.runs[0].per_user(METRIC)
    return {"half": float(1.96 * values.std() / np.sqrt(len(values)))}


def claims(sets: Sets, spec: Spec) -> list[Claim]:
    """That more users help those who protect themselves, and that the strictest need them most."""
    found = []
    curves = groups(sets["main"], ["settings"])
    for (what,), mine in curves.items():
        rows = [line.row for line in mine]
        if len(rows) < 2 or rows[0]["key"] not in spec["protected"]:
            continue
        half, first, last = max(row["half"] for row in rows), rows[0][METRIC], rows[-1][METRIC]
        text = f"{what}: more users make it better, or no worse"
        found.append(claim(text, (last >= first - half, f"{METRIC} {first:.4f} to {last:.4f}")))
    best = {what: mine[-1].row for (what,), mine in curves.items()}
    strict = next((row for row in best.values() if row["key"] == "gram"), None)
    floor = next(row for row in best.values() if row["key"] == "top-pop")
    if strict is not None:
        text = f"{strict['settings']} is above popularity where users are most"
        good = strict[METRIC] > floor[METRIC]
        found.append(claim(text, (good, f"{strict[METRIC]:.4f} against {floor[METRIC]:.4f}")))
    return found
