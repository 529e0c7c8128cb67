"""A data owner: users send it messages over HTTPS, and it takes part in the orchestrator's rounds
beside, on the same store. A message is acknowledged when what it changed is on the disk. Nothing of
a request is logged."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import httpx2

from sottovoce.errors import DataError, KeyTrouble, MessageError, ServiceError, Unreachable
from sottovoce.services.kit.answers import (
    JSON,
    OCTETS,
    Receive,
    Scope,
    Send,
    answer,
    answer_json,
    read_body,
    table_of,
)
from sottovoce.services.kit.application import Hosting, HttpApplication, Pulse
from sottovoce.services.kit.connections import Room, Share, sender_of
from sottovoce.services.kit.metrics import Figure, by
from sottovoce.services.kit.questions import AskingLimits, Once, proven
from sottovoce.services.kit.serving import Beside, Parts, Service, Start
from sottovoce.services.kit.writer import GroupWriter
from sottovoce.stores.keys import authority_pem, device_context, operator_token
from sottovoce.stores.owner import DataOwner, Taken, UnknownSession
from sottovoce.stores.owner_folder import OwnerFolder, open_owner_folder
from sottovoce.wire.owners import (
    INTERACTIONS_PATH,
    LONGEST_INTERACTIONS,
    LONGEST_OFFER_REQUEST,
    LONGEST_SESSION_REQUEST,
    OFFERS_PATH,
    OWNER_PATH,
    SESSIONS_PATH,
    OfferMade,
    OwnerCard,
    OwnerReceipt,
    decode_interactions,
    decode_session,
)
from sottovoce.wire.passes import Pass
from sottovoce.wire.refusals import Refused, read_or_refuse
from sottovoce.wire.silo_files import Admission
from sottovoce.wire.users import LONGEST, VECTOR, encode_vector

Batch = tuple[bytes, Sequence[bytes]]
"""A session, and messages of it."""

STATUS_PATH, ITEMS_PATH, FORGET_PATH = "/v1/status", "/v1/operator/items", "/v1/operator/forget"
LONGEST_OPERATOR_REQUEST = 32 << 20
_REFUSED = "refused_"
_BEGIN = "there is no such session here, or no more; begin another one"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits(AskingLimits):
    waiting: int = 256
    """Requests that wait for the disk."""
    receiving: ClassVar[int] = 128 << 20
    """Bytes that are here of requests being received. Anybody can begin one and be slow about it,
    so there is room for many."""
    receiving_per_address: ClassVar[int] = 16 << 20
    in_flight: int = 4 << 20
    """Bytes of requests that wait for the disk: what one transaction has to take at most."""
    sessions: int = 128
    """Offers and agreements that wait, and as many questions for vectors."""
    lag_seconds: float = 0.2
    """A service that is so late with its own work takes nothing more on."""


class OwnerApplication(HttpApplication[OwnerLimits]):
    name, prefix = "the data owner", "owner_"

    def __init__(
        self, hosting: Hosting[OwnerLimits], owner: DataOwner, node: Callable[[], str]
    ) -> None:
        """`node` says how the owner's part in the orchestrator's rounds is doing."""
        super().__init__(hosting)
        self._owner, self._node, limits = owner, node, hosting.limits
        self._refused: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._card = OwnerCard(
            owner.federation, owner.number, owner.name, owner.identity.public
        ).encode()
        self._writer = GroupWriter[Batch, Taken | UnknownSession](
            self._commit, hosting, limit=limits.waiting
        )
        self._agreements = self._executor(limits.sessions)
        self._vectors = self._executor(limits.sessions)
        self._receiving = Room(self.name, limits.receiving, limits.receiving_per_address)
        self._in_flight = Room(self.name, limits.in_flight, limits.in_flight // 4)
        self._sending: set[bytes] = set()
        self._once = Once(self.name, limits)
        self._pulse = Pulse()
        self._ends += [self._pulse.stop, self._writer.close]
        routes = {
            OWNER_PATH: ("GET", self._show),
            OFFERS_PATH: ("POST", self._offer),
            SESSIONS_PATH: ("POST", self._begin),
            INTERACTIONS_PATH: ("POST", self._interact),
            STATUS_PATH: ("GET", self._status(self._described)),
            ITEMS_PATH: ("POST", self._operator(self._change_items)),
            FORGET_PATH: ("POST", self._operator(self._forget)),
        }
        if owner.settings.release == "aggregated":
            routes[VECTOR] = ("POST", self._vector)
        self._serve(routes)

    def _commit(
        self, batch: Sequence[Batch], counts: Mapping[str, int], seen: set[int]
    ) -> list[Taken | UnknownSession]:
        taken = self._owner.take_many(batch) if batch else []
        with self._counting:
            self._refused.update(counts)
        return taken

    # --- what users send --------------------------------------------------------------------------

    async def _offer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._body(scope, receive, LONGEST_OFFER_REQUEST)
        try:
            given = Pass.decode(body)
        except MessageError as error:
            raise Refused("malformed", str(error)) from None

        def offer() -> OfferMade:
            try:
                return OfferMade(*self._owner.offer(given))
            except KeyTrouble as error:
                raise Refused("bad_pass", str(error)) from None

        made = await self._agreements(offer)
        await answer(send, 200, [JSON], made.encode())

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._share(scope) as share:
            body = await self._shared_body(scope, receive, LONGEST_SESSION_REQUEST, share)
            offer, hello, sealed = read_or_refuse(decode_session, body)
            if self._writer.full:  # an offer is good once: better not take it up in vain
                raise self.busy

            def accept() -> bytes:
                try:
                    return self._owner.accept(offer, hello, sealed[0])
                except UnknownSession:
                    raise Refused("session", "there is no such offer, or no more") from None
                except KeyTrouble as error:
                    raise Refused("malformed", str(error)) from None
                except MessageError:
                    raise Refused("tag", "the first message is not for this offer") from None

            session = await self._agreements(accept)
            taken = await self._take(session, sealed)
        await _receipt(send, taken, session)

    async def _interact(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._share(scope) as share:
            body = await self._shared_body(scope, receive, LONGEST_INTERACTIONS, share)
            session, sealed = read_or_refuse(decode_interactions, body)
            taken = await self._take(session, sealed)
        await _receipt(send, taken)

    def _share(self, scope: Scope) -> Share:
        """Room for a body while it comes. Raises where the service is late."""
        if self._pulse.lag > self._limits.lag_seconds:
            raise self.busy
        return Share(self._receiving, sender_of(scope))

    async def _shared_body(
        self, scope: Scope, receive: Receive, longest: int, share: Share
    ) -> bytes:
        """When it is here, its room is among what waits for the disk."""
        body = await read_body(scope, receive, longest, self._limits.body_seconds, share)
        share.move(self._in_flight, share.sender)
        return body

    async def _take(self, session: bytes, sealed: Sequence[bytes]) -> Taken:
        """One request of a session at a time: no user takes the room of many, and messages come in
        the order in which they were sealed."""
        if session in self._sending:
            raise Refused("too_often", "other messages of this session are on their way")
        self._sending.add(session)
        try:
            taken = await self._writer.store((session, sealed))
        finally:
            self._sending.discard(session)
        if isinstance(taken, UnknownSession):
            raise Refused("session", _BEGIN)
        return taken

    async def _vector(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Waits while sums are made; offers and sessions do not wait with it."""
        body = await self._body(scope, receive, LONGEST)
        owner = self._owner

        def look() -> bytes:
            asked = proven(body, "vector", owner.federation, owner.issuer, owner.identity)
            self._once.admit(asked)
            try:
                return encode_vector(owner.own_vector(asked.given), owner.settings.embedding_size)
            except KeyTrouble as error:
                raise Refused("bad_pass", str(error)) from None

        await answer(send, 200, [OCTETS], await self._vectors(look))

    async def _show(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, [JSON], self._card)

    # --- what the operator asks -------------------------------------------------------------------

    def figures(self) -> Iterator[Figure]:
        found = self._described()
        yield Figure("items", "Items that it holds.", found["items"])
        held = [((what,), count) for what, count in found["held"].items()]
        yield Figure("held", "What it keeps of all users together.", held, ("what",))
        in_flight = self._receiving.bytes + self._in_flight.bytes
        yield Figure("in_flight_bytes", "Bytes of requests being received or written.", in_flight)
        running = int(found["node"] == "running")
        yield Figure("node_running", "Whether it takes part in the orchestrator's rounds.", running)
        for name, label, words in (
            ("messages", "outcome", "Messages of users, by what became of them."),
            ("updates", "outcome", "Updates that the orchestrator counted, or did not."),
            ("refused", "reason", "Requests refused since the start, by reason."),
        ):
            yield by(label, name, words, found[name])

    def _described(self) -> dict[str, Any]:
        with self._tally.settled() as new, self._counting:
            refused = self._refused + Counter(new)
        table = {"node": self._node(), "refused": dict(sorted(refused.items()))}
        return {**describe(self._owner), **table}

    async def _change_items(self, scope: Scope, receive: Receive, send: Send) -> None:
        table = await self._operators_table(scope, receive)
        add, withdraw = _numbers(table, "add"), _numbers(table, "withdraw")
        left = await self._operators(lambda: change_items(self._owner, add, withdraw))
        await answer_json(send, {"items": left})

    async def _forget(self, scope: Scope, receive: Receive, send: Send) -> None:
        table = await self._operators_table(scope, receive)
        (user,) = _numbers({"user": [table.get("user")]}, "user")
        await self._operators(lambda: self._owner.forget(user))
        await answer(send, 204, [], b"")

    async def _operators_table(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        return table_of(await self._body(scope, receive, LONGEST_OPERATOR_REQUEST))


def describe(owner: DataOwner) -> dict[str, Any]:
    """What an operator may know at any time: names and counts. Messages and updates are counted
    since the owner was made."""
    counts = owner.counts()
    messages = {
        name.removeprefix(_REFUSED): counts.pop(name)
        for name in list(counts)
        if name in ("taken", "repeated") or name.startswith(_REFUSED)
    }
    return {
        "federation": owner.federation,
        "name": owner.name,
        "number": owner.number,
        "items": counts.pop("items"),
        "messages": messages,
        "updates": {name: counts.pop(name) for name in ("counted", "returned")},
        "held": counts,
    }


def change_items(owner: DataOwner, add: Sequence[int], withdraw: Sequence[int]) -> int:
    """How many items the owner holds afterwards."""
    if add:
        owner.add_items(add)
    if withdraw:
        owner.withdraw_items(withdraw)
    return len(owner.items)


async def _receipt(send: Send, taken: Taken, session: bytes | None = None) -> None:
    made = OwnerReceipt(taken.sequence, taken.taken, taken.repeated, taken.refused, session)
    await answer(send, 200, [JSON], made.encode())


def _numbers(table: Mapping[str, Any], name: str) -> list[int]:
    found = table.get(name, [])
    if not isinstance(found, list) or not all(map(_is_number, found)):
        raise Refused("malformed", f"{name} must be given by number")
    return found


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 32


_SECONDS = 30.0


class Desk(Protocol):
    """What the operator of a data owner does to it, whether or not its service runs."""

    def status(self) -> Mapping[str, Any]:
        """Names and counts."""

    def change_items(self, *, add: Sequence[int] = (), withdraw: Sequence[int] = ()) -> int:
        """How many items the owner holds afterwards."""

    def forget(self, user: int) -> None:
        """Nothing of this user remains."""


@contextlib.contextmanager
def desk(folder: OwnerFolder) -> Iterator[Desk]:
    """Through the service where one runs from this folder, else on the store itself."""
    running = folder.running()
    if running is not None:
        with _Service(folder, str(running.get("url"))) as service:
            if service.answers():
                yield service
                return
    with contextlib.closing(folder.owner()) as owner:
        yield _Store(owner)


class _Store:
    def __init__(self, owner: DataOwner) -> None:
        self._owner = owner

    def status(self) -> Mapping[str, Any]:
        return {**describe(self._owner), "node": "none", "running": False}

    def change_items(self, *, add: Sequence[int] = (), withdraw: Sequence[int] = ()) -> int:
        return change_items(self._owner, add, withdraw)

    def forget(self, user: int) -> None:
        self._owner.forget(user)


class _Service:
    def __init__(self, folder: OwnerFolder, url: str) -> None:
        self._url = url
        secure = url.startswith("https://")
        self._http = httpx2.Client(
            base_url=url,
            verify=device_context(authority_pem(folder.keys)) if secure else False,
            headers={"authorization": f"Bearer {operator_token(folder.keys)}"},
            timeout=_SECONDS,
            trust_env=False,
        )

    def __enter__(self) -> _Service:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def answers(self) -> bool:
        """A killed service leaves word of itself behind."""
        try:
            self._ask("GET", "/health")
        except Unreachable:
            return False
        return True

    def status(self) -> Mapping[str, Any]:
        return {**self._ask("GET", STATUS_PATH).json(), "running": True}

    def change_items(self, *, add: Sequence[int] = (), withdraw: Sequence[int] = ()) -> int:
        content = {"add": list(add), "withdraw": list(withdraw)}
        return int(self._ask("POST", ITEMS_PATH, content).json()["items"])

    def forget(self, user: int) -> None:
        self._ask("POST", FORGET_PATH, {"user": user})

    def _ask(self, method: str, path: str, content: Any = None) -> httpx2.Response:
        try:
            answer = self._http.request(method, path, json=content)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Unreachable(f"the data owner at {self._url} does not answer: {error}") from None
        if answer.status_code == 401:
            raise KeyTrouble(f"the token in this folder is not that of the service at {self._url}")
        if answer.is_error:
            try:
                detail = str(answer.json()["detail"])
            except (ValueError, KeyError, TypeError):
                detail = f"the data owner at {self._url} answered with {answer.status_code}"
            raise (DataError if answer.status_code == 400 else ServiceError)(detail)
        return answer


class OwnerPart(Protocol):
    """The owner's part in the orchestrator's rounds, in a thread of its own."""

    @property
    def state(self) -> str:
        """One word, or what stands in the way."""

    def start(self, died: Callable[[], None]) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OwnerService(Service[OwnerFolder, OwnerLimits]):
    """A data owner. `join` makes its part in the orchestrator's rounds; without it only users are
    served."""

    join: Callable[[OwnerFolder, Admission, DataOwner, Any], OwnerPart] | None = None

    name = "the data owner"
    port = 8445
    limits = OwnerLimits

    def open(self, path: Path) -> OwnerFolder:
        return open_owner_folder(path)

    def prepare(self, start: Start[OwnerFolder, OwnerLimits]) -> Parts:
        folder, owner = start.folder, start.keep(start.folder.owner())
        start.listen()
        admission = None if self.join is None else folder.admission()
        node = None
        if self.join is not None and admission is not None:
            node = self.join(folder, admission, owner, start.log)
        else:
            start.log.info("serving users only, without the orchestrator")
        return Parts(
            lambda: OwnerApplication(
                start.hosting, owner, lambda: "none" if node is None else node.state
            ),
            lambda port: folder.ready_file,
            [] if node is None else [Beside(node.start, node.stop)],
        )
