"""Noise on running sums: what is added to each batch, where all sums so far are what counts.

A user is in one of B batches, and after each one the sum over all batches so far is wanted.

**Independent**: every batch gets noise of its own. Of b batches the running sum has √b times that.

**Factorised**: the noise of batch t is S · Σ_k (c_k − c_{k−1}) z_{t−k}, with z_t drawn anew in each
batch, c_k = binom(2k, k) / 4^k and S² = Σ c_k² over k < B. The running sum of b batches then has
S · Σ_{k<b} c_k z_{b−1−k}: later batches take back most of what earlier ones added. After 12 batches
that is 1.85 times the noise of one, where independent noise has 3.46; after the first it is 1.36.

Why it costs no more. With C the lower triangular Toeplitz matrix of c, C² sums up; batches x get
S C⁻¹ z, which tells what C x + S z tells, and her part of C x is a column of C, of norm S at most.
That holds where x depends on what was told before (Denisov et al. 2022), and where a number stands
in another place from batch to batch, goes back to fewer draws than it could, or leaves and comes
again, as long as no two numbers of a batch share a draw: what later batches tell of hers at lag k
is a sum of her own vector in other orders, with weights that are none below 0 and c_k in all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=64)
def roots(batches: int) -> tuple[float, ...]:
    """c_k of so many batches."""
    found = [1.0]
    for k in range(1, batches):
        found.append(found[-1] * (2 * k - 1) / (2 * k))
    return tuple(found)


def weights(batches: int) -> NDArray[np.float64]:
    """c_k − c_{k−1}: what a batch has of the draws of earlier ones, its own first."""
    return np.diff(np.array(roots(batches)), prepend=0.0)


def draw_size(batches: int) -> float:
    """S: the deviation of a draw, where 1 is that of a single batch."""
    return math.sqrt(math.fsum(c * c for c in roots(batches)))


def deviation(done: int, batches: int, factorised: bool) -> float:
    """Return the deviation of the noise on the sum of `done` batches, in units of one batch."""
    if not factorised:
        return math.sqrt(done)
    return draw_size(batches) * math.sqrt(math.fsum(c * c for c in roots(batches)[:done]))


@dataclass(frozen=True, slots=True)
class Draws:
    """From which draws the factorised noise of a round is put together, span by span. All of it is
    public."""

    rounds: tuple[int, ...]
    """The rounds whose draws it uses again, this round's first."""
    places: tuple[NDArray[np.int64], ...]
    """Where each number stands among the draws of a round, no two in one place."""
    lags: tuple[NDArray[np.int64], ...]
    """To how many earlier rounds each number goes back."""
