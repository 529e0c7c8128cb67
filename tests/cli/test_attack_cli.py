"""`sottovoce attack RUN`: a table, a JSON object, a report card, one sentence on bad input."""

import json
import shutil
from dataclasses import replace

import pytest

from sottovoce.attacks.views import ATTACKS
from sottovoce.experiment import Experiment
from sottovoce.runs.attack import choose
from sottovoce.runs.folder import RUNNING, RunFolder
from sottovoce.runs.train import run_experiment

TABLE = {
    "name": "tiny",
    "seed": 3,
    "town": {"residents": 60, "venues": 80, "visits_per_resident": 20.0},
    "algorithm": {"configuration": "pFPL", "embedding_size": 3, "epochs": 3},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "tiny"
    run_experiment(Experiment.from_table(TABLE), path)
    return path


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "tiny")


KEYS = {
    "attack", "code", "party", "promise", "measure", "value", "interval", "base_rate", "recall",
    "claims", "verdict", "detail", "looked", "unit", "far_above", "needed",
}  # fmt: skip


def test_json_is_one_object_and_broken_promises_are_no_error(sottovoce_, run):
    code, out, err = sottovoce_("attack", run, "--rounds", "2", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["run"] == str(run)
    assert found["attacks"]
    for attack in found["attacks"]:
        assert set(attack) == KEYS
        low, high = attack["interval"]
        assert low <= high
        assert attack["verdict"] in (
            "holds", "broken", "underpowered", "nothing to attack",
        )  # fmt: skip
    assert all(set(one) == {"code", "attack", "party", "reason"} for one in found["not_applicable"])
    kept = json.loads((run / "attacks.json").read_text())
    assert kept["attacks"] == found["attacks"]
    assert found["report"] == str(run / "report-card.html")
    assert (run / "report-card.html").exists()


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_attack_that_falls_over_is_named_and_ends_the_command_with_an_error(
    sottovoce_, run, more, monkeypatch
):
    first, *others = [one for one in ATTACKS.values() if one.code in ("A1", "A3")]
    bug = replace(first, guess=lambda view: view.own["what nobody has"])
    monkeypatch.setitem(ATTACKS._found, "inversion", bug)
    code, out, err = sottovoce_("attack", run, "--rounds", "2", "--only", "A1,A3", *more)
    assert code == 4
    assert f"{first.code} {first.name}: KeyError" in err
    kept = json.loads((run / "attacks.json").read_text())
    assert [one["code"] for one in kept["failed"]] == [first.code]
    assert len(kept["attacks"]) + len(kept["not_applicable"]) == len(others)
    assert first.name not in [one["attack"] for one in kept["not_applicable"]]
    if more:
        assert json.loads(out)["failed"] == kept["failed"]
    else:
        assert "One attack fell over" in out


def test_text_says_what_a_promise_is_worth(sottovoce_, run):
    code, out, err = sottovoce_("attack", run, "--rounds", "2", "--out", run.parent / "card.html")
    assert (code, err) == (0, "")
    assert "verdict" not in out
    kept = json.loads((run.parent / "card.json").read_text())["attacks"]
    broken = sum(one["verdict"] == "broken" for one in kept)
    assert f"{broken} promises were broken of {len(kept)} that were attacked." in out
    assert out.count("the promise is broken") == broken
    assert out.count("the promise held") == sum(one["verdict"] == "holds" for one in kept)
    assert all(word not in out for word in ("ε", "π", "AUC", "recall"))
    assert "Report card:" in out
    assert (run.parent / "card.html").exists()
    assert (run.parent / "card.json").exists()
    assert not (run / "attacks.json").exists()
    assert not (run / "report-card.html").exists()


def test_only_some(sottovoce_, run):
    code, out, _ = sottovoce_("attack", run, "--rounds", "2", "--only", "a12", "--json")
    assert code == 0
    found = json.loads(out)
    every = [*found["attacks"], *found["not_applicable"]]
    assert {one["code"] for one in every} == {"A12"}


def test_an_attack_may_be_named_with_dashes():
    spaced = [attack for attack in choose(None) if " " in attack.name]
    for attack in spaced:
        assert attack in choose(None, [attack.name.replace(" ", "-").title()])
    assert len(spaced) > 5


def unfinished(run):
    RunFolder.open(run).update_manifest(status=RUNNING)


def without_data(run):
    manifest = RunFolder.open(run).manifest()
    table = manifest["experiment"] | {"data": {"source": "nowhere-to-be-found"}}
    RunFolder.open(run).update_manifest(experiment=table)


def no_transcript(run):
    (run / "transcript").mkdir()


def torn(run):
    (run / "manifest.json").write_text("{")


@pytest.mark.parametrize(
    ("harm", "more", "code", "words"),
    [
        (unfinished, [], 4, "has not finished"),
        (without_data, [], 3, "nowhere-to-be-found"),
        (no_transcript, [], 3, "is no transcript"),
        (torn, [], 3, "cannot be read"),
        (shutil.rmtree, [], 4, "is not a run folder"),
        (None, ["--only", "A1,X9"], 2, "there is no attack X9"),
        (None, ["--only", ","], 2, "--only needs"),
        (None, ["--rounds", "0"], 2, "--rounds"),
        (None, ["--out", "card.pdf"], 2, "HTML file"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_lost(sottovoce_, run, harm, more, code, words):
    if harm is not None:
        harm(run)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    got, out, err = sottovoce_("attack", run, *more)
    assert (got, out) == (code, "")
    assert words in err
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


FMF = {
    "name": "reports",
    "town": {"residents": 150, "venues": 300, "visits_per_resident": 10.0},
    "algorithm": {"name": "fmf", "variant": "rotated", "embedding_size": 4, "rounds": 1},
    "release": {"max_reports": 400, "tiers": [{"epsilon": 1.0, "min_devices": 20}]},
    "consent": {"epsilon": 1.0, "max_reports": 400},
}


def test_canaries_hold_the_claimed_epsilon_against_one_run(sottovoce_, tmp_path):
    run_experiment(Experiment.from_table(FMF), tmp_path / "reports")
    code, out, _ = sottovoce_(
        "attack", tmp_path / "reports", "--only", "A5", "--canaries", 100, "--json"
    )
    assert code == 0
    found = json.loads(out)
    audit = found["audit"]
    assert (audit["canaries"], audit["convicted"]) == (100, False)
    assert 0.0 <= audit["epsilon"] <= audit["claimed"] < 400.0
    assert any(note.startswith("One-run audit") for note in found["notes"])


def test_canaries_need_a_claim(sottovoce_, run):
    code, _, err = sottovoce_("attack", run, "--only", "A1", "--canaries", 100)
    assert code == 2
    assert "claims none" in err
    assert not (run / "attacks.json").exists()
