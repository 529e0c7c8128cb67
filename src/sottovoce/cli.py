"""The command line: parsing and printing, nothing else. Heavy imports wait until they are needed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import typer

import sottovoce
from sottovoce import cli_output as output
from sottovoce.errors import SottovoceError, UsageError

if TYPE_CHECKING:
    from sottovoce.demo import Story

app = typer.Typer(
    name="sottovoce",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data", help="List, describe and import data sets.")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to.", metavar="DIR")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Threads to use; all processors by default. Results are the same."),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `sottovoce` command."""
    sys.exit(call(list(sys.argv[1:] if arguments is None else arguments)))


def call(arguments: list[str]) -> int:
    """Run one command; the exit code. Errors that a user can cause become one sentence."""
    as_json = "--json" in arguments
    try:
        code = app(args=arguments, prog_name="sottovoce", standalone_mode=False)
    except SottovoceError as error:
        return output.fail(str(error), error.exit_code, type(error).__name__, as_json)
    except click.exceptions.NoArgsIsHelpError as error:
        output.note(error.format_message())
        return UsageError.exit_code
    except click.ClickException as error:
        usage = getattr(error, "ctx", None)
        hint = f" (see `{usage.command_path} --help`)" if usage is not None else ""
        message = error.format_message().rstrip(".") + hint
        return output.fail(message, UsageError.exit_code, "UsageError", as_json)
    return code if isinstance(code, int) else 0


def _version(wanted: bool) -> None:
    if wanted:
        print(f"sottovoce {sottovoce.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated recommendation in which every user decides what leaves the device.

    \b
    Start here:
      sottovoce demo                          the whole story, in under a minute
      sottovoce run pfpl-plus                 an experiment that comes with the package
      sottovoce recommend runs/demo --user r0003
      sottovoce ledger runs/demo --user r0003

    Every command takes --json: one JSON object on standard output, everything else on standard
    error. Exit codes: 0 done, 2 bad option or experiment, 3 data, 4 run folder or diverged training,
    5 consent, 6 message, 130 interrupted.
    """


# --- demo ----------------------------------------------------------------------------------------


@app.command()
def demo(out: Out = None, threads: Threads = None, as_json: Json = False) -> None:
    """The whole story on the embedded town, in under a minute.

    Generates a town, lets every resident choose what may leave her phone, trains pFPL+ on what the
    residents permit, compares it with baselines, shows one resident's recommendations and what left
    her device, and writes a report. Goes to runs/demo, or runs/demo-2 and so on where that exists.

    \b
    Examples:
      sottovoce demo
      sottovoce demo --out /tmp/town --json
    """
    from sottovoce import demo as demos
    from sottovoce.recommender import default_threads

    place = demos.folder_for(out)
    experiment = demos.load()
    with (
        output.interruptible(as_json, f"the demo was stopped; start it again (see {place})"),
        output.progress() as report,
    ):
        story = demos.run_demo(
            experiment, place, threads=threads or default_threads(), report=report
        )
    if as_json:
        output.emit(_story_json(story))
    else:
        _tell(story)


def _story_json(story: Story) -> dict[str, Any]:
    resident, described = story.resident, story.run.dataset.describe()
    return {
        "run": story.run.folder.path,
        "report": story.report,
        "town": {key: described[key] for key in ("users", "items", "interactions", "fingerprint")},
        "consent": [{"choice": c.words(), "users": n, **_fields(c)} for c, n in story.choices],
        "protocol": story.evaluations[story.outcome.system].describe(),
        "system": story.outcome.system,
        "results": {label: e.summary() for label, e in story.evaluations.items()},
        "resident": {
            "user": resident.name,
            "attributes": resident.attributes,
            "choice": resident.choice.words(),
            "visited": resident.visited,
            "recommendations": resident.recommendations,
            "visited_later": resident.visited_later,
            "sent": output.totals_json(resident.sent),
        },
        "ledger": output.totals_json(story.sent),
        "seconds": round(story.outcome.seconds, 3),
    }


def _fields(choice: Any) -> dict[str, Any]:
    return {"takes_part": choice.takes_part, "share_positives": choice.share_positives}


def _tell(story: Story) -> None:
    from sottovoce.evaluation.tables import Column, Table
    from sottovoce.run_tables import readable_bytes

    described, resident, sent = story.run.dataset.describe(), story.resident, story.resident.sent
    people = sum(count for _, count in story.choices)
    attributes = ", ".join(f"{key} {value}" for key, value in resident.attributes.items() if value)
    places = Table(
        f"Recommended to {resident.name}, computed on the device",
        [Column("#"), Column("place"), Column("category"), Column("later", "went there later")],
        [
            {
                "#": place.rank,
                "place": place.title,
                "category": ", ".join(place.categories),
                "later": "yes" if later else "",
            }
            for place, later in zip(
                resident.recommendations, resident.visited_later, strict=True
            )
        ],
    )
    output.show(
        f"The town: {described['users']:,} residents, {described['items']:,} venues, "
        f"{described['interactions']:,} visits in a year (made up, from a seed).",
        "",
        "What the residents chose:",
        *[f"  {n:5,} ({n / people:4.0%})  {choice.words()}" for choice, n in story.choices],
        "",
        story.table,
        "pFPL+ sees what the residents permit; the baselines above it see every visit.",
        "",
        f"One resident, {resident.name} ({attributes}): {resident.choice.words()}.",
        f"Some of the {resident.visits} places visited, the latest first:",
        *[f"  {place.title} ({', '.join(place.categories)})" for place in resident.visited],
        "",
        places,
        f"What left this device: {sent.releases:,} releases with {sent.positive_rows:,} rows for "
        f"visited places and {sent.negative_rows:,} rows for other places, "
        f"{readable_bytes(sent.bytes)} in all.",
        f"What left all devices: {story.sent.releases:,} releases, "
        f"{story.sent.positive_rows:,} rows for visited places, "
        f"{readable_bytes(story.sent.bytes)}.",
        "To be honest: the share of positives as the paper has it does not hide the others from a "
        "curious server,",
        "which can compute them from the rest of a report; see docs/privacy.md. "
        "Only who does not take part sends nothing.",
        "",
        f"Report: {story.report}",
        f"Next:   sottovoce recommend {story.run.folder.path} --user {resident.name}",
        f"        sottovoce ledger {story.run.folder.path} --user {resident.name}",
    )


# --- data ----------------------------------------------------------------------------------------


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """Data sets that experiments can name.

    Looks in $SOTTOVOCE_DATA, then in the user cache. The town is generated and always there.

    \b
    Example:
      sottovoce data list
    """
    from sottovoce.data import available
    from sottovoce.evaluation.tables import Column, Table

    found = available()
    if as_json:
        output.emit({"data": [{"name": name, "folder": place} for name, place in found.items()]})
        return
    rows = [
        {"name": name, "where": "generated from a seed" if place is None else str(place)}
        for name, place in found.items()
    ]
    output.show(
        Table("Data sets", [Column("name"), Column("where")], rows),
        "Add one with: sottovoce data import NAME PATH",
    )


@data_app.command("describe")
def data_describe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `data list`.")],
    as_json: Json = False,
) -> None:
    """Size, density, attributes, categories, fingerprint and origin of a data set.

    \b
    Example:
      sottovoce data describe town
    """
    from sottovoce.data import load

    described = load(name).describe()
    if as_json:
        output.emit(described)
    else:
        width = max(len(key) for key in described)
        output.show(*[f"{key:<{width}}  {_words(value)}" for key, value in described.items()])


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list):
        return " to ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value or "none")


@data_app.command("import")
def data_import(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call the data set.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A zip, a folder or one file.")],
    kind: Annotated[
        str, typer.Option(help="What it is; `auto` tells it by its files. A wrong one lists all.")
    ] = "auto",
    country: Annotated[
        str | None, typer.Option(help="Foursquare: two-letter country of the venues.")
    ] = None,
    keep: Annotated[
        Literal["first", "last"], typer.Option(help="Which of repeated events counts.")
    ] = "last",
    min_user_items: Annotated[
        int | None, typer.Option(min=1, help="Drop users with fewer items.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older import.")] = False,
    as_json: Json = False,
) -> None:
    """Turn an official download or a table into a data set that experiments can name.

    Knows MovieLens (100k, 1M, 10M, CSV), Foursquare TIST2015, Douban Book, and single CSV, TSV or
    Parquet files. Writes to $SOTTOVOCE_DATA, else to the user cache. Their licences do not allow to
    pass these data on.

    \b
    Examples:
      sottovoce data import ml-1m ml-1m.zip
      sottovoce data import italy dataset_TIST2015.zip --country IT --min-user-items 20
      sottovoce data import mine visits.csv
    """
    from sottovoce.data import import_path, prepared_folder, write_prepared

    folder = prepared_folder(name)
    with output.interruptible(as_json, f"nothing was imported as {name}; start again"):
        dataset = import_path(
            path, kind, name=name, country=country, keep=keep, min_user_items=min_user_items
        )
        write_prepared(dataset, folder, overwrite=overwrite)
    if as_json:
        output.emit({**dataset.describe(), "folder": folder})
    else:
        table = dataset.interactions
        output.show(
            f"{name}: {table.n_users:,} users, {table.n_items:,} items, "
            f"{table.n_interactions:,} interactions, in {folder}"
        )


# --- run -----------------------------------------------------------------------------------------


@app.command()
def run(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="An experiment file, or the name of an installed one."),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=c", help="Change one value of the file; repeatable."),
    ] = None,
    engine: Annotated[
        Literal["simulation", "https", "flower"], typer.Option(help="How messages travel.")
    ] = "simulation",
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to compute.")] = "cpu",
    threads: Threads = None,
    out: Out = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the same run where it stopped.")
    ] = False,
    transcript: Annotated[
        bool, typer.Option("--transcript", help="Keep every message the server gets (large).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train and evaluate one experiment; leave a run folder with its report.

    The folder is runs/NAME by default. A run that was stopped, even by a kill, goes on with
    --resume from its last checkpoint and ends with the same model, ledger and figures as one that
    was never stopped. A folder that holds another run is refused.

    \b
    Examples:
      sottovoce run presets/pfpl-plus
      sottovoce run my.toml --set algorithm.epochs=5 --set consent.share_positives=0.1
      sottovoce run my.toml --out runs/mine --resume
    """
    from sottovoce import experiment_files
    from sottovoce.experiment import Experiment, run_experiment
    from sottovoce.recommender import default_threads
    from sottovoce.run_report import write_run_report
    from sottovoce.run_tables import results_table

    if engine != "simulation":
        raise UsageError(f"the {engine} engine is not there yet; use --engine simulation")
    if device != "cpu":
        raise UsageError(f"computing on {device} is not there yet; use --device cpu")
    experiment = Experiment.from_file(experiment_files.find(file), settings or [])
    place = out or Path("runs") / experiment.name
    advice = f"go on with the same command and --resume; the run is kept in {place}"
    with output.interruptible(as_json, advice), output.progress() as report:
        outcome = run_experiment(
            experiment,
            place,
            resume=resume,
            threads=threads or default_threads(),
            transcript=transcript,
            report=report,
        )
        report("report", 0, 1)
        page = write_run_report(outcome)
        report("report", 1, 1)
    if as_json:
        manifest = outcome.folder.manifest() if outcome.folder is not None else {}
        output.emit(
            {
                "run": place,
                "name": experiment.name,
                "system": outcome.system,
                "data": outcome.dataset.name,
                "protocol": manifest["protocol"],
                "results": manifest["results"],
                "ledger": manifest["ledger"],
                "report": page,
                "seconds": round(outcome.seconds, 3),
            }
        )
    else:
        title = f"{experiment.name}: {outcome.system} on {outcome.dataset.name}"
        output.show(
            results_table(outcome.evaluations, title), f"Run:    {place}", f"Report: {page}"
        )


# --- looking at runs -----------------------------------------------------------------------------


@app.command()
def recommend(
    folder: Run,
    user: Annotated[str, typer.Option("--user", metavar="ID", help="The user's id in the data.")],
    n: Annotated[int, typer.Option("-n", help="How many.")] = 10,
    as_json: Json = False,
) -> None:
    """Recommendations for one user, as her device computes them.

    Uses the user's own vector and history, which a simulation keeps in the run folder, and the
    published model. Scores order one user's items; they mean nothing across users.

    \b
    Example:
      sottovoce recommend runs/demo --user r0003 -n 5
    """
    from sottovoce.evaluation.tables import Column, Table
    from sottovoce.run_views import FinishedRun

    opened = FinishedRun.open(folder)
    found = opened.recommend(user, n)
    if as_json:
        output.emit({"run": folder, "user": user, "recommendations": found})
        return
    rows = [
        {
            "#": place.rank,
            "item": place.item,
            "title": place.title,
            "category": ", ".join(place.categories),
            "score": place.score,
        }
        for place in found
    ]
    columns = [
        Column("#"),
        Column("item"),
        Column("title"),
        Column("category"),
        Column("score", format=".3f"),
    ]
    output.show(Table(f"Recommended to {user}", columns, rows))


@app.command()
def ledger(
    folder: Run,
    user: Annotated[
        str | None, typer.Option("--user", metavar="ID", help="One user's releases, round by round.")
    ] = None,
    by: Annotated[
        Literal["choice", "user", "round"], typer.Option(help="How to sum all users' releases.")
    ] = "choice",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, every line of it.")] = False,
    as_json: Json = False,
) -> None:
    """What left the devices: releases, rows for positive and negative items, bytes, privacy cost.

    The cost ε is what the release can vouch for; "none" (null in JSON) where it can vouch for
    nothing, as with every FPL release.

    \b
    Examples:
      sottovoce ledger runs/demo
      sottovoce ledger runs/demo --by round --csv
      sottovoce ledger runs/demo --user r0003
    """
    from sottovoce import ledger as ledgers
    from sottovoce.run_tables import ledger_table, readable_bytes
    from sottovoce.run_views import FinishedRun

    if csv and as_json:
        raise UsageError("choose one of --csv and --json")
    opened = FinishedRun.open(folder)
    number = None if user is None else opened.user(user)
    totals = ledgers.user_totals(opened.ledger(number))
    lines = opened.ledger_by(by) if number is None else opened.ledger_of(number)
    grouping = by if number is None else "round"
    if as_json:
        head = {"run": folder} if user is None else {"run": folder, "user": user}
        if number is not None:
            head |= {"choice": opened.consent.row(number).words()}
        rows = [{grouping: x.label, "devices": x.devices, **output.plain(x.totals)} for x in lines]
        output.emit({**head, "totals": output.totals_json(totals), "by": grouping, "lines": rows})
        return
    if csv:
        print(ledger_table(lines, grouping).to_csv(), end="")
        return
    who = "all devices" if number is None else f"the device of {user}"
    if number is not None:
        output.show(f"{user}: {opened.consent.row(number).words()}.")
    cost = "none" if totals.epsilon == float("inf") else f"{totals.epsilon:g}"
    output.show(
        f"What left {who}: {totals.releases:,} releases, {totals.positive_rows:,} positive rows, "
        f"{totals.negative_rows:,} negative rows, {readable_bytes(totals.bytes)}.",
        f"Privacy cost we can vouch for: {cost if totals.releases else '0 (nothing was sent)'}.",
    )
    if lines:
        output.show(ledger_table(lines, grouping, most=20))


@app.command("report")
def report_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")
    ],
    out: Out = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the results as CSV.")] = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Tables and plots of one run, or of several side by side.

    One run gets its report.html written again. Several are compared: results with significance,
    what left the devices, and a report in --out (runs/comparison by default). Runs on different data
    or under different protocols are told apart and a warning says so.

    \b
    Examples:
      sottovoce report runs/demo
      sottovoce report runs/pfpl-plus runs/sfpl --markdown
    """
    from sottovoce.recommender import default_threads
    from sottovoce.run_comparison import compare_runs
    from sottovoce.run_report import write_run_report

    if markdown + csv + as_json > 1:
        raise UsageError("choose one of --markdown, --csv and --json")
    cores = threads or default_threads()
    with output.interruptible(as_json, "no report was written; the runs are as they were"):
        place = out or (folders[0] if len(folders) == 1 else Path("runs/comparison"))
        if len(folders) == 1:
            write_run_report(folders[0], threads=cores)
        found = compare_runs(folders, place, threads=cores, write=place != folders[0])
    for warning in found.warnings:
        output.note(f"warning: {warning}")
    if as_json:
        output.emit({"report": found.report, "warnings": found.warnings, "runs": found.rows})
    elif markdown:
        print("\n".join(table.to_markdown() for table in found.tables))
    elif csv:
        print("\n".join(table.to_csv() for table in found.tables), end="")
    else:
        output.show(*found.tables, f"Report: {found.report}")


# --- published results and speed -----------------------------------------------------------------


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A published table or figure.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Say which there are.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer settings and epochs: minutes instead of hours.")
    ] = False,
    out: Out = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """One published table or figure beside our figures, with its claims tested.

    \b
    Examples:
      sottovoce reproduce --list
      sottovoce reproduce fpl-table-2-italy --quick
    """
    from sottovoce import reproduce as published
    from sottovoce.recommender import default_threads

    if listing or name is None:
        if as_json:
            output.emit({"names": published.NAMES})
        else:
            width = max((len(known) for known in published.NAMES), default=0)
            output.show(*[f"{known:<{width}}  {text}" for known, text in published.NAMES.items()])
        return
    if name not in published.NAMES:
        raise UsageError(f"nothing is called {name}; there are {', '.join(published.NAMES)}")
    place = out or Path("runs") / name
    advice = f"start it again with the same command; what is done is kept in {place}"
    with output.interruptible(as_json, advice), output.progress() as report:
        found = published.run(
            name, quick=quick, out=place, threads=threads or default_threads(), report=report
        )
    tables = found.pop("tables", [])
    if as_json:
        output.emit(found)
        return
    output.show(*tables)
    for claim in found.get("claims", []):
        verdict = "holds" if claim["holds"] else "does not hold"
        output.show(f"{verdict}: {claim['claim']} ({claim['detail']})")
    output.show(f"Report: {found['report']}")


@app.command()
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A benchmark, such as fpl.")],
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes: a rough figure.")] = False,
    as_json: Json = False,
) -> None:
    """Measure speed beside a named peer, in the same run on this machine.

    \b
    Examples:
      sottovoce bench fpl
      sottovoce bench fpl --quick --json
    """
    from sottovoce import benchmark_files
    from sottovoce.evaluation.tables import Column, Table

    module = benchmark_files.load(name)
    with output.interruptible(as_json, "nothing is kept of a benchmark; start it again"):
        found = module.run(quick=quick, progress=output.note)
    if as_json:
        output.emit(found)
        return
    keys = ("name", "value", "unit", "peer", "ratio", "target", "met")
    shown = [{k: row.get(k) for k in keys} for row in found["results"]]
    formats = {"value": ",.4g", "ratio": ".2f", "target": ".2f"}
    columns = [Column(k, format=formats.get(k, "")) for k in keys]
    output.show(Table(f"{found['bench']} on {_words(found['machine'])}", columns, shown))


if __name__ == "__main__":
    main()
