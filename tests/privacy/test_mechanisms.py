"""What the docstrings of `privacy.mechanisms` say, beside what the door's tests show."""

import itertools

import numpy as np
import pytest

from sottovoce.consent import Choice, Consent
from sottovoce.data.interactions import Interactions
from sottovoce.errors import ConfigError, ConsentError
from sottovoce.privacy.mechanisms import ShareFraction, share_subsets
from sottovoce.rng import Streams
from sottovoce.testing import random_world

RNG = Streams.from_seed(3)


def everyone(n, attributes=(), **choice):
    return Consent.uniform(np.arange(n), Choice(**choice), attributes)


def subset(history, share):
    users = np.arange(history.n_users)
    allowed = share_subsets(users, everyone(history.n_users, share_positives=share), history, RNG)
    pairs = np.stack([history.users, history.items], axis=1)
    return {tuple(pair) for pair in pairs[allowed].tolist()}


def test_subsets_grow_with_the_share_and_lose_nothing():
    history = random_world(50, 80, 900, seed=1)
    sizes = [subset(history, share) for share in (0.0, 0.2, 0.5, 1.0)]
    for smaller, larger in itertools.pairwise(sizes):
        assert smaller < larger
    assert (len(sizes[0]), len(sizes[-1])) == (0, history.n_interactions)


def test_one_more_item_moves_a_subset_by_at_most_one():
    history = random_world(50, 80, 900, seed=2)
    more = Interactions.from_pairs(
        [*history.users, *range(50)], [*history.items, *[79] * 50], n_users=50, n_items=80
    )
    assert more.n_interactions == history.n_interactions + 50  # random_world leaves item 79 out
    before, after = subset(history, 0.4), subset(more, 0.4)
    for user in range(50):
        mine, later = ({i for u, i in pairs if u == user} for pairs in (before, after))
        assert len(mine - later) <= 1
        assert len(later - mine) <= 1


@pytest.mark.parametrize("per", ["draw", "item"])
def test_every_release_costs_infinity(per):
    history = random_world(5, 20, 30, seed=3)
    bound = ShareFraction(per).bind(np.arange(5), everyone(5), history, RNG)
    assert np.all(bound.epsilons == np.inf)


@pytest.mark.parametrize(
    "wish", [{"hidden_attributes": ("age",)}, {"epsilon": 1.0}, {"max_reports": 3}]
)
def test_what_it_cannot_do_is_refused_not_ignored(wish):
    history = random_world(5, 20, 30, seed=3)
    with pytest.raises(ConsentError, match="share-fraction"):
        ShareFraction().bind(np.arange(5), everyone(5, ("age",), **wish), history, RNG)
    at_home = everyone(5, ("age",), takes_part=False, **wish)  # nothing of theirs leaves
    ShareFraction().bind(np.arange(5), at_home, history, RNG)


def test_an_unknown_way_is_refused():
    with pytest.raises(ConfigError, match=r"release\.per"):
        ShareFraction("round")
