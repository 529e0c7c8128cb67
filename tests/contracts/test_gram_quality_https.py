"""gram's round about quality by real processes: agents, server and helper say what the simulation
says, and a model that was made worse on purpose is held back until the operator's word."""

import contextlib
import json
import time

import numpy as np
import pytest
import sqlalchemy as sa

from sottovoce.algorithms.gram.system import SCALE
from sottovoce.cli import call
from sottovoce.errors import ServiceError
from sottovoce.experiment import Experiment
from sottovoce.runs.devices import federation_of, world_of
from sottovoce.services.trial import HttpsTrial
from sottovoce.stores import server as records
from sottovoce.stores.database import models, stamped
from sottovoce.stores.device import CohortStore
from sottovoce.stores.server_folder import open_folder
from sottovoce.stores.session import DeviceSession

pytestmark = pytest.mark.usefixtures("forked_children")

TABLE = {
    "name": "quality",
    "seed": 5,
    "town": {"residents": 24, "venues": 40, "districts": 1},
    "data": {"source": "town"},
    "algorithm": {
        "name": "gram", "quality_share": 0.3, "popularity_share": 0.1, "held_out": 0.5,
        "least_head": 10, "embedding_size": 8,
    },
    "release": {"epsilon": 64.0},
    "consent": {"epsilon": 64.0},
    "link": {"min_devices": 10},
}  # fmt: skip


def nobody(done):
    pass


def kept(trial, row):
    with CohortStore.open(trial.store(row), readonly=True) as store:
        return DeviceSession(store).model_round()


def spoil(folder, round):
    """The factors of this round's model are given to other items."""
    with contextlib.closing(folder.database()) as database, database.writing() as link:
        width = folder.plan.terms.width
        items, _ = records.model(link, round, width)
        items[:, SCALE:] = np.random.default_rng(1).permutation(items[:, SCALE:])
        content = stamped(models.c["items"], items.astype("<f4").tobytes(), round)
        link.execute(sa.update(models).where(models.c.round == round).values(items=content))


def trial_of(folder):
    experiment = Experiment.from_table(TABLE)
    prepared = experiment.prepared(experiment.dataset())
    simulated = federation_of(prepared)
    return simulated, HttpsTrial(world_of(experiment, prepared.dataset, simulated), folder, 2)


@pytest.mark.slow
def test_real_processes_say_what_the_simulation_says(tmp_path):
    simulated, trial = trial_of(tmp_path)
    with trial.running():
        trial.advance(3, nobody)
        got = trial.gather()
        home = kept(trial, 0)
    simulated.run()
    assert home == got.published.round == simulated.server.recommending.round
    assert np.array_equal(got.items, simulated.server.items)
    for found, wanted in zip(got.offered, simulated.server.offered, strict=True):
        table = wanted.to_table()
        assert {key: found[key] for key in table} == table, "to the last bit"


def recommended(trial, row):
    with CohortStore.open(trial.store(row), readonly=True) as store:
        return DeviceSession(store).recommend(int(store.users[0]), 10)


def gathered(trial, seconds=10.0):
    """When the running server has taken up what is published: it looks once a second."""
    end = time.monotonic() + seconds
    while True:
        try:
            return trial.gather()
        except ServiceError:
            assert time.monotonic() < end
            time.sleep(0.1)


def said(capsys, command, folder):
    capsys.readouterr()
    assert call(["serve", command, str(folder.path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_a_bad_model_is_held_back_told_when_it_is_published_and_rolled_back(tmp_path, capsys):
    _, trial = trial_of(tmp_path)
    with trial.running():
        trial.advance(2, nobody)
        assert trial.gather().published.round == 1  # popularity, until there is more
    folder = open_folder(tmp_path / "server")
    spoil(folder, 2)
    with trial.running():  # all were stopped between the rounds
        trial.advance(3, nobody)
        got = trial.gather()
        assert "worse than version 1" in got.offered[-1]["held_back"]
        assert (got.published.round, kept(trial, 7)) == (1, 1)
        good = recommended(trial, 7)
        assert call(["serve", "publish", str(folder.path), "3"]) == 0
        got = trial.gather()
        assert (got.published.round, kept(trial, 7)) == (3, 3)
        # Now it is told, in words as well, until the former version is published again.
        assert recommended(trial, 7) != good
        told = said(capsys, "status", folder)
        assert told["quality_trouble"].startswith("version 3, which is published, is worse than")
        for command in ("status", "versions"):
            assert call(["serve", command, str(folder.path)]) == 0
            assert "Attention: version 3, which is published" in capsys.readouterr().out
        assert call(["serve", "publish", str(folder.path), "1"]) == 0
        got = gathered(trial)
        assert (got.published.round, kept(trial, 7)) == (1, 1)
        assert recommended(trial, 7) == good
        assert said(capsys, "versions", folder)["quality_trouble"] == ""
    log = (tmp_path / "logs" / "proxy.log").read_text()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    told = [line for line in lines if line["event"] == "sum told"]
    assert [(one["round"], one["attempt"], one["devices"]) for one in told] == [
        (0, 0, 24), (1, 0, 24), (2, 0, 24),
    ]  # fmt: skip
    known = {"event", "round", "attempt", "devices", "seconds", "level", "timestamp"}
    assert all(set(one) == known for one in told)
    for row in range(24):
        with CohortStore.open(trial.store(row), readonly=True) as store:
            mine = store.ledger().to_pylist()
        assert sorted(one["round"] for one in mine) == [0, 1, 2]
        assert sum(one["epsilon"] for one in mine) == pytest.approx(64.0, rel=1e-6)
