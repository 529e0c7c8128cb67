"""What devices recommend by at home: the model, and what is publicly known of the items."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import FactorModel
from sottovoce.core.interactions import Interactions
from sottovoce.core.knowledge import Prior, WithKnowledge, prior
from sottovoce.core.recommender import Scorer
from sottovoce.data.dataset import Dataset
from sottovoce.errors import ConfigError
from sottovoce.experiment import Experiment


def scorer_at_home(
    experiment: Experiment,
    dataset: Dataset,
    train: Interactions,
    algorithm: FactorModel,
    vectors: NDArray[np.float32],
    items: NDArray[np.float32],
) -> Scorer:
    """By what an experiment permits at home."""
    if not experiment.home.knowledge:
        return algorithm.device_scorer(vectors, items)
    known = algorithm.popularity(items) or (_counts(dataset, train), 0.0)
    return algorithm.device_scorer_knowing(vectors, items, _prior(dataset, train, *known))


def baseline_at_home(
    experiment: Experiment, dataset: Dataset, train: Interactions, scorer: Scorer
) -> Scorer:
    """The same for a baseline, which knows how often items were chosen."""
    if not experiment.home.knowledge:
        return scorer
    return WithKnowledge(scorer, _prior(dataset, train, _counts(dataset, train)))


def _counts(dataset: Dataset, train: Interactions) -> NDArray[np.float64]:
    """Of each item, how many users have it, on all ranks."""
    here = train.item_counts.astype(np.int64)
    return dataset.shard.ranks.all_sum(here).astype(np.float64)


def _prior(
    dataset: Dataset, train: Interactions, popularity: NDArray[np.float64], noise: float = 0.0
) -> Prior:
    known = dataset.knowledge(train.items_vocabulary())
    if not known.n_groups:
        raise ConfigError(
            f"home.knowledge is set, but nothing is known of the items of {dataset.name} (no "
            "categories, no attributes); leave it out"
        )
    return prior(known, train, popularity, noise)
