"""Random and Top-Pop."""

from __future__ import annotations

import numpy as np

from sottovoce.baselines import Random, TopPop
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import top_n
from sottovoce.rng import Streams

RNG = Streams.from_seed(3)


def test_random_favours_no_item() -> None:
    n_users, n_items = 20_000, 10
    nothing = Interactions.from_pairs([], [], n_users=n_users, n_items=n_items)
    best = Random().fit(nothing, RNG).scores(np.arange(n_users)).argmax(axis=1)
    counts = np.bincount(best, minlength=n_items)
    expected = n_users / n_items
    # The 99.99th percentile of chi-squared with 9 degrees of freedom.
    assert ((counts - expected) ** 2 / expected).sum() < 33.7


def test_random_does_not_look_at_the_data(sparse: Interactions, checkerboard: Interactions) -> None:
    users = np.arange(20)
    wide = Random().fit(sparse, RNG).scores(users)
    narrow = Random().fit(checkerboard, RNG).scores(users)
    np.testing.assert_array_equal(wide[:, : checkerboard.n_items], narrow)


def test_top_pop_counts_users_and_breaks_ties_by_number() -> None:
    train = Interactions.from_pairs([0, 1, 2, 0, 1, 2, 2], [4, 4, 4, 1, 3, 3, 1], n_items=6)
    scorer = TopPop().fit(train, RNG)
    np.testing.assert_array_equal(scorer.scores(np.array([1])), [[0, 2, 0, 2, 3, 0]])
    items, _ = top_n(scorer, np.arange(3), train, 3)
    # User 1 has 3 and 4, so 1 comes first and the unpopular follow by number.
    assert items.tolist() == [[3, 0, 2], [1, 0, 2], [0, 2, 5]]
