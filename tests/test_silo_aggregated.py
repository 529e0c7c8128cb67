"""DRIFT with sums over people, from an experiment to a run folder."""

import json

import numpy as np
import pytest

from sottovoce import silo_running as module
from sottovoce.algorithms.drift import Orchestrator, User
from sottovoce.algorithms.drift_aggregated import AggregatingOwner, own_vector
from sottovoce.algorithms.drift_replay import replay
from sottovoce.data.dataset import Dataset
from sottovoce.data.interactions import Interactions
from sottovoce.data.prepared import write_prepared
from sottovoce.errors import ConfigError
from sottovoce.experiment import Experiment
from sottovoce.run_views import FinishedRun
from sottovoce.running import run_experiment

USERS, ITEMS = 40, 30
TABLE = {
    "name": "shops",
    "seed": 5,
    "data": {"source": "shops", "test_fraction": 0.3},
    "algorithm": {"name": "drift", "epochs": 4, "release": "aggregated", "min_users": 6},
    "consent": {
        "mix": [
            {"weight": 3},
            {"weight": 1, "refused_owners": ["red"]},
            {"weight": 1, "takes_part": False},
        ]
    },
    "baselines": {"top-pop": {}},
}


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory):
    rng = np.random.default_rng(8)
    pairs = [(u, i) for u in range(USERS) for i in rng.permutation(ITEMS)[: 6 + u % 12].tolist()]
    users, items = (np.array(column) for column in zip(*pairs, strict=True))
    shops = Dataset(
        name="shops",
        interactions=Interactions.from_pairs(
            users, items, timestamps=rng.integers(0, 10**6, len(pairs)),
            ratings=rng.integers(1, 6, len(pairs)),
        ),
        item_categories=tuple((("red",), ("green",), ("red", "green"))[i % 3] for i in range(30)),
    )  # fmt: skip
    root = tmp_path_factory.mktemp("sets")
    write_prepared(shops, root / "shops")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOTTOVOCE_DATA", str(root))
        yield


def experiment(**algorithm):
    return Experiment.from_table(TABLE | {"algorithm": TABLE["algorithm"] | algorithm})


@pytest.mark.parametrize("window", [0, 60])
def test_a_run_is_what_messages_come_to(window, tmp_path):
    outcome = module.run_silo(experiment(window=window), tmp_path / "run")
    world, config = outcome.world, outcome.world.config
    orchestrator, owners, users = Orchestrator(config, world.root), {}, {}
    for k in world.table.all_owners():
        orchestrator.add_items(k, world.table.items(k))
        owners[k] = AggregatingOwner(k, world.table.items(k), config)
    for user in np.unique(world.events.user).tolist():
        users[user] = User(user, world.table, np.flatnonzero(world.refused[user]).tolist())
        for owner in owners.values():
            owner.admit(user)
    first, updates = orchestrator.model.items, 0
    for _ in range(config.epochs):
        updates += replay(world.events, users, owners, orchestrator, window).updates
    vectors, items = outcome.folder.vectors(), outcome.folder.model()
    moved = (orchestrator.model.items != first).any(axis=1)
    assert moved.any()
    assert np.array_equal(items[moved], orchestrator.model.items[moved])
    for user in users:
        given = [v for owner in owners.values() if (v := owner.vector(user)) is not None]
        assert np.array_equal(vectors[user], own_vector(given, config.embedding_size))
    assert not vectors[~outcome.consent.takes_part].any()
    facts = outcome.facts
    assert updates == config.epochs * facts.updates
    waiting = sum(owner.withheld() for owner in owners.values())
    assert 0 < facts.withheld <= waiting, "those that never leave are among those that wait"
    assert window or facts.withheld == waiting
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["schedule"]["withheld_rows"] == facts.withheld
    assert manifest["schedule"]["user_rows_per_epoch"] == 0


def test_a_finished_run_is_read_again_and_recommends(tmp_path):
    outcome = run_experiment(experiment(), tmp_path / "run")
    again = run_experiment(experiment(), tmp_path / "run", resume=True)
    assert again.held_out == outcome.held_out
    finished = FinishedRun.open(tmp_path / "run")
    name = finished.split.train.users_vocabulary().name(
        int(np.flatnonzero(outcome.consent.takes_part)[0])
    )
    assert len(finished.recommend(name, 5)) == 5


def test_processes_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="simulation alone so far"):
        module.run_silo(experiment(window=60), tmp_path / "run", engine="flower")
    assert not (tmp_path / "run").exists()
