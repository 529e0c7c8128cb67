"""DRIFT's Figure 6.1: the loss in training and test, over epochs and over steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.evaluation import plots
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.tables import Column, Table
from sottovoce_papers.drift_study import (
    DRIFT,
    SAROS_B,
    DriftRun,
    DriftStudy,
    EpochSize,
    at_step,
    mean_loss,
)
from sottovoce_papers.study import Claim, Floats, Row, claim, interval, plus_minus

PARTS = ("train", "test")
NEAR = 0.01
"""A loss within this share of the least one of its curve has settled."""
_SHOWN = (0, 1, 2, 5, 10, 20, 50, 100, 200)


@dataclass(frozen=True, slots=True)
class LossCurves:
    """A system's runs, one for each seed."""

    key: str
    label: str
    positive_from: float
    runs: Sequence[DriftRun]

    @property
    def pace(self) -> EpochSize:
        return self.runs[0].pace

    def curve(self, part: str) -> Floats:
        """The mean over seeds, after 0, 1, 2, ... epochs."""
        mean: Floats = np.mean(self._all(part), axis=0)
        return mean

    def at(self, part: str, epoch: int) -> Floats:
        """After so many epochs, by seed."""
        values: Floats = self._all(part)[:, epoch]
        return values

    def after(self, part: str, epoch: int) -> str:
        """The mean after so many epochs, and half of its 95 % interval, in words."""
        return plus_minus(self.at(part, epoch))

    def settled(self, part: str) -> int:
        """The first epoch after which the loss is near its least."""
        curve = self.curve(part)
        return int(np.argmax(curve <= curve.min() * (1.0 + NEAR)))

    def _all(self, part: str) -> Floats:
        return np.array([r.train_loss if part == "train" else r.test_loss for r in self.runs])


def figure61(study: DriftStudy, out: Path) -> dict[str, Any]:
    lines = [
        LossCurves(key, system.label, positive_from, runs)
        for positive_from in study.config.positive_from
        for key, system in study.systems.items()
        if system.trained
        and (runs := study.runs(f"{system.label}, ≥ {positive_from:g}",
                                study.jobs(system, positive_from)))
    ]  # fmt: skip
    shown = [e for e in _SHOWN if e <= study.config.epochs]
    rows = [_row(line, part, shown) for line in lines for part in PARTS]
    columns = [
        Column("positive_from", "positive from", "g"), Column("system", ""), Column("part", "loss"),
        Column("steps", "steps an epoch", ",d"), Column("blocks", "blocks an epoch", ",d"),
        *[Column(f"epoch {e}", format=".4f") for e in shown],
        Column("ci_1", "± (epoch 1)", ".4f"), Column("ci_last", "± (last)", ".4f"),
        Column("settled", f"within {NEAR:.0%} of least: epoch", "d"),
        Column("settled_steps", "steps", ",d"),
    ]  # fmt: skip
    table = Table("DRIFT, Figure 6.1: the loss", columns, rows, _protocol(study))
    claims = [
        found
        for positive_from in study.config.positive_from
        for found in _claims(study, lines, positive_from)
    ]
    curves = [
        {"system": line.label, "positive_from": line.positive_from, "steps": line.pace.steps,
         "blocks": line.pace.blocks,
         **{part: [round(v, 6) for v in line.curve(part).tolist()] for part in PARTS}}
        for line in lines
    ]  # fmt: skip
    pictures = _pictures(study, lines, out)
    return study.result(
        "drift-figure61", out, [table], claims, pictures, protocol=_protocol(study), curves=curves
    )


def _protocol(study: DriftStudy) -> str:
    return (
        f"{study.describe()}; the ranking loss without the ridge, the mean over all blocks of all "
        "users' streams, the same blocks for every system; intervals over seeds"
    )


def _row(line: LossCurves, part: str, shown: Sequence[int]) -> Row:
    curve, settled = line.curve(part), line.settled(part)
    return {
        "positive_from": line.positive_from, "system": line.label, "part": part,
        "steps": line.pace.steps, "blocks": line.pace.blocks,
        **{f"epoch {e}": float(curve[e]) for e in shown},
        "ci_1": interval(line.at(part, 1)), "ci_last": interval(line.at(part, -1)),
        "settled": settled, "settled_steps": settled * line.pace.steps,
    }  # fmt: skip


def _pictures(study: DriftStudy, lines: Sequence[LossCurves], out: Path) -> list[FigureBlock]:
    found = []
    for positive_from in study.config.positive_from:
        mine = [line for line in lines if line.positive_from == positive_from]
        for part in PARTS:
            curves = {line.label: line.curve(part) for line in mine}
            epochs = {name: (np.arange(len(y)), y) for name, y in curves.items()}
            steps = {
                line.label: (np.arange(study.config.epochs + 1) * line.pace.steps / 1e6,
                             line.curve(part))
                for line in mine
            }  # fmt: skip
            for by, axis, drawn in (
                ("epochs", "epoch", epochs), ("steps", "million steps", steps),
            ):  # fmt: skip
                name = f"drift-figure61-{positive_from:g}-{part}-{by}"
                title = f"Loss in {'training' if part == 'train' else 'test'}, by {by}"
                picture = plots.lines(
                    out / "figures" / name, drawn, x_label=axis, y_label="loss of a block",
                    title=f"{title}, positive from {positive_from:g}",
                )  # fmt: skip
                found.append(FigureBlock(picture.svg, f"{title}, a line for each system"))
    return found


def _claims(study: DriftStudy, lines: Sequence[LossCurves], positive_from: float) -> list[Claim]:
    by_key = {line.key: line for line in lines if line.positive_from == positive_from}
    if not {DRIFT, SAROS_B} <= set(by_key):
        return []
    drift, saros = by_key[DRIFT], by_key[SAROS_B]
    where = f"positive from {positive_from:g}"
    found = [
        claim(f"after one epoch DRIFT's loss is below that of SAROS_b, {where}",
              *[_below(part, drift.at(part, 1), saros.at(part, 1)) for part in PARTS])
    ]  # fmt: skip
    for what, mark in zip(("steps", "blocks"), drift.pace, strict=True):
        at = _after_steps(study, saros, mark)
        found.append(
            claim(f"so it is when SAROS_b has taken as many {what} ({mark:,}), {where}",
                  *[_below(part, drift.at(part, 1), at[part]) for part in PARTS])
        )  # fmt: skip
    found.append(
        claim(f"DRIFT's loss settles within fewer epochs than that of SAROS_b, {where}",
              *[(drift.settled(part) < saros.settled(part),
                 f"{part}: epoch {drift.settled(part)} ({drift.settled(part) * drift.pace.steps:,} "
                 f"steps) against {saros.settled(part)} "
                 f"({saros.settled(part) * saros.pace.steps:,} steps)") for part in PARTS])
    )  # fmt: skip
    last = study.config.epochs
    apart = {part: drift.curve(part)[last] / saros.curve(part)[last] - 1.0 for part in PARTS}
    found.append(
        claim(f"after {last} epochs both have the same loss, within {NEAR:.0%}, {where}",
              *[(bool(abs(apart[part]) <= NEAR),
                 f"{part}: {drift.after(part, last)} against {saros.after(part, last)}, "
                 f"{apart[part]:+.1%}") for part in PARTS])
    )  # fmt: skip
    return found


def _after_steps(study: DriftStudy, line: LossCurves, mark: int) -> Mapping[str, Floats]:
    """Losses after so many steps, by part and seed."""
    measured = dict(zip(PARTS, study.loss_blocks(line.runs[0].job), strict=True))
    return {
        part: np.array([mean_loss(run.models[at_step(mark)], blocks) for run in line.runs])
        for part, blocks in measured.items()
    }


def _below(part: str, ours: Floats, theirs: Floats) -> tuple[bool, str]:
    """Whether it is, seed by seed: both start from the same rows. One seed is taken as it is."""
    apart, half = float((ours - theirs).mean()), interval(ours - theirs)
    words = f"{part}: {ours.mean():.4f} against {theirs.mean():.4f}, {apart:+.4f}"
    spread = ", one seed" if half is None else f" ± {half:.4f}"
    return apart + (half or 0.0) < 0.0, f"{words}{spread}"


STUDY, VIEWS = DriftStudy, {"drift-figure61": figure61}
