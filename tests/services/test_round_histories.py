"""Random histories of a server's rounds over its database, on each kind of link: devices that send
twice, too late or what cannot be used, parties that are away, and a server that is killed before or
after any of its transactions. `parties/test_rounds.py` has many more, of the rules alone."""

import contextlib
import hashlib

import numpy as np
import pytest
from checked_world import CheckedWorld
from collector_world import BatchesWorld, K, parts_of, some_reports
from contributed_world import ContributedWorld
from plain_world import PlainWorld
from secure_sum_world import SummedWorld

from sottovoce.engines.helper_client import SUMS
from sottovoce.errors import ServiceError, Unreachable
from sottovoce.services.server.checked_rounds import PARTS
from sottovoce.stores import batches, sums
from sottovoce.stores import server as records
from sottovoce.stores.sums import most_summed
from sottovoce.wire.refusals import Refused


class Killed(BaseException):
    """The server is gone."""


class Killing:
    """A leader whose process is killed at one of its transactions, before or after it."""

    def __init__(self, leader, left, after):
        self.leader, self.left, self.after = leader, left, after

    def reading(self):
        return self.leader.reading()

    @contextlib.contextmanager
    def writing(self):
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Killed
        with self.leader.writing() as link:
            yield link
        if self.left == 0:
            raise Killed


class Case:
    """What a history does to a world, and what must hold of it afterwards. `sent` is who was
    accepted in each attempt at a round."""

    can_be_bad = True
    once = True
    least = 1

    def __init__(self, path):
        self.away, self.sent, self.asked, self.last = False, {}, {}, {}
        self.world = self.make(path)
        self.bad = set()

    def place(self):
        now = self.world.position()
        return now.round, now.attempt

    def send(self, number):
        if self.world.position().state == "open" and self.store(self.message(number)):
            self.sent.setdefault(self.place(), []).append(number)

    def twice(self):
        """The last message again; it counts once."""
        if self.last:
            number, message = list(self.last.items())[-1]
            if self.store(message):
                self.sent.setdefault(self.place(), []).append(number)

    def message(self, number):
        self.last[number] = self.made(number)
        return self.last[number]

    def store(self, message):
        with self.world.database.writing() as link:
            return self.accept(link, [message]) == ["accepted"]

    def answered(self, about, question):
        """A party has told something about a sum."""
        seen = hashlib.sha256(question).digest()
        self.asked.setdefault((self.world.position().round, about), set()).add(seen)

    def step(self, left=-1, after=False):
        world = self.world
        try:
            with world.database.leading() as leader:
                world.coordinator.step(Killing(leader, left, after))
        except Killed:
            world.restart()
        except ServiceError:
            if not self.away:
                raise

    def finish(self):
        """All honest devices send, everybody answers, and time passes: the round ends."""
        self.away, place = False, self.place()
        for _ in range(12):
            for number in sorted(set(range(self.devices)) - self.bad):
                if self.place() == place and number not in self.sent.get(place, ()):
                    self.send(number)
            self.world.time += 80.0
            self.step()
            if self.place() != place or self.world.position().state == "finished":
                return
        raise AssertionError(f"round {place} hangs: {self.world.position()}")

    def check(self):
        done = {(one.round, one.attempt): one for one in self.world.past()}
        for place, who in self.sent.items():
            assert len(who) == len(set(who)), "a message counts twice"
            out = set(self.world.read(sums.who_is_out, *place))
            assert out <= self.bad, "an honest device is left out"
            if place in done:
                assert done[place].reported == len(who)
                abandoned = done[place].outcome == "abandoned"
                assert not (self.once and abandoned), "what was paid for is thrown away"
                if done[place].outcome in ("goal", "deadline"):
                    assert len(set(who) - out) >= self.least, "a sum over too few"
                    assert out == set(who) & self.bad, "what cannot be used counts"
        if self.once:
            for round in {round for round, _ in self.sent}:
                paid = [n for (at, _), who in self.sent.items() if at == round for n in who]
                assert len(paid) == len(set(paid)), "somebody pays twice"
        assert all(len(sets) == 1 for sets in self.asked.values()), "two sums over different sets"


class Plain(Case):
    can_be_bad, once = False, False

    def make(self, path):
        self.devices = 8
        return PlainWorld(path, rounds=4, min_fraction=0.5, deadline_seconds=60.0)

    def made(self, number):
        return self.world.submission(number)

    def accept(self, link, messages):
        return records.accept(link, messages)


class Masked(Case):
    """Of reports round after round: one without enough devices may be tried again."""

    once, least = False, 3

    def make(self, path):
        self.devices = 8
        made = SummedWorld(
            path, rounds=4, min_fraction=0.4, deadline_seconds=60.0, grace_seconds=10.0,
            link={"min_devices": self.least},
        )  # fmt: skip
        made.ask, ask = self.ask, made.ask
        self.way = ask
        made.restart()
        return made

    def ask(self, question, path):
        if self.away:
            raise Unreachable("nobody answers")
        told = self.way(question, path)
        if path == SUMS and told.status == 200:
            self.answered("helper", question)
        return told

    def made(self, number):
        world = self.world
        now, keeper, extra = world.position(), world.keepers[number], {}
        if number in self.bad:  # sealed for another attempt: the helper cannot open it
            keeper.model = world.model_name()
            other = world.terms, now.round, now.attempt + 1
            extra["record"] = keeper.record(world.terms, now.round, now.attempt, sealed_for=other)
        return world.submissions(number, **extra)[0]

    def accept(self, link, messages):
        return sums.accept(link, messages, most_summed(self.world.terms))


class Contributed(Masked):
    """Of contributions that come once: a round waits until there are enough."""

    once, least = True, 4

    def make(self, path):
        self.devices = 8
        made = ContributedWorld(path)
        made.ask, self.way = self.ask, made.ask
        made.restart()
        return made

    def made(self, number):
        made = []
        real, sums.accept = sums.accept, lambda link, batch, most: made.extend(batch)
        try:
            self.world.send(number, foreign=number in self.bad)
        finally:
            sums.accept = real
        return made[0]


class Checked(Case):
    least = 3

    def make(self, path):
        made = CheckedWorld(path, least=self.least, rounds=4)
        self.devices = len(made.keys)
        made.ask, self.way = self.ask, made.ask
        made.restart()
        return made

    def ask(self, number, question, path):
        if self.away:
            raise Unreachable("nobody answers")
        told = self.way(number, question, path)
        if path == PARTS and told.status == 200:
            self.answered(number, question)
        return told

    def made(self, number):
        world, bits = self.world, None
        if number in self.bad:
            bits = np.array(world.bits())
            bits[0] = 2  # is no bit, which turns out when the round is closed
        now, body = world.position(), world.body(number, bits)
        mark = records.mark_of(b"", body)
        return records.Submission(now.round, now.attempt, number, mark, body)

    def accept(self, link, messages):
        return sums.accept(link, messages, most_summed(self.world.terms))


class Batches(Case):
    """A "device" is a batch of a tier; one of them comes in two parts."""

    can_be_bad = False

    def make(self, path):
        self.devices = 2
        return BatchesWorld(path, rounds=4, deadline_seconds=60.0, grace_seconds=10.0)

    def made(self, tier):
        now = self.world.position()
        reports = some_reports(4, seed=tier)
        where = {"round": now.round, "tier": tier, "parts": 1 + tier}
        return list(parts_of(reports, now.report_key, **where))

    def accept(self, link, messages):
        (parts,) = messages
        try:
            return ["accepted"] if all([batches.accept(link, p, K) for p in parts][-1:]) else []
        except Refused:
            return []

    def check(self):
        done = {one.round: one for one in self.world.past()}
        for (round, attempt), tiers in self.sent.items():
            assert attempt == 0
            assert len(tiers) == len(set(tiers)), "a batch counts twice"
            if round in done:
                assert done[round].reported == 4 * len(tiers)
                assert done[round].outcome == ("goal" if len(tiers) == 2 else "deadline")


CASES = (Plain, Masked, Contributed, Checked, Batches)
ACTIONS = ("send", "twice", "away", "kill", "time", "step")
CHANCES = (0.45, 0.05, 0.08, 0.12, 0.1, 0.2)


def play(case, path, seed):
    rng = np.random.default_rng(seed)
    path.mkdir()
    here = case(path)
    with contextlib.closing(here.world):
        here.step()
        if here.can_be_bad:
            here.bad = {n for n in range(here.devices) if rng.random() < 0.2}
        for action in rng.choice(ACTIONS, int(rng.integers(5, 40)), p=CHANCES):
            if action == "send":
                here.send(int(rng.integers(here.devices)))
            elif action == "away":
                here.away = not here.away
            elif action == "time":
                here.world.time += float(rng.choice((5.0, 70.0)))
            elif action == "kill":
                here.step(int(rng.integers(1, 4)), bool(rng.integers(2)))
            else:
                getattr(here, action)()
        if len(set(range(here.devices)) - here.bad) >= here.least:
            here.finish()
        here.check()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.lower())
def test_histories(case, tmp_path):
    for seed in range(5):
        play(case, tmp_path / str(seed), seed)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.lower())
def test_many_histories(case, tmp_path):
    for seed in range(100, 500):
        play(case, tmp_path / str(seed), seed)
