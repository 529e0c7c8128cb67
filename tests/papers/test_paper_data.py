"""The papers' own data sets: studies on small generated files in the official formats, what
`reproduce --data`, `--list` and `--all` say of them, and data that are not here."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.data.importers import import_path
from sottovoce.data.prepared import write_prepared
from sottovoce.data.sources import prepared_folder
from sottovoce.errors import ConfigError, DataNotFound, UsageError
from sottovoce_papers import papers
from sottovoce_papers.cells import Cells
from sottovoce_papers.files import StudyFile, installed, narrowed, read, run
from sottovoce_papers.worlds import MADE, expanded, laid_over

COUNTRIES = {"BR": "brazil", "CA": "canada", "IT": "italy"}


def quiet(what, done, total):
    pass


def tist2015(path):
    """Check-ins of 24 users in each of three countries, as Foursquare's TIST2015 has them."""
    rng = np.random.default_rng(1)
    kinds = ("Café", "Bar", "Museum", "Park", "Hotel", "Office", "University", "Home (private)",
             "Bookstore")  # fmt: skip
    venues, visits = [], []
    for place, code in enumerate(COUNTRIES):
        for v in range(60):
            venues.append(f"{code}{v}\t45.4\t9.1\t{kinds[v % 9]}\t{code}")
        for user in range(24):
            for n, v in enumerate(rng.choice(60, size=25, replace=False)):
                when = f"Tue Apr 03 {n // 60:02}:{n % 60:02}:06 +0000 2012"
                visits.append(f"{1000 * place + user}\t{code}{v}\t{when}\t120")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("dataset_TIST2015/dataset_TIST2015_POIs.txt", "\n".join(venues) + "\n")
        archive.writestr("dataset_TIST2015/dataset_TIST2015_Checkins.txt", "\n".join(visits) + "\n")
    return path


def movielens_20m(path):
    """Ratings of 200 users with 40 to 100 of 120 films, as MovieLens has them since 20M."""
    rng = np.random.default_rng(2)
    rows = ["userId,movieId,rating,timestamp"]
    for user in range(1, 201):
        films = rng.choice(120, size=40 + (2 * user) % 61, replace=False)
        rows += [f"{user},{film + 1},{rng.integers(1, 11) / 2},{1000 + n}" for n, film in
                 enumerate(films)]  # fmt: skip
    films = ["movieId,title,genres", *(f'{n + 1},"Film {n}, The (1990)",Drama' for n in range(120))]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ml-20m/ratings.csv", "\n".join(rows) + "\n")
        archive.writestr("ml-20m/movies.csv", "\n".join(films) + "\n")
    return path


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    """A folder of data sets that were imported from downloads."""
    folder = tmp_path_factory.mktemp("downloads")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOTTOVOCE_DATA", str(folder / "data"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        archive = tist2015(folder / "dataset_TIST2015.zip")
        for code, name in COUNTRIES.items():
            found = import_path(archive, country=code)
            write_prepared(found, prepared_folder(f"foursquare-{name}"))
        found = import_path(movielens_20m(folder / "ml-20m.zip"))
        write_prepared(found, prepared_folder("movielens-20m"))
    return folder


@pytest.fixture
def here(downloads, monkeypatch):
    monkeypatch.setenv("SOTTOVOCE_DATA", str(downloads / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(downloads / "cache"))


def made(name, out, data=(), settings=()):
    return reproduce.run(
        name, quick=True, out=out, threads=1, report=quiet, data=data, settings=settings
    )


# --- which data sets -----------------------------------------------------------------------------


def test_every_country_of_a_download_is_a_row_next_to_what_was_printed(here, tmp_path):
    found = made("fpl-table1", tmp_path / "all")
    rows = [row for row in found["rows"] if "set" not in row]
    assert [row["source"] for row in rows] == [f"foursquare-{c}" for c in COUNTRIES.values()]
    assert [row["n_users"] for row in rows] == [24] * 3
    assert [row["n_users_paper"] for row in rows] == [17473, 1340, 1353]
    assert [claim["holds"] for claim in found["claims"]] == [False] * 6
    one = made("fpl-table1", tmp_path / "one", ["foursquare-canada"])
    assert {row["source"] for row in one["rows"] if "set" not in row} == {"foursquare-canada"}
    same = made("fpl-table1", tmp_path / "same", ["canada"])
    assert same["rows"] == one["rows"]


@pytest.mark.slow
def test_each_data_set_of_a_study_apart_has_its_own_tables_and_claims(here, tmp_path):
    table = installed("fpl-figure2", quick=True)
    table = laid_over(table, {
        "sets": {"main": [{"systems": ["fpl"], "vary": {"share": [0.5, 1.0]}}]},
        "systems": {
            "bpr": {"grid": {"embedding_size": [4], "epochs": [2]}},
            "fpl": {"grids": [{"learning_rate": [0.05], "embedding_size": [4], "epochs": [2],
                               "share": [0.5]}]},
        },
    })  # fmt: skip
    cells = Cells(tmp_path / "cells", 1, quiet)
    found = run("two", narrowed(table, ["brazil", "italy"]), cells, tmp_path / "out")
    assert len(found["tables"]) == 2
    assert [t.title for t in found["tables"]] == [
        "fpl-figure2 on foursquare-brazil", "fpl-figure2 on foursquare-italy",
    ]  # fmt: skip
    assert all("(foursquare-" in claim["claim"] for claim in found["claims"])
    assert len({one["file"] for one in found["figures"]}) == 2
    assert all(Path(one["file"]).exists() for one in found["figures"])
    alone = run("one", narrowed(table, ["italy"]), cells, tmp_path / "alone")
    other = [row for row in found["rows"] if row["source"] == "foursquare-italy"]
    assert alone["rows"] == other


def test_the_nine_subsets_of_movielens_20m_follow_from_a_rule(here):
    names = [*expanded(installed("fmf-figure4")["data"])["ml20"]]
    assert len(names) == 9
    assert names[0] == "ml20-1000-1000"
    assert names[-1] == "ml20-50000-all"
    study = StudyFile("figure4", narrowed(installed("fmf-figure4"), ["movielens-20m"]))
    assert [*study.worlds] == names
    one = StudyFile("figure4", narrowed(installed("fmf-figure4"), ["ml20-1000-5000"]))
    assert [(w.users, w.items) for w in one.worlds.values()] == [(1000, 5000)]
    small = laid_over(installed("fmf-figure4"), {
        "data": {"ml20": {"each": {"users": [20, 0], "items": [10, 0]}}},
    })  # fmt: skip
    study = StudyFile("small", narrowed(small, ["ml20"]))
    worlds = [spec.world(name) for name, spec in study.worlds.items()]
    whole = worlds[-1].table
    assert [w.table.n_users for w in worlds[:2]] == [20, 20]
    assert [w.table.n_items for w in worlds] == [10, whole.n_items, 10, whole.n_items]
    assert whole.n_users < 200
    assert whole.item_counts.min() >= 60


def test_users_and_items_have_the_papers_floor(here):
    spec = {"data": {"ml": {
        "source": "movielens-20m", "split": "leave-one-out", "hold_out": "random",
        "negatives": 9, "min_user_items": 60, "min_item_users": 30,
    }}}  # fmt: skip
    (config,) = StudyFile("x", {"title": "x", **spec}).worlds.values()
    bare = laid_over(spec, {"data": {"ml": {"min_user_items": 0}}})
    (other,) = StudyFile("x", {"title": "x", **bare}).worlds.values()
    table, loose = config.world("ml").table, other.world("ml").table
    assert table.item_counts.min() >= 30
    assert table.n_users < loose.n_users


def test_any_data_set_takes_the_place_of_a_studys_own(here, tmp_path):
    table = narrowed(installed("fpl-table2"), ["movielens-20m"])
    assert table["study"]["data"] == ["movielens-20m"]
    assert table["data"]["movielens-20m"] == {"source": "movielens-20m", "min_user_items": 20}
    several = narrowed(installed("fmf-figure5"), ["foursquare-italy"])["study"]["data"]
    assert several == [f"foursquare-italy-{name}" for name in ("frequent", "small", "all")]
    held = {"title": "x", "data": {"a": {"source": "movielens-1m"}}, "study": {"data": ["a"]},
            "systems": {"s": {"data": ["a"]}}, "sets": {"main": [{"data": ["a"]}]}}  # fmt: skip
    changed = narrowed(held, ["mine"])
    assert changed["systems"]["s"]["data"] == ["a", "mine"]
    assert changed["sets"]["main"] == [{"data": ["a", "mine"]}]
    with pytest.raises(UsageError, match="no data set that can be replaced"):
        narrowed(installed("fpl-table3"), ["movielens-20m"])


@pytest.mark.parametrize("name", reproduce.NAMES)
def test_every_study_of_real_data_takes_another_data_set(name):
    table = installed(name)
    sources = {spec.get("source") for spec in table.get("data", {}).values()} - {*MADE, None}
    if not sources:
        pytest.skip("its data are generated")
    study = StudyFile(name, narrowed(table, ["mine"]))
    assert {world.source for world in study.worlds.values()} == {"mine"}


def test_a_data_set_that_is_not_here_is_one_sentence(here, tmp_path, monkeypatch):
    with pytest.raises(DataNotFound, match="there is no data set 'foursquare-france'"):
        made("fpl-table1", tmp_path / "x", ["foursquare-france"])
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path))
    with pytest.raises(DataNotFound, match=r"TIST2015.zip --country BR") as told:
        made("fpl-table1", tmp_path / "x", ["brazil"])
    assert "\n" not in str(told.value)


def test_values_of_each_make_no_world_that_is_not_asked_for():
    table = {"title": "x", "data": {"ml": {"each": {"users": [1]}}}, "study": {"data": ["ml-9"]}}
    with pytest.raises(ConfigError, match=r"no \[data.ml-9\]"):
        StudyFile("x", table)


# --- the list ------------------------------------------------------------------------------------


def test_the_list_says_sizes_times_and_what_is_not_here(here):
    known = reproduce.described("fpl-table2")
    assert known["missing"] == []
    assert known["size"] == {"system": 20, "data set": 3, "seed": 3}
    assert set(known["recorded"]) <= {"minutes", "quick_minutes", "machine", "date"}
    assert reproduce.described("fmf-figure4")["missing"] == ["movielens-1m"]
    assert known["recorded"]["quick_minutes"] < 2
    assert reproduce.described("fpl-table4")["recorded"] == {}  # it extends fpl-table2
    for name in reproduce.NAMES:
        assert {"title", "missing", "also", "recorded"} <= set(reproduce.described(name))


# --- all of a paper ------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_studies_of_a_paper_are_one_page(here, tmp_path, monkeypatch):
    """One that fails, in whatever way, does not stop the others; the second time trains nothing."""

    def broken(name, **given):
        if name == "fpl-table2":
            raise ZeroDivisionError("oh")
        if name == "fpl-figure3":
            raise DataNotFound("there is no data set 'moon'")
        return original(name, **given)

    original = reproduce.run
    short = {
        "study": {"data": ["italy"]},
        "systems": {
            "vae": {"grids": [{"hidden_size": [8], "embedding_size": [4], "epochs": [1]}]},
            "bpr": {"grid": {"embedding_size": [4], "epochs": [2]}},
            "fpl": {"grids": [{"learning_rate": "bpr", "embedding_size": "bpr", "epochs": [2],
                               "share": [0.5]}]},
        },
    }  # fmt: skip
    from sottovoce_papers import files

    def smaller(name, quick=False):
        table = read(files.studies() / f"{name}.toml", quick)
        return laid_over(table, short) if "bpr" in table.get("systems", {}) else table

    monkeypatch.setattr(reproduce, "run", broken)
    monkeypatch.setattr(files, "installed", smaller)
    given = {"quick": True, "out": tmp_path / "fpl", "threads": 1, "report": quiet}
    found = papers.run_paper("fpl", **given)
    names = [one["name"] for one in found["studies"]]
    assert names == papers.studies_of("fpl")
    assert names[0] == "fpl-table1"
    by_name = {one["name"]: one for one in found["studies"]}
    assert by_name["fpl-figure3"]["lacking"]
    assert "ZeroDivisionError: oh" in by_name["fpl-table2"]["error"]
    assert "ZeroDivisionError" in (tmp_path / "fpl-table2" / "error.txt").read_text()
    assert by_name["fpl-table4"]["claims"]
    page = Path(found["report"]).read_text()
    for words in ("Not run: there is no data set", "FPL, Table 3", "24 of 24", "Bias disparity"):
        assert words in page
    json.dumps({k: v for k, v in found.items() if k != "tables"})
    cells = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    again = papers.run_paper("fpl", **given)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()} == cells
    assert again["studies"][0] == found["studies"][0]
    with pytest.raises(UsageError, match="fpl, fmf, drift, uc"):
        papers.studies_of("moon")
