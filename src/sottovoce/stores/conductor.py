"""The conductor's memory: one SQLite file in the server's folder, one transaction per round.

Whatever is killed and whenever, the file says which round was folded last, from which devices, and
which devices the open round asks. `flower-status.json` beside it is for onlookers.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.messages import ModelView
from sottovoce.errors import FolderInUse, RunError, UsageError, VersionMismatch
from sottovoce.stores.allotment import Ranges, overlap, show_ranges
from sottovoce.stores.file import SQLiteFile
from sottovoce.stores.locking import is_locked, try_lock
from sottovoce.stores.private import private_file, stamp, unstamp

FILE = "flower.db"
LOCK = "flower.lock"
STATUS = "flower-status.json"
_SCHEMA = """
CREATE TABLE model (round INTEGER, attempt INTEGER, n_items INTEGER, items BLOB, changed BLOB,
                    terms TEXT);
CREATE TABLE open_round (round INTEGER, attempt INTEGER, goal INTEGER, numbers BLOB);
CREATE TABLE rounds (round INTEGER, attempt INTEGER, outcome TEXT, asked INTEGER, reported INTEGER,
                     missing TEXT, seconds REAL, PRIMARY KEY (round, attempt));
CREATE TABLE counted (number INTEGER PRIMARY KEY, round INTEGER, attempt INTEGER);
CREATE TABLE owners (number INTEGER PRIMARY KEY, node TEXT);
CREATE INDEX owned ON owners (node);
CREATE TABLE refused (reason TEXT PRIMARY KEY, count INTEGER);
CREATE TABLE target (rounds INTEGER);
CREATE TABLE allotted (first INTEGER PRIMARY KEY, last INTEGER, node TEXT, name TEXT);
CREATE TABLE memory (content BLOB);
CREATE TABLE masked (place INTEGER PRIMARY KEY, devices INTEGER, numbers BLOB, body BLOB);
CREATE TABLE left_out (number INTEGER PRIMARY KEY);
CREATE TABLE closing (round INTEGER, attempt INTEGER);
CREATE TABLE published (round INTEGER, items BLOB, offered TEXT);
CREATE TABLE times (round INTEGER, attempt INTEGER, opened REAL, ended REAL,
                    PRIMARY KEY (round, attempt));
"""

Outcome = Literal["goal", "deadline", "abandoned"]


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """How one attempt at a round ended."""

    round: int
    attempt: int
    outcome: Outcome
    asked: int
    reported: int
    missing: tuple[int, ...]
    """Devices that were asked and whose node gave no report that counts."""
    seconds: float


@dataclass(frozen=True, slots=True)
class ConductedRound:
    """The devices that the open round asks. Kept, so that a new run asks the same."""

    round: int
    attempt: int
    goal: int
    numbers: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True, slots=True, repr=False)
class MaskedPart:
    """What a node has sent in the open round of a secure sum."""

    place: int
    """In the order in which they came."""
    numbers: NDArray[np.int64]
    """The devices that it was asked for."""
    devices: int
    """How many of them are in it."""
    body: bytes


@dataclass(frozen=True, slots=True, repr=False)
class Saved:
    round: int
    attempt: int
    items: NDArray[np.float32]
    changed: NDArray[np.int64]
    """For each item the version in which its row last changed."""


class Checkpoint(SQLiteFile):
    """Opened by one conductor for writing; anyone may open it for reading."""

    schema, format = _SCHEMA, 8
    # Models and numbers of devices: nothing in it has to be overwritten when it is deleted.
    pragmas = ("synchronous=FULL",)
    name = "the checkpoint"
    kind = "checkpoint"
    error = RunError
    version_error = VersionMismatch

    def __init__(self, folder: Path, *, readonly: bool = False) -> None:
        if readonly and not (folder / FILE).exists():
            raise RunError(f"{folder} holds no Flower run yet")
        super().__init__(folder / FILE, readonly=readonly, make=not readonly)

    def load(self) -> Saved | None:
        row = self.row("SELECT round, attempt, n_items, items, changed FROM model")
        if row is None:
            return None
        round, attempt, n_items, items, changed = row
        table = self._finite(self._genuine(items, "items", round)).reshape(n_items, -1)
        moved = self._genuine(changed, "changed", round)
        return Saved(round, attempt, table, np.frombuffer(moved, "<i8").astype(np.int64))

    def memory(self, n_items: int) -> NDArray[np.float32]:
        """What the server keeps to itself beside the model; without columns where it is nothing."""
        row = self.row("SELECT content FROM memory")
        flat = self._finite(b"" if row is None else self._genuine(row[0], "memory"))
        return flat.reshape(n_items, -1) if len(flat) else np.zeros((n_items, 0), np.float32)

    def published(self, n_items: int) -> tuple[ModelView | None, list[Mapping[str, Any]]]:
        """The version to recommend by, where that is not always the newest model, and all that were
        offered so far."""
        row = self.row("SELECT round, items, offered FROM published")
        if row is None:
            return None, []
        items = self._finite(self._genuine(row[1], "published", row[0]))
        return ModelView(row[0], items.reshape(n_items, -1)), json.loads(row[2])

    def begin(self, items: NDArray[np.float32], terms: str) -> None:
        """The first model. `terms` is their digest: another federation is refused later."""
        with self.transaction():
            self._put_model(0, 0, items, np.zeros(len(items), np.int64), terms)

    def terms(self) -> str | None:
        found = self.value("SELECT terms FROM model")
        return None if found is None else str(found)

    def target(self) -> int:
        """Rounds to run, as far as an operator has said so here."""
        return int(self.value("SELECT max(rounds) FROM target") or 0)

    def raise_target(self, rounds: int) -> None:
        """A run that holds goes on to this round; it never falls."""
        with self.transaction():
            self.write("INSERT INTO target VALUES (?)", (rounds,))

    def open_round(self) -> ConductedRound | None:
        row = self.row("SELECT round, attempt, goal, numbers FROM open_round")
        if row is None:
            return None
        numbers = self._genuine(row[3], "numbers", row[0], row[1])
        return ConductedRound(
            row[0], row[1], row[2], np.frombuffer(numbers, "<i8").astype(np.int64)
        )

    def open(self, opened: ConductedRound) -> None:
        """Durable before the first device is asked."""
        with self.transaction():
            self.write("DELETE FROM open_round")
            where = opened.round, opened.attempt
            numbers = stamp(opened.numbers.astype("<i8").tobytes(), "numbers", *where)
            self.write("INSERT INTO open_round VALUES (?, ?, ?, ?)", (*where, opened.goal, numbers))
            # One that asks more devices, or goes on in another run, was opened before.
            now = (*where, time.time())
            self.write("INSERT OR IGNORE INTO times VALUES (?, ?, ?, NULL)", now)

    def keep_masked(self, numbers: NDArray[np.int64], devices: int, body: bytes) -> None:
        """Durable before it counts: what has left is not sent a second time."""
        with self.transaction():
            place = int(self.value("SELECT ifnull(max(place), 0) + 1 FROM masked"))
            asked = stamp(numbers.astype("<i8").tobytes(), "asked", place)
            content = stamp(body, "masked", place)
            self.write("INSERT INTO masked VALUES (?, ?, ?, ?)", (place, devices, asked, content))

    def masked(self) -> list[MaskedPart]:
        """What nodes have sent in the open round."""
        found = []
        for place, devices, numbers, body in self.rows("SELECT * FROM masked ORDER BY place"):
            asked = np.frombuffer(self._genuine(numbers, "asked", place), "<i8").astype(np.int64)
            content = self._genuine(body, "masked", place)
            found.append(MaskedPart(place, asked, devices, content))
        return found

    def leave_out(self, part: MaskedPart) -> None:
        """It is not summed with the others, and its devices are not asked again in the round."""
        with self.transaction():
            self.write("DELETE FROM masked WHERE place = ?", (part.place,))
            rows = [(number,) for number in part.numbers.tolist()]
            self.write_many("INSERT OR IGNORE INTO left_out VALUES (?)", rows)

    def left_out(self) -> NDArray[np.int64]:
        """The devices that were left out of the open round."""
        rows = self.rows("SELECT number FROM left_out ORDER BY number")
        return np.array([number for (number,) in rows], dtype=np.int64)

    def start_closing(self, opened: ConductedRound) -> None:
        """From now on nothing more comes into the open round, and what is there is summed: the
        helper answers for one set alone."""
        with self.transaction():
            self.write("INSERT INTO closing VALUES (?, ?)", (opened.round, opened.attempt))

    def reopen(self) -> None:
        """Wait for more in the round that was closing: the helper was asked for no sum."""
        with self.transaction():
            self.write("DELETE FROM closing")

    def is_closing(self) -> bool:
        return self.row("SELECT 1 FROM closing") is not None

    def close_round(
        self,
        record: RoundRecord,
        counted: NDArray[np.int64],
        items: NDArray[np.float32],
        changed: NDArray[np.int64],
        memory: NDArray[np.float32] | None = None,
        published: ModelView | None = None,
        offered: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """The round was folded: model, who was counted and the log move together."""
        with self.transaction():
            self._put_model(record.round + 1, 0, items, changed, self.terms())
            if memory is not None and memory.size:
                self.write("DELETE FROM memory")
                content = stamp(memory.astype("<f4").tobytes(), "memory")
                self.write("INSERT INTO memory VALUES (?)", (content,))
            if published is not None:
                self.write("DELETE FROM published")
                content = stamp(
                    published.items.astype("<f4").tobytes(), "published", published.round
                )
                kept = published.round, content, json.dumps(list(offered))
                self.write("INSERT INTO published VALUES (?, ?, ?)", kept)
            self.write_many(
                "INSERT OR REPLACE INTO counted VALUES (?, ?, ?)",
                [(number, record.round, record.attempt) for number in counted.tolist()],
            )
            self._log(record)

    def abandon_round(self, record: RoundRecord) -> None:
        with self.transaction():
            self.write("UPDATE model SET attempt = ?", (record.attempt + 1,))
            self._log(record)

    def give_up_round(self, record: RoundRecord, after: int) -> None:
        """Nothing of the round counts, and a later one begins from the same model."""
        with self.transaction():
            saved = self.load()
            if saved is not None:
                self._put_model(after, 0, saved.items, saved.changed, self.terms())
            self._log(record)

    def skip_to(self, round: int) -> None:
        """Go on with a later round from the model that is there. For a file that was set back:
        devices never do a round twice."""
        with self.transaction():
            self._forget_open()
            saved = self.load()
            if saved is not None and round > saved.round:
                # Nodes may have versions in between that are lost here.
                changed = np.full_like(saved.changed, round)
                self._put_model(round, 0, saved.items, changed, self.terms())

    def counted(self, node: str) -> tuple[int, int] | None:
        """Round and attempt of this node's last report that was counted."""
        row = self.row(
            "SELECT round, attempt FROM counted JOIN owners USING (number) WHERE node = ? "
            "ORDER BY round DESC, attempt DESC LIMIT 1",
            (node,),
        )
        return None if row is None else (int(row[0]), int(row[1]))

    def claim(self, node: str, numbers: NDArray[np.int64]) -> None:
        """Remember that this node answered for these devices, and no other does."""
        with self.transaction():
            self.write_many(
                "INSERT OR REPLACE INTO owners VALUES (?, ?)",
                [(number, node) for number in numbers.tolist()],
            )

    def allot(self, nodes: Mapping[str, tuple[str, Ranges]]) -> None:
        """From now on each of these nodes (with its name) has these numbers and no others, and
        nobody else has them. With no numbers a node is released. All of it is done, or nothing."""
        with self.transaction():
            for node in nodes:
                self.write("DELETE FROM allotted WHERE node = ?", (node,))
            for node, (name, ranges) in nodes.items():
                self._allot(node, name, ranges)
            self.write("DELETE FROM counted WHERE number NOT IN (SELECT number FROM owners)")

    def _allot(self, node: str, name: str, ranges: Ranges) -> None:
        for called, theirs in self.allotted().values():
            common = overlap(ranges, theirs)
            if common is not None:
                raise UsageError(
                    f"device numbers {show_ranges((common,))} are those of the node {called}; "
                    "give other ones, or release that node first"
                )
        self.write_many(
            "INSERT INTO allotted VALUES (?, ?, ?, ?)",
            [(first, last, node, name) for first, last in ranges],
        )
        # What was said of a device under another owner does not hold under the next.
        self.write(
            "DELETE FROM owners WHERE (node = ?1) <> EXISTS (SELECT 1 FROM allotted WHERE "
            "allotted.node = ?1 AND number BETWEEN first AND last)",
            [node],
        )

    def allotted(self) -> dict[str, tuple[str, Ranges]]:
        """Name and numbers of every node that was given some, in the order of the numbers."""
        found: dict[str, tuple[str, Ranges]] = {}
        for first, last, node, name in self.rows("SELECT * FROM allotted ORDER BY first"):
            found[node] = name, (*found.get(node, (name, ()))[1], (first, last))
        return found

    def refuse(self, reason: str) -> None:
        """Count something that was turned away."""
        with self.transaction():
            self.write(
                "INSERT INTO refused VALUES (?, 1) "
                "ON CONFLICT (reason) DO UPDATE SET count = count + 1",
                (reason,),
            )

    def refused(self) -> dict[str, int]:
        return dict(self.rows("SELECT reason, count FROM refused ORDER BY reason"))

    def rounds(self, last: int | None = None) -> list[RoundRecord]:
        """How rounds ended, oldest first."""
        rows = self.rows(
            "SELECT * FROM rounds ORDER BY round DESC, attempt DESC LIMIT ?",
            (-1 if last is None else last,),
        )
        return [
            RoundRecord(round, attempt, outcome, asked, reported, tuple(json.loads(who)), seconds)
            for round, attempt, outcome, asked, reported, who, seconds in rows[::-1]
        ]

    def opened(self) -> float | None:
        """When the open round was, in seconds since 1970."""
        found: float | None = self.value(
            "SELECT opened FROM times JOIN open_round USING (round, attempt)"
        )
        return found

    def last_ended(self) -> float | None:
        """When the last attempt at a round did, in seconds since 1970."""
        found: float | None = self.value(
            "SELECT ended FROM times WHERE ended NOTNULL ORDER BY round DESC, attempt DESC LIMIT 1"
        )
        return found

    def outcomes(self) -> dict[str, int]:
        """How many attempts ended in which way."""
        return dict(self.rows("SELECT outcome, count(*) FROM rounds GROUP BY outcome"))

    def _put_model(
        self,
        round: int,
        attempt: int,
        items: NDArray[np.float32],
        changed: NDArray[np.int64],
        terms: str | None,
    ) -> None:
        self.write("DELETE FROM model")
        self.write(
            "INSERT INTO model VALUES (?, ?, ?, ?, ?, ?)",
            (
                round,
                attempt,
                len(items),
                stamp(items.astype("<f4").tobytes(), "items", round),
                stamp(changed.astype("<i8").tobytes(), "changed", round),
                terms,
            ),
        )

    def _genuine(self, stamped: bytes, *where: str | int) -> bytes:
        """What was stamped for this place. Raises where it is damaged."""
        content = unstamp(stamped, *where)
        if content is None:
            raise RunError(f"{self.path} is damaged; put it back from a copy")
        return content

    def _finite(self, content: bytes) -> NDArray[np.float32]:
        numbers = np.frombuffer(content, "<f4").astype(np.float32)
        if not np.isfinite(numbers).all():
            raise RunError(
                f"the model in {self.path} has numbers that are none; put the file back from a copy"
            )
        return numbers

    def _forget_open(self) -> None:
        for table in ("open_round", "masked", "left_out", "closing"):
            self.write(f"DELETE FROM {table}")

    def _log(self, record: RoundRecord) -> None:
        self._forget_open()
        self.write(
            "INSERT INTO times VALUES (?1, ?2, NULL, ?3) "
            "ON CONFLICT (round, attempt) DO UPDATE SET ended = ?3",
            (record.round, record.attempt, time.time()),
        )
        self.write(
            "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                record.round,
                record.attempt,
                record.outcome,
                record.asked,
                record.reported,
                json.dumps(record.missing),
                record.seconds,
            ),
        )


@contextmanager
def only_one(folder: Path, seconds: float = 30.0) -> Iterator[None]:
    """One conductor per folder. The one of a run that was cut off may need a moment to end."""
    end = time.monotonic() + seconds
    while (lock := try_lock(folder / LOCK)) is None:
        if time.monotonic() >= end:
            raise FolderInUse(f"{folder} is in use by another run")
        time.sleep(0.2)
    with lock:
        yield


def conducted(folder: Path) -> bool:
    """Whether a conductor is at work on this folder."""
    return is_locked(folder / LOCK)


def write_status(folder: Path, status: Mapping[str, Any]) -> None:
    """Replace the status file in one step; a reader never sees half of it."""
    partial = folder / f".{STATUS}.{os.getpid()}"
    private_file(partial).write_text(json.dumps(status), encoding="utf-8")
    partial.replace(folder / STATUS)


def read_status(folder: Path) -> dict[str, Any]:
    """What the conductor said last; empty where it has not said anything yet."""
    try:
        status = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}
