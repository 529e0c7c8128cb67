"""What the server keeps for its operators, beside what rounds need: whether they have paused, what
they call their devices and when these were last heard of, and when rounds began and ended. Every
function works within a transaction of the caller's."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from sottovoce.stores import server as records
from sottovoce.stores.database import (
    Database,
    acts,
    contacts,
    devices,
    objections,
    places,
    round_times,
    rounds,
    shut_out,
)
from sottovoce.wire.invitations import MAX_NUMBER
from sottovoce.wire.refusals import SHUT_OUT_BY_OPERATOR, WITHDRAWN

PAUSED = "paused"
"""Key of the fact that the operator wants no new round for now."""
AWAY, TROUBLE = "away", "trouble"
"""Keys of facts: which other party rounds wait for, or why they do not move on otherwise, and since
when."""
Which = Literal["all", "active", "silent", "shut-out", "invited"]
"""Devices of one state. Silent ones have been asked in vain so often that they are not asked."""
_LONGEST_QUERY, _MOST_ROWS = 200, 100_000
_TO_THE_MINUTE = len("2026-11-17T18:04")
REFUSED = {"catalogue": "the catalogue has another item in a place that they know"}
"""What devices can refuse, with the reason."""
_UNAGREED = "has not agreed to the changed terms yet, or has not asked since"
_EVERY = 10.0
"""Seconds after which it is written which devices were heard of."""


def paused(link: sa.Connection) -> dict[str, str] | None:
    """Since when, by whom and why no new round is opened; None where rounds go on."""
    found = records.fact(link, PAUSED)
    return None if found is None else dict(json.loads(found))


def note_act(
    link: sa.Connection,
    who: str,
    how: str,
    what: str,
    about: Mapping[str, Any],
    outcome: Mapping[str, Any],
    *,
    at: str | None = None,
    key: str = "",
) -> None:
    """A line of the log of acts."""
    link.execute(
        acts.insert().values(
            at=at or records.moment(),
            who=who,
            how=how,
            what=what,
            about=json.dumps(dict(about)),
            key=key or None,
            outcome=json.dumps(dict(outcome)),
        )
    )


def last_acted(link: sa.Connection, round: int) -> str | None:
    """When an operator last did something by which rounds, now at this one, came to wait for
    devices: some were shut out, a pause ended, or more rounds were asked for when all were done."""
    which = sa.select(sa.func.max(acts.c.at)).where(acts.c.what.in_(("shut_out", "go_on")))
    targets = sa.select(acts.c.at, acts.c.outcome).where(acts.c.what == "target")
    last = link.execute(targets.order_by(acts.c.id.desc()).limit(1)).one_or_none()
    more = last is not None and json.loads(last.outcome)["before"] <= round
    moments = link.execute(which).scalar(), last.at if last is not None and more else None
    return max((at for at in moments if at is not None), default=None)


def label_of(link: sa.Connection, number: int) -> str:
    found = sa.select(contacts.c.label).where(contacts.c.number == number)
    return str(link.execute(found).scalar() or "")


def set_labels(link: sa.Connection, numbers: Sequence[int], label: str) -> None:
    """The same for all of them; an empty one takes away what they had."""
    _upsert(link, contacts, [{"number": number, "label": label} for number in numbers])


def _upsert(link: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with the same fields, over those with the same primary key."""
    insert = postgresql.insert if link.dialect.name == "postgresql" else sqlite.insert
    keys = [column.name for column in table.primary_key]
    for start in range(0, len(rows), records.AT_ONCE):
        part = rows[start : start + records.AT_ONCE]
        added = insert(table)
        changed = {name: added.excluded[name] for name in part[0] if name not in keys}
        link.execute(added.on_conflict_do_update(index_elements=keys, set_=changed), part)


# When devices were last heard of: they enrolled, checked in, or sent a report themselves, which
# those with a shuffler never do.


def enrolled(link: sa.Connection, number: int) -> None:
    """A device has enrolled just now, or has asked once more."""
    now = _minute(time.time())
    _upsert(link, contacts, [{"number": number, "last_contact": now}])
    first = contacts.c.number == number, contacts.c.enrolled.is_(None)
    link.execute(contacts.update().where(*first).values(enrolled=now))


def withdrawn(link: sa.Connection, token: bytes) -> str | None:
    """What whoever was invited with this token is told, if it was shut out, before it enrolled or
    since; None where it was not, or nobody was."""
    row = link.execute(
        sa.select(devices.c.number, devices.c.public_key.is_(None).label("unused")).where(
            devices.c.token_hash == records.token_hash(token),
            devices.c.number.in_(sa.select(shut_out.c.number)),
        )
    ).one_or_none()
    if row is None:
        return None
    by_operator = WITHDRAWN if row.unused else SHUT_OUT_BY_OPERATOR
    return records.why_shut(link, [row.number]).get(row.number, by_operator)


class LastContacts:
    """Devices that were heard of and of which that is not stored yet. Any thread may add some. A
    report costs no more than a place in a table: what there is, is stored together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heard: dict[int, int] = {}
        self._next = time.monotonic() + _EVERY

    def heard(self, numbers: Iterable[int]) -> None:
        now = int(time.time())
        with self._lock:
            self._heard.update(dict.fromkeys(numbers, now))

    def store(self, database: Database, *, now: bool = False) -> None:
        """Where it is time for it, or `now`. What cannot be stored waits for the next time."""
        if not self._heard or not (now or time.monotonic() >= self._next):
            return
        self._next = time.monotonic() + _EVERY
        with self._lock:
            taken, self._heard = self._heard, {}
        rows = [{"number": n, "last_contact": _minute(at)} for n, at in sorted(taken.items())]
        try:
            # Reports wait for no more than a part of it.
            for part in range(0, len(rows), records.AT_ONCE):
                with database.writing() as link:
                    _upsert(link, contacts, rows[part : part + records.AT_ONCE])
        except BaseException:
            with self._lock:
                self._heard = taken | self._heard
            raise


def _minute(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="minutes")


def _unheard(changed: str) -> sa.ColumnElement[bool]:
    """Condition on contacts: none since the terms were changed at that time."""
    last = sa.func.substr(contacts.c.last_contact, 1, _TO_THE_MINUTE)
    return sa.or_(contacts.c.last_contact.is_(None), last <= changed[:_TO_THE_MINUTE])


def set_objection(link: sa.Connection, number: int, what: str) -> None:
    """Note that a device refuses this part of what is published. It is not asked until it checks in
    again or reports (`records.seen`)."""
    _upsert(link, objections, [{"number": number, "why": what}])
    missed = sa.case((devices.c.missed > 0, devices.c.missed), else_=1)
    here = devices.c.number == number
    link.execute(devices.update().where(here).values(dormant=True, missed=missed))


def objection_of(link: sa.Connection, number: int) -> str:
    """Return what this device refuses; empty if it refuses nothing."""
    found = sa.select(objections.c.why).where(objections.c.number == number)
    return str(link.execute(found).scalar() or "")


def count_objections(link: sa.Connection) -> dict[str, int]:
    """Count the devices that refuse what is published, by what they refuse. Devices that were shut
    out are left out."""
    welcome = objections.c.number.not_in(sa.select(shut_out.c.number))
    query = sa.select(objections.c.why, sa.func.count()).where(welcome)
    rows = link.execute(query.group_by(objections.c.why))
    return {str(why): int(many) for why, many in rows}


def count_unagreed(link: sa.Connection, changed: str) -> int:
    """Enrolled devices that are not asked and were not heard of since the terms were changed."""
    there = devices.outerjoin(contacts, contacts.c.number == devices.c.number)
    query = sa.select(sa.func.count(devices.c.number)).select_from(there)
    silent = devices.c.public_key.is_not(None), devices.c.dormant.is_(True)
    welcome = devices.c.number.not_in(sa.select(shut_out.c.number))
    return int(link.execute(query.where(*silent, welcome, _unheard(changed))).scalar() or 0)


def shut_out_devices(link: sa.Connection) -> list[int]:
    """Those that had enrolled."""
    here = devices.c.public_key.is_not(None), devices.c.number.in_(sa.select(shut_out.c.number))
    return list(
        link.execute(sa.select(devices.c.number).where(*here).order_by(sa.asc("number"))).scalars()
    )


def list_devices(
    link: sa.Connection,
    offset: int,
    limit: int,
    query: str = "",
    which: Which = "all",
    *,
    changed: str | None = None,
) -> dict[str, Any]:
    """Devices by number: how many there are of this kind, whose label has the text `query` in it or
    whose number begins with it, and some of them; `changed` is when the terms were, if ever."""
    if len(query) > _LONGEST_QUERY or not query.isprintable():
        return {"total": 0, "rows": []}
    out = devices.c.number.in_(sa.select(shut_out.c.number))
    here = devices.c.public_key.is_not(None)
    kinds: dict[str, tuple[sa.ColumnElement[bool], ...]] = {
        "all": (),
        "shut-out": (out,),
        "invited": (~here,),
        "active": (here, devices.c.dormant.is_(False)),
        "silent": (here, devices.c.dormant.is_(True)),
    }
    one: sa.ColumnElement[int] = devices.c.number
    wanted = list(kinds[which])
    source: sa.FromClause = devices
    if query:
        named = contacts.c.label.icontains(query, autoescape=True)
        if link.dialect.name == "sqlite":  # to which letters are the same in any case, and faster
            named = contacts.c.label.contains(query, autoescape=True)
        parts = [sa.select(contacts.c.number).where(named)]
        if begun := _begun_with(query):
            spans = (devices.c.number.between(*span) for span in begun)
            parts.append(sa.select(devices.c.number).where(sa.or_(*spans)))
        found = sa.union(*parts)
        if which == "all":
            source = found.subquery()
            one = source.c.number
        else:
            wanted.append(devices.c.number.in_(found))
    counted = sa.select(sa.func.count()).select_from(source).where(*wanted)
    total = int(link.execute(counted).scalar() or 0)
    if which not in ("all", "shut-out"):
        # Few are shut out. Taking them off is quicker than asking of each device whether it is.
        total -= int(link.execute(counted.where(out)).scalar() or 0)
        wanted.append(~out)
    # Whom to show is found without looking at what is shown of the others.
    shown = sa.select(one).select_from(source).where(*wanted).order_by(one)
    part = shown.offset(min(offset, MAX_NUMBER)).limit(min(limit, _MOST_ROWS))
    numbers = list(link.execute(part).scalars())
    rows = [
        row
        for part in records.in_parts(numbers)
        for row in link.execute(
            sa.select(
                devices.c.number,
                devices.c.dormant,
                here.label("here"),
                out.label("out"),
                devices.c.number.in_(sa.select(places.c.number)).label("open"),
                contacts.c.label,
                contacts.c.enrolled,
                contacts.c.last_contact,
                objections.c.why.label("refuses"),
            )
            .select_from(
                devices.outerjoin(contacts, contacts.c.number == devices.c.number).outerjoin(
                    objections, objections.c.number == devices.c.number
                )
            )
            .where(devices.c.number.in_(part))
            .order_by(devices.c.number)
        )
    ]
    why = records.why_shut(link, [row.number for row in rows if row.out])

    def state(row: Any) -> Which:
        if row.out:
            return "shut-out"
        return ("silent" if row.dormant else "active") if row.here else "invited"

    def reason(row: Any) -> str:
        if row.out:
            return why.get(row.number, "by the operator")
        if row.refuses:
            return f"refuses the {row.refuses}: another item is in a place that it knows"
        last = (row.last_contact or "")[:_TO_THE_MINUTE]
        unheard = changed is not None and last <= changed[:_TO_THE_MINUTE]
        return _UNAGREED if unheard and state(row) == "silent" else ""

    return {
        "total": total,
        "rows": [
            {
                "number": row.number,
                "label": row.label or "",
                "state": state(row),
                "enrolled": row.enrolled,
                "last_contact": row.last_contact,
                "came": "open place" if row.open else "invitation",
                "why": reason(row),
            }
            for row in rows
        ],
    }


def _begun_with(digits: str) -> list[tuple[int, int]]:
    """Between which numbers those lie that begin with these digits; nowhere where they are none."""
    longest = len(str(MAX_NUMBER))
    if not (digits.isascii() and digits.isdigit() and len(digits) <= longest):
        return []
    first, more = int(digits), longest - len(digits) if digits.strip("0") else 0
    return [(first * 10**k, (first + 1) * 10**k - 1) for k in range(more + 1)]


# Times of rounds.


def round_lines(link: sa.Connection, offset: int, limit: int) -> tuple[int, list[dict[str, Any]]]:
    """How many attempts are over, and some of them, newest first; of who was missing the number
    alone, since it may be everybody."""
    over = rounds.c.missing.is_not(None)
    total = int(link.execute(sa.select(sa.func.count()).where(over)).scalar() or 0)
    times = sa.and_(
        round_times.c.round == rounds.c.round, round_times.c.attempt == rounds.c.attempt
    )
    query = (
        sa.select(
            *(rounds.c[name] for name in ("round", "attempt", "outcome", "asked", "reported")),
            (sa.func.length(rounds.c.missing) / 4).label("missing"),
            rounds.c.seconds,
            round_times.c.opened,
            round_times.c.ended,
        )
        .select_from(rounds.outerjoin(round_times, times))
        .where(over)
        .order_by(rounds.c.round.desc(), rounds.c.attempt.desc())
        .offset(offset)
        .limit(limit)
    )
    rows = link.execute(query).mappings()
    return total, [{**row, "missing": int(row["missing"])} for row in rows]


def missing_in(link: sa.Connection, round: int, attempt: int) -> records.Numbers | None:
    """Return who was asked in an attempt and did not report; None if the attempt is not over."""
    query = sa.select(rounds.c.missing).where(rounds.c.round == round, rounds.c.attempt == attempt)
    found = link.execute(query).scalar()
    return None if found is None else records.unpacked(found)


def times_since(
    link: sa.Connection, round: int
) -> dict[tuple[int, int], tuple[str | None, str | None]]:
    """When each attempt from this round on was opened and ended."""
    rows = link.execute(sa.select(round_times).where(round_times.c.round >= round))
    return {(row.round, row.attempt): (row.opened, row.ended) for row in rows}


def last_times(link: sa.Connection) -> tuple[str | None, str | None]:
    """Return when the newest attempt was opened, and when the last finished one ended."""
    query = sa.select(round_times).order_by(
        round_times.c.round.desc(), round_times.c.attempt.desc()
    )
    newest = link.execute(query.limit(1)).one_or_none()
    over = link.execute(query.where(round_times.c.ended.is_not(None)).limit(1)).one_or_none()
    return newest.opened if newest else None, over.ended if over else None


def last_ended(link: sa.Connection, below: int) -> str | None:
    """Return when the last attempt with a report ended, among those at rounds before this one."""
    at = sa.and_(round_times.c.round == rounds.c.round, round_times.c.attempt == rounds.c.attempt)
    query = sa.select(sa.func.max(round_times.c.ended)).select_from(rounds.join(round_times, at))
    found: str | None = link.execute(
        query.where(rounds.c.round < below, rounds.c.reported > 0)
    ).scalar()
    return found


def count_reported(link: sa.Connection, numbers: range, attempt: int) -> int:
    """Count the reports in all attempts at these rounds except this attempt at the last one."""
    if not numbers:
        return 0
    query = sa.select(rounds.c.round, rounds.c.attempt, rounds.c.reported).where(
        rounds.c.round.between(numbers[0], numbers[-1]), rounds.c.reported > 0
    )
    open_now = numbers[-1], attempt
    return sum(
        row.reported
        for row in link.execute(query)
        if row.round in numbers and (row.round, row.attempt) != open_now
    )


# Why rounds do not move on, where that is no matter of devices.


class Outcomes:
    """How many attempts at rounds ended in which way. Who was missing stands before it in a row,
    and may be long: rounds that are over are read once."""

    def __init__(self) -> None:
        self._below = 0
        self._known: Counter[str] = Counter()

    def count(self, link: sa.Connection) -> dict[str, int]:
        now = records.position(link).round
        self._known += self._between(link, self._below, now)
        self._below = max(self._below, now)
        return dict(self._known + self._between(link, now, now + 1))

    def _between(self, link: sa.Connection, first: int, end: int) -> Counter[str]:
        over = rounds.c.missing.is_not(None), rounds.c.round >= first, rounds.c.round < end
        asked = sa.select(rounds.c.outcome, sa.func.count()).where(*over)
        return Counter(
            {str(how): int(many) for how, many in link.execute(asked.group_by(rounds.c.outcome))}
        )


def keep_since(
    link: sa.Connection, name: str, what: str, party: str = "server", kind: str = ""
) -> None:
    """Note `AWAY` or `TROUBLE` with its kind of wait (`core.waiting`). It counts from now, or from
    when it was first noted."""
    before = since_when(link, name)
    since = records.moment() if before is None else before["since"]
    told = {"since": since, "what": what, "party": party, "kind": kind}
    if before != told:
        records.set_fact(link, name, json.dumps(told))


def since_when(link: sa.Connection, name: str) -> dict[str, str] | None:
    found = records.fact(link, name)
    return None if found is None else dict(json.loads(found))
