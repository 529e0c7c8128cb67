"""User-kNN and Item-kNN: cosine on binary rows, scores that sum the similarities to k neighbours.

Users:  score(u, i) = Σ sim(u, v) over the k users v nearest to u, where v has i.
Items:  score(u, i) = Σ sim(i, j) over the k items j nearest to i, where u has j.

In both the neighbourhood is fixed before one looks at who has what, and sums are not divided by
anything. A row or column without interactions has no neighbours: a user without positives gets
zeros, not the popular items. Both scores are a product of two sparse matrices, made one batch of
users at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.baselines.neighbors import nearest_rows
from sottovoce.data.interactions import Interactions
from sottovoce.errors import ConfigError
from sottovoce.rng import Streams


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class SparseScorer:
    """scores = left[users] · right, both sparse. A user's row does not depend on the batch."""

    left: Any
    """CSR array, a row per user."""
    right: Any
    """CSR array, a column per item."""

    @property
    def n_items(self) -> int:
        return int(self.right.shape[1])

    def scores(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        product: NDArray[np.float32] = (self.left[users] @ self.right).toarray().astype(np.float32)
        return product


@BASELINES.register("user-knn")
@dataclass(frozen=True, slots=True)
class UserKNN(Baseline):
    """Recommend what the most similar users have."""

    title = "User-kNN"
    listed_at = 30

    neighbors: int = 100
    """Users in a neighbourhood; k in the papers."""

    def __post_init__(self) -> None:
        _check(self.neighbors)

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> SparseScorer:
        matrix = _matrix(train)
        return SparseScorer(nearest_rows(matrix, self.neighbors, progress), matrix)


@BASELINES.register("item-knn")
@dataclass(frozen=True, slots=True)
class ItemKNN(Baseline):
    """Recommend what resembles the user's own items.

    There is no shrinkage: on sparse data, items that share their only user have cosine 1 and fill
    the neighbourhoods (a third of them on Foursquare Italy, k = 50).
    """

    title = "Item-kNN"
    listed_at = 40

    neighbors: int = 100
    """Items in a neighbourhood; k in the papers."""

    def __post_init__(self) -> None:
        _check(self.neighbors)

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> SparseScorer:
        matrix = _matrix(train)
        near = nearest_rows(matrix.T.tocsr(), self.neighbors, progress)
        return SparseScorer(matrix, near.T.tocsr())


def _check(neighbors: int) -> None:
    if neighbors < 1:
        raise ConfigError(f"neighbors must be at least 1, not {neighbors}")


def _matrix(train: Interactions) -> Any:
    ones = np.ones(train.n_interactions)
    return csr_array((ones, train.items, train.indptr), shape=(train.n_users, train.n_items))
