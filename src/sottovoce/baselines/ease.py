"""EASE: every item from all others by one ridge regression (Steck 2019).

B minimises |X − XB|² + reg |B|² with zeros on its diagonal, X being users by items. In closed form,
with P = (X'X + reg I)⁻¹,

    B_ij = −P_ij / P_jj,   score(u, j) = Σ_i v_ui B_ij

where v_ui weighs u's items at home: all alike, or the latest most (`memory`).

A catalogue of more than `most_items` would need a table of n² numbers. There each item is regressed
on its `neighbors` most related items alone, of those that share a user with it: exactly EASE where
these are all the others. It needs memory for n · `neighbors` numbers and for `MOST_PAIRS` counts;
where there are more pairs, those that the fewest users have count as 0.
"""

# Kernels carry no types (numba infers them).
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack
from scipy.sparse import csr_array

from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.baselines.knn import SparseScorer, history_matrix
from sottovoce.compiled import njit
from sottovoce.config import require_number, require_whole
from sottovoce.core.arrays import each, equal_spans
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import default_threads
from sottovoce.errors import ConfigError, Diverged
from sottovoce.rng import Streams

MOST_PAIRS = 1 << 27
"""Pairs of items whose counts are kept: 1 GiB."""
_TILE = 512
"""Rows and columns mirrored at a time."""
_TOO_SMALL = "the items' regression has no solution in these numbers; set reg higher"
_CAREFUL = 1e4
"""A condition number up to which single precision leaves three digits at least."""


@BASELINES.register("ease")
@dataclass(frozen=True, slots=True)
class EASE(Baseline):
    """EASE: every item from all others by one ridge regression.

    A user without items gets zeros.

    Example:
        ```python
        fitted = sv.fit(sv.EASE(reg=200.0), parts)
        print(fitted.evaluate(["NDCG"]))
        ```
    """

    title = "EASE"
    listed_at = 72

    reg: float = 0.0
    """Pull of all weights to 0; λ in the paper. 0: by `rule`."""
    memory: float = 0.0
    """An item's weight at home falls by e with so many later ones; 0 weighs all alike."""
    most_items: int = 20_000
    """Larger catalogues are solved by neighbourhoods."""
    neighbors: int = 100
    """Items in a neighbourhood."""

    def __post_init__(self) -> None:
        require_number("reg", self.reg, 0.0, 1e9, above=False)
        require_number("memory", self.memory, 0.0, 1e9, above=False)
        # LAPACK counts in 32 bits.
        require_whole("most_items", self.most_items, 0, 46_340)
        require_whole("neighbors", self.neighbors, 1, 46_340)

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> SparseScorer:
        history = history_matrix(train, self.memory).astype(np.float32)
        reg = self.reg or rule(train)
        threads = default_threads()
        if train.n_items <= self.most_items:
            return SparseScorer(history, whole(train, reg, threads))
        return SparseScorer(history, by_neighbours(train, reg, self.neighbors, threads, progress))

    def fold_in(
        self, fitted: SparseScorer, train: Interactions, histories: Interactions
    ) -> SparseScorer:
        return SparseScorer(history_matrix(histories, self.memory).astype(np.float32), fitted.right)


def rule(train: Interactions) -> float:
    """A pull that is within 4 % of the best P@10 on the validation parts of seven data sets.

    With m users per item on average it is 25 m where there are times, and later items are to be
    found: popularity changes, and all that is particular is worth less. Else it is 15 √m."""
    m = train.n_interactions / max(1, train.n_items)
    return max(1.0, 25.0 * m if train.timestamps is not None else 15.0 * m**0.5)


# --- the whole table -----------------------------------------------------------------------------


def whole(train: Interactions, reg: float, threads: int = 1) -> NDArray[np.float32]:
    """B, [n_items, n_items]."""
    largest = float(np.bincount(train.items, train.counts[train.users]).max(initial=0.0))
    # No eigenvalue of X'X is larger than its largest row sum.
    exact = np.float32 if largest <= _CAREFUL * reg and largest < 2**24 else np.float64
    table = inverse_gram(gram(train, exact, threads), reg)
    table /= -table.diagonal().copy()
    np.fill_diagonal(table, 0.0)
    return table.astype(np.float32, copy=False)


def gram(
    train: Interactions, dtype: type[np.floating[Any]] = np.float64, threads: int = 1
) -> NDArray[Any]:
    """The lower half of X'X: how many users have both items. Zeros above the diagonal."""
    table = np.zeros((train.n_items, train.n_items), dtype=dtype)
    parts = _equal_work(train.n_items, threads)
    each(
        lambda part: _count(train.indptr, train.items, part.start, part.stop, table), parts, threads
    )
    return table


def _equal_work(n_items: int, threads: int) -> list[slice]:
    """Rows of a lower half, in parts of about equal size."""
    edges = (n_items * np.sqrt(np.linspace(0.0, 1.0, 4 * threads + 1))).astype(int)
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]


@njit(nogil=True, cache=True)
def _count(indptr, items, first, last, table):
    """Rows first, ..., last - 1 of `gram`."""
    for u in range(len(indptr) - 1):
        start = indptr[u]
        for e in range(start, indptr[u + 1]):
            i = items[e]
            if i < first:
                continue
            if i >= last:
                break
            row = table[i]
            for f in range(start, e + 1):
                row[items[f]] += 1


def inverse_gram(gram: NDArray[Any], reg: float) -> NDArray[Any]:
    """(G + reg I)⁻¹, both halves, in the place of G, of which the lower half is read. Two calls of
    LAPACK, in single or double precision as G is."""
    n = len(gram)
    if gram.shape != (n, n) or gram.dtype not in (np.float32, np.float64):
        raise ConfigError("a Gram matrix is a square table of floating-point numbers")
    if not n:
        return gram
    if not gram.flags.c_contiguous or not gram.flags.writeable:
        raise ConfigError("a Gram matrix is inverted in its place, row by row in memory")
    gram.flat[:: n + 1] += reg
    single = gram.dtype == np.float32
    factor, invert = (lapack.spotrf, lapack.spotri) if single else (lapack.dpotrf, lapack.dpotri)
    # What LAPACK takes for the upper half of columns is the lower half of rows.
    root, failed = factor(gram.T, lower=0, clean=0, overwrite_a=1)
    if not failed:
        root, failed = invert(root, lower=0, overwrite_c=1)
    if failed:
        raise Diverged(_TOO_SMALL)
    inverse: NDArray[Any] = root.T
    for a in range(0, n, _TILE):
        corner = inverse[a : a + _TILE, a : a + _TILE]
        corner[:] = np.tril(corner) + np.tril(corner, -1).T
        for b in range(a + _TILE, n, _TILE):
            inverse[a : a + _TILE, b : b + _TILE] = inverse[b : b + _TILE, a : a + _TILE].T
    return inverse


# --- by neighbourhoods ---------------------------------------------------------------------------


def by_neighbours(
    train: Interactions,
    reg: float,
    neighbors: int,
    threads: int = 1,
    progress: Progress | None = None,
) -> Any:
    """B as a CSR array, in which a column has at most `neighbors` entries.

    The items nearest to j are those with the largest n_ij / n_i^⅓: between counts, which favour the
    popular, and cosines, which favour whoever shares his only user."""
    n, k = train.n_items, max(1, min(neighbors, train.n_items - 1))
    indptr, ids, counts = pairs(train, MOST_PAIRS)
    popular = train.item_counts.astype(np.float64)
    near, weights = np.zeros((n, k), dtype=np.int32), np.zeros((n, k), dtype=np.float32)
    found = np.zeros(n, dtype=np.int64)
    world = (indptr, ids, counts, popular, reg)

    def part(span: slice) -> None:
        _regress(*world, span.start, near[span], weights[span], found[span])

    steps = equal_spans(n, max(1, min(64, n)))
    for at in range(0, len(steps), threads):
        try:
            each(part, steps[at : at + threads], threads)
        except np.linalg.LinAlgError:
            raise Diverged(_TOO_SMALL) from None
        if progress is not None:
            progress(min(at + threads, len(steps)), len(steps))
    kept = np.arange(k) < found[:, None]
    rows = np.concatenate(([0], np.cumsum(found)))
    return csr_array((weights[kept], near[kept], rows), shape=(n, n)).T.tocsr()


def pairs(
    train: Interactions, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """How many users have both of two different items, row by row as a CSR array has it. Where
    there are more than `most` entries, the smallest counts are left out, all that are equal."""
    columns = Interactions.from_pairs(
        train.items, train.users, n_users=train.n_items, n_items=train.n_users
    )
    world = (columns.indptr, columns.items, train.indptr, train.items)
    sizes, none = np.zeros(train.n_items, dtype=np.int64), np.zeros(0, dtype=np.int32)
    many = np.zeros(int(train.item_counts.max(initial=0)) + 1, dtype=np.int64)
    _pairs(*world, 1, sizes, many, none, none)
    above = np.cumsum(many[::-1])[::-1]
    least = max(1, int(np.argmax(np.append(above, 0) <= most)))
    if least > 1:
        _pairs(*world, least, sizes, many, none, none)
    indptr = np.concatenate(([0], np.cumsum(sizes)))
    ids = np.empty(indptr[-1], dtype=np.int32)
    counts = np.empty(indptr[-1], dtype=np.int32)
    _pairs(*world, least, sizes, many, ids, counts)
    return indptr, ids, counts


@njit(nogil=True, cache=True)
def _pairs(item_ptr, item_users, user_ptr, user_items, least, sizes, many, ids, counts):
    """Entries of at least `least` users: `sizes` per row, `many` by count, and, where there is room
    for them, `ids`, ascending within a row, and `counts`."""
    n = len(item_ptr) - 1
    common = np.zeros(n, dtype=np.int32)
    touched = np.empty(n, dtype=np.int32)
    at = 0
    many[:] = 0
    for i in range(n):
        n_touched = 0
        for p in range(item_ptr[i], item_ptr[i + 1]):
            u = item_users[p]
            for q in range(user_ptr[u], user_ptr[u + 1]):
                j = user_items[q]
                if common[j] == 0 and j != i:
                    touched[n_touched] = j
                    n_touched += 1
                common[j] += 1
        common[i] = 0
        if len(ids):
            touched[:n_touched].sort()
        size = 0
        for t in range(n_touched):
            j = touched[t]
            c = common[j]
            common[j] = 0
            many[c] += 1
            if c >= least:
                size += 1
                if len(ids):
                    ids[at] = j
                    counts[at] = c
                    at += 1
        sizes[i] = size


@njit(nogil=True, cache=True)
def _regress(indptr, ids, counts, popular, reg, first, near, weights, found):
    """Items first, first + 1, ...: their neighbours, ascending, and the weights of these."""
    k = near.shape[1]
    where = np.full(len(indptr) - 1, -1, dtype=np.int32)
    for row in range(len(found)):
        start, stop = indptr[first + row], indptr[first + row + 1]
        related = np.empty(stop - start)
        for e in range(stop - start):
            related[e] = -counts[start + e] / popular[ids[start + e]] ** (1.0 / 3.0)
        # Stable: of equally near items the first ones.
        nearest = np.argsort(related, kind="mergesort")[:k]
        size = len(nearest)
        found[row] = size
        if size == 0:
            continue
        mine = ids[start:stop][np.sort(nearest)]
        right = counts[start:stop][np.sort(nearest)].astype(np.float64)
        for a in range(size):
            where[mine[a]] = a
        left = np.zeros((size, size))
        for a in range(size):
            left[a, a] = popular[mine[a]] + reg
            for e in range(indptr[mine[a]], indptr[mine[a] + 1]):
                b = where[ids[e]]
                if b >= 0:
                    left[a, b] = counts[e]
        for a in range(size):
            where[mine[a]] = -1
        solved = np.linalg.solve(left, right)
        for a in range(size):
            near[row, a] = mine[a]
            weights[row, a] = solved[a]
