"""`sottovoce budget`: what any release would cost a user, before anything leaves."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json, Settings


def budget(
    file: Annotated[
        str,
        typer.Argument(
            metavar="[FILE]", help="An experiment file, or the name of an installed one."
        ),
    ] = "demo",
    settings: Settings = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Rounds (with gram, periods) in which a user sends; by default all of the file's.",
        ),
    ] = None,
    users: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Honest users in the smallest shuffled batch; by default the least that a tier "
            "permits.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what an experiment would cost each of its users in all, choice by choice.

    Nothing is trained, and no data are needed. FILE says what leaves and which choices users make;
    without it, it is the demo. There are two figures: one for parties that keep apart (the server
    and its helper, shuffler or aggregators), and one if they work together. A user whose limit is
    reached sends nothing more, and pays no more.

    ε says how much more likely what somebody sees can be with her data than with any other data:
    at most e^ε times. Below 1 is strong; above 10 protects nothing.

    \b
    Examples:
      sottovoce budget
      sottovoce budget sound/fmf --users 750
      sottovoce budget sound/fpl --rounds 20
      sottovoce budget my.toml --set release.max_reports=20 --set consent.total_epsilon=2
    """
    from sottovoce.experiment import Experiment, find_experiment
    from sottovoce.privacy.accountant import rounded_up
    from sottovoce.runs.foreseen import outlook

    experiment = Experiment.from_file(find_experiment(file), settings or [])
    found = outlook(experiment, users, rounds)
    said = found.sentences()
    rows = [
        {
            "choice": row.choice,
            "share": row.share,
            "each": row.each,
            "times": row.times,
            **{
                name: rounded_up(value) if math.isfinite(value) else None
                for name, value in (
                    ("epsilon_each", row.cost),
                    ("epsilon_apart", row.apart),
                    ("epsilon_together", row.together),
                )
            },
            "delta": row.delta,
            "batch": row.batch,
            "nothing_leaves": row.why_not,
        }
        for row in found.rows
    ]
    if as_json:
        output.emit(
            {
                "name": experiment.name,
                "system": experiment.system,
                "rows": rows,
                "words": said,
                "assumes": found.assumed,
                "not_protected": found.unprotected,
            }
        )
        return
    table = found.table(f"What {experiment.system} would cost a user of {experiment.name}")
    output.show(table, *said, *found.unprotected)
