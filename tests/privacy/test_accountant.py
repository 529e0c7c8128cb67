"""The certificates: the published figures, the truth by enumeration, two independent oracles, and
the directions in which a cost may move."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from sottovoce.errors import ConfigError
from sottovoce.privacy import clones
from sottovoce.privacy.accountant import (
    Certificate,
    certify,
)
from sottovoce.privacy.clones import (
    MOST_REPORTS,
    composed_epsilon,
    shuffled_report,
)

CELLS = [(1.0, 100, 20), (2.5, 1, 1), (2.5, 100, 1), (2.5, 100, 20), (2.5, 250, 20), (5.0, 100, 20)]
# Certified ε at δ = 1e-6 for each of the cells above; the figure left out is only known as "> 500".
CERTIFIED = {
    1_000: (12.1, 0.832, 10.2, 74.7, 151, None),
    10_000: (3.18, 0.228, 2.72, 15.6, 28.1, 110),
    50_000: (1.32, 0.096, 1.13, 5.94, 10.2, 33.8),
    75_040: (1.07, 0.077, 0.907, 4.71, 8.01, 25.8),
}
# One report, δ = 1e-6, for ε0 = 0.5, 1, 2, 4.
ONE_REPORT = {
    100: (0.24, 0.64, 2.00, 4.00),
    500: (0.10, 0.27, 0.82, 4.00),
    943: (0.07, 0.19, 0.56, 3.99),
    6040: (0.03, 0.07, 0.20, 0.81),
}


def shuffled(users, epsilon, delta, times=1):
    return composed_epsilon(shuffled_report(users, epsilon, delta), times, delta)


# --- published figures ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "users", [pytest.param(n, marks=pytest.mark.slow) if 1e3 < n < 7e4 else n for n in CERTIFIED]
)
def test_the_table_of_certified_costs(users):
    for (epsilon, reports, rounds), expected in zip(CELLS, CERTIFIED[users], strict=True):
        found = certify(epsilon, reports, rounds, users)
        assert found.without_proxy == reports * epsilon * rounds
        if expected is None:
            assert found.with_proxy > 500
        else:
            assert found.with_proxy == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("users", ONE_REPORT)
def test_the_table_of_single_reports(users):
    for epsilon, expected in zip((0.5, 1.0, 2.0, 4.0), ONE_REPORT[users], strict=True):
        assert shuffled(users, epsilon, 1e-6) == pytest.approx(expected, abs=0.005001)


def test_inside_the_interval_that_the_authors_publish():
    assert 0.1675 < shuffled(100_000, 4.0, 1e-6) < 0.1728


@pytest.mark.parametrize(("users", "epsilon"), [(943, 0.5), (943, 1.0), (6040, 2.0), (75_040, 2.5)])
def test_no_worse_than_the_closed_form(users, epsilon):
    """That of the same paper, where its condition holds."""
    e, delta = math.exp(epsilon), 1e-6
    assert epsilon <= math.log(users / (16 * math.log(2 / delta)))
    root = 8 * math.sqrt(e * math.log(4 / delta)) / math.sqrt(users) + 8 * e / users
    assert shuffled(users, epsilon, delta) < math.log1p((e - 1) / (e + 1) * root)


def test_the_largest_cell_looks_at_a_million_cases_or_two(monkeypatch):
    """Eighty times as many users are seven times as many cases."""
    looked_at, binomial = [], clones._binomial

    def counted(*given):
        lowest, chances = binomial(*given)
        looked_at.append(len(chances))
        return lowest, chances

    monkeypatch.setattr(clones, "_binomial", counted)
    clones._shuffled_report.cache_clear()
    certify(2.5, 250, 20, 75_040)
    assert len(looked_at) < 2000
    assert sum(looked_at) < 2e6


# --- the truth, by enumeration -------------------------------------------------------------------


def histograms(randomiser, inputs):
    """The exact law of the shuffled reports of these users: counts of each output -> chance."""
    law = {(0,) * randomiser.shape[1]: 1.0}
    for x in inputs:
        longer = {}
        for counts, chance in law.items():
            for output, p in enumerate(randomiser[x]):
                more = (*counts[:output], counts[output] + 1, *counts[output + 1 :])
                longer[more] = longer.get(more, 0.0) + chance * p
        law = longer
    return law


def true_epsilon(p, q, delta):
    """The smallest ε ≥ 0 for which sum (p - e^ε q)+ is at most δ; p and q are arrays."""
    loss = np.log(p / q)
    order = np.argsort(-loss)
    loss, p, q = loss[order], p[order], q[order]
    above_p, above_q = np.cumsum(p), np.cumsum(q)
    # Between two losses the δ is a straight line in e^ε.
    for i in range(len(loss)):
        floor = loss[i + 1] if i + 1 < len(loss) else -math.inf
        if above_p[i] - math.exp(min(floor, 700.0)) * above_q[i] > delta:
            return max(0.0, math.log((above_p[i] - delta) / above_q[i]))
    return 0.0


def true_cost(randomiser, users, times, delta):
    """The worst ε over all neighbouring inputs of so few users, repeated `times` times."""
    worst = 0.0
    n_inputs = len(randomiser)
    for others in itertools.combinations_with_replacement(range(n_inputs), users - 1):
        laws = [histograms(randomiser, (x, *others)) for x in range(n_inputs)]
        for one, other in itertools.permutations(range(n_inputs), 2):
            p, q = (np.array([laws[x][key] for key in laws[one]]) for x in (one, other))
            ps, qs = np.ones(1), np.ones(1)
            for _ in range(times):
                ps, qs = np.outer(ps, p).ravel(), np.outer(qs, q).ravel()
            worst = max(worst, true_epsilon(ps, qs, delta))
    return worst


def bits(epsilon, coordinates):
    """Our randomiser: a coordinate at random, and a noisy bit of it. Inputs: all sign vectors."""
    keep = 1 / (1 + math.exp(-epsilon))
    rows = []
    for signs in itertools.product((0, 1), repeat=coordinates):
        rows.append([keep if bit == sign else 1 - keep for sign in signs for bit in (0, 1)])
    return np.array(rows) / coordinates


def responses(epsilon, values):
    """Randomised response over several values."""
    table = np.full((values, values), 1.0) + (math.exp(epsilon) - 1) * np.eye(values)
    return table / table.sum(axis=1, keepdims=True)


def extremal(epsilon, pattern):
    """A randomiser whose chances differ by e^ε wherever the 0/1 pattern differs; rows sum to one
    through a last output that everyone gives."""
    table = np.where(np.array(pattern, dtype=bool), math.exp(epsilon), 1.0)
    table /= 1.5 * table.sum(axis=1).max()
    return np.column_stack([table, 1.0 - table.sum(axis=1)])


RANDOMISERS = {
    "one bit": lambda e: bits(e, 1),
    "a bit of two": lambda e: bits(e, 2),
    "three values": lambda e: responses(e, 3),
    "four values": lambda e: responses(e, 4),
}
WAYS = [(2, 1), (3, 1), (4, 1), (6, 1), (2, 2), (3, 2), (2, 3)]


@pytest.mark.parametrize("name", RANDOMISERS)
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5, 5.0])
def test_never_below_the_truth(name, epsilon):
    randomiser = RANDOMISERS[name](epsilon)
    for users, times in WAYS:
        if randomiser.shape[1] == 4 and users + times > 5:
            continue
        for delta in (1e-6, 1e-3, 0.05):
            truth = true_cost(randomiser, users, times, delta)
            assert shuffled(users, epsilon, delta, times) >= truth * (1 - 1e-12), (users, times)


@settings(max_examples=40, deadline=None)
@given(
    pattern=st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=2, max_size=3),
    epsilon=st.floats(0.1, 4.0),
    users=st.integers(1, 4),
    delta=st.sampled_from([1e-6, 1e-3, 0.03]),
)
def test_never_below_the_truth_of_any_randomiser(pattern, epsilon, users, delta):
    randomiser = extremal(epsilon, pattern)
    ratios = randomiser.max(axis=0) / randomiser.min(axis=0)
    assume(ratios.max() <= math.exp(epsilon) * (1 + 1e-12))
    assert shuffled(users, epsilon, delta) >= true_cost(randomiser, users, 1, delta) * (1 - 1e-12)


def test_a_user_alone_has_no_crowd():
    """With one user the bound is randomised response itself, to the last digits."""
    for epsilon, delta in itertools.product((0.5, 2.5, 8.0), (1e-9, 1e-6, 1e-3)):
        truth = true_cost(bits(epsilon, 1), 1, 1, delta)
        assert shuffled(1, epsilon, delta) == pytest.approx(truth, rel=1e-6)


PLANTED = {
    "everyone is a clone": (lambda e: 1.0, 1),
    "the crowd is counted in reports": (clones.clone_rate, 4),
    "the report is half as loud": (lambda e: math.exp(-e / 2), 1),
}


@pytest.mark.parametrize("error", PLANTED)
def test_a_planted_error_is_caught(error, monkeypatch, request):
    """The comparison above has teeth: a bound that is a little too good falls below the truth."""
    rate, crowd = PLANTED[error]
    monkeypatch.setattr(clones, "clone_rate", rate)
    clones._shuffled_report.cache_clear()
    request.addfinalizer(clones._shuffled_report.cache_clear)
    caught = 0
    for name, epsilon, (users, times) in itertools.product(RANDOMISERS, (1.0, 2.5), WAYS[:4]):
        if name == "four values" and users > 4:
            continue
        for delta in (1e-6, 1e-3, 0.05):
            truth = true_cost(RANDOMISERS[name](epsilon), users, times, delta)
            caught += shuffled(crowd * users, epsilon, delta, times) < truth * (1 - 1e-9)
    assert caught > 0


def test_the_linked_reports_of_a_pool_cost_no_more_than_separate_batches():
    """k = 2 reports of each of n users in one pool: its exact law is inside the certificate."""
    for users, epsilon, delta in itertools.product((1, 2, 3), (0.5, 1.5, 3.0), (1e-6, 1e-2)):
        single = bits(epsilon, 1)
        twice = np.array([np.outer(row, row).ravel() for row in single])
        # Two reports give 0, 1 or 2 ones; the pool shows their sum.
        ones = np.column_stack([twice[:, 0], twice[:, 1] + twice[:, 2], twice[:, 3]])
        worst = 0.0
        for others in itertools.combinations_with_replacement((0, 1), users - 1):
            laws = []
            for x in (0, 1):
                law = np.ones(1)
                for user in (x, *others):
                    law = np.convolve(law, ones[user])
                laws.append(law)
            worst = max(worst, *(true_epsilon(p, q, delta) for p, q in (laws, laws[::-1])))
        assert certify(epsilon, 2, 1, users, delta).with_proxy >= worst * (1 - 1e-12)


# --- the numerics: an exact pair, and an independent accountant -----------------------------------


def exact_pair(users, epsilon):
    """P and Q of the clone bound, from their definition in (A, C, Δ) and not from our formula."""
    rate = math.exp(-epsilon)
    tau = 1 / (1 + math.exp(-epsilon))
    p, q = {}, {}
    for c in range(users):
        of_c = math.comb(users - 1, c) * rate**c * (1 - rate) ** (users - 1 - c)
        for a in range(c + 1):
            chance = of_c * math.comb(c, a) * 0.5**c
            for delta, share in ((1, tau), (0, 1 - tau)):
                here, there = (a + delta, c - a + 1 - delta), (a + 1 - delta, c - a + delta)
                p[here] = p.get(here, 0.0) + chance * share
                q[there] = q.get(there, 0.0) + chance * share
    keys = sorted(p)
    return np.array([p[k] for k in keys]), np.array([q[k] for k in keys])


@pytest.mark.parametrize("users", [1, 2, 7, 40])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_one_report_is_exact_in_both_directions(users, epsilon):
    p, q = exact_pair(users, epsilon)
    for delta in (1e-9, 1e-6, 1e-3):
        forth, back = true_epsilon(p, q, delta), true_epsilon(q, p, delta)
        assert forth == pytest.approx(back, rel=1e-9)
        found = shuffled(users, epsilon, delta)
        assert forth * (1 - 1e-12) <= found <= forth * 1.01 + 1e-6


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_few_reports_are_exact(times, epsilon):
    p, q = exact_pair(5, epsilon)
    ps, qs = np.ones(1), np.ones(1)
    for _ in range(times):
        ps, qs = np.outer(ps, p).ravel(), np.outer(qs, q).ravel()
    for delta in (1e-6, 1e-3):
        truth = true_epsilon(ps, qs, delta)
        assert truth * (1 - 1e-12) <= shuffled(5, epsilon, delta, times) <= truth * 1.005


ORACLE = [(50, 1.0, 1), (50, 1.0, 10), (300, 2.5, 1), (300, 2.5, 100), (300, 2.5, 500)]


@pytest.mark.parametrize(("users", "epsilon", "times"), ORACLE)
def test_between_the_bounds_of_an_independent_accountant(users, epsilon, times):
    accounting = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    p, q = exact_pair(users, epsilon)
    seen = (p > 1e-40) | (q > 1e-40)  # the rest overflows over there
    upper, lower = (dict(enumerate(np.log(side[seen]).tolist())) for side in (p, q))
    low, high = (
        accounting.from_two_probability_mass_functions(
            lower, upper, value_discretization_interval=1e-4, pessimistic_estimate=pessimistic
        )
        .self_compose(times)
        .get_epsilon_for_delta(1e-6)
        for pessimistic in (False, True)
    )
    found = shuffled(users, epsilon, 1e-6, times)
    assert low * (1 - 1e-6) <= found <= high * 1.002


@pytest.mark.parametrize(("epsilon", "times"), [(0.1, 1), (0.1, 400), (1.0, 30)])
def test_randomised_response_of_an_independent_accountant(epsilon, times):
    accounting = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    noise = 2 / (math.exp(epsilon) + 1)
    oracle = accounting.from_randomized_response(noise, 2, value_discretization_interval=1e-4)
    expected = oracle.self_compose(times).get_epsilon_for_delta(1e-6)
    assert shuffled(1, epsilon, 1e-6, times) == pytest.approx(expected, rel=0.01)


def test_many_reports_approach_the_gaussian_limit():
    """For many users and reports the loss is nearly normal, and its ε has a formula."""
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, ndtr

    users, epsilon, times, delta = 1_000_000, 1.0, 20_000, 1e-6
    one = shuffled_report(users, epsilon, delta)
    losses = one.losses()
    mean = float(one.mass @ losses)
    mu = math.sqrt(times * float(one.mass @ (losses - mean) ** 2))

    def excess(eps):
        tail = ndtr(mu / 2 - eps / mu) - math.exp(eps + log_ndtr(-mu / 2 - eps / mu))
        return tail - delta

    assert composed_epsilon(one, times, delta) == pytest.approx(brentq(excess, 0, 50), rel=2e-3)


@pytest.mark.parametrize("delta", [1e-100, 1e-30, 1e-12, 0.1, 0.999])
def test_far_out_deltas_stay_in_bounds(delta):
    found = certify(2.5, 100, 20, 10_000, delta)
    assert 0 <= found.with_proxy <= found.without_proxy


@pytest.mark.parametrize(
    ("users", "epsilon", "times"),
    [(1, 50.0, 1), (1, 50.0, 1000), (10**9, 50.0, 1000), (10**10, 1e-4, 10), (1000, 20.0, 2000)],
)
def test_far_out_points_stay_in_bounds(users, epsilon, times):
    found = certify(epsilon, times, 1, users)
    assert 0 <= found.with_proxy * (1 + 1e-6) <= times * epsilon * (1 + 1e-5)


# --- directions ----------------------------------------------------------------------------------

POINTS = {
    "epsilon": st.floats(0.05, 8.0),
    "reports": st.integers(1, 60),
    "rounds": st.integers(1, 15),
    "users": st.integers(1, 20_000),
    "delta": st.floats(1e-9, 0.05),
}
SLACK = 1 + 1e-3  # the grids of two points differ, and each may be that much above its own truth


@settings(max_examples=30, deadline=None)
@example(epsilon=4.067374901040333, reports=5, rounds=3, users=1, delta=1e-09)
@given(**POINTS)
def test_the_order_of_the_figures(epsilon, reports, rounds, users, delta):
    found = certify(epsilon, reports, rounds, users, delta)
    assert found.without_proxy == reports * rounds * epsilon
    assert 0 <= found.with_proxy <= found.without_proxy


@settings(max_examples=25, deadline=None)
@given(
    **POINTS,
    what=st.sampled_from(["epsilon", "reports", "rounds", "users", "delta"]),
    factor=st.floats(1.01, 4.0),
)
def test_more_of_everything_but_users_and_delta_costs_more(what, factor, **point):
    further = dict(point)
    further[what] = min(point[what] * factor, 0.5) if what == "delta" else point[what] * factor
    if what in ("reports", "rounds", "users"):
        further[what] = max(point[what] + 1, round(further[what]))
    less, more = certify(**point), certify(**further)
    if what in ("users", "delta"):
        less, more = more, less
    for figure in ("without_proxy", "with_proxy"):
        assert getattr(less, figure) <= getattr(more, figure) * SLACK + 1e-9, figure


def test_a_certificate_says_what_it_is_for():
    found = certify(2.5, 100, 20, 6040)
    assert (found.epsilon, found.reports, found.rounds, found.users) == (2.5, 100, 20, 6040)
    assert found.delta == 1e-6
    with pytest.raises(AttributeError):
        found.with_proxy = 0.0
    assert isinstance(found, Certificate)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"epsilon": 0.0}, "ε of one report"),
        ({"epsilon": -1.0}, "ε of one report"),
        ({"epsilon": math.nan}, "ε of one report"),
        ({"epsilon": math.inf}, "ε of one report"),
        ({"epsilon": 800.0}, "ε of one report"),
        ({"reports": 0}, "reports per round"),
        ({"reports": -5}, "reports per round"),
        ({"rounds": 0}, "rounds"),
        ({"users": 0}, "users"),
        ({"users": 10**12}, "users"),
        ({"delta": 0.0}, "δ"),
        ({"delta": 1.0}, "δ"),
        ({"delta": -1e-6}, "δ"),
        ({"delta": math.nan}, "δ"),
        ({"reports": MOST_REPORTS, "rounds": 2}, "take fewer"),
    ],
)
def test_bad_input_is_one_sentence(changed, words):
    asked = {"epsilon": 2.5, "reports": 100, "rounds": 20, "users": 6040, "delta": 1e-6}
    with pytest.raises(ConfigError, match=words):
        certify(**(asked | changed))
