"""What a device adds to a sum that is opened once: a short vector, or all products of its pairs.

A *profile* is a vector of real numbers, none below 0, with a norm of at most 1. The door scales it
by what its user permits and cuts it, down, to whole steps k; nothing is rounded up, so that the
norm only shrinks. What leaves is k itself, or, where a round is about pairs, k kᵀ: a number for
each place (the diagonal) and then one for each pair of places a < b, row by row. All numbers are
whole numbers of 1 / `STEPS`: coarser than the grid of updates, so that sums of them fit few bits.

**The bound, in whole numbers.** With a scale c, |k| ≤ c · STEPS. Of pairs, k has `PAIR_STEPS` to
the unit and is scaled by √c, so that the squares of k add up to at most c · PAIR_STEPS², which is
the Frobenius norm of k kᵀ: the norm of (diagonal, √2 · upper triangle).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.redacted import Redacted
from sottovoce.errors import MessageError

STEPS = 1 << 16
"""Steps to the unit of all that leaves: a sum of 16,000 contributions has room in 32 bits."""
PAIR_STEPS = 1 << 8
"""Steps to the unit of a profile whose pairs are sent: its products have `STEPS`."""
_SPARE = 1.0 - 2.0**-40
"""Pays for the rounding of a profile's norm, so that an honest one is never above its bound."""


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
    """Of how many items of each user it tells."""

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
        """Of each device."""
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
    """What of each device's profile may leave, given the scale of each. Raises, and nothing
    leaves, where an algorithm's profile is none."""
    if type(profile) is not Profile:
        raise MessageError(
            f"{name} gave {type(profile).__name__} where a device's Profile is wanted; nothing "
            "was sent"
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
    """Of them to a norm of 1."""


def cut_to(
    profile: object, scale: NDArray[np.float64], name: str, grid: Grid, keys: NDArray[np.uint64]
) -> Contributions:
    """`cut` to the whole numbers of a grid."""
    made = cut(profile, scale, name)
    unit = PAIR_STEPS if made.pairs else STEPS
    steps = np.minimum(made.steps.astype(np.int64) * grid.unit // unit, grid.most) * grid.step
    return replace(made, steps=steps.astype(np.int32))


def _longer(steps: NDArray[np.int32], scale: float, pairs: bool) -> bool:
    """Whether a cut profile is longer than its scale permits, exactly."""
    squares: int = sum(k * k for k in steps.tolist())
    bound = Fraction(float(scale))
    limit = bound * PAIR_STEPS**2 if pairs else (bound * STEPS) ** 2
    return bool(squares > limit)
