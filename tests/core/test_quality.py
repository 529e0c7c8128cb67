"""Rates of hits from noisy sums: intervals hold the truth, and what is worse is objected to."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.core.quality import WHICH, Quality
from sottovoce.errors import DataError

sums = st.floats(-1e6, 1e6)


def drawn(rng, users, rates, noise):
    """What the sums are for so many users with these rates."""
    hits = [users * rate for rate in rates]
    told = rng.normal([*hits, *(users - hit for hit in hits)], noise)
    return Quality(tuple(told[:3]), tuple(told[3:]), noise)


def within(estimate, truth):
    return estimate.low <= truth <= estimate.high


@pytest.mark.parametrize("users", [30, 100, 1000])
def test_intervals_hold_the_truth_as_often_as_they_say(users):
    """Also where the noise is a third of all users."""
    rng, runs, rates = np.random.default_rng(7), 4000, (0.62, 0.55, 0.3)
    held = np.zeros(5)
    for _ in range(runs):
        found = drawn(rng, users, rates, 10.0)
        held[:3] += [within(found.rate(w), r) for w, r in zip(WHICH, rates, strict=True)]
        held[3] += within(found.gain("published"), rates[0] - rates[1])
        held[4] += within(found.gain("popularity"), rates[0] - rates[2])
    # Four standard deviations of a share of 4,000; bounds at the ends of [0, 1] only help.
    assert (held / runs > 0.95 - 4 * np.sqrt(0.05 * 0.95 / runs)).all()
    if users == 1000:
        assert (held / runs < 0.95 + 4 * np.sqrt(0.05 * 0.95 / runs)).all()


def test_a_model_as_good_is_held_back_rarely_and_a_worse_one_always():
    rng, runs = np.random.default_rng(8), 2000
    same = [drawn(rng, 1000, (0.5, 0.5, 0.2), 12.0).objection("x") for _ in range(runs)]
    share = sum(map(bool, same)) / runs
    assert abs(share - 0.05) < 4 * np.sqrt(0.05 * 0.95 / runs)
    worse = [drawn(rng, 1000, (0.3, 0.5, 0.2), 12.0).objection("version 4") for _ in range(200)]
    assert all("worse than version 4" in why for why in worse)
    less = [drawn(rng, 1000, (0.3, 0.3, 0.5), 12.0).objection("version 4") for _ in range(200)]
    assert all("worse than popularity alone" in why for why in less if "version 4" not in why)
    assert sum("popularity" in why for why in less) > 150


@given(st.tuples(sums, sums, sums), st.tuples(sums, sums, sums), st.floats(0, 1e5))
def test_any_sums_give_numbers_in_their_range(hits, misses, noise):
    found = Quality(hits, misses, noise)
    for which in WHICH:
        rate = found.rate(which)
        assert 0.0 <= rate.low <= rate.value <= rate.high <= 1.0
    gain = found.gain("published")
    assert -1.0 <= gain.low <= gain.value <= gain.high <= 1.0
    assert Quality.from_table(json.loads(json.dumps(found.to_table()))) == found


def test_without_noise_the_rates_are_exact():
    found = Quality((6, 5, 2), (4, 5, 8), 0.0)
    rate = found.rate("candidate")
    assert (rate.value, found.users) == (pytest.approx(0.6), 10)
    assert rate.low == pytest.approx(0.6) == rate.high
    assert found.gain("popularity").value == pytest.approx(0.4)
    assert not found.objection("version 1")


def test_where_there_may_be_nobody_everything_is_possible():
    found = Quality((1.0, 2.0, 0.0), (-2.0, 1.0, 0.0), 5.0)
    assert (found.rate("candidate").low, found.rate("candidate").high) == (0.0, 1.0)
    assert not found.objection("version 1")


@pytest.mark.parametrize(
    "table", [{}, {"sums": {}}, {"sums": {"hits": [1], "misses": [1], "noise": 1}}, {"sums": None}]
)
def test_what_is_no_quality(table):
    with pytest.raises(DataError, match="makes no sense"):
        Quality.from_table(table)
