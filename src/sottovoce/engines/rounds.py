"""When a round of a real federation ends: the rules alone, with no clock and no network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sottovoce.errors import ConfigError
from sottovoce.messages import GRID, LIMIT

Verdict = Literal["wait", "close", "abandon"]


@dataclass(frozen=True, slots=True)
class RoundRules:
    """How a real federation runs its rounds. Simulation needs none of it."""

    over_selection: float = 0.3
    """Ask so many more devices than a round needs, as a share of them: some will not answer."""
    min_fraction: float = 0.7
    """At the deadline a round counts if so large a share of the devices it needs has reported;
    otherwise it is abandoned and tried again with others."""
    deadline_seconds: float = 600.0
    """How long a round waits for reports."""
    min_devices: int = 1
    """Devices that must have enrolled before the first round opens."""
    poll_seconds: float = 60.0
    """How often a device asks whether there is a round for it."""
    dormant_after: int = 3
    """A device that was asked so many times in a row and stayed silent is not asked again until it
    checks in."""

    max_value: float = LIMIT
    """Largest absolute value of a number in a device's report; larger ones are cut to it. What an
    honest device sends in a round is rarely above 2."""

    def __post_init__(self) -> None:
        _within("max_value", self.max_value, 1e-6, LIMIT)
        _within("over_selection", self.over_selection, 0.0, 10.0)
        _within("min_fraction", self.min_fraction, 0.0, 1.0)
        _within("deadline_seconds", self.deadline_seconds, 0.1, 30 * 86400.0)
        _within("poll_seconds", self.poll_seconds, 0.01, 86400.0)
        for name in ("min_devices", "dormant_after"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")

    def asked(self, goal: int, pool: int) -> int:
        """How many of `pool` devices to ask where `goal` reports are wanted."""
        return min(pool, math.ceil(goal * (1.0 + self.over_selection) - 1e-9))

    def least(self, goal: int) -> int:
        """The fewest reports with which a round counts."""
        return max(1, math.ceil(self.min_fraction * goal - 1e-9))

    @property
    def value_limit(self) -> int:
        """`max_value` in steps of the grid."""
        return round(self.max_value * GRID)

    def verdict(self, goal: int, reported: int, elapsed: float) -> Verdict:
        """What to do with a round that has been open for `elapsed` seconds."""
        if reported >= goal:
            return "close"
        if elapsed < self.deadline_seconds:
            return "wait"
        return "close" if reported >= self.least(goal) else "abandon"


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} must lie in [{low:g}, {high:g}], not {value:g}")
