"""One system over several seeds: the mean, and how far the seeds lie apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from scipy.special import stdtrit

from sottovoce.evaluation.protocol import Evaluation, Sampled


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over seeds: the mean, the standard deviation, and half of Student's 95 %
    interval of the mean. Neither of these two is a number where there is one seed."""

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
    """Of every figure of a summary."""
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
