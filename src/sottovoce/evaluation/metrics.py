"""Ranking metrics, one value per user; and what a set of lists does to the catalogue.

Lists are item numbers [users, K], best first, -1 where there was nothing to recommend. `relevant`
counts a user's test items, including those that no system could rank. Every function here wants
users with at least one relevant item; `protocol.evaluate` skips and counts the others.

Agreement with ir-measures: P, R, Success (our HR) and nDCG are the same. Its AP@K divides by the
number of relevant items R; ours divides by min(K, R), so that a perfect list of K reaches 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.interactions import Interactions
from sottovoce.errors import ConfigError, DataError, UsageError
from sottovoce.registry import Component, Registry

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ranked:
    """Lists of K items, best first, for users with at least one test item each."""

    users: NDArray[np.int64]
    lists: NDArray[np.int32]
    """A row per user; -1 where there was nothing to recommend."""
    hit: NDArray[np.bool_]
    """Which places of the lists hold a test item of the user."""
    relevant: NDArray[np.int64]
    """How many test items a user has, with those that no system could rank."""
    train: Interactions
    test: Interactions


class Metric(Component, ABC):
    """A figure of lists of recommendations, which a summary shows as SHORT@K."""

    __slots__ = ()
    short: ClassVar[str] = ""
    """What results call it; its name where it says nothing."""
    heading: ClassVar[str] = ""
    """What tables call it, where that is not `short`."""
    format: ClassVar[str] = ".4f"
    best: ClassVar[Literal["max", "min"] | None] = "max"
    """Which value is the best one; None where more is neither better nor worse."""
    shown: ClassVar[Literal["always", "sampled", "never", "asked"]] = "always"
    """Whether tables of results have a column of it where nobody says which: where it applies,
    under sampled candidates alone, or never. One that must be asked for is not measured either."""

    @abstractmethod
    def overall(
        self, means: Mapping[str, float], lists: NDArray[np.int32] | None, n_items: int
    ) -> float | None:
        """The figure for all users together, None where it does not apply. `means` are those of
        the metrics per user; there are no lists under sampled candidates."""

    def overall_counted(
        self, means: Mapping[str, float], counts: Ints | None, n_items: int
    ) -> float | None:
        """`overall` where nobody has all lists: from how often each item is in one. Who needs more
        than the means and these says that it does not apply."""
        return self.overall(means, None, n_items)

    @classmethod
    def key(cls) -> str:
        """What a summary calls it before @K."""
        return cls.short or cls.name

    def figure(
        self,
        means: Mapping[str, float],
        lists: NDArray[np.int32] | None,
        n_items: int,
        counts: Ints | None = None,
    ) -> float | None:
        """`overall`, where that is a number or None; else it raises. By `counts` where these are
        given."""
        value: Any  # of a stranger it may be anything
        if counts is None:
            value = self.overall(means, lists, n_items)
        else:
            value = self.overall_counted(means, counts, n_items)
        if isinstance(value, np.generic):
            value = value.item()
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise UsageError(
                f"the metric {self.name} must give one number for all users, and gave {value!r:.60}"
            )
        return value


class UserMetric(Metric):
    """A metric with a value for every user. A summary shows the mean."""

    __slots__ = ()
    mean: ClassVar[str] = ""
    """What summaries call the mean, where that is not `short`."""
    within: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """The smallest and the largest value."""

    @abstractmethod
    def per_user(self, ranked: Ranked) -> Floats:
        """One finite number for each user."""

    def gain(self, rank: NDArray[np.int64]) -> Floats | None:
        """Return the gain of test items found at these ranks (from 1) among sampled negatives; a
        user gets the mean of her items. None if the metric needs whole lists."""
        return None

    def overall(
        self, means: Mapping[str, float], lists: NDArray[np.int32] | None, n_items: int
    ) -> float | None:
        return means.get(self.short or self.name)

    @classmethod
    def key(cls) -> str:
        return cls.mean or cls.short or cls.name

    def checked(self, values: Floats, n: int) -> Floats:
        """The values, where they are a finite number for each of n users; else it raises."""
        found = np.asarray(values)
        if found.shape != (n,) or not np.issubdtype(found.dtype, np.number):
            raise UsageError(
                f"the metric {self.name} must give one number for each of {n:,} users, and gave an "
                f"array of shape {found.shape} and type {found.dtype}"
            )
        wrong = int((~np.isfinite(found)).sum())
        if wrong:
            raise UsageError(
                f"the metric {self.name} gave {wrong:,} of {n:,} users a value that is no finite "
                "number"
            )
        return found.astype(np.float64, copy=False)


METRICS: Registry[type[Metric]] = Registry("metric", "sottovoce.evaluation", Metric)


def metric_named(word: str) -> type[Metric]:
    """By its name, or by what results or tables call it, in capitals or not (NDCG, hit-rate, HR,
    MAP, coverage); raises where there is none."""
    wanted = word.strip().lower()
    for name, kind in METRICS.items():
        if wanted in {name, *(w.lower() for w in (kind.key(), kind.short, kind.heading) if w)}:
            return kind
    listed = ", ".join(kind.key() for kind in METRICS.values())
    raise ConfigError(f"there is no metric {word!r}; there are {listed}")


def sampled_too(kind: type[Metric]) -> bool:
    """Whether it can be measured among sampled candidates, where there are no lists."""
    one = kind()
    return isinstance(one, UserMetric) and one.gain(np.ones(1, np.int64)) is not None


def every_metric(asked: Sequence[str] = ()) -> list[Metric]:
    """All of them, in the order of results, but for those that must be asked for by their keys and
    are not; raises where results could not tell two apart."""
    found = [kind() for kind in METRICS.values()]
    owners: dict[str, str] = {}
    for metric in found:
        for key in {metric.key(), metric.short or metric.name}:
            if key in owners:
                raise ConfigError(
                    f"results would call the metrics {owners[key]} and {metric.name} both {key!r}; "
                    "set `short` in one of them to something else"
                )
            owners[key] = metric.name
    return [metric for metric in found if metric.shown != "asked" or metric.key() in asked]


def user_metrics(asked: Sequence[str] = ()) -> dict[str, UserMetric]:
    """Those with a value for every user, by their short names."""
    return {m.short or m.name: m for m in every_metric(asked) if isinstance(m, UserMetric)}


def rows_of(table: Interactions, users: Ints) -> tuple[Ints, NDArray[np.int32]]:
    """The items of these users one after another, and for each the place of its user in `users`."""
    start = table.indptr[users]
    counts = table.indptr[users + 1] - start
    owner = np.repeat(np.arange(len(users)), counts)
    entries = np.arange(len(owner)) + np.repeat(start - (np.cumsum(counts) - counts), counts)
    return owner, table.items[entries]


def hits(lists: NDArray[np.int32], users: Ints, test: Interactions) -> Bools:
    """Which places of each list hold one of the user's test items; same shape as `lists`."""
    lists = np.asarray(lists)
    if lists.ndim != 2 or len(lists) != len(users):
        raise UsageError("there must be one list per user")
    owner, items = rows_of(test, np.asarray(users, dtype=np.int64))
    width = np.int64(max(test.n_items, 1))
    known = owner * width + items  # ascending, as items ascend within a user
    wanted = np.arange(len(lists))[:, None] * width + lists
    place = np.searchsorted(known, wanted)
    found = np.zeros(lists.shape, dtype=bool)
    inside = (place < len(known)) & (lists >= 0) & (lists < width)
    found[inside] = known[place[inside]] == wanted[inside]
    return found


def precision(hit: Bools, relevant: Ints) -> Floats:
    """P@K = hits / K, also where the list is shorter than K."""
    value: Floats = hit.sum(axis=1) / hit.shape[1]
    return value


def recall(hit: Bools, relevant: Ints) -> Floats:
    """R@K = hits / relevant."""
    value: Floats = hit.sum(axis=1) / relevant
    return value


def hit_rate(hit: Bools, relevant: Ints) -> Floats:
    """HR@K = 1 where the list holds at least one hit."""
    value: Floats = np.any(hit, axis=1).astype(np.float64)
    return value


def ndcg(hit: Bools, relevant: Ints) -> Floats:
    """NDCG@K with binary gains and discount 1 / log2(rank + 1)."""
    discount = 1.0 / np.log2(np.arange(2, hit.shape[1] + 2))
    ideal = np.cumsum(discount)[np.minimum(relevant, hit.shape[1]) - 1]
    value: Floats = (hit * discount).sum(axis=1) / ideal
    return value


def average_precision(hit: Bools, relevant: Ints) -> Floats:
    """AP@K = sum of P@r over the ranks r ≤ K of hits / min(K, relevant)."""
    k = hit.shape[1]
    at_rank = np.cumsum(hit, axis=1) / np.arange(1, k + 1)
    value: Floats = (at_rank * hit).sum(axis=1) / np.minimum(relevant, k)
    return value


def reciprocal_rank(hit: Bools, relevant: Ints) -> Floats:
    """RR@K = 1 / rank of the first hit, 0 where there is none."""
    value: Floats = np.where(np.any(hit, axis=1), 1.0 / (1.0 + np.argmax(hit, axis=1)), 0.0)
    return value


def f1(precision: float, recall: float) -> float:
    """Harmonic mean of the two averages (not the average of per-user harmonic means)."""
    total = precision + recall
    return 2.0 * precision * recall / total if total > 0 else 0.0


def item_coverage(lists: NDArray[np.int32]) -> int:
    """IC: the number of distinct items recommended to anybody."""
    chosen = np.unique(lists)
    return int((chosen >= 0).sum())


def gini(lists: NDArray[np.int32], n_items: int) -> float:
    """1 minus the Gini index of the recommendation slots: 1 where all items get the same share,
    0 where one item takes all. `n_items` is the size of the catalogue.

    Not a number where nothing was recommended or the catalogue has fewer than two items.
    """
    return gini_of(np.bincount(lists[lists >= 0], minlength=n_items), n_items)


def gini_of(counts: Ints, n_items: int) -> float:
    """`gini` from how often each item was recommended."""
    slots = int(counts.sum())
    if slots == 0 or n_items < 2:
        return float("nan")
    largest = int(np.flatnonzero(counts)[-1])
    if largest >= n_items:
        raise DataError(f"item {largest} lies outside a catalogue of {n_items}")
    share = np.sort(counts[:n_items]) / slots
    weight = 2 * np.arange(1, n_items + 1) - n_items - 1
    return float(1.0 - (weight * share).sum() / (n_items - 1))


@METRICS.register("precision")
class Precision(UserMetric):
    """P@K, the share of a list that is a hit."""

    short = "P"

    def per_user(self, ranked: Ranked) -> Floats:
        return precision(ranked.hit, ranked.relevant)


@METRICS.register("recall")
class Recall(UserMetric):
    """R@K, the share of a user's test items that are in her list."""

    short = "R"

    def per_user(self, ranked: Ranked) -> Floats:
        return recall(ranked.hit, ranked.relevant)


@METRICS.register("f1")
class F1(Metric):
    """F1@K, the harmonic mean of mean precision and mean recall."""

    short = "F1"
    shown = "never"

    def overall(
        self, means: Mapping[str, float], lists: NDArray[np.int32] | None, n_items: int
    ) -> float | None:
        return f1(means["P"], means["R"]) if "P" in means and "R" in means else None


@METRICS.register("hit-rate")
class HitRate(UserMetric):
    """HR@K, the share of users with a hit."""

    short = "HR"
    shown = "sampled"

    def per_user(self, ranked: Ranked) -> Floats:
        return hit_rate(ranked.hit, ranked.relevant)

    def gain(self, rank: Ints) -> Floats:
        return np.ones(len(rank))


@METRICS.register("ndcg")
class NDCG(UserMetric):
    """NDCG@K, hits discounted by their rank, as a share of what a perfect list has."""

    short = "NDCG"

    def per_user(self, ranked: Ranked) -> Floats:
        return ndcg(ranked.hit, ranked.relevant)

    def gain(self, rank: Ints) -> Floats:
        value: Floats = 1.0 / np.log2(rank + 1)
        return value


@METRICS.register("average-precision")
class AveragePrecision(UserMetric):
    """AP@K, the mean precision at the ranks of hits; the mean over users is MAP@K."""

    short, mean = "AP", "MAP"
    shown = "sampled"

    def per_user(self, ranked: Ranked) -> Floats:
        return average_precision(ranked.hit, ranked.relevant)

    def gain(self, rank: Ints) -> Floats:
        value: Floats = 1.0 / rank
        return value


@METRICS.register("reciprocal-rank")
class ReciprocalRank(UserMetric):
    """RR@K, 1 / rank of the first hit, 0 without one; the mean over users is MRR@K."""

    short, mean = "RR", "MRR"
    shown = "asked"

    def per_user(self, ranked: Ranked) -> Floats:
        return reciprocal_rank(ranked.hit, ranked.relevant)

    def gain(self, rank: Ints) -> Floats:
        value: Floats = 1.0 / rank
        return value


@METRICS.register("item-coverage")
class ItemCoverage(Metric):
    """IC@K, the number of items that are recommended to anybody."""

    short, heading = "IC", "coverage"
    format, best = ",.0f", None

    def overall(
        self, means: Mapping[str, float], lists: NDArray[np.int32] | None, n_items: int
    ) -> float | None:
        return None if lists is None else item_coverage(lists)

    def overall_counted(
        self, means: Mapping[str, float], counts: Ints | None, n_items: int
    ) -> float | None:
        return None if counts is None else int(np.count_nonzero(counts))


@METRICS.register("gini")
class Gini(Metric):
    """Gini@K, how evenly items are recommended: 1 where all get the same share."""

    short = "Gini"
    format, best = ".3f", None

    def overall(
        self, means: Mapping[str, float], lists: NDArray[np.int32] | None, n_items: int
    ) -> float | None:
        return None if lists is None else gini(lists, n_items)

    def overall_counted(
        self, means: Mapping[str, float], counts: Ints | None, n_items: int
    ) -> float | None:
        return None if counts is None else gini_of(counts, n_items)


@dataclass(frozen=True, slots=True)
class BiasDisparity:
    """Per category: its over-representation in the data and in the lists, and the relative change.

    Values are not numbers for a category without items (`source`, `recommended`) or without
    training interactions (`disparity`).
    """

    source: Floats
    recommended: Floats
    disparity: Floats


def bias_disparity(
    lists: NDArray[np.int32], train: Interactions, membership: Bools
) -> BiasDisparity:
    """How far lists shift categories: B = (share of events in C) / (share of items in C), and
    BD = (B of the lists − B of the training data) / B of the training data.

    `membership` says which item is in which category, [items, categories]; an item may be in
    several or in none.
    """
    member = np.asarray(membership, dtype=bool)[: train.n_items]
    if member.ndim != 2 or len(member) != train.n_items:
        raise DataError(f"membership must have a row for each of {train.n_items:,} items")
    share_items = member.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        source = _category_share(train.items, member) / share_items
        recommended = _category_share(lists[lists >= 0], member) / share_items
        disparity = (recommended - source) / source
    disparity[~(source > 0)] = np.nan
    return BiasDisparity(source, recommended, disparity)


def _category_share(items: NDArray[np.int32], member: Bools) -> Floats:
    counts = np.bincount(items, minlength=len(member)).astype(np.float64)
    if len(counts) > len(member):
        raise DataError("a list holds items that are not in the training catalogue")
    return counts @ member / max(1, len(items))
