"""The DRIFT thesis's Figure 6.3: where the time of an epoch goes, and what security takes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from sottovoce.algorithms.drift.blocks import DriftModel, Events, learn
from sottovoce.algorithms.drift.replay import plan
from sottovoce.engines.silo_simulation import KINDS, PHASES, SEALINGS, SECURITY, EpochCost, Sealing
from sottovoce.evaluation import plots
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.tables import Column, Table
from sottovoce_papers.drift_study import EpochStudy, same_model
from sottovoce_papers.study import Claim, Row, claim, shown

NAME = "drift-figure63"
SECURITY_PAPER, ENCRYPTION_PAPER = 0.10, 0.0152
"""The thesis: less than 10 % of the time for the security layer, 1.52 % for encryption."""
LABELS: Mapping[Sealing, str] = {
    "none": "nothing sealed",
    "shared": "thesis: a key per owner",
    "pairs": "a key per user and owner",
}
COMPILED = "compiled learning, same sealing"


def figure63(study: EpochStudy, out: Path) -> dict[str, Any]:
    events = study.first(study.config.events)
    costs, models = _by_messages(study, events)
    seconds, compiled = _at_once(study, events)
    same = all(same_model(models[sealing], compiled) for sealing in SEALINGS)
    sealed = costs["pairs"].seconds
    fast = {**dict.fromkeys(PHASES, 0.0), **seconds, **{p: sealed[p] for p in SECURITY}}
    bars = {LABELS[s]: dict(costs[s].seconds) for s in SEALINGS} | {COMPILED: fast}
    rows = [_row(name, spent) for name, spent in bars.items()]
    for row, sealing in zip(rows, SEALINGS, strict=False):
        row["bytes"] = sum(costs[sealing].bytes.values())
    claims = _claims(rows, same)
    protocol = (
        f"one epoch of {len(events):,} interactions, {costs['none'].updates:,} updates "
        f"(Θ={study.settings.theta}), one process, one thread, no network; {study.describe()}"
    )
    tables = [_seconds(rows, protocol), _shares(rows), _bytes(costs)]
    picture = stacked(
        out / "figures" / NAME, bars, x_label="seconds",
        title=f"One epoch, {len(events):,} interactions",
    )  # fmt: skip
    block = FigureBlock(picture.svg, "Seconds of an epoch by phase, a bar for each way")
    kinds = [dict(row) for row in tables[-1].rows]
    return study.result(
        NAME, out, tables, claims, [block], rows=rows, protocol=protocol, bytes=kinds
    )


def _by_messages(
    study: EpochStudy, events: Events
) -> tuple[dict[Sealing, EpochCost], dict[Sealing, DriftModel]]:
    costs: dict[Sealing, EpochCost] = {}
    models: dict[Sealing, DriftModel] = {}
    study.simulation(study.settings, "pairs").epoch(study.first(500))  # compiles what is compiled
    for done, sealing in enumerate(SEALINGS):
        study.report("epochs by messages", done, len(SEALINGS))
        simulation = study.simulation(study.settings, sealing)
        costs[sealing] = simulation.epoch(events)
        models[sealing] = simulation.model
    study.report("epochs by messages", len(SEALINGS), len(SEALINGS))
    return costs, models


def _at_once(study: EpochStudy, events: Events) -> tuple[dict[str, float], DriftModel]:
    """The same epoch without messages: its seconds, and the model."""
    s, few = study.settings, study.first(500)
    learn(study.start(), plan(few, study.table, s.theta, s.window), s.step())
    start = perf_counter()
    blocks = plan(events, study.table, s.theta, s.window)
    planned = perf_counter()
    model = study.start()
    begun = perf_counter()
    learn(model, blocks, s.step())
    return {"blocks": planned - start, "gradients": perf_counter() - begun}, model


# --- tables --------------------------------------------------------------------------------------


def _row(name: str, spent: Mapping[str, float]) -> Row:
    total = sum(spent.values())
    steady = total - spent["keys"]
    return {
        "system": name,
        "seconds": total,
        **{phase: spent[phase] for phase in PHASES},
        "security": sum(spent[phase] for phase in SECURITY) / total,
        "security_paper": SECURITY_PAPER,
        "security_later": (spent["encryption"] + spent["decryption"]) / steady,
        "encryption_share": spent["encryption"] / total,
        "encryption_share_paper": ENCRYPTION_PAPER,
    }


def _seconds(rows: Sequence[Mapping[str, Any]], protocol: str) -> Table:
    columns = [
        Column("system", ""),
        Column("seconds", "in all, s", ".2f"),
        *[Column(phase, format=".2f") for phase in PHASES],
    ]
    return shown("DRIFT, Figure 6.3: seconds of one epoch", columns, rows, protocol, _NOTES)


_NOTES = (
    "Keys: a user and an owner check each other's keys and agree on one, when they first meet; "
    "later epochs do not do so again. Encryption and decryption: of interactions, and in the third "
    "row of what owners and the orchestrator say to each other. Blocks: filling them, and listing "
    "the rows that are needed. Update: looking rows up, and moving them. Transport: addressing, "
    "and turning messages into bytes and back. Other: the loop, and the measuring.",
    "The last row learns the same model without messages: blocks is planning, gradients all steps.",
    "Rows are measured one after the other: where other work shares the machine, compare shares "
    "within a row, not seconds between rows; the last row joins two measurements.",
)


def _shares(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = [
        Column("system", ""),
        Column("security", "security, first epoch", ".2%"),
        Column("security_later", "security, later epochs", ".2%"),
        Column("security_paper", "thesis: less than", ".0%"),
        Column("encryption_share", "encryption alone", ".2%"),
        Column("encryption_share_paper", "thesis", ".2%"),
    ]
    return shown("What security takes of an epoch", columns, rows)


def _bytes(costs: Mapping[Sealing, EpochCost]) -> Table:
    columns = [Column("system", ""), *[Column(kind, format=",d") for kind in KINDS]]
    rows: list[dict[str, Any]] = [
        {"system": LABELS[sealing], **cost.bytes} for sealing, cost in costs.items()
    ]
    rows.append({"system": "messages", **costs["pairs"].messages})
    return Table("Bytes of one epoch, by kind of message", columns, rows)


def stacked(
    path: Path, bars: Mapping[str, Mapping[str, float]], *, x_label: str, title: str
) -> plots.Figures:
    """A bar for each name, of parts behind each other."""
    parts = list(next(iter(bars.values())))
    place = np.arange(len(bars), dtype=np.float64)
    with plots.drawing(path, title, (7.2, 1.6 + 0.6 * len(bars))) as (figure, axes):
        begun = np.zeros(len(bars))
        for index, part in enumerate(parts):
            width = np.array([bar[part] for bar in bars.values()])
            axes.barh(
                place, width, 0.6, left=begun, label=part,
                color=plots.PALETTE[index % len(plots.PALETTE)],
            )  # fmt: skip
            begun += width
        axes.set_yticks(place, list(bars))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(x_label)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return plots.figure_files(path)


# --- claims --------------------------------------------------------------------------------------


def _claims(rows: Sequence[Mapping[str, Any]], same: bool) -> list[Claim]:
    _, shared, pairs, fast = rows

    def below(row: Mapping[str, Any], key: str, limit: float) -> tuple[bool, str]:
        return row[key] <= limit, f"{row[key]:.2%}"

    return [
        claim("sealing changes nothing in the model: all ways give the same, bit for bit, as "
              "compiled learning", (same, "every row of users and items compared")),
        claim("thesis: the security layer takes less than 10 % of the time, with its key per owner",
              below(shared, "security", SECURITY_PAPER)),
        claim("thesis: encryption takes 1.52 % of the time, or less, with its key per owner",
              below(shared, "encryption_share", ENCRYPTION_PAPER)),
        claim("the security layer takes less than 10 % with a key per user and owner, the "
              "agreement on keys included", below(pairs, "security", SECURITY_PAPER)),
        claim("the security layer takes less than 10 % with a key per user and owner, once keys "
              "are agreed on", below(pairs, "security_later", SECURITY_PAPER)),
        claim("the security layer would take less than 10 % beside compiled learning",
              below(fast, "security_later", SECURITY_PAPER)),
    ]  # fmt: skip


STUDY, VIEWS = EpochStudy, {NAME: figure63}
