"""`sottovoce reproduce | benchmark | bench`: published results, systems side by side, speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json, Out, Threads
from sottovoce.errors import UsageError


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|FILE]",
            help="A study by name, or a file of one's own; without it, the list of studies.",
        ),
    ] = None,
    listed: Annotated[
        bool,
        typer.Option("--list", help="List the studies: sizes, times, and which data they lack."),
    ] = False,
    paper: Annotated[
        str | None,
        typer.Option(
            "--all",
            metavar="PAPER",
            help="Run all studies of a paper (fpl, fmf, drift or uc) onto one page.",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SET",
            help="Take this data set: one of the study's, or any that is here, in the place of "
            "the study's own; repeatable.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="A.B=C", help="Change a value of the study's file; repeatable."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Take fewer settings and epochs, for a look. Some names then need a minute, "
            "some ten.",
        ),
    ] = False,
    out: Out = None,
    threads: Threads = None,
    device: Annotated[
        Literal["cpu", "cuda"],
        typer.Option(
            help="The device that trains models; cuda is for UC-FedRec, scale, presets, rivals."
        ),
    ] = "cpu",
    as_json: Json = False,
) -> None:
    """Run a study: set a published table or figure beside our figures, and test its claims.

    A study is a TOML file with data, systems, tables, figures and claims. NAME is one that comes
    with the package; FILE.toml is one of your own. What is trained or attacked is kept in `cells`
    beside the folder of --out. If the command was stopped, the same command goes on from there.
    Several commands that run side by side share it.

    How long that takes depends on the name and on the machine: from a minute to hours, with --quick
    from less than a minute to some ten. Progress says what the stage at hand may still
    take, by its pace so far.

    \b
    Examples:
      sottovoce reproduce --list
      sottovoce reproduce fpl-table2 --quick
      sottovoce reproduce fpl-table2 --data foursquare-brazil
      sottovoce reproduce --all fpl --quick
      sottovoce reproduce mine.toml --set "study.seeds=[7]"
      sottovoce reproduce uc-table2 --device cuda
    """
    import sottovoce_papers as published
    from sottovoce.core.recommender import default_threads
    from sottovoce.runs.folder import check_writable

    advice = "start it again with the same command; models that are trained are kept"
    if paper is not None:
        from sottovoce_papers.papers import run_paper, studies_of

        if name is not None or settings or listed:
            raise UsageError("--all takes a paper's studies as they are: leave out NAME and --set")
        studies_of(paper)
        place = out or Path("runs") / paper
        check_writable(place)
        with output.interruptible(advice), output.progress(lines=True) as report:
            found = run_paper(
                paper,
                quick=quick,
                out=place,
                threads=threads or default_threads(),
                report=report,
                device=device,
                data=data or (),
            )
        failed = [one for one in found["studies"] if "error" in one and not one["lacking"]]
        _tell(found, as_json)
        if failed:
            raise typer.Exit(1)
        return
    if name is None or listed:
        _list(as_json)
        return
    if not name.endswith(".toml"):
        published.check(name, device)
    place = out or Path("runs") / Path(name).stem
    check_writable(place)
    with output.interruptible(advice), output.progress(lines=True) as report:
        found = published.run(
            name,
            quick=quick,
            out=place,
            threads=threads or default_threads(),
            report=report,
            device=device,
            data=data or (),
            settings=settings or (),
        )
    _tell(found, as_json)


def benchmark(
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Take one small data set and short trainings, for a look."),
    ] = False,
    sets: Annotated[
        str, typer.Option(metavar="A,B", help="Take these data sets alone, separated by commas.")
    ] = "",
    systems: Annotated[
        str, typer.Option(metavar="A;B", help="Take these systems alone, separated by semicolons.")
    ] = "",
    add: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Add the rows of others from a benchmark.json; repeatable."
        ),
    ] = None,
    attacks: Annotated[
        bool, typer.Option("--attacks", help="Run the attack suite on systems of ours, too.")
    ] = False,
    out: Out = None,
    threads: Threads = None,
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(help="The device that trains published rivals.")
    ] = "cpu",
    as_json: Json = False,
) -> None:
    """Compare federated recommenders on five data sets, by full ranking.

    It compares systems of ours as their presets are shipped, published rivals (FedMF, FedNCF,
    PFedRec, FedRAP) with fair negatives, and central references. Columns are accuracy with
    intervals, bytes up and down, ε, what bounds it, attacks and time. It writes a table, a plot and
    benchmark.json, which others can add to with --add. What is trained is kept in `cells` beside
    the folder of --out. If the command was stopped, the same command goes on from there.

    \b
    Examples:
      sottovoce benchmark --quick
      sottovoce benchmark --sets movielens-1m,lastfm-2k --systems "pFPL+;FedMF;EASE"
      sottovoce benchmark --add mine.json --json
    """
    import sottovoce_papers as published
    from sottovoce.core.recommender import default_threads
    from sottovoce.runs.folder import check_writable

    published.check("benchmark", device)
    place = out or Path("runs") / "benchmark"
    check_writable(place)
    advice = "start it again with the same command; models that are trained are kept"
    with output.interruptible(advice), output.progress(lines=True) as report:
        found = published.compare(
            quick=quick,
            sets=[name.strip() for name in sets.split(",") if name.strip()],
            systems=[name.strip() for name in systems.split(";") if name.strip()],
            add=add or [],
            attacks=attacks,
            out=place,
            threads=threads or default_threads(),
            report=report,
            device=device,
        )
    _tell(found, as_json)


def _list(as_json: bool) -> None:
    import sottovoce_papers as published

    known = {name: published.described(name) for name in published.NAMES}
    if as_json:
        output.emit({
            "names": published.NAMES,
            "missing": {name: one["missing"] for name, one in known.items()},
            "studies": known,
        })  # fmt: skip
        return
    width = max(len(name) for name in known)
    for name, one in known.items():
        parts = [one["title"]]
        size = one.get("size", {}).items()
        if size and all(count for _, count in size):
            parts.append(", ".join(f"{n} {what}{'s' * (n > 1)}" for what, n in size))
        parts += [
            f"{one['recorded'][key]:g} min{words}"
            for key, words in (("minutes", ""), ("quick_minutes", " with --quick"))
            if key in one["recorded"]
        ]
        parts += [
            f"{words}: {', '.join(one[key])}"
            for key, words in (("missing", "not here"), ("also", "--data also"))
            if one[key]
        ]
        output.show(f"{name:<{width}}  {'; '.join(parts)}")


def _tell(found: dict[str, Any], as_json: bool) -> None:
    tables = found.pop("tables", [])
    if as_json:
        output.emit(found)
        return
    output.show(*tables)
    for study in found.get("studies", [found]):
        start = f"{study['name']}: " if study is not found else ""
        for claim in study.get("claims", []):
            verdict = "holds" if claim["holds"] else "does not hold"
            output.show(f"{start}{verdict}: {claim['claim']} ({claim['detail']})")
    output.show(f"Report: {found['report']}")
    if "file" in found:
        output.show(f"For others to add to: {found['file']}")


def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A benchmark, such as fpl.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Take smaller sizes, for a rough figure.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure speed beside a named peer, in the same run on this machine.

    NAME is a benchmark, such as fpl; an unknown name lists those there are.

    \b
    Examples:
      sottovoce bench fpl
      sottovoce bench fpl --quick --json
    """
    from sottovoce.evaluation.tables import Column, Table
    from sottovoce.experiment import load_benchmark

    module = load_benchmark(name)
    with output.interruptible("nothing is kept of a benchmark; start it again"):
        found = module.run(quick=quick, progress=output.note)
    if as_json:
        output.emit(found)
        return
    keys = ("name", "value", "unit", "peer", "ratio", "target", "met")
    shown = [{k: row.get(k) for k in keys} for row in found["results"]]
    formats = {"value": ",.4g", "ratio": ".2f", "target": ".2f"}
    columns = [Column(k, format=formats.get(k, "")) for k in keys]
    output.show(Table(f"{found['bench']} on {output.words(found['machine'])}", columns, shown))
