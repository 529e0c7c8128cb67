"""Observers of a run: evaluation as it goes, checkpoints, progress."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.cohort import Cohort
from sottovoce.core.ledger import Ledger
from sottovoce.core.ranks import ALONE, Ranks

Report = Callable[[str, int, int], None]
"""Progress: what is being done, steps done, steps in all."""


@dataclass(frozen=True, slots=True, repr=False)
class Moment:
    """The state of a run after `round` rounds of `rounds`."""

    round: int
    rounds: int
    items: NDArray[np.float32]
    cohort: Cohort
    ledger: Ledger
    memory: NDArray[np.float32]
    """What the server keeps to itself."""


class Observer(Protocol):
    """Looks on; changes nothing. `next_stop` says after which round it wants to look next."""

    def next_stop(self, round: int) -> int:
        """The first round number after `round` at which to call `look`."""
        ...

    def look(self, moment: Moment) -> None: ...


class MessageObserver(Protocol):
    """Sees every message. If there is one, messages are written out."""

    def on_message(self, party: str, message: object) -> None:
        """A message of `messages` has reached this party: "server", "proxy" (in a chain of
        shufflers the first one, "hop-2" the one behind it), or, what is published, "device"."""
        ...


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
    """Saves a run now and then, and lets Ctrl-C stop it when its state is whole; to be the last
    observer. `save` must be atomic.

    It saves after every `step` rounds if `seconds` have passed since, and at the end. An interrupt
    arrives at any line of Python: often after the devices have learnt and before the server has
    folded. A checkpoint taken there would not resume to the same model. So the first Ctrl-C is only
    noted, and answered at the next look; a second one stops at once and saves nothing, which leaves
    the last checkpoint as it was."""

    step: int
    save: Callable[[int], None]
    seconds: float = 10.0
    ranks: Ranks = ALONE
    """They save, and stop, together."""
    _last: float = field(default_factory=time.monotonic)
    _asked: bool = False

    def next_stop(self, round: int) -> int:
        return every(round, self.step)

    def look(self, moment: Moment) -> None:
        self.at(moment.round, moment.rounds)

    def at(self, round: int, rounds: int) -> None:
        """Between two rounds; raises KeyboardInterrupt if one was noted."""
        due = round == rounds or time.monotonic() - self._last >= self.seconds
        due, asked = self.ranks.any(due, self._asked)
        if due or asked:
            self.save(round)
            self._last = time.monotonic()
        if asked:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Within, the first Ctrl-C is noted instead of raised (the main thread alone gets it)."""
        before = signal.getsignal(signal.SIGINT)
        here = threading.current_thread() is threading.main_thread()
        if not here or before is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
