"""Finished runs side by side: their results, what left devices or reached owners, one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sottovoce.baselines import BASELINES
from sottovoce.evaluation import plots
from sottovoce.evaluation.metrics import bias_disparity
from sottovoce.evaluation.protocol import Evaluation, evaluate
from sottovoce.evaluation.report import Block, FigureBlock, Section, TextBlock, write_report
from sottovoce.evaluation.significance import compare
from sottovoce.evaluation.tables import Cell, Column, Table
from sottovoce.runs.costs import honest_notes
from sottovoce.runs.folder import new_figures
from sottovoce.runs.read import FinishedRun, item_categories
from sottovoce.runs.side_by_side import compared
from sottovoce.runs.tables import MARKS, Row, metric_columns, name_of, shown_metrics


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Runs side by side: the tables, what must be said about them, and where the report lies."""

    tables: tuple[Table, ...]
    warnings: tuple[str, ...]
    rows: tuple[Mapping[str, object], ...]
    report: Path


def compare_runs(
    paths: Sequence[Path], out: Path, *, threads: int = 1, write: bool = True
) -> RunComparison:
    """Results and what left, a row per run, and the baselines of the first run with each data set
    and protocol. Figures under different protocols or data are marked as not comparable."""
    runs = {_label(path, paths): FinishedRun.open(path) for path in paths}
    evaluations = {
        label: evaluate(
            run.scorer(),
            run.split.train,
            run.split.test,
            run.experiment.evaluation.protocol(run.split, run.experiment.seed),
            threads=threads,
        )
        for label, run in runs.items()
    }
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
    tables = [_world_table(labels, runs, evaluations) for labels in worlds.values()]
    tables.append(_ledger_table(runs))
    rows = [
        {
            "run": label,
            "folder": str(run.folder.path),
            "system": run.experiment.system,
            "data": run.dataset.name,
            "protocol": evaluations[label].describe(),
            "results": evaluations[label].summary(),
            "ledger": run.folder.manifest()["ledger"],
        }
        for label, run in runs.items()
    ]
    report = out / "report.html"
    if write:
        _write(report, warnings, worlds, tables, runs, evaluations)
    return RunComparison(tuple(tables), tuple(warnings), tuple(rows), report)


def _write(
    report: Path,
    warnings: Sequence[str],
    worlds: Mapping[str, Sequence[str]],
    tables: Sequence[Table],
    runs: Mapping[str, FinishedRun],
    evaluations: Mapping[str, Evaluation],
) -> None:
    with new_figures(report.parent / "figures") as folder:
        table, drawn = compared(runs, evaluations, worlds, report.parent)
        sections = [
            *([Section("Take care", [TextBlock("\n\n".join(warnings))])] if warnings else []),
            Section("All runs", [table]),
            *([Section("What quality costs", drawn)] if drawn else []),
            *[
                Section(
                    table.title if len(worlds) == 1 else f"{table.title}, {' and '.join(labels)}",
                    [table, *_figures(folder, number, labels, runs, evaluations)],
                )
                for number, (table, labels) in enumerate(
                    zip(tables, worlds.values(), strict=False), 1
                )
            ],
            Section(tables[-1].title, [tables[-1]]),
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
    metric = next(iter(evaluations[labels[0]].summary()))
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
        blocks.append(FigureBlock(figure.png, words, f"{words}."))
    names: tuple[str, ...] = ()
    bias = {}
    for label in labels:
        lists, run = evaluations[label].lists, runs[label]
        names, member = item_categories(run.dataset, run.split)
        if names and lists is not None:
            bias[label] = bias_disparity(lists, run.split.train, member).disparity
    if bias:
        figure = plots.bias_bars(folder / f"bias-{number}", names, bias)
        words = "Bias disparity per category, a bar per run"
        blocks.append(FigureBlock(figure.png, words, f"{words}; 0 is as in the training data."))
    return blocks


def _label(path: Path, paths: Sequence[Path]) -> str:
    name = path.resolve().name
    alike = [p for p in paths if p.resolve().name == name]
    return name if len(alike) == 1 else str(path)


def _world_table(
    labels: Sequence[str],
    runs: Mapping[str, FinishedRun],
    evaluations: Mapping[str, Evaluation],
) -> Table:
    first = runs[labels[0]]
    mine = {label: evaluations[label] for label in labels}
    summaries = {label: e.summary() for label, e in mine.items()}
    keys = shown_metrics(summaries.values())
    marks: dict[tuple[str, str], str] = {}
    if len(labels) > 1:
        for metric in (k for k in keys if k in mine[labels[0]].values):
            for found in compare(mine, metric, labels[0]):
                if found.significant():
                    marks[found.system, metric] = MARKS[0]
    rows: list[Row] = [
        {"run": name_of(label), "system": "baseline", **{k: summary.get(k) for k in keys}}
        for label, summary in sorted(
            first.folder.manifest()["results"].items(), key=lambda entry: _place(entry[0])
        )
        if label != first.experiment.system
    ]
    rows += [
        {
            "run": label,
            "system": runs[label].experiment.system,
            **{k: Cell(summary.get(k), marks.get((label, k), "")) for k in keys},
        }
        for label, summary in summaries.items()
    ]
    columns = metric_columns("run", keys)
    columns.insert(1, Column("system"))
    note = f"{MARKS[0]} differs from {labels[0]} (paired t-test over users, Holm, p < 0.05)."
    return Table(
        f"Results on {first.dataset.name}",
        columns,
        rows,
        mine[labels[0]].describe(),
        [note] if len(labels) > 1 else [],
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
                "reports": left.get("reports", 0),
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
