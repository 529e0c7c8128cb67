"""What devices sign (Ed25519): everything that they post, and that an enrolled key is their own.

An envelope's signature covers the federation, what is being sent, the device's number, round,
attempt, a nonce and the hash of the body, so that a report counts once, in one round of one
federation, and cannot be altered on the way.

Whoever enrols proves that she holds the private half of the key that she brings: an invited
stranger could else bring the key of somebody else, who would then be turned away. That signature is
bound to the federation, the invitation and the key, and is good for nothing else. Keys with which
everybody can sign are refused before anything is verified.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sottovoce.errors import MessageError
from sottovoce.wire.frames import ENVELOPE

Purpose = Literal["report", "check-in"]

NONCE_BYTES = 16
KEY_BYTES, SIGNATURE_BYTES = 32, 64
OVERHEAD = ENVELOPE.size + SIGNATURE_BYTES
"""Bytes that an envelope adds to what is in it."""
DIGEST_HEADER = "sottovoce-digest"
"""The header in which a large message says the hash of its body beforehand: with it, the signature
can be checked when only the beginning of the message is here."""


@dataclass(frozen=True, slots=True, repr=False)
class Envelope:
    number: int
    """Which device says this."""
    round: int
    attempt: int
    nonce: bytes
    body: bytes
    signature: bytes

    def __repr__(self) -> str:
        return f"<Envelope round={self.round} attempt={self.attempt}, redacted>"

    def signed_by(
        self,
        key: Ed25519PublicKey,
        federation: str,
        purpose: Purpose,
        digest: bytes | None = None,
    ) -> bool:
        """Whether the device with this key signed the body, or one with this digest."""
        head = ENVELOPE.pack(self.number, self.round, self.attempt, self.nonce)
        digest = _digest(self.body) if digest is None else digest
        try:
            key.verify(self.signature, _statement(federation, purpose, head, digest))
        except InvalidSignature:
            return False
        return True


def seal(
    key: Ed25519PrivateKey,
    federation: str,
    purpose: Purpose,
    *,
    number: int,
    round: int,
    attempt: int,
    nonce: bytes,
    body: bytes,
) -> bytes:
    """The envelope as bytes. The nonce is drawn by the caller, from the operating system."""
    if len(nonce) != NONCE_BYTES:
        raise MessageError(f"a nonce has {NONCE_BYTES} bytes")
    head = ENVELOPE.pack(number, round, attempt, nonce)
    return head + key.sign(_statement(federation, purpose, head, _digest(body))) + body


def digest_of(payload: bytes) -> str:
    """What `DIGEST_HEADER` says of an envelope."""
    return _digest(payload[OVERHEAD:]).hex()


def open_envelope(payload: bytes) -> Envelope:
    """The parts of an envelope, not yet verified. Raises where it is none."""
    number, round, attempt, nonce = ENVELOPE.unpack(payload)
    if len(payload) < OVERHEAD:
        raise MessageError("envelope too short")
    signature = payload[ENVELOPE.size : OVERHEAD]
    return Envelope(number, round, attempt, nonce, payload[OVERHEAD:], signature)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _statement(federation: str, purpose: Purpose, head: bytes, digest: bytes) -> bytes:
    name = federation.encode()
    return (
        b"\0".join([b"sottovoce", purpose.encode(), struct.pack("<I", len(name)) + name, head])
        + digest
    )


# --- enrolment -----------------------------------------------------------------------------------

_PURPOSE = b"sottovoce enrolment\0"
_FIELD = 2**255 - 19
_EIGHTH = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = frozenset((0, 1, _FIELD - 1, _EIGHTH, _FIELD - _EIGHTH))
"""The y of every point whose order divides 8."""


def is_weak(public: bytes) -> bool:
    """Whether this is no Ed25519 key of a single holder: of another length, or a point of small
    order in any spelling, under which signatures can be made without a private key."""
    if len(public) != KEY_BYTES:
        return True
    y = int.from_bytes(public, "little") & (2**255 - 1)  # without the sign of x
    return y % _FIELD in _SMALL_ORDER


def prove(key: Ed25519PrivateKey, federation: str, token: bytes) -> bytes:
    """The signature with which a device enrols its own key by an invitation's token."""
    return key.sign(_possession(federation, token, key.public_key().public_bytes_raw()))


def is_proven(public: bytes, federation: str, token: bytes, signature: bytes) -> bool:
    """Whether the holder of this key wants to enrol it here, with this invitation."""
    return is_signed(public, _possession(federation, token, public), signature)


def is_signed(public: bytes, statement: bytes, signature: bytes) -> bool:
    """Whether the one holder of this key has signed that."""
    if is_weak(public):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def _possession(federation: str, token: bytes, public: bytes) -> bytes:
    name = federation.encode()
    return b"".join(
        [_PURPOSE, struct.pack("<I", len(name)), name, hashlib.sha256(token).digest(), public]
    )
