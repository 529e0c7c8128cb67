"""The benchmark of ranks gives each its own users' rows. No test depends on a time."""

import numpy as np
import pytest

from sottovoce.core.ranks import ALONE
from sottovoce.experiment import load_benchmark

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def bench():
    return load_benchmark("distributed")


def test_rows_of_a_range_are_those_of_the_whole(bench):
    whole, part = bench.rows_of(range(100)), bench.rows_of(range(40, 70))
    assert np.array_equal(part.items.reshape(30, -1), whole.items.reshape(100, -1)[40:70])
    assert whole.counts.tolist() == [bench.POSITIVES] * 100


def test_a_rank_alone_learns_and_tells_what_it_took(bench):
    found = bench.measured(ALONE, 300)
    assert found["round"] > 0
    assert found["peak"] > 0
    assert found["model"] == bench.measured(ALONE, 300)["model"]
