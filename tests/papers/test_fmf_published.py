"""FMF-LDP's published figures: the harness on small worlds, known values on real data."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.data.shaped import ShapeConfig, generate_shaped
from sottovoce.errors import ConfigError
from sottovoce_papers import fmf_figure5, fmf_figures
from sottovoce_papers.fmf_study import (
    Crowd,
    CrowdConfig,
    FMFJob,
    FMFSetting,
    FMFStudy,
    FMFStudyConfig,
    FMFSystem,
    hit_ratio,
)

TOWN = CrowdConfig(source="town")
MADE = CrowdConfig(source="generated", users=300)
SHAPE = ShapeConfig(users=400, items=300, interactions=12_000, min_user_items=10, taste=1.0)
SMALL = FMFStudyConfig(
    worlds=(replace(TOWN, items=300), MADE),
    hold_outs=("random", "latest"),
    seeds=(0, 1),
    epsilons=(1.0, 2.5),
    reports=(1, 20, 60),
    rounds=4,
    generated=SHAPE,
)
SYSTEMS = {
    "mf-np": FMFSystem("MF-NP", "mf-np", {"embedding_size": 4, "epochs": 4}),
    "dplcf": FMFSystem("DPLCF", "dplcf", {"epsilon": 2.5}, {"neighbors": [10, 50]}),
    "published": FMFSystem(
        "FMF-LDP", "fmf", {"embedding_size": 3}, {"learning_rate": [0.02, 0.1]}
    ),
    "improved": FMFSystem("FMF-LDP improved", "fmf", {"embedding_size": 3, "alpha": 1.0}),
    "top-pop": FMFSystem("Top-Pop", "top-pop"),
    "random": FMFSystem("Random", "random"),
}  # fmt: skip
FMF = FMFSetting("fmf", (("embedding_size", 3),), 20, 2.5)


def quiet(what, done, total):
    pass


def new_study(folder, **changes):
    return FMFStudy(replace(SMALL, **changes), SYSTEMS, folder, 2, quiet)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return new_study(tmp_path_factory.mktemp("cells"))


# --- the figures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["figure2", "figure3", "figure4"])
def test_every_figure_has_rows_claims_and_pictures(study, tmp_path, view):
    result = getattr(fmf_figures, view)(study, tmp_path)
    assert list((tmp_path / "figures").glob("*.svg"))
    assert Path(result["report"]).exists()
    assert result["claims"]
    assert all(isinstance(c["holds"], bool) and c["detail"] for c in result["claims"])
    rows = {"figure2": 2 * 2 * 3 * 2, "figure3": 2 * (2 * 3 + 4), "figure4": 2}[view]
    assert len(result["rows"]) == rows
    json.dumps({k: v for k, v in result.items() if k != "tables"}, allow_nan=False)


def test_figure5_has_every_system_its_price_and_its_bytes(study, tmp_path):
    result = fmf_figure5.figure5(study, tmp_path)
    # The town is held out in both ways, generated data have no times.
    assert len(result["rows"]) == 3 * len(SYSTEMS)
    by_name = {r["system"]: r for r in result["rows"] if r["hold_out"] == "latest"}
    assert by_name["MF-NP"]["HR@10"] > by_name["Top-Pop"]["HR@10"] > by_name["Random"]["HR@10"]
    assert by_name["Random"]["HR@10"] < 0.14
    assert by_name["FMF-LDP"]["without"] == 1 * 1.0 * 4  # k · ε · T of the study's first k and ε
    assert by_name["FMF-LDP"]["with"] < by_name["FMF-LDP"]["without"]
    assert by_name["DPLCF"]["without"] == by_name["DPLCF"]["with"] == 2.5 * 300
    assert by_name["MF-NP"]["without"] is None
    assert by_name["Random"]["with"] == 0.0
    sent = result["bytes"][0]
    assert sent["up"] == fmf_figure5.posted_bytes(0) + 52 * sent["k"]
    assert sent["up_all"] == 4 * sent["up"]
    assert sent["down"] >= 4 * 3 * 300
    texts = [c["claim"] for c in result["claims"]]
    assert any("0.62" in text for text in texts)
    assert "FMF-LDP is above Top-Pop" in texts
    json.dumps({k: v for k, v in result.items() if k != "tables"}, allow_nan=False)


def test_a_claim_that_fails_says_so():
    steps = [(0.2, "here"), (-0.1, "there")]
    found = fmf_figures._steady("it grows", steps)
    assert not found["holds"]
    assert "here" in found["detail"]
    assert fmf_figures._steady("it grows", steps[1:])["holds"]


# --- cells ---------------------------------------------------------------------------------------


def test_an_interrupted_study_repeats_nothing(tmp_path, monkeypatch):
    study = new_study(tmp_path)
    job = FMFJob(study.worlds[0], "random", "test", 0, FMF, (2, 4))
    first = study.cell(job)
    monkeypatch.setattr(FMFStudy, "_train", None)  # a second training would fail
    again = study.cell(replace(job, stops=()))
    assert np.array_equal(first.last, again.last)
    with pytest.raises(TypeError):
        study.cell(replace(job, seed=1))


def test_what_is_seen_on_the_way_does_not_change_the_end(tmp_path):
    one, other = new_study(tmp_path / "a"), new_study(tmp_path / "b")
    job = FMFJob(one.worlds[0], "random", "test", 0, FMF)
    watched = one.cell(replace(job, stops=(1, 2, 3, 4)))
    straight = other.cell(replace(job, world=other.worlds[0]))
    assert np.array_equal(watched.last, straight.last)
    assert set(watched.ranks) == {1, 2, 3, 4}


def test_cells_of_other_lengths_are_other_cells(tmp_path):
    short, long = new_study(tmp_path), new_study(tmp_path, rounds=6)
    short.cell(FMFJob(short.worlds[0], "random", "test", 0, FMF))
    long.cell(FMFJob(long.worlds[0], "random", "test", 0, FMF, (4, 6)))
    assert len(list(tmp_path.glob("*.npz"))) == 2


def test_a_setting_that_diverges_counts_as_the_worst(tmp_path):
    study = new_study(tmp_path)
    pull = ("reg", 1.0)  # steps that are too long overshoot it, more each time
    wild = replace(FMF, values=(("embedding_size", 3), ("learning_rate", 10.0), pull))
    cell = study.cell(FMFJob(study.worlds[0], "random", "validation", 0, wild))
    assert hit_ratio(cell.last, 10) == 0.0
    system = FMFSystem("both", "fmf", dict([pull]), {"learning_rate": [10.0, 1e-5]})
    chosen = study.choose(study.worlds[0], system, "random", 60, 2.5)
    assert dict(chosen.values)["learning_rate"] == 1e-5


def test_ranks_are_those_of_the_protocol(tmp_path):
    from sottovoce.baselines import TopPop
    from sottovoce.evaluation.protocol import Protocol, Sampled, evaluate
    from sottovoce.rng import Streams

    study = new_study(tmp_path)
    world = study.worlds[0]
    cell = study.cell(FMFJob(world, "latest", "test", 3, FMFSetting("top-pop")))
    split = world.split("latest", "test", 3)
    scorer = TopPop().fit(split.train, Streams.from_seed(0))
    for cutoff in (2, 5, 10):
        found = evaluate(scorer, split.train, split.test, Protocol(cutoff, Sampled(99, 3)))
        assert hit_ratio(cell.last, cutoff) == pytest.approx(found.mean(f"HR@{cutoff}"))


def test_validation_never_sees_the_test_item(study):
    world = study.worlds[0]
    test, validation = (world.split("random", part, 0) for part in ("test", "validation"))
    names = test.train.items_vocabulary().names()
    inner = validation.train.items_vocabulary().names()
    for user in range(0, world.table.n_users, 97):
        held = {test.test.items_vocabulary().names()[i] for i in test.test.row(user)}
        seen = {inner[i] for i in validation.train.row(user)}
        assert not held & seen
        assert seen < {names[i] for i in test.train.row(user)}


# --- worlds --------------------------------------------------------------------------------------


def test_worlds_are_drawn_once_and_for_all():
    settings = replace(TOWN, users=200, items=150)
    one, again = (Crowd(settings, SHAPE, 0) for _ in range(2))
    assert one.fingerprint == again.fingerprint != Crowd(settings, SHAPE, 1).fingerprint
    assert one.table.n_users <= 200
    assert one.table.n_items <= 150
    assert one.table.counts.min() >= 2


def test_generated_data_have_their_shape_and_something_to_learn():
    table = generate_shaped(SHAPE)
    assert (table.n_users, table.n_items, table.n_interactions) == (400, 300, 12_000)
    assert table.counts.min() >= 10
    assert generate_shaped(SHAPE, threads=3).fingerprint() == table.fingerprint()
    assert generate_shaped(replace(SHAPE, seed=2)).fingerprint() != table.fingerprint()


def test_taste_can_be_learnt_and_its_absence_cannot(tmp_path):
    assert _gain(tmp_path, 1.5) > 0.1 > 0.03 > _gain(tmp_path, 0.0)


def _gain(cells, taste):
    """By how much MF-NP hits more often than Top-Pop."""
    shape = ShapeConfig(1500, 300, 45_000, 10, taste)
    study = new_study(cells, worlds=(CrowdConfig(source="generated"),), generated=shape)
    systems = [SYSTEMS["mf-np"].candidates(1, 1.0)[0], FMFSetting("top-pop")]
    jobs = [FMFJob(study.worlds[0], "random", "test", 0, s) for s in systems]
    mine, popular = (hit_ratio(study.cell(job).last, 10) for job in jobs)
    return mine - popular


@pytest.mark.parametrize(
    "changes",
    [{"interactions": 100}, {"interactions": 10**9}, {"taste": math.nan}, {"min_user_items": 0}],
)
def test_impossible_shapes_are_refused(changes):
    with pytest.raises(ConfigError):
        replace(SHAPE, **changes)


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", [n for n in reproduce.NAMES if n.startswith("fmf")])
def test_the_installed_files_are_valid(name, quick, tmp_path):
    study = FMFStudy.read(name, quick, tmp_path, 1, quiet)
    for system in study.systems.values():
        for source in {w.source for w in study.config.worlds}:
            for setting in system.on(source).candidates(100, 2.5):
                setting.component()
    sources = {w.source for w in study.config.worlds}
    assert sources == ({"movielens-1m"} if quick else {"movielens-1m", "generated"})
    assert (len(study.config.seeds) == 1) == quick
    assert "published" in study.systems


def test_unknown_keys_of_a_system_are_refused():
    with pytest.raises(ConfigError, match="gird"):
        FMFSystem.read("x", {"label": "X", "gird": {}})
    with pytest.raises(ConfigError, match="label"):
        FMFSystem.read("x", {})


@pytest.fixture(scope="module")
def movielens(tmp_path_factory):
    root = os.environ.get("SOTTOVOCE_DATA")
    if not root or not (Path(root) / "movielens-1m").is_dir():
        pytest.skip("needs movielens-1m under $SOTTOVOCE_DATA")
    return FMFStudy.read("fmf-figure5", True, tmp_path_factory.mktemp("cells"), 2, quiet)


@pytest.mark.data
def test_movielens_item_sets(movielens):
    sizes = [(w.table.n_users, w.table.n_items) for w in movielens.worlds]
    assert sizes == [(6040, 1000), (6040, 2392), (6040, 3706)]


@pytest.mark.data
def test_movielens_published_is_well_above_chance(movielens):
    world = movielens.worlds[1]
    system = movielens.systems["published"]
    setting = FMFSetting("fmf", (*system.settings.items(), ("alpha", 1.0), ("learning_rate", 0.02)),
                      100, 2.5)  # fmt: skip
    cell = movielens.cell(FMFJob(world, "random", "test", 0, setting))
    assert 0.40 < hit_ratio(cell.last, 10) < 0.48
