"""What devices recommend by at home: the model, and what is publicly known of the items."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import FactorModel
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.knowledge import Prior, WithKnowledge, prior
from sottovoce.core.ledger import Ledger
from sottovoce.core.messages import ModelView
from sottovoce.core.recommender import Scorer
from sottovoce.data.dataset import Dataset
from sottovoce.errors import ConfigError, DataError
from sottovoce.experiment import Experiment, PreparedExperiment
from sottovoce.parties.device import Devices


def scorer_at_home(
    experiment: Experiment,
    dataset: Dataset,
    train: Interactions,
    algorithm: FactorModel,
    vectors: NDArray[np.float32],
    items: NDArray[np.float32],
    histories: Interactions | None = None,
) -> Scorer:
    """By what an experiment permits at home. The people are those of the training part, or others
    with these `histories`."""
    if not experiment.home.knowledge:
        return algorithm.device_scorer(vectors, items)
    known = algorithm.popularity(items) or (_counts(dataset, train), 0.0)
    whose = train if histories is None else histories
    return algorithm.device_scorer_knowing(vectors, items, _prior(dataset, whose, *known))


def scorer_of_newcomers(
    world: PreparedExperiment, histories: Interactions, view: ModelView, triples: int
) -> Scorer:
    """What people with these histories, who were never in training, recommend to themselves. Each
    is a device that takes no part: it fits a vector to the published model, and sends nothing.
    `triples` are the draws of a device and round."""
    experiment, train = world.experiment, world.split.train
    settings = experiment.on(world.dataset, world.consent)[0]
    if settings.needs_whole_cohort:
        raise DataError(
            f"{experiment.system} looks at other users' embeddings, which nobody has at home; it "
            "recommends to those alone who were in training"
        )
    release = experiment.cross_device().release
    algorithm = settings.build_under(release, None, triples)
    users = train.n_users + np.arange(histories.n_users, dtype=np.int64)
    rng = experiment.party_streams()
    cohort = Cohort(
        users,
        histories,
        Consent.uniform(users, Choice(takes_part=False)),
        algorithm.device_init(users, rng),
        labels=np.full((len(users), len(settings.attributes)), -1, dtype=np.int64),
    )
    devices = Devices.behind_door(algorithm, cohort, release, Ledger(), rng)
    vectors = devices.vectors_at_home(view)
    known = world.dataset
    return scorer_at_home(experiment, known, train, algorithm, vectors, view.items, histories)


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
