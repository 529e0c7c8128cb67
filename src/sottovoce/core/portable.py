"""Arithmetic that every device computes alike, bit for bit, in whatever language.

Only +, −, ×, ÷, √ and ⌊ ⌋ of double precision (IEEE 754), in the order in which they stand here;
nothing is fused. So a result does not depend on a library of mathematics, which differ in their
last bits, and what a device sends, books or holds out can be held to vectors (`docs/protocol.md`).
Compiled loops keep to it: numba fuses and reorders nothing unless it is told to.

Each is within a few units of the last place, which tests hold them to.
"""

# Kernels carry no types (numba infers them).
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sottovoce.compiled import njit

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
"""Their sum is the logarithm of 2; the first has 32 bits, so that its product with a power of a
double is exact."""
_SMALLEST, _LARGEST = -746.0, 710.0
_FACTORIALS = tuple(1 / math.factorial(n) for n in range(13, 1, -1))
"""1/13! to 1/2!."""
_ODD = tuple(1 / n for n in range(23, 0, -2))
"""1/23 to 1/1."""
_CENTRE = 3.0
_SERIES = (
    1.17756257419656, 0.005353904539615676, -0.09377550342284209, 0.05436652555744322,
    -0.018976596707845208, 0.004453426061462712, -0.0006335531710553147, 1.7661719523171593e-05,
    1.2841532864056671e-05, -2.0072285659059913e-06, -1.807522790414837e-07, 7.549828343825093e-08,
    1.885668523838603e-09, -2.699519049798364e-09, -1.460079119939105e-11, 1.0361607445969489e-10,
    1.475715976623473e-12, -4.277340064396911e-12, -2.07922492859799e-13, 1.8134502003176963e-13,
    1.973425574544739e-14, -7.287943737592673e-15, -1.5169878690228116e-15, 2.3514112258781403e-16,
    1.0006111691821667e-16,
)  # fmt: skip
"""Chebyshev's coefficients of (1 + 2x) e^(x²) erfc(x) in t = (x − 3) / (x + 3), for x from 0."""


@njit(alone=True, cache=True, error_model="numpy")
def exp(x):
    """e**x; 0 below −746 and infinite above 710."""
    if x != x:
        return x
    if x < _SMALLEST:
        return 0.0
    if x > _LARGEST:
        return math.inf
    k = math.floor(x * _LOG2_E + 0.5)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    tail = 0.0
    for one in _FACTORIALS:
        tail = tail * r + one
    half = math.floor(k / 2.0)
    # By two powers of two: one alone could be out of range.
    whole = (1.0 + (r + (r * r) * tail)) * math.ldexp(1.0, int(half))
    return whole * math.ldexp(1.0, int(k - half))


@njit(alone=True, cache=True, error_model="numpy")
def log(x):
    """The natural logarithm of a finite number above 0."""
    part, power = math.frexp(x)
    if part < 0.7071067811865476:
        part, power = 2.0 * part, power - 1
    s = (part - 1.0) / (part + 1.0)
    square, tail = s * s, 0.0
    for one in _ODD:
        tail = tail * square + one
    return power * _LN2_HIGH + (power * _LN2_LOW + (2.0 * s) * tail)


@njit(alone=True, cache=True, error_model="numpy")
def scaled_erfc(x):
    """e^(x²) · erfc(x) of x from 0: the tail of a Gaussian as a part of its density."""
    t = (x - _CENTRE) / (x + _CENTRE)
    twice, one, two = 2.0 * t, 0.0, 0.0
    for k in range(len(_SERIES) - 1, 0, -1):
        one, two = (twice * one - two) + _SERIES[k], one
    return ((t * one - two) + _SERIES[0]) / (1.0 + 2.0 * x)


@njit(alone=True, cache=True, error_model="numpy")
def gaussian_delta(distance, epsilon):
    """δ at ε of telling apart two Gaussians of variance 1 at this distance,
    Φ(d/2 − ε/d) − e^ε Φ(−d/2 − ε/d). With a = d/2 − ε/d and b = d/2 + ε/d, e^ε times the density
    at −b is that at a, so that neither term is out of range."""
    far = epsilon / distance
    a, b = distance / 2.0 - far, distance / 2.0 + far
    root = 1.4142135623730951
    density = 0.5 * exp(-((a * a) / 2.0))
    if a > 0.0:
        return 1.0 - density * (scaled_erfc(a / root) + scaled_erfc(b / root))
    return density * (scaled_erfc(-a / root) - scaled_erfc(b / root))


@njit(alone=True, nogil=True, cache=True)
def _exp_all(x, out):
    for k in range(len(x)):
        out[k] = exp(x[k])


def exp_of(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """`exp` of each."""
    flat = np.ascontiguousarray(x, dtype=np.float64)
    out = np.empty_like(flat)
    _exp_all(flat.ravel(), out.ravel())
    return out
