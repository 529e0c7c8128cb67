from __future__ import annotations

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import AP, RR, P, R, Success, nDCG

from sottovoce.core.interactions import Interactions
from sottovoce.errors import DataError, UsageError
from sottovoce.evaluation import metrics

CASES = 1000


def random_cases(k: int, seed: int):
    """Users with 1 to 40 relevant items of 60, and lists of k, some of them short."""
    rng = np.random.default_rng(seed)
    relevant = [np.sort(rng.choice(60, rng.integers(1, 41), replace=False)) for _ in range(CASES)]
    test = Interactions.from_pairs(
        np.repeat(np.arange(CASES), [len(r) for r in relevant]),
        np.concatenate(relevant),
        n_users=CASES,
        n_items=60,
    )
    lists = np.stack([rng.permutation(60)[:k] for _ in range(CASES)]).astype(np.int32)
    for row in rng.choice(CASES, 100, replace=False):
        lists[row, rng.integers(0, k) :] = -1
    return lists, test


@pytest.mark.parametrize("k", [1, 5, 10, 50])
def test_agrees_with_ir_measures(k):
    lists, test = random_cases(k, seed=k)
    users = np.arange(CASES)
    hit, relevant = metrics.hits(lists, users, test), test.counts
    qrels = [ir_measures.Qrel(str(u), str(i), 1) for u in range(CASES) for i in test.row(u)]
    run = [
        ir_measures.ScoredDoc(str(u), str(i), float(k - place))
        for u in range(CASES)
        for place, i in enumerate(lists[u])
        if i >= 0
    ]
    theirs = {m: np.zeros(CASES) for m in (P @ k, R @ k, Success @ k, nDCG @ k, AP @ k, RR @ k)}
    for result in ir_measures.iter_calc(list(theirs), qrels, run):
        theirs[result.measure][int(result.query_id)] = result.value
    ours = {
        P @ k: metrics.precision(hit, relevant),
        R @ k: metrics.recall(hit, relevant),
        Success @ k: metrics.hit_rate(hit, relevant),
        RR @ k: metrics.reciprocal_rank(hit, relevant),
        nDCG @ k: metrics.ndcg(hit, relevant),
        # Theirs divides by the number of relevant items, ours by min(k, that).
        AP @ k: metrics.average_precision(hit, relevant) * np.minimum(k, relevant) / relevant,
    }
    for measure, values in ours.items():
        np.testing.assert_allclose(values, theirs[measure], atol=1e-9, rtol=0, err_msg=str(measure))
        assert 0 < values.mean() < 1


def test_padding_and_foreign_items_are_no_hits():
    test = Interactions.from_pairs([0, 1, 1], [0, 0, 4], n_users=3, n_items=5)
    lists = np.array([[-1, 0], [5, 4], [4, 0]], dtype=np.int32)
    found = metrics.hits(lists, np.array([0, 1, 2]), test)
    assert found.tolist() == [[False, True], [False, True], [False, False]]
    swapped = metrics.hits(lists[::-1], np.array([1, 2, 0]), test)
    assert swapped.tolist() == [[True, True], [False, False], [False, True]]
    with pytest.raises(UsageError):
        metrics.hits(lists, np.array([0, 1]), test)


def direct_gini(lists, n_items):
    """The definition through mean absolute differences, with the n / (n − 1) correction."""
    count = np.bincount(lists[lists >= 0], minlength=n_items).astype(float)
    spread = np.abs(count[:, None] - count[None]).mean() / (2 * count.mean())
    return 1 - spread * n_items / (n_items - 1)


@given(st.lists(st.lists(st.integers(-1, 9), min_size=3, max_size=3), min_size=1, max_size=20))
def test_gini_and_coverage(rows):
    lists = np.array(rows, dtype=np.int32)
    assert metrics.item_coverage(lists) == len(set(lists.ravel().tolist()) - {-1})
    value = metrics.gini(lists, 10)
    if (lists < 0).all():
        assert np.isnan(value)
        return
    assert -1e-12 <= value <= 1 + 1e-12
    assert value == pytest.approx(direct_gini(lists, 10))
    assert value == pytest.approx(metrics.gini(lists[::-1, ::-1], 10))
    relabelled = np.where(lists >= 0, 9 - lists, -1)
    assert value == pytest.approx(metrics.gini(relabelled, 10))


def test_gini_extremes():
    assert metrics.gini(np.zeros((5, 1), np.int32), 10) == pytest.approx(0.0)
    assert metrics.gini(np.arange(10, dtype=np.int32)[None], 10) == pytest.approx(1.0)
    assert np.isnan(metrics.gini(np.zeros((5, 1), np.int32), 1))
    with pytest.raises(DataError):
        metrics.gini(np.array([[10]], np.int32), 10)


def test_gini_of_random_lists_on_brazils_shape():
    """17,473 users, 47,270 items: 0.712 by the formula (the paper prints 0.709)."""
    rng = np.random.default_rng(0)
    lists = rng.integers(0, 47270, (17473, 10)).astype(np.int32)
    assert metrics.gini(lists, 47270) == pytest.approx(0.712, abs=0.002)


class TestBiasDisparity:
    def test_random_lists_pull_every_category_back_to_its_share(self):
        rng = np.random.default_rng(0)
        member = rng.random((500, 4)) < [0.1, 0.3, 0.5, 0.05]
        weight = 1.0 + 3.0 * member[:, 0] + 0.5 * member[:, 2]
        users = np.repeat(np.arange(400), 20)
        items = rng.choice(500, len(users), p=weight / weight.sum())
        train = Interactions.from_pairs(users, items, n_users=400, n_items=500)
        lists = rng.integers(0, 500, (40000, 10)).astype(np.int32)
        result = metrics.bias_disparity(lists, train, member)
        np.testing.assert_allclose(result.recommended, 1.0, atol=0.02)
        np.testing.assert_allclose(result.disparity, (1 - result.source) / result.source, atol=0.03)
        assert result.source[0] > 1.5

    def test_by_hand_with_several_and_no_categories(self):
        member = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]], dtype=bool)
        train = Interactions.from_pairs([0, 0, 1, 1], [0, 2, 1, 2], n_users=2, n_items=4)
        lists = np.array([[3, -1], [3, 0]], dtype=np.int32)
        result = metrics.bias_disparity(lists, train, member)
        np.testing.assert_allclose(result.source[:2], [0.5 / 0.5, 0.25 / 0.5])
        np.testing.assert_allclose(result.recommended[:2], [(1 / 3) / 0.5, (2 / 3) / 0.5])
        np.testing.assert_allclose(result.disparity[:2], [-1 / 3, 5 / 3])
        assert np.isnan(result.disparity[2])

    def test_repeating_the_training_data_changes_nothing(self):
        member = np.array([[1, 0], [0, 1], [1, 1]], dtype=bool)
        train = Interactions.from_pairs([0, 0, 1, 1], [0, 1, 1, 2], n_users=2, n_items=3)
        lists = np.array([[0, 1], [1, 2]], dtype=np.int32)
        result = metrics.bias_disparity(lists, train, member)
        np.testing.assert_allclose(result.disparity, 0.0)

    def test_a_category_never_consumed_has_no_disparity(self):
        member = np.array([[1, 0], [0, 1]], dtype=bool)
        train = Interactions.from_pairs([0], [0], n_users=1, n_items=2)
        result = metrics.bias_disparity(np.array([[1]], np.int32), train, member)
        assert np.isnan(result.disparity[1])
        assert result.disparity[0] == -1.0

    def test_bad_tables_are_refused(self):
        train = Interactions.from_pairs([0], [0], n_users=1, n_items=2)
        with pytest.raises(DataError):
            metrics.bias_disparity(np.array([[1]], np.int32), train, np.ones((1, 1), bool))
        with pytest.raises(DataError):
            metrics.bias_disparity(np.array([[2]], np.int32), train, np.ones((3, 1), bool))
