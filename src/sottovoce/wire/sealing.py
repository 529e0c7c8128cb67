"""Sealing: every report is encrypted by itself to the server's key, so that whoever passes it on
can neither read it nor tell it from another one.

HPKE (RFC 9180) in base mode with X25519, HKDF-SHA256 and AES-128-GCM. What a report is sealed for
(federation, round, tier, key) is bound to it: opened for anything else, it is refused.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from numpy.typing import NDArray

from sottovoce.errors import KeyTrouble, MessageError

REPORT_BYTES = 4
SEALED_BYTES = 32 + REPORT_BYTES + 16
"""Of one sealed report: an ephemeral key, the report, and the tag."""
KEY_BYTES, KEY_ID_BYTES = 32, 32

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_PLACE = struct.Struct(f"<IB{KEY_ID_BYTES}s")
_PURPOSE = b"sottovoce report\0"


def key_id(public: bytes) -> bytes:
    """The name of a public key. All of the hash: with two keys of the same name, a server could
    give a device one that nobody else has, and know its reports by it."""
    return hashlib.sha256(public).digest()


def seal_reports(
    reports: NDArray[np.uint32], public: bytes, *, federation: str, round: int, tier: int
) -> bytes:
    """Every report sealed by itself, one after the other. Sealing draws from the operating system:
    the same reports give other bytes each time."""
    try:
        key = X25519PublicKey.from_public_bytes(public)
    except ValueError:
        raise KeyTrouble(f"a report key has {KEY_BYTES} bytes") from None
    info = _info(federation, round, tier, key_id(public))
    plain = np.ascontiguousarray(reports, dtype="<u4").tobytes()
    try:
        return b"".join(
            _SUITE.encrypt(plain[at : at + REPORT_BYTES], key, info=info)
            for at in range(0, len(plain), REPORT_BYTES)
        )
    except ValueError:  # a public key of low order, with which nothing would be secret
        raise KeyTrouble("the server's report key is not good; nothing was sealed") from None


def open_reports(
    sealed: bytes | memoryview, private: bytes, *, federation: str, round: int, tier: int
) -> tuple[NDArray[np.uint32], int]:
    """The reports that were sealed for exactly this, in their order, and how many were not."""
    if len(sealed) % SEALED_BYTES:
        raise MessageError(f"sealed reports have {SEALED_BYTES} bytes each")
    key = X25519PrivateKey.from_private_bytes(private)
    info = _info(federation, round, tier, key_id(key.public_key().public_bytes_raw()))
    opened, refused = bytearray(), 0
    for at in range(0, len(sealed), SEALED_BYTES):
        try:
            opened += _SUITE.decrypt(bytes(sealed[at : at + SEALED_BYTES]), key, info=info)
        except (InvalidTag, ValueError):
            refused += 1
    return np.frombuffer(bytes(opened), "<u4").astype(np.uint32), refused


def _info(federation: str, round: int, tier: int, key: bytes) -> bytes:
    return _PURPOSE + federation.encode() + b"\0" + _PLACE.pack(round, tier, key)
