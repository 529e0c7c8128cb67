"""The plan's sorting and grouping, and kernels for rows of known length."""

import tracemalloc
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.drift import blocks as blocks_module
from sottovoce.algorithms.drift import replay as kernels
from sottovoce.algorithms.drift.blocks import (
    Blocks,
    BlockStep,
    DriftModel,
    Events,
    gradient,
    learn,
    losses,
)
from sottovoce.algorithms.drift.messages import OwnerTable
from sottovoce.algorithms.drift.replay import plan
from sottovoce.rng import Streams

RNG = Streams.from_seed(3)


def facts_of(ends, owners=None, users=None):
    n = len(ends)
    facts = np.zeros((n, 6), dtype=np.int32)
    facts[:, kernels.END] = ends
    facts[:, kernels.OWNER] = 0 if owners is None else owners
    facts[:, kernels.USER] = 0 if users is None else users
    facts[:, kernels.BEGIN] = np.arange(n)
    return facts


@settings(max_examples=50, deadline=None)
@given(ends=st.lists(st.integers(0, 70_000), max_size=60), bits=st.integers(17, 31))
def test_blocks_are_sorted_by_their_ends_and_equal_ones_stay(ends, bits):
    facts = facts_of(ends)
    result, room = np.empty_like(facts), [np.empty(len(ends), dtype=np.int64) for _ in range(2)]
    kernels.by_end(facts, bits, *room, result)
    order = np.argsort(np.array(ends, dtype=np.int64), kind="stable")
    np.testing.assert_array_equal(result, facts[order])


@settings(max_examples=50, deadline=None)
@given(
    owners=st.lists(st.integers(0, 3), max_size=120),
    theta=st.sampled_from([1, 2, 3, 50]),
    seed=st.integers(0, 99),
)
def test_updates_close_with_their_last_block(owners, theta, seed):
    n = len(owners)
    users = np.random.default_rng(seed).integers(0, 5, n)
    turn, updates = np.empty(n, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)
    facts = facts_of(np.arange(n), owners, users)
    count = kernels.group(facts, theta, 4, turn, updates)
    waiting, wanted = {o: [] for o in range(4)}, []
    for k, o in enumerate(owners):
        waiting[o].append(k)
        if len(waiting[o]) == theta:
            wanted.append(waiting[o])
            waiting[o] = []
    wanted += [rest for _, rest in sorted(waiting.items()) if rest]
    found = [turn[a:b].tolist() for a, b in pairwise(updates[: count + 1])]
    assert found == [sorted(update, key=lambda k: users[k]) for update in wanted]
    assert updates[count] == n


def many_blocks():
    draw = np.random.default_rng(1)
    n = 60
    edges = np.sort(draw.integers(1, 8, (n, 2)), axis=1) + np.array([0, 1])
    start = np.arange(n) * 10
    spans = np.stack([start, start + edges[:, 0], start + edges[:, 0], start + edges[:, 1]], axis=1)
    entries = draw.integers(0, 12, 10 * n).astype(np.int32)
    return Blocks(draw.integers(0, 6, n), spans, entries, np.arange(0, n + 1, 3))


def test_rows_of_known_length_are_moved_by_the_same_bits(monkeypatch):
    blocks, step = many_blocks(), BlockStep(0.1, 0.01)
    found = []
    for simd_row in (blocks_module._simd_row, lambda model: None):
        monkeypatch.setattr(blocks_module, "_simd_row", simd_row)
        model = DriftModel.start(6, 12, 4, RNG)
        learn(model, blocks, step)
        found.append([model.users, model.items, losses(model, blocks)])
        found[-1] += gradient(model, blocks, step)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_user_twice_in_an_update_is_moved_once_whatever_the_order():
    blocks, step = many_blocks(), BlockStep(0.1, 0.01)
    model = DriftModel.start(6, 12, 4, RNG)
    whole = Blocks(blocks.user, blocks.spans, blocks.entries, np.array([0, len(blocks)]))
    by_users, _ = gradient(model, whole, step)
    expected = model.users - 0.1 * by_users.astype(np.float32).astype(np.float64)
    assert learn(model, whole, step)[0] == len(np.unique(blocks.user))
    np.testing.assert_array_equal(model.users, expected.astype(np.float32))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60),
    st.integers(1, 9),
)
def test_owners_are_served_after_the_window_that_gives_them_theta_blocks(blocks, theta):
    owner = np.array([o for o, _ in blocks], dtype=np.int64)
    window = np.array([w for _, w in blocks], dtype=np.int64)
    when = np.full(len(blocks), -1)
    kernels.serve(owner, window, np.lexsort((window, owner)), theta, 9, when)
    for k in range(4):
        waiting = []
        for w in range(10):
            waiting += np.flatnonzero((owner == k) & (window == w)).tolist()
            if len(waiting) >= theta or w == 9:
                assert (when[waiting] == w).all()
                waiting = []


def test_windows_of_one_event_cost_no_more_than_there_are_blocks():
    """Not a table of all windows and owners: that would be gigabytes here."""
    n, owners = 200_000, 2_000
    events = Events(
        np.arange(n) % 50, np.arange(n, dtype=np.int32) % owners, np.arange(n) // owners % 2 == 1,
        np.arange(n), "time",
    )  # fmt: skip
    table = OwnerTable.of_membership(np.eye(owners, dtype=bool))
    tracemalloc.start()
    found = plan(events, table, theta=2, window=1)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found)
    assert most < 200e6
