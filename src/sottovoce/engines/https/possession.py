"""Proof that whoever brings a public key holds its private half: without it, an invited stranger
could bring the key of somebody else, who would then be turned away.

The signature (Ed25519) is bound to the federation, the invitation and the key, and is good for
nothing else. Keys with which everybody can sign are refused before anything is verified.
"""

from __future__ import annotations

import hashlib
import struct

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEY_BYTES, SIGNATURE_BYTES = 32, 64

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
    return key.sign(_statement(federation, token, key.public_key().public_bytes_raw()))


def is_proven(public: bytes, federation: str, token: bytes, signature: bytes) -> bool:
    """Whether the holder of this key wants to enrol it here, with this invitation."""
    return is_signed(public, _statement(federation, token, public), signature)


def is_signed(public: bytes, statement: bytes, signature: bytes) -> bool:
    """Whether the one holder of this key has signed that."""
    if is_weak(public):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def _statement(federation: str, token: bytes, public: bytes) -> bytes:
    name = federation.encode()
    return b"".join(
        [_PURPOSE, struct.pack("<I", len(name)), name, hashlib.sha256(token).digest(), public]
    )
