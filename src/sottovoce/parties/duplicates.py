"""Sealed reports that come twice in a batch: whoever takes a layer off passes each on once, or a
copy of somebody's report would show which one it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

AT_ONCE = 1 << 24
"""Reports among which duplicates are looked for at once."""

Bodies = Callable[[], Iterator[bytes]]
"""The parts of a batch from the first one on, each time it is called."""


def once(bodies: Bodies, reports: int, size: int, refused: Counter[str]) -> Iterator[bytes]:
    """The parts of a batch of so many sealed reports, `size` bytes each, of which each is there
    once."""
    twice = _repeated(bodies, reports, size)
    seen: set[int] = set()
    for body in bodies():
        if not len(twice):
            yield body
            continue
        table = np.frombuffer(body, np.uint8).reshape(-1, size)
        marks, keep = _marks(table), np.ones(len(table), np.bool_)
        for at in np.flatnonzero(np.isin(marks, twice)):
            keep[at] = int(marks[at]) not in seen
            seen.add(int(marks[at]))
        refused["duplicate"] += int((~keep).sum())
        yield table[keep].tobytes()


def _repeated(bodies: Bodies, reports: int, size: int) -> NDArray[np.uint64]:
    """Marks that more than one report has."""
    shares = -(-reports // AT_ONCE)
    found = [np.zeros(0, np.uint64)]
    for share in range(shares):
        marks = []
        for body in bodies():
            all_marks = _marks(np.frombuffer(body, np.uint8).reshape(-1, size))
            marks.append(all_marks[all_marks % np.uint64(shares) == share])
        values, times = np.unique(np.concatenate(marks), return_counts=True)
        found.append(values[times > 1])
    return np.concatenate(found)


def _marks(table: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The first bytes of each report's ephemeral key, which nobody draws twice."""
    return np.ascontiguousarray(table[:, :8]).view("<u8")[:, 0]
