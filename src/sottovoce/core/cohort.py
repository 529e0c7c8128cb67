"""A cohort: devices side by side, and what is private to each. A phone is a cohort of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.consent import Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.redacted import Redacted
from sottovoce.errors import DataError


@dataclass(slots=True, repr=False)
class Cohort(Redacted):
    """Devices and what is private to them. `vectors` is their state and moves as they learn."""

    users: NDArray[np.int64]
    """The devices' numbers in the federation; they key all randomness."""
    history: Interactions
    consent: Consent
    vectors: NDArray[np.float32]
    spent: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """ε that each device has spent so far, by plain composition; nothing where it is not given."""
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """[n, attributes]: what the devices know of their owners, by class, -1 where they do not; a
    column for each attribute of the algorithm, nothing where it has none."""
    sent: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """In how many rounds each device has sent so far; none where it is not given. Of contributions:
    in which stages of which period (`privacy.own_epsilon.mark_of`)."""
    beyond: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """For contributions: what each device has told in that period beyond what these stages tell at
    its user's ε of today (`privacy.own_epsilon.beyond`). Empty if it is not given."""
    items_named: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)
    """Which items a name stands for, of the names in the records' `never_send`."""
    scratch: dict[str, Any] = field(default_factory=dict)
    """What an algorithm derives from the histories once and uses in every round."""
    published: NDArray[np.float32] | None = None
    """The model by which they recommend, where an algorithm has versions and they know it."""

    def __post_init__(self) -> None:
        n = len(self.users)
        if not len(self.spent):
            self.spent = np.zeros(n)
        if not len(self.sent):
            self.sent = np.zeros(n, dtype=np.int64)
        if not len(self.beyond):
            self.beyond = np.zeros(n)
        if not self.labels.size:
            self.labels = np.zeros((n, 0), dtype=np.int64)
        if len(self.labels) != n:
            raise DataError("a cohort needs one row of labels per device")
        if self.history.n_users != n or len(self.consent) != n or len(self.vectors) != n:
            raise DataError("a cohort needs one history, consent and vector per device")
        if not np.array_equal(self.consent.users, self.users):
            raise DataError("consent records must belong to the cohort's devices, in order")

    def __len__(self) -> int:
        return len(self.users)

    def take(self, rows: NDArray[np.int64]) -> Cohort:
        """These devices as a cohort of their own, with copies of their state."""
        return Cohort(
            users=self.users[rows],
            history=self.history.take_users(rows),
            consent=self.consent.take(rows),
            vectors=self.vectors[rows].copy(),
            spent=self.spent[rows].copy(),
            labels=self.labels[rows],
            sent=self.sent[rows].copy(),
            beyond=self.beyond[rows].copy(),
            published=self.published,
            items_named=self.items_named,
        )

    def sendable(self, consent: Consent) -> Interactions:
        """The histories without what these records never send, noise or not."""
        history = self.history
        if not consent.never_send.any():
            return history
        kept, users = np.ones(history.n_interactions, dtype=bool), history.users
        for column, name in enumerate(consent.things):
            if name not in self.items_named:
                raise DataError(f"never_send names {name!r}, which is no item or category here")
            held = np.isin(history.items, self.items_named[name])
            kept &= ~(held & consent.never_send[users, column])
        return history.select(kept)

    def able(self) -> NDArray[np.bool_]:
        """Devices that can learn from pairs: at least one positive, at least one other item."""
        counts = self.history.counts
        able: NDArray[np.bool_] = (counts > 0) & (counts < self.history.n_items)
        return able


@dataclass(frozen=True, slots=True, repr=False)
class RowCounts:
    """How many distinct positive and negative items each device sent."""

    positive: NDArray[np.int32]
    negative: NDArray[np.int32]
