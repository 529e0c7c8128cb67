"""FPL's published tables and figures: the harness on the town, known values on real data."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.errors import UsageError
from sottovoce.evaluation.metrics import bias_disparity
from sottovoce_papers import fpl_sweep, fpl_table2
from sottovoce_papers.fpl_study import FPLSetting, FPLStudy, FPLStudyConfig
from sottovoce_papers.study import installed, settings_of

SMALL = FPLStudyConfig(
    source="town",
    min_user_items=0,
    seeds=(0, 1),
    learning_rates=(0.02, 0.05),
    embedding_sizes=(4,),
    epochs=(1, 3),
    shares=(0.0, 0.5, 1.0),
    coarse_shares=(0.5,),
    neighbours=(5, 20),
    vae_hidden=(20,),
    vae_latent=(8,),
    vae_epochs=(3,),
)


def quiet(what, done, total):
    pass


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return FPLStudy(SMALL, tmp_path_factory.mktemp("cells"), 2, quiet)


def test_table3_is_exact(tmp_path):
    result = reproduce.run("fpl-table3", quick=True, out=tmp_path, threads=1, report=quiet)
    assert len(result["rows"]) == 24
    assert all(row["CCE"] == row["CCE_paper"] for row in result["rows"])
    assert all(row["nFRSH"] == row["nFRSH_paper"] for row in result["rows"])
    assert Path(result["report"]).exists()


@pytest.mark.slow
def test_table2_has_every_system_and_claim(study, tmp_path):
    result = fpl_table2.table2(study, tmp_path)
    systems = [row["system"] for row in result["rows"] if "variant" not in row]
    assert systems == ["Random", "Top-Pop", "User-kNN", "Item-kNN", "VAE", "FCF",
                       "FCF (as in FPL)", "BPR-MF", "sFPL", "sFPL+", "pFPL", "pFPL+"]  # fmt: skip
    assert {"P@10", "P@10_paper", "IC@10", "Gini@10_paper"} <= set(result["rows"][0])
    assert len(result["claims"]) == 13  # 10 at the inherited learning rate, 3 at the other
    assert all(isinstance(c["holds"], bool) and c["detail"] for c in result["claims"])
    by_name = {row["system"]: row["P@10"] for row in result["rows"][:12]}
    assert by_name["Random"] < by_name["Top-Pop"] < by_name["User-kNN"]
    assert by_name["FCF (as in FPL)"] < by_name["FCF"]  # no negative signal
    assert "pFPL+" in Path(result["report"]).read_text()
    json.dumps({k: v for k, v in result.items() if k != "tables"})


@pytest.mark.parametrize("view", ["figure2", "figure3", "figure4", "table4"])
def test_every_view_of_the_sweep(study, tmp_path, view):
    result = getattr(fpl_sweep, view)(study, tmp_path)
    assert list((tmp_path / "figures").glob("*.svg"))
    assert Path(result["report"]).exists()
    assert result["claims"]
    if view != "table4":
        assert len(result["rows"]) == 4 * len(SMALL.shares)
        assert result["claims"][0]["detail"]


def test_an_interrupted_study_repeats_nothing(study, monkeypatch):
    setting = FPLSetting("pFPL", 0.05, 4, 0.5)
    first = study.train(setting, (1, 2), "test", 7)
    monkeypatch.setattr(study, "_fpl", None)  # a second training would fail
    again = study.train(setting, (2,), "test", 7)
    assert np.array_equal(first[2].lists, again[2].lists)


def test_what_is_seen_on_the_way_does_not_change_the_end(study):
    setting = FPLSetting("sFPL+", 0.05, 4, 0.5)
    stopping = study.train(setting, (1, 3), "test", 8)
    straight = FPLStudy(SMALL, study.folder / "other", 1, quiet).train(setting, (3,), "test", 8)
    assert np.array_equal(stopping[3].lists, straight[3].lists)


def test_sfpl_sharing_everything_is_bpr_mf_in_the_study_too(study):
    bpr = study.train(FPLSetting("BPR-MF", 0.05, 4), (2,), "test", 3)
    sfpl = study.train(FPLSetting("sFPL", 0.05, 4, 1.0), (2,), "test", 3)
    assert np.array_equal(bpr[2].lists, sfpl[2].lists)


def test_unknown_names_raise(tmp_path):
    with pytest.raises(UsageError, match="fpl-table2"):
        reproduce.run("fpl-table9", quick=True, out=tmp_path, threads=1, report=quiet)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(
    "name", [n for n in reproduce.NAMES if n.startswith("fpl") and n != "fpl-table3"]
)
def test_the_installed_files_are_valid(name, quick):
    study = settings_of(FPLStudyConfig, name, quick)
    assert study.source == "foursquare-italy"
    assert len(study.seeds) == (1 if quick else 3)


@pytest.fixture(scope="module")
def italy(tmp_path_factory):
    root = os.environ.get("SOTTOVOCE_DATA")
    if not root or not (Path(root) / "foursquare-italy").is_dir():
        pytest.skip("needs foursquare-italy under $SOTTOVOCE_DATA")
    return FPLStudy.read("fpl-table2", True, tmp_path_factory.mktemp("cells"), 2, quiet)


@pytest.mark.data
def test_italy_top_pop(italy):
    from sottovoce.baselines import TopPop

    evaluation = italy.fit("Top-Pop", TopPop(), "test")
    assert abs(evaluation.mean("P@10") - 0.0270) <= 0.0002
    assert abs(evaluation.mean("R@10") - 0.0344) <= 0.0002
    assert round(evaluation.summary()["Gini@10"], 5) == 0.00035


@pytest.mark.data
def test_italy_bias_by_category_is_near_the_published(italy):
    train = italy.test.train
    member = fpl_sweep.membership(italy)
    source = bias_disparity(train.items[:10].reshape(1, -1), train, member).source
    printed = installed("fpl-table4")["printed"]["italy_bias"]
    assert len(source) == len(printed)
    assert np.corrcoef(source, printed)[0, 1] > 0.95
    assert member.any(axis=1).mean() > 0.99
