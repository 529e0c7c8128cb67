"""FMF-LDP's published figures: the studies on small worlds, known values on real data."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.data.shaped import ShapeConfig, generate_shaped
from sottovoce.errors import ConfigError
from sottovoce_papers import fmf
from sottovoce_papers.cells import Cells
from sottovoce_papers.files import StudyFile, installed
from sottovoce_papers.worlds import StudyData, StudyWorld, laid_over

SHAPE = ShapeConfig(users=400, items=300, interactions=12_000, min_user_items=10, taste=1.0)
SPLIT = {"split": "leave-one-out", "hold_out": "random", "negatives": 99, "cutoffs": [2, 5, 10]}
TOWN = {**SPLIT, "source": "town", "items": 300}
MADE = {**SPLIT, "source": "generated", "users": 300, "shape": {
    "users": 400, "items": 300, "interactions": 12_000, "min_user_items": 10, "taste": 1.0,
}}  # fmt: skip
LATEST = {**TOWN, "hold_out": "latest"}
WORLDS = {
    "study": {"data": ["town", "latest", "made"], "seeds": [0, 1]},
    "data": {"town": TOWN, "latest": LATEST, "made": MADE},
}
SHORT = {"rounds": 4, "epsilon": 1.0, "reports": 20, "embedding_size": 3}
FMF = {"label": "FMF", "kind": "fmf", "settings": SHORT}
SMALL = {"title": "small", "reading": "so", **WORLDS, "systems": {"fmf": FMF}}
SMALL["study"]["chosen_by"] = "HR@10"


def quiet(what, done, total):
    pass


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return Cells(tmp_path_factory.mktemp("cells"), 2, quiet)


def small(name, **systems):
    """An installed study on small worlds, with short trainings."""
    table = installed(name, quick=True)
    for key, system in table["systems"].items():
        of_fmf = system["kind"] == "fmf"
        for part in ("settings", "grid"):
            system[part] = {k: v for k, v in system.get(part, {}).items() if k != "threads"}
        if of_fmf:
            system["settings"] |= {"rounds": 4, "embedding_size": 3}
            system["grid"].pop("embedding_size", None)
        system |= systems.get(key, {})
    table["sets"] = {
        name: [{**one, "curve": [1, 2, 4]} if "curve" in one else one for one in entries]
        for name, entries in table.get("sets", {"main": [{}]}).items()
    }
    return StudyFile(name, laid_over(table, WORLDS))


# --- the figures ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows"),
    [("fmf-figure2", 3 * 3 * 3 * 2), ("fmf-figure3", 3 * 7), ("fmf-figure4", 3 * 4 + 2)],
)
def test_every_figure_has_rows_claims_and_pictures(cells, tmp_path, name, rows):
    result = small(name).run(cells, tmp_path)
    assert list((tmp_path / "figures").glob("*.svg"))
    assert Path(result["report"]).exists()
    assert result["claims"]
    assert all(isinstance(c["holds"], bool) and c["detail"] for c in result["claims"])
    assert len(result["rows"]) == rows
    json.dumps({k: v for k, v in result.items() if k != "tables"}, allow_nan=False)


@pytest.mark.slow
def test_figure5_has_every_system_its_price_and_its_bytes(cells, tmp_path):
    result = small("fmf-figure5").run(cells, tmp_path)
    rows = [row for row in result["rows"] if "set" not in row]
    latest = rows[10:20]  # data come in the order in which they are named, with ten systems each
    by_name = {row["system"]: row for row in latest}
    assert len(rows) == 3 * len(by_name)
    assert by_name["MF-NP"]["HR@10"] > by_name["Top-Pop"]["HR@10"] > by_name["Random"]["HR@10"]
    assert by_name["Random"]["HR@10"] < 0.14
    published = by_name["FMF-LDP (published)"]
    assert published["without"] == 100 * 2.5 * 4  # k · ε · T
    assert published["with"] < published["without"]
    assert by_name["DPLCF"]["without"] == by_name["DPLCF"]["with"] == 2.5 * 300
    assert by_name["MF-NP"]["without"] is None
    assert by_name["Random"]["with"] == 0.0
    sent = next(row for row in result["rows"] if row.get("set") == "traffic")
    assert sent["up"] == fmf.posted_bytes(0) + 52 * sent["k"]
    assert sent["up_all"] == 4 * sent["up"]
    assert sent["share"] == sent["k"] * 4 / (300 * 3)
    assert sent["down"] >= 4 * 3 * 300
    texts = [c["claim"] for c in result["claims"]]
    assert any("0.62" in text for text in texts)
    assert {f"FMF-LDP ({v}) is above Top-Pop" for v in ("published", "γ as printed")} <= {*texts}
    json.dumps({k: v for k, v in result.items() if k != "tables"}, allow_nan=False)


# --- cells ---------------------------------------------------------------------------------------


# --- worlds --------------------------------------------------------------------------------------


def world(**changes):
    return StudyWorld(
        "x", replace(StudyData("town", split="leave-one-out", negatives=99), **changes)
    )


def test_validation_never_sees_the_test_item():
    town = world(hold_out="random", items=300)
    test, validation = (town.split(part, 0) for part in ("test", "validation"))
    names = test.train.items_vocabulary().names()
    inner = validation.train.items_vocabulary().names()
    for user in range(0, town.table.n_users, 97):
        held = {test.test.items_vocabulary().names()[i] for i in test.test.row(user)}
        seen = {inner[i] for i in validation.train.row(user)}
        assert not held & seen
        assert seen < {names[i] for i in test.train.row(user)}


def test_worlds_are_drawn_once_and_for_all():
    one, again = (world(users=200, items=150) for _ in range(2))
    assert one.fingerprint == again.fingerprint
    assert one.fingerprint != world(users=200, items=150, draw_seed=1).fingerprint
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


def _gain(folder, taste):
    """By how much MF-NP hits more often than Top-Pop."""
    shape = {"users": 1500, "items": 300, "interactions": 45_000, "min_user_items": 10}
    data = {"made": {**SPLIT, "source": "generated", "shape": {**shape, "taste": taste}}}
    small = {"name": "mf-np", "embedding_size": 4, "epochs": 4}
    systems = {
        "np": {"label": "MF-NP", "kind": "baseline", "settings": small},
        "pop": {"label": "Top-Pop", "kind": "baseline", "settings": {"name": "top-pop"}},
    }
    study = StudyFile("taste", {**SMALL, "study": {}, "data": data, "systems": systems})
    mine, popular = study.runner(Cells(folder, 1, quiet)).lines([{}])
    return mine.row["HR@10"] - popular.row["HR@10"]


@pytest.mark.parametrize(
    "changes",
    [{"interactions": 100}, {"interactions": 10**9}, {"taste": math.nan}, {"min_user_items": 0}],
)
def test_impossible_shapes_are_refused(changes):
    with pytest.raises(ConfigError):
        replace(SHAPE, **changes)


# --- real data -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def movielens(tmp_path_factory):
    root = os.environ.get("SOTTOVOCE_DATA")
    if not root or not (Path(root) / "movielens-1m").is_dir():
        pytest.skip("needs movielens-1m under $SOTTOVOCE_DATA")
    table = installed("fmf-figure5", quick=True)
    table["systems"]["published"]["grid"] = {"alpha": [1.0], "learning_rate": [0.02]}
    cells = Cells(tmp_path_factory.mktemp("cells"), 2, quiet)
    return StudyFile("fmf-figure5", table).runner(cells)


@pytest.mark.data
def test_movielens_item_sets(movielens):
    sizes = [(w.table.n_users, w.table.n_items) for w in movielens.worlds]
    assert sizes == [(3938, 1000), (3938, 2342), (6040, 3706)]


@pytest.mark.data
def test_movielens_published_is_well_above_chance(movielens):
    movielens.worlds = movielens.worlds[1:2]
    (line,) = movielens.lines([{"systems": ["published"]}])
    assert 0.40 < line.row["HR@10"] < 0.48
