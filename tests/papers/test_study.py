"""What all studies share: cells that last, and files."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from sottovoce.cli import output
from sottovoce_papers.cells import Cells
from sottovoce_papers.claims import plus_minus
from sottovoce_papers.worlds import laid_over


def quiet(what, done, total):
    pass


@pytest.fixture
def study(tmp_path):
    return Cells(tmp_path / "cells", 2, quiet)


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
    assert not study.has(["a"])
    go.set()
    for one in ask:
        one.join(20)
    assert [int(one["x"]) for one in found] == [7, 7, 7]
    assert len(trained) == 1
    assert study.has(["a"])
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
    study = Cells(tmp_path, 3, lambda *done: told.append(done))
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


def test_one_seed_has_no_interval():
    assert plus_minus([0.25]) == "0.2500"
    assert plus_minus([0.2, 0.3]) == "0.2500 ± 0.6353"
