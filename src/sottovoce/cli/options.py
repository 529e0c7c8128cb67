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
