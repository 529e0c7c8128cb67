"""What a copy of a server takes over from the folder that it replaces.

Devices know the newest published terms and catalogue, and refuse older ones. So a copy that was
made before a change gets the terms and the catalogue of the former folder. It also gets the
devices, the exclusions and the log of operators' actions. The model and the state of rounds stay
those of the copy.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from sottovoce.errors import MessageError, ServiceError, UsageError
from sottovoce.stores import amending
from sottovoce.stores import server as records
from sottovoce.stores.database import (
    Database,
    acts,
    contacts,
    devices,
    meta,
    objections,
    places,
    shut_out,
)
from sottovoce.stores.places import RULES
from sottovoce.stores.server import set_catalogue
from sottovoce.stores.server_folder import DATABASE, ServerFolder, open_folder
from sottovoce.wire.catalogue import Items, require_same_places
from sottovoce.wire.terms import Terms

_TABLES = (devices, contacts, shut_out, places, acts)
_FACTS = (RULES, amending.GATHERING, *amending.WAITING)


@dataclass(frozen=True, slots=True, repr=False)
class Former:
    """The content of the folder that is replaced."""

    path: Path
    terms: Terms
    catalogue: bytes
    rows: Mapping[sa.Table, Sequence[Mapping[str, Any]]] | None = None
    """None if its database cannot be read."""
    past: Sequence[Mapping[str, Any]] = ()
    """The history of its terms."""
    facts: Mapping[str, str] = field(default_factory=dict)
    target: int = 0
    """Rounds that operators have asked for."""

    def __repr__(self) -> str:
        return f"<Former {self.path}, redacted>"

    @classmethod
    def read(cls, path: Path) -> Former | None:
        """Read a folder that no server uses; return None if it has no catalogue to compare."""
        folder = open_folder(path)
        with contextlib.suppress(ServiceError):
            if (path / DATABASE).is_file():
                with contextlib.closing(Database.sqlite(path / DATABASE)) as store:
                    store.require()
                    with store.reading() as link:
                        return cls._in_database(path, folder.caught_up(link), link)
        with contextlib.suppress(ServiceError):
            return cls(path, folder.plan.terms, folder.catalogue())
        return None

    @classmethod
    def _in_database(cls, path: Path, folder: ServerFolder, link: sa.Connection) -> Former:
        rows = {
            table: [dict(row) for row in link.execute(sa.select(table)).mappings()]
            for table in _TABLES
        }
        return cls(
            path,
            folder.plan.terms,
            folder.catalogue(link),
            rows,
            amending.history(link),
            {row.key: row.value for row in link.execute(sa.select(meta).where(_taken()))},
            records.position(link).target,
        )


def _taken() -> sa.ColumnElement[bool]:
    return sa.or_(meta.c.key.in_(_FACTS), meta.c.key.startswith(records.WHY))


def bring_forward(link: sa.Connection, copy: ServerFolder, former: Former) -> tuple[str, ...]:
    """Bring a copy up to what its devices know, and return what was done, in sentences. The caller
    holds a transaction, and no round of the copy is open. Raise if the copy and the folder do not
    belong together."""
    done, terms = [], copy.plan.terms
    before, after = _items(copy.catalogue(link)), _items(former.catalogue)
    if not _is_newer(link, terms, before, former, after):
        return (LOST,)
    if before != after:
        set_catalogue(link, former.catalogue)
        done.append(
            "Items were changed after the copy was made. The catalogue of the former folder is "
            f"used, which differs in {_differ(before, after):,} place(s): devices know it."
        )
    if terms != former.terms:
        at = records.moment()
        amending.carry_forward(link, terms, former.terms, former.past, copy.plan.root_key, at)
        done.append(
            "Terms were changed after the copy was made. Those of the former folder are in force, "
            "with the model of the copy: nobody has to agree again."
        )
    else:
        amending.set_history(link, former.past)
    if done:  # what waited in the copy was meant for what was in force then
        link.execute(meta.delete().where(meta.c.key.in_(amending.WAITING)))
    if former.rows is None:
        return (*done, LOST)
    link.execute(objections.delete())
    link.execute(meta.delete().where(_taken()))
    for name, value in former.facts.items():
        records.set_fact(link, name, value)
    for table in _TABLES:
        _take_over(link, table, former.rows)
    records.raise_target(link, former.target)
    records.new_roster(link)
    return (*done, KEPT)


KEPT = (
    "Devices and invitations, exclusions, labels and the log of acts are those of the former "
    "folder: nobody has to be invited or shut out again."
)
LOST = (
    "Devices that enrolled since need new invitations; those that were shut out since have to be "
    "shut out again."
)


def _is_newer(
    link: sa.Connection, copy: Terms, before: Items, former: Former, after: Items
) -> bool:
    """Whether terms and catalogue of the former folder are those of the copy, or newer ones. Raise
    if they are neither newer nor older."""
    if copy == former.terms:
        if _keeps_places(before, after):
            return True
        if _keeps_places(after, before):
            return False
        raise _strangers("the catalogues", former.path)
    if former.terms.digest() in {one["digest"] for one in amending.history(link)}:
        return False
    follows = copy.digest() in {one["digest"] for one in former.past}
    if follows or former.rows is None:  # without a database there is no history to say it
        with contextlib.suppress(UsageError):
            amending.check_change(copy, former.terms)
            if _keeps_places(before, after):
                return True
    raise _strangers("the terms", former.path)


def _keeps_places(before: Items, after: Items) -> bool:
    with contextlib.suppress(MessageError):
        require_same_places(before, after)
        return True
    return False


def _strangers(what: str, former: Path) -> UsageError:
    return UsageError(
        f"{what} of the copy and of {former} do not follow from each other, so devices would "
        "refuse those of the copy; nothing was changed. Use a copy that was made from this "
        f"folder, or move {former} away yourself if the copy is to be used as it is"
    )


def _items(catalogue: bytes) -> list[tuple[str, str]]:
    return [(item, title) for item, title in json.loads(catalogue)["items"]]


def _differ(before: Items, after: Items) -> int:
    changed = sum(one != other for one, other in zip(before, after, strict=False))
    return changed + len(after) - len(before)


def _take_over(
    link: sa.Connection,
    table: sa.Table,
    former: Mapping[sa.Table, Sequence[Mapping[str, Any]]],
) -> None:
    """Replace the rows of a table. Rows of the copy stay if the former folder does not know what
    they are about: that folder may have been restored from an older copy itself."""
    names = ("id", "key") if table is acts else ("number", "token_hash", "public_key")
    source = former[acts] if table is acts else former[devices]
    known = {name: {row[name] for row in source} - {None} for name in names}
    here = [dict(row) for row in link.execute(sa.select(table)).mappings()]
    kept = [row for row in here if not any(row.get(name) in known[name] for name in names)]
    link.execute(table.delete())
    for part in records.in_parts([*former[table], *kept]):
        link.execute(table.insert(), list(part))
