"""The benchmark on a small town: rows, what they cost, and rows that others add."""

import json
from types import SimpleNamespace

import pytest

import sottovoce_papers as reproduce
from sottovoce.cli import call
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.errors import ConfigError, DataError
from sottovoce.experiment import Experiment
from sottovoce_papers.benchmark import added_rows, benchmark, merged
from sottovoce_papers.benchmark_cells import (
    BenchmarkConfig,
    BenchmarkStudy,
    BenchmarkSystem,
    answers_digest,
)


def quiet(what, done, total):
    pass


TOWN = generate_town(TownConfig(residents=120, venues=80))
TABLES = [
    {"label": "Top-Pop", "baseline": {"name": "top-pop"}},
    {"label": "pFPL+", "preset": "presets/pfpl-plus", "algorithm": {"epochs": 2},
     "at": {"town": {"algorithm": {"embedding_size": 4}}}},
    {"label": "gram", "algorithm": {"name": "gram"}, "link": {"min_devices": 50},
     "release": {"epsilon": 4.0}, "consent": {"epsilon": 4.0}},
    {"label": "FedMF", "rival": {"name": "fedmf", "rounds": 5},
     "grid": {"item_rate": [0.1, 1e30]}},
    {"label": "elsewhere", "baseline": {"name": "random"}, "sources": ["moon"], "why": "far away"},
]  # fmt: skip
SYSTEMS = [BenchmarkSystem.of(table, number) for number, table in enumerate(TABLES)]


def study(place, systems=SYSTEMS, **more):
    settings = BenchmarkConfig(**{"sources": ("town",), **more})
    made = BenchmarkStudy(settings, {"town": {"source": "town"}}, systems, place, 1, quiet)
    made._loaded["town"] = TOWN
    return made


@pytest.fixture(scope="module")
def small():
    """Everything that a benchmark learns from is the small town."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Experiment, "dataset", lambda self, *_: TOWN)
        yield


@pytest.fixture(scope="module")
def found(small, tmp_path_factory):
    place = tmp_path_factory.mktemp("benchmark")
    return SimpleNamespace(place=place, told=benchmark(study(place / "cells"), place / "out"))


def rows_of(told):
    return {row["system"]: row for row in told["rows"]}


def test_rows_have_accuracy_bytes_and_epsilon(found):
    rows = rows_of(found.told)
    assert [row["kind"] for row in rows.values()].count("ours") == 2
    assert set(rows) == {"Top-Pop", "pFPL+", "gram", "FedMF"}
    for row in rows.values():
        assert 0 <= row["NDCG@10"] <= 1
        assert row["NDCG@10 half"] > 0
        assert row["attacks"] == "not attacked"
    assert rows["Top-Pop"]["up"] is None
    assert rows["FedMF"]["up"] == 4 * 32 * 5 * rows_items()
    assert rows["FedMF"]["settings"]["item_rate"] == 0.1  # the other one runs off to infinity
    assert (rows["FedMF"]["epsilon"], rows["FedMF"]["bound"]) == (None, "no bound")
    assert rows["pFPL+"]["epsilon"] is None
    assert rows["pFPL+"]["up"] > 0
    assert 0 < rows["gram"]["epsilon"] <= 4.0
    assert rows["pFPL+"]["settings"]["algorithm"]["embedding_size"] == 4
    assert len({row["test"] for row in rows.values()}) == 1


def rows_items():
    return Experiment.from_table({}).split(TOWN).train.n_items


def test_the_page_the_plot_and_the_file_are_there(found):
    assert "data:image/svg+xml;base64," in (found.place / "out" / "report.html").read_text()
    written = json.loads((found.place / "out" / "benchmark.json").read_text())
    assert written["rows"] == json.loads(json.dumps(found.told["rows"]))
    assert "elsewhere is not here: far away." in found.told["tables"][0].notes
    assert any("Top-Pop" in one["claim"] for one in found.told["claims"])


def test_rivals_that_were_cut_short_are_no_proof_of_anything(found):
    told = benchmark(study(found.place / "cells", rounds=1), found.place / "short")
    assert told["claims"] == []
    assert any("for a look" in note for note in told["tables"][0].notes)


def test_nothing_is_trained_twice(found, monkeypatch):
    monkeypatch.setattr(BenchmarkStudy, "_measured", lambda *_: pytest.fail("trained again"))
    again = benchmark(study(found.place / "cells"), found.place / "again")
    assert again["rows"] == found.told["rows"]


def mine(found, **more):
    test = found.told["rows"][0]["test"]
    return {"data": "town", "system": "mine", "test": test, "NDCG@10": 0.5, **more}


def written(place, *rows, **more):
    place.write_text(
        json.dumps({"format": "sottovoce-benchmark", "version": 1, "rows": rows, **more})
    )
    return place


def test_rows_of_others_are_added_and_stay_in_the_file(found, tmp_path, monkeypatch):
    monkeypatch.setattr(BenchmarkStudy, "_measured", lambda *_: pytest.fail("trained again"))
    path = written(tmp_path / "mine.json", mine(found, up=10, epsilon=1.0, source="a paper"))
    told = benchmark(study(found.place / "cells"), tmp_path / "out", [path])
    first = told["rows"][0]
    assert (first["system"], first["kind"], first["epsilon"]) == ("mine", "others", 1.0)
    assert len(told["rows"]) == 5
    # The file can be added to again: by whoever has no row of the same name.
    others = [row for row in told["rows"] if row["system"] == "mine"]
    assert added_rows(tmp_path / "out" / "benchmark.json", told["sets"])[0] == {
        **others[0], "kind": "others",
    }  # fmt: skip
    with pytest.raises(DataError, match="already"):
        merged(found.told["rows"], [mine(found, system="FedMF")])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"test": "0000"}, "other held-out items"),
        ({"data": "moon"}, "no data set moon"),
        ({"NDCG@10": None}, "lacks NDCG@10"),
        ({"NDCG@10": 1.5}, "between 0 and 1"),
        ({"NDCG@10": True}, "must be a number"),
        ({"up": -1}, "must be a number from 0"),
        ({"epsilon": "none"}, "must be a number"),
        ({"colour": "red"}, "unknown fields"),
        ({"source": 3}, "must be text"),
    ],
)
def test_rows_that_cannot_be_compared_are_refused(found, tmp_path, more, words):
    path = written(tmp_path / "mine.json", mine(found), mine(found, **more))
    with pytest.raises(DataError, match=words) as told:
        added_rows(path, found.told["sets"])
    assert "rows[1]" in str(told.value)


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"format": "sottovoce-benchmark"}', "[" * 9999])
def test_files_that_are_none_are_refused_in_one_sentence(tmp_path, text):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(DataError):
        added_rows(path, {})
    with pytest.raises(DataError, match="cannot be read"):
        added_rows(tmp_path / "nothing.json", {})


def test_the_digest_is_of_the_test_part_alone():
    split = Experiment.from_table({}).split(TOWN)
    other = Experiment.from_table({"data": {"test_fraction": 0.3}}).split(TOWN)
    assert answers_digest(split) == answers_digest(Experiment.from_table({}).split(TOWN))
    assert answers_digest(split) != answers_digest(other)


def test_the_command_narrows_and_refuses(small, tmp_path, monkeypatch, capsys):
    arguments = ["benchmark", "--quick", "--out", str(tmp_path / "out"), "--systems"]
    assert call([*arguments, "Top-Pop", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["system"] for row in told["rows"]] == ["Top-Pop"]
    assert told["rows"][0]["data"] == "movielens-100k"
    assert call([*arguments, "Top-Pap"]) == ConfigError.exit_code
    assert "no system 'Top-Pap'" in capsys.readouterr().err
    assert call(["benchmark", "--sets", "moon", "--out", str(tmp_path / "out")]) != 0
    assert "no data set moon" in capsys.readouterr().err


@pytest.mark.parametrize("quick", [False, True])
def test_the_installed_file_makes_sense(tmp_path, quick):
    made = BenchmarkStudy.read("benchmark", quick, tmp_path, 1, quiet)
    assert len(made.config.sources) == (1 if quick else 5)
    for source in made.config.sources:
        for system in made.systems_of(source):
            made._experiment(source, system.sections_at(source), 0)
    kinds = [system.kind for system in made.systems]
    assert (kinds.count("rival"), kinds.count("central")) == (4, 7)
    assert "benchmark" in reproduce.NAMES
    with pytest.raises(ConfigError, match=r"systems\[7\]"):
        BenchmarkSystem.of({"label": "x", "colour": "red"}, 7)
    with pytest.raises(ConfigError, match="must be one of"):
        BenchmarkSystem.of({"label": "x", "rival": {}, "baseline": {}}, 0)
