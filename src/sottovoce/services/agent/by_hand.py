"""An agent that sends only when its user says so: it reads what is published and shows what would
leave.

The door makes what is shown and keeps it in the store, so exactly these bytes leave. If anything
has changed since she looked, nothing leaves. What another agent would send by itself (an enrolment,
a check-in) is shown, too, and waits for the same yes.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from sottovoce.core.waiting import words
from sottovoce.errors import ConsentError, MessageError
from sottovoce.services.agent.agent import (
    _ADMISSION,
    _CHECK_IN_SECONDS,
    _CHECKED_IN,
    _ENROLLED,
    _WAITED,
    Agent,
    ShutOut,
)
from sottovoce.services.agent.loop import FAULTS, Sleep
from sottovoce.stores import word
from sottovoce.stores.device import CohortStore
from sottovoce.stores.prepared import Nothing, Prepared
from sottovoce.stores.session import expelled
from sottovoce.wire.descriptor import Descriptor
from sottovoce.wire.signing import seal
from sottovoce.wire.terms import Terms

What = Literal["enrolment", "check-in", "report"]
Why = Literal[
    "", "stopped", "no part", "not agreed", "no round", "not asked", "sent", "nothing", "choice",
    "shut out", "declined",
]  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class ShownMessage:
    """One request that would leave."""

    what: What
    to: Literal["server", "shuffler"]
    body: bytes
    exact: bool
    """Whether these are the bytes at the socket; if not, they are sealed anew on the way."""

    def __repr__(self) -> str:
        return f"<ShownMessage {self.what}, {len(self.body):,} bytes, redacted>"


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    """What would leave now."""

    messages: tuple[ShownMessage, ...] = ()
    report: Prepared | None = None
    why: Why = ""
    """Why there is no report among them."""
    detail: str = ""
    """The same in a sentence, where the device has more to say."""

    def __repr__(self) -> str:
        return f"<Shown of {len(self.messages)} messages, redacted>"

    @property
    def name(self) -> str:
        """A name for exactly these bytes; empty if nothing would leave."""
        if not self.messages:
            return ""
        # Another report has another name, even if its bytes happen to be the same.
        digest = hashlib.sha256(b"" if self.report is None else self.report.nonce)
        for message in self.messages:
            digest.update(hashlib.sha256(message.what.encode() + message.body).digest())
        return digest.hexdigest()[:32]

    @property
    def words(self) -> set[str]:
        """The names by which a user says yes to these messages (`stores.word`)."""
        party = {"server": "server", "shuffler": "proxy"}
        contacts = {
            word.of_contact(one.what, party[one.to], one.body)
            for one in self.messages
            if one.what != "report"
        }
        return contacts if self.report is None else {*contacts, word.of_report(self.report.nonce)}


class ByHand(Agent):
    """A device that takes part when its user presses a button."""

    async def look(self) -> Descriptor:
        """Return the state of the round. This sends nothing of hers."""
        try:
            return await self._look()
        finally:
            await self.rest()

    async def read(self) -> Descriptor:
        """Return the state of the round, and store what is published: terms, catalogue, model."""
        try:
            now = await self._look()
            await self._refresh(now, await self._meet(now))
            return now
        finally:
            await self.rest()

    async def show(self) -> Shown:
        """Return what would leave now. This reads what is published, and sends nothing of hers."""
        try:
            return (await self._guarded_show())[0]
        finally:
            await self.rest()

    async def press(self, name: str) -> Shown:
        """Send what was shown under this name, and return it. Raise, and send nothing, if something
        else would leave by now."""
        try:
            shown, now, terms = await self._shown_as(name)
            await self._aside(lambda: word.allow(self.store, shown.words))
            await self._press(shown, now, terms)
            return shown
        finally:
            await self.rest()

    async def allow(self, name: str) -> Shown:
        """Note her yes to what was shown under this name, for the agent that runs. Raise if
        something else would leave by now."""
        try:
            shown, _, _ = await self._shown_as(name)
            await self._aside(lambda: word.allow(self.store, shown.words))
            return shown
        finally:
            await self.rest()

    async def decline(self, name: str) -> Shown:
        """Note her no to what was shown under this name: it does not leave, and costs nothing.
        Raise if something else would leave by now, or if it has left."""
        try:
            shown, _, _ = await self._shown_as(name)
            await self._aside(lambda: self._decline(shown))
            return shown
        finally:
            await self.rest()

    def _decline(self, shown: Shown) -> None:
        report = shown.report
        with self.store.file.transaction():
            if report is not None:
                self.hosted.withhold(report)
            word.allow(self.store, ())
            key = None if report is None else (report.round, report.attempt)
            word.decline(self.store, shown.name, key)

    async def _shown_as(self, name: str) -> tuple[Shown, Descriptor, Terms]:
        shown, now, terms = await self._guarded_show()
        if not name or shown.name != name or now is None or terms is None:
            raise ConsentError(
                "what would leave is not what was shown any more, so that nothing was sent; look "
                "again"
            )
        return shown, now, terms

    async def _press(self, shown: Shown, now: Descriptor, terms: Terms) -> None:
        """Send what is shown."""
        for message in shown.messages:
            if message.what == "enrolment" and message.to == "server":
                self._asks_in = True  # she asks for it herself
                await self._enrol(admission=terms.reporting is not None)
            elif message.what == "check-in":
                await self._say_present(now, await self._aside(lambda: self._nonce(now)))
                await self._aside(lambda: self._was_present(now))
            elif message.what == "report" and shown.report is not None:
                # This introduces her to the shuffler first, if it does not know her.
                await self._send(shown.report, now, terms)

    async def _guarded_show(self) -> tuple[Shown, Descriptor | None, Terms | None]:
        try:
            return await self._show()
        except FAULTS:  # the error may hold private values, so it is not passed on
            raise MessageError("the server says what makes no sense") from None

    async def _show(self) -> tuple[Shown, Descriptor | None, Terms | None]:
        if self.stopped:
            return Shown(why="stopped"), None, None
        now = await self._look()
        try:
            terms = await self._meet(now)
        except ConsentError:  # she has not agreed to these terms
            return Shown(why="not agreed"), now, None
        await self._refresh(now, terms)
        if not await self._aside(self._takes_part):
            return Shown(why="no part"), now, terms
        if await self._aside(lambda: self.hosted.pending) is not None:
            return Shown(why="not agreed"), now, terms
        return await self._would_leave(now, terms), now, terms

    async def _would_leave(self, now: Descriptor, terms: Terms) -> Shown:
        """Return what would leave of a user who takes part and has agreed."""
        if why := await self._aside(lambda: self._objection(terms)):
            return Shown(why="choice", detail=why)
        if now.state == "open":
            await self._aside(lambda: self.hosted.follow(now.round, now.attempt))
        messages: list[ShownMessage] = []
        kept = _ENROLLED if terms.reporting is None else _ADMISSION
        if not await self._aside(lambda: self.store.secret(kept)):
            messages.append(
                ShownMessage("enrolment", "server", await self._aside(self._enrolment), True)
            )
            if await self._aside(lambda: expelled(self.store)) is not None:
                return Shown(tuple(messages), None, "shut out")
        report, why, detail = await self._report(now, terms)
        if why == "declined":
            return Shown(why=why)
        if report is not None:
            if terms.reporting is not None:
                messages += await self._aside(lambda: self._introduction(terms))
            messages.append(await self._aside(lambda: self._message(report, terms)))
        elif not messages and await self._aside(lambda: self._says_present(now, why)):
            messages.append(await self._present(now))
        shown = Shown(tuple(messages), report, why, detail)
        said_no = await self._aside(lambda: word.declined(self.store)[0])
        return Shown(why="declined") if shown.name and shown.name == said_no else shown

    async def _report(self, now: Descriptor, terms: Terms) -> tuple[Prepared | None, Why, str]:
        """Return the report that would leave, or why none would."""
        before = await self._aside(self.hosted.unresolved)
        if before is not None:
            return before, "", ""
        if now.state != "open":
            return None, "no round", ""
        if await self._aside(lambda: word.declined(self.store)[1]) == now.key:
            return None, "declined", ""
        latest = await self._aside(self.hosted.latest)
        if latest is not None and (latest.round, latest.attempt) == now.key:
            if latest.state in ("arrived", "refused"):
                return None, "sent", ""
        elif not await self._is_asked(now):
            return None, "not asked", ""
        view = await self._model(now, terms)
        try:
            found = await self._aside(lambda: self.hosted.prepare(view, now.attempt, summed=False))
        except ConsentError as error:
            return None, "choice", str(error)
        if isinstance(found, Nothing):
            return None, "nothing", words(found.kind)
        return found, "", ""

    def _introduction(self, terms: Terms) -> list[ShownMessage]:
        """Return what introduces her to the shuffler, if that has not been done."""
        word = self.store.secret(_ADMISSION) or b""
        body = self._proxy_of(terms).introduction(self._signing_key(), word)
        return [] if body is None else [ShownMessage("enrolment", "shuffler", body, False)]

    def _message(self, report: Prepared, terms: Terms) -> ShownMessage:
        if terms.reporting is not None:
            return ShownMessage("report", "shuffler", report.message, False)
        about = {"number": self.number, "round": report.round, "attempt": report.attempt}
        body = seal(
            self._signing_key(), self._invitation.federation, "report",
            **about, nonce=report.nonce, body=report.message,
        )  # fmt: skip
        return ShownMessage("report", "server", body, True)

    def _says_present(self, now: Descriptor, why: Why) -> bool:
        """Whether a check-in would leave. A user who is asked each time is asked about it only as
        often as an agent would send one by itself."""
        if not word.asks_first(self.store):
            return why == "not asked"
        if why == "not asked":
            return self._older(_CHECKED_IN, _CHECK_IN_SECONDS)
        here = f"{now.round}.{now.attempt}".encode()
        waiting = why == "no round" and now.state == "waiting" and now.key > (0, 0)
        return waiting and self.store.secret(_WAITED) != here

    async def _present(self, now: Descriptor) -> ShownMessage:
        """A check-in with the nonce that it will have if she sends it."""
        nonce = await self._aside(lambda: self._nonce(now))
        sign = await self._signer("check-in", now.round, now.attempt, nonce)
        return ShownMessage("check-in", "server", sign(b""), True)

    def _was_present(self, now: Descriptor) -> None:
        word.forget_presence(self.store)
        if now.state == "waiting":
            self.store.set_secret(_WAITED, f"{now.round}.{now.attempt}".encode())

    def _nonce(self, now: Descriptor) -> bytes:
        return word.presence(self.store, now.key)


_WATCH_SECONDS = 0.5
"""Seconds between two looks for her answer."""


class AskingAgent(ByHand):
    """An agent that sends by itself or, if its user wants to be asked each time, after her yes.

    It works out what would leave, logs that it waits for her answer, and sends that very message
    after she has said yes, on her page or with `sottovoce device preview`. When the round moves on,
    it asks again.
    """

    def __init__(self, store: CohortStore, **options: Any) -> None:
        super().__init__(store, **options)
        self._asked_about: Shown | None = None
        """What waits for her answer."""
        self._sleep, self._plain_sleep = self._watch, self._sleep

    async def visit(self) -> Descriptor:
        """Visit the server once, and send what she has said yes to."""
        self._asked_about = None
        if not await self._aside(lambda: word.asks_first(self.store)):
            return await super().visit()
        self.tally.visits += 1
        shown, now, terms = await self._show()
        if shown.why == "not agreed":
            await self._aside(self.hosted.require_agreed)
        if now is None or terms is None:
            raise ConsentError("the store was stopped, or its terms changed, meanwhile")
        if not shown.messages:
            if shown.detail:
                self._say_once("nothing sent", now.key, why=shown.detail)
            return now
        # She said yes to bytes that have left before: they may be sent again.
        again = shown.report is not None and shown.report.state == "left"
        if again or shown.words <= await self._aside(lambda: word.allowed(self.store)):
            with contextlib.suppress(ShutOut):
                await self._press(shown, now, terms)
        else:
            self._asked_about = shown
            self._say_once("waits for your word", now.key, why=self._how(shown))
        return now

    def _how(self, shown: Shown) -> str:
        what = "a report" if shown.report is not None else f"a message ({shown.messages[-1].what})"
        return (
            f"{what} would leave, and nothing does before its user says yes; see `sottovoce device "
            f"preview {self.path} --send` or `sottovoce device page {self.path}`"
        )

    async def _watch(self, seconds: float) -> None:
        """Sleep for so many seconds, or until she has answered."""
        sleep: Sleep = self._plain_sleep
        while self._asked_about is not None and seconds > _WATCH_SECONDS:
            await sleep(_WATCH_SECONDS)
            seconds -= _WATCH_SECONDS
            if await self._aside(self._has_answered):
                return
        await sleep(seconds)

    def _has_answered(self) -> bool:
        waits, store = self._asked_about, self.store
        return waits is None or (
            not word.asks_first(store)
            or waits.words <= word.allowed(store)
            or word.declined(store)[0] == waits.name
        )
