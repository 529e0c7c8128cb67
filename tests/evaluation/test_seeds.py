"""Several seeds as one: means, spread, and tests that are paired by user and seed."""

import numpy as np
import pytest
from scipy import stats

from sottovoce.evaluation import Evaluation, Protocol, Sampled, compare
from sottovoce.evaluation.significance import (
    Spread,
    compare_all,
    holm,
    over_seeds,
    spread_content,
    spreads,
)


def judged(values, users=None, seed=None):
    users = np.arange(len(values)) if users is None else np.asarray(users)
    protocol = Protocol(10) if seed is None else Protocol(10, Sampled(9, seed))
    values = np.asarray(values, dtype=np.float64)
    served = np.ones(len(values), dtype=bool)
    return Evaluation(protocol, users, {"P@10": values}, served, 0, 100)


def test_spread_is_students():
    values = [0.1, 0.2, 0.4, 0.25]
    found = Spread.of(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))
    assert found.sd == pytest.approx(stats.tstd(values))
    assert np.isnan(Spread.of([0.3]).half)


def test_tests_are_paired_by_user_and_seed():
    rng = np.random.default_rng(1)
    a, b = rng.random((3, 40)), rng.random((3, 40)) + 0.1
    both = {
        name: over_seeds({seed: judged(row) for seed, row in zip((7, 8, 9), rows, strict=True)})
        for name, rows in (("a", a), ("b", b))
    }
    (found,) = compare(both, "P@10", "a")
    known = stats.ttest_1samp((b - a).mean(axis=0), 0.0)
    assert found.test.p == pytest.approx(known.pvalue)
    assert found.test.difference == pytest.approx((b - a).mean())
    assert found.test.n == 40  # users, not users times seeds


def test_one_seed_is_as_it_was_and_users_are_those_of_all():
    one = judged([0.1, 0.3])
    assert over_seeds({4: one}) is one
    found = over_seeds({1: judged([0.0, 1.0, 0.5], [2, 5, 7]), 2: judged([0.5, 0.0], [5, 7])})
    assert found.users.tolist() == [5, 7]
    np.testing.assert_allclose(found.per_user("P@10"), [0.75, 0.25])
    assert found.mean("P@10") == pytest.approx((0.5 + 0.25) / 2)  # of the seeds' own figures
    assert spreads(found)["P@10"].mean == found.summary()["P@10"] == found.mean("P@10")
    assert spread_content(found)["P@10"]["seeds"] == {"1": 0.5, "2": 0.25}
    assert found.describe().endswith("mean over seeds 1 and 2")


def test_sampled_negatives_say_their_seeds():
    found = over_seeds({seed: judged([0.1, 0.2], seed=seed) for seed in (3, 4, 6)})
    assert "9 sampled negatives (seeds 3, 4 and 6)" in found.describe()


def test_correction_is_over_the_whole_table():
    rng = np.random.default_rng(2)
    every = {name: judged(rng.random(30) + shift) for name, shift in
             (("a", 0.0), ("b", 0.1), ("c", 0.2), ("d", 0.15))}  # fmt: skip
    for evaluation in every.values():
        evaluation.values["R@10"] = rng.random(30)
    found = compare_all(every, ["P@10", "R@10", "IC@10"], ["a", "b"])
    assert len(found) == 12  # three others, two metrics with values, two references
    assert [one.p_holm for one in found] == holm([one.test.p for one in found])
