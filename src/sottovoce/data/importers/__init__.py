"""Official downloads to data sets. `import_path` recognises what it is given by its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sottovoce.data.assembly import Keep, RawTables
from sottovoce.data.dataset import Dataset
from sottovoce.data.importers.base import IMPORTERS, Download, Importer, Request
from sottovoce.data.importers.files import Archive
from sottovoce.data.splitting import keep_active, keep_known
from sottovoce.errors import ConfigError, DataError, DataNotFound

__all__ = [
    "IMPORTERS",
    "KINDS",
    "Archive",
    "Download",
    "Importer",
    "RawTables",
    "Request",
    "detect",
    "import_path",
]

KINDS: tuple[str, ...]
"""What `import_path` can be told to take a download for."""


def __getattr__(name: str) -> Any:
    if name == "KINDS":  # a later question may find more of them
        return ("auto", *IMPORTERS)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def import_path(
    path: Path | str,
    kind: str = "auto",
    *,
    name: str | None = None,
    country: str | None = None,
    keep: Keep = "last",
    min_user_items: int | None = None,
    require_attribute: str | None = None,
    columns: Mapping[str, str] | None = None,
    delimiter: str | None = None,
) -> Dataset:
    """Read a download (a zip, a folder or one file) into a data set.

    `country` filters Foursquare venues; `columns` and `delimiter` describe a plain table;
    `keep` says which of repeated (user, item) events counts; `require_attribute` drops users for
    whom that attribute is not known, `min_user_items` those with fewer items.
    """
    if keep not in ("first", "last"):
        raise ConfigError(f"keep must be first or last, not {keep!r}")
    archive, only = _open(Path(path))
    kind = detect(archive, only) if kind == "auto" else kind
    if kind not in IMPORTERS:
        kinds = ", ".join(("auto", *IMPORTERS))
        raise ConfigError(f"unknown kind {kind!r}; kinds are {kinds}{IMPORTERS.hint}")
    importer = IMPORTERS[kind]()
    if country is not None and not importer.takes_country:
        takers = [kind for kind, other in IMPORTERS.items() if other.takes_country]
        raise ConfigError(f"country applies to {', '.join(takers)} alone; {path} is {kind}")
    if (columns or delimiter) and not importer.takes_columns:
        takers = [kind for kind, other in IMPORTERS.items() if other.takes_columns]
        raise ConfigError(
            f"columns and delimiter apply to {', '.join(takers)} alone; {path} is {kind}"
        )
    request = Request(only, name, keep, country, columns or {}, delimiter)
    dataset = importer.dataset(archive, request)
    if require_attribute is not None:
        dataset = keep_known(dataset, require_attribute)
        story = f"{dataset.provenance}; users whose {require_attribute} is known"
        dataset = replace(dataset, provenance=story)
    if min_user_items is not None:
        dataset = keep_active(dataset, min_user=min_user_items)
        story = f"{dataset.provenance}; users with at least {min_user_items} items"
        dataset = replace(dataset, provenance=story)
    return dataset


def detect(archive: Archive, only: str | None = None) -> str:
    """The kind of a download, told by the files in it."""
    for kind, importer in sorted(IMPORTERS.items(), key=lambda entry: not entry[1].certain):
        if importer().fits(archive, only):
            return kind
    seen = ", ".join(sorted(archive.members)[:8]) or "nothing"
    raise DataError(
        f"{archive.path} is no download known here (it holds {seen}); known are "
        f"{', '.join(IMPORTERS)}, where a table is a single CSV, TSV or Parquet file"
    )


def _open(path: Path) -> tuple[Archive, str | None]:
    """The archive, and the one file of it that was named, if a file was."""
    if not path.exists():
        raise DataNotFound(f"{path} does not exist; give a downloaded zip, a folder or a file")
    if path.is_dir() or path.suffix.lower() == ".zip":
        return Archive.at(path), None
    return Archive.at(path.parent, deep=False), path.name
