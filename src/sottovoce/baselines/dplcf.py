"""DPLCF: item neighbours from randomised histories (Gao et al. 2020).

Once, each device flips every bit of its row with p = 1/(1 + e^ε) and sends the row. The server
undoes the flips on average,

    n_i  = (ñ_i − Np) / (1 − 2p)
    n_ij = (ñ_ij − p(ñ_i + ñ_j) + Np²) / (1 − 2p)²

and publishes the cosines n_ij / √(n_i n_j) of each item with its k nearest; the device scores with
its true history, as Item-kNN does. One bit costs ε, a user's whole row n_items · ε.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.baselines.knn import SparseScorer, binary_matrix
from sottovoce.config import require_number, require_whole
from sottovoce.core.interactions import Interactions
from sottovoce.rng import Streams

BLOCK = 2048
"""Users, or items, worked on at a time. Results do not depend on it."""

_LEAST_COUNT = 1.0
"""Estimated users of an item below this count as this many: noise makes some negative."""


@BASELINES.register("dplcf")
@dataclass(frozen=True, slots=True)
class DPLCF(Baseline):
    """DPLCF: Item-kNN from histories that users randomise bit by bit.

    Example:
        ```python
        fitted = sv.fit(sv.DPLCF(epsilon=2.5), parts)
        print(fitted.evaluate(["NDCG"]))
        ```
    """

    title = "DPLCF"
    listed_at = 80

    epsilon: float = 2.5
    """Cost of one bit; ε′ in the papers. A user's row costs n_items times as much."""
    neighbors: int = 100
    """Items in a neighbourhood; k in the papers."""

    def __post_init__(self) -> None:
        require_number("epsilon", self.epsilon, 0.0, 700.0)
        require_whole("neighbors", self.neighbors, 1)

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> SparseScorer:
        history = binary_matrix(train)
        steps = -(-train.n_users // BLOCK) + -(-train.n_items // BLOCK)
        done = 0

        def step() -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, steps)

        both = self._collect(history, rng, step)
        near = self._nearest(both, train.n_users, step)
        return SparseScorer(history, near.T.tocsr())

    def fold_in(
        self, fitted: SparseScorer, train: Interactions, histories: Interactions
    ) -> SparseScorer:
        return SparseScorer(binary_matrix(histories), fitted.right)

    def flip(self) -> float:
        """The probability of a flip, in steps of 2**-32. Rounded up: never less private."""
        return ceil(2.0**32 / (1.0 + exp(self.epsilon))) / 2.0**32 if self.epsilon < 40 else 0.0

    def randomised(
        self, rows: NDArray[np.bool_], users: NDArray[np.int64], rng: Streams
    ) -> NDArray[np.bool_]:
        """What these users send. A user's flips depend on the stream and the user's number."""
        n_items = rows.shape[1]
        words = rng.child("flip").words(users, -(-n_items // 2)).view(np.uint32)[:, :n_items]
        return rows ^ (words < self.flip() * 2.0**32)

    def estimated(
        self, both: NDArray[np.float64], one: NDArray[np.float64], mine: NDArray[np.float64], n: int
    ) -> NDArray[np.float64]:
        """n_ij without bias from how often the randomised bits of i and j were set together.

        `both` holds ñ_ij, `mine` the ñ_i of its rows, `one` the ñ_j of its columns.
        """
        p = self.flip()
        estimate: NDArray[np.float64] = both - p * (mine[:, None] + one) + n * p**2
        return estimate / (1.0 - 2.0 * p) ** 2

    def _collect(self, history: Any, rng: Streams, step: Any) -> NDArray[np.float32]:
        """ñ_ij; on the diagonal ñ_i. Exact below 2**24 users, as float32 holds integers."""
        n_users, n_items = history.shape
        both = np.zeros((n_items, n_items), dtype=np.float32)
        for first in range(0, n_users, BLOCK):
            users = np.arange(first, min(first + BLOCK, n_users), dtype=np.int64)
            sent = self.randomised(history[users].toarray() > 0, users, rng).astype(np.float32)
            both += sent.T @ sent
            step()
        return both

    def _nearest(self, both: NDArray[np.float32], n: int, step: Any) -> Any:
        """The cosines of each item with its nearest others, a row per item.

        Ordered as Item-kNN orders (neighbors.py): by n_ij² / n_j, ties by item number.
        """
        n_items, p = len(both), self.flip()
        one = both.diagonal().astype(np.float64)
        counts = (one - n * p) / (1.0 - 2.0 * p)
        # Without noise an item nobody has keeps its 0: it has no neighbours, and is none.
        floor = np.maximum(counts, _LEAST_COUNT)
        rows, columns, values = [], [], []
        for first in range(0, n_items, BLOCK):
            part = slice(first, min(first + BLOCK, n_items))
            here = np.arange(part.start, part.stop)
            common = self.estimated(both[part].astype(np.float64), one, one[part], n)
            near = np.maximum(common, 0.0) ** 2 / floor
            near[here - first, here] = 0.0
            best = np.argsort(-near, axis=1, kind="stable")[:, : self.neighbors]
            value = np.sqrt(np.take_along_axis(near, best, axis=1) / floor[part, None])
            kept = value > 0
            rows.append(np.repeat(here, kept.sum(axis=1)))
            columns.append(best[kept])
            values.append(np.minimum(value[kept], 1.0))
            step()
        if not n_items:
            return csr_array((0, 0))
        pairs = (np.concatenate(rows), np.concatenate(columns))
        return csr_array((np.concatenate(values), pairs), shape=(n_items, n_items))
