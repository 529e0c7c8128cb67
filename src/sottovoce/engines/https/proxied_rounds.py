"""Rounds of a federation with a proxy: the server asks nobody, knows nobody, and counts batches.

A round is over when every tier's batch is here, or at the deadline with at least one. It is never
tried again: what a device has reported counts towards its owner's budget whatever becomes of it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import sqlalchemy as sa

from sottovoce.engines.https import batches, records, roster
from sottovoce.engines.https.admissions import proxy_token
from sottovoce.engines.https.coordinator import Clock, Coordinator, Event, Plan, Verdict, What
from sottovoce.engines.https.database import Leader
from sottovoce.engines.https.masked_wire import sum_bytes
from sottovoce.engines.https.opening import count_round
from sottovoce.engines.https.report_keys import KEPT_ROUNDS, ReportKeys
from sottovoce.engines.https.sealing import key_id
from sottovoce.errors import ConfigError, Diverged, ServiceError
from sottovoce.parties.server import Server

_NOBODY = np.zeros(0, np.uint32)
_LOOK_SECONDS = 1.0


def coordinator_of(plan: Plan, clock: Clock, keys: Path) -> Coordinator:
    """The coordinator of a federation whose server has these keys."""
    if plan.proxied:
        return ProxiedCoordinator(plan, clock, ReportKeys(keys))
    if plan.terms.secure_sum is not None:
        # A client's libraries, without which other servers start sooner.
        from sottovoce.engines.https.summed_rounds import ProxyLine, SummedCoordinator

        line = ProxyLine(plan.terms.secure_sum, proxy_token(keys), sum_bytes(plan.terms))
        return SummedCoordinator(plan, clock, line.ask)
    return Coordinator(plan, clock)


class ProxiedCoordinator(Coordinator):
    """`Coordinator` where reports come in batches."""

    def __init__(self, plan: Plan, clock: Clock, keys: ReportKeys) -> None:
        super().__init__(plan, clock)
        release = plan.terms.reporting
        if release is None:
            raise ConfigError("only randomised reports go through a proxy")
        self._release, self._keys = release, keys

    def skip_to(self, link: sa.Connection, round: int) -> None:
        super().skip_to(link, round)
        batches.forget(link, round - 1)

    def tidy(self, link: sa.Connection) -> None:
        """Destroy the keys that none of the last few rounds was opened with."""
        since = records.position(link).round - KEPT_ROUNDS + 1
        used = batches.keys_in_use(link, since)
        self._keys.destroy_unneeded(key_id(public) for public in used)

    def _verdict(self, link: sa.Connection, now: records.Position) -> Verdict | None:
        self._watch(now.round, now.attempt)
        complete = sum(head.complete for head in batches.heads(link, now.round))
        if complete == len(self._release.tiers):
            return "goal"
        late = self._elapsed() >= self._plan.rules.deadline_seconds
        return "deadline" if late and complete else None

    def seconds_left(self) -> float:
        # After the deadline the first batch that is complete ends the round.
        return super().seconds_left() or _LOOK_SECONDS

    def _due(self, link: sa.Connection, now: records.Position) -> bool:
        if now.state == "waiting":
            return self._ready(link, now.round)
        return super()._due(link, now)

    def _ready(self, link: sa.Connection, round: int) -> bool:
        enough = self._plan.rules.min_devices
        return round > 0 or roster.count_devices(link)[0] >= enough

    def _open(self, link: sa.Connection, round: int, attempt: int) -> Event | None:
        if not self._ready(link, round):
            return None
        least = sum(tier.min_devices for tier in self._release.tiers)
        records.open_round(link, round, attempt, least, _NOBODY, self._keys.newest().public)
        self._watch(round, attempt)
        return Event("opened", round, attempt, 0)

    def _ended(self, leader: Leader, now: records.Position) -> list[Event]:
        # Opening takes a while, and nobody should be told meanwhile that the round is open.
        return [Event("closing", now.round, now.attempt, 0, now.reported)]

    def _fold(self, link: sa.Connection, server: Server, now: records.Position) -> dict[str, int]:
        terms = self._plan.terms
        key = self._keys.find(key_id(now.report_key))
        counts, left_out = count_round(link, server, key, terms.federation)
        if any(counts.reports):
            try:
                server.fold(counts)
            except Diverged:
                raise self._stuck(now) from None
        return dict(left_out)

    def _forget(self, link: sa.Connection, now: records.Position) -> None:
        batches.forget(link, now.round)

    def _diverged(self, link: sa.Connection, now: records.Position) -> list[Event]:
        raise self._stuck(now)

    def _stuck(self, now: records.Position) -> ServiceError:
        return ServiceError(
            f"folding round {now.round} would make the model run off to infinity; nothing was "
            "changed and nobody is asked to report again: stop the server, and start it with "
            f"--skip-to-round {now.round + 1} to leave the round out"
        )

    def _end(
        self,
        link: sa.Connection,
        now: records.Position,
        before: str,
        after: str,
        outcome: str,
        what: What,
    ) -> Event:
        seconds = round(self._elapsed(), 3)
        ended = {"selected": None, "missing": records.packed(_NOBODY), "outcome": outcome}
        if not records.move_round(
            link, now.round, now.attempt, before, after, **ended, seconds=seconds
        ):
            raise ServiceError(f"round {now.round} was ended by another process")
        return Event(what, now.round, now.attempt, 0, now.reported, seconds)
