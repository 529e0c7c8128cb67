"""A year of gram: users join month by month, and count once; beside fresh releases every month."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Contributing
from sottovoce.algorithms.gram.model import first_share
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.ledger import Ledger
from sottovoce.engines.observers import AtRounds
from sottovoce.engines.simulation import joining
from sottovoce.errors import ConfigError
from sottovoce.evaluation.protocol import Evaluation, evaluate
from sottovoce.experiment import Experiment, PreparedExperiment
from sottovoce.privacy.central import price
from sottovoce.privacy.own_epsilon import OwnEpsilon, distance
from sottovoce.runs.federation import Federation
from sottovoce_papers.claims import Floats, Row
from sottovoce_papers.lines import END, Job, Kind, TrainedLine, TrainedSystem

METRIC = "P@10"
WAYS = ("batches", "fresh", "alike", "once")


class YearKind(Kind):
    """gram through `months`, in a `way`: in batches, each user in the month in which they join; in
    fresh releases, such that each user ends at their ε ("alike": as softly as those who are in all
    of them); or once, in the last month. `algorithm` has settings of gram."""

    def key(self, job: Job) -> object:
        return dict(job.settings)

    def train(self, job: Job) -> TrainedSystem:
        way, months = job.settings["way"], job.settings["months"]
        prepared = experiment_of(job).prepared(job.world.dataset)
        everyone = np.arange(prepared.split.train.n_users)
        joins = joining(prepared.split.train, everyone, months)
        course = YearCourse(prepared, joins, months, job.cells.threads)
        spent, exact = course.fresh(way == "alike") if way in ("fresh", "alike") else course.once()
        figures = [(one.per_user(METRIC), one.users) for one in course.looks]
        nothing: list[float | None] = [None] * (months - len(figures))
        facts = {
            "months": nothing + [float(values.mean()) for values, _ in figures],
            "joined": nothing
            + [
                float(values[joins[users] <= month].mean())
                for month, (values, users) in enumerate(figures, months - len(figures))
            ],
            "ledger": float(spent.max()),
            "exact": float(exact.max()),
            "least": float(exact.min()),
        }
        return TrainedSystem({END: course.looks[-1]}, facts)


def experiment_of(job: Job) -> Experiment:
    """The experiment of gram on the job's data."""
    settings = job.settings
    if settings["way"] not in WAYS:
        raise ConfigError(f"a way is in {', '.join(WAYS)}, not {settings['way']!r}")
    batches = settings["months"] if settings["way"] == "batches" else 1
    table = {
        "name": "year",
        "seed": job.seed,
        "data": job.world.config.experiment(),
        "algorithm": {"name": "gram", "batches": batches, **settings.get("algorithm", {})},
        "release": {"epsilon": settings["epsilon"]},
        "consent": {"epsilon": settings["epsilon"]},
        "link": {"min_devices": settings["min_devices"]},
    }
    return Experiment.from_table(table)


class YearCourse:
    """One way through a year, measured after each month."""

    def __init__(
        self, prepared: PreparedExperiment, joins: NDArray[np.int64], months: int, threads: int
    ) -> None:
        self.prepared, self.joins, self.months, self.threads = prepared, joins, months, threads
        self.looks: list[Evaluation] = []

    def look(self, federation: Federation) -> None:
        """Measure what all users are recommended now."""
        split, experiment = self.prepared.split, self.prepared.experiment
        protocol = experiment.evaluation.protocol(split, experiment.seed)
        scorer = federation.scorer()
        found = evaluate(scorer, split.train, split.test, protocol, threads=self.threads)
        self.looks.append(found)

    def once(self) -> tuple[Floats, Floats]:
        """One federation, in as many batches as its settings say. Return each user's ε as their
        ledger adds it up, and exactly."""
        federation = self._federation(self.prepared)
        stages = len(cast(Contributing, federation.server.algorithm).shares)
        stops = range(stages, federation.schedule.rounds + 1, stages)
        observer = AtRounds(tuple(stops), lambda _: self.look(federation))
        federation.run([observer], threads=self.threads)
        spent = _booked(federation.devices.ledger, len(self.joins))
        return spent, spent

    def fresh(self, alike: bool) -> tuple[Floats, Floats]:
        """Every month, all who have joined contribute anew, each in their part of the same ε.
        Return each user's ε as their ledger adds it up, and exactly."""
        prepared, joins = self.prepared, self.joins
        release = cast(OwnEpsilon, prepared.experiment.cross_device().release)
        releases = self.months - joins
        costs = [
            price(release.sigma * math.sqrt(k), 1, release.delta) for k in range(1, self.months + 1)
        ]
        known = np.full_like(releases, self.months) if alike else releases
        own = np.array(costs)[known - 1].astype(np.float32)
        spent = np.zeros(len(joins))
        for month in range(self.months):
            there = joins <= month
            consent = replace(prepared.consent, epsilon=own, takes_part=there)
            federation = self._federation(replace(prepared, consent=consent), month)
            federation.run(threads=self.threads)
            self.look(federation)
            spent += _booked(federation.devices.ledger, len(joins))
        scale = np.array([distance(float(one), release.delta) for one in own]) * release.sigma
        exact = [
            price(release.sigma / (c * math.sqrt(k)), 1, release.delta)
            for c, k in zip(scale.tolist(), releases.tolist(), strict=True)
        ]
        return spent, np.array(exact)

    def _federation(self, prepared: PreparedExperiment, month: int | None = None) -> Federation:
        """`month`: of a fresh release, whose shares go by what its users tell together."""
        experiment, train = prepared.experiment, prepared.split.train
        _, release, link = experiment.cross_device()
        settings = cast(GramConfig, experiment.on(prepared.dataset, prepared.consent)[0])
        rng = experiment.party_streams()
        if month is not None:
            own = cast(OwnEpsilon, release)
            levels, many = np.unique(
                prepared.consent.epsilon[prepared.consent.takes_part], return_counts=True
            )
            told = math.fsum(
                n * distance(float(e), own.delta) * own.sigma
                for e, n in zip(levels, many.tolist(), strict=True)
            )
            share = first_share(told, train.n_items, own.sigma)
            settings, rng = replace(settings, popularity_share=share), rng.child("month", month)
        return Federation.build(settings, train, prepared.consent, release, rng, link=link)


def _booked(ledger: Ledger, users: int) -> Floats:
    """Return each user's ε, as the rows of the ledger add up."""
    rows = ledger.pending()
    found = np.zeros(users)
    np.add.at(found, rows["user"].to_numpy(), rows["epsilon"].to_numpy())
    return found


# --- columns -------------------------------------------------------------------------------------


def course(line: TrainedLine) -> Row:
    """Return the means over seeds after each month, of all users and of those who have joined; the
    mean of the whole year; and the users' ε in the end."""
    row: Row = {}
    for name, key in (("months", f"{METRIC} after {{}}"), ("joined", "joined {}")):
        for month, values in enumerate(zip(*(one[name] for one in line.facts), strict=True), 1):
            if None not in values:
                row[key.format(month)] = float(np.mean(values))
    row["year"] = float(np.mean([v for name, v in row.items() if name.startswith(METRIC)]))
    row["ledger"] = max(facts["ledger"] for facts in line.facts)
    row["exact"] = max(facts["exact"] for facts in line.facts)
    row["least"] = min(facts["least"] for facts in line.facts)
    return row
