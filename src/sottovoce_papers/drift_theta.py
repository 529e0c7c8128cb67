"""Θ, which the DRIFT thesis leaves to future work: what it saves, what it costs, what it hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sottovoce.algorithms.drift.blocks import Blocks, DriftModel, Ints
from sottovoce.algorithms.drift.messages import Gradients
from sottovoce.algorithms.drift.replay import plan
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.attacks.drift import (
    Claim,
    ClaimOutcome,
    Cosine,
    cosine_claims,
    request_pairs,
    score_pairs,
)
from sottovoce.core.recommender import FactorScorer
from sottovoce.engines.silo_simulation import Message, Party, SiloSimulation
from sottovoce.evaluation import plots, saros_metrics
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.saros_metrics import Measured
from sottovoce.evaluation.significance import paired_t
from sottovoce.evaluation.tables import Cell, Column, Table, Value
from sottovoce.wire.silo_rounds import gradients_bytes, request_bytes, rows_bytes
from sottovoce_papers.drift_study import METRICS, EpochStudy
from sottovoce_papers.study import Claim as Tested
from sottovoce_papers.study import Row, claim, shown

NAME = "drift-theta"
PUBLISHED = 2
"""The thesis's Θ, with which "the COS can not conclude anything"."""
WAYS = ("own", "full")


class NamedRows(NamedTuple):
    """What an update's request names."""

    users: Ints
    items: Ints


@dataclass(frozen=True, slots=True)
class ThetaPoint:
    """One Θ."""

    theta: int
    row: Mapping[str, Any]
    measured: Mapping[tuple[str, int], Measured]
    """By way and epochs."""
    outcomes: Mapping[str, ClaimOutcome]


def by_theta(study: EpochStudy, out: Path) -> dict[str, Any]:
    models, thetas = study.trained(), study.config.thetas

    def point(theta: int) -> ThetaPoint:
        return _point(study, replace(study.settings, theta=theta), models[theta])

    # One by one: a log of requests takes a gigabyte.
    points = study.many("what can be guessed", point, thetas, threads=1)
    claims = _claims(study, points)
    protocol = _describe(study)
    tables = [
        _cost_table(points, protocol),
        *[_accuracy_table(study, points, way) for way in WAYS],
        _guess_table(study, points),
    ]
    attacks = [
        {"run": f"Θ={p.theta}, {when}", **outcome.to_table()}
        for p in points
        for when, outcome in p.outcomes.items()
    ]
    return study.result(
        NAME, out, tables, claims, _pictures(study, points, out), protocol=protocol,
        rows=[p.row for p in points], attacks=attacks,
    )  # fmt: skip


def _describe(study: EpochStudy) -> str:
    return (
        f"one epoch and {study.settings.epochs}, seed {study.seed}; the request log of a "
        f"whole epoch; cosine on the gradients of the first {study.config.events:,} interactions; "
        f"{study.describe()}"
    )


# --- one Θ ---------------------------------------------------------------------------------------


def _point(
    study: EpochStudy, settings: DRIFTConfig, models: Mapping[int, DriftModel]
) -> ThetaPoint:
    blocks = plan(study.events, study.table, settings.theta, settings.window)
    requests = named_rows(blocks)
    row: Row = {"theta": settings.theta, **_costs(blocks, requests, settings)}
    measured: dict[tuple[str, int], Measured] = {}
    for epochs, model in models.items():
        scorer = FactorScorer.of(model.users, model.items)
        liked, test = settings.positive_from, study.test.test
        measured["own", epochs] = saros_metrics.own(scorer, test, liked)
        measured["full", epochs] = saros_metrics.full(scorer, study.test.train, test, liked)
    for (way, epochs), found in measured.items():
        row |= {_key(way, name, epochs): value for name, value in found.means().items()}
    outcomes = {"request log": _request_log(study, requests)}
    for when, model in (("first epoch", study.start()), ("trained", models[max(models)])):
        for attack, outcome in _cosine(study, settings, model).items():
            outcomes[f"{attack}, {when}"] = outcome
    for name, outcome in outcomes.items():
        row |= {
            f"{name}: precision": outcome.precision,
            f"{name}: recall": outcome.recall,
            f"{name}: base rate": outcome.base_rate,
        }
    return ThetaPoint(settings.theta, row, measured, outcomes)


def _key(way: str, metric: str, epochs: int) -> str:
    return f"{way} {metric}, {epochs} epoch{'s' * (epochs > 1)}"


def named_rows(blocks: Blocks) -> list[NamedRows]:
    """What the owner of each update asks for, as its `RowRequest` names it."""
    update = np.repeat(np.arange(blocks.steps), np.diff(blocks.updates))
    a, b, c, d = blocks.spans.T
    both = np.concatenate([_between(a, b), _between(c, d)])
    within = np.concatenate([np.repeat(update, b - a), np.repeat(update, d - c)])
    users = _by_update(update, blocks.user, blocks.steps)
    items = _by_update(within, blocks.entries[both].astype(np.int64), blocks.steps)
    return [NamedRows(u, i) for u, i in zip(users, items, strict=True)]


def _between(low: Ints, high: Ints) -> Ints:
    """low..high − 1 of each pair, one behind the other."""
    counts = high - low
    start = np.cumsum(counts) - counts
    places: Ints = np.arange(int(counts.sum())) + np.repeat(low - start, counts)
    return places


def _by_update(update: Ints, number: Ints, updates: int) -> list[Ints]:
    """The numbers of each update, ascending, each once."""
    several = int(number.max(initial=0)) + 1
    keys = np.unique(update * several + number)
    return np.split(keys % several, np.searchsorted(keys // several, np.arange(1, updates)))


def _costs(blocks: Blocks, requests: Sequence[NamedRows], settings: DRIFTConfig) -> dict[str, int]:
    size = settings.embedding_size
    counts = [(len(r.users), len(r.items)) for r in requests]
    asked = sum(request_bytes(*c) for c in counts)
    given = sum(rows_bytes(*c, size) for c in counts)
    sent = sum(gradients_bytes(*c, size) for c in counts)
    a, b, c, d = blocks.spans.T
    printed = 3 * int(((b - a) * (d - c)).sum())
    return {
        "updates": blocks.steps,
        "blocks": len(blocks),
        "rows": sum(u + i for u, i in counts),
        "rows_paper": printed,
        "request bytes": asked,
        "rows bytes": given,
        "gradients bytes": sent,
        "gradients bytes_paper": 4 * (1 + size) * printed + gradients_bytes(0, 0, 0) * blocks.steps,
        "up": asked + sent,
        "down": given,
    }


# --- what can be guessed -------------------------------------------------------------------------


def _request_log(study: EpochStudy, requests: Sequence[NamedRows]) -> ClaimOutcome:
    events = study.events
    truth = np.stack([events.user, events.item.astype(np.int64)], axis=1)
    return score_pairs(request_pairs(requests), truth, study.rng().child("request-log"))


def _cosine(study: EpochStudy, settings: DRIFTConfig, model: DriftModel) -> dict[str, ClaimOutcome]:
    """Both versions of the attack, on gradients as they come while an epoch starts from a model."""
    attacks = [Cosine(named=True), Cosine(named=False)]
    simulation: SiloSimulation

    def watch(party: Party, message: Message) -> None:
        if party[0] != "orchestrator" or not isinstance(message, Gradients):
            return
        truth = block_claims(simulation, message.owner)
        mine = simulation.model
        for attack in attacks:
            claims = cosine_claims(message, mine, settings.step(), named=attack.named)
            attack.take(claims, truth, len(message.users))

    simulation = study.simulation(settings, "none", witness=watch, model=model)
    simulation.epoch(study.first(study.config.events))
    return {attack.outcome().attack: attack.outcome() for attack in attacks}


def block_claims(simulation: SiloSimulation, owner: int) -> list[Claim]:
    """What is true of the update that an owner has under way."""
    return [
        Claim(user, item, liked)
        for user, block in simulation.owners[owner].asked
        for liked, side in ((False, block.negatives), (True, block.positives))
        for item in side
    ]


# --- tables --------------------------------------------------------------------------------------


def _cost_table(points: Sequence[ThetaPoint], protocol: str) -> Table:
    columns = [
        Column("theta", "Θ", "d"),
        Column("updates", format=",d"),
        Column("rows", "rows of gradients", ",d"),
        Column("rows_paper", "thesis", ",d"),
        Column("request bytes", "requests, B", ",d"),
        Column("gradients bytes", "gradients, B", ",d"),
        Column("gradients bytes_paper", "thesis", ",d"),
        Column("up", "up in all, B", ",d"),
        Column("down", "down in all, B", ",d"),
    ]
    notes = [
        "Bytes of all messages of an epoch between owners and the orchestrator; TLS comes on top. "
        "The thesis's algorithm sends three rows for every pair of a negative and a positive; ours "
        "adds them up, to one for each user and item of an update."
    ]
    return shown("DRIFT: an epoch by Θ", columns, [p.row for p in points], protocol, notes)


def _accuracy_table(study: EpochStudy, points: Sequence[ThetaPoint], way: str) -> Table:
    stops = sorted({1, study.settings.epochs})
    keys = [(_key(way, metric, stop), metric, stop) for stop in stops for metric in METRICS]
    columns = [
        Column("theta", "Θ", "d"),
        *[Column(k, f"{m}, {s} ep.", ".4f", best="max") for k, m, s in keys],
    ]
    what = points[0].measured[way, stops[0]].protocol
    return shown(f"Accuracy by Θ, ranking {what}", columns, [p.row for p in points])


def _guess_table(study: EpochStudy, points: Sequence[ThetaPoint]) -> Table:
    columns = [
        Column("theta", "Θ", "d"),
        Column("attack"),
        Column("precision", format=".4f"),
        Column("precision_95", "95 %"),
        Column("recall", format=".4f"),
        Column("recall_95", "95 %"),
        Column("base", "by chance", ".4f"),
        Column("claims", format=",d"),
    ]
    rows: list[dict[str, Value | Cell]] = [
        {"theta": p.theta, "attack": name, "precision": o.precision,
         "precision_95": _words(o.precision_interval), "recall": o.recall,
         "recall_95": _words(o.recall_interval), "base": o.base_rate, "claims": o.claimed}
        for p in points for name, o in p.outcomes.items()
    ]  # fmt: skip
    return Table("What the orchestrator can guess", columns, rows, notes=_GUESSES)


def _words(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.4f}–{interval[1]:.4f}"


_GUESSES = (
    "Request log: user and item, of all training interactions; by chance: the same users and items "
    "put together anyhow. Cosine: user, item and whether she liked it, of all entries of the "
    "blocks; by chance: one of the update's users (or, not named, the most frequent of all) and "
    "the more frequent sign. Intervals are Wilson's, as if claims were independent.",
)


def _pictures(study: EpochStudy, points: Sequence[ThetaPoint], out: Path) -> list[FigureBlock]:
    thetas = [float(np.log2(p.theta)) for p in points]

    def drawn(name: str, curves: Mapping[str, list[float]], y: str, title: str) -> FigureBlock:
        picture = plots.lines(
            out / "figures" / f"{NAME}-{name}", {k: (thetas, v) for k, v in curves.items()},
            x_label="log₂ Θ", y_label=y, title=title,
        )  # fmt: skip
        return FigureBlock(picture.svg, title)

    last = study.settings.epochs
    labels = {
        "request log": "requests",
        "cosine, users named, trained": "cosine, named",
        "cosine, users not named, trained": "cosine, not named",
    }
    attacks = {label: [p.outcomes[k].precision for p in points] for k, label in labels.items()}
    recalls = {label: [p.outcomes[k].recall for p in points] for k, label in labels.items()}
    kinds = ("request bytes", "rows bytes", "gradients bytes", "gradients bytes_paper")
    return [
        drawn("precision", attacks, "precision", "What the orchestrator claims that is true"),
        drawn("recall", recalls, "recall", "How much of what happened the orchestrator finds"),
        drawn("bytes", {k.replace(" bytes", "").replace("_paper", ", thesis"):
                        [p.row[k] / 1e6 for p in points] for k in kinds},
              "MB per epoch", "What an epoch costs"),
        drawn("accuracy", {f"{way}, {e} ep.":
                           [p.row[_key(way, "NDCG@10", e)] for p in points]
                           for way in WAYS for e in sorted({1, last})},
              "NDCG@10", "Accuracy by Θ"),
    ]  # fmt: skip


# --- claims --------------------------------------------------------------------------------------


def _claims(study: EpochStudy, points: Sequence[ThetaPoint]) -> list[Tested]:
    last = study.settings.epochs
    few, many = points[0], points[-1]
    by_theta = {p.theta: p for p in points}
    base = by_theta.get(PUBLISHED, few)
    fall = [a.row["up"] + a.row["down"] > b.row["up"] + b.row["down"] for a, b in pairwise(points)]
    found = [
        claim("thesis: a small Θ costs much communication",
              (all(fall), f"{_mb(few)} MB per epoch with Θ={few.theta}, {_mb(base)} with "
               f"{base.theta}, {_mb(many)} with {many.theta}")),
    ]  # fmt: skip
    for epochs in sorted({1, last}):
        pairs = [(way, base.measured[way, epochs], many.measured[way, epochs]) for way in WAYS]
        found.append(
            claim(f"thesis: a large Θ may cause bad recommendations (Θ={many.theta} against "
                  f"{base.theta}, NDCG@10, {epochs} epoch{'s' * (epochs > 1)})",
                  *[_worse(way, one, other) for way, one, other in pairs])
        )  # fmt: skip
    log = base.outcomes["request log"]
    found.append(
        claim(f"thesis: with Θ={base.theta} the orchestrator can conclude nothing about a user's "
              "interactions, from requests",
              (not log.succeeds, f"{log.precision:.1%} of the pairs it names are true, "
               f"{log.base_rate:.1%} by chance"))
    )  # fmt: skip
    for point in (base, many):
        parts = [
            (not o.succeeds, f"{o.precision:.2%} right, {o.recall:.1%} found, {o.base_rate:.1%} by "
             f"chance ({name})")
            for name, o in point.outcomes.items() if name.startswith("cosine")
        ]  # fmt: skip
        found.append(
            claim(f"with Θ={point.theta} the orchestrator cannot tell from gradients who liked "
                  "what", *parts)
        )  # fmt: skip
    return found


def _mb(point: ThetaPoint) -> str:
    return f"{(point.row['up'] + point.row['down']) / 1e6:,.0f}"


def _worse(way: str, one: Measured, other: Measured) -> tuple[bool, str]:
    test = paired_t(other.values["NDCG@10"], one.values["NDCG@10"])
    words = (
        f"{way}: {other.means()['NDCG@10']:.4f} against {one.means()['NDCG@10']:.4f}, "
        f"{test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f}, p={test.p:.2g})"
    )
    return test.high < 0, words


STUDY, VIEWS = EpochStudy, {NAME: by_theta}
