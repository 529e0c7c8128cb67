"""The Flower engine with real processes, TLS, node keys and the gateway."""

import numpy as np
import pytest

from sottovoce.engines.flower.checkpoint import Checkpoint
from sottovoce.engines.flower.gateway import find_nginx
from sottovoce.engines.flower.launch import LocalFlower, Node
from sottovoce.engines.https.keys import init_keys, node_keys

from conftest import missing_service


def flower(town, tmp_path, security="full"):
    keys = tmp_path / "keys"
    nodes = [Node(name, path, None) for name, path in town.stores.items()]
    if security == "full":
        init_keys(keys)
        nodes = [Node(n.name, n.store, node_keys(keys / "nodes", n.name)) for n in nodes]
    return LocalFlower(tmp_path / "work", nodes, keys=keys, security=security)


def check_equals(town, simulated):
    items, vectors, ledger = simulated
    with Checkpoint(town.folder, readonly=True) as checkpoint:
        assert np.array_equal(checkpoint.load().items, items)
    assert np.array_equal(town.vectors(), vectors)
    assert town.ledger() == ledger
    assert town.states() == {"arrived"}


def test_three_nodes_with_unequal_cohorts_equal_simulation(town, tmp_path):
    if find_nginx() is None:
        missing_service("nginx is not installed, so that the gateway cannot be tested")
    town.plan().write(town.folder)
    with flower(town, tmp_path) as local:
        status = local.train(town.folder, 5)
    assert (status["state"], status["round"]) == ("finished", 5)
    check_equals(town, town.simulate())
