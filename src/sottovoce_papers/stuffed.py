"""gram among devices that push or demote an item: over plain secure sums and over checked ones.

A part of the study of poisoning. A row says how far an attack moves exposure its way from that of
the same training without it, as the mean over items and draws of the noise. Several attacks that
pass the checks are tried, and the row has the one that reached most.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.gram.system import SCALE, Gram, GramConfig
from sottovoce.attacks.poisoning import cold_targets, exposure
from sottovoce.attacks.stuffing import Fakes, Stuffing, knowing, stuffed_model
from sottovoce.config import require_whole
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import CheckedSum
from sottovoce.core.messages import ModelView
from sottovoce.core.one_bit import noise_root
from sottovoce.core.recommender import FactorScorer
from sottovoce.errors import ConfigError
from sottovoce.parties.helper import noise_spans
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams
from sottovoce_papers.claims import Row, Sets, Spec, StudyLine, groups
from sottovoce_papers.lines import END, Job, Kind, TrainedSystem

CLEAN = "none"
"""The attack of a training without malicious devices."""
ATTACKS = (CLEAN, "stuffing", "fakes", "demotion")
LINKS = ("secure sum", "checked sum")
ITEMS = ("cold", "end of the head", "middle of the head", "most popular")
"""Which items are attacked; the last ones are demoted."""
MODELS = 64
"""How many sums of honest devices are remembered at a time."""


@dataclass(frozen=True, slots=True)
class StuffedSettings:
    """A training of gram, `[systems.KEY.settings]` of a study; its seed draws the noise."""

    epsilon: float = 1.0
    recency: bool = True
    link: str = LINKS[0]
    attack: str = CLEAN
    items: str = ITEMS[0]
    target: int = 0
    """Which of the items of that kind is attacked."""
    targets: int = 2
    """How many items of each kind a training without attack is asked for."""
    share: float = 0.0
    """The share of malicious devices; 0 is a single one."""
    partners: int = 0
    """The number of popular items that the target is paired with; 0 takes all, weighed by somebody
    who knows a model of these users."""
    entry: int = 0
    """What the target weighs there, of 256; 0: as much as an entry can."""

    def __post_init__(self) -> None:
        for name, known in (("attack", ATTACKS), ("link", LINKS), ("items", ITEMS)):
            if getattr(self, name) not in known:
                raise ConfigError(f"there is no {name} {getattr(self, name)!r}; there are {known}")
        require_whole("targets", self.targets, 1, 100)
        require_whole("target", self.target, 0, self.targets - 1)


class StuffedKind(Kind):
    """gram among malicious devices: how often the target is shown. Without an attack, how often the
    items of every kind are shown, and accuracy."""

    def __init__(self) -> None:
        self._worlds: dict[tuple[Any, ...], StuffedWorld] = {}
        self._lock = threading.Lock()

    def key(self, job: Job) -> object:
        settings, world = self._made(job)
        checks = world.link and [repr(world.link.form(100, pairs)) for pairs in (False, True)]
        return [settings, repr(world.algorithm), checks]

    def train(self, job: Job) -> TrainedSystem:
        settings, world = self._made(job)
        scorer = world.trained(settings, job.seed)
        if settings.attack != CLEAN:
            target = world.items(settings.items, settings.targets)[settings.target]
            facts = {"target": str(target), "exposure": world.exposure(scorer, target)}
            return TrainedSystem({END: job.unmeasured()}, facts)
        asked = {item for kind in ITEMS for item in world.items(kind, settings.targets)}
        shown = {str(item): world.exposure(scorer, item) for item in sorted(asked)}
        return TrainedSystem({END: job.measure(scorer)}, {"exposures": shown})

    def _made(self, job: Job) -> tuple[StuffedSettings, StuffedWorld]:
        settings = config.build(StuffedSettings, dict(job.settings), "stuffed")
        about = (job.world.key, job.part, settings.epsilon, settings.recency, settings.link)
        with self._lock:
            if about not in self._worlds:
                self._worlds[about] = StuffedWorld(job.split.train, settings)
            return settings, self._worlds[about]


class StuffedWorld:
    """The users of a data set, at one ε, with time or without, over one kind of sum."""

    def __init__(self, train: Interactions, settings: StuffedSettings) -> None:
        self.train, n = train, train.n_users
        self.release = OwnEpsilon(settings.epsilon)
        self.consent = Consent.uniform(np.arange(n), Choice(epsilon=settings.epsilon))
        self.link = CheckedSum() if settings.link == "checked sum" else None
        gram = GramConfig(recency=settings.recency)
        gram, _ = gram.on_data({}, self.consent, train.n_items, self.release)
        self.algorithm: Gram = gram.build_under(self.release, self.link, 1)
        self.known_sums: dict[int, dict[tuple[int, bytes], Any]] = {}
        counts = train.item_counts
        self.popular: tuple[int, ...] = tuple(np.argsort(-counts, kind="stable").tolist())

    def cohort(self) -> Cohort:
        """Users as they are before a model: trainings run side by side."""
        n, size = self.train.n_users, self.algorithm.config.embedding_size
        return Cohort(np.arange(n), self.train, self.consent, np.zeros((n, size), np.float32))

    @cached_property
    def head(self) -> int:
        """Items that have pairs, without an attack."""
        return int(np.count_nonzero(self.model(0)[:, SCALE]))

    @cached_property
    def known(self) -> tuple[float, ...]:
        """What partners weigh to somebody who knows the model of another period."""
        return knowing(self.algorithm, self.model(1_000_000), self.train.n_users)

    def items(self, kind: str, targets: int) -> list[int]:
        """The items of a kind that an attack is about."""
        if kind == "cold":
            return list(cold_targets(self.train, targets, Streams.from_seed(0)).tolist())
        if kind == "most popular":
            return list(self.popular[:targets])
        first = 0.97 if kind == "end of the head" else 0.6
        places = (self.head * (first - 0.05 * np.arange(targets))).astype(int)
        return [self.popular[rank] for rank in places]

    def model(
        self, draw: int, attackers: Stuffing | Fakes | None = None, devices: int = 0
    ) -> NDArray[np.float32]:
        """What is published after a draw of the noise, with so many malicious devices."""
        rng = Streams.from_seed(draw)
        spans = noise_spans(self.algorithm, self.release)
        if spans is None:
            raise ConfigError("noise is the helper's here")
        more = self.algorithm.sigma / self.release.sigma
        return stuffed_model(
            self.algorithm,
            self.cohort(),
            np.ones(self.train.n_users),
            lambda round, numbers: [(many, more * one) for many, one in spans(round, numbers)],
            noise_root(rng.child("masker").root),
            attackers or Stuffing(0, self.popular),
            devices,
            link=self.link,
            rng=rng,
            known=self._known(draw),
        )

    def _known(self, draw: int) -> dict[tuple[int, bytes], Any]:
        """What honest devices add up to in a draw; few of them, as they are large."""
        if len(self.known_sums.setdefault(draw, {})) > MODELS:
            self.known_sums[draw] = {}
        return self.known_sums[draw]

    def trained(self, settings: StuffedSettings, draw: int) -> FactorScorer:
        """Return what users are recommended by after a training."""
        attackers, devices = None, 0
        if settings.attack != CLEAN:
            attackers = self._attackers(settings)
            devices = round(settings.share * self.train.n_users) or 1
        items = self.model(draw, attackers, devices)
        view, cohort = ModelView(len(self.algorithm.shares), items), self.cohort()
        self.algorithm.device_fit(view, cohort, Streams.from_seed(0))
        return self.algorithm.device_scorer(cohort.vectors, items)

    def _attackers(self, settings: StuffedSettings) -> Stuffing | Fakes:
        target = self.items(settings.items, settings.targets)[settings.target]
        partners, n_items = settings.partners, self.train.n_items
        if settings.attack == "fakes":
            return Fakes(self.algorithm, target, self.popular, partners, n_items, self.link)
        return Stuffing(
            target,
            self.popular,
            "anything" if self.link is None else "checked",
            partners or n_items,
            weights=() if partners else self.known,
            demotes=settings.attack == "demotion",
            entry=settings.entry,
        )

    def exposure(self, scorer: FactorScorer, item: int) -> float:
        """The share of users without an item to whom it is shown among ten."""
        return exposure(scorer, self.train, item, (10,), threads=1)["ER@10"]


# --- rows ----------------------------------------------------------------------------------------


def strongest(sets: Sets, values: Spec) -> list[StudyLine]:
    """Return a row for each attack, on each kind of items by each share of devices: that which
    moved exposure most."""
    lines, found = sets["gram"], []
    clean = {_world(line): line for line in lines if line.row["attack"] == CLEAN}
    for world in clean:
        mine = [line for line in lines if _world(line) == world and line.row["attack"] != CLEAN]
        plain = clean[*world[:3], LINKS[0]].row["P@10"]
        for same in groups(mine, ["attack", "items", "share"]).values():
            tried = [
                _moved(some, clean[world].facts)
                for some in groups(same, ["partners", "entry"]).values()
            ]
            accuracy = clean[world].row["P@10"]
            row = max(tried, key=lambda row: float(row["moved"]))
            row |= {"P@10": accuracy, "lost": 1.0 - accuracy / plain}
            found.append(StudyLine(row))
    return found


def _world(line: StudyLine) -> tuple[Any, ...]:
    return tuple(line.row[name] for name in ("data", "epsilon", "recency", "link"))


def _moved(lines: Sequence[StudyLine], clean: Sequence[Mapping[str, Any]]) -> Row:
    """The row of one attack: means over its targets and draws."""
    row = lines[0].row
    pairs = [
        (before["exposures"][after["target"]], after["exposure"])
        for line in lines
        for before, after in zip(clean, line.facts, strict=True)
    ]
    before, after = np.mean(pairs, axis=0).tolist()
    sign = -1.0 if row["attack"] == "demotion" else 1.0
    kept = ("data", "size", "system", "epsilon", "link", "attack", "items", "share")
    return {name: row[name] for name in kept} | {
        "time": "with time" if row["recency"] else "plain",
        "malicious": f"{row['share']:.1%}" if row["share"] else "one device",
        "partners": row["partners"] or "knowing",
        "clean": before,
        "ER@10": after,
        "moved": sign * (after - before),
    }
