"""What all studies share: files, cells that last, claims and results."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sottovoce_papers as reproduce
from sottovoce.cli import output
from sottovoce.evaluation.tables import Column, Table
from sottovoce_papers.study import Study, claim, installed, laid_over, plus_minus, shown


def quiet(what, done, total):
    pass


class Plain(Study):
    prefix = "plain-"

    @classmethod
    def read(cls, name, quick, cells, threads, report, device="cpu"):
        return cls(cells, threads, report)

    def describe(self):
        return "by hand"

    def describe_data(self):
        return "nothing"


@pytest.fixture
def study(tmp_path):
    return Plain(tmp_path / "cells", 2, quiet)


# --- cells ---------------------------------------------------------------------------------------


def test_a_cell_is_trained_once_and_grows(study):
    trained = []

    def train(**found):
        trained.append(found)
        return {name: np.array(value) for name, value in found.items()}

    first = study.kept(["a", 1], ["x"], lambda: train(x=1))
    assert study.kept(["a", 1], ["x"], lambda: train(x=2))["x"] == first["x"] == 1
    both = study.kept(["a", 1], ["x", "y"], lambda: train(y=3))
    assert (int(both["x"]), int(both["y"]), len(trained)) == (1, 3, 2)
    study.kept(["a", 2], ["x"], lambda: train(x=4))
    names = sorted(path.name for path in study.folder.iterdir())
    assert len(names) == 2
    assert all(name.startswith("plain-") for name in names)


def test_two_who_want_a_cell_train_it_once(study):
    trained, begun, go = [], threading.Event(), threading.Event()

    def train():
        trained.append(1)
        begun.set()
        assert go.wait(20)
        return {"x": np.array(7)}

    found = []
    ask = [
        threading.Thread(target=lambda: found.append(study.kept(["a"], ["x"], train)))
        for _ in range(3)
    ]
    for one in ask:
        one.start()
    assert begun.wait(20)
    assert study.busy(["a"])
    assert not study.busy(["b"])
    assert not study.has(["a"])
    go.set()
    for one in ask:
        one.join(20)
    assert [int(one["x"]) for one in found] == [7, 7, 7]
    assert len(trained) == 1
    assert study.has(["a"])
    assert not study.busy(["a"])
    assert len(list(study.folder.iterdir())) == 1


def test_a_process_that_was_killed_holds_nobody_up(study):
    """Its claim lies there still, but nobody has it."""
    study.folder.mkdir()
    claim = study._place(["a"]).with_suffix(".claim")
    code = (
        "import fcntl, os, signal, sys\n"
        "handle = open(sys.argv[1], 'ab')\n"
        "fcntl.flock(handle, fcntl.LOCK_EX)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code, os.fspath(claim)], check=False)
    assert done.returncode == -9
    assert claim.exists()
    assert not study.busy(["a"])
    assert int(study.kept(["a"], ["x"], lambda: {"x": np.array(3)})["x"]) == 3
    assert not claim.exists()


def test_who_fails_lets_go(study):
    def fails():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        study.kept(["a"], ["x"], fails)
    assert not study.has(["a"])
    assert int(study.kept(["a"], ["x"], lambda: {"x": np.array(3)})["x"]) == 3


def test_parts_are_worked_on_in_order_and_reported(tmp_path):
    told = []
    study = Plain(tmp_path, 3, lambda *done: told.append(done))
    assert study.many("squares", lambda n: n * n, [1, 2, 3]) == [1, 4, 9]
    assert told[0] == ("squares", 0, 3)
    assert ("squares", 3, 3) in told


def test_progress_without_a_terminal_is_a_line_now_and_then(monkeypatch, capsys):
    clock = iter([0.0, 1.0, 11.0, 12.0, 25.0])
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with output.progress(lines=True) as report:
        report("attacks", 0, 2_000)
        report("attacks", 1_500, 2_000)
        report("attacks", 1_501, 2_000)
        report("other, seed 3: rounds", 2_000, 2_000)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "Trying attacks: 1,500 of 2,000, about 10 s left", "other, seed 3: rounds: 2,000 of 2,000",
    ]  # fmt: skip
    assert not captured.out


# --- files ---------------------------------------------------------------------------------------


def test_tables_are_laid_over_each_other():
    below = {"study": {"seeds": [0, 1], "alpha": 0.3}, "reading": "x"}
    assert laid_over(below, {"study": {"seeds": [5]}}) == {
        "study": {"seeds": [5], "alpha": 0.3},
        "reading": "x",
    }
    assert below["study"]["seeds"] == [0, 1]


@pytest.mark.parametrize("name", reproduce.PROGRAMS)
def test_every_name_has_a_file_that_says_how_to_read_it_and_a_view(name):
    assert len(installed(name)["reading"]) > 80
    assert installed(name, quick=True)["reading"] == installed(name)["reading"]
    places = reproduce.MODULES[name.split("-")[0]]
    views = [__import__(f"sottovoce_papers.{place}", fromlist=["VIEWS"]) for place in places]
    (module,) = [view for view in views if name in view.VIEWS]
    assert issubclass(module.STUDY, Study)


# --- results -------------------------------------------------------------------------------------


def test_a_result_has_the_shape_that_scripts_rely_on(study, tmp_path):
    rows = [{"system": "ours", "P@10": 0.1, "P@10_paper": 0.2}]
    table = Table("A table", [Column("system"), Column("P@10"), Column("P@10_paper")], rows)
    claims = [claim("it is so", (True, "one"), (False, "two"))]
    found = study.result("fpl-table3", tmp_path / "out", [table], claims, extra=[1])
    assert list(found) == [
        "name", "data", "protocol", "rows", "claims", "extra", "figures", "tables", "report",
    ]  # fmt: skip
    assert found["claims"] == [{"claim": "it is so", "holds": False, "detail": "one; two"}]
    assert found["rows"] == rows
    page = Path(found["report"]).read_text()
    assert "A table" in page
    assert "it is so" in page
    assert "CCE counts item rows" in page
    json.dumps({k: v for k, v in found.items() if k != "tables"})


def test_a_table_shows_some_columns_of_rows():
    table = shown("x", [Column("a"), Column("b")], [{"a": 1, "c": 2}])
    assert table.rows == [{"a": 1, "b": None}]


def test_one_seed_has_no_interval():
    assert plus_minus([0.25]) == "0.2500"
    assert plus_minus([0.2, 0.3]) == "0.2500 ± 0.6353"
