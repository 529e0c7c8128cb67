"""Masks: sums of masked updates are exact, and a masked update tells nothing of what it hides."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from sottovoce.core import masking
from sottovoce.core.masking import (
    BITS,
    expand,
    from_bytes,
    masked,
    no_words,
    seeds_from,
    sum_masks,
    to_bytes,
    unmasked,
    words_of,
)
from sottovoce.errors import ConfigError, MessageError

SEED = bytes(range(32))
USERS = np.arange(40, dtype=np.int64)


def seeds(n, root=b"r" * 32, round=0):
    return seeds_from(root, np.arange(n, dtype=np.int64), round)


# --- the stream -----------------------------------------------------------------------------------


def by_kernel(seed, numbers, bits=64):
    mask = no_words(numbers, bits)
    masking._add_by_kernel(mask, seed)
    return mask


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(
    "numbers", [0, 1, 7, 8, 9, 15, 16, 17, 63, 1000, (1 << 16) - 1, (1 << 17) + 5]
)
def test_both_streams_are_the_same_numbers(numbers, bits):
    pytest.importorskip("cryptography")
    assert np.array_equal(expand(SEED, numbers, bits), by_kernel(SEED, numbers, bits))


@pytest.mark.parametrize("bits", BITS)
def test_a_mask_is_the_stream_cut_into_words_of_which_the_lower_bits_count(bits):
    stream = expand(SEED, 1000).astype("<u8").tobytes()
    words = np.frombuffer(stream, "<u4" if bits == 32 else "<u8")
    assert expand(SEED, len(words), bits).tolist() == [int(w) % (1 << bits) for w in words]


def test_the_stream_is_that_of_the_rfc():
    """RFC 8439, appendix A.1: the key stream of key 0, nonce 0, blocks 0 and 1."""
    first = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    second = (
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    expected = np.frombuffer(bytes.fromhex(first + second), dtype="<u8")
    assert np.array_equal(expand(bytes(32), 16), expected)
    assert np.array_equal(by_kernel(bytes(32), 16), expected)
    short = np.frombuffer(bytes.fromhex(first + second), dtype="<u4")
    assert np.array_equal(expand(bytes(32), 32, 32), short)
    assert np.array_equal(by_kernel(bytes(32), 32, 32), short)


def test_without_the_library_the_kernel_does_it(monkeypatch):
    before = {bits: expand(SEED, 500, bits) for bits in BITS}
    masking._adder.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.ciphers", None)
    try:
        assert masking._adder() is masking._add_by_kernel
        for bits in BITS:
            assert np.array_equal(expand(SEED, 500, bits), before[bits])
    finally:
        masking._adder.cache_clear()


# --- sums -----------------------------------------------------------------------------------------

WHOLE = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([2**63 - 1, -(2**63), 2**62]),
)


def as_signed(number, bits):
    return (number + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


@pytest.mark.parametrize("bits", BITS)
@settings(deadline=None, max_examples=60)
@given(
    arrays(np.int64, st.tuples(st.integers(1, 9), st.integers(1, 5), st.just(3)), elements=WHOLE)
)
def test_the_opened_sum_is_the_sum_modulo_two_to_the_bits(bits, values):
    some = seeds(len(values))
    total = no_words(values[0].size, bits)
    for one, seed in zip(values, some, strict=True):
        total += masked(one, seed, bits)
    found = unmasked(total, sum_masks(some, values[0].size, bits=bits), 3, bits)
    expected = [
        [as_signed(sum(int(v) for v in values[:, r, c]), bits) for c in range(3)]
        for r in range(values.shape[1])
    ]
    assert found.tolist() == expected


@pytest.mark.parametrize("bits", BITS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_sums_that_fit_are_exact_also_of_negative_numbers_and_after_they_travelled(bits, data):
    """All that leaves, the masked sum so far and the sum of masks, goes through its bytes."""
    devices = data.draw(st.integers(1, 8))
    most = ((1 << (bits - 1)) - 1) // devices
    numbers = st.one_of(st.integers(-most, most), st.sampled_from([-most, most, 0, -1]))
    values = data.draw(arrays(np.int64, (devices, 2, 3), elements=numbers))
    some, total = seeds(devices), no_words(6, bits)
    for one, seed in zip(values, some, strict=True):
        total += from_bytes(to_bytes(masked(one, seed, bits), bits), bits)
        total = from_bytes(to_bytes(total, bits), bits).copy()
    masks = from_bytes(to_bytes(sum_masks(some, 6, bits=bits), bits), bits)
    assert np.array_equal(unmasked(total, masks, 3, bits), values.sum(axis=0))


@pytest.mark.parametrize("bits", BITS)
@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_the_bytes_of_a_masked_number_are_its_lower_bits(bits, numbers):
    words = np.array(numbers, dtype=np.uint64).astype(np.uint32 if bits == 32 else np.uint64)
    sent = to_bytes(words, bits)
    lower = [number % (1 << bits) for number in numbers]
    assert sent == b"".join(number.to_bytes(bits // 8, "little") for number in lower)
    for content in (sent, memoryview(b"head" + sent)[4:]):
        got = from_bytes(content, bits)
        assert (got.dtype, got.tolist()) == (words.dtype, lower)


@pytest.mark.parametrize("bits", BITS)
def test_what_leaves_has_no_more_than_its_bits(bits):
    update = np.full((500, 2), -1, dtype=np.int64)
    for words in (masked(update, SEED, bits), expand(SEED, 1000, bits)):
        assert words.dtype == (np.uint32 if bits == 32 else np.uint64)
        assert int(words.max()).bit_length() == bits
    assert words_of(update, bits).tolist() == [(1 << (32 if bits == 32 else 64)) - 1] * 1000


def test_masking_leaves_the_update_alone():
    update = np.arange(12, dtype=np.int64).reshape(4, 3)
    hidden = masked(update, SEED)
    assert update.ravel().tolist() == list(range(12))
    assert np.array_equal(unmasked(hidden, expand(SEED, 12), 3), update)
    every_other = np.arange(24, dtype=np.int64).reshape(4, 6)[:, ::2]
    assert np.array_equal(unmasked(masked(every_other, SEED), expand(SEED, 12), 3), every_other)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_do_not_matter(threads, bits):
    some = seeds(5)
    one = sum_masks(some, 1001, bits=bits)
    assert np.array_equal(sum_masks(some, 1001, threads, bits), one)
    assert np.array_equal(sum_masks([], 10, threads, bits), no_words(10, bits))


# --- what a masked update tells -------------------------------------------------------------------


@pytest.mark.parametrize("bits", BITS)
def test_two_different_updates_cannot_be_told_apart_once_masked(bits):
    """Bytes are uniform whatever is hidden: nothing at all, or large numbers of one kind."""

    def sent(update, seed):
        return np.frombuffer(to_bytes(masked(update, seed, bits), bits), np.uint8)

    nothing = np.zeros((500, 4), dtype=np.int64)
    much = np.full((500, 4), 123_456_789, dtype=np.int64)
    for update in (nothing, much):
        counts = np.zeros(256)
        for seed in seeds(40):
            counts += np.bincount(sent(update, seed), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4
    # ... and in every place of a number, also in the high bytes that the grid leaves empty.
    bytes_of = np.stack([sent(nothing, seed) for seed in seeds(40, round=1)])
    each = bits // 8
    assert bytes_of.shape == (40, 2000 * each)
    for place in range(each):
        counts = np.bincount(bytes_of[:, place::each].ravel(), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4
    assert stats.chisquare(np.bincount(nothing.view(np.uint8).ravel(), minlength=256)).pvalue < 1e-9


def test_masks_do_not_go_together():
    """The difference of two masked updates is as uniform as each: a mask that served twice would
    give away the difference of what it hides."""
    update, (first, second, *_) = np.zeros((2000, 4), dtype=np.int64), seeds(40)
    apart = masked(update, first) - masked(update, second)
    assert stats.chisquare(np.bincount(apart.view(np.uint8), minlength=256)).pvalue > 1e-4
    reused = masked(update + 5, first) - masked(update, first)
    assert set(reused.tolist()) == {5}, "the broken control"


# --- seeds ----------------------------------------------------------------------------------------


def test_seeds_differ_by_user_round_and_root():
    every = [
        seed
        for root in (b"a" * 32, b"b" * 32)
        for round in (0, 1, 2**40)
        for seed in seeds_from(root, USERS, round)
    ]
    assert len(set(every)) == len(every) == 240
    assert all(len(seed) == 32 for seed in every)
    assert seeds_from(b"a" * 32, USERS[7:9], 1) == seeds_from(b"a" * 32, USERS, 1)[7:9]


@pytest.mark.parametrize("bad", [b"", b"x" * 31, b"x" * 33])
def test_bad_seeds_are_refused_before_anything_is_added(bad):
    for work in (
        lambda: expand(bad, 5),
        lambda: masked(np.zeros((1, 5), np.int64), bad),
        lambda: sum_masks([SEED, bad], 5),
    ):
        with pytest.raises(MessageError, match="32 bytes"):
            work()


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="fewer"):
        sum_masks([SEED], masking.MOST_NUMBERS)
    for total, masks, width in ((6, 9, 3), (6, 6, 4)):
        with pytest.raises(MessageError, match="numbers"):
            unmasked(np.zeros(total, np.uint64), np.zeros(masks, np.uint64), width)
    with pytest.raises(MessageError, match="numbers"):
        unmasked(no_words(6, 32), no_words(6, 40), 3, 32)
