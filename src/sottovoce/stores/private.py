"""Files and folders that nobody but their owner may read, and locks between processes."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from sottovoce.errors import ServiceError

UMASK = 0o077


def private_folder(path: Path) -> Path:
    """Make it where it is not there; either way it is the owner's alone."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    close_to_others(path)
    return path


def private_file(path: Path) -> Path:
    """An empty file where there is none; either way it is the owner's alone."""
    # One that exists is not opened: closing it would take away SQLite's locks of this process.
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        close_to_others(path)
    return path


def close_to_others(path: Path) -> None:
    """Take away what others may do with it. Raises where only its owner can."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & UMASK:
        try:
            path.chmod(mode & ~UMASK)
        except PermissionError:
            raise ServiceError(
                f"{path} may be read by others; its owner must run `chmod go= {path}`"
            ) from None


def try_lock(path: Path) -> IO[bytes] | None:
    """A lock that is held until it is closed; None if another process has it."""
    lock = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def is_locked(path: Path) -> bool:
    """Whether some process holds that lock."""
    try:
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def private_log(path: Path) -> Path:
    """A log in a folder of its own kind."""
    private_folder(path.parent)
    return private_file(path)


def privately(command: Sequence[str | Path]) -> list[str | Path]:
    """The same command; what it and its children make is the owner's alone."""
    return ["/bin/sh", "-c", f'umask {UMASK:03o} && exec "$@"', "sh", *command]
