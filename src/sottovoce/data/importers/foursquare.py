"""Foursquare check-ins, TIST2015 (Yang et al. 2016): 33 million lines, read as a stream."""

from __future__ import annotations

import re
import tomllib
import unicodedata
from dataclasses import replace
from importlib.resources import files
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sottovoce.data.assembly import RawTables
from sottovoce.data.dataset import Dataset
from sottovoce.data.importers.base import IMPORTERS, Download, Request
from sottovoce.data.importers.files import (
    INT,
    TEXT,
    Archive,
    TextLayout,
    read_text,
    stream_text,
    time_column,
)
from sottovoce.errors import DataError

CHECKINS, POIS, CITIES = (
    "dataset_TIST2015_Checkins.txt",
    "dataset_TIST2015_POIs.txt",
    "dataset_TIST2015_Cities.txt",
)
TERMS = "Yang et al. 2016 (TIST2015): cite, research use, no redistribution"
_TIME = "%a %b %d %H:%M:%S +0000 %Y"


def read_tist2015(archive: Archive, country: str | None = None) -> RawTables:
    """Check-ins with UTC times; categories are leaf names. `country`: a code ("IT") or a name."""
    venues = read_text(
        archive,
        POIS,
        TextLayout(
            ("item", "latitude", "longitude", "category", "country"),
            {"item": TEXT, "category": TEXT, "country": TEXT},
        ),
    )
    if country is not None:
        venues = _in_country(archive, venues, country)
    ids = venues["item"].combine_chunks()
    layout = TextLayout(
        ("user", "item", "time", "offset"), {"user": INT, "item": TEXT, "time": TEXT, "offset": INT}
    )
    users, rows, times = [], [], []
    for block in stream_text(archive, CHECKINS, layout):
        row = pc.index_in(block.table["item"], value_set=ids)
        known = pc.is_valid(row)
        users.append(block.table["user"].filter(known))
        rows.append(row.filter(known))
        times.append(time_column(block, "time", _TIME, archive.where(CHECKINS), known))
    events = pa.table(
        {
            "user": _joined(users),
            # Venue ids become text again only once, for the rows that are kept.
            "item": pa.DictionaryArray.from_arrays(_joined(rows).combine_chunks(), ids),
            "timestamp": _joined(times),
        }
    )
    if events.num_rows == 0:
        raise DataError(f"{archive.path}: no check-in at any of the {venues.num_rows:,} venues")
    return RawTables(events, None, venues)


def _in_country(archive: Archive, venues: pa.Table, country: str) -> pa.Table:
    code = country.upper()
    if len(code) != 2 and CITIES in archive:
        columns = ("city", "latitude", "longitude", "code", "country", "kind")
        cities = read_text(archive, CITIES, TextLayout(columns, dict.fromkeys(columns, TEXT)))
        codes = dict(zip(cities["country"].to_pylist(), cities["code"].to_pylist(), strict=True))
        code = {name.lower(): c for name, c in codes.items()}.get(country.lower(), code)
    kept = venues.filter(pc.equal(venues["country"], code))
    if kept.num_rows == 0:
        known = ", ".join(sorted(pc.unique(venues["country"]).to_pylist()))
        raise DataError(f"{archive.path} has no venue in {country!r}; it has the countries {known}")
    return kept


def _joined(parts: list[pa.ChunkedArray]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks])


@IMPORTERS.register("foursquare")
class Foursquare(Download):
    """Foursquare check-ins, TIST2015, of all countries or of one."""

    listed_at = 50
    files, terms = (CHECKINS, POIS), TERMS
    takes_country = True

    def read(self, archive: Archive, request: Request) -> RawTables:
        return read_tist2015(archive, request.country)


# --- categories -----------------------------------------------------------------------------------

# Foursquare's old category tree (about 2012 to 2014), flattened to its nine top categories. It was
# written from knowledge of the tree and not compared with an official copy; docs/data.md has a
# check. The TIST2015 files name only the leaf category of a venue; the papers report by top
# category. Names are matched loosely (case, accents, punctuation), because the files have damaged
# letters.


LEAVES: Final[dict[str, list[str]]] = tomllib.loads(
    (files("sottovoce.data") / "foursquare_categories.toml").read_text(encoding="utf-8")
)
"""The known leaf names by top category."""
TOP_CATEGORIES: Final = tuple(LEAVES)


def top_category(leaf: str) -> str | None:
    """The top category of a leaf name (or of a top name); None if it is not known."""
    return _INDEX.get(_folded(leaf))


def with_top_categories(dataset: Dataset) -> Dataset:
    """The same data set with leaf categories replaced by top ones; unknown leaves are left out."""
    if dataset.item_categories is None:
        return dataset
    tops = {leaf: top_category(leaf) for row in dataset.item_categories for leaf in row}
    rolled = tuple(
        tuple(dict.fromkeys(top for leaf in row if (top := tops[leaf]) is not None))
        for row in dataset.item_categories
    )
    return replace(dataset, item_categories=rolled)


def _folded(leaf: str) -> str:
    plain = unicodedata.normalize("NFKD", leaf).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", " ", plain.lower()).strip()


def _stripped(leaf: str) -> str:
    # Some copies lost their accented letters altogether: "Café" reads "Caf" and control characters.
    return _folded(leaf.encode("ascii", "ignore").decode())


_INDEX: Final[dict[str, str]] = {
    key: top
    for top, leaves in LEAVES.items()
    for leaf in (*leaves, top)
    for key in (_folded(leaf), _stripped(leaf))
}
