"""Data of the FMF-LDP paper's figures: draws of users and items, and leave-one-out splits."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from sottovoce.data.interactions import Interactions
from sottovoce.data.shaped import ShapeConfig, generate_shaped
from sottovoce.data.sources import load
from sottovoce.data.splitting import Split, keep_active, leave_one_out, validation_split
from sottovoce.reproduce.study import Part
from sottovoce.rng import Streams

HoldOut = Literal["latest", "random"]
GENERATED = "generated"


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """Data of one shape. Users are drawn first, then items, uniformly; who is left with fewer than
    two items is dropped."""

    source: str = "movielens-1m"
    """A prepared data set, or "generated"."""
    users: int = 0
    """How many are drawn; 0 takes all."""
    items: int = 0
    """How many are drawn; 0 takes all."""
    min_item_users: int = 0
    """Only items with so many users, before the draws."""
    seeds: int = 0
    """How many of the study's seeds; 0 takes all."""


class World:
    """Interactions, and their splits."""

    def __init__(self, settings: WorldConfig, shape: ShapeConfig, draw_seed: int) -> None:
        self.config = settings
        self.table = _drawn(settings, shape, draw_seed)
        self.fingerprint = self.table.fingerprint()
        self._splits: dict[tuple[HoldOut, Part, int], Split] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<World {self.name}>"

    @property
    def name(self) -> str:
        return f"{self.config.source}, {self.table.n_users:,} × {self.table.n_items:,}"

    def describe(self) -> str:
        return f"{self.name}, {self.table.n_interactions:,} interactions"

    def split(self, hold_out: HoldOut, part: Part, seed: int) -> Split:
        place = (hold_out, part, seed if hold_out == "random" else 0)
        with self._lock:
            if place not in self._splits:
                rng = Streams.from_seed(place[2])
                found = leave_one_out(self.table, hold_out, rng.child("split"))
                if part == "validation":
                    found = validation_split(found, None, hold_out, rng.child("validation"))
                self._splits[place] = found
            return self._splits[place]


def _drawn(settings: WorldConfig, shape: ShapeConfig, draw_seed: int) -> Interactions:
    if settings.source == GENERATED:
        table = _generated(shape)
    else:
        table = load(settings.source).interactions
    rng = Streams.from_seed(draw_seed)
    if settings.min_item_users:
        table = keep_active(table, 1, settings.min_item_users)
    if settings.users:
        table = table.take_users(rng.child("users").choose(table.n_users, settings.users))
    if settings.items:
        chosen = np.zeros(table.n_items, dtype=bool)
        chosen[rng.child("items").choose(table.n_items, settings.items)] = True
        table = table.select(chosen[table.items])
    return keep_active(table, 2)


@lru_cache(maxsize=1)
def _generated(shape: ShapeConfig) -> Interactions:
    return generate_shaped(shape, threads=2)
