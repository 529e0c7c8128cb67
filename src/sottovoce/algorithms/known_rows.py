"""A table of vectors that grows as users or items join."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import DataError

LARGEST = 1 << 27
"""Users and items have smaller numbers."""
Ints = NDArray[np.int64]
Row = NDArray[np.float32]


class KnownRows:
    """Rows by number, for those who have joined."""

    def __init__(self, size: int) -> None:
        self._rows = np.zeros((16, size), dtype=np.float32)
        self._joined = np.zeros(16, dtype=bool)
        self._end = 0

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        """Numbers, ascending, and their rows."""
        for number in np.flatnonzero(self._joined).tolist():
            yield number, self._rows[number].copy()

    @property
    def table(self) -> NDArray[np.float32]:
        """A row for every number up to the largest that ever joined."""
        return self._rows[: self._end]

    def has(self, numbers: Ints | list[int]) -> bool:
        """Whether all of them have joined."""
        asked = np.asarray(numbers, dtype=np.int64)
        inside = (asked >= 0) & (asked < self._end)
        return bool(inside.all() and self._joined[asked].all())

    def put(self, number: int, row: Row) -> None:
        if not 0 <= number < LARGEST:
            raise DataError(f"users and items are numbered from 0 to {LARGEST - 1:,}")
        while number >= len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._joined = np.concatenate([self._joined, np.zeros_like(self._joined)])
        self._rows[number], self._joined[number] = row, True
        self._end = max(self._end, number + 1)

    def erase(self, number: int) -> None:
        if self.has([number]):
            self._rows[number], self._joined[number] = 0.0, False
