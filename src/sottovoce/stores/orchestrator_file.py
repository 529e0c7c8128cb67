"""The orchestrator's SQLite file: one connection, shared by threads; several processes may have it.

What a transaction has committed is on the disk; what it has not never was. What is deleted is
overwritten. Everything that can go wrong becomes a `StoreError` of one sentence.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sottovoce.errors import StoreError
from sottovoce.stores.stamps import stamp

DATABASE = "orchestrator.db"
_BUSY_SECONDS = 20.0
_APPLICATION = 0x53564F31
_SCHEMAS = (
    """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE catalogue (item INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE invitations (token BLOB PRIMARY KEY, user INTEGER UNIQUE) WITHOUT ROWID;
CREATE TABLE users (number INTEGER PRIMARY KEY, public BLOB NOT NULL, row BLOB NOT NULL);
CREATE TABLE departed (number INTEGER PRIMARY KEY);
CREATE TABLE items (number INTEGER PRIMARY KEY, row BLOB NOT NULL);
CREATE TABLE owners (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, url TEXT NOT NULL,
                     public BLOB NOT NULL, authority TEXT NOT NULL, node_key TEXT NOT NULL UNIQUE,
                     counted INTEGER NOT NULL, flushed INTEGER NOT NULL);
CREATE TABLE holdings (owner INTEGER, item INTEGER, PRIMARY KEY (owner, item)) WITHOUT ROWID;
CREATE TABLE rounds (round INTEGER PRIMARY KEY, flush INTEGER NOT NULL, names TEXT NOT NULL,
                     seconds REAL NOT NULL, version INTEGER NOT NULL);
CREATE TABLE open_round (round INTEGER, flush INTEGER, requested INTEGER);
CREATE TABLE refused (reason TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID
""",
    "CREATE TABLE heard (owner INTEGER PRIMARY KEY, round INTEGER NOT NULL)",
    """
UPDATE users SET row = stamp(row, 'users', number);
UPDATE items SET row = stamp(row, 'items', number)
""",
)
"""What each version of the file adds to the one before."""


class OrchestratorFile:
    def __init__(self, folder: Path, *, new: bool = False) -> None:
        self.path = folder / DATABASE
        self._turn = threading.RLock()
        if new:
            _make(folder, self.path)
        elif not self.path.is_file():
            raise StoreError(f"there is no orchestrator's store in {folder}")
        else:
            _close_to_others(self.path)
        with self._speaking():
            self._db = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(new)
            except BaseException:
                self._db.close()
                raise

    def _prepare(self, new: bool) -> None:
        self._db.create_function("stamp", -1, stamp, deterministic=True)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("PRAGMA secure_delete=ON")
        self._db.execute("PRAGMA temp_store=MEMORY")
        version = self._pragma("user_version")
        if version > len(_SCHEMAS):
            raise StoreError(f"{self.path} was written by a newer release; install that release")
        ours = self._pragma("application_id") == _APPLICATION
        if new and version:
            raise StoreError(f"{self.path} holds a federation already; choose another folder")
        if not new and not ours:
            raise StoreError(f"{self.path} is no orchestrator's store, or was never completed")
        if not new and version < len(_SCHEMAS):
            with self.transaction():  # another process may have been first
                self._add_tables(self._pragma("user_version"))

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def make_tables(self) -> None:
        """Within the transaction that fills them for the first time."""
        with self.transaction():
            self._add_tables(0)
            self._db.execute(f"PRAGMA application_id={_APPLICATION}")

    def _add_tables(self, version: int) -> None:
        """Those that came after this version of the file."""
        for statement in (s for schema in _SCHEMAS[version:] for s in schema.split(";")):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version={len(_SCHEMAS)}")

    def close(self) -> None:
        with self._turn:
            self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written within is on the disk on leaving, whole, or not at all. A transaction
        within another one is part of it."""
        with self._scope("BEGIN IMMEDIATE"):
            yield

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """What is read within is of one moment."""
        with self._scope("BEGIN"):
            yield

    @contextlib.contextmanager
    def _scope(self, begin: str) -> Iterator[None]:
        with self._turn, self._speaking():
            if self._begun():
                yield
                return
            self._db.execute(begin)
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._begun():  # a full disk may have rolled it back already
                    self._db.execute("ROLLBACK")
                raise

    def _begun(self) -> bool:
        return self._db.in_transaction

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._turn, self._speaking():
            return self._db.execute(sql, values).fetchall()

    def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first field of the first row; None where there is none."""
        found = self.rows(sql, values)
        return found[0][0] if found else None

    def write(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run one statement; how many rows it changed."""
        with self._turn, self._speaking():
            return self._db.execute(sql, values).rowcount

    def write_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._turn, self._speaking():
            self._db.executemany(sql, rows)

    def erase_traces(self) -> bool:
        """No byte of what was deleted remains in the files. False where another process was in the
        way for too long.

        Deleted rows are overwritten, but SQLite moves rows about within its pages and leaves
        copies, and its log has older pages: so the file is written anew and the log emptied."""
        with self._turn, self._speaking():
            try:
                self._db.execute("VACUUM")
                (busy, _, _) = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                return False
            return not busy

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self.path} {_words(error)}") from None


def _words(error: sqlite3.Error) -> str:
    said = str(error)
    if "locked" in said:
        return "is being written by another process; try again in a moment"
    if "full" in said or "disk I/O" in said:
        return (
            "cannot be written, because the disk failed or is full; what was stored before is "
            "still there"
        )
    if "readonly" in said:
        return "may not be written by this user"
    if "not a database" in said or "malformed" in said:
        return "is damaged, or no orchestrator's store; put back a copy"
    return f"cannot be used: {said}"


def _make(folder: Path, path: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        _close_to_others(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be made: {error.strerror or error}") from None


def _close_to_others(path: Path) -> None:
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        try:
            path.chmod(mode & 0o700)
        except PermissionError:
            raise StoreError(
                f"{path} may be read by others; its owner must run `chmod go= {path}`"
            ) from None
