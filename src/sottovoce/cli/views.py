"""`sottovoce recommend | ledger | report`: looking at finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json, Out, Run, Threads
from sottovoce.errors import UsageError


def recommend(
    folder: Run,
    user: Annotated[
        str | None, typer.Option("--user", metavar="ID", help="The user's id in the data.")
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(
            metavar="ID,ID,…", help="Items of a person who was never in training, oldest first."
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with her items: CSV with a column item and perhaps a time, one item a "
            "line, or a JSON list.",
        ),
    ] = None,
    n: Annotated[int, typer.Option("-n", help="How many items.")] = 10,
    as_json: Json = False,
) -> None:
    """Recommend to one user, or to a new person, as her device does.

    RUN is the folder of a finished run. If it has several seeds, the first is taken, or the
    one whose folder is named (RUN/seed-2).

    It uses the published model and the user's own vector and history, which a simulation keeps in
    the run folder. In DRIFT it is the orchestrator that holds her vector and recommends, if she
    takes part. Scores order one user's items: 100 is the first place, 0 the average of all items
    that she does not have. They mean nothing across users. --json has the model's own numbers, too.

    With --items or --history it recommends to a person who was never in training. Her vector is
    computed from her items and the published model, as on a device that takes no part; nothing is
    sent. DRIFT cannot do that.

    \b
    Examples:
      sottovoce recommend runs/demo --user r00003 -n 5
      sottovoce recommend runs/demo --items v003,v010,v042
      sottovoce recommend runs/demo --history mine.csv --json
    """
    from sottovoce.runs.read import FinishedRun
    from sottovoce.runs.seeds import part_of
    from sottovoce.runs.tables import recommendations_table

    if sum(asked is not None for asked in (user, items, history)) != 1:
        raise UsageError("say to whom, by one of --user, --items and --history")
    told: list[str] | None = None
    if items is not None:
        told = [item.strip() for item in items.split(",") if item.strip()]
    elif history is not None:
        from sottovoce.data.importers.table import read_history

        told = read_history(history)
    opened = FinishedRun.open(part_of(folder))
    if user is not None:
        found = opened.recommend(user, n)
    else:
        found = opened.recommend_to(told or [], n)
    if as_json:
        whom: dict[str, object] = {"user": user} if told is None else {"history": told}
        output.emit({"run": folder, **whom, "recommendations": found})
        return
    output.show(recommendations_table({user or "": found}))


def ledger(
    folder: Run,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="ID", help="One user's releases, by round or data owner."),
    ] = None,
    by: Annotated[
        Literal["choice", "user", "round", "owner"],
        typer.Option(help="How to sum all users' releases."),
    ] = "choice",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, every line of it.")] = False,
    as_json: Json = False,
) -> None:
    """Say what left the devices: releases, rows or randomised reports, bytes, privacy cost.

    RUN is the folder of a finished run. If it has several seeds, the first is taken, or the
    one whose folder is named (RUN/seed-2).

    The cost ε is the bound that the releases can vouch for: "none" (null in JSON) for every FPL or
    FCF release, and 0 if nothing was sent. With --user, randomised reports have two certificates:
    the plain sum, which assumes nothing, and the one with a shuffler that does not collude.

    In DRIFT, interactions go to data owners, who read them: there is no bound either. Every epoch
    sends them again, and each message is counted. With --by owner you see who read how many.

    \b
    Examples:
      sottovoce ledger runs/demo
      sottovoce ledger runs/demo --by round --csv
      sottovoce ledger runs/demo --user r00003
      sottovoce ledger runs/movielens-100k-drift --by owner
    """
    from sottovoce.cli import spent
    from sottovoce.core import ledger as ledgers
    from sottovoce.runs.read import FinishedRun
    from sottovoce.runs.seeds import part_of
    from sottovoce.runs.tables import ledger_csv, ledger_table

    if csv and as_json:
        raise UsageError("choose one of --csv and --json")
    opened = FinishedRun.open(part_of(folder))
    number = None if user is None else opened.user(user)
    totals = ledgers.totals_of(opened.ledger(number))
    grouping, lines = (by, opened.ledger_by(by)) if number is None else opened.ledger_of(number)
    unprotected, budget = opened.experiment.algorithm.caveats(), None
    if number is not None:
        budget = spent.of_ledger(opened.ledger(number), opened.consent.row(number))
    if as_json:
        head: dict[str, object] = {"run": folder}
        if unprotected:
            head["not_protected"] = "\n\n".join(unprotected)
        if number is not None:
            head |= {"user": user, "choice": opened.describe_choice(opened.consent.row(number))}
            head |= {"budget": budget and budget.to_table()}
        rows = [{grouping: x.label, "devices": x.devices, **output.plain(x.totals)} for x in lines]
        output.emit({**head, "totals": output.totals_json(totals), "by": grouping, "lines": rows})
        return
    if csv:
        print(ledger_csv(lines, grouping), end="")
        return
    if number is not None:
        output.show(f"{user}: {opened.describe_choice(opened.consent.row(number))}.")
    most = None if number is not None else float(opened.ledger_per_user().epsilon.max(initial=0.0))
    if opened.experiment.silo is None:
        who = "all devices" if number is None else f"the device of {user}"
        output.show(spent.what_left(who, totals), spent.bound_line(totals, most))
    else:
        who = "all users" if number is None else str(user)
        output.show(spent.what_owners_read(who, totals), spent.bound_line(totals, most))
    output.show(*unprotected)
    output.show(*(budget.lines() if budget else ()))
    if lines:
        what: Literal["rows", "interactions"] = "interactions" if opened.experiment.silo else "rows"
        output.show(ledger_table(lines, grouping, most=20, what=what))


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")
    ],
    out: Out = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the results as CSV.")] = False,
    latex: Annotated[
        bool, typer.Option("--latex", help="Print tables for LaTeX (package booktabs).")
    ] = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Make tables and plots of one run, or of several side by side.

    RUN is the folder of a finished run, or of a search (`sottovoce tune`).

    One run gets its report.html written again, and so does a search. Several runs are compared:
    results with significance, what left the devices, and a report in --out (by default `comparison`
    in the first run's folder). Runs on different data or under different protocols are told apart
    and a warning says so.

    Runs and baselines are held against the first run by a paired t-test over users; p is Holm's,
    over all tests of a table. A run with several seeds has their mean and its 95 % interval; users
    are then paired seed by seed. A run keeps averages alone, so that baselines are fitted again.

    \b
    Examples:
      sottovoce report runs/demo
      sottovoce report runs/papers-fpl runs/tuned-fpl --markdown
      sottovoce report runs/papers-fpl runs/tuned-fpl --latex > results.tex
    """
    from sottovoce.core.recommender import default_threads
    from sottovoce.runs.compare import compare_runs
    from sottovoce.runs.folder import check_writable
    from sottovoce.runs.report import outcome_of, write_run_report
    from sottovoce.runs.seeds import parts_of
    from sottovoce.runs.tune import is_search

    if markdown + csv + latex + as_json > 1:
        raise UsageError("choose one of --markdown, --csv, --latex and --json")
    if len(folders) == 1 and is_search(folders[0]):
        kind = "markdown" if markdown else "csv" if csv else "latex" if latex else ""
        _report_search(folders[0], out, kind, as_json)
        return
    cores = threads or default_threads()
    advice = "no report was written; the runs are as they were"
    with output.interruptible(advice), output.progress() as tell:
        single = len(folders) == 1
        place = out or (folders[0] if single else folders[0] / "comparison")
        check_writable(place)
        known = {}
        parts = parts_of(folders[0]) if single else {}
        for part in parts.values():
            outcome = outcome_of(part, cores, tell)
            write_run_report(outcome)
            known[part] = outcome.evaluations
        write = len(parts) != 1 or out is not None
        found = compare_runs(folders, place, threads=cores, write=write, known=known, report=tell)
    for warning in found.warnings:
        output.note(f"warning: {warning}")
    if as_json:
        output.emit(
            {
                "report": found.report,
                "warnings": found.warnings,
                "runs": found.rows,
                "baselines": found.baselines,
                "significance": found.significance,
            }
        )
    elif markdown:
        print("\n".join(table.to_markdown() for table in found.tables))
    elif latex:
        print("\n".join(table.to_latex() for table in found.tables), end="")
    elif csv:
        print("\n".join(table.to_csv() for table in found.tables), end="")
    else:
        output.show(*found.tables, f"Report: {found.report}")


def _report_search(folder: Path, out: Path | None, kind: str, as_json: bool) -> None:
    """The page of a search, and its finalists."""
    from sottovoce.runs.tune import reopened, summary_of
    from sottovoce.runs.tune_report import finalists_table, write_search_report

    if out is not None:
        raise UsageError("the report of a search is written into its folder; leave out --out")
    found = reopened(folder)
    page, table = write_search_report(found), finalists_table(found)
    if as_json:
        output.emit({"folder": folder, **summary_of(found), "report": page})
    elif kind:
        print(getattr(table, f"to_{kind}")())
    else:
        output.show(table, " ".join(found.cost.words()), f"Report: {page}")
