"""Pair-wise steps on factor models: what FPL and BPR-MF share.

One step, for a user with vector p, a positive item i and a negative item j (rows q, the last column
of a row being the item's bias, so that p is extended by a constant 1):

    x  = p·(q_i − q_j)            s = σ(−x)
    Δj = −s·p − λ_j q_j           Δi = s·p − λ_i q_i          (rounded to the grid, core.messages)
    p ← p + α (s (q_i − q_j) − λ_u p)

Three functions do this step in three settings: `learn_rows` writes every Δ out, `learn_summed` adds
them up over a whole cohort, `learn_rounds` runs many rounds of one client each and applies Δ after
each round. They share every arithmetic line (kernels.py), so their results are equal bit for
bit, whatever the number of threads and however a cohort is split.

Draws are a pure function of a device's key (rng.py) and the number of the draw, so a device can be
computed anywhere, in any order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sottovoce.algorithms.pairwise.kernels import (
    BLOCK,
    GROUP,
    SIEVE,
    add_rows,
    fill_sieve,
    fold_sums,
    kernels,
    widen,
)
from sottovoce.algorithms.rows import LANES, row_stride
from sottovoce.core.arrays import each, equal_spans, read_only
from sottovoce.core.consent import ShareRule
from sottovoce.core.messages import GRID
from sottovoce.errors import DataError
from sottovoce.rng import Keys

Draws = int | NDArray[np.int64]
"""The number of draws of every device, or of each."""
_LINE = 64
_WORTH_A_THREAD = 20_000
"""Draws below which a thread costs more than it brings."""
_CELLS_PER_DRAW = 12
"""Numbers of a table cleared and added up in a quarter of a draw's time, about."""
_ROUNDS_PER_SIEVE = 16
"""A sieve pays where there is a round for so many interactions."""


@dataclass(frozen=True, slots=True)
class PairStep:
    """The constants of a step."""

    learning_rate: float
    reg_user: float
    reg_positive: float
    reg_negative: float
    reg_bias: float

    def numbers(self) -> NDArray[np.float32]:
        """α, αλ_u, and λ_i, λ_j, λ_b in steps of the grid: what the kernels take."""
        rate = self.learning_rate
        regs = np.array([self.reg_positive, self.reg_negative, self.reg_bias]) * GRID
        return np.array([rate, rate * self.reg_user, *regs], dtype=np.float32)


def padded_width(embedding_size: int) -> int:
    """Columns of a padded item row: factors, bias, and zeros up to whole cache lines."""
    return row_stride(embedding_size + 1)


def padded(items: NDArray[np.float32]) -> NDArray[np.float32]:
    """Item rows with zero columns up to `padded_width`; each begins a cache line."""
    rows = _zeros((len(items), padded_width(items.shape[1] - 1)), np.float32)
    rows[:, : items.shape[1]] = items
    return rows


def learn_rows(
    step: PairStep,
    model: NDArray[np.float32],
    vectors: NDArray[np.float32],
    rows: NDArray[np.int64],
    indptr: NDArray[np.int64],
    items: NDArray[np.int32],
    keys: Keys,
    triples: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """Every draw's updates written out; `vectors` moves in place. Returns the interaction drawn as
    positive per draw, and item and values per update (negative, positive, negative, ...)."""
    _check(model, vectors, rows, indptr, items, keys, triples)
    size = vectors.shape[1]
    world = _world(indptr, items)
    entry = np.empty(len(rows) * triples, dtype=np.int64)
    item = np.empty(2 * len(entry), dtype=np.int32)
    values = np.empty((2 * len(entry), size + 1), dtype=np.int32)
    kernels(size).learn_rows(
        vectors, read_only(rows, np.int64), *world, read_only(model, np.float32),
        read_only(keys, keys.dtype), triples, step.numbers(), _bitset(len(model)),
        _zeros((2, model.shape[1]), np.int32), entry, item, values,
    )  # fmt: skip
    return entry, item, values


def learn_summed(
    step: PairStep,
    model: NDArray[np.float32],
    vectors: NDArray[np.float32],
    rows: NDArray[np.int64],
    indptr: NDArray[np.int64],
    items: NDArray[np.int32],
    keys: Keys,
    triples: Draws,
    rule: ShareRule,
    threads: int = 1,
    sieve: NDArray[np.uint8] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """The sum over the cohort of all updates that may leave, and each device's number of positive
    and negative rows sent. `model` is padded; `vectors` moves in place. `rows` are distinct.
    `triples` is the number of draws of every device, or of each. Where all draw once, callers of
    many rounds may pass `make_sieve(indptr, items)`; it saves time and changes nothing."""
    _check(model, vectors, rows, indptr, items, keys, triples, rule)
    learn = kernels(vectors.shape[1])
    strangers = _checked_sieve(sieve, items)
    world = _world(indptr, items)
    frozen = read_only(model if model.ctypes.data % _LINE == 0 else _line_up(model), np.float32)
    draws = (read_only(rows, np.int64), read_only(keys, keys.dtype))
    coins = (read_only(rule.keys, rule.keys.dtype), read_only(rule.threshold, np.uint64))
    allowed = read_only(rule.allowed, np.bool_)
    n_items, width = model.shape
    positives = np.empty(len(rows), dtype=np.int32)
    negatives = np.empty(len(rows), dtype=np.int32)

    def part(span: slice) -> tuple[NDArray[np.int32], NDArray[np.int64], bool]:
        low = _zeros((n_items + GROUP, width), np.int32)
        high = np.zeros((n_items, width), dtype=np.int64)
        updates, carried = _zeros((2, width), np.int32), False
        for many, place in _alike(triples, span):
            devices = vectors, draws[0][place], *world, frozen, draws[1][place]
            share = coins[0][place], coins[1][place], allowed
            sent = np.empty((2, len(draws[0][place])), dtype=np.int32)
            if many == 1:
                over = learn.sum_single(
                    *devices, step.numbers(), *share, strangers, updates,
                    *_zeros((2, BLOCK), np.float32), low, high, *sent,
                )  # fmt: skip
            else:
                over = learn.learn_summed(
                    *devices, many, step.numbers(), _bitset(n_items), updates,
                    *share, _bitset(n_items), _zeros((GROUP, width), np.float32),
                    *_zeros((2, LANES), np.float32), low, high, *sent,
                )  # fmt: skip
            positives[place], negatives[place] = sent
            carried = carried or over
        return low[:n_items], high, carried

    spans = _spans(len(rows), triples, threads, model.size)
    parts = each(part, spans, len(spans))
    sums = np.empty((n_items, width), dtype=np.int64)
    widen(parts[0][0], sums)
    for low, _, _ in parts[1:]:
        sums += low
    for _, high, carried in parts:
        if carried:
            sums += high
    return sums, positives, negatives


def learn_rounds(
    step: PairStep,
    model: NDArray[np.float32],
    vectors: NDArray[np.float32],
    rows: NDArray[np.int64],
    indptr: NDArray[np.int64],
    items: NDArray[np.int32],
    keys: Keys,
    triples: Draws,
    rule: ShareRule,
    sieve: NDArray[np.uint8] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """len(rows) rounds of one client each. `model` (padded) and `vectors` move in place. `triples`
    is the number of draws of every round, or of each. Callers of many short runs may pass
    `make_sieve(indptr, items)`; it saves time and changes nothing."""
    _check(model, vectors, rows, indptr, items, keys, triples, rule)
    learn = kernels(vectors.shape[1])
    world, clients = _world(indptr, items), read_only(rows, np.int64)
    own, coins = read_only(keys, keys.dtype), read_only(rule.keys, rule.keys.dtype)
    threshold = read_only(rule.threshold, np.uint64)
    allowed = read_only(rule.allowed, np.bool_)
    n_items, width = model.shape
    positives = np.empty(len(rows), dtype=np.int32)
    negatives = np.empty(len(rows), dtype=np.int32)
    if isinstance(triples, int) and triples == 1:
        if sieve is None:
            worth = len(rows) * _ROUNDS_PER_SIEVE >= len(items)
            sieve = make_sieve(indptr, items) if worth else np.zeros(0, dtype=np.uint8)
        learn.learn_single(
            vectors, clients, *world, model, own, step.numbers(), coins, threshold, allowed,
            fold_rate(step), _checked_sieve(sieve, items), positives, negatives,
        )  # fmt: skip
        return positives, negatives
    # The kernel leaves these as they are, so that all its calls share them.
    bits, seen, updates = _bitset(n_items), _bitset(n_items), _zeros((2, width), np.int32)
    low, high = _zeros((n_items + 1, width), np.int32), np.zeros((n_items, width), dtype=np.int64)
    numbers, rate = step.numbers(), fold_rate(step)
    for many, part in _runs(triples, len(rows)):
        learn.learn_rounds(
            vectors, clients[part], *world, model, own[part], many, numbers, bits, updates,
            coins[part], threshold[part], allowed, seen, rate, low, high, positives[part],
            negatives[part],
        )  # fmt: skip
    return positives, negatives


def make_sieve(indptr: NDArray[np.int64], items: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Two bytes per interaction by which devices that draw once rule most strangers out at once."""
    sieve = np.zeros(len(items) * SIEVE // 8, dtype=np.uint8)
    fill_sieve(*_world(indptr, items), sieve)
    return sieve


def _checked_sieve(sieve: NDArray[np.uint8] | None, items: NDArray[np.int32]) -> NDArray[np.uint8]:
    sieve = np.zeros(0, dtype=np.uint8) if sieve is None else sieve
    if len(sieve) not in (0, len(items) * SIEVE // 8):
        raise DataError("the sieve was made for other interactions")
    return read_only(sieve, np.uint8)


def fold(step: PairStep, model: NDArray[np.float32], sums: NDArray[np.int64]) -> None:
    """model += α · sums, in place; both padded, or neither."""
    if model.shape != sums.shape:
        raise DataError(f"sums of shape {sums.shape} do not fit a model of shape {model.shape}")
    fold_sums(model, read_only(sums, np.int64), fold_rate(step))


def fold_rows(
    step: PairStep,
    model: NDArray[np.float32],
    item: NDArray[np.int32],
    sums: NDArray[np.int64],
) -> None:
    """model[item] += α · sums, in place; the same arithmetic as `fold`. Items ascend."""
    if sums.shape != (len(item), model.shape[1]):
        raise DataError(f"sums of shape {sums.shape} do not fit {len(item)} rows of the model")
    if len(item) and not 0 <= int(item.min()) <= int(item.max()) < len(model):
        raise DataError("sums name an item that the model does not have")
    if len(item) == len(model):
        return fold(step, model, sums)
    add_rows(model, read_only(item, np.int32), read_only(sums, np.int64), fold_rate(step))


def fold_rate(step: PairStep) -> np.float32:
    return np.float32(step.learning_rate / GRID)


def _check(
    model: NDArray[np.float32],
    vectors: NDArray[np.float32],
    rows: NDArray[np.int64],
    indptr: NDArray[np.int64],
    items: NDArray[np.int32],
    keys: Keys,
    triples: Draws,
    rule: ShareRule | None = None,
) -> None:
    """The kernels read and write memory unchecked, so shapes are checked here. That interactions
    name items of the model is checked with every device's draws."""
    if not isinstance(triples, int) and len(triples) != len(rows):
        raise DataError("there must be one number of draws per device")
    if (triples if isinstance(triples, int) else triples.min(initial=1)) < 1:
        raise DataError("a device must draw at least once")
    for name, table in (("item", model), ("user", vectors)):
        if table.dtype != np.float32 or table.ndim != 2 or not table.flags.c_contiguous:
            raise DataError(f"{name} rows must be a contiguous table of single precision")
    if model.shape[1] != padded_width(vectors.shape[1]):
        raise DataError("item rows must be padded (factors.padded) and match the users' vectors")
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(vectors):
        raise DataError("a row number lies outside the table of users")
    if len(indptr) != len(vectors) + 1 or indptr[-1] > len(items):
        raise DataError("row pointers must match the users' vectors and the interactions")
    per_device = [keys] if rule is None else [keys, rule.keys, rule.threshold]
    if any(len(column) != len(rows) for column in per_device):
        raise DataError("keys and thresholds must have one value per device")
    if rule is not None and len(rule.allowed) not in (0, len(items)):
        raise DataError("there must be one flag per interaction, or none at all")


def _alike(triples: Draws, span: slice) -> list[tuple[int, Any]]:
    """The numbers of draws in a part of a cohort, and which devices draw so often."""
    if isinstance(triples, int):
        return [(triples, span)]
    mine = triples[span]
    return [(int(n), span.start + np.flatnonzero(mine == n)) for n in np.unique(mine)]


def _runs(triples: Draws, rounds: int) -> list[tuple[int, slice]]:
    """The numbers of draws one after the other, and the rounds that have them."""
    if isinstance(triples, int):
        return [(triples, slice(0, rounds))]
    starts = np.flatnonzero(np.diff(triples, prepend=0))
    ends = [*starts[1:], rounds]
    return [(int(triples[a]), slice(a, b)) for a, b in zip(starts, ends, strict=True)]


def _zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Zeros that begin a cache line."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + _LINE, dtype=np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start : start + size].view(dtype).reshape(shape)


def _line_up(table: NDArray[np.float32]) -> NDArray[np.float32]:
    copy: NDArray[np.float32] = _zeros(table.shape, np.float32)
    copy[:] = table
    return copy


def _world(
    indptr: NDArray[np.int64], items: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    return read_only(indptr, np.int64), read_only(items, np.int32)


def _bitset(n_items: int) -> NDArray[np.uint64]:
    return np.zeros((n_items + 63) // 64, dtype=np.uint64)


def _spans(n: int, triples: Draws, threads: int, table: int) -> list[slice]:
    """Equal parts of a cohort, one per thread. A thread has a table of sums of its own to clear and
    to add up, and must be worth that too."""
    worth = max(_WORTH_A_THREAD, table // _CELLS_PER_DRAW)
    draws = n * triples if isinstance(triples, int) else int(triples.sum())
    parts = max(1, min(threads, n, draws // worth))
    return equal_spans(n, parts)
