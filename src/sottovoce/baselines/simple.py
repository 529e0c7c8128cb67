"""Random and Top-Pop: the floor under every other figure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.core.interactions import Interactions
from sottovoce.rng import Streams


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PopularityScorer:
    """One score per item, the same for every user."""

    counts: NDArray[np.float32]

    @property
    def n_items(self) -> int:
        return len(self.counts)

    def scores(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.tile(self.counts, (len(users), 1))


@BASELINES.register("top-pop")
@dataclass(frozen=True, slots=True)
class TopPop(Baseline):
    """An item's score is its number of training users. Nothing to configure.

    Counts are exact up to 2**24 users per item, where float32 stops telling integers apart.

    Example:
        ```python
        fitted = sv.fit(sv.TopPop(), parts)
        print(fitted.evaluate(["NDCG"]))
        ```
    """

    title = "Top-Pop"
    listed_at = 20
    floor = True

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> PopularityScorer:
        return self.fit_counts(train.item_counts)

    def fit_counts(self, counts: NDArray[np.int64]) -> PopularityScorer:
        return PopularityScorer(counts.astype(np.float32))

    def fold_in(
        self, fitted: PopularityScorer, train: Interactions, histories: Interactions
    ) -> PopularityScorer:
        return fitted


@dataclass(frozen=True, slots=True)
class RandomScorer:
    """A uniform score per (user, item); a user's row depends on the user and the stream alone."""

    n_items: int
    rng: Streams

    def scores(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.rng.uniform(users, self.n_items).astype(np.float32)


@BASELINES.register("random")
@dataclass(frozen=True, slots=True)
class Random(Baseline):
    """Every item is as good as any other. Nothing to configure.

    Example:
        ```python
        fitted = sv.fit(sv.Random(), parts)
        print(fitted.evaluate(["NDCG"]))
        ```
    """

    title = "Random"
    listed_at = 10

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> RandomScorer:
        return RandomScorer(train.n_items, rng.child("random"))

    def fold_in(
        self, fitted: RandomScorer, train: Interactions, histories: Interactions
    ) -> RandomScorer:
        return RandomScorer(fitted.n_items, fitted.rng.child("newcomers"))
