"""The benchmark on a small town: rows, what they cost, and rows that others add."""

import json
from types import SimpleNamespace

import pytest

from sottovoce.cli import call
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.errors import ConfigError, DataError
from sottovoce.experiment import Experiment
from sottovoce_papers.benchmark import added_rows, answers_digest, merged, narrowed
from sottovoce_papers.cells import Cells
from sottovoce_papers.costs import CostKind
from sottovoce_papers.files import installed, run
from sottovoce_papers.rivals import RivalKind, rival_of


def quiet(what, done, total):
    pass


TOWN = generate_town(TownConfig(residents=120, venues=80))
SYSTEMS = {
    "top-pop": {
        "label": "Top-Pop",
        "kind": "costs",
        "row": {"kind": "central"},
        "settings": {"baseline": {"name": "top-pop"}},
    },
    "pfpl-plus": {
        "label": "pFPL+",
        "kind": "costs",
        "row": {"kind": "ours"},
        "settings": {"preset": "tuned/fpl", "lay": {"algorithm": {"epochs": 2}}},
        "at": {"town": {"settings": {"lay": {"algorithm": {"embedding_size": 4}}}}},
    },
    "gram": {
        "label": "gram",
        "kind": "costs",
        "row": {"kind": "ours"},
        "settings": {
            "algorithm": {"name": "gram"},
            "link": {"min_devices": 50},
            "release": {"epsilon": 4.0},
            "consent": {"epsilon": 4.0},
        },
    },
    "fedmf": {
        "label": "FedMF",
        "kind": "rival",
        "row": {"kind": "rival"},
        "settings": {"name": "fedmf", "rounds": 5},
        "grid": {"item_rate": [0.1, 1e30]},
    },
    "elsewhere": {
        "label": "elsewhere",
        "kind": "costs",
        "row": {"kind": "central"},
        "settings": {"baseline": {"name": "random"}},
        "data": ["moon"],
        "why": "far away",
    },
}


def table(quick=False):
    data = {"town": {"source": "town"}, "moon": {"source": "town"}}
    study = {"data": ["town"], "chosen_by": "NDCG@10"}
    return {**installed("benchmark", quick), "systems": SYSTEMS, "data": data, "study": study}


def made(place, out, changed=None):
    return run("benchmark", changed or table(), Cells(place / "cells", 1, quiet), place / out)


@pytest.fixture(scope="module")
def small():
    """Everything that a benchmark learns from is the small town."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Experiment, "dataset", lambda self, *_: TOWN)
        yield


@pytest.fixture(scope="module")
def found(small, tmp_path_factory):
    place = tmp_path_factory.mktemp("benchmark")
    return SimpleNamespace(place=place, told=made(place, "out"))


@pytest.fixture
def no_training(monkeypatch):
    for kind in (CostKind, RivalKind):
        monkeypatch.setattr(kind, "train", lambda *_: pytest.fail("trained again"))


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
    n_items = Experiment.from_table({}).split(TOWN).train.n_items
    assert rows["FedMF"]["up"] == 4 * 32 * 5 * n_items
    assert rows["FedMF"]["settings"]["item_rate"] == 0.1  # the other one runs off to infinity
    assert (rows["FedMF"]["epsilon"], rows["FedMF"]["bound"]) == (None, "no bound")
    assert rows["pFPL+"]["epsilon"] is None
    assert rows["pFPL+"]["up"] > 0
    assert 0 < rows["gram"]["epsilon"] <= 4.0
    assert rows["pFPL+"]["settings"]["lay"]["algorithm"]["embedding_size"] == 4
    assert len({row["test"] for row in rows.values()}) == 1
    scores = [row["NDCG@10"] for row in found.told["rows"]]
    assert scores == sorted(scores, reverse=True)


def test_the_page_the_plot_and_the_file_are_there(found):
    assert "data:image/svg+xml;base64," in (found.place / "out" / "report.html").read_text()
    written = json.loads((found.place / "out" / "benchmark.json").read_text())
    assert written["rows"] == json.loads(json.dumps(found.told["rows"]))
    assert "elsewhere is not on town: far away." in found.told["tables"][0].notes
    assert any("Top-Pop" in one["claim"] for one in found.told["claims"])


def test_rivals_that_are_cut_short_are_no_proof_of_anything(found, no_training):
    told = made(found.place, "short", table(quick=True))
    assert told["claims"] == []
    assert "a look alone" in told["protocol"]
    whole, quick = (installed("benchmark", q)["systems"] for q in (False, True))
    for key, one in quick.items():
        rounds = (rival_of(t["settings"]).rounds for t in (whole[key], one) if t["kind"] == "rival")
        assert [*rounds] in ([], [100, 3])


def mine(found, **more):
    test = found.told["rows"][0]["test"]
    return {"data": "town", "system": "mine", "test": test, "NDCG@10": 0.5, **more}


def written(place, *rows, **more):
    place.write_text(
        json.dumps({"format": "sottovoce-benchmark", "version": 1, "rows": rows, **more})
    )
    return place


def test_rows_of_others_are_added_and_stay_in_the_file(found, tmp_path, no_training):
    path = written(tmp_path / "mine.json", mine(found, up=10, epsilon=1.0, source="a paper"))
    with_mine = narrowed(table(), [], [], attacks=False, add=[path])
    told = made(found.place, "added", with_mine)
    first = told["rows"][0]
    assert (first["system"], first["kind"], first["epsilon"]) == ("mine", "others", 1.0)
    assert len(told["rows"]) == 5
    # The file can be added to again, if no row has the same name.
    others = [row for row in told["rows"] if row["system"] == "mine"]
    assert added_rows(found.place / "added" / "benchmark.json", told["sets"])[0] == {
        **others[0],
        "kind": "others",
    }
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


def test_the_command_narrows_and_refuses(small, tmp_path, capsys):
    arguments = ["benchmark", "--quick", "--out", str(tmp_path / "out"), "--systems"]
    assert call([*arguments, "Top-Pop", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["system"] for row in told["rows"]] == ["Top-Pop"]
    assert told["rows"][0]["data"] == "movielens-100k"
    assert call([*arguments, "Top-Pap"]) == ConfigError.exit_code
    assert "no system 'Top-Pap'" in capsys.readouterr().err
    assert call(["benchmark", "--sets", "moon", "--out", str(tmp_path / "out")]) != 0
    assert "no data set moon" in capsys.readouterr().err


def test_attacks_are_asked_for_of_systems_of_ours():
    changed = narrowed(table(), [], ["gram", "top-pop"], attacks=True, add=[])
    assert changed["sets"]["main"] == [{"systems": ["gram", "top-pop"]}]
    attacked = {key for key, one in changed["systems"].items() if one["settings"].get("attacks")}
    assert attacked == {"pfpl-plus", "gram"}
