"""Everything that crosses a link, and the wire codec.

**Grid.** Item updates are whole numbers of 2**-24. Sums of whole numbers do not depend on their
order, so a model is the same bit for bit whatever the batching, the threads or the engine, and
secure aggregation needs no second encoding. The rounding is far below what single precision keeps
of a factor after a step.

Raw `Updates` never cross a link; `DeviceReports` are built at the one door (`parties/device.py`)
or decoded from the wire.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.arrays import sum_groups
from sottovoce.errors import MessageError

GRID_BITS = 24
GRID = 2.0**GRID_BITS
"""Steps of the grid per unit."""
LIMIT = 127.0
"""Largest absolute value of one draw's update, before rounding to the grid."""

_HEADER = struct.Struct("<4sBBHIII")
_MAGIC = b"SVU3"
_SUM_MAGIC = b"SVS3"
_BITS = struct.Struct("<4sIBI")
_BIT_MAGIC = b"SVR1"


@dataclass(frozen=True, slots=True, repr=False)
class ModelView:
    """What the server publishes for a round: `items` is [n_items, width], an item's vector and, in
    FPL, its bias behind it."""

    round: int
    items: NDArray[np.float32]

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
    """[n, width], in steps of the grid."""

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

    def counts_well(self) -> bool:
        """Whether the last number of each row can be how many of these devices sent it."""
        return bool(np.all(self._counted()))

    def well_counted(self) -> SummedReports:
        """Without the rows of which it cannot be."""
        good = self._counted()
        return replace(self, item=self.item[good], sums=self.sums[good])

    def _counted(self) -> NDArray[np.bool_]:
        senders = self.sums[:, -1]
        whole = senders % int(GRID) == 0
        good: NDArray[np.bool_] = (
            whole & (senders >= int(GRID)) & (senders <= self.devices * int(GRID))
        )
        return good

    def dense(self, n_items: int) -> NDArray[np.int64]:
        """A row for every item, zeros where nobody sent."""
        table = np.zeros((n_items, self.sums.shape[1]), dtype=np.int64)
        table[self.item] = self.sums
        return table


@dataclass(frozen=True, slots=True, repr=False)
class BitReports:
    """device → proxy: k randomised reports of each sender. A report is one number: its coordinate
    (item · embedding_size + factor) twice, plus its bit."""

    round: int
    sender: NDArray[np.int64]
    tier: NDArray[np.int32]
    """By number, of the tiers in the terms."""
    reports: NDArray[np.uint32]
    """[senders, k]."""

    def __len__(self) -> int:
        return len(self.sender)

    def __repr__(self) -> str:
        return f"<BitReports round={self.round} devices={len(self)}, redacted>"


@dataclass(frozen=True, slots=True, repr=False)
class Batch:
    """proxy → server: the reports of all senders of one tier, in an order that says nothing."""

    round: int
    tier: int
    devices: int
    reports: NDArray[np.uint32]

    def __repr__(self) -> str:
        return f"<Batch round={self.round} tier={self.tier} devices={self.devices}>"


@dataclass(frozen=True, slots=True, repr=False)
class BitCounts:
    """What folding needs of a round's batches; a row per tier, zeros where there was no batch."""

    round: int
    devices: tuple[int, ...]
    reports: tuple[int, ...]
    sums: NDArray[np.int64]
    """[tiers, coordinates]: reports with bit 1 less those with bit 0."""

    def __repr__(self) -> str:
        return f"<BitCounts round={self.round} devices={self.devices}>"


@dataclass(frozen=True, slots=True, repr=False)
class MaskedReports:
    """device → server: each sender's whole update, masked (`masking`)."""

    round: int
    sender: NDArray[np.int64]
    masked: NDArray[np.uint64]
    """[senders, rows of the model · width]."""

    def __len__(self) -> int:
        return len(self.sender)

    def __repr__(self) -> str:
        return f"<MaskedReports round={self.round} devices={len(self)}>"


@dataclass(frozen=True, slots=True, repr=False)
class MaskSeeds:
    """device → proxy, sealed on its way through the server: the seeds of those masks."""

    round: int
    sender: NDArray[np.int64]
    seeds: tuple[bytes, ...]

    def __len__(self) -> int:
        return len(self.sender)

    def __repr__(self) -> str:
        return f"<MaskSeeds round={self.round} devices={len(self)}, redacted>"


@dataclass(frozen=True, slots=True, repr=False)
class MaskSum:
    """proxy → server: the sum of the masks of the submissions that the server has named, with the
    noise of the terms taken off, so that it is in what is opened."""

    round: int
    devices: int
    masks: NDArray[np.uint64]

    def __repr__(self) -> str:
        return f"<MaskSum round={self.round} devices={self.devices}>"


Aggregate = SummedReports | BitCounts
"""What the server folds into its model."""


def add_up(round: int, batches: Sequence[DeviceReports], width: int) -> SummedReports:
    """The sum of messages, in any order."""
    item = np.concatenate([np.zeros(0, np.int32), *(b.item for b in batches)])
    values = np.concatenate([np.zeros((0, width), np.int64), *(b.values for b in batches)])
    devices = sum(len(np.unique(b.sender)) for b in batches)
    item, sums = _sum_by_item(item, values)
    return SummedReports(round, item, sums, devices)


def _sum_by_item(
    item: NDArray[np.int32], values: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    order = np.argsort(item, kind="stable")
    item = item[order]
    starts = np.flatnonzero(np.diff(item, prepend=np.int32(-1)))
    return item[starts], sum_groups(values, order, starts)


def cut(reports: DeviceReports, limit: int) -> DeviceReports:
    """The report with no value beyond ±limit."""
    return replace(reports, values=np.clip(reports.values, -limit, limit))


def cut_sum(reports: SummedReports, limit: int) -> SummedReports:
    """The sum with no value beyond what its devices could have added up to, had each been cut."""
    most = limit * reports.devices
    return replace(reports, sums=np.clip(reports.sums, -most, most))


def row_bytes(embedding_size: int) -> int:
    """Bytes of one item's update in FPL: item number, factors, bias, four bytes each."""
    return 4 + 4 * embedding_size + 4


def add_sums(round: int, parts: Sequence[SummedReports], width: int) -> SummedReports:
    """The sum of cohorts' sums, in any order."""
    item = np.concatenate([np.zeros(0, np.int32), *(p.item for p in parts)])
    values = np.concatenate([np.zeros((0, width), np.int64), *(p.sums for p in parts)])
    item, sums = _sum_by_item(item, values)
    return SummedReports(round, item, sums, sum(p.devices for p in parts))


def encode(reports: DeviceReports) -> bytes:
    """One sender's report as bytes. Values take as many bytes each as hold them all, and the whole
    is compressed where that helps; nothing is lost."""
    if len(np.unique(reports.sender)) > 1:
        raise MessageError("a message carries the report of one device")
    return _pack(_MAGIC, reports.round, reports.item, reports.values)


def encode_sum(reports: SummedReports) -> bytes:
    """A cohort's sum as bytes, like `encode`, with the number of devices."""
    sent = reports.sums.any(axis=1)
    body = _pack(_SUM_MAGIC, reports.round, reports.item[sent], reports.sums[sent])
    return body + struct.pack("<I", reports.devices)


def decode(
    payload: bytes,
    *,
    sender: int,
    n_items: int,
    width: int,
    round: int,
    max_rows: int | None = None,
) -> DeviceReports:
    """The inverse of `encode`. Rejects the whole message where anything is off: stale round, wrong
    shape, unknown or repeated items, more than `max_rows` of them. Takes no more memory than an
    honest message would."""
    item, values = _unpack(_MAGIC, payload, n_items, width, round, max_rows)
    return DeviceReports(round, np.full(len(item), sender, dtype=np.int64), item, values)


def decode_sum(payload: bytes, *, n_items: int, width: int, round: int) -> SummedReports:
    """The inverse of `encode_sum`, as strict as `decode`. Items whose sum is zero are not sent."""
    if len(payload) < 4:
        raise MessageError("message too short")
    item, values = _unpack(_SUM_MAGIC, payload[:-4], n_items, width, round, None)
    return SummedReports(round, item, values, struct.unpack("<I", payload[-4:])[0])


def encode_bits(reports: BitReports) -> bytes:
    """One sender's reports as bytes, as a store keeps them until they are sealed."""
    if len(reports) != 1:
        raise MessageError("a message carries the reports of one device")
    head = _BITS.pack(_BIT_MAGIC, reports.round, int(reports.tier[0]), reports.reports.shape[1])
    return head + reports.reports.astype("<u4").tobytes()


def decode_bits(payload: bytes, *, sender: int = 0) -> BitReports:
    """The inverse of `encode_bits`."""
    if len(payload) < _BITS.size:
        raise MessageError("message too short")
    magic, round, tier, count = _BITS.unpack_from(payload)
    if magic != _BIT_MAGIC or len(payload) != _BITS.size + 4 * count:
        raise MessageError("this is no message of randomised reports")
    values = np.frombuffer(payload, "<u4", offset=_BITS.size).astype(np.uint32)
    return BitReports(round, np.array([sender]), np.array([tier], np.int32), values[None, :])


def other_version(payload: bytes) -> bool:
    """Whether this is a device's report, but of another release."""
    return payload[:3] == _MAGIC[:3] and payload[:4] != _MAGIC


def report_rows(payload: bytes) -> int:
    """How many rows a device's own report has, by its head."""
    return int(_HEADER.unpack_from(payload)[5])


def message_limit(rows: int, width: int) -> int:
    """The longest message of so many rows, in bytes."""
    return _HEADER.size + rows * (4 + 8 * width)


def _pack(magic: bytes, round: int, item: NDArray[np.int32], values: NDArray[np.int64]) -> bytes:
    """A header, then the steps between item numbers and the values. Bytes of equal weight stand
    together, because the high ones are much alike and then compress."""
    size = _bytes_per_value(values)
    steps = np.diff(item, prepend=np.int32(0)).astype("<u4").view(np.uint8).reshape(-1, 4)
    narrow = np.ascontiguousarray(values, dtype="<i8").view(np.uint8).reshape(-1, 8)[:, :size]
    body = steps.T.tobytes() + narrow.T.tobytes()
    packed = _codec().compress(body, asbytes=True) if body else body
    shorter = len(packed) < len(body)
    head = _HEADER.pack(magic, size, shorter, values.shape[1], round, len(item), GRID_BITS)
    return head + (packed if shorter else body)


def _bytes_per_value(values: NDArray[np.int64]) -> int:
    """The fewest bytes of two's complement that hold every value."""
    if not values.size:
        return 1
    largest = max(int(values.max()), -int(values.min()) - 1)
    return largest.bit_length() // 8 + 1


def _unpack(
    expected: bytes, payload: bytes, n_items: int, width: int, round: int, max_rows: int | None
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    if len(payload) < _HEADER.size:
        raise MessageError("message too short")
    magic, size, packed, columns, sent_round, rows, bits = _HEADER.unpack_from(payload)
    if magic != expected or not 1 <= size <= 8 or packed > 1 or bits != GRID_BITS:
        raise MessageError("not an update message of this version")
    if sent_round != round:
        raise MessageError(f"message is for round {sent_round}, the round is {round}")
    if columns != width:
        raise MessageError(f"message has {columns} columns, the model has {width}")
    if rows > (n_items if max_rows is None else min(max_rows, n_items)):
        raise MessageError("message has more rows than a device may send")
    body = _opened(payload[_HEADER.size :], rows * (4 + columns * size), bool(packed))
    steps = np.frombuffer(body, np.uint8, 4 * rows).reshape(4, rows)
    item = np.ascontiguousarray(steps.T).view("<u4").ravel().astype(np.int64).cumsum()
    if rows and (item[-1] >= n_items or np.any(np.diff(item) <= 0)):
        raise MessageError("items must be known, ascending and sent once each")
    narrow = np.frombuffer(body, np.uint8, rows * columns * size, 4 * rows)
    wide = np.zeros((rows * columns, 8), dtype=np.uint8)
    wide[:, 8 - size :] = narrow.reshape(size, rows * columns).T
    # The high bytes are filled and shifted down, which carries the sign along.
    values = wide.view("<i8").reshape(rows, columns) >> (8 * (8 - size))
    return item.astype(np.int32), values.astype(np.int64)


def _opened(body: bytes, length: int, packed: bool) -> bytes:
    """The body at its full length, which the header has announced and which was found fit."""
    if packed:
        import pyarrow as pa

        try:
            body = _codec().decompress(body, length, asbytes=True)
        except (OSError, ValueError, pa.ArrowException):
            raise MessageError("message cannot be unpacked") from None
    if len(body) != length:
        raise MessageError("message length does not match its header")
    return body


@functools.cache
def _codec() -> Any:
    import pyarrow as pa

    return pa.Codec("zstd", compression_level=3)
