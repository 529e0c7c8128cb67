"""Devices' reports as bytes: updates, the sums of a cohort, and randomised bits.

Of updates, numbers take as many bytes each as hold them all, and the whole is compressed if that
helps; nothing is lost. A reader rejects the whole message if anything is off, and takes no more
memory than an honest message would.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.messages import GRID_BITS, BitReports, DeviceReports, SummedReports
from sottovoce.errors import MessageError
from sottovoce.wire import zstd
from sottovoce.wire.frames import BITS, REPORT, SUM, Frame

_DEVICES = struct.Struct("<I")


def encode_report(reports: DeviceReports) -> bytes:
    """One sender's report."""
    if (reports.sender[1:] != reports.sender[:-1]).any():
        raise MessageError("a message carries the report of one device")
    return _pack(REPORT, reports.round, reports.item, reports.values)


def decode_report(
    payload: bytes,
    *,
    sender: int,
    n_items: int,
    width: int,
    round: int,
    max_rows: int | None = None,
) -> DeviceReports:
    """Raises if the round is stale, the shape wrong, an item unknown or there twice, or if there
    are more than `max_rows`."""
    item, values = _unpack(REPORT, payload, n_items, width, round, max_rows)
    return DeviceReports(round, np.full(len(item), sender, dtype=np.int64), item, values)


def report_rows(payload: bytes) -> int:
    """How many rows a device's own report has, by its head."""
    return int(REPORT.unpack(payload)[4])


def encode_sum(reports: SummedReports) -> bytes:
    """A cohort's sum and the number of devices. Items whose sum is zero are not sent."""
    sent = reports.sums.any(axis=1)
    body = _pack(SUM, reports.round, reports.item[sent], reports.sums[sent])
    return body + _DEVICES.pack(reports.devices)


def decode_sum(payload: bytes, *, n_items: int, width: int, round: int) -> SummedReports:
    """As strict as `decode_report`."""
    stop = max(len(payload) - _DEVICES.size, 0)
    item, values = _unpack(SUM, payload[:stop], n_items, width, round, None)
    return SummedReports(round, item, values, _DEVICES.unpack_from(payload, stop)[0])


def encode_bits(reports: BitReports) -> bytes:
    """One sender's randomised reports, as a store keeps them until they are sealed."""
    if len(reports) != 1:
        raise MessageError("a message carries the reports of one device")
    head = BITS.pack(reports.round, int(reports.tier[0]), reports.reports.shape[1])
    return head + reports.reports.astype("<u4").tobytes()


def decode_bits(payload: bytes, *, sender: int = 0) -> BitReports:
    round, tier, count = BITS.unpack(payload)
    if len(payload) != BITS.size + 4 * count:
        raise MessageError("message length does not match its header")
    values = np.frombuffer(payload, "<u4", offset=BITS.size).astype(np.uint32)
    return BitReports(round, np.array([sender]), np.array([tier], np.int32), values[None, :])


def longest_report(rows: int, width: int) -> int:
    """The longest report of so many rows, in bytes."""
    return REPORT.size + rows * (4 + 8 * width)


def _pack(frame: Frame, round: int, item: NDArray[np.int32], values: NDArray[np.int64]) -> bytes:
    """A header, then the steps between item numbers and the values. Bytes of equal weight stand
    together, because the high ones are much alike and then compress."""
    size = _bytes_per_value(values)
    steps = np.diff(item, prepend=np.int32(0)).astype("<u4").view(np.uint8).reshape(-1, 4)
    narrow = np.ascontiguousarray(values, dtype="<i8").view(np.uint8).reshape(-1, 8)[:, :size]
    body = steps.T.tobytes() + narrow.T.tobytes()
    packed = zstd.compress(body) if body else body
    shorter = len(packed) < len(body)
    head = frame.pack(size, shorter, values.shape[1], round, len(item), GRID_BITS)
    return head + (packed if shorter else body)


def _bytes_per_value(values: NDArray[np.int64]) -> int:
    """The fewest bytes of two's complement that hold every value."""
    if not values.size:
        return 1
    largest = max(int(values.max()), -int(values.min()) - 1)
    return largest.bit_length() // 8 + 1


def _unpack(
    frame: Frame, payload: bytes, n_items: int, width: int, round: int, max_rows: int | None
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    size, packed, columns, sent_round, rows, bits = frame.unpack(payload)
    if not 1 <= size <= 8 or packed > 1 or bits != GRID_BITS:
        raise MessageError("the message's header makes no sense")
    if sent_round != round:
        raise MessageError(f"message is for round {sent_round}, the round is {round}")
    if columns != width:
        raise MessageError(f"message has {columns} columns, the model has {width}")
    if rows > (n_items if max_rows is None else min(max_rows, n_items)):
        raise MessageError("message has more rows than a device may send")
    body = _opened(payload[REPORT.size :], rows * (4 + columns * size), bool(packed))
    steps = np.frombuffer(body, np.uint8, 4 * rows).reshape(4, rows).T.copy().view("<u4").ravel()
    item = steps.cumsum(dtype=np.int64)
    if rows and (item[-1] >= n_items or not steps[1:].all()):
        raise MessageError("items must be known, ascending and sent once each")
    narrow = np.frombuffer(body, np.uint8, rows * columns * size, 4 * rows)
    wide = np.zeros((rows * columns, 8), dtype=np.uint8)
    wide[:, 8 - size :] = narrow.reshape(size, rows * columns).T
    # The high bytes are filled and shifted down, which carries the sign along.
    values = wide.view("<i8").reshape(rows, columns) >> (8 * (8 - size))
    return item.astype(np.int32), values.astype(np.int64, copy=False)


def _opened(body: bytes, length: int, packed: bool) -> bytes:
    """The body at its full length, which the header has announced and which was found fit."""
    if packed:
        try:
            body = zstd.decompress(body, length + 1)
        except ValueError:
            raise MessageError("message cannot be unpacked") from None
    if len(body) != length:
        raise MessageError("message length does not match its header")
    return body
