"""SAROS: its variants, thresholds, and that it learns."""

import numpy as np
import pytest

from sottovoce.algorithms.drift.blocks import Blocks, BlockStep, DriftModel, Events, learn, losses
from sottovoce.baselines.saros import SAROS, single_positives, thresholds, within_thresholds
from sottovoce.core.interactions import Interactions
from sottovoce.errors import DataError, Diverged
from sottovoce.rng import Streams

RNG = Streams.from_seed(8)


def rated_world(n_users=40, n_items=30, n=900, seed=0):
    """Items of the user's own parity are liked, most of the time."""
    draw = np.random.default_rng(seed)
    users, items = draw.integers(0, n_users, n), draw.integers(0, n_items, n)
    liked = ((users + items) % 2 == 0) ^ (draw.random(n) < 0.1)
    return Interactions.from_pairs(
        users, items, n_users=n_users, n_items=n_items,
        timestamps=draw.permutation(n), ratings=np.where(liked, 5, 2),
    )  # fmt: skip


WORLD = rated_world()


def events(*streams):
    """One user per text, "+" and "-" in the order of time; items are numbered through."""
    flags = np.array([c == "+" for s in streams for c in s], dtype=bool)
    user = np.repeat(np.arange(len(streams)), [len(s) for s in streams]).astype(np.int64)
    item = np.arange(len(flags), dtype=np.int32)
    return Events(user, item, flags, np.arange(len(flags)), "user")


def texts(blocks):
    return [
        (int(u), blocks.entries[a:b].tolist(), blocks.entries[c:d].tolist())
        for u, (a, b, c, d) in zip(blocks.user, blocks.spans, strict=True)
    ]


def test_it_takes_one_step_per_block_user_by_user():
    found = SAROS(lower=0.0, upper=1.0).blocks(WORLD, RNG)
    every = Blocks.of_users(Events.of(WORLD, 4.0, "user"))
    assert texts(found) == texts(every)
    assert found.steps == len(every) > 100
    assert (np.diff(found.user) >= 0).all()


@pytest.mark.parametrize("variant", ["b", "m", "public"])
def test_it_learns_who_likes_what(variant):
    saros = SAROS(variant, learning_rate=0.05, epochs=150, lower=0.0, upper=1.0)
    blocks = Blocks.of_users(Events.of(WORLD, 4.0, "user"))
    start = DriftModel.start(WORLD.n_users, WORLD.n_items, saros.embedding_size, RNG)
    scorer = saros.fit(WORLD, RNG)
    trained = DriftModel(scorer.user_factors, scorer.item_factors)
    assert losses(trained, blocks).mean() < 0.75 * losses(start, blocks).mean()
    scores = scorer.scores(np.arange(WORLD.n_users))
    own = np.add.outer(np.arange(WORLD.n_users), np.arange(WORLD.n_items)) % 2 == 0
    assert scores[own].mean() > scores[~own].mean() + 0.5


def test_epochs_of_one_run_are_those_of_shorter_runs():
    saros = SAROS(learning_rate=0.05)
    first, third = saros.fit_steps(WORLD, RNG, [1, 3])
    (alone,) = saros.fit_steps(WORLD, RNG, [1])
    np.testing.assert_array_equal(first.items, alone.items)
    saros.epoch(alone, saros.blocks(WORLD, RNG))
    saros.epoch(alone, saros.blocks(WORLD, RNG))
    np.testing.assert_array_equal(third.users, alone.users)
    np.testing.assert_array_equal(third.items, alone.items)


# --- thresholds ----------------------------------------------------------------------------------


def test_thresholds_are_quantiles_of_the_numbers_of_blocks():
    streams = ["-+" * n for n in (1, 2, 2, 3, 9)] + ["+++", "---"]
    blocks = Blocks.of_users(events(*streams))
    assert thresholds(blocks, 0.0, 1.0) == (1, 9)
    assert thresholds(blocks, 0.25, 0.75) == (2, 3)
    assert thresholds(blocks, 0.3, 0.8) == (2, 9)
    assert thresholds(Blocks.of_users(events("++", "--")), 0.05, 0.95) == (0, 0)


def test_users_stop_at_the_upper_and_are_left_out_below_the_lower_threshold():
    blocks = Blocks.of_users(events("-+", "-+-+-+-+", "-+-+"))
    kept = within_thresholds(blocks, 2, 3)
    assert kept.user.tolist() == [1, 1, 1, 2, 2]
    assert texts(kept)[:3] == texts(blocks)[1:4]


def test_leaving_a_user_out_is_undoing_the_users_updates():
    """As printed: learn from the user's blocks, and put the rows back where there were too few."""
    blocks, step = Blocks.of_users(Events.of(WORLD, 4.0, "user")), BlockStep(0.05)
    b, most = thresholds(blocks, 0.4, 0.8)
    undone = DriftModel.start(WORLD.n_users, WORLD.n_items, 4, RNG)
    undos = 0
    for user in np.unique(blocks.user):
        own, before = np.flatnonzero(blocks.user == user), undone.copy()
        learn(undone, blocks.take(own[:most]), step)
        if len(own) < b:
            undone.users[:], undone.items[:] = before.users, before.items
            undos += 1
    (left_out,) = SAROS(learning_rate=0.05, lower=0.4, upper=0.8).fit_steps(WORLD, RNG, [1])
    assert undos
    np.testing.assert_array_equal(undone.users, left_out.users)
    np.testing.assert_array_equal(undone.items, left_out.items)


# --- the public code's variant -------------------------------------------------------------------


def test_the_public_variant_takes_a_step_per_positive_against_the_negatives_before_it():
    found = texts(single_positives(events("--++-+", "++++", "---"), RNG))
    assert found == [(0, [0, 1], [2]), (0, [0, 1], [3]), (0, [4], [5])]


def test_in_the_public_variant_early_positives_borrow_a_negative():
    stream = "++" + "-" * 6 + "+"
    drawn = set()
    for seed in range(20):
        found = texts(single_positives(events("-+", stream), Streams.from_seed(seed)))
        assert found[0] == (0, [0], [1])
        assert [positives for _, _, positives in found[1:]] == [[2], [3], [10]]
        assert found[1][1] == found[2][1]
        assert found[3][1] == list(range(4, 10))
        drawn.update(found[1][1])
    assert drawn <= set(range(4, 10))
    assert len(drawn) > 2


def test_the_public_variant_has_no_thresholds():
    narrow = SAROS("public", lower=0.5, upper=0.5).blocks(WORLD, RNG)
    assert len(narrow) == len(SAROS("public", lower=0.0, upper=1.0).blocks(WORLD, RNG))


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rating", [5, 1])
def test_users_of_one_kind_alone_teach_nothing_and_break_nothing(rating):
    world = Interactions.from_pairs(
        [0, 0, 1], [0, 1, 0], timestamps=[1, 2, 3], ratings=[rating] * 3
    )
    for variant in ("b", "m", "public"):
        saros = SAROS(variant, epochs=2)
        start = DriftModel.start(2, 2, 4, RNG)
        np.testing.assert_array_equal(saros.fit(world, RNG).item_factors, start.items)


def test_a_table_without_ratings_is_refused():
    with pytest.raises(DataError, match="ratings in the order of time"):
        SAROS().fit(Interactions.from_pairs([0], [0]), RNG)


def test_running_off_to_infinity_is_said():
    with pytest.raises(Diverged, match="learning_rate"):
        SAROS(learning_rate=10.0, reg=100.0, epochs=50).fit(WORLD, RNG)
