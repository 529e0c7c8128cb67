"""`make figures`: draws the figures of the documents.

What they show is in docs/figures/data, as `reproduce --json` and `bench --json` print it, or it is
read from the source: the rooms from the import graph, the parties from the sight tables. The same
input gives the same files, whatever is installed beside us.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import facts
from drawings import SHAPES, axis, mark, sheet, text
from sottovoce.core.links import CheckedSum, Direct, Proxied, SecureSum, Sight
from sottovoce.engines.silo_simulation import SIGHT
from sottovoce.evaluation.plots import spread

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "docs" / "figures"
WIDE = 520.0
"""So that letters of 15 have more than 10 on the screen of a phone."""
EDGE = 20.0
_LINE = 21.0
"""From one line of text to the next."""

Row = Mapping[str, Any]


def data(name: str) -> Row:
    found: Row = json.loads((PLACE / "data" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def path(kind: str, way: str) -> str:
    return f'<path class="{kind}" d="{way}"/>'


def named(words: str, *parts: str) -> str:
    """Parts that say what they are when somebody points at them."""
    return f"<g><title>{escape(words)}</title>{''.join(parts)}</g>"


def footnotes(y: float, lines: Sequence[str]) -> list[str]:
    return [text(EDGE, y + _LINE * n, line, "soft") for n, line in enumerate(lines)]


def figure_of(value: float) -> str:
    """As our documents write it: .0924"""
    return f"{value:.4f}".removeprefix("0")


# --- the price list -------------------------------------------------------------------------------

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
    left, right, side = 204.0, 356.0, 368.0
    at, ticks = axis(0.0, 0.16, left, right)
    top_pop = next(row["P@10"] for row in rows if row["system"] == "Top-Pop")
    title = "What a promise costs"
    parts = [
        text(EDGE, 34, title, "title"),
        text(EDGE, 58, "MovieLens 1M, P@10, and which attacks win", "soft"),
        text(side, 82, "attacks that win", "head"),
        text((left + right) / 2, 82, "P@10", "head", "middle"),
    ]
    y, words = 86.0, []
    body: list[str] = []
    systems = list(dict.fromkeys(row["system"] for row in rows if row["system"] != "Top-Pop"))
    for system in systems:
        y += 28
        body.append(text(EDGE, y, system, "head"))
        body.append(text(WIDE - EDGE, y, PROVEN[system], "soft", "end"))
        body.append(path("grid", f"M{EDGE} {y + 7}H{WIDE - EDGE}"))
        start = y + 7
        y += 4
        ways = [row for row in rows if row["system"] == system]
        for way in dict.fromkeys(row["way"] for row in ways):
            mine = [row for row in ways if row["way"] == way]
            y += 24
            spots = [at(row["P@10"]) for row in mine]
            body.append(text(EDGE, y, way))
            if len(mine) > 1:
                body.append(path("whisker", f"M{min(spots):.1f} {y - 5}H{max(spots):.1f}"))
            for row, x in zip(mine, spots, strict=True):
                said = f"{system}, {way}{_at(row)}: P@10 {figure_of(row['P@10'])}, {_wins(row)}"
                body.append(named(said, mark(row["bound"], x, y - 5)))
                words.append(said)
            won = list(dict.fromkeys(map(_codes, mine)))
            body.append(text(side, y, " / ".join(won if len(won) == 1 else map(_codes, mine))))
        for tick in ticks:
            parts.append(path("grid", f"M{at(tick):.1f} {start}V{y + 9}"))
        parts.append(path("level", f"M{at(top_pop):.1f} {start}V{y + 9}"))
    foot = y + 9
    for tick in ticks:
        parts.append(text(at(tick), foot + 18, f"{tick:.2f}".removeprefix("0"), "tick", "middle"))
    parts.append(text(at(top_pop), foot + 38, f"Top-Pop {figure_of(top_pop)}", "soft", "middle"))
    parts += body
    y = foot + 66
    for shape, meaning in SHAPES.items():
        parts += [mark(shape, EDGE + 6, y - 5), text(EDGE + 20, y, meaning)]
        y += _LINE
    notes = [
        "A1 to A4: her items. A5: her reports, an item. A6, A7: who",
        "liked what. A8 to A10: attributes. A12: that she took part,",
        "or items. N1: who has many items. In brackets: with one of",
        "two seeds. – : none won; few rounds were attacked.",
        *found["note"],
    ]
    parts += footnotes(y + 6, notes)
    high = y + 6 + _LINE * len(notes)
    said = f"Top-Pop has P@10 {figure_of(top_pop)}. " + ". ".join(words) + "."
    return sheet(title, said, (WIDE, high), parts)


def _at(row: Row) -> str:
    return f", ε = {row['epsilon']:g}" if row.get("epsilon") else ""


def _codes(row: Row) -> str:
    once = [f"({code})" for code in row["broken_once"]]
    every = " ".join([*row["broken"], *once]) or "–"
    return every.replace("A1 A2 A3", "A1–A3").replace("A8 A9 A10", "A8–A10")


def _wins(row: Row) -> str:
    return f"attacks that win: {_codes(row)}" if _codes(row) != "–" else "no attack won"


# --- accuracy against ε ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pen:
    """How a line is drawn, and what it is called at its end."""

    name: str
    kind: str
    shape: str
    more: str = ""


_MARKS: Mapping[str, str] = {
    "circle": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    "square": "M-4.5-4.5h9v9h-9z",
    "up": "M0-6l6 11h-12z",
    "down": "M0 6l6-11h-12z",
    "diamond": "M0-6.5l6.5 6.5-6.5 6.5-6.5-6.5z",
    "cross": "M-5-5l10 10M-5 5l10-10",
    "bar": "M-6 0h12",
}
PENS: Mapping[str, Pen] = {
    "gram, with time": Pen("gram, with time", "accent", "circle", "strong"),
    "gram, plain": Pen("gram, plain", "accent", "square"),
    "private ALS (dpals)": Pen("private ALS", "good", "up"),
    "FCF, noise on sums": Pen("FCF with noise", "warn", "diamond"),
    "FPL, noise on sums": Pen("FPL with noise", "bad", "down"),
    "FMF-LDP, rotated": Pen("FMF-LDP", "warn", "cross"),
    "DPLCF": Pen("DPLCF", "bad", "bar"),
}
"""By system of the study."""


def epsilon_lines() -> str:
    """Accuracy against the ε that one user pays in all."""
    found = data("one-shot-rivals")
    rows: list[Row] = found["rows"]
    left, right, top, foot = 52.0, 340.0, 74.0, 436.0
    epsilons = sorted({row["epsilon"] for row in rows if row["epsilon"]})
    most = max(row["P@10"] for row in rows)
    y_at, ticks = axis(0.0, most, foot, top)
    low, high = math.log2(epsilons[0]), math.log2(epsilons[-1])

    def x_at(epsilon: float) -> float:
        return left + 10 + (right - left - 20) * (math.log2(epsilon) - low) / (high - low)

    title = "Accuracy against ε"
    parts = [
        text(EDGE, 34, title, "title"),
        text(EDGE, 58, "P@10 on MovieLens 1M, all items ranked", "soft"),
    ]
    for tick in ticks:
        parts.append(path("grid", f"M{left} {y_at(tick):.1f}H{right}"))
        label = f"{tick:.2f}".removeprefix("0")
        parts.append(text(left - 7, y_at(tick) + 5, label, "tick", "end"))
    for epsilon in epsilons:
        label = f"{epsilon:g}".removeprefix("0")
        parts.append(text(x_at(epsilon), foot + 20, label, "tick", "middle"))
    parts.append(path("axis", f"M{left} {foot}H{right}"))
    parts.append(text((left + right) / 2, foot + 44, "ε that one user pays in all", "", "middle"))
    ends: list[tuple[float, str, str]] = []
    words: list[str] = []
    for system in dict.fromkeys(row["system"] for row in rows):
        mine = [row for row in rows if row["system"] == system]
        if mine[0]["epsilon"] is None:
            level = mine[0]["P@10"]
            parts.append(path("level", f"M{left} {y_at(level):.1f}H{right}"))
            ends.append((y_at(level), system, "quiet"))
            words.append(f"{system}, no ε: {figure_of(level)}")
            continue
        pen = PENS[system]
        spots = [(x_at(row["epsilon"]), y_at(row["P@10"])) for row in mine]
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
        told = ", ".join(f"{figure_of(row['P@10'])} at ε = {row['epsilon']:g}" for row in mine)
        words.append(f"{system}: {told}")
        shapes = "".join(
            f'<path class="mark line {pen.kind}" transform="translate({x:.1f} {y:.1f})" '
            f'd="{_MARKS[pen.shape]}"/>'
            for x, y in spots
        )
        way = path(f"line {pen.kind} {pen.more}".strip(), f"M{line}")
        parts.append(named(words[-1], way, shapes))
        ends.append((spots[-1][1], pen.name, pen.kind))
    for (y, name, kind), place in zip(ends, spread([y for y, _, _ in ends], 20.0), strict=True):
        parts.append(path("whisker", f"M{right + 2} {y:.1f}L{right + 14} {place:.1f}"))
        parts.append(text(right + 18, place + 5, name, kind))
    notes = [
        "δ = 10⁻⁶. Dashed: no ε, they see all the data. Means of three",
        "seeds; private ALS, FCF and FPL: one. Whom she has to trust:",
        "server and helper not to work together (gram, FCF, FPL),",
        "shuffler and server (FMF-LDP), a curator who sees all",
        "(private ALS), nobody (DPLCF).",
    ]
    parts += footnotes(foot + 72, notes)
    tall = foot + 72 + _LINE * len(notes)
    return sheet(title, ". ".join(words) + ".", (WIDE, tall), parts)


# --- speed ----------------------------------------------------------------------------------------


def speed() -> str:
    """What a second is enough for, beside others."""
    panels = [
        ("Triples learnt per second", data("bench-fpl"), 1e6, 2e10),
        ("Devices' rounds per second", data("bench-distributed"), 10.0, 2e7),
    ]
    title = "Speed beside others"
    parts, words = [text(EDGE, 34, title, "title")], []
    y = 44.0
    left, right = 196.0, WIDE - EDGE
    for name, found, low, high in panels:
        y += 30
        parts.append(text(EDGE, y, name, "head"))
        first, last = math.log10(low), math.log10(high)

        def x_at(value: float, first: float = first, last: float = last) -> float:
            return left + (right - left) * (math.log10(value) - first) / (last - first)

        top = y + 10
        body: list[str] = []
        y += 8
        for row in found["results"]:
            y += 26
            ours = not row["is_peer"]
            x = x_at(row["value"])
            said = f"{_short(row['value'])}{_times(row)}"
            words.append(f"{row['name']}: {said} {row['unit']}")
            kind = "dot" if ours else "bar"
            dot = f'<circle class="{kind}" cx="{x:.1f}" cy="{y - 5:.1f}" r="7"/>'
            body.append(text(EDGE, y, row["name"], "" if ours else "soft"))
            close = x > right - 110
            body.append(
                named(
                    words[-1],
                    dot,
                    text(x + (-13 if close else 13), y, said, "", "end" if close else "start"),
                )
            )
        foot = y + 10
        powers = range(math.ceil(first), math.floor(last) + 1)
        for power in powers:
            x = x_at(10.0**power)
            parts.append(path("grid", f"M{x:.1f} {top}V{foot}"))
            parts.append(text(x, foot + 18, _short(10.0**power), "tick", "middle"))
        parts += body
        parts += footnotes(foot + 44, found["note"])
        y = foot + 44 + _LINE * (len(found["note"]) - 1) + 8
    return sheet(title, ". ".join(words) + ".", (WIDE, y + 12), parts)


def _short(value: float) -> str:
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _times(row: Row) -> str:
    return f" ({row['ratio']:,.3g} ×)" if row["ratio"] else ""


# --- the house ------------------------------------------------------------------------------------

PAPERS = "sottovoce_papers"
FOUNDATION = tuple(room for layer in facts.LAYERS[:2] for room in layer)


def floors() -> list[tuple[str, tuple[str, ...]]]:
    """What stands at a line, and which rooms it is. The small ones at the bottom share one."""
    rooms = [room for layer in facts.LAYERS[2:] for room in layer]
    rooms.insert(rooms.index("cli"), PAPERS)
    return [("errors, rng …", FOUNDATION), *((room, (room,)) for room in rooms)]


def house() -> str:
    """Which room imports from which."""
    imported = facts.rooms_imported(facts.edges_of(facts.modules_of(ROOT / "src")))
    lines = floors()
    left, top = 166.0, 236.0
    cell = (WIDE - EDGE - left) / len(lines)
    title = "The house, and which way imports run"
    end = left + cell * len(lines)
    parts = [
        text(EDGE, 34, title, "title"),
        text(EDGE, 58, "A dot: the room at the left imports the one above it.", "soft"),
        text(EDGE, 79, "All of them are below the diagonal.", "soft"),
    ]
    words = []
    for row, (name, rooms) in enumerate(lines):
        y = top + cell * row
        parts.append(path("grid", f"M{EDGE} {y + cell:.1f}H{end:.1f}"))
        parts.append(
            path("grid", f"M{left + cell * row:.1f} {top - 6}V{top + cell * len(lines):.1f}")
        )
        parts.append(text(left - 10, y + 14, name, "", "end"))
        x = left + cell * (row + 0.5)
        parts.append(
            f'<text transform="translate({x + 5:.1f} {top - 10:.1f}) rotate(-90)">'
            f"{escape(name)}</text>"
        )
        parts.append(
            f'<rect class="own" x="{x - 5:.1f}" y="{y + cell / 2 - 5:.1f}" width="10" height="10"/>'
        )
        seen = set().union(*(imported.get(room, set()) for room in rooms))
        below = [
            (n, other) for n, (other, them) in enumerate(lines) if seen & set(them) and n != row
        ]
        for n, other in below:
            x = left + cell * (n + 0.5)
            dot = f'<circle class="dot" cx="{x:.1f}" cy="{y + cell / 2:.1f}" r="5.5"/>'
            parts.append(named(f"{name} imports {other}", dot))
        words.append(f"{name} imports {', '.join(other for _, other in below) or 'no other room'}")
    foot = top + cell * len(lines) + 30
    notes = [
        "Drawn from the source; tests/test_architecture.py holds it.",
        "algorithms and privacy do not know each other.",
    ]
    parts += footnotes(foot, notes)
    return sheet(title, ". ".join(words) + ".", (WIDE, foot + _LINE * len(notes)), parts)


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
    title = "The parties, and what each sees"
    parts, words = [text(EDGE, 34, title, "title")], []
    y, gap = 44.0, 14.0
    for way in WAYS:
        y += 30
        parts.append(text(EDGE, y, way.title, "head"))
        parts.append(text(WIDE - EDGE, y, way.systems, "soft", "end"))
        y += 12
        boxes = [("her device", ["her history", "the model"])]
        boxes += [(name, seen_by(way.sight, party)) for name, party in way.parties]
        tall = 12 + _LINE * (1 + max(len(lines) for _, lines in boxes))
        for number, (name, lines) in enumerate(boxes):
            wide = 170.0 if number else 112.0
            x = EDGE + (number and 112.0 + gap + (number - 1) * (170.0 + gap))
            kind = "box" if number else "box ours"
            parts.append(
                f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{wide:g}" '
                f'height="{tall:g}" rx="6"/>'
            )
            parts.append(text(x + 10, y + 22, name, "head"))
            parts += [text(x + 10, y + 22 + _LINE * (n + 1), line) for n, line in enumerate(lines)]
            if number:
                back = way.back and number == len(boxes) - 1
                middle, start, end = y + 17, x - gap + 1, x - 2
                start, end = (end, start) if back else (start, end)
                turn = 5 if back else -5
                parts.append(
                    path("arrow", f"M{start} {middle}H{end}m{turn} -5L{end} {middle}l{turn} 5")
                )
                words.append(f"{way.title}: the {name} sees {', '.join(lines)}")
        y += tall
    notes = [
        "By the sight tables to which tests hold every message.",
        "Who would read everything together: server and helper;",
        "any two of three aggregators, of whom the server is one.",
        "Shuffler and server together know whose a report is.",
    ]
    parts += footnotes(y + 32, notes)
    return sheet(title, ". ".join(words) + ".", (WIDE, y + 32 + _LINE * len(notes)), parts)


FIGURES: Mapping[str, Callable[[], str]] = {
    "price-list": price_list,
    "accuracy-epsilon": epsilon_lines,
    "speed": speed,
    "house": house,
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
