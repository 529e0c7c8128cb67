"""What a device sends to the proxy: a head that says for which account, round and tier, then k
sealed reports of equal size. The whole is authenticated with the account's key."""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

from sottovoce.engines.https.refusals import Refused
from sottovoce.engines.https.sealing import SEALED_BYTES

ACCOUNT_BYTES, ACCOUNT_KEY_BYTES = 16, 32
MARK_BYTES = 16
_HEAD = struct.Struct("<4s16sIB8sHH32s")
_MAGIC = b"SVP1"
_MAC_BYTES = 32
_NO_MAC = bytes(_MAC_BYTES)


@dataclass(frozen=True, slots=True, repr=False)
class Submission:
    """What one device sends in one round."""

    account: bytes
    round: int
    tier: int
    key: bytes
    """Name of the key to which the reports are sealed."""
    mark: bytes
    """Tells these bytes from any others."""
    reports: memoryview

    def __repr__(self) -> str:
        return f"<Submission round={self.round} tier={self.tier}, redacted>"


def submission_bytes(reports: int) -> int:
    """The length of a submission of so many reports; there is no other."""
    return _HEAD.size + reports * SEALED_BYTES


def encode_submission(
    account: bytes, account_key: bytes, round: int, tier: int, key: bytes, sealed: bytes
) -> bytes:
    """What a device posts; `key` is the name of the server's key, `sealed` its reports."""
    count = len(sealed) // SEALED_BYTES
    head = _HEAD.pack(_MAGIC, account, round, tier, key, count, SEALED_BYTES, _NO_MAC)
    return head[:-_MAC_BYTES] + _mac(head[:-_MAC_BYTES], sealed, account_key) + sealed


def decode_submission(payload: bytes, reports: int, tiers: int) -> Submission:
    """Raises where it is not exactly one submission of a federation with so many reports and tiers.
    Whose it is was not checked yet: `is_authentic` does."""
    if payload[:3] == _MAGIC[:3] and payload[3:4] != _MAGIC[3:]:
        raise Refused("version", "this is a submission of another release of Sottovoce")
    if len(payload) < _HEAD.size or payload[:4] != _MAGIC:
        raise Refused("malformed", "this is no submission")
    _, account, round, tier, key, count, size, mac = _HEAD.unpack_from(payload)
    if size != SEALED_BYTES:
        raise Refused("malformed", f"a sealed report has {SEALED_BYTES} bytes")
    if count != reports or len(payload) != submission_bytes(reports):
        raise Refused("malformed", f"a submission has exactly {reports} reports")
    if tier >= tiers:
        raise Refused("malformed", "there is no such tier in the terms")
    return Submission(
        account, round, tier, key, mac[:MARK_BYTES], memoryview(payload)[_HEAD.size :]
    )


def is_authentic(payload: bytes, account_key: bytes) -> bool:
    """Whether whoever holds the account's key has made this submission."""
    stop = _HEAD.size - _MAC_BYTES
    view = memoryview(payload)
    made = _mac(view[:stop], view[_HEAD.size :], account_key)
    return hmac.compare_digest(made, view[stop : _HEAD.size])


def _mac(head: bytes | memoryview, sealed: bytes | memoryview, account_key: bytes) -> bytes:
    made = hashlib.blake2b(head, key=account_key, digest_size=_MAC_BYTES)
    made.update(_NO_MAC)
    made.update(sealed)
    return made.digest()
