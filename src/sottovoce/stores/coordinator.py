"""Moves rounds on: opens them, decides when they are over, folds, tries again.

All state is in the database, and every move is one transaction. Whatever is cut off is done again
from what is stored and gives the same model, because sums of whole numbers have no order and every
choice is drawn from (root key, round, attempt).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from sottovoce.core.messages import ModelView, SummedReports, cut
from sottovoce.errors import ConfigError, ServiceError, UsageError
from sottovoce.parties.defence import Defence
from sottovoce.parties.server import NO_DEFENCE, Offered, RoundRules, Server, quality_trouble
from sottovoce.rng import streams_of
from sottovoce.stores import amending, operating, versions
from sottovoce.stores import server as records
from sottovoce.stores.amending import GATHERING, Waits
from sottovoce.stores.database import MOST_ROUNDS, Leader
from sottovoce.wire import shared
from sottovoce.wire.frames import SLOWEST_LINE
from sottovoce.wire.masked import message_bytes as masked_bytes
from sottovoce.wire.reports import decode_report, longest_report
from sottovoce.wire.signing import OVERHEAD
from sottovoce.wire.terms import Terms

CohortSize = int | Literal["all"]
Clock = Callable[[], float]
"""Seconds that only go forward. The time of day plays no part."""
Verdict = Literal["goal", "deadline", "abandoned"]
LEAST_SECONDS = 30.0
"""How long a message may take that is short enough for the slowest line."""
_QUESTION_SECONDS = 2.0
"""After which others are asked again whether they keep proposed terms."""
_GATHERING = -1
"""In the place of an attempt: before there is one."""
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


class Coordinator:
    """One process at a time is it (`Database.leading`)."""

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._algorithm = plan.terms.build()
        self._guard = plan.defence.guard()
        self._watched: tuple[int, int] | None = None
        self._since, self._called = 0.0, math.inf
        self._digest, self._grace = plan.terms.digest(), plan.grace
        self._next_question = -math.inf
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
            nobody = records.packed(np.zeros(0, np.uint32))
            ended = {"selected": None, "missing": nobody, "outcome": "abandoned", "seconds": 0.0}
            records.move_round(link, now.round, now.attempt, now.state, "abandoned", **ended)
            records.drop_reports(link, now.round, now.attempt)
        if round > MOST_ROUNDS:
            raise UsageError(f"a federation has at most {MOST_ROUNDS:,} rounds")
        # Devices may have versions in between that are lost here: each row counts as changed.
        items, changed = found
        memory = records.memory(link, now.round, len(items))
        records.save_model(link, round, items, np.full_like(changed, round), memory)

    def tidy(self, link: sa.Connection) -> None:
        """Let go of what the rounds so far do not need any more. To be called when one was opened,
        in every process."""

    def step(self, leader: Leader) -> list[Event]:
        """Move on as far as can be moved now. Under other terms than its own it moves nothing."""
        amended = self._amend(leader)
        if amended is not None:
            return [amended]
        with leader.reading() as link:
            now = records.position(link)
            due = now.terms == self._digest and self._due(link, now)
            self.looked = None if due else now
            if not due:
                return []
        if now.state == "closing":  # a process that is gone began it
            self._watch(now.round, now.attempt)
            return self._close(leader, now)
        with leader.writing() as link:
            records.hold_round(link, now.round, now.attempt)
            now = records.position(link)
            if now.terms != self._digest:
                return []
            if now.state == "waiting":
                opened = self._open(link, now.round, now.attempt)
                return [] if opened is None else [opened]
            outcome = self._decision(link, now) if now.state == "open" else None
            if outcome is None:
                return []
            if outcome == "last_call":
                records.call_last(link, now.round, now.attempt)
                self._called = self._clock()
                return [Event("last_call", now.round, now.attempt, now.asked, now.reported)]
            if outcome == "go_on":
                self._go_on(link)
                return []
            if outcome == "abandoned":
                return self._abandon(link, now, "abandoned")
            # From here on nothing comes in; the fold is over exactly what is stored.
            records.move_round(link, now.round, now.attempt, "open", "closing", outcome=outcome)
        return self._ended(leader, now)

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
            waits = self._objection(terms)
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
            self._carried(link, round)
        return Event("amended", round, 0, 0)

    def _objection(self, terms: Terms) -> Waits | None:
        """Return which party that keeps terms of its own does not keep these; None if all do."""
        return None

    def _carried(self, link: sa.Connection, round: int) -> None:
        """What is kept of rounds before this one is of other terms."""

    def _is_idle(self, now: records.Position) -> bool:
        """Whether a round is open that waits for nobody: it is over its time, and nobody has sent
        anything. (What a shuffler holds, nobody knows here.)"""
        if now.state != "open" or now.reported or self._plan.proxied:
            return False
        self._watch(now.round, now.attempt)
        return self._elapsed() >= self._plan.rules.deadline_seconds + self._grace

    def _ended(self, leader: Leader, now: records.Position) -> list[Event]:
        """What follows at once when nothing comes in any more."""
        return self._close(leader, now)

    def _due(self, link: sa.Connection, now: records.Position) -> bool:
        if now.state == "open":
            return self._decision(link, now) is not None
        if now.state == "waiting":
            return self._choose(link, now.round, now.attempt) is not None
        return now.state == "closing"

    def _decision(
        self, link: sa.Connection, now: records.Position
    ) -> Verdict | Literal["last_call", "go_on"] | None:
        """What to do with an open round now. Before it ends, devices that may have a report on
        their way get the time to bring it; the round goes on if it cannot end any more."""
        verdict = self._verdict(link, now)
        if verdict is None:
            return "go_on" if now.last_call else None
        if not self._grace or self._all_in(link, now):
            return verdict
        if not now.last_call:
            return "last_call"
        self._called = min(self._called, self._clock())  # of another process: from now on
        return verdict if self._clock() - self._called >= self._grace else None

    def _go_on(self, link: sa.Connection) -> None:
        """Devices may begin reports again."""
        records.drop_fact(link, records.LAST_CALL)
        self._called = math.inf

    def _all_in(self, link: sa.Connection, now: records.Position) -> bool:
        """Whether nothing that would count can be on its way."""
        if now.reported < min(now.goal, now.asked):
            return False
        if not self._plan.asks_all:  # more are asked than are needed
            return True
        here = records.reporters(link, now.round, now.attempt)
        return bool(np.isin(records.pool(link), here).all())

    def _verdict(self, link: sa.Connection, now: records.Position) -> Verdict | None:
        rules = self._plan.rules
        self._watch(now.round, now.attempt)
        everyone = now.reported >= now.asked and now.reported >= rules.least(now.goal)
        verdict = rules.verdict(now.goal, now.reported, self._elapsed())
        if everyone or now.reported >= now.goal:
            return "goal"
        if verdict == "wait":
            return None
        return "deadline" if verdict == "close" else "abandoned"

    def _watch(self, round: int, attempt: int) -> None:
        """Count the seconds of this attempt from now on, unless they are being counted."""
        if self._watched != (round, attempt):
            self._watched, self._since = (round, attempt), self._clock()
            self._called = math.inf

    def _elapsed(self) -> float:
        return self._clock() - self._since

    def seconds_left(self) -> float:
        """Return the seconds until the deadline of the watched round, or the end of its grace."""
        called = self._called + self._grace - self._clock()
        due = self._plan.rules.deadline_seconds - self._elapsed()
        return max(0.0, called if math.isfinite(called) else due)

    def _choose(
        self, link: sa.Connection, round: int, attempt: int
    ) -> tuple[int, records.Numbers] | None:
        """How many reports a round wants and who is asked; None where there are too few devices
        for the round to be able to count, or the operator has paused."""
        plan = self._plan
        if operating.paused(link) is not None:
            return None
        if round == 0 and attempt == 0 and records.count_devices(link)[0] < plan.rules.min_devices:
            return None
        pool = records.pool(link)
        if not self._gathered(link, round, len(pool)):
            return None
        goal = plan.cohort_size
        if goal == "all" or plan.asks_all:
            goal = len(pool)
        if len(pool) < plan.rules.least(goal):
            return None
        items = np.zeros((0, plan.terms.width), np.float32)
        server = self._server(items, round)
        rows = server.select(len(pool), plan.rules.asked(goal, len(pool)), attempt)
        return goal, pool[rows]

    def _gathered(self, link: sa.Connection, round: int, there: int) -> bool:
        """Whether enough devices have agreed to terms that have just changed, for a round to begin:
        most of those that were asked before, or those who have come within the time of a round.
        Until then nothing is spent on rounds that others are missing in."""
        before = records.fact(link, GATHERING)
        if before is None:
            return True
        rules = self._plan.rules
        self._watch(round, _GATHERING)
        return self._elapsed() >= rules.deadline_seconds or there >= rules.least(int(before))

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
        records.open_round(link, round, attempt, goal, chosen)
        records.drop_fact(link, GATHERING)
        self._watch(round, attempt)
        return Event("opened", round, attempt, len(chosen))

    def _close(self, leader: Leader, now: records.Position) -> list[Event]:
        with leader.reading() as link:
            found = records.model(link, now.round, self._plan.terms.width)
            if found is None:
                raise ServiceError(f"the database lacks the model of round {now.round}")
            before, changed = found
            memory = records.memory(link, now.round, len(before))
            server = self._server(before, now.round, memory)
            if now.published is not None:  # of which nothing but the number matters here
                server.published = ModelView(now.published, before)
            left_out = self._fold(link, server, now)
        moved = (before.view(np.uint32) != server.items.view(np.uint32)).any(axis=1)
        changed = np.where(moved, now.round + 1, changed).astype(np.int32)
        with leader.writing() as link:
            if not np.isfinite(server.items).all():
                return self._diverged(link, now)
            outcome = records.outcome(link, now.round, now.attempt)
            over = [self._end(link, now, "closing", "closed", outcome, outcome)]
            over += [self._offer(link, one) for one in server.offered]
            records.save_model(link, now.round + 1, server.items, changed, server.memory)
            self._forget(link, now)
            records.count_refusals(link, left_out)
            more = now.round + 1 < now.target
            opened = self._open(link, now.round + 1, 0) if more else None
        self._guard = server.guard  # not before it counts: what is cut off is done again
        return over if opened is None else [*over, opened]

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

    def _fold(self, link: sa.Connection, server: Server, now: records.Position) -> dict[str, int]:
        """Everything that is stored for the round, into the server; what of it was left out."""
        n_items, width = server.items.shape
        total: list[SummedReports] = []
        limit = self._plan.value_limit
        for part in records.bodies(link, now.round, now.attempt):
            reports = [
                cut(
                    decode_report(
                        body, sender=number, n_items=n_items, width=width, round=now.round
                    ),
                    limit,
                )
                for number, body in part
            ]
            total = [server.add_sums([*total, server.sum_reports(reports)])]
        server.fold(server.add_sums(total))
        return {}

    def _forget(self, link: sa.Connection, now: records.Position) -> None:
        """What was folded need not be kept."""
        records.forget_reports(link, now.round, now.attempt)

    def _diverged(self, link: sa.Connection, now: records.Position) -> list[Event]:
        return self._abandon(link, now, "diverged", "closing")

    def _abandon(
        self,
        link: sa.Connection,
        now: records.Position,
        what: Literal["abandoned", "diverged"],
        state: str = "open",
    ) -> list[Event]:
        """Nothing of this attempt counts; the next one asks others."""
        over = self._end(link, now, state, "abandoned", "abandoned", what)
        records.drop_reports(link, now.round, now.attempt)
        opened = self._open(link, now.round, now.attempt + 1)
        return [over] if opened is None else [over, opened]

    def _end(
        self,
        link: sa.Connection,
        now: records.Position,
        before: str,
        after: str,
        outcome: str,
        what: What,
    ) -> Event:
        """Mark the attempt as over, with who was asked and stayed silent."""
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
            outcome=outcome,
            seconds=seconds,
        ):
            raise ServiceError(f"round {now.round} was ended by another process")
        records.missed(link, missing.tolist(), self._plan.rules.dormant_after)
        records.seen(link, there.tolist())
        return Event(what, now.round, now.attempt, now.asked, len(there), seconds)
