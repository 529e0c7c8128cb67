"""gram's promise, audited: real contributions from the door, real noise from the helper, and three
ways to break it, each of which must be convicted."""

import hashlib
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from audits import audit_sums, least_distance
from scipy.special import ndtr

from sottovoce.algorithms.gram.system import SCALE, GramConfig
from sottovoce.attacks.alone import SumTarget
from sottovoce.attacks.one_run import (
    Canaries,
    audit,
    audit_run,
    score_contributions,
)
from sottovoce.attacks.suite.a12_known_others import KNOWN
from sottovoce.attacks.views import View
from sottovoce.core import contributions
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.contributions import cut
from sottovoce.core.links import SecureSum
from sottovoce.core.messages import ModelView
from sottovoce.engines.transcripts import Recorder, seen_by
from sottovoce.errors import ConfigError, DataError, DoesNotApply, MessageError, UsageError
from sottovoce.experiment import Experiment
from sottovoce.parties.helper import Helper
from sottovoce.privacy.own_epsilon import OwnEpsilon, distance
from sottovoce.rng import Streams
from sottovoce.runs import federation as federations
from sottovoce.runs.attack import audit_system
from sottovoce.runs.card import in_words
from sottovoce.runs.federation import Federation, noise_spans
from sottovoce.runs.threat_views import views_and_truth
from sottovoce.runs.train import run_experiment
from sottovoce.testing import random_world

DELTA = 1e-6
DRAWS = 8_000
ITEMS = 6
TABLE = random_world(40, ITEMS, 130, seed=2)
CONFIG = GramConfig(least_head=ITEMS, most_head=ITEMS, embedding_size=ITEMS)
LINK = SecureSum(20)
EPSILONS = [
    pytest.param(0.5, marks=pytest.mark.slow),
    1.0,
    pytest.param(2.0, marks=pytest.mark.slow),
    pytest.param(4.0, marks=pytest.mark.slow),
]


def parties(epsilon, most, table=TABLE):
    consent = Consent.uniform(np.arange(table.n_users), Choice(epsilon=epsilon))
    release, rng = OwnEpsilon(most, DELTA), Streams.from_seed(1)
    return Federation.build(CONFIG, table, consent, release, rng, link=LINK)


def sums(made, view, rows):
    """Before any noise, through the door."""
    many = made.server.algorithm.report_shape(view)[0]
    return made.devices.report_summed(view, rows).dense(many)[:, 0]


def views():
    """Both rounds' models; in the second all items are in the head."""
    head = np.zeros((ITEMS, CONFIG.width), np.float32)
    head[:, SCALE] = 1.0
    return ModelView(0, np.zeros_like(head)), ModelView(1, head)


def real_target(epsilon, most, user=0):
    """What the sums of all differ by from those of all others, and the noise that is claimed."""
    whole, without = parties(epsilon, most), parties(epsilon, most)
    spans = noise_spans(whole.server.algorithm, OwnEpsilon(most, DELTA))
    added, sigmas = [], []
    for view in views():
        rows = np.arange(TABLE.n_users)
        added.append(sums(whole, view, rows) - sums(without, view, rows[rows != user]))
        claimed = [np.full(many, sigma) for many, sigma in spans(view.round, len(added[-1]))]
        sigmas.append(np.concatenate(claimed))
    return SumTarget(tuple(added), tuple(sigmas)), spans


def helpers_noise(spans, target, factor=1.0):
    """A helper of its own for every draw: a key and a round are for one sum."""
    sizes = [len(x) for x in target.added]

    def smaller(round, numbers):
        return tuple((many, factor * sigma) for many, sigma in spans(round, numbers))

    @cache
    def noise(draw):
        key = hashlib.sha256(f"draw {draw}".encode()).digest()
        helper = Helper(LINK, 0, key, smaller)
        return [helper.noise(round, size) for round, size in enumerate(sizes)]

    return noise


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_what_is_found_is_within_what_is_claimed_and_three_faults_are_convicted(epsilon):
    target, spans = real_target(epsilon, epsilon)
    noise = helpers_noise(spans, target)
    draws = DRAWS if epsilon >= 1.0 else 5 * DRAWS  # so that it sees something at all
    honest = audit_sums(target, noise, draws, epsilon, DELTA)
    assert 0.25 * epsilon < honest.epsilon <= epsilon
    assert honest.auc == pytest.approx(honest.best, abs=4 / np.sqrt(12 * draws / 2))
    assert honest.best == pytest.approx(ndtr(distance(epsilon, DELTA) / np.sqrt(2)), abs=1e-6)
    assert target.distance == pytest.approx(distance(epsilon, DELTA), rel=0.01)
    assert target.distance <= distance(epsilon, DELTA) * (1 + 1e-9)
    assert "within" in honest.describe()
    half = audit_sums(target, helpers_noise(spans, target, 0.5), draws, epsilon, DELTA)
    twice = audit_sums(target, noise, draws, epsilon, DELTA, really=[2 * x for x in target.added])
    long = audit_sums(target, noise, draws, epsilon, DELTA, really=uncut(epsilon))
    for found in (half, twice, long):
        assert found.convicted
        assert "more than" in found.describe()


def uncut(epsilon, longer=1.4):
    """Contributions of a longer profile through a door that does not look at the norm."""
    made, whole = parties(epsilon, epsilon), []
    algorithm, cohort = made.server.algorithm, made.devices.cohort
    with pytest.MonkeyPatch.context() as patch:
        for view in views():
            profile = algorithm.device_profile(view, cohort, np.array([0]))
            longer_one = replace(profile, value=longer * profile.value)
            with pytest.raises(MessageError, match="longer than 1"):
                cut(longer_one, np.ones(1), "gram")
        patch.setattr(contributions, "_longer", lambda *_: False)
        for view in views():
            profile = algorithm.device_profile(view, cohort, np.array([0]))
            whole.append(
                cut(replace(profile, value=longer * profile.value), np.ones(1), "gram").whole(0)
            )
    return whole


def test_who_whispers_is_hidden_by_the_same_noise_and_moves_it_less():
    """ε_u below the largest: her distance is that of her own ε."""
    target, spans = real_target(0.5, 4.0)
    assert target.distance <= distance(0.5, DELTA) * (1 + 1e-9)
    assert target.distance == pytest.approx(distance(0.5, DELTA), rel=0.02)
    loud, _ = real_target(4.0, 4.0)
    for quiet, other in zip(target.sigmas, loud.sigmas, strict=True):
        assert np.array_equal(quiet, other)
    found = audit_sums(target, helpers_noise(spans, target), 2_000, 0.5, DELTA)
    assert not found.convicted


def test_the_audit_is_right_about_gaussians_of_any_distance():
    """Claims that are too small by a tenth are convicted, true ones hardly ever."""
    draw, wrong = np.random.default_rng(3), 0
    target = SumTarget((np.array([100]),), (np.array([100.0]),))  # at distance 1
    for _ in range(40):
        kept = draw.normal(0.0, 100.0, 4_000)
        true = audit_sums(target, lambda n, k=kept: [k[[n]]], 2_000, 5.0, DELTA, confidence=0.9)
        wrong += true.distance > 1.0
    assert wrong <= 9  # one in ten at most, by chance
    many = draw.normal(0.0, 100.0, 60_000)
    small = audit_sums(target, lambda n: [many[[n]]], 30_000, 4.4, DELTA)
    assert small.convicted


def test_what_cannot_be_audited_is_refused():
    with pytest.raises(DataError, match="adds something"):
        SumTarget((np.zeros(2, np.int64),), (np.ones(2),))
    with pytest.raises(DataError, match="needs the noise"):
        SumTarget((np.ones(2, np.int64),), (np.ones(3),))
    target = SumTarget((np.ones(1, np.int64),), (np.ones(1),))
    with pytest.raises(ConfigError, match="a draw at least"):
        audit_sums(target, lambda n: [np.zeros(1, np.int64)], 0, 1.0)


# --- whoever knows everybody else, in a run ------------------------------------------------------

TOWN = {
    "name": "gram", "algorithm": {"name": "gram", "least_head": 40, "most_head": 40},
    "town": {"residents": 400, "venues": 80, "visits_per_resident": 15.0},
    "link": {"min_devices": 50}, "release": {"epsilon": 4.0},
    "consent": {"mix": [
        {"weight": 1, "takes_part": False}, {"weight": 2, "epsilon": 1.0},
        {"weight": 2, "epsilon": 4.0},
    ]},
}  # fmt: skip


def less_noise(factor):
    def spans(algorithm, release):
        honest = noise_spans(algorithm, release)

        def smaller(round, numbers):
            return tuple((many, factor * sigma) for many, sigma in honest(round, numbers))

        return None if honest is None else smaller

    return spans


def test_an_attacker_who_knows_all_others_gets_what_epsilon_permits(monkeypatch):
    threat = views_and_truth(Experiment.from_table(TOWN))
    found = KNOWN.run(threat.views["server"], threat.truth)
    assert found.verdict == "underpowered"  # of a small town
    low, high = ndtr(distance(1.0, DELTA) / np.sqrt(2)), ndtr(distance(4.0, DELTA) / np.sqrt(2))
    assert low < found.base_rate < high  # of both kinds of users
    assert found.value == pytest.approx(found.base_rate, abs=0.09)
    said = in_words(found, threat.setting)
    assert "far above what ε permits" in said
    more = replace(found, interval=(found.base_rate - 0.02, found.base_rate + 0.02))
    assert "no more than ε permits" in in_words(more, threat.setting)
    assert "guess without" not in said  # what ε permits is more than a guess
    monkeypatch.setattr(federations, "noise_spans", less_noise(0.3))
    threat = views_and_truth(Experiment.from_table(TOWN))
    assert KNOWN.run(threat.views["server"], threat.truth).verdict == "broken"


def test_a_transcript_tells_it_the_same(tmp_path):
    experiment = Experiment.from_table(TOWN)
    run_experiment(experiment, tmp_path / "run", transcript=True)
    kept, live = views_and_truth(tmp_path / "run"), views_and_truth(experiment)
    assert "transcript" in kept.facts["looked at"]
    results = [KNOWN.run(one.views["server"], one.truth).content() for one in (kept, live)]
    assert results[0] == results[1]


def test_without_sums_there_is_nothing_to_judge():
    threat = views_and_truth(Experiment.from_table(TOWN))
    view = threat.views["server"]
    assert "opened no sum" in KNOWN.applies(replace(view, rounds=()))
    with pytest.raises(DoesNotApply, match="all rounds"):
        KNOWN.run(replace(view, rounds=view.rounds[:1]), threat.truth)
    with pytest.raises(DoesNotApply, match="everybody else"):
        KNOWN.run(view, replace(threat.truth, own={}))


# --- one run, many canaries ----------------------------------------------------------------------


def canary_run(epsilon, others):
    def run(canaries):
        table = canaries.histories(others)
        users = np.arange(table.n_users)
        away = np.concatenate([~canaries.included, np.zeros(others.n_users, bool)])
        choices = [Choice(epsilon=epsilon), Choice(takes_part=False)]
        consent = Consent.of(users, choices, away.astype(np.int64))
        config, release = replace(CONFIG, least_head=40, most_head=40), OwnEpsilon(epsilon, DELTA)
        made = Federation.build(config, table, consent, release, Streams.from_seed(4), link=LINK)
        heard = Recorder(width=made.sum_width)
        made.run(message_observers=[heard])
        seen = seen_by(heard.seen, "server")
        return View("server", seen, config, release, LINK, table.n_items, made.server.items)

    return run


OTHERS = random_world(60, 40, 500, seed=3)
PLANTED = Canaries.pairs(500, np.arange(40), 40, Streams.from_seed(7))


def test_one_run_tells_of_its_canaries_no_more_than_is_claimed():
    scored = score_contributions(canary_run(4.0, OTHERS)(PLANTED), PLANTED, OTHERS)
    found = audit(scored, PLANTED.included, 4.0, DELTA)
    assert 0.0 < found.epsilon <= 4.0
    assert 0.3 < least_distance(scored, PLANTED.included) <= distance(4.0, DELTA)


def test_one_run_without_enough_noise_is_convicted(monkeypatch):
    monkeypatch.setattr(federations, "noise_spans", less_noise(0.05))

    def score(view, canaries):
        return score_contributions(view, canaries, OTHERS)

    found = audit_run(PLANTED, canary_run(1.0, OTHERS), score, 1.0, DELTA)
    assert found.convicted


def test_canaries_have_pairs_of_their_own():
    pairs = [tuple(PLANTED.inside.row(user)) for user in range(500)]
    assert len(set(pairs)) == 500
    assert all(len(pair) == 2 for pair in pairs)
    assert PLANTED.outside.n_interactions == 0
    with pytest.raises(ConfigError, match="need more than 5"):
        Canaries.pairs(11, np.arange(5), 40, Streams.from_seed(7))


def test_the_command_plants_canaries_in_gram():
    found = audit_system(Experiment.from_table(TOWN), 150)
    assert (found.claimed, found.canaries) == (4.0, 150)
    assert not found.convicted
    with pytest.raises(UsageError, match="contributions"):
        audit_system(Experiment.from_table({"town": TOWN["town"]}), 10)


def test_cohorts_of_the_audit_are_those_of_the_door():
    """The auditor's cut of a canary is what its device would send at the largest ε."""
    made = parties(2.0, 2.0)
    algorithm, users = made.server.algorithm, np.arange(TABLE.n_users)
    cohort = Cohort(users, TABLE, made.devices.cohort.consent, algorithm.device_init(users, None))
    for view in views():
        profile = algorithm.device_profile(view, cohort, users)
        own = algorithm.sum_contributions(cut(profile, np.ones(len(users)), "gram"), 1)
        assert np.array_equal(own, sums(parties(2.0, 2.0), view, users))
