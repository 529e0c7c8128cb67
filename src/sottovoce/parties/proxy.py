"""The proxy: takes k reports of equal size from each device and round, parts them from whose they
are, and hands on whole tiers in an order that says nothing. Simulation and the service
(engines/https) share these rules and the shuffle; one keeps the reports in memory, open, the other
on disk, sealed.

A report hides among those of the batch's honest devices. A proxy cannot tell people from devices
that the server has made up: where all others are such, only the report's own randomness protects
it, and the certificate is that without a proxy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce import shuffling
from sottovoce.errors import ConfigError, MessageError
from sottovoce.messages import Batch, BitReports

Rows = Callable[[], Iterable[NDArray[np.uint8]]]
"""All records of a batch, [n, size] at a time; the same ones in the same order at each call."""

_BUCKET_BYTES = 4 << 20
_AT_ONCE = 8
"""Buckets that are in memory at a time."""


@dataclass(frozen=True, slots=True)
class ProxyRules:
    """What a proxy takes, and when it lets go of a tier's batch."""

    reports: int
    """k: each device sends so many a round, no more and no fewer."""
    minimum: tuple[int, ...]
    """For each tier, the devices below which nothing leaves the proxy."""
    goal: tuple[int, ...] = ()
    """For each tier, the devices with which a batch waits no longer; none where it is empty."""
    hold_seconds: float = 60.0
    """How long a batch that has its minimum waits for its goal."""

    def __post_init__(self) -> None:
        if self.reports < 1:
            raise ConfigError(f"a device sends at least one report a round, not {self.reports}")
        if not self.minimum or min(self.minimum) < 1:
            raise ConfigError("every tier needs a minimum of at least one device")
        if self.goal and len(self.goal) != len(self.minimum):
            raise ConfigError(f"there are {len(self.minimum)} tiers, but {len(self.goal)} goals")
        if not 0.0 <= self.hold_seconds < float("inf"):
            raise ConfigError("a batch can be held for a number of seconds, not for ever")

    def releases(self, tier: int, devices: int, waited: float) -> bool:
        """Whether a batch of so many devices may go, `waited` seconds after it had its minimum. It
        never may below that, whatever the goal and the wait."""
        if devices < self.minimum[tier]:
            return False
        return waited >= self.hold_seconds or bool(self.goal and devices >= self.goal[tier])


class Proxy:
    """A proxy in memory, for one whole round at a time."""

    def __init__(self, minimum: Sequence[int], reports: int) -> None:
        self._rules = ProxyRules(reports, tuple(minimum), hold_seconds=0.0)
        self._last = -1
        self.held: Counter[int] = Counter()
        """Devices per tier whose reports were held back and dropped, over all rounds."""

    def collect(self, bits: BitReports, threads: int = 1) -> list[Batch]:
        """A batch for each tier that reaches its minimum, shuffled with randomness from the
        operating system. Refuses a round that is over and a round in which anyone sent the wrong
        number of reports, named an unknown tier or sent twice."""
        rules, tiers = self._rules, len(self._rules.minimum)
        if bits.round <= self._last:
            raise MessageError(f"round {bits.round} is over")
        if bits.reports.shape != (len(bits.sender), rules.reports):
            raise MessageError(f"every device must send {rules.reports} reports")
        if bits.tier.shape != bits.sender.shape:
            raise MessageError("every device must name one tier")
        if len(bits) and not 0 <= int(bits.tier.min()) <= int(bits.tier.max()) < tiers:
            raise MessageError("a device names a tier that is not in the terms")
        if len(np.unique(bits.sender)) != len(bits.sender):
            raise MessageError("a device sends twice in one round")
        self._last = bits.round
        batches = []
        for tier, devices in enumerate(np.bincount(bits.tier, minlength=tiers).tolist()):
            if not devices:
                continue
            if not rules.releases(tier, devices, 0.0):
                self.held[tier] += devices
                continue
            everyone = devices == len(bits)
            sent = bits.reports if everyone else bits.reports[bits.tier == tier]
            mixed = shuffling.shuffled(sent.ravel(), shuffling.new_seed(), threads=threads)
            batches.append(Batch(bits.round, tier, devices, mixed))
        return batches


def in_parts(
    rows: Rows, records: int, size: int, seed: bytes, *, per_part: int, first: int = 0
) -> Iterator[bytes]:
    """The records of a batch, `size` bytes each, in the uniformly random order that the seed gives,
    in parts of `per_part` records (the last one may be shorter), from part `first` on. Holds a
    bounded share of them in memory; the same seed gives the same parts."""
    bits = shuffling.bucket_bits(records, max(1, _BUCKET_BYTES // size))
    counts = _bucket_counts(records, seed, bits)
    ends = np.cumsum(counts)
    skip = first * per_part
    bucket = int(np.searchsorted(ends, skip, side="right"))
    skip -= int(ends[bucket - 1]) if bucket else 0
    waiting = bytearray()
    while bucket < len(counts):
        stop = min(bucket + _AT_ONCE, len(counts))
        for content in _buckets(rows, size, seed, bits, bucket, counts[bucket:stop]):
            waiting += content[skip:].tobytes()
            skip = 0
            while len(waiting) >= per_part * size:
                yield bytes(waiting[: per_part * size])
                del waiting[: per_part * size]
        bucket = stop
    if waiting:
        yield bytes(waiting)


def _bucket_counts(records: int, seed: bytes, bits: int) -> NDArray[np.int64]:
    counts = np.zeros(1 << bits, dtype=np.int64)
    for start in range(0, records, 1 << 20):
        labels = shuffling.labels_of(seed, start, min(1 << 20, records - start), bits)
        counts += np.bincount(labels, minlength=1 << bits)
    return counts


def _buckets(
    rows: Rows, size: int, seed: bytes, bits: int, first: int, counts: NDArray[np.int64]
) -> Iterator[NDArray[np.uint8]]:
    """The shuffled records of a few buckets, after one walk over all rows."""
    found = [np.empty((count, size), dtype=np.uint8) for count in counts.tolist()]
    filled = [0] * len(found)
    position = 0
    for some in rows():
        labels = shuffling.labels_of(seed, position, len(some), bits)
        position += len(some)
        for k, content in enumerate(found):
            mine = some[labels == first + k] if bits else some
            content[filled[k] : filled[k] + len(mine)] = mine
            filled[k] += len(mine)
    for k, content in enumerate(found):
        if filled[k] != len(content):
            raise MessageError("the records of a batch are not as many as they were")
        yield content[shuffling.order_in(seed, first + k, len(content))]
