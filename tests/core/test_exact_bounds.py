"""What is longer than its bound is found by whole numbers, exactly as by fractions."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sottovoce.core.contributions import PAIR_STEPS, STEPS, _bound, _longer
from sottovoce.core.messages import GRID, DeviceReports
from sottovoce.privacy.central import clip_reports

SCALES = st.one_of(
    st.floats(min_value=0.0, max_value=1.0),
    st.floats(min_value=0.0, max_value=1e6),
    st.integers(1, 1000).map(lambda n: 1 / n),
    st.integers(1, 1000).map(lambda n: math.sqrt(1 / n)),
)
ULPS = st.integers(-3, 3)


def moved(value, ulps):
    """A neighbour among floating-point numbers."""
    for _ in range(abs(ulps)):
        value = math.nextafter(value, math.copysign(math.inf, ulps))
    return value


@settings(max_examples=80, deadline=None)
@given(scale=SCALES, pairs=st.booleans(), unit=st.sampled_from([1, 3, PAIR_STEPS, STEPS, 1 << 24]))
@example(5e-324, False, 1 << 24)
@example(1.0, True, STEPS)
def test_a_bound_of_whole_numbers(scale, pairs, unit):
    exact = Fraction(scale) * unit**2 * (1 if pairs else Fraction(scale))
    assert _bound(scale, pairs, unit) == math.floor(exact)
    if float(np.float32(scale)) == scale:
        assert _bound(np.float32(scale), pairs, unit) == math.floor(exact)


@settings(max_examples=80, deadline=None)
@given(
    steps=st.lists(st.integers(-STEPS, STEPS), min_size=1, max_size=6),
    pairs=st.booleans(),
    ulps=ULPS,
)
def test_a_profile_at_the_edge_of_its_length(steps, pairs, ulps):
    squares = sum(k * k for k in steps)
    unit = PAIR_STEPS if pairs else STEPS
    edge = squares / unit**2 if pairs else math.sqrt(squares) / unit
    scale = max(moved(edge, ulps), 0.0)
    bound = Fraction(scale) * unit**2 * (1 if pairs else Fraction(scale))
    assert _longer(np.array(steps, np.int32), scale, pairs) is (squares > bound)


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=6).filter(any),
    ulps=ULPS,
)
@example([3 * 2**20, 4 * 2**20], 0)
@example([3 * 2**20, 4 * 2**20], -1)
def test_an_update_at_the_edge_of_its_length(values, ulps):
    """One that is no longer stays; one that is becomes no longer."""
    exact = sum(number * number for number in values)
    clip = moved(math.sqrt(exact) / GRID, ulps)
    rows = len(values)
    reports = DeviceReports(
        0, np.zeros(rows, np.int64), np.arange(rows, dtype=np.int32), np.array(values)[:, None]
    )
    clipped = clip_reports(reports, clip)
    limit = (Fraction(clip) * Fraction(GRID)) ** 2
    if exact > limit:
        assert sum(int(k) ** 2 for k in clipped.values.ravel()) <= limit
        assert clipped.values.tolist() != reports.values.tolist()
    else:
        assert clipped is reports


def test_a_clip_beyond_all_numbers_leaves_everything():
    values = np.array([[1 << 40]])
    reports = DeviceReports(0, np.zeros(1, np.int64), np.zeros(1, np.int32), values)
    assert clip_reports(reports, 1e308) is reports
