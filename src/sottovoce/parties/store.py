"""The store of a cohort: all that a device (or a gateway, for many) knows, encrypted at rest.

A folder with `store.db` and `store.key`. Every change is durable when the method returns. Several
processes may have a store open, so that an owner can change her mind while the agent runs; only one
of them may be the agent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.consent import Choice, Consent
from sottovoce.data.interactions import Interactions, Vocabulary
from sottovoce.errors import DataError, UsageError
from sottovoce.ledger import Ledger
from sottovoce.parties import store_attributes, store_budget, store_roots
from sottovoce.parties.store_budget import SentReports, Spent
from sottovoce.parties.store_file import StoreFile
from sottovoce.parties.store_rounds import ledger_rows
from sottovoce.rng import Streams

if TYPE_CHECKING:
    import pyarrow as pa

    from sottovoce.algorithms.uc_config import FilterConfig

MAX_NUMBER = 2**32 - 1
_NO_TIME = -(2**63)
_AT_HOME = Choice(takes_part=False)
"""What holds for a user until she chooses."""
_ADD_HISTORY = """
INSERT INTO history (number, item, time) VALUES (?, ?, ?) ON CONFLICT (number, item)
DO UPDATE SET time = excluded.time WHERE excluded.time > ifnull(time, excluded.time - 1)
"""


@dataclass(frozen=True, slots=True)
class Record:
    """A choice as it was made."""

    choice: Choice
    changed_at: int


@dataclass(frozen=True, slots=True)
class Contact:
    """A request that said that a device is there, or may have."""

    number: int
    party: str
    what: str
    """`enrolment` or `check-in`."""
    bytes: int
    """Of this user's part in it."""
    epsilon: float
    """0: no history is in it. That the device is there, its party knows from then on."""
    at: int


class CohortStore:
    """Users with their histories, choices, ledger and budget. A phone has one user."""

    def __init__(self, file: StoreFile, clock: Callable[[], float] = time.time) -> None:
        self.file = file
        self._clock = clock
        self._history: tuple[int, Interactions] | None = None

    @classmethod
    def create(
        cls, path: Path, users: Sequence[tuple[int, str]], *, root_key: int | None = None
    ) -> CohortStore:
        """A new store for these users (number and name). A trial gives a root key and has the draws
        and coins of the simulation; otherwise they come from the operating system."""
        _check_users(users)
        roots = store_roots.first_roots(root_key)

        def fill(file: StoreFile) -> None:
            with file.transaction():
                file.write_many("INSERT INTO meta VALUES (?, ?)", roots.items())
                file.write_many("INSERT INTO users VALUES (?, ?)", sorted(users))

        StoreFile.create(path, fill)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, readonly: bool = False, agent: bool = False) -> CohortStore:
        """`agent=True` is for the one process that serves the store's users; a second one is
        refused. Others, readers and writers, may come and go meanwhile."""
        store = cls(StoreFile(Path(path), readonly=readonly, agent=agent))
        if not readonly:
            store_roots.renew_weak(store.file)
        return store

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> CohortStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<CohortStore {self.file.folder}, redacted>"

    @property
    def path(self) -> Path:
        return self.file.folder

    def now(self) -> int:
        return int(self._clock())

    # --- users and secrets -----------------------------------------------------------------------

    @property
    def users(self) -> NDArray[np.int64]:
        """The users' numbers in the federation, ascending."""
        rows = self.file.rows("SELECT number FROM users ORDER BY number")
        return np.array([number for (number,) in rows], dtype=np.int64)

    def name(self, number: int) -> str:
        row = self.file.row("SELECT name FROM users WHERE number = ?", [int(number)])
        if row is None:
            raise DataError(f"user {number} is not in the store {self.path}")
        return str(row[0])

    def find(self, user: str) -> int:
        """The number of the user of this name, or of this number (which may be written #5, for
        names that are numbers, too)."""
        rows = self.file.rows("SELECT number FROM users WHERE name = ? LIMIT 2", [user])
        named = [int(number) for (number,) in rows]
        numbered = self._numbered(user)
        found = sorted({*named, *numbered})
        if len(found) == 1:
            return found[0]
        if not found:
            raise DataError(f"there is no user {user!r} in the store {self.path}")
        if numbered:
            raise DataError(
                f"{user!r} is the name of one user and the number of another in the store "
                f"{self.path}; say which number is meant: " + " or ".join(f"#{n}" for n in found)
            )
        raise DataError(
            f"there are several users {user!r} in the store {self.path}; say the number, as in "
            f"#{found[0]}"
        )

    def _numbered(self, user: str) -> list[int]:
        digits = user.removeprefix("#")
        if not (digits.isdecimal() and digits.isascii() and len(digits) <= 10):
            return []
        sql = "SELECT number FROM users WHERE number = ?"
        return [int(number) for (number,) in self.file.rows(sql, [int(digits)])]

    def renumber(self, old: int, new: int) -> None:
        """Give a user another number, as an invitation says; only before her first round."""
        _check_users([(new, "")])
        with self.file.transaction():
            self.name(old)
            if self.file.row("SELECT 1 FROM rounds LIMIT 1") is not None:
                raise UsageError(
                    f"the store in {self.path} has taken part in rounds already; make a new store "
                    f"for another federation"
                )
            if old != new and self.file.row("SELECT 1 FROM users WHERE number = ?", [new]):
                raise UsageError(f"there is already a user {new} in the store {self.path}")
            self.file.write("UPDATE users SET number = ? WHERE number = ?", [new, old])
            self._touch_history()

    def streams(self, era: int = 0) -> Streams:
        """All draws of these users under the `era`-th terms, by which no other party can link what
        they send."""
        return store_roots.streams(self.file, era)

    def noise(self, era: int) -> bytes:
        """The root of the private coins under the `era`-th terms, 32 bytes."""
        return store_roots.coins(self.file, era)

    def secret(self, name: str) -> bytes | None:
        """An entry that other parts keep here: keys, addresses."""
        return self._meta(f"secret:{name}")

    def set_secret(self, name: str, value: bytes) -> None:
        self._set_meta(f"secret:{name}", value)

    # --- catalogue and history -------------------------------------------------------------------

    def set_catalogue(self, items: Sequence[tuple[str, str]]) -> None:
        """Id and title of every item, by item number."""
        if len({item for item, _ in items}) != len(items):
            raise DataError("a catalogue must not name two items alike")
        with self.file.transaction():
            self.file.write("DELETE FROM catalogue")
            self.file.write_many(
                "INSERT INTO catalogue VALUES (?, ?, ?)",
                ((number, item, title) for number, (item, title) in enumerate(items)),
            )
            self._touch_history()

    def catalogue(self) -> list[tuple[str, str]]:
        """Id and title by item number; empty while none is known."""
        return [(i, t) for i, t in self.file.rows("SELECT id, title FROM catalogue ORDER BY item")]

    def add_history(
        self, number: int, items: Sequence[str], times: Sequence[int] | None = None
    ) -> tuple[int, int]:
        """How many interactions were new, and how many were there already. One that is there keeps
        the latest time."""
        self.name(number)
        stamps: Sequence[int | None] = [None] * len(items) if times is None else times
        if len(stamps) != len(items):
            raise DataError("a history needs one time per interaction, or none at all")
        rows = ((int(number), item, stamp) for item, stamp in zip(items, stamps, strict=True))
        count = "SELECT count(*) FROM history WHERE number = ?"
        return self._add_history(rows, len(items), count, [int(number)])

    def add_histories(self, history: Interactions) -> tuple[int, int]:
        """`add_history` for all users at once: row u of the table is the u-th of `users`, and items
        are named as its vocabulary names them."""
        users = self.users
        if history.n_users != len(users):
            raise DataError(
                f"the histories are of {history.n_users:,} users, the store has {len(users):,}"
            )
        names = history.items_vocabulary().names()
        items = map(names.__getitem__, history.items.tolist())
        count = history.n_interactions
        times = [None] * count if history.timestamps is None else history.timestamps.tolist()
        rows = zip(users[history.users].tolist(), items, times, strict=True)
        return self._add_history(rows, count, "SELECT count(*) FROM history", [])

    def history(self) -> Interactions:
        """Row u is the history of the u-th of `users`, in item numbers of the catalogue. What the
        catalogue does not know is left out; see `unknown`. Times are there if all are known."""
        with self.file.snapshot():
            version = self._history_version()
            if self._history is not None and self._history[0] == version:
                return self._history[1]
            users = self.users
            names = [item for item, _ in self.catalogue()]
            found = self.file.rows(
                "SELECT h.number, c.item, ifnull(h.time, ?) FROM history h "
                "JOIN catalogue c ON c.id = h.item",
                [_NO_TIME],
            )
        table = np.array(found, dtype=np.int64).reshape(-1, 3)
        times = table[:, 2]
        history = Interactions.from_pairs(
            np.searchsorted(users, table[:, 0]),
            table[:, 1],
            n_users=len(users),
            n_items=len(names),
            timestamps=times if len(times) and (times != _NO_TIME).all() else None,
            user_ids=Vocabulary([str(number) for number in users.tolist()]),
            item_ids=Vocabulary(names),
        )
        self._history = version, history
        return history

    def interactions(self, number: int) -> list[tuple[str, int | None]]:
        """One user's items and times, also those that the catalogue does not know."""
        sql = "SELECT item, time FROM history WHERE number = ? ORDER BY time, item"
        return [(item, stamp) for item, stamp in self.file.rows(sql, [int(number)])]

    def count_history(self) -> int:
        """Interactions of all users."""
        return self._count("SELECT count(*) FROM history", [])

    def unknown(self) -> list[str]:
        """Items of histories that the catalogue does not name; empty while there is none."""
        rows = self.file.rows(
            "SELECT DISTINCT item FROM history WHERE EXISTS (SELECT 1 FROM catalogue) "
            "AND item NOT IN (SELECT id FROM catalogue) ORDER BY item"
        )
        return [item for (item,) in rows]

    def _add_history(
        self, rows: Iterable[tuple[Any, ...]], given: int, count: str, values: list[int]
    ) -> tuple[int, int]:
        with self.file.transaction():
            before = self._count(count, values)
            self.file.write_many(_ADD_HISTORY, rows)
            added = self._count(count, values) - before
            self._touch_history()
        return added, given - added

    def _history_version(self) -> int:
        return int.from_bytes(self._meta("history-version") or b"", "little")

    def _touch_history(self) -> None:
        self._set_meta("history-version", (self._history_version() + 1).to_bytes(8, "little"))

    # --- consent ---------------------------------------------------------------------------------

    def set_choice(self, number: int, choice: Choice) -> None:
        """In force from the next round on; the earlier choices stay on record."""
        with self.file.transaction():
            self.name(number)
            self._set_choices([(int(number), _to_text(choice))])

    def set_choices(self, consent: Consent) -> None:
        """`set_choice` for every user of these records."""
        rows = [
            (number, _to_text(consent.row(row)))
            for row, number in enumerate(consent.users.tolist())
        ]
        with self.file.transaction():
            strangers = set(consent.users.tolist()) - set(self.users.tolist())
            if strangers:
                raise DataError(f"user {min(strangers)} is not in the store {self.path}")
            self._set_choices(rows)

    def choice(self, number: int) -> Choice:
        """The choice in force for one user."""
        self.name(number)
        records = self.records(number)
        return records[-1].choice if records else _AT_HOME

    def choices(self) -> Consent:
        """The choice in force for each of `users`. Who has not chosen takes no part."""
        rows = self.file.rows(
            "SELECT u.number, c.choice FROM users u LEFT JOIN consent c ON c.version = "
            "(SELECT max(version) FROM consent WHERE number = u.number) ORDER BY u.number"
        )
        texts = sorted({text for _, text in rows if text is not None})
        known = [_AT_HOME, *map(_from_text, texts)]
        place = {None: 0} | {text: row for row, text in enumerate(texts, start=1)}
        return Consent.of(
            np.array([number for number, _ in rows], dtype=np.int64),
            known,
            np.array([place[text] for _, text in rows], dtype=np.int64),
            sorted({name for choice in known for name in choice.hidden_attributes}),
            sorted({name for choice in known for name in choice.refused_owners}),
        )

    def records(self, number: int) -> list[Record]:
        """Every choice that a user has made, oldest first."""
        sql = "SELECT choice, changed_at FROM consent WHERE number = ? ORDER BY version"
        rows = self.file.rows(sql, [int(number)])
        # One that repeats the former stands for a changed attribute.
        new = [row for k, row in enumerate(rows) if not k or row[0] != rows[k - 1][0]]
        return [Record(_from_text(text), at) for text, at in new]

    def _set_choices(self, rows: Iterable[tuple[int, str]]) -> None:
        # Who makes the same choice again has not changed her mind: a round under way goes on.
        self.file.write_many(
            "INSERT INTO consent (number, choice, changed_at) SELECT ?1, ?2, ?3 WHERE ?2 IS NOT "
            "(SELECT choice FROM consent WHERE number = ?1 ORDER BY version DESC LIMIT 1)",
            ((number, text, self.now()) for number, text in rows),
        )

    # --- attributes ------------------------------------------------------------------------------

    def attributes(self, number: int) -> dict[str, str]:
        """What the store knows of a user, by name."""
        self.name(number)
        return store_attributes.of_user(self.file, int(number))

    def set_attribute(self, number: int, name: str, value: str | None) -> None:
        """Keep one, or (None) forget it. What was prepared with another value does not leave."""
        self.name(number)
        store_attributes.change(self.file, int(number), name, value, self.now())

    def labels(self, filters: Sequence[FilterConfig]) -> NDArray[np.int64]:
        """[users, filters]: by class; -1 where a value is missing or unknown to the filter."""
        return store_attributes.labels(self.file, self.users, filters)

    # --- ledger and budget -----------------------------------------------------------------------

    def ledger(self, number: int | None = None) -> pa.Table:
        """What has left, or may have, in the columns of a run's ledger."""
        return self.ledger_rows(number).select(Ledger().pending().schema.names)

    def ledger_rows(self, number: int | None = None) -> pa.Table:
        """The same with what became of it (`state`), and with the message that carried it: attempt,
        time, bytes on the wire, how many devices are in it, SHA-256."""
        return ledger_rows(self.file, number)

    def budget(self, number: int | None = None) -> list[Spent]:
        """Running totals by user and kind of release. They never fall."""
        return store_budget.by_kind(self.file, number)

    def sent_reports(self, number: int | None = None) -> list[SentReports]:
        """Randomised reports that have left, by user, ε and batch. Their numbers never fall."""
        return store_budget.sent_reports(self.file, number)

    def spent(self) -> NDArray[np.float64]:
        """ε that each of `users` has spent so far, by plain composition, over all federations and
        terms. Releases that vouch for nothing are not in it."""
        found = store_budget.spent(self.file)
        return np.array([found.get(number, 0.0) for number in self.users.tolist()])

    def contacts(self, number: int | None = None) -> list[Contact]:
        """What told others that these devices are there, or may have, oldest first."""
        where, values = ("", []) if number is None else ("WHERE number = ?", [int(number)])
        sql = f"SELECT number, party, what, bytes, epsilon, at FROM contacts {where} ORDER BY id"
        return [Contact(*row) for row in self.file.rows(sql, values)]

    def note_contacts(self, contacts: Iterable[Contact]) -> None:
        """On record from here on, for good."""
        with self.file.transaction():
            self.file.write_many(
                "INSERT INTO contacts (number, party, what, bytes, epsilon, at) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (astuple(contact) for contact in contacts),
            )

    # --- helpers ---------------------------------------------------------------------------------

    def _meta(self, name: str) -> bytes | None:
        row = self.file.row("SELECT value FROM meta WHERE name = ?", [name])
        return None if row is None else bytes(row[0])

    def _set_meta(self, name: str, value: bytes) -> None:
        with self.file.transaction():
            self.file.write("INSERT OR REPLACE INTO meta VALUES (?, ?)", [name, bytes(value)])

    def _count(self, sql: str, values: list[int]) -> int:
        row = self.file.row(sql, values)
        return 0 if row is None else int(row[0])


def _check_users(users: Sequence[tuple[int, str]]) -> None:
    numbers = [number for number, _ in users]
    if not numbers or len(set(numbers)) != len(numbers):
        raise UsageError("a store needs at least one user, and a number of its own for each")
    if min(numbers) < 0 or max(numbers) > MAX_NUMBER:
        raise UsageError(f"a user's number must lie in [0, {MAX_NUMBER}]")


def _to_text(choice: Choice) -> str:
    return json.dumps(choice.table(), sort_keys=True)


def _from_text(text: str) -> Choice:
    return Choice(**json.loads(text))
