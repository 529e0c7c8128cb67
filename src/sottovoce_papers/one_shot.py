"""gram beside all others: accuracy against ε, on several data sets, and by each user's own ε."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from sottovoce import config
from sottovoce.baselines import BASELINES
from sottovoce.data.dataset import Dataset
from sottovoce.errors import ConfigError
from sottovoce.evaluation import plots
from sottovoce.evaluation.protocol import evaluate
from sottovoce.evaluation.report import FigureBlock
from sottovoce.evaluation.tables import Column, Table
from sottovoce.experiment import Experiment
from sottovoce.privacy.accountant import certify
from sottovoce.privacy.central import noise_for
from sottovoce.runs.home import baseline_at_home
from sottovoce.runs.train import Report, run_experiment
from sottovoce.wire.terms import named
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
    laid_over,
    shown,
)

METRIC = "P@10"
VERSION = 1
"""Of what a cell holds."""


@dataclass(frozen=True, slots=True)
class OneShotConfig:
    sources: tuple[str, ...] = ("movielens-1m",)
    seeds: tuple[int, ...] = (0, 1, 2)
    epsilons: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    mixed: str = ""
    """The data set on which users have an ε of their own; none where it is empty."""
    mix: tuple[tuple[float, float], ...] = ((30, 0.25), (30, 1.0), (40, 4.0))
    """Weights, and the ε of each group."""

    def __post_init__(self) -> None:
        for name in ("sources", "seeds", "epsilons"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "mix", tuple((float(w), float(e)) for w, e in self.mix))


@dataclass(frozen=True, slots=True)
class OneShotSystem:
    """One recommender: an experiment of devices, or a baseline that sees all the data."""

    label: str
    line: bool = False
    """Whether it has an ε, and so a line in the plot."""
    sources: tuple[str, ...] = ()
    """Where it runs; everywhere by default."""
    seeds: int = 0
    """How many seeds are enough, where chance decides little; 0: all."""
    sections: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Of an experiment file; `baseline` for one."""
    at: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """By source: what is laid over the sections there."""
    pays: str = "once"
    """How settings follow from the ε that a user pays in all: it is theirs ("once"), a part of it
    for each of `times` equal costs ("times"), noise on the sum of each round ("sums"), or the ε of
    reports that go through an honest shuffler with those of `times` users ("reports")."""
    times: int = 1

    def __post_init__(self) -> None:
        if self.pays not in PAYS:
            raise ConfigError(f"{self.label}: pays must be one of {', '.join(PAYS)}")

    @classmethod
    def of(cls, table: Mapping[str, Any], number: int) -> OneShotSystem:
        own = dict(table)
        names = ("baseline", "algorithm", "release", "link", "consent", "home")
        sections = {name: own.pop(name) for name in names if name in own}
        known = {each.name for each in dataclass_fields(cls)} - {"sections"}
        if "label" not in own or not set(own) <= known:
            raise ConfigError(f"systems[{number}] needs a label, and has fields that are unknown")
        own["sources"] = tuple(own.get("sources", ()))
        return cls(sections=sections, **own)

    def sections_at(self, source: str, epsilon: float | None) -> dict[str, Any]:
        """Its settings on these data, at this ε."""
        found = laid_over(self.sections, self.at.get(source, {}))
        if epsilon is None:
            return found
        return laid_over(found, PAYS[self.pays](found, epsilon, self.times))


def _once(sections: Mapping[str, Any], epsilon: float, times: int) -> dict[str, Any]:
    if "baseline" in sections:
        return {"baseline": {"epsilon": epsilon}}
    return {"release": {"epsilon": epsilon}, "consent": {"epsilon": epsilon}}


def _times(sections: Mapping[str, Any], epsilon: float, times: int) -> dict[str, Any]:
    return _once(sections, epsilon / times, 1)


def _sums(sections: Mapping[str, Any], epsilon: float, times: int) -> dict[str, Any]:
    noise = noise_for(epsilon, sections["algorithm"]["rounds"])
    return {"link": {"noise": float(np.ceil(1000.0 * noise) / 1000.0)}}


def _reports(sections: Mapping[str, Any], epsilon: float, times: int) -> dict[str, Any]:
    k, rounds = sections["release"]["max_reports"], sections["algorithm"]["rounds"]
    one = report_epsilon(epsilon, k, rounds, times)
    tier = {"epsilon": one, "min_devices": times}
    chosen = {"epsilon": one, "max_reports": k, "total_epsilon": one * k * rounds}
    return {"release": {"tiers": [tier]}, "consent": chosen}


PAYS = {"once": _once, "times": _times, "sums": _sums, "reports": _reports}


@cache
def report_epsilon(epsilon: float, reports: int, rounds: int, users: int) -> float:
    """The largest ε of a report, in steps of 1/1000, with which all of a user's reports cost no
    more than `epsilon` with an honest shuffler."""

    def fits(steps: int) -> bool:
        return certify(steps / 1000.0, reports, rounds, users).with_proxy <= epsilon

    low, high = 0, 64
    while high < 8000 and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if not low:
        raise ConfigError(f"reports of {users:,} users cannot cost as little as ε = {epsilon:g}")
    return low / 1000.0


class OneShotStudy(Study):
    """Systems on data sets, at several ε; nothing is run twice."""

    prefix = "one-shot-"

    def __init__(
        self,
        settings: OneShotConfig,
        data: Mapping[str, Mapping[str, Any]],
        systems: Sequence[OneShotSystem],
        wanted: Sequence[Mapping[str, Any]],
        cells: Path,
        threads: int,
        report: Report,
        name: str = "one-shot",
    ) -> None:
        super().__init__(cells, threads, report)
        self.name = name
        self.config, self.data, self.systems, self.wanted = settings, data, tuple(systems), wanted
        self._datasets: dict[str, Dataset] = {}
        check_sources(settings.sources, data)

    @classmethod
    def read(
        cls, name: str, quick: bool, cells: Path, threads: int, report: Report, device: str = "cpu"
    ) -> Self:
        table = installed(name, quick)
        settings = config.build(OneShotConfig, table.get("study", {}), "study")
        systems = [OneShotSystem.of(each, number) for number, each in enumerate(table["systems"])]
        return cls(
            settings, table["data"], systems, table.get("wanted", ()), cells, threads, report, name
        )

    def describe(self) -> str:
        changed = [system.label for system in self.systems if system.pays in ("times", "reports")]
        alike = f" ({', '.join(changed)}: what one user has)" if changed else ""
        return (
            "full ranking over all items that a user has not, P@10, mean of "
            f"{count_of(self.config.seeds)}; δ = 10⁻⁶, neighbours: one user added or left "
            f"out{alike}; settings were not chosen on the test part, but for the limits of "
            "checked sums"
        )

    def describe_data(self) -> str:
        return "; ".join(self.config.sources)

    # --- cells ------------------------------------------------------------------------------------

    def experiment(self, source: str, seed: int, sections: Mapping[str, Any]) -> Experiment:
        parts = {name: value for name, value in sections.items() if name != "baseline"}
        table = {"name": "one-shot", "seed": seed, "data": self.data[source], **parts}
        return Experiment.from_table(table)

    def cell(self, source: str, seed: int, sections: Mapping[str, Any]) -> Arrays:
        """Each user's figure, and what she permitted."""
        experiment = self.experiment(source, seed, sections)
        if source not in self._datasets:
            self._datasets[source] = experiment.dataset()
        dataset = self._datasets[source]
        key = [VERSION, source, dataset.fingerprint(), self.data[source], seed, sections]
        return self.kept(key, ["values"], lambda: self._train(experiment, dataset, sections))

    def _train(
        self, experiment: Experiment, dataset: Dataset, sections: Mapping[str, Any]
    ) -> Arrays:
        if "baseline" in sections:
            prepared = experiment.prepared(dataset)
            baseline = named(sections["baseline"], BASELINES, "", "baseline")
            train, test = prepared.split.train, prepared.split.test
            rng = experiment.streams().child("baseline", baseline.name)
            protocol = experiment.evaluation.protocol(prepared.split, experiment.seed)
            scorer = baseline_at_home(experiment, dataset, train, baseline.fit(train, rng))
            found = evaluate(scorer, train, test, protocol, threads=self.threads)
            return {"values": found.per_user(METRIC), "users": found.users}
        outcome = run_experiment(experiment, threads=self.threads)
        found = outcome.evaluations[outcome.system]
        chosen = outcome.consent.epsilon[found.users]
        return {"values": found.per_user(METRIC), "users": found.users, "epsilon": chosen}

    def figures(self, source: str, system: OneShotSystem, epsilon: float | None) -> Floats:
        """The mean over users, of each seed."""
        sections = system.sections_at(source, epsilon)
        seeds = self.config.seeds[: system.seeds or None]
        means = [float(self.cell(source, seed, sections)["values"].mean()) for seed in seeds]
        return np.array(means)

    def table(self, source: str) -> list[Row]:
        """A row for each system and ε."""
        asked = [
            (system, epsilon)
            for system in self.systems
            if source in (system.sources or self.config.sources)
            for epsilon in (self.config.epsilons if system.line else (None,))
        ]
        rows: list[Row] = []
        for number, (system, epsilon) in enumerate(asked):
            self.report(f"{source}: {system.label}", number, len(asked))
            found = self.figures(source, system, epsilon)
            rows.append(
                {
                    "data": source, "system": system.label, "epsilon": epsilon,
                    METRIC: float(found.mean()), "half": interval(found), "seeds": len(found),
                }
            )  # fmt: skip
        self.report(source, len(asked), len(asked))
        return rows

    def groups(self) -> list[Row]:
        """By each user's own ε: everybody together, and those alone who accept most."""
        source, mix = self.config.mixed, self.config.mix
        if not source:
            return []
        most = max(epsilon for _, epsilon in mix)
        everyone = [{"weight": weight, "epsilon": epsilon} for weight, epsilon in mix]
        alone = [
            one if one["epsilon"] == most else {**one, "takes_part": False} for one in everyone
        ]
        rows: list[Row] = []
        for system in self.systems:
            if not system.line or "baseline" in system.sections:
                continue
            for who, chosen in (("everybody", everyone), ("the loudest alone", alone)):
                sections = system.sections_at(source, most) | {"consent": {"mix": chosen}}
                cells = [self.cell(source, seed, sections) for seed in self.config.seeds]
                row: Row = {
                    "system": system.label,
                    "who": who,
                    METRIC: float(np.mean([c["values"].mean() for c in cells])),
                }
                for _, epsilon in mix:
                    row[f"ε = {epsilon:g}"] = float(
                        np.mean([_of_group(cell, epsilon) for cell in cells])
                    )
                rows.append(row)
        return rows


def _of_group(cell: Arrays, epsilon: float) -> float:
    """The mean over those who have this ε of their own."""
    return float(cell["values"][cell["epsilon"] == np.float32(epsilon)].mean())


def _claims(study: OneShotStudy, rows: Sequence[Row]) -> list[Claim]:
    """What the file wants of systems, held against what they came to."""
    found = []
    for wanted in study.wanted:
        source, system, epsilon = wanted["data"], wanted["system"], wanted.get("epsilon")
        mine = [
            row
            for row in rows
            if (row["data"], row["system"], row["epsilon"]) == (source, system, epsilon)
        ]
        if not mine:
            continue
        value, half = mine[0][METRIC], mine[0]["half"]
        at = "" if epsilon is None else f" at ε = {epsilon:g}"
        shown_half = "" if half is None else f" ± {half:.4f}"
        if "least" in wanted:
            text = f"{source}: {system}{at} reaches {wanted['least']:g}"
            found.append(
                claim(text, (value >= wanted["least"], f"{METRIC} {value:.4f}{shown_half}"))
            )
        else:
            other = wanted["not_below"]
            others = [r for r in rows if (r["data"], r["system"]) == (source, other)]
            base = next((r for r in others if r["epsilon"] == epsilon), others[0])
            spare = float(wanted.get("spare", 0.02)) * base[METRIC]
            text = f"{source}: {system}{at} is not below {other}, up to noise"
            good = value >= base[METRIC] - spare
            found.append(claim(text, (good, f"{value:.4f}{shown_half} against {base[METRIC]:.4f}")))
    return found


def _draw(study: OneShotStudy, source: str, rows: Sequence[Row], path: Path) -> FigureBlock:
    curves: dict[str, tuple[list[float], list[float]]] = {}
    levels: dict[str, float] = {}
    for row in rows:
        if row["epsilon"] is None:
            levels[row["system"]] = row[METRIC]
        else:
            xs, ys = curves.setdefault(row["system"], ([], []))
            xs.append(float(np.log2(row["epsilon"])))
            ys.append(row[METRIC])
    title = f"{source}: accuracy against ε"
    with plots.drawing(path, title, (7.2, 5.2)) as (figure, axes):
        for number, (name, (x, y)) in enumerate(curves.items()):
            pen = number % len(plots.PALETTE)
            axes.plot(
                x, y, color=plots.PALETTE[pen], linewidth=1.6, marker=plots.MARKERS[pen],
                markersize=5, label=name,
            )  # fmt: skip
        ticks = sorted({x for xs, _ in curves.values() for x in xs})
        left, right = ticks[0] - 0.2, ticks[-1]
        axes.set(xlabel="ε of each user (δ = 10⁻⁶)", ylabel=METRIC, xlim=(left, right + 2.4))
        for level in levels.values():
            axes.plot(
                [left, right], [level] * 2, color=plots.SOFT, linestyle=(0, (5, 2)), linewidth=0.9
            )
        lowest, highest = axes.get_ylim()
        places = plots.spread(list(levels.values()), 0.035 * (highest - lowest))
        for (name, level), place in zip(levels.items(), places, strict=True):
            axes.plot([right, right + 0.12], [level, place], color=plots.SOFT, linewidth=0.9)
            axes.text(right + 0.16, place, name, fontsize=9, va="center", color=plots.SOFT)
        axes.set_xticks(ticks, [f"{2.0**tick:g}" for tick in ticks])
        columns = plots.legend_columns(list(curves), 7.2)
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    words = f"{METRIC} against ε on {source}; level lines have no ε"
    return FigureBlock(plots.figure_files(path).svg, words, f"{words}.")


def one_shot(study: OneShotStudy, out: Path) -> dict[str, Any]:
    """The table and plot of every data set, and the one by each user's own ε."""
    columns = [
        Column("system"),
        Column("epsilon", "ε", "g"),
        Column(METRIC, METRIC, ".4f", "max"),
        Column("half", "± (95 %)", ".4f"),
        Column("seeds", format=","),
    ]
    figures = out / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    tables: list[Table] = []
    pictures: list[FigureBlock] = []
    every: list[Row] = []
    for source in study.config.sources:
        rows = study.table(source)
        every += rows
        title = f"gram beside everything else: {source}"
        tables.append(shown(title, columns, rows, study.describe()))
        pictures.append(_draw(study, source, rows, figures / source))
    groups = study.groups()
    if groups:
        mix = [f"ε = {epsilon:g}" for _, epsilon in study.config.mix]
        columns = [
            Column("system"), Column("who", "who takes part"), Column(METRIC, METRIC, ".4f"),
            *(Column(one, one, ".4f") for one in mix),
        ]  # fmt: skip
        title = f"{METRIC} by each user's own ε: {study.config.mixed}"
        tables.append(shown(title, columns, groups))
    claims = [*_claims(study, every), *_mixed_claims(study, groups)]
    return study.result(study.name, out, tables, claims, pictures, rows=every, groups=groups)


def _mixed_claims(study: OneShotStudy, groups: Sequence[Row]) -> list[Claim]:
    """That whispering users help: more than if the loudest were alone."""
    found = []
    for system in dict.fromkeys(row["system"] for row in groups):
        all_, alone = (row[METRIC] for row in groups if row["system"] == system)
        text = f"{study.config.mixed}: {system} is better with those who whisper than without them"
        found.append(claim(text, (all_ > alone, f"{METRIC} {all_:.4f} against {alone:.4f}")))
    return found


STUDY = OneShotStudy
VIEWS = {"one-shot": one_shot, "one-shot-rivals": one_shot}
