"""The orchestrator's HTTP interface for users: enrolment, the directory, recommendations, leaving.
Nothing of a request is logged, and no user's number."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sottovoce.errors import DataError, KeyTrouble, UsageError
from sottovoce.services.kit.answers import (
    JSON,
    OCTETS,
    Headers,
    Receive,
    Scope,
    Send,
    answer,
    header,
    publish,
)
from sottovoce.services.kit.application import Handler, HttpApplication
from sottovoce.services.kit.documents import Coding, Document, best_coding
from sottovoce.services.kit.executor import Tarpit
from sottovoce.services.kit.metrics import Figure, by
from sottovoce.services.kit.questions import AskingLimits, Once, proven, read
from sottovoce.stores.conductor import conducted, read_status
from sottovoce.stores.orchestrator import OrchestratorStore
from sottovoce.wire.interactions import Identity, Issuer
from sottovoce.wire.refusals import Refused, Tally
from sottovoce.wire.silos import (
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
    Question,
    Recommended,
    decode_count,
    encode_key,
    encode_rows,
)

LAST_ROUNDS = 100


def stands(
    store: OrchestratorStore, tally: Tally | None = None, last: int = LAST_ROUNDS
) -> dict[str, Any]:
    """Where the federation stands; `tally` has what was counted and not stored yet."""
    with (tally or Tally()).settled() as new:
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


STATUS = "/v1/status"
_VARY = (b"vary", b"accept-encoding")
_NOBODY = "nobody with this pass is enrolled, or no more"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorLimits(AskingLimits):
    waiting: int = 128
    """Requests that wait for the store, and as many enrolments."""
    guess_seconds: float = 1.0
    """How long an invitation that is not good waits for its answer."""
    body_seconds: float = 15.0
    look_seconds: float = 1.0
    """How old the directory may be that is shown."""


class OrchestratorApplication(HttpApplication):
    prefix = "orchestrator_"

    def __init__(
        self,
        store: OrchestratorStore,
        issuer: Issuer,
        users: Identity,
        token: str,
        tally: Tally,
        limits: OrchestratorLimits,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`users` is the key with which they prove themselves, `token` the operator's."""
        super().__init__("the orchestrator", token, tally, limits)
        self._store, self._issuer, self._users = store, issuer, users
        self._once = Once("the orchestrator", limits, clock)
        self._questions = self._executor(limits.waiting, threads=2)
        # Anybody can guess an invitation: users do not wait for those who do.
        self._enrolments = self._executor(limits.waiting)
        self._tarpit = Tarpit(limits.guess_seconds)
        self._directory = _Shown(
            lambda: store.directory_version,
            lambda: store.directory(issuer.public).sign(issuer),
            limits.look_seconds,
        )
        self._rows = _Shown(
            lambda: store.model_version,
            lambda: encode_rows(store.rows_to_rank()),
            limits.look_seconds,
        )
        routes = {
            KEY: ("GET", self._key),
            ENROL: ("POST", self._enrol),
            DIRECTORY: ("GET", self._show(self._directory)),
            RECOMMEND: ("POST", self._recommend),
            LEAVE: ("POST", self._leave),
            STATUS: ("GET", self._status(lambda: stands(store, tally))),
        }
        if store.settings.release == "aggregated":
            routes[ROWS] = ("GET", self._show(self._rows))
        self._serve(routes)

    # --- what users ask ---------------------------------------------------------------------------

    async def _enrol(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._body(scope, receive, LONGEST)
        wanted = read(lambda: Enrolment.decode(body))

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
            given = await self._enrolments(enrol)
        except Refused as error:
            if error.reason in ("bad_token", "bad_mac"):
                await self._tarpit()
            raise
        await answer(send, 200, [JSON], given.encode())

    async def _key(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, [JSON], encode_key(self._users.public))

    def _show(self, shown: _Shown) -> Handler:
        async def show(scope: Scope, receive: Receive, send: Send) -> None:
            coding = best_coding(header(scope, b"accept-encoding"))
            document = shown.fresh(coding)
            if document is None:
                document = await self._questions(lambda: shown.look(coding))
            headers: Headers = [OCTETS, _VARY, (b"cache-control", b"no-cache")]
            await publish(scope, send, document, headers)

        return show

    async def _recommend(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._body(scope, receive, LONGEST)

        def recommend() -> bytes:
            question = self._proven(body, "recommend")
            n = read(lambda: decode_count(question.content))
            self._once.admit(question)
            try:
                items, scores = self._store.recommend(question.given.user, n)
            except DataError:
                raise Refused("unknown_account", _NOBODY) from None
            except UsageError as error:
                raise Refused("malformed", str(error)) from None
            return Recommended(tuple(items.tolist()), tuple(scores.tolist())).encode()

        await answer(send, 200, [JSON], await self._questions(recommend))

    async def _leave(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whoever has left already is told so again: the first answer may have been lost."""
        body = await self._body(scope, receive, LONGEST)

        def leave() -> None:
            question = self._proven(body, "leave")
            if question.content:
                raise Refused("malformed", "leaving has no content")
            self._once.admit(question)
            try:
                self._store.leave_user(question.given.user)
            except DataError:
                raise Refused("unknown_account", _NOBODY) from None

        await self._questions(leave)
        await answer(send, 204, [], b"")

    def _proven(self, body: bytes, purpose: Purpose) -> Question:
        return proven(body, purpose, self._issuer.federation, self._issuer.public, self._users)

    # --- what the operator asks -------------------------------------------------------------------

    def figures(self) -> Iterator[Figure]:
        now = stands(self._store, self._tally)
        for name, words in (
            ("round", "Rounds closed so far."),
            ("users", "Users who are enrolled."),
            ("left", "Users who have left."),
            ("items", "Items in the catalogue."),
            ("held", "Items that some data owner holds."),
        ):
            yield Figure(name, words, now[name])
        yield Figure("owners", "Data owners.", len(now["owners"]))
        silent = [
            ((name,), float(name in past["silent"]))
            for past in now["rounds"][-1:]
            for name in past["asked"]
        ]
        words = "Whether a data owner gave no answer in the last round."
        yield Figure("silent", words, silent, ("owner",))
        yield by("reason", "refused", "Messages refused, by reason.", now["refused"])


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
