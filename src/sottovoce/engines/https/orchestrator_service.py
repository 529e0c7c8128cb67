"""The orchestrator's HTTP interface for users: enrolment, the directory, recommendations, leaving.
Nothing of a request is logged, and no user's number."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sottovoce.engines.https.answers import (
    Headers,
    Receive,
    Scope,
    Send,
    answer,
    bears,
    header,
    publish,
    read_body,
    refuse,
)
from sottovoce.engines.https.aside import Aside
from sottovoce.engines.https.orchestrator_wire import (
    DIRECTORY,
    ENROL,
    LEAVE,
    LONGEST,
    PROOF_SECONDS,
    RECOMMEND,
    Enrolled,
    Enrolment,
    Purpose,
    Question,
    Recommended,
    decode_count,
    read_question,
)
from sottovoce.engines.https.published import Coding, Document, best_coding
from sottovoce.engines.https.refusals import Refused, Tally
from sottovoce.engines.https.routing import Handler, Routed
from sottovoce.errors import (
    DataError,
    KeyTrouble,
    MessageError,
    VersionMismatch,
)
from sottovoce.parties.orchestrator_store import OrchestratorStore
from sottovoce.privacy.interactions import Identity
from sottovoce.privacy.passes import Issuer

T = TypeVar("T")

STATUS = "/v1/status"
_OPERATORS = 4
_MINUTE = 60.0
_JSON = (b"content-type", b"application/json")
_BYTES = (b"content-type", b"application/octet-stream")
_VARY = (b"vary", b"accept-encoding")
_NOBODY = "nobody with this pass is enrolled, or no more"


@dataclass(frozen=True, slots=True)
class OrchestratorLimits:
    """How much is taken on at once. What is beyond is told to come back later."""

    waiting: int = 128
    """Requests that wait for the store."""
    connections: int = 4000
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
    """`protocol.Patience` says what these four are."""


class Once:
    """Sees to it that a question is answered once, and nobody asks too often.

    What was asked before this process began is not known here: such questions are told to come
    again. (Who has a clock that is ahead is the exception, for as long as it is ahead.)
    """

    def __init__(self, limits: OrchestratorLimits, clock: Callable[[], float] = time.time) -> None:
        self._limits, self._clock = limits, clock
        self._began = int(clock())
        self._turn = threading.Lock()
        self._nonces: dict[tuple[int, bytes], float] = {}
        self._asked: Counter[int] = Counter()
        self._minute = 0

    def admit(self, question: Question) -> None:
        """Note the question, which is proven. Raises where it is not answered."""
        now = self._clock()
        if abs(now - question.time) > PROOF_SECONDS:
            raise Refused(
                "late",
                f"the question is from another time; clocks may be {PROOF_SECONDS} seconds apart",
            )
        if question.time < self._began:
            raise Refused("unavailable", "the orchestrator has just started; ask again")
        user = question.given.user
        with self._turn:
            self._forget(now)
            mark = (user, question.nonce)
            if mark in self._nonces:
                raise Refused("replay", "this question was asked before")
            if self._asked[user] >= self._limits.per_minute:
                raise Refused("too_often", "you ask too often; wait a minute")
            if len(self._nonces) >= self._limits.nonces:
                raise Refused("overload", "the orchestrator has too much to do; come back later")
            self._asked[user] += 1
            self._nonces[mark] = question.time + PROOF_SECONDS

    def _forget(self, now: float) -> None:
        """What is too old to be asked again, once a minute."""
        minute = int(now // _MINUTE)
        if minute != self._minute:
            self._minute = minute
            self._asked.clear()
            self._nonces = {mark: end for mark, end in self._nonces.items() if end >= now}


class OrchestratorService(Routed):
    def __init__(
        self,
        store: OrchestratorStore,
        issuer: Issuer,
        users: Identity,
        token: str,
        tally: Tally,
        limits: OrchestratorLimits,
        *,
        figures: Callable[[], Mapping[str, Any]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`users` is the key with which they prove themselves, `token` the operator's; `figures`
        says where the federation stands."""
        super().__init__(
            "the orchestrator",
            token,
            tally,
            most_connections=limits.connections,
            retry_seconds=limits.retry_seconds,
        )
        self._store, self._issuer, self._users = store, issuer, users
        self._limits = limits
        self._figures = figures
        self._once = Once(limits, clock)
        self._aside = Aside(limits.waiting, threads=2)
        self._operators_aside = Aside(_OPERATORS, threads=1)
        self._directory = _Shown(store, issuer, limits.look_seconds)
        self._routes = {
            ENROL: ("POST", self._enrol),
            DIRECTORY: ("GET", self._show),
            RECOMMEND: ("POST", self._recommend),
            LEAVE: ("POST", self._leave),
            STATUS: ("GET", self._for_operator(self._status)),
            "/metrics": ("GET", self._for_operator(self._metrics)),
            "/health": ("GET", self._health),
        }

    def close(self) -> None:
        self._aside.close()
        self._operators_aside.close()

    # --- what users ask ---------------------------------------------------------------------------

    async def _enrol(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._body(scope, receive)
        wanted = _read(lambda: Enrolment.decode(body))

        def enrol() -> Enrolled:
            try:
                self._users.agree(wanted.public)
            except KeyTrouble:
                raise Refused("malformed", "public is no key that can be agreed with") from None
            try:
                user = self._store.enrol(wanted.token, wanted.public)
            except KeyTrouble:
                raise Refused(
                    "bad_token", "the invitation is not good, or was used with another key"
                ) from None
            return Enrolled(self._issuer.admit(user, wanted.public), self._users.public)

        given = await self._aside(enrol)
        await answer(send, 200, [_JSON], given.encode())

    async def _show(self, scope: Scope, receive: Receive, send: Send) -> None:
        coding = best_coding(header(scope, b"accept-encoding"))
        document = self._directory.fresh(coding)
        if document is None:
            document = await self._aside(lambda: self._directory.look(coding))
        headers: Headers = [_BYTES, _VARY, (b"cache-control", b"no-cache")]
        await publish(scope, send, document, headers)

    async def _recommend(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._body(scope, receive)

        def recommend() -> bytes:
            question = self._proven(body, "recommend")
            n = _read(lambda: decode_count(question.content))
            self._once.admit(question)
            try:
                items, scores = self._store.recommend(question.given.user, n)
            except DataError:
                raise Refused("unknown_account", _NOBODY) from None
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

    def _proven(self, body: bytes, purpose: Purpose) -> Question:
        """A question of whoever has the pass and its key. Raises where it is none."""
        question = _read(lambda: read_question(body))
        federation = self._issuer.federation
        try:
            question.given.check(self._issuer.public, federation)
        except KeyTrouble:
            raise Refused("bad_pass", "this federation's issuer has not given this pass") from None
        if not question.is_proven(purpose, federation, self._users):
            raise Refused("bad_mac", "the question was not asked with the key of the pass")
        return question

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
        from sottovoce.engines.https.orchestrator_status import metrics

        text = metrics(await self._operators_aside(self._figures))
        await answer(send, 200, [(b"content-type", b"text/plain; version=0.0.4")], text)


class _Shown:
    """The signed directory, as it is shown."""

    def __init__(self, store: OrchestratorStore, issuer: Issuer, seconds: float) -> None:
        self._store, self._issuer, self._seconds = store, issuer, seconds
        self._turn = threading.Lock()
        self._version, self._signed = -1, b""
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
            now = time.monotonic()
            if self._store.directory_version != self._version:
                directory = self._store.directory(self._issuer.public)
                self._signed = directory.sign(self._issuer)
                self._version, self._documents = directory.version, {}
            self._looked = now
            if coding not in self._documents:
                self._documents[coding] = Document.of(self._signed, coding)
            return self._documents[coding]


def _read(read: Callable[[], T]) -> T:
    """What was sent, or a refusal of what cannot be read."""
    try:
        return read()
    except VersionMismatch as error:
        raise Refused("version", str(error)) from None
    except MessageError as error:
        raise Refused("malformed", str(error)) from None
