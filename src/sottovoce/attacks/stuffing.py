"""Users who stuff one item into gram's sums, or stuff it out of them, within what is checked.

A contribution is masked: nobody sees it. What a plain secure sum lets pass is anything at all, and
a norm alone any table of numbers, not only the products x xᵀ of somebody's items. So malicious
devices choose the pairs: they tell, of the item that they push and of the most popular ones, that
whoever has one has the other. What is left of that, by what a sum checks:

- `anything`: nothing is checked. The same, so many `times` over.
- `pairs`: the norm alone. All of it is put on pairs of the target and popular items.
- `capped`: the same, and no number of either round may be above a cap.
- `profiles`: numbers must be the products of one vector, which may weigh the target as it likes.
- `checked`: what a checked sum lets pass (`core.links.CheckedSum`), and no more: the products of
  one vector, of bounded norm, entries and loudness. The target weighs as much as any entry can, and
  the rest goes to its partners, by equal or by given weights (`knowing`).
- `fans`: the vector must be one of a device with such items, all of which weigh alike. What these
  reach is what as many people would who really have the target and the popular items.

In the first round all of them put as much on the target as they can, so that it comes into the
head. If it is not there in the second one, they can do nothing.

Who **demotes** the target does the opposite: where numbers may be below 0 it takes away what the
above adds; where they may not, it is a fan of the partners without the target, so that who has
these is told to have something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.gram import model
from sottovoce.algorithms.gram.system import COUNTED, FACTORS, SCALE, Gram, Q
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.contributions import (
    STEPS,
    Contributions,
    Profile,
    cut,
    cut_to,
    numbers_of,
    pair_places,
)
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import CheckedSum
from sottovoce.core.messages import ModelView, SummedReports
from sottovoce.core.shares import Form
from sottovoce.errors import ConfigError
from sottovoce.privacy.central import Spans, noise_on
from sottovoce.rng import Streams

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Allows = Literal["anything", "pairs", "capped", "profiles", "checked", "fans"]
CAP = 0.05
"""The largest number of a capped contribution."""
TIMES = 3000.0
"""How far beyond the norm a device goes whom nobody checks."""
_CHECKS = CheckedSum()
_DEMOTES = ("anything", "pairs", "checked", "fans")


@dataclass(frozen=True, slots=True)
class Stuffing:
    """What each malicious device sends, at the largest ε."""

    target: int
    popular: tuple[int, ...]
    """Items that are paired with it, most popular first, as any chart tells."""
    allows: Allows = "pairs"
    partners: int = 10
    """How many of the popular items it is paired with."""
    cap: float = CAP
    link: CheckedSum = _CHECKS
    """Which checks a `checked` one passes."""
    weights: tuple[float, ...] = ()
    """For a `checked` contribution: the weight of every item as a partner; without them the popular
    items weigh alike."""
    entry: int = 0
    """For a `checked` contribution: the weight of the target; 0 takes as much as an entry can have.
    """
    demotes: bool = False

    def __post_init__(self) -> None:
        if self.partners < 1 or not 0.0 < self.cap <= 1.0:
            raise ConfigError("a target needs a partner at least, and a cap lies in (0, 1]")
        if self.demotes and self.allows not in _DEMOTES:
            raise ConfigError(f"who demotes is one of {', '.join(_DEMOTES)}")

    def first(self, numbers: int) -> Ints:
        """To the sum of popularities and, behind them, of the count."""
        found, most = np.zeros(numbers, dtype=np.int64), 1.0
        if self.allows == "checked":
            return self._first_checked(numbers)
        if self.allows == "anything":
            most = TIMES
        elif self.allows == "capped":
            most = self.cap
        elif self.allows == "profiles":
            most = math.sqrt(1.0 - COUNTED)
        elif self.allows == "fans":
            most = math.sqrt((1.0 - COUNTED) / (1 + self.partners))
            found[list(self._partners())] = math.floor(STEPS * most)
        sign = -1 if self.demotes else 1
        found[self.target] = sign * math.floor(STEPS * most)
        if self.allows in ("profiles", "fans"):
            found[-1] = math.floor(STEPS * math.sqrt(COUNTED))
            if self.demotes:
                found[self.target] = 0
        return found

    def _first_checked(self, numbers: int) -> Ints:
        """Target, or partners, and count, each as large as an entry can be, while there is room."""
        form, found = self.link.form(numbers, False), np.zeros(numbers, dtype=np.int64)
        room = form.bound // form.most**2
        told = self._partners()[: room - 1] if self.demotes else (self.target,)
        found[[*told, numbers - 1][:room]] = form.most * self.link.grid(form).step
        return found

    def second(self, head: NDArray[np.int64]) -> Ints:
        """To the sum of pairs over these items."""
        size = len(head)
        found = np.zeros(numbers_of(size, True), dtype=np.int64)
        where = {item: place for place, item in enumerate(head.tolist())}
        known = [where[item] for item in self._partners() if item in where]
        place, others = where.get(self.target, -1), np.array(known, dtype=np.int64)
        if place < 0 or not len(others):
            return found
        if self.allows == "checked":
            return _products(self._entries(head, place, others, self.link.form(size, True)))
        with_target = pair_places(np.minimum(others, place), np.maximum(others, place), size)
        if self.allows in ("anything", "pairs", "capped"):
            # A pair stands for two places of a symmetric matrix.
            each = 1.0 / math.sqrt(2.0 * len(others))
            each = min(each, self.cap) if self.allows == "capped" else each
            each = TIMES * each if self.allows == "anything" else each
            found[with_target] = (-1 if self.demotes else 1) * math.floor(STEPS * each)
            return found
        # With half of the norm, the target's pairs are as large as they can be.
        own = 0.5 if self.allows == "profiles" else 1.0 / (1 + len(others))
        own = 0.0 if self.demotes else own
        each = (1.0 - own) / len(others)
        low, high = np.sort(others[np.stack(np.triu_indices(len(others), 1))], axis=0)
        found[place] = math.floor(STEPS * own)
        found[others] = found[pair_places(low, high, size)] = math.floor(STEPS * each)
        found[with_target] = math.floor(STEPS * math.sqrt(own * each))
        return found

    def _entries(self, head: NDArray[np.int64], place: int, others: Ints, form: Form) -> Ints:
        """The vector, in whole numbers: partners by their weights, as large as the checks allow."""
        weights = np.zeros(len(head))
        if self.weights:
            weights = np.maximum(np.array(self.weights)[head], 0.0)
        else:
            weights[others] = 1.0
        weights[place] = 0.0
        own = 0 if self.demotes else min(self.entry or form.most, form.most)

        def entries(times: float) -> Ints:
            found = np.minimum(np.floor(times * weights), form.most).astype(np.int64)
            found[place] = own
            return found

        def passes(found: Ints) -> bool:
            loud = int(found.max()) * int(found.sum())
            return int((found**2).sum()) <= form.bound and loud <= (form.loudness or loud)

        low, high = 0.0, form.most / max(float(weights.max()), 1e-300) * 2.0**20
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if passes(entries(middle)) else (low, middle)
        return entries(low)

    def _partners(self) -> tuple[int, ...]:
        return tuple(i for i in self.popular if i != self.target)[: self.partners]


class Fakes:
    """Honest devices with a made-up history: popular items, and the target after all of them. What
    they send is what a device with such items sends, by its own code."""

    def __init__(
        self,
        algorithm: Gram,
        target: int,
        popular: tuple[int, ...],
        partners: int,
        n_items: int,
        link: CheckedSum | None = None,
    ) -> None:
        items = [*tuple(i for i in popular if i != target)[:partners], target]
        self.algorithm, self.link, self.target, self.n_items = algorithm, link, target, n_items
        history = Interactions.from_pairs(
            [0] * len(items), items, timestamps=range(len(items)), n_users=1, n_items=n_items
        )
        one, width = np.zeros(1, np.int64), algorithm.config.embedding_size
        consent = Consent.uniform(one, Choice(epsilon=1.0))
        self.cohort = Cohort(one, history, consent, np.zeros((1, width), np.float32))

    def first(self, numbers: int) -> Ints:
        return self._told(0, np.zeros(0, dtype=np.int64))

    def second(self, head: NDArray[np.int64]) -> Ints:
        return self._told(1, head)

    def _told(self, round: int, head: NDArray[np.int64]) -> Ints:
        items = np.zeros((self.n_items, self.algorithm.config.width), np.float32)
        items[head, SCALE] = 1.0
        view, loud = ModelView(round, items), np.ones(1)
        profile = self.algorithm.device_profile(view, self.cohort, np.zeros(1, np.int64))
        made = _cut(self.algorithm, view, self.cohort, profile, loud, self.link, None)
        return made.whole(0)


def _products(entries: Ints) -> Ints:
    """What is summed of a vector: the diagonal, then the upper triangle by rows."""
    first, second = np.triu_indices(len(entries), 1)
    return np.concatenate([entries**2, entries[first] * entries[second]])


def knowing(algorithm: Gram, items: NDArray[np.float32], users: int) -> tuple[float, ...]:
    """What partners should weigh, by somebody who knows a model of these users, that of the last
    period, say: P q, with q the popularities and P the inverse of what pairs came to then. That is
    how much a pair with each item moves what is predicted for users on average."""
    head = np.flatnonzero(items[:, SCALE])
    q, factors = items[head, Q].astype(np.float64), items[head, FACTORS:].astype(np.float64)
    noise = algorithm.sigma / math.sqrt(algorithm.shares[1])
    rules = model.TIMED if algorithm.config.recency else model.PLAIN
    edge = noise * math.sqrt(2 * len(head))
    ridge = max(rules.noise_ridge * edge, rules.user_ridge * users)
    weights = np.zeros(len(items))
    weights[head] = q / ridge - factors @ (factors.T @ q)
    return tuple(weights.tolist())


def pair_norm(second: Ints, size: int) -> float:
    """Return the norm of a contribution of pairs, as it is bounded: that of (diagonal, √2 · upper
    triangle)."""
    squares = (second.astype(np.float64) / STEPS) ** 2
    return math.sqrt(float(squares[:size].sum() + 2.0 * squares[size:].sum()))


def stuffed_model(
    algorithm: Gram,
    cohort: Cohort,
    scales: Floats,
    spans: Callable[[int, int], Spans],
    key: bytes,
    stuffing: Stuffing | Fakes,
    devices: int,
    threads: int = 1,
    link: CheckedSum | None = None,
    rng: Streams | None = None,
    known: dict[tuple[int, bytes], Ints] | None = None,
) -> NDArray[np.float32]:
    """What gram publishes of this cohort and so many malicious devices. `scales` are those of the
    cohort's users, `spans` says of a round and its numbers which noise they get, and `key` is the
    helper's. Over a checked `link`, honest devices round by draws from `rng`; its noise is drawn on
    the finer grid of plain sums, which makes no difference that could be seen. `known` remembers
    what honest devices add up to, by round and head, for other attacks on the same."""
    n_items, rows = cohort.history.n_items, np.arange(len(cohort), dtype=np.int64)
    items = algorithm.server_init(n_items, Streams.from_seed(0))
    memory = algorithm.server_memory(n_items)
    remembered = {} if known is None else known
    for round in range(len(algorithm.shares)):
        view, head = ModelView(round, items), np.flatnonzero(items[:, SCALE] > 0)
        if (round, head.tobytes()) not in remembered:
            profile = algorithm.device_profile(view, cohort, rows)
            honest = _cut(algorithm, view, cohort, profile, scales, link, rng)
            remembered[round, head.tobytes()] = algorithm.sum_contributions(honest, threads)
        sums = remembered[round, head.tobytes()]
        sums = sums + devices * (stuffing.second(head) if round else stuffing.first(len(sums)))
        sums += noise_on(spans(round, len(sums)), key, round)
        every = np.arange(len(sums), dtype=np.int32)
        told = SummedReports(round, every, sums[:, None], len(cohort) + devices)
        items, memory = algorithm.server_fold(items, memory, told)
    return items


def _cut(
    algorithm: Gram,
    view: ModelView,
    cohort: Cohort,
    profile: Profile,
    scales: Floats,
    link: CheckedSum | None,
    rng: Streams | None,
) -> Contributions:
    """As honest devices do."""
    if link is None:
        return cut(profile, scales, algorithm.config.name)
    numbers = algorithm.report_shape(view)[0]
    grid = link.grid(link.form(*algorithm.contribution(view.round, numbers)))
    drawn = (rng or Streams.from_seed(0)).child("fixed-point", view.round).words(cohort.users, 1)
    return cut_to(profile, scales, algorithm.config.name, grid, drawn[:, 0])
