"""The DRIFT thesis's figures: the studies on a small world, known values on real data."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drift_world import DRIFT

from sottovoce.algorithms.drift.blocks import DriftModel, Events, gradient, learn
from sottovoce.algorithms.drift.messages import RowRequest
from sottovoce.algorithms.drift.replay import plan, replay
from sottovoce.algorithms.drift.system import Orchestrator, Owner, User
from sottovoce.baselines.saros import SAROS
from sottovoce.core.installed import EXTRA_OF
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer
from sottovoce.data.dataset import Dataset
from sottovoce.data.prepared import write_prepared
from sottovoce.engines.silo_simulation import PHASES
from sottovoce.errors import ConfigError, DataError
from sottovoce.evaluation import saros_metrics
from sottovoce.rng import Streams
from sottovoce_papers import drift, drift_changes, drift_parties
from sottovoce_papers.cells import Cells
from sottovoce_papers.files import StudyFile, installed
from sottovoce_papers.lines import Job
from sottovoce_papers.worlds import StudyData, laid_over

METRICS = ("MAP@5", "NDCG@5", "MAP@10", "NDCG@10")
GENRES = ("drama", "crime", "noir")
FAST = {"learning_rate": 0.05}
SYSTEMS = {
    "saros-b": {"name": "saros", **FAST},
    "saros-m": {"name": "saros", "variant": "m", **FAST},
    "drift-time": {"name": "drift", **FAST},
    "drift-user": {"name": "drift", "order": "user", **FAST},
}


def quiet(what, done, total):
    pass


def small_data(every_item_has_a_genre=True):
    """120 users of 40 items in three genres; every third item is in two."""
    draw = np.random.default_rng(5)
    users, items = (a.ravel() for a in np.meshgrid(np.arange(120), np.arange(40), indexing="ij"))
    kept = draw.random(len(users)) < 0.6
    users, items = users[kept], items[kept]
    n = len(users)
    table = Interactions.from_pairs(
        users, items, n_users=120, n_items=40, timestamps=draw.integers(0, n, n),
        ratings=np.clip(draw.integers(1, 6, n) + (items % 3 - 1), 1, 5),
    )  # fmt: skip
    genres = [(GENRES[i % 3], GENRES[(i + 1) % 3])[: 2 if i % 3 == 0 else 1] for i in range(40)]
    if not every_item_has_a_genre:
        genres[7] = ()
    return Dataset(name="small", interactions=table, item_categories=tuple(genres))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_prepared(small_data(), folder / "small")
    write_prepared(small_data(False), folder / "no-genre")
    return folder


@pytest.fixture(autouse=True)
def small_world(root, monkeypatch):
    monkeypatch.setenv("SOTTOVOCE_DATA", str(root))


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return Cells(tmp_path_factory.mktemp("cells"), 2, quiet)


def small(name, seeds=(0, 1), liked=(4.0, 3.0), **more):
    """An installed study with short trainings on the small world."""
    table = installed(name)
    grid = {"positive_from": [*liked], "epochs": [1, 2, 4]}
    changes = {"study": {"seeds": [*seeds]}, "data": {"movielens-1m": {"source": "small"}}}
    if name == "drift-figure62":
        bare = {"grid": {"positive_from": [*liked]}}
        changes["systems"] = {
            key: bare if key in ("top-pop", "random") else {"grid": grid, "settings": FAST}
            for key in table["systems"]
        }
    if name == "drift-figure61":
        faster = {"settings": {**FAST, "epochs": 4}}
        changes["systems"] = dict.fromkeys(table["systems"], faster)
        looks = {"positive_from": [*liked], "look": list(drift.LOSSES)}
        changes["sets"] = {"main": [{"vary": looks}]}
    return StudyFile(name, laid_over(laid_over(table, changes), more))


def job_of(cells, settings, seed=0, part="test", source="small"):
    world = StudyData(source=source, cutoffs=(5, 10)).world("small")
    settings = {"look": "own", "positive_from": 4.0, **settings}
    return Job(world, settings, part, seed, (1.0, 4.0), cells)


def checked(result):
    """What every result has."""
    assert {"data", "protocol", "rows", "claims", "report"} <= set(result)
    assert Path(result["report"]).exists()
    assert all(isinstance(c["holds"], bool) and c["detail"] for c in result["claims"])
    for table in result["tables"]:
        table.to_markdown()
    json.dumps({k: v for k, v in result.items() if k != "tables"}, allow_nan=False)
    return result


def same(one, other):
    return np.array_equal(one.users, other.users) and np.array_equal(one.items, other.items)


# --- figures 6.1 and 6.2 -------------------------------------------------------------------------


@pytest.mark.slow
def test_figure61_has_curves_claims_and_pictures(cells, tmp_path):
    result = checked(small("drift-figure61").run(cells, tmp_path))
    assert len(list((tmp_path / "figures").glob("*.svg"))) == 2 * 2 * 2
    assert len(result["rows"]) == 2 * 4 * 2
    for row in result["rows"]:
        assert [key for key in row if key.startswith("loss after")][-1] == "loss after 4"
        assert 0 < row["half 1"] < 0.5
    starts = {
        row["loss after 0"]
        for row in result["rows"]
        if (row["positive_from"], row["part"]) == (4.0, "train")
    }
    assert len(starts) == 1, "all systems start from the same model and are measured alike"
    assert len(result["claims"]) == 2 * 5
    assert sum("as many" in c["claim"] for c in result["claims"]) == 2 * 2


@pytest.mark.slow
def test_figure62_runs_where_the_core_alone_is_installed(tmp_path):
    """None of the services' packages is needed, since nothing is sealed in it."""
    file = tmp_path / "one.toml"
    file.write_text(
        'extends = "drift-figure62"\nclaims = []\nderive = []\n'
        '[study]\ndata = ["town"]\nseeds = [0]\n'
        "[sets]\nfirst = []\nmatched = []\nothers = []\n"
        'end = [{ systems = ["drift-time"],'
        ' vary = { moment = ["convergence"], look = ["own"] } }]\n'
        "[systems.drift-time.grid]\npositive_from = [3.0]\nepochs = [1, 2]\n"
    )
    hide = f"import sys\nfor name in {[*EXTRA_OF]}:\n    sys.modules[name] = None\n"
    run = f"from sottovoce.cli import call\nsys.exit(call(['reproduce', {str(file)!r}, '--json']))"
    done = subprocess.run(
        [sys.executable, "-c", hide + run], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    systems = {row["system"] for row in json.loads(done.stdout)["rows"]}
    assert systems == {"DRIFT, by time"}


@pytest.mark.slow
def test_figure62_has_every_system_at_every_moment(cells, tmp_path):
    result = checked(small("drift-figure62").run(cells, tmp_path))
    assert len(result["rows"]) == 2 * 4 * (7 * 2 + 4 * 2 + 2)
    rows = {
        (r["system"], r.get("moment"), r["look"]): r
        for r in result["rows"]
        if r["positive_from"] == 4.0
    }
    first = rows["DRIFT, by time", "one epoch", "own"]
    same_blocks = rows["SAROS_b", "DRIFT's blocks", "own"]
    assert same_blocks["steps"] == same_blocks["blocks"] == first["blocks"]
    assert rows["SAROS_b", "DRIFT's steps", "own"]["steps"] == first["steps"]
    assert same_blocks["p against"] == "DRIFT, by time, one epoch"
    assert rows["SAROS_b", "convergence", "own"]["p against"] is None
    assert rows["Top-Pop", None, "full"]["p against"] == "DRIFT, by time, convergence"
    for (system, _, _), row in rows.items():
        assert all(0.0 <= row[metric] <= 1.0 for metric in METRICS)
        assert (row["MAP@5 half"] is None) == (system == "Top-Pop")
    texts = " ".join(c["claim"] for c in result["claims"])
    for words in ("one epoch", "as many steps", "as many blocks", "95 % interval", "Top-Pop"):
        assert words in texts


@pytest.mark.parametrize("key", SYSTEMS)
def test_a_training_gives_the_models_of_the_system_itself(cells, key):
    job = job_of(cells, SYSTEMS[key], seed=1)
    models, size = drift.models_of(job, job.stops, drift.DriftKind().passes)
    rng, train = Streams.from_seed(1), job.split.train
    component = drift.component_of(job.settings)
    if isinstance(component, SAROS):
        expected = component.fit_steps(train, rng, [1, 4])
    else:
        table = drift.owners_of(job.world, job.split, job.settings)
        expected = DRIFT(component).fit_steps(train, table, rng, [1, 4])
    assert all(map(same, models.values(), expected))
    assert size == drift.epoch_size(job.world, job.settings)
    looks = drift.DriftKind().train(job).looks
    scorer = FactorScorer.of(expected[1].users, expected[1].items)
    own = saros_metrics.own(scorer, job.split.test, 4.0)
    assert looks[4.0].summary()["MAP@5"] == pytest.approx(own.means()["MAP@5"], abs=1e-12)
    losing = job._replace(settings={**job.settings, "look": "test loss", "epochs": 4})
    _, blocks = drift.loss_blocks(job.split, 4.0)
    assert drift.DriftKind().train(losing).facts["loss"][4] == drift.mean_loss(models[4.0], blocks)


def test_saros_is_looked_at_after_as_many_blocks_as_drift_takes(cells):
    job = job_of(cells, SYSTEMS["saros-b"])
    kind = drift.DriftKind()
    settings = kind.prepared({**job.settings, "moment": "DRIFT's blocks"}, job.world)
    steps, wanted = drift.epoch_size(job.world, settings).steps, drift.reference(job.world, 4.0)
    assert steps < wanted.blocks < 4 * steps
    models, _ = drift.models_of(job, [settings["epochs"]], kind.passes)
    learnt = drift.blocks_of(job.world, job.split, settings, 0)
    model, left = DriftModel.start(120, 40, 4, Streams.from_seed(0)), wanted.blocks
    while left:
        part = learnt.take(np.arange(min(left, len(learnt))))
        learn(model, part, drift.component_of(settings).step())
        left -= len(part)
    assert same(models[settings["epochs"]], model)


def test_all_looks_share_a_training(tmp_path, monkeypatch):
    cells = Cells(tmp_path, 1, quiet)
    job = job_of(cells, SYSTEMS["drift-time"])
    drift.DriftKind().train(job)
    monkeypatch.setattr(drift, "blocks_of", None)  # a second training would fail
    again = job._replace(settings={**job.settings, "look": "legacy"}, stops=(4.0,))
    assert set(drift.DriftKind().train(again).looks) == {4.0}
    for changed in ({"seed": 1}, {"part": "validation"}, {"stops": (8.0,)}):
        with pytest.raises(TypeError):
            drift.DriftKind().train(job._replace(**changed))


def test_losses_leave_out_items_that_no_model_has(cells):
    split = job_of(cells, SYSTEMS["saros-b"]).split
    for blocks in drift.loss_blocks(split, 4.0):
        assert len(blocks) > 0
        assert blocks.entries.max() < split.train.n_items


# --- messages: figure 6.3 and Θ ------------------------------------------------------------------


@pytest.mark.slow
def test_the_time_of_an_epoch(cells, tmp_path):
    few = {key: {"settings": {"events": 400}} for key in ("none", "shared", "pairs", "compiled")}
    result = checked(small("drift-figure63", seeds=(0,), systems=few).run(cells, tmp_path))
    holds = {c["claim"]: c["holds"] for c in result["claims"]}
    assert [h for text, h in holds.items() if "bit for bit" in text] == [True]
    rows = [row for row in result["rows"] if row.get("set") == "epochs"]
    none, shared, pairs, fast = rows
    for row in rows:
        assert row["seconds"] == pytest.approx(sum(row[f"{phase} s"] for phase in PHASES))
        assert 0 <= row["encryption share"] <= row["security"] <= 1
        assert (row["security_paper"], row["encryption share_paper"]) == (0.10, 0.0152)
    assert none["security"] == 0.0
    assert shared["security"] == shared["security later"] > 0
    assert pairs["security"] > pairs["security later"] > 0
    assert fast["security"] > pairs["security"]
    assert none["interaction"] < shared["interaction"] < pairs["interaction"]
    assert (tmp_path / "figures" / "drift-figure63.svg").exists()


@pytest.mark.slow
def test_what_theta_does(cells, tmp_path):
    each = {"each": {"theta": [1, 2, 64]}}
    vary = {"look": ["own", "full"]}
    more = {
        "systems": {
            "drift-theta": {**each, "settings": {"epochs": 3}},
            "guesses": {**each, "settings": {"epochs": 3, "events": 400}},
        },
        "sets": {
            "main": [{"systems": ["drift-theta"], "vary": vary, "curve": [1, 3]}],
            "ends": [{"systems": ["drift-theta"], "vary": {**vary, "epochs": [1, 3]}}],
        },
    }
    result = checked(small("drift-theta", seeds=(0,), **more).run(cells, tmp_path))
    hidden = [c["holds"] for c in result["claims"]
              if "conclude nothing" in c["claim"] or "cannot tell" in c["claim"]]  # fmt: skip
    assert hidden == [False] * 3
    rows = [row for row in result["rows"] if row.get("set") == "costs"]
    for key in ("updates", "rows", "up", "down"):
        values = [row[key] for row in rows]
        assert values == sorted(values, reverse=True), key
    assert len({row["rows_paper"] for row in rows}) == 1
    assert all(row["gradients bytes"] < row["gradients bytes_paper"] for row in rows)
    attacks = [row for row in result["rows"] if row.get("set") == "attacks"]
    assert len(attacks) == 3 * 5
    assert attacks[0]["attack"] == "request log"
    assert attacks[0]["value"] == 1.0
    named = [row for row in attacks if "users named" in row["attack"] and row["theta"] <= 2]
    assert len(named) == 4
    assert all(row["value"] == 1.0 for row in named)


@pytest.mark.parametrize("theta", [1, 2, 8])
def test_the_plan_names_what_requests_name(cells, theta):
    requests = []

    def watch(party, message):
        if isinstance(message, RowRequest):
            requests.append((message.users.tolist(), message.items.tolist()))

    epoch = drift_parties.DriftEpoch.of(job_of(cells, {"theta": theta, "name": "drift"}))
    epoch.simulation("none", witness=watch).epoch(epoch.events)
    named = drift_parties.named_rows(plan(epoch.events, epoch.table, theta))
    assert [(n.users.tolist(), n.items.tolist()) for n in named] == requests


# --- delay, and who comes and goes ---------------------------------------------------------------


def test_updates_of_a_delay_start_from_the_same_rows(cells):
    job = job_of(cells, {"name": "drift", "delay": 10_000})
    blocks = drift.blocks_of(job.world, job.split, job.settings, 0)
    assert blocks.rounds.tolist() == [0, blocks.steps]
    step, start = drift.component_of(job.settings).step(), drift.start_of(job, 4)
    by_users, by_items = gradient(start, replace(blocks, rounds=None), step)
    models, _ = drift.models_of(job, [1.0], drift.DriftKind().passes)
    users = start.users - step.learning_rate * by_users
    items = start.items - step.learning_rate * by_items
    assert models[1.0].users == pytest.approx(users, abs=1e-5)
    assert models[1.0].items == pytest.approx(items, abs=1e-5)
    halves = drift.delayed(replace(blocks, rounds=None), {"delay": blocks.steps - 1})
    assert halves.rounds.tolist() == [0, blocks.steps - 1, blocks.steps]
    with pytest.raises(ConfigError, match="delay"):
        drift.delayed(blocks, {"delay": 0})


@pytest.mark.parametrize("who", ["owners", "users"])
def test_who_comes_and_goes_is_as_among_the_parties(cells, who):
    changes = {"who": who, "come": 0.34, "go": 0.34, "turn": 1}
    job = job_of(cells, {"name": "drift", **FAST, **changes})
    kind, config = drift_changes.ChangingKind(), drift.component_of(job.settings)
    models, _ = drift.models_of(job, [1.0, 2.0], kind.passes)
    member, train = drift_changes.membership(job), job.split.train
    every, orchestrator = Events.of(train, 4.0, "time"), Orchestrator(config, Streams.from_seed(0))
    owners, users = {}, {}
    for epoch in (1, 2):
        there = drift_changes.present(job, "owners", member.shape[1], epoch)
        for k in range(member.shape[1]):
            if there[k] and k not in owners:
                items = np.flatnonzero(member[:, k]).tolist()
                orchestrator.add_items(k, items)
                owners[k] = Owner(k, items, config)
            elif not there[k] and k in owners:
                orchestrator.leave_owner(k)
                del owners[k]
        here = drift_changes.present(job, "users", train.n_users, epoch)
        for u in range(train.n_users):
            if here[u] and u not in users:
                orchestrator.join_user(u)
                users[u] = User(u, orchestrator.table)
            elif not here[u] and u in users:
                orchestrator.leave_user(u)
                del users[u]
        for owner in owners.values():
            for u in set(owner.users) - set(users):
                owner.forget(u)
            for u in users:
                owner.admit(u)
        held = np.isin(np.arange(train.n_items), list(orchestrator.table))
        kept = here[every.user] & held[every.item]
        columns = (every.user, every.item, every.positive, every.time)
        replay(Events(*(c[kept] for c in columns), "time"), users, owners, orchestrator)
        found, expected = models[float(epoch)], orchestrator.model
        assert np.array_equal(found.users[here], expected.users[np.flatnonzero(here)])
        assert np.array_equal(found.items[held], expected.items[np.flatnonzero(held)])
    assert not (there if who == "owners" else here).all(), "some have left"


def test_whoever_has_left_is_neither_measured_nor_recommended(cells):
    job = job_of(cells, {"name": "drift", "who": "users", "come": 0.3, "go": 0.3, "turn": 1})
    kind = drift_changes.ChangingKind()
    looks = kind.train(job).looks
    every = len(drift.DriftKind().train(job_of(cells, {"name": "drift"})).looks[1.0].users)
    assert len(looks[1.0].users) == pytest.approx(0.7 * every, abs=5)  # who comes later is missing
    assert len(looks[4.0].users) == pytest.approx(0.7 * every, abs=5)
    assert looks[1.0].values["group"].sum() == 0
    assert looks[4.0].values["group"].sum() == pytest.approx(0.3 * every, abs=5)
    job = job_of(cells, {"name": "drift", "who": "owners", "go": 1.0, "turn": 1})
    model = drift.start_of(job, 4)
    assert kind.looked(job, 1.0, model).mean("NDCG@10") > 0.5
    assert kind.looked(job, 2.0, model).mean("NDCG@10") == 0.0


def test_who_misses_an_epoch_comes_back(cells):
    job = job_of(cells, {"name": "drift", "who": "users", "away": 0.5})
    there = [drift_changes.present(job, "users", 1_000, epoch) for epoch in (1, 2)]
    assert [one.mean() for one in there] == pytest.approx([0.5, 0.5], abs=0.05)
    assert np.mean(there[0] & there[1]) == pytest.approx(0.25, abs=0.05)
    assert drift_changes.present(job, "users", 1_000, 1, reach=True).all()
    assert drift_changes.present(job, "owners", 18, 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["drift-delay", "drift-churn"])
def test_studies_of_change_have_tables_and_claims(cells, tmp_path, name):
    study = StudyFile(name, installed(name, quick=True))
    result = checked(study.run(cells, tmp_path))
    assert len(result["claims"]) == {"drift-delay": 5, "drift-churn": 4}[name]
    base = [row for row in result["rows"] if row.get("set") == "kept" and row.get("kept") == 1.0]
    assert base
    assert list((tmp_path / "figures").glob("*.svg"))


# --- files and settings --------------------------------------------------------------------------


def test_what_makes_no_sense_is_refused(cells):
    world, kind = job_of(cells, SYSTEMS["saros-b"]).world, drift.DriftKind()
    with pytest.raises(ConfigError, match="look is one of own, full"):
        kind.prepared({"name": "drift", "look": "at me"}, world)
    for settings, why in (
        ({"name": "drift", "owners": "many"}, "owners"),
        ({"name": "drift", "gird": 1}, "gird"),
        ({"name": "als"}, "als"),
    ):
        with pytest.raises(ConfigError, match=why):
            kind.train(job_of(cells, settings))
    with pytest.raises(DataError, match="items that no data owner holds"):
        kind.train(job_of(cells, SYSTEMS["drift-time"], source="no-genre"))


# --- real data -----------------------------------------------------------------------------------


MOVIELENS = Path(os.environ.get("SOTTOVOCE_DATA", "none")) / "movielens-1m"


@pytest.mark.data
@pytest.mark.skipif(not MOVIELENS.is_dir(), reason="needs movielens-1m under $SOTTOVOCE_DATA")
def test_movielens_lead_after_one_epoch_is_one_of_blocks(tmp_path, monkeypatch):
    monkeypatch.setenv("SOTTOVOCE_DATA", str(MOVIELENS.parent))
    cells, kind = Cells(tmp_path, 1, quiet), drift.DriftKind()
    job = job_of(cells, {"name": "drift"}, source="movielens-1m")
    world = job.world
    assert len(drift.owners_of(world, job.split, job.settings).all_owners()) == 18
    assert drift.reference(world, 4.0) == (147_166, 294_323)
    ours = kind.train(job._replace(stops=(1.0,))).looks[1.0].mean("MAP@5")
    saros = job._replace(settings={**job.settings, "name": "saros"})
    assert drift.epoch_size(world, saros.settings) == (134_761, 134_761)
    blocks = kind.prepared({**saros.settings, "moment": "DRIFT's blocks"}, world)["epochs"]
    looks = kind.train(saros._replace(stops=(1.0, blocks))).looks
    assert 0.59 < ours < 0.62
    assert looks[1.0].mean("MAP@5") < ours - 0.02
    assert abs(looks[blocks].mean("MAP@5") - ours) < 0.01
