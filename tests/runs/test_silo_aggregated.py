"""DRIFT with sums over people, from an experiment to a run folder."""

import json
import signal
import sys
import types
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.algorithms.drift.aggregated import AggregatingOwner, own_vector
from sottovoce.algorithms.drift.blocks import Events
from sottovoce.algorithms.drift.replay import replay
from sottovoce.algorithms.drift.system import Orchestrator
from sottovoce.algorithms.drift.untouched import of_owner
from sottovoce.core import ledger as ledgers
from sottovoce.core.interactions import Interactions
from sottovoce.data.dataset import Dataset
from sottovoce.data.prepared import write_prepared
from sottovoce.errors import ConfigError, CorruptData
from sottovoce.experiment import Experiment
from sottovoce.parties.silo_door import InteractionDoor
from sottovoce.runs import owners as module
from sottovoce.runs import topology
from sottovoce.runs.compare import compare_runs
from sottovoce.runs.folder import RunFolder, load_arrays
from sottovoce.runs.owners import build_world
from sottovoce.runs.read import FinishedRun
from sottovoce.runs.report import write_run_report
from sottovoce.runs.train import run_experiment

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


@pytest.mark.parametrize("negatives", ["touched", "untouched"])
@pytest.mark.parametrize("window", [0, 60])
def test_a_run_is_what_messages_come_to(window, negatives, tmp_path):
    outcome = run_experiment(experiment(window=window, negatives=negatives), tmp_path / "run")
    world, config = outcome.world, outcome.world.config
    orchestrator, owners = Orchestrator(config, world.root), {}
    for k in world.table.all_owners():
        orchestrator.add_items(k, world.table.items(k))
        owners[k] = AggregatingOwner(k, world.table.items(k), config, of_owner(world.root, k))
    door = InteractionDoor(outcome.consent, world.owners, world.table)
    users = door.users()
    for user in users:
        for owner in owners.values():
            owner.admit(user)
    first, updates = orchestrator.model.items, 0
    events = door.joined(Events.of(outcome.split.train, config.positive_from, config.order))
    for _ in range(config.epochs):
        updates += replay(events, users, owners, orchestrator, window).updates
    door.close(config.epochs)
    table = door.ledger.pending()
    assert table.equals(ledgers.read(tmp_path / "run" / "ledger.parquet"))
    vectors, items = outcome.folder.vectors(), outcome.folder.model()
    moved = (orchestrator.model.items != first).any(axis=1)
    assert moved.any()
    assert np.array_equal(items[moved], orchestrator.model.items[moved])
    for user in users:
        given = [v for owner in owners.values() if (v := owner.vector(user)) is not None]
        mine = own_vector(given, config.embedding_size, config.start)
        assert np.array_equal(vectors[user], mine)
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


# --- stopping and going on ------------------------------------------------------------------------


def content(path):
    """What is left of a run, but for times."""
    folder = RunFolder.open(path)
    return folder.model().tobytes(), folder.vectors().tobytes(), folder.metrics()


@pytest.mark.parametrize(
    ("window", "negatives"), [(0, "touched"), (60, "touched"), (0, "untouched")]
)
@pytest.mark.parametrize("moment", [1, 3, 4])
def test_a_run_stopped_anywhere_resumes_to_the_same_numbers(
    tmp_path, monkeypatch, window, negatives, moment
):
    """Owners go on with their vectors, and with sums that wait for more people."""
    saved = RunFolder.save_checkpoint

    def save_then_die(self, round, *rest):
        if round == moment + 1:
            raise SystemError  # the owners' file of the next epoch is there, its checkpoint is not
        saved(self, round, *rest)
        if round == moment == 4:
            raise SystemError

    made = experiment(window=window, negatives=negatives)
    with monkeypatch.context() as patch:
        patch.setattr(topology, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(RunFolder, "save_checkpoint", save_then_die)
        with pytest.raises(SystemError):
            run_experiment(made, tmp_path / "cut")
    run_experiment(made, tmp_path / "cut", resume=True)
    run_experiment(made, tmp_path / "whole")
    assert content(tmp_path / "whole") == content(tmp_path / "cut")
    assert not list((tmp_path / "cut").glob("owners-*"))


def test_interrupting_keeps_the_epoch(tmp_path):
    def report(what, done, total):
        if (what, done) == ("training", 2):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment(), tmp_path / "cut", report=report)
    assert int(load_arrays(tmp_path / "cut" / "checkpoint.npz")["round"]) == 2
    (kept,) = (tmp_path / "cut").glob("owners-*")
    kept.write_bytes(b"torn")
    with pytest.raises(CorruptData, match="owners-000000000002"):
        run_experiment(experiment(), tmp_path / "cut", resume=True)


# --- processes ------------------------------------------------------------------------------------


class Stub:
    """Stands for a federation of processes: trains as simulation does."""

    def __init__(self, world, folder, processes):
        self.world = world

    def train(self, report):
        owners = self.world.aggregation()
        for _ in range(self.world.config.epochs):
            owners.epoch()
        return owners.model()

    def rounds(self):
        return [{"round": 0, "asked": list(self.world.owners), "silent": []}]


def test_real_processes_may_go_without_a_window(tmp_path, monkeypatch):
    """A round is then an epoch. As printed, owners far apart need one."""
    stub = types.ModuleType(module._TRIAL)
    stub.SiloTrial = Stub
    monkeypatch.setitem(sys.modules, module._TRIAL, stub)
    run_experiment(experiment(), tmp_path / "sim")
    run_experiment(experiment(), tmp_path / "real", engine="flower")
    assert content(tmp_path / "sim")[:2] == content(tmp_path / "real")[:2]
    assert content(tmp_path / "sim")[2][-1] == content(tmp_path / "real")[2][-1]
    with pytest.raises(ConfigError, match=r"algorithm\.window"):
        run_experiment(experiment(release="printed"), tmp_path / "no", engine="flower")
    assert not (tmp_path / "no").exists()


# --- drawn negatives and what is held out ---------------------------------------------------------


@pytest.mark.parametrize("release", ["printed", "aggregated"])
def test_what_is_held_out_changes_nothing_and_is_drawn_like_the_rest(release):
    """Negatives from outside the held-out part would tell the model what is in it."""
    made = experiment(release=release, negatives="untouched", epochs=2)
    prepared = made.prepared()
    split, draw = prepared.split, np.random.default_rng(1)
    test = split.test
    other = Interactions.from_pairs(
        test.users, draw.integers(0, split.train.n_items, len(test.users)),
        n_users=test.n_users, n_items=test.n_items, timestamps=test.timestamps,
        ratings=draw.integers(1, 6, len(test.users)),
    )  # fmt: skip
    models = []
    for one in (test, other):
        world, _ = build_world(replace(prepared, split=replace(split, test=one)))
        learning = world.learning(world.blocks(), world.first_model())
        for _ in range(2):
            learning.epoch()
        models.append(learning.model())
    assert models[0].items.tobytes() == models[1].items.tobytes()
    assert models[0].users.tobytes() == models[1].users.tobytes()
    blocks = world.blocks()
    lower = blocks.spans[:, 1]
    drawn = [
        (user, item)
        for user, end, many in zip(blocks.user.tolist(), lower, blocks.drawn, strict=True)
        for item in blocks.entries[end - many : end].tolist()
    ]
    held_out = set(zip(test.users.tolist(), test.items.tolist(), strict=True))
    assert sum(pair in held_out for pair in drawn) > 100


def test_all_that_was_held_out_can_be_asked_for_and_then_baselines_learn_from_all(tmp_path):
    """So that figures stand beside those of systems that know no dislikes."""
    table = {name: part for name, part in TABLE.items() if name != "consent"}
    fpl = {"name": "fpl", "configuration": "pFPL", "epochs": 1}
    liked, every, others = (
        run_experiment(Experiment.from_table(table | changes), tmp_path / name)
        for name, changes in (
            ("liked", {}), ("all", {"evaluation": {"relevant": "all"}}), ("fpl", {"algorithm": fpl})
        )
    )  # fmt: skip
    assert every.folder.model().tobytes() == liked.folder.model().tobytes()
    assert every.split.test.n_interactions > liked.split.test.n_interactions
    protocols = [one.folder.manifest()["protocol"] for one in (liked, every, others)]
    assert "rated 3 or better" in protocols[0]
    assert protocols[1] == protocols[2]
    assert every.split.test.items.tolist() == others.split.test.items.tolist()
    popular = [one.folder.manifest()["results"]["top-pop"] for one in (every, others)]
    assert popular[0].items() >= popular[1].items(), "beside measures of its own"
    compared = compare_runs([tmp_path / "all", tmp_path / "fpl"], tmp_path / "out", write=False)
    assert not compared.warnings


def test_data_without_ratings_will_do_where_owners_draw(tmp_path, monkeypatch):
    """All of it is then liked, and there is nothing to put dislikes behind."""
    dataset = Experiment.from_table(TABLE).dataset()
    bare = replace(dataset, interactions=replace(dataset.interactions, ratings=None))
    write_prepared(bare, tmp_path / "sets" / "shops")
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "sets"))
    with pytest.raises(ConfigError, match='"untouched" needs no ratings'):
        run_experiment(experiment(), tmp_path / "refused")
    outcome = run_experiment(experiment(negatives="untouched", epochs=2), tmp_path / "run")
    assert "rated" not in outcome.folder.manifest()["protocol"]
    assert outcome.evaluations[outcome.system].summary()["P@10"] > 0
    assert write_run_report(tmp_path / "run").exists()
