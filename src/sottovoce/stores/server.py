"""What the server keeps, and how it asks for it. Every function works within a transaction of the
caller's; none of them decides when a round ends."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.dialects import postgresql, sqlite

from sottovoce.errors import MessageError, ServiceError
from sottovoce.stores.database import (
    devices,
    genuine,
    meta,
    models,
    objections,
    of_attempt,
    refusals,
    round_times,
    rounds,
    shut_out,
    stamped,
    submissions,
)

T = TypeVar("T")

ROSTER = "roster"
"""A fact, which changes whenever somebody was shut out or let in again."""
RECEIPT_ROUNDS = 3
"""For so many rounds it is remembered whose submission was accepted."""
AT_ONCE = 500
"""Rows that are asked for or written together."""
PUBLISHED = "published"
"""Key of the fact that names the version by which devices recommend, if that is not always the
newest model."""
LAST_CALL = "last_call"
"""The fact with the attempt in which no device begins a report any more (`call_last`)."""
VERSION = "version:"
"""Key of facts of versions that are kept, in front of their number."""

_OVER = ("closed", "abandoned")
"""States of an attempt that is over."""

Numbers = NDArray[np.uint32]
State = Literal["waiting", "open", "closing", "finished"]
Decision = Literal["accepted", "replay", "second_submission", "late", "shut_out", "busy"]
"""What becomes of a submission; the device of a busy one is to come again."""


# A device has one key, and a key has one number, whichever process enrols it.

KEY_IN_USE = (
    "this key has enrolled under another number; a device uses one invitation, and every device "
    "has a key of its own"
)


class KeyInUse(MessageError):
    """A key that another number has."""

    def __init__(self) -> None:
        super().__init__(KEY_IN_USE)


@contextlib.contextmanager
def only_number(link: sa.Connection) -> Iterator[None]:
    """Give a key to a number within. Raises `KeyInUse`, and leaves the transaction as it was, if
    another number has it."""
    try:
        with link.begin_nested():
            yield
    except sa.exc.IntegrityError:
        raise KeyInUse from None


# Asked for many times a second: put together once.
# What devices write is as wide as a message has room for, and there is no such attempt: for
# PostgreSQL a number that does not fit the column would be a failure.
_ROUND, _ATTEMPT = (sa.bindparam(name, type_=sa.BigInteger) for name in ("at_round", "at_attempt"))
_AT = (rounds.c.round == _ROUND, rounds.c.attempt == _ATTEMPT)
_SENT = (submissions.c.round == _ROUND, submissions.c.attempt == _ATTEMPT)
_FACT = sa.select(meta.c.value).where(meta.c.key == sa.bindparam("named"))
_NEWEST = sa.select(sa.func.coalesce(sa.func.max(models.c.round), 0).label("round")).subquery()
_CURRENT = (
    sa.select(
        _NEWEST.c.round,
        sa.select(meta.c.value).where(meta.c.key == "target").scalar_subquery().label("target"),
        sa.select(meta.c.value).where(meta.c.key == PUBLISHED).scalar_subquery().label(PUBLISHED),
        sa.select(meta.c.value).where(meta.c.key == "terms").scalar_subquery().label("terms"),
        sa.select(meta.c.value).where(meta.c.key == "catalogue").scalar_subquery().label("named"),
        sa.select(meta.c.value).where(meta.c.key == ROSTER).scalar_subquery().label(ROSTER),
        sa.select(meta.c.value).where(meta.c.key == LAST_CALL).scalar_subquery().label(LAST_CALL),
        rounds.c.attempt,
        rounds.c.state,
        rounds.c.goal,
        rounds.c.asked,
        rounds.c.reported,
        rounds.c.report_key,
    )
    .select_from(_NEWEST.outerjoin(rounds, rounds.c.round == _NEWEST.c.round))
    .order_by(rounds.c.attempt.desc())
    .limit(1)
)
_STATE = sa.select(rounds.c.state).where(*_AT).with_for_update()
_MARKS = sa.select(submissions.c.number, submissions.c.mark).where(
    *_SENT, submissions.c.number.in_(sa.bindparam("numbers", expanding=True))
)
_SHUT_OUT = sa.select(shut_out.c.number).where(
    shut_out.c.number.in_(sa.bindparam("numbers", expanding=True))
)
_STORE = submissions.insert()
_ADD = (
    rounds.update()
    .where(*_AT)
    .values(
        reported=rounds.c.reported + sa.bindparam("more"),
        asked=rounds.c.asked + sa.bindparam("joined"),
        goal=rounds.c.goal + sa.bindparam("joined"),
    )
)


@dataclass(frozen=True, slots=True)
class Position:
    """Where the federation stands."""

    round: int
    """Rounds folded so far; also the number of the current round and of the newest model."""
    attempt: int
    state: State
    target: int
    """Rounds to run."""
    goal: int = 0
    asked: int = 0
    reported: int = 0
    report_key: bytes = b""
    """Public key to which the round's reports are sealed; empty where there is no proxy."""
    published: int | None = None
    """The version by which devices recommend; None: by the newest model, whichever it is."""
    terms: str = ""
    """Digest of the terms in force."""
    catalogue: str = ""
    """Name of the catalogue that is published."""
    roster: str = ""
    """Another one whenever somebody was shut out or let in again."""
    last_call: bool = False
    """Whether the round is open for reports that are on their way alone."""


@dataclass(frozen=True, slots=True, repr=False)
class Submission:
    """A device's report that passed every check but those that need the database."""

    round: int
    attempt: int
    number: int
    mark: bytes
    body: bytes
    joined: bool = False
    """Whether the device came after the round was opened, and is asked from now on."""


@dataclass(frozen=True, slots=True)
class PastRound:
    round: int
    attempt: int
    outcome: str
    asked: int
    reported: int
    missing: tuple[int, ...]
    seconds: float

    def to_table(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {
            "missing": list(self.missing)
        }


def moment(now: datetime | None = None) -> str:
    """The time of day as it is kept: UTC, to the second."""
    return (now or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds")


def mark_of(nonce: bytes, body: bytes) -> bytes:
    """Equal for the same submission sent again, and for nothing else."""
    return hashlib.blake2b(nonce + body, digest_size=16).digest()


def packed(numbers: NDArray[Any]) -> bytes:
    return numbers.astype("<u4").tobytes()


def unpacked(stored: bytes) -> Numbers:
    return np.frombuffer(stored, "<u4").astype(np.uint32)


# --- facts about the federation -------------------------------------------------------------------


def fact(link: sa.Connection, key: str) -> str | None:
    found: str | None = link.execute(_FACT, {"named": key}).scalar()
    return found


def set_fact(link: sa.Connection, key: str, value: str) -> None:
    changed = link.execute(meta.update().where(meta.c.key == key).values(value=value))
    if changed.rowcount == 0:
        link.execute(meta.insert().values(key=key, value=value))


def drop_fact(link: sa.Connection, key: str) -> None:
    link.execute(meta.delete().where(meta.c.key == key))


def raise_target(link: sa.Connection, rounds_to_run: int) -> int:
    """The number of rounds to run, never lowered. What it is now."""
    target = max(int(fact(link, "target") or 0), rounds_to_run)
    set_fact(link, "target", str(target))
    return target


def position(link: sa.Connection) -> Position:
    row = link.execute(_CURRENT).one()
    round, target = int(row.round), int(row.target or 0)
    idle: State = "finished" if round >= target else "waiting"
    version = None if row.published is None else int(row.published)
    fixed: dict[str, Any] = {"published": version, "terms": row.terms or ""}
    fixed |= {"catalogue": row.named or "", "roster": row.roster or ""}
    if row.state is None:
        return Position(round, 0, idle, target, **fixed)
    if row.state == "abandoned":
        return Position(round, row.attempt + 1, idle, target, **fixed)
    key, counts = bytes(row.report_key or b""), (row.goal, row.asked, row.reported)
    fixed["last_call"] = row.last_call == f"{round}.{row.attempt}"
    return Position(round, row.attempt, row.state, target, *counts, key, **fixed)


def kept_versions(link: sa.Connection) -> list[int]:
    """Models that are kept whatever comes after them, ascending."""
    found = link.execute(sa.select(meta.c.key).where(meta.c.key.startswith(VERSION))).scalars()
    return sorted(int(key.removeprefix(VERSION)) for key in found)


# --- rounds ---------------------------------------------------------------------------------------


def open_round(
    link: sa.Connection,
    round: int,
    attempt: int,
    goal: int,
    selected: NDArray[Any],
    report_key: bytes | None = None,
) -> None:
    link.execute(
        rounds.insert().values(
            round=round,
            attempt=attempt,
            state="open",
            goal=goal,
            asked=len(selected),
            reported=0,
            selected=stamped(rounds.c.selected, packed(selected), round, attempt),
            report_key=report_key,
        )
    )
    link.execute(round_times.insert().values(round=round, attempt=attempt, opened=moment()))


def hold_round(link: sa.Connection, round: int, attempt: int) -> None:
    """Until the transaction ends, no report comes in."""
    link.execute(_STATE, {"at_round": round, "at_attempt": attempt})


def selected(link: sa.Connection, round: int, attempt: int) -> Numbers | None:
    found = link.execute(
        sa.select(rounds.c.selected).where(*of_attempt(rounds, round, attempt))
    ).scalar()
    if found is None:
        return None
    return unpacked(genuine(rounds.c.selected, found, round, attempt))


def move_round(
    link: sa.Connection, round: int, attempt: int, before: str, after: str, **values: Any
) -> bool:
    """From one state to the next; False where it was not in the first."""
    moved = link.execute(
        rounds.update()
        .where(*of_attempt(rounds, round, attempt), rounds.c.state == before)
        .values(state=after, **values)
    )
    if moved.rowcount == 1 and after in _OVER:
        here = of_attempt(round_times, round, attempt)
        link.execute(round_times.update().where(*here).values(ended=moment()))
    return moved.rowcount == 1


def call_last(link: sa.Connection, round: int, attempt: int) -> None:
    """Ask no device to begin a report for this attempt any more; reports that arrive count."""
    set_fact(link, LAST_CALL, f"{round}.{attempt}")


def outcome(link: sa.Connection, round: int, attempt: int) -> Literal["goal", "deadline"]:
    """Why a round that is closing was closed."""
    found = link.execute(
        sa.select(rounds.c.outcome).where(*of_attempt(rounds, round, attempt))
    ).scalar()
    return "goal" if found == "goal" else "deadline"


def past_rounds(link: sa.Connection, last: int | None = None) -> list[PastRound]:
    """Attempts that are over, oldest first."""
    query = (
        sa.select(rounds)
        .where(rounds.c.missing.is_not(None))
        .order_by(rounds.c.round.desc(), rounds.c.attempt.desc())
        .limit(last)
    )
    return [
        PastRound(r.round, r.attempt, r.outcome, r.asked, r.reported, tuple(silent), r.seconds)
        for r in reversed(link.execute(query).all())
        for silent in [unpacked(r.missing).tolist()]
    ]


# --- submissions ----------------------------------------------------------------------------------


def accept(
    link: sa.Connection, batch: Sequence[Submission], *, bodies: bool = True
) -> list[Decision]:
    """Store those that count (without `bodies`: that they came). Who joined takes no asked one's
    place: the round wants a report more. Holds the round's row: processes that share a database
    take turns, and nothing comes in once a round is closing."""
    decisions: list[Decision] = ["late"] * len(batch)
    for round, attempt in sorted({(s.round, s.attempt) for s in batch}):
        place = {"at_round": round, "at_attempt": attempt}
        state = link.execute(_STATE, place).scalar()
        at = [k for k, s in enumerate(batch) if (s.round, s.attempt) == (round, attempt)]
        senders = [batch[k].number for k in at]
        known, barred = marks(link, round, attempt, senders), shut_out_among(link, senders)
        new = []
        for k in at:
            number, mark = batch[k].number, batch[k].mark
            if number in barred:
                decisions[k] = "shut_out"
            elif known.get(number) == mark:
                decisions[k] = "replay"
            elif state == "open" and number in known:
                decisions[k] = "second_submission"
            elif state == "open":
                known[number], decisions[k] = mark, "accepted"
                new.append(batch[k])
        if new:
            link.execute(
                _STORE,
                [
                    {
                        "round": round,
                        "attempt": attempt,
                        "number": s.number,
                        "mark": s.mark,
                        "body": stamped(submissions.c.body, s.body, s.round, s.attempt, s.number)
                        if bodies
                        else None,
                    }
                    for s in new
                ],
            )
            joined = sum(submission.joined for submission in new)
            link.execute(_ADD, {**place, "more": len(new), "joined": joined})
    return decisions


def marks(
    link: sa.Connection, round: int, attempt: int, numbers: Sequence[int]
) -> dict[int, bytes]:
    """What tells apart the accepted submissions of these devices."""
    found: dict[int, bytes] = {}
    for part in in_parts(numbers):
        rows = link.execute(
            _MARKS, {"at_round": round, "at_attempt": attempt, "numbers": list(part)}
        )
        found |= {row.number: bytes(row.mark) for row in rows}
    return found


def shut_out_among(link: sa.Connection, numbers: Sequence[int]) -> set[int]:
    """Those of `numbers` that were shut out."""
    found: set[int] = set()
    for part in in_parts(numbers):
        found |= set(link.execute(_SHUT_OUT, {"numbers": list(part)}).scalars())
    return found


def reporters(link: sa.Connection, round: int, attempt: int) -> Numbers:
    found = link.execute(
        sa.select(submissions.c.number)
        .where(*of_attempt(submissions, round, attempt))
        .order_by(submissions.c.number)
    ).scalars()
    return np.fromiter(found, dtype=np.uint32)


def bodies(
    link: sa.Connection, round: int, attempt: int, at_once: int = AT_ONCE
) -> Iterator[list[tuple[int, bytes]]]:
    """Every accepted report with its sender, a few at a time."""
    last = -1
    while True:
        rows = link.execute(
            sa.select(submissions.c.number, submissions.c.body)
            .where(
                *of_attempt(submissions, round, attempt),
                submissions.c.number > last,
                submissions.c.body.is_not(None),
            )
            .order_by(submissions.c.number)
            .limit(at_once)
        ).all()
        if not rows:
            return
        column = submissions.c.body
        yield [(row.number, genuine(column, row.body, round, attempt, row.number)) for row in rows]
        last = rows[-1].number


def forget_reports(link: sa.Connection, round: int, attempt: int) -> None:
    """They are part of the model: only who sent one is still known, for a few rounds."""
    link.execute(
        submissions.update().where(*of_attempt(submissions, round, attempt)).values(body=None)
    )
    link.execute(submissions.delete().where(submissions.c.round <= round - RECEIPT_ROUNDS))


def drop_reports(link: sa.Connection, round: int, attempt: int) -> None:
    """They do not count."""
    link.execute(submissions.delete().where(*of_attempt(submissions, round, attempt)))


# --- models ---------------------------------------------------------------------------------------


def save_model(
    link: sa.Connection,
    round: int,
    items: NDArray[np.float32],
    changed: NDArray[np.int32],
    memory: NDArray[np.float32] | None = None,
) -> None:
    """The newest model, with what the algorithm keeps beside it. The one before stays for devices
    that are fetching it, and so do those that were offered (`stores.versions`)."""
    content = {
        "items": items.astype("<f4").tobytes(),
        "changed": changed.astype("<i4").tobytes(),
        "memory": None if memory is None else memory.astype("<f4").tobytes(),
    }
    stored = {n: v and stamped(models.c[n], v, round) for n, v in content.items()}
    link.execute(models.insert().values(round=round, **stored))
    kept = kept_versions(link)
    link.execute(models.delete().where(models.c.round < round - 1, models.c.round.not_in(kept)))
    link.execute(models.update().where(models.c.round < round).values(memory=None))


def model(
    link: sa.Connection, round: int, width: int
) -> tuple[NDArray[np.float32], NDArray[np.int32]] | None:
    """A version and when each row last changed; None where it is not there. Raises where it is
    damaged: then nothing of it may be published."""
    row = link.execute(
        sa.select(models.c["items"], models.c.changed).where(models.c.round == round)
    ).one_or_none()
    if row is None:
        return None
    content = genuine(models.c["items"], row[0], round)
    items = _finite(content, round).reshape(-1, width)
    changed = genuine(models.c.changed, row[1], round)
    return items, np.frombuffer(changed, "<i4").astype(np.int32)


def memory(link: sa.Connection, round: int, n_items: int) -> NDArray[np.float32]:
    """What the algorithm keeps beside the newest model, a row per item."""
    found = link.execute(sa.select(models.c.memory).where(models.c.round == round)).scalar()
    content = genuine(models.c.memory, found or b"", round)
    return _finite(content, round).reshape(n_items, -1)


def _finite(content: bytes, round: int) -> NDArray[np.float32]:
    """Numbers that may be published, or learnt from. Raises where some are none."""
    numbers = np.frombuffer(content, "<f4").astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ServiceError(
            f"the model of round {round} in the database has numbers that are none; put the "
            "database back from a copy"
        )
    return numbers


# --- refusals -------------------------------------------------------------------------------------


def count_refusals(link: sa.Connection, counts: Mapping[str, int]) -> None:
    insert = postgresql.insert if link.dialect.name == "postgresql" else sqlite.insert
    for reason, count in sorted(counts.items()):
        added = insert(refusals).values(reason=reason, count=count)
        link.execute(
            added.on_conflict_do_update(
                index_elements=[refusals.c.reason],
                set_={"count": refusals.c["count"] + added.excluded["count"]},
            )
        )


def refused(link: sa.Connection) -> dict[str, int]:
    rows = link.execute(sa.select(refusals.c.reason, refusals.c["count"].label("times")))
    return {row.reason: row.times for row in rows}


def in_parts(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), AT_ONCE):
        yield rows[start : start + AT_ONCE]


# The devices of a federation: who is invited, who has enrolled, who is asked. Every function
# works within a transaction of the caller's.

_WELCOME = devices.c.number.not_in(sa.select(shut_out.c.number))
_INVITED = sa.select(devices.c.number).where(
    devices.c.token_hash == sa.bindparam("token"), _WELCOME
)
WHY = "shut_out_why:"
"""Key of facts that say why the server itself has shut a device out, in front of its number."""


def token_hash(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def invite(link: sa.Connection, numbers: Iterable[int], tokens: Iterable[bytes]) -> None:
    """Expect these devices. Only hashes of their tokens are kept."""
    rows = [
        {"number": n, "token_hash": token_hash(t), "missed": 0, "dormant": False}
        for n, t in zip(numbers, tokens, strict=True)
    ]
    for start in range(0, len(rows), AT_ONCE):
        link.execute(devices.insert(), rows[start : start + AT_ONCE])


def known_numbers(link: sa.Connection, numbers: Sequence[int]) -> list[int]:
    """Those of `numbers` that were invited before."""
    found: list[int] = []
    for part in in_parts(numbers):
        found += link.execute(
            sa.select(devices.c.number).where(devices.c.number.in_(part))
        ).scalars()
    return found


def next_number(link: sa.Connection) -> int:
    last = link.execute(sa.select(sa.func.max(devices.c.number))).scalar()
    return 0 if last is None else int(last) + 1


def is_invited(link: sa.Connection, token: bytes) -> bool:
    """Whether somebody was invited with this token and not shut out. Changes and holds nothing."""
    return link.execute(_INVITED, {"token": token_hash(token)}).first() is not None


def enrol(link: sa.Connection, token: bytes, public_key: bytes) -> int | None:
    """The device's number, or None where the token is not good for this key, or for nobody since
    the number was shut out. The same token and key may come again: the first answer can have been
    lost. None, too, if another number has the key, even if another process enrols that one at the
    same moment."""
    row = link.execute(
        sa.select(devices.c.number, devices.c.public_key)
        .where(devices.c.token_hash == token_hash(token), _WELCOME)
        .with_for_update()
    ).one_or_none()
    if row is None or (row.public_key is not None and bytes(row.public_key) != public_key):
        return None
    if row.public_key is None:
        here = devices.update().where(devices.c.number == row.number)
        try:
            with only_number(link):
                link.execute(here.values(public_key=public_key))
        except KeyInUse:
            return None
    return int(row.number)


def number_of_key(link: sa.Connection, public_key: bytes) -> int | None:
    """The device that has enrolled this key, also if it was shut out."""
    found = sa.select(devices.c.number).where(devices.c.public_key == public_key)
    return link.execute(found).scalar()


def public_keys(link: sa.Connection) -> dict[int, bytes]:
    rows = link.execute(
        sa.select(devices.c.number, devices.c.public_key).where(devices.c.public_key.is_not(None))
    )
    return {row.number: bytes(row.public_key) for row in rows}


def public_key(link: sa.Connection, number: int) -> bytes | None:
    found = link.execute(sa.select(devices.c.public_key).where(devices.c.number == number)).scalar()
    return None if found is None else bytes(found)


def pool(link: sa.Connection) -> Numbers:
    """Devices that can be asked: enrolled, not shut out and not dormant."""
    found = link.execute(
        sa.select(devices.c.number)
        .where(devices.c.public_key.is_not(None), devices.c.dormant.is_(False), _WELCOME)
        .order_by(devices.c.number)
    ).scalars()
    return np.fromiter(found, dtype=np.uint32)


def count_devices(link: sa.Connection) -> tuple[int, int]:
    """Devices that have enrolled and were not shut out, and those among them that are asked."""
    enrolled = sa.select(sa.func.count()).where(devices.c.public_key.is_not(None), _WELCOME)
    active = enrolled.where(devices.c.dormant.is_(False))
    return int(link.execute(enrolled).scalar() or 0), int(link.execute(active).scalar() or 0)


def count_keys(link: sa.Connection) -> int:
    """Devices that have ever enrolled."""
    query = sa.select(sa.func.count()).where(devices.c.public_key.is_not(None))
    return int(link.execute(query).scalar() or 0)


def shut(link: sa.Connection, numbers: Sequence[int], why: str = "") -> None:
    """Ask these devices no more and take nothing from them, whether they have enrolled or not.
    `why` is what they are told, where it is not the operator's own decision."""
    new = sorted(set(numbers) - shut_out_among(link, numbers))
    if new:
        link.execute(shut_out.insert(), [{"number": number} for number in new])
        new_roster(link)
    if why:
        for number in new:
            set_fact(link, f"{WHY}{number}", why)


def readmit(link: sa.Connection, numbers: Sequence[int], *, unheard: bool = True) -> None:
    """Undo `shut`. Who was told to be out sends nothing until it has looked again, and is not asked
    until it is heard of; not `unheard` are those who report to others."""
    for part in in_parts(numbers):
        if unheard:
            here = devices.c.number.in_(part), devices.c.public_key.is_not(None)
            away = sa.case((devices.c.missed > 0, devices.c.missed), else_=1)
            link.execute(devices.update().where(*here).values(missed=away, dormant=True))
        link.execute(shut_out.delete().where(shut_out.c.number.in_(part)))
        link.execute(meta.delete().where(meta.c.key.in_([f"{WHY}{n}" for n in part])))
    new_roster(link)


def new_roster(link: sa.Connection) -> None:
    # Drawn, and not counted: no two changes look like one, also with a database put back.
    set_fact(link, ROSTER, secrets.token_hex(8))


def why_shut(link: sa.Connection, numbers: Sequence[int]) -> dict[int, str]:
    """Why the server has shut these devices out; nothing of those whom the operator has."""
    told: dict[int, str] = {}
    for part in in_parts(numbers):
        names = [f"{WHY}{number}" for number in part]
        rows = link.execute(sa.select(meta.c.key, meta.c.value).where(meta.c.key.in_(names)))
        told |= {int(row.key.removeprefix(WHY)): row.value for row in rows}
    return told


def shut_numbers(link: sa.Connection) -> list[int]:
    """Everybody who was shut out, ascending."""
    return list(link.execute(sa.select(shut_out.c.number).order_by(shut_out.c.number)).scalars())


def is_missed(link: sa.Connection, number: int) -> bool:
    """Whether this device has not been heard of for a round or more (`seen`)."""
    found = sa.select(devices.c.missed).where(devices.c.number == number)
    return bool(link.execute(found).scalar())


def unused_among(link: sa.Connection, numbers: Sequence[int]) -> set[int]:
    """Devices among these whose invitations somebody can still use."""
    unused = devices.c.public_key.is_(None), _WELCOME
    return {
        int(number)
        for part in in_parts(list(numbers))
        for number in link.execute(
            sa.select(devices.c.number).where(devices.c.number.in_(part), *unused)
        ).scalars()
    }


def seen(link: sa.Connection, numbers: Iterable[int]) -> None:
    """Note that these devices are there: they are asked again, and refuse nothing any more."""
    for part in in_parts(list(numbers)):
        changed = link.execute(
            devices.update()
            .where(devices.c.number.in_(part), devices.c.missed > 0)
            .values(missed=0, dormant=False)
        )
        if changed.rowcount:  # a device that refuses something counts as missed
            link.execute(objections.delete().where(objections.c.number.in_(part)))


def missed(link: sa.Connection, numbers: Sequence[int], dormant_after: int) -> None:
    for part in in_parts(numbers):
        link.execute(
            devices.update()
            .where(devices.c.number.in_(part))
            .values(
                missed=devices.c.missed + 1,
                dormant=sa.or_(devices.c.dormant, devices.c.missed + 1 >= dormant_after),
            )
        )


# Which catalogue is published: what the federation began with, unless an operator has changed it.

_CONTENT = "catalogue_content"


def catalogue_name(catalogue: bytes) -> str:
    """Another for each content."""
    return hashlib.sha256(catalogue).hexdigest()


def published_catalogue(link: sa.Connection) -> bytes | None:
    """The catalogue that is published, where it was changed since the federation began."""
    content = fact(link, _CONTENT)
    return None if content is None else content.encode()


def set_catalogue(link: sa.Connection, catalogue: bytes) -> None:
    """From now on, this is published_catalogue."""
    set_fact(link, "catalogue", catalogue_name(catalogue))
    set_fact(link, _CONTENT, catalogue.decode())


def require_catalogue(link: sa.Connection, catalogue: bytes) -> None:
    """Raises where this is not the catalogue that was published first: devices know items by their
    place in it."""
    name = catalogue_name(catalogue)
    before = fact(link, "catalogue")
    if before is None:
        set_fact(link, "catalogue", name)
    elif before != name:
        raise ServiceError(
            "catalogue.json is damaged, or another than this federation began with; put the right "
            "file back"
        )
