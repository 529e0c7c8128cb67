"""Shipped experiment files as they are, on several data sets, beside the best that sees all the
data: what somebody gets who tunes nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from sottovoce import config
from sottovoce.baselines import BASELINES
from sottovoce.data.dataset import Dataset
from sottovoce.errors import ConfigError, DataNotFound
from sottovoce.evaluation.protocol import Evaluation, evaluate
from sottovoce.evaluation.tables import Column
from sottovoce.experiment import Experiment, find_experiment
from sottovoce.runs.tables import hints
from sottovoce.runs.train import Report, run_experiment
from sottovoce.wire.terms import named
from sottovoce_papers.study import (
    Arrays,
    Claim,
    Row,
    Study,
    check_sources,
    claim,
    count_of,
    installed,
    laid_over,
    shown,
)

METRICS = ("P@10", "NDCG@10")
VERSION = 1
"""Of what a cell holds."""
BEST = "best central"
FLOOR = "Top-Pop"


@dataclass(frozen=True, slots=True)
class PresetsConfig:
    sources: tuple[str, ...] = ("town",)
    seeds: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        for name in ("sources", "seeds"):
            object.__setattr__(self, name, tuple(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class ShippedSystem:
    """A file that comes with the package, or a baseline that sees all the data."""

    label: str
    preset: str = ""
    """The file's name; its data, town, seed and baselines are not used."""
    lay: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Sections that are laid over the file: what it leaves to whoever uses it, as an ε."""
    baseline: Mapping[str, Any] = field(default_factory=dict, repr=False)
    central: bool = False
    """Whether it is one of those of which the best is the measure of all."""
    on_gpu: bool = False
    """Whether a GPU trains it, if there is one."""
    least: float = 0.0
    """The share of the best central NDCG@10 that it should have on the median set; 0: no claim."""

    def __post_init__(self) -> None:
        if bool(self.preset) == bool(self.baseline):
            raise ConfigError(f"the system {self.label} must have either a preset or a baseline")

    @classmethod
    def of(cls, table: Mapping[str, Any], number: int) -> ShippedSystem:
        if "label" not in table or not set(table) <= {each.name for each in fields(cls)}:
            raise ConfigError(f"systems[{number}] needs a label, and has fields that are unknown")
        return cls(**table)


class PresetsStudy(Study):
    """Files and baselines on data sets; nothing is run twice."""

    prefix = "presets-"

    def __init__(
        self,
        settings: PresetsConfig,
        data: Mapping[str, Mapping[str, Any]],
        systems: Sequence[ShippedSystem],
        cells: Path,
        threads: int,
        report: Report,
        device: str = "cpu",
    ) -> None:
        super().__init__(cells, threads, report)
        self.config, self.data, self.systems = settings, data, tuple(systems)
        self.device = device
        self._datasets: dict[str, Dataset] = {}
        self.left_out: list[str] = []
        """Data sets that are not here, in sentences."""
        check_sources(settings.sources, data)

    @classmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        table = installed(name, quick)
        settings = config.build(PresetsConfig, table.get("study", {}), "study")
        systems = [ShippedSystem.of(each, number) for number, each in enumerate(table["systems"])]
        return cls(settings, table["data"], systems, cells, threads, report, device)

    def describe(self) -> str:
        return (
            "shipped files as they are, nothing tuned to a data set; full ranking over all items "
            f"that a user has not, on the test part; mean of {count_of(self.config.seeds)}"
        )

    def describe_data(self) -> str:
        return "; ".join(self.config.sources)

    # --- cells ------------------------------------------------------------------------------------

    def experiment(self, source: str, seed: int, system: ShippedSystem) -> Experiment:
        sections: dict[str, Any] = {}
        if system.preset:
            text = find_experiment(system.preset).read_text(encoding="utf-8")
            sections = laid_over(tomllib.loads(text), system.lay)
        for name in ("name", "seed", "data", "town", "baselines", "evaluation"):
            sections.pop(name, None)
        data = self.data[source]
        return Experiment.from_table({"name": "presets", "seed": seed, "data": data, **sections})

    def cell(self, source: str, seed: int, system: ShippedSystem) -> Arrays:
        """Each user's figures, how many different items are recommended, and whether a run of it
        warns that it ends near popularity."""
        experiment = self.experiment(source, seed, system)
        if source not in self._datasets:
            self._datasets[source] = experiment.dataset()
        dataset = self._datasets[source]
        told = {k: v for k, v in experiment.table.items() if k != "name"}
        key = [VERSION, dataset.fingerprint(), told, dict(system.baseline)]
        return self.kept(key, METRICS, lambda: self._train(experiment, dataset, system))

    def _train(self, experiment: Experiment, dataset: Dataset, system: ShippedSystem) -> Arrays:
        if system.baseline:
            prepared = experiment.prepared(dataset)
            baseline = named(system.baseline, BASELINES, "", "baseline")
            train, test = prepared.split.train, prepared.split.test
            rng = experiment.streams().child("baseline", baseline.name)
            protocol = experiment.evaluation.protocol(prepared.split, experiment.seed)
            found = evaluate(baseline.fit(train, rng), train, test, protocol, threads=self.threads)
            return _kept(found, warned=False)
        device = self.device if system.on_gpu else "cpu"
        outcome = run_experiment(experiment, threads=self.threads, device=device)
        found = outcome.evaluations[outcome.system]
        return _kept(found, warned=any(FLOOR in hint for hint in hints(outcome)))

    # --- rows -------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """A row for each data set and system; of central ones, the best by NDCG@10."""
        found: list[Row] = []
        for source in self.config.sources:
            try:
                found += self._rows(source)
            except DataNotFound as error:
                self.left_out.append(f"{source} is left out: {error}")
        return found

    def _rows(self, source: str) -> list[Row]:
        rows: list[Row] = []
        for number, system in enumerate(self.systems):
            self.report(f"{source}: {system.label}", number, len(self.systems))
            cells = [self.cell(source, seed, system) for seed in self.config.seeds]
            rows.append(
                {
                    "data": source,
                    "system": system.label,
                    **{m: float(np.mean([cell[m].mean() for cell in cells])) for m in METRICS},
                    "covered": float(np.mean([int(cell["covered"]) for cell in cells])),
                    "warned": bool(any(bool(cell["warned"]) for cell in cells)),
                    "central": system.central,
                }
            )
        self.report(source, len(self.systems), len(self.systems))
        central = [row for row in rows if row["central"]]
        best = max(central, key=lambda row: float(row["NDCG@10"]))
        label = f"{BEST} ({best['system']})"
        ranked = [{**best, "system": label}, *(row for row in rows if not row["central"])]
        for row in ranked:
            row["share"] = row["NDCG@10"] / best["NDCG@10"] if best["NDCG@10"] else 0.0
        return ranked


def _kept(found: Evaluation, *, warned: bool) -> Arrays:
    lists = np.zeros(0) if found.lists is None else found.lists
    return {
        **{metric: found.per_user(metric) for metric in METRICS},
        "covered": np.array(len(np.unique(lists[lists >= 0]))),
        "warned": np.array(warned),
    }


def _claims(study: PresetsStudy, rows: Sequence[Row]) -> list[Claim]:
    """What a file is to reach on the median set, and that it says so where it does not pay."""
    found = []
    floor = {row["data"]: row["NDCG@10"] for row in rows if row["system"] == FLOOR}
    for system in study.systems:
        mine = [row for row in rows if row["system"] == system.label]
        if system.least and mine:
            median = float(np.median([row["share"] for row in mine]))
            text = f"{system.label} has {system.least:.0%} of the best central NDCG@10 or more"
            words = f"median of {len(mine)} sets: {median:.1%}"
            found.append(claim(f"{text}, on the median set", (median >= system.least, words)))
        if system.preset and floor:
            silent = [
                row["data"]
                for row in mine
                if row["NDCG@10"] <= floor[row["data"]] and not row["warned"]
            ]
            text = f"{system.label} is nowhere at or below {FLOOR} without saying so"
            found.append(claim(text, (not silent, ", ".join(silent) or "on none of these sets")))
    return found


def presets(study: PresetsStudy, out: Path) -> dict[str, Any]:
    """The table of every data set and system."""
    columns = [
        Column("data"),
        Column("system"),
        *(Column(metric, metric, ".4f") for metric in METRICS),
        Column("share", "share of the best central NDCG@10", ".1%"),
        Column("covered", "different items", ",.0f"),
        Column("warned", "warns"),
    ]
    rows = study.rows()
    if not rows:
        raise DataNotFound("; ".join(study.left_out))
    title = "Shipped presets, as they are"
    table = shown(title, columns, rows, study.describe(), study.left_out)
    return study.result("presets", out, [table], _claims(study, rows), rows=rows)


STUDY = PresetsStudy
VIEWS = {"presets": presets}
