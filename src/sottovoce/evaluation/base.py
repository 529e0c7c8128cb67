"""What every metric has, and the registry of all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.interactions import Interactions
from sottovoce.errors import ConfigError, UsageError
from sottovoce.registry import Component, Registry

Floats = NDArray[np.float64]


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
    shown: ClassVar[Literal["always", "sampled", "never"]] = "always"
    """Whether tables of results have a column of it: where it applies, under sampled candidates
    alone, or never."""

    @abstractmethod
    def overall(
        self, means: Mapping[str, float], lists: NDArray[np.int32] | None, n_items: int
    ) -> float | None:
        """The figure for all users together, None where it does not apply. `means` are those of
        the metrics per user; there are no lists under sampled candidates."""

    @classmethod
    def key(cls) -> str:
        """What a summary calls it before @K."""
        return cls.short or cls.name

    def figure(
        self, means: Mapping[str, float], lists: NDArray[np.int32] | None, n_items: int
    ) -> float | None:
        """`overall`, where that is a number or None; else it raises."""
        value: Any = self.overall(means, lists, n_items)  # of a stranger it may be anything
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
        """Of test items found at these ranks (from 1) among sampled negatives; a user gets the mean
        of her items. None where the metric needs whole lists."""
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


def every_metric() -> list[Metric]:
    """All of them, in the order of results; raises where results could not tell two apart."""
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
    return found


def user_metrics() -> dict[str, UserMetric]:
    """Those with a value for every user, by their short names."""
    return {m.short or m.name: m for m in every_metric() if isinstance(m, UserMetric)}
