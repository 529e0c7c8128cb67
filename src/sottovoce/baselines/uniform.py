"""Random: the floor under every other figure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.data.interactions import Interactions
from sottovoce.rng import Streams


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
    """Every item is as good as any other. Nothing to configure."""

    title = "Random"
    listed_at = 10

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> RandomScorer:
        return RandomScorer(train.n_items, rng.child("random"))
