"""The one-run audit: its bound, its canaries, and whole systems audited with it, through devices,
proxy and server. Noise that is off, or half of what is claimed, must be caught."""

from dataclasses import replace

import numpy as np
import pytest
from audits import least_distance
from scipy.stats import binom

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.attacks.one_run import (
    Canaries,
    audit,
    audit_run,
    lower_bound,
    score_reports,
    score_sums,
    values_before_coins,
)
from sottovoce.attacks.pairs import opened_sums
from sottovoce.attacks.views import View
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import Proxied, SecureSum
from sottovoce.core.messages import SummedReports
from sottovoce.core.one_bit import bits, coordinates
from sottovoce.engines.transcripts import Recorder, seen_by
from sottovoce.errors import ConfigError, DataError
from sottovoce.parties.helper import Helper
from sottovoce.privacy.accountant import certify
from sottovoce.privacy.central import price
from sottovoce.privacy.mechanisms import Everything
from sottovoce.privacy.reports import BoundReports, KReports, Tier
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world

DELTA = 1e-6
RNG = Streams.from_seed(5)


# --- the bound -----------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("guesses", [1, 40, 500])
def test_the_bound_holds_for_randomised_response(epsilon, guesses):
    """By adding up over every number of right guesses, not by trying."""
    right = np.arange(guesses + 1)
    chances = binom.pmf(right, guesses, 1 / (1 + np.exp(-epsilon)))
    bounds = np.array([lower_bound(int(v), guesses, guesses) for v in right])
    assert chances[bounds > epsilon].sum() <= 0.05 + 1e-9


def randomised(rng, m, epsilon, delta=0.0):
    """Coins, and scores from each canary's randomised answer; with probability delta the coin
    itself is told, and known to be."""
    coins = rng.random(m) < 0.5
    honest = rng.random(m) < 1 / (1 + np.exp(-epsilon))
    told = rng.random(m) < delta
    answer = np.where(honest | told, coins, ~coins)
    return coins, np.where(answer, 1.0, -1.0) * (1.0 + 9.0 * told) + 1e-3 * rng.random(m)


def test_honest_randomised_response_is_seldom_convicted():
    rng = np.random.default_rng(1)
    found = []
    for _ in range(400):
        coins, scores = randomised(rng, 400, 1.0)
        found.append(audit(scores, coins, claimed=1.0).convicted)
    assert 0 < sum(found) <= 0.05 * 400 + 10


def test_many_canaries_come_near_to_what_is_given_away():
    coins, scores = randomised(np.random.default_rng(2), 40_000, 1.0)
    assert 0.9 < audit(scores, coins, claimed=1.0, shares=(1.0,)).epsilon <= 1.0


def test_delta_is_allowed_for():
    """A mechanism that tells nothing, but the coin itself with probability δ."""
    rng, delta, m = np.random.default_rng(3), 5e-5, 1000
    runs = [randomised(rng, m, 0.0, delta) for _ in range(300)]
    wrong = sum(audit(scores, coins, 0.0, delta).convicted for coins, scores in runs)
    assert wrong <= 0.05 * 300
    assert lower_bound(100, 100, 1000, 0.0) > lower_bound(100, 100, 1000, 4e-5) > 3
    assert lower_bound(100, 100, 1000, 2e-4) == 0.0  # δ alone could explain them


def test_nothing_right_beyond_chance_proves_nothing():
    assert lower_bound(0, 0, 10) == lower_bound(5, 10, 10) == lower_bound(0, 10, 10) == 0.0
    assert lower_bound(10, 10, 10) > 0


@pytest.mark.parametrize("counts", [(3, 2, 5), (-1, 2, 5), (2, 6, 5)])
def test_counts_that_cannot_be_are_refused(counts):
    with pytest.raises(DataError):
        lower_bound(*counts)


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(ConfigError, match="confidence"):
        lower_bound(1, 1, 1, confidence=1.0)
    with pytest.raises(ConfigError, match="δ"):
        lower_bound(1, 1, 1, delta=1.0)
    with pytest.raises(DataError, match="score"):
        audit(np.array([np.nan]), np.array([True]), 1.0)
    with pytest.raises(ConfigError, match="shares"):
        audit(np.ones(3), np.ones(3, bool), 1.0, shares=(0.0,))
    with pytest.raises(ConfigError, match="items"):
        Canaries.single_items(10, 19, RNG, absent=False)
    few = random_world(3, 5, 5, seed=1)
    with pytest.raises(DataError, match="canary"):
        Canaries(few, few, np.ones(2, bool))


def test_a_runs_histories_are_the_canaries_by_their_coins():
    canaries = Canaries.single_items(50, 120, RNG, absent=False)
    others = random_world(7, 120, 60, seed=2)
    played = canaries.histories(others)
    assert played.n_users == 57
    for user in range(50):
        held = canaries.inside if canaries.included[user] else canaries.outside
        assert np.array_equal(played.row(user), held.row(user))
    assert np.array_equal(played.row(52), others.row(2))
    assert "redacted" in repr(canaries)


# --- FMF-LDP through the proxy -------------------------------------------------------------------


def reports_run(settings, epsilon, reports):
    """All devices are canaries, and report as they do in any run."""

    def run(canaries):
        train, release = canaries.histories(), KReports(reports, (Tier(epsilon, 500),))
        everyone = np.arange(train.n_users)
        consent = Consent.uniform(everyone, Choice(epsilon=epsilon, max_reports=reports))
        link, heard = Proxied(), Recorder()
        made = Federation.build(settings, train, consent, release, Streams.from_seed(1), link=link)
        made.run(message_observers=[heard])
        rounds = seen_by(heard.seen, "server")
        return View("server", rounds, settings, release, link, train.n_items, made.server.items)

    return run


@pytest.mark.parametrize("variant", ["published", "rotated"])
def test_the_auditor_knows_what_devices_would_say(variant):
    """With next to no coins, every report is the sign of what it is about."""
    history = random_world(40, 30, 200, seed=3)
    settings = FMFConfig(variant=variant, embedding_size=3, scale=1e6, init_scale=1.0, rounds=1)
    consent = Consent.uniform(np.arange(40), Choice(epsilon=16.0, max_reports=50))
    made = Federation.build(
        settings, history, consent, KReports(50, (Tier(16.0, 2),)), Streams.from_seed(1),
        link=Proxied(),
    )  # fmt: skip
    view = made.server.publish()
    sent = made.devices.report_bits(view, np.arange(40))
    said = values_before_coins(settings, view.items, history)
    expected = np.take_along_axis(said, coordinates(sent.reports), axis=1)
    sure = np.abs(expected) > 0.999
    assert sure.mean() > 0.75
    assert np.array_equal(bits(sent.reports)[sure], expected[sure] > 0)


CANARIES = Canaries.single_items(1000, 2048, RNG, absent=False)
ROTATED = FMFConfig(variant="rotated", embedding_size=1, rounds=1)


@pytest.mark.parametrize(
    ("epsilon", "reports", "rounds", "least"), [(2.5, 100, 2, 0.2), (0.5, 1000, 1, 0.1)]
)
def test_reports_through_the_proxy_give_away_no_more_than_certified(
    epsilon, reports, rounds, least
):
    run = reports_run(replace(ROTATED, rounds=rounds), epsilon, reports)
    claimed = certify(epsilon, reports, rounds, len(CANARIES), DELTA).with_proxy
    found = audit_run(CANARIES, run, score_reports, claimed, DELTA)
    assert least < found.epsilon <= claimed  # it sees something, and no more than there may be


def test_published_reports_give_away_no_more_than_certified():
    settings = FMFConfig(embedding_size=2, scale=1e6, init_scale=1.0, rounds=1)
    claimed = certify(2.5, 100, 1, len(CANARIES), DELTA).with_proxy
    run = reports_run(settings, 2.5, 100)
    assert audit_run(CANARIES, run, score_reports, claimed, DELTA).epsilon <= claimed


def test_devices_without_coins_are_caught_from_the_servers_view(monkeypatch):
    """They claim ε = 0.1 a report, and send the truth."""
    rule = BoundReports.report_rule

    def bare(*args, **named):
        made = rule(*args, **named)
        return replace(made, low=np.ones_like(made.low))

    claimed = certify(0.1, 1000, 1, len(CANARIES), DELTA).with_proxy
    run = reports_run(ROTATED, 0.1, 1000)
    honest = audit_run(CANARIES, run, score_reports, claimed, DELTA)
    assert not honest.convicted
    monkeypatch.setattr(BoundReports, "report_rule", bare)
    caught = audit_run(CANARIES, run, score_reports, claimed, DELTA)
    assert caught.convicted
    assert caught.epsilon > 2 * claimed


# --- FCF over a secure sum -----------------------------------------------------------------------

ABSENT = Canaries.single_items(1000, 1000, RNG, absent=True)
FCF = FCFConfig(embedding_size=4, rounds=2)


def sums_run(noise, rounds=2, kept=True):
    """A canary that is out does not take part. `kept`: as transcripts keep masked updates, a few
    and the opened sum."""

    def run(canaries):
        settings, link = replace(FCF, rounds=rounds), SecureSum(clip=0.05, noise=noise)
        train, heard = canaries.histories(), Recorder() if kept else Everywhere()
        consent = Consent.uniform(np.arange(train.n_users), Choice(share_positives=1.0))
        made = Federation.build(
            settings, train, consent, Everything(), Streams.from_seed(1), link=link
        )
        made.run(message_observers=[heard])
        rounds_seen = seen_by(heard.seen, "server")
        return View(
            "server", rounds_seen, settings, Everything(), link, train.n_items, made.server.items
        )

    return run


class Everywhere:
    """Keeps every message as it is."""

    def __init__(self):
        self.seen = {}

    def on_message(self, party, message):
        self.seen.setdefault(party, {}).setdefault(message.round, []).append(message)


def distance(run):
    return least_distance(score_sums(run(ABSENT), ABSENT), ABSENT.included)


def test_noisy_sums_give_away_no_more_than_their_price():
    run, claimed = sums_run(2.0), price(2.0, 2, DELTA)
    found = audit_run(ABSENT, run, score_sums, claimed, DELTA)
    assert 0.5 < found.epsilon <= claimed


def test_a_proxy_that_adds_no_noise_is_caught():
    """The terms say 2.0, and the proxy does without."""
    claimed, run = price(2.0, 2, DELTA), sums_run(0.0)
    caught = audit_run(ABSENT, run, score_sums, claimed, DELTA)
    assert caught.convicted
    assert caught.right > 0.97 * caught.guesses


def test_a_proxy_that_adds_half_the_noise_is_caught(monkeypatch):
    claimed = np.sqrt(2) / 2.0
    assert 0.6 * claimed < distance(sums_run(2.0)) <= claimed
    sum_masks = Helper.sum_masks

    def lazy(self, seeds, threads=1, numbers=None, draws=None):
        self.link = replace(self.link, noise=self.link.noise / 2)
        try:
            return sum_masks(self, seeds, threads, numbers, draws)
        finally:
            self.link = replace(self.link, noise=self.link.noise * 2)

    monkeypatch.setattr(Helper, "sum_masks", lazy)
    assert distance(sums_run(2.0)) > 1.3 * claimed


def test_sums_are_the_same_from_what_is_kept_and_from_all_messages():
    few = replace_first(ABSENT, 60)
    kept, every = (opened_sums(sums_run(1.0, 1, kept)(few)) for kept in (True, False))
    assert len(kept) == len(every) == 1
    assert np.array_equal(kept[0].sums, every[0].sums)
    assert kept[0].devices == every[0].devices == int(few.included.sum())
    assert not any(
        isinstance(m, SummedReports)
        for s in sums_run(1.0, 1, False)(few).rounds
        for m in s.messages
    )


def replace_first(canaries, n):
    """The first n of them, all in the run, so that there are enough for a sum."""
    rows = np.arange(n)
    return Canaries(
        canaries.inside.take_users(rows), canaries.outside.take_users(rows), rows < n - 5
    )


def test_views_that_lack_what_is_needed_are_refused():
    view = sums_run(0.0, 1)(replace_first(ABSENT, 60))
    bare = replace(view, rounds=tuple(s._replace(published=None) for s in view.rounds))
    with pytest.raises(DataError, match="started from"):
        score_sums(bare, replace_first(ABSENT, 60))
    with pytest.raises(DataError, match="FMF-LDP"):
        score_reports(view, CANARIES)
    with pytest.raises(DataError, match="FCF"):
        score_sums(replace(view, algorithm=ROTATED), ABSENT)
    silent = replace(view, rounds=())
    assert opened_sums(silent) == []
    assert not score_sums(silent, ABSENT).any()
