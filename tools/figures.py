"""`make figures`: draws the figures of the documents.

What they show is in docs/figures/data, as `reproduce --json` and `bench --json` print it, or in the
sight tables. The same input gives the same files.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from sottovoce.core.links import CheckedSum, Direct, Proxied, SecureSum, Sight
from sottovoce.engines.silo_simulation import SIGHT
from sottovoce.evaluation.plots import page_colours, spread, with_dark

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "docs" / "figures"
WIDE = 520.0
"""So that letters of 15 have more than 10 on the screen of a phone."""
EDGE = 20.0
_LINE = 21.0
"""From one line of text to the next."""
_LIGHT = page_colours()[0]
_PLAIN: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sottovoce",
    "font.sans-serif": ["DejaVu Sans"],
}

Row = Mapping[str, Any]


def data(name: str) -> Row:
    found: Row = json.loads((PLACE / "data" / f"{name}.json").read_text(encoding="utf-8"))
    return found


class Sheet:
    """A drawing of which a unit is a pixel; y grows downwards, as on a page."""

    def __init__(self, title: str, tall: float) -> None:
        self.title = title
        self.figure = Figure(figsize=(WIDE / 72, tall / 72), dpi=72, facecolor=_LIGHT["paper"])
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, WIDE), ylim=(tall, 0))
        self.axes.axis("off")
        self.text(EDGE, 34, title, size=18, weight="bold")

    def text(self, x: float, y: float, words: str, colour: str = "ink", **how: Any) -> None:
        self.axes.text(x, y, words, **{"size": 15, "color": _LIGHT[colour], **how})

    def line(self, xs: Sequence[float], ys: Sequence[float], colour: str, **how: Any) -> None:
        self.axes.plot(xs, ys, **{"color": _LIGHT[colour], "lw": 1.4, **how})

    def notes(self, y: float, lines: Sequence[str]) -> None:
        for number, line in enumerate(lines):
            self.text(EDGE, y + _LINE * number, line, "soft")

    def svg(self, words: Sequence[str]) -> str:
        """The drawing as a file for light and dark pages; `words` say what it shows to whoever does
        not see it."""
        drawn = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with matplotlib.rc_context(_PLAIN):
            self.figure.savefig(drawn, format="svg", metadata=nothing, facecolor=_LIGHT["paper"])
        _, begin, rest = with_dark(drawn.getvalue()).partition("<svg ")
        size, end, rest = rest.partition(">")
        told = f'<title id="title">{escape(self.title)}</title>'
        told += f'<desc id="words">{escape(". ".join(words))}.</desc>'
        role = 'role="img" aria-labelledby="title words" '
        return f"{begin}{role}{size.replace('pt', '')}{end}\n {told}{rest}"


def figure_of(value: float) -> str:
    """As our documents write it: .0924"""
    return f"{value:.4f}".removeprefix("0")


# --- the price list -------------------------------------------------------------------------------

SHAPES = {
    "bounded": ("o", "good", "an ε bounds it"),
    "sums": ("s", "warn", "sums of many people, no ε"),
    "open": ("D", "bad", "no bound"),
}
"""Marker, colour and meaning of what bounds a system."""
PROVEN: Mapping[str, str] = {
    "gram": "nobody finds more than ε permits",
    "FPL": "A1 reads 98.5 % of hidden positives",
    "FCF": "A4 reads every item of an upload",
    "FMF-LDP": "A5 tells who has an item",
    "DRIFT": "A6, A7: who liked what",
    "UC-FedRec": "A9 names the class of who shares it",
}
"""What the winning attacks get, by system."""


def price_list() -> str:
    """Every system as printed beside what survives: accuracy, and which attacks win."""
    found = data("price-list")
    rows: list[Row] = found["rows"]
    ways = dict.fromkeys((row["system"], row["way"]) for row in rows if row["system"] != "Top-Pop")
    systems = list(dict.fromkeys(system for system, _ in ways))
    left, right, side = 204.0, 356.0, 368.0
    tall = 86.0 + 32 * len(systems) + 24 * len(ways) + 34 + _LINE * (9 + len(found["note"]))
    at: Callable[[float], float] = lambda value: left + (right - left) * value / 0.175  # noqa: E731
    top_pop = next(row["P@10"] for row in rows if row["system"] == "Top-Pop")
    sheet = Sheet("What a promise costs", tall)
    sheet.text(EDGE, 58, "MovieLens 1M, P@10, and which attacks win", "soft")
    sheet.text(side, 82, "attacks that win", weight="bold")
    sheet.text((left + right) / 2, 82, "P@10", weight="bold", ha="center")
    y, words = 86.0, [f"Top-Pop has P@10 {figure_of(top_pop)}"]
    for system in systems:
        y += 28
        sheet.text(EDGE, y, system, weight="bold")
        sheet.text(WIDE - EDGE, y, PROVEN[system], "soft", ha="right")
        sheet.line((EDGE, WIDE - EDGE), (y + 7, y + 7), "line")
        start, y = y + 7, y + 4
        for way in (way for name, way in ways if name == system):
            y += 24
            mine = [row for row in rows if (row["system"], row["way"]) == (system, way)]
            spots = [at(row["P@10"]) for row in mine]
            sheet.text(EDGE, y, way)
            sheet.line((min(spots), max(spots)), (y - 5, y - 5), "soft")
            for row, x in zip(mine, spots, strict=True):
                marker, colour, _ = SHAPES[row["bound"]]
                sheet.line([x], [y - 5], colour, marker=marker, ms=8)
                epsilon = f", ε = {row['epsilon']:g}" if row.get("epsilon") else ""
                won = f"attacks that win: {_codes(row)}" if _codes(row) != "–" else "no attack won"
                words.append(f"{system}, {way}{epsilon}: P@10 {figure_of(row['P@10'])}, {won}")
            wins = list(dict.fromkeys(map(_codes, mine)))
            sheet.text(side, y, " / ".join(wins if len(wins) == 1 else map(_codes, mine)))
        for tick in (0.0, 0.05, 0.1, 0.15):
            sheet.line((at(tick),) * 2, (start, y + 9), "line", lw=1, zorder=1)
        sheet.line((at(top_pop),) * 2, (start, y + 9), "soft", ls="--", zorder=1)
    for tick in (0.0, 0.05, 0.1, 0.15):
        sheet.text(at(tick), y + 27, f"{tick:.2f}".removeprefix("0"), "soft", ha="center")
    sheet.text(at(top_pop), y + 47, f"Top-Pop {figure_of(top_pop)}", "soft", ha="center")
    y += 75
    for marker, colour, meaning in SHAPES.values():
        sheet.line([EDGE + 6], [y - 5], colour, marker=marker, ms=8)
        sheet.text(EDGE + 20, y, meaning)
        y += _LINE
    sheet.notes(y + 6, [
        "A1 to A4: her items. A5: her reports, an item. A6, A7: who",
        "liked what. A8 to A10: attributes. A12: that she took part,",
        "or items. N1: who has many items. In brackets: with one of",
        "two seeds. – : none won; few rounds were attacked.",
        *found["note"],
    ])  # fmt: skip
    return sheet.svg(words)


def _codes(row: Row) -> str:
    once = [f"({code})" for code in row["broken_once"]]
    every = " ".join([*row["broken"], *once]) or "–"
    return every.replace("A1 A2 A3", "A1–A3").replace("A8 A9 A10", "A8–A10")


# --- accuracy against ε ---------------------------------------------------------------------------

PENS: Mapping[str, tuple[str, str, str]] = {
    "gram, with time": ("gram, with time", "accent", "o"),
    "gram, plain": ("gram, plain", "accent", "s"),
    "private ALS (dpals)": ("private ALS", "good", "^"),
    "FCF, noise on sums": ("FCF with noise", "warn", "D"),
    "FPL, noise on sums": ("FPL with noise", "bad", "v"),
    "FMF-LDP, rotated": ("FMF-LDP", "warn", "x"),
    "DPLCF": ("DPLCF", "bad", "_"),
}
"""By system of the study: what its line is called at its end, its colour and its marker."""


def epsilon_lines() -> str:
    """Accuracy against the ε that one user pays in all."""
    rows: list[Row] = data("one-shot-rivals")["rows"]
    left, right, top, foot = 52.0, 340.0, 74.0, 436.0
    epsilons = sorted({row["epsilon"] for row in rows if row["epsilon"]})
    most = max(row["P@10"] for row in rows)
    y_at: Callable[[float], float] = lambda value: foot - (foot - top) * value / most  # noqa: E731
    low, high = math.log2(epsilons[0]), math.log2(epsilons[-1])

    def x_at(epsilon: float) -> float:
        return left + 10 + (right - left - 20) * (math.log2(epsilon) - low) / (high - low)

    sheet = Sheet("Accuracy against ε", foot + 72 + _LINE * 5)
    sheet.text(EDGE, 58, "P@10 on MovieLens 1M, all items ranked", "soft")
    for tick in (n / 50 for n in range(int(most * 50) + 1)):
        sheet.line((left, right), (y_at(tick),) * 2, "line", lw=1)
        sheet.text(left - 7, y_at(tick) + 5, f"{tick:.2f}".removeprefix("0"), "soft", ha="right")
    for epsilon in epsilons:
        sheet.text(x_at(epsilon), foot + 20, f"{epsilon:g}".removeprefix("0"), "soft", ha="center")
    sheet.text((left + right) / 2, foot + 44, "ε that one user pays in all", ha="center")
    ends: list[tuple[float, str, str]] = []
    words: list[str] = []
    for system in dict.fromkeys(row["system"] for row in rows):
        mine = [row for row in rows if row["system"] == system]
        if mine[0]["epsilon"] is None:
            level = mine[0]["P@10"]
            sheet.line((left, right), (y_at(level),) * 2, "soft", ls="--")
            ends.append((y_at(level), system, "soft"))
            words.append(f"{system}, no ε: {figure_of(level)}")
            continue
        name, colour, marker = PENS[system]
        xs, ys = ([x_at(row["epsilon"]) for row in mine], [y_at(row["P@10"]) for row in mine])
        sheet.line(xs, ys, colour, marker=marker, ms=8, lw=3 if "time" in name else 1.8)
        told = ", ".join(f"{figure_of(row['P@10'])} at ε = {row['epsilon']:g}" for row in mine)
        words.append(f"{system}: {told}")
        ends.append((ys[-1], name, colour))
    places = spread([y for y, _, _ in ends], 20.0)
    for (y, name, colour), place in zip(ends, places, strict=True):
        sheet.line((right + 2, right + 14), (y, place), "soft", lw=1)
        sheet.text(right + 18, place + 5, name, colour)
    sheet.notes(foot + 72, [
        "δ = 10⁻⁶. Dashed: no ε, they see all the data. Means of three",
        "seeds; private ALS, FCF and FPL: one. Whom she has to trust:",
        "server and helper not to work together (gram, FCF, FPL),",
        "shuffler and server (FMF-LDP), a curator who sees all",
        "(private ALS), nobody (DPLCF).",
    ])  # fmt: skip
    return sheet.svg(words)


# --- speed ----------------------------------------------------------------------------------------


def speed() -> str:
    """What a second is enough for, beside others."""
    panels = [
        ("Triples learnt per second", data("bench-fpl"), 1e6, 2e10),
        ("Devices' rounds per second", data("bench-distributed"), 10.0, 2e7),
    ]
    tall = 44 + sum(85 + 26 * len(f["results"]) + _LINE * len(f["note"]) for _, f, _, _ in panels)
    sheet, words = Sheet("Speed beside others", tall), []
    y, left, right = 44.0, 196.0, WIDE - EDGE
    for name, found, low, high in panels:
        y += 30
        sheet.text(EDGE, y, name, weight="bold")
        first, last = math.log10(low), math.log10(high)
        top, foot = y + 10, y + 18 + 26 * len(found["results"])

        def x_at(value: float, first: float = first, last: float = last) -> float:
            return left + (right - left) * (math.log10(value) - first) / (last - first)

        for power in range(math.ceil(first), math.floor(last) + 1):
            sheet.line((x_at(10.0**power),) * 2, (top, foot), "line", lw=1, zorder=1)
            sheet.text(x_at(10.0**power), foot + 18, _short(10.0**power), "soft", ha="center")
        y += 8
        for row in found["results"]:
            y += 26
            x, ratio = x_at(row["value"]), f" ({row['ratio']:,.3g} ×)" if row["ratio"] else ""
            said, close = f"{_short(row['value'])}{ratio}", x > right - 110
            words.append(f"{row['name']}: {said} {row['unit']}")
            sheet.line([x], [y - 5], "soft" if row["is_peer"] else "accent", marker="o", ms=13)
            sheet.text(EDGE, y, row["name"], "soft" if row["is_peer"] else "ink")
            sheet.text(x + (-13 if close else 13), y, said, ha="right" if close else "left")
        sheet.notes(foot + 44, found["note"])
        y = foot + 31 + _LINE * len(found["note"])
    return sheet.svg(words)


def _short(value: float) -> str:
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


# --- the parties ----------------------------------------------------------------------------------

WORDS: Mapping[str, Mapping[str, str]] = {
    "DeviceReports": {"sender": "who sent it", "item": "which items", "values": "their numbers"},
    "MaskedReports": {"sender": "who sent it", "masked": "masked numbers"},
    "MaskSum": {"devices": "how many they are", "masks": "the sum of all masks"},
    "MaskSeeds": {"sender": "who takes part", "seeds": "seeds of the masks"},
    "SharedReports": {"sender": "who sent it", "secrets": "one share of three"},
    "CheckParts": {"parts": "others' checks"},
    "SumPart": {"devices": "how many they are", "part": "others' sums"},
    "BitReports": {"sender": "who sent them", "tier": "ε of a report"},
    "Batch": {"devices": "how many they are", "tier": "ε of a report", "reports": "mixed reports"},
    "Interaction": {
        "user": "who", "item": "which item", "positive": "liked or not", "time": "when",
    },
    "RowRequest": {"users": "whose rows", "items": "which items"},
    "Rows": {"users": "", "items": "", "user_rows": "", "item_rows": ""},
    "Gradients": {"users": "", "items": "", "user_rows": "", "item_rows": "gradients of each"},
}  # fmt: skip
"""What a party reads of a message, in words for people; empty if it is said elsewhere."""
SILENT = frozenset({"round", "bits", "travelled", "aggregator", "owner", "version"})
"""Fields that say nothing of a person."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way by which something leaves, with the parties on it in their order."""

    title: str
    systems: str
    sight: Sight
    parties: Sequence[tuple[str, str]]
    """Name for people, and in the sight table."""
    back: bool = False
    """Whether the last one answers the one before it, and gets nothing from it."""


WAYS: Sequence[Way] = (
    Way(
        "Secure sum",
        "gram, the default; FPL, FCF, UC-FedRec",
        SecureSum.sees,
        (("server", "server"), ("helper", "proxy")),
        back=True,
    ),
    Way(
        "Checked sum",
        "gram",
        CheckedSum.sees,
        (("server", "server"), ("two aggregators", "aggregator-1")),
        back=True,
    ),
    Way(
        "Shuffler",
        "FMF-LDP",
        Proxied.sees,
        (("shuffler", "proxy"), ("server", "server")),
    ),
    Way(
        "Data owners",
        "DRIFT as printed",
        SIGHT,
        (("data owner", "owner"), ("orchestrator", "orchestrator")),
    ),
    Way(
        "Straight to the server", "FPL, FCF, UC-FedRec as printed", Direct.sees, (("server",) * 2,)
    ),
)


def seen_by(sight: Sight, party: str) -> list[str]:
    """What a party reads, by the sight table. Raises if a field of it has no words here."""
    found: dict[str, None] = {}
    for message in sorted(sight[party], key=list(WORDS).index):
        new = sight[party][message] - SILENT - set(WORDS[message])
        if new:
            raise ValueError(f"the figure of the parties has no words for {message}: {new}")
        found |= dict.fromkeys(
            words for name, words in WORDS[message].items() if name in sight[party][message]
        )
    return [words for words in found if words]


def parties() -> str:
    """Who is there, and what each of them sees."""
    drawn = []
    for way in WAYS:
        boxes = [("her device", ["her history", "the model"])]
        boxes += [(name, seen_by(way.sight, party)) for name, party in way.parties]
        drawn.append((way, boxes, 12 + _LINE * (1 + max(len(lines) for _, lines in boxes))))
    high = 44 + sum(42 + tall for _, _, tall in drawn)
    sheet, words = Sheet("The parties, and what each sees", high + 32 + _LINE * 4), []
    y, gap = 44.0, 14.0
    for way, boxes, tall in drawn:
        y += 30
        sheet.text(EDGE, y, way.title, weight="bold")
        sheet.text(WIDE - EDGE, y, way.systems, "soft", ha="right")
        y += 12
        for number, (name, lines) in enumerate(boxes):
            wide = 170.0 if number else 112.0
            x = EDGE + (number and 112.0 + gap + (number - 1) * (170.0 + gap))
            colour = _LIGHT["soft" if number else "accent"]
            sheet.axes.add_patch(FancyBboxPatch(
                (x, y), wide, tall, boxstyle="round,pad=0,rounding_size=6",
                fc=_LIGHT["paper"], ec=colour, lw=1 if number else 2,
            ))  # fmt: skip
            sheet.text(x + 10, y + 22, name, weight="bold")
            for n, line in enumerate(lines):
                sheet.text(x + 10, y + 22 + _LINE * (n + 1), line)
            if number:
                back = way.back and number == len(boxes) - 1
                ends = ((x - gap, y + 17), (x, y + 17))
                how = {"arrowstyle": "->", "color": _LIGHT["ink"], "lw": 1.8, "shrinkA": 0,
                       "shrinkB": 0}  # fmt: skip
                sheet.axes.annotate("", ends[not back], ends[back], arrowprops=how)
                words.append(f"{way.title}: the {name} sees {', '.join(lines)}")
        y += tall
    sheet.notes(y + 32, [
        "By the sight tables to which tests hold every message.",
        "Who would read everything together: server and helper;",
        "any two of three aggregators, of whom the server is one.",
        "Shuffler and server together know whose a report is.",
    ])  # fmt: skip
    return sheet.svg(words)


FIGURES: Mapping[str, Callable[[], str]] = {
    "price-list": price_list,
    "accuracy-epsilon": epsilon_lines,
    "speed": speed,
    "parties": parties,
}


def drawn() -> Iterator[tuple[Path, str]]:
    """Every figure: its file, and what is to be in it."""
    for name, draw in FIGURES.items():
        yield PLACE / f"{name}.svg", draw()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="figures", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one is old")
    options = parser.parse_args(arguments)
    old = []
    for place, content in drawn():
        before = place.read_text(encoding="utf-8") if place.exists() else ""
        if content == before:
            continue
        old.append(place.name)
        if not options.check:
            place.write_text(content, encoding="utf-8")
            print(f"{place.relative_to(ROOT)} is new", file=sys.stderr)
    if options.check and old:
        print(f"`make figures` would change {', '.join(old)}.", file=sys.stderr)
    return 1 if options.check and old else 0


if __name__ == "__main__":
    sys.exit(main())
