from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer, recommend, score_items, top_n
from sottovoce.errors import DataError, Diverged, UsageError


class TableScorer:
    """Any scorer: the generic path."""

    def __init__(self, table: NDArray[np.float32]) -> None:
        self.table = table
        self.largest = 0

    @property
    def n_items(self) -> int:
        return self.table.shape[1]

    def scores(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        self.largest = max(self.largest, len(users))
        return self.table[users]


def factor_world(n_users: int, n_items: int, size: int, seed: int = 0) -> FactorScorer:
    rng = np.random.default_rng(seed)
    return FactorScorer(
        rng.normal(size=(n_users, size)).astype(np.float32),
        rng.normal(size=(n_items, size)).astype(np.float32),
        rng.normal(size=n_items).astype(np.float32),
    )


def random_seen(n_users: int, n_items: int, each: int, seed: int = 1) -> Interactions:
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(n_users), each)
    items = rng.integers(0, n_items, len(users))
    return Interactions.from_pairs(users, items, n_users=n_users, n_items=n_items)


def reference(
    table: NDArray[np.float32], users: list[int], seen: Interactions | None, n: int
) -> list[list[int]]:
    lists = []
    for user in users:
        gone = set() if seen is None else set(seen.row(user).tolist())
        left = [
            (-score, item)
            for item, score in enumerate(table[user].tolist())
            if item not in gone and score > -np.inf
        ]
        best = [item for _, item in sorted(left)[:n]]
        lists.append(best + [-1] * (n - len(best)))
    return lists


@st.composite
def integer_worlds(draw):
    """Small integer factors: scores are exact, and full of ties."""
    n_users = draw(st.integers(1, 20))
    n_items = draw(st.integers(1, 70))
    size = draw(st.integers(1, 5))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    scorer = FactorScorer(
        rng.integers(-2, 3, (n_users, size)).astype(np.float32),
        rng.integers(-2, 3, (n_items, size)).astype(np.float32),
        np.where(rng.random(n_items) < 0.1, -np.inf, rng.integers(-2, 3, n_items)).astype(
            np.float32
        ),
    )
    seen = random_seen(n_users, n_items, draw(st.integers(0, 2 * n_items)), seed)
    users = draw(st.lists(st.integers(0, n_users - 1), max_size=30))
    return scorer, users, draw(st.sampled_from([None, seen])), draw(st.integers(1, 80))


@settings(deadline=None)  # the first example compiles
@given(integer_worlds())
def test_both_paths_equal_a_full_sort(world):
    scorer, users, seen, n = world
    table = scorer.scores(np.arange(len(scorer.user_factors)))
    expected = reference(table, users, seen, n)
    for way in (scorer, TableScorer(table)):
        items, scores = top_n(way, users, seen, n, threads=2)
        assert items.dtype == np.int32
        assert scores.dtype == np.float32
        assert items.shape == scores.shape == (len(users), n)
        assert items.tolist() == expected
        for row, user in enumerate(users):
            found = items[row] >= 0
            assert (scores[row][found] == table[user][items[row][found]]).all()
            assert (scores[row][~found] == -np.inf).all()


def test_fast_path_agrees_with_the_product_on_a_large_catalogue():
    scorer = factor_world(50, 5000, 33)
    seen = random_seen(50, 5000, 300)
    users = np.arange(50)
    exact = scorer.user_factors.astype(np.float64) @ scorer.item_factors.T.astype(np.float64)
    exact += scorer.item_bias
    items, scores = top_n(scorer, users, seen, 10)
    np.testing.assert_allclose(scores, np.take_along_axis(exact, items, 1), rtol=1e-5, atol=1e-5)
    assert items.tolist() == reference(exact.astype(np.float32), list(users), seen, 10)


def test_seen_items_are_masked_at_every_place_of_a_large_catalogue():
    """The favourites lie at the edges of the blocks that the kernel works in."""
    edges = [0, 15, 16, 1022, 1023, 1024, 1025, 2047, 2048, 2999]
    bias = np.zeros(3000, np.float32)
    bias[edges] = np.arange(10, 20)
    scorer = FactorScorer(np.zeros((10, 3), np.float32), np.zeros((3000, 3), np.float32), bias)
    for gone in ([], edges[3:6], edges[4:5], edges[-1:], edges[:1], edges[1:9:2], edges):
        seen = Interactions.from_pairs([7] * len(gone), gone, n_users=10, n_items=3000)
        expected = [i for i in reversed(edges) if i not in gone]
        items, _ = top_n(scorer, np.arange(10), seen, 10)
        assert items[7][: len(expected)].tolist() == expected
        assert not set(items[7].tolist()) & set(gone)
        assert (items[[0, 6, 8]] == edges[::-1]).all()


def test_lists_do_not_depend_on_threads_company_or_length():
    scorer = factor_world(1000, 777, 50)
    seen = random_seen(1000, 777, 40)
    users = np.arange(1000)
    items, scores = top_n(scorer, users, seen, 10, threads=1)
    for threads in (2, 3, 7):
        again = top_n(scorer, users, seen, 10, threads=threads)
        assert (again[0] == items).all()
        assert (again[1] == scores).all()
    order = np.random.default_rng(3).permutation(1000)
    shuffled = top_n(scorer, order, seen, 10)
    assert (shuffled[0] == items[order]).all()
    assert (shuffled[1] == scores[order]).all()
    longer = top_n(scorer, users, seen, 25)
    assert (longer[0][:, :10] == items).all()
    assert (longer[1][:, :10] == scores).all()
    for user in (0, 5, 6, 999):
        alone = top_n(scorer, [user], seen, 10)
        assert (alone[0][0] == items[user]).all()
        assert (alone[1][0] == scores[user]).all()


def test_a_device_with_its_own_vector_gets_the_list_of_the_evaluation():
    scorer = factor_world(40, 300, 20)
    seen = random_seen(40, 300, 30)
    items, scores = top_n(scorer, np.arange(40), seen, 10)
    for user in range(40):
        at_home = FactorScorer(
            scorer.user_factors[user : user + 1], scorer.item_factors, scorer.item_bias
        )
        mine, mine_scores = recommend(at_home, 0, seen.row(user), 10)
        assert (mine == items[user]).all()
        assert (mine_scores == scores[user]).all()
        assert (recommend(scorer, user, seen, 10)[0] == items[user]).all()


def test_one_user_gets_no_padding():
    scorer = factor_world(1, 5, 3)
    items, scores = recommend(scorer, 0, np.array([4, 0, 4]), 10)
    assert sorted(items.tolist()) == [1, 2, 3]
    assert (np.diff(scores) <= 0).all()
    assert len(recommend(scorer, 0, np.arange(5), 10)[0]) == 0
    assert len(recommend(scorer, 0, np.array([], dtype=int), 10)[0]) == 5
    assert len(recommend(scorer, 0, None, 2)[0]) == 2


@pytest.mark.parametrize(("user", "seen"), [(-1, [0]), (-9, None), (1, [0]), (0, [-1])])
def test_one_unknown_user_or_item_is_refused(user, seen):
    with pytest.raises(DataError, match="there is no"):
        recommend(factor_world(1, 5, 3), user, seen, 2)


def test_seen_items_beyond_the_catalogue_are_ignored():
    scorer = factor_world(1, 5, 3)
    seen = Interactions.from_pairs([0, 0], [1, 900], n_users=1, n_items=1000)
    assert sorted(recommend(scorer, 0, seen, 10)[0].tolist()) == [0, 2, 3, 4]


def test_scores_of_pairs_have_the_bits_of_the_ranking():
    scorer = factor_world(300, 400, 50)
    users = np.arange(300)
    items, scores = top_n(scorer, users, None, 20)
    assert (score_items(scorer, users, items, threads=2) == scores).all()
    table = TableScorer(scorer.scores(users))
    picked = np.array([[3, -1, 5]] * 300)
    expected = table.table[:, [3, 0, 5]].copy()
    expected[:, 1] = -np.inf
    assert (score_items(table, users, picked) == expected).all()
    np.testing.assert_allclose(score_items(scorer, users, picked), expected, rtol=1e-4, atol=1e-5)


def test_equal_items_tie_exactly():
    scorer = FactorScorer(
        np.random.default_rng(0).normal(size=(9, 50)).astype(np.float32),
        np.tile(np.random.default_rng(1).normal(size=50).astype(np.float32), (100, 1)),
        np.zeros(100, np.float32),
    )
    items, _ = top_n(scorer, np.arange(9), None, 10)
    assert (items == np.arange(10)).all()


def test_a_large_table_is_scored_in_tiles():
    table = np.zeros((3000, 20), np.float32)
    scorer = TableScorer(table)
    items, _ = top_n(scorer, np.arange(3000), None, 3)
    assert (items == [0, 1, 2]).all()
    assert scorer.largest < 3000


@pytest.mark.parametrize("users", [[-1], [40], [[0]]])
def test_unknown_users_are_refused(users):
    scorer = factor_world(40, 30, 4)
    with pytest.raises((DataError, UsageError)):
        top_n(scorer, users, None, 10)
    with pytest.raises((DataError, UsageError)):
        score_items(scorer, users, [[0]])


def test_a_user_without_a_row_of_seen_items_is_refused():
    with pytest.raises(DataError, match="no user 7"):
        top_n(factor_world(40, 30, 4), [7], random_seen(7, 30, 3), 10)


@pytest.mark.parametrize("items", [[[-2]], [[30]], [0], [[1], [2]]])
def test_unknown_items_are_refused(items):
    with pytest.raises((DataError, UsageError)):
        score_items(factor_world(40, 30, 4), [0], items)


def test_bad_sizes_are_refused():
    scorer = factor_world(4, 30, 4)
    with pytest.raises(UsageError):
        top_n(scorer, [0], None, 0)
    with pytest.raises(UsageError):
        top_n(scorer, [0], None, 1, threads=0)
    with pytest.raises(DataError, match="do not match"):
        top_n(FactorScorer(scorer.user_factors[:, :3], *_items(scorer)), [0], None, 1)
    with pytest.raises(DataError, match="biases"):
        top_n(
            FactorScorer(scorer.user_factors, scorer.item_factors, scorer.item_bias[:5]),
            [0],
            None,
            1,
        )


def test_a_scorer_must_keep_its_word_on_its_catalogue():
    class Short(TableScorer):
        n_items = 31

    with pytest.raises(DataError, match="shape"):
        top_n(Short(np.zeros((4, 30), np.float32)), [0], None, 1)


def test_a_model_that_is_not_finite_is_refused():
    scorer = factor_world(4, 30, 4)
    broken = scorer.item_factors.copy()
    broken[3, 2] = np.nan
    with pytest.raises(Diverged):
        top_n(FactorScorer(scorer.user_factors, broken, scorer.item_bias), [0], None, 1)
    table = np.zeros((1, 3), np.float32)
    table[0, 1] = np.nan
    with pytest.raises(Diverged):
        top_n(TableScorer(table), [0], None, 1)


def _items(scorer: FactorScorer) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return scorer.item_factors, scorer.item_bias
