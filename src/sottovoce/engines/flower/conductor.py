"""The server of a Flower federation: asks nodes, closes rounds by the rules, folds, checkpoints.

Knows no algorithm, and no transport but a `Transport`. Whatever is killed and whenever: a conductor
on the same folder goes on, no round counts twice, and the model is the one of an uninterrupted run
with the same participants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.messages import GRID, SummedReports, cut_sum
from sottovoce.engines.flower.members import (
    LOOK_SECONDS,
    PULL_SECONDS,
    Asked,
    Member,
    Reply,
    RoundLoop,
    Transport,
)
from sottovoce.errors import ConfigError, Diverged, MessageError, VersionMismatch
from sottovoce.parties.rounds import Attempt, RoundMachine, Tally
from sottovoce.parties.server import Offered, Server
from sottovoce.rng import streams_of
from sottovoce.stores.allotment import within
from sottovoce.stores.conductor import (
    Checkpoint,
    ConductedRound,
)
from sottovoce.stores.coordinator import Plan
from sottovoce.stores.server import PastRound
from sottovoce.wire.cohort_rounds import CohortAnswer, CohortQuestion, CohortTask, Content
from sottovoce.wire.reports import decode_sum, longest_report
from sottovoce.wire.terms import Terms
from sottovoce.wire.versions import delta_size, encode_delta, encode_model, full_size

QUESTION_SECONDS = 12.0
"""How long an answer to a question is waited for; a node asks for messages every 3 seconds."""
LOST_AFTER = 0.25
"""The part of the deadline after which a task without an answer is taken for lost on its way."""
MODELS = 3
"""How often in a round a node may say that it lost the model that it had."""
FAREWELL_SECONDS = 30.0
"""How long a run that has nothing left to do waits for nodes that want to know how it went."""
_LARGEST = 2**63 - 1


@dataclass(slots=True, repr=False, kw_only=True)
class AskedNode(Asked):
    """One node in the open round."""

    numbers: NDArray[np.int64]
    lost_models: int = 0
    part: SummedReports | None = None


@dataclass(frozen=True, slots=True)
class ReportedSoFar:
    """The reports that a round has so far."""

    devices: int
    numbers: NDArray[np.int64]
    """The devices whose nodes were asked for them and have answered."""


class Conductor(RoundLoop):
    """`pinned` says that nodes have keys: then each answers for the devices that it was allotted
    and no others, and one that was allotted none is not spoken to."""

    target: int

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        checkpoint: Checkpoint,
        transport: Transport,
        *,
        target: int | None = None,
        nodes: int = 1,
        pinned: bool = True,
        hold: bool = False,
        run: str = "",
    ) -> None:
        super().__init__(folder, transport, plan.rounds if target is None else target, hold, run)
        self.plan, self.checkpoint, self.nodes, self.pinned = plan, checkpoint, nodes, pinned
        self.machine = RoundMachine(plan.rules, plan.link_rules)
        self.members: dict[int, Member] = {}
        self.server = Server.start(
            plan.terms.build(), plan.terms.n_items, streams_of(plan.root_key)
        )
        self.attempt = 0
        self.changed = np.zeros(plan.terms.n_rows, np.int64)
        self._restore()
        self._unknown = 0
        self.most = _LARGEST
        """Devices that a round may ask."""

    def _reach_target(self) -> None:
        """Then tell the nodes how the last round went and give them the model."""
        while self.server.round < self.target:
            self._next_round()
            self.nodes = 1
        self._status("closing")
        self._gather(self.nodes, seconds=FAREWELL_SECONDS)
        self._ask({n: self._question(m, with_model=True) for n, m in self.members.items()})

    def _raised_target(self) -> int:
        return self.checkpoint.target()

    def _next_round(self) -> None:
        opened = self.checkpoint.open_round()
        if opened is not None:  # of a run that was cut off: the same devices are asked again
            self._gather(self.nodes, self._unheard(opened), self.plan.rules.deadline_seconds)
        else:
            self._gather(self.nodes)
            opened = self._open()
        self._round(opened)

    # Before a round

    def _restore(self) -> None:
        saved, digest = self.checkpoint.load(), self.plan.terms.digest()
        if saved is None:
            self.checkpoint.begin(self.server.items, digest)
            return
        if self.checkpoint.terms() != digest:
            raise ConfigError(
                f"{self.folder} holds a run under other terms; choose another folder for these"
            )
        self.server.round, self.server.items = saved.round, saved.items
        if saved.round:
            self.server.memory = self.checkpoint.memory(len(saved.items))
            self.server.published, offered = self.checkpoint.published(len(saved.items))
            self.server.offered = [Offered.from_table(table) for table in offered]
        self.attempt, self.changed = saved.attempt, saved.changed

    def _gather(
        self,
        nodes: int,
        numbers: NDArray[np.int64] | None = None,
        seconds: float = math.inf,
    ) -> None:
        """Wait until enough nodes and devices are there (these `numbers`, if given), or for so
        long. Nodes that were just heard are not asked again, and a silent one
        keeps nobody waiting for long."""
        start = asked = self.transport.clock()
        while True:
            self._look(force=True)
            stale = [m for m in self.members.values() if not m.fresh]
            self._ask({m.node: self._question(m) for m in stale})
            heard = sum(member.heard for member in self.members.values())
            pool, now = self._pool(), self.transport.clock()
            enough = self._is_enough(pool)
            if numbers is not None:
                enough = bool(np.isin(numbers, pool).all())
            if (heard >= nodes and enough) or now - start >= seconds:
                return
            self._status("waiting")
            self.transport.wait(LOOK_SECONDS)
            if now >= asked + QUESTION_SECONDS:  # somebody may have changed her mind
                asked = now
                for member in self.members.values():
                    member.fresh = False

    def _is_enough(self, pool: NDArray[np.int64]) -> bool:
        """Whether a round can begin with these devices."""
        return len(pool) >= (self.plan.rules.min_devices if self.server.round == 0 else 1)

    def _unheard(self, opened: ConductedRound) -> NDArray[np.int64]:
        """Return the devices whose reports an open round lacks when a run takes it up again."""
        return opened.numbers

    def _look(self, *, force: bool = False) -> None:
        """Look which nodes are online."""
        if not self._is_time_to_look(force):
            return
        online = {seen.node: seen for seen in self.transport.online()}
        if self.pinned:
            allotted, present = self.checkpoint.allotted(), len(online)
            online = {n: seen for n, seen in online.items() if seen.identity in allotted}
            self._unknown = present - len(online)
        self.members = {n: m for n, m in self.members.items() if n in online}
        for node, seen in online.items():
            member = self.members.setdefault(node, Member(node, seen.identity, seen.since))
            if member.since != seen.since:
                member.since, member.fresh, member.question = seen.since, False, ""

    def _ask(self, questions: Mapping[int, CohortQuestion]) -> None:
        """Ask, and wait for the answers of those that are not known to be silent."""
        dormant = self.plan.rules.dormant_after
        letters = {n: q.to_content() for n, q in questions.items() if not self.members[n].question}
        for node, message in self.transport.send("query", letters, 3 * QUESTION_SECONDS).items():
            self.members[node].question = message
        end = self.transport.clock() + QUESTION_SECONDS
        while waiting := {m.question: m for m in self.members.values() if m.question}:
            for reply in self.transport.collect(list(waiting)):
                if reply.to in waiting:
                    waiting[reply.to].question = ""
                    self._take_answer(waiting[reply.to], reply)
            if not any(m.question and m.misses < dormant for m in self.members.values()):
                return
            if self.transport.clock() >= end:
                for member in self.members.values():
                    member.question = ""  # asked anew next time
                return
            self.transport.wait(PULL_SECONDS)

    def _take_answer(self, member: Member, reply: Reply) -> None:
        answer = self._read(reply)
        if answer is not None:
            self._note(member, answer)

    def _note(self, member: Member, answer: CohortAnswer) -> None:
        """What every answer says of its node."""
        willing = answer.willing
        if self.pinned:
            _, ranges = self.checkpoint.allotted().get(member.identity, ("", ()))
            willing = willing[within(willing, ranges)]
            if len(willing) < len(answer.willing):
                self._refuse("foreign_device")
        if not member.heard or not np.array_equal(willing, member.willing):
            self.checkpoint.claim(member.identity, willing)
        member.willing, member.kept, member.problem = willing, answer.kept, answer.problem
        member.heard = member.fresh = True
        member.misses = 0

    def _read(self, reply: Reply) -> CohortAnswer | None:
        if reply.content is None:
            return None
        try:
            return CohortAnswer.from_content(reply.content)
        except MessageError as error:
            self._refuse("version" if isinstance(error, VersionMismatch) else "malformed")
            return None

    def _owners(self) -> dict[int, int]:
        """Which node answers for which device; the one that came last where two do."""
        owners: dict[int, int] = {}
        dormant = self.plan.rules.dormant_after
        for member in sorted(self.members.values(), key=lambda m: m.since):
            if member.misses < dormant:
                owners |= dict.fromkeys(member.willing.tolist(), member.node)
        return owners

    def _pool(self) -> NDArray[np.int64]:
        return np.array(sorted(self._owners()), dtype=np.int64)

    def _open(self) -> ConductedRound:
        pool = self._pool()
        size = self.plan.cohort_size
        goal = min(len(pool) if size == "all" or self.plan.asks_all else size, self.most)
        asked = min(self.plan.rules.asked(goal, len(pool)), self.most)
        chosen = pool[self.server.select(len(pool), asked, self.attempt)]
        opened = ConductedRound(self.server.round, self.attempt, goal, np.sort(chosen))
        self.checkpoint.open(opened)
        return opened

    # A round

    def _round(self, opened: ConductedRound) -> None:
        start = self.transport.clock()
        asked = self._by_node(self._unheard(opened))
        for member in self.members.values():
            member.fresh = False
        self._send(asked, list(asked), start)
        while True:
            for node, entry, reply in self._replies(asked):
                self._judge(node, entry, reply, opened)
            now = self.transport.clock()
            elapsed = now - start
            self._resend(asked, start, now)
            counted = self._counted(asked)
            reported = counted.devices
            silent = [node for node, a in asked.items() if not a.settled]
            self._status("open", reported=reported, asked=len(opened.numbers), goal=opened.goal)
            # With nobody left to wait for, the deadline would bring nothing new.
            waited = elapsed if silent else math.inf
            tally = Tally(opened.goal, len(opened.numbers), reported, self._usable(reported))
            here = Attempt(opened.round, opened.attempt, opened_at=0.0)
            phase = self.machine.look(here, tally, waited).phase
            if phase != "open":
                break
            opened = self._ask_more(opened, asked, waited)
            self.transport.wait(PULL_SECONDS)
        for node in silent:
            if node in self.members:
                self.members[node].misses += 1
        record = round_record(opened, counted, elapsed, given_up=phase == "again")
        if phase == "closing":
            parts = [a.part for a in asked.values() if a.part is not None]
            self._close(opened, parts, counted.numbers, record)
        else:
            self.checkpoint.abandon_round(record)
            self.attempt = opened.attempt + 1

    def _by_node(self, numbers: NDArray[np.int64]) -> dict[int, AskedNode]:
        """Which node is asked for which of these devices."""
        owners, asked = self._owners(), dict[int, AskedNode]()
        for node in sorted(set(owners.values())):
            mine = [n for n in numbers.tolist() if owners.get(n) == node]
            if mine:
                asked[node] = AskedNode(numbers=np.array(mine, dtype=np.int64))
        return asked

    def _counted(self, asked: Mapping[int, AskedNode]) -> ReportedSoFar:
        there = [a for a in asked.values() if a.part is not None]
        devices = sum(a.part.devices for a in there if a.part is not None)
        return ReportedSoFar(devices, joined([a.numbers for a in there]))

    def _usable(self, reported: int) -> int:
        """How many contributions one aggregate can be made of."""
        return reported

    def _ask_more(
        self, opened: ConductedRound, asked: dict[int, AskedNode], waited: float
    ) -> ConductedRound:
        """A round that waits may ask others, too."""
        return opened

    def _close(
        self,
        opened: ConductedRound,
        parts: list[SummedReports],
        numbers: NDArray[np.int64],
        record: PastRound,
    ) -> None:
        self._fold(self.server.add_sums(parts), numbers, record)

    def _fold(self, total: SummedReports, numbers: NDArray[np.int64], record: PastRound) -> None:
        before = self.server.items
        self.server.fold(total)
        after = self.server.items
        if not np.isfinite(after).all():
            raise Diverged(f"the model ran off to infinity in round {record.round}")
        # Bits, not values: 0.0 and -0.0 are different rows to a device.
        moved = (before.view(np.uint32) != after.view(np.uint32)).any(axis=1)
        self.changed = np.where(moved, self.server.round, self.changed)
        self.checkpoint.close_round(
            record,
            numbers,
            after,
            self.changed,
            self.server.memory,
            self.server.offered,
        )
        self.attempt = 0

    def _send(self, asked: Mapping[int, AskedNode], nodes: list[int], start: float) -> None:
        """The task to these nodes; each message is void when the round is."""
        now, deadline = self.transport.clock(), self.plan.rules.deadline_seconds
        left = deadline - (now - start)
        letters: dict[int, Content] = {}
        for node in nodes:
            member, entry = self.members[node], asked[node]
            entry.since, entry.resend_at = member.since, now + LOST_AFTER * deadline
            asks = self._question(member, with_model=True)
            about = asks.terms, asks.round, asks.attempt, asks.counted, asks.model, asks.published
            letters[node] = CohortTask(*about, numbers=entry.numbers).to_content()
        for node, message in self.transport.send("train", letters, max(left, 1.0)).items():
            asked[node].messages.add(message)

    def _resend(self, asked: Mapping[int, AskedNode], start: float, now: float) -> None:
        """A node that was restarted, or whose message was lost, gets the task again."""
        self._look()
        due = [
            node
            for node, entry in asked.items()
            if node in self.members and entry.is_due(self.members[node].since, now)
        ]
        if due:
            self._send(asked, due, start)

    def _judge(self, node: int, entry: AskedNode, reply: Reply, opened: ConductedRound) -> None:
        """Count a reply, or refuse it and go on without it."""
        answer = self._read(reply)
        if answer is None:
            entry.settled = True
            return
        if node in self.members:
            self._note(self.members[node], answer)
        if answer.problem:
            lost = "against version" in answer.problem  # it lost the model that it had
            if lost and entry.lost_models < MODELS:
                entry.lost_models += 1
                entry.resend_at = self.transport.clock()
                return
            self._refuse("node_problem")
        elif answer.sum:
            try:
                self._take(entry, answer, opened)
            except MessageError:
                self._refuse("malformed")
        entry.settled = True

    def _take(self, entry: AskedNode, answer: CohortAnswer, opened: ConductedRound) -> None:
        """Raises `MessageError` where it cannot be true."""
        part = check_sum(answer, opened, len(entry.numbers), self.plan.terms)
        limit = min(self.plan.value_limit, _LARGEST // part.devices)
        entry.part = cut_sum(part, limit)

    def _question(self, member: Member, *, with_model: bool = False) -> CohortQuestion:
        model, other = self._model_for(member) if with_model else b"", b""
        kept = self.server.published
        if with_model and kept is not None and kept.round != self.server.round:
            other = encode_model(kept)
        return CohortQuestion(
            self.plan.terms,
            self.server.round,
            self.attempt,
            self.checkpoint.counted(member.identity),
            model,
            other,
        )

    def _model_for(self, member: Member) -> bytes:
        """The rows that changed since the version kept there, where that is shorter."""
        view = self.server.publish()
        n_items, width = view.items.shape
        if 0 <= member.kept <= view.round:
            changed = self.changed > member.kept
            if delta_size(n_items, int(changed.sum()), width) < full_size(n_items, width):
                return encode_delta(member.kept, view, changed)
        return encode_model(view)

    def _refuse(self, reason: str) -> None:
        self.checkpoint.refuse(reason)

    def _facts(self) -> dict[str, Any]:
        heard = [m for m in self.members.values() if m.heard]
        return {
            "round": self.server.round,
            "attempt": self.attempt,
            "nodes": len(heard),
            "devices": len(self._owners()),
            "refused": self.checkpoint.refused(),
            "without_numbers": self._unknown,
            "problems": sorted({m.problem for m in heard if m.problem}),
            "away": self._away(),
        }

    def _away(self) -> list[str]:
        """Nodes with numbers that are not connected, by name."""
        there = {member.identity for member in self.members.values()}
        return sorted(name for who, (name, _) in self.checkpoint.allotted().items()
                      if who not in there)  # fmt: skip


def joined(numbers: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *numbers])


def round_record(
    opened: ConductedRound, counted: ReportedSoFar, seconds: float, *, given_up: bool = False
) -> PastRound:
    """How a round ended."""
    missing = opened.numbers[~np.isin(opened.numbers, counted.numbers)]
    outcome = "goal" if counted.devices >= opened.goal else "deadline"
    return PastRound(
        opened.round,
        opened.attempt,
        "abandoned" if given_up else outcome,
        len(opened.numbers),
        counted.devices,
        tuple(missing.tolist()),
        round(seconds, 3),
    )


def check_answer(answer: CohortAnswer, opened: ConductedRound, asked: int) -> None:
    """Raises `MessageError` where it cannot be one to what was asked."""
    if (answer.round, answer.attempt) != (opened.round, opened.attempt):
        raise MessageError("the report is for another round")
    if not 1 <= answer.devices <= asked:
        raise MessageError("the report speaks for more devices than were asked, or for none")


def check_sum(
    answer: CohortAnswer, opened: ConductedRound, asked: int, terms: Terms
) -> SummedReports:
    """A node's sum as far as it can be true; raises `MessageError` where it cannot."""
    check_answer(answer, opened, asked)
    most = min(answer.devices * terms.max_rows, terms.n_rows)
    if len(answer.sum) > longest_report(most, terms.width) + 4:
        raise MessageError("the report is too long")
    part = decode_sum(answer.sum, n_items=terms.n_rows, width=terms.width, round=opened.round)
    known = not terms.counts_senders or part.counts_well()
    if part.devices != answer.devices or len(part.item) > most or not known:
        raise MessageError("the report speaks for more devices or items than it may")
    most_each = int(terms.largest_value * GRID)
    if len(opened.numbers) * most_each > _LARGEST:
        raise MessageError("the round asks more devices than can be added up")
    if int(np.abs(part.sums).view(np.uint64).max(initial=0)) > answer.devices * most_each:
        raise MessageError("the report holds values that no device can have sent")
    return part
