"""Scores in, ranked lists out: shared by the device at home and by the evaluation.

A `Scorer` gives a score to every item for some users. Ranking is by score, descending; ties go to
the smaller item number; items already seen are masked.

The score of a pair is one fixed chain of fused multiply-adds, bias first, then factor by factor. So
it has the same bits whatever the tile, the thread, the list length or the other users, and a device
at home gets the list that the evaluation got. A BLAS product does not promise that: its last bit
depends on the shape of the tile. Items are packed in panels of `SIMD_ROWS`, factor-major, with the
bias in front.

What is here over NumPy's arrays is what one device runs. For many users `accelerated` has the same
as compiled loops; tests/contracts/test_alone.py holds one to the other, bit for bit.
"""

# Kernels carry no types (numba infers them); their callers do.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.compiled import accelerated, intrinsic, primitive
from sottovoce.core.arrays import distinct
from sottovoce.core.interactions import Interactions
from sottovoce.errors import DataError, Diverged, UsageError

SIMD_ROWS = 16
GROUP = 6
CHUNK = 64
"""Panels per pass: 1,024 items stay in the second-level cache while a tile's users go by."""


_ACCELERATED = "sottovoce.core.accelerated"
_looped = accelerated(_ACCELERATED, cache=True, nogil=True)


@primitive(intrinsic(_ACCELERATED, "fma"))
def fma(a, b, c):
    """a * b + c in float32, rounded once."""
    # Double precision holds the product. Where it does not hold the sum, its last bit is set to 1
    # (rounding to odd), so that rounding it again, to single precision, cannot go astray.
    product, c = np.float64(a) * np.float64(b), np.float64(c)
    near = product + c
    back = near - product
    lost = (product - (near - back)) + (c - back)
    inexact = (lost != 0.0) & np.isfinite(near)
    bits = np.asarray(near).view(np.int64) - (inexact & ((lost < 0.0) == (near > 0.0)))
    return np.asarray(bits | inexact).view(np.float64).astype(np.float32)


@_looped
def pack_items(factors, bias):
    """Return panels [n, 1 + size, SIMD_ROWS]; places past the last item have a bias of -inf."""
    n_items, size = factors.shape
    n_panels = -(-n_items // SIMD_ROWS)
    table = np.zeros((n_panels * SIMD_ROWS, size + 1), np.float32)
    table[:n_items, 0], table[n_items:, 0], table[:n_items, 1:] = bias, -np.inf, factors
    return np.ascontiguousarray(table.reshape(n_panels, SIMD_ROWS, size + 1).transpose(0, 2, 1))


@_looped
def rank_factors(vectors, panels, users, rows, indptr, seen, items, scores):
    """Fill `items` and `scores` [tile, n], which come in as -1 and -inf.

    `users` index `vectors`; `rows` index the seen items (`indptr`, `seen`).
    """
    bias, factors = panels[:, 0], np.moveaxis(panels[:, 1:], 1, 0)
    for u in range(len(users)):
        found = bias
        for f in range(len(factors)):
            found = fma(vectors[users[u], f], factors[f], found)
        table = np.array(found).reshape(1, -1)
        rank_scores(table, rows[u : u + 1], indptr, seen, items[u : u + 1], scores[u : u + 1])


@_looped
def rank_scores(table, rows, indptr, seen, items, scores):
    """Fill them from a table of scores [tile, n_items]."""
    for u in range(len(table)):
        open_to_her = table[u] > -np.inf
        hers = seen[indptr[rows[u]] : indptr[rows[u] + 1]]
        open_to_her[hers[hers < len(open_to_her)]] = False
        left = np.flatnonzero(open_to_her)
        best = left[np.argsort(-table[u, left], kind="stable")[: items.shape[1]]]
        items[u, : len(best)], scores[u, : len(best)] = best, table[u, best]


@_looped
def score_pairs(vectors, factors, bias, users, items, out):
    """out[r, c] = score of (users[r], items[r, c]), bit for bit as in `rank_factors`; -1: -inf."""
    for r in range(len(users)):
        total = bias[items[r]]
        for f in range(factors.shape[1]):
            total = fma(vectors[users[r], f], factors[items[r], f], total)
        out[r] = np.where(items[r] < 0, -np.inf, total)


Scalar = TypeVar("Scalar", bound=np.generic)

TILE = 40 * GROUP
"""Users per unit of work. Results do not depend on it."""


class Scorer(Protocol):
    """Anything that can rank the catalogue for a user."""

    @property
    def n_items(self) -> int: ...

    def scores(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        """Scores of shape [len(users), n_items]. Higher is better; -inf is never recommended."""
        ...


@dataclass(frozen=True, slots=True, repr=False)
class FactorScorer:
    """score(u, i) = bias_i + user_u · item_i. Ranking has a fast path for it."""

    user_factors: NDArray[np.float32]
    item_factors: NDArray[np.float32]
    item_bias: NDArray[np.float32]

    @classmethod
    def of(cls, vectors: NDArray[np.float32], items: NDArray[np.float32]) -> FactorScorer:
        """From published item rows: as long as a user's vector, or with a bias behind it."""
        size = vectors.shape[1]
        bias = items[:, size] if items.shape[1] > size else np.zeros(len(items), np.float32)
        return cls(vectors, np.ascontiguousarray(items[:, :size]), np.ascontiguousarray(bias))

    @property
    def n_items(self) -> int:
        return len(self.item_factors)

    def scores(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        product: NDArray[np.float32] = self.user_factors[users] @ self.item_factors.T
        return product + self.item_bias


def default_threads() -> int:
    """The number of processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def top_n(
    scorer: Scorer,
    users: ArrayLike,
    seen: Interactions | None,
    n: int,
    *,
    threads: int | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The n best items per user, and their scores: two arrays of shape [len(users), n].

    By score descending, ties by ascending item; `seen` items are left out, an item of score -inf
    is never recommended. Rows with fewer than n candidates end in item -1 with score -inf. The
    lists of a `FactorScorer` do not depend on `threads` or on which users are asked for together.
    """
    wanted = _user_numbers(users, seen)
    if seen is None:
        return _rank(scorer, wanted, np.zeros_like(wanted), [0, 0], [], n, threads)
    return _rank(scorer, wanted, wanted, seen.indptr, seen.items, n, threads)


def recommend(
    scorer: Scorer, user: int, seen: Interactions | ArrayLike | None, n: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """At most n items for one user, best first, with their scores; no padding.

    `seen` may be the user's own items, as a device knows them, instead of everybody's table.
    Equal to the user's row of `top_n`.
    """
    n = min(n, max(1, scorer.n_items))
    if seen is None or isinstance(seen, Interactions):
        items, scores = top_n(scorer, [user], seen, n, threads=1)
    else:
        own = distinct(np.asarray(seen, dtype=np.int32))
        if len(own) and own[0] < 0:
            raise DataError(f"there is no item {own[0]}")
        wanted = _user_numbers([user], None)
        items, scores = _rank(scorer, wanted, np.zeros_like(wanted), [0, len(own)], own, n, 1)
    found = items[0] >= 0
    return items[0][found], scores[0][found]


def score_items(
    scorer: Scorer, users: ArrayLike, items: ArrayLike, *, threads: int | None = None
) -> NDArray[np.float32]:
    """Scores of given items: row r holds those of `items[r]` for `users[r]`; item -1 gets -inf."""
    wanted = _user_numbers(users, None)
    chosen = _fixed(np.ascontiguousarray(items, dtype=np.int32))
    if chosen.ndim != 2 or len(chosen) != len(wanted):
        raise UsageError("items must be a table with one row per user")
    if chosen.size and (chosen.min() < -1 or chosen.max() >= scorer.n_items):
        raise DataError(f"item numbers must lie in [0, {scorer.n_items}), or be -1 for none")
    out = np.empty(chosen.shape, dtype=np.float32)
    if isinstance(scorer, FactorScorer):
        vectors, factors, bias = _checked(scorer, wanted)

        def score(part: slice) -> None:
            score_pairs(vectors, factors, bias, wanted[part], chosen[part], out[part])

        _for_tiles(len(wanted), TILE, score, threads)
    else:
        for part in _tiles(len(wanted), _table_tile(scorer.n_items)):
            table = _table(scorer, wanted[part])
            out[part] = np.take_along_axis(table, np.maximum(chosen[part], 0), axis=1)
        out[chosen < 0] = -np.inf
    return out


def _rank(
    scorer: Scorer,
    users: NDArray[np.int64],
    rows: NDArray[np.int64],
    seen_indptr: ArrayLike,
    seen_items: ArrayLike,
    n: int,
    threads: int | None,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """`top_n` with the seen items as bare arrays: those of `users[r]` are in row `rows[r]`."""
    if n < 1:
        raise UsageError(f"a list must have at least one place, not {n}")
    indptr = _fixed(np.asarray(seen_indptr, dtype=np.int64))
    entries = _fixed(np.asarray(seen_items, dtype=np.int32))
    rows = _fixed(rows)
    items = np.full((len(users), n), -1, dtype=np.int32)
    scores = np.full((len(users), n), -np.inf, dtype=np.float32)
    if isinstance(scorer, FactorScorer):
        vectors, factors, bias = _checked(scorer, users)
        panels = pack_items(factors, bias)

        def rank(part: slice) -> None:
            seen = (rows[part], indptr, entries)
            rank_factors(vectors, panels, users[part], *seen, items[part], scores[part])

        _for_tiles(len(users), TILE, rank, threads)
    else:
        for part in _tiles(len(users), _table_tile(scorer.n_items)):
            table = _table(scorer, users[part])
            rank_scores(table, rows[part], indptr, entries, items[part], scores[part])
    return items, scores


def _user_numbers(users: ArrayLike, seen: Interactions | None) -> NDArray[np.int64]:
    wanted = np.ascontiguousarray(users, dtype=np.int64)
    if wanted.ndim != 1:
        raise UsageError("users must be a list of user numbers")
    if len(wanted) and wanted.min() < 0:
        raise DataError(f"there is no user {wanted.min()}")
    if seen is not None and len(wanted) and wanted.max() >= seen.n_users:
        raise DataError(f"there is no user {wanted.max()}; there are {seen.n_users:,} users")
    return _fixed(wanted)


def _fixed(array: NDArray[Scalar]) -> NDArray[Scalar]:
    # numba compiles a kernel again for each mix of writable and read-only arguments.
    view = array.view()
    view.flags.writeable = False
    return view


def _checked(scorer: FactorScorer, users: NDArray[np.int64]) -> tuple[NDArray[np.float32], ...]:
    # The kernels read raw memory: every shape and index is checked here.
    vectors = np.ascontiguousarray(scorer.user_factors, dtype=np.float32)
    factors = np.ascontiguousarray(scorer.item_factors, dtype=np.float32)
    bias = np.ascontiguousarray(scorer.item_bias, dtype=np.float32)
    if vectors.ndim != 2 or factors.ndim != 2 or vectors.shape[1] != factors.shape[1]:
        raise DataError(f"factors of shape {vectors.shape} and {factors.shape} do not match")
    if bias.shape != (len(factors),):
        raise DataError(f"{len(factors):,} items need as many biases, not {bias.shape}")
    if len(users) and users.max() >= len(vectors):
        raise DataError(f"there is no user {users.max()}; there are {len(vectors):,} users")
    # Of the users only those asked for: there may be millions.
    finite = np.isfinite(vectors[users]).all() and np.isfinite(factors).all()
    if not finite or np.isnan(bias).any():
        raise Diverged("the model holds numbers that are not finite; lower the learning rate")
    return _fixed(vectors), _fixed(factors), _fixed(bias)


def _table(scorer: Scorer, users: NDArray[np.int64]) -> NDArray[np.float32]:
    table = np.ascontiguousarray(scorer.scores(users), dtype=np.float32)
    if table.shape != (len(users), scorer.n_items):
        raise DataError(
            f"a scorer of {scorer.n_items:,} items gave scores of shape {table.shape} "
            f"for {len(users):,} users"
        )
    if np.isnan(table).any():
        raise Diverged("the model gave scores that are not numbers")
    return _fixed(table)


def _table_tile(n_items: int) -> int:
    # A table of at most 64 MB.
    return max(1, min(256, (16 << 20) // max(1, n_items)))


def _tiles(n: int, size: int) -> Iterable[slice]:
    return (slice(start, min(n, start + size)) for start in range(0, n, size))


def _for_tiles(n: int, size: int, work: Callable[[slice], None], threads: int | None) -> None:
    threads = default_threads() if threads is None else threads
    if threads < 1:
        raise UsageError(f"ranking needs at least one thread, not {threads}")
    if threads == 1 or n <= size:
        for part in _tiles(n, size):
            work(part)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, _tiles(n, size)):
            pass
