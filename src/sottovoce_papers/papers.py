"""All studies of a paper on one page: every table and figure next to what was printed, and what
came of each claim."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sottovoce_papers as published
from sottovoce.errors import DataNotFound, SottovoceError, UsageError
from sottovoce.evaluation.report import Block, FigureBlock, Section, TextBlock, write_report
from sottovoce.evaluation.tables import Column, Table
from sottovoce.runs.train import Report
from sottovoce_papers import files
from sottovoce_papers.show import claimed

PAPERS: Mapping[str, str] = {
    "fpl": "FPL: federated pair-wise recommendation (Anelli et al. 2021, 2022)",
    "fmf": "FMF-LDP: federated collaborative filtering with implicit feedback (Minto et al. 2021)",
    "drift": "DRIFT: data owners and an orchestrator",
    "uc": "UC-FedRec: user consented federated recommendation (2023)",
}
"""The papers, by how the names of their studies begin."""


def studies_of(paper: str) -> list[str]:
    """Return the names of a paper's studies, tables first."""
    if paper not in PAPERS:
        raise UsageError(f"--all knows {', '.join(PAPERS)}, not {paper!r}")
    names = [name for name in published.NAMES if name.startswith(f"{paper}-")]
    return sorted(names, key=lambda name: ("-table" not in name, name))


def run_paper(
    paper: str,
    *,
    quick: bool,
    out: Path,
    threads: int,
    report: Report,
    device: str = "cpu",
    data: Sequence[str] = (),
) -> dict[str, Any]:
    """Run all studies of one of `PAPERS`, each in its folder next to `out`, and write their page.
    A study that fails is named with its reason, and the others go on. The page is written anew
    after each study, so that it can be read before the last one is done.

    Args:
        paper: One of `PAPERS`.
        quick: Whether the files' [quick] tables are laid over them.
        out: Where the page goes.
        threads: How many cells are made side by side.
        report: Progress callback: (stage, done, total).
        device: The device that trains models.
        data: The data sets that every study takes, where it takes any.
    """
    made: list[dict[str, Any]] = []
    page = out / "report.html"
    for name in studies_of(paper):
        takes = data if "data" in files.installed(name) else ()
        place = out.parent / name

        def told(stage: str, done: int, total: int, name: str = name) -> None:
            report(f"{name}: {stage}", done, total)

        try:
            found = published.run(
                name, quick=quick, out=place, threads=threads, report=told, device=device,
                data=takes,
            )  # fmt: skip
        except SottovoceError as error:
            lacking = isinstance(error, DataNotFound)
            found = {"name": name, "error": str(error), "lacking": lacking}
        except Exception as error:  # whatever it is, the other studies' hours must not be lost
            place.mkdir(parents=True, exist_ok=True)
            (place / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
            why = f"{type(error).__name__}: {error} ({place / 'error.txt'} says where)"
            found = {"name": name, "error": why, "lacking": False}
        made.append({**found, "not_here": published.missing(name) if not data else []})
        write_report(page, PAPERS[paper], _sections(made))
    shown = [{k: v for k, v in one.items() if k not in ("tables", "figures")} for one in made]
    return {"name": paper, "studies": shown, "tables": [overview(made)], "report": str(page)}


def overview(made: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each study: its data, how many of its claims hold, and what it lacks."""
    rows = []
    for one in made:
        claims = one.get("claims", ())
        holding = f"{sum(claim['holds'] for claim in claims)} of {len(claims)}" if claims else None
        not_here = f"not here: {', '.join(one['not_here'])}" if one["not_here"] else ""
        rows.append({
            "study": one["name"],
            "data": one.get("data"),
            "claims that hold": holding,
            "note": one.get("error", not_here),
        })  # fmt: skip
    keys = ("study", "data", "claims that hold", "note")
    return Table("Studies", [Column(key) for key in keys], rows)


def _sections(made: Sequence[Mapping[str, Any]]) -> list[Section]:
    sections = [Section("Summary", [overview(made)])]
    for one in made:
        table = files.installed(one["name"])
        title = f"{one['name']}: {table.get('title', published.NAMES[one['name']])}"
        blocks: list[Block] = []
        if "error" in one:
            blocks.append(TextBlock(f"Not run: {one['error']}"))
        else:
            blocks += one["tables"]
            blocks += [claimed(one["claims"])] if one["claims"] else []
            blocks += [FigureBlock(Path(f["file"]), f["alt"]) for f in one.get("figures", ())]
        sections.append(Section(title, [*blocks, TextBlock(table["reading"])]))
    return sections
