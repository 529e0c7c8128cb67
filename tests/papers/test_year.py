"""The study of a year, on a small town."""

import json

import pytest

from sottovoce_papers.cells import Cells
from sottovoce_papers.files import StudyFile, installed


def quiet(what, done, total):
    pass


SYSTEMS = {
    label: {"label": label, "kind": "year", "settings": {"way": way, "algorithm": algorithm}}
    for label, way, algorithm in (
        ("independent", "batches", {"noise": "independent"}),
        ("factorised", "batches", {"noise": "factorised", "pairs_from": 1}),
        *((way, way, {}) for way in ("fresh", "alike", "once")),
    )
}
SMALL = {
    "systems": SYSTEMS,
    "study": {"data": ["town"], "seeds": [0, 1]},
    "data": {"town": {"source": "town"}},
    "sets": {"main": [{"vary": {"epsilon": [8.0], "months": [3], "min_devices": [100]}}]},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("year")
    study = StudyFile("year", {**installed("year"), **SMALL})
    return study.run(Cells(place / "cells", 1, quiet), place / "out"), place


def test_rows_claims_and_a_picture(made):
    found, place = made
    rows = {row["system"]: row for row in found["rows"]}
    assert list(rows) == list(SYSTEMS)
    assert all(0 < rows["independent"][f"P@10 after {month}"] < 1 for month in (1, 2, 3))
    assert "P@10 after 2" not in rows["once"]
    assert len(found["claims"]) == 1 + 2 * 2  # these two batches differ in more than their noise
    assert found["claims"][0]["holds"]
    assert "data:image/svg+xml;base64," in (place / "out" / "report.html").read_text()
    json.dumps({key: value for key, value in found.items() if key != "tables"})


def test_everybody_ends_at_the_same_epsilon_and_fresh_releases_are_booked_one_by_one(made):
    rows = {row["system"]: row for row in made[0]["rows"]}
    for way, row in rows.items():
        assert row["exact"] == pytest.approx(8.0, rel=1e-6)
        assert (row["least"] < 7.0) if way == "alike" else (row["least"] > 8.0 - 1e-5)
    assert rows["fresh"]["ledger"] > 8.5
    for way in ("independent", "factorised", "once"):
        assert rows[way]["ledger"] == pytest.approx(8.0, rel=1e-6)


def test_the_last_month_has_everybody(made):
    rows = {row["system"]: row for row in made[0]["rows"]}
    for row in rows.values():
        assert row["joined 3"] == row["P@10 after 3"]
    assert rows["independent"]["joined 1"] != rows["independent"]["P@10 after 1"]
