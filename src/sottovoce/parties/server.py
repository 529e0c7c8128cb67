"""The server: chooses who is asked, publishes the model, folds reports in. Holds no user's data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import CrossDevice
from sottovoce.errors import MessageError
from sottovoce.messages import DeviceReports, ModelView, SummedReports, add_sums, add_up
from sottovoce.rng import Streams


@dataclass(slots=True)
class Server:
    algorithm: CrossDevice
    items: NDArray[np.float32]
    rng: Streams
    round: int = 0
    """Rounds folded so far; also the number of the round that is open."""

    @classmethod
    def start(cls, algorithm: CrossDevice, n_items: int, rng: Streams) -> Server:
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
        return ModelView(self.round, self.items)

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
            new = set(np.unique(reports.sender).tolist())
            if senders & new:
                raise MessageError("a device reported twice in one round")
            senders |= new
        return add_up(self.round, batches, width)

    def add_sums(self, parts: list[SummedReports]) -> SummedReports:
        """Add up what gateways have summed over their cohorts."""
        n_items, width = self.items.shape
        for part in parts:
            if part.round != self.round:
                raise MessageError(f"sum for round {part.round} in round {self.round}")
            if part.sums.shape != (len(part.item), width):
                raise MessageError("a sum has the wrong width")
            if np.any((part.item < 0) | (part.item >= n_items)):
                raise MessageError("a sum names an unknown item")
        return add_sums(self.round, parts, width)

    def fold(self, reports: SummedReports) -> None:
        if reports.round != self.round:
            raise MessageError(f"sum for round {reports.round} in round {self.round}")
        self.items = self.algorithm.server_fold(self.items, reports)
        self.round += 1

    def advance(self, items: NDArray[np.float32], rounds: int) -> None:
        """Take over the model after rounds that were folded one by one elsewhere."""
        self.items = items
        self.round += rounds
