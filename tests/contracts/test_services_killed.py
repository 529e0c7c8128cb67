"""Whole federations whose services are killed in the middle of rounds and started again: UC-FedRec
behind a secure sum, and DRIFT with sums over people. The model is the simulation's, bit for bit."""

import itertools
import threading
import time

import numpy as np
import pytest
from forwarder import Forwarder
from test_drift_sums_engines import CONFIG, world_of_two
from test_secure_sum_https import UC, nobody, parties

from sottovoce.engines.processes import wait_for
from sottovoce.services.server.operator import Operator
from sottovoce.services.silo_trial import SiloTrial
from sottovoce.services.trial import HttpsTrial
from sottovoce.stores import server as records
from sottovoce.stores.server_folder import open_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Killed(HttpsTrial):
    """A trial whose processes are killed and started again. The server comes back at another port,
    to which the agents' way leads."""

    def __init__(self, world, folder, processes, way):
        super().__init__(world, folder, processes, self._rerouted)
        self.way = way

    def _rerouted(self, url):
        self.way.target = "127.0.0.1", int(url.rpartition(":")[2])
        return self.way.url

    def kill_server(self):
        self.server.kill()
        folder = open_folder(self.folder / "server")
        self.server = self._start("server", "serve", "server", folder.path, "--port", "0")
        wait_for(self.server, lambda: folder.running() is not None)
        url = folder.running()["url"]
        self._operator.close()
        self._operator = Operator.of(folder, url)
        self._rerouted(url)

    def kill_proxy(self):
        self.proxy.kill()
        self.start_helper()

    def kill_agent(self):
        self.agents.pop(0).kill()
        rest, self.agents[:] = self.agents[:], []
        self._start_agents(self.way.url)
        for agent in self.agents[1:]:  # those that were there all the time go on
            agent.stop()
        self.agents[1:] = rest

    def stored_round(self):
        """From the disk, also while nobody serves."""
        database = open_folder(self.folder / "server").database()
        try:
            with database.reading() as link:
                return records.position(link).round
        finally:
            database.close()


def test_uc_behind_a_secure_sum(tmp_path):
    simulated, world = parties(UC | {"rounds": 4})
    rng, kills = np.random.default_rng(7), dict.fromkeys(("server", "proxy", "agent"), 0)
    victims = itertools.cycle(["server", "proxy", "proxy", "agent", "server"])
    with Forwarder(1) as way:
        trial = Killed(world, tmp_path / "services", 2, way)
        with trial.running():
            trial.operator().raise_target(4)
            while trial.stored_round() < 4:
                assert sum(kills.values()) < 60, "the rounds do not move on"
                time.sleep(rng.uniform(0.0, 1.5))
                victim = next(victims)
                if victim != "agent" or kills["agent"] < 2:
                    getattr(trial, f"kill_{victim}")()
                    kills[victim] += 1
            trial.advance(4, nobody)
            got, (rounds, _) = trial.gather(), trial.log()
            sent = sum(int(table.bytes.sum()) for table in trial.ledger())
    simulated.run()
    print(f"\nUC-FedRec: {kills} kills in {len(rounds)} rounds")
    assert min(kills["server"], kills["proxy"]) >= 1
    assert np.array_equal(got.items, simulated.server.items), "to the last bit"
    assert np.array_equal(got.vectors, simulated.devices.cohort.vectors)
    assert [r["missing"] for r in rounds] == [[]] * 4
    assert sent == simulated.devices.ledger.totals.bytes, "no budget is charged twice or given back"


def test_drift_with_sums_over_people(tmp_path):
    """Owners are killed while they take messages, the orchestrator in the middle of a round."""
    world, rng, kills = world_of_two(), np.random.default_rng(8), 0
    expected = world.aggregation()
    for _ in range(CONFIG.epochs):
        expected.epoch()
    trial = SiloTrial(world, tmp_path / "trial", deadline=60.0)
    with trial.running():
        for number in range(trial.rounds_in_all):
            trial.queue(number)
            for name in (*world.owners, *world.owners):
                sending = threading.Thread(target=trial.deliver)
                sending.start()
                time.sleep(rng.uniform(0.0, 0.2))
                trial.owners[name].kill()
                sending.join()
                trial.start_owner(name)
                kills += 1
            trial.deliver_all()
            trial.store.request_flush()
            trial.store.raise_target(number + 1)
            time.sleep(rng.uniform(0.0, 4.0))
            trial.orchestrator.kill()
            trial._start_orchestrator()
            kills += 1
            trial.close_round(number)
    print(f"\nDRIFT with sums: {kills} kills in {trial.rounds_in_all} rounds")
    model = trial.model_at_home()
    assert model.users.tobytes() == expected.model().users.tobytes()
    assert model.items.tobytes() == expected.model().items.tobytes()
    for record in trial.rounds():
        assert (record["updated"], record["silent"]) == (world.owners, ())
