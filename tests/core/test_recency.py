"""Places in time, and weights at home."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.core.interactions import Interactions, positions, recency
from sottovoce.errors import ConfigError


def world(times):
    n = len(times)
    users, items = [0] * n + [1, 1], [*range(n), 0, 1]
    return Interactions.from_pairs(users, items, n_users=3, timestamps=[*times, 7, 5])


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12))
def test_places_are_ranks_and_equal_times_share_theirs(times):
    found = positions(world(times))
    wanted = [sum(other < mine for other in times) + (times.count(mine) - 1) / 2 for mine in times]
    assert found[:-2].tolist() == wanted
    assert found[-2:].tolist() == [1.0, 0.0]


def test_the_latest_weighs_1_and_each_earlier_one_less():
    found = recency(world([30, 10, 20]), 8.0)
    assert found[:3] == pytest.approx([1.0, np.exp(-2 / 8), np.exp(-1 / 8)])
    assert recency(world([30, 10, 20]), 0.0).tolist() == [1.0] * 5
    with pytest.raises(ConfigError, match="memory"):
        recency(world([1]), -1.0)


def test_without_times_all_weigh_the_same():
    table = Interactions.from_pairs([0, 0, 1], [0, 1, 1], n_users=2, n_items=2)
    assert recency(table, 8.0).tolist() == [1.0] * 3
    assert positions(table).tolist() == [0.5, 0.5, 0.0]
