"""What an algorithm is: both halves, the device's and the server's, and no loop over rounds.

Device code runs over a cohort of n ≥ 1 devices. Simulation passes all of them, a phone passes one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sottovoce.consent import Consent, ShareRule
from sottovoce.data.interactions import Interactions
from sottovoce.errors import ConfigError, DataError
from sottovoce.messages import Aggregate, ModelView, Updates
from sottovoce.one_bit import ReportRule
from sottovoce.recommender import Scorer
from sottovoce.rng import Streams


@dataclass(slots=True, repr=False)
class Cohort:
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
    """In how many rounds each device has sent so far; none where it is not given."""
    scratch: dict[str, Any] = field(default_factory=dict)
    """What an algorithm derives from the histories once and uses in every round."""

    def __post_init__(self) -> None:
        n = len(self.users)
        if not len(self.spent):
            self.spent = np.zeros(n)
        if not len(self.sent):
            self.sent = np.zeros(n, dtype=np.int64)
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

    def __repr__(self) -> str:
        return f"<Cohort of {len(self):,} devices, redacted>"

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
        )

    def able(self) -> NDArray[np.bool_]:
        """Devices that can learn from pairs: at least one positive, at least one other item."""
        counts = self.history.counts
        able: NDArray[np.bool_] = (counts > 0) & (counts < self.history.n_items)
        return able


@dataclass(frozen=True, slots=True, repr=False)
class Counts:
    """How many distinct positive and negative items each device sent."""

    positive: NDArray[np.int32]
    negative: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How an algorithm plays out on N devices that hold X⁺ positives between them."""

    devices: int
    positives: int
    cohort_size: int
    triples: int
    """Draws per device and round; 0 where an algorithm draws no pairs."""
    rounds_per_epoch: int
    rounds: int

    def communication_cost(self, n_items: int, share_positives: float) -> float:
        """CCE of FPL in item rows exchanged per epoch, with whole T and rounds as they are run."""
        contacts = self.cohort_size * self.rounds_per_epoch
        return contacts * (n_items + self.triples * (1.0 + share_positives))

    @property
    def freshness(self) -> float:
        """Model versions per epoch, relative to one per positive (nFRSH)."""
        return self.rounds_per_epoch / self.positives


def require_devices(devices: int) -> None:
    """Raises where nobody takes part."""
    if devices < 1:
        raise ConfigError(
            "no device can take part: nobody both consents and has some, but not all, of the items"
        )


class FactorModel(Protocol):
    """What all algorithms of devices and a server share: a model of item rows between them, which
    the server holds and publishes, and a vector on each device, which stays there."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one item's update, as the papers count them."""
        ...

    @property
    def refits(self) -> bool:
        """Whether a device's vector follows from its history and the published model alone, so that
        everyone's is fitted anew to the newest one."""
        ...

    @property
    def looks_around(self) -> bool:
        """Whether what a device learns depends on other devices' vectors, so that a round must be
        learnt by all of its devices at once."""
        ...

    def server_init(self, n_items: int, rng: Streams) -> NDArray[np.float32]: ...

    def server_memory(self, n_items: int) -> NDArray[np.float32]:
        """What the server keeps to itself beside the model, a row per item, as it is at first."""
        ...

    def server_fold(
        self, items: NDArray[np.float32], memory: NDArray[np.float32], aggregate: Aggregate
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Model and memory after a round; what was given stays as it is."""
        ...

    def device_init(self, users: NDArray[np.int64], rng: Streams) -> NDArray[np.float32]: ...

    def device_able(self, cohort: Cohort) -> NDArray[np.bool_]:
        """Devices whose history lets them learn."""
        ...

    def device_scorer(self, vectors: NDArray[np.float32], items: NDArray[np.float32]) -> Scorer:
        """What devices with these vectors recommend by a published model."""
        ...

    def device_fit(self, view: ModelView, cohort: Cohort, rng: Streams) -> None:
        """Fit every vector of the cohort to the published model, at home."""
        ...


class CrossDevice(FactorModel, Protocol):
    """Devices send updates of item rows.

    `device_learn` is the definition; `device_learn_summed` gives the same results for whole cohorts
    without writing messages out.
    """

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


@runtime_checkable
class Selective(Protocol):
    """An algorithm that can serve some choices only."""

    def device_check(self, consent: Consent) -> None:
        """Raises where somebody who takes part has chosen what it cannot give."""
        ...


@runtime_checkable
class Fusing(Protocol):
    """An algorithm that can run many rounds of one device each at once, with the same results."""

    def device_learn_rounds(
        self,
        items: NDArray[np.float32],
        first_round: int,
        cohort: Cohort,
        rows: NDArray[np.int64],
        rule: ShareRule,
        rng: Streams,
    ) -> tuple[NDArray[np.float32], Counts]: ...


@runtime_checkable
class Reporting(FactorModel, Protocol):
    """Devices send randomised reports about single coordinates of what they would change."""

    @property
    def tiers(self) -> int:
        """How many batches there can be in a round."""
        ...

    def coordinates(self, n_items: int) -> int:
        """How many coordinates a report can be about."""
        ...

    def sampling(self, items: NDArray[np.float32]) -> tuple[float, NDArray[np.uint64]]:
        """From the published model alone: the factor by which values are multiplied before they
        are cut to [-1, 1], and the table from which items are drawn (empty: all alike)."""
        ...

    def device_report(
        self,
        view: ModelView,
        cohort: Cohort,
        rows: NDArray[np.int64],
        rule: ReportRule,
        threads: int,
    ) -> NDArray[np.uint32]:
        """Each device's randomised reports, [rows, k]; the cohort's vectors move."""
        ...
