"""A year of gram: users join month by month, and count once; beside fresh releases every month."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce import config
from sottovoce.algorithms.base import Contributing
from sottovoce.algorithms.gram.model import first_share
from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.ledger import Ledger
from sottovoce.data.dataset import Dataset
from sottovoce.engines.observers import AtRounds
from sottovoce.engines.simulation import joining
from sottovoce.errors import ConfigError
from sottovoce.evaluation import plots
from sottovoce.evaluation.protocol import evaluate
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.tables import Column, Table
from sottovoce.experiment import Experiment, PreparedExperiment
from sottovoce.privacy.central import price
from sottovoce.privacy.own_epsilon import OwnEpsilon, distance
from sottovoce.runs.federation import Federation
from sottovoce.runs.train import Report
from sottovoce_papers.study import (
    Arrays,
    Claim,
    Floats,
    Row,
    Study,
    claim,
    count_of,
    installed,
    interval,
    shown,
)

METRIC = "P@10"
VERSION = 1
"""Of what a cell holds."""


@dataclass(frozen=True, slots=True)
class YearConfig:
    source: str = "movielens-1m"
    months: int = 12
    seeds: tuple[int, ...] = (0, 1, 2)
    epsilons: tuple[float, ...] = (1.0, 4.0)
    min_devices: int = 100

    def __post_init__(self) -> None:
        for name in ("seeds", "epsilons"):
            object.__setattr__(self, name, tuple(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class YearWay:
    """How the year's contributions are counted."""

    label: str
    kind: Literal["batches", "fresh", "alike", "once"] = "batches"
    """Fresh releases are such that each user ends at her ε; "alike": as softly as those who are in
    all of them."""
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    """Settings of gram."""

    @classmethod
    def of(cls, table: Mapping[str, Any], number: int) -> YearWay:
        if "label" not in table or not set(table) <= {"label", "kind", "algorithm"}:
            raise ConfigError(f"ways[{number}] needs a label, and has fields that are unknown")
        return cls(**table)

    def __post_init__(self) -> None:
        if self.kind not in ("batches", "fresh", "alike", "once"):
            raise ConfigError(f"a way is in batches, fresh, alike or once, not {self.kind!r}")


class YearStudy(Study):
    """Ways through a year, at several ε; nothing is run twice."""

    prefix = "year-"

    def __init__(
        self,
        settings: YearConfig,
        ways: Sequence[YearWay],
        cells: Path,
        threads: int,
        report: Report,
    ) -> None:
        super().__init__(cells, threads, report)
        self.config, self.ways = settings, tuple(ways)
        self._dataset: Dataset | None = None

    @classmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        table = installed(name, quick)
        settings = config.build(YearConfig, table.get("study", {}), "study")
        ways = [YearWay.of(way, number) for number, way in enumerate(table["ways"])]
        return cls(settings, ways, cells, threads, report)

    def describe(self) -> str:
        return (
            f"{METRIC} of all users by full ranking, latest 20 % held out, mean of "
            f"{count_of(self.config.seeds)}; δ = 10⁻⁶; users join in the order of their first "
            f"ratings, in {self.config.months} groups of equal size"
        )

    def describe_data(self) -> str:
        return self.config.source

    # --- cells ------------------------------------------------------------------------------------

    def experiment(self, seed: int, epsilon: float, way: YearWay) -> Experiment:
        batches = self.config.months if way.kind == "batches" else 1
        table = {
            "name": "year",
            "seed": seed,
            "data": {"source": self.config.source},
            "algorithm": {"name": "gram", "batches": batches, **way.algorithm},
            "release": {"epsilon": epsilon},
            "consent": {"epsilon": epsilon},
            "link": {"min_devices": self.config.min_devices},
        }
        return Experiment.from_table(table)

    def cell(self, seed: int, epsilon: float, way: YearWay) -> Arrays:
        """After each month: the figure of all users, and of those who have joined; at the end, each
        user's ε as her ledger adds it up, and exactly."""
        experiment = self.experiment(seed, epsilon, way)
        if self._dataset is None:
            self._dataset = experiment.dataset()
        data = self._dataset
        known = [self.config.months, self.config.min_devices, way.kind, dict(way.algorithm)]
        key = [VERSION, self.config.source, data.fingerprint(), seed, epsilon, *known]
        return self.kept(key, ["months"], lambda: self._train(experiment.prepared(data), way))

    def _train(self, prepared: PreparedExperiment, way: YearWay) -> Arrays:
        everyone = np.arange(prepared.split.train.n_users)
        joins = joining(prepared.split.train, everyone, self.config.months)
        if way.kind in ("fresh", "alike"):
            return self._fresh(prepared, joins, alike=way.kind == "alike")
        federation = self._federation(prepared)
        nothing = [(math.nan, math.nan)] * (self.config.months - 1)
        figures: list[tuple[float, float]] = nothing if way.kind == "once" else []
        stages = len(cast(Contributing, federation.server.algorithm).shares)

        def look(_: object) -> None:
            figures.append(self._figures(prepared, federation, joins <= len(figures)))

        stops = range(stages, federation.schedule.rounds + 1, stages)
        federation.run([AtRounds(tuple(stops), look)], threads=self.threads)
        spent = _booked(federation.devices.ledger, len(everyone))
        return {"months": np.array(figures), "ledger": spent, "exact": spent}

    def _fresh(
        self, prepared: PreparedExperiment, joins: NDArray[np.int64], *, alike: bool
    ) -> Arrays:
        """Every month, all who have joined contribute anew, each in her part of the same ε."""
        release = cast(OwnEpsilon, prepared.experiment.cross_device().release)
        releases = self.config.months - joins
        costs = [
            price(release.sigma * math.sqrt(k), 1, release.delta)
            for k in range(1, self.config.months + 1)
        ]
        known = np.full_like(releases, self.config.months) if alike else releases
        own = np.array(costs)[known - 1].astype(np.float32)
        figures, spent = [], np.zeros(len(joins))
        for month in range(self.config.months):
            there = joins <= month
            consent = replace(prepared.consent, epsilon=own, takes_part=there)
            federation = self._federation(replace(prepared, consent=consent), month)
            federation.run(threads=self.threads)
            figures.append(self._figures(prepared, federation, there))
            spent += _booked(federation.devices.ledger, len(joins))
        scale = np.array([distance(float(one), release.delta) for one in own]) * release.sigma
        exact = [
            price(release.sigma / (c * math.sqrt(k)), 1, release.delta)
            for c, k in zip(scale.tolist(), releases.tolist(), strict=True)
        ]
        return {"months": np.array(figures), "ledger": spent, "exact": np.array(exact)}

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

    def _figures(
        self, prepared: PreparedExperiment, federation: Federation, there: Any
    ) -> tuple[float, float]:
        split, experiment = prepared.split, prepared.experiment
        protocol = experiment.evaluation.protocol(split, experiment.seed)
        found = evaluate(
            federation.scorer(), split.train, split.test, protocol, threads=self.threads
        )
        values = found.per_user(METRIC)
        return float(values.mean()), float(values[there[found.users]].mean())

    # --- rows -------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """One for each ε and way."""
        asked = [(epsilon, way) for epsilon in self.config.epsilons for way in self.ways]
        rows: list[Row] = []
        for number, (epsilon, way) in enumerate(asked):
            self.report(f"ε = {epsilon:g}: {way.label}", number, len(asked))
            cells = [self.cell(seed, epsilon, way) for seed in self.config.seeds]
            months = np.array([cell["months"] for cell in cells])
            last = months[:, -1, 0]
            rows.append(
                {
                    "epsilon": epsilon, "way": way.label, "kind": way.kind,
                    "algorithm": dict(way.algorithm),
                    "months": months[:, :, 0].mean(axis=0).tolist(),
                    "joined": months[:, :, 1].mean(axis=0).tolist(),
                    "last": float(last.mean()), "half": interval(last), "seeds": len(cells),
                    "ledger": float(max(cell["ledger"].max() for cell in cells)),
                    "exact": float(max(cell["exact"].max() for cell in cells)),
                    "least": float(min(cell["exact"].min() for cell in cells)),
                }
            )  # fmt: skip
        self.report("a year", len(asked), len(asked))
        return rows


def _booked(ledger: Ledger, users: int) -> Floats:
    """Each user's ε, as the rows of her ledger add up."""
    rows = ledger.pending()
    found = np.zeros(users)
    np.add.at(found, rows["user"].to_numpy(), rows["epsilon"].to_numpy())
    return found


def _claims(rows: Sequence[Row]) -> list[Claim]:
    found: list[Claim] = []
    for epsilon in dict.fromkeys(row["epsilon"] for row in rows):
        mine = {row["way"]: row for row in rows if row["epsilon"] == epsilon}
        batches = {way: row for way, row in mine.items() if row["kind"] == "batches"}
        booked = all(
            abs(row[name] - epsilon) <= 1e-6 * epsilon
            for row in batches.values()
            for name in ("ledger", "exact", "least")
        )
        words = f"{min(row['least'] for row in batches.values()):.6g} to " + (
            f"{max(row['ledger'] for row in batches.values()):.6g}"
        )
        text = f"ε = {epsilon:g}: in batches every user ends at her ε, by her own ledger"
        found.append(claim(text, (booked, words)))
        for one in batches.values():
            twin = one["algorithm"] | {"noise": "factorised"}
            others = [row for row in batches.values() if row["algorithm"] == twin]
            if others and others[0] is not one:
                text = f"ε = {epsilon:g}: {others[0]['way']} ends above {one['way']}"
                good = others[0]["last"] > one["last"]
                found.append(claim(text, (good, _against(others[0], one))))
        fresh = next((row for row in mine.values() if row["kind"] == "fresh"), None)
        if fresh is not None:
            # Of every way in batches: the best one, picked afterwards, would say too much.
            for row in batches.values():
                mean, other = (float(np.mean(one["months"])) for one in (row, fresh))
                text = f"ε = {epsilon:g}: {row['way']} is better than {fresh['way']} over the year"
                detail = f"mean of all months {mean:.4f} against {other:.4f}"
                found.append(claim(text, (mean > other, detail)))
                text = f"ε = {epsilon:g}: {row['way']} does not end below {fresh['way']}"
                found.append(claim(text, (row["last"] >= fresh["last"], _against(row, fresh))))
    return found


def _against(row: Row, other: Row) -> str:
    return f"{row['way']} {row['last']:.4f} against {other['last']:.4f}"


def _draw(epsilon: float, rows: Sequence[Row], path: Path) -> FigureBlock:
    curves = {
        row["way"]: (range(1, len(row["months"]) + 1), row["months"])
        for row in rows
        if row["kind"] != "once"
    }
    levels = {row["way"]: row["last"] for row in rows if row["kind"] == "once"}
    plots.lines(
        path, curves, x_label="month", y_label=METRIC,
        title=f"A year at ε = {epsilon:g}", references=levels,
    )  # fmt: skip
    words = f"{METRIC} of all users after each month, every user at ε = {epsilon:g} in the end"
    return FigureBlock(plots.figure_files(path).svg, words, f"{words}.")


def year(study: YearStudy, out: Path) -> dict[str, Any]:
    """A table and a plot for each ε."""
    figures = out / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    rows, months = study.rows(), study.config.months
    shown_months = sorted({1, *(round(months * part / 4) for part in range(1, 5))} - {0})
    columns = [
        Column("way"),
        *(Column(f"m{month}", f"month {month}", ".4f") for month in shown_months),
        Column("half", "± (95 %)", ".4f"),
        Column("half_year", f"joined, month {months // 2}", ".4f"),
        Column("exact", "ε at the end", ".4g"),
        Column("ledger", "ε by her ledger", ".4g"),
    ]
    tables: list[Table] = []
    pictures: list[FigureBlock] = []
    for epsilon in study.config.epsilons:
        mine = [row for row in rows if row["epsilon"] == epsilon]
        lines = [
            row
            | {f"m{month}": _number(row["months"][month - 1]) for month in shown_months}
            | {"half_year": _number(row["joined"][months // 2 - 1])}
            for row in mine
        ]
        title = f"A year of gram at ε = {epsilon:g}: {study.config.source}"
        tables.append(shown(title, columns, lines, study.describe()))
        pictures.append(_draw(epsilon, mine, figures / f"epsilon-{epsilon:g}"))
    plain = [
        row | {name: [_number(one) for one in row[name]] for name in ("months", "joined")}
        for row in rows
    ]
    return study.result("year", out, tables, _claims(rows), pictures, rows=plain)


def _number(value: float) -> float | None:
    """What is no number is shown as nothing."""
    return None if math.isnan(value) else float(value)


STUDY = YearStudy
VIEWS = {"year": year}
