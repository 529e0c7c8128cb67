"""`sottovoce serve owner`: making one, letting it in, serving it, and what its operator does."""

import json
import subprocess

import pytest

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.cli import call
from sottovoce.engines.processes import sottovoce_command
from sottovoce.wire.passes import Issuer
from sottovoce.wire.silo_files import Admission, Application, FederationFile

CATALOGUE = ("bread", "cake", "tea", "rye", "jam")


@pytest.fixture
def town(tmp_path):
    """A folder with a federation, lists of items, and admissions."""
    issuer = Issuer("little-town")
    FederationFile("little-town", issuer.public, DRIFTConfig(), CATALOGUE).write(
        tmp_path / "federation.json"
    )
    longer = (*CATALOGUE, "honey")
    FederationFile("little-town", issuer.public, DRIFTConfig(), longer).write(
        tmp_path / "longer.json"
    )
    Admission("little-town", 2, "Bakery", "127.0.0.1:9", "").write(tmp_path / "admission.json")
    Admission("little-town", 5, "School", "127.0.0.1:9", "").write(tmp_path / "school.json")
    (tmp_path / "items.txt").write_text("bread\ncake\n")
    (tmp_path / "more.csv").write_text("item,price\ntea,3\n")
    (tmp_path / "new.txt").write_text("honey\n")
    (tmp_path / "strange.txt").write_text("bread\nshoes\n")
    return tmp_path


@pytest.fixture
def say(town, capsys, monkeypatch):
    monkeypatch.chdir(town)

    def run(*words, code=0, party="owner"):
        assert call(["serve", party, *map(str, words)]) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    return run


MAKE = (
    *("--make", "federation.json", "--name", "Bakery", "--items", "items.txt"),
    *("--url", "https://bakery.example.net:8445"),
)


def test_from_the_application_to_the_admission(say, town):
    assert "Send bakery/application.json" in say("bakery", *MAKE)
    application = Application.read(town / "bakery" / "application.json")
    assert (application.name, application.items) == ("Bakery", (0, 1))
    assert application.url == "https://bakery.example.net:8445"
    assert "not been admitted yet" in say("bakery", code=7)
    assert "not been admitted yet" in say("bakery", code=7, party="status")
    said = say("bakery", "--admission", "admission.json")
    assert "Bakery is data owner 2 of the federation little-town." in said
    found = json.loads(say("bakery", "--json", party="status"))
    assert (found["number"], found["items"], found["running"]) == (2, 2, False)
    assert found["held"]["users"] == 0
    shown = say("bakery", party="status")
    assert "Bakery, data owner 2 of little-town: its service does not run" in shown


def test_items_and_users_of_an_owner_that_does_not_run(say):
    say("bakery", *MAKE)
    say("bakery", "--admission", "admission.json")
    assert json.loads(say("bakery", "--add-items", "more.csv", "--json"))["items"] == 3
    assert "holds 1 items" in say("bakery", "--withdraw-items", "items.txt")
    assert "does not hold" in say("bakery", "--withdraw-items", "items.txt", code=3)
    assert "'honey' is not in" in say("bakery", "--add-items", "new.txt", code=3)
    assert "holds 2 items" in say("bakery", "--add-items", "new.txt", "--federation", "longer.json")
    assert "Nothing of this user remains" in say("bakery", "--forget", "12")
    assert json.loads(say("bakery", "--forget", "12", "--json"))["forgotten"] is True


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere"], 7, "holds no data owner"),
        (["bakery", *MAKE], 2, "already"),
        (["other", "--make", "federation.json"], 2, "--make needs"),
        (["other", *MAKE[:-1], "bakery.example.net"], 2, "https://"),
        (["other", *MAKE[:-1], "http://bakery.example.net:1"], 2, "https://"),
        (["other", *MAKE[:5], "strange.txt", *MAKE[6:]], 3, "'shoes' is not in"),
        (["other", *MAKE[:5], "no.txt", *MAKE[6:]], 3, "no.txt is not there"),
        (["other", "--make", "items.txt", *MAKE[2:]], 2, "items.txt"),
        (["bakery", "--name", "Bakery"], 2, "go with --make"),
        (["bakery", "--federation", "longer.json"], 2, "goes with --add-items"),
        (["bakery", "--add-items", "more.csv", "--forget", "1"], 2, "choose one of"),
        (["bakery", "--forget", "-1"], 2, "--forget"),
        (["bakery", "--admission", "school.json"], 2, "the admission is for School"),
        (["bakery", "--admission", "items.txt"], 2, "items.txt is no admission"),
        (["bakery", "--plaintext", "--host", "0.0.0.0"], 2, "loopback"),
    ],
)
def test_what_goes_wrong_is_said_in_one_sentence(say, town, capsys, words, code, said):
    say("bakery", *MAKE)
    told = say(*words, code=code)
    assert said in told
    assert len(told.splitlines()) == 1
    assert not (town / "other").exists()
    assert call(["serve", "owner", *words, "--json"]) == code
    assert said in json.loads(capsys.readouterr().out)["error"]


def test_serving_and_what_the_operator_does_meanwhile(say, town):
    say("bakery", *MAKE)
    say("bakery", "--admission", "admission.json")
    process = subprocess.Popen(
        sottovoce_command("serve", "owner", "bakery", "--port=0", "--users-only"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline().startswith("The data owner listens at https://127.")
        assert json.loads((town / "bakery" / "owner.json").read_text())["pid"] == process.pid
        assert "another process" in say("bakery", "--port=0", "--users-only", code=7)
        assert json.loads(say("bakery", "--add-items", "more.csv", "--json"))["items"] == 3
        assert "holds 1 items" in say("bakery", "--withdraw-items", "items.txt")
        assert "does not hold" in say("bakery", "--withdraw-items", "items.txt", code=3)
        assert "Nothing of this user" in say("bakery", "--forget", "12")
        found = json.loads(say("bakery", "--json", party="status"))
        assert (found["running"], found["items"], found["node"]) == (True, 1, "none")
        assert "its service runs" in say("bakery", party="status")
    finally:
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode == 0
    assert not (town / "bakery" / "owner.json").exists()
    assert "does not run" in say("bakery", party="status")


def test_a_service_that_was_killed_is_not_asked(say, town):
    say("bakery", *MAKE)
    say("bakery", "--admission", "admission.json")
    word = {"url": "https://127.0.0.1:9", "pid": 1, "port": 9}
    (town / "bakery" / "owner.json").write_text(json.dumps(word))
    assert "does not run" in say("bakery", party="status")
