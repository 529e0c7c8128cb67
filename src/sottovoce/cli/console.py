"""`sottovoce console`, the operator's console of a running server, and `sottovoce device page`, a
person's page; both on this machine alone."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sottovoce.cli import output
from sottovoce.cli.options import AgentsServer, Json, PlaintextTrial
from sottovoce.core.words import said
from sottovoce.errors import SottovoceError, UsageError

if TYPE_CHECKING:
    from sottovoce.web.centre import Centre

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
    from sottovoce.web.process import LinkFile, ask_for_link

    if role not in ("act", "look"):
        raise UsageError(f"--role is act or look, not {role!r}")
    chosen: Literal["act", "look"] = "act" if role == "act" else "look"
    url = ask_for_link(open_folder(folder), chosen, name or Actor.here().who)
    if as_json:
        output.emit({"url": url, "role": role})
        return
    output.show(f"The console of {folder} opens once, within five minutes: {url}")
    if opens and output.has_windows():
        file = LinkFile()
        try:
            webbrowser.open(file.write(url).as_uri())
            time.sleep(_SECONDS)
        finally:
            file.remove()


# --- the page of a person -------------------------------------------------------------------------


def page(
    stores: Annotated[
        list[Path], typer.Argument(metavar="STORE...", help="Folders of `device init`.")
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen at; a free one by default.")
    ] = 0,
    opens: Annotated[
        bool, typer.Option("--open/--no-open", help="Whether to open the page in a browser.")
    ] = True,
    server: AgentsServer = None,
    plaintext: PlaintextTrial = False,
    as_json: Json = False,
) -> None:
    """Show your page: what would leave, what has left, and what you choose.

    The page is served on this machine alone, to one browser, until Ctrl-C. It opens by a link that
    works once, within five minutes. Press Enter in the terminal for a new link; a page that was
    open before then closes. Without a request for half an hour it closes as well. With --json the
    link is printed as {"url": ..., "pid": ...} when it can be opened, and no browser is. The page
    has the browser's language, or that of SOTTOVOCE_LANGUAGE (en or it).

    \b
    Examples:
      sottovoce device page ~/recommendations
      sottovoce device page ~/recommendations ~/town --no-open
    """
    language = output.language_asked()
    from sottovoce.web.centre import Centre
    from sottovoce.web.process import PageProcess

    def invite(url: str) -> None:
        if as_json:
            output.emit({"url": url, "pid": os.getpid()})
            return
        keys = ["terminal.link", "terminal.again"] if sys.stdin.isatty() else ["terminal.link"]
        output.show(*output.told(*(said(key, url=url) for key in keys)))

    with Centre(stores, server=server, plaintext=plaintext) as centre:
        # The first answer can take seconds (nothing is compiled yet): begin before it is asked.
        threading.Thread(target=_prepare, args=[centre], name="prepare", daemon=True).start()
        PageProcess(
            centre,
            invite,
            port=port,
            language=language,
            browser=opens and not as_json and output.has_windows(),
        ).run()


def _prepare(centre: Centre) -> None:
    with contextlib.suppress(SottovoceError):  # the page asks again, and says what is wrong
        centre.state()
