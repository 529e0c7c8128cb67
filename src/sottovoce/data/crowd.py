"""A crowd of any number of users, whose items follow from the seed and a user's number alone.

For worlds that are too large to be kept: any item of any user is computed in a few steps, in any
order and on any machine, so that nothing is stored and nothing needs to be sorted. The catalogue is
cut into `count` strata of neighbouring items, and a user has one item of each, so that her items
ascend and no two are alike. Within a stratum popularity follows a Zipf law with a flattened head.
Where `tastes` is above 1, every taste has its own order of popularity beside the common one; a user
has two tastes, and each of her items follows one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy import int64, uint64
from numpy.typing import NDArray

from sottovoce.compiled import njit
from sottovoce.config import require_number, require_whole
from sottovoce.core.arrays import each, equal_spans
from sottovoce.core.interactions import Interactions
from sottovoce.errors import ConfigError
from sottovoce.rng import LOW32, Streams, below, draw

HEAD = 30.0
"""Ranks by which the head of the popularity law is flattened."""
STEEP = 2.0
"""The exponent of a taste's own law; that of the common one is 1."""
COIN_BITS = 31
TASTES, HELD_OUT, FIRST = 0, 1, 2
"""What the draws of a user are for; from `FIRST` on, her items."""


@dataclass(frozen=True)
class SeededCrowdConfig:
    """A world of which there are as many users as one likes."""

    items: int = 26_744
    """The default has the catalogue and the average user of MovieLens 20M."""
    count: int = 144
    """Items of a user."""
    tastes: int = 1
    """Orders of popularity; with 1 there is nothing to learn beyond popularity."""
    own: float = 0.8
    """Share of her items that follow a user's tastes; the others follow the common order."""
    held_out: bool = False
    """Whether one item of each user, drawn at random, is kept for a test."""
    seed: int = 1

    def __post_init__(self) -> None:
        require_whole("items", self.items, 2, 10**7)
        require_whole("count", self.count, 1 + self.held_out, self.items // 2)
        require_whole("tastes", self.tastes, 1, 4096)
        require_number("own", self.own, 0.0, 1.0, above=False)
        if self.tastes * self.items > 1 << 28:
            raise ConfigError(f"{self.tastes:,} tastes of {self.items:,} items take too much room")


@dataclass(frozen=True)
class SeededCrowd:
    """Gives the items of any of its users."""

    config: SeededCrowdConfig

    @property
    def key(self) -> int:
        """The key of all users; `Streams(key).keys(users)` are their own."""
        return self._rng.child("users").key

    @property
    def trained(self) -> int:
        """Items of a user that are not held out."""
        return self.config.count - self.config.held_out

    @property
    def _rng(self) -> Streams:
        return Streams.from_seed(self.config.seed).child("crowd")

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """[tastes, items]: with which chance a draw stays at an item, of 2**31, in the upper half,
        and to which item of the same stratum it goes otherwise in the lower (Walker's aliases)."""
        config = self.config
        law = 1.0 / (np.arange(config.items) + HEAD)
        common = self._rng.child("common").generator().permutation(law)
        out = np.empty((config.tastes, config.items), dtype=np.int64)
        edges = np.arange(config.count + 1) * config.items // config.count
        for taste in range(config.tastes):
            weights = common
            if config.tastes > 1:
                own = self._rng.child("taste", taste).generator().permutation(law**STEEP)
                own *= law.sum() / own.sum()
                weights = config.own * own + (1.0 - config.own) * common
            _aliases(weights, edges, out[taste])
        return out

    def generate(
        self, first: int, stop: int, threads: int = 1
    ) -> tuple[Interactions, NDArray[np.int32]]:
        """The items of users first to stop, without those that are held out; and these, -1 where
        none is."""
        n, kept = stop - first, self.trained
        items = np.empty((n, kept), dtype=np.int32)
        out = np.full(n, -1, dtype=np.int32)
        table, config = self.table, self.config

        def part(span: slice) -> None:
            keys = Streams(self.key).keys(np.arange(first + span.start, first + span.stop))
            _generate(keys, table, config.count, config.held_out, items[span], out[span])

        each(part, equal_spans(n, max(1, 4 * threads)), threads)
        indptr = np.arange(n + 1, dtype=np.int64) * kept
        return Interactions(indptr=indptr, items=items.ravel(), n_items=config.items), out


@njit(nogil=True, cache=True)
def _generate(keys, table, count, held_out, items, out):  # type: ignore[no-untyped-def]
    n_items = table.shape[1]
    for u in range(len(keys)):
        tastes = draw(keys[u], TASTES)
        one = below(tastes >> uint64(32), table.shape[0])
        other = below(tastes & LOW32, table.shape[0])
        left = int64(below(draw(keys[u], HELD_OUT) >> uint64(32), count)) if held_out else -1
        at = 0
        for e in range(count):
            word = draw(keys[u], FIRST + e)
            taste = one if word & uint64(1) else other
            low, high = e * n_items // count, (e + 1) * n_items // count
            slot = low + int64(below(word >> uint64(32), high - low))
            entry = table[taste, slot]
            coin = int64((word & LOW32) >> uint64(1))
            item = slot if coin < entry >> 32 else entry & 0x7FFFFFFF
            if e == left:
                out[u] = item
            else:
                items[u, at] = item
                at += 1


@njit(nogil=True, cache=True)
def _aliases(weights, edges, out):  # type: ignore[no-untyped-def]
    """Walker's tables of every stratum, by Vose's method."""
    for e in range(len(edges) - 1):
        low, n = edges[e], edges[e + 1] - edges[e]
        total = 0.0
        for k in range(n):
            total += weights[low + k]
        share = np.empty(n)
        small, large = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
        n_small, n_large = 0, 0
        for k in range(n):
            share[k] = weights[low + k] * n / total
            if share[k] < 1.0:
                small[n_small] = k
                n_small += 1
            else:
                large[n_large] = k
                n_large += 1
        while n_small > 0 and n_large > 0:
            n_small -= 1
            poor, rich = small[n_small], large[n_large - 1]
            keep = int64(share[poor] * (1 << COIN_BITS))
            out[low + poor] = (keep << 32) | (low + rich)
            share[rich] -= 1.0 - share[poor]
            if share[rich] < 1.0:
                n_large -= 1
                small[n_small] = rich
                n_small += 1
        # What rounding has left over stays where it is.
        while n_small > 0:
            n_small -= 1
            out[low + small[n_small]] = (int64((1 << COIN_BITS) - 1) << 32) | (low + small[n_small])
        while n_large > 0:
            n_large -= 1
            out[low + large[n_large]] = (int64((1 << COIN_BITS) - 1) << 32) | (low + large[n_large])
