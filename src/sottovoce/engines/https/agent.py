"""The device agent: asks the server whether there is a round, learns at home, and sends what the
owner permits. Nothing is sent for an owner who takes no part: such a device only reads what is
published.

What is sent is durable in the store before its first byte leaves, and sent again, the very same
bytes, until the server has said what became of it; so an agent may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce.engines.https.agent_checks import catalogue_items, catalogue_limit, identity
from sottovoce.engines.https.client import Answer, Busy, Client, loopback
from sottovoce.engines.https.descriptor import Descriptor
from sottovoce.engines.https.pacing import Draw, Pace, from_system
from sottovoce.engines.https.signing import NONCE_BYTES, Purpose, seal
from sottovoce.engines.versions import decode_model, full_size
from sottovoce.errors import (
    ConsentError,
    KeyTrouble,
    MessageError,
    ServiceError,
    SottovoceError,
    Unreachable,
    VersionMismatch,
)
from sottovoce.messages import ModelView, decode
from sottovoce.parties.hosted import Hosted, Prepared
from sottovoce.parties.store import CohortStore
from sottovoce.terms import PROTOCOL, Terms

T = TypeVar("T")
Log = Callable[..., None]
"""Takes an event and its details, none of them private."""

_KEPT_OPEN = 2.0
"""A connection outlives waits up to so many seconds."""
_CHECK_IN_SECONDS = 3600
_REFRESH_SECONDS = 86400
_LARGEST_LIST = 1 << 26
_KEY, _ENROLLED = "signing-key", "enrolled"
_CHECKED_IN, _WAITED, _REFRESHED = "checked-in", "checked-in-while-waiting", "refreshed"
_FAULTS = (ArithmeticError, LookupError, MemoryError, TypeError, ValueError)
"""What may be raised by an answer that nobody thought of."""


@dataclass(slots=True)
class Tally:
    """What an agent has done since it was started."""

    visits: int = 0
    counted: int = 0
    """Reports that were acknowledged."""
    refused: int = 0
    failures: int = 0


class Agent:
    """One device: one store, one server."""

    def __init__(
        self,
        store: CohortStore,
        *,
        server: str | None = None,
        plaintext: bool = False,
        poll: float | None = None,
        log: Log = lambda event, **details: None,
        draw: Draw = from_system,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.hosted = Hosted(store)
        self.tally = Tally()
        self.number, self._invitation = identity(store)
        url = server or self._invitation.server
        self.client = Client(url, self._invitation.ca, plaintext=plaintext)
        self._pace = Pace(poll, draw, near=loopback(url))
        self._log, self._sleep, self._clock = log, sleep, clock
        self._worker = ThreadPoolExecutor(1, "store")
        self._known: tuple[str, Descriptor] | None = None
        self._asked: tuple[tuple[int, int], bool] | None = None
        self._said: tuple[object, ...] = ()
        self._returned = False

    async def run(self, *, once: bool = False, until_finished: bool = False) -> None:
        """Visit the server until cancelled, or as long as told. Whatever may pass is waited for;
        raises what the owner must settle where the caller waits for an end."""
        self._returned = not once
        while True:
            try:
                now = await self._guarded_visit()
            except SottovoceError as error:
                self.tally.failures += 1
                lasting = isinstance(error, VersionMismatch | ConsentError)
                if once or (until_finished and lasting):
                    await self.client.rest()
                    raise
                wait = self._pace.after_failure(error.retry_after if isinstance(error, Busy) else 0)
                self._log("failed", why=str(error), retry_seconds=round(wait, 1))
                await self.client.rest()
            else:
                if once or (until_finished and now.state == "finished"):
                    await self.client.rest()
                    return
                wait = self._pace.after_success(now.poll_seconds)
                if wait > _KEPT_OPEN:
                    await self.client.rest()
            await self._sleep(wait)

    async def close(self) -> None:
        """Leave the server and wait for what is being written."""
        await self.client.rest()
        await asyncio.to_thread(self._worker.shutdown)

    async def visit(self) -> Descriptor:
        """Ask once, and do what there is to do."""
        self.tally.visits += 1
        now = await self._look()
        terms = await self._agree(now)
        if await self._aside(self._takes_part):
            try:
                await self._aside(self.hosted.require_seen)
            except ConsentError:
                await self._refresh(now, terms)
                raise
            await self._enrol()
            if now.state == "open":
                await self._aside(lambda: self.hosted.follow(now.round, now.attempt))
            await self._resolve(terms)
            if now.state == "open":
                await self._take_part(now, terms)
            elif now.state == "waiting" and now.key > (0, 0):
                await self._check_in_waiting(now)
        await self._refresh(now, terms)
        return now

    async def _guarded_visit(self) -> Descriptor:
        """Visit; a fault of ours is this store's trouble, like any other, and not its
        neighbours'."""
        try:
            return await self.visit()
        except _FAULTS as error:
            # Neither its words nor its values: they may be private.
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} in {place.name}, line {place.lineno}"
            raise ServiceError(
                f"the store in {self.store.path} could not go on ({where}); if it lasts, tell the "
                "authors of Sottovoce"
            ) from error

    # --- what is published -----------------------------------------------------------------------

    async def _look(self) -> Descriptor:
        """The round descriptor; a short question where nothing has changed."""
        tag = self._known[0] if self._known else ""
        answer = await self.client.get("/v1/round", etag=tag)
        if answer.status == 304 and self._known:
            return self._known[1]
        now = Descriptor.from_table(self._good(answer).table())
        expected = self._invitation.federation
        if now.federation != expected:
            raise MessageError(
                f"the server at {self.client.url} serves another federation than {expected}, which "
                "the invitation names; nothing was sent to it"
            )
        self._known = (answer.etag, now) if answer.etag else None
        return now

    async def _agree(self, now: Descriptor) -> Terms:
        """The terms in force. The first ones are kept; others raise until the owner agrees."""
        terms = await self._aside(lambda: self.hosted.terms)
        if terms is None or terms.digest() != now.terms:
            told = Terms.from_table(self._good(await self.client.get("/v1/terms")).table())
            if told.digest() != now.terms or told.federation != now.federation:
                self._known = None
                raise Unreachable(f"the server at {self.client.url} is about to change its terms")
            await self._aside(lambda: self.hosted.agree(told))
            terms = told
        if len(await self._aside(self.store.catalogue)) != terms.n_items:
            await self._fetch_catalogue(terms)
        return terms

    async def _fetch_catalogue(self, terms: Terms) -> None:
        answer = await self.client.get("/v1/catalogue", limit=catalogue_limit(terms), packed=True)
        items = catalogue_items(self._good(answer).table(), terms)
        await self._aside(lambda: self.store.set_catalogue(items))

    async def _model(self, now: Descriptor, terms: Terms) -> ModelView:
        """The published model, of which only what changed is fetched where that is shorter."""
        kept = await self._aside(self.hosted.model)
        if kept is not None and kept.round == now.model:
            return kept
        if kept is not None and (
            kept.round > now.model or kept.items.shape != (terms.n_items, terms.width)
        ):
            kept = None
        try:
            view = await self._download(now, terms, kept)
        except MessageError:
            if kept is None:
                raise
            view = await self._download(now, terms, None)
        await self._aside(lambda: self.hosted.keep_model(view))
        await self._aside(lambda: self._stamp(_REFRESHED))
        return view

    async def _download(self, now: Descriptor, terms: Terms, kept: ModelView | None) -> ModelView:
        limit = full_size(terms.n_items, terms.width) + terms.n_items + 1024
        since = "" if kept is None else f"?since={kept.round}"
        answer = await self.client.download(f"/v1/model/{now.model}{since}", limit)
        if answer.status in (404, 410):
            self._known = None
            raise Busy("the round went on while its model was asked for", 0.0)
        body = self._good(answer).body
        view = decode_model(body, n_items=terms.n_items, width=terms.width, have=kept)
        if view.round != now.model:
            raise MessageError("the server sent the model of another round")
        return view

    async def _refresh(self, now: Descriptor, terms: Terms) -> None:
        """Keep a model for recommendations while offline: the last one, or one a day old."""
        kept = await self._aside(self.hosted.model)
        if (
            kept is None
            or (now.state == "finished" and kept.round != now.model)
            or await self._aside(lambda: self._older(_REFRESHED, _REFRESH_SECONDS))
        ):
            await self._model(now, terms)

    # --- what leaves -----------------------------------------------------------------------------

    async def _enrol(self) -> None:
        """Once: the invitation's token for the right to sign with this device's own key."""
        if await self._aside(lambda: self.store.secret(_ENROLLED)):
            return
        key = await self._aside(self._signing_key)
        content = {
            "protocol": PROTOCOL,
            "token": self._invitation.token,
            "public_key": key.public_key().public_bytes_raw().hex(),
        }
        answer = await self.client.post("/v1/enrol", json.dumps(content).encode())
        if answer.status == 403:
            raise KeyTrouble(
                "the server did not accept the invitation, which may have been used before; ask "
                "the operator for another one"
            )
        number = self._good(answer).table().get("number")
        if number != self.number:
            raise MessageError(
                f"the server knows this device as number {number}, the invitation as {self.number};"
                " ask the operator for another one"
            )
        await self._aside(lambda: self._stamp(_ENROLLED))
        await self._checked_in()
        self._log("enrolled")

    async def _resolve(self, terms: Terms) -> None:
        """Send again what left before and was never answered, the very same bytes."""
        prepared = await self._aside(self.hosted.unresolved)
        if prepared is not None:
            await self._send(prepared, terms)

    async def _take_part(self, now: Descriptor, terms: Terms) -> None:
        latest = await self._aside(self.hosted.latest)
        if latest is not None and (latest.round, latest.attempt) == now.key:
            if latest.state in ("arrived", "refused"):
                return
        elif not await self._is_asked(now):
            await self._check_in(now)
            return
        view = await self._model(now, terms)
        try:
            prepared = await self._aside(
                lambda: self.hosted.prepare(view, now.attempt, summed=False)
            )
        except ConsentError as error:
            self._say_once("nothing sent", now.key, why=str(error))
            return
        if prepared is None:
            self._say_once("nothing sent", now.key, why="there is no history to learn from yet")
        elif prepared.state in ("prepared", "left"):
            await self._send(prepared, terms)

    async def _send(self, prepared: Prepared, terms: Terms) -> None:
        """Let a report leave, and write down what became of it."""
        try:
            await self._aside(lambda: self.hosted.leaving(prepared))
        except ConsentError as error:
            self._log("nothing sent", round=prepared.round, why=str(error))
            return
        round, attempt = prepared.round, prepared.attempt
        sealed = await self._seal("report", round, attempt, prepared.nonce, prepared.message)
        answer = await self.client.post("/v1/reports", sealed)
        details: dict[str, Any] = {"round": round, "attempt": attempt, "bytes": len(sealed)}
        with contextlib.suppress(MessageError):
            shape = {"n_items": terms.n_items, "width": terms.width}
            details["rows"] = len(decode(prepared.message, sender=0, round=round, **shape))
        if 200 <= answer.status < 300 or (answer.status, answer.reason) == (409, "replay"):
            await self._aside(lambda: self.hosted.arrived(round, attempt))
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

    async def _is_asked(self, now: Descriptor) -> bool:
        """Whether this device is asked in the open round."""
        if now.selection == "all":
            return True
        if self._asked is None or self._asked[0] != now.key:
            path = f"/v1/rounds/{now.round}/{now.attempt}/selected"
            answer = await self.client.get(path, limit=_LARGEST_LIST, packed=True)
            if answer.status in (404, 410):
                self._known = None
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
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = await self._seal("check-in", now.round, now.attempt, nonce, b"")
        answer = await self.client.post("/v1/checkin", sealed)
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

    # --- helpers ---------------------------------------------------------------------------------

    def _takes_part(self) -> bool:
        return bool(self.store.choices().takes_part.all())

    def _signing_key(self) -> Ed25519PrivateKey:
        """This device's own key, made here at first use and durable before it is used."""
        kept = self.store.secret(_KEY)
        if kept is not None:
            return Ed25519PrivateKey.from_private_bytes(kept)
        key = Ed25519PrivateKey.generate()
        self.store.set_secret(_KEY, key.private_bytes_raw())
        return key

    async def _seal(
        self, purpose: Purpose, round: int, attempt: int, nonce: bytes, body: bytes
    ) -> bytes:
        key = await self._aside(self._signing_key)
        return seal(
            key,
            self._invitation.federation,
            purpose,
            number=self.number,
            round=round,
            attempt=attempt,
            nonce=nonce,
            body=body,
        )

    def _good(self, answer: Answer) -> Answer:
        """The answer, where it is one of success."""
        if 200 <= answer.status < 300:
            return answer
        if answer.status == 426:
            raise VersionMismatch(
                "the server speaks another version of the protocol; install the same release of "
                "Sottovoce on both sides"
            )
        if answer.status == 404:
            raise Unreachable(f"what answers at {self.client.url} is no server of Sottovoce")
        said = f" ({answer.reason}: {answer.detail})" if answer.reason else ""
        raise Unreachable(
            f"the server at {self.client.url} refused with status {answer.status}{said}"
        )

    def _older(self, name: str, seconds: int) -> bool:
        """Whether what was stamped lies so far back; a clock that jumped counts as far."""
        stamped = self.store.secret(name)
        return stamped is None or abs(self._clock() - float(stamped)) >= seconds

    def _stamp(self, name: str) -> None:
        self.store.set_secret(name, f"{self._clock():.0f}".encode())

    def _say_once(self, event: str, key: tuple[int, int], *, why: str) -> None:
        if self._said != (event, key, why):
            self._said = (event, key, why)
            self._log(event, round=key[0], attempt=key[1], why=why)

    async def _aside(self, work: Callable[[], T]) -> T:
        """In this store's own thread, so that other stores' agents go on."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)
