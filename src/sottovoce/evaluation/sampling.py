"""Negatives for sampled evaluation: uniform, distinct, a pure function of (key, user's rows)."""

from __future__ import annotations

import numpy as np
from numba import njit, uint64
from numpy.typing import NDArray

from sottovoce.data.interactions import Interactions
from sottovoce.errors import DataError
from sottovoce.rng import GAMMA, Keys, below, mix


def draw_negatives(
    train: Interactions,
    test: Interactions,
    users: NDArray[np.int64],
    negatives: int,
    keys: Keys,
) -> NDArray[np.int32]:
    """[len(users), negatives] distinct training items in neither row of the user, in drawn order.

    Uniform over the sets of that size. Raises where a user has fewer such items.
    """
    if negatives > train.n_items:
        raise DataError(
            f"{negatives:,} negatives cannot be drawn from {train.n_items:,} items; ask for fewer"
        )
    out = np.empty((len(users), negatives), dtype=np.int32)
    short = _draw(
        keys,
        np.asarray(users, dtype=np.int64),
        train.indptr,
        train.items,
        test.indptr,
        test.items,
        train.n_items,
        out,
    )
    if short >= 0:
        raise DataError(
            f"user {short} has fewer than {negatives} items left to draw from; "
            "ask for fewer negatives"
        )
    return out


@njit(cache=True)
def _draw(keys, users, train_ptr, train_items, test_ptr, test_items, n_items, out):  # type: ignore[no-untyped-def]
    # taken[i] == r + 1: item i is not, or no longer, on offer for row r.
    taken = np.zeros(n_items, np.int64)
    negatives = out.shape[1]
    for r in range(len(users)):
        u = users[r]
        left = n_items
        for e in range(train_ptr[u], train_ptr[u + 1]):
            taken[train_items[e]] = r + 1
            left -= 1
        for e in range(test_ptr[u], test_ptr[u + 1]):
            if test_items[e] < n_items and taken[test_items[e]] != r + 1:
                taken[test_items[e]] = r + 1
                left -= 1
        if left < negatives:
            return u
        drawn = 0
        counter = keys[r]
        while drawn < negatives:
            counter += GAMMA
            item = below(mix(counter) >> uint64(32), n_items)
            if taken[item] != r + 1:
                taken[item] = r + 1
                out[r, drawn] = item
                drawn += 1
    return -1
