"""A stranger's algorithm, one file of at most 50 lines outside the package, does all that ours do:
experiments, the command line, HTTPS, Flower, reports, ledger, attacks and contracts."""

import json
import subprocess
import sys
from pathlib import Path

import forked
import numpy as np
import pytest

from sottovoce.experiment import Experiment
from sottovoce.runs.folder import RunFolder

FILE = Path(__file__).parents[2] / "examples" / "my_algorithm.py"
EXPERIMENT = """
seed = 3
draws = "secret"
[town]
residents = 8
venues = 60
districts = 2
[service]
deadline_seconds = 280.0
[algorithm]
name = "squares"
rounds = 4
[consent]
mix = [{ weight = 1, takes_part = false }, { weight = 3, share_positives = 0.5 }]
[baselines.top-pop]
"""


def sottovoce(*arguments, code=0, components=True):
    options = ["--with", str(FILE)] if components else []
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SOTTOVOCE_COMPONENTS", raising=False)
        done = forked.run(*options, *arguments, timeout=800)
    assert done.returncode == code, done.stderr + done.stdout
    return done


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "mine.toml").write_text(EXPERIMENT)
    return folder


@pytest.fixture(scope="module")
def simulated(place):
    told = sottovoce("run", place / "mine.toml", "--out", place / "simulation", "--json")
    return RunFolder.open(place / "simulation"), json.loads(told.stdout)


def test_it_is_short():
    assert len(FILE.read_text().splitlines()) <= 50


def test_it_runs_from_an_experiment_file(simulated):
    folder, told = simulated
    assert told["results"]
    assert folder.manifest()["experiment"]["algorithm"]["name"] == "squares"
    assert np.isfinite(folder.model()).all()


def test_what_leaves_is_what_its_owners_permit(simulated):
    """The door's business, not the algorithm's: it has no line about consent."""
    folder, _ = simulated
    table = folder.ledger()
    ledger = {name: np.array(table[name].to_pylist()) for name in table.column_names}
    assert table.num_rows == 4 * folder.manifest()["schedule"]["devices"]
    assert np.isinf(ledger["epsilon"]).all()
    sent = ledger["positive_rows"] + ledger["negative_rows"]
    assert np.array_equal(ledger["bytes"], 36 * sent)
    counts = folder_histories(folder)
    assert (ledger["positive_rows"] <= 0.5 * counts[ledger["user"]] + 1e-3).all()
    assert ledger["positive_rows"].any()


def folder_histories(folder):
    """How many items each user has in the training part; it has the town's default split."""
    table = {**folder.manifest()["experiment"], "algorithm": {"name": "fpl"}}
    experiment = Experiment.from_table(table)
    return experiment.split(experiment.dataset()).train.counts


def test_reports_recommendations_and_the_ledger_show_it(place, simulated):
    folder, _ = simulated
    assert "squares" in (folder.path / "report.html").read_text()
    for command in (["ledger", folder.path], ["recommend", folder.path, "--user", "r0000"]):
        assert json.loads(sottovoce(*command, "--json").stdout)
    names = json.loads(sottovoce("components", "algorithm", "--json").stdout)
    assert "squares" in json.dumps(names)


def test_it_is_attacked(simulated):
    folder, _ = simulated
    told = json.loads(sottovoce("attack", folder.path, "--json").stdout)
    assert {"attack", "party", "value", "interval", "base_rate", "verdict"} <= set(
        told["attacks"][0]
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["https", "flower"])
def test_real_processes_give_the_same_model_and_ledger(place, simulated, engine):
    expected, _ = simulated
    out = place / engine
    sottovoce("run", place / "mine.toml", "--engine", engine, "--out", out, "--processes", 2)
    got = RunFolder.open(out)
    assert np.array_equal(got.model(), expected.model())
    assert np.array_equal(got.vectors(), expected.vectors())
    assert got.ledger().to_pydict() == expected.ledger().to_pydict()


def test_over_a_secure_sum_with_noise(place):
    settings = [
        "town.residents=60", "link.name=secure-sum", "link.min_devices=20", "link.clip=0.5",
        "link.noise=1.0", "consent={share_positives = 1.0, total_epsilon = 500.0}",
    ]  # fmt: skip
    out = place / "summed"
    options = [part for setting in settings for part in ("--set", setting)]
    sottovoce("run", place / "mine.toml", "--out", out, *options)
    assert RunFolder.open(out).ledger().num_rows > 100


def test_without_its_file_a_run_of_it_is_refused_with_one_sentence(simulated, place):
    folder, _ = simulated
    done = sottovoce("recommend", folder.path, "--user", "r0000", code=2, components=False)
    assert "squares" in done.stderr
    assert "--with FILE.py" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert RunFolder.open(folder.path).model().size, "and nothing is lost"


def test_it_keeps_the_contract_of_algorithms(tmp_path):
    (tmp_path / "test_squares.py").write_text(
        f"""
from sottovoce.registry import use_file
use_file({str(FILE)!r})
from sottovoce.algorithms.base import ALGORITHMS
from sottovoce.testing import AlgorithmContract

class TestSquares(AlgorithmContract):
    learns_in = 200
    def settings(self):
        return ALGORITHMS["squares"](learning_rate=0.03, others=20)
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True, text=True, cwd=tmp_path, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
