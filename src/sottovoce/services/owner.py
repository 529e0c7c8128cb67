"""A data owner's HTTP interface for users: who sends what, and what is answered. A message is
acknowledged when what it changed is on the disk. Nothing of a request is logged."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from sottovoce.errors import (
    DataError,
    KeyTrouble,
    MessageError,
    ServiceError,
    UsageError,
)
from sottovoce.services.kit.answers import (
    Handler,
    Pulse,
    Receive,
    Routed,
    Scope,
    Send,
    answer,
    bears,
    read_body,
    refuse,
    table_of,
)
from sottovoce.services.kit.connections import Room, Share, sender_of
from sottovoce.services.kit.executor import Aside
from sottovoce.services.kit.questions import Once, proven
from sottovoce.services.kit.writer import GroupWriter
from sottovoce.stores.owner import DataOwner, Taken, UnknownSession
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
from sottovoce.wire.refusals import RefusalCounts, Refused, read_or_refuse
from sottovoce.wire.users import LONGEST, VECTOR, encode_vector

# The folder of a data owner: what it is part of, its keys and what it holds. Made in two steps.
# First `federation.json` (what it wants to join), `keys/` (a certificate authority of its own,
# which users learn from the directory), `identity.key` (its long-term key, a secret), `node` and
# `node.pub` (the keys of its Flower node) and `application.json`, which goes to the
# orchestrator's operator. Then, with the answer, `admission.json` and `owner.db` (users' blocks).
# `owner.json` has the address and process of a running service, `node.id` the name under which
# the orchestrator knew the node last.


# --- items ---------------------------------------------------------------------------------------


# What a data owner's operator sees, for Prometheus: counts, which reveal no one.


def metrics(figures: Mapping[str, Any], in_flight: int) -> bytes:
    """From what the service says of itself to its operator."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(figures, in_flight))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, figures: Mapping[str, Any], in_flight: int) -> None:
        self._figures, self._in_flight = figures, in_flight

    def collect(self) -> Iterator[Metric]:
        found = self._figures
        yield GaugeMetricFamily("sottovoce_owner_items", "Items that it holds.", found["items"])
        held = GaugeMetricFamily(
            "sottovoce_owner_held", "What it keeps of all users together.", labels=["what"]
        )
        for what, count in found["held"].items():
            held.add_metric([what], count)
        yield held
        yield GaugeMetricFamily(
            "sottovoce_owner_in_flight_bytes", "Bytes of requests being received or written.",
            self._in_flight,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "sottovoce_owner_node_running", "Whether it takes part in the orchestrator's rounds.",
            int(found["node"] == "running"),
        )  # fmt: skip
        for name, label, words in (
            ("messages", "outcome", "Messages of users, by what became of them."),
            ("updates", "outcome", "Updates that the orchestrator counted, or did not."),
            ("refused", "reason", "Requests refused since the start, by reason."),
        ):
            family = CounterMetricFamily(f"sottovoce_owner_{name}", words, labels=[label])
            for which, count in found[name].items():
                family.add_metric([which], count)
            yield family


Batch = tuple[bytes, Sequence[bytes]]
"""A session, and messages of it."""

STATUS_PATH, ITEMS_PATH, FORGET_PATH = "/v1/status", "/v1/operator/items", "/v1/operator/forget"
LONGEST_OPERATOR_REQUEST = 32 << 20
_OPERATORS = 4
_REFUSED = "refused_"
_JSON = (b"content-type", b"application/json")
_BYTES = (b"content-type", b"application/octet-stream")
_BEGIN = "there is no such session here, or no more; begin another one"


@dataclass(frozen=True, slots=True)
class OwnerLimits:
    """How much is taken on at once. What is beyond is told to come back later."""

    waiting: int = 256
    """Requests that wait for the disk."""
    receiving: int = 128 << 20
    """Bytes that are here of requests being received. Anybody can begin one and be slow about it,
    so there is room for many."""
    receiving_per_address: int = 16 << 20
    in_flight: int = 4 << 20
    """Bytes of requests that wait for the disk: what one transaction has to take at most."""
    connections: int = 4000
    per_address: int = 1000
    behind: tuple[str, ...] = ()
    """`service.Limits` says what these three are."""
    sessions: int = 128
    """Offers and agreements that wait, and as many questions for vectors."""
    lag_seconds: float = 0.2
    """A service that is so late with its own work takes nothing more on."""
    body_seconds: float = 30.0
    """A message must be here by then."""
    per_minute: int = 60
    nonces: int = 200_000
    """`questions.AskingLimits` says what these two are."""
    retry_seconds: int = 2
    head_seconds: float = 15.0
    rest_seconds: float = 5.0
    idle_seconds: int = 20
    write_seconds: float = 30.0
    handshake_seconds: float = 10.0
    """`protocol.Patience` and `door.DoorLimits` say what these five are."""


class OwnerWriter(GroupWriter[Batch, Taken | UnknownSession]):
    """Hands messages to the data owner, all that wait at once."""

    def __init__(self, owner: DataOwner, tally: RefusalCounts, **options: Any) -> None:
        self._owner = owner
        self._refused: Counter[str] = Counter()
        self._counting = threading.Lock()
        super().__init__(tally, **options)

    @property
    def full(self) -> bool:
        """Whether what comes now would be refused."""
        return len(self._waiting) >= self._limit

    def refused(self) -> Counter[str]:
        """Requests refused since the start, by reason, but for the newest."""
        with self._counting:
            return Counter(self._refused)

    def _commit(
        self, batch: Sequence[Batch], counts: Mapping[str, int], seen: set[int]
    ) -> list[Taken | UnknownSession]:
        taken = self._owner.take_many(batch) if batch else []
        with self._counting:
            self._refused.update(counts)
        return taken


class OwnerService(Routed):
    def __init__(
        self,
        owner: DataOwner,
        token: str,
        tally: RefusalCounts,
        limits: OwnerLimits,
        *,
        node: Callable[[], str],
        failed: Callable[[ServiceError], None],
        died: Callable[[], None],
    ) -> None:
        """`node` says how the owner's part in the orchestrator's rounds is doing; `failed` and
        `died` as `GroupWriter` says."""
        super().__init__("the data owner", token, tally, retry_seconds=limits.retry_seconds)
        self._owner, self._limits, self._node = owner, limits, node
        self._card = OwnerCard(
            owner.federation, owner.number, owner.name, owner.identity.public
        ).encode()
        self._writer = OwnerWriter(
            owner, tally, limit=limits.waiting, accepted=_nothing, failed=failed, died=died
        )
        self._aside = Aside(limits.sessions, threads=1)
        self._vectors_aside = Aside(limits.sessions, threads=1)
        self._operators_aside = Aside(_OPERATORS, threads=1)
        self._receiving = Room("the data owner", limits.receiving, limits.receiving_per_address)
        self._in_flight = Room("the data owner", limits.in_flight, limits.in_flight // 4)
        self._sending: set[bytes] = set()
        self._once = Once("the data owner", limits)
        self._pulse = Pulse()
        self._routes = {
            OWNER_PATH: ("GET", self._show),
            OFFERS_PATH: ("POST", self._offer),
            SESSIONS_PATH: ("POST", self._begin),
            INTERACTIONS_PATH: ("POST", self._interact),
            STATUS_PATH: ("GET", self._for_operator(self._status)),
            ITEMS_PATH: ("POST", self._for_operator(self._change_items)),
            FORGET_PATH: ("POST", self._for_operator(self._forget)),
            "/metrics": ("GET", self._for_operator(self._metrics)),
            "/health": ("GET", self._health),
        }
        if owner.settings.release == "aggregated":
            self._routes = {**self._routes, VECTOR: ("POST", self._vector)}

    def close(self) -> None:
        self._pulse.stop()
        self._writer.close()
        self._aside.close()
        self._vectors_aside.close()
        self._operators_aside.close()

    # --- what users send --------------------------------------------------------------------------

    async def _offer(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits = self._limits
        body = await read_body(scope, receive, LONGEST_OFFER_REQUEST, limits.body_seconds)
        try:
            given = Pass.decode(body)
        except MessageError as error:
            raise Refused("malformed", str(error)) from None

        def offer() -> OfferMade:
            try:
                return OfferMade(*self._owner.offer(given))
            except KeyTrouble as error:
                raise Refused("bad_pass", str(error)) from None

        made = await self._aside(offer)
        await answer(send, 200, [_JSON], made.encode())

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._share(scope) as share:
            body = await self._body(scope, receive, LONGEST_SESSION_REQUEST, share)
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

            session = await self._aside(accept)
            taken = await self._take(session, sealed)
        await _receipt(send, taken, session)

    async def _interact(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._share(scope) as share:
            body = await self._body(scope, receive, LONGEST_INTERACTIONS, share)
            session, sealed = read_or_refuse(decode_interactions, body)
            taken = await self._take(session, sealed)
        await _receipt(send, taken)

    def _share(self, scope: Scope) -> Share:
        """Room for a body while it comes. Raises where the service is late."""
        if self._pulse.lag > self._limits.lag_seconds:
            raise self.busy
        return Share(self._receiving, sender_of(scope))

    async def _body(self, scope: Scope, receive: Receive, longest: int, share: Share) -> bytes:
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
        body = await read_body(scope, receive, LONGEST, self._limits.body_seconds)
        owner = self._owner

        def look() -> bytes:
            asked = proven(body, "vector", owner.federation, owner.issuer, owner.identity)
            self._once.admit(asked)
            try:
                return encode_vector(owner.own_vector(asked.given), owner.settings.embedding_size)
            except KeyTrouble as error:
                raise Refused("bad_pass", str(error)) from None

        await answer(send, 200, [_BYTES], await self._vectors_aside(look))

    # --- what others ask --------------------------------------------------------------------------

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, [(b"content-type", b"text/plain")], b"ok")

    async def _show(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, [_JSON], self._card)

    # --- what the operator asks -------------------------------------------------------------------

    def _for_operator(self, handler: Handler) -> Handler:
        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            if not bears(scope, self._token):
                await refuse(send, 401, "unauthorized", "this needs the operator's token", 0)
                return
            try:
                await handler(scope, receive, send)
            except (DataError, UsageError) as error:
                await refuse(send, 400, "not_possible", str(error), 0)

        return checked

    async def _status(self, scope: Scope, receive: Receive, send: Send) -> None:
        content = json.dumps(await self._operators_aside(self._figures)).encode()
        await answer(send, 200, [_JSON], content)

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        figures = await self._operators_aside(self._figures)
        text = metrics(figures, self._receiving.bytes + self._in_flight.bytes)
        await answer(send, 200, [(b"content-type", b"text/plain; version=0.0.4")], text)

    def _figures(self) -> dict[str, Any]:
        """Counts, which reveal no one."""
        with self._tally.settled() as new:
            refused = self._writer.refused() + Counter(new)
        table = {"node": self._node(), "refused": dict(sorted(refused.items()))}
        return {**describe(self._owner), **table}

    async def _change_items(self, scope: Scope, receive: Receive, send: Send) -> None:
        table = await self._operators_table(scope, receive)
        add, withdraw = _numbers(table, "add"), _numbers(table, "withdraw")

        left = await self._operators_aside(lambda: change_items(self._owner, add, withdraw))
        await answer(send, 200, [_JSON], json.dumps({"items": left}).encode())

    async def _forget(self, scope: Scope, receive: Receive, send: Send) -> None:
        table = await self._operators_table(scope, receive)
        (user,) = _numbers({"user": [table.get("user")]}, "user")
        await self._operators_aside(lambda: self._owner.forget(user))
        await answer(send, 204, [], b"")

    async def _operators_table(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        limit, seconds = LONGEST_OPERATOR_REQUEST, self._limits.body_seconds
        return table_of(await read_body(scope, receive, limit, seconds))


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
    await answer(send, 200, [_JSON], made.encode())


def _numbers(table: Mapping[str, Any], name: str) -> list[int]:
    found = table.get(name, [])
    if not isinstance(found, list) or not all(map(_is_number, found)):
        raise Refused("malformed", f"{name} must be given by number")
    return found


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 32


def _nothing() -> None:
    pass
