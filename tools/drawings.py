"""Marks, words and axes of the documents' figures, as SVG files."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Literal

from sottovoce.evaluation.plots import page_colours

Shape = Literal["bounded", "sums", "open"]
SHAPES: dict[Shape, str] = {
    "bounded": "an ε bounds it", "sums": "sums of many people, no ε", "open": "no bound",
}  # fmt: skip


def sheet(title: str, words: str, size: tuple[float, float], parts: Sequence[str]) -> str:
    """A drawing as a file of its own, on its own paper, in the light and in the dark. `words` say
    what it shows to whoever does not see it."""
    wide, high = size
    style = Path(__file__).with_name("drawing.css").read_text(encoding="utf-8")
    style = re.sub(r"/\*.*?\*/\s*", "", style, flags=re.DOTALL)
    light, dark = page_colours()
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


def _filled(style: str, colours: Mapping[str, str]) -> str:
    """With every colour in its place: not every program that shows a picture knows variables."""
    return re.sub(r"var\(--([\w-]+)\)", lambda found: colours[found[1]], style)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Words that begin, end or have their middle at a place."""
    more = f' class="{kind}"' if kind else ""
    more += f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(words, quote=False)}</text>'


def mark(shape: Shape, x: float, y: float) -> str:
    """Of a point, by what bounds it: a circle, a square or a triangle."""
    kind = f'class="mark {shape}"'
    if shape == "bounded":
        return f'<circle {kind} cx="{x:.1f}" cy="{y:.1f}" r="5.5"/>'
    if shape == "sums":
        return f'<rect {kind} x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"/>'
    return f'<path {kind} d="M{x:.1f} {y - 6.5:.1f}l6 11h-12z"/>'


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
