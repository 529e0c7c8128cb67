"""What a data owner keeps on its disk: `owner.db` (SQLite) in a folder, and a lock beside it.

What a transaction has committed survives a crash; what it has not is gone as if it had never been.
A user who is forgotten is gone from the files as well once `erase_traces` returns; where a crash
comes before it, opening the store does it.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.drift.aggregated import Learnt
from sottovoce.algorithms.drift.blocks import EndedBlock
from sottovoce.algorithms.drift.messages import Row
from sottovoce.algorithms.drift.system import DRIFTConfig, Saved, Stream
from sottovoce.errors import ConfigError, StoreError, other_format
from sottovoce.rng import SECRET_BYTES, Streams, streams_of
from sottovoce.stores.file import SQLiteFile, statements
from sottovoce.stores.noted import LastAnswer, note_of
from sottovoce.stores.private import private_file, private_folder, stamp, sync_folder, unstamp

# Blocks as a data owner's store holds them: packed, and stamped for their place.

DRAWN = 1 << 31
"""Mark next to an item's or a user's number: the item was drawn for the user and not touched.
Numbers are smaller."""


def packed(
    negatives: Sequence[int], positives: Sequence[int], table: str, *key: int
) -> tuple[bytes, bytes]:
    """The two fields of the row with this key."""
    fields = [struct.pack(f"<{len(items)}I", *items) for items in (negatives, positives)]
    return stamp(fields[0], table, 0, *key), stamp(fields[1], table, 1, *key)


def unpacked(
    negatives: bytes, positives: bytes, table: str, *key: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What `packed` was given. Raises where it is damaged."""
    fields = unstamp(negatives, table, 0, *key), unstamp(positives, table, 1, *key)
    if fields[0] is None or fields[1] is None:
        raise StoreError("the owner's store is damaged; put back a copy of it")
    return _numbers(fields[0]), _numbers(fields[1])


def _block(negatives: Sequence[int], positives: tuple[int, ...]) -> EndedBlock:
    """From its two fields."""
    touched = tuple(item for item in negatives if item < DRAWN)
    return EndedBlock(touched, positives, tuple(n - DRAWN for n in negatives if n >= DRAWN))


def _numbers(content: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(content) // 4}I", content)


# The tables of a data owner that sends sums over people (`release = "aggregated"`): vectors of
# users, sums that wait for more people, and rows that have left. They are part of `owner.db`.

TABLES = """
CREATE TABLE vectors (user INTEGER PRIMARY KEY, row BLOB NOT NULL);
CREATE TABLE sums (item INTEGER PRIMARY KEY, row BLOB NOT NULL, people BLOB NOT NULL);
CREATE TABLE sent (item INTEGER PRIMARY KEY, row BLOB NOT NULL);
"""


@dataclass(frozen=True, slots=True, repr=False)
class KeptSums:
    """All that the tables hold. Private."""

    learnt: Learnt
    sent: dict[int, Row]
    """By item: what has left and is not known to be counted."""

    def __repr__(self) -> str:
        return "<KeptSums, redacted>"


class SumTables:
    """Writes within a transaction of the store."""

    def __init__(self, file: SQLiteFile) -> None:
        self._file = file

    def __repr__(self) -> str:
        return "<SumTables, redacted>"

    def load(self, size: int) -> KeptSums:
        """Raises where a row has not `size` numbers."""
        learnt = Learnt()
        for user, row in self._file.rows("SELECT user, row FROM vectors"):
            learnt.vectors[user] = _row(row, "<f4", size, "vectors", user).astype(np.float32)
        for item, row, people in self._file.rows("SELECT item, row, people FROM sums"):
            learnt.waiting[item] = _row(row, "<f8", size, "sums", item).astype(np.float64)
            numbers = np.frombuffer(_genuine(people, "people", item), "<u4").tolist()
            if touched := frozenset(user for user in numbers if user < DRAWN):
                learnt.people[item] = touched
            if drew := {user - DRAWN for user in numbers if user >= DRAWN}:
                learnt.drew[item] = drew
        sent = self._file.rows("SELECT item, row FROM sent")
        return KeptSums(
            learnt,
            {item: _row(row, "<f4", size, "sent", item).astype(np.float32) for item, row in sent},
        )

    def put_vectors(self, vectors: Mapping[int, Row], users: Iterable[int]) -> None:
        """Store the vectors of these users."""
        rows = [
            (user, stamp(vectors[user].astype("<f4").tobytes(), "vectors", user)) for user in users
        ]
        self._file.write_many("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)

    def drop_vector(self, user: int) -> None:
        self._file.write_many("DELETE FROM vectors WHERE user = ?", [(user,)])

    def put_sums(self, learnt: Learnt) -> None:
        """All that wait, in the place of those that waited."""
        self._file.write("DELETE FROM sums")
        rows = [
            (
                item,
                stamp(row.astype("<f8").tobytes(), "sums", item),
                stamp(_sum_numbers(_behind(learnt, item)), "people", item),
            )
            for item, row in learnt.waiting.items()
        ]
        self._file.write_many("INSERT INTO sums VALUES (?, ?, ?)", rows)

    def put_sent(self, sent: Mapping[int, Row]) -> None:
        """All that have left, in the place of those before."""
        self._file.write("DELETE FROM sent")
        rows = [
            (item, stamp(row.astype("<f4").tobytes(), "sent", item)) for item, row in sent.items()
        ]
        self._file.write_many("INSERT INTO sent VALUES (?, ?)", rows)


def _behind(learnt: Learnt, item: int) -> Iterator[int]:
    """Everybody who is in the sum that waits."""
    yield from learnt.people.get(item, ())
    yield from (user | DRAWN for user in learnt.drew.get(item, ()))


def _sum_numbers(people: Iterable[int]) -> bytes:
    return np.array(sorted(people), dtype="<u4").tobytes()


def _row(stamped: bytes, kind: str, size: int, table: str, key: int) -> NDArray[Any]:
    found: NDArray[Any] = np.frombuffer(_genuine(stamped, table, key), kind)
    if len(found) != size or not np.isfinite(found).all():
        raise StoreError("the owner's store is damaged; put back a copy of it")
    return found


def _genuine(stamped: bytes, table: str, key: int) -> bytes:
    """What was stamped for this place. Raises where it is damaged."""
    content = unstamp(stamped, table, key)
    if content is None:
        raise StoreError("the owner's store is damaged; put back a copy of it")
    return content


DATABASE = "owner.db"
SCHEMAS = {"printed": 3, "aggregated": 5}
NONE = -1
"""In the place of a round that has not been."""

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE items (item INTEGER PRIMARY KEY);
CREATE TABLE users (
    user INTEGER PRIMARY KEY, sequence INTEGER NOT NULL, clock INTEGER, public BLOB NOT NULL);
CREATE TABLE parts (
    user INTEGER, part INTEGER, negatives BLOB NOT NULL, positives BLOB NOT NULL,
    PRIMARY KEY (user, part)) WITHOUT ROWID;
CREATE TABLE blocks (
    user INTEGER, place INTEGER, negatives BLOB NOT NULL, positives BLOB NOT NULL,
    PRIMARY KEY (user, place)) WITHOUT ROWID;
CREATE TABLE counts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
_TOUCHED = """
CREATE TABLE touched (user INTEGER, item INTEGER, PRIMARY KEY (user, item)) WITHOUT ROWID;
"""
"""For an owner that draws negatives, which must not be what a user has touched. Its secret is in
`meta`."""
# An open block is stored in parts, each appended once, so that a long one is not written over and
# over. Blocks have ascending places; those before the place `asked_until` have been asked for.


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """What does not change while an owner is in a federation."""

    number: int
    name: str
    federation: str
    issuer: bytes
    settings: DRIFTConfig
    public: bytes
    """The owner's long-term key."""


@dataclass(frozen=True, slots=True, repr=False)
class Kept:
    """All that an owner's store holds of its items and users. Private."""

    items: frozenset[int]
    sequences: dict[int, int]
    """By user: the last number of hers."""
    publics: dict[int, bytes]
    """By user: her long-term key."""
    streams: dict[int, Stream]
    saved: list[Saved]
    asked: list[Saved]
    asked_round: int
    flushed_round: int
    last_round: int
    """The newest that the orchestrator asked in."""
    counts: Counter[str]
    draws: Streams | None
    """What the owner draws negatives from; None where it draws none."""
    touched: dict[int, set[int]]
    """By user: what she has touched, where the owner draws what she has not."""

    def __repr__(self) -> str:
        return "<Kept, redacted>"


class OwnerStore(SQLiteFile):
    """One connection, of the one process that may have it."""

    name = "the data owner's store"
    kind = "data owner's store"
    lock = "owner.lock"
    pragmas = (*SQLiteFile.pragmas, "wal_autocheckpoint=4000", "cache_size=-16000")

    def __init__(self, folder: Path, lock: IO[bytes]) -> None:
        """With the lock of that folder, which is given back by `close`."""
        self._next_place = self._next_part = 0
        self.sums = SumTables(self)
        """For an owner that sends sums over people."""
        self.unclean = False
        """Whether something was deleted whose traces may still be in the files."""
        super().__init__(folder / DATABASE, lock=lock)
        try:
            self.facts = self._read_facts()
            if self._value("unclean"):
                self.unclean = True
                self.erase_traces()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return "<OwnerStore, redacted>"

    @classmethod
    def create(
        cls, folder: Path, facts: OwnerFacts, items: Iterable[int], draws: int | None = None
    ) -> OwnerStore:
        """A new owner's store; it is there whole, or not at all. In a trial `draws` is the root of
        the negatives that it draws; elsewhere the operating system makes one."""
        try:
            private_folder(folder)
        except OSError as error:
            raise StoreError(f"no data owner can be made in {folder}: {error.strerror}") from None
        lock = cls.take_lock(folder)
        try:
            if (folder / DATABASE).exists():
                raise StoreError(f"there is a data owner in {folder} already")
            _write_new(folder, facts, items, draws)
        except BaseException:
            lock.close()
            raise
        return cls(folder, lock)

    @classmethod
    def open(cls, folder: Path) -> OwnerStore:
        """A store that is there. Raises if another process has it."""
        if not (folder / DATABASE).is_file():
            raise StoreError(f"there is no data owner in {folder}")
        return cls(folder, cls.take_lock(folder))

    # --- reading ----------------------------------------------------------------------------------

    def load(self) -> Kept:
        users = self.rows("SELECT user, sequence, clock, public FROM users")
        opened: dict[int, tuple[list[int], list[int]]] = {
            user: ([], []) for user, _, clock, _ in users if clock is not None
        }
        self._next_part = 0
        parts = self.rows("SELECT * FROM parts ORDER BY user, part")
        for user, part, negatives, positives in parts:
            for more, into in zip(
                unpacked(negatives, positives, "parts", user, part), opened[user], strict=True
            ):
                into.extend(more)
            self._next_part = max(self._next_part, part + 1)
        streams = {
            user: Stream(clock, *map(tuple, opened[user]))
            for user, _, clock, _ in users
            if clock is not None
        }
        until = self._value("asked_until")
        # By user, then by place, as an update goes; what waits is in the order of places.
        rows = self.rows("SELECT * FROM blocks ORDER BY user, place")
        blocks = [
            (place, (user, _block(*unpacked(negatives, positives, "blocks", user, place))))
            for user, place, negatives, positives in rows
        ]
        self._next_place = max([until, *(place + 1 for place, _ in blocks)])
        waiting = sorted(((p, b) for p, b in blocks if p >= until), key=_place_of)
        return Kept(
            frozenset(item for (item,) in self.rows("SELECT item FROM items")),
            {user: sequence for user, sequence, *_ in users},
            {user: public for user, *_, public in users},
            streams,
            [block for _, block in waiting],
            [block for place, block in blocks if place < until],
            self._value("asked_round"),
            self._value("flushed_round"),
            self._value("last_round"),
            Counter(dict(self.rows("SELECT name, value FROM counts"))),
            *self._drawing(),
        )

    def _drawing(self) -> tuple[Streams | None, dict[int, set[int]]]:
        """What negatives are drawn from, and who has touched what."""
        if not self.facts.settings.draws:
            return None, {}
        root = self.value("SELECT value FROM meta WHERE name = 'draws'")
        touched: dict[int, set[int]] = {}
        for user, item in self.rows("SELECT user, item FROM touched"):
            touched.setdefault(user, set()).add(item)
        return streams_of(int.from_bytes(root, "little")), touched

    # --- writing, within a transaction ------------------------------------------------------------

    def put_users(self, users: Sequence[tuple[int, int, int | None, bytes]]) -> None:
        """Each with her last sequence number, the time of her last event in an open stream, and her
        long-term key."""
        self.write_many("INSERT OR REPLACE INTO users VALUES (?, ?, ?, ?)", users)

    def add_parts(self, parts: Sequence[tuple[int, Sequence[int], Sequence[int]]]) -> None:
        """More negatives and positives of users' open blocks."""
        rows = [
            (user, number, *packed(negatives, positives, "parts", user, number))
            for number, (user, negatives, positives) in enumerate(parts, self._next_part)
        ]
        self._next_part += len(rows)
        self.write_many("INSERT INTO parts VALUES (?, ?, ?, ?)", rows)

    def drop_parts(self, users: Iterable[int]) -> None:
        """Their open blocks are over."""
        self.write_many("DELETE FROM parts WHERE user = ?", [(user,) for user in users])

    def end_streams(self) -> None:
        """All of them."""
        self.write("DELETE FROM parts")
        self.write("UPDATE users SET clock = NULL WHERE clock IS NOT NULL")

    def add_blocks(self, blocks: Sequence[Saved]) -> None:
        rows = [
            (user, place, *packed(_lower(block), block.positives, "blocks", user, place))
            for place, (user, block) in enumerate(blocks, self._next_place)
        ]
        self._next_place += len(rows)
        self.write_many("INSERT INTO blocks VALUES (?, ?, ?, ?)", rows)

    def add_touched(self, user: int, items: Iterable[int]) -> None:
        """What she has touched; for an owner that draws what she has not."""
        self.write_many("INSERT INTO touched VALUES (?, ?)", [(user, item) for item in items])

    def ask(self, round: int) -> None:
        """All blocks there are were asked for in this round."""
        self._set(asked_round=round, asked_until=self._next_place)

    def settle(self, accepted: bool) -> None:
        """The blocks that were asked for are done with, or wait again."""
        if accepted:
            self.write("DELETE FROM blocks WHERE place < ?", (self._value("asked_until"),))
        self._set(asked_round=NONE, asked_until=0)

    def answered(self, round: int, mark: bytes) -> None:
        """The blocks that were asked for are in sums that leave in this round, in an answer with
        this mark."""
        self.write("DELETE FROM blocks WHERE place < ?", (self._value("asked_until"),))
        self._set(asked_until=0, answered_round=round, answered_mark=mark)

    def answered_last(self) -> tuple[int, bytes]:
        """The last round in which sums have left, and the mark of the answer."""
        mark = self.value("SELECT value FROM meta WHERE name = 'answered_mark'")
        return self._value("answered_round"), bytes(mark)

    def last_answer(self) -> LastAnswer | None:
        """The note of the last answer, which all copies of this store find; None in a trial."""
        secret = bytes(self.value("SELECT value FROM meta WHERE name = 'note_secret'"))
        if not secret:
            return None
        return LastAnswer(note_of(self.path.parent, secret, b"sottovoce owner"))

    def flushed(self, round: int) -> None:
        self._set(flushed_round=round)

    def reached(self, round: int) -> None:
        self._set(last_round=round)

    def forget(self, user: int) -> None:
        """To be followed by `erase_traces` when the transaction is over."""
        drawing = ("touched",) if self.facts.settings.draws else ()
        for table in ("users", "parts", "blocks", *drawing):
            self.write(f"DELETE FROM {table} WHERE user = ?", (user,))
        self._set(unclean=1)
        self.unclean = True

    def add_items(self, items: Iterable[int]) -> None:
        self.write_many("INSERT OR IGNORE INTO items VALUES (?)", [(item,) for item in items])

    def withdraw_items(
        self,
        items: Iterable[int],
        streams: Mapping[int, Stream],
        asked: Sequence[Saved],
        saved: Sequence[Saved],
    ) -> None:
        """Items go; these are the streams and blocks without them."""
        self.write_many("DELETE FROM items WHERE item = ?", [(item,) for item in items])
        if self.facts.settings.draws:
            gone = [(item,) for item in items]
            self.write_many("DELETE FROM touched WHERE item = ?", gone)
        self.write("DELETE FROM parts")
        self.write("DELETE FROM blocks")
        self.add_parts([(u, s.negatives, s.positives) for u, s in streams.items()])
        self.add_blocks(asked)
        self._set(asked_until=self._next_place)
        self.add_blocks(saved)

    def add_counts(self, counts: Mapping[str, int]) -> None:
        self.write_many(
            "INSERT INTO counts VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
            list(counts.items()),
        )

    # --- erasing ----------------------------------------------------------------------------------

    def erase_traces(self) -> bool:
        """No byte of what was deleted remains in the files."""
        if not super().erase_traces():
            raise StoreError(
                f"{self.path} is being read by another program; what was deleted stays in its log "
                "until that is closed"
            )
        self._set(unclean=0)
        self.unclean = False
        return True

    # --- helpers ----------------------------------------------------------------------------------

    def _read_facts(self) -> OwnerFacts:
        meta = dict(self.rows("SELECT name, value FROM meta"))
        schema = meta.get("schema")
        if schema not in SCHEMAS.values():
            raise StoreError(other_format(self.path, schema, *SCHEMAS.values()))
        try:
            settings = config.build(DRIFTConfig, json.loads(meta["settings"]), "settings")
            if schema != SCHEMAS[settings.release]:
                raise ValueError
            return OwnerFacts(
                int(meta["number"]),
                str(meta["name"]),
                str(meta["federation"]),
                bytes(meta["issuer"]),
                settings,
                bytes(meta["public"]),
            )
        except (KeyError, ValueError, TypeError, ConfigError):
            raise StoreError(f"{self.path} is damaged; put back a copy of it") from None

    def _value(self, name: str) -> int:
        return int(self.value("SELECT value FROM meta WHERE name = ?", [name]))

    def _set(self, **values: int | bytes) -> None:
        rows = [(value, name) for name, value in values.items()]
        self.write_many("UPDATE meta SET value = ? WHERE name = ?", rows)


def _write_new(folder: Path, facts: OwnerFacts, items: Iterable[int], draws: int | None) -> None:
    table = asdict(facts)
    table["settings"] = json.dumps(facts.settings.to_table())
    meta: dict[str, Any] = {
        **table,
        **{"schema": SCHEMAS[facts.settings.release], "unclean": 0},
        **{"asked_round": NONE, "asked_until": 0, "flushed_round": NONE},
        **{"last_round": NONE, "answered_round": NONE, "answered_mark": b""},
        # A trial repeats what was, and leaves nothing outside its folder.
        "note_secret": secrets.token_bytes(16) if draws is None else b"",
    }
    tables = _TABLES + (TABLES if facts.settings.release == "aggregated" else "")
    if facts.settings.draws:
        tables += _TOUCHED
        if draws is None:
            draws = secrets.randbits(8 * SECRET_BYTES)
        meta["draws"] = draws.to_bytes(SECRET_BYTES, "little")
    partial = private_file(folder / f".{DATABASE}-{secrets.token_hex(4)}")
    try:
        with SQLiteFile(partial) as file, file.transaction():
            for statement in statements(tables):
                file.write(statement)
            file.write_many("INSERT INTO meta VALUES (?, ?)", meta.items())
            file.write_many("INSERT INTO items VALUES (?)", [(i,) for i in sorted(set(items))])
        partial.rename(folder / DATABASE)
        sync_folder(folder)
    except OSError as error:
        raise StoreError(f"no data owner could be made in {folder}: {error}") from None
    finally:
        for left in folder.glob(f"{partial.name}*"):
            left.unlink(missing_ok=True)


def _lower(block: EndedBlock) -> list[int]:
    return [*block.negatives, *(item | DRAWN for item in block.drawn)]


def _place_of(placed: tuple[int, Saved]) -> int:
    return placed[0]
