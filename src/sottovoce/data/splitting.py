"""Training and test parts over one numbering.

Items are renumbered in every split: those with a training interaction come first, in the order of
their old numbers, so `train.n_items` is the catalogue a model can learn and rank. Items that occur
in the test part alone follow; they cannot be ranked but count in recall. Users keep their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.interactions import Interactions
from sottovoce.core.ranks import ALONE, WHOLE, Ranks, Shard
from sottovoce.data.dataset import Dataset
from sottovoce.errors import ConfigError, DataError
from sottovoce.rng import Streams, mix_array

Which = Literal["latest", "random"]
Data = TypeVar("Data", Interactions, Dataset)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Split:
    """`train` and `test` over the same users. Item i is item `item_map[i]` of the source."""

    train: Interactions
    test: Interactions
    item_map: NDArray[np.int64]
    negatives: NDArray[np.int32] | None = None
    """Sampled test candidates that came with the data, shape [users, k], in this numbering."""
    protocol: str = ""
    """How it was made, in words, to be printed beside results."""

    def __post_init__(self) -> None:
        if self.train.n_users != self.test.n_users:
            raise DataError("both parts of a split must have the same users")
        if self.train.n_items > self.test.n_items or len(self.item_map) != self.test.n_items:
            raise DataError("the test part of a split must number every item")

    def __repr__(self) -> str:
        return (
            f"<Split {self.n_users:,} users, {self.train.n_interactions:,} train on "
            f"{self.train.n_items:,} items, {self.test.n_interactions:,} test>"
        )

    @property
    def n_users(self) -> int:
        return self.train.n_users

    @property
    def n_items(self) -> int:
        """Items in either part; those from `train.n_items` on cannot be ranked."""
        return self.test.n_items

    def dataset_items(self, items: NDArray[np.integer]) -> NDArray[np.int64]:
        """Numbers in the source data set, for titles and categories."""
        numbers: NDArray[np.int64] = self.item_map[items]
        return numbers


def temporal_holdout(
    interactions: Interactions, fraction: float = 0.2, shard: Shard = WHOLE
) -> Split:
    """Each user's latest floor(fraction · n) interactions go to the test part.

    Equal times are ordered by item number, the larger counting as later.
    """
    times = _times(interactions)
    held_out = _last(interactions, times, _share(fraction))
    return _parts(interactions, held_out, f"latest {fraction:g} of each user held out", shard)


def random_holdout(
    interactions: Interactions, fraction: float, rng: Streams, shard: Shard = WHOLE
) -> Split:
    """A random floor(fraction · n) of each user's interactions go to the test part.

    A user's draw depends on the stream and the user's number and items alone.
    """
    held_out = _last(interactions, _random_keys(interactions, rng, shard), _share(fraction))
    return _parts(interactions, held_out, f"random {fraction:g} of each user held out", shard)


def leave_one_out(
    interactions: Interactions,
    which: Which = "latest",
    rng: Streams | None = None,
    shard: Shard = WHOLE,
) -> Split:
    """One interaction of each user goes to the test part; users with a single one keep it.

    The latest one (equal times: the larger item number), or a random one, which needs `rng`.
    """
    keys: NDArray[np.int64] | NDArray[np.uint64]
    if which == "latest":
        keys = _times(interactions)
    elif which == "random":
        if rng is None:
            raise ConfigError('leave_one_out(which="random") needs rng')
        keys = _random_keys(interactions, rng, shard)
    else:
        raise ConfigError(f"which must be latest or random, not {which!r}")
    held_out = _last(interactions, keys, lambda counts: (counts > 1).astype(np.int64))
    return _parts(interactions, held_out, f"{which} interaction of each user held out", shard)


def published_split(dataset: Dataset) -> Split:
    """The split that came with the data, with its sampled candidates where there are any."""
    if dataset.published is None:
        raise DataError(
            f"{dataset.name} has no published split; set data.split to temporal, random or "
            "leave-one-out (where data.min_rating, min_user_items or min_item_users is set, that "
            "is what undoes a published one)"
        )
    held_out = dataset.published.held_out
    split = _parts(dataset.interactions, held_out, "published split", dataset.shard)
    if dataset.published.negatives is None:
        return split
    number = np.full(dataset.interactions.n_items, -1, dtype=np.int32)
    number[split.item_map] = np.arange(split.n_items, dtype=np.int32)
    negatives = number[dataset.published.negatives]
    return Split(split.train, split.test, split.item_map, negatives, "published split")


def validation_split(
    split: Split,
    fraction: float | None = 0.2,
    which: Which = "latest",
    rng: Streams | None = None,
    shard: Shard = WHOLE,
) -> Split:
    """Splits the training part again, for tuning: `test` of the result is the validation part.

    `fraction=None` holds out one interaction per user. `item_map` of the result leads straight to
    the source of the outer split.
    """
    train = split.train
    if fraction is None:
        inner = leave_one_out(train, which, rng, shard)
    elif which == "latest":
        inner = temporal_holdout(train, fraction, shard)
    elif rng is not None:
        inner = random_holdout(train, fraction, rng, shard)
    else:
        raise ConfigError('validation_split(which="random") needs rng')
    return _within(split, inner)


def published_validation(dataset: Dataset, fraction: float, which: Which, rng: Streams) -> Split:
    """What to tune on under the published split. Its own validation part, where it has one; else
    as much of each user's training part as the split holds out: one interaction where it holds out
    one, a `fraction` otherwise. Without times these are random ones."""
    outer, shard = published_split(dataset), dataset.shard
    published, table = dataset.published, dataset.interactions
    if published is not None and published.validation is not None:
        kept = table.select(~published.held_out)
        inner = _parts(
            kept, published.validation[~published.held_out], "published validation part", shard
        )
        return Split(
            inner.train,
            inner.test,
            inner.item_map,
            protocol=_VALIDATION.format(inner.protocol, outer.protocol),
        )
    most = int(outer.test.counts.max()) if outer.n_users else 0
    one = max(shard.ranks.gather(most)) <= 1
    if table.timestamps is None:
        which = "random"
    return validation_split(outer, None if one else fraction, which, rng, shard)


_VALIDATION = "validation: {}, within the training part of: {}"


def _within(split: Split, inner: Split) -> Split:
    return Split(
        inner.train,
        inner.test,
        split.item_map[inner.item_map],
        protocol=_VALIDATION.format(inner.protocol, split.protocol),
    )


def keep_active(data: Data, min_user: int = 20, min_item: int = 0) -> Data:
    """Users with at least `min_user` items and items with at least `min_item` users.

    Users are filtered first, then items, once each. Users and items left without interactions
    disappear, the others are renumbered in order. Ranks that have a share of a data set each filter
    it together.
    """
    table, ranks = (data, ALONE) if isinstance(data, Interactions) else _with_ranks(data)
    kept = table.select((table.counts >= min_user)[table.users])
    kept = kept.select((ranks.all_sum(kept.item_counts) >= min_item)[kept.items])
    if ranks.total(kept.n_interactions) == (0,):
        raise DataError(
            f"nobody is left with min_user={min_user} and min_item={min_item}; lower "
            "data.min_user_items or data.min_item_users (--min-user-items of an import)"
        )
    small = _compact(kept, ranks)
    return small if isinstance(data, Interactions) else data.restrict(small)


def keep_known(dataset: Dataset, attribute: str) -> Dataset:
    """Users whose attribute is known, and the items they touched."""
    known = dataset.attribute(attribute).codes >= 0
    if not known.any():
        raise DataError(f"{dataset.name}: nobody's {attribute} is known")
    table = dataset.interactions
    return dataset.restrict(_compact(table.select(known[table.users])))


def _with_ranks(dataset: Dataset) -> tuple[Interactions, Ranks]:
    return dataset.interactions, dataset.shard.ranks


def _compact(table: Interactions, ranks: Ranks = ALONE) -> Interactions:
    table = table.take_users(np.flatnonzero(table.counts))
    used = np.flatnonzero(ranks.all_sum(table.item_counts))
    number = np.full(table.n_items, -1, dtype=np.int32)
    number[used] = np.arange(len(used), dtype=np.int32)
    return Interactions(
        indptr=table.indptr,
        items=number[table.items],
        n_items=len(used),
        timestamps=table.timestamps,
        ratings=table.ratings,
        user_ids=table.user_ids,
        item_ids=table.items_vocabulary().take(used),
    )


def _last(
    table: Interactions,
    keys: NDArray[np.int64] | NDArray[np.uint64],
    how_many: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> NDArray[np.bool_]:
    """True for the entries that come last within their user, ordered by (key, item)."""
    # Entries are stored by (user, item), so the sort needs no third key to break ties by item.
    order = np.lexsort((keys, table.users))
    place = np.empty(table.n_interactions, dtype=np.int64)
    place[order] = np.arange(table.n_interactions)
    return place >= np.repeat(table.indptr[1:] - how_many(table.counts), table.counts)


def _share(fraction: float) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    if not 0.0 < fraction < 1.0:
        raise ConfigError(f"fraction must lie between 0 and 1, not {fraction}")
    # The small addend keeps floor(0.29 · 100) at 29 although 0.29 * 100 is 28.999... in floats.
    return lambda counts: np.floor(fraction * counts + 1e-9).astype(np.int64)


def _times(table: Interactions) -> NDArray[np.int64]:
    if table.timestamps is None:
        raise DataError(
            "the latest interactions are not known, as this data set has no time stamps; hold out "
            'random ones: data.split = "random", or with leave-one-out data.hold_out = "random"'
        )
    return table.timestamps


def _random_keys(table: Interactions, rng: Streams, shard: Shard) -> NDArray[np.uint64]:
    """A word per entry that depends on the stream, the user and the item."""
    with np.errstate(over="ignore"):
        per_user = rng.keys(shard.first + np.arange(table.n_users, dtype=np.int64))
        per_item = rng.child("item").keys(table.items.astype(np.int64))
        return mix_array(per_user[table.users] ^ per_item)


def _parts(
    table: Interactions, held_out: NDArray[np.bool_], protocol: str, shard: Shard = WHOLE
) -> Split:
    """Which items are in which part, all ranks know together."""
    here = [
        np.bincount(table.items[part], minlength=table.n_items) for part in (~held_out, held_out)
    ]
    in_train, in_test = shard.ranks.all_sum(np.array(here, dtype=np.int64)) > 0
    item_map = np.concatenate([np.flatnonzero(in_train), np.flatnonzero(in_test & ~in_train)])
    number = np.full(table.n_items, -1, dtype=np.int32)
    number[item_map] = np.arange(len(item_map), dtype=np.int32)
    train = _renumbered(table.select(~held_out), number, item_map[: int(in_train.sum())])
    test = _renumbered(table.select(held_out), number, item_map)
    return Split(train, test, item_map, protocol=protocol)


def _renumbered(
    table: Interactions, number: NDArray[np.int32], item_map: NDArray[np.int64]
) -> Interactions:
    items = number[table.items]
    order = np.lexsort((items, table.users))
    return Interactions(
        indptr=table.indptr,
        items=items[order],
        n_items=len(item_map),
        timestamps=None if table.timestamps is None else table.timestamps[order],
        ratings=None if table.ratings is None else table.ratings[order],
        user_ids=table.user_ids,
        item_ids=table.items_vocabulary().take(item_map),
    )
