"""Federated quality beside the truth: on the town and on MovieLens 1M the true rates of hits, which
are ranked at home by nothing that gram has, are within the intervals as often as these say; a model
made worse on purpose is seen in the very round in which it would be published."""

import numpy as np
import pytest
from quality_world import MOVIES, TOWN, AskedFederation

from sottovoce.core.quality import WHICH

DRAWS = 100
FEWEST = 88
"""Of 100 intervals that hold the truth; of a binomial of 95 % fewer come once in 700 times."""


def held(asked, truth, sums):
    """In how many draws the interval of each rate, and of the gain over each, holds the truth."""
    rates, gains = np.zeros(3, int), np.zeros(2, int)
    for draw in range(DRAWS):
        told = asked.told(sums, draw)
        for k, which in enumerate(WHICH):
            rate = told.rate(which)
            rates[k] += rate.low <= truth[k] <= rate.high
        for k, over in enumerate(WHICH[1:]):
            gain = told.gain(over)
            gains[k] += gain.low <= truth[0] - truth[k + 1] <= gain.high
    return rates, gains


def objections(asked, sums):
    return [asked.told(sums, draw).objection("version 1") for draw in range(DRAWS)]


@pytest.mark.parametrize(
    ("table", "seed"),
    [*(pytest.param(TOWN, seed, id=f"town {seed}") for seed in range(3)),
     pytest.param(MOVIES, 0, id="movielens-1m", marks=pytest.mark.data)],
)  # fmt: skip
def test_the_true_rates_are_within_their_intervals_and_a_spoilt_model_is_held_back(table, seed):
    asked = AskedFederation(table, seed)
    hits, asks = asked.found()
    truth, sums = hits[:, asks].mean(axis=1), asked.sums()
    rates, gains = held(asked, truth, sums)
    told = asked.told(sums, 0)
    print(
        f"{asks.sum():,} users; true {np.round(truth, 4)}; said {told.rate('candidate')}; "
        f"{rates} and {gains} of {DRAWS} hold"
    )
    assert (rates >= FEWEST).all(), rates
    assert (gains >= FEWEST).all(), gains
    assert told.users == pytest.approx(asks.sum(), abs=4 * told.noise)
    assert truth[0] > truth[2]  # pairs are worth something here: a good model is published
    assert sum(map(bool, objections(asked, sums))) <= 12
    asked.spoil()
    worse = asked.found()[0][:, asks].mean(axis=1)
    assert worse[0] < truth[0]
    seen = objections(asked, asked.sums())
    print(f"spoilt: {worse[0]:.4f}; held back in {sum(map(bool, seen))} of {DRAWS}: {seen[0]}")
    assert all("worse than version 1" in why or "worse than popularity" in why for why in seen)


def test_a_round_with_its_own_noise_says_what_the_draws_say():
    """The whole way, once: what is offered is the quality of these sums and the helper's noise."""
    asked = AskedFederation(TOWN, 5)
    hits, asks = asked.found()
    truth = hits[:, asks].mean(axis=1)
    asked.run_to(3)
    told = asked.made.server.offered[-1].quality
    for k, which in enumerate(WHICH):
        rate = told.rate(which)
        assert abs(rate.value - truth[k]) < 2.2 * (rate.high - rate.low) / 2


def test_where_people_speak_with_unequal_voices_the_rate_is_that_of_voices():
    """Who whispers counts for less, and nobody knows who does: what the interval holds is the rate
    by scale. The plain one differs by as much as hits have to do with ε, which is chance here."""
    table = {**TOWN, "consent": {"mix": [
        {"weight": 0.5, "epsilon": 1.0}, {"weight": 0.5, "epsilon": 8.0},
    ]}}  # fmt: skip
    asked = AskedFederation(table, 1)
    hits, asks = asked.found()
    scale = asked.made.devices._release.scale * asks
    assert len(np.unique(scale[asks])) == 2
    by_voice = (hits * scale).sum(axis=1) / scale.sum()
    rates, gains = held(asked, by_voice, asked.sums())
    print(f"by voices {np.round(by_voice, 4)}, plain {np.round(hits[:, asks].mean(axis=1), 4)}")
    assert (rates >= FEWEST).all()
    assert (gains >= FEWEST).all()
    assert asked.told(asked.sums(), 0).users == pytest.approx(scale.sum(), abs=25)
