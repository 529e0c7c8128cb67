"""`sottovoce components`."""

from __future__ import annotations

from typing import Annotated

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json
from sottovoce.errors import UsageError


def components(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND]", help="A kind of component, such as baseline, metric or attack."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what experiments and commands can name: ours, and what others have brought.

    Others bring components in a file (`sottovoce --with FILE.py`, or $SOTTOVOCE_COMPONENTS) or in a
    package with entry points of the group sottovoce.components.

    \b
    Examples:
      sottovoce components baseline
      sottovoce --with my_metric.py components metric
    """
    from sottovoce.evaluation.tables import Column, Table
    from sottovoce.registry import registries

    known = registries()
    if kind is not None and kind not in known:
        raise UsageError(f"there is no kind {kind!r} of components; there are {', '.join(known)}")
    rows = [
        {"kind": of, "name": name, "from": registry.place(name), "what": registry.about(name)}
        for of, registry in known.items()
        if kind in (None, of)
        for name in registry
    ]
    if as_json:
        output.emit({"components": rows})
    else:
        columns = [Column("kind"), Column("name"), Column("what"), Column("from")]
        output.show(Table("Components", columns, rows))
