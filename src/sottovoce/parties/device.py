"""The one door. Everything that leaves a device leaves here; nothing else builds a report.

Consent is read first; then the device learns, the release decides what may leave, the ledger gets a
row, and only then is there a report. The three ways out differ in how many devices and rounds they
serve at once, not in what leaves: `report` is the definition (a message per device), the other two
are the same sums without the messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Cohort, Counts, CrossDevice
from sottovoce.consent import ShareRule
from sottovoce.errors import ConsentError
from sottovoce.ledger import Entries, Ledger
from sottovoce.messages import (
    DeviceReports,
    ModelView,
    SummedReports,
    Updates,
    add_up,
    row_bytes,
)
from sottovoce.privacy.mechanisms import BoundRelease, Release
from sottovoce.rng import Streams
from sottovoce.sums import sum_groups

_HOME_BATCH = 1024


class Accelerator(Protocol):
    """Computes whole rounds of one cohort elsewhere (a GPU) and keeps the devices' state there."""

    def learn_summed(
        self, view: ModelView, rows: NDArray[np.int64], learn_key: int, share_key: int
    ) -> tuple[NDArray[np.int64], Counts]: ...

    def vectors(self) -> NDArray[np.float32]: ...


@dataclass(slots=True, repr=False)
class Devices:
    """A cohort behind its door. A phone is a cohort of one."""

    algorithm: CrossDevice
    cohort: Cohort
    ledger: Ledger
    rng: Streams
    _release: BoundRelease
    _accelerator: Accelerator | None = None

    @classmethod
    def behind_door(
        cls,
        algorithm: CrossDevice,
        cohort: Cohort,
        release: Release,
        ledger: Ledger,
        rng: Streams,
    ) -> Devices:
        bound = release.bind(cohort.users, cohort.consent, cohort.history, rng)
        return cls(algorithm, cohort, ledger, rng, bound)

    def __repr__(self) -> str:
        return f"<Devices {len(self.cohort):,}, redacted>"

    def accelerate(self, load: Callable[[ShareRule], Accelerator]) -> None:
        """From now on, compute whole rounds on what `load` gives for the rule of all devices."""
        everyone = np.arange(len(self.cohort), dtype=np.int64)
        self._accelerator = load(self._release.rule(everyone, np.array([0])))

    def settle(self) -> None:
        """Bring the devices' state home from an accelerator."""
        if self._accelerator is not None:
            self.cohort.vectors = self._accelerator.vectors()

    def willing(self) -> NDArray[np.int64]:
        """Rows of the devices that take part and can learn."""
        return self.cohort.willing()

    def report(self, view: ModelView, rows: NDArray[np.int64]) -> DeviceReports:
        """One round of these devices, as messages."""
        self._require_consent(rows)
        updates = self.algorithm.device_learn(view, self.cohort, rows, self.rng)
        rule = self._release.rule(rows, np.array([view.round]))
        reports, counts = self._merge(updates, rows, view.round, self._leaving(updates, rule))
        self._record(rows, np.full(len(rows), view.round), counts, view.embedding_size)
        return reports

    def report_summed(
        self, view: ModelView, rows: NDArray[np.int64], threads: int = 1
    ) -> SummedReports:
        """One round of these devices, as the sum of their messages."""
        self._require_consent(rows)
        if self._accelerator is None and self.algorithm.device_few(view, len(rows)):
            return add_up(view.round, [self.report(view, rows)], view.items.shape[1])
        if self._accelerator is not None:
            sums, counts = self._accelerator.learn_summed(
                view,
                rows,
                self.rng.child("learn", view.round).key,
                self._release.round_key(view.round),
            )
        else:
            rule = self._release.rule(rows, np.array([view.round]))
            sums, counts = self.algorithm.device_learn_summed(
                view, self.cohort, rows, rule, self.rng, threads
            )
        self._record(rows, np.full(len(rows), view.round), counts, view.embedding_size)
        every_item = np.arange(len(sums), dtype=np.int32)
        return SummedReports(view.round, every_item, sums, len(rows))

    def report_rounds(
        self, items: NDArray[np.float32], first_round: int, rows: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """len(rows) rounds of one device each, folded one by one; returns the model after them."""
        self._require_consent(rows)
        rounds = np.arange(first_round, first_round + len(rows), dtype=np.int64)
        after, counts = self.algorithm.device_learn_rounds(
            items, first_round, self.cohort, rows, self._release.rule(rows, rounds), self.rng
        )
        self._record(rows, rounds, counts, items.shape[1] - 1)
        return after

    def vectors_at_home(self, view: ModelView, draws: int = 500) -> NDArray[np.float32]:
        """Every device's vector as it would recommend with now. Devices that do not take part fit
        theirs to the published model, by the same steps, on at least `draws` draws. Nothing leaves,
        and the devices' own state stays as it is."""
        home = np.flatnonzero(~self.cohort.consent.takes_part & self.cohort.able())
        vectors = self.cohort.vectors.copy()
        for start in range(0, len(home), _HOME_BATCH):
            rows = home[start : start + _HOME_BATCH]
            part = self.cohort.take(rows)
            everyone, learnt, turn = np.arange(len(rows), dtype=np.int64), 0, 0
            while learnt < draws:
                updates = self.algorithm.device_learn(
                    view, part, everyone, self.rng.child("home", turn)
                )
                learnt += len(updates) // (2 * len(rows))
                turn += 1
            vectors[rows] = part.vectors
        return vectors

    def _require_consent(self, rows: NDArray[np.int64]) -> None:
        if not self.cohort.consent.takes_part[rows].all():
            raise ConsentError("a device that does not take part was asked to send")

    def _leaving(self, updates: Updates, rule: ShareRule) -> NDArray[np.bool_]:
        positive = updates.positive
        entry = updates.entry[positive].reshape(len(rule.keys), -1)
        leaves = np.ones(len(updates), dtype=bool)
        leaves[positive] = rule.may_leave(entry).ravel()
        return leaves

    def _merge(
        self,
        updates: Updates,
        rows: NDArray[np.int64],
        round: int,
        leaves: NDArray[np.bool_],
    ) -> tuple[DeviceReports, Counts]:
        """Sum each device's leaving updates by item, items ascending."""
        row, item = updates.row[leaves], updates.item[leaves]
        positive = updates.positive[leaves]
        order = np.lexsort((item, row))
        row, item = row[order], item[order]
        first = np.ones(len(row), dtype=bool)
        first[1:] = (row[1:] != row[:-1]) | (item[1:] != item[:-1])
        starts = np.flatnonzero(first)
        sums = sum_groups(updates.values, np.flatnonzero(leaves)[order], starts)
        sent_positive = positive[order][starts]
        n = len(rows)
        counts = Counts(
            np.bincount(row[starts][sent_positive], minlength=n).astype(np.int32),
            np.bincount(row[starts][~sent_positive], minlength=n).astype(np.int32),
        )
        sender = self.cohort.users[rows][row[starts]]
        return DeviceReports(round, sender, item[starts], sums), counts

    def _record(
        self,
        rows: NDArray[np.int64],
        rounds: NDArray[np.int64],
        counts: Counts,
        embedding_size: int,
    ) -> None:
        sent = counts.positive.astype(np.int64) + counts.negative
        self.ledger.record(
            Entries(
                kind=self._release.kind,
                user=self.cohort.users[rows],
                round=rounds,
                positive_rows=counts.positive,
                negative_rows=counts.negative,
                bytes=sent * row_bytes(embedding_size),
                epsilon=np.full(len(rows), self._release.epsilon, dtype=np.float32),
            )
        )
