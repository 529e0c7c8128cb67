"""Which catalogue a server publishes: what it began with, unless an operator has changed it.
Every function works within a transaction of the caller's."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa

from sottovoce.errors import ServiceError
from sottovoce.stores import server as records


def catalogue_name(catalogue: bytes) -> str:
    """Another for each content."""
    return hashlib.sha256(catalogue).hexdigest()


def change_catalogue(link: sa.Connection, before: bytes, after: bytes) -> None:
    """From now on, `after` is published."""
    if records.fact(link, "catalogue") != catalogue_name(
        after
    ):  # else it was cut off, and is done again
        require_catalogue(link, before)
        records.set_fact(link, "catalogue", catalogue_name(after))


def require_catalogue(link: sa.Connection, catalogue: bytes) -> None:
    """Raises where this is not the catalogue that was published first: devices know items by their
    place in it."""
    name = catalogue_name(catalogue)
    before = records.fact(link, "catalogue")
    if before is None:
        records.set_fact(link, "catalogue", name)
    elif before != name:
        raise ServiceError(
            "catalogue.json is damaged, or another than this federation began with; put the right "
            "file back"
        )
