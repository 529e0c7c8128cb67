"""Audits: how much a mechanism gives away at the very least, judged by what it puts out.

A mechanism that promises ε puts no event S more than e^ε times as often on one input as on another.
Counting how often S happens on two inputs of the attacker's choice bounds ε from below, whatever
the mechanism does inside. `lower_bound` is such a bound: if the promise holds, it exceeds ε with a
probability of 1 − confidence at most. So a bound above the promise convicts; a bound below it
proves nothing, as another pair of inputs or another event might show more.

`audit_sums` draws noise often, from the code that it audits, and counts how often the statistic of
`attacks.alone.SumTarget` lies above a threshold, fixed before: in a share of at most α of the draws
without the target and of at least 1 − β of those with it, by exact bounds on the counts (Clopper
and Pearson). No mechanism at distance μ allows 1 − β above Φ(μ − Φ⁻¹(1 − α)), so the distance is at
least Φ⁻¹(1 − β) + Φ⁻¹(1 − α). Its ε at δ is what was found. This assumes nothing of the noise that
is drawn: that the promise is one of a distance, as ours is, is all that it uses.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from sottovoce.attacks.filters import rank
from sottovoce.attacks.power import clopper_pearson
from sottovoce.errors import ConfigError, DataError
from sottovoce.privacy.accountant import DELTA
from sottovoce.privacy.central import noise_for, price


def lower_bound(hits_one, n_one, hits_other, n_other, confidence=0.99):
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


def audit(one, other, outcomes, confidence=0.99):
    """`lower_bound` from the outputs themselves, numbers below `outcomes`. The events are that an
    output is a certain number, and that it is not."""
    counts = []
    for outputs in (one, other):
        if len(outputs) and not 0 <= int(outputs.min()) <= int(outputs.max()) < outcomes:
            raise DataError(f"an output is not one of the {outcomes} that there can be")
        hits = np.bincount(outputs.astype(np.int64), minlength=outcomes)
        counts.append(np.concatenate([hits, len(outputs) - hits]))
    return lower_bound(counts[0], len(one), counts[1], len(other), confidence)


@dataclass(frozen=True, slots=True)
class SumAudit:
    """What draws of the noise proved."""

    draws: int
    """With the target, and as many without her."""
    distance: float
    """At least this far are the two apart, at the confidence asked for."""
    epsilon: float
    """The ε of that distance."""
    claimed: float
    delta: float
    auc: float
    """Of the attack."""
    best: float
    """What no attack exceeds if the claim holds."""

    @property
    def convicted(self) -> bool:
        return self.epsilon > self.claimed

    def describe(self) -> str:
        verdict = "more than" if self.convicted else "within"
        return (
            f"an attacker who knows everybody else has an AUC of {self.auc:.3f} ({self.best:.3f} "
            f"at most, if the claim holds) in {self.draws:,} draws: at least ε = "
            f"{self.epsilon:.2f} is given away, {verdict} the ε = {self.claimed:.2f} claimed at "
            f"δ = {self.delta:g}"
        )


def audit_sums(target, noise, draws, claimed, delta=DELTA, really=None, confidence=0.99):
    """Holds a claimed ε against what sums give away of the target. `really` is what is added if she
    is in, where that is not what it should be: twice as much, say."""
    if draws < 1 or not 0.0 < confidence < 1.0:
        raise ConfigError("an audit needs a draw at least, and a confidence between 0 and 1")
    added = target.added if really is None else really
    outside = np.array([target.statistic(noise(n)) for n in range(draws)])
    # One statistic is linear in what is added, so that noise is drawn anew for the other input.
    moved = target.statistic(added)
    inside = moved + np.array([target.statistic(noise(draws + n)) for n in range(draws)])
    claimed_distance = 1.0 / noise_for(claimed, 1, delta)
    threshold, error = claimed_distance / 2, (1.0 - confidence) / 2
    low, _ = clopper_pearson(int((inside > threshold).sum()), draws, error)
    _, high = clopper_pearson(int((outside > threshold).sum()), draws, error)
    # Neither can be infinite: both bounds lie below 1 and above 0 for any number of draws.
    distance = max(0.0, float(ndtri(float(low)) + ndtri(1.0 - float(high))))
    found = price(1.0 / distance, 1, delta) if distance else 0.0
    ranking = rank("one-shot", np.concatenate([inside, outside]), np.repeat([True, False], draws))
    best = float(ndtr(claimed_distance / math.sqrt(2.0)))
    return SumAudit(draws, distance, found, claimed, delta, ranking.auc, best)


def least_distance(scores, included, confidence=0.95):
    """Of Gaussian noise only: a lower bound of √rounds / noise, from a guess about every canary.

    Two Gaussians at distance μ are told apart with probability Φ(μ/2) at most. It takes the guesses
    for independent, as they are where the canaries' updates hardly overlap; `lower_bound` does not,
    and sees less: noise of half the size is caught by this one."""
    m = len(scores)
    ordered = included[np.argsort(-scores, kind="stable")]
    right = int(ordered[: m // 2].sum() + (~ordered[m // 2 :]).sum())
    low, _ = clopper_pearson(right, m, 1.0 - confidence)
    return float(max(0.0, 2 * ndtri(float(low))))
