"""The one door of a DRIFT user. Everything that leaves her store leaves here.

What she does goes into the outbox, addressed to the data owners that hold the item and that she
permits. Just before a message leaves, her choice is read again: what she no longer permits is
dropped. The ledger gets its row in the same transaction, and only then is there a `Leaving`, which
is what a transport takes; so no byte leaves that is not on record.

A message has a number by which its owner knows it again. So it may be sent a second time where
nobody knows whether it arrived, and counts once. Where a store was put back from a copy, or is in
use in two places, numbers meet that others have used; what cannot have arrived then gets other
numbers. Such a store may tell again what was in the copy's outbox, and where an answer is lost
besides, nobody can know whether a message arrived: it is not sent again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sottovoce.core.consent import Choice
from sottovoce.errors import ConsentError, DataError, KeyTrouble, MessageError, UsageError
from sottovoce.parties.leaving import Booked, Leaving, let_go
from sottovoce.stores.person import RequestSent
from sottovoce.stores.user import DirectoryIndex, Outbox, Person, UserStore
from sottovoce.wire.interactions import SEALED_BYTES, Kind, SessionSender, begin
from sottovoce.wire.passes import PASS_BYTES, Pass

# What passes through a DRIFT user's door, and what becomes of it.


class Receipt(Protocol):
    """What an owner says of a request (`wire.owners.OwnerReceipt`)."""

    @property
    def sequence(self) -> int: ...
    @property
    def repeated(self) -> int: ...
    @property
    def refused(self) -> tuple[tuple[int, str], ...]: ...


@dataclass(frozen=True, slots=True)
class Interacted:
    """What became of interactions at the door."""

    messages: int
    """In the outbox now, one for each owner that will read it."""
    known: int
    """Not sent again, as the owner was told before."""
    at_home: int
    """Interactions of which nothing leaves: she takes no part, refuses the owners, never sends the
    item, or nobody holds it."""


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """In the outbox. Private."""

    sequence: int
    kind: Kind
    item: int
    time: int
    sends: int
    """How often it had left before."""
    unanswered: int
    """After how many of these nobody knew whether it had arrived."""

    def __repr__(self) -> str:
        return "<Message, redacted>"


@dataclass(frozen=True, slots=True, repr=False)
class Departure:
    """Messages that may leave now, and are on record as having left."""

    user: int
    owner: int
    messages: tuple[Message, ...]
    _leaving: Leaving

    def __repr__(self) -> str:
        return f"<Departure of {len(self.messages)} to owner {self.owner}, redacted>"

    @property
    def last_words(self) -> bool:
        """Whether the owner forgets her with this, and the session with it."""
        return self.messages[-1].kind == "leave"

    def seal(self, sender: SessionSender, frame: Callable[[Sequence[bytes]], bytes]) -> Leaving:
        """The request that carries them: each sealed, all of them in a frame."""

        def sealed(_: bytes) -> bytes:
            return frame([sender.seal(m.sequence, m.kind, m.item, m.time) for m in self.messages])

        return self._leaving.wrapped(sealed)


@dataclass(frozen=True, slots=True)
class Settlement:
    """What an owner's receipt meant."""

    arrived: int = 0
    refused: int = 0
    """For good."""
    open: int = 0
    """Still to be told."""
    again: bool = False
    """Some of them were not for this session, and need another one."""


ORCHESTRATOR = "orchestrator"
"""Its name in the ledger."""
_LARGEST_SEQUENCE = 1 << 62
_LARGEST_TIME = 1 << 62
_OPEN = "state IN ('waiting', 'left')"
_OF = "user = ? AND owner = ?"
Event = tuple[int, int, bool, int]
"""User, item, whether it was positive, time."""


class UserDoor:
    """The door of all users of a store."""

    def __init__(self, store: UserStore) -> None:
        self.store = store

    def __repr__(self) -> str:
        return "<UserDoor, redacted>"

    # --- what she does ---------------------------------------------------------------------------

    def interact(
        self, user: int, item: int, positive: bool, time: int, *, again: bool = False
    ) -> Interacted:
        """Something was liked or not. Told once to each owner, unless `again`."""
        return self.interact_many([(user, item, positive, time)], again=again)

    def interact_many(self, events: Iterable[Event], *, again: bool = False) -> Interacted:
        """Many at once, of one user or several; all of them or none. A user's are told in the order
        in which they stand here."""
        outbox = Outbox(self.store)
        known = at_home = 0
        shut: dict[int, tuple[frozenset[int] | None, Choice]] = {}
        with self.store.file.transaction():
            world = self.store.world
            for user, item, positive, time in events:
                if user not in shut:
                    self.store.person(user)
                    choice = self.store.in_force(user)
                    shut[user] = _refused(world, choice), choice
                _check(world, item, time)
                outbox.seen.append((user, item))
                closed, choice = shut[user]
                if closed is None or _never_sent(world, choice, item):
                    owners = []
                else:
                    holders = world.table.owners(item) if item in world.table else ()
                    owners = [k for k in holders if k not in closed]
                at_home += not owners
                for owner in owners:
                    if not again and outbox.told(user, owner, item, time):
                        known += 1
                    else:
                        kind: Kind = "positive" if positive else "negative"
                        outbox.put(user, owner, kind, item, time)
            outbox.write()
        return Interacted(len(outbox.rows), known, at_home)

    def end_stream(self, user: int, owner: str | None = None) -> int:
        """Close her open block, behind all that waits, at one owner or at all that she has told
        anything or is about to tell; how many."""
        with self.store.file.transaction():
            world, choice = self.store.world, self.store.in_force(user)
            wanted = None if owner is None else world.directory.owner(owner).number
            found = [
                k
                for k in self._told(user, or_will_be=True)
                if wanted in (None, k) and not _forbidden(world, choice, k, "end", 0)
            ]
            for number in found:
                self._put(user, number, "end")
        return len(found)

    def choose(self, user: int, choice: Choice) -> int:
        """Her word from now on, also on what waits; how many messages were taken out of the outbox.
        It is about the owners in the directory: one that comes later is told nothing until she
        chooses again."""
        with self.store.file.transaction():
            person = self.store.person(user)
            if choice.takes_part and person.departure:
                raise UsageError(
                    "whoever has left the federation joins it anew, with another invitation and a "
                    "new store"
                )
            if choice.takes_part and not self.store.has_directory:
                raise ConsentError(
                    "who would read what is not known yet, so that nobody can agree to it; fetch "
                    f"the directory with `sottovoce device join {self.store.path} INVITATION`"
                )
            self.store.record_choice(user, choice, looked=True)
            return self._prune(user, choice)

    def forget(self, user: int, items: Sequence[str] | None = None) -> int:
        """Forget here that she has seen these items, or all of them; how many she had. What waits
        of them is dropped; what has left stays on record."""
        store = self.store
        with store.file.transaction():
            known = store.seen(user)
            if items is not None:
                named = {name: n for n, name in enumerate(store.world.directory.catalogue)}
                known &= {named[name] for name in items if name in named}
            rows = [(user, item) for item in sorted(known)]
            store.file.write_many("DELETE FROM seen WHERE (user, item) = (?, ?)", rows)
            store.file.write_many(
                "UPDATE messages SET state = iif(sends > 0, 'given_up', 'dropped'), reason = "
                f"'forgotten' WHERE user = ? AND item = ? AND kind <> 'leave' AND {_OPEN}",
                rows,
            )
        store.file.cut_log()
        return len(rows)

    def leave(self, user: int, owner: str | None = None) -> list[str]:
        """Leave an owner, or (None) all of them and the federation: nothing more goes there, and
        whoever was told anything is asked to forget it. Returns the names of those owners."""
        with self.store.file.transaction():
            choice, person = self.store.choice(user), self.store.person(user)
            world = self.store.world if self.store.has_directory else None
            if owner is None:
                choice = replace(choice, takes_part=False)
                if not person.departure:
                    state = "done" if person.given is None else "asked"
                    self.store.set_departure(user, state)
                reached = self._told(user)
            else:
                name = self.store.world.directory.owner(owner).name
                names = dict.fromkeys([*choice.refused_owners, name])
                choice = replace(choice, refused_owners=tuple(names))
                reached = [
                    k
                    for k in self._told(user)
                    if k == self.store.world.directory.owner(name).number
                ]
            self.store.record_choice(user, choice, looked=False)
            self._prune(user, self.store.in_force(user))
            asked = [k for k in reached if world is not None and k in world.owners]
            for number in asked:
                self._put(user, number, "leave")
            return [world.owners[k].name for k in asked] if world is not None else []

    # --- what leaves -----------------------------------------------------------------------------

    def pairs(self) -> list[tuple[int, int]]:
        """Enrolled users and owners between whom something waits."""
        sql = (
            f"SELECT DISTINCT user, owner FROM messages WHERE {_OPEN} AND user IN "
            "(SELECT number FROM users WHERE pass IS NOT NULL) ORDER BY owner, user"
        )
        return [(user, owner) for user, owner in self.store.file.rows(sql)]

    def waiting(self) -> int:
        row = self.store.file.row(f"SELECT count(*) FROM messages WHERE {_OPEN}")
        return 0 if row is None else int(row[0])

    def would_leave(self, user: int) -> list[tuple[int, Kind, int, int]]:
        """By owner and in order, what she permits of what waits: owner, kind, item, time."""
        world, choice = self.store.world, self.store.in_force(user)
        sql = (
            "SELECT owner, kind, item, time FROM messages "
            f"WHERE user = ? AND {_OPEN} ORDER BY owner, sequence"
        )
        return [
            (owner, kind, item, time)
            for owner, kind, item, time in self.store.file.rows(sql, [user])
            if not _forbidden(world, choice, owner, kind, item)
        ]

    def introduce(self, user: int, owner: int) -> Leaving | None:
        """Her pass, to be shown to an owner; None where nothing that she permits is to go there."""
        with self.store.file.transaction():
            if not self._permitted(user, owner, 1):
                return None
            given = _enrolled(self.store.person(user)).encode()
            return let_go(given, self._note(user, owner, "introduction", bytes=PASS_BYTES))

    def begin(self, user: int, owner: int, offer: bytes) -> tuple[SessionSender, bytes]:
        """A session with an owner that made this offer, and the hello to send."""
        person, entry = self.store.person(user), self.store.world.directory.numbered(owner)
        number = _enrolled(person).user
        return begin(number, person.identity, owner, entry.public, offer)

    def depart(self, user: int, owner: int, most: int, extra: int) -> Departure | None:
        """Up to `most` messages that she permits at this moment, oldest first; from here on they
        count as having left, in a request with `extra` other bytes. None where there are none."""
        with self.store.file.transaction():
            messages = self._permitted(user, owner, most)
            if not messages:
                return None
            self.store.file.write(
                "UPDATE messages SET state = 'left', sends = sends + 1, unanswered = unanswered + "
                f"1 WHERE {_OF} AND {_OPEN} AND sequence BETWEEN ? AND ?",
                [user, owner, messages[0].sequence, messages[-1].sequence],
            )
            booked = self._note(
                user,
                owner,
                "interactions",
                interactions=sum(
                    m.sends == 0 and m.kind in ("negative", "positive") for m in messages
                ),
                messages=len(messages),
                bytes=extra + SEALED_BYTES * len(messages),
            )
            return Departure(user, owner, tuple(messages), let_go(b"", booked))

    def settle(self, departure: Departure, receipt: Receipt) -> Settlement:
        """Write down what became of messages. Where the owner took a new message for an old one, or
        knows numbers that this store has never used (it may be an old copy), all that is still to
        be told gets numbers behind the owner's."""
        if receipt.sequence >= _LARGEST_SEQUENCE:
            raise MessageError("the data owner counts beyond all numbers; nothing was settled")
        refused, messages = dict(receipt.refused), departure.messages
        for_good = {place: word for place, word in refused.items() if word != "tag"}
        opened = [n for n in range(len(messages)) if n not in refused]
        unread = refused.keys() - for_good.keys()
        late = {n for n in unread if messages[n].sequence > receipt.sequence}
        # An owner that has done what a leaving user asked for does not know her numbers any more.
        mistaken = {n for n in opened[: receipt.repeated] if messages[n].kind == "leave"} | {
            n for n in (*opened[: receipt.repeated], *(unread - late)) if not messages[n].unanswered
        }
        rows = [
            ("refused" if n in for_good else "arrived", for_good.get(n, ""), message.sequence)
            for n, message in enumerate(messages)
            if n not in mistaken and n not in late
        ]
        with self.store.file.transaction():
            self._mark(departure, rows)
            self._not_arrived(departure, [messages[n].sequence for n in late])
            again = [messages[n].sequence for n in mistaken]
            self._renumber(departure, receipt.sequence, again)
        bad = sum(state == "refused" for state, _, _ in rows)
        return Settlement(len(rows) - bad, bad, len(mistaken) + len(late), bool(late))

    def turned_away(self, departure: Departure) -> None:
        """The owner has said that it took nothing of this, as the session was over."""
        with self.store.file.transaction():
            self._not_arrived(departure, [message.sequence for message in departure.messages])

    def forgotten(self, user: int, owner: int) -> bool:
        """Whether an owner that does not know her pass has nothing more to be told: she has left
        the federation, and it has heard of that."""
        with self.store.file.transaction():
            if self.store.person(user).departure != "done":
                return False
            sql = f"SELECT sequence FROM messages WHERE {_OF} AND {_OPEN}"
            rows = self.store.file.rows(sql, [user, owner])
            self._drop([("departed", user, owner, sequence) for (sequence,) in rows])
            return True

    def require_part(self, user: int) -> None:
        """Raises where she takes no part, so that not even a question may leave."""
        if self.store.person(user).departure:
            raise ConsentError("you have left this federation, so it is not asked any more")
        if not self.store.choice(user).takes_part:
            raise ConsentError(
                "nothing leaves before you take part: `sottovoce device consent "
                f"{self.store.path} --take-part`"
            )
        unseen = self.store.unseen_owners(user)
        if unseen and len(unseen) == len(self.store.world.owners):
            raise ConsentError(
                "nothing leaves before you have seen who reads what: `sottovoce device consent "
                f"{self.store.path}`, and then with --take-part"
            )

    def enrolling(self, user: int, body: bytes) -> Leaving:
        """An enrolment; raises where she takes no part."""
        return self._ask(user, "enrolment", body, 0.0)

    def keepers(self, user: int) -> list[int]:
        """Owners that may keep a vector of hers, and that she permits."""
        world, choice = self.store.world, self.store.in_force(user)
        return [k for k in self._told(user) if not _forbidden(world, choice, k, "end", 0)]

    def asking_keeper(self, user: int, owner: int, body: bytes) -> Leaving:
        """A question for her own vector; raises where she takes no part."""
        return self._ask(user, "vector", body, math.inf, owner)

    def asking(self, user: int, body: bytes) -> Leaving:
        """A question for recommendations; raises where she takes no part."""
        return self._ask(user, "recommendation", body, math.inf)

    def departing(self, user: int, body: bytes) -> Leaving:
        """Her word to the orchestrator that she leaves it."""
        return let_go(body, self._note(user, None, "departure", bytes=len(body), epsilon=0.0))

    # --- helpers ---------------------------------------------------------------------------------

    def _ask(
        self, user: int, what: str, body: bytes, epsilon: float, owner: int | None = None
    ) -> Leaving:
        with self.store.file.transaction():
            self.require_part(user)
            booked = self._note(user, owner, what, bytes=len(body), epsilon=epsilon)
        return let_go(body, booked)

    def _put(self, user: int, owner: int, kind: Kind) -> None:
        outbox = Outbox(self.store)
        outbox.put(user, owner, kind, 0, 0)
        outbox.write()

    def _told(self, user: int, *, or_will_be: bool = False) -> list[int]:
        """Owners that may have anything of hers: the last word to them was not that she leaves. Or
        also those for whom something waits."""
        sql = (
            "SELECT owner FROM messages m WHERE user = ? AND "
            f"(sends > 0{f' OR {_OPEN}' if or_will_be else ''}) GROUP BY owner HAVING "
            "max(sequence) > coalesce((SELECT max(sequence) FROM messages WHERE user = m.user AND "
            "owner = m.owner AND kind = 'leave'), -1) ORDER BY owner"
        )
        return [owner for (owner,) in self.store.file.rows(sql, [user])]

    def _permitted(self, user: int, owner: int, most: int) -> list[Message]:
        """The oldest messages that may leave; those before them that may not are dropped. Ends with
        the message that she leaves."""
        world, choice = self.store.world, self.store.in_force(user)
        found: list[Message] = []
        while not found:
            rows = self.store.file.rows(
                "SELECT sequence, kind, item, time, sends, unanswered FROM messages "
                f"WHERE {_OF} AND {_OPEN} ORDER BY sequence LIMIT ?",
                [user, owner, most],
            )
            if not rows:
                return []
            drop = []
            for row in rows:
                message = Message(*row)
                why = _forbidden(world, choice, owner, message.kind, message.item)
                if why:
                    drop.append((why, user, owner, message.sequence))
                    continue
                found.append(message)
                if message.kind == "leave":
                    break
            self._drop(drop)
        return found

    def _prune(self, user: int, choice: Choice) -> int:
        """Drop what this choice does not permit."""
        if not self.store.has_directory:
            return 0
        world = self.store.world
        sql = f"SELECT owner, sequence, kind, item FROM messages WHERE user = ? AND {_OPEN}"
        drop = [
            (why, user, owner, sequence)
            for owner, sequence, kind, item in self.store.file.rows(sql, [user])
            if (why := _forbidden(world, choice, owner, kind, item))
        ]
        self._drop(drop)
        return len(drop)

    def _drop(self, rows: Sequence[tuple[str, int, int, int]]) -> None:
        if rows:
            self.store.file.write_many(
                "UPDATE messages SET state = iif(sends > 0, 'given_up', 'dropped'), reason = ? "
                f"WHERE {_OF} AND sequence = ?",
                rows,
            )

    def _mark(self, departure: Departure, rows: Sequence[tuple[str, str, int]]) -> None:
        place = [departure.user, departure.owner]
        good = [sequence for state, _, sequence in rows if state == "arrived"]
        bad = [row for row in rows if row[0] == "refused"]
        sql = "UPDATE messages SET state = ?, reason = ? WHERE user = ? AND owner = ? AND sequence "
        if not bad and good and good[-1] - good[0] + 1 == len(departure.messages) == len(good):
            # What she gave up after it had left did arrive.
            self.store.file.write(
                f"{sql} BETWEEN ? AND ? AND state IN ('left', 'given_up')",
                ["arrived", "", *place, good[0], good[-1]],
            )
            return
        self.store.file.write_many(
            f"{sql} = ?", [(state, why, *place, sequence) for state, why, sequence in rows]
        )

    def _not_arrived(self, departure: Departure, sequences: Sequence[int]) -> None:
        """Note that these messages are known not to have arrived after all."""
        self.store.file.write_many(
            f"UPDATE messages SET unanswered = unanswered - 1 WHERE {_OF} AND sequence = ?",
            [(departure.user, departure.owner, sequence) for sequence in sequences],
        )

    def _renumber(self, departure: Departure, last: int, mistaken: Sequence[int]) -> None:
        """Move what cannot have arrived behind the owner's last number, where it must."""
        if last <= departure.messages[-1].sequence and not mistaken:
            return
        place, file = [departure.user, departure.owner], self.store.file
        newest = file.row(
            f"SELECT sequence FROM messages WHERE {_OF} AND sends > 0 ORDER BY sequence DESC "
            "LIMIT 1",
            place,
        )
        if not mistaken and newest is not None and last <= newest[0]:
            return
        waiting = file.rows(
            f"SELECT sequence FROM messages WHERE {_OF} AND {_OPEN} AND unanswered = 0", place
        )
        old = sorted({*mistaken, *(sequence for (sequence,) in waiting)})
        counter = file.row(f"SELECT next FROM counters WHERE {_OF}", place)
        first = max(last + 1, 0 if counter is None else counter[0])
        file.write_many(
            f"UPDATE messages SET sequence = ?, unanswered = 0 WHERE {_OF} AND sequence = ?",
            [(first + n, *place, sequence) for n, sequence in enumerate(old)],
        )
        file.write(f"UPDATE counters SET next = ? WHERE {_OF}", [first + len(old), *place])

    def _note(
        self,
        user: int,
        owner: int | None,
        what: str,
        *,
        interactions: int = 0,
        messages: int = 0,
        bytes: int,
        epsilon: float = math.inf,
    ) -> Booked:
        party = ORCHESTRATOR if owner is None else self.store.world.owners[owner].name
        at = self.store.now()
        sent = RequestSent(user, owner, party, what, interactions, messages, bytes, epsilon, at)
        self.store.note_contacts([sent])
        return Booked((user,), what, bytes, epsilon)


def _refused(world: DirectoryIndex, choice: Choice) -> frozenset[int] | None:
    """The owners that must see nothing; None where nobody may see anything."""
    if not choice.takes_part:
        return None
    shut = choice.refused_owners
    return frozenset(owner.number for owner in world.directory.owners if owner.name in shut)


def _forbidden(world: DirectoryIndex, choice: Choice, owner: int, kind: str, item: int) -> str:
    """Why a message may not leave, in a word; empty where it may. That she leaves may always be
    said, as she asked for it herself."""
    entry = world.owners.get(owner)
    if entry is None:
        return "owner"
    if kind == "leave":
        return ""
    if not choice.takes_part or entry.name in choice.refused_owners:
        return "consent"
    if kind in ("negative", "positive"):
        if _never_sent(world, choice, item):
            return "consent"
        if not world.holds(owner, item):
            return "item"
    return ""


def _never_sent(world: DirectoryIndex, choice: Choice, item: int) -> bool:
    """By its name: owners' catalogues have no categories."""
    return bool(choice.never_send) and world.directory.catalogue[item] in choice.never_send


def _check(world: DirectoryIndex, item: int, time: int) -> None:
    if not 0 <= item < len(world.directory.catalogue):
        raise DataError("the item is not in the federation's catalogue")
    if not -_LARGEST_TIME < time < _LARGEST_TIME:
        raise DataError("a time is a number of seconds, and this one is beyond all of them")


def _enrolled(person: Person) -> Pass:
    if person.given is None:
        raise KeyTrouble("this user is not enrolled yet, so that no data owner knows her")
    return person.given
