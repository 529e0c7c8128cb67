"""How good a model is, by noisy sums of what devices found on items that they held out at home.

Each device says of three recommenders (a candidate, the published model, popularity alone) whether
one of ten recommendations was among the items that it held out: a hit or a miss. With pairs of
sums (hits, misses) the difference of a pair and the number of devices have independent noise, so
that the interval of every rate is Fieller's, which holds exactly also where the noise is large.
It is about the devices that took part in the sums, each counted by her scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from sottovoce.errors import DataError

CUTOFF = 10
"""Recommendations among which a hit is looked for."""
WHICH = "candidate", "published", "popularity"
Which = Literal["candidate", "published", "popularity"]
POPULARITY = "popularity alone"
_BOTH_SIDES, _ONE_SIDE = 1.959963984540054, 1.6448536269514722
"""Quantiles of a Gaussian: 95 % between two bounds, and below one."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    def to_table(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class Quality:
    """Noisy sums over devices, of each of `WHICH`."""

    hits: tuple[float, float, float]
    misses: tuple[float, float, float]
    noise: float
    """Standard deviation of the noise on each of them."""

    @property
    def users(self) -> float:
        """Devices that have held items out, as far as the sums say, each by her scale."""
        return max(0.0, sum((*self.hits, *self.misses)) / len(WHICH))

    def rate(self, which: Which) -> Estimate:
        """Return the share of users for whom one of ten recommended items is a hit."""
        lead = self._ratio(self._lead(which), 2.0, _BOTH_SIDES)
        return Estimate(*((1.0 + each) / 2.0 for each in lead))

    def gain(self, over: Which) -> Estimate:
        """By how much the candidate's rate is above another one."""
        lead = self._lead("candidate") - self._lead(over)
        return Estimate(*(each / 2.0 for each in self._ratio(lead, 4.0, _BOTH_SIDES)))

    def objection(self, before: str) -> str:
        """Why the candidate is not published without the operator's word: it is worse than the
        published model (`before` says which), or than popularity, beyond a one-sided bound of 95 %.
        Empty where nothing speaks against it."""
        worse = self.worse("candidate", "published", before)
        worse = worse or self.worse("candidate", "popularity", POPULARITY)
        return f"it is {worse}" if worse else ""

    def worse(self, which: Which, than: Which, called: str) -> str:
        """That one of them is worse than another (`called` says which), and by what; empty unless
        it is so beyond a one-sided bound of 95 %."""
        lead = self._lead(which) - self._lead(than)
        if self._ratio(lead, 4.0, _ONE_SIDE)[2] >= 0.0:
            return ""
        return (
            f"worse than {called}: one of ten recommendations is a hit for {self.rate(which)} of "
            f"the users, in place of {self.rate(than)}"
        )

    def to_table(self) -> dict[str, Any]:
        """As it is kept and shown."""
        return {
            "users": self.users,
            **{which: self.rate(which).to_table() for which in WHICH},  # type: ignore[arg-type]
            "over_published": self.gain("published").to_table(),
            "over_popularity": self.gain("popularity").to_table(),
            "sums": {"hits": [*self.hits], "misses": [*self.misses], "noise": self.noise},
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        try:
            sums = table["sums"]
            hits, misses = (tuple(map(float, sums[name])) for name in ("hits", "misses"))
            noise = float(sums["noise"])
        except (KeyError, TypeError, ValueError):
            raise DataError("what is kept of a model's quality makes no sense") from None
        if len(hits) != len(WHICH) or len(misses) != len(WHICH) or not noise >= 0:
            raise DataError("what is kept of a model's quality makes no sense")
        return cls(hits, misses, noise)  # type: ignore[arg-type]

    def _lead(self, which: Which) -> float:
        """Hits without misses."""
        at = WHICH.index(which)
        return self.hits[at] - self.misses[at]

    def _ratio(self, above: float, variance: float, quantile: float) -> tuple[float, float, float]:
        """`above`, whose noise has so many times the variance of a sum's, by the number of users,
        with Fieller's bounds; in [-1, 1], or in [-2, 2] for a difference of two."""
        most = 1.0 if variance < 4.0 else 2.0
        below, square = self.users, (quantile * self.noise) ** 2
        # The users are a mean of three pairs: 3 · 2 / 3² times the variance of a sum.
        curve = below**2 - square * 2.0 / len(WHICH)
        if curve <= 0.0:  # there may be no users at all
            return 0.0, -most, most
        inner = above**2 * below**2 - curve * (above**2 - square * variance)
        spread = math.sqrt(max(0.0, inner))
        bounds = (above / below, (above * below - spread) / curve, (above * below + spread) / curve)
        low, value, high = sorted(min(max(each, -most), most) for each in bounds)
        return value, low, high
