"""gram's round about quality by real processes: agents, server and helper say what the simulation
says, and a model that was made worse on purpose is held back until the operator's word."""

import contextlib

import numpy as np
import pytest
import sqlalchemy as sa

from sottovoce.algorithms.gram.system import SCALE
from sottovoce.cli import call
from sottovoce.experiment import Experiment
from sottovoce.runs.devices import federation_of, world_of
from sottovoce.services.trial import HttpsTrial
from sottovoce.stores import server as records
from sottovoce.stores.database import models, stamped
from sottovoce.stores.device import CohortStore
from sottovoce.stores.server_folder import open_folder
from sottovoce.stores.session import DeviceSession

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


def test_a_model_made_worse_on_purpose_is_held_back_until_the_operators_word(tmp_path):
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
        assert call(["serve", "publish", str(folder.path), "3"]) == 0
        got = trial.gather()
        assert (got.published.round, kept(trial, 7)) == (3, 3)
