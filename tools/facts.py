"""`make facts`: measures the house, and fails where a figure is worse than its ceiling.

The ceilings, the aims and what was measured before are in `facts.toml`. No module is named here, so
that the tree may be rearranged: all that is known of it is its rooms, in the order in which they
may import each other, and where the services and Flower live.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import re
import statistics
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
        _flower_figure(edges),
        *_name_figures(modules),
    ]


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
    figures = figures_of(options.src)
    if options.measure:
        figures += measured_figures()
    limits = limits_of(options.limits)
    said = complaints(figures, limits)
    if options.json:
        told = {f.key: asdict(f) | asdict(limits.get(f.key, _NONE)) for f in figures}
        print(json.dumps({"figures": told, "complaints": said}, indent=2, ensure_ascii=False))
    else:
        print(table(figures, limits))
    if options.explain and not options.json:
        for figure in figures:
            if figure.details:
                print(f"\n{figure.label}:", *figure.details, sep="\n  ")
    for sentence in said:
        print(sentence, file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
