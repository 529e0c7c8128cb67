"""The plan's sorting and grouping, and kernels for rows of known length."""

import tracemalloc

import numpy as np

from sottovoce.algorithms.drift import blocks as blocks_module
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
