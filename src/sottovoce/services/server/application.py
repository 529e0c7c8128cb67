"""The server's HTTP interface: who asks for what, and what is answered. A plain ASGI application,
because a thousand reports a second leave no time for more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import parse_qs

from sottovoce.errors import MessageError, ServiceError
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
from sottovoce.services.kit.cors import NO_ORIGINS, Origins
from sottovoce.services.kit.documents import (
    Coding,
    Document,
    DocumentCache,
    Version,
    best_coding,
)
from sottovoce.services.kit.metrics import Figure
from sottovoce.services.kit.writer import GroupWriter
from sottovoce.services.server.checks import Checks, Enrolments
from sottovoce.services.server.figures import figures
from sottovoce.services.server.operator import status
from sottovoce.services.server.places import Places
from sottovoce.services.server.shuffled_rounds import Collector
from sottovoce.services.server.state import RoundSnapshot, RoundState
from sottovoce.stores import operating, sums
from sottovoce.stores import server as records
from sottovoce.stores.coordinator import LEAST_SECONDS, Plan
from sottovoce.stores.database import Database
from sottovoce.stores.operating import LastContacts, Outcomes, note_act
from sottovoce.stores.server import Decision, Submission
from sottovoce.stores.server_folder import ShufflerSecrets
from sottovoce.stores.sums import most_summed
from sottovoce.wire.frames import SLOWEST_LINE
from sottovoce.wire.refusals import SHUT_OUT_BY_OPERATOR, Refused
from sottovoce.wire.signing import DIGEST_HEADER

_ROUND = b"/v1/round"
"""What devices ask for most."""
PAGES = (
    *("/v1/round", "/v1/rounds/", "/v1/model/", "/v1/terms", "/v1/catalogue"),
    *("/v1/challenge", "/v1/enrol", "/v1/checkin", "/v1/reports"),
)
"""Addresses of which a device in a browser's tab has need."""
_SMALL_BODY = 4096
_AHEAD = 10
"""Rounds by which another process can be ahead of this one."""
_BEARER = "the operator's token", "command"
"""The operator in the log for requests with the bearer's token, who has no other name."""
_DIGEST = DIGEST_HEADER.encode()
_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")
_VARY = (b"vary", b"accept-encoding")
_RANGES = (b"accept-ranges", b"bytes")
_DECIDED = {
    "replay": "this report was accepted before",
    "second_submission": "this device has already reported in this round",
    "late": "the round is closed; the report did not count",
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
    cache: ClassVar[int] = 256 << 20
    """Bytes of encoded models kept besides those that are always there."""
    retry_seconds: int = 5
    queries: int = 64
    """Requests that wait for the database otherwise; the operator's and those of devices that
    enrol have places of their own."""
    guess_seconds: float = 1.0
    """How long an invitation that is not good waits for its answer."""
    body_seconds: float = LEAST_SECONDS
    write_seconds: float = 60.0


@dataclass(frozen=True, slots=True, repr=False)
class Ways:
    """What an application does under one plan."""

    plan: Plan
    checks: Checks
    summed: int | None
    """Devices in a round whose sum there is room for; None where single reports come in."""
    fixed: Mapping[str, bytes]
    """Terms and catalogue, by address."""


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
        contacts: LastContacts | None = None,
        origins: Origins = NO_ORIGINS,
        forwarded: str = "",
    ) -> None:
        """`moved` is called when something happened that may end or open a round; `proxy` is there
        if reports come through a shuffler; `contacts` hears of devices that were heard of; pages of
        these `origins` may be devices; `forwarded` is the header in which reverse proxies say who
        asks."""
        super().__init__(hosting)
        self._plan, self._contacts = plan, contacts or LastContacts()
        limits = hosting.limits
        self._database, self._state, self._moved = database, state, moved
        self._outcomes = Outcomes()
        self._checks = Checks(plan.terms, state, database)
        self._writer = GroupWriter[Submission, Decision](
            self._commit, hosting, limit=limits.waiting, accepted=moved
        )
        places = Places(plan.terms.federation, database, limits.behind, forwarded)
        enrolments = Enrolments(
            plan.terms.federation,
            database,
            places,
            admission_key=None if proxy is None else proxy.admission_key,
            body_seconds=limits.body_seconds,
            guess_seconds=limits.guess_seconds,
            enrolled=self._has_enrolled,
        )
        self._cache = DocumentCache(limits.cache)
        self._ends += [self._writer.close, enrolments.close, places.close, self._cache.close]
        self._queries = self._executor(limits.queries, threads=2)
        self._refreshing: asyncio.Future[RoundSnapshot] | None = None
        self._checked_in: tuple[tuple[int, int], set[int]] = (0, 0), set()
        self._unproven = Room(self.name, limits.unproven, limits.unproven_per_address)
        self._newest = (-1, 0)
        routes: dict[str, tuple[str, Handler]] = {
            "/v1/round": ("GET", self._round),
            "/v1/rounds/": ("GET", self._selected),
            "/v1/model/": ("GET", self._model),
            "/v1/reports": ("POST", self._report),
            "/v1/checkin": ("POST", self._check_in),
            "/v1/challenge": ("GET", places.ask),
            "/v1/enrol": ("POST", enrolments.take),
            "/v1/terms": ("GET", self._document),
            "/v1/catalogue": ("GET", self._document),
            "/v1/operator/status": ("GET", self._status(self._stands)),
            "/v1/operator/target": ("POST", self._operator(self._target)),
        }
        self._collector: Collector | None = None
        if proxy is not None and plan.terms.reporting is not None:
            self._collector = Collector(
                plan.terms.reporting,
                proxy.token,
                database,
                state,
                body_seconds=limits.body_seconds,
                moved=moved,
                chained=plan.terms.chained,
            )
            self._ends.append(self._collector.close)
            routes["/v1/batches"] = "POST", self._collector.take
            routes["/v1/reports"] = routes["/v1/checkin"] = "POST", self._unwanted
        self._serve(routes, origins, PAGES)
        self._edition = 0
        self.follow(self.under(plan, catalogue))
        fresh = plan.fresh_seconds
        self._round_headers: Headers = [
            JSON,
            (b"cache-control", f"public, max-age={fresh}".encode()),
        ]
        self._told = self._ready_round(state.now.descriptor)

    def under(self, plan: Plan, catalogue: bytes) -> Ways:
        """What is checked and answered under a plan. Takes a while, and may be asked for in any
        thread."""
        terms = plan.terms
        table = json.dumps(terms.to_table()).encode()
        fixed = {"/v1/terms": table, "/v1/catalogue": catalogue}
        return Ways(plan, self._checks.under(terms), most_summed(terms), fixed)

    def follow(self, ways: Ways) -> None:
        """Go by these from now on; what is being received goes on as it has begun."""
        self._plan, self._fixed = ways.plan, ways.fixed
        self._checks, self._summed = ways.checks, ways.summed
        self._edition += 1
        # A device that lost its connection may begin again before we know.
        self._proven = Room(self.name, self._limits.in_flight, 2 * ways.checks.longest)
        self._cache.drop(lambda key: key[0] in ways.fixed)
        release = ways.plan.terms.reporting
        if self._collector is not None and release is not None:
            self._collector.follow(release)

    # --- what everyone may fetch ------------------------------------------------------------------

    def at_hand(self, url: bytes) -> tuple[bytes, bytes] | None:
        if url != _ROUND:
            return None
        now = self._state.now.descriptor
        self.requests.at_hand("/v1/round")
        if now is not self._told[0]:
            self._told = self._ready_round(now)
        return self._told[1]

    def _ready_round(self, now: Document) -> tuple[Document, tuple[bytes, bytes]]:
        return now, ready_answer(now, self._origins.at_rest(self._round_headers))

    async def _round(self, scope: Scope, receive: Receive, send: Send) -> None:
        document = self._state.now.descriptor
        await publish(scope, send, document, self._round_headers)

    async def _document(self, scope: Scope, receive: Receive, send: Send) -> None:
        content = self._fixed[scope["path"]]
        coding = best_coding(header(scope, b"accept-encoding"))
        document = await self._cache.get(
            (scope["path"], self._edition, coding),
            lambda: Document.of(content, coding),
            stays=True,
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
        coding = best_coding(header(scope, b"accept-encoding"))
        document = await self._encoded(version, version.base(since), coding)
        await publish(scope, send, document, [OCTETS, _VARY, _FOREVER, _RANGES])

    async def _encoded(self, version: Version, base: int | None, coding: Coding) -> Document:
        """Changes against any base are made once; when there is no room or no time for them, the
        whole model does as well."""
        ready = version.ready.get((base, coding))
        if ready is not None:
            return ready
        if coding == "gzip":  # takes long, and strangers could ask for much of it
            return await self._encoded(version, base, "identity")
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
        try:
            with self._database.writing() as link:
                if self._summed is None:
                    decisions = records.accept(link, batch)
                else:
                    decisions = sums.accept(link, batch, self._summed)
                records.count_refusals(link, counts)
                records.seen(link, seen)
        except ServiceError as error:
            self._state.in_trouble("reports", str(error))
            raise
        self._state.in_order("reports")
        self._contacts.heard([*seen, *(one.number for one in batch)])
        return decisions

    async def _report(self, scope: Scope, receive: Receive, send: Send) -> None:
        payload = b""
        try:
            with Share(self._unproven, sender_of(scope), self._announced(scope)) as share:
                longest = self._checks.longest
                # A masked update is large, and lines of phones are slow.
                seconds = max(self._limits.body_seconds, longest / SLOWEST_LINE)
                payload = await read_body(scope, receive, longest, seconds, share)
                submission = await self._checks.report(payload, self._queries)
                share.move(self._proven, submission.number)
                decision = await self._writer.store(submission)
            if decision == "shut_out":
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
        number, refuses = await self._checks.check_in(payload, self._queries)
        now = self._state.now.key
        if self._checked_in[0] != now:
            self._checked_in = now, set()

        def note() -> bool:
            # Most are not waited for: after a change of the roster all of them come.
            with self._database.reading() as link:
                out = records.shut_out_among(link, [number])
                if refuses:
                    news = not operating.objection_of(link, number)
                else:
                    news = records.is_missed(link, number)
            if out:
                raise Refused("shut_out", self._why(number))
            if news:
                with self._database.writing() as link:
                    if refuses:
                        operating.set_objection(link, number, "catalogue")
                    else:
                        records.seen(link, [number])
            return news

        news = await self._queries(note)
        if number in self._checked_in[1] and not news:  # whoever sends it again changes nothing
            await answer(send, 204, [], b"")
            return
        if self._checked_in[0] == now:
            self._checked_in[1].add(number)
        self._contacts.heard([number])
        self._moved()
        await answer(send, 204, [], b"")

    def _why(self, number: int) -> str:
        """What a device that was shut out is told."""
        with self._database.reading() as link:
            why = records.why_shut(link, [number]).get(number)
        return SHUT_OUT_BY_OPERATOR if why is None else why

    async def _unwanted(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._body(scope, receive, _SMALL_BODY)
        raise Refused("malformed", "reports of this federation go to its shuffler")

    def _has_enrolled(self, number: int, key: bytes) -> None:
        self._checks.enrolled(number, key)
        self._moved()

    # --- what the operator asks -------------------------------------------------------------------

    def _stands(self) -> dict[str, Any]:
        self._state.refresh()  # whoever hears of a round here may ask for its model next
        trouble = self._state.trouble
        return status(self._database, self._tally, plan=self._plan, trouble=trouble)

    def require_ready(self) -> None:
        with self._database.reading() as link:
            records.position(link)

    def figures(self) -> Iterator[Figure]:
        in_flight = self._unproven.bytes + self._proven.bytes
        standing = self._plan, self._state.trouble, self._outcomes
        return figures(self._database, self._tally, in_flight, *standing)

    async def _target(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = table_of(await self._body(scope, receive, _SMALL_BODY))
        wanted = body.get("rounds")
        if not isinstance(wanted, int) or isinstance(wanted, bool) or not 0 <= wanted < 2**31:
            raise Refused("malformed", "rounds must be a whole number")

        def store() -> int:
            with self._database.writing() as link:
                before = records.position(link).target
                target = records.raise_target(link, wanted)
                if target > before:
                    note_act(link, *_BEARER, "target", {"rounds": wanted}, {"before": before})
                return target

        target = await self._operators(store)
        self._moved()
        await answer_json(send, {"rounds": target})
