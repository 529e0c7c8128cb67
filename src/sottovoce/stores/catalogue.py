"""Which catalogue a server publishes: what it began with, unless an operator has changed it.
Every function works within a transaction of the caller's."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa

from sottovoce.errors import ServiceError
from sottovoce.stores import server as records

_CONTENT = "catalogue_content"


def catalogue_name(catalogue: bytes) -> str:
    """Another for each content."""
    return hashlib.sha256(catalogue).hexdigest()


def published(link: sa.Connection) -> bytes | None:
    """The catalogue that is published, where it was changed since the federation began."""
    content = records.fact(link, _CONTENT)
    return None if content is None else content.encode()


def set_catalogue(link: sa.Connection, catalogue: bytes) -> None:
    """From now on, this is published."""
    records.set_fact(link, "catalogue", catalogue_name(catalogue))
    records.set_fact(link, _CONTENT, catalogue.decode())


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
