"""The wire: nothing is lost, and anything off is rejected whole."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sottovoce.core.messages import (
    DeviceReports,
    SummedReports,
    Updates,
    add_sums,
    add_up,
    cut,
    cut_sum,
    row_bytes,
)
from sottovoce.errors import MessageError
from sottovoce.wire.reports import decode_report, decode_sum, encode_report, encode_sum


def report(values, round=3, sender=7):
    rows = len(values)
    return DeviceReports(
        round, np.full(rows, sender), np.arange(rows, dtype=np.int32) * 2, values.astype(np.int64)
    )


@given(
    hnp.arrays(
        np.int64,
        st.tuples(st.integers(0, 6), st.just(4)),
        elements=st.integers(-(2**62), 2**62),
    )
)
def test_encode_then_decode_gives_the_same_report(values):
    sent = report(values)
    got = decode_report(encode_report(sent), sender=7, n_items=100, width=4, round=3)
    assert np.array_equal(got.item, sent.item)
    assert np.array_equal(got.values, sent.values)
    assert np.array_equal(got.sender, sent.sender)


@pytest.mark.parametrize(("bits", "bytes_each"), [(7, 1), (20, 3), (31, 4)])
def test_a_row_costs_no_more_than_the_ledger_says(bits, bytes_each):
    """The ledger counts four bytes a number; values that need fewer travel in fewer."""
    width, rows = 11, 40
    values = np.random.default_rng(1).integers(-(2**bits), 2**bits, (rows, width))
    size = len(encode_report(report(values)))
    assert size <= 20 + rows * (4 + width * bytes_each)
    assert size - 20 <= rows * row_bytes(width - 1)


def test_values_that_are_much_alike_travel_in_less():
    values = np.random.default_rng(1).normal(0, 0.05 * 2**24, (50, 11)).astype(np.int64)
    values[0, 0] = 2**24  # one large value makes all of them wide
    assert len(encode_report(report(values))) < 0.85 * 50 * row_bytes(10)


def test_a_message_that_swells_beyond_what_it_says_is_refused():
    bomb = pa.Codec("zstd").compress(bytes(10_000_000), asbytes=True)
    for rows in (1, 6, 2**31):
        head = struct.pack("<4sBBHIII", b"SVU3", 4, 1, 4, 3, rows, 24)
        with pytest.raises(MessageError):
            decode_report(head + bomb, sender=7, n_items=6, width=4, round=3)


def test_more_rows_than_a_device_may_send_are_refused():
    payload = encode_report(report(np.arange(12).reshape(3, 4)))
    assert len(decode_report(payload, sender=7, n_items=9, width=4, round=3, max_rows=3)) == 3
    with pytest.raises(MessageError, match="more rows"):
        decode_report(payload, sender=7, n_items=9, width=4, round=3, max_rows=2)


@given(
    hnp.arrays(np.int64, st.tuples(st.integers(0, 6), st.just(3)), elements=st.integers(-9, 9)),
    st.integers(0, 2**32 - 1),
)
def test_a_sum_survives_the_wire_without_its_empty_rows(values, devices):
    items = np.arange(len(values), dtype=np.int32) * 2
    sent = SummedReports(3, items, values, devices)
    got = decode_sum(encode_sum(sent), n_items=20, width=3, round=3)
    assert np.array_equal(got.dense(20), sent.dense(20))
    assert got.devices == devices
    assert got.sums.any(axis=1).all()
    with pytest.raises(MessageError):
        decode_sum(encode_report(report(np.ones((2, 3)))) + bytes(4), n_items=20, width=3, round=3)


def test_adding_sums_equals_adding_their_reports():
    rng = np.random.default_rng(5)
    batches = [
        DeviceReports(
            1,
            np.full(4, sender),
            np.sort(rng.choice(9, 4, replace=False)).astype(np.int32),
            rng.integers(-(2**40), 2**40, (4, 3)),
        )
        for sender in range(5)
    ]
    parts = [add_up(1, batches[:2], 3), add_up(1, batches[2:], 3)]
    whole, joined = add_up(1, batches, 3), add_sums(1, parts, 3)
    assert np.array_equal(whole.dense(9), joined.dense(9))
    assert whole.devices == joined.devices == 5


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_never_crashes(payload):
    with pytest.raises(MessageError):
        decode_report(payload, sender=0, n_items=10, width=4, round=0)


@given(st.integers(0, 1000), st.integers(1, 255))
def test_a_damaged_header_or_length_is_refused_or_changes_values_only(at, flip):
    payload = bytearray(encode_report(report(np.arange(12).reshape(3, 4))))
    at %= len(payload)
    payload[at] ^= flip
    try:
        got = decode_report(bytes(payload), sender=7, n_items=6, width=4, round=3)
    except MessageError:
        return
    assert got.values.shape == (3, 4)
    assert got.item.max() < 6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round": 4}, "round"),
        ({"n_items": 4}, "items"),
        ({"width": 5}, "columns"),
    ],
)
def test_what_does_not_fit_the_round_is_refused(change, words):
    expected = {"sender": 7, "n_items": 6, "width": 4, "round": 3} | change
    with pytest.raises(MessageError, match=words):
        decode_report(encode_report(report(np.arange(12).reshape(3, 4))), **expected)


def test_repeated_and_unsorted_items_are_refused():
    for items in ([4, 4], [5, 2]):
        sent = DeviceReports(0, np.zeros(2, np.int64), np.array(items, np.int32), np.ones((2, 3)))
        with pytest.raises(MessageError, match="ascending"):
            decode_report(encode_report(sent), sender=0, n_items=9, width=3, round=0)


def test_one_message_has_one_sender():
    two = DeviceReports(0, np.array([1, 2]), np.array([0, 1], np.int32), np.ones((2, 3), np.int64))
    with pytest.raises(MessageError, match="one device"):
        encode_report(two)


def test_huge_row_counts_do_not_allocate():
    head = struct.pack("<4sBBHIII", b"SVU3", 8, 0, 60000, 0, 2**31, 24)
    with pytest.raises(MessageError, match="more rows"):
        decode_report(head, sender=0, n_items=9, width=60000, round=0)
    with pytest.raises(MessageError, match="length"):
        decode_report(head, sender=0, n_items=2**31, width=60000, round=0)


def test_private_values_do_not_print():
    secret = report(np.full((2, 3), 123456789))
    updates = Updates(*(np.zeros(1) for _ in range(4)), values=np.full((1, 3), 123456789))
    for thing in (secret, updates):
        assert "123456789" not in repr(thing)
        assert "redacted" in repr(thing)


@given(
    st.lists(st.lists(st.integers(0, 8), unique=True, max_size=6), max_size=5), st.integers(0, 99)
)
def test_adding_up_equals_a_plain_table(senders, seed):
    rng = np.random.default_rng(seed)
    batches = [
        DeviceReports(
            2,
            np.full(len(items), sender),
            np.array(sorted(items), dtype=np.int32),
            rng.integers(-(2**40), 2**40, (len(items), 3)),
        )
        for sender, items in enumerate(senders)
    ]
    table = np.zeros((9, 3), dtype=np.int64)
    for batch in batches:
        np.add.at(table, batch.item, batch.values)
    summed = add_up(2, batches, 3)
    assert np.array_equal(summed.dense(9), table)
    assert summed.item.tolist() == sorted({i for items in senders for i in items})
    assert summed.devices == sum(bool(items) for items in senders)


def test_cutting_bounds_every_value_and_leaves_the_others():
    sent = report(np.array([[5, -70, 3], [2**40, -(2**40), 0]]))
    got = cut(sent, 60)
    assert got.values.tolist() == [[5, -60, 3], [60, -60, 0]]
    assert got.item.tolist() == sent.item.tolist()
    summed = add_up(3, [sent], 3)
    assert cut_sum(summed, 60).sums.tolist() == got.values.tolist()
    two = SummedReports(3, summed.item, summed.sums, 2)
    assert cut_sum(two, 60).sums.tolist() == [[5, -70, 3], [120, -120, 0]]
