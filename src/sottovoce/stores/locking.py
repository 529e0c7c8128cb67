"""Locks between processes, which end with the process that holds them.

`flock` where there is one (Linux, macOS), and the C library's `locking` of a file's first byte on
Windows.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO

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
