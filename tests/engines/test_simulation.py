"""The engine: when observers look, what message_observers hear, how far it runs."""

import numpy as np
import pytest

from sottovoce.algorithms.fpl.system import FPL, FPLConfig
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.engines.observers import AtRounds, Checkpoints, Periodically
from sottovoce.engines.simulation import SimulatedDevices, Simulation
from sottovoce.errors import ConfigError
from sottovoce.parties import device as door
from sottovoce.parties.defence import Defence
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.testing import Messages, random_world

TRAIN = random_world(30, 50, 300, seed=1)


def simulation(cohort_size=30, rounds=20, **options):
    rng = Streams.from_seed(1)
    algorithm = FPL(FPLConfig(embedding_size=4), 3)
    users = np.arange(30)
    consent = Consent.uniform(users, Choice(share_positives=0.5))
    cohort = Cohort(users, TRAIN, consent, algorithm.device_init(users, rng))
    devices = SimulatedDevices.behind_door(algorithm, cohort, ShareFraction(), Ledger(), rng)
    server = Server.start(algorithm, TRAIN.n_items, rng)
    return Simulation(server, devices, cohort_size, rounds, **options)


@pytest.mark.parametrize("cohort_size", [1, 7, 30])
def test_observers_look_when_they_asked_to_and_at_the_end(cohort_size):
    periodic, given, saved = [], [], []
    observers = [
        Periodically(6, lambda m: periodic.append(m.round)),
        AtRounds((1, 13), lambda m: given.append(m.round)),
        Checkpoints(5, saved.append, seconds=0.0),
    ]
    simulation(cohort_size, observers=observers).run()
    assert periodic == [6, 12, 18, 20]
    assert given == [1, 13]
    assert saved == [5, 10, 15, 20]


def test_checkpoints_wait_for_their_time():
    saved = []
    simulation(observers=[Checkpoints(1, saved.append, seconds=1e9)]).run()
    assert saved == [20]


@pytest.mark.parametrize("cohort_size", [1, 7])
def test_looking_changes_nothing(cohort_size):
    seen, blind = simulation(cohort_size), simulation(cohort_size)
    seen.observers = [Periodically(3, lambda m: None)]
    blind.block = 4
    seen.run()
    blind.run()
    assert np.array_equal(seen.server.items, blind.server.items)
    assert seen.devices.ledger.totals == blind.devices.ledger.totals


def test_every_round_asks_the_right_number_of_distinct_devices():
    heard = []

    class Ear:
        def on_message(self, party, message):
            if party == "server":
                heard.append(message)

    simulation(7, rounds=60, message_observers=[Ear()]).run()
    assert [r.round for r in heard] == list(range(60))
    assert all(len(np.unique(r.sender)) == 7 for r in heard)
    asked = np.bincount(np.concatenate([np.unique(r.sender) for r in heard]), minlength=30)
    assert asked.min() > 0
    assert asked.max() < 30


@pytest.mark.parametrize("defence", [Defence(), Defence(burst=0.05, max_sum_norm=2.0)])
@pytest.mark.parametrize(("at_once", "parts"), [(1, 30), (600, 4), (10**9, 1)])
def test_messages_in_parts_give_the_same(monkeypatch, defence, at_once, parts):
    """600 numbers are those of two devices that send everything, and of twenty that send what FPL
    does: the parts grow."""
    quiet, told = simulation(rounds=4), simulation(rounds=4, message_observers=[Messages()])
    for one in (quiet, told):
        one.server.guard = defence.guard()
    quiet.run()
    monkeypatch.setattr(door, "_WRITTEN_AT_ONCE", at_once)
    told.run()
    assert np.array_equal(quiet.server.items, told.server.items)
    assert np.array_equal(quiet.devices.cohort.vectors, told.devices.cohort.vectors)
    assert quiet.devices.ledger.totals == told.devices.ledger.totals
    for round in range(4):
        heard = [m for m in told.message_observers[0].seen if m.round == round]
        assert len(heard) == parts
        assert np.concatenate([np.unique(m.sender) for m in heard]).tolist() == list(range(30))
        assert all(m.values.size <= at_once or len(np.unique(m.sender)) == 1 for m in heard)


def test_a_run_goes_on_from_the_servers_round():
    whole, parts = simulation(rounds=20), simulation(rounds=8)
    whole.run()
    parts.run()
    parts.rounds = 20
    parts.run()
    assert np.array_equal(whole.server.items, parts.server.items)


def test_more_devices_than_there_are_raises():
    with pytest.raises(ConfigError, match="30 take part"):
        simulation(31).run()
