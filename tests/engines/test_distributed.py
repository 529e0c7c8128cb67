"""Ranks: whatever their number, the same bits as one process; and what becomes of a run where one
of them stops."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import rank_world  # noqa: E402
from rank_world import EXPERIMENTS, TOWN, ranks, run_here, table, train  # noqa: E402

from sottovoce.core.interactions import Interactions  # noqa: E402
from sottovoce.core.ranks import ALONE, Ranks, exact_parts  # noqa: E402
from sottovoce.data.prepared import read_prepared, write_prepared  # noqa: E402
from sottovoce.data.town import TownConfig, generate_town  # noqa: E402
from sottovoce.engines import observers  # noqa: E402
from sottovoce.engines.distributed import RankPlace, joined  # noqa: E402
from sottovoce.engines.processes import descendants, free_port  # noqa: E402
from sottovoce.engines.simulation import joining  # noqa: E402
from sottovoce.errors import ConfigError, CorruptData, ServiceError, UsageError  # noqa: E402
from sottovoce.experiment import Experiment  # noqa: E402
from sottovoce.runs import topology  # noqa: E402
from sottovoce.runs.folder import RunFolder  # noqa: E402
from sottovoce.runs.read import FinishedRun  # noqa: E402
from sottovoce.runs.topology import slow_ranks  # noqa: E402
from sottovoce.runs.train import run_experiment  # noqa: E402

QUICK = ("fpl", "gram, batches and quality", "fmf", "uc, mf")
"""One of each kind of what leaves devices; `make test-all` has the others."""
DONE = ("done", "ok")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """By name, the run of an experiment in one process."""
    folder, made = tmp_path_factory.mktemp("alone"), {}

    def run(name):
        if name not in made:
            made[name] = run_here(name, folder / name).folder
        return made[name]

    return run


def check_same(one, other):
    """Two finished runs, to the last bit."""
    assert np.array_equal(one.model(), other.model())
    assert np.array_equal(one.vectors(), other.vectors())
    assert one.ledger().equals(other.ledger())
    assert one.metrics() == other.metrics()
    told, again = one.manifest(), other.manifest()
    for name in ("results", "protocol", "ledger", "schedule", "model_versions"):
        assert told.get(name) == again.get(name), name


def check_all(alone, size, names, folder):
    assert ranks(size, train, names, str(folder), seconds=240) == [DONE] * size
    for name in names:
        there = RunFolder(folder / name)
        check_same(alone(name), there)
        assert len(list(there.path.glob("devices-*.npz"))) == size
        assert len(list(there.path.glob("ledger-*.parquet"))) == size


@pytest.mark.parametrize(
    "size", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]
)
def test_any_number_of_ranks_gives_the_bits_of_one_process(alone, size, tmp_path):
    check_all(alone, size, QUICK, tmp_path)
    read = FinishedRun.open(tmp_path / "fpl")  # recommend, ledger and report read both forms
    assert read.recommend("r0005", 3) == FinishedRun.open(alone("fpl").path).recommend("r0005", 3)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_experiment_gives_the_bits_of_one_process(alone, size, tmp_path):
    check_all(alone, size, [name for name in EXPERIMENTS if name not in QUICK], tmp_path)


# --- stopped, and gone on with --------------------------------------------------------------------


def stopped(here, name, folder, dies, at, how):
    """Saves after every round; rank `dies` stops in its `at`-th."""
    topology.CHECKPOINT_SECONDS = 0.0
    looks = observers.Checkpoints.at

    def look(self, round, rounds):
        if round == at and here.rank == dies:
            how()
        looks(self, round, rounds)

    observers.Checkpoints.at = look
    return train(here, [name], folder)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def interrupted():
    os.kill(os.getpid(), signal.SIGINT)


def full():
    raise OSError(28, "No space left on device")


def test_a_rank_is_killed_and_another_number_of_ranks_goes_on(alone, tmp_path):
    told = ranks(2, stopped, "fpl", str(tmp_path), 1, 5, killed)
    assert told[1] == ("died", -signal.SIGKILL)
    assert told[0][0] == "RankLost"
    assert "--resume" in told[0][1]
    assert ranks(3, train, ["fpl"], str(tmp_path), True) == [DONE] * 3
    check_same(alone("fpl"), RunFolder(tmp_path / "fpl"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at"), [
    ("gram, batches and quality", 4), ("fmf", 1), ("uc, ncf", 1), ("fpl, noisy sums", 2),
])  # fmt: skip
def test_what_is_gone_on_with_ends_the_same(alone, name, at, tmp_path):
    told = ranks(4, stopped, name, str(tmp_path), 0, at, killed)
    assert told[0][0] == "died"
    assert {one[0] for one in told[1:]} == {"RankLost"}
    assert ranks(2, train, [name], str(tmp_path), True) == [DONE] * 2
    check_same(alone(name), RunFolder(tmp_path / name))


@pytest.mark.slow
def test_an_interrupt_of_one_stops_all_when_their_state_is_whole(alone, tmp_path):
    told = ranks(2, stopped, "fpl", str(tmp_path), 1, 3, interrupted)
    assert [one[0] for one in told] == ["RankInterrupted"] * 2
    assert sorted(one[2] for one in told) == [False, True]  # one of them says what to do next
    assert ranks(1, train, ["fpl"], str(tmp_path), True) == [DONE]
    check_same(alone("fpl"), RunFolder(tmp_path / "fpl"))


@pytest.mark.slow
def test_a_disk_that_is_full_on_one_rank_is_told_there(alone, tmp_path):
    told = ranks(2, stopped, "fpl", str(tmp_path), 1, 3, full)
    assert told[1][0] == "RunError"
    assert re.search("No space left.*--resume", told[1][1])
    assert told[0][::2] == ("RankLost", True)  # quiet: it was said
    assert ranks(2, train, ["fpl"], str(tmp_path), True) == [DONE] * 2
    check_same(alone("fpl"), RunFolder(tmp_path / "fpl"))


# --- real processes -------------------------------------------------------------------------------

LONG = table(rank_world.FPL | {"rounds": 600}, consent=rank_world.MIXED, evaluation={"k": 5})
RANK = """
import sys
from sottovoce.runs import topology
topology.CHECKPOINT_SECONDS = 0.1
from sottovoce.cli import main
sys.exit(main())
"""
LAUNCH = """
import sys
from sottovoce.engines.distributed import launch
sys.exit(launch(sys.argv[1:], 2))
"""


def launched(folder, *words, torchrun=False):
    """`sottovoce run` as two ranks that save often, in a session of its own."""
    file, rank = folder / "long.toml", folder / "rank.py"
    rank.write_text(RANK)
    file.write_text(
        'name = "long"\nseed = 3\n'
        + "".join(
            f"{section} = {toml(LONG[section])}\n"
            for section in ("data", "town", "algorithm", "consent", "evaluation")
        )
    )
    by = [sys.executable, "-c", LAUNCH, sys.executable]
    if torchrun:
        by = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        by += ["--max-restarts", "2", "--master-port", str(free_port())]
    command = ["run", file, "--engine", "distributed", "--out", folder / "run", *words]
    return subprocess.Popen(
        [*by, *map(str, [rank, *command])], text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def rank_1_of(process):
    for pid, _ in descendants(process.pid):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if b"RANK=1" in words and b"rank.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


def when_saved(process, folder):
    """Waits for the first checkpoint; the process of rank 1."""
    until = time.monotonic() + 200
    while not (folder / "run" / "checkpoint.npz").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    return rank_1_of(process)


@pytest.mark.slow
@pytest.mark.parametrize("torchrun", [False, True])
def test_a_killed_rank_is_started_again_and_ends_the_same(torchrun, tmp_path):
    process = launched(tmp_path, torchrun=torchrun)
    os.kill(when_saved(process, tmp_path), signal.SIGKILL)
    said = process.communicate(timeout=400)[1]
    assert process.returncode == 0, said
    assert ("killed by signal 9" in said) != torchrun  # torchrun says so in its own words
    once = run_experiment(Experiment.from_table(LONG | {"name": "long"}), tmp_path / "once")
    there = RunFolder(tmp_path / "run")
    assert np.array_equal(there.model(), once.folder.model())
    assert np.array_equal(there.vectors(), once.folder.vectors())
    assert there.ledger().equals(once.folder.ledger())


@pytest.mark.slow
def test_ctrl_c_saves_on_all_ranks_says_so_once_and_is_gone_on_with(tmp_path):
    process = launched(tmp_path)
    when_saved(process, tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=800)[1]
    assert process.returncode == 130
    assert said.count("--resume") == 1, said
    assert "Traceback" not in said
    again = launched(tmp_path, "--resume")
    said = again.communicate(timeout=400)[1]
    assert again.returncode == 0, said
    assert RunFolder(tmp_path / "run").finished


@pytest.mark.slow
def test_bad_words_get_one_sentence(tmp_path):
    for words, sentence in (
        (["--transcript"], "transcript needs every message written out in one place"),
        (["--set", "algorithm.cohort_size=1000"], "only"),
        (["--set", "town.residents=1"], "1 users for 2 ranks"),
        (["--set", "defence.burst=0.3"], "[defence] looks at every device's message"),
    ):
        process = launched(tmp_path, *words)
        said = process.communicate(timeout=800)[1]
        assert process.returncode not in (0, 1), said
        assert sentence in said
        assert len(said.strip().splitlines()) == 1, said
        shutil.rmtree(tmp_path / "run", ignore_errors=True)


# --- bad input ------------------------------------------------------------------------------------


def test_who_never_joins_is_named():
    place = RankPlace(0, 2, "127.0.0.1", rank_world.free_port())
    said = pytest.raises(ServiceError, match=r"1 of 2 ranks .* missing: 1;")
    with said, joined(place, join_seconds=0.3):
        pass


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = pytest.raises(ServiceError, match=f"port {port} is in use")
        with said, joined(RankPlace(0, 2, "127.0.0.1", port), join_seconds=0.3):
            pass


def other_seed(here, folder):
    made = EXPERIMENTS["fpl"] | {"seed": 3 + here.rank}
    run_experiment(
        Experiment.from_table(made), Path(folder) / "run", engine="distributed", ranks=here
    )


def few_users(here, folder):
    made = table(rank_world.FPL, town=TOWN | {"residents": 2})
    run_experiment(
        Experiment.from_table(made), Path(folder) / "run", engine="distributed", ranks=here
    )


def neighbours(here, folder):
    made = table(rank_world.UC | {"recommender": "gnn"}, release=rank_world.CLIPPED)
    made["consent"] = {"share_positives": 1.0}
    run_experiment(Experiment.from_table(made), None, engine="distributed", ranks=here)


def test_ranks_that_differ_or_have_nobody_say_so_once(tmp_path):
    first, second = ranks(2, other_seed, str(tmp_path))
    assert first[0] == second[0] == "RankLost"
    assert "rank 1 has another experiment (its file, --set or seed) than rank 0" in second[1]
    assert (first[2], second[2]) == (True, False)
    told = ranks(3, few_users, str(tmp_path))
    assert all("2 users for 3 ranks" in one[1] for one in told)
    assert sorted(one[0] for one in told) == ["ConfigError", "RankLost", "RankLost"]
    assert not (tmp_path / "run").exists()
    told = ranks(2, neighbours, str(tmp_path))
    assert all("depends on the other devices" in one[1] for one in told)


@pytest.mark.parametrize("environment", [
    {"RANK": "0", "WORLD_SIZE": "2"},
    {"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
    {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
])  # fmt: skip
def test_a_rank_needs_to_know_its_place(environment):
    with pytest.raises(UsageError):
        RankPlace.found(environment)


def test_a_process_that_is_no_rank_finds_no_place():
    assert RankPlace.found({}) is None


def test_who_is_waited_for_is_named():
    assert slow_ranks([2.0, 2.1, 9.0, 1.9]) == [2]
    assert slow_ranks([2.0, 9.0]) == [1]
    assert slow_ranks([0.01, 0.09]) == []  # a second is not worth a word
    assert slow_ranks([3.0]) == []


# --- what ranks are made of -----------------------------------------------------------------------


class Among(Ranks):
    """A rank whose sums are looked up in those of everybody, computed one after the other."""

    together = True

    def __init__(self, rank, size):
        self.rank, self.size = rank, size


def town(here):
    made = generate_town(TownConfig(**TOWN), here)
    known = {key: (labels.values, labels.codes) for key, labels in made.user_attributes.items()}
    table = made.interactions
    return table.indptr, table.items, table.timestamps, table.n_items, known, made.fingerprint()


@pytest.mark.slow
def test_a_town_by_ranks_is_the_town():
    whole = generate_town(TownConfig(**TOWN))
    told = [one[1] for one in ranks(3, town)]
    assert np.array_equal(np.concatenate([one[1] for one in told]), whole.interactions.items)
    assert np.array_equal(np.concatenate([one[2] for one in told]), whole.interactions.timestamps)
    assert {one[3] for one in told} == {whole.interactions.n_items}
    assert {one[5] for one in told} == {whole.recipe()}
    for key, labels in whole.user_attributes.items():
        assert {one[4][key][0] for one in told} == {labels.values}
        assert np.array_equal(np.concatenate([one[4][key][1] for one in told]), labels.codes)


def prepared(here, folder):
    made = read_prepared(folder, ranks=here).known()
    return made.interactions.items, made.shard.first, made.fingerprint()


def test_a_prepared_data_set_by_ranks_is_the_whole(tmp_path):
    folder = write_prepared(generate_town(TownConfig(**TOWN)), tmp_path / "town")
    whole = read_prepared(folder)
    told = [one[1] for one in ranks(3, prepared, str(folder))]
    assert np.array_equal(np.concatenate([one[0] for one in told]), whole.interactions.items)
    assert [one[1] for one in told] == [0, 30, 60]
    assert {one[2] for one in told} == {whole.fingerprint()}


def test_groups_that_join_are_those_of_the_order_in_time():
    rng = np.random.default_rng(5)
    for times in (None, rng.integers(-4, 4, 200)):
        pairs = np.repeat(np.arange(50), 4), np.tile(np.arange(4), 50)
        history = Interactions.from_pairs(*pairs, n_users=50, timestamps=times)
        rows = np.flatnonzero(rng.random(50) < 0.7)
        first = np.arange(50) if times is None else times.reshape(50, 4).min(axis=1)
        for groups in (1, 3, 7, 60):
            found = joining(history, rows, groups)
            for number, part in enumerate(
                np.array_split(np.argsort(first[rows], kind="stable"), groups)
            ):
                assert np.array_equal(np.flatnonzero(found == number), np.sort(rows[part]))
            assert (found[np.setdiff1d(np.arange(50), rows)] == -1).all()


def test_exact_sums_do_not_depend_on_who_has_what():
    rng = np.random.default_rng(3)
    values = rng.random(1000) * 10.0 ** rng.integers(-12, 12, 1000)
    whole = ALONE.exact_sum(values)
    for cuts in ([500], [1, 2, 999], [0, 333, 666]):
        parts = [exact_parts(part) for part in np.split(values, cuts)]
        assert ALONE.exact_sum(np.concatenate(parts)) == whole
        assert all(len(part) < 6 for part in parts)
    assert exact_parts(np.zeros(0)) == []


def test_spans_cover_everybody_once():
    for users, size in ((7, 7), (10, 3), (100, 8)):
        every = [u for k in range(size) for u in Among(k, size).span(users)]
        assert every == list(range(users))
    with pytest.raises(ConfigError, match="start fewer ranks"):
        Among(0, 3).span(2)


def test_a_missing_shard_of_a_run_is_named(alone, tmp_path):
    assert ranks(2, train, ["fpl"], str(tmp_path)) == [DONE] * 2
    run = RunFolder(tmp_path / "fpl")
    lines = [json.loads(line) for line in (run.path / "ranks.jsonl").read_text().splitlines()]
    assert all(len(line["seconds"]) == 2 for line in lines)
    next(run.path.glob("ledger-00001-*")).unlink()
    with pytest.raises(CorruptData, match="1 of the files ledger"):
        run.ledger()
