"""A fleet over HTTPS, as real processes: agents and the server are killed, rounds go on."""

import os
import signal
import time

import numpy as np
import pytest

from sottovoce.engines.processes import Child, sottovoce_command, wait_for
from sottovoce.experiment import Experiment
from sottovoce.runs.devices import world_of
from sottovoce.runs.federation import Federation
from sottovoce.services.trial import HttpsTrial
from sottovoce.stores.device import CohortStore
from sottovoce.stores.server_folder import open_folder
from sottovoce.stores.session import DeviceSession

ROUNDS = 10


def experiment(residents, **service):
    return Experiment.from_table(
        {
            "name": "fleet",
            "seed": 5,
            "town": {"residents": residents, "venues": 120},
            "algorithm": {"configuration": "pFPL+", "embedding_size": 8, "rounds": ROUNDS},
            "consent": {"share_positives": 0.5},
            "service": service,
        }
    )


def trial_of(what, folder, processes):
    dataset = what.dataset()
    federation = Federation.build(
        what.algorithm,
        what.split(dataset).train,
        what.records(dataset),
        what.release,
        what.streams().child("federation"),
    )
    return HttpsTrial(world_of(what, dataset, federation), folder, processes), federation


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def listening(port):
    with open("/proc/net/tcp") as table:
        return any(f":{port:04X} 00000000:0000 0A" in line for line in table)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_64_agents_of_which_a_tenth_is_killed(tmp_path):
    """Every round ends by goal count or deadline, it is known who was missing, and the model is
    exactly that of a simulation with those who reported."""
    # Long enough for every agent that lives, on two cores; who is silent once is not waited for.
    what = experiment(64, deadline_seconds=60.0, dormant_after=1)
    trial, federation = trial_of(what, tmp_path / "services", 64)
    chosen = np.random.default_rng(11)
    victims = chosen.choice(64, 6, replace=False).tolist()
    moments = sorted(chosen.choice(np.arange(1, ROUNDS - 1), 3, replace=False).tolist())
    with trial.running():
        port = int((open_folder(tmp_path / "services/server").running() or {})["port"])
        pids = [child.process.pid for child in trial.agents]

        def tick(done):
            while moments and done >= moments[0]:
                moments.pop(0)
                for _ in range(2):
                    os.kill(pids[victims.pop()], signal.SIGKILL)

        trial.advance(ROUNDS, tick)
        state = trial.gather()
        dead = {row for row, agent in enumerate(trial.agents) if not agent.alive}
    assert not moments
    assert not victims
    rounds, _ = trial.log()
    assert len(dead) == 6
    counted = [r for r in rounds if r["outcome"] != "abandoned"]
    assert [r["round"] for r in counted] == list(range(ROUNDS))
    assert all(r["outcome"] in ("goal", "deadline") for r in counted)
    missing = set().union(*(r["missing"] for r in rounds))
    assert missing == dead
    assert not any(alive(pid) for pid in pids)
    assert not listening(port)
    # The same participants in simulation, round by round: who was silent was not asked again.
    took_part = np.arange(64)
    for past in counted:
        assert past["asked"] == len(took_part)
        took_part = np.setdiff1d(took_part, past["missing"])
        view = federation.server.publish()
        reports = federation.devices.report(view, took_part)
        federation.server.fold(federation.server.sum_reports([reports]))
    assert np.array_equal(federation.server.items, state.items)
    # Who was killed between sending and the answer does not know yet that the report counted.
    survivors = np.setdiff1d(np.arange(64), list(dead))
    vectors = federation.devices.cohort.vectors
    assert np.array_equal(vectors[survivors], state.vectors[survivors])


@pytest.mark.slow
def test_a_killed_server_goes_on_where_it_was(tmp_path):
    """kill -9 in mid-round, again and again: no acknowledged report is lost, no round is applied
    twice, and the model is that of an uninterrupted run."""
    what = experiment(6, deadline_seconds=250.0)
    trial, federation = trial_of(what, tmp_path / "services", 3)
    chosen = np.random.default_rng(2)
    with trial.running():
        port = int((open_folder(tmp_path / "services/server").running() or {})["port"])
        trial.operator().raise_target(ROUNDS)
        for _ in range(4):
            time.sleep(chosen.uniform(0.2, 0.9))
            os.kill(trial.server.process.pid, signal.SIGKILL)
            trial.server.process.wait()
            trial.server = Child(
                "the server",
                sottovoce_command(
                    "serve", "server", tmp_path / "services/server", "--port", str(port)
                ),
                log=tmp_path / "server.log",
            )
            wait_for(trial.server, lambda: listening(port))
        trial.advance(ROUNDS, lambda done: None)
        state = trial.gather()
    rounds, _ = trial.log()
    assert [r["round"] for r in rounds if r["outcome"] != "abandoned"] == list(range(ROUNDS))
    assert not any(r["missing"] for r in rounds)
    federation.run()
    assert np.array_equal(federation.server.items, state.items)
    assert np.array_equal(federation.devices.cohort.vectors, state.vectors)


@pytest.mark.slow
def test_killed_devices_lose_nothing(tmp_path):
    """kill -9 of agents at any moment, restarted each time: model, vectors and ledgers are those of
    a run without kills; every interaction and choice is there."""
    what = experiment(4, deadline_seconds=250.0)
    trial, federation = trial_of(what, tmp_path / "services", 2)
    chosen = np.random.default_rng(8)
    with trial.running():
        server = (open_folder(tmp_path / "services/server").running() or {})["url"]
        for kill in range(8):  # they come while agents start, enrol and take part
            if kill == 3:
                trial.operator().raise_target(ROUNDS)
            time.sleep(chosen.uniform(0.5, 2.5))
            which = int(chosen.integers(len(trial.agents)))
            os.kill(trial.agents[which].process.pid, signal.SIGKILL)
            trial.agents[which].process.wait()
            stores = sorted((tmp_path / "services/devices").iterdir())[which::2]
            trial.agents[which] = Child(
                f"agent {which}",
                sottovoce_command("serve", "device", *stores, "--server", server),
                log=tmp_path / f"agent-{which}.log",
            )
        trial.advance(ROUNDS, lambda done: None)
        state = trial.gather()
    federation.run()
    assert np.array_equal(federation.server.items, state.items)
    assert np.array_equal(federation.devices.cohort.vectors, state.vectors)
    expected = federation.devices.ledger.pending().to_pydict()
    (got,) = trial.ledger()
    assert {name: getattr(got, name).tolist() for name in ("user", "round", "bytes")} == {
        name: expected[name] for name in ("user", "round", "bytes")
    }
    for row, path in enumerate(sorted((tmp_path / "services/devices").iterdir())):
        with CohortStore.open(path, readonly=True) as store:
            assert np.array_equal(store.history().items, federation.devices.cohort.history.row(row))
            assert store.choice(row).share_positives == 0.5
            assert store.budget()[0].releases == ROUNDS
            assert DeviceSession(store).unresolved() is None
