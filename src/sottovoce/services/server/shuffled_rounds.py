"""Rounds of a federation with a proxy: the server asks nobody, knows nobody, and counts batches.

A round is over when every tier's batch is here, or at the deadline with at least one. It is never
tried again: what a device has reported counts towards its owner's budget whatever becomes of it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from sottovoce.core.messages import Batch, BitCounts
from sottovoce.errors import ConfigError, Diverged, ServiceError
from sottovoce.parties.server import Server
from sottovoce.stores import server as records
from sottovoce.stores import server as roster
from sottovoce.stores.coordinator import Clock, Coordinator, Event, Plan, Verdict, What
from sottovoce.stores.database import Leader, batch_parts, batches, genuine, rounds, stamped
from sottovoce.stores.keys import KEPT_ROUNDS, ReportKey, ReportKeys
from sottovoce.stores.server import RECEIPT_ROUNDS
from sottovoce.stores.server_folder import proxy_token
from sottovoce.wire.masked import mask_sum_bytes
from sottovoce.wire.refusals import Refused
from sottovoce.wire.sealing import KEY_BYTES, SEALED_BYTES, key_id, open_reports
from sottovoce.wire.shuffled import BatchPart

# Batches are kept until their round is over. Every function works within a transaction of the
# caller's. A part is stored once: what comes again, also after a restart, is known by its place and
# by the batch's own mark.


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
    def complete(self) -> bool:
        return self.stored == self.parts


def accept(link: sa.Connection, part: BatchPart, reports_per_device: int) -> bool:
    """Store a part of an open round, once; whether its batch is complete now. Raises, and leaves
    everything as it was, where the part does not count. A batch that was begun and never completed
    gives way to another one."""
    state = link.execute(
        sa.select(rounds.c.state)
        .where(rounds.c.round == part.round, rounds.c.attempt == 0)
        .with_for_update()
    ).scalar()
    there = head(link, part.round, part.tier)
    if there is not None and there.complete and (state == "open" or there.mark == part.mark):
        raise Refused("replay", "this tier's batch is complete")
    if state != "open":
        raise Refused("late", f"round {part.round} is closed; the batch did not count", status=409)
    if there is not None and there.mark != part.mark:
        _drop(link, part.round, part.tier)
        there = None
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
    if link.execute(sa.select(batch_parts.c.part).where(*_is(batch_parts, part))).first():
        raise Refused("replay", "this part is here already")
    stored, reports = there.stored + 1, there.reports + part.reports
    wanted = part.devices * reports_per_device
    if reports > wanted or (stored == part.parts and reports != wanted):
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
        .values(reported=rounds.c.reported + part.devices)
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


def _drop(link: sa.Connection, round: int, tier: int) -> None:
    for table in (batch_parts, batches):
        link.execute(table.delete().where(table.c.round == round, table.c.tier == tier))


def _is(table: sa.Table, part: BatchPart) -> tuple[sa.ColumnElement[bool], ...]:
    return table.c.round == part.round, table.c.tier == part.tier, table.c.part == part.part


# Processes that open sealed reports side by side, because opening holds the interpreter and a
# large batch would keep one core busy for minutes. A helper gets the private key through its
# standard input, has it in memory alone, writes nothing anywhere, and ends when that input does:
# also where this process is killed.

WORTH_IT = 50_000
"""Reports from which on helpers are started; fewer are opened here before those would be up."""
MOST_HELPERS = 16
_CHUNK = 4096 * SEALED_BYTES
_SETTING = struct.Struct(f"<{KEY_BYTES}sIBI")
_LENGTH, _OPENED = struct.Struct("<I"), struct.Struct("<II")
_NICE = 5
"""Requests come first."""


class Openers:
    """Opens the reports of one tier's batch."""

    def __init__(self, private: bytes, *, federation: str, round: int, tier: int) -> None:
        self._private, self._federation = private, federation
        self._round, self._tier = round, tier
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        self._pool: ThreadPoolExecutor | None = None

    @contextlib.contextmanager
    def helped(self, reports: int, helpers: int | None = None) -> Iterator[Openers]:
        """Within, with helpers where so many reports are worth it; one for each core."""
        cores = len(_cores()) if helpers is None else helpers
        count = min(cores, MOST_HELPERS) if reports >= WORTH_IT or helpers is not None else 0
        if count < 2 and helpers is None:
            yield self
            return
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                helper = self._start()
                if helper is not None:
                    stack.callback(_end, helper)
                self._idle.put(helper)
            self._pool = stack.enter_context(ThreadPoolExecutor(count, "opener"))
            yield self

    def open(self, sealed: bytes) -> tuple[NDArray[np.uint32], int]:
        """As `open_reports`."""
        if self._pool is None:
            return self._here(sealed)
        chunks = [sealed[at : at + _CHUNK] for at in range(0, len(sealed), _CHUNK)]
        found = list(self._pool.map(self._by_helper, chunks))
        values = [np.zeros(0, np.uint32), *(opened for opened, _ in found)]
        return np.concatenate(values), sum(refused for _, refused in found)

    def _here(self, sealed: bytes) -> tuple[NDArray[np.uint32], int]:
        place = {"round": self._round, "tier": self._tier}
        return open_reports(sealed, self._private, federation=self._federation, **place)

    def _by_helper(self, sealed: bytes) -> tuple[NDArray[np.uint32], int]:
        helper = self._idle.get()
        try:
            found = None if helper is None else _asked(helper, sealed)
            if found is None:  # it could not be started, or was killed
                helper = None
                found = self._here(sealed)
            return found
        finally:
            self._idle.put(helper)

    def _start(self) -> subprocess.Popen[bytes] | None:
        name = self._federation.encode()
        try:
            helper = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return None
        head = _SETTING.pack(self._private, self._round, self._tier, len(name))
        if helper.stdin is not None:
            with contextlib.suppress(OSError):
                helper.stdin.write(head + name)
                helper.stdin.flush()
        return helper


def _cores() -> Collection[int]:
    """Those that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return range(os.cpu_count() or 1) if affinity is None else affinity(0)


def _asked(helper: subprocess.Popen[bytes], sealed: bytes) -> tuple[NDArray[np.uint32], int] | None:
    """What a helper made of a chunk; None where it is gone."""
    if helper.stdin is None or helper.stdout is None:
        return None
    try:
        helper.stdin.write(_LENGTH.pack(len(sealed)) + sealed)
        helper.stdin.flush()
        head = helper.stdout.read(_OPENED.size)
        if len(head) < _OPENED.size:
            return None
        count, refused = _OPENED.unpack(head)
        body = helper.stdout.read(4 * count)
    except OSError:
        return None
    if len(body) < 4 * count or (count + refused) * SEALED_BYTES != len(sealed):
        return None
    return np.frombuffer(body, "<u4").astype(np.uint32), refused


def _end(helper: subprocess.Popen[bytes]) -> None:
    for pipe in (helper.stdin, helper.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        helper.wait(timeout=5)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.wait()


def _help(source: IO[bytes], sink: IO[bytes]) -> None:
    """A helper's whole life."""
    private, round, tier, length = _SETTING.unpack(source.read(_SETTING.size))
    federation = source.read(length).decode()
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        (size,) = _LENGTH.unpack(head)
        sealed = source.read(size)
        if len(sealed) < size:
            return
        opened, refused = open_reports(
            sealed, private, federation=federation, round=round, tier=tier
        )
        sink.write(_OPENED.pack(len(opened), refused) + opened.astype("<u4").tobytes())
        sink.flush()


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(OSError, struct.error):
        _help(sys.stdin.buffer, sys.stdout.buffer)


# From the sealed batches of a round to counts: every report is opened by itself, and what is not
# a report of this round, or comes twice, is left out and counted. A part of a batch is in memory
# at a time, and a few bytes of each report to find those that come twice, of so many reports at
# once.

AT_ONCE = 1 << 24
"""Reports among which duplicates are looked for at once."""

Bodies = Callable[[], Iterator[bytes]]
"""The parts of a batch from the first one on, each time it is called."""


def count_round(
    link: sa.Connection, server: Server, key: ReportKey, federation: str
) -> tuple[BitCounts, Counter[str]]:
    """The counts of a round's complete batches, and how many reports were left out and why."""
    round, refused = server.round, Counter[str]()
    counts = server.count([])
    devices, reports, sums = list(counts.devices), list(counts.reports), counts.sums
    for head in heads(link, round):
        if not head.complete:
            continue

        def parts_of(tier: int = head.tier, parts: int = head.parts) -> Iterator[bytes]:
            return bodies(link, round, tier, parts)

        devices[head.tier] = head.devices
        openers = Openers(key.private, federation=federation, round=round, tier=head.tier)
        with openers.helped(head.reports):
            for sealed in _once(parts_of, head.reports, refused):
                opened, bad = openers.open(sealed)
                refused["undecryptable"] += bad
                known = opened >> np.uint32(1) < sums.shape[1]
                refused["out_of_range"] += int((~known).sum())
                part = Batch(round, head.tier, head.devices, opened[known])
                sums += server.count([part]).sums
                reports[head.tier] += len(part.reports)
    return BitCounts(round, tuple(devices), tuple(reports), sums), +refused


def _once(bodies: Bodies, reports: int, refused: Counter[str]) -> Iterator[bytes]:
    """The parts of a batch, of which each sealed report is there once."""
    twice = _repeated(bodies, reports)
    seen: set[int] = set()
    for body in bodies():
        if not len(twice):
            yield body
            continue
        table = np.frombuffer(body, np.uint8).reshape(-1, SEALED_BYTES)
        marks, keep = _marks(table), np.ones(len(table), np.bool_)
        for at in np.flatnonzero(np.isin(marks, twice)):
            keep[at] = int(marks[at]) not in seen
            seen.add(int(marks[at]))
        refused["duplicate"] += int((~keep).sum())
        yield table[keep].tobytes()


def _repeated(bodies: Bodies, reports: int) -> NDArray[np.uint64]:
    """Marks that more than one report has."""
    shares = -(-reports // AT_ONCE)
    found = [np.zeros(0, np.uint64)]
    for share in range(shares):
        marks = []
        for body in bodies():
            all_marks = _marks(np.frombuffer(body, np.uint8).reshape(-1, SEALED_BYTES))
            marks.append(all_marks[all_marks % np.uint64(shares) == share])
        values, times = np.unique(np.concatenate(marks), return_counts=True)
        found.append(values[times > 1])
    return np.concatenate(found)


def _marks(table: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The first bytes of each report's ephemeral key, which nobody draws twice."""
    return np.ascontiguousarray(table[:, :8]).view("<u8")[:, 0]


_NOBODY = np.zeros(0, np.uint32)
_LOOK_SECONDS = 1.0


def coordinator_of(plan: Plan, clock: Clock, keys: Path) -> Coordinator:
    """The coordinator of a federation whose server has these keys."""
    if plan.proxied:
        return ProxiedCoordinator(plan, clock, ReportKeys(keys))
    if plan.terms.secure_sum is not None:
        # A client's libraries, without which other servers start sooner.
        from sottovoce.services.server.summed_rounds import ProxyLine, SummedCoordinator

        line = ProxyLine(plan.terms.secure_sum, proxy_token(keys), mask_sum_bytes(plan.terms))
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
        forget(link, round - 1)

    def tidy(self, link: sa.Connection) -> None:
        """Destroy the keys that none of the last few rounds was opened with."""
        since = records.position(link).round - KEPT_ROUNDS + 1
        used = keys_in_use(link, since)
        self._keys.destroy_unneeded(key_id(public) for public in used)

    def _verdict(self, link: sa.Connection, now: records.Position) -> Verdict | None:
        self._watch(now.round, now.attempt)
        complete = sum(head.complete for head in heads(link, now.round))
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
        seconds = round(self._elapsed(), 3)
        ended = {"selected": None, "missing": records.packed(_NOBODY), "outcome": outcome}
        if not records.move_round(
            link, now.round, now.attempt, before, after, **ended, seconds=seconds
        ):
            raise ServiceError(f"round {now.round} was ended by another process")
        return Event(what, now.round, now.attempt, 0, now.reported, seconds)
