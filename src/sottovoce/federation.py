"""The parties of a cross-device system, put together on one training set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Cohort
from sottovoce.algorithms.fpl import FPL, FPLConfig, Schedule, schedule
from sottovoce.consent import Consent
from sottovoce.data.interactions import Interactions
from sottovoce.engines.base import Listener, Observer
from sottovoce.engines.simulation import Simulation
from sottovoce.errors import ConfigError
from sottovoce.ledger import Ledger, Totals
from sottovoce.parties.device import Devices
from sottovoce.parties.server import Server
from sottovoce.privacy.mechanisms import Release
from sottovoce.recommender import FactorScorer
from sottovoce.rng import Streams


@dataclass(slots=True)
class Federation:
    """The parties of a cross-device system on one training set, ready to run or to resume."""

    schedule: Schedule
    server: Server
    devices: Devices

    @classmethod
    def build(
        cls,
        settings: FPLConfig,
        train: Interactions,
        consent: Consent,
        release: Release,
        rng: Streams,
    ) -> Federation:
        users = np.arange(train.n_users, dtype=np.int64)
        cohort = Cohort(
            users, train, consent, np.zeros((train.n_users, settings.embedding_size), np.float32)
        )
        willing = cohort.willing()
        plan = schedule(settings, len(willing), int(train.counts[willing].sum()))
        algorithm = FPL(settings, plan.triples)
        cohort.vectors = algorithm.device_init(users, rng)
        devices = Devices.behind_door(algorithm, cohort, release, Ledger(), rng)
        return cls(plan, Server.start(algorithm, train.n_items, rng), devices)

    def restore(
        self,
        round: int,
        items: NDArray[np.float32],
        vectors: NDArray[np.float32],
        totals: Totals,
    ) -> None:
        """Put every party where it was after `round` rounds."""
        self.server.round, self.server.items = round, items
        self.devices.cohort.vectors = vectors
        self.devices.ledger.totals = totals

    def check_device(self, device: str) -> None:
        """Raises where rounds cannot run on `device`."""
        if device == "cpu":
            return
        if self.schedule.cohort_size == 1:
            raise ConfigError(
                "one device a round is a sequential computation; leave it on --device cpu"
            )
        from sottovoce.algorithms.fpl_cuda import require

        require(device)

    def accelerate(self, device: str) -> None:
        """Move whole rounds to `device` (after a checkpoint was restored, if any)."""
        from sottovoce.algorithms.fpl_cuda import FPLOnGPU

        algorithm, n_items = self.server.algorithm, len(self.server.items)
        if not isinstance(algorithm, FPL):
            raise ConfigError("only FPL runs on a GPU")
        self.devices.accelerate(
            lambda rule: FPLOnGPU.load(algorithm, self.devices.cohort, n_items, rule, device)
        )

    def run(
        self,
        observers: Sequence[Observer] = (),
        listeners: Sequence[Listener] = (),
        *,
        threads: int = 1,
    ) -> None:
        plan = self.schedule
        Simulation(
            self.server,
            self.devices,
            plan.cohort_size,
            plan.rounds,
            observers,
            listeners,
            threads,
        ).run()

    def scorer(self) -> FactorScorer:
        """What every device would recommend by now. Devices that do not take part have learnt their
        vector at home from the published model; nothing of theirs has left."""
        return FactorScorer(
            self.devices.vectors_at_home(self.server.publish()), *split_items(self.server.items)
        )


def split_items(
    items: NDArray[np.float32],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Factors and biases of published item rows."""
    return np.ascontiguousarray(items[:, :-1]), np.ascontiguousarray(items[:, -1])
