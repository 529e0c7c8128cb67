"""Locks between processes, which end with the process that holds them.

`flock` where there is one (Linux, macOS), and the C library's `locking` of a file's first byte on
Windows. The files that say where a running process listens are held by such locks.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

from sottovoce.errors import ServiceError

NEW = os.O_CREAT | getattr(os, "O_BINARY", 0)
"""Flags of a file that is made; Windows would write its lines in a way of its own."""

if sys.platform == "win32":
    import msvcrt

    def _take(lock: IO[bytes], *, wait: bool = False, shared: bool = False) -> None:
        """Raises BlockingIOError where another process has it. All locks exclude each other."""
        lock.seek(0)
        while True:
            try:
                msvcrt.locking(lock.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                return
            except OSError as error:
                if not wait:  # else it has waited for ten seconds, and waits again
                    raise BlockingIOError(error.errno, "another process has the lock") from error

else:
    import fcntl

    def _take(lock: IO[bytes], *, wait: bool = False, shared: bool = False) -> None:
        """Raises BlockingIOError where another process has it."""
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(lock, how if wait else how | fcntl.LOCK_NB)


def try_lock(path: Path) -> IO[bytes] | None:
    """A lock that is held until it is closed; None if another process has it."""
    made = _opened(path)
    try:
        _take(made)
    except OSError:
        made.close()
        return None
    return made


def lock(path: Path) -> IO[bytes]:
    """A lock that is held until it is closed; waits until no other process has it."""
    made = _opened(path)
    _take(made, wait=True)
    return made


def _opened(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDWR | NEW, 0o600), "r+b")


def is_locked(path: Path) -> bool:
    """Whether some process holds that lock."""
    try:
        with path.open("rb") as looked_at:
            _take(looked_at, shared=True)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


# --- files that say where a process listens -------------------------------------------------------


def write_ready_file(place: Path, url: str, port: int, **more: str) -> None:
    """For whoever waits for this process."""
    fresh = place.with_suffix(".new")
    content = json.dumps({"url": url, "pid": os.getpid(), "port": port, **more})
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as out:
        out.write(content)
    os.replace(fresh, place)


def running(place: Path) -> dict[str, Any] | None:
    """What the file says; None where there is none, or the process is gone."""
    try:
        found = dict(json.loads(place.read_text()))
        with contextlib.suppress(PermissionError):  # it runs, as somebody else
            os.kill(found["pid"], 0)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return found


@contextlib.contextmanager
def locked(place: Path, advice: str = "stop that one first") -> Iterator[None]:
    """Within, no other process can serve from the folder in which this file is."""
    lock = try_lock(place)
    if lock is None:
        raise ServiceError(f"{place.parent} is served by another process already; {advice}")
    with lock:
        yield


@dataclass(frozen=True, slots=True, repr=False)
class ServiceFolder:
    """A folder from which one process at a time serves a party."""

    path: Path

    party: ClassVar[str]
    """The party's name in names of its files."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def ready_file(self) -> Path:
        return self.path / f"{self.party}.json"

    def locked(self) -> AbstractContextManager[None]:
        """Within, no other process can serve from this folder."""
        return locked(self.path / f"{self.party}.lock")

    def running(self) -> dict[str, Any] | None:
        """Address and process of a service that runs from this folder."""
        return running(self.ready_file)
