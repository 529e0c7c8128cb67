"""What gram's server remembers between batches: the running sums of a period.

The head may change from batch to batch. A pair has been summed since both its items are in the
head; an item that leaves takes its pairs with it, and begins anew if it comes back. So a pair's
`age`, the batches in its sum, is the smaller one of its two items', and the memory is no larger
than the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.contributions import numbers_of

_HEADER = 3


@dataclass(slots=True)
class RunningSums:
    """Of a period, as far as it has come."""

    period: int
    done: int
    """Batches in popularity and count."""
    count: float
    q: NDArray[np.float64]
    age: NDArray[np.int64]
    """Of each item: batches in which its pairs were summed; -1 outside the head."""
    pairs: NDArray[np.float64]
    """Of head items: the diagonal, then the upper triangle by rows."""

    @classmethod
    def empty(cls, period: int, n_items: int) -> Self:
        return cls(
            period, 0, 0.0, np.zeros(n_items), np.full(n_items, -1, np.int64), np.zeros(0)
        )  # fmt: skip

    @classmethod
    def read(cls, memory: NDArray[np.float32]) -> Self:
        """From a server's memory: a row per item, in which the sums stand one after the other."""
        n, flat = len(memory), memory.ravel().astype(np.float64)
        age = flat[_HEADER + n : _HEADER + 2 * n].astype(np.int64) - 1
        size = numbers_of(int(np.count_nonzero(age >= 0)), True)
        first = _HEADER + 2 * n
        q, pairs = flat[_HEADER : _HEADER + n].copy(), flat[first : first + size].copy()
        return cls(int(flat[0]), int(flat[1]), float(flat[2]), q, age, pairs)

    def memory(self) -> NDArray[np.float32]:
        n = len(self.q)
        flat = np.concatenate(
            [[self.period, self.done, self.count], self.q, self.age + 1.0, self.pairs]
        )
        kept = np.zeros((-(-len(flat) // n), n), dtype=np.float32)
        kept.ravel()[: len(flat)] = flat
        return kept.reshape(n, -1)

    @property
    def head(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.age >= 0)

    def move_head(self, head: NDArray[np.int64]) -> None:
        """From now on pairs of these items are summed; ascending."""
        old = self.head
        place = np.full(len(self.q), -1, dtype=np.int64)
        place[old] = np.arange(len(old))
        at = place[head]
        first, second = np.triu_indices(len(head), 1)
        table = np.zeros((len(old) + 1, len(old) + 1))  # its last row is that of new items
        upper = np.triu_indices(len(old), 1)
        table[upper] = self.pairs[len(old) :]
        diagonal = np.append(self.pairs[: len(old)], 0.0)
        self.pairs = np.concatenate([diagonal[at], table[at[first], at[second]]])
        age = np.full(len(self.q), -1, dtype=np.int64)
        age[head] = np.maximum(self.age[head], 0)
        self.age = age

    def add_pairs(self, sums: NDArray[np.float64]) -> None:
        self.pairs = self.pairs + sums
        self.age[self.head] += 1

    def pair_ages(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of the diagonal, and of the triangle."""
        age = self.age[self.head]
        first, second = np.triu_indices(len(age), 1)
        return age, np.minimum(age[first], age[second])
