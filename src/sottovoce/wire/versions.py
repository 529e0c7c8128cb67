"""The published model on the wire: all of it, or only the rows that changed since a version that
the device has.

Bytes of equal weight stand together (all lowest bytes, then all second ones, …), because signs and
exponents of factors are much alike and then compress. Nothing is lost: what arrives is the model
bit for bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.messages import ModelView
from sottovoce.errors import MessageError
from sottovoce.wire.frames import MODEL, MODEL_CHANGES


def encode_model(view: ModelView) -> bytes:
    """The whole model."""
    n_items, width = view.items.shape
    return MODEL.pack(view.round, 0, n_items, n_items, width) + _planes(view.items)


def encode_delta(since: int, view: ModelView, changed: NDArray[np.bool_]) -> bytes:
    """The rows of `view` that `changed` flags, for a device that has the model of round `since`.
    Which rows they are is told by their numbers or by a bit each, whichever is shorter."""
    n_items, width = view.items.shape
    rows = np.flatnonzero(changed)
    head = MODEL_CHANGES.pack(view.round, since, n_items, len(rows), width)
    return head + _places(rows, n_items) + _planes(view.items[rows])


def delta_size(n_items: int, rows: int, width: int) -> int:
    """Bytes of `encode_delta` before compression."""
    return MODEL.size + min(4 * rows, (n_items + 7) // 8) + 4 * rows * width


def full_size(n_items: int, width: int) -> int:
    """Bytes of `encode_model` before compression."""
    return MODEL.size + 4 * n_items * width


def decode_model(
    payload: bytes, *, n_items: int, width: int, have: ModelView | None = None
) -> ModelView:
    """The model that a device has after this download. Raises where anything is off."""
    frame = MODEL_CHANGES if payload[:4] == MODEL_CHANGES.magic else MODEL
    round, since, items, rows, columns = frame.unpack(payload)
    if (items, columns) != (n_items, width) or rows > items:
        raise MessageError("the model has another shape than the federation's terms say")
    if frame is MODEL:
        if len(payload) != full_size(items, columns) or rows != items:
            raise MessageError("the model's length does not match its header")
        return ModelView(round, _finite(_rows(payload[MODEL.size :], rows, columns)))
    if len(payload) != delta_size(items, rows, columns):
        raise MessageError("the model's length does not match its header")
    if have is None or have.round != since or have.items.shape != (n_items, width):
        raise MessageError(f"the changes are against version {since}, which is not here")
    stop = len(payload) - 4 * rows * columns
    where = _find(payload[MODEL.size : stop], rows, items)
    table = have.items.copy()
    table[where] = _finite(_rows(payload[stop:], rows, columns))
    return ModelView(round, table)


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
    flat = np.frombuffer(planes, np.uint8).reshape(4, rows * columns)
    return np.ascontiguousarray(flat.T).view("<f4").reshape(rows, columns).astype(np.float32)


def _finite(table: NDArray[np.float32]) -> NDArray[np.float32]:
    if not np.isfinite(table).all():
        raise MessageError("the model holds numbers that are not finite")
    return table
