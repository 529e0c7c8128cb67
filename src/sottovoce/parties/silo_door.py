"""The one door of simulated DRIFT users. Everything that data owners are given leaves here.

A user computes what could leave (`algorithms.drift.User`). The door reads her consent, books what
it permits, and lets that go. `let_out_one` is the definition, message by message. `let_out` does
the same for all events of all users at once, and makes a `Departed`: the only thing that data
owners learn from at full speed, and that nothing else can make.

Owners read what they get in full, so that no ε can be vouched for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import InitVar, dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift.blocks import Events, Ints
from sottovoce.algorithms.drift.messages import Interaction, OwnerTable
from sottovoce.algorithms.drift.replay import Addressed, address
from sottovoce.algorithms.drift.system import User
from sottovoce.config import require_whole
from sottovoce.core.consent import Consent
from sottovoce.core.ledger import Entries, Ledger
from sottovoce.core.redacted import Redacted
from sottovoce.errors import ConsentError, DataError

SEALED_BYTES = 53
"""Bytes of an interaction as `privacy.interactions` seals it; simulation does not need that
library."""
KIND = "interactions"
"""What the ledger calls what owners have read; the owner's name follows, after a colon."""
_KEY = object()


class Read(NamedTuple):
    """What owners read in an epoch, a row for each user and owner, by user, then owner. Private."""

    user: Ints
    owner: Ints
    positive: Ints
    negative: Ints


@dataclass(frozen=True, slots=True, repr=False)
class Departed(Redacted):
    """What a door has let go: the messages of an epoch, and in how many epochs they leave. Only a
    door makes one. Private."""

    events: Events
    """The events of users who take part. If nobody may be told of an event, only its user and its
    turn are left."""
    told: Addressed
    numbers: tuple[int, ...]
    """Numbers of the data owners, as `told` counts them."""
    epochs: int
    read: Read
    door: object
    """A mark of the door that let it go, and that has it in its ledger."""
    key: InitVar[object]

    def __post_init__(self, key: object) -> None:
        if key is not _KEY:
            raise ConsentError("only a door lets interactions go; see InteractionDoor.let_out")

    def first(self, n: int | None) -> Departed:
        """What left with the first n events."""
        n = len(self.events) if n is None else min(n, len(self.events))
        pointer = self.told.pointer[: n + 1]
        told = Addressed(pointer, self.told.owner[: pointer[-1]])
        events = _some(self.events, slice(0, n))
        read = _read(events, told)
        return Departed(events, told, self.numbers, self.epochs, read, self.door, _KEY)

    def messages(self) -> Iterator[list[Interaction]]:
        """Those of an epoch, event by event."""
        e, (pointer, owner) = self.events, self.told
        for k in range(len(e)):
            said = int(e.user[k]), int(e.item[k]), bool(e.positive[k]), int(e.time[k])
            there = owner[pointer[k] : pointer[k + 1]].tolist()
            yield [Interaction(self.numbers[place], *said) for place in there]


class InteractionDoor(Redacted):
    """The door of all users that have a consent record here; a device is a cohort of one. Nothing
    leaves of a user without a record."""

    def __init__(
        self,
        consent: Consent,
        owners: tuple[str, ...],
        table: OwnerTable,
        items_named: Mapping[str, NDArray[np.int32]] | None = None,
    ) -> None:
        """`owners` are the names of the table's owners, in the order of their numbers;
        `items_named` are the items that names in the records' `never_send` stand for."""
        unknown = sorted(set(owners) - set(consent.owners))
        if unknown:
            raise ConsentError(f"no consent record says what {', '.join(unknown)} may see")
        self._numbers = tuple(table.all_owners())
        self._place = {number: place for place, number in enumerate(self._numbers)}
        if len(owners) != len(self._numbers):
            raise DataError("every data owner of the table must have a name, and hold something")
        self.owners, self.table, self.ledger = owners, table, Ledger()
        self.n_users = int(consent.users.max(initial=-1)) + 1
        shape = self.n_users, len(owners)
        columns = [consent.owners.index(name) for name in owners]
        self._joined = np.zeros(self.n_users, dtype=bool)
        self._joined[consent.users] = consent.takes_part
        shut = np.zeros(shape, dtype=bool)
        shut[consent.users] = consent.refused_owners[:, columns]
        self.refused = shut if consent.refused_owners.any() else None
        """[users, owners]: who must see nothing of whom; None where nobody refuses anybody."""
        self._open = self._joined[:, None] & ~shut
        self._never = [
            (self._whose(consent, column), _items(name, items_named or {}))
            for column, name in enumerate(consent.things)
            if consent.never_send[:, column].any()
        ]
        """Who never sends which items."""
        self._mark = object()
        self._may_see: dict[int, frozenset[int]] = {}
        self._held: dict[int, frozenset[int]] = {}
        self._said: Counter[tuple[bool, int, int]] = Counter()

    # --- message by message ----------------------------------------------------------------------

    def users(self) -> dict[int, User]:
        """Those who take part, each with this door between her and the owners."""
        return {u: UserAtDoor(u, self) for u in np.flatnonzero(self._joined).tolist()}

    def let_out_one(self, could: Iterable[Interaction]) -> list[Interaction]:
        """Return what leaves of what could leave. `close` writes it into the ledger."""
        left = [
            message
            for message in could
            if message.owner in self._seen_by(message.user)
            and message.item not in self._kept_back(message.user)
        ]
        for message in left:
            self._said[message.positive, message.user, message.owner] += 1
        return left

    def close(self, epochs: int) -> None:
        """Write the ledger rows of messages that were let out one by one in these epochs."""
        counts = np.zeros((2, self.n_users, len(self.owners)), dtype=np.int64)
        for (positive, user, owner), count in self._said.items():
            counts[int(positive), user, self._place[owner]] = count
        self._said.clear()
        self._book(_pairs(counts[1], counts[0]), 1, epochs)

    # --- all at once -----------------------------------------------------------------------------

    def joined(self, events: Events) -> Events:
        """The events of those who take part, without what they never send: as if it had not been.
        Others never joined, and are not waited for."""
        there = self._takes_part(events.user)
        for who, items in self._never:
            known = np.minimum(events.user, self.n_users - 1)  # strangers take no part
            there = there & ~(who[known] & np.isin(events.item, items))
        return events if there.all() else _some(events, there)

    def would_leave(self, events: Events) -> tuple[Events, Addressed]:
        """What `let_out` would let go of these events. Nothing leaves, and nothing is booked."""
        events = self.joined(events)
        told = address(events, self.table)
        if self.refused is None:
            return events, told
        pair = np.repeat(events.user * len(self.owners), np.diff(told.pointer)) + told.owner
        sent = self._open.ravel()[pair]
        counts = np.add.reduceat(sent, told.pointer[:-1], dtype=np.int64) if len(events) else sent
        pointer = np.r_[0, np.cumsum(counts)].astype(np.int64)
        return _blank(events, counts == 0), Addressed(pointer, told.owner[sent])

    def let_out(self, events: Events, epochs: int = 1) -> Departed:
        """Return those messages of all users' events that the users permit. Every epoch sends its
        messages anew, and each of them is booked."""
        require_whole("epochs", epochs, 1)
        events, told = self.would_leave(events)
        read = _read(events, told)
        self._book(read, epochs, epochs)
        return Departed(events, told, self._numbers, epochs, read, self._mark, _KEY)

    def has_let_go(self, departed: object) -> bool:
        """Whether this is from here, so that it is in this door's ledger."""
        return type(departed) is Departed and departed.door is self._mark

    # --- helpers ---------------------------------------------------------------------------------

    def _seen_by(self, user: int) -> frozenset[int]:
        """The owners that may see anything of hers."""
        found = self._may_see.get(user)
        if found is None:
            places = np.flatnonzero(self._open[user]).tolist() if user < self.n_users else ()
            found = self._may_see[user] = frozenset(self._numbers[place] for place in places)
        return found

    def _kept_back(self, user: int) -> frozenset[int]:
        """The items that she never sends."""
        found = self._held.get(user)
        if found is None:
            mine = [items for who, items in self._never if user < self.n_users and who[user]]
            found = self._held[user] = frozenset(item for one in mine for item in one.tolist())
        return found

    def _whose(self, consent: Consent, column: int) -> NDArray[np.bool_]:
        who = np.zeros(self.n_users, dtype=bool)
        who[consent.users] = consent.never_send[:, column]
        return who

    def _takes_part(self, users: Ints) -> NDArray[np.bool_]:
        if users.max(initial=-1) < self.n_users:
            return self._joined[users]
        known = users < self.n_users
        return known & self._joined[np.where(known, users, 0)]

    def _book(self, read: Read, times: int, epochs: int) -> None:
        """A row for each user and owner, owner by owner."""
        for number, name in enumerate(self.owners):
            mine = read.owner == number
            rows = int(mine.sum())
            if not rows:
                continue
            positive, negative = read.positive[mine] * times, read.negative[mine] * times
            self.ledger.record(
                Entries(
                    kind=f"{KIND}:{name}",
                    user=read.user[mine],
                    round=np.full(rows, epochs, dtype=np.int64),
                    positive_rows=positive.astype(np.int32),
                    negative_rows=negative.astype(np.int32),
                    bytes=(positive + negative) * SEALED_BYTES,
                    epsilon=np.full(rows, np.inf),
                )
            )


class UserAtDoor(User):
    """A user of whom nothing leaves but through her door."""

    def __init__(self, number: int, door: InteractionDoor) -> None:
        super().__init__(number, door.table)
        self._door = door

    def interact(self, item: int, positive: bool, time: int) -> list[Interaction]:
        """A message to each owner of the item that may see it; each is booked."""
        return self._door.let_out_one(super().interact(item, positive, time))


def _items(name: str, named: Mapping[str, NDArray[np.int32]]) -> NDArray[np.int32]:
    if name not in named:
        raise DataError(f"never_send names {name!r}, which is no item or category here")
    return named[name]


def _read(events: Events, told: Addressed) -> Read:
    owners = int(told.owner.max(initial=-1)) + 1
    shape = int(events.user.max(initial=-1)) + 1, owners, 2
    row = np.repeat(2 * owners * events.user + events.positive, np.diff(told.pointer))
    counts = np.bincount(row + 2 * told.owner, minlength=shape[0] * owners * 2).reshape(shape)
    return _pairs(counts[:, :, 1], counts[:, :, 0])


def _pairs(positive: Ints, negative: Ints) -> Read:
    """Pairs without a message are left out."""
    user, owner = np.nonzero(positive + negative)
    return Read(user, owner, positive[user, owner], negative[user, owner])


def _some(events: Events, rows: slice | NDArray[np.bool_]) -> Events:
    return replace(
        events, user=events.user[rows], item=events.item[rows], positive=events.positive[rows],
        time=events.time[rows],
    )  # fmt: skip


def _blank(events: Events, rows: NDArray[np.bool_]) -> Events:
    if not rows.any():
        return events
    item, positive, time = (
        np.where(rows, 0, c) for c in (events.item, events.positive, events.time)
    )
    return replace(events, item=item.astype(np.int32), positive=positive > 0, time=time)
