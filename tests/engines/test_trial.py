"""What trials on every engine share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.core.ledger import Entries
from sottovoce.engines.trial import in_order, trial_rules, unequal_parts
from sottovoce.parties.rounds import RoundRules


@given(st.integers(1, 300), st.integers(1, 12))
def test_parts_cover_everyone_once_and_grow(n, parts):
    found = unequal_parts(n, parts)
    assert len(found) == min(n, parts)
    assert np.array_equal(np.concatenate(found), np.arange(n))
    sizes = [len(part) for part in found]
    assert sizes == sorted(sizes)
    assert min(sizes) >= 1


def test_eight_devices_make_three_unequal_cohorts():
    sizes = [len(part) for part in unequal_parts(8, 3)]
    assert len(set(sizes)) == 3


def test_what_the_file_names_is_kept_and_the_rest_made_for_one_machine():
    given = RoundRules(over_selection=0.5, poll_seconds=5.0)
    rules = trial_rules(given, ["over_selection"], 8)
    assert (rules.over_selection, rules.poll_seconds, rules.min_devices) == (0.5, 0.1, 8)
    assert rules.min_fraction == given.min_fraction


def entries(kind, users, rounds):
    n = len(users)
    return Entries(
        kind,
        np.array(users, np.int64),
        np.array(rounds, np.int64),
        np.array(users, np.int32),
        np.zeros(n, np.int32),
        np.ones(n, np.int64),
        np.full(n, np.inf, np.float32),
    )


def test_ledgers_of_many_stores_are_put_in_a_simulations_order():
    (joined,) = in_order([entries("a", [7, 7], [0, 1]), entries("a", [2, 2], [0, 1])])
    assert joined.user.tolist() == [2, 7, 2, 7]
    assert joined.round.tolist() == [0, 0, 1, 1]
    assert joined.positive_rows.tolist() == [2, 7, 2, 7]


@pytest.mark.parametrize("tables", [[], [entries("b", [], []), entries("a", [1], [0])]])
def test_kinds_stay_apart(tables):
    assert [t.kind for t in in_order(tables)] == sorted({t.kind for t in tables})
