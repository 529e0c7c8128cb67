"""What a proxy keeps, in one SQLite file: accounts, who has sent in the last rounds, and sealed
reports until they are handed over.

What is on the disk on leaving a method survives a crash. A stored submission has a random place
and no other mark: nothing in its row says whose it is or when it came, and its place decides where
it comes in the batch. That does not bind whoever holds the proxy's own disk: until the batch is
gone, the order in which SQLite filled its pages follows that of arrival, and the mark by which a
replay is known can be matched with a submission by whoever has the accounts' secret too.

A shuffler behind another one gets whole batches, in parts. It keeps them as they came until all are
there and every layer that is its own is off; what was under it is stored as a submission is, some
records at a time.

Of a batch that is over no report remains: deleted rows are written over with zeros, every batch has
a table of its own, which is dropped (SQLite leaves copies of rows in the pages that it rearranges,
so that no page may hold rows of two batches), and the log is emptied soon after.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import MessageError, ServiceError, other_format
from sottovoce.parties.shuffler import new_seed
from sottovoce.stores.file import SQLiteFile, statements
from sottovoce.stores.noted import Left
from sottovoce.wire.refusals import Refused
from sottovoce.wire.sealing import SEALED_BYTES
from sottovoce.wire.shuffled import BatchPart, SealedSubmission

Decision = Literal["accepted", "replay", "second_submission", "late"]
State = Literal["open", "arriving", "whole", "short", "sealed", "over"]

SCHEMA = 2
KEPT_ROUNDS = 2
"""Rounds after which it is forgotten who has sent; until then a replay is known as one."""
_PLACE_BITS = 62
"""Bits of a random place in a batch."""
_ROWS, _PARTS = 256, 4
"""Submissions and parts of a batch that are read or deleted at once."""
_ROW_BYTES = 1 << 16
"""Bytes of records that are stored together."""
_SEEN = "SELECT mark FROM seen WHERE round = ? AND account = ?"
_MARK_BYTES = 16

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS accounts (
    account BLOB PRIMARY KEY, generation INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen (
    round INTEGER, account BLOB, mark BLOB NOT NULL, PRIMARY KEY (round, account)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY, round INTEGER NOT NULL, tier INTEGER NOT NULL, key BLOB NOT NULL,
    devices INTEGER NOT NULL, state TEXT NOT NULL, mark BLOB, seed BLOB, sent INTEGER NOT NULL,
    UNIQUE (round, tier));
CREATE TABLE IF NOT EXISTS arrivals (
    number INTEGER PRIMARY KEY, source BLOB NOT NULL, parts INTEGER NOT NULL,
    stored INTEGER NOT NULL, records INTEGER NOT NULL, opened INTEGER NOT NULL,
    kept INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS refusals (
    reason TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outcomes (
    outcome TEXT, tier INTEGER, devices INTEGER NOT NULL,
    PRIMARY KEY (outcome, tier)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class ShufflerPosition:
    """Where the federation is, as the server said last."""

    round: int = -1
    open: bool = False
    key: bytes = b""
    """Name of the key to which the round's reports are sealed."""


@dataclass(frozen=True, slots=True, repr=False)
class Arrival:
    """How far a batch is that another shuffler hands over."""

    source: bytes
    """The name that the shuffler before has given it."""
    parts: int
    stored: int = 0
    """Parts that are here."""
    records: int = 0
    """In these parts."""
    opened: int = 0
    """Parts whose layer is off."""
    kept: int = 0
    """Records of these that opened, each once."""

    @property
    def whole(self) -> bool:
        return self.stored == self.parts


@dataclass(frozen=True, slots=True, repr=False)
class Held:
    """A tier's batch of one round."""

    number: int
    round: int
    tier: int
    key: bytes
    devices: int
    state: State = "open"
    """Open for more devices; arriving: not all parts are here; whole: they are, and are opened;
    short: too few reports could be opened, and whoever is behind is to be told so; sealed: nothing
    is added, and it is being handed over; over: handed over or dropped."""
    mark: bytes = b""
    """Names a sealed batch to the server."""
    seed: bytes = b""
    """Gives a sealed batch its order."""
    sent: int = 0
    """Parts of a sealed batch that whoever is behind has."""
    arrival: Arrival | None = None
    """Where another shuffler hands it over."""

    def records(self, per_device: int) -> int:
        """That are handed on, of devices that send so many each."""
        return self.devices * per_device if self.arrival is None else self.arrival.kept

    def __repr__(self) -> str:
        return f"<Held round={self.round} tier={self.tier} devices={self.devices} {self.state}>"

    @property
    def table(self) -> str:
        """Where its reports are."""
        return f"reports_{self.number:d}"

    @property
    def parts_table(self) -> str:
        """Where they are as they came from another shuffler."""
        return f"parts_{self.number:d}"


class _ShufflerFile(SQLiteFile):
    name = "the database"
    kind = "proxy's store"
    pragmas = (*SQLiteFile.pragmas, "wal_autocheckpoint=4000", "cache_size=-16000")
    busy_seconds = 10.0


class ShufflerStore:
    """Any thread may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._writer = _ShufflerFile(path, make=True)
        try:
            with self._writer.transaction():
                self._prepare()
            meta = dict(self._writer.rows("SELECT name, value FROM meta"))
            held = self._writer.rows(
                "SELECT number, round, tier, key, devices, state, mark, seed, sent FROM batches"
            )
            arrivals = {
                number: Arrival(*rest)
                for number, *rest in self._writer.rows(
                    "SELECT number, source, parts, stored, records, opened, kept FROM arrivals"
                )
            }
            self._reader = _ShufflerFile(path)  # need not wait until the other has written
        except BaseException:
            self._writer.close()
            raise
        self.position = ShufflerPosition(
            meta.get("round", -1), bool(meta.get("open", False)), meta.get("key", b"")
        )
        self._held = {
            (round, tier): Held(
                number, round, tier, key, devices, state, mark or b"", seed or b"", sent
            )
            for number, round, tier, key, devices, state, mark, seed, sent in held
        }
        for where, one in self._held.items():
            self._held[where] = replace(one, arrival=arrivals.get(one.number))

    def close(self) -> None:
        """When whoever uses it now is done."""
        self._writer.close()
        self._reader.close()

    # --- accounts ---------------------------------------------------------------------------------

    def enrol(self, account: bytes) -> int:
        """The generation of the account's new key; keys of earlier ones are good no more."""
        with self._writing():
            return int(
                self._writer.value(
                    "INSERT INTO accounts VALUES (?, 0) ON CONFLICT (account) "
                    "DO UPDATE SET generation = generation + 1 RETURNING generation",
                    [account],
                )
            )

    def generation(self, account: bytes) -> int | None:
        """Return the generation of the account's key; None if there is no such account."""
        sql = "SELECT generation FROM accounts WHERE account = ?"
        found = self._reader.value(sql, [account])
        return None if found is None else int(found)

    # --- what has left ----------------------------------------------------------------------------

    def is_behind(self, left: Left) -> bool:
        """Whether a batch has left of whose leaving this store knows nothing: the store was set
        back to a copy of itself."""
        # A new shuffler may be started again before it has heard of any round.
        if max(self.position.round, 0) < left.round:
            return True
        for (round, tier), mark in left.marks.items():
            held = self._held.get((round, tier))
            if held is None:
                if round >= self.position.round - KEPT_ROUNDS:
                    return True
            elif held.state != "over" and held.mark != mark:
                return True
        return False

    # --- submissions ------------------------------------------------------------------------------

    def accept(
        self, batch: Sequence[SealedSubmission], counts: Mapping[str, int]
    ) -> list[Decision]:
        """Decide about submissions, in their order, and store those that are accepted."""
        with self._writing() as before:
            decisions = [self._accept(submission) for submission in batch]
            for where, held in self._held.items():
                if before.get(where) is not held:
                    self._writer.write(
                        "UPDATE batches SET devices = ? WHERE number = ?",
                        (held.devices, held.number),
                    )
            self._count(counts)
        return decisions

    def seen(self, submission: SealedSubmission) -> bytes | None:
        """The mark of what this account has sent in this round."""
        found = self._reader.value(_SEEN, [submission.round, submission.account])
        return None if found is None else bytes(found)

    def _accept(self, submission: SealedSubmission) -> Decision:
        now, where = self.position, (submission.round, submission.tier)
        known = self._writer.value(_SEEN, [submission.round, submission.account])
        if submission.round == now.round and known == submission.mark:
            return "replay"  # also where its batch has gone, and the round with it
        if not now.open or submission.round != now.round or submission.key != now.key:
            return "late"
        run = self._writer.write
        if known is not None:
            return "second_submission"
        held = self._held.get(where)
        if held is None:
            held = self._begin(*where, submission.key)
        elif held.state != "open" or held.key != submission.key:
            return "late"
        run("INSERT INTO seen VALUES (?, ?, ?)",
            (submission.round, submission.account, submission.mark))  # fmt: skip
        self._put(held, submission.reports)
        self._held[where] = replace(held, devices=held.devices + 1)
        return "accepted"

    def _begin(
        self, round: int, tier: int, key: bytes, devices: int = 0, state: State = "open"
    ) -> Held:
        taken = {held.number for held in self._held.values()}
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        held = Held(number, round, tier, key, devices, state)
        self._writer.write(
            "INSERT INTO batches (number, round, tier, key, devices, state, sent) "
            "VALUES (?, ?, ?, ?, ?, ?, 0)",
            (number, round, tier, key, devices, state),
        )
        places = "(place INTEGER PRIMARY KEY, body BLOB NOT NULL)"
        self._writer.write(f"CREATE TABLE {held.table} {places}")
        return held

    def _put(self, held: Held, body: bytes | memoryview) -> None:
        while not self._writer.write(
            f"INSERT OR IGNORE INTO {held.table} VALUES (?, ?)",
            (secrets.randbits(_PLACE_BITS), body),
        ):
            pass  # somebody has that place

    def _count(self, counts: Mapping[str, int]) -> None:
        for reason, count in counts.items():
            self._writer.write(
                "INSERT INTO refusals VALUES (?, ?) "
                "ON CONFLICT (reason) DO UPDATE SET count = count + excluded.count",
                (reason, count),
            )

    # --- batches of the shuffler before -----------------------------------------------------------

    def take(self, part: BatchPart, least: int, most: int) -> bool:
        """Store a part of the open round, once; whether its batch is whole now. Raises, and leaves
        everything as it was, where it does not count. A tier has one batch in a round, of so many
        records, and no other after its first part or its announcement."""
        with self._writing():
            now, where = self.position, (part.round, part.tier)
            held = self._held.get(where)
            if held is not None and held.state != "arriving":
                came = held.arrival
                if came is not None and came.whole and came.source == part.mark:
                    raise Refused("replay", "this batch is here already")
                if part.round == now.round:
                    raise Refused("second_submission", "another batch of this tier is here already")
            if part.round < now.round:
                raise Refused("late", f"round {part.round} is over; the batch did not count")
            if part.round > now.round or not now.open:
                raise Refused("early", f"round {part.round} has not been opened")
            if part.key != now.key:
                raise Refused("wrong_key", "the reports are sealed to another key than the round's")
            arrival = None if held is None else held.arrival
            if held is not None and (arrival is None or arrival.source != part.mark):
                raise Refused("second_submission", "another batch of this tier was announced here")
            if held is None:
                held = self._begin(*where, part.key, part.devices, "arriving")
                body = "(part INTEGER PRIMARY KEY, body BLOB NOT NULL)"
                self._writer.write(f"CREATE TABLE {held.parts_table} {body}")
                arrival = self._note(held, Arrival(part.mark, part.parts)).arrival
            if part.says_dropped:
                self._set_state(held, "short")
                return True
            if arrival is None or (held.devices, arrival.parts) != (part.devices, part.parts):
                raise Refused("malformed", "the part contradicts those before it")
            if part.announces:
                return False
            if not self._writer.write(
                f"INSERT OR IGNORE INTO {held.parts_table} VALUES (?, ?)", (part.part, part.body)
            ):
                raise Refused("replay", "this part is here already")
            stored, records = arrival.stored + 1, arrival.records + part.reports
            arrival = replace(arrival, stored=stored, records=records)
            if records > most or (arrival.whole and records < least):
                raise Refused(
                    "malformed", f"a batch of {part.devices:,} devices has another size than this"
                )
            self._note(held, arrival)
            if arrival.whole:
                self._set_state(held, "whole")
            return arrival.whole

    def parts(self, held: Held) -> Iterator[bytes]:
        """The parts of a whole batch as they came, by number, one at a time."""
        count = 0 if held.arrival is None else held.arrival.parts
        with self._lock:  # a batch is known to be whole a moment before its last part is committed
            pass
        for number in range(count):
            sql = f"SELECT body FROM {held.parts_table} WHERE part = ?"
            yield bytes(self._reader.value(sql, [number]))

    def put_opened(self, held: Held, body: bytes, size: int, left_out: Mapping[str, int]) -> Held:
        """Store what was in the next part of a whole batch, records of `size` bytes, and count what
        was left out of it."""
        with self._writing():
            held = self._held[held.round, held.tier]
            arrival = held.arrival
            if held.state != "whole" or arrival is None:
                return held  # its round is over
            step = max(1, _ROW_BYTES // size) * size
            for at in range(0, len(body), step):
                self._put(held, body[at : at + step])
            self._count(left_out)
            kept = arrival.kept + len(body) // size
            return self._note(held, replace(arrival, opened=arrival.opened + 1, kept=kept))

    def _note(self, held: Held, arrival: Arrival) -> Held:
        self._writer.write(
            "INSERT OR REPLACE INTO arrivals VALUES (?, ?, ?, ?, ?, ?, ?)",
            (held.number, arrival.source, arrival.parts, arrival.stored, arrival.records,
             arrival.opened, arrival.kept),
        )  # fmt: skip
        held = self._held[held.round, held.tier] = replace(held, arrival=arrival)
        return held

    def _set_state(self, held: Held, state: State) -> None:
        self._writer.write("UPDATE batches SET state = ? WHERE number = ?", (state, held.number))
        where = held.round, held.tier
        self._held[where] = replace(self._held[where], state=state)

    def _drop(self, held: Held) -> None:
        """As if it had never been."""
        for table in (held.table, held.parts_table):
            self._writer.write(f"DROP TABLE IF EXISTS {table}")
        for table in ("batches", "arrivals"):
            self._writer.write(f"DELETE FROM {table} WHERE number = ?", (held.number,))
        del self._held[held.round, held.tier]

    def shorten(self, held: Held) -> None:
        """Note that too few reports of a whole batch could be opened for it to go on."""
        with self._writing():
            if self._held[held.round, held.tier].state == "whole":
                self._set_state(held, "short")

    # --- batches ----------------------------------------------------------------------------------

    def held(self) -> list[Held]:
        """All batches that are not over, by round and tier."""
        found = [held for held in list(self._held.values()) if held.state != "over"]
        return sorted(found, key=lambda held: (held.round, held.tier))

    def gone(self, round: int, tier: int) -> bool:
        """Whether a tier takes nothing more in this round."""
        held = self._held.get((round, tier))
        return held is not None and held.state != "open"

    def move(self, position: ShufflerPosition, *, sealed: bool = False) -> list[Held]:
        """Follow the server. What is held for an earlier round and was not sealed is dropped, or
        all of it with `sealed`; returns it. Who has sent is forgotten after a few rounds. Raises,
        and stays, where a round would get another key: reports sealed to different keys could be
        told apart."""
        with self._writing():
            now = self.position
            if position.round == now.round and now.key:
                if position.key not in (now.key, b""):
                    raise MessageError(
                        f"the server shows another key for round {now.round} than before; nothing "
                        "that is sealed to it is taken"
                    )
                position = replace(position, key=now.key)
            before = [h for h in self.held() if h.round < position.round]
            dropped = [h for h in before if sealed or h.state != "sealed"]
            self._put_position(position)
            last = position.round - KEPT_ROUNDS
            self._writer.write("DELETE FROM seen WHERE round < ?", (last,))
            for held in dropped:
                self._end(held, "dropped")
            return dropped

    def go_on_with(self, round: int) -> None:
        """For a copy without reports: nothing is taken for the rounds before this one."""
        with self._writing():
            if self._held or round <= self.position.round:
                raise ServiceError(f"{self._path} is no copy that could go on with round {round}")
            self._put_position(ShufflerPosition(round))

    def _put_position(self, position: ShufflerPosition) -> None:
        self._writer.write_many(
            "INSERT INTO meta VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            [("round", position.round), ("open", position.open), ("key", position.key)],
        )
        self.position = position

    def seal(self, held: Held) -> Held:
        """Add nothing more to a batch, and settle its order."""
        with self._writing():
            held = self._held[held.round, held.tier]
            if held.state not in ("open", "whole"):
                return held
            mark = secrets.token_bytes(_MARK_BYTES)
            sealed = replace(held, state="sealed", mark=mark, seed=new_seed())
            self._writer.write(
                "UPDATE batches SET state = 'sealed', mark = ?, seed = ? WHERE number = ?",
                (sealed.mark, sealed.seed, sealed.number),
            )
            self._held[held.round, held.tier] = sealed
            return sealed

    def sent(self, held: Held, parts: int) -> Held:
        """Note how many parts of a sealed batch the server has. The batch may be over by now."""
        with self._writing():
            now = replace(self._held[held.round, held.tier], sent=parts)
            self._writer.write("UPDATE batches SET sent = ? WHERE number = ?", (parts, now.number))
            self._held[held.round, held.tier] = now
            return now

    def end(self, held: Held, outcome: Literal["handed_over", "dropped"]) -> None:
        """A batch is over. Its order is forgotten at once, its reports by `forget`."""
        with self._writing():
            self._end(self._held[held.round, held.tier], outcome)

    def _end(self, held: Held, outcome: str) -> None:
        if held.state == "over":
            return
        self._writer.write(
            "UPDATE batches SET state = 'over', mark = NULL, seed = NULL WHERE number = ?",
            (held.number,),
        )
        self._writer.write(
            "INSERT INTO outcomes VALUES (?, ?, ?) "
            "ON CONFLICT (outcome, tier) DO UPDATE SET devices = devices + excluded.devices",
            (outcome, held.tier, held.devices),
        )
        self._held[held.round, held.tier] = replace(held, state="over", mark=b"", seed=b"")

    def forget(self) -> bool:
        """Delete some of what is over, so that others need not wait long; whether there is more."""
        for held in sorted(self._held.values(), key=lambda held: held.number):
            if held.state not in ("sealed", "over"):
                continue
            with self._writing():
                if held.arrival is not None and self._delete_some(held.parts_table, "part", _PARTS):
                    return True
                if held.state == "sealed":
                    continue
                if self._delete_some(held.table, "place", _ROWS):
                    return True
                if held.round < self.position.round - KEPT_ROUNDS:
                    self._drop(held)
        return False

    def _delete_some(self, table: str, column: str, count: int) -> bool:
        """Whether anything was there."""
        if not self._writer.row("SELECT 1 FROM sqlite_master WHERE name = ?", [table]):
            return False
        some = f"SELECT {column} FROM {table} LIMIT ?"
        if self._writer.write(f"DELETE FROM {table} WHERE {column} IN ({some})", (count,)):
            return True
        self._writer.write(f"DROP TABLE {table}")
        return False

    def wipe_log(self) -> bool:
        """Take what was deleted out of SQLite's log as well; False where somebody reads or writes
        just now, and it is still there."""
        with _ShufflerFile(self._path) as file:
            file.pragma("busy_timeout", 200)
            return file.cut_log()

    def rows(self, held: Held, size: int = SEALED_BYTES) -> Iterator[NDArray[np.uint8]]:
        """All sealed reports of a batch, `size` bytes each, some at a time, by place: in a random
        order of devices."""
        with _ShufflerFile(self._path) as file, file.snapshot():
            place = -1
            sql = f"SELECT place, body FROM {held.table} WHERE place > ? ORDER BY place LIMIT ?"
            while some := file.rows(sql, [place, _ROWS]):
                place = some[-1][0]
                joined = b"".join(body for _, body in some)
                yield np.frombuffer(joined, np.uint8).reshape(-1, size)

    # --- what the operator sees -------------------------------------------------------------------

    def refused(self) -> dict[str, int]:
        return dict(self._reader.rows("SELECT reason, count FROM refusals"))

    def outcomes(self) -> list[tuple[str, int, int]]:
        """Outcome, tier, devices."""
        return self._reader.rows(
            "SELECT outcome, tier, devices FROM outcomes ORDER BY outcome, tier"
        )

    def accounts(self) -> int:
        return int(self._reader.rows("SELECT count(*) FROM accounts")[0][0])

    # --- helpers ----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if self._writer.value("SELECT count(*) FROM sqlite_master WHERE name = 'meta'"):
            found = self._writer.value("SELECT value FROM meta WHERE name = 'schema'")
            if found not in (None, SCHEMA):
                raise ServiceError(other_format(self._path, found, SCHEMA))
        for statement in statements(_TABLES):
            self._writer.write(statement)
        self._writer.write("INSERT OR IGNORE INTO meta VALUES ('schema', ?)", [SCHEMA])

    @contextlib.contextmanager
    def _writing(self) -> Iterator[dict[tuple[int, int], Held]]:
        """Within, a transaction; what was held before it, which is so again where it fails."""
        with self._lock:
            held, position = dict(self._held), self.position
            try:
                with self._writer.transaction():
                    yield held
            except BaseException:
                self._held, self.position = held, position
                raise


def copy_accounts(source: sqlite3.Connection, target: Path) -> None:
    """All that a proxy keeps for long, of one moment, to a database that is there and empty: its
    accounts and counts, and the round it has reached. No report, and nothing of who has sent."""
    source.execute("ATTACH ? AS copy", (str(target),))
    source.execute("BEGIN")
    for statement in _TABLES.split(";")[:-1]:
        source.execute(statement.replace("EXISTS ", "EXISTS copy."))
    for table in ("meta", "accounts", "refusals", "outcomes"):
        source.execute(f"INSERT INTO copy.{table} SELECT * FROM main.{table}")
    source.execute("UPDATE copy.meta SET value = 0 WHERE name = 'open'")
    source.execute("UPDATE copy.meta SET value = x'' WHERE name = 'key'")
    source.execute("COMMIT")
    source.execute("DETACH copy")
