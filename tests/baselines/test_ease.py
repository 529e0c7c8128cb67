"""EASE against its formula, whole and by neighbourhoods."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from sottovoce.baselines import EASE
from sottovoce.baselines import ease as rooms
from sottovoce.core.interactions import Interactions, recency
from sottovoce.errors import ConfigError, Diverged
from sottovoce.rng import Streams

RNG = Streams.from_seed(5)
TABLES = st.tuples(st.integers(1, 12), st.integers(1, 12)).flatmap(
    lambda shape: arrays(np.bool_, shape, fill=st.nothing())
)


def interactions(table: NDArray[np.bool_]) -> Interactions:
    users, items = np.nonzero(table)
    return Interactions.from_pairs(users, items, n_users=len(table), n_items=table.shape[1])


def dense(train: Interactions) -> NDArray[np.float64]:
    table = np.zeros((train.n_users, train.n_items))
    table[train.users, train.items] = 1.0
    return table


def explicit(
    table: NDArray[np.float64], reg: float, *, related: bool = False
) -> NDArray[np.float64]:
    """Column by column: the ridge regression of an item on all the others, or on all that share a
    user with it."""
    n = table.shape[1]
    weights = np.zeros((n, n))
    for j in range(n):
        others = (np.arange(n) != j) & ((table.T @ table[:, j] > 0) | (not related))
        left = table[:, others].T @ table[:, others] + reg * np.eye(int(others.sum()))
        weights[others, j] = np.linalg.solve(left, table[:, others].T @ table[:, j])
    return weights


@settings(max_examples=60, deadline=None)
@given(table=TABLES, reg=st.floats(0.1, 1e3), most=st.sampled_from([0, 100]))
def test_each_item_is_regressed_on_the_others(
    table: NDArray[np.bool_], reg: float, most: int
) -> None:
    """Whole, or by neighbourhoods with room for all."""
    train = interactions(table)
    scorer = EASE(reg, most_items=most, neighbors=20).fit(train, RNG)
    wanted = table @ explicit(table.astype(np.float64), reg, related=not most)
    np.testing.assert_allclose(scorer.scores(np.arange(len(table))), wanted, atol=1e-4)


def test_neighbourhoods_of_all_are_the_whole() -> None:
    table = np.random.default_rng(4).random((60, 12)) < 0.4
    train, users = interactions(table), np.arange(60)
    whole, local = (EASE(5.0, most_items=m, neighbors=11).fit(train, RNG) for m in (12, 11))
    np.testing.assert_allclose(local.scores(users), whole.scores(users), atol=1e-5)
    few = EASE(5.0, most_items=11, neighbors=10).fit(train, RNG)
    assert not np.allclose(few.scores(users), whole.scores(users), atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 2, 700, 1100])
def test_the_inverse_is_made_in_place(n: int, dtype: type[np.floating]) -> None:
    rng = np.random.default_rng(n)
    square = rng.normal(size=(n, n))
    whole = square @ square.T / n
    given = np.tril(whole).astype(dtype)
    found = rooms.inverse_gram(given, 0.5)
    assert np.shares_memory(found, given)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, np.linalg.inv(whole + 0.5 * np.eye(n)), atol=2e-5)
    np.testing.assert_array_equal(found, found.T)


def test_what_cannot_be_inverted_is_refused() -> None:
    with pytest.raises(Diverged, match="set reg higher"):
        rooms.inverse_gram(-np.eye(3), 0.5)
    for wrong in (
        np.eye(3, 2),
        np.eye(3, dtype=np.int64),
        np.asfortranarray(np.ones((3, 3))[:, ::-1]),
    ):
        with pytest.raises(ConfigError, match="a Gram matrix is"):
            rooms.inverse_gram(wrong, 1.0)
    assert rooms.inverse_gram(np.zeros((0, 0)), 1.0).shape == (0, 0)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_gram_matrix_counts_common_users(threads: int, sparse: Interactions) -> None:
    table = dense(sparse)
    np.testing.assert_array_equal(rooms.gram(sparse, threads=threads), np.tril(table.T @ table))


def test_single_precision_is_used_where_it_suffices(
    sparse: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    inverse = rooms.inverse_gram
    monkeypatch.setattr(
        rooms, "inverse_gram", lambda gram, reg: taken.append(gram.dtype) or inverse(gram, reg)
    )
    careless, careful = rooms.whole(sparse, 10.0), rooms.whole(sparse, 1e-3)
    assert taken == [np.float32, np.float64]
    for found, reg in ((careless, 10.0), (careful, 1e-3)):
        np.testing.assert_allclose(found, explicit(dense(sparse), reg), atol=1e-5)


def test_a_neighbourhood_has_the_most_related_items(sparse: Interactions) -> None:
    found = rooms.by_neighbours(sparse, 2.0, 4).toarray()
    table = dense(sparse)
    common, popular = table.T @ table, table.sum(axis=0)
    for j in range(sparse.n_items):
        near = common[:, j] / np.maximum(popular, 1) ** (1 / 3)
        near[j] = 0.0
        chosen = np.sort(np.argsort(-near, kind="stable")[:4])
        chosen = chosen[near[chosen] > 0]
        left = common[np.ix_(chosen, chosen)] + 2.0 * np.eye(len(chosen))
        weights = np.zeros(sparse.n_items)
        weights[chosen] = np.linalg.solve(left, common[chosen, j])
        np.testing.assert_allclose(found[:, j], weights, atol=1e-5)


def test_the_rarest_pairs_go_where_there_is_no_room(sparse: Interactions) -> None:
    table = dense(sparse)
    common = (table.T @ table).astype(int)
    np.fill_diagonal(common, 0)
    every = int((common > 0).sum())
    for most in (every, every - 1, int((common > 2).sum()), 0):
        indptr, ids, counts = rooms.pairs(sparse, most)
        assert len(ids) == len(counts) == indptr[-1] <= most
        found = np.zeros_like(common)
        found[np.repeat(np.arange(len(common)), np.diff(indptr)), ids] = counts
        least = counts.min() if len(counts) else common.max() + 1
        np.testing.assert_array_equal(found, np.where(common >= least, common, 0))
        # One more step down would be too many.
        assert least == 1 or (common >= least - 1).sum() > most


def test_neighbourhoods_do_not_depend_on_threads(sparse: Interactions) -> None:
    seen: list[tuple[int, int]] = []
    one, three = (
        rooms.by_neighbours(sparse, 2.0, 5, t, lambda done, total: seen.append((done, total)))
        for t in (1, 3)
    )
    np.testing.assert_array_equal(one.toarray(), three.toarray())
    assert seen[-1] == (sparse.n_items, sparse.n_items)


@pytest.mark.parametrize("most", [0, 100])
def test_later_items_weigh_more_at_home(most: int, sparse: Interactions) -> None:
    users = np.arange(sparse.n_users)
    scores = EASE(3.0, memory=4.0, most_items=most, neighbors=40).fit(sparse, RNG).scores(users)
    weighed = np.zeros((sparse.n_users, sparse.n_items))
    weighed[sparse.users, sparse.items] = recency(sparse, 4.0)
    weights = explicit(dense(sparse), 3.0, related=not most)
    np.testing.assert_allclose(scores, weighed @ weights, atol=1e-5)
    plain = EASE(3.0, most_items=most, neighbors=40).fit(sparse, RNG).scores(users)
    assert not np.allclose(scores, plain, atol=1e-3)


def test_the_rule_follows_the_users_of_an_item() -> None:
    times = np.arange(60)
    users, items = np.divmod(times, 6)
    timed = Interactions.from_pairs(users, items, timestamps=times)
    timeless = Interactions.from_pairs(users, items)
    assert rooms.rule(timed) == 25.0 * 10
    assert rooms.rule(timeless) == pytest.approx(15.0 * 10**0.5)
    at_rule, set_so = (EASE(reg).fit(timed, RNG).scores(np.arange(10)) for reg in (0.0, 250.0))
    np.testing.assert_array_equal(at_rule, set_so)


@pytest.mark.parametrize("most", [0, 100])
def test_one_item_has_nothing_to_follow_from(most: int) -> None:
    one = Interactions.from_pairs([0, 1], [0, 0], n_users=3, n_items=1)
    assert not EASE(most_items=most).fit(one, RNG).scores(np.arange(3)).any()


@pytest.mark.parametrize("most", [0, 100])
def test_too_small_a_pull_is_refused_in_one_sentence(most: int) -> None:
    # Items 0 and 1 have the same users, as have 2 and 3.
    twins = interactions(np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1]], dtype=bool))
    with pytest.raises(Diverged, match="set reg higher"):
        EASE(1e-300, most_items=most).fit(twins, RNG)
