"""Batches of randomised reports, as a server keeps them until they are counted.

A batch comes in parts, so that neither side needs much memory. A part is stored once: what comes
again, also after a restart, is known by its place and by the batch's own mark. Every function works
within a transaction of the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from sottovoce.stores.database import batch_parts, batches, genuine, rounds, stamped
from sottovoce.stores.server import RECEIPT_ROUNDS
from sottovoce.wire.refusals import Refused
from sottovoce.wire.shuffled import BatchPart


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
