"""FPL's published tables and figures: the studies on the town, known values on real data."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.errors import UsageError
from sottovoce.evaluation.metrics import bias_disparity
from sottovoce_papers import fpl
from sottovoce_papers.cells import Cells
from sottovoce_papers.files import StudyFile, installed
from sottovoce_papers.worlds import laid_over

GRID = {"learning_rate": [0.02, 0.05], "embedding_size": [4], "epochs": [1, 3]}
INHERITED = {"learning_rate": "bpr", "embedding_size": "bpr"}
SMALL = {
    "study": {"data": ["italy"], "seeds": [0, 1]},
    "data": {"italy": {"source": "town", "min_user_items": 0}},
    "systems": {
        "user-knn": {"grid": {"neighbors": [5, 20]}},
        "item-knn": {"grid": {"neighbors": [5, 20]}},
        "vae": {"grids": [{"hidden_size": [20], "embedding_size": [8], "epochs": [3]}]},
        "fcf": {"grid": {"alpha": [4.0], "rounds": [10, 20]}},
        "fcf-in-fpl": {"grid": {"rounds": [10, 20]}},
        "fcf-own": {"grid": {"embedding_size": [4], "alpha": [4.0], "reg": [10.0]}},
        "fcf-in-fpl-own": {"grid": {"embedding_size": [4], "learning_rate": [0.03]}},
        "bpr": {"grid": GRID},
        "fpl": {
            "grids": [
                {**INHERITED, "share": [0.0, 0.5, 1.0], "epochs": [1, 3]},
                {**GRID, "embedding_size": "bpr", "share": [0.5]},
            ]
        },
        "fpl-equal": {"grid": {**INHERITED, "share": [0.5, 1.0], "work": [3]}},
    },
}
SWEEP = {"sets": {"main": [{"systems": ["fpl"], "vary": {"share": [0.0, 0.5, 1.0]}}]}}


def quiet(what, done, total):
    pass


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return Cells(tmp_path_factory.mktemp("cells"), 2, quiet)


def small(name, **more):
    return StudyFile(name, laid_over(laid_over(installed(name), SMALL), more))


def test_table3_is_exact(tmp_path):
    result = reproduce.run("fpl-table3", quick=True, out=tmp_path, threads=1, report=quiet)
    assert len(result["rows"]) == 24
    assert all(row["CCE"] == row["CCE_paper"] for row in result["rows"])
    assert all(row["nFRSH"] == row["nFRSH_paper"] for row in result["rows"])
    assert all(claim["holds"] for claim in result["claims"])
    assert Path(result["report"]).exists()


@pytest.mark.slow
def test_table2_has_every_system_and_claim(cells, tmp_path):
    result = small("fpl-table2").run(cells, tmp_path)
    rows = [row for row in result["rows"] if "set" not in row]
    assert [row["system"] for row in rows] == [
        "Random", "Top-Pop", "User-kNN", "Item-kNN", "VAE", "BPR-MF", "FCF", "FCF (as in FPL)",
        "FCF, own grid", "FCF (as in FPL), own grid", "sFPL", "sFPL+", "pFPL", "pFPL+",
    ]  # fmt: skip
    assert {"P@10", "P@10_paper", "IC@10", "Gini@10_paper"} <= set(rows[0])
    assert len(result["claims"]) == 13  # 10 at the inherited learning rate, 3 at the other
    settings = {row["system"]: row for row in rows}
    for name in ("FCF", "FCF (as in FPL)", "sFPL", "pFPL+"):
        for inherited in ("learning_rate", "embedding_size"):
            assert settings[name][inherited] == settings["BPR-MF"][inherited]
    assert settings["FCF"]["reg"] == settings["BPR-MF"]["learning_rate"] / 20
    assert all(isinstance(c["holds"], bool) and c["detail"] for c in result["claims"])
    by_name = {row["system"]: row["P@10"] for row in rows}
    assert by_name["Random"] < by_name["Top-Pop"] < by_name["User-kNN"]
    assert by_name["FCF (as in FPL), own grid"] < by_name["FCF, own grid"]  # no negative signal
    assert "pFPL+" in Path(result["report"]).read_text()
    json.dumps({k: v for k, v in result.items() if k != "tables"})


@pytest.mark.parametrize("name", ["fpl-figure2", "fpl-figure3", "fpl-figure4"])
def test_every_view_of_the_sweep(cells, tmp_path, name):
    result = small(name, **SWEEP).run(cells, tmp_path)
    assert list((tmp_path / "figures").glob("*.svg"))
    assert Path(result["report"]).exists()
    assert len(result["rows"]) == 12
    assert len(result["claims"]) == 2
    assert all(claim["detail"] for claim in result["claims"])


def test_bias_is_shown_beside_what_was_printed(cells, tmp_path):
    result = small("fpl-table4").run(cells, tmp_path)
    assert [table.title[:8] for table in result["tables"]] == ["Bias dis", "Training", "The pape"]
    assert len(result["claims"]) == 6


def trained(study, cells, system, **settings):
    """The lists of one setting on test."""
    runner = study.runner(cells)
    asked = next(one for one in runner.systems if one.label == system)
    looks, _ = runner._looked(asked, runner.worlds[0], settings, "test", 3)
    return next(iter(looks.values())).lists


def test_sfpl_sharing_everything_is_bpr_mf_in_the_study_too(cells):
    study = small("fpl-table2")
    alike = {"learning_rate": 0.05, "embedding_size": 4, "epochs": 2}
    bpr = trained(study, cells, "BPR-MF", **alike)
    sfpl = trained(study, cells, "sFPL", **alike, share=1.0, configuration="sFPL")
    assert np.array_equal(bpr, sfpl)


def test_what_is_seen_on_the_way_does_not_change_the_end(cells, tmp_path):
    study = small("fpl-table2")
    alike = {"learning_rate": 0.05, "embedding_size": 4, "share": 0.5, "configuration": "sFPL+"}
    runner = study.runner(cells)
    (asked,) = [one for one in runner.systems if one.label == "sFPL+" and one.key == "fpl"]
    looks, _ = runner._looked(asked, runner.worlds[0], alike, "test", 8, (1, 3))
    other = study.runner(Cells(tmp_path, 1, quiet))
    straight, _ = other._looked(asked, other.worlds[0], {**alike, "epochs": 3}, "test", 8)
    assert np.array_equal(looks[3.0].lists, straight[3.0].lists)


def test_unknown_names_raise(tmp_path):
    with pytest.raises(UsageError, match="fpl-table2"):
        reproduce.run("fpl-table9", quick=True, out=tmp_path, threads=1, report=quiet)


@pytest.fixture(scope="module")
def italy(tmp_path_factory):
    root = os.environ.get("SOTTOVOCE_DATA")
    if not root or not (Path(root) / "foursquare-italy").is_dir():
        pytest.skip("needs foursquare-italy under $SOTTOVOCE_DATA")
    study = StudyFile("fpl-table2", installed("fpl-table2", quick=True))
    return study.runner(Cells(tmp_path_factory.mktemp("cells"), 2, quiet))


@pytest.mark.data
def test_italy_top_pop(italy):
    (line,) = italy.lines([{"systems": ["top-pop"]}])
    assert abs(line.row["P@10"] - 0.0270) <= 0.0002
    assert abs(line.row["R@10"] - 0.0344) <= 0.0002
    assert round(line.row["Gini@10"], 5) == 0.00035


@pytest.mark.data
def test_italy_bias_by_category_is_near_the_published(italy):
    train = italy.worlds[0].split("test", 0).train
    member = fpl.membership(italy.worlds[0])
    source = bias_disparity(train.items[:10].reshape(1, -1), train, member).source
    printed = installed("fpl-table4")["values"]["bias"]["foursquare-italy"]
    assert len(source) == len(printed)
    assert np.corrcoef(source, printed)[0, 1] > 0.95
    assert member.any(axis=1).mean() > 0.99
