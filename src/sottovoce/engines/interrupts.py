"""Ctrl-C, heard between two rounds, where the state of a run is whole.

The interrupt arrives at any line of Python: often after the devices have learnt and before the
server has folded. A checkpoint taken there would not resume to the same model. So the first Ctrl-C
is only noted, and answered at the observers' next look; a second one stops at once and saves
nothing, which leaves the last checkpoint as it was.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

from sottovoce.engines.base import Moment
from sottovoce.engines.observers import every


@dataclass(slots=True)
class Ears:
    """Hears Ctrl-C for whoever asks between two steps."""

    asked: bool = field(default=False, init=False)

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Within, the first Ctrl-C is noted instead of raised (the main thread alone hears it)."""
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
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@dataclass(slots=True)
class Interrupts(Ears):
    """An observer, to be the last one: saves, then raises KeyboardInterrupt, once one was noted."""

    step: int
    save: Callable[[Moment], None]

    def next_stop(self, round: int) -> int:
        return every(round, self.step)

    def look(self, moment: Moment) -> None:
        if self.asked:
            self.save(moment)
            raise KeyboardInterrupt
