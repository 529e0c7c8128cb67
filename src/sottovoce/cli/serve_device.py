"""`sottovoce serve device`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli import output
from sottovoce.cli.options import AgentsServer, Json, PlaintextTrial


def device(
    stores: Annotated[
        list[Path], typer.Argument(metavar="STORE...", help="Folders of `device init`.")
    ],
    server: AgentsServer = None,
    plaintext: PlaintextTrial = False,
    once: Annotated[
        bool, typer.Option("--once", help="Ask once, do what there is to do, and end.")
    ] = False,
    until_finished: Annotated[
        bool, typer.Option("--until-finished", help="End when the server has run all its rounds.")
    ] = False,
    poll: Annotated[
        float | None,
        typer.Option(
            min=0.01, metavar="SECONDS", help="How often to ask; as the server says by default."
        ),
    ] = None,
    agree: Annotated[
        str,
        typer.Option(
            metavar="DIGEST",
            help="Agree to the terms with this digest in all of these stores, for users who have "
            "seen them elsewhere.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Take part in a federation: the agent of one store, or of several.

    STORE is a folder of `sottovoce device init`. In a federation of data owners the agent brings
    them what waits in the store; --until-finished ends when nothing waits any more. In one of
    devices the agent asks the server whether there is a round, learns at home and sends what the
    user permits, which is read before every round. If she takes no part, or has not agreed to the
    terms that the server shows (`sottovoce device agree`), it only reads what is published: the
    first contact fetches the terms and stops. If the terms name a shuffler, what leaves goes there,
    sealed, and the server is not told that it does. Logs are JSON lines on standard error. The
    agent may be stopped or killed at any moment; nothing is lost.

    \b
    Examples:
      sottovoce serve device ~/recommendations
      sottovoce serve device ~/recommendations --once
    """
    from sottovoce.services.agent.process import Options, serve_devices

    options = Options(server, plaintext, poll, once, until_finished, foreseen=agree)
    served = serve_devices(stores, options)
    if as_json:
        output.emit({"stores": served})
