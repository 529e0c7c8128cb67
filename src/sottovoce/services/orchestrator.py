"""The orchestrator: users come to it over HTTPS, for enrolment, the directory, recommendations and
to leave, and rounds with the data owners go on beside, on the same store. Nothing of a request is
logged, and no user's number."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from sottovoce.errors import DataError, KeyTrouble, ServiceError, UsageError
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
from sottovoce.services.kit.application import Handler, Hosting, HttpApplication, Tarpit
from sottovoce.services.kit.documents import Coding, Document, best_coding
from sottovoce.services.kit.metrics import Figure, by, known, one_of
from sottovoce.services.kit.questions import AskingLimits, Once, proven
from sottovoce.services.kit.serving import Beside, Parts, Service, Start
from sottovoce.stores.conductor import conducted, read_status
from sottovoce.stores.orchestrator import OrchestratorStore
from sottovoce.stores.orchestrator_folder import OrchestratorFolder, open_orchestrator_folder
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

LAST_ROUNDS = 100
STATES = "stopped", "starting", "waiting", "open", "pausing", "finished", "failed"


def stands(
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


class OrchestratorApplication(HttpApplication[OrchestratorLimits]):
    name, prefix = "the orchestrator", "orchestrator_"

    def __init__(
        self,
        hosting: Hosting[OrchestratorLimits],
        store: OrchestratorStore,
        issuer: Issuer,
        users: Identity,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`users` is the key with which they prove themselves."""
        super().__init__(hosting)
        self._store, self._issuer, self._users, limits = store, issuer, users, hosting.limits
        self._once = Once(self.name, limits, clock)
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
            lambda: encode_item_rows(store.rows_to_rank()),
            limits.look_seconds,
        )
        routes = {
            KEY: ("GET", self._key),
            ENROL: ("POST", self._enrol),
            DIRECTORY: ("GET", self._show(self._directory)),
            RECOMMEND: ("POST", self._recommend),
            LEAVE: ("POST", self._leave),
            STATUS: ("GET", self._status(lambda: stands(store, hosting.tally))),
        }
        if store.settings.release == "aggregated":
            routes[ROWS] = ("GET", self._show(self._rows))
        self._serve(routes)

    # --- what users ask ---------------------------------------------------------------------------

    async def _enrol(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._body(scope, receive, LONGEST)
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
            n = read_or_refuse(decode_count, question.content)
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

    def _proven(self, body: bytes, purpose: Purpose) -> UserQuestion:
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
        training = now["training"]["state"]
        yield one_of("state", "state", "1 for the state of the training.", STATES, training)
        last = now["rounds"][-1] if now["rounds"] else {}
        yield known("last_round_seconds", "Seconds that the last round took.", last.get("seconds"))
        words = "When the last round ended, in seconds since 1970."
        yield known("last_round_end_timestamp_seconds", words, self._store.last_ended())
        updated = len(last["updated"]) if last else None
        yield known("last_round_contributions", "Data owners in the last round.", updated)
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


_COUNT_SECONDS = 2.0
"""Refusals are stored so often."""


class Rounds(Protocol):
    """The process that holds the rounds with the data owners, next to the service, on the same
    store."""

    entrance: str
    """HOST:PORT at which data owners come in from this machine; empty if there is none."""

    def start(self) -> None: ...

    def watch(self, failed: Callable[[ServiceError], None]) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OrchestratorService(Service[OrchestratorFolder, OrchestratorLimits]):
    """An orchestrator. `rounds` makes those who hold the rounds; without it only users are
    served."""

    rounds: Callable[[OrchestratorFolder, OrchestratorStore, Any], Rounds] | None = None

    name = "the orchestrator"
    port = 8446
    limits = OrchestratorLimits

    def open(self, path: Path) -> OrchestratorFolder:
        return open_orchestrator_folder(path)

    def prepare(self, start: Start[OrchestratorFolder, OrchestratorLimits]) -> Parts:
        folder = start.folder
        start.stack.enter_context(folder.locked())
        store = start.keep(folder.store())
        start.listen()
        counts = _CountsThread(store, start.tally, start.log)
        beside, facts = [Beside(lambda fail: counts.start(), counts.stop)], {}
        if self.rounds is not None:
            training = self.rounds(folder, store, start.log)
            start.stack.callback(training.stop)
            with _quiet_end():
                training.start()
            beside.append(Beside(training.watch, training.stop))
            facts = {"gateway": training.entrance}

        keys = folder.issuer(), folder.users_identity()
        return Parts(
            lambda: OrchestratorApplication(start.hosting, store, *keys),
            lambda port: folder.ready_file,
            beside,
            facts,
        )


class _CountsThread:
    """A thread that brings counts of refusals to the store."""

    def __init__(self, store: OrchestratorStore, tally: RefusalCounts, log: Any) -> None:
        self._store, self._tally, self._log = store, tally, log
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="counts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=3)

    def _run(self) -> None:
        while not self._stopping.wait(_COUNT_SECONDS):
            self._keep()
        self._keep()

    def _keep(self) -> None:
        try:
            with self._tally.storing() as counts:
                for reason, times in counts.items():
                    self._store.refuse(reason, times)
        except ServiceError as error:
            self._log.error("not stored", detail=str(error))


@contextlib.contextmanager
def _quiet_end() -> Iterator[None]:
    """Within, SIGTERM ends the process in order: what was started is stopped."""

    def end(number: int, frame: object) -> None:
        sys.exit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
