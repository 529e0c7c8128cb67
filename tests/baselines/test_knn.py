"""Neighbours and kNN scores against hand-made worlds and exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.sparse import csr_array

from sottovoce.baselines import ItemKNN, UserKNN
from sottovoce.baselines import knn as neighbors
from sottovoce.baselines.knn import nearest_rows
from sottovoce.core.interactions import Interactions, recency
from sottovoce.errors import ConfigError
from sottovoce.rng import Streams

RNG = Streams.from_seed(1)
TABLES = st.tuples(st.integers(1, 12), st.integers(1, 12)).flatmap(
    lambda shape: arrays(np.bool_, shape)
)


def interactions(table: NDArray[np.bool_]) -> Interactions:
    users, items = np.nonzero(table)
    return Interactions.from_pairs(users, items, n_users=len(table), n_items=table.shape[1])


def reference(table: NDArray[np.bool_], k: int) -> NDArray[np.float64]:
    """Cosines with the k nearest rows, zeros elsewhere, ordered by exact fractions."""
    n = len(table)
    near = np.zeros((n, n))
    for r in range(n):
        ranked = []
        for s in range(n):
            common = int((table[r] & table[s]).sum())
            if s != r and common:
                cosine2 = Fraction(common**2, int(table[r].sum()) * int(table[s].sum()))
                ranked.append((-cosine2, s))
        for minus, s in sorted(ranked)[:k]:
            near[r, s] = sqrt(-minus)
    return near


@settings(max_examples=150, deadline=None)
@given(table=TABLES, k=st.integers(1, 14))
def test_scores_equal_the_dense_definition(table: NDArray[np.bool_], k: int) -> None:
    train = interactions(table)
    users = np.arange(train.n_users)
    by_user = reference(table, k) @ table
    by_item = table @ reference(table.T, k).T
    np.testing.assert_allclose(UserKNN(k).fit(train, RNG).scores(users), by_user, rtol=1e-6)
    np.testing.assert_allclose(ItemKNN(k).fit(train, RNG).scores(users), by_item, rtol=1e-6)


@settings(max_examples=50, deadline=None)
@given(table=TABLES, k=st.integers(1, 5))
def test_neighbours_are_the_exact_ones(table: NDArray[np.bool_], k: int) -> None:
    near = nearest_rows(csr_array(table.astype(np.float64)), k)
    np.testing.assert_array_equal(near.toarray() > 0, reference(table, k) > 0)


def test_later_items_weigh_more_at_home(sparse: Interactions) -> None:
    plain, late = (ItemKNN(5, memory=m).fit(sparse, RNG) for m in (0.0, 4.0))
    table = np.zeros((sparse.n_users, sparse.n_items))
    table[sparse.users, sparse.items] = recency(sparse, 4.0)
    users = np.arange(sparse.n_users)
    np.testing.assert_allclose(late.scores(users), table @ plain.right.toarray(), rtol=1e-6)
    assert not np.allclose(late.scores(users), plain.scores(users))
    timeless = interactions(table > 0)
    np.testing.assert_array_equal(
        ItemKNN(5, memory=4.0).fit(timeless, RNG).scores(users), plain.scores(users)
    )
    with pytest.raises(ConfigError, match="memory"):
        ItemKNN(5, memory=-1.0)


@pytest.mark.parametrize("wide", [1, 2])
def test_equally_near_rows_tie_exactly(wide: int) -> None:
    # Row 0 has three columns. One rival shares 1 of its 2, the other 3 of its 18: both have
    # cosine² 1/6, though the rounded cosines differ.
    assert 1 / sqrt(3 * 2) != 3 / sqrt(3 * 18)
    table = np.zeros((3, 20), dtype=bool)
    table[0, :3] = True
    table[wide, :18] = True
    table[3 - wide, [0, 19]] = True
    near = nearest_rows(csr_array(table.astype(np.float64)), 1)
    assert near.indices[near.indptr[0]] == 1


def test_result_does_not_depend_on_blocks(
    sparse: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = csr_array(
        (np.ones(sparse.n_interactions), sparse.items, sparse.indptr),
        shape=(sparse.n_users, sparse.n_items),
    )
    whole = nearest_rows(matrix, 4).toarray()
    monkeypatch.setattr(neighbors, "BLOCK", 7)
    seen: list[tuple[int, int]] = []
    parts = nearest_rows(matrix, 4, lambda done, total: seen.append((done, total))).toarray()
    np.testing.assert_array_equal(whole, parts)
    assert seen == [(7, 40), (14, 40), (21, 40), (28, 40), (35, 40), (40, 40)]
