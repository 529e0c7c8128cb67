"""The study of the leak, on the town."""

import json

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.errors import ConfigError, UsageError
from sottovoce_papers.negatives_leak import LeakConfig, LeakStudy, LeakSystem, negatives_leak


def quiet(what, done, total):
    pass


SYSTEMS = [
    LeakSystem("counts", rival={"name": "counting", "rounds": 25}),
    LeakSystem("FedMF", rival={"name": "fedmf"}, grid={"item_rate": [0.001, 1e30]}),
    LeakSystem("Top-Pop", baseline={"name": "top-pop"}),
]
PRINTED = [{"data": "town", "system": "FedMF", "HR@10": 0.5, "from": "a paper"}]
TOWN = generate_town(TownConfig(residents=150, venues=160))
DATA = {"town": {"source": "town", "split": "leave-one-out"}}


def study(place, systems=SYSTEMS, **more):
    settings = LeakConfig(**{"sources": ("town",), **more})
    made = LeakStudy(settings, DATA, systems, PRINTED, place, 1, quiet)
    made._loaded["town"] = TOWN
    return made


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    place = tmp_path_factory.mktemp("leak")
    made = study(place / "cells", [SYSTEMS[0], SYSTEMS[2]])
    return negatives_leak(made, place / "out"), place


@pytest.mark.slow
def test_counting_finds_the_answer_with_the_leak_alone(found):
    rows = {(row["system"], row["way"]): row for row in found[0]["rows"]}
    assert rows["counts", "leak"]["sampled HR@10"] > 0.95
    assert rows["counts", "leak"]["full HR@10"] > 0.5
    assert 0.07 < rows["counts", "fair"]["sampled HR@10"] < 0.13
    assert rows["Top-Pop", "baseline"]["sampled HR@10 half"] > 0
    assert [one["holds"] for one in found[0]["claims"]] == [True]
    assert "data:image/svg+xml;base64," in (found[1] / "out" / "report.html").read_text()
    json.dumps({k: v for k, v in found[0].items() if k != "tables"})


@pytest.mark.slow
def test_nothing_is_trained_twice(found, monkeypatch):
    monkeypatch.setattr(LeakStudy, "_measured", lambda *_: pytest.fail("trained again"))
    again = study(found[1] / "cells", [SYSTEMS[0], SYSTEMS[2]]).rows("town")
    first = found[0]["rows"][0]["sampled HR@10"]
    assert np.mean(again[0]["values"]["sampled HR@10"]) == first


def test_rates_are_chosen_on_the_validation_part_without_the_leak(tmp_path, monkeypatch):
    asked = []

    def measured(self, source, seed, table, way, part):
        asked.append((way, part, table["item_rate"]))
        return {f"{p} {m}": np.array([table["item_rate"]]) for p in ("sampled", "full")
                for m in ("HR@10", "NDCG@10")} | {"seconds": np.array(1.0)}  # fmt: skip

    monkeypatch.setattr(LeakStudy, "_measured", measured)
    made = study(tmp_path, rounds=3)
    system = LeakSystem("FedMF", rival={"name": "fedmf"}, grid={"item_rate": [1.0, 3.0, 2.0]})
    assert made.chosen("town", system) == {"name": "fedmf", "item_rate": 3.0, "rounds": 3}
    assert {(way, part) for way, part, _ in asked} == {("fair", "validation")}
    known = LeakSystem("FedMF", rival={"name": "fedmf"}, at={"town": {"item_rate": 7.0}})
    assert made.chosen("town", known)["item_rate"] == 7.0


@pytest.mark.slow
def test_what_runs_off_is_not_chosen(tmp_path):
    made = study(tmp_path, rounds=5)
    assert made.chosen("town", SYSTEMS[1])["item_rate"] == 0.001


@pytest.mark.parametrize("quick", [False, True])
def test_the_installed_file_makes_sense(tmp_path, quick):
    made = LeakStudy.read("negatives-leak", quick, tmp_path, 1, quiet)
    labels = {system.label for system in made.systems}
    assert {one["system"] for one in made.printed} <= labels
    assert {"FedMF", "FedNCF", "PFedRec", "FedRAP"} <= labels
    for source in made.config.sources:
        assert made._experiment(source, "validation").data.part == "validation"
    assert "negatives-leak" in reproduce.NAMES


def test_what_makes_no_sense_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"systems\[2\]"):
        LeakSystem.of({"label": "x", "colour": "red"}, 2)
    with pytest.raises(ConfigError, match="must be a rival or a baseline"):
        LeakSystem("x")
    with pytest.raises(ConfigError, match=r"no \[data\.moon\]"):
        study(tmp_path, sources=("moon",))
    with pytest.raises(ConfigError, match="unknown keys"):
        study(tmp_path, [LeakSystem("x", rival={"name": "fedmf", "colour": 1})])
    with pytest.raises(UsageError, match="GPU"):
        reproduce.check("negatives-leak", "cuda:9")


@pytest.mark.slow
def test_rates_that_run_off_have_no_figures_and_stop_nobody(tmp_path):
    wild = LeakSystem("wild", rival={"name": "fedmf", "item_rate": 1e30, "rounds": 12})
    found = negatives_leak(study(tmp_path / "cells", [wild, SYSTEMS[2]]), tmp_path / "out")
    rows = {(row["system"], row["way"]): row for row in found["rows"]}
    assert rows["wild", "fair"]["sampled HR@10"] is None
    assert rows["Top-Pop", "baseline"]["sampled HR@10"] > 0
    assert found["claims"] == []
    assert "ran off to infinity" in (tmp_path / "out" / "report.html").read_text()
