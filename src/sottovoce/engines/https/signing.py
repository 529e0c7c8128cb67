"""The signed envelope of everything that a device posts after it has enrolled.

The signature (Ed25519) covers the federation, what is being sent, the device's number, round,
attempt, a nonce and the hash of the body, so that a report counts once, in one round of one
federation, and cannot be altered on the way.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sottovoce.errors import MessageError

Purpose = Literal["report", "check-in"]

NONCE_BYTES = 16
_HEADER = struct.Struct("<4sIII16s")
_MAGIC = b"SVE1"
_SIGNATURE_BYTES = 64
OVERHEAD = _HEADER.size + _SIGNATURE_BYTES
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
        head = _head(self.number, self.round, self.attempt, self.nonce)
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
    head = _head(number, round, attempt, nonce)
    return head + key.sign(_statement(federation, purpose, head, _digest(body))) + body


def digest_of(payload: bytes) -> str:
    """What `DIGEST_HEADER` says of an envelope."""
    return _digest(payload[OVERHEAD:]).hex()


def open_envelope(payload: bytes) -> Envelope:
    """The parts of an envelope, not yet verified. Raises where it is none."""
    if len(payload) < OVERHEAD:
        raise MessageError("envelope too short")
    magic, number, round, attempt, nonce = _HEADER.unpack_from(payload)
    if magic != _MAGIC:
        raise MessageError("not an envelope of this version")
    signature = payload[_HEADER.size : OVERHEAD]
    return Envelope(number, round, attempt, nonce, payload[OVERHEAD:], signature)


def _head(number: int, round: int, attempt: int, nonce: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, number, round, attempt, nonce)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _statement(federation: str, purpose: Purpose, head: bytes, digest: bytes) -> bytes:
    name = federation.encode()
    return (
        b"\0".join([b"sottovoce", purpose.encode(), struct.pack("<I", len(name)) + name, head])
        + digest
    )
