"""The server: chooses who is asked, publishes the model, folds reports in. Holds no user's data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import FactorModel, Reporting
from sottovoce.core.arrays import count_bits, distinct
from sottovoce.core.messages import (
    Aggregate,
    Batch,
    BitCounts,
    DeviceReports,
    ModelView,
    SummedReports,
    add_sums,
)
from sottovoce.core.quality import POPULARITY, Quality, Which
from sottovoce.errors import MessageError
from sottovoce.parties.defence import Defence, Guard
from sottovoce.rng import Streams

NO_DEFENCE = Defence()


@dataclass(frozen=True, slots=True)
class Offered:
    """A model that was offered to be published."""

    version: int
    held_back: str = ""
    """Why it was not published."""
    quality: Quality | None = None
    against: int | None = None
    """The version that was published when its quality was asked for."""

    def to_table(self) -> dict[str, Any]:
        """As it is kept and shown."""
        quality = None if self.quality is None else self.quality.to_table()
        return {
            "version": self.version,
            "held_back": self.held_back,
            "quality": quality,
            "against": self.against,
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        found = table.get("quality")
        quality = None if found is None else Quality.from_table(found)
        against = table["against"]
        return cls(
            int(table["version"]),
            str(table["held_back"]),
            quality,
            None if against is None else int(against),
        )

    @classmethod
    def of(
        cls, algorithm: FactorModel, memory: NDArray[np.float32], version: int, before: int | None
    ) -> Offered | None:
        """The model after so many rounds, if it is one to publish, and whether it is published:
        what its quality says against it is said about the version `before`. While there is none,
        every model is better than nothing."""
        whole = algorithm.offers(version)
        if not algorithm.versioned or not (whole or before is None):
            return None
        quality = algorithm.quality(memory) if whole else None
        why = "" if quality is None or before is None else quality.objection(f"version {before}")
        return cls(version, why, quality, None if quality is None else before)


class Judged(Protocol):
    """A version of a model, and what devices have said of it."""

    @property
    def version(self) -> int: ...
    @property
    def quality(self) -> Quality | None: ...
    @property
    def against(self) -> int | None: ...


class ToldOf(NamedTuple):
    """What sums tell of one version."""

    quality: Quality
    which: Which
    """In whose place it is in them."""
    other: int | None
    """The version that it is compared with, where that is known."""


def told_of(version: int | None, versions: Iterable[Judged]) -> ToldOf | None:
    """The newest sums that tell of this version: those of a later one that was compared with it, or
    its own."""
    for one in sorted(versions, key=lambda one: -one.version):
        if version is None or one.quality is None:
            continue
        if one.version == version:
            return ToldOf(one.quality, "candidate", one.against)
        if one.against == version:
            return ToldOf(one.quality, "published", one.version)
    return None


def quality_trouble(published: int | None, versions: Iterable[Judged]) -> str:
    """What speaks against the version by which devices recommend, however it came to be published;
    empty where nothing does."""
    found = told_of(published, versions)
    if found is None:
        return ""
    quality, which = found.quality, found.which
    worse = quality.worse(which, "popularity", POPULARITY)
    if found.other is not None and not worse:
        other: Which = "published" if which == "candidate" else "candidate"
        worse = quality.worse(which, other, f"version {found.other}")
    return f"version {published}, which is published, is {worse}" if worse else ""


@dataclass(slots=True)
class Server:
    algorithm: FactorModel
    items: NDArray[np.float32]
    rng: Streams
    round: int = 0
    """Rounds folded so far; also the number of the round that is open."""
    memory: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """What the algorithm keeps beside the model, never published; as at the start where it is not
    given."""
    guard: Guard = field(default_factory=NO_DEFENCE.guard)
    """Caps on what devices can do to the model, and what it remembers of them."""
    published: ModelView | None = None
    """The model by which devices recommend, if that is not the newest."""
    offered: list[Offered] = field(default_factory=list)
    """Versions so far, published or held back."""

    def __post_init__(self) -> None:
        if len(self.memory) != len(self.items):
            self.memory = self.algorithm.server_memory(len(self.items))

    @classmethod
    def start(cls, algorithm: FactorModel, n_items: int, rng: Streams) -> Server:
        return cls(algorithm, algorithm.server_init(n_items, rng), rng)

    def select(self, enrolled: int, cohort_size: int, attempt: int = 0) -> NDArray[np.int64]:
        """Which of the enrolled devices are asked in this round: uniform, without replacement. A
        round that is tried again asks others."""
        rng = self.rng.child("select", self.round)
        return (rng.child("again", attempt) if attempt else rng).choose(enrolled, cohort_size)

    def select_rounds(self, enrolled: int, rounds: int) -> NDArray[np.int64]:
        """`select(enrolled, 1)` for each of the next rounds."""
        numbers = np.arange(self.round, self.round + rounds, dtype=np.int64)
        return self.rng.child("select").choose_one(enrolled, numbers)

    def publish(self) -> ModelView:
        """The model to learn from."""
        return ModelView(self.round, self.items)

    @property
    def recommending(self) -> ModelView:
        """The model to recommend by."""
        return self.published or ModelView(self.round, self.items)

    def sum_reports(self, batches: list[DeviceReports]) -> SummedReports:
        """Add up messages in any order. A message that is off is rejected whole, with the batch."""
        senders: set[int] = set()
        n_items, width = self.items.shape
        for reports in batches:
            if reports.round != self.round:
                raise MessageError(f"report for round {reports.round} in round {self.round}")
            if np.any((reports.item < 0) | (reports.item >= n_items)):
                raise MessageError("a report names an unknown item")
            if reports.values.shape != (len(reports), width):
                raise MessageError("a report has the wrong width")
            new = set(distinct(reports.sender).tolist())
            if senders & new:
                raise MessageError("a device reported twice in one round")
            senders |= new
        return self.guard.sum_reports(self.round, batches, width)

    def add_sums(self, parts: list[SummedReports]) -> SummedReports:
        """Add up what gateways have summed over their cohorts."""
        n_items, width = self.algorithm.report_shape(self.publish())
        for part in parts:
            if part.round != self.round:
                raise MessageError(f"sum for round {part.round} in round {self.round}")
            if part.sums.shape != (len(part.item), width):
                raise MessageError("a sum has the wrong width")
            if np.any((part.item < 0) | (part.item >= n_items)):
                raise MessageError("a sum names an unknown item")
        return add_sums(self.round, parts, width)

    def count(self, batches: list[Batch]) -> BitCounts:
        """Count the reports of the round's batches, at most one of each tier."""
        if self.algorithm.sends != "bits":
            raise MessageError("this federation's devices send no randomised reports")
        algorithm = cast(Reporting, self.algorithm)
        tiers = algorithm.tiers
        sums = np.zeros((tiers, algorithm.coordinates(len(self.items))), dtype=np.int64)
        devices, reports = [0] * tiers, [0] * tiers
        for batch in batches:
            if batch.round != self.round:
                raise MessageError(f"batch for round {batch.round} in round {self.round}")
            if not 0 <= batch.tier < tiers or devices[batch.tier]:
                raise MessageError("a batch is of no known tier, or the second one of its tier")
            if not count_bits(batch.reports, sums[batch.tier]):
                raise MessageError("a batch names an unknown coordinate")
            devices[batch.tier], reports[batch.tier] = batch.devices, len(batch.reports)
        return BitCounts(self.round, tuple(devices), tuple(reports), sums)

    def fold(self, aggregate: Aggregate) -> None:
        if aggregate.round != self.round:
            raise MessageError(f"sum for round {aggregate.round} in round {self.round}")
        if isinstance(aggregate, SummedReports):
            aggregate = self.guard.sum_opened(aggregate)
        self.items, self.memory = self.algorithm.server_fold(self.items, self.memory, aggregate)
        self.round += 1
        before = None if self.published is None else self.published.round
        offered = Offered.of(self.algorithm, self.memory, self.round, before)
        if offered is not None:
            self.offered.append(offered)
            if not offered.held_back:
                self.published = ModelView(self.round, self.items)

    def advance(self, items: NDArray[np.float32], rounds: int) -> None:
        """Take over the model after rounds that were folded one by one elsewhere."""
        self.items = items
        self.round += rounds
