"""The benchmark of DRIFT compares like with like. No test depends on a time."""

import json

import numpy as np
import pytest

from sottovoce.algorithms.drift.blocks import DriftModel, learn
from sottovoce.experiment import load_benchmark
from sottovoce.rng import Streams


@pytest.fixture(scope="module")
def bench():
    return load_benchmark("drift")


@pytest.fixture(scope="module")
def epoch(bench):
    return bench.Epoch(bench.generated(6_000), bench.genres(bench.ITEMS))


def test_both_take_as_many_steps(bench, epoch):
    wanted = DriftModel.start(epoch.train.n_users, epoch.train.n_items, 4, Streams.from_seed(1))
    left = epoch.planned.steps
    while left:
        part = epoch.cuts.take(np.arange(min(left, len(epoch.cuts))))
        learn(wanted, part, bench.SETTINGS.step())
        left -= len(part)
    epoch.saros()
    assert np.array_equal(epoch.models[1].items, wanted.items)
    before = epoch.models[0].items.copy()
    epoch.drift()
    assert not np.array_equal(epoch.models[0].items, before)


def test_rows_say_what_they_are_beside(bench, epoch):
    scale = bench.Scale(2, (500, 1_000), 50, 3, True)
    rows = bench.epochs(epoch.train, epoch.table, "generated data", scale)
    judged = [row for row in rows if row["target"] is not None]
    assert len(judged) == 2
    assert all(row["peer"].startswith("SAROS_b") and row["ratio"] > 0 for row in judged)
    rows = bench.sealing(scale) + bench.messages(epoch.train, epoch.table, scale)
    assert all(row["value"] > 0 for row in rows)
    assert sum(row["peer"] is not None for row in rows) == 2


def test_growth_has_every_phase_at_every_size(bench, capsys):
    bench._growth(1, [1_000, 2_000])
    found = json.loads(capsys.readouterr().out)
    assert {name: len(values) for name, values in found.items()} == {
        "sort": 2, "plan": 2, "learn": 2,
    }  # fmt: skip


def test_the_exponent_is_that_of_a_power(bench):
    sizes = (10, 100, 1_000)
    assert bench.exponent(sizes, [3.0 * n**1.2 for n in sizes]) == pytest.approx(1.2)


def test_generated_data_have_movielens_shape(bench):
    table = bench.generated(20_000)
    assert table.n_items == bench.ITEMS
    assert table.n_users == round(20_000 * bench.USERS / bench.INTERACTIONS)
    assert 0.5 < (table.ratings >= bench.POSITIVE).mean() < 0.64
    owners = bench.genres(bench.ITEMS)
    assert len(owners) == bench.ITEMS
    assert len(owners.all_owners()) == bench.GENRES
    held = np.mean([len(owners.owners(i)) for i in range(bench.ITEMS)])
    assert 1.6 < held < 1.7


def test_targets_are_the_full_size_ones_alone(bench):
    assert bench.FULL.judged
    assert not bench.QUICK.judged
    assert bench.FULL.sizes == (100_000, 1_000_000, 10_000_000)
    assert (bench.RATIO, bench.EXPONENT) == (2.0, 1.05)
