"""SLIM: every item from a few others by a sparse regression (Ning & Karypis 2011).

Column w_j of W, with A the users by items, minimises

    ½ |a_j − A w_j|² + reg/2 |w_j|² + reg_l1 |w_j|₁   with w_j ≥ 0 and w_jj = 0,

the elastic net by coordinate descent; score(u, j) = Σ_i v_ui w_ij, where v_ui weighs u's items at
home: all alike, or the latest most (`memory`). Weights and A are not negative, so that an item
which shares at most `reg_l1` users with j has weight 0 in the solution: the others alone are looked
at, which is exact. With `neighbors`, only those of them that share the most users (fsSLIM in the
paper).

It needs memory for the interactions and for the weights that are not 0, and no table of all pairs.
"""

# Kernels carry no types (numba infers them).
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.baselines.knn import SparseScorer, history_matrix
from sottovoce.compiled import njit
from sottovoce.config import require_number, require_whole
from sottovoce.core.arrays import each, equal_spans
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import default_threads
from sottovoce.rng import Streams

_TOLERANCE, _SWEEPS = 1e-4, 200
"""The largest change of a weight in the last sweep over a column, and the most sweeps."""


@BASELINES.register("slim")
@dataclass(frozen=True, slots=True)
class SLIM(Baseline):
    """Every item from a few others, with weights that are not negative.

    A user without items gets zeros.

    Example:
        ```python
        fitted = sv.fit(sv.SLIM(), parts)
        print(fitted.evaluate(["NDCG"]))
        ```
    """

    title = "SLIM"
    listed_at = 73

    reg: float = 0.0
    """Pull of all weights to 0; β in the paper. 0: by `rule`."""
    reg_l1: float = 1.0
    """What a weight must gain to be there at all; λ in the paper."""
    neighbors: int = 0
    """Items that may have a weight in an item's column; 0: all."""
    memory: float = 0.0
    """An item's weight at home falls by e with so many later ones; 0 weighs all alike."""

    def __post_init__(self) -> None:
        require_number("reg", self.reg, 0.0, 1e9, above=False)
        require_number("reg_l1", self.reg_l1, 0.0, 1e9, above=False)
        require_whole("neighbors", self.neighbors, 0, 1 << 31)
        require_number("memory", self.memory, 0.0, 1e9, above=False)

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> SparseScorer:
        history = history_matrix(train, self.memory).astype(np.float32)
        return SparseScorer(history, self.weights(train, progress))

    def fold_in(
        self, fitted: SparseScorer, train: Interactions, histories: Interactions
    ) -> SparseScorer:
        return SparseScorer(history_matrix(histories, self.memory).astype(np.float32), fitted.right)

    def weights(self, train: Interactions, progress: Progress | None = None) -> Any:
        """W as a CSR array, [n_items, n_items]."""
        n, reg = train.n_items, self.reg or rule(train)
        threads = default_threads()
        users_of = Interactions.from_pairs(
            train.items, train.users, n_users=n, n_items=train.n_users
        )
        world = (users_of.indptr, users_of.items, train.indptr, train.items)
        rules = (reg, self.reg_l1, self.neighbors or n, _TOLERANCE, _SWEEPS)
        sizes = np.zeros(n, dtype=np.int64)

        def part(span: slice) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
            near, found = _columns(*world, *rules, span.start, sizes[span])
            return near, found

        steps = equal_spans(n, max(1, min(64, n)))
        columns = []
        for at in range(0, len(steps), threads):
            columns += each(part, steps[at : at + threads], threads)
            if progress is not None:
                progress(min(at + threads, len(steps)), len(steps))
        near, values = (np.concatenate(both) for both in zip(*columns, strict=True))
        starts = np.concatenate(([0], np.cumsum(sizes)))
        return csr_array((values, near, starts), shape=(n, n)).T.tocsr()


def rule(train: Interactions) -> float:
    """Three times as many as an item has users on average. Accuracy depends little on it."""
    return max(1.0, 3.0 * train.n_interactions / max(1, train.n_items))


@njit(nogil=True, cache=True)
def _columns(
    item_ptr, item_users, user_ptr, user_items, reg, reg_l1, most, tolerance, sweeps, first, sizes
):  # fmt: skip
    """Items first, first + 1, ...: the weights that are not 0 and whose they are, one item after
    another, ascending within an item; `sizes` has how many each has."""
    n_items, n_users = len(item_ptr) - 1, len(user_ptr) - 1
    left = np.zeros(n_users)  # a_j − A w_j
    weight = np.zeros(n_items)
    shared = np.zeros(n_items, dtype=np.int64)
    touched = np.empty(n_items, dtype=np.int32)
    near, found = np.empty(1024, dtype=np.int32), np.empty(1024, dtype=np.float32)
    used = 0
    for row in range(len(sizes)):
        j = first + row
        n_touched = 0
        for p in range(item_ptr[j], item_ptr[j + 1]):
            u = item_users[p]
            left[u] = 1.0
            for q in range(user_ptr[u], user_ptr[u + 1]):
                i = user_items[q]
                if shared[i] == 0:
                    touched[n_touched] = i
                    n_touched += 1
                shared[i] += 1
        shared[j] = 0
        mine = np.sort(touched[:n_touched])
        mine = mine[shared[mine] > reg_l1]
        if len(mine) > most:
            # Stable: of items that share as many users the first ones.
            order = np.argsort(-shared[mine], kind="mergesort")[:most]
            mine = np.sort(mine[order])
        shared[touched[:n_touched]] = 0
        active = mine
        whole = True
        for _ in range(sweeps):
            largest = 0.0
            for a in range(len(active)):
                i = active[a]
                start, stop = item_ptr[i], item_ptr[i + 1]
                old, many = weight[i], stop - start
                gain = old * many - reg_l1
                for p in range(start, stop):
                    gain += left[item_users[p]]
                new = gain / (many + reg) if gain > 0.0 else 0.0
                change = new - old
                if change != 0.0:
                    weight[i] = new
                    for p in range(start, stop):
                        left[item_users[p]] -= change
                    largest = max(largest, abs(change))
            if largest <= tolerance:
                if whole:
                    break
                active, whole = mine, True
            else:  # those that have a weight, until they hold still; then all once more
                active, whole = mine[weight[mine] > 0.0], False
        size = np.count_nonzero(weight[mine])
        if used + size > len(near):
            room = 2 * len(near) + size
            wider, longer = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.float32)
            wider[:used], longer[:used] = near[:used], found[:used]
            near, found = wider, longer
        for a in range(len(mine)):
            i = mine[a]
            if weight[i] > 0.0:
                near[used] = i
                found[used] = weight[i]
                used += 1
            weight[i] = 0.0
            for p in range(item_ptr[i], item_ptr[i + 1]):
                left[item_users[p]] = 0.0
        for p in range(item_ptr[j], item_ptr[j + 1]):
            left[item_users[p]] = 0.0
        sizes[row] = size
    return near[:used].copy(), found[:used].copy()
