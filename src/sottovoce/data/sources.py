"""Named data sets: where they are looked for, which there are, and loading one."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sottovoce.core.ranks import ALONE, Ranks
from sottovoce.data.dataset import Dataset
from sottovoce.data.prepared import EVENTS, read_prepared
from sottovoce.errors import ConfigError, DataNotFound

TOWN = "town"
"""The generated default world; it needs no files."""


def search_path(root: Path | str | None = None) -> tuple[Path, ...]:
    """Folders to look in, in order: `root` alone, or $SOTTOVOCE_DATA, then the user cache."""
    if root is not None:
        return (Path(root),)
    named = os.environ.get("SOTTOVOCE_DATA")
    return (*([Path(named)] if named else []), _cache())


def prepared_root() -> Path:
    """Where imports go: $SOTTOVOCE_DATA, else the user cache. The folder may not exist yet."""
    return search_path()[0]


def prepared_folder(name: str) -> Path:
    """Where an import of this name goes; refuses names that are taken or not plain."""
    if name == TOWN:
        raise ConfigError(f"{TOWN!r} is the generated world; choose another name")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ConfigError(
            f"{name!r} cannot name a data set; use letters, digits, dots, dashes and underscores"
        )
    return prepared_root() / name


def available(root: Path | str | None = None) -> dict[str, Path | None]:
    """Names that `load` accepts, and their folders; the town has none."""
    found: dict[str, Path | None] = {TOWN: None}
    for place in search_path(root):
        if place.is_dir():
            for folder in sorted(place.iterdir()):
                if not folder.name.startswith(".") and (folder / EVENTS).is_file():
                    found.setdefault(folder.name, folder)
    return found


_DOWNLOADS = {
    "movielens-100k": "ml-100k.zip",
    "movielens-1m": "ml-1m.zip",
    "movielens-20m": "ml-20m.zip",
    "movielens-latest-small": "ml-latest-small.zip",
    "foursquare-brazil": "dataset_TIST2015.zip --country BR",
    "foursquare-canada": "dataset_TIST2015.zip --country CA",
    "foursquare-italy": "dataset_TIST2015.zip --country IT",
    "douban-book": "PATH --require-attribute location --min-user-items 20",
}
"""From which file, and with which options, a data set that studies ask for is imported."""


def load(
    name: str,
    root: Path | str | None = None,
    *,
    ranks: Ranks = ALONE,
    users: range | None = None,
) -> Dataset:
    """A data set by name, or a rank's share of it (`read_prepared`). `town` is generated; every
    other is read from its prepared folder."""
    if name == TOWN:
        from sottovoce.data.town import generate_town  # compiles; `data show` need not wait for it

        return generate_town(None, ranks, users)
    known = available(root)
    folder = known.get(name)
    if folder is None:
        places = " and ".join(str(place) for place in search_path(root))
        raise DataNotFound(
            f"there is no data set {name!r} in {places}; there are: {', '.join(known)}; "
            f"add it with `sottovoce data import {name} {_DOWNLOADS.get(name, 'PATH')}`; "
            "`sottovoce docs data` says where downloads come from"
        )
    return read_prepared(folder, name, ranks, users)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sottovoce" / "data"
