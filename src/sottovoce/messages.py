"""Everything that crosses a link, and the wire codec.

**Grid.** Item updates are whole numbers of 2**-24. Sums of whole numbers do not depend on their
order, so a model is the same bit for bit whatever the batching, the threads or the engine, and
secure aggregation needs no second encoding. The rounding is far below what single precision keeps
of a factor after a step.

Raw `Updates` never cross a link; `DeviceReports` are built at the one door (`parties/device.py`)
or decoded from the wire.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import MessageError
from sottovoce.sums import sum_groups

GRID_BITS = 24
GRID = 2.0**GRID_BITS
"""Steps of the grid per unit."""
LIMIT = 127.0
"""Largest absolute value of one draw's update, before rounding to the grid."""

_HEADER = struct.Struct("<4sBBHIII")
_MAGIC = b"SVU1"


@dataclass(frozen=True, slots=True, repr=False)
class ModelView:
    """What the server publishes for a round: `items` is [n_items, embedding_size + 1], the last
    column being the item's bias."""

    round: int
    items: NDArray[np.float32]

    @property
    def embedding_size(self) -> int:
        return int(self.items.shape[1]) - 1

    def __repr__(self) -> str:
        return f"<ModelView round={self.round} items={self.items.shape}>"


@dataclass(frozen=True, slots=True, repr=False)
class Updates:
    """What devices have learnt, one entry per draw and item. Private: crosses no link."""

    row: NDArray[np.int32]
    """Which device of the cohort."""
    entry: NDArray[np.int64]
    """The interaction of the cohort's history that was drawn as positive."""
    item: NDArray[np.int32]
    positive: NDArray[np.bool_]
    values: NDArray[np.int32]
    """[n, embedding_size + 1], in steps of the grid."""

    def __len__(self) -> int:
        return len(self.row)

    def __repr__(self) -> str:
        return f"<Updates n={len(self)}, redacted>"


@dataclass(frozen=True, slots=True, repr=False)
class DeviceReports:
    """device → server: for each sender a map from item to update, items ascending."""

    round: int
    sender: NDArray[np.int64]
    item: NDArray[np.int32]
    values: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.sender)

    def __repr__(self) -> str:
        return f"<DeviceReports round={self.round} rows={len(self)}, redacted>"


@dataclass(frozen=True, slots=True, repr=False)
class SummedReports:
    """The sum of many devices' reports, which is all that folding needs: whole numbers of the grid
    for each item that anyone sent. Added up from messages, or by a simulated cohort at the door."""

    round: int
    item: NDArray[np.int32]
    """Ascending, each once."""
    sums: NDArray[np.int64]
    """[len(item), width]."""
    devices: int

    def __repr__(self) -> str:
        return f"<SummedReports round={self.round} devices={self.devices}>"

    def dense(self, n_items: int) -> NDArray[np.int64]:
        """A row for every item, zeros where nobody sent."""
        table = np.zeros((n_items, self.sums.shape[1]), dtype=np.int64)
        table[self.item] = self.sums
        return table


def add_up(round: int, batches: Sequence[DeviceReports], width: int) -> SummedReports:
    """The sum of messages, in any order."""
    item = np.concatenate([np.zeros(0, np.int32), *(b.item for b in batches)])
    values = np.concatenate([np.zeros((0, width), np.int64), *(b.values for b in batches)])
    order = np.argsort(item, kind="stable")
    item = item[order]
    starts = np.flatnonzero(np.diff(item, prepend=np.int32(-1)))
    sums = sum_groups(values, order, starts)
    devices = sum(len(np.unique(b.sender)) for b in batches)
    return SummedReports(round, item[starts], sums, devices)


def row_bytes(embedding_size: int) -> int:
    """Bytes of one item's update on the wire: item number, factors, bias, four bytes each."""
    return 4 + 4 * embedding_size + 4


def encode(reports: DeviceReports) -> bytes:
    """One sender's report as bytes: a header, item numbers, then values in the narrowest of four
    or eight bytes that holds them all, so that nothing is lost."""
    if len(np.unique(reports.sender)) > 1:
        raise MessageError("a message carries the report of one device")
    wide = bool(len(reports)) and bool(np.abs(reports.values).max() > np.iinfo(np.int32).max)
    width = 8 if wide else 4
    values = reports.values.astype("<i8" if wide else "<i4")
    head = _HEADER.pack(
        _MAGIC, width, 0, reports.values.shape[1], reports.round, len(reports), GRID_BITS
    )
    return head + reports.item.astype("<u4").tobytes() + values.tobytes()


def decode(payload: bytes, *, sender: int, n_items: int, width: int, round: int) -> DeviceReports:
    """The inverse of `encode`. Rejects the whole message where anything is off: stale round, wrong
    shape, unknown or repeated items."""
    if len(payload) < _HEADER.size:
        raise MessageError("message too short")
    magic, size, _, columns, sent_round, rows, bits = _HEADER.unpack_from(payload)
    if magic != _MAGIC or size not in (4, 8) or bits != GRID_BITS:
        raise MessageError("not an update message of this version")
    if sent_round != round:
        raise MessageError(f"message is for round {sent_round}, the round is {round}")
    if columns != width:
        raise MessageError(f"message has {columns} columns, the model has {width}")
    if len(payload) != _HEADER.size + rows * 4 + rows * columns * size:
        raise MessageError("message length does not match its header")
    item = np.frombuffer(payload, "<u4", rows, _HEADER.size).astype(np.int64)
    if rows and (item.max() >= n_items or np.any(np.diff(item) <= 0)):
        raise MessageError("items must be known, ascending and sent once each")
    values = np.frombuffer(payload, f"<i{size}", rows * columns, _HEADER.size + rows * 4)
    return DeviceReports(
        round=round,
        sender=np.full(rows, sender, dtype=np.int64),
        item=item.astype(np.int32),
        values=values.reshape(rows, columns).astype(np.int64),
    )
