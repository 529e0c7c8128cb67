"""`sottovoce budget`: what a user's noisy reports cost her in all, before she sends any."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json
from sottovoce.errors import UsageError
from sottovoce.privacy.statements import (
    ASSUMED,
    certificate_table,
    chain_sentences,
    draw_certificates,
    fitting_text,
    grid,
    places,
    sentences,
)


def budget(
    epsilon: Annotated[float, typer.Option(help="ε of one report, such as 2.5.")],
    reports: Annotated[int, typer.Option(help="Reports of a device in each round, k.")],
    rounds: Annotated[int, typer.Option(help="Rounds in which it reports, T.")],
    users: Annotated[int, typer.Option(help="Users in the smallest batch: those who report.")],
    delta: Annotated[
        float, typer.Option(help="The chance with which the figure with a shuffler may fail.")
    ] = 1e-6,
    shufflers: Annotated[
        int,
        typer.Option(
            min=1,
            max=16,
            help="How many shufflers a chain has: also say what holds if some collude.",
        ),
    ] = 1,
    limit: Annotated[
        float | None, typer.Option(help="Also say how many rounds keep to this total ε.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.png", help="Draw ε against rounds, as PNG and SVG."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what noisy reports cost one user in total, with and without trust in the shuffler.

    There are two certificates. Without a trusted shuffler the cost is reports × ε × rounds, against
    anyone who knows which reports are hers. With a shuffler that does not collude with the server
    it is the clone bound of 2021, composed over all reports. The optimistic figure is the bound of
    2023, which is not proved for every kind of report: it is for comparison only.

    ε says how much more likely what somebody sees can be with her data than with any other data:
    at most e^ε times. Below 1 is strong; above 10 protects nothing.

    In a chain of shufflers the second certificate holds as long as one of them does not collude;
    with --shufflers it is said for every number of those who do.

    \b
    Examples:
      sottovoce budget --epsilon 2.5 --reports 100 --rounds 20 --users 6040
      sottovoce budget --epsilon 1 --reports 10 --rounds 20 --users 6040 --limit 2
      sottovoce budget --epsilon 1 --reports 10 --rounds 20 --users 6040 --shufflers 3
      sottovoce budget --epsilon 2.5 --reports 100 --rounds 20 --users 75040 --out budget.png
    """
    from sottovoce.privacy.accountant import certificates, certify, holding, rounds_within

    _check_out(out)
    asked = certify(epsilon, reports, rounds, users, delta)
    fitting = None if limit is None else rounds_within(limit, epsilon, reports, users, delta)
    rows = certificates(epsilon, reports, grid(rounds, reports), users, delta)
    figures = None
    if out is not None:
        curve = certificates(epsilon, reports, places(rows[-1].rounds), users, delta)
        figures = draw_certificates(out, curve, [row.rounds for row in rows], limit)
    said = sentences(asked)
    chain = holding(asked, shufflers) if shufflers > 1 else []
    if as_json:
        content: dict[str, Any] = {
            "certificate": asked,
            "table": rows,
            "sentences": said,
            "assumes": ASSUMED,
        }
        if chain:
            content["chain"] = {"holding": chain, "sentences": chain_sentences(chain)}
        if fitting is not None:
            content["rounds_within"] = fitting
        output.emit(content | ({"figures": figures} if figures else {}))
        return
    more = chain_sentences(chain) if chain else []
    output.show(certificate_table(rows, asked), *said.values(), *ASSUMED, *more)
    if fitting is not None:
        output.show(fitting_text(fitting, reports))
    if figures is not None:
        output.show(f"Figure: {figures.png} and {figures.svg}")


def _check_out(out: Path | None) -> None:
    if out is None:
        return
    if out.suffix.lower() not in (".png", ".svg"):
        raise UsageError(f"--out {out} must end in .png or .svg; both are written")
    if out.is_dir():
        raise UsageError(f"--out {out} is a folder; give the name of a file")
