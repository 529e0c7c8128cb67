"""`sottovoce serve device STORE` becomes another process: its exit code, its signals and its words
are those of the command."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_federation import TERMS, Federation, make_store
from talk import until

import sottovoce.__main__ as command
from sottovoce.cli import output
from sottovoce.errors import RunError, StoreError
from sottovoce.services.agent import alone
from sottovoce.stores import keys

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there is nothing like it elsewhere")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("keys")
    keys.init_keys(made)
    return made


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "sottovoce", "serve", "device", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def has_become(process):
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
    except OSError:  # no Linux
        return True
    return alone.WORD in words


def test_it_ends_as_the_command_would(folder, tmp_path):
    """All at once: each takes its time to start."""
    ca = keys.authority_pem(folder)
    ongoing, over = Federation(rounds=2, devices=2), Federation(rounds=1, devices=1)
    ongoing.poll_seconds = 60
    context = keys.server_context(folder)
    with ongoing.serve(context) as server, over.serve(context) as other:
        agree = ("--agree", TERMS.digest())
        signals = (signal.SIGTERM, signal.SIGINT)
        stopped = {
            number: start(
                make_store(tmp_path / number.name, ongoing, server.url, ca), *agree, "--json"
            )
            for number in signals
        }
        place = tmp_path / "a place, with ü"
        finished = start(
            make_store(place, over, other.url, ca),
            *("--until-finished", "--poll", "0.05", "--json"),
            *agree,
        )
        nowhere = start(tmp_path / "nothing", "--json")
        unknown = start(tmp_path / "nothing", "--server", "x", "--fish")
        until(lambda: len(ongoing.enrolments) == 2)
        for number, process in stopped.items():
            assert has_become(process)
            process.send_signal(number)
        for process in stopped.values():
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            assert json.loads(err.splitlines()[-1])["event"] == "stopped"
            assert list(json.loads(out)) == ["stores"]
        out, err = finished.communicate(timeout=60)
        assert finished.returncode == 0, err
        assert [one["store"] for one in json.loads(out)["stores"]] == [str(place)]
    out, err = nowhere.communicate(timeout=60)
    said = json.loads(out)
    assert nowhere.returncode == said["exit_code"] == StoreError.exit_code
    assert said["error"].startswith("there is no store in")
    assert err == f"error: {said['error']}\n"
    out, err = unknown.communicate(timeout=60)
    assert (unknown.returncode, out) == (2, "")
    assert err.startswith("error: No such option")


class TestWithin:
    """What the new process does, without one."""

    GIVEN = '{"store": "x", "options": {}, "json": true}'

    def ends(self, monkeypatch, capsys, raised):
        def serve(given):
            raise raised

        monkeypatch.setattr(sys, "argv", ["sottovoce", alone.WORD, self.GIVEN])
        monkeypatch.setattr(alone, "serve", serve)
        with pytest.raises(SystemExit) as ended:
            command.main()
        return ended.value.code, json.loads(capsys.readouterr().out)

    def test_an_error_is_one_object(self, monkeypatch, capsys):
        code, said = self.ends(monkeypatch, capsys, StoreError("it is broken"))
        assert (code, said["error"], said["kind"]) == (7, "it is broken", "StoreError")

    def test_control_c_while_it_starts_is_no_traceback(self, monkeypatch, capsys):
        code, said = self.ends(monkeypatch, capsys, KeyboardInterrupt())
        assert code == said["exit_code"] == output.Interrupted.exit_code

    def test_a_full_disk_is_a_sentence(self, monkeypatch, capsys):
        code, said = self.ends(monkeypatch, capsys, OSError(28, "No space left on device"))
        assert (code, "free some space" in said["error"]) == (RunError.exit_code, True)

    def test_a_fault_is_not_hidden(self, monkeypatch, capsys):
        monkeypatch.setattr(sys, "argv", ["sottovoce", alone.WORD, self.GIVEN])
        monkeypatch.setattr(alone, "serve", lambda given: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            command.main()


@pytest.mark.parametrize(
    "words",
    [
        [],
        [alone.WORD],
        [alone.WORD, "{"],
        [alone.WORD, "[]"],
        [alone.WORD, "{}"],
        [alone.WORD, "[" * 99_999],
        ["serve", TestWithin.GIVEN],
        [alone.WORD, TestWithin.GIVEN, "more"],
    ],
)
def test_the_words_of_somebody_else_are_left_to_the_command(words):
    assert alone.given(words) is None


def test_what_is_asked_for_arrives():
    assert alone.given([alone.WORD, TestWithin.GIVEN])["store"] == "x"


def test_joining_and_staying_becomes_the_agent_too(folder, tmp_path):
    """What reads commands is as heavy as an agent several times over."""
    town = Federation(rounds=2, devices=1)
    town.poll_seconds = 60
    with town.serve(keys.server_context(folder)) as server:
        store = make_store(tmp_path / "me", town, server.url, keys.authority_pem(folder))
        words = ("device", "join", store, "--agree", TERMS.digest(), "--yes", "--stay")
        process = subprocess.Popen(
            [sys.executable, "-m", "sottovoce", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        said = ""
        while '"event": "serving"' not in said:
            said = process.stderr.readline()
            assert said, "it has ended"
        assert has_become(process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert json.loads(err.splitlines()[-1])["event"] == "stopped"
