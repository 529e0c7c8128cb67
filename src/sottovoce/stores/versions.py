"""Versions of a model that were offered to be published: which one devices recommend by, and which
was held back. Every function works within a transaction of the caller's.

A version has the number of its model, the rounds that were folded by then. Each has a row among the
facts, so that its model is kept (`server.save_model`)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from sottovoce.core.quality import Quality
from sottovoce.errors import UsageError
from sottovoce.parties.server import Offered
from sottovoce.stores import server as records
from sottovoce.stores.database import meta, models

AFTER_ROLLBACK = (
    "an operator went back to version {}, which stays published until another one is published"
)
KEPT = 8
"""Versions that are kept, and the published one in any case."""
_PINNED = "published_pinned"
"""The fact with the version to which the operator went back, and which stays published."""
_CHOSEN_IN = "published_in"
"""Key of the fact with the round in which the operator last chose what is published."""


@dataclass(frozen=True, slots=True)
class ModelVersion:
    version: int
    made: str
    """When, by the server's clock (UTC)."""
    held_back: str = ""
    """Why it was not published; empty where it was, also by the operator."""
    quality: Quality | None = None
    """Quality by what devices have said about it; None if nobody was asked."""
    against: int | None = None
    """The version that was published then."""

    @property
    def offered(self) -> Offered:
        """As it was offered, or as an operator has decided since."""
        return Offered(self.version, self.held_back, self.quality, self.against)

    def to_table(self, published: int | None) -> dict[str, Any]:
        """As an operator sees it."""
        return {
            "version": self.version,
            "made": self.made,
            "published": self.version == published,
            "held_back": self.held_back,
            "quality": None if self.quality is None else self.quality.to_table(),
            "against": self.against,
        }


def published(link: sa.Connection) -> int | None:
    """The version by which devices recommend; None: by the newest model."""
    found = records.fact(link, records.PUBLISHED)
    return None if found is None else int(found)


def all_of(link: sa.Connection) -> list[ModelVersion]:
    """Those that are kept, oldest first."""
    return [_version(link, number) for number in records.kept_versions(link)]


def pinned(link: sa.Connection) -> int | None:
    """The version to which the operator went back; later ones are held back until she publishes
    another one. None: a new version is published by itself."""
    found = records.fact(link, _PINNED)
    return None if found is None else int(found)


def unpin(link: sa.Connection) -> None:
    """Publish new versions by themselves again."""
    records.drop_fact(link, _PINNED)


def keep(link: sa.Connection, offered: Offered, made: str) -> ModelVersion:
    """Keep a new version as it is returned. It is published unless it was held back, or the
    operator has gone back to an earlier one. The oldest version is let go."""
    stays = pinned(link)
    if stays is not None and not offered.held_back:
        offered = replace(offered, held_back=AFTER_ROLLBACK.format(stays))
    if records.fact(link, _CHOSEN_IN) == str(offered.version - 1):
        offered = replace(offered, against=None)  # devices did not all compare with the same
    found = ModelVersion(offered.version, made, offered.held_back, offered.quality, offered.against)
    _write(link, found)
    if not offered.held_back:
        records.set_fact(link, records.PUBLISHED, str(offered.version))
    named = published(link)
    for old in records.kept_versions(link)[:-KEPT]:
        if old != named:
            link.execute(meta.delete().where(meta.c.key == _key(old)))
    return found


def publish(link: sa.Connection, version: int) -> int | None:
    """Publish a version by the operator's word, whatever was said of it, and return the one that
    was published until now. An earlier version than the newest stays published (`pinned`)."""
    rows = set(link.execute(sa.select(models.c.round)).scalars())
    before, there = published(link), [n for n in records.kept_versions(link) if n in rows]
    if version not in there:
        if not there:
            raise UsageError(
                "there are no versions to choose from: devices recommend by the newest model, or "
                "none was made yet"
            )
        named = ", ".join(map(str, there))
        raise UsageError(f"version {version} is not here; these are: {named}")
    found = _version(link, version)
    _write(link, replace(found, held_back=""))
    records.set_fact(link, records.PUBLISHED, str(version))
    if version < max(there):
        records.set_fact(link, _PINNED, str(version))
    else:
        unpin(link)
    records.set_fact(link, _CHOSEN_IN, str(records.position(link).round))
    return before


def _key(version: int) -> str:
    return f"{records.VERSION}{version}"


def _version(link: sa.Connection, version: int) -> ModelVersion:
    table = json.loads(str(records.fact(link, _key(version))))
    quality = table["quality"]
    found = None if quality is None else Quality.from_table(quality)
    return ModelVersion(version, table["made"], table["held_back"], found, table["against"])


def _write(link: sa.Connection, kept: ModelVersion) -> None:
    table = kept.to_table(None)
    del table["published"]
    records.set_fact(link, _key(kept.version), json.dumps(table))
