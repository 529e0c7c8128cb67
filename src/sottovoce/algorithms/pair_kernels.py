"""The compiled half of factors.py: draws, the step, and four loops around it.

How the loops are made fast, and why that changes no result:

- Rows are values in vector registers (lanes.py).
- `learn_summed` takes GROUP devices in lockstep, draw by draw. One device's draws form a chain (the
  next score needs the vector just moved), so a single chain would leave the processor waiting.
- Sums are kept in 32 bits, half the memory traffic. Where one overflows, which the addition
  notices, the lost 2**32 goes to a 64-bit table: the two together are always the exact sum.
- A draw that may not leave adds its positive update to a spare last row, so that no branch hangs
  on a coin.
- `learn_single` (one draw a round) makes the draws of BLOCK rounds ahead and prefetches their rows;
  draws depend on keys alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numba import float32, int32, int64, njit, uint64

from sottovoce.algorithms.lanes import (
    LANES,
    add_to,
    as_float,
    load,
    load_extended,
    prefetch,
    rounded,
    store,
    store_first,
    total,
)
from sottovoce.messages import GRID, LIMIT
from sottovoce.rng import GAMMA, LOW32, below, mix

GROUP = 8
BLOCK = 64
ALWAYS = np.uint64(1 << 32)
"""The threshold of a draw that always sends."""

_SCALE = np.float32(GRID)
_LIMIT = np.float32(LIMIT * GRID)
_ONE = np.float32(1.0)
_CARRY = np.int64(1 << 32)
_HIGHEST = np.int64((1 << 31) - 1)
_LOWEST = np.int64(-(1 << 31))


def padded_width(embedding_size: int) -> int:
    """Columns of a padded item row: factors, bias, and zeros up to whole cache lines."""
    return -(-(embedding_size + 1) // LANES) * LANES


# --- σ(−x) in strict single precision ------------------------------------------------------------

_LOG2E = np.float32(1.44269504088896341)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_E2 = np.float32(5.0000001201e-1)
_E3 = np.float32(1.6666665459e-1)
_E4 = np.float32(4.1665795894e-2)
_E5 = np.float32(8.3334519073e-3)
_E6 = np.float32(1.3981999507e-3)
_E7 = np.float32(1.9875691500e-4)
_LARGEST = np.float32(88.0)
_SMALLEST = np.float32(-87.0)


@njit(inline="always")
def exponential(x):  # type: ignore[no-untyped-def]
    """e**x within 2 ulp on [-87, 88], constant beyond; Cephes' polynomial, arranged for short
    chains. Written out because libm's differs between machines and cannot be vectorised."""
    x = x if x < _LARGEST else _LARGEST
    x = x if x > _SMALLEST else _SMALLEST
    n = np.rint(x * _LOG2E)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    r2 = r * r
    tail = (_E2 + _E3 * r) + r2 * ((_E4 + _E5 * r) + r2 * (_E6 + _E7 * r))
    power = np.int32((int32(n) + int32(127)) << int32(23)).view(np.float32)
    return (_ONE + (r + r2 * tail)) * power


@njit(inline="always")
def slope(x):  # type: ignore[no-untyped-def]
    """σ(−x)."""
    return _ONE / (_ONE + exponential(x))


# --- draws: a pure function of a device's key and the number of the draw ---------------------------


@njit(inline="always")
def coin(key, number):  # type: ignore[no-untyped-def]
    """32 bits that decide whether draw `number` sends its positive update."""
    return mix(key + uint64(number + 1) * GAMMA) >> uint64(32)


@njit
def is_marked(bits, item):  # type: ignore[no-untyped-def]
    return (bits[item >> uint64(6)] >> (item & uint64(63))) & uint64(1) != uint64(0)


@njit
def mark(bits, item):  # type: ignore[no-untyped-def]
    bits[item >> uint64(6)] |= uint64(1) << (item & uint64(63))


@njit
def draw_device(key, triples, bits, items, start, count, n_items, entries, negatives):  # type: ignore[no-untyped-def]
    """All draws of a device: which of its interactions is the positive, and a negative by
    rejection. The high half of a word draws the one, the low half the other; a rejected word is
    mixed again. `bits` is a scratch set over the catalogue, empty before and after."""
    for c in range(start, start + count):
        mark(bits, uint64(items[c]))
    for t in range(triples):
        word = mix(key + uint64(t + 1) * GAMMA)
        entries[t] = start + int64(below(word >> uint64(32), count))
        negatives[t] = int32(below(word & LOW32, n_items))
    for t in range(triples):
        if is_marked(bits, uint64(negatives[t])):
            word = mix(key + uint64(t + 1) * GAMMA)
            item = below(word & LOW32, n_items)
            while is_marked(bits, item):
                word = mix(word + GAMMA)
                item = below(word & LOW32, n_items)
            negatives[t] = int32(item)
    for c in range(start, start + count):
        bits[uint64(items[c]) >> uint64(6)] = uint64(0)


@njit
def choose_targets(  # type: ignore[no-untyped-def]
    key, share, allowed, triples, items, start, count, entries, positives, targets, spare, seen
):
    """The positive item of each draw, the row its update is added to (`spare` where it stays at
    home), and the number of distinct positives that leave. `seen` is a scratch set of this
    device's interactions, empty before and after."""
    every = share >= ALWAYS
    by_item = allowed.shape[0] > 0
    for t in range(triples):
        entry = entries[t]
        item = items[entry]
        positives[t] = item
        leaves = every or coin(key, t) < share
        if by_item:
            leaves = leaves and allowed[entry]
        targets[t] = item if leaves else spare
        place = uint64(entry - start)
        seen[place >> uint64(6)] |= uint64(leaves) << (place & uint64(63))
    distinct = 0
    for w in range((count + 63) >> 6):
        distinct += popcount(seen[w])
        seen[w] = uint64(0)
    return distinct


@njit
def count_distinct(negatives, triples, bits):  # type: ignore[no-untyped-def]
    """The number of distinct items. `bits` is a scratch set, empty before and after."""
    for t in range(triples):
        mark(bits, uint64(negatives[t]))
    distinct = 0
    for t in range(triples):
        word = uint64(negatives[t]) >> uint64(6)
        distinct += popcount(bits[word])
        bits[word] = uint64(0)
    return distinct


@njit(inline="always")
def popcount(word):  # type: ignore[no-untyped-def]
    word = word - ((word >> uint64(1)) & uint64(0x5555555555555555))
    word = (word & uint64(0x3333333333333333)) + ((word >> uint64(2)) & uint64(0x3333333333333333))
    word = (word + (word >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return int64((word * uint64(0x0101010101010101)) >> uint64(56))


@njit
def owns(items, start, count, item):  # type: ignore[no-untyped-def]
    """Whether a device's ascending interactions hold this item; a search without branches."""
    first, left = start, count
    while left > 1:
        half = left >> 1
        first = first + half if items[first + half] <= item else first
        left -= half
    return items[first] == item


# --- kernels for one embedding size --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kernels:
    """The compiled kernels for one embedding size."""

    learn_rows: Any
    learn_summed: Any
    learn_rounds: Any
    learn_single: Any
    apply_sums: Any


@lru_cache(maxsize=None)
def kernels(embedding_size: int) -> Kernels:
    """Kernels with the row width as a compile-time constant."""
    F = embedding_size
    S = padded_width(embedding_size)
    SUMMED = GROUP
    AHEAD = BLOCK

    @njit(inline="always")
    def on_grid(update):  # type: ignore[no-untyped-def]
        return rounded(_SCALE * update, _LIMIT)

    @njit
    def carry(low, high, row, lost):  # type: ignore[no-untyped-def]
        """After `low[row] += lost` overflowed: what 32 bits could not hold goes to `high`."""
        for f in range(S):
            before = int64(low[row, f]) - int64(lost[0, f])
            if before < _LOWEST:
                high[row, f] += _CARRY
            elif before > _HIGHEST:
                high[row, f] -= _CARRY

    @njit(nogil=True, error_model="numpy")
    def learn_rows(  # type: ignore[no-untyped-def]
        vectors, rows, indptr, items, model, keys, triples, constants, bits, scratch,
        entries, negatives, out_entry, out_item, out_values,
    ):  # fmt: skip
        """For device n and draw t, entry 2(nT + t) is the negative's update, the next the positive's."""
        rate, reg = load(constants, 0, S), load(constants, 1, S)
        reg_i, reg_j = load(constants, 2, S), load(constants, 3, S)
        for n in range(rows.shape[0]):
            row = rows[n]
            start = indptr[row]
            count = indptr[row + 1] - start
            draw_device(
                keys[n], triples, bits, items, start, count, model.shape[0], entries, negatives
            )
            p = load_extended(vectors, row, F, S)
            for t in range(triples):
                i, j = int64(items[entries[t]]), int64(negatives[t])
                q_i, q_j = load(model, i, S), load(model, j, S)
                s = slope(total(p * (q_i - q_j)))
                store(scratch, 0, on_grid(-s * p - reg_j * q_j))
                store(scratch, 1, on_grid(s * p - reg_i * q_i))
                p = p + rate * (s * (q_i - q_j) - reg * p)
                at = 2 * (n * triples + t)
                out_entry[n * triples + t] = entries[t]
                out_item[at], out_item[at + 1] = j, i
                for f in range(F + 1):
                    out_values[at, f] = scratch[0, f]
                    out_values[at + 1, f] = scratch[1, f]
            store_first(vectors, row, F, p)

    @njit(nogil=True, error_model="numpy")
    def learn_summed(  # type: ignore[no-untyped-def]
        vectors, rows, indptr, items, model, keys, triples, constants, bits, scratch,
        share_keys, share, allowed, seen, low, high, positives, negatives,
    ):  # fmt: skip
        """`low` + `high` gains every update that may leave; `positives` and `negatives` count the
        distinct items that each device sends. Returns whether `high` was used."""
        entries = np.empty(triples, dtype=np.int64)
        drawn_i = np.empty((SUMMED, triples), dtype=np.int32)
        drawn_j = np.empty((SUMMED, triples), dtype=np.int32)
        target = np.empty((SUMMED, triples), dtype=np.int32)
        moving = np.zeros((SUMMED, S), dtype=np.float32)
        x = np.zeros(SUMMED, dtype=np.float32)
        s = np.zeros(SUMMED, dtype=np.float32)
        spilt = False
        for first in range(0, rows.shape[0], SUMMED):
            together = min(SUMMED, rows.shape[0] - first)
            for g in range(together):
                n = first + g
                row = rows[n]
                start = indptr[row]
                count = indptr[row + 1] - start
                draw_device(
                    keys[n], triples, bits, items, start, count, model.shape[0], entries, drawn_j[g]
                )
                positives[n] = choose_targets(
                    share_keys[n], share[n], allowed, triples, items, start, count, entries,
                    drawn_i[g], target[g], int32(model.shape[0]), seen,
                )  # fmt: skip
                negatives[n] = count_distinct(drawn_j[g], triples, bits)
                store(moving, g, load_extended(vectors, row, F, S))
            for t in range(triples):
                for g in range(together):
                    q_i = load(model, int64(drawn_i[g, t]), S)
                    q_j = load(model, int64(drawn_j[g, t]), S)
                    x[g] = total(load(moving, g, S) * (q_i - q_j))
                for g in range(SUMMED):
                    s[g] = slope(x[g])
                for g in range(together):
                    i, j, to = int64(drawn_i[g, t]), int64(drawn_j[g, t]), int64(target[g, t])
                    p, q_i, q_j = load(moving, g, S), load(model, i, S), load(model, j, S)
                    update = on_grid(-s[g] * p - load(constants, 3, S) * q_j)
                    if add_to(low, j, update):
                        store(scratch, 0, update)
                        carry(low, high, j, scratch)
                        spilt = True
                    update = on_grid(s[g] * p - load(constants, 2, S) * q_i)
                    if add_to(low, to, update):
                        store(scratch, 0, update)
                        carry(low, high, to, scratch)
                        spilt = True
                    p = p + load(constants, 0, S) * (
                        s[g] * (q_i - q_j) - load(constants, 1, S) * p
                    )
                    store(moving, g, p)
            for g in range(together):
                store_first(vectors, rows[first + g], F, load(moving, g, S))
        return spilt

    return Kernels(learn_rows, learn_summed, None, None, None)
