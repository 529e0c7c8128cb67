"""What a device adds to a sum that is opened once: a short vector, or all products of its pairs.

A *profile* is a vector of real numbers, none below 0, with a norm of at most 1. The door scales it
by what its user permits and cuts it, down, to whole steps k; nothing is rounded up, so that the
norm only shrinks. What leaves is k itself, or, where a round is about pairs, k kᵀ: a number for
each place (the diagonal) and then one for each pair of places a < b, row by row. All numbers are
whole numbers of 1 / `STEPS`: coarser than the grid of updates, so that sums of them fit few bits.

**The bound, in whole numbers.** With a scale c, |k| ≤ c · STEPS. Of pairs, k has `PAIR_STEPS` to
the unit and is scaled by √c, so that the squares of k add up to at most c · PAIR_STEPS², which is
the Frobenius norm of k kᵀ: the norm of (diagonal, √2 · upper triangle).

**Few whole numbers.** Where somebody checks numbers that nobody sees, there can be few of them:
whole numbers up to a largest one, on a `Grid`. Cut to those, most of a long profile would be lost,
and all of a quiet user's. So `cut_to` dithers: k_i = min(⌊s · y_i + u_i⌋, most), where y is the
scaled profile, u_i is drawn from [0, 1) for each place, and s is the largest up to `_FILLED` with
which the squares of k keep to the bound, which is the same as above, exactly. Below the largest
number every k_i is s · y_i on average. s makes up for what does not fit: it is below 1 where steps
are coarse (then a fair choice of a quiet user's items is told, one step each), and above 1 where
numbers are held at the largest, so that the others have their part of the norm. The draws protect
nothing: whatever they are, the bound holds.

**Loudness** is the largest number times the sum of all. It is 1, in units of the norm, where all
items weigh alike, and large where one is loud among many quiet ones, which is how somebody who
pushes it would have it. Where a grid limits it, the largest number is lowered until it keeps to it.
"""

# Kernels carry no types (numba infers them); their callers do.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy import int64, uint64
from numpy.typing import NDArray

from sottovoce.compiled import njit
from sottovoce.core.arrays import read_only
from sottovoce.core.redacted import Redacted
from sottovoce.errors import MessageError
from sottovoce.rng import Keys, draw

STEPS = 1 << 16
"""Steps to the unit of all that leaves: a sum of 16,000 contributions has room in 32 bits."""
PAIR_STEPS = 1 << 8
"""Steps to the unit of a profile whose pairs are sent: its products have `STEPS`."""
_SPARE = 1.0 - 2.0**-40
"""Pays for the rounding of a profile's norm, so that an honest one is never above its bound."""
_FILLED = 16.0
"""Most by which a profile is scaled up where its largest numbers are held back."""
_HALVINGS = 36
"""Halvings of the range in which that factor lies."""


@dataclass(frozen=True, slots=True, repr=False)
class Profile(Redacted):
    """What devices could tell: a sparse vector each, places ascending. It stays at home."""

    indptr: NDArray[np.int64]
    place: NDArray[np.int32]
    value: NDArray[np.float64]
    size: int
    """Places that there are."""
    pairs: bool
    """Whether the products of its pairs are what leaves."""
    items: NDArray[np.int32]
    """Number of items of each user that the contribution tells about."""

    def __len__(self) -> int:
        return len(self.indptr) - 1


@dataclass(frozen=True, slots=True, repr=False)
class Contributions(Redacted):
    """What leaves: a profile each, scaled and cut."""

    indptr: NDArray[np.int64]
    place: NDArray[np.int32]
    steps: NDArray[np.int32]
    size: int
    pairs: bool
    items: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def numbers(self) -> int:
        """Numbers that each device sends."""
        return numbers_of(self.size, self.pairs)

    def whole(self, row: int) -> NDArray[np.int64]:
        """One device's contribution, written out."""
        mine = slice(int(self.indptr[row]), int(self.indptr[row + 1]))
        place, steps = self.place[mine], self.steps[mine].astype(np.int64)
        found = np.zeros(self.numbers, dtype=np.int64)
        if not self.pairs:
            found[place] = steps
            return found
        found[place] = steps**2
        first, second = np.triu_indices(len(place), 1)
        where = pair_places(place[first], place[second], self.size)
        found[where] = steps[first] * steps[second]
        return found


def joined(parts: Sequence[Contributions]) -> Contributions:
    """The contributions of several groups of devices to one sum, one after the other."""
    if len(parts) == 1:
        return parts[0]
    lengths = [np.diff(one.indptr) for one in parts]
    indptr = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.concatenate(lengths))])
    return replace(
        parts[0],
        indptr=indptr,
        place=np.concatenate([one.place for one in parts]),
        steps=np.concatenate([one.steps for one in parts]),
        items=np.concatenate([one.items for one in parts]),
    )


def numbers_of(size: int, pairs: bool) -> int:
    """Numbers of a contribution with so many places."""
    return size * (size + 1) // 2 if pairs else size


def places_of(numbers: int) -> int:
    """Places of a contribution of pairs that has so many numbers."""
    size = (int(np.sqrt(8 * numbers + 1)) - 1) // 2
    if numbers_of(size, True) != numbers:
        raise MessageError(f"{numbers:,} numbers are not those of all pairs of any places")
    return size


def pair_places(
    first: NDArray[np.integer], second: NDArray[np.integer], size: int
) -> NDArray[np.int64]:
    """Where the products of pairs first < second stand."""
    a, b = first.astype(np.int64), second.astype(np.int64)
    found: NDArray[np.int64] = size + a * (2 * size - a - 1) // 2 + (b - a - 1)
    return found


def cut(profile: object, scale: NDArray[np.float64], name: str) -> Contributions:
    """Return what may leave of each device's profile, given the scale of each. Raises, so that
    nothing leaves, if an algorithm's profile is not valid."""
    if type(profile) is not Profile:
        raise MessageError(
            f"{name} gave {type(profile).__name__} in place of a device's Profile; nothing was sent"
        )
    n, rows = len(profile), np.repeat(np.arange(len(profile)), np.diff(profile.indptr))
    place, value = profile.place, profile.value
    good = n == len(scale) == len(profile.items)
    good = good and len(place) == len(value) == profile.indptr[-1]
    good = good and bool(np.all(np.isfinite(value) & (value >= 0)))
    if good and len(place):
        within = np.diff(rows, prepend=-1) > 0  # where a device's begin
        rising = within | (np.diff(place, prepend=-1) > 0)
        good = bool(rising.all()) and 0 <= int(place.min()) <= int(place.max()) < profile.size
    if not good:
        raise MessageError(
            f"{name} gave a profile with numbers below 0, places that there are not, or places "
            "out of order; nothing was sent"
        )
    unit = float(PAIR_STEPS if profile.pairs else STEPS)
    factor = (np.sqrt(scale) if profile.pairs else scale) * (unit * _SPARE)
    long = np.flatnonzero(value > 2.0)  # before it could overflow
    steps = np.floor(np.minimum(value, 2.0) * factor[rows]).astype(np.int32)
    squares = np.bincount(rows, steps.astype(np.float64) ** 2, minlength=n)
    most = (scale if profile.pairs else scale**2) * unit**2
    # Sums of squares of whole numbers below 2^53 are exact; the limit is compared exactly where
    # rounding could matter.
    near = np.flatnonzero(squares > most * (1.0 - 2.0**-40))
    over = [row for row in near.tolist() if _longer(steps[rows == row], scale[row], profile.pairs)]
    if len(long) or over:
        raise MessageError(f"{name} gave a profile that is longer than 1; nothing was sent")
    return Contributions(profile.indptr, place, steps, profile.size, profile.pairs, profile.items)


@dataclass(frozen=True, slots=True)
class Grid:
    """Whole numbers that a checked contribution may have."""

    step: int
    """What one of them is worth in a sum of entries, in 1 / `STEPS`; 1 where pairs are summed."""
    most: int
    unit: int
    """Steps that make a norm of 1."""
    loudness: int = 0
    """What the largest of them times the sum of all is at most; 0 does not limit it."""


def cut_to(
    profile: object, scale: NDArray[np.float64], name: str, grid: Grid, keys: Keys
) -> Contributions:
    """`cut` to the whole numbers of a grid, with draws from a key of each device. What is told is
    a multiple of the grid's step."""
    made = cut(profile, scale, name)
    if len(keys) != len(made):
        raise MessageError(f"{len(keys)} keys are not one for each of {len(made)} devices")
    levels, which = np.unique(scale, return_inverse=True)
    bounds = [_bound(one, made.pairs, grid.unit) for one in levels.tolist()]
    limit = np.array(bounds, dtype=np.int64)[which]
    factor = (np.sqrt(scale) if made.pairs else scale) * float(grid.unit)
    steps = np.zeros(len(made.place), dtype=np.int32)
    _fill(
        read_only(made.indptr, np.int64), read_only(made.place, np.int32),
        read_only(profile.value, np.float64),  # type: ignore[attr-defined]  # which `cut` has seen
        factor, limit, read_only(keys, keys.dtype), grid.most, grid.loudness, steps,
    )  # fmt: skip
    return replace(made, steps=steps * np.int32(grid.step))


def _bound(scale: float, pairs: bool, unit: int) -> int:
    """What the squares of a device's whole numbers may add up to."""
    up, down = float(scale).as_integer_ratio()
    return up * unit**2 // down if pairs else (up * unit) ** 2 // down**2


@njit(alone=True, nogil=True, error_model="numpy", cache=True)
def _fill(indptr, place, value, factor, limit, keys, most, loudness, steps):
    """steps = those of each device, by its own numbers and key alone."""
    longest = 0
    for row in range(len(indptr) - 1):
        longest = max(longest, indptr[row + 1] - indptr[row])
    wanted, dither = np.empty(longest), np.empty(longest)
    for row in range(len(indptr) - 1):
        begin, n = indptr[row], indptr[row + 1] - indptr[row]
        for e in range(n):
            wanted[e] = value[begin + e] * factor[row]
            dither[e] = (draw(keys[row], place[begin + e]) >> uint64(11)) * 2.0**-53
        # What keeps to loudness, and what does not: the largest number lies between.
        quiet, loud, top = int64(0), int64(most) + 1, int64(most)
        while quiet + 1 < loud:
            scaled = _filled(wanted, dither, n, limit[row], top)
            largest, total = int64(0), int64(0)
            for e in range(n):
                k = min(int64(scaled * wanted[e] + dither[e]), top)
                largest, total = max(largest, k), total + k
            if loudness > 0 and largest * total > loudness:
                loud = top
            else:
                quiet = top
                for e in range(n):
                    steps[begin + e] = min(int64(scaled * wanted[e] + dither[e]), top)
            top = (quiet + loud) // 2


@njit
def _filled(wanted, dither, n, limit, top):
    """The largest factor with which numbers up to `top` keep to the limit of their squares."""
    low, high, mid = 0.0, _FILLED, _FILLED
    for _ in range(_HALVINGS):
        squares = int64(0)
        for e in range(n):
            k = min(int64(mid * wanted[e] + dither[e]), top)
            squares += k * k
        if squares <= limit:
            low = mid
        else:
            high = mid
        if low == high:
            break
        mid = 0.5 * (low + high)
    return low


@_filled.alone
def _(wanted, dither, n, limit, top):
    low, high, mid = 0.0, _FILLED, _FILLED
    for _ in range(_HALVINGS):
        k = np.minimum((mid * wanted[:n] + dither[:n]).astype(np.int64), top)
        low, high = (mid, high) if np.sum(k * k) <= limit else (low, mid)
        if low == high:
            break
        mid = 0.5 * (low + high)
    return low


def _longer(steps: NDArray[np.int32], scale: float, pairs: bool) -> bool:
    """Whether a cut profile is longer than its scale permits, exactly."""
    squares: int = sum(k * k for k in steps.tolist())
    up, down = float(scale).as_integer_ratio()
    if pairs:
        return squares * down > up * PAIR_STEPS**2
    return squares * down**2 > (up * STEPS) ** 2
