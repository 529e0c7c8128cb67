"""The study of a year, on a small town."""

import json

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.errors import ConfigError
from sottovoce_papers.year import YearConfig, YearStudy, YearWay, year


def quiet(what, done, total):
    pass


WAYS = (
    YearWay("independent", algorithm={"noise": "independent"}),
    YearWay("factorised", algorithm={"noise": "factorised", "pairs_from": 1}),
    YearWay("fresh", "fresh"),
    YearWay("alike", "alike"),
    YearWay("once", "once"),
)


def study(place, **more):
    settings = {"source": "town", "months": 3, "seeds": (0, 1), "epsilons": (8.0,)}
    return YearStudy(YearConfig(**settings, **more), WAYS, place, 1, quiet)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("year")
    return year(study(place / "cells"), place / "out"), place


def test_rows_claims_and_a_picture(made):
    found, place = made
    rows = {row["way"]: row for row in found["rows"]}
    assert list(rows) == [way.label for way in WAYS]
    assert all(len(row["months"]) == 3 for row in rows.values())
    assert rows["once"]["months"][:2] == [None, None]
    assert all(0 < one < 1 for one in rows["independent"]["months"])
    assert len(found["claims"]) == 1 + 2 * 2  # these two batches differ in more than their noise
    assert found["claims"][0]["holds"]
    assert "data:image/svg+xml;base64," in (place / "out" / "report.html").read_text()
    json.dumps({key: value for key, value in found.items() if key != "tables"})


def test_everybody_ends_at_the_same_epsilon_and_fresh_releases_are_booked_one_by_one(made):
    rows = {row["way"]: row for row in made[0]["rows"]}
    for way, row in rows.items():
        assert row["exact"] == pytest.approx(8.0, rel=1e-6)
        assert (row["least"] < 7.0) if way == "alike" else (row["least"] > 8.0 - 1e-5)
    assert rows["fresh"]["ledger"] > 8.5
    for way in ("independent", "factorised", "once"):
        assert rows[way]["ledger"] == pytest.approx(8.0, rel=1e-6)


def test_the_last_month_has_everybody(made):
    rows = {row["way"]: row for row in made[0]["rows"]}
    for row in rows.values():
        assert row["joined"][-1] == row["months"][-1]
    assert rows["independent"]["joined"][0] != rows["independent"]["months"][0]


def test_nothing_is_run_twice(made, monkeypatch):
    monkeypatch.setattr(YearStudy, "_train", lambda *_: pytest.fail("trained again"))
    again = study(made[1] / "cells").rows()
    assert np.allclose([row["last"] for row in again], [row["last"] for row in made[0]["rows"]])


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match=r"ways\[2\]"):
        YearWay.of({"label": "x", "colour": "red"}, 2)
    with pytest.raises(ConfigError, match="batches, fresh, alike or once"):
        YearWay("x", "never")


@pytest.mark.parametrize("quick", [False, True])
def test_the_installed_file_makes_sense(tmp_path, quick):
    installed = YearStudy.read("year", quick, tmp_path, 1, quiet)
    for way in installed.ways:
        for epsilon in installed.config.epsilons:
            assert installed.experiment(0, epsilon, way).seed == 0
    assert {way.kind for way in installed.ways} == {"batches", "fresh", "alike", "once"}
    assert "year" in reproduce.NAMES
