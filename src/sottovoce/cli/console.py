"""`sottovoce console`: the operator's console of a running server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from sottovoce.cli import output
from sottovoce.cli.device_page import has_windows
from sottovoce.cli.options import Json
from sottovoce.errors import UsageError

_SECONDS = 10.0
"""In which a browser takes up the file that leads it to the link."""


def console(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a running server.")],
    role: Annotated[
        str,
        typer.Option(metavar="act|look", help="Whether the console may change anything."),
    ] = "act",
    name: Annotated[
        str | None,
        typer.Option(help="Who you are, for the log; your account's name by default."),
    ] = None,
    opens: Annotated[
        bool, typer.Option("--open/--no-open", help="Whether to open the console in a browser.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Open the operator's console of a running server.

    The console shows rounds and why they wait, devices, versions of the model with their quality,
    terms, the health of other parties and the log of what operators did. With the role act it also
    invites, shuts out, pauses, sets the target, publishes or rolls back a version, changes tokens
    and backs up. It is served on the server's machine alone; from elsewhere, forward its port by
    ssh. The link works once, within five minutes, for the account that opens it. Several may be
    open at once. A console closes half an hour after the last request, when the token of its role
    is changed, and when the server stops: open it anew then.

    \b
    Examples:
      sottovoce console town
      sottovoce console town --role look --name anna --no-open
    """
    import webbrowser

    from sottovoce.stores.acts import Actor
    from sottovoce.stores.server_folder import open_folder
    from sottovoce.web.link import ask_for_link
    from sottovoce.web.process import LinkFile

    if role not in ("act", "look"):
        raise UsageError(f"--role is act or look, not {role!r}")
    chosen: Literal["act", "look"] = "act" if role == "act" else "look"
    url = ask_for_link(open_folder(folder), chosen, name or Actor.here().who)
    if as_json:
        output.emit({"url": url, "role": role})
        return
    output.show(f"The console of {folder} opens once, within five minutes: {url}")
    if opens and has_windows():
        file = LinkFile()
        try:
            webbrowser.open(file.write(url).as_uri())
            time.sleep(_SECONDS)
        finally:
            file.remove()
