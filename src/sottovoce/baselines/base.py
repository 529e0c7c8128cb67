"""The shape every baseline has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from sottovoce.data.interactions import Interactions
from sottovoce.recommender import Scorer
from sottovoce.rng import Streams

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""


class Baseline(Protocol):
    """A configured recommender that learns from the whole table at once."""

    def fit(self, train: Interactions, rng: Streams, progress: Progress | None = None) -> Scorer:
        """Learn from every user's positives. The same `rng` gives the same scores."""
        ...


@runtime_checkable
class Demanding(Protocol):
    """A baseline that needs more than the data: an extra package, a GPU."""

    def check(self) -> None:
        """Raises where this machine lacks it."""
        ...
