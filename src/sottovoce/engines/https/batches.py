"""Batches of sealed reports, as the proxy hands them over and as the server keeps them until their
round is over. Every function works within a transaction of the caller's.

On the wire a batch comes in parts, so that neither side needs much memory. A part is stored once:
what comes again, also after a restart, is known by its place and by the batch's own mark.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from sottovoce.engines.https.database import batch_parts, batches, genuine, rounds, stamped
from sottovoce.engines.https.records import RECEIPT_ROUNDS
from sottovoce.engines.https.refusals import Refused
from sottovoce.engines.https.sealing import KEY_ID_BYTES, SEALED_BYTES

PART_BYTES = 8 << 20
"""Most bytes of sealed reports in one part."""
_HEAD = struct.Struct(f"<4sIB{KEY_ID_BYTES}sIIHII16s")
_MAGIC = b"SVB1"
LONGEST_PART = _HEAD.size + PART_BYTES


@dataclass(frozen=True, slots=True, repr=False)
class Part:
    """One part of a batch."""

    round: int
    tier: int
    key: bytes
    """Name of the key to which its reports are sealed."""
    devices: int
    """Of the whole batch."""
    part: int
    parts: int
    mark: bytes
    """The batch's own, drawn by the proxy."""
    body: bytes

    @property
    def reports(self) -> int:
        return len(self.body) // SEALED_BYTES

    def __repr__(self) -> str:
        return f"<Part {self.part} of {self.parts} round={self.round} tier={self.tier}, redacted>"


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


def encode_part(part: Part) -> bytes:
    head = _HEAD.pack(
        _MAGIC,
        part.round,
        part.tier,
        part.key,
        part.devices,
        part.reports,
        SEALED_BYTES,
        part.part,
        part.parts,
        part.mark,
    )
    return head + part.body


def decode_part(payload: bytes) -> Part:
    """Raises where it is no part of a batch; whether it is wanted is not looked at."""
    if payload[:3] == _MAGIC[:3] and payload[3:4] != _MAGIC[3:]:
        raise Refused("version", "this is a batch of another release of Sottovoce")
    if len(payload) < _HEAD.size or payload[:4] != _MAGIC:
        raise Refused("malformed", "this is no part of a batch")
    _, round, tier, key, devices, count, size, part, parts, mark = _HEAD.unpack_from(payload)
    if size != SEALED_BYTES:
        raise Refused("malformed", f"a sealed report has {SEALED_BYTES} bytes, not {size}")
    if count * size != len(payload) - _HEAD.size:
        raise Refused("malformed", "the part has another length than it says")
    if not 0 <= part < parts or not count:
        raise Refused("malformed", "a part is empty, or beyond the last one")
    return Part(round, tier, key, devices, part, parts, mark, payload[_HEAD.size :])


def accept(link: sa.Connection, part: Part, reports_per_device: int) -> bool:
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


def _is(table: sa.Table, part: Part) -> tuple[sa.ColumnElement[bool], ...]:
    return table.c.round == part.round, table.c.tier == part.tier, table.c.part == part.part
