"""What UC-FedRec's studies learn from: a data set whose users have attributes, with settings of its
recommenders, and one split for all seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.uc.settings import UCConfig
from sottovoce.core.interactions import Interactions
from sottovoce.data.dataset import Dataset, Labels
from sottovoce.data.sources import load
from sottovoce.data.splitting import Split, leave_one_out, validation_split
from sottovoce.errors import ConfigError
from sottovoce.evaluation.protocol import Protocol, Sampled
from sottovoce.rng import Streams
from sottovoce_papers.worlds import Part, StudyData, StudyWorld

CUT = 10
DRAWN = 0
"""Seed of the candidates: drawn once, for all systems."""
TITLES = {
    "movielens-1m": "MovieLens 1M",
    "movielens-100k": "MovieLens 100K",
    "douban-book": "Douban",
}
AGES = (1, 18, 25, 35, 45, 50, 56)
"""The first age of each group of MovieLens 1M. Ages of 100K are put into the same groups."""


@dataclass(frozen=True, slots=True)
class AttributeData(StudyData):
    """A data set of users with attributes, and how each recommender is trained on it."""

    attributes: tuple[str, ...] = ()
    """What users may hide."""
    final: bool = True
    """Whether trainings learn from validation items, too; see `uc.UCRun`, also for the next two."""
    every: int = 0
    choose_from: float = 0.0
    mf: UCConfig = field(default_factory=UCConfig)
    ncf: UCConfig = field(default_factory=UCConfig)
    neumf: UCConfig = field(default_factory=UCConfig)
    gnn: UCConfig = field(default_factory=UCConfig)

    def world(self, name: str) -> AttributeWorld:
        return AttributeWorld(name, self)

    def recommender(self, name: str) -> UCConfig:
        """The settings of a recommender on these data."""
        if name not in ("mf", "ncf", "neumf", "gnn"):
            raise ConfigError(f"there is no recommender {name!r}; there are mf, ncf, neumf and gnn")
        found: UCConfig = getattr(self, name)
        return found


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class UCData:
    """One data set with users' attributes, in one split. All parts number users and items alike,
    items of `train` first."""

    train: Interactions
    """All but each user's two held-out items."""
    validation: Interactions
    seen: Interactions
    """Training and validation, of the items that can be ranked: what a user knows at test time."""
    test: Interactions
    labels: Mapping[str, Labels]

    @classmethod
    def of(cls, dataset: Dataset) -> UCData:
        """Split a data set: each user's latest item for test, the one before it for validation.
        Without times the latest is not known; every run holds out the same random ones."""
        table = dataset.interactions
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
        n, m, both = table.n_users, train.n_items, int(number.max()) + 1
        return cls(
            train,
            validation,
            Interactions.from_pairs(users[rankable], known[rankable], n_users=n, n_items=m),
            Interactions.from_pairs(outer.test.users, items, n_users=n, n_items=both),
            {name: _grouped(name, labels) for name, labels in dataset.user_attributes.items()},
        )


def _grouped(name: str, labels: Labels) -> Labels:
    """Ages by year become age groups."""
    if name != "age" or len(labels.values) <= len(AGES):
        return labels
    group = np.searchsorted(AGES, [int(value) for value in labels.values], side="right") - 1
    codes = np.append(np.maximum(group, 0), -1)[labels.codes]
    return Labels(codes.astype(np.int32), tuple(str(age) for age in AGES))


class AttributeWorld(StudyWorld):
    """One such data set, and its split."""

    config: AttributeData

    @cached_property
    def dataset(self) -> Dataset:
        return load(self.config.source)

    @cached_property
    def table(self) -> Interactions:
        return self.dataset.interactions

    @cached_property
    def halves(self) -> UCData:
        """Its parts and its users' attributes."""
        with self._lock:
            return UCData.of(self.dataset)

    @cached_property
    def fingerprint(self) -> str:
        known, asked = self.dataset.user_attributes, self.config.attributes
        if lacking := [name for name in asked if name not in known]:
            raise ConfigError(
                f"{self.config.source} does not say the {' and '.join(lacking)} of its users, "
                f"which this study hides ([data.{self.key}] attributes); it says "
                f"{', '.join(known) or 'nothing else'} of them"
            )
        return self.dataset.fingerprint()

    @property
    def split_key(self) -> list[object]:
        return ["two held out", self.config.negatives]

    def split(self, part: Part, seed: int) -> Split:
        found = self.halves
        return Split(found.seen, found.test, np.arange(found.test.n_items, dtype=np.int64))

    def protocol(self, seed: int) -> Protocol:
        return Protocol(CUT, Sampled(self.config.negatives, DRAWN))

    def draw(self, share: float, rng: Streams) -> NDArray[np.bool_]:
        """Return users, each with this probability; a larger share keeps those of a smaller one."""
        users = np.arange(self.table.n_users, dtype=np.int64)
        drawn: NDArray[np.bool_] = rng.uniform(users, 1)[:, 0] < share
        return drawn

    @property
    def title(self) -> str:
        return TITLES.get(self.config.source, self.config.source)

    def describe(self) -> str:
        timed = self.table.timestamps is not None
        held = "latest item for test and second-latest" if timed else "one random item for test and"
        train, other = self.halves.train, "" if timed else " another"
        return (
            f"{self.title}: {train.n_users:,} users, {train.n_items:,} training items, "
            f"{train.n_interactions:,} training interactions, all of them positive; each "
            f"user's {held}{other} for validation"
        )

    def words(self) -> dict[str, Any]:
        return {
            "data": self.title,
            "source": self.config.source,
            "size": self.describe(),
            "users": self.table.n_users,
        }
