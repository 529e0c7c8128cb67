"""A tiny town for Flower: eight devices in cohorts of 1, 2 and 5; what simulation makes of it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce.core.cohort import Cohort
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.ledger import Ledger
from sottovoce.engines.simulation import SimulatedDevices
from sottovoce.parties.rounds import RoundRules
from sottovoce.parties.server import Server
from sottovoce.rng import Streams
from sottovoce.stores.device import CohortStore
from sottovoce.stores.server_folder import create_folder
from sottovoce.stores.session import DeviceSession
from sottovoce.testing import random_world
from sottovoce.wire.terms import Terms

KEY = Streams.from_seed(3).key
COHORTS = {"alba": [4], "bora": [0, 7], "corso": [1, 2, 3, 5, 6]}
TRAIN = random_world(8, 40, 150, seed=11)
SHARES = [0.0, 0.3, 0.5, 1.0, 0.7, 0.2, 0.9, 0.4]
ITEMS = [f"item-{n}" for n in range(TRAIN.n_items)]
FAST = RoundRules(over_selection=0.0, deadline_seconds=240.0, min_devices=8, poll_seconds=1.0)


@dataclass
class Town:
    folder: Path
    """The server's folder."""
    stores: dict[str, Path]
    terms: Terms

    def found(self, rounds=5, rules=FAST, cohort_size="all"):
        """Make the server's folder; the federation's plan."""
        return create_folder(
            self.folder,
            self.terms,
            [(item, item.title()) for item in ITEMS],
            cohort_size=cohort_size,
            rounds=rounds,
            root_key=KEY,
            rules=rules,
        ).plan

    def hosted(self, name):
        return DeviceSession(CohortStore.open(self.stores[name]))

    def vectors(self):
        """Everybody's vector, by number."""
        found = {}
        for path in self.stores.values():
            with CohortStore.open(path) as store:
                found |= dict(
                    zip(store.users.tolist(), DeviceSession(store).vectors(), strict=True)
                )
        return np.array([found[number] for number in sorted(found)])

    def ledger(self):
        """Everybody's rows, as simulation has them, sorted by round and user."""
        rows = []
        for path in self.stores.values():
            with CohortStore.open(path) as store:
                rows += store.ledger().to_pylist()
        return sorted(rows, key=lambda row: (row["round"], row["user"]))

    def states(self):
        found = set()
        for path in self.stores.values():
            with CohortStore.open(path) as store:
                found |= set(store.ledger_rows()["state"].to_pylist())
        return found

    def simulate(self, rounds=5, asked=None):
        """The same rounds in simulation: model, vectors and ledger. `asked` gives the devices of
        every round where they were not all."""
        rng = Streams(KEY)
        algorithm = self.terms.build()
        users = np.arange(8, dtype=np.int64)
        choices = [Choice(share_positives=share) for share in SHARES]
        consent = Consent.of(users, choices, users)
        cohort = Cohort(users, TRAIN, consent, algorithm.device_init(users, rng))
        ledger = Ledger()
        devices = SimulatedDevices.behind_door(algorithm, cohort, self.terms.release, ledger, rng)
        server = Server.start(algorithm, TRAIN.n_items, rng)
        for turn in range(rounds):
            rows = users if asked is None else np.array(asked[turn])
            server.fold(devices.report_summed(server.publish(), rows))
        rows = sorted(ledger.pending().to_pylist(), key=lambda row: (row["round"], row["user"]))
        return server.items, cohort.vectors, rows
