"""Noise on running sums: its size, and that it costs no more than the noise of one batch."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.running import Draws, deviation, draw_size, roots, weights
from sottovoce.errors import ConfigError
from sottovoce.privacy.central import gaussian_noise, gaussian_noise_at, noise_on

KEY = bytes(range(32))


@pytest.mark.parametrize("batches", [1, 2, 12, 52, 520])
def test_the_roots_multiplied_with_themselves_sum_up(batches):
    assert np.allclose(np.convolve(roots(batches), roots(batches))[:batches], 1.0, rtol=1e-12)
    assert np.allclose(np.cumsum(weights(batches)), roots(batches), rtol=1e-12)


def test_what_the_specification_says_of_twelve_and_of_fifty_two_batches():
    assert deviation(12, 12, True) == pytest.approx(1.851, abs=1e-3)
    assert deviation(12, 12, False) == math.sqrt(12)
    assert deviation(52, 52, True) == pytest.approx(2.3, abs=0.05)
    for batches in range(2, 60):  # it pays in the end from two batches on, and never at first
        assert deviation(batches, batches, True) < deviation(batches, batches, False)
        assert deviation(1, batches, True) == draw_size(batches) > 1.0
    assert deviation(1, 1, True) == deviation(1, 1, False) == 1.0


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 6), st.integers(1, 4))
def test_nobody_is_told_with_less_noise_whatever_places_and_lags_a_server_names(data, batches, n):
    """x + S P z tells of her, who is in one batch, what her vector in P⁻¹ x and noise of S tell."""
    many = n + 1  # more places than numbers: some are left out
    steps = weights(batches)
    whole = np.zeros((batches * n, batches * many))
    for t in range(batches):
        for back in range(t + 1):
            places = data.draw(st.permutations(range(many)))[:n]
            lags = data.draw(st.lists(st.integers(0, batches), min_size=n, max_size=n))
            for number in range(n):
                if back == 0:  # its own draws are where it stands, and always there
                    whole[t * n + number, t * many + number] = 1.0
                elif lags[number] >= back:
                    whole[t * n + number, (t - back) * many + places[number]] = steps[back]
    noise = whole @ whole.T
    batch = data.draw(st.integers(0, batches - 1))
    hers = np.zeros((batches * n, n))
    hers[batch * n : (batch + 1) * n] = np.eye(n)
    # The largest distance of a unit vector in that batch, in terms of the noise.
    found = np.linalg.eigvalsh(hers.T @ np.linalg.solve(noise, hers)).max()
    assert math.sqrt(found) <= draw_size(batches) * (1 + 1e-9)


@pytest.mark.parametrize("sigma", [40.0, 1e5, 2.0**40])
def test_noise_at_places_is_the_noise_of_a_whole_table_there(sigma):
    whole = gaussian_noise(KEY, 5, 9000, sigma)
    some = np.random.default_rng(0).permutation(9000)[:4000]
    assert np.array_equal(gaussian_noise_at(KEY, 5, some, sigma), whole[some])


def test_running_sums_have_the_noise_that_is_said_and_every_batch_has_fresh_noise():
    n, batches, sigma = 20_000, 12, 3e4
    total, parts = np.zeros(n), []
    for batch in range(batches):
        rounds = tuple(range(2 * batch, -1, -2))
        draws = Draws(rounds, (np.arange(n),), (np.full(n, batch),))
        noise = noise_on([(n, sigma * draw_size(batches))], KEY, 2 * batch, draws)
        parts.append(noise)
        total += noise
        wanted = sigma * deviation(batch + 1, batches, True)
        assert np.std(total) == pytest.approx(wanted, rel=0.03)
        assert np.std(noise) > 0.97 * sigma * draw_size(batches)
    assert abs(np.corrcoef(parts[0], parts[1])[0, 1] + 0.5 / math.sqrt(1.25)) < 0.03


def test_numbers_that_came_later_have_the_noise_of_fewer_batches():
    n, batches, sigma, came = 20_000, 6, 3e4, 3
    total = np.zeros(n)
    for batch in range(came, batches):
        rounds = tuple(range(batch, -1, -1))
        draws = Draws(rounds, (np.arange(n)[::-1],), (np.full(n, batch - came),))
        total += noise_on([(n, sigma * draw_size(batches))], KEY, batch, draws)
    assert np.std(total) == pytest.approx(sigma * deviation(3, batches, True), rel=0.03)


def test_draws_that_would_be_used_twice_are_refused():
    lags = np.zeros(2, np.int64)
    with pytest.raises(ConfigError, match="draws of its own"):
        noise_on([(2, 1e5)], KEY, 3, Draws((3,), (np.array([4, 4]),), (lags,)))
    with pytest.raises(ConfigError, match="begins with the draws"):
        noise_on([(2, 1e5)], KEY, 3, Draws((2,), (np.array([4, 5]),), (lags,)))
    with pytest.raises(ConfigError, match="used once"):
        noise_on([(2, 1e5)], KEY, 3, Draws((3, 3), (np.array([4, 5]),), (lags,)))
