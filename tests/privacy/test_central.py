"""Noise on a sum: clipping holds exactly, noise is Gaussian without gaps, the price is right."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sottovoce.core.links import LEAST_SIGMA, MOST_SIGMA, SecureSum
from sottovoce.core.messages import GRID, DeviceReports
from sottovoce.errors import ConfigError
from sottovoce.privacy import central
from sottovoce.privacy.central import (
    MOST_ROUNDS,
    clip_reports,
    gaussian_noise,
    noise_for,
    price,
    room_for_sums,
    rounds_within,
)

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
MANY = 200_000


def reports(rows, sender):
    values = np.array(rows, dtype=np.int64)
    item = np.arange(len(sender), dtype=np.int32)
    return DeviceReports(3, np.array(sender, dtype=np.int64), item, values)


def exact_square(sent, sender):
    return sum(v * v for v in sent.values[sent.sender == sender].ravel().tolist())


# --- clipping -------------------------------------------------------------------------------------

NUMBERS = st.one_of(st.integers(-5, 5), st.integers(-(2**31), 2**31), st.integers(-(2**45), 2**45))


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=12),
    st.lists(st.integers(0, 3), min_size=12, max_size=12),
    st.floats(1e-6, 1e4),
)
def test_no_clipped_update_is_longer_than_the_limit_in_whole_numbers(rows, senders, clip):
    sent = reports(rows, senders[: len(rows)])
    left, most = clip_reports(sent, clip), Fraction(clip * GRID) ** 2
    assert np.array_equal(left.item, sent.item)
    assert np.array_equal(left.sender, sent.sender)
    for sender in set(sent.sender.tolist()):
        mine = sent.sender == sender
        before, after = exact_square(sent, sender), exact_square(left, sender)
        assert after <= most
        if before <= most:
            assert np.array_equal(left.values[mine], sent.values[mine])
        else:
            # Scaled, not cut off: in whole numbers, at most its share, and less than a step (and
            # what floating point loses, relatively) below it.
            lost = 1 - Fraction(4 * (sent.values.size + 16), 2**52)
            was, now = sent.values[mine].ravel().tolist(), left.values[mine].ravel().tolist()
            for old, new in zip(was, now, strict=True):
                assert new * old >= 0
                assert new**2 * before <= old**2 * most
                assert (abs(new) + 1) ** 2 * before > (old * lost) ** 2 * most
    again = clip_reports(left, clip)
    assert np.array_equal(again.values, left.values)


def test_the_limit_itself_may_leave_and_a_step_more_may_not():
    clip = 5 / GRID
    assert clip_reports(reports([[3, 4]], [7]), clip).values.tolist() == [[3, 4]]
    left = clip_reports(reports([[3, 4], [1, 0]], [7, 7]), clip)
    assert exact_square(left, 7) <= 25
    # 3² + 4² = 5² far beyond what floating point holds of the squares, a step in one direction.
    big = 2**40
    exact = reports([[3 * big, 4 * big]], [1])
    assert np.array_equal(clip_reports(exact, 5 * big / GRID).values, exact.values)
    longer = clip_reports(reports([[3 * big, 4 * big + 1]], [1]), 5 * big / GRID)
    assert exact_square(longer, 1) <= 25 * big**2
    assert exact_square(longer, 1) >= 25 * big**2 * (1 - 1e-9)


def test_an_update_is_clipped_as_if_it_were_alone():
    draw = np.random.default_rng(5)
    rows, sender = draw.integers(-(2**26), 2**26, (60, 4)), draw.integers(0, 6, 60)
    together = clip_reports(reports(rows, sender), 1.5)
    for one in range(6):
        mine = sender == one
        alone = clip_reports(reports(rows[mine], sender[mine]), 1.5)
        assert np.array_equal(alone.values, together.values[mine])


def test_nothing_to_clip_and_bad_limits():
    empty = reports(np.zeros((0, 2), np.int64), [])
    assert len(clip_reports(empty, 1.0)) == 0
    for clip in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="norm"):
            clip_reports(reports([[1, 2]], [0]), clip)


# --- noise ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [5e4, 3.3e8, 1e10, MOST_SIGMA])
def test_noise_is_gaussian(sigma):
    noise = gaussian_noise(KEY, 5, MANY, sigma) / sigma
    assert abs(noise.mean()) < 5 / math.sqrt(MANY)
    assert abs(noise.var() - 1) < 5 * math.sqrt(2 / MANY)
    assert abs(np.mean(noise**3)) < 5 * math.sqrt(15 / MANY)
    assert abs(np.mean(noise**4) - 3) < 5 * math.sqrt(96 / MANY)
    assert stats.kstest(noise, "norm").pvalue > 1e-4


def test_small_noise_has_the_probabilities_of_a_rounded_gaussian():
    sigma = 40.0
    noise = gaussian_noise(KEY, 6, MANY, sigma)
    values = np.arange(-100, 101)
    expected = MANY * np.diff(stats.norm.cdf((np.append(values, 101) - 0.5) / sigma))
    found = np.bincount(noise[np.abs(noise) <= 100] + 100, minlength=201)
    assert stats.chisquare(found * (expected.sum() / found.sum()), expected).pvalue > 1e-4
    assert abs(found[100] - expected[100]) < 5 * math.sqrt(expected[100]), "0 is no exception"


def test_tails_reach_as_far_as_they_should():
    noise = np.abs(np.concatenate([gaussian_noise(KEY, r, 500_000, 1e9) for r in range(6)])) / 1e9
    for far in (2.0, 3.0, 4.0, 4.5):
        expected = len(noise) * 2 * stats.norm.sf(far)
        assert abs(np.sum(noise > far) - expected) < 5 * math.sqrt(expected), far
    assert 4.5 < noise.max() < 7.5


def test_there_are_no_gaps_even_between_far_numbers():
    """The last bits of large numbers are as even as those of small ones."""
    noise = gaussian_noise(KEY, 8, 1_000_000, 1e10)
    for some in (noise[np.abs(noise) < 1e9], noise[np.abs(noise) > 2.5e10]):
        counts = np.bincount(np.abs(some) % 64, minlength=64)
        assert stats.chisquare(counts).pvalue > 1e-4
    assert abs(np.mean(noise > 0) - 0.5) < 5 / math.sqrt(4e6)


def test_the_cells_of_the_table_are_those_of_the_gaussian():
    """Whatever the coin decides is left; the table by itself is the envelope, to 128 bits."""
    for sigma in (33.0, 1e5, 12345678.9):
        high, low, sure, _, shift, kept = central._table(sigma)
        assert kept == sigma
        assert 2**shift <= sigma / 32 < 2 ** (shift + 1)
        cuts = [(int(a) << 64) | int(b) for a, b in zip(high, low, strict=True)]
        cell = 2**shift / sigma
        assert all(a <= b for a, b in pairwise(cuts))
        assert all(a < b for a, b in pairwise(cuts[: int(12 / cell)]))
        assert len(cuts) * cell >= 13
        shares = np.diff(np.array([0, *cuts], dtype=object)).astype(float) / 2.0**128
        weights = np.exp(-((np.arange(len(cuts)) * cell) ** 2) / 2)
        expected = weights / weights.sum()
        np.testing.assert_allclose(shares, expected, rtol=1e-9, atol=2.0**-127)
        least = np.exp(-(2 * np.arange(len(cuts)) + 1) * cell**2 / 2) * 2.0**central._COIN_BITS
        assert np.all(sure <= least)


def test_what_the_fast_path_leaves_to_the_slow_one_is_the_same_number():
    """With nothing sure, every number is drawn by the definition."""
    high, low, sure, guide, shift, sigma = central._table(2e6)
    key = np.frombuffer(KEY, dtype="<u4").astype(np.uint32)
    nonce, slow = central.nonce(3), np.empty(20_000, dtype=np.int64)
    central._fill(slow, key, nonce, high, low, np.zeros_like(sure), guide, shift, sigma)
    assert np.array_equal(slow, gaussian_noise(KEY, 3, 20_000, sigma))


def test_noise_is_a_function_of_key_and_round_alone():
    first = gaussian_noise(KEY, 2, 5000, 1e7)
    assert np.array_equal(first, gaussian_noise(KEY, 2, 5000, 1e7))
    assert np.array_equal(first[:777], gaussian_noise(KEY, 2, 777, 1e7)), "whatever comes behind"
    for key, round in ((OTHER, 2), (KEY, 3), (KEY, 2 + (1 << 32))):
        other = gaussian_noise(key, round, 5000, 1e7)
        assert np.sum(first == other) < 5
        assert abs(np.corrcoef(first, other)[0, 1]) < 5 / math.sqrt(5000)


def test_numbers_of_a_round_do_not_depend_on_each_other():
    noise = gaussian_noise(KEY, 4, MANY, 1e8)
    for apart in (1, 2, 3, 4, 16, 21, 64):
        for numbers in (noise, noise**2):
            found = np.corrcoef(numbers[:-apart].astype(float), numbers[apart:].astype(float))[0, 1]
            assert abs(found) < 5 / math.sqrt(MANY), apart


def test_bad_noise_is_refused():
    for bad in (
        (b"short", 0, 5, 1e6),
        (KEY, -1, 5, 1e6),
        (KEY, 0, -1, 1e6),
        (KEY, 0, 5, 1.0),
        (KEY, 0, 5, math.nan),
        (KEY, 0, 5, math.inf),
        (KEY, 0, 5, 2 * MOST_SIGMA),
    ):
        with pytest.raises(ConfigError):
            gaussian_noise(*bad)
    assert len(gaussian_noise(KEY, 0, 0, 1e6)) == 0


def test_a_link_takes_no_noise_that_nobody_can_draw():
    """Where a link is made, not in the first round of a run or on somebody's device."""
    for sigma in (LEAST_SIGMA, MOST_SIGMA):
        link = SecureSum(clip=0.5, noise=2 * sigma / GRID)
        assert len(gaussian_noise(KEY, 0, 3, link.noise * link.clip * GRID)) == 3
    for clip, noise in (
        (1.0, 1e-160),
        (0.5, 2 * LEAST_SIGMA / GRID * (1 - 1e-9)),
        (0.5, 2 * MOST_SIGMA / GRID * (1 + 1e-9)),
    ):
        with pytest.raises(ConfigError, match=r"standard deviation of noise must lie in \[32, 2"):
            SecureSum(clip=clip, noise=noise)


# --- the price ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "rounds", "delta"),
    [(1.0, 1, 1e-6), (0.5, 1, 1e-6), (4.0, 100, 1e-6), (8.0, 50, 1e-5), (30.0, 200, 1e-6)],
)
def test_the_price_is_that_of_an_independent_accountant(noise, rounds, delta):
    dp_accounting = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    theirs = pld.PLDAccountant()
    theirs.compose(dp_accounting.GaussianDpEvent(noise), rounds)
    assert price(noise, rounds, delta) == pytest.approx(theirs.get_epsilon(delta), rel=0.01)


def test_the_price_is_no_less_than_what_the_best_test_achieves():
    """(ε, δ) bounds the sum over all outcomes of what exceeds e^ε times the other probability."""
    for noise, rounds in ((2.0, 1), (3.0, 9)):
        epsilon = price(noise, rounds, 1e-5)
        x = np.linspace(-30, 30, 600_001)
        far = math.sqrt(rounds) / noise
        with_her, without = stats.norm.pdf(x, far), stats.norm.pdf(x)
        found = np.sum(np.maximum(0, with_her - math.exp(epsilon) * without)) * (x[1] - x[0])
        assert found == pytest.approx(1e-5, rel=1e-4)


def test_the_price_grows_with_rounds_and_falls_with_noise():
    prices = [price(2.0, rounds) for rounds in (1, 2, 4, 100, 10_000)]
    assert prices == sorted(prices)
    assert price(4.0, 16) == pytest.approx(price(1.0, 1), rel=1e-9)
    assert price(0.0, 1) == math.inf
    assert price(1e9, 1) == 0.0, "δ alone covers it"
    assert price(0.01, 10_000) > 1e6
    assert math.isfinite(price(0.01, 10_000))


@pytest.mark.parametrize(("epsilon", "rounds"), [(0.1, 1), (1.0, 100), (8.0, 300), (200.0, 5)])
def test_the_noise_for_a_price_has_that_price(epsilon, rounds):
    noise = noise_for(epsilon, rounds)
    assert price(noise, rounds) <= epsilon
    assert price(noise * (1 - 1e-6), rounds) > epsilon


def test_bad_prices_are_refused():
    for work in (
        lambda: price(1.0, 0),
        lambda: price(-1.0, 1),
        lambda: price(math.nan, 1),
        lambda: price(1.0, 1, 0.0),
        lambda: price(1.0, 1, 1.0),
        lambda: noise_for(0.0, 1),
        lambda: noise_for(math.inf, 1),
        lambda: noise_for(1.0, 0),
    ):
        with pytest.raises(ConfigError):
            work()


@pytest.mark.parametrize("distance", [1e3, 9.99e5, 1.01e6, 1e10, 1e149])
def test_the_price_of_next_to_no_noise_is_not_below_what_it_tells(distance):
    """The least ε is a little above distance² / 2, of which rounding must not take anything."""
    found = price(1 / distance, 1)
    assert distance**2 / 2 + 4.7 * distance <= found * (1 + 1e-12)
    assert found <= (distance**2 / 2 + 5.3 * distance) * (1 + 1e-12)


# --- limits ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.floats(0.05, 200.0), st.floats(0.0, 60.0), st.sampled_from([1e-6, 1e-3]))
def test_a_limit_has_room_for_so_many_rounds_and_not_for_one_more(noise, limit, delta):
    rounds = rounds_within(noise, limit, delta)
    assert price(noise, rounds + 1, delta) > limit
    if rounds:
        assert price(noise, rounds, delta) <= limit * (1 + 1e-12)
    assert rounds_within(noise, math.nextafter(limit, math.inf), delta) >= rounds


@settings(deadline=None, max_examples=30)
@given(st.floats(0.5, 50.0), st.integers(1, 5000))
def test_the_price_of_so_many_rounds_is_a_limit_of_so_many(noise, rounds):
    exact = price(noise, rounds)
    assert rounds_within(noise, exact) == rounds
    assert rounds_within(noise, exact * (1 - 1e-9)) == rounds - 1


def test_limits_at_the_ends():
    assert rounds_within(5.0, math.inf) == MOST_ROUNDS
    assert rounds_within(0.0, 10.0) == 0, "nothing is bounded without noise"
    assert rounds_within(1.0, 0.0) == 0
    for noise in (1e-160, 5e-324):
        assert price(noise, 1) == math.inf
        assert rounds_within(noise, 1e300) == 0
    for limit in (-1.0, math.nan):
        with pytest.raises(ConfigError, match="limit"):
            rounds_within(1.0, limit)


def test_other_costs_take_their_part_of_a_limit():
    limit = price(4.0, 6)
    sent = np.array([0, 5, 6, 0, 0, 10**6])
    spent = np.array([0.0, 0.0, 0.0, 1.001 * (limit - price(4.0, 1)), 2 * limit, 7.0])
    limits = np.array([limit] * 5 + [math.inf])
    assert room_for_sums(4.0, sent, spent, limits).tolist() == [True, True, *[False] * 3, True]
    assert room_for_sums(4.0, sent[:1], 0.999 * spent[3:4], limits[:1]).all()
    most, none = np.array([MOST_ROUNDS]), np.zeros(1)
    assert room_for_sums(1e6, most, none, np.array([math.inf])).all(), "there is no limit"
    assert not room_for_sums(1e6, most, none, np.array([1e9])).any()
