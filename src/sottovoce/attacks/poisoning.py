"""What poisoning has reached: who is shown the pushed item now."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.interactions import Interactions
from sottovoce.errors import DataError
from sottovoce.recommender import Scorer, top_n
from sottovoce.rng import Streams


def exposure(
    scorer: Scorer,
    train: Interactions,
    target: int,
    places: tuple[int, ...] = (10, 20),
    threads: int | None = None,
) -> dict[str, float]:
    """ER@k: the share of users without the target in training to whom it is shown in the first k
    places."""
    lacks = np.ones(train.n_users, dtype=bool)
    lacks[train.users[train.items == target]] = False
    users = np.flatnonzero(lacks)
    if not len(users):
        raise DataError("everybody has the target already; choose another one")
    lists, _ = top_n(scorer, users, train, max(places), threads=threads)
    shown = lists == target
    return {f"ER@{k}": float(shown[:, :k].any(axis=1).mean()) for k in places}


def cold_targets(train: Interactions, number: int, rng: Streams) -> NDArray[np.int64]:
    """Items for an attacker to push: drawn from the colder half of those that anybody has."""
    counts = train.item_counts
    had = np.flatnonzero(counts > 0)
    cold = had[counts[had] <= np.median(counts[had])]
    if len(cold) < number:
        raise DataError(f"there are {len(cold):,} cold items, not {number:,}")
    return cold[rng.child("targets").choose(len(cold), number)]
