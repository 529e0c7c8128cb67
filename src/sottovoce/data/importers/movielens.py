"""MovieLens as GroupLens packs it: 100K, 1M and 10M (.dat), and the CSV editions since 20M."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sottovoce.data.assembly import RawTables
from sottovoce.data.importers.base import IMPORTERS, Download, Request
from sottovoce.data.importers.files import FLOAT, INT, TEXT, Archive, TextLayout, read_text

TERMS = "GroupLens (Harper & Konstan 2015): research use, no redistribution"
_NO_GENRE = "(no genres listed)"
_GENRE_FLAGS = tuple(f"genre{g}" for g in range(19))


def read_100k(archive: Archive) -> RawTables:
    """u.data, u.user, u.item, u.genre."""
    events = read_text(
        archive,
        "u.data",
        TextLayout(
            ("user", "item", "rating", "timestamp"),
            {"user": INT, "item": INT, "rating": FLOAT, "timestamp": INT},
        ),
    )
    columns = ("user", "age", "gender", "occupation", "zip")
    users = read_text(archive, "u.user", TextLayout(columns, dict.fromkeys(columns, TEXT), "|"))
    listed = read_text(
        archive, "u.genre", TextLayout(("genre", "number"), {"genre": TEXT, "number": INT}, "|")
    ).to_pylist()
    names = {row["number"]: row["genre"] for row in listed}
    films = read_text(
        archive,
        "u.item",
        TextLayout(
            ("item", "title", "released", "video", "url", *_GENRE_FLAGS),
            {"item": INT, "title": TEXT, **dict.fromkeys(_GENRE_FLAGS, INT)},
            "|",
        ),
    )
    flags = [films[flag].to_pylist() for flag in _GENRE_FLAGS]
    genres = [
        [names.get(g, str(g)) for g, flag in enumerate(row) if flag]
        for row in zip(*flags, strict=True)
    ]
    items = pa.table({"item": films["item"], "title": films["title"], "categories": genres})
    order = ["user", "gender", "age", "occupation", "zip"]
    return RawTables(events, users.select(order), items)


def read_dat(archive: Archive) -> RawTables:
    """ratings.dat, movies.dat and, in 1M, users.dat; fields are parted by two colons."""
    events = read_text(
        archive,
        "ratings.dat",
        TextLayout(
            ("user", "item", "rating", "timestamp"),
            {"user": INT, "item": INT, "rating": FLOAT, "timestamp": INT},
            "::",
        ),
    )
    films = read_text(
        archive,
        "movies.dat",
        TextLayout(("item", "title", "genres"), {"item": INT, "title": TEXT, "genres": TEXT}, "::"),
    )
    users = None
    if "users.dat" in archive:
        columns = ("user", "gender", "age", "occupation", "zip")
        users = read_text(
            archive, "users.dat", TextLayout(columns, dict.fromkeys(columns, TEXT), "::")
        )
    return RawTables(events, users, _films(films))


def read_csv(archive: Archive) -> RawTables:
    """ratings.csv and movies.csv."""
    kinds = {"userId": INT, "movieId": INT, "rating": FLOAT, "timestamp": INT}
    events = read_text(archive, "ratings.csv", TextLayout((), kinds, ",", header=True))
    films = read_text(
        archive,
        "movies.csv",
        TextLayout(
            (), {"movieId": INT, "title": TEXT, "genres": TEXT}, ",", header=True, quoted=True
        ),
    )
    return RawTables(
        events.rename_columns(["user", "item", "rating", "timestamp"]),
        None,
        _films(films.rename_columns(["item", "title", "genres"])),
    )


def _films(films: pa.Table) -> pa.Table:
    genres = pc.split_pattern(films["genres"], "|").to_pylist()
    categories = [[g for g in row if g and g != _NO_GENRE] for row in genres]
    return pa.table(
        {
            "item": films["item"],
            "title": films["title"],
            "categories": pa.array(categories, pa.list_(pa.string())),
        }
    )


@IMPORTERS.register("movielens-100k")
class MovieLens100K(Download):
    """MovieLens 100K, with attributes of users."""

    listed_at = 10
    files, terms = ("u.data", "u.item"), TERMS

    def read(self, archive: Archive, request: Request) -> RawTables:
        return read_100k(archive)


@IMPORTERS.register("movielens-1m")
class MovieLens1M(Download):
    """MovieLens 1M, with attributes of users."""

    listed_at = 20
    files, terms = ("ratings.dat", "movies.dat", "users.dat"), TERMS

    def read(self, archive: Archive, request: Request) -> RawTables:
        return read_dat(archive)


@IMPORTERS.register("movielens-10m")
class MovieLens10M(Download):
    """MovieLens 10M."""

    listed_at = 30
    files, terms = ("ratings.dat", "movies.dat"), TERMS

    def read(self, archive: Archive, request: Request) -> RawTables:
        return read_dat(archive)


@IMPORTERS.register("movielens-csv")
class MovieLensCSV(Download):
    """MovieLens 20M and later editions."""

    listed_at = 40
    files, terms = ("ratings.csv", "movies.csv"), TERMS

    def read(self, archive: Archive, request: Request) -> RawTables:
        return read_csv(archive)
