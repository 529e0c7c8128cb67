"""What a server does against devices that want to push an item.

Both caps bound what one device, or one round, can do to an item's row, whatever was sent:

* `burst` and `refill_rounds`: what one device adds to one item counts up to an L2 norm of `burst`,
  and an allowance that is used up comes back over so many rounds (`Allowances`). Honest devices
  draw their negatives anew in every round and keep their weight; one that pushes the same item
  every time is left with about what a fan would bring.
* `max_sum_norm`: where only sums are seen, a summed row is no longer than this multiple of the
  median row's. It slows an attack down. It does not stop one: a single device can fill it alone.

Both are the server's. Limits that devices are asked to keep (`link.clip`) bind honest ones. A limit
on every row of a device was tried and is not here: it makes every item a vote by heads, which few
malicious devices win if an item has few honest contributors.

Clipping works on whole numbers of the grid, row by row, so the sum stays the same in any order and
however messages are batched. A message below all caps is folded bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from sottovoce.compiled import njit
from sottovoce.config import require_number, require_whole
from sottovoce.core.messages import GRID, DeviceReports, SummedReports, add_sums, add_up
from sottovoce.rng import mix

# Kernels carry no types (numba infers them).
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

_FREE = -1
_FIRST_SIZE = 1 << 12


class Allowances:
    """What each device may still add to each item: buckets that fill by what is sent and leak by
    time, for pairs that are numbered.

    A device's row for an item counts as far as the bucket of this pair has room, and fills it.
    Honest devices draw their negative items anew in every round, so that their rows find empty
    buckets; a device that pushes one item round after round finds its own full, and is left with
    the leak. Of a pair only one number is kept, the round in which its bucket is empty again; empty
    ones are forgotten. The table is lost with the server, and then every pair begins anew.
    """

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


_LARGEST = 2.0**20
_ITEM_BITS = 31
"""Bits of an item's number in a pair (device, item); the rest is the device's."""


@dataclass(frozen=True, slots=True)
class Defence:
    """Caps; 0 leaves a cap out."""

    burst: float = 0.0
    """The largest L2 norm that one device may add to one item at once."""
    refill_rounds: int = 50
    """Rounds in which a burst that is used up comes back."""
    max_sum_norm: float = 0.0
    """The largest L2 norm of an item's summed row, as a multiple of the median of the round."""

    def __post_init__(self) -> None:
        require_whole("defence.refill_rounds", self.refill_rounds, 1)
        for name in ("burst", "max_sum_norm"):
            require_number(f"defence.{name}", getattr(self, name), 0.0, _LARGEST, above=False)

    @property
    def looks_at_devices(self) -> bool:
        """Whether it needs single messages, which a secure sum hides."""
        return self.burst > 0

    def guard(self) -> Guard:
        """What a server keeps of it while it runs."""
        return Guard(self)


class Guard:
    """A defence at work: it remembers which devices have used up their allowance of an item."""

    def __init__(self, defence: Defence) -> None:
        self.defence = defence
        burst = defence.burst
        self._left = Allowances(burst, burst / defence.refill_rounds) if burst else None

    def copy(self) -> Guard:
        """For a round that may have to be done again."""
        return deepcopy(self)

    def __repr__(self) -> str:
        return f"<Guard {self.defence}>"

    def sum_reports(
        self, round: int, batches: Sequence[DeviceReports], width: int
    ) -> SummedReports:
        """Add up messages that the server has checked, as `add_up` does, under the cap of devices.
        All of a device's rows come in one batch, and each message comes once."""
        if self._left is not None:
            batches = [_within(batch, round, self._left) for batch in batches]
        return add_up(round, batches, width)

    def sum_opened(self, total: SummedReports) -> SummedReports:
        """Put the cap of sums on a sum."""
        if not self.defence.max_sum_norm or not len(total.item):
            return total
        norms = row_norms(total.sums)
        sent = norms[norms > 0]
        if not len(sent):
            return total
        limit = self.defence.max_sum_norm * np.median(sent)
        return replace(total, sums=_cut(total.sums, norms, limit))


def row_norms(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """The L2 norm of each row, in steps of the grid."""
    norms = np.empty(len(values))
    _norms(np.ascontiguousarray(values), norms)
    return norms


def _cut(values: NDArray[np.int64], norms: NDArray[np.float64], limit: float) -> NDArray[np.int64]:
    """Rows no longer than the limit, rounded towards 0; the others stay as they are."""
    over = np.flatnonzero(norms > limit)
    if not len(over):
        return values
    shorter = values.copy()
    shorter[over] = np.trunc(values[over] * (limit / norms[over])[:, None]).astype(np.int64)
    return shorter


def _within(batch: DeviceReports, round: int, left: Allowances) -> DeviceReports:
    pairs = (batch.sender << _ITEM_BITS) + batch.item
    shares = left.shares(round, pairs, row_norms(batch.values) / GRID)
    over = np.flatnonzero(shares < 1.0)
    if not len(over):
        return batch
    values = batch.values.copy()
    values[over] = np.trunc(values[over] * shares[over, None]).astype(np.int64)
    return replace(batch, values=values)


def defended_groups(
    round: int, sums: Sequence[SummedReports], max_row_norm: float, width: int
) -> SummedReports:
    """The sum of several groups' secure sums, each row of each group no longer than the limit: a
    device that sends what it likes spoils its group and no other."""
    cap = max_row_norm * GRID
    kept = [replace(part, sums=_cut(part.sums, row_norms(part.sums), cap)) for part in sums]
    return add_sums(round, kept, width)


@njit(nogil=True, cache=True)
def _norms(values, norms):
    for row in range(len(values)):
        total = 0.0
        for f in range(values.shape[1]):
            total += np.float64(values[row, f]) * np.float64(values[row, f])
        norms[row] = np.sqrt(total)
