"""Ranks: processes that run one experiment together, each with the users of one contiguous range.

Everything that is exchanged is a whole number or a small object, so that sums do not depend on who
adds up first, and any number of ranks gives the same bits. One process is the case of one rank:
`Ranks` itself answers for it, and `engines.distributed` for several.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import ConfigError

T = TypeVar("T")
_AT_ONCE = 1 << 16
_PIECE = 1 << 22


class Ranks:
    """One process, which is alone. What it is asked, others are asked at the same place of the same
    program; where one of them stops instead, this raises `errors.RankLost` and never waits for
    ever."""

    rank = 0
    size = 1
    together = False
    """Whether it is a rank of the distributed engine, of which there may be one. What a device does
    then must not depend on who else is in its process, to the last bit."""

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}>"

    @property
    def several(self) -> bool:
        return self.size > 1

    @property
    def first(self) -> bool:
        """Whether it is the one that writes what there is once, and speaks."""
        return self.rank == 0

    def all_sum(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum over all ranks, element by element."""
        return numbers

    def gather(self, told: T) -> list[T]:
        """What each rank tells, in their order. For small things."""
        return [told]

    def meet(self) -> None:
        """Waits until all are here."""

    def begun(self) -> None:
        """The run's folder is this run's: ranks that are started again go on with it."""

    def same(self, what: str, value: str) -> None:
        """Raises where a rank has another value than the first one."""

    # --- what follows from these ------------------------------------------------------------------

    def total(self, *numbers: int) -> tuple[int, ...]:
        """The sums of some whole numbers."""
        return tuple(self.all_sum(np.array(numbers, dtype=np.int64)).tolist())

    def counts(self, number: int) -> list[int]:
        """The number that each rank has."""
        mine = np.zeros(self.size, dtype=np.int64)
        mine[self.rank] = number
        counts: list[int] = self.all_sum(mine).tolist()
        return counts

    def before(self, number: int) -> int:
        """The sum over the ranks before this one."""
        return sum(self.counts(number)[: self.rank])

    def any(self, *said: bool) -> tuple[bool, ...]:
        """Whether anybody says so, for each question."""
        return tuple(count > 0 for count in self.total(*map(int, said)))

    def exact_sum(self, values: NDArray[np.float64]) -> float:
        """The sum of everybody's values, rounded once: the same whoever holds which of them."""
        if not self.several:
            return math.fsum(_each(values))
        return math.fsum(chain.from_iterable(self.gather(exact_parts(values))))

    def told_by(self, rank: int, column: NDArray[np.generic]) -> Iterator[NDArray[np.uint8]]:
        """The bytes of one rank's array, told to all ranks piece by piece. What the others give is
        not looked at."""
        mine = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
        if not self.several:
            yield mine
            return
        length = self.counts(len(mine))[rank]
        for start in range(0, length, _PIECE):
            size = min(_PIECE, length - start)
            words = np.zeros(-(-size // 8), dtype=np.int64)  # nothing, where others add theirs
            if rank == self.rank:
                words.view(np.uint8)[:size] = mine[start : start + size]
            yield self.all_sum(words).view(np.uint8)[:size]

    def in_turn(self, column: NDArray[np.generic]) -> Iterator[NDArray[np.uint8]]:
        """The bytes of everybody's arrays, in the order of ranks; nobody has all at once."""
        for rank in range(self.size):
            yield from self.told_by(rank, column)

    def span(self, users: int) -> range:
        """The users of this rank, of so many."""
        if users < self.size:
            raise ConfigError(
                f"there are {users:,} users for {self.size:,} ranks, so that one would have none; "
                "start fewer ranks"
            )
        return range(users * self.rank // self.size, users * (self.rank + 1) // self.size)


ALONE = Ranks()


@dataclass(frozen=True, slots=True)
class Shard:
    """A contiguous range of users, of which this process holds the data."""

    ranks: Ranks = field(default=ALONE)
    first: int = 0
    """The number of its first user in the whole."""


WHOLE = Shard()


def exact_parts(values: NDArray[np.float64]) -> list[float]:
    """A few numbers whose exact sum is the exact sum of these finite ones."""
    parts: list[float] = []
    while True:
        rest = math.fsum(chain(_each(values), (-part for part in parts)))
        if not rest:
            return parts
        parts.append(rest)


def _each(values: NDArray[np.float64]) -> Iterable[float]:
    for start in range(0, len(values), _AT_ONCE):
        yield from values[start : start + _AT_ONCE].tolist()
