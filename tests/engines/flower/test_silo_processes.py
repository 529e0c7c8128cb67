"""Data owners as Flower nodes in processes of their own, with TLS and node keys."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from talk import until

from sottovoce.algorithms.drift.messages import Interaction
from sottovoce.algorithms.drift.replay import exchange_together
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator, Owner
from sottovoce.engines.flower.launch import LocalFlower, NodePlan, go_on
from sottovoce.engines.flower.quiet import flower_environment
from sottovoce.rng import Streams
from sottovoce.stores.keys import init_keys, node_keys
from sottovoce.stores.orchestrator import OrchestratorStore
from sottovoce.stores.owner import DataOwner
from sottovoce.wire.interactions import Identity, begin
from sottovoce.wire.passes import Issuer
from sottovoce.wire.silo_files import Application

ROOT, ISSUER = Streams.from_seed(2), Issuer("town")
CONFIG = DRIFTConfig(theta=2, learning_rate=0.1)
HOLDINGS = {"alba": [0, 1, 2], "bora": [1, 2, 3]}
SERVE = """
import argparse, os, sys
from pathlib import Path
from sottovoce.engines.flower.silo_node import build_owner_app
from sottovoce.engines.flower.supernode import Connection, serve_app
from sottovoce.engines.processes import told_to_stop
from sottovoce.errors import SottovoceError
from sottovoce.stores.owner import DataOwner
from sottovoce.wire.interactions import Identity

parser = argparse.ArgumentParser()
for name in ("folder", "--superlink", "--ca", "--key"):
    parser.add_argument(name)
given = parser.parse_args()
folder = Path(given.folder)
place = folder / "node.id"
owner = DataOwner.open(folder, Identity((folder / "identity").read_bytes()))
try:
    with told_to_stop() as stop:
        connection = Connection(given.superlink, Path(given.ca), Path(given.key))
        read = lambda: place.read_bytes() if place.exists() else None
        serve_app(build_owner_app(owner), connection, place.write_bytes, read, stop)
except SottovoceError as error:
    print(f"error: {error}", file=sys.stderr, flush=True)
    os._exit(error.exit_code)
os._exit(0)
"""


class Town:
    """Two owners, three users, and what simulation makes of them."""

    def __init__(self, path):
        self.path, self.server = path, path / "server"
        self.keys = [Identity() for _ in range(3)]
        items = [f"item {n}" for n in range(4)]
        init_keys(path / "keys")
        (path / "serve.py").write_text(SERVE)
        self.orchestrator, self.owners, self.nodes, self.said = (
            Orchestrator(CONFIG, ROOT),
            {},
            [],
            0,
        )
        with OrchestratorStore.create(self.server, "town", CONFIG, items, ROOT.key) as store:
            store.add_users([key.public for key in self.keys])
            for user in range(3):
                self.orchestrator.join_user(user)
            for name in HOLDINGS:
                self.admit(store, name)

    def admit(self, store, name):
        identity, key = Identity(), node_keys(self.path / "keys" / "nodes", name)
        line = key.with_name(f"{name}.pub").read_text().strip()
        items = tuple(HOLDINGS[name])
        application = Application(name, "http://127.0.0.1:1", identity.public, "", line, items)
        number = store.admit_owner(application)
        self.make(name, number, items, identity)
        command = (sys.executable, self.path / "serve.py", self.path / name)
        self.nodes.append(NodePlan(name, self.path / name, key, command))
        self.orchestrator.add_items(number, items)
        self.owners[number] = Owner(number, items, CONFIG)
        for user in range(3):
            self.owners[number].admit(user)

    def make(self, name, number, items, identity):
        DataOwner.create(
            self.path / name, number=number, name=name, federation="town", issuer=ISSUER.public,
            settings=CONFIG, items=items, identity=identity,
        ).close()  # fmt: skip
        (self.path / name / "identity").write_bytes(identity.private_bytes())

    def fill(self, number):
        """Blocks of every user at an owner, in its store and in simulation."""
        name = list(HOLDINGS)[number]
        identity = Identity((self.path / name / "identity").read_bytes())
        owner = DataOwner.open(self.path / name, identity)
        first, *_, last = HOLDINGS[name]
        for user, key in enumerate(self.keys):
            offer, once = owner.offer(ISSUER.admit(user, key.public))
            sender, hello = begin(user, key, number, identity.public, once)
            sealed = []
            for kind, item in (("negative", first), ("positive", last), ("negative", first)):
                self.said += 1
                sealed.append(sender.seal(self.said, kind, item, self.said))
                self.owners[number].receive(
                    Interaction(number, user, item, kind == "positive", self.said)
                )
            assert owner.take(owner.accept(offer, hello, sealed[0]), sealed).taken == 3
        owner.close()

    def simulate(self):
        return exchange_together(
            [owner for owner in self.owners.values() if owner.due], self.orchestrator
        )

    def check(self, updated):
        with OrchestratorStore.open(self.server) as store:
            assert [r.updated for r in store.rounds()] == updated
            assert not store.refused()
            model = store.load().model
        assert np.array_equal(model.users, self.orchestrator.model.users)
        assert np.array_equal(model.items, self.orchestrator.model.items)


def knock(local, town):
    """As a node whose key nobody has registered; what it was told."""
    town.make("intruder", 1, [1], Identity())
    key = node_keys(town.path / "strange", "intruder")
    done = subprocess.run(
        [
            *(sys.executable, town.path / "serve.py", town.path / "intruder"),
            *("--superlink", local.entrance, "--ca", local.keys / "ca.crt", "--key", key),
        ],
        env=flower_environment(town.path / "strange"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 7
    assert "does not let this node in" in done.stderr.splitlines()[-1]
    assert local.turned_away()["unknown_node"] == 1


def conduct_owners(local, folder, rounds):
    with OrchestratorStore.open(folder) as store:
        store.raise_target(rounds)
    settings = {"kind": "drift", "folder": str(folder), "rounds": rounds, "hold": True}
    return go_on(local.place, folder, {**settings, "nodes": len(local.nodes)})


@pytest.mark.slow
def test_two_owners_in_processes_equal_simulation_and_a_third_is_not_let_in(tmp_path):
    town = Town(tmp_path)
    town.fill(0)
    town.fill(1)
    with LocalFlower(tmp_path / "work", town.nodes, keys=tmp_path / "keys") as local:
        status = conduct_owners(local, town.server, 1)
        assert (status["state"], status["round"]) == ("finished", 1)
        assert status["online"] == ["alba", "bora"]
        assert town.simulate() == 2
        town.check([("alba", "bora")])

        # One is killed, gets more, and is started again.
        os.kill(local.running["bora"].process.pid, signal.SIGKILL)
        local.running["bora"].process.wait()
        knock(local, town)
        town.fill(1)
        local.start_node("bora")
        until(lambda: local.running["bora"].log.read_text().count("SuperNode ID") >= 2)
        status = conduct_owners(local, town.server, 2)
        assert status["silent"] == []
        assert town.simulate() == 1
        town.check([("alba", "bora"), ("bora",)])
        assert status["not_admitted"] == 0
