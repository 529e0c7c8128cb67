"""Noise that devices add, each a part: in all ways of simulating, in what the server opens, and in
spite of the helper."""

import numpy as np
import pytest

from sottovoce.algorithms.gram.system import GramConfig
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.contributions import STEPS
from sottovoce.core.links import SecureSum
from sottovoce.core.masking import unmasked
from sottovoce.errors import ConfigError
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.testing import random_world

N, ITEMS, PARTS = 60, 40, 30
CONFIG = GramConfig(popularity_share=0.3, least_head=20, recency=False)
LINK = SecureSum(min_devices=PARTS)


def federation(parts=PARTS, seed=1):
    world = random_world(N, ITEMS, 600, seed=3)
    consent = Consent.uniform(np.arange(N), Choice(epsilon=4.0))
    release = OwnEpsilon(4.0, parts=parts)
    return Federation.build(CONFIG, world, consent, release, Streams.from_seed(seed), link=LINK)


def exact(made):
    """The sum of contributions, from devices whose noise is the helper's."""
    plain = federation(parts=0)
    return plain.devices.report_summed(made.server.publish(), np.arange(N)).dense(ITEMS + 1)[:, 0]


def test_the_noise_is_in_every_message_and_the_helper_adds_none():
    made = federation()
    view, rows = made.server.publish(), np.arange(N)
    masked, seeds = made.devices.report_masked(view, rows)
    told = made.masker.sum_masks(seeds, numbers=ITEMS + 1)
    total = masked.masked.sum(axis=0, dtype=masked.masked.dtype)
    opened = unmasked(total, told.masks, 1, told.bits)[:, 0]
    assert made.masker.noise(0, ITEMS + 1) is None
    assert np.array_equal(opened, federation().devices.report_sum(view, rows).sums[:, 0])
    assert np.array_equal(opened, federation().devices.report_summed(view, rows).sums[:, 0])
    assert (opened != exact(made)).all()


def test_so_many_parts_are_the_whole_and_more_devices_make_more():
    found = []
    for seed in range(12):
        made = federation(seed=seed)
        noisy = made.devices.report_summed(made.server.publish(), np.arange(N)).sums[:, 0]
        found.append(noisy - exact(made))
    sigma = OwnEpsilon(4.0).sigma * STEPS / np.sqrt(CONFIG.shares[0])
    wanted = sigma * np.sqrt(N / PARTS)
    assert np.std(np.array(found)) == pytest.approx(wanted, rel=0.1)
    assert wanted > sigma


def test_each_device_draws_its_own_and_another_one_in_each_round():
    release = federation().devices._release
    spans = ((ITEMS + 1, 1.0),)
    drawn = [release.part(row, round, spans) for row in (0, 1) for round in (0, 1)]
    for k, one in enumerate(drawn):
        assert np.array_equal(one, release.part(k // 2, k % 2, spans))
        for other in drawn[:k]:
            assert np.abs(np.corrcoef(one, other)[0, 1]) < 0.6


def test_a_run_learns_with_it():
    made = federation()
    made.run()
    assert made.server.round == 2
    assert np.isfinite(made.server.items).all()


def test_fewer_devices_than_parts_are_refused_beforehand():
    world = random_world(N, ITEMS, 600, seed=3)
    consent = Consent.uniform(np.arange(N), Choice(epsilon=4.0))
    release = OwnEpsilon(4.0, parts=PARTS + 1)
    with pytest.raises(ConfigError, match="set link"):
        Federation.build(CONFIG, world, consent, release, Streams.from_seed(1), link=LINK)
