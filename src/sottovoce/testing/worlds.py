"""Tiny worlds, and a few rounds on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import CrossDevice
from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.ledger import Ledger, Totals
from sottovoce.core.messages import DeviceReports
from sottovoce.engines.simulation import SimulatedDevices, Simulation
from sottovoce.errors import SottovoceError
from sottovoce.parties.defence import Defence
from sottovoce.parties.server import NO_DEFENCE, Server
from sottovoce.privacy.base import Release
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams


class ContractBroken(SottovoceError):
    """A contract does not hold."""


def checkerboard(n_users: int = 40, n_items: int = 30, hole: int = 1) -> Interactions:
    """Even users like even items, odd users odd items; each lacks `hole` items of her colour, which
    are what a recommender should find."""
    users, items = [], []
    for user in range(n_users):
        colour = np.arange(user % 2, n_items, 2)
        missing = {(user // 2 + k) % len(colour) for k in range(hole)}
        kept = [int(c) for k, c in enumerate(colour) if k not in missing]
        users += [user] * len(kept)
        items += kept
    return Interactions.from_pairs(users, items, n_users=n_users, n_items=n_items)


def random_world(n_users: int, n_items: int, events: int, seed: int) -> Interactions:
    """Events drawn uniformly; every user has at least one item and lacks at least one."""
    rng = np.random.default_rng(seed)
    users = np.concatenate([np.arange(n_users), rng.integers(0, n_users, events)])
    items = np.concatenate(
        [rng.integers(0, n_items - 1, n_users), rng.integers(0, n_items - 1, events)]
    )
    return Interactions.from_pairs(users, items, n_users=n_users, n_items=n_items)


class Messages:
    """A message observer that keeps what it sees."""

    def __init__(self) -> None:
        self.seen: list[DeviceReports] = []

    def on_message(self, party: str, message: object) -> None:
        if isinstance(message, DeviceReports):
            self.seen.append(message)


@dataclass(frozen=True, slots=True, repr=False)
class SmallRun:
    items: NDArray[np.float32]
    vectors: NDArray[np.float32]
    totals: Totals
    messages: Messages

    def equals(self, other: SmallRun) -> bool:
        """The same model, vectors and ledger totals, bit for bit."""
        return (
            np.array_equal(self.items, other.items)
            and np.array_equal(self.vectors, other.vectors)
            and self.totals == other.totals
        )


def small_run(
    algorithm: CrossDevice,
    train: Interactions,
    *,
    rounds: int,
    cohort_size: int | None = None,
    choice: Choice | None = None,
    consent: Consent | None = None,
    release: Release | None = None,
    seed: int = 0,
    threads: int = 1,
    fuse: bool = True,
    written: bool = False,
    defence: Defence = NO_DEFENCE,
    streams: type[Streams] = Streams,
) -> SmallRun:
    """A few rounds in simulation; `written` sends every report as a message."""
    rng = streams.from_seed(seed)
    users = np.arange(train.n_users, dtype=np.int64)
    records = consent or Consent.uniform(users, choice or Choice(share_positives=0.5))
    cohort = Cohort(users, train, records, algorithm.device_init(users, rng))
    ledger, messages = Ledger(), Messages()
    devices = SimulatedDevices.behind_door(
        algorithm, cohort, release or ShareFraction(), ledger, rng
    )
    server = Server.start(algorithm, train.n_items, rng)
    server.guard = defence.guard()
    Simulation(
        server,
        devices,
        cohort_size or len(devices.willing()),
        rounds,
        message_observers=[messages] if written else [],
        threads=threads,
        fuse=fuse,
    ).run()
    return SmallRun(server.items, cohort.vectors, ledger.totals, messages)


def require(holds: bool, what: str) -> None:
    if not holds:
        raise ContractBroken(what)
