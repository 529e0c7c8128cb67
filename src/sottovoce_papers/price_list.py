"""The price list: every system as printed and as it survives, with accuracy, bytes, time, and what
each attack came to. A table and a plot for each data set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.attacks.power import decided
from sottovoce.attacks.views import PERMITTED
from sottovoce.evaluation import plots
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.tables import Column, Table
from sottovoce.runs.tables import readable_bytes
from sottovoce_papers.price_cells import PriceCell, PriceRow, PriceStudy
from sottovoce_papers.study import Claim, Row, claim, shown

Found = Sequence[tuple[PriceRow, PriceCell]]
FOUND_AT_LEAST = 0.95
"""Of the hidden positives that were drawn, by A1 as printed."""
EXPECTED: Mapping[str, tuple[str, str]] = {
    "A3": ("FPL", "the sign of a bias names positives (A3)"),
    "A4": ("FCF", "one upload names every item (A4)"),
    "A6": ("DRIFT", "the orchestrator recognises users in gradients (A6)"),
    "A7": ("DRIFT", "requests name who touched what (A7)"),
    "A9": ("UC-FedRec", "a filter's update names the class (A9)"),
}
"""What must succeed as printed, so that nobody takes it for protection: by code, and whose."""
MEMBERSHIP = "A12"
"""The attack that needs nothing but the published model."""


KNOWS_OTHERS = "whoever knows everybody else"
"""The attack of A12 that gets what ε permits, by its making."""
MADE = ("sound", "sums")
"""Kinds of ways that were made against attacks."""


def broken_codes(cell: PriceCell) -> list[str]:
    """Codes of the attacks that have won."""
    return list(dict.fromkeys(a["code"] for a in cell.attacks if a["verdict"] == "broken"))


def every_claim(study: PriceStudy, source: str, found: Found) -> list[Claim]:
    return [
        *_inversion(source, found),
        *_expected(source, found),
        *_sound(source, found),
        *_membership(source, found),
        *_same_model(study, source, found),
    ]


def _words(attack: Mapping[str, Any]) -> str:
    low, high = attack["interval"]
    return (
        f"{attack['code']} {attack['attack']}, seed {attack['seed']}: {attack['measure']} "
        f"{attack['value']:.3f} "
        f"[{low:.3f}, {high:.3f}], {attack['base_rate']:.3f} without it"
        f"{', underpowered' * (attack['verdict'] == 'underpowered')}"
    )


def _inversion(source: str, found: Found) -> list[Claim]:
    """A1 on updates in the clear, where no positive may leave."""
    claims = []
    for row, cell in found:
        shares = {choice.get("share_positives") for choice in _choices(row, source)}
        if row.system != "FPL" or row.kind != "printed" or shares != {0.0}:
            continue
        tried = [a for a in cell.attacks if (a["code"], a["party"]) == ("A1", "server")]
        parts = [
            (
                a["recall"] is not None
                and a["recall"] >= FOUND_AT_LEAST
                and a["verdict"] == "broken",
                f"{_found(a)} found, {_words(a)}",
            )
            for a in tried
        ]
        text = (
            f"{source}: as printed, with π = 0, A1 recovers at least {FOUND_AT_LEAST:.0%} of the "
            "hidden positives that were drawn"
        )
        claims.append(claim(text, *(parts or [(False, "the attack was not run")])))
    return claims


def _found(attack: Mapping[str, Any]) -> str:
    return "none" if attack["recall"] is None else f"{attack['recall']:.1%}"


def _choices(row: PriceRow, source: str) -> list[Mapping[str, Any]]:
    """The choices of those who take part."""
    consent = {**row.sections.get("consent", {}), **row.at.get(source, {}).get("consent", {})}
    choices = consent.get("mix", [consent])
    return [choice for choice in choices if choice.get("takes_part", True)]


def _expected(source: str, found: Found) -> list[Claim]:
    claims = []
    for code, (system, words) in EXPECTED.items():
        tried = [
            (row, a)
            for row, cell in found
            if row.system == system and row.kind == "printed"
            for a in cell.attacks
            if a["code"] == code and a["verdict"] != "nothing to attack"
        ]
        if tried:
            row, best = max(tried, key=lambda one: one[1]["interval"][0] - one[1]["base_rate"])
            text = f"{source}: as printed, {words}"
            claims.append(
                claim(text, (best["verdict"] == "broken", f"{row.label}, {_words(best)}"))
            )
    return claims


def _sound(source: str, found: Found) -> list[Claim]:
    """That no attack wins, membership inference left out, which has a claim of its own."""
    claims = []
    for row, cell in found:
        if row.kind not in MADE:
            continue
        tried = [a for a in cell.attacks if a["code"] != MEMBERSHIP]
        lost = [a for a in tried if a["verdict"] == "broken"]
        unclear = [a for a in tried if a["verdict"] == "underpowered"]
        codes = ", ".join(dict.fromkeys(a["code"] for a in tried)) or "none"
        detail = "; ".join(map(_words, lost + unclear)) or f"tried: {codes}"
        text = (
            f"{source}: {row.system}, {row.label}: no attack beats the guess without it "
            f"({MEMBERSHIP} aside)"
        )
        claims.append(claim(text, (not lost, detail)))
    return claims


def _membership(source: str, found: Found) -> list[Claim]:
    """What the published model tells, and what closing it costs."""
    made = [(r, c) for r, c in found if r.kind in MADE and _members(c)]
    plain = [(r, c) for r, c in made if not r.epsilon]
    noisy = [(r, c) for r, c in made if r.epsilon]
    claims = []
    for row, cell in plain:
        text = f"{source}: {row.system}, {row.label}: the model tells nothing of members (A12)"
        claims.append(claim(text, *[(_closed(a), _words(a)) for a in _members(cell)]))
    for row, cell in noisy:
        base = next((c for r, c in plain if r.system == row.system), None)
        cost = ""
        if base is not None and base.accuracy["P@10"] > 0:
            change = cell.accuracy["P@10"] / base.accuracy["P@10"] - 1.0
            cost = f", P@10 {cell.accuracy['P@10']:.4f} ({change:+.0%})"
        text = f"{source}: {row.system}: noise for ε = {row.epsilon:g} closes A12"
        claims.append(claim(text, *[(_closed(a), _words(a) + cost) for a in _members(cell)]))
    return claims


def _closed(attack: Mapping[str, Any]) -> bool:
    """Whether it is known to tell no more than a coin. Of one who knows everybody else it is asked
    whether he tells more than ε permits."""
    if attack["measure"] != PERMITTED or attack["attack"] == KNOWS_OTHERS:
        return bool(attack["verdict"] == "holds")
    low, high = attack["interval"]
    return low <= 0.5 and decided((low, high), 0.5)


def _members(cell: PriceCell) -> list[Mapping[str, Any]]:
    return [
        a for a in cell.attacks if a["code"] == MEMBERSHIP and a["verdict"] != "nothing to attack"
    ]


def _same_model(study: PriceStudy, source: str, found: Found) -> list[Claim]:
    """A secure sum without noise gives the model of the direct link, bit for bit."""
    claims = []
    direct: dict[str, PriceCell] = {}
    for row, cell in found:
        table = dict(row.experiment(source, study.data[source], study.config.seeds[0]).table)
        link = table.pop("link", {})
        key = repr(table)
        if link.get("name", "direct") == "direct":
            direct.setdefault(key, cell)
        elif link.get("name") == "secure-sum" and not link.get("clip") and key in direct:
            same = direct[key].digest == cell.digest
            gap = cell.accuracy["P@10"] - direct[key].accuracy["P@10"]
            text = (
                f"{source}: {row.system} over a secure sum is the same as on the direct link, bit "
                "for bit"
            )
            claims.append(
                claim(text, (same, f"model and vectors {cell.digest[:8]} and "
                             f"{direct[key].digest[:8]}, P@10 {gap:+.4f}"))
            )  # fmt: skip
    return claims


NAME = "price-list"


def price_list(study: PriceStudy, out: Path) -> dict[str, Any]:
    tables: list[Table] = []
    claims: list[Claim] = []
    rows: list[Row] = []
    attacks: list[Row] = []
    pictures: list[FigureBlock] = []
    for source in study.config.sources:
        found = study.results(source)
        tables += [_prices(source, found), _attacks(source, found)]
        claims += every_claim(study, source, found)
        rows += [_row(source, row, cell) for row, cell in found]
        attacks += [
            {"data": source, "run": f"{row.system}, {row.label}", **attack}
            for row, cell in found
            for attack in cell.attacks
        ]
        drawn = _draw(out / "figures" / f"{NAME}-{source}", source, found)
        caption = f"What each way to run a system reaches on {source}, and which attacks win"
        pictures.append(FigureBlock(drawn.svg, caption))
    return study.result(NAME, out, tables, claims, pictures, rows=rows, attacks=attacks)


STUDY, VIEWS = PriceStudy, {"price-list": price_list}


# --- tables --------------------------------------------------------------------------------------


def _row(source: str, row: PriceRow, cell: PriceCell) -> Row:
    return {
        "data": source,
        "system": row.system,
        "way": row.label,
        "kind": row.kind,
        **cell.accuracy,
        "top_pop": cell.top_pop,
        "up": cell.up,
        "down": cell.down,
        "seconds": cell.seconds,
        "devices": cell.devices,
        "rounds": cell.rounds,
        "epsilon": row.epsilon or None,
        "noise": cell.noise,
        "model": cell.digest,
        "broken": broken_codes(cell),
        "held": _held(cell),
        "underpowered": _underpowered(cell),
        "notes": list(cell.notes),
    }


def _broken(cell: PriceCell) -> list[str]:
    """Codes of the attacks that have won, and with how many seeds where not with all."""
    every = {a["seed"] for a in cell.attacks}
    found = []
    for code in broken_codes(cell):
        won = {a["seed"] for a in cell.attacks if a["code"] == code and a["verdict"] == "broken"}
        found.append(code if won == every else f"{code} ({len(won)} of {len(every)} seeds)")
    return found


def _held(cell: PriceCell) -> list[str]:
    """Codes of which no attack has won, and one was tried."""
    lost = {a["code"] for a in cell.attacks if a["verdict"] == "broken"}
    tried = [a["code"] for a in cell.attacks if a["verdict"] == "holds" and a["code"] not in lost]
    return list(dict.fromkeys(tried))


def _underpowered(cell: PriceCell) -> list[str]:
    """Codes of which an attack saw too little, and none has won."""
    lost = set(broken_codes(cell))
    tried = [a["code"] for a in cell.attacks if a["verdict"] == "underpowered"]
    return [code for code in dict.fromkeys(tried) if code not in lost]


def _prices(source: str, found: Found) -> Table:
    columns = [
        Column("system"), Column("way"), Column("kind"), Column("P@10", format=".4f"),
        Column("NDCG@10", format=".4f"), Column("change", "P@10 against printed", "+.1%"),
        Column("up"), Column("down"), Column("seconds", "s per round", ".2f"), Column("broken"),
        Column("held"), Column("underpowered"),
    ]  # fmt: skip
    printed = _printed(found)
    rows = []
    for row, cell in found:
        base = printed.get(row.system, math.nan)
        rows.append(
            _row(source, row, cell)
            | {"change": cell.accuracy["P@10"] / base - 1.0 if base > 0 else math.nan,
               "up": readable_bytes(cell.up), "down": readable_bytes(cell.down),
               "broken": ", ".join(_broken(cell)) or "none",
               "held": ", ".join(_held(cell)) or "none",
               "underpowered": ", ".join(_underpowered(cell)) or "none"}
        )  # fmt: skip
    top = next((cell.top_pop for _, cell in found), math.nan)
    notes = [f"Top-Pop has P@10 {top:.4f}. Up and down: per device and round."]
    protocol = found[0][1].protocol if found else ""
    return shown(f"What it costs on {source}", columns, rows, protocol, notes)


def _printed(found: Found) -> Mapping[str, float]:
    """The best P@10 of each system as printed."""
    best: dict[str, float] = {}
    for row, cell in found:
        if row.kind == "printed":
            best[row.system] = max(best.get(row.system, 0.0), cell.accuracy["P@10"])
    return best


def _attacks(source: str, found: Found) -> Table:
    columns = [
        Column("system"), Column("way"), Column("attack"), Column("seed"), Column("party", "by"),
        Column("measure"), Column("value", "result", ".3f"), Column("interval", "95 %"),
        Column("base_rate", "without the attack", ".3f"), Column("recall", "found", ".3f"),
        Column("verdict"),
    ]  # fmt: skip
    rows = []
    for row, cell in found:
        for attack in cell.attacks:
            low, high = attack["interval"]
            line = {**attack, "system": row.system, "way": row.label,
                    "attack": f"{attack['code']} {attack['attack']}",
                    "interval": f"{low:.3f} to {high:.3f}"}  # fmt: skip
            if attack["verdict"] == "nothing to attack":
                line |= {"value": None, "interval": "–", "base_rate": None}
            rows.append(line)
    notes = [
        "Attacks that do not apply to a way to run a system are left out; `sottovoce attack` on a "
        "run says why."
    ]
    return shown(f"Every attack on {source}", columns, rows, notes=notes)


# --- the plot ------------------------------------------------------------------------------------


def _draw(path: Path, source: str, found: Found) -> plots.Figures:
    """A line for each way: its accuracy, and beside it what won against it and what it sends."""
    title = f"{source}: accuracy, bytes per round, and which attacks win"
    with plots.drawing(path, title, (9.2, 1.6 + 0.36 * len(found))) as (figure, axes):
        places = list(range(len(found)))[::-1]
        most = max([cell.accuracy["P@10"] for _, cell in found] + [found[0][1].top_pop])
        for won, colour, words in (
            (True, plots.PALETTE[1], "an attack wins"),
            (False, plots.PALETTE[0], "no attack wins"),
        ):
            mine = [
                (place, cell)
                for place, (_, cell) in zip(places, found, strict=True)
                if bool(broken_codes(cell)) == won
            ]
            if mine:
                axes.scatter(
                    [cell.accuracy["P@10"] for _, cell in mine], [place for place, _ in mine],
                    color=colour, marker="X" if won else "o", s=52, zorder=3, label=words,
                )  # fmt: skip
        for place, (_, cell) in zip(places, found, strict=True):
            lost = ", ".join(_broken(cell)) or "none"
            axes.text(
                1.06 * most, place, f"{readable_bytes(cell.up)} up; broken: {lost}", fontsize=8,
                va="center",
            )  # fmt: skip
        axes.axvline(
            found[0][1].top_pop, color=plots.SOFT, linestyle=(0, (5, 2)), linewidth=1.2,
            label="Top-Pop",
        )  # fmt: skip
        labels = [f"{row.system}: {row.label}" for row, _ in found]
        axes.set_yticks(places, labels, fontsize=8)
        axes.set(xlim=(0.0, 1.75 * most), ylim=(-0.7, len(found) - 0.3), xlabel="P@10")
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return plots.figure_files(path)
