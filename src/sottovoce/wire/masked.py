"""What a device of a secure sum sends, and what server and proxy say to each other about it.

A device's message is its masked update, a number for every number of the model, and behind it a
record: the device's public key, the mask's seed sealed to the proxy's key (HPKE, RFC 9180), and the
device's signature over it. All messages of a federation have the same length. The server passes the
records on and cannot open them. Seal and signature are bound to the federation, its terms, round,
attempt, device and the model that was learnt from: a record is good for nothing else. So all in a
sum have learnt from one model; from the sum over devices of which all but one were shown a model
that teaches nothing, that one's update would follow.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from numpy.typing import NDArray

from sottovoce.core.links import MOST_GROUPS, SecureSum
from sottovoce.core.masking import SEED_BYTES, Words
from sottovoce.core.messages import MaskSum
from sottovoce.errors import KeyTrouble, MessageError
from sottovoce.wire import signing as possession
from sottovoce.wire.shuffled import TERMS_BYTES, terms_name
from sottovoce.wire.terms import Terms

KEY_BYTES = 32
_SEALED_BYTES, _SIGNATURE_BYTES = 32 + SEED_BYTES + 16, 64
RECORD_BYTES = KEY_BYTES + _SEALED_BYTES + _SIGNATURE_BYTES
"""Of a device's key, its sealed seed and its signature."""
MOST_DEVICES = 1 << 18
"""In one sum."""

_HEAD = struct.Struct("<4sIII")
_MAGIC, _SUM_MAGIC = b"SVM1", b"SVK1"
MODEL_BYTES = 32
_QUESTION = struct.Struct(f"<4sIII{TERMS_BYTES}s{MODEL_BYTES}s")
_QUESTION_MAGIC, _GROUPS_MAGIC = b"SVQ1", b"SVQ2"
_GROUPS = struct.Struct("<II")
_GROUP = struct.Struct("<I")
LONGEST_QUESTION = (
    _QUESTION.size + _GROUPS.size + MOST_GROUPS * _GROUP.size + MOST_DEVICES * RECORD_BYTES
)
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_SEALED_FOR, _SIGNED_FOR = b"sottovoce mask seed\0", b"sottovoce sealed mask seed\0"


@dataclass(frozen=True, slots=True, repr=False)
class Record:
    """A device's sealed seed, as the server passes it on."""

    device: bytes
    """Public key of the device that says so."""
    sealed: bytes
    signature: bytes

    @classmethod
    def of(cls, content: bytes | memoryview) -> Record:
        found, ends = bytes(content), KEY_BYTES + _SEALED_BYTES
        return cls(found[:KEY_BYTES], found[KEY_BYTES:ends], found[ends:])

    @property
    def content(self) -> bytes:
        return self.device + self.sealed + self.signature

    def __repr__(self) -> str:
        return "<Record, redacted>"


@dataclass(frozen=True, slots=True, repr=False)
class MaskedMessage:
    masked: Words
    record: Record

    def __repr__(self) -> str:
        return f"<MaskedMessage of {len(self.masked):,} numbers>"


@dataclass(frozen=True, slots=True, repr=False)
class Question:
    """server → proxy: the sum of the masks of these submissions, or of one of their groups."""

    round: int
    attempt: int
    terms: bytes
    """Name of the server's terms."""
    model: bytes
    """Name of the model that all have learnt from."""
    records: tuple[Record, ...]
    """Of the whole round, a group after the other."""
    sizes: tuple[int, ...]
    """Of the groups; one where there are none."""
    group: int = 0
    """Whose sum is asked for."""

    def __repr__(self) -> str:
        return f"<Question round={self.round} devices={len(self.records)}>"

    @property
    def groups(self) -> list[tuple[Record, ...]]:
        ends = [0, *accumulate(self.sizes)]
        return [self.records[start:end] for start, end in pairwise(ends)]


# --- seeds ---------------------------------------------------------------------------------------


def model_name(items: NDArray[np.float32]) -> bytes:
    """The same for equal models alone, also where somebody looks for others of the same name."""
    return hashlib.sha256(np.ascontiguousarray(items, dtype="<f4").tobytes()).digest()


def binding(terms: Terms, round: int, attempt: int, model: bytes) -> bytes:
    """What a record is good for."""
    name = terms.federation.encode()
    where = struct.pack("<III", len(name), round, attempt)
    return where + name + terms_name(terms) + model


def public_key(link: SecureSum) -> X25519PublicKey:
    """The proxy's, to which devices seal."""
    try:
        return X25519PublicKey.from_public_bytes(bytes.fromhex(link.key))
    except ValueError:
        raise KeyTrouble(
            "the terms of the federation name no good key of the proxy, so that nothing can be "
            "sealed to it; tell the operator"
        ) from None


def seal_seed(seed: bytes, key: Ed25519PrivateKey, link: SecureSum, bound: bytes) -> Record:
    """Sealing draws from the operating system: the same seed gives other bytes each time."""
    device = key.public_key().public_bytes_raw()
    try:
        sealed = _SUITE.encrypt(seed, public_key(link), info=_SEALED_FOR + bound + device)
    except ValueError:  # a public key of low order, with which nothing would be secret
        raise KeyTrouble("the proxy's key is not good; nothing was sealed") from None
    return Record(device, sealed, key.sign(_SIGNED_FOR + bound + sealed))


def open_seed(record: Record, key: X25519PrivateKey, bound: bytes) -> bytes | None:
    """The seed; None where this was not sealed by this device for this."""
    try:
        seed = _SUITE.decrypt(record.sealed, key, info=_SEALED_FOR + bound + record.device)
    except (InvalidTag, ValueError):
        return None
    return seed if len(seed) == SEED_BYTES else None


def is_signed(record: Record, bound: bytes) -> bool:
    """Whether the device whose key it names has signed this for this."""
    statement = _SIGNED_FOR + bound + record.sealed
    return possession.is_signed(record.device, statement, record.signature)


# --- device → server -----------------------------------------------------------------------------


def message_bytes(terms: Terms) -> int:
    """The length of a device's message; there is no other."""
    return _HEAD.size + 8 * terms.n_rows * terms.width + RECORD_BYTES


def encode_masked(masked: Words, record: Record, round: int, attempt: int) -> bytes:
    head = _HEAD.pack(_MAGIC, round, attempt, len(masked))
    return head + masked.astype("<u8").tobytes() + record.content


def decode_masked(payload: bytes, terms: Terms, round: int, attempt: int) -> MaskedMessage:
    """The inverse of `encode_masked`. Rejects whatever is not of this round and these terms."""
    numbers = terms.n_rows * terms.width
    if len(payload) < _HEAD.size:
        raise MessageError("message too short")
    magic, sent_round, sent_attempt, sent = _HEAD.unpack_from(payload)
    if magic != _MAGIC:
        raise MessageError("not a masked update of this version")
    if (sent_round, sent_attempt) != (round, attempt):
        raise MessageError(
            f"masked update for attempt {sent_attempt} at round {sent_round}, it is attempt "
            f"{attempt} at round {round}"
        )
    if sent != numbers or len(payload) != message_bytes(terms):
        raise MessageError(f"a masked update has {numbers:,} numbers, as the model has")
    masked = np.frombuffer(payload, "<u8", numbers, _HEAD.size).astype(np.uint64, copy=False)
    return MaskedMessage(masked, Record.of(payload[-RECORD_BYTES:]))


# --- server ↔ proxy ------------------------------------------------------------------------------


def encode_question(
    terms: Terms, round: int, attempt: int, model: bytes, records: Sequence[Record]
) -> bytes:
    """Of a round with one sum."""
    head = _QUESTION.pack(_QUESTION_MAGIC, round, attempt, len(records), terms_name(terms), model)
    return head + b"".join(record.content for record in records)


def encode_group_question(
    terms: Terms,
    round: int,
    attempt: int,
    model: bytes,
    groups: Sequence[Sequence[Record]],
    group: int,
) -> bytes:
    """Of a round with several: it names all of them, and asks for one."""
    count = sum(map(len, groups))
    head = _QUESTION.pack(_GROUPS_MAGIC, round, attempt, count, terms_name(terms), model)
    sizes = b"".join(_GROUP.pack(len(one)) for one in groups)
    contents = b"".join(record.content for one in groups for record in one)
    return head + _GROUPS.pack(len(groups), group) + sizes + contents


def decode_question(payload: bytes) -> Question:
    """The inverse of both."""
    if len(payload) < _QUESTION.size:
        raise MessageError("message too short")
    magic, round, attempt, count, name, model = _QUESTION.unpack_from(payload)
    if magic not in (_QUESTION_MAGIC, _GROUPS_MAGIC):
        raise MessageError("not a question for a sum of masks of this version")
    wrong = MessageError("the length of the message does not match its head")
    sizes, group, start = (count,), 0, _QUESTION.size
    if magic == _GROUPS_MAGIC:
        if len(payload) < start + _GROUPS.size:
            raise wrong
        many, group = _GROUPS.unpack_from(payload, start)
        start += _GROUPS.size
        if (
            not 1 < many <= MOST_GROUPS
            or group >= many
            or len(payload) < start + many * _GROUP.size
        ):
            raise wrong
        sizes = struct.unpack_from(f"<{many}I", payload, start)
        start += many * _GROUP.size
    if count > MOST_DEVICES or sum(sizes) != count or len(payload) != start + count * RECORD_BYTES:
        raise wrong
    content = memoryview(payload)[start:]
    records = tuple(
        Record.of(content[at : at + RECORD_BYTES]) for at in range(0, len(content), RECORD_BYTES)
    )
    return Question(round, attempt, name, model, records, sizes, group)


def encode_sum(told: MaskSum) -> bytes:
    head = _HEAD.pack(_SUM_MAGIC, told.round, told.devices, len(told.masks))
    return head + told.masks.astype("<u8").tobytes()


def sum_bytes(terms: Terms) -> int:
    """The length of the proxy's answer."""
    return _HEAD.size + 8 * terms.n_rows * terms.width


def decode_sum(payload: bytes) -> MaskSum:
    """The inverse of `encode_sum`. Whether it is the sum that was asked for is seen when it is
    opened."""
    if len(payload) < _HEAD.size:
        raise MessageError("the proxy's answer is too short")
    magic, round, devices, numbers = _HEAD.unpack_from(payload)
    if magic != _SUM_MAGIC or len(payload) != _HEAD.size + 8 * numbers:
        raise MessageError("the proxy's answer is no sum of masks of this version")
    masks = np.frombuffer(payload, "<u8", numbers, _HEAD.size).astype(np.uint64, copy=False)
    return MaskSum(round, devices, masks)
