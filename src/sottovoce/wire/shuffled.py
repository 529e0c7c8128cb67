"""What a device sends to the shuffler, and what the shuffler hands on to the server.

A submission says for which account, round and tier, to which key and under which terms it was made;
k sealed reports of equal size follow. The whole is authenticated with the account's key. Key and
terms must be those that the shuffler was told, because only reports made alike hide among each
other: a server that shows them differently to one device gets nothing of it.

A batch is the sealed reports of all devices of one tier. It comes in parts, so that neither side
needs much memory.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass

from sottovoce.errors import MessageError
from sottovoce.wire.frames import BATCH_PART, SUBMISSION
from sottovoce.wire.sealing import SEALED_BYTES
from sottovoce.wire.terms import Terms

ACCOUNT_BYTES, ACCOUNT_KEY_BYTES = 16, 32
MARK_BYTES = 16
PART_BYTES = 8 << 20
"""Most bytes of sealed reports in one part of a batch."""
LONGEST_PART = BATCH_PART.size + PART_BYTES
_MAC_BYTES = 32
_NO_MAC = bytes(_MAC_BYTES)


@dataclass(frozen=True, slots=True, repr=False)
class SealedSubmission:
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
        return f"<SealedSubmission round={self.round} tier={self.tier}, redacted>"


def terms_name(terms: Terms) -> bytes:
    """The same for equal terms alone, also where somebody looks for others of the same name."""
    return hashlib.sha256(json.dumps(terms.to_table(), sort_keys=True).encode()).digest()


def submission_bytes(reports: int) -> int:
    """The length of a submission of so many reports; there is no other."""
    return SUBMISSION.size + reports * SEALED_BYTES


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
    head = SUBMISSION.pack(account, round, tier, key, terms, count, SEALED_BYTES, _NO_MAC)
    return head[:-_MAC_BYTES] + _mac(head[:-_MAC_BYTES], sealed, account_key) + sealed


def decode_submission(payload: bytes, reports: int, tiers: int) -> SealedSubmission:
    """Raises where it is not exactly one submission of a federation with so many reports and tiers.
    Whose it is was not checked yet: `is_authentic` does."""
    account, round, tier, key, terms, count, size, mac = SUBMISSION.unpack(payload)
    if size != SEALED_BYTES:
        raise MessageError(f"a sealed report has {SEALED_BYTES} bytes")
    if count != reports or len(payload) != submission_bytes(reports):
        raise MessageError(f"a submission has exactly {reports} reports")
    if tier >= tiers:
        raise MessageError("there is no such tier in the terms")
    sealed = memoryview(payload)[SUBMISSION.size :]
    return SealedSubmission(account, round, tier, key, mac[:MARK_BYTES], sealed, terms)


def is_authentic(payload: bytes, account_key: bytes) -> bool:
    """Whether whoever holds the account's key has made this submission."""
    stop = SUBMISSION.size - _MAC_BYTES
    view = memoryview(payload)
    made = _mac(view[:stop], view[SUBMISSION.size :], account_key)
    return hmac.compare_digest(made, view[stop : SUBMISSION.size])


@dataclass(frozen=True, slots=True, repr=False)
class BatchPart:
    round: int
    tier: int
    key: bytes
    """Name of the key to which its reports are sealed."""
    devices: int
    """Of the whole batch."""
    part: int
    parts: int
    mark: bytes
    """The batch's own, drawn by the shuffler."""
    body: bytes

    @property
    def reports(self) -> int:
        return len(self.body) // SEALED_BYTES

    def __repr__(self) -> str:
        place = f"{self.part} of {self.parts} round={self.round} tier={self.tier}"
        return f"<BatchPart {place}, redacted>"


def encode_part(part: BatchPart) -> bytes:
    batch = (part.round, part.tier, part.key, part.devices)
    place = (part.part, part.parts, part.mark)
    return BATCH_PART.pack(*batch, part.reports, SEALED_BYTES, *place) + part.body


def decode_part(payload: bytes) -> BatchPart:
    """Raises if it is no part of a batch; whether it is wanted is not looked at."""
    round, tier, key, devices, count, size, part, parts, mark = BATCH_PART.unpack(payload)
    if size != SEALED_BYTES:
        raise MessageError(f"a sealed report has {SEALED_BYTES} bytes, not {size}")
    if count * size != len(payload) - BATCH_PART.size:
        raise MessageError("the part has another length than it says")
    if not 0 <= part < parts or not count:
        raise MessageError("a part is empty, or beyond the last one")
    return BatchPart(round, tier, key, devices, part, parts, mark, payload[BATCH_PART.size :])


def _mac(head: bytes | memoryview, sealed: bytes | memoryview, account_key: bytes) -> bytes:
    made = hashlib.blake2b(head, key=account_key, digest_size=_MAC_BYTES)
    made.update(_NO_MAC)
    made.update(sealed)
    return made.digest()
