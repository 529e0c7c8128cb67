"""Blocks: how streams are cut, and the gradient of what is cut out of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.algorithms.drift.blocks import (
    Blocks,
    BlockStep,
    DriftModel,
    EndedBlock,
    Events,
    OpenBlock,
    cut,
    first_rows,
    gradient,
    learn,
    learn_momentum,
    losses,
)
from sottovoce.core.interactions import Interactions
from sottovoce.errors import ConfigError, DataError, Diverged
from sottovoce.rng import Streams

RNG = Streams.from_seed(3)
FLAGS = st.lists(st.booleans(), max_size=40)
STREAMS = st.lists(FLAGS, max_size=6)


def fed(flags, block=None, first=0):
    """The blocks that end one by one, and what stays open; items are numbered as they come."""
    block = OpenBlock() if block is None else block
    ended = [block.add(first + k, flag) for k, flag in enumerate(flags)]
    return [b for b in ended if b is not None], block


def blocks_of(streams):
    user = np.repeat(np.arange(len(streams)), [len(s) for s in streams]).astype(np.int64)
    positive = np.array([f for s in streams for f in s], dtype=bool)
    item = np.arange(len(user), dtype=np.int32)
    return Blocks.of_users(Events(user, item, positive, np.zeros(len(user), np.int64), "user"))


# --- how a stream is cut -------------------------------------------------------------------------


def test_a_block_ends_when_a_negative_follows_positives():
    ended, block = fed([True, False, False, True, True, False, True])
    assert ended == [EndedBlock((1, 2), (3, 4))]
    assert (block.negatives, block.positives) == ([5], [6])
    assert block.end() == EndedBlock((5,), (6,))
    assert (block.negatives, block.positives) == ([], [])


@given(FLAGS)
def test_every_interaction_is_in_at_most_one_block_and_order_is_kept(flags):
    ended, block = fed(flags)
    last = block.end()
    every = ended + ([last] if last else [])
    assert all(b.negatives and b.positives for b in every)
    used = [i for b in every for i in b.negatives + b.positives]
    assert used == sorted(set(used))
    assert all(not flags[i] for b in every for i in b.negatives)
    assert all(flags[i] for b in every for i in b.positives)
    # What is in no block: positives before the first negative, and negatives at the end.
    missing = [i for i in range(len(flags)) if i not in used]
    head = flags.index(False) if False in flags else len(flags)
    tail = len(flags) - flags[::-1].index(True) if True in flags else 0
    assert missing == [i for i in range(len(flags)) if i < head or i >= tail]


@given(STREAMS)
def test_cutting_at_once_equals_one_by_one(streams):
    stream = np.repeat(np.arange(len(streams)), [len(s) for s in streams]).astype(np.int64)
    positive = np.array([f for s in streams for f in s], dtype=bool)
    found = cut(stream, positive)
    ended, opened, at = [], [], 0
    for flags in streams:
        some, block = fed(flags, first=at)
        ended += some
        if block.negatives:
            opened.append((block.negatives, block.positives))
        at += len(flags)
    spans = [(list(range(a, b)), list(range(b, c))) for a, b, c, _ in zip(*found, strict=True)]
    by_cut = [(list(b.negatives), list(b.positives)) for b in ended]
    assert [s for s, done in zip(spans, found.ended, strict=True) if done] == by_cut
    assert [s for s, done in zip(spans, found.ended, strict=True) if not done] == opened


@given(STREAMS)
def test_the_blocks_of_users_are_those_of_their_streams_with_the_last_one_ended(streams):
    expected, at = [], 0
    for user, flags in enumerate(streams):
        some, block = fed(flags, first=at)
        last = block.end()
        expected += [(user, b.negatives, b.positives) for b in some + ([last] if last else [])]
        at += len(flags)
    blocks = blocks_of(streams)
    found = [
        (u, tuple(range(a, b)), tuple(range(c, d)))
        for u, (a, b, c, d) in zip(blocks.user.tolist(), blocks.spans.tolist(), strict=True)
    ]
    assert found == expected


@given(FLAGS, st.sets(st.integers(0, 39)))
def test_withdrawn_items_leave_a_block_and_no_side_is_empty(flags, gone):
    ended, block = fed(flags)
    items = frozenset(gone)
    for whole in ended:
        left = whole.without(items)
        kept = [i for i in whole.negatives if i not in items]
        liked = [i for i in whole.positives if i not in items]
        assert left == (EndedBlock(tuple(kept), tuple(liked)) if kept and liked else None)
    block.remove(items)
    assert not items & {*block.negatives, *block.positives}
    assert block.negatives or not block.positives


def test_events_come_by_user_or_by_time():
    table = Interactions.from_pairs(
        [0, 0, 1, 1], [2, 1, 0, 2], timestamps=[5, 5, 1, 5], ratings=[4, 3, 5, 1]
    )
    by_user, by_time = (Events.of(table, 4.0, order) for order in ("user", "time"))
    assert list(zip(by_user.user, by_user.item, strict=True)) == [(0, 1), (0, 2), (1, 0), (1, 2)]
    assert list(zip(by_time.user, by_time.item, strict=True)) == [(1, 0), (0, 1), (0, 2), (1, 2)]
    assert by_time.positive.tolist() == [True, False, True, False]


def test_a_table_without_ratings_or_times_is_refused():
    bare = Interactions.from_pairs([0], [0])
    with pytest.raises(DataError, match="lacks time stamps"):
        Events.of(bare, 4.0, "user")
    with pytest.raises(DataError, match="lacks ratings"):
        Events.of(Interactions.from_pairs([0], [0], timestamps=[1]), 4.0, "user")
    rated = Interactions.from_pairs([0], [0], timestamps=[1], ratings=[4])
    with pytest.raises(ConfigError, match="order"):
        Events.of(rated, 4.0, "item")


# --- the gradient --------------------------------------------------------------------------------


def random_blocks(seed, repeated=False):
    """Blocks of two users over few items, so that rows are met by several of them."""
    draw = np.random.default_rng(seed)
    sizes = [(1, 1), (3, 2), (1, 4), (2, 1)]
    entries, spans, at = [], [], 0
    for n, p in sizes:
        entries += draw.choice(6, n + p, replace=repeated).tolist()
        spans.append([at, at + n, at + n, at + n + p])
        at += n + p
    user = np.array([0, 1, 1, 0], dtype=np.int64)
    spans = np.array(spans, dtype=np.int64)
    return Blocks.one_by_one(user, spans, np.array(entries, dtype=np.int32))


def written_out(model, blocks, step):
    """The loss in plain Python, with the ridge."""
    total = 0.0
    for u, (a, b, c, d) in zip(blocks.user, blocks.spans, strict=True):
        v = model.users[u]
        low, high = model.items[blocks.entries[a:b]], model.items[blocks.entries[c:d]]
        w = (high @ v)[:, None] - (low @ v)[None, :]
        total += np.log1p(np.exp(-w)).mean()
        sides = [(side**2).sum(axis=1) for side in (low, high)]
        pull = [s.mean() if step.ridge == "pairs" else s.sum() for s in sides]
        total += step.reg * ((v**2).sum() + sum(pull))
    return total


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("ridge", ["rows", "pairs"])
def test_the_gradient_passes_finite_differences(ridge, repeated):
    blocks, step = random_blocks(1, repeated), BlockStep(0.1, 0.03, ridge)
    draw = np.random.default_rng(2)
    model = DriftModel(draw.normal(size=(2, 3)), draw.normal(size=(6, 3)))
    found = gradient(model, blocks, step)
    for table, by_row in zip((model.users, model.items), found, strict=True):
        assert np.abs(by_row).max() > 0.1
        for at in np.ndindex(table.shape):
            slopes = []
            for h in (1e-5, -1e-5):
                kept, table[at] = table[at], table[at] + h
                slopes.append(written_out(model, blocks, step))
                table[at] = kept
            assert by_row[at] == pytest.approx((slopes[0] - slopes[1]) / 2e-5, abs=1e-8)


def test_losses_are_those_of_the_formula():
    blocks = random_blocks(4)
    model = DriftModel(np.ones((2, 3), np.float32), np.arange(18, dtype=np.float32).reshape(6, 3))
    free = BlockStep(reg=0.0)
    assert losses(model, blocks).sum() == pytest.approx(written_out(model, blocks, free))
    # Scores hundreds apart overflow nothing.
    steep = DriftModel(np.full((2, 3), 500, np.float32), model.items)
    assert np.isfinite(losses(steep, blocks)).all()
    assert all(np.isfinite(part).all() for part in gradient(steep, blocks, free))


def test_a_step_goes_against_the_gradient_and_lowers_the_loss():
    blocks, step = random_blocks(5), BlockStep(0.01, 0.01)
    together = Blocks(blocks.user, blocks.spans, blocks.entries, np.array([0, len(blocks)]))
    model = DriftModel.start(2, 6, 4, RNG)
    before, (users, items) = model.copy(), gradient(model, blocks, step)
    assert learn(model, together, step) == (2, len(np.unique(blocks.entries)))
    expected = before.users - 0.01 * users.astype(np.float32).astype(np.float64)
    np.testing.assert_array_equal(model.users, expected.astype(np.float32))
    expected = before.items - 0.01 * items.astype(np.float32).astype(np.float64)
    np.testing.assert_array_equal(model.items, expected.astype(np.float32))
    assert written_out(model, blocks, step) < written_out(before, blocks, step)


def test_blocks_one_by_one_see_the_steps_before_them():
    blocks, step = random_blocks(6), BlockStep(0.05, 0.01)
    whole, single = DriftModel.start(2, 6, 4, RNG), DriftModel.start(2, 6, 4, RNG)
    learn(whole, blocks, step)
    for k in range(len(blocks)):
        learn(single, blocks.take(np.array([k])), step)
    np.testing.assert_array_equal(whole.users, single.users)
    np.testing.assert_array_equal(whole.items, single.items)


def test_without_momentum_the_momentum_step_is_the_plain_one():
    blocks, step = random_blocks(7).take(np.array([0, 3, 1, 2])), BlockStep(0.05, 0.01)
    plain, moving = DriftModel.start(2, 6, 4, RNG), DriftModel.start(2, 6, 4, RNG)
    learn(plain, blocks, step)
    learn_momentum(moving, blocks, step, 0.0)
    np.testing.assert_array_equal(plain.users, moving.users)
    np.testing.assert_array_equal(plain.items, moving.items)


def test_momentum_carries_a_users_rows_on_and_ends_with_the_user():
    blocks = random_blocks(8).take(np.array([0, 3, 1, 2]))
    step, keep, size = BlockStep(0.05, 0.01), 0.9, 4
    moving = DriftModel.start(2, 6, size, RNG)
    users, items = moving.users.astype(np.float64), moving.items.astype(np.float64)
    learn_momentum(moving, blocks, step, keep)
    for user in (0, 1):
        own, speed = np.zeros(size), np.zeros((6, size))
        for k in np.flatnonzero(blocks.user == user):
            model = DriftModel(users.astype(np.float32), items.astype(np.float32))
            by_users, by_items = gradient(model, blocks.take(np.array([k])), step)
            own = keep * own + (1 - keep) * by_users[user]
            speed = keep * speed + (1 - keep) * by_items
            users[user] -= 0.05 * own
            items -= 0.05 * speed
    np.testing.assert_allclose(moving.users, users, atol=1e-6)
    np.testing.assert_allclose(moving.items, items, atol=1e-6)


# --- what is refused -----------------------------------------------------------------------------


def test_first_rows_depend_on_their_number_alone():
    many = first_rows("users", range(9), 4, RNG)
    np.testing.assert_array_equal(first_rows("users", [7, 2], 4, RNG), many[[7, 2]])
    assert not np.array_equal(first_rows("items", range(9), 4, RNG), many)
    assert 0.0 <= many.min() < 0.3
    assert 0.7 < many.max() < 1.0


@pytest.mark.parametrize(
    "span", [[0, 0, 0, 1], [0, 1, 1, 1], [0, 1, 1, 9], [-1, 1, 1, 2], [0, 9, 0, 1]]
)
def test_blocks_with_an_empty_side_or_outside_their_entries_are_refused(span):
    with pytest.raises(DataError, match="negatives and positives"):
        Blocks.one_by_one(np.array([0]), np.array([span]), np.array([0, 1], np.int32))


@pytest.mark.parametrize("rounds", [[0], [1], [0, 2, 1], [0, 2], []])
def test_updates_that_do_not_take_every_block_are_refused(rounds):
    with pytest.raises(DataError, match="updates"):
        Blocks(
            np.array([0]), np.array([[0, 1, 1, 2]]), np.array([0, 1], np.int32),
            np.array(rounds, dtype=np.int64),
        )  # fmt: skip


def test_a_model_without_the_blocks_rows_is_refused():
    blocks = random_blocks(9)
    for model in (
        DriftModel.start(1, 6, 4, RNG),
        DriftModel.start(2, int(blocks.entries.max()), 4, RNG),
    ):
        with pytest.raises(DataError, match="does not have"):
            learn(model, blocks, BlockStep())


def test_settings_are_checked():
    for wrong in ({"learning_rate": 0.0}, {"reg": -1.0}, {"ridge": "none"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            BlockStep(**wrong)
    model = DriftModel.start(1, 1, 2, RNG)
    model.items[0, 0] = np.inf
    with pytest.raises(Diverged, match="learning_rate"):
        model.check()
