"""An ε of one's own: what it costs, what is booked, and that nobody is asked twice."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.errors import ConfigError, ConsentError
from sottovoce.privacy.central import price
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams

SHARES = (0.1, 0.9)
NONE = np.zeros(1, np.int64)


def bound(release, *choices):
    users = np.arange(len(choices))
    consent = Consent.of(users, choices, users)
    nothing = Interactions.from_pairs([], [], n_users=len(choices), n_items=1)
    return release.bind(users, consent, nothing, Streams.from_seed(0), bytes(32))


@settings(max_examples=50, deadline=None)
@given(st.floats(0.015625, 8.0, width=32), st.floats(0.05, 0.95))
def test_both_rounds_cost_what_she_chose_and_each_its_own_part(epsilon, first):
    release = OwnEpsilon(8.0)
    devices = bound(release, Choice(epsilon=epsilon))
    shares = (first, 1 - first)
    one = devices.costs(0, NONE, shares)[0]
    two = devices.costs(1, NONE + 1, shares)[0]
    missed = devices.costs(1, NONE, shares)[0]
    assert one + two == pytest.approx(epsilon, rel=1e-8)
    c = devices.scale[0]
    assert one == pytest.approx(price(release.sigma / (c * math.sqrt(first)), 1), rel=1e-9)
    assert missed == pytest.approx(price(release.sigma / (c * math.sqrt(1 - first)), 1), rel=1e-9)
    assert two < missed < epsilon  # to have been there before makes the second round cheaper


def test_an_independent_accountant_finds_the_same():
    exact = pytest.importorskip("dp_accounting").get_epsilon_gaussian
    accounting = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    release = OwnEpsilon(8.0)
    for epsilon in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0):
        devices = bound(release, Choice(epsilon=epsilon))
        spent = devices.costs(0, NONE, SHARES)[0] + devices.costs(1, NONE + 1, SHARES)[0]
        rounds = [
            accounting.from_gaussian_mechanism(
                release.sigma / (devices.scale[0] * math.sqrt(share)),
                value_discretization_interval=1e-5,
            )
            for share in SHARES
        ]
        assert spent == pytest.approx(exact(release.sigma / devices.scale[0], 1e-6), abs=1e-6)
        # The same without our composition of the rounds, by numbers.
        both = rounds[0].compose(rounds[1])
        # Its answer is an upper bound, by up to the width of its cells.
        found = both.get_epsilon_for_delta(release.delta)
        assert spent <= found <= spent + 3e-5
        assert both.get_delta_for_epsilon(spent) == pytest.approx(release.delta, rel=2e-3)


def test_who_permits_nothing_is_not_asked_and_who_permits_more_pays_no_more():
    release = OwnEpsilon(2.0)
    devices = bound(
        release,
        Choice(),
        Choice(epsilon=50.0),
        Choice(epsilon=2.0),
        Choice(epsilon=1.0, total_epsilon=0.9),
        Choice(epsilon=1.0, total_epsilon=1.0),
    )
    assert devices.scale[0] == 0.0
    assert devices.scale[1] == devices.scale[2] == 1.0
    zeros, fresh = np.zeros(5), np.zeros(5, np.int64)
    assert devices.room(zeros, fresh, SHARES).tolist() == [False, True, True, False, True]
    assert not devices.room(zeros, fresh + 2, SHARES).any()  # all rounds of the period are done
    after = devices.costs(0, fresh, SHARES)
    assert devices.room(after, fresh + 1, SHARES)[4]
    assert not devices.room(after + 0.01, fresh + 1, SHARES)[4]


def test_bad_settings_and_choices_get_a_sentence():
    for epsilon in (0.0, -1.0, 65.0, math.nan):
        with pytest.raises(ConfigError, match=r"release\.epsilon"):
            OwnEpsilon(epsilon)
    with pytest.raises(ConfigError, match=r"release\.delta"):
        OwnEpsilon(delta=0.1)
    with pytest.raises(ConfigError, match="epsilon must lie in"):
        Choice(epsilon=-1.0)
    with pytest.raises(ConsentError, match="max_reports is set"):
        bound(OwnEpsilon(), Choice(epsilon=1.0, max_reports=3))
    words = OwnEpsilon(2.0).objection
    assert "permits none" in words(Choice())
    assert "permits 0.5 in all" in words(Choice(epsilon=1.0, total_epsilon=0.5))
    assert "--reports 0" in words(Choice(epsilon=1.0, max_reports=2))
    assert words(Choice(epsilon=1.0)) == words(Choice(epsilon=99.0)) == ""
    assert OwnEpsilon(2.0).cost(Choice(epsilon=99.0)) == 2.0
    assert OwnEpsilon(2.0).cost(Choice()) is None


def test_her_epsilon_is_in_no_message_and_not_printed():
    devices = bound(OwnEpsilon(), Choice(epsilon=0.123))
    assert "0.12" not in repr(devices)
