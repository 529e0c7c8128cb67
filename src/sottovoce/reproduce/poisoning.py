"""Malicious devices that push one item: what they reach without a defence, and what with one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.evaluation.report import Section, TextBlock, write_report
from sottovoce.evaluation.tables import Column, Table
from sottovoce.reproduce.fpl_table2 import claim, claims_table
from sottovoce.reproduce.poisoning_study import (
    FIGURES,
    LATE_ROUNDS,
    NAME,
    Case,
    Poisoning,
    PoisoningConfig,
)
from sottovoce.running import Report

MOST_MORE, MOST_LOST = 0.05, 0.02
"""What is allowed: exposure above clean, and accuracy lost, relatively."""


def run(quick: bool, out: Path, threads: int, report: Report) -> dict[str, Any]:
    study = Poisoning(PoisoningConfig.read(quick), out.parent / "cells", threads, report)
    rows = as_rows(study, study.run_all())
    claims, protocol = as_claims(study, rows), _protocol(study.config)
    columns = [
        Column("data"), Column("way"), Column("attack"), Column("share", "malicious", ".1%"),
        *(Column(name, format=".3f") for name in FIGURES),
        Column("more", "ER@10 above clean", ".3f"), Column("lost", "NDCG@10 lost", ".1%"),
    ]  # fmt: skip
    table = Table("Poisoning", columns, rows, protocol)
    page = write_report(
        out / "report.html",
        NAME,
        [
            Section("Results", [table, claims_table(claims)]),
            Section("How to read this", [TextBlock(_READING)]),
        ],
    )
    return {
        "name": NAME,
        "data": "; ".join(w.describe() for w in study.worlds),
        "protocol": protocol,
        "rows": rows,
        "claims": claims,
        "tables": [table],
        "report": str(page),
    }


def as_rows(study: Poisoning, found: Mapping[Case, Sequence[float]]) -> list[dict[str, Any]]:
    """The mean over targets. What is lost is measured by the clean run without any defence."""
    grouped: dict[Case, list[Sequence[float]]] = {}
    for case, figures in found.items():
        grouped.setdefault(replace(case, target=-1), []).append(figures)
    rows = []
    for case, all_targets in grouped.items():
        mean = dict(zip(FIGURES, np.mean(all_targets, axis=0).tolist(), strict=True))
        plain = case.way.split(",")[0]
        first = plain if "reports" in plain else "direct"
        clean = dict(zip(FIGURES, found[Case(case.world, first)], strict=True))
        rows.append(
            {
                "data": study.worlds[case.world].config.source,
                "way": case.way,
                "attack": case.attack or "none",
                "share": case.share,
                **mean,
                "more": mean["ER@10"] - clean["ER@10"],
                "lost": 1.0 - mean["NDCG@10"] / clean["NDCG@10"],
            }
        )
    return rows


def as_claims(study: Poisoning, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    claims = []
    for world in study.worlds:
        mine = [r for r in rows if r["data"] == world.config.source and r["attack"] != "none"]
        plain = [r for r in mine if r["way"] == "direct"]
        worst = max(plain, key=lambda r: float(r["ER@10"]))
        claims.append(
            claim(
                f"{world.config.source}: without a defence the item is pushed",
                (worst["ER@10"] > 0.5, _words(worst)),
            )
        )
        for way in dict.fromkeys(r["way"] for r in mine if r["way"] != "direct"):
            for share in study.config.shares:
                some = [r for r in mine if r["way"] == way and r["share"] == share]
                most = max(some, key=lambda r: float(r["more"]))
                dear = max(some, key=lambda r: float(r["lost"]))
                claims.append(
                    claim(
                        f"{world.config.source}, {way}, {share:.1%} malicious: exposure at most "
                        f"{MOST_MORE} above clean, accuracy at most {MOST_LOST:.0%} below",
                        (most["more"] <= MOST_MORE, _words(most)),
                        (dear["lost"] <= MOST_LOST, f"{dear['attack']}: {dear['lost']:.1%} lost"),
                    )
                )
    return claims


def _words(row: Mapping[str, Any]) -> str:
    return f"{row['attack']} with {row['share']:.1%}: ER@10 {row['ER@10']:.3f}"


def _protocol(c: PoisoningConfig) -> str:
    return (
        f"seed {c.seed}; each user's latest 20 % held out; malicious devices come on top of the "
        f"honest ones; {c.public_share:.0%} of interactions are public; the defence lets a device "
        f"add {c.burst:g} to an item, which comes back in {c.refill_draws:g} draws of a mean user; "
        f"sums are capped at {c.max_sum_norm:g} times the median, groups have "
        f"{c.group_size} devices"
    )


_READING = (
    "ER@k is the share of users without the target to whom it is shown in the first k places. "
    "“random” and “popular” are honest devices with made-up histories: what they reach is what as "
    "many real fans would, and no look at messages tells them apart. “twin” pulls the target's row "
    "to those of popular items, as loud as the server lets pass; “late-twin” saves it for the last "
    f"{LATE_ROUNDS} rounds. Under a secure sum nobody sees who sent what: a single device can fill "
    "any cap on the sum, so such a cap only slows it down. “drawn coordinates” is what "
    "randomised reports would withstand if somebody checked that devices draw what they report on; "
    "nobody does yet."
)
