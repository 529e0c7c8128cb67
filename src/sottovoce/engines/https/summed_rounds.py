"""Rounds of a federation whose server sees sums alone: it adds up what it cannot read, and asks the
proxy for the sum of exactly these masks.

A round that the proxy was asked about is never tried again, because the proxy answers for one set
of devices in a round: it is folded, or given up for the next round. While the proxy is away, the
round stays closing; whoever asks again for the same submissions gets the same answer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

import httpx2
import numpy as np
import sqlalchemy as sa

from sottovoce.engines.https import records
from sottovoce.engines.https.client import Answer, Client
from sottovoce.engines.https.coordinator import Clock, Coordinator, Event, Plan, Verdict, What
from sottovoce.engines.https.database import Leader
from sottovoce.engines.https.masked_wire import (
    Record,
    decode_masked,
    decode_sum,
    encode_question,
    model_name,
)
from sottovoce.errors import (
    ConfigError,
    KeyTrouble,
    MessageError,
    ServiceError,
    Unreachable,
    WrongSum,
)
from sottovoce.links import SecureSum
from sottovoce.messages import GRID, MaskedReports, SummedReports, cut_sum
from sottovoce.parties.secure_sum import MaskedSum
from sottovoce.parties.server import Server

Ask = Callable[[bytes], Answer]
"""Puts a question to the proxy; raises `Unreachable` or `KeyTrouble` where it cannot."""

_AT_ONCE = 16
"""Masked updates that are read together."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_PATIENCE = httpx2.Timeout(20.0, read=600.0)
"""The proxy adds up before it answers."""
_LONGEST_REFUSAL = 1 << 22
_SETTLED_ELSEWHERE = (401, 403, 404, 405, 426)
"""Answers that say nothing of the question: somebody has to put the services right."""


class _Refused(MessageError):
    """The proxy will not tell this sum."""


class ProxyLine:
    """The server's way to the proxy that the terms name."""

    def __init__(self, link: SecureSum, token: str, answer_bytes: int) -> None:
        if not link.url or not link.key:
            raise ConfigError("the terms of the federation name no proxy for its secure sum")
        self._link, self._token = link, token
        self._limit = max(answer_bytes, _LONGEST_REFUSAL)
        self._client()  # raises now where it cannot be one

    def __repr__(self) -> str:
        return f"<ProxyLine {self._link.url}, redacted>"

    def ask(self, question: bytes) -> Answer:
        return asyncio.run(self._ask(question))

    async def _ask(self, question: bytes) -> Answer:
        client = self._client()
        try:
            return await client.post("/v1/sums", question, token=self._token, limit=self._limit)
        finally:
            await client.rest()

    def _client(self) -> Client:
        link = self._link
        plain = link.url.startswith("http://")
        return Client(link.url, link.authority, plaintext=plain, timeout=_PATIENCE)


class SummedCoordinator(Coordinator):
    """`Coordinator` where reports are masked."""

    def __init__(self, plan: Plan, clock: Clock, ask: Ask) -> None:
        super().__init__(plan, clock)
        link = plan.terms.secure_sum
        if link is None:
            raise ConfigError("only a secure sum needs a proxy that knows masks")
        self._link, self._ask = link, ask
        self._opened: SummedReports | None = None
        self._left_out = 0
        self._pause, self._next_try = _FIRST_PAUSE, -math.inf

    # --- below the minimum nothing is asked -------------------------------------------------------

    def _choose(
        self, link: sa.Connection, round: int, attempt: int
    ) -> tuple[int, records.Numbers] | None:
        choice = super()._choose(link, round, attempt)
        return None if choice is None or len(choice[1]) < self._link.min_devices else choice

    def _verdict(self, link: sa.Connection, now: records.Position) -> Verdict | None:
        verdict = super()._verdict(link, now)
        if verdict in ("goal", "deadline") and now.reported < self._link.min_devices:
            late = self._elapsed() >= self._plan.rules.deadline_seconds
            return "abandoned" if late else None
        return verdict

    def _due(self, link: sa.Connection, now: records.Position) -> bool:
        if now.state == "closing":
            return self._clock() >= self._next_try
        return super()._due(link, now)

    # --- the sum ----------------------------------------------------------------------------------

    def _ended(self, leader: Leader, now: records.Position) -> list[Event]:
        self._pause, self._next_try = _FIRST_PAUSE, -math.inf
        # Asking takes a while, and nobody should be told meanwhile that the round is open.
        return [Event("closing", now.round, now.attempt, now.asked, now.reported)]

    def _close(self, leader: Leader, now: records.Position) -> list[Event]:
        try:
            self._opened, self._left_out = self._open_sum(leader, now)
        except (Unreachable, KeyTrouble) as error:
            self._next_try = self._clock() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            raise ServiceError(f"round {now.round} waits for the proxy: {error}") from None
        except (WrongSum, _Refused) as error:
            what: What = "wrong_sum" if isinstance(error, WrongSum) else "sum_refused"
            with leader.writing() as link:
                return self._give_up(link, now, what, str(error))
        return super()._close(leader, now)

    def _open_sum(self, leader: Leader, now: records.Position) -> tuple[SummedReports, int]:
        """The sum of the round's updates, and how many were left out because the proxy could not
        open their seeds."""
        left_out: set[int] = set()
        terms = self._plan.terms
        with leader.reading() as link:
            found = records.model(link, now.round, terms.width)
        if found is None:
            raise ServiceError(f"the database lacks the model of round {now.round}")
        while True:
            with leader.reading() as link:
                total, senders, sealed = self._add_up(link, now, left_out)
            if len(senders) < self._link.min_devices:
                raise _Refused(
                    f"{len(senders):,} good submissions are left, and a sum needs "
                    f"{self._link.min_devices:,}; the proxy was not asked"
                )
            question = encode_question(terms, now.round, now.attempt, model_name(found[0]), sealed)
            answer = self._ask(question)
            if (answer.status, answer.reason) != (409, "undecryptable"):
                return self._read(total, answer), len(left_out)
            left_out |= {senders[at] for at in _which(answer, len(senders))}

    def _add_up(
        self, link: sa.Connection, now: records.Position, left_out: set[int]
    ) -> tuple[MaskedSum, list[int], list[Record]]:
        """Masked updates added up, whose they are, and their seeds in the same order."""
        terms = self._plan.terms
        largest = terms.largest_value * GRID
        total = MaskedSum(now.round, terms.n_rows, terms.width, self._link, largest)
        senders: list[int] = []
        sealed: list[Record] = []
        for part in records.bodies(link, now.round, now.attempt, _AT_ONCE):
            for number, body in part:
                if number in left_out:
                    continue
                message = decode_masked(body, terms, now.round, now.attempt)
                one = MaskedReports(now.round, np.array([number]), message.masked[None, :])
                total.add(one)
                senders.append(number)
                sealed.append(message.record)
        return total, senders, sealed

    def _read(self, total: MaskedSum, answer: Answer) -> SummedReports:
        """The opened sum, from the proxy's answer."""
        if answer.status in _SETTLED_ELSEWHERE or answer.reason == "other_terms":
            raise Unreachable(
                f"it answered with status {answer.status}, {answer.reason or 'no reason'}: "
                f"{answer.detail or 'nothing more'}; see whether it is the proxy of this "
                "federation and has its introduction"
            )
        if answer.status != 200:
            raise _Refused(
                f"the proxy refused with status {answer.status}, {answer.reason or 'no reason'}: "
                f"{answer.detail}"
            )
        try:
            told = decode_sum(answer.body)
        except MessageError as error:
            raise WrongSum(str(error)) from None
        opened = total.open(told)
        if self._plan.terms.counts_senders and not opened.counts_well():
            raise WrongSum("the sum that was opened does not count its senders")
        return opened

    def _fold(self, link: sa.Connection, server: Server, now: records.Position) -> dict[str, int]:
        opened, self._opened = self._opened, None
        if opened is None or opened.round != now.round:
            raise ServiceError(f"the sum of round {now.round} is not here")
        # Noise belongs to the sum and is not cut.
        server.fold(opened if self._link.noise else cut_sum(opened, self._plan.value_limit))
        return {"undecryptable": self._left_out} if self._left_out else {}

    # --- rounds without a sum ---------------------------------------------------------------------

    def _diverged(self, link: sa.Connection, now: records.Position) -> list[Event]:
        return self._give_up(link, now, "diverged", "folding would have made the model run off")

    def _give_up(
        self, link: sa.Connection, now: records.Position, what: What, why: str
    ) -> list[Event]:
        """Nothing of the round counts, and the next one begins from the same model."""
        found = records.model(link, now.round, self._plan.terms.width)
        if found is None:
            raise ServiceError(f"the database lacks the model of round {now.round}")
        items, changed = found
        over = self._end(link, now, "closing", "abandoned", "abandoned", what)
        records.drop_reports(link, now.round, now.attempt)
        memory = records.memory(link, now.round, len(items))
        records.save_model(link, now.round + 1, items, changed, memory)
        records.count_refusals(link, {what: 1})
        more = now.round + 1 < now.target
        opened = self._open(link, now.round + 1, 0) if more else None
        ended = replace(over, trouble=f"round {now.round} does not count: {why}")
        return [ended] if opened is None else [ended, opened]


def _which(answer: Answer, devices: int) -> list[int]:
    """The places that the proxy names; there is at least one."""
    named = answer.table().get("which")
    good = isinstance(named, list) and all(
        isinstance(at, int) and not isinstance(at, bool) and 0 <= at < devices for at in named
    )
    if not good or not named:
        raise _Refused("the proxy did not say which seeds it could not open")
    return list(named)
