"""The proxy's HTTP interface: who sends what, and what is answered. Nothing of a request is kept
but its sealed reports and that its account has sent; nothing of it is logged."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.engines.https.admissions import is_admitted
from sottovoce.engines.https.answers import (
    Receive,
    Scope,
    Send,
    answer,
    bears,
    read_body,
    refuse,
    table_of,
)
from sottovoce.engines.https.aside import Aside
from sottovoce.engines.https.proxy_folder import ProxyFolder
from sottovoce.engines.https.proxy_handover import Courier
from sottovoce.engines.https.proxy_metrics import metrics
from sottovoce.engines.https.proxy_store import Decision, ProxyStore
from sottovoce.engines.https.proxy_wire import (
    ACCOUNT_BYTES,
    ACCOUNT_KEY_BYTES,
    Submission,
    decode_submission,
    is_authentic,
    submission_bytes,
)
from sottovoce.engines.https.refusals import Reason, Refused, Tally
from sottovoce.engines.https.rooms import Room, Share, sender_of
from sottovoce.engines.https.routing import Pulse, Routed
from sottovoce.engines.https.writer import GroupWriter
from sottovoce.errors import ServiceError
from sottovoce.terms import PROTOCOL

_SMALL_BODY = 4096
_OPERATORS = 4
_KNOWN_ACCOUNTS = 100_000
_LOOK_SECONDS = 2.0
_JSON = (b"content-type", b"application/json")
_DECIDED: dict[str, str] = {
    "replay": "this submission was accepted before",
    "second_submission": "this account has already sent in this round",
    "late": "the round is over or the tier's batch has gone; the submission did not count",
}


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """How much is taken on at once. What is beyond is told to come back later."""

    waiting: int = 256
    """Submissions that wait for the disk."""
    in_flight: int = 64 << 20
    """Bytes of accounts' submissions that wait for the disk."""
    unproven: int = 64 << 20
    """Bytes that are here of submissions being received of which nobody knows yet who sends
    them."""
    unproven_per_address: int = 16 << 20
    connections: int = 4000
    per_address: int = 1000
    behind: tuple[str, ...] = ()
    """`service.Limits` says what these three are."""
    lag_seconds: float = 0.2
    """A proxy that is so late with its own work takes nothing more on."""
    body_seconds: float = 30.0
    """A message must be here by then."""
    retry_seconds: int = 2
    enrolments: int = 64
    """Enrolments that wait."""
    head_seconds: float = 15.0
    rest_seconds: float = 5.0
    idle_seconds: int = 20
    write_seconds: float = 30.0
    handshake_seconds: float = 10.0
    """`protocol.Patience` and `door.DoorLimits` say what these five are."""


class Accounts:
    """Accounts and their keys, made from one secret: the same device has the same account, and each
    enrolment gives it another key."""

    def __init__(self, store: ProxyStore, secret: bytes) -> None:
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


class ProxyWriter(GroupWriter[Submission, Decision]):
    """Writes submissions to the proxy's store."""

    def __init__(self, store: ProxyStore, tally: Tally, **options: Any) -> None:
        self._store = store
        super().__init__(tally, **options)

    def _commit(
        self, batch: Sequence[Submission], counts: Mapping[str, int], seen: set[int]
    ) -> list[Decision]:
        return self._store.accept(batch, counts)


class ProxyService(Routed):
    def __init__(
        self,
        folder: ProxyFolder,
        token: str,
        store: ProxyStore,
        courier: Courier,
        tally: Tally,
        limits: ProxyLimits,
        *,
        failed: Callable[[ServiceError], None],
        died: Callable[[], None],
    ) -> None:
        """`failed` and `died` as `GroupWriter` says."""
        super().__init__("the proxy", token, tally, retry_seconds=limits.retry_seconds)
        self._store, self._courier, self._limits = store, courier, limits
        self._federation = folder.introduction.federation
        self._verifying_key = bytes.fromhex(folder.introduction.verifying_key)
        self._accounts = Accounts(store, folder.account_secret())
        self._writer = ProxyWriter(
            store, tally, limit=limits.waiting, accepted=courier.wake, failed=failed, died=died
        )
        self._aside = Aside(limits.enrolments, threads=1)
        self._operators_aside = Aside(_OPERATORS, threads=1)
        self._unproven = Room("the proxy", limits.unproven, limits.unproven_per_address)
        self._proven = Room("the proxy", limits.in_flight, limits.in_flight)
        self._sending: set[bytes] = set()
        self._pulse = Pulse()
        self._routes = {
            "/v1/submissions": ("POST", self._submit),
            "/v1/enrol": ("POST", self._enrol),
            "/v1/terms": ("GET", self._terms),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
        }

    def close(self) -> None:
        self._pulse.stop()
        self._writer.close()
        self._aside.close()
        self._operators_aside.close()

    # --- what devices send ------------------------------------------------------------------------

    async def _submit(self, scope: Scope, receive: Receive, send: Send) -> None:
        rules, limits = self._courier.rules, self._limits
        if rules is None or self._store.position.round < 0:
            raise Refused("unavailable", "the proxy has not heard from the server yet")
        if self._pulse.lag > limits.lag_seconds:
            raise self.busy
        longest = submission_bytes(rules.reports)
        with Share(self._unproven, sender_of(scope)) as share:
            payload = await read_body(scope, receive, longest, limits.body_seconds, share)
            submission = decode_submission(payload, rules.reports, len(rules.minimum))
            key = self._accounts.key(submission.account)
            if key is None:
                raise Refused("unknown_account", "there is no such account; enrol first")
            if not is_authentic(payload, key):
                raise Refused("bad_mac", "the submission was not made with the account's key")
            share.move(self._proven, submission.account)
            await self._take(submission)
        await answer(send, 204, [], b"")

    async def _take(self, submission: Submission) -> None:
        """One of an account at a time: no device takes the room of many."""
        if submission.account in self._sending:
            raise Refused("too_often", "another submission of this account is on its way")
        self._sending.add(submission.account)
        try:
            if submission.terms != self._courier.terms_name:
                raise Refused("other_terms", "the reports were made under other terms than ours")
            await self._check_round(submission)
            decision = await self._writer.store(submission)
            if decision != "accepted":
                raise _refused(decision)
        finally:
            self._sending.discard(submission.account)

    async def _check_round(self, submission: Submission) -> None:
        """Raises where the submission is not for what is open now."""
        now = self._store.position
        if submission.round > now.round or (submission.round == now.round and not now.open):
            # The device may have asked the server after the proxy did.
            await self._courier.look(_LOOK_SECONDS)
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

    async def _enrol(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(scope, receive, _SMALL_BODY, self._limits.body_seconds)
        public_key, admission, signature = _enrolment(body, self._federation)

        def enrol() -> tuple[bytes, bytes]:
            if not is_admitted(
                self._verifying_key, self._federation, public_key, admission, signature
            ):
                raise Refused("bad_admission", "the server has not admitted this device")
            return self._accounts.enrol(public_key)

        account, key = await self._aside(enrol)
        content = {"account": account.hex(), "key": key.hex()}
        await answer(send, 200, [_JSON], json.dumps(content).encode())

    # --- what others ask --------------------------------------------------------------------------

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, [(b"content-type", b"text/plain")], b"ok")

    async def _terms(self, scope: Scope, receive: Receive, send: Send) -> None:
        terms = self._courier.terms
        if terms is None:
            raise Refused("unavailable", "the proxy has not heard from the server yet")
        await answer(send, 200, [_JSON], json.dumps(terms.to_table()).encode())

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not bears(scope, self._token):
            await refuse(send, 401, "unauthorized", "this needs the operator's token", 0)
            return
        text = await self._operators_aside(
            lambda: metrics(self._store, self._tally, self._unproven.bytes + self._proven.bytes)
        )
        await answer(send, 200, [(b"content-type", b"text/plain; version=0.0.4")], text)


def _refused(reason: Reason) -> Refused:
    return Refused(reason, _DECIDED[reason], status=409)


def _enrolment(body: bytes, federation: str) -> tuple[bytes, bytes, bytes]:
    """Public key, admission and signature of an enrolment."""
    found = table_of(body)
    if found.get("protocol") != PROTOCOL:
        raise Refused(
            "version", f"this proxy speaks version {PROTOCOL} of the protocol; install its release"
        )
    if found.get("federation") != federation:
        raise Refused("bad_admission", "this proxy serves another federation")
    parts = []
    for name, size in (("public_key", 32), ("admission", 64), ("signature", 64)):
        try:
            value = bytes.fromhex(found[name])
        except (KeyError, TypeError, ValueError):
            value = b""
        if len(value) != size:
            raise Refused("malformed", f"{name} must be {size} bytes in hexadecimal")
        parts.append(value)
    return parts[0], parts[1], parts[2]
