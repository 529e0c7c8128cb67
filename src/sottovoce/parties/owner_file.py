"""The SQLite file of a data owner, and the lock beside it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

from sottovoce.errors import StoreError
from sottovoce.stamps import stamp

LOCK = "owner.lock"


def connect(path: Path) -> sqlite3.Connection:
    """What is committed is on the disk, and what is deleted is written over."""
    link = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
    try:
        link.create_function("stamp", -1, stamp, deterministic=True)
        for pragma in (
            *("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"),
            # What SQLite puts aside while it works must not lie about in other files.
            *("temp_store=MEMORY", "wal_autocheckpoint=4000", "cache_size=-16000"),
        ):
            link.execute(f"PRAGMA {pragma}")
    except sqlite3.Error:
        link.close()
        raise
    return link


def take_lock(folder: Path) -> int:
    """The lock of the one process that may have the store. Raises where another has it."""
    place = folder / LOCK
    try:
        handle = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{place} cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise StoreError(
            f"the data owner in {folder} is in use by another process; stop that one first"
        ) from None
    return handle
