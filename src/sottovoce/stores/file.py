"""A SQLite file that only its owner can read: how every party but the server keeps what it knows.

What a transaction has committed is on the disk, whatever happens next; what it has not is gone as
if it had never been. Everything that can go wrong becomes an error of one sentence. A kind of store
is a subclass with its own tables; the server's database also speaks PostgreSQL and goes through
SQLAlchemy (`database.py`).
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol, Self, TypeVar

from sottovoce.errors import ServiceError, SottovoceError, StoreError, other_format
from sottovoce.stores.locking import try_lock
from sottovoce.stores.private import private_database, stamp

_BUSY, _LOCKED, _NOT_A_DATABASE = 5, 6, 26
_SAFE = "what was stored before is still there"
_WORDS = {
    _BUSY: "is being written by another process; try again in a moment",
    _LOCKED: "is being written by another process; try again in a moment",
    8: "may not be written by this user",
    10: "cannot be read or written, because the disk failed or is full; " + _SAFE,
    11: "is damaged; put back a copy of it",
    13: "cannot be written, because the disk is full and there is no space left; free some and try "
    "again, " + _SAFE,
    14: "cannot be opened; look whether it is there and may be read and written",
}
"""What SQLite's result codes mean, in both drivers."""
_WRITTEN = re.compile(r"\s*(?:INSERT\b.*?\bINTO|UPDATE|DELETE\s+FROM)\s+(\w+)", re.I | re.S)
T = TypeVar("T")


class _Connection(Protocol):
    """What the two drivers have in common: `sqlite3`, and `apsw` for encrypted files."""

    @property
    def in_transaction(self) -> bool: ...
    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> Any: ...
    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> Any: ...
    def close(self) -> None: ...


class SQLiteFile:
    """One connection. Several threads may use it, one at a time; several processes may have the
    file open, of which one at a time may hold its lock."""

    schema: ClassVar[str] = ""
    """The tables. A store without any looks after them itself."""
    format: ClassVar[int] = 1
    """The number of this schema. A file of another format is refused."""
    application_id: ClassVar[int] = 0
    pragmas: ClassVar[tuple[str, ...]] = (
        "synchronous=FULL",
        "secure_delete=ON",  # what is forgotten is overwritten
        "temp_store=MEMORY",  # what SQLite puts aside must not lie about in other files
        "foreign_keys=ON",
    )
    busy_seconds: ClassVar[float] = 5.0

    name: ClassVar[str] = "the store"
    """How sentences call it."""
    kind: ClassVar[str] = "store of Sottovoce"
    strange: ClassVar[str] = "cannot be used: it is damaged or no {kind}; put back a copy of it"
    """Said if the file is no database."""
    taken: ClassVar[str] = "holds a store already; choose another place"
    in_use: ClassVar[str] = "is in use by another process; stop that one first"
    lock: ClassVar[str] = ""
    """The name of the lock beside it."""
    error: ClassVar[type[SottovoceError]] = StoreError
    version_error: ClassVar[type[SottovoceError]] = StoreError

    def __init__(
        self,
        path: Path,
        *,
        key: str = "",
        readonly: bool = False,
        make: bool = False,
        lock: IO[bytes] | None = None,
        fill: Callable[[Any], None] | None = None,
    ) -> None:
        """With `make` an empty file is given its tables; `fill` then writes into them, in the same
        transaction. A lock is given back by `close`."""
        self.path, self.readonly = path, readonly
        self._turn = threading.RLock()
        self._lock = lock
        self._connection: _Connection | None = None
        self._errors, self._changes = _encrypted_driver() if key else _plain_driver()
        self._held: dict[str, tuple[tuple[str, ...], Any]] = {}
        self._held_at: int | None = None
        try:
            if not (key or readonly):
                self._make_private(make)
            with self._speaking():
                self._connection = _connect(path, key, readonly, self.busy_seconds)
                for pragma in self.pragmas:
                    self._connection.execute(f"PRAGMA {pragma}")
                empty = self.pragma("schema_version") == 0
                if empty and not make and self.schema:
                    raise self.error(
                        f"{self.name} {path} is empty, and no {self.kind}; put back a copy of it"
                    )
                if not readonly:
                    self.pragma("journal_mode", "WAL")
                if self.schema:
                    self._lay_out(fill)
        except BaseException:
            self.close()
            raise

    @classmethod
    def take_lock(cls, folder: Path) -> IO[bytes]:
        """The lock of the one process that may have the store. Raises if another one has it."""
        place = folder / cls.lock
        try:
            lock = try_lock(place)
        except OSError as error:
            raise cls.error(f"{place} cannot be opened: {error.strerror}") from None
        if lock is None:
            raise cls.error(f"{cls.name} in {folder} {cls.in_use}")
        return lock

    def close(self) -> None:
        """Give the file and the lock back. Closing twice does no harm."""
        with self._turn:
            if self._connection is not None:
                self._connection.close()
            if self._lock is not None:
                self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}, redacted>"

    # --- statements ------------------------------------------------------------------------------

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
            found: list[tuple[Any, ...]] = self._open.execute(sql, tuple(values)).fetchall()
            return found

    def row(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        found = self.rows(sql, values)
        return found[0] if found else None

    def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first field of the first row; None if there is none."""
        found = self.row(sql, values)
        return None if found is None else found[0]

    def write(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run one statement; how many rows it changed."""
        with self._turn, self._speaking():
            self.forget_held(sql)
            return self._changes(self._open.execute(sql, tuple(values)))

    def write_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each row of values."""
        with self._turn, self._speaking():
            self.forget_held(sql)
            self._open.executemany(sql, rows)

    def held(self, name: str, tables: tuple[str, ...], read: Callable[[], T]) -> T:
        """What `read` finds in these tables. It is read once, and anew when they were written here,
        or anything was by another process. Not to be changed by whoever gets it."""
        with self._turn:
            now = self.pragma("data_version")  # of the snapshot, within one
            if now != self._held_at:
                self._held.clear()
                self._held_at = now
            if name not in self._held:
                self.hold(name, tables, read())
            found: T = self._held[name][1]
            return found

    def hold(self, name: str, tables: tuple[str, ...], value: object) -> None:
        """For whoever has just written it, and would read this now."""
        with self._turn:
            self._held[name] = tables, value

    def pragma(self, name: str, value: int | str | None = None) -> Any:
        """A setting of the database, read or (if a value is given) set."""
        found = self.row(f"PRAGMA {name}" if value is None else f"PRAGMA {name}={value}")
        return None if found is None else found[0]

    # --- erasing ---------------------------------------------------------------------------------

    def cut_log(self) -> bool:
        """Leave nothing in the write-ahead log, where pages lie as they were before. False while
        others read, or within a transaction: then it stays until the next time."""
        with self._turn, self._speaking():
            if self._open.in_transaction:
                return False
            return bool(self.pragma("wal_checkpoint(TRUNCATE)") == 0)

    def erase_traces(self) -> bool:
        """No byte of what was deleted remains in the files. False if another process was in the
        way for too long. Takes time with the size of the store.

        Deleted rows are overwritten, but SQLite moves rows about within its pages and leaves
        copies, and its log has older pages: so the file is written anew and the log emptied."""
        with self._turn, self._speaking():
            try:
                self._open.execute("VACUUM")
            except self._errors as error:
                if _code(error) not in (_BUSY, _LOCKED):
                    raise
                return False
            return self.cut_log()

    # --- helpers ---------------------------------------------------------------------------------

    @property
    def _open(self) -> _Connection:
        if self._connection is None:
            raise self.error(f"{self.name} {self.path} was closed")
        return self._connection

    def _make_private(self, make: bool) -> None:
        try:
            if make or self.path.exists():
                private_database(self.path)
        except OSError as error:
            raise self.error(
                f"{self.name} {self.path} cannot be made: {error.strerror or error}"
            ) from None
        except ServiceError as error:
            raise self.error(str(error)) from None

    @contextlib.contextmanager
    def _scope(self, begin: str) -> Iterator[None]:
        with self._turn, self._speaking():
            link = self._open
            if link.in_transaction:
                yield
                return
            link.execute(begin)
            try:
                yield
                self._commit()
            except BaseException:
                self._held.clear()
                if self._open.in_transaction:  # a full disk may have rolled it back already
                    link.execute("ROLLBACK")
                raise

    def forget_held(self, sql: str = "") -> None:
        """What this statement writes, or all of it."""
        written = _WRITTEN.match(sql)
        for name, (tables, _) in list(self._held.items()):
            if written is None or written[1] in tables:
                del self._held[name]

    def _commit(self) -> None:
        self._open.execute("COMMIT")

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except UnicodeEncodeError:
            raise self.error(
                f"{self.name} {self.path} takes no text with halves of characters"
            ) from None
        except self._errors as error:
            code = _code(error)
            words = self.strange if code == _NOT_A_DATABASE else _WORDS.get(code, "")
            words = words.format(kind=self.kind) or f"cannot be used: {error}; {_SAFE}"
            raise self.error(f"{self.name} {self.path} {words}") from None

    def _lay_out(self, fill: Callable[[Any], None] | None) -> None:
        """Give an empty file its tables; refuse files of another format and of other programs."""
        if self._is_laid_out() and fill is None:
            return
        with self.transaction():
            # Once more, now that no other process can be at it.
            if self._is_laid_out():
                if fill is not None:
                    raise self.error(f"{self.path} {self.taken}")
                return
            for statement in statements(self.schema):
                self._open.execute(statement)
            self.pragma("user_version", self.format)
            self.pragma("application_id", self.application_id)
            if fill is not None:
                fill(self)

    def _is_laid_out(self) -> bool:
        """Whether the tables are there. Raises if they are another program's or format's."""
        if not self.pragma("schema_version"):
            return False
        if self.pragma("application_id") != self.application_id:
            raise self.error(f"{self.name} {self.path} is a database of another program")
        found = int(self.pragma("user_version"))
        if found != self.format:
            raise self.version_error(other_format(f"{self.name} {self.path}", found, self.format))
        return True


def statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one; a trigger is one."""
    import sqlite3

    one = ""
    for part in script.split(";"):
        one += part + ";"
        if sqlite3.complete_statement(one):
            yield one
            one = ""


def _connect(path: Path, key: str, readonly: bool, busy_seconds: float) -> _Connection:
    if key:
        import apsw  # only encrypted files need it

        flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE
        connection = apsw.Connection(str(path), flags=flags)
        connection.set_busy_timeout(int(1000 * busy_seconds))
        connection.pragma("hexkey", key)
        return connection
    # Python's own driver: two builds of SQLite in one process would lose each other's locks, and
    # the server's database and copies of files go through this one.
    import sqlite3

    link = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rw'}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
    )
    link.create_function("stamp", -1, stamp, deterministic=True)
    return link


Driver = tuple[tuple[type[Exception], ...], Callable[[Any], int]]
"""A driver's errors, and how many rows a statement has changed."""


def _encrypted_driver() -> Driver:
    import apsw

    return (apsw.Error,), lambda cursor: int(cursor.connection.changes())


def _plain_driver() -> Driver:
    import sqlite3

    return (sqlite3.Error,), lambda cursor: int(cursor.rowcount)


def _code(error: Exception) -> int:
    """SQLite's result code, without what extends it."""
    found = getattr(error, "sqlite_errorcode", None) or getattr(error, "result", None) or 0
    return int(found) & 0xFF
