"""The leak in published figures: training negatives that are drawn from outside a user's whole
history never hit her test item, and so tell the model what it is. Each rival with and without."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy.stats import binom

from sottovoce import config
from sottovoce.baselines import BASELINES
from sottovoce.data.dataset import Dataset
from sottovoce.errors import ConfigError, Diverged
from sottovoce.evaluation import plots
from sottovoce.evaluation.protocol import Protocol, evaluate
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.significance import paired_t
from sottovoce.evaluation.tables import Column, Table
from sottovoce.experiment import Experiment
from sottovoce.rng import Streams
from sottovoce.runs.train import Report
from sottovoce.wire.terms import named
from sottovoce_papers.rivals import WORST, best_case, cases_of, rival_of, rival_scorer
from sottovoce_papers.study import (
    Arrays,
    Claim,
    Floats,
    Row,
    Study,
    check_sources,
    claim,
    count_of,
    installed,
    interval,
    shown,
)

NAME = "negatives-leak"
VERSION = 1
"""Of what a cell holds."""
METRICS = ("HR@10", "NDCG@10")
PLACES = {"sampled": "99 candidates", "full": "all items"}
WAYS = ("fair", "leak")
COUNTED = "counting"
SPARE = 0.03
"""By how much HR@10 of a device that counts may differ from what chance makes of its draws."""


@dataclass(frozen=True, slots=True)
class LeakConfig:
    sources: tuple[str, ...] = ("movielens-1m-ncf", "movielens-100k")
    seeds: tuple[int, ...] = (0,)
    rounds: int = 0
    """Of every rival; 0: its own."""

    def __post_init__(self) -> None:
        for name in ("sources", "seeds"):
            object.__setattr__(self, name, tuple(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class LeakSystem:
    """A rival, with rates to choose from on the validation part; or a baseline, for comparison."""

    label: str
    rival: Mapping[str, Any] = field(default_factory=dict)
    baseline: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    at: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By source: rates that are known to be best there."""

    def __post_init__(self) -> None:
        if bool(self.rival) == bool(self.baseline):
            raise ConfigError(f"{self.label} must be a rival or a baseline")

    @classmethod
    def of(cls, table: Mapping[str, Any], number: int) -> LeakSystem:
        known = {each.name for each in dataclass_fields(cls)}
        if "label" not in table or not set(table) <= known:
            raise ConfigError(f"systems[{number}] needs a label, and has fields that are unknown")
        return cls(**table)

    def cases(self, source: str) -> list[dict[str, Any]]:
        """The settings to choose from."""
        known = self.at.get(source)
        return cases_of({**self.rival, **(known or {})}, {} if known else self.grid)


class LeakStudy(Study):
    """Rivals on data sets, with and without the leak; nothing is trained twice."""

    prefix = "leak-"

    def __init__(
        self,
        settings: LeakConfig,
        data: Mapping[str, Mapping[str, Any]],
        systems: Sequence[LeakSystem],
        printed: Sequence[Mapping[str, Any]],
        cells: Path,
        threads: int,
        report: Report,
        device: str = "cpu",
    ) -> None:
        super().__init__(cells, threads, report)
        self.config, self.data, self.systems = settings, data, tuple(systems)
        self.printed, self.device = printed, device
        self._loaded: dict[str, Dataset] = {}
        check_sources(settings.sources, data)
        for system in systems:
            for case in system.cases("") if system.rival else ():
                rival_of(case, system.label)

    @classmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        table = installed(name, quick)
        systems = [LeakSystem.of(each, number) for number, each in enumerate(table["systems"])]
        settings = config.build(LeakConfig, table.get("study", {}), "study")
        data, printed = table["data"], table.get("printed", ())
        return cls(settings, data, systems, printed, cells, threads, report, device)

    def describe(self) -> str:
        rounds = f", {self.config.rounds} rounds" if self.config.rounds else ""
        return (
            "one item of each user held out; ranked among 99 candidates, and among all items that "
            f"she has not; mean over users and {count_of(self.config.seeds)}, 95 % by Student's t "
            f"over users{rounds}; every client in every round, 4 negatives for each positive, "
            "drawn anew in every round; rates as published, or chosen on validation parts without "
            "the leak"
        )

    def describe_data(self) -> str:
        return "; ".join(self.config.sources)

    # --- cells ------------------------------------------------------------------------------------

    def _experiment(self, source: str, part: str) -> Experiment:
        table = {"data": {**self.data[source], "part": part}, "evaluation": {"candidates": 99}}
        return Experiment.from_table({"name": NAME, **table})

    def _dataset(self, source: str) -> Dataset:
        if source not in self._loaded:
            self._loaded[source] = self._experiment(source, "test").dataset()
        return self._loaded[source]

    def _sized(self, table: Mapping[str, Any]) -> dict[str, Any]:
        return {**table, **({"rounds": self.config.rounds} if self.config.rounds else {})}

    def cell(
        self, source: str, seed: int, table: Mapping[str, Any], way: str, part: str = "test"
    ) -> Arrays:
        """Each user's figures, of a rival or a baseline by its table."""
        about = [VERSION, source, self._dataset(source).fingerprint(), self.data[source], part]
        names = [f"{place} {metric}" for place in PLACES for metric in METRICS]
        return self.kept(
            [*about, seed, dict(table), way], names,
            lambda: self._measured(source, seed, table, way, part),
        )  # fmt: skip

    def _measured(
        self, source: str, seed: int, table: Mapping[str, Any], way: str, part: str
    ) -> Arrays:
        experiment = self._experiment(source, part)
        split = experiment.split(self._dataset(source))
        started = time.perf_counter()
        if way == "baseline":
            kind = named(table, BASELINES, "", "baseline")
            scorer = kind.fit(split.train, Streams.from_seed(seed).child("baseline", kind.name))
        else:
            try:
                scorer = rival_scorer(table, split, seed, self.device, leak=way == "leak")
            except Diverged:
                lost = {f"{place} {metric}": WORST for place in PLACES for metric in METRICS}
                return {**lost, "seconds": np.array(time.perf_counter() - started)}
        seconds = time.perf_counter() - started
        protocols = {
            "sampled": experiment.evaluation.protocol(split, 0),
            "full": Protocol(10),
        }
        found: dict[str, Any] = {"seconds": np.array(seconds)}
        for place, protocol in protocols.items():
            result = evaluate(scorer, split.train, split.test, protocol, threads=self.threads)
            found |= {f"{place} {metric}": result.per_user(metric) for metric in METRICS}
        return found

    def chosen(self, source: str, system: LeakSystem) -> dict[str, Any]:
        """A rival's settings, by NDCG@10 among 99 candidates of the validation part; what runs off
        to infinity is not chosen."""
        cases = [self._sized(case) for case in system.cases(source)]

        def score(case: dict[str, Any]) -> float:
            self.report(f"{source}: rates of {system.label}", cases.index(case), len(cases))
            found = self.cell(source, 0, case, "fair", "validation")
            return float(found["sampled NDCG@10"].mean())

        return best_case(cases, score)

    def by_counting(self, source: str, table: Mapping[str, Any]) -> tuple[float, float]:
        """HR@10 among 99 candidates of a device that counts, by chance alone, with and without the
        leak. With it a user's open items are drawn m times each on average, so that exp(-m) of them
        are never drawn either, and the answer is among those by lot. Who is to find an item that
        nobody has in training finds nothing."""
        settings = rival_of(table)
        split = self._experiment(source, "test").split(self._dataset(source))
        known = float((split.test.items < split.train.n_items).mean())
        have = split.train.counts[split.test.counts > 0]
        draws = settings.rounds * settings.negatives * have / (split.train.n_items - have)
        others = np.arange(100)
        chance = binom.pmf(others[:, None], 99, np.exp(-draws))
        found = (chance * np.minimum(1.0, 10.0 / (others + 1.0))[:, None]).sum(0)
        return known * float(found.mean()), known * 0.1

    def figures(self, source: str, system: LeakSystem) -> list[Row]:
        """A row for each way, with each user's values over all seeds."""
        rows: list[Row]
        if system.baseline:
            rows = [{"way": "baseline", "table": dict(system.baseline)}]
            seeds: Sequence[int] = self.config.seeds[:1]
        else:
            table, seeds = self.chosen(source, system), self.config.seeds
            rows = [{"way": way, "table": table} for way in WAYS]
        for row in rows:
            cells = [self.cell(source, seed, row["table"], row["way"]) for seed in seeds]
            row |= {
                "data": source,
                "system": system.label,
                "seconds": float(np.mean([cell["seconds"] for cell in cells])),
                "values": {
                    f"{place} {metric}": np.mean([c[f"{place} {metric}"] for c in cells], axis=0)
                    for place in PLACES
                    for metric in METRICS
                },
            }
        return rows

    def rows(self, source: str) -> list[Row]:
        found: list[Row] = []
        for number, system in enumerate(self.systems):
            self.report(f"{source}: {system.label}", number, len(self.systems))
            found += self.figures(source, system)
        self.report(source, len(self.systems), len(self.systems))
        return found


# --- what is claimed -----------------------------------------------------------------------------


def _of(rows: Sequence[Row], source: str, label: str, way: str) -> Floats | None:
    for row in rows:
        if (row["data"], row["system"], row["way"]) == (source, label, way):
            values: Floats = row["values"]["sampled HR@10"]
            return None if ran_off(values) else values
    return None


def _claims(study: LeakStudy, rows: Sequence[Row]) -> list[Claim]:
    found = []
    for source in study.config.sources:
        for system in study.systems:
            fair = _of(rows, source, system.label, "fair")
            leak = _of(rows, source, system.label, "leak")
            if fair is None or leak is None:
                continue
            if system.rival["name"] == COUNTED:
                expected, chance = study.by_counting(source, study.chosen(source, system))
                found.append(
                    claim(
                        f"{source}: {system.label} finds the test item where negatives leak, as "
                        "often as its draws permit, and knows nothing where they do not",
                        (
                            abs(leak.mean() - expected) < SPARE,
                            f"HR@10 {leak.mean():.4f} with the leak, {expected:.4f} by its draws",
                        ),
                        (
                            abs(fair.mean() - chance) < SPARE,
                            f"{fair.mean():.4f} without, {chance:.4f} by chance",
                        ),
                    )
                )
                continue
            test = paired_t(leak, fair)
            found.append(
                claim(
                    f"{source}: the leak lifts {system.label}",
                    (
                        test.low > 0.0,
                        f"HR@10 {leak.mean():.4f} with it, {fair.mean():.4f} without, by "
                        f"{test.difference:+.4f} [{test.low:+.4f}, {test.high:+.4f}]",
                    ),
                )
            )
    return found


# --- tables and the plot -------------------------------------------------------------------------


def ran_off(values: Floats) -> bool:
    """Whether the rates that were given ran off to infinity: then there are no figures."""
    return bool(values.mean() < 0.0)


WORDS = {"fair": "outside training", "leak": "outside the whole history", "baseline": "–"}


def _line(row: Row) -> Row:
    line: Row = {
        "data": row["data"],
        "system": row["system"],
        "way": row["way"],
        "negatives": WORDS[row["way"]],
        "seconds": row["seconds"],
        "settings": dict(row["table"]),
    }
    for key, values in row["values"].items():
        lost = ran_off(values)
        line[key], line[f"{key} half"] = (
            (None, None) if lost else (float(values.mean()), interval(values))
        )
    return line


def _table(study: LeakStudy, source: str, lines: Sequence[Row]) -> Table:
    columns = [Column("system"), Column("negatives", "negatives from")]
    for place, words in PLACES.items():
        for metric in METRICS:
            columns += [
                Column(f"{place} {metric}", f"{metric}, {words}", ".4f"),
                Column(f"{place} {metric} half", "±", ".4f"),
            ]
    columns += [Column("printed", "published HR@10 / NDCG@10"), Column("seconds", "s", ".1f")]
    rows = []
    for line in lines:
        theirs = [
            one
            for one in study.printed
            if (one["data"], one["system"]) == (source, line["system"]) and line["way"] == "leak"
        ]
        rows.append({**line, "printed": _printed(theirs[0]) if theirs else None})
    notes = [
        f"{line['system']} ran off to infinity ({line['negatives']})."
        for line in lines
        if line["sampled HR@10"] is None
    ]
    notes += [
        f"{one['system']}, published {_printed(one)}: {one['from']}"
        for one in study.printed
        if one["data"] == source
    ]
    return shown(f"With and without the leak: {source}", columns, rows, study.describe(), notes)


def _printed(one: Mapping[str, Any]) -> str:
    return " / ".join("–" if m not in one else f"{one[m]:.4f}" for m in METRICS)


def _draw(source: str, lines: Sequence[Row], path: Path) -> FigureBlock:
    """A line for each rival, from what it has without the leak to what it has with it."""
    labels = list(dict.fromkeys(line["system"] for line in lines if line["way"] != "baseline"))
    key = "sampled HR@10"
    with plots.drawing(path, f"{source}: what the leak is worth", (7.2, 4.2)) as (figure, axes):
        for way, colour, marker in (("fair", 0, "o"), ("leak", 1, "X")):
            chosen = [line for line in lines if line["way"] == way and line[key] is not None]
            axes.scatter(
                [line[key] for line in chosen], [labels.index(line["system"]) for line in chosen],
                color=plots.PALETTE[colour], marker=marker, s=48, zorder=3,
                label=f"negatives from {WORDS[way]}",
            )  # fmt: skip
        for line in (line for line in lines if line["way"] == "baseline"):
            axes.axvline(line[key], color=plots.SOFT, linestyle=(0, (5, 2)), linewidth=1.0)
            axes.text(line[key], -0.6, line["system"], fontsize=7, ha="center", color=plots.SOFT)
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.set(xlim=(0.0, 1.02), ylim=(len(labels) - 0.4, -0.9), xlabel="HR@10, 99 candidates")
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    words = f"HR@10 of each rival on {source}, with and without the leak"
    return FigureBlock(plots.figure_files(path).svg, words, f"{words}.")


def negatives_leak(study: LeakStudy, out: Path) -> dict[str, Any]:
    """The table and plot of every data set."""
    figures = out / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    every: list[Row] = []
    tables, pictures = [], []
    rows = {source: study.rows(source) for source in study.config.sources}
    for source, found in rows.items():
        lines = [_line(row) for row in found]
        every += lines
        tables.append(_table(study, source, lines))
        pictures.append(_draw(source, lines, figures / source))
    claims = _claims(study, [row for found in rows.values() for row in found])
    return study.result(NAME, out, tables, claims, pictures, rows=every)


STUDY = LeakStudy
VIEWS = {NAME: negatives_leak}
