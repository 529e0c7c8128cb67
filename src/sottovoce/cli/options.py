"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from sottovoce.core.consent import FIELDS, Choice

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to.", metavar="DIR")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Threads to use; all processors by default. Results are the same."),
]
Store = Annotated[Path, typer.Argument(metavar="STORE", help="Folder of a store.")]
User = Annotated[
    str | None,
    typer.Option(
        "--user", metavar="ID", help="Name or number; needed if a store has several users."
    ),
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")]
ExperimentFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Make the federation of this experiment file first."),
]
CatalogueFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Items as CSV or Parquet with the columns item and, if you like, title; the "
        "experiment's data set by default.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=c", help="Change one value of the experiment file."),
]
HostNames = Annotated[
    list[str] | None,
    typer.Option(
        "--name", metavar="HOST", help="A name of this machine, for new keys; repeatable."
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen at.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")]
Plaintext = Annotated[
    bool, typer.Option("--plaintext", help="Without TLS; on a loopback address only.")
]
Behind = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        help="Address or network of a reverse proxy in front of this service, which many visitors "
        "come through: limits per address are then its own business; repeatable.",
    ),
]
ProxyDir = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the proxy.")]
IntroductionFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Make the proxy of this introduction first, a file from the server's operator.",
    ),
]


_SPELLINGS = {"takes_part": ("--takes-part/--no-takes-part",)}
"""Other names of options, by which users of data owners knew them."""


def with_choices(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of a choice that has one, behind its first
    parameter. It gets those that were given, as keywords."""
    types, options = get_type_hints(Choice), []
    for field in fields(Choice):
        kind = FIELDS[field.name]
        if kind.option:
            spellings = (kind.option, *_SPELLINGS.get(field.name, ()))
            option = typer.Option(*spellings, help=kind.help, metavar=kind.metavar)
            hint: Any = Annotated[types[field.name] | None, option]
            options.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint
                )
            )
    first, *rest = (
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in inspect.signature(command, eval_str=True).parameters.values()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    )
    names = {one.name for one in options}

    @functools.wraps(command)
    def chosen(**given: Any) -> None:
        command(**{k: v for k, v in given.items() if v is not None or k not in names})

    chosen.__signature__ = inspect.Signature([first, *options, *rest])  # type: ignore[attr-defined]
    return chosen
