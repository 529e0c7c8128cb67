"""The benchmark of FMF-LDP compares like with like. No test depends on a time."""

import numpy as np
import pytest

from sottovoce.algorithms.closed_form import vectors as closed_form
from sottovoce.data.shaped import ShapeConfig, generate_shaped
from sottovoce.experiment import load_benchmark


@pytest.fixture(scope="module")
def bench():
    return load_benchmark("fmf")


@pytest.fixture(scope="module")
def table():
    return generate_shaped(ShapeConfig(users=300, items=200, interactions=6_000, min_user_items=5))


def test_the_straightforward_version_solves_the_same_system(bench, table):
    dense = bench.Dense(table)
    dense.items = dense.items.astype(np.float32).astype(np.float64)
    rows = np.arange(20, dtype=np.int64)
    ours = closed_form.solve(
        bench.SETTINGS.confidence(), dense.items.astype(np.float32), rows, table.indptr, table.items
    )
    theirs = np.array([dense.report(user) for user in rows])
    assert np.allclose(ours, theirs, rtol=2e-3, atol=1e-4)
    assert np.abs(dense.sums).sum() <= 20 * bench.REPORTS
    assert dense.sums.any()


def test_an_epoch_has_every_phase_and_moves_the_model(bench, table):
    epoch = bench.Epoch(table)
    before = epoch.parties.server.items.copy()
    found = epoch.turn(2)
    parts = sum(found[name] for name in ("devices", "shuffle", "count", "fold"))
    assert parts == pytest.approx(found["epoch"])
    assert found["processor"] > 0
    assert epoch.parties.server.round == 1
    assert not np.array_equal(before, epoch.parties.server.items)
    assert epoch.parties.devices.ledger.totals.releases == table.n_users


def test_the_even_crowd_is_a_valid_table(bench):
    crowd = bench.even(40)
    assert crowd.counts.tolist() == [bench.EVEN_COUNT] * 40


def test_targets_are_the_full_size_ones_alone(bench):
    assert bench.QUICK.limits is None
    assert bench.FULL.limits == (1.0, 100.0)
    assert (bench.FULL.shape.users, bench.FULL.shape.items) == (75_040, 9_781)
    assert bench.FULL.rows[0] == 10_000
    assert bench.FULL.rows[-1] == 1_000_000
