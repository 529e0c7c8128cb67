"""What a device of a secure sum sends, and what server and helper say to each other about it.

A device's message is its masked update, a number for every number of the model, and behind it its
sealed seed: the device's public key, the mask's seed sealed to the helper's key (HPKE, RFC 9180),
and the device's signature over it. All messages of a federation have the same length. The server
passes the sealed seeds on and cannot open them. Seal and signature are bound to the federation, its
terms, round, attempt, device and the model that was learnt from: a sealed seed is good for nothing
else. So all in a sum have learnt from one model; from the sum over devices of which all but one
were shown a model that teaches nothing, that one's update would follow.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from numpy.typing import NDArray

from sottovoce.core.links import MOST_GROUPS, SEALED_SEED_BYTES, SecureSum
from sottovoce.core.masking import SEED_BYTES, Words, from_bytes, to_bytes
from sottovoce.core.messages import MaskedReports, MaskSeeds, MaskSum, ModelView
from sottovoce.errors import ConfigError, KeyTrouble, MessageError
from sottovoce.wire import signing
from sottovoce.wire.frames import CONTRIBUTIONS, MASK_GROUPS, MASK_QUESTION, MASK_SUM, MASKED
from sottovoce.wire.shuffled import terms_name
from sottovoce.wire.terms import Terms

_KEY_BYTES, _SEALED_BYTES = 32, 32 + SEED_BYTES + 16
MOST_DEVICES = 1 << 18
"""In one sum."""

_GROUPS = struct.Struct("<II")
_GROUP = struct.Struct("<I")
LONGEST_QUESTION = (
    MASK_GROUPS.size + _GROUPS.size + MOST_GROUPS * _GROUP.size + MOST_DEVICES * SEALED_SEED_BYTES
)
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_SEALED_FOR, _SIGNED_FOR = b"sottovoce mask seed\0", b"sottovoce sealed mask seed\0"


@dataclass(frozen=True, slots=True, repr=False)
class SealedSeed:
    """A device's sealed seed, as the server passes it on."""

    device: bytes
    """Public key of the device that says so."""
    sealed: bytes
    signature: bytes

    @classmethod
    def of(cls, content: bytes | memoryview) -> SealedSeed:
        found, ends = bytes(content), _KEY_BYTES + _SEALED_BYTES
        return cls(found[:_KEY_BYTES], found[_KEY_BYTES:ends], found[ends:])

    @property
    def content(self) -> bytes:
        return self.device + self.sealed + self.signature

    def __repr__(self) -> str:
        return "<SealedSeed, redacted>"


@dataclass(frozen=True, slots=True, repr=False)
class MaskedMessage:
    masked: Words
    record: SealedSeed

    def __repr__(self) -> str:
        return f"<MaskedMessage of {len(self.masked):,} numbers>"


@dataclass(frozen=True, slots=True, repr=False)
class MaskSumQuestion:
    """server → proxy: the sum of the masks of these submissions, or of one of their groups."""

    round: int
    attempt: int
    terms: bytes
    """Name of the server's terms."""
    model: bytes
    """Name of the model that all have learnt from."""
    records: tuple[SealedSeed, ...]
    """Records of the whole round, one group after another."""
    sizes: tuple[int, ...]
    """Sizes of the groups; one size if there are no groups."""
    group: int = 0
    """The group whose sum is asked for."""
    numbers: int | None = None
    """Numbers of a contribution; None if they are those of the model."""

    def __repr__(self) -> str:
        return f"<MaskSumQuestion round={self.round} devices={len(self.records)}>"

    @property
    def groups(self) -> list[tuple[SealedSeed, ...]]:
        ends = [0, *accumulate(self.sizes)]
        return [self.records[start:end] for start, end in pairwise(ends)]


# --- seeds ---------------------------------------------------------------------------------------


def model_name(items: NDArray[np.float32]) -> bytes:
    """The same for equal models alone, also where somebody looks for others of the same name."""
    return hashlib.sha256(np.ascontiguousarray(items, dtype="<f4").tobytes()).digest()


def binding(
    terms: Terms, round: int, attempt: int, model: bytes, numbers: int | None = None
) -> bytes:
    """What a record is good for. `numbers` are those of a contribution, by which the helper knows
    which noise each of them gets: it has no model to see that from."""
    name = terms.federation.encode()
    where = struct.pack("<III", len(name), round, attempt)
    many = b"" if numbers is None else struct.pack("<I", numbers)
    return where + name + terms_name(terms) + model + many


def public_key(link: SecureSum) -> X25519PublicKey:
    """The proxy's, to which devices seal."""
    try:
        return X25519PublicKey.from_public_bytes(bytes.fromhex(link.key))
    except ValueError:
        raise KeyTrouble(
            "the terms of the federation name no good key of the helper, so that nothing can be "
            "sealed to it; tell the operator"
        ) from None


def seal_seed(seed: bytes, key: Ed25519PrivateKey, link: SecureSum, bound: bytes) -> SealedSeed:
    """Sealing draws from the operating system: the same seed gives other bytes each time."""
    device = key.public_key().public_bytes_raw()
    try:
        sealed = _SUITE.encrypt(seed, public_key(link), info=_SEALED_FOR + bound + device)
    except ValueError:  # a public key of low order, with which nothing would be secret
        raise KeyTrouble("the helper's key is not good; nothing was sealed") from None
    return SealedSeed(device, sealed, key.sign(_SIGNED_FOR + bound + sealed))


def open_seed(record: SealedSeed, key: X25519PrivateKey, bound: bytes) -> bytes | None:
    """The seed; None where this was not sealed by this device for this."""
    try:
        seed = _SUITE.decrypt(record.sealed, key, info=_SEALED_FOR + bound + record.device)
    except (InvalidTag, ValueError):
        return None
    return seed if len(seed) == SEED_BYTES else None


def is_signed(record: SealedSeed, bound: bytes) -> bool:
    """Whether the device whose key it names has signed this for this."""
    statement = _SIGNED_FOR + bound + record.sealed
    return signing.is_signed(record.device, statement, record.signature)


# --- device → server -----------------------------------------------------------------------------


def message_bytes(terms: Terms, numbers: int) -> int:
    """The length of a device's message with so many numbers; there is no other."""
    return MASKED.size + numbers * terms.bits // 8 + SEALED_SEED_BYTES


def encode_masked(
    terms: Terms, masked: Words, record: SealedSeed, round: int, attempt: int
) -> bytes:
    head = MASKED.pack(round, attempt, len(masked))
    return head + to_bytes(masked, terms.bits) + record.content


def seal_masked(
    terms: Terms,
    attempt: int,
    view: ModelView,
    reports: MaskedReports,
    seeds: MaskSeeds,
    key: Ed25519PrivateKey,
) -> bytes:
    """The message of whoever has this key: a masked update that was learnt from this model, and the
    seed of its mask, sealed to the helper and signed."""
    (message,) = seal_each(terms, attempt, view, reports, seeds, [key])
    return message


def seal_each(
    terms: Terms,
    attempt: int,
    view: ModelView,
    reports: MaskedReports,
    seeds: MaskSeeds,
    keys: Sequence[Ed25519PrivateKey],
) -> Iterator[bytes]:
    """The same of several, each with a key of its own."""
    link = terms.secure_sum
    if link is None:
        raise ConfigError("only a secure sum takes masked updates")
    numbers = reports.masked.shape[1] if terms.contributes else None
    bound = binding(terms, reports.round, attempt, model_name(view.items), numbers)
    for update, seed, key in zip(reports.masked, seeds.seeds, keys, strict=True):
        record = seal_seed(seed, key, link, bound)
        yield encode_masked(terms, update, record, reports.round, attempt)


def decode_masked(
    payload: bytes, terms: Terms, round: int, attempt: int, numbers: int
) -> MaskedMessage:
    """The inverse of `encode_masked`. Rejects whatever is not of this round, which has so many
    numbers, and these terms."""
    sent_round, sent_attempt, sent = MASKED.unpack(payload)
    if (sent_round, sent_attempt) != (round, attempt):
        raise MessageError(
            f"masked update for attempt {sent_attempt} at round {sent_round}, it is attempt "
            f"{attempt} at round {round}"
        )
    if sent != numbers or len(payload) != message_bytes(terms, numbers):
        raise MessageError(f"a masked update has {numbers:,} numbers in this round")
    masked = from_bytes(memoryview(payload)[MASKED.size : -SEALED_SEED_BYTES], terms.bits)
    return MaskedMessage(masked, sealed_seed(payload))


def sealed_seed(payload: bytes) -> SealedSeed:
    """Return the sealed seed of a device's message without reading its numbers."""
    return SealedSeed.of(payload[-SEALED_SEED_BYTES:])


# --- server ↔ proxy ------------------------------------------------------------------------------


def encode_question(
    terms: Terms,
    round: int,
    attempt: int,
    model: bytes,
    records: Sequence[SealedSeed],
    numbers: int | None = None,
) -> bytes:
    """Encode the question for a round with one sum, or whether these seeds can be opened."""
    head = MASK_QUESTION.pack(round, attempt, len(records), terms_name(terms), model)
    if numbers is not None:
        named = round, attempt, len(records), terms_name(terms), model
        head = CONTRIBUTIONS.pack(*named, numbers)
    return head + b"".join(record.content for record in records)


def encode_group_question(
    terms: Terms,
    round: int,
    attempt: int,
    model: bytes,
    groups: Sequence[Sequence[SealedSeed]],
    group: int,
) -> bytes:
    """Encode the question for a round with several groups: it names all and asks for one."""
    count = sum(map(len, groups))
    head = MASK_GROUPS.pack(round, attempt, count, terms_name(terms), model)
    sizes = b"".join(_GROUP.pack(len(one)) for one in groups)
    contents = b"".join(record.content for one in groups for record in one)
    return head + _GROUPS.pack(len(groups), group) + sizes + contents


def decode_question(payload: bytes) -> MaskSumQuestion:
    """The inverse of both."""
    frames = {frame.magic: frame for frame in (MASK_GROUPS, CONTRIBUTIONS)}
    frame = frames.get(payload[:4], MASK_QUESTION)
    round, attempt, count, name, model, *more = frame.unpack(payload)
    numbers = more[0] if more else None
    wrong = MessageError("the length of the message does not match its head")
    sizes, group, start = (count,), 0, frame.size
    if frame is MASK_GROUPS:
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
    if (
        count > MOST_DEVICES
        or sum(sizes) != count
        or len(payload) != start + count * SEALED_SEED_BYTES
    ):
        raise wrong
    content = memoryview(payload)[start:]
    records = tuple(
        SealedSeed.of(content[at : at + SEALED_SEED_BYTES])
        for at in range(0, len(content), SEALED_SEED_BYTES)
    )
    return MaskSumQuestion(round, attempt, name, model, records, sizes, group, numbers)


def encode_mask_sum(told: MaskSum) -> bytes:
    head = MASK_SUM.pack(told.round, told.devices, len(told.masks))
    return head + to_bytes(told.masks, told.bits)


def mask_sum_bytes(terms: Terms) -> int:
    """The length of the proxy's longest answer."""
    return MASK_SUM.size + terms.most_numbers * terms.bits // 8


def decode_mask_sum(payload: bytes, terms: Terms) -> MaskSum:
    """The inverse of `encode_mask_sum`. Whether it is the sum that was asked for is seen when it is
    opened."""
    round, devices, numbers = MASK_SUM.unpack(payload)
    if len(payload) != MASK_SUM.size + numbers * terms.bits // 8:
        raise MessageError("the helper's answer has another length than it says")
    masks = from_bytes(memoryview(payload)[MASK_SUM.size :], terms.bits)
    return MaskSum(round, devices, masks, terms.bits)
