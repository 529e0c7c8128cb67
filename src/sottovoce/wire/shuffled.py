"""What a device sends to the shuffler, and what the shuffler hands on to the server.

A submission says for which account, round and tier, to which key and under which terms it was made;
k sealed reports of equal size follow. The whole is authenticated with the account's key. Key and
terms must be those that the shuffler was told, because only reports made alike hide among each
other: a server that shows them differently to one device gets nothing of it.

A batch is the sealed reports of all devices of one tier. It comes in parts, so that neither side
needs much memory. Before the first part comes an announcement, a part without reports: whoever
takes the batch remembers its mark, and refuses any other batch of the round and tier before
anything of it has left the shuffler. A batch that a shuffler drops, because too few of its reports
could be opened, is announced as one of no parts: the round need not wait for it.

In a chain a device seals each report to the server, then to the last shuffler, and so on down to
the second one. Each takes its own layer off, so that records shrink from shuffler to shuffler.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.links import LAYER_BYTES, Proxied
from sottovoce.errors import MessageError
from sottovoce.wire.frames import BATCH_PART, SUBMISSION
from sottovoce.wire.sealing import (
    SEALED_BYTES,
    key_id,
    layer_info,
    seal_layer,
    seal_reports,
)
from sottovoce.wire.terms import Terms

ACCOUNT_BYTES, ACCOUNT_KEY_BYTES = 16, 32
CHALLENGE_BYTES = 48
MARK_BYTES = 16
PART_BYTES = 8 << 20
"""Most bytes of sealed reports in one part of a batch."""
LONGEST_PART = BATCH_PART.size + PART_BYTES
_MAC_BYTES = 32
_NO_MAC = bytes(_MAC_BYTES)


def enrolment_statement(federation: str, admission: bytes, challenge: bytes) -> bytes:
    """What a device signs to have an account with the proxy, which has asked so."""
    return b"sottovoce proxy enrolment 2\0" + federation.encode() + b"\0" + admission + challenge


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


def record_bytes(link: Proxied, hop: int) -> int:
    """Return the bytes of a report that leaves the shuffler at place `hop`, counted from 0. The
    first shuffler passes reports on as devices send them."""
    return SEALED_BYTES + LAYER_BYTES * (link.shufflers - 1 - hop)


def seal_for(
    reports: NDArray[np.uint32], report_key: bytes, terms: Terms, *, round: int, tier: int
) -> bytes:
    """A device's reports, each sealed by itself to the server's key and then to every shuffler of
    the terms but the first, from the last one on."""
    place = {"round": round, "tier": tier}
    records = seal_reports(reports, report_key, federation=terms.federation, **place)
    link = terms.link.mixing
    if link is None:
        raise MessageError("the terms of the federation name no shuffler")
    for hop in range(link.shufflers - 1, 0, -1):
        public = link.chain[hop - 1].public()
        info = hop_info(terms, key_id(report_key), hop, **place)
        records = seal_layer(records, record_bytes(link, hop), public, info)
    return records


def hop_info(terms: Terms, key: bytes, hop: int, *, round: int, tier: int) -> bytes:
    """What the layer of the shuffler at place `hop` is sealed for; `key` is the name of the
    server's key."""
    link = terms.link.mixing
    if link is None or not 0 < hop < link.shufflers:
        raise MessageError("the terms name no shuffler at this place to seal for")
    return layer_info(
        link.chain[hop - 1].public(), federation=terms.federation, round=round, tier=tier, hop=hop,
        key=key, terms=terms_name(terms),
    )  # fmt: skip


def submission_bytes(reports: int, size: int = SEALED_BYTES) -> int:
    """The length of a submission of so many reports; there is no other."""
    return SUBMISSION.size + reports * size


def encode_submission(
    account: bytes,
    account_key: bytes,
    round: int,
    tier: int,
    key: bytes,
    sealed: bytes,
    *,
    terms: bytes,
    size: int = SEALED_BYTES,
) -> bytes:
    """What a device posts; `key` is the name of the server's key, `sealed` its reports of `size`
    bytes each, `terms` the name of its terms."""
    head = SUBMISSION.pack(account, round, tier, key, terms, len(sealed) // size, size, _NO_MAC)
    return head[:-_MAC_BYTES] + _mac(head[:-_MAC_BYTES], sealed, account_key) + sealed


def decode_submission(
    payload: bytes, reports: int, tiers: int, size: int = SEALED_BYTES
) -> SealedSubmission:
    """Raises where it is not exactly one submission of a federation with so many reports and tiers.
    Whose it is was not checked yet: `is_authentic` does."""
    account, round, tier, key, terms, count, found, mac = SUBMISSION.unpack(payload)
    if found != size:
        raise MessageError(f"a sealed report has {size} bytes")
    if count != reports or len(payload) != submission_bytes(reports, size):
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
    """Devices of the whole batch."""
    part: int
    parts: int
    mark: bytes
    """The batch's own, drawn by the shuffler."""
    body: bytes
    size: int = SEALED_BYTES
    """Bytes of a report."""

    @property
    def reports(self) -> int:
        return len(self.body) // self.size

    @property
    def announces(self) -> bool:
        """Whether it says that a batch is coming, and nothing else."""
        return not self.body and self.parts > 0

    @property
    def says_dropped(self) -> bool:
        """Whether it says that the tier's batch was dropped on the way."""
        return not self.parts

    def __repr__(self) -> str:
        place = f"{self.part} of {self.parts} round={self.round} tier={self.tier}"
        return f"<BatchPart {place}, redacted>"


def encode_part(part: BatchPart) -> bytes:
    batch = (part.round, part.tier, part.key, part.devices)
    place = (part.part, part.parts, part.mark)
    return BATCH_PART.pack(*batch, part.reports, part.size, *place) + part.body


def decode_part(payload: bytes, size: int = SEALED_BYTES) -> BatchPart:
    """Raises if it is no part of a batch of reports of `size` bytes; whether it is wanted is not
    looked at."""
    round, tier, key, devices, count, found, part, parts, mark = BATCH_PART.unpack(payload)
    if found != size:
        raise MessageError(f"a sealed report has {size} bytes, not {found}")
    if count * size != len(payload) - BATCH_PART.size:
        raise MessageError("the part has another length than it says")
    if part >= parts if count else part:
        raise MessageError("a part is empty, or beyond the last one")
    body = payload[BATCH_PART.size :]
    return BatchPart(round, tier, key, devices, part, parts, mark, body, size)


def _mac(head: bytes | memoryview, sealed: bytes | memoryview, account_key: bytes) -> bytes:
    made = hashlib.blake2b(head, key=account_key, digest_size=_MAC_BYTES)
    made.update(_NO_MAC)
    made.update(sealed)
    return made.digest()
