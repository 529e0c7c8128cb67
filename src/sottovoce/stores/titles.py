"""The titles that a store has seen on items: each stays a name for its item, so that what is never
sent by a title does not leave when a server calls it otherwise, or says that it is gone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sottovoce.stores.encrypted import StoreFile
from sottovoce.stores.person import entries, write_entry

_TITLES = "former-titles"


def titles_had(file: StoreFile) -> dict[str, list[str]]:
    """Former titles by id, also of items that the catalogue does not have any more."""
    found: dict[str, list[str]] = json.loads(entries(file).get(_TITLES, b"{}"))
    return found


def keep_titles(
    file: StoreFile, catalogue: Sequence[tuple[str, str]], titles: Mapping[str, str]
) -> None:
    """What the items of this catalogue are called, before they have these titles; within a
    transaction."""
    had = titles_had(file)
    lost = [
        (item, title)
        for item, title in catalogue
        if title and titles.get(item) != title and title not in had.get(item, ())
    ]
    for item, title in lost:
        had.setdefault(item, []).append(title)
    if lost:
        write_entry(file, _TITLES, json.dumps(had).encode())
