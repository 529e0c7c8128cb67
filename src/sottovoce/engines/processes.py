"""Child processes: with their output in files, watched, and never left behind; and several services
as one command, in which each starts when the one before it is ready."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import IO

from sottovoce.errors import ServiceError
from sottovoce.stores.locking import running
from sottovoce.stores.private import private_folder, private_log

_TETHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Asks the kernel to end this process when its parent ends, also by `kill -9`; then becomes the
command. The parent is the thread that starts it: start processes from the main thread."""


def tethered(command: Sequence[str | Path]) -> list[str]:
    """The command, as a process that does not outlive this one."""
    return [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid()), *map(str, command)]


@contextlib.contextmanager
def told_to_stop(*more: signal.Signals) -> Iterator[threading.Event]:
    """An event that SIGTERM or Ctrl-C sets, or one of these signals; afterwards they do again what
    they did before."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT, *more)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def require_port(host: str, port: int) -> None:
    """Raises where the port is taken, before a program would say so in many lines."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = error.strerror or str(error)
            raise ServiceError(
                f"port {port} on {host} cannot be used ({why}); choose another one"
            ) from None


class Child:
    """A process in a session of its own, with its output in a file (or piped to the caller)."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path | None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.log = name, log
        with contextlib.ExitStack() as stack:
            out: int | IO[bytes] = subprocess.PIPE
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                out = stack.enter_context(log.open("ab"))
            try:
                self.process = subprocess.Popen(
                    tethered(command),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=None if environment is None else dict(environment),
                    start_new_session=True,
                )
            except OSError as error:
                raise ServiceError(f"{name} cannot be started: {error}") from None

    def __repr__(self) -> str:
        return f"<Child {self.name} {self.process.pid}>"

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def last_words(self) -> str:
        """The last line of its output file."""
        if self.log is not None and self.log.exists():
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            if lines:
                return lines[-1][:500]
        return "it left no message"

    def require_alive(self) -> None:
        if not self.alive:
            where = f": {self.last_words()}; see {self.log}" if self.log is not None else ""
            raise ServiceError(
                f"{self.name} has ended (exit code {self.process.returncode}){where}"
            )

    def kill(self) -> None:
        """At once, as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 8.0) -> None:
        """End it and everything that it started."""
        family = descendants(self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        end = time.monotonic() + 2.0
        while any(_same_process(*who) for who in family) and time.monotonic() < end:
            time.sleep(0.05)
        for pid, born in family:
            if _same_process(pid, born):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def wait_until_listening(child: Child, host: str, port: int) -> None:
    """Until somebody accepts connections there. Raises where the child ends or takes too long."""
    there = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)

    def listening() -> bool:
        try:
            socket.create_connection((there, port), timeout=1.0).close()
        except OSError:
            return False
        return True

    wait_for(child, listening)


def wait_for(child: Child, ready: Callable[[], bool], seconds: float = 60.0) -> None:
    """Until `ready`. Raises where the child ends or takes too long."""
    end = time.monotonic() + seconds
    while not ready():
        child.require_alive()
        if time.monotonic() > end:
            raise ServiceError(
                f"{child.name} was not ready after {seconds:g} seconds; see {child.log}"
            )
        time.sleep(0.05)


def stop_all(children: Sequence[Child]) -> None:
    """Ask every one to end, then see to it that it does."""
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.process.terminate()
    # Many that end at once have to share the processors.
    end = time.monotonic() + 8.0 + 0.5 * len(children)
    for child in children:
        child.stop(max(0.1, end - time.monotonic()))


def sottovoce_command(*arguments: str | Path) -> list[str]:
    """This very installation's command line."""
    # With -P no file of the folder one stands in is taken for a library.
    return [sys.executable, "-P", "-m", "sottovoce", *map(str, arguments)]


def descendants(pid: int) -> list[tuple[int, str]]:
    """Processes that this one has started, directly or not, with the time of their birth; empty
    where the system does not tell."""
    found: list[tuple[int, str]] = []
    waiting = [pid]
    while waiting:
        for child in _children(waiting.pop()):
            found.append((child, _born(child)))
            waiting.append(child)
    return found


def _children(pid: int) -> list[int]:
    """Return the children of all its threads; a process or thread that has ended has none."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                listed = Path(f"/proc/{pid}/task/{thread}/children").read_text()
                found.extend(map(int, listed.split()))
    return found


def _born(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _same_process(pid: int, born: str) -> bool:
    return bool(born) and _born(pid) == born


# --- several services as one command --------------------------------------------------------------


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
