"""The proxy's HTTP interface: who sends what, and what is answered. Nothing of a request is kept
but its sealed reports and that its account has sent; nothing of it is logged."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from sottovoce.errors import ServiceError, UsageError
from sottovoce.services.kit.answers import (
    Pulse,
    Receive,
    Routed,
    Scope,
    Send,
    answer,
    bears,
    read_body,
    refuse,
    table_of,
)
from sottovoce.services.kit.connections import Room, Share, sender_of
from sottovoce.services.kit.executor import Aside
from sottovoce.services.kit.serving import Beside, Process, is_loopback, listen, logger, tls_of
from sottovoce.services.kit.writer import GroupWriter
from sottovoce.services.shuffler_handover import Courier, Goal
from sottovoce.stores.keys import (
    operator_token,
)
from sottovoce.stores.server_folder import (
    is_admitted,
)
from sottovoce.stores.shuffler import Decision, ProxyStore
from sottovoce.stores.shuffler_folder import ProxyFolder, open_proxy_folder
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.refusals import Reason, RefusalCounts, Refused, read_or_refuse
from sottovoce.wire.shuffled import (
    ACCOUNT_BYTES,
    ACCOUNT_KEY_BYTES,
    SealedSubmission,
    decode_submission,
    is_authentic,
    submission_bytes,
)

# The folder of a proxy: whom it serves, its keys and what it holds. `introduction.json` (all that
# it needs of the server; a secret), `keys/` (a certificate authority of its own, which devices
# learn from the terms), `accounts.secret` (from which keys of accounts are made), `terms.json`
# (the terms that the server published when the proxy first asked: others are not followed),
# `proxy.db` (accounts and held reports), `proxy.json` (address and process of a running proxy).


# What a proxy's operator sees, for Prometheus: counts by tier and round, which reveal no one.


def metrics(store: ProxyStore, tally: RefusalCounts, in_flight: int) -> bytes:
    """`tally` has what was counted and not stored yet."""
    with tally.settled() as new:
        refused = Counter(store.refused()) + Counter(new)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(store, refused, in_flight))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, store: ProxyStore, refused: Counter[str], in_flight: int) -> None:
        self._store, self._refused, self._in_flight = store, refused, in_flight

    def collect(self) -> Iterator[Metric]:
        now = self._store.position
        yield GaugeMetricFamily("sottovoce_proxy_round", "Round of the federation.", now.round)
        yield GaugeMetricFamily("sottovoce_proxy_open", "Whether it is open.", int(now.open))
        yield GaugeMetricFamily(
            "sottovoce_proxy_accounts", "Devices that have enrolled.", self._store.accounts()
        )
        yield GaugeMetricFamily(
            "sottovoce_proxy_in_flight_bytes", "Bytes of submissions being received or written.",
            self._in_flight,
        )  # fmt: skip
        held = GaugeMetricFamily(
            "sottovoce_proxy_held", "Devices whose reports are held.",
            labels=["round", "tier", "state"],
        )  # fmt: skip
        for batch in self._store.held():
            held.add_metric([str(batch.round), str(batch.tier), batch.state], batch.devices)
        yield held
        outcomes = CounterMetricFamily(
            "sottovoce_proxy_devices", "Devices whose reports were handed over or dropped.",
            labels=["outcome", "tier"],
        )  # fmt: skip
        for outcome, tier, devices in self._store.outcomes():
            outcomes.add_metric([outcome, str(tier)], devices)
        yield outcomes
        refused = CounterMetricFamily(
            "sottovoce_proxy_refused", "Messages refused, by reason.", labels=["reason"]
        )
        for reason, count in sorted(self._refused.items()):
            refused.add_metric([reason], count)
        yield refused


# Challenges: words that somebody must sign soon, and once, so that nothing signed before is any
# good. A challenge carries its own time and a tag under a key that lives as long as this process:
# those that were never answered cost no memory, and after a restart nobody knows the old ones.
# Only the clock of whoever asks matters.

CHALLENGE_BYTES = 48
SECONDS = 60
"""In which a challenge must be answered."""
_HEAD = struct.Struct("<Q16s")
_MILLI = 1000


class Challenges:
    """Any thread may use it."""

    def __init__(self, *, most: int = 200_000, clock: Callable[[], float] = time.monotonic) -> None:
        """Remembers at most `most` that were answered in the last minute; whoever answers more is
        told to come back."""
        self._key = secrets.token_bytes(32)
        self._most, self._clock = most, clock
        self._turn = threading.Lock()
        self._spent: dict[bytes, float] = {}

    def __repr__(self) -> str:
        return "<Challenges, redacted>"

    def new(self) -> bytes:
        head = _HEAD.pack(int(self._clock() * _MILLI), secrets.token_bytes(16))
        return head + self._tag(head)

    def spend(self, challenge: bytes) -> None:
        """To be called when everything else about the answer is good. Raises where the challenge is
        not ours, too old, or was answered before."""
        head, tag = challenge[: _HEAD.size], challenge[_HEAD.size :]
        if len(challenge) != CHALLENGE_BYTES or not hmac.compare_digest(self._tag(head), tag):
            raise Refused("late", "the challenge is not ours, or of before our start; ask again")
        now, made = self._clock(), _HEAD.unpack(head)[0] / _MILLI
        if now - made > SECONDS:
            raise Refused("late", f"the challenge is older than {SECONDS} seconds; ask again")
        with self._turn:
            if challenge in self._spent:
                raise Refused("replay", "this challenge was answered before")
            if len(self._spent) >= self._most:
                self._spent = {c: end for c, end in self._spent.items() if end >= now}
                if len(self._spent) >= self._most:
                    raise Refused("overload", "too many enrol at once; come back later")
            self._spent[challenge] = made + SECONDS

    def _tag(self, head: bytes) -> bytes:
        return hmac.digest(self._key, head, "sha256")[: CHALLENGE_BYTES - _HEAD.size]


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


class ProxyWriter(GroupWriter[SealedSubmission, Decision]):
    """Writes submissions to the proxy's store."""

    def __init__(self, store: ProxyStore, tally: RefusalCounts, **options: Any) -> None:
        self._store = store
        super().__init__(tally, **options)

    def _commit(
        self, batch: Sequence[SealedSubmission], counts: Mapping[str, int], seen: set[int]
    ) -> list[Decision]:
        return self._store.accept(batch, counts)


class ProxyService(Routed):
    def __init__(
        self,
        folder: ProxyFolder,
        token: str,
        store: ProxyStore,
        courier: Courier,
        tally: RefusalCounts,
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
        self._challenges = Challenges()
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
            "/v1/challenge": ("GET", self._challenge),
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
            submission = read_or_refuse(
                decode_submission, payload, rules.reports, len(rules.minimum)
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
            if submission.terms != self._courier.terms_name:
                raise Refused("other_terms", "the reports were made under other terms than ours")
            await self._check_round(submission)
            decision = await self._writer.store(submission)
            if decision != "accepted":
                raise _refused(decision)
        finally:
            self._sending.discard(submission.account)

    async def _check_round(self, submission: SealedSubmission) -> None:
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

    async def _challenge(self, scope: Scope, receive: Receive, send: Send) -> None:
        content = {"challenge": self._challenges.new().hex()}
        headers = [_JSON, (b"cache-control", b"no-store")]
        await answer(send, 200, headers, json.dumps(content).encode())

    async def _enrol(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(scope, receive, _SMALL_BODY, self._limits.body_seconds)
        asked = _enrolment(body, self._federation)

        def enrol() -> tuple[bytes, bytes]:
            if not is_admitted(self._verifying_key, self._federation, *asked):
                raise Refused("bad_admission", "the server has not admitted this device")
            self._challenges.spend(asked.challenge)
            return self._accounts.enrol(asked.public_key)

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
            "version", f"this proxy speaks version {PROTOCOL} of the protocol; install its release"
        )
    if found.get("federation") != federation:
        raise Refused("bad_admission", "this proxy serves another federation")
    if "challenge" not in found:  # earlier releases of the same protocol did not ask for one
        raise Refused("version", "this proxy asks for an answered challenge; install its release")
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


# A proxy process: what it needs to start, what it does until it is told to stop.

_SWITCH = 0.0005


def run_proxy(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 8444,
    *,
    goal: Goal | None = None,
    hold_seconds: float = 60.0,
    plaintext: bool = False,
    limits: ProxyLimits | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the proxy in `path` until SIGTERM or SIGINT; SIGHUP takes up a renewed certificate.
    Port 0 takes a free one; where the proxy listens is in the ready file, and `ready` is told.
    Raises with one sentence where it cannot start."""
    if plaintext and not is_loopback(host):
        raise UsageError(f"--plaintext is for a loopback address, not for {host}")
    folder = open_proxy_folder(path)
    limits = limits or ProxyLimits()
    tally = RefusalCounts()
    context = None if plaintext else tls_of(folder.keys, tally)
    token = operator_token(folder.keys)
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder.locked())
        store = folder.store()
        stack.callback(store.close)
        listener = stack.enter_context(listen(host, port))
        log = logger()
        courier = Courier(folder, store, log, goal=goal or {}, hold_seconds=hold_seconds)
        process = Process("the proxy", folder, listener, context, tally, log)

        def service() -> ProxyService:
            return ProxyService(
                folder,
                token,
                store,
                courier,
                tally,
                limits,
                failed=lambda error: log.error("not stored", detail=str(error)),
                died=process.fail,
            )

        # Requests must not wait long for the threads that write and hand over.
        sys.setswitchinterval(_SWITCH)
        process.run(service, limits, [Beside(courier.start, courier.stop)], ready)
