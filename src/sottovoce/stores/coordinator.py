"""Carries the rounds of a server: asks `parties.rounds` what is to happen, and does it.

All state is in the database, and every move is one transaction. Whatever is cut off is done again
from what is stored and gives the same model, because sums of whole numbers have no order and every
choice is drawn from (root key, round, attempt). How contributions come, and how one aggregate is
made of them, is a `Collection`'s matter: there is one for each kind of link.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from sottovoce.core.messages import ModelView
from sottovoce.errors import ConfigError, Diverged, ServiceError, UsageError
from sottovoce.parties.defence import Defence
from sottovoce.parties.rounds import (
    Attempt,
    Available,
    Ended,
    LinkRules,
    NotOpened,
    PartyAway,
    RoundMachine,
    RoundRules,
    Tally,
    TooFew,
)
from sottovoce.parties.server import NO_DEFENCE, Offered, Server, quality_trouble
from sottovoce.rng import streams_of
from sottovoce.stores import amending, batches, operating, sums, versions
from sottovoce.stores import server as records
from sottovoce.stores.amending import GATHERING
from sottovoce.stores.collection import Collection, PlainReports
from sottovoce.stores.database import MOST_ROUNDS, Leader
from sottovoce.wire import shared
from sottovoce.wire.frames import SLOWEST_LINE
from sottovoce.wire.masked import message_bytes as masked_bytes
from sottovoce.wire.reports import longest_report
from sottovoce.wire.signing import OVERHEAD
from sottovoce.wire.terms import Terms

CohortSize = int | Literal["all"]
Clock = Callable[[], float]
"""Seconds that only go forward. The time of day plays no part."""
LEAST_SECONDS = 30.0
"""How long a message may take that is short enough for the slowest line."""
WAITS = "waits"
"""Key of the fact that says for which party rounds wait now."""
_QUESTION_SECONDS = 2.0
"""After which others are asked again whether they keep proposed terms."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds after which a party that was away is asked again."""
_LOOK_SECONDS = 1.0
"""How often a round is looked at that may be open after its deadline."""
_GATHERING = -1
"""In the place of an attempt: before there is one."""
_NOBODY = np.zeros(0, np.uint32)
What = Literal[
    "opened", "last_call", "closing", "reopened", "goal", "deadline", "abandoned", "diverged",
    "wrong_sum", "sum_refused", "dropped", "published", "held_back", "amended",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """What an operator decided when the federation was made."""

    terms: Terms
    cohort_size: CohortSize
    rounds: int
    """To run at first; an operator may raise it later."""
    root_key: int
    """Root of the server's random streams: the first model, and who is asked."""
    rules: RoundRules
    defence: Defence = NO_DEFENCE
    """Caps on what devices can do to the model."""

    def __post_init__(self) -> None:
        if self.terms.counts_senders and self.rules.max_value < 1:
            raise ConfigError(
                "service.max_value must be at least 1 in UC-FedRec, whose rows count their sender"
            )
        link, size = self.terms.link.adds_up, self.cohort_size
        if link is not None and size != "all" and size < link.min_devices:
            raise ConfigError(
                f"{size} devices are asked in a round, and a {link.name.replace('-', ' ')} needs "
                f"at least link.min_devices = {link.min_devices}"
            )

    @property
    def summed(self) -> bool:
        """Whether the server sees sums alone, with the help of a proxy."""
        return self.terms.secure_sum is not None

    @property
    def checked(self) -> bool:
        """Whether it sees sums alone, and is one of three aggregators."""
        return self.terms.link.checking is not None

    @property
    def proxied(self) -> bool:
        """Whether reports come through a proxy, from devices that the server cannot tell apart."""
        return self.terms.reporting is not None

    @property
    def asks_all(self) -> bool:
        """Whether everybody who is there is asked, also who comes while a round is open. Whoever
        contributes once is always waited for."""
        return self.cohort_size == "all" or self.proxied or self.terms.contributes

    @property
    def link_rules(self) -> LinkRules:
        """What holds for rounds over this link. For how many devices a sum has room is left out
        (`sums.most_summed`)."""
        adds_up = self.terms.link.adds_up
        if adds_up is not None:
            return LinkRules(
                least=adds_up.min_devices,
                joins=self.asks_all,
                once=self.terms.contributes,
                fails="next",  # whoever helped to open a sum answers for one set of devices
            )
        if self.proxied:  # what a device has reported counts towards its user's budget
            return LinkRules(joins=True, once=True, fails="stuck")
        return LinkRules(joins=self.asks_all)

    @property
    def grace(self) -> float:
        """Seconds for which a round waits after its deadline for reports that are on their way. A
        device that has just seen that the round is open still fetches the model, and then sends
        its message: this is the time for both on the slowest line that is waited for. A round that
        is shorter than this does not wait for such a line."""
        rules = self.rules
        if rules.grace_seconds is not None:
            return rules.grace_seconds
        both = model_bytes(self.terms) + longest_message(self.terms)
        line = max(LEAST_SECONDS, both / SLOWEST_LINE)
        return min(rules.deadline_seconds, self.fresh_seconds + line)

    @property
    def fresh_seconds(self) -> int:
        """How long a cache in front may repeat where the federation stands; devices ask much less
        often."""
        return int(min(5.0, self.rules.poll_seconds / 10))

    @property
    def value_limit(self) -> int:
        """Where the values of reports are cut, in steps of the grid; noise must not be."""
        return self.terms.noise_limit or self.rules.value_limit


def model_bytes(terms: Terms) -> int:
    """Return the bytes of a model as it is published."""
    return terms.n_rows * terms.width * np.dtype(np.float32).itemsize


def longest_message(terms: Terms) -> int:
    """Return the bytes of the longest message that can be a report."""
    if terms.link.checking is not None:
        return OVERHEAD + shared.message_bytes(shared.most_elements(terms))
    if terms.secure_sum is not None:
        return OVERHEAD + masked_bytes(terms, terms.most_numbers)
    return OVERHEAD + longest_report(terms.max_rows, terms.width)


class Awaiting(ServiceError):
    """A round waits for another party; it is noted for which, and since when."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a round, for the log."""

    what: What
    round: int
    attempt: int
    asked: int
    reported: int = 0
    seconds: float = 0.0
    trouble: str = ""
    """What the operator should know of it."""
    notices: tuple[str, ...] = ()
    """The same of what cost no round."""


# --- what rounds are told of the database --------------------------------------------------------


def available(plan: Plan, enrolled: int, active: int, agreed_before: int | None) -> Available:
    """Return which devices a new round could ask. With a shuffler nobody is asked by name: a round
    is open until enough have reported."""
    release = plan.terms.reporting
    if release is not None:
        least = sum(tier.min_devices for tier in release.tiers)
        return Available(enrolled, least, least)
    size = None if plan.asks_all or plan.cohort_size == "all" else plan.cohort_size
    return Available(enrolled, active, size, agreed_before)


def tally(link: sa.Connection, plan: Plan, now: records.Position) -> Tally:
    """What has come in the open round, in contributions, or in batches of them."""
    place = now.round, now.attempt
    release = plan.terms.reporting
    if release is not None:
        there, tiers = batches.heads(link, now.round), len(release.tiers)
        over = sum(head.complete or head.dropped for head in there)
        # Devices send to a shuffler; what it has here is what counts.
        return Tally(tiers, tiers, over, over, over < len(there), lambda: True)
    usable = now.reported if plan.terms.link.adds_up is None else sums.there(link, *place)

    def all_in() -> bool:
        if now.reported < min(now.goal, now.asked):
            return False
        if not plan.asks_all:  # more are asked than are needed
            return True
        return bool(np.isin(records.pool(link), records.reporters(link, *place)).all())

    return Tally(now.goal, now.asked, now.reported, usable, all_in=all_in)


# --- the host -------------------------------------------------------------------------------------


class Coordinator:
    """One process at a time is it (`Database.leading`)."""

    def __init__(self, plan: Plan, clock: Clock, collection: Collection | None = None) -> None:
        """Without a collection, the server reads what devices send."""
        self._plan, self._clock = plan, clock
        self.collection = PlainReports(plan.value_limit) if collection is None else collection
        self._algorithm = plan.terms.build()
        self._guard = plan.defence.guard()
        rules, most = plan.link_rules, sums.most_summed(plan.terms)
        rules = rules if most is None else replace(rules, most=most)
        self._machine = RoundMachine(plan.rules, rules, plan.grace)
        self._round = Attempt(-1, _GATHERING, clock())
        """The round that is watched. Its times are those since this process has watched it."""
        self._digest = plan.terms.digest()
        self._next_question = -math.inf
        self._pause, self._next_try = _FIRST_PAUSE, -math.inf
        self.looked: records.Position | None = None
        """Where the federation stood at the last look, if nothing was done then."""

    def start(self, link: sa.Connection) -> None:
        """Make the first model, or check that the database is this federation's."""
        terms = self._plan.terms
        found = records.fact(link, "terms")
        if found is None:
            server = Server.start(self._algorithm, terms.n_items, streams_of(self._plan.root_key))
            records.set_fact(link, "terms", terms.digest())
            unmoved = np.zeros(terms.n_rows, np.int32)
            records.save_model(link, 0, server.items, unmoved, server.memory)
        elif found != terms.digest():
            raise ServiceError(
                "the database belongs to another federation, or its terms were changed; put the "
                "right federation.json back or use another database"
            )
        self._require_whole(link)
        records.raise_target(link, self._plan.rounds)
        records.drop_fact(link, WAITS)  # since when a party is away stays known, in case it is

    def _require_whole(self, link: sa.Connection) -> None:
        """Raises where what would be published next is damaged."""
        now = records.position(link)
        for round in (now.round - 1, now.round, *records.kept_versions(link)):
            found = records.model(link, round, self._plan.terms.width)
            if found is None and round == now.published:
                raise ServiceError(
                    f"the database lacks version {round} of the model, which is published; put the "
                    "database back from a copy"
                )
        records.memory(link, now.round, self._plan.terms.n_rows)
        if now.state == "open":
            records.selected(link, now.round, now.attempt)

    def skip_to(self, link: sa.Connection, round: int) -> None:
        """Go on with round `round` from the model that is there. For a database that was set back:
        devices never do a round twice, so it must go on after the last one that they have seen."""
        now, round = records.position(link), self._algorithm.begins_at(round)
        found = records.model(link, now.round, self._plan.terms.width)
        if found is None or round <= now.round:
            raise UsageError(
                f"the federation is at round {now.round}; it can only skip to a later one than that"
            )
        if now.state in ("open", "closing"):
            nobody = records.packed(_NOBODY)
            ended = {"selected": None, "missing": nobody, "outcome": "abandoned", "seconds": 0.0}
            records.move_round(link, now.round, now.attempt, now.state, "abandoned", **ended)
            records.drop_reports(link, now.round, now.attempt)
        if round > MOST_ROUNDS:
            raise UsageError(f"a federation has at most {MOST_ROUNDS:,} rounds")
        # Devices may have versions in between that are lost here: each row counts as changed.
        items, changed = found
        memory = records.memory(link, now.round, len(items))
        records.save_model(link, round, items, np.full_like(changed, round), memory)
        self.collection.forget(link, round - 1)

    def tidy(self, link: sa.Connection) -> None:
        self.collection.tidy(link)

    def step(self, leader: Leader) -> list[Event]:
        """Move on as far as can be moved now. Under other terms than its own it moves nothing."""
        self._add_up(leader)
        amended = self._amend(leader)
        if amended is not None:
            return [amended]
        with leader.reading() as link:
            now = records.position(link)
            due = now.terms == self._digest and self._due(link, now)
            self.looked = None if due else now
            if not due:
                return []
        if now.state == "closing":  # the step before began it, or a process that is gone
            self._watch(now.round, now.attempt)
            self._round = replace(self._round, phase="closing")
            return self._close(leader, now)
        with leader.writing() as link:
            records.hold_round(link, now.round, now.attempt)
            now = records.position(link)
            if now.terms != self._digest:
                return []
            if now.state == "waiting":
                opened = self._open(link, now.round, now.attempt)
                return [] if opened is None else [opened]
            if now.state != "open":
                return []
            events = self._move(link, now)
            if self._round.phase != "closing":
                return events
        if not self.collection.takes_time:
            return self._close(leader, now)
        self._pause, self._next_try = _FIRST_PAUSE, -math.inf
        return [Event("closing", now.round, now.attempt, now.asked, now.reported)]

    def _move(self, link: sa.Connection, now: records.Position) -> list[Event]:
        """What an open round does now."""
        before, self._round = self._watched(now), self._look(link, now)
        phase, called = self._round.phase, self._round.called_at
        if phase == "again":
            return self._abandon(link, now, "abandoned")
        if phase == "closing":
            # From here on nothing comes in; the fold is over exactly what is stored.
            place, outcome = (now.round, now.attempt), self._round.outcome
            records.move_round(link, *place, "open", "closing", outcome=outcome)
        elif called is None and before.called_at is not None:
            records.drop_fact(link, records.LAST_CALL)  # devices may begin reports again
        elif called is not None and before.called_at is None:
            records.call_last(link, now.round, now.attempt)
            return [Event("last_call", now.round, now.attempt, now.asked, now.reported)]
        return []

    # --- the round that is watched ----------------------------------------------------------------

    def _watch(self, round: int, attempt: int) -> None:
        """Count the seconds of this attempt from now on, unless they are being counted."""
        if (self._round.number, self._round.attempt) != (round, attempt):
            self._round = Attempt(round, attempt, self._clock())

    def _watched(self, now: records.Position) -> Attempt:
        """The open round; if another process has called for what is on its way: from now on."""
        self._watch(now.round, now.attempt)
        called = self._round.called_at
        if now.last_call and called is None:
            called = self._clock()
        called = called if now.last_call else None
        return replace(self._round, phase="open", outcome=None, called_at=called)

    def _look(self, link: sa.Connection, now: records.Position) -> Attempt:
        here = self._watched(now)
        return self._machine.look(here, tally(link, self._plan, now), self._clock())

    def _elapsed(self) -> float:
        return self._clock() - self._round.opened_at

    def seconds_left(self) -> float:
        """Return the seconds after which the watched round is to be looked at."""
        return self._machine.seconds_left(self._round, self._clock()) or _LOOK_SECONDS

    def _due(self, link: sa.Connection, now: records.Position) -> bool:
        if now.state == "open":
            before = self._watched(now)
            self._round = before
            return self._look(link, now) != before
        if now.state == "waiting":
            return self._choose(link, now.round, now.attempt) is not None
        return now.state == "closing" and self._clock() >= self._next_try

    # --- changed terms ----------------------------------------------------------------------------

    def _amend(self, leader: Leader) -> Event | None:
        """Bring into force what was proposed, once everybody agrees who keeps terms of their own,
        and no round is open."""
        with leader.reading() as link:
            told, now = amending.proposed(link), records.position(link)
            if told is None or told.before != self._digest or now.terms != self._digest:
                return None
            terms = amending.proposed_terms(link) if told.state == "asked" else None
        if told.state == "asked":
            if terms is None or self._clock() < self._next_question:
                return None
            begun = self._clock()
            waits = self.collection.objection(terms)
            # Whoever does not answer must not hold rounds up.
            took = self._clock() - begun
            self._next_question = self._clock() + max(_QUESTION_SECONDS, 3 * took)
            with leader.writing() as link:
                amending.answered(link, told, waits, records.moment())
            if waits is not None:
                return None
        if now.state in ("closing", "open") and not self._is_idle(now):
            return None
        with leader.writing() as link:
            records.hold_round(link, now.round, now.attempt)
            now = records.position(link)
            if self._is_idle(now):
                return self._abandon(link, now, "abandoned")[0]
            round = amending.apply(link, self._plan.terms, self._plan.root_key, records.moment())
            if round is None:
                return None
            # What is kept of rounds before this one is of other terms.
            self.collection.forget(link, round - 1)
            self._no_wait(link)
        return Event("amended", round, 0, 0)

    def _is_idle(self, now: records.Position) -> bool:
        """Whether a round is open that waits for nobody: it is over its time, and nobody has sent
        anything. (What a shuffler holds, nobody knows here.)"""
        if now.state != "open" or now.reported or self._plan.proxied:
            return False
        self._watch(now.round, now.attempt)
        return self._elapsed() >= self._plan.rules.deadline_seconds + self._machine.grace

    # --- opening ----------------------------------------------------------------------------------

    def _choose(
        self, link: sa.Connection, round: int, attempt: int
    ) -> tuple[int, records.Numbers] | None:
        """How many reports a round wants and who is asked; None where there are too few devices
        for the round to be able to count, or the operator has paused."""
        plan = self._plan
        if operating.paused(link) is not None:
            return None
        first = (round, attempt) == (0, 0)
        pool = _NOBODY if plan.proxied else records.pool(link)
        enrolled = records.count_devices(link)[0] if first else 0
        gathering = None if plan.proxied else records.fact(link, GATHERING)
        before = None if gathering is None else int(gathering)
        there = available(plan, enrolled, len(pool), before)
        if gathering is not None:
            self._watch(round, _GATHERING)
            there = replace(there, seconds=self._elapsed())
        if self._machine.opening(first, there) is not None:
            return None
        goal = len(pool) if there.goal is None else there.goal
        if plan.proxied:
            return goal, _NOBODY
        items = np.zeros((0, plan.terms.width), np.float32)
        server = self._server(items, round)
        rows = server.select(len(pool), plan.rules.asked(goal, len(pool)), attempt)
        return goal, pool[rows]

    def _makes_way(self, link: sa.Connection) -> bool:
        """Whether no round is to be opened, because a change of terms is ready."""
        told = amending.proposed(link)
        return told is not None and told.state == "ready"

    def _open(self, link: sa.Connection, round: int, attempt: int) -> Event | None:
        if self._makes_way(link):
            return None
        choice = self._choose(link, round, attempt)
        if choice is None:
            return None
        goal, chosen = choice
        records.open_round(link, round, attempt, goal, chosen, self.collection.report_key())
        records.drop_fact(link, GATHERING)
        self._watch(round, attempt)
        return Event("opened", round, attempt, len(chosen))

    # --- other parties ----------------------------------------------------------------------------

    def _add_up(self, leader: Leader) -> None:
        """Add up what has come in an open round, where that pays. While a party is away that is
        needed for it, it waits, and when there is no more room the server takes nothing in."""
        if self._plan.terms.link.adds_up is None or self._clock() < self._next_try:
            return
        with leader.reading() as link:
            now = records.position(link)
            if now.state != "open" or now.terms != self._digest:
                return
            if not sums.many_wait(link, now.round, now.attempt):
                return
        try:
            self.collection.add_up(leader, now)
        except PartyAway as error:
            raise self._awaiting(leader, now, error) from None
        except NotOpened as error:
            self._later()
            raise ServiceError(f"round {now.round}: {error}") from None
        self._goes_on(leader)

    def _awaiting(self, leader: Leader, now: records.Position, away: PartyAway) -> Awaiting:
        """The operator is told for whom a round waits."""
        self._later()
        the = away.party if away.party.startswith("aggregator") else f"the {away.party}"
        why = f"round {now.round} waits for {the}: {away}"
        with leader.writing() as link:
            records.set_fact(link, WAITS, why)
            kind = f"{away.party.split()[0]}_{away.kind}"
            operating.keep_since(link, operating.AWAY, why, away.party, kind)
        return Awaiting(why)

    def _goes_on(self, leader: Leader) -> None:
        """Nobody is waited for."""
        self._pause = _FIRST_PAUSE
        with leader.reading() as link:
            waited = records.fact(link, WAITS) or records.fact(link, operating.AWAY)
        if waited:
            with leader.writing() as link:
                self._no_wait(link)

    def _no_wait(self, link: sa.Connection) -> None:
        records.drop_fact(link, WAITS)
        records.drop_fact(link, operating.AWAY)

    def _later(self) -> None:
        self._next_try = self._clock() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    # --- closing ----------------------------------------------------------------------------------

    def _close(self, leader: Leader, now: records.Position) -> list[Event]:
        before, changed, server = self._server_of(leader, now)
        try:
            collected = self.collection.collect(leader, now, server)
        except PartyAway as error:
            raise self._awaiting(leader, now, error) from None
        except TooFew as error:
            return self._failed(leader, now, "too_few", "sum_refused", str(error))
        except NotOpened as error:
            return self._failed(leader, now, "refused", error.what, str(error))
        try:
            if collected.aggregate is not None:
                server.fold(collected.aggregate)
            if not np.isfinite(server.items).all():
                raise Diverged("the model would run off to infinity")
        except Diverged:
            why = "folding would have made the model run off"
            return self._failed(leader, now, "diverged", "diverged", why)
        self._goes_on(leader)
        moved = (before.view(np.uint32) != server.items.view(np.uint32)).any(axis=1)
        changed = np.where(moved, now.round + 1, changed).astype(np.int32)
        with leader.writing() as link:
            outcome = records.outcome(link, now.round, now.attempt)
            over = [self._end(link, now, "closing", "closed", outcome)]
            over += [self._offer(link, one) for one in server.offered]
            records.save_model(link, now.round + 1, server.items, changed, server.memory)
            records.forget_reports(link, now.round, now.attempt)
            records.count_refusals(link, collected.left_out)
            more = now.round + 1 < now.target
            opened = self._open(link, now.round + 1, 0) if more else None
        self._guard = server.guard  # not before it counts: what is cut off is done again
        return over if opened is None else [*over, opened]

    def _server_of(
        self, leader: Leader, now: records.Position
    ) -> tuple[NDArray[np.float32], NDArray[np.int32], Server]:
        """The model of this round, when its rows last changed, and a server that can fold it."""
        with leader.reading() as link:
            found = records.model(link, now.round, self._plan.terms.width)
            if found is None:
                raise ServiceError(f"the database lacks the model of round {now.round}")
            items, changed = found
            memory = records.memory(link, now.round, len(items))
        server = self._server(items, now.round, memory)
        if now.published is not None:  # of which nothing but the number matters here
            server.published = ModelView(now.published, items)
        return items, changed, server

    def _failed(
        self, leader: Leader, now: records.Position, ended: Ended, what: What, why: str
    ) -> list[Event]:
        """Nothing can be folded: the round is open again for others, tried again, given up for the
        next one, or left to the operator."""
        self._goes_on(leader)
        with leader.writing() as link:
            notices = self.collection.replaced(link, now) if ended == "too_few" else None
            after = self._machine.after(
                self._round, ended, self._clock(), others=notices is not None
            )
            if after.phase == "open" and notices is not None:
                self._round = after
                return [self._reopen(link, now, notices)]
            if after.phase == "again":
                return self._abandon(link, now, what, "closing")
            if after.phase == "next":
                return self._give_up(link, now, what, why)
        raise ServiceError(
            f"folding round {now.round} would make the model run off to infinity; nothing was "
            "changed and nobody is asked to report again: stop the server, and start it with "
            f"--skip-to-round {now.round + 1} to leave the round out"
        )

    def _reopen(
        self, link: sa.Connection, now: records.Position, notices: tuple[str, ...]
    ) -> Event:
        """Wait for others in the place of those who were left out."""
        place, good = (now.round, now.attempt), tally(link, self._plan, now).usable
        records.move_round(link, *place, "closing", "open", outcome=None)
        records.drop_fact(link, records.LAST_CALL)
        return Event("reopened", *place, now.asked, good, notices=notices)

    def _offer(self, link: sa.Connection, offered: Offered) -> Event:
        """Keep a version, and say what became of it."""
        why = versions.keep(link, offered, records.moment()).held_back
        said = f"version {offered.version} was held back: {why}" if why else ""
        trouble = quality_trouble(versions.published(link), versions.all_of(link))
        notices = tuple(words for words in (said, trouble) if words)
        what: What = "held_back" if why else "published"
        return Event(what, offered.version, 0, 0, notices=notices)

    def _server(
        self, items: NDArray[np.float32], round: int, memory: NDArray[np.float32] | None = None
    ) -> Server:
        rng = streams_of(self._plan.root_key)
        if memory is None:
            return Server(self._algorithm, items, rng, round)
        return Server(self._algorithm, items, rng, round, memory, self._guard.copy())

    def _abandon(
        self, link: sa.Connection, now: records.Position, what: What, state: str = "open"
    ) -> list[Event]:
        """Nothing of this attempt counts; the next one asks others."""
        over = self._end(link, now, state, "abandoned", what)
        records.drop_reports(link, now.round, now.attempt)
        opened = self._open(link, now.round, now.attempt + 1)
        return [over] if opened is None else [over, opened]

    def _give_up(
        self, link: sa.Connection, now: records.Position, what: What, why: str
    ) -> list[Event]:
        """Nothing of the round counts, and the next one begins from the same model."""
        found = records.model(link, now.round, self._plan.terms.width)
        if found is None:
            raise ServiceError(f"the database lacks the model of round {now.round}")
        items, changed = found
        over = self._end(link, now, "closing", "abandoned", what)
        records.drop_reports(link, now.round, now.attempt)
        memory = records.memory(link, now.round, len(items))
        after = self._algorithm.after_given_up(now.round)
        records.save_model(link, after, items, changed, memory)
        records.count_refusals(link, {what: 1})
        opened = self._open(link, after, 0) if after < now.target else None
        ended = replace(over, trouble=f"round {now.round} does not count: {why}")
        return [ended] if opened is None else [ended, opened]

    def _end(
        self, link: sa.Connection, now: records.Position, before: str, after: str, what: What
    ) -> Event:
        """Mark the attempt as over, with who was asked and stayed silent."""
        told = self.collection.over(link, now)
        self.collection.forget(link, now.round)
        if told.dropped and after == "closed":
            what = "dropped"
        asked = records.selected(link, now.round, now.attempt)
        there = records.reporters(link, now.round, now.attempt)
        missing = np.setdiff1d(there if asked is None else asked, there).astype(np.uint32)
        seconds = round(self._elapsed(), 3)
        if not records.move_round(
            link,
            now.round,
            now.attempt,
            before,
            after,
            selected=None,
            missing=records.packed(missing),
            outcome="abandoned" if after == "abandoned" else what,
            seconds=seconds,
        ):
            raise ServiceError(f"round {now.round} was ended by another process")
        records.missed(link, missing.tolist(), self._plan.rules.dormant_after)
        records.seen(link, there.tolist())
        return Event(
            what, now.round, now.attempt, now.asked, now.reported, seconds, notices=told.notices
        )
