"""Audits: how much a mechanism gives away at the very least, judged by what it puts out.

A mechanism that promises ε puts no event S more than e^ε times as often on one input as on another.
Counting how often S happens on two inputs of the attacker's choice bounds ε from below, whatever
the mechanism does inside. `lower_bound` is such a bound: if the promise holds, it exceeds ε with a
probability of 1 − confidence at most. So a bound above the promise convicts; a bound below it
proves nothing, as another pair of inputs or another event might show more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv, betaincinv

from sottovoce.errors import ConfigError, DataError


def clopper_pearson(
    hits: ArrayLike, trials: int, error: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A lower and an upper bound of each probability with so many hits. Each of them alone is wrong
    with a probability of `error` at most, for every probability and every number of trials."""
    if not 0.0 < error < 0.5:
        raise ConfigError(f"the error of a bound must lie between 0 and 0.5, not at {error:g}")
    found = np.asarray(hits, dtype=np.int64)
    if trials < 1 or np.any((found < 0) | (found > trials)):
        raise DataError("there must be a trial at least, and no more hits than trials")
    # The limits at no hit and at nothing but hits are put in afterwards.
    some, misses = np.maximum(found, 1), np.maximum(trials - found, 1)
    lower = np.where(found > 0, betaincinv(some, trials - some + 1, error), 0.0)
    upper = np.where(found < trials, betainccinv(trials - misses + 1, misses, error), 1.0)
    return lower, upper


def lower_bound(
    hits_one: ArrayLike,
    n_one: int,
    hits_other: ArrayLike,
    n_other: int,
    confidence: float = 0.99,
) -> float:
    """The ε that these counts prove, over both directions and all events; 0 where they prove none.

    `hits_one` and `hits_other` say how often an event, or each of several, has happened in n_one
    and n_other independent runs on the two inputs. Events must not have been chosen by the same
    counts. The confidence is shared out between them (Bonferroni), so few telling ones prove most.
    """
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence must lie between 0 and 1, not at {confidence:g}")
    one, other = np.atleast_1d(hits_one), np.atleast_1d(hits_other)
    if one.ndim != 1 or one.shape != other.shape or not len(one):
        raise DataError("every event must be counted on both inputs")
    error = (1.0 - confidence) / (4 * len(one))
    low_one, high_one = clopper_pearson(one, n_one, error)
    low_other, high_other = clopper_pearson(other, n_other, error)
    ratios = np.concatenate([low_one / high_other, low_other / high_one])
    return float(np.log(np.maximum(ratios, 1.0)).max())


def audit(
    one: NDArray[np.integer], other: NDArray[np.integer], outcomes: int, confidence: float = 0.99
) -> float:
    """`lower_bound` from the outputs themselves, numbers below `outcomes`. The events are that an
    output is a certain number, and that it is not."""
    counts = []
    for outputs in (one, other):
        if len(outputs) and not 0 <= int(outputs.min()) <= int(outputs.max()) < outcomes:
            raise DataError(f"an output is not one of the {outcomes} that there can be")
        hits = np.bincount(outputs.astype(np.int64), minlength=outcomes)
        counts.append(np.concatenate([hits, len(outputs) - hits]))
    return lower_bound(counts[0], len(one), counts[1], len(other), confidence)
