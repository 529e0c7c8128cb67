"""Figures, each written as PNG and SVG. The same input gives the same files.

Ink, paper and lines have the colours of our pages; an SVG has those of the dark page, too. Colours
of curves are told apart by colour-blind readers (Okabe and Ito), and markers differ as well. The
four FPL configurations keep the colours of the paper: dark and light, blue and green.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce import core
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Formatter

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C6D31")
MARKERS = "os^DvP*X"
PAPER = {"sFPL": "#0B3C8C", "sFPL+": "#0F6B4F", "pFPL": "#56B4E9", "pFPL+": "#8FCB5C"}
FRONT = "#C00000"
LOOK = Path(core.__file__).parent / "look.css"
"""The colours of all our pages."""
_ON_DARK = {
    "#0b3c8c": "#6f9be8", "#0f6b4f": "#3fae8a", "#0072b2": "#4ba3dc", "#c00000": "#ff7b7b",
    "#8c6d31": "#b8964f",
}  # fmt: skip
"""Colours of curves that are too dark for dark paper."""
SHARE_LABEL = "π, share of positive updates that may leave"
_BINS = 30
"""Bars of a histogram, about."""
_SUPERSCRIPTS = str.maketrans("0123456789-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻", "+")

Curve = tuple[ArrayLike, ArrayLike]


@dataclass(frozen=True, slots=True)
class Figures:
    """Where a figure was written."""

    png: Path
    svg: Path


@cache
def page_colours() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the colours of our pages by name, in the light and in the dark."""
    light, dark = (
        dict(re.findall(r"--([\w-]+):\s*(#\w{6});", block))
        for block in re.findall(r":root \{(.*?)\}", LOOK.read_text(encoding="utf-8"), re.DOTALL)
    )
    return light, light | dark


INK, SOFT = (page_colours()[0][name] for name in ("ink", "soft"))


def with_dark(svg: str) -> str:
    """Add the dark page's colours to an SVG, for each colour that is in it."""
    light, dark = page_colours()
    known = {light[name]: dark[name] for name in ("ink", "soft", "line", "accent", "paper")}
    known |= {light[name]: dark[name] for name in ("good", "warn", "bad")}
    known |= _ON_DARK | {"#000000": dark["ink"]}
    rules = "".join(
        f'[style*="{kind}: {old}"]{{{kind}:{new} !important}}'
        for old, new in known.items()
        for kind in ("fill", "stroke")
        if f"{kind}: {old}" in svg
    )
    return svg.replace("</style>", f"@media (prefers-color-scheme: dark){{{rules}}}</style>", 1)


@contextmanager
def drawing(path: Path, title: str, size: tuple[float, float]) -> Iterator[tuple[Figure, Axes]]:
    """A figure to draw on, written next to `path` (its suffix is replaced) at the end."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    light, _ = page_colours()
    style: dict[Any, Any] = {
        "font.size": 10,
        "figure.facecolor": light["paper"],
        "axes.facecolor": light["paper"],
        "axes.edgecolor": light["soft"],
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), light["ink"]),
        **dict.fromkeys(("xtick.color", "ytick.color"), light["soft"]),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": light["line"],
        "svg.hashsalt": "sottovoce",
        "svg.fonttype": "none",
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(_number_formatter())
        if title:
            axes.set_title(title, loc="left", fontsize=11)
        yield figure, axes
        target = figure_files(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target.png, dpi=144, metadata={"Software": None})
        figure.set_layout_engine("none")  # it is laid out by now
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
        target.svg.write_text(with_dark(drawn.getvalue()), encoding="utf-8")


def _number_formatter() -> Formatter:
    """Numbers as plain text, and a factor that they share as ×10⁶. Matplotlib's own way to write
    such a factor parses every label as a formula, which took most of the time of a figure."""
    from matplotlib.ticker import ScalarFormatter

    class NumberFormatter(ScalarFormatter):
        def get_offset(self) -> str:
            power = super().get_offset().removeprefix("1e")
            return f"×10{power.translate(_SUPERSCRIPTS)}" if power else ""

    return NumberFormatter(useOffset=False, useMathText=False)


def figure_files(path: Path) -> Figures:
    stem = path.with_suffix("") if path.suffix in (".png", ".svg") else path
    return Figures(stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg"))


def lines(
    path: Path,
    curves: Mapping[str, Curve],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    references: Mapping[str, float] | None = None,
) -> Figures:
    """Values over a common axis, one line per system; `references` are dashed level lines."""
    _need(curves)
    with drawing(path, title, (6.4, 4.2)) as (figure, axes):
        for index, (name, (x, y)) in enumerate(curves.items()):
            xs, ys = _columns(name, x, y)
            dense = len(xs) > 25
            axes.plot(
                xs,
                ys,
                color=_colour(name, index),
                marker=None if dense else MARKERS[index % len(MARKERS)],
                markersize=5,
                linewidth=1.6,
                label=name,
            )
        for index, (name, level) in enumerate((references or {}).items()):
            axes.axhline(
                level,
                color=SOFT,
                linestyle=((0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))[index % 3],
                linewidth=1.2,
                label=name,
            )
        axes.set(xlabel=x_label, ylabel=y_label)
        _legend(figure, axes)
    return figure_files(path)


def learning_curves(
    path: Path,
    curves: Mapping[str, Curve],
    *,
    metric: str,
    title: str = "",
    x_label: str = "epoch",
    references: Mapping[str, float] | None = None,
) -> Figures:
    """A metric over training time."""
    return lines(path, curves, x_label=x_label, y_label=metric, title=title, references=references)


def scatter(
    path: Path,
    groups: Mapping[str, Curve],
    *,
    x_label: str,
    y_label: str,
    log: tuple[float, float] | None = None,
    names: Sequence[str] = (),
    level: Curve | None = None,
) -> Figures:
    """Points of several kinds; with `log` on a logarithmic axis with these ends. With `names`,
    places are those of names; `level` is a line through the best so far."""
    from matplotlib.ticker import NullFormatter

    _need(groups)
    with drawing(path, "", (6.4, 3.8)) as (figure, axes):
        if level is not None:
            xs, ys = _columns("the best so far", *level)
            axes.step(xs, ys, where="post", color=SOFT, linewidth=1.2, label="best so far")
        for index, (name, (x, y)) in enumerate(groups.items()):
            xs, ys = _columns(name, x, y)
            axes.scatter(
                xs, ys, color=PALETTE[index % len(PALETTE)], marker=MARKERS[index % len(MARKERS)],
                s=28, label=name, zorder=3,
            )  # fmt: skip
        if names:
            axes.set_xticks(np.arange(len(names)), list(names))
            axes.margins(x=0.15)
        elif log is not None:
            axes.set_xscale("log")
            axes.set_xlim(log[0] / 1.1, log[1] * 1.1)
            if log[1] >= 10.0 * log[0]:  # powers of ten are labels enough
                axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel=x_label, ylabel=y_label)
        _legend(figure, axes)
    return figure_files(path)


def trade_off(
    path: Path,
    curves: Mapping[str, Curve],
    *,
    x_label: str = "precision, P@10",
    y_label: str = "item coverage, IC@10 (items)",
    title: str = "",
    front: bool = False,
) -> Figures:
    """Paths of increasing π through a plane where more is better on both axes.

    Points come in order of π; the white one is the last, π = 1 (figure 3 of FPL). With `front`,
    the points that no other beats are joined in red (figure 4).
    """
    _need(curves)
    with drawing(path, title, (6.4, 4.8)) as (figure, axes):
        points: list[NDArray[np.float64]] = []
        for index, (name, (x, y)) in enumerate(curves.items()):
            xs, ys = _columns(name, x, y)
            colour, marker = _colour(name, index), MARKERS[index % len(MARKERS)]
            axes.plot(xs, ys, color=colour, linewidth=1.1, alpha=0.8, zorder=2)
            axes.scatter(xs[:-1], ys[:-1], color=colour, marker=marker, s=30, zorder=3, label=name)
            axes.scatter(
                xs[-1:], ys[-1:], facecolor="white", edgecolor=colour, marker=marker, s=44, zorder=4
            )
            points.append(np.column_stack([xs, ys]))
        if front:
            cloud = np.concatenate(points)
            cloud = cloud[~np.isnan(cloud).any(axis=1)]
            best = cloud[pareto_front(cloud)]
            best = best[np.argsort(best[:, 0], kind="stable")]
            axes.plot(
                *best.T, color=FRONT, linewidth=2.2, alpha=0.85, zorder=1.5, label="Pareto front"
            )
            axes.scatter(
                best[:, 0], best[:, 1], facecolor="none", edgecolor=FRONT, s=110, zorder=1.6
            )
        axes.scatter([], [], facecolor="white", edgecolor=SOFT, s=44, label="π = 1")
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.margins(0.06)
        # Last, because the longest step on the page depends on the limits of the axes.
        for index, (name, (x, y)) in enumerate(curves.items()):
            _arrow(axes, *_columns(name, x, y), _colour(name, index))
        _legend(figure, axes)
    return figure_files(path)


def bias_bars(
    path: Path,
    categories: Sequence[str],
    systems: Mapping[str, ArrayLike],
    *,
    title: str = "",
    x_label: str = "bias disparity (0: as in the training data)",
) -> Figures:
    """Bias disparity per category (never below −1), a bar per system. Beyond 1 the axis is
    logarithmic where one bar would dwarf the others."""
    _need(systems)
    values = {name: np.asarray(v, dtype=np.float64) for name, v in systems.items()}
    for name, column in values.items():
        if column.shape != (len(categories),):
            raise UsageError(f"{name} needs one value for each of {len(categories)} categories")
    height = 0.8 / len(values)
    place = np.arange(len(categories), dtype=np.float64)
    tall = 1.4 + len(categories) * max(0.42, 0.15 * len(values))
    with drawing(path, title, (6.8, tall)) as (figure, axes):
        for index, (name, column) in enumerate(values.items()):
            offset = (index - (len(values) - 1) / 2) * height
            axes.barh(place + offset, column, height * 0.92, color=_colour(name, index), label=name)
        axes.axvline(0.0, color=INK, linewidth=0.9)
        largest = float(np.nanmax(np.concatenate(list(values.values())), initial=0.0))
        if largest > 3:
            axes.set_xscale("symlog", linthresh=1.0)
            ticks = [t for t in (-1, 0, 1, 3, 10, 30, 100, 300, 1000) if t <= largest]
            axes.set_xticks(ticks, [str(t).replace("-", "−") for t in ticks])
            axes.set_xlim(-1.15, largest * 1.15)
            axes.minorticks_off()
        axes.set_yticks(place, list(categories))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(x_label)
        _legend(figure, axes)
    return figure_files(path)


def stacked_bars(
    path: Path,
    parts: Sequence[str],
    bars: Mapping[str, Sequence[float]],
    *,
    x_label: str,
    title: str = "",
) -> Figures:
    """Draw a horizontal bar for each name, made of `parts` one behind the other."""
    _need(bars)
    place, begun = np.arange(len(bars), dtype=np.float64), np.zeros(len(bars))
    with drawing(path, title, (7.2, 1.6 + 0.6 * len(bars))) as (figure, axes):
        for index, part in enumerate(parts):
            width = np.array([values[index] for values in bars.values()])
            axes.barh(
                place, width, 0.6, left=begun, label=part, color=PALETTE[index % len(PALETTE)]
            )
            begun += width
        axes.set_yticks(place, list(bars))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(x_label)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure_files(path)


def histogram(path: Path, values: ArrayLike, *, x_label: str) -> Figures:
    """How many devices sent how much. Few distinct whole numbers get a bar each, and if all sent
    the same, there is one."""
    from matplotlib.ticker import MaxNLocator

    column = np.asarray(values, dtype=np.float64).ravel()
    column = column[np.isfinite(column)]
    if not len(column):
        raise UsageError("there is nothing to plot")
    low, high = float(column.min()), float(column.max())
    whole = bool((column == np.round(column)).all())
    alike = high - low <= 1e-9 * max(1.0, abs(high))
    if alike:
        edges = np.array([low - 0.5, high + 0.5])
    elif whole:
        # Edges half way between whole numbers: no bar covers more numbers than its neighbour.
        step = int(np.ceil((high - low + 1) / _BINS))
        edges = np.arange(low - 0.5, high + step, step)
    else:
        edges = np.histogram_bin_edges(column, _BINS)
    with drawing(path, "", (6.4, 3.8)) as (_, axes):
        axes.hist(column, bins=list(edges), color=PALETTE[0], edgecolor="white", linewidth=0.6)
        middle = float(np.median(column))
        axes.axvline(middle, color=PALETTE[1], linewidth=1.6, label=f"median {middle:,.4g}")
        axes.set(xlabel=x_label, ylabel="devices")
        if alike:  # one bar; an axis around it would say that values differ
            axes.set_xticks([low], [f"{low:,.6g}"])
            axes.set_xlim(low - 2.5, high + 2.5)
        else:
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=whole))
        axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.grid(axis="x", visible=False)
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    return figure_files(path)


Interval = Mapping[str, float]
"""A `value` and the bounds `low` and `high` of its interval."""


def quality_of_versions(path: Path, versions: Sequence[Mapping[str, Any]]) -> Figures:
    """For how many users each version had a hit, beside the one that was published then and
    popularity, with 95 % intervals. White: it was held back."""
    told = [one for one in versions if one.get("quality")]
    _need(dict.fromkeys(str(one["version"]) for one in told))
    place = np.arange(len(told), dtype=np.float64)
    names = {"candidate": "the version", "published": "published then", "popularity": "popularity"}
    with drawing(path, "", (6.4, 4.2)) as (figure, axes):
        for index, (name, words) in enumerate(names.items()):
            rates: list[Interval] = [one["quality"][name] for one in told]
            middle = np.array([rate["value"] for rate in rates])
            low, high = (np.array([rate[end] for rate in rates]) for end in ("low", "high"))
            at, colour = place + 0.14 * (index - 1), PALETTE[index]
            spread = np.maximum(0.0, np.array([middle - low, high - middle]))
            axes.errorbar(
                at, middle, spread, color=colour, marker=MARKERS[index], markersize=5,
                linestyle="none", capsize=3, label=words,
            )  # fmt: skip
            held = np.array([bool(one["held_back"]) for one in told])
            if name == "candidate" and held.any():
                axes.scatter(
                    at[held], middle[held], facecolor="white", edgecolor=colour, s=44, zorder=4,
                    marker=MARKERS[index], label="held back",
                )  # fmt: skip
        axes.set_xticks(place, [str(one["version"]) for one in told])
        axes.set(xlabel="version", ylabel="users with a hit among ten")
        axes.margins(x=0.15)
        axes.grid(axis="x", visible=False)
        _legend(figure, axes)
    return figure_files(path)


@dataclass(frozen=True, slots=True)
class TradePoint:
    """A run by what it costs a user and what it is worth."""

    name: str
    cost: float
    worth: float
    half: float
    """Half of the 95 % interval of its worth; not a number if nobody knows."""
    kind: Literal["bounded", "sums", "open"]


BOUNDS = {
    "bounded": ("an ε bounds it", "good", "o"),
    "sums": ("sums of many people, no ε", "warn", "s"),
    "open": ("no bound", "bad", "^"),
}
"""By kind of a point: words, colour and marker."""


def best_trades(points: Sequence[TradePoint]) -> list[TradePoint]:
    """Return the points that no other beats by costing no more and being worth no less, by
    ascending cost."""
    front = pareto_front([(p.cost, p.worth) for p in points], (False, True))
    return sorted((points[i] for i in front), key=lambda p: p.cost)


def trades(path: Path, points: Sequence[TradePoint], *, x_label: str, y_label: str) -> Figures:
    """Draw points by cost (to the right) and worth (upwards), with intervals; the best trades are
    ringed and joined. The axis of costs is logarithmic if they differ by more than twenty times."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    _need({p.name: p for p in points})
    light, best = page_colours()[0], best_trades(points)
    low, high = min(p.cost for p in points), max(p.cost for p in points)
    with drawing(path, "", (6.4, 4.4)) as (figure, axes):
        if low > 1e-6 and high > 20 * low:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e3 * low else (1,)))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:,.10g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.plot([p.cost for p in best], [p.worth for p in best], "--", color=light["accent"])
        axes.scatter(
            [p.cost for p in best], [p.worth for p in best], s=170, facecolor="none",
            edgecolor=light["accent"], linewidth=1.6, label="no other run beats it",
        )  # fmt: skip
        for kind, (words, colour, marker) in BOUNDS.items():
            if mine := [p for p in points if p.kind == kind]:
                axes.errorbar(
                    [p.cost for p in mine], [p.worth for p in mine],
                    [0.0 if math.isnan(p.half) else p.half for p in mine], linestyle="none",
                    color=light[colour], ecolor=SOFT, marker=marker, markersize=7, label=words,
                )  # fmt: skip
        axes.margins(x=0.22, y=0.12)
        axes.set(xlabel=x_label, ylabel=y_label)
        # Names beside their points, moved up or down until none covers another.
        seen = axes.transData.transform([(p.cost, p.worth) for p in points])
        apart = spread([float(y) for _, y in seen], 17.0)
        for p, (_, y), at in zip(points, seen, apart, strict=True):
            axes.annotate(
                p.name, (p.cost, p.worth), (11, (at - float(y)) * 72 / figure.dpi),
                textcoords="offset points", va="center", fontsize=9, parse_math=False,
            )  # fmt: skip
        _legend(figure, axes)
    return figure_files(path)


def pareto_front(points: ArrayLike, maximise: Sequence[bool] = (True, True)) -> NDArray[np.int64]:
    """Indices, ascending, of the points [n, d] that no point dominates.

    One point dominates another where it is at least as good in every column and better in one;
    `maximise` says per column whether more is better. Equal points stay or go together.
    """
    table = np.asarray(points, dtype=np.float64)
    if table.size == 0:
        return np.zeros(0, dtype=np.int64)
    if table.ndim != 2 or table.shape[1] != len(maximise):
        raise UsageError(f"points must have {len(maximise)} columns, one per direction")
    if np.isnan(table).any():
        raise UsageError("a point with a value that is not a number cannot be compared")
    gains = np.where(np.asarray(maximise, dtype=bool), table, -table)
    # Descending lexicographic order: only an earlier point can dominate a later one.
    order = np.lexsort(-gains.T[::-1])
    front: list[int] = []
    for index in order:
        kept = gains[front]
        beaten = (kept >= gains[index]).all(axis=1) & (kept > gains[index]).any(axis=1)
        if not beaten.any():
            front.append(int(index))
    return np.sort(np.asarray(front, dtype=np.int64))


def spread(places: Sequence[float], least: float) -> list[float]:
    """The places nearest to these with no two closer than `least`, in the same order."""
    order = sorted(range(len(places)), key=lambda n: places[n])
    groups: list[list[float]] = []  # members' wishes, each as if the group began with it
    for rank, n in enumerate(order):
        groups.append([places[n] - least * rank])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            last = groups.pop()
            groups[-1] += last
    shifts = [fmean(group) for group in groups for _ in group]
    found = [0.0] * len(places)
    for rank, n in enumerate(order):
        found[n] = shifts[rank] + least * rank
    return found


def _need(curves: Mapping[str, object]) -> None:
    if not curves:
        raise UsageError("there is nothing to plot")


def _columns(
    name: str, x: ArrayLike, y: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if xs.ndim != 1 or xs.shape != ys.shape or not len(xs):
        raise UsageError(f"{name} needs as many values as places, and at least one")
    return xs, ys


def _colour(name: str, index: int) -> str:
    return PAPER.get(name, PALETTE[index % len(PALETTE)])


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        columns = legend_columns(labels, figure.get_figwidth())
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def legend_columns(labels: Sequence[str], inches: float) -> int:
    """Return the columns of a legend below a figure of this width: four at most, and no more than
    there is room for. A letter takes about 0.085 inches, and a line with the gap behind it 0.7."""
    for most in (4, 3, 2):
        rows = -(-len(labels) // most)
        parts = [labels[k : k + rows] for k in range(0, len(labels), rows)]
        if sum(0.7 + 0.085 * max(map(len, part)) for part in parts) <= inches:
            return len(parts)
    return 1


def _arrow(axes: Axes, x: NDArray[np.float64], y: NDArray[np.float64], colour: str) -> None:
    """The direction of the path, on its longest step as seen on the page."""
    if len(x) < 2:
        return
    seen = axes.transData.transform(np.column_stack([x, y]))
    length = np.hypot(*np.diff(seen, axis=0).T)
    if np.isnan(length).all():
        return
    step = int(np.nanargmax(length))
    start = np.array([x[step], y[step]])
    way = np.array([x[step + 1], y[step + 1]]) - start
    axes.annotate(
        "",
        xy=tuple(start + 0.62 * way),
        xytext=tuple(start + 0.42 * way),
        arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.1, "mutation_scale": 13},
    )
