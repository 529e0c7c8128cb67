"""The price list: every system as printed and as it survives, with accuracy, bytes, time, and what
each attack came to. A table and a plot for each data set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.evaluation import plots
from sottovoce.evaluation.report import Block, FigureBlock, Section, TextBlock, write_report
from sottovoce.evaluation.tables import Cell as Entry
from sottovoce.evaluation.tables import Column, Table, Value
from sottovoce.reproduce.price_cells import Cell, PriceStudy, Row
from sottovoce.reproduce.price_claims import broken_codes, every_claim
from sottovoce.run_tables import readable_bytes

NAME = "price-list"
_READING = (
    "Accuracy is that of the run's own protocol, by full ranking. Trainings are short, and in most "
    "cases the same for all ways to run a system; on Foursquare Italy FPL makes more draws in "
    "fewer rounds where the link is a sum, and with noise vectors are smaller and rounds fewer. "
    "Two in ten users take no part and are served at home.\n\n"
    "Bytes up are what a device sends in a round in which it is asked, by its ledger; down is the "
    "published model. In DRIFT they are those of a data owner in an epoch, to the orchestrator and "
    "back. Seconds are those of a whole round on this machine, every message written out: what "
    "devices learn, masks, server and proxy; in DRIFT, of an epoch without messages, data and "
    "evaluation included.\n\n"
    "An attack has won (broken) where even the low end of its 95 % interval lies above what the "
    "best guess without it reaches. That a promise holds says that this attack got nowhere on "
    "these data, not that none could. The attacks on rows of a sum that are one device's give the "
    "attacker everybody's vectors to tell whose they are, which nobody in these systems has. A12 "
    "needs nothing but the published model, so that only noise on the sums can close it. FMF-LDP "
    "as printed lets the proxy read reports; that is no attack here, since it needs none: to such "
    "a proxy the plain sum of all ε holds, and nothing else."
)


def price_list(study: PriceStudy, out: Path) -> dict[str, Any]:
    tables: list[Table] = []
    claims: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    attacks: list[dict[str, Any]] = []
    sections: list[Section] = []
    data: list[str] = []
    for source in study.config.sources:
        found = study.results(source)
        mine = every_claim(study, source, found)
        prices, tried = _prices(source, found), _attacks(source, found)
        drawn = _draw(out / "figures" / f"{NAME}-{source}", source, found)
        caption = f"What each way to run a system reaches on {source}, and which attacks win"
        blocks: list[Block] = [prices, FigureBlock(drawn.svg, caption), tried, _claims(mine)]
        sections.append(Section(source, blocks))
        tables += [prices, tried]
        claims += mine
        rows += [_row(source, row, cell) for row, cell in found]
        attacks += [
            {"data": source, "run": f"{row.system}, {row.label}", **attack}
            for row, cell in found
            for attack in cell.attacks
        ]
        data.append(found[0][1].data if found else source)
    sections.append(Section("How to read this", [TextBlock(_READING)]))
    page = write_report(out / "report.html", NAME, sections)
    return {
        "name": NAME,
        "data": "; ".join(data),
        "protocol": _protocol(study),
        "rows": rows,
        "attacks": attacks,
        "claims": claims,
        "tables": tables,
        "report": str(page),
    }


def _protocol(study: PriceStudy) -> str:
    return (
        "each user's latest 20 % held out, top 10 of all training items that the user has not "
        f"touched; {_seeds(study)}; short trainings, so that accuracy is below that of "
        "the accuracy tables; attacks on the messages of the first rounds and on the final model"
    )


def _seeds(study: PriceStudy) -> str:
    named = ", ".join(map(str, study.config.seeds))
    return f"mean of the seeds {named}" if len(study.config.seeds) > 1 else f"seed {named}"


# --- tables --------------------------------------------------------------------------------------


def _row(source: str, row: Row, cell: Cell) -> dict[str, Any]:
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
        "notes": list(cell.notes),
    }


def _broken(cell: Cell) -> list[str]:
    """Codes of the attacks that have won, and with how many seeds where not with all."""
    every = {a["seed"] for a in cell.attacks}
    found = []
    for code in broken_codes(cell):
        won = {a["seed"] for a in cell.attacks if a["code"] == code and a["verdict"] == "broken"}
        found.append(code if won == every else f"{code} ({len(won)} of {len(every)} seeds)")
    return found


def _held(cell: Cell) -> list[str]:
    """Codes of which no attack has won, and one was tried."""
    lost = {a["code"] for a in cell.attacks if a["verdict"] == "broken"}
    tried = [a["code"] for a in cell.attacks if a["verdict"] == "holds" and a["code"] not in lost]
    return list(dict.fromkeys(tried))


def _prices(source: str, found: Sequence[tuple[Row, Cell]]) -> Table:
    columns = [
        Column("system"),
        Column("way"),
        Column("kind"),
        Column("P@10", format=".4f"),
        Column("NDCG@10", format=".4f"),
        Column("change", "P@10 against printed", "+.1%"),
        Column("up", "up"),
        Column("down", "down"),
        Column("seconds", "s per round", ".2f"),
        Column("broken"),
        Column("held"),
    ]
    printed = _printed(found)
    rows: list[dict[str, Value | Entry]] = []
    for row, cell in found:
        base = printed.get(row.system, math.nan)
        rows.append(
            {
                "system": row.system,
                "way": row.label,
                "kind": row.kind,
                "P@10": cell.accuracy["P@10"],
                "NDCG@10": cell.accuracy["NDCG@10"],
                "change": cell.accuracy["P@10"] / base - 1.0 if base > 0 else math.nan,
                "up": readable_bytes(cell.up),
                "down": readable_bytes(cell.down),
                "seconds": cell.seconds,
                "broken": ", ".join(_broken(cell)) or "none",
                "held": ", ".join(_held(cell)) or "none",
            }
        )
    top = next((cell.top_pop for _, cell in found), math.nan)
    notes = [f"Top-Pop has P@10 {top:.4f}. Up and down: per device and round."]
    protocol = found[0][1].protocol if found else ""
    return Table(f"What it costs on {source}", columns, rows, protocol, notes)


def _printed(found: Sequence[tuple[Row, Cell]]) -> Mapping[str, float]:
    """The best P@10 of each system as printed."""
    best: dict[str, float] = {}
    for row, cell in found:
        if row.kind == "printed":
            best[row.system] = max(best.get(row.system, 0.0), cell.accuracy["P@10"])
    return best


def _attacks(source: str, found: Sequence[tuple[Row, Cell]]) -> Table:
    columns = [
        Column("system"),
        Column("way"),
        Column("attack"),
        Column("seed"),
        Column("party", "by"),
        Column("measure"),
        Column("value", "result", ".3f"),
        Column("interval", "95 %"),
        Column("base", "without the attack", ".3f"),
        Column("recall", "found", ".3f"),
        Column("verdict"),
    ]
    rows: list[dict[str, Value | Entry]] = []
    for row, cell in found:
        for attack in cell.attacks:
            there = attack["verdict"] != "nothing to attack"
            low, high = attack["interval"]
            rows.append(
                {
                    "system": row.system,
                    "way": row.label,
                    "attack": f"{attack['code']} {attack['attack']}",
                    "seed": attack["seed"],
                    "party": attack["party"],
                    "measure": attack["measure"],
                    "value": attack["value"] if there else math.nan,
                    "interval": f"{low:.3f} to {high:.3f}" if there else "–",
                    "base": attack["base_rate"] if there else math.nan,
                    "recall": attack["recall"] if attack["recall"] is not None else math.nan,
                    "verdict": attack["verdict"],
                }
            )
    notes = [
        "Attacks that do not apply to a way to run a system are left out; `sottovoce attack` on a "
        "run says why."
    ]
    return Table(f"Every attack on {source}", columns, rows, notes=notes)


def _claims(claims: Sequence[Mapping[str, Any]]) -> Table:
    columns = [Column("claim"), Column("holds"), Column("detail")]
    return Table("What is claimed, tested", columns, list(claims))


# --- the plot ------------------------------------------------------------------------------------


def _draw(path: Path, source: str, found: Sequence[tuple[Row, Cell]]) -> plots.Figures:
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
            found[0][1].top_pop, color="#57606a", linestyle=(0, (5, 2)), linewidth=1.2,
            label="Top-Pop",
        )  # fmt: skip
        labels = [f"{row.system}: {row.label}" for row, _ in found]
        axes.set_yticks(places, labels, fontsize=8)
        axes.set(xlim=(0.0, 1.75 * most), ylim=(-0.7, len(found) - 0.3), xlabel="P@10")
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return plots.figure_files(path)
