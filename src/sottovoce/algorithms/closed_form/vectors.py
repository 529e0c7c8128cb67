"""The device's half that FCF and FMF share: a vector in closed form, and what follows from it.

With confidence c_ui (`positive` for the device's items, `other` for the rest), p_ui = 1 for the
device's items and 0 for the rest, and item rows v_i:

    x_u     = argmin Σ_i c_ui (p_ui − x·v_i)² + λ|x|²
            = (other V'V + (positive − other) Σ_mine v v' + λI)⁻¹ positive Σ_mine v
    f(u, i) = c_ui (p_ui − x_u·v_i) x_u        g(u, i) = −2 f(u, i), the loss's gradient by v_i

`learn_summed` and `learn_rows` give f on the grid (core/messages.py) for every item;
`learn_reports` gives one-bit reports about g (core/one_bit.py). A device's result is the same bit
for bit alone, in any cohort and with any number of threads. What is not finite is
refused, never sent as a zero.

`rows` are the devices that take part, as rows of the histories; `vectors` has a row for each of
them, in the same order. A device's history ascends and names no item twice.
"""

# numba's dispatcher has no signature to check calls against.
# mypy: disable-error-code="call-arg"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.closed_form import kernels
from sottovoce.core.arrays import each, equal_spans, read_only
from sottovoce.core.cohort import RowCounts
from sottovoce.core.messages import GRID, LIMIT
from sottovoce.core.one_bit import MOST_COORDINATES, ReportRule, nonce
from sottovoce.errors import ConfigError, DataError, Diverged

MOST_FACTORS = 128
"""Largest embedding size."""
_TABLE_BYTES = 4 << 20
"""Items' products are kept where they take no more than this: beyond it, multiplying is faster."""
_WORTH_A_TABLE = 64
"""Devices that make a table of products worth its while."""
_WORTH_A_THREAD = 256
"""Devices below which a thread costs more than it brings."""
_PARTS = 16
"""Parts of a cohort that `summed_gradient` adds up one by one, however many threads there are."""
LARGEST = 1e6
"""Factors beyond this are taken for a model that has diverged."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """The weights of the squared error, and the pull of a device's vector to 0."""

    positive: float
    """c_ui of the device's items; 1 + α in the papers."""
    other: float
    """c_ui of all other items: 1, or 0 to leave them out."""
    reg: float
    """λ."""

    def rows_sent(self, held: NDArray[np.int64], n_items: int) -> RowCounts:
        """Return the rows that devices with so many items send: their own items, and all others if
        these count."""
        others = n_items - held if self.other else np.zeros_like(held)
        return RowCounts(held.astype(np.int32), others.astype(np.int32))

    def __post_init__(self) -> None:
        for name in ("positive", "other", "reg"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1e9:
                raise ConfigError(f"{name} must lie in [0, 1e9], not {value:g}")


def gram(items: NDArray[np.float32]) -> NDArray[np.float64]:
    """V'V, items added up in order: the same bits on every machine."""
    out = np.zeros((items.shape[1], items.shape[1]))
    kernels.add_gram(read_only(items, np.float32), out)
    return out


def solve(
    conf: Confidence,
    items: NDArray[np.float32],
    rows: NDArray[np.int64],
    indptr: NDArray[np.int64],
    history: NDArray[np.int32],
    threads: int = 1,
) -> NDArray[np.float32]:
    """x_u of each device, [len(rows), F]. A singular system, which λ = 0 allows, is refused."""
    items, world = _checked(items, rows, indptr, history)
    size = items.shape[1]
    out = np.empty((len(rows), size), dtype=np.float32)
    base = conf.other * gram(items) + conf.reg * np.eye(size)
    table = _products(items, len(rows))

    def part(span: slice) -> int:
        return int(
            kernels.solve(
                items, table, base, conf.positive - conf.other, conf.positive,
                world[0][span], *world[1:], out[span],
            )
        )  # fmt: skip

    _succeed(each(part, spans(len(rows), threads), threads))
    return out


def learn_summed(
    conf: Confidence,
    items: NDArray[np.float32],
    vectors: NDArray[np.float32],
    rows: NDArray[np.int64],
    indptr: NDArray[np.int64],
    history: NDArray[np.int32],
    threads: int = 1,
) -> NDArray[np.int64]:
    """Σ_u f(u, i) for every item, [n_items, F]: each device's f is rounded to the grid first, so
    this is the sum of `learn_rows`, exactly."""
    items, world = _checked(items, rows, indptr, history)
    vectors = _vectors(vectors, len(rows), items)
    columns = np.ascontiguousarray(items.T)
    bounds = _bounds(conf, items, vectors)

    def part(span: slice) -> tuple[int, NDArray[np.int64]]:
        sums = np.zeros(columns.shape, dtype=np.int64)
        status = kernels.sum_updates(
            columns, vectors[span], bounds[span], *_grid_numbers(conf),
            world[0][span], *world[1:], sums,
        )  # fmt: skip
        return int(status), sums

    parts = each(part, spans(len(rows), threads), threads)
    _succeed([status for status, _ in parts])
    total = np.zeros(columns.shape, dtype=np.int64)
    for _, sums in parts:
        total += sums
    return np.ascontiguousarray(total.T)


def learn_rows(
    conf: Confidence,
    items: NDArray[np.float32],
    vectors: NDArray[np.float32],
    rows: NDArray[np.int64],
    indptr: NDArray[np.int64],
    history: NDArray[np.int32],
) -> NDArray[np.int32]:
    """f(u, i) in steps of the grid, written out: [len(rows), n_items, F]."""
    items, world = _checked(items, rows, indptr, history)
    vectors = _vectors(vectors, len(rows), items)
    out = np.empty((len(rows), *items.shape), dtype=np.int32)
    columns = np.ascontiguousarray(items.T)
    _succeed([kernels.write_updates(columns, vectors, *_grid_numbers(conf), *world, out)])
    return out


def learn_reports(
    conf: Confidence,
    items: NDArray[np.float32],
    vectors: NDArray[np.float32],
    rows: NDArray[np.int64],
    indptr: NDArray[np.int64],
    history: NDArray[np.int32],
    rule: ReportRule,
    threads: int = 1,
) -> NDArray[np.uint32]:
    """Each device's reports, [len(rows), k]: coordinates drawn with replacement, and of each the
    randomised sign of g. Only the entries that were drawn are computed."""
    items, world = _checked(items, rows, indptr, history)
    vectors = _vectors(vectors, len(rows), items)
    if len(rule) != len(rows):
        raise DataError("a rule must have one row per device")
    if items.size > MOST_COORDINATES:
        raise ConfigError("a model for one-bit reports may have 2**31 numbers at most")
    report = kernels.reporter(items.shape[1])
    per_device = (
        read_only(rule.keys, rule.keys.dtype), read_only(rule.noise, np.uint32),
        read_only(rule.low, np.uint64),
    )  # fmt: skip
    out = np.empty((len(rows), rule.reports), dtype=np.uint32)

    def part(span: slice) -> int:
        keys, noise, low = (column[span] for column in per_device)
        return int(
            report(
                items, vectors[span], conf.positive, conf.other, world[0][span], *world[1:],
                keys, noise, nonce(rule.round), low, float(rule.scale), out[span],
            )
        )  # fmt: skip

    _succeed(each(part, spans(len(rows), threads), threads))
    return out


def summed_gradient(
    conf: Confidence,
    items: NDArray[np.float32],
    vectors: NDArray[np.float32],
    indptr: NDArray[np.int64],
    history: NDArray[np.int32],
    threads: int = 1,
) -> NDArray[np.float64]:
    """Σ_u f(u, i) over all devices of the histories in double precision, without the grid: −other
    Σ x x' v_i for every item, and what positives add to that. The same bits for any `threads`."""
    n = len(vectors)
    items, world = _checked(items, np.arange(n), indptr, history)
    vectors = _vectors(vectors, n, items)
    _check_history(world[1], world[2], len(items))

    def part(span: slice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        squares, out = np.zeros((items.shape[1],) * 2), np.zeros(items.shape)
        kernels.add_positives(
            items, vectors, conf.positive, conf.other, span.start, span.stop, *world[1:],
            squares, out,
        )  # fmt: skip
        return squares, out

    parts = each(part, equal_spans(n, min(_PARTS, max(1, n))), threads)
    squares = sum((s for s, _ in parts[1:]), parts[0][0])
    total = sum((o for _, o in parts[1:]), parts[0][1])
    whole = np.tril(squares) + np.tril(squares, -1).T
    # Factor by factor, not by a library's matrix product, whose bits differ between machines.
    wide = items.astype(np.float64)
    for f in range(items.shape[1]):
        total -= conf.other * wide[:, f : f + 1] * whole[f]
    return np.asarray(total)


# --- checks: the kernels read and write memory unchecked -----------------------------------------


def _checked(
    items: NDArray[np.float32],
    rows: NDArray[np.int64],
    indptr: NDArray[np.int64],
    history: NDArray[np.int32],
) -> tuple[NDArray[np.float32], tuple[NDArray[Any], ...]]:
    """Item rows, and (rows, indptr, history), as the kernels take them."""
    if items.ndim != 2 or not 1 <= items.shape[1] <= MOST_FACTORS or not len(items):
        raise DataError(f"item rows must be a table of 1 to {MOST_FACTORS} factors")
    _refuse_wild("item", items)
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(indptr) - 1:
        raise DataError("a row number lies outside the histories")
    world = (read_only(rows, np.int64), read_only(indptr, np.int64), read_only(history, np.int32))
    return read_only(items, np.float32), world


def _vectors(
    vectors: NDArray[np.float32], n: int, items: NDArray[np.float32]
) -> NDArray[np.float32]:
    if vectors.shape != (n, items.shape[1]):
        raise DataError("there must be one vector per device, as long as an item's row")
    _refuse_wild("user", vectors)
    return read_only(vectors, np.float32)


def _refuse_wild(what: str, table: NDArray[np.float32]) -> None:
    """No sum or product of what this lets pass leaves the range of single precision."""
    if table.size and not max(-float(table.min()), float(table.max())) <= LARGEST:
        raise Diverged(f"the {what} vectors are not finite, or beyond {LARGEST:g}; step less")


def _check_history(indptr: NDArray[np.int64], history: NDArray[np.int32], n_items: int) -> None:
    rising = len(indptr) > 0 and indptr[0] >= 0 and not bool(np.any(np.diff(indptr) < 0))
    if not rising or int(indptr[-1]) > len(history):
        _succeed([kernels.BAD_HISTORY])
    if len(history) and not 0 <= int(history.min()) <= int(history.max()) < n_items:
        _succeed([kernels.BAD_HISTORY])


def _succeed(statuses: list[int]) -> None:
    """Raises what the worst of the kernels' answers calls for."""
    worst = max(statuses, default=kernels.OK)
    if worst == kernels.BAD_HISTORY:
        raise DataError("a history must ascend, name items of the model and match its row pointers")
    if worst == kernels.SINGULAR:
        raise Diverged("a device's vector is not determined by its items; set reg above 0")
    if worst != kernels.OK:
        raise Diverged("a device's vector or gradient is not finite; nothing was sent")


# --- what kernels take ---------------------------------------------------------------------------


def _products(items: NDArray[np.float32], devices: int) -> NDArray[np.float64]:
    """Every item's products, rows of whole cache lines; or nothing where they would not pay."""
    n_items, size = items.shape
    width = -(-(size * (size + 1) // 2 + size) // 8) * 8
    if devices < _WORTH_A_TABLE or n_items * width * 8 > _TABLE_BYTES:
        return np.zeros((0, width))
    table = np.zeros((n_items, width))
    kernels.write_products(items, table)
    return table


def _grid_numbers(conf: Confidence) -> tuple[np.float32, ...]:
    """positive, other, the grid's steps per unit, and the largest update in such steps."""
    return tuple(np.float32(v) for v in (conf.positive, conf.other, GRID, LIMIT * GRID))


def _bounds(
    conf: Confidence, items: NDArray[np.float32], vectors: NDArray[np.float32]
) -> NDArray[np.int64]:
    """No less than any of a device's updates of items that are not its own, in steps."""
    largest = np.abs(items).max(axis=0).astype(np.float64)
    sizes = np.abs(vectors).astype(np.float64)
    most = conf.other * (sizes @ largest) * sizes.max(axis=1, initial=0.0) * GRID
    bounds: NDArray[np.float64] = np.minimum(most * 1.001 + 1.0, LIMIT * GRID)
    return bounds.astype(np.int64)


def spans(n: int, threads: int) -> list[slice]:
    """Equal parts of a cohort, one per thread."""
    return equal_spans(n, max(1, min(threads, n // _WORTH_A_THREAD)))
