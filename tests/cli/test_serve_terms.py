"""`sottovoce serve terms`, and how operators of others agree: what is shown, what is refused in a
sentence, what is left alone."""

import json
from dataclasses import replace

import pytest
from secure_sum_world import TOKEN, masker_folder
from server_world import new_folder
from test_serve_catalogue import run

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.stores.helper_folder import HelperIntroduction
from sottovoce.stores.server_folder import open_folder
from sottovoce.stores.sum_folder import NEXT


@pytest.fixture
def town(tmp_path):
    return new_folder(tmp_path / "town").path


def told(capsys, *arguments):
    return json.loads(run(capsys, *arguments, "--json").out)


def test_a_change_is_shown_and_withdrawn_also_where_no_server_runs(town, tmp_path, capsys):
    before = told(capsys, "serve", "terms", town)
    assert (before["history"], before["amendment"]) == ([], None)
    after = told(capsys, "serve", "terms", town, "--set", "algorithm.learning_rate=0.07")
    assert after["digest"] == before["digest"], "nothing is in force yet"
    assert after["amendment"]["changes"] == [["algorithm.learning_rate", 0.05, 0.07]]
    shown = run(capsys, "serve", "terms", town).out
    assert "algorithm.learning_rate: 0.05 → 0.07" in shown
    assert "comes into force when that runs" in shown
    assert "A change of terms by" in run(capsys, "serve", "status", town).out
    again = run(capsys, "serve", "terms", town, "--spare", 2, code=2).err
    assert "waits already" in again
    run(capsys, "serve", "terms", town, "--out", tmp_path / "terms.json")
    table = json.loads((tmp_path / "terms.json").read_text())
    assert table["algorithm"]["learning_rate"] == 0.07
    assert (
        "not overwritten"
        in run(capsys, "serve", "terms", town, "--out", tmp_path / "terms.json", code=2).err
    )
    assert told(capsys, "serve", "terms", town, "--withdraw")["amendment"] is None
    assert (
        "no change of terms waits" in run(capsys, "serve", "terms", town, "--withdraw", code=2).err
    )
    log = run(capsys, "serve", "log", town).out
    assert "terms proposed: algorithm.learning_rate 0.05 → 0.07" in log
    assert "terms withdrawn: algorithm.learning_rate 0.05 → 0.07" in log


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--set", "algorithm.embedding_size=9"), "could be carried over; make a new federation"),
        (("--set", "algorithm.nothing=9"), "nothing was done"),
        (("--set", "federation=x"), "only settings of algorithm, release, link change"),
        (("--set", "algorithm.learning_rate=0.05"), "these already"),
        (("--withdraw", "--spare", "2"), "--withdraw takes a change back"),
    ],
)
def test_what_cannot_be_changed_is_said_and_nothing_is(town, capsys, arguments, why):
    assert why in run(capsys, "serve", "terms", town, *arguments, code=2).err
    assert told(capsys, "serve", "terms", town)["amendment"] is None


def test_a_file_that_cannot_be_written_is_told_before_anything_is_proposed(town, tmp_path, capsys):
    change = "serve", "terms", town, "--set", "algorithm.learning_rate=0.07", "--out"
    assert "not overwritten" in run(capsys, *change, town / "catalogue.json", code=2).err
    assert "is no folder" in run(capsys, *change, tmp_path / "nowhere" / "new.json", code=2).err
    assert told(capsys, "serve", "terms", town)["amendment"] is None


@pytest.mark.parametrize("around", [False, True])
def test_a_federation_on_flower_keeps_its_terms_and_is_not_paused(town, capsys, tmp_path, around):
    """Also by the name of the folder that `serve setup` made around it."""
    (town / "superlink").mkdir()
    if around:
        (tmp_path / "around").mkdir()
        (tmp_path / "around" / "setup.json").write_text("{}")
        town = town.rename(tmp_path / "around" / "server")
    named = town.parent if around else town
    said = run(capsys, "serve", "terms", named, "--spare", 1, code=2).err
    assert "where terms do not change" in said
    said = run(capsys, "serve", "pause", named, code=2).err
    assert "on Flower, where a run is stopped and started again" in said
    assert told(capsys, "serve", "log", named)["acts"] == []
    assert not (town / "catalogue.json.new").exists()
    assert open_folder(town).plan.terms.n_items == 40


def test_a_helpers_operator_sees_what_changes_before_she_agrees(tmp_path, capsys):
    folder = masker_folder(tmp_path / "masks")
    known = folder.introduction
    algorithm = FPLConfig(embedding_size=4, triples=12)
    after = replace(known, terms=replace(known.terms, algorithm=algorithm))
    other = HelperIntroduction(replace(after.terms, federation="elsewhere"), TOKEN)
    after.write(tmp_path / "new.json")
    other.write(tmp_path / "other.json")
    serve = "serve", "helper", folder.path, "--introduction"
    shown = run(capsys, *serve, tmp_path / "new.json").out
    assert "algorithm.triples: 10 → 12" in shown
    assert f"--introduction {tmp_path / 'new.json'} --agree {after.terms.digest()}" in shown
    assert not (folder.path / NEXT).exists()
    wrong = run(capsys, *serve, tmp_path / "new.json", "--agree", "0" * 32, code=2).err
    assert "nothing was agreed to" in wrong
    strange = run(capsys, *serve, tmp_path / "other.json", code=2).err
    assert "use another folder for another federation" in strange
    assert "--agree goes with" in run(capsys, *serve[:3], "--agree", "0" * 32, code=2).err
    assert not (folder.path / NEXT).exists()
    agreed = told(capsys, *serve, tmp_path / "new.json", "--agree", after.terms.digest())
    assert agreed["agreed"]
    assert folder.agreed() == [after]
