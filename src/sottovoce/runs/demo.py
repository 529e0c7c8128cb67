"""The whole story on the embedded town: choices, learning, comparison, the five papers' systems,
what is given away, one resident, her ledger."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce.attacks.views import Result
from sottovoce.core import ledger as ledgers
from sottovoce.core.consent import Choice
from sottovoce.core.interactions import positions
from sottovoce.core.ledger import Totals
from sottovoce.errors import FolderInUse
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.evaluation.tables import Table
from sottovoce.experiment import Experiment, find_experiment
from sottovoce.runs.attack import attack_run
from sottovoce.runs.folder import check_writable
from sottovoce.runs.read import FinishedRun, Recommendation, choice_groups
from sottovoce.runs.report import side_by_side, write_run_report
from sottovoce.runs.standing import origin
from sottovoce.runs.tables import results_table
from sottovoce.runs.train import Report, RunOutcome, run_experiment

PAPERS = {"fpl": "FPL", "fcf": "FCF", "fmf": "FMF-LDP", "drift": "DRIFT", "uc": "UC-FedRec"}
"""The systems of the five papers, by their experiment files in `papers/`."""
LIST = 10
SHOWN_VISITS = 8
TRIED = {"gram": "whoever knows everybody else", "fpl": "inversion"}
"""By algorithm: the attack that shows what it gives away."""


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
    like_her: float
    """Of all residents, the share with such a place on their list: she was chosen among them."""


@dataclass(frozen=True, slots=True, repr=False)
class Story:
    run: FinishedRun
    outcome: RunOutcome
    evaluations: Mapping[str, Evaluation]
    table: Table
    resident: Resident
    sent: Totals
    report: Path
    papers: Mapping[str, Evaluation]
    """The papers' systems as printed, and gram, on a smaller town."""
    papers_table: Table
    printed: Path
    """The run of FPL, as printed."""
    given_away: Mapping[str, Result]
    """By system: what the attack on it came to."""


def load() -> Experiment:
    return Experiment.from_file(find_experiment("demo"))


def load_papers() -> dict[str, Experiment]:
    """gram with two baselines, and the papers' systems as their commands run them, on one town and
    under one protocol. UC-FedRec is left out if torch is not installed."""
    gram = ["town.residents=1000", "link.min_devices=500", "baselines={random={}, top-pop={}}"]
    found = {"gram": Experiment.from_file(find_experiment("demo"), gram)}
    for name in PAPERS:
        if name != "uc" or importlib.util.find_spec("torch") is not None:
            settings = ["baselines={}", *['evaluation.relevant="all"'] * (name == "drift")]
            found[name] = Experiment.from_file(find_experiment(f"papers/{name}"), settings)
    return found


def folder_for(out: Path | None) -> Path:
    """Where the demo goes: a fresh numbered folder, or the one asked for, which must be empty."""
    if out is not None:
        check_writable(out)
        if out.exists() and any(out.iterdir()):
            raise FolderInUse(f"{out} is not empty; choose another --out")
        return out
    base, number = Path("runs/demo"), 1
    place = base
    while place.exists() or _beside(place).exists():
        number += 1
        place = base.with_name(f"{base.name}-{number}")
    return place


def _beside(out: Path) -> Path:
    """Where the runs of the papers' systems go."""
    return out.with_name(f"{out.name}-papers")


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
    """Train, compare, attack, and look at one resident."""
    outcome = run_experiment(experiment, out, threads=threads, report=report)
    beside = _beside(out)
    if beside.exists():
        raise FolderInUse(f"{beside} is there; choose another --out")
    papers: dict[str, Evaluation] = {}
    for name, asked in load_papers().items():
        found = run_experiment(asked, beside / name, threads=threads, report=report)
        label = f"{PAPERS[name]}, {origin(asked)}" if name in PAPERS else found.system
        others = {one: each for one, each in found.evaluations.items() if one != found.system}
        papers |= {**others, label: found.evaluations[found.system]}
    given_away = {
        name: attack_run(folder, rounds=rounds, only=[TRIED[name]], threads=threads,
                         report=report).results[0]
        for name, folder, rounds in (("gram", out, None), ("fpl", beside / "fpl", 1))
    }  # fmt: skip
    evaluations = side_by_side(outcome)
    report("report", 0, 1)
    page = write_run_report(outcome)
    report("report", 1, 1)
    run = FinishedRun.open(out)
    return Story(
        run=run,
        outcome=outcome,
        evaluations=evaluations,
        table=results_table(evaluations, "gram, with every resident's own ε, beside others"),
        papers=papers,
        papers_table=results_table(
            papers, "The five papers' systems and gram, on a town of 1,000 residents"
        ),
        resident=_resident(run, outcome.evaluations[outcome.system]),
        sent=ledgers.totals_of(run.ledger()),
        report=page,
        printed=beside / "fpl",
        given_away=given_away,
    )


def _resident(run: FinishedRun, evaluation: Evaluation) -> Resident:
    """The first resident who takes part, never sends something, went out enough, and later went to
    a place that is on her list: nobody would look at one who did not. Where nobody is all of that,
    the first with such a place who is most of it."""
    train, test = run.split.train, run.split.test
    hit = np.zeros(train.n_users, dtype=bool)
    hit[evaluation.users] = evaluation.per_user(f"HR@{LIST}") > 0
    fits = 4 * hit + run.consent.takes_part + (train.counts >= SHOWN_VISITS)
    user = int(np.argmax(fits + np.asarray(run.consent.never_send.any(axis=1))))
    names = train.users_vocabulary()
    found = run.recommend(names.name(user), LIST)
    titles = {run.describe(int(item))[0] for item in test.row(user)}
    later = tuple(place.item in titles for place in found)
    own = train.row(user)
    order = positions(train.take_users(np.array([user])))
    own = own[np.argsort(-order, kind="stable")]
    return Resident(
        name=names.name(user),
        attributes={k: v.texts()[user] for k, v in run.dataset.user_attributes.items()},
        choice=run.consent.row(user),
        visits=len(own),
        visited=tuple(Place(*run.describe(int(item))[1:]) for item in own[:SHOWN_VISITS]),
        recommendations=tuple(found),
        visited_later=later,
        sent=ledgers.totals_of(run.ledger(user)),
        like_her=float(hit[evaluation.users].mean()),
    )
