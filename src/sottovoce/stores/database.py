"""The server's database: tables, transactions, and what can go wrong with it.

SQLite by default, for one server process; PostgreSQL where several processes share one federation.
Both run the same statements. A transaction is on the disk when it returns.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from sottovoce.errors import ServiceError, UsageError, other_format
from sottovoce.stores.private import private_database, stamp, unstamp

SCHEMA = 5
"""The format of the tables. A database of another one is refused."""
MOST_ROUNDS = 2**31 - 1
"""Most rounds of a federation: models name rounds in 32 bits."""

_metadata = sa.MetaData()
meta = sa.Table(
    "meta",
    _metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
devices = sa.Table(
    "devices",
    _metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("token_hash", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("public_key", sa.LargeBinary),
    sa.Column("missed", sa.Integer, nullable=False),
    sa.Column("dormant", sa.Boolean, nullable=False),
)
sa.Index("devices_one_key", devices.c.public_key, unique=True)
_enrolled = devices.c.public_key.is_not(None)
sa.Index(  # enrolled devices are counted and listed from it alone
    "devices_by_state",
    devices.c.dormant,
    devices.c.number,
    sqlite_where=_enrolled,
    postgresql_where=_enrolled,
)
shut_out = sa.Table(
    "shut_out",
    _metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
)
places = sa.Table(  # devices that came without an invitation
    "places",
    _metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
)
rounds = sa.Table(
    "rounds",
    _metadata,
    sa.Column("round", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.String(16), nullable=False),  # open, closing, closed, abandoned
    sa.Column("goal", sa.Integer, nullable=False),
    sa.Column("asked", sa.Integer, nullable=False),
    sa.Column("reported", sa.Integer, nullable=False),
    sa.Column("selected", sa.LargeBinary),  # uint32, ascending; dropped when the round is over
    sa.Column("missing", sa.LargeBinary),  # uint32, ascending; there when the round is over
    sa.Column("outcome", sa.String(16)),
    sa.Column("seconds", sa.Float),
    sa.Column("report_key", sa.LargeBinary),  # public; where reports come through a proxy
)
submissions = sa.Table(
    "submissions",
    _metadata,
    sa.Column("round", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("mark", sa.LargeBinary, nullable=False),  # tells this submission from others
    sa.Column("body", sa.LargeBinary),  # dropped when it is part of the model
)
unsummed = sa.Table(  # masked reports that are not in the sum of their round yet
    "unsummed",
    _metadata,
    sa.Column("round", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
sums = sa.Table(  # of the masked reports whose seeds the helper can open
    "sums",
    _metadata,
    sa.Column("round", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("total", sa.LargeBinary, nullable=False),
)
summed_seeds = sa.Table(  # of those that are in a sum; signed by their devices
    "summed_seeds",
    _metadata,
    sa.Column("round", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
)
left_out = sa.Table(  # whose submissions are not in the sum of their round
    "left_out",
    _metadata,
    sa.Column("round", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("reason", sa.String(32), nullable=False),
)
models = sa.Table(
    "models",
    _metadata,
    sa.Column("round", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("items", sa.LargeBinary, nullable=False),  # float32, row by row
    sa.Column("changed", sa.LargeBinary, nullable=False),  # int32: last version that moved a row
    sa.Column("memory", sa.LargeBinary),  # float32: what is kept beside the newest one, unpublished
)
batches = sa.Table(
    "batches",
    _metadata,
    sa.Column("round", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("tier", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("mark", sa.LargeBinary, nullable=False),  # tells this batch from others
    sa.Column("devices", sa.BigInteger, nullable=False),
    sa.Column("parts", sa.BigInteger, nullable=False),
    sa.Column("stored", sa.BigInteger, nullable=False),  # parts that are here
    sa.Column("reports", sa.BigInteger, nullable=False),  # in these parts
)
batch_parts = sa.Table(
    "batch_parts",
    _metadata,
    sa.Column("round", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("tier", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("part", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
refusals = sa.Table(
    "refusals",
    _metadata,
    sa.Column("reason", sa.String(32), primary_key=True),
    sa.Column("count", sa.BigInteger, nullable=False),
)
contacts = sa.Table(  # what an operator knows of a device; times are UTC, to the minute
    "contacts",
    _metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("label", sa.Text, nullable=False, server_default=""),
    sa.Column("enrolled", sa.Text),
    sa.Column("last_contact", sa.Text),
)
round_times = sa.Table(  # UTC, to the second
    "round_times",
    _metadata,
    sa.Column("round", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("opened", sa.Text, nullable=False),
    sa.Column("ended", sa.Text),
)
objections = sa.Table(  # devices that refuse what is published, and say so
    "objections",
    _metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("why", sa.String(32), nullable=False),
)
acts = sa.Table(  # what operators did, in the order in which they did it; no secrets
    "acts",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("how", sa.String(16), nullable=False),
    sa.Column("what", sa.String(32), nullable=False),
    sa.Column("about", sa.Text, nullable=False),  # JSON
    sa.Column("key", sa.String(128), unique=True),  # one click is one act
    sa.Column("outcome", sa.Text, nullable=False),  # JSON
)


# On Flower, gateways report for many devices each.
gateways = sa.Table(  # for which numbers each may answer
    "gateways",
    _metadata,
    sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last", sa.BigInteger, nullable=False),
    sa.Column("node", sa.Text, nullable=False, index=True),
    sa.Column("name", sa.Text, nullable=False),
)
gateway_devices = sa.Table(  # the gateway that answers for a device, and when it last counted
    "gateway_devices",
    _metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("node", sa.Text, nullable=False, index=True),
    sa.Column("round", sa.BigInteger),
    sa.Column("attempt", sa.Integer),
)
gateway_sums = sa.Table(  # masked, of the open round
    "gateway_sums",
    _metadata,
    sa.Column("round", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("devices", sa.BigInteger, nullable=False),
    sa.Column("numbers", sa.LargeBinary, nullable=False),  # uint32: who was asked
    sa.Column("body", sa.LargeBinary, nullable=False),
)


_STAMPED = {
    models.c["items"]: "the model",
    models.c.changed: "the model",
    models.c.memory: "what is kept beside the model",
    submissions.c.body: "a report",
    unsummed.c.body: "a masked report",
    sums.c.total: "the sum of masked reports",
    batch_parts.c.body: "a batch",
    rounds.c.selected: "the list of devices that are asked",
    gateway_sums.c.numbers: "the list of a gateway's devices",
    gateway_sums.c.body: "a gateway's sum",
}
"""Columns whose contents are stamped with their place, and what they hold. A place is the primary
key, of which the round is the first part."""


def stamped(column: sa.Column[bytes], content: bytes, *key: int) -> bytes:
    """A content of this column as it is stored in the row with this key."""
    return stamp(content, str(column), *key)


def genuine(column: sa.Column[bytes], found: bytes, *key: int) -> bytes:
    """What `stamped` stored. Raises where it is damaged."""
    content = unstamp(found, str(column), *key)
    if content is None:
        raise ServiceError(
            f"{_STAMPED[column]} of round {key[0]} is damaged in the database; put the database "
            "back from a copy"
        )
    return content


def of_attempt(
    table: sa.Table, round: int, attempt: int
) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    """Rows of a table that belong to this attempt at a round."""
    return table.c.round == round, table.c.attempt == attempt


class Database:
    """Connections to one database. Any thread may use it."""

    def __init__(self, engine: sa.Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._writes = threading.Lock()

    @classmethod
    def sqlite(cls, path: Path) -> Database:
        """A file that only its owner can read: the reports of an open round are in it."""
        with contextlib.suppress(OSError):  # whatever is wrong, SQLite says when it is opened
            private_database(path)
        engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(path)), connect_args={"timeout": 10}
        )
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return cls(engine, str(path))

    @classmethod
    def at(cls, url: str) -> Database:
        """A PostgreSQL database by its URL: postgresql://user@host/name."""
        try:
            parsed = sa.make_url(url)
        except ArgumentError:
            raise UsageError(
                "the database must be a URL like postgresql://user@host/name"
            ) from None
        if parsed.get_backend_name() != "postgresql":
            raise UsageError(
                f"only PostgreSQL can be named by URL, not {parsed.get_backend_name()}; without "
                "SOTTOVOCE_DATABASE the server keeps its own SQLite file"
            )
        engine = sa.create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,
            # A connection that went dead without a word must not keep the right to coordinate.
            connect_args={
                "connect_timeout": 5,
                "keepalives_idle": 20,
                "keepalives_interval": 5,
                "keepalives_count": 3,
            },
        )
        return cls(engine, parsed.render_as_string(hide_password=True))

    @property
    def shared(self) -> bool:
        """Whether several server processes may use it."""
        return self._engine.dialect.name == "postgresql"

    def create(self) -> None:
        """Make the tables if there are none. Raise if they have another format."""
        with self.writing() as link:
            self.take_turn(link)
            if self._version(link) is None:
                _metadata.create_all(link)
                link.execute(meta.insert().values(key="schema", value=str(SCHEMA)))

    def require(self) -> None:
        """Raise if there are no tables, or tables of another format. Make none."""
        with self.reading() as link:
            version = self._version(link)
        if version is None:
            raise ServiceError(
                f"{self._name} is empty, but the state of this federation was there before; "
                "put it back from a copy, or make a new federation in another folder"
            )

    def _version(self, link: sa.Connection) -> int | None:
        """Return the format of the tables; None if there are none."""
        if not sa.inspect(link).has_table(meta.name):
            return None
        found = link.execute(sa.select(meta.c.value).where(meta.c.key == "schema")).scalar()
        if found not in (None, str(SCHEMA)):
            raise ServiceError(other_format(self._name, found, SCHEMA))
        return None if found is None else int(found)

    def size(self, link: sa.Connection) -> int:
        """Bytes that it takes."""
        asked = "SELECT pg_database_size(current_database())"
        if not self.shared:
            asked = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        return int(link.execute(sa.text(asked)).scalar_one())

    def take_turn(self, link: sa.Connection) -> None:
        """Until the transaction ends, no other process that takes turns goes on. For starts, when
        several processes may find that something is to be made."""
        if self.shared:
            link.execute(sa.text("SELECT pg_advisory_xact_lock(7305)"))

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction that is on the disk on leaving, or, where anything raises, undone."""
        with self._in_words():
            if self.shared:
                with self._engine.begin() as link:
                    yield link
            else:
                with self._writes, self._engine.connect() as link:
                    link = link.execution_options(writes=True)
                    with link.begin():
                        yield link

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Everything read within is as it was at one moment."""
        with self._in_words(), self._engine.connect() as link:
            if self.shared:
                link = link.execution_options(isolation_level="REPEATABLE READ")
            with link.begin():
                yield link

    @contextlib.contextmanager
    def leading(self) -> Iterator[Leader | None]:
        """Within, this process alone coordinates the federation; None where another one does."""
        if not self.shared:
            yield Leader(self, None)
            return
        with self._in_words(), self._engine.connect() as link:
            # A session of its own: the lock goes when the process or the connection does.
            link.detach()
            won = link.execute(sa.text("SELECT pg_try_advisory_lock(7306)")).scalar()
            link.commit()
            try:
                yield Leader(self, link) if won else None
            finally:
                # The server would free it only when it has noticed that the connection is closed.
                if won:
                    with contextlib.suppress(SQLAlchemyError):
                        link.execute(sa.text("SELECT pg_advisory_unlock(7306)"))
                        link.commit()

    def close(self) -> None:
        self._engine.dispose()

    @contextlib.contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            # The driver's text may quote parameters, which hold reports: only its first line.
            lines = str(error.orig).splitlines() or [type(error.orig).__name__]
            raise ServiceError(
                f"the database {self._name} cannot be used: {lines[0]}; nothing was stored"
            ) from None
        except SQLAlchemyError as error:
            raise ServiceError(
                f"the database {self._name} cannot be used: {type(error).__name__}"
            ) from None


class Leader:
    """The right to move rounds on. Writes go through the connection that holds the right, so that a
    process that has lost it without knowing can write nothing."""

    def __init__(self, database: Database, link: sa.Connection | None) -> None:
        self._database = database
        self._link = link

    def reading(self) -> contextlib.AbstractContextManager[sa.Connection]:
        return self._database.reading()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        if self._link is None:
            with self._database.writing() as link:
                yield link
        else:
            with self._database._in_words(), self._link.begin():
                yield self._link


def _prepare_sqlite(connection: object, record: object) -> None:
    # The driver must not begin transactions by itself: `_begin_sqlite` says which kind.
    connection.isolation_level = None  # type: ignore[attr-defined]
    cursor = connection.cursor()  # type: ignore[attr-defined]
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=2000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(link: sa.Connection) -> None:
    writes = link.get_execution_options().get("writes", False)
    link.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
