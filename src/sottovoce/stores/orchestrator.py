"""All that the orchestrator of a DRIFT federation keeps: the model, users, owners and rounds.

A folder with `orchestrator.db`. Two processes share it: the conductor, which folds rounds, and the
users' service, which lets people in and out. Every change is one transaction, on the disk when the
method returns, and a round is one change: the rows it moved, whose updates are in them and its
record are there together or not at all. What a user who leaves had here is overwritten in the file
and in its log.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.drift.aggregated import ranked_rows
from sottovoce.algorithms.drift.blocks import first_rows
from sottovoce.algorithms.drift.messages import LARGEST, OwnerTable, Row
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator
from sottovoce.errors import DataError, KeyTrouble, RunError, StoreError, UsageError
from sottovoce.rng import Streams
from sottovoce.stores.file import SQLiteFile
from sottovoce.stores.private import private_folder, stamp, unstamp
from sottovoce.wire.directory import Directory, OwnerEntry
from sottovoce.wire.interactions import KEY_BYTES
from sottovoce.wire.silo_files import (
    TOKEN_BYTES,
    Application,
    node_identity,
    require_catalogue,
    require_name,
)

DATABASE = "orchestrator.db"
_SCHEMA = """
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
CREATE TABLE refused (reason TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE heard (owner INTEGER PRIMARY KEY, round INTEGER NOT NULL);
CREATE TABLE ended (round INTEGER PRIMARY KEY, at REAL NOT NULL);
"""


class OrchestratorFile(SQLiteFile):
    schema, format = _SCHEMA, 5
    application_id = 0x53564F31
    busy_seconds = 20.0
    kind = "orchestrator's store"
    taken = "holds a federation already; choose another folder"


# The rounds of a DRIFT federation as the orchestrator's store keeps them: each counts once. The
# number of a round is that of the rounds closed before it. A conductor that is killed finds the
# round that it had opened, and does it again under the same number, by which every owner knows
# that it is the same.

ROUNDS_KEPT = 100_000
"""Records of older rounds are dropped: a service that runs for years goes through many."""


GROWING = ("version", "directory", "membership", "next_user", "next_owner", "round")
"""Numbers that never fall, and by which others know an older copy of the store."""


@dataclass(frozen=True, slots=True)
class OpenRound:
    round: int
    flush: bool
    """Whether all streams end with it."""
    ending: frozenset[int] = frozenset()
    """Owners whose streams end with it: all in a flush, in other rounds those that were silent in
    the last one."""


@dataclass(frozen=True, slots=True)
class SiloRound:
    """How a round went. Owners are named."""

    round: int
    flush: bool
    asked: tuple[str, ...]
    """All that were admitted, whether they were there or not."""
    updated: tuple[str, ...]
    """Those whose update was folded."""
    silent: tuple[str, ...]
    """Those that gave no answer in time."""
    refused: tuple[str, ...]
    """Those whose answer was refused."""
    seconds: float
    version: int
    """Version of the model after it."""


def stored_rows(kind: str, numbers: Sequence[int], rows: NDArray[np.float32]) -> list[bytes]:
    """Rows of these users or items, stamped for their place."""
    pairs = zip(numbers, rows.astype("<f4"), strict=True)
    return [stamp(row.tobytes(), kind, number) for number, row in pairs]


class RoundStore:
    """The part of the store that a conductor writes."""

    def __init__(self, file: OrchestratorFile) -> None:
        self._file = file

    @property
    def round(self) -> int:
        """Rounds that were closed; the number of the one that is open or comes next."""
        return int(self._meta("round"))

    def counters(self) -> dict[str, int]:
        """All that never falls."""
        return {name: int(self._meta(name)) for name in GROWING}

    def go_on_with(self, counters: Mapping[str, int]) -> None:
        """For an older copy: what was counted since is not counted again, and a round that was open
        is over."""
        with self._file.transaction():
            for name in GROWING:
                self._set(name, max(int(self._meta(name)), counters[name]))
            self._file.write("DELETE FROM open_round")

    def open_round(self) -> OpenRound:
        """Opens the next round. One that was open already is given again as it was, so that every
        owner is asked the same in it."""
        with self._file.transaction():
            found = self._file.rows("SELECT round, flush, requested FROM open_round")
            if not found:
                requested = int(self._meta("flush"))
                found = [(self.round, requested > int(self._meta("flushed")), requested)]
                self._file.write("INSERT INTO open_round VALUES (?, ?, ?)", found[0])
            round, flush, requested = found[0]
            owed = self._file.rows("SELECT number FROM owners WHERE flushed < ?", [requested])
            return OpenRound(round, bool(flush), frozenset(number for (number,) in owed))

    def close_round(
        self,
        record: SiloRound,
        orchestrator: Orchestrator,
        users: NDArray[np.int64],
        items: NDArray[np.int64],
        folded: Iterable[int],
        *,
        ended: Iterable[int] = (),
    ) -> None:
        """The orchestrator has folded the updates of these owners, which moved the rows of these
        users and items. Users who have left since stay erased. Those of the round's `ending` owners
        that are not in `ended` are told again in the next round."""
        model = orchestrator.model
        with self._file.transaction():
            found = self._file.rows("SELECT round, flush, requested FROM open_round")
            if not found or found[0][0] != record.round or bool(found[0][1]) != record.flush:
                raise RunError(f"round {record.round} is not the one that is open")
            for kind, table, numbers in (
                ("users", model.users, users),
                ("items", model.items, items),
            ):
                moved = stored_rows(kind, numbers.tolist(), table[numbers])
                rows = zip(moved, numbers.tolist(), strict=True)
                self._file.write_many(f"UPDATE {kind} SET row = ? WHERE number = ?", rows)
            marks = ((record.round, owner) for owner in folded)
            self._file.write_many("UPDATE owners SET counted = ? WHERE number = ?", marks)
            done = ((found[0][2], owner) for owner in ended)
            self._file.write_many("UPDATE owners SET flushed = ? WHERE number = ?", done)
            self._set("version", record.version)
            self._set("round", record.round + 1)
            if record.flush:
                self._set("flushed", found[0][2])
            self._file.write("DELETE FROM open_round")
            self._log(record)
        if self._meta("erasing"):
            self._erase()

    def _log(self, record: SiloRound) -> None:
        names = json.dumps([record.asked, record.updated, record.silent, record.refused])
        self._file.write(
            "INSERT INTO rounds VALUES (?, ?, ?, ?, ?)",
            [record.round, record.flush, names, record.seconds, record.version],
        )
        self._file.write("DELETE FROM rounds WHERE round <= ?", [record.round - ROUNDS_KEPT])
        self._file.write("DELETE FROM ended")
        self._file.write("INSERT INTO ended VALUES (?, ?)", [record.round, time.time()])

    def rounds(self, last: int | None = None) -> list[SiloRound]:
        """How rounds went, oldest first."""
        rows = self._file.rows(
            "SELECT * FROM rounds ORDER BY round DESC LIMIT ?", [-1 if last is None else last]
        )
        found = []
        for round, flush, names, seconds, version in rows[::-1]:
            asked, updated, silent, refused = map(tuple, json.loads(names))
            found.append(
                SiloRound(round, bool(flush), asked, updated, silent, refused, seconds, version)
            )
        return found

    def last_ended(self) -> float | None:
        """When the last round did, in seconds since 1970; None before there was one."""
        found: float | None = self._file.value("SELECT max(at) FROM ended")
        return found

    def counted(self, owner: int) -> int:
        """The last round in which the owner's update was folded; -1 where none was."""
        found = self.all_counted()
        if owner not in found:
            raise DataError(f"there is no data owner {owner}")
        return found[owner]

    def all_counted(self) -> dict[int, int]:
        """The same of every owner, by number."""
        return dict(self._file.rows("SELECT number, counted FROM owners ORDER BY number"))

    def hear(self, owner: int, round: int) -> None:
        """An answer of this owner with sums in it came in, whether or not it is counted."""
        with self._file.transaction():
            self._file.write(
                "INSERT INTO heard VALUES (?, ?) "
                "ON CONFLICT (owner) DO UPDATE SET round = max(round, excluded.round)",
                [owner, round],
            )

    def all_heard(self) -> dict[int, int]:
        """By owner: the last round of which such an answer came in."""
        return dict(self._file.rows("SELECT owner, round FROM heard"))

    def target(self) -> int:
        """Rounds to run, as far as an operator has said so here."""
        return int(self._meta("target"))

    def raise_target(self, rounds: int) -> None:
        """A conductor that holds goes on to this round; it never falls."""
        with self._file.transaction():
            self._set("target", max(rounds, self.target()))

    def request_flush(self) -> None:
        """The next round that is opened ends all streams."""
        with self._file.transaction():
            self._count("flush", 1)

    @property
    def flush_requested(self) -> bool:
        """Whether a round that ends all streams is still to come."""
        return int(self._meta("flush")) > int(self._meta("flushed"))

    def refuse(self, reason: str, times: int = 1) -> None:
        """Count something that was turned away."""
        with self._file.transaction():
            self._file.write(
                "INSERT INTO refused VALUES (?, ?) "
                "ON CONFLICT (reason) DO UPDATE SET count = count + excluded.count",
                [reason, times],
            )

    def refused(self) -> dict[str, int]:
        return dict(self._file.rows("SELECT reason, count FROM refused ORDER BY reason"))

    # --- rows of the model -----------------------------------------------------------------------

    def _rows(self, kind: str, size: int) -> dict[int, Row]:
        """What `stored_rows` gave, by number. Raises where anything of it is damaged."""
        found = self._file.rows(f"SELECT number, row FROM {kind}")
        rows = [unstamp(row, kind, number) for number, row in found]
        flat = np.frombuffer(b"".join(row or b"" for row in rows), "<f4").astype(np.float32)
        if None in rows or len(flat) != len(found) * size or not np.isfinite(flat).all():
            raise StoreError(f"{self._file.path} is damaged; put back a copy")
        return dict(zip((number for number, _ in found), flat.reshape(-1, size), strict=True))

    # --- numbers ---------------------------------------------------------------------------------

    def _meta(self, name: str) -> Any:
        found = self._file.value("SELECT value FROM meta WHERE name = ?", [name])
        if found is None:
            raise StoreError(f"{self._file.path} is damaged; put back a copy")
        return found

    def _set(self, name: str, value: int) -> None:
        self._file.write("UPDATE meta SET value = ? WHERE name = ?", [value, name])

    def _count(self, name: str, more: int) -> int:
        """Raises a counter; what it was before."""
        before = int(self._meta(name))
        self._set(name, before + more)
        return before

    def _erase(self) -> None:
        """What was deleted goes from the files too. Where another process is in the way, the end of
        the next round does it."""
        asked = self._meta("erasing")
        if self._file.erase_traces():
            with self._file.transaction():  # unless somebody else has left since
                done = "UPDATE meta SET value = 0 WHERE name = 'erasing' AND value = ?"
                self._file.write(done, [asked])


@dataclass(frozen=True, slots=True)
class AdmittedOwner:
    """A data owner of the federation."""

    entry: OwnerEntry
    """As the directory has it."""
    node_key: str
    """The public key of its Flower node."""
    counted: int
    """The last round in which its update was folded; -1 where none was."""

    @property
    def number(self) -> int:
        return self.entry.number

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def items(self) -> tuple[int, ...]:
        return self.entry.items

    @property
    def identity(self) -> str:
        """The name of its node."""
        return node_identity(self.node_key)


class OrchestratorStore(RoundStore):
    """May be used by several threads."""

    def __init__(self, file: OrchestratorFile) -> None:
        super().__init__(file)
        self._cached: tuple[tuple[int, int], Orchestrator] | None = None
        self._caching = threading.Lock()
        self.federation = str(self._meta("federation"))
        """A name that no other federation has."""
        table = json.loads(self._meta("settings"))
        self.settings = config.build(DRIFTConfig, table, "settings")
        self.root_key = int(self._meta("root_key"))
        """Of the streams that first rows are drawn from."""
        if self._sums and self._file.value("SELECT 1 FROM users WHERE length(row) > 0 LIMIT 1"):
            raise StoreError(
                f"{file.path} was made by a release of Sottovoce that kept users' vectors in this "
                "federation, and not with the data owners; make a new federation"
            )
        for kind in ("items",) if self._sums else ("items", "users"):
            self._rows(kind, self.settings.embedding_size)  # raises where they are damaged
        if self._meta("erasing"):
            self._erase()

    @property
    def _sums(self) -> bool:
        """Whether users' vectors stay with the data owners, which send sums over people."""
        return self.settings.release == "aggregated"

    @classmethod
    def create(
        cls,
        path: Path,
        federation: str,
        settings: DRIFTConfig,
        catalogue: Sequence[str],
        root_key: int | None = None,
    ) -> OrchestratorStore:
        """The store of a new federation in the folder `path`. The root key is drawn from the
        operating system unless a trial sets it."""
        require_name("federation", federation)
        require_catalogue(catalogue)
        key = secrets.randbits(64) if root_key is None else root_key
        if not 0 <= key < 2**64:
            raise UsageError("a root key is a whole number of 64 bits")

        def fill(file: OrchestratorFile) -> None:
            texts = {
                "federation": federation,
                "settings": json.dumps(settings.to_table()),
                "root_key": str(key),
            }
            counters = dict.fromkeys((*GROWING, "target", "flush", "flushed", "erasing"), 0)
            file.write_many("INSERT INTO meta VALUES (?, ?)", (texts | counters).items())
            file.write_many("INSERT INTO catalogue VALUES (?, ?)", enumerate(catalogue))

        try:
            private_folder(path)
        except OSError as error:
            raise StoreError(f"{path} cannot be made: {error.strerror or error}") from None
        return cls._of(OrchestratorFile(path / DATABASE, make=True, fill=fill))

    @classmethod
    def open(cls, path: Path) -> OrchestratorStore:
        if not (path / DATABASE).is_file():
            raise StoreError(f"there is no orchestrator's store in {path}")
        return cls._of(OrchestratorFile(path / DATABASE))

    @classmethod
    def _of(cls, file: OrchestratorFile) -> OrchestratorStore:
        try:
            return cls(file)
        except BaseException:
            file.close()
            raise

    def take_over(self, former: OrchestratorStore) -> bool:
        """Bring an older copy up to the folder that it replaces: items, invitations, users and data
        owners, and who has left. Their stores and folders know the newest of these and refuse older
        ones. The model stays that of the copy, in which whoever came since begins anew. Return
        False, and change nothing, if the former folder is an older copy itself."""
        newest = former.counters()
        if any(newest[name] < value for name, value in self.counters().items()):
            return False
        if (former.federation, former.settings) != (self.federation, self.settings):
            raise UsageError(
                f"the settings of the copy and of {former.folder} differ; nothing was changed"
            )
        with self._file.transaction(), former._file.snapshot():
            self.set_catalogue(former.catalogue)
            for table in ("invitations", "departed", "holdings", "heard"):
                rows = former._file.rows(f"SELECT * FROM {table}")
                self._file.write(f"DELETE FROM {table}")
                if rows:
                    marks = ", ".join("?" * len(rows[0]))
                    self._file.write_many(f"INSERT INTO {table} VALUES ({marks})", rows)
            self._take_over_users(former)
            self._take_over_owners(former)
            self.raise_target(former.target())
            self._set("erasing", 1)
            self._changed_directory()
        with self._caching:
            self._cached = None
        self._erase()
        return True

    def _take_over_users(self, former: OrchestratorStore) -> None:
        there = dict(former._file.rows("SELECT number, public FROM users"))
        known = {number for (number,) in self._file.rows("SELECT number FROM users")}
        gone = [(number,) for number in known - there.keys()]
        self._file.write_many("DELETE FROM users WHERE number = ?", gone)
        new = sorted(there.keys() - known)
        first = [b""] * len(new) if self._sums else self._first("users", new)
        rows = zip(new, (there[number] for number in new), first, strict=True)
        self._file.write_many("INSERT INTO users VALUES (?, ?, ?)", rows)

    def _take_over_owners(self, former: OrchestratorStore) -> None:
        counted = {
            number: (counted, flushed)
            for number, counted, flushed in self._file.rows(
                "SELECT number, counted, flushed FROM owners"
            )
        }
        new = -1, int(self._meta("flushed"))
        rows = former._file.rows(
            "SELECT number, name, url, public, authority, node_key FROM owners"
        )
        self._file.write("DELETE FROM owners")
        self._file.write_many(
            "INSERT INTO owners VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(*row, *counted.get(row[0], new)) for row in rows],
        )
        held = [n for (n,) in self._file.rows("SELECT DISTINCT item FROM holdings ORDER BY item")]
        known = {number for (number,) in self._file.rows("SELECT number FROM items")}
        items = [item for item in held if item not in known]
        first = self._first("items", items)
        self._file.write_many("INSERT INTO items VALUES (?, ?)", zip(items, first, strict=True))

    @staticmethod
    def exists(path: Path) -> bool:
        return (path / DATABASE).exists()

    @property
    def folder(self) -> Path:
        return self._file.path.parent

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> OrchestratorStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<OrchestratorStore {self._file.path}, redacted>"

    # --- users -----------------------------------------------------------------------------------

    def invite(self, n: int) -> list[bytes]:
        """Secrets that let n users in, once each. Only their hashes are kept."""
        if n < 1:
            raise UsageError("invite at least one user")
        tokens = [secrets.token_bytes(TOKEN_BYTES) for _ in range(n)]
        rows = [(_hash(token),) for token in tokens]
        with self._file.transaction():
            self._file.write_many("INSERT INTO invitations VALUES (?, NULL)", rows)
        return tokens

    def is_invited(self, token: bytes) -> bool:
        """Whether somebody was invited with this token and has not left. Holds nobody up."""
        sql = "SELECT 1 FROM invitations WHERE token = ?"
        return self._file.value(sql, [_hash(token)]) is not None

    def enrol(self, token: bytes, public: bytes) -> int:
        """The number of the user who was invited with this token and has this long-term key. The
        same again gives the same number."""
        with self._file.transaction():
            found = self._file.rows(
                "SELECT invitations.user, public FROM invitations LEFT JOIN users "
                "ON users.number = invitations.user WHERE token = ?",
                [_hash(token)],
            )
            if not found:
                raise KeyTrouble("nobody was invited with this token, or whoever was has left")
            user, before = found[0]
            if user is not None:
                if before != public:
                    raise KeyTrouble("the invitation was used before, with another key")
                return int(user)
            (number,) = self.add_users([public])
            self._file.write(
                "UPDATE invitations SET user = ? WHERE token = ?", [number, _hash(token)]
            )
            return number

    def add_users(self, publics: Sequence[bytes]) -> list[int]:
        """Users with these long-term keys join; their numbers."""
        if any(len(public) != KEY_BYTES for public in publics):
            raise KeyTrouble(f"a public key has {KEY_BYTES} bytes")
        with self._file.transaction():
            first = self._count("next_user", len(publics))
            numbers = list(range(first, first + len(publics)))
            if numbers and numbers[-1] >= LARGEST:
                raise UsageError(f"a federation has {LARGEST:,} users at most")
            rows = [b""] * len(numbers) if self._sums else self._first("users", numbers)
            self._file.write_many(
                "INSERT INTO users VALUES (?, ?, ?)", zip(numbers, publics, rows, strict=True)
            )
            self._count("membership", 1)
        return numbers

    def leave_user(self, user: int) -> None:
        """Erases all that is here of the user but her number, which owners are told and nobody gets
        again. Doing it twice does no harm."""
        with self._file.transaction():
            if not self._file.write("DELETE FROM users WHERE number = ?", [user]):
                if user in self.departed():
                    return
                raise DataError("nobody of that number has joined")
            self._file.write("DELETE FROM invitations WHERE user = ?", [user])
            self._file.write("INSERT INTO departed VALUES (?)", [user])
            self._count("membership", 1)
            self._count("erasing", 1)
        with self._caching:
            self._cached = None
        self._erase()

    def departed(self) -> list[int]:
        """Numbers of users who have left, ascending."""
        return [n for (n,) in self._file.rows("SELECT number FROM departed ORDER BY number")]

    def public(self, user: int) -> bytes | None:
        """Her long-term key; None where nobody of that number is there."""
        found = self._file.value("SELECT public FROM users WHERE number = ?", [user])
        return None if found is None else bytes(found)

    @property
    def n_users(self) -> int:
        return int(self._file.value("SELECT count(*) FROM users"))

    # --- owners and items ------------------------------------------------------------------------

    @property
    def catalogue(self) -> tuple[str, ...]:
        """The items' names; an item's number is its place."""
        rows = self._file.rows("SELECT name FROM catalogue ORDER BY item")
        return tuple(name for (name,) in rows)

    @property
    def n_items(self) -> int:
        return int(self._file.value("SELECT count(*) FROM catalogue"))

    def set_catalogue(self, catalogue: Sequence[str]) -> None:
        """Items can be added behind those that are there."""
        require_catalogue(catalogue)
        with self._file.transaction():
            before = self.catalogue
            if tuple(catalogue[: len(before)]) != before:
                raise UsageError(
                    "a catalogue can only become longer: what is in it keeps its place and name"
                )
            new = list(enumerate(catalogue))[len(before) :]
            if new:
                self._file.write_many("INSERT INTO catalogue VALUES (?, ?)", new)
                self._changed_directory()

    def admit_owner(self, application: Application) -> int:
        """The owner's number. The same owner (name, keys) again gives the same number, and its
        address and items are those of the new application."""
        wanted = application.entry(0)
        key = " ".join(application.node_key.split()[:2])
        with self._file.transaction():
            for owner in self.owners():
                same = owner.name == wanted.name, owner.node_key == key
                if all(same) and owner.entry.public == wanted.public:
                    self._file.write(
                        "UPDATE owners SET url = ?, authority = ? WHERE number = ?",
                        [wanted.url, wanted.authority, owner.number],
                    )
                    self._changed_directory()
                    self._hold(owner.number, wanted.items)
                    return owner.number
                if any(same):
                    what = "the name" if same[0] else "the node's key"
                    raise UsageError(f"{what} is that of the data owner {owner.name}")
            number = self._count("next_owner", 1)
            self._file.write(
                "INSERT INTO owners VALUES (?, ?, ?, ?, ?, ?, -1, ?)",
                [
                    number,
                    wanted.name,
                    wanted.url,
                    wanted.public,
                    wanted.authority,
                    key,
                    self._meta("flushed"),
                ],
            )
            self._changed_directory()
            self._hold(number, wanted.items)
        return number

    def remove_owner(self, number: int) -> None:
        """What nobody else holds is not recommended any more. The number is not given again."""
        with self._file.transaction():
            if not self._file.write("DELETE FROM owners WHERE number = ?", [number]):
                raise DataError(f"there is no data owner {number}")
            self._file.write("DELETE FROM holdings WHERE owner = ?", [number])
            self._changed_directory()

    def set_items(self, owner: int, items: Iterable[int]) -> None:
        """From now on the owner holds these. An item that was there before has the row it had."""
        listed = sorted(set(items))
        with self._file.transaction():
            if self._file.value("SELECT 1 FROM owners WHERE number = ?", [owner]) is None:
                raise DataError(f"there is no data owner {owner}")
            if listed != self._items(owner):
                self._hold(owner, listed)
                self._changed_directory()

    def _hold(self, owner: int, items: Sequence[int]) -> None:
        if items and not 0 <= items[0] <= items[-1] < self.n_items:
            raise DataError("there are items that are not in the federation's catalogue")
        self._file.write("DELETE FROM holdings WHERE owner = ?", [owner])
        rows = ((owner, item) for item in items)
        self._file.write_many("INSERT INTO holdings VALUES (?, ?)", rows)
        known = {n for (n,) in self._file.rows("SELECT number FROM items")}
        new = [item for item in items if item not in known]
        self._file.write_many(
            "INSERT INTO items VALUES (?, ?)", zip(new, self._first("items", new), strict=True)
        )

    def _items(self, owner: int) -> list[int]:
        sql = "SELECT item FROM holdings WHERE owner = ? ORDER BY item"
        return [item for (item,) in self._file.rows(sql, [owner])]

    def owners(self) -> list[AdmittedOwner]:
        """Those that are part of the federation, by number."""
        with self._file.snapshot():
            rows = self._file.rows(
                "SELECT number, name, url, public, authority, node_key, counted FROM owners "
                "ORDER BY number"
            )
            return [
                AdmittedOwner(
                    OwnerEntry(number, name, url, public, authority, tuple(self._items(number))),
                    node_key,
                    counted,
                )
                for number, name, url, public, authority, node_key, counted in rows
            ]

    @property
    def directory_version(self) -> int:
        return int(self._meta("directory"))

    def directory(self, issuer: bytes) -> Directory:
        """To be signed with the key whose public half this is."""
        with self._file.snapshot():
            return Directory(
                self.federation,
                issuer,
                self.directory_version,
                self.settings,
                self.catalogue,
                tuple(owner.entry for owner in self.owners()),
            )

    # --- the model -------------------------------------------------------------------------------

    @property
    def membership(self) -> int:
        """Grows whenever a user, an owner or an item comes or goes."""
        return int(self._meta("membership"))

    @property
    def model_version(self) -> tuple[int, int]:
        return int(self._meta("version")), self.membership

    def load(self) -> Orchestrator:
        """The orchestrator as the last round left it, with everybody who is there now."""
        size = self.settings.embedding_size
        with self._file.snapshot():
            table = OwnerTable()
            for owner in self.owners():
                table.add(owner.number, owner.items)
            return Orchestrator.restore(
                self.settings,
                Streams(self.root_key),
                int(self._meta("version")),
                table,
                {} if self._sums else self._rows("users", size),
                self._rows("items", size),
            )

    def model(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The users' rows and the items'; rows of numbers that nobody has are 0. Where data owners
        keep users' rows there are none of those."""
        model = self._current().model
        return model.users, model.items

    def rows_to_rank(self) -> NDArray[np.float32]:
        """The items' rows as users rank with them who have their vectors from data owners."""
        current = self._current()
        rows = current.model.items
        first = self._first_rows("items", range(len(rows)))
        held = [item for item, _ in current.known_rows("items")]
        moved = np.zeros(len(rows), dtype=bool)
        moved[held] = (rows != first).any(axis=1)[held]
        return ranked_rows(rows, moved)

    def recommend(
        self, user: int, n: int, seen: Iterable[int] = ()
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The n best items that some owner holds, and their scores, as of the last round."""
        if self._sums:
            raise UsageError(
                "the orchestrator of this federation holds no user's vector, so that it cannot "
                "recommend; data owners keep them"
            )
        return self._current().recommend(user, seen, n)

    def _current(self) -> Orchestrator:
        """To be read only; loaded anew when anything has changed."""
        with self._caching:
            with self._file.snapshot():
                at = self.model_version
                if self._cached is None or self._cached[0] != at:
                    self._cached = at, self.load()
            return self._cached[1]

    def _changed_directory(self) -> None:
        self._count("directory", 1)
        self._count("membership", 1)

    def _first(self, kind: Literal["users", "items"], numbers: Sequence[int]) -> list[bytes]:
        return stored_rows(kind, numbers, self._first_rows(kind, numbers))

    def _first_rows(self, kind: Literal["users", "items"], numbers: Sequence[int]) -> Row:
        size, spread = self.settings.embedding_size, self.settings.spread
        return first_rows(kind, numbers, size, Streams(self.root_key), spread)


def _hash(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
