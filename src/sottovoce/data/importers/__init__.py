"""Official downloads to data sets. `import_path` recognises what it is given by its files.

Lines are parsed by pyarrow. The readers of DuckDB and Polars were tried instead. They guess
silently where this asks or names the line (the order of days, a delimiter of two signs, ids with
leading zeros), and read neither cp1252 nor bz2 nor xz.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_args

from sottovoce.data.assembly import Keep, RawTables
from sottovoce.data.dataset import PARTS, Dataset
from sottovoce.data.gathering import Report
from sottovoce.data.importers.base import IMPORTERS, Download, Imported, Importer, Piece, Request
from sottovoce.data.importers.files import Archive
from sottovoce.data.prepared import require_place
from sottovoce.data.times import DayOrder
from sottovoce.errors import ConfigError, CorruptData, DataError, DataNotFound

__all__ = [
    "IMPORTERS",
    "KINDS",
    "Archive",
    "ImportOptions",
    "Download",
    "Imported",
    "Importer",
    "RawTables",
    "Request",
    "detect",
    "import_into",
    "import_path",
]

KINDS: tuple[str, ...]
"""What `import_path` can be told to take a download for."""


def __getattr__(name: str) -> Any:
    if name == "KINDS":  # a later question may find more of them
        return ("auto", *IMPORTERS)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class ImportOptions(TypedDict, total=False):
    """What can be said of an import, beside where its files are."""

    name: str | None
    """What to call the data set."""
    country: str | None
    """Foursquare: venues of one country."""
    keep: Keep
    """Which of repeated (user, item) events counts: the last, or the first."""
    min_user_items: int | None
    """Drops users with fewer items."""
    require_attribute: str | None
    """Drops users for whom this attribute is not known."""
    columns: Mapping[str, str] | None
    """A table's columns by role (`ROLES`); a role without one has `-`."""
    delimiter: str | None
    header: bool
    """Whether a table's first line names its columns; if not, there may be `names`."""
    names: Sequence[str]
    skip_bad: bool
    """Whether rows that cannot be read are left out, and counted, rather than refused."""
    dates: DayOrder | None
    """The order of days with slashes; without one the file must tell."""
    parts: Mapping[str, Path | str] | None
    """The files of a ready split (train, test, perhaps validation), in place of a path."""


def import_path(
    path: Path | str | None = None, kind: str = "auto", **asked: Unpack[ImportOptions]
) -> Dataset:
    """Read a download (a zip, a folder or one file) into a data set."""
    importer, archive, request = _understood(path, kind, asked)
    return importer.asked(archive, request)


def import_into(
    folder: Path,
    path: Path | str | None = None,
    kind: str = "auto",
    *,
    overwrite: bool = False,
    report: Report | None = None,
    **asked: Unpack[ImportOptions],
) -> Imported:
    """The same into a prepared folder, whole or not at all; files of one's own may be larger than
    memory."""
    require_place(folder, overwrite=overwrite)
    importer, archive, request = _understood(path, kind, asked)
    return importer.write(
        archive, request, folder, overwrite=overwrite, report=report or (lambda *_: None)
    )


def _understood(
    path: Path | str | None, kind: str, asked: ImportOptions
) -> tuple[Importer, Archive, Request]:
    """Return which importer reads it, where it lies, and what is asked."""
    keep, country = asked.get("keep", "last"), asked.get("country")
    columns, delimiter = asked.get("columns") or {}, asked.get("delimiter")
    header, names = asked.get("header", True), tuple(asked.get("names", ()))
    skip_bad, pieces = asked.get("skip_bad", False), _pieces(asked.get("parts") or {})
    if asked.get("dates") not in (None, *get_args(DayOrder)):
        raise ConfigError(f"dates must be day-first or month-first, not {asked.get('dates')!r}")
    if keep not in ("first", "last"):
        raise ConfigError(f"keep must be first or last, not {keep!r}")
    if (path is None) == (not pieces):
        raise ConfigError(
            "give a path, or the files of a ready split (--train and --test), and not both"
        )
    archive, only = _open(Path(path)) if path is not None else (pieces[0].archive, pieces[0].base)
    kind = detect(archive, only) if kind == "auto" else kind
    if kind not in IMPORTERS:
        kinds = ", ".join(("auto", *IMPORTERS))
        raise ConfigError(f"unknown kind {kind!r}; kinds are {kinds}{IMPORTERS.hint}")
    importer, shown = IMPORTERS[kind](), path if path is not None else pieces[0].base

    def takers(trait: str) -> str:
        return ", ".join(kind for kind, other in IMPORTERS.items() if getattr(other, trait))

    if country is not None and not importer.takes_country:
        raise ConfigError(f"country applies to {takers('takes_country')} alone; {shown} is {kind}")
    if (columns or delimiter or names or not header or asked.get("dates")) and not (
        importer.takes_columns
    ):
        raise ConfigError(
            "columns, names, a header, a delimiter and dates apply to "
            f"{takers('takes_columns')} alone; {shown} is {kind}"
        )
    if (pieces or skip_bad) and not importer.takes_parts:
        raise ConfigError(
            f"files of a ready split, and skipping bad rows, apply to {takers('takes_parts')} "
            f"alone; {shown} is {kind}"
        )
    request = Request(
        None if pieces else only, asked.get("name"), keep, country, columns, delimiter, header,
        names, skip_bad, asked.get("dates"), pieces, asked.get("min_user_items"),
        asked.get("require_attribute"),
    )  # fmt: skip
    return importer, archive, request


def _pieces(parts: Mapping[str, Path | str]) -> tuple[Piece, ...]:
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise ConfigError(f"parts of a split are {', '.join(PARTS)}, not {unknown[0]}")
    if parts and not {"train", "test"} <= set(parts):
        lacks = "--test" if "train" in parts else "--train"
        raise ConfigError(f"a ready split needs --train and --test; {lacks} is missing")
    found = []
    for number, part in enumerate(PARTS):
        if part in parts:
            archive, only = _open(Path(parts[part]))
            if only is None:
                raise ConfigError(
                    f"--{part} wants one file, and {parts[part]} is a folder or a zip"
                )
            found.append(Piece(archive, only, number))
    return tuple(found)


def detect(archive: Archive, only: str | None = None) -> str:
    """The kind of a download, told by the files in it."""
    for kind, importer in sorted(IMPORTERS.items(), key=lambda entry: not entry[1].certain):
        if importer().fits(archive, only):
            return kind
    seen = ", ".join(sorted(archive.members)[:8]) or "nothing"
    raise DataError(
        f"{archive.path} is no download known here (it holds {seen}); known are "
        f"{', '.join(IMPORTERS)}, where a table is a single CSV, TSV or Parquet file, or files of "
        "a ready split called train and test (also --train FILE --test FILE)"
    )


def _open(path: Path) -> tuple[Archive, str | None]:
    """The archive, and the one file of it that was named, if a file was."""
    if not path.exists():
        raise DataNotFound(f"{path} does not exist; give a downloaded zip, a folder or a file")
    if path.name.lower().endswith(
        (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".7z", ".rar")
    ):
        raise CorruptData(f"{path} is an archive that is not read here; unpack it, give the folder")
    if path.is_dir() or path.suffix.lower() == ".zip":
        return Archive.at(path), None
    return Archive.at(path.parent, deep=False), path.name
