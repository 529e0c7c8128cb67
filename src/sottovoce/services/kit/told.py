"""What a party has told since its start: a line in its log for each, and figures for Prometheus.
Neither names a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sottovoce.services.kit.metrics import Figure, known


class _Last(NamedTuple):
    devices: int
    seconds: float
    ended: float


class ToldSums:
    """One thread tells; any may look."""

    def __init__(self, what: str, log: Any = None, clock: Callable[[], float] = time.time) -> None:
        """`what` in one word, as "sum"."""
        self._what, self._log, self._clock = what, log, clock
        self._last: _Last | None = None
        self.times = 0

    def tell(self, event: str, *, round: int, devices: int, seconds: float, **facts: int) -> None:
        """Another one was told, of so many devices, after so many seconds of work."""
        self.times += 1
        self._last = _Last(devices, seconds, self._clock())
        if self._log is not None:
            rounded = float(f"{seconds:.3f}")
            self._log.info(event, round=round, **facts, devices=devices, seconds=rounded)

    def figures(self) -> Iterator[Figure]:
        """Of the last one; no numbers before the first."""
        what, last = self._what, self._last
        devices, seconds, ended = (None, None, None) if last is None else last
        words = f"Devices in the last {what} that was told since the start."
        yield known(f"last_{what}_devices", words, devices)
        yield known(f"last_{what}_seconds", f"Seconds that the last {what} took.", seconds)
        words = f"When the last {what} was told, in seconds since 1970."
        yield known(f"last_{what}_end_timestamp_seconds", words, ended)
