"""A server of models that are offered after every second round, with given answers of devices."""

from rounds_world import RoundsWorld
from server_world import SEED, USERS, Fleet, quick_rules, terms

from sottovoce.algorithms.fpl.system import FPL
from sottovoce.core.messages import ModelView
from sottovoce.core.quality import Quality
from sottovoce.rng import Streams
from sottovoce.stores import server as records
from sottovoce.stores import versions
from sottovoce.stores.coordinator import Plan
from sottovoce.wire.signing import open_envelope

GOOD = Quality((60.0, 50.0, 40.0), (40.0, 50.0, 60.0), 1.0)
BAD = Quality((30.0, 50.0, 20.0), (70.0, 50.0, 80.0), 1.0)


class VersionsWorld(RoundsWorld):
    def __init__(self, path, rounds):
        root = Streams.from_seed(SEED).key
        super().__init__(path, Plan(terms(), "all", rounds, root, quick_rules()))
        self.fleet = Fleet()
        self.enrol(range(USERS))

    def step(self):
        super().step()
        return self.events

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

    def kept(self):
        return [one.version for one in self.read(versions.all_of)]

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
