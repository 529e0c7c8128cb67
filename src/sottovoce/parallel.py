"""What compiled loops share: arrays as they take them, and parts of work in threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

P = TypeVar("P")
T = TypeVar("T")


def read_only(values: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """A read-only, contiguous view, so that a kernel is compiled for one kind of array only."""
    view = np.ascontiguousarray(values, dtype=dtype).view()
    view.flags.writeable = False
    return view


def equal_spans(n: int, parts: int) -> list[slice]:
    """0 … n-1 in so many parts of equal length, as nearly as can be."""
    edges = np.linspace(0, n, parts + 1).astype(int)
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]


def each(work: Callable[[P], T], parts: Sequence[P], threads: int) -> list[T]:
    """work(part) of every part, in at most so many threads at a time."""
    workers = max(1, min(threads, len(parts)))
    if workers == 1:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, parts))
