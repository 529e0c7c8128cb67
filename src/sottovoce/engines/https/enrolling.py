"""How devices come to a server: an invitation's token and a key that the device proves to hold.

Anybody can post a guess, so guesses have a thread and places of their own, never wait for whoever
writes to the database, and are answered after a while: those who are enrolled do not notice them.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce.engines.https import roster
from sottovoce.engines.https.admissions import admit
from sottovoce.engines.https.answers import Receive, Scope, Send, answer, read_body, table_of
from sottovoce.engines.https.aside import Aside, Tarpit
from sottovoce.engines.https.database import Database
from sottovoce.engines.https.possession import SIGNATURE_BYTES, is_proven, is_weak
from sottovoce.engines.https.refusals import Refused
from sottovoce.terms import PROTOCOL

LONGEST_ENROLMENT = 4096
_WAITING = 64
"""Enrolments that wait for the database."""
_JSON = (b"content-type", b"application/json")


class Enrolments:
    def __init__(
        self,
        federation: str,
        database: Database,
        *,
        admission_key: Ed25519PrivateKey | None,
        body_seconds: float,
        guess_seconds: float,
        enrolled: Callable[[int, bytes], None],
    ) -> None:
        """`admission_key` is there where reports come through a proxy; `enrolled` is called with
        the number and key of every device that comes, also again."""
        self._federation, self._database = federation, database
        self._admission_key, self._enrolled = admission_key, enrolled
        self._body_seconds = body_seconds
        self._aside, self._tarpit = Aside(_WAITING, threads=1), Tarpit(guess_seconds)

    def close(self) -> None:
        self._aside.close()

    async def take(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer `POST /v1/enrol`."""
        body = await read_body(scope, receive, LONGEST_ENROLMENT, self._body_seconds)
        token, key, signature = _enrolment(body)
        try:
            number = await self._aside(lambda: self._enrol(token, key, signature))
        except Refused as error:
            if error.reason in ("bad_token", "bad_signature"):
                await self._tarpit()
            raise
        self._enrolled(number, key)
        told: dict[str, int | str] = {"number": number}
        if self._admission_key is not None:
            told["admission"] = admit(self._admission_key, self._federation, key).hex()
        await answer(send, 200, [_JSON], json.dumps(told).encode())

    def _enrol(self, token: bytes, key: bytes, signature: bytes) -> int:
        """What costs least comes first, and nothing is locked for somebody without an
        invitation."""
        with self._database.reading() as link:
            known = roster.is_invited(link, token)
        if not known:
            raise _not_good()
        if not is_proven(key, self._federation, token, signature):
            raise Refused("bad_signature", "the enrolment was not signed with the key it brings")
        with self._database.writing() as link:
            number = roster.enrol(link, token, key)
        if number is None:
            raise _not_good()
        return number


def _not_good() -> Refused:
    return Refused("bad_token", "the invitation is not good, or was used by another device")


def _enrolment(body: bytes) -> tuple[bytes, bytes, bytes]:
    """Token, public key and signature of an enrolment."""
    found = table_of(body)
    other = f"this server speaks version {PROTOCOL} of the protocol; install its release"
    if found.get("protocol") != PROTOCOL:
        raise Refused("version", other)
    try:
        token, key = bytes.fromhex(found["token"]), bytes.fromhex(found["public_key"])
        # Earlier releases of the same protocol did not sign.
        signature = bytes.fromhex(found["signature"]) if "signature" in found else None
    except (KeyError, TypeError, ValueError):
        raise Refused("malformed", "token, public_key and signature must be hexadecimal") from None
    if is_weak(key):
        raise Refused("malformed", "a public key has 32 bytes and is one device's alone")
    if signature is None:
        raise Refused("version", "this server asks for signed enrolments; install its release")
    if len(signature) != SIGNATURE_BYTES:
        raise Refused("malformed", f"a signature has {SIGNATURE_BYTES} bytes")
    return token, key, signature
