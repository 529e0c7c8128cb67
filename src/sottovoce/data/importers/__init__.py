"""Official downloads to data sets. `import_path` recognises what it is given by its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sottovoce.data.assembly import Keep, RawTables, assemble
from sottovoce.data.dataset import Dataset
from sottovoce.data.importers import douban, foursquare, movielens, table
from sottovoce.data.importers.archive import Archive
from sottovoce.data.prepared import EVENTS, read_prepared
from sottovoce.data.splitting import keep_active, keep_known
from sottovoce.errors import ConfigError, DataError, DataNotFound

__all__ = ["KINDS", "detect", "import_path"]


@dataclass(frozen=True, slots=True)
class _Format:
    """A download we know: the files that tell it (the first format that fits wins), its reader."""

    files: tuple[str, ...]
    read: Callable[[Archive], RawTables]
    terms: str


_FORMATS: dict[str, _Format] = {
    "movielens-100k": _Format(("u.data", "u.item"), movielens.read_100k, movielens.TERMS),
    "movielens-1m": _Format(
        ("ratings.dat", "movies.dat", "users.dat"), movielens.read_dat, movielens.TERMS
    ),
    "movielens-10m": _Format(("ratings.dat", "movies.dat"), movielens.read_dat, movielens.TERMS),
    "movielens-csv": _Format(("ratings.csv", "movies.csv"), movielens.read_csv, movielens.TERMS),
    "foursquare": _Format(
        (foursquare.CHECKINS, foursquare.POIS), foursquare.read_tist2015, foursquare.TERMS
    ),
    "douban-book": _Format((douban.BOOKS,), douban.read_douban, douban.TERMS),
}
_TABLE, _PREPARED = "table", "prepared"
KINDS: tuple[str, ...] = ("auto", *_FORMATS, _TABLE, _PREPARED)


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
    if kind not in KINDS:
        raise ConfigError(f"unknown kind {kind!r}; kinds are {', '.join(KINDS)}")
    if country is not None and kind != "foursquare":
        raise ConfigError(f"country applies to Foursquare alone; {path} is {kind}")
    if (columns or delimiter) and kind != _TABLE:
        raise ConfigError(f"columns and delimiter apply to plain tables alone; {path} is {kind}")
    if kind == _PREPARED:
        dataset = read_prepared(archive.path, name)
    else:
        dataset = _read(archive, kind, only, name, country, keep, columns, delimiter)
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
    if archive.path.is_dir() and archive.members.get(EVENTS) == EVENTS and only in (None, EVENTS):
        return _PREPARED
    for kind, known in _FORMATS.items():
        complete = all(file in archive for file in known.files)
        if complete and (only is None or only in known.files):
            return kind
    if only is not None or len(_tables(archive)) == 1:
        return _TABLE
    seen = ", ".join(sorted(archive.members)[:8]) or "nothing"
    raise DataError(
        f"{archive.path} is no download known here (it holds {seen}); known are MovieLens, "
        "Foursquare TIST2015, Douban Book, and single CSV, TSV or Parquet files"
    )


def _open(path: Path) -> tuple[Archive, str | None]:
    """The archive, and the one file of it that was named, if a file was."""
    if not path.exists():
        raise DataNotFound(f"{path} does not exist; give a downloaded zip, a folder or a file")
    if path.is_dir() or path.suffix.lower() == ".zip":
        return Archive.at(path), None
    return Archive.at(path.parent, deep=False), path.name


def _read(
    archive: Archive,
    kind: str,
    only: str | None,
    name: str | None,
    country: str | None,
    keep: Keep,
    columns: Mapping[str, str] | None,
    delimiter: str | None,
) -> Dataset:
    if kind == _TABLE:
        base = only or _single(archive)
        raw = table.read_table(archive, base, columns, delimiter)
        where, source, terms = archive.where(base), base, "terms: those of its source"
        name = name or base.rsplit(".", 1)[0]
    else:
        known = _FORMATS[kind]
        if kind == "foursquare":
            raw = foursquare.read_tist2015(archive, country)
        else:
            raw = known.read(archive)
        where, terms = archive.where(known.files[0]), known.terms
        source = f"{kind}, {archive.path.name}" + (f", {country}" if country else "")
        name = name or kind
    return assemble(name, raw, where=where, keep=keep, source=f"{source} ({terms})")


def _tables(archive: Archive) -> list[str]:
    return [base for base in archive.members if base.lower().endswith(table.SUFFIXES)]


def _single(archive: Archive) -> str:
    tables = _tables(archive)
    if len(tables) != 1:
        found = ", ".join(sorted(tables)[:8]) or "none"
        raise DataError(f"{archive.path} must hold one table to be read as such; found: {found}")
    return tables[0]
