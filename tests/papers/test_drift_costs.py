"""The DRIFT figures on time and on Θ: the harness, on a small world."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.algorithms.drift.messages import RowRequest
from sottovoce.algorithms.drift.replay import plan
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.core.interactions import Interactions
from sottovoce.data.dataset import Dataset
from sottovoce.engines.silo_simulation import PHASES
from sottovoce.errors import DataError
from sottovoce_papers import drift_study, drift_theta
from sottovoce_papers.drift_study import DriftStudyConfig, DriftSystem, EpochStudy

GENRES = ("A", "B", "C")
KINDS = tuple(GENRES[k % 3 : k % 3 + 1 + (k % 2)] for k in range(40))


def small(categories=KINDS):
    draw = np.random.default_rng(6)
    n = 1_500
    pairs = Interactions.from_pairs(
        draw.integers(0, 60, n), draw.integers(0, 40, n), n_users=60, n_items=40,
        timestamps=draw.integers(0, n, n), ratings=draw.integers(1, 6, n),
    )  # fmt: skip
    return Dataset("small", pairs, item_categories=categories)


def quiet(what, done, total):
    pass


CONFIG = DriftStudyConfig(
    seeds=(0,), stops=(1, 3), positive_from=(4.0,), thetas=(1, 2, 8), events=400
)
SYSTEMS = {"drift-time": DriftSystem("DRIFT", "drift")}


@pytest.fixture
def study(monkeypatch, tmp_path):
    made = EpochStudy(CONFIG, SYSTEMS, small(), tmp_path / "cells", 2, quiet)
    monkeypatch.setattr(EpochStudy, "read", lambda *_: made)
    return made


def checked(found, name):
    assert found["name"] == name
    assert {"data", "protocol", "rows", "claims", "report"} <= set(found)
    assert "60 users" in found["data"]
    assert Path(found["report"]).exists()
    for claim in found["claims"]:
        assert set(claim) == {"claim", "holds", "detail"}
    tables = found.pop("tables")
    json.dumps(found)
    for table in tables:
        table.to_markdown()
    return {claim["claim"]: claim["holds"] for claim in found["claims"]}


def test_the_time_of_an_epoch(study, tmp_path):
    found = reproduce.run(
        "drift-figure63", quick=True, out=tmp_path / "figure", threads=1, report=quiet
    )
    claims = checked(found, "drift-figure63")
    assert [holds for text, holds in claims.items() if "bit for bit" in text] == [True]
    none, shared, pairs, fast = found["rows"]
    for row in found["rows"]:
        assert row["seconds"] == pytest.approx(sum(row[phase] for phase in PHASES))
        assert 0 <= row["encryption_share"] <= row["security"] <= 1
        assert (row["security_paper"], row["encryption_share_paper"]) == (0.10, 0.0152)
    assert none["security"] == 0.0
    assert shared["security"] == shared["security_later"] > 0
    assert pairs["security"] > pairs["security_later"] > 0
    assert fast["security"] > pairs["security"]
    assert none["bytes"] < shared["bytes"] < pairs["bytes"]
    assert (tmp_path / "figure" / "figures" / "drift-figure63.svg").exists()


def test_what_theta_does(study, tmp_path):
    found = reproduce.run("drift-theta", quick=True, out=tmp_path / "out", threads=2, report=quiet)
    claims = checked(found, "drift-theta")
    hidden = [
        h for text, h in claims.items() if "conclude nothing" in text or "cannot tell" in text
    ]
    assert hidden == [False] * 3
    rows = found["rows"]
    assert [row["theta"] for row in rows] == [1, 2, 8]
    for key in ("updates", "rows", "up", "down"):
        values = [row[key] for row in rows]
        assert values == sorted(values, reverse=True), key
    assert len({row["rows_paper"] for row in rows}) == 1
    assert rows[0]["request log: precision"] == 1.0
    for row in rows:
        assert row["gradients bytes"] < row["gradients bytes_paper"]
        assert 0 < row["own NDCG@10, 1 epoch"] <= 1
        assert 0 < row["full MAP@5, 3 epochs"] <= 1
        for when in ("first epoch", "trained"):
            assert row[f"cosine, users named, {when}: precision"] == 1.0
    for attack in found["attacks"]:
        assert set(attack) >= {
            "run",
            "attack",
            "party",
            "value",
            "interval",
            "base_rate",
            "verdict",
        }
    assert len(list((tmp_path / "cells").iterdir())) == 3
    again = reproduce.run("drift-theta", quick=True, out=tmp_path / "out", threads=2, report=quiet)
    assert again["rows"] == rows


@pytest.mark.parametrize("theta", [1, 2, 8])
def test_the_plan_names_what_requests_name(study, theta):
    requests = []

    def watch(party, message):
        if isinstance(message, RowRequest):
            requests.append((message.users.tolist(), message.items.tolist()))

    settings = DRIFTConfig(theta=theta)
    study.simulation(settings, "none", witness=watch).epoch(study.events)
    named = drift_theta.named_rows(plan(study.events, study.table, theta))
    assert [(n.users.tolist(), n.items.tolist()) for n in named] == requests


def test_what_is_installed_can_be_read(monkeypatch, tmp_path):
    monkeypatch.setattr(drift_study, "load", lambda name: small())
    for name in ("drift-figure63", "drift-theta"):
        assert name in reproduce.NAMES
        whole, quick = (EpochStudy.read(name, q, tmp_path, 1, quiet) for q in (False, True))
        assert whole.settings == replace(DRIFTConfig(), epochs=whole.config.epochs)
        assert quick.config.events > 0
    assert whole.settings == DRIFTConfig()
    assert whole.config.thetas == (1, 2, 4, 8, 16, 32, 64)
    assert quick.settings.epochs < whole.settings.epochs


def test_an_item_that_no_owner_holds_is_said(tmp_path):
    with pytest.raises(DataError, match="without a category"):
        EpochStudy(CONFIG, SYSTEMS, small(((), *KINDS[1:])), tmp_path, 1, quiet)
