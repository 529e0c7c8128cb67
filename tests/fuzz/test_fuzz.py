"""Hostile inputs for every service: none fails, stops, slows or fills it, or is counted that was
refused. `make fuzz` sends more of them."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent

import fuzz_runner  # noqa: E402
from fuzz_choices import Choices, drawn  # noqa: E402
from fuzz_decoders import ELSEWHERE, Decoders, readers  # noqa: E402
from fuzz_runner import GROWTH, TARGETS, Runner, replay, run, shares  # noqa: E402
from fuzz_targets import addresses  # noqa: E402
from fuzz_watch import Trouble  # noqa: E402

SERVICES = sorted(set(TARGETS) - {"decoders"})
MILLION = 1_000_000


def fuzz(*arguments, timeout):
    """The reports of a process of its own."""
    done = subprocess.run(
        [sys.executable, str(HERE), "--json", "--guided", "no", *map(str, arguments)],
        capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.stdout, done.stderr[-3000:]
    return {report["target"]: report for report in json.loads(done.stdout.splitlines()[-1])}


def told(report):
    return "\n".join(
        f"{kind} ({found['times']} times): {found['why']}\n{found['sent']}\ndata: {found['data']}"
        for kind, found in report["findings"].items()
    )


def holds(report):
    """Nothing was found, and every address was asked; where something is sent, some of it was
    refused. That good requests were answered well is what every run begins with."""
    assert not report["findings"], told(report)
    assert report["grown"] <= GROWTH
    for address, statuses in report["answers"].items():
        assert sum(statuses.values()) > 5, f"{address} was hardly asked"
        if address.startswith("POST"):
            assert any(int(status) >= 400 for status in statuses), f"{address} refused nothing"


def test_ten_thousand_inputs_find_nothing(tmp_path):
    names = [name for name in TARGETS if name != "server-postgres"]
    chosen = [word for name in names for word in ("--target", name)]
    reports = fuzz("--inputs", 10_000, "--together", "--save", tmp_path, *chosen, timeout=800)
    assert set(reports) == set(names)
    assert sum(report["inputs"] for report in reports.values()) == 10_000
    for report in reports.values():
        holds(report)


@pytest.mark.slow
def test_postgres_holds_as_well(tmp_path):
    from postgres_world import binaries

    binaries()  # skips where there is none
    reports = fuzz(
        "--inputs",
        600,
        "--together",
        "--save",
        tmp_path,
        "--target",
        "server-postgres",
        timeout=800,
    )
    holds(reports["server-postgres"])


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", TARGETS)
def test_a_million_inputs_find_nothing(name, tmp_path):
    if name == "server-postgres":
        from postgres_world import binaries

        binaries()
    count = shares(MILLION, list(TARGETS))[name]
    reports = fuzz(
        "--inputs", count, "--together", "--seed", 2, "--save", tmp_path, "--target", name,
        timeout=2900,
    )  # fmt: skip
    assert reports[name]["inputs"] == count
    holds(reports[name])


# --- the fuzzer itself ----------------------------------------------------------------------------


def test_a_million_are_a_million():
    assert sum(shares(MILLION, list(TARGETS)).values()) == MILLION
    assert sum(shares(10_000, SERVICES).values()) == 10_000


def test_every_reader_of_messages_is_fuzzed(tmp_path):
    found = readers()
    assert found - set(ELSEWHERE) <= set(Decoders(tmp_path).cases)
    assert set(ELSEWHERE) <= found, "something that is named here is gone"


@pytest.mark.parametrize("name", ["masker", "server"])
def test_a_new_address_is_fuzzed_and_must_be_taught(name):
    """Addresses come from the services' own tables."""

    async def broken(scope, receive, send):
        raise KeyError("x")

    runner = Runner(name, 1)
    try:
        target = runner.target
        service = target.app.service.service
        service._routes = {**service._routes, "/v1/new": ("GET", broken)}
        assert ("GET", "/v1/new") in addresses(service)
        target.addresses = target._weighted = [("GET", "/v1/new")]
        with pytest.raises(Trouble, match="KeyError"):
            target.reach()
        for index in range(20):
            runner.feed(drawn(1, name, index))
        assert [kind for kind in runner.report.findings if kind.startswith("KeyError")]
    finally:
        runner.close()


class Faulty:
    """A target with one fault of each kind, at inputs that begin with a certain byte."""

    name, statuses = "faulty", {}
    kept = []  # noqa: RUF012

    def __init__(self, path):
        self.count = 0

    def send(self, data):
        if data[0] == 7:
            raise Trouble("seven", "it was a seven")
        if self.fault == "memory":
            self.kept.append(bytes(1 << 15) + data)
        if self.fault == "slow" and data[0] == 8:
            time.sleep(0.06)

    def reach(self):
        pass

    tick = check = honest = close = reach

    def log(self):
        return ["not stored: full"] if self.fault == "log" else []


@pytest.mark.parametrize("fault", ["", "memory", "slow", "log"])
def test_what_is_wrong_is_found_and_can_be_replayed(fault, tmp_path, monkeypatch):
    monkeypatch.setitem(TARGETS, "faulty", Faulty)
    monkeypatch.setattr(Faulty, "fault", fault, raising=False)
    monkeypatch.setattr(Faulty, "kept", [])
    if fault == "slow":
        monkeypatch.setattr(fuzz_runner, "SLOWEST", 0.05)
    report = run("faulty", 1000, 3, tmp_path)
    kinds = set(report.findings)
    assert kinds == {"seven"} | ({"memory", "slow", "logged"} & {fault, f"{fault}ged"})
    saved = json.loads((tmp_path / "faulty-seven.json").read_text())
    assert bytes.fromhex(saved["data"])[0] == 7
    assert "seven" in replay(saved).findings
    report = replay({**saved, "data": "00"})
    assert "seven" not in report.findings


def test_no_bytes_are_a_good_message_and_equal_bytes_an_equal_one():
    assert Choices(b"").document({"a": 1}) == b'{"a": 1}'
    assert Choices(b"").perhaps_damaged(b"abc") == b"abc"
    assert Choices(b"").other(5) == 5
    data = drawn(1, "x", 2)
    made = [Choices(data).damaged(bytes(range(99))) for _ in range(2)]
    assert made[0] == made[1]
    many = {Choices(drawn(1, "x", n)).damaged(bytes(range(99))) for n in range(500)}
    assert len(many) > 300
