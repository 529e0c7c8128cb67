"""What it costs users that the best of several trainings is chosen: composition, and private
selection.

A search trains a federation's model again and again and keeps one. If each training were told, a
user would pay for all of them (`Loss.times`, or the sum of their losses). Papernot and Steinke
(Hyperparameter tuning with Rényi differential privacy, ICLR 2022) show that choosing costs much
less, **if**

- the number K of trainings is drawn at random, from one of the distributions below, and nobody
  learns it;
- every training is the same mechanism: it draws its settings at random by itself, trains, and tells
  its model *and the score by which it is chosen* at the price that is given here. A score that is
  computed from private data without noise is outside of the bound;
- only the best one is told, and nothing of the others.

A search that looks at former trials before it tries the next one (`runs.tune`) is not of this kind,
and neither is one with a fixed number of trials. So these functions price what a federation could
do instead; they say nothing of a search that was made.

For a mechanism whose Rényi divergence of order λ is at most ε(λ), that of the best one is at most

- ε(λ) + (1+η)·min over h ≥ 1 of [(1 − 1/h)·ε(h) + log(1/γ)/h] + log(E K)/(λ−1), if K is drawn from
  the truncated negative binomial D(η, γ) (Theorem 2);
- ε(λ) + μ·δ + log(μ)/(λ−1), if K is drawn from Poisson(μ) and the mechanism is (log(1 + 1/(λ−1)),
  δ)-differentially private (Theorem 6).

η = 1 is the geometric distribution, and with λ, h → ∞ it gives 3ε of pure ε (Liu and Talwar 2019);
η = 0 is the logarithmic one, 2ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from sottovoce.core.portable import gaussian_delta
from sottovoce.errors import ConfigError
from sottovoce.privacy.accountant import DELTA
from sottovoce.privacy.central import price

ORDERS: tuple[float, ...] = tuple(1.0 + 10.0 ** (k / 20.0) for k in range(-60, 101))
"""Orders λ at which curves are looked at: from 1.001 to 100,001."""


Renyi = Callable[[float], float]
"""A bound on the Rényi divergence by its order, which may be infinite."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What a user's part in something cost her: Gaussian mechanisms, pure ones, or both in turn.

    Its Rényi divergence of order λ is at most λ·squares/2 + Σ min(ε, λ·ε²/2) (Bun and Steinke
    2016)."""

    squares: float = 0.0
    """Sum of the squared distances of Gaussians, of sensitivity over noise."""
    pure: tuple[float, ...] = ()
    """ε of each pure one; infinity where nothing bounds it."""

    def __post_init__(self) -> None:
        if not self.squares >= 0.0 or not all(one >= 0.0 for one in self.pure):
            raise ConfigError("what something costs is not below 0")

    def __add__(self, other: Loss) -> Loss:
        return Loss(self.squares + other.squares, self.pure + other.pure)

    def times(self, n: int) -> Loss:
        """Of n trainings alike, one after the other."""
        return Loss(n * self.squares, n * self.pure)

    @property
    def bounded(self) -> bool:
        return math.isfinite(self.squares) and all(map(math.isfinite, self.pure))

    def renyi(self, order: float) -> float:
        """The bound on its divergence of this order, which may be infinite: then it is that of
        pure differential privacy."""
        if math.isinf(order):
            return math.inf if self.squares else math.fsum(self.pure)
        return order * self.squares / 2.0 + math.fsum(
            min(one, order * one * one / 2.0) for one in self.pure
        )

    def epsilon(self, delta: float = DELTA) -> float:
        """ε at this δ: exact of Gaussians alone, otherwise by the best order."""
        if not self.bounded:
            return math.inf
        if not self.pure:
            return price(1.0 / math.sqrt(self.squares), 1, delta) if self.squares else 0.0
        return epsilon_of(self.renyi, delta)

    def delta(self, epsilon: float) -> float:
        """δ at this ε: exact of Gaussians alone, otherwise by the best order."""
        if not self.bounded:
            return 1.0
        if not self.pure:
            return float(gaussian_delta(math.sqrt(self.squares), epsilon)) if self.squares else 0.0
        if not self.squares and math.fsum(self.pure) <= epsilon:
            return 0.0
        return min(1.0, *(
            math.exp((order - 1.0) * (self.renyi(order) - epsilon)
                     + order * math.log1p(-1.0 / order) - math.log(order - 1.0))
            if (order - 1.0) * (self.renyi(order) - epsilon) < 50.0 else 1.0
            for order in ORDERS
        ))  # fmt: skip


def epsilon_of(renyi: Renyi, delta: float = DELTA) -> float:
    """ε at this δ of a mechanism with this curve (Canonne, Kamath and Steinke 2020)."""
    found = [
        renyi(order)
        + math.log1p(-1.0 / order)
        - (math.log(delta) + math.log(order)) / (order - 1.0)
        for order in ORDERS
    ]
    return max(0.0, min(*found, renyi(math.inf)))


@lru_cache(maxsize=64)
def _others(loss: Loss, gamma: float) -> float:
    """What Theorem 2 adds for the trainings that were not chosen, by the best h."""
    spread = math.log(1.0 / gamma)
    found = ((1.0 - 1.0 / one) * loss.renyi(one) + spread / one for one in ORDERS)
    return min(spread, loss.renyi(math.inf), *found)  # the first is h = 1


@dataclass(frozen=True, slots=True)
class TruncatedNegativeBinomial:
    """D(η, γ) on 1, 2, 3, …: how many trainings a private selection has."""

    shape: float
    """η, above −1. The larger, the less the number varies, and the more it costs."""
    gamma: float

    def __post_init__(self) -> None:
        if not self.shape > -1.0 or not 0.0 < self.gamma < 1.0:
            raise ConfigError("the shape η must lie above -1, and γ between 0 and 1")

    @classmethod
    def of_mean(cls, mean: float, shape: float = 0.0) -> TruncatedNegativeBinomial:
        """The one with so many trainings on average."""
        if not 1.0 < mean < 1e9:
            raise ConfigError(f"the mean number of trainings must lie above 1, not {mean:g}")
        low, high = -600.0, -1e-12  # log γ, with which the mean falls
        for _ in range(100):
            middle = (low + high) / 2.0
            low, high = (
                (middle, high) if cls(shape, math.exp(middle)).mean > mean else (low, middle)
            )
        return cls(shape, math.exp(high))

    @property
    def mean(self) -> float:
        shape, gamma = self.shape, self.gamma
        if shape == 0.0:
            return (1.0 / gamma - 1.0) / math.log(1.0 / gamma)
        return shape * (1.0 - gamma) / (gamma * -math.expm1(shape * math.log(gamma)))

    def renyi(self, loss: Loss, order: float) -> float:
        """Theorem 2, of the best of so many trainings that cost `loss` each."""
        chosen = 0.0 if math.isinf(order) else math.log(self.mean) / (order - 1.0)
        return loss.renyi(order) + (1.0 + self.shape) * _others(loss, self.gamma) + chosen

    def epsilon(self, loss: Loss, delta: float = DELTA) -> float:
        return epsilon_of(lambda order: self.renyi(loss, order), delta)


@dataclass(frozen=True, slots=True)
class PoissonTrials:
    """Poisson(μ): how many trainings a private selection has. With none, what is told depends on
    nobody."""

    mean: float

    def __post_init__(self) -> None:
        if not 1.0 <= self.mean < 1e9:
            raise ConfigError(f"the mean number of trainings must be 1 or above, not {self.mean:g}")

    def renyi(self, loss: Loss, order: float) -> float:
        """Theorem 6, of the best of so many trainings that cost `loss` each."""
        if math.isinf(order):
            return math.inf
        delta = loss.delta(math.log1p(1.0 / (order - 1.0)))
        return loss.renyi(order) + self.mean * delta + math.log(self.mean) / (order - 1.0)

    def epsilon(self, loss: Loss, delta: float = DELTA) -> float:
        return epsilon_of(lambda order: self.renyi(loss, order), delta)


def selected(loss: Loss, mean: float, delta: float = DELTA) -> float:
    """The ε, at this δ, by which the best of so many trainings on average can be told, their number
    being geometric or Poisson, whichever is cheaper. Smaller shapes than the geometric one cost
    less and choose less: half of the time, η = −½ tries one setting alone."""
    if not loss.bounded:
        return math.inf
    if mean <= 1.0:
        return loss.epsilon(delta)
    geometric = TruncatedNegativeBinomial.of_mean(mean, 1.0)
    return min(geometric.epsilon(loss, delta), PoissonTrials(mean).epsilon(loss, delta))
