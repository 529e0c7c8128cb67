"""Both certificates of what one user has sent, over tiers, batches and federations."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sottovoce.errors import ConfigError
from sottovoce.privacy.accountant import MOST_USERS, Sent, account, certify, rounds_left
from sottovoce.privacy.clones import (
    MOST_REPORTS,
    LossDistribution,
    composed_epsilon,
    jointly_composed_epsilon,
    shuffled_report,
)

DELTA = 1e-6


@pytest.mark.parametrize(
    ("epsilon", "reports", "rounds", "users"),
    [
        (2.5, 100, 20, 6040),
        (2.5, 100, 20, 100),
        (0.5, 10, 7, 1000),
        (1.0, 1, 1, 2),
        (8.0, 3, 2, 50),
    ],
)
def test_one_tier_is_what_certify_says(epsilon, reports, rounds, users):
    expected = certify(epsilon, reports, rounds, users)
    found = account([Sent(reports * rounds, epsilon, users)])
    assert (found.reports, found.delta) == (reports * rounds, expected.delta)
    assert found.without_proxy == pytest.approx(expected.without_proxy, rel=1e-12)
    assert found.with_proxy == expected.with_proxy


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9])
@pytest.mark.parametrize(
    ("epsilon", "reports", "users"), [(2.5, 2000, 6040), (0.5, 400, 300), (4.0, 30, 1000)]
)
def test_two_groups_that_hardly_differ_cost_what_one_does(epsilon, reports, users, share):
    """A grid of another step for one of them, and still the same figure."""
    one = account([Sent(reports, epsilon, users)]).with_proxy
    first = max(1, int(share * reports))
    for parts in (
        [Sent(first, epsilon, users), Sent(reports - first, epsilon * (1 + 1e-9), users)],
        [Sent(reports - first, epsilon * (1 - 1e-9), users), Sent(first, epsilon, users)],
    ):
        both = account(parts).with_proxy
        assert one * (1 - 1e-6) <= both <= one * (1 + 2e-3)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 300),
            st.floats(0.05, 4.0),
            st.sampled_from([0, 1, 2, 20, 300, 5000]),
        ),
        min_size=1,
        max_size=3,
    )
)
@settings(max_examples=25, deadline=None)
def test_together_costs_more_than_each_and_no_more_than_the_sum(kinds):
    sent = [Sent(*kind) for kind in kinds]
    together = account(sent, DELTA)
    alone = [account([one], DELTA / len(sent)) for one in sent]
    assert together.without_proxy == pytest.approx(sum(n * e for n, e, _ in kinds), rel=1e-12)
    assert together.with_proxy <= together.without_proxy
    # Basic composition, with its share of δ for each, is a bound as well; ours is hardly above it.
    assert together.with_proxy <= 1.01 * sum(one.with_proxy for one in alone) + 1e-9
    for one in sent:
        assert together.with_proxy >= account([one], DELTA).with_proxy * (1 - 1e-2) - 1e-12


def gaussian(mu, step):
    """The loss of a Gaussian mechanism with sensitivity over noise of mu, rounded up on a grid."""
    import numpy as np

    places = np.arange(
        math.floor((mu**2 / 2 - 9 * mu) / step), math.ceil((mu**2 / 2 + 9 * mu) / step)
    )
    edges = stats.norm.cdf(step * places, mu**2 / 2, mu)
    mass = np.diff(edges, prepend=0.0)
    mass[-1] += 1 - edges[-1]
    return LossDistribution(step, int(places[0]), mass, 0.0, math.inf)


def test_different_losses_add_up_to_what_is_known_in_closed_form():
    """Gaussian mechanisms together are one whose mu² is the sum; δ of that has a formula."""
    from scipy.optimize import brentq

    parts = [(gaussian(0.05, 0.0005), 60), (gaussian(0.2, 0.0007), 9), (gaussian(0.4, 0.003), 1)]
    mu = math.sqrt(60 * 0.05**2 + 9 * 0.2**2 + 0.4**2)

    def delta(epsilon):
        def phi(x):
            return float(stats.norm.cdf(x))

        return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)

    exact = brentq(lambda epsilon: delta(epsilon) - DELTA, 0, 50)
    found = jointly_composed_epsilon(parts, DELTA)
    assert exact <= found <= 1.02 * exact
    # And a composition that left one kind out would be caught.
    assert jointly_composed_epsilon(parts[:2], DELTA) < exact


def test_many_kinds_at_once_are_quick_and_valid():
    sent = [Sent(100 * (k + 1), 0.1 * (k + 1), 100 * (k + 1)) for k in range(12)]
    found = account(sent)
    assert max(account([s]).with_proxy for s in sent) < found.with_proxy < found.without_proxy


def test_no_proxy_no_crowd_and_nothing_to_vouch_for():
    assert account([]) == account([Sent(0, 2.0, 100)])
    assert (account([]).without_proxy, account([]).with_proxy) == (0.0, 0.0)
    for batch in (0, 1):
        alone = account([Sent(30, 0.5, batch)])
        assert alone.with_proxy == alone.without_proxy == 15.0
    mixed = account([Sent(30, 0.5, 0), Sent(200, 0.5, 5000)])
    assert mixed.with_proxy == pytest.approx(15.0 + account([Sent(200, 0.5, 5000)]).with_proxy)
    lost = account([Sent(30, 0.5, 500), Sent(1, math.inf, 0)])
    assert math.isinf(lost.without_proxy)
    assert math.isinf(lost.with_proxy)


def test_what_is_beyond_the_accountant_counts_in_full():
    many = account([Sent(MOST_REPORTS + 1, 0.5, 1000)])
    assert many.with_proxy == many.without_proxy
    loud = account([Sent(2, 60.0, 1000), Sent(100, 0.5, 1000)])
    assert loud.with_proxy == pytest.approx(120 + account([Sent(100, 0.5, 1000)]).with_proxy)
    crowd = account([Sent(10, 0.5, 10 * MOST_USERS)])
    assert 0 < crowd.with_proxy < crowd.without_proxy
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigError):
            account([Sent(1, 1.0, 10)], delta)


def test_none_cost_nothing_and_the_same_kind_twice_is_one():
    one = shuffled_report(100, 1.0, DELTA)
    assert jointly_composed_epsilon([], DELTA) == 0.0
    assert jointly_composed_epsilon([(one, 0)], DELTA) == 0.0
    assert jointly_composed_epsilon([(one, 5), (one, 7)], DELTA) == pytest.approx(
        composed_epsilon(one, 12, DELTA), rel=1e-9
    )


@pytest.mark.parametrize(
    ("limit", "spent", "epsilon", "reports", "left"),
    [
        (0.3, 0.0, 0.1, 1, 3),
        (0.3, 0.1 + 0.1, 0.1, 1, 1),
        (0.3, 0.1 + 0.1 + 0.1, 0.1, 1, 0),
        (1000, 250, 2.5, 100, 3),
        (1000, 250.001, 2.5, 100, 2),
        (10, 500, 2.5, 100, 0),
        (0, 0, 1, 1, 0),
        (math.inf, 1e9, 1, 1, math.inf),
    ],
)
def test_rounds_left(limit, spent, epsilon, reports, left):
    assert rounds_left(limit, spent, epsilon, reports) == left
