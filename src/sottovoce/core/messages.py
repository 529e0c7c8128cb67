"""Everything that crosses a link; `wire.reports` turns it into bytes.

**Grid.** Item updates are whole numbers of 2**-24. Sums of whole numbers do not depend on their
order, so a model is the same bit for bit whatever the batching, the threads or the engine, and
secure aggregation needs no second encoding. The rounding is far below what single precision keeps
of a factor after a step.

Raw `Updates` never cross a link; `DeviceReports` are built at the one door (`parties/device.py`)
or decoded from the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.arrays import distinct, sum_by_number
from sottovoce.core.masking import Words

GRID_BITS = 24
GRID = 2.0**GRID_BITS
"""Steps of the grid per unit."""
LIMIT = 127.0
"""Largest absolute value of one draw's update, before rounding to the grid."""


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


@dataclass(frozen=True, slots=True)
class SealedBatch:
    """shuffler → shuffler: the same, every report sealed to shufflers that are still to come and to
    the server. So many records of equal size are all that it shows."""

    round: int
    tier: int
    devices: int
    records: int


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
    masked: Words
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
    masks: Words
    bits: int = 64
    """Bits of a masked number."""

    def __repr__(self) -> str:
        return f"<MaskSum round={self.round} devices={self.devices}>"


@dataclass(frozen=True, slots=True, repr=False)
class SharedReports:
    """device → aggregator, sealed on its way through the server: of each sender two of the three
    secrets of its shares (`shares`), and what travels beside them."""

    round: int
    sender: NDArray[np.int64]
    secrets: tuple[tuple[bytes, bytes], ...]
    travelled: NDArray[np.uint32]
    """[senders, elements]; the server cannot read it, and no aggregator its vector."""

    def __len__(self) -> int:
        return len(self.sender)

    def __repr__(self) -> str:
        return f"<SharedReports round={self.round} devices={len(self)}, redacted>"


@dataclass(frozen=True, slots=True, repr=False)
class CheckParts:
    """aggregator → server: its blinded part of what opens of every device."""

    round: int
    aggregator: int
    parts: NDArray[np.uint32]
    """[devices, checks]."""

    def __repr__(self) -> str:
        return f"<CheckParts round={self.round} aggregator={self.aggregator}>"


@dataclass(frozen=True, slots=True, repr=False)
class SumPart:
    """aggregator → server: its blinded part of the sum over the devices that are not left out, with
    its noise."""

    round: int
    aggregator: int
    devices: int
    part: NDArray[np.uint32]

    def __repr__(self) -> str:
        return f"<SumPart round={self.round} aggregator={self.aggregator}>"


Aggregate = SummedReports | BitCounts
"""What the server folds into its model."""


def add_up(round: int, batches: Sequence[DeviceReports], width: int) -> SummedReports:
    """The sum of messages, in any order."""
    item, values = _joined([(b.item, b.values) for b in batches], width)
    devices = sum(len(distinct(b.sender)) for b in batches)
    item, sums = sum_by_number(item, values)
    return SummedReports(round, item, sums, devices)


def _joined(
    parts: Sequence[tuple[NDArray[np.int32], NDArray[np.int64]]], width: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    if len(parts) == 1:
        return parts[0]
    item = np.concatenate([np.zeros(0, np.int32), *(one for one, _ in parts)])
    return item, np.concatenate([np.zeros((0, width), np.int64), *(values for _, values in parts)])


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
    item, values = _joined([(p.item, p.sums) for p in parts], width)
    item, sums = sum_by_number(item, values)
    return SummedReports(round, item, sums, sum(p.devices for p in parts))
