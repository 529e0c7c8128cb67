"""Reports about rotated histories: more to learn from the same one-bit reports.

A history is sparse, so a report about one item is nearly always about nothing. Here a report is
about the whole history, seen through one row of a public Hadamard matrix: a sum of ±1 over the
user's items. That every coordinate then tells something is known from frequency estimation under
local privacy with one bit (Acharya et al. 2019; Chen, Kairouz, Özgür 2020). What is reported stays
a value in [-1, 1] about one coordinate that was drawn without looking, so each report is as private
as before.

Coordinates are (h, f): row h of the matrix, of order D (the power of two from n_items on), and
factor f. With z the sum of the published rows of the user's items and t_h = Σ_j H[h, j] over them,
a device reports the sign of z_f · t_h.

The server turns the counts back (a fast Walsh-Hadamard transform) into an estimate of
mean_u p_u · sign(z_uf)/√n_u, a step of power iteration towards the leading directions of the users'
co-occurrence, and averages it with what it has.
"""

from __future__ import annotations

import numpy as np
from numba import int64, njit, types, uint32, uint64
from numba.extending import intrinsic
from numpy.typing import NDArray

from sottovoce.algorithms.closed_form.vectors import spans
from sottovoce.core.arrays import each
from sottovoce.core.one_bit import (
    BLOCK_COINS,
    MOST_COORDINATES,
    ReportRule,
    nonce,
    scaled,
    threshold,
)
from sottovoce.errors import ConfigError, DataError, Diverged
from sottovoce.rng import chacha_words, draw

_SPREADS = (0x9E3779B1, 0x85EBCA6B)
"""Odd, so that multiplying by them permutes the columns."""
_TINY = 1e-30


def order(n_items: int) -> int:
    """The order D of the matrix for so many items."""
    return 1 << max(1, (n_items - 1).bit_length())


def columns(n_items: int) -> NDArray[np.int64]:
    """The column of each item: a fixed mixture, so that no row of the matrix follows the order in
    which items are numbered."""
    found, last = np.arange(n_items, dtype=np.int64), order(n_items) - 1
    for spread in _SPREADS:
        found = found * spread & last
        found ^= found >> (last.bit_length() + 1) // 2
    return found


def learn_reports(
    items: NDArray[np.float32],
    rows: NDArray[np.int64],
    indptr: NDArray[np.int64],
    history: NDArray[np.int32],
    rule: ReportRule,
    threads: int = 1,
) -> NDArray[np.uint32]:
    """Each device's reports, [len(rows), k]; a device without items sends fair coins."""
    n_items, size = items.shape
    if order(n_items) * size > MOST_COORDINATES:
        raise ConfigError("a model for one-bit reports may have 2**31 numbers at most")
    if not np.isfinite(items).all():
        raise Diverged("the published model holds numbers that are not finite")
    if len(rule) != len(rows):
        raise DataError("a rule must have one row per device")
    if len(history) and not 0 <= int(history.min()) <= int(history.max()) < n_items:
        raise DataError("a history names items that are not of the model")
    column = columns(n_items).astype(np.uint32)
    table = np.ascontiguousarray(items, dtype=np.float32)
    out = np.empty((len(rows), rule.reports), dtype=np.uint32)

    def part(span: slice) -> None:
        _make_reports(
            table, rows[span], indptr, history, column, order(n_items), rule.keys[span],
            rule.noise[span], nonce(rule.round), rule.low[span], out[span],
        )  # fmt: skip

    each(part, spans(len(rows), threads), threads)
    return out


def values(
    items: NDArray[np.float32], mine: NDArray[np.int32], coordinates: NDArray[np.int64]
) -> NDArray[np.float64]:
    """What a device with these items says of its coordinates: sign(z_f · t_h)."""
    row, factor = np.divmod(coordinates, items.shape[1])
    sums = np.cumsum(items[mine].astype(np.float64), axis=0)
    z = sums[-1] if len(mine) else np.zeros(items.shape[1])
    minus = row[:, None] & columns(len(items))[mine][None, :]
    odd = np.zeros(minus.shape, dtype=np.int64)
    while minus.any():
        odd ^= minus & 1
        minus >>= 1
    told: NDArray[np.float64] = np.sign(z[factor] * (len(mine) - 2 * odd.sum(axis=1)))
    return told


def turned_back(values: NDArray[np.float64], n_items: int) -> NDArray[np.float64]:
    """From coordinates [D, F] to items [n_items, F]: Σ_h H[h, j] · values[h]."""
    table, size = values, values.shape[1]
    half = 1
    while half < len(values):
        pairs = table.reshape(-1, 2, half, size)
        table = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        half *= 2
    return table.reshape(values.shape)[columns(n_items)]


def moved(
    items: NDArray[np.float64], step: NDArray[np.float64], share: float
) -> NDArray[np.float64]:
    """The item rows after a power step, of which `share` counts and the rest is what was there.
    Columns come out orthogonal, by falling weight, each with a sum of at least 0."""
    before = items / np.maximum(_norms(items), _TINY)
    mixed = (1.0 - share) * items + share * step
    mixed = mixed * _norms(mixed)
    overlap = _products(before, mixed)
    _, turn = np.linalg.eigh((overlap + overlap.T) / 2.0)
    turned = _times(mixed, turn[:, ::-1])
    turned = turned / np.sqrt(np.maximum(_norms(turned), _TINY))
    return orthogonal(turned)


def orthogonal(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The columns made orthogonal one after the other, each as long as what is left of it."""
    made = table.copy()
    for f in range(made.shape[1]):
        for _ in range(2):  # the second time takes away what rounding has left
            for e in range(f):
                weight = (made[:, e] * made[:, f]).sum() / max((made[:, e] ** 2).sum(), _TINY)
                made[:, f] -= weight * made[:, e]
    return made * np.where(made.sum(axis=0) < 0, -1.0, 1.0)


# Sums of NumPy's own, not BLAS: these are the same whatever the number of threads.


def _norms(table: NDArray[np.float64]) -> NDArray[np.float64]:
    norms: NDArray[np.float64] = np.sqrt((table**2).sum(axis=0))
    return norms


def _products(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.stack([(one[:, f, None] * other).sum(axis=0) for f in range(one.shape[1])])


def _times(table: NDArray[np.float64], turn: NDArray[np.float64]) -> NDArray[np.float64]:
    product: NDArray[np.float64] = (table[:, :, None] * turn[None]).sum(axis=1)
    return product


@intrinsic
def _ones(context, word):  # type: ignore[no-untyped-def]
    """How many bits of a 64-bit word are 1; the processor has an instruction for it."""

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), emit


@njit(nogil=True, cache=True)
def _make_reports(  # type: ignore[no-untyped-def]
    items, rows, indptr, history, column, order, keys, noise, words, low, out
):
    size, most, depth = items.shape[1], 0, 0
    while (1 << depth) < order:
        depth += 1
    for n in range(len(rows)):
        most = max(most, indptr[rows[n] + 1] - indptr[rows[n]])
    coins = np.empty(BLOCK_COINS, dtype=np.uint32)
    z = np.empty(size, dtype=np.float64)
    planes = np.empty((most // 64 + 1, depth), dtype=np.uint64)
    for n in range(len(rows)):
        start, stop = indptr[rows[n]], indptr[rows[n] + 1]
        z[:] = 0.0
        for e in range(start, stop):
            for f in range(size):
                z[f] += items[history[e], f]
        used = _lay_out(history[start:stop], column, planes)
        for j in range(out.shape[1]):
            if j % BLOCK_COINS == 0:
                chacha_words(noise[n], words, j // BLOCK_COINS, coins)
            word = draw(keys[n], j)
            coordinate = int64(scaled(word, order * size))
            h, f = uint64(coordinate // size), coordinate % size
            odd = uint64(0)
            for w in range(used):
                differ = uint64(0)
                for p in range(depth):
                    differ ^= planes[w, p] & (uint64(0) - ((h >> uint64(p)) & uint64(1)))
                odd += _ones(differ)  # type: ignore[call-arg]
            y = np.sign(z[f] * (stop - start - 2 * int64(odd)))
            bit = uint64(coins[j % BLOCK_COINS]) < threshold(y, low[n])
            out[n, j] = (uint32(coordinate) << uint32(1)) | uint32(bit)


@njit(nogil=True, cache=True)
def _lay_out(mine, column, planes):  # type: ignore[no-untyped-def]
    """Bit e of planes[·, p] is bit p of the e-th item's column: whether an item has −1 in a row of
    the matrix is then asked for 64 items at once. Returns how many words are used."""
    used, depth = (len(mine) + 63) // 64, planes.shape[1]
    planes[:used] = 0
    for e in range(len(mine)):
        bits, place = column[mine[e]], uint64(e & 63)
        for p in range(depth):
            planes[e >> 6, p] |= ((uint64(bits) >> uint64(p)) & uint64(1)) << place
    return used
