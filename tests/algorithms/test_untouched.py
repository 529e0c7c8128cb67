"""Negatives that owners draw: never what a user touched, the same in every pass, nobody else's
business; and with them a catalogue can be ranked."""

from dataclasses import replace

import numpy as np
import pytest
from drift_world import DRIFT, RNG, membership, world
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.drift.blocks import Events, first_rows
from sottovoce.algorithms.drift.messages import Interaction, OwnerTable
from sottovoce.algorithms.drift.replay import plan
from sottovoce.algorithms.drift.system import DRIFTConfig, Owner
from sottovoce.algorithms.drift.untouched import draw_for
from sottovoce.core.interactions import Interactions
from sottovoce.errors import ConfigError
from sottovoce.rng import SecretStreams, Streams

CONFIG = DRIFTConfig(negatives="untouched", negatives_per_positive=3, learning_rate=0.1)


def drawn_of(blocks):
    """Of each block: its user, its positive, and what was drawn for it."""
    ends = blocks.spans[:, 1]
    rows = zip(blocks.user.tolist(), blocks.spans[:, 2], ends, blocks.drawn.tolist(), strict=True)
    return [
        (user, int(blocks.entries[p]), blocks.entries[end - n : end].tolist())
        for user, p, end, n in rows
    ]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 90), n_owners=st.integers(1, 4))
def test_nothing_that_she_has_touched_is_drawn_and_only_what_the_owner_holds(seed, n, n_owners):
    """In the first pass nothing touched so far, in later ones nothing at all."""
    train, member = world(5, 9, n, seed), membership(9, n_owners, seed)
    table, events = OwnerTable.of_membership(member), Events.of(train, 4.0, "time")
    when = {(u, i): e for e, (u, i) in enumerate(zip(events.user, events.item, strict=True))}
    passes = [
        drawn_of(plan(events, table, 2, drawing=CONFIG.drawing(RNG, known=known)))
        for known in (False, True)
    ]
    for known, blocks in enumerate(passes):
        for user, positive, drawn in blocks:
            owners = set(table.owners(positive))
            for item in drawn:
                assert owners & set(table.owners(item))
                later = when.get((user, item), n) > when[user, positive]
                assert (user, item) not in when if known else later


def test_a_pass_draws_what_the_one_before_drew():
    """What comes again in every pass would else be what she touched."""
    train, table = world(30, 200, 900, 3), OwnerTable.of_membership(np.ones((200, 1), bool))
    events = Events.of(train, 4.0, "time")
    first, later = (
        drawn_of(plan(events, table, 2, drawing=CONFIG.drawing(RNG, known=known)))
        for known in (False, True)
    )
    assert len(first) == len(later) > 300
    same = [a == b for a, b in zip(sorted(first), sorted(later), strict=True)]
    assert np.mean(same) > 0.6, "only what she has touched since is replaced"
    touched = {(u, i) for u, i in zip(train.users.tolist(), train.items.tolist(), strict=True)}
    for (user, positive, old), (*again, new) in zip(sorted(first), sorted(later), strict=True):
        assert [user, positive] == again
        if not any((user, item) in touched for item in old):
            assert old == new


def test_draws_are_uniform_over_what_is_left():
    items, touched = np.arange(10, 60), set(range(10, 30))
    drawn = [draw_for(RNG, user, 12, items, touched, 5) for user in range(4_000)]
    assert all(len(set(one)) == 5 for one in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=60)
    assert not counts[:30].any()
    expected = counts.sum() / 30
    chi = ((counts[30:] - expected) ** 2 / expected).sum()
    assert chi < 65, "29 degrees of freedom: 65 is beyond one in ten thousand"


@pytest.mark.parametrize("rng", [RNG, SecretStreams(bytes(32))])
def test_an_owners_secret_a_user_and_an_item_decide(rng):
    items = np.arange(1000)
    one = draw_for(rng, 1, 5, items, {5}, 8)
    assert one == draw_for(rng, 1, 5, items, {5}, 8)
    others = [
        draw_for(rng, 2, 5, items, {5}, 8), draw_for(rng, 1, 6, items, {5}, 8),
        draw_for(rng.child("another"), 1, 5, items, {5}, 8),
    ]  # fmt: skip
    for other in others:
        assert len(set(one) & set(other)) < 3
    assert draw_for(rng, 1, 5, np.array([5, 7]), {5, 7}, 8) == (), "nothing is left to draw"
    assert draw_for(rng, 1, 5, np.array([5, 7]), {5}, 8) == (7,)
    assert sorted(draw_for(rng, 1, 5, np.array([5, 7, 9, 11]), {5}, 3)) == [7, 9, 11]


def test_an_owner_blocks_every_positive_with_the_dislikes_before_it():
    owner = Owner(0, range(50), replace(CONFIG, theta=9), RNG)
    owner.admit(4)
    for time, (item, positive) in enumerate([(1, True), (2, False), (3, False), (4, True)]):
        owner.receive(Interaction(0, 4, item, positive, time))
    first, second = (block for _, block in owner.saved)
    assert (first.negatives, first.positives) == ((), (1,))
    assert (second.negatives, second.positives) == ((2, 3), (4,))
    assert len(first.drawn) == len(second.drawn) == 3
    assert not {1, 2, 3, 4} & set(second.drawn)
    assert 1 not in first.drawn
    assert owner.request().items.tolist() == sorted({1, 2, 3, 4, *first.drawn, *second.drawn}), (
        "a request does not say which were drawn"
    )
    owner.forget(4)
    assert not owner.touched(4)


def test_withdrawn_items_are_drawn_no_more_and_leave_what_was_drawn():
    owner = Owner(0, range(6), replace(CONFIG, theta=9, negatives_per_positive=20), RNG)
    owner.admit(4)
    owner.receive(Interaction(0, 4, 0, True, 0))
    owner.withdraw_items([2, 3])
    owner.receive(Interaction(0, 4, 1, True, 1))
    assert [set(block.drawn) for _, block in owner.saved] == [{1, 4, 5}, {4, 5}]
    owner.withdraw_items([4, 5])
    assert [(b.positives, set(b.drawn)) for _, b in owner.saved] == [((0,), {1})]


def test_an_owner_that_draws_needs_a_stream():
    with pytest.raises(ConfigError, match="stream of its own"):
        Owner(0, range(3), CONFIG)


def test_the_start_is_around_zero_and_as_printed_where_nothing_is_said():
    rows = first_rows("items", range(4000), 4, RNG, CONFIG.spread)
    assert abs(rows.mean()) < 0.002
    assert abs(rows.std() - 0.05) < 0.002
    assert CONFIG.start == 0.0
    plain = DRIFTConfig()
    assert (plain.spread, plain.start) == (None, 0.5)
    assert 0.45 < first_rows("items", range(400), 4, RNG, plain.spread).mean() < 0.55
    assert DRIFTConfig(init_scale=0.2).spread == 0.2


def test_a_catalogue_is_ranked():
    """Users like one half of the items; what they have not touched of it comes first. As printed
    the same data, in which all is liked, teach nothing."""
    draw = np.random.default_rng(1)
    taste, kind = draw.integers(0, 2, 80), draw.integers(0, 2, 60)
    chosen = (taste[:, None] == kind) & (draw.random((80, 60)) < 0.4)
    users, items = np.nonzero(chosen)
    train = Interactions.from_pairs(
        users, items, n_users=80, n_items=60, timestamps=draw.permutation(len(users)),
        ratings=np.full(len(users), 5),
    )  # fmt: skip
    table = OwnerTable.of_membership(np.arange(2) == (np.arange(60) % 2)[:, None])
    config = DRIFTConfig(negatives="untouched", learning_rate=0.1, reg=0.001, epochs=30)
    (model,) = DRIFT(config).fit_steps(train, table, Streams.from_seed(2), [30])
    scores = model.users @ model.items.T
    good, rest = (taste[:, None] == kind) & ~chosen, taste[:, None] != kind
    better = [(scores[u][good[u]][:, None] > scores[u][rest[u]]).mean() for u in range(80)]
    assert np.mean(better) > 0.9
    printed = DRIFTConfig(learning_rate=0.1, epochs=2)
    assert not len(plan(Events.of(train, 4.0, "time"), table, printed.theta))
