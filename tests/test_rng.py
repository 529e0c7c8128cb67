"""Random streams: pure functions of their names, and statistically sound."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sottovoce.rng import Streams

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
