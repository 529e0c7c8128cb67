"""Douban Book of the HIN collections: user_book.dat and user_location.dat, without times."""

from __future__ import annotations

import pyarrow as pa

from sottovoce.data.assembly import RawTables
from sottovoce.data.importers.base import IMPORTERS, Download, Request
from sottovoce.data.importers.files import FLOAT, TEXT, Archive, TextLayout, read_text, split_fields
from sottovoce.errors import CorruptData

BOOKS, LOCATIONS = "user_book.dat", "user_location.dat"
TERMS = "Douban Book of the HIN data sets: cite, research use, no redistribution"


def read_douban(archive: Archive) -> RawTables:
    """Users, books and ratings where there are any; the location is a user attribute."""
    events = _columns(archive, BOOKS, ("user", "item", "rating"))
    users = None
    if LOCATIONS in archive:
        users = _columns(archive, LOCATIONS, ("user", "location", "weight"))
        users = users.select(["user", "location"])
    return RawTables(events, users)


def _columns(archive: Archive, base: str, names: tuple[str, ...]) -> pa.Table:
    """Copies differ in whether they carry the third column; the first line tells."""
    with archive.open(base) as stream:
        width = len(split_fields(stream.readline(), "\t"))
    if width not in (2, 3):
        raise CorruptData(f"{archive.where(base)}, line 1: {width} fields where 2 or 3 belong")
    names = names[:width]
    kinds = {name: FLOAT if name in ("rating", "weight") else TEXT for name in names}
    return read_text(archive, base, TextLayout(names, kinds))


@IMPORTERS.register("douban-book")
class DoubanBook(Download):
    """Douban Book of the HIN collections."""

    listed_at = 60
    files, terms = (BOOKS,), TERMS

    def read(self, archive: Archive, request: Request) -> RawTables:
        return read_douban(archive)
