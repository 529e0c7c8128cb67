"""What a release is: what of a device's updates leaves, in which form, and at what price.

A release answers for itself: what it does to updates, which consent it can keep to, what it costs.
Bound to the records and histories of one cohort it is a `BoundRelease`, which the door asks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.choice import ASKED, DrawnField
from sottovoce.core.consent import Choice, Consent, ShareRule
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import Link
from sottovoce.core.messages import GRID, LIMIT, DeviceReports
from sottovoce.errors import ConfigError, ConsentError
from sottovoce.registry import Component, Registry
from sottovoce.rng import Streams

if TYPE_CHECKING:
    from sottovoce.privacy.own_epsilon import BoundContributions, OwnEpsilon
    from sottovoce.privacy.reports import BoundReports, KReports

Sends = Literal["rows", "bits", "contributions"]
"""What leaves: rows of the model, randomised reports about single coordinates, or contributions to
sums that are opened once."""
UNKNOWN = (
    "This release does not say what it protects. Take it that whoever sees what leaves can read "
    "the history behind it, unless its author shows otherwise. The ledger has the privacy cost "
    "that it books for every release. See `sottovoce docs privacy`."
)


class Release(Component, ABC):
    """The settings of a release, as a frozen dataclass."""

    __slots__ = ()
    sends: ClassVar[Sends] = "rows"
    reads: ClassVar[tuple[str, ...]] = ()
    """Fields of the consent records that it keeps to. Whoever has chosen something in another one,
    which the algorithm does not read either, is refused, not ignored."""
    algorithms: ClassVar[tuple[str, ...]] = ()
    """By name, algorithms it goes with beside those that name it among theirs."""

    @property
    def clips(self) -> bool:
        """Whether it wants updates within a norm of its own."""
        return False

    @property
    def adds_noise(self) -> bool:
        """Whether devices add noise to updates, from coins that serve once."""
        return False

    @property
    def dense(self) -> bool:
        """Whether every row of the model is sent, so that rows say nothing."""
        return False

    @property
    def shows_hiding(self) -> bool:
        """Whether the noise shows that a user hides an attribute."""
        return False

    @property
    def epsilon(self) -> float:
        """Privacy cost by which noise on updates is measured; 0 where devices add none."""
        return 0.0

    @property
    def noise_bound(self) -> float:
        """The largest absolute value that noise adds to one number, for all practical purposes."""
        return 0.0

    @property
    def reporting(self) -> KReports | None:
        """Itself, where randomised reports are what leaves."""
        return None

    @property
    def contributing(self) -> OwnEpsilon | None:
        """Itself, where contributions to noisy sums are what leaves."""
        return None

    @property
    def steps(self) -> int:
        """To the unit, of the whole numbers that leave."""
        return int(GRID)

    def largest_value(self, draws: int) -> float:
        """The largest absolute value of one number in what an honest device sends."""
        return LIMIT * max(1, draws) + self.noise_bound

    def is_revealing(self, triples: int, n_items: int) -> bool:
        """Whether a single round may tell much of a history, where a report can be read and has
        so many draws (0: not draws, but all items)."""
        return True

    @abstractmethod
    def bind(
        self,
        users: NDArray[np.int64],
        consent: Consent,
        history: Interactions,
        rng: Streams,
        noise: bytes = b"",
        *,
        noisy_sums: bool = False,
    ) -> BoundRelease:
        """The release under these records; raises where it cannot keep to them. `noise` is the root
        of the devices' private coins, 32 bytes. With `noisy_sums` somebody else adds noise to the
        sums of updates, by which a limit on ε can be kept."""

    # --- what a choice is about -------------------------------------------------------------------

    def asked_for(self) -> tuple[DrawnField, ...]:
        """The fields of a choice that it keeps to, as a page draws them."""
        return tuple(ASKED[name] for name in self.reads)

    # --- what a choice means under it -------------------------------------------------------------

    def cost(self, choice: Choice) -> float | None:
        """ε of one round under this choice; None where nothing leaves, or nothing that an ε
        bounds."""
        if not choice.takes_part:
            return None
        try:
            found = float(self._bound_to(choice).epsilons[0])
        except ConsentError:
            return None
        return found if 0.0 < found < math.inf else None

    def objection(self, choice: Choice, *, noisy_sums: bool = False) -> str:
        """Why nothing leaves under this choice of somebody who takes part, and what to choose
        instead; empty where something may. The words are for a terminal."""
        try:
            permitted = self._bound_to(choice, noisy_sums=noisy_sums).permits(np.zeros(1))
        except ConsentError as error:
            return f"Nothing leaves under this choice: {error}."
        return "" if permitted[0] else "This choice permits no release: nothing leaves."

    def _bound_to(self, choice: Choice, *, noisy_sums: bool = False) -> BoundRelease:
        """Bound to one person who has no history yet."""
        user = np.zeros(1, np.int64)
        records = Consent.uniform(user, choice, choice.hidden_attributes, choice.refused_owners)
        nothing = Interactions.from_pairs(user[:0], user[:0], n_users=1, n_items=1)
        coins = Streams.from_seed(0)
        return self.bind(user, records, nothing, coins, bytes(32), noisy_sums=noisy_sums)

    # --- how it is shown --------------------------------------------------------------------------

    @property
    def as_printed(self) -> bool:
        """Whether it is what a paper has. Over sums it is something else."""
        return False

    def describe(self) -> str:
        """What leaves, for a run's report."""
        return f"by the release {self.name}"

    def card(self) -> str:
        """What leaves, for a report card."""
        return self.describe()

    def relied_on(self, choices: Sequence[Choice]) -> str:
        """What people relied on who made these choices: the subject of a report card's
        sentences."""
        return "That raw data stay on the device"

    @property
    def unprotected(self) -> str:
        """What it does not protect from a server that reads what leaves, in a paragraph."""
        return UNKNOWN

    def caveats(self, link: Link | None = None) -> tuple[str, ...]:
        """What it does not protect on this way, a paragraph each."""
        return (link.caveats() if link is not None else ()) or (self.unprotected,)


RELEASES: Registry[type[Release]] = Registry("release", "sottovoce.privacy", Release)


class BoundRelease(ABC):
    """A release bound to the records and histories of one cohort. What it does not say is as where
    nothing is added and nothing is promised."""

    __slots__ = ()
    kind: str
    users: NDArray[np.int64]
    rng: Streams

    @property
    def spends(self) -> bool:
        """Whether what leaves is paid for from owners' budgets."""
        return False

    @property
    def dense(self) -> bool:
        """Whether every row of the model is sent, so that rows say nothing."""
        return False

    @property
    def per_row(self) -> bool:
        """Whether noise depends on which rows a device sends, so that sums do not suffice."""
        return False

    @property
    def reporting(self) -> BoundReports | None:
        """Itself, where randomised reports are what leaves."""
        return None

    @property
    def contributing(self) -> BoundContributions | None:
        """Itself, where contributions to noisy sums are what leaves."""
        return None

    @property
    def epsilons(self) -> NDArray[np.float64]:
        """What one release costs each device, by what we can prove. Not to be written to."""
        # One number in memory, however many devices there are: rounds of a few ask for it, too.
        return np.broadcast_to(math.inf, len(self.users))

    def permits(
        self, spent: NDArray[np.float64], times: NDArray[np.int64] | int = 1
    ) -> NDArray[np.bool_]:
        """Devices whose owner's limit leaves room for so many more releases, at least for one."""
        return np.ones(len(self.users), dtype=bool)

    def rule(self, rows: NDArray[np.int64], rounds: NDArray[np.int64]) -> ShareRule:
        """The rule for these devices; `rounds` holds one round number, or one per row."""
        raise ConfigError("this release sends randomised reports, not item rows")

    def round_key(self, round: int) -> int:
        """The key from which that of each device's coins in a round derives."""
        return self.rng.child(round).key

    def scales(self) -> NDArray[np.float64]:
        """Return the scale of each device's noise on one number; 0 if there is none."""
        return np.zeros(len(self.users))

    def add_noise(
        self, reports: DeviceReports, rows: NDArray[np.int64], n_rows: int, width: int
    ) -> DeviceReports:
        """The reports of these devices as they may leave."""
        return reports

    def add_noise_to_sums(
        self, sums: NDArray[np.int64], rows: NDArray[np.int64], round: int, threads: int = 1
    ) -> NDArray[np.int64]:
        """The sum over these devices of what `add_noise` gives, from the sum of what it gets."""
        return sums
