"""Hostile inputs for every service: none fails, stops, slows or fills it, or is counted that was
refused. `make fuzz` sends more of them."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import fuzz_runner
import pytest
from fuzz_choices import Choices
from fuzz_decoders import ELSEWHERE, Decoders, readers
from fuzz_runner import TARGETS, Fuzzed, search, share
from fuzz_targets import addresses
from fuzz_watch import Trouble

INPUTS = int(os.environ.get("FUZZ_INPUTS", "6000"))


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name == "server-postgres" else [])
     for name in TARGETS],
)  # fmt: skip
def test_hostile_inputs_find_nothing(name):
    """Every address is asked, and where something is sent, some of it is refused."""
    if name == "server-postgres":
        from postgres_world import binaries

        binaries()  # skips where there is none
    with Fuzzed(name) as fuzzed:
        search(name, fuzzed, share(name, INPUTS))
    for address, statuses in fuzzed.target.statuses.items():
        assert sum(statuses.values()) > 5, f"{address} was hardly asked"
        if address[0] == "POST":
            assert any(status >= 400 for status in statuses), f"{address} refused nothing"


# --- the fuzzer itself ----------------------------------------------------------------------------


def test_every_reader_of_messages_is_fuzzed(tmp_path):
    found = readers()
    assert found - set(ELSEWHERE) <= set(Decoders(tmp_path).cases)
    assert set(ELSEWHERE) <= found, "something that is named here is gone"


@pytest.mark.parametrize("name", ["masker", "server"])
def test_a_new_address_is_fuzzed_and_must_be_taught(name):
    """Addresses come from the services' own tables."""

    async def broken(scope, receive, send):
        raise KeyError("x")

    with Fuzzed(name) as fuzzed:
        target = fuzzed.target
        service = target.app.service.service
        service._routes = {**service._routes, "/v1/new": ("GET", broken)}
        assert ("GET", "/v1/new") in addresses(service)
        target.addresses = target._weighted = [("GET", "/v1/new")]
        with pytest.raises(Trouble, match="KeyError"):
            target.reach()
        with pytest.raises(Trouble, match="KeyError"):
            search(name, fuzzed, 20)


class Faulty:
    """A target with one fault of each kind, at inputs that begin with a certain byte."""

    name, statuses, app = "faulty", {}, None
    fault, kept = "", []

    def __init__(self, path):
        pass

    def send(self, data):
        if self.fault == "memory":
            self.kept.append(bytes(1 << 17) + data)
        if data[0] > 128 and self.fault == "high":
            raise Trouble("high", "it was high")
        if data[0] > 128 and self.fault == "slow":
            end = time.process_time() + 0.06
            while time.process_time() < end:
                pass

    def reach(self):
        pass

    tick = check = honest = close = reach

    def log(self):
        return ["not stored: full"] if self.fault == "log" else []


@pytest.mark.parametrize(
    ("fault", "words"),
    [("high", "it was high"), ("slow", "an input takes"), ("log", "not stored"),
     ("memory", "it grew by")],
)  # fmt: skip
def test_what_is_wrong_is_found(fault, words, monkeypatch):
    monkeypatch.setitem(TARGETS, "faulty", Faulty)
    monkeypatch.setattr(Faulty, "fault", fault)
    monkeypatch.setattr(Faulty, "kept", [])
    if fault == "slow":
        monkeypatch.setattr(fuzz_runner, "SLOWEST", 0.05)
    monkeypatch.setattr(fuzz_runner, "_WARM", 500)

    def run():
        with Fuzzed("faulty", memory=True) as fuzzed:
            if fault == "high":
                search("faulty", fuzzed, 100)
            for _ in range(1500):  # Hypothesis would call what is seen now and then flaky
                fuzzed.feed(b"\xff" * 128)

    with pytest.raises(Trouble, match=words):
        run()


def test_what_one_input_brought_about_is_not_found_with_the_next(monkeypatch):
    """A service's error is logged by its connection, too."""

    def send(self, data):
        if data[0]:
            logging.getLogger("uvicorn.error").error("it was logged")
            raise Trouble("high", "it was high")

    monkeypatch.setitem(TARGETS, "faulty", Faulty)
    monkeypatch.setattr(Faulty, "send", send)
    with Fuzzed("faulty") as fuzzed:
        with pytest.raises(Trouble, match="it was high"):
            fuzzed.feed(b"\xff")
        fuzzed.feed(b"\x00")


def test_a_search_finds_nothing_in_a_target_without_fault(monkeypatch):
    monkeypatch.setitem(TARGETS, "faulty", Faulty)
    with Fuzzed("faulty", memory=True) as fuzzed:
        search("faulty", fuzzed, 200)
    assert fuzzed.inputs >= 200


@pytest.mark.slow
def test_the_guided_search_keeps_what_it_reached(tmp_path):
    pytest.importorskip("atheris")
    script = Path(__file__).with_name("__main__.py")
    command = [sys.executable, script, "--target", "decoders", "--inputs", "300"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done 100 runs" in done.stderr
    assert any((tmp_path / "fuzz-findings" / "decoders").iterdir())


def test_no_bytes_are_a_good_message_and_equal_bytes_an_equal_one():
    assert Choices(b"").document({"a": 1}) == b'{"a": 1}'
    assert Choices(b"").perhaps_damaged(b"abc") == b"abc"
    assert Choices(b"").other(5) == 5
    content = bytes(range(99))
    made = [Choices(bytes(range(128))).damaged(content) for _ in range(2)]
    assert made[0] == made[1] != content
