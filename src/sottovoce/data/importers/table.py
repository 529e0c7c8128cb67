"""Any table of events: CSV, TSV or Parquet, with its columns named or guessed."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sottovoce.data.assembly import RawTables, assemble, seconds
from sottovoce.data.dataset import Dataset
from sottovoce.data.importers.base import IMPORTERS, Importer, Request
from sottovoce.data.importers.files import FLOAT, TEXT, Archive, TextLayout, read_text, split_fields
from sottovoce.errors import ConfigError, CorruptData, DataError

SUFFIXES = (".csv", ".tsv", ".txt", ".dat", ".inter", ".parquet")
ROLES = ("user", "item", "timestamp", "rating")
_USUAL = {
    "user": "user userid uid usr useridx reviewerid customerid visitorid userhash member",
    "item": "item itemid iid itemidx movieid asin parentasin venueid venue poi poiid bookid isbn "
    "productid businessid artistid songid trackid newsid gameid",
    "timestamp": "timestamp time ts date datetime unixreviewtime createdat ratedat eventtime when",
    "rating": "rating score stars overall ratingvalue bookrating value",
}


def read_table(
    archive: Archive, base: str, columns: Mapping[str, str] | None, delimiter: str | None
) -> RawTables:
    """`columns` maps user, item, timestamp, rating to the file's names; what is left is guessed."""
    where = archive.where(base)
    if base.lower().endswith(".parquet"):
        with archive.open(base) as stream:
            try:
                table = pq.ParquetFile(pa.BufferReader(stream.read())).read()
            except pa.ArrowInvalid as error:
                raise CorruptData(f"{where} cannot be read: {error}") from None
        chosen = choose_columns(table.column_names, columns, where)
        return RawTables(_renamed(table, chosen))
    with archive.open(base) as stream:
        head = stream.readline()
    if not head.strip():
        raise CorruptData(f"{where} is empty")
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise CorruptData(f"{where} is UTF-16 text; save it as UTF-8")
    delimiter = delimiter or _guess_delimiter(head)
    chosen = choose_columns(split_fields(head, delimiter), columns, where)
    kinds = {name: FLOAT if role == "rating" else TEXT for role, name in chosen.items()}
    quoted = delimiter in (",", ";") or b'"' in head
    layout = TextLayout((), kinds, delimiter, header=True, quoted=quoted)
    events = _renamed(read_text(archive, base, layout), chosen)
    if "timestamp" in events.column_names:
        place = events.column_names.index("timestamp")
        events = events.set_column(place, "timestamp", _times(events["timestamp"], where))
    return RawTables(events)


def choose_columns(
    names: Sequence[str], given: Mapping[str, str] | None, where: str
) -> dict[str, str]:
    """Which column plays which role. Raises where user or item cannot be found."""
    given = dict(given or {})
    for role, name in given.items():
        if role not in ROLES:
            raise ConfigError(f"unknown column role {role!r}; roles are {', '.join(ROLES)}")
        if name not in names:
            raise ConfigError(f"{where} has no column {name!r}; it has: {', '.join(names)}")
    chosen = given
    for role in ROLES:
        usual = _USUAL[role].split()
        fits = [n for n in names if _plain(n) in usual and n not in chosen.values()]
        if role not in chosen and fits:
            chosen[role] = min(fits, key=lambda n: usual.index(_plain(n)))
    for role in ("user", "item"):
        if role not in chosen:
            raise ConfigError(
                f"{where}: no column looks like the {role} (columns: {', '.join(names)}); "
                f"say which it is, as in --column {role}=NAME"
            )
    for name in chosen.values():
        if list(names).count(name) > 1:
            raise CorruptData(f"{where} has two columns {name!r}; rename one of them")
    return {role: chosen[role] for role in ROLES if role in chosen}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())


def _renamed(table: pa.Table, chosen: Mapping[str, str]) -> pa.Table:
    return pa.table({role: table[name] for role, name in chosen.items()})


def _guess_delimiter(head: bytes) -> str:
    text = head.decode("utf-8", "replace")
    return max(("::", "\t", ",", ";", "|"), key=lambda mark: text.count(mark) * len(mark))


def _times(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    for kind in (pa.int64(), pa.float64()):
        try:
            return pc.cast(column, kind)
        except pa.ArrowInvalid:
            continue
    return seconds(column, f"{where}, column timestamp")


@IMPORTERS.register("table")
class PlainTable(Importer):
    """Any CSV, TSV or Parquet file with a row per event."""

    listed_at = 1000  # it takes whatever nobody else knows
    takes_columns = True

    def fits(self, archive: Archive, only: str | None) -> bool:
        return only is not None or len(_tables(archive)) == 1

    def dataset(self, archive: Archive, request: Request) -> Dataset:
        base = request.only or _single(archive)
        return assemble(
            request.name or base.rsplit(".", 1)[0],
            read_table(archive, base, request.columns, request.delimiter),
            where=archive.where(base),
            keep=request.keep,
            source=f"{base} (terms: those of its source)",
        )


def _tables(archive: Archive) -> list[str]:
    return [base for base in archive.members if base.lower().endswith(SUFFIXES)]


def _single(archive: Archive) -> str:
    tables = _tables(archive)
    if len(tables) != 1:
        found = ", ".join(sorted(tables)[:8]) or "none"
        raise DataError(f"{archive.path} must hold one table to be read as such; found: {found}")
    return tables[0]
