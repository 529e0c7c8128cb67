"""Files of studies: a table or figure as data, run from the file to the page.

`[study]` says on which data, with which seeds and by which metric settings are chosen; `[data.*]`
and `[systems.*]` what is compared; `[sets.*]` which rows there are; `[[printed]]` what the paper
has; `[[derive]]`, `[[tables]]`, `[[figures]]` and `[[claims]]` what is made of the rows. What no
table can say is a function that the file names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce import config
from sottovoce.core.installed import shipped_folder
from sottovoce.errors import ConfigError
from sottovoce_papers.cells import Cells
from sottovoce_papers.claims import Claim, count_of, lines_of, tested
from sottovoce_papers.lines import StudyLine, StudyRunner, StudySystem, named
from sottovoce_papers.show import derive, figures_of, page_of, print_beside, tables_of
from sottovoce_papers.worlds import StudyData, laid_over

SECTIONS = (
    "extends", "title", "reading", "study", "data", "systems", "sets", "rows", "add", "printed",
    "derive", "tables", "figures", "claims", "quick", "protocol", "writes",
)  # fmt: skip
"""What a study's file may have; `[values]` is for its own functions."""


@dataclass(frozen=True, slots=True)
class StudySettings:
    """`[study]` of a file."""

    data: tuple[str, ...] = ()
    """The data sets, by name; all of the file's where none is named."""
    seeds: tuple[int, ...] = (0,)
    chosen_by: str = ""
    """The metric by which validation chooses settings."""


def studies() -> Path:
    """The folder of the studies that come with the package."""
    return shipped_folder("experiments") / "reproduce"


def read(place: Path, quick: bool = False) -> dict[str, Any]:
    """Read a file, laid over the one that it extends; `quick` lays its [quick] table over it."""
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
        table = laid_over(read(below), table)
    return laid_over(table, table.get("quick", {})) if quick else table


def installed(name: str, quick: bool = False) -> dict[str, Any]:
    """The file of a study that comes with the package."""
    return read(studies() / f"{name}.toml", quick)


DATA = {"crowd": "scale:CrowdData", "candidates": "negatives_leak:LeakData"}
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
        known = {
            one: config.build(data_kind(spec), spec, f"data.{one}")
            for one, spec in table.get("data", {}).items()
        }
        missing = [one for one in self.settings.data if one not in known]
        if missing:
            raise ConfigError(f"there is no [data.{missing[0]}]")
        self.worlds = {one: known[one] for one in self.settings.data or known}
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
            sets[name] = named(function)(self, sets)
        for printed in self.table.get("printed", ()):
            for name in printed.get("sets", trained):
                print_beside(printed, sets[name])
        for spec in self.table.get("derive", ()):
            derive(spec, lines_of(sets, spec), lines_of(sets, spec, "base_set"))
        return sets

    def run(self, cells: Cells, out: Path) -> dict[str, Any]:
        """Train, measure, test and show; return what `reproduce` says."""
        runner = self.runner(cells)
        sets = self.sets(runner)
        first = next(line.row for lines in sets.values() for line in lines)
        seeds = count_of(self.settings.seeds)
        protocol = self.table.get("protocol", "{size}").replace("{seeds}", seeds)
        tables = [
            table
            for number, spec in enumerate(self.table["tables"])
            for table in tables_of(spec, sets, protocol, () if number else runner.notes)
        ]
        claims: list[Claim] = []
        for spec in self.table.get("claims", ()):
            made = named(spec["test"])(sets, spec) if "test" in spec else tested(spec, sets)
            claims += made
        folder = out / "figures"
        pictures = [
            block
            for spec in self.table.get("figures", ())
            for block in figures_of(spec, sets, folder, self.name)
        ]
        page = page_of(out / "report.html", tables, claims, pictures, self.table["reading"])
        return {
            "name": self.name,
            "data": "; ".join(dict.fromkeys(world.describe() for world in runner.worlds)),
            "protocol": protocol.format_map(first),
            "rows": [json_row(line.row, name) for name, lines in sets.items() for line in lines],
            "claims": claims,
            "tables": tables,
            "report": str(page),
            **(named(self.table["writes"])(self, sets, out) if "writes" in self.table else {}),
        }


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
        changed = laid_over(changed, {"study": {"data": list(data)}})
    return StudyFile(name, changed).run(cells, out)
