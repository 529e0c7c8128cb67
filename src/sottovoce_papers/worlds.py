"""What a study learns from: the data sets of its file, filtered, drawn from and split."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import Scorer
from sottovoce.data.dataset import Dataset
from sottovoce.data.shaped import ShapeConfig, generate_shaped
from sottovoce.data.sources import load
from sottovoce.data.splitting import (
    Split,
    keep_active,
    leave_one_out,
    validation_split,
)
from sottovoce.evaluation.protocol import Evaluation, Protocol, Sampled, evaluate
from sottovoce.experiment import DataConfig, Experiment
from sottovoce.rng import Streams

Part = Literal["validation", "test"]
GENERATED = "generated"
MADE = ("town", "crowd", GENERATED)
"""Sources of data that are made from a seed."""


@dataclass(frozen=True, slots=True)
class StudyData(DataConfig):
    """A data set of a study, `[data.NAME]` of its file: `[data]` of an experiment, and draws."""

    users: int = 0
    """How many users are drawn; 0 takes all. Users are drawn first, then items."""
    items: int = 0
    """How many items are drawn; 0 takes all."""
    draw_seed: int = 0
    """The seed of these draws."""
    negatives: int = 0
    """Rank each test item among so many sampled ones; 0 ranks all items."""
    cutoffs: tuple[int, ...] = (10,)
    """Lengths of the lists that are measured."""
    shape: ShapeConfig | None = None
    """The shape of generated data (source = "generated")."""
    seeds: int = 0
    """How many of the study's seeds are enough here; 0 takes all."""

    def world(self, name: str) -> StudyWorld:
        """The data set itself."""
        return StudyWorld(name, self)

    def experiment(self) -> dict[str, Any]:
        """Return `[data]` of an experiment on it."""
        usual = DataConfig()
        mine = {f.name: getattr(self, f.name) for f in fields(DataConfig)}
        return {k: v for k, v in mine.items() if k == "source" or v != getattr(usual, k)}


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables within tables are laid over each other, everything else is replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = laid_over(old, value) if both and old is not None else value
    return merged


def expanded(specs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the data sets of a file by the name of their table. A table with `each` stands for
    several: one for each combination of the values of `each`, named by them (0: "all")."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for name, spec in specs.items():
        bare = {key: value for key, value in spec.items() if key != "each"}
        each = spec.get("each", {})
        found[name] = {
            "-".join([name, *(str(value or "all") for value in values)]): {
                **bare, **dict(zip(each, values, strict=True))
            }
            for values in itertools.product(*each.values())
        }  # fmt: skip
    return found


class StudyWorld:
    """One data set, and its splits."""

    def __init__(self, name: str, settings: StudyData) -> None:
        self.key, self.config = name, settings
        self._splits: dict[tuple[Part, int], Split] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<StudyWorld {self.key}>"

    @cached_property
    def dataset(self) -> Dataset:
        """The data, without draws of users and items."""
        return self._experiment("test", 0).dataset()

    def _experiment(self, part: Part, seed: int) -> Experiment:
        data = {**self.config.experiment(), "part": part}
        return Experiment.from_table({"name": self.key, "seed": seed, "data": data})

    @cached_property
    def table(self) -> Interactions:
        """The interactions that are learnt from and held out."""
        c = self.config
        if c.source == GENERATED:
            table = _generated(c.shape or ShapeConfig())
        elif not (c.users or c.items or c.split == "leave-one-out"):
            return self.dataset.interactions
        else:
            table = load(c.source).interactions
        if c.min_user_items or c.min_item_users:
            table = keep_active(table, max(1, c.min_user_items), c.min_item_users)
        rng = Streams.from_seed(c.draw_seed)
        if c.users:
            table = table.take_users(rng.child("users").choose(table.n_users, c.users))
        if c.items:
            chosen = np.zeros(table.n_items, dtype=bool)
            chosen[rng.child("items").choose(table.n_items, c.items)] = True
            table = table.select(chosen[table.items])
        return keep_active(table, 2)

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the data, for keys of cells."""
        return self.table.fingerprint()

    @property
    def split_key(self) -> list[object]:
        """What the split and its metrics depend on besides the data, for keys of cells."""
        c = self.config
        key: list[object] = [c.split]
        key += [c.hold_out if c.split == "leave-one-out" else c.test_fraction, c.negatives]
        return key if c.cutoffs == StudyData().cutoffs else [*key, list(c.cutoffs)]

    def split(self, part: Part, seed: int) -> Split:
        """Return what is learnt from and what is held out."""
        c = self.config
        drawn = c.split == "random" or (c.split == "leave-one-out" and c.hold_out == "random")
        place = (part, seed if drawn else 0)
        with self._lock:
            if place not in self._splits:
                rng = Streams.from_seed(place[1])
                if c.split == "leave-one-out":
                    found = leave_one_out(self.table, c.hold_out, rng.child("split"))
                    if part == "validation":
                        found = validation_split(found, None, c.hold_out, rng.child("validation"))
                else:
                    found = self._experiment(part, place[1]).split(self.dataset)
                self._splits[place] = found
            return self._splits[place]

    def protocol(self, seed: int) -> Protocol:
        """Return how lists are measured."""
        n, (*also, k) = self.config.negatives, self.config.cutoffs
        return Protocol(k, Sampled(n, seed), tuple(also)) if n else Protocol(k, also=tuple(also))

    def measure(self, scorer: Scorer, split: Split, seed: int) -> Evaluation:
        """Evaluate a model on a split of these data."""
        return evaluate(scorer, split.train, split.test, self.protocol(seed), threads=1)

    @property
    def title(self) -> str:
        """Its name, and its size where users or items were drawn."""
        c = self.config
        if c.split != "leave-one-out":
            return c.source
        return f"{c.source}, {self.table.n_users:,} × {self.table.n_items:,}"

    def describe(self) -> str:
        return f"{self.title}, {self.table.n_interactions:,} interactions"

    def words(self) -> dict[str, Any]:
        """Return what rows have of their data, for columns and templates of words."""
        train = self.split("test", 0).train
        n, m, x = train.n_users, train.n_items, train.n_interactions
        return {
            "data": self.title,
            "source": self.config.source,
            "size": self.describe(),
            "hold_out": self.config.hold_out,
            "users": self.table.n_users,
            "items": self.table.n_items,
            "asked items": self.config.items,
            "n_users": n,
            "n_items": m,
            "n_interactions": x,
            "per_user": x / n,
            "per_item": x / m,
            "density": x / (n * m),
        }


@lru_cache(maxsize=1)
def _generated(shape: ShapeConfig) -> Interactions:
    return generate_shaped(shape, threads=2)
