"""UC-FedRec by real processes: eight device agents over HTTPS, in three processes since each has to
load torch, a change of mind in between, and the model of the simulation."""

import contextlib
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.cli import call
from sottovoce.engines.simulation import Simulation
from sottovoce.experiment import Experiment
from sottovoce.runs.devices import world_of
from sottovoce.runs.federation import Federation

pytest.importorskip("torch")

from sottovoce.services.trial import HttpsTrial

pytestmark = pytest.mark.usefixtures("forked_children")

TABLE = {
    "name": "uc",
    "seed": 5,
    "town": {"residents": 8, "venues": 60, "districts": 2},
    "algorithm": {
        "name": "uc",
        "embedding_size": 8,
        "item_rate": 4.0,
        "local_epochs": 4,
        "pairs": 32,
        "rounds": 3,
        "attributes": [{"name": "gender"}, {"name": "age"}],
    },
    "consent": {
        "mix": [
            {"weight": 1, "share_positives": 1.0},
            {"weight": 1, "share_positives": 1.0, "hidden_attributes": ["age"], "strength": 0.8},
        ]
    },
    "service": {"deadline_seconds": 280.0},
}


def told(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert call([*map(str, arguments), "--json"]) == 0
    return json.loads(out.getvalue())


def parties():
    experiment = Experiment.from_table(TABLE)
    dataset = experiment.dataset()
    consent = experiment.records(dataset)
    settings, labels = experiment.on(dataset, consent)
    train = experiment.split(dataset).train
    rng = experiment.streams().child("federation")
    release = experiment.cross_device().release
    return experiment, dataset, Federation.build(settings, train, consent, release, rng, labels)


@pytest.mark.slow
def test_eight_agents_with_a_change_of_mind_give_the_simulations_model(tmp_path):
    _, _, simulated = parties()
    experiment, dataset, real = parties()
    before = simulated.devices.cohort.consent
    (willing,) = np.nonzero(~before.hidden_attributes.any(axis=1))
    who = int(willing[0])
    trial = HttpsTrial(world_of(experiment, dataset, real), tmp_path / "services", 3)
    with trial.running():
        assert len(trial.agents) == 3
        trial.advance(1, lambda done: None)
        said = told("device", "consent", trial.store(who), "--hide", "gender", "--strength", "0.7")
        assert said["choice"]["hidden_attributes"] == ["gender"]
        trial.advance(3, lambda done: None)
        got = trial.gather()
        rounds, refused = trial.log()
        assert not refused
        assert [entry["reported"] for entry in rounds] == [8, 8, 8]
        ledger = trial.ledger()

    server, devices = simulated.server, simulated.devices
    Simulation(server, devices, 8, 1).run()
    devices.change_consent(changed(before, who))
    Simulation(server, devices, 8, 3).run()
    assert np.array_equal(got.items, server.items), "to the last bit"
    assert np.array_equal(got.vectors, devices.cohort.vectors)
    assert sum(int(table.bytes.sum()) for table in ledger) == devices.ledger.totals.bytes


def changed(consent, who):
    hidden, strength = consent.hidden_attributes.copy(), consent.strength.copy()
    hidden[who, consent.attributes.index("gender")] = True
    strength[who] = 0.7
    return replace(consent, hidden_attributes=hidden, strength=strength)
