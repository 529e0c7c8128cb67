"""What the docstrings of `privacy.mechanisms` say, beside what the door's tests show."""

import itertools

import numpy as np
import pytest

from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.errors import ConfigError, ConsentError
from sottovoce.privacy.mechanisms import Everything, ShareFraction, share_subsets
from sottovoce.rng import Streams, words_of
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


def test_everything_leaves_only_from_those_who_permit_it():
    history = random_world(5, 20, 30, seed=3)
    users = np.arange(5)

    def bind(*choices):
        consent = Consent.of(users, choices, users % len(choices), ("age",))
        return Everything().bind(users, consent, history, RNG)

    shares = Choice(share_positives=1.0)
    for wish in ({"hidden_attributes": ("age",)}, {"epsilon": 1.0}, {"max_reports": 3}):
        with pytest.raises(ConsentError, match=r"but everything (hides|adds)"):
            bind(shares, Choice(share_positives=1.0, **wish))
    with pytest.raises(ConsentError, match="does not share them all"):
        bind(shares, Choice(share_positives=0.99))
    bound = bind(shares, Choice(takes_part=False))
    assert bound.kind == "everything"
    assert np.all(bound.epsilons == np.inf)


@pytest.mark.parametrize("per", ["draw", "item"])
def test_the_ledger_is_told_which_way_it_was(per):
    history = random_world(5, 20, 30, seed=3)
    bound = ShareFraction(per).bind(np.arange(5), everyone(5), history, RNG)
    assert bound.kind == f"share-{per}"


def test_coins_differ_by_round_and_by_user_and_a_draw_is_not_one_of_them():
    """Coins that came again would tell which positives are held back."""
    history = random_world(6, 20, 40, seed=3)
    bound = ShareFraction("draw").bind(np.arange(6), everyone(6, share_positives=0.5), history, RNG)
    rows = np.array([1, 2, 5])

    def coins(round, asked=rows):
        rule = bound.rule(asked, np.array([round]))
        n = len(asked)
        told = rule.may_leave(np.repeat(np.arange(n), 200), np.zeros(200 * n, dtype=np.int64))
        return told.reshape(n, 200)

    one = coins(1)
    assert np.array_equal(one, coins(1))
    assert not np.array_equal(one, coins(2))
    assert not np.array_equal(one[0], one[1])
    assert np.array_equal(coins(1, rows[[2]])[0], one[2]), "whoever else is asked"
    swapped = coins(5, np.array([1])), coins(1, np.array([5]))
    assert not np.array_equal(*swapped), "user 1 in round 5 is not user 5 in round 1"
    keys = bound.rng.child(3).keys(rows)  # as an accelerator has them, from `round_key`
    assert np.array_equal(words_of(bound.rule(rows, np.array([3])).keys, 4), words_of(keys, 4))
