"""The store of a cohort: all that a device (or a gateway, for many) knows, encrypted at rest.

A folder with `store.db` and `store.key`. Every change is durable when the method returns. Several
processes may have a store open, so that an owner can change her mind while the agent runs; only one
of them may be the agent.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.consent import Choice, Consent
from sottovoce.core.hiding import Hidden
from sottovoce.core.interactions import Interactions, Vocabulary
from sottovoce.core.ledger import Ledger
from sottovoce.core.one_bit import noise_root
from sottovoce.errors import DataError, UsageError
from sottovoce.rng import SECRET_BYTES, SecretStreams, Streams, streams_of
from sottovoce.stores.device_rounds import (
    drop_outdated,
    forget_vectors_of,
    hidings,
    ledger_rows,
)
from sottovoce.stores.encrypted import StoreFile
from sottovoce.stores.person import (
    AT_HOME,
    ChoiceRecord,
    PersonalStore,
    choice_of,
    choice_text,
    entries,
    write_entry,
)
from sottovoce.wire.invitations import Invitation, keep_invitation, kept_invitation

# The two keys from which a store's users draw: what others may see, and private coins. A draw
# depends on its key, the user and the round. Under other terms a round's number comes again, with
# another model: the same coin for two values would tell how they differ, and no ε would bound
# what that reveals; the same draws would tell that two reports are one device's. So every terms
# have keys of their own, derived from the store's. Both have 256 bits from the operating system,
# but in a trial, which has the draws and coins of the simulation.

NOISE_BYTES = 32
_DRAWS, _FORMER, _COINS = "root-key", "former-root-key", "noise-root"
ASKS_FIRST = "asks-first"
"""Whether each message waits until its user has said yes to it (`stores.word`)."""


def first_roots(root_key: int | None) -> dict[str, bytes]:
    """Return the root keys of a new store, by name; a trial gives a root key."""
    if root_key is None:
        return {_DRAWS: secrets.token_bytes(SECRET_BYTES), _COINS: secrets.token_bytes(NOISE_BYTES)}
    return {_DRAWS: streams_of(root_key).root_bytes(), _COINS: noise_root(root_key)}


def streams(file: StoreFile, era: int) -> Streams:
    """What is drawn under the `era`-th terms. Which positives may ever leave is drawn once for all
    terms."""
    former, root = _read(file, _FORMER), _streams(_read(file, _DRAWS))
    if not isinstance(root, SecretStreams) or not (era or former):
        return root
    now = root.child("terms", era) if era else root
    return now.with_lasting(_streams(former) if former else root)


def coins(file: StoreFile, era: int) -> bytes:
    """The root of the private coins under the `era`-th terms, 32 bytes."""
    root = _read(file, _COINS)
    if era == 0:
        return root
    place = b"terms" + era.to_bytes(8, "little")
    return hashlib.blake2b(place, key=root, digest_size=NOISE_BYTES).digest()


def renew(file: StoreFile) -> None:
    """From now on all is drawn from new keys. Only what may ever leave is still drawn from the
    first one: a second choice would let more leave than its owner permits."""
    with file.transaction():
        _renew_draws(file)
        write_entry(file, _COINS, secrets.token_bytes(NOISE_BYTES))


def _renew_draws(file: StoreFile) -> None:
    if not _read(file, _FORMER):
        write_entry(file, _FORMER, _read(file, _DRAWS))
    write_entry(file, _DRAWS, secrets.token_bytes(SECRET_BYTES))


def _streams(key: bytes) -> Streams:
    return streams_of(_number(key))


def _number(key: bytes) -> int:
    return int.from_bytes(key, "little")


def _read(file: StoreFile, name: str) -> bytes:
    return entries(file).get(name, b"")


# What a store knows of its users: an attribute's value by its name. Values are used at home, and
# named nowhere else: neither in an error nor in a log nor in a repr.

if TYPE_CHECKING:
    from sottovoce.algorithms.uc.settings import FilterConfig


def of_user(file: StoreFile, number: int) -> dict[str, str]:
    rows = file.rows("SELECT name, value FROM attributes WHERE number = ? ORDER BY name", [number])
    return dict(rows)


def change(file: StoreFile, number: int, name: str, value: str | None, now: int) -> None:
    """Keep a value, or (None) forget it. A report that was prepared with another one will not
    leave, as if she had chosen anew."""
    if not name or value == "":
        raise DataError("an attribute needs a name and a value")
    with file.transaction():
        former = of_user(file, number).get(name)
        if former == value:
            return
        if value is None:
            file.write("DELETE FROM attributes WHERE (number, name) = (?, ?)", [number, name])
        else:
            file.write(
                "INSERT OR REPLACE INTO attributes VALUES (?, ?, ?, ?)", [number, name, value, now]
            )
        repeat_choices(file, [number], now)
    if former is not None:
        file.cut_log()


def repeat_choices(file: StoreFile, numbers: Iterable[int], now: int) -> None:
    """The choices of these users once more: what was prepared before does not leave."""
    file.write_many(
        "INSERT INTO consent (number, choice, changed_at) SELECT number, choice, ?"
        " FROM consent WHERE number = ? ORDER BY version DESC LIMIT 1",
        ((now, int(number)) for number in numbers),
    )


def labels(
    file: StoreFile, users: NDArray[np.int64], filters: Sequence[FilterConfig]
) -> NDArray[np.int64]:
    """[users, filters]: classes; -1 where a value is missing, or is none of a filter's."""
    found = np.full((len(users), len(filters)), -1, dtype=np.int64)
    sql = "SELECT number, value FROM attributes WHERE name = ?"
    for column, wanted in enumerate(filters):
        rows = file.rows(sql, [wanted.name])
        codes = {value: wanted.code(value) for value in {value for _, value in rows}}
        numbers = np.array([number for number, _ in rows], dtype=np.int64)
        found[np.searchsorted(users, numbers), column] = [codes[value] for _, value in rows]
    return found


# A store's budget: what its users have released in all. Nothing here ever falls.


@dataclass(frozen=True, slots=True)
class Spent:
    """What one user has released in all, by one kind of release."""

    number: int
    kind: str
    releases: int
    positive_rows: int
    negative_rows: int
    bytes: int
    epsilon: float
    reports: int = 0


@dataclass(frozen=True, slots=True)
class SentReports:
    """Randomised reports of one user and one ε that have left, whatever became of them."""

    number: int
    epsilon: float
    """Cost of each."""
    batch: int
    """The fewest devices whose reports a proxy hands on together; 0 where there was none."""
    reports: int


def by_kind(file: StoreFile, number: int | None) -> list[Spent]:
    where, values = _of(number)
    rows = file.rows(f"SELECT * FROM budget {where} ORDER BY number, kind", values)
    return [Spent(*row) for row in rows]


def sent_reports(file: StoreFile, number: int | None) -> list[SentReports]:
    where, values = _of(number)
    sql = f"SELECT number, epsilon, batch, reports FROM spent {where} ORDER BY 1, 2, 3"
    return [SentReports(*row) for row in file.rows(sql, values)]


def spent(file: StoreFile) -> dict[int, float]:
    """ε by plain composition, of those who have spent any."""
    return file.held("spent", ("spent",), lambda: _spent(file))


def _spent(file: StoreFile) -> dict[int, float]:
    costs: dict[int, list[float]] = {}
    for sent in sent_reports(file, None):
        costs.setdefault(sent.number, []).append(sent.reports * sent.epsilon)
    return {number: math.fsum(each) for number, each in costs.items()}


def _of(number: int | None) -> tuple[str, list[int]]:
    return ("", []) if number is None else ("WHERE number = ?", [int(number)])


if TYPE_CHECKING:
    import pyarrow as pa

    from sottovoce.algorithms.uc.settings import FilterConfig

MAX_NUMBER = 2**32 - 1
_NO_TIME = -(2**63)
_ADD_HISTORY = """
INSERT INTO history (number, item, time) VALUES (?, ?, ?) ON CONFLICT (number, item)
DO UPDATE SET time = excluded.time WHERE excluded.time > ifnull(time, excluded.time - 1)
"""


@dataclass(frozen=True, slots=True)
class Contact:
    """A request that said that a device is there, or may have."""

    number: int
    party: str
    what: str
    """`enrolment` or `check-in`."""
    bytes: int
    """Bytes of this user's part in it."""
    epsilon: float
    """0: no history is in it. That the device is there, its party knows from then on."""
    at: int


class CohortStore(PersonalStore):
    """Users with their histories, choices, ledger and budget. A phone has one user."""

    def __init__(self, file: StoreFile, clock: Callable[[], float] = time.time) -> None:
        super().__init__(file, clock)
        self._history: tuple[int, Interactions] | None = None

    @classmethod
    def create(
        cls, path: Path, users: Sequence[tuple[int, str]], *, root_key: int | None = None
    ) -> CohortStore:
        """A new store for these users (number and name). A trial gives a root key and has the draws
        and coins of the simulation; otherwise they come from the operating system."""
        _check_users(users)
        roots = first_roots(root_key)

        def fill(file: StoreFile) -> None:
            with file.transaction():
                file.write_many("INSERT INTO meta VALUES (?, ?)", roots.items())
                file.write_many("INSERT INTO users (number, name) VALUES (?, ?)", sorted(users))

        StoreFile.create(path, fill)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, readonly: bool = False, agent: bool = False) -> Self:
        return cls(super().open(path, readonly=readonly, agent=agent).file)

    # --- users and secrets -----------------------------------------------------------------------

    @property
    def users(self) -> NDArray[np.int64]:
        """The users' numbers in the federation, ascending."""
        return self.choices().users

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
            self.file.forget_held()  # other tables have followed
            self._touch_history()

    def accept(self, card: Invitation) -> None:
        """Keep an invitation; its device has the number that it names."""
        with self.file.transaction():
            kept, numbers = kept_invitation(self), self.numbers
            if kept and (kept.federation, kept.number) != (card.federation, card.number):
                raise UsageError(
                    f"the store {self.path} is invited to another federation, or as another "
                    "device; make a new store"
                )
            if len(numbers) != 1:
                raise UsageError(
                    f"{self.path} is a gateway's store; an invitation is for one device"
                )
            if numbers[0] != card.number:
                self.renumber(numbers[0], card.number)
            keep_invitation(self, card)

    def leave_federation(self) -> None:
        """Nobody of this store takes part any more, and what it takes to do so is forgotten: the
        invitation, keys and accounts. Nobody is told. Histories, ledger and budget stay, and so
        does her wish to be asked before anything leaves."""
        with self.file.transaction():
            for number in self.numbers:
                self.set_choice(number, replace(self.choice(number), takes_part=False))
            forgotten = "DELETE FROM meta WHERE name LIKE 'secret:%' AND name != ?"
            self.file.write(forgotten, [f"secret:{ASKS_FIRST}"])
        self.file.cut_log()

    def streams(self, era: int = 0) -> Streams:
        """All draws of these users under the `era`-th terms, by which no other party can link what
        they send."""
        return streams(self.file, era)

    def noise(self, era: int) -> bytes:
        """The root of the private coins under the `era`-th terms, 32 bytes."""
        return coins(self.file, era)

    # --- catalogue and history -------------------------------------------------------------------

    def set_catalogue(
        self, items: Sequence[tuple[str, str]], categories: Sequence[Sequence[str]] = ()
    ) -> None:
        """Id and title of every item, by item number; and its categories, where any are known.
        Whoever never sends what is named anew starts to learn anew. A title that an item had stays
        a name for it: what is never sent by that name does not leave when it is called otherwise,
        or is gone."""
        if len({item for item, _ in items}) != len(items):
            raise DataError("a catalogue must not name two items alike")
        if categories and len(categories) != len(items):
            raise DataError("a catalogue needs the categories of every item, or none at all")
        with self.file.transaction():
            before = self._kept_back()
            keep_titles(self.file, self.catalogue(), dict(items))
            self.file.write("DELETE FROM catalogue")
            self.file.write("DELETE FROM categories")
            self.file.write_many(
                "INSERT INTO catalogue VALUES (?, ?, ?)",
                ((number, item, title) for number, (item, title) in enumerate(items)),
            )
            self.file.write_many(
                "INSERT INTO categories VALUES (?, ?)",
                ((number, name) for number, names in enumerate(categories) for name in {*names}),
            )
            self._touch_history()
            self._start_anew({number for number, _ in self._kept_back() - before})

    def count_items(self) -> int:
        """Items of the catalogue, which is read together with the history."""
        return self.history().n_items

    def catalogue(self) -> list[tuple[str, str]]:
        """Id and title by item number; empty while none is known."""
        return [(i, t) for i, t in self.file.rows("SELECT id, title FROM catalogue ORDER BY item")]

    def categories(self) -> list[tuple[str, ...]]:
        """Return the categories of every item of the catalogue, by item number."""
        found: list[list[str]] = [[] for _ in range(len(self.catalogue()))]
        for item, name in self.file.rows("SELECT item, name FROM categories ORDER BY 1, 2"):
            found[item].append(name)
        return [tuple(names) for names in found]

    def former_titles(self) -> list[tuple[str, ...]]:
        """Return, for every item of the catalogue by item number, other titles that it had here
        before."""
        had = titles_had(self.file)
        return [
            tuple(one for one in had.get(item, ()) if one != title)
            for item, title in self.catalogue()
        ]

    def names(self) -> list[set[str]]:
        """All by which a choice can name every item of the catalogue, by item number: its id, the
        titles that it has and had, and its categories."""
        every = zip(self.catalogue(), self.former_titles(), self.categories(), strict=True)
        return [{*item, *former, *categories} for item, former, categories in every]

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

    def remove_items(self, number: int, items: Iterable[str]) -> int:
        """Forget that a user has these, and what was learnt from her history; how many she had. A
        report that was prepared does not leave."""
        rows = [(int(number), item) for item in dict.fromkeys(items)]
        return self._remove(number, "DELETE FROM history WHERE (number, item) = (?, ?)", rows)

    def forget_history(self, number: int) -> int:
        """`remove_items` of all that she has."""
        return self._remove(number, "DELETE FROM history WHERE number = ?", [(int(number),)])

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

    def _remove(self, number: int, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
        with self.file.transaction():
            self.name(number)
            removed = sum(self.file.write(sql, values) for values in rows)
            if removed:
                self._touch_history()
                self._start_anew({int(number)})
        if removed:
            self.file.cut_log()
        return removed

    def _start_anew(self, numbers: set[int]) -> None:
        """These users' histories have lost something: what was learnt with it is forgotten, and
        what was prepared with it does not leave."""
        if not numbers:
            return
        forget_vectors_of(self.file, numbers)
        repeat_choices(self.file, sorted(numbers), self.now())
        drop_outdated(self.file, "a history was changed")

    def _kept_back(self) -> set[tuple[int, str]]:
        """User and item of all that is in histories and never sent."""
        never = self._never_sent()
        if not never:
            return set()
        named = {item: {item, *had} for item, had in titles_had(self.file).items()} | {
            item: names for (item, _), names in zip(self.catalogue(), self.names(), strict=True)
        }
        rows = self.file.rows("SELECT number, item FROM history")
        return {
            (number, item)
            for number, item in rows
            if not never.get(number, set()).isdisjoint(named.get(item, {item}))
        }

    def _never_sent(self) -> dict[int, set[str]]:
        """The names of what users never send, of those who name anything."""
        chosen = self.choices()
        return {
            int(chosen.users[row]): {*chosen.row(row).never_send}
            for row in np.flatnonzero(chosen.never_send.any(axis=1)).tolist()
        }

    @property
    def history_version(self) -> int:
        """Another whenever a history or the catalogue has changed."""
        return self._history_version()

    def _history_version(self) -> int:
        return int.from_bytes(self._meta("history-version") or b"", "little")

    def _touch_history(self) -> None:
        self._set_meta("history-version", (self._history_version() + 1).to_bytes(8, "little"))

    # --- consent ---------------------------------------------------------------------------------

    def set_choice(self, number: int, choice: Choice) -> None:
        """In force from the next round on; the earlier choices stay on record. Where she never
        sends more than before, what was learnt is forgotten: it may have been learnt from that."""
        with self.file.transaction():
            self.name(number)
            self._set_choices([(int(number), choice_text(choice))])

    def change_choice(self, number: int, change: Callable[[Choice], Choice]) -> Choice:
        """Set what `change` makes of the choice that is in force at that moment, so that nothing is
        undone that was chosen elsewhere meanwhile. The new choice."""
        with self.file.transaction():
            choice = change(self.choice(number))
            self.set_choice(number, choice)
        return choice

    def set_choices(self, consent: Consent) -> None:
        """`set_choice` for every user of these records."""
        rows = [
            (number, choice_text(consent.row(row)))
            for row, number in enumerate(consent.users.tolist())
        ]
        with self.file.transaction():
            strangers = set(consent.users.tolist()) - set(self.users.tolist())
            if strangers:
                raise DataError(f"user {min(strangers)} is not in the store {self.path}")
            self._set_choices(rows)

    def choices(self) -> Consent:
        """The choice in force for each of `users`. Who has not chosen takes no part."""
        return self._chosen()[0]

    def choice(self, number: int) -> Choice:
        """The choice in force for one user."""
        found = self._chosen()[2].get(int(number))
        return super().choice(number) if found is None else found

    def latest_choice(self) -> int:
        """The number of the latest choice that anybody has made; 0 before the first."""
        return self._chosen()[1]

    def _chosen(self) -> tuple[Consent, int, dict[int, Choice]]:
        return self.file.held("choices", ("consent", "users"), self._read_choices)

    def _read_choices(self) -> tuple[Consent, int, dict[int, Choice]]:
        rows = self.file.rows(
            "SELECT u.number, c.choice, ifnull(c.version, 0) FROM users u LEFT JOIN consent c "
            "ON c.version = (SELECT max(version) FROM consent WHERE number = u.number) "
            "ORDER BY u.number"
        )
        texts = sorted({text for _, text, _ in rows if text is not None})
        known = [AT_HOME, *map(choice_of, texts)]
        place = {None: 0} | {text: row for row, text in enumerate(texts, start=1)}
        consent = Consent.of(
            np.array([number for number, _, _ in rows], dtype=np.int64),
            known,
            np.array([place[text] for _, text, _ in rows], dtype=np.int64),
            sorted(
                {name for choice in known for name in choice.hidden_attributes}
                | {name for choice in known for name, _ in choice.strengths}
            ),
            sorted({name for choice in known for name in choice.refused_owners}),
        )
        each = {number: known[place[text]] for number, text, _ in rows}
        return consent, max(version for *_, version in rows), each

    def records(self, number: int) -> list[ChoiceRecord]:
        """Every choice that a user has made, oldest first."""
        found = super().records(number)
        # One that repeats the former stands for a changed attribute or history.
        return [one for k, one in enumerate(found) if not k or one.choice != found[k - 1].choice]

    def _set_choices(self, rows: Sequence[tuple[int, str]]) -> None:
        before = self._never_sent()
        grown = [
            number
            for number, text in rows
            if not before.get(number, set()).issuperset(choice_of(text).never_send)
        ]
        forget_vectors_of(self.file, grown)
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
        return of_user(self.file, int(number))

    def set_attribute(self, number: int, name: str, value: str | None) -> None:
        """Keep one, or (None) forget it. What was prepared with another value does not leave."""
        self.name(number)
        change(self.file, int(number), name, value, self.now())

    def labels(self, filters: Sequence[FilterConfig]) -> NDArray[np.int64]:
        """[users, filters]: by class; -1 where a value is missing or unknown to the filter."""
        return labels(self.file, self.users, filters)

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
        return by_kind(self.file, number)

    def hidings(self, number: int | None = None) -> list[tuple[Hidden, int]]:
        """How far vectors have moved when their users hid something, and when; oldest first."""
        return hidings(self.file, number)

    def sent_reports(self, number: int | None = None) -> list[SentReports]:
        """Randomised reports that have left, by user, ε and batch. Their numbers never fall."""
        return sent_reports(self.file, number)

    def spent(self) -> NDArray[np.float64]:
        """ε that each of `users` has spent so far, by plain composition, over all federations and
        terms. Releases that vouch for nothing are not in it."""
        found = spent(self.file)
        return np.array([found.get(number, 0.0) for number in self.users.tolist()])

    def contacts(self, number: int | None = None) -> list[Contact]:
        """What told others that these devices are there, or may have, oldest first."""
        return [
            Contact(r.user, r.party, r.what, r.bytes, r.epsilon, r.at)
            for r in self.requests(number)
        ]

    # --- helpers ---------------------------------------------------------------------------------

    def _count(self, sql: str, values: list[int]) -> int:
        row = self.file.row(sql, values)
        return 0 if row is None else int(row[0])


def _check_users(users: Sequence[tuple[int, str]]) -> None:
    numbers = [number for number, _ in users]
    if not numbers or len(set(numbers)) != len(numbers):
        raise UsageError("a store needs at least one user, and a number of its own for each")
    if min(numbers) < 0 or max(numbers) > MAX_NUMBER:
        raise UsageError(f"a user's number must lie in [0, {MAX_NUMBER}]")


# The titles that a store has seen on items: each stays a name for its item, so that what is never
# sent by a title does not leave when a server calls it otherwise, or says that it is gone.

_TITLES = "former-titles"


def titles_had(file: StoreFile) -> dict[str, list[str]]:
    """Former titles by id, also of items that the catalogue does not have any more."""
    found: dict[str, list[str]] = json.loads(entries(file).get(_TITLES, b"{}"))
    return found


def keep_titles(
    file: StoreFile, catalogue: Sequence[tuple[str, str]], titles: Mapping[str, str]
) -> None:
    """What the items of this catalogue are called, before they have these titles; within a
    transaction."""
    had = titles_had(file)
    lost = [
        (item, title)
        for item, title in catalogue
        if title and titles.get(item) != title and title not in had.get(item, ())
    ]
    for item, title in lost:
        had.setdefault(item, []).append(title)
    if lost:
        write_entry(file, _TITLES, json.dumps(had).encode())
