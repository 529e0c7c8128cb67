"""Model versions on the wire: bit for bit, whole or by changed rows; anything off is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.core.messages import ModelView
from sottovoce.errors import MessageError
from sottovoce.wire.versions import (
    decode_model,
    delta_size,
    encode_delta,
    encode_model,
    full_size,
)


def model(round, n_items=40, width=3, seed=0):
    table = np.random.default_rng(seed).normal(0, 0.1, (n_items, width)).astype(np.float32)
    return ModelView(round, table)


def test_the_whole_model_arrives_bit_for_bit():
    sent = model(7)
    payload = encode_model(sent)
    got = decode_model(payload, n_items=40, width=3)
    assert got.round == 7
    assert np.array_equal(got.items, sent.items)
    assert len(payload) == full_size(40, 3)


@given(st.lists(st.booleans(), min_size=40, max_size=40), st.integers(0, 5))
def test_changed_rows_make_the_old_version_the_new_one(flags, seed):
    old, changed = model(3, seed=seed), np.array(flags)
    items = old.items.copy()
    items[changed] += 1.5
    payload = encode_delta(3, ModelView(9, items), changed)
    assert len(payload) == delta_size(40, int(changed.sum()), 3)
    got = decode_model(payload, n_items=40, width=3, have=old)
    assert got.round == 9
    assert np.array_equal(got.items, items)


def test_changes_against_a_version_that_is_not_here_are_refused():
    payload = encode_delta(3, model(9), np.ones(40, bool))
    for have in (None, model(2), model(3, n_items=39)):
        with pytest.raises(MessageError, match="version 3"):
            decode_model(payload, n_items=40, width=3, have=have)


@given(st.integers(0, 10**6), st.integers(1, 255), st.booleans())
def test_a_damaged_model_is_refused_or_keeps_its_shape(at, flip, delta):
    old = model(3)
    changed = np.arange(40) % 20 == 0
    payload = bytearray(encode_delta(3, model(4), changed) if delta else encode_model(model(4)))
    payload[at % len(payload)] ^= flip
    try:
        got = decode_model(bytes(payload), n_items=40, width=3, have=old)
    except MessageError:
        return
    assert got.items.shape == (40, 3)
    assert np.isfinite(got.items).all()


@given(st.binary(max_size=120))
def test_garbage_is_refused(payload):
    with pytest.raises(MessageError):
        decode_model(payload, n_items=4, width=3, have=model(0, n_items=4))


def test_numbers_that_are_not_finite_are_refused():
    table = model(1).items.copy()
    table[3, 1] = np.nan
    for payload in (
        encode_model(ModelView(1, table)),
        encode_delta(0, ModelView(1, table), np.ones(40, bool)),
    ):
        with pytest.raises(MessageError, match="finite"):
            decode_model(payload, n_items=40, width=3, have=model(0))
