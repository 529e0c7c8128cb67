"""Finished runs in one table to sort, filter and compare, and what quality costs, drawn."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sottovoce.evaluation import drawings
from sottovoce.evaluation.compared import Aspect, Compared, ComparedRow, Entry
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.evaluation.report import DrawingBlock
from sottovoce.evaluation.significance import compare_all
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
) -> tuple[Compared, list[DrawingBlock]]:
    """The table, for a page in the folder `out`, and drawings for each world of it. `tested` are
    runs and baselines of each world as they are to be compared."""
    sides = {
        label: Side.of(runs[label], evaluations[label], world)
        for world, labels in worlds.items()
        for label in labels
    }
    metrics = list(dict.fromkeys(
        key for labels in worlds.values()
        for key in keys_shown(evaluations[label] for label in labels)
    ))  # fmt: skip
    fronts = {
        world: {point.name for point in drawings.best_trades(_points(labels, sides, {}, "sent"))}
        for world, labels in worlds.items()
    }
    rows = []
    for world, labels in worlds.items():
        behind = f"baseline beside {labels[0]}" if len(worlds) > 1 else "baseline"
        named = {
            label if label in labels else f"{name_of(label)} ({behind})": found
            for label, found in tested[world].items()
        }
        differs = _differences(named, metrics)
        rows += [
            _row(label, sides[label], metrics, differs, out, front=label in fronts[world])
            for label in labels
        ]
        rows += [
            _baseline_row(name, found, sides[labels[0]], metrics, differs)
            for name, found in named.items()
            if name not in labels
        ]
    table = Compared(
        "Every run, and central baselines",
        _aspects(metrics, len(worlds), sides.values()),
        rows,
        [
            "± is half of a 95 % interval over users. Bytes are of those who take part, on "
            "average. On the front: no other run on these data is better and sends less.",
        ],
    )
    drawn = [
        block
        for world, labels in worlds.items()
        for block in _drawings(labels, sides, table.places(), len(worlds) > 1)
    ]
    return table, drawn


def _aspects(metrics: Sequence[str], worlds: int, sides: Any) -> list[Aspect]:
    shares = {side.run.experiment.silo is None and _share(side.run) is not None for side in sides}
    silos = {side.run.experiment.silo is not None for side in sides}
    columns = metric_columns("run", metrics)[1:]
    return [
        Aspect("system", "system", choose=True),
        Aspect("bound", "what bounds it", choose=True),
        Aspect("attacks", "promises broken", ",", choose=True),
        Aspect("epsilon", "ε, at most", ",.4g"),
        *([Aspect("share", "π, mean", ".2f")] if True in shares else []),
        *(
            Aspect(
                column.key, column.heading, column.format, column.best,
                change="difference", own_world=True, shown=number in (0, 2),
            )
            for number, column in enumerate(columns)
        ),
        Aspect("sent", "kB sent by a user", ",.1f", "min", change="ratio"),
        Aspect("front", "on the front", choose=True),
        Aspect("rounds", "epochs" if silos == {True} else "rounds", ",", change="ratio"),
        Aspect("data", "data", choose=True, shown=worlds > 1),
        Aspect("protocol", "protocol", choose=True, shown=False),
        Aspect("received", "kB received by a user", ",.1f", "min", change="ratio", shown=False),
        Aspect("seconds", "seconds", ",", change="ratio", shown=False),
        Aspect("people", "users taking part", ",", shown=False),
    ]  # fmt: skip


def _row(
    label: str,
    side: Side,
    metrics: Sequence[str],
    differs: Mapping[tuple[str, str], tuple[str, ...]],
    out: Path,
    *,
    front: bool,
) -> ComparedRow:
    run, folder, found = side.run, side.run.folder.path, side.evaluation.summary()
    manifest = run.folder.manifest()
    epsilon = side.stands.epsilon
    entries: dict[str, Entry | str | float | None] = {
        "system": run.experiment.system,
        "bound": side.stands.short,
        "data": run.dataset.name,
        "protocol": side.evaluation.describe(),
        "epsilon": epsilon if math.isinf(epsilon) else rounded_up(epsilon),
        "rounds": manifest["schedule"]["rounds"],
        "sent": side.sent,
        "received": _received(run),
        "seconds": _seconds(manifest),
        "people": int(run.consent.takes_part.sum()),
        "front": "yes" if front else "no",
        "attacks": attacked(folder, out),
    }
    share = _share(run)
    if share is not None:
        entries["share"] = share
    for key in metrics:
        entries[key] = _figure(label, side.evaluation, key, found.get(key), differs)
    page = folder / "report.html"
    href = link_to(page, out) if page.is_file() else ""
    return ComparedRow(label, side.world, entries, href)


def _figure(
    name: str,
    evaluation: Evaluation,
    key: str,
    value: float | None,
    differs: Mapping[tuple[str, str], tuple[str, ...]],
) -> Entry:
    told = evaluation.told_per_user(key)
    half = half_width(evaluation.per_user(key)) if told else math.nan
    return Entry(value, half, differs=differs.get((name, key), ()))


def _baseline_row(
    name: str,
    evaluation: Evaluation,
    side: Side,
    metrics: Sequence[str],
    differs: Mapping[tuple[str, str], tuple[str, ...]],
) -> ComparedRow:
    """Beside the first run of its world."""
    summary = evaluation.summary()
    entries: dict[str, Entry | str | float | None] = {
        "system": "baseline",
        "bound": CENTRAL,
        "data": side.run.dataset.name,
        "protocol": side.evaluation.describe(),
        **{key: _figure(name, evaluation, key, summary.get(key), differs) for key in metrics},
    }
    return ComparedRow(name, side.world, entries, central=True)


def _differences(
    evaluations: Mapping[str, Evaluation], metrics: Sequence[str]
) -> dict[tuple[str, str], tuple[str, ...]]:
    """By row and metric: from which other rows it differs by more than chance. A reader holds all
    rows against one that she chooses, so each of them is corrected for by itself."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for reference in evaluations:
        for one in compare_all(evaluations, metrics, [reference]):
            if one.significant():
                place = one.system, one.metric
                found[place] = (*found.get(place, ()), reference)
    return found


def attacked(folder: Path, out: Path) -> Entry:
    """How many promises of a run its attacks have broken, with the way to its report card."""
    try:
        content = json.loads((folder / JSON).read_text(encoding="utf-8"))
        verdicts = [attack["verdict"] for attack in content["attacks"]]
        failed = len(content["failed"])
    except FileNotFoundError:
        return Entry(None, text=NOT_ATTACKED, choice=NOT_ATTACKED)
    except (OSError, ValueError, KeyError, TypeError):
        words = f"{JSON} cannot be read"
        return Entry(None, text=words, choice=words)
    broken = verdicts.count("broken")
    unclear = verdicts.count("underpowered")
    mark = "?" if unclear else "✓"
    text = f"✗ {broken} of {len(verdicts)}" if broken else f"{mark} none of {len(verdicts)}"
    if unclear:
        text += f", {unclear} underpowered"
    if failed:
        text += f", {failed} fell over"
    page = folder / PAGE
    href = link_to(page, out) if page.is_file() else ""
    choice = "some broken" if broken else "some underpowered" if unclear else "none broken"
    return Entry(broken, text=text, choice=choice, href=href)


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


def _points(
    labels: Sequence[str], sides: Mapping[str, Side], places: Mapping[str, str], cost: str
) -> list[drawings.Point]:
    points = []
    for label in labels:
        side = sides[label]
        metric = own_metric(side.evaluation)
        worth, half = side.evaluation.mean(metric), half_width(side.evaluation.per_user(metric))
        price = side.sent if cost == "sent" else side.stands.epsilon
        if math.isfinite(price) and math.isfinite(worth):
            low, high = worth - half, worth + half
            place, kind = places.get(label, ""), side.stands.kind
            points.append(drawings.Point(label, place, price, worth, low, high, kind))
    return points


def _drawings(
    labels: Sequence[str], sides: Mapping[str, Side], places: Mapping[str, str], several: bool
) -> list[DrawingBlock]:
    """Quality against bytes, and against ε among runs that have one."""
    found = []
    metric = own_metric(sides[labels[0]].evaluation)
    where = f", {' and '.join(labels)}" if several else ""
    for cost, axis, less in (
        ("sent", "kB sent by a user", "sends less"),
        ("epsilon", "ε of a user, at most", "costs a smaller ε"),
    ):
        points = _points(labels, sides, places, cost)
        if len(points) < 2:
            continue
        front = drawings.best_trades(points)
        name = f"{metric} against {axis}{where}"
        each = "; ".join(f"{p.name}: {p.worth:.4f} for {p.cost:,.4g}" for p in points)
        best = ", ".join(p.name for p in front)
        said = f"No other run is better and {less} than: {best}."
        svg = drawings.trades(points, axis, metric, f"{name}. {each}. {said}")
        found.append(DrawingBlock(svg, name, f"{name}. {said}", drawings.key(points)))
    return found
