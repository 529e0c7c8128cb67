"""From users' outboxes to one data owner, over a few connections.

A user's messages go in their order, one request at a time; several users' at once. The door
(`parties.user`) says what may leave just before it does, and lets it go sealed. A
request is never sent twice as it is: where no answer came, the same messages are sealed anew in
another session, and the owner knows them by their numbers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sottovoce.engines.client import Answer, Client, good
from sottovoce.engines.connection import Traffic
from sottovoce.errors import (
    DataError,
    KeyTrouble,
    MessageError,
    StoreError,
    Unreachable,
    UsageError,
)
from sottovoce.parties.leaving import Leaving
from sottovoce.services.agent.loop import Retries
from sottovoce.stores.user import UserStore
from sottovoce.stores.user_door import Departure, Settlement, UserDoor
from sottovoce.wire.directory import OwnerEntry
from sottovoce.wire.interactions import SessionSender
from sottovoce.wire.owners import (
    HELLO_BYTES,
    INTERACTIONS_PATH,
    MOST_SEALED,
    OFFER_BYTES,
    OFFERS_PATH,
    SESSION_BYTES,
    SESSIONS_PATH,
    OfferMade,
    OwnerReceipt,
    encode_interactions,
    encode_session,
)

T = TypeVar("T")
_MOST_RENEWALS = 4


class Books:
    """Writes to a store: what is asked for meanwhile goes to the disk together."""

    def __init__(self, store: UserStore) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(1, "books")
        self._waiting: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def __call__(self, work: Callable[[], T]) -> T:
        """What `work` returns, once it is on the disk."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, future))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return await future

    def close(self) -> None:
        self._pool.shutdown()

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            if not await self._commit(batch) and len(batch) > 1:
                # Somebody's trouble is not everybody's.
                for one in batch:
                    await self._commit([one])

    async def _commit(self, batch: Sequence[tuple[Callable[[], Any], asyncio.Future[Any]]]) -> bool:
        """Whether all could be done; nothing was where one could not."""
        works = [work for work, _ in batch]
        done = asyncio.get_running_loop().run_in_executor(self._pool, self._together, works)
        await asyncio.wait([done])
        error = done.exception()
        if error is None:
            for (_, future), result in zip(batch, done.result(), strict=True):
                if not future.done():
                    future.set_result(result)
        elif len(batch) == 1 and not batch[0][1].done():
            batch[0][1].set_exception(error)
        return error is None

    def _together(self, works: Sequence[Callable[[], Any]]) -> list[Any]:
        with self._store.file.transaction():
            return [work() for work in works]


@dataclass(slots=True)
class Delivered:
    """What became of a delivery to one owner."""

    arrived: int = 0
    refused: int = 0
    trouble: str = ""
    """Why something still waits, in a sentence; the last one where there are several."""
    away: bool = False
    """The owner does not answer, so that nobody asks it any more this time."""
    broken: StoreError | None = None


@dataclass(frozen=True, slots=True, repr=False)
class _Session:
    name: bytes
    sender: SessionSender

    def __repr__(self) -> str:
        return "<_Session, redacted>"


class _SessionLost(MessageError):
    """The owner does not know the session, or the offer of one, or took nothing in it."""


class OwnerLine:
    """The way to one data owner, with the sessions of its users."""

    def __init__(
        self,
        entry: OwnerEntry,
        door: UserDoor,
        books: Books,
        *,
        connections: int,
        retries: Retries,
    ) -> None:
        self.entry = entry
        self._door, self._books = door, books
        self._connections, self._retries = connections, retries
        self._clients: list[Client] = []
        self._sessions: dict[int, _Session] = {}

    def __repr__(self) -> str:
        return f"<OwnerLine to {self.entry.name}, redacted>"

    async def deliver(self, users: Sequence[int]) -> Delivered:
        """Everything that these users have for the owner, as far as it answers."""
        queue, outcome = deque(users), Delivered()
        wanted = min(self._connections, len(queue))
        try:
            while len(self._clients) < wanted:
                plain = self.entry.url.startswith("http://")
                self._clients.append(Client(self.entry.url, self.entry.authority, plaintext=plain))
        except (KeyTrouble, Unreachable, UsageError) as error:
            outcome.trouble = str(error)
            return outcome
        await asyncio.gather(
            *(self._work(client, queue, outcome) for client in self._clients[:wanted])
        )
        if outcome.broken is not None:
            raise outcome.broken
        return outcome

    @property
    def traffic(self) -> Traffic:
        return sum((client.traffic for client in self._clients), Traffic())

    async def rest(self) -> None:
        """Close the connections; sessions stay good."""
        for client in self._clients:
            await client.rest()

    async def _work(self, client: Client, queue: deque[int], outcome: Delivered) -> None:
        while queue and not outcome.away and outcome.broken is None:
            user = queue.popleft()
            try:
                await self._patiently(client, user, outcome)
            except StoreError as error:
                outcome.broken = error
            except Unreachable as error:
                outcome.trouble, outcome.away = str(error), True
            except (DataError, KeyTrouble, MessageError) as error:
                self._sessions.pop(user, None)
                outcome.trouble = str(error)

    async def _patiently(self, client: Client, user: int, outcome: Delivered) -> None:
        """Talk to the owner, and try again if it does not answer."""

        async def talk() -> None:
            try:
                await self._talk(client, user, outcome)
            except Unreachable:
                # Whether the last messages arrived is not known; their nonces are used up.
                self._sessions.pop(user, None)
                raise

        await self._retries(talk, given_up=lambda: outcome.away)

    async def _talk(self, client: Client, user: int, outcome: Delivered) -> None:
        """Send until nothing waits."""
        renewals = 0
        while True:
            try:
                if user not in self._sessions:
                    goes_on = await self._begin(client, user, outcome)
                else:
                    goes_on = await self._send(client, user, outcome)
            except _SessionLost:
                self._sessions.pop(user, None)
                renewals += 1
                if renewals > _MOST_RENEWALS:
                    raise MessageError(
                        f"data owner {self.entry.name} forgets every session at once, or takes "
                        "nothing in any; what is for it waits"
                    ) from None
                continue
            if not goes_on:
                return

    async def _begin(self, client: Client, user: int, outcome: Delivered) -> bool:
        """A session, with the first message alone: its receipt shows whether this store and the
        owner agree about her numbers. Whether there may be more to send."""
        number = self.entry.number
        given = await self._books(lambda: self._door.introduce(user, number))
        if given is None:
            return False
        answer = await client.post(OFFERS_PATH, given, once=True)
        if answer.status == 403 and await self._books(lambda: self._door.forgotten(user, number)):
            return False
        made = OfferMade.decode(self._good(answer).body)

        def leave_home() -> tuple[SessionSender, bytes, Departure | None]:
            sender, hello = self._door.begin(user, number, made.public)
            departure = self._door.depart(user, number, 1, OFFER_BYTES + HELLO_BYTES)
            return sender, hello, departure

        sender, hello, departure = await self._books(leave_home)
        if departure is None:
            return False
        leaving = departure.seal(sender, partial(encode_session, made.offer, hello))
        receipt = await self._receipt(client, SESSIONS_PATH, leaving, departure)
        if receipt.session is None:
            raise MessageError(f"data owner {self.entry.name} gave the session no name")
        self._sessions[user] = _Session(receipt.session, sender)
        await self._settle(user, departure, receipt, outcome)
        return True

    async def _send(self, client: Client, user: int, outcome: Delivered) -> bool:
        """One request of a session. Whether there may be more to send."""
        session, number = self._sessions[user], self.entry.number
        departure = await self._books(
            lambda: self._door.depart(user, number, MOST_SEALED, SESSION_BYTES)
        )
        if departure is None:
            return False
        leaving = departure.seal(session.sender, partial(encode_interactions, session.name))
        receipt = await self._receipt(client, INTERACTIONS_PATH, leaving, departure)
        settled = await self._settle(user, departure, receipt, outcome)
        full = len(departure.messages) == MOST_SEALED
        return full or settled.open > 0 or departure.last_words

    async def _settle(
        self, user: int, departure: Departure, receipt: OwnerReceipt, outcome: Delivered
    ) -> Settlement:
        settled = await self._books(lambda: self._door.settle(departure, receipt))
        outcome.arrived += settled.arrived
        outcome.refused += settled.refused
        if departure.last_words and not settled.open:
            self._sessions.pop(user, None)
        if settled.again or (settled.open and not settled.arrived + settled.refused):
            raise _SessionLost
        return settled

    async def _receipt(
        self, client: Client, path: str, leaving: Leaving, departure: Departure
    ) -> OwnerReceipt:
        answer = await client.post(path, leaving, once=True)
        if answer.status == 401:
            await self._books(lambda: self._door.turned_away(departure))
            raise _SessionLost
        return OwnerReceipt.decode(self._good(answer).body, len(departure.messages))

    def _good(self, answer: Answer) -> Answer:
        name = self.entry.name
        if answer.status == 403:
            raise KeyTrouble(
                f"data owner {name} does not accept the pass; it may serve another federation, or "
                "know somebody else by this user's number"
            )
        return good(answer, "data owner", self.entry.url, name, MessageError)
