"""Malicious devices: what they send to get one item before everybody's eyes.

A poisoner makes the messages of all malicious devices of a round from what any device has (the
published model) and from `Facts`. It keeps to what a server checks of a message: how many rows, how
large a number. How the published ones work was taken from their descriptions:

* `FedRecAttack` (Rong et al., ICDE 2022): guesses users' vectors from the few interactions that are
  public, and sends the gradient that lifts the item above the last place of their lists.
* `HardUsers`, A-hum (Rong, Ye et al., IJCAI 2022): knows nothing; makes up users who would like the
  item least, and sends the gradient that lifts it even for them.
* `Profiles`: honest devices with made-up histories, the item among random or popular ones. Nothing
  in a single message tells them from people: what they reach is what as many fans would.
* `Twin`: pulls the item's row to that of the most popular items (as in PIECK, 2025).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import CrossDevice
from sottovoce.algorithms.fmf import rotated
from sottovoce.core.arrays import sum_groups
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.messages import GRID, DeviceReports, ModelView
from sottovoce.core.one_bit import pack
from sottovoce.core.recommender import Scorer, top_n
from sottovoce.errors import ConfigError, DataError, MessageError
from sottovoce.rng import Streams

_TINY = 1e-12
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, repr=False)
class Facts:
    """What an attacker knows beside the published model."""

    popular: NDArray[np.int64]
    """Items by how popular they are, as any chart tells."""
    public: Interactions
    """What users have made public, by user: a small share of all interactions."""

    @classmethod
    def of(cls, train: Interactions, share: float, rng: Streams) -> Facts:
        """A random share of the interactions is public."""
        known = rng.generator().random(train.n_interactions) < share
        order = np.argsort(-train.item_counts, kind="stable")
        return cls(order.astype(np.int64), train.select(known))

    def __repr__(self) -> str:
        return f"<Facts of {self.public.n_interactions:,} public interactions>"


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a server lets pass of one device."""

    max_rows: int
    largest: float
    """Absolute value of one number."""


class Poisoner(Protocol):
    def device_poison(
        self, view: ModelView, senders: NDArray[np.int64], rng: Streams
    ) -> DeviceReports:
        """The messages of these malicious devices in a round."""
        ...


def messages(
    view: ModelView,
    senders: NDArray[np.int64],
    item: NDArray[np.int64],
    rows: Floats,
    allowed: Allowed,
) -> DeviceReports:
    """Each sender's rows, [senders, rows of each] and [senders, rows of each, width], as messages
    that pass the server's checks. An item of -1 stands for no row."""
    if item.shape[1] > allowed.max_rows:
        raise MessageError("a device sends more rows than the server lets pass")
    order = np.argsort(item, axis=1, kind="stable")
    item = np.take_along_axis(item, order, axis=1)
    rows = np.take_along_axis(rows, order[:, :, None], axis=1)
    there = item >= 0
    limit = np.floor(allowed.largest * GRID)
    values = np.clip(np.rint(rows[there] * GRID), -limit, limit).astype(np.int64)
    sender = np.repeat(senders, there.sum(axis=1))
    return DeviceReports(view.round, sender, item[there].astype(np.int32), values)


def clipped(rows: Floats, norm: float) -> Floats:
    """Rows (in the last axis) no longer than `norm`."""
    length = np.sqrt((rows**2).sum(axis=-1, keepdims=True))
    shorter: Floats = rows * np.minimum(1.0, norm / np.maximum(length, _TINY))
    return shorter


@dataclass(slots=True, repr=False)
class FedRecAttack:
    """Lifts `target` for users whose vectors it guesses from public interactions."""

    target: int
    facts: Facts
    allowed: Allowed
    norm: float = 1.0
    """Norm of each row that a malicious device sends."""
    max_rows: int = 60
    """Rows of each malicious device (κ)."""
    biased: bool = True
    """Whether the last number of a row is the item's bias."""
    places: int = 10
    """Length of the lists in which the target is wanted."""
    crowd: int = 64
    """Users who are looked at in a round."""
    _vectors: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def device_poison(
        self, view: ModelView, senders: NDArray[np.int64], rng: Streams
    ) -> DeviceReports:
        rng = rng.child("fedrecattack", view.round)
        items = view.items.astype(np.float64)
        pull = self._pull(items, self._guess(items, rng), rng) / len(senders)
        others = np.flatnonzero((pull**2).sum(axis=1))
        others = others[others != self.target]
        kept = min(self.max_rows, self.allowed.max_rows) - 1
        item = np.full((len(senders), 1 + min(kept, len(others))), self.target, dtype=np.int64)
        if item.shape[1] > 1:  # each sends other rows, the longer the likelier
            weight = np.log((pull[others] ** 2).sum(axis=1))
            luck = -np.log(-np.log(rng.generator().random((len(senders), len(others)))))
            best = np.argsort(-(weight + luck), axis=1)[:, : item.shape[1] - 1]
            item[:, 1:] = others[best]
        return messages(view, senders, item, clipped(pull[item], self.norm), self.allowed)

    def _guess(self, items: Floats, rng: Streams) -> Floats:
        """Everybody's vector, by pairs of a public item and another one."""
        public, first = self.facts.public, not len(self._vectors)
        size = items.shape[1] - self.biased
        if first:
            users = np.arange(public.n_users, dtype=np.int64)
            self._vectors = 0.1 * rng.normal(users, size)
        user, liked, draw = public.users, public.items, rng.child("pairs").generator()
        for _ in range(30 if first else 5):
            other = draw.integers(0, len(items), len(liked))
            step = items[liked] - items[other]
            score = (self._vectors[user] * step[:, :size]).sum(axis=1)
            if self.biased:
                score += step[:, size]
            push = 0.1 / (1.0 + np.exp(score))
            np.add.at(self._vectors, user, push[:, None] * step[:, :size])
        return self._vectors

    def _pull(self, items: Floats, vectors: Floats, rng: Streams) -> Floats:
        """Return the direction in which each row should move: the target up, and the item in the
        last place down."""
        public = self.facts.public
        lacks = np.ones(public.n_users, dtype=bool)
        lacks[public.users[public.items == self.target]] = False
        known = np.flatnonzero(lacks & (public.counts > 0))
        if not len(known):
            raise ConfigError("FedRecAttack needs at least one public interaction")
        seen = known[rng.child("crowd").choose(len(known), self.crowd)]
        wide = vectors[seen]
        if self.biased:
            wide = np.hstack([wide, np.ones((len(seen), 1))])
        scores = wide @ items.T
        mine = public.take_users(seen)
        scores[mine.users, mine.items] = -np.inf
        aim = scores[:, self.target].copy()
        scores[:, self.target] = -np.inf
        last = np.argpartition(-scores, self.places - 1, axis=1)[:, : self.places]
        rivals = np.take_along_axis(scores, last, axis=1)
        place = rivals.argmin(axis=1)
        rival = np.take_along_axis(last, place[:, None], axis=1)[:, 0]
        gap = rivals.min(axis=1) - aim
        slope = np.exp(np.minimum(gap, 0.0))[:, None] * wide * (len(known) / len(seen))
        pull = np.zeros_like(items)
        pull[self.target] = slope.sum(axis=0)
        np.subtract.at(pull, rival, slope)
        return pull


@dataclass(slots=True, repr=False)
class HardUsers:
    """A-hum: lifts `target` for made-up users under whose vectors it is ranked last."""

    target: int
    allowed: Allowed
    norm: float = 1.0
    biased: bool = True
    made_up: int = 30
    """Users that each device makes up."""
    spread: float = 0.1
    """Standard deviation of their vectors, before they are made hard."""
    steps: int = 10
    rate: float = 1.0

    def device_poison(
        self, view: ModelView, senders: NDArray[np.int64], rng: Streams
    ) -> DeviceReports:
        aim = view.items[self.target].astype(np.float64)
        size = len(aim) - self.biased
        draws = rng.child("hard-users", view.round).normal(senders, self.made_up * size)
        users = self.spread * draws.reshape(len(senders), self.made_up, size)
        offset = aim[size] if self.biased else 0.0
        for _ in range(self.steps):  # down the logarithm of the target's probability
            users -= self.rate * _unlikely(users @ aim[:size] + offset)[:, :, None] * aim[:size]
        weight = _unlikely(users @ aim[:size] + offset)
        rows = (weight[:, :, None] * users).sum(axis=1)
        if self.biased:
            rows = np.hstack([rows, weight.sum(axis=1, keepdims=True)])
        item = np.full((len(senders), 1), self.target, dtype=np.int64)
        return messages(view, senders, item, clipped(rows, self.norm)[:, None], self.allowed)


def _unlikely(scores: Floats) -> Floats:
    probability: Floats = 1.0 / (1.0 + np.exp(np.clip(scores, -50.0, 50.0)))
    return probability


@dataclass(slots=True, repr=False)
class Twin:
    """Pulls the target's row to a longer copy of the most popular items' mean row."""

    target: int
    facts: Facts
    allowed: Allowed
    norm: float = 1.0
    copied: int = 10
    reach: float = 2.0
    """How long the copy is, beside the mean."""
    learning_rate: float = 0.05
    """The server's, which the terms tell: together the devices ask for one whole step."""

    def device_poison(
        self, view: ModelView, senders: NDArray[np.int64], rng: Streams
    ) -> DeviceReports:
        items = view.items.astype(np.float64)
        others = self.facts.popular[self.facts.popular != self.target][: self.copied]
        gap = self.reach * items[others].mean(axis=0) - items[self.target]
        row = clipped(gap / (self.learning_rate * len(senders)), self.norm)
        rows = np.tile(row, (len(senders), 1, 1))
        item = np.full((len(senders), 1), self.target, dtype=np.int64)
        return messages(view, senders, item, rows, self.allowed)


@dataclass(slots=True, repr=False)
class Profiles:
    """Honest devices of people who do not exist."""

    algorithm: CrossDevice
    cohort: Cohort

    @classmethod
    def of(
        cls,
        algorithm: CrossDevice,
        target: int,
        fillers: NDArray[np.int64],
        n_items: int,
        length: int,
        senders: NDArray[np.int64],
        rng: Streams,
    ) -> Profiles:
        """Histories of the target and `length` others, drawn from `fillers` for each."""
        draw = rng.child("profiles").generator()
        fillers = fillers[fillers != target]
        length = min(length, len(fillers))
        others = [draw.choice(fillers, length, replace=False) for _ in senders]
        item = np.concatenate([[target, *mine] for mine in others])
        user = np.repeat(np.arange(len(senders)), length + 1)
        history = Interactions.from_pairs(user, item, n_users=len(senders), n_items=n_items)
        consent = Consent.uniform(senders, Choice(share_positives=1.0))
        vectors = algorithm.device_init(senders, rng.child("profiles"))
        return cls(algorithm, Cohort(senders, history, consent, vectors))

    def device_poison(
        self, view: ModelView, senders: NDArray[np.int64], rng: Streams
    ) -> DeviceReports:
        cohort = self.cohort
        rows = np.searchsorted(cohort.users, senders)
        updates = self.algorithm.device_learn(view, cohort, rows, rng.child("profiles"))
        order = np.lexsort((updates.item, updates.row))
        row, item = updates.row[order], updates.item[order]
        starts = np.flatnonzero(
            (np.diff(row, prepend=np.int32(-1)) != 0) | (np.diff(item, prepend=np.int32(-1)) != 0)
        )
        values = sum_groups(updates.values, order, starts)
        return DeviceReports(view.round, senders[row[starts]], item[starts], values)


def pushing_bits(
    view: ModelView,
    target: int,
    towards: Floats,
    devices: int,
    reports: int,
    variant: str,
    rng: Streams,
    drawn: bool = False,
) -> NDArray[np.uint32]:
    """One-bit reports of malicious devices, [devices, reports]: all about the target, none of them
    randomised. They move its row towards `towards`, as far as so many reports can. `drawn`: as if
    somebody saw to it that coordinates are drawn as in honest reports; then only bits are chosen,
    and they are fair coins where they are not about the target."""
    n_items, size = view.items.shape
    draw = rng.child("bits", view.round).generator()
    factor = draw.integers(0, size, (devices, reports))
    up: NDArray[Any] = towards[factor] > 0
    if variant == "published" and drawn:
        item = draw.integers(0, n_items, (devices, reports))
        coin = draw.integers(0, 2, (devices, reports)) == 1
        return pack(item * size + factor, np.where(item == target, ~up, coin))
    if variant == "published":  # there the server goes against what is reported
        return pack(target * size + factor, ~up)
    line = draw.integers(0, rotated.order(n_items), (devices, reports))
    column = int(rotated.columns(n_items)[target])
    odd = np.bitwise_count(line & column) % 2 == 1
    return pack(line * size + factor, up ^ odd)


# --- what it has reached: who is shown the pushed item now ---------------------------------------


def exposure(
    scorer: Scorer,
    train: Interactions,
    target: int,
    places: tuple[int, ...] = (10, 20),
    threads: int | None = None,
) -> dict[str, float]:
    """ER@k: the share of users without the target in training to whom it is shown in the first k
    places."""
    lacks = np.ones(train.n_users, dtype=bool)
    lacks[train.users[train.items == target]] = False
    users = np.flatnonzero(lacks)
    if not len(users):
        raise DataError("everybody has the target already; choose another one")
    lists, _ = top_n(scorer, users, train, max(places), threads=threads)
    shown = lists == target
    return {f"ER@{k}": float(shown[:, :k].any(axis=1).mean()) for k in places}


def cold_targets(train: Interactions, number: int, rng: Streams) -> NDArray[np.int64]:
    """Items for an attacker to push: drawn from the colder half of those that anybody has."""
    counts = train.item_counts
    had = np.flatnonzero(counts > 0)
    cold = had[counts[had] <= np.median(counts[had])]
    if len(cold) < number:
        raise DataError(f"there are {len(cold):,} cold items, not {number:,}")
    return cold[rng.child("targets").choose(len(cold), number)]
