"""`sottovoce attack`: what a run's promises are worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json, Run, Threads
from sottovoce.core.words import said
from sottovoce.errors import AttackFailed, UsageError


def attack(
    folder: Run,
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Look at so many rounds, and not a second time. By default every device is seen "
            "20 times, or 3 times if whole tables are sent openly; a second look has as "
            "many rounds as a verdict needs. With a secure sum the rounds reach to the end "
            "of the run.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="S",
            min=0,
            help="About how long a second look may take, if an attack saw too little for a "
            "verdict; 0 for no second look.",
        ),
    ] = 300.0,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="A1,A4", help="These attacks alone, by code or name.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE.html",
            help="The file for the report card, with its JSON beside it. By default these are "
            "report-card.html and attacks.json in the run's folder.",
        ),
    ] = None,
    canaries: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=100,
            max=100_000,
            help="Also audit the claimed ε in one more run of the same system with N planted "
            "devices (1,000, say).",
            show_default=False,
        ),
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Try every attack that applies to a run, against its base rate; leave a report card.

    RUN is the folder of a finished run. If it has several seeds, the first is taken, or the
    one whose folder is named (RUN/seed-2).

    Each attack gets what one party saw and nothing else: the server, the shuffler, data owners, the
    orchestrator, whoever watches the network, or anyone who knows what is published. What they saw
    is read from the run's transcript (run --transcript). If there is none, rounds are enacted
    again, which gives the same messages.

    With --canaries the same system is run once more with planted devices, each of which is in it or
    not by a coin. How well the server could tell is held against the ε that is claimed (fmf, and
    fcf over a secure sum with noise). A bound above the claim convicts; one below proves nothing.

    A promise is broken if the attack does better than the best guess without it, by its 95 %
    interval. It holds if the interval does not reach far above that. An attack between the two is
    underpowered. It says how many rounds or users a verdict would take, and looks a second time, at
    as many rounds as the run and --seconds allow. All of these are findings, and the exit code is
    0. An attack that falls over is an error: the others are run all the same, the card names it,
    and the exit code is not 0.

    \b
    Examples:
      sottovoce attack runs/demo
      sottovoce attack runs/demo --only A1,A3 --rounds 5
      sottovoce attack runs/reports --canaries 1000
      sottovoce attack runs/demo --json
    """
    from dataclasses import asdict, replace

    from sottovoce.core.recommender import default_threads
    from sottovoce.runs.attack import attack_run, audit_system
    from sottovoce.runs.card import JSON, PAGE, plain_promise, write_card
    from sottovoce.runs.folder import check_writable
    from sottovoce.runs.read import FinishedRun
    from sottovoce.runs.seeds import part_of

    folder = part_of(folder)
    page, content = folder / PAGE, folder / JSON
    if out is not None:
        if out.suffix != ".html" or out.is_dir():
            raise UsageError(f"--out must name an HTML file, such as card.html, not {out}")
        page, content = out, out.with_suffix(".json")
        check_writable(page.parent)
    codes = [] if only is None else [code.strip() for code in only.split(",") if code.strip()]
    if only is not None and not codes:
        raise UsageError("--only needs the codes of attacks, such as A1,A4")
    audit: dict[str, object] = {}
    audited: tuple[str, ...] = ()
    advice = "no report card was written; the run is as it was"
    with output.interruptible(advice), output.progress() as report:
        if canaries is not None:
            report("audit", 0, 1)
            run, many = FinishedRun.open(folder), threads or default_threads()
            found = audit_system(run.experiment, canaries, many, run.dataset)
            audit = asdict(found) | {"convicted": found.convicted}
            audited = (f"One-run audit: {found.describe()}.",)
            report("audit", 1, 1)
        card = attack_run(
            folder,
            rounds=rounds,
            seconds=seconds,
            only=codes,
            threads=threads or default_threads(),
            report=report,
        )
        card = replace(card, notes=(*card.notes, *audited))
        report("report", 0, 1)
        check_writable(page.parent)
        write_card(card, folder, page, content)
        report("report", 1, 1)
    for note in card.notes:
        output.note(f"note: {note}")
    if as_json:
        output.emit(card.content(folder) | ({"audit": audit} if audit else {}) | {"report": page})
        try:
            card.require_whole()
        except AttackFailed as error:  # the object above has it, too
            output.note(f"error: {error}")
            raise typer.Exit(error.exit_code) from None
        return
    output.show(output.joined(*card.summary()), "")
    for result, plain in zip(card.results, card.plainly(), strict=True):
        output.show(f"{result.code}: {output.joined(plain_promise(result))}")
        output.show(f"  {output.joined(*plain)}", "")
    output.show(output.joined(said("attack.card", path=str(page))))
    card.require_whole()
