"""A baseline of one's own: what is popular with those who have something in common with a user.

    sottovoce --with examples/my_baseline.py run experiment.toml
with [baselines.kindred] in the experiment file, and `power = 2` in it or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from sottovoce.baselines import BASELINES, Baseline, Progress
from sottovoce.config import require_number
from sottovoce.core.interactions import Interactions
from sottovoce.rng import Streams


@dataclass(frozen=True)
class Kindred:
    """score(u, i) = Σ (items in common of u and v)^power over the users v who have i."""

    table: csr_array
    power: float

    @property
    def n_items(self) -> int:
        return int(self.table.shape[1])

    def scores(self, users: NDArray[np.int64]) -> NDArray[np.float32]:
        common = (self.table[users] @ self.table.T).toarray() ** self.power
        return np.asarray(common @ self.table, dtype=np.float32)


@BASELINES.register("kindred")
@dataclass(frozen=True, slots=True)
class KindredUsers(Baseline):
    """Popular with those who have something in common with the user, the more the better."""

    title = "Kindred"
    power: float = 1.0

    def __post_init__(self) -> None:
        require_number("power", self.power, 0.0, 4.0)

    def fit(self, train: Interactions, rng: Streams, progress: Progress | None = None) -> Kindred:
        entries, shape = np.ones(train.n_interactions), (train.n_users, train.n_items)
        return Kindred(csr_array((entries, train.items, train.indptr), shape=shape), self.power)
