"""Versions of a model: which are kept, which one is published, and what an operator can say."""

import secrets

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from server_world import SEED, USERS, Fleet, quick_rules, terms

from sottovoce.algorithms.fpl.system import FPL
from sottovoce.core.messages import ModelView
from sottovoce.core.quality import Quality
from sottovoce.errors import ServiceError, UsageError
from sottovoce.rng import Streams
from sottovoce.services.server.operator import status
from sottovoce.services.server.state import RoundState
from sottovoce.stores import server as records
from sottovoce.stores import versions
from sottovoce.stores.coordinator import Coordinator, Plan
from sottovoce.stores.database import Database, models
from sottovoce.wire.signing import open_envelope

GOOD = Quality((60.0, 50.0, 40.0), (40.0, 50.0, 60.0), 1.0)
BAD = Quality((30.0, 50.0, 20.0), (70.0, 50.0, 80.0), 1.0)


class World:
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


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Of models that are offered after every second round, with these answers of the devices."""
    made = []

    def make(*answers, rounds=40):
        waiting = list(answers)
        monkeypatch.setattr(FPL, "versioned", True)
        monkeypatch.setattr(FPL, "offers", lambda self, round: round % 2 == 0)
        told = lambda self, memory: waiting.pop(0) if waiting else None  # noqa: E731
        monkeypatch.setattr(FPL, "quality", told)
        made.append(World(tmp_path, rounds))
        return made[-1]

    yield make
    for each in made:
        each.database.close()


def test_where_every_model_is_published_there_are_no_versions(tmp_path):
    here = World(tmp_path, 4)
    for _ in range(4):
        assert {event.what for event in here.run_round()} <= {"goal", "opened"}
    assert (here.kept(), here.position().published) == ([], None)
    with here.database.reading() as link:
        assert [*link.execute(models.select().order_by(models.c.round)).scalars()] == [3, 4]
    with (
        pytest.raises(UsageError, match="no versions to choose from"),
        here.database.writing() as link,
    ):
        versions.publish(link, 4)
    here.database.close()


def test_versions_are_published_when_they_are_whole(world):
    here = world()
    told = [[event.what for event in here.run_round()] for _ in range(4)]
    first = ["goal", "published", "opened"]
    assert told == [first, first, ["goal", "opened"], first]
    assert (here.kept(), here.position().published) == ([1, 2, 4], 4)
    # The versions stay, the models in between do not.
    assert here.model(1) is not None
    for _ in range(2):
        here.run_round()
    assert here.model(3) is None
    assert here.model(1) is not None


def test_the_oldest_is_let_go_and_the_published_one_never(world):
    here = world()
    for _ in range(16):
        here.run_round()
    assert here.kept() == [2, 4, 6, 8, 10, 12, 14, 16]
    assert here.publish(2) == 16
    for _ in range(2):
        here.run_round()
    assert here.position().published == 18  # the rule goes on
    here.publish(4)
    here.run_round()
    here.restart()
    assert (here.position().published, len(here.kept())) == (4, 8)


def test_a_worse_one_is_held_back_until_the_operator_says_otherwise(world):
    here = world(GOOD, BAD, BAD, GOOD)
    for _ in range(3):
        here.run_round()
    over, held, opened = here.run_round()
    assert (over.what, held.what, opened.what) == ("goal", "held_back", "opened")
    assert "version 4 was held back: it is worse than version 2" in held.notices[0]
    here.restart()
    assert here.position().published == 2
    told = status(here.database)
    assert told["published"] == 2
    assert [v["version"] for v in told["versions"] if v["held_back"]] == [4]
    assert told["versions"][-1]["quality"] == BAD.to_table()
    snapshot = RoundState(here.database, here.plan)
    assert b'"published": 2' in snapshot.refresh().descriptor.body
    assert sorted(snapshot.now.versions) == [2, 3, 4]
    assert np.array_equal(snapshot.now.versions[2].view.items, here.model(2))
    assert here.publish(4) == 2
    assert b'"published": 4' in snapshot.refresh().descriptor.body
    assert not any(v["held_back"] for v in status(here.database)["versions"])
    for _ in range(2):
        here.run_round()
    assert here.position().published == 4  # held back against the operator's
    here.publish(2)
    for _ in range(2):
        here.run_round()
    assert here.position().published == 8


def test_learning_is_the_same_whatever_is_published(world):
    here = world(GOOD, BAD)
    for _ in range(3):
        here.run_round()
    before = here.model(3)
    here.publish(1)
    here.restart()
    assert np.array_equal(here.model(3), before)
    here.run_round()
    assert here.position().round == 4


def test_a_version_that_is_not_there(world):
    here = world()
    for _ in range(2):
        here.run_round()
    with pytest.raises(UsageError, match="version 7 is not here; these are: 1, 2"):
        here.publish(7)
    assert here.position().published == 2
    with here.database.writing() as link:
        link.execute(models.delete().where(models.c.round == 1))
    here.restart()  # nobody needs it
    with pytest.raises(UsageError, match="version 1 is not here; these are: 2"):
        here.publish(1)
    for _ in range(2):
        here.run_round()
    here.publish(2)
    with here.database.writing() as link:
        link.execute(models.delete().where(models.c.round == 2))
    with pytest.raises(ServiceError, match="lacks version 2 of the model, which is published"):
        here.restart()


def test_a_database_that_was_set_back_keeps_its_versions(world):
    here = world()
    for _ in range(3):
        here.run_round()
    newest = here.model(3)
    with here.database.writing() as link:
        here.coordinator.skip_to(link, 20)
    assert (here.kept(), here.position().published) == ([1, 2], 2)
    assert np.array_equal(here.model(20), newest)
    for _ in range(2):
        here.run_round()
    assert (here.position().round, here.position().published) == (22, 22)
