"""The benchmark of gram compares like with like. No test depends on a time."""

import numpy as np
import pytest

from sottovoce.algorithms.gram.kernels import sum_pairs
from sottovoce.errors import WrongSum
from sottovoce.experiment import load_benchmark


@pytest.fixture(scope="module")
def bench():
    return load_benchmark("gram")


@pytest.fixture(scope="module")
def users(bench):
    return bench.world(3_000, 2)


def test_every_user_has_as_many_different_places_and_a_norm_of_at_most_one(bench, users):
    indptr, place, steps = users
    place, steps = place.reshape(-1, bench.COUNT), steps.reshape(-1, bench.COUNT)
    assert len(place) == len(indptr) - 1 == 3_000
    assert (np.diff(place, axis=1) > 0).all()
    assert place.min() >= 0
    assert place.max() < bench.HEAD
    squares = (steps.astype(int) ** 2).sum(1)
    assert squares.max() <= 1 << 20
    assert squares.min() > 0.95 * (1 << 20)
    assert len(np.unique(steps)) > 40


def test_popularity_is_uneven_and_not_in_the_order_of_places(bench, users):
    share = np.bincount(users[1], minlength=bench.HEAD) / 3_000
    assert 0.3 < share.max() < 0.5
    assert np.median(share) < 0.05
    assert abs(np.corrcoef(share, np.arange(bench.HEAD))[0, 1]) < 0.1


def test_a_user_is_the_same_in_a_crowd_of_any_size_and_type(bench, users):
    fewer = bench.world(700, 1, np.int16)
    for some, all_of_them in zip(fewer, bench.first_of(users, 700), strict=True):
        assert np.array_equal(some, all_of_them)
    assert fewer[1].dtype == np.int16


def test_the_check_passes_the_sum_and_convicts_one_step(bench, users):
    torch_sums = pytest.importorskip("sottovoce.algorithms.gram.accelerated")
    pytest.importorskip("torch")
    profiles = torch_sums.ResidentProfiles.load(*users, bench.HEAD, "cpu")
    sums = sum_pairs(*users, bench.HEAD, 1)
    bench.checked(profiles, sums)
    for entry in (17, bench.HEAD + 4_711):
        wrong = sums.copy()
        wrong[entry] += 1
        with pytest.raises(WrongSum):
            bench.checked(profiles, wrong)


def test_targets_are_the_full_size_ones_alone(bench):
    assert bench.FULL.targets
    assert not bench.QUICK.targets
    assert (bench.FULL.rows[0], bench.FULL.rows[-1]) == (10_000, 1_000_000)
    assert bench.FULL.gpu_users == 100_000_000
    assert (bench.HEAD, bench.COUNT) == (1_000, 50)
