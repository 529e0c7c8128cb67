"""A server's rounds of reports that it can read, over its database, without a network."""

from rounds_world import RoundsWorld
from server_world import SEED, USERS, Fleet, quick_rules, terms

from sottovoce.core.messages import ModelView
from sottovoce.parties.server import NO_DEFENCE
from sottovoce.rng import Streams
from sottovoce.stores import server as records
from sottovoce.stores import server as roster
from sottovoce.stores.coordinator import Plan
from sottovoce.stores.server import Submission
from sottovoce.wire.signing import open_envelope


class PlainWorld(RoundsWorld):
    def __init__(
        self, path, *, rounds=3, cohort_size="all", devices=USERS, defence=NO_DEFENCE, **rules
    ):
        root = Streams.from_seed(SEED).key
        plan = Plan(terms(), cohort_size, rounds, root, quick_rules(**rules), defence)
        super().__init__(path, plan)
        self.fleet = Fleet()
        self.enrol(range(devices))

    def selected(self):
        now = self.position()
        with self.database.reading() as link:
            return records.selected(link, now.round, now.attempt).tolist()

    def model(self, round):
        """Its rows, and when each has changed."""
        return self.read(records.model, round, self.terms.width)

    def submission(self, number):
        now = self.position()
        view = ModelView(now.round, self.model(now.round)[0])
        envelope = open_envelope(self.fleet.report(number, view, now.attempt))
        mark = records.mark_of(envelope.nonce, envelope.body)
        return Submission(now.round, now.attempt, number, mark, envelope.body)

    def report(self, *numbers):
        with self.database.writing() as link:
            return records.accept(link, [self.submission(n) for n in numbers])

    def active(self):
        return self.read(roster.pool).tolist()
