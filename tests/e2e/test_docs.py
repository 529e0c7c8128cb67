"""The documents say what is there: the example runs, and every test they cite exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from sottovoce.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_example_of_the_readme_runs(tmp_path):
    found = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(found) == 1
    done = subprocess.run(
        [sys.executable, "-c", found[0]], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "'gram': 0." in done.stdout
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


def test_the_experiment_file_of_the_documents_is_accepted():
    import tomllib

    from sottovoce.experiment import Experiment

    found = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "cli.md").read_text(), re.DOTALL)
    read = [Experiment.from_table(tomllib.loads(text)) for text in found]
    assert read[0].name == "mine"
    assert [one.system.split()[0] for one in read[1:]] == [
        "FCF",
        "FMF-LDP",
        "UC-MF",
        "gram",
        "DRIFT",
    ]


def test_every_option_of_consent_and_of_the_services_is_documented():
    text = (ROOT / "docs" / "cli.md").read_text()
    root = typer.main.get_command(app)
    tables = [("device", "consent")]
    tables += [("serve", name) for name in ("shuffler", "helper", "owner", "orchestrator", "setup")]
    for group, name in tables:
        table = text.split(f"| `{group} {name}` | does |", 1)[1].split("\n\n", 1)[0]
        options = [o for p in root.commands[group].commands[name].params for o in p.opts]
        for option in options:
            if option.startswith("--") and option not in ("--json", "--user", "--help"):
                assert re.search(rf"[` ]{option}[` ]", table), option


def test_every_setting_of_a_release_is_documented():
    from dataclasses import fields

    from sottovoce.core.consent import Choice
    from sottovoce.privacy.reports import KReports, Tier
    from sottovoce.privacy.updates import Clipped

    text = (ROOT / "docs" / "cli.md").read_text()
    for field in (*fields(KReports), *fields(Tier), *fields(Clipped), *fields(Choice)):
        assert re.search(rf"\b{field.name}\b", text), field.name


def test_every_setting_of_uc_is_in_its_example_with_its_default():
    import tomllib
    from dataclasses import fields

    from sottovoce.algorithms.uc.settings import FilterConfig, UCConfig

    text = (ROOT / "docs" / "cli.md").read_text()
    found = map(tomllib.loads, re.findall(r"```toml\n(.*?)```", text, re.DOTALL))
    [table] = [one["algorithm"] for one in found if one["algorithm"].get("name") == "uc"]
    assert table.pop("name") == "uc"
    attributes = table.pop("attributes")
    defaults = {field.name: field.default for field in fields(UCConfig)}
    assert attributes
    assert not defaults.pop("attributes")
    assert table == defaults
    assert all(re.search(rf"`{field.name}`|{field.name} =", text) for field in fields(FilterConfig))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "experiments" / "uc").glob("*.toml")), ids=lambda path: path.stem
)
def test_the_examples_of_uc_are_accepted(path):
    from sottovoce.experiment import Experiment

    experiment = Experiment.from_file(path)
    assert experiment.system.startswith("UC-")
    hidden = {name for choice in experiment.consent.choices for name in choice.hidden_attributes}
    assert hidden
    assert hidden <= set(experiment.algorithm.names)


def test_the_federation_with_filters_of_the_deployment_can_be_made():
    import tomllib

    from sottovoce.experiment import Experiment
    from sottovoce.wire.terms import Terms

    page = (ROOT / "docs" / "deploy.md").read_text()
    [text] = re.findall(r"`filters.toml`:\n\n```\n(.*?)```", page, re.DOTALL)
    settings = Experiment.from_table(tomllib.loads(text)).cross_device()
    terms = Terms.of("places", 240, settings.algorithm, 1, settings.release)
    assert [each.name for each in terms.algorithm.attributes] == ["gender", "age"]
    assert all(each.classes for each in terms.algorithm.attributes)
