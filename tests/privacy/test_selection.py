"""The price of choosing: against the theorems' formulae, their known limits, and exact divergences
of the best of K of small mechanisms."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from sottovoce.errors import ConfigError
from sottovoce.privacy.central import price
from sottovoce.privacy.selection import (
    Loss,
    PoissonTrials,
    TruncatedNegativeBinomial,
    epsilon_of,
    selected,
)

SHAPES = (-0.5, 0.0, 0.5, 1.0, 3.0)


def law(trials, most):
    """Probabilities of K = 1, 2, … by the definition in the paper."""
    k = np.arange(1, most)
    shape, gamma = trials.shape, trials.gamma
    if shape == 0.0:
        return (1 - gamma) ** k / (k * math.log(1 / gamma))
    return (1 - gamma) ** k / (gamma**-shape - 1) * np.cumprod((k - 1 + shape) / k)


def generating(trials, x):
    """E[x^K]."""
    if isinstance(trials, PoissonTrials):
        return np.exp(trials.mean * (x - 1))
    shape, gamma = trials.shape, trials.gamma
    inner = 1 - (1 - gamma) * x
    if shape == 0.0:
        return np.log(inner) / math.log(gamma)
    return (inner**-shape - 1) / (gamma**-shape - 1)


def best_of(chances, function):
    """How the best of K independent draws is distributed, later places being better; where K = 0
    all places are alike."""
    below = np.concatenate([[0.0], np.cumsum(chances)])
    below[-1] = 1.0
    return np.diff(function(below)) + function(np.zeros(1)) / len(chances)


def divergence(p, q, order):
    return float(logsumexp(order * np.log(p) + (1 - order) * np.log(q))) / (order - 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.5, 5.0, 30.0])
def test_the_distribution_has_the_mean_that_was_asked_for(shape, mean):
    trials = TruncatedNegativeBinomial.of_mean(mean, shape)
    chances = law(trials, 200_000)
    assert chances.sum() == pytest.approx(1.0, abs=1e-6)
    assert trials.mean == pytest.approx(mean)
    assert chances @ np.arange(1, 200_000) == pytest.approx(mean, rel=1e-4)
    half = 0.5 ** np.arange(1, 60)
    assert generating(trials, np.array(0.5)) == pytest.approx(chances[:59] @ half)


def test_the_geometric_one_costs_three_times_a_pure_epsilon_and_the_logarithmic_one_twice():
    for shape, factor in ((1.0, 3.0), (0.0, 2.0), (-0.5, 1.5)):
        trials = TruncatedNegativeBinomial.of_mean(1e6, shape)
        assert trials.renyi(Loss(pure=(0.7,)), math.inf) == pytest.approx(factor * 0.7)


def test_formulae_are_those_of_the_paper():
    loss, order = Loss(squares=0.04), 16.0
    trials = TruncatedNegativeBinomial(1.0, 0.1)
    hats = 1.0 + np.geomspace(1e-3, 1e4, 20_001)
    middle = min(((1 - 1 / h) * h * 0.02 + math.log(10) / h) for h in hats)
    exact = order * 0.02 + 2 * min(middle, math.log(10)) + math.log(10) / 15
    assert trials.mean == pytest.approx(10.0)
    # It tries fewer orders, so it is a little above and never below.
    assert exact - 1e-9 <= trials.renyi(loss, order) <= 1.01 * exact
    poisson = PoissonTrials(10.0)
    hat = loss.delta(math.log(1 + 1 / 15))
    assert poisson.renyi(loss, order) == pytest.approx(order * 0.02 + 10 * hat + math.log(10) / 15)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.02, 1.0), st.floats(-1.0, 1.0)), min_size=2, max_size=5),
    st.sampled_from(SHAPES),
    st.floats(1.2, 30.0),
    st.floats(1.1, 60.0),
    st.booleans(),
)
def test_no_small_mechanism_tells_more_than_the_bound(places, shape, mean, order, poisson):
    """Two neighbours' distributions over a few results; the best of K is computed exactly."""
    p = np.array([weight for weight, _ in places])
    q = np.array([weight * math.exp(tilt) for weight, tilt in places])
    p, q = p / p.sum(), q / q.sum()
    ratio = float(np.abs(np.log(p / q)).max())
    loss = Loss(pure=(ratio,))
    trials = PoissonTrials(mean) if poisson else TruncatedNegativeBinomial.of_mean(mean, shape)
    told = (best_of(one, lambda x: generating(trials, x)) for one in (p, q))
    told = divergence(*told, order)
    assert told <= trials.renyi(loss, order) + 1e-6


def test_a_fixed_number_of_trainings_breaks_the_bound():
    """The test above would notice: the number has to be drawn."""
    n, order = 400, 200.0
    p, q = np.array([0.9 * math.exp(-0.5), 1 - 0.9 * math.exp(-0.5)]), np.array([0.9, 0.1])
    loss = Loss(pure=(float(np.abs(np.log(p / q)).max()),))
    trials = TruncatedNegativeBinomial.of_mean(n, 0.0)

    def told(function):
        return divergence(best_of(q, function), best_of(p, function), order)

    assert told(lambda x: generating(trials, x)) <= trials.renyi(loss, order)
    assert told(lambda x: x**n) > trials.renyi(loss, order)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.01, 2.0), st.integers(2, 200))
def test_choosing_costs_no_less_than_one_training(distance, trials):
    loss = Loss(squares=distance**2)
    assert selected(loss, trials) >= loss.epsilon() - 1e-9
    assert selected(loss, trials) <= selected(loss, 2 * trials) + 1e-6


def test_choosing_among_many_costs_less_than_telling_all():
    loss = Loss(squares=price_to_distance(1.0) ** 2)
    assert loss.epsilon() == pytest.approx(1.0, rel=1e-6)
    told = selected(loss, 100)
    assert 1.0 < told < 4.0 < loss.times(100).epsilon()


def price_to_distance(epsilon):
    from sottovoce.privacy.own_epsilon import distance

    return distance(epsilon, 1e-6)


def test_losses_add_up_as_mechanisms_do():
    assert Loss(squares=0.25).times(9).epsilon() == pytest.approx(price(2.0, 9))
    assert (Loss(pure=(0.5,)) + Loss(pure=(1.5,))).epsilon() <= 2.0
    assert Loss(pure=(0.01,)).times(10_000).epsilon() < 10.0  # far below 100
    mixed = Loss(0.25, (0.5,))
    assert max(Loss(0.25).epsilon(), 0.4) < mixed.epsilon() < Loss(0.25).epsilon() + 0.5 + 0.3
    assert Loss().epsilon() == 0.0
    assert Loss(pure=(math.inf,)).epsilon() == math.inf
    assert selected(Loss(pure=(math.inf,)), 30) == math.inf
    for distance in (0.1, 1.0, 3.0):
        # The curve gives a little more than the exact price, and never less.
        exact = Loss(squares=distance**2).epsilon()
        assert exact <= epsilon_of(Loss(squares=distance**2).renyi) < 1.25 * exact + 0.02


def test_what_is_no_cost_or_number_is_refused():
    with pytest.raises(ConfigError):
        Loss(squares=-1.0)
    with pytest.raises(ConfigError):
        TruncatedNegativeBinomial(-1.0, 0.5)
    with pytest.raises(ConfigError):
        TruncatedNegativeBinomial.of_mean(0.5)
    with pytest.raises(ConfigError):
        PoissonTrials(0.0)
