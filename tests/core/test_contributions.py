"""What a device adds to a sum: cut, bounded in whole numbers, written out."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.contributions import (
    PAIR_STEPS,
    STEPS,
    Contributions,
    Profile,
    cut,
    numbers_of,
    pair_places,
    places_of,
)
from sottovoce.errors import MessageError

weights = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12).filter(lambda w: sum(w) > 1e-3)
scales = st.floats(1e-3, 1.0)


def profile(*rows, size=12, pairs=True):
    """Unit vectors in the first places."""
    unit = [np.array(row) / np.sqrt(np.sum(np.square(row))) for row in rows]
    indptr = np.cumsum([0, *map(len, rows)])
    place = np.concatenate([np.arange(len(row)) for row in rows]).astype(np.int32)
    items = np.array([len(row) for row in rows], np.int32)
    return Profile(indptr, place, np.concatenate(unit), size, pairs, items)


@settings(max_examples=300)
@given(weights, scales, st.booleans())
def test_what_leaves_is_never_longer_than_its_scale_permits(row, scale, pairs):
    """In whole numbers, exactly, by the norm that the noise is measured by."""
    made = cut(profile(row, pairs=pairs), np.array([scale]), "x")
    whole = [int(number) for number in made.whole(0)]
    if pairs:  # a pair stands twice in the symmetric matrix
        squares = sum(n * n for n in whole[:12]) + 2 * sum(n * n for n in whole[12:])
    else:
        squares = sum(n * n for n in whole)
    assert squares <= (Fraction(scale) * STEPS) ** 2
    assert min(whole) >= 0


@given(weights, scales)
def test_nothing_is_rounded_up_and_little_is_lost(row, scale):
    unit = np.array(row) / np.sqrt(np.sum(np.square(row)))
    for pairs, steps in ((False, STEPS), (True, PAIR_STEPS)):
        wanted = unit * (np.sqrt(scale) if pairs else scale) * steps
        made = cut(profile(row, pairs=pairs), np.array([scale]), "x").steps
        assert np.all(made <= wanted * (1 + 1e-12))
        assert np.all(made > wanted * (1 - 1e-9) - 1)


@given(st.lists(weights, min_size=1, max_size=4))
def test_pairs_are_the_products_of_one_vector(rows):
    made = cut(profile(*rows), np.ones(len(rows)), "x")
    for row in range(len(rows)):
        k = np.zeros(12, np.int64)
        k[: len(rows[row])] = made.steps[made.indptr[row] : made.indptr[row + 1]]
        square = np.outer(k, k)
        whole = made.whole(row)
        assert np.array_equal(whole[:12], np.diag(square))
        assert np.array_equal(whole[12:], square[np.triu_indices(12, 1)])


def test_sizes_and_places():
    assert (numbers_of(5, True), numbers_of(5, False)) == (15, 5)
    assert [places_of(numbers_of(n, True)) for n in range(60)] == list(range(60))
    with pytest.raises(MessageError, match="7 numbers are not those of all pairs"):
        places_of(7)
    a, b = np.triu_indices(9, 1)
    assert pair_places(a, b, 9).tolist() == list(range(9, 45))


def broken(kind):
    good = profile([3.0, 4.0], [1.0])
    fields = {name: getattr(good, name) for name in Profile.__slots__}
    fields |= kind
    return Profile(**fields)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ({"value": np.array([0.6, 0.81, 1.0])}, "longer than 1"),
        ({"value": np.array([0.6, 1e300, 1.0])}, "longer than 1"),
        ({"value": np.array([0.6, -0.8, 1.0])}, "below 0"),
        ({"value": np.array([0.6, np.nan, 1.0])}, "below 0"),
        ({"place": np.array([1, 0, 0], np.int32)}, "out of order"),
        ({"place": np.array([1, 1, 0], np.int32)}, "out of order"),
        ({"place": np.array([0, 12, 0], np.int32)}, "places that there are not"),
        ({"items": np.array([2], np.int32)}, "nothing was sent"),
    ],
)
def test_a_profile_that_is_none_is_refused(kind, words):
    for pairs in (True, False):
        with pytest.raises(MessageError, match=words):
            cut(broken(kind | {"pairs": pairs}), np.ones(2), "stranger")
    with pytest.raises(MessageError, match="stranger gave list"):
        cut([1.0], np.ones(1), "stranger")


def test_it_does_not_print_what_it_holds():
    made = cut(profile([3.0, 4.0]), np.ones(1), "x")
    assert repr(made) == "<Contributions of 1, redacted>"
    assert isinstance(made, Contributions)
