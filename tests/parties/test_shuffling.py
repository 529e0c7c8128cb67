"""The shuffle: every order equally likely, the same one for the same seed, nothing lost."""

import itertools

import numpy as np
import pytest
from scipy import stats

from sottovoce.errors import UsageError
from sottovoce.parties import shuffler as shuffling


def seeds(count):
    """As many different seeds, the same ones each time."""
    for n in range(count):
        yield n.to_bytes(32, "little")


def chi_square_of_orders(draw, n, trials):
    """p-value of all n! orders being equally likely."""
    index = {order: i for i, order in enumerate(itertools.permutations(range(n)))}
    counts = np.zeros(len(index))
    for seed in seeds(trials):
        counts[index[tuple(draw(seed).tolist())]] += 1
    return stats.chisquare(counts).pvalue


def shuffled(n):
    values = np.arange(n, dtype=np.uint32)
    return lambda seed: shuffling.shuffled(values, seed)


@pytest.mark.parametrize("bucket", [1 << 18, 2, 1])
def test_every_order_is_equally_likely(monkeypatch, bucket):
    """Also where records are spread over buckets first."""
    monkeypatch.setattr(shuffling, "_BUCKET", bucket)
    assert chi_square_of_orders(shuffled(4), 4, 12_000) > 1e-3


def test_an_order_that_is_a_little_off_is_caught():
    """The well-known mistake: swapping with any place instead of those that are left."""

    def naive(seed):
        rng = np.random.default_rng(int.from_bytes(seed, "little"))
        values = np.arange(4)
        for i in range(4):
            j = rng.integers(4)
            values[i], values[j] = values[j], values[i]
        return values

    assert chi_square_of_orders(naive, 4, 12_000) < 1e-6


def test_places_are_uniform_among_many_records(monkeypatch):
    """Where each of 64 records goes, over many shuffles through 8 buckets and more."""
    monkeypatch.setattr(shuffling, "_BUCKET", 8)
    n, trials = 64, 6_000
    draw, counts = shuffled(n), np.zeros((n, n))
    for seed in seeds(trials):
        counts[draw(seed), np.arange(n)] += 1
    expected = trials / n
    statistic = ((counts - expected) ** 2 / expected).sum() * (n - 1) / n
    assert stats.chi2.sf(statistic, (n - 1) ** 2) > 1e-3


@pytest.mark.parametrize("n", [0, 1, 2, 31, 33, 1_000, 300_001, 2_500_000])
def test_nothing_is_lost_and_the_seed_decides(n):
    values = np.arange(n, dtype=np.uint32)
    seed = bytes(range(32))
    mixed = shuffling.shuffled(values, seed)
    assert np.array_equal(np.sort(mixed), values)
    assert np.array_equal(shuffling.shuffled(values, seed, threads=3), mixed)
    assert np.array_equal(values, np.arange(n)), "what was given stays as it was"
    if n > 30:
        other = shuffling.shuffled(values, bytes(32))
        assert not np.array_equal(other, mixed)
        assert np.mean(mixed == values) < 0.2


def test_a_seed_has_32_bytes_and_comes_from_the_system():
    with pytest.raises(UsageError, match="32 bytes"):
        shuffling.shuffled(np.arange(3, dtype=np.uint32), b"short")
    made = {shuffling.new_seed() for _ in range(100)}
    assert len(made) == 100
    assert {len(seed) for seed in made} == {32}
