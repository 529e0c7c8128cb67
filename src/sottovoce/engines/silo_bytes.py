"""What data owners and the orchestrator say to each other in DRIFT, as bytes.

Numbers take four bytes, rows are in single precision; all little-endian. Lengths are checked, what
is said is not: that is for who takes the message.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift_messages import Gradients, RowRequest, Rows
from sottovoce.errors import MessageError

_REQUEST = struct.Struct("<III")
_ROWS = struct.Struct("<QII")
_GRADIENTS = struct.Struct("<IQII")


def request_bytes(users: int, items: int) -> int:
    """The length of a request for so many rows."""
    return _REQUEST.size + 4 * (users + items)


def rows_bytes(users: int, items: int, size: int) -> int:
    """The length of an answer: numbers, and rows in single precision."""
    return _ROWS.size + 4 * (1 + size) * (users + items)


def gradients_bytes(users: int, items: int, size: int) -> int:
    return _GRADIENTS.size + 4 * (1 + size) * (users + items)


def pack_request(request: RowRequest) -> bytes:
    head = _REQUEST.pack(request.owner, len(request.users), len(request.items))
    return head + _packed_numbers(request.users, request.items)


def unpack_request(content: bytes) -> RowRequest:
    owner, n_users, n_items = _head(_REQUEST, content)
    users, items, end = _numbers(content, _REQUEST.size, n_users, n_items)
    if end != len(content):
        raise MessageError("the request has another length than it says")
    return RowRequest(owner, users, items)


def pack_rows(rows: Rows) -> bytes:
    head = _ROWS.pack(rows.version, len(rows.users), len(rows.items))
    return head + _packed_rows(rows)


def unpack_rows(content: bytes) -> Rows:
    version, n_users, n_items = _head(_ROWS, content)
    return Rows(version, *_rows(content, _ROWS.size, n_users, n_items))


def pack_gradients(gradients: Gradients) -> bytes:
    head = _GRADIENTS.pack(
        gradients.owner, gradients.version, len(gradients.users), len(gradients.items)
    )
    return head + _packed_rows(gradients)


def unpack_gradients(content: bytes) -> Gradients:
    owner, version, n_users, n_items = _head(_GRADIENTS, content)
    return Gradients(owner, version, *_rows(content, _GRADIENTS.size, n_users, n_items))


def _packed_numbers(users: NDArray[np.int64], items: NDArray[np.int64]) -> bytes:
    return users.astype("<u4").tobytes() + items.astype("<u4").tobytes()


def _packed_rows(table: Rows | Gradients) -> bytes:
    rows = table.user_rows.astype("<f4").tobytes() + table.item_rows.astype("<f4").tobytes()
    return _packed_numbers(table.users, table.items) + rows


def _head(head: struct.Struct, content: bytes) -> tuple[int, ...]:
    if len(content) < head.size:
        raise MessageError("the message is too short")
    return head.unpack_from(content)


def _numbers(
    content: bytes, at: int, n_users: int, n_items: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    end = at + 4 * (n_users + n_items)
    if end > len(content):
        raise MessageError("the message is shorter than it says")
    numbers = np.frombuffer(content, "<u4", n_users + n_items, at).astype(np.int64)
    return numbers[:n_users], numbers[n_users:], end


def _rows(
    content: bytes, at: int, n_users: int, n_items: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    users, items, end = _numbers(content, at, n_users, n_items)
    n, rest = n_users + n_items, len(content) - end
    if rest % (4 * n or 1):
        raise MessageError("the message has another length than it says")
    rows = np.frombuffer(content, "<f4", offset=end).astype(np.float32)
    table = rows.reshape(n, rest // (4 * n) if n else 0)
    return users, items, table[:n_users], table[n_users:]
