"""A store's budget: what its users have released in all. Nothing here ever falls."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sottovoce.parties.store_file import StoreFile


@dataclass(frozen=True, slots=True)
class Spent:
    """What one user has released in all, by one kind of release."""

    number: int
    kind: str
    releases: int
    positive_rows: int
    negative_rows: int
    bytes: int
    epsilon: float
    reports: int = 0


@dataclass(frozen=True, slots=True)
class SentReports:
    """Randomised reports of one user and one ε that have left, whatever became of them."""

    number: int
    epsilon: float
    """Of each."""
    batch: int
    """The fewest devices whose reports a proxy hands on together; 0 where there was none."""
    reports: int


def by_kind(file: StoreFile, number: int | None) -> list[Spent]:
    where, values = _of(number)
    rows = file.rows(f"SELECT * FROM budget {where} ORDER BY number, kind", values)
    return [Spent(*row) for row in rows]


def sent_reports(file: StoreFile, number: int | None) -> list[SentReports]:
    where, values = _of(number)
    sql = f"SELECT number, epsilon, batch, reports FROM spent {where} ORDER BY 1, 2, 3"
    return [SentReports(*row) for row in file.rows(sql, values)]


def spent(file: StoreFile) -> dict[int, float]:
    """ε by plain composition, of those who have spent any."""
    costs: dict[int, list[float]] = {}
    for sent in sent_reports(file, None):
        costs.setdefault(sent.number, []).append(sent.reports * sent.epsilon)
    return {number: math.fsum(each) for number, each in costs.items()}


def _of(number: int | None) -> tuple[str, list[int]]:
    return ("", []) if number is None else ("WHERE number = ?", [int(number)])
