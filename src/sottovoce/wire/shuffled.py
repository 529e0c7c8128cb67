"""What a device sends to the proxy: a head that says for which account, round and tier, to which
key and under which terms, then k sealed reports of equal size. The whole is authenticated with the
account's key.

Key and terms must be those that the proxy was told, because only reports made alike hide among each
other: a server that shows them differently to one device gets nothing of it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from dataclasses import dataclass

from sottovoce.wire.refusals import Refused
from sottovoce.wire.sealing import KEY_ID_BYTES, SEALED_BYTES
from sottovoce.wire.terms import Terms

ACCOUNT_BYTES, ACCOUNT_KEY_BYTES = 16, 32
MARK_BYTES, TERMS_BYTES = 16, 32
_HEAD = struct.Struct(f"<4s16sIB{KEY_ID_BYTES}s{TERMS_BYTES}sHH32s")
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
    terms: bytes = b""
    """Name of the terms under which they were made."""

    def __repr__(self) -> str:
        return f"<Submission round={self.round} tier={self.tier}, redacted>"


def terms_name(terms: Terms) -> bytes:
    """The same for equal terms alone, also where somebody looks for others of the same name."""
    return hashlib.sha256(json.dumps(terms.to_table(), sort_keys=True).encode()).digest()


def submission_bytes(reports: int) -> int:
    """The length of a submission of so many reports; there is no other."""
    return _HEAD.size + reports * SEALED_BYTES


def encode_submission(
    account: bytes,
    account_key: bytes,
    round: int,
    tier: int,
    key: bytes,
    sealed: bytes,
    *,
    terms: bytes,
) -> bytes:
    """What a device posts; `key` is the name of the server's key, `sealed` its reports, `terms` the
    name of its terms."""
    count = len(sealed) // SEALED_BYTES
    head = _HEAD.pack(_MAGIC, account, round, tier, key, terms, count, SEALED_BYTES, _NO_MAC)
    return head[:-_MAC_BYTES] + _mac(head[:-_MAC_BYTES], sealed, account_key) + sealed


def decode_submission(payload: bytes, reports: int, tiers: int) -> Submission:
    """Raises where it is not exactly one submission of a federation with so many reports and tiers.
    Whose it is was not checked yet: `is_authentic` does."""
    if payload[:3] == _MAGIC[:3] and payload[3:4] != _MAGIC[3:]:
        raise Refused("version", "this is a submission of another release of Sottovoce")
    if len(payload) < _HEAD.size or payload[:4] != _MAGIC:
        raise Refused("malformed", "this is no submission")
    _, account, round, tier, key, terms, count, size, mac = _HEAD.unpack_from(payload)
    if size != SEALED_BYTES:
        raise Refused("malformed", f"a sealed report has {SEALED_BYTES} bytes")
    if count != reports or len(payload) != submission_bytes(reports):
        raise Refused("malformed", f"a submission has exactly {reports} reports")
    if tier >= tiers:
        raise Refused("malformed", "there is no such tier in the terms")
    sealed = memoryview(payload)[_HEAD.size :]
    return Submission(account, round, tier, key, mac[:MARK_BYTES], sealed, terms)


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
