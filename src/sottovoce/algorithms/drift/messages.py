"""What DRIFT's parties say to each other, and the public table of who holds what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.redacted import Redacted
from sottovoce.errors import DataError, MessageError

Ints = NDArray[np.int64]


class OwnerTable:
    """Which data owners hold an item; anybody may read it."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[int, ...]] = {}
        self._items: dict[int, set[int]] = {}

    def __repr__(self) -> str:
        return f"<OwnerTable {len(self._owners):,} items, {len(self._items):,} owners>"

    def __iter__(self) -> Iterator[int]:
        """The items that somebody holds."""
        return iter(self._owners)

    def __len__(self) -> int:
        return len(self._owners)

    @classmethod
    def of_membership(cls, membership: NDArray[np.bool_]) -> OwnerTable:
        """From [items, owners], as `Dataset.category_matrix` gives it: an owner per category."""
        table = cls()
        for owner in range(membership.shape[1]):
            table.add(owner, np.flatnonzero(membership[:, owner]).tolist())
        return table

    def add(self, owner: int, items: Iterable[int]) -> None:
        """An owner joins, or brings items. An owner that has none is not listed."""
        new = set(items)
        if owner < 0 or any(item < 0 for item in new):
            raise DataError("owners and items are numbered from 0")
        for item in new:
            self._owners[item] = tuple(sorted({*self._owners.get(item, ()), owner}))
        if new:
            self._items.setdefault(owner, set()).update(new)

    def withdraw(self, owner: int, items: Iterable[int]) -> None:
        """These items are not the owner's any more; an owner without items has left."""
        gone = set(items)
        if not gone <= self._items.get(owner, set()):
            raise DataError(f"data owner {owner} cannot withdraw what it does not hold")
        for item in gone:
            left = tuple(k for k in self._owners[item] if k != owner)
            if left:
                self._owners[item] = left
            else:
                del self._owners[item]
        if gone:
            self._items[owner] -= gone
            if not self._items[owner]:
                del self._items[owner]

    def owners(self, item: int) -> tuple[int, ...]:
        """The owners that hold the item, ascending."""
        try:
            return self._owners[item]
        except KeyError:
            raise DataError("no data owner holds this item") from None

    def items(self, owner: int) -> frozenset[int]:
        """The items that the owner holds; none where it has not joined."""
        return frozenset(self._items.get(owner, ()))

    def holds(self, owner: int, items: Iterable[int]) -> bool:
        """Whether all of these items are the owner's."""
        return self._items.get(owner, set()).issuperset(items)

    def all_owners(self) -> list[int]:
        """Those that hold anything, ascending."""
        return sorted(self._items)

    def arrays(self, n_items: int) -> tuple[Ints, Ints, int]:
        """The table for items below `n_items`: the owners of item i are
        holders[pointer[i]:pointer[i + 1]], numbered without gaps in their order. Returns pointer,
        holders and the number of owners."""
        place = {owner: k for k, owner in enumerate(self.all_owners())}
        rows = [self._owners.get(item, ()) for item in range(n_items)]
        pointer = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        holders = np.array([place[owner] for row in rows for owner in row], dtype=np.int64)
        return pointer, holders, len(place)


@dataclass(frozen=True, slots=True, repr=False)
class Interaction(Redacted):
    """user → data owner. On the wire it is sealed (`wire/interactions.py`)."""

    owner: int
    user: int
    item: int
    positive: bool
    time: int


@dataclass(frozen=True, slots=True, repr=False)
class RowRequest(Redacted):
    """data owner → orchestrator: the users and items of finished blocks, ascending, each once."""

    owner: int
    users: Ints
    items: Ints


@dataclass(frozen=True, slots=True, repr=False)
class Rows(Redacted):
    """orchestrator → data owner: the rows that were asked for, as of a version of the model."""

    version: int
    users: Ints
    items: Ints
    user_rows: NDArray[np.float32]
    item_rows: NDArray[np.float32]

    def check(self, size: int) -> None:
        """Raises where it is not a finite row of this size for every number."""
        _check_rows(self.users, self.user_rows, size)
        _check_rows(self.items, self.item_rows, size)


@dataclass(frozen=True, slots=True, repr=False)
class Gradients(Redacted):
    """data owner → orchestrator: one gradient for each user and item, numbers ascending."""

    owner: int
    version: int
    """Of the rows they were computed from."""
    users: Ints
    items: Ints
    user_rows: NDArray[np.float32]
    item_rows: NDArray[np.float32]

    def check(self, size: int) -> None:
        """Raises where it is not a finite row of this size for every number."""
        _check_rows(self.users, self.user_rows, size)
        _check_rows(self.items, self.item_rows, size)


def _check_rows(numbers: Ints, rows: NDArray[np.float32], size: int) -> None:
    if rows.shape != (len(numbers), size) or rows.dtype != np.float32:
        raise MessageError(f"there must be {size} numbers in single precision for every row")
    if not np.isfinite(rows).all():
        raise MessageError("the message holds numbers that are not finite")
    if (numbers[1:] <= numbers[:-1]).any():
        raise MessageError("users and items must ascend, each once")


# --- a table of vectors that grows as users or items join ----------------------------------------

LARGEST = 1 << 27
"""Users and items have smaller numbers."""
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
