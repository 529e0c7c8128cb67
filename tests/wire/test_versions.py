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


def in_steps(seed=0, n_items=40):
    """The first column has no step, and zeros or not; the others have a step each."""
    rng = np.random.default_rng(seed)
    table = rng.integers(-127, 128, (n_items, 4)) * np.float32(2.0) ** [0, -20, 3, -3]
    table[:, 0] = rng.normal(size=n_items)
    table[: seed % 2 * 15, 0] = 0.0
    return table.astype(np.float32)


@given(st.integers(0, 50), st.booleans())
def test_columns_in_steps_take_a_byte_a_number(seed, delta):
    table, old = in_steps(seed), model(3, width=4)
    changed = np.arange(40) >= (10 if delta else 0)
    if delta:
        payload = encode_delta(3, ModelView(9, table), changed)
        places = 5
    else:
        payload = encode_model(ModelView(9, table))
        places = 0
    rows = int(changed.sum())
    assert len(payload) == full_size(0, 4) + places + 4 + rows * (3 + 4)
    got = decode_model(payload, n_items=40, width=4, have=old)
    assert got.round == 9
    assert got.items.tobytes() == np.where(changed[:, None], table, old.items).tobytes()
    for cut in (payload[:-1], payload + b"\0", payload[: full_size(0, 4) + 2]):
        with pytest.raises(MessageError):
            decode_model(cut, n_items=40, width=4, have=old)


numbers = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.builds(lambda k, e: float(np.ldexp(k, e)), st.integers(-200, 200), st.integers(-149, 119)),
    st.sampled_from([0.0, -0.0, 2.0**-149, 2.0**-127, 127 * 2.0**-128, 2.0**127, -(2.0**126)]),
)


@given(st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=1, max_size=90))
def test_every_finite_number_arrives_bit_for_bit(table):
    sent = ModelView(1, np.array(table, dtype=np.float32))
    payload = encode_model(sent)
    assert len(payload) <= full_size(len(table), 2)
    got = decode_model(payload, n_items=len(table), width=2)
    assert got.items.tobytes() == sent.items.tobytes()


def test_a_column_has_a_step_if_the_last_row_fits_it_too():
    table = np.ones((200, 1), dtype=np.float32)
    narrow = len(encode_model(ModelView(1, table)))
    assert narrow == full_size(0, 1) + 1 + 200
    for odd in (128.5, -0.0, 0.1):
        table[-1] = odd
        assert len(encode_model(ModelView(1, table))) == full_size(200, 1)


def test_steps_beyond_a_float_are_refused():
    payload = bytearray(encode_model(ModelView(1, in_steps())))
    payload[full_size(0, 4) + 1] = 127
    with pytest.raises(MessageError, match="finite"):
        decode_model(bytes(payload), n_items=40, width=4)


def test_changes_against_a_version_that_is_not_here_are_refused():
    payload = encode_delta(3, model(9), np.ones(40, bool))
    for have in (None, model(2), model(3, n_items=39)):
        with pytest.raises(MessageError, match="version 3"):
            decode_model(payload, n_items=40, width=3, have=have)


def test_numbers_that_are_not_finite_are_refused():
    table = model(1).items.copy()
    table[3, 1] = np.nan
    for payload in (
        encode_model(ModelView(1, table)),
        encode_delta(0, ModelView(1, table), np.ones(40, bool)),
    ):
        with pytest.raises(MessageError, match="finite"):
            decode_model(payload, n_items=40, width=3, have=model(0))
