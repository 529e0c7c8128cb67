"""gram on Flower by real processes: three gateways with cohorts of unequal size, a helper, and a
server that sees sums alone. Model and ledgers are the simulation's, bit for bit: undisturbed, and
with a gateway that was away for the first stage, a helper and a server that are killed."""

import contextlib
import json
import os
import signal
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from test_engines import left_behind, sottovoce

from sottovoce.core.ledger import COLUMNS, entries_of
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.engines.flower.launch import run_settings, start_run, wait_for_run
from sottovoce.engines.flower.trial import FlowerTrial
from sottovoce.engines.trial import in_order, unequal_parts
from sottovoce.experiment import Experiment
from sottovoce.parties.secure_sum import summed
from sottovoce.runs.devices import federation_of, world_of
from sottovoce.runs.folder import RunFolder
from sottovoce.stores.conductor import LOCK, Checkpoint, conducted

pytestmark = pytest.mark.usefixtures("forked_children")

USERS = 64
TOWN = """
name = "gateways"
seed = 3
draws = "secret"    # as in deployment

[town]
residents = 64
venues = 60
districts = 2

[service]
deadline_seconds = 280.0    # a busy machine is no reason to go on without somebody

[algorithm]
name = "gram"
embedding_size = 16
popularity_share = 0.2
quality_share = 0.1
least_head = 10
most_head = 30

[release]
epsilon = 16.0    # enough for pairs to be seen among so few

[consent]
mix = [
  { weight = 1, takes_part = false },
  { weight = 3, epsilon = 4.0 },
  { weight = 3, epsilon = 16.0 },
]

[link]
min_devices = 2    # gateways

[baselines.top-pop]
"""


def ran(engine, place):
    """The folder of a run, and what it told."""
    file = place / "gram.toml"
    file.write_text(TOWN)
    told = sottovoce("run", file, "--engine", engine, "--out", place / engine)
    return RunFolder.open(place / engine), told


@pytest.mark.slow
def test_three_gateways_give_the_simulations_model_and_ledger(tmp_path):
    expected, told = ran("simulation", tmp_path)
    got, told_there = ran("flower", tmp_path)
    assert expected.model()[:, 2:].any(), "pairs were counted"
    assert np.array_equal(got.model(), expected.model()), "to the last bit"
    assert np.array_equal(got.vectors(), expected.vectors())
    assert got.ledger().to_pydict() == expected.ledger().to_pydict()
    assert got.ledger().num_rows == 3 * got.manifest()["schedule"]["devices"] > 0
    assert told_there["results"] == told["results"]
    names = TownConfig(residents=USERS, venues=60, districts=2)
    for user in generate_town(names).interactions.users_vocabulary().names()[:8]:
        mine, theirs = (
            sottovoce("recommend", folder.path, "--user", user) for folder in (expected, got)
        )
        assert mine["recommendations"] == theirs["recommendations"]
    assert got.manifest()["engine"] == "flower"
    assert not left_behind(got.path)
    rounds = [json.loads(line) for line in (got.path / "rounds.jsonl").read_text().splitlines()]
    assert [r["round"] for r in rounds] == [0, 1, 2]
    assert [(r["outcome"], r["missing"]) for r in rounds] == [("goal", [])] * 3
    versions = expected.manifest()["model_versions"]
    assert versions[-1]["quality"] is not None
    assert got.manifest()["model_versions"] == versions
    assert got.manifest()["refused"] == {}
    stores = sorted((got.path / "services" / "cohorts").iterdir())
    assert len(stores) == 3
    assert len({len(part) for part in unequal_parts(USERS, 3)}) == 3


def parties(table):
    experiment = Experiment.from_table(table)
    prepared = experiment.prepared(experiment.dataset())
    made = federation_of(prepared)
    return made, world_of(experiment, prepared.dataset, made)


def kill_conductor(folder):
    """The ServerApp, by the lock that it holds."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            held = {link.resolve() for link in (process / "fd").iterdir()}
            if (folder / LOCK).resolve() in held:
                os.kill(int(process.name), signal.SIGKILL)
    end = time.monotonic() + 600
    while conducted(folder):
        assert time.monotonic() < end
        time.sleep(0.05)


def fold(simulated, rows):
    """A round of these devices, with the helper's noise."""
    server, view = simulated.server, simulated.server.publish()
    numbers, _ = server.algorithm.report_shape(view)
    sums = simulated.devices.report_summed(view, rows).dense(numbers)
    noise = simulated.masker.noise(view.round, numbers)[:, None]
    server.fold(summed(view.round, sums + noise, len(rows)))


@pytest.mark.slow
@pytest.mark.timeout(900)  # a federation's start, some ten processes, and a second run
def test_a_gateway_away_for_a_stage_and_a_helper_and_a_server_that_are_killed(tmp_path):
    table = tomllib.loads(TOWN)
    table["service"]["min_devices"] = 10
    del table["algorithm"]["quality_share"]
    simulated, world = parties(table)
    trial = FlowerTrial(world, tmp_path / "services", 3)
    server, said = trial.folder / "server", []
    with trial.running():
        flower = trial._flower
        flower.running["gateway-000"].stop()
        with Checkpoint(server) as checkpoint:
            checkpoint.raise_target(1)
        flower._allot(server)
        # The run holds after the first stage, so that it is killed between the two.
        run = start_run(flower.place, run_settings(server, 1, 2, hold=True))
        wait_for_run(flower.place, server, run, 1)
        kill_conductor(server)
        trial.helper.kill()
        flower.start_node("gateway-000")

        def look(status):
            said.append(status["state"])
            if status["state"] == "summing" and not trial.helper.alive:
                trial.start_helper()

        flower.train(server, 2, look)
        got, (rounds, refused) = trial.gather(), trial.log()
    willing = simulated.devices.willing(0)
    away = unequal_parts(USERS, 3)[0]
    fold(simulated, np.setdiff1d(willing, away))
    fold(simulated, willing)
    assert np.intersect1d(willing, away).size, "somebody was away"
    assert np.array_equal(got.items, simulated.server.items), "to the last bit"
    assert got.items[:, 2:].any()
    assert "summing" in said, "the helper was waited for"
    assert [r["reported"] for r in rounds] == [len(np.setdiff1d(willing, away)), len(willing)]
    assert not {k for k in refused if k != "stranger"}
    (mine,), (theirs,) = trial.ledger(), in_order(entries_of(simulated.devices.ledger.pending()))
    for column in COLUMNS:
        assert np.array_equal(getattr(mine, column), getattr(theirs, column)), column
