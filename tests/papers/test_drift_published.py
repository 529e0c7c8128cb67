"""DRIFT's figures of accuracy: the harness on a small world, known values on real data."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drift_world import DRIFT

from sottovoce.algorithms.drift.blocks import DriftModel, learn
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.baselines.saros import SAROS
from sottovoce.core.interactions import Interactions
from sottovoce.data.dataset import Dataset
from sottovoce.errors import ConfigError
from sottovoce.evaluation import saros_metrics
from sottovoce.rng import Streams
from sottovoce_papers import drift_figure61, drift_figure62, drift_study
from sottovoce_papers.drift_study import (
    DriftJob,
    DriftStudy,
    DriftStudyConfig,
    DriftSystem,
    at_epoch,
    at_step,
    scorer_of,
)
from sottovoce_papers.study import interval

SMALL = DriftStudyConfig(source="small", seeds=(0, 1), stops=(1, 2, 4), positive_from=(4.0, 3.0))
SYSTEMS = {
    "saros-b": DriftSystem("SAROS_b", "saros", {"learning_rate": 0.05}),
    "saros-m": DriftSystem("SAROS_m", "saros", {"variant": "m", "learning_rate": 0.05}),
    "saros-b-all": DriftSystem("all", "saros", {"lower": 0.0, "upper": 1.0, "learning_rate": 0.05}),
    "drift-time": DriftSystem("DRIFT", "drift", {"learning_rate": 0.05}),
    "drift-user": DriftSystem("DRIFT by user", "drift", {"order": "user", "learning_rate": 0.05}),
    "drift-one": DriftSystem("one owner", "drift", {"learning_rate": 0.05}, "one"),
    "top-pop": DriftSystem("Top-Pop", "top-pop"),
    "random": DriftSystem("Random", "random"),
}
GENRES = ("drama", "crime", "noir")


def quiet(what, done, total):
    pass


def small_data():
    """120 users of 40 items in three genres; every third item is in two."""
    draw = np.random.default_rng(5)
    users, items = (a.ravel() for a in np.meshgrid(np.arange(120), np.arange(40), indexing="ij"))
    kept = draw.random(len(users)) < 0.6
    users, items = users[kept], items[kept]
    n = len(users)
    table = Interactions.from_pairs(
        users, items, n_users=120, n_items=40, timestamps=draw.integers(0, n, n),
        ratings=np.clip(draw.integers(1, 6, n) + (items % 3 - 1), 1, 5),
    )  # fmt: skip
    genres = tuple(
        (GENRES[i % 3], GENRES[(i + 1) % 3])[: 2 if i % 3 == 0 else 1] for i in range(40)
    )
    return Dataset(name="small", interactions=table, item_categories=genres)


@pytest.fixture(scope="module")
def dataset():
    return small_data()


def new_study(dataset, folder, **changes):
    return DriftStudy(replace(SMALL, **changes), SYSTEMS, dataset, folder, 2, quiet)


@pytest.fixture(scope="module")
def study(dataset, tmp_path_factory):
    return new_study(dataset, tmp_path_factory.mktemp("cells"))


def same(one, other):
    return np.array_equal(one.users, other.users) and np.array_equal(one.items, other.items)


# --- the figures ---------------------------------------------------------------------------------


def test_figure61_has_curves_rows_claims_and_pictures(study, tmp_path):
    result = drift_figure61.figure61(study, tmp_path)
    assert len(list((tmp_path / "figures").glob("*.svg"))) == 2 * 2 * 2
    assert Path(result["report"]).exists()
    assert len(result["rows"]) == 2 * 6 * 2
    assert all(len(c["train"]) == len(c["test"]) == 5 for c in result["curves"])
    starts = {c["train"][0] for c in result["curves"] if c["positive_from"] == 4.0}
    assert len(starts) == 1, "all systems start from the same model and are measured alike"
    assert len(result["claims"]) == 2 * 5
    assert sum("as many" in c["claim"] for c in result["claims"]) == 2 * 2
    assert all(isinstance(c["holds"], bool) and c["detail"] for c in result["claims"])
    json.dumps({k: v for k, v in result.items() if k != "tables"}, allow_nan=False)


def test_figure62_has_every_system_at_every_moment(study, tmp_path):
    result = drift_figure62.figure62(study, tmp_path)
    assert Path(result["report"]).exists()
    assert len(result["rows"]) == 2 * (3 * 4 + 3 * 2 + 2)
    assert len(result["tables"]) == 2 * 3
    rows = {(r["system"], r["moment"]): r for r in result["rows"] if r["positive_from"] == 4.0}
    first, same_blocks = rows["DRIFT", "one epoch"], rows["SAROS_b", "DRIFT's blocks"]
    assert same_blocks["steps"] == same_blocks["blocks"] == first["blocks"]
    assert rows["SAROS_b", "DRIFT's steps"]["steps"] == first["steps"]
    assert same_blocks["rival"] == "DRIFT, one epoch"
    assert rows["SAROS_b", "convergence"]["rival"] is None
    for way in ("", "_full", "_legacy"):
        for metric in drift_study.METRICS:
            assert 0.0 <= first[metric + way] <= 1.0
            assert first[f"{metric}{way}_ci"] > 0.0
            assert first[f"{metric}{way}_paper"] is None
    texts = " ".join(c["claim"] for c in result["claims"])
    for words in ("one epoch", "as many steps", "as many blocks", "95 % interval", "Top-Pop"):
        assert words in texts
    json.dumps({k: v for k, v in result.items() if k != "tables"}, allow_nan=False)


def test_figures_with_one_seed_have_no_intervals(dataset, tmp_path):
    study = new_study(dataset, tmp_path / "cells", seeds=(0,), positive_from=(4.0,))
    result = drift_figure62.figure62(study, tmp_path)
    assert all(r["MAP@5_ci"] is None for r in result["rows"])
    assert not any("±" in c["detail"] for c in result["claims"])
    (alike,) = (c for c in result["claims"] if "interval" in c["claim"])
    best = {r["system"]: r["epochs"] for r in result["rows"] if r["moment"] == "convergence"}
    unsettled = 4 in (best["DRIFT"], best["SAROS_b"])
    assert ("not yet converged" in alike["claim"]) == unsettled
    assert all(bool(t.notes) == (4 in best.values()) for t in result["tables"])
    assert "one seed" in alike["detail"]
    losses = drift_figure61.figure61(study, tmp_path)
    assert all(r["ci_1"] is None and r["ci_last"] is None for r in losses["rows"])
    assert not any("±" in c["detail"] for c in losses["claims"])
    assert sum("one seed" in c["detail"] for c in losses["claims"]) == 3
    json.dumps(losses["rows"], allow_nan=False)


def test_figures_are_those_of_the_models(study):
    job = study.jobs(SYSTEMS["drift-time"], 4.0)[0]
    run, split = study.run(job), study.split("test")
    line = drift_figure62._lines(study, "drift-time", job.system, 4.0)[0]
    found = saros_metrics.own(scorer_of(run, at_epoch(1)), split.test, 4.0)
    assert line.values("own", "MAP@5")[0] == found.means()["MAP@5"]
    assert line.users("own", "MAP@5").shape == found.users.shape
    assert line.mean("own", "MAP@5") == pytest.approx(line.users("own", "MAP@5").mean())


# --- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["saros-b", "saros-m", "drift-time", "drift-user"])
def test_runs_keep_the_models_of_a_training(study, key):
    job = study.jobs(SYSTEMS[key], 3.0)[1]
    run, train = study.run(job), study.split("test").train
    rng, component = Streams.from_seed(1), job.system.component(3.0)
    if isinstance(component, SAROS):
        models = component.fit_steps(train, rng, [1, 4])
    else:
        table = study.owners(study.split("test"), job.system)
        models = DRIFT(component).fit_steps(train, table, rng, [1, 4])
    assert same(run.models[at_epoch(1)], models[0])
    assert same(run.models[at_epoch(4)], models[1])
    train_blocks, test_blocks = study.loss_blocks(job)
    assert run.train_loss[4] == drift_study.mean_loss(models[1], train_blocks)
    assert run.test_loss[1] == drift_study.mean_loss(models[0], test_blocks)


def test_saros_is_kept_after_as_many_steps_as_drift_takes(study):
    job = study.jobs(SYSTEMS["saros-b"], 4.0)[0]
    run, train = study.run(job), study.split("test").train
    steps, blocks = study.reference(4.0)
    assert job.marks == (steps, blocks)
    assert run.pace.steps == run.pace.blocks < blocks < 4 * run.pace.steps
    learnt = study.blocks(job)
    model = DriftModel.start(train.n_users, train.n_items, 4, Streams.from_seed(0))
    left = blocks
    while left:
        part = learnt.take(np.arange(min(left, len(learnt))))
        learn(model, part, job.system.component(4.0).step())
        left -= len(part)
    assert same(run.models[at_step(blocks)], model)


def test_an_interrupted_study_repeats_nothing(dataset, tmp_path, monkeypatch):
    study = new_study(dataset, tmp_path)
    job = study.jobs(SYSTEMS["saros-b"], 4.0)[0]
    first = study.run(job)
    monkeypatch.setattr(DriftStudy, "_train", None)  # a second training would fail
    again = new_study(dataset, tmp_path, stops=(1, 2)).run(replace(job, marks=()))
    assert same(first.models[at_epoch(2)], again.models[at_epoch(2)])
    assert len(again.train_loss) == 3
    for changed in (replace(job, seed=1), replace(job, part="validation")):
        with pytest.raises(TypeError):
            study.run(changed)
    with pytest.raises(TypeError):
        new_study(dataset, tmp_path, stops=(1, 2, 8)).run(job)


def test_convergence_is_found_without_the_test_part(dataset, tmp_path, monkeypatch):
    study = new_study(dataset, tmp_path)
    parts = set()
    measure = DriftStudy.measure

    def watched(self, scorer, positive_from, part, ways=drift_study.WAYS):
        parts.add(part)
        return measure(self, scorer, positive_from, part, ways)

    monkeypatch.setattr(DriftStudy, "measure", watched)
    assert study.converged(SYSTEMS["drift-time"], 4.0) in SMALL.stops
    assert parts == {"validation"}
    held = study.split("test").test
    assert held.n_interactions + study.split("test").train.n_interactions == len(
        dataset.interactions.items
    )
    inner = study.split("validation")
    assert inner.train.n_interactions + inner.test.n_interactions == (
        study.split("test").train.n_interactions
    )


def test_losses_leave_out_items_that_no_model_has(study):
    split = study.split("test")
    for blocks in study.loss_blocks(DriftJob(SYSTEMS["saros-b"], 4.0, "test", 0)):
        assert blocks.entries.max() < split.train.n_items
        assert len(blocks) > 0


def test_intervals_are_students():
    assert interval([1.0]) is None
    assert interval([1.0, 1.0, 1.0]) == 0.0
    assert interval([0.0, 1.0, 2.0, 3.0, 4.0]) == pytest.approx(1.9632, abs=1e-4)


# --- files ---------------------------------------------------------------------------------------


def test_systems_that_make_no_sense_are_refused():
    for table, why in (
        ({"label": "X", "kind": "drift", "gird": 1}, "gird"),
        ({"label": "X"}, "kind"),
        ({"label": "X", "kind": "als"}, "als"),
        ({"label": "X", "kind": "drift", "owners": "many"}, "owners"),
    ):
        with pytest.raises(ConfigError, match=why):
            DriftSystem.read("x", table)
    for stops in ((), (2, 4), (1, 4, 2)):
        with pytest.raises(ConfigError, match="stops"):
            DriftStudyConfig(stops=stops)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", ["drift-figure61", "drift-figure62"])
def test_the_installed_files_are_valid(name, quick, dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(drift_study, "load", lambda source: dataset)
    study = DriftStudy.read(name, quick, tmp_path, 1, quiet)
    assert study.config.source == "movielens-1m"
    assert len(study.config.seeds) == (1 if quick else 5)
    assert study.config.epochs == (10 if quick else 200)
    assert {"saros-b", "saros-m", "drift-time", "drift-user"} <= set(study.systems)
    for system in study.systems.values():
        if system.trained:
            assert isinstance(system.component(4.0), SAROS | DRIFTConfig)


# --- real data -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def movielens(tmp_path_factory):
    root = os.environ.get("SOTTOVOCE_DATA")
    if not root or not (Path(root) / "movielens-1m").is_dir():
        pytest.skip("needs movielens-1m under $SOTTOVOCE_DATA")
    folder = tmp_path_factory.mktemp("cells")
    study = DriftStudy.read("drift-figure62", True, folder, 2, quiet)
    return DriftStudy(
        replace(study.config, stops=(1, 2)), study.systems, study.dataset, folder, 2, quiet
    )


@pytest.mark.data
def test_movielens_has_18_owners_and_known_numbers_of_steps(movielens):
    split = movielens.split("test")
    assert len(movielens.owners(split, movielens.systems["drift-time"]).all_owners()) == 18
    assert movielens.reference(4.0) == (147_166, 294_323)
    assert movielens.pace(DriftJob(movielens.systems["saros-b"], 4.0, "test", 0)) == (
        134_761,
        134_761,
    )


@pytest.mark.data
def test_movielens_lead_after_one_epoch_is_one_of_blocks(movielens):
    scores = {}
    for key in ("saros-b", "drift-time"):
        run = movielens.run(movielens.jobs(movielens.systems[key], 4.0)[0])
        for place in run.models:
            found = movielens.measure(scorer_of(run, place), 4.0, "test", ("own",))
            scores[key, place] = found["own"].means()["MAP@5"]
    _, blocks = movielens.reference(4.0)
    drift = scores["drift-time", at_epoch(1)]
    assert 0.59 < drift < 0.62
    assert scores["saros-b", at_epoch(1)] < drift - 0.02
    assert abs(scores["saros-b", at_step(blocks)] - drift) < 0.01
