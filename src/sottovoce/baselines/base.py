"""What every baseline has, and the registry of all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import Scorer
from sottovoce.errors import ConfigError
from sottovoce.registry import Component, Registry
from sottovoce.rng import Streams

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""


class Baseline(Component, ABC):
    """A configured recommender that learns from the whole table at once.

    One with settings is a frozen dataclass, whose fields an experiment file sets.
    """

    __slots__ = ()
    title: ClassVar[str] = ""
    """What tables call it; its name where it says nothing."""
    floor: ClassVar[bool] = False
    """Whether a system that learns should end above it: where one does not, its report says so."""
    learns_from_dislikes: ClassVar[bool] = False
    """Whether it wants the low ratings, too, where there are some; others get the positives."""

    def __new__(cls, *args: object, **settings: object) -> Self:
        known = [one.name for one in fields(cls)] if is_dataclass(cls) else list(settings)
        for name in settings:
            if name not in known:
                raise ConfigError(
                    f"{cls.__name__} has no setting {name!r}; it has {', '.join(known) or 'none'}"
                )
        return super().__new__(cls)

    @abstractmethod
    def fit(self, train: Interactions, rng: Streams, progress: Progress | None = None) -> Scorer:
        """Learn from every user's positives. The same `rng` gives the same scores."""

    def fit_counts(self, counts: NDArray[np.int64]) -> Scorer | None:
        """The same from how many users each item has; None where that is not enough. No rank of a
        distributed run knows more."""
        return None

    def fold_in(self, fitted: Any, train: Interactions, histories: Interactions) -> Scorer | None:
        """What was `fitted` on `train`, for people with these histories who were never in training;
        None where it learns something of each user that nobody else has."""
        return None

    def check(self) -> None:
        """Raises where this machine lacks what it needs beside the data: a package, a GPU."""


BASELINES: Registry[type[Baseline]] = Registry("baseline", "sottovoce.baselines", Baseline)
