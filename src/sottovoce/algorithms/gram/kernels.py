"""The exact sum of what users contribute to the second round: Σ k k' over their whole steps k.

A contribution is written as its diagonal (`size` numbers) followed by the upper triangle, a < b,
row by row (`core.contributions` is the definition, one user at a time).

How the sum is made fast, and why that changes no result. A user with n places costs n² / 2
additions to scattered numbers. Four of her rows are taken at a time, so that four additions share
what is read for one. The triangle is kept in unsigned 32 bits, which halves what the caches must
hold. No product of one user is above the square of her largest step, so no number of the triangle
is above the sum of these squares; before that sum could pass 2**32 - 1, the triangle is moved to
64 bits. 64 bits hold 2**20 from each of 2**42 users. Whole numbers add up alike in any order, so
threads do not matter.
"""

# Kernels carry no types (numba infers them); their callers do.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated, unreachable"

from __future__ import annotations

import itertools

import numpy as np
from numpy import float32, float64, int64, uint32, uint64
from numpy.typing import NDArray

from sottovoce.compiled import njit
from sottovoce.core.arrays import each, read_only
from sottovoce.errors import DataError

LARGEST_STEP = 1024
"""The most steps that a number of a profile can have: its norm is at most 1, in steps of 2**-10."""
_ROOM = (1 << 32) - 1


def sum_pairs(
    indptr: NDArray[np.int64],
    place: NDArray[np.int32],
    steps: NDArray[np.int32],
    size: int,
    threads: int = 1,
) -> NDArray[np.int64]:
    """The sum of k k' over all users, exactly, the same for any number of threads. User u has
    steps[e] at place[e], ascending, for indptr[u] <= e < indptr[u + 1]. A thread takes 6 size²
    bytes of memory."""
    check_rows(indptr, len(place), len(steps))
    world = (read_only(indptr, np.int64), read_only(place, np.int32), read_only(steps, np.int32))

    def work(users: slice) -> tuple[bool, NDArray[np.int64]]:
        sums = np.zeros(size * (size + 1) // 2, dtype=np.int64)
        return bool(_sum_pairs(*world, users.start, users.stop, size, sums)), sums

    done = each(work, _spans(indptr, max(1, threads)), threads)
    if not all(good for good, _ in done):
        raise bad_profiles(size)
    total = done[0][1]
    for _, sums in done[1:]:
        total += sums
    return total


def check_rows(indptr: NDArray[np.int64], *lengths: int) -> None:
    """Raises where row pointers do not rise from 0 to these lengths."""
    rising = len(indptr) > 0 and indptr[0] == 0 and not bool(np.any(indptr[1:] < indptr[:-1]))
    if not rising or any(int(indptr[-1]) != length for length in lengths):
        raise DataError("row pointers must rise from 0 to the number of places and of steps")


def bad_profiles(size: int) -> DataError:
    return DataError(
        f"a user's places must ascend within 0 … {size - 1} and have 0 to {LARGEST_STEP} steps each"
    )


def _spans(indptr: NDArray[np.int64], parts: int) -> list[slice]:
    """All users in so many parts of about equally many places."""
    inner = np.searchsorted(indptr, np.linspace(0, indptr[-1], parts + 1)[1:-1]).tolist()
    return [slice(a, b) for a, b in itertools.pairwise([0, *inner, len(indptr) - 1])]


@njit(nogil=True, error_model="numpy", cache=True)
def _sum_pairs(indptr, place, steps, first, stop, size, sums):
    """sums += the pairs of users first to stop. False where a profile is not as it must be."""
    n_pairs = size * (size - 1) // 2
    low = np.zeros(n_pairs, dtype=np.uint32)
    high = sums[size:]
    room = int64(_ROOM)
    k = np.empty(size, dtype=np.uint32)
    at = np.empty(size, dtype=np.int64)
    row = np.empty(size, dtype=np.int64)
    for u in range(first, stop):
        begin = indptr[u]
        n = indptr[u + 1] - begin
        if n > size:
            return False
        last, top = int64(-1), int64(0)
        for e in range(n):
            p, s = int64(place[begin + e]), int64(steps[begin + e])
            if p <= last or p >= size or s < 0 or s > LARGEST_STEP:
                return False
            last, top = p, max(top, s)
            # The pair (p, q) of the triangle is number row + q.
            at[e], row[e], k[e] = p, p * size - p * (p + 3) // 2 - 1, uint32(s)
            sums[p] += s * s
        room -= top * top
        if room < 0:
            _move(low, high)
            room = int64(_ROOM) - top * top
        _add_user(at, row, k, n, low)
    _move(low, high)
    return True


@njit(inline="always")
def _add_user(at, row, k, n, low):
    """low += the products of one user. Numbers of the triangle never are negative: unsigned indices
    spare the question."""
    a = 0
    while a + 4 <= n:
        r0, r1, r2, r3 = row[a], row[a + 1], row[a + 2], row[a + 3]
        k0, k1, k2, k3 = k[a], k[a + 1], k[a + 2], k[a + 3]
        q1, q2, q3 = at[a + 1], at[a + 2], at[a + 3]
        low[uint64(r0 + q1)] += k0 * k1
        low[uint64(r0 + q2)] += k0 * k2
        low[uint64(r0 + q3)] += k0 * k3
        low[uint64(r1 + q2)] += k1 * k2
        low[uint64(r1 + q3)] += k1 * k3
        low[uint64(r2 + q3)] += k2 * k3
        for b in range(a + 4, n):
            q, other = at[b], k[b]
            low[uint64(r0 + q)] += k0 * other
            low[uint64(r1 + q)] += k1 * other
            low[uint64(r2 + q)] += k2 * other
            low[uint64(r3 + q)] += k3 * other
        a += 4
    while a < n:
        for b in range(a + 1, n):
            low[uint64(row[a] + at[b])] += k[a] * k[b]
        a += 1


@njit
def _move(low, high):
    for c in range(low.shape[0]):
        high[c] += int64(low[c])
        low[c] = 0


@njit(nogil=True, cache=True)
def add_factors(indptr, items, weights, factors, out):
    """out[u] = the factors of her items, each by its weight, added up in double precision, one
    item after the other as they ascend, and rounded at the end. Nothing is fused, so that a device
    in any language has the same bits."""
    size = factors.shape[1]
    sums = np.empty(size)
    for u in range(len(indptr) - 1):
        sums[:] = 0.0
        for e in range(indptr[u], indptr[u + 1]):
            weight, item = weights[e], items[e]
            for f in range(size):
                sums[f] += weight * float64(factors[item, f])
        for f in range(size):
            out[u, f] = float32(sums[f])


@add_factors.alone
def _add_factors_alone(indptr, items, weights, factors, out):
    for u in range(len(indptr) - 1):
        sums = np.zeros(factors.shape[1])
        for e in range(indptr[u], indptr[u + 1]):
            sums += weights[e] * factors[items[e]].astype(np.float64)
        out[u] = sums
