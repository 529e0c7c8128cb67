"""Studies as data: files, cells by content, the runner, claims, tables and figures."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.baselines import TopPop
from sottovoce.errors import ConfigError, DataNotFound, Diverged
from sottovoce.rng import Streams
from sottovoce_papers import claims, lines
from sottovoce_papers.cells import Cells, differing
from sottovoce_papers.claims import StudyLine
from sottovoce_papers.files import SECTIONS, StudyFile, installed, run
from sottovoce_papers.lines import END, Job, Kind, TrainedSystem
from sottovoce_papers.worlds import StudyData, StudyWorld, laid_over

TABLE = {
    "title": "a study",
    "reading": "read it so",
    "data": {"town": {"source": "town"}},
    "systems": {
        "popular": {"label": "Top-Pop", "kind": "baseline", "settings": {"name": "top-pop"}},
        "near": {
            "label": "User-kNN",
            "kind": "baseline",
            "settings": {"name": "user-knn"},
            "grid": {"neighbors": [5, 20]},
            "words": "k={neighbors}",
        },
    },
    "study": {"chosen_by": "P@10"},
    "tables": [{"title": "On {data}", "columns": ["system", {"key": "P@10", "format": ".4f"}]}],
}


def quiet(what, done, total):
    pass


def made(name, table, folder):
    return run(name, table, Cells(folder / "cells", 2, quiet), folder / "out")


# --- cells ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Before:
    rate: float = 0.1
    parts: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Now(Before):
    other: str = "new"
    inner: Before = field(default_factory=Before)


def test_a_key_has_what_differs_from_defaults_so_that_new_fields_change_none():
    assert differing(Before(0.2)) == {"": "Before", "rate": 0.2}
    assert differing(Now(0.2)) == {"": "Now", "rate": 0.2}
    assert differing(Now(inner=Before(parts=(2,)))) == {
        "": "Now",
        "inner": {"": "Before", "parts": [2]},
    }
    assert json.dumps(differing({"a": (np.float64(1.5), None)})) == '{"a": [1.5, null]}'


class Counted(Kind):
    """Top-Pop, which says how often it was trained, and diverges where it is told to."""

    trained: ClassVar[list] = []

    def key(self, job):
        return dict(job.settings)

    def train(self, job):
        Counted.trained.append((job.settings.get("at"), job.part, job.seed))
        if job.settings.get("at") == "infinity":
            raise Diverged("all numbers are lost")
        if pause := job.settings.get("pause"):
            time.sleep(pause)
        scorer = TopPop().fit(job.split.train, Streams.from_seed(job.seed))
        return TrainedSystem({END: job.measure(scorer)}, {"seed": job.seed})


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setitem(lines.KINDS, "counted", f"{__name__}:Counted")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Counted.__module__])
    monkeypatch.setattr(lines, "named", lambda place: Counted)
    Counted.trained = []
    return Counted.trained


def study_of(*settings, seeds=(0,)):
    systems = {
        f"s{n}": {"label": f"S{n}", "kind": "counted", "settings": one}
        for n, one in enumerate(settings)
    }
    return {**TABLE, "systems": systems, "study": {"seeds": list(seeds)}}


def test_nothing_is_trained_twice_and_studies_share_cells(counted, tmp_path):
    first = made("one", study_of({"at": "a"}, {"at": "b"}, seeds=(0, 1)), tmp_path)
    assert len(counted) == 4
    again = made("two", study_of({"at": "b"}, {"at": "c"}, seeds=(1, 0)), tmp_path)
    assert len(counted) == 6
    assert again["rows"][0]["P@10"] == first["rows"][1]["P@10"]


def test_a_cell_that_diverges_is_one_sentence_and_takes_nothing_with_it(counted, tmp_path):
    table = study_of({"at": "a"}, {"at": "infinity"}, {"at": "b"})
    found = made("lost", table, tmp_path)
    assert [row.get("P@10") is None for row in found["rows"]] == [False, True, False]
    assert "S1 on town, seed 0: all numbers are lost" in found["tables"][0].notes
    assert "–" in str(found["tables"][0])
    made("lost", table, tmp_path)
    assert len(counted) == 3, "what diverged is remembered"


def test_lists_of_other_lengths_are_other_cells(counted, tmp_path):
    table = study_of({"at": "a"})
    short = made("short", table, tmp_path)["rows"]
    table["data"] = {"town": {"source": "town", "cutoffs": [2, 10]}}
    both = made("both", table, tmp_path)["rows"]
    assert "HR@2" not in short[0]
    assert both[0]["HR@2"] <= both[0]["HR@10"] == short[0]["HR@10"]


def test_what_diverges_on_validation_is_not_chosen(counted, tmp_path):
    table = study_of({})
    table["systems"]["s0"]["grid"] = {"at": ["infinity", "a"]}
    table["study"]["chosen_by"] = "P@10"
    assert made("choice", table, tmp_path)["rows"][0]["at"] == "a"


def test_a_missing_data_set_is_left_out_with_a_sentence(counted, tmp_path, monkeypatch):
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path))
    table = study_of({"at": "a"})
    table["data"] = {"moon": {"source": "the-moon"}, "town": {"source": "town"}}
    found = made("moon", table, tmp_path)
    assert [row["data"] for row in found["rows"]] == ["town"]
    (note,) = found["tables"][0].notes
    assert note.startswith("moon is left out: ")
    with pytest.raises(DataNotFound, match="moon is left out"):
        made("moon", {**table, "data": {"moon": {"source": "the-moon"}}}, tmp_path)


CHILD = """
import sys, time
from pathlib import Path
from sottovoce_papers.cells import Cells
from sottovoce_papers.files import run
from sottovoce_papers import kinds
fit = kinds.BaselineKind.train
def slow(self, job):
    print("training", flush=True)
    time.sleep(float(sys.argv[2]))
    return fit(self, job)
kinds.BaselineKind.train = slow
import json
table = json.loads(sys.argv[3])
folder = Path(sys.argv[1])
found = run("child", table, Cells(folder / "cells", 1, lambda *_: None), folder / "out")
print(json.dumps([row["P@10"] for row in found["rows"]]), flush=True)
"""


def child(folder, pause):
    command = [sys.executable, "-c", CHILD, os.fspath(folder), str(pause), json.dumps(TABLE)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_killed_study_goes_on_to_the_same_figures(tmp_path):
    killed = child(tmp_path, 0.3)
    for _ in range(2):  # the second training has begun, so that the first one is kept
        assert killed.stdout.readline() == "training\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait(20)
    killed.stdout.close()
    assert len(list((tmp_path / "cells").glob("*.npz"))) == 1
    resumed, _ = child(tmp_path, 0.0).communicate(timeout=60)
    fresh, _ = child(tmp_path / "other", 0.0).communicate(timeout=60)
    assert resumed.count("training") == fresh.count("training") - 1 == 3
    assert resumed.splitlines()[-1] == fresh.splitlines()[-1]


@pytest.mark.slow
def test_two_processes_on_one_study_train_every_cell_once(tmp_path):
    both = [child(tmp_path, 0.5) for _ in range(2)]
    told = [one.communicate(timeout=60)[0] for one in both]
    assert sum(words.count("training") for words in told) == 4
    assert told[0].splitlines()[-1] == told[1].splitlines()[-1]


# --- files ---------------------------------------------------------------------------------------


TOWN = StudyWorld("town", StudyData("town"))


def varied(study, system):
    """The first value of each setting that entries vary for a system."""
    return {
        name: values[0]
        for entries in study.table.get("sets", {}).values()
        for entry in entries
        for name, values in entry.get("vary", {}).items()
        if system.key in entry.get("systems", [one.key for one in study.systems])
    }


STUDIES = [name for name in reproduce.NAMES if "title" in installed(name)]


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("quick", [True, False])
def test_every_file_is_a_study(name, quick):
    table = installed(name, quick)
    study = StudyFile(name, table)
    assert len(table["reading"]) > 80
    assert table["reading"] == installed(name)["reading"]
    for entry in table.get("sets", {}).values():
        keys = {key for one in entry for key in one.get("systems", ())}
        assert keys <= {system.key for system in study.systems}
    writes = [table["writes"]] if "writes" in table else []
    for place in [*table.get("add", ()), *table.get("rows", {}).values(), *writes]:
        assert callable(lines.named(place))
    for claim in table.get("claims", ()):
        assert ("test" in claim and callable(lines.named(claim["test"]))) or "text" in claim


@pytest.mark.parametrize("name", STUDIES)
def test_every_setting_of_every_file_is_one_of_its_kind(name):
    for quick in (True, False):
        study = StudyFile(name, installed(name, quick))
        own = next((one for one in study.worlds.values() if type(one) is not StudyData), None)
        world = TOWN if own is None else own.world("own")
        for system in study.systems:
            kind = lines.named(lines.KINDS[system.kind])()
            for over in ({}, *system.at.values()):
                settings = laid_over(system.settings, over.get("settings", {}))
                for grid in (over["grid"],) if "grid" in over else system.grids or ({},):
                    values = {k: v[0] for k, v in grid.items() if not isinstance(v, str)}
                    more = varied(study, system)
                    one = kind.prepared({**settings, **values, **more}, world)
                    bare = {k: v for k, v in one.items() if k != kind.along(one)}
                    differing(kind.key(Job(world, bare, "test", 0, (), None)))


def test_a_table_of_ones_own_is_a_file(tmp_path, monkeypatch):
    place = tmp_path / "mine.toml"
    place.write_text(
        'title = "mine"\nreading = "so"\n[data.town]\n[systems.a]\nlabel = "Top-Pop"\n'
        'kind = "baseline"\nsettings = { name = "top-pop" }\n[[tables]]\ntitle = "Mine"\n'
        'columns = ["system", "P@10"]\n[quick.study]\nseeds = [3]\n'
    )
    given = {"quick": True, "out": tmp_path / "out", "threads": 1, "report": quiet}
    found = reproduce.run(str(place), **given)
    assert (found["name"], found["rows"][0]["system"]) == ("mine", "Top-Pop")
    other = reproduce.run(str(place), **given, settings=["systems.a.label=popular"])
    assert other["rows"][0]["system"] == "popular"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"titel": "x"}, "knows no"),
        ({"study": {"data": ["moon"]}}, r"no \[data.moon\]"),
        ({"systems": {"a": {"label": "A"}}}, "needs a label and a kind"),
        ({"systems": {"a": {"label": "A", "kind": "guess"}}}, "has no kind"),
        ({"sets": {"main": [{"systems": ["x"]}]}}, r"no \[systems.x\]"),
        ({"claims": [{"text": "x", "is": "so"}]}, "none of above"),
        ({"claims": [{"text": "x", "is": "value", "set": "y"}]}, "no set of rows 'y'"),
    ],
)
def test_what_makes_no_sense_is_said(tmp_path, change, words):
    with pytest.raises(ConfigError, match=words):
        made("nonsense", {**TABLE, **change}, tmp_path)
    assert "tables" in SECTIONS


def test_settings_are_chosen_on_validation_and_told_in_words(tmp_path):
    found = made("town", TABLE, tmp_path)
    assert found["rows"][1]["settings"] in ("k=5", "k=20")
    assert list(found) == [
        "name", "data", "protocol", "rows", "claims", "figures", "tables", "report",
    ]  # fmt: skip
    assert found["tables"][0].title == "On town"
    assert "On town" in Path(found["report"]).read_text()


# --- claims --------------------------------------------------------------------------------------

ROWS = [
    {"system": "a", "k": 1, "figure": 0.10},
    {"system": "a", "k": 2, "figure": 0.30},
    {"system": "b", "k": 1, "figure": 0.20},
    {"system": "b", "k": 2, "figure": 0.15},
]


@pytest.mark.parametrize(
    ("spec", "holds"),
    [
        ({"is": "value", "least": 0.1}, [True]),
        ({"is": "value", "least": 0.2, "best": True}, [True]),
        ({"is": "value", "below": 0.2, "count": 2}, [True]),
        ({"is": "value", "about": 0.1, "spare": 0.01, "of": {"system": "a", "k": 1}}, [True]),
        ({"is": "value", "most": 0.2, "each": ["system"]}, [False, True]),
        ({"is": "value", "most": 0.1, "each": ["system"], "where": {"k": 1}}, [True, False]),
        ({"is": "course", "along": "k", "within": ["system"]}, [False]),
        ({"is": "course", "along": "k", "within": ["system"], "spare": 0.06}, [True]),
        ({"is": "above", "pairs": [["a", "b"]], "each": ["k"]}, [False, True]),
        ({"is": "above", "pairs": [["a", "b"]], "where": {"k": 2}, "ratio": 2.0}, [True]),
        ({"is": "above", "pairs": [["a", "b"]], "where": {"k": 2}, "ratio": 2.1}, [False]),
        ({"is": "above", "pairs": [["a", "b"]],
          "peak": {"metric": "figure", "within": ["system"]}}, [True]),
        ({"is": "value", "least": 1.0, "of": {"system": "c"}}, []),
    ],
)  # fmt: skip
def test_kinds_of_claims(spec, holds):
    lines_ = {"main": [StudyLine(dict(row)) for row in ROWS]}
    found = claims.tested({"text": "it is so", "metric": "figure", **spec}, lines_)
    assert [one["holds"] for one in found] == holds
