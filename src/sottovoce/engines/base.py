"""What every engine shares: the moment observers see, and the observers' contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Cohort
from sottovoce.ledger import Ledger


@dataclass(frozen=True, slots=True, repr=False)
class Moment:
    """The state of a run after `round` rounds of `rounds`."""

    round: int
    rounds: int
    items: NDArray[np.float32]
    cohort: Cohort
    ledger: Ledger
    memory: NDArray[np.float32]
    """What the server keeps to itself."""


class Observer(Protocol):
    """Looks on; changes nothing. `next_stop` says after which round it wants to look next."""

    def next_stop(self, round: int) -> int:
        """The first round number after `round` at which to call `look`."""
        ...

    def look(self, moment: Moment) -> None: ...


class Listener(Protocol):
    """Hears every message. Where there is one, messages are written out."""

    def hear(self, party: str, message: object) -> None:
        """A message of `messages` has reached this party: "server", "proxy", or, what is published,
        "device"."""
        ...
