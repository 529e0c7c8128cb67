"""Copies of SQLite databases that may be in use: of one moment, whatever is written meanwhile."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sottovoce.errors import CorruptData, ServiceError

_BUSY_SECONDS = 20.0


def copy_sqlite(source: Path, target: Path) -> None:
    """Everything in the database, its log included, to a file that is there and empty. Raises where
    it is damaged."""
    with in_words(source), connected(source) as link, connected(target) as copy:
        link.backup(copy)
        found = [text for (text,) in copy.execute("PRAGMA quick_check(1)")]
    if found != ["ok"]:
        raise CorruptData(f"the database {source} is damaged; no copy was made")


@contextlib.contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a database that is there."""
    link = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_BUSY_SECONDS, isolation_level=None
    )
    try:
        yield link
    finally:
        link.close()


@contextlib.contextmanager
def in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        said = str(error)
        why = "there is no space left; free some and try again" if "full" in said else said
        raise ServiceError(f"{path} cannot be copied: {why}") from None
