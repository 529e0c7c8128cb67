"""The whole story on the embedded town: choices, learning, comparison, one resident, her ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce.core import ledger as ledgers
from sottovoce.core.consent import Choice
from sottovoce.core.ledger import Totals
from sottovoce.errors import FolderInUse
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.evaluation.tables import Table
from sottovoce.experiment import Experiment, find_experiment
from sottovoce.runs.folder import check_writable
from sottovoce.runs.read import FinishedRun, Recommendation, choice_groups
from sottovoce.runs.report import side_by_side, write_run_report
from sottovoce.runs.tables import results_table
from sottovoce.runs.train import Report, RunOutcome, run_experiment

SHARED = "pFPL+, all shared"
"""The contrast: the same town, if everybody took part and shared everything."""
LIST = 10
SHOWN_VISITS = 8


@dataclass(frozen=True, slots=True)
class DemoTown:
    """The town, and how many residents made which choice."""

    residents: int
    venues: int
    visits: int
    fingerprint: str
    choices: tuple[tuple[Choice, int], ...]


@dataclass(frozen=True, slots=True)
class Place:
    title: str
    categories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resident:
    """One resident, as her own device knows her."""

    name: str
    attributes: Mapping[str, str]
    choice: Choice
    visits: int
    visited: tuple[Place, ...]
    """Some of the places she visited, the latest first."""
    recommendations: tuple[Recommendation, ...]
    visited_later: tuple[bool, ...]
    """Which recommended places are among the visits that were held out."""
    sent: Totals


@dataclass(frozen=True, slots=True, repr=False)
class Story:
    run: FinishedRun
    outcome: RunOutcome
    evaluations: Mapping[str, Evaluation]
    table: Table
    resident: Resident
    sent: Totals
    report: Path


def load() -> Experiment:
    return Experiment.from_file(find_experiment("demo"))


def folder_for(out: Path | None) -> Path:
    """Where the demo goes: a fresh numbered folder, or the one asked for, which must be empty."""
    if out is not None:
        check_writable(out)
        if out.exists() and any(out.iterdir()):
            raise FolderInUse(f"{out} is not empty; choose another --out")
        return out
    base, number = Path("runs/demo"), 1
    place = base
    while place.exists():
        number += 1
        place = base.with_name(f"{base.name}-{number}")
    return place


def introduce(experiment: Experiment) -> DemoTown:
    """Who lives here and what they chose, before anything is learnt."""
    dataset = experiment.dataset()
    table = dataset.interactions
    groups = choice_groups(experiment.consent.choices, experiment.records(dataset))
    return DemoTown(
        table.n_users,
        table.n_items,
        table.n_interactions,
        dataset.fingerprint(),
        tuple((choice, int(mask.sum())) for choice, mask in groups),
    )


def run_demo(experiment: Experiment, out: Path, *, threads: int, report: Report) -> Story:
    """Train, compare, and look at one resident."""
    outcome = run_experiment(experiment, out, threads=threads, report=report)
    contrasts = {
        label: _contrast(other, threads, report) for label, other in _contrasts(experiment).items()
    }
    evaluations = side_by_side(outcome, contrasts)
    report("report", 0, 1)
    page = write_run_report(outcome, contrasts)
    report("report", 1, 1)
    run = FinishedRun.open(out)
    return Story(
        run=run,
        outcome=outcome,
        evaluations=evaluations,
        table=results_table(evaluations, "pFPL+ against its baselines"),
        resident=_resident(run),
        sent=ledgers.totals_of(run.ledger()),
        report=page,
    )


def _contrasts(experiment: Experiment) -> dict[str, Experiment]:
    """sFPL under the same choices, and pFPL+ if everybody shared everything."""
    table = {**experiment.table, "baselines": {}, "evaluation": {"k": experiment.evaluation.k}}
    settings = {**table["algorithm"], "configuration": "sFPL", "epochs": 160}
    return {
        "sFPL": Experiment.from_table({**table, "algorithm": settings}),
        SHARED: Experiment.from_table({**table, "consent": {"share_positives": 1.0}}),
    }


def _contrast(experiment: Experiment, threads: int, report: Report) -> Evaluation:
    outcome = run_experiment(experiment, threads=threads, report=report)
    return outcome.evaluations[outcome.system]


def _resident(run: FinishedRun) -> Resident:
    """The first resident who takes part, shares something but not all, and went out enough."""
    share = run.consent.share_positives
    train, test = run.split.train, run.split.test
    fits = run.consent.takes_part & (share > 0) & (share < 1) & (train.counts >= SHOWN_VISITS)
    user = int(np.argmax(fits))
    name = train.users_vocabulary().name(user)
    own = train.row(user)
    if train.timestamps is not None:
        times = train.timestamps[train.indptr[user] : train.indptr[user + 1]]
        own = own[np.argsort(-times, kind="stable")]
    found = run.recommend(name, LIST)
    titles = {run.describe(int(item))[0] for item in test.row(user)}
    return Resident(
        name=name,
        attributes={k: v.texts()[user] for k, v in run.dataset.user_attributes.items()},
        choice=run.consent.row(user),
        visits=len(own),
        visited=tuple(Place(*run.describe(int(item))[1:]) for item in own[:SHOWN_VISITS]),
        recommendations=tuple(found),
        visited_later=tuple(place.item in titles for place in found),
        sent=ledgers.totals_of(run.ledger(user)),
    )
