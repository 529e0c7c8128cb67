"""What many one-bit reports say together. Seeds are fixed; where a test accepts the right law at
p > 1e-4, it or a test beside it rejects a slightly wrong one at p < 1e-6."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from sottovoce.algorithms.closed_form import vectors as closed_form
from sottovoce.algorithms.closed_form.vectors import Confidence
from sottovoce.core import one_bit
from sottovoce.core.messages import GRID
from sottovoce.core.one_bit import ReportRule
from sottovoce.rng import Streams

CONF = Confidence(positive=3.0, other=1.0, reg=0.1)
ACCEPTED, REJECTED = 1e-4, 1e-6


def rule(
    devices: int, k: int, epsilon: float, *, seed: int = 1, round: int = 0, **change: Any
) -> ReportRule:
    users = np.arange(devices)
    root = Streams.from_seed(seed)
    fields = {
        "keys": root.child("coordinates", round).keys(users),
        "noise": one_bit.noise_keys(one_bit.noise_root(root.child("noise").key), users),
        "round": round,
        "low": np.full(devices, one_bit.lowest(epsilon), dtype=np.uint64),
        "reports": k,
        "scale": 1.0,
    }
    return ReportRule(**(fields | change))


def reports_at(y: float, made: ReportRule) -> NDArray[np.uint32]:
    """Reports of devices without items whose gradient is y in the model's one coordinate."""
    n = len(made)
    items = np.array([[y / 2]], dtype=np.float32)  # g = 2 x² v, x = 1
    return closed_form.learn_reports(
        CONF, items, np.ones((n, 1), np.float32), np.arange(n), np.zeros(n + 1, np.int64),
        np.zeros(0, np.int32), made,
    )  # fmt: skip


def rate_p(bits: NDArray[np.bool_], probability: float) -> float:
    """Chi-square: the chance of counts so far from the probability of a 1, or farther."""
    expected = bits.size * np.array([probability, 1.0 - probability])
    seen = [int(bits.sum()), int(bits.size - bits.sum())]
    return float(stats.chisquare(seen, expected).pvalue)


def plus(y: float, epsilon: float) -> float:
    """The paper's probability of bit 1."""
    e = math.exp(epsilon)
    return (y * (e - 1.0) + e + 1.0) / (2.0 * e + 2.0)


# --- bits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.5, 5.0])
@pytest.mark.parametrize("y", [-1.0, 1.0, 0.0, 0.35, -7.0, 7.0])
def test_bits_come_at_the_promised_rate(y: float, epsilon: float) -> None:
    bits = one_bit.bits(reports_at(y, rule(4000, 250, epsilon)))
    clipped = max(-1.0, min(1.0, float(np.float32(y))))
    assert rate_p(bits, plus(clipped, epsilon)) > ACCEPTED
    if abs(clipped) == 1.0:
        edge = math.exp(epsilon) / (math.exp(epsilon) + 1.0)
        assert plus(abs(clipped), epsilon) == pytest.approx(edge)
        assert rate_p(bits, plus(clipped, epsilon + 0.1)) < REJECTED


def test_a_coordinate_drawn_often_gets_a_new_coin_each_time() -> None:
    """One coordinate only: the ones among a device's 12 reports are binomial. Had a device one coin
    per coordinate, it would send the same bit 12 times."""
    bits = one_bit.bits(reports_at(0.3, rule(50_000, 12, 1.0)))
    seen = np.bincount(bits.sum(axis=1), minlength=13)
    expected = 50_000 * stats.binom.pmf(np.arange(13), 12, plus(float(np.float32(0.3)), 1.0))
    pooled = [np.array([c[:3].sum(), *c[3:12], c[12:].sum()]) for c in (seen, expected)]
    assert stats.chisquare(*pooled, sum_check=False).pvalue > ACCEPTED


def same(a: NDArray[np.bool_], b: NDArray[np.bool_]) -> float:
    """Chance of so uneven a number of agreements between fair, independent coins."""
    return rate_p(a == b, 0.5)


def test_coins_of_devices_rounds_and_reports_have_nothing_to_do_with_each_other() -> None:
    first = one_bit.bits(reports_at(0.0, rule(4000, 160, 2.5)))
    later = one_bit.bits(reports_at(0.0, rule(4000, 160, 2.5, round=1)))
    far = one_bit.bits(reports_at(0.0, rule(4000, 160, 2.5, round=1 << 32)))
    other = one_bit.bits(reports_at(0.0, rule(4000, 160, 2.5, seed=9)))
    assert rate_p(first, 0.5) > ACCEPTED
    for a, b in [(first, later), (first, far), (later, far), (first, other)]:
        assert same(a, b) > ACCEPTED
    assert same(first[1:], first[:-1]) > ACCEPTED
    for lag in (1, 2, 4, 15, 16, 32):
        assert same(first[:, lag:], first[:, :-lag]) > ACCEPTED
    assert same(first, first) < REJECTED


def test_bits_say_nothing_about_coordinates_where_there_is_nothing_to_say() -> None:
    made = rule(4000, 200, 2.5)
    reports = closed_form.learn_reports(
        CONF, np.ones((4, 2), np.float32), np.zeros((4000, 2), np.float32), np.arange(4000),
        np.zeros(4001, np.int64), np.zeros(0, np.int32), made,
    )  # fmt: skip
    table = np.zeros((8, 2))
    np.add.at(table, (one_bit.coordinates(reports), one_bit.bits(reports).astype(int)), 1)
    assert stats.chi2_contingency(table).pvalue > ACCEPTED


# --- coordinates ---------------------------------------------------------------------------------


def drawn(made: ReportRule, n_items: int, size: int) -> NDArray[np.int64]:
    n = len(made)
    reports = closed_form.learn_reports(
        CONF, np.zeros((n_items, size), np.float32), np.zeros((n, size), np.float32), np.arange(n),
        np.zeros(n + 1, np.int64), np.zeros(0, np.int32), made,
    )  # fmt: skip
    return one_bit.coordinates(reports)


def test_coordinates_are_uniform() -> None:
    at = drawn(rule(4000, 250, 2.5), 101, 3)
    seen = np.bincount(at.ravel(), minlength=303)
    assert len(seen) == 303
    assert stats.chisquare(seen).pvalue > ACCEPTED
    for step in (1, 7):  # and independent, from report to report and from device to device
        pairs = (at[:, step:] % 6) * 6 + at[:, :-step] % 6
        neighbours = (at[step:] % 6) * 6 + at[:-step] % 6
        for counts in (np.bincount(pairs.ravel()), np.bincount(neighbours.ravel())):
            assert stats.chi2_contingency(counts.reshape(6, 6)).pvalue > ACCEPTED


# --- estimates -----------------------------------------------------------------------------------


def estimate(k: int, scale: float) -> Any:
    """A round of 3,000 devices: the estimate from counts, the mean of clipped gradients and that of
    gradients as they are, and the estimate's standard deviation, each per coordinate."""
    n, n_items, size, epsilon = 3000, 40, 3, 2.5
    rng = np.random.default_rng(5)
    items = rng.normal(0.3, 0.5, (n_items, size)).astype(np.float32)
    owned = rng.random((n, n_items)) < 0.2
    indptr = np.concatenate([[0], np.cumsum(owned.sum(axis=1))]).astype(np.int64)
    history = np.nonzero(owned)[1].astype(np.int32)
    rows = np.arange(n)
    x = closed_form.solve(CONF, items, rows, indptr, history)
    made = rule(n, k, epsilon, scale=scale)
    reports = closed_form.learn_reports(CONF, items, x, rows, indptr, history, made)

    sums = np.zeros(n_items * size)
    np.add.at(sums, one_bit.coordinates(reports), 2.0 * one_bit.bits(reports) - 1.0)
    q = 1.0 / (n_items * size)
    worth = 1.0 / (q * one_bit.contrast(epsilon))

    f = closed_form.learn_rows(CONF, items, x, rows, indptr, history) / GRID
    g = (-2.0 * scale * f).reshape(n, -1)
    return worth * sums / reports.size, np.clip(g, -1, 1).mean(0), g.mean(0), worth, q, reports.size


def slope(of: Any, by: Any, deviation: Any) -> tuple[float, float]:
    """Weighted least squares through 0, and its standard error."""
    precision = (by**2 / deviation**2).sum()
    return float((of * by / deviation**2).sum() / precision), float(precision**-0.5)


def test_estimates_are_unbiased_for_the_mean_of_clipped_gradients() -> None:
    k = 400
    estimated, clipped, raw, worth, q, reports = estimate(k, scale=2.0)
    deviation = worth * np.sqrt(q / reports)
    found, error = slope(estimated, clipped, deviation)
    assert error < 0.01
    assert abs(found - 1.0) < 4 * error
    chi = (((estimated - clipped) / deviation) ** 2).sum()
    assert ACCEPTED < stats.chi2.sf(chi, len(clipped)) < 1 - ACCEPTED
    # The same test rejects the paper's divisor, and gradients before clipping.
    by_users, error = slope(estimated * k, clipped, deviation * k)
    assert abs(by_users - 1.0) > 100 * error
    assert by_users == pytest.approx(k, rel=0.05)
    unclipped, error = slope(estimated, raw, deviation)
    assert unclipped < 1.0 - 10 * error


def test_small_steps_are_not_clipped_and_the_scale_is_the_only_difference() -> None:
    _, clipped, raw, *_ = estimate(1, scale=1e-3)
    np.testing.assert_allclose(clipped, raw, rtol=1e-12)
    estimated, clipped, *_, worth, q, reports = estimate(400, scale=0.25)
    found, error = slope(estimated, clipped, worth * np.sqrt(q / reports))
    assert abs(found - 1.0) < 4 * error
