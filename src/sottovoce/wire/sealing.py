"""Sealing: every report is encrypted by itself to the server's key, so that whoever passes it on
can neither read it nor tell it from another one.

HPKE (RFC 9180) in base mode with X25519, HKDF-SHA256 and AES-128-GCM. What a report is sealed for
(federation, round, tier, key) is bound to it: opened for anything else, it is refused.

On its way through a chain of shufflers a report has a layer more for each of them but the first,
who knows devices by their accounts. A layer is bound to all that the report is, to the shuffler's
place in the chain and to the terms that the device agreed to: a shuffler whom somebody has shown
other terms, with a smaller minimum or other shufflers behind it, opens none.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from numpy.typing import NDArray

from sottovoce.core.links import LAYER_BYTES
from sottovoce.errors import KeyTrouble, MessageError

REPORT_BYTES = 4
SEALED_BYTES = LAYER_BYTES + REPORT_BYTES
"""Bytes of one report that is sealed to the server alone: an ephemeral key, the report, and the
tag."""
KEY_BYTES, KEY_ID_BYTES = 32, 32

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_PLACE = struct.Struct(f"<IB{KEY_ID_BYTES}s")
_PURPOSE, _LAYER = b"sottovoce report\0", b"sottovoce layer\0"


def key_id(public: bytes) -> bytes:
    """The name of a public key. All of the hash: with two keys of the same name, a server could
    give a device one that nobody else has, and know its reports by it."""
    return hashlib.sha256(public).digest()


def seal_reports(
    reports: NDArray[np.uint32], public: bytes, *, federation: str, round: int, tier: int
) -> bytes:
    """Every report sealed by itself, one after the other. Sealing draws from the operating system:
    the same reports give other bytes each time."""
    info = report_info(public, federation=federation, round=round, tier=tier)
    plain = np.ascontiguousarray(reports, dtype="<u4").tobytes()
    return _sealed(plain, REPORT_BYTES, public, info, "the server's report key")


def open_reports(
    sealed: bytes | memoryview, private: bytes, *, federation: str, round: int, tier: int
) -> tuple[NDArray[np.uint32], int]:
    """The reports that were sealed for exactly this, in their order, and how many were not."""
    info = report_info(public_of(private), federation=federation, round=round, tier=tier)
    opened, refused = open_records(sealed, SEALED_BYTES, private, info)
    return np.frombuffer(opened, "<u4").astype(np.uint32), refused


def seal_layer(records: bytes, size: int, public: bytes, info: bytes) -> bytes:
    """Every record of `size` bytes sealed once more, to a shuffler."""
    return _sealed(records, size, public, info, "the key of a shuffler in the terms")


def open_records(
    sealed: bytes | memoryview, size: int, private: bytes, info: bytes
) -> tuple[bytes, int]:
    """What was in those sealed records, `size` bytes each, that were sealed for exactly this, in
    their order; and how many were not."""
    if len(sealed) % size:
        raise MessageError(f"sealed reports have {size} bytes each")
    key = X25519PrivateKey.from_private_bytes(private)
    opened, refused = bytearray(), 0
    for at in range(0, len(sealed), size):
        try:
            opened += _SUITE.decrypt(bytes(sealed[at : at + size]), key, info=info)
        except (InvalidTag, ValueError):
            refused += 1
    return bytes(opened), refused


def report_info(public: bytes, *, federation: str, round: int, tier: int) -> bytes:
    """What a report is sealed for, to the server's key `public`."""
    return _PURPOSE + federation.encode() + b"\0" + _PLACE.pack(round, tier, key_id(public))


def layer_info(
    public: bytes, *, federation: str, round: int, tier: int, hop: int, key: bytes, terms: bytes
) -> bytes:
    """What a layer is sealed for: `public` is the shuffler's key and `hop` its place from 0, `key`
    the name of the server's key, `terms` that of the terms."""
    place = _PLACE.pack(round, tier, key) + bytes([hop]) + key_id(public) + terms
    return _LAYER + federation.encode() + b"\0" + place


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _sealed(plain: bytes, size: int, public: bytes, info: bytes, whose: str) -> bytes:
    try:
        key = X25519PublicKey.from_public_bytes(public)
    except ValueError:
        raise KeyTrouble(f"a report key has {KEY_BYTES} bytes") from None
    try:
        return b"".join(
            _SUITE.encrypt(plain[at : at + size], key, info=info)
            for at in range(0, len(plain), size)
        )
    except ValueError:  # a public key of low order, with which nothing would be secret
        raise KeyTrouble(f"{whose} is not good; nothing was sealed") from None
