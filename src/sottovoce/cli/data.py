"""`sottovoce data show | import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.data.importers import Imported

_LOOKED_AT = 5_000_000
"""Interactions that are read again to describe them."""


def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Describe this one of them.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the data sets that experiments can name, or describe one of them.

    It looks in $SOTTOVOCE_DATA, then in the user cache. The town is generated and always there. Of
    one it says size, density, attributes, categories, fingerprint and origin.

    \b
    Examples:
      sottovoce data show
      sottovoce data show town
    """
    from sottovoce.data.sources import available, load
    from sottovoce.evaluation.tables import Column, Table

    if name is not None:
        described = load(name).describe()
        width = max(len(key) for key in described)
        lines = [f"{key:<{width}}  {output.words(value)}" for key, value in described.items()]
        output.emit(described) if as_json else output.show(*lines)
        return
    found = available()
    if as_json:
        output.emit({"data": [{"name": name, "folder": place} for name, place in found.items()]})
        return
    rows = [
        {"name": name, "where": "generated from a seed" if place is None else str(place)}
        for name, place in found.items()
    ]
    output.show(
        Table("Data sets", [Column("name"), Column("where")], rows),
        "Add one with: sottovoce data import NAME PATH",
    )


def bring(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call the data set.")],
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="A zip, a folder or one file.")
    ] = None,
    train: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ready split: the file that is learnt from.")
    ] = None,
    validation: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Ready split: the file that is tuned on, if there is one."
        ),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ready split: the file that is held out.")
    ] = None,
    kind: Annotated[
        str, typer.Option(help="What it is; `auto` tells it by its files. A wrong one lists all.")
    ] = "auto",
    country: Annotated[
        str | None, typer.Option(help="Foursquare: the two-letter country of the venues.")
    ] = None,
    keep: Annotated[
        Literal["first", "last"], typer.Option(help="Which of repeated events counts.")
    ] = "last",
    min_user_items: Annotated[
        int | None, typer.Option(min=1, help="Drop users with fewer items.")
    ] = None,
    require_attribute: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Drop users whose attribute NAME is not known."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=NAME",
            help="Table: say which column is the user, item, timestamp, rating or split (`-` for "
            "none); repeatable.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Table without a line of names: say what its columns are, `_` for one that "
            "means nothing.",
        ),
    ] = None,
    header: Annotated[
        bool,
        typer.Option("--header/--no-header", help="Table: whether its first line has names."),
    ] = True,
    delimiter: Annotated[
        str | None, typer.Option(help="Table: the text that separates its fields; `tab` for a tab.")
    ] = None,
    dates: Annotated[
        Literal["day-first", "month-first"] | None,
        typer.Option(
            help="Table: how days such as 03/04/2024 are written, if the file does not tell."
        ),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out rows that cannot be read; count them.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an older import.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Turn an official download or files of your own into a data set that experiments can name.

    NAME is what to call it, PATH a downloaded zip, a folder or one file.

    It knows MovieLens (100k, 1M, 10M, CSV), Foursquare TIST2015, Douban Book, RecBole's atomic
    files and lists with a user per line (LightGCN). It also reads tables: delimited text,
    Parquet or JSON (an object per line, or a list), also packed (gz, bz2, xz, zst), with or without
    a line of names, in one file or as a ready split. It says what it took for what, and writes to
    $SOTTOVOCE_DATA, else to the user cache. The licences of downloads do not allow you to pass
    these data on.

    \b
    Examples:
      sottovoce data import ml-1m ml-1m.zip
      sottovoce data import italy dataset_TIST2015.zip --country IT --min-user-items 20
      sottovoce data import mine visits.csv.gz
      sottovoce data import mine --train a.csv --validation b.csv --test c.csv
      sottovoce data import mine ratings.dat --no-header --columns user,item,rating,time
      sottovoce data import mine log.txt --column user=who --column item=what --delimiter ";"
    """
    from sottovoce.data.importers import import_into
    from sottovoce.data.sources import prepared_folder

    folder = prepared_folder(name)
    parts = {"train": train, "validation": validation, "test": test}
    with (
        output.interruptible(f"nothing was imported as {name}; start again"),
        output.ended_by_signals(),
        output.progress() as report,
    ):
        done = import_into(
            folder,
            path,
            kind,
            overwrite=overwrite,
            report=report,
            name=name,
            country=country,
            keep=keep,
            min_user_items=min_user_items,
            require_attribute=require_attribute,
            columns=_columns(column or []),
            delimiter=_delimiter(delimiter),
            header=header,
            names=[part.strip() for part in columns.split(",")] if columns else (),
            dates=dates,
            skip_bad=skip_bad,
            parts={part: file for part, file in parts.items() if file is not None},
        )
    if as_json:
        output.emit(_described(folder, name, done))
        return
    told = [f"  {what}: {output.one_line(answer)}" for what, answer in done.decided.items()]
    sizes = ", ".join(f"{part} {count:,}" for part, count in done.parts.items())
    output.show(
        f"{name}: {done.users:,} users, {done.items:,} items, "
        f"{done.interactions:,} interactions, in {folder}",
        *told,
        *([f"  parts: {sizes} (experiments take them with data.split=published)"] if sizes else []),
    )


def _described(folder: Path, name: str, done: Imported) -> dict[str, Any]:
    """All that `data show NAME` says, where the data set is small enough to be looked at whole."""
    from sottovoce.data.prepared import read_prepared

    told = {"name": name, "users": done.users, "items": done.items,
            "interactions": done.interactions}  # fmt: skip
    if done.interactions <= _LOOKED_AT:
        told = read_prepared(folder, name).describe()
    return {**told, "folder": folder, "decided": done.decided, "parts": done.parts}


def _columns(given: list[str]) -> dict[str, str]:
    """role=name pairs; which roles there are is the importer's business."""
    columns: dict[str, str] = {}
    for pair in given:
        role, sign, name = pair.partition("=")
        if not sign or not role or not name:
            raise UsageError(f"--column wants ROLE=NAME, as in user=who, not {pair!r}")
        if role in columns:
            raise UsageError(f"--column names the {role} twice: {columns[role]!r} and {name!r}")
        columns[role] = name
    return columns


def _delimiter(given: str | None) -> str | None:
    """A tab can hardly be typed, so it has two names."""
    if given is not None and (not given.isascii() or not given or set(given) & set("\0\n\r")):
        raise UsageError(f"--delimiter must be plain characters within a line, not {given!r}")
    return "\t" if given in ("tab", "\\t") else given
