"""The server's HTTP interface: who asks for what, and what is answered. A plain ASGI application,
because a thousand reports a second leave no time for more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs

from sottovoce.errors import MessageError
from sottovoce.services.kit.answers import (
    JSON,
    OCTETS,
    Headers,
    Receive,
    Scope,
    Send,
    answer,
    answer_json,
    content_length,
    header,
    number_of,
    publish,
    read_body,
    ready_answer,
    table_of,
)
from sottovoce.services.kit.application import (
    Handler,
    Hosting,
    HttpApplication,
    Unserved,
    not_found,
)
from sottovoce.services.kit.connections import Limits, Prove, Room, Share, sender_of
from sottovoce.services.kit.documents import (
    Coding,
    Document,
    DocumentCache,
    Version,
    best_coding,
)
from sottovoce.services.kit.metrics import Figure
from sottovoce.services.kit.writer import GroupWriter
from sottovoce.services.server.checks import Checks, Enrolments, most_summed
from sottovoce.services.server.operator import figures, status
from sottovoce.services.server.shuffled_rounds import Collector
from sottovoce.services.server.state import RoundSnapshot, RoundState
from sottovoce.stores import server as records
from sottovoce.stores import sums
from sottovoce.stores.coordinator import Plan
from sottovoce.stores.database import Database
from sottovoce.stores.server import Decision, Submission
from sottovoce.stores.server_folder import ShufflerSecrets
from sottovoce.wire.refusals import Refused
from sottovoce.wire.signing import DIGEST_HEADER

_ROUND = b"/v1/round"
"""What devices ask for most."""
_SMALL_BODY = 4096
_SLOWEST = 32 << 10
"""Bytes a second of the slowest line on which the largest report still gets through."""
_AHEAD = 10
"""Rounds by which another process can be ahead of this one."""
_DIGEST = DIGEST_HEADER.encode()
_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")
_VARY = (b"vary", b"accept-encoding")
_RANGES = (b"accept-ranges", b"bytes")
_DECIDED = {
    "replay": "this report was accepted before",
    "second_submission": "this device has already reported in this round",
    "late": "the round is closed; the report did not count",
    "unknown_device": "the operator has shut this device out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits(Limits):
    waiting: int = 4096
    """Reports that wait for the disk."""
    in_flight: int = 128 << 20
    """Bytes of devices' reports: of those that wait, and of those being received whose signature
    is known to be good."""
    unproven: int = 64 << 20
    """Bytes that are here of messages being received of which nobody knows yet who sends them."""
    unproven_per_address: int = 16 << 20
    cache: int = 256 << 20
    """Bytes of encoded models kept besides those that are always there."""
    retry_seconds: int = 5
    queries: int = 64
    """Requests that wait for the database otherwise; the operator's and those of devices that
    enrol have places of their own."""
    guess_seconds: float = 1.0
    """How long an invitation that is not good waits for its answer."""
    write_seconds: float = 60.0


class ServerApplication(HttpApplication[ServerLimits]):
    name = "the server"

    def __init__(
        self,
        hosting: Hosting[ServerLimits],
        plan: Plan,
        catalogue: bytes,
        database: Database,
        state: RoundState,
        *,
        moved: Callable[[], None],
        proxy: ShufflerSecrets | None = None,
    ) -> None:
        """`moved` is called when something happened that may end or open a round; `proxy` is there
        if reports come through a shuffler."""
        super().__init__(hosting)
        limits, tally = hosting.limits, hosting.tally
        self._database, self._state, self._moved = database, state, moved
        self._checks = Checks(plan.terms, state, database)
        self._summed = most_summed(plan.terms)
        self._writer = GroupWriter[Submission, Decision](
            self._commit, hosting, limit=limits.waiting, accepted=moved
        )
        enrolments = Enrolments(
            plan.terms.federation,
            database,
            admission_key=None if proxy is None else proxy.admission_key,
            body_seconds=limits.body_seconds,
            guess_seconds=limits.guess_seconds,
            enrolled=self._has_enrolled,
        )
        self._cache = DocumentCache(limits.cache)
        self._ends += [self._writer.close, enrolments.close, self._cache.close]
        self._queries = self._executor(limits.queries, threads=2)
        self._refreshing: asyncio.Future[RoundSnapshot] | None = None
        self._checked_in: tuple[tuple[int, int], set[int]] = (0, 0), set()
        self._unproven = Room(self.name, limits.unproven, limits.unproven_per_address)
        # A device that lost its connection may begin again before we know.
        self._proven = Room(self.name, limits.in_flight, 2 * self._checks.longest)
        self._newest = (-1, 0)
        terms = json.dumps(plan.terms.to_table()).encode()
        self._fixed = {"/v1/terms": terms, "/v1/catalogue": catalogue}
        routes: dict[str, tuple[str, Handler]] = {
            "/v1/round": ("GET", self._round),
            "/v1/rounds/": ("GET", self._selected),
            "/v1/model/": ("GET", self._model),
            "/v1/reports": ("POST", self._report),
            "/v1/checkin": ("POST", self._check_in),
            "/v1/enrol": ("POST", enrolments.take),
            "/v1/terms": ("GET", self._document),
            "/v1/catalogue": ("GET", self._document),
            "/v1/operator/status": ("GET", self._status(lambda: status(database, tally))),
            "/v1/operator/target": ("POST", self._operator(self._target)),
        }
        if proxy is not None and plan.terms.reporting is not None:
            collector = Collector(
                plan.terms.reporting,
                proxy.token,
                database,
                state,
                body_seconds=limits.body_seconds,
                moved=moved,
                chained=plan.terms.chained,
            )
            self._ends.append(collector.close)
            routes["/v1/batches"] = "POST", collector.take
            routes["/v1/reports"] = routes["/v1/checkin"] = "POST", self._unwanted
        self._serve(routes)
        # A cache in front may answer for so long; devices ask much less often.
        fresh = int(min(5.0, plan.rules.poll_seconds / 10))
        self._round_headers: Headers = [
            JSON,
            (b"cache-control", f"public, max-age={fresh}".encode()),
        ]
        now = state.now.descriptor
        self._told = now, ready_answer(now, self._round_headers)

    # --- what everyone may fetch ------------------------------------------------------------------

    def at_hand(self, url: bytes) -> tuple[bytes, bytes] | None:
        if url != _ROUND:
            return None
        now = self._state.now.descriptor
        if now is not self._told[0]:
            self._told = now, ready_answer(now, self._round_headers)
        return self._told[1]

    async def _round(self, scope: Scope, receive: Receive, send: Send) -> None:
        document = self._state.now.descriptor
        await publish(scope, send, document, self._round_headers)

    async def _document(self, scope: Scope, receive: Receive, send: Send) -> None:
        content = self._fixed[scope["path"]]
        coding = best_coding(header(scope, b"accept-encoding"))
        document = await self._cache.get(
            (scope["path"], coding), lambda: Document.of(content, coding), stays=True
        )
        await publish(
            scope, send, document, [JSON, _VARY, (b"cache-control", b"public, max-age=60")]
        )

    async def _selected(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = scope["path"].split("/")
        whole = len(parts) == 6 and parts[5] == "selected"
        round, attempt = number_of(parts[3]), number_of(parts[4]) if whole else None
        if round is None or attempt is None:
            raise not_found()
        now = self._state.now
        if not now.open_for(round, attempt) and (round, attempt) >= now.key:
            now = await self._ahead(round)
        if not now.open_for(round, attempt):
            raise Unserved(410, "gone", f"round {round}, attempt {attempt}, is not open")
        self._clear_cache(now)
        coding = best_coding(header(scope, b"accept-encoding"))
        document = await self._cache.get(
            ("selected", round, attempt, coding),
            lambda: Document.of(records.packed(now.selected), coding),
            stays=True,
        )
        await publish(scope, send, document, [OCTETS, _VARY, _FOREVER, _RANGES])

    async def _model(self, scope: Scope, receive: Receive, send: Send) -> None:
        round = number_of(scope["path"].removeprefix("/v1/model/"))
        if round is None:
            raise not_found()
        query = parse_qs(scope["query_string"].decode("latin-1"))
        since = number_of(query["since"][0]) if "since" in query else None
        now = self._state.now
        if round > now.position.round:
            now = await self._ahead(round)
        version = now.versions.get(round)
        if version is None:
            raise Unserved(410, "gone", f"version {round} of the model is not here")
        self._clear_cache(now)
        coding = best_coding(header(scope, b"accept-encoding"), ("zstd",))
        document = await self._encoded(version, version.base(since), coding)
        await publish(scope, send, document, [OCTETS, _VARY, _FOREVER, _RANGES])

    async def _encoded(self, version: Version, base: int | None, coding: Coding) -> Document:
        """Changes against any base are made once; when there is no room or no time for them, the
        whole model does as well."""
        ready = version.ready.get((base, coding))
        if ready is not None:
            return ready
        key = ("model", version.view.round, base, coding)
        if base is not None and self._cache.lost(key):
            return await self._encoded(version, None, coding)
        try:
            return await self._cache.get(
                key, lambda: Document.of(version.content(base), coding), stays=base is None
            )
        except Refused:
            if base is None:
                raise
            return await self._encoded(version, None, coding)

    async def _ahead(self, round: int) -> RoundSnapshot:
        """Where the federation is, when another process may have moved it on to this round. All who
        ask look into the database together."""
        now = self._state.now
        if not self._database.shared or round > now.position.round + _AHEAD:
            return now
        if self._refreshing is not None and not self._refreshing.done():
            await asyncio.shield(self._refreshing)  # it may have looked a moment too early
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._queries(self._state.refresh))
        return await asyncio.shield(self._refreshing)

    def _clear_cache(self, now: RoundSnapshot) -> None:
        """Let go of what cannot be asked for any more."""
        if now.key == self._newest:
            return
        self._newest = now.key

        def gone(key: tuple[object, ...]) -> bool:
            if key[0] == "selected":
                return key[1:3] != now.key
            return key[0] == "model" and key[1] not in now.versions

        self._cache.drop(gone)

    # --- what devices send ------------------------------------------------------------------------

    def _commit(
        self, batch: Sequence[Submission], counts: Mapping[str, int], seen: set[int]
    ) -> list[Decision]:
        with self._database.writing() as link:
            if self._summed is None:
                decisions = records.accept(link, batch)
            else:
                decisions = sums.accept(link, batch, self._summed)
            records.count_refusals(link, counts)
            records.seen(link, seen)
        return decisions

    async def _report(self, scope: Scope, receive: Receive, send: Send) -> None:
        payload = b""
        try:
            with Share(self._unproven, sender_of(scope), self._announced(scope)) as share:
                longest = self._checks.longest
                # A masked update is large, and lines of phones are slow.
                seconds = max(self._limits.body_seconds, longest / _SLOWEST)
                payload = await read_body(scope, receive, longest, seconds, share)
                submission = await self._checks.report(payload, self._queries)
                share.move(self._proven, submission.number)
                decision = await self._writer.store(submission)
            if decision == "unknown_device":
                raise Refused(decision, await self._queries(lambda: self._why(submission.number)))
            if decision == "busy":
                raise Refused("overload", "there is no room for reports now; come again later")
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
        number = await self._checks.check_in(payload, self._queries)
        now = self._state.now.key
        if self._checked_in[0] != now:
            self._checked_in = now, set()
        if number in self._checked_in[1]:  # whoever sends it again changes nothing
            await answer(send, 204, [], b"")
            return

        def note() -> None:
            with self._database.writing() as link:
                out = records.shut_out_among(link, [number])
                if not out:
                    records.seen(link, [number])
            if out:
                raise Refused("unknown_device", self._why(number))

        await self._queries(note)
        if self._checked_in[0] == now:
            self._checked_in[1].add(number)
        self._moved()
        await answer(send, 204, [], b"")

    def _why(self, number: int) -> str:
        """What a device that was shut out is told."""
        with self._database.reading() as link:
            why = records.why_shut(link, [number]).get(number)
        return _DECIDED["unknown_device"] if why is None else why

    async def _unwanted(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._body(scope, receive, _SMALL_BODY)
        raise Refused("malformed", "reports of this federation go to its shuffler")

    def _has_enrolled(self, number: int, key: bytes) -> None:
        self._checks.enrolled(number, key)
        self._moved()

    # --- what the operator asks -------------------------------------------------------------------

    def figures(self) -> Iterator[Figure]:
        return figures(self._database, self._tally, self._unproven.bytes + self._proven.bytes)

    async def _target(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = table_of(await self._body(scope, receive, _SMALL_BODY))
        wanted = body.get("rounds")
        if not isinstance(wanted, int) or isinstance(wanted, bool) or not 0 <= wanted < 2**31:
            raise Refused("malformed", "rounds must be a whole number")

        def store() -> int:
            with self._database.writing() as link:
                return records.raise_target(link, wanted)

        target = await self._operators(store)
        self._moved()
        await answer_json(send, {"rounds": target})
