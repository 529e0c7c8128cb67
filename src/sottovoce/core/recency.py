"""In which order a user came to her items, and what that weighs at home.

Equal times, and no times at all, share their mean place: whoever has no order has equal weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.config import require_number
from sottovoce.core.interactions import Interactions
from sottovoce.core.portable import exp_of


def positions(history: Interactions) -> NDArray[np.float64]:
    """The place of each entry among its user's, from 0 for the oldest."""
    if history.timestamps is None:
        return np.repeat((history.counts - 1) / 2.0, history.counts)
    users, times = history.users, history.timestamps
    order = np.lexsort((times, users))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (users[order][1:] != users[order][:-1]) | (times[order][1:] != times[order][:-1])
    first = np.flatnonzero(new)
    many = np.diff(first, append=len(order))
    place = np.arange(len(order)) - history.indptr[users]
    found = np.empty(len(order))
    found[order] = np.repeat(place[first] + (many - 1) / 2.0, many)
    return found


def recency(history: Interactions, memory: float) -> NDArray[np.float64]:
    """The weight of each entry at home: it falls by e with every `memory` later items of its user.
    All weigh 1 where `memory` is 0, or where there are no times."""
    require_number("memory", memory, 0.0, 1e9, above=False)
    if not memory or history.timestamps is None:
        return np.ones(history.n_interactions)
    later = np.repeat(history.counts - 1.0, history.counts) - positions(history)
    return exp_of(-later / memory)
