"""Small drawings as SVG, inside a page or as files; each says in words what it shows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from sottovoce import core
from sottovoce.errors import UsageError
from sottovoce.evaluation.plots import pareto_front

Mark = Literal["broken", "holds", "underpowered"]
Shape = Literal["bounded", "sums", "open"]
SHAPES: dict[Shape, str] = {
    "bounded": "an ε bounds it", "sums": "sums of many people, no ε", "open": "no bound",
}  # fmt: skip
_WIDE, _HIGH = 520.0, 360.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 24.0, 16.0, 58.0
_LETTER = 8.2
"""Width of a letter of a label, about."""
_Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def sheet(title: str, words: str, size: tuple[float, float], parts: Sequence[str]) -> str:
    """A drawing as a file of its own, on its own paper, in the light and in the dark. `words` say
    what it shows to whoever does not see it."""
    wide, high = size
    style = (Path(__file__).parent / "pages" / "drawing.css").read_text(encoding="utf-8")
    style = re.sub(r"/\*.*?\*/\s*", "", style, flags=re.DOTALL)
    light, dark = _colours()
    rules = (
        f"{_filled(style, light)}@media (prefers-color-scheme: dark) {{\n{_filled(style, dark)}}}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing sheet" width="{wide:g}" '
            f'height="{high:g}" viewBox="0 0 {wide:g} {high:g}" role="img" '
            'aria-labelledby="title words">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="words">{escape(words)}</desc>',
            f"<style>\n{rules}\n</style>",
            f'<rect class="paper" x=".5" y=".5" rx="8" width="{wide - 1:g}" '
            f'height="{high - 1:g}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _colours() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Those of all our pages, in the light and in the dark."""
    look = (Path(core.__file__).parent / "look.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([\w-]+):\s*([^;]+);", block))
        for block in re.findall(r":root \{(.*?)\}", look, re.DOTALL)
    )
    return light, light | dark


def _filled(style: str, colours: Mapping[str, str]) -> str:
    """With every colour in its place: not every program that shows a picture knows variables."""
    return re.sub(r"var\(--([\w-]+)\)", lambda found: colours[found[1]], style)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Words that begin, end or have their middle at a place."""
    more = f' class="{kind}"' if kind else ""
    more += f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(words, quote=False)}</text>'


def gauge(
    value: float, interval: tuple[float, float], base: float, *, mark: Mark, words: str
) -> str:
    """A value with its interval on a line, and a dashed mark where a guess would be. The value is a
    diamond where a promise is broken, else a circle."""
    top = max([1.0, *(v for v in (value, *interval, base) if math.isfinite(v))])
    low, high = (min(max(0.0, end), top) for end in interval)

    def at(number: float) -> float:
        return 8.0 + 224.0 * min(max(0.0, number), top) / top

    x, y = at(value), 15.0
    drawn = (
        f'<path class="{mark}" d="M{x:.1f} {y - 8}l8 8-8 8-8-8z"/>'
        if mark == "broken"
        else f'<circle class="{mark}" cx="{x:.1f}" cy="{y}" r="6"/>'
    )
    return (
        f'<svg class="gauge" viewBox="0 0 240 42" role="img" aria-label="{escape(words)}">'
        f'<path class="rail" d="M8 {y}H232"/>'
        f'<path class="span" d="M{at(low):.1f} {y}H{at(high):.1f}"/>'
        f'<path class="base" d="M{at(base):.1f} 2V28"/>{drawn}'
        f'<text x="8" y="40">0</text><text x="232" y="40" text-anchor="end">{top:.3g}</text></svg>'
    )


@dataclass(frozen=True, slots=True)
class Point:
    """A run by what it costs and what it is worth."""

    name: str
    place: str
    """The id of its row in the page."""
    cost: float
    worth: float
    low: float
    high: float
    shape: Shape


def best_trades(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats by costing no more and being worth no less, by ascending cost."""
    front = pareto_front([(p.cost, p.worth) for p in points], (False, True))
    return sorted((points[i] for i in front), key=lambda p: p.cost)


def trades(points: Sequence[Point], cost: str, worth: str, words: str) -> str:
    """Points by cost (to the right) and worth (upwards), with intervals; the best trades are ringed
    and joined. The axis of costs is logarithmic where they differ by more than twenty times."""
    if not points:
        raise UsageError("there is nothing to draw")
    costs = [p.cost for p in points]
    x_at, x_ticks = axis(min(costs), max(costs), _LEFT, _WIDE - _RIGHT, logarithmic=True)
    ends = [end for p in points for end in (p.low, p.high, p.worth) if math.isfinite(end)]
    y_at, y_ticks = axis(min(ends), max(ends), _HIGH - _BOTTOM, _TOP)
    parts = [f'<svg class="drawing" viewBox="0 0 {_WIDE:g} {_HIGH:g}" role="img" '
             f'aria-label="{escape(words)}">']  # fmt: skip
    foot = _HIGH - _BOTTOM
    for tick in x_ticks:
        parts.append(f'<path class="grid" d="M{x_at(tick):.1f} {_TOP}V{foot}"/>'
                     f'<text class="tick" x="{x_at(tick):.1f}" y="{foot + 20}" '
                     f'text-anchor="middle">{tick:,.10g}</text>')  # fmt: skip
    for tick in y_ticks:
        parts.append(f'<path class="grid" d="M{_LEFT} {y_at(tick):.1f}H{_WIDE - _RIGHT}"/>'
                     f'<text class="tick" x="{_LEFT - 7}" y="{y_at(tick) + 5:.1f}" '
                     f'text-anchor="end">{tick:,.10g}</text>')  # fmt: skip
    parts.append(f'<path class="axis" fill="none" d="M{_LEFT} {_TOP}V{foot}H{_WIDE - _RIGHT}"/>'
                 f'<text x="{_WIDE - _RIGHT}" y="{_HIGH - 12}" text-anchor="end">'
                 f"{escape(cost)} →</text>"
                 f'<text transform="translate(14 {_TOP}) rotate(-90)" text-anchor="end">'
                 f"{escape(worth)} →</text>")  # fmt: skip
    front = best_trades(points)
    line = " ".join(f"{x_at(p.cost):.1f},{y_at(p.worth):.1f}" for p in front)
    parts.append(f'<polyline class="front" points="{line}"/>')
    spots = [(x_at(p.cost), y_at(p.worth)) for p in points]
    labels = _labels([p.name for p in points], spots)
    for p, (x, y), label in zip(points, spots, labels, strict=True):
        ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="11"/>' if p in front else ""
        whisker = ""
        if math.isfinite(p.low) and math.isfinite(p.high):
            whisker = f'<path class="whisker" d="M{x:.1f} {y_at(p.low):.1f}V{y_at(p.high):.1f}"/>'
        parts.append(f'<g data-point="{escape(p.place)}"><title>{escape(p.name)}</title>'
                     f"{whisker}{ring}{mark(p.shape, x, y)}{label}</g>")  # fmt: skip
    return "".join([*parts, "</svg>"])


def mark(shape: Shape, x: float, y: float) -> str:
    """Of a point, by what bounds it: a circle, a square or a triangle."""
    kind = f'class="mark {shape}"'
    if shape == "bounded":
        return f'<circle {kind} cx="{x:.1f}" cy="{y:.1f}" r="5.5"/>'
    if shape == "sums":
        return f'<rect {kind} x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"/>'
    return f'<path {kind} d="M{x:.1f} {y - 6.5:.1f}l6 11h-12z"/>'


def key(points: Sequence[Point]) -> str:
    """What the marks mean, of those that are there."""
    used = [shape for shape in SHAPES if any(p.shape == shape for p in points)]
    items = [f'<li><svg width="16" height="16" aria-hidden="true">{mark(shape, 8, 8)}</svg> '
             f"{escape(SHAPES[shape])}</li>" for shape in used]  # fmt: skip
    ring = '<circle class="ring" cx="13" cy="13" r="11"/>'
    ring = f'<svg width="26" height="26" aria-hidden="true">{ring}</svg>'
    items.append(f"<li>{ring} no other run beats it</li>")
    return f'<ul class="key">{"".join(items)}</ul>'


def axis(
    low: float, high: float, start: float, end: float, *, logarithmic: bool = False
) -> tuple[Callable[[float], float], list[float]]:
    """Where a number lies between the two ends of the paper, and ticks."""
    if logarithmic and low > 1e-6 and high > 20 * low:
        first, last = math.log10(low) - 0.15, math.log10(high) + 0.15
        places = range(math.floor(first), math.ceil(last) + 1)
        many = last - first > 3
        ticks = [m * 10.0**e for e in places for m in ((1,) if many else (1, 2, 5))]
        ticks = [t for t in ticks if first <= math.log10(t) <= last]
        return (lambda v: start + (end - start) * (math.log10(v) - first) / (last - first)), ticks
    least = 1e-9 * max(1.0, abs(high))
    room = 0.12 * (high - low) if high - low > least else 0.1 * max(1.0, abs(high))
    bottom, top = low - room, high + room
    if low >= 0:
        bottom = max(0.0, bottom)
    step = _step((top - bottom) / 5)
    ticks = [step * k for k in range(math.ceil(bottom / step), math.floor(top / step) + 1)]
    return (lambda v: start + (end - start) * (v - bottom) / (top - bottom)), ticks


def _step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, no less than this."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)


def _labels(names: Sequence[str], spots: Sequence[tuple[float, float]]) -> list[str]:
    """Names beside their points, where there is room; a title has each of them anyway."""
    taken = [(x - 9, y - 9, x + 9, y + 9) for x, y in spots]
    made = []
    for name, (x, y) in zip(names, spots, strict=True):
        width, found = _LETTER * len(name), ""
        for left, base in ((x + 14, y + 5), (x - 14 - width, y + 5), (x - width / 2, y - 15),
                           (x - width / 2, y + 27), (x + 10, y - 12), (x + 10, y + 23),
                           (x - 10 - width, y - 12), (x - 10 - width, y + 23)):  # fmt: skip
            box = (left, base - 12, left + width, base + 4)
            paper = (_LEFT, _TOP, _WIDE, _HIGH - _BOTTOM)
            if _within(box, paper) and not any(_meet(box, one) for one in taken):
                taken.append(box)
                found = f'<text x="{left:.1f}" y="{base:.1f}">{escape(name)}</text>'
                break
        made.append(found)
    return made


def _within(a: _Box, b: _Box) -> bool:
    return a[0] > b[0] and a[1] > b[1] and a[2] < b[2] and a[3] < b[3]


def _meet(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
