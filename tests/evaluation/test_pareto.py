from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import UsageError
from sottovoce.evaluation.plots import pareto_front


@st.composite
def clouds(draw):
    d = draw(st.integers(1, 4))
    row = st.lists(st.integers(-3, 3), min_size=d, max_size=d)
    points = draw(st.lists(row, min_size=1, max_size=30))
    return points, draw(st.lists(st.booleans(), min_size=d, max_size=d))


@given(clouds())
def test_equals_brute_force(cloud):
    points, maximise = cloud
    sign = np.where(maximise, 1, -1)
    gains = np.array(points) * sign
    expected = [
        j for j, p in enumerate(gains) if not any((q >= p).all() and (q > p).any() for q in gains)
    ]
    front = pareto_front(points, maximise)
    assert front.tolist() == expected
    assert len(front) >= 1


def test_directions():
    points = [(1.0, 5.0), (2.0, 4.0), (1.5, 4.0), (2.0, 5.0)]
    assert pareto_front(points).tolist() == [3]
    assert pareto_front(points, (True, False)).tolist() == [1]
    assert pareto_front([(0, np.inf), (1, 0), (-np.inf, 0)]).tolist() == [0, 1]


def test_empty_and_bad_input():
    assert pareto_front([]).tolist() == []
    with pytest.raises(UsageError):
        pareto_front([(1.0, np.nan)])
    with pytest.raises(UsageError):
        pareto_front([(1.0, 2.0, 3.0)])
