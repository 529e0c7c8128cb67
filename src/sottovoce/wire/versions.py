"""The published model on the wire: all of it, or only the rows that changed since a version that
the device has.

Bytes of equal weight stand together (all lowest bytes, then all second ones, …), because signs and
exponents of factors are much alike and then compress. A column whose numbers all are whole
multiples of one power of two, −127 to 127 of them, takes a byte a number where that is shorter:
first a byte for each column, its power or what it has in place of one; then the multiples, row by
row; then columns with zeros, row by row, because a row's zeros stand together; then the others,
column by column. Nothing is lost: what arrives is the model bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.messages import ModelView
from sottovoce.errors import MessageError
from sottovoce.wire.frames import CHANGES_STEPS, MODEL, MODEL_CHANGES, MODEL_STEPS

_FRAMES = {each.magic: each for each in (MODEL, MODEL_CHANGES, MODEL_STEPS, CHANGES_STEPS)}
_FULL, _GAPS = -128, -127
"""In place of a power: a column that has none, and no zeros or some."""
_SOME = 64
"""Rows that are looked at first."""


def encode_model(view: ModelView) -> bytes:
    """The whole model."""
    n_items, width = view.items.shape
    head = view.round, 0, n_items, n_items, width
    body = _steps(view.items)
    if body is not None:
        return MODEL_STEPS.pack(*head) + body
    return MODEL.pack(*head) + _planes(view.items)


def encode_delta(since: int, view: ModelView, changed: NDArray[np.bool_]) -> bytes:
    """The rows of `view` that `changed` flags, for a device that has the model of round `since`.
    Which rows they are is told by their numbers or by a bit each, whichever is shorter."""
    n_items, width = view.items.shape
    rows = np.flatnonzero(changed)
    head = view.round, since, n_items, len(rows), width
    places, table = _places(rows, n_items), view.items[rows]
    body = _steps(table)
    if body is not None:
        return CHANGES_STEPS.pack(*head) + places + body
    return MODEL_CHANGES.pack(*head) + places + _planes(table)


def delta_size(n_items: int, rows: int, width: int) -> int:
    """Most bytes of `encode_delta` before compression."""
    return MODEL.size + _places_size(rows, n_items) + 4 * rows * width


def full_size(n_items: int, width: int) -> int:
    """Most bytes of `encode_model` before compression."""
    return MODEL.size + 4 * n_items * width


def decode_model(
    payload: bytes, *, n_items: int, width: int, have: ModelView | None = None
) -> ModelView:
    """The model that a device has after this download. Raises where anything is off."""
    frame = _FRAMES.get(payload[:4], MODEL)
    round, since, items, rows, columns = frame.unpack(payload)
    if (items, columns) != (n_items, width) or rows > items:
        raise MessageError("the model has another shape than the federation's terms say")
    whole = frame in (MODEL, MODEL_STEPS)
    stop = MODEL.size + (0 if whole else _places_size(rows, items))
    read = _stepped if frame in (MODEL_STEPS, CHANGES_STEPS) else _rows
    if len(payload) < stop or (whole and rows != items):
        raise _wrong_length()
    table = read(payload[stop:], rows, columns)
    if not np.isfinite(table).all():
        raise MessageError("the model holds numbers that are not finite")
    if whole:
        return ModelView(round, table)
    if have is None or have.round != since or have.items.shape != (n_items, width):
        raise MessageError(f"the changes are against version {since}, which is not here")
    changed = have.items.copy()
    changed[_find(payload[MODEL.size : stop], rows, items)] = table
    return ModelView(round, changed)


def _places_size(rows: int, n_items: int) -> int:
    return min(4 * rows, (n_items + 7) // 8)


def _places(rows: NDArray[np.int64], n_items: int) -> bytes:
    if 4 * len(rows) <= (n_items + 7) // 8:
        return rows.astype("<u4").tobytes()
    flags = np.zeros(n_items, dtype=bool)
    flags[rows] = True
    return np.packbits(flags).tobytes()


def _find(places: bytes, rows: int, n_items: int) -> NDArray[np.int64]:
    if 4 * rows <= (n_items + 7) // 8:
        where = np.frombuffer(places, "<u4").astype(np.int64)
    else:
        bits = np.unpackbits(np.frombuffer(places, np.uint8))
        if bits[n_items:].any():
            raise MessageError("the model names rows that there are not")
        where = np.flatnonzero(bits[:n_items])
    if len(where) != rows or (rows and (where[-1] >= n_items or np.any(np.diff(where) <= 0))):
        raise MessageError("the model's changed rows must be known, ascending and there once each")
    return where


def _planes(table: NDArray[np.float32]) -> bytes:
    flat = np.ascontiguousarray(table, dtype="<f4").view(np.uint8).reshape(-1, 4)
    return np.ascontiguousarray(flat.T).tobytes()


def _rows(planes: bytes, rows: int, columns: int) -> NDArray[np.float32]:
    if len(planes) != 4 * rows * columns:
        raise _wrong_length()
    flat = np.frombuffer(planes, np.uint8).reshape(4, rows * columns)
    return np.ascontiguousarray(flat.T).view("<f4").reshape(rows, columns).astype(np.float32)


def _steps(table: NDArray[np.float32]) -> bytes | None:
    """The table with a byte for each number of columns that have a step, or None where it is no
    shorter so."""
    rows, columns = table.shape
    # Most models have no such column, which some rows show already.
    maybe = np.flatnonzero(_powers(table[:_SOME]) > _GAPS)
    powers = np.full(columns, _FULL, dtype=np.int8)
    powers[maybe] = _powers(table[:, maybe])
    narrow = powers > _GAPS
    if columns >= 3 * rows * np.count_nonzero(narrow):
        return None
    powers[~narrow & (table == 0).any(axis=0)] = _GAPS
    multiples = np.ldexp(table[:, narrow], -powers[narrow].astype(np.int32)).astype(np.int8)
    packed: bytes = powers.tobytes() + multiples.tobytes()
    return packed + _planes(table[:, powers == _GAPS]) + _planes(table[:, powers == _FULL].T)


def _stepped(body: bytes, rows: int, columns: int) -> NDArray[np.float32]:
    """What `_steps` wrote."""
    powers = np.frombuffer(body[:columns], np.int8)
    if len(powers) != columns:
        raise _wrong_length()
    narrow, gaps, full = powers > _GAPS, powers == _GAPS, powers == _FULL
    n_narrow, n_gaps, n_full = (int(np.count_nonzero(each)) for each in (narrow, gaps, full))
    first = columns + rows * n_narrow
    second = first + 4 * rows * n_gaps
    if len(body) != second + 4 * rows * n_full:
        raise _wrong_length()
    multiples = np.frombuffer(body[columns:first], np.int8).reshape(rows, n_narrow)
    table = np.empty((rows, columns), dtype=np.float32)
    with np.errstate(over="ignore"):  # whoever reads this looks for it
        table[:, narrow] = np.ldexp(multiples.astype(np.float32), powers[narrow].astype(np.int32))
    table[:, gaps] = _rows(body[first:second], rows, n_gaps)
    table[:, full] = _rows(body[second:], n_full, rows).T
    return table


def _powers(table: NDArray[np.float32]) -> NDArray[np.int8]:
    """For each column the largest power of two of which all its numbers are whole multiples, or
    `_FULL` where a multiple does not fit a byte."""
    part, exponent = np.frexp(table.astype(np.float64))
    finite = np.isfinite(part)
    bits = np.ldexp(np.where(finite, part, 0.0), 24).astype(np.int64)
    last = exponent - 25 + np.frexp((bits & -bits).astype(np.float64))[1]
    power = np.min(last, axis=0, where=bits != 0, initial=127)
    fits = np.abs(table).max(axis=0, initial=0.0) <= np.ldexp(127.0, power)
    # A byte has no -0.0.
    fits &= (finite & ~((table == 0) & np.signbit(table))).all(axis=0) & (power > _GAPS)
    return np.where(fits, power, _FULL).astype(np.int8)


def _wrong_length() -> MessageError:
    return MessageError("the model's length does not match its header")
