"""The orchestrator's HTTP interface for users: enrolment, the directory, recommendations, leaving.
Nothing of a request is logged, and no user's number."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from sottovoce.errors import DataError, KeyTrouble, UsageError
from sottovoce.services.kit.answers import (
    Handler,
    Headers,
    Receive,
    Routed,
    Scope,
    Send,
    answer,
    bears,
    header,
    publish,
    read_body,
    refuse,
)
from sottovoce.services.kit.documents import Coding, Document, best_coding
from sottovoce.services.kit.executor import Aside, Tarpit
from sottovoce.services.kit.questions import Once, proven
from sottovoce.stores.conductor import conducted, read_status
from sottovoce.stores.orchestrator import OrchestratorStore
from sottovoce.wire.interactions import Identity
from sottovoce.wire.passes import Issuer
from sottovoce.wire.refusals import RefusalCounts, Refused, read_or_refuse
from sottovoce.wire.users import (
    DIRECTORY,
    ENROL,
    KEY,
    LEAVE,
    LONGEST,
    RECOMMEND,
    ROWS,
    Enrolled,
    Enrolment,
    Purpose,
    Recommended,
    UserQuestion,
    decode_count,
    encode_item_rows,
    encode_key,
)

# The folder of a DRIFT federation's orchestrator: its keys, its state, and who is let in.
# `federation.json` (what everybody may know; goes to those who want to join as data owners),
# `issuer.key` (signs passes and the directory), `users.key` (with which users prove themselves),
# `keys/` (a certificate authority of its own), `orchestrator.db` (the model, users and data
# owners), `orchestrator.json` (addresses and process of a running orchestrator) and, where it
# trains, `superlink/` and `gateway/`.


# --- who is let in -------------------------------------------------------------------------------


# What the operator of an orchestrator sees: counts and the names of data owners, no users.

LAST_ROUNDS = 100


def figures(
    store: OrchestratorStore, tally: RefusalCounts | None = None, last: int = LAST_ROUNDS
) -> dict[str, Any]:
    """Where the federation stands; `tally` has what was counted and not stored yet."""
    with (tally or RefusalCounts()).settled() as new:
        refused = Counter(store.refused()) + Counter(new)
    owners = store.owners()
    return {
        "federation": store.federation,
        "round": store.round,
        "target": store.target(),
        "flush_requested": store.flush_requested,
        "users": store.n_users,
        "left": len(store.departed()),
        "items": store.n_items,
        "held": len({item for owner in owners for item in owner.items}),
        "owners": [
            {
                "number": owner.number,
                "name": owner.name,
                "url": owner.entry.url,
                "items": len(owner.items),
                "counted": owner.counted,
            }
            for owner in owners
        ],
        "refused": dict(sorted(refused.items())),
        "training": _training(store.folder),
        "rounds": [
            {**asdict(past), "seconds": round(past.seconds, 3)} for past in store.rounds(last)
        ],
    }


def _training(folder: Path) -> dict[str, Any]:
    """What the conductor of the rounds says, where one is at work."""
    if not conducted(folder):
        return {"state": "stopped"}
    said = read_status(folder)
    names = ("online", "waiting_for", "not_admitted", "problems")
    told = {name: said[name] for name in names if name in said}
    return {"state": str(said.get("state", "starting")), **told}


def metrics(now: Mapping[str, Any]) -> bytes:
    """The same for Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(now))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, now: Mapping[str, Any]) -> None:
        self._now = now

    def collect(self) -> Iterator[Metric]:
        for name, words in (
            ("round", "Rounds closed so far."),
            ("users", "Users who are enrolled."),
            ("left", "Users who have left."),
            ("items", "Items in the catalogue."),
            ("held", "Items that some data owner holds."),
        ):
            yield GaugeMetricFamily(f"sottovoce_orchestrator_{name}", words, self._now[name])
        yield GaugeMetricFamily(
            "sottovoce_orchestrator_owners", "Data owners.", len(self._now["owners"])
        )
        silent = GaugeMetricFamily(
            "sottovoce_orchestrator_silent",
            "Whether a data owner gave no answer in the last round.",
            labels=["owner"],
        )
        for past in self._now["rounds"][-1:]:
            for name in past["asked"]:
                silent.add_metric([name], float(name in past["silent"]))
        yield silent
        refused = CounterMetricFamily(
            "sottovoce_orchestrator_refused", "Messages refused, by reason.", labels=["reason"]
        )
        for reason, count in self._now["refused"].items():
            refused.add_metric([reason], count)
        yield refused


STATUS = "/v1/status"
_OPERATORS = 4
_JSON = (b"content-type", b"application/json")
_BYTES = (b"content-type", b"application/octet-stream")
_VARY = (b"vary", b"accept-encoding")
_NOBODY = "nobody with this pass is enrolled, or no more"


@dataclass(frozen=True, slots=True)
class OrchestratorLimits:
    """How much is taken on at once. What is beyond is told to come back later."""

    waiting: int = 128
    """Requests that wait for the store, and as many enrolments."""
    guess_seconds: float = 1.0
    """How long an invitation that is not good waits for its answer."""
    connections: int = 4000
    per_address: int = 1000
    behind: tuple[str, ...] = ()
    """`service.Limits` says what these three are."""
    per_minute: int = 60
    """Questions of one user."""
    nonces: int = 200_000
    """Questions of all users within the time in which a proof is good."""
    body_seconds: float = 15.0
    """A message must be here by then."""
    retry_seconds: int = 2
    look_seconds: float = 1.0
    """How old the directory may be that is shown."""
    head_seconds: float = 15.0
    rest_seconds: float = 5.0
    idle_seconds: int = 20
    write_seconds: float = 30.0
    handshake_seconds: float = 10.0
    """`protocol.Patience` and `door.DoorLimits` say what these five are."""


class OrchestratorService(Routed):
    def __init__(
        self,
        store: OrchestratorStore,
        issuer: Issuer,
        users: Identity,
        token: str,
        tally: RefusalCounts,
        limits: OrchestratorLimits,
        *,
        figures: Callable[[], Mapping[str, Any]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`users` is the key with which they prove themselves, `token` the operator's; `figures`
        says where the federation stands."""
        super().__init__("the orchestrator", token, tally, retry_seconds=limits.retry_seconds)
        self._store, self._issuer, self._users = store, issuer, users
        self._limits = limits
        self._figures = figures
        self._once = Once("the orchestrator", limits, clock)
        self._aside = Aside(limits.waiting, threads=2)
        # Anybody can guess an invitation: users do not wait for those who do.
        self._enrolling_aside = Aside(limits.waiting, threads=1)
        self._tarpit = Tarpit(limits.guess_seconds)
        self._operators_aside = Aside(_OPERATORS, threads=1)
        self._directory = _Shown(
            lambda: store.directory_version,
            lambda: store.directory(issuer.public).sign(issuer),
            limits.look_seconds,
        )
        self._rows = _Shown(
            lambda: store.model_version,
            lambda: encode_item_rows(store.rows_to_rank()),
            limits.look_seconds,
        )
        self._routes = {
            KEY: ("GET", self._key),
            ENROL: ("POST", self._enrol),
            DIRECTORY: ("GET", self._show(self._directory)),
            RECOMMEND: ("POST", self._recommend),
            LEAVE: ("POST", self._leave),
            STATUS: ("GET", self._for_operator(self._status)),
            "/metrics": ("GET", self._for_operator(self._metrics)),
            "/health": ("GET", self._health),
        }
        if store.settings.release == "aggregated":
            self._routes = {**self._routes, ROWS: ("GET", self._show(self._rows))}

    def close(self) -> None:
        self._aside.close()
        self._enrolling_aside.close()
        self._operators_aside.close()

    # --- what users ask ---------------------------------------------------------------------------

    async def _enrol(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._body(scope, receive)
        wanted = read_or_refuse(Enrolment.decode, body)

        def enrol() -> Enrolled:
            not_good = "the invitation is not good, or was used with another key"
            if not self._store.is_invited(wanted.token):
                raise Refused("bad_token", not_good)
            try:
                self._users.agree(wanted.public)
            except KeyTrouble:
                raise Refused("malformed", "public is no key that can be agreed with") from None
            if not wanted.is_proven(self._issuer.federation, self._users):
                raise Refused("bad_mac", "the enrolment was not made with the key that it brings")
            try:
                user = self._store.enrol(wanted.token, wanted.public)
            except KeyTrouble:
                raise Refused("bad_token", not_good) from None
            return Enrolled(self._issuer.admit(user, wanted.public), self._users.public)

        try:
            given = await self._enrolling_aside(enrol)
        except Refused as error:
            if error.reason in ("bad_token", "bad_mac"):
                await self._tarpit()
            raise
        await answer(send, 200, [_JSON], given.encode())

    async def _key(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, [_JSON], encode_key(self._users.public))

    def _show(self, shown: _Shown) -> Handler:
        async def show(scope: Scope, receive: Receive, send: Send) -> None:
            coding = best_coding(header(scope, b"accept-encoding"))
            document = shown.fresh(coding)
            if document is None:
                document = await self._aside(lambda: shown.look(coding))
            headers: Headers = [_BYTES, _VARY, (b"cache-control", b"no-cache")]
            await publish(scope, send, document, headers)

        return show

    async def _recommend(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._body(scope, receive)

        def recommend() -> bytes:
            question = self._proven(body, "recommend")
            n = read_or_refuse(decode_count, question.content)
            self._once.admit(question)
            try:
                items, scores = self._store.recommend(question.given.user, n)
            except DataError:
                raise Refused("unknown_account", _NOBODY) from None
            except UsageError as error:
                raise Refused("malformed", str(error)) from None
            return Recommended(tuple(items.tolist()), tuple(scores.tolist())).encode()

        await answer(send, 200, [_JSON], await self._aside(recommend))

    async def _leave(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whoever has left already is told so again: the first answer may have been lost."""
        body = await self._body(scope, receive)

        def leave() -> None:
            question = self._proven(body, "leave")
            if question.content:
                raise Refused("malformed", "leaving has no content")
            self._once.admit(question)
            try:
                self._store.leave_user(question.given.user)
            except DataError:
                raise Refused("unknown_account", _NOBODY) from None

        await self._aside(leave)
        await answer(send, 204, [], b"")

    def _proven(self, body: bytes, purpose: Purpose) -> UserQuestion:
        return proven(body, purpose, self._issuer.federation, self._issuer.public, self._users)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        return await read_body(scope, receive, LONGEST, self._limits.body_seconds)

    # --- what others ask --------------------------------------------------------------------------

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, [(b"content-type", b"text/plain")], b"ok")

    def _for_operator(self, handler: Handler) -> Handler:
        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            if not bears(scope, self._token):
                await refuse(send, 401, "unauthorized", "this needs the operator's token", 0)
                return
            await handler(scope, receive, send)

        return checked

    async def _status(self, scope: Scope, receive: Receive, send: Send) -> None:
        content = await self._operators_aside(self._figures)
        await answer(send, 200, [_JSON], json.dumps(dict(content)).encode())

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:

        text = metrics(await self._operators_aside(self._figures))
        await answer(send, 200, [(b"content-type", b"text/plain; version=0.0.4")], text)


class _Shown:
    """A document that is made anew when what it shows has changed."""

    def __init__(
        self, version: Callable[[], object], make: Callable[[], bytes], seconds: float
    ) -> None:
        self._newest, self._make, self._seconds = version, make, seconds
        self._turn = threading.Lock()
        self._version: object = None
        self._content = b""
        self._documents: dict[Coding, Document] = {}
        self._looked = float("-inf")

    def fresh(self, coding: Coding) -> Document | None:
        """In this coding, where it is young enough."""
        if time.monotonic() - self._looked > self._seconds:
            return None
        return self._documents.get(coding)

    def look(self, coding: Coding) -> Document:
        """As it is now."""
        with self._turn:
            now, newest = time.monotonic(), self._newest()
            if newest != self._version:
                self._content = self._make()
                self._version, self._documents = newest, {}
            self._looked = now
            if coding not in self._documents:
                self._documents[coding] = Document.of(self._content, coding)
            return self._documents[coding]
