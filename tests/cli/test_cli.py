"""The command line: exit codes, one sentence, one JSON object, quick help, runs that survive."""

import csv
import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import click
import forked
import numpy as np
import pytest
import typer.main
from run_folders import content, same

import sottovoce.cli
from sottovoce.core.interactions import Interactions, Vocabulary
from sottovoce.data.dataset import Dataset, Labels
from sottovoce.data.prepared import write_prepared
from sottovoce.errors import ConfigError, SottovoceError, Told
from sottovoce.runs.folder import RUNNING, RunFolder, load_arrays, save_arrays

COMMAND = [str(Path(sys.executable).with_name("sottovoce"))]
TINY = """
name = "tiny"
seed = 3

[town]
residents = 60
venues = 80
visits_per_resident = 20

[algorithm]
configuration = "pFPL+"
embedding_size = 3
epochs = 2

[consent]
mix = [
  { weight = 1, takes_part = false },
  { weight = 1, share_positives = 0.0 },
  { weight = 1, share_positives = 1.0 },
]

[evaluation]
every_epochs = 1

[baselines.random]
[baselines.top-pop]
"""
LONG = """
name = "long"
seed = 4

[town]
residents = 150
venues = 120
visits_per_resident = 40

[algorithm]
configuration = "pFPL+"
embedding_size = 8
learning_rate = 0.01
epochs = 60

[evaluation]
every_epochs = 1
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A finished run of the tiny experiment, and its file."""
    root = tmp_path_factory.mktemp("tiny")
    file = root / "tiny.toml"
    file.write_text(TINY)
    assert sottovoce.cli.call(["run", str(file), "--out", str(root / "run")]) == 0
    return root


def only_json(text):
    """The one object that a command printed."""
    assert text.endswith("}\n")
    assert text.count("\n") == 1
    content = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert isinstance(content, dict)
    return content


# --- quick and quiet -----------------------------------------------------------------------------

HEAVY = {"numpy", "numba", "scipy", "pyarrow", "matplotlib", "torch", "rich.console"}
SHARED = {f"sottovoce.cli.{name}" for name in ("commands", "options", "output")}


@pytest.mark.parametrize(
    "command",
    ["", "demo", "run", "recommend", "ledger", "report", "reproduce", "benchmark", "bench",
     "data", "data import"],
)  # fmt: skip
def test_help_loads_its_own_command_alone_and_has_an_example(command):
    code = (
        "import sys, sottovoce.__main__\n"
        "try:\n    sottovoce.__main__.main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    words = command.split()
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--help"], capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.split())
    assert not HEAVY & loaded
    made = typer.main.get_command(sottovoce.cli.app)
    for word in words:
        made = made.commands[word]
    if not isinstance(made, click.Group):
        own = {made.callback.__module__, *SHARED}
        assert {name for name in loaded if name.startswith("sottovoce.cli.")} <= own
    assert f"sottovoce {command}".strip() in done.stdout
    assert "Example" in done.stdout or command in ("", "data")


def every_command(group, above=None, name="sottovoce"):
    context = click.Context(group, info_name=name, parent=above, **group.context_settings)
    yield context
    for each in group.list_commands(context) if isinstance(group, click.Group) else ():
        yield from every_command(group.get_command(context, each), context, each)


def test_help_names_arguments_once():
    named = 0
    for context in every_command(typer.main.get_command(sottovoce.cli.app)):
        lines = context.command.get_help(context).splitlines()
        there = any(isinstance(one, click.Argument) for one in context.command.params)
        headings = [line for line in lines if line.lower().endswith("arguments:")]
        assert headings == ["Arguments:"] * there, context.command_path
        named += there
    assert named > 50


def test_a_command_that_is_misspelt_is_suggested_once(sottovoce_):
    for words, meant in ((["dat"], "data"), (["serve", "sever"], "server")):
        code, _, said = sottovoce_(*words)
        assert (code, said.count("Did you mean"), f"'{meant}'" in said) == (2, 1, True)


def test_version(sottovoce_):
    assert sottovoce_("--version") == (0, f"sottovoce {sottovoce.__version__}\n", "")


# --- bad input -----------------------------------------------------------------------------------

BAD_RUNS = [
    (["--set", "algorithm.learning_rate=-1"], 2, "learning_rate"),
    (["--set", "algorithm.learning_rate=fast"], 2, "must be a number"),
    (["--set", "algorithm.speed=1"], 2, "speed"),
    (["--set", "nonsense.a=1"], 2, "nonsense"),
    (["--set", "seed"], 2, "key=value"),
    (["--set", "consent.share_positives=0.5"], 2, "choose one way"),
    (["--set", "seed=1\nname=2"], 2, "repeat --set"),
    (["--set", "algorithm.name=[1]"], 2, "algorithm.name"),
    (["--set", "name=../../x"], 2, "cannot name an experiment"),
    (["--set", "data.min_user_items=-1"], 2, "data.min_user_items"),
    (["--set", "data.test_fraction=0.0001"], 3, "no user has test items"),
    (["--set", "evaluation.candidates=79"], 3, "ask for fewer negatives"),
    (["--set", 'data.source="nowhere"'], 3, "nowhere"),
    (["--engine", "https", "--transcript"], 2, "a transcript needs"),
    (["--engine", "https", "--device", "cuda"], 2, "--device cpu"),
    (["--engine", "https", "--set", "town.residents=600"], 2, "at most 512"),
    (["--processes", "3"], 2, "--engine"),
    (["--engine", "flower", "--processes", "0"], 2, "--processes"),
    (["--engine", "pigeon"], 2, "pigeon"),
    (["--threads", "0"], 2, "--threads"),
    (["--colour"], 2, "--colour"),
]


def one_sentence(code, out, err, expected, words):
    assert code == expected
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(("options", "expected", "words"), BAD_RUNS)
def test_bad_options_give_one_sentence_and_write_nothing(
    sottovoce_, tmp_path, options, expected, words
):
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    answer = sottovoce_("run", file, "--out", tmp_path / "run", *options)
    one_sentence(*answer, expected, words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed = ", "not valid TOML"),
        ("[algorithm]\nnmae = 'fpl'", "nmae"),
        ("[algorithm]\nname = 'magic'", "magic"),
        ("[consent]\nshare_positives = 1.5", "share_positives must lie in [0, 1]"),
        ("[baselines.magic]", "magic"),
        ("[data]\nsplit = 'often'", "often"),
    ],
)
def test_bad_files_give_one_sentence(sottovoce_, tmp_path, text, words):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    one_sentence(*sottovoce_("run", file, "--out", tmp_path / "run"), 2, words)
    assert not (tmp_path / "run").exists()


def test_an_error_is_one_json_object_where_json_was_asked_for(sottovoce_):
    code, out, err = sottovoce_("run", "no-such-file", "--json")
    content = only_json(out)
    assert (code, content["exit_code"], content["kind"]) == (2, 2, "UsageError")
    assert err == f"error: {content['error']}\n"
    code, out, _ = sottovoce_("recommend", "--json")
    assert (code, only_json(out)["exit_code"]) == (2, 2)


def test_every_error_family_has_its_exit_code(monkeypatch, sottovoce_):
    def families(kind):
        yield kind
        for inner in kind.__subclasses__():
            yield from families(inner)

    for kind in families(SottovoceError):
        if kind.__module__ != "sottovoce.errors" or kind is Told:  # of the catalogue: below
            continue

        def answer(*_, kind=kind, **__):
            raise kind("what, where and what to do")

        monkeypatch.setattr(sottovoce.cli, "app", answer)
        one_sentence(*sottovoce_("demo"), kind.exit_code, "what to do")


def test_trouble_of_the_catalogue_is_told_in_its_words(monkeypatch, sottovoce_):
    def answer(*_, **__):
        raise Told("trouble.owner_gone", name="Horror")

    monkeypatch.setattr(sottovoce.cli, "app", answer)
    one_sentence(*sottovoce_("demo"), Told.exit_code, "Horror does not answer")


@pytest.mark.parametrize("error", [ZeroDivisionError, RuntimeError])
def test_an_unexpected_error_keeps_its_traceback(monkeypatch, error):
    def answer(*_, **__):
        raise error

    monkeypatch.setattr(sottovoce.cli, "app", answer)
    with pytest.raises(error):
        sottovoce.cli.call(["demo"])


WITHOUT_LIBRARIES = """
import contextlib, io, json, sys
from sottovoce.cli import call
from sottovoce.core.installed import EXTRA_OF
for name in EXTRA_OF:
    sys.modules[name] = None
told = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = call(arguments)
    told.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(told))
"""


def test_a_library_that_is_not_installed_is_named_with_its_extra(tmp_path):
    small = ("run", "papers/fpl", "--set", "town.residents=8", "--engine")
    commands = [
        ("keys", "init", "DIR"), ("serve", "server", "DIR"), ("serve", "device", "DIR"),
        ("serve", "superlink", "DIR"), ("device", "init", "DIR"), (*small, "https"),
        (*small, "flower"),
    ]  # fmt: skip
    command = [sys.executable, "-c", WITHOUT_LIBRARIES, json.dumps(commands)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    for told in json.loads(done.stdout):
        one_sentence(*told, 2, "web]'")
    assert not list(tmp_path.iterdir())


def test_no_place_for_compiled_code_is_one_sentence(monkeypatch, sottovoce_):
    def answer(*_, **__):
        raise RuntimeError("cannot cache function 'f': no locator available for file 'x.py'")

    monkeypatch.setattr(sottovoce.cli, "app", answer)
    one_sentence(*sottovoce_("demo"), 4, "NUMBA_CACHE_DIR")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/mnt/run"), "/mnt/run: No space left"),
        (OSError(errno.EROFS, "Read-only file system", "/mnt/run"), "/mnt/run: Read-only"),
        (OSError("disk on fire"), "disk on fire"),
        (MemoryError("Unable to allocate 9 TiB"), "not enough memory (Unable to allocate 9 TiB)"),
        (MemoryError(), "not enough memory; "),
    ],
)
def test_what_the_machine_refuses_gives_one_sentence(monkeypatch, sottovoce_, error, words):
    def answer(*_, **__):
        raise error

    monkeypatch.setattr(sottovoce.cli, "app", answer)
    one_sentence(*sottovoce_("demo"), 4, words)
    code, out, _ = sottovoce_("demo", "--json")
    assert (code, only_json(out)["kind"]) == (4, type(error).__name__)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "FILE"],
        ["report", "RUN"],
        ["report", "RUN", "RUN"],
        ["reproduce", "fpl-table2"],
        ["demo"],
    ],
)
@pytest.mark.parametrize("below", ["", "a/b"])
def test_out_must_be_a_place_for_a_folder(sottovoce_, tiny, tmp_path, arguments, below):
    place = tmp_path / "mine.txt"
    place.write_text("mine")
    real = {"FILE": tiny / "tiny.toml", "RUN": tiny / "run"}
    answer = sottovoce_(*[real.get(a, a) for a in arguments], "--out", place / below)
    one_sentence(*answer, 4, "a file, not a folder")
    assert place.read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_a_full_disk_keeps_the_old_report(sottovoce_, monkeypatch, tiny):
    from sottovoce.evaluation import report as pages

    def state():
        return {p: p.read_bytes() for p in (tiny / "run").rglob("*") if p.is_file()}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = state()
    monkeypatch.setattr(pages.os, "replace", full)
    one_sentence(*sottovoce_("report", tiny / "run"), 4, "No space left on device; free some")
    assert state() == before


# --- run -----------------------------------------------------------------------------------------


def test_run_prints_the_table_and_leaves_a_report(sottovoce_, tiny, tmp_path):
    code, out, _ = sottovoce_("run", tiny / "tiny.toml", "--out", tmp_path / "run")
    assert code == 0
    for text in ("Top-Pop", "pFPL+", "P@10", "Protocol: top 10", str(tmp_path / "run")):
        assert text in out
    page = (tmp_path / "run" / "report.html").read_text()
    assert "What left the devices" in page
    assert "does not hide" in page


def test_run_answers_json_and_repeats_itself(sottovoce_, tiny, tmp_path):
    code, out, _ = sottovoce_("run", tiny / "tiny.toml", "--out", tmp_path / "run", "--json")
    content = only_json(out)
    manifest = json.loads((tiny / "run" / "manifest.json").read_text())
    assert code == 0
    assert content["results"] == manifest["results"]
    assert content["ledger"] == manifest["ledger"]
    assert set(content["results"]) == {"random", "top-pop", "pFPL+"}


def test_a_folder_keeps_its_run(sottovoce_, tiny, tmp_path):
    run, before = tiny / "run", (tiny / "run" / "manifest.json").read_bytes()
    again = sottovoce_("run", tiny / "tiny.toml", "--out", run)
    one_sentence(*again, 4, "--resume")
    other = sottovoce_("run", tiny / "tiny.toml", "--set", "seed=9", "--out", run)
    one_sentence(*other, 4, "another run (tiny)")
    (tmp_path / "mine.txt").write_text("mine")
    one_sentence(*sottovoce_("run", tiny / "tiny.toml", "--out", tmp_path), 4, "holds no run")
    assert run.joinpath("manifest.json").read_bytes() == before


def test_a_finished_run_is_shown_again(sottovoce_, tiny):
    before = (tiny / "run" / "manifest.json").read_bytes()
    (tiny / "run" / "report.html").unlink()
    code, out, _ = sottovoce_(
        "run", tiny / "tiny.toml", "--out", tiny / "run", "--resume", "--json"
    )
    assert (code, only_json(out)["name"]) == (0, "tiny")
    assert (tiny / "run" / "report.html").is_file()
    (tiny / "run" / "report.html").unlink()
    assert sottovoce_("report", tiny / "run")[0] == 0
    assert (tiny / "run" / "report.html").is_file()
    assert (tiny / "run" / "manifest.json").read_bytes() == before


def test_a_run_that_ends_below_popularity_says_what_to_try(sottovoce_, tiny, tmp_path):
    settings = ["town.residents=300", "algorithm.epochs=20", "consent={}"]
    options = [x for s in settings for x in ("--set", s)]
    run = ["run", tiny / "tiny.toml", *options, "--out", tmp_path / "run"]
    code, out, err = sottovoce_(*run)
    assert code == 0
    assert err.startswith("note: pFPL+ ends below Top-Pop (P@10 ")
    assert err.count("\n") == 1
    assert "smaller algorithm.learning_rate, such as 0.01 instead of 0.05" in err
    assert "300 devices" in err
    assert "pFPL+ ends below Top-Pop" in " ".join(out.split())
    assert "pFPL+ ends below Top-Pop" in (tmp_path / "run" / "report.html").read_text()
    code, out, again = sottovoce_(*run, "--resume", "--json")
    assert (code, again) == (0, err)
    assert [f"note: {note}\n" for note in only_json(out)["notes"]] == [err]


# --- runs that are stopped -----------------------------------------------------------------------

EAGER = """
import sys
from sottovoce.runs import topology
topology.CHECKPOINT_SECONDS = 0.0
from sottovoce.cli import main
main(sys.argv[1:])
"""
"""The command with a checkpoint as often as it may be, instead of every ten seconds."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("long")
    (root / "long.toml").write_text(LONG)
    arguments = ["run", str(root / "long.toml"), "--threads", "1", "--out", str(root / "whole")]
    assert sottovoce.cli.call(arguments) == 0
    return root


def start(program, root, out):
    return forked.ForkedProcess(program, "run", root / "long.toml", "--threads", "1", "--out", out)


def wait_for(process, condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def assert_same_run(one, other):
    assert same(content(one), content(other))
    for what in ("results", "ledger"):
        assert RunFolder(one).manifest()[what] == RunFolder(other).manifest()[what]


def test_a_killed_run_resumes_to_the_same_numbers(sottovoce_, whole, tmp_path):
    out = tmp_path / "killed"
    process = start(EAGER, whole, out)
    wait_for(process, (out / "checkpoint.npz").exists)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert RunFolder(out).manifest()["status"] == RUNNING
    one_sentence(*sottovoce_("recommend", out, "--user", "r0000"), 4, "has not finished")
    code, text, _ = sottovoce_("run", whole / "long.toml", "--out", out, "--resume", "--json")
    assert (code, only_json(text)["name"]) == (0, "long")
    assert_same_run(whole / "whole", out)


@pytest.mark.parametrize("program", [forked.COMMAND, EAGER], ids=["as it is", "eager"])
def test_an_interrupted_run_says_how_to_go_on_and_resumes_to_the_same_numbers(
    sottovoce_, whole, tmp_path, program
):
    out = tmp_path / "interrupted"
    process = start(program, whole, out)
    wait_for(process, lambda: (out / "metrics.jsonl").exists() and RunFolder(out).metrics())
    process.send_signal(signal.SIGINT)
    text, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert text == ""
    assert errors.count("\n") == 1
    assert "--resume" in errors
    assert str(out) in errors
    saved = int(load_arrays(out / "checkpoint.npz")["round"])
    assert 0 < saved < RunFolder(out).manifest()["schedule"]["rounds"]
    assert sottovoce_("run", whole / "long.toml", "--out", out, "--resume")[0] == 0
    assert_same_run(whole / "whole", out)


# --- looking at runs -----------------------------------------------------------------------------


def test_recommend_names_places_the_user_has_not_visited(sottovoce_, tiny):
    from sottovoce.runs.read import FinishedRun

    code, out, _ = sottovoce_("recommend", tiny / "run", "--user", "r0005", "-n", "7", "--json")
    found = only_json(out)["recommendations"]
    run = FinishedRun.open(tiny / "run")
    user = run.user("r0005")
    seen = {run.describe(int(item))[0] for item in run.split.train.row(user)}
    scores = run.scorer().scores(np.array([user]))[0]
    own = [s for i, s in enumerate(scores) if run.describe(i)[0] not in seen]
    assert code == 0
    assert [place["rank"] for place in found] == list(range(1, 8))
    assert not {place["item"] for place in found} & seen
    np.testing.assert_allclose(
        [place["score"] for place in found], sorted(own, reverse=True)[:7], rtol=1e-5
    )
    assert all(place["title"] and place["categories"] for place in found)
    text = sottovoce_("recommend", tiny / "run", "--user", "r0005", "-n", "7")[1]
    assert all(place["title"] in text for place in found)


def test_a_run_is_not_read_with_other_data_or_from_a_broken_manifest(sottovoce_, tiny, tmp_path):
    for name in ("manifest.json", "model.npz", "devices.npz", "ledger.parquet"):
        (tmp_path / name).write_bytes((tiny / "run" / name).read_bytes())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    changed = manifest | {"data": {"name": "town", "fingerprint": "0"}}
    (tmp_path / "manifest.json").write_text(json.dumps(changed))
    one_sentence(*sottovoce_("recommend", tmp_path, "--user", "r0001"), 4, "is not the one")
    for wrong, words in (
        ({"data": 5}, "something else for data"),
        ({"data": {"name": "town"}}, "data.fingerprint"),
        ({"results": {"pFPL+": {"P@10": "good"}}}, "results.pFPL+"),
        ({"results": {"pFPL+": 1}}, "results.pFPL+"),
        ({"ledger": []}, "something else for ledger"),
        ({"ledger": {"releases": "x"}}, "ledger.releases"),
        ({"schedule": None}, "something else for schedule"),
        ({"protocol": 1}, "something else for protocol"),
    ):
        (tmp_path / "manifest.json").write_text(json.dumps(manifest | wrong))
        one_sentence(*sottovoce_("report", tmp_path), 3, words)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    save_arrays(tmp_path / "devices.npz", vectors=np.zeros((3, 4), np.float32))
    for command in (["recommend", tmp_path, "--user", "r0001"], ["report", tmp_path]):
        one_sentence(*sottovoce_(*command), 3, "a model of another run")
    del manifest["experiment"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    one_sentence(*sottovoce_("ledger", tmp_path), 3, "lacks experiment")


@pytest.mark.parametrize(
    ("arguments", "expected", "words"),
    [
        (["recommend", "RUN", "--user", "nobody"], 3, "no user 'nobody'"),
        (["recommend", "RUN", "--user", "r0001", "-n", "0"], 2, "at least 1"),
        (["recommend", "nowhere", "--user", "r0001"], 4, "not a run folder"),
        (["recommend", "RUN"], 2, "--user"),
        (["ledger", "RUN", "--user", "nobody"], 3, "no user 'nobody'"),
        (["ledger", "RUN", "--by", "moon"], 2, "moon"),
        (["ledger", "nowhere"], 4, "not a run folder"),
        (["report", "nowhere"], 4, "not a run folder"),
        (["report"], 2, "RUN"),
        (["reproduce", "the-moon"], 2, "the-moon"),
        (["bench", "the-moon"], 2, "the-moon"),
        (["data", "show", "the-moon"], 3, "the-moon"),
    ],
)
def test_questions_without_an_answer_give_one_sentence(
    sottovoce_, tiny, arguments, expected, words
):
    if arguments[0] == "reproduce":
        pytest.importorskip("sottovoce_papers", exc_type=ImportError)
    replaced = [str(tiny / "run") if a == "RUN" else a for a in arguments]
    one_sentence(*sottovoce_(*replaced), expected, words)


def test_the_ledger_adds_up_whichever_way_it_is_read(sottovoce_, tiny):
    ledger = json.loads((tiny / "run" / "manifest.json").read_text())["ledger"]
    for by in ("choice", "user", "round"):
        content = only_json(sottovoce_("ledger", tiny / "run", "--by", by, "--json")[1])
        for key, expected in ledger.items():
            assert content["totals"][key] == expected
            assert sum(line[key] for line in content["lines"]) == expected
        assert content["totals"]["epsilon"] is None
        text = sottovoce_("ledger", tiny / "run", "--by", by, "--csv")[1]
        rows = list(csv.DictReader(io.StringIO(text)))
        assert sum(int(row["bytes"]) for row in rows) == ledger["bytes"]


def test_the_ledger_shows_each_choice_and_each_user(sottovoce_, tiny):
    content = only_json(sottovoce_("ledger", tiny / "run", "--json")[1])
    out, none, everything = content["lines"]
    assert out["choice"].startswith("does not take part")
    assert (out["releases"], out["bytes"]) == (0, 0)
    assert none["positive_rows"] == 0 < none["negative_rows"]
    assert everything["positive_rows"] > 0
    users = only_json(sottovoce_("ledger", tiny / "run", "--by", "user", "--json")[1])["lines"]
    silent = next(line["user"] for line in users if line["releases"] == 0)
    code, text, _ = sottovoce_("ledger", tiny / "run", "--user", silent)
    assert code == 0
    assert "does not take part" in text
    assert "0 releases" in text
    loud = next(line for line in users if line["positive_rows"])
    mine = only_json(sottovoce_("ledger", tiny / "run", "--user", loud["user"], "--json")[1])
    assert mine["totals"]["positive_rows"] == loud["positive_rows"]
    assert len(mine["lines"]) == loud["releases"]


def test_reports_compare_like_with_like(sottovoce_, tiny, tmp_path):
    file, runs = tiny / "tiny.toml", {}
    for name, setting in (("slow", "algorithm.learning_rate=0.001"), ("short", "evaluation.k=5")):
        runs[name] = tmp_path / name
        assert sottovoce_("run", file, "--set", setting, "--out", runs[name])[0] == 0
    code, out, err = sottovoce_(
        "report", tiny / "run", runs["slow"], "--out", tmp_path / "both", "--json"
    )
    content = only_json(out)
    assert (code, err, content["warnings"]) == (0, "", [])
    assert [row["run"] for row in content["runs"]] == ["run", "slow"]
    manifest = json.loads((runs["slow"] / "manifest.json").read_text())
    assert content["runs"][1]["results"] == pytest.approx(manifest["results"]["pFPL+"])
    page = Path(content["report"]).read_text()
    assert page.count("<table>") == 4  # all runs, results, tests, what left
    assert page.count("data:image/svg+xml") == 3  # what quality costs, learning curves and bias
    tested = {one["system"] for one in content["significance"]}
    assert tested == {"random", "top-pop", "slow"}  # baselines, too
    assert [one["baseline"] for one in content["baselines"]] == ["random", "top-pop"]
    code, out, err = sottovoce_("report", tiny / "run", runs["short"], "--out", tmp_path / "odd")
    assert code == 0
    assert "do not compare" in err
    assert out.count("Protocol:") == 2
    code, out, _ = sottovoce_("report", tiny / "run", "--markdown")
    assert code == 0
    assert "| Top-Pop |" in out.replace("**", "")


# --- data ----------------------------------------------------------------------------------------


def test_data_is_imported_described_and_not_overwritten(sottovoce_, monkeypatch, tmp_path):
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "sets"))
    table = tmp_path / "visits.csv"
    table.write_text("user,item\n" + "".join(f"u{n % 5},i{n % 7}\n" for n in range(35)))
    code, out, _ = sottovoce_("data", "import", "mine", table, "--json")
    assert code == 0
    assert only_json(out)["interactions"] == 35
    names = [row["name"] for row in only_json(sottovoce_("data", "show", "--json")[1])["data"]]
    assert names[:2] == ["town", "mine"]
    assert "35" in sottovoce_("data", "show", "mine")[1]
    one_sentence(*sottovoce_("data", "import", "mine", table), 3, "exists already")
    assert sottovoce_("data", "import", "mine", table, "--overwrite")[0] == 0
    one_sentence(*sottovoce_("data", "import", "town", table), 2, "generated")
    one_sentence(*sottovoce_("data", "import", "other", tmp_path / "no.zip"), 3, "does not exist")
    one_sentence(*sottovoce_("data", "import", "m", table, "--kind", "fax"), 2, "fax")


@pytest.fixture
def log(monkeypatch, tmp_path):
    """A table whose columns nobody can guess."""
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "sets"))
    file = tmp_path / "log.txt"
    file.write_text("who;what;when\n" + "".join(f"u{n % 5};i{n % 7};{n}\n" for n in range(35)))
    return file


def test_a_table_is_imported_with_its_columns_named(sottovoce_, log):
    one_sentence(*sottovoce_("data", "import", "log", log), 2, "--column user=NAME")
    named = ["--column", "user=who", "--column", "item=what"]
    code, out, _ = sottovoce_("data", "import", "log", log, *named, "--delimiter", ";", "--json")
    assert code == 0
    content = only_json(out)
    assert (content["users"], content["items"]) == (5, 7)
    log.write_text(log.read_text().replace(";", "\t"))
    for tab in ("tab", "\\t", "\t"):
        done = sottovoce_("data", "import", "log", log, *named, "--delimiter", tab, "--overwrite")
        assert done[0] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--column", "user"], "ROLE=NAME"),
        (["--column", "user="], "ROLE=NAME"),
        (["--column", "user=who", "--column", "user=what"], "twice"),
        (["--column", "colour=who"], "colour"),
        (["--column", "user=nobody"], "nobody"),
        (["--delimiter", ""], "within a line"),
        (["--delimiter", "\n"], "within a line"),
        (["--delimiter", "→"], "within a line"),
    ],
)
def test_bad_descriptions_of_a_table_give_one_sentence(sottovoce_, log, options, words):
    one_sentence(*sottovoce_("data", "import", "log", log, *options), 2, words)
    assert not (log.parent / "sets").exists()


def test_users_without_a_known_attribute_are_dropped_on_request(sottovoce_, monkeypatch, tmp_path):
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "sets"))
    written = renumbered()
    known = Labels.of(["f", "", "m", *["f"] * (len(USERS) - 3)])
    write_prepared(replace(written, user_attributes={"gender": known}), tmp_path / "source")
    arguments = ["data", "import", "copy", tmp_path / "source"]
    code, out, _ = sottovoce_(*arguments, "--require-attribute", "gender", "--json")
    assert (code, only_json(out)["users"]) == (0, len(USERS) - 1)
    again = sottovoce_(*arguments, "--overwrite", "--require-attribute", "height")
    one_sentence(*again, 3, "height")


# --- items whose numbers a split changes ---------------------------------------------------------

USERS = [f"u{n:02d}" for n in range(24)]


def renumbered():
    """Item i00 is visited last, and so in the test part alone: all others move down by one. Even
    items are cafés, odd ones bars."""
    rng = np.random.default_rng(5)
    users, items, times = [], [], []
    for user in range(len(USERS)):
        own = [1 + 2 * int(rng.integers(15)), *rng.permutation(np.arange(2, 30, 2))[:8], 0]
        users += [user] * len(own)
        items += own
        times += range(len(own))
    table = Interactions.from_pairs(
        np.array(users), np.array(items), n_users=len(USERS), n_items=30,
        timestamps=np.array(times), user_ids=Vocabulary(USERS),
        item_ids=Vocabulary([f"i{n:02d}" for n in range(30)]),
    )  # fmt: skip
    kept = np.unique(table.items)
    numbers = np.searchsorted(kept, table.items)
    names = [f"i{n:02d}" for n in kept]
    dense = Interactions(
        table.indptr, numbers.astype(np.int32), len(kept), timestamps=table.timestamps,
        user_ids=table.user_ids, item_ids=Vocabulary(names),
    )  # fmt: skip
    return Dataset(
        "small",
        dense,
        item_titles=tuple(f"Place {name}" for name in names),
        item_categories=tuple(("Bar",) if int(n) % 2 else ("Café",) for n in kept),
    )


@pytest.fixture
def small(monkeypatch, tmp_path):
    """An experiment on that data set."""
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "sets"))
    write_prepared(renumbered(), tmp_path / "sets" / "small")
    (tmp_path / "small.toml").write_text(
        'name = "small"\n[data]\nsource = "small"\ntest_fraction = 0.2\n[algorithm]\n'
        'configuration = "pFPL+"\nembedding_size = 3\nepochs = 1\n[evaluation]\nk = 3\n'
        "[baselines.top-pop]\n"
    )
    return tmp_path


def test_items_are_named_by_their_number_in_the_data(sottovoce_, small):
    from sottovoce.runs.read import FinishedRun

    run = small / "run"
    assert sottovoce_("run", small / "small.toml", "--out", run)[0] == 0
    opened = FinishedRun.open(run)
    split = opened.split
    assert split.item_map[0] != 0
    train = split.train.items_vocabulary()
    scores = opened.scorer().scores(np.array([3]))[0]
    scores[split.train.row(3)] = -np.inf
    best = [train.name(int(item)) for item in np.argsort(-scores, kind="stable")[:4]]
    code, out, _ = sottovoce_("recommend", run, "--user", USERS[3], "-n", "4", "--json")
    found = only_json(out)["recommendations"]
    assert code == 0
    assert [place["item"] for place in found] == best
    assert "i00" not in best
    assert [place["title"] for place in found] == [f"Place {name}" for name in best]
    assert [place["categories"] for place in found] == [
        ["Bar"] if int(name[1:]) % 2 else ["Café"] for name in best
    ]
    numbers = range(split.n_items)
    assert [opened.describe(i)[0] for i in numbers] == split.test.items_vocabulary().names()


def test_bias_counts_categories_by_the_number_in_the_data(sottovoce_, small, monkeypatch):
    from sottovoce.evaluation.metrics import bias_disparity
    from sottovoce.runs import compare as run_comparison
    from sottovoce.runs import report as run_report

    seen = []

    def watched(lists, train, member, **options):
        names = train.items_vocabulary().names()
        bars = [int(name[1:]) % 2 == 1 for name in names]
        # The leaves are Foursquare's, so they count as its top categories: Food, Nightlife Spot.
        np.testing.assert_array_equal(member[: train.n_items, 1], bars)
        np.testing.assert_array_equal(member[: train.n_items, 0], np.logical_not(bars))
        seen.append(bias_disparity(lists, train, member, **options))
        return seen[-1]

    monkeypatch.setattr(run_report, "bias_disparity", watched)
    monkeypatch.setattr(run_comparison, "bias_disparity", watched)
    run = small / "run"
    assert sottovoce_("run", small / "small.toml", "--out", run)[0] == 0
    assert len(seen) == 2
    page = (run / "report.html").read_text()
    assert "Nightlife Spot" in page
    assert sottovoce_("report", run, run, "--out", small / "both")[0] == 0
    assert len(seen) > 2


# --- bench ---------------------------------------------------------------------------------------


def test_bench_loads_a_file_by_name(sottovoce_, monkeypatch, tmp_path):
    from sottovoce import experiment as resources

    (tmp_path / "two_words.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Scale:\n"
        "    users: int = 1\n"
        "def run(quick, progress):\n"
        "    progress('measuring')\n"
        "    row = {'name': 'x', 'value': 2.0, 'unit': 's', 'peer': 'y', 'ratio': 3.0,\n"
        "           'target': 1.0, 'met': quick}\n"
        "    return {'bench': 'two-words', 'machine': {'cores': 2}, 'results': [row]}\n"
    )
    monkeypatch.setattr(resources, "shipped_folder", lambda name: tmp_path)
    code, out, _ = sottovoce_("bench", "two-words", "--quick", "--json")
    assert code == 0
    assert only_json(out)["results"][0]["met"] is True
    assert "two-words" in sottovoce_("bench", "two-words")[1]


def test_whoever_reads_no_further_has_made_nothing_fail(tiny):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "ledger", str(tiny / "run")],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


# --- durations -----------------------------------------------------------------------------------


def test_what_is_left_is_told_by_the_pace_so_far():
    from sottovoce.cli.output import StagePace, duration

    pace = StagePace(100.0, 20)  # 20 were done before, by a run that was stopped
    assert pace.left(110.0, 20, 100) == ""
    assert pace.left(140.0, 40, 100) == "about 2 min left"  # 20 in 40 s, 60 to go
    assert pace.left(180.0, 100, 100) == ""
    assert pace.left(200.0, 0, 100) == ""  # it begins anew
    assert pace.left(220.0, 50, 100) == "about 20 s left"
    pace = StagePace(0.0, 0)  # a stage that comes again and again, a hundred seconds each time
    for again in range(30):
        told = [pace.left(100.0 * again + done, done, 100) for done in range(0, 101, 10)]
        assert told[5] == "about 50 s left"
    assert [duration(s) for s in (3, 89, 91, 5399, 9000)] == [
        "10 s", "90 s", "2 min", "90 min", "2.5 h",
    ]  # fmt: skip


def test_lines_go_on_where_nothing_new_is_done(monkeypatch, capsys):
    from sottovoce.cli import output

    monkeypatch.setattr(output, "BETWEEN_LINES", 0.02)
    monkeypatch.setattr(output, "_STILL", 0.05)
    with output.progress(lines=True) as report:
        report("baselines", 0, 4)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            said = capsys.readouterr().err
            if "Fitting baselines: 0 of 4 (10 s so far)" in said:
                break
            time.sleep(0.02)
        else:
            pytest.fail("no line said so")


def test_help_says_what_an_argument_is(sottovoce_):
    """typer 0.20 on click 8.5 would leave the words out."""
    code, out, _ = sottovoce_("recommend", "--help")
    assert code == 0
    assert "Folder of a finished run." in out


def test_reproduce_all_of_a_paper(sottovoce_, tmp_path, monkeypatch):
    papers = pytest.importorskip("sottovoce_papers.papers", exc_type=ImportError)
    one_sentence(*sottovoce_("reproduce", "--all", "moon"), 2, "fpl, fmf, drift, uc")
    one_sentence(*sottovoce_("reproduce", "fpl-table3", "--all", "fpl"), 2, "leave out NAME")
    monkeypatch.setattr(papers, "studies_of", lambda paper: ["fpl-table3"])
    code, out, _ = sottovoce_("reproduce", "--all", "fpl", "--out", tmp_path / "fpl", "--json")
    assert code == 0
    assert [one["name"] for one in only_json(out)["studies"]] == ["fpl-table3"]
    code, out, _ = sottovoce_("reproduce", "--all", "fpl", "--out", tmp_path / "fpl")
    assert "fpl-table3: holds: CCE equals the paper's" in out


def test_a_study_that_fails_is_named_in_the_end(sottovoce_, tmp_path, monkeypatch):
    papers = pytest.importorskip("sottovoce_papers.papers", exc_type=ImportError)
    monkeypatch.setattr(papers, "studies_of", lambda paper: ["fpl-table3"])

    def fails(name, **given):
        raise ConfigError("it makes no sense")

    monkeypatch.setattr(papers.published, "run", fails)
    code, out, _ = sottovoce_("reproduce", "--all", "fpl", "--out", tmp_path / "fpl")
    assert code == 1
    assert "it makes no sense" in out
