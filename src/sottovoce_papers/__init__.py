"""Published tables and figures, run again beside the printed figures; and what our own releases
cost and withstand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.data.sources import available
from sottovoce.errors import UsageError
from sottovoce.runs.train import Report
from sottovoce_papers import files
from sottovoce_papers.cells import Cells
from sottovoce_papers.worlds import MADE, expanded


def titles() -> dict[str, str]:
    """The studies that come with the package, by name, with their titles."""
    found = {place.stem: files.read(place) for place in sorted(files.studies().glob("*.toml"))}
    return {name: table["title"] for name, table in found.items() if "title" in table}


NAMES: Mapping[str, str] = titles()
"""Every study that comes with the package, and what it shows."""
ON_GPU = ("uc-", "scale", "negatives-leak", "benchmark", "presets")
"""How names begin that can be trained on a GPU."""


def run(
    name: str,
    *,
    quick: bool,
    out: Path,
    threads: int,
    report: Report,
    device: str = "cpu",
    data: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> dict[str, Any]:
    """Run one of `NAMES`, or the study of a file. Trained models are kept in `cells/` beside `out`,
    shared by all studies.

    Args:
        name: One of `NAMES`, or the path of a file.
        quick: Whether the file's [quick] table is laid over it.
        out: Where the page goes.
        threads: How many cells are made side by side.
        report: Progress callback: (stage, done, total).
        device: The device that trains models.
        data: Data sets that are taken in the place of the study's own: names of the file's, or
            sources (`files.narrowed`).
        settings: Values in the place of the file's, such as `["study.seeds=[7]"]`.
    """
    own = Path(name)
    if own.suffix == ".toml":
        table, name = files.read(own, quick), own.stem
    else:
        check(name, device)
        table = files.installed(name, quick)
    report("data", 0, 1)
    cells = Cells(out.parent / "cells", threads, report, device)
    return files.run(name, table, cells, out, data, settings)


def missing(name: str) -> list[str]:
    """Return the data sets of a study that are not on this machine."""
    return [one for one in _sources(files.installed(name)) if one not in available()]


def _sources(table: Mapping[str, Any]) -> list[str]:
    """The data sets that a study takes, without those that are made from a seed."""
    specs = table.get("data", {})
    usual = table.get("study", {}).get("data", ()) or [*specs]
    named = [
        spec.get("source")
        for name, spec in specs.items()
        if name in usual or set(usual) & set(expanded({name: spec})[name])
    ]
    return list(dict.fromkeys(one for one in named if one and one not in MADE))


def described(name: str) -> dict[str, Any]:
    """Return what the list of studies says of one: its title, its size, how long it took where that
    was recorded, what is not on this machine, and other data sets that its file has."""
    table = files.installed(name)
    sources = _sources(table)
    others = [one.get("source") for one in table.get("data", {}).values()]
    found: dict[str, Any] = {"title": NAMES[name], "missing": missing(name)}
    found["also"] = [one for one in dict.fromkeys(others) if one and one not in (*MADE, *sources)]
    study = files.StudyFile(name, table)
    entries = [one for some in table.get("sets", {"main": [{}]}).values() for one in some]
    asked = {key for one in entries for key in one.get("systems", table.get("systems", ()))}
    found["size"] = {
        "system": sum(one.key in asked for one in study.systems),
        "data set": len(study.worlds),
        "seed": len(study.settings.seeds),
    }
    found["recorded"] = table.get("recorded", {})
    return found


def compare(
    *,
    quick: bool,
    sets: Sequence[str],
    systems: Sequence[str],
    add: Sequence[Path],
    attacks: bool,
    out: Path,
    threads: int,
    report: Report,
    device: str = "cpu",
) -> dict[str, Any]:
    """Run the benchmark, on these data sets and with these systems if any are named, with rows of
    others."""
    from sottovoce_papers.benchmark import narrowed

    table = files.installed("benchmark", quick)
    table = narrowed(table, sets, systems, attacks=attacks, add=add)
    return files.run("benchmark", table, Cells(out.parent / "cells", threads, report, device), out)


def check(name: str, device: str) -> None:
    """Raises if there is no such name, or if it cannot be trained on `device`."""
    if name not in NAMES:
        known = ", ".join(NAMES)
        raise UsageError(f"nothing is called {name}; name a file (FILE.toml), or one of {known}")
    if device == "cpu":
        return
    if not name.startswith(ON_GPU):
        raise UsageError(f"{name} has no way on a GPU; leave it on --device cpu")
    from sottovoce.algorithms.fpl.accelerated import require

    require(device)
