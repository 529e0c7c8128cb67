"""DRIFT from an experiment file to a run folder: the same model however it was run or stopped,
nothing of those who refuse, and a ledger of who read what."""

import json
import os
import signal
import subprocess
import sys
import time
from typing import ClassVar

import numpy as np
import pytest
from run_folders import content, same

from sottovoce.algorithms.drift.blocks import Events, learn
from sottovoce.algorithms.drift.replay import replay
from sottovoce.algorithms.drift.system import Orchestrator, Owner
from sottovoce.core.interactions import Interactions
from sottovoce.data.dataset import Dataset
from sottovoce.data.prepared import write_prepared
from sottovoce.engines import silo
from sottovoce.errors import ConfigError, DataError, FolderInUse, RunError, UsageError
from sottovoce.experiment import Experiment
from sottovoce.parties import silo_door
from sottovoce.parties.silo_door import InteractionDoor
from sottovoce.runs import owners as module
from sottovoce.runs import topology
from sottovoce.runs.compare import compare_runs
from sottovoce.runs.folder import RunFolder, load_arrays
from sottovoce.runs.read import FinishedRun
from sottovoce.runs.report import write_run_report
from sottovoce.runs.train import run_experiment

USERS, ITEMS = 40, 30
OWNERS = ("blue", "green", "red", "other")
TABLE = {
    "name": "shops",
    "seed": 5,
    "data": {"source": "shops", "test_fraction": 0.3},
    "algorithm": {"name": "drift", "epochs": 6},
    "consent": {
        "mix": [
            {"weight": 3},
            {"weight": 1, "refused_owners": ["red"]},
            {"weight": 1, "takes_part": False},
        ]
    },
    "evaluation": {"every_epochs": 2},
    "baselines": {"top-pop": {}, "saros": {"epochs": 3}},
}


def shops(name="shops", ratings=True, times=True, categories=True):
    """Users 0 and 1 like everything; items 27 to 29 have no category, 0 to 5 have two."""
    rng = np.random.default_rng(8)
    pairs = [(u, i) for u in range(USERS) for i in rng.permutation(ITEMS)[:20].tolist()]
    users, items = (np.array(column) for column in zip(*pairs, strict=True))
    stars = np.where(users < 2, 5, rng.integers(1, 6, len(pairs)))
    kinds = [("red",), ("green",), ("blue",)]
    names = [kinds[i % 3] + (("blue",) if i < 6 and i % 3 != 2 else ()) for i in range(27)]
    return Dataset(
        name=name,
        interactions=Interactions.from_pairs(
            users,
            items,
            timestamps=rng.integers(0, 10**6, len(pairs)) if times else None,
            ratings=stars if ratings else None,
        ),
        item_categories=(*names, (), (), ()) if categories else None,
    )


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("sets")
    write_prepared(shops(), root / "shops")
    write_prepared(shops("mute", ratings=False), root / "mute")
    write_prepared(shops("timeless", times=False), root / "timeless")
    write_prepared(shops("plain", categories=False), root / "plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOTTOVOCE_DATA", str(root))
        yield root


def make(**changes):
    table = dict(TABLE)
    for section, fields in changes.items():
        there = table.get(section)
        merge = isinstance(fields, dict) and isinstance(there, dict) and section != "consent"
        table[section] = {**there, **fields} if merge else fields
    return Experiment.from_table(table)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("runs") / "whole"
    return path, run_experiment(make(), path)


# --- what a run leaves ----------------------------------------------------------------------------


def test_a_run_leaves_what_it_promises(whole):
    path, outcome = whole
    manifest = RunFolder.open(path).manifest()
    assert manifest["status"] == "finished"
    assert [owner["name"] for owner in manifest["owners"]] == list(OWNERS)
    assert sum(owner["items"] for owner in manifest["owners"]) == ITEMS + 4
    assert manifest["schedule"]["users_without_blocks"] >= 2  # they like everything
    assert set(manifest["results"]) == {"top-pop", "saros", "DRIFT"}
    for result in manifest["results"].values():
        assert {"P@10", "own MAP@5", "legacy NDCG@10"} <= set(result)
    assert "rated 3 or better" in manifest["protocol"]
    lines = RunFolder.open(path).metrics()
    assert [line["epoch"] for line in lines] == [0, 1, 2, 3, 4, 5, 6]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert ["P@10" in line for line in lines] == [False, False, True, False, True, False, True]
    assert outcome.system == "DRIFT"
    assert not (path / "checkpoint.npz").exists()
    assert not list(path.glob("*.partial"))


def test_the_ledger_says_who_read_what(whole):
    run = FinishedRun.open(whole[0])
    table = run.ledger()
    train, epochs = run.split.train, 6
    names, member = silo.owners_of(run.dataset, "categories")
    assert names == OWNERS
    member = member[run.split.item_map[: train.n_items]]
    liked = train.ratings >= 3
    rows = 0
    for line in table.to_pylist():
        user, owner = line["user"], line["kind"].removeprefix("interactions:")
        mine = (train.users == user) & member[train.items, names.index(owner)]
        assert line["positive_rows"] == epochs * (mine & liked).sum()
        assert line["negative_rows"] == epochs * (mine & ~liked).sum()
        assert line["bytes"] == 53 * epochs * mine.sum()
        assert line["epsilon"] == np.inf
        assert run.consent.takes_part[user]
        assert not run.consent.refused_owners[user, names.index(owner)]
        rows += line["positive_rows"] + line["negative_rows"]
    sent = run.consent.takes_part[:, None] & ~run.consent.refused_owners
    expected = (sent[train.users] & member[train.items]).sum() * epochs
    assert rows == expected
    assert run.folder.manifest()["ledger"]["releases"] == table.num_rows
    lines = run.ledger_by("owner")
    assert {line.label for line in lines} == set(OWNERS)
    assert sum(line.totals.bytes for line in lines) == 53 * rows
    at_home = [x for x in run.ledger_by("choice") if "sends nothing to anybody" in x.label]
    assert at_home[0].totals.releases == 0


def test_a_sealed_message_is_as_long_as_the_ledger_says():
    from sottovoce.wire.interactions import SEALED_BYTES

    assert SEALED_BYTES == silo_door.SEALED_BYTES


def test_owners_read_nothing_of_what_is_never_sent():
    """By an item's name, and by a category, which is an owner here."""
    outcome = run_experiment(make(consent={"never_send": ["blue", "3"]}))
    world, dataset = outcome.world, outcome.dataset
    never = {n for n, kinds in enumerate(dataset.item_categories) if "blue" in kinds} | {3}
    told = {m.item for part in world.departed.messages() for m in part}
    names = outcome.split.train.items_vocabulary()
    assert told
    assert not {int(names.name(item)) for item in told} & never
    assert "interactions:blue" not in world.door.ledger.pending()["kind"].to_pylist()
    with pytest.raises(ConfigError, match="neither an item nor a category"):
        run_experiment(make(consent={"never_send": ["violet"]}))


@pytest.mark.parametrize("settings", [{}, {"window": 37}, {"order": "user", "theta": 3}])
def test_the_model_is_what_the_messages_of_the_parties_give(settings):
    """Message by message, with the same users at home and the same owners refused."""
    experiment = make(algorithm=settings | {"epochs": 2})
    outcome = run_experiment(experiment)
    world, consent = outcome.world, outcome.consent
    orchestrator = Orchestrator(world.config, world.root)
    owners = {}
    for number in range(len(world.owners)):
        items = world.table.items(number)
        orchestrator.add_items(number, sorted(items))
        owners[number] = Owner(number, items, world.config)
    door = InteractionDoor(consent, world.owners, world.table)
    users = door.users()
    assert set(users) == set(np.flatnonzero(consent.takes_part).tolist())
    for user in users:
        orchestrator.join_user(user)
        for owner in owners.values():
            owner.admit(user)
    events = Events.of(outcome.split.train, 3.0, world.config.order)
    for _ in range(2):
        replay(door.joined(events), users, owners, orchestrator, world.config.window)
    door.close(2)
    assert door.ledger.pending().equals(world.door.ledger.pending())
    options = topology.RunOptions(kept=False)
    whole = module.OwnersTopology.of(experiment.prepared(outcome.dataset), options)
    whole.train(topology.ActiveRun(experiment, options, whole, None, lambda *_: None))
    model = whole.model
    assert np.array_equal(model.users[: len(orchestrator.model.users)], orchestrator.model.users)
    assert np.array_equal(model.items, orchestrator.model.items)


def test_users_at_home_change_nothing_for_the_others():
    """Neither their interactions nor their number reach anybody."""
    outcome = run_experiment(make())
    home = ~outcome.consent.takes_part
    assert home.any()
    assert not np.isin(np.flatnonzero(home), outcome.world.departed.events.user).any()
    assert not np.isin(np.flatnonzero(home), outcome.read.user).any()
    assert not home[outcome.evaluations["DRIFT"].users].any()


def test_rows_moved_are_those_that_learning_moves():
    for settings in ({}, {"theta": 5}, {"window": 50}):
        world = run_experiment(make(algorithm=settings | {"epochs": 1})).world
        blocks = world.blocks()
        assert silo.rows_moved(blocks) == learn(world.first_model(), blocks, world.config.step())


# --- stopping and going on ------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [1, 3, 6])
def test_a_run_stopped_anywhere_resumes_to_the_same_numbers(tmp_path, monkeypatch, whole, moment):
    saved = RunFolder.save_checkpoint

    def save_then_die(self, round, *rest):
        saved(self, round, *rest)
        if round == moment:
            raise SystemError

    with monkeypatch.context() as patch:
        patch.setattr(topology, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(RunFolder, "save_checkpoint", save_then_die)
        with pytest.raises(SystemError):
            run_experiment(make(), tmp_path / "cut")
    with pytest.raises(RunError, match="not finished"):
        FinishedRun.open(tmp_path / "cut")
    run_experiment(make(), tmp_path / "cut", resume=True)
    assert same(content(whole[0]), content(tmp_path / "cut"))


def test_interrupting_keeps_the_epoch_and_resumes(tmp_path, whole):
    def report(what, done, total):
        if (what, done) == ("training", 4):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_experiment(make(), tmp_path / "cut", report=report)
    assert int(load_arrays(tmp_path / "cut" / "checkpoint.npz")["round"]) == 4
    run_experiment(make(), tmp_path / "cut", resume=True, threads=2)
    assert same(content(whole[0]), content(tmp_path / "cut"))


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on(tmp_path, whole):
    table = {**TABLE, "algorithm": {"name": "drift", "epochs": 4000}}
    (tmp_path / "e.json").write_text(json.dumps(table))
    code = (
        "import json, sys\nfrom pathlib import Path\n"
        "from sottovoce.experiment import Experiment\n"
        "from sottovoce.runs import topology, train\n"
        "topology.CHECKPOINT_SECONDS = 0.05\n"
        "table = json.loads(Path(sys.argv[1]).read_text())\n"
        "train.run_experiment(Experiment.from_table(table), Path(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "e.json"), str(tmp_path / "cut")]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 600
    while not (tmp_path / "cut" / "checkpoint.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not RunFolder.open(tmp_path / "cut").finished
    experiment = Experiment.from_table(table)
    run_experiment(experiment, tmp_path / "cut", resume=True)
    run_experiment(experiment, tmp_path / "whole")
    assert same(content(tmp_path / "whole"), content(tmp_path / "cut"))


# --- looking at it --------------------------------------------------------------------------------


def test_a_finished_run_recommends_to_those_who_take_part(whole):
    run = FinishedRun.open(whole[0])
    there, home = (int(np.flatnonzero(run.consent.takes_part == part)[0]) for part in (1, 0))
    names = run.split.train.users_vocabulary()
    listed = run.recommend(names.name(there), 5)
    assert [place.rank for place in listed] == [1, 2, 3, 4, 5]
    with pytest.raises(DataError, match="takes no part"):
        run.recommend(names.name(home), 5)


def test_the_report_says_who_reads_what_and_what_is_not_promised(whole):
    for page in (write_run_report(whole[1]), write_run_report(whole[0])):
        text = page.read_text()
        for words in (
            "What each data owner reads",
            "Ranking held-out items alone",
            "reads every interaction with its items in full",
            "can tell who it was",
            "sends nothing to red",
            "Loss of DRIFT in training and test",
            "Baselines are central",
        ):
            assert words in text, words
        assert "mean π" not in text


def test_runs_with_owners_are_compared_and_told_from_others(tmp_path, whole):
    run_experiment(make(algorithm={"theta": 4}), tmp_path / "theta")
    alike = compare_runs([whole[0], tmp_path / "theta"], tmp_path / "both")
    assert not alike.warnings
    table = alike.tables[-1]
    assert table.title == "What data owners have read"
    heads = [column.heading for column in table.columns]
    assert heads == [
        "run", "users taking part", "positive interactions", "negative interactions", "MB",
    ]  # fmt: skip
    page = (tmp_path / "both" / "report.html").read_text()
    assert "What data owners have read" in page
    assert "devices" not in page
    fpl = {"algorithm": {"name": "fpl", "epochs": 1}, "consent": {"share_positives": 1.0}}
    run_experiment(Experiment.from_table(TABLE | fpl), tmp_path / "fpl")
    mixed = compare_runs([whole[0], tmp_path / "fpl"], tmp_path / "b")
    assert "do not compare" in mixed.warnings[0]
    assert mixed.tables[-1].columns[1].heading == "devices or users taking part"
    assert [row["share"] for row in mixed.tables[-1].rows] == [None, 1.0]
    with pytest.raises(UsageError, match="data owners"):
        FinishedRun.open(tmp_path / "fpl").ledger_by("owner")


@pytest.mark.slow
def test_the_commands_work_on_a_run_with_owners(data, tmp_path, whole):
    def ask(*words, rc=0):
        done = subprocess.run(
            [sys.executable, "-m", "sottovoce", *words],
            capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == rc, done.stderr
        return done.stdout if rc == 0 else done.stderr

    ledger = json.loads(ask("ledger", str(whole[0]), "--by", "owner", "--json"))
    assert [line["owner"] for line in ledger["lines"]] == sorted(OWNERS)
    assert ledger["totals"]["epsilon"] is None
    assert "in full" in ledger["not_protected"]
    assert "use --by owner" in ask("ledger", str(whole[0]), "--by", "round", rc=2)
    member = str(int(np.flatnonzero(whole[1].consent.takes_part)[0]))
    shown = ask("ledger", str(whole[0]), "--user", member)
    assert f"What data owners have read of {member}" in shown
    assert "ε: none" in shown
    assert "positive interactions" in shown
    assert "talk through Flower" in ask("run", "drift/movielens-100k", "--engine", "https", rc=2)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": {"theta": 0}}, "theta must be a whole number of at least 1"),
        ({"algorithm": {"thetta": 2}}, "unknown keys"),
        ({"owners": {"by": "genre"}}, "'categories' or 'one'"),
        ({"owners": {"names": []}}, "unknown keys"),
        ({"release": {"name": "everything"}}, r"\[release\] is not for drift"),
        ({"service": {}}, r"\[service\] is not for drift"),
        ({"consent": {"share_positives": 0.5}}, "consent.share_positives is set"),
        ({"consent": {"epsilon": 1.0}}, "consent.epsilon is set"),
        ({"consent": {"total_epsilon": 1.0}}, "consent.total_epsilon is set"),
        ({"consent": {"hidden_attributes": ["age"]}}, "consent.hidden_attributes is set"),
    ],
)
def test_bad_files_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        make(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"consent": {"refused_owners": ["pink"]}}, "'pink', who is not among the data owners"),
        ({"consent": {"takes_part": False}}, "nobody takes part"),
        ({"data": {"source": "mute"}}, "mute has no ratings"),
        ({"data": {"source": "timeless", "split": "random"}}, "timeless has no times"),
        ({"data": {"source": "plain"}, "consent": {}}, 'owners.by = "one"'),
        ({"data": {"min_rating": 4}}, "would leave no negatives"),
        ({"algorithm": {"positive_from": 9}}, "positive_from, which is 9"),
        ({"algorithm": {"positive_from": 1}}, "nothing to learn from.*positive_from"),
        ({"consent": {"refused_owners": list(OWNERS)}}, "nothing to learn from"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(tmp_path, changes, words):
    with pytest.raises((ConfigError, DataError), match=words):
        run_experiment(make(**changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "https"}, "use --engine flower"),
        ({"engine": "flower"}, "algorithm.window"),
        ({"device": "cuda"}, "--device cpu"),
        ({"transcript": True}, "--transcript"),
    ],
)
def test_what_data_owners_cannot_do_is_said_in_a_sentence(tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        run_experiment(make(), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_owners_are_for_drift_and_devices_for_the_others():
    with pytest.raises(ConfigError, match=r"\[owners\] is for"):
        Experiment.from_table({"algorithm": {"name": "fpl"}, "owners": {"by": "one"}})
    with pytest.raises(ConfigError, match="no server for devices"):
        make().cross_device()


# --- owners ---------------------------------------------------------------------------------------


def test_items_without_a_category_are_the_other_owners():
    names, member = silo.owners_of(shops(), "categories")
    assert names == OWNERS
    assert np.flatnonzero(member[:, 3]).tolist() == [27, 28, 29]
    assert member.any(axis=1).all()
    assert silo.owners_of(shops(), "one")[1].all()


def test_an_owner_whose_items_are_never_trained_on_is_left_out(data, tmp_path):
    whole = shops("sparse")
    table = whole.interactions
    lonely = table.items == 29  # held out wherever it occurs
    late = np.where(lonely, 10**9, table.timestamps)
    changed = Interactions(
        table.indptr, table.items, table.n_items, timestamps=late, ratings=table.ratings
    )
    names = (*whole.item_categories[:29], ("rare",))
    write_prepared(Dataset("sparse", changed, item_categories=names), data / "sparse")
    outcome = run_experiment(
        make(data={"source": "sparse"}, consent={"refused_owners": ["rare"]}), tmp_path / "run"
    )
    assert outcome.facts.empty_owners == ("rare",)
    assert outcome.world.owners == OWNERS
    assert RunFolder.open(tmp_path / "run").manifest()["empty_owners"] == ["rare"]
    assert "no training item for rare" in write_run_report(outcome).read_text()


def test_one_owner_sees_every_interaction(data):
    outcome = run_experiment(make(owners={"by": "one"}, consent={}))
    assert outcome.world.owners == (silo.ONE,)
    total = int((outcome.read.positive + outcome.read.negative).sum())
    assert total == outcome.split.train.n_interactions == len(outcome.world.departed.events)


# --- real processes -------------------------------------------------------------------------------


class Stub:
    """Stands for a federation of processes: trains as simulation does."""

    made: ClassVar = []

    def __init__(self, world, folder, processes):
        self.world, self.folder = world, folder
        Stub.made.append((folder, processes))

    def train(self, report):
        model = self.world.first_model()
        for epoch in range(self.world.config.epochs):
            learn(model, self.world.blocks(), self.world.config.step())
            report("training", epoch + 1, self.world.config.epochs)
        return model

    def rounds(self):
        return [{"round": 0, "asked": list(self.world.owners), "silent": []}]


def test_real_processes_are_handed_the_world_and_give_the_same_model(tmp_path, monkeypatch):
    import types

    stub = types.ModuleType(module._TRIAL)
    stub.SiloTrial = Stub
    monkeypatch.setitem(sys.modules, module._TRIAL, stub)
    Stub.made = []
    experiment = make(algorithm={"window": 60})
    run_experiment(experiment, tmp_path / "sim")
    run_experiment(experiment, tmp_path / "real", engine="flower", processes=4)
    assert Stub.made == [(tmp_path / "real" / "services", 4)]
    sim, real = content(tmp_path / "sim"), content(tmp_path / "real")
    assert same((*sim[:3], 0), (*real[:3], 0))
    assert (tmp_path / "real" / "rounds.jsonl").exists()
    with pytest.raises(FolderInUse, match="--engine flower"):
        run_experiment(experiment, tmp_path / "real", resume=True)
    run_experiment(experiment, tmp_path / "real", engine="flower", resume=True)
    assert len(Stub.made) == 1  # a finished run is not trained again
