"""All that has left a store, or may have, on one line of time: reports and other requests, newest
first, a part of them at a time; and what of its user was in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import DataError
from sottovoce.stores.device_schema import WITH_CONTENTS
from sottovoce.stores.encrypted import StoreFile

if TYPE_CHECKING:
    from sottovoce.stores.device import CohortStore

_PART = 10_000
_GONE = "('left', 'arrived', 'refused')"


@dataclass(frozen=True, slots=True, repr=False)
class Line:
    """Something that left, or may have."""

    name: str
    """By which it is asked for: the round and attempt of a report under its terms, or a number."""
    when: int
    what: str
    """The kind of a release, or of a request."""
    party: str
    """Who got a request; empty for reports, which go where the terms say."""
    terms: int
    """Under which ones a report left; -1 for other requests."""
    round: int
    attempt: int
    bytes: int
    epsilon: float
    reports: int
    """Randomised ones in it."""
    items: int
    """Of hers, that are in it."""
    state: str
    """Of a report: left, arrived or refused."""
    reason: str
    sha256: str
    """Of the bytes that left, where they are known."""

    @property
    def is_report(self) -> bool:
        return self.terms >= 0


def count(file: StoreFile, number: int) -> int:
    """How many lines there are."""
    return int(file.value(f"SELECT count(*) FROM ({_lines(file)})", [number, number]))


def lines(file: StoreFile, number: int, offset: int, limit: int) -> list[Line]:
    """Some of one user's, newest first."""
    sql = f"{_lines(file)} ORDER BY 2 DESC, 6 DESC, 7 DESC, 15 DESC LIMIT ? OFFSET ?"
    values = [number, number, limit, offset]
    return [Line(*row[:14]) for row in file.rows(sql, values)]


def all_lines(file: StoreFile, number: int) -> Iterator[Line]:
    """All of them, of one moment."""
    with file.snapshot():
        offset = 0
        while part := lines(file, number, offset, _PART):
            yield from part
            offset += len(part)


def line(file: StoreFile, number: int, name: str) -> Line:
    """One of them, by its name."""
    sql = f"SELECT * FROM ({_lines(file)}) WHERE name = ?"
    row = file.row(sql, [number, number, name])
    if row is None:
        raise DataError("nothing of this name is in the ledger")
    return Line(*row[:14])


def contents(
    file: StoreFile, number: int, terms: int, round: int, attempt: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]] | None:
    """Numbers of her own items that are in a report, and how much of each; None where a former
    release did not keep that."""
    if file.version < WITH_CONTENTS:
        return None
    row = file.row(
        "SELECT items, weights FROM contents WHERE (era, round, attempt, number) = (?, ?, ?, ?)",
        [terms, round, attempt, number],
    )
    if row is None:
        return None
    return np.frombuffer(row[0], "<i4"), np.frombuffer(row[1], "<f4")


def things(
    store: CohortStore, number: int, terms: int, round: int, attempt: int
) -> list[tuple[str, str, float]]:
    """The same by id and title, largest first; the weight is a share of the largest."""
    found = contents(store.file, number, terms, round, attempt)
    if found is None:
        return []
    items, weights = found
    catalogue, largest = store.catalogue(), float(weights.max(initial=0.0)) or 1.0
    order = np.argsort(-weights, kind="stable").tolist()
    named = [(catalogue[int(items[at])], float(weights[at]) / largest) for at in order]
    return [(item, title or item, weight) for (item, title), weight in named]


def _lines(file: StoreFile) -> str:
    known = file.version >= WITH_CONTENTS
    items = "ifnull(length(c.items) / 4, l.positive_rows)" if known else "l.positive_rows"
    kept = "LEFT JOIN contents c USING (era, round, attempt, number) " if known else ""
    size, sha = ("iif(r.body_bytes, r.body_bytes, r.wire_bytes)", "r.body_sha256")
    if not known:
        size, sha = "r.wire_bytes", "''"
    return (
        "SELECT l.era || '.' || l.round || '.' || l.attempt AS name, r.left_at, l.kind, '', l.era,"
        f" l.round, l.attempt, {size}, l.epsilon, l.reports, {items}, r.state, r.reason, {sha},"
        " r.rowid"
        f" FROM ledger l JOIN rounds r USING (era, round, attempt) {kept}"
        f"WHERE l.number = ? AND r.state IN {_GONE} "
        "UNION ALL SELECT 'c' || id, at, what, party, -1, -1, 0, bytes, epsilon, 0, interactions,"
        " '', '', '', id FROM contacts WHERE number = ?"
    )
