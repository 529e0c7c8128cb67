"""What a device of a checked sum sends, and what server and aggregators say to each other about it.

A device's message is what travels of its shares (`core.shares`), and behind it its record: the
device's public key, commitments to its three secrets, the hash of what travels, for each aggregator
two of the secrets, sealed to its key (HPKE, RFC 9180), and the device's signature over all of it.
The server passes both on to the two other aggregators and opens what is sealed to itself. All of it
is bound to the federation, its terms, round, attempt, the model that was learnt from and the
numbers of the sum: a record is good for nothing else.

Every secret is sealed to two aggregators, and both hold it against one signed commitment: they have
the same shares, or one of them says that it has none. What travels has a signed hash: who changed a
bit of it on the way could see from the checks what the bit was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from sottovoce.core.contributions import numbers_of
from sottovoce.core.links import SHARED_RECORD_BYTES, CheckedSum
from sottovoce.core.masking import SEED_BYTES
from sottovoce.core.messages import CheckParts, ModelView, SumPart
from sottovoce.core.shares import AGGREGATORS, CHECKS, NUMBER_BYTES, Elements, P
from sottovoce.errors import ConfigError, KeyTrouble, MessageError
from sottovoce.wire import signing
from sottovoce.wire.frames import (
    CHECK_PARTS,
    CHECK_QUESTION,
    COIN,
    COIN_QUESTION,
    PART_QUESTION,
    SHARED,
    SHARES,
    SUM_PART,
    Frame,
)
from sottovoce.wire.masked import MOST_DEVICES, binding, model_name
from sottovoce.wire.shuffled import terms_name
from sottovoce.wire.terms import Terms

_KEY_BYTES, _HASH_BYTES = 32, 32
_SEALED_BYTES = 32 + 2 * SEED_BYTES + 16
NAME_BYTES, COIN_BYTES = 32, 32
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_COMMITTED_FOR = b"sottovoce secret of a share\0"
_SEALED_FOR, _SIGNED_FOR = b"sottovoce secrets of shares\0", b"sottovoce record of shares\0"
_PAIR_FOR = b"sottovoce pair of aggregators\0"
LONGEST_QUESTION = (
    PART_QUESTION.size + MOST_DEVICES * NAME_BYTES + AGGREGATORS * COIN_BYTES + MOST_DEVICES // 8
)


@dataclass(frozen=True, slots=True, repr=False)
class SharedRecord:
    """What a device says of its shares, as the server passes it on."""

    device: bytes
    """Public key of the device that says so."""
    commitments: tuple[bytes, ...]
    """To its secrets."""
    travelled: bytes
    """The hash of what travels beside."""
    sealed: tuple[bytes, ...]
    """For each aggregator, two secrets."""
    signature: bytes

    @classmethod
    def of(cls, content: bytes | memoryview) -> SharedRecord:
        found = bytes(content)
        sizes = [_KEY_BYTES, *[_HASH_BYTES] * (AGGREGATORS + 1), *[_SEALED_BYTES] * AGGREGATORS]
        ends = np.cumsum([0, *sizes]).tolist()
        device, *parts = (found[a:b] for a, b in pairwise(ends))
        *committed, travelled = parts[: AGGREGATORS + 1]
        return cls(
            device, tuple(committed), travelled, tuple(parts[AGGREGATORS + 1 :]), found[ends[-1] :]
        )

    @property
    def content(self) -> bytes:
        return self.said + self.signature

    @property
    def said(self) -> bytes:
        """All that is signed."""
        return b"".join([self.device, *self.commitments, self.travelled, *self.sealed])

    @property
    def name(self) -> bytes:
        """The name of the submission."""
        return hashlib.sha256(self.content).digest()

    def __repr__(self) -> str:
        return "<SharedRecord, redacted>"


@dataclass(frozen=True, slots=True, repr=False)
class SharedMessage:
    travelled: bytes
    """Numbers below p, four bytes each."""
    record: SharedRecord

    def __repr__(self) -> str:
        return f"<SharedMessage of {len(self.travelled) // NUMBER_BYTES:,} numbers>"


class About(NamedTuple):
    """What server and aggregators talk about."""

    round: int
    attempt: int
    terms: bytes
    """Name of the server's terms."""
    model: bytes
    """Name of the model that all have learnt from."""
    numbers: int
    """Number of values in the sum."""

    @classmethod
    def of(cls, terms: Terms, round: int, attempt: int, model: bytes, numbers: int) -> About:
        return cls(round, attempt, terms_name(terms), model, numbers)

    def bound(self, terms: Terms) -> bytes:
        """What records are good for."""
        return binding(terms, self.round, self.attempt, self.model, self.numbers)


@dataclass(frozen=True, slots=True, repr=False)
class SetQuestion:
    """server → aggregator: about a set of submissions, which are named in order."""

    about: About
    names: tuple[bytes, ...]
    coins: tuple[bytes, ...] = ()
    """Coins of all aggregators, once they are known."""
    kept: NDArray[np.bool_] | None = None
    """Which submissions are kept, once that is known."""

    def __repr__(self) -> str:
        return f"<SetQuestion round={self.about.round} devices={len(self.names)}>"


# --- records -------------------------------------------------------------------------------------


def public_keys(link: CheckedSum) -> list[X25519PublicKey]:
    """The aggregators', to which devices seal."""
    try:
        found = [X25519PublicKey.from_public_bytes(bytes.fromhex(one)) for one in link.keys]
    except ValueError:
        found = []
    if len(found) != AGGREGATORS:
        raise KeyTrouble(
            "the terms of the federation name no good keys of three aggregators, so that nothing "
            "can be sealed to them; tell the operator"
        )
    return found


def make_record(
    secrets: Sequence[bytes],
    travelled: bytes,
    key: Ed25519PrivateKey,
    link: CheckedSum,
    bound: bytes,
) -> SharedRecord:
    """Sealing draws from the operating system: the same secrets give other bytes each time."""
    device = key.public_key().public_bytes_raw()
    commitments = tuple(_commitment(bound, k, one) for k, one in enumerate(secrets))
    try:
        sealed = tuple(
            _SUITE.encrypt(
                secrets[k] + secrets[(k + 1) % AGGREGATORS], public, info=_info(bound, k, device)
            )
            for k, public in enumerate(public_keys(link))
        )
    except ValueError:  # a public key of low order, with which nothing would be secret
        raise KeyTrouble("an aggregator's key is not good; nothing was sealed") from None
    digest = hashlib.sha256(travelled).digest()
    unsigned = SharedRecord(device, commitments, digest, sealed, b"")
    signature = key.sign(_SIGNED_FOR + bound + unsigned.said)
    return SharedRecord(device, commitments, digest, sealed, signature)


def is_signed(record: SharedRecord, bound: bytes) -> bool:
    """Whether the device whose key it names has signed this for this."""
    return signing.is_signed(record.device, _SIGNED_FOR + bound + record.said, record.signature)


def fits(record: SharedRecord, travelled: bytes, elements: int) -> bool:
    """Whether this is what its device says to have sent beside it, and could be."""
    if len(travelled) != elements * NUMBER_BYTES or not _below(travelled):
        return False
    return hashlib.sha256(travelled).digest() == record.travelled


def open_secrets(
    record: SharedRecord, number: int, key: X25519PrivateKey, bound: bytes
) -> tuple[bytes, bytes] | None:
    """The two secrets of aggregator `number`; None where they were not sealed by this device for
    this, or are not those that it has committed to."""
    try:
        both = _SUITE.decrypt(record.sealed[number], key, info=_info(bound, number, record.device))
    except (InvalidTag, ValueError):
        return None
    found = both[:SEED_BYTES], both[SEED_BYTES:]
    places = number, (number + 1) % AGGREGATORS
    good = len(both) == 2 * SEED_BYTES and all(
        _commitment(bound, at, one) == record.commitments[at]
        for at, one in zip(places, found, strict=True)
    )
    return found if good else None


def pair_secrets(terms: Terms, number: int, key: X25519PrivateKey) -> tuple[bytes, bytes]:
    """What aggregator `number`, whose key this is, shares with the next one and with the one
    before, and nobody else knows."""
    link = terms.link.checking
    if link is None:
        raise ConfigError("only a checked sum has aggregators")
    keys, name = public_keys(link), terms.federation.encode()
    after, before = (number + 1) % AGGREGATORS, (number - 1) % AGGREGATORS
    which = {after: bytes([number, after]), before: bytes([before, number])}

    def shared(other: int) -> bytes:
        info = _PAIR_FOR + len(name).to_bytes(4, "little") + name + terms_name(terms)
        try:
            secret = key.exchange(keys[other])
        except ValueError:
            raise KeyTrouble("an aggregator's key is not good; nothing was shared") from None
        made = HKDF(hashes.SHA256(), SEED_BYTES, salt=None, info=info + which[other])
        return made.derive(secret)

    return shared(after), shared(before)


def _commitment(bound: bytes, place: int, secret: bytes) -> bytes:
    return hashlib.sha256(_COMMITTED_FOR + bound + bytes([place]) + secret).digest()


def _info(bound: bytes, place: int, device: bytes) -> bytes:
    return _SEALED_FOR + bound + bytes([place]) + device


# --- device → server -----------------------------------------------------------------------------


def message_bytes(elements: int) -> int:
    """The length of a device's message with so many shared numbers; there is no other."""
    return SHARED.size + elements * NUMBER_BYTES + SHARED_RECORD_BYTES


def most_elements(terms: Terms) -> int:
    """Shared numbers of a device's message in any round, at most."""
    link = terms.link.checking
    if link is None:
        raise ConfigError("only a checked sum takes shares")
    paired = int((np.sqrt(8 * terms.most_numbers + 1) - 1) // 2)
    while numbers_of(paired, True) > terms.most_numbers:
        paired -= 1
    forms = link.form(terms.n_items + 1, False), link.form(max(1, paired), True)
    return max(form.elements for form in forms)


def encode_shared(travelled: bytes, record: SharedRecord, round: int, attempt: int) -> bytes:
    head = SHARED.pack(round, attempt, len(travelled) // NUMBER_BYTES)
    return head + travelled + record.content


def seal_shared(
    terms: Terms,
    attempt: int,
    view: ModelView,
    travelled: Elements,
    secrets: Sequence[bytes],
    key: Ed25519PrivateKey,
) -> bytes:
    """The message of whoever has this key: what travels of its shares, which were made of what it
    has learnt from this model, and its secrets, sealed to the aggregators and signed."""
    link = terms.link.checking
    if link is None:
        raise ConfigError("only a checked sum takes shares")
    numbers = terms.build().report_shape(view)[0]
    bound = binding(terms, view.round, attempt, model_name(view.items), numbers)
    sent = travelled.astype("<u4").tobytes()
    record = make_record(secrets, sent, key, link, bound)
    return encode_shared(sent, record, view.round, attempt)


def decode_shared(payload: bytes, round: int, attempt: int, elements: int) -> SharedMessage:
    """The inverse of `encode_shared`. Rejects whatever is not of this round, in which devices share
    so many numbers. Whether its hash is right is not looked at."""
    sent_round, sent_attempt, sent = SHARED.unpack(payload)
    if (sent_round, sent_attempt) != (round, attempt):
        raise MessageError(
            f"shares for attempt {sent_attempt} at round {sent_round}, it is attempt {attempt} at "
            f"round {round}"
        )
    if sent != elements or len(payload) != message_bytes(elements):
        raise MessageError(f"{elements:,} numbers travel of a device in this round")
    travelled = payload[SHARED.size : -SHARED_RECORD_BYTES]
    if not _below(travelled):
        raise MessageError("a number that travels is below the field's prime")
    return SharedMessage(travelled, SharedRecord.of(payload[-SHARED_RECORD_BYTES:]))


def elements_of(travelled: bytes) -> Elements:
    """The numbers that have travelled, as `fits` has found them."""
    return np.frombuffer(travelled, "<u4").astype(np.uint32)


def _below(numbers: bytes) -> bool:
    """Whether all of these are below p."""
    found = np.frombuffer(numbers, "<u4")
    return not len(found) or int(found.max()) < P


# --- server → aggregator -------------------------------------------------------------------------


def encode_shares(about: About, sent: Sequence[tuple[SharedRecord, bytes]]) -> bytes:
    """Some submissions: of each its record, and what travels. All have one length."""
    parts = [_head(SHARES, about, len(sent))]
    for record, travelled in sent:
        parts += [record.content, travelled]
    return b"".join(parts)


def decode_shares(payload: bytes) -> tuple[About, list[tuple[SharedRecord, bytes]]]:
    about, count = _asked(SHARES, payload)
    content = memoryview(payload)[SHARES.size :]
    each, rest = divmod(len(content), max(1, count))
    if not 0 < count <= MOST_DEVICES or rest or each <= SHARED_RECORD_BYTES or each % NUMBER_BYTES:
        raise MessageError("the length of the message does not match its head")
    found = []
    for at in range(0, len(content), each):
        ends = at + SHARED_RECORD_BYTES
        found.append((SharedRecord.of(content[at:ends]), bytes(content[ends : at + each])))
    return about, found


def encode_question(question: SetQuestion) -> bytes:
    """For a coin; with coins for checks; with those who are kept, too, for a part of the sum."""
    frame = _frame(bool(question.coins), question.kept is not None)
    head = _head(frame, question.about, len(question.names))
    kept = b"" if question.kept is None else _bits(question.kept)
    return head + b"".join([*question.names, *question.coins]) + kept


def decode_question(payload: bytes, *, coins: bool = False, kept: bool = False) -> SetQuestion:
    """The inverse of `encode_question`; which of the three questions is expected follows from the
    address at which it comes."""
    frame = _frame(coins, kept)
    about, count = _asked(frame, payload)
    told, bits = AGGREGATORS * COIN_BYTES * coins, -(-count // 8) * kept
    if not 0 < count <= MOST_DEVICES or len(payload) != (
        frame.size + count * NAME_BYTES + told + bits
    ):
        raise MessageError("the length of the message does not match its head")
    ends = frame.size + count * NAME_BYTES
    names = _pieces(payload[frame.size : ends], NAME_BYTES)
    if any(one >= other for one, other in pairwise(names)):
        raise MessageError("the submissions of a set are named in order, and once each")
    found = None
    if kept:
        packed = payload[ends + told :]
        found = np.unpackbits(np.frombuffer(packed, np.uint8))[:count].astype(bool)
        if _bits(found) != packed:
            raise MessageError("a set has no more submissions than it names")
    return SetQuestion(about, names, _pieces(payload[ends : ends + told], COIN_BYTES), found)


def _frame(coins: bool, kept: bool) -> Frame:
    if kept and not coins:
        raise MessageError("a part of a sum is told when the coins are known")
    return PART_QUESTION if kept else CHECK_QUESTION if coins else COIN_QUESTION


def _head(frame: Frame, about: About, count: int) -> bytes:
    round, attempt, terms, model, numbers = about
    return frame.pack(round, attempt, count, terms, model, numbers)


def _asked(frame: Frame, payload: bytes) -> tuple[About, int]:
    round, attempt, count, terms, model, numbers = frame.unpack(payload)
    return About(round, attempt, terms, model, numbers), count


def _bits(kept: NDArray[np.bool_]) -> bytes:
    return np.packbits(kept).tobytes()


def _pieces(content: bytes, size: int) -> tuple[bytes, ...]:
    return tuple(content[at : at + size] for at in range(0, len(content), size))


# --- aggregator → server -------------------------------------------------------------------------


def encode_coin(round: int, coin: bytes) -> bytes:
    return COIN.pack(round, coin)


def decode_coin(payload: bytes, round: int) -> bytes:
    of, coin = COIN.unpack(payload)
    if of != round or len(payload) != COIN.size:
        raise MessageError("the aggregator told the coin of another round")
    return bytes(coin)


def encode_checks(told: CheckParts) -> bytes:
    return CHECK_PARTS.pack(told.round, len(told.parts)) + told.parts.astype("<u4").tobytes()


def decode_checks(payload: bytes, round: int, aggregator: int, devices: int) -> CheckParts:
    """The inverse of `encode_checks`. Rejects what is not of so many devices of this round."""
    of, many = CHECK_PARTS.unpack(payload)
    found = _numbers(payload[CHECK_PARTS.size :], devices * CHECKS)
    if (of, many) != (round, devices):
        raise MessageError("the aggregator told checks of other devices")
    return CheckParts(round, aggregator, found.reshape(devices, CHECKS))


def encode_part(told: SumPart) -> bytes:
    head = SUM_PART.pack(told.round, told.devices, len(told.part))
    return head + told.part.astype("<u4").tobytes()


def part_bytes(numbers: int) -> int:
    """The length of an aggregator's answer with so many numbers of a sum."""
    return SUM_PART.size + numbers * NUMBER_BYTES


def decode_part(payload: bytes, round: int, aggregator: int, devices: int, numbers: int) -> SumPart:
    """The inverse of `encode_part`. Rejects what is not of so many devices of this round."""
    of, many, told = SUM_PART.unpack(payload)
    found = _numbers(payload[SUM_PART.size :], numbers)
    if (of, many, told) != (round, devices, numbers):
        raise MessageError("the aggregator told a part of another sum")
    return SumPart(round, aggregator, devices, found)


def _numbers(content: bytes, many: int) -> Elements:
    if len(content) != many * NUMBER_BYTES or not _below(content):
        raise MessageError(
            "the aggregator's answer has another length than it should, or numbers "
            "that there are not"
        )
    return elements_of(content)
