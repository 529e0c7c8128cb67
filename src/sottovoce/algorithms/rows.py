"""Rows of a table as values, for one device and for compiled loops.

A kernel that is written with these functions reads like its equations. Compiled, rows live in
vector registers (`simd_rows.py`, which says how); one device has them as NumPy's arrays, by the
functions here. Every operation is elementwise and strict (IEEE single precision), and `total` adds
in one written-down order, so both give the same bits.
"""

# Kernels' arguments carry no types; their callers do.
# mypy: allow-untyped-calls, allow-untyped-defs

from __future__ import annotations

from typing import Any

import numpy as np

from sottovoce.compiled import Function, intrinsic, primitive

LANES = 16
"""Numbers in a chunk: a cache line of single precision."""
HALF = LANES // 2


def row_stride(width: int) -> int:
    """Columns that a row of this width takes in a table: whole cache lines."""
    return -(-width // LANES) * LANES


def row_width(width: int) -> int:
    """Numbers that a row of this width has: chunks of 16, the last one of 8 where that holds the
    rest."""
    return -(-width // HALF) * HALF


def _row(function: Function) -> Any:
    return primitive(intrinsic("sottovoce.algorithms.simd_rows", function.__name__))(function)


@_row
def load(table, row, width):
    """Row `row` of a float32 or int32 table."""
    return table[row, : row_width(width)].copy()


@_row
def store(table, row, values):
    """Writes row `row` of a table."""
    table[row, : len(values)] = values


@_row
def load_extended(table, row, size):
    """Row `row` of a float32 table without padding, `size` wide, then a 1, then zeros."""
    return _extended(table[row], size, np.float32(1.0))


@_row
def store_first(table, row, size, values):
    """Writes the first `size` numbers of a row to row `row` of a table without padding."""
    table[row] = values[:size]


@_row
def constant(value, size, last):
    """A row with `value` in the first `size` columns, `last` in the next, zeros after it."""
    return _extended(value, size, last)


def _extended(values, size, last):
    row = np.zeros(row_width(size + 1), dtype=np.float32)
    row[:size], row[size] = values, last
    return row


@_row
def with_one(values, column):
    """The row with a 1 in one column."""
    row = values.copy()
    row[column] = 1.0
    return row


@_row
def prefetch(table, row, width):
    """Asks for the first `width` numbers of a row, ahead of their use. Has no other effect."""


@_row
def total(values):
    """The sum of a row, in a fixed order: chunks of 16 lane by lane, from the left; then halves
    onto halves, a last chunk of 8 joining when 8 lanes are left."""
    whole = len(values) - len(values) % LANES
    sums = values[:LANES]
    for first in range(LANES, whole, LANES):
        sums = sums + values[first : first + LANES]
    if whole and whole < len(values):
        sums = sums[:HALF] + sums[HALF:] + values[whole:]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = sums[:half] + sums[half:]
    return sums[0]


@_row
def rounded(values, limit):
    """A row of int32: the nearest whole numbers (ties to even) after clamping to ±limit, which must
    fit. What is not a number becomes −limit."""
    above = np.where(values > -limit, values, -limit)
    return np.rint(np.where(above < limit, above, limit)).astype(np.int32)


@_row
def as_float(values):
    """A row of int32 as float32, each number rounded once."""
    return values.astype(np.float32)


@_row
def add_to(table, row, values):
    """Adds a row to row `row` of an int32 table, modulo 2**32. True where a number overflowed."""
    return _accumulate(table, row, values, np.int64(1))


@_row
def take_from(table, row, values):
    """Subtracts a row, modulo 2**32. True where a number overflowed."""
    return _accumulate(table, row, values, np.int64(-1))


def _accumulate(table, row, values, sign):
    exact = table[row, : len(values)].astype(np.int64) + sign * values.astype(np.int64)
    table[row, : len(values)] = exact.astype(np.int32)
    return bool(np.any(table[row, : len(values)] != exact))
