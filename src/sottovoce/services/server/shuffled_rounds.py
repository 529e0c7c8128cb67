"""Rounds of a federation with a shuffler: the server asks nobody, knows nobody, and counts batches.

A round is over when every tier's batch is here, or at the deadline with at least one. It is never
tried again: what a device has reported counts towards its user's budget whatever becomes of it. A
batch that a shuffler of a chain had to drop is not waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from sottovoce.core.messages import Batch, BitCounts
from sottovoce.errors import ConfigError, Diverged, ServiceError
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
from sottovoce.stores import operating
from sottovoce.stores import server as records
from sottovoce.stores.amending import Waits
from sottovoce.stores.coordinator import Clock, Coordinator, Event, Plan, Verdict, What
from sottovoce.stores.database import (
    Database,
    Leader,
    batch_parts,
    batches,
    genuine,
    rounds,
    stamped,
)
from sottovoce.stores.keys import KEPT_ROUNDS, ReportKey, ReportKeys
from sottovoce.stores.server import RECEIPT_ROUNDS
from sottovoce.stores.server_folder import proxy_token
from sottovoce.wire.masked import mask_sum_bytes
from sottovoce.wire.refusals import Refused, read_or_refuse
from sottovoce.wire.sealing import SEALED_BYTES, key_id, report_info
from sottovoce.wire.shuffled import LONGEST_PART, BatchPart, decode_part
from sottovoce.wire.terms import Terms

# A batch comes in parts, so that neither side needs much memory. A part is stored once: what comes
# again, also after a restart, is known by its place and by the batch's own mark. Every function
# works within a transaction of the caller's.


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a tier's batch."""

    tier: int
    mark: bytes
    devices: int
    parts: int
    stored: int
    """Parts that are here."""
    reports: int
    """In these parts."""

    @property
    def dropped(self) -> bool:
        """Whether a shuffler on the way has dropped it."""
        return not self.parts

    @property
    def complete(self) -> bool:
        return self.stored == self.parts and not self.dropped


def accept(
    link: sa.Connection, part: BatchPart, reports_per_device: int, least: int | None = None
) -> bool:
    """Store a part of an open round, once; whether its batch is complete now. Raises, and leaves
    everything as it was, where the part does not count. A tier has one batch in a round: a
    shuffler that announces or begins another was set back to a copy. `least` is how many reports it
    has where a chain of shufflers may have left some out."""
    state = link.execute(
        sa.select(rounds.c.state)
        .where(rounds.c.round == part.round, rounds.c.attempt == 0)
        .with_for_update()
    ).scalar()
    there = head(link, part.round, part.tier)
    if there is not None and there.mark != part.mark:
        raise Refused("second_submission", "another batch of this tier was announced here")
    if there is not None and (there.complete or there.dropped):
        raise Refused("replay", "this tier's batch is complete")
    if state != "open":
        raise Refused("late", f"round {part.round} is closed; the batch did not count", status=409)
    if there is None:
        there = Head(part.tier, part.mark, part.devices, part.parts, 0, 0)
        link.execute(
            batches.insert().values(
                round=part.round,
                tier=part.tier,
                mark=part.mark,
                devices=part.devices,
                parts=part.parts,
                stored=0,
                reports=0,
            )
        )
    if (there.devices, there.parts) != (part.devices, part.parts):
        raise Refused("malformed", "the part contradicts those before it")
    if not part.body:
        return part.says_dropped
    if link.execute(sa.select(batch_parts.c.part).where(*_is(batch_parts, part))).first():
        raise Refused("replay", "this part is here already")
    stored, reports = there.stored + 1, there.reports + part.reports
    wanted = part.devices * reports_per_device
    enough = wanted if least is None else least
    if reports > wanted or (stored == part.parts and reports < enough):
        raise Refused("malformed", f"a batch has {reports_per_device} reports of each device")
    link.execute(
        batch_parts.insert().values(
            round=part.round,
            tier=part.tier,
            part=part.part,
            body=stamped(batch_parts.c.body, part.body, part.round, part.tier, part.part),
        )
    )
    link.execute(
        batches.update()
        .where(batches.c.round == part.round, batches.c.tier == part.tier)
        .values(stored=stored, reports=reports)
    )
    if stored < part.parts:
        return False
    link.execute(
        rounds.update()
        .where(rounds.c.round == part.round, rounds.c.attempt == 0)
        .values(reported=rounds.c.reported + reports // reports_per_device)
    )
    return True


def head(link: sa.Connection, round: int, tier: int) -> Head | None:
    found = [each for each in heads(link, round) if each.tier == tier]
    return found[0] if found else None


def heads(link: sa.Connection, round: int) -> list[Head]:
    """The batches of a round, complete or not, by tier."""
    rows = link.execute(sa.select(batches).where(batches.c.round == round).order_by(batches.c.tier))
    return [Head(r.tier, bytes(r.mark), r.devices, r.parts, r.stored, r.reports) for r in rows]


def bodies(link: sa.Connection, round: int, tier: int, parts: int) -> Iterator[bytes]:
    """The parts of a complete batch, one at a time."""
    for part in range(parts):
        place = (batch_parts.c.round == round, batch_parts.c.tier == tier)
        body = link.execute(
            sa.select(batch_parts.c.body).where(*place, batch_parts.c.part == part)
        ).scalar_one()
        yield genuine(batch_parts.c.body, body, round, tier, part)


def forget(link: sa.Connection, round: int) -> None:
    """They are part of the model, or do not count: only that there was a batch is still known, for
    a few rounds."""
    link.execute(batch_parts.delete().where(batch_parts.c.round <= round))
    link.execute(batches.delete().where(batches.c.round <= round - RECEIPT_ROUNDS))


def keys_in_use(link: sa.Connection, since: int) -> set[bytes]:
    """Public keys of the rounds from `since` on."""
    found = link.execute(
        sa.select(rounds.c.report_key).where(
            rounds.c.round >= since, rounds.c.report_key.is_not(None)
        )
    ).scalars()
    return {bytes(key) for key in found}


def _is(table: sa.Table, part: BatchPart) -> tuple[sa.ColumnElement[bool], ...]:
    return table.c.round == part.round, table.c.tier == part.tier, table.c.part == part.part


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
            complete = accept(link, part, self._release.max_reports, self._least(part))
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
    for head in heads(link, round):
        if not head.complete:
            continue

        def parts_of(tier: int = head.tier, parts: int = head.parts) -> Iterator[bytes]:
            return bodies(link, round, tier, parts)

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


_NOBODY = np.zeros(0, np.uint32)
_LOOK_SECONDS = 1.0


def coordinator_of(plan: Plan, clock: Clock, keys: Path) -> Coordinator:
    """The coordinator of a federation whose server has these keys."""
    if plan.proxied:
        return ShuffledCoordinator(plan, clock, ReportKeys(keys))
    if plan.terms.secure_sum is not None:
        # A client's libraries, without which other servers start sooner.
        from sottovoce.engines.helper_client import HelperClient
        from sottovoce.services.server.summed_rounds import SummedCoordinator

        helper = HelperClient(plan.terms.secure_sum, proxy_token(keys), mask_sum_bytes(plan.terms))
        return SummedCoordinator(plan, clock, helper.ask)
    if plan.terms.link.checking is not None:
        from sottovoce.services.server.checked_rounds import CheckedCoordinator

        return CheckedCoordinator.of(plan, clock, keys)
    return Coordinator(plan, clock)


class ShuffledCoordinator(Coordinator):
    """`Coordinator` where reports come in batches."""

    def __init__(self, plan: Plan, clock: Clock, keys: ReportKeys) -> None:
        super().__init__(plan, clock)
        release = plan.terms.reporting
        if release is None:
            raise ConfigError("only randomised reports go through a shuffler")
        self._release, self._keys = release, keys

    def skip_to(self, link: sa.Connection, round: int) -> None:
        super().skip_to(link, round)
        forget(link, round - 1)

    def _carried(self, link: sa.Connection, round: int) -> None:
        forget(link, round - 1)

    def _objection(self, terms: Terms) -> Waits | None:
        """All shufflers must follow the new terms before devices are asked to go by them."""
        from sottovoce.services.server.asking import not_followed

        return not_followed(terms)

    def tidy(self, link: sa.Connection) -> None:
        """Destroy the keys that none of the last few rounds was opened with."""
        since = records.position(link).round - KEPT_ROUNDS + 1
        used = keys_in_use(link, since)
        self._keys.destroy_unneeded(key_id(public) for public in used)

    def _verdict(self, link: sa.Connection, now: records.Position) -> Verdict | None:
        self._watch(now.round, now.attempt)
        there = heads(link, now.round)
        over = sum(head.complete or head.dropped for head in there)
        if over == len(self._release.tiers):
            return "goal"
        late = self._elapsed() - self._plan.rules.deadline_seconds
        begun = over < len(there)  # the rest of a batch is on its way
        return "deadline" if over and late >= (self._grace if begun else 0.0) else None

    def _all_in(self, link: sa.Connection, now: records.Position) -> bool:
        return True  # devices send to the shuffler; what it has here is what counts

    def seconds_left(self) -> float:
        # After the deadline the first batch that is complete ends the round.
        return super().seconds_left() or _LOOK_SECONDS

    def _due(self, link: sa.Connection, now: records.Position) -> bool:
        if now.state == "waiting":
            return self._ready(link, now.round)
        return super()._due(link, now)

    def _ready(self, link: sa.Connection, round: int) -> bool:
        enough = self._plan.rules.min_devices
        if operating.paused(link) is not None:
            return False
        return round > 0 or records.count_devices(link)[0] >= enough

    def _open(self, link: sa.Connection, round: int, attempt: int) -> Event | None:
        if self._makes_way(link) or not self._ready(link, round):
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
        counts, left_out = count_round(
            link, server, key, terms.federation, self._release.max_reports
        )
        if any(counts.reports):
            try:
                server.fold(counts)
            except Diverged:
                raise self._stuck(now) from None
        return dict(left_out)

    def _forget(self, link: sa.Connection, now: records.Position) -> None:
        forget(link, now.round)

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
        seconds, found = round(self._elapsed(), 3), heads(link, now.round)
        dropped = [head.tier for head in found if head.dropped]
        if dropped and not any(head.complete for head in found):
            outcome = what = "dropped"
        ended = {"selected": None, "missing": records.packed(_NOBODY), "outcome": outcome}
        if not records.move_round(
            link, now.round, now.attempt, before, after, **ended, seconds=seconds
        ):
            raise ServiceError(f"round {now.round} was ended by another process")
        notices = tuple(
            f"a shuffler dropped the batch of tier {tier}, of which fewer reports could be opened "
            "than its minimum of devices sends; nothing of it was counted"
            for tier in dropped
        )
        return Event(what, now.round, now.attempt, 0, now.reported, seconds, notices=notices)
