"""DRIFT's Figure 6.2: MAP and NDCG after one epoch and at convergence, beside SAROS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.evaluation import plots
from sottovoce.evaluation.report import FigureBlock, Section, TextBlock, write_report
from sottovoce.evaluation.saros_metrics import Measured
from sottovoce.evaluation.significance import Paired, paired_t
from sottovoce.evaluation.tables import Column, Table
from sottovoce_papers.drift_study import (
    DRIFT,
    METRICS,
    SAROS_B,
    WAYS,
    DriftStudy,
    Floats,
    Run,
    System,
    at_epoch,
    at_step,
    interval,
    scorer_of,
)
from sottovoce_papers.fpl_table2 import claim, claims_table

POPULAR = "top-pop"
FIRST, SAME_STEPS, SAME_BLOCKS, END = (
    "one epoch", "DRIFT's steps", "DRIFT's blocks", "convergence",
)  # fmt: skip
"""When a model is measured. DRIFT's are those of one epoch of DRIFT by time."""
BETWEEN = (SAROS_B, "saros-b-all", "drift-one", DRIFT)
"""From SAROS_b to DRIFT, one change after the other."""
_TITLES = {
    "own": "the user's own held-out items",
    "full": "the whole catalogue",
    "legacy": "own items, the public SAROS code's metrics",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One system at one moment."""

    key: str
    label: str
    positive_from: float
    moment: str
    epochs: float | None
    steps: int | None
    blocks: int | None
    measured: Sequence[Mapping[str, Measured]]
    """By seed and way."""

    def values(self, way: str, metric: str) -> Floats:
        """The figure of each seed."""
        return np.array([one[way].means()[metric] for one in self.measured])

    def mean(self, way: str, metric: str) -> float:
        return float(self.values(way, metric).mean())

    def half(self, way: str, metric: str) -> float:
        """Half of the 95 % interval over seeds; 0 for one seed."""
        return interval(self.values(way, metric)) or 0.0

    def users(self, way: str, metric: str) -> Floats:
        """Each user's figure, the mean over seeds."""
        name = metric.removeprefix("M")  # MAP is the mean of AP
        mean: Floats = np.mean([one[way].values[name] for one in self.measured], axis=0)
        return mean

    def words(self, way: str, metric: str) -> str:
        half = interval(self.values(way, metric))
        return f"{self.mean(way, metric):.4f}" + ("" if half is None else f" ± {half:.4f}")


def figure62(study: DriftStudy, out: Path) -> dict[str, Any]:
    lines: list[Line] = []
    for positive_from in study.config.positive_from:
        for key, system in study.systems.items():
            lines += _lines(study, key, system, positive_from)
    rows = [_row(lines, line) for line in lines]
    tables = [_table(study, rows, p, way) for p in study.config.positive_from for way in WAYS]
    last = study.config.epochs
    claims = [c for p in study.config.positive_from for c in _claims(lines, p, last)]
    report = write_report(
        out / "report.html",
        "drift-figure62",
        [
            Section("Results", [*tables, claims_table(claims), *_pictures(study, lines, out)]),
            Section("How to read this", [TextBlock(_READING)]),
        ],
    )
    return {
        "name": "drift-figure62",
        "data": study.describe_data(),
        "protocol": f"{study.describe()}; intervals over seeds, p of a paired t-test over users",
        "rows": rows,
        "claims": claims,
        "tables": tables,
        "report": str(report),
    }


# --- measuring -----------------------------------------------------------------------------------


def _lines(study: DriftStudy, key: str, system: System, positive_from: float) -> list[Line]:
    what = f"{system.label}, ≥ {positive_from:g}"
    if not system.trained:
        seeds = study.config.seeds if system.kind == "random" else study.config.seeds[:1]
        scorers = [study.scorer(system, positive_from, "test", seed) for seed in seeds]
        found = study.many(what, lambda s: study.measure(s, positive_from, "test"), scorers)
        return [Line(key, system.label, positive_from, "", None, None, None, found)]
    end = study.converged(system, positive_from)
    runs = study.runs(what, study.jobs(system, positive_from))
    pace = runs[0].pace
    moments = [(FIRST, at_epoch(1), 1.0), (END, at_epoch(end), float(end))]
    for moment, mark in zip((SAME_STEPS, SAME_BLOCKS), runs[0].job.marks, strict=False):
        moments.insert(-1, (moment, at_step(mark), mark / pace.steps))

    def measure(part: tuple[Run, str]) -> dict[str, Measured]:
        return study.measure(scorer_of(*part), positive_from, "test")

    found = study.many(f"{what}, lists", measure, [(r, p) for _, p, _ in moments for r in runs])
    n = len(runs)
    return [
        Line(
            key, system.label, positive_from, moment, epochs, round(epochs * pace.steps),
            round(epochs * pace.blocks), found[k * n : (k + 1) * n],
        )
        for k, (moment, _, epochs) in enumerate(moments)
    ]  # fmt: skip


def _at(lines: Sequence[Line], key: str, positive_from: float, moment: str) -> Line | None:
    for line in lines:
        if (line.key, line.positive_from, line.moment) == (key, positive_from, moment):
            return line
    return None


def _rival(lines: Sequence[Line], line: Line) -> Line | None:
    """With whom a line is compared: SAROS_b at the same moment; DRIFT after one epoch, where SAROS
    has done as much as that; untrained systems with DRIFT at convergence."""
    key, moment = SAROS_B, line.moment
    if line.moment in (SAME_STEPS, SAME_BLOCKS):
        key, moment = DRIFT, FIRST
    elif not line.moment:
        key, moment = DRIFT, END
    rival = _at(lines, key, line.positive_from, moment)
    return None if rival is line else rival


def _row(lines: Sequence[Line], line: Line) -> dict[str, Any]:
    rival = _rival(lines, line)
    row: dict[str, Any] = {
        "positive_from": line.positive_from, "system": line.label, "moment": line.moment or None,
        "epochs": line.epochs, "steps": line.steps, "blocks": line.blocks,
    }  # fmt: skip
    for way in WAYS:
        behind = "" if way == "own" else f"_{way}"
        for metric in METRICS:
            row[metric + behind] = line.mean(way, metric)
            row[f"{metric}{behind}_ci"] = interval(line.values(way, metric))
            row[f"{metric}{behind}_paper"] = None  # printed as bars alone
        test = None if rival is None else _test(line, rival, way, "MAP@5")
        row[f"p{behind}"] = None if test is None else test.p
    row["rival"] = None if rival is None else f"{rival.label}, {rival.moment}"
    return row


def _test(line: Line, rival: Line, way: str, metric: str) -> Paired:
    return paired_t(line.users(way, metric), rival.users(way, metric))


# --- showing -------------------------------------------------------------------------------------


def _table(
    study: DriftStudy, rows: Sequence[Mapping[str, Any]], positive_from: float, way: str
) -> Table:
    behind = "" if way == "own" else f"_{way}"
    facts = ("system", "moment", "epochs", "steps")
    keys = [k for m in METRICS for k in (m + behind, f"{m}{behind}_ci")]
    columns = [
        Column("system", ""), Column("moment", "after"), Column("epochs", format=".3g"),
        Column("steps", format=",d"),
        *[Column(k, "±" if k.endswith("_ci") else k.removesuffix(behind), ".4f") for k in keys],
        Column(f"p{behind}", "p", ".2g"), Column("rival", "against"),
    ]  # fmt: skip
    wanted = (*facts, *keys, f"p{behind}", "rival")
    shown = [{k: row[k] for k in wanted} for row in rows if row["positive_from"] == positive_from]
    title = f"DRIFT, Figure 6.2: {_TITLES[way]}, positive from {positive_from:g}"
    last = study.config.epochs
    short = [r["system"] for r in shown if (r["moment"], r["epochs"]) == (END, last)]
    notes = [f"{_unsettled(last)}: {'; '.join(short)}."] if short else []
    return Table(title, columns, shown, f"{study.describe()}; p of MAP@5, paired over users", notes)


def _unsettled(last: int) -> str:
    return f"Not yet converged, as the best epoch is the last of {last}"


def _pictures(study: DriftStudy, lines: Sequence[Line], out: Path) -> list[FigureBlock]:
    found = []
    for positive_from in study.config.positive_from:
        for moment, word in ((FIRST, "first"), (END, "end")):
            bars = {
                line.label: [line.mean("own", metric) for metric in METRICS]
                for line in lines
                if line.positive_from == positive_from and line.moment == moment
            }
            title = f"Own held-out items, after {moment}, positive from {positive_from:g}"
            picture = plots.bias_bars(
                out / "figures" / f"drift-figure62-{positive_from:g}-{word}", METRICS, bars,
                title=title, x_label="",
            )  # fmt: skip
            found.append(FigureBlock(picture.svg, f"{title}: a bar for each system and metric"))
    return found


# --- claims --------------------------------------------------------------------------------------


def _claims(lines: Sequence[Line], positive_from: float, last: int) -> list[dict[str, Any]]:
    where = f"positive from {positive_from:g}"

    def at(key: str, moment: str) -> Line | None:
        return _at(lines, key, positive_from, moment)

    drift, saros, drift_end, saros_end = (
        at(key, moment) for moment in (FIRST, END) for key in (DRIFT, SAROS_B)
    )
    if drift is None or saros is None or drift_end is None or saros_end is None:
        return []
    found = [
        claim(f"after one epoch DRIFT is above SAROS_b, {where}",
              *[_above(drift, saros, metric) for metric in METRICS])
    ]  # fmt: skip
    for moment in (SAME_STEPS, SAME_BLOCKS):
        other = at(SAROS_B, moment)
        if other is not None:
            what = "steps" if moment == SAME_STEPS else "blocks"
            text = f"so it is when SAROS_b has taken as many {what}"
            parts = [_above(drift, other, metric) for metric in METRICS]
            found.append(
                claim(f"{text} ({other.steps:,}; {other.epochs:.2f} epochs), {where}", *parts)
            )
    gains = [(b.mean("own", "MAP@5") - a.mean("own", "MAP@5")) for a, b in
             ((drift, drift_end), (saros, saros_end))]  # fmt: skip
    short = [line.label for line in (drift_end, saros_end) if line.epochs == last]
    end = f"{where} ({_unsettled(last).lower()}: {'; '.join(short)})" if short else where
    found.append(
        claim(f"from one epoch to convergence DRIFT gains less than SAROS_b, {end}",
              (gains[0] < gains[1], f"MAP@5 {gains[0]:+.4f} in {drift_end.epochs:g} epochs against "
               f"{gains[1]:+.4f} in {saros_end.epochs:g}"))
    )  # fmt: skip
    found.append(
        claim(f"at convergence DRIFT and SAROS_b are within each other's 95 % interval, {end}",
              *[_alike(drift_end, saros_end, metric) for metric in METRICS])
    )  # fmt: skip
    path = [line for key in BETWEEN if (line := at(key, END)) is not None]
    if len(path) == len(BETWEEN):
        steps = [b.mean("own", "MAP@5") - a.mean("own", "MAP@5")
                 for a, b in pairwise(path)]  # fmt: skip
        words = "; ".join(f"{line.label} {line.words('own', 'MAP@5')}" for line in path)
        found.append(
            claim(f"what is between them at convergence is less the owners than the rest, {end}",
                  (abs(steps[-1]) <= max(abs(s) for s in steps[:-1]), f"MAP@5: {words}"))
        )  # fmt: skip
    popular = at(POPULAR, "")
    if popular is not None:
        for way in ("own", "full"):
            parts = [_above(line, popular, m, way) for line in (saros_end, drift_end)
                     for m in ("MAP@5", "NDCG@10")]  # fmt: skip
            text = f"over {_TITLES[way]} SAROS_b and DRIFT are above Top-Pop"
            found.append(claim(f"{text}, {where}", *parts))
    return found


def _above(line: Line, rival: Line, metric: str, way: str = "own") -> tuple[bool, str]:
    test = _test(line, rival, way, metric)
    words = (
        f"{metric} {line.label} {line.words(way, metric)} against {rival.words(way, metric)} "
        f"(p={test.p:.2g})"
    )
    return test.difference > 0 and test.p < 0.05, words


def _alike(one: Line, other: Line, metric: str) -> tuple[bool, str]:
    apart = abs(one.mean("own", metric) - other.mean("own", metric))
    test = _test(one, other, "own", metric)
    words = (
        f"{metric} {one.words('own', metric)} against {other.words('own', metric)}, "
        f"{test.difference:+.4f} [{test.low:+.4f}, {test.high:+.4f}] over users (p={test.p:.2g})"
    )
    if len(one.measured) == 1:  # one seed has no interval
        return test.p >= 0.05, f"{words}, one seed"
    return apart <= min(one.half("own", metric), other.half("own", metric)), words


_READING = """\
The thesis prints this figure as bars without numbers, and does not say at which rank MAP and NDCG \
are cut. What can be checked is what it says: DRIFT is ahead after one epoch, both are close in \
the end.

An epoch is not the same work for both. A film of m genres belongs to m data owners and takes part \
m times; an epoch of DRIFT has about twice the blocks of an epoch of SAROS_b, and an update sums \
the gradients of two blocks (Θ = 2). So SAROS is also shown after as many steps, and after as many \
blocks, as one epoch of DRIFT by time has. "Blocks" is the fairer comparison: as many gradients of \
blocks were computed, though an owner's blocks are shorter than SAROS's.

An interval over seeds says how far another start would move a figure, not how far other users \
would: that is what p and the intervals over users say. Both systems start from the same rows.

Own items: only what the user rated in the test part is ranked, as SAROS's public code does it. \
Most of these items are liked, so that any order scores well: see Random. The public code's own \
metrics divide by the hits within the list, which makes them higher still. The whole catalogue is \
the task of a recommender, and there these models, which never see an item that the user has not \
rated, are very poor: Top-Pop is far ahead of them all.

Convergence is the epoch that is best on validation; where that is the last one, a note says so, \
and more epochs might still bring a little.

The pull to 0 counts once for every row of a block in all systems, as in DRIFT's algorithm and \
SAROS's public code; SAROS's paper averages it over a block's pairs.

Between SAROS_b and DRIFT lie three changes, shown one after the other: no thresholds on a user's \
blocks; the order of time with two blocks a step, in one hand; then an owner for every genre. One \
owner, user by user, with Θ = 1 is SAROS_b without thresholds to the bit."""
