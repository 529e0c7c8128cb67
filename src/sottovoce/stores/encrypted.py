"""An encrypted SQLite file in a folder of its own: `store.db`, its key in `store.key`, a lock.

What a transaction has committed is on the disk, whatever happens next; what it has not is gone as
if it had never been. Everything that can go wrong becomes a `StoreError` of one sentence.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import apsw

from sottovoce.errors import StoreError
from sottovoce.stores import device_schema as store_schema

DATABASE, KEY, LOCK = "store.db", "store.key", "agent.lock"
_BUSY_MILLISECONDS = 5000
_WORDS: tuple[tuple[type[apsw.Error], str], ...] = (
    (
        apsw.FullError,
        "cannot be written, because there is no space left; free some and try again, what was "
        "stored before is still there",
    ),
    (apsw.BusyError, "is being written by another process; try again in a moment"),
    (
        apsw.NotADBError,
        "cannot be read: it is no store of Sottovoce, or the store.key beside it is another's",
    ),
    (apsw.CorruptError, "is damaged; put back a copy of the whole folder"),
    (apsw.ReadOnlyError, "may not be written by this user"),
    (apsw.CantOpenError, "cannot be opened; look whether it is there and may be read and written"),
    (
        apsw.IOError,
        "cannot be read or written, because the disk failed or is full; what was stored before is "
        "still there",
    ),
)


class StoreFile:
    """One connection to a store. May be used by several threads, one at a time. A kind of store is
    a subclass with a content of its own."""

    schema: ClassVar[ModuleType] = store_schema
    """Has `MIGRATIONS` and `APPLICATION_ID`."""
    made_by: ClassVar[str] = "sottovoce device init {folder}"
    """The commands that make such a store, and that open it for writing."""
    written_by: ClassVar[str] = "sottovoce serve device"

    def __init__(
        self, folder: Path, *, readonly: bool = False, agent: bool = False, new: bool = False
    ) -> None:
        self.folder = folder
        self.readonly = readonly
        self._turn = threading.RLock()
        self._lock = -1
        path = folder / DATABASE
        if not path.is_file():
            raise StoreError(
                f"there is no store in {folder}; make one with "
                f"`{self.made_by.format(folder=folder)}`"
            )
        key = _read_key(folder / KEY)
        if agent:
            self._lock = _lock(folder)
        try:
            with self._speaking():
                self._connection = _connect(path, key, readonly, new)
                self._check_version(new)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, folder: Path, fill: Callable[[StoreFile], None]) -> None:
        """Make a store and let `fill` write into it. It is there whole, or not at all."""
        folder = Path(os.path.abspath(folder))
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            what = "a store" if (folder / DATABASE).exists() else "something else"
            raise StoreError(f"there is already {what} in {folder}; choose another place")
        partial = None
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            _write_new(partial / KEY, secrets.token_hex(32).encode() + b"\n")
            _write_new(partial / DATABASE, b"")
            file = cls(partial, new=True)
            try:
                fill(file)
            finally:
                file.close()
            _sync_folder(partial)
            partial.rename(folder)
            _sync_folder(folder.parent)
        except OSError as error:
            raise StoreError(
                f"no store could be made in {folder}: {error.strerror or error}"
            ) from None
        finally:
            if partial is not None and partial.exists():
                shutil.rmtree(partial, ignore_errors=True)

    @classmethod
    def copy(cls, folder: Path, target: Path) -> None:
        """Copy a store that may be in use, as it is at one moment, to a file that is there and
        empty, with the same key. Raises where it is damaged."""
        file = cls(folder, readonly=True)
        try:
            with file._speaking():
                copy = _connect(target, _read_key(folder / KEY), False, False)
                try:
                    with copy.backup("main", file._connection, "main") as all_of_it:
                        all_of_it.step(-1)
                    damaged = copy.pragma("quick_check", 1) != "ok"
                finally:
                    copy.close()
        finally:
            file.close()
        if damaged:
            raise StoreError(f"the store {folder / DATABASE} is damaged; no copy was made")

    def served(self) -> bool:
        """Whether some process serves this store as its agent."""
        try:
            handle = os.open(self.folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def close(self) -> None:
        """Give the file and the lock back. Closing twice does no harm."""
        with self._turn:
            connection = getattr(self, "_connection", None)
            if connection is not None:
                connection.close()
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written within is there whole and durably on leaving, or not at all. A
        transaction within another one is part of it."""
        with self._scope("BEGIN IMMEDIATE"):
            yield

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """What is read within is of one moment, whatever other processes write meanwhile."""
        with self._scope("BEGIN"):
            yield

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._turn, self._speaking():
            return self._connection.execute(sql, tuple(values)).fetchall()

    def row(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        found = self.rows(sql, values)
        return found[0] if found else None

    def write(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run one statement; how many rows it changed."""
        with self._turn, self._speaking():
            self._connection.execute(sql, tuple(values))
            return self._connection.changes()

    def write_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each row of values."""
        with self._turn, self._speaking():
            self._connection.executemany(sql, rows)

    def pragma(self, name: str, value: int | str | None = None) -> Any:
        """A setting of the database, read or (where a value is given) set."""
        with self._turn, self._speaking():
            if value is None:
                return self._connection.pragma(name)
            return self._connection.pragma(name, value)

    def cut_log(self) -> None:
        """Leave nothing in the write-ahead log, where pages lie as they were before. While others
        read, it stays until the last of them is gone; within a transaction, until the next time."""
        with self._turn, self._speaking():
            if not self._connection.in_transaction:
                self._connection.pragma("wal_checkpoint", "truncate")

    @contextlib.contextmanager
    def _scope(self, begin: str) -> Iterator[None]:
        with self._turn, self._speaking():
            if self._connection.in_transaction:
                yield
                return
            self._connection.execute(begin)
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        # A full disk may have rolled the transaction back already.
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            words = next((w for kind, w in _WORDS if isinstance(error, kind)), f"failed: {error}")
            raise StoreError(f"the store {self.folder / DATABASE} {words}") from None
        except UnicodeEncodeError:
            raise StoreError(
                f"the store {self.folder / DATABASE} takes no text with halves of characters"
            ) from None

    def _check_version(self, new: bool) -> None:
        """Bring an older store up to date; refuse a newer one, and other programs' files."""
        known, version = len(self.schema.MIGRATIONS), self._connection.pragma("user_version")
        if version == known and self._ours():
            return
        if self.readonly:
            self._refuse_unknown(version, known, new)
            raise StoreError(
                f"the store in {self.folder} was written by an older release of Sottovoce; open it "
                f"once for writing, for example with `{self.written_by}`"
            )
        with self.transaction():
            # Once more, now that no other process can be at it.
            version = self._connection.pragma("user_version")
            self._refuse_unknown(version, known, new)
            for number in range(version, known):
                self._connection.execute(self.schema.MIGRATIONS[number])
            self._connection.pragma("user_version", known)
            self._connection.pragma("application_id", self.schema.APPLICATION_ID)

    def _ours(self) -> bool:
        return bool(self._connection.pragma("application_id") == self.schema.APPLICATION_ID)

    def _refuse_unknown(self, version: int, known: int, new: bool) -> None:
        empty = self._connection.pragma("schema_version") == 0
        if empty and not new:
            raise StoreError(
                f"the store {self.folder / DATABASE} is empty; put back a copy of the whole folder"
            )
        if not (empty or self._ours()):
            raise StoreError(f"{self.folder / DATABASE} is a database of another program")
        if version > known:
            raise StoreError(
                f"the store in {self.folder} was written by a newer release of Sottovoce (version "
                f"{version} of the store, this one knows {known}); install that release again"
            )


def _connect(path: Path, key: str, readonly: bool, new: bool) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE
    connection = apsw.Connection(str(path), flags=flags)
    try:
        connection.set_busy_timeout(_BUSY_MILLISECONDS)
        connection.pragma("hexkey", key)
        # What SQLite puts aside while it works is not encrypted, so it stays in memory.
        connection.pragma("temp_store", "memory")
        connection.pragma("schema_version")
        if not readonly:
            connection.pragma("synchronous", "full")
            connection.pragma("secure_delete", "on")  # what is forgotten is overwritten
            connection.pragma("foreign_keys", "on")
        if new:  # the file remembers it
            connection.pragma("journal_mode", "wal")
    except BaseException:
        connection.close()
        raise
    return connection


def _read_key(path: Path) -> str:
    try:
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise StoreError(
                f"{path} may be read by others (mode {mode:o}); run `chmod 600 {path}`, and make a "
                f"new store if somebody may have read it"
            )
        key = path.read_bytes().decode("ascii", "replace").strip()
    except FileNotFoundError:
        raise StoreError(
            f"{path} is missing, without which the store cannot be read; put it back"
        ) from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    if not re.fullmatch(r"[0-9a-f]{64}", key):
        raise StoreError(f"{path} holds no key; put the right one back")
    return key


def _lock(folder: Path) -> int:
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{folder / LOCK} cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise StoreError(
            f"the store in {folder} is in use by another process; one agent at a time may serve it"
        ) from None
    return handle


def _write_new(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
