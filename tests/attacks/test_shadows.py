"""A12 by shadow models: they tell who took part, and nothing where nobody is in the model."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.attacks.suite import a12_shadows
from sottovoce.attacks.suite.a12_shadows import Again, ShadowPairs
from sottovoce.attacks.views import Truth, View
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import Direct, SecureSum
from sottovoce.errors import ConfigError, DoesNotApply
from sottovoce.privacy.mechanisms import Everything
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation

PART = a12_shadows.PART
N_USERS, N_ITEMS = 260, 90
FITTED = FCFConfig(embedding_size=16, reg=0.3, rounds=12)
EVERYONE = np.ones(N_USERS, bool)
HALF = np.random.default_rng(9).random(N_USERS) < 0.5


def world(seed=0):
    """Users of five tastes."""
    draw = np.random.default_rng(seed)
    taste = draw.normal(size=(5, N_ITEMS)) + draw.normal(size=N_ITEMS)
    users, items = [], []
    for user in range(N_USERS):
        chance = np.exp(taste[user % 5])
        users += [user] * 14
        items += draw.choice(N_ITEMS, 14, replace=False, p=chance / chance.sum()).tolist()
    return Interactions.from_pairs(users, items, n_users=N_USERS, n_items=N_ITEMS)


TRAIN = world()


def again(settings=FITTED, link=None, banned=None):
    """Learns the system anew; never from those who are `banned`."""

    def learn(part, rng):
        some = part if banned is None else part & ~banned
        absent = [Choice(share_positives=1.0), Choice(takes_part=False)]
        consent = Consent.of(np.arange(N_USERS), absent, (~some).astype(np.int64))
        made = Federation.build(settings, TRAIN, consent, Everything(), rng, link=link or Direct())
        made.run()
        return made.server.items

    return Again(learn)


def asked(final, part, learner, settings=FITTED, link=None):
    view = View("anyone", (), settings, Everything(), link or Direct(), N_ITEMS, final)
    none = Interactions.from_pairs([], [], n_users=N_USERS, n_items=N_ITEMS)
    vectors, share = np.zeros((N_USERS, 1), np.float32), np.ones(N_USERS, np.float32)
    truth = Truth(TRAIN, none, part, share, {}, {}, vectors, {"again": learner})
    assert PART.applies(view) == ""
    return PART.run(view, truth)


# --- shadow models -------------------------------------------------------------------------------


def test_a_model_that_fits_its_users_closely_tells_who_took_part():
    learner = again()
    released = learner.learn(HALF, Streams.from_seed(3))
    found = asked(released, HALF, learner)
    assert found.verdict == "broken"
    assert found.value > 0.7
    assert "in the released model" in found.detail


def among(targets, part, released, learner):
    """Asked about `targets` alone, by number; all others are in every model."""
    mine = TRAIN.take_users(targets)

    def learn(some, rng):
        whole = np.ones(N_USERS, bool)
        whole[targets] = some
        return learner.learn(whole, rng)

    view = View("anyone", (), FITTED, Everything(), Direct(), N_ITEMS, released)
    vectors, share = np.zeros((len(targets), 1), np.float32), np.ones(len(targets), np.float32)
    return PART.run(view, Truth(mine, mine, part, share, {}, {}, vectors, {"again": Again(learn)}))


def test_a_model_that_never_saw_the_targets_tells_nothing():
    """Whoever is said to have taken part: none of these is in it."""
    learner, even = again(), np.arange(N_USERS) % 2 == 0
    released = learner.learn(~even, Streams.from_seed(3))
    targets = np.flatnonzero(even)
    found = among(targets, HALF[targets], released, learner)
    assert "in the released model" in found.detail
    assert found.verdict == "holds"
    assert abs(found.value - 0.5) < 0.12


def test_where_everybody_took_part_pairs_of_models_are_judged():
    learner = again()
    found = asked(learner.learn(EVERYONE, Streams.from_seed(3)), EVERYONE, learner)
    assert found.verdict == "broken"
    assert found.value > 0.7
    assert "in which one she is" in found.detail


def test_pairs_that_do_not_depend_on_the_targets_give_one_half():
    strangers = np.arange(N_USERS) % 3 > 0
    learner, targets = again(banned=strangers), np.flatnonzero(strangers)
    released = learner.learn(EVERYONE, Streams.from_seed(1))
    found = among(targets, np.ones(len(targets), bool), released, learner)
    assert "in which one she is" in found.detail
    assert found.verdict == "underpowered"
    assert abs(found.value - 0.5) < 0.08


def test_noise_on_the_sum_closes_it_and_a_secure_sum_does_not():
    open_sum = again(link=SecureSum(min_devices=10))
    assert asked(open_sum.learn(EVERYONE, Streams.from_seed(3)), EVERYONE, open_sum).value > 0.7
    noisy = again(link=SecureSum(min_devices=10, clip=0.5, noise=20.0))
    found = asked(noisy.learn(EVERYONE, Streams.from_seed(3)), EVERYONE, noisy)
    assert found.verdict == "holds"


def test_of_a_large_world_fewer_others_are_learnt_from(monkeypatch):
    asked_of, learner = [], again(replace(FITTED, rounds=1))

    def learn(part, rng):
        asked_of.append(int(part.sum()))
        return learner.learn(part, rng)

    monkeypatch.setattr(a12_shadows, "TARGETS", 60)
    whole = asked(np.zeros((N_ITEMS, 16), np.float32), EVERYONE, Again(learn))
    assert set(asked_of) == {N_USERS - 30}
    assert "others" not in whole.detail
    asked_of.clear()
    large = Again(learn, work=2.0 * a12_shadows.WORK)
    fewer = asked(np.zeros((N_ITEMS, 16), np.float32), EVERYONE, large)
    assert set(asked_of) == {N_USERS // 2}
    assert "100 of 200 others" in fewer.detail


def test_what_cannot_be_learnt_again_is_said():
    def refused(part, rng):
        raise ConfigError("too few devices")

    with pytest.raises(DoesNotApply, match="too few devices"):
        asked(np.zeros((N_ITEMS, 16), np.float32), EVERYONE, Again(refused))
    with pytest.raises(DoesNotApply, match="the whole run"):
        asked(np.zeros((N_ITEMS, 16), np.float32), EVERYONE, None)
    view = View("anyone", (), DRIFTConfig(), None, None, N_ITEMS, np.zeros((N_ITEMS, 4), "f4"))
    assert "No model" in PART.applies(view)


@given(st.floats(0.0, 3.0), st.integers(0, 2**32 - 1))
def test_pairs_are_won_as_often_as_their_distance_says(distance, seed):
    """One clue, Gaussian, at a distance: the share of wins is Φ(d/√2)."""
    draw = np.random.default_rng(seed)
    clues = draw.normal(size=(3, 2, 4000, 1))
    clues[:, 0] += distance
    wins = ShadowPairs(clues).wins().mean()
    expected = ndtr(distance / np.sqrt(2.0))
    if distance > 0.1:  # else which way members differ is not known
        assert abs(wins - expected) < 0.03
    else:
        assert abs(wins - 0.5) < 0.06
