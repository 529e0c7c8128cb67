"""The server of a Flower federation with a secure sum. A gateway is one participant of it: what it
sends is the sum over its devices, masked with one seed, so that nothing of a single cohort can be
read here.

What has come is on the disk before it counts. When a round ends, it is on the disk that it does,
and the helper is asked for the sum of exactly these masks: it answers for one set in a round. While
it is away, the round waits; whoever asks again, also after a restart, gets the same answer. A round
whose sum cannot be opened is given up, and with it its batch. Devices contribute to a stage of a
period once, so that no round is tried again: one with too few gateways waits for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Contributing
from sottovoce.core.messages import MaskedReports, ModelView, SummedReports
from sottovoce.engines.flower.conductor import (
    QUESTION_SECONDS,
    AskedNode,
    Conductor,
    ReportedSoFar,
    check_answer,
    joined,
    round_record,
)
from sottovoce.engines.flower.members import Transport
from sottovoce.engines.helper_client import (
    SUMS,
    Ask,
    SumRefused,
    is_undecryptable,
    told_sum,
    which_unopened,
)
from sottovoce.errors import ConfigError, Diverged, KeyTrouble, MessageError, Unreachable, WrongSum
from sottovoce.parties.secure_sum import MaskedSum, most_devices, sigma_of
from sottovoce.stores.conductor import Checkpoint, ConductedRound, MaskedPart
from sottovoce.stores.coordinator import Plan
from sottovoce.stores.server import PastRound
from sottovoce.wire.cohort_rounds import CohortAnswer
from sottovoce.wire.masked import (
    MaskedMessage,
    binding,
    decode_masked,
    encode_question,
    is_signed,
    model_name,
    sealed_seed,
)
from sottovoce.wire.terms import Terms

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class _Unopened(MessageError):
    """The helper has told nothing, since it cannot open the seeds at these places."""

    def __init__(self, which: list[int]) -> None:
        super().__init__("the helper could not open some seeds")
        self.which = which


class GatewaySums:
    """Reads, adds up and opens what gateways send, by the terms."""

    def __init__(self, terms: Terms, ask: Ask) -> None:
        link = terms.secure_sum
        if link is None or not terms.contributes:
            raise ConfigError("gateways add up contributions alone before they are masked")
        self._terms, self._link, self._ask = terms, link, ask
        self._algorithm = terms.build()
        self._largest = terms.largest_value * terms.release.steps
        self._sigma = sigma_of(self._algorithm, terms.release, link)
        self.least = link.min_devices
        """Gateways below which the helper tells nothing."""
        self.most = most_devices(link, self._largest, self._sigma)
        """Devices for the sum of which a number has room."""

    def read(self, body: bytes, opened: ConductedRound, view: ModelView) -> MaskedMessage:
        """A gateway's message; raises `MessageError` where it is none of this round."""
        where, numbers = (opened.round, opened.attempt), self._numbers(view)
        message = decode_masked(body, self._terms, *where, numbers)
        bound = binding(self._terms, *where, model_name(view.items), numbers)
        if not is_signed(message.record, bound):
            raise MessageError("a sealed seed was not signed by its gateway for this")
        return message

    def open(
        self, parts: list[MaskedPart], opened: ConductedRound, view: ModelView
    ) -> SummedReports:
        """The noisy sum of these. Raises `Unreachable` or `KeyTrouble` where the helper cannot be
        asked now, `_Unopened` where it is to be asked without some, and `WrongSum` or `SumRefused`
        where there will be none."""
        if len(parts) < self.least:
            raise SumRefused(
                f"{len(parts):,} good messages are left, and a sum needs {self.least:,}; the "
                "helper was not asked"
            )
        # A message has the numbers of many devices.
        largest = self._largest * sum(part.devices for part in parts) / len(parts)
        shape, sealed = self._algorithm.report_shape(view), []
        total = MaskedSum(opened.round, *shape, self._link, largest, self._sigma)
        for part in parts:
            message = self.read(part.body, opened, view)
            sender = np.array([part.place])
            total.add(MaskedReports(opened.round, sender, message.masked[None, :]))
            sealed.append(message.record)
        named = self._terms, opened.round, opened.attempt, model_name(view.items)
        answer = self._ask(encode_question(*named, sealed, self._numbers(view)), SUMS)
        if is_undecryptable(answer):
            raise _Unopened(which_unopened(answer, len(parts)))
        return total.open(told_sum(answer, self._terms))

    def _numbers(self, view: ModelView) -> int:
        rows, width = self._algorithm.report_shape(view)
        return rows * width


class SummedConductor(Conductor):
    """`Conductor` where what gateways send is masked. `ask` is the way to the helper."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        checkpoint: Checkpoint,
        transport: Transport,
        ask: Ask,
        **options: Any,
    ) -> None:
        self.sums = GatewaySums(plan.terms, ask)
        super().__init__(folder, plan, checkpoint, transport, **options)
        self.most = self.sums.most
        self.parts = checkpoint.masked()
        self._asks_more_at = 0.0

    def _next_round(self) -> None:
        opened = self.checkpoint.open_round()
        if opened is not None and self.checkpoint.is_closing():
            counted = self._counted({})
            self._sum_up(opened, round_record(opened, counted, 0.0))
            return
        self._asks_more_at = 0.0
        super()._next_round()

    # Who is asked

    def _is_enough(self, pool: NDArray[np.int64]) -> bool:
        there = len(set(self._owners().values()))
        return super()._is_enough(pool) and there >= self.sums.least

    def _unheard(self, opened: ConductedRound) -> NDArray[np.int64]:
        return opened.numbers[~np.isin(opened.numbers, self._settled())]

    def _settled(self) -> NDArray[np.int64]:
        """Devices that are not asked in the open round any more."""
        sent = joined([part.numbers for part in self.parts])
        return np.union1d(sent, self.checkpoint.left_out())

    def _counted(self, asked: Mapping[int, AskedNode]) -> ReportedSoFar:
        devices = sum(part.devices for part in self.parts)
        return ReportedSoFar(devices, joined([part.numbers for part in self.parts]))

    def _usable(self, reported: int) -> int:
        return len(self.parts)

    def _resend(self, asked: Mapping[int, AskedNode], start: float, now: float) -> None:
        late = now - start >= self.plan.rules.deadline_seconds
        super()._resend(asked, now if late else start, now)

    def _ask_more(
        self, opened: ConductedRound, asked: dict[int, AskedNode], waited: float
    ) -> ConductedRound:
        """After the deadline, with too few gateways: those that have come since, and those that had
        nobody to answer for."""
        now = self.transport.clock()
        if waited < self.plan.rules.deadline_seconds or now < self._asks_more_at:
            return opened
        self._asks_more_at = now + QUESTION_SECONDS
        self._look(force=True)
        self._ask({n: self._question(m) for n, m in self.members.items()})
        there = self._settled()
        more = {
            node: entry
            for node, entry in self._by_node(self._pool()).items()
            if not np.isin(entry.numbers, there).any()
            and (node not in asked or asked[node].settled)
        }
        numbers = np.union1d(opened.numbers, joined([entry.numbers for entry in more.values()]))
        if not more or len(numbers) > self.most:
            return opened
        asked |= more
        opened = ConductedRound(opened.round, opened.attempt, opened.goal, numbers)
        self.checkpoint.open(opened)
        self._send(asked, list(more), now)
        return opened

    # What comes, and its sum

    def _take(self, entry: AskedNode, answer: CohortAnswer, opened: ConductedRound) -> None:
        check_answer(answer, opened, len(entry.numbers))
        message = self.sums.read(answer.sum, opened, self.server.publish())
        if message.record.device in {sealed_seed(part.body).device for part in self.parts}:
            raise MessageError("a gateway reported twice in one round")
        self.checkpoint.keep_masked(entry.numbers, answer.devices, answer.sum)
        self.parts = self.checkpoint.masked()

    def _close(
        self,
        opened: ConductedRound,
        parts: list[SummedReports],
        numbers: NDArray[np.int64],
        record: PastRound,
    ) -> None:
        self.checkpoint.start_closing(opened)
        self._sum_up(opened, record)

    def _sum_up(self, opened: ConductedRound, record: PastRound) -> None:
        """Until the helper has answered."""
        pause, view = _FIRST_PAUSE, self.server.publish()
        server = self.server
        before = server.items, server.memory, server.published, [*server.offered]
        while True:
            try:
                total = self.sums.open(self.parts, opened, view)
                self._fold(total, self._counted({}).numbers, record)
                break
            except _Unopened as error:
                for place in error.which:
                    self.checkpoint.leave_out(self.parts[place])
                    self._refuse("undecryptable")
                self.parts = self.checkpoint.masked()
                if 0 < len(self.parts) < self.sums.least:
                    # What is good was paid for, and waits for others in the place of the bad.
                    self.checkpoint.reopen()
                    return
                record = round_record(opened, self._counted({}), record.seconds)
            except (Unreachable, KeyTrouble) as error:
                self._status("summing", helper=str(error))
                self.transport.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            except (WrongSum, SumRefused, Diverged) as error:
                server.items, server.memory, server.published, server.offered = before
                self._give_up(opened, record, error)
                break
        self.parts = []

    def _give_up(self, opened: ConductedRound, record: PastRound, why: Exception) -> None:
        """Nothing of the round counts, and the next batch begins from the same model."""
        after = cast(Contributing, self.server.algorithm).after_given_up(opened.round)
        given_up = round_record(opened, self._counted({}), record.seconds, given_up=True)
        self.checkpoint.give_up_round(given_up, after)
        self._refuse("wrong_sum" if isinstance(why, WrongSum) else "sum_refused")
        self.server.round, self.attempt = after, 0
        self._status("waiting", helper=f"round {opened.round} does not count: {why}")
