"""gram's last stage, where it is asked for: how good the new model is, by items held out at home.

A device keeps its latest items out of what it contributes to the sums before. Now it ranks, from
the items before them, by the new model, by the one that is published, and by popularity alone, and
says of each whether one of ten recommendations is among the items held out. A hit is one number and
a miss another, so that what leaves has norm 1 whatever the answers are, and of a ratio of sums the
difference of a pair, hits − misses, is all that the noise of the pair moves. (Numbers of hits, or
hits and a count, would need up to twice the noise for the same bound.)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.contributions import Profile
from sottovoce.core.interactions import Interactions
from sottovoce.core.quality import CUTOFF, WHICH, Quality
from sottovoce.core.recommender import Scorer, top_n

FEWEST = 5
"""Whoever has fewer items holds none out."""
NUMBERS = 2 * len(WHICH)
"""Numbers of a contribution: hits and misses by each of `WHICH`."""
_EACH = math.sqrt(1.0 / len(WHICH))
_SPREAD = 2654435761
"""Shuffles items that came at once, alike on all devices (Knuth's multiplier)."""


def parted(history: Interactions, share: float) -> tuple[Interactions, Interactions]:
    """What may be contributed, and the latest items of each user, which are held out: this share
    of hers, at least one, and none where she has few."""
    many, users = history.counts, history.users
    out = np.where(many >= FEWEST, np.maximum(1, (share * many).astype(np.int64)), 0)
    times = history.timestamps
    when = np.zeros(len(users), np.int64) if times is None else times
    order = np.lexsort((history.items.astype(np.uint64) * _SPREAD % 2**32, when, users))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order)) - history.indptr[users[order]]
    held = place >= (many - out)[users]
    return history.select(~held), history.select(held)


def hits(scorer: Scorer, before: Interactions, held: Interactions) -> NDArray[np.bool_]:
    """For whom one of ten recommendations, beside the items before, is among those held out."""
    lists, _ = top_n(scorer, np.arange(before.n_users), before, CUTOFF, threads=1)
    users = np.repeat(np.arange(before.n_users, dtype=np.int64), CUTOFF)
    found = held.find(users, np.maximum(lists, 0).ravel().astype(np.int64)) >= 0
    good = found.reshape(lists.shape) & (lists >= 0)
    hit: NDArray[np.bool_] = np.count_nonzero(good, axis=1) > 0
    return hit


def told(found: tuple[NDArray[np.bool_], ...], held: Interactions) -> Profile:
    """What each device has found, in the order of `WHICH`; nothing of who held nothing out."""
    says = held.counts > 0
    place = np.column_stack([2 * k + ~hit for k, hit in enumerate(found)])[says].astype(np.int32)
    indptr = np.concatenate([[0], np.cumsum(len(WHICH) * says)]).astype(np.int64)
    value = np.full(place.size, _EACH)
    return Profile(indptr, place.ravel(), value, NUMBERS, False, held.counts.astype(np.int32))


def quality_of(sums: NDArray[np.floating], noise: float) -> Quality:
    """What the noisy sums of such profiles say; `noise` is on each of them."""
    each = (sums.astype(np.float64) / _EACH).tolist()
    return Quality(tuple(each[::2]), tuple(each[1::2]), noise / _EACH)
