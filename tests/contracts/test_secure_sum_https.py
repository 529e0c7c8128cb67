"""The secure sum by real processes: device agents, a server that sees sums alone, and a proxy that
knows masks alone. The model is the simulation's, bit for bit, and what lies in the server's
database is no update."""

import http.client
import json
import time
from copy import deepcopy

import numpy as np
import pytest
from scipy import stats

from sottovoce.core.links import SEALED_SEED_BYTES
from sottovoce.core.messages import add_up
from sottovoce.experiment import Experiment
from sottovoce.runs.devices import federation_of, world_of
from sottovoce.services.trial import HttpsTrial
from sottovoce.stores import server as records
from sottovoce.stores import sums
from sottovoce.stores.keys import authority_pem, device_context
from sottovoce.stores.server_folder import open_folder
from sottovoce.wire.masked import message_bytes

pytestmark = pytest.mark.usefixtures("forked_children")

pytest.importorskip("torch")

TOWN = {
    "name": "summed",
    "seed": 5,
    "town": {"residents": 8, "venues": 60, "districts": 2},
    "service": {"deadline_seconds": 280.0},
    "consent": {"mix": [{"weight": 1, "share_positives": 1.0}]},
    "link": {"name": "secure-sum", "min_devices": 3},
}
FPL = {"name": "fpl", "embedding_size": 8, "triples": 20, "cohort_size": "all", "rounds": 3}
FCF = {"name": "fcf", "embedding_size": 4, "rounds": 2}
UC = {
    "name": "uc",
    "embedding_size": 8,
    "item_rate": 4.0,
    "local_epochs": 2,
    "pairs": 16,
    "rounds": 2,
    "attributes": [{"name": "gender"}],
}
NOISE = {"clip": 0.5, "noise": 0.05}


def parties(algorithm, service=None, **link):
    table = deepcopy(TOWN) | {"algorithm": algorithm}
    table["link"] |= link
    table["service"] |= service or {}
    experiment = Experiment.from_table(table)
    prepared = experiment.prepared(experiment.dataset())
    made = federation_of(prepared)
    return made, world_of(experiment, prepared.dataset, made)


def nobody(done):
    pass


def closing(trial):
    """Until the server has what it needs and only the proxy is missing; what it has by then."""
    end = time.monotonic() + 600
    while trial.operator().status()["state"] != "closing":
        assert time.monotonic() < end
        time.sleep(0.05)
    database = open_folder(trial.folder / "server").database()
    try:
        with database.reading() as link:
            now = records.position(link)
            return dict(sums.bodies(link, now.round, now.attempt))
    finally:
        database.close()


def require_service(trial):
    """The server still answers whoever asks for the model."""
    folder = open_folder(trial.folder / "server")
    context = device_context(authority_pem(folder.keys))
    link = http.client.HTTPSConnection(
        "127.0.0.1", folder.running()["port"], context=context, timeout=5
    )
    link.request("GET", "/v1/round")
    told = json.loads(link.getresponse().read())
    link.close()
    assert told["state"] == "waiting"


def require_masked(bodies, devices, view, terms):
    """Nothing of what these devices have sent can be read in what the server has."""
    assert {len(body) for body in bodies.values()} == {message_bytes(terms, view.items.size)}
    numbers = b"".join(body[16:-SEALED_SEED_BYTES] for body in bodies.values())
    counts = np.bincount(np.frombuffer(numbers, np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-6
    plain = devices.report(view, np.arange(len(bodies)))
    for row, values in zip(plain.sender.tolist(), plain.values, strict=True):
        assert values.any()
        assert values.astype("<i8").tobytes() not in bodies[row]
    return add_up(view.round, [plain], view.items.shape[1])


@pytest.mark.slow  # tests/contracts/test_gram_https.py has the same parties in `make test`
def test_agents_server_and_proxy_give_the_simulations_model(tmp_path):
    """The proxy is away for a while, and comes back; then two devices are."""
    simulated, world = parties(FPL, {"deadline_seconds": 10.0, "min_fraction": 0.5})
    server, devices = simulated.server, simulated.devices
    everyone = np.arange(8)
    trial = HttpsTrial(world, tmp_path / "services", 3)
    with trial.running():
        terms = trial.world.terms
        trial.advance(1, nobody)
        server.fold(devices.report_summed(server.publish(), everyone))
        trial.proxy.stop()
        trial.operator().raise_target(2)
        bodies = closing(trial)
        assert sorted(bodies) == everyone.tolist()
        require_service(trial)
        opened = require_masked(bodies, devices, server.publish(), terms)
        assert trial.round() == 1
        trial.start_helper()
        trial.advance(2, nobody)
        server.fold(opened)
        trial.agents[2].kill()
        there = np.array([n for n in range(8) if n % 3 != 2])
        trial.advance(3, nobody)
        server.fold(devices.report_summed(server.publish(), there))
        got, (rounds, refused) = trial.gather(), trial.log()
        sent = sum(int(table.bytes.sum()) for table in trial.ledger())
    assert np.array_equal(got.items, server.items), "to the last bit"
    assert not refused
    assert [r["outcome"] for r in rounds] == ["goal", "goal", "deadline"]
    assert [r["missing"] for r in rounds] == [[], [], [2, 5]]
    assert sent == (8 + 8 + 6) * (8 * got.items.size + SEALED_SEED_BYTES)
    told = json.loads((tmp_path / "services" / "proxy" / "answered.json").read_text())
    assert told["round"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "link"), [(FCF, NOISE), (UC, {})], ids=["fcf with noise", "uc"]
)
def test_the_same_for_other_algorithms(tmp_path, algorithm, link):
    simulated, world = parties(algorithm, **link)
    trial = HttpsTrial(world, tmp_path / "services", 2)
    with trial.running():
        trial.advance(2, nobody)
        got, (_, refused) = trial.gather(), trial.log()
        sent = sum(int(table.bytes.sum()) for table in trial.ledger())
    simulated.run()
    assert not refused
    assert np.array_equal(got.items, simulated.server.items), "to the last bit"
    assert np.array_equal(got.vectors, simulated.devices.cohort.vectors)
    assert sent == simulated.devices.ledger.totals.bytes
