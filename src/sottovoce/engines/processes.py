"""Child processes of a trial run: logs in files, watched, and none left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sottovoce.errors import ServiceError

_SET_PARENT_DEATH_SIGNAL = 1


@dataclass(frozen=True, slots=True)
class Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def running(self) -> bool:
        return self.process.poll() is None

    def last_words(self) -> str:
        """The end of its log, as far as one line says it."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            if lines:
                return lines[-1][:500]
        return "it left no message"


@dataclass(slots=True)
class Children:
    """The processes of one trial. `stop` ends them all, whatever state they are in."""

    logs: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    all: list[Child] = field(default_factory=list)

    def start(self, name: str, command: Sequence[str]) -> Child:
        """Its output goes to a file of its own. It dies with the thread that started it (on Linux),
        so even a kill of this process leaves none behind."""
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        with open(log, "ab") as out:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **self.environment},
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        child = Child(name, process, log)
        self.all.append(child)
        return child

    def require(self, child: Child) -> None:
        """Raises where a process without which nothing goes on has ended."""
        if not child.running():
            raise ServiceError(
                f"the {child.name} has stopped (exit code {child.process.returncode}): "
                f"{child.last_words()}; its log is {child.log}"
            )

    def wait_for(self, child: Child, ready: Callable[[], bool], seconds: float = 60.0) -> None:
        """Until `ready`, while `child` lives."""
        until = time.monotonic() + seconds
        while not ready():
            self.require(child)
            if time.monotonic() > until:
                raise ServiceError(
                    f"the {child.name} was not ready after {seconds:g} s; its log is {child.log}"
                )
            time.sleep(0.05)

    def stop(self, children: Sequence[Child] | None = None, patience: float = 10.0) -> None:
        """Ask each to end, last started first, then make it."""
        ending = list(reversed(self.all if children is None else children))
        patience += 0.5 * len(ending)  # many that end at once have to share the processors
        for child in ending:
            _signal(child, signal.SIGTERM)
        until = time.monotonic() + patience
        for child in ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.1, until - time.monotonic()))
            _signal(child, signal.SIGKILL)  # also what it started and left
            child.process.wait()
        self.all = [c for c in self.all if c not in ending]


@contextlib.contextmanager
def children(logs: Path, environment: Mapping[str, str] | None = None) -> Iterator[Children]:
    """Within, processes may be started; after it, none of them runs."""
    group = Children(logs, environment or {})
    try:
        yield group
    finally:
        group.stop()


def sottovoce_command(*arguments: str | Path) -> list[str]:
    """This very installation's command line."""
    return [sys.executable, "-m", "sottovoce", *map(str, arguments)]


def _signal(child: Child, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, number)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
