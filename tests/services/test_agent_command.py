"""The agent as a process: its exit code, its signals and its words."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_federation import TERMS, Federation, make_store
from talk import until

from sottovoce.errors import StoreError
from sottovoce.stores import keys


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "sottovoce", "serve", "device", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_ends_when_told_and_says_why(folder, tmp_path):
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


@pytest.mark.skipif(os.name != "posix", reason="a process cannot be replaced elsewhere")
def test_joining_and_staying_becomes_the_agent(folder, tmp_path):
    """What is for joining takes more than the agent, which runs for weeks."""
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
        with contextlib.suppress(OSError):  # no Linux
            words = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
            assert words[-4:] == ["serve", "device", str(store), ""]
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert json.loads(err.splitlines()[-1])["event"] == "stopped"
