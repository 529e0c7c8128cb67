"""The store of a user of a DRIFT federation, or of many users: keys, choices, what waits to be sent
and what has left.

What is to leave goes through `user_door.UserDoor`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sottovoce.core.consent import Choice
from sottovoce.errors import DataError, MessageError, StoreError, UsageError
from sottovoce.stores.device import CohortStore
from sottovoce.stores.encrypted import DATABASE, StoreFile
from sottovoce.stores.person import (
    AT_HOME,
    ISSUER,
    PersonalStore,
    RequestSent,
    choice_of,
    choice_text,
)
from sottovoce.wire.directory import Directory, OwnerEntry
from sottovoce.wire.interactions import Identity, Kind
from sottovoce.wire.passes import Pass
from sottovoce.wire.silo_files import UserInvitation

ALONE = 0
"""The user of a store that was made with an invitation."""
_SIGNED, _VERSION = "directory", "directory-version"
_TOKEN, _ORCHESTRATOR = "token", "orchestrator"


@dataclass(frozen=True, slots=True, repr=False)
class Person:
    """A user of this store."""

    user: int
    """Her number in this store; the federation's is in her pass."""
    name: str
    identity: Identity
    given: Pass | None
    """None before she is enrolled."""
    departure: str
    """State of leaving the whole federation: empty, asked or done."""

    def __repr__(self) -> str:
        return "<Person, redacted>"


class DirectoryIndex:
    """A directory, in the form in which the door asks it."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.table = directory.table()
        self.owners = {owner.number: owner for owner in directory.owners}
        self._items = {owner.number: frozenset(owner.items) for owner in directory.owners}

    def holds(self, owner: int, item: int) -> bool:
        return item in self._items.get(owner, ())


class UserStore(PersonalStore):
    """Users with their keys, choices, outbox and ledger. A phone has one user."""

    def __init__(self, file: StoreFile, clock: Callable[[], float] = time.time) -> None:
        super().__init__(file, clock)
        self._world: tuple[int, DirectoryIndex] | None = None
        if self._meta(ISSUER) is None:
            raise StoreError(f"the store in {file.folder} is in no federation of data owners")
        self.federation = self._text("federation")
        self.issuer = self._meta(ISSUER) or b""
        self.url = self._text("url")
        """Of the orchestrator's service for users."""
        self.authority = self._text("authority")
        """The certificate that it is trusted by."""

    @classmethod
    def create(
        cls, path: Path, federation: str, issuer: bytes, url: str, authority: str
    ) -> UserStore:
        """A store without users yet, for `add_users`."""
        StoreFile.create(path, lambda file: _found(file, federation, issuer, url, authority))
        return cls.open(path)

    @classmethod
    def join(cls, path: Path, invitation: UserInvitation) -> UserStore:
        """A store for whoever was invited; the one that is there already where it was made with the
        same invitation. Nothing has left, and nothing will before she takes part."""
        if (Path(path) / DATABASE).exists():
            store = cls.open(path)
            if (store.federation, store.issuer) != (invitation.federation, invitation.issuer):
                store.close()
                raise UsageError(
                    f"the store in {path} belongs to another federation; choose another place"
                )
            store._renew(invitation)
            return store

        def fill(file: StoreFile) -> None:
            with file.transaction():
                _found(
                    file, invitation.federation, invitation.issuer, invitation.url, invitation.ca
                )
                file.write("INSERT INTO meta VALUES (?, ?)", [_TOKEN, invitation.token])
                key = Identity().private_bytes()
                file.write(
                    "INSERT INTO users (number, name, private) VALUES (?, 'me', ?)", [ALONE, key]
                )

        StoreFile.create(path, fill)
        return cls.open(path)

    # --- users -----------------------------------------------------------------------------------

    def add_users(self, people: Iterable[tuple[Identity, Pass]], orchestrator: bytes) -> None:
        """Users who are enrolled already, each under her number in the federation."""
        rows = [
            (given.user, str(given.user), identity.private_bytes(), given.encode())
            for identity, given in people
        ]
        with self.file.transaction():
            self._set_meta(_ORCHESTRATOR, orchestrator)
            self.file.write_many(
                "INSERT INTO users (number, name, private, pass) VALUES (?, ?, ?, ?)", rows
            )

    @property
    def users(self) -> list[int]:
        """Their numbers in this store, ascending."""
        return self.numbers

    def person(self, user: int) -> Person:
        row = self.file.row(
            "SELECT number, name, private, pass, departure FROM users WHERE number = ?", [int(user)]
        )
        if row is None:
            raise DataError(f"there is no user {user} in the store {self.path}")
        number, name, private, given, departure = row
        known = None if given is None else Pass.decode(given)
        return Person(number, name, Identity(private), known, departure)

    @property
    def token(self) -> bytes | None:
        """The invitation's, until it was used."""
        return self._meta(_TOKEN) or None

    @property
    def orchestrator(self) -> bytes | None:
        """The key with which users prove themselves to the orchestrator; None before enrolment."""
        return self._meta(_ORCHESTRATOR)

    def enrolled(self, user: int, given: Pass, orchestrator: bytes) -> None:
        """Keep a user's pass, which must be for her key. The invitation is used up."""
        given.check(self.issuer, self.federation)
        with self.file.transaction():
            if given.public != self.person(user).identity.public:
                raise MessageError("the pass is for another key than this user's")
            self.file.write("UPDATE users SET pass = ? WHERE number = ?", [given.encode(), user])
            self._set_meta(_ORCHESTRATOR, orchestrator)
            self.file.write("DELETE FROM meta WHERE name = ?", [_TOKEN])

    def set_departure(self, user: int, state: str) -> None:
        self.file.write("UPDATE users SET departure = ? WHERE number = ?", [state, user])

    def strangers(self) -> list[int]:
        """Users who are not enrolled yet."""
        return [user for (user,) in self.file.rows("SELECT number FROM users WHERE pass IS NULL")]

    def departing(self) -> list[int]:
        """Users who leave the federation and have not been told yet that it is done."""
        rows = self.file.rows("SELECT number FROM users WHERE departure = 'asked' ORDER BY number")
        return [user for (user,) in rows]

    # --- the directory ---------------------------------------------------------------------------

    @property
    def world(self) -> DirectoryIndex:
        """The directory that was kept last."""
        version = int(self._meta(_VERSION) or b"-1")
        if version < 0:
            raise StoreError(
                f"the store in {self.path} has no directory of the federation yet; let it fetch "
                f"one with `sottovoce device send {self.path}`"
            )
        if self._world is None or self._world[0] != version:
            signed = self._meta(_SIGNED) or b""
            found = DirectoryIndex(Directory.read(signed, self.federation, self.issuer))
            self._world = version, found
        return self._world[1]

    @property
    def has_directory(self) -> bool:
        return self._meta(_VERSION) is not None

    def keep_directory(self, signed: bytes) -> bool:
        """Whether it is a newer one. Raises, and keeps what is there, where it is older, where it
        says otherwise under the same version, where it gives the number of an item or a data owner
        to another one, where the settings are others, or where the issuer has not signed it."""
        new = Directory.read(signed, self.federation, self.issuer)
        with self.file.transaction():
            if self.has_directory:
                kept = self.world.directory
                if new == kept:
                    return False
                if new.version <= kept.version:
                    raise MessageError(
                        f"the orchestrator shows version {new.version} of the directory, and this "
                        f"store has seen version {kept.version}; it keeps what it has"
                    )
                if new.settings != kept.settings:
                    raise MessageError("the orchestrator changed the settings; it is not followed")
                if new.catalogue[: len(kept.catalogue)] != kept.catalogue:
                    raise MessageError(
                        "the orchestrator has given numbers of items to others; the directory is "
                        "not taken"
                    )
            self._pin(new.owners)
            self._set_meta(_SIGNED, signed)
            self._set_meta(_VERSION, str(new.version).encode())
        self._world = new.version, DirectoryIndex(new)
        return True

    def _pin(self, owners: Iterable[OwnerEntry]) -> None:
        """A number is that of one name and key for ever: who refuses a data owner refuses it under
        every name, and nobody is put in its place."""
        rows = self.file.rows("SELECT number, name, public FROM owners")
        known = {number: (name, public) for number, name, public in rows}
        for owner in owners:
            found = owner.name, owner.public
            if known.setdefault(owner.number, found) != found:
                raise MessageError(
                    f"the orchestrator shows another name or key for data owner {owner.number} "
                    f"than before ({known[owner.number][0]}); the directory is not taken"
                )
        self.file.write_many(
            "INSERT OR IGNORE INTO owners VALUES (?, ?, ?)",
            [(owner.number, owner.name, owner.public) for owner in owners],
        )

    # --- choices ---------------------------------------------------------------------------------

    def choice(self, user: int) -> Choice:
        """The last one that she made; who has not chosen takes no part."""
        return self._last_choice(user)[0]

    def unseen_owners(self, user: int) -> tuple[str, ...]:
        """Names of data owners that have come since she made her last choice, or all."""
        return self._after(self._last_choice(user)[1])

    def in_force(self, user: int) -> Choice:
        """Her last choice, under which owners that she has not seen are refused as well."""
        choice, shown = self._last_choice(user)
        names = dict.fromkeys([*choice.refused_owners, *self._after(shown)])
        return replace(choice, refused_owners=tuple(names))

    def _after(self, shown: int) -> tuple[str, ...]:
        """Names of data owners with higher numbers than this one."""
        owners = self.world.directory.owners if self.has_directory else ()
        return tuple(owner.name for owner in owners if owner.number > shown)

    def record_choice(self, user: int, choice: Choice, *, looked: bool) -> None:
        """Put it on record; the door makes it hold (`UserDoor.choose`). Where she has looked at the
        owners of the directory, it is about all of them, else about those it was about before."""
        before = self._last_choice(user)
        shown = before[1]
        if looked and self.has_directory:
            shown = max([shown, *(owner.number for owner in self.world.directory.owners)])
        if (choice, shown) != before or not self.records(user):
            self.file.write(
                "INSERT INTO consent (number, choice, shown, changed_at) VALUES (?, ?, ?, ?)",
                [user, choice_text(choice), shown, self.now()],
            )

    def _last_choice(self, user: int) -> tuple[Choice, int]:
        row = self.file.row(
            "SELECT choice, shown FROM consent WHERE number = ? ORDER BY version DESC LIMIT 1",
            [user],
        )
        return (AT_HOME, -1) if row is None else (choice_of(row[0]), int(row[1]))

    def changed(
        self, choice: Choice, takes_part: bool | None, refuse: list[str], allow: list[str]
    ) -> Choice:
        """The choice with these changes; raises if an owner is unknown or named twice."""
        both = sorted(set(refuse) & set(allow))
        if both:
            raise UsageError(f"{both[0]} is to be refused and allowed at once; choose one")
        names = dict.fromkeys(choice.refused_owners)
        for name in refuse:
            names[self.world.directory.owner(name).name] = None
        for name in allow:
            if name not in names:
                self.world.directory.owner(name)
            names.pop(name, None)
        part = choice.takes_part if takes_part is None else takes_part
        return replace(choice, takes_part=part, refused_owners=tuple(names))

    def readers(self, user: int) -> list[dict[str, Any]]:
        """What each data owner would read under her choice."""
        directory, choice = self.world.directory, self.choice(user)
        # Who takes no part chooses when she does.
        unseen = self.unseen_owners(user) if choice.takes_part else ()
        holders = Counter(item for owner in directory.owners for item in owner.items)
        return [
            {
                "number": owner.number,
                "name": owner.name,
                "items": len(owner.items),
                "shared": sum(holders[item] > 1 for item in owner.items),
                "such_as": [directory.catalogue[item] for item in owner.items[:3]],
                "reads": choice.takes_part and owner.name not in (*choice.refused_owners, *unseen),
                "new": owner.name in unseen,
            }
            for owner in directory.owners
        ]

    # --- what she has seen, what waits, what has left ------------------------------------------

    def seen(self, user: int) -> frozenset[int]:
        rows = self.file.rows("SELECT item FROM seen WHERE user = ?", [user])
        return frozenset(item for (item,) in rows)

    def ever_said(self) -> int:
        """Messages that users ever had to tell, whatever became of them."""
        row = self.file.row("SELECT count(*) FROM messages")
        return 0 if row is None else int(row[0])

    def counts(self, user: int) -> dict[int, dict[str, int]]:
        """By owner, how many messages are in which state."""
        found: dict[int, dict[str, int]] = {}
        sql = "SELECT owner, state, count(*) FROM messages WHERE user = ? GROUP BY 1, 2"
        for owner, state, count in self.file.rows(sql, [user]):
            found.setdefault(owner, {})[state] = count
        return found

    def messages(self, user: int) -> list[dict[str, Any]]:
        """What she ever had to tell data owners, and what became of it."""
        names = ("owner", "sequence", "kind", "item", "time", "state", "sends", "reason")
        sql = f"SELECT {', '.join(names)} FROM messages WHERE user = ? ORDER BY owner, sequence"
        return [dict(zip(names, row, strict=True)) for row in self.file.rows(sql, [user])]

    def reasons(self, user: int) -> dict[int, dict[str, int]]:
        """By owner, how many messages were refused or dropped, and why."""
        found: dict[int, dict[str, int]] = {}
        sql = (
            "SELECT owner, reason, count(*) FROM messages WHERE user = ? AND reason <> '' "
            "GROUP BY 1, 2"
        )
        for owner, reason, count in self.file.rows(sql, [user]):
            found.setdefault(owner, {})[reason] = count
        return found

    def ledger(self, user: int | None = None) -> list[RequestSent]:
        """What has left, oldest first; of one user or of all."""
        return self.requests(user)

    def standing(self, user: int) -> dict[str, Any]:
        """Where a user stands, for JSON."""
        person, choice = self.person(user), self.choice(user)
        requests = [r for r in self.ledger(user) if r.owner is None]
        return {
            "federation": self.federation,
            "directory": self.world.directory.version if self.has_directory else None,
            "enrolled": person.given is not None,
            "number": None if person.given is None else person.given.user,
            "left_federation": person.departure or None,
            "takes_part": choice.takes_part,
            "refused_owners": choice.refused_owners,
            "seen": len(self.seen(user)),
            "owners": self._owner_states(user),
            "orchestrator": {"requests": len(requests), "bytes": sum(r.bytes for r in requests)},
        }

    def _owner_states(self, user: int) -> list[dict[str, Any]]:
        """What waits for each data owner and what has left for it, also those that are gone."""
        counts, reasons, releases = self.counts(user), self.reasons(user), self.ledger(user)
        names = {r.owner: r.party for r in releases if r.owner is not None}
        if self.has_directory:
            names |= {owner.number: owner.name for owner in self.world.directory.owners}
        views = []
        for number in sorted({*names, *counts}):
            states = counts.get(number, {})
            own = [r for r in releases if r.owner == number]
            views.append(
                {
                    "owner": names.get(number, str(number)),
                    "waiting": states.get("waiting", 0),
                    "unanswered": states.get("left", 0),
                    "arrived": states.get("arrived", 0),
                    "refused": states.get("refused", 0),
                    "dropped": states.get("dropped", 0),
                    "given_up": states.get("given_up", 0),
                    "why": reasons.get(number, {}),
                    "interactions_left": sum(r.interactions for r in own),
                    "requests": len(own),
                    "bytes": sum(r.bytes for r in own),
                    "epsilon": max((r.epsilon for r in own), default=0.0),
                }
            )
        return views

    # --- helpers ---------------------------------------------------------------------------------

    def _renew(self, invitation: UserInvitation) -> None:
        """Follow an invitation that is newer than what the store knows of the way."""
        with self.file.transaction():
            self._set_meta("url", invitation.url.encode())
            self._set_meta("authority", invitation.ca.encode())
            row = self.file.row("SELECT 1 FROM users WHERE number = ? AND pass IS NULL", [ALONE])
            if row is not None:
                self._set_meta(_TOKEN, invitation.token)
        self.url, self.authority = invitation.url, invitation.ca

    def _text(self, name: str) -> str:
        return (self._meta(name) or b"").decode()


def _found(file: StoreFile, federation: str, issuer: bytes, url: str, authority: str) -> None:
    rows = {
        "federation": federation.encode(),
        ISSUER: issuer,
        "url": url.encode(),
        "authority": authority.encode(),
    }
    with file.transaction():
        file.write_many("INSERT INTO meta VALUES (?, ?)", list(rows.items()))


# The way into the outbox of a user's store.

_OF = "user = ? AND owner = ?"
_TOLD = f"""
SELECT 1 FROM messages WHERE {_OF} AND item = ? AND time = ? AND kind IN ('negative', 'positive')
AND state <> 'dropped' AND sequence > coalesce(
    (SELECT max(sequence) FROM messages WHERE {_OF} AND item = 0 AND time = 0 AND kind = 'leave'),
    -1)
LIMIT 1
"""
"""Whether an owner was told of this, or will be, since she last made it forget everything."""


class Outbox:
    """Messages on their way into a store's outbox, all in one transaction."""

    def __init__(self, store: UserStore) -> None:
        self._store = store
        self._next: dict[tuple[int, int], int] = {}
        self._before: set[tuple[int, int]] = set()
        """Who has messages in the store already."""
        self._new: set[tuple[int, int, int, int]] = set()
        self.rows: list[tuple[int, int, int, Kind, int, int]] = []
        self.seen: list[tuple[int, int]] = []

    def told(self, user: int, owner: int, item: int, time: int) -> bool:
        """Whether the owner was told of this, or will be, since she last left it."""
        if (user, owner, item, time) in self._new:
            return True
        self._number(user, owner)
        if (user, owner) not in self._before:
            return False
        return self._store.file.row(_TOLD, [user, owner, item, time, user, owner]) is not None

    def put(self, user: int, owner: int, kind: Kind, item: int, time: int) -> None:
        number = self._number(user, owner)
        self._next[user, owner] = number + 1
        self._new.add((user, owner, item, time))
        self.rows.append((user, owner, number, kind, item, time))

    def write(self) -> None:
        file = self._store.file
        file.write_many("INSERT OR IGNORE INTO seen VALUES (?, ?)", self.seen)
        file.write_many(
            "INSERT INTO counters VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET next = excluded.next",
            [(*pair, number) for pair, number in self._next.items()],
        )
        file.write_many(
            "INSERT INTO messages (user, owner, sequence, kind, item, time) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            self.rows,
        )

    def _number(self, user: int, owner: int) -> int:
        """The next message's."""
        if (user, owner) not in self._next:
            sql = f"SELECT next FROM counters WHERE {_OF}"
            row = self._store.file.row(sql, [user, owner])
            if row is not None:
                self._before.add((user, owner))
            self._next[user, owner] = 0 if row is None else int(row[0])
        return self._next[user, owner]


# Stores of either kind.


def whose(store: CohortStore | UserStore, user: str | None) -> int:
    """The number of the user that is meant; (None) the only one that there is."""
    if user is not None:
        return store.find(user)
    numbers = [int(number) for number in store.users]
    if len(numbers) != 1:
        raise UsageError(f"the store {store.path} has {len(numbers):,} users; choose by --user")
    return numbers[0]


def releases(store: CohortStore | UserStore) -> int:
    """What has left the store, or may have; of all users, ever."""
    if isinstance(store, UserStore):
        return len(store.ledger())
    return sum(spent.releases for spent in store.budget())
