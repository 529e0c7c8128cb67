"""Whether an attack saw enough for a verdict, and how much more it would take.

A promise is broken where the low end of the attack's 95 % interval lies above the base rate, and
it holds where the high end does not reach far above it (`far_above`). An interval that goes from
one to the other says neither: what was seen is too little. One that is no wider than the distance
between the two always decides, wherever the figure falls; that is what `times_more` aims at.

Errors: a promise that holds is called broken in 2.5 of 100 looks at most, and one that is broken by
as much as `far_above` is said to hold in as many.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv

from sottovoce.errors import ConfigError, DataError

CONFIDENCE_Z = 1.959964
FAR, NEAREST = 0.05, 0.01
"""What counts as far, of shares and AUCs, and the least that does."""
SHARES = frozenset({"precision", "accuracy", "share", "recall"})


def far_above(base: float) -> float:
    """Where an attack would be far above a guess without it: by 5 of 100; where guesses are seldom
    right, or seldom wrong, by as much as that, and by 1 of 100 at least."""
    return base + min(FAR, max(NEAREST, min(base, 1.0 - base)))


def decided(interval: tuple[float, float], base: float) -> bool:
    """Whether an interval says that a promise is broken, or that it holds."""
    return interval[0] > base or interval[1] <= far_above(base)


def times_more(
    measure: str, value: float, interval: tuple[float, float], base: float, claims: int
) -> float:
    """How many times as many observations as these `claims` make the interval no wider than the
    distance that is to be told, wherever between the two the figure lies. It is taken that what is
    added is like what was seen: as many claims a round (or user), and as much alike among
    themselves."""
    width, distance = interval[1] - interval[0], far_above(base) - base
    if measure not in SHARES:
        return (width / distance) ** 2
    alike = max(1.0, (width / share_width(value, claims)) ** 2)
    hardest = min(max(0.5, base), far_above(base))  # of all shares between the two
    return alike * _enough(hardest, distance) / claims


def share_width(share: float, n: float) -> float:
    """Return the width of Wilson's interval for a share of n independent observations."""
    z2 = CONFIDENCE_Z**2
    spread = share * (1.0 - share) / n + z2 / (4.0 * n**2)
    return 2.0 * CONFIDENCE_Z * math.sqrt(spread) / (1.0 + z2 / n)


def _enough(share: float, width: float) -> float:
    """For how many that interval is so wide."""
    z2, w2 = CONFIDENCE_Z**2, width**2
    a, b = z2**2 * (1.0 - w2), 4.0 * z2 * share * (1.0 - share) - 2.0 * w2 * z2
    return 2.0 * a / (math.sqrt(b * b + 4.0 * a * w2) - b)


def clopper_pearson(
    hits: ArrayLike, trials: int, error: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A lower and an upper bound of each probability with so many hits. Each of them alone is wrong
    with a probability of `error` at most, for every probability and every number of trials."""
    if not 0.0 < error < 0.5:
        raise ConfigError(f"the error of a bound must lie between 0 and 0.5, not at {error:g}")
    found = np.asarray(hits, dtype=np.int64)
    if trials < 1 or np.any((found < 0) | (found > trials)):
        raise DataError("there must be a trial at least, and no more hits than trials")
    # The limits at no hit and at nothing but hits are put in afterwards.
    some, misses = np.maximum(found, 1), np.maximum(trials - found, 1)
    lower = np.where(found > 0, betaincinv(some, trials - some + 1, error), 0.0)
    upper = np.where(found < trials, betainccinv(trials - misses + 1, misses, error), 1.0)
    return lower, upper
