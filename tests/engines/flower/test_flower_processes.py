"""The Flower engine with real processes, TLS, node keys and the gateway."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from sottovoce.engines.flower import superlink
from sottovoce.engines.flower.launch import LocalFlower, NodePlan
from sottovoce.engines.flower.quiet import flower_environment
from sottovoce.errors import ServiceError
from sottovoce.parties.rounds import RoundRules
from sottovoce.stores.conductor import Checkpoint, read_status
from sottovoce.stores.keys import node_keys


def flower(town, tmp_path, security="full"):
    keys = town.folder / "keys"
    nodes = [NodePlan(name, path, None) for name, path in town.stores.items()]
    if security == "full":
        nodes = [NodePlan(n.name, n.store, node_keys(keys / "nodes", n.name)) for n in nodes]
    return LocalFlower(tmp_path / "work", nodes, keys=keys, security=security)


def check_equals(town, simulated):
    items, vectors, ledger = simulated
    with Checkpoint(town.folder, readonly=True) as checkpoint:
        assert np.array_equal(checkpoint.load().items, items)
    assert np.array_equal(town.vectors(), vectors)
    assert town.ledger() == ledger
    assert town.states() == {"arrived"}


def wait_for_round(town, round, seconds=600):
    """Until this round is open."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        status = read_status(town.folder)
        if status.get("state") == "open" and status["round"] == round:
            return
        assert status.get("state") != "failed", status
        time.sleep(0.02)
    pytest.fail(f"round {round} did not open within {seconds} seconds")


def still_there(tmp_path):
    """Processes that have something to do with this test's folder."""
    found = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = cmdline.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(tmp_path) in words and int(cmdline.parent.name) != os.getpid():
            found.append(words)
    return found


class Stranger:
    """Knows the address and the authority's certificate, as anyone may."""

    def __init__(self, local, tmp_path):
        self.local = local
        self.home = tmp_path / "stranger"
        self.home.mkdir()
        self.context = ssl.create_default_context(cafile=local.keys / "ca.crt")

    def status(self, path, method="POST"):
        url = f"https://{self.local.entrance}{path}"
        request = urllib.request.Request(url, data=b"x", method=method)
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def raw_status(self, path):
        """A path as it is, which a library would tidy up."""
        host, port = self.local.entrance.split(":")
        with (
            socket.create_connection((host, int(port)), timeout=60) as plain,
            self.context.wrap_socket(plain, server_hostname=host) as link,
        ):
            link.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
            return int(link.recv(100).split()[1])

    def register(self, public):
        """With Flower's own tool."""
        (self.home / "config.toml").write_text(
            f'[superlink.there]\naddress = "{self.local.entrance}"\n'
            f'root-certificates = "{self.local.keys / "ca.crt"}"\n'
        )
        return subprocess.run(
            ["flwr", "supernode", "register", str(public), "there", "--format", "json"],
            env=flower_environment(self.home),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def join(self, key, store):
        """As a node whose key nobody has registered."""
        return subprocess.run(
            [
                *(sys.executable, "-m", "sottovoce.engines.flower.supernode", str(store)),
                *("--superlink", self.local.entrance, "--ca", str(self.local.keys / "ca.crt")),
                *("--key", str(key)),
            ],
            env=flower_environment(self.home),
            capture_output=True,
            text=True,
            timeout=60,
        )


def knock(local, tmp_path, store):
    """Everything a stranger can try; each is refused and counted."""
    stranger = Stranger(local, tmp_path)
    before = local.turned_away()["stranger"]
    closed = [
        "/v1/control/register-node",
        "/v1/control/start-run",
        "/v1/control/list-nodes",
        "/v1/runtime/acquire-task",
        "/v1/runtime/pull-task-input",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/",
        "/health",
        "/docs",
        "/",
    ]
    assert {path: stranger.status(path) for path in closed} == dict.fromkeys(closed, 404)
    sly = [
        "/v1/fleet/../control/register-node",
        "/v1/fleet/%2e%2e/control/register-node",
        "/v1/fleet/pull-messages/../../control/register-node",
        "//v1/control/register-node",
        "/v1/fleet/pull-messages%2f..%2f..%2fcontrol%2fregister-node",
        "/v1/control/register-node;/v1/fleet/pull-messages",
    ]
    assert {path: stranger.raw_status(path) for path in sly} == dict.fromkeys(sly, 404)
    assert stranger.status("/v1/fleet/pull-messages", "GET") in (403, 404, 405)
    key = node_keys(tmp_path / "strange-keys", "intruder")
    done = stranger.register(key.with_name("intruder.pub"))
    assert not json.loads(done.stdout)["success"]
    assert "404" in done.stdout
    assert local.turned_away()["stranger"] >= before + len(closed) + len(sly) + 2
    done = stranger.join(key, store)
    assert done.returncode == 7
    assert "does not let this node in" in done.stderr.splitlines()[-1]
    assert local.turned_away()["unknown_node"] == 1


@pytest.fixture
def intruder_store(tmp_path):
    from sottovoce.stores.device import CohortStore

    CohortStore.create(tmp_path / "intruder-store", [(3, "nobody")]).close()
    return tmp_path / "intruder-store"


def open_to_others(folder):
    """What somebody with another account may read there."""
    return [path for path in [folder, *folder.rglob("*")] if path.lstat().st_mode & 0o077]


def test_three_nodes_equal_simulation_while_a_stranger_knocks(
    town, tmp_path, nginx, intruder_store, monkeypatch
):
    # As a run's default folder is: relative to where it is started.
    monkeypatch.chdir(tmp_path)
    town.folder = town.folder.relative_to(tmp_path)
    town.stores = {name: path.relative_to(tmp_path) for name, path in town.stores.items()}
    town.found()
    with flower(town, Path()) as local:
        run = local.start_run(town.folder, 1)
        knock(local, tmp_path, intruder_store)
        status = local.wait(town.folder, run, 1)
        ports = [int(local.entrance.split(":")[1]), local.place.port]
        assert not open_to_others(Path("work"))  # reports pass through the SuperLink's database
        assert not [p for p in open_to_others(town.folder) if p.name.startswith("flower")]
    statuses = {line.split()[1] for line in local.access_log.read_text().splitlines()}
    assert "200" in statuses
    assert not statuses & {"413", "429"}  # nodes keep within the limits without knowing them
    assert (status["state"], status["round"]) == ("finished", 1)
    check_equals(town, town.simulate(1))
    assert not still_there(tmp_path)
    for port in ports:
        with socket.socket() as probe, pytest.raises(OSError):
            probe.connect(("127.0.0.1", port))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bora", "corso"])
def test_a_node_that_is_killed_and_restarted_loses_nothing(town, tmp_path, nginx, name):
    town.found()
    with flower(town, tmp_path) as local:
        run = local.start_run(town.folder, 5)
        wait_for_round(town, 2)
        os.kill(local.running[name].process.pid, signal.SIGKILL)
        local.running[name].process.wait()
        time.sleep(2.0)
        local.start_node(name)
        local.wait(town.folder, run, 5)
    check_equals(town, town.simulate())


@pytest.mark.slow
def test_a_node_that_stays_away_is_missing_and_the_others_go_on(town, tmp_path, nginx):
    from dataclasses import replace

    from sottovoce.parties.rounds import RoundRules

    rules = RoundRules(over_selection=0.0, min_fraction=0.5, deadline_seconds=30.0, min_devices=8)
    town.found(rules=replace(rules, dormant_after=1))
    with flower(town, tmp_path) as local:
        run = local.start_run(town.folder, 5)
        wait_for_round(town, 2)
        os.kill(local.running["bora"].process.pid, signal.SIGKILL)
        local.wait(town.folder, run, 5)
    with Checkpoint(town.folder, readonly=True) as checkpoint:
        rounds, saved = checkpoint.rounds(), checkpoint.load()
    assert [r.round for r in rounds] == [0, 1, 2, 3, 4]
    missing = [set(r.missing) for r in rounds]
    assert {0, 7} in missing
    here = [set(range(8))] * 2 + [
        # Not asked any more, or asked and silent.
        set(range(8)) - {0, 7} if r.asked < 8 or r.missing else set(range(8))
        for r in rounds[2:]
    ]
    items, vectors, _ = town.simulate(asked=[sorted(part) for part in here])
    assert np.array_equal(saved.items, items)
    others = [n for n in range(8) if n not in (0, 7)]
    assert np.array_equal(town.vectors()[others], vectors[others])


@pytest.mark.slow
@pytest.mark.timeout(900)  # two federations' starts, each some ten processes
@pytest.mark.parametrize("down", [1.0, 20.0])
def test_a_superlink_that_is_killed_is_followed_by_a_run_from_the_checkpoint(
    town, tmp_path, nginx, down
):
    # An answer that is lost with the SuperLink is asked for again long before the deadline.
    town.found(rules=RoundRules(over_selection=0.0, deadline_seconds=60.0, min_devices=8))
    with flower(town, tmp_path) as local:
        run = local.start_run(town.folder, 5)
        wait_for_round(town, 2)
        os.kill(local.link.link.process.pid, signal.SIGKILL)
        local.link.link.process.wait()
        with pytest.raises(ServiceError, match="the SuperLink has ended"):
            local.wait(town.folder, run, 5)
        local.link.stop()
        time.sleep(down)
        local.start_superlink()
        status = local.train(town.folder, 5)
    assert status["state"] == "finished"
    check_equals(town, town.simulate())
    with Checkpoint(town.folder, readonly=True) as checkpoint:
        assert [r.round for r in checkpoint.rounds()] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_code_from_the_superlink_does_not_run_on_a_node(town, tmp_path, nginx, monkeypatch):
    """The app that the SuperLink hands out may hold anything; a node runs what is installed."""
    stolen = tmp_path / "stolen"
    evil = f"open({str(stolen)!r}, 'w').write('mine')\nclient = None\n"
    monkeypatch.setattr(
        superlink, "_APP", superlink._APP.replace("sottovoce_federation:client", "evil:client")
    )
    (tmp_path / "work" / "superlink" / "app").mkdir(parents=True)
    (tmp_path / "work" / "superlink" / "app" / "evil.py").write_text(evil)
    town.found()
    with flower(town, tmp_path) as local:
        local.train(town.folder, 1, hold=True)
        local.train(town.folder, 2, hold=True)
    check_equals(town, town.simulate(2))
    assert not stolen.exists()


@pytest.mark.slow
def test_plaintext_on_loopback_gives_the_same(town, tmp_path):
    town.found()
    with flower(town, tmp_path, "plaintext") as local:
        local.train(town.folder, 5)
    check_equals(town, town.simulate())
