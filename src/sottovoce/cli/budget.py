"""`sottovoce budget`: what a user's noisy reports cost her in all, before she sends any."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.evaluation.plots import Figures
    from sottovoce.evaluation.tables import Table
    from sottovoce.privacy.accountant import Certificate, RoundsWithin

WITHOUT, WITH, OPTIMISTIC = "without a trusted proxy", "with a proxy", "optimistic"
ASSUMED = (
    "The figure with a proxy holds if the proxy does not collude with the server, if all users of "
    "a batch send with the same ε, and if no batch has fewer honest users than --users.",
    "Every figure compares all your data with any others in their place, among the same users.",
)
_WEAK = math.log(100)
NOTHING = 10.0
"""ε above which nothing is protected."""


def budget(
    epsilon: Annotated[float, typer.Option(help="ε of one report, such as 2.5.")],
    reports: Annotated[int, typer.Option(help="Reports of a device in each round, k.")],
    rounds: Annotated[int, typer.Option(help="Rounds in which it reports, T.")],
    users: Annotated[int, typer.Option(help="Users in the smallest batch: those who report.")],
    delta: Annotated[
        float, typer.Option(help="The chance with which the figure with a proxy may fail.")
    ] = 1e-6,
    limit: Annotated[
        float | None, typer.Option(help="Also say how many rounds keep to this total ε.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.png", help="Draw ε against rounds, as PNG and SVG."),
    ] = None,
    as_json: Json = False,
) -> None:
    """What noisy reports cost one user in total, with and without trust in the proxy.

    Two certificates. Without a trusted proxy the cost is reports × ε × rounds, against anyone who
    knows which reports are hers. With a proxy that does not collude with the server it is the
    clone bound of 2021, composed over all reports. The optimistic figure is the bound of 2023,
    which is not proved for every kind of report: it is for comparison only.

    ε says how much more likely what somebody sees can be with her data than with any other data:
    at most e^ε times. Below 1 is strong; above 10 protects nothing.

    \b
    Examples:
      sottovoce budget --epsilon 2.5 --reports 100 --rounds 20 --users 6040
      sottovoce budget --epsilon 1 --reports 10 --rounds 20 --users 6040 --limit 2
      sottovoce budget --epsilon 2.5 --reports 100 --rounds 20 --users 75040 --out budget.png
    """
    from sottovoce.privacy.accountant import certificates, certify, rounds_within

    _check_out(out)
    asked = certify(epsilon, reports, rounds, users, delta)
    fitting = None if limit is None else rounds_within(limit, epsilon, reports, users, delta)
    rows = certificates(epsilon, reports, grid(rounds, reports), users, delta)
    figures = None
    if out is not None:
        curve = certificates(epsilon, reports, _places(rows[-1].rounds), users, delta)
        figures = _draw(out, curve, [row.rounds for row in rows], limit)
    said = sentences(asked)
    if as_json:
        content: dict[str, Any] = {
            "certificate": asked,
            "table": rows,
            "sentences": said,
            "assumes": ASSUMED,
        }
        if fitting is not None:
            content["rounds_within"] = fitting
        output.emit(content | ({"figures": figures} if figures else {}))
        return
    output.show(_table(rows, asked), *said.values(), *ASSUMED)
    if fitting is not None:
        output.show(_fitting(fitting, reports))
    if figures is not None:
        output.show(f"Figure: {figures.png} and {figures.svg}")


def grid(rounds: int, reports: int) -> list[int]:
    """Numbers of rounds to show: 1, 5, 10, 20, 50 and so on to the first beyond those asked for."""
    from sottovoce.privacy.clones import MOST_REPORTS

    most = max(rounds, MOST_REPORTS // reports)
    chosen = {1, 5, rounds}
    decade = 10
    while max(chosen) <= rounds:
        for step in (1, 2, 5):
            chosen.add(step * decade)
            if step * decade > rounds:
                break
        decade *= 10
    return sorted(number for number in chosen if number <= most)


def odds(epsilon: float) -> str:
    """How much more likely ε lets a sight be, in words that follow "what somebody sees"."""
    compared = "with your data as with any other in their place"
    if epsilon <= 0:
        return f"is exactly as likely {compared}"
    if epsilon > NOTHING:
        shown = f"{math.ceil(epsilon * 10) / 10:,.10g}"
        digits = math.floor(epsilon / math.log(10)) + 1
        return (
            f"may be e^{shown} times as likely {compared}, a number of {digits:,} digits: this "
            "protects nothing"
        )
    factor = math.exp(epsilon)
    exact = 1000 if factor < 1.1 else 100 if factor < 10 else 1
    times = f"{math.ceil(factor * exact) / exact:,.10g}"
    weak = ", which is weak protection" if epsilon > _WEAK else ""
    return f"is at most {times} times as likely {compared}{weak}"


def sentences(asked: Certificate) -> dict[str, str]:
    """One sentence for each figure."""
    crowd = "1 user" if asked.users == 1 else f"{asked.users:,} honest users"
    but = f", but for a chance of {_chance(asked.delta)}" if asked.with_proxy <= NOTHING else ""
    gain = asked.with_proxy < 0.99 * asked.without_proxy
    return {
        "without_proxy": (
            f"Without a trusted proxy (ε = {bound_text(asked.without_proxy)}): what anyone sees "
            f"who knows which reports are yours {odds(asked.without_proxy)}."
        ),
        "with_proxy": (
            f"With a proxy (ε = {bound_text(asked.with_proxy)}): what a server sees in shuffled "
            f"batches of at least {crowd} {odds(asked.with_proxy)}{but}."
            + ("" if gain else " So few users hide nobody at this ε: shuffling gains nothing.")
        ),
        "optimistic": (
            f"Optimistic (ε = {bound_text(asked.optimistic)}): what the bound of 2023 would give "
            "if it held for these reports. This is no certificate."
        ),
    }


def bound_text(epsilon: float) -> str:
    """ε as text, rounded up."""
    from sottovoce.privacy.accountant import rounded_up

    return f"{rounded_up(epsilon):,.10g}"


def count_of(number: int, what: str) -> str:
    """A number and its noun."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _chance(delta: float) -> str:
    inverse = 1 / delta
    if delta < 1e-15 or abs(inverse - round(inverse)) > 1e-6 * inverse:
        return f"{delta:g}"
    return f"one in {round(inverse):,}"


def _fitting(found: RoundsWithin, reports: int) -> str:
    from sottovoce.privacy.clones import MOST_REPORTS

    def count(rounds: int) -> str:
        if rounds == 0:
            return "not even one round"
        least = "at least " if (rounds + 1) * reports > MOST_REPORTS else ""
        return least + count_of(rounds, "round")

    return (
        f"Within a limit of ε = {found.limit:g}: {count(found.without_proxy)} {WITHOUT}, "
        f"{count(found.with_proxy)} {WITH} ({count(found.optimistic)} by the optimistic figure)."
    )


def _table(rows: Sequence[Certificate], asked: Certificate) -> Table:
    from sottovoce.evaluation.tables import Cell, Column, Table, Value
    from sottovoce.privacy.accountant import rounded_up

    columns = [
        Column("rounds", format=","),
        Column("reports", "reports sent", format=","),
        Column("without", WITHOUT, format=",.10g"),
        Column("with", f"{WITH}, {count_of(asked.users, 'user')}", format=",.3f"),
        Column("optimistic", "optimistic, no certificate", format=",.3f"),
    ]
    shown: list[dict[str, Value | Cell]] = [
        {
            "rounds": Cell(row.rounds, " (asked)" if row.rounds == asked.rounds else ""),
            "reports": row.reports * row.rounds,
            "without": row.without_proxy,
            "with": rounded_up(row.with_proxy),
            "optimistic": rounded_up(row.optimistic),
        }
        for row in rows
    ]
    sent = count_of(asked.reports, "report")
    title = f"Total ε of one user who sends {sent} of ε = {asked.epsilon:g} a round"
    note = f"With a proxy: at δ = {asked.delta:g}, rounded up. Without: δ = 0."
    return Table(title, columns, shown, notes=[note])


def _places(most: int) -> list[int]:
    """Numbers of rounds at which the curve is drawn, evenly spread on a logarithmic axis."""
    steps = 24
    return sorted({round(most ** (step / steps)) for step in range(steps + 1)} | {1, most})


def _check_out(out: Path | None) -> None:
    if out is None:
        return
    if out.suffix.lower() not in (".png", ".svg"):
        raise UsageError(f"--out {out} must end in .png or .svg; both are written")
    if out.is_dir():
        raise UsageError(f"--out {out} is a folder; give the name of a file")


def _draw(
    out: Path, curve: Sequence[Certificate], ticks: Sequence[int], limit: float | None
) -> Figures:
    """ε against rounds, both axes logarithmic; the optimistic figure is dashed and grey."""
    from sottovoce.evaluation import plots

    first = curve[0]
    sent, crowd = count_of(first.reports, "report"), count_of(first.users, "user")
    title = f"{sent} of ε = {first.epsilon:g} a round, {crowd}"
    rounds = [row.rounds for row in curve]
    lines = (
        (WITHOUT, [row.without_proxy for row in curve], plots.PALETTE[1], "-", "s"),
        (WITH, [row.with_proxy for row in curve], plots.PALETTE[0], "-", "o"),
        (f"{OPTIMISTIC} (no certificate)", [row.optimistic for row in curve], "#57606a", "--", ""),
    )
    with plots.drawing(out, title, (6.4, 4.2)) as (figure, axes):
        for name, values, colour, style, marker in lines:
            positive = [value if value > 0 else math.nan for value in values]
            axes.plot(
                rounds,
                positive,
                color=colour,
                linestyle=style,
                marker=marker,
                markersize=4,
                linewidth=1.6,
                label=name,
            )
        if limit is not None:
            axes.axhline(
                limit, color="#57606a", linestyle=":", linewidth=1.2, label=f"limit {limit:g}"
            )
        axes.set(
            xscale="log", yscale="log", xlabel="rounds", ylabel=f"total ε, δ = {first.delta:g}"
        )
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,g}")
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return plots.figure_files(out)
