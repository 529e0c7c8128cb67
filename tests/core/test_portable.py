"""Arithmetic that devices share: its accuracy, and that it is what the page says, operation by
operation."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import erfcx, log_ndtr

from sottovoce.core import portable


def ulps(found, exact):
    return abs(Fraction(found) - Fraction(exact)) / Fraction(math.ulp(float(exact)))


@given(st.floats(-708.0, 709.0))
def test_exp_is_within_two_units_of_the_last_place(x):
    with localcontext() as context:
        context.prec = 40
        assert ulps(portable.exp(x), Decimal(x).exp()) < 1.5


def test_exp_at_the_ends():
    assert portable.exp(0.0) == 1.0
    assert portable.exp(-0.0) == 1.0
    assert portable.exp(math.inf) == math.inf == portable.exp(709.8)
    assert portable.exp(-math.inf) == 0.0 == portable.exp(-745.2)
    assert portable.exp(-745.0) == math.exp(-745.0) > 0.0  # the smallest of all
    assert math.isnan(portable.exp(math.nan))


@given(st.floats(1e-300, 1e300))
def test_log_is_within_four_units_of_the_last_place(x):
    with localcontext() as context:
        context.prec = 40
        exact = Decimal(x).ln()
        assert portable.log(x) == 0.0 if x == 1.0 else ulps(portable.log(x), exact) < 4


@given(st.floats(0.0, 1e6))
def test_the_tail_of_a_gaussian_has_fifteen_digits(x):
    assert portable.scaled_erfc(x) == pytest.approx(erfcx(x), rel=3e-15)


@given(st.floats(1e-3, 30.0), st.floats(0.0, 1.0))
def test_delta_is_that_of_two_gaussians(d, share):
    """Against scipy, with what rounding takes of a difference."""
    epsilon = share * (d * d / 2 + 7.5 * d)
    first = log_ndtr(d / 2 - epsilon / d)
    second = epsilon + log_ndtr(-d / 2 - epsilon / d)
    exact = -math.exp(first) * math.expm1(second - first)
    slack = 2.0**-50 * (1.0 + abs(first)) * math.exp(first)
    assert portable.gaussian_delta(d, epsilon) == pytest.approx(exact, rel=1e-12, abs=slack)


# --- the same, written down anew, with nothing but the operations that every language has ---------


def exp_again(x):
    """As `docs/protocol.md` says it; Python's floats fuse nothing."""
    k = math.floor(x * 1.4426950408889634 + 0.5)
    r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10
    tail = 0.0
    for n in range(13, 1, -1):
        tail = tail * r + 1 / math.factorial(n)
    half = k // 2
    return ((1.0 + (r + (r * r) * tail)) * 2.0**half) * 2.0 ** (k - half)


def log_again(x):
    part, power = math.frexp(x)
    if part < 0.7071067811865476:
        part, power = 2.0 * part, power - 1
    s = (part - 1.0) / (part + 1.0)
    tail = 0.0
    for n in range(23, 0, -2):
        tail = tail * (s * s) + 1 / n
    return power * 0.6931471803691238 + (power * 1.9082149292705877e-10 + (2.0 * s) * tail)


@given(st.floats(-745.0, 709.0))
def test_exp_has_the_bits_of_its_definition(x):
    assert portable.exp(x) == exp_again(x)


@given(st.floats(1e-300, 1e300))
def test_log_has_the_bits_of_its_definition(x):
    assert portable.log(x) == log_again(x)


@given(st.floats(0.0, 1e6))
def test_the_tail_has_the_bits_of_its_definition(x):
    t, after, last = (x - 3.0) / (x + 3.0), 0.0, 0.0
    for one in portable._SERIES[:0:-1]:
        after, last = (2.0 * t * after - last) + one, after
    again = ((t * after - last) + portable._SERIES[0]) / (1.0 + 2.0 * x)
    assert portable.scaled_erfc(x) == again


def test_an_array_is_as_its_numbers():
    x = np.linspace(-40.0, 3.0, 999).reshape(27, 37)
    found = portable.exp_of(x)
    assert found.shape == x.shape
    assert found.ravel().tolist() == [portable.exp(one) for one in x.ravel()]
