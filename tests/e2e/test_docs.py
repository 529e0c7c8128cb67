"""The documents say what is there: the example runs, and every test they cite exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from sottovoce.cli import app

ROOT = Path(__file__).parents[2]
PRIVACY = [ROOT / "docs" / "privacy.md", *sorted((ROOT / "docs" / "privacy").glob("*.md"))]
SECURITY = ROOT / "SECURITY.md"


@pytest.mark.slow
def test_the_example_of_the_readme_runs(tmp_path):
    found = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(found) == 1
    done = subprocess.run(
        [sys.executable, "-c", found[0]], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^ +gram +0\.\d+ ± ", done.stdout, re.MULTILINE)
    told = done.stdout.split("Recommended to ")[1:]
    assert [re.findall(r"^ +(\d) +v\d+ ", each, re.MULTILINE) for each in told] == [list("123")] * 2
    assert "promises that were attacked held" in done.stdout
    assert re.search(r"^ +pFPL\+ +as printed, .*\n +no bound ", done.stdout, re.MULTILINE)


def test_the_readme_is_short_and_keeps_its_warnings():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 130
    for warning in ("π does not hide positives", "5,000", "Attacks on the published model"):
        assert warning in text


def test_every_test_that_backs_a_privacy_statement_exists():
    text = "".join(page.read_text() for page in (*PRIVACY, SECURITY))
    cited = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(PRIVACY) > 1
    assert len(cited) >= 200
    for file, name in cited:
        assert f"def {name or 'test_'}" in (ROOT / file).read_text(), f"{file}::{name}"


def test_every_promise_that_holds_cites_a_test():
    text = (ROOT / "docs" / "privacy.md").read_text()
    section = text.split("## What holds", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row != "| promise | test |"]
    assert len(rows) >= 100
    assert all("::test_" in row for row in rows)


def test_what_is_protected_cites_tests():
    section = SECURITY.read_text().split("## What is protected", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 6
    assert all("`tests/" in row for row in rows)


def test_every_command_is_documented():
    text = (ROOT / "docs" / "cli.md").read_text()
    root = typer.main.get_command(app)
    commands = [
        [name, *inner]
        for name, command in root.commands.items()
        for inner in ([[n] for n in getattr(command, "commands", {})] or [[]])
    ]
    assert len(commands) > 25
    lines = [line for line in text.splitlines() if line.startswith("| `sottovoce ")]
    for group, *rest in commands:
        described = [line for line in lines if line.startswith(f"| `sottovoce {group}")]
        assert described, group
        for name in rest:
            assert any(re.search(rf"[ `]{name}\b", line) for line in described), name


def test_every_option_of_consent_is_documented():
    text = (ROOT / "docs" / "cli.md").read_text()
    table = text.split("| `device consent` | does |", 1)[1].split("\n\n", 1)[0]
    command = typer.main.get_command(app).commands["device"].commands["consent"]
    for option in [o for p in command.params for o in p.opts]:
        if option.startswith("--") and option not in ("--json", "--user", "--help"):
            assert re.search(rf"[` ]{option}[` ]", table), option


def test_every_setting_of_uc_is_in_its_example_with_its_default():
    import tomllib
    from dataclasses import fields

    from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig

    text = (ROOT / "docs" / "experiment-files.md").read_text()
    found = map(tomllib.loads, re.findall(r"```toml\n(.*?)```", text, re.DOTALL))
    algorithms = [one["algorithm"] for one in found if "algorithm" in one]
    [table] = [one for one in algorithms if one.get("name") == "uc"]
    assert table.pop("name") == "uc"
    attributes = table.pop("attributes")
    defaults = {field.name: field.default for field in fields(UCConfig)}
    assert attributes
    assert not defaults.pop("attributes")
    assert table == defaults
    assert all(re.search(rf"`{field.name}`|{field.name} =", text) for field in fields(FilterConfig))


def test_the_federation_with_filters_of_the_deployment_can_be_made():
    import tomllib

    from sottovoce.experiment import Experiment
    from sottovoce.wire.terms import Terms

    page = (ROOT / "docs" / "deploy" / "attributes.md").read_text()
    [text] = re.findall(r"`filters.toml`[^\n]*:\n\n```toml\n(.*?)```", page, re.DOTALL)
    settings = Experiment.from_table(tomllib.loads(text)).cross_device()
    terms = Terms.of("places", 240, settings.algorithm, 1, settings.release)
    assert [each.name for each in terms.algorithm.attributes] == ["gender", "age"]
    assert all(each.classes for each in terms.algorithm.attributes)
