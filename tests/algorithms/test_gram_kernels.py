"""Sums of pairs over users are exact, and the definition's."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.gram.kernels import LARGEST_STEP, sum_pairs
from sottovoce.core.contributions import Contributions
from sottovoce.errors import DataError


def pairs_of(place, steps, size):
    """One user's, as the door writes them out."""
    indptr, place = np.array([0, len(place)]), np.asarray(place, np.int32)
    steps, items = np.asarray(steps, np.int32), np.zeros(1, np.int32)
    return Contributions(indptr, place, steps, size, True, items).whole(0)


@st.composite
def crowds(draw):
    """A size and users of all lengths, none and every place among them."""
    size = draw(st.integers(1, 13))
    users = draw(
        st.lists(
            st.dictionaries(st.integers(0, size - 1), st.integers(0, LARGEST_STEP)), max_size=12
        )
    )
    return size, users


def packed(users):
    """Row pointers, places and steps of users given as {place: steps}."""
    indptr = np.cumsum([0, *map(len, users)], dtype=np.int64)
    pairs = [pair for user in users for pair in sorted(user.items())]
    place, steps = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    return indptr, place, steps


def one_by_one(indptr, place, steps, size):
    total = np.zeros(size * (size + 1) // 2, dtype=np.int64)
    for a, b in itertools.pairwise(indptr):
        total += pairs_of(place[a:b], steps[a:b], size)
    return total


def random_crowd(seed, users, size, most=LARGEST_STEP):
    rng = np.random.default_rng(seed)
    taken = rng.random((users, size)) < 0.4
    steps = rng.integers(0, most + 1, (users, size))
    indptr = np.concatenate([[0], taken.sum(1).cumsum()])
    return indptr, np.nonzero(taken)[1].astype(np.int32), steps[taken].astype(np.int32)


def test_a_contribution_is_the_diagonal_then_the_upper_triangle_by_rows():
    found = pairs_of(np.array([0, 2, 3]), np.array([5, 7, 1024]), 4)
    assert found.tolist() == [25, 0, 49, 1024**2, 0, 35, 5120, 0, 0, 7168]
    assert found.dtype == np.int64


@settings(deadline=None)
@given(crowds(), st.integers(1, 5))
def test_the_sum_is_that_of_the_contributions_for_any_number_of_threads(crowd, threads):
    size, users = crowd
    world = packed(users)
    found = sum_pairs(*world, size, threads)
    assert found.dtype == np.int64
    assert np.array_equal(found, one_by_one(*world, size))


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_the_sum_is_the_product_of_dense_matrices(size):
    indptr, place, steps = random_crowd(1, 300, size)
    dense = np.zeros((300, size), dtype=np.int64)
    dense[np.repeat(np.arange(300), np.diff(indptr)), place] = steps
    square = dense.T @ dense
    expected = np.concatenate([np.diagonal(square), square[np.triu_indices(size, 1)]])
    assert np.array_equal(sum_pairs(indptr, place, steps, size, 2), expected)


@pytest.mark.parametrize("users", [4095, 4096, 4097, 9000])
def test_no_sum_overflows_where_all_steps_are_the_largest(users):
    """4,095 products of 2**20 are the most that unsigned 32 bits hold."""
    size = 7
    indptr = np.arange(users + 1, dtype=np.int64) * size
    place = np.tile(np.arange(size, dtype=np.int32), users)
    steps = np.full(users * size, LARGEST_STEP, dtype=np.int32)
    assert set(sum_pairs(indptr, place, steps, size, 1).tolist()) == {users * LARGEST_STEP**2}


def test_small_steps_and_large_ones_share_the_room():
    """Users whose largest products differ, 2**32 passed several times."""
    most = np.tile([1, 60, 1000, LARGEST_STEP], 5_000)
    indptr = np.arange(20_001, dtype=np.int64) * 2
    place = np.tile(np.array([1, 3], dtype=np.int32), 20_000)
    steps = np.stack([most, most - 1], axis=1).ravel()
    found = sum_pairs(indptr, place, steps, 4, 1)
    assert found[4:].tolist() == [0, 0, 0, 0, int((most * (most - 1)).sum()), 0]
    assert found[:4].tolist() == [0, int((most**2).sum()), 0, int(((most - 1) ** 2).sum())]


def test_nobody_and_users_without_items_add_nothing():
    none = np.zeros(0, dtype=np.int32)
    assert not sum_pairs(np.zeros(1, dtype=np.int64), none, none, 3, 2).any()
    assert not sum_pairs(np.zeros(5, dtype=np.int64), none, none, 3, 2).any()
    assert len(sum_pairs(np.zeros(5, dtype=np.int64), none, none, 3, 2)) == 6


@pytest.mark.parametrize(
    ("place", "steps"),
    [
        ([0, 3], [1, 1]),
        ([-1, 2], [1, 1]),
        ([1, 1], [1, 1]),
        ([2, 1], [1, 1]),
        ([0, 1], [1, LARGEST_STEP + 1]),
        ([0, 1], [-1, 1]),
        ([0, 1, 2, 3], [1, 1, 1, 1]),
    ],
)
def test_profiles_that_are_none_are_refused(place, steps):
    indptr = np.array([0, len(place)])
    with pytest.raises(DataError, match=r"ascend within 0 … 2 and have 0 to 1024 steps"):
        sum_pairs(indptr, np.array(place), np.array(steps), 3, 1)


@pytest.mark.parametrize("indptr", [[], [1, 2], [0, 3], [0, 1], [0, 2, 1, 2], [-1, 2]])
def test_row_pointers_must_fit(indptr):
    two = np.array([0, 1], dtype=np.int32)
    with pytest.raises(DataError, match="row pointers must rise"):
        sum_pairs(np.array(indptr, dtype=np.int64), two, two, 3, 1)
