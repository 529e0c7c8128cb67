"""Files and folders that nobody but their owner may read.

On Windows a file's mode says nothing of who may read it; there a store lies in its owner's profile,
which is closed to others, and nothing is checked."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from sottovoce.errors import ServiceError
from sottovoce.stores.locking import NEW

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
        os.close(os.open(path, os.O_WRONLY | NEW | os.O_EXCL, 0o600))
    except FileExistsError:
        close_to_others(path)
    return path


def private_database(path: Path) -> None:
    """A SQLite file; SQLite gives the files beside it the mode of the first one."""
    private_file(path)
    for place in (Path(f"{path}-wal"), Path(f"{path}-shm")):
        with contextlib.suppress(FileNotFoundError):
            close_to_others(place)


def write_new(path: Path, content: bytes, mode: int = 0o600) -> None:
    """A file that was not there, whole and on the disk when this returns."""
    handle = os.open(path, os.O_WRONLY | NEW | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as out:
            if sys.platform != "win32":
                os.fchmod(out.fileno(), mode)
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def sync_folder(path: Path) -> None:
    """Names of files that came or went there are on the disk; Windows does without being asked."""
    if sys.platform == "win32":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def others_may(path: Path) -> int:
    """What a file's mode lets others do with it; 0 where nothing, or where modes say nothing."""
    return 0 if sys.platform == "win32" else stat.S_IMODE(path.stat().st_mode) & UMASK


def close_to_others(path: Path) -> None:
    """Take away what others may do with it. Raises where only its owner can."""
    mode = others_may(path)
    if mode:
        try:
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~UMASK)
        except PermissionError:
            raise ServiceError(
                f"{path} may be read by others; its owner must run `chmod go= {path}`"
            ) from None


def private_log(path: Path) -> Path:
    """A log in a folder of its own kind."""
    private_folder(path.parent)
    return private_file(path)


def privately(command: Sequence[str | Path]) -> list[str | Path]:
    """The same command; what it and its children make is the owner's alone."""
    return ["/bin/sh", "-c", f'umask {UMASK:03o} && exec "$@"', "sh", *command]


STAMP_BYTES = 16


def stamp(content: bytes, *where: str | int) -> bytes:
    """`content` with its stamp behind it; nothing at all stays nothing."""
    return content + _stamp_of(content, where) if content else b""


def unstamp(stamped: bytes, *where: str | int) -> bytes | None:
    """What was stamped; None where that, its stamp or its place is another."""
    if not stamped:
        return b""
    content = bytes(stamped[:-STAMP_BYTES])
    if not content or _stamp_of(content, where) != bytes(stamped[-STAMP_BYTES:]):
        return None
    return content


def _stamp_of(content: bytes, where: tuple[str | int, ...]) -> bytes:
    made = hashlib.blake2b("\0".join(map(str, where)).encode() + b"\0", digest_size=STAMP_BYTES)
    made.update(content)
    return made.digest()
