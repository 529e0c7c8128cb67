"""Passes: how the users and data owners of a federation know each other's keys.

The federation's issuer signs (Ed25519) which long-term key belongs to which user, once, when she
enrols. An owner that trusts the issuer lets her in with that pass, and knows with whom it agrees on
a key; the pass itself is no secret and proves nothing without the private key (`interactions.py`).
What else the issuer signs, such as the directory of owners, goes by a purpose of its own, so that
no signature can stand for anything else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sottovoce.errors import KeyTrouble, MessageError
from sottovoce.wire.frames import PASS
from sottovoce.wire.interactions import KEY_BYTES

SIGNATURE_BYTES = 64
PASS_BYTES = PASS.size + KEY_BYTES + SIGNATURE_BYTES


class Issuer:
    """Signs for a federation."""

    __slots__ = ("_private", "federation", "public")

    def __init__(self, federation: str, private: bytes | None = None) -> None:
        """A new key from the operating system, or a stored one."""
        if private is not None and len(private) != KEY_BYTES:
            raise KeyTrouble(f"an issuer's key has {KEY_BYTES} bytes")
        self.federation = federation
        self._private = (
            Ed25519PrivateKey.generate()
            if private is None
            else Ed25519PrivateKey.from_private_bytes(private)
        )
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return "<Issuer, redacted>"

    def private_bytes(self) -> bytes:
        """To be stored; never to be sent."""
        return self._private.private_bytes_raw()

    def sign(self, purpose: str, content: bytes) -> bytes:
        return self._private.sign(_statement(self.federation, purpose, content))

    def admit(self, user: int, public: bytes) -> Pass:
        """The pass of the user with this long-term public key."""
        return Pass(user, public, self.sign("pass", _body(user, public)))


def check_signature(
    issuer: bytes, federation: str, purpose: str, content: bytes, signature: bytes
) -> None:
    """Raises where this issuer has not signed that."""
    try:
        key = Ed25519PublicKey.from_public_bytes(issuer)
        key.verify(signature, _statement(federation, purpose, content))
    except (InvalidSignature, ValueError):
        raise KeyTrouble(
            f"the {purpose} was not signed by this federation's issuer; it is not believed"
        ) from None


def _statement(federation: str, purpose: str, content: bytes) -> bytes:
    parts = (federation.encode(), purpose.encode())
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts) + content


@dataclass(frozen=True, slots=True, repr=False)
class Pass:
    """Says that a user's number and long-term public key belong together."""

    user: int
    public: bytes
    signature: bytes

    def __repr__(self) -> str:
        return "<Pass, redacted>"

    def encode(self) -> bytes:
        return _body(self.user, self.public) + self.signature

    @classmethod
    def decode(cls, content: bytes) -> Pass:
        """Read, but not yet believed."""
        if len(content) != PASS_BYTES or content[:4] != PASS.magic:
            magic = PASS.magic.decode()
            raise MessageError(f"a pass has {PASS_BYTES} bytes and begins with {magic}")
        (user,) = PASS.unpack(content)
        end = PASS.size + KEY_BYTES
        return cls(user, content[PASS.size : end], content[end:])

    def check(self, issuer: bytes, federation: str) -> None:
        """Raises where the issuer did not give it."""
        body = _body(self.user, self.public)
        check_signature(issuer, federation, "pass", body, self.signature)


def _body(user: int, public: bytes) -> bytes:
    if len(public) != KEY_BYTES:
        raise KeyTrouble(f"a public key has {KEY_BYTES} bytes")
    try:
        return PASS.pack(user) + public
    except struct.error:
        raise MessageError("the user's number does not fit a pass") from None
