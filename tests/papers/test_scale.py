"""The study of how systems grow with users, on small crowds."""

import json
from dataclasses import replace

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.data.crowd import SeededCrowdConfig
from sottovoce.errors import ConfigError, UsageError
from sottovoce_papers.scale import METRIC, ScaleConfig, ScaleStudy, scale


def study(place, **more):
    read = ScaleStudy.read("scale", True, place, 1, lambda what, done, total: None)
    settings = {
        "users": (300, 700), "gram_epsilons": (8.0,), "tested": 200,
        "crowd": SeededCrowdConfig(items=90, count=9, tastes=3), **more,
    }  # fmt: skip
    config = replace(read.config, **settings, fpl=replace(read.config.fpl, rounds=8))
    config = replace(config, fmf=replace(config.fmf, rounds=2))
    return ScaleStudy(config, place, 1, read.report, "cpu")


def test_rows_claims_and_a_picture_and_nothing_is_trained_twice(tmp_path, monkeypatch):
    found = scale(study(tmp_path / "cells"), tmp_path / "out")
    named = [(row["what"], row["users"]) for row in found["rows"]]
    systems = ["Top-Pop", "pFPL+, π = 0.5", "FMF-LDP, ε = 2.5 a report", "gram, ε = 8"]
    assert named == [(what, users) for users in (300, 700) for what in systems]
    assert all(0 <= row[METRIC] <= 1 for row in found["rows"])
    assert found["rows"][0][METRIC] > 0.05
    assert len(found["claims"]) == 3
    assert (tmp_path / "out" / "figures" / "scale.png").exists()
    json.dumps({k: v for k, v in found.items() if k != "tables"})
    monkeypatch.setattr(ScaleStudy, "_train", lambda *_: pytest.fail("trained again"))
    assert scale(study(tmp_path / "cells"), tmp_path / "again")["rows"] == found["rows"]


def test_the_item_that_is_looked_for_is_not_learnt(tmp_path):
    train, some, test = study(tmp_path).world(700)
    assert (train.n_users, some.n_users, test.n_users) == (700, 200, 200)
    for user in range(200):
        assert np.array_equal(train.row(user), some.row(user))
        assert test.row(user)[0] not in train.row(user)


def test_cells_of_before_are_found(tmp_path):
    named = study(tmp_path)
    named.popularity(300)
    assert [one.name for one in tmp_path.glob("*.npz")] == ["scale-6038a50fecbcac2f67a87e11.npz"]


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match="100 users"):
        ScaleConfig(users=(5,))
    reproduce.check("scale", "cpu")
    with pytest.raises(UsageError, match="no way on a GPU"):
        reproduce.check("one-shot", "cuda")
