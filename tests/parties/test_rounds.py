"""When a round opens and ends, and random histories of rounds on every kind of link."""

import math
import random  # noqa: TID251  (a hundred thousand histories: numpy's is ten times as slow)
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.waiting import ROUNDS
from sottovoce.errors import ConfigError
from sottovoce.parties.rounds import (
    Attempt,
    Available,
    LinkRules,
    RoundMachine,
    RoundRules,
    Shortage,
    Tally,
)

RULES = RoundRules(over_selection=0.3, min_fraction=0.7, deadline_seconds=10)


@pytest.mark.parametrize(
    ("reported", "elapsed", "phase", "outcome"),
    [
        (100, 0.0, "closing", "goal"),
        (99, 9.9, "open", None),
        (70, 10.0, "closing", "deadline"),
        (69, 10.0, "again", "abandoned"),
        (0, 10.0, "again", "abandoned"),
    ],
)
def test_a_round_ends_by_goal_by_deadline_or_not_at_all(reported, elapsed, phase, outcome):
    tally = Tally(100, 130, reported, reported)
    found = RoundMachine(RULES, LinkRules()).look(Attempt(0, 0, 0.0), tally, elapsed)
    assert (found.phase, found.outcome) == (phase, outcome)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0, 5), st.floats(0, 1))
def test_numbers_stay_within_reason(goal, pool, over, fraction):
    rules = RoundRules(over_selection=over, min_fraction=fraction)
    goal = min(goal, pool)
    assert goal <= rules.asked(goal, pool) <= pool
    assert 1 <= rules.least(goal) <= goal


def test_a_third_more_of_ten_is_thirteen():
    assert RULES.asked(10, 100) == 13
    assert RULES.asked(10, 11) == 11


def test_nobody_counts_as_a_round_where_no_fraction_is_asked_for():
    rules = RoundRules(min_fraction=0.0, deadline_seconds=1)
    found = RoundMachine(rules, LinkRules()).look(Attempt(0, 0, 0.0), Tally(5, 5, 0, 0), 2.0)
    assert found.phase == "again"


@pytest.mark.parametrize(
    ("there", "wait"),
    [
        (Available(2, 2), Shortage("few_enrolled", 2, 3)),
        (Available(3, 2), Shortage("few_active", 2, 3)),
        (Available(3, 3), None),
        (Available(9, 4, goal=8), Shortage("few_active", 4, 6)),
        (Available(9, 5, agreed_before=10), Shortage("few_agreed", 5, 7)),
        (Available(9, 7, agreed_before=10), None),
        (Available(9, 5, agreed_before=10, seconds=10.0), None),
        (Available(9, 2, agreed_before=10, seconds=10.0), Shortage("few_agreed", 2, 3)),
    ],
)
def test_what_a_round_waits_for_before_it_opens(there, wait):
    rules = replace(RULES, min_devices=3)
    assert RoundMachine(rules, LinkRules(least=3)).opening(first=True, there=there) == wait


@pytest.mark.parametrize(
    "wrong",
    [
        {"over_selection": -0.1},
        {"min_fraction": 1.1},
        {"deadline_seconds": 0.0},
        {"min_devices": 0},
        {"poll_seconds": 0.0},
        {"max_value": 0.0},
        {"max_value": 128.0},
    ],
)
def test_rules_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RoundRules(**wrong)


# --- histories ------------------------------------------------------------------------------------

LEAST, GRACE = 3, 4.0
SUM = LinkRules(least=LEAST, joins=True, fails="next")
LINKS = {
    "plain": LinkRules(joins=True),
    "plain, some": LinkRules(),
    "masked": SUM,
    "masked, some": replace(SUM, joins=False),
    "masked contributions": replace(SUM, once=True),
    "checked": replace(SUM, once=True, most=8),
    "gateways": replace(SUM, once=True),
    "batches": LinkRules(joins=True, once=True, fails="stuck"),
}
"""A link of each kind, as `Plan.link_rules` has them."""


@dataclass
class Host:
    """Carries rounds in memory: a server or a Flower run in little. Devices 0, 1, ... are honest or
    bad; what bad ones send cannot be used, which turns out at once or when the sum is opened."""

    name: str
    rng: random.Random
    machine: RoundMachine
    devices: int
    bad: frozenset

    def __post_init__(self):
        self.now, self.number, self.attempt = 0.0, 0, 0
        self.paid, self.asked_about, self.folds = {}, {}, []
        self.open()

    @property
    def link(self):
        return self.machine.link

    @property
    def sums(self):
        return self.link.least > 1

    def open(self):
        self.round = Attempt(self.number, self.attempt, self.now)
        self.sent, self.left_out = set(), set()
        most = self.devices if self.link.joins else max(LEAST, self.devices - 2)
        self.goal = most
        self.asked = set(range(self.devices if self.link.joins else min(self.devices, most + 1)))
        self.on_their_way, self.ended = set(), None

    @property
    def good(self):
        return self.sent - self.left_out

    def tally(self):
        def all_in():
            return len(self.sent) >= len(self.asked) and not self.on_their_way

        return Tally(self.goal, len(self.asked), len(self.sent), len(self.good), all_in=all_in)

    # What happens

    def begin(self):
        """A device that looks sees that the round is open, and begins a contribution."""
        who = self.asked - self.sent - self.on_their_way
        if who and self.round.phase == "open" and self.round.called_at is None:
            self.on_their_way.add(self.rng.choice(sorted(who)))

    def arrive(self):
        if self.on_their_way:
            device = self.rng.choice(sorted(self.on_their_way))
            self.on_their_way.discard(device)
            self.take(device)

    def take(self, device):
        """As a server does: each counts once, and a sum has room for so many."""
        if self.round.phase != "open" or device in self.sent or len(self.good) >= self.link.most:
            return
        self.sent.add(device)
        self.paid.setdefault((self.number, device), []).append(self.attempt)
        if device in self.bad and self.sums and self.rng.random() < 0.5:
            self.left_out.add(device)

    def twice(self):
        if self.sent:
            self.take(self.rng.choice(sorted(self.sent)))

    def crash(self):
        """Times are a process's own; all else is kept."""
        called = None if self.round.called_at is None else self.now
        self.round = replace(self.round, opened_at=self.now, called_at=called)

    def tick(self, seconds):
        self.now += seconds
        self.look()

    def look(self):
        before, called = self.round, self.round.called_at
        if before.phase == "open":
            wait = self.machine.wait(self.tally(), called=called is not None)
            assert wait.kind in ROUNDS, "a round waits without a reason"
            assert (wait.until == "grace") <= (called is not None)
            if self.link.once and len(self.good) < self.link.least:
                assert (wait.until, wait.need) == ("enough", self.link.least)
        self.round = self.machine.look(before, self.tally(), self.now)
        if before.phase == "open" and self.round.phase != "open":
            if self.machine.grace and self.on_their_way:
                assert called is not None, "a round ends while something is on its way"
                assert self.now - called >= self.machine.grace, "the grace is ignored"
            if self.round.phase == "again":
                self.again()
            else:
                assert len(self.good) >= self.link.least, "a round closes with too few"

    def again(self):
        assert not self.link.once, "devices would be asked for the same a second time"
        self.attempt += 1
        self.open()

    def close(self, away=0.3, lost=0.05):
        """Other parties are asked."""
        if self.round.phase != "closing" or (self.sums and self.rng.random() < away):
            return
        self.left_out |= self.sent & self.bad if self.sums else set()
        good = self.good
        if self.sums and len(good) < self.link.least:
            after = self.machine.after(self.round, "too_few", self.now, others=bool(good))
            assert not good or after.phase == "open", "what good devices have paid is thrown away"
        elif self.sums and self.rng.random() < lost:
            self.question(good)
            after = self.machine.after(self.round, "refused", self.now)
        else:
            self.question(good)
            after = self.machine.after(self.round, "opened", self.now)
        again = self.machine.after(after, "opened", self.now)
        assert again == after, "a second answer counts"
        self.round = after
        if after.phase == "folded":
            self.folds.append((self.number, frozenset(good)))
        if after.phase in ("folded", "next"):
            self.number, self.attempt = self.number + 1, 0
            self.open()
        elif after.phase == "again":
            self.again()

    def question(self, good):
        if self.sums:
            self.asked_about.setdefault(self.number, set()).add(frozenset(good))

    # What holds in the end

    def check(self):
        rounds = [number for number, _ in self.folds]
        assert len(rounds) == len(set(rounds)), "a round counts twice"
        for _, counted in self.folds:
            assert len(counted) >= self.link.least, "a sum over too few"
            assert len(counted) <= self.link.most
            assert not (self.sums and counted & self.bad), "what was left out counts"
        for number, sets in self.asked_about.items():
            assert len(sets) == 1, f"two sums over different sets in round {number}"
        if self.link.once:
            assert all(len(times) == 1 for times in self.paid.values()), "somebody pays twice"
        for number, counted in self.folds:
            attempts = [k for (n, _), times in self.paid.items() if n == number for k in times]
            last = {d for (n, d), ks in self.paid.items() if n == number and max(attempts) in ks}
            assert last - self.bad <= counted, "an honest device paid and does not count"

    def finish(self, silent=frozenset()):
        """All but the silent send, everybody answers: the round ends."""
        place = self.number, self.attempt
        for _ in range(60):
            for device in sorted(self.asked - self.sent - self.on_their_way - silent):
                if self.round.phase == "open" and self.round.called_at is None:
                    self.on_their_way.add(device)
            while self.on_their_way:
                self.arrive()
            self.tick(self.machine.rules.deadline_seconds / 2)
            self.close(away=0.0, lost=0.0)
            if (self.number, self.attempt) != place:
                return
        honest = (self.asked - self.bad - silent) | self.good
        waits = (self.link.once or self.link.joins) and len(honest) < self.link.least
        assert waits, "a round hangs that could end"


ACTIONS = ("begin", "arrive", "twice", "crash", "tick", "look", "close")
WEIGHTS = (6, 6, 1, 1, 3, 2, 4)


def play(name, seed, machine=RoundMachine):
    rng = random.Random(seed)
    devices = rng.randrange(2, 11)
    rules = RoundRules(
        min_fraction=rng.choice((0.0, 0.5, 1.0)), deadline_seconds=10.0, min_devices=1
    )
    bad = frozenset(k for k in range(devices) if rng.random() < 0.2)
    grace = rng.choice((0.0, GRACE))
    host = Host(name, rng, machine(rules, LINKS[name], grace), devices, bad)
    for _ in range(rng.randrange(10, 60)):
        perform(host, rng.choices(ACTIONS, WEIGHTS)[0], rng.random() * 8)
    host.finish(frozenset(k for k in range(devices) if rng.random() < 0.3))
    host.check()


def perform(host, action, seconds):
    if action == "tick":
        host.tick(seconds)
    else:
        getattr(host, action)()


@pytest.mark.parametrize("name", LINKS)
def test_random_histories(name):
    for seed in range(300):
        play(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", LINKS)
def test_many_random_histories(name):
    for seed in range(100_000):
        play(name, seed)


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(LINKS)),
    st.integers(2, 10),
    st.sets(st.integers(0, 9), max_size=3),
    st.sampled_from((0.0, GRACE)),
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.floats(0.0, 8.0)), max_size=50),
    st.randoms(use_true_random=False),
)
def test_histories_that_are_made_smaller(name, devices, bad, grace, actions, rng):
    """The same, for a history as short as can be where something is wrong."""
    rules = RoundRules(min_fraction=0.5, deadline_seconds=10.0)
    host = Host(name, rng, RoundMachine(rules, LINKS[name], grace), devices, frozenset(bad))
    for action, seconds in actions:
        perform(host, action, seconds)
    host.finish()
    host.check()


# --- faults that histories must find --------------------------------------------------------------


class OneTooFew(RoundMachine):
    def after(self, round, ended, now, *, others=False):
        return super().after(round, "opened" if ended == "too_few" else ended, now, others=others)


class CountsTheDropped(RoundMachine):
    def look(self, round, tally, now):
        return super().look(round, replace(tally, usable=tally.reported), now)

    def after(self, round, ended, now, *, others=False):
        return super().after(round, ended, now, others=False)


class TakesASecondAnswer(RoundMachine):
    def after(self, round, ended, now, *, others=False):
        return super().after(replace(round, phase="closing"), ended, now, others=others)


class IgnoresTheGrace(RoundMachine):
    def look(self, round, tally, now):
        called = None if round.called_at is None else -math.inf
        return super().look(replace(round, called_at=called), tally, now)


class ForgetsWhatWasPaid(RoundMachine):
    def after(self, round, ended, now, *, others=False):
        found = super().after(round, ended, now, others=others)
        return replace(found, phase="again") if found.phase == "open" else found


class WaitsForNoReason(RoundMachine):
    def wait(self, tally, *, called):
        found = super().wait(tally, called=called)
        return replace(found, kind="") if found.until == "others" else found


class NeverEnds(RoundMachine):
    def after(self, round, ended, now, *, others=False):
        return super().after(round, ended, math.inf if others else now, others=others)


@pytest.mark.parametrize(
    "fault",
    [
        OneTooFew,
        CountsTheDropped,
        TakesASecondAnswer,
        IgnoresTheGrace,
        ForgetsWhatWasPaid,
        WaitsForNoReason,
        NeverEnds,
    ],
)
def test_histories_find_faults(fault):
    for seed in range(3000):
        for name in LINKS:
            try:
                play(name, seed, fault)
            except AssertionError:
                return
    pytest.fail("nothing was found")
