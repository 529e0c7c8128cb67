"""Finished runs side by side: their results, what left devices or reached owners, one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from sottovoce.baselines import BASELINES, Baseline
from sottovoce.core.recommender import Scorer
from sottovoce.engines.observers import Report
from sottovoce.errors import said_of
from sottovoce.evaluation import plots
from sottovoce.evaluation.metrics import bias_disparity
from sottovoce.evaluation.protocol import Evaluation, evaluate
from sottovoce.evaluation.report import Block, FigureBlock, Section, TextBlock, write_report
from sottovoce.evaluation.significance import Comparison, compare_all, over_seeds, spread_content
from sottovoce.evaluation.tables import Cell, Column, Table, Value
from sottovoce.runs.costs import honest_notes
from sottovoce.runs.folder import new_figures
from sottovoce.runs.read import FinishedRun, item_categories
from sottovoce.runs.seeds import parts_of
from sottovoce.runs.side_by_side import compared
from sottovoce.runs.tables import (
    MARKS,
    TEST,
    Row,
    figures,
    keys_shown,
    marks_of,
    metric_columns,
    name_of,
    over_seeds_note,
    own_metric,
    seeds_table,
)
from sottovoce.runs.topology import fitted

BySeed = Mapping[int, Evaluation]
Known = Mapping[Path, Mapping[str, Evaluation]]
"""By folder of a run (of one seed), by system: what was evaluated already."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Runs side by side: the tables, what must be said about them, and where the report lies."""

    tables: tuple[Table, ...]
    warnings: tuple[str, ...]
    rows: tuple[Mapping[str, object], ...]
    baselines: tuple[Mapping[str, object], ...]
    significance: tuple[Mapping[str, object], ...]
    report: Path


@dataclass(frozen=True, slots=True, repr=False)
class World:
    """Runs on the same data under the same protocol, and the baselines of all of them."""

    labels: tuple[str, ...]
    runs: Mapping[str, BySeed]
    baselines: Mapping[str, BySeed]

    def evaluations(self) -> dict[str, Evaluation]:
        """Of runs."""
        return {label: over_seeds(found) for label, found in self.runs.items()}

    def references(self) -> dict[str, Evaluation]:
        """Of baselines, in their usual order."""
        return {label: over_seeds(self.baselines[label]) for label in self._in_order()}

    def _in_order(self) -> list[str]:
        return sorted(self.baselines, key=_place)

    def tested(self) -> dict[str, Evaluation]:
        """Baselines and runs as tests take them: of the seeds that all have, so that users are
        paired seed by seed, or of all seeds where there are no such ones."""
        every = {**{label: self.baselines[label] for label in self._in_order()}, **self.runs}
        common = set.intersection(*(set(found) for found in every.values()))
        return {
            label: over_seeds({s: one for s, one in found.items() if s in common} or found)
            for label, found in every.items()
        }

    def comparisons(self) -> list[Comparison]:
        """Everything against the first run, corrected for all of it together."""
        every = self.tested()
        return compare_all(every, keys_shown(every.values()), [self.labels[0]])


def compare_runs(
    paths: Sequence[Path],
    out: Path,
    *,
    threads: int = 1,
    write: bool = True,
    known: Known | None = None,
    report: Report | None = None,
) -> RunComparison:
    """Results and what left, a row per run, and their baselines, which are fitted again where they
    are not `known`. Figures under different protocols or data are marked as not comparable. A run
    with several seeds has their mean."""
    tell = report or (lambda what, done, total: None)
    parts = {
        _label(path, paths): {seed: FinishedRun.open(part) for seed, part in parts_of(path).items()}
        for path in paths
    }
    runs = {label: next(iter(found.values())) for label, found in parts.items()}
    by_seed = {
        label: {seed: _judged(run, threads, known or {}) for seed, run in found.items()}
        for label, found in parts.items()
    }
    evaluations = {label: over_seeds(found) for label, found in by_seed.items()}
    worlds: dict[str, list[str]] = {}
    for label, run in runs.items():
        manifest = run.folder.manifest()
        data = run.experiment.data
        world = f"{manifest['data']['name']} ({data.split}, {data.part}); {manifest['protocol']}"
        key = f"{manifest['data']['fingerprint']} {data.split} {data.part} {world}"
        worlds.setdefault(key, []).append(label)
    warnings = []
    if len(worlds) > 1:
        groups = "; ".join(" and ".join(labels) for labels in worlds.values())
        warnings.append(
            f"these runs differ in data or protocol, so their figures do not compare: {groups}"
        )
    every = {
        key: World(
            tuple(labels),
            {label: by_seed[label] for label in labels},
            _baselines({label: parts[label] for label in labels}, threads, known or {}, tell),
        )
        for key, labels in worlds.items()
    }
    tests = {key: world.comparisons() for key, world in every.items()}
    shown = {key: _world_tables(world, runs, tests[key]) for key, world in every.items()}
    left = _ledger_table(runs)
    if any(found.seeds for found in evaluations.values()):
        first = "Of a run with several seeds: what left in the first of them."
        left = replace(left, notes=[*left.notes, first])
    tables = [*(table for found in shown.values() for table in found), left]
    rows = [
        {
            "run": label,
            "folder": str(run.folder.path),
            "system": run.experiment.system,
            "data": run.dataset.name,
            "protocol": evaluations[label].describe(),
            "results": evaluations[label].summary(),
            **_seeds_content(evaluations[label]),
            "ledger": run.folder.manifest()["ledger"],
        }
        for label, run in runs.items()
    ]
    references = [
        {
            "baseline": label,
            "beside": world.labels[0],
            "results": evaluation.summary(),
            **_seeds_content(evaluation),
        }
        for world in every.values()
        for label, evaluation in world.references().items()
    ]
    page = out / "report.html"
    if write:
        _write(page, warnings, every, shown, left, runs)
    significance = tuple(_test_content(one) for found in tests.values() for one in found)
    return RunComparison(
        tuple(tables), tuple(warnings), tuple(rows), tuple(references), significance, page
    )


def _judged(run: FinishedRun, threads: int, known: Known) -> Evaluation:
    found = known.get(run.folder.path, {}).get(run.experiment.system)
    return found or _evaluated(run, run.scorer(), threads)


def _evaluated(run: FinishedRun, scorer: Scorer, threads: int) -> Evaluation:
    protocol = run.experiment.evaluation.protocol(run.split, run.experiment.seed)
    return evaluate(scorer, run.split.train, run.split.test, protocol, threads=threads)


def _baselines(
    runs: Mapping[str, Mapping[int, FinishedRun]], threads: int, known: Known, tell: Report
) -> dict[str, BySeed]:
    """Of all runs of a world, each baseline with its settings once. Those that a run of ranks left
    out are left out."""
    wanted: dict[str, tuple[object, Baseline, str, str]] = {}
    for of, parts in runs.items():
        first = next(iter(parts.values()))
        for label, baseline in first.experiment.baselines:
            alike = baseline, first.experiment.home, first.experiment.silo
            if label not in first.folder.manifest()["results"]:
                continue
            if alike not in [one[0] for one in wanted.values()]:
                row = label if label not in {*wanted, *runs} else f"{name_of(label)} of {of}"
                wanted[row] = alike, baseline, label, of
    found: dict[str, BySeed] = {}
    for number, (row, (_, baseline, label, of)) in enumerate(wanted.items()):
        tell("baselines", number, len(wanted))
        found[row] = {
            seed: known.get(run.folder.path, {}).get(label)
            or _evaluated(run, _refitted(run, label, baseline), threads)
            for seed, run in runs[of].items()
        }
    tell("baselines", len(wanted), len(wanted))
    return found


def _refitted(run: FinishedRun, label: str, baseline: Baseline) -> Scorer:
    with said_of(f"the baseline {label}"):
        return cast(Scorer, fitted(run.experiment, run.dataset, run.split.train, label, baseline))


def _seeds_content(evaluation: Evaluation) -> dict[str, object]:
    if not evaluation.seeds:
        return {}
    return {"seeds": list(evaluation.seeds), "spread": spread_content(evaluation)}


def _test_content(one: Comparison) -> dict[str, object]:
    test = one.test
    return {
        **{name: getattr(one, name) for name in ("system", "reference", "metric")},
        **{name: getattr(test, name) for name in ("n", "difference", "low", "high", "p")},
        "p_holm": one.p_holm,
    }


def _write(
    report: Path,
    warnings: Sequence[str],
    worlds: Mapping[str, World],
    shown: Mapping[str, Sequence[Table]],
    left: Table,
    runs: Mapping[str, FinishedRun],
) -> None:
    evaluations = {k: e for world in worlds.values() for k, e in world.evaluations().items()}
    labels = {key: world.labels for key, world in worlds.items()}
    tested = {key: world.tested() for key, world in worlds.items()}
    with new_figures(report.parent / "figures") as folder:
        table, drawn = compared(runs, evaluations, labels, tested, report.parent, folder)
        sections = [
            *([Section("Take care", [TextBlock("\n\n".join(warnings))])] if warnings else []),
            Section("All runs", [table]),
            *([Section("What quality costs", drawn)] if drawn else []),
            *[
                Section(
                    shown[key][0].title
                    if len(worlds) == 1
                    else f"{shown[key][0].title}, {' and '.join(world.labels)}",
                    [
                        *shown[key],
                        *_figures(folder, number, world.labels, runs, evaluations),
                    ],
                )
                for number, (key, world) in enumerate(worlds.items(), 1)
            ],
            Section(left.title, [left]),
            Section(
                "What this does not protect",
                [
                    honest_notes(
                        (
                            run.experiment.release or run.experiment.algorithm
                            for run in runs.values()
                        ),
                        (run.experiment.link for run in runs.values()),
                    )
                ],
            ),
        ]
        write_report(report, "Runs side by side", sections)


def _figures(
    folder: Path,
    number: int,
    labels: Sequence[str],
    runs: Mapping[str, FinishedRun],
    evaluations: Mapping[str, Evaluation],
) -> list[Block]:
    """Learning curves where runs were evaluated on the way, and bias where there are categories."""
    blocks: list[Block] = []
    metric = own_metric(evaluations[labels[0]])
    curves = {}
    for label in labels:
        lines = [line for line in runs[label].folder.metrics() if metric in line]
        per_epoch = runs[label].folder.manifest()["schedule"]["rounds_per_epoch"]
        if len(lines) > 1:
            curves[label] = (
                [line["round"] / per_epoch for line in lines],
                [line[metric] for line in lines],
            )
    if curves:
        figure = plots.learning_curves(folder / f"learning-{number}", curves, metric=metric)
        words = f"{metric} by epoch of {', '.join(curves)}"
        blocks.append(FigureBlock(figure.svg, words, f"{words}."))
    names: tuple[str, ...] = ()
    bias = {}
    for label in labels:
        first = next(iter(evaluations[label].seeds.values()), evaluations[label])
        lists, run = first.lists, runs[label]
        names, member = item_categories(run.dataset, run.split)
        if names and lists is not None:
            bias[label] = bias_disparity(lists, run.split.train, member).disparity
    if bias:
        figure = plots.bias_bars(folder / f"bias-{number}", names, bias)
        words = "Bias disparity per category, a bar per run"
        blocks.append(FigureBlock(figure.svg, words, f"{words}; 0 is as in the training data."))
    return blocks


def _label(path: Path, paths: Sequence[Path]) -> str:
    name = path.resolve().name
    alike = [p for p in paths if p.resolve().name == name]
    return name if len(alike) == 1 else str(path)


def _world_tables(
    world: World, runs: Mapping[str, FinishedRun], tests: Sequence[Comparison]
) -> list[Table]:
    """Results with marks, what tests came to, and every seed where there are several."""
    reference = world.labels[0]
    mine, others = world.evaluations(), world.references()
    keys = keys_shown([*mine.values(), *others.values()])
    marks = marks_of(tests, [reference])
    rows: list[Row] = [
        {"run": name_of(label), "system": "baseline", **figures(label, found, keys, marks)}
        for label, found in others.items()
    ]
    rows += [
        {
            "run": label,
            "system": runs[label].experiment.system,
            **figures(label, found, keys, marks),
        }
        for label, found in mine.items()
    ]
    columns = metric_columns("run", keys)
    columns.insert(1, Column("system"))
    notes = [f"{MARKS[0]} differs from {reference} ({TEST})."] if tests else []
    notes += over_seeds_note(mine.values())
    name = runs[reference].dataset.name
    protocol = mine[reference].describe()
    tables = [Table(f"Results on {name}", columns, rows, protocol, notes)]
    if tests:
        tables.append(_tests_table(reference, tests))
    if any(found.seeds for found in mine.values()):
        tables.append(seeds_table(mine, keys, "run"))
    return tables


def _tests_table(reference: str, tests: Sequence[Comparison]) -> Table:
    """A row for each system, a column for each metric that has values per user."""
    found: dict[str, dict[str, Value | Cell]] = {}
    for one in tests:
        row = found.setdefault(one.system, {"run": name_of(one.system)})
        row[one.metric] = one.p_holm
    keys = list(dict.fromkeys(one.metric for one in tests))
    return Table(
        f"p of the difference from {reference}",
        [Column("run"), *(Column(key, format=".2g") for key in keys)],
        list(found.values()),
        notes=[
            f"Student's paired t-test over users, two-sided; Holm's correction over the "
            f"{len(tests)} tests of this table. --json has differences, intervals and bare p."
        ],
    )


def _place(baseline: str) -> tuple[int, str]:
    """Baselines in their usual order, unknown labels behind them (a manifest is sorted by name)."""
    known = list(BASELINES)
    return (known.index(baseline) if baseline in known else len(known), baseline)


def _ledger_table(runs: Mapping[str, FinishedRun]) -> Table:
    rows: list[Row] = []
    for label, run in runs.items():
        left = run.folder.manifest()["ledger"]
        rows.append(
            {
                "run": label,
                "part": int(run.consent.takes_part.sum()),
                "share": None  # to data owners everything goes
                if run.experiment.silo is not None
                else float(run.consent.share_positives[run.consent.takes_part].mean()),
                "releases": left["releases"],
                "positive": left["positive_rows"],
                "negative": left["negative_rows"],
                "reports": left["reports"],
                "mega": left["bytes"] / 1e6,
            }
        )
    kinds = {run.experiment.silo is not None for run in runs.values()}
    who, what = _or(kinds, "devices", "users"), _or(kinds, "rows", "interactions")
    columns = [
        Column("run"),
        Column("part", f"{who} taking part", ","),
        Column("share", "mean π", ".2f"),
        Column("releases", format=","),
        Column("positive", f"positive {what}", ","),
        Column("negative", f"negative {what}", ","),
        Column("reports", format=","),
        Column("mega", "MB", ",.1f"),
    ]
    said = {key: any(row[key] for row in rows) for key in ("share", "positive", "reports")}
    if said["reports"]:
        rowless = () if said["positive"] else ("positive", "negative")
        hidden = {*rowless, *(() if said["share"] else ("share",))}
    else:
        hidden = {"reports"}
    if kinds == {True}:
        hidden |= {"share", "releases"}
    columns = [column for column in columns if column.key not in hidden]
    rows = [{column.key: row[column.key] for column in columns} for row in rows]
    title = _or(kinds, "What left the devices", "What data owners have read")
    notes = ["Of every epoch; an interaction counts once for each owner that read it."]
    return Table(title, columns, rows, notes=notes if True in kinds else [])


def _or(silos: set[bool], devices: str, owners: str) -> str:
    """The word of systems with devices, of those with data owners, or both where there are both."""
    words = [word for silo, word in ((False, devices), (True, owners)) if silo in silos]
    return ", or ".join(words) if words[-1].startswith("What") else " or ".join(words)
