"""The study of shipped presets, on the town and a data set that is not here."""

import pytest

import sottovoce_papers as reproduce
from sottovoce.errors import ConfigError, DataNotFound
from sottovoce_papers.presets import PresetsConfig, PresetsStudy, ShippedSystem, presets

SYSTEMS = [
    ShippedSystem("Top-Pop", baseline={"name": "top-pop"}),
    ShippedSystem("item kNN", baseline={"name": "item-knn"}, central=True),
    ShippedSystem("user kNN", baseline={"name": "user-knn"}, central=True),
    ShippedSystem(
        "pFPL+, two rounds", "presets/pfpl-plus", lay={"algorithm": {"rounds": 2}}, least=0.999
    ),
]
DATA = {"town": {"source": "town"}, "moon": {"source": "moon"}}


def quiet(what, done, total):
    pass


def study(place, *sources):
    return PresetsStudy(PresetsConfig(sources, (7,)), DATA, SYSTEMS, place, 1, quiet)


def test_rows_shares_and_what_is_not_here(tmp_path, monkeypatch):
    found = presets(study(tmp_path / "cells", "town", "moon"), tmp_path / "out")
    best, floor, own = found["rows"]
    assert best["system"].startswith("best central (")
    assert (best["share"], floor["system"]) == (1.0, "Top-Pop")
    assert own["share"] == own["NDCG@10"] / best["NDCG@10"] < 1.0
    median, silent = found["claims"]
    assert not median["holds"]  # it is not nearly the best after two rounds
    assert silent["holds"]
    assert own["warned"]
    assert "moon is left out" in found["tables"][0].notes[0]
    monkeypatch.setattr(PresetsStudy, "_train", lambda *_: pytest.fail("trained again"))
    assert study(tmp_path / "cells", "town").rows() == found["rows"]


def test_no_data_at_all_is_said(tmp_path):
    with pytest.raises(DataNotFound, match="moon is left out"):
        presets(study(tmp_path, "moon"), tmp_path)


def test_a_system_is_a_file_or_a_baseline():
    with pytest.raises(ConfigError, match="either a preset or a baseline"):
        ShippedSystem("x")
    with pytest.raises(ConfigError, match="either a preset or a baseline"):
        ShippedSystem("x", preset="presets/fcf", baseline={"name": "top-pop"})


@pytest.mark.parametrize("quick", [False, True])
def test_the_installed_file_makes_sense(tmp_path, quick):
    made = PresetsStudy.read("presets", quick, tmp_path, 1, quiet)
    assert sum(system.central for system in made.systems) > 1
    for source in made.config.sources:
        for system in made.systems:
            assert made.experiment(source, 3, system).seed == 3
    assert "presets" in reproduce.NAMES
