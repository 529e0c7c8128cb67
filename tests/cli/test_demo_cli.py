"""The demo: a resident with a hit, scores that can be read, commands that can be pasted."""

import contextlib
import copy
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sottovoce.cli
from sottovoce import config
from sottovoce.cli import output
from sottovoce.experiment import Experiment, find_experiment
from sottovoce.runs import demo as demos
from sottovoce.runs.standing import origin

SMALL = ["town.residents=300", "town.venues=80"]
FEW = ["town.residents=60", "town.venues=40", "evaluation.k=10"]
SHORT = {"gram": ["link.min_devices=20"], "fpl": ["algorithm.epochs=4"]}
"""Of the papers' systems one is enough: files and commands of all have tests of their own."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """What a demo of a small town prints, in a folder whose name a shell would take apart, and the
    same one as JSON."""
    root = tmp_path_factory.mktemp("a demo's $(folder)")
    run, stories, lines, heard = demos.run_demo, [], [], io.StringIO()

    def run_once(*given, **how):
        stories.extend([] if stories else [run(*given, **how)])
        return stories[0]

    with pytest.MonkeyPatch.context() as patch:
        small = [*SMALL, "link.min_devices=150"]
        town = Experiment.from_file(demos.find_experiment("demo"), small)
        whole = demos.load_papers()
        papers = {
            name: Experiment.from_table(assigned(whole[name].table, [*FEW, *more]))
            for name, more in SHORT.items()
        }
        patch.setattr(demos, "load", lambda: town)
        patch.setattr(demos, "load_papers", lambda: papers)
        patch.setattr(demos, "run_demo", run_once)
        patch.setattr(output, "show", lambda *things: lines.extend(things))
        assert sottovoce.cli.call(["demo", "--out", str(root / "my town")]) == 0
        with contextlib.redirect_stdout(heard):
            assert sottovoce.cli.call(["demo", "--out", str(root / "again"), "--json"]) == 0
    return lines, json.loads(heard.getvalue())


@pytest.fixture(scope="module")
def told(demo):
    return demo[0]


def assigned(table, settings):
    found = copy.deepcopy(dict(table))
    for setting in settings:
        config.assign(found, setting)
    return found


def test_the_papers_systems_are_on_one_town_under_one_protocol():
    """As their commands run them, but for baselines and what DRIFT's lists should find."""
    found = demos.load_papers()
    assert [*found][1:] == [name for name in demos.PAPERS if name in found]
    assert len({(one.town, one.data, one.seed) for one in found.values()}) == 1
    for name in [*found][1:]:
        shipped = Experiment.from_file(find_experiment(f"papers/{name}"))
        assert (found[name].algorithm, found[name].consent) == (shipped.algorithm, shipped.consent)
        assert origin(found[name]) == "as printed"
    assert origin(found["gram"]) == "ours"


def ask(*arguments):
    heard = io.StringIO()
    with contextlib.redirect_stdout(heard):
        assert sottovoce.cli.call([*arguments, "--json"]) == 0
    return json.loads(heard.getvalue())


def test_as_json_it_says_what_the_runs_folder_says(demo):
    told, found = demo
    text = "\n".join(thing for thing in told if isinstance(thing, str))
    assert set(found["results"]) == {"random", "top-pop", "item-knn", "gram"}
    assert list(found["papers"]) == ["random", "top-pop", "gram", "FPL, as printed"]
    assert sum(choice["users"] for choice in found["consent"]) == found["town"]["users"] == 300
    ours, theirs = found["given_away"]["gram"], found["given_away"]["fpl"]
    # Three hundred residents are too few to tell that the other holds.
    assert (ours["verdict"], theirs["verdict"]) == ("underpowered", "broken")
    assert f"AUC of {ours['value']:.2f}" in text
    assert f"{theirs['claims']:,} names are right" in text
    user, run = found["resident"]["user"], found["run"]
    assert (
        ask("recommend", run, "--user", user)["recommendations"]
        == (found["resident"]["recommendations"])
    )
    assert ask("ledger", run)["totals"] == found["ledger"]
    assert ask("ledger", run, "--user", user)["totals"] == found["resident"]["sent"]
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", Path(found["report"]).read_text())


def test_every_printed_command_can_be_pasted(told, monkeypatch):
    text = "\n".join(thing for thing in told if isinstance(thing, str))
    lines = [line.removeprefix("Next:").strip() for line in text.splitlines()]
    found = [line for line in lines if re.search(r"\b(recommend|ledger|attack) ", line)]
    commands = [line for line in found if "--" in line]
    assert len(commands) == 3
    called = []
    monkeypatch.setattr(output, "show", lambda *things: called.extend(things))
    for command in commands:
        # As a shell takes it apart; the program itself is tried below.
        asked = f'printf "%s\\0" {command}'
        words = subprocess.run(["bash", "-c", asked], capture_output=True, check=True, text=True)
        line = words.stdout.split("\0")[:-1]
        start = next(k for k, word in enumerate(line) if word in ("recommend", "ledger", "attack"))
        assert sottovoce.cli.call(line[start:]) == 0, command
    assert called


@pytest.mark.parametrize("known", [True, False])
def test_a_command_names_a_program_that_is_there(known, monkeypatch, tmp_path):
    here = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(here) if known else str(tmp_path))
    program = shlex.split(output.command("recommend", "a b", "--user", "x"))
    assert program[-4:] == ["recommend", "a b", "--user", "x"]
    there = (here / "sottovoce").is_file()
    if known and there:
        assert program[0] == "sottovoce"
    else:
        assert Path(program[0]).is_file()
    if not there:
        assert program[1:3] == ["-m", "sottovoce"]


def test_the_resident_was_chosen_and_has_a_hit(told):
    text = " ".join(thing for thing in told if isinstance(thing, str))
    assert "She was chosen: the first who takes part" in text
    (table,) = (
        thing for thing in told
        if not isinstance(thing, str) and "computed on the device" in thing.title
    )  # fmt: skip
    assert any(row["later"] == "yes" for row in table.rows)
    scores = [row["score"] for row in table.rows]
    assert scores[0] == pytest.approx(100.0)
    assert (np.diff(scores) <= 1e-6).all()
    assert min(scores) > 0
    shown = [texts[3] for texts, _ in table._shown()]
    assert all(re.fullmatch(r"\d{1,3}", one) for one in shown)
    assert "100 is the first place" in table.notes[0]
