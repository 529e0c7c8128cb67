"""Rounds of a federation with a shuffler: the server asks nobody, knows nobody, and counts batches.

A round is over when every tier's batch is here, or at the deadline with at least one. It is never
tried again: what a device has reported counts towards its user's budget whatever becomes of it. A
batch that a shuffler of a chain had to drop is not waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import sqlalchemy as sa

from sottovoce.core.messages import Batch, BitCounts
from sottovoce.errors import ConfigError
from sottovoce.parties.server import Server
from sottovoce.parties.shuffler import once
from sottovoce.privacy.reports import KReports
from sottovoce.services.kit.answers import (
    Receive,
    Scope,
    Send,
    answer,
    bears,
    content_length,
    discard,
    read_body,
)
from sottovoce.services.kit.application import BoundedExecutor
from sottovoce.services.kit.openers import Openers
from sottovoce.services.server.state import RoundState
from sottovoce.stores import batches
from sottovoce.stores import server as records
from sottovoce.stores.amending import Waits
from sottovoce.stores.collection import Collected, Collection, RoundNotes
from sottovoce.stores.coordinator import Plan
from sottovoce.stores.database import Database, Leader
from sottovoce.stores.keys import KEPT_ROUNDS, ReportKey, ReportKeys
from sottovoce.wire.refusals import Refused, read_or_refuse
from sottovoce.wire.sealing import SEALED_BYTES, key_id, report_info
from sottovoce.wire.shuffled import LONGEST_PART, BatchPart, decode_part
from sottovoce.wire.terms import Terms

_RECEIVED = 4
"""Parts that are received or wait for the disk; more are told to come back."""


class Collector:
    """One server process's. Parts are stored one after the other."""

    def __init__(
        self,
        release: KReports,
        token: str,
        database: Database,
        state: RoundState,
        *,
        body_seconds: float,
        moved: Callable[[], None],
        chained: bool = False,
    ) -> None:
        """`token` is the shuffler's, of a chain (`chained`) the last one's; `moved` is called when
        a batch is complete."""
        self._release, self._token, self._chained = release, token, chained
        self._database, self._state = database, state
        self._body_seconds, self._moved = body_seconds, moved
        self._executor = BoundedExecutor("the server", _RECEIVED)
        self._receiving = 0

    def follow(self, release: KReports) -> None:
        """Take batches by these rules from now on."""
        self._release = release

    def close(self) -> None:
        self._executor.close()

    async def take(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/batches: acknowledged when the part is on the disk."""
        if not bears(scope, self._token):
            if content_length(scope):
                await discard(receive)
            raise Refused("unknown_proxy", "this needs the token of the federation's shuffler")
        if self._receiving >= _RECEIVED:
            raise Refused("overload", "the server has too much to do; come back later")
        self._receiving += 1
        try:
            payload = await read_body(scope, receive, LONGEST_PART, self._body_seconds)
            part = read_or_refuse(decode_part, payload)
            del payload
            await self._executor(lambda: self._store(part))
        finally:
            self._receiving -= 1
        await answer(send, 204, [], b"")

    def _store(self, part: BatchPart) -> None:
        self._check(part)
        with self._database.writing() as link:
            if part.devices > records.count_keys(link):
                raise Refused("malformed", "a batch of more devices than have enrolled")
            complete = batches.accept(link, part, self._release.max_reports, self._least(part))
        if complete:
            self._moved()

    def _least(self, part: BatchPart) -> int | None:
        """Shufflers of a chain leave out what does not open or comes twice; never so much that the
        tier's minimum would not be there."""
        if not self._chained:
            return None
        return self._release.max_reports * self._release.tiers[part.tier].min_devices

    def _check(self, part: BatchPart) -> None:
        """Raises where no honest shuffler of this federation would send the part now."""
        tiers = self._release.tiers
        if part.tier >= len(tiers):
            raise Refused("malformed", f"the terms have {len(tiers)} tiers, numbered from 0")
        if part.devices < tiers[part.tier].min_devices:
            raise Refused("too_few", "a batch of fewer devices than the terms promise")
        most = part.devices * self._release.max_reports
        if part.parts > most:
            raise Refused("malformed", "a batch has more parts than reports")
        if part.says_dropped and not self._chained:
            raise Refused("malformed", "one shuffler opens nothing, and drops no batch so")
        now = self._state.now.position
        if part.round > now.round:  # another process may have moved on, and told the shuffler
            now = self._state.refresh().position
        if part.round > now.round:
            raise Refused("malformed", f"round {part.round} has not been opened")
        if part.round == now.round and now.report_key and part.key != key_id(now.report_key):
            raise Refused("wrong_key", "the reports are sealed to another key than the round's")


def count_round(
    link: sa.Connection, server: Server, key: ReportKey, federation: str, per_device: int
) -> tuple[BitCounts, Counter[str]]:
    """The counts of a round's complete batches, and how many reports were left out and why.

    Every report is opened by itself, and what is not a report of this round, or comes twice, is
    left out; what is missing of the `per_device` reports of each device was left out on the way. A
    part of a batch is in memory at a time, and a few bytes of each report to find those
    that come twice.
    """
    round, refused = server.round, Counter[str]()
    counts = server.count([])
    devices, reports, sums = list(counts.devices), list(counts.reports), counts.sums
    for head in batches.heads(link, round):
        if not head.complete:
            continue

        def parts_of(tier: int = head.tier, parts: int = head.parts) -> Iterator[bytes]:
            return batches.bodies(link, round, tier, parts)

        devices[head.tier] = head.devices
        # Nothing is missing where there is one shuffler.
        refused["missing"] += head.devices * per_device - head.reports
        info = report_info(key.public, federation=federation, round=round, tier=head.tier)
        openers = Openers(key.private, info, SEALED_BYTES)
        with openers.helped(head.reports):
            for sealed in once(parts_of, head.reports, SEALED_BYTES, refused):
                plain, bad = openers.open(sealed)
                opened = np.frombuffer(plain, "<u4").astype(np.uint32)
                refused["undecryptable"] += bad
                known = opened >> np.uint32(1) < sums.shape[1]
                refused["out_of_range"] += int((~known).sum())
                part = Batch(round, head.tier, head.devices, opened[known])
                sums += server.count([part]).sums
                reports[head.tier] += len(part.reports)
    return BitCounts(round, tuple(devices), tuple(reports), sums), +refused


class ShuffledBatches(Collection):
    """Randomised reports that come in batches, from devices that the server cannot tell apart."""

    def __init__(self, plan: Plan, keys: ReportKeys) -> None:
        release = plan.terms.reporting
        if release is None:
            raise ConfigError("only randomised reports go through a shuffler")
        self._terms, self._release, self._keys = plan.terms, release, keys

    def objection(self, terms: Terms) -> Waits | None:
        """All shufflers must follow the new terms before devices are asked to go by them."""
        from sottovoce.services.server.asking import not_followed

        return not_followed(terms)

    def tidy(self, link: sa.Connection) -> None:
        """Destroy the keys that none of the last few rounds was opened with."""
        since = records.position(link).round - KEPT_ROUNDS + 1
        used = batches.keys_in_use(link, since)
        self._keys.destroy_unneeded(key_id(public) for public in used)

    def report_key(self) -> bytes:
        return self._keys.newest().public

    def collect(self, leader: Leader, now: records.Position, server: Server) -> Collected:
        key, federation = self._keys.find(key_id(now.report_key)), self._terms.federation
        with leader.reading() as link:
            counts, out = count_round(link, server, key, federation, self._release.max_reports)
        return Collected(counts if any(counts.reports) else None, dict(out))

    def over(self, link: sa.Connection, now: records.Position) -> RoundNotes:
        found = batches.heads(link, now.round)
        dropped = [head.tier for head in found if head.dropped]
        notices = tuple(
            f"a shuffler dropped the batch of tier {tier}, of which fewer reports could be opened "
            "than its minimum of devices sends; nothing of it was counted"
            for tier in dropped
        )
        return RoundNotes(notices, bool(dropped) and not any(head.complete for head in found))

    def forget(self, link: sa.Connection, round: int) -> None:
        batches.forget(link, round)
