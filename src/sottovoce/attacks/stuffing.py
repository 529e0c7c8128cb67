"""Users who stuff one item into gram's sums, within what a norm allows.

A contribution is bounded in norm and masked: nobody sees more of it. What a norm alone lets pass is
any table of numbers, not only the products x xᵀ of somebody's items. So malicious devices choose
the pairs: they tell, of the item that they push and of the most popular ones, that whoever has one
has the other. What would be left of that if a sum could check more of what it cannot see:

- `pairs`: the norm alone. All of it is put on pairs of the target and popular items.
- `capped`: the same, and no number of either round may be above a cap.
- `profiles`: numbers must be the products of one vector, which may weigh the target as it likes.
- `fans`: the vector must be one of a device with such items, all of which weigh alike. What these
  reach is what as many people would who really have the target and the popular items.

In the first round all of them put as much on the target as they can, so that it comes into the
head. If it is not there in the second one, they can do nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Cohort
from sottovoce.algorithms.gram.system import COUNTED, SCALE, Gram
from sottovoce.core.contributions import STEPS, cut, numbers_of, pair_places
from sottovoce.core.messages import ModelView, SummedReports
from sottovoce.errors import ConfigError
from sottovoce.privacy.central import Spans, noise_on
from sottovoce.rng import Streams

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Allows = Literal["pairs", "capped", "profiles", "fans"]
CAP = 0.05
"""The largest number of a capped contribution."""


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

    def __post_init__(self) -> None:
        if self.partners < 1 or not 0.0 < self.cap <= 1.0:
            raise ConfigError("a target needs a partner at least, and a cap lies in (0, 1]")

    def first(self, numbers: int) -> Ints:
        """To the sum of popularities and, behind them, of the count."""
        found, most = np.zeros(numbers, dtype=np.int64), 1.0
        if self.allows == "capped":
            most = self.cap
        elif self.allows == "profiles":
            most = math.sqrt(1.0 - COUNTED)
        elif self.allows == "fans":
            most = math.sqrt((1.0 - COUNTED) / (1 + self.partners))
            found[list(self._partners())] = math.floor(STEPS * most)
        found[self.target] = math.floor(STEPS * most)
        if self.allows in ("profiles", "fans"):
            found[-1] = math.floor(STEPS * math.sqrt(COUNTED))
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
        with_target = pair_places(np.minimum(others, place), np.maximum(others, place), size)
        if self.allows in ("pairs", "capped"):
            # A pair stands for two places of a symmetric matrix.
            each = 1.0 / math.sqrt(2.0 * len(others))
            each = min(each, self.cap) if self.allows == "capped" else each
            found[with_target] = math.floor(STEPS * each)
            return found
        # With half of the norm, the target's pairs are as large as they can be.
        own = 0.5 if self.allows == "profiles" else 1.0 / (1 + len(others))
        each = (1.0 - own) / len(others)
        low, high = np.sort(others[np.stack(np.triu_indices(len(others), 1))], axis=0)
        found[place] = math.floor(STEPS * own)
        found[others] = found[pair_places(low, high, size)] = math.floor(STEPS * each)
        found[with_target] = math.floor(STEPS * math.sqrt(own * each))
        return found

    def _partners(self) -> tuple[int, ...]:
        return tuple(i for i in self.popular if i != self.target)[: self.partners]


def pair_norm(second: Ints, size: int) -> float:
    """Of a contribution of pairs, as it is bounded: that of (diagonal, √2 · upper triangle)."""
    squares = (second.astype(np.float64) / STEPS) ** 2
    return math.sqrt(float(squares[:size].sum() + 2.0 * squares[size:].sum()))


def stuffed_model(
    algorithm: Gram,
    cohort: Cohort,
    scales: Floats,
    spans: Callable[[int, int], Spans],
    key: bytes,
    stuffing: Stuffing,
    devices: int,
    threads: int = 1,
) -> NDArray[np.float32]:
    """What gram publishes of this cohort and so many malicious devices. `scales` are those of the
    cohort's users, `spans` says of a round and its numbers which noise they get, and `key` is the
    helper's."""
    n_items, rows = cohort.history.n_items, np.arange(len(cohort), dtype=np.int64)
    items = algorithm.server_init(n_items, Streams.from_seed(0))
    memory = algorithm.server_memory(n_items)
    for round in range(len(algorithm.shares)):
        view = ModelView(round, items)
        honest = cut(algorithm.device_profile(view, cohort, rows), scales, algorithm.config.name)
        sums = algorithm.sum_contributions(honest, threads)
        head = np.flatnonzero(items[:, SCALE] > 0)
        sums = sums + devices * (stuffing.second(head) if round else stuffing.first(len(sums)))
        sums += noise_on(spans(round, len(sums)), key, round)
        every = np.arange(len(sums), dtype=np.int32)
        told = SummedReports(round, every, sums[:, None], len(cohort) + devices)
        items, memory = algorithm.server_fold(items, memory, told)
    return items
