"""Finished runs in one table, and what quality costs, drawn."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sottovoce.evaluation import plots
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.tables import Cell, Column, Table, Value
from sottovoce.privacy.accountant import rounded_up
from sottovoce.runs.card import JSON, PAGE
from sottovoce.runs.read import FinishedRun
from sottovoce.runs.standing import RunStanding, standing
from sottovoce.runs.tables import half_width, keys_shown, metric_columns, name_of, own_metric

CENTRAL = "sees everything"
NOT_ATTACKED = "not attacked"


@dataclass(frozen=True, slots=True)
class Side:
    """A run with what its row needs."""

    run: FinishedRun
    evaluation: Evaluation
    world: str
    stands: RunStanding
    sent: float
    """kB that left a user who takes part, on average."""

    @classmethod
    def of(cls, run: FinishedRun, evaluation: Evaluation, world: str) -> Side:
        people = max(1, int(run.consent.takes_part.sum()))
        sent = run.folder.manifest()["ledger"]["bytes"] / people / 1000
        return cls(run, evaluation, world, standing(run.experiment, run.ledger()), sent)


def compared(
    runs: Mapping[str, FinishedRun],
    evaluations: Mapping[str, Evaluation],
    worlds: Mapping[str, Sequence[str]],
    tested: Mapping[str, Mapping[str, Evaluation]],
    out: Path,
    figures: Path,
) -> tuple[Table, list[FigureBlock]]:
    """Return the table, for a page in the folder `out`, and figures for each world of it. `tested`
    are runs and baselines of each world as they are to be compared."""
    sides = {
        label: Side.of(runs[label], evaluations[label], world)
        for world, labels in worlds.items()
        for label in labels
    }
    metrics = list(dict.fromkeys(
        key for labels in worlds.values()
        for key in keys_shown(evaluations[label] for label in labels)[:3:2]
    ))  # fmt: skip
    rows: list[dict[str, Value | Cell]] = []
    for world, labels in worlds.items():
        first, behind = sides[labels[0]], f" beside {labels[0]}" * (len(worlds) > 1)
        front = [point.name for point in plots.best_trades(_points(labels, sides, "sent"))]
        rows += [
            _row(label, sides[label], metrics, out) | {"front": "yes" if label in front else "no"}
            for label in labels
        ]
        rows += [
            {
                "run": f"{name_of(label)} (baseline{behind})",
                "system": "baseline",
                "bound": CENTRAL,
                "data": first.run.dataset.name,
                **_figures(found, metrics),
            }
            for label, found in tested[world].items()
            if label not in labels
        ]
    return _table(rows, metrics, len(worlds)), [
        block
        for number, labels in enumerate(worlds.values(), 1)
        for block in _drawn(labels, sides, len(worlds) > 1, figures, number)
    ]


def _table(
    rows: Sequence[Mapping[str, Value | Cell]], metrics: Sequence[str], worlds: int
) -> Table:
    """Return the table with the columns in which some row has a value. The best is marked among
    rows that compare, if there are several. Tables of results have the other metrics."""
    measured = metric_columns("run", metrics)[1:]
    columns = [
        Column("run"),
        Column("system"),
        *([Column("data")] if worlds > 1 else []),
        Column("bound", "what bounds it"),
        Column("attacks", "promises broken"),
        Column("epsilon", "ε, at most", ",.4g"),
        Column("share", "π, mean", ".2f"),
        *(replace(one, best=None) if worlds > 1 else one for one in measured),
        Column("sent", "kB sent by a user", ",.1f", "min"),
        Column("front", "on the front"),
        Column("rounds", format=","),
        Column("received", "kB received by a user", ",.1f", "min"),
        Column("people", "users taking part", ","),
        Column("seconds", format=",.0f"),
    ]
    known = {column.key: sum(row.get(column.key) is not None for row in rows) for column in columns}
    kept = [replace(one, best=one.best if known[one.key] > 1 else None) for one in columns]
    note = (
        "± is half of a 95 % interval over users; the best value of a column is bold. Bytes are of "
        "those who take part, on average. On the front: no other run on these data is better and "
        "sends less."
    )
    kept = [one for one in kept if known[one.key]]
    shown = [{k: v for k, v in row.items() if known.get(k)} for row in rows]
    return Table("Every run, and central baselines", kept, shown, notes=[note])


def _row(label: str, side: Side, metrics: Sequence[str], out: Path) -> dict[str, Value | Cell]:
    run, folder = side.run, side.run.folder.path
    manifest, page = run.folder.manifest(), folder / "report.html"
    epsilon = side.stands.epsilon
    return {
        "run": Cell(label, href=link_to(page, out) if page.is_file() else ""),
        "system": run.experiment.system,
        "data": run.dataset.name,
        "bound": side.stands.short,
        "attacks": attacked(folder, out),
        "epsilon": "no bound" if math.isinf(epsilon) else rounded_up(epsilon),
        "share": _share(run),
        **_figures(side.evaluation, metrics),
        "sent": side.sent,
        "rounds": manifest["schedule"]["rounds"],
        "received": _received(run),
        "people": int(run.consent.takes_part.sum()),
        "seconds": _seconds(manifest),
    }


def _figures(evaluation: Evaluation, metrics: Sequence[str]) -> dict[str, Cell]:
    found = evaluation.summary()
    return {
        key: Cell(
            found.get(key),
            half=half_width(evaluation.per_user(key))
            if evaluation.told_per_user(key)
            else math.nan,
        )
        for key in metrics
    }


def attacked(folder: Path, out: Path) -> Cell:
    """Return how many promises of a run its attacks have broken, with a link to its report card."""
    try:
        content = json.loads((folder / JSON).read_text(encoding="utf-8"))
        verdicts = [attack["verdict"] for attack in content["attacks"]]
        failed = len(content["failed"])
    except FileNotFoundError:
        return Cell(NOT_ATTACKED)
    except (OSError, ValueError, KeyError, TypeError):
        return Cell(f"{JSON} cannot be read")
    broken = verdicts.count("broken")
    unclear = verdicts.count("underpowered")
    mark = "?" if unclear else "✓"
    text = f"✗ {broken} of {len(verdicts)}" if broken else f"{mark} none of {len(verdicts)}"
    if unclear:
        text += f", {unclear} underpowered"
    if failed:
        text += f", {failed} fell over"
    page = folder / PAGE
    return Cell(text, href=link_to(page, out) if page.is_file() else "")


def link_to(page: Path, folder: Path) -> str:
    """A relative address, so that a folder of runs can be moved as a whole."""
    return quote(os.path.relpath(page.resolve(), folder.resolve()).replace(os.sep, "/"))


def _share(run: FinishedRun) -> float | None:
    """The mean π of those who take part, where the release goes by it."""
    release = run.experiment.release
    if release is None or "share_positives" not in release.reads:
        return None
    return float(run.consent.share_positives[run.consent.takes_part].mean())


def _received(run: FinishedRun) -> float | None:
    """kB of published models, for a user who takes part; to data owners' users none goes."""
    if run.experiment.silo is not None:
        return None
    plan = run.folder.manifest()["schedule"]
    people = max(1, int(run.consent.takes_part.sum()))
    model = 4 * run.split.train.n_items * run.experiment.algorithm.width
    return float(model * plan["cohort_size"] * plan["rounds"] / people / 1000)


def _seconds(manifest: Mapping[str, Any]) -> float | None:
    try:
        start, end = (datetime.fromisoformat(manifest[key]) for key in ("started", "finished"))
        return (end - start).total_seconds()
    except (KeyError, TypeError, ValueError):
        return None


# --- what quality costs --------------------------------------------------------------------------


def _points(labels: Sequence[str], sides: Mapping[str, Side], cost: str) -> list[plots.TradePoint]:
    points = []
    for label in labels:
        side = sides[label]
        metric = own_metric(side.evaluation)
        worth, half = side.evaluation.mean(metric), half_width(side.evaluation.per_user(metric))
        price = side.sent if cost == "sent" else side.stands.epsilon
        if math.isfinite(price) and math.isfinite(worth):
            points.append(plots.TradePoint(label, price, worth, half, side.stands.kind))
    return points


def _drawn(
    labels: Sequence[str], sides: Mapping[str, Side], several: bool, figures: Path, number: int
) -> list[FigureBlock]:
    """Draw quality against bytes, and against ε among runs that have one."""
    found = []
    metric = own_metric(sides[labels[0]].evaluation)
    where = f", {' and '.join(labels)}" if several else ""
    for cost, axis, less in (
        ("sent", "kB sent by a user", "sends less"),
        ("epsilon", "ε of a user, at most", "costs a smaller ε"),
    ):
        points = _points(labels, sides, cost)
        if len(points) < 2:
            continue
        path = figures / f"quality-{cost}-{number}"
        drawn = plots.trades(path, points, x_label=axis, y_label=metric)
        name = f"{metric} against {axis}{where}"
        each = "; ".join(f"{p.name}: {p.worth:.4f} for {p.cost:,.4g}" for p in points)
        best = ", ".join(p.name for p in plots.best_trades(points))
        said = f"No other run is better and {less} than: {best}."
        found.append(FigureBlock(drawn.svg, f"{name}. {each}. {said}", f"{name}. {said}"))
    return found
