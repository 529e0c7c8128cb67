"""A data owner as a party of its own: sealed interactions in, row requests and gradients out.

What it promises:

- An interaction that `take` has acknowledged is on the disk and counts once, whatever is killed or
  sent again. Where the disk fails, nothing of the call has happened, and it may be made again.
- A user's messages are taken only from a session that she alone can have begun; who shows her pass
  without her key cannot end the session she has. As long as anything of hers is here, nobody else
  gets in under her number, not even with a pass: an issuer may give a number out twice.
- An update is asked for until the orchestrator has counted it, and then never again. Sums over
  people (`release = "aggregated"`) are never made twice of the same people: see owner_summing.py.
- Of a user who leaves no byte remains, in memory or in the owner's files.

Threads may share a `DataOwner`; one process may have it. What it has in memory of interactions is
`algorithms.drift.Owner`, and the store follows it call by call.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sottovoce.algorithms.drift.messages import LARGEST, Gradients, Row, RowRequest, Rows
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.errors import DataError, KeyTrouble, MessageError
from sottovoce.stores.owner_memory import OwnerMemory, memory_of
from sottovoce.stores.owner_store import NONE, OwnerFacts, OwnerStore
from sottovoce.wire.interactions import (
    KEY_BYTES,
    NONCE_BYTES,
    SEALED_BYTES,
    Identity,
    Offer,
    SessionReceiver,
)
from sottovoce.wire.passes import Pass

# A data owner's door for users: offers of sessions, and sessions, in memory alone.

ID_BYTES = 16
"""Bytes of the id of an offer or a session."""
MOST_OFFERS, MOST_OFFERS_EACH, MOST_SESSIONS = 1 << 14, 8, 1 << 17
"""At a time, in memory; beyond it the oldest goes. A user has one session."""
ANOTHER = "somebody else is known here under the number of this pass"


class UnknownSession(MessageError):
    """No such session, or offer of one, as after a restart; the user begins another one."""


class Session(NamedTuple):
    user: int
    public: bytes
    receiver: SessionReceiver


class Door:
    """Has a lock of its own, so that nobody who knocks waits for the disk."""

    def __init__(self, owner: int, identity: Identity) -> None:
        self._owner, self._identity = owner, identity
        self._lock = threading.Lock()
        self._offers: OrderedDict[bytes, tuple[Pass, Offer]] = OrderedDict()
        self._offers_of: dict[int, list[bytes]] = {}
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._session_of: dict[int, bytes] = {}

    def __repr__(self) -> str:
        return "<Door, redacted>"

    def offer(self, given: Pass) -> tuple[bytes, bytes]:
        name, offer = secrets.token_bytes(ID_BYTES), Offer(self._owner, self._identity)
        with self._lock:
            own = self._offers_of.setdefault(given.user, [])
            own.append(name)
            self._offers[name] = given, offer
            # Passes are no secrets: who floods with one must not push others' offers out.
            if len(own) > MOST_OFFERS_EACH:
                self._take_offer(own[0])
            if len(self._offers) > MOST_OFFERS:
                self._take_offer(next(iter(self._offers)))
        return name, offer.public

    def accept(
        self, name: bytes, hello: bytes, first: bytes, is_hers: Callable[[int, bytes], bool]
    ) -> bytes:
        with self._lock:
            given, offer = self._take_offer(name)
        if not is_hers(given.user, given.public):
            raise KeyTrouble(ANOTHER)
        receiver = offer.accept(given.user, given.public, hello)
        receiver.open(first)
        receiver.last = -1
        session = secrets.token_bytes(ID_BYTES)
        with self._lock:
            self._close(given.user)
            self._sessions[session] = Session(given.user, given.public, receiver)
            self._session_of[given.user] = session
            if len(self._sessions) > MOST_SESSIONS:
                self._close(next(iter(self._sessions.values())).user)
        return session

    def session(self, name: bytes) -> Session | None:
        with self._lock:
            found = self._sessions.get(name)
            if found is not None:
                self._sessions.move_to_end(name)
            return found

    def open_sessions(self) -> int:
        with self._lock:
            return len(self._sessions)

    def close(self, user: int) -> None:
        """Her session and the offers made to her."""
        with self._lock:
            self._close(user)
            for name in self._offers_of.pop(user, []):
                del self._offers[name]

    def _close(self, user: int) -> None:
        name = self._session_of.pop(user, None)
        if name is not None:
            del self._sessions[name]

    def _take_offer(self, name: bytes) -> tuple[Pass, Offer]:
        found = self._offers.pop(name, None)
        if found is None:
            raise UnknownSession("there is no such offer of a session, ask for another one")
        own = self._offers_of[found[0].user]
        own.remove(name)
        if not own:
            del self._offers_of[found[0].user]
        return found


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a batch of messages."""

    sequence: int
    """The last number of the user's that is known here; -1 where none is."""
    taken: int
    repeated: int
    """Known already, by their place in the session or by their number; dropped."""
    refused: tuple[tuple[int, str], ...]
    """Place in the batch and a word: "tag" (not sealed for the session), "item" (not held here),
    "time" (older than the user's last), "sequence" (a number too large), "left" (after she left).
    Sent again, they would be refused again."""


class DataOwner:
    """See the module's head."""

    def __init__(self, store: OwnerStore, identity: Identity) -> None:
        """Takes the store over. Use `create` or `open`."""
        facts = store.facts
        if identity.public != facts.public:
            store.close()
            raise KeyTrouble(
                f"the key is not the one with which data owner {facts.name} was made; put the "
                "right one back"
            )
        self.number, self.name, self.federation = facts.number, facts.name, facts.federation
        self.issuer, self.settings, self.identity = facts.issuer, facts.settings, identity
        self._store = store
        self._door = Door(facts.number, identity)
        self._turn = threading.RLock()
        self._memory: OwnerMemory | None = None
        try:
            self._known()
        except BaseException:
            store.close()
            raise

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        number: int,
        name: str,
        federation: str,
        issuer: bytes,
        settings: DRIFTConfig,
        items: Iterable[int],
        identity: Identity,
        draws: int | None = None,
    ) -> DataOwner:
        """A new owner, whose files are made in the folder `path`. Where owners draw negatives, it
        draws them from a secret that the operating system makes, unless a trial says which."""
        if not 0 <= number < 1 << 32:
            raise DataError("data owners are numbered from 0")
        if len(issuer) != KEY_BYTES:
            raise KeyTrouble(f"an issuer's public key has {KEY_BYTES} bytes")
        facts = OwnerFacts(number, name, federation, issuer, settings, identity.public)
        return cls(OwnerStore.create(path, facts, _checked(items), draws), identity)

    @classmethod
    def open(cls, path: Path, identity: Identity) -> DataOwner:
        """An owner that was made there. Raises where another process has it."""
        return cls(OwnerStore.open(path), identity)

    def close(self) -> None:
        """When whoever uses it now is done. Closing twice does no harm."""
        with self._turn:
            self._memory = None
            self._store.close()

    def __repr__(self) -> str:
        return f"<DataOwner {self.number} {self.name!r}, redacted>"

    @property
    def items(self) -> frozenset[int]:
        """The items that it holds now."""
        with self._turn:
            return self._known().items

    # --- users' side ------------------------------------------------------------------------------

    def offer(self, given: Pass) -> tuple[bytes, bytes]:
        """An offer of a session to whoever has this pass: its id, and the public key for
        `interactions.begin`. Raises where the pass is not this federation's."""
        given.check(self.issuer, self.federation)
        if not self._is_hers(given.user, given.public):
            raise KeyTrouble(ANOTHER)
        return self._door.offer(given)

    def accept(self, offer: bytes, hello: bytes, first: bytes) -> bytes:
        """The id of the session that answers an offer. Only the user herself can have sealed the
        `first` message, which is not taken yet; where it does not open, all is as before."""
        return self._door.accept(offer, hello, first, self._is_hers)

    def take(self, session: bytes, sealed: Sequence[bytes]) -> Taken:
        """Messages of a session, in their order. On the disk when it returns."""
        (taken,) = self.take_many([(session, sealed)])
        if isinstance(taken, UnknownSession):
            raise taken
        return taken

    def take_many(
        self, batches: Sequence[tuple[bytes, Sequence[bytes]]]
    ) -> list[Taken | UnknownSession]:
        """As `take`, of several sessions, which go to the disk together."""
        before: dict[bytes, tuple[SessionReceiver, int]] = {}
        try:
            with self._writing() as memory:
                return [self._take(memory, *batch, before) for batch in batches]
        except BaseException:
            # So that all of it may be sent again in the same session.
            for receiver, last in before.values():
                receiver.last = last
            raise

    def _take(
        self,
        memory: OwnerMemory,
        session: bytes,
        sealed: Sequence[bytes],
        before: dict[bytes, tuple[SessionReceiver, int]],
    ) -> Taken | UnknownSession:
        found = self._door.session(session)
        if found is None or found.user in memory.left:
            return UnknownSession("there is no such session, begin another one")
        user, public, receiver = found
        if memory.publics.get(user, public) != public:
            return UnknownSession(ANOTHER)
        before.setdefault(session, (receiver, receiver.last))
        sequence, taken, repeated = memory.sequences.get(user, NONE), 0, 0
        refused: list[tuple[int, str]] = []
        for place, message in enumerate(sealed):
            if user in memory.left:
                word = "left"
            elif _counter(message) <= receiver.last:
                word = "repeated"
            else:
                try:
                    opened = receiver.open(message)
                except MessageError:
                    word = "tag"
                else:
                    word = memory.take(opened, public, self._store)
                    if word not in ("repeated", "sequence"):
                        sequence = opened.sequence
            if word == "repeated":
                repeated += 1
            elif word:
                refused.append((place, word))
                memory.more[f"refused_{word}"] += 1
            else:
                taken += 1
        memory.more.update(taken=taken, repeated=repeated)
        return Taken(sequence, taken, repeated, tuple(refused))

    # --- orchestrator's side ----------------------------------------------------------------------

    def request(
        self,
        round: int,
        counted: int,
        *,
        flush: bool,
        departed: Iterable[int] = (),
        heard: int = NONE,
    ) -> RowRequest | None:
        """Which rows this owner needs in a round; nothing where no update is due. `counted` is the
        last round in which an update of this owner was counted, -1 where none was: the update asked
        for last is done with if that was its round, and waits again if not. In one round the
        request is the same as often as it is made. With `flush` all streams end first, and any
        finished block makes an update due. Departed users are forgotten. A question of a round
        before one that was asked in is refused, also after a restart. `heard` is the last round of
        which sums of this owner came in, counted or not: a store that does not know it is old."""
        if not NONE <= counted < round:
            raise MessageError("a round must come after the last one that was counted")
        with self._turn:
            if self._store.unclean:  # the last attempt failed
                self._store.erase_traces()
        with self._writing() as memory:
            memory.reach(round, max(counted, heard), self._store)
            ends = flush and memory.flushed_round != round
            anew = memory.asked_round != round or ends
            if anew:
                memory.settle(memory.asked_round == counted, self._store)
            for user in departed:
                self._door.close(user)
                if user in memory.sequences:
                    memory.forget(user, self._store)
            if ends:
                memory.flush(round, self._store)
            if anew:
                memory.ask(round, flush, self._store)
            return memory.owner.request_again() if memory.asked_round == round else None

    def gradients(self, round: int, rows: Rows) -> Gradients | None:
        """From the rows that were asked for in this round; the same from the same rows, also after
        a restart. Nothing where everybody concerned has left since."""
        with self._turn:
            memory = self._known()
            if round < 0 or memory.asked_round != round:
                raise MessageError(
                    f"data owner {self.name} has not asked for rows in round {round}; they are "
                    "refused"
                )
            if self.settings.release == "printed":
                return memory.answer(round, rows, self._store)
            with self._writing():
                found = memory.answer(round, rows, self._store)
            memory.require_newest()  # noted after it is on the disk, and before it leaves
            return found

    def own_vector(self, given: Pass) -> Row | None:
        """`vector` of whoever has this pass, and has shown that its key is hers. Raises where
        another key is known here under her number."""
        with self._turn:
            memory = self._known()
            if memory.publics.get(given.user, given.public) != given.public:
                raise KeyTrouble(ANOTHER)
            return memory.vector(given.user)

    def vector(self, user: int) -> Row | None:
        """For the user herself: her vector, where owners keep them (`release = "aggregated"`) and
        she has had a block here."""
        with self._turn:
            return self._known().vector(user)

    # --- operator's side --------------------------------------------------------------------------

    def forget(self, user: int) -> None:
        """As if she had left."""
        with self._writing() as memory:
            memory.forget(user, self._store)

    def add_items(self, items: Iterable[int]) -> None:
        new = _checked(items)
        with self._writing() as memory:
            memory.owner.add_items(new)
            memory.items = memory.owner.items
            self._store.add_items(new)

    def withdraw_items(self, items: Iterable[int]) -> None:
        """These items leave every block."""
        gone = frozenset(items)
        with self._writing() as memory:
            if not gone <= memory.items:
                raise DataError("a data owner cannot withdraw what it does not hold")
            memory.withdraw_items(gone, self._store)

    def counts(self) -> dict[str, int]:
        """How much there is now (users, items, sessions, streams, waiting and asked blocks,
        withheld sums), and since the owner was made: messages taken, repeated and refused_WORD, and
        updates that were counted or returned."""
        with self._turn:
            memory = self._known()
            return {
                "users": len(memory.sequences),
                "items": len(memory.items),
                "sessions": self._door.open_sessions(),
                "streams": len(memory.lengths),
                "waiting": memory.waiting,
                "asked": len(memory.owner.asked),
                **memory.withheld(),
                **{name: memory.counts[name] for name in ("taken", "repeated")},
                **{name: memory.counts[name] for name in ("counted", "returned")},
                **{n: v for n, v in sorted(memory.counts.items()) if n.startswith("refused_")},
            }

    # --- helpers ----------------------------------------------------------------------------------

    def _is_hers(self, user: int, public: bytes) -> bool:
        """Whether nobody is known here under this number with another key. Does not wait for the
        disk; `_take` asks again."""
        memory = self._memory
        return memory is None or memory.publics.get(user, public) == public

    def _known(self) -> OwnerMemory:
        """What is in memory; read from the disk where the last call failed."""
        if self._memory is None:
            self._memory = memory_of(self.number, self.settings, self._store)
        return self._memory

    @contextlib.contextmanager
    def _writing(self) -> Iterator[OwnerMemory]:
        """Within, a transaction. Where it fails, memory is as the disk is."""
        with self._turn:
            memory = self._known()
            try:
                with self._store.transaction():
                    yield memory
                    memory.write(self._store)
            except BaseException:
                self._memory = None
                raise
            left, memory.left = memory.left, set()
            for user in left:
                self._door.close(user)
            if left and self._store.unclean:
                self._store.erase_traces()


def _counter(message: bytes) -> int:
    """The message's place in its session; beyond all places where it is no message."""
    if len(message) != SEALED_BYTES:
        return 1 << 8 * NONCE_BYTES
    return int.from_bytes(message[:NONCE_BYTES], "big")


def _checked(items: Iterable[int]) -> frozenset[int]:
    listed = frozenset(items)
    if any(not 0 <= item < LARGEST for item in listed):
        raise DataError(f"items are numbered from 0 to {LARGEST - 1:,}")
    return listed
