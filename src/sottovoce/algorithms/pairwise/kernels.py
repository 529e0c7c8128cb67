"""The compiled half of factors.py: the step, and five loops around it.

How the loops are made fast, and why that changes no result:

- Rows are values in vector registers (rows.py, simd_rows.py).
- `learn_summed` takes GROUP devices in lockstep, draw by draw. One device's draws form a chain (the
  next score needs the vector just moved), so a single chain would leave the processor waiting.
- Sums are kept in 32 bits, half the memory traffic. Where one overflows, which the addition
  notices, the lost 2**32 goes to a 64-bit table: the two together are always the exact sum.
- A draw that may not leave adds its positive update to a spare last row, so that no branch hangs
  on a coin.
- `learn_single` (one draw a round) makes the draws of BLOCK rounds ahead and prefetches their rows;
  draws depend on keys alone. `sum_single` does so for BLOCK devices of a cohort that draw once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy import float32, int32, int64, uint64

from sottovoce import rng
from sottovoce.algorithms import rows
from sottovoce.algorithms.rows import (
    add_to,
    as_float,
    constant,
    load,
    load_extended,
    prefetch,
    rounded,
    store,
    store_first,
    take_from,
    total,
    with_one,
)
from sottovoce.compiled import njit
from sottovoce.core import messages
from sottovoce.core.consent import ALWAYS
from sottovoce.core.messages import GRID, LIMIT
from sottovoce.errors import DataError
from sottovoce.rng import GAMMA, LOW32, below, draw, mix

# --- what a device draws -------------------------------------------------------------------------
# A pure function of its key and the number of the draw: draw t of a device takes the word
# `draw(key, t)` (rng.py). Its high half picks one of the device's interactions, the positive. Its
# low half picks an item of the catalogue, the negative; while that is one of the device's own, the
# word is mixed again. A second stream of words, the coins, decides which positive updates leave.
# Other implementations (a GPU's) draw the same from the fast generator.

# Kernels carry no types (numba infers them); their callers do.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated, assignment"
# mypy: disable-error-code="unreachable"

_ALWAYS = np.uint64(ALWAYS)
WORTH_MARKING = 8
"""Interactions per draw up to which a set of them is marked rather than searched."""
SIEVE = 16
"""Bits per interaction of the sieve: 6 of 100 strangers slip through and are searched for."""


# --- sets of items as bits, and of a device's own ------------------------------------------------


@njit(alone=True)
def is_marked(bits, item):
    return (bits[item >> uint64(6)] >> (item & uint64(63))) & uint64(1) != uint64(0)


@njit(alone=True)
def mark(bits, item):
    bits[item >> uint64(6)] |= uint64(1) << (item & uint64(63))


@njit(inline="always")
def popcount(word):
    word = word - ((word >> uint64(1)) & uint64(0x5555555555555555))
    word = (word & uint64(0x3333333333333333)) + ((word >> uint64(2)) & uint64(0x3333333333333333))
    word = (word + (word >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return int64((word * uint64(0x0101010101010101)) >> uint64(56))


@njit
def count_distinct(negatives, triples, bits):
    """The number of distinct items. `bits` is a scratch set, empty before and after."""
    for t in range(triples):
        mark(bits, uint64(negatives[t]))
    distinct = 0
    for t in range(triples):
        word = uint64(negatives[t]) >> uint64(6)
        distinct += popcount(bits[word])
        bits[word] = uint64(0)
    return distinct


@njit(alone=True)
def holds(items, start, count, item):
    """Whether a device's ascending interactions hold this item; a search without branches."""
    first, left = uint64(start), uint64(count)
    while left > uint64(1):
        half = left >> uint64(1)
        first = first + half if uint64(items[first + half]) <= item else first
        left -= half
    return uint64(items[first]) == item


@njit(inline="always")
def hole(start, count, item):
    """The bit of the sieve for an item of the device whose interactions begin at `start`."""
    word = (uint64(item) * uint64(2654435761)) & uint64(0xFFFFFFFF)
    return uint64(start * SIEVE) + ((word * uint64(count * SIEVE)) >> uint64(32))


@njit(nogil=True, cache=True)
def fill_sieve(indptr, items, sieve):
    """SIEVE bits per interaction, in `sieve` (one byte holds eight), one of them set."""
    for row in range(indptr.shape[0] - 1):
        start = indptr[row]
        count = indptr[row + 1] - start
        for c in range(start, start + count):
            at = hole(start, count, items[c])
            sieve[at >> uint64(3)] |= np.uint8(uint64(1) << (at & uint64(7)))


@njit
def owns(items, start, count, item, sieve):
    """`holds`, with the sieve, where there is one, answering most questions."""
    if sieve.shape[0] > 0:
        at = hole(start, count, item)
        if (uint64(sieve[at >> uint64(3)]) >> (at & uint64(7))) & uint64(1) == uint64(0):
            return False
    return holds(items, start, count, item)


# --- draws ---------------------------------------------------------------------------------------


@njit(alone=True)
def checked(count, n_items):
    """The number of a device's positives, if it can draw both a positive and a negative."""
    if count < 1 or count >= n_items:
        raise DataError("a user with no item, or with every item, cannot learn from pairs")
    return count


@njit(alone=True)
def known(item, n_items):
    """The item, if the catalogue has it; what follows writes to its row unchecked."""
    if item < 0 or item >= n_items:
        raise DataError("an interaction names an item that the model does not have")
    return item


@njit(alone=True)
def draw_device(key, triples, bits, items, start, count, n_items, entries, negatives):
    """All draws of a device: which of its interactions is the positive, and a negative by
    rejection. The high half of a word draws the one, the low half the other; a rejected word is
    mixed again. `bits` is a scratch set over the catalogue, empty before and after; where draws are
    few, interactions are searched instead."""
    checked(count, n_items)
    known(items[start], n_items)
    known(items[start + count - 1], n_items)
    search = triples * WORTH_MARKING < count
    if not search:
        for c in range(start, start + count):
            mark(bits, uint64(items[c]))
    for t in range(triples):
        word = draw(key, t)
        entries[t] = start + int64(below(word >> uint64(32), count))
        negatives[t] = int32(below(word & LOW32, n_items))
    for t in range(triples):
        item = uint64(negatives[t])
        if holds(items, start, count, item) if search else is_marked(bits, item):
            word = draw(key, t)
            while holds(items, start, count, item) if search else is_marked(bits, item):
                word = mix(word + GAMMA)
                item = below(word & LOW32, n_items)
            negatives[t] = int32(item)
    if not search:
        for c in range(start, start + count):
            bits[uint64(items[c]) >> uint64(6)] = uint64(0)


@njit
def choose_targets(
    key, share, allowed, triples, items, start, count, entries, positives, targets, spare, seen
):
    """The positive item of each draw, the row its update is added to (`spare` where it stays at
    home), and the number of distinct positives that leave. `seen` is a scratch set of this
    device's interactions, empty before and after."""
    every = share >= _ALWAYS
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


@njit(inline="always")
def coin(key, number):
    """32 bits that decide whether draw `number` sends its positive update."""
    return draw(key, number) >> uint64(32)


@njit
def draw_singles(
    first, together, rows, indptr, items, n_items, keys, share_keys, share, allowed, sieve,
    words, entries, drawn_i, drawn_j, leaves, positives, negatives,
):  # fmt: skip
    """The one draw of each of these devices, from the `first` on: its items, whether the positive
    leaves, and how many rows of each kind that makes."""
    by_item = allowed.shape[0] > 0
    for b in range(together):
        row = rows[first + b]
        start = indptr[row]
        count = checked(indptr[row + 1] - start, n_items)
        word = draw(keys[first + b], 0)
        words[b] = word
        entries[b] = start + int64(below(word >> uint64(32), count))
        prefetch(items, entries[b], 1)
        if sieve.shape[0] > 0:
            at = hole(start, count, below(word & LOW32, n_items))
            prefetch(sieve, int64(at >> uint64(3)), 1)
    for b in range(together):
        n = first + b
        start = indptr[rows[n]]
        word = words[b]
        j = below(word & LOW32, n_items)
        while owns(items, start, indptr[rows[n] + 1] - start, j, sieve):
            word = mix(word + GAMMA)
            j = below(word & LOW32, n_items)
        leaves[b] = coin(share_keys[n], 0) < share[n]
        if by_item:
            leaves[b] = leaves[b] and allowed[entries[b]]
        drawn_j[b] = int64(j)
        drawn_i[b] = known(items[entries[b]], n_items)
        positives[n] = leaves[b]
        negatives[n] = 1


# --- steps and rounds ----------------------------------------------------------------------------

GROUP = 8
"""Devices in lockstep."""
BLOCK = 32
"""Rounds whose draws are made ahead."""

_SCALE = np.float32(GRID)
_LIMIT = np.float32(LIMIT * GRID)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_CARRY = np.int64(1 << 32)
_HIGHEST = np.int64((1 << 31) - 1)
_LOWEST = np.int64(-(1 << 31))


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


@njit(alone=True, inline="always")
def exponential(x):
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


@njit(alone=True, inline="always")
def slope(x):
    """σ(−x)."""
    return _ONE / (_ONE + exponential(x))


# --- exact sums in 32 bits -----------------------------------------------------------------------


@njit
def carry(low, high, row, lost, over, sign):
    """After `low[row] += sign * lost` overflowed: what 32 bits could not hold goes to `high`. A row
    that `high` does not have is a spare one."""
    if over and row < high.shape[0]:
        for f in range(high.shape[1]):
            before = int64(low[row, f]) - sign * int64(lost[f])
            if before < _LOWEST:
                high[row, f] += _CARRY
            elif before > _HIGHEST:
                high[row, f] -= _CARRY


@njit(nogil=True, cache=True)
def widen(low, sums):
    """sums = low."""
    for row in range(sums.shape[0]):
        for f in range(sums.shape[1]):
            sums[row, f] = int64(low[row, f])


@njit(nogil=True, cache=True)
def fold_sums(model, sums, rate):
    """model += rate · sums."""
    for row in range(model.shape[0]):
        for f in range(model.shape[1]):
            model[row, f] += rate * float32(sums[row, f])


@njit(nogil=True, cache=True)
def add_rows(model, item, sums, rate):
    """model[item] += rate · sums."""
    for k in range(item.shape[0]):
        for f in range(model.shape[1]):
            model[item[k], f] += rate * float32(sums[k, f])


# --- the step ------------------------------------------------------------------------------------


@njit(alone=True, inline="always")
def score(p, q_i, q_j):
    return total(p * (q_i - q_j))


@njit(alone=True, inline="always")
def moved(p, q_i, q_j, s, rate, decay, column):
    """The user's vector after a step; the column that meets the bias stays 1."""
    return with_one(p + ((rate * s) * (q_i - q_j) - decay * p), column)


@njit(alone=True, inline="always")
def pull(p, q_j, s, reg_j):
    """−Δj on the grid. `reg_j` and `reg_i` are in steps of the grid already."""
    return rounded((_SCALE * s) * p + reg_j * q_j, _LIMIT)


@njit(alone=True, inline="always")
def push(p, q_i, s, reg_i):
    """Δi on the grid."""
    return rounded((_SCALE * s) * p - reg_i * q_i, _LIMIT)


# --- kernels for one embedding size ---------------------------------------------------------------


def _stamp() -> int:
    """A number for the code that is compiled into the kernels from other files. Numba's cache looks
    at this file alone; the number stands for the others in its key."""
    digest = hashlib.blake2b(digest_size=7)
    of_rows = Path(str(rows.__file__)).with_name("simd_rows.py")
    for path in (of_rows, str(messages.__file__), str(rng.__file__)):
        digest.update(Path(path).read_bytes())
    return int.from_bytes(digest.digest(), "little")


@dataclass(frozen=True, slots=True)
class Kernels:
    """The compiled kernels for one embedding size."""

    learn_rows: Any
    learn_summed: Any
    learn_rounds: Any
    learn_single: Any
    sum_single: Any


@cache
def kernels(embedding_size: int) -> Kernels:
    """Kernels with the row width as a compile-time constant."""
    F = embedding_size
    W = embedding_size + 1
    G = GROUP
    B = BLOCK
    CODE = _stamp()

    @njit(alone=True, nogil=True, error_model="numpy", cache=True)
    def learn_rows(
        vectors, rows, indptr, items, model, keys, triples, step, bits, updates,
        out_entry, out_item, out_values,
    ):  # fmt: skip
        """Of device n and draw t, update 2(nT + t) is the negative's, the next the positive's."""
        CODE  # noqa: B018
        rate, decay = step[0], step[1]
        reg_i, reg_j = constant(step[2], F, step[4]), constant(step[3], F, step[4])
        drawn_j = np.empty(triples, dtype=np.int32)
        for n in range(rows.shape[0]):
            row = rows[n]
            start = indptr[row]
            entries = out_entry[n * triples : (n + 1) * triples]
            draw_device(
                keys[n], triples, bits, items, start, indptr[row + 1] - start, model.shape[0],
                entries, drawn_j,
            )  # fmt: skip
            p = load_extended(vectors, row, F)
            for t in range(triples):
                i, j = int64(items[entries[t]]), int64(drawn_j[t])
                q_i, q_j = load(model, i, W), load(model, j, W)
                s = slope(score(p, q_i, q_j))
                store(updates, 0, pull(p, q_j, s, reg_j))
                store(updates, 1, push(p, q_i, s, reg_i))
                p = moved(p, q_i, q_j, s, rate, decay, F)
                at = 2 * (n * triples + t)
                out_item[at], out_item[at + 1] = j, i
                for f in range(W):
                    out_values[at, f] = -updates[0, f]
                    out_values[at + 1, f] = updates[1, f]
            store_first(vectors, row, F, p)

    @njit(nogil=True, error_model="numpy", cache=True)
    def learn_summed(
        vectors, rows, indptr, items, model, keys, triples, step, bits, updates,
        share_keys, share, allowed, seen, moving, x, s, low, high, positives, negatives,
    ):  # fmt: skip
        """`low` + `high` gains every update that may leave; `positives` and `negatives` count the
        distinct items that each device sends. `low` has G spare rows. Returns whether `high` was
        used."""
        CODE  # noqa: B018
        rate, decay = step[0], step[1]
        reg_i, reg_j = constant(step[2], F, step[4]), constant(step[3], F, step[4])
        entries = np.empty(triples, dtype=np.int64)
        drawn_i = np.empty((G, triples), dtype=np.int32)
        drawn_j = np.empty((G, triples), dtype=np.int32)
        target = np.empty((G, triples), dtype=np.int32)
        carried = False
        for first in range(0, rows.shape[0], G):
            together = min(G, rows.shape[0] - first)
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
                    drawn_i[g], target[g], model.shape[0] + g, seen,
                )  # fmt: skip
                negatives[n] = count_distinct(drawn_j[g], triples, bits)
                store(moving, g, load_extended(vectors, row, F))
            for t in range(triples):
                for g in range(together):
                    q_i = load(model, int64(drawn_i[g, t]), W)
                    q_j = load(model, int64(drawn_j[g, t]), W)
                    x[g] = score(load(moving, g, W), q_i, q_j)
                    ahead = min(t + 1, triples - 1)
                    prefetch(low, int64(drawn_j[g, t]), W)
                    prefetch(low, int64(target[g, t]), W)
                    prefetch(model, int64(drawn_j[g, ahead]), W)
                    prefetch(model, int64(drawn_i[g, ahead]), W)
                for g in range(x.shape[0]):
                    s[g] = slope(x[g])
                for g in range(together):
                    i, j, to = int64(drawn_i[g, t]), int64(drawn_j[g, t]), int64(target[g, t])
                    p, q_i, q_j = load(moving, g, W), load(model, i, W), load(model, j, W)
                    store(moving, g, moved(p, q_i, q_j, s[g], rate, decay, F))
                    update_j, update_i = pull(p, q_j, s[g], reg_j), push(p, q_i, s[g], reg_i)
                    over_j, over_i = take_from(low, j, update_j), add_to(low, to, update_i)
                    if over_j | over_i:
                        store(updates, 0, update_j)
                        store(updates, 1, update_i)
                        carry(low, high, j, updates[0], over_j, -1)
                        carry(low, high, to, updates[1], over_i, 1)
                        carried = True
            for g in range(together):
                store_first(vectors, rows[first + g], F, load(moving, g, W))
        return carried

    @njit(nogil=True, error_model="numpy", cache=True)
    def learn_rounds(
        vectors, rows, indptr, items, model, keys, triples, step, bits, updates,
        share_keys, share, allowed, seen, fold_rate, low, high, positives, negatives,
    ):  # fmt: skip
        """Round n has the one client rows[n]; the model moves after every round. `low` (with a
        spare row) and `high` are scratch tables of zeros and are left so, but for the spare."""
        CODE  # noqa: B018
        rate, decay = step[0], step[1]
        reg_i, reg_j = constant(step[2], F, step[4]), constant(step[3], F, step[4])
        zeros = constant(_ZERO, F, _ZERO)
        entries = np.empty(triples, dtype=np.int64)
        drawn_i = np.empty(triples, dtype=np.int32)
        drawn_j = np.empty(triples, dtype=np.int32)
        target = np.empty(triples, dtype=np.int32)
        touched = np.empty(2 * triples, dtype=np.int64)
        spare = model.shape[0]
        for n in range(rows.shape[0]):
            row = rows[n]
            start = indptr[row]
            count = indptr[row + 1] - start
            draw_device(
                keys[n], triples, bits, items, start, count, model.shape[0], entries, drawn_j
            )
            positives[n] = choose_targets(
                share_keys[n], share[n], allowed, triples, items, start, count, entries,
                drawn_i, target, spare, seen,
            )  # fmt: skip
            negatives[n] = count_distinct(drawn_j, triples, bits)
            p = load_extended(vectors, row, F)
            rows_touched = 0
            carried = False
            for t in range(triples):
                i, j, to = int64(drawn_i[t]), int64(drawn_j[t]), int64(target[t])
                q_i, q_j = load(model, i, W), load(model, j, W)
                s = slope(score(p, q_i, q_j))
                update_j, update_i = pull(p, q_j, s, reg_j), push(p, q_i, s, reg_i)
                p = moved(p, q_i, q_j, s, rate, decay, F)
                over_j, over_i = take_from(low, j, update_j), add_to(low, to, update_i)
                if over_j | over_i:
                    store(updates, 0, update_j)
                    store(updates, 1, update_i)
                    carry(low, high, j, updates[0], over_j, -1)
                    carry(low, high, to, updates[1], over_i, 1)
                    carried = True
                touched[rows_touched] = j
                touched[rows_touched + 1] = to
                rows_touched += 1 + int64(to != spare)
            store_first(vectors, row, F, p)
            for k in range(rows_touched):  # a row met twice is zero by then
                item = touched[k]
                if carried:
                    for f in range(W):
                        model[item, f] += fold_rate * float32(int64(low[item, f]) + high[item, f])
                        high[item, f] = 0
                else:
                    store(
                        model, item, load(model, item, W) + fold_rate * as_float(load(low, item, W))
                    )
                store(low, item, rounded(zeros, _LIMIT))

    @njit(nogil=True, error_model="numpy", cache=True)
    def learn_single(
        vectors, rows, indptr, items, model, keys, step, share_keys, share, allowed, fold_rate,
        sieve, positives, negatives,
    ):  # fmt: skip
        """`learn_rounds` with one draw a round. A client's positive is never its negative, so each
        update goes straight to its row."""
        CODE  # noqa: B018
        rate, decay = step[0], step[1]
        reg_i, reg_j = constant(step[2], F, step[4]), constant(step[3], F, step[4])
        words = np.empty(B, dtype=np.uint64)
        entries = np.empty(B, dtype=np.int64)
        drawn_i = np.empty(B, dtype=np.int64)
        drawn_j = np.empty(B, dtype=np.int64)
        leaves = np.empty(B, dtype=np.bool_)
        for first in range(0, rows.shape[0], B):
            together = min(B, rows.shape[0] - first)
            for b in range(together):
                prefetch(vectors, rows[first + b], F)
            draw_singles(
                first, together, rows, indptr, items, model.shape[0], keys, share_keys, share,
                allowed, sieve, words, entries, drawn_i, drawn_j, leaves, positives, negatives,
            )  # fmt: skip
            for b in range(together):
                prefetch(model, drawn_i[b], W)
                prefetch(model, drawn_j[b], W)
            for b in range(together):
                row = rows[first + b]
                i, j = drawn_i[b], drawn_j[b]
                p, q_i, q_j = load_extended(vectors, row, F), load(model, i, W), load(model, j, W)
                s = slope(score(p, q_i, q_j))
                store(model, j, q_j - fold_rate * as_float(pull(p, q_j, s, reg_j)))
                leaving = fold_rate if leaves[b] else _ZERO
                store(model, i, q_i + leaving * as_float(push(p, q_i, s, reg_i)))
                store_first(vectors, row, F, moved(p, q_i, q_j, s, rate, decay, F))

    @njit(nogil=True, error_model="numpy", cache=True)
    def sum_single(
        vectors, rows, indptr, items, model, keys, step, share_keys, share, allowed, sieve,
        updates, x, s, low, high, positives, negatives,
    ):  # fmt: skip
        """`learn_summed` with one draw of each device; `low` has a spare row."""
        CODE  # noqa: B018
        rate, decay = step[0], step[1]
        reg_i, reg_j = constant(step[2], F, step[4]), constant(step[3], F, step[4])
        words = np.empty(B, dtype=np.uint64)
        entries = np.empty(B, dtype=np.int64)
        drawn_i = np.empty(B, dtype=np.int64)
        drawn_j = np.empty(B, dtype=np.int64)
        leaves = np.empty(B, dtype=np.bool_)
        target = np.empty(B, dtype=np.int64)
        carried = False
        for first in range(0, rows.shape[0], B):
            together = min(B, rows.shape[0] - first)
            for b in range(together):
                prefetch(vectors, rows[first + b], F)
            draw_singles(
                first, together, rows, indptr, items, model.shape[0], keys, share_keys, share,
                allowed, sieve, words, entries, drawn_i, drawn_j, leaves, positives, negatives,
            )  # fmt: skip
            for b in range(together):
                target[b] = drawn_i[b] if leaves[b] else model.shape[0]
                prefetch(model, drawn_i[b], W)
                prefetch(model, drawn_j[b], W)
                prefetch(low, drawn_j[b], W)
                prefetch(low, target[b], W)
            for b in range(together):
                q_i, q_j = load(model, drawn_i[b], W), load(model, drawn_j[b], W)
                x[b] = score(load_extended(vectors, rows[first + b], F), q_i, q_j)
            for b in range(x.shape[0]):
                s[b] = slope(x[b])
            for b in range(together):
                row, i, j, to = rows[first + b], drawn_i[b], drawn_j[b], target[b]
                p, q_i, q_j = load_extended(vectors, row, F), load(model, i, W), load(model, j, W)
                store_first(vectors, row, F, moved(p, q_i, q_j, s[b], rate, decay, F))
                update_j, update_i = pull(p, q_j, s[b], reg_j), push(p, q_i, s[b], reg_i)
                over_j, over_i = take_from(low, j, update_j), add_to(low, to, update_i)
                if over_j | over_i:
                    store(updates, 0, update_j)
                    store(updates, 1, update_i)
                    carry(low, high, j, updates[0], over_j, -1)
                    carry(low, high, to, updates[1], over_i, 1)
                    carried = True
        return carried

    return Kernels(learn_rows, learn_summed, learn_rounds, learn_single, sum_single)
