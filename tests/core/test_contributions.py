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
    Grid,
    Profile,
    cut,
    cut_to,
    numbers_of,
    pair_places,
    places_of,
)
from sottovoce.errors import MessageError
from sottovoce.rng import SecretStreams, Streams

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
        with pytest.raises(MessageError, match=words):
            cut_to(
                broken(kind | {"pairs": pairs}), np.ones(2), "stranger", grid_of(pairs), keys_of(2)
            )
    with pytest.raises(MessageError, match="stranger gave list"):
        cut([1.0], np.ones(1), "stranger")
    with pytest.raises(MessageError, match="stranger gave list"):
        cut_to([1.0], np.ones(1), "stranger", PAIRS, keys_of(1))
    with pytest.raises(MessageError, match="2 keys are not one for each of 1"):
        cut_to(profile([1.0]), np.ones(1), "stranger", PAIRS, keys_of(2))


# --- few whole numbers ----------------------------------------------------------------------------

LINEAR, PAIRS = Grid(STEPS // 64, 15, 64), Grid(1, 57, PAIR_STEPS)
QUIET = Grid(1, 57, PAIR_STEPS, 78_643)
seeds = st.integers(0, 2**63 - 1)


def grid_of(pairs):
    return PAIRS if pairs else LINEAR


def keys_of(n, seed=0):
    return Streams.from_seed(seed).keys(np.arange(n))


@settings(max_examples=300, deadline=None)  # it compiles
@given(weights, scales, st.booleans(), seeds)
def test_on_a_grid_nothing_is_longer_than_its_scale_permits_or_above_the_largest(
    row, scale, pairs, seed
):
    grid = grid_of(pairs)
    made = cut_to(profile(row, pairs=pairs), np.array([scale]), "x", grid, keys_of(1, seed))
    assert not np.any(made.steps % grid.step)
    k = [int(number) // grid.step for number in made.steps]
    bound = Fraction(scale) * grid.unit**2 * (1 if pairs else Fraction(scale))
    assert sum(n * n for n in k) <= bound
    assert 0 <= min(k) <= max(k) <= grid.most
    assert not np.any(made.steps[np.array(row) == 0.0])
    whole = [int(number) for number in made.whole(0)]
    twice = 2 * sum(n * n for n in whole[12:]) if pairs else 0
    assert sum(n * n for n in whole[:12]) + twice <= (Fraction(scale) * STEPS) ** 2


@settings(deadline=None)
@given(st.lists(st.tuples(weights, scales), min_size=1, max_size=5), st.booleans(), seeds)
def test_on_a_grid_a_device_among_others_tells_what_it_tells_alone(devices, pairs, seed):
    rows, scale = zip(*devices, strict=True)
    for rng in (Streams.from_seed(seed), SecretStreams.from_seed(seed)):
        keys = rng.keys(np.arange(len(rows)))
        made = cut_to(profile(*rows, pairs=pairs), np.array(scale), "x", grid_of(pairs), keys)
        for n, row in enumerate(rows):
            mine = slice(made.indptr[n], made.indptr[n + 1])
            alone = cut_to(
                profile(row, pairs=pairs), np.array(scale[n : n + 1]), "x", grid_of(pairs),
                keys[n : n + 1],
            )  # fmt: skip
            assert np.array_equal(made.steps[mine], alone.steps)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0])
def test_on_a_grid_items_are_told_on_average_as_they_weigh(pairs, scale):
    """Also those of a user so quiet that none of them is worth a step."""
    n, many = 4000, 120
    row = np.sqrt(np.arange(1, many + 1))
    told = profile(*[row] * n, size=many, pairs=pairs)
    grid = grid_of(pairs)
    made = cut_to(told, np.full(n, scale), "x", grid, keys_of(n))
    k = made.steps.reshape(n, many) // grid.step
    mean = k.mean(axis=0)
    factor = mean.sum() / row.sum()
    assert mean == pytest.approx(factor * row, abs=6 * np.sqrt(0.25 / n), rel=0.03)
    bound = grid.unit**2 * (scale if pairs else scale**2)
    squares = (k.astype(float) ** 2).sum(axis=1)
    assert squares.min() > bound - 2 * k.max() - 2  # nearly all of the norm is used


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=300), scales, seeds)
def test_on_a_grid_that_limits_loudness_nobody_is_louder(row, scale, seed):
    if sum(row) < 1e-3:
        return
    told = profile(row, size=300)
    made = cut_to(told, np.array([scale]), "x", QUIET, keys_of(1, seed)).steps.astype(np.int64)
    free = cut_to(told, np.array([scale]), "x", PAIRS, keys_of(1, seed)).steps.astype(np.int64)
    assert made.max() * made.sum() <= QUIET.loudness
    assert sum(int(k) ** 2 for k in made) <= Fraction(scale) * PAIR_STEPS**2
    if free.max() * free.sum() <= QUIET.loudness:
        assert np.array_equal(made, free)
    else:  # what is held back goes to the others
        assert made.sum() >= free.sum() * 0.9
        assert made.max() < free.max()


def test_on_a_grid_what_the_largest_are_kept_from_the_others_get():
    row = [8.0] + [1.0] * 24
    made = cut_to(profile(row, size=25), np.ones(1), "x", PAIRS, keys_of(1))
    assert made.steps[0] == PAIRS.most
    assert np.all(made.steps[1:] >= 50)
    few = cut_to(profile([1.0, 1.0], size=25), np.ones(1), "x", PAIRS, keys_of(1))
    assert few.steps.tolist() == [57, 57]
    silent = cut_to(profile([1.0, 1.0], size=25), np.zeros(1), "x", PAIRS, keys_of(1))
    assert silent.steps.tolist() == [0, 0]


def test_it_does_not_print_what_it_holds():
    made = cut(profile([3.0, 4.0]), np.ones(1), "x")
    assert repr(made) == "<Contributions of 1, redacted>"
    assert isinstance(made, Contributions)
