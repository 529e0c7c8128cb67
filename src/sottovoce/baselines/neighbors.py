"""The k nearest rows of a binary matrix by cosine, without ever forming all pairs.

For rows r and s with c columns in common, cosine² = c² / (n_r n_s). Within row r the order is that
of c² / n_s, one correctly rounded division of integers: rows that are equally near compare equal
to the last bit, and the tie goes to the smaller number on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array

from sottovoce.baselines.base import Progress

BLOCK = 1024
"""Rows between two calls of `progress`."""


def nearest_rows(matrix: Any, k: int, progress: Progress | None = None) -> Any:
    """The cosines of each row of a binary CSR array with its k nearest other rows, as a CSR array.

    Row r has at most k entries; rows that share no column with r are never its neighbours. Takes
    O(n) working memory besides the result, n the number of rows.
    """
    n = matrix.shape[0]
    k = max(1, min(k, n - 1))
    columns = matrix.T.tocsr()
    ids = np.empty((n, k), dtype=np.int32)
    cosines = np.empty((n, k), dtype=np.float64)
    found = np.zeros(n, dtype=np.int64)
    for first in range(0, n, BLOCK):
        last = min(first + BLOCK, n)
        _nearest(
            first,
            last,
            matrix.indptr.astype(np.int64),
            matrix.indices.astype(np.int32),
            columns.indptr.astype(np.int64),
            columns.indices.astype(np.int32),
            ids,
            cosines,
            found,
        )
        if progress is not None:
            progress(last, n)
    return _compressed(ids, cosines, found)


def _compressed(
    ids: NDArray[np.int32], cosines: NDArray[np.float64], found: NDArray[np.int64]
) -> Any:
    n, k = ids.shape
    kept = np.arange(k) < found[:, None]
    indptr = np.concatenate(([0], np.cumsum(found)))
    near = csr_array((cosines[kept], ids[kept], indptr), shape=(n, n))
    near.sort_indices()
    return near


@njit(nogil=True, cache=True)
def _nearest(first, last, row_ptr, row_columns, column_ptr, column_rows, ids, cosines, found):  # type: ignore[no-untyped-def]
    n, k = len(row_ptr) - 1, ids.shape[1]
    common = np.zeros(n, dtype=np.int32)
    touched = np.empty(n, dtype=np.int32)
    best = np.empty(k, dtype=np.float64)
    for r in range(first, last):
        n_touched = 0
        for p in range(row_ptr[r], row_ptr[r + 1]):
            column = row_columns[p]
            for q in range(column_ptr[column], column_ptr[column + 1]):
                s = column_rows[q]
                if common[s] == 0:
                    touched[n_touched] = s
                    n_touched += 1
                common[s] += 1
        size = 0
        for t in range(n_touched):
            s = touched[t]
            c = float(common[s])
            common[s] = 0
            if s == r:
                continue
            near = c * c / (row_ptr[s + 1] - row_ptr[s])
            if size == k:
                if near < best[k - 1] or (near == best[k - 1] and s > ids[r, k - 1]):
                    continue
                size -= 1
            at = size
            while at > 0 and (near > best[at - 1] or (near == best[at - 1] and s < ids[r, at - 1])):
                best[at] = best[at - 1]
                ids[r, at] = ids[r, at - 1]
                at -= 1
            best[at] = near
            ids[r, at] = s
            size += 1
        found[r] = size
        for at in range(size):
            cosines[r, at] = np.sqrt(best[at] / (row_ptr[r + 1] - row_ptr[r]))
