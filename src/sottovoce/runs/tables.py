"""The tables of a run: results, what people chose, how each choice is served, what left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from sottovoce.baselines import BASELINES
from sottovoce.evaluation.metrics import METRICS
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.evaluation.significance import Comparison, compare_all, spreads
from sottovoce.evaluation.tables import Cell, Column, Table, Value
from sottovoce.privacy.accountant import rounded_up
from sottovoce.runs.read import FinishedRun, LedgerLine, Recommendation, Sums, choice_groups
from sottovoce.runs.standing import near_popularity
from sottovoce.runs.train import DeviceOutcome, RunOutcome, SiloOutcome

Row = Mapping[str, Value | Cell]

REFERENCES = ("top-pop", "bpr-mf")
MARKS = "†‡"
TEST = "paired t-test over users, Holm over the table, p < 0.05"
SEEDS = (
    "± is half of a 95 % interval over seeds; tests take users' differences seed by seed and "
    "average them over seeds."
)


def name_of(system: str) -> str:
    """A system as readers know it."""
    baseline = BASELINES.get(system)
    return system if baseline is None else baseline.title or system


POINTS = "Score: 100 is the first place, 0 the average of all items that she does not have."
DRAWS_PER_ITEM = 20
"""Draws of an item in a round with which no row of a sum is one device's, or hardly ever one of two
(`attacks/suite/a01_lone_rows.py`)."""


def readable_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def hints(outcome: RunOutcome) -> list[str]:
    """What a reader of the results should be told: that a system which learns ends near
    popularity, and what to try; that a setting of the file changes nothing; that the catalogue is
    cut; that a sum hides less than it seems to."""
    found = near_popularity(outcome)
    asked = outcome.experiment.table.get("algorithm", {})
    idle = outcome.experiment.algorithm.idle()
    found += [
        f"algorithm.{name} changes nothing: {why}" for name, why in idle.items() if name in asked
    ]
    if isinstance(outcome, SiloOutcome):
        return found + _silo_hints(outcome)
    if outcome.cut is not None:
        own = outcome.evaluations[outcome.system]
        found.append(outcome.cut.words(outcome.system, own.summary()))
    return found + _sum_hints(outcome)


def _sum_hints(outcome: RunOutcome) -> list[str]:
    """Where so few devices draw an item in a round that its row of the sum may be one device's."""
    if not isinstance(outcome, DeviceOutcome):
        return []
    link, plan = outcome.experiment.link, outcome.federation.schedule
    n_items = outcome.split.train.n_items
    if link is None or link.summing is None or link.noise or not plan.triples:
        return []
    algorithm = outcome.federation.server.algorithm.config
    each = plan.cohort_size * algorithm.draws_each(plan) / n_items
    if each >= DRAWS_PER_ITEM:
        return []
    enough = -(-DRAWS_PER_ITEM * n_items // plan.cohort_size)
    return [
        f"an item is drawn {each:.2g} times in a round, so that rows of the sum that are one "
        f"device's can be read by everybody; set algorithm.triples to {enough:,} or more (with "
        "fewer rounds, and without algorithm.draws_by), or link.clip and link.noise; see "
        "`sottovoce attack`"
    ]


def _silo_hints(outcome: SiloOutcome) -> list[str]:
    """Who is left out of a federation of data owners, and why."""
    facts, found = outcome.facts, []
    if facts.without_blocks:
        found.append(
            f"{facts.without_blocks:,} of {facts.members:,} users who take part have no block of "
            "negatives and the positives behind them at any owner; nothing is learnt from them, "
            "and their vectors are as they were drawn"
        )
    if facts.empty_owners:
        listed = ", ".join(facts.empty_owners)
        found.append(f"there is no training item for {listed}, so there is no such data owner")
    return found


def own_metric(evaluation: Evaluation) -> str:
    """The one that stands for the others: the first that was asked for, else precision, or the hit
    ratio where lists are sampled."""
    asked = (f"{key}@{evaluation.protocol.k}" for key in evaluation.protocol.metrics)
    told = (key for key in asked if evaluation.told_per_user(key))
    return next(told, next(iter(evaluation.values)))


def summary_table(
    results: Mapping[str, Mapping[str, float]],
    title: str,
    protocol: str,
    notes: Sequence[str] = (),
    asked: Sequence[str] = (),
) -> Table:
    """Every system by its figures alone, where nobody has all users' values to compare."""
    keys = shown_metrics(results.values(), asked)
    rows: list[Row] = [
        {"system": name_of(label), **{k: Cell(summary.get(k), "") for k in keys}}
        for label, summary in results.items()
    ]
    said = [f"{note}." for note in notes]
    return Table(title, metric_columns("system", keys), rows, protocol, said)


def results_table(
    evaluations: Mapping[str, Evaluation],
    title: str,
    notes: Sequence[str] = (),
) -> Table:
    """Every system; a mark where it differs from Top-Pop or BPR-MF by more than chance."""
    keys = keys_shown(evaluations.values())
    present = [label for label in REFERENCES if label in evaluations and len(evaluations) > 1]
    marks = marks_of(compare_all(evaluations, keys, present), present)
    rows: list[Row] = [
        {"system": name_of(label), **figures(label, evaluation, keys, marks)}
        for label, evaluation in evaluations.items()
    ]
    differs = [f"{m} from {name_of(r)}" for m, r in zip(MARKS, present, strict=False)]
    legend = [f"Differs {', '.join(differs)} ({TEST})."] * bool(differs)
    protocol = next(iter(evaluations.values())).describe()
    said = [*legend, *over_seeds_note(evaluations.values()), *[f"{note}." for note in notes]]
    return Table(title, metric_columns("system", keys), rows, protocol, said)


def keys_shown(evaluations: Iterable[Evaluation]) -> list[str]:
    """`shown_metrics` of evaluations under one protocol."""
    every = list(evaluations)
    return shown_metrics((one.summary() for one in every), every[0].protocol.metrics)


def marks_of(
    comparisons: Iterable[Comparison], references: Sequence[str]
) -> dict[tuple[str, str], str]:
    """By system and metric: a mark for each reference from which it differs."""
    marks: dict[tuple[str, str], str] = {}
    for one in comparisons:
        if one.significant():
            place = (one.system, one.metric)
            marks[place] = marks.get(place, "") + MARKS[references.index(one.reference)]
    return marks


def figures(
    label: str,
    evaluation: Evaluation,
    keys: Sequence[str],
    marks: Mapping[tuple[str, str], str],
) -> dict[str, Cell]:
    """The cells of a system, with intervals over seeds where there are several."""
    if evaluation.seeds:
        found = spreads(evaluation)
        return {k: Cell(found[k].mean, marks.get((label, k), ""), found[k].half) for k in keys}
    summary = evaluation.summary()
    return {k: Cell(summary.get(k), marks.get((label, k), "")) for k in keys}


def over_seeds_note(evaluations: Iterable[Evaluation]) -> list[str]:
    """What a table with several seeds must say."""
    return [SEEDS] if any(one.seeds for one in evaluations) else []


def seeds_table(
    evaluations: Mapping[str, Evaluation], keys: Sequence[str], first: str = "system"
) -> Table:
    """Of systems with several seeds: each seed's figures, their mean and standard deviation, and
    the mean's 95 % interval."""
    rows: list[Row] = []
    for label, evaluation in evaluations.items():
        if not evaluation.seeds:
            continue
        name, found = name_of(label), spreads(evaluation)
        summaries = {str(seed): one.summary() for seed, one in evaluation.seeds.items()}
        ends = {
            "mean": {k: found[k].mean for k in keys},
            "sd": {k: found[k].sd for k in keys},
            "95 % from": {k: found[k].mean - found[k].half for k in keys},
            "95 % to": {k: found[k].mean + found[k].half for k in keys},
        }
        rows += [
            {first: name, "seed": seed, **{k: summary.get(k) for k in keys}}
            for seed, summary in (*summaries.items(), *ends.items())
        ]
    columns = [replace(column, best=None) for column in metric_columns(first, keys)]
    columns.insert(1, Column("seed"))
    return Table("By seed", columns, rows, notes=["sd and interval: over seeds (Student)."])


def shown_metrics(summaries: Iterable[Mapping[str, float]], asked: Sequence[str] = ()) -> list[str]:
    """The metrics of a results table, in order: those that every summary has, of those that were
    asked for or of the usual ones."""
    tables = list(summaries)
    if asked:
        return [
            key
            for name in asked
            for key in (tables[0] if tables else {})
            if key.startswith(f"{name}@") and all(key in table for table in tables)
        ]
    whole = any(key.startswith("P@") for table in tables for key in table)
    wanted = [
        m for m in METRICS.values() if m.shown == "always" or (m.shown == "sampled" and not whole)
    ]
    return [
        key
        for metric in wanted
        for key in (tables[0] if tables else {})
        if key.startswith(f"{metric.key()}@") and all(key in table for table in tables)
    ]


def metric_columns(first: str, keys: Sequence[str]) -> list[Column]:
    known = {metric.key(): metric for metric in METRICS.values()}
    columns = [Column(first, first)]
    for key in keys:
        name, at, k = key.rpartition("@")
        metric = known[name]
        columns.append(Column(key, f"{metric.heading or name}{at}{k}", metric.format, metric.best))
    return columns


def recommendations_table(lists: Mapping[str, Sequence[Recommendation]]) -> Table:
    """Lists of one person or several; categories and titles only where there are some."""
    every = [(user, one) for user, found in lists.items() for one in found]
    shown = {
        "user": len(lists) > 1,
        "#": True,
        "item": True,
        "title": any(one.title != one.item for _, one in every),
        "category": any(one.categories for _, one in every),
        "score": True,
    }
    rows: list[Row] = [
        {
            "user": user,
            "#": one.rank,
            "item": one.item,
            "title": one.title,
            "category": ", ".join(one.categories),
            "score": one.points,
        }
        for user, one in every
    ]
    columns = [Column(key, format=".0f" if key == "score" else "") for key, on in shown.items()
               if on]  # fmt: skip
    rows = [{column.key: row[column.key] for column in columns} for row in rows]
    whom = next(iter(lists), "")
    to = f"{len(lists):,} users" if len(lists) > 1 else whom or "a person who was not in training"
    return Table(f"Recommended to {to}", columns, rows, notes=[POINTS])


def consent_table(run: FinishedRun) -> Table:
    """Who made which choice."""
    groups = choice_groups(run.experiment.consent.choices, run.consent)
    rows: list[Row] = [
        {
            "choice": run.describe_choice(choice),
            "users": int(mask.sum()),
            "share": float(mask.mean()),
        }
        for choice, mask in groups
    ]
    columns = [Column("choice"), Column("users", format=","), Column("share", format=".0%")]
    return Table("Users by choice", columns, rows)


def service_table(run: FinishedRun, evaluation: Evaluation) -> Table:
    """How well the system serves those who made each choice."""
    metric = own_metric(evaluation)
    values = evaluation.per_user(metric)
    rows: list[Row] = []
    for choice, mask in choice_groups(run.experiment.consent.choices, run.consent):
        mine = values[mask[evaluation.users]]
        rows.append(
            {
                "choice": run.describe_choice(choice),
                "users": len(mine),
                metric: float(mine.mean()) if len(mine) else math.nan,
                "±": half_width(mine),
            }
        )
    columns = [
        Column("choice"),
        Column("users", format=","),
        Column(metric, format=".4f"),
        Column("±", "± (95 %)", ".4f"),
    ]
    note = "Choices are drawn at random in simulation: groups differ by what they permit alone."
    return Table("Accuracy by consent choice", columns, rows, evaluation.describe(), [note])


def sent_table(run: FinishedRun, sums: Sums) -> Table:
    """What left, by consent choice."""
    rows: list[Row] = []
    for choice, mask in choice_groups(run.experiment.consent.choices, run.consent):
        devices, total = int(mask.sum()), sums.total(mask)
        rows.append(
            {
                "choice": run.describe_choice(choice),
                "devices": devices,
                "releases": total.releases,
                "positive": total.positive_rows,
                "negative": total.negative_rows,
                "reports": total.reports,
                "epsilon": rounded_up(total.epsilon / devices),
                "each": total.bytes / devices / 1000,
            }
        )
    columns = [
        Column("choice"),
        Column("devices", format=","),
        Column("releases", format=","),
        *_kinds(rows, "positive", "negative", "ε per device"),
        Column("each", "kB per device", ",.1f"),
    ]
    note = "A device that does not take part sends nothing; the ledger has no row of it."
    return Table("Sent, by consent choice", columns, _only(rows, columns), notes=[note])


def _kinds(
    rows: Sequence[Row], positive: str, negative: str, cost: str, what: str = "rows"
) -> list[Column]:
    """Columns for what left: item rows (or `what`), randomised reports with their cost, or both."""
    reports = any(row["reports"] for row in rows)
    columns = []
    if not reports or any(row[positive] or row[negative] for row in rows):
        columns = [
            Column(positive, f"positive {what}", ","),
            Column(negative, f"negative {what}", ","),
        ]
    if reports:
        columns += [Column("reports", format=","), Column("epsilon", cost, ",.10g")]
    return columns


def _only(rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    """The rows with what these columns show."""
    keys = [column.key for column in columns]
    return [{key: row[key] for key in keys} for row in rows]


def ledger_table(
    lines: Sequence[LedgerLine],
    grouping: str,
    most: int | None = None,
    *,
    what: Literal["rows", "interactions"] = "rows",
) -> Table:
    """Ledger sums, a row each, with the columns that say something; or, with `most`, the first so
    many. `ledger_csv` has all columns. `what` left: rows of devices, or users' interactions."""
    shown = lines if most is None else lines[:most]
    rows = _ledger_rows(shown, grouping)
    columns = [
        Column(grouping),
        Column("devices", "devices" if what == "rows" else "users", ","),
        *([Column("releases", format=",")] if what == "rows" else []),
        *_kinds(rows, "positive_rows", "negative_rows", "ε of each", what),
        Column("bytes", format=","),
    ]
    left = len(lines) - len(shown)
    notes = [f"{left:,} more lines; --csv and --json have them all."] if left else []
    if any(row["reports"] for row in rows):
        notes.insert(0, "ε of each: what the reports cost one device, in plain sum and on average.")
    each: list[Row] = [{**row, "epsilon": _mean_cost(row)} for row in rows]
    return Table(f"What left, by {grouping}", columns, _only(each, columns), notes=notes)


def ledger_csv(lines: Sequence[LedgerLine], grouping: str) -> str:
    """Every line and every column of it; ε is summed over a line's devices."""
    names = ("releases", "positive_rows", "negative_rows", "bytes", "reports", "epsilon")
    columns = [Column(grouping), Column("devices"), *map(Column, names)]
    return Table("", columns, _ledger_rows(lines, grouping)).to_csv()


def _ledger_rows(lines: Sequence[LedgerLine], grouping: str) -> list[dict[str, Value | Cell]]:
    return [
        {
            grouping: line.label,
            "devices": line.devices,
            "releases": line.totals.releases,
            "positive_rows": line.totals.positive_rows,
            "negative_rows": line.totals.negative_rows,
            "bytes": line.totals.bytes,
            "reports": line.totals.reports,
            "epsilon": line.totals.epsilon,
        }
        for line in lines
    ]


def _mean_cost(row: Row) -> float:
    cost, devices = row["epsilon"], row["devices"]
    number = isinstance(cost, float) and isinstance(devices, int) and devices > 0
    return rounded_up(cost / devices) if number else 0.0  # type: ignore[operator]


def half_width(values: NDArray[np.float64]) -> float:
    """Of the 95 % interval of their mean."""
    n = len(values)
    if n < 2:
        return math.nan
    return float(stdtrit(n - 1, 0.975) * values.std(ddof=1) / np.sqrt(n))
