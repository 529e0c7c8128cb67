"""The server's HTTP interface: who asks for what, and what is answered. A plain ASGI application,
because a thousand reports a second leave no time for more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from sottovoce.errors import MessageError, ServiceError
from sottovoce.services.kit.answers import (
    Headers,
    Receive,
    Scope,
    Send,
    answer,
    bears,
    content_length,
    header,
    is_crowded,
    number_of,
    publish,
    read_body,
    refuse,
    table_of,
)
from sottovoce.services.kit.connections import Prove, Room, Share, sender_of
from sottovoce.services.kit.documents import (
    Busy,
    Coding,
    Document,
    Shelf,
    Version,
    best_coding,
)
from sottovoce.services.kit.executor import Aside
from sottovoce.services.kit.writer import Writer
from sottovoce.services.server.checks import Checks, Enrolments
from sottovoce.services.server.collector import Collector
from sottovoce.services.server.operator import metrics, status
from sottovoce.services.server.state import Board, Snapshot
from sottovoce.stores import server as records
from sottovoce.stores import server as roster
from sottovoce.stores.coordinator import Plan
from sottovoce.stores.database import Database
from sottovoce.stores.server_folder import ProxySecrets
from sottovoce.wire.refusals import RefusalCounts, Refused
from sottovoce.wire.signing import DIGEST_HEADER

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]

_SMALL_BODY = 4096
_OPERATORS = 16
"""Requests of the operator that wait for the database."""
_SLOWEST = 32 << 10
"""Bytes a second of the slowest line on which the largest report still gets through."""
_AHEAD = 10
"""Rounds by which another process can be ahead of this one."""
_DIGEST = DIGEST_HEADER.encode()
_JSON = (b"content-type", b"application/json")
_BYTES = (b"content-type", b"application/octet-stream")
_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")
_VARY = (b"vary", b"accept-encoding")
_RANGES = (b"accept-ranges", b"bytes")
_DECIDED = {
    "replay": "this report was accepted before",
    "second_submission": "this device has already reported in this round",
    "late": "the round is closed; the report did not count",
    "unknown_device": "the operator has shut this device out",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is taken on at once. What is beyond is told to come back later."""

    waiting: int = 4096
    """Reports that wait for the disk."""
    in_flight: int = 128 << 20
    """Bytes of devices' reports: of those that wait, and of those being received whose signature
    is known to be good."""
    unproven: int = 64 << 20
    """Bytes that are here of messages being received of which nobody knows yet who sends them."""
    unproven_per_address: int = 16 << 20
    connections: int = 4000
    """From when they are accepted, whatever they are used for. The idle ones give way to others."""
    per_address: int = 1000
    """Of these, of one IPv4 address or one /64 of IPv6. Many devices can be behind one."""
    behind: tuple[str, ...] = ()
    """Addresses and networks of reverse proxies: behind each are many visitors, so there is no
    limit per address for them, and what they hold is not cut for others."""
    cache: int = 256 << 20
    """Bytes of encoded models kept besides those that are always there."""
    body_seconds: float = 30.0
    """A message must be here by then."""
    retry_seconds: int = 5
    aside: int = 64
    """Requests that wait for the database otherwise; the operator's and those of devices that
    enrol have places of their own."""
    guess_seconds: float = 1.0
    """How long an invitation that is not good waits for its answer."""
    head_seconds: float = 15.0
    rest_seconds: float = 5.0
    idle_seconds: int = 20
    write_seconds: float = 60.0
    """`protocol.Patience` says what these four are."""
    handshake_seconds: float = 10.0
    """A connection must have begun TLS by then, and as much later be done with it."""


class Unserved(ServiceError):
    """A request that gets an error for an answer and is not counted: nothing is there, or it is
    for the operator alone."""

    def __init__(self, status: int, error: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.error = status, error


class Service:
    def __init__(
        self,
        plan: Plan,
        catalogue: bytes,
        token: str,
        database: Database,
        board: Board,
        tally: RefusalCounts,
        limits: Limits,
        *,
        moved: Callable[[], None],
        failed: Callable[[ServiceError], None],
        died: Callable[[], None],
        proxy: ProxySecrets | None = None,
    ) -> None:
        """`moved` is called when something happened that may end or open a round, `failed` and
        `died` as `Writer` says; `proxy` is there where reports come through one."""
        self._plan, self._database, self._board = plan, database, board
        self._tally, self._limits, self._moved = tally, limits, moved
        self._token = token
        self._checks = Checks(plan.terms, board, database)
        self._writer = Writer(
            database, tally, limit=limits.waiting, accepted=moved, failed=failed, died=died
        )
        self._enrolments = Enrolments(
            plan.terms.federation,
            database,
            admission_key=None if proxy is None else proxy.admission_key,
            body_seconds=limits.body_seconds,
            guess_seconds=limits.guess_seconds,
            enrolled=self._has_enrolled,
        )
        self._shelf = Shelf(limits.cache)
        self._aside = Aside(limits.aside, threads=2)
        self._operators_aside = Aside(_OPERATORS, threads=1)
        self._refreshing: asyncio.Future[Snapshot] | None = None
        self._checked_in: tuple[tuple[int, int], set[int]] = (0, 0), set()
        self._unproven = Room("the server", limits.unproven, limits.unproven_per_address)
        # A device that lost its connection may begin again before we know.
        self._proven = Room("the server", limits.in_flight, 2 * self._checks.longest)
        self._newest = (-1, 0)
        terms = json.dumps(plan.terms.to_table()).encode()
        self._fixed = {"/v1/terms": terms, "/v1/catalogue": catalogue}
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "/v1/round"): self._round,
            ("POST", "/v1/reports"): self._report,
            ("POST", "/v1/checkin"): self._check_in,
            ("POST", "/v1/enrol"): self._enrolments.take,
            ("GET", "/v1/terms"): self._document,
            ("GET", "/v1/catalogue"): self._document,
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/operator/status"): self._status,
            ("POST", "/v1/operator/target"): self._target,
        }
        self._families: dict[tuple[str, str, str], Handler] = {
            ("GET", "/v1/model/", ""): self._model,
            ("GET", "/v1/rounds/", "/selected"): self._selected,
        }
        """By method, and by how the path begins and ends."""
        self._collector = None
        if proxy is not None and plan.terms.reporting is not None:
            self._collector = Collector(
                plan.terms.reporting,
                proxy.token,
                database,
                board,
                body_seconds=limits.body_seconds,
                moved=moved,
            )
            self._routes[("POST", "/v1/batches")] = self._collector.take
            for path in ("/v1/reports", "/v1/checkin"):
                self._routes[("POST", path)] = self._unwanted
        self._paths = {path for _, path in self._routes}
        # A cache in front may answer for so long; devices ask much less often.
        fresh = int(min(5.0, plan.rules.poll_seconds / 10))
        self._round_headers: Headers = [
            _JSON,
            (b"cache-control", f"public, max-age={fresh}".encode()),
        ]

    def close(self) -> None:
        self._writer.close()
        self._enrolments.close()
        self._shelf.close()
        self._aside.close()
        if self._collector is not None:
            self._collector.close()
        self._operators_aside.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        try:
            if is_crowded(scope) and not self._is_operator(scope):
                raise Refused("overload", "the server has too much to do; come back later")
            handler = self._routes.get((method, scope["path"])) or self._find(method, scope["path"])
            await handler(scope, receive, send)
        except Refused as error:
            self._tally.count(error.reason)
            await self._say(send, error.status, error.reason, str(error))
        except Unserved as error:
            await self._say(send, error.status, error.error, str(error))
        except Busy as error:
            self._tally.count("overload")
            await self._say(send, 503, "overload", str(error))
        except ServiceError:
            self._tally.count("unavailable")
            await self._say(send, 503, "unavailable", "the server's database cannot be used now")

    def _find(self, method: str, path: str) -> Handler:
        for (asked, start, end), handler in self._families.items():
            if method == asked and path.startswith(start) and path.endswith(end):
                return handler
        if path in self._paths:
            raise Unserved(405, "method", f"{path} cannot be asked with {method}")
        raise Unserved(404, "not_found", "there is nothing at this address")

    # --- what everyone may fetch ------------------------------------------------------------------

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, [(b"content-type", b"text/plain")], b"ok")

    async def _round(self, scope: Scope, receive: Receive, send: Send) -> None:
        document = self._board.now.descriptor
        await publish(scope, send, document, self._round_headers)

    async def _document(self, scope: Scope, receive: Receive, send: Send) -> None:
        content = self._fixed[scope["path"]]
        coding = best_coding(header(scope, b"accept-encoding"))
        document = await self._shelf.get(
            (scope["path"], coding), lambda: Document.of(content, coding), stays=True
        )
        await publish(
            scope, send, document, [_JSON, _VARY, (b"cache-control", b"public, max-age=60")]
        )

    async def _selected(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = scope["path"].split("/")
        round, attempt = number_of(parts[3]), number_of(parts[4]) if len(parts) == 6 else None
        if round is None or attempt is None:
            raise Unserved(404, "not_found", "there is nothing at this address")
        now = self._board.now
        if not now.open_for(round, attempt) and (round, attempt) >= now.key:
            now = await self._ahead(round)
        if not now.open_for(round, attempt):
            raise Unserved(410, "gone", f"round {round}, attempt {attempt}, is not open")
        self._clear_shelf(now)
        coding = best_coding(header(scope, b"accept-encoding"))
        document = await self._shelf.get(
            ("selected", round, attempt, coding),
            lambda: Document.of(records.packed(now.selected), coding),
            stays=True,
        )
        await publish(scope, send, document, [_BYTES, _VARY, _FOREVER, _RANGES])

    async def _model(self, scope: Scope, receive: Receive, send: Send) -> None:
        round = number_of(scope["path"].removeprefix("/v1/model/"))
        if round is None:
            raise Unserved(404, "not_found", "there is nothing at this address")
        query = parse_qs(scope["query_string"].decode("latin-1"))
        since = number_of(query["since"][0]) if "since" in query else None
        now = self._board.now
        if round > now.position.round:
            now = await self._ahead(round)
        version = now.versions.get(round)
        if version is None:
            raise Unserved(410, "gone", f"version {round} of the model is not here")
        self._clear_shelf(now)
        coding = best_coding(header(scope, b"accept-encoding"), ("zstd",))
        document = await self._encoded(version, version.base(since), coding)
        await publish(scope, send, document, [_BYTES, _VARY, _FOREVER, _RANGES])

    async def _encoded(self, version: Version, base: int | None, coding: Coding) -> Document:
        """Changes against any base are made once; when there is no room or no time for them, the
        whole model does as well."""
        ready = version.ready.get((base, coding))
        if ready is not None:
            return ready
        key = ("model", version.view.round, base, coding)
        if base is not None and self._shelf.lost(key):
            return await self._encoded(version, None, coding)
        try:
            return await self._shelf.get(
                key, lambda: Document.of(version.content(base), coding), stays=base is None
            )
        except Busy:
            if base is None:
                raise
            return await self._encoded(version, None, coding)

    async def _ahead(self, round: int) -> Snapshot:
        """Where the federation is, when another process may have moved it on to this round. All who
        ask look into the database together."""
        now = self._board.now
        if not self._database.shared or round > now.position.round + _AHEAD:
            return now
        if self._refreshing is not None and not self._refreshing.done():
            await asyncio.shield(self._refreshing)  # it may have looked a moment too early
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._aside(self._board.refresh))
        return await asyncio.shield(self._refreshing)

    def _clear_shelf(self, now: Snapshot) -> None:
        """Let go of what cannot be asked for any more."""
        if now.key == self._newest:
            return
        self._newest = now.key

        def gone(key: tuple[object, ...]) -> bool:
            if key[0] == "selected":
                return key[1:3] != now.key
            return key[0] == "model" and key[1] not in now.versions

        self._shelf.drop(gone)

    # --- what devices send ------------------------------------------------------------------------

    async def _report(self, scope: Scope, receive: Receive, send: Send) -> None:
        payload = b""
        try:
            with Share(self._unproven, sender_of(scope), self._announced(scope)) as share:
                payload = await self._body(scope, receive, self._checks.longest, share)
                submission = await self._checks.report(payload, self._aside)
                share.move(self._proven, submission.number)
                decision = await self._writer.store(submission)
            if decision == "unknown_device":
                raise Refused(decision, await self._aside(lambda: self._why(submission.number)))
            if decision != "accepted":
                raise Refused(decision, _DECIDED[decision])
        except Refused as error:
            if error.reason == "late":  # a device that is merely slow is asked again
                self._writer.seen(self._checks.number(payload))
            raise
        await answer(send, 204, [], b"")

    def _announced(self, scope: Scope) -> Prove | None:
        """A device whose report is large says its hash beforehand. So its signature is checked
        with the first bytes, and strangers cannot take the room for the others."""
        told = header(scope, _DIGEST)
        if len(told) != 64:
            return None

        def prove(begun: bytes) -> tuple[Room, int, int] | None:
            try:
                number = self._checks.announced(begun, bytes.fromhex(told.decode("latin-1")))
            except (MessageError, ValueError):
                return None
            longest = self._checks.longest
            size = min(content_length(scope) or longest, longest)
            return None if number is None else (self._proven, number, size)

        return prove

    async def _check_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        payload = await self._body(scope, receive, _SMALL_BODY)
        number = await self._checks.check_in(payload, self._aside)
        now = self._board.now.key
        if self._checked_in[0] != now:
            self._checked_in = now, set()
        if number in self._checked_in[1]:  # whoever sends it again changes nothing
            await answer(send, 204, [], b"")
            return

        def note() -> None:
            with self._database.writing() as link:
                out = records.shut_out_among(link, [number])
                if not out:
                    roster.seen(link, [number])
            if out:
                raise Refused("unknown_device", self._why(number))

        await self._aside(note)
        if self._checked_in[0] == now:
            self._checked_in[1].add(number)
        self._moved()
        await answer(send, 204, [], b"")

    def _why(self, number: int) -> str:
        """What a device that was shut out is told."""
        with self._database.reading() as link:
            why = roster.why_shut(link, [number]).get(number)
        return _DECIDED["unknown_device"] if why is None else why

    async def _unwanted(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._body(scope, receive, _SMALL_BODY)
        raise Refused("malformed", "reports of this federation go to its proxy")

    def _has_enrolled(self, number: int, key: bytes) -> None:
        self._checks.enrolled(number, key)
        self._moved()

    # --- what the operator asks -------------------------------------------------------------------

    async def _status(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._require_operator(scope)
        content = await self._operators_aside(lambda: status(self._database, self._tally))
        await answer(send, 200, [_JSON], json.dumps(content).encode())

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._require_operator(scope)
        text = await self._operators_aside(
            lambda: metrics(self._database, self._tally, self._unproven.bytes + self._proven.bytes)
        )
        await answer(send, 200, [(b"content-type", b"text/plain; version=0.0.4")], text)

    async def _target(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._require_operator(scope)
        body = table_of(await self._body(scope, receive, _SMALL_BODY))
        wanted = body.get("rounds")
        if not isinstance(wanted, int) or isinstance(wanted, bool) or not 0 <= wanted < 2**31:
            raise Refused("malformed", "rounds must be a whole number")

        def store() -> int:
            with self._database.writing() as link:
                return records.raise_target(link, wanted)

        target = await self._operators_aside(store)
        self._moved()
        await answer(send, 200, [_JSON], json.dumps({"rounds": target}).encode())

    def _require_operator(self, scope: Scope) -> None:
        if not self._is_operator(scope):
            raise Unserved(401, "unauthorized", "this needs the operator's token")

    def _is_operator(self, scope: Scope) -> bool:
        return bears(scope, self._token)

    # --- helpers ----------------------------------------------------------------------------------

    async def _body(
        self, scope: Scope, receive: Receive, limit: int, share: Share | None = None
    ) -> bytes:
        # A masked update is large, and lines of phones are slow.
        seconds = max(self._limits.body_seconds, limit / _SLOWEST)
        return await read_body(scope, receive, limit, seconds, share)

    async def _say(self, send: Send, status: int, error: str, detail: str) -> None:
        await refuse(send, status, error, detail, self._limits.retry_seconds)
