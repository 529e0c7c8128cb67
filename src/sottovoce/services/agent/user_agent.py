"""A DRIFT user's agent: brings what waits in a store to the data owners, and speaks with the
orchestrator. A phone's store has one user, a trial's thousands.

What it sends is on record in the store before its first byte leaves, so it may be killed at any
moment and loses nothing. Who does not answer is left for the next time; whatever is for others goes
on. Before she takes part an agent reads the public directory, and sends nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.engines.client import Answer, Client, good
from sottovoce.engines.connection import Traffic
from sottovoce.errors import (
    ConsentError,
    KeyTrouble,
    MessageError,
    ServiceError,
    SottovoceError,
    StoreError,
    Unreachable,
    UsageError,
)
from sottovoce.services.agent.loop import Log, Loop, Retries, Sleep
from sottovoce.services.agent.user_delivery import Books, OwnerLine
from sottovoce.services.kit.pacing import Draw, from_system
from sottovoce.stores.user import DirectoryIndex, Person, UserStore
from sottovoce.stores.user_door import ORCHESTRATOR, UserDoor
from sottovoce.wire.directory import OwnerEntry
from sottovoce.wire.users import (
    DIRECTORY,
    ENROL,
    KEY,
    LEAVE,
    MOST_ITEMS,
    RECOMMEND,
    ROWS,
    VECTOR,
    Enrolled,
    Enrolment,
    Purpose,
    Recommended,
    ask,
    decode_item_rows,
    decode_key,
    decode_vector,
    encode_count,
    longest_rows,
)

T = TypeVar("T")
CONNECTIONS = 8
"""At a time to each owner, at most."""
_LARGEST_DIRECTORY = 1 << 28
_LARGEST_ANSWER = 1 << 23
_FEWEST_ASKED = 64


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """None where there is none, as on Windows: Python's own does as well."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of what waited."""

    arrived: int
    refused: int
    """For good, by their owners."""
    waiting: int
    """In the store's outbox now."""
    troubles: dict[str, str] = field(default_factory=dict)
    """By party, why something waits, in a sentence."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    item: int
    name: str
    score: float


@dataclass(frozen=True, slots=True)
class OwnersVisit:
    """What a visit has shown: how long to wait, and whether anything waits still."""

    state: str
    poll_seconds: float = 60.0


class UserAgent(Loop):
    """Of all users of a store. An app's calls wait until they are done; it is for one thread. A
    process that serves stores visits instead (`run`)."""

    def __init__(
        self,
        store: UserStore,
        *,
        server: str | None = None,
        poll: float | None = None,
        log: Log = lambda event, **details: None,
        connections: int = CONNECTIONS,
        tries: int = 4,
        sleep: Sleep = asyncio.sleep,
        draw: Draw = from_system,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Who does not answer is asked `tries` times in all, with growing waits. `server` is
        another address of the orchestrator than the invitation's."""
        if connections < 1 or tries < 1:
            raise UsageError("an agent needs at least one connection and one try")
        url = server or store.url
        client = Client(url, store.authority, plaintext=url.startswith("http://"))
        super().__init__(store.path, client, poll=poll, log=log, draw=draw, sleep=sleep)
        self.store, self.door = store, UserDoor(store)
        self._connections, self._clock = connections, clock
        self._patiently = Retries(tries, sleep, draw)
        self._books = Books(store)
        self._lines: dict[int, OwnerLine] = {}
        self.left_out: tuple[str, ...] = ()
        """Owners that did not answer when it ranked last, so that their vectors are not in it."""
        self._runner = asyncio.Runner(loop_factory=_fast_loop())

    def __enter__(self) -> UserAgent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def __repr__(self) -> str:
        return "<UserAgent, redacted>"

    def _stop(self) -> None:
        self._runner.close()
        self._books.close()

    # --- as a service ----------------------------------------------------------------------------

    async def visit(self) -> OwnersVisit:
        """Bring what waits to its owners, as far as they answer."""
        self.tally.visits += 1
        found = await self._send_all()
        self.tally.counted += found.arrived
        self.tally.refused += found.refused
        if found.arrived or found.refused:
            self._log("delivered", arrived=found.arrived, refused=found.refused)
        for party, why in found.troubles.items():
            self._log("failed", party=party, why=why)
        return OwnersVisit("open" if found.waiting else "finished")

    @property
    def stopped(self) -> bool:
        return self.store.stopped

    @property
    def traffic(self) -> Traffic:
        """With the orchestrator and with data owners, but for vectors that were asked for."""
        return sum((line.traffic for line in self._lines.values()), self.client.traffic)

    async def rest(self) -> None:
        await self.client.rest()
        for line in self._lines.values():
            await line.rest()

    async def close(self) -> None:
        await self.rest()
        await asyncio.to_thread(self._stop)

    # --- what an app asks for --------------------------------------------------------------------

    def refresh_directory(self) -> bool:
        """Fetch the directory; whether there was a newer one. Raises where none can be had or it
        is not to be believed; the store keeps the one it has."""
        return self._run(self._patiently(self._refresh))

    def enrol(self, user: int) -> None:
        """Use the invitation, once she takes part. Nothing happens where that was done before."""
        self._run(self._enrol(user))

    def introduction(self, user: int) -> bytes:
        """What `enrol` would tell the orchestrator; its key is asked for, and nothing sent."""
        return self._run(self._patiently(partial(self._introduction, user)))

    def send_all(self) -> Delivery:
        """Bring what waits to its owners, after a look at the directory. Who does not answer is
        named in the result, and what is for them waits."""
        return self._run(self._send_all())

    def end_stream(self, user: int, owner: str | None = None) -> Delivery:
        """Close her open block at one owner, or at all."""
        self.door.end_stream(user, owner)
        return self.send_all()

    def leave(self, user: int, owner: str | None = None) -> Delivery:
        """Leave one owner, or (None) all of them and the federation. Who cannot be reached is told
        by a later `send_all`; nothing else goes there."""
        self.door.leave(user, owner)
        return self.send_all()

    def recommend(self, user: int, n: int) -> list[Suggestion]:
        """The best items that she has not seen. Where data owners keep her vectors, she asks those
        that she has told anything, and ranks here. Otherwise the orchestrator ranks without knowing
        what she has seen: it is asked for more than needed, by a round number, and the rest is done
        here."""
        if n < 1:
            raise UsageError(f"one can ask for at least 1 item, not {n}")
        self.left_out = ()
        return self._run(self._recommend(user, n))

    # --- how it is done --------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self.stopped:
            work.close()
            raise ConsentError(
                f"everything is stopped in {self.store.path}, so that nobody is asked or told "
                f"anything; `sottovoce device stop {self.store.path} --undo` ends that"
            )
        return self._runner.run(self._and_rest(work))

    async def _and_rest(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        finally:
            await self.rest()

    async def _refresh(self) -> bool:
        answer = await self.client.get(DIRECTORY, limit=_LARGEST_DIRECTORY, packed=True)
        signed = self._good(answer).body
        return await self._books(lambda: self.store.keep_directory(signed))

    async def _enrol(self, user: int) -> None:
        person = await self._books(lambda: self.store.person(user))
        if person.given is not None:
            return
        # Before anything is asked: who takes no part is not even seen to be there.
        await self._books(lambda: self.door.require_part(user))
        key, public = await self._orchestrator_key(), person.identity.public
        body = await self._enrolment(person, key)
        leaving = await self._books(lambda: self.door.enrolling(user, body))
        answer = await self.client.post(ENROL, leaving, once=True)
        if answer.status == 403:
            raise KeyTrouble(
                "the orchestrator did not accept the invitation, which may have been used before; "
                "ask the operator for another one"
            )
        told = self._good(answer).body
        known = Enrolled.decode(told, self.store.federation, self.store.issuer, public)
        if known.orchestrator != key:
            raise KeyTrouble("the orchestrator shows another key than before; tell its operator")
        await self._books(lambda: self.store.enrolled(user, known.given, known.orchestrator))

    async def _introduction(self, user: int) -> bytes:
        person = await self._books(lambda: self.store.person(user))
        await self._books(lambda: self.door.require_part(user))
        return await self._enrolment(person, await self._orchestrator_key())

    async def _enrolment(self, person: Person, orchestrator: bytes) -> bytes:
        token = await self._books(lambda: self.store.token)
        if token is None:
            raise KeyTrouble("this store has no invitation; ask the operator for one")
        federation = self.store.federation
        return Enrolment.of(token, person.identity, federation, orchestrator).encode()

    async def _orchestrator_key(self) -> bytes:
        answer = await self.client.get(KEY)
        return decode_key(self._good(answer).body)

    async def _send_all(self) -> Delivery:
        troubles: dict[str, str] = {}
        if await self._books(lambda: self.store.has_directory):
            try:
                await self._refresh()
            except StoreError:
                raise
            except SottovoceError as error:  # what was signed may be nonsense in any way
                troubles[ORCHESTRATOR] = str(error)
        else:
            await self._patiently(self._refresh)
        await self._enrol_all(troubles)
        by_owner: dict[int, list[int]] = {}
        for user, owner in await self._books(self.door.pairs):
            by_owner.setdefault(owner, []).append(user)
        found = await asyncio.gather(
            *(self._deliver(owner, users, troubles) for owner, users in by_owner.items())
        )
        await self._depart_all(troubles)
        return Delivery(
            sum(arrived for arrived, _ in found),
            sum(refused for _, refused in found),
            await self._books(self.door.waiting),
            troubles,
        )

    async def _deliver(
        self, owner: int, users: Sequence[int], troubles: dict[str, str]
    ) -> tuple[int, int]:
        entry = self.store.world.owners.get(owner)
        if entry is None:  # it has left: the door drops what is for it
            for user in users:
                await self._books(partial(self.door.introduce, user, owner))
            return 0, 0
        line = self._lines.get(owner)
        if line is None or _way(line) != (entry.url, entry.authority, entry.public):
            line = OwnerLine(
                entry,
                self.door,
                self._books,
                connections=self._connections,
                retries=self._patiently,
            )
            self._lines[owner] = line
        outcome = await line.deliver(users)
        if outcome.trouble:
            troubles[entry.name] = outcome.trouble
        return outcome.arrived, outcome.refused

    async def _enrol_all(self, troubles: dict[str, str]) -> None:
        """Whoever takes part and is not enrolled yet."""
        for user in await self._books(self.store.strangers):
            choice = await self._books(partial(self.store.choice, user))
            if not choice.takes_part:
                continue
            try:
                await self._patiently(partial(self._enrol, user))
            except StoreError:
                raise
            except (ServiceError, MessageError, ConsentError) as error:
                troubles[ORCHESTRATOR] = str(error)

    async def _depart_all(self, troubles: dict[str, str]) -> None:
        """Tell the orchestrator who leaves the federation."""
        for user in await self._books(self.store.departing):
            try:
                await self._patiently(partial(self._depart, user))
            except StoreError:
                raise
            except (ServiceError, MessageError) as error:
                troubles[ORCHESTRATOR] = str(error)

    async def _depart(self, user: int) -> None:
        body = await self._question(user, "leave", b"")
        leaving = await self._books(lambda: self.door.departing(user, body))
        answer = await self.client.post(LEAVE, leaving, once=True)
        if (answer.status, answer.reason) != (401, "unknown_account"):
            self._good(answer)
        await self._books(lambda: self.store.set_departure(user, "done"))

    async def _recommend(self, user: int, n: int) -> list[Suggestion]:
        await self._patiently(lambda: self._enrol(user))
        if not await self._books(lambda: self.store.has_directory):
            await self._patiently(self._refresh)
        seen = await self._books(lambda: self.store.seen(user))
        world = await self._books(lambda: self.store.world)
        catalogue = world.directory.catalogue
        if world.directory.settings.release == "aggregated":
            return await self._rank_at_home(user, n, seen)
        wanted = min(_round_number(n + len(seen)), len(catalogue), MOST_ITEMS)

        async def once() -> Answer:
            # Anew for each attempt: a question is good once.
            body = await self._question(user, "recommend", encode_count(wanted))
            leaving = await self._books(lambda: self.door.asking(user, body))
            return await self.client.post(RECOMMEND, leaving, limit=_LARGEST_ANSWER, once=True)

        answer = self._good(await self._patiently(once))
        told = Recommended.decode(answer.body)
        best = [
            Suggestion(item, catalogue[item], score)
            for item, score in zip(told.items, told.scores, strict=True)
            if item not in seen and item < len(catalogue)
        ]
        return best[:n]

    async def _rank_at_home(self, user: int, n: int, seen: Collection[int]) -> list[Suggestion]:
        """With her vectors, which data owners keep, and everybody's rows."""
        from sottovoce.algorithms.drift.aggregated import own_vector
        from sottovoce.core.recommender import FactorScorer, recommend

        world, rows = await self._patiently(self._rows)
        catalogue, size = world.directory.catalogue, rows.shape[1]
        given, silent = [], []
        keepers = await self._books(lambda: self.door.keepers(user))
        for entry in [world.owners[owner] for owner in keepers]:
            try:
                vector = await self._patiently(partial(self._vector, user, entry, size))
            except Unreachable:
                silent.append(entry.name)
                continue
            if vector is not None:
                given.append(vector)
        if silent and len(silent) == len(keepers):
            raise Unreachable(f"nobody who keeps a vector of yours answers: {', '.join(silent)}")
        self.left_out = tuple(silent)
        bias = np.full(len(rows), -np.inf, dtype=np.float32)
        bias[[item for item in world.table if item < len(rows)]] = 0.0
        vector = own_vector(given, size, world.directory.settings.start)
        scorer = FactorScorer(vector[None], rows, bias)
        known = np.array(sorted(item for item in seen if item < len(rows)), dtype=np.int32)
        items, scores = recommend(scorer, 0, known, n)
        found = zip(items.tolist(), scores.tolist(), strict=True)
        return [Suggestion(item, catalogue[item], score) for item, score in found]

    async def _rows(self) -> tuple[DirectoryIndex, NDArray[np.float32]]:
        """Those of all items, and the directory that names them: fetched anew where the one that is
        known names too few."""

        async def fetch() -> tuple[DirectoryIndex, NDArray[np.float32]]:
            world = await self._books(lambda: self.store.world)
            shape = len(world.directory.catalogue), world.directory.settings.embedding_size
            answer = await self.client.get(ROWS, limit=longest_rows(*shape), packed=True)
            return world, decode_item_rows(self._good(answer).body, *shape)

        try:
            return await fetch()
        except Unreachable:
            if not await self._refresh():
                raise
            return await fetch()

    async def _vector(self, user: int, entry: OwnerEntry, size: int) -> NDArray[np.float32] | None:
        """Her own, of one owner. A question is good once, so it is made anew each time."""
        body = await self._question(user, "vector", b"", entry.public)
        leaving = await self._books(lambda: self.door.asking_keeper(user, entry.number, body))
        client = Client(entry.url, entry.authority, plaintext=entry.url.startswith("http://"))
        try:
            answer = await client.post(VECTOR, leaving, once=True)
        finally:
            await client.rest()
        told = good(answer, "data owner", entry.url, entry.name, MessageError)
        return decode_vector(told.body, size)

    async def _question(
        self, user: int, purpose: Purpose, content: bytes, asked: bytes | None = None
    ) -> bytes:
        """To the orchestrator, or to whoever has the key `asked`."""
        person = await self._books(lambda: self.store.person(user))
        orchestrator = await self._books(lambda: self.store.orchestrator)
        if person.given is None or orchestrator is None:
            raise KeyTrouble("this user is not enrolled yet; the orchestrator does not know her")
        federation, now = self.store.federation, self._clock()
        public = asked or orchestrator
        return ask(purpose, content, person.given, person.identity, federation, public, now)

    def _good(self, answer: Answer) -> Answer:
        if answer.reason == "unknown_account":
            raise KeyTrouble("the orchestrator does not know this user any more")
        return good(answer, "orchestrator", self.client.url, refusal=MessageError)


def _way(line: OwnerLine) -> tuple[str, str, bytes]:
    return line.entry.url, line.entry.authority, line.entry.public


def _round_number(least: int) -> int:
    """A power of two that is not below; how many items she has seen hardly shows in it."""
    return max(_FEWEST_ASKED, 1 << (least - 1).bit_length())
