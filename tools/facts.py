"""`make facts`: measures the house, and fails on cycles, imports against their direction, and names
and magics that mean two things.

Everything else is a report beside the budgets of `facts.toml`: lines and modules by room, commands,
their parameters, settings, and what a report costs. A size never fails a build. No module is named
here but where commands and settings are declared, so that the tree may be rearranged: all that is
known of it is its rooms, in the order in which they may import each other, and where the services
and Flower live.

A command is a leaf of the tree of commands, hidden ones too. A parameter is an argument or option
of one command: `--help` and the options in front of all commands are not counted, an option that
ten commands have counts ten times. A setting is a field of a frozen dataclass that an experiment
file or the rules and limits of a party are read into: each class counts what it has, a class that
others extend counts its fields once.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import math
import re
import statistics
import sys
import tomllib
import typing
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click

ROOT = Path(__file__).resolve().parents[1]
LIMITS = Path(__file__).with_name("facts.toml")

PACKAGE = "sottovoce"
SERVICES = ("sottovoce.services", "sottovoce.engines.https")
FLOWER = ("sottovoce.engines.flower", "sottovoce.services.flower", "sottovoce.flower")
LAYERS: Sequence[Sequence[str]] = (
    ("errors", "compiled"),
    ("rng", "config", "registry"),
    ("core",),
    ("data",),
    ("evaluation",),
    ("privacy", "algorithms"),
    ("wire", "attacks"),
    ("baselines", "parties"),
    ("stores",),
    ("engines",),
    ("services",),
    ("experiment",),
    ("runs",),
    ("testing",),
    ("web",),
    ("cli",),
    ("interface",),
)
"""The rooms. Each layer may import from itself and from the layers before it."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_MAGIC = re.compile(rb"SV[A-Z][0-9]")


@dataclass(frozen=True, slots=True)
class Figure:
    key: str
    """Its name in `facts.toml`."""
    label: str
    now: float
    details: Sequence[str] = ()
    """What `--explain` prints."""


@dataclass(frozen=True, slots=True)
class Limit:
    before: float | None = None
    aim: float | None = None
    ceiling: float | None = None


_NONE = Limit()


@dataclass(frozen=True, slots=True)
class Edge:
    source: str
    target: str
    line: int
    lazy: bool
    """Whether it is only run when a function is called."""

    def __str__(self) -> str:
        return f"{self.source}:{self.line} → {self.target}{' (lazy)' if self.lazy else ''}"


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    """Of a package's `__init__`, the package's."""
    is_package: bool
    lines: int
    tree: ast.Module = field(repr=False)

    @classmethod
    def read(cls, path: Path, src: Path) -> Module:
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(src).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        return cls(name, is_package, len(text.splitlines()), ast.parse(text, str(path)))

    def resolved(self, node: ast.ImportFrom) -> str:
        """The full name of what follows `from`."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".") if self.is_package else self.name.split(".")[:-1]
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, *([node.module] if node.module else [])])


def modules_of(src: Path) -> dict[str, Module]:
    found = (Module.read(path, src) for path in sorted(src.rglob("*.py")))
    return {module.name: module for module in found}


# --- imports --------------------------------------------------------------------------------------


def edges_of(modules: Mapping[str, Module]) -> list[Edge]:
    """Every import of one module by another, once; also those in functions, but not those for type
    checkers. Importing a submodule counts for the submodule alone. A name that is put together at
    run time is not seen."""
    first: dict[tuple[str, str], Edge] = {}
    for module in modules.values():
        for node, lazy in _imports(module.tree):
            for name in _imported(node, module, modules):
                edge = Edge(module.name, name, getattr(node, "lineno", 0), lazy)
                known = first.setdefault((module.name, name), edge)
                if (edge.lazy, edge.line) < (known.lazy, known.line):
                    first[module.name, name] = edge
    found = (edge for edge in first.values() if edge.source != edge.target)
    return sorted(found, key=lambda edge: (edge.source, edge.line, edge.target))


def _imports(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """What may import something, but not for type checkers alone, and whether in a function."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, lazy = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            yield node, lazy
        lazy = lazy or isinstance(node, _FUNCTIONS)
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
            waiting += [(child, lazy) for child in node.orelse]
        else:
            waiting += [(child, lazy) for child in ast.iter_child_nodes(node)]


def _imported(node: ast.AST, module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    """The modules of this tree that a statement imports."""
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = module.resolved(node)
        whole = [f"{base}.{alias.name}" for alias in node.names]
        names = [name if name in modules else base for name in whole]
    elif isinstance(node, ast.Call) and _last_name(node.func) == "import_module" and node.args:
        names = [_text(node.args[0], module)]
    yield from (name for name in names if name in modules)


def _last_name(node: ast.expr) -> str:
    """`c` of `a.b.c`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr, module: Module) -> str:
    """A string that is written here, or to which a module's constant is set."""
    value = dict(_assigned(module.tree)).get(node.id) if isinstance(node, ast.Name) else node
    return str(value.value) if isinstance(value, ast.Constant) else ""


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """Names to which something is assigned at module level, alone or in a tuple."""
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            whole = isinstance(target, ast.Name)
            for part in ast.walk(target):
                if isinstance(part, ast.Name):
                    yield part.id, node.value if whole else None


def room_of(module: str) -> str:
    """`core` of `sottovoce.core.links`; another package is a room by itself."""
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == PACKAGE else package


def rooms_imported(edges: Sequence[Edge]) -> dict[str, set[str]]:
    """By room, the other rooms from which its modules import."""
    found: dict[str, set[str]] = defaultdict(set)
    for edge in edges:
        source, target = room_of(edge.source), room_of(edge.target)
        if source and target and source != target:
            found[source].add(target)
    return dict(found)


def cycles(edges: Sequence[Edge]) -> list[list[str]]:
    """Groups of modules each of which imports, directly or not, all others of its group."""
    ahead: dict[str, set[str]] = defaultdict(set)
    for edge in edges:
        ahead[edge.source].add(edge.target)
    reached = {name: _reached(name, ahead) for name in list(ahead)}
    groups: dict[str, list[str]] = {}
    for name in sorted(reached):
        if name in reached[name]:
            group = sorted(other for other in reached[name] if name in reached.get(other, ()))
            groups[group[0]] = group
    return list(groups.values())


def _reached(start: str, ahead: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = ahead.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def _direction_figure(edges: Sequence[Edge]) -> Figure:
    rank = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    wrong = []
    for edge in edges:
        source, target = room_of(edge.source), room_of(edge.target)
        if source in rank and target in rank and rank[target] > rank[source]:
            wrong.append(str(edge))
    return Figure("upward_imports", "imports against their direction", len(wrong), wrong)


def _cycle_figure(edges: Sequence[Edge]) -> Figure:
    found = cycles(edges)
    details = []
    for number, group in enumerate(found, 1):
        inside = [str(e) for e in edges if e.source in group and e.target in group]
        details += [f"cycle {number}, {len(group)} modules: {', '.join(group)}"]
        details += [f"  {line}" for line in inside]
    return Figure("import_cycles", "import cycles, lazy imports too", len(found), details)


def _side(name: str) -> str:
    """Flower comes first, since it may live among the services."""
    for side, places in (("flower", FLOWER), ("services", SERVICES)):
        if any(name == place or name.startswith(f"{place}.") for place in places):
            return side
    return ""


def _flower_figure(edges: Sequence[Edge]) -> Figure:
    across = [e for e in edges if {_side(e.source), _side(e.target)} == {"services", "flower"}]
    label = "edges between services and Flower"
    return Figure("services_flower_edges", label, len(across), list(map(str, across)))


# --- names ----------------------------------------------------------------------------------------


def _twice(places: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{key}: {', '.join(at)}" for key, at in sorted(places.items()) if len(at) > 1]


def _name_figures(modules: Mapping[str, Module]) -> list[Figure]:
    classes: dict[str, list[str]] = defaultdict(list)
    magics: dict[str, list[str]] = defaultdict(list)
    protocols: list[str] = []
    for module in modules.values():
        defined = {node.name for node in module.tree.body if isinstance(node, ast.ClassDef)}
        for name in sorted(defined):
            if not name.startswith("_"):
                classes[name].append(module.name)
        for node in ast.walk(module.tree):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(value, bytes) and _MAGIC.fullmatch(value):
                magics[value.decode()].append(f"{module.name}:{getattr(node, 'lineno', 0)}")
        protocols += [module.name for name, _ in _assigned(module.tree) if name == "PROTOCOL"]
    names, bytes_ = _twice(classes), _twice(magics)
    return [
        Figure("duplicate_classes", "public class names in several modules", len(names), names),
        Figure("duplicate_magics", "wire magics written in several places", len(bytes_), bytes_),
        Figure("protocols", "constants named PROTOCOL", len(protocols), protocols),
    ]


# --- all of them ----------------------------------------------------------------------------------


def _size_figures(modules: Mapping[str, Module], root: Path) -> list[Figure]:
    sizes = sorted(module.lines for module in modules.values()) or [0]
    largest = sorted(modules.values(), key=lambda module: -module.lines)[:10]
    at_root = sorted(path.name for path in root.glob("*.py"))
    p90 = sizes[math.ceil(0.9 * len(sizes)) - 1]
    return [
        Figure("lines", "lines of src", sum(sizes)),
        Figure("modules", "modules in src", len(modules)),
        Figure("root_modules", f"modules at the root of {PACKAGE}", len(at_root), at_root),
        Figure("median_lines", "lines of a module, median", statistics.median(sizes)),
        Figure(
            "p90_lines",
            "lines of a module, 90th percentile",
            p90,
            [f"{module.lines} {module.name}" for module in largest],
        ),
    ]


def figures_of(src: Path) -> list[Figure]:
    """All that can be told by reading the source."""
    modules = modules_of(src)
    edges = edges_of(modules)
    return [
        *_size_figures(modules, src / PACKAGE),
        _cycle_figure(edges),
        _direction_figure(edges),
        _flower_figure(edges),
        *_name_figures(modules),
    ]


# --- what people have to know ---------------------------------------------------------------------


def commands_of(group: click.Group, *before: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that can be typed, with its words."""
    for name in list(group.commands):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from commands_of(typing.cast("click.Group", command), *before, name)
        else:
            yield " ".join([*before, name]), command


def parameters_of(command: click.Command) -> list[str]:
    return [str(one.name) for one in command.params if one.name != "help"]


def settings_of(kinds: Iterable[type]) -> dict[type, list[str]]:
    """The settings that each of these dataclasses declares, and those that are in their fields. A
    field that one of the bases declares is that base's."""
    found: dict[type, list[str]] = {}
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop(0)
        if kind in found or not dataclasses.is_dataclass(kind):
            continue
        bases = [base for base in kind.__mro__[1:] if dataclasses.is_dataclass(base)]
        waiting += bases
        theirs = {one.name for base in bases for one in dataclasses.fields(base)}
        mine = [one.name for one in dataclasses.fields(kind) if one.init]
        found[kind] = [name for name in mine if name not in theirs]
        hints = typing.get_type_hints(kind)
        waiting += [inner for name in mine for inner in _classes_in(hints[name])]
    return found


def _classes_in(hint: Any) -> Iterator[type]:
    inner = typing.get_args(hint)
    if inner:
        for one in inner:
            yield from _classes_in(one)
    elif isinstance(hint, type):
        yield hint


def interface_figures() -> list[Figure]:
    """Commands, their parameters, and settings, of the package that is installed here."""
    import typer.main

    from sottovoce.algorithms.base import ALGORITHMS
    from sottovoce.baselines import BASELINES
    from sottovoce.cli import app
    from sottovoce.core.consent import Choice
    from sottovoce.core.links import LINKS
    from sottovoce.experiment import Experiment
    from sottovoce.parties.places import PlaceRules
    from sottovoce.parties.shuffler import ShufflerRules
    from sottovoce.privacy.base import RELEASES
    from sottovoce.services.aggregator import AggregatorLimits
    from sottovoce.services.helper import HelperLimits
    from sottovoce.services.orchestrator import OrchestratorLimits
    from sottovoce.services.owner import OwnerLimits
    from sottovoce.services.server.application import ServerLimits
    from sottovoce.services.shuffler import ShufflerLimits

    root = typing.cast("click.Group", typer.main.get_command(app))
    commands = dict(commands_of(root))
    parameters = {name: parameters_of(command) for name, command in commands.items()}
    sections = typing.get_type_hints(Experiment).values()
    files: list[type] = [
        *(hint for hint in sections if isinstance(hint, type) and dataclasses.is_dataclass(hint)),
        Choice,
        *(kind for known in (ALGORITHMS, RELEASES, LINKS, BASELINES) for kind in known.values()),
        *(PlaceRules, ShufflerRules, ServerLimits, HelperLimits, AggregatorLimits),
        *(ShufflerLimits, OwnerLimits, OrchestratorLimits),
    ]
    ours = [kind for kind in files if kind.__module__.startswith(f"{PACKAGE}.")]
    settings = settings_of(ours)
    top = [name for name in ("name", "seed", "seeds", "draws") if name in _names(Experiment)]
    table: dict[str, list[str]] = {"an experiment file": list(top)}
    table |= {f"{kind.__module__}.{kind.__name__}": names for kind, names in settings.items()}
    return [
        Figure("commands", "commands", len(commands), sorted(commands)),
        _counted("parameters", "parameters of commands", parameters),
        _counted("settings", "settings", table),
    ]


def _names(kind: Any) -> set[str]:
    return {one.name for one in dataclasses.fields(kind)}


def _counted(key: str, label: str, found: Mapping[str, Sequence[str]]) -> Figure:
    rows = sorted(found.items(), key=lambda one: (-len(one[1]), one[0]))
    details = [f"{len(names):3} {name}: {', '.join(names)}" for name, names in rows if names]
    return Figure(key, label, sum(map(len, found.values())), details)


# --- rooms ----------------------------------------------------------------------------------------


def rooms_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Lines and modules of Python by room: a folder of the package or of the tests, and each other
    package or file for itself."""
    found: dict[str, list[int]] = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        first, *rest = path.relative_to(folder).parts
        if first == PACKAGE and rest:
            first = f"{PACKAGE}/{rest[0]}"
        lines = len(path.read_text(encoding="utf-8").splitlines())
        found[f"{folder.name}/{first}"].append(lines)
    return {room: (sum(each), len(each)) for room, each in found.items()}


def rooms_table(rooms: Mapping[str, tuple[int, int]]) -> str:
    """The largest first."""
    rows = sorted(rooms.items(), key=lambda one: -one[1][0])
    width = max((len(room) for room in rooms), default=0)
    lines = [f"{room.ljust(width)} | {n:7,} | {many:7,}" for room, (n, many) in rows]
    return "\n".join([f"{'room'.ljust(width)} |   lines | modules", *lines])


def tests_figure(tests: Path) -> Figure:
    return Figure("test_lines", "lines of tests", sum(n for n, _ in rooms_of(tests).values()))


# --- what a report costs --------------------------------------------------------------------------


def measured_figures() -> list[Figure]:
    """What a report costs, in a little federation that is run for it: about half a minute."""
    import report_trace

    trace = report_trace.measure()
    selects, decoded = trace.selects, trace.decoded
    return [
        Figure(
            "selects",
            "SELECTs a report",
            trace.per_report(selects),
            trace.most_frequent(selects)[:25],
        ),
        Figure("device_selects", "- on the device's store", trace.per_report(selects, "device")),
        Figure("server_selects", "- on the server's database", trace.per_report(selects, "server")),
        Figure(
            "decodings",
            "decodings a report",
            trace.per_report(decoded),
            trace.most_frequent(decoded),
        ),
        Figure(
            "report_modules",
            "modules on a report's way",
            len(set().union(*trace.modules.values())),
            [
                f"{party}: {name}"
                for party, found in trace.modules.items()
                for name in sorted(found)
            ],
        ),
    ]


def limits_of(path: Path) -> dict[str, Limit]:
    tables: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return {key: Limit(**table) for key, table in tables.items()}


def complaints(figures: Sequence[Figure], limits: Mapping[str, Limit]) -> list[str]:
    """One sentence for each figure that is worse than its ceiling."""
    said = []
    for figure in figures:
        ceiling = limits.get(figure.key, _NONE).ceiling
        if ceiling is not None and figure.now > ceiling:
            now, most = _number(figure.now), _number(ceiling)
            said.append(f"{figure.label.lstrip('- ')}: {now}, but no more than {most} may be.")
    return said


def table(figures: Sequence[Figure], limits: Mapping[str, Limit]) -> str:
    rows = [["figure", "before", "now", "aim", "ceiling"]]
    for figure in figures:
        limit = limits.get(figure.key, _NONE)
        numbers = (limit.before, figure.now, limit.aim, limit.ceiling)
        rows.append([figure.label, *map(_number, numbers)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="facts", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--explain", action="store_true", help="say what the figures count")
    parser.add_argument("--measure", action="store_true", help="run a federation, too")
    parser.add_argument("--src", type=Path, default=ROOT / "src", help="another tree")
    parser.add_argument("--limits", type=Path, default=LIMITS, help="another facts.toml")
    options = parser.parse_args(arguments)
    figures, rooms = figures_of(options.src), rooms_of(options.src)
    if options.src.resolve() == ROOT / "src":  # what can be imported here is that tree
        figures += [tests_figure(ROOT / "tests"), *interface_figures()]
        rooms |= rooms_of(ROOT / "tests")
    if options.measure:
        figures += measured_figures()
    limits = limits_of(options.limits)
    said = complaints(figures, limits)
    if options.json:
        told = {f.key: asdict(f) | asdict(limits.get(f.key, _NONE)) for f in figures}
        by_room = {room: {"lines": n, "modules": many} for room, (n, many) in rooms.items()}
        content = {"figures": told, "rooms": by_room, "complaints": said}
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        print(table(figures, limits), rooms_table(rooms), sep="\n\n")
    if options.explain and not options.json:
        for figure in figures:
            if figure.details:
                print(f"\n{figure.label}:", *figure.details, sep="\n  ")
    for sentence in said:
        print(sentence, file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
