"""Several services as one command: each starts when the one before it is ready, one that ends is
started again, and all end together."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from sottovoce.engines.processes import Child, stop_all, wait_for
from sottovoce.errors import ServiceError
from sottovoce.stores.private import private_folder, private_log
from sottovoce.stores.ready import running

_LOOK_SECONDS = 0.25
_RESTARTS, _WITHIN = 3, 120.0
"""A part that ends more often than so many times in so many seconds ends all."""
_START_SECONDS = 120.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Part:
    """A service that is a part of several."""

    name: str
    """In a sentence, as "the server"."""
    command: Sequence[str | Path]
    ready_file: Path
    """Which it writes when it listens."""
    log: Path


@dataclass(slots=True, repr=False)
class Supervisor:
    parts: Sequence[Part]
    say: Say
    """Is told one line when a part is ready, and one when it has ended."""
    stop_asked: Event
    """Set by whoever wants it to stop, also before all parts are ready."""
    _running: dict[str, Child] = field(default_factory=dict)
    _ended: dict[str, deque[float]] = field(default_factory=dict)

    def __enter__(self) -> Supervisor:
        """Start all parts, in order. Raises with one sentence where one cannot start; then none
        runs."""
        try:
            for part in self.parts:
                if not self.stop_asked.is_set():
                    self._start(part)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def watch(self) -> None:
        """Until it is asked to stop. Raises where a part does not stay."""
        while not self.stop_asked.wait(_LOOK_SECONDS):
            for part in self.parts:
                child = self._running[part.name]
                if not child.alive:
                    self._again(part, child)

    def stop(self) -> None:
        """The last one first; what they have started ends with them."""
        children = list(reversed(self._running.values()))
        self._running.clear()
        stop_all(children)

    def _start(self, part: Part) -> None:
        private_folder(part.log.parent)
        child = Child(part.name, part.command, log=private_log(part.log))
        self._running[part.name] = child

        def ready() -> bool:
            found = running(part.ready_file)
            return self.stop_asked.is_set() or (
                found is not None and found.get("pid") == child.process.pid
            )

        wait_for(child, ready, _START_SECONDS)
        if self.stop_asked.is_set():
            return
        found = running(part.ready_file) or {}
        where = found.get("url") or f"port {found.get('port')}"
        self.say(f"{part.name} is ready: {where} (log: {part.log})")

    def _again(self, part: Part, child: Child) -> None:
        now, ended = time.monotonic(), self._ended.setdefault(part.name, deque())
        ended.append(now)
        while ended and ended[0] < now - _WITHIN:
            ended.popleft()
        why = f"{part.name} has ended (exit code {child.process.returncode}): {child.last_words()}"
        if len(ended) > _RESTARTS:
            raise ServiceError(
                f"{part.name} does not stay: it has ended {len(ended)} times within "
                f"{_WITHIN:g} seconds, so everything stops; see {part.log}"
            )
        self.say(f"{why}; it is started again")
        with contextlib.suppress(OSError):
            part.ready_file.unlink()
        if self.stop_asked.wait(min(2.0 ** (len(ended) - 1) - 1.0, 4.0)):
            return
        try:
            self._start(part)
        except ServiceError as error:
            if not self._running[part.name].alive:  # it is counted, and tried again
                self.say(str(error))
                return
            raise
