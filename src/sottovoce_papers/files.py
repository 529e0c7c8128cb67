"""Files of studies: a table or figure as data, run from the file to the page.

`[study]` says on which data, with which seeds and by which metric settings are chosen; `[data.*]`
and `[systems.*]` what is compared; `[sets.*]` which rows there are; `[[printed]]` what the paper
has; `[[derive]]`, `[[tables]]`, `[[figures]]` and `[[claims]]` what is made of the rows. What no
table can say is a function that the file names. `[recorded]` says how long the study took where.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sottovoce import config
from sottovoce.core.installed import shipped_folder
from sottovoce.errors import ConfigError, UsageError
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.tables import Table
from sottovoce_papers.cells import Cells
from sottovoce_papers.claims import Claim, StudyLine, count_of, lines_of, tested
from sottovoce_papers.lines import StudyRunner, StudySystem, named
from sottovoce_papers.show import (
    derive,
    figures_of,
    files_of,
    page_of,
    print_beside,
    tables_of,
)
from sottovoce_papers.worlds import MADE, StudyData, expanded, laid_over

SECTIONS = (
    "extends", "title", "reading", "study", "data", "systems", "sets", "rows", "add", "printed",
    "derive", "tables", "figures", "claims", "quick", "protocol", "recorded", "writes",
)  # fmt: skip
"""What a study's file may have; `[values]` is for its own functions."""


@dataclass(frozen=True, slots=True)
class StudySettings:
    """`[study]` of a file."""

    data: tuple[str, ...] = ()
    """The data sets, by name; all of the file's where none is named."""
    apart: bool = False
    """Whether each data set has tables, claims and figures of its own."""
    seeds: tuple[int, ...] = (0,)
    chosen_by: str = ""
    """The metric by which validation chooses settings."""


def studies() -> Path:
    """The folder of the studies that come with the package."""
    return shipped_folder("experiments") / "reproduce"


def read(place: Path, quick: bool = False) -> dict[str, Any]:
    """Read a file, laid over the one that it extends; `quick` lays its [quick] table over it. What
    was recorded of the other study is not taken over."""
    try:
        table = tomllib.loads(place.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{place} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{place} is not valid TOML: {error}") from None
    if "extends" in table:
        below = place.with_name(f"{table['extends']}.toml")
        if not below.exists():
            below = studies() / below.name
        table = laid_over({k: v for k, v in read(below).items() if k != "recorded"}, table)
    return laid_over(table, table.get("quick", {})) if quick else table


def installed(name: str, quick: bool = False) -> dict[str, Any]:
    """The file of a study that comes with the package."""
    return read(studies() / f"{name}.toml", quick)


def narrowed(table: Mapping[str, Any], asked: Sequence[str]) -> dict[str, Any]:
    """Return a study on the data sets that are asked for. Each is the name of one of the file's, or
    a source; a source that the file does not have takes the place of the sources that it does."""
    specs = table.get("data", {})
    inside = expanded(specs)
    usual = list(table.get("study", {}).get("data", ())) or list(specs)
    names: list[str] = []
    replaced: dict[str, dict[str, Any]] = {}
    systems, sets = dict(table.get("systems", {})), dict(table.get("sets", {}))
    for one in asked:
        own = [name for name, spec in specs.items() if spec.get("source") == one]
        if one in specs or any(one in found for found in inside.values()):
            names.append(one)
        elif own:
            names += [name for name in usual if name in own] or own
        else:
            models = [name for name in usual if specs[name].get("source") not in MADE]
            if not models:
                raise UsageError(f"--data {one}: this study has no data set that can be replaced")
            models = list({json.dumps({**specs[m], "source": ""}): m for m in models}.values())
            renamed = {m: one if len(models) == 1 else f"{one}-{m}" for m in models}
            replaced |= {new: {**specs[m], "source": one} for m, new in renamed.items()}
            names += renamed.values()
            systems = {key: _also(spec, renamed) for key, spec in systems.items()}
            sets = {key: [_also(entry, renamed) for entry in some] for key, some in sets.items()}
    whole = {"data": {**specs, **replaced}, "systems": systems, "sets": sets}
    own_parts = {key: value for key, value in whole.items() if key in table or value}
    return laid_over(table, {**own_parts, "study": {"data": names}})


def _also(spec: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """A system or an entry that is for some data sets alone is for what replaces them, too."""
    if not spec.get("data"):
        return dict(spec)
    new = [renamed[name] for name in spec["data"] if name in renamed]
    return {**spec, "data": [*spec["data"], *new]}


DATA = {
    "crowd": "scale:CrowdData",
    "attributes": "uc_data:AttributeData",
    "candidates": "negatives_leak:LeakData",
}
"""Classes of data sets by a setting that they alone have."""


def data_kind(spec: Mapping[str, Any]) -> type[StudyData]:
    """Return the class of a data set."""
    return next((named(place) for name, place in DATA.items() if name in spec), StudyData)


class StudyFile:
    """A study as its file has it."""

    def __init__(self, name: str, table: Mapping[str, Any]) -> None:
        unknown = sorted(set(table) - {*SECTIONS, "values"})
        if unknown or "title" not in table:
            raise ConfigError(f"the study {name} needs a title and knows no {unknown}")
        self.name, self.table = name, table
        self.settings = config.build(StudySettings, table.get("study", {}), "study")
        groups = expanded(table.get("data", {}))
        known = {
            one: config.build(data_kind(spec), spec, f"data.{one}")
            for group in groups.values()
            for one, spec in group.items()
        }
        groups |= {one: {one: {}} for one in known if one not in groups}
        missing = [one for one in self.settings.data if one not in groups]
        if missing:
            raise ConfigError(f"there is no [data.{missing[0]}]")
        asked = [
            one for name in self.settings.data or table.get("data", {}) for one in groups[name]
        ]
        self.worlds = {one: known[one] for one in asked}
        self.systems = [
            system
            for key, spec in table.get("systems", {}).items()
            for system in StudySystem.read(key, spec)
        ]

    def runner(self, cells: Cells) -> StudyRunner:
        """What trains its systems."""
        seeds, by = self.settings.seeds, self.settings.chosen_by
        return StudyRunner(cells, self.worlds, self.systems, seeds, by)

    def sets(self, runner: StudyRunner) -> dict[str, list[StudyLine]]:
        """Its rows by set, with what was printed and what follows from others."""
        entries = self.table.get("sets", {"main": [{}]} if self.systems else {})
        trained = {name: runner.lines(asked) for name, asked in entries.items()}
        for add in self.table.get("add", ()):
            for line in (line for lines in trained.values() for line in lines):
                line.row.update(named(add)(line))
        sets: dict[str, list[StudyLine]] = {name: [*lines] for name, lines in trained.items()}
        for name, function in self.table.get("rows", {}).items():
            sets[name] = named(function)(sets, self.table.get("values", {}))
        for printed in self.table.get("printed", ()):
            for name in printed.get("sets", trained):
                print_beside(printed, sets[name])
        for spec in self.table.get("derive", ()):
            derive(spec, lines_of(sets, spec), lines_of(sets, spec, "base_set"))
        return sets

    def run(self, cells: Cells, out: Path) -> dict[str, Any]:
        """Train, measure, test and show; return what `reproduce` says."""
        runner = self.runner(cells)
        parts = runner.apart() if self.settings.apart else [runner]
        shown: list[ShownStudy] = []
        for part in parts:
            several = len(parts) > 1
            name = f"{self.name}-{part.worlds[0].key}" if several else self.name
            one = self._shown(part, out / "figures", name, () if shown else runner.notes)
            if several:
                for found in one.claims:
                    found["claim"] += f" ({part.worlds[0].title})"
            shown.append(one)
        tables = [table for one in shown for table in one.tables]
        claims = [found for one in shown for found in one.claims]
        pictures = [block for one in shown for block in one.pictures]
        title, reading = f"{self.name}: {self.table['title']}", self.table["reading"]
        page = page_of(out / "report.html", title, tables, claims, pictures, reading)
        return {
            "name": self.name,
            "data": "; ".join(dict.fromkeys(world.describe() for world in runner.worlds)),
            "protocol": "; ".join(dict.fromkeys(one.protocol for one in shown)),
            "rows": [row for one in shown for row in one.rows],
            "claims": claims,
            "figures": files_of(pictures),
            "tables": tables,
            "report": str(page),
            **{name: value for one in shown for name, value in one.more.items()},
        }

    def _shown(
        self, runner: StudyRunner, folder: Path, name: str, notes: Sequence[str]
    ) -> ShownStudy:
        sets = self.sets(runner)
        first = next(line.row for lines in sets.values() for line in lines)
        seeds = count_of(self.settings.seeds)
        protocol = self.table.get("protocol", "{size}").replace("{seeds}", seeds)
        tables = [
            table
            for number, spec in enumerate(self.table["tables"])
            for table in tables_of(spec, sets, protocol, () if number else notes)
        ]
        claims: list[Claim] = []
        for spec in self.table.get("claims", ()):
            made = named(spec["test"])(sets, spec) if "test" in spec else tested(spec, sets)
            claims += made
        pictures = [
            block
            for spec in self.table.get("figures", ())
            for block in figures_of(spec, sets, folder, name)
        ]
        rows = [json_row(line.row, name) for name, lines in sets.items() for line in lines]
        more = named(self.table["writes"])(sets, folder.parent) if "writes" in self.table else {}
        return ShownStudy(protocol.format_map(first), rows, tables, claims, pictures, more)


class ShownStudy(NamedTuple):
    """What is shown of a study, or of one of its data sets."""

    protocol: str
    rows: list[dict[str, Any]]
    tables: list[Table]
    claims: list[Claim]
    pictures: list[FigureBlock]
    more: dict[str, Any]
    """What else the result has, by the function that the study names in `writes`."""


def json_row(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A row as JSON has it, with its set; the data are described once for all rows."""
    found = {key: value for key, value in row.items() if key not in ("key", "size")}
    return found if name == "main" else {**found, "set": name}


def run(
    name: str,
    table: Mapping[str, Any],
    cells: Cells,
    out: Path,
    data: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> dict[str, Any]:
    """Run a study, on some of its data sets if any are named, with `a.b=c` settings on top."""
    changed = laid_over({}, table)
    for setting in settings:
        config.assign(changed, setting)
    if data:
        changed = narrowed(changed, data)
    return StudyFile(name, changed).run(cells, out)
