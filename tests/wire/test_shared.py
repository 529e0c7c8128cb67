"""Messages of checked sums: what is written is read, what is not is refused in our own words; a
record is good for one device, one round, one aggregator each."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.links import SHARED_RECORD_BYTES, CheckedSum, SecureSum
from sottovoce.core.messages import ModelView
from sottovoce.core.shares import P, added, bits_of, share, split, zeros
from sottovoce.errors import ConfigError, KeyTrouble, MessageError
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.wire import shared
from sottovoce.wire.shared import About, SetQuestion, SharedRecord
from sottovoce.wire.terms import Terms

KEYS = [X25519PrivateKey.from_private_bytes(bytes([k]) * 32) for k in (1, 2, 3)]
DEVICE = Ed25519PrivateKey.from_private_bytes(bytes([9]) * 32)
LINK = CheckedSum(
    3,
    urls=("https://one", "https://two"),
    authorities=("one", "two"),
    keys=tuple(key.public_key().public_bytes_raw().hex() for key in KEYS),
)
TERMS = Terms("town", 20, GramConfig(popularity_share=0.5), OwnEpsilon(2.0), LINK)
FORM = LINK.form(21, False)
ABOUT = About.of(TERMS, 5, 1, bytes(32), 21)
BOUND = ABOUT.bound(TERMS)
SECRETS = tuple(bytes([k]) * 32 for k in (7, 8, 9))
BITS = bits_of(FORM, np.arange(21)[None, :])[0]
SENT = split(BITS, SECRETS).astype("<u4").tobytes()
RECORD = shared.make_record(SECRETS, SENT, DEVICE, LINK, BOUND)
NAMES = tuple(bytes([k]) * 32 for k in range(9))


def test_a_record_has_its_length_and_is_read_as_it_was_written():
    assert len(RECORD.content) == SHARED_RECORD_BYTES == 560
    assert SharedRecord.of(RECORD.content) == RECORD
    again = shared.make_record(SECRETS, SENT, DEVICE, LINK, BOUND)
    assert again.name != RECORD.name, "sealing draws"
    assert shared.is_signed(RECORD, BOUND)
    assert shared.fits(RECORD, SENT, FORM.elements)
    for number, key in enumerate(KEYS):
        mine = shared.open_secrets(RECORD, number, key, BOUND)
        assert mine == (SECRETS[number], SECRETS[(number + 1) % 3])
    message = shared.encode_shared(SENT, RECORD, 5, 1)
    assert len(message) == shared.message_bytes(FORM.elements)
    found = shared.decode_shared(message, 5, 1, FORM.elements)
    assert (found.travelled, found.record) == (SENT, RECORD)


def test_two_aggregators_have_the_vector_and_one_has_not():
    travelled = shared.elements_of(SENT)
    parts = [share(FORM, k, SECRETS[k], travelled) for k in range(3)]
    assert np.array_equal(added(parts), BITS)
    for k in range(3):
        mine = {k, (k + 1) % 3}
        assert len(mine) == 2
        assert not np.array_equal(added([parts[one] for one in mine]), BITS)


@pytest.mark.parametrize(
    "other",
    [
        ABOUT._replace(round=6).bound(TERMS),
        ABOUT._replace(attempt=0).bound(TERMS),
        ABOUT._replace(model=bytes([1]) * 32).bound(TERMS),
        ABOUT._replace(numbers=22).bound(TERMS),
        ABOUT.bound(replace(TERMS, federation="other")),
        ABOUT.bound(replace(TERMS, n_items=21)),
    ],
    ids=["round", "attempt", "model", "numbers", "federation", "terms"],
)
def test_a_record_is_good_for_what_it_is_bound_to_alone(other):
    assert not shared.is_signed(RECORD, other)
    for number, key in enumerate(KEYS):
        assert shared.open_secrets(RECORD, number, key, other) is None


def test_a_seal_is_for_one_aggregator_and_of_one_device():
    for number in range(3):
        for other in set(range(3)) - {number}:
            assert shared.open_secrets(RECORD, number, KEYS[other], BOUND) is None
            moved = [*RECORD.sealed]
            moved[number] = RECORD.sealed[other]
            assert shared.open_secrets(
                replace(RECORD, sealed=tuple(moved)), number, KEYS[number], BOUND
            ) is None  # fmt: skip
    stolen = replace(RECORD, device=bytes([5]) * 32)
    assert shared.open_secrets(stolen, 0, KEYS[0], BOUND) is None
    assert not shared.is_signed(stolen, BOUND)


@given(at=st.integers(0, SHARED_RECORD_BYTES - 1), flip=st.integers(1, 255))
@settings(max_examples=80, deadline=None)
def test_no_byte_of_a_record_can_be_changed(at, flip):
    content = bytearray(RECORD.content)
    content[at] ^= flip
    assert not shared.is_signed(SharedRecord.of(bytes(content)), BOUND)


@given(at=st.integers(0, len(SENT) - 1), flip=st.integers(1, 255))
@settings(max_examples=60, deadline=None)
def test_no_byte_that_travels_can_be_changed(at, flip):
    content = bytearray(SENT)
    content[at] ^= flip
    assert not shared.fits(RECORD, bytes(content), FORM.elements)
    assert not shared.fits(RECORD, SENT[:-4], FORM.elements)


@pytest.mark.parametrize("number", [P, P + 1, 2**32 - 1])
def test_numbers_of_the_field_are_below_its_prime(number):
    large = SENT[:8] + number.to_bytes(4, "little") + SENT[12:]
    record = shared.make_record(SECRETS, large, DEVICE, LINK, BOUND)
    assert not shared.fits(record, large, FORM.elements)
    with pytest.raises(MessageError, match="below the field's prime"):
        shared.decode_shared(shared.encode_shared(large, record, 5, 1), 5, 1, FORM.elements)


# --- pairs of aggregators -------------------------------------------------------------------------


def test_each_two_aggregators_share_one_secret_that_is_these_terms():
    found = [shared.pair_secrets(TERMS, k, KEYS[k]) for k in range(3)]
    for k in range(3):
        assert found[k][0] == found[(k + 1) % 3][1]
    assert len({one for both in found for one in both}) == 3
    other = [shared.pair_secrets(replace(TERMS, n_items=21), k, KEYS[k]) for k in range(3)]
    assert not {one for both in found for one in both} & {one for both in other for one in both}
    blind = [zeros(both, b"said", 50) for both in found]
    assert not added(blind).any()
    assert all(one.any() for one in blind)


def test_keys_that_are_none_are_said_to_be_none():
    for keys in (("zz", "11", "22"), ("aa" * 32, "bb" * 32, "cc" * 31)):
        with pytest.raises(KeyTrouble, match="no good keys of three aggregators"):
            shared.public_keys(replace(LINK, keys=keys))
    low = replace(LINK, keys=("00" * 32, *LINK.keys[1:]))
    with pytest.raises(KeyTrouble, match="key is not good"):
        shared.make_record(SECRETS, SENT, DEVICE, low, BOUND)
    with pytest.raises(KeyTrouble, match="key is not good"):
        shared.pair_secrets(replace(TERMS, link=low), 1, KEYS[1])
    with pytest.raises(KeyTrouble):
        shared.public_keys(CheckedSum())


# --- between server and aggregators ---------------------------------------------------------------


def test_a_set_is_named_in_order_and_without_spare_bits():
    for names in (NAMES[::-1], (NAMES[0], NAMES[0])):
        with pytest.raises(MessageError, match="in order, and once each"):
            shared.decode_question(shared.encode_question(SetQuestion(ABOUT, names)))
    asked = SetQuestion(ABOUT, NAMES, SECRETS, np.ones(9, bool))
    content = shared.encode_question(asked)
    with pytest.raises(MessageError, match="no more submissions than it names"):
        shared.decode_question(content[:-1] + b"\xff", coins=True, kept=True)


# --- terms ----------------------------------------------------------------------------------------


def test_the_longest_message_has_room_for_every_round():
    longest = shared.most_elements(TERMS)
    algorithm = TERMS.build()
    for round, numbers in ((0, 21), *((1, k * (k + 1) // 2) for k in range(1, 21))):
        form = LINK.form(*algorithm.contribution(round, numbers))
        assert form.elements <= longest


def test_terms_with_more_items_than_the_field_has_room_for_are_refused():
    with pytest.raises(ConfigError, match="wrap around"):
        Terms("town", 10_000_000, GramConfig(popularity_share=0.5, embedding_size=1),
              OwnEpsilon(2.0), LINK)  # fmt: skip


def test_terms_are_read_as_they_were_written():
    assert Terms.from_table(TERMS.to_table()) == TERMS
    table = TERMS.to_table()
    table["link"]["keys"] = [table["link"]["keys"][0]] * 3
    with pytest.raises(MessageError, match="one organisation twice"):
        Terms.from_table(table)


def test_a_device_seals_what_its_door_has_made():
    view = ModelView(0, np.zeros((20, TERMS.width), np.float32))
    message = shared.seal_shared(TERMS, 2, view, shared.elements_of(SENT), SECRETS, DEVICE)
    found = shared.decode_shared(message, 0, 2, FORM.elements)
    bound = About.of(TERMS, 0, 2, shared.model_name(view.items), 21).bound(TERMS)
    assert shared.is_signed(found.record, bound)
    with pytest.raises(ConfigError, match="only a checked sum"):
        shared.most_elements(replace(TERMS, link=SecureSum()))
