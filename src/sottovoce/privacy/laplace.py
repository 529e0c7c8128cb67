"""Discrete Laplace noise on whole numbers: X = x with a probability in proportion to e^(−|x|/s).

What it promises. Where an update moves by d steps in all (L1), no noisy update becomes more than
e^(d/s + n·`ROUNDING`) times as likely, n being how many of its numbers move. There is no δ: no
value of the noise is impossible, and none is cut off.

How. X is ±(2^m·H + L), with 2^m about s/32. H is geometric with the ratio e^(−2^m/s): it is looked
up in a table of 64-bit thresholds, and what falls behind the table's end starts again from there,
which for a geometric law is the same as a longer table. L is uniform below 2^m and kept with the
probability e^(−L/s), by a coin of 53 bits; −0 is thrown away. The rounding of thresholds and coins
is all that is not exact, and moves no probability by more than half of `ROUNDING`, relatively. The
rounded logarithm of a uniform number would leave gaps between large values, by which updates could
be told apart.

Coins are ChaCha20's (RFC 8439), under the key that a device has to itself. The noise of a number is
a function of key, round and coordinate, whoever computes it and with whatever else. A key and a
round make one update, never two. `one_bit` has the nonce (round, 0) of the same keys; here it is
(round, 1) for the first four words of a coordinate, (round, 2 ...) for the few that need more.
"""

# Kernels carry no types (numba infers them).
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy import float64, int64, uint32, uint64
from numpy.typing import NDArray

from sottovoce.compiled import njit
from sottovoce.core.arrays import each, equal_spans, read_only
from sottovoce.core.one_bit import nonce
from sottovoce.errors import ConfigError, DataError
from sottovoce.rng import chacha_words, quarter

Ints = NDArray[np.int64]
ROUNDING = 2.0**-49
"""What rounding may add to the privacy cost of one number."""
MOST_SCALE = 1 << 40
MOST_NUMBERS = 1 << 32
"""Numbers in a table: a coordinate is a counter of ChaCha20."""
_STEPS = 256
"""Places of a table of thresholds."""
_AHEAD = 5
"""2^m is at most s / 2^5, so that few L are thrown away."""
_SURE = int(2**26 * math.exp(-(2.0**-_AHEAD)))
"""Coins of 26 bits below this keep any L; only the others need more bits."""
_LANES = 16
"""Blocks of ChaCha20 that are computed side by side."""
_AT_ONCE = 4 * _LANES
"""Coordinates that they serve."""


class _Tables(NamedTuple):
    """What kernels need of some scales, a row for each."""

    cuts: NDArray[np.uint64]
    """[scales, places]: P(H ≤ j) · 2^64. H starts again behind the last of them."""
    guide: NDArray[np.uint8]
    """Where to begin to look in `cuts`, by the highest eight bits of a word."""
    last: Ints
    """How many places there are."""
    shift: Ints
    """m"""
    scale: Ints


def add_laplace(
    values: Ints,
    rows: Ints,
    device: Ints,
    keys: NDArray[np.uint32],
    scales: Ints,
    round: int,
    columns: int,
    threads: int = 1,
) -> None:
    """Adds noise to the first `columns` numbers of each row of `values`, in place: row k belongs to
    row rows[k] of the table and to the device that has keys[device[k]] and scales[device[k]]."""
    _check(values, keys, scales, columns)
    if not len(values):
        return
    if not len(rows) == len(device) == len(values):
        raise DataError("noise needs the place and the device of every row")
    if not 0 <= int(rows.min()) <= int(rows.max()) < MOST_NUMBERS // columns:
        raise DataError("a row lies outside of any table")
    if not 0 <= int(device.min()) <= int(device.max()) < len(keys):
        raise DataError("a row belongs to no device")
    which, tables = _tables(scales)
    # Copies, so that kernels are compiled for one kind of array only.
    at, owner = np.array(rows, dtype=np.int64), np.array(device, dtype=np.int64)
    key = read_only(keys, np.uint32)

    def work(span: slice) -> None:
        _add_rows(values[span], at[span], owner[span], key, which, nonce(round), columns, *tables)

    each(work, equal_spans(len(values), min(threads, len(values))), threads)


def add_laplace_sums(
    sums: Ints,
    keys: NDArray[np.uint32],
    scales: Ints,
    round: int,
    columns: int,
    threads: int = 1,
) -> None:
    """Adds the noise of every device to the first `columns` numbers of every row, in place: the
    same whole numbers as where each device adds its noise to a table, and the tables are added."""
    _check(sums, keys, scales, columns)
    if len(sums) * columns > MOST_NUMBERS:
        raise DataError("a table has too many numbers")
    if not len(sums) or not len(keys):
        return
    which, tables = _tables(scales)
    key = read_only(keys, np.uint32)

    def work(span: slice) -> None:
        _add_all(sums[span], span.start, key, which, nonce(round), columns, *tables)

    each(work, equal_spans(len(sums), min(threads, len(sums))), threads)


def _check(values: Ints, keys: NDArray[np.uint32], scales: Ints, columns: int) -> None:
    if values.dtype != np.int64 or values.ndim != 2 or not values.flags.c_contiguous:
        raise DataError("noise is added to tables of whole numbers")
    if not 1 <= columns <= values.shape[1]:
        raise DataError(f"noise cannot go to {columns} of {values.shape[1]} columns")
    if keys.shape != (len(scales), 8):
        raise DataError("every device needs a key and a scale")


def _tables(scales: Ints) -> tuple[Ints, _Tables]:
    """Which table each device uses, and the tables of all scales that there are."""
    known, which = np.unique(scales, return_inverse=True)
    found = zip(*(_table(int(scale)) for scale in known), strict=True)
    types = (np.uint64, np.uint8, np.int64, np.int64, np.int64)
    columns = (read_only(np.stack(a), t) for a, t in zip(found, types, strict=True))
    return read_only(which, np.int64), _Tables(*columns)


@lru_cache(maxsize=4096)
def _table(scale: int) -> tuple[NDArray[np.uint64], NDArray[np.uint8], int, int, int]:
    """The row of one scale."""
    if not 1 <= scale <= MOST_SCALE:
        raise ConfigError(f"the scale of noise must lie in [1, 2**40] steps, not at {scale}")
    shift = max(0, scale.bit_length() - 1 - _AHEAD)
    # Up to 4 s: behind the end lies a probability of e^−4 or more, so that every place of the table
    # has 2^−12 at least, and 64 bits tell that to a part in 2^52.
    last = (4 * scale) >> shift
    cuts = np.full(_STEPS, 2**64 - 1, dtype=np.uint64)
    with localcontext() as context:
        context.prec = 60
        ratio = (-Decimal(1 << shift) / Decimal(scale)).exp()
        for j in range(last):
            cuts[j] = int((2**64 * (1 - ratio ** (j + 1))).to_integral_value())
    starts = np.arange(256, dtype=np.uint64) << np.uint64(56)
    guide = np.searchsorted(cuts[:last], starts, side="right").astype(np.uint8)
    return cuts, guide, last, shift, scale


# --- kernels -------------------------------------------------------------------------------------


@njit(forceinline=True)
def _twice(x):
    """A column round and a diagonal round."""
    a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = x
    a0, b0, c0, d0 = quarter(a0, b0, c0, d0)
    a1, b1, c1, d1 = quarter(a1, b1, c1, d1)
    a2, b2, c2, d2 = quarter(a2, b2, c2, d2)
    a3, b3, c3, d3 = quarter(a3, b3, c3, d3)
    a0, b1, c2, d3 = quarter(a0, b1, c2, d3)
    a1, b2, c3, d0 = quarter(a1, b2, c3, d0)
    a2, b3, c0, d1 = quarter(a2, b3, c0, d1)
    a3, b0, c1, d2 = quarter(a3, b0, c1, d2)
    return a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3


@njit(nogil=True, cache=True)
def chacha_lanes(key, nonce, counter, out):
    """`chacha_words` of _LANES blocks in a row, out[w, lane]. There is no loop within a lane, so
    that compilers put the lanes side by side."""
    k0, k1, k2, k3 = key[0], key[1], key[2], key[3]
    k4, k5, k6, k7 = key[4], key[5], key[6], key[7]
    c0, c1, c2, c3 = uint32(0x61707865), uint32(0x3320646E), uint32(0x79622D32), uint32(0x6B206574)
    n1, n2, n3 = nonce[0], nonce[1], nonce[2]
    for lane in range(_LANES):
        n0 = uint32(counter + uint32(lane))
        x = (c0, c1, c2, c3, k0, k1, k2, k3, k4, k5, k6, k7, n0, n1, n2, n3)
        x = _twice(_twice(_twice(_twice(_twice(x)))))
        x = _twice(_twice(_twice(_twice(_twice(x)))))
        out[0, lane] = x[0] + c0
        out[1, lane] = x[1] + c1
        out[2, lane] = x[2] + c2
        out[3, lane] = x[3] + c3
        out[4, lane] = x[4] + k0
        out[5, lane] = x[5] + k1
        out[6, lane] = x[6] + k2
        out[7, lane] = x[7] + k3
        out[8, lane] = x[8] + k4
        out[9, lane] = x[9] + k5
        out[10, lane] = x[10] + k6
        out[11, lane] = x[11] + k7
        out[12, lane] = x[12] + n0
        out[13, lane] = x[13] + n1
        out[14, lane] = x[14] + n2
        out[15, lane] = x[15] + n3


@njit(inline="always")
def _place(word, cuts, guide):
    """H of a word below the table's end."""
    j = int64(guide[word >> uint64(56)])
    while word >= cuts[j]:
        j += 1
    return j


@njit(nogil=True, cache=True)
def _slow(first, second, key, nonce, at, block, cuts, guide, last, shift, scale):
    """The noise of a coordinate by its definition; `first` and `second` are the words that it
    starts with, and it has as many more as it needs."""
    used, end = 0, cuts[last - 1]
    while True:
        high, length, coin, drawn = int64(0), int64(0), uint64(0), 0
        negative = False
        while drawn < 3:
            if used == 0:
                word = first
            elif used == 1:
                word = second
            else:
                j = 2 * ((used - 2) % 8)
                if j == 0:
                    nonce[2] += uint32(1)
                    chacha_words(key, nonce, at, block)
                word = uint64(block[j]) | (uint64(block[j + 1]) << uint64(32))
            used += 1
            if drawn == 0 and word >= end:
                high += last
            elif drawn == 0:
                high += _place(word, cuts, guide)
                drawn = 1
            elif drawn == 1:
                negative = (word & uint64(1)) != uint64(0)
                low = int64((word >> uint64(1)) & ((uint64(1) << uint64(shift)) - uint64(1)))
                length = (high << shift) | low
                coin = word >> uint64(38)
                drawn = 3 if coin < uint64(_SURE) else 2
            else:
                coin = (coin << uint64(27)) | (word >> uint64(37))
                kept = float64(coin) < math.exp(-float64(low) / float64(scale)) * 2.0**53
                drawn = 3 if kept else 4
        if drawn == 3 and not (negative and length == 0):
            nonce[2] = uint32(1)
            return -length if negative else length


@njit(nogil=True, cache=True)
def _fill(key, nonce, chunk, words, block, noise, cuts, guide, last, shift, scale):
    """noise[:]: of the coordinates from chunk · _AT_ONCE on."""
    chacha_lanes(key, nonce, uint32(chunk * _LANES), words)
    end, below = cuts[last - 1], (uint64(1) << uint64(shift)) - uint64(1)
    for k in range(_AT_ONCE):
        lane, w = k >> 2, 4 * (k & 3)
        first = uint64(words[w, lane]) | (uint64(words[w + 1, lane]) << uint64(32))
        second = uint64(words[w + 2, lane]) | (uint64(words[w + 3, lane]) << uint64(32))
        sign = int64(second & uint64(1))
        if first < end and (second >> uint64(38)) < uint64(_SURE):
            low = int64((second >> uint64(1)) & below)
            length = (_place(first, cuts, guide) << shift) | low
            if length or not sign:
                noise[k] = (length ^ -sign) + sign
                continue
        at = uint32(chunk * _AT_ONCE + k)
        noise[k] = _slow(first, second, key, nonce, at, block, cuts, guide, last, shift, scale)


@njit(nogil=True, cache=True)
def _add_rows(values, rows, device, keys, which, round, columns, cuts, guide, last, shift, scale):
    words, noise = np.empty((16, _LANES), dtype=np.uint32), np.empty(_AT_ONCE, dtype=np.int64)
    nonce, block = np.array([round[0], round[1], uint32(1)]), np.empty(16, dtype=np.uint32)
    owner, ready = int64(-1), int64(-1)
    key, t, cut, lead = keys[0], int64(0), cuts[0], guide[0]
    for k in range(len(rows)):
        if device[k] != owner:
            owner, ready = device[k], int64(-1)
            key, t = keys[owner], which[owner]
            cut, lead = cuts[t], guide[t]
        at, f = rows[k] * columns, 0
        while f < columns:
            chunk, place = (at + f) // _AT_ONCE, (at + f) % _AT_ONCE
            if chunk != ready:
                ready = chunk
                _fill(
                    key, nonce, chunk, words, block, noise, cut, lead, last[t], shift[t], scale[t]
                )
            some = min(_AT_ONCE - place, columns - f)
            for j in range(some):
                values[k, f + j] += noise[place + j]
            f += some


@njit(nogil=True, cache=True)
def _add_all(sums, start, keys, which, round, columns, cuts, guide, last, shift, scale):
    """Rows in pieces that stay near the processor while all devices add to them."""
    piece = max(1, 8192 // columns)
    rows, device = np.empty(piece, dtype=np.int64), np.empty(piece, dtype=np.int64)
    for begin in range(0, len(sums), piece):
        some = min(piece, len(sums) - begin)
        for k in range(some):
            rows[k] = start + begin + k
        for d in range(len(keys)):
            device[:] = d
            _add_rows(
                sums[begin : begin + some], rows[:some], device[:some], keys, which, round, columns,
                cuts, guide, last, shift, scale,
            )  # fmt: skip
