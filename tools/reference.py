"""The reference of the site, made at every build from what is there.

Commands come from the command line, settings from the frozen classes that read an experiment file,
Python names from `sottovoce.__all__` (mkdocstrings fills in their docstrings), experiment files
from `experiments/`, shapes of JSON from the table of docs/json.md. Nothing of it is committed.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import re
import textwrap
import typing
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

FOLDER = "docs/reference"
ALONE = ("serve", "device")
"""Groups of commands with a page of their own; the others share one."""


def pages(root: Path) -> dict[str, str]:
    """Every page of the reference by its path, as if it lay in docs/."""
    shapes = json_shapes(root)
    made = {
        "commands": commands_page(shapes),
        **{f"commands-{group}": group_page(group, shapes) for group in ALONE},
        "settings": settings_page(),
        "components": components_page(),
        "python": python_page(),
        "experiments": experiments_page(root),
    }
    return {f"{FOLDER}/{name}.md": text for name, text in made.items()}


def _page(title: str, description: str, *parts: str) -> str:
    head = f"---\ndescription: {description}\n---\n\n# {title}\n"
    return "\n".join([head, *(part.rstrip("\n") + "\n" for part in parts)])


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = [*head]
    lines = [names, ["---"] * len(names), *([*row] for row in rows)]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def plain(text: str) -> str:
    """Words that are no Markdown, outside of code, made safe for it."""
    parts = re.split(r"(`[^`]*`)", text)
    for place in range(0, len(parts), 2):
        parts[place] = re.sub(r"([*_\[\]])", r"\\\1", parts[place]).replace("<", "&lt;")
    return "".join(parts)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


# --- commands -------------------------------------------------------------------------------------


def _commands() -> Any:
    import typer.main

    from sottovoce.cli import app

    return typer.main.get_command(app)


def visible(group: Any) -> dict[str, Any]:
    return {name: each for name, each in group.commands.items() if not each.hidden}


def commands_page(shapes: dict[str, list[str]]) -> str:
    root = _commands()
    parts = [_help(root.help), _parameters(root, "sottovoce")]
    rows = []
    for name, command in visible(root).items():
        page = f"commands-{name}.md" if name in ALONE else ""
        inner = visible(command) if hasattr(command, "commands") else {"": command}
        for second, each in inner.items():
            called = f"sottovoce {name} {second}".strip()
            anchor = called.replace(" ", "-")
            said = plain(_first_sentence(each.help))
            rows.append([f"[`{called}`]({page}#{anchor})", said])
    parts += ["## All commands", _table(["command", "does"], rows)]
    for name, command in visible(root).items():
        if name not in ALONE:
            parts += _described(command, f"sottovoce {name}", shapes)
    parts += ["## Exit codes", _exit_codes()]
    return _page(
        "Commands", "Every command of sottovoce with its options, their defaults, and its JSON.",
        "This page is made from the help texts of the program. `sottovoce COMMAND --help` prints "
        "the same. [The command line](../cli.md) explains how the commands work together.",
        *parts,
    )  # fmt: skip


def group_page(group: str, shapes: dict[str, list[str]]) -> str:
    command = visible(_commands())[group]
    return _page(
        f"sottovoce {group}", f"Every command of sottovoce {group} with its options and its JSON.",
        plain(command.help or ""), *_described(command, f"sottovoce {group}", shapes),
    )  # fmt: skip


def _described(command: Any, called: str, shapes: dict[str, list[str]]) -> Iterator[str]:
    if hasattr(command, "commands"):
        for name, inner in visible(command).items():
            yield from _described(inner, f"{called} {name}", shapes)
        return
    yield f"## `{called}`"
    yield f"```text\n{called} {' '.join(_pieces(command, called))}\n```"
    yield _help(command.help)
    yield _parameters(command, called)
    for shape in shapes.get(called.removeprefix("sottovoce "), []):
        yield f"With `--json`: {shape}"


def _context(command: Any, called: str) -> Any:
    import click

    return click.Context(command, info_name=called)


def _pieces(command: Any, called: str) -> list[str]:
    pieces: list[str] = command.collect_usage_pieces(_context(command, called))
    return pieces


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def _help(text: str | None) -> str:
    """A help text as Markdown: paragraphs, and what stands after \\b as it is."""
    parts = []
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        if not paragraph.startswith("\b"):
            parts.append(plain(" ".join(paragraph.split())))
            continue
        lines = paragraph.lstrip("\b").strip("\n").splitlines()
        if lines[0].endswith(":") and len(lines) > 1:
            parts.append(plain(lines.pop(0)))
        shown = textwrap.dedent("\n".join(lines))
        kind = "console" if parts and parts[-1].startswith("Example") else "text"
        parts.append(f"```{kind}\n{shown}\n```")
    return "\n\n".join(parts)


def _parameters(command: Any, called: str) -> str:
    context = _context(command, called)
    rows = []
    for given in command.params:
        if getattr(given, "hidden", False):
            continue
        about = plain(" ".join((given.help or "").split()))
        if given.param_type_name == "argument":
            name = given.make_metavar(context).strip("[]").removesuffix("...")
            rows.append([code(name), "", about])
            continue
        spelt = "/".join([*given.opts, *given.secondary_opts])
        value = "" if given.is_flag or given.count else given.make_metavar(context)
        name = f"{code(spelt)}<br>{code(value)}" if value else code(spelt)
        rows.append([name, code(_default(given.default)), about])
    return _table(["name", "default", "what it is"], rows) if rows else ""


def _default(value: object) -> str:
    if value is None or value is False or value in ((), [], "") or callable(value):
        return ""
    if "UNSET" in repr(value):
        return ""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return str(getattr(value, "value", value))


def _exit_codes() -> str:
    from sottovoce import errors

    known: dict[int, list[str]] = {}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.SottovoceError):
            known.setdefault(kind.exit_code, []).append(f"`{kind.__name__}`")
    rows = [["`0`", "the command is done"]]
    rows += [[f"`{number}`", ", ".join(names)] for number, names in sorted(known.items())]
    return _table(["code", "error"], [*rows, ["`130`", "somebody interrupted it"]])


def json_shapes(root: Path) -> dict[str, list[str]]:
    """What docs/json.md and docs/cli.md say of the JSON of each command."""
    found: dict[str, list[str]] = {}
    for page in ("json.md", "cli.md"):
        path = root / "docs" / page
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if len(cells) != 2 or not cells[1].startswith(("`{", "also `", "as `", '`"')):
                continue
            names = re.findall(r"`([a-z][a-z -]*?)(?: --[^`]*)?`", cells[0])
            group = names[0].split()[0] if names and " " in names[0] else ""
            shape = re.sub(r"\]\((?!\w+:|#)", "](../", cells[1]).replace("](#", f"](../{page}#")
            for name in names:
                full = name if " " in name or not group else f"{group} {name}"
                found.setdefault(full, []).append(shape)
    return found


# --- settings -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of an experiment file."""

    name: str
    kind: str
    default: str
    about: str


def sections() -> dict[str, list[type]]:
    """The classes that read each section of an experiment file."""
    from sottovoce.algorithms.base import ALGORITHMS
    from sottovoce.baselines import BASELINES
    from sottovoce.core.consent import Choice
    from sottovoce.core.links import LINKS
    from sottovoce.data.town import TownConfig
    from sottovoce.experiment import DataConfig, EvaluationConfig, HomeConfig, OwnersConfig
    from sottovoce.parties.defence import Defence
    from sottovoce.parties.rounds import RoundRules
    from sottovoce.privacy.base import RELEASES

    found: dict[str, list[type]] = {
        "data": [DataConfig], "town": [TownConfig], "algorithm": [*ALGORITHMS.values()],
        "release": [*RELEASES.values()], "link": [*LINKS.values()], "consent": [Choice],
        "evaluation": [EvaluationConfig], "baselines": [*BASELINES.values()],
        "home": [HomeConfig], "defence": [Defence], "service": [RoundRules],
        "owners": [OwnersConfig],
    }  # fmt: skip
    return {
        section: [kind for kind in kinds if kind.__module__.startswith("sottovoce.")]
        for section, kinds in found.items()
    }


def settings(kind: type) -> list[Setting]:
    """The settings that a class reads, in its order."""
    from sottovoce.config import _words

    if not dataclasses.is_dataclass(kind):
        return []
    hints, about = typing.get_type_hints(kind), field_words(kind)
    return [
        Setting(
            each.name,
            _words(hints[each.name]),
            _shown_default(each),
            about[each.name] or getattr(each.metadata.get("kind"), "help", ""),
        )
        for each in dataclasses.fields(kind)
        if each.init
    ]


def _shown_default(field: dataclasses.Field[Any]) -> str:
    if field.default is not MISSING:
        return as_toml(field.default)
    if field.default_factory is not MISSING:
        return as_toml(field.default_factory())
    return "must be given"


def as_toml(value: object) -> str:
    """A value as an experiment file has it."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, (list, tuple, set, frozenset)):
        return f"[{', '.join(as_toml(each) for each in value)}]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init]
        inside = ", ".join(f"{name} = {as_toml(each)}" for name, each in pairs)
        return f"{{ {inside} }}" if inside else "{}"
    return str(value)


def field_words(kind: type) -> dict[str, str]:
    """The docstring below each field of a class or of its bases; empty if there is none."""
    found = dict.fromkeys((field.name for field in dataclasses.fields(kind)), "")
    for base in reversed(kind.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):  # built in
            continue
        body = typing.cast(ast.ClassDef, tree.body[0]).body
        for line, after in pairwise(body):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                said = after.value if isinstance(after, ast.Expr) else None
                if isinstance(said, ast.Constant) and isinstance(said.value, str):
                    found[line.target.id] = " ".join(said.value.split())
    return found


def settings_page() -> str:
    top = [
        ["`name`", "text", "the file's name", "What the run and its folder are called."],
        ["`seed`", "a whole number", "`0`", "The same seed gives the same figures."],
        ["`seeds`", "a list", "`[]`", "Several seeds, each of which is a run."],
        ["`draws`", "'fast' or 'secret'", '`"fast"`', "The generator behind what others see: "
         "the fast one, or the one that real devices use."],
    ]  # fmt: skip
    parts = ["## At the top", _table(["setting", "type", "default", "what it does"], top)]
    for section, kinds in sections().items():
        parts.append(f"## `[{section}]`")
        if section in NAMED:
            parts.append(NAMED[section])
        for kind in kinds:
            named = getattr(kind, "name", "") if section in NAMED else ""
            if named:
                parts.append(f"### {section[:-1] if section == 'baselines' else section} `{named}`")
            parts.append(plain(_about(kind)))
            parts.append(_settings_table(kind) or "It has no settings.")
    return _page(
        "Settings", "Every setting of an experiment file, its type, its default and what it does.",
        "This page is made from the classes that read an experiment file. A key that is not here "
        "is refused. Any setting can be changed for one run: `--set SECTION.KEY=VALUE`. "
        "[Experiment files](../experiment-files.md) has whole files as examples.",
        *parts,
    )  # fmt: skip


NAMED = {
    "algorithm": "`algorithm.name` says which algorithm learns; its other settings follow from it.",
    "release": "`release.name` says what is done to an update before it leaves. An algorithm has "
    "a release that it takes if nothing is said.",
    "link": "`link.name` says how updates reach the server.",
    "baselines": "Each baseline has a table of its own, such as `[baselines.item-knn]`.",
}
"""Sections whose classes are components, which an experiment names."""


def _about(kind: type) -> str:
    said = kind.__dict__.get("__doc__") or ""
    if said.startswith(f"{kind.__name__}("):  # dataclasses have made it up
        return ""
    return inspect.cleandoc(said).split("\n\n")[0] if said else ""


def _settings_table(kind: type) -> str:
    rows = [
        [code(each.name), each.kind, code(each.default), plain(each.about)]
        for each in settings(kind)
    ]
    return _table(["setting", "type", "default", "what it does"], rows) if rows else ""


def components_page() -> str:
    from sottovoce.registry import registries

    parts = []
    for kind, registry in registries().items():
        own = [name for name in registry if registry.place(name).startswith("sottovoce")]
        rows = [[code(n), plain(_said_of(registry, n)), code(registry.place(n))] for n in own]
        parts += [f"## {kind.capitalize()}s", _table(["name", "what it is", "where"], rows)]
    return _page(
        "Components", "Algorithms, releases, links, baselines, metrics, attacks and importers.",
        "This page is made from the registries of the package. An experiment or a command names a "
        "component by the name in the first column. `sottovoce components` prints the same, and "
        "with it what you have brought yourself.",
        *parts,
    )  # fmt: skip


def _said_of(registry: Any, name: str) -> str:
    """What a component is; of an attack, who tries it and on which promise."""
    component = registry[name]
    promise = getattr(component, "promise", "")
    if promise:
        return f"{component.code}, by: {component.party}. It tries the promise “{promise}”"
    return str(registry.about(name))


# --- Python ---------------------------------------------------------------------------------------


def public_names() -> dict[str, object]:
    """What `sottovoce.__all__` names."""
    import sottovoce

    return {
        name: getattr(sottovoce, name) for name in sottovoce.__all__ if not name.startswith("_")
    }


def python_page() -> str:
    rooms: dict[str, list[str]] = {}
    for name, thing in public_names().items():
        home = str(getattr(thing, "__module__", None) or getattr(thing, "__name__", "sottovoce"))
        place = thing.__name__ if inspect.ismodule(thing) else f"{home}.{_qualified(thing, name)}"
        room = ".".join(home.split(".")[:2])
        rooms.setdefault(room, []).append(f'<a id="{name.lower()}"></a>\n\n::: {place}\n')
    parts = []
    for room, entries in sorted(rooms.items(), key=lambda each: (_turn(each[0]), each[0])):
        parts += [f"## `{room}`", *entries]
    return _page(
        "Python", "Every public name of the package sottovoce, with its signature and docstring.",
        "Every name on this page is imported from the package itself, such as "
        "`from sottovoce import Experiment`, and is part of the public interface. What is not on "
        "this page may change with any release.",
        *parts,
    )  # fmt: skip


def _turn(room: str) -> int:
    last = room.rpartition(".")[2]
    return FIRST_ROOMS.index(last) if last in FIRST_ROOMS else len(FIRST_ROOMS)


FIRST_ROOMS = ("interface", "experiment", "runs", "data", "evaluation")
"""What most people look for comes first on the page of Python names."""


def _qualified(thing: object, name: str) -> str:
    return str(getattr(thing, "__qualname__", name))


# --- experiment files -----------------------------------------------------------------------------

FAMILIES = {
    "": "First runs",
    "presets": "Presets on the town",
    "sound": "Sound: their promises survived the attacks",
    "sums": "Secure sums without noise",
    "fpl": "FPL as published",
    "fcf": "FCF as published",
    "fmf": "FMF-LDP as published",
    "drift": "DRIFT as published",
    "uc": "UC-FedRec as published",
}


def experiments_page(root: Path) -> str:
    from sottovoce.experiment import Experiment, shipped_experiments

    grouped: dict[str, list[str]] = {}
    for name, path in shipped_experiments().items():
        text = path.read_text(encoding="utf-8")
        said, settings_of = _head(text)
        system = Experiment.from_file(path).system
        shown = textwrap.indent(f"```toml\n{settings_of.strip()}\n```", "    ")
        family = name.rpartition("/")[0]
        grouped.setdefault(family, []).append(
            f"### `{name}`\n\nSystem: {plain(system)}.\n\n{said}\n\n"
            f'??? note "{path.name}"\n\n{shown}\n'
        )
    parts = []
    for family in sorted(grouped, key=[*FAMILIES, *sorted(grouped)].index):
        parts += [f"## {FAMILIES.get(family, family)}", *grouped[family]]
    return _page(
        "Experiment files", "The experiment files that come with the package, and what each is.",
        "`sottovoce run NAME` runs any of these, such as `sottovoce run sound/gram`. "
        "[Settings](settings.md) explains every key.",
        *parts,
    )  # fmt: skip


def _head(text: str) -> tuple[str, str]:
    """What the comment at the head of a file says, as Markdown, and the rest of the file."""
    lines = text.splitlines()
    head = []
    while lines and lines[0].startswith("#"):
        head.append(lines.pop(0)[1:].removeprefix(" ").rstrip())
    parts = []
    for paragraph in "\n".join(head).split("\n\n"):
        typed = textwrap.dedent(paragraph).strip("\n")
        if paragraph.startswith("  ") and typed:
            parts.append(f"```text\n{typed}\n```")
        else:
            parts.append(plain(" ".join(paragraph.split())))
    return "\n\n".join(parts), "\n".join(lines)
