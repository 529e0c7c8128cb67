"""A server's rounds over a database, without a network, and with a clock that is moved by hand."""

import contextlib
import secrets

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce.core.messages import ModelView
from sottovoce.stores import server as records
from sottovoce.stores.coordinator import Coordinator
from sottovoce.stores.database import Database


class RoundsWorld:
    """A subclass says what moves its rounds (`coordinating`) and how its devices report."""

    def __init__(self, path, plan, keys=(), database=None):
        self.path, self.plan, self.terms = path, plan, plan.terms
        self.time, self.events = 1000.0, []
        self.database = database or Database.sqlite(path / "server.db")
        self.database.create()
        self.restart()
        self.enrol(range(len(keys)), keys)

    def coordinating(self):
        return Coordinator(self.plan, lambda: self.time)

    def close(self):
        self.database.close()

    def restart(self):
        """As after a kill: nothing is left but the database."""
        self.coordinator = self.coordinating()
        with self.database.writing() as link:
            self.coordinator.start(link)

    def enrol(self, numbers, keys=None):
        keys = [Ed25519PrivateKey.generate() for _ in numbers] if keys is None else keys
        tokens = [secrets.token_bytes(32) for _ in keys]
        with self.database.writing() as link:
            records.invite(link, numbers, tokens)
            for token, key in zip(tokens, keys, strict=True):
                public = key.public_key().public_bytes_raw()
                assert records.enrol(link, token, public) is not None

    def step(self):
        """What has happened; `events` tells more of it."""
        with self.database.leading() as leader:
            self.events = self.coordinator.step(leader)
        return [event.what for event in self.events]

    def read(self, look, *more):
        with self.database.reading() as link:
            return look(link, *more)

    def position(self):
        return self.read(records.position)

    def model(self, round=None):
        """The rows of a round's model, or of the present one's; None where it is gone."""
        round = self.position().round if round is None else round
        found = self.read(records.model, round, self.terms.width)
        return None if found is None else found[0]

    def view(self):
        return ModelView(self.position().round, self.model())

    def past(self):
        return self.read(records.past_rounds)

    def refused(self):
        return self.read(records.refused)


def maker(world):
    """A fixture that makes worlds of this kind, as many as a test wants, and closes them."""

    @pytest.fixture
    def make(tmp_path):
        with contextlib.ExitStack() as made:

            def one(*given, **options):
                return made.enter_context(contextlib.closing(world(tmp_path, *given, **options)))

            yield one

    return make
