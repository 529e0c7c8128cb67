"""Envelopes: what was signed is what counts, for one purpose in one federation."""

import os

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import MessageError
from sottovoce.wire.signing import OVERHEAD, open_envelope, seal

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
PUBLIC = KEY.public_key()


def sealed(body=b"rows", **changes):
    said = {"number": 7, "round": 3, "attempt": 1, "nonce": bytes(16)} | changes
    return seal(KEY, "town", "report", body=body, **said)


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_what_was_sealed_is_read_and_verified(body, number, round):
    nonce = os.urandom(16)
    payload = sealed(body, number=number, round=round, nonce=nonce)
    envelope = open_envelope(payload)
    said = (envelope.number, envelope.round, envelope.attempt, envelope.nonce, envelope.body)
    assert said == (number, round, 1, nonce, body)
    assert envelope.signed_by(PUBLIC, "town", "report")
    assert len(payload) == len(body) + OVERHEAD


@given(st.integers(4, OVERHEAD + 3), st.integers(1, 255))
def test_any_flipped_bit_is_noticed(at, flip):
    payload = bytearray(sealed())
    payload[at] ^= flip
    assert not open_envelope(bytes(payload)).signed_by(PUBLIC, "town", "report")


def test_an_envelope_is_for_one_federation_purpose_and_key():
    envelope = open_envelope(sealed())
    assert not envelope.signed_by(PUBLIC, "other", "report")
    assert not envelope.signed_by(PUBLIC, "town", "check-in")
    assert not envelope.signed_by(OTHER.public_key(), "town", "report")


def test_a_nonce_has_its_length_and_nothing_prints():
    with pytest.raises(MessageError, match="16 bytes"):
        sealed(nonce=b"short")
    assert "rows" not in repr(open_envelope(sealed()))
