"""Random streams: pure functions of their names, and statistically sound."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sottovoce.errors import ConfigError
from sottovoce.rng import SecretStreams, Streams, chacha_words, draw, streams_of, words_of

seeds = st.integers(0, 2**40)
counters = st.lists(st.integers(0, 2**40), min_size=1, max_size=20)


@given(seeds, counters)
def test_keys_are_the_keys_of_children(seed, numbers):
    rng = Streams.from_seed(seed).child("learn")
    keys = rng.keys(np.array(numbers, dtype=np.int64))
    assert [int(k) for k in keys] == [rng.child(n).key for n in numbers]


@given(seeds, counters, counters)
def test_paired_keys_are_grandchildren(seed, outer, inner):
    n = min(len(outer), len(inner))
    rng = Streams.from_seed(seed)
    keys = rng.paired_keys(np.array(outer[:n]), np.array(inner[:n]))
    assert [int(k) for k in keys] == [
        rng.child(a, b).key for a, b in zip(outer[:n], inner[:n], strict=True)
    ]


@given(seeds, counters)
def test_a_row_of_draws_depends_on_its_counter_alone(seed, numbers):
    rng = Streams.from_seed(seed)
    together = rng.words(np.array(numbers), 5)
    for row, number in zip(together, numbers, strict=True):
        assert np.array_equal(row, rng.words(np.array([number]), 5)[0])


@given(seeds, st.integers(1, 10**6), counters)
def test_choose_one_is_choose(seed, n, numbers):
    rng = Streams.from_seed(seed).child("select")
    chosen = rng.choose_one(n, np.array(numbers))
    assert chosen.tolist() == [int(rng.child(c).choose(n, 1)[0]) for c in numbers]
    assert chosen.max() < n


@given(seeds, st.integers(1, 200), st.integers(1, 300))
def test_choose_is_without_replacement_and_ascending(seed, n, size):
    chosen = Streams.from_seed(seed).choose(n, size)
    assert len(chosen) == min(n, size)
    assert np.all(np.diff(chosen) > 0)
    assert chosen.min() >= 0
    assert chosen.max() < n


def test_purposes_and_rounds_give_different_streams():
    rng = Streams.from_seed(1)
    names = [("learn", 0), ("learn", 1), ("share", 0), ("share", 1), ("learn",), ("share",)]
    keys = {rng.child(*name).key for name in names}
    assert len(keys) == len(names)
    assert Streams.from_seed(2).child("learn", 0).key not in keys


def test_uniform_and_normal_pass_goodness_of_fit():
    rng = Streams.from_seed(12)
    users = np.arange(20_000)
    assert stats.kstest(rng.uniform(users, 3).ravel(), "uniform").pvalue > 1e-3
    assert stats.kstest(rng.normal(users, 3).ravel(), "norm").pvalue > 1e-3
    # Neighbouring users and neighbouring draws are uncorrelated.
    u = rng.uniform(users, 2)
    assert abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 4 / np.sqrt(len(users))
    assert abs(np.corrcoef(u[:, 0], u[:, 1])[0, 1]) < 4 / np.sqrt(len(users))


def test_selection_is_uniform_over_rounds():
    chosen = Streams.from_seed(3).child("select").choose_one(37, np.arange(37_000))
    assert stats.chisquare(np.bincount(chosen, minlength=37)).pvalue > 1e-3


# --- secret streams ------------------------------------------------------------------------------


@given(seeds, counters)
def test_secret_keys_are_those_of_children(seed, numbers):
    rng = SecretStreams.from_seed(seed).child("learn")
    keys = rng.keys(np.array(numbers, dtype=np.int64))
    assert [k.astype("<u4").tobytes() for k in keys] == [rng.child(n).root_bytes() for n in numbers]
    pairs = rng.paired_keys(np.array([7]), np.array(numbers))
    assert np.array_equal(pairs, rng.child(7).keys(np.array(numbers)))


def test_a_secret_draw_is_a_piece_of_a_chacha20_block():
    key = SecretStreams.from_seed(4).keys(np.array([9]))
    block = np.empty(16, dtype=np.uint32)
    for number in (0, 5, 7, 8, 8 * (2**32 - 1) + 3):
        chacha_words(key[0], np.zeros(3, np.uint32), np.uint32(number // 8), block)
        low, high = block[2 * (number % 8) : 2 * (number % 8) + 2].tolist()
        assert int(words_of(key, 1, number)[0, 0]) == low | high << 32
        assert int(draw(key[0], number)) == low | high << 32


@given(seeds, st.integers(0, 40), st.integers(1, 40))
def test_words_begin_anywhere(seed, first, count):
    for streams in (Streams, SecretStreams):
        keys = streams.from_seed(seed).keys(np.array([1, 2]))
        whole = words_of(keys, first + count)
        assert np.array_equal(words_of(keys, count, first), whole[:, first:])


def test_compiled_and_plain_draws_agree():
    from numba import njit

    @njit
    def drawn(keys, number):
        return draw(keys[1], number)

    for streams in (Streams, SecretStreams):
        keys = streams.from_seed(1).keys(np.arange(3))
        for number in (0, 1, 8, 1000):
            assert int(drawn(keys, number)) == int(words_of(keys, 1, number)[1, 0])


def test_secret_draws_pass_the_same_tests_of_chance():
    rng, users = SecretStreams.from_seed(12), np.arange(5_000)
    assert stats.kstest(rng.uniform(users, 3).ravel(), "uniform").pvalue > 1e-3
    assert stats.kstest(rng.normal(users, 3).ravel(), "norm").pvalue > 1e-3
    chosen = rng.child("select").choose_one(37, np.arange(3_700))
    assert stats.chisquare(np.bincount(chosen, minlength=37)).pvalue > 1e-3
    several = np.concatenate([rng.child(n).choose(20, 5) for n in range(2_000)])
    assert stats.chisquare(np.bincount(several, minlength=20)).pvalue > 1e-3


@given(seeds, st.integers(1, 200), st.integers(1, 300), st.integers(0, 2**40))
def test_secret_choices_are_distinct_and_ascend(seed, n, size, counter):
    rng = SecretStreams.from_seed(seed)
    chosen = rng.choose(n, size)
    assert len(chosen) == min(n, size)
    assert np.all(np.diff(chosen) > 0)
    assert 0 <= chosen.min() <= chosen.max() < n
    assert rng.choose_one(n, np.array([counter]))[0] == rng.child(counter).choose(n, 1)[0]


def test_a_root_makes_the_same_streams_again_and_shows_nothing():
    for streams in (Streams.from_seed(3), SecretStreams.from_seed(3)):
        again = streams_of(streams.root)
        assert type(again) is type(streams)
        assert again.child("a", 1).root == streams.child("a", 1).root
    secret = SecretStreams.from_seed(3)
    assert str(secret.root) not in repr(secret)
    assert secret.root_bytes().hex() not in repr(secret)
    for use in (lambda: secret.key, secret.generator, lambda: streams_of(1 << 256)):
        with pytest.raises(ConfigError):
            use()


def test_what_is_drawn_once_outlasts_other_keys():
    first, later = Streams.from_seed(1), SecretStreams.from_seed(2)
    users = np.arange(4)
    kept = later.with_lasting(first)
    assert np.array_equal(kept.lasting().keys(users), first.lasting().keys(users))
    assert np.array_equal(kept.child("learn").keys(users), later.child("learn").keys(users))
