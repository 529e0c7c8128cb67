"""The reference has everything that is there, and commands print the JSON that it shows."""

import contextlib
import importlib
import io
import json
import re

import pytest

import docs
import reference
import sottovoce
import sottovoce.cli


@pytest.fixture(scope="module")
def made(documents):
    return {path.rsplit("/", 1)[1]: page for path, page in documents.made.items()}


def section(page, heading):
    """What stands below a heading of the second level."""
    found = page.text.split(f"\n## {heading}\n", 1)
    assert len(found) == 2, heading
    return found[1].split("\n## ", 1)[0]


def every_command(group, path=("sottovoce",)):
    for name, command in reference.visible(group).items():
        if hasattr(command, "commands"):
            yield from every_command(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def test_every_command_and_option_is_there(made):
    found = [*every_command(docs.command_line())]
    assert len(found) > 60
    for called, command in found:
        group = called.split()[1]
        page = made[f"commands-{group}.md" if group in reference.ALONE else "commands.md"]
        text = section(page, f"`{called}`")
        for option in (o for p in command.params for o in p.opts if o.startswith("--")):
            assert re.search(rf"^\| `[^`]*{option}[/`]", text, re.MULTILINE), (called, option)
        assert f"#{called.replace(' ', '-')})" in made["commands.md"].text


def test_every_setting_is_there_with_its_type_and_default(made):
    text = made["settings.md"].text
    for name, kinds in reference.sections().items():
        part = section(made["settings.md"], f"`[{name}]`")
        for kind in kinds:
            for setting in reference.settings(kind):
                assert f"| `{setting.name}` | {setting.kind} | " in part, (name, setting.name)
    assert "| `test_fraction` | a number | `0.2` | Share held out by" in text
    assert '| `source` | text | `"town"` | A prepared data set' in text


def test_every_section_of_an_experiment_is_there():
    from sottovoce.errors import ConfigError
    from sottovoce.experiment import Experiment

    with pytest.raises(ConfigError) as refused:
        Experiment.from_table({"nonsense": 1})
    known = set(re.findall(r"'(\w+)'", str(refused.value).split("known are")[1]))
    beside = {"name", "seed", "seeds", "draws", "search"}
    assert known - beside == set(reference.sections())


def test_every_public_name_leads_to_what_it_is(made):
    named = dict(re.findall(r'<a id="(\w+)"></a>\n\n::: (\S+)', made["python.md"].text))
    public = [name for name in sottovoce.__all__ if not name.startswith("_")]
    assert set(named) == {name.lower() for name in public}
    for name in public:
        home, _, last = named[name.lower()].rpartition(".")
        assert getattr(importlib.import_module(home), last) is getattr(sottovoce, name)


def test_every_component_and_experiment_file_is_there(made):
    from sottovoce.experiment import shipped_experiments
    from sottovoce.registry import registries

    for kind, registry in registries().items():
        text = section(made["components.md"], f"{kind.capitalize()}s")
        own = [name for name in registry if registry.place(name).startswith("sottovoce")]
        assert re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE) == own
    titles = [title for _, _, title in made["experiments.md"].headings]
    assert {f"`{name}`" for name in shipped_experiments()} <= set(titles)


# --- shapes of JSON -------------------------------------------------------------------------------


def names_of(shape):
    """The names of the outermost object of a shape, such as {"a", "b": [{"c"}]}."""
    depth, found = 0, set()
    for at in re.finditer(r'[{}\[\]]|"([^"]+)"', shape):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(at[0], 0)
        if at[1] and depth == 1:
            found.add(at[1])
        if depth == 0:
            break
    return found


ASKED = {
    "run": "run papers/fpl --set town.residents=60 --set town.venues=40 "
    "--set algorithm.epochs=1 --out {}/run",
    "recommend": "recommend {}/run --user r0003",
    "ledger": "ledger {}/run",
    "report": "report {}/run --out {}/report.html",
    "data show": "data show",
    "data import": "data show town",  # which says the same of one that is there
    "budget": "budget sound/fmf",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What some quick commands print with --json, by command."""
    folder, found = tmp_path_factory.mktemp("answers"), {}
    for command, line in ASKED.items():
        heard = io.StringIO()
        with contextlib.redirect_stdout(heard):
            code = sottovoce.cli.call([*line.replace("{}", str(folder)).split(), "--json"])
        assert code == 0, (line, heard.getvalue())
        found[command] = json.loads(heard.getvalue())
    return found


@pytest.mark.parametrize("command", ASKED)
def test_a_command_prints_the_shape_that_the_page_says(command, answers):
    [shape, *_] = [one for one in reference.json_shapes(docs.ROOT)[command] if one[:2] == "`{"]
    printed, told = set(answers[command]), names_of(shape)
    assert told <= printed
    if "…" not in shape:
        assert printed - told <= set(re.findall(r'[`"](\w+)[`"]', shape))
