"""What certificates say: in sentences for the person who pays, in a table, in a figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from sottovoce.evaluation.plots import Figures

_WEAK = math.log(100)
NOTHING = 10.0
"""ε above which nothing is protected."""
_FEW, _ALL = 75.0, 99.0
"""Right guesses of 100 up to which somebody is protected, and above which nobody is."""

Verdict = Literal["good", "weak", "nothing"]


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


def bound_text(epsilon: float) -> str:
    """ε as text, rounded up."""
    from sottovoce.privacy.accountant import rounded_up

    return f"{rounded_up(epsilon):,.10g}"


def count_of(number: int, what: str) -> str:
    """A number and its noun."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


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


def draw_totals(
    out: Path,
    title: str,
    curves: Iterable[tuple[Sequence[int], Curve]],
    ticks: Sequence[int],
    delta: float,
) -> Figures:
    """Total ε against rounds, both axes logarithmic."""
    from sottovoce.evaluation import plots

    with plots.drawing(out, title, (6.4, 4.2)) as (figure, axes):
        for rounds, (name, values, colour, style, marker) in curves:
            positive = [value if value > 0 else math.nan for value in values]
            axes.plot(rounds, positive, color=colour, linestyle=style, linewidth=1.6,
                      marker=marker, markersize=4, label=name)  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="rounds", ylabel=f"total ε, δ = {delta:g}")
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,g}")
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return plots.figure_files(out)
