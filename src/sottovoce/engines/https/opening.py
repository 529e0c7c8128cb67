"""From the sealed batches of a round to counts: every report is opened by itself, and what is not a
report of this round, or comes twice, is left out and counted.

A part of a batch is in memory at a time, and a few bytes of each report to find those that come
twice, of so many reports at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from sottovoce.engines.https import batches
from sottovoce.engines.https.openers import Openers
from sottovoce.engines.https.report_keys import ReportKey
from sottovoce.engines.https.sealing import SEALED_BYTES
from sottovoce.messages import Batch, BitCounts
from sottovoce.parties.server import Server

AT_ONCE = 1 << 24
"""Reports among which duplicates are looked for at once."""

Bodies = Callable[[], Iterator[bytes]]
"""The parts of a batch from the first one on, each time it is called."""


def count_round(
    link: sa.Connection, server: Server, key: ReportKey, federation: str
) -> tuple[BitCounts, Counter[str]]:
    """The counts of a round's complete batches, and how many reports were left out and why."""
    round, refused = server.round, Counter[str]()
    counts = server.count([])
    devices, reports, sums = list(counts.devices), list(counts.reports), counts.sums
    for head in batches.heads(link, round):
        if not head.complete:
            continue

        def bodies(tier: int = head.tier, parts: int = head.parts) -> Iterator[bytes]:
            return batches.bodies(link, round, tier, parts)

        devices[head.tier] = head.devices
        openers = Openers(key.private, federation=federation, round=round, tier=head.tier)
        with openers.helped(head.reports):
            for sealed in _once(bodies, head.reports, refused):
                opened, bad = openers.open(sealed)
                refused["undecryptable"] += bad
                known = opened >> np.uint32(1) < sums.shape[1]
                refused["out_of_range"] += int((~known).sum())
                part = Batch(round, head.tier, head.devices, opened[known])
                sums += server.count([part]).sums
                reports[head.tier] += len(part.reports)
    return BitCounts(round, tuple(devices), tuple(reports), sums), +refused


def _once(bodies: Bodies, reports: int, refused: Counter[str]) -> Iterator[bytes]:
    """The parts of a batch, of which each sealed report is there once."""
    twice = _repeated(bodies, reports)
    seen: set[int] = set()
    for body in bodies():
        if not len(twice):
            yield body
            continue
        table = np.frombuffer(body, np.uint8).reshape(-1, SEALED_BYTES)
        marks, keep = _marks(table), np.ones(len(table), np.bool_)
        for at in np.flatnonzero(np.isin(marks, twice)):
            keep[at] = int(marks[at]) not in seen
            seen.add(int(marks[at]))
        refused["duplicate"] += int((~keep).sum())
        yield table[keep].tobytes()


def _repeated(bodies: Bodies, reports: int) -> NDArray[np.uint64]:
    """Marks that more than one report has."""
    shares = -(-reports // AT_ONCE)
    found = [np.zeros(0, np.uint64)]
    for share in range(shares):
        marks = []
        for body in bodies():
            all_marks = _marks(np.frombuffer(body, np.uint8).reshape(-1, SEALED_BYTES))
            marks.append(all_marks[all_marks % np.uint64(shares) == share])
        values, times = np.unique(np.concatenate(marks), return_counts=True)
        found.append(values[times > 1])
    return np.concatenate(found)


def _marks(table: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The first bytes of each report's ephemeral key, which nobody draws twice."""
    return np.ascontiguousarray(table[:, :8]).view("<u8")[:, 0]
