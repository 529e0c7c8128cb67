"""What certificates say: in sentences for the person who pays, in a table, in a figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from sottovoce.evaluation.plots import Figures
    from sottovoce.evaluation.tables import Table
    from sottovoce.privacy.accountant import Certificate, Holding, RoundsWithin

WITHOUT, WITH, OPTIMISTIC = "without a trusted proxy", "with a proxy", "optimistic"
ASSUMED = (
    "The figure with a proxy holds if the proxy does not collude with the server, if all users of "
    "a batch send with the same ε, and if no batch has fewer honest users than --users.",
    "Every figure compares all your data with any others in their place, among the same users.",
)
_WEAK = math.log(100)
NOTHING = 10.0
"""ε above which nothing is protected."""
_FEW, _ALL = 75.0, 99.0
"""Right guesses of 100 up to which somebody is protected, and above which nobody is."""

Verdict = Literal["good", "weak", "nothing"]


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


def guess(epsilon: float, delta: float = 0.0) -> float:
    """In how many of 100 cases ε permits a guess between two to be right, at worst: of reports with
    randomised bits by their ratio; with a δ, of a Gaussian sum by Φ(μ/2). A coin has 50."""
    if epsilon <= 0:
        return 50.0
    if not delta or math.isinf(epsilon):
        return 100.0 / (1.0 + math.exp(-epsilon))
    from statistics import NormalDist

    from sottovoce.privacy.own_epsilon import distance

    return 100.0 * NormalDist().cdf(distance(epsilon, delta) / 2)


def verdict(epsilon: float, delta: float = 0.0) -> Verdict:
    """What a limit of ε is worth to the person whose limit it is."""
    right = guess(epsilon, delta)
    if epsilon > NOTHING or right > _ALL:
        return "nothing"
    return "good" if right <= _FEW else "weak"


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


def chain_sentences(found: Sequence[Holding]) -> list[str]:
    """What holds with so many dishonest shufflers of a chain, and what they can do all the same."""
    last, many = found[-1], found[-1].dishonest
    honest = found[0]
    upto = "none of them works" if many == 1 else f"at most {many - 1} of them work"
    return [
        f"With {count_of(many, 'shuffler')}: if {upto} with the server, ε = "
        f"{bound_text(honest.epsilon)}, but for a chance of {_chance(honest.delta)}; if "
        f"{'it does' if many == 1 else f'all {many} do'}, ε = {bound_text(last.epsilon)}.",
        "A dishonest first shuffler, or the server, can fill a batch with devices of its own: "
        "--users counts honest users alone. Any dishonest shuffler can leave reports out.",
    ]


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


def fitting_text(found: RoundsWithin, reports: int) -> str:
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


def certificate_table(rows: Sequence[Certificate], asked: Certificate) -> Table:
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


class Curve(NamedTuple):
    """Total ε by rounds, and how its line looks."""

    name: str
    values: Sequence[float]
    colour: str
    style: str = "-"
    marker: str = ""


def places(most: int, steps: int = 24) -> list[int]:
    """Numbers of rounds at which a curve is drawn, evenly spread on a logarithmic axis."""
    return sorted({round(most ** (step / steps)) for step in range(steps + 1)} | {1, most})


def draw_certificates(
    out: Path, curve: Sequence[Certificate], ticks: Sequence[int], limit: float | None
) -> Figures:
    """ε against rounds; the optimistic figure is dashed and grey."""
    from sottovoce.evaluation import plots

    first, grey = curve[0], plots.SOFT
    sent, crowd = count_of(first.reports, "report"), count_of(first.users, "user")
    curves = [
        Curve(WITHOUT, [row.without_proxy for row in curve], plots.PALETTE[1], "-", "s"),
        Curve(WITH, [row.with_proxy for row in curve], plots.PALETTE[0], "-", "o"),
        Curve(f"{OPTIMISTIC} (no certificate)", [row.optimistic for row in curve], grey, "--"),
    ]
    rounds = [row.rounds for row in curve]
    title = f"{sent} of ε = {first.epsilon:g} a round, {crowd}"
    return draw_totals(out, title, [(rounds, one) for one in curves], ticks, first.delta, limit)


def draw_totals(
    out: Path,
    title: str,
    curves: Iterable[tuple[Sequence[int], Curve]],
    ticks: Sequence[int],
    delta: float,
    limit: float | None = None,
    small: bool = False,
) -> Figures:
    """Total ε against rounds, both axes logarithmic."""
    from sottovoce.evaluation import plots

    with plots.drawing(out, title, (6.4, 4.2)) as (figure, axes):
        for rounds, (name, values, colour, style, marker) in curves:
            positive = [value if value > 0 else math.nan for value in values]
            axes.plot(rounds, positive, color=colour, linestyle=style, linewidth=1.6,
                      marker=marker, markersize=4, label=name)  # fmt: skip
        if limit is not None:
            axes.axhline(limit, color=plots.SOFT, linestyle=":", linewidth=1.2,
                         label=f"limit {limit:g}")  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="rounds", ylabel=f"total ε, δ = {delta:g}")
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,g}")
        more = {"fontsize": 8} if small else {}
        figure.legend(loc="outside lower center", ncols=2, frameon=False, **more)
    return plots.figure_files(out)
