"""The benchmark of searches compares like with like."""

import pytest

from sottovoce.experiment import Experiment, load_benchmark
from sottovoce.runs.space import read_space
from sottovoce.runs.tune import Journal


@pytest.fixture(scope="module")
def bench():
    return load_benchmark("tune")


def test_the_grid_has_200_points_and_the_search_goes_no_further(bench):
    points = bench.FULL.points()
    assert len({str(one) for one in points}) == 200
    experiment = bench._experiment(bench.TOWN["town"], 400)
    assert experiment.data.part == "validation"
    space = read_space(experiment, bench.FULL.ranges())
    assert all(space.inside(one) is not None for one in points)
    for one in space.ranges:
        tried = {point[one.settings[0]] for point in points}
        assert {min(tried), max(tried)} <= set(one.ends)


def test_both_are_judged_alike_and_what_is_trained_is_kept(bench, tmp_path):
    grid = bench.Grid((0.01, 0.03), (0.003, 0.03), (4, 8), (10, 20), 4, 2)
    settings = ["town.residents=40", "town.venues=60"]
    asked = (grid, tmp_path, 1, lambda line: None)
    rows = bench.compared("town", settings, *asked)
    assert rows[0]["ratio"] > 0.5
    assert rows[0]["met"] == (rows[0]["ratio"] >= 0.95)
    assert rows[0]["ratio"] <= rows[1]["ratio"]
    trained = Journal(tmp_path / "grid.journal").done.values()
    assert len(trained) == 16
    # Every setting of the grid does something.
    assert len({one.value for one in trained}) > 12
    assert bench.compared("town", settings, *asked) == rows
    assert isinstance(bench._experiment(settings, 20), Experiment)
