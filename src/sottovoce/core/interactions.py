"""The one table everything learns from: who touched what, and when.

`Interactions` is immutable, compressed by user (CSR) and free of duplicates; ids are dense and
0-based, the outside names live in two `Vocabulary` objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.config import require_number
from sottovoce.core.arrays import distinct
from sottovoce.core.portable import exp_of
from sottovoce.core.ranks import ALONE, Ranks
from sottovoce.errors import CorruptData, DataError


class Vocabulary:
    """Outside names for dense indices. `numbered(n)` names index 7 "7" and stores nothing."""

    __slots__ = ("__dict__", "_names", "_size")

    def __init__(self, names: Sequence[str] | NDArray[np.str_]) -> None:
        self._names: NDArray[np.str_] | None = np.asarray(names, dtype=np.str_)
        self._size = len(self._names)
        if len(distinct(self._names)) != self._size:
            raise CorruptData("a vocabulary must not name two rows alike")

    @classmethod
    def numbered(cls, size: int) -> Vocabulary:
        vocabulary = cls.__new__(cls)
        vocabulary._names = None
        vocabulary._size = size
        return vocabulary

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<Vocabulary of {self._size:,}>"

    def name(self, index: int) -> str:
        if not 0 <= index < self._size:
            raise DataError(f"there is no row {index}; rows run from 0 to {self._size - 1}")
        return str(index) if self._names is None else str(self._names[index])

    def names(self, indices: Iterable[int] | NDArray[np.integer] | None = None) -> list[str]:
        every = range(self._size) if indices is None else indices
        return [self.name(int(i)) for i in every]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names())}

    def index(self, name: str) -> int:
        """The dense index of a name; raises DataError where it is not known."""
        if name not in self:
            hint = f"; names run from 0 to {self._size - 1}" if self._names is None else ""
            raise DataError(f"{name!r} is not known here{hint}")
        return int(name) if self._names is None else self._index[name]

    def __contains__(self, name: object) -> bool:
        if self._names is not None:
            return name in self._index
        # Exactly as `name` writes them: "7", not "07" or "٧".
        if not isinstance(name, str) or not name.isdecimal() or len(name) > len(str(self._size)):
            return False
        return name == str(int(name)) and int(name) < self._size

    def take(self, indices: NDArray[np.integer]) -> Vocabulary:
        """The names of these rows, in this order."""
        if self._names is None:
            return Vocabulary(np.asarray(indices).astype(np.str_))
        return Vocabulary(self._names[indices])


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Interactions:
    """Positive interactions by user. Row u holds `items[indptr[u]:indptr[u + 1]]`, ascending.

    Invariants, checked on construction: `indptr` rises from 0; items ascend strictly within a user
    (so there are no duplicates) and lie below `n_items`; side columns have one value per entry.
    Arrays are read-only.

    Example:
        ```python
        train = sv.split(sv.load("town", residents=500)).train
        print(train.n_users, train.n_items, train.row(0))
        ```
    """

    indptr: NDArray[np.int64]
    items: NDArray[np.int32]
    n_items: int
    timestamps: NDArray[np.int64] | None = None
    ratings: NDArray[np.float32] | None = None
    user_ids: Vocabulary | None = None
    item_ids: Vocabulary | None = None

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "indptr", _frozen(self.indptr, np.int64))
        set_(self, "items", _frozen(self.items, np.int32))
        if self.timestamps is not None:
            set_(self, "timestamps", _frozen(self.timestamps, np.int64))
        if self.ratings is not None:
            set_(self, "ratings", _frozen(self.ratings, np.float32))
        if self.user_ids is None:
            set_(self, "user_ids", Vocabulary.numbered(self.n_users))
        if self.item_ids is None:
            set_(self, "item_ids", Vocabulary.numbered(self.n_items))
        self._check()

    def _check(self) -> None:
        indptr, items = self.indptr, self.items
        if len(indptr) < 1 or indptr[0] != 0 or indptr[-1] != len(items):
            raise CorruptData("row pointers must run from 0 to the number of interactions")
        if np.any(np.diff(indptr) < 0):
            raise CorruptData("row pointers must not fall")
        if len(items):
            if int(items.min()) < 0 or int(items.max()) >= self.n_items:
                raise CorruptData(f"item numbers must lie in [0, {self.n_items})")
            rising = np.diff(items) > 0
            starts = indptr[1:-1]
            rising[starts[(starts > 0) & (starts < len(items))] - 1] = True
            if not rising.all():
                raise CorruptData("items must ascend strictly within each user")
        for name in ("timestamps", "ratings"):
            column = getattr(self, name)
            if column is not None and len(column) != len(items):
                raise CorruptData(f"{name} must have one value per interaction")
        if self.user_ids is not None and len(self.user_ids) != self.n_users:
            raise CorruptData("the user vocabulary must name every user")
        if self.item_ids is not None and len(self.item_ids) != self.n_items:
            raise CorruptData("the item vocabulary must name every item")

    @classmethod
    def from_pairs(
        cls,
        users: ArrayLike,
        items: ArrayLike,
        *,
        n_users: int | None = None,
        n_items: int | None = None,
        timestamps: ArrayLike | None = None,
        ratings: ArrayLike | None = None,
        user_ids: Vocabulary | None = None,
        item_ids: Vocabulary | None = None,
        keep: Literal["first", "last"] = "last",
    ) -> Interactions:
        """Build from events in any order. Repeated (user, item) events collapse to one: the first
        or the last in time (in file order where there is no time, or where times are equal)."""
        u = np.asarray(users, dtype=np.int64)
        i = np.asarray(items, dtype=np.int64)
        if u.shape != i.shape or u.ndim != 1:
            raise CorruptData("users and items must be two columns of one length")
        n_users = (int(u.max()) + 1 if len(u) else 0) if n_users is None else n_users
        n_items = (int(i.max()) + 1 if len(i) else 0) if n_items is None else n_items
        if len(u) and (u.min() < 0 or u.max() >= n_users or i.min() < 0 or i.max() >= n_items):
            raise CorruptData("a user or item number lies outside its range")
        t = None if timestamps is None else np.asarray(timestamps, dtype=np.int64)
        r = None if ratings is None else np.asarray(ratings, dtype=np.float32)
        if any(column is not None and column.shape != u.shape for column in (t, r)):
            raise CorruptData("timestamps and ratings must have one value per event")
        order = np.lexsort((i, u)) if t is None else np.lexsort((t, i, u))
        u, i = u[order], i[order]
        edge = np.ones(len(u), dtype=bool)
        if len(u) > 1:
            differs = (u[1:] != u[:-1]) | (i[1:] != i[:-1])
            edge[slice(1, None) if keep == "first" else slice(None, -1)] = differs
        kept = order[edge]
        indptr = np.zeros(n_users + 1, dtype=np.int64)
        np.cumsum(np.bincount(u[edge], minlength=n_users), out=indptr[1:])
        return cls(
            indptr=indptr,
            items=i[edge].astype(np.int32),
            n_items=n_items,
            timestamps=None if t is None else t[kept],
            ratings=None if r is None else r[kept],
            user_ids=user_ids,
            item_ids=item_ids,
        )

    def __repr__(self) -> str:
        return (
            f"<Interactions {self.n_users:,} users, {self.n_items:,} items, "
            f"{self.n_interactions:,} interactions>"
        )

    @property
    def n_users(self) -> int:
        """How many users there are, with or without items."""
        return len(self.indptr) - 1

    @property
    def n_interactions(self) -> int:
        """How many pairs of a user and an item there are."""
        return len(self.items)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Interactions per user."""
        return np.diff(self.indptr)

    @property
    def item_counts(self) -> NDArray[np.int64]:
        """Interactions per item."""
        return np.bincount(self.items, minlength=self.n_items)

    @property
    def users(self) -> NDArray[np.int64]:
        """The user of every entry, aligned with `items`."""
        return np.repeat(np.arange(self.n_users, dtype=np.int64), self.counts)

    def row(self, user: int) -> NDArray[np.int32]:
        """One user's items, ascending."""
        return self.items[self.indptr[user] : self.indptr[user + 1]]

    def users_vocabulary(self) -> Vocabulary:
        """Names of users by number; the numbers themselves if there are no names."""
        return self.user_ids if self.user_ids is not None else Vocabulary.numbered(self.n_users)

    def items_vocabulary(self) -> Vocabulary:
        """Names of items by number; the numbers themselves if there are no names."""
        return self.item_ids if self.item_ids is not None else Vocabulary.numbered(self.n_items)

    def select(self, mask: NDArray[np.bool_]) -> Interactions:
        """The entries where the mask (aligned with `items`) is true; all numbers stay."""
        indptr = np.zeros(self.n_users + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.users[mask], minlength=self.n_users), out=indptr[1:])
        return self._of(indptr, mask, self.user_ids)

    def first_items(self, n_items: int) -> Interactions:
        """The entries of the first items only."""
        kept, names = self.select(self.items < n_items), self.items_vocabulary()
        return replace(kept, n_items=n_items, item_ids=names.take(np.arange(n_items)))

    def find(self, users: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.int64]:
        """The entry of each user and item; -1 where she has it not."""
        from sottovoce.core.arrays import find_entries  # compiled, which not everyone needs

        found = np.empty(len(users), dtype=np.int64)
        find_entries(self.indptr, self.items, users, items, found)
        return found

    def take_users(self, users: NDArray[np.integer]) -> Interactions:
        """These users only, renumbered in this order; items keep their numbers."""
        return self._of(*self._entries(users), self.users_vocabulary().take(users))

    def repeat_users(self, users: NDArray[np.integer]) -> Interactions:
        """The same of users who may be there several times, and so have no names."""
        return self._of(*self._entries(users), None)

    def _entries(self, users: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the rows of these users begin and end, one after the other, and their entries."""
        users = np.asarray(users, dtype=np.int64)
        counts = self.counts[users]
        indptr = np.zeros(len(users) + 1, dtype=np.int64)
        np.cumsum(counts, out=indptr[1:])
        entries = np.repeat(self.indptr[users] - indptr[:-1], counts) + np.arange(indptr[-1])
        return indptr, entries

    def _of(
        self, indptr: NDArray[np.int64], entries: NDArray[Any], user_ids: Vocabulary | None
    ) -> Interactions:
        """These entries, by the rows of `indptr`."""
        return replace(
            self,
            indptr=indptr,
            items=self.items[entries],
            timestamps=None if self.timestamps is None else self.timestamps[entries],
            ratings=None if self.ratings is None else self.ratings[entries],
            user_ids=user_ids,
        )

    def fingerprint(self, ranks: Ranks = ALONE) -> str:
        """A short digest of the table's content (numbers, not names); of ranks that have a share
        each, that of the whole."""
        digest = hashlib.blake2b(digest_size=16)
        n_users, n_interactions = ranks.total(self.n_users, self.n_interactions)
        digest.update(f"{n_users},{self.n_items},{n_interactions}".encode())
        indptr = self.indptr
        if ranks.several:  # as they would be in the whole, where only the first begins with a 0
            indptr = (indptr + ranks.before(self.n_interactions))[0 if ranks.first else 1 :]
        for column in (indptr, self.items, self.timestamps):
            if column is not None:
                for piece in ranks.in_turn(column):
                    digest.update(piece.data)
        return digest.hexdigest()


def _frozen(values: ArrayLike, dtype: type[np.generic]) -> NDArray[np.generic]:
    array = np.ascontiguousarray(values, dtype=dtype)
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


# --- recency --------------------------------------------------------------------------------------

# In which order a user came to her items, and what that weighs at home. Equal times, and no times
# at all, share their mean place: without an order all entries have equal weights.


def positions(history: Interactions) -> NDArray[np.float64]:
    """The place of each entry among its user's, from 0 for the oldest."""
    if history.timestamps is None:
        return np.repeat((history.counts - 1) / 2.0, history.counts)
    users, times = history.users, history.timestamps
    order = np.lexsort((times, users))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (users[order][1:] != users[order][:-1]) | (times[order][1:] != times[order][:-1])
    first = np.flatnonzero(new)
    many = np.diff(first, append=len(order))
    place = np.arange(len(order)) - history.indptr[users]
    found = np.empty(len(order))
    found[order] = np.repeat(place[first] + (many - 1) / 2.0, many)
    return found


def recency(history: Interactions, memory: float) -> NDArray[np.float64]:
    """The weight of each entry at home: it falls by e with every `memory` later items of its user.
    All weigh 1 where `memory` is 0, or where there are no times."""
    require_number("memory", memory, 0.0, 1e9, above=False)
    if not memory or history.timestamps is None:
        return np.ones(history.n_interactions)
    later = np.repeat(history.counts - 1.0, history.counts) - positions(history)
    return exp_of(-later / memory)
