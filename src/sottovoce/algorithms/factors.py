"""Pair-wise steps on factor models: the kernels that FPL and BPR-MF share.

One step, for a user with vector p, a positive item i and a negative item j (rows q, the last column
of a row being the item's bias, so that p is extended by a constant 1):

    x  = p·(q_i − q_j)            s = σ(−x)
    Δj = −s·p − λ_j q_j           Δi = s·p − λ_i q_i          (rounded to the grid, messages.py)
    p ← p + α (s (q_i − q_j) − λ_u p)

Three kernels do this step in three settings: `learn_rows` writes every Δ out, `learn_summed` adds
them up over a whole cohort, `learn_rounds` runs many rounds of one client each and applies Δ after
each round. They share every arithmetic line, so their results are equal bit for bit.

Draws are a pure function of a device's key (rng.py) and the number of the draw, so a device can be
computed anywhere, in any order.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numba import float32, int32, int64, njit, uint64
from numpy.typing import NDArray

from sottovoce.consent import ShareRule
from sottovoce.messages import GRID, LIMIT
from sottovoce.rng import GAMMA, LOW32, below, mix

LANES = 16
_SCALE = np.float32(GRID)
_LIMIT = np.float32(LIMIT * GRID)
_ONE = np.float32(1.0)
ALWAYS = np.uint64(1 << 32)
"""The threshold of a draw that always sends."""


@dataclass(frozen=True, slots=True)
class PairStep:
    """The constants of a step."""

    learning_rate: float
    reg_user: float
    reg_positive: float
    reg_negative: float
    reg_bias: float

    def columns(self, embedding_size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """λ_i and λ_j per padded column of an item row."""
        positive = np.zeros(padded_width(embedding_size), dtype=np.float32)
        negative = positive.copy()
        positive[:embedding_size] = self.reg_positive
        negative[:embedding_size] = self.reg_negative
        positive[embedding_size] = negative[embedding_size] = self.reg_bias
        return positive, negative


def padded_width(embedding_size: int) -> int:
    """Columns of a padded item row: factors, bias, and zeros up to whole cache lines."""
    return -(-(embedding_size + 1) // LANES) * LANES


def padded(items: NDArray[np.float32]) -> NDArray[np.float32]:
    """Item rows with zero columns up to `padded_width`."""
    rows = np.zeros((len(items), padded_width(items.shape[1] - 1)), dtype=np.float32)
    rows[:, : items.shape[1]] = items
    return rows


def thresholds(share: NDArray[np.floating]) -> NDArray[np.uint64]:
    """A draw is sent where its 32-bit word lies below this."""
    return np.round(np.asarray(share, dtype=np.float64) * float(ALWAYS)).astype(np.uint64)


# --- the step, piece by piece; strict arithmetic except for the order of the sum in `_score` -----


@njit(fastmath={"reassoc", "contract"})
def _score(p, positive, negative):  # type: ignore[no-untyped-def]
    x = float32(0.0)
    for f in range(p.shape[0]):
        x += p[f] * (positive[f] - negative[f])
    return x


@njit
def _on_grid(value):  # type: ignore[no-untyped-def]
    return int32(np.rint(min(max(value * _SCALE, -_LIMIT), _LIMIT)))


@njit
def _draw(key, number, bits, items, start, count, n_items):  # type: ignore[no-untyped-def]
    """Draw `number` of a device: a positive, and a negative by rejection."""
    word = mix(key + uint64(number + 1) * GAMMA)
    positive = start + int64(below(word >> uint64(32), count))
    negative = int64(below(word & LOW32, n_items))
    while (bits[negative >> 6] >> uint64(negative & 63)) & uint64(1):
        word = mix(word + GAMMA)
        negative = int64(below(word & LOW32, n_items))
    return positive, negative


@njit
def _coin(key, number):  # type: ignore[no-untyped-def]
    return mix(key + uint64(number + 1) * GAMMA) >> uint64(32)


@njit
def _apply_row(row, values, rate):  # type: ignore[no-untyped-def]
    for f in range(row.shape[0]):
        row[f] += rate * float32(values[f])


@njit(nogil=True)
def _apply_sums(model, sums, rate):  # type: ignore[no-untyped-def]
    for k in range(model.shape[0]):
        _apply_row(model[k], sums[k], rate)


@dataclass(frozen=True, slots=True)
class Kernels:
    """The compiled kernels for one embedding size."""

    learn_rows: Any
    learn_summed: Any
    learn_rounds: Any


@lru_cache(maxsize=None)
def kernels(embedding_size: int) -> Kernels:
    """Kernels with the row width as a compile-time constant, which is what makes them vectorise."""
    F = embedding_size
    S = padded_width(embedding_size)

    @njit
    def load(vectors, row, p):  # type: ignore[no-untyped-def]
        for f in range(F):
            p[f] = vectors[row, f]
        for f in range(F, S):
            p[f] = float32(0.0)
        p[F] = _ONE

    @njit
    def step_user(p, s, positive, negative, rate, reg):  # type: ignore[no-untyped-def]
        for f in range(F):
            p[f] += rate * (s * (positive[f] - negative[f]) - reg * p[f])

    @njit
    def mark(bits, items, start, count):  # type: ignore[no-untyped-def]
        for t in range(count):
            item = int64(items[start + t])
            bits[item >> 6] |= uint64(1) << uint64(item & 63)

    @njit
    def unmark(bits, items, start, count):  # type: ignore[no-untyped-def]
        for t in range(count):
            bits[int64(items[start + t]) >> 6] = uint64(0)

    @njit(nogil=True, error_model="numpy")
    def learn_rows(  # type: ignore[no-untyped-def]
        vectors, rows, indptr, items, model, keys, triples, rate, reg, reg_i, reg_j, bits,
        out_entry, out_item, out_values,
    ):  # fmt: skip
        """For device n and draw t, entry 2(nT + t) is the negative's update, the next the positive's."""
        p = np.empty(S, dtype=np.float32)
        for n in range(rows.shape[0]):
            row = rows[n]
            start, count = indptr[row], indptr[row + 1] - indptr[row]
            load(vectors, row, p)
            mark(bits, items, start, count)
            for t in range(triples):
                entry, j = _draw(keys[n], t, bits, items, start, count, model.shape[0])
                i = int64(items[entry])
                s = _ONE / (_ONE + math.exp(_score(p, model[i], model[j])))
                at = 2 * (n * triples + t)
                out_item[at], out_item[at + 1] = j, i
                out_entry[n * triples + t] = entry
                for f in range(F + 1):
                    out_values[at, f] = _on_grid(-s * p[f] - reg_j[f] * model[j, f])
                    out_values[at + 1, f] = _on_grid(s * p[f] - reg_i[f] * model[i, f])
                step_user(p, s, model[i], model[j], rate, reg)
            unmark(bits, items, start, count)
            for f in range(F):
                vectors[row, f] = p[f]

    @njit(nogil=True, error_model="numpy")
    def learn_summed(  # type: ignore[no-untyped-def]
        vectors, rows, indptr, items, model, keys, triples, rate, reg, reg_i, reg_j, bits,
        share_keys, share, allowed, sent, sums, positives, negatives,
    ):  # fmt: skip
        """`sums` gains every update that may leave; `positives` and `negatives` count the distinct
        items that each device sends."""
        p = np.empty(S, dtype=np.float32)
        drawn_i = np.empty(triples, dtype=np.int64)
        drawn_j = np.empty(triples, dtype=np.int64)
        by_item = allowed.shape[0] > 0
        for n in range(rows.shape[0]):
            row = rows[n]
            start, count = indptr[row], indptr[row + 1] - indptr[row]
            load(vectors, row, p)
            mark(bits, items, start, count)
            n_positive = n_negative = 0
            for t in range(triples):
                entry, j = _draw(keys[n], t, bits, items, start, count, model.shape[0])
                i = int64(items[entry])
                drawn_j[t] = j
                flag = uint64(1) << uint64(j & 63)
                n_negative += int64((sent[j >> 6] & flag) == uint64(0))
                sent[j >> 6] |= flag
                leaves = _coin(share_keys[n], t) < share[n]
                if by_item:
                    leaves = leaves and allowed[entry]
                if leaves:
                    flag = uint64(1) << uint64(i & 63)
                    n_positive += int64((sent[i >> 6] & flag) == uint64(0))
                    sent[i >> 6] |= flag
                    drawn_i[t] = i
                else:
                    drawn_i[t] = -i - 1
            for t in range(triples):
                i, j = drawn_i[t], drawn_j[t]
                leaves = i >= 0
                if not leaves:
                    i = -i - 1
                sent[i >> 6] = uint64(0)
                sent[j >> 6] = uint64(0)
                s = _ONE / (_ONE + math.exp(_score(p, model[i], model[j])))
                for f in range(S):
                    sums[j, f] += int64(_on_grid(-s * p[f] - reg_j[f] * model[j, f]))
                if leaves:
                    for f in range(S):
                        sums[i, f] += int64(_on_grid(s * p[f] - reg_i[f] * model[i, f]))
                step_user(p, s, model[i], model[j], rate, reg)
            unmark(bits, items, start, count)
            positives[n] = n_positive
            negatives[n] = n_negative
            for f in range(F):
                vectors[row, f] = p[f]

    @njit(nogil=True, error_model="numpy")
    def learn_rounds(  # type: ignore[no-untyped-def]
        vectors, rows, indptr, items, model, keys, triples, rate, reg, reg_i, reg_j, bits,
        share_keys, share, allowed, fold_rate, sums, positives, negatives,
    ):  # fmt: skip
        """Round n has the one client rows[n]; the model moves after every round. `sums` is a
        scratch table of zeros and is left so."""
        p = np.empty(S, dtype=np.float32)
        touched = np.empty(2 * triples, dtype=np.int64)
        by_item = allowed.shape[0] > 0
        for n in range(rows.shape[0]):
            row = rows[n]
            start, count = indptr[row], indptr[row + 1] - indptr[row]
            load(vectors, row, p)
            mark(bits, items, start, count)
            n_positive = n_negative = 0
            for t in range(triples):
                entry, j = _draw(keys[n], t, bits, items, start, count, model.shape[0])
                i = int64(items[entry])
                s = _ONE / (_ONE + math.exp(_score(p, model[i], model[j])))
                leaves = _coin(share_keys[n], t) < share[n]
                if by_item:
                    leaves = leaves and allowed[entry]
                fresh = True
                for k in range(n_negative):
                    if touched[k] == j:
                        fresh = False
                if fresh:
                    touched[n_negative] = j
                    n_negative += 1
                for f in range(S):
                    sums[j, f] += int64(_on_grid(-s * p[f] - reg_j[f] * model[j, f]))
                if leaves:
                    fresh = True
                    for k in range(n_positive):
                        if touched[triples + k] == i:
                            fresh = False
                    if fresh:
                        touched[triples + n_positive] = i
                        n_positive += 1
                    for f in range(S):
                        sums[i, f] += int64(_on_grid(s * p[f] - reg_i[f] * model[i, f]))
                step_user(p, s, model[i], model[j], rate, reg)
            for k in range(n_negative):
                _apply_row(model[touched[k]], sums[touched[k]], fold_rate)
                sums[touched[k]] = int64(0)
            for k in range(n_positive):
                _apply_row(model[touched[triples + k]], sums[touched[triples + k]], fold_rate)
                sums[touched[triples + k]] = int64(0)
            unmark(bits, items, start, count)
            positives[n] = n_positive
            negatives[n] = n_negative
            for f in range(F):
                vectors[row, f] = p[f]

    return Kernels(learn_rows, learn_summed, learn_rounds)


def learn_rows(
    step: PairStep,
    model: NDArray[np.float32],
    vectors: NDArray[np.float32],
    rows: NDArray[np.int64],
    indptr: NDArray[np.int64],
    items: NDArray[np.int32],
    keys: NDArray[np.uint64],
    triples: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """Every draw's updates written out; `vectors` moves in place. Returns the interaction drawn as
    positive per draw, and item and values per update (negative, positive, negative, ...)."""
    size = vectors.shape[1]
    entry = np.empty(len(rows) * triples, dtype=np.int64)
    item = np.empty(2 * len(entry), dtype=np.int32)
    values = np.empty((2 * len(entry), size + 1), dtype=np.int32)
    reg_i, reg_j = step.columns(size)
    kernels(size).learn_rows(
        vectors, rows, indptr, items, model, keys, triples,
        np.float32(step.learning_rate), np.float32(step.reg_user), reg_i, reg_j,
        _bitset(len(model)), entry, item, values,
    )  # fmt: skip
    return entry, item, values


def learn_summed(
    step: PairStep,
    model: NDArray[np.float32],
    vectors: NDArray[np.float32],
    rows: NDArray[np.int64],
    indptr: NDArray[np.int64],
    items: NDArray[np.int32],
    keys: NDArray[np.uint64],
    triples: int,
    rule: ShareRule,
    threads: int = 1,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """The sum over the cohort of all updates that may leave, and each device's number of positive
    and negative rows sent. `model` is padded; `vectors` moves in place. `rows` are distinct."""
    size = vectors.shape[1]
    reg_i, reg_j = step.columns(size)
    learn = kernels(size).learn_summed
    positives = np.empty(len(rows), dtype=np.int32)
    negatives = np.empty(len(rows), dtype=np.int32)

    def part(span: slice) -> NDArray[np.int64]:
        sums = np.zeros(model.shape, dtype=np.int64)
        learn(
            vectors, rows[span], indptr, items, model, keys[span], triples,
            np.float32(step.learning_rate), np.float32(step.reg_user), reg_i, reg_j,
            _bitset(len(model)), rule.keys[span], rule.threshold[span], rule.allowed,
            _bitset(len(model)), sums, positives[span], negatives[span],
        )  # fmt: skip
        return sums

    spans = _spans(len(rows), threads)
    if len(spans) == 1:
        return part(spans[0]), positives, negatives
    with ThreadPoolExecutor(len(spans)) as pool:
        total, *others = pool.map(part, spans)
    for other in others:
        total += other
    return total, positives, negatives


def learn_rounds(
    step: PairStep,
    model: NDArray[np.float32],
    vectors: NDArray[np.float32],
    rows: NDArray[np.int64],
    indptr: NDArray[np.int64],
    items: NDArray[np.int32],
    keys: NDArray[np.uint64],
    triples: int,
    rule: ShareRule,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """len(rows) rounds of one client each. `model` (padded) and `vectors` move in place."""
    size = vectors.shape[1]
    reg_i, reg_j = step.columns(size)
    positives = np.empty(len(rows), dtype=np.int32)
    negatives = np.empty(len(rows), dtype=np.int32)
    kernels(size).learn_rounds(
        vectors, rows, indptr, items, model, keys, triples,
        np.float32(step.learning_rate), np.float32(step.reg_user), reg_i, reg_j,
        _bitset(len(model)), rule.keys, rule.threshold, rule.allowed,
        fold_rate(step), np.zeros(model.shape, dtype=np.int64), positives, negatives,
    )  # fmt: skip
    return positives, negatives


def fold(step: PairStep, model: NDArray[np.float32], sums: NDArray[np.int64]) -> None:
    """model += α · sums, in place; both padded."""
    _apply_sums(model, sums, fold_rate(step))


def fold_rate(step: PairStep) -> np.float32:
    return np.float32(step.learning_rate / GRID)


def _bitset(n_items: int) -> NDArray[np.uint64]:
    return np.zeros((n_items + 63) // 64, dtype=np.uint64)


def _spans(n: int, threads: int) -> list[slice]:
    parts = max(1, min(threads, n // 64))
    edges = np.linspace(0, n, parts + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in zip(edges[:-1], edges[1:], strict=True)]
