"""The compiled half of vectors.py.

How the loops are made fast, and why that changes no result:

- The normal equations of a device are a sum over its items. Products of single-precision numbers
  are exact in double precision, so a table of them per item, where it is small, gives the same sums
  as multiplying afresh.
- `sum_updates` runs over items in vectors, factor by factor, tile by tile. The dense part is kept
  in 32 bits and moved to 64 bits before any bound on it could be passed; positives, which are few
  and may be large, go to 64 bits at once. Whole numbers add up alike in any order.
- `make_reports` draws first and computes only what was drawn. Whether an item is a positive is a
  byte in a scratch table that is set before and cleared after each device.

Kernels return OK or what is wrong; vectors.py turns that into errors.
"""

# Kernels carry no types (numba infers them); their callers do.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated, assignment"
# mypy: disable-error-code="unreachable"

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy import float32, float64, int32, int64, uint32, uint64

from sottovoce import rng
from sottovoce.compiled import njit
from sottovoce.core import one_bit
from sottovoce.core.one_bit import BLOCK_COINS, scaled, threshold
from sottovoce.rng import chacha_words, draw

OK, BAD_HISTORY, SINGULAR, NOT_FINITE = 0, 1, 2, 3

BLOCK = 8
"""Items whose products are added up in one pass where there is no table."""
TILE = 512
"""Items of a tile in `sum_updates`: few enough for its rows to stay in the nearest cache."""
"""An item table is searched within the slot of a word's first so many bits."""

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_ROOM = np.int64((1 << 31) - 1)
TINY = 2.0**-50


# --- a device's vector ---------------------------------------------------------------------------


@njit(nogil=True, error_model="numpy", cache=True)
def write_products(items, out):
    """out[i] = (v v', lower half by rows; v) of item i."""
    size = items.shape[1]
    for i in range(items.shape[0]):
        c = 0
        for a in range(size):
            left = float64(items[i, a])
            for b in range(a + 1):
                out[i, c] = left * float64(items[i, b])
                c += 1
        for a in range(size):
            out[i, c] = float64(items[i, a])
            c += 1


@njit(nogil=True, error_model="numpy", cache=True)
def add_gram(items, out):
    """out += V'V, items in order."""
    size = items.shape[1]
    for i in range(items.shape[0]):
        for a in range(size):
            left = float64(items[i, a])
            for b in range(a + 1):
                out[a, b] += left * float64(items[i, b])
    for a in range(size):
        for b in range(a):
            out[b, a] = out[a, b]


@njit
def _factored(matrix, size):
    """The lower Cholesky factor, in place. False where the matrix is singular or nearly so."""
    for a in range(size):
        whole = matrix[a, a]
        for b in range(a):
            s = matrix[a, b]
            for c in range(b):
                s -= matrix[a, c] * matrix[b, c]
            s /= matrix[b, b]
            matrix[a, b] = s
        s = whole
        for c in range(a):
            s -= matrix[a, c] * matrix[a, c]
        if not s > size * TINY * whole:
            return False
        matrix[a, a] = np.sqrt(s)
    return True


@njit
def _solved(factor, b, size):
    """b becomes the solution of (factor factor') x = b."""
    for a in range(size):
        s = b[a]
        for c in range(a):
            s -= factor[a, c] * b[c]
        b[a] = s / factor[a, a]
    for a in range(size - 1, -1, -1):
        s = b[a]
        for c in range(a + 1, size):
            s -= factor[c, a] * b[c]
        b[a] = s / factor[a, a]


@njit
def _add_block(block, sums, size):
    """sums += the products of eight items, one after the other; zeros add nothing."""
    at = 0
    for a in range(size):
        p0, p1, p2, p3 = block[0, a], block[1, a], block[2, a], block[3, a]
        p4, p5, p6, p7 = block[4, a], block[5, a], block[6, a], block[7, a]
        for b in range(a + 1):
            s = sums[at + b]
            s = (((s + p0 * block[0, b]) + p1 * block[1, b]) + p2 * block[2, b]) + p3 * block[3, b]
            s = (((s + p4 * block[4, b]) + p5 * block[5, b]) + p6 * block[6, b]) + p7 * block[7, b]
            sums[at + b] = s
        at += a + 1
    for a in range(size):
        s = sums[at + a]
        for k in range(block.shape[0]):
            s += block[k, a]
        sums[at + a] = s


@njit(nogil=True, error_model="numpy", cache=True)
def solve(items, table, base, extra, positive, rows, indptr, history, out):
    """out[n] = (base + extra Σ v v')⁻¹ (positive Σ v) over the items of device rows[n], in the
    order of its history. `table` holds every item's products, or nothing."""
    n_items, size = items.shape
    columns = size * (size + 1) // 2
    tabled = table.shape[0] > 0
    sums = np.empty(table.shape[1] if tabled else columns + size, dtype=np.float64)
    matrix = np.empty((size, size), dtype=np.float64)
    row = np.empty(size, dtype=np.float64)
    block = np.zeros((BLOCK, size), dtype=np.float64)
    for n in range(rows.shape[0]):
        start, stop = indptr[rows[n]], indptr[rows[n] + 1]
        if not 0 <= start <= stop <= history.shape[0]:
            return BAD_HISTORY
        sums[:] = 0.0
        for e in range(start, stop):
            i = int64(history[e])
            if not 0 <= i < n_items:
                return BAD_HISTORY
            if tabled:
                for c in range(sums.shape[0]):
                    sums[c] += table[i, c]
            else:
                k = (e - start) % BLOCK
                for a in range(size):
                    block[k, a] = float64(items[i, a])
                if k == BLOCK - 1:
                    _add_block(block, sums, size)
        if not tabled and (stop - start) % BLOCK > 0:
            block[(stop - start) % BLOCK :] = 0.0
            _add_block(block, sums, size)
        at = 0
        for a in range(size):
            for b in range(a + 1):
                matrix[a, b] = base[a, b] + extra * sums[at]
                at += 1
            row[a] = positive * sums[columns + a]
        if not _factored(matrix, size):
            return SINGULAR
        _solved(matrix, row, size)
        for a in range(size):
            out[n, a] = float32(row[a])
            if not np.isfinite(out[n, a]):
                return NOT_FINITE
    return OK


# --- every item's update, on the grid ------------------------------------------------------------


@njit(inline="always")
def _steps(value, limit):
    value = value if value > -limit else -limit
    value = value if value < limit else limit
    return int32(np.rint(value))


@njit(nogil=True, error_model="numpy", cache=True)
def write_updates(columns, vectors, positive, other, grid, limit, rows, indptr, history, out):
    """out[n, i, f]: device n's update of item i, c (p − x·v) x, in steps of the grid. `columns` is
    [F, items]."""
    size, n_items = columns.shape
    mine = np.zeros(n_items, dtype=np.bool_)
    dots = np.empty(TILE, dtype=np.float32)
    steps = np.empty((size, TILE), dtype=np.int32)
    for n in range(rows.shape[0]):
        start, stop = indptr[rows[n]], indptr[rows[n] + 1]
        if not 0 <= start <= stop <= history.shape[0]:
            return BAD_HISTORY
        for e in range(start, stop):
            if not 0 <= history[e] < n_items:
                return BAD_HISTORY
            mine[history[e]] = True
        for first in range(0, n_items, TILE):
            width = min(TILE, n_items - first)
            for t in range(width):
                dots[t] = _ZERO
            for f in range(size):
                factor = vectors[n, f]
                column = columns[f, first : first + width]
                for t in range(width):
                    dots[t] += factor * column[t]
            for t in range(width):
                dot = dots[t]
                dots[t] = positive * (_ONE - dot) if mine[first + t] else other * (_ZERO - dot)
            for f in range(size):
                factor = grid * vectors[n, f]
                one = steps[f]
                for t in range(width):
                    one[t] = _steps(dots[t] * factor, limit)
            whole = out[n, first : first + width]
            for t in range(width):
                for f in range(size):
                    whole[t, f] = steps[f, t]
        for e in range(start, stop):
            mine[history[e]] = False
    return OK


@njit(nogil=True, error_model="numpy", cache=True)
def sum_updates(
    columns, vectors, bounds, positive, other, grid, limit, rows, indptr, history, sums
):
    """sums[f, i] += the updates of `write_updates`. `columns` is [F, items]; bounds[n] is no less
    than any of device n's updates of items that are not its positives."""
    size, n_items = columns.shape
    cursor = np.empty(rows.shape[0], dtype=np.int64)
    for n in range(rows.shape[0]):
        start, stop = indptr[rows[n]], indptr[rows[n] + 1]
        if not 0 <= start <= stop <= history.shape[0]:
            return BAD_HISTORY
        cursor[n] = start
    low = np.zeros((size, TILE), dtype=np.int32)
    dots = np.empty(TILE, dtype=np.float32)
    weights = np.empty(TILE, dtype=np.float32)
    for first in range(0, n_items, TILE):
        width = min(TILE, n_items - first)
        room = _ROOM
        for n in range(rows.shape[0]):
            for t in range(width):
                dots[t] = _ZERO
            for f in range(size):
                factor = vectors[n, f]
                column = columns[f, first : first + width]
                for t in range(width):
                    dots[t] += factor * column[t]
            for t in range(width):
                weights[t] = other * (_ZERO - dots[t])
            e, stop = cursor[n], indptr[rows[n] + 1]
            while e < stop and history[e] < first + width:
                t = int64(history[e]) - first
                if t < 0:
                    return BAD_HISTORY
                weights[t] = _ZERO
                weight = positive * (_ONE - dots[t])
                for f in range(size):
                    sums[f, first + t] += int64(_steps(weight * (grid * vectors[n, f]), limit))
                e += 1
            cursor[n] = e
            if other == _ZERO:
                continue
            room -= bounds[n]
            if room < 0:
                _move(low, sums, first, width)
                room = _ROOM - bounds[n]
            for f in range(size):
                factor = grid * vectors[n, f]
                total = low[f]
                for t in range(width):
                    total[t] += _steps(weights[t] * factor, limit)
        _move(low, sums, first, width)
    for n in range(rows.shape[0]):
        if cursor[n] != indptr[rows[n] + 1]:
            return BAD_HISTORY
    return OK


@njit
def _move(low, sums, first, width):
    for f in range(low.shape[0]):
        for t in range(width):
            sums[f, first + t] += int64(low[f, t])
            low[f, t] = 0


@njit(nogil=True, error_model="numpy", cache=True)
def add_positives(items, vectors, positive, other, first, stop, indptr, history, squares, out):
    """For devices first to stop, in double precision: squares += Σ x x' (lower half), and out += by
    how much their positives' updates differ from those of an item that is none."""
    size = items.shape[1]
    for n in range(first, stop):
        for a in range(size):
            for b in range(a + 1):
                squares[a, b] += float64(vectors[n, a]) * float64(vectors[n, b])
        for e in range(indptr[n], indptr[n + 1]):
            i = history[e]
            dot = 0.0
            for f in range(size):
                dot += float64(vectors[n, f]) * float64(items[i, f])
            weight = positive * (1.0 - dot) + other * dot
            for f in range(size):
                out[i, f] += weight * float64(vectors[n, f])


# --- reports -------------------------------------------------------------------------------------


def _stamp() -> int:
    """A number for the code that is compiled into `make_reports` from other files. Numba's cache
    looks at this file alone; the number stands for the others in its key."""
    digest = hashlib.blake2b(digest_size=7)
    for module in (one_bit, rng):
        digest.update(Path(str(module.__file__)).read_bytes())
    return int.from_bytes(digest.digest(), "little")


@cache
def reporter(embedding_size: int) -> Any:
    """The kernel of reports, with the row width as a compile-time constant."""
    F = embedding_size
    CODE = _stamp()

    @njit(nogil=True, error_model="numpy", cache=True)
    def make_reports(
        items, vectors, positive, other, rows, indptr, history,
        keys, noise, nonce, low, scale, out,
    ):  # fmt: skip
        """out[n, j]: report j of device n, which is rows[n] of the histories."""
        CODE  # noqa: B018
        n_items = items.shape[0]
        mine = np.zeros(n_items, dtype=np.bool_)
        coins = np.empty(BLOCK_COINS, dtype=np.uint32)
        x = np.empty(F, dtype=np.float64)
        for n in range(rows.shape[0]):
            start, stop = indptr[rows[n]], indptr[rows[n] + 1]
            if not 0 <= start <= stop <= history.shape[0]:
                return BAD_HISTORY
            for e in range(start, stop):
                if not 0 <= history[e] < n_items:
                    return BAD_HISTORY
                mine[history[e]] = True
            for f in range(F):
                x[f] = float64(vectors[n, f])
            for j in range(out.shape[1]):
                if j % BLOCK_COINS == 0:
                    chacha_words(noise[n], nonce, j // BLOCK_COINS, coins)
                coordinate = uint32(scaled(draw(keys[n], j), n_items * F))
                i = int64(coordinate // uint32(F))
                f = int64(coordinate) - i * F
                dot = 0.0
                for a in range(F):
                    dot += x[a] * float64(items[i, a])
                weight = positive * (1.0 - dot) if mine[i] else other * (0.0 - dot)
                y = scale * (-2.0 * weight * x[f])
                if not np.isfinite(y):
                    return NOT_FINITE
                y = min(1.0, max(-1.0, y))
                bit = uint64(coins[j % BLOCK_COINS]) < threshold(y, low[n])
                out[n, j] = (coordinate << uint32(1)) | uint32(bit)
            for e in range(start, stop):
                mine[history[e]] = False
        return OK

    return make_reports
