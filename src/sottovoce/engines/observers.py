"""Observers of a run: evaluation as it goes, checkpoints, progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sottovoce.engines.base import Moment


def every(round: int, step: int) -> int:
    """The first multiple of `step` after `round`."""
    return (round // step + 1) * step


@dataclass(slots=True)
class Periodically:
    """Calls `action` after every `step` rounds, and at the end."""

    step: int
    action: Callable[[Moment], None]

    def next_stop(self, round: int) -> int:
        return every(round, self.step)

    def look(self, moment: Moment) -> None:
        self.action(moment)


@dataclass(slots=True)
class AtRounds:
    """Calls `action` after these rounds."""

    stops: tuple[int, ...]
    action: Callable[[Moment], None]

    def next_stop(self, round: int) -> int:
        return min((s for s in self.stops if s > round), default=2**62)

    def look(self, moment: Moment) -> None:
        if moment.round in self.stops:
            self.action(moment)


@dataclass(slots=True)
class Checkpoints:
    """Saves the run now and then: after every `step` rounds if `seconds` have passed since, and at
    the end. `save` must be atomic."""

    step: int
    save: Callable[[Moment], None]
    seconds: float = 10.0
    _last: float = field(default_factory=time.monotonic)

    def next_stop(self, round: int) -> int:
        return every(round, self.step)

    def look(self, moment: Moment) -> None:
        if moment.round == moment.rounds or time.monotonic() - self._last >= self.seconds:
            self.save(moment)
            self._last = time.monotonic()
