"""The points no other point beats in every respect."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.errors import UsageError


def pareto_front(points: ArrayLike, maximise: Sequence[bool] = (True, True)) -> NDArray[np.int64]:
    """Indices, ascending, of the points [n, d] that no point dominates.

    One point dominates another where it is at least as good in every column and better in one;
    `maximise` says per column whether more is better. Equal points stay or go together.
    """
    table = np.asarray(points, dtype=np.float64)
    if table.size == 0:
        return np.zeros(0, dtype=np.int64)
    if table.ndim != 2 or table.shape[1] != len(maximise):
        raise UsageError(f"points must have {len(maximise)} columns, one per direction")
    if np.isnan(table).any():
        raise UsageError("a point with a value that is not a number cannot be compared")
    gains = np.where(np.asarray(maximise, dtype=bool), table, -table)
    # Descending lexicographic order: only an earlier point can dominate a later one.
    order = np.lexsort(-gains.T[::-1])
    front: list[int] = []
    for index in order:
        kept = gains[front]
        beaten = (kept >= gains[index]).all(axis=1) & (kept > gains[index]).any(axis=1)
        if not beaten.any():
            front.append(int(index))
    return np.sort(np.asarray(front, dtype=np.int64))
