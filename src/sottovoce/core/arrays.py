"""What compiled loops share: arrays as they take them, and parts of work in threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy import int64, uint64
from numpy.typing import DTypeLike, NDArray

from sottovoce.compiled import njit

P = TypeVar("P")
T = TypeVar("T")


def read_only(values: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """A read-only, contiguous view, so that a kernel is compiled for one kind of array only."""
    view = np.ascontiguousarray(values, dtype=dtype).view()
    view.flags.writeable = False
    return view


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The values in order, each once. It is fast where equal ones are neighbours. `np.unique` does
    this, but loads masked arrays, which no device has."""
    ordered = np.sort(_runs(np.ravel(values)))
    return _runs(ordered)


def _runs(values: NDArray[Any]) -> NDArray[Any]:
    """The first of equal neighbours."""
    first = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def equal_spans(n: int, parts: int) -> list[slice]:
    """0 … n-1 in so many parts of equal length, as nearly as can be."""
    edges = [n * k // parts for k in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def each(work: Callable[[P], T], parts: Sequence[P], threads: int) -> list[T]:
    """work(part) of every part, in at most so many threads at a time."""
    workers = max(1, min(threads, len(parts)))
    if workers == 1:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, parts))


# Exact sums of rows by group. NumPy's `add.reduceat` does this, but ten times slower on rows.


def sum_groups(
    values: NDArray[np.integer], order: NDArray[np.int64], starts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Row g is the sum of values[order[starts[g] : starts[g + 1]]], in 64-bit whole numbers."""
    sums = np.zeros((len(starts), values.shape[1]), dtype=np.int64)
    _sum_groups(np.ascontiguousarray(values), order, starts, sums)
    return sums


@njit(nogil=True, cache=True)
def _sum_groups(values, order, starts, sums):  # type: ignore[no-untyped-def]
    for group in range(len(starts)):
        stop = starts[group + 1] if group + 1 < len(starts) else len(order)
        for k in range(starts[group], stop):
            for f in range(values.shape[1]):
                sums[group, f] += int64(values[order[k], f])


@_sum_groups.alone
def _(values, order, starts, sums):  # type: ignore[no-untyped-def]
    for group, mine in enumerate(np.split(order, starts[1:]) if len(starts) else []):
        sums[group] += values[mine].sum(axis=0, dtype=np.int64)


def sum_by_number(
    number: NDArray[np.int32], values: NDArray[np.integer]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The numbers, ascending, each once, and for each the sum of its rows, in 64-bit whole
    numbers. Numbers are 0 or more."""
    most = int(number.max(initial=-1)) + 1
    if most <= len(number):  # so many rows that a table of all numbers is no larger
        table, seen = np.zeros((most, values.shape[1]), dtype=np.int64), np.zeros(most, dtype=bool)
        _add_at(np.ascontiguousarray(number), np.ascontiguousarray(values), table, seen)
        found = np.flatnonzero(seen).astype(np.int32)
        return found, table if len(found) == most else table[found]
    order = np.argsort(number, kind="stable")
    number = number[order]
    starts = np.flatnonzero(np.diff(number, prepend=np.int32(-1)))
    return number[starts], sum_groups(values, order, starts)


@njit(nogil=True, cache=True)
def _add_at(number, values, table, seen):  # type: ignore[no-untyped-def]
    for k in range(len(number)):
        seen[uint64(number[k])] = True
        total, row = table[uint64(number[k])], values[k]
        for f in range(len(total)):
            total[f] += int64(row[f])


@_add_at.alone
def _(number, values, table, seen):  # type: ignore[no-untyped-def]
    seen[number] = True
    np.add.at(table, number, values.astype(np.int64))


@njit(nogil=True, cache=True)
def ascending(outer, inner):  # type: ignore[no-untyped-def]
    """Whether pairs come in strictly ascending order."""
    for k in range(1, len(outer)):
        if outer[k] < outer[k - 1] or (outer[k] == outer[k - 1] and inner[k] <= inner[k - 1]):
            return False
    return True


@ascending.alone
def _(outer, inner):  # type: ignore[no-untyped-def]
    later = (outer[1:] == outer[:-1]) & (inner[1:] > inner[:-1])
    return bool(np.all(later | (outer[1:] > outer[:-1])))


def count_bits(reports: NDArray[np.uint32], sums: NDArray[np.int64]) -> bool:
    """Adds to `sums`, by coordinate, 1 for each report with bit 1 and -1 for each with bit 0.
    False, with nothing added, where a report names a coordinate beyond `sums`."""
    if len(reports) and int(reports.max() >> np.uint32(1)) >= len(sums):
        return False
    _count_bits(reports, sums)
    return True


@njit(cache=True, nogil=True)
def _count_bits(reports, sums):  # type: ignore[no-untyped-def]
    for report in reports:
        sums[report >> 1] += np.int64(2) * np.int64(report & 1) - np.int64(1)


@njit(alone=True, nogil=True, cache=True)
def find_entries(indptr, items, rows, wanted, out):  # type: ignore[no-untyped-def]
    """out[k]: the place of `wanted[k]` within row `rows[k]`, whose items ascend; -1 where it is not
    there."""
    last, place = -1, -1
    for k in range(len(rows)):
        low, high = indptr[rows[k]], indptr[rows[k] + 1]
        stop = high
        if rows[k] == last and wanted[k] == wanted[k - 1] + 1:  # one item after the other
            low = place + (place < stop and items[place] < wanted[k])
            high = low
        while low < high:
            middle = (low + high) // 2
            if items[middle] < wanted[k]:
                low = middle + 1
            else:
                high = middle
        last, place = rows[k], low
        out[k] = low if low < stop and items[low] == wanted[k] else -1
