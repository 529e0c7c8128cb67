"""How SAROS and DRIFT are measured: MAP and NDCG at 5 and 10, over streams with negatives.

An interaction of the test part is relevant where its rating says so. Four ways to measure:

- `full`: the catalogue less what the user has touched in training, as every other table here.
- `own`: each user's held-out items alone, liked or not; the definitions of metrics.py.
- `printed`: as `own`, with NDCG as the DRIFT thesis prints it: the ideal list has K relevant items,
  whether the user has as many or not. Who has fewer than K cannot reach 1. (The thesis prints the
  gain of an item as 2^(rel − 1), which would give half a point to an irrelevant one; what is meant
  is 2^rel − 1, as its ideal list shows.)
- `legacy`: the same candidates with the public SAROS code's definitions. AP divides by the hits
  within k; the discount is 1, 1, 1/log2(3), ...: the first two ranks count alike; the ideal list
  is the user's own first 10 places in the best order. Users without hits count 0.

Only `full` says how good lists are: with few candidates, most of them liked, any order does well,
and dividing by hits or by one's own list rewards a system for finding little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import Scorer, score_items
from sottovoce.errors import DataError
from sottovoce.evaluation import metrics
from sottovoce.evaluation.protocol import Protocol, evaluate

CUTS = (5, 10)
EXPORTED = 10
"""Places of a list that the public code writes out, whatever the cut-off."""

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Measured:
    """One number per user, by metric: AP@5, NDCG@5, AP@10, NDCG@10."""

    users: NDArray[np.int64]
    values: Mapping[str, Floats]
    protocol: str

    def __repr__(self) -> str:
        return f"<Measured {len(self.users):,} users; {self.protocol}>"

    def means(self) -> dict[str, float]:
        """MAP@5, NDCG@5, MAP@10, NDCG@10."""
        return {
            f"M{name}" if name.startswith("AP") else name: float(values.mean())
            for name, values in self.values.items()
        }


def full(
    scorer: Scorer,
    train: Interactions,
    test: Interactions,
    positive_from: float,
    *,
    threads: int | None = None,
) -> Measured:
    """Rank the catalogue, for users with at least one relevant test item."""
    liked = test.select(_liked(test, positive_from))
    values: dict[str, Floats] = {}
    for k in CUTS:
        result = evaluate(scorer, train, liked, Protocol(k=k), threads=threads)
        values |= {name: result.per_user(name) for name in (f"AP@{k}", f"NDCG@{k}")}
    return Measured(result.users, values, "all training items the user has not touched")


def own(
    scorer: Scorer, test: Interactions, positive_from: float, *, threads: int | None = None
) -> Measured:
    """Rank each user's held-out items, for users with at least one relevant among them."""
    liked = test.select(_liked(test, positive_from))
    users = np.flatnonzero(liked.counts > 0)
    hit = own_hits(scorer, test, users, positive_from, threads=threads)
    relevant = liked.counts[users]
    values: dict[str, Floats] = {}
    for k in CUTS:
        values[f"AP@{k}"] = metrics.average_precision(hit[:, :k], relevant)
        values[f"NDCG@{k}"] = metrics.ndcg(hit[:, :k], relevant)
    return Measured(users, values, "the user's held-out items alone")


def printed(
    scorer: Scorer, test: Interactions, positive_from: float, *, threads: int | None = None
) -> Measured:
    """As `own`, with NDCG as the DRIFT thesis prints it."""
    liked = test.select(_liked(test, positive_from))
    users = np.flatnonzero(liked.counts > 0)
    hit = own_hits(scorer, test, users, positive_from, threads=threads)
    values: dict[str, Floats] = {}
    for k in CUTS:
        values[f"AP@{k}"] = metrics.average_precision(hit[:, :k], liked.counts[users])
        values[f"NDCG@{k}"] = printed_ndcg(hit[:, :k])
    return Measured(users, values, "the user's held-out items alone, NDCG as the thesis prints it")


def printed_ndcg(hit: Bools) -> Floats:
    """DCG over that of a list in which all K items are relevant."""
    full_list = np.full(len(hit), hit.shape[1])
    return metrics.ndcg(hit, full_list)


def legacy(
    scorer: Scorer, test: Interactions, positive_from: float, *, threads: int | None = None
) -> Measured:
    """As the public code, for every user with held-out items."""
    users = np.flatnonzero(test.counts > 0)
    hit = own_hits(scorer, test, users, positive_from, threads=threads)
    values: dict[str, Floats] = {}
    for k in CUTS:
        values[f"AP@{k}"] = legacy_average_precision(hit[:, :k])
        values[f"NDCG@{k}"] = legacy_ndcg(hit, k)
    return Measured(users, values, "the user's held-out items alone, as the public SAROS code")


def legacy_average_precision(hit: Bools) -> Floats:
    """Mean of P@r over the ranks r of hits in the list; 0 where there are none."""
    at_rank = np.cumsum(hit, axis=1) / np.arange(1, hit.shape[1] + 1)
    value: Floats = (at_rank * hit).sum(axis=1) / np.maximum(hit.sum(axis=1), 1)
    return value


def legacy_ndcg(hit: Bools, k: int) -> Floats:
    """DCG of the first k places over that of the whole list's hits put first; 0 without hits."""
    discount = 1.0 / np.maximum(np.log2(np.arange(1, k + 1)), 1.0)
    best = -np.sort(-hit.astype(np.float64), axis=1)[:, :k]
    ideal = (best * discount[: best.shape[1]]).sum(axis=1)
    gain = (hit[:, :k] * discount[: hit.shape[1]]).sum(axis=1)
    value: Floats = np.divide(gain, ideal, out=np.zeros_like(gain), where=ideal > 0)
    return value


def own_hits(
    scorer: Scorer,
    test: Interactions,
    users: NDArray[np.int64],
    positive_from: float,
    *,
    threads: int | None = None,
) -> Bools:
    """Which of the first 10 places hold a relevant item when the users' held-out items are ranked:
    [users, 10]. Ties go to the smaller item number; items without training cannot be ranked."""
    liked = _liked(test, positive_from)
    owner, items = metrics.rows_of(test, users)
    counts = np.bincount(owner, minlength=len(users))
    place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    width = max(EXPORTED, int(counts.max(initial=0)))
    candidates = np.full((len(users), width), -1, dtype=np.int32)
    candidates[owner, place] = np.where(items < scorer.n_items, items, -1)
    good = np.zeros(candidates.shape, dtype=bool)
    entries = test.indptr[users][owner] + place
    good[owner, place] = liked[entries]
    scores = score_items(scorer, users, candidates, threads=threads)
    ranked = np.argsort(-scores, axis=1, kind="stable")[:, :EXPORTED]
    first = np.take_along_axis(good, ranked, axis=1)
    return first & (np.take_along_axis(scores, ranked, axis=1) > -np.inf)


def _liked(test: Interactions, positive_from: float) -> Bools:
    if test.ratings is None:
        raise DataError("without ratings nothing says which test items are relevant")
    liked: Bools = test.ratings >= positive_from
    return liked
