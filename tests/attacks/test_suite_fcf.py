"""A4: one upload of FCF tells everything; the sum over many tells nothing of anyone."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.attacks.suite.a04_rank_one import ATTACK, departures
from sottovoce.attacks.views import SeenRound
from sottovoce.core.links import SecureSum
from sottovoce.core.masking import sum_masks
from sottovoce.core.messages import MaskSum, ModelView
from sottovoce.data.splitting import temporal_holdout
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.privacy.mechanisms import Everything


@cache
def town():
    data = generate_town(TownConfig(residents=200, venues=400))
    return temporal_holdout(data.interactions, 0.2).train


def config(**options):
    return FCFConfig(**{"embedding_size": 6, "reg": 5.0, "rounds": 2, **options})


def fcf(play, settings, train=None, **options):
    return play(settings, train or town(), share=1.0, release=Everything(), **options)


@pytest.mark.parametrize("variant", ["paper", "fpl"])
@pytest.mark.parametrize("after", [0, 20])
def test_an_upload_tells_every_positive(play, variant, after):
    result = fcf(play, config(variant=variant, rounds=after + 1), after=after).run(ATTACK)
    assert result.verdict == "broken"
    assert result.value >= 0.99
    assert result.recall >= 0.99
    assert result.base_rate < 0.2


def test_the_sum_tells_nothing_of_anyone(play):
    result = fcf(play, config(), link=SecureSum(min_devices=100)).run(ATTACK)
    assert result.claims
    assert result.verdict == "holds"
    assert result.interval[0] <= result.base_rate <= result.interval[1]
    assert "from the sum" in result.detail


def test_a_sum_over_one_device_is_caught(play):
    seen = fcf(play, config(rounds=1), link=SecureSum(min_devices=2))
    devices, server = seen.federation.devices, seen.federation.server
    view, key = ModelView(1, server.items), (bytes(32),)
    masked, _ = devices.report_masked(view, np.array([7]), key)
    told = MaskSum(1, 1, sum_masks(key, server.items.size))
    lone = replace(seen.view, rounds=(SeenRound(1, (masked, told), view),))
    result = ATTACK.run(lone, seen.truth)
    assert result.verdict == "broken"
    # The items that stand out most are hers.
    assert result.recall == 1.0


def test_it_says_why_it_does_not_apply(play):
    view = fcf(play, config(rounds=1)).view
    assert ATTACK.applies(view) == ""
    assert "FCF" in ATTACK.applies(replace(view, algorithm=FPLConfig()))
    bare = replace(view, rounds=tuple(s._replace(published=None) for s in view.rounds))
    assert "published" in ATTACK.applies(bare)
    assert "redacted" in repr(ATTACK.guess(view))


@given(
    number=st.integers(0, 2**32 - 1),
    liked=st.integers(1, 100),
    alpha=st.sampled_from([1.0, 4.0, 40.0]),
)
@settings(deadline=None, max_examples=30)
def test_what_departs_is_what_was_liked(number, liked, alpha):
    rng = np.random.default_rng(number)
    items, mine = rng.normal(0, 0.1, (300, 5)), np.zeros(300)
    mine[rng.permutation(300)[:liked]] = 1.0
    weight = 1.0 + alpha * mine
    x = np.linalg.solve(items.T @ (items * weight[:, None]) + np.eye(5), items.T @ (weight * mine))
    upload = (weight * (mine - items @ x))[:, None] * x
    np.testing.assert_array_equal(departures(upload, items) > 1.0, mine > 0)


@pytest.mark.slow
@pytest.mark.data
def test_on_real_data(play, real):
    train = real("foursquare-italy")
    some = train.take_users(np.arange(0, train.n_users, 4))
    result = fcf(play, config(embedding_size=10, rounds=1), some).run(ATTACK)
    assert result.verdict == "broken"
    assert result.value >= 0.99, result
    assert result.recall >= 0.99, result
