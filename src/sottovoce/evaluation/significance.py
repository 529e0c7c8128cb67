"""Is a difference more than chance? Paired tests on per-user values, corrected for many looks; and
the mean of a system over several seeds, with how far the seeds lie apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from sottovoce.errors import UsageError
from sottovoce.evaluation.protocol import Evaluation, Sampled


@dataclass(frozen=True, slots=True)
class Paired:
    """A paired comparison: mean of a − b, its confidence interval, two-sided p."""

    n: int
    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One system against the reference, over the users both serve. The means are over these."""

    system: str
    reference: str
    metric: str
    mean: float
    reference_mean: float
    test: Paired
    p_holm: float
    p_bonferroni: float

    def significant(self, alpha: float = 0.05) -> bool:
        """After Holm's correction."""
        return self.p_holm < alpha


def paired_t(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Paired:
    """Student's paired t-test on a − b.

    Identical values give p = 1 and an interval of 0 to 0. A constant difference other than 0 has
    no variance and gives p = 0. Fewer than two pairs give p = 1 and no bounds.
    """
    x, n = _differences(a, b)
    if not 0 < confidence < 1:
        raise UsageError(f"a confidence lies between 0 and 1, not {confidence}")
    if n < 2:
        return Paired(n, float(x.mean()) if n else 0.0, -math.inf, math.inf, 1.0)
    mean = float(x.mean())
    error = float(x.std(ddof=1)) / math.sqrt(n)
    if error <= np.finfo(float).eps * abs(mean):
        return Paired(n, mean, mean, mean, 1.0 if mean == 0 else 0.0)
    half = float(stdtrit(n - 1, 0.5 + confidence / 2)) * error
    p = 2.0 * float(stdtr(n - 1, -abs(mean) / error))
    return Paired(n, mean, mean - half, mean + half, p)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the given order."""
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    stepped = values[order] * np.arange(len(values), 0, -1)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return [float(v) for v in adjusted]


def bonferroni(p: Sequence[float]) -> list[float]:
    """Each p times the number of tests, at most 1."""
    return [min(1.0, float(v) * len(p)) for v in p]


def compare(
    evaluations: Mapping[str, Evaluation],
    metric: str,
    reference: str,
    *,
    confidence: float = 0.95,
) -> list[Comparison]:
    """Every other system against the reference, on users both serve; in the given order.

    Raises where protocols differ: such figures cannot be compared. Where two systems serve no user
    in common, the means are not numbers and p is 1.
    """
    if reference not in evaluations:
        raise UsageError(f"there is no system {reference!r}; there are {', '.join(evaluations)}")
    base = evaluations[reference]
    others = {name: e for name, e in evaluations.items() if name != reference}
    pairs: list[tuple[float, float, Paired]] = []
    for name, evaluation in others.items():
        if evaluation.protocol.describe() != base.protocol.describe():
            raise UsageError(
                f"{name} and {reference} were evaluated under different protocols: "
                f"{evaluation.protocol.describe()} | {base.protocol.describe()}"
            )
        a, b = _aligned(evaluation, base, metric)
        means = (float(a.mean()), float(b.mean())) if len(a) else (math.nan, math.nan)
        pairs.append((*means, paired_t(a, b, confidence)))
    p = [test.p for _, _, test in pairs]
    return [
        Comparison(name, reference, metric, mean, base_mean, test, p_holm, p_bonferroni)
        for name, (mean, base_mean, test), p_holm, p_bonferroni in zip(
            others, pairs, holm(p), bonferroni(p), strict=True
        )
    ]


def compare_all(
    evaluations: Mapping[str, Evaluation],
    metrics: Sequence[str],
    references: Sequence[str],
) -> list[Comparison]:
    """`compare` by every metric with a value per user, against each reference, in this order;
    corrected for all of these tests together, since one table shows them."""
    told = [m for m in metrics if all(e.told_per_user(m) for e in evaluations.values())]
    found = [
        one
        for reference in references
        for metric in told
        for one in compare(evaluations, metric, reference)
    ]
    p = [one.test.p for one in found]
    return [
        replace(one, p_holm=stepped, p_bonferroni=times)
        for one, stepped, times in zip(found, holm(p), bonferroni(p), strict=True)
    ]


def _aligned(
    a: Evaluation, b: Evaluation, metric: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if np.array_equal(a.users, b.users):
        both = a.served & b.served
        return a.per_user(metric)[both], b.per_user(metric)[both]
    _, mine, theirs = np.intersect1d(
        a.users[a.served], b.users[b.served], assume_unique=True, return_indices=True
    )
    return a.per_user(metric)[a.served][mine], b.per_user(metric)[b.served][theirs]


def _differences(a: ArrayLike, b: ArrayLike) -> tuple[NDArray[np.float64], int]:
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise UsageError("a paired test needs two values per user")
    return x - y, len(x)


# --- several seeds --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over seeds: the mean, the standard deviation, and half of Student's 95 % interval
    of the mean. With one seed the latter two are not numbers."""

    mean: float
    sd: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        n, mean = len(values), float(np.mean(values))
        if n < 2:
            return cls(mean, math.nan, math.nan)
        sd = float(np.std(values, ddof=1))
        return cls(mean, sd, float(stdtrit(n - 1, 0.975)) * sd / math.sqrt(n))


def over_seeds(evaluations: Mapping[int, Evaluation]) -> Evaluation:
    """Every user's mean over the seeds, of users whom all seeds have; served are those whom all
    serve. Two such means differ by the mean of differences that are taken user by user and seed by
    seed, so that `compare` on them is paired by both. One seed is as it was."""
    first = next(iter(evaluations.values()))
    if len(evaluations) < 2:
        return first
    users = reduce(np.intersect1d, (one.users for one in evaluations.values()))
    places = {seed: np.searchsorted(one.users, users) for seed, one in evaluations.items()}
    candidates, (_, *others) = first.protocol.candidates, evaluations
    if isinstance(candidates, Sampled):
        candidates = replace(candidates, others=tuple(others))
    return Evaluation(
        protocol=replace(first.protocol, candidates=candidates),
        users=users,
        values={
            name: np.mean([one.values[name][places[s]] for s, one in evaluations.items()], axis=0)
            for name in first.values
        },
        served=np.all([one.served[places[s]] for s, one in evaluations.items()], axis=0),
        skipped=first.skipped,
        n_items=first.n_items,
        seeds=dict(evaluations),
    )


def spreads(evaluation: Evaluation) -> dict[str, Spread]:
    """Return the spread of every figure of a summary."""
    summaries = [one.summary() for one in evaluation.seeds.values()] or [evaluation.summary()]
    keys = [key for key in summaries[0] if all(key in summary for summary in summaries)]
    return {key: Spread.of([summary[key] for summary in summaries]) for key in keys}


def spread_content(evaluation: Evaluation) -> dict[str, Any]:
    """For JSON: the same, with the figure of every seed."""
    by_seed = {seed: one.summary() for seed, one in evaluation.seeds.items()}
    return {
        key: asdict(found) | {"seeds": {str(seed): one[key] for seed, one in by_seed.items()}}
        for key, found in spreads(evaluation).items()
    }
