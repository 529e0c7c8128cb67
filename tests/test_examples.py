"""What the examples bring is in the results, and keeps the contract of its kind."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = """
name = "tiny"
seed = 3
[town]
residents = 60
venues = 80
visits_per_resident = 20
[algorithm]
configuration = "pFPL+"
embedding_size = 3
epochs = 2
[evaluation]
every_epochs = 1
"""


def command(example, *words, code=0, **variables):
    """What a command prints that was given an example."""
    done = subprocess.run(
        [sys.executable, "-m", "sottovoce", "--with", EXAMPLES / example, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture
def experiment(tmp_path):
    def write(more=""):
        file = tmp_path / "tiny.toml"
        file.write_text(TINY + textwrap.dedent(more))
        return file

    return write


def test_a_baseline(experiment, tmp_path):
    file = experiment("[baselines.kindred]\npower = 2\n[baselines.top-pop]\n")
    run = tmp_path / "run"
    found = json.loads(command("my_baseline.py", "run", file, "--out", run, "--json"))
    results = found["results"]
    assert results["kindred"]["P@10"] > 0
    assert results["kindred"] != results["top-pop"]
    assert "Kindred" in command("my_baseline.py", "report", run)
    command("my_baseline.py", "run", experiment("[baselines.kindred]\npower = 9\n"), code=2)


def test_a_metric(experiment, tmp_path):
    run, file = tmp_path / "run", experiment("[baselines.top-pop]\n")
    found = json.loads(command("my_metric.py", "run", file, "--out", run, "--json"))["results"]
    for summary in found.values():
        assert 0 < summary["Top@10"] < 1 < summary["Novelty@10"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line for line in lines if "P@10" in line]
    assert all("Top@10" in line for line in lines if "P@10" in line)
    one = command("my_metric.py", "report", run)
    assert "Top@10" in one
    page = next(tmp_path.rglob("run/report.html")).read_text()
    assert "Novelty@10" in page


def test_a_metric_under_sampled_candidates(experiment, tmp_path):
    words = ("run", experiment("candidates = 20\n"), "--out", tmp_path / "run", "--json")
    (summary,) = json.loads(command("my_metric.py", *words))["results"].values()
    assert set(summary) == {"HR@10", "NDCG@10", "MAP@10", "Top@10"}


def test_an_importer(tmp_path):
    event = '{"user": "ada", "item": "b1", "time": 5}\n'
    (tmp_path / "likes.jsonl").write_text(event + event.replace("ada", "bob"))
    place = {"SOTTOVOCE_DATA": str(tmp_path / "data")}
    found = command("my_importer.py", "data", "import", "likes", tmp_path, "--json", **place)
    assert json.loads(found)["users"] == 2
    (tmp_path / "likes.jsonl").write_text("{}\n")
    words = ("data", "import", "other", tmp_path, "--json")
    said = json.loads(command("my_importer.py", *words, code=3, **place))["error"]
    assert said.endswith("likes.jsonl, line 1: an event must have user, item and time")


CONTRACTS = """
import sys
from pathlib import Path
from sottovoce import registry
from sottovoce.baselines import BASELINES
from sottovoce.data.importers import IMPORTERS
from sottovoce.evaluation import METRICS
from sottovoce.testing import BaselineContract, ImporterContract, MetricContract

for file in sys.argv[1:]:
    registry.use_file(file)

class TestKindred(BaselineContract):
    def baseline(self):
        return BASELINES["kindred"]()

class TestTopHalf(MetricContract):
    def metric(self):
        return METRICS["top-half"]()

class TestNovelty(MetricContract):
    def metric(self):
        return METRICS["novelty"]()

class TestLikes(ImporterContract):
    def importer(self):
        return IMPORTERS["likes"]()

    def write(self, folder):
        folder.mkdir()
        (folder / "likes.jsonl").write_text('{"user": "ada", "item": "b1", "time": 5}')
"""


def test_they_keep_their_contracts(tmp_path):
    files = sorted(map(str, EXAMPLES.glob("my_*.py")))
    (tmp_path / "test_mine.py").write_text(CONTRACTS.replace("sys.argv[1:]", repr(files)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "29 passed" in done.stdout


def test_they_are_short_and_need_nothing_private():
    for file in EXAMPLES.glob("my_*.py"):
        text = file.read_text()
        assert len(text.splitlines()) <= 50, file
        assert "._" not in text
        assert "sottovoce._" not in text
