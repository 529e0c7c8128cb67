"""The data of the UC-FedRec study: one split for training, validation and test, and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.dataset import Dataset, Labels
from sottovoce.data.interactions import Interactions
from sottovoce.data.sources import load
from sottovoce.data.splitting import leave_one_out, validation_split
from sottovoce.rng import Streams

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "movielens-1m": ("gender", "age", "occupation"),
    "movielens-100k": ("gender", "age", "occupation"),
    "douban-book": ("location",),
}
"""What users of each source may hide."""
TITLES = {
    "movielens-1m": "MovieLens 1M", "movielens-100k": "MovieLens 100K", "douban-book": "Douban",
}  # fmt: skip
AGES = (1, 18, 25, 35, 45, 50, 56)
"""Where the age groups of MovieLens 1M begin; the ages of 100K are put into the same."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class World:
    """One data set. All parts number users and items alike, items of `train` first."""

    source: str
    train: Interactions
    """All but each user's two held-out items."""
    validation: Interactions
    seen: Interactions
    """Training and validation, of the items that can be ranked: what a user knows at test time."""
    test: Interactions
    labels: Mapping[str, Labels]
    fingerprint: str

    @classmethod
    def read(cls, source: str) -> World:
        return cls.of(source, load(source))

    @classmethod
    def of(cls, source: str, dataset: Dataset) -> World:
        table = dataset.interactions
        # Without times the latest item is not known; every run holds out the same random one.
        which = "latest" if table.timestamps is not None else "random"
        rng = Streams.from_seed(0)
        outer = leave_one_out(table, which, rng.child("test"))  # type: ignore[arg-type]
        inner = validation_split(outer, None, which, rng.child("validation"))  # type: ignore[arg-type]
        number = np.full(table.n_items, -1, dtype=np.int64)
        number[inner.item_map] = np.arange(len(inner.item_map))
        alone = np.flatnonzero((number < 0) & (table.item_counts > 0))
        number[alone] = len(inner.item_map) + np.arange(len(alone))
        items = number[outer.dataset_items(outer.test.items)]
        train, validation = inner.train, inner.test
        users = np.concatenate([train.users, validation.users])
        known = np.concatenate([train.items, validation.items]).astype(np.int64)
        rankable = known < train.n_items
        return cls(
            source,
            train,
            validation,
            Interactions.from_pairs(
                users[rankable], known[rankable], n_users=table.n_users, n_items=train.n_items
            ),
            Interactions.from_pairs(
                outer.test.users, items, n_users=table.n_users, n_items=int(number.max()) + 1
            ),
            {name: _grouped(name, labels) for name, labels in dataset.user_attributes.items()},
            dataset.fingerprint(),
        )

    @property
    def n_users(self) -> int:
        return self.train.n_users

    @property
    def title(self) -> str:
        return TITLES.get(self.source, self.source)

    def describe(self) -> str:
        timed = self.train.timestamps is not None
        held = "latest item for test and second-latest" if timed else "one random item for test and"
        other = "" if timed else " another"
        return (
            f"{self.title}: {self.n_users:,} users, {self.train.n_items:,} training items, "
            f"{self.train.n_interactions:,} training interactions, all of them positive; each "
            f"user's {held}{other} for validation"
        )

    def draw(self, share: float, rng: Streams) -> NDArray[np.bool_]:
        """Users, each with this probability; a larger share keeps those of a smaller one."""
        users = np.arange(self.n_users, dtype=np.int64)
        drawn: NDArray[np.bool_] = rng.uniform(users, 1)[:, 0] < share
        return drawn


def _grouped(name: str, labels: Labels) -> Labels:
    """Ages by year become age groups."""
    if name != "age" or len(labels.values) <= len(AGES):
        return labels
    group = np.searchsorted(AGES, [int(value) for value in labels.values], side="right") - 1
    codes = np.append(np.maximum(group, 0), -1)[labels.codes]
    return Labels(codes.astype(np.int32), tuple(str(age) for age in AGES))
