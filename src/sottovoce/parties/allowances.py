"""What each device may still add to each item: buckets that fill by what is sent and leak by time.

A device's row for an item counts as far as the bucket of this pair has room, and fills it. Honest
devices draw their negative items anew in every round, so that their rows find empty buckets; a
device that pushes one item round after round finds its own full, and is left with the leak.

Of a pair only one number is kept, the round in which its bucket is empty again; empty ones are
forgotten. The table is lost with the server, and then every pair begins anew.
"""

# Kernels carry no types (numba infers them).
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

from __future__ import annotations

import numpy as np
from numba import njit, uint64
from numpy.typing import NDArray

from sottovoce.rng import mix

_FREE = -1
_FIRST_SIZE = 1 << 12


class Allowances:
    """Buckets of one size and leak, for pairs that are numbered."""

    __slots__ = ("_empty_at", "_keys", "_used", "burst", "leak")

    def __init__(self, burst: float, leak: float) -> None:
        """`burst` is the room of an empty bucket, `leak` what runs out in a round."""
        self.burst, self.leak = burst, leak
        self._keys = np.full(_FIRST_SIZE, _FREE, dtype=np.int64)
        self._empty_at = np.zeros(_FIRST_SIZE)
        self._used = 0

    def __repr__(self) -> str:
        return f"<Allowances of {self._used:,} pairs, redacted>"

    def __len__(self) -> int:
        return self._used

    def shares(
        self, round: int, pairs: NDArray[np.int64], amounts: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """What part of each amount counts; each pair at most once. Their order does not matter."""
        if 2 * (self._used + len(pairs)) > len(self._keys):
            self._grow(round, len(pairs))
        shares = np.empty(len(pairs))
        self._used += _take(
            self._keys, self._empty_at, float(round), pairs, amounts, self.burst, self.leak, shares
        )
        return shares

    def _grow(self, round: int, more: int) -> None:
        full = (self._keys != _FREE) & (self._empty_at > round)
        keys, empty_at = self._keys[full], self._empty_at[full]
        size = _FIRST_SIZE
        while size < 4 * (len(keys) + more):
            size *= 2
        self._keys = np.full(size, _FREE, dtype=np.int64)
        self._empty_at = np.zeros(size)
        self._used = len(keys)
        _fill(self._keys, self._empty_at, keys, empty_at)


@njit(inline="always")
def _place(keys, pair):
    """Where a pair is, or where it would be put."""
    mask = len(keys) - 1
    at = np.int64(mix(uint64(pair) + uint64(1)) & uint64(mask))
    while keys[at] != pair and keys[at] != _FREE:
        at = (at + 1) & mask
    return at


@njit(nogil=True, cache=True)
def _take(keys, empty_at, now, pairs, amounts, burst, leak, shares):
    new = 0
    for k in range(len(pairs)):
        at = _place(keys, pairs[k])
        if keys[at] == _FREE:
            keys[at] = pairs[k]
            empty_at[at] = now
            new += 1
        level = max(0.0, (empty_at[at] - now) * leak)
        room = max(0.0, burst - level)
        shares[k] = 1.0 if amounts[k] <= room else room / amounts[k]
        empty_at[at] = now + (level + min(amounts[k], room)) / leak
    return new


@njit(nogil=True, cache=True)
def _fill(keys, empty_at, some, when):
    for k in range(len(some)):
        at = _place(keys, some[k])
        keys[at] = some[k]
        empty_at[at] = when[k]
