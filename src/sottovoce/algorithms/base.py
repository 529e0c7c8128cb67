"""What an algorithm is: both halves, the device's and the server's, and no loop over rounds.

Device code runs over a cohort of n ≥ 1 devices. Simulation passes all of them, a phone passes one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.consent import Consent, ShareRule
from sottovoce.data.interactions import Interactions
from sottovoce.errors import DataError
from sottovoce.messages import ModelView, SummedReports, Updates
from sottovoce.rng import Streams


@dataclass(slots=True, repr=False)
class Cohort:
    """Devices and what is private to them. `vectors` is their state and moves as they learn."""

    users: NDArray[np.int64]
    """The devices' numbers in the federation; they key all randomness."""
    history: Interactions
    consent: Consent
    vectors: NDArray[np.float32]
    scratch: dict[str, Any] = field(default_factory=dict)
    """What an algorithm derives from the histories once and uses in every round."""

    def __post_init__(self) -> None:
        n = len(self.users)
        if self.history.n_users != n or len(self.consent) != n or len(self.vectors) != n:
            raise DataError("a cohort needs one history, consent and vector per device")
        if not np.array_equal(self.consent.users, self.users):
            raise DataError("consent records must belong to the cohort's devices, in order")

    def __len__(self) -> int:
        return len(self.users)

    def __repr__(self) -> str:
        return f"<Cohort of {len(self):,} devices, redacted>"

    def take(self, rows: NDArray[np.int64]) -> Cohort:
        """These devices as a cohort of their own, with copies of their state."""
        return Cohort(
            users=self.users[rows],
            history=self.history.take_users(rows),
            consent=self.consent.take(rows),
            vectors=self.vectors[rows].copy(),
        )

    def able(self) -> NDArray[np.bool_]:
        """Devices that can learn from pairs: at least one positive, at least one other item."""
        counts = self.history.counts
        able: NDArray[np.bool_] = (counts > 0) & (counts < self.history.n_items)
        return able

    def willing(self) -> NDArray[np.int64]:
        """Rows of the devices that take part and can learn."""
        return np.flatnonzero(self.consent.takes_part & self.able())


@dataclass(frozen=True, slots=True, repr=False)
class Counts:
    """How many distinct positive and negative items each device sent."""

    positive: NDArray[np.int32]
    negative: NDArray[np.int32]


class CrossDevice(Protocol):
    """Devices, a server, and a model of item rows between them.

    `device_learn` is the definition. `device_learn_summed` and `device_learn_rounds` give the same
    results for whole cohorts, and for many rounds of one device each, without writing messages out.
    """

    def server_init(self, n_items: int, rng: Streams) -> NDArray[np.float32]: ...

    def server_fold(
        self, items: NDArray[np.float32], reports: SummedReports
    ) -> NDArray[np.float32]: ...

    def device_init(self, users: NDArray[np.int64], rng: Streams) -> NDArray[np.float32]: ...

    def device_learn(
        self, view: ModelView, cohort: Cohort, rows: NDArray[np.int64], rng: Streams
    ) -> Updates:
        """Learn from one round; the cohort's vectors move, the updates stay here."""
        ...

    def device_few(self, view: ModelView, devices: int) -> bool:
        """Whether so few devices take part that writing their messages out costs less than tables
        with a row for every item."""
        ...

    def device_learn_summed(
        self,
        view: ModelView,
        cohort: Cohort,
        rows: NDArray[np.int64],
        rule: ShareRule,
        rng: Streams,
        threads: int,
    ) -> tuple[NDArray[np.int64], Counts]: ...

    def device_learn_rounds(
        self,
        items: NDArray[np.float32],
        first_round: int,
        cohort: Cohort,
        rows: NDArray[np.int64],
        rule: ShareRule,
        rng: Streams,
    ) -> tuple[NDArray[np.float32], Counts]: ...

    def device_score(
        self, view: ModelView, cohort: Cohort, rows: NDArray[np.int64]
    ) -> NDArray[np.float32]: ...
