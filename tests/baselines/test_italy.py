"""Figures on Foursquare Italy: temporal split, all unseen training items ranked, ten places."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.baselines import Baseline, ItemKNN, Random, TopPop, UserKNN
from sottovoce.data.sources import load
from sottovoce.data.splitting import Split, keep_active, temporal_holdout
from sottovoce.errors import DataNotFound
from sottovoce.evaluation.protocol import evaluate
from sottovoce.rng import Streams

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def split() -> Split:
    try:
        dataset = load("foursquare-italy")
    except DataNotFound as missing:
        pytest.skip(str(missing))
    return temporal_holdout(keep_active(dataset.interactions, 20))


def summary(baseline: Baseline, split: Split) -> dict[str, float]:
    scorer = baseline.fit(split.train, Streams.from_seed(1))
    return evaluate(scorer, split.train, split.test).summary()


def test_figures(split: Split) -> None:
    assert (split.n_users, split.train.n_items, split.train.n_interactions) == (1353, 25498, 54088)
    floor, popular = summary(Random(), split), summary(TopPop(), split)
    users, items = summary(UserKNN(50), split), summary(ItemKNN(50), split)
    assert popular["P@10"] == pytest.approx(0.0270, abs=1e-4)
    assert popular["R@10"] == pytest.approx(0.0344, abs=1e-4)
    # Chance is about 10 test items among 25,000: the published Random has 0.0003.
    assert floor["P@10"] < 0.001
    assert floor["IC@10"] == pytest.approx(10_500, rel=0.02)
    assert users["P@10"] > 1.3 * popular["P@10"]
    # Seed 002 has Item-kNN level with Top-Pop. Here it is not, for rare venues crowd the
    # neighbourhoods (next test); among venues with 5 users or more it is level.
    assert floor["P@10"] < items["P@10"] < popular["P@10"]
    assert items["IC@10"] > 5 * users["IC@10"]


def test_rare_items_crowd_the_item_neighbourhoods(split: Split) -> None:
    near = ItemKNN(50).fit(split.train, Streams.from_seed(1)).right.tocoo()
    perfect = near.row[near.data > 1 - 1e-9]
    assert len(perfect) > 0.3 * near.nnz
    assert np.median(split.train.item_counts[perfect]) == 1
