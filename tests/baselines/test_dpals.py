"""Private ALS: what one user can change, what it costs, and what is learnt."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.stats import kstest, norm

from sottovoce.baselines import DPALS, IALS, Baseline, TopPop, dpals
from sottovoce.core.interactions import Interactions
from sottovoce.evaluation.protocol import Protocol, evaluate
from sottovoce.privacy.central import price
from sottovoce.rng import Streams

RNG = Streams.from_seed(3)
SIZE = 4
HALF = SIZE * (SIZE + 1) // 2


@pytest.fixture(scope="module")
def tastes() -> tuple[Interactions, Interactions]:
    """Training and test part of 3,000 users with one of four tastes."""
    rng = np.random.default_rng(2)
    taste, kind = rng.integers(0, 4, 3000), rng.integers(0, 4, 120)
    table = rng.random((3000, 120)) < np.where(taste[:, None] == kind, 0.3, 0.03)
    held = table & (rng.random(table.shape) < 0.2)
    times = rng.integers(0, 1000, int((table & ~held).sum()))
    users, items = np.nonzero(table & ~held)
    train = Interactions.from_pairs(users, items, n_users=3000, n_items=120, timestamps=times)
    return train, Interactions.from_pairs(*np.nonzero(held), n_users=3000, n_items=120)


def length(numbers: NDArray[np.int64]) -> float:
    """Exactly, in whole numbers, as a part of what a user may add."""
    return math.sqrt(sum(int(n) ** 2 for n in numbers.ravel().tolist()) / dpals.STEPS**2)


def unit_weights(weights: NDArray[np.float64], history: Interactions) -> NDArray[np.float64]:
    """Any weights, scaled so that the squares of a user's add up to 1."""
    squares = np.bincount(history.users, weights**2, minlength=history.n_users)
    return np.asarray(weights / np.sqrt(squares[history.users]))


def test_all_weights_of_a_user_are_alike(sparse: Interactions) -> None:
    wanted = unit_weights(np.ones(sparse.n_interactions), sparse)
    np.testing.assert_allclose(dpals.unit_weights(sparse), wanted)


# --- what one user can change --------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    direction=arrays(np.float32, SIZE, elements=st.floats(-1e3, 1e3, width=32)),
    weights=st.lists(st.floats(1e-9, 1.0), min_size=0, max_size=40),
)
def test_a_user_moves_a_round_by_at_most_1(
    direction: NDArray[np.float32], weights: list[float]
) -> None:
    n = len(weights)
    mine = Interactions.from_pairs(np.zeros(n, dtype=int), np.arange(n), n_users=1, n_items=50)
    units = unit_weights(np.array(weights), mine)
    sums = dpals.round_sums(dpals._units(direction[None]), mine, units)
    assert length(sums) <= 1.0
    if n and np.abs(direction).max() > 1e-3:
        # All that she may add is used.
        assert length(sums) > 0.999


@settings(max_examples=100, deadline=None)
@given(weights=st.lists(st.floats(1e-9, 1.0), min_size=0, max_size=40))
def test_a_user_moves_popularity_by_at_most_1(weights: list[float]) -> None:
    n = len(weights)
    mine = Interactions.from_pairs(np.zeros(n, dtype=int), np.arange(n), n_users=1, n_items=50)
    sums = dpals.popularity_sums(mine, unit_weights(np.array(weights), mine))
    assert length(sums) <= 1.0
    assert length(sums) >= 0.999 * (n > 0)


def test_too_long_a_share_is_left_out() -> None:
    mine = Interactions.from_pairs([0, 0, 1, 1], [0, 1, 0, 2], n_users=2, n_items=3)
    vectors = dpals._units(np.ones((2, SIZE), dtype=np.float32))
    vectors[0] *= 1.01
    units = np.full(4, 0.5**0.5)
    other = dpals.round_sums(vectors[1:], mine.take_users(np.array([1])), units[2:])
    np.testing.assert_array_equal(dpals.round_sums(vectors, mine, units), other)
    long = np.array([0.8, 0.8, *units[2:]])
    sums = dpals.popularity_sums(mine, long)
    np.testing.assert_array_equal(
        sums, dpals.popularity_sums(mine.take_users(np.array([1])), units[2:])
    )


def test_sums_are_those_of_the_definition(sparse: Interactions) -> None:
    rng = np.random.default_rng(1)
    vectors = dpals._units(rng.normal(size=(40, SIZE)).astype(np.float32))
    units = unit_weights(rng.random(sparse.n_interactions) + 0.1, sparse)
    sums = dpals.round_sums(vectors, sparse, units) / dpals.STEPS
    table = sums[: 30 * (HALF + SIZE)].reshape(30, HALF + SIZE)
    tables, every = (
        dpals._unpacked(rows / dpals.SHARES[k] ** 0.5, SIZE)
        for k, rows in ((0, table[:, :HALF]), (2, sums[None, -HALF:]))
    )
    wanted = np.zeros((30, SIZE, SIZE))
    plain = np.zeros((30, SIZE))
    for user, item, w in zip(sparse.users, sparse.items, units, strict=True):
        wanted[item] += w * np.outer(vectors[user], vectors[user])
        plain[item] += w * vectors[user]
    np.testing.assert_allclose(tables, wanted, atol=1e-3)
    np.testing.assert_allclose(table[:, HALF:] / dpals.SHARES[1] ** 0.5, plain, atol=1e-3)
    there = vectors[sparse.counts > 0]
    np.testing.assert_allclose(every[0], there.T @ there, atol=1e-3)


def test_blocks_of_users_do_not_matter(
    sparse: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = DPALS(8.0, embedding_size=3).fit(sparse, RNG)
    monkeypatch.setattr(dpals, "_BLOCK", 7)
    parts = DPALS(8.0, embedding_size=3).fit(sparse, RNG)
    np.testing.assert_array_equal(whole.item_factors, parts.item_factors)


# --- what it costs -------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 8.0])
@pytest.mark.parametrize(("rounds", "share"), [(1, 0.1), (4, 0.1), (7, 0.5)])
def test_the_noise_of_all_releases_costs_epsilon(epsilon: float, rounds: int, share: float) -> None:
    """Gaussians add up by their squared distances; `price` knows those of one noise."""
    config = DPALS(epsilon, rounds=rounds, popularity_share=share)
    first, each = config.sigmas()
    together = (1 / first**2 + rounds / each**2) ** -0.5
    assert price(together, 1, config.delta) == pytest.approx(epsilon, rel=1e-6)
    assert price(together * 0.999, 1, config.delta) > epsilon


def test_every_sum_gets_its_noise(sparse: Interactions, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a fit draws, and that it draws for all it sums: popularity, count, and each round's
    tables of the whole head, with other noise each time."""
    drawn = []
    draw = dpals.gaussian_noise

    def watched(key: bytes, round: int, numbers: int, sigma: float) -> NDArray[np.int64]:
        noise = draw(key, round, numbers, sigma)
        drawn.append((key, round, sigma, noise))
        return noise

    monkeypatch.setattr(dpals, "gaussian_noise", watched)
    config = DPALS(2.0, rounds=3, embedding_size=SIZE, head=20)
    config.fit(sparse, RNG)
    first, each = config.sigmas()
    tables = 20 * (HALF + SIZE) + HALF
    assert [len(noise) for *_, noise in drawn] == [31, tables, tables, tables]
    wanted = [first * dpals.STEPS] + [each * dpals.STEPS] * 3
    assert [sigma for _, _, sigma, _ in drawn] == wanted
    assert len({(key, number) for key, number, _, _ in drawn}) == 4
    together = np.concatenate([noise / sigma for _, _, sigma, noise in drawn])
    assert kstest(together, norm.cdf).pvalue > 1e-3


def test_what_is_published_is_the_sum_and_that_noise(sparse: Interactions) -> None:
    sums = np.arange(1000) * 5
    noise = dpals._Noise(RNG)
    first, second = (noise.added(sums, 3.0) * dpals.STEPS - sums for _ in range(2))
    for found in (first, second):
        assert kstest(found / (3.0 * dpals.STEPS), norm.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.15


# --- what is learnt ------------------------------------------------------------------------------


def precision(baseline: Baseline, data: tuple[Interactions, Interactions]) -> float:
    return evaluate(baseline.fit(data[0], RNG), *data, Protocol(10)).mean("P@10")


def test_less_noise_is_better_and_some_beats_popularity(
    tastes: tuple[Interactions, Interactions],
) -> None:
    popular = precision(TopPop(), tastes)
    little, much = (precision(DPALS(e, embedding_size=6), tastes) for e in (0.05, 8.0))
    assert much > 1.5 * popular
    assert much > little


def test_without_noise_it_is_near_ials(tastes: tuple[Interactions, Interactions]) -> None:
    free = precision(DPALS(1e5, embedding_size=6), tastes)
    assert free > 0.95 * precision(IALS(6), tastes)


def test_the_head_is_what_is_popular(tastes: tuple[Interactions, Interactions]) -> None:
    train, _ = tastes
    model = DPALS(1e5, embedding_size=3, head=15).fit(train, RNG)
    weights = np.bincount(train.items, 1 / np.sqrt(train.counts[train.users]))
    head = np.flatnonzero(model.item_factors.any(axis=1))
    np.testing.assert_array_equal(head, np.sort(np.argsort(-weights)[:15]))
    scores = model.scores(np.arange(train.n_users))
    tail = np.setdiff1d(np.arange(120), head)
    # Below the head for everybody, by popularity.
    assert scores[:, tail].max() < scores[:, head].min()
    assert np.corrcoef(scores[0, tail], weights[tail])[0, 1] > 0.9999


def test_more_users_and_less_noise_give_a_longer_head() -> None:
    sizes = [DPALS(e).head_size(n) for e, n in ((1.0, 6040), (8.0, 6040), (8.0, 50_000))]
    assert sizes == sorted(sizes)
    assert 200 < sizes[0] < 300
    assert 550 < sizes[1] < 700
    assert DPALS(1.0).head_size(-5.0) == 200
    assert DPALS(1.0, head=77).head_size(1e6) == 77


def test_memory_counts_at_home_alone(
    tastes: tuple[Interactions, Interactions],
) -> None:
    train, _ = tastes
    plain, late = (
        DPALS(1e5, embedding_size=3, memory=memory).fit(train, RNG) for memory in (0.0, 4.0)
    )
    np.testing.assert_array_equal(plain.item_factors, late.item_factors)
    assert not np.allclose(plain.user_factors, late.user_factors, rtol=0.01)


def test_without_times_memory_changes_nothing() -> None:
    rng = np.random.default_rng(8)
    users, items = np.nonzero(rng.random((30, 12)) < 0.3)
    train = Interactions.from_pairs(users, items, n_users=30, n_items=12)
    plain, late = (DPALS(8.0, memory=m).fit(train, RNG) for m in (0.0, 4.0))
    np.testing.assert_array_equal(plain.user_factors, late.user_factors)
