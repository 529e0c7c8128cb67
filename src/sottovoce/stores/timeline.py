"""All that has left a store, or may have, on one line of time: reports and other requests, newest
first, a part of them at a time; and what of its user was in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import DataError
from sottovoce.stores.encrypted import StoreFile

if TYPE_CHECKING:
    from sottovoce.stores.device import CohortStore

_GONE = "('left', 'arrived', 'refused')"


@dataclass(frozen=True, slots=True, repr=False)
class Line:
    """Something that left, or may have."""

    name: str
    """Name by which it is asked for: the round and attempt of a report under its terms, or a
    number."""
    when: int
    what: str
    """The kind of a release, or of a request."""
    party: str
    """Party that got a request; empty for reports, which go where the terms say."""
    terms: int
    """Under which ones a report left; -1 for other requests."""
    round: int
    attempt: int
    bytes: int
    epsilon: float
    reports: int
    """Randomised ones in it."""
    items: int
    """Number of the user's items that are in it."""
    state: str
    """State of a report: left, arrived or refused."""
    reason: str
    sha256: str
    """Checksum of the bytes that left, if they are known."""

    @property
    def is_report(self) -> bool:
        return self.terms >= 0


def count(file: StoreFile, number: int) -> int:
    """How many lines there are."""
    return len(_order(file, number))


def lines(file: StoreFile, number: int, offset: int, limit: int) -> list[Line]:
    """Some of one user's, newest first."""
    with file.snapshot():
        wanted = _order(file, number)[offset : offset + limit]
        found: dict[tuple[bool, int], Line] = {}
        for is_report in (True, False):
            places = wanted[wanted[:, 0] == is_report, 1].tolist()
            if places:
                sql = _reports(file) if is_report else _CONTACTS
                place = "r.rowid" if is_report else "id"
                rows = file.rows(f"{sql} AND {place} IN ({', '.join(map(str, places))})", [number])
                found |= {(is_report, row[14]): Line(*row[:14]) for row in rows}
    return [found[bool(is_report), place] for is_report, place in wanted.tolist()]


def _order(file: StoreFile, number: int) -> NDArray[np.int64]:
    """Where the lines are, newest first: whether it is a report, and its place in its table. It is
    kept, so that a long ledger is sorted once and not for each part of it."""
    tables = ("ledger", "rounds", "contacts")
    return file.held(f"order of lines of {number}", tables, lambda: _read_order(file, number))


def _read_order(file: StoreFile, number: int) -> NDArray[np.int64]:
    reports = file.rows(
        "SELECT 1, r.rowid, r.attempt, r.round, ifnull(r.left_at, 0) FROM rounds r "
        "JOIN ledger l USING (era, round, attempt) "
        f"WHERE l.number = ? AND r.state IN {_GONE}",
        [number],
    )
    others = file.rows("SELECT 0, id, 0, -1, at FROM contacts WHERE number = ?", [number])
    all_of_them = np.array([*reports, *others], np.int64).reshape(-1, 5)
    newest_last = np.lexsort(all_of_them[:, 1:].T)
    return all_of_them[newest_last[::-1], :2]


def line(file: StoreFile, number: int, name: str) -> Line:
    """One of them, by its name."""
    sql = f"SELECT * FROM ({_reports(file)} UNION ALL {_CONTACTS}) WHERE name = ?"
    row = file.row(sql, [number, number, name])
    if row is None:
        raise DataError("nothing of this name is in the ledger")
    return Line(*row[:14])


def contents(
    file: StoreFile, number: int, terms: int, round: int, attempt: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]] | None:
    """Numbers of the user's own items that are in a report, and how much of each; None if the store
    has several users, of whom that is not kept."""
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


_CONTACTS = (
    "SELECT 'c' || id AS name, at, what, party, -1, -1, 0, bytes, epsilon, 0, interactions,"
    " '', '', '', id FROM contacts WHERE number = ?"
)


def _reports(file: StoreFile) -> str:
    # CROSS: rounds first, of which some are named; SQLite would read the whole ledger.
    items = "ifnull(length(c.items) / 4, l.positive_rows)"
    kept = "LEFT JOIN contents c USING (era, round, attempt, number) "
    size, sha = "iif(r.body_bytes, r.body_bytes, r.wire_bytes)", "r.body_sha256"
    return (
        "SELECT l.era || '.' || l.round || '.' || l.attempt AS name, r.left_at, l.kind, '', l.era,"
        f" l.round, l.attempt, {size}, l.epsilon, l.reports, {items}, r.state, r.reason, {sha},"
        " r.rowid"
        f" FROM rounds r CROSS JOIN ledger l USING (era, round, attempt) {kept}"
        f"WHERE l.number = ? AND r.state IN {_GONE}"
    )
