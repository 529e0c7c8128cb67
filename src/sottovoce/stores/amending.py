"""Changing the terms of a federation that is under way, or what it is about: an amendment.

An operator proposes one (`propose`); it waits in the database until everybody who keeps terms of
their own has said yes (`Coordinator`), and is then applied between two rounds, in one transaction:
terms, their history, catalogue and model change together, and the round moves on to one that has
nothing to do with those before. Devices are asked by what the server publishes; who has not agreed
is not asked to report. Every function works within a transaction of the caller's.

The files of a server's folder are written after that. Whoever finds the database ahead of its files
goes by the database (`ahead`, `published`): a process that was killed, or another one that shares
the database and has files of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import sqlalchemy as sa

from sottovoce.errors import ConfigError, MessageError, ServiceError, UsageError
from sottovoce.parties.secure_sum import most_devices, sigma_of
from sottovoce.parties.server import Offered
from sottovoce.rng import streams_of
from sottovoce.stores import operating, versions
from sottovoce.stores import server as records
from sottovoce.stores.database import MOST_ROUNDS, devices, meta
from sottovoce.stores.server import (
    catalogue_name,
    require_catalogue,
    set_catalogue,
)
from sottovoce.wire.catalogue import require_fit, require_same_places
from sottovoce.wire.plainly import changes
from sottovoce.wire.terms import Terms

_TABLE, _AMENDMENT = "terms_table", "amendment"
_NEW_TERMS, _NEW_CATALOGUE = "amendment_terms", "amendment_catalogue"
WAITING = (_AMENDMENT, _NEW_TERMS, _NEW_CATALOGUE)
"""The facts of a change that waits."""
_PAST = "terms:"
"""Key of facts with terms that were or are in force, in front of their number."""
GATHERING = "gathering"
"""Key of the fact that says how many devices were asked before the terms were changed. It is there
until a round opens under the new terms."""
_SETTLED = ("url", "authority", "key", "urls", "authorities", "keys", "chain")
"""Settings of a link by which others are known: they are somebody else's to change."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """An amendment that waits, without its contents."""

    at: str
    who: str
    before: str
    """Digest of the terms that it changes."""
    digest: str
    """Digest of the terms as they will be."""
    changes: tuple[tuple[str, Any, Any], ...]
    n_items: int
    """Number of items as it will be."""
    catalogue: bool
    """Whether the catalogue changes, too."""
    state: Literal["asked", "ready"] = "asked"
    """Whether all who keep terms of their own keep these."""
    party: str = ""
    """For whom it waits, why and since when, and what to do about it."""
    waits: str = ""
    do: str = ""
    since: str = ""

    def to_table(self) -> dict[str, Any]:
        """As it is kept and shown."""
        table = {name: getattr(self, name) for name in self.__slots__}
        return table | {"changes": [list(one) for one in self.changes]}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Proposed:
        return cls(**{**table, "changes": tuple((k, a, b) for k, a, b in table["changes"])})


@dataclass(frozen=True, slots=True)
class Waits:
    """Why terms cannot come into force yet."""

    party: str
    """As in a status: "helper", "shuffler", "aggregator 1"."""
    why: str
    do: str


def check_change(before: Terms, after: Terms) -> None:
    """Raises where a federation cannot go on from the one terms to the others."""
    if after == before:
        raise UsageError("the terms are these already; nothing was changed")
    if after.federation != before.federation:
        raise UsageError("the name of a federation never changes; devices know it by that")
    was, now = before.algorithm, after.algorithm
    same = (was.name, was.width, *was.vector_space) == (now.name, now.width, *now.vector_space)
    if not same or was.model_rows(2) != now.model_rows(2):
        raise UsageError(
            "with another algorithm, embedding_size or network nothing that was learnt could be "
            "carried over; make a new federation"
        )
    if after.n_items < before.n_items:
        raise UsageError(
            "items keep their places for ever, so that there cannot be fewer; let them go with "
            "`sottovoce serve catalogue --gone`"
        )
    if after.link.name != before.link.name or after.release.name != before.release.name:
        raise UsageError(
            "another release or another way to the server has other parties and other keys; make a "
            "new federation"
        )
    old, new = before.link.table(), after.link.table()
    moved = [name for name in _SETTLED if old.get(name) != new.get(name)]
    if moved:
        raise UsageError(
            f"link.{moved[0]} says who helps with the sums or passes reports on, and does not "
            "change: move the service with its folder to a machine that answers to the same name"
        )
    link = after.secure_sum
    if link is not None:
        sigma = sigma_of(after.build(), after.release, link)
        room = most_devices(link, after.largest_value * after.release.steps, sigma)
        if room < link.min_devices:
            raise UsageError(
                f"sums of link.bits = {link.bits} have room for {room:,} devices under these terms "
                f"and need {link.min_devices:,}; set link.bits, too"
            )


# --- what is proposed -----------------------------------------------------------------------------


def propose(
    link: sa.Connection,
    now: Terms,
    after: Terms,
    before: bytes,
    catalogue: bytes | None,
    *,
    who: str,
    at: str,
) -> Proposed:
    """Have the terms `now` in force changed, and this catalogue published with them in the place of
    the one `before`. Raises where that cannot be, or something waits already."""
    there = proposed(link)
    if there is not None:
        raise UsageError(
            f"a change that {there.who} proposed at {there.at} waits already; withdraw it first, "
            "or wait until it is in force"
        )
    check_change(now, after)
    if records.fact(link, "terms") not in (None, now.digest()):
        raise UsageError("the terms were changed meanwhile; look at them again")
    if catalogue is not None:
        _check_catalogue(before, catalogue, after.n_items)
        records.set_fact(link, _NEW_CATALOGUE, catalogue.decode())
    elif after.n_items != now.n_items:
        raise UsageError("more items need a catalogue that names them, or places to spare")
    records.set_fact(link, _NEW_TERMS, json.dumps(after.to_table()))
    changed = tuple(changes(now, after))
    more = catalogue is not None
    told = Proposed(at, who, now.digest(), after.digest(), changed, after.n_items, more)
    _write(link, told)
    return told


def change_catalogue(link: sa.Connection, now: Terms, before: bytes, after: bytes) -> None:
    """Publish `after` from now on, with items in places of which devices know already: nobody has
    to agree to that. Raises where another catalogue than `before` is published."""
    told = proposed(link)
    if told is not None and told.catalogue:
        raise UsageError(
            f"a change that {told.who} proposed at {told.at} waits, with a catalogue of its own; "
            "withdraw it first, or wait until it is in force"
        )
    if records.fact(link, "catalogue") == catalogue_name(after):
        return  # it was cut off, and is done again
    require_catalogue(link, before)
    _check_catalogue(before, after, now.n_items)
    set_catalogue(link, after)


def _check_catalogue(before: bytes, after: bytes, n_items: int) -> None:
    items = [(item, title) for item, title in json.loads(after)["items"]]
    if len(items) != n_items:
        raise UsageError(f"the catalogue has {len(items):,} items, the terms have {n_items:,}")
    known = [(item, title) for item, title in json.loads(before)["items"]]
    try:
        require_same_places(known, items)
    except MessageError:
        raise UsageError("items keep their places, by which devices know them") from None
    require_fit(after, before)


def proposed(link: sa.Connection, *, hold: bool = False) -> Proposed | None:
    """What waits; `hold`: until the transaction ends, nobody else brings it into force or takes it
    back."""
    query = sa.select(meta.c.value).where(meta.c.key == _AMENDMENT)
    found = link.execute(query.with_for_update() if hold else query).scalar()
    return None if found is None else Proposed.from_table(json.loads(found))


def proposed_terms(link: sa.Connection) -> Terms | None:
    """The terms as they will be; None where no change waits."""
    found = records.fact(link, _NEW_TERMS)
    return None if found is None else _terms(found)


def withdraw(link: sa.Connection) -> Proposed:
    """Nothing comes of what was proposed. Raises where nothing waits."""
    found = proposed(link, hold=True)
    if found is None:
        raise UsageError("no change of terms waits; what is in force can only be changed again")
    _forget(link)
    return found


def answered(link: sa.Connection, asked: Proposed, waits: Waits | None, at: str) -> None:
    """What those said who keep terms of their own: all yes (None), or for whom it waits."""
    now = proposed(link, hold=True)
    if now is None or (now.digest, now.at) != (asked.digest, asked.at):
        return  # withdrawn meanwhile, or another one
    if waits is None:
        _write(link, replace(now, state="ready", party="", waits="", do="", since=""))
    elif (now.party, now.waits) != (waits.party, waits.why):
        since = now.since if now.party == waits.party else at
        told = replace(now, party=waits.party, waits=waits.why, do=waits.do, since=since)
        _write(link, told)


# --- applying -------------------------------------------------------------------------------------


def apply(link: sa.Connection, before: Terms, root_key: int, at: str) -> int | None:
    """Bring into force what was proposed and is ready; the round with which it goes on. None where
    nothing is to be done now: a round is open, or `before` are not the terms in force."""
    told, now = proposed(link, hold=True), records.position(link)
    if told is None or told.state != "ready" or now.state not in ("waiting", "finished"):
        return None
    if records.fact(link, "terms") != before.digest() or told.before != before.digest():
        return None
    after, catalogue = proposed_terms(link), records.fact(link, _NEW_CATALOGUE)
    if after is None or after.digest() != told.digest:
        raise ServiceError("the proposed change of terms is damaged in the database; withdraw it")
    round = now.round
    if after != before:
        round = _carry(link, before, after, root_key, now, at)
        _remember(link, before, told.changes, told.digest, told.who, round, at)
        records.set_fact(link, "terms", after.digest())
        records.set_fact(link, _TABLE, json.dumps(after.to_table()))
        about = {"proposed_by": told.who, "round": round, "digest": told.digest}
        more = {"changes": [list(one) for one in told.changes], "catalogue": told.catalogue}
        operating.note_act(link, "server", "by itself", "in_force", about, more, at=at)
        if after.reporting is None:  # through a shuffler nobody is asked by name
            _gather(link)
    if catalogue is not None:
        set_catalogue(link, catalogue.encode())
    _forget(link)
    return round


def _gather(link: sa.Connection) -> None:
    """Wait for agreements. A device that has not agreed is not asked and not waited for; agreeing
    says that it is there."""
    records.set_fact(link, GATHERING, str(records.count_devices(link)[1]))
    missed = sa.func.coalesce(sa.func.nullif(devices.c.missed, 0), 1)
    known = devices.c.public_key.is_not(None)
    link.execute(devices.update().where(known).values(dormant=True, missed=missed))


def _carry(
    link: sa.Connection,
    before: Terms,
    after: Terms,
    root_key: int,
    now: records.Position,
    at: str,
) -> int:
    """Model and memory go on, from a round that has nothing to do with those before."""
    algorithm, more = after.build(), after.n_items - before.n_items
    round = algorithm.begins_anew(now.round + 1)
    if round > MOST_ROUNDS:
        raise ServiceError("no rounds are left for the proposed change of terms; withdraw it")
    # What devices recommend by is what must not be lost; a version has one shape for ever.
    source = now.published if more and now.published is not None else now.round
    found = records.model(link, source, before.width)
    if found is None:
        raise ServiceError(f"the database lacks version {source} of the model")
    items, memory = found[0], records.memory(link, now.round, len(found[0]))
    rng = streams_of(root_key)
    items, memory = algorithm.server_carried(items, memory, before.n_items, more, rng)
    records.save_model(link, round, items, np.full(len(items), round, np.int32), memory)
    if more and now.published is not None:
        for old in records.kept_versions(link):
            link.execute(meta.delete().where(meta.c.key == f"{records.VERSION}{old}"))
        versions.unpin(link)  # the version that was gone back to has too few items
        versions.keep(link, Offered(round), at)
    # Rounds that were left out were not run: as many are still to come.
    target = now.target + (round - now.round) if now.round < now.target else round
    records.raise_target(link, min(target, MOST_ROUNDS))
    return round


def _remember(
    link: sa.Connection,
    before: Terms,
    changed: Iterable[tuple[str, Any, Any]],
    digest: str,
    who: str,
    round: int,
    at: str,
) -> None:
    known = len(history(link))
    if not known:
        first = {"at": "", "who": "", "round": 0, "digest": before.digest(), "changes": []}
        records.set_fact(link, f"{_PAST}{known}", json.dumps(first))
        known = 1
    entry = {
        "at": at,
        "who": who,
        "round": round,
        "digest": digest,
        "changes": [list(one) for one in changed],
    }
    records.set_fact(link, f"{_PAST}{known}", json.dumps(entry))


def carry_forward(
    link: sa.Connection,
    before: Terms,
    after: Terms,
    past: Sequence[Mapping[str, Any]],
    root_key: int,
    at: str,
) -> int:
    """Bring terms into force in a copy that is older than they are, and return the next round.
    `past` is the history of terms that the copy lacks."""
    now = records.position(link)
    round = _carry(link, before, after, root_key, now, at)
    if past:
        set_history(link, past)
    else:  # the former database is lost, and who has agreed is not known
        if after.reporting is None:
            _gather(link)
        _remember(link, before, changes(before, after), after.digest(), "restore", round, at)
    records.set_fact(link, "terms", after.digest())
    records.set_fact(link, _TABLE, json.dumps(after.to_table()))
    return round


def set_history(link: sa.Connection, past: Sequence[Mapping[str, Any]]) -> None:
    """Replace the history of terms."""
    for number, entry in enumerate(past):
        records.set_fact(link, f"{_PAST}{number}", json.dumps(entry))


def history(link: sa.Connection) -> list[dict[str, Any]]:
    """Terms that were in force and are, oldest first: since when, from which round on, by whose
    proposal, and what was changed; empty where there were never others."""
    rows = link.execute(sa.select(meta).where(meta.c.key.startswith(_PAST))).all()
    found = {int(row.key.removeprefix(_PAST)): json.loads(row.value) for row in rows}
    return [found[number] for number in sorted(found)]


def last_change(link: sa.Connection) -> dict[str, Any] | None:
    """When the terms were last changed, by whose proposal, and with which round it goes on; None
    where they never were."""
    past = history(link)[1:]
    return {name: past[-1][name] for name in ("at", "who", "round")} if past else None


def ahead(link: sa.Connection, known: Terms) -> Terms | None:
    """The terms in force, where these were in force before them."""
    digest = records.fact(link, "terms")
    if digest is None or digest == known.digest():
        return None
    past, table = history(link), records.fact(link, _TABLE)
    if table is None or known.digest() not in {one["digest"] for one in past}:
        return None
    terms = _terms(table)
    return terms if terms.digest() == digest else None


def _terms(table: str) -> Terms:
    try:
        return Terms.from_table(json.loads(table))
    except (ValueError, MessageError, ConfigError) as error:
        raise ServiceError(f"the terms in the database cannot be read: {error}") from None


def _write(link: sa.Connection, told: Proposed) -> None:
    records.set_fact(link, _AMENDMENT, json.dumps(told.to_table()))


def _forget(link: sa.Connection) -> None:
    link.execute(meta.delete().where(meta.c.key.in_(WAITING)))
