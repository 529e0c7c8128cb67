"""What a study claims of its rows, tested. A claim of a file has a text, a kind and its rows; the
kinds are few, and what none of them can say is a named function (`test = "module:name"`).

A text may name columns: then there is a claim for each of the values of the columns in `each`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from sottovoce.errors import ConfigError
from sottovoce.evaluation.protocol import Evaluation
from sottovoce.evaluation.significance import Comparison, Paired, compare, over_seeds

Floats = NDArray[np.float64]
Row = dict[str, Any]
Claim = dict[str, Any]
Part = tuple[bool, str]
Spec = Mapping[str, Any]
"""A part of a study's file."""


@dataclass(frozen=True, slots=True, repr=False)
class StudyLine:
    """A row with what is behind it: an evaluation for each seed, and facts of each training."""

    row: Row
    runs: Sequence[Evaluation] = ()
    facts: Sequence[Mapping[str, Any]] = ()

    def over_seeds(self) -> Evaluation:
        """Each user's mean over the seeds."""
        return over_seeds(dict(enumerate(self.runs)))


Sets = Mapping[str, Sequence[StudyLine]]
"""The lines of a study by set."""


def claim(text: str, *parts: Part) -> Claim:
    """A claim; it holds if all its parts do."""
    detail = "; ".join(words for _, words in parts)
    return {"claim": text, "holds": all(holds for holds, _ in parts), "detail": detail}


def interval(values: Sequence[float] | Floats, confidence: float = 0.95) -> float | None:
    """Half of Student's interval of the mean; nothing for a single value."""
    if len(values) < 2:
        return None
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(stdtrit(len(values) - 1, 0.5 + confidence / 2)) * error


def plus_minus(values: Sequence[float] | Floats) -> str:
    """The mean, and half of its interval if there are several values."""
    half = interval(values)
    return f"{np.mean(values):.4f}" + ("" if half is None else f" ± {half:.4f}")


def count_of(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"


# --- rows ----------------------------------------------------------------------------------------


def fits(row: Spec, where: Spec) -> bool:
    """Return whether a row has these values; a list allows several."""
    return all(
        row.get(name) in value if isinstance(value, list) else row.get(name) == value
        for name, value in where.items()
    )


def lines_of(sets: Sets, spec: Spec, key: str = "set") -> list[StudyLine]:
    """Return the lines that a part of a file is about: a set or several, the main one by default;
    those of another `key` are by default those of `set`."""
    names = spec.get(key, spec.get("set", "main"))
    names = [names] if isinstance(names, str) else names
    unknown = [name for name in names if name not in sets]
    if unknown:
        raise ConfigError(f"there is no set of rows {unknown[0]!r}; there are {', '.join(sets)}")
    return [line for name in names for line in sets[name]]


def chosen(lines: Sequence[StudyLine], where: Spec) -> list[StudyLine]:
    """Return the lines whose rows have these values."""
    return [line for line in lines if fits(line.row, where)]


def groups(lines: Sequence[StudyLine], by: Sequence[str]) -> dict[tuple[Any, ...], list[StudyLine]]:
    """Return the lines by the values of these columns, in the order of the first of each."""
    found: dict[tuple[Any, ...], list[StudyLine]] = {}
    for line in lines:
        found.setdefault(tuple(line.row.get(name) for name in by), []).append(line)
    return found


def significance(lines: Sequence[StudyLine], metric: str, reference: str) -> dict[str, Comparison]:
    """Return every system of these lines against the reference: paired t-tests over users, on
    values averaged over seeds, corrected by Holm over the lines."""
    every = {line.row["system"]: line.over_seeds() for line in lines if line.runs}
    return {one.system: one for one in compare(every, metric, reference)}


def paired(line: StudyLine, base: StudyLine, metric: str) -> Paired:
    """Return the paired t-test of a line against another, on values averaged over seeds."""
    both = {"line": line.over_seeds(), "base": base.over_seeds()}
    return compare(both, metric, "base")[0].test


def told(line: StudyLine, metric: str, style: str = ".5f", say: str = "{system}") -> str:
    """A line's figure, in words."""
    return f"{say.format_map(line.row)} {line.row[metric]:{style}}"


# --- kinds of claims -----------------------------------------------------------------------------


def _above(table: Spec, lines: Sequence[StudyLine], others: Sequence[StudyLine]) -> list[Part]:
    """Lines `of` are above the best of the lines `than`: strictly, or with `equal` not below, or by
    a factor (`ratio`), or significantly (`p`; with `alone` not corrected for other lines)."""
    metric, ratio = table["metric"], float(table.get("ratio", 1.0))
    rivals = [one for one in chosen(others, table["than"]) if one.row.get(metric) is not None]
    if not rivals:
        return []
    best = max(rivals, key=lambda line: line.row[metric])
    parts = []
    for line in chosen(lines, table["of"]):
        ours, theirs = line.row[metric], max(best.row[metric], float(table.get("least", 0.0)))
        either = table.get("equal") or ratio != 1.0
        good = ours >= ratio * theirs if either else ours > theirs
        words = f"{told(line, metric)}, {told(best, metric)}"
        if "p" in table:
            compared = [best, line] if table.get("alone") else lines
            test = significance(compared, metric, best.row["system"])[line.row["system"]]
            good = good and test.significant(table["p"])
            words += f" (p={test.p_holm:.2g})"
        parts.append((good, words))
    return parts


def _near(table: Spec, lines: Sequence[StudyLine], _: Sequence[StudyLine]) -> list[Part]:
    """Lines `of` differ from `than` by no more than a share (`within`), or not significantly."""
    metric = table["metric"]
    bases = chosen(lines, table["than"])
    if not bases:
        return []
    base = bases[0]
    tests = significance(lines, metric, base.row["system"])
    parts = []
    for line in chosen(lines, table["of"]):
        change, test = line.row[metric] / base.row[metric] - 1.0, tests[line.row["system"]]
        good = abs(change) <= table["within"] or not test.significant()
        parts.append((good, f"{told(line, metric)} ({change:+.1%}, p={test.p_holm:.2g})"))
    return parts


def _value(table: Spec, lines: Sequence[StudyLine], _: Sequence[StudyLine]) -> list[Part]:
    """The metric of each line is `least` or more, `most` or less, or `about` a value (± `spare`),
    or what another column has, such as a printed figure; lines without it are left out. With `best`
    the highest one alone counts, with `count` so many are enough."""
    metric, about = table["metric"], table.get("about")
    mine = [line for line in chosen(lines, table.get("of", {})) if line.row.get(metric) is not None]
    if isinstance(about, str):
        mine = [line for line in mine if line.row.get(about) is not None]
    if table.get("best") and mine:
        mine = [max(mine, key=lambda line: line.row[metric])]
    parts = []
    for line in mine:
        value, spare = line.row[metric], table.get("spare", 0.0)
        middle = line.row[about] if isinstance(about, str) else about
        low = table.get("least", -math.inf if middle is None else middle - spare)
        high = table.get("most", math.inf if middle is None else middle + spare)
        good = low <= value <= high
        if "below" in table:
            good = good and value < table["below"]
        if "above" in table:
            good = good and value > table["above"]
        words = told(line, metric, table.get("format", ".5f"), table.get("say", "{system}"))
        parts.append((good, words))
    if "count" in table:
        enough = sum(good for good, _ in parts) >= table["count"]
        return [(enough, ", ".join(words for _, words in parts))]
    return parts


def _limits(table: Spec, lines: Sequence[StudyLine], _: Sequence[StudyLine]) -> list[Part]:
    """The highest figure of each metric in `limits` is not above its limit."""
    parts = []
    for metric, limit in table["limits"].items():
        worst = max(lines, key=lambda line: line.row[metric])
        words = told(worst, metric, table.get("format", ".5f"), table.get("say", "{system}"))
        parts.append((worst.row[metric] <= limit, f"{metric}: {words}"))
    return parts


def _course(table: Spec, lines: Sequence[StudyLine], _: Sequence[StudyLine]) -> list[Part]:
    """The metric `rises` or `falls` from one value of the column `along` to the next, within lines
    that are alike in the columns `within`; steps the other way up to `spare` do not count."""
    metric, along = table["metric"], table["along"]
    sign = -1.0 if table.get("falls") else 1.0
    wrong = []
    for place, mine in groups(chosen(lines, table.get("of", {})), table["within"]).items():
        ordered = sorted(mine, key=lambda line: line.row[along])
        for low, high in pairwise(ordered):
            words = f"{', '.join(map(str, place))}, {low.row[along]:g} to {high.row[along]:g}"
            wrong.append((sign * (low.row[metric] - high.row[metric]), words))
    worst, where = max(wrong, default=(0.0, "nowhere"))
    spare = float(table.get("spare", 0.0))
    against = sum(step > spare for step, _ in wrong)
    words = f"{against} of {len(wrong)} steps go the other way by more than {spare:g}"
    return [(not against, f"{words}; the worst by {worst:.3f} ({where})")]


Test = Callable[[Spec, Sequence[StudyLine], Sequence[StudyLine]], list[Part]]
TESTS: Mapping[str, Test] = {
    "above": _above,
    "near": _near,
    "value": _value,
    "course": _course,
    "limits": _limits,
}


def tested(table: Spec, sets: Sets) -> list[Claim]:
    """Return a claim of a study's file, or one for each value of its columns in `each`, or one for
    each line `of` if it says `single`. One whose rows are not there is left out. With `metrics` it
    has a part for each of several."""
    if table.get("single"):
        ones = chosen(lines_of(sets, table), {**table.get("where", {}), **table["of"]})
        keys = dict.fromkeys(line.row["system"] for line in ones)
        plain = {name: value for name, value in table.items() if name != "single"}
        several = [{**plain, "text": table["text"].replace("{system}", key)} for key in keys]
        return [
            found
            for key, one in zip(keys, several, strict=True)
            for found in tested({**one, "of": {**table["of"], "system": key}}, sets)
        ]
    lines, others = lines_of(sets, table), lines_of(sets, table, "than_set")
    test = TESTS.get(table["is"])
    if test is None:
        raise ConfigError(f"claims[{table['text']!r}] is none of {', '.join(TESTS)}")
    found = []
    each, but = table.get("each", ()), table.get("but", ())
    lines = [line for line in lines if not any(fits(line.row, where) for where in but)]
    for place, mine in groups(chosen(lines, table.get("where", {})), each).items():
        if "metric" in table:  # without what could not be trained
            mine = [line for line in mine if line.row.get(table["metric"]) is not None]
        if not mine:
            continue
        if "peak" in table:
            mine = peaks(mine, **table["peak"])
        rivals = others if "than_set" in table else mine
        pairs = [({"system": ours}, {"system": theirs}) for ours, theirs in table.get("pairs", ())]
        wanted = [{**table, "of": ours, "than": theirs} for ours, theirs in pairs] or [{**table}]
        wanted = [
            {**one, "metric": metric}
            for one in wanted
            for metric in table.get("metrics", [table.get("metric")])
        ]
        parts = [
            part
            for some in groups(mine, table.get("per", ())).values()
            for one in wanted
            for part in test(one, some, some if rivals is mine else rivals)
        ]
        if parts:
            values = dict(zip(each, place, strict=True))
            found.append(claim(table["text"].format_map({**mine[0].row, **values}), *parts))
    return found


def peaks(lines: Sequence[StudyLine], metric: str, within: Sequence[str]) -> list[StudyLine]:
    """Return of all lines that are alike in some columns the one with the highest figure."""
    return [max(mine, key=lambda line: line.row[metric]) for mine in groups(lines, within).values()]
