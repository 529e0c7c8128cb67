"""User-kNN and Item-kNN: cosine on binary rows, scores that sum the similarities to k neighbours.

Users:  score(u, i) = Σ sim(u, v) over the k users v nearest to u, where v has i.
Items:  score(u, i) = Σ sim(i, j) over the k items j nearest to i, where u has j; with `memory`,
        each term times the weight of u's j (core/interactions.py).

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
from scipy.sparse import csr_array, issparse

from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.compiled import njit
from sottovoce.config import require_number
from sottovoce.core.interactions import Interactions, recency
from sottovoce.errors import ConfigError
from sottovoce.rng import Streams

BLOCK = 1024
"""Rows worked on between two calls of `progress`."""


def nearest_rows(matrix: Any, k: int, progress: Progress | None = None) -> Any:
    """The cosines of each row of a binary CSR array with its k nearest other rows, as a CSR array.

    Row r has at most k entries; rows that share no column with r are never its neighbours. Needs
    memory for the result and one block of rows. For rows r and s with c columns in common, cosine²
    = c² / (n_r n_s). Within row r the order is that of c² / n_s, one correctly rounded division of
    integers: rows that are equally near compare equal to the last bit, and the tie goes to the
    smaller number on every machine.
    """
    n = matrix.shape[0]
    k = max(1, min(k, n - 1))
    columns = matrix.T.tocsr()
    pointers = (matrix.indptr.astype(np.int64), columns.indptr.astype(np.int64))
    entries = (matrix.indices.astype(np.int32), columns.indices.astype(np.int32))
    sizes, ids, cosines = [np.zeros(1, dtype=np.int64)], [], []
    for first in range(0, n, BLOCK):
        last = min(first + BLOCK, n)
        near = np.empty((last - first, k), dtype=np.int32)
        cosine = np.empty((last - first, k), dtype=np.float64)
        found = np.empty(last - first, dtype=np.int64)
        _nearest(first, *pointers, *entries, near, cosine, found)
        kept = np.arange(k) < found[:, None]
        sizes.append(found)
        ids.append(near[kept])
        cosines.append(cosine[kept])
        if progress is not None:
            progress(last, n)
    if not n:
        return csr_array((0, 0))
    indptr = np.cumsum(np.concatenate(sizes))
    result = csr_array((np.concatenate(cosines), np.concatenate(ids), indptr), shape=(n, n))
    result.sort_indices()
    return result


@njit(nogil=True, cache=True)
def _nearest(first, row_ptr, column_ptr, row_columns, column_rows, ids, cosines, found):  # type: ignore[no-untyped-def]
    """Rows first, first + 1, ... into `ids` and `cosines`, nearest first; `found` counts them."""
    n, k = len(row_ptr) - 1, ids.shape[1]
    common = np.zeros(n, dtype=np.int32)
    touched = np.empty(n, dtype=np.int32)
    best = np.empty(k, dtype=np.float64)
    for row in range(len(found)):
        r = first + row
        n_touched = 0
        for p in range(row_ptr[r], row_ptr[r + 1]):
            column = row_columns[p]
            for q in range(column_ptr[column], column_ptr[column + 1]):
                s = column_rows[q]
                if common[s] == 0:
                    touched[n_touched] = s
                    n_touched += 1
                common[s] += 1
        nearest = ids[row]
        size = 0
        for t in range(n_touched):
            s = touched[t]
            c = float(common[s])
            common[s] = 0
            if s == r:
                continue
            near = c * c / (row_ptr[s + 1] - row_ptr[s])
            if size == k:
                if near < best[k - 1] or (near == best[k - 1] and s > nearest[k - 1]):
                    continue
                size -= 1
            at = size
            while at > 0 and (
                near > best[at - 1] or (near == best[at - 1] and s < nearest[at - 1])
            ):
                best[at] = best[at - 1]
                nearest[at] = nearest[at - 1]
                at -= 1
            best[at] = near
            nearest[at] = s
            size += 1
        found[row] = size
        for at in range(size):
            cosines[row, at] = np.sqrt(best[at] / (row_ptr[r + 1] - row_ptr[r]))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class SparseScorer:
    """scores = left[users] · right. A user's row does not depend on the batch."""

    left: Any
    """CSR array, a row per user."""
    right: Any
    """CSR array or plain table, a column per item."""

    @property
    def n_items(self) -> int:
        return int(self.right.shape[1])

    def scores(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        product = self.left[users] @ self.right
        whole = product.toarray() if issparse(product) else product
        scores: NDArray[np.float32] = whole.astype(np.float32, copy=False)
        return scores


@dataclass(frozen=True, slots=True)
class NearestNeighbours(Baseline):
    neighbors: int = 100
    """Users or items in a neighbourhood; k in the papers."""

    def __post_init__(self) -> None:
        if self.neighbors < 1:
            raise ConfigError(f"neighbors must be at least 1, not {self.neighbors}")


@BASELINES.register("user-knn")
@dataclass(frozen=True, slots=True)
class UserKNN(NearestNeighbours):
    """Recommend what the most similar users have.

    Example:
        ```python
        fitted = sv.fit(sv.UserKNN(neighbors=50), parts)
        print(fitted.evaluate(["NDCG"]))
        ```
    """

    title = "User-kNN"
    listed_at = 30

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> SparseScorer:
        matrix = binary_matrix(train)
        return SparseScorer(nearest_rows(matrix, self.neighbors, progress), matrix)

    def fold_in(
        self, fitted: SparseScorer, train: Interactions, histories: Interactions
    ) -> SparseScorer:
        return SparseScorer(_nearest_of(histories, train, self.neighbors), fitted.right)


@BASELINES.register("item-knn")
@dataclass(frozen=True, slots=True)
class ItemKNN(NearestNeighbours):
    """Recommend what resembles the user's own items.

    There is no shrinkage: on sparse data, items that share their only user have cosine 1 and fill
    the neighbourhoods (a third of them on Foursquare Italy, k = 50).

    Example:
        ```python
        fitted = sv.fit(sv.ItemKNN(neighbors=50), parts)
        print(fitted.evaluate(["NDCG"]))
        ```
    """

    title = "Item-kNN"
    listed_at = 40

    memory: float = 0.0
    """An item's weight at home falls by e with so many later ones; 0 weighs all alike."""

    def __post_init__(self) -> None:
        NearestNeighbours.__post_init__(self)
        require_number("memory", self.memory, 0.0, 1e9, above=False)

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> SparseScorer:
        matrix = binary_matrix(train)
        near = nearest_rows(matrix.T.tocsr(), self.neighbors, progress)
        return SparseScorer(history_matrix(train, self.memory), near.T.tocsr())

    def fold_in(
        self, fitted: SparseScorer, train: Interactions, histories: Interactions
    ) -> SparseScorer:
        return SparseScorer(history_matrix(histories, self.memory), fitted.right)


def _nearest_of(histories: Interactions, train: Interactions, k: int) -> Any:
    """`nearest_rows` of people beside those of the training part, with nobody but the latter as
    neighbours."""
    mine, theirs = binary_matrix(histories), binary_matrix(train)
    common = (mine @ theirs.T).toarray()
    near = common * common / np.maximum(train.counts, 1)
    # Stable: of equally near users the first ones.
    nearest = np.argsort(-near, axis=1, kind="stable")[:, : max(1, min(k, train.n_users - 1))]
    rows = np.arange(histories.n_users)[:, None]
    cosine = np.sqrt(near[rows, nearest] / np.maximum(histories.counts, 1)[:, None])
    place = (np.broadcast_to(rows, nearest.shape).ravel(), nearest.ravel())
    found = csr_array((cosine.ravel(), place), shape=common.shape)
    found.eliminate_zeros()
    return found


def binary_matrix(train: Interactions) -> Any:
    """Users by items, CSR."""
    return history_matrix(train, 0.0)


def history_matrix(train: Interactions, memory: float) -> Any:
    """Users by items, CSR: what each item weighs at home."""
    weights = recency(train, memory)
    return csr_array((weights, train.items, train.indptr), shape=(train.n_users, train.n_items))
