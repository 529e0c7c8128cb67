"""A server of models that are offered after every second round, with given answers of devices."""

import secrets

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from server_world import SEED, USERS, Fleet, quick_rules, terms

from sottovoce.algorithms.fpl.system import FPL
from sottovoce.core.messages import ModelView
from sottovoce.core.quality import Quality
from sottovoce.rng import Streams
from sottovoce.stores import server as records
from sottovoce.stores import versions
from sottovoce.stores.coordinator import Coordinator, Plan
from sottovoce.stores.database import Database
from sottovoce.wire.signing import open_envelope

GOOD = Quality((60.0, 50.0, 40.0), (40.0, 50.0, 60.0), 1.0)
BAD = Quality((30.0, 50.0, 20.0), (70.0, 50.0, 80.0), 1.0)


class VersionsWorld:
    def __init__(self, path, rounds):
        root = Streams.from_seed(SEED).key
        self.plan = Plan(terms(), "all", rounds, root, quick_rules())
        self.database = Database.sqlite(path / "server.db")
        self.database.create()
        self.fleet = Fleet()
        self.restart()
        tokens = [secrets.token_bytes(32) for _ in range(USERS)]
        with self.database.writing() as link:
            records.invite(link, range(USERS), tokens)
            for token in tokens:
                key = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
                records.enrol(link, token, key)

    def restart(self):
        self.coordinator = Coordinator(self.plan, lambda: 0.0)
        with self.database.writing() as link:
            self.coordinator.start(link)

    def step(self):
        with self.database.leading() as leader:
            return self.coordinator.step(leader)

    def run_round(self):
        now = self.position()
        if now.state == "waiting":
            self.step()
            now = self.position()
        view = ModelView(now.round, self.model(now.round))
        batch = []
        for number in range(USERS):
            envelope = open_envelope(self.fleet.report(number, view, now.attempt))
            mark = records.mark_of(envelope.nonce, envelope.body)
            place = now.round, now.attempt, number
            batch.append(records.Submission(*place, mark, envelope.body))
        with self.database.writing() as link:
            records.accept(link, batch)
        return self.step()

    def position(self):
        with self.database.reading() as link:
            return records.position(link)

    def model(self, round):
        with self.database.reading() as link:
            found = records.model(link, round, terms().width)
        return None if found is None else found[0]

    def kept(self):
        with self.database.reading() as link:
            return [one.version for one in versions.all_of(link)]

    def publish(self, version):
        with self.database.writing() as link:
            return versions.publish(link, version)


def answering(monkeypatch, *answers):
    """From now on models are offered after every second round, and devices say this of them."""
    waiting = list(answers)
    monkeypatch.setattr(FPL, "versioned", True)
    monkeypatch.setattr(FPL, "offers", lambda self, round: round % 2 == 0)
    told = lambda self, memory: waiting.pop(0) if waiting else None  # noqa: E731
    monkeypatch.setattr(FPL, "quality", told)
