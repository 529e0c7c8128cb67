"""Processes that end with the one that started them, and what Flower's programs need about them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from sottovoce.errors import ServiceError

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


def flower_environment(home: Path) -> dict[str, str]:
    """The environment of every Flower program: nothing is reported, looked up or installed, and
    its programs, which start each other by bare name, are those of this installation."""
    programs = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
        "PYTHONUNBUFFERED": "1",
        # A proxy for the outside must not get to see what this machine says to itself.
        "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1,localhost"])),
    }


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
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
        environment: Mapping[str, str],
    ) -> None:
        self.name, self.log = name, log
        words = [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid())]
        with contextlib.ExitStack() as stack:
            out: int | IO[bytes] = subprocess.PIPE
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                out = stack.enter_context(log.open("ab"))
            try:
                self.process = subprocess.Popen(
                    [*words, *map(str, command)],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
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

    def tail(self, lines: int = 3) -> str:
        """The last lines of its output file, for an error message."""
        if self.log is None or not self.log.exists():
            return ""
        text = self.log.read_text(errors="replace").splitlines()
        return " ".join(line.strip() for line in text[-lines:] if line.strip())

    def require_alive(self) -> None:
        if not self.alive:
            where = f"; see {self.log}" if self.log is not None else ""
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


def wait_until_listening(child: Child, host: str, port: int, seconds: float = 60.0) -> None:
    """Until somebody accepts connections there. Raises where the child ends or takes too long."""
    there = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        child.require_alive()
        with contextlib.suppress(OSError), socket.create_connection((there, port), timeout=1.0):
            return
        time.sleep(0.1)
    raise ServiceError(f"{child.name} was not ready after {seconds:g} seconds; see {child.log}")


def descendants(pid: int) -> list[tuple[int, str]]:
    """Processes that this one has started, directly or not, with the time of their birth; empty
    where the system does not tell."""
    found: list[tuple[int, str]] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                for child in map(int, tasks.read_text().split()):
                    found.append((child, _born(child)))
                    waiting.append(child)
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
