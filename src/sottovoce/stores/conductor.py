"""What a conductor of Flower keeps: rounds, models and refusals as the server does, in tables of
the same form (`stores/database.py`), and besides which gateway answers for which devices.

Whatever is killed and whenever, the file says which round was folded last, from which devices, and
which devices the open round asks. `flower-status.json` beside it is for onlookers.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.dialects import sqlite

from sottovoce.core.messages import ModelView
from sottovoce.errors import FolderInUse, RunError, UsageError
from sottovoce.parties.server import Offered
from sottovoce.stores import operating, sums, versions
from sottovoce.stores import server as records
from sottovoce.stores.allotment import Ranges, overlap, show_ranges
from sottovoce.stores.database import (
    Database,
    gateway_devices,
    gateway_sums,
    gateways,
    genuine,
    of_attempt,
    rounds,
    stamped,
)
from sottovoce.stores.locking import is_locked, try_lock
from sottovoce.stores.private import private_file
from sottovoce.stores.server import PastRound

FILE = "flower.db"
LOCK = "flower.lock"
STATUS = "flower-status.json"
_UNDECRYPTABLE = "undecryptable"


@dataclass(frozen=True, slots=True)
class ConductedRound:
    """The devices that the open round asks. Kept, so that a new run asks the same."""

    round: int
    attempt: int
    goal: int
    numbers: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True, slots=True, repr=False)
class MaskedPart:
    """What a node has sent in the open round of a secure sum."""

    place: int
    """In the order in which they came."""
    numbers: NDArray[np.int64]
    """The devices that it was asked for."""
    devices: int
    """How many of them are in it."""
    body: bytes


@dataclass(frozen=True, slots=True, repr=False)
class Saved:
    round: int
    attempt: int
    items: NDArray[np.float32]
    changed: NDArray[np.int64]
    """For each item the version in which its row last changed."""


class Checkpoint:
    """Opened by one conductor for writing; anyone may open it for reading."""

    def __init__(self, folder: Path, *, readonly: bool = False) -> None:
        path = folder / FILE
        if readonly and not path.exists():
            raise RunError(f"{folder} holds no Flower run yet")
        self._database = Database.sqlite(path)
        if readonly:
            self._database.require()
        else:
            self._database.create()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def _reading(self) -> AbstractContextManager[sa.Connection]:
        return self._database.reading()

    def _writing(self) -> AbstractContextManager[sa.Connection]:
        return self._database.writing()

    # --- the model --------------------------------------------------------------------------------

    def load(self) -> Saved | None:
        with self._reading() as link:
            now = records.position(link)
            found = records.model(link, now.round, 1)
        if found is None:
            return None
        items, changed = found
        return Saved(
            now.round, now.attempt, items.reshape(len(changed), -1), changed.astype(np.int64)
        )

    def memory(self, n_items: int) -> NDArray[np.float32]:
        """What the server keeps to itself beside the model; without columns where it is nothing."""
        with self._reading() as link:
            return records.memory(link, records.position(link).round, n_items)

    def published(self, n_items: int) -> tuple[ModelView | None, list[Mapping[str, Any]]]:
        """The version to recommend by, where that is not always the newest model, and those that
        were offered last."""
        with self._reading() as link:
            number = versions.published(link)
            found = None if number is None else records.model(link, number, 1)
            offered: list[Mapping[str, Any]] = [
                version.offered.to_table() for version in versions.all_of(link)
            ]
        if number is None or found is None:
            return None, offered
        return ModelView(number, found[0].reshape(n_items, -1)), offered

    def begin(self, items: NDArray[np.float32], terms: str) -> None:
        """The first model. `terms` is their digest: another federation is refused later."""
        with self._writing() as link:
            records.set_fact(link, "terms", terms)
            records.save_model(link, 0, items, np.zeros(len(items), np.int32))

    def terms(self) -> str | None:
        with self._reading() as link:
            return records.fact(link, "terms")

    def target(self) -> int:
        """Rounds to run, as far as an operator has said so here."""
        with self._reading() as link:
            return records.position(link).target

    def raise_target(self, rounds: int) -> None:
        """A run that holds goes on to this round; it never falls."""
        with self._writing() as link:
            records.raise_target(link, rounds)

    # --- the open round ---------------------------------------------------------------------------

    def open_round(self) -> ConductedRound | None:
        with self._reading() as link:
            now = records.position(link)
            numbers = records.selected(link, now.round, now.attempt)
        if now.state not in ("open", "closing") or numbers is None:
            return None
        return ConductedRound(now.round, now.attempt, now.goal, numbers.astype(np.int64))

    def open(self, opened: ConductedRound) -> None:
        """Durable before the first device is asked. A round that is open already asks more."""
        place = opened.round, opened.attempt
        with self._writing() as link:
            now = records.position(link)
            if now.state != "open":
                records.open_round(link, *place, opened.goal, opened.numbers)
                return
            records.move_round(
                link,
                *place,
                "open",
                "open",
                selected=stamped(rounds.c.selected, records.packed(opened.numbers), *place),
                asked=len(opened.numbers),
                goal=opened.goal,
            )

    def keep_masked(self, numbers: NDArray[np.int64], devices: int, body: bytes) -> None:
        """Durable before it counts: what has left is not sent a second time."""
        with self._writing() as link:
            at = self._here(link)
            found = link.execute(
                sa.select(sa.func.max(gateway_sums.c.place)).where(*of_attempt(gateway_sums, *at))
            ).scalar()
            key = (*at, 0 if found is None else int(found) + 1)
            link.execute(
                gateway_sums.insert().values(
                    round=key[0],
                    attempt=key[1],
                    place=key[2],
                    devices=devices,
                    numbers=stamped(gateway_sums.c.numbers, records.packed(numbers), *key),
                    body=stamped(gateway_sums.c.body, body, *key),
                )
            )

    def masked(self) -> list[MaskedPart]:
        """What nodes have sent in the open round."""
        with self._reading() as link:
            here = of_attempt(gateway_sums, *self._here(link))
            rows = link.execute(
                sa.select(gateway_sums).where(*here).order_by(gateway_sums.c.place)
            ).all()
        found = []
        for row in rows:
            key = row.round, row.attempt, row.place
            numbers = records.unpacked(genuine(gateway_sums.c.numbers, row.numbers, *key))
            body = genuine(gateway_sums.c.body, row.body, *key)
            found.append(MaskedPart(row.place, numbers.astype(np.int64), row.devices, body))
        return found

    def leave_out(self, part: MaskedPart) -> None:
        """It is not summed with the others, and its devices are not asked again in the round."""
        with self._writing() as link:
            at = self._here(link)
            place = gateway_sums.c.place == part.place
            link.execute(gateway_sums.delete().where(*of_attempt(gateway_sums, *at), place))
            sums.leave_out(link, *at, dict.fromkeys(part.numbers.tolist(), _UNDECRYPTABLE))

    def left_out(self) -> NDArray[np.int64]:
        """The devices that were left out of the open round."""
        with self._reading() as link:
            return np.array(list(sums.who_is_out(link, *self._here(link))), dtype=np.int64)

    def start_closing(self, opened: ConductedRound) -> None:
        """From now on nothing more comes into the open round, and what is there is summed: the
        helper answers for one set alone."""
        with self._writing() as link:
            records.move_round(link, opened.round, opened.attempt, "open", "closing")

    def reopen(self) -> None:
        """Wait for more in the round that was closing: the helper was asked for no sum."""
        with self._writing() as link:
            records.move_round(link, *self._here(link), "closing", "open")

    def is_closing(self) -> bool:
        with self._reading() as link:
            return records.position(link).state == "closing"

    # --- how rounds end ---------------------------------------------------------------------------

    def close_round(
        self,
        record: PastRound,
        counted: NDArray[np.int64],
        items: NDArray[np.float32],
        changed: NDArray[np.int64],
        memory: NDArray[np.float32] | None = None,
        offered: Sequence[Offered] = (),
    ) -> None:
        """The round was folded: model, who was counted and the log move together."""
        with self._writing() as link:
            self._end(link, record, "closed")
            known = max(records.kept_versions(link), default=-1)
            for one in offered:
                if one.version > known:
                    versions.keep(link, one, records.moment())
            records.save_model(link, record.round + 1, items, changed.astype(np.int32), memory)
            here = {"round": record.round, "attempt": record.attempt}
            for part in records.in_parts(counted.tolist()):
                number = gateway_devices.c.number.in_(part)
                link.execute(gateway_devices.update().where(number).values(**here))

    def abandon_round(self, record: PastRound) -> None:
        with self._writing() as link:
            self._end(link, record, "abandoned")

    def give_up_round(self, record: PastRound, after: int) -> None:
        """Nothing of the round counts, and a later one begins from the same model."""
        with self._writing() as link:
            found = records.model(link, record.round, 1)
            if found is None:
                raise RunError(f"the checkpoint lacks the model of round {record.round}")
            memory = records.memory(link, record.round, len(found[1]))
            self._end(link, record, "abandoned")
            records.save_model(link, after, *found, memory)

    def _end(self, link: sa.Connection, record: PastRound, state: str) -> None:
        place, now = (record.round, record.attempt), records.position(link)
        records.move_round(
            link,
            *place,
            now.state,
            state,
            selected=None,
            missing=records.packed(np.array(record.missing, np.uint32)),
            outcome=record.outcome,
            asked=record.asked,
            reported=record.reported,
            seconds=record.seconds,
        )
        link.execute(gateway_sums.delete().where(gateway_sums.c.round <= record.round))

    def rounds(self, last: int | None = None) -> list[PastRound]:
        """How rounds ended, oldest first."""
        with self._reading() as link:
            return records.past_rounds(link, last)

    def opened(self) -> str | None:
        """When the open round was (UTC)."""
        with self._reading() as link:
            is_open = records.position(link).state in ("open", "closing")
            return operating.last_times(link)[0] if is_open else None

    def last_ended(self) -> str | None:
        """When the last attempt at a round did (UTC)."""
        with self._reading() as link:
            return operating.last_times(link)[1]

    def outcomes(self) -> dict[str, int]:
        """How many attempts ended in which way."""
        over = rounds.c.missing.is_not(None)
        query = sa.select(rounds.c.outcome, sa.func.count()).where(over).group_by(rounds.c.outcome)
        with self._reading() as link:
            return {str(outcome): int(many) for outcome, many in link.execute(query)}

    def refuse(self, reason: str) -> None:
        """Count something that was turned away."""
        with self._writing() as link:
            records.count_refusals(link, {reason: 1})

    def refused(self) -> dict[str, int]:
        with self._reading() as link:
            return dict(sorted(records.refused(link).items()))

    def size(self) -> int:
        """Bytes that it takes."""
        with self._reading() as link:
            return self._database.size(link)

    # --- gateways ---------------------------------------------------------------------------------

    def counted(self, node: str) -> tuple[int, int] | None:
        """Round and attempt of this node's last report that was counted."""
        table = gateway_devices.c
        with self._reading() as link:
            row = link.execute(
                sa.select(table.round, table.attempt)
                .where(table.node == node, table.round.is_not(None))
                .order_by(table.round.desc(), table.attempt.desc())
                .limit(1)
            ).one_or_none()
        return None if row is None else (int(row.round), int(row.attempt))

    def claim(self, node: str, numbers: NDArray[np.int64]) -> None:
        """Remember that this node answered for these devices, and no other does."""
        if not len(numbers):
            return
        row = sqlite.insert(gateway_devices)
        row = row.on_conflict_do_update(
            index_elements=[gateway_devices.c.number], set_={"node": row.excluded.node}
        )
        with self._writing() as link:
            link.execute(row, [{"number": number, "node": node} for number in numbers.tolist()])

    def allot(self, nodes: Mapping[str, tuple[str, Ranges]]) -> None:
        """From now on each of these nodes (with its name) has these numbers and no others, and
        nobody else has them. With no numbers a node is released. All of it is done, or nothing."""
        with self._writing() as link:
            link.execute(gateways.delete().where(gateways.c.node.in_(list(nodes))))
            for node, (name, ranges) in nodes.items():
                self._allot(link, node, name, ranges)

    def _allot(self, link: sa.Connection, node: str, name: str, ranges: Ranges) -> None:
        for called, theirs in _allotted(link).values():
            common = overlap(ranges, theirs)
            if common is not None:
                raise UsageError(
                    f"device numbers {show_ranges((common,))} are those of the node {called}; "
                    "give other ones, or release that node first"
                )
        if ranges:
            link.execute(
                gateways.insert(),
                [{"first": a, "last": b, "node": node, "name": name} for a, b in ranges],
            )
        # What was said of a device under another node does not hold under the next.
        number = gateway_devices.c.number
        own = sa.or_(sa.false(), *(number.between(first, last) for first, last in ranges))
        link.execute(gateway_devices.delete().where((gateway_devices.c.node == node) != own))

    def allotted(self) -> dict[str, tuple[str, Ranges]]:
        """Name and numbers of every node that was given some, in the order of the numbers."""
        with self._reading() as link:
            return _allotted(link)

    def _here(self, link: sa.Connection) -> tuple[int, int]:
        now = records.position(link)
        return now.round, now.attempt


def _allotted(link: sa.Connection) -> dict[str, tuple[str, Ranges]]:
    found: dict[str, tuple[str, Ranges]] = {}
    for row in link.execute(sa.select(gateways).order_by(gateways.c.first)):
        before = found.get(row.node, (row.name, ()))[1]
        found[row.node] = row.name, (*before, (row.first, row.last))
    return found


@contextmanager
def only_one(folder: Path, seconds: float = 30.0) -> Iterator[None]:
    """One conductor per folder. The one of a run that was cut off may need a moment to end."""
    end = time.monotonic() + seconds
    while (lock := try_lock(folder / LOCK)) is None:
        if time.monotonic() >= end:
            raise FolderInUse(f"{folder} is in use by another run")
        time.sleep(0.2)
    with lock:
        yield


def conducted(folder: Path) -> bool:
    """Whether a conductor is at work on this folder."""
    return is_locked(folder / LOCK)


def write_status(folder: Path, status: Mapping[str, Any]) -> None:
    """Replace the status file in one step; a reader never sees half of it."""
    partial = folder / f".{STATUS}.{os.getpid()}"
    private_file(partial).write_text(json.dumps(status), encoding="utf-8")
    partial.replace(folder / STATUS)


def read_status(folder: Path) -> dict[str, Any]:
    """What the conductor said last; empty where it has not said anything yet."""
    try:
        status = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}
