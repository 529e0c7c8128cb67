"""What comes of a fitted system: recommendations, scores and comparisons, each shown as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.errors import UsageError
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.evaluation.significance import Comparison
from sottovoce.evaluation.tables import Cell, Column, Table, Tabular
from sottovoce.runs.read import Recommendation
from sottovoce.runs.tables import (
    MARKS,
    TEST,
    Row,
    half_width,
    keys_shown,
    marks_of,
    metric_columns,
    recommendations_table,
)

INTERVAL = "± is half of a 95 % interval of the mean over users (Student)"


@dataclass(frozen=True, slots=True, repr=False)
class Recommendations(Tabular):
    """Items for one person or several, best first.

    It prints as a table. Iterating gives a `Recommendation` for each item, with rank, item, title,
    categories, score and points.

    Example:
        ```python
        found = fitted.recommend("u17", n=5)
        print(found.items)
        both = fitted.recommend(["u17", "u18"])
        print(both["u18"][0].item)
        ```
    """

    lists: Mapping[str, Sequence[Recommendation]]
    """By user; a person who was never in training has the name ""."""

    def __repr__(self) -> str:
        return str(self)

    def __len__(self) -> int:
        return sum(map(len, self.lists.values()))

    def __iter__(self) -> Iterator[Recommendation]:
        return (one for found in self.lists.values() for one in found)

    def __getitem__(self, user: str) -> Sequence[Recommendation]:
        if user not in self.lists:
            raise UsageError(f"{user!r} was not asked for; there are {', '.join(self.lists)}")
        return self.lists[user]

    @property
    def items(self) -> list[str]:
        """Ids of the items of all lists, in their order."""
        return [one.item for one in self]

    def records(self) -> list[dict[str, Any]]:
        """A row for each item: user, rank, item, title, categories, score and points."""
        return [
            {
                "user": user or None,
                "rank": one.rank,
                "item": one.item,
                "title": one.title,
                "categories": list(one.categories),
                "score": one.score,
                "points": one.points,
            }
            for user, found in self.lists.items()
            for one in found
        ]

    def table(self) -> Table:
        """The table that is shown."""
        return recommendations_table(self.lists)


@dataclass(frozen=True, slots=True)
class Score:
    """A figure with its 95 % interval over users; the ends are not numbers where a figure has no
    value for each user."""

    value: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2.0


def scores_of(evaluation: Evaluation) -> dict[str, Score]:
    """Every figure that was asked for, by its name and cut-off."""
    summary, found = evaluation.summary(), {}
    for key in keys_shown([evaluation]):
        half = half_width(evaluation.per_user(key)) if evaluation.told_per_user(key) else math.nan
        found[key] = Score(summary[key], summary[key] - half, summary[key] + half)
    return found


@dataclass(frozen=True, slots=True, repr=False)
class Scores(Tabular):
    """What an evaluation came to, with 95 % intervals over users.

    It prints as a table. `scores["NDCG@10"]` is a figure with `value`, `low` and `high`, and
    `evaluation.per_user("NDCG@10")` has the value of each user.

    Example:
        ```python
        scores = fitted.evaluate(["NDCG", "recall"], k=10)
        print(scores)
        print(scores["NDCG@10"].value)
        ```
    """

    system: str
    evaluation: Evaluation

    def __repr__(self) -> str:
        return str(self)

    def __getitem__(self, metric: str) -> Score:
        found = scores_of(self.evaluation)
        named = [key for key in found if metric in (key, key.rpartition("@")[0])]
        if len(named) != 1:
            raise UsageError(f"there is no figure {metric!r}; there are {', '.join(found)}")
        return found[named[0]]

    def records(self) -> list[dict[str, Any]]:
        """A row for each figure: metric, value, low and high."""
        return [
            {
                "metric": key,
                "value": one.value,
                "low": None if math.isnan(one.low) else one.low,
                "high": None if math.isnan(one.high) else one.high,
            }
            for key, one in scores_of(self.evaluation).items()
        ]

    def table(self) -> Table:
        """The table that is shown."""
        return scores_table({self.system: self.evaluation}, self.system)


def scores_table(
    evaluations: Mapping[str, Evaluation],
    title: str,
    standing: Mapping[str, str] | None = None,
    tests: Sequence[Comparison] = (),
    reference: str = "",
    notes: Sequence[str] = (),
) -> Table:
    """Systems by metrics, with intervals, and marks where a system differs from the reference."""
    keys = keys_shown(evaluations.values())
    marks = marks_of(tests, [reference])
    rows: list[Row] = []
    for label, evaluation in evaluations.items():
        found = scores_of(evaluation)
        cells = {k: Cell(found[k].value, marks.get((label, k), ""), found[k].half) for k in keys}
        bound = {"bound": standing[label]} if standing else {}
        rows.append({"system": label, **bound, **cells})
    columns = metric_columns("system", keys)
    if standing:
        columns.insert(1, Column("bound", "what bounds it"))
    legend = [f"{MARKS[0]} differs from {reference} ({TEST})."] if tests else []
    protocol = next(iter(evaluations.values())).describe()
    return Table(title, columns, rows, protocol, [f"{INTERVAL}.", *legend, *notes])


@dataclass(frozen=True, slots=True, repr=False)
class ComparisonTable(Tabular):
    """Systems beside each other, as `compare` gives them.

    It prints as a table; in a notebook it is one. `to_pandas`, `to_polars`, `to_latex`,
    `to_markdown` and `to_csv` have the same in other forms.

    Example:
        ```python
        table = sv.compare([sv.fit(sv.TopPop(), parts), sv.fit(sv.Gram(), parts)])
        print(table.to_latex())
        print([test.p_holm for test in table.tests])
        ```
    """

    evaluations: Mapping[str, Evaluation]
    """By system."""
    standing: Mapping[str, str]
    """What bounds each of them, in words."""
    tests: tuple[Comparison, ...]
    """Each system against the reference, by each metric; p after Holm's correction over all."""
    reference: str
    data: str
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return str(self)

    def records(self) -> list[dict[str, Any]]:
        """A row for each system: the figures, the ends of their intervals under `<metric>_low` and
        `<metric>_high`, and under `<metric>_p` the corrected p of the difference from the
        reference."""
        p = {(one.system, one.metric): one.p_holm for one in self.tests}
        found = []
        for label, evaluation in self.evaluations.items():
            row: dict[str, Any] = {"system": label, "bound": self.standing[label]}
            for key, one in scores_of(evaluation).items():
                ends = (None if math.isnan(end) else end for end in (one.low, one.high))
                row[key] = one.value
                row[f"{key}_low"], row[f"{key}_high"] = ends
                row[f"{key}_p"] = p.get((label, key))
            found.append(row)
        return found

    def table(self) -> Table:
        """The table that is shown."""
        title = f"Systems on {self.data}"
        return scores_table(
            self.evaluations, title, self.standing, self.tests, self.reference, self.notes
        )
