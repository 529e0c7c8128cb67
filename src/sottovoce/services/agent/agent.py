"""The device agent: asks the server whether there is a round, learns at home, and sends what the
owner permits. Nothing is sent, not even an enrolment, for an owner who takes no part or has not
agreed to the terms: such a device only reads what is published.

What is sent is let go by the door (`parties.hosted`), which has it on record before its first byte
leaves: enrolments and check-ins, too. A report is durable in the store, and sent again, the very
same bytes, until the server has said what became of it; so an agent may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce.core.links import has_noise
from sottovoce.core.messages import ModelView
from sottovoce.core.waiting import ROUNDS, words
from sottovoce.core.words import say
from sottovoce.engines.client import Answer, Busy, Client, good
from sottovoce.engines.connection import Traffic
from sottovoce.errors import (
    ConsentError,
    KeyTrouble,
    MessageError,
    SottovoceError,
    Told,
    Unreachable,
    UsageError,
)
from sottovoce.parties.leaving import Leaving, body_of
from sottovoce.services.agent.loop import Log, Loop, Sleep
from sottovoce.services.agent.shuffled import ShufflerLink, admission_in, may_report
from sottovoce.services.kit.pacing import Draw, from_system
from sottovoce.stores.device import CohortStore
from sottovoce.stores.prepared import Nothing, Prepared, is_as_large, sealed_by, signing_key
from sottovoce.stores.session import (
    DeviceSession,
    Expulsion,
    expelled,
    forget_expulsion,
    keep_expulsion,
)
from sottovoce.wire.catalogue import (
    OBJECTION,
    OtherItems,
    catalogue_limit,
    categories_in,
    items_in,
    require_same_places,
    with_former_categories,
)
from sottovoce.wire.descriptor import Descriptor
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.invitations import Invitation, kept_invitation
from sottovoce.wire.plainly import objection
from sottovoce.wire.reports import report_rows
from sottovoce.wire.signing import DIGEST_HEADER, NONCE_BYTES, Purpose, digest_of, prove, seal
from sottovoce.wire.terms import Terms
from sottovoce.wire.versions import decode_model, full_size

# What an agent looks at before it relies on it: whose its store is.


def identity(store: CohortStore) -> tuple[int, Invitation]:
    """The device's number and how it was invited."""
    users = store.users
    if len(users) != 1:
        raise UsageError(
            f"the store in {store.path} holds {len(users)} users, a device agent serves one; use a "
            "Flower node for a cohort"
        )
    invitation = kept_invitation(store)
    if invitation is None:
        raise UsageError(
            f"the store in {store.path} has no invitation; get one from the operator and run "
            f"`sottovoce device init {store.path} --invitation FILE`"
        )
    if invitation.number != int(users[0]):
        raise UsageError(
            f"the store in {store.path} is of device {int(users[0])}, its invitation of device "
            f"{invitation.number}; make a new store with the invitation"
        )
    return int(users[0]), invitation


def enrolment(key: Ed25519PrivateKey, invitation: Invitation) -> bytes:
    """What a device says to enrol its key."""
    proof = prove(key, invitation.federation, bytes.fromhex(invitation.token))
    content = {
        "protocol": PROTOCOL,
        "token": invitation.token,
        "public_key": key.public_key().public_bytes_raw().hex(),
        "signature": proof.hex(),
    }
    return json.dumps(content).encode()


# What a device reads of what is published: where the federation is, its terms, catalogue and
# model. The questions name nobody, and our server keeps nothing of them; a device that takes no
# part asks no others. Whoever runs a server can still see from which address a question comes,
# and that whoever takes part fetches the model of every round, others about one a day.

T = TypeVar("T")

_REFRESH_SECONDS = 86400
_REFRESHED, _CATALOGUE = "refreshed", "catalogue-whole"


class Reader(Loop):
    """One device: one store, one server."""

    def __init__(
        self,
        store: CohortStore,
        server: str | None,
        *,
        plaintext: bool,
        clock: Callable[[], float],
        **pacing: Any,
    ) -> None:
        self.store = store
        self.hosted = DeviceSession(store)
        self.number, self._invitation = identity(store)
        address, authority = server or self._invitation.server, self._invitation.ca
        super().__init__(store.path, Client(address, authority, plaintext=plaintext), **pacing)
        self._clock = clock
        self._worker = ThreadPoolExecutor(1, "store")
        self._learning: ModelView | None = None
        self._waits = ""

    @property
    def stopped(self) -> bool:
        return self.store.stopped

    async def _look(self) -> Descriptor:
        """The round descriptor."""
        try:
            answer = await self.client.get("/v1/round")
        except Busy:
            raise
        except Unreachable:
            self._say_waits("no_server")
            raise
        now = Descriptor.from_table(self._good(answer).table())
        expected = self._invitation.federation
        if now.federation != expected:
            raise MessageError(
                f"the server at {self.client.url} serves another federation than {expected}, which "
                "the invitation names; nothing was sent to it"
            )
        self._pace.heard(now.poll_seconds)
        self._say_waits(now.waits)
        return now

    def _say_waits(self, kind: str) -> None:
        """Log once why rounds wait, in the sentence that the operator reads."""
        if kind and kind != self._waits:
            self._log("round waits", kind=kind if kind in ROUNDS else "other", why=words(kind))
        self._waits = kind

    async def _meet(self, now: Descriptor) -> Terms:
        """The terms that this device goes by. The first ones are kept to be looked at; others raise
        until the owner agrees. Until then she has what is published, as far as it fits hers."""
        terms, pending = await self._aside(lambda: (self.hosted.terms, self.hosted.pending))
        if terms is None or pending is not None or terms.digest() != now.terms:
            told = Terms.from_table(self._good(await self.client.get("/v1/terms")).table())
            if told.digest() != now.terms or told.federation != now.federation:
                raise Unreachable(f"the server at {self.client.url} is about to change its terms")
            try:
                await self._aside(lambda: self.hosted.meet(told))
            except ConsentError:
                if terms is not None and is_as_large(terms, told):
                    await self._know_catalogue(now, terms)
                    await self._refresh(now, terms)
                raise
            terms = told
        await self._know_catalogue(now, terms)
        return terms

    async def _know_catalogue(self, now: Descriptor, terms: Terms) -> None:
        known = await self._aside(self.store.count_items) == terms.n_items
        seen = await self._aside(lambda: self.store.secret(_CATALOGUE)) or b""
        if not known or now.catalogue.encode() != seen:
            await self._fetch_catalogue(terms, now.catalogue)

    async def _fetch_catalogue(self, terms: Terms, name: str) -> None:
        """Items come and go, but none in the place of one that this device knows."""
        answer = await self.client.get(
            "/v1/catalogue", limit=catalogue_limit(terms.n_items), packed=True
        )
        table = self._good(answer).table()
        if name and hashlib.sha256(answer.body).hexdigest() != name:
            # A cache on the way may have the one before, which must not be taken for this one.
            raise Unreachable(f"the server at {self.client.url} is about to change its catalogue")
        items, categories = items_in(table, terms.n_items), categories_in(table, terms.n_items)

        def keep() -> None:
            before, known = self.store.catalogue(), self.store.categories()
            # More places come behind those that are known, whether or not the server names its
            # catalogue; another federation has others.
            noted = self.store.secret(_CATALOGUE) is not None
            if noted or len(before) in (len(items), *self.hosted.sizes(terms.federation)):
                require_same_places(before, items)
            # Else a server could let leave what its owner never sends.
            after = with_former_categories(before, known, items, categories)
            if before != items or known != after:
                self.store.set_catalogue(items, after)
            self.store.set_secret(_CATALOGUE, name.encode())

        await self._aside(keep)

    async def _model(self, now: Descriptor, terms: Terms, *, known: bool = False) -> ModelView:
        """The model to learn from in the round. Where recommendations are made by an earlier one,
        that stays in the store, and this one is not kept.

        A device that is `known`, because it tells the server who it is in this very visit, asks
        only for what changed, by the number of the version that it has, or for the rest of what was
        cut off. The server chose that number and cut: by them it would know others again."""
        if now.published in (None, now.model):
            return await self._keep(now.model, terms, known=known)
        if self._learning is None or self._learning.round != now.model:
            self._learning = None
            kept = await self._aside(self.hosted.model)
            self._learning = await self._fetch(now.model, terms, kept, known=known)
        return self._learning

    async def _keep(self, round: int, terms: Terms, *, known: bool) -> ModelView:
        """The published model, in the store."""
        kept = await self._aside(self.hosted.model)
        if kept is not None and kept.round == round:
            return kept
        view = await self._fetch(round, terms, kept, known=known)
        await self._aside(lambda: self.hosted.keep_model(view))
        await self._aside(lambda: self._stamp(_REFRESHED))
        return view

    async def _fetch(
        self, round: int, terms: Terms, kept: ModelView | None, *, known: bool
    ) -> ModelView:
        """A model; of one who is known, only what changed, where that is shorter."""
        shape = terms.n_rows, terms.width
        if not known or (kept is not None and (kept.round > round or kept.items.shape != shape)):
            kept = None
        try:
            return await self._download(round, terms, kept, known=known)
        except MessageError:
            if kept is None:
                raise
            return await self._download(round, terms, None, known=known)

    async def _download(
        self, round: int, terms: Terms, kept: ModelView | None, *, known: bool
    ) -> ModelView:
        limit = full_size(terms.n_rows, terms.width) + terms.n_rows + 1024
        since = "" if kept is None else f"?since={kept.round}"
        answer = await self.client.download(f"/v1/model/{round}{since}", limit, resume=known)
        if answer.status in (404, 410):
            raise Busy("the round went on while its model was asked for", 0.0)
        body = self._good(answer).body
        view = decode_model(body, n_items=terms.n_rows, width=terms.width, have=kept)
        if view.round != round:
            raise MessageError("the server sent the model of another round")
        return view

    async def _refresh(self, now: Descriptor, terms: Terms, *, known: bool = False) -> None:
        """Keep a model for recommendations while offline: the published version, or, where every
        model is published, the last one, or one a day old."""
        kept = await self._aside(self.hosted.model_round)
        if now.published is not None:
            if kept != now.published:
                await self._keep(now.published, terms, known=known)
            return
        if (
            kept is None
            or (now.state == "finished" and kept != now.model)
            or await self._aside(lambda: self._older(_REFRESHED, _REFRESH_SECONDS))
        ):
            await self._model(now, terms)

    def _good(self, answer: Answer) -> Answer:
        return good(answer, "server", self.client.url)

    def _older(self, name: str, seconds: int) -> bool:
        """Whether what was stamped lies so far back; a clock that jumped counts as far."""
        stamped = self.store.secret(name)
        return stamped is None or abs(self._clock() - float(stamped)) >= seconds

    def _stamp(self, name: str) -> None:
        self.store.set_secret(name, f"{self._clock():.0f}".encode())

    async def _aside(self, work: Callable[[], T]) -> T:
        """In this store's own thread, so that other stores' agents go on."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)


_CHECK_IN_SECONDS = 3600
_LARGEST_LIST = 1 << 26
_ASK_SECONDS = 86400
_OUT = "shut_out"
_ENROLLED, _ADMISSION = "enrolled", "proxy-admission"
_CHECKED_IN, _WAITED = "checked-in", "checked-in-while-waiting"
_ROSTER, _OBJECTED = "roster", "objected-to-catalogue"


class ShutOut(Told):
    """The server takes nothing from this device."""


class Agent(Reader):
    """A device that takes part, if its owner says so."""

    def __init__(
        self,
        store: CohortStore,
        *,
        server: str | None = None,
        plaintext: bool = False,
        poll: float | None = None,
        foreseen: str = "",
        log: Log = lambda event, **details: None,
        draw: Draw = from_system,
        sleep: Sleep = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        pacing: dict[str, Any] = {"poll": poll, "log": log, "draw": draw, "sleep": sleep}
        super().__init__(store, server, plaintext=plaintext, clock=clock, **pacing)
        self.hosted = DeviceSession(store, pack=sealed_by(store), foreseen=foreseen)
        self._asked: tuple[tuple[int, int], bool] | None = None
        self._said: tuple[object, ...] = ()
        self._returned = False
        self._agreed: str | None = None
        self._asks_in = True
        self._roster = ""
        self._plaintext = plaintext
        self._proxy: ShufflerLink | None = None

    @property
    def traffic(self) -> Traffic:
        """With the server and with the proxy, if there is one."""
        if self._proxy is None:
            return self.client.traffic
        return self.client.traffic + self._proxy.client.traffic

    async def run(self, *, once: bool = False, until_finished: bool = False) -> None:
        self._returned = not once
        await super().run(once=once, until_finished=until_finished)

    async def rest(self) -> None:
        await self.client.rest()
        if self._proxy is not None:
            await self._proxy.client.rest()

    async def close(self) -> None:
        """Leave the server and wait for what is being written."""
        await self.rest()
        await asyncio.to_thread(self._worker.shutdown)

    async def visit(self) -> Descriptor:
        """Ask once, and do what there is to do."""
        self.tally.visits += 1
        now = await self._look()
        self._roster = now.roster
        try:
            terms = await self._meet(now)
        except OtherItems:
            await self._object(now)
            raise
        if await self._aside(self._takes_part):
            try:
                await self._aside(self.hosted.require_agreed)
                # Whoever has not said to be there since is not asked under changed terms.
                self._returned |= self._agreed not in (None, now.terms)
                self._agreed = now.terms
                await self._serve(now, terms)
            except ShutOut:
                pass  # recommendations go on
            except ConsentError:
                await self._refresh(now, terms)
                if await self._aside(self._takes_part):
                    raise
                return now  # she has changed her mind meanwhile
        await self._refresh(now, terms)
        return now

    async def _serve(self, now: Descriptor, terms: Terms) -> None:
        """What there is to do for one who takes part and has agreed."""
        if now.state == "open":
            await self._aside(lambda: self.hosted.follow(now.round, now.attempt))
        if terms.reporting is not None:
            await self._visit_with_proxy(now, terms)
            return
        if why := await self._aside(lambda: self._objection(terms)):
            self._say_once("nothing sent", now.key, why=why)
            return
        await self._enrol()
        await self._resolve(now, terms)
        if now.state == "open":
            await self._take_part(now, terms)
        elif now.state == "waiting" and now.key > (0, 0):
            await self._check_in_waiting(now)
        if await self._aside(self._roster_is_new):
            # It may be this device: it hears so, whether a round opens or not. That all the others
            # ask, too, is spread over the time in which each of them looks.
            await self._say_present(now, secrets.token_bytes(NONCE_BYTES))

    async def _visit_with_proxy(self, now: Descriptor, terms: Terms) -> None:
        """The server is told once that the device is there, if it will send anything at all, and
        nothing ever again; what leaves goes to the proxy."""
        willing = await self._aside(lambda: may_report(self.store, terms))
        if willing:
            await self._enrol(admission=True)
        if now.state == "open":
            if now.model != now.round:
                raise MessageError("the server shows the model of another round than the open one")
            await self._resolve(now, terms)
            if willing:
                await self._take_part(now, terms)
            elif await self._aside(self._takes_part):
                why = "the owner's choice or limit permits no report; see `sottovoce device status`"
                self._say_once("nothing sent", now.key, why=why)

    # --- what leaves -----------------------------------------------------------------------------

    async def _enrol(self, *, admission: bool = False) -> None:
        """Once: the invitation's token for the right to sign with this device's own key, and, where
        there is a proxy, for the server's word to it."""
        kept = _ADMISSION if admission else _ENROLLED
        if await self._aside(lambda: self.store.secret(kept)):
            return
        out = await self._aside(lambda: expelled(self.store))
        if out is not None and not self._asks_in:
            lately = abs(self._clock() - out.asked) < _ASK_SECONDS
            if lately and not await self._aside(self._roster_is_new):
                raise ShutOut(out.said.key)
        body = await self._aside(self._enrolment)
        leaving = await self._aside(lambda: self.hosted.contact("enrolment", "server", body))
        answer = await self.client.post("/v1/enrol", leaving)
        if answer.reason == _OUT:
            raise await self._told_out(answer)
        if answer.status == 403:
            raise KeyTrouble(
                "the server did not accept the invitation, which may have been used before; ask "
                "the operator for another one"
            )
        told = self._good(answer).table()
        number = told.get("number")
        if number != self.number:
            raise MessageError(
                f"the server knows this device as number {number}, the invitation as {self.number};"
                " ask the operator for another one"
            )
        self._asks_in = True
        if out is not None:
            await self._aside(lambda: forget_expulsion(self.store))
        if admission:
            word = admission_in(told)
            await self._aside(lambda: self.store.set_secret(_ADMISSION, word))
        await self._aside(lambda: self._stamp(_ENROLLED))
        await self._checked_in()
        self._log("enrolled" if out is None else "let in again")

    async def _told_out(self, answer: Answer) -> ShutOut:
        """The server has shut this device out, and nothing leaves any more: but for a question
        whether that still holds, when the agent is started, when somebody was shut out or let in,
        and once a day."""

        def keep() -> Expulsion:
            keep_expulsion(self.store, answer.detail, self._clock())
            self.store.set_secret(_ENROLLED, b"")
            self._keep_roster()
            return expelled(self.store) or Expulsion(answer.detail, 0.0, 0.0)

        out, first = await self._aside(keep), self._asks_in
        self._asks_in = False
        if first:
            self._log("shut out", why=answer.detail)
        return ShutOut(out.said.key)

    def _enrolment(self) -> bytes:
        """The same bytes whenever it is asked for."""
        return enrolment(self._signing_key(), self._invitation)

    async def _resolve(self, now: Descriptor, terms: Terms) -> None:
        """Send again what left before and was never answered, the very same bytes; through a proxy
        only while its round is open."""
        prepared = await self._aside(self.hosted.unresolved)
        if prepared is None:
            return
        if terms.reporting is not None and prepared.round != now.round:
            why = "the round went on before it was confirmed"
            await self._aside(lambda: self.hosted.refused(prepared.round, prepared.attempt, why))
            self.tally.refused += 1
            self._log("refused", round=prepared.round, attempt=prepared.attempt, why=why)
            return
        await self._send(prepared, now, terms)

    async def _take_part(self, now: Descriptor, terms: Terms) -> None:
        latest = await self._aside(self.hosted.latest)
        if latest is not None and (latest.round, latest.attempt) == now.key:
            if latest.state in ("arrived", "refused"):
                return
        elif not await self._is_asked(now):
            await self._check_in(now)
            return
        signs = terms.reporting is None  # what leaves has this device's number
        if now.published is not None:
            # What is learnt may be how the two compare.
            await self._refresh(now, terms, known=signs)
        view = await self._model(now, terms, known=signs)
        try:
            prepared = await self._aside(
                lambda: self.hosted.prepare(view, now.attempt, summed=False)
            )
        except ConsentError as error:
            self._say_once("nothing sent", now.key, why=str(error))
            return
        if isinstance(prepared, Nothing):
            self._say_once("nothing sent", now.key, why=words(prepared.kind))
        elif prepared.state in ("prepared", "left"):
            await self._send(prepared, now, terms)

    async def _send(self, prepared: Prepared, now: Descriptor, terms: Terms) -> None:
        """Let a report leave, and write down what became of it."""
        if terms.reporting is not None:
            # While the proxy cannot be reached nothing leaves, and nothing is spent.
            await self._proxy_of(terms).ready(
                await self._aside(self._signing_key),
                await self._aside(lambda: self.store.secret(_ADMISSION) or b""),
            )
        try:
            leaving = await self._aside(lambda: self.hosted.leaving(prepared))
        except ConsentError as error:
            self._log("nothing sent", round=prepared.round, why=str(error))
            return
        if terms.reporting is not None:
            await self._send_to_proxy(prepared, leaving, now, terms)
            return
        round, attempt = prepared.round, prepared.attempt
        sign = await self._signer("report", round, attempt, prepared.nonce)
        sealed = leaving.wrapped(sign)
        body = body_of(sealed)
        await self._aside(lambda: self.hosted.sent_as(prepared, body))
        told = {DIGEST_HEADER: digest_of(body)}
        answer = await self.client.post("/v1/reports", sealed, headers=told)
        details: dict[str, Any] = {"round": round, "attempt": attempt, "bytes": len(sealed)}
        if terms.link.adds_up is None:
            details["rows"] = report_rows(prepared.message)
        if 200 <= answer.status < 300 or (answer.status, answer.reason) == (409, "replay"):
            await self._aside(lambda: self.hosted.arrived(round, attempt))
            if answer.status < 300:  # else it says nothing of now
                await self._aside(self._keep_roster)
            self.tally.counted += 1
            traffic = self.client.traffic
            self._log("counted", **details, sent=traffic.sent, received=traffic.received)
            return
        if answer.status in (404, 405, 426):
            self._good(answer)
        if answer.reason == "unknown_device":
            # The server has forgotten the device; its invitation may still be good.
            await self._aside(lambda: self.store.set_secret(_ENROLLED, b""))
        reason = answer.reason or f"status {answer.status}"
        await self._aside(lambda: self.hosted.refused(round, attempt, reason))
        self.tally.refused += 1
        self._log("refused", **details, reason=reason, why=answer.detail)
        if reason == _OUT:
            raise await self._told_out(answer)

    async def _send_to_proxy(
        self, prepared: Prepared, leaving: Leaving, now: Descriptor, terms: Terms
    ) -> None:
        if not now.report_key:
            raise MessageError("the server did not say to which key reports are to be sealed")
        proxy, round, attempt = self._proxy_of(terms), prepared.round, prepared.attempt
        fate = await proxy.send(prepared.nonce, leaving, now.report_key)
        details: dict[str, Any] = {"round": round, "attempt": attempt, "bytes": fate.bytes}
        if fate.state == "arrived":
            await self._aside(lambda: self.hosted.arrived(round, attempt))
            self.tally.counted += 1
            traffic = proxy.client.traffic
            self._log("counted", **details, sent=traffic.sent, received=traffic.received)
            return
        await self._aside(lambda: self.hosted.refused(round, attempt, fate.reason))
        self.tally.refused += 1
        self._log("refused", **details, reason=fate.reason, why=fate.detail)

    def _proxy_of(self, terms: Terms) -> ShufflerLink:
        if self._proxy is None or self._proxy.terms != terms:
            self._proxy = ShufflerLink(self.hosted, terms, self._aside, plaintext=self._plaintext)
        return self._proxy

    async def _is_asked(self, now: Descriptor) -> bool:
        """Whether this device is asked in the open round."""
        if now.selection == "all":
            return True
        if self._asked is None or self._asked[0] != now.key:
            path = f"/v1/rounds/{now.round}/{now.attempt}/selected"
            answer = await self.client.get(path, limit=_LARGEST_LIST, packed=True)
            if answer.status in (404, 410):
                return False
            body = self._good(answer).body
            if len(body) % 4:
                raise MessageError("the server's list of devices is cut short")
            asked = bool((np.frombuffer(body, "<u4") == self.number).any())
            self._asked = now.key, asked
        return self._asked[1]

    async def _check_in(self, now: Descriptor) -> None:
        """Tell a server that may have given this device up that it is there: when the agent was
        started, and then at most once an hour."""
        due = await self._aside(lambda: self._older(_CHECKED_IN, _CHECK_IN_SECONDS))
        if not due and not self._returned:
            return
        await self._say_present(now, secrets.token_bytes(NONCE_BYTES))

    async def _object(self, now: Descriptor) -> None:
        """Tell the server, once for each catalogue, that this device refuses it: the operator is
        not to look for a device that is silent. Only a device that checks in anyway says so."""
        seen = await self._aside(lambda: self.store.secret(_OBJECTED)) or b""
        if now.catalogue.encode() == seen or not await self._aside(lambda: self._checks_in(now)):
            return
        with contextlib.suppress(SottovoceError):  # the objection itself is what is reported
            await self._say_present(now, secrets.token_bytes(NONCE_BYTES), OBJECTION)
            self._returned = True  # to be asked again, it says that it is there
            name = now.catalogue.encode()
            await self._aside(lambda: self.store.set_secret(_OBJECTED, name))

    def _checks_in(self, now: Descriptor) -> bool:
        """Whether this device has enrolled, takes part under these terms, and talks to the
        server."""
        terms, pending = self.hosted.terms, self.hosted.pending
        agreed = terms is not None and pending is None and terms.digest() == now.terms
        direct = terms is not None and terms.reporting is None
        return agreed and direct and self._takes_part() and bool(self.store.secret(_ENROLLED))

    async def _say_present(self, now: Descriptor, nonce: bytes, body: bytes = b"") -> None:
        sign = await self._signer("check-in", now.round, now.attempt, nonce)
        leaving = await self._aside(lambda: self.hosted.contact("check-in", "server", sign(body)))
        answer = await self.client.post("/v1/checkin", leaving)
        if answer.reason == _OUT:
            raise await self._told_out(answer)
        if answer.reason == "unknown_device":
            await self._aside(lambda: self.store.set_secret(_ENROLLED, b""))
        if answer.reason == "late":
            return  # the server went on meanwhile; the next visit sees where it is
        self._good(answer)
        await self._checked_in()
        self._log("checked in", round=now.round)

    async def _check_in_waiting(self, now: Descriptor) -> None:
        """The server may be waiting for those it has given up: tell it once for each attempt,
        however short ago it was told before, unless it has this device's report."""
        latest = await self._aside(self.hosted.latest)
        if latest and (latest.round, latest.attempt, latest.state) == (*now.key, "arrived"):
            return
        here = f"{now.round}.{now.attempt}".encode()
        told = await self._aside(lambda: self.store.secret(_WAITED)) == here
        self._returned = self._returned or not told
        await self._check_in(now)
        if not told:
            await self._aside(lambda: self.store.set_secret(_WAITED, here))

    async def _checked_in(self) -> None:
        self._returned = False
        await self._aside(lambda: self._stamp(_CHECKED_IN))
        await self._aside(self._keep_roster)

    # --- helpers ---------------------------------------------------------------------------------

    def _roster_is_new(self) -> bool:
        """Whether somebody was shut out or let in since the server last told this device that it
        is in, or out."""
        return bool(self._roster) and self.store.secret(_ROSTER) != self._roster.encode()

    def _keep_roster(self) -> None:
        """The server has told this device so just now."""
        if self._roster_is_new():
            self.store.set_secret(_ROSTER, self._roster.encode())

    def _objection(self, terms: Terms) -> str:
        """Why nothing can leave under her choice, in a sentence, so that nobody is told that she is
        there; empty where something may."""
        choice, filters = self.store.choice(self.number), terms.algorithm.attributes
        known = {each.name for each in filters}
        missing = [name for name in choice.hidden_attributes if name not in known]
        why = objection(terms, choice, missing, noisy_sums=has_noise(terms.link))
        if why is not None:
            return say(why.said)
        fits = may_report(self.store, terms)
        return "" if fits else "the owner's choice or limit permits no report"

    def _takes_part(self) -> bool:
        return bool(self.store.choices().takes_part.all())

    def _signing_key(self) -> Ed25519PrivateKey:
        return signing_key(self.store)

    async def _signer(
        self, purpose: Purpose, round: int, attempt: int, nonce: bytes
    ) -> Callable[[bytes], bytes]:
        """Puts a body into this device's signed envelope."""
        key = await self._aside(self._signing_key)
        federation = self._invitation.federation
        about = {"number": self.number, "round": round, "attempt": attempt}
        return lambda body: seal(key, federation, purpose, **about, nonce=nonce, body=body)

    def _say_once(self, event: str, key: tuple[int, int], *, why: str) -> None:
        if self._said != (event, key, why):
            self._said = (event, key, why)
            self._log(event, round=key[0], attempt=key[1], why=why)
