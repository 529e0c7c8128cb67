"""`sottovoce data list | describe | import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json
from sottovoce.errors import UsageError


def list_all(as_json: Json = False) -> None:
    """Data sets that experiments can name.

    Looks in $SOTTOVOCE_DATA, then in the user cache. The town is generated and always there.

    \b
    Example:
      sottovoce data list
    """
    from sottovoce.data import available
    from sottovoce.evaluation.tables import Column, Table

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


def describe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `data list`.")],
    as_json: Json = False,
) -> None:
    """Size, density, attributes, categories, fingerprint and origin of a data set.

    NAME is one of `sottovoce data list`.

    \b
    Example:
      sottovoce data describe town
    """
    from sottovoce.data import load

    described = load(name).describe()
    if as_json:
        output.emit(described)
    else:
        width = max(len(key) for key in described)
        output.show(*[f"{key:<{width}}  {output.words(value)}" for key, value in described.items()])


def bring(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call the data set.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A zip, a folder or one file.")],
    kind: Annotated[
        str, typer.Option(help="What it is; `auto` tells it by its files. A wrong one lists all.")
    ] = "auto",
    country: Annotated[
        str | None, typer.Option(help="Foursquare: two-letter country of the venues.")
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
            help="Table: which column is the user, item, timestamp or rating; repeatable.",
        ),
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Table: what separates its fields; `tab` for a tab.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an older import.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Turn an official download or a table into a data set that experiments can name.

    NAME is what to call it, PATH a downloaded zip, a folder or one file.

    Knows MovieLens (100k, 1M, 10M, CSV), Foursquare TIST2015, Douban Book, and single CSV, TSV or
    Parquet files. Writes to $SOTTOVOCE_DATA, else to the user cache. Their licences do not allow to
    pass these data on.

    \b
    Examples:
      sottovoce data import ml-1m ml-1m.zip
      sottovoce data import italy dataset_TIST2015.zip --country IT --min-user-items 20
      sottovoce data import mine visits.csv
      sottovoce data import mine log.txt --column user=who --column item=what --delimiter ";"
    """
    from sottovoce.data import import_path, prepared_folder, write_prepared

    folder = prepared_folder(name)
    with output.interruptible(f"nothing was imported as {name}; start again"):
        dataset = import_path(
            path,
            kind,
            name=name,
            country=country,
            keep=keep,
            min_user_items=min_user_items,
            require_attribute=require_attribute,
            columns=_columns(column or []),
            delimiter=_delimiter(delimiter),
        )
        write_prepared(dataset, folder, overwrite=overwrite)
    if as_json:
        output.emit({**dataset.describe(), "folder": folder})
    else:
        table = dataset.interactions
        output.show(
            f"{name}: {table.n_users:,} users, {table.n_items:,} items, "
            f"{table.n_interactions:,} interactions, in {folder}"
        )


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
