"""Small tools for arrays, against what they stand for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sottovoce.core.arrays import distinct

SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6)
KINDS = st.sampled_from([np.dtype(kind) for kind in ("<i4", "<i8", "u1", "?", "<U3", "<f4")])


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_distinct_is_what_numpy_finds(data):
    kind = data.draw(KINDS)
    numbers = {"allow_nan": False} if kind.kind == "f" else {}
    elements = arrays.from_dtype(kind, **numbers) if kind.kind != "i" else st.integers(-4, 4)
    values = data.draw(arrays.arrays(kind, SHAPES, elements=elements))
    before = values.copy()
    found, expected = distinct(values), np.unique(values)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize("values", [[], [7], [2, 1, 2], ["b", "a", "b", ""]])
def test_distinct_of_little(values):
    assert distinct(np.array(values)).tolist() == sorted(set(values))
