"""The benchmark of UC-FedRec compares like with like. No test depends on a time."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.data.town import TownConfig, generate_town
from sottovoce.errors import DataNotFound
from sottovoce.experiment import load_benchmark
from sottovoce_papers.uc_study import Attacked, AttackWork, UCStudy, UCStudyConfig
from sottovoce_papers.uc_training import UCData

torch = pytest.importorskip("torch")
ML100K = "movielens-100k"
SETTINGS = {
    "embedding_size": 8, "rounds": 4, "cohort_size": 16, "pairs": 8, "local_epochs": 2,
    "clip": 64.0,
}  # fmt: skip
SMALL = UCStudyConfig(
    sources=(ML100K,), recommenders=("gnn",), seeds=(0,), stops=2, negatives=20
)  # fmt: skip


@pytest.fixture(scope="module")
def bench():
    return load_benchmark("uc")


@pytest.fixture(scope="module")
def town():
    return UCData.of(ML100K, generate_town(TownConfig(residents=60, venues=60)))


@pytest.fixture
def study(town, tmp_path):
    made = UCStudy(SMALL, {ML100K: {"gnn": SETTINGS, "mf": SETTINGS}}, tmp_path, 1, lambda *d: None)
    made.add_world(town)
    return made


@pytest.fixture
def attackers(monkeypatch):
    """Quick ones: what they find gets less, attack by attack."""
    aucs = iter((0.8, 0.65, 0.53))

    def attack(work):
        auc = next(aucs)
        return Attacked(
            attribute=work.attribute, auc=auc, auc_low=auc, auc_high=auc, auc_by="a guess",
            f1=0.7, f1_low=0.6, f1_high=0.8, f1_by="a guess", majority=0.7, strong="",
            families={}, classes=2, public=40, private=20, verdict="",
        ).to_arrays()  # fmt: skip

    monkeypatch.setattr(AttackWork, "run", attack)


def test_the_quick_run_has_the_trade_off_its_time_and_a_ratio(bench, study, attackers, monkeypatch):
    monkeypatch.setattr(bench, "opened", lambda folder, device: study)
    monkeypatch.setattr(bench, "CPU", bench.Scale(8, 2, 1))
    said = []
    found = bench.run(quick=True, progress=said.append)
    assert found["bench"] == "uc"
    assert said
    json.dumps(found, allow_nan=False)
    rows = {row["name"]: row for row in found["results"]}
    whole = next(row for name, row in rows.items() if name.startswith("everything"))
    assert (whole["target"], whole["unit"]) == (bench.QUICK_SECONDS, "s")
    leaks = [row for name, row in rows.items() if "AUC on gender" in name]
    assert [row["value"] for row in leaks] == [0.8, 0.65, 0.53]
    assert [row["ratio"] for row in leaks] == [None, 0.5, 0.1]
    hits = [row for name, row in rows.items() if "HR@10 among 21 candidates" in name]
    assert [row["peer"] for row in hits] == [None, "FedGNN", "FedGNN"]
    assert found["results"][-1]["peer"] == "the same, one at a time"
    assert found["results"][-1]["target"] is None


def test_both_rounds_are_of_the_same_clients_and_give_the_same_sums(bench, study):
    cell = study.cell(ML100K, "gnn", 0, 0.5, attributes=("gender",))
    work = bench.Rounds.of(study, cell, 6)
    before = work.cohort.vectors.copy()
    at_once, alone = work.at_once(), work.alone(6)
    assert at_once.any()
    assert np.allclose(at_once, alone, rtol=1e-3, atol=2**24 * 1e-4)
    # What is measured does not change what is measured next.
    assert np.array_equal(before, work.cohort.vectors)
    assert np.array_equal(work.at_once(), at_once)
    assert not np.allclose(work.alone(3), alone, rtol=1e-3, atol=2**24 * 1e-4)


def test_a_ratio_is_that_of_whole_rounds(bench, study, monkeypatch):
    seconds = iter((2.0, 3.0, 2.0, 3.0))
    monkeypatch.setattr(bench, "_timed", lambda work, device: next(seconds))
    cell = study.cell(ML100K, "mf", 0)
    single, together = bench.rounds(study, cell, bench.Scale(10, 5, 2), 2.0)
    assert single["value"] == 3.0 / 5 * 10
    assert (together["value"], together["ratio"], together["met"]) == (2.0, 3.0, True)


def test_training_seconds_leave_looks_out(bench, study, monkeypatch):
    monkeypatch.setattr(bench, "WANTED", 0.0)
    cell = study.cell(ML100K, "mf", 0)
    rows = bench.training(study, cell)
    reached, whole, looks, chosen = rows[:4]
    assert "(round 2;" in reached["name"]
    assert 0 < reached["value"] <= whole["value"]
    assert reached["met"] is True
    assert looks["name"].startswith("2 looks")
    assert chosen["value"] == pytest.approx(study.trained(cell).hr, abs=1e-4)


def test_a_training_that_never_arrives_does_not_meet_its_target(bench, study, monkeypatch):
    monkeypatch.setattr(bench, "WANTED", 1.1)
    reached = bench.training(study, study.cell(ML100K, "mf", 0))[0]
    assert reached["met"] is False
    assert "never" in reached["name"]


def test_missing_data_are_named(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataNotFound, match=ML100K):
        bench.run(quick=True)


def test_settings_and_targets_are_the_published_ones(bench, tmp_path, town):
    assert (bench.WANTED, bench.SECONDS, bench.TIMES, bench.QUICK_SECONDS) == (0.84, 600, 50, 300)
    assert bench.GPU.clients == bench.CPU.clients == 512
    full, quick = (bench.opened(tmp_path, device) for device in ("cuda", "cpu"))
    for study, source in ((full, "movielens-1m"), (quick, ML100K)):
        study.add_world(replace(town, source=source))
        recommender = study.config.recommenders[0]
        assert recommender == "gnn"
        assert study.settings(study.cell(source, "gnn", 0)).recommender == "gnn"
    assert full.config.negatives == 49
