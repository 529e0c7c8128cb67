"""Generated interactions of a given shape: so many users, items and interactions.

For speed and scale, where a published data set is too large to be had. Activity is log-normal above
a minimum, popularity follows a Zipf law with a flattened head, and where `taste` is above 0 users
lean to the items near them in a space of a few dimensions, so that there is something to learn
beyond popularity. A user's items depend on the configuration and the user's number alone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from sottovoce.compiled import njit
from sottovoce.config import require_number, require_whole
from sottovoce.core.interactions import Interactions
from sottovoce.errors import ConfigError
from sottovoce.rng import GAMMA, Streams, mix

_HEAD = 30.0
"""Ranks by which the head of the popularity law is flattened."""
_PART = 1024


@dataclass(frozen=True, slots=True)
class ShapeConfig:
    """The default has the shape of MovieLens 1M and no taste but popularity."""

    users: int = 6_040
    items: int = 3_706
    interactions: int = 1_000_209
    min_user_items: int = 20
    taste: float = 0.0
    """Standard deviation, over items, of a user's leaning in logarithms of odds."""
    dimensions: int = 6
    """Dimensions of the space of tastes."""
    seed: int = 1

    def __post_init__(self) -> None:
        require_whole("users", self.users, 1, 10**8)
        require_whole("items", self.items, 2, 10**7)
        require_whole("min_user_items", self.min_user_items, 1, self.items // 2)
        require_whole("dimensions", self.dimensions, 1, 64)
        require_number("taste", self.taste, 0.0, 10.0, above=False)
        least, most = self.users * self.min_user_items, self.users * (self.items // 2)
        if not least <= self.interactions <= most:
            raise ConfigError(
                f"{self.users:,} users of {self.min_user_items:,} to {self.items // 2:,} items "
                f"each have {least:,} to {most:,} interactions, not {self.interactions:,}"
            )


def generate_shaped(config: ShapeConfig, threads: int = 1) -> Interactions:
    """Exactly as many interactions as asked for; the same for any `threads`."""
    rng = Streams.from_seed(config.seed).child("shaped")
    counts = _activity(config, rng.child("activity"))
    indptr = np.concatenate([[0], np.cumsum(counts)])
    generator = rng.child("popularity").generator()
    popularity = generator.permutation(-np.log(np.arange(config.items) + _HEAD))
    numbers = np.arange(config.items, dtype=np.int64)
    places = rng.child("items").normal(numbers, config.dimensions)
    users = np.arange(config.users, dtype=np.int64)
    tastes = rng.child("tastes").normal(users, config.dimensions)
    tastes *= config.taste / np.sqrt(config.dimensions)
    keys = rng.child("draws").keys(users)
    items = np.empty(indptr[-1], dtype=np.int32)

    def part(start: int) -> None:
        span = slice(start, start + _PART)
        ends = indptr[start : start + _PART + 1]
        _draw(keys[span], popularity, places, tastes[span], ends, items)

    starts = range(0, config.users, _PART)
    with ThreadPoolExecutor(max(1, threads)) as pool:
        list(pool.map(part, starts))
    return Interactions(indptr=indptr, items=items, n_items=config.items)


def _activity(config: ShapeConfig, rng: Streams) -> NDArray[np.int64]:
    """Log-normal above the minimum, at most half the items, adding up to the total."""
    users = np.arange(config.users, dtype=np.int64)
    activity = np.exp(rng.normal(users, 1)[:, 0])
    least, most = config.min_user_items, config.items // 2
    wanted = np.full(config.users, float(least))
    for _ in range(30):  # clipping takes a little away each time
        missing = config.interactions - wanted.sum()
        wanted = np.clip(wanted + activity / activity.sum() * missing, least, most)
    counts = wanted.astype(np.int64)
    while missing := config.interactions - int(counts.sum()):  # what rounding has left over
        step = 1 if missing > 0 else -1
        room = np.flatnonzero(counts < most if missing > 0 else counts > least)
        counts[room[: abs(missing)]] += step
    return counts


@njit(nogil=True, cache=True)
def _draw(keys, popularity, places, tastes, ends, out):  # type: ignore[no-untyped-def]
    """Weighted draws without replacement: each item waits a time with its weight as rate, and the
    first ones to arrive are taken, in the order of their numbers."""
    n_items = len(popularity)
    times = np.empty(n_items)
    for u in range(len(keys)):
        counter = keys[u]
        for i in range(n_items):
            counter += GAMMA
            leaning = popularity[i]
            for d in range(places.shape[1]):
                leaning += tastes[u, d] * places[i, d]
            uniform = ((mix(counter) >> uint64(11)) + uint64(1)) * 2.0**-53
            times[i] = -np.log(uniform) * np.exp(-leaning)
        count = ends[u + 1] - ends[u]
        last = np.partition(times, count - 1)[count - 1]
        at = ends[u]
        for i in range(n_items):
            if times[i] <= last and at < ends[u + 1]:
                out[at] = i
                at += 1
