from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sottovoce.errors import UsageError
from sottovoce.evaluation.protocol import Evaluation, Protocol
from sottovoce.evaluation.significance import bonferroni, compare, holm, paired_t

values = st.integers(0, 5)
pairs = st.lists(st.tuples(values, values), min_size=2, max_size=50)


def evaluation(users, column, served=None, k=10) -> Evaluation:
    column = np.asarray(column, dtype=float)
    return Evaluation(
        protocol=Protocol(k),
        users=np.asarray(users),
        values={f"P@{k}": column},
        served=np.ones(len(column), bool) if served is None else np.asarray(served),
        skipped=0,
        n_items=100,
    )


@given(pairs)
def test_t_agrees_with_scipy(rows):
    a, b = np.array(rows, dtype=float).T
    ours = paired_t(a, b)
    if np.ptp(a - b) == 0:
        assert ours.p == (1.0 if (a == b).all() else 0.0)
        assert ours.low == ours.high == ours.difference
        return
    theirs = stats.ttest_rel(a, b)
    interval = theirs.confidence_interval(0.95)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high))
    assert ours.n == len(rows)


def test_identical_systems_do_not_differ():
    a = np.random.default_rng(0).random(100)
    result = paired_t(a, a)
    assert (result.p, result.difference, result.low, result.high) == (1.0, 0.0, 0.0, 0.0)


def test_a_single_pair_proves_nothing():
    result = paired_t([1.0], [0.0])
    assert (result.p, result.low, result.high) == (1.0, -np.inf, np.inf)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert bonferroni([0.01, 0.5]) == pytest.approx([0.02, 1.0])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_corrections_are_ordered(p):
    stepped, single = holm(p), bonferroni(p)
    for raw, h, b in zip(p, stepped, single, strict=True):
        assert raw <= h <= b <= 1
    order = np.argsort(p, kind="stable")
    assert (np.diff(np.array(stepped)[order]) >= 0).all()
    # Decisions equal those of the step-down procedure as textbooks give it.
    rejected = 0
    for rank, index in enumerate(order):
        if p[index] * (len(p) - rank) >= 0.05:
            break
        rejected += 1
    assert sum(h < 0.05 for h in stepped) == rejected


def test_compare_uses_the_users_both_serve():
    base = evaluation([1, 2, 3, 4, 5], [0.1, 0.2, 0.3, 0.4, 9.0], np.ones(5) == [1, 1, 1, 1, 0])
    other = evaluation([5, 4, 3, 2, 8], [7.0, 0.5, 0.5, 0.6, 7.0])
    (row,) = compare({"base": base, "other": other}, "P@10", "base")
    assert row.test.n == 3
    assert row.mean == pytest.approx((0.5 + 0.5 + 0.6) / 3)
    assert row.reference_mean == pytest.approx(0.3)
    expected = stats.ttest_rel([0.6, 0.5, 0.5], [0.2, 0.3, 0.4]).pvalue
    assert row.test.p == pytest.approx(expected)
    assert row.p_holm == row.p_bonferroni == row.test.p


def test_compare_corrects_for_the_number_of_systems():
    rng = np.random.default_rng(3)
    users = np.arange(200)
    base = rng.random(200)
    systems = {"base": evaluation(users, base)}
    systems |= {f"s{j}": evaluation(users, base + rng.normal(0.02 * j, 0.2, 200)) for j in range(5)}
    rows = compare(systems, "P@10", "base")
    assert [row.system for row in rows] == ["s0", "s1", "s2", "s3", "s4"]
    assert [row.p_holm for row in rows] == holm([row.test.p for row in rows])
    assert rows[4].significant()
    assert not rows[0].significant()


def test_systems_without_a_user_in_common_do_not_differ():
    a, b = evaluation([1, 2], [1, 2]), evaluation([3, 4], [1, 2])
    (row,) = compare({"a": a, "b": b}, "P@10", "a")
    assert (row.test.n, row.test.p) == (0, 1.0)
    assert np.isnan([row.mean, row.reference_mean]).all()


def test_compare_refuses_what_cannot_be_compared():
    a = evaluation([1, 2], [1, 2])
    with pytest.raises(UsageError, match="different protocols"):
        compare({"a": a, "b": evaluation([1, 2], [1, 2], k=5)}, "P@10", "a")
    with pytest.raises(UsageError, match="no system 'c'"):
        compare({"a": a}, "P@10", "c")
    with pytest.raises(UsageError, match="no per-user"):
        compare({"a": a, "b": a}, "HR@10", "a")
    with pytest.raises(UsageError):
        paired_t([1.0, 2.0], [1.0])
