"""iALS: implicit alternating least squares, read as Rendle et al. (2021) read it.

With users' rows x_u and items' rows v_i it minimises

    Σ_mine w (1 − x_u·v_i)² + α Σ_all (x_u·v_i)² + Σ_u λ_u |x_u|² + Σ_i λ_i |v_i|²

where α weighs *all* pairs, the positives included. λ of a row grows with what the row has to
explain: λ = reg · (m / mean m)^ν, with m the positives of the row and α for each of all columns. In
training every w is 1. At home the user's vector is solved once more with her weights: all alike, or
the latest most (`memory`).

MF-NP is the same model with other names (1/α for its α, reg/α for its reg) and ν = 0.
"""

# Kernels carry no types (numba infers them).
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.closed_form import vectors as closed_form
from sottovoce.algorithms.fcf.system import INIT_SCALE, initial_items
from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.compiled import njit
from sottovoce.config import require_number, require_whole
from sottovoce.core.arrays import each, equal_spans, read_only
from sottovoce.core.interactions import Interactions, recency
from sottovoce.core.recommender import FactorScorer, default_threads
from sottovoce.rng import Streams

_BLOCK = 256
"""Entries of a row whose products are added up at a time."""


@BASELINES.register("ials")
@dataclass(frozen=True, slots=True)
class IALS(Baseline):
    """iALS: implicit alternating least squares.

    A user without items gets zeros.

    The rules for α and reg are within 5 % of the best P@10 of a grid on the validation parts of six
    data sets.

    Example:
        ```python
        fitted = sv.fit(sv.IALS(embedding_size=64), parts)
        print(fitted.evaluate(["NDCG"]))
        ```
    """

    title = "iALS"
    listed_at = 74

    embedding_size: int = 64
    """Length of a user's or item's vector."""
    unobserved: float = 0.0
    """Weight of every pair, where a positive has 1 more; α. 0: 50 times the density of the data."""
    reg: float = 0.0
    """Pull of an average row to 0. 0: 1.5 √(positives / √(users · items))."""
    frequency: float = 1.0
    """How the pull grows with what a row has to explain; ν. 0: it is the same for all."""
    epochs: int = 12
    """Passes over all users and items."""
    memory: float = 0.0
    """An item's weight at home falls by e with so many later ones; 0 weighs all alike."""

    def __post_init__(self) -> None:
        require_whole("embedding_size", self.embedding_size, 1, 1024)
        require_whole("epochs", self.epochs, 1, 1_000_000)
        require_number("unobserved", self.unobserved, 0.0, 1e6, above=False)
        require_number("reg", self.reg, 0.0, 1e6, above=False)
        require_number("frequency", self.frequency, 0.0, 2.0, above=False)
        require_number("memory", self.memory, 0.0, 1e9, above=False)

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> FactorScorer:
        items = initial_items(train.n_items, self.embedding_size, INIT_SCALE, rng)
        vectors = np.zeros((train.n_users, self.embedding_size), dtype=np.float32)
        if train.n_interactions:
            users_of = Interactions.from_pairs(
                train.items, train.users, n_users=train.n_items, n_items=train.n_users
            )
            ones = np.ones(train.n_interactions)
            alpha, reg = self.weights(train)
            for epoch in range(self.epochs):
                vectors = self._solve(items, train, ones, alpha, reg)
                items = self._solve(vectors, users_of, ones, alpha, reg)
                if progress is not None:
                    progress(epoch + 1, self.epochs)
            vectors = self._solve(items, train, recency(train, self.memory), alpha, reg)
        return FactorScorer(vectors, items, np.zeros(train.n_items, dtype=np.float32))

    def fold_in(
        self, fitted: FactorScorer, train: Interactions, histories: Interactions
    ) -> FactorScorer:
        alpha, reg = self.weights(train)
        usual = float((train.counts + alpha * train.n_items).mean())
        weights = recency(histories, self.memory)
        vectors = self._solve(fitted.item_factors, histories, weights, alpha, reg, usual)
        return replace(fitted, user_factors=vectors)

    def weights(self, train: Interactions) -> tuple[float, float]:
        """α and reg for these data, as set or by their rules."""
        cells = float(train.n_users) * train.n_items
        alpha = self.unobserved or 50.0 * train.n_interactions / cells
        return alpha, self.reg or 1.5 * (train.n_interactions / cells**0.5) ** 0.5

    def _solve(
        self,
        columns: NDArray[np.float32],
        table: Interactions,
        weights: NDArray[np.float64],
        alpha: float,
        reg: float,
        usual: float | None = None,
    ) -> NDArray[np.float32]:
        """`usual` is the mean work of a row, where these are not all."""
        work = table.counts + alpha * table.n_items
        pull = reg * (work / (work.mean() if usual is None else usual)) ** self.frequency
        threads = default_threads()
        return solve(columns, table, weights, alpha * closed_form.gram(columns), pull, threads)


def solve(
    columns: NDArray[np.float32],
    table: Interactions,
    weights: NDArray[np.float64],
    base: NDArray[np.float64],
    pull: NDArray[np.float64],
    threads: int = 1,
) -> NDArray[np.float32]:
    """The best vector of each row of `table`: (base + Σ w v v' + pull I)⁻¹ Σ w v over its entries,
    with v their rows in `columns` and w their weights. A row without entries has zeros. A row's
    result does not depend on `threads`."""
    out = np.zeros((table.n_users, columns.shape[1]), dtype=np.float32)
    columns, base = read_only(columns, np.float32), read_only(base, np.float64)
    pull, weights = read_only(pull, np.float64), read_only(weights, np.float32)
    world = (columns, base, pull, table.indptr, table.items, weights)

    def part(span: slice) -> None:
        _solve_rows(*world, span.start, out[span])

    each(part, equal_spans(table.n_users, max(1, min(8 * threads, table.n_users))), threads)
    return out


@njit(nogil=True, cache=True)
def _solve_rows(columns, base, pull, indptr, entries, weights, first, out):
    """Rows first, first + 1, ... of `solve`."""
    size = columns.shape[1]
    plain = np.empty((_BLOCK, size), dtype=np.float32)
    heavy = np.empty((_BLOCK, size), dtype=np.float32)
    for row in range(len(out)):
        start, stop = indptr[first + row], indptr[first + row + 1]
        if start == stop:
            continue
        left = base.copy()
        right = np.zeros(size)
        for f in range(size):
            left[f, f] += pull[first + row]
        for block in range(start, stop, _BLOCK):
            many = min(_BLOCK, stop - block)
            for k in range(many):
                i, w = entries[block + k], weights[block + k]
                for f in range(size):
                    plain[k, f] = columns[i, f]
                    heavy[k, f] = w * columns[i, f]
                    right[f] += heavy[k, f]
            left += heavy[:many].T @ plain[:many]
        solved = np.linalg.solve(left, right)
        for f in range(size):
            out[row, f] = solved[f]
