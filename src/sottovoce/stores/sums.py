"""What the server keeps of a round of which it sees the sum alone: messages until they are added
up, the sum so far, and the sealed seeds of those who are in it. So it takes the room of a model and
of a few messages, however many devices send. Every function works within a transaction of the
caller's."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import sqlalchemy as sa

from sottovoce.algorithms.base import Contributing
from sottovoce.errors import ConfigError
from sottovoce.parties.secure_sum import most_devices, sigma_of
from sottovoce.stores import search as searches
from sottovoce.stores import server as records
from sottovoce.stores.database import (
    devices,
    genuine,
    left_out,
    of_attempt,
    stamped,
    summed_seeds,
    sums,
    unsummed,
)
from sottovoce.wire.masked import MOST_DEVICES
from sottovoce.wire.terms import Terms

WAITING_BYTES, LEAST_WAITING = 16 << 20, 16
"""Limits of messages that wait to be added up: so many bytes, or so many messages if they are long.
"""
_ENOUGH = 16
"""Messages that wait, for which it pays to write the sum anew."""
_REMEMBERED = 1000
"""Rounds of which it is remembered who was left out."""
_OFFENCES, MOST_OFFENCES = "offences", 3
"""The fact with the number of rounds in which each device was left out by its own fault; and how
many are too many."""
_AT_ONCE = 16
"""Messages that are read together where all of them are looked at."""


def most_summed(terms: Terms) -> int | None:
    """Devices in a round whose sum there is room for; None where single reports come in."""
    if terms.link.checking is not None:
        return most_checked(terms)
    link = terms.secure_sum
    if link is None:
        return None
    sigma = sigma_of(terms.build(), terms.release, link)
    return most_devices(link, terms.largest_value * terms.release.steps, sigma)


def most_checked(terms: Terms) -> int:
    """The same of a checked sum, whatever its round is about."""
    link, release = terms.link.checking, terms.release
    own = release.contributing
    if link is None or own is None:
        raise ConfigError("only contributions are checked")
    forms = [link.form(1, False), link.form(terms.n_items + 1, False), link.form(1, True)]
    sigma = link.more_noise * own.sigma * release.steps / math.sqrt(min(_shares(terms)))
    room = [form.most_devices(sigma / link.grid(form).step) for form in forms]
    return min(*room, MOST_DEVICES)


def _shares(terms: Terms) -> tuple[float, ...]:
    return cast(Contributing, terms.build()).shares


def accept(
    link: sa.Connection, batch: Sequence[records.Submission], most: int
) -> list[records.Decision]:
    """`records.accept` of masked reports, of which a round has `most` at most. Few may wait to be
    added up; whoever comes when there is no room is asked to come again."""
    if not batch:
        return []
    decisions: list[records.Decision] = ["busy"] * len(batch)
    places = {(one.round, one.attempt) for one in batch}
    for place in sorted(places):  # before anything is counted: processes take turns
        records.hold_round(link, *place)
    now = records.position(link)
    free = most
    if (now.round, now.attempt) in places:
        free -= now.reported
        if free < len(batch):  # those who were left out have room for others
            free = most - there(link, now.round, now.attempt)
    if not searches.found(link).on:  # in a search all wait until groups are drawn
        room = max(LEAST_WAITING, WAITING_BYTES // len(batch[0].body))
        free = min(free, room - sum(waiting(link, *place) for place in places))
    taken = batch[: max(0, free)]
    decisions[: len(taken)] = records.accept(link, taken, bodies=False)
    good = [one for one, said in zip(batch, decisions, strict=True) if said == "accepted"]
    if good:
        keep(link, good)
    return decisions


def keep(link: sa.Connection, batch: Sequence[records.Submission]) -> None:
    """Masked reports that have come in, to be added up."""
    column = unsummed.c.body
    rows = [
        {
            "round": one.round,
            "attempt": one.attempt,
            "number": one.number,
            "body": stamped(column, one.body, one.round, one.attempt, one.number),
        }
        for one in batch
    ]
    link.execute(unsummed.insert(), rows)


def waiting(link: sa.Connection, round: int, attempt: int) -> int:
    """How many are not added up yet."""
    query = sa.select(sa.func.count()).where(*of_attempt(unsummed, round, attempt))
    return int(link.execute(query).scalar() or 0)


def many_wait(link: sa.Connection, round: int, attempt: int) -> bool:
    """Whether it pays to add up what has come. While somebody who spoils sums is looked for,
    messages wait until the round ends."""
    return not searches.found(link).on and waiting(link, round, attempt) >= _ENOUGH


def there(link: sa.Connection, round: int, attempt: int) -> int:
    """Return how many submissions are in the sum or wait to be. Those that were left out are not
    counted, even if their records are kept."""
    out = sa.select(left_out.c.number).where(*of_attempt(left_out, round, attempt))
    here = *of_attempt(summed_seeds, round, attempt), summed_seeds.c.number.not_in(out)
    query = sa.select(sa.func.count()).where(*here)
    return int(link.execute(query).scalar() or 0) + waiting(link, round, attempt)


def keys_of(link: sa.Connection, numbers: Sequence[int]) -> dict[int, bytes]:
    """The enrolled keys of these devices."""
    found: dict[int, bytes] = {}
    for part in records.in_parts(numbers):
        here = devices.c.number.in_(part), devices.c.public_key.is_not(None)
        rows = link.execute(sa.select(devices.c.number, devices.c.public_key).where(*here))
        found |= {row.number: bytes(row.public_key) for row in rows}
    return found


def next_ones(
    link: sa.Connection, round: int, attempt: int, many: int, after: int = -1
) -> list[tuple[int, bytes]]:
    """Some of them, each with its sender."""
    rows = link.execute(
        sa.select(unsummed.c.number, unsummed.c.body)
        .where(*of_attempt(unsummed, round, attempt), unsummed.c.number > after)
        .order_by(unsummed.c.number)
        .limit(many)
    )
    column = unsummed.c.body
    return [(row.number, genuine(column, row.body, round, attempt, row.number)) for row in rows]


def bodies(link: sa.Connection, round: int, attempt: int) -> Iterator[tuple[int, bytes]]:
    """All of them."""
    last = -1
    while part := next_ones(link, round, attempt, _AT_ONCE, last):
        yield from part
        last = part[-1][0]


def total(link: sa.Connection, round: int, attempt: int) -> bytes | None:
    """The sum so far, as it was kept; None where nothing was added up."""
    found = link.execute(sa.select(sums.c.total).where(*of_attempt(sums, round, attempt))).scalar()
    return None if found is None else genuine(sums.c.total, found, round, attempt)


def added(
    link: sa.Connection,
    round: int,
    attempt: int,
    total: bytes,
    seeds: Mapping[int, bytes],
    out: Mapping[int, str],
) -> None:
    """The messages of those whose sealed `seeds` these are were added to what is now `total`, and
    are forgotten; so are those of who is left `out`, each for a reason."""
    stored = {"total": stamped(sums.c.total, total, round, attempt)}
    changed = link.execute(sums.update().where(*of_attempt(sums, round, attempt)).values(**stored))
    if changed.rowcount == 0:
        link.execute(sums.insert().values(round=round, attempt=attempt, **stored))
    taken(link, round, attempt, seeds, out)


def taken(
    link: sa.Connection,
    round: int,
    attempt: int,
    seeds: Mapping[int, bytes],
    out: Mapping[int, str],
) -> None:
    """The messages of those whose sealed `seeds` (or records of shares) these are need not be kept
    any more; nor those of who is left `out`, each for a reason."""
    if seeds:
        link.execute(
            summed_seeds.insert(),
            [
                {"round": round, "attempt": attempt, "number": number, "sealed": sealed}
                for number, sealed in seeds.items()
            ],
        )
    for part in records.in_parts([*seeds, *out]):
        link.execute(
            unsummed.delete().where(
                *of_attempt(unsummed, round, attempt), unsummed.c.number.in_(part)
            )
        )
    leave_out(link, round, attempt, out)


def leave_out(
    link: sa.Connection,
    round: int,
    attempt: int,
    out: Mapping[int, str],
    *,
    keep_records: bool = False,
) -> None:
    """These are not in the sum any more, each for a reason, which is remembered. With
    `keep_records` their records stay until the round is over: somebody is asked about the set that
    they are in, and must be asked about the same set after a crash."""
    for part in records.in_parts(list(out)):
        for table in (left_out,) if keep_records else (summed_seeds, left_out):
            link.execute(
                table.delete().where(*of_attempt(table, round, attempt), table.c.number.in_(part))
            )
        rows = [
            {"round": round, "attempt": attempt, "number": number, "reason": out[number]}
            for number in part
        ]
        link.execute(left_out.insert(), rows)


def who_is_out(link: sa.Connection, round: int, attempt: int) -> dict[int, str]:
    """Return who was left out of a round, ascending, and for which reason."""
    query = sa.select(left_out.c.number, left_out.c.reason).where(
        *of_attempt(left_out, round, attempt)
    )
    rows = link.execute(query.order_by(left_out.c.number))
    return {row.number: row.reason for row in rows}


def out_since(link: sa.Connection, round: int) -> dict[tuple[int, int], dict[str, int]]:
    """How many were left out of each attempt from this round on, by reason."""
    many = sa.func.count().label("many")
    place = left_out.c.round, left_out.c.attempt, left_out.c.reason
    found: dict[tuple[int, int], dict[str, int]] = {}
    for row in link.execute(
        sa.select(*place, many).where(left_out.c.round >= round).group_by(*place)
    ):
        found.setdefault((row.round, row.attempt), {})[row.reason] = int(row.many)
    return found


def offended(link: sa.Connection, numbers: Sequence[int]) -> dict[int, int]:
    """Counts that these devices were left out of a round once more by their own fault. Those who
    were too often are returned, each with how often."""
    found = records.fact(link, _OFFENCES)
    counts = Counter[str](json.loads(found) if found else {})
    counts.update(map(str, numbers))
    if numbers:
        records.set_fact(link, _OFFENCES, json.dumps(counts))
    return {n: counts[str(n)] for n in numbers if counts[str(n)] >= MOST_OFFENCES}


def forgive(link: sa.Connection, numbers: Sequence[int]) -> None:
    """Nothing is counted against these devices any more."""
    found = records.fact(link, _OFFENCES)
    if found is not None:
        left = {n: many for n, many in json.loads(found).items() if int(n) not in set(numbers)}
        records.set_fact(link, _OFFENCES, json.dumps(left))


def seeds(link: sa.Connection, round: int, attempt: int) -> dict[int, bytes]:
    """Return who is in the sum, ascending, with their sealed seeds."""
    rows = link.execute(
        sa.select(summed_seeds.c.number, summed_seeds.c.sealed)
        .where(*of_attempt(summed_seeds, round, attempt))
        .order_by(summed_seeds.c.number)
    )
    return {row.number: bytes(row.sealed) for row in rows}


def forget(link: sa.Connection, round: int) -> None:
    """All that is kept of this round and of those before, but for who was left out."""
    for table in (unsummed, sums, summed_seeds):
        link.execute(table.delete().where(table.c.round <= round))
    link.execute(left_out.delete().where(left_out.c.round <= round - _REMEMBERED))
