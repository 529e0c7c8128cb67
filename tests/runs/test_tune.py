"""Searches: the same best trial whatever happens to their processes, and from the validation part
alone."""

import json
import math
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pytest

import sottovoce.cli
from sottovoce.cli.output import StagePace, duration
from sottovoce.core.interactions import Interactions
from sottovoce.data.dataset import Dataset
from sottovoce.data.prepared import write_prepared
from sottovoce.errors import ConfigError, FolderInUse, RunError, UsageError
from sottovoce.experiment import Experiment, find_experiment
from sottovoce.privacy.accountant import account
from sottovoce.privacy.central import price
from sottovoce.runs import tune
from sottovoce.runs.search_cost import Charge, Loss, cost_of
from sottovoce.runs.search_trials import (
    SearchOptions,
    SearchWorld,
    Training,
    TrialTask,
    best_of,
    proposed,
    read_metric,
    run_trial,
    searched_experiment,
)
from sottovoce.runs.space import read_space
from sottovoce.runs.standing import standing
from sottovoce.runs.train import run_experiment
from sottovoce.runs.tune import Journal, reopened, search
from sottovoce.runs.tune_report import importance, write_best

FILE = """# A file with a comment.
name = "tiny"
seed = 3

[town]
residents = 60
venues = 80
visits_per_resident = 20

[algorithm]
configuration = "pFPL+"
embedding_size = 4
epochs = 4  # not many

[search]
algorithm.learning_rate = "log:0.005:0.2"
algorithm.embedding_size = [2, 4, 8]

[baselines.top-pop]
"""
OPTIONS = SearchOptions(trials=14, seeds=2, finalists=2)


def parts(text=FILE, **changes):
    table = tomllib.loads(text) | changes
    experiment = searched_experiment(table)
    return experiment, read_space(experiment, own=table.get("search", {}))


def told(found):
    """What must not depend on how a search went."""
    trials = [replace(one, seconds=0.0) for one in (*found.trials, *found.again)]
    return trials, found.finalists


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search that nothing has stopped."""
    return search(*parts(), tmp_path_factory.mktemp("search") / "whole", OPTIONS)


def test_the_best_has_the_best_mean_and_is_no_worse_than_the_file(whole):
    ended = [one.value for one in whole.trials if one.state == "finished"]
    assert whole.trials[0].settings == {}
    assert max(ended) in {one.values[0] for one in whole.finalists}
    assert whole.best.mean == max(one.mean for one in whole.finalists)
    assert all(len(one.values) == 2 for one in whole.finalists)
    assert {one.state for one in whole.trials} == {"finished", "pruned"}
    pruned = next(one for one in whole.trials if one.state == "pruned")
    assert pruned.value is None
    assert pruned.number >= 8
    assert pruned.reached[0][0] == 2  # half of the file's four epochs
    assert pruned.reached[-1][0] < 4
    assert reopened(whole.folder.path).finalists == whole.finalists
    assert told(reopened(whole.folder.path)) == told(whole)


def test_a_killed_search_goes_on_to_the_same_best(whole, tmp_path):
    """Killed with two processes at work, of which nothing is left behind; then gone on with in
    one."""
    file, place = tmp_path / "tiny.toml", tmp_path / "killed"
    file.write_text(FILE)
    command = [sys.executable, "-m", "sottovoce", "tune", file, "--out", place, "--jobs", "2"]
    command += ["--trials", "14", "--seeds", "2", "--finalists", "2"]
    process = subprocess.Popen([*map(str, command)], start_new_session=True)
    journal = place / "trials.journal"
    try:
        deadline = time.monotonic() + 120
        while not (journal.exists() and journal.read_text().count("\n") > 3):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    lines = journal.read_text().splitlines(keepends=True)
    assert 3 < len(lines) < 15  # the first names the search
    deadline = time.monotonic() + 60
    while True:  # the processes that it has started end by themselves
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    kept = Journal(journal).done
    journal.write_text("".join(lines) + lines[-1][: len(lines[-1]) // 2])
    (place / "trials.journal.lock").touch()  # as a process leaves it that is killed as it writes
    found = search(*parts(), place, OPTIONS)
    assert told(found) == told(whole)
    done = Journal(journal).done
    assert len(kept) >= 3
    assert all(done[key].seconds == one.seconds for key, one in kept.items())


def test_what_is_left_is_left_of_the_whole_search(whole, tmp_path, monkeypatch):
    """All trainings are counted, those of finalists too, and none that an earlier call has done. On
    a clock on which each takes a minute, what is said is right to the minute."""
    now, said, pace = [0.0], [], None

    def slow(world, task):
        now[0] += 60.0
        return run_trial(world, task)

    def report(what, done, total):
        nonlocal pace
        if what == "search":
            pace = pace or StagePace(now[0], done)
            said.append((now[0], done, total, pace.left(now[0], done, total)))

    monkeypatch.setattr(tune, "run_trial", slow)
    search(*parts(), tmp_path / "s", replace(OPTIONS, trials=6, seeds=1), report=report)
    assert [one for one in said if one[0] == 180.0][-1] == (180.0, 3, 6, "about 3 min left")
    now[0], pace = 0.0, None
    said.clear()
    found = search(*parts(), tmp_path / "s", OPTIONS, report=report)
    assert told(found) == told(whole)
    end = now[0]
    assert said[0] == (0.0, 6, 16, "")
    assert said[-1] == (end, 16, 16, "")
    shown = [one for one in said if one[3]]
    assert len(shown) >= 9
    assert {left for at, _, _, left in shown if left != f"about {duration(end - at)} left"} == set()


def test_a_search_with_more_trials_goes_on_from_the_one_with_fewer(whole, tmp_path):
    first = search(*parts(), tmp_path / "s", replace(OPTIONS, trials=6, seeds=1))
    assert [replace(one, seconds=0.0) for one in first.trials] == told(whole)[0][:6]
    assert told(search(*parts(), tmp_path / "s", OPTIONS)) == told(whole)


def test_a_search_that_its_time_has_ended_goes_on_with_the_same_command(whole, tmp_path):
    """It finishes the batch that it has begun, and says what it found in that."""
    short = replace(OPTIONS, timeout=1e-9)
    first = search(*parts(), tmp_path / "s", short)
    assert [replace(one, seconds=0.0) for one in first.trials] == told(whole)[0][:4]
    assert first.best.number < 4
    assert reopened(tmp_path / "s").finalists == first.finalists
    lines = (tmp_path / "s" / "trials.journal").read_text()
    assert told(search(*parts(), tmp_path / "s", short)) == told(first)
    assert (tmp_path / "s" / "trials.journal").read_text() == lines
    found = search(*parts(), tmp_path / "s", OPTIONS)
    assert (found.trials[0].value, len(found.trials)) == (first.trials[0].value, 14)
    assert told(found)[0][:14] == told(whole)[0][:14]


def test_another_sampler_seed_proposes_other_settings_and_trains_alike(whole):
    experiment, space = parts()
    worlds = [SearchWorld.of(experiment, space, replace(OPTIONS, sampler_seed=n)) for n in (0, 1)]
    asked = [proposed(world, ()) for world in worlds]
    assert asked[0] == [dict(one.settings) for one in whole.trials[:4]]
    assert asked[0][0] == asked[1][0] == {}
    assert all(one != other for one, other in zip(asked[0][1:], asked[1][1:], strict=True))
    task = TrialTask(1, 3, asked[0][1])
    assert len({run_trial(world, task).value for world in worlds}) == 1
    for wrong in ({"sampler_seed": -1}, {"timeout": 0.0}, {"timeout": math.nan}):
        with pytest.raises(UsageError):
            replace(OPTIONS, **wrong)


def test_a_slow_start_is_not_given_up():
    """Settings that are the worst a quarter of the way and the best at its end go to their end."""
    experiment, space = parts()
    world = SearchWorld.of(experiment, space, OPTIONS)
    quick = tuple(
        replace(training(n, 0.5, reached=((2.0, 1e-9),)), settings={
            "algorithm.learning_rate": 0.01, "algorithm.embedding_size": 4,
        }) for n in range(9)
    )  # fmt: skip
    early = [replace(one, reached=((0.5, 1.0), (1.0, 1.0), *one.reached)) for one in quick]
    assert run_trial(world, TrialTask(9, 3, {}, tuple(early))).state == "finished"
    late = [replace(one, reached=((2.0, 1.0),)) for one in quick]
    assert run_trial(world, TrialTask(9, 3, {}, tuple(late))).state == "pruned"


def test_another_search_in_the_folder_is_refused_and_nothing_is_lost(whole):
    before = (whole.folder.path / "trials.journal").read_bytes()
    experiment, space = parts()
    other = read_space(experiment, ["algorithm.learning_rate=log:0.01:0.2"])
    for asked in (
        (experiment, other, OPTIONS),
        (*parts(seed=4), OPTIONS),
        (experiment, space, replace(OPTIONS, batch=5)),
        (experiment, space, replace(OPTIONS, metric="P@10")),
        (experiment, space, replace(OPTIONS, sampler_seed=1)),
    ):
        with pytest.raises(FolderInUse, match="another run"):
            search(asked[0], asked[1], whole.folder.path, asked[2])
    assert (whole.folder.path / "trials.journal").read_bytes() == before


def test_a_kill_before_the_first_line_loses_nothing_and_blocks_nothing(tmp_path):
    (tmp_path / "manifest.json.partial").write_text('{"half')
    found = search(*parts(), tmp_path, replace(OPTIONS, trials=1, seeds=1))
    assert len(found.trials) == 1


@pytest.fixture
def worlds(tmp_path, monkeypatch):
    """Two data sets whose training parts are the same and whose test parts are not."""
    rng = np.random.default_rng(5)
    users, per_user, items = 50, 20, 40
    histories = np.array([rng.permutation(items)[:per_user] for _ in range(users)])
    other = histories.copy()
    for user in range(users):  # the latest fifth: other items, known from others' training
        unseen = np.setdiff1d(np.arange(items), histories[user])
        other[user, -4:] = rng.choice(unseen, 4, replace=False)
    times = np.tile(np.arange(per_user), users)
    for name, table in (("one", histories), ("other", other)):
        pairs = Interactions.from_pairs(
            np.repeat(np.arange(users), per_user), table.ravel(), timestamps=times,
            n_users=users, n_items=items,
        )  # fmt: skip
        write_prepared(Dataset(name, pairs), tmp_path / "data" / name)
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "data"))


def test_the_test_part_does_not_matter(worlds, tmp_path):
    """Neither for what is trained nor for the best file, byte by byte."""
    files, outcomes = [], []
    for name in ("one", "other"):
        table = tomllib.loads(FILE) | {"data": {"source": name}}
        table.pop("town")
        experiment = searched_experiment(table)
        space = read_space(experiment, own=table["search"])
        found = search(experiment, space, tmp_path / name, replace(OPTIONS, trials=9))
        files.append(write_best(FILE, table, found).read_text().replace(name, ""))
        outcomes.append(told(found))
    assert outcomes[0] == outcomes[1]
    assert files[0] == files[1]
    # The two differ for whoever looks: the test would notice.
    judged = [
        run_experiment(Experiment.from_table(table | {"data": {"source": n}, "search": {}}))
        for n in ("one", "other")
    ]
    assert len({one.evaluations["pFPL+"].mean("NDCG@10") for one in judged}) == 2


def training(number, value, state="finished", reached=(), settings=None):
    return Training(number, 0, settings or {"a.b": number}, state, value, reached)


def test_pruned_and_failed_trials_cannot_be_best():
    trials = [
        training(0, 0.1),
        training(1, None, "pruned", ((1.0, 0.9),)),
        training(2, None, "failed"),
        training(3, 0.3),
        training(4, 0.3),
        training(5, 0.2),
        training(6, 0.3, settings={"a.b": 3}),
    ]
    assert [one.number for one in best_of(trials, 3)] == [3, 4, 5]
    assert [one.number for one in best_of(trials, 2, maximise=False)] == [0, 5]
    assert best_of(trials[1:3], 3) == []


def test_seeds_change_what_is_drawn_and_never_the_split():
    experiment, space = parts(data={"split": "random"})
    world = SearchWorld.of(experiment, space, OPTIONS)
    one, again, other = (run_trial(world, TrialTask(0, seed, {})) for seed in (3, 3, 4))
    assert one.value == again.value != other.value
    # With another seed in the file the same training is judged on other items.
    elsewhere = SearchWorld.of(*parts(data={"split": "random"}, seed=4), OPTIONS)
    assert run_trial(elsewhere, TrialTask(0, 4, {})).value != other.value
    assert world.split.test.n_interactions == world.judged


def test_settings_that_diverge_or_do_not_go_together_are_trials_that_failed():
    experiment, _ = parts()
    space = read_space(experiment, ["algorithm.learning_rate=0.05,10.0"])
    world = SearchWorld.of(experiment, space, OPTIONS)
    wild = run_trial(
        world, TrialTask(1, 3, {"algorithm.learning_rate": 10.0, "algorithm.reg_user": 900.0})
    )
    assert wild.state == "failed"
    assert wild.value is None
    assert wild.why.startswith("diverged")
    silly = run_trial(
        world, TrialTask(1, 3, {"algorithm.configuration": "", "algorithm.cohort_size": 999})
    )
    assert silly.state == "failed"
    assert "cohort_size is 999" in silly.why


def test_a_metric_that_is_not_given_is_named(tmp_path):
    assert read_metric("", (5, 10)) == ("NDCG@5", True)
    with pytest.raises(UsageError, match=r"gives no NDCG@7; there are P@10"):
        read_metric("NDCG@7", (10,))
    with pytest.raises(UsageError, match="neither better nor worse"):
        read_metric("Gini@10", (10,))
    sampled = parts(evaluation={"candidates": 20})
    with pytest.raises(ConfigError, match=r"gives no P@10; it gives"):
        search(*sampled, tmp_path / "s", replace(OPTIONS, metric="P@10", trials=2))


def test_a_search_without_optuna_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"a search needs optuna, .*\[tune\]'$"):
        search(*parts(), tmp_path / "s", OPTIONS)
    assert not (tmp_path / "s").exists()


# --- what it would cost --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sound/gram", ["town.residents=700"]),
        ("sound/fpl", ["town.residents=600", "algorithm.rounds=5"]),
        ("tuned/fmf", ["town.residents=600", "algorithm.rounds=3"]),
        ("tuned/fpl", ["town.residents=60", "algorithm.epochs=1"]),
    ],
)
def test_a_training_is_charged_what_its_run_has_spent(name, settings, tmp_path):
    whole = Experiment.from_file(find_experiment(name), settings)
    experiment = searched_experiment(whole.table)
    world = SearchWorld.of(experiment, read_space(experiment), OPTIONS)
    charge = run_trial(world, TrialTask(0, experiment.seed, {})).charge
    outcome = run_experiment(experiment, tmp_path / "run")
    bound = standing(experiment, outcome.folder.ledger()).epsilon
    assert charge.bounded == math.isfinite(bound)
    if charge.reports:
        assert account([charge.sent]).with_proxy == pytest.approx(bound)
    else:
        assert charge.loss.epsilon() == pytest.approx(bound, rel=1e-6)
    assert Charge.from_table(json.loads(json.dumps(charge.to_table()))) == charge


def test_all_trainings_count_also_those_given_up():
    cheap, dear = Charge(squares=0.01), Charge(squares=0.04)
    trials = [replace(training(n, 0.1), charge=dear) for n in range(8)]
    trials += [replace(training(9, None, "pruned"), charge=cheap)]
    found = cost_of(trials)
    assert found.trainings == 9
    assert found.one == pytest.approx(dear.loss.epsilon())
    assert found.told == pytest.approx(Charge(squares=0.33).loss.epsilon())
    words = " ".join(found.words())
    assert "each of its 9 trainings" in words
    unbounded = cost_of([*trials, replace(training(10, 0.1), charge=Charge(bounded=False))])
    assert unbounded.told == math.inf
    assert unbounded.to_table()["epsilon_told"] is None
    assert "no ε bounds" in " ".join(unbounded.words())
    assert cost_of([training(0, 0.1)]).trainings == 0


def test_losses_add_up_as_mechanisms_do():
    def alike(n, loss):
        return reduce(add, [loss] * n)

    assert alike(9, Loss(squares=0.25)).epsilon() == pytest.approx(price(2.0, 9))
    assert (Loss(pure=(0.5,)) + Loss(pure=(1.5,))).epsilon() <= 2.0
    assert Loss(pure=(0.01,) * 10_000).epsilon() < 10.0  # far below 100
    mixed = Loss(0.25, (0.5,))
    assert max(Loss(0.25).epsilon(), 0.4) < mixed.epsilon() < Loss(0.25).epsilon() + 0.5 + 0.3
    assert Loss().epsilon() == 0.0
    assert Loss(pure=(math.inf,)).epsilon() == math.inf
    for distance in (0.1, 1.0, 3.0):
        # With pure mechanisms that cost next to nothing the best order decides: it gives a little
        # more than the exact price, and never less.
        exact = Loss(squares=distance**2).epsilon()
        assert exact <= Loss(distance**2, (1e-12,)).epsilon() < 1.25 * exact + 0.02


# --- the command ---------------------------------------------------------------------------------


def test_the_command_writes_a_file_that_runs_and_a_page(tmp_path, capsys):
    file, place = tmp_path / "tiny.toml", tmp_path / "s"
    file.write_text(FILE)

    def call(*arguments):
        code = sottovoce.cli.call([str(one) for one in arguments])
        return code, capsys.readouterr()

    command = ["tune", file, "--out", place, "--trials", 12, "--seeds", 1, "--json"]
    command += ["--set", "algorithm.reg_user=0.01"]
    code, said = call(*command)
    assert code == 0, said.err
    found = json.loads(said.out)
    assert found["part"] == "validation"
    assert found["finished"] + found["pruned"] + found["failed"] == found["trials"] == 12
    assert found["best"]["value"] >= found["as_in_file"]
    assert found["cost"]["epsilon_told"] is None
    assert found["cost"]["trainings"] == 12
    text = (place / "best.toml").read_text()
    assert "# A file with a comment." in text
    assert "# not many" in text
    table = tomllib.loads(text)
    assert table["algorithm"]["reg_user"] == 0.01
    assert table["name"] == "tiny-tuned"
    assert table["search"] == tomllib.loads(FILE)["search"]
    for name, value in found["best"]["settings"].items():
        assert table["algorithm"][name.partition(".")[2]] == value
    page = (place / "report.html").read_text()
    assert "Which settings matter" in page
    assert {p.stem for p in (place / "figures").glob("*.png")} == {
        "history", "setting-0", "setting-1",
    }  # fmt: skip
    (place / "report.html").unlink()
    code, said = call("report", place)
    assert code == 0
    assert (place / "report.html").exists()
    code, said = call("recommend", place, "--user", "r0003")
    assert code == RunError.exit_code
    assert "is a search for settings, not a run" in said.err
    for arguments, words in (
        (["--metric", "NDCG@3"], "gives no NDCG@3"),
        (["--search", "algorithm.epoch=1:3"], "unknown keys ['epoch']"),
        (["--search", "algorithm.epochs=1:3"], "another run"),
    ):
        code, said = call(*command, *arguments)
        assert code in (UsageError.exit_code, RunError.exit_code)
        assert words in json.loads(said.out)["error"]


def test_importance_is_said_where_enough_trials_ended(whole):
    shares = importance(whole)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert set(shares) == {"algorithm.learning_rate", "algorithm.embedding_size"}
    few = replace(whole, trials=whole.trials[:9])
    assert importance(few) == {}
