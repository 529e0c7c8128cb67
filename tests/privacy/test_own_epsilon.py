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
from sottovoce.privacy.own_epsilon import (
    EVERY_STAGE,
    MOST_STAGES,
    OwnEpsilon,
    beyond,
    mark_of,
    marked,
)
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
    assert not devices.room(zeros, fresh + 0b11, SHARES).any()  # all stages of the period are done
    after = devices.costs(0, fresh, SHARES)
    assert devices.room(after, fresh + 1, SHARES)[4]
    assert not devices.room(after + 0.01, fresh + 1, SHARES)[4]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda n: st.tuples(
            st.lists(st.floats(0.05, 1.0), min_size=n, max_size=n),
            st.integers(1, 5),
            st.lists(st.integers(0, 60), max_size=12, unique=True).map(sorted),
        )
    ),
    st.floats(0.125, 4.0, width=32),
    st.sampled_from([1.0, 2.0, 3.0, np.inf]),
)
def test_in_whatever_batch_she_comes_a_period_costs_her_epsilon_and_her_limit_holds(
    drawn, epsilon, times
):
    """She is there in these rounds, and sends where she may."""
    weights, batches, there = drawn
    shares = tuple(w / math.fsum(weights) for w in weights)
    stages = len(shares)
    choice = Choice(epsilon=epsilon, total_epsilon=times * epsilon)
    devices = bound(OwnEpsilon(4.0), choice)
    spent, sent, by_period = np.zeros(1), np.zeros(1, np.int64), {}
    done = set()
    for round in there:
        period, stage = round // (stages * batches), round % stages
        may = devices.room(spent, sent, shares, round, batches)[0]
        if (period, stage) in done:
            assert not may
        elif len(by_period) < times or period in by_period:
            assert may, "she has not been in this stage, and there is room"
        if not may:
            continue
        cost = devices.costs(round, sent, shares, batches)
        spent += cost
        by_period[period] = by_period.get(period, 0.0) + cost[0]
        sent = marked(sent, mark_of(round, stages, batches))
        done.add((period, stage))
        assert not devices.room(spent, sent, shares, round, batches)[0]  # never twice
    assert spent[0] <= choice.total_epsilon * (1 + 1e-9)
    own = devices.epsilons[0]
    for period, cost in by_period.items():
        mine = math.fsum(shares[stage] for p, stage in done if p == period)
        exact = price(devices.settings.sigma / (devices.scale[0] * math.sqrt(mine)), 1)
        assert cost == pytest.approx(exact, rel=1e-7)
        assert cost <= own * (1 + 1e-9)


def test_who_missed_the_second_stage_pays_in_a_later_batch_what_it_would_have_cost():
    devices = bound(OwnEpsilon(4.0), Choice(epsilon=1.0))
    once = marked(NONE, mark_of(0, 2, 12))
    at_once = devices.costs(1, once, SHARES, 12)
    for round in range(3, 24, 2):
        assert devices.room(NONE + 0.0, once, SHARES, round, 12)[0]
        assert not devices.room(NONE + 0.0, once, SHARES, round - 1, 12)[0]
        assert devices.costs(round, once, SHARES, 12) == at_once
    # The next period begins anew, and nobody goes back.
    assert devices.costs(24, once, SHARES, 12) == devices.costs(0, NONE, SHARES, 12)
    later = marked(once, mark_of(24, 2, 12))
    assert not devices.room(NONE + 0.0, later, SHARES, 1, 12)[0]
    assert devices.room(NONE + 0.0, later, SHARES, 25, 12)[0]


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(7)), st.integers(1, 3), st.integers(1, 3))
def test_marks_in_any_order_say_the_same(order, stages, batches):
    found = NONE
    for round in order:
        found = marked(found, mark_of(round, stages, batches))
    period = 6 // (stages * batches)
    bits = {round % stages for round in range(7) if round // (stages * batches) == period}
    assert found[0] == period << 8 | sum(1 << bit for bit in bits)


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


# --- other choices and other terms in the middle of a period --------------------------------------

DIVISIONS = [((0.3, 0.7), 2), ((0.5, 0.5), 1), ((0.27, 0.63, 0.1), 4)]
LEVELS = st.sampled_from([0.01, 0.25, 1.0, 2.5, 8.0, 64.0])
VISIT = st.tuples(st.integers(1, 4), LEVELS, LEVELS, st.sampled_from(DIVISIONS))


@settings(max_examples=150, deadline=None)
@given(st.lists(VISIT, min_size=1, max_size=7), st.sampled_from([3.0, 12.0, np.inf]), st.booleans())
def test_whatever_she_chooses_and_the_terms_say_meanwhile_no_less_is_booked_than_was_told(
    visits, limit, divided_alike
):
    """She is there in some rounds, with another ε, under other terms, and sends where she may."""
    left, booked, round = [], 0.0, -1
    for step, epsilon, most, (shares, batches) in visits:
        if divided_alike:
            shares, batches = DIVISIONS[0]
        round += step
        release = OwnEpsilon(most)
        devices = bound(release, Choice(epsilon=epsilon, total_epsilon=limit))
        sent = NONE
        for before, _, _ in left:
            sent = marked(sent, mark_of(before, len(shares), batches))
        period = [
            (share, mu)
            for before, share, mu in left
            if mark_of(before, len(shares), batches) >> MOST_STAGES == sent[0] >> MOST_STAGES
        ]
        now = release.loudness(float(np.float32(epsilon)))
        more = np.array([beyond(period, int(sent[0]) & EVERY_STAGE, shares, now)])
        if not devices.room(NONE + booked, sent, shares, round, batches, more)[0]:
            continue
        (cost,) = devices.costs(round, sent, shares, batches, more)
        assert cost >= 0.0
        booked += cost
        left.append((round, shares[round % len(shares)], now))
        assert booked <= limit * (1 + 1e-9)
    if not left:
        return
    told = [share * mu**2 for _, share, mu in left]
    # Sums of one period or another: Gaussians that add up to one, whose price is exact.
    assert booked >= price(1 / math.sqrt(math.fsum(told)), 1) * (1 - 1e-6)
    if divided_alike:
        periods = {}
        for before, share, mu in left:
            periods.setdefault(before // 4, []).append(share * mu**2)
        exact = math.fsum(price(1 / math.sqrt(math.fsum(p)), 1) for p in periods.values())
        assert booked == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(("first", "then"), [(1.0, 8.0), (0.1, 8.0), (8.0, 1.0), (1.0, 64.0)])
def test_who_speaks_up_in_the_middle_of_a_period_pays_for_all_that_she_has_told(first, then):
    release, once = OwnEpsilon(64.0), marked(NONE, mark_of(0, 2, 1))
    one, two = bound(release, Choice(epsilon=first)), bound(release, Choice(epsilon=then))
    mu = [release.loudness(float(np.float32(each))) for each in (first, then)]
    more = np.array([beyond([(0.5, mu[0])], 1, (0.5, 0.5), mu[1])])
    booked = one.costs(0, NONE, (0.5, 0.5))[0] + two.costs(1, once, (0.5, 0.5), 1, more)[0]
    told = math.sqrt(0.5 * mu[0] ** 2 + 0.5 * mu[1] ** 2)
    assert booked == pytest.approx(price(1 / told, 1), rel=1e-7)
    assert min(first, then) < booked < max(first, then)


def test_where_nothing_has_changed_nothing_is_beyond_to_the_last_bit():
    release = OwnEpsilon(8.0)
    for epsilon in (0.001, 0.1, 1.7, 8.0):
        mu = release.loudness(epsilon)
        for stages in range(8):
            shares = (0.27, 0.63, 0.1)
            then = [(share, mu) for k, share in enumerate(shares) if stages >> k & 1]
            assert beyond(then[::-1], stages, shares, mu) == 0.0
    assert beyond([(0.3, 1.0)], 1, (0.3, 0.7), 0.0) == 0.0
