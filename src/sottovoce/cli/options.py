"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to.", metavar="DIR")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Threads to use; all processors by default. Results are the same."),
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
