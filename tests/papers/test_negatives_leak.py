"""The study of the leak, on the town."""

import json

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.errors import ConfigError, UsageError
from sottovoce.experiment import Experiment
from sottovoce_papers.cells import Cells
from sottovoce_papers.files import StudyFile, installed, run
from sottovoce_papers.lines import TrainedSystem
from sottovoce_papers.rivals import RivalKind, rival_of


def quiet(what, done, total):
    pass


TOWN = generate_town(TownConfig(residents=150, venues=160))
DATA = {"town": {"source": "town", "split": "leave-one-out", "candidates": 99}}
SYSTEMS = {
    "counting": {
        "label": "counts",
        "kind": "rival",
        "settings": {"name": "counting", "rounds": 25},
    },
    "fedmf": {
        "label": "FedMF",
        "kind": "rival",
        "settings": {"name": "fedmf", "rounds": 5},
        "grid": {"item_rate": [0.001, 1e30]},
    },
    "wild": {
        "label": "wild",
        "kind": "rival",
        "settings": {"name": "fedmf", "item_rate": 1e30, "rounds": 12},
    },
    "top-pop": {"label": "Top-Pop", "kind": "leak-baseline", "settings": {"name": "top-pop"}},
}


@pytest.fixture(autouse=True, scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Experiment, "dataset", lambda self, *_: TOWN)
        yield


def table(*keys):
    rivals = [key for key in keys if SYSTEMS[key]["kind"] == "rival"]
    others = [key for key in keys if key not in rivals]
    main = [{"systems": rivals, "vary": {"leak": [False, True]}}, {"systems": others}]
    whole = {name: part for name, part in installed("negatives-leak").items() if name != "printed"}
    study = {"chosen_by": "NDCG@10"}
    return {**whole, "study": study, "data": DATA, "systems": SYSTEMS, "sets": {"main": main}}


def made(place, *keys):
    return run("negatives-leak", table(*keys), Cells(place / "cells", 1, quiet), place / "out")


def rows_of(found):
    return {(row["system"], row["way"]): row for row in found["rows"]}


@pytest.fixture(scope="module")
def found(small, tmp_path_factory):
    place = tmp_path_factory.mktemp("leak")
    return made(place, "counting", "top-pop"), place


@pytest.mark.slow
def test_counting_finds_the_answer_with_the_leak_alone(found):
    rows = rows_of(found[0])
    assert rows["counts", "leak"]["HR@10"] > 0.95
    assert rows["counts", "leak"]["full HR@10"] > 0.5
    assert 0.07 < rows["counts", "fair"]["HR@10"] < 0.13
    assert rows["Top-Pop", "baseline"]["HR@10 half"] > 0
    assert [one["holds"] for one in found[0]["claims"]] == [True]
    assert "data:image/svg+xml;base64," in (found[1] / "out" / "report.html").read_text()
    json.dumps({k: v for k, v in found[0].items() if k != "tables"})


def test_rates_are_chosen_on_the_validation_part_without_the_leak(tmp_path, monkeypatch):
    asked = []

    def train(self, job):
        asked.append((bool(job.settings.get("leak")), job.part, job.settings["item_rate"]))
        return TrainedSystem({0.0: job.measure(Knowing(job.split, job.settings["item_rate"]))}, {})

    monkeypatch.setattr(RivalKind, "train", train)
    monkeypatch.setitem(SYSTEMS["fedmf"], "grid", {"item_rate": [1.0, 3.0, 2.0]})
    found = made(tmp_path, "fedmf")
    assert {rate for _, part, rate in asked if part == "test"} == {3.0}
    assert {(leak, rate) for leak, part, rate in asked if part == "validation"} == {
        (False, 1.0),
        (False, 3.0),
        (False, 2.0),
    }
    assert {row["way"] for row in found["rows"]} == {"fair", "leak"}


class Knowing:
    """A scorer that knows the held-out items of so many users in three."""

    def __init__(self, split, known):
        self.test, self.n_items, self.known = split.test, split.train.n_items, known

    def scores(self, users):
        found = np.zeros((len(users), self.n_items), np.float32)
        for row, user in enumerate(users):
            items = self.test.items[self.test.indptr[user] : self.test.indptr[user + 1]]
            found[row, items[items < self.n_items]] = user % 3 < self.known
        return found


@pytest.mark.slow
def test_rates_that_run_off_are_not_chosen_have_no_figures_and_stop_nobody(tmp_path):
    found = made(tmp_path, "fedmf", "wild", "top-pop")
    rows = rows_of(found)
    assert rows["FedMF", "fair"]["item_rate"] == 0.001
    assert "HR@10" not in rows["wild", "fair"]
    assert rows["Top-Pop", "baseline"]["HR@10"] > 0
    assert not any("wild" in claim["claim"] for claim in found["claims"])
    assert "ran off to infinity" in (tmp_path / "out" / "report.html").read_text()


def test_what_makes_no_sense_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="colour"):
        run(
            "x",
            {
                **table("top-pop"),
                "systems": {"x": {"label": "x", "kind": "rival", "colour": "red"}},
            },
            Cells(tmp_path, 1, quiet),
            tmp_path,
        )
    with pytest.raises(ConfigError, match=r"no \[data\.moon\]"):
        StudyFile("x", {**table("top-pop"), "study": {"data": ["moon"]}})
    with pytest.raises(ConfigError, match="unknown keys"):
        rival_of({"name": "fedmf", "colour": 1})
    with pytest.raises(UsageError, match="GPU"):
        reproduce.check("negatives-leak", "cuda:9")
