"""Two metrics of one's own. They are in every result of a command that is called with this file:

sottovoce --with examples/my_metric.py run experiment.toml
sottovoce --with examples/my_metric.py report runs/experiment
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.evaluation import METRICS, Ranked, UserMetric


@METRICS.register("top-half")
class TopHalf(UserMetric):
    """Top@K: the share of the upper half of a list that is a hit, for pages that show no more."""

    short = "Top"

    def per_user(self, ranked: Ranked) -> NDArray[np.float64]:
        upper = ranked.hit[:, : max(1, ranked.hit.shape[1] // 2)]
        return np.asarray(upper.mean(axis=1))

    def gain(self, rank: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(rank <= 5, dtype=np.float64)  # of one item among sampled negatives


@METRICS.register("novelty")
class Novelty(UserMetric):
    """Novelty@K: the mean of -log2(share of users who have the item) over a list, in bits."""

    short = "Novelty"
    format, best = ".2f", None
    within = (0.0, 64.0)

    def per_user(self, ranked: Ranked) -> NDArray[np.float64]:
        counts = np.append(ranked.train.item_counts, 1)  # the last one is for empty places
        share = np.maximum(counts[ranked.lists], 1) / ranked.train.n_users
        filled = ranked.lists >= 0
        bits = np.where(filled, -np.log2(share), 0.0).sum(axis=1)
        return np.asarray(bits / np.maximum(filled.sum(axis=1), 1))
