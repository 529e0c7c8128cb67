"""The tables of a data owner that sends sums over people (`release = "aggregated"`): vectors of
users, sums that wait for more people, and rows that have left. They are part of `owner.db`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift_aggregated import Learnt
from sottovoce.algorithms.known_rows import Row
from sottovoce.errors import StoreError
from sottovoce.stamps import stamp, unstamp

TABLES = """
CREATE TABLE vectors (user INTEGER PRIMARY KEY, row BLOB NOT NULL);
CREATE TABLE sums (item INTEGER PRIMARY KEY, row BLOB NOT NULL, people BLOB NOT NULL);
CREATE TABLE sent (item INTEGER PRIMARY KEY, row BLOB NOT NULL);
"""


STAMP_SUMS = """
UPDATE vectors SET row = stamp(row, 'vectors', user);
UPDATE sums SET row = stamp(row, 'sums', item), people = stamp(people, 'people', item);
UPDATE sent SET row = stamp(row, 'sent', item);
"""
"""Brings tables of an earlier release up to this one, within a connection that knows `stamp`."""


class _Rows(Protocol):
    def fetchall(self) -> list[Any]: ...


@dataclass(frozen=True, slots=True, repr=False)
class KeptSums:
    """All that the tables hold. Private."""

    learnt: Learnt
    sent: dict[int, Row]
    """By item: what has left and is not known to be counted."""

    def __repr__(self) -> str:
        return "<KeptSums, redacted>"


class SumTables:
    """Writes within a transaction of the store."""

    def __init__(
        self,
        run: Callable[[str], _Rows],
        run_many: Callable[[str, Sequence[Sequence[Any]]], None],
    ) -> None:
        self._run, self._run_many = run, run_many

    def __repr__(self) -> str:
        return "<SumTables, redacted>"

    def load(self, size: int) -> KeptSums:
        """Raises where a row has not `size` numbers."""
        learnt = Learnt()
        for user, row in self._run("SELECT user, row FROM vectors").fetchall():
            learnt.vectors[user] = _row(row, "<f4", size, "vectors", user).astype(np.float32)
        for item, row, people in self._run("SELECT item, row, people FROM sums").fetchall():
            learnt.waiting[item] = _row(row, "<f8", size, "sums", item).astype(np.float64)
            numbers = np.frombuffer(_genuine(people, "people", item), "<u4")
            learnt.people[item] = frozenset(numbers.tolist())
        sent = self._run("SELECT item, row FROM sent").fetchall()
        return KeptSums(
            learnt,
            {item: _row(row, "<f4", size, "sent", item).astype(np.float32) for item, row in sent},
        )

    def put_vectors(self, vectors: Mapping[int, Row], users: Iterable[int]) -> None:
        """Of these users."""
        rows = [
            (user, stamp(vectors[user].astype("<f4").tobytes(), "vectors", user)) for user in users
        ]
        self._run_many("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)

    def drop_vector(self, user: int) -> None:
        self._run_many("DELETE FROM vectors WHERE user = ?", [(user,)])

    def put_sums(self, learnt: Learnt) -> None:
        """All that wait, in the place of those that waited."""
        self._run("DELETE FROM sums")
        rows = [
            (
                item,
                stamp(row.astype("<f8").tobytes(), "sums", item),
                stamp(_numbers(learnt.people[item]), "people", item),
            )
            for item, row in learnt.waiting.items()
        ]
        self._run_many("INSERT INTO sums VALUES (?, ?, ?)", rows)

    def put_sent(self, sent: Mapping[int, Row]) -> None:
        """All that have left, in the place of those before."""
        self._run("DELETE FROM sent")
        rows = [
            (item, stamp(row.astype("<f4").tobytes(), "sent", item)) for item, row in sent.items()
        ]
        self._run_many("INSERT INTO sent VALUES (?, ?)", rows)


def _numbers(people: Iterable[int]) -> bytes:
    return np.array(sorted(people), dtype="<u4").tobytes()


def _row(stamped: bytes, kind: str, size: int, table: str, key: int) -> NDArray[Any]:
    found: NDArray[Any] = np.frombuffer(_genuine(stamped, table, key), kind)
    if len(found) != size or not np.isfinite(found).all():
        raise StoreError("the owner's store is damaged; put back a copy of it")
    return found


def _genuine(stamped: bytes, table: str, key: int) -> bytes:
    """What was stamped for this place. Raises where it is damaged."""
    content = unstamp(stamped, table, key)
    if content is None:
        raise StoreError("the owner's store is damaged; put back a copy of it")
    return content
