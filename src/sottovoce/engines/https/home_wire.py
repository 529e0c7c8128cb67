"""What users ask for who rank at home, in a federation whose data owners keep their vectors.

    POST /v1/vector  at a data owner: a question (orchestrator_wire) → the asker's own vector
    GET  /v1/rows    at the orchestrator: the rows of all items; with If-None-Match, 304 where they
                     have not changed

An answer with a vector is as long as one without.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import MessageError

VECTOR, ROWS = "/v1/vector", "/v1/rows"
_HEAD = struct.Struct("<4sII")
_MAGIC = b"SVR1"
Row = NDArray[np.float32]


def encode_vector(row: Row | None, size: int) -> bytes:
    told = np.zeros(size, dtype="<f4") if row is None else row.astype("<f4")
    return bytes([row is not None]) + told.tobytes()


def decode_vector(body: bytes, size: int) -> Row | None:
    """Nothing where the owner keeps none."""
    if len(body) != 1 + 4 * size or body[0] > 1:
        raise MessageError("the data owner's answer cannot be read")
    row = np.frombuffer(body, "<f4", offset=1).astype(np.float32)
    if not np.isfinite(row).all():
        raise MessageError("the data owner's answer holds numbers that are not finite")
    return row if body[0] else None


def encode_rows(rows: Row) -> bytes:
    return _HEAD.pack(_MAGIC, *rows.shape) + rows.astype("<f4").tobytes()


def longest_rows(items: int, size: int) -> int:
    """Bytes of the rows of so many items."""
    return _HEAD.size + 4 * items * size


def decode_rows(body: bytes, most: int, size: int) -> Row:
    """Of at most so many items, each of `size` numbers."""
    if len(body) < _HEAD.size:
        raise MessageError("the orchestrator's answer cannot be read")
    magic, items, width = _HEAD.unpack_from(body)
    whole = len(body) == longest_rows(items, size)
    if magic != _MAGIC or width != size or items > most or not whole:
        raise MessageError("the orchestrator's answer cannot be read")
    rows = np.frombuffer(body, "<f4", offset=_HEAD.size).astype(np.float32).reshape(items, size)
    if not np.isfinite(rows).all():
        raise MessageError("the orchestrator's answer holds numbers that are not finite")
    return rows
