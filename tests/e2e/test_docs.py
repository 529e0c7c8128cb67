"""The documents say what is there: the example runs, and every test they cite exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_example_of_the_readme_runs(tmp_path):
    found = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(found) == 1
    done = subprocess.run(
        [sys.executable, "-c", found[0]], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "'pFPL+': 0." in done.stdout
    assert "rank=3" in done.stdout


def test_every_test_that_backs_a_privacy_statement_exists():
    cited = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "privacy.md").read_text())
    assert len(cited) >= 10
    for file, name in cited:
        assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def test_every_promise_that_holds_cites_a_test():
    text = (ROOT / "docs" / "privacy.md").read_text()
    section = text.split("## What holds", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 8
    assert all("::test_" in row for row in rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_command_is_documented():
    text = (ROOT / "docs" / "cli.md").read_text()
    shown = subprocess.run(
        [Path(sys.executable).with_name("sottovoce"), "--help"], capture_output=True, text=True
    ).stdout
    commands = re.findall(r"^  (\w+) ", shown.split("Commands:")[1], re.MULTILINE)
    assert len(commands) == 8
    assert all(f"`sottovoce {command}" in text for command in commands)


def test_the_experiment_file_of_the_documents_is_accepted():
    import tomllib

    from sottovoce.experiment import Experiment

    found = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "cli.md").read_text(), re.DOTALL)
    assert len(found) == 1
    assert Experiment.from_table(tomllib.loads(found[0])).name == "mine"
