"""The shuffler's HTTP interface: who sends what, and what is answered. Nothing of a request is
logged. Devices send to the first shuffler of a chain, and each of the others gets whole batches of
the one before it."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from sottovoce.core.links import LAYER_BYTES
from sottovoce.services.kit.answers import (
    Receive,
    Scope,
    Send,
    answer,
    answer_json,
    bears,
    content_length,
    discard,
    read_body,
    table_of,
)
from sottovoce.services.kit.application import Hosting, HttpApplication, Pulse
from sottovoce.services.kit.connections import Limits, Room, Share, sender_of
from sottovoce.services.kit.cors import NO_ORIGINS, Origins
from sottovoce.services.kit.metrics import Figure, by
from sottovoce.services.kit.questions import Challenges
from sottovoce.services.kit.serving import Beside, Parts, Service, Start
from sottovoce.services.kit.writer import GroupWriter
from sottovoce.services.shuffler_handover import Forwarder, Goal
from sottovoce.stores.server_folder import is_admitted
from sottovoce.stores.shuffler import Decision, ShufflerStore
from sottovoce.stores.shuffler_folder import ShufflerFolder, open_shuffler_folder
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.refusals import Reason, Refused, read_or_refuse
from sottovoce.wire.shuffled import (
    ACCOUNT_BYTES,
    ACCOUNT_KEY_BYTES,
    CHALLENGE_BYTES,
    LONGEST_PART,
    BatchPart,
    SealedSubmission,
    decode_part,
    decode_submission,
    is_authentic,
    submission_bytes,
)

_SMALL_BODY = 4096
_KNOWN_ACCOUNTS = 100_000
_LOOK_SECONDS = 2.0
_DECIDED: dict[str, str] = {
    "replay": "this submission was accepted before",
    "second_submission": "this account has already sent in this round",
    "late": "the round is over or the tier's batch has gone; the submission did not count",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShufflerLimits(Limits):
    waiting: int = 256
    """Submissions that wait for the disk."""
    in_flight: int = 64 << 20
    """Bytes of accounts' submissions that wait for the disk."""
    unproven: ClassVar[int] = 64 << 20
    """Bytes that are here of submissions being received of which nobody knows yet who sends
    them."""
    unproven_per_address: ClassVar[int] = 16 << 20
    lag_seconds: float = 0.2
    """A shuffler that is so late with its own work takes nothing more on."""
    enrolments: ClassVar[int] = 64
    """Enrolments that wait."""
    parts: ClassVar[int] = 4
    """Parts of the shuffler before that are received or wait for the disk."""


class Accounts:
    """Accounts and their keys, made from one secret: the same device has the same account, and each
    enrolment gives it another key."""

    def __init__(self, store: ShufflerStore, secret: bytes) -> None:
        self._store, self._secret = store, secret
        self._known: dict[bytes, bytes] = {}
        self._turn = threading.Lock()

    def enrol(self, public_key: bytes) -> tuple[bytes, bytes]:
        """Account and key of a device. The key is good when this returns, those before no more."""
        account = self._made(b"account", public_key, ACCOUNT_BYTES)
        generation = self._store.enrol(account)
        with self._turn:
            self._known.pop(account, None)
        return account, self._key(account, generation)

    def key(self, account: bytes) -> bytes | None:
        found = self._known.get(account)
        if found is not None:
            return found
        with self._turn:  # an enrolment that comes meanwhile takes out what is put in here
            generation = self._store.generation(account)
            if generation is None:
                return None
            if len(self._known) >= _KNOWN_ACCOUNTS:
                self._known.clear()
            found = self._known[account] = self._key(account, generation)
        return found

    def _key(self, account: bytes, generation: int) -> bytes:
        return self._made(b"key", account + generation.to_bytes(8, "little"), ACCOUNT_KEY_BYTES)

    def _made(self, purpose: bytes, content: bytes, size: int) -> bytes:
        made = hashlib.blake2b(content, key=self._secret, person=purpose, digest_size=size)
        return made.digest()


class ShufflerApplication(HttpApplication[ShufflerLimits]):
    """Nothing of a request is kept but its sealed reports and that its account has sent."""

    name, prefix = "the shuffler", "proxy_"

    def __init__(
        self,
        hosting: Hosting[ShufflerLimits],
        folder: ShufflerFolder,
        store: ShufflerStore,
        forwarder: Forwarder,
        origins: Origins = NO_ORIGINS,
    ) -> None:
        """Pages of these `origins` may be devices."""
        super().__init__(hosting)
        limits = hosting.limits
        self._store, self._forwarder = store, forwarder
        self._federation = folder.introduction.federation
        self._verifying_key = bytes.fromhex(folder.introduction.verifying_key)
        self._accounts = Accounts(store, folder.account_secret())
        self._challenges = Challenges()
        self._writer = GroupWriter[SealedSubmission, Decision](
            lambda batch, counts, seen: store.accept(batch, counts),
            hosting,
            limit=limits.waiting,
            accepted=forwarder.wake,
        )
        self._enrolments = self._executor(limits.enrolments)
        self._looks = self._executor(limits.enrolments)
        self._unproven = Room(self.name, limits.unproven, limits.unproven_per_address)
        self._proven = Room(self.name, limits.in_flight, limits.in_flight)
        self._sending: set[bytes] = set()
        self._pulse = Pulse()
        self._ends += [self._pulse.stop, self._writer.close]
        pages = "/v1/terms", "/v1/submissions", "/v1/challenge", "/v1/enrol"
        routes: dict[str, Any] = {
            "/v1/terms": ("GET", self._terms),
            "/v1/agreed": ("GET", self._agreed),
        }
        if folder.introduction.hop:
            self._accepts, self._receiving = folder.introduction.accepts, 0
            self._parts = self._executor(limits.parts)
            routes["/v1/batches"] = "POST", self._take_part
        else:
            routes |= {
                "/v1/submissions": ("POST", self._submit),
                "/v1/challenge": ("GET", self._challenge),
                "/v1/enrol": ("POST", self._enrol),
            }
        self._serve(routes, origins, pages)

    # --- what devices send ------------------------------------------------------------------------

    async def _submit(self, scope: Scope, receive: Receive, send: Send) -> None:
        rules, limits = self._forwarder.rules, self._limits
        if rules is None or self._store.position.round < 0:
            raise Refused("unavailable", "the shuffler has not heard from the server yet")
        if self._pulse.lag > limits.lag_seconds:
            raise self.busy
        size = self._forwarder.size
        longest = submission_bytes(rules.reports, size)
        with Share(self._unproven, sender_of(scope)) as share:
            payload = await read_body(scope, receive, longest, limits.body_seconds, share)
            submission = read_or_refuse(
                decode_submission, payload, rules.reports, len(rules.minimum), size
            )
            key = self._accounts.key(submission.account)
            if key is None:
                raise Refused("unknown_account", "there is no such account; enrol first")
            if not is_authentic(payload, key):
                raise Refused("bad_mac", "the submission was not made with the account's key")
            share.move(self._proven, submission.account)
            await self._take(submission)
        await answer(send, 204, [], b"")

    async def _take(self, submission: SealedSubmission) -> None:
        """One of an account at a time: no device takes the room of many."""
        if submission.account in self._sending:
            raise Refused("too_often", "another submission of this account is on its way")
        self._sending.add(submission.account)
        try:
            await self._check_round(submission)
            # Only now: a look at the round may have found other terms, and a round has one.
            if submission.terms != self._forwarder.terms_name:
                raise Refused("other_terms", "the reports were made under other terms than ours")
            decision = await self._writer.store(submission)
            if decision != "accepted":
                raise _refused(decision)
        finally:
            self._sending.discard(submission.account)

    async def _check_round(self, submission: SealedSubmission) -> None:
        """Raises where the submission is not for what is open now."""
        now = self._store.position
        if submission.round > now.round or (submission.round == now.round and not now.open):
            # The device may have asked the server after the shuffler did.
            await self._forwarder.look(_LOOK_SECONDS)
            now = self._store.position
        if submission.round > now.round or (submission.round == now.round and not now.open):
            raise Refused("early", f"round {submission.round} has not been opened")
        if submission.round < now.round or self._store.gone(submission.round, submission.tier):
            known = self._store.seen(submission)
            if known == submission.mark:
                raise _refused("replay")
            if known is not None:
                raise _refused("second_submission")
            raise _refused("late")
        if submission.key != now.key:
            raise Refused("wrong_key", "the reports are sealed to another key than the round's")

    async def _challenge(self, scope: Scope, receive: Receive, send: Send) -> None:
        content = {"challenge": self._challenges.new().hex()}
        await answer_json(send, content, (b"cache-control", b"no-store"))

    async def _enrol(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._body(scope, receive, _SMALL_BODY)
        asked = _enrolment(body, self._federation)

        def enrol() -> tuple[bytes, bytes]:
            if not is_admitted(self._verifying_key, self._federation, *asked):
                raise Refused("bad_admission", "the server has not admitted this device")
            self._challenges.spend(asked.challenge)
            return self._accounts.enrol(asked.public_key)

        account, key = await self._enrolments(enrol)
        await answer_json(send, {"account": account.hex(), "key": key.hex()})

    # --- what the shuffler before sends -----------------------------------------------------------

    async def _take_part(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/batches: acknowledged when the part is on the disk."""
        if not bears(scope, self._accepts):
            if content_length(scope):
                await discard(receive)
            raise Refused("unknown_proxy", "this needs the token of the shuffler before this one")
        if self._forwarder.rules is None:
            raise Refused("unavailable", "the shuffler has not heard from the server yet")
        if self._receiving >= self._limits.parts:
            raise self.busy
        self._receiving += 1
        try:
            payload = await read_body(scope, receive, LONGEST_PART, self._limits.body_seconds)
            size = self._forwarder.size + LAYER_BYTES
            part = read_or_refuse(decode_part, payload, size)
            del payload
            if part.round > self._store.position.round or not self._store.position.open:
                await self._forwarder.look(_LOOK_SECONDS)
            if await self._parts(lambda: self._store_part(part)):
                self._forwarder.wake()
        finally:
            self._receiving -= 1
        await answer(send, 204, [], b"")

    def _store_part(self, part: BatchPart) -> bool:
        """Whether its batch is whole now. Raises where no honest shuffler would send it."""
        rules = self._forwarder.rules
        if rules is None or part.tier >= len(rules.minimum):
            raise Refused("malformed", "there is no such tier in the terms")
        minimum = rules.minimum[part.tier]
        if part.devices < minimum:
            raise Refused("too_few", "a batch of fewer devices than the terms promise")
        most = part.devices * rules.reports
        if part.parts > most:
            raise Refused("malformed", "a batch has more parts than reports")
        if part.says_dropped and self._forwarder.hop == 1:
            raise Refused("malformed", "the first shuffler opens nothing, and drops no batch so")
        # The first shuffler has all reports of each device; those behind it leave some out.
        first = self._forwarder.hop == 1
        return self._store.take(part, most if first else minimum * rules.reports, most)

    # --- what others ask --------------------------------------------------------------------------

    async def _terms(self, scope: Scope, receive: Receive, send: Send) -> None:
        terms = self._forwarder.terms
        if terms is None:
            raise Refused("unavailable", "the shuffler has not heard from the server yet")
        await answer_json(send, terms.to_table())

    async def _agreed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The names of the terms that are followed here or would be: the server asks before it goes
        by others."""
        names = await self._looks(self._forwarder.names)
        await answer_json(send, {"terms": [name.hex() for name in names]})

    def require_ready(self) -> None:
        super().require_ready()
        self._forwarder.require_marks()

    def figures(self) -> Iterator[Figure]:
        store, now = self._store, self._store.position
        with self._tally.settled() as new:
            refused = Counter(store.refused()) + Counter(new)
        yield Figure("round", "Round of the federation.", now.round)
        yield Figure("open", "Whether it is open.", int(now.open))
        yield Figure("accounts", "Devices that have enrolled.", store.accounts())
        in_flight = self._unproven.bytes + self._proven.bytes
        words = "Bytes of submissions being received or written."
        yield Figure("in_flight_bytes", words, in_flight)
        held = [((str(b.round), str(b.tier), b.state), b.devices) for b in store.held()]
        labels = ("round", "tier", "state")
        yield Figure("held", "Devices whose reports are held.", held, labels)
        yield from self._forwarder.told.figures()
        outcomes = [((outcome, str(tier)), n) for outcome, tier, n in store.outcomes()]
        words = "How often the folder was found to be set back to a copy."
        yield Figure("set_back", words, self._forwarder.set_back, counts=True)
        words = "Devices whose reports were handed over or dropped."
        yield Figure("devices", words, outcomes, ("outcome", "tier"), counts=True)
        yield by("reason", "refused", "Messages refused, by reason.", dict(sorted(refused.items())))


def _refused(reason: Reason) -> Refused:
    return Refused(reason, _DECIDED[reason], status=409)


class _Enrolment(NamedTuple):
    public_key: bytes
    admission: bytes
    signature: bytes
    challenge: bytes


_SIZES = {"public_key": 32, "admission": 64, "signature": 64, "challenge": CHALLENGE_BYTES}


def _enrolment(body: bytes, federation: str) -> _Enrolment:
    found = table_of(body)
    if found.get("protocol") != PROTOCOL:
        raise Refused(
            "version",
            f"this shuffler speaks version {PROTOCOL} of the protocol; install its release",
        )
    if found.get("federation") != federation:
        raise Refused("bad_admission", "this shuffler serves another federation")
    parts = []
    for name, size in _SIZES.items():
        try:
            value = bytes.fromhex(found[name])
        except (KeyError, TypeError, ValueError):
            value = b""
        if len(value) != size:
            raise Refused("malformed", f"{name} must be {size} bytes in hexadecimal")
        parts.append(value)
    return _Enrolment(*parts)


@dataclass(frozen=True, slots=True)
class ShufflerService(Service[ShufflerFolder, ShufflerLimits]):
    """The shuffler of a federation's reports."""

    goal: Goal = field(default_factory=dict)
    hold_seconds: float = 60.0
    origins: Sequence[str] = ()
    """Origins of pages that may be devices."""

    name = "the shuffler"
    port = 8444
    limits = ShufflerLimits

    def open(self, path: Path) -> ShufflerFolder:
        return open_shuffler_folder(path)

    def prepare(self, start: Start[ShufflerFolder, ShufflerLimits]) -> Parts:
        folder, origins = start.folder, Origins.of(self.origins)
        start.stack.enter_context(folder.locked())
        store = start.keep(folder.store())
        forwarder = Forwarder(
            folder, store, start.log, goal=self.goal, hold_seconds=self.hold_seconds
        )
        return Parts(
            lambda: ShufflerApplication(start.hosting, folder, store, forwarder, origins),
            lambda port: folder.ready_file,
            [Beside(forwarder.start, forwarder.stop)],
        )
