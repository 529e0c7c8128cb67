"""`sottovoce data list | describe | import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json


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
    """
    from sottovoce.data import import_path, prepared_folder, write_prepared

    folder = prepared_folder(name)
    with output.interruptible(f"nothing was imported as {name}; start again"):
        dataset = import_path(
            path, kind, name=name, country=country, keep=keep, min_user_items=min_user_items
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
