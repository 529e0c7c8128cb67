"""ε, audited where reports are really made: at the door, on inputs as different as they can be.

Two devices with opposite histories are the attacker's two inputs. The model is such that whatever
coordinate is drawn, y = −1 on the one and +1 on the other, so that nothing is hidden by the choice
of coordinates. Every report is a trial with its own coin, ROUND of them per input and round."""

from dataclasses import replace

import numpy as np
import pytest
from audits import audit, lower_bound
from scipy import stats

from sottovoce import rng as chacha
from sottovoce.algorithms.closed_form import kernels
from sottovoce.algorithms.fmf.system import FMF, FMFConfig
from sottovoce.attacks.power import clopper_pearson
from sottovoce.core import one_bit
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import Ledger
from sottovoce.core.messages import ModelView
from sottovoce.engines.simulation import SimulatedDevices
from sottovoce.errors import ConfigError, DataError, Diverged
from sottovoce.parties.device import Devices
from sottovoce.privacy.reports import BoundReports, KReports, Tier
from sottovoce.rng import Streams
from sottovoce.testing import random_world

ROUND = 100_000
ITEMS = np.array([[1.0], [-1.0]], dtype=np.float32)
CONFIG = FMFConfig(embedding_size=1, scale=1e6)


class Extremes:
    """Devices of both inputs behind the door, k reports of each in every round."""

    def __init__(self, epsilon, *, reports=100, trials=ROUND, seed=1, kind=Devices):
        half = trials // reports
        users = np.arange(2 * half)
        history = Interactions.from_pairs(users, users % 2, n_users=2 * half, n_items=2)
        consent = Consent.uniform(users, Choice(epsilon=epsilon, max_reports=reports))
        algorithm, streams = FMF(CONFIG, (epsilon,)), Streams.from_seed(seed)
        cohort = Cohort(users, history, consent, algorithm.device_init(users, streams))
        release = KReports(reports, (Tier(epsilon),))
        self.devices = kind.behind_door(algorithm, cohort, release, Ledger(), streams)

    def sent(self, round):
        """What the devices of each input send: [devices, k] twice."""
        view = ModelView(round, ITEMS)
        reports = self.devices.report_bits(view, self.devices.willing()).reports
        return reports[::2], reports[1::2]

    def hits(self, round):
        """How often the bit is 1, and how often 0, on each input; and the trials per input."""
        one, other = (one_bit.bits(r) for r in self.sent(round))
        return [(int(b.sum()), int(b.size - b.sum())) for b in (one, other)], one.size

    def bound(self, round, confidence=0.99):
        (one, other), n = self.hits(round)
        return lower_bound(one, n, other, n, confidence)


# --- the audit itself ----------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [1, 7, 1000])
def test_bounds_are_those_of_clopper_and_pearson(trials):
    for hits in {0, 1, trials // 3, trials - 1, trials}:
        known = stats.binomtest(hits, trials).proportion_ci(0.98, method="exact")
        lower, upper = clopper_pearson(hits, trials, 0.01)
        assert (lower, upper) == pytest.approx((known.low, known.high), abs=1e-12)


def test_bounds_hold_for_all_probabilities():
    """By adding up over every possible number of hits, not by trying."""
    n, error = 60, 0.05
    hits = np.arange(n + 1)
    lower, upper = clopper_pearson(hits, n, error)
    for p in np.linspace(0.001, 0.999, 200):
        chances = stats.binom.pmf(hits, n, p)
        assert chances[lower > p].sum() <= error + 1e-12
        assert chances[upper < p].sum() <= error + 1e-12


def test_an_honest_mechanism_is_seldom_convicted():
    draws, epsilon, n = np.random.default_rng(1), 1.0, 2000
    p = np.exp(epsilon) / (np.exp(epsilon) + 1)
    one = draws.binomial(n, p, 5000)
    other = draws.binomial(n, 1 - p, 5000)
    events = [((a, n - a), (b, n - b)) for a, b in zip(one, other, strict=True)]
    wrong = sum(lower_bound(a, n, b, n, 0.9) > epsilon for a, b in events)
    assert 0 < wrong < 500  # by chance, and in no more than a tenth


def test_more_events_ask_for_more_evidence():
    few = lower_bound(800, 1000, 200, 1000)
    many = lower_bound([800, *[500] * 50], 1000, [200, *[500] * 50], 1000)
    assert 0 < many < few < np.log(4)
    assert lower_bound(200, 1000, 800, 1000) == few  # both directions count
    assert lower_bound(500, 1000, 500, 1000) == 0.0


def test_outputs_are_audited_as_values_and_their_absence():
    one, other = np.random.default_rng(2).integers(0, 4, (2, 5000))
    assert audit(one, other, 4) < 0.1
    assert audit(one, other[other != 3], 4) > 4  # 3 never comes, and that tells
    assert audit(one[one == 2], other, 4) > 1


@pytest.mark.parametrize(
    "counts",
    [
        (1, 0, 1, 5),
        (6, 5, 1, 5),
        (-1, 5, 1, 5),
        ([], 5, [], 5),
        ([1, 2], 5, [1], 5),
    ],
)
def test_counts_that_cannot_be_are_refused(counts):
    with pytest.raises(DataError):
        lower_bound(*counts)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 1.5, float("nan")])
def test_a_confidence_that_cannot_be_is_refused(confidence):
    with pytest.raises(ConfigError, match="confidence"):
        lower_bound(1, 5, 1, 5, confidence)
    with pytest.raises(ConfigError, match="error"):
        clopper_pearson(1, 5, 0.5)
    with pytest.raises(DataError, match="one of the 3"):
        audit(np.array([0, 3]), np.array([0, 1]), 3)


# --- the device's path ---------------------------------------------------------------------------


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("epsilon", "audits"),
    [(2.5, 30), *(pytest.param(epsilon, 100, marks=slow) for epsilon in (0.5, 1.0, 2.5, 5.0))],
)
def test_reports_cost_what_is_claimed_and_hardly_less(epsilon, audits):
    """Many audits of 100,000 trials per input, all of them right together at 99 %. Then one of all
    their trials: three or ten millions."""
    parties = Extremes(epsilon)
    counts = np.array([parties.hits(round)[0] for round in range(audits)])
    bounds = np.array([lower_bound(a, ROUND, b, ROUND, 1 - 0.01 / audits) for a, b in counts])
    assert np.all(bounds <= epsilon)
    assert np.all(bounds > 0.85 * epsilon)  # the audit is no formality
    one, other = counts.sum(axis=0)
    assert 0.98 * epsilon < lower_bound(one, audits * ROUND, other, audits * ROUND) <= epsilon


@pytest.mark.parametrize("audits", [20, pytest.param(100, marks=slow)])
@pytest.mark.parametrize("epsilon", [1.0, 2.5])
def test_five_per_cent_less_noise_is_caught_every_time(epsilon, audits):
    """The device randomises for 1.05 ε, and ε is claimed: caught in 100 of 100 audits."""
    leaky = Extremes(1.05 * epsilon)
    assert sum(leaky.bound(round) > epsilon for round in range(audits)) == audits


def test_fewer_trials_would_not_do():
    """Why it takes 100,000: of 20,000 per input, the same fault at ε = 1 slips through at times."""
    leaky = Extremes(1.05, trials=20_000)
    caught = sum(leaky.bound(round) > 1.0 for round in range(100))
    assert 20 < caught < 95


@pytest.mark.parametrize("seed", [0, *(pytest.param(other, marks=slow) for other in (1, 2))])
def test_devices_that_report_once_cost_what_is_claimed(seed):
    """The same of 100,000 devices per input with a key each, instead of the many reports of few."""
    assert 0.85 < Extremes(1.0, reports=1, seed=seed).bound(0) <= 1.0


def test_bits_are_as_frequent_as_they_must_be():
    """Two-sided: neither more nor less noise, and not at the price of a biased coin."""
    (one, other), n = Extremes(1.0, trials=1_000_000).hits(0)
    high = np.exp(1.0) / (np.exp(1.0) + 1.0)
    assert stats.binomtest(other[0], n, high).pvalue > 1e-4  # y = +1
    assert stats.binomtest(one[1], n, high).pvalue > 1e-4  # y = −1
    assert stats.binomtest(other[0], n, high * 1.005).pvalue < 1e-9


def with_rule(monkeypatch, change):
    """Devices whose rule is not the release's."""
    rule = BoundReports.report_rule
    monkeypatch.setattr(BoundReports, "report_rule", lambda *a, **k: change(rule(*a, **k)))


def test_noise_that_is_off_is_caught(monkeypatch):
    with_rule(monkeypatch, lambda rule: replace(rule, low=np.ones_like(rule.low)))
    parties = Extremes(1.0, trials=1000)
    assert parties.bound(0) > 4.0


def test_a_threshold_of_none_cannot_be_set(monkeypatch):
    with_rule(monkeypatch, lambda rule: replace(rule, low=np.zeros_like(rule.low)))
    with pytest.raises(ConfigError, match="threshold"):
        Extremes(1.0, trials=1000).bound(0)


one_kernel = kernels.reporter


def biased(monkeypatch, coin):
    """Devices whose coins pass through `coin`, by the definition and in a simulation, whose kernel
    runs uncompiled, so that they can."""
    compiled, words = one_kernel, chacha.chacha_words

    def block(key, nonce, counter, out):
        words(key, nonce, counter, out)
        out[:] = coin(out)

    def open_kernel(size):
        def run(*arguments):
            with np.errstate(over="ignore"):
                return compiled(size).py_func(*arguments)

        return run

    monkeypatch.setattr(one_bit, "chacha_words", block)
    monkeypatch.setattr(kernels, "chacha_words", block)
    monkeypatch.setattr(kernels, "reporter", open_kernel)


@pytest.mark.parametrize("kind", [Devices, SimulatedDevices])
def test_a_biased_coin_is_caught(monkeypatch, kind):
    honest = Extremes(1.0, trials=4000, kind=kind).hits(0)
    biased(monkeypatch, lambda coins: coins)
    assert Extremes(1.0, trials=4000, kind=kind).hits(0) == honest  # uncompiled, it is the same
    biased(monkeypatch, lambda coins: coins >> np.uint32(1))  # heads twice as often
    parties = Extremes(1.0, trials=4000, kind=kind)
    (one, other), n = parties.hits(0)
    assert lower_bound(one, n, other, n) > 1.5
    assert stats.binomtest(one[0], n, 1 / (np.e + 1)).pvalue < 1e-9


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_gradients_that_are_no_numbers_are_refused_not_zeroed(bad):
    devices = Extremes(1.0, trials=1000).devices
    items = ITEMS.copy()
    items[1] = bad
    with pytest.raises(Diverged):
        devices.report_bits(ModelView(0, items), devices.willing())
    assert devices.ledger.totals.releases == 0
    assert not devices.cohort.spent.any()


def test_whole_reports_tell_no_more_than_their_bits():
    """On histories as they come, with the coordinates in view: every report is an outcome."""
    kinds = random_world(2, 12, 10, seed=3)
    items = np.random.default_rng(4).normal(size=(12, 3)).astype(np.float32)
    epsilon, k = 1.5, 100
    users = np.arange(2000)
    pairs = np.array([(u, i) for u in users for i in kinds.row(u % 2)])
    history = Interactions.from_pairs(*pairs.T, n_users=len(users), n_items=12)
    algorithm, streams = FMF(FMFConfig(embedding_size=3), (epsilon,)), Streams.from_seed(5)
    consent = Consent.uniform(users, Choice(epsilon=epsilon, max_reports=k))
    cohort = Cohort(users, history, consent, algorithm.device_init(users, streams))
    release = KReports(k, (Tier(epsilon),))
    devices = Devices.behind_door(algorithm, cohort, release, Ledger(), streams)
    for round in range(5):
        reports = devices.report_bits(ModelView(round, items), users).reports
        assert 0.1 < audit(reports[::2].ravel(), reports[1::2].ravel(), 72) <= epsilon


def test_a_devices_reports_together_cost_k_epsilon_and_more_than_one():
    """Plain composition holds for a device's reports of a round taken together: the event is that
    most of its bits, or all of them, say the same."""
    epsilon, k = 0.2, 10
    parties = Extremes(epsilon, reports=k, trials=k * 20_000)
    one, other = (one_bit.bits(sent).sum(axis=1) for sent in parties.sent(0))
    hits = [[np.sum(ones >= t) for t in (6, 8, 10)] for ones in (other, one)]
    bound = lower_bound(hits[0], len(other), hits[1], len(one))
    assert 3 * epsilon < bound <= k * epsilon


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.5, 8.0])
def test_many_more_trials_still_find_nothing(epsilon):
    """A thousand audits of 100,000 trials at 99 %: one in a hundred may be wrong by chance, and no
    more are. All of them as one come near to ε and stay below."""
    parties = Extremes(epsilon, seed=7)
    counts = np.array([parties.hits(round)[0] for round in range(1000)])
    convicted = sum(lower_bound(a, ROUND, b, ROUND) > epsilon for a, b in counts)
    assert stats.binomtest(convicted, 1000, 0.01, alternative="greater").pvalue > 1e-3
    one, other = counts.sum(axis=0)
    assert 0.97 * epsilon < lower_bound(one, 1000 * ROUND, other, 1000 * ROUND) <= epsilon
