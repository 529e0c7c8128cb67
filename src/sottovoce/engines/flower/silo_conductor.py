"""The orchestrator's side of a round with data owners: asks, folds, and writes down who was silent.

A round has two phases. All owners that are there are asked which rows they want; those that want
any get them, all of the same model, and answer with gradients, which are folded by owner number; or
one owner after the other does, where they send sums and there is no window. An owner that does not
answer in time is left out and named; what it holds is asked for again.

Knows no transport but a `Transport`. Whatever is killed and whenever: a conductor on the same
folder goes on, and every update counts once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift.aggregated import LARGEST_NUMBER, in_turn
from sottovoce.algorithms.drift.messages import Gradients, RowRequest, Rows
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.engines.flower.members import (
    LOOK_SECONDS,
    PULL_SECONDS,
    Asked,
    Kind,
    OnlineNode,
    RoundLoop,
    Transport,
)
from sottovoce.errors import ConfigError, DataError, MessageError, VersionMismatch
from sottovoce.stores.orchestrator import AdmittedOwner, OpenRound, OrchestratorStore, SiloRound
from sottovoce.wire.cohort_rounds import NOTHING, Content
from sottovoce.wire.silo_rounds import GradientsSent, QueryRows, RowsWanted, TaskRows

LATE_ROUNDS = 10
"""For how long an answer is listened for that did not come in time."""
DORMANT_AFTER = 2
"""Rounds in a row in which an owner stayed silent, after which nobody waits for it."""

T = TypeVar("T", RowsWanted, GradientsSent)


@dataclass(slots=True, repr=False, kw_only=True)
class _AskedOwner(Asked):
    """One owner in a phase."""

    letter: Content
    reply: Mapping[str, Any] | None = None


@dataclass(slots=True)
class _Outcome:
    """What has become of a round so far; owners by number."""

    answered: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    updated: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    """Those that have ended their streams."""
    users: set[int] = field(default_factory=set)
    items: set[int] = field(default_factory=set)


class NotCounted(MessageError):
    """What an owner said does not count; the text is the reason under which that is counted."""


def check_values(now: Rows, gradients: Gradients, settings: DRIFTConfig) -> None:
    """One owner's numbers must not take the model from everybody. Where owners send sums, rows keep
    to the bounds beyond which no owner takes them."""
    summed, rate = settings.release == "aggregated", settings.learning_rate
    for row, pull in (
        (now.user_rows, gradients.user_rows),
        (now.item_rows, gradients.item_rows),
    ):
        if pull.shape != row.shape:
            raise NotCounted("malformed")
        with np.errstate(over="ignore", invalid="ignore"):
            moved = (row.astype(np.float64) - rate * pull.astype(np.float64)).astype(np.float32)
        if not np.isfinite(moved).all():
            raise NotCounted("not_finite")
        if summed and (np.abs(moved) > LARGEST_NUMBER).any():
            raise NotCounted("out_of_bounds")


class SiloConductor(RoundLoop):
    """The first round waits for so many `owners`, later ones at most `patience_seconds` for those
    that are away. Each phase takes `deadline_seconds` at most; `every_seconds` a round begins."""

    def __init__(
        self,
        store: OrchestratorStore,
        transport: Transport,
        *,
        target: int | None = None,
        owners: int = 1,
        hold: bool = False,
        every_seconds: float = 0.0,
        deadline_seconds: float = 60.0,
        patience_seconds: float = 0.0,
        run: str = "",
    ) -> None:
        times = every_seconds, deadline_seconds, patience_seconds
        if not all(0.0 <= seconds < math.inf for seconds in times) or not deadline_seconds:
            raise ConfigError("a conductor's times are seconds from 0 on, its deadline more than 0")
        super().__init__(store.folder, transport, target, hold, run)
        self.store, (self.every, self.deadline, self.patience) = store, times
        self._first = owners
        self._nodes: dict[int, OnlineNode] = {}
        """Owners that are online, by number."""
        self._misses: dict[int, int] = {}
        self._unknown = 0
        self._problems: dict[int, str] = {}
        self._late: dict[str, tuple[int, int]] = {}
        """Letters with rows that were not answered in time: the owner and the round."""
        self._silent: tuple[str, ...] = ()
        self._membership = -1
        self._sync()

    def _reach_target(self) -> None:
        while self.target is None or self.store.round < self.target:
            began = self.transport.clock()
            self._gather()
            self._round(self.store.open_round())
            if self.target is None or self.store.round < self.target:
                self._pause(began + self.every)

    def _raised_target(self) -> int:
        self._drop_the_gone()
        return self.store.target()

    # --- before a round --------------------------------------------------------------------------

    def _sync(self) -> None:
        """Take in who and what has come and gone. Never between the first and last fold of a
        round: what is folded is on the disk only at its end."""
        now = self.store.membership
        if now == self._membership:
            return
        self.orchestrator = self.store.load()
        self.owners: dict[int, AdmittedOwner] = {o.number: o for o in self.store.owners()}
        self._numbers = {owner.identity: number for number, owner in self.owners.items()}
        self._membership, self._looked = now, -math.inf

    def _gather(self) -> None:
        """Wait until enough owners are there; after the first round, until one is, and a while for
        the others."""
        start = self.transport.clock()
        while True:
            self._sync()
            self._look()
            there = len(self._nodes)
            patient = self.transport.clock() < start + self.patience and there < len(self.owners)
            if there >= max(self._first, 1) and not patient:
                self._first = 1
                return
            self._status("waiting")
            self.transport.wait(LOOK_SECONDS)

    def _pause(self, until: float) -> None:
        """Until it is time for the next round, or somebody wants all streams to end."""
        while (now := self.transport.clock()) < until and not self.store.flush_requested:
            self._drop_the_gone()
            self._status("pausing")
            self.transport.wait(min(LOOK_SECONDS, until - now))

    def _look(self) -> None:
        """Look which nodes are online. A node whose key was not admitted is not spoken to."""
        if not self._is_time_to_look():
            return
        online = sorted(self.transport.online(), key=lambda seen: seen.since)
        known = {self._numbers[s.identity]: s for s in online if s.identity in self._numbers}
        for number, seen in known.items():
            before = self._nodes.get(number)
            if before is None or before.since != seen.since:
                self._misses[number] = 0
        self._unknown = sum(seen.identity not in self._numbers for seen in online)
        self._nodes = known

    # --- a round ---------------------------------------------------------------------------------

    def _round(self, opened: OpenRound) -> None:
        start, there = self.transport.clock(), set(self._nodes)
        asked, done = sorted(self.owners), _Outcome()
        names = {number: owner.name for number, owner in self.owners.items()}
        requests = self._ask(opened, asked, done)
        for turn in [[n] for n in requests] if in_turn(self.store.settings) else [list(requests)]:
            rows = self._answer(turn, requests, done)
            self._fold(self._hand_out(opened, rows, done), requests, rows, done)
        silent = [n for n in asked if n not in done.answered and n not in done.refused]
        for number in asked:
            missed = number in silent and number in there
            self._misses[number] = self._misses.get(number, 0) + 1 if missed else 0
        record = SiloRound(
            opened.round,
            opened.flush,
            tuple(names[n] for n in asked),
            tuple(names[n] for n in done.updated),
            tuple(names[n] for n in silent),
            tuple(names[n] for n in sorted(done.refused)),
            round(self.transport.clock() - start, 3),
            self.orchestrator.version,
        )
        users, items = (np.array(sorted(s), dtype=np.int64) for s in (done.users, done.items))
        self.store.close_round(
            record, self.orchestrator, users, items, done.updated, ended=done.ended
        )
        self._silent = record.silent

    def _ask(
        self, opened: OpenRound, asked: Collection[int], done: _Outcome
    ) -> dict[int, RowRequest]:
        """The first phase: which rows owners want. What they hold now is taken in as well."""
        departed = np.array(self.store.departed(), dtype=np.int64)
        self._hear_the_late(opened.round - LATE_ROUNDS)
        when, heard = (self.store.federation, opened.round), self.store.all_heard()
        letters = {
            number: QueryRows(
                *when, counted, number in opened.ending, departed, heard.get(number, NOTHING)
            ).to_content()
            for number, counted in self.store.all_counted().items()
            if number in asked
        }
        awake = {n for n in self._nodes if self._misses.get(n, 0) < DORMANT_AFTER}
        replies = self._exchange("query", letters, awake or set(self._nodes), opened)
        wanted: dict[int, RowsWanted] = {}
        for number, reply in sorted(replies.items()):
            try:
                wanted[number] = self._read(RowsWanted, number, reply, opened)
                if number in opened.ending:
                    done.ended.append(number)
                self._take_items(number, wanted[number].items)
                done.answered.add(number)
            except NotCounted as reason:
                self._refuse(number, str(reason), done)
        self._sync()
        requests = {}
        for number in sorted(done.answered):
            request = wanted[number].request
            if request is not None:
                try:
                    self._check(number, request)
                    requests[number] = request
                except NotCounted as reason:
                    self._refuse(number, str(reason), done)
        return requests

    def _take_items(self, number: int, items: NDArray[np.int64]) -> None:
        if len(items) and int(items[-1]) >= self.store.n_items:
            raise NotCounted("unknown_item")
        held = self.owners[number].items if number in self.owners else ()
        if not np.array_equal(items, held):
            try:
                self.store.set_items(number, items.tolist())
            except DataError:  # removed in this very moment
                raise NotCounted("unknown_owner") from None

    def _check(self, number: int, asked: RowRequest | Gradients) -> Rows:
        """The rows in question, if the owner can have asked for them as far as all is known now."""
        if number not in self.orchestrator.table.all_owners():
            raise NotCounted("unknown_owner")
        if not self.orchestrator.table.holds(number, asked.items.tolist()):
            raise NotCounted("foreign_item")
        sums = self.store.settings.release == "aggregated"
        whole = len(asked.items) == len(self.orchestrator.table.items(number))
        if (len(asked.users) or not whole) if sums else not len(asked.users):
            raise NotCounted("malformed")
        try:
            return self.orchestrator.answer(RowRequest(number, asked.users, asked.items))
        except MessageError:
            gone = np.isin(asked.users, self.store.departed()).any()
            raise NotCounted("departed_user" if gone else "unknown_user") from None

    def _answer(
        self, turn: Collection[int], requests: Mapping[int, RowRequest], done: _Outcome
    ) -> dict[int, Rows]:
        """The rows that owners get; none for one that was removed while others had their turn."""
        found = {}
        for number in turn:
            try:
                found[number] = self._check(number, requests[number])
            except NotCounted as reason:
                self._refuse(number, str(reason), done)
        return found

    def _hand_out(
        self, opened: OpenRound, rows: Mapping[int, Rows], done: _Outcome
    ) -> dict[int, Gradients]:
        """The second phase: rows out, gradients in."""
        federation = self.store.federation
        letters = {n: TaskRows(federation, opened.round, r).to_content() for n, r in rows.items()}
        replies = self._exchange("train", letters, set(letters), opened)
        done.answered -= letters.keys() - replies.keys()
        found = {}
        for number, reply in replies.items():
            try:
                sent = self._read(GradientsSent, number, reply, opened)
                if sent.gradients is not None:
                    self._hear(number, sent)
                    found[number] = sent.gradients
            except NotCounted as reason:
                self._refuse(number, str(reason), done)
        return found

    def _hear(self, number: int, sent: GradientsSent) -> None:
        """Sums that came in are known here, whatever becomes of them; the owner is told so."""
        if self.store.settings.release == "aggregated":
            self.store.hear(number, sent.round)

    def _hear_the_late(self, first: int) -> None:
        """Answers that have come since their rounds were closed, from the round `first` on."""
        self._late = {name: late for name, late in self._late.items() if late[1] >= first}
        for reply in self.transport.collect(list(self._late)) if self._late else ():
            number, round = self._late.pop(reply.to, (-1, -1))
            with contextlib.suppress(MessageError):
                sent = GradientsSent.from_content(reply.content or {})
                if sent.gradients is not None and (sent.owner, sent.round) == (number, round):
                    self._hear(number, sent)

    def _fold(
        self,
        found: Mapping[int, Gradients],
        requests: Mapping[int, RowRequest],
        rows: Mapping[int, Rows],
        done: _Outcome,
    ) -> None:
        self._drop_the_gone()
        began = self.orchestrator.version
        for number, gradients in sorted(found.items()):
            request = requests[number]
            try:
                if gradients.version != rows[number].version:
                    raise NotCounted("stale")
                asked = np.isin(gradients.users, request.users).all()
                if not asked or not np.isin(gradients.items, request.items).all():
                    raise NotCounted("not_asked")
                check_values(self._check(number, gradients), gradients, self.store.settings)
                self.orchestrator.fold(gradients, began)
            except NotCounted as reason:
                self._refuse(number, str(reason), done)
            except MessageError:  # all that is left to be wrong is its age
                self._refuse(number, "stale", done)
            else:
                done.updated.append(number)
                done.users.update(gradients.users.tolist())
                done.items.update(gradients.items.tolist())

    def _drop_the_gone(self) -> None:
        """Nothing is kept or folded here of users and owners that have left since `_sync`."""
        if self.store.membership == self._membership:
            return
        for user in self.store.departed():
            self.orchestrator.leave_user(user)
        for number in self.owners.keys() - {owner.number for owner in self.store.owners()}:
            self.orchestrator.leave_owner(number)

    def _read(self, kind: type[T], number: int, reply: Mapping[str, Any], opened: OpenRound) -> T:
        try:
            answer = kind.from_content(reply)
        except VersionMismatch:
            raise NotCounted("version") from None
        except MessageError:
            raise NotCounted("malformed") from None
        if answer.owner != number:
            raise NotCounted("unknown_owner")
        if answer.round != opened.round:
            raise NotCounted("stale")
        self._problems[number] = answer.problem
        if answer.problem:
            raise NotCounted("owner_problem")
        return answer

    def _refuse(self, number: int, reason: str, done: _Outcome) -> None:
        done.answered.discard(number)
        done.refused.add(number)
        self.store.refuse(reason)

    # --- messages --------------------------------------------------------------------------------

    def _exchange(
        self, kind: Kind, letters: Mapping[int, Content], waited: set[int], opened: OpenRound
    ) -> dict[int, Mapping[str, Any]]:
        """Letters to owners, and the answers that came before the deadline, or before all those
        that are `waited` for had answered. Who is restarted or falls over gets the letter again,
        and so does who comes late."""
        start = self.transport.clock()
        asked = {number: _AskedOwner(letter=letter) for number, letter in letters.items()}
        while asked:
            self._look()
            self._send(kind, asked, self.deadline - (self.transport.clock() - start))
            for _, entry, reply in self._replies(asked):
                entry.reply, entry.settled = reply.content, True
            missing = [n for n, entry in asked.items() if entry.reply is None]
            self._status("open", flush=opened.flush, waiting_for=self._names(missing))
            late = self.transport.clock() - start >= self.deadline
            if late or not waited.intersection(missing):
                break
            self.transport.wait(PULL_SECONDS)
        if kind == "train":
            for number, entry in asked.items():
                self._late |= dict.fromkeys(entry.messages, (number, opened.round))
        return {n: entry.reply for n, entry in asked.items() if entry.reply is not None}

    def _send(self, kind: Kind, asked: Mapping[int, _AskedOwner], left: float) -> None:
        now, letters = self.transport.clock(), dict[int, Content]()
        of: dict[int, _AskedOwner] = {}
        for number, entry in asked.items():
            seen = self._nodes.get(number)
            if seen is not None and entry.is_due(seen.since, now):
                entry.since, entry.resend_at = seen.since, math.inf
                letters[seen.node], of[seen.node] = entry.letter, entry
        for node, message in (
            self.transport.send(kind, letters, max(left, 1.0)).items() if letters else ()
        ):
            of.pop(node).messages.add(message)
        for entry in of.values():  # the transport did not take it
            entry.resend_at = now + LOOK_SECONDS

    # --- for onlookers ---------------------------------------------------------------------------

    def _names(self, numbers: Collection[int]) -> list[str]:
        return [self.owners[n].name for n in sorted(numbers) if n in self.owners]

    def _facts(self) -> dict[str, Any]:
        problems = {n: said for n, said in self._problems.items() if said and n in self.owners}
        return {
            "round": self.store.round,
            "version": self.orchestrator.version,
            "owners": len(self.owners),
            "nodes": len(self._nodes),
            "online": self._names(self._nodes),
            "silent": list(self._silent),
            "refused": self.store.refused(),
            "not_admitted": self._unknown,
            "problems": {self.owners[n].name: said for n, said in sorted(problems.items())},
        }
