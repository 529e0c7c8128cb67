"""An audit of noisy sums that are opened once, against an attacker who knows everybody else.

She takes what the others have added off what was published. What is left is noise, and the target's
contribution x if the target is in. With Gaussian noise of σ on each number, over all sums together,
the best that she can look at is one number: ⟨rest/σ², x⟩ by its own standard deviation. Out it is a
Gaussian of variance 1 around 0, in it is one around μ = ‖x/σ‖. So an attack on one user has an AUC
of Φ(μ/√2) and never a better one, and μ at (ε, δ) is the price of the sums (`privacy.central`).

The audit draws noise often, from the code that it audits, and counts. Let the number lie above a
threshold, fixed before, in a share of at most α of the draws without the target and of at least
1 − β of those with it, by exact bounds on the counts (Clopper and Pearson). No mechanism at
distance μ allows 1 − β above Φ(μ − Φ⁻¹(1 − α)), so the distance is at least Φ⁻¹(1 − β) +
Φ⁻¹(1 − α). Its ε at δ is what was found. This assumes nothing of the noise that is drawn: that the
promise is one of a distance, as ours is, is all that it uses. A bound above the promise convicts;
one below it proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from sottovoce.attacks.audit import clopper_pearson
from sottovoce.attacks.filters import rank
from sottovoce.core.redacted import Redacted
from sottovoce.errors import ConfigError, DataError
from sottovoce.privacy.accountant import DELTA
from sottovoce.privacy.central import noise_for, price

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Noise = Callable[[int], Sequence[Ints]]
"""Of a draw, by number: the noise on each of the sums. No two draws have noise in common."""
CONFIDENCE = 0.99


@dataclass(frozen=True, slots=True, repr=False)
class SumTarget(Redacted):
    """A user, and what there is to hide her."""

    added: tuple[Ints, ...]
    """What she adds to each sum, number by number, in steps of the grid."""
    sigmas: tuple[Floats, ...]
    """Of each of these numbers, the standard deviation of the noise that is claimed."""

    def __post_init__(self) -> None:
        if [x.shape for x in self.added] != [s.shape for s in self.sigmas]:
            raise DataError("every number of a contribution needs the noise that is claimed for it")
        if not any(x.any() for x in self.added) or not all((s > 0).all() for s in self.sigmas):
            raise DataError("a target adds something, to sums that have noise")

    @property
    def distance(self) -> float:
        """μ: by how many standard deviations she moves what is published."""
        parts = [float(((x / s) ** 2).sum()) for x, s in zip(self.added, self.sigmas, strict=True)]
        return math.sqrt(math.fsum(parts))

    def statistic(self, rests: Sequence[Ints]) -> float:
        """Of what is left of the sums without the others: 0 on average if she is out, μ if in."""
        parts = [
            float((rest / s * (x / s)).sum())
            for rest, x, s in zip(rests, self.added, self.sigmas, strict=True)
        ]
        return math.fsum(parts) / self.distance


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


def audit_sums(
    target: SumTarget,
    noise: Noise,
    draws: int,
    claimed: float,
    delta: float = DELTA,
    really: Sequence[Ints] | None = None,
    confidence: float = CONFIDENCE,
) -> SumAudit:
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


def right_guesses(target: SumTarget, noise: Noise, draws: int) -> int:
    """How many of 2 · `draws` guesses are right, half of them with the target in, by whoever knows
    all but that. Φ(μ/2) of them are, on average, if the noise is what is claimed."""
    if draws < 1:
        raise ConfigError("there is nothing to count without a draw")
    middle = target.distance / 2
    moved = target.statistic(target.added)
    inside = sum(moved + target.statistic(noise(n)) > middle for n in range(draws))
    outside = sum(target.statistic(noise(draws + n)) <= middle for n in range(draws))
    return int(inside + outside)
