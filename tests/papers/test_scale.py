"""The study of how systems grow with users, on small crowds."""

import json

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.data.crowd import SeededCrowdConfig
from sottovoce.errors import ConfigError, UsageError
from sottovoce_papers.cells import Cells
from sottovoce_papers.files import StudyFile, installed
from sottovoce_papers.scale import METRIC, CrowdData, CrowdWorld
from sottovoce_papers.worlds import laid_over

CROWD = {"source": "crowd", "crowd": {"items": 90, "count": 9, "tastes": 3}, "tested": 200}
SMALL = {
    "study": {"data": ["a", "b"]},
    "data": {"a": {**CROWD, "users": 300}, "b": {**CROWD, "users": 700}},
    "systems": {"fpl": {"settings": {"rounds": 8}}, "fmf": {"settings": {"rounds": 2}}},
    "sets": {"main": [
        {"systems": ["top-pop", "fpl"]},
        {"systems": ["fmf"], "vary": {"epsilon": [2.5]}},
        {"systems": ["gram"], "vary": {"epsilon": [8.0]}},
    ]},
}  # fmt: skip


def quiet(what, done, total):
    pass


def test_rows_claims_and_a_picture(tmp_path):
    study = StudyFile("scale", laid_over(installed("scale", quick=True), SMALL))
    found = study.run(Cells(tmp_path / "cells", 1, quiet), tmp_path / "out")
    named = [(row["settings"], row["data"]) for row in found["rows"]]
    systems = ["Top-Pop", "pFPL+, π = 0.5", "FMF-LDP, ε = 2.5 a report", "gram, ε = 8"]
    assert named == [(what, f"{users} users") for users in (300, 700) for what in systems]
    assert all(0 <= row[METRIC] <= 1 for row in found["rows"])
    assert found["rows"][0][METRIC] > 0.05
    assert len(found["claims"]) == 3
    assert (tmp_path / "out" / "figures" / "scale.png").exists()
    json.dumps({k: v for k, v in found.items() if k != "tables"})


def test_the_item_that_is_looked_for_is_not_learnt():
    crowd = SeededCrowdConfig(items=90, count=9, tastes=3)
    world = CrowdWorld("x", CrowdData(users=700, crowd=crowd, tested=200))
    train, _ = world.everybody(1)
    split = world.split("test", 0)
    assert (train.n_users, split.train.n_users, split.test.n_users) == (700, 200, 200)
    for user in range(200):
        assert np.array_equal(train.row(user), split.train.row(user))
        assert split.test.row(user)[0] not in train.row(user)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match="100 users"):
        CrowdData(users=5)
    reproduce.check("scale", "cpu")
    with pytest.raises(UsageError, match="no way on a GPU"):
        reproduce.check("one-shot", "cuda")
