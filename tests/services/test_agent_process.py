"""`sottovoce serve device` as the process it is: killed, stopped, started twice, cut off."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict

import numpy as np
import pytest
from fake_federation import (
    CATALOGUE,
    CHOICE,
    TERMS,
    Federation,
    make_store,
    simulated,
)
from fake_server import Reply
from forked import COMMAND, ForkedProcess
from forwarder import Forwarder
from talk import until

from sottovoce.core.consent import Choice
from sottovoce.stores import keys
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession


@pytest.fixture
def serve(folder):
    """Start a made-up federation over TLS (or plaintext)."""
    with contextlib.ExitStack() as stack:

        def start(federation, context=None, tls=True):
            context = (context or keys.server_context(folder)) if tls else None
            return stack.enter_context(federation.serve(context))

        yield start


@pytest.fixture
def processes():
    """Start commands; whatever still runs at the end of the test is killed."""
    started = []

    def start(*arguments, script=None):
        started.append(ForkedProcess(script or COMMAND, *arguments))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        if not process.stdout.closed:
            process.communicate()


AGREE = ("--agree", TERMS.digest())
"""The owners have seen the terms elsewhere."""


def finish(process, timeout=60):
    """Exit code, standard output and the lines on standard error."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err.splitlines()


def device(processes, *stores, more=("--until-finished", "--poll", "0.05")):
    return processes("serve", "device", *stores, *more, *AGREE)


def test_agents_of_several_stores_run_a_federation_to_its_end(serve, processes, folder, tmp_path):
    federation = Federation(rounds=4, devices=3)
    server, ca = serve(federation), keys.authority_pem(folder)
    stores = [make_store(tmp_path / f"d{n}", federation, server.url, ca, n) for n in range(3)]
    together = device(processes, *stores[:2], more=["--until-finished", "--poll", "0.05", "--json"])
    alone = device(processes, stores[2])
    code, out, lines = finish(together)
    assert code == 0, lines
    assert finish(alone)[0] == 0
    assert np.array_equal(federation.server.items, simulated(4, users=3).items)
    told = json.loads(out)["stores"]
    assert [one["counted"] for one in told] == [4, 4]
    assert all(one["bytes_sent"] > 0 for one in told)
    # Logs are JSON lines that name rounds, rows and bytes, and no item.
    events = [json.loads(line) for line in lines]
    counted = [e for e in events if e["event"] == "counted"]
    assert {e["round"] for e in counted} == {0, 1, 2, 3}
    assert all(e["rows"] > 0 and e["bytes"] > 0 for e in counted)
    assert not any(item in line or title in line for line in lines for item, title in CATALOGUE)
    # Nothing is left behind, and another start says at once that all is done.
    assert finish(device(processes, *stores))[0] == 0


FAULT = """
import pathlib
from sottovoce.stores.session import DeviceSession
original = DeviceSession.prepare
def prepare(self, *arguments, **named):
    if self.store.path.name == "broken":
        raise ValueError("nobody thought of this")
    return original(self, *arguments, **named)
DeviceSession.prepare = prepare
from sottovoce.cli import main
main()
"""


def test_a_fault_in_one_store_leaves_the_others_alone(serve, processes, folder, tmp_path):
    one, two = Federation(rounds=3, devices=1), Federation(rounds=3, devices=1)
    ca = keys.authority_pem(folder)
    whole = make_store(tmp_path / "whole", one, serve(one).url, ca)
    broken = make_store(tmp_path / "broken", two, serve(two).url, ca)
    agents = processes("serve", "device", broken, whole, "--poll", "0.05", *AGREE, script=FAULT)
    until(lambda: one.state == "finished" or agents.poll() is not None)
    assert agents.poll() is None
    agents.terminate()
    code, _, lines = finish(agents)
    assert code == 0
    failed = [json.loads(line) for line in lines if '"failed"' in line]
    assert failed
    assert {event["store"] for event in failed} == {"broken"}
    assert (one.round, two.round) == (3, 0)


def test_an_agent_whose_log_cannot_be_written_goes_on(serve, folder, tmp_path):
    federation = Federation(rounds=3, devices=1)
    server = serve(federation)
    store = make_store(tmp_path / "d", federation, server.url, keys.authority_pem(folder))
    command = [sys.executable, "-m", "sottovoce", "serve", "device", store, "--until-finished"]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*command, "--poll", "0.05", *AGREE], stderr=full, timeout=60)
    assert (done.returncode, federation.round) == (0, 3)


# Killed.

CRASH = """
import os, sys
from sottovoce.engines.client import Client
from sottovoce.stores.session import DeviceSession
from sottovoce.stores.device import CohortStore
point, kind, name = {point!r}, {kind}, {name!r}
original = getattr(kind, name)
if point == "before":
    def crash(self, *arguments, **named):
        os._exit(99)
elif name in ("post", "get", "download"):
    async def crash(self, path, *arguments, **named):
        answer = await original(self, path, *arguments, **named)
        os._exit(99) if {path!r} in path else None
        return answer
else:
    def crash(self, *arguments, **named):
        original(self, *arguments, **named)
        os._exit(99)
setattr(kind, name, crash)
from sottovoce.cli import main
main()
"""


@pytest.mark.parametrize(
    ("point", "kind", "name", "path"),
    [
        ("after", "Client", "post", "/v1/enrol"),
        ("after", "DeviceSession", "meet", ""),
        ("after", "DeviceSession", "agree", ""),
        ("after", "DeviceSession", "keep_model", ""),
        ("after", "DeviceSession", "prepare", ""),
        ("after", "DeviceSession", "leaving", ""),
        ("after", "Client", "post", "/v1/reports"),
        ("before", "DeviceSession", "arrived", ""),
        ("after", "DeviceSession", "arrived", ""),
    ],
)
def test_a_crash_between_any_two_steps_loses_and_doubles_nothing(
    serve, processes, folder, tmp_path, point, kind, name, path
):
    federation = Federation(rounds=3, devices=1)
    server = serve(federation)
    store = make_store(tmp_path / "d", federation, server.url, keys.authority_pem(folder))
    script = CRASH.format(point=point, kind=kind, name=name, path=path)
    options = ["serve", "device", store, "--until-finished", "--poll", "0.05", *AGREE]
    assert finish(processes(*options, script=script))[0] == 99
    assert finish(processes(*options))[0] == 0
    check_whole(federation, {0: store})


def check_whole(federation, stores):
    """The federation is the simulated one, every report had one form, every ledger is whole."""
    expected = simulated(federation.target, users=len(stores))
    assert np.array_equal(federation.server.items, expected.items)
    forms = defaultdict(set)
    for round, attempt, number, body in federation.posted:
        forms[round, attempt, number].add(body)
    assert {len(bodies) for bodies in forms.values()} == {1}
    assert len({e["public_key"] for e in federation.enrolments}) == len(stores)
    for number, path in stores.items():
        with CohortStore.open(path) as store:
            assert np.array_equal(DeviceSession(store).vectors()[0], expected.vectors[number])
            ledger = store.ledger_rows().to_pydict()
            assert ledger["round"] == list(range(federation.target))
            assert set(ledger["state"]) == {"arrived"}
            assert sum(s.releases for s in store.budget()) == federation.target


@pytest.mark.parametrize(
    "kills", [3, pytest.param(25, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_killed_at_random_points_nothing_is_lost(serve, processes, folder, tmp_path, kills):
    federation = Federation(rounds=8 * kills, devices=2)
    server, ca = serve(federation), keys.authority_pem(folder)
    stores = {n: make_store(tmp_path / f"d{n}", federation, server.url, ca, n) for n in range(2)}
    rng = np.random.default_rng(kills)
    steady = device(processes, stores[0])
    for _ in range(kills):
        before = federation.round
        victim = device(processes, stores[1])
        until(lambda before=before: federation.round > before)  # both are at work
        time.sleep(rng.uniform(0, 0.3))
        os.killpg(victim.pid, signal.SIGKILL)
        victim.communicate()
    assert federation.state == "open"
    last = device(processes, stores[1])
    assert finish(last, 240)[0] == 0
    assert finish(steady, 240)[0] == 0
    check_whole(federation, stores)


def test_a_server_that_comes_and_goes_is_waited_for(serve, processes, folder, tmp_path):
    federation = Federation(rounds=8, devices=1)
    server = serve(federation)
    with Forwarder(server.port) as forwarder:
        url, ca = forwarder.url, keys.authority_pem(folder)
        store = make_store(tmp_path / "d", federation, url, ca)
        agent = device(processes, store)
        for round in (2, 5):
            until(lambda round=round: federation.round >= round)
            forwarder.refuse = True
            forwarder.cut()
            time.sleep(0.3)
            forwarder.refuse = False
        assert finish(agent)[0] == 0
    check_whole(federation, {0: store})


# Stopped.


def test_a_signal_ends_an_agent_whose_server_hangs(serve, processes, folder, tmp_path):
    federation = Federation(rounds=2, devices=1)
    federation.hook = lambda r: Reply(204, hang=3600) if r.path == "/v1/reports" else None
    server = serve(federation)
    store = make_store(tmp_path / "d", federation, server.url, keys.authority_pem(folder))
    agent = device(processes, store)
    until(lambda: [r for r in server.requests if r.path == "/v1/reports"])
    agent.terminate()
    assert finish(agent)[0] == 0
    with CohortStore.open(store) as opened:
        assert DeviceSession(opened).unresolved() is not None


SLOW = """
import time
from sottovoce.stores.session import DeviceSession
original = DeviceSession.prepare
def slow(self, *arguments, **named):
    print("learning", flush=True)
    time.sleep(3600)
DeviceSession.prepare = slow
from sottovoce.cli import main
main()
"""


def test_a_signal_ends_an_agent_that_learns_for_long(serve, processes, folder, tmp_path):
    federation = Federation(rounds=2, devices=1)
    server = serve(federation)
    store = make_store(tmp_path / "d", federation, server.url, keys.authority_pem(folder))
    agent = processes("serve", "device", store, "--poll", "0.05", *AGREE, script=SLOW)
    assert agent.stdout.readline() == "learning\n"
    agent.terminate()
    assert finish(agent)[0] == 0


# Started wrongly.


def one_sentence(finished, code):
    assert finished[0] == code, finished
    errors = [line for line in finished[2] if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Traceback" not in "".join(finished[2])
    return errors[0]


def test_two_agents_on_one_store(serve, processes, folder, tmp_path):
    federation = Federation(rounds=1, devices=2)
    server = serve(federation)
    store = make_store(tmp_path / "d", federation, server.url, keys.authority_pem(folder))
    first = device(processes, store)
    until(lambda: federation.enrolments)
    second = finish(device(processes, store))
    assert "is in use by another process" in one_sentence(second, 7)
    assert first.poll() is None
    assert "named twice" in one_sentence(finish(device(processes, store, store)), 2)
    first.terminate()
    assert finish(first)[0] == 0


def test_bad_starts_are_one_sentence(serve, processes, folder, tmp_path):
    federation, other = Federation(rounds=1, devices=1), Federation(rounds=1, devices=1)
    other.protocol = 1
    server, gone, ca = serve(other), serve(federation), keys.authority_pem(folder)
    gone.__exit__()
    stores = [
        make_store(tmp_path / f"d{n}", federation, url, ca)
        for n, url in enumerate([gone.url] * 3 + [server.url] * 2)
    ]
    started = [
        (tmp_path / "nothing", ["--once"], 7, "there is no store"),
        (stores[0], ["--once", "--server", "nonsense"], 2, "no address"),
        (stores[1], ["--plaintext", "--server", "http://192.0.2.1"], 2, "this machine only"),
        (stores[2], ["--once"], 7, "no server answers"),
        (stores[3], ["--once"], 6, "install the same release"),
        (stores[4], ["--until-finished"], 6, "install the same release"),
    ]
    running = [device(processes, store, more=more) for store, more, _, _ in started]
    for process, (_, _, code, words) in zip(running, started, strict=True):
        assert words in one_sentence(finish(process), code)
    assert other.posted == other.enrolments == []


# What an owner decides.


def test_at_the_socket_who_takes_no_part_sends_nothing(serve, processes, tmp_path):
    """Without TLS, so that every byte that leaves can be read."""
    federation = Federation(rounds=2, devices=1)
    federation.state = "open"
    server = serve(federation, tls=False)
    with Forwarder(server.port, record=True) as forwarder:
        url = f"http://127.0.0.1:{forwarder.port}"
        choice = Choice(takes_part=False, share_positives=1.0)
        store = make_store(tmp_path / "d", federation, url, choice=choice)
        agent = device(processes, store, more=["--plaintext", "--poll", "0.05"])
        until(lambda: len(server.requests) > 12)
        sent = bytes(forwarder.requests)
        lines = [line for line in sent.split(b"\r\n") if b"HTTP/1.1" in line]
        assert len(lines) > 10
        assert {line.split()[0] for line in lines} == {b"GET"}
        # Every byte belongs to a question: a line, the host, no body.
        names = {line.split(b":")[0].lower() for line in sent.split(b"\r\n") if b": " in line}
        assert names <= {b"host", b"accept-encoding"}
        assert all(request.body == b"" for request in server.requests)
        # She takes part after all, while the agent runs; and changes her mind again.
        with CohortStore.open(store) as owner:
            owner.set_choice(0, CHOICE)
        until(lambda: federation.state == "finished")
        assert b"POST /v1/reports" in forwarder.requests
        with CohortStore.open(store) as owner:
            owner.set_choice(0, Choice(takes_part=False))
        time.sleep(0.3)
        federation.target, federation.state = 5, "open"
        before = len(server.requests)
        posts = forwarder.requests.count(b"POST")
        until(lambda: len(server.requests) > before + 5)
        assert forwarder.requests.count(b"POST") == posts
        agent.terminate()
        assert finish(agent)[0] == 0
    with CohortStore.open(store) as opened:
        assert opened.ledger().num_rows == 2
