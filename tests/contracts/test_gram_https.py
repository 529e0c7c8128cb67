"""gram by real processes: device agents, a server and a helper, in two batches, with devices that
are away, a helper and a server that are killed. Model and ledger are the simulation's, bit for bit,
and nobody contributes to a stage twice."""

from copy import deepcopy

import numpy as np
import pytest
from forwarder import Forwarder
from test_secure_sum_https import nobody
from test_services_killed import Killed

from sottovoce.experiment import Experiment
from sottovoce.parties.secure_sum import summed
from sottovoce.runs.devices import federation_of, world_of
from sottovoce.runs.train import run_experiment
from sottovoce.stores.device import CohortStore
from sottovoce.stores.session import DeviceSession

pytestmark = pytest.mark.usefixtures("forked_children")

TOWN = {
    "name": "gram-for-real",
    "seed": 5,
    "town": {"residents": 12, "venues": 60, "districts": 2},
    "algorithm": {"name": "gram", "popularity_share": 0.3, "batches": 2, "least_head": 12},
    "release": {"epsilon": 8.0},
    "service": {"deadline_seconds": 6.0, "min_devices": 8},
    "consent": {"mix": [{"weight": 1, "epsilon": 0.5}, {"weight": 1, "epsilon": 4.0}]},
    "link": {"min_devices": 3},
}


def parties(**changes):
    experiment = Experiment.from_table(deepcopy(TOWN) | changes)
    prepared = experiment.prepared(experiment.dataset())
    made = federation_of(prepared)
    return made, world_of(experiment, prepared.dataset, made)


def fold(made, rows):
    """A round of these devices, with the helper's noise."""
    server, view = made.server, made.server.publish()
    many, _ = server.algorithm.report_shape(view)
    sums = made.devices.report_summed(view, np.array(rows)).dense(many)
    sums += made.masker.noise(view.round, many).reshape(sums.shape)
    server.fold(summed(view.round, sums, len(rows)))


class Batches(Killed):
    """A trial whose agents, each of which serves four devices, come and go."""

    def _start_agents(self, url):
        self.agents += [self.serve(0, url), self.serve(1, url)]

    def serve(self, number, url):
        stores = [self.store(row) for row in range(number, 12, 3)]
        return self._start(f"agent-{number}", "serve", "device", *stores, "--server", url)


def test_who_was_away_contributes_in_the_next_batch_and_nobody_twice(tmp_path):
    made, world = parties()
    with Forwarder(1) as way:
        trial = Batches(world, tmp_path / "services", 2, way)
        with trial.running():
            trial.advance(1, nobody)
            fold(made, [0, 1, 3, 4, 6, 7, 9, 10])
            trial.agents[1].kill()
            trial.kill_proxy()
            trial.kill_server()
            trial.advance(2, nobody)
            fold(made, [0, 3, 6, 9])
            trial.agents += [trial.serve(1, way.url), trial.serve(2, way.url)]
            trial.advance(3, nobody)
            fold(made, [2, 5, 8, 11])
            trial.advance(4, nobody)
            fold(made, [1, 2, 4, 5, 7, 8, 10, 11])
            items, ledger = trial.operator().model(4, trial.world.terms).items, trial.ledger()
            rounds, refused = trial.log()
            agents, trial.agents = trial.agents, []
            for agent in agents:
                agent.stop()
    assert np.array_equal(items, made.server.items), "to the last bit"
    assert items.any(axis=1).sum() > 12
    assert not refused
    assert [r["reported"] for r in rounds] == [8, 4, 4, 8]
    (table,) = ledger
    pairs = list(zip(table.user.tolist(), (table.round % 2).tolist(), strict=True))
    assert sorted(pairs) == [(user, stage) for user in range(12) for stage in (0, 1)]
    spent = np.bincount(table.user, table.epsilon)
    assert spent == pytest.approx(made.devices.cohort.consent.epsilon, rel=1e-9)
    with CohortStore.open(trial.store(1), readonly=True) as store:
        assert store.spent() == pytest.approx([spent[1]])
        assert DeviceSession(store).recommend(1, 5)


@pytest.mark.slow
def test_64_agents_give_the_simulations_model_and_ledger(tmp_path):
    town = {"town": {"residents": 64, "venues": 200}, "service": {}}
    table = deepcopy(TOWN) | town | {"link": {"min_devices": 20}}
    table["algorithm"] |= {"batches": 1}
    made = [
        run_experiment(Experiment.from_table(table), tmp_path / engine, engine=engine)
        for engine in ("simulation", "https")
    ]
    models = [np.load(tmp_path / engine / "model.npz") for engine in ("simulation", "https")]
    assert np.array_equal(models[0]["items"], models[1]["items"])
    ledgers = [
        (tmp_path / engine / "ledger.parquet").read_bytes() for engine in ("simulation", "https")
    ]
    assert ledgers[0] == ledgers[1]
    assert len(made) == 2
