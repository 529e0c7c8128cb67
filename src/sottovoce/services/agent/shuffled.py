"""A device's way to the proxy of its federation: an account there, and reports sealed to the
server's key, which the proxy cannot read. The server is told nothing of it. In a chain of shufflers
a device knows the first one, and seals its reports for the others, too.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce.core.consent import affords
from sottovoce.engines.client import Answer, Busy, Client, good
from sottovoce.errors import KeyTrouble, MessageError, Unreachable
from sottovoce.parties.leaving import Leaving
from sottovoce.stores.device import CohortStore
from sottovoce.stores.device_limits import spent_before
from sottovoce.stores.session import DeviceSession
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.reports import decode_bits
from sottovoce.wire.sealing import key_id
from sottovoce.wire.shuffled import (
    ACCOUNT_BYTES,
    ACCOUNT_KEY_BYTES,
    CHALLENGE_BYTES,
    encode_submission,
    enrolment_statement,
    record_bytes,
    seal_for,
    terms_name,
)
from sottovoce.wire.terms import Terms

T = TypeVar("T")
_ACCOUNT = "proxy-account"
_SIGNATURE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a submission."""

    state: Literal["arrived", "refused"]
    bytes: int
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class _Account:
    """Where a device is known to a proxy."""

    proxy: str
    federation: str
    account: bytes
    key: bytes


def may_report(store: CohortStore, terms: Terms) -> bool:
    """Whether the owner's choice has a tier in these terms, and her limit room for another round.
    Where not, nothing leaves at all, not even that the device is there."""
    release = terms.reporting
    if release is None:
        return True
    choices = store.choices()
    tier = release.tier_of(choices)
    cost = release.max_reports * release.epsilons[tier]
    room = affords(spent_before(store, terms), cost, choices.total_epsilon)
    return bool(((tier >= 0) & room & choices.takes_part).all())


def admission_in(told: Mapping[str, Any]) -> bytes:
    """The server's word to the proxy, from its answer to an enrolment."""
    try:
        word = bytes.fromhex(told["admission"])
    except (KeyError, TypeError, ValueError):
        word = b""
    if len(word) != _SIGNATURE_BYTES:
        raise MessageError(
            "the server has enrolled this device, but gave it no word for the shuffler"
        )
    return word


class ShufflerLink:
    """One device's, to the proxy that the terms name."""

    def __init__(
        self,
        hosted: DeviceSession,
        terms: Terms,
        aside: Callable[[Callable[[], Any]], Awaitable[Any]],
        *,
        plaintext: bool = False,
    ) -> None:
        """`aside` runs what needs the store. Plaintext is for a proxy on this machine."""
        link = terms.link.mixing
        if link is None or not link.url:
            raise Unreachable("the terms of the federation name no shuffler; tell the operator")
        self._hosted, self._store = hosted, hosted.store
        self.terms, self._aside = terms, aside
        self.link = link
        plain = plaintext and link.url.startswith("http://")
        self.client = Client(link.url, link.authority, plaintext=plain)
        self._sealed: tuple[bytes, Leaving] | None = None

    async def ready(self, key: Ed25519PrivateKey, admission: bytes) -> None:
        """The proxy answers, follows the terms that this device agreed to, and has an account for
        it. Raises where not; nothing of a report has left then."""
        told = self._good(await self.client.get("/v1/terms")).table()
        if Terms.from_table(told) != self.terms:
            raise MessageError(
                "the shuffler was told other terms by the server than this device, so that "
                "nothing is sent; tell whoever runs the shuffler"
            )
        if await self._aside(self._account) is None:
            await self._enrol(key, admission)

    async def send(self, nonce: bytes, leaving: Leaving, report_key: bytes) -> Fate:
        """Seal the reports and post them; `nonce` is that of their message. Raises where nobody
        knows yet what becomes of them: the same ones are to be sent again."""
        account = await self._aside(self._account)
        if account is None:
            raise Busy("the account with the shuffler is not good any more", 0.0)
        payload = await self._aside(lambda: self._payload(nonce, leaving, report_key, account))
        answer = await self.client.post("/v1/submissions", payload)
        if 200 <= answer.status < 300 or (
            # Another sealing of the same reports: a device makes one message in a round.
            answer.status == 409 and answer.reason in ("replay", "second_submission")
        ):
            return Fate("arrived", len(payload))
        if answer.status == 409 and answer.reason == "early":
            raise Busy("the shuffler has not heard of the round yet", 0.0)
        if answer.status == 401:
            await self._aside(lambda: self._store.set_secret(_ACCOUNT, b""))
            raise Busy("the shuffler does not know this device any more", 0.0)
        if answer.status in (404, 405, 426):
            self._good(answer)
        reason = answer.reason or f"status {answer.status}"
        return Fate("refused", len(payload), reason, answer.detail)

    def _payload(
        self, nonce: bytes, leaving: Leaving, report_key: bytes, account: _Account
    ) -> Leaving:
        """The submission; the same bytes as long as this process lives."""
        mark = nonce + report_key + account.key
        if self._sealed is None or self._sealed[0] != mark:
            self._sealed = mark, leaving.wrapped(partial(self._submission, report_key, account))
        return self._sealed[1]

    def _submission(self, report_key: bytes, account: _Account, message: bytes) -> bytes:
        bits = decode_bits(message)
        tier = int(bits.tier[0])
        sealed = seal_for(bits.reports[0], report_key, self.terms, round=bits.round, tier=tier)
        return encode_submission(
            account.account,
            account.key,
            bits.round,
            tier,
            key_id(report_key),
            sealed,
            terms=terms_name(self.terms),
            size=record_bytes(self.link, 0),
        )

    def introduction(self, key: Ed25519PrivateKey, admission: bytes) -> bytes | None:
        """What the proxy will be told first, but for its challenge and what answers that; None
        where it has an account for this device."""
        if self._account() is not None:
            return None
        nothing = bytes(_SIGNATURE_BYTES)
        return self._enrolment(key, admission or nothing, bytes(CHALLENGE_BYTES), nothing)

    def _enrolment(
        self, key: Ed25519PrivateKey, admission: bytes, challenge: bytes, signature: bytes
    ) -> bytes:
        content = {
            "protocol": PROTOCOL,
            "federation": self.terms.federation,
            "public_key": key.public_key().public_bytes_raw().hex(),
            "admission": admission.hex(),
            "signature": signature.hex(),
            "challenge": challenge.hex(),
        }
        return json.dumps(content).encode()

    async def _enrol(self, key: Ed25519PrivateKey, admission: bytes) -> None:
        federation, challenge = self.terms.federation, await self._challenge()
        signature = key.sign(enrolment_statement(federation, admission, challenge))
        body = self._enrolment(key, admission, challenge, signature)
        leaving = await self._aside(lambda: self._hosted.contact("enrolment", "proxy", body))
        answer = await self.client.post("/v1/enrol", leaving)
        if answer.status in (401, 403):
            raise KeyTrouble(
                "the shuffler did not accept what the server said of this device; tell the operator"
            )
        table = self._good(answer).table()
        try:
            account, secret = bytes.fromhex(table["account"]), bytes.fromhex(table["key"])
        except (KeyError, TypeError, ValueError):
            account, secret = b"", b""
        if (len(account), len(secret)) != (ACCOUNT_BYTES, ACCOUNT_KEY_BYTES):
            raise Unreachable(f"the shuffler at {self.client.url} gave no account")
        kept = json.dumps([self.link.url, federation, account.hex(), secret.hex()]).encode()
        await self._aside(lambda: self._store.set_secret(_ACCOUNT, kept))

    async def _challenge(self) -> bytes:
        """What the proxy wants to see signed, this once."""
        answer = await self.client.get("/v1/challenge")
        try:
            found = bytes.fromhex(self._good(answer).table()["challenge"])
        except (KeyError, TypeError, ValueError):
            found = b""
        if len(found) != CHALLENGE_BYTES:
            raise Unreachable(f"the shuffler at {self.client.url} gave no challenge")
        return found

    def _good(self, answer: Answer) -> Answer:
        return good(answer, "proxy", self.client.url)

    def _account(self) -> _Account | None:
        """The account with the proxy and federation of these terms."""
        kept = self._store.secret(_ACCOUNT)
        if not kept:
            return None
        url, federation, account, key = json.loads(kept)
        if (url, federation) != (self.link.url, self.terms.federation):
            return None
        return _Account(url, federation, bytes.fromhex(account), bytes.fromhex(key))
