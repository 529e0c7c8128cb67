"""Scores in, ranked lists out: shared by the device at home and by the evaluation.

A `Scorer` gives a score to every item for some users. Ranking is by score, descending; ties go to
the smaller item number; items already seen are masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Scorer(Protocol):
    """Anything that can rank the catalogue for a user."""

    n_items: int

    def scores(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        """Scores of shape [len(users), n_items]. Higher is better; -inf is never recommended."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class FactorScorer:
    """score(u, i) = bias_i + user_u · item_i. Evaluation has a fast path for it."""

    user_factors: NDArray[np.float32]
    item_factors: NDArray[np.float32]
    item_bias: NDArray[np.float32]

    @property
    def n_items(self) -> int:
        return len(self.item_factors)

    def scores(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        product: NDArray[np.float32] = self.user_factors[users] @ self.item_factors.T
        return product + self.item_bias
