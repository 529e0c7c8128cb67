"""When a round ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import ConfigError
from sottovoce.parties.server import RoundRules

RULES = RoundRules(over_selection=0.3, min_fraction=0.7, deadline_seconds=10)


@pytest.mark.parametrize(
    ("reported", "elapsed", "verdict"),
    [
        (100, 0.0, "close"),
        (99, 9.9, "wait"),
        (70, 10.0, "close"),
        (69, 10.0, "abandon"),
        (0, 10.0, "abandon"),
    ],
)
def test_a_round_ends_by_goal_by_deadline_or_not_at_all(reported, elapsed, verdict):
    assert RULES.verdict(100, reported, elapsed) == verdict


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0, 5), st.floats(0, 1))
def test_numbers_stay_within_reason(goal, pool, over, fraction):
    rules = RoundRules(over_selection=over, min_fraction=fraction)
    goal = min(goal, pool)
    assert goal <= rules.asked(goal, pool) <= pool
    assert 1 <= rules.least(goal) <= goal


def test_a_third_more_of_ten_is_thirteen():
    assert RULES.asked(10, 100) == 13
    assert RULES.asked(10, 11) == 11


def test_nobody_counts_as_a_round_where_no_fraction_is_asked_for():
    assert RoundRules(min_fraction=0.0, deadline_seconds=1).verdict(5, 0, 2.0) == "abandon"


@pytest.mark.parametrize(
    "wrong",
    [
        {"over_selection": -0.1},
        {"min_fraction": 1.1},
        {"deadline_seconds": 0.0},
        {"min_devices": 0},
        {"poll_seconds": 0.0},
        {"max_value": 0.0},
        {"max_value": 128.0},
    ],
)
def test_rules_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RoundRules(**wrong)
