"""DRIFT's Figure 6.2: MAP and NDCG after one epoch and at convergence, beside SAROS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.evaluation import plots
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.saros_metrics import Measured
from sottovoce.evaluation.significance import Paired, paired_t
from sottovoce.evaluation.tables import Column, Table
from sottovoce_papers.drift_study import (
    DRIFT,
    METRICS,
    SAROS_B,
    WAYS,
    DriftRun,
    DriftStudy,
    DriftSystem,
    at_epoch,
    at_step,
    scorer_of,
)
from sottovoce_papers.study import Claim, Floats, Row, claim, interval, plus_minus, shown

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
class MeasuredMoment:
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
        return plus_minus(self.values(way, metric))


def figure62(study: DriftStudy, out: Path) -> dict[str, Any]:
    lines: list[MeasuredMoment] = []
    for positive_from in study.config.positive_from:
        for key, system in study.systems.items():
            lines += _lines(study, key, system, positive_from)
    rows = [_row(lines, line) for line in lines]
    tables = [_table(study, rows, p, way) for p in study.config.positive_from for way in WAYS]
    last = study.config.epochs
    claims = [c for p in study.config.positive_from for c in _claims(lines, p, last)]
    return study.result(
        "drift-figure62", out, tables, claims, _pictures(study, lines, out), rows=rows,
        protocol=f"{study.describe()}; intervals over seeds, p of a paired t-test over users",
    )  # fmt: skip


# --- measuring -----------------------------------------------------------------------------------


def _lines(
    study: DriftStudy, key: str, system: DriftSystem, positive_from: float
) -> list[MeasuredMoment]:
    what = f"{system.label}, ≥ {positive_from:g}"
    if not system.trained:
        seeds = study.config.seeds if system.kind == "random" else study.config.seeds[:1]
        scorers = [study.scorer(system, positive_from, "test", seed) for seed in seeds]
        found = study.many(what, lambda s: study.measure(s, positive_from, "test"), scorers)
        return [MeasuredMoment(key, system.label, positive_from, "", None, None, None, found)]
    end = study.converged(system, positive_from)
    runs = study.runs(what, study.jobs(system, positive_from))
    pace = runs[0].pace
    moments = [(FIRST, at_epoch(1), 1.0), (END, at_epoch(end), float(end))]
    for moment, mark in zip((SAME_STEPS, SAME_BLOCKS), runs[0].job.marks, strict=False):
        moments.insert(-1, (moment, at_step(mark), mark / pace.steps))

    def measure(part: tuple[DriftRun, str]) -> dict[str, Measured]:
        return study.measure(scorer_of(*part), positive_from, "test")

    found = study.many(f"{what}, lists", measure, [(r, p) for _, p, _ in moments for r in runs])
    n = len(runs)
    return [
        MeasuredMoment(
            key, system.label, positive_from, moment, epochs, round(epochs * pace.steps),
            round(epochs * pace.blocks), found[k * n : (k + 1) * n],
        )
        for k, (moment, _, epochs) in enumerate(moments)
    ]  # fmt: skip


def _at(
    lines: Sequence[MeasuredMoment], key: str, positive_from: float, moment: str
) -> MeasuredMoment | None:
    for line in lines:
        if (line.key, line.positive_from, line.moment) == (key, positive_from, moment):
            return line
    return None


def _rival(lines: Sequence[MeasuredMoment], line: MeasuredMoment) -> MeasuredMoment | None:
    """With whom a line is compared: SAROS_b at the same moment; DRIFT after one epoch, where SAROS
    has done as much as that; untrained systems with DRIFT at convergence."""
    key, moment = SAROS_B, line.moment
    if line.moment in (SAME_STEPS, SAME_BLOCKS):
        key, moment = DRIFT, FIRST
    elif not line.moment:
        key, moment = DRIFT, END
    rival = _at(lines, key, line.positive_from, moment)
    return None if rival is line else rival


def _row(lines: Sequence[MeasuredMoment], line: MeasuredMoment) -> Row:
    rival = _rival(lines, line)
    row: Row = {
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


def _test(line: MeasuredMoment, rival: MeasuredMoment, way: str, metric: str) -> Paired:
    return paired_t(line.users(way, metric), rival.users(way, metric))


# --- showing -------------------------------------------------------------------------------------


def _table(
    study: DriftStudy, rows: Sequence[Mapping[str, Any]], positive_from: float, way: str
) -> Table:
    behind = "" if way == "own" else f"_{way}"
    keys = [k for m in METRICS for k in (m + behind, f"{m}{behind}_ci")]
    columns = [
        Column("system", ""), Column("moment", "after"), Column("epochs", format=".3g"),
        Column("steps", format=",d"),
        *[Column(k, "±" if k.endswith("_ci") else k.removesuffix(behind), ".4f") for k in keys],
        Column(f"p{behind}", "p", ".2g"), Column("rival", "against"),
    ]  # fmt: skip
    mine = [row for row in rows if row["positive_from"] == positive_from]
    title = f"DRIFT, Figure 6.2: {_TITLES[way]}, positive from {positive_from:g}"
    last = study.config.epochs
    short = [r["system"] for r in mine if (r["moment"], r["epochs"]) == (END, last)]
    notes = [f"{_unsettled(last)}: {'; '.join(short)}."] if short else []
    protocol = f"{study.describe()}; p of MAP@5, paired over users"
    return shown(title, columns, mine, protocol, notes)


def _unsettled(last: int) -> str:
    return f"Not yet converged, as the best epoch is the last of {last}"


def _pictures(study: DriftStudy, lines: Sequence[MeasuredMoment], out: Path) -> list[FigureBlock]:
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


def _claims(lines: Sequence[MeasuredMoment], positive_from: float, last: int) -> list[Claim]:
    where = f"positive from {positive_from:g}"

    def at(key: str, moment: str) -> MeasuredMoment | None:
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


def _above(
    line: MeasuredMoment, rival: MeasuredMoment, metric: str, way: str = "own"
) -> tuple[bool, str]:
    test = _test(line, rival, way, metric)
    words = (
        f"{metric} {line.label} {line.words(way, metric)} against {rival.words(way, metric)} "
        f"(p={test.p:.2g})"
    )
    return test.difference > 0 and test.p < 0.05, words


def _alike(one: MeasuredMoment, other: MeasuredMoment, metric: str) -> tuple[bool, str]:
    apart = abs(one.mean("own", metric) - other.mean("own", metric))
    test = _test(one, other, "own", metric)
    words = (
        f"{metric} {one.words('own', metric)} against {other.words('own', metric)}, "
        f"{test.difference:+.4f} [{test.low:+.4f}, {test.high:+.4f}] over users (p={test.p:.2g})"
    )
    if len(one.measured) == 1:  # one seed has no interval
        return test.p >= 0.05, f"{words}, one seed"
    return apart <= min(one.half("own", metric), other.half("own", metric)), words


STUDY, VIEWS = DriftStudy, {"drift-figure62": figure62}
