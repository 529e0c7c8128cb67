"""What a proxy keeps, in one SQLite file: accounts, who has sent in the last rounds, and sealed
reports until they are handed over.

What is on the disk on leaving a method survives a crash. A stored submission has a random place
and no other mark: nothing in its row says whose it is or when it came, and its place decides where
it comes in the batch. That does not bind whoever holds the proxy's own disk: until the batch is
gone, the order in which SQLite filled its pages follows that of arrival, and the mark by which a
replay is known can be matched with a submission by whoever has the accounts' secret too.

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

from sottovoce.errors import MessageError, ServiceError
from sottovoce.parties.shuffler import new_seed
from sottovoce.stores.file import SQLiteFile, statements
from sottovoce.wire.sealing import SEALED_BYTES
from sottovoce.wire.shuffled import SealedSubmission

Decision = Literal["accepted", "replay", "second_submission", "late"]
State = Literal["open", "sealed", "over"]

SCHEMA = 2
KEPT_ROUNDS = 2
"""Rounds after which it is forgotten who has sent; until then a replay is known as one."""
_PLACE_BITS = 62
"""Of a random place in a batch."""
_ROWS = 256
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
class Held:
    """A tier's batch of one round."""

    number: int
    round: int
    tier: int
    key: bytes
    devices: int
    state: State = "open"
    """Open for more; sealed: nothing is added, and it is being handed over; over: handed over or
    dropped."""
    mark: bytes = b""
    """Names a sealed batch to the server."""
    seed: bytes = b""
    """Gives a sealed batch its order."""
    sent: int = 0
    """Parts of a sealed batch that the server has."""

    def __repr__(self) -> str:
        return f"<Held round={self.round} tier={self.tier} devices={self.devices} {self.state}>"

    @property
    def table(self) -> str:
        """Where its reports are."""
        return f"reports_{self.number:d}"


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
        """Of the account's key; None where there is no such account."""
        sql = "SELECT generation FROM accounts WHERE account = ?"
        found = self._reader.value(sql, [account])
        return None if found is None else int(found)

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
            for reason, count in counts.items():
                self._writer.write(
                    "INSERT INTO refusals VALUES (?, ?) "
                    "ON CONFLICT (reason) DO UPDATE SET count = count + excluded.count",
                    (reason, count),
                )
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
            taken = {held.number for held in self._held.values()}
            number = next(n for n in range(len(taken) + 1) if n not in taken)
            run(
                "INSERT INTO batches (number, round, tier, key, devices, state, sent) "
                "VALUES (?, ?, ?, ?, 0, 'open', 0)",
                (number, *where, submission.key),
            )
            held = Held(number, *where, submission.key, 0)
            run(f"CREATE TABLE {held.table} (place INTEGER PRIMARY KEY, body BLOB NOT NULL)")
        elif held.state != "open" or held.key != submission.key:
            return "late"
        run("INSERT INTO seen VALUES (?, ?, ?)",
            (submission.round, submission.account, submission.mark))  # fmt: skip
        while not run(
            f"INSERT OR IGNORE INTO {held.table} VALUES (?, ?)",
            (secrets.randbits(_PLACE_BITS), submission.reports),
        ):
            pass  # somebody has that place
        self._held[where] = replace(held, devices=held.devices + 1)
        return "accepted"

    # --- batches ----------------------------------------------------------------------------------

    def held(self) -> list[Held]:
        """All batches that are not over, by round and tier."""
        found = [held for held in list(self._held.values()) if held.state != "over"]
        return sorted(found, key=lambda held: (held.round, held.tier))

    def gone(self, round: int, tier: int) -> bool:
        """Whether a tier takes nothing more in this round."""
        held = self._held.get((round, tier))
        return held is not None and held.state != "open"

    def move(self, position: ShufflerPosition) -> list[Held]:
        """Follow the server. What is held for an earlier round and was not sealed is dropped;
        returns it. Who has sent is forgotten after a few rounds. Raises, and stays, where a round
        would get another key: reports sealed to different keys could be told apart."""
        with self._writing():
            now = self.position
            if position.round == now.round and now.key:
                if position.key not in (now.key, b""):
                    raise MessageError(
                        f"the server shows another key for round {now.round} than before; nothing "
                        "that is sealed to it is taken"
                    )
                position = replace(position, key=now.key)
            dropped = [h for h in self.held() if h.round < position.round and h.state == "open"]
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
            if held.state != "open":
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
            if held.state != "over":
                continue
            with self._writing():
                run, table = self._writer.write, held.table
                if self._writer.row("SELECT 1 FROM sqlite_master WHERE name = ?", [table]):
                    if run(
                        f"DELETE FROM {table} WHERE place IN (SELECT place FROM {table} LIMIT ?)",
                        (_ROWS,),
                    ):
                        return True
                    run(f"DROP TABLE {table}")
                if held.round < self.position.round - KEPT_ROUNDS:
                    run("DELETE FROM batches WHERE number = ?", (held.number,))
                    del self._held[held.round, held.tier]
        return False

    def wipe_log(self) -> bool:
        """Take what was deleted out of SQLite's log as well; False where somebody reads or writes
        just now, and it is still there."""
        with _ShufflerFile(self._path) as file:
            file.pragma("busy_timeout", 200)
            return file.cut_log()

    def rows(self, held: Held) -> Iterator[NDArray[np.uint8]]:
        """All sealed reports of a batch, some at a time, by place: a random order of devices."""
        with _ShufflerFile(self._path) as file, file.snapshot():
            place = -1
            sql = f"SELECT place, body FROM {held.table} WHERE place > ? ORDER BY place LIMIT ?"
            while some := file.rows(sql, [place, _ROWS]):
                place = some[-1][0]
                joined = b"".join(body for _, body in some)
                yield np.frombuffer(joined, np.uint8).reshape(-1, SEALED_BYTES)

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
        for statement in statements(_TABLES):
            self._writer.write(statement)
        self._writer.write("INSERT OR IGNORE INTO meta VALUES ('schema', ?)", [SCHEMA])
        found = self._writer.value("SELECT value FROM meta WHERE name = 'schema'")
        if found != SCHEMA:
            raise ServiceError(
                f"{self._path} was written by another release of Sottovoce (version {found} of "
                f"the tables, this release knows {SCHEMA}); use the release that wrote it"
            )

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
