"""`sottovoce serve helper`: the aggregation helper of a secure sum."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import HostNames, IntroductionFile, Threads, served
from sottovoce.cli.serve_terms import Agreed, agreed
from sottovoce.errors import UsageError


@served(8447, "The helper listens at")
def helper(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the helper.")],
    init: Annotated[
        bool,
        typer.Option("--init", help="Only make the helper's keys, which the terms will name."),
    ] = False,
    introduction: IntroductionFile = None,
    agree: Agreed = None,
    names: HostNames = None,
    threads: Threads = None,
) -> Any:
    """Serve the aggregation helper of a secure sum: it knows masks, and no update.

    In a federation with link.name = "secure-sum" every device masks its update and seals the seed
    of the mask to this helper. The server gets both, can read neither, and asks the helper for the
    sum of the masks of a round. The helper tells it for at least link.min_devices devices, and for
    one set of them in a round; the noise of the terms, if they have any, is added here. What the
    server opens is the sum over these devices. While the server looks for a device that spoils
    sums, the set may come in groups that have no device in common. There are at most link.groups of
    them, each large enough by itself, and the helper permits few such rounds. Devices never come
    here.

    First --init makes the keys. Hand DIR/keys/ca.crt and DIR/seal.pub to the server's operator, who
    makes the federation with --proxy, --proxy-ca and --proxy-key. The operator gives you an
    introduction (`sottovoce serve introduce`); look at the terms in it. With it the first start
    makes DIR that of the federation. Later starts need DIR only. Whoever runs the helper must not
    run the server, nor share what it has with those who do: together they could read every update.

    If the server's operator wants to change the terms, the same option with a new introduction
    shows what would change. With --agree the change holds, also for the folder of a running
    service; keys and all that was told stay. Until the server goes by the new terms, the former
    ones hold as well.

    What it has told survives a crash, in DIR/answered.json: never put an older copy of DIR back but
    with `sottovoce restore`, which has it tell nothing of rounds that it may have forgotten.
    DIR/masker.json says where a running helper listens. Logs are JSON lines on standard error and
    name no device. /health says whether it runs, /metrics counts for Prometheus and needs the token
    in DIR/keys/operator.token. SIGTERM and Ctrl-C stop it; SIGHUP takes up a renewed certificate.

    \b
    Examples:
      sottovoce serve helper masks --init --name proxy.example.net
      sottovoce serve helper masks --introduction town.json --host 0.0.0.0
      sottovoce serve helper masks --host 0.0.0.0
    """
    from sottovoce.services.helper import HelperService
    from sottovoce.stores.helper_folder import (
        INTRODUCTION,
        PUBLIC_KEY,
        create_helper,
        init_helper,
        open_helper,
        read_helper_introduction,
    )

    if init and introduction is not None:
        raise UsageError("--init makes the keys before there is an introduction; use one of them")
    if names and not init:
        raise UsageError("--name goes with --init, when the keys are made")
    if init:
        key, ca = init_helper(folder, names or []), folder / "keys" / "ca.crt"
        return {"key": key, "key_file": folder / PUBLIC_KEY, "ca": ca}, [
            f"{folder} has the keys of a helper; the server's operator needs {ca} and "
            f"{folder / PUBLIC_KEY}, which are no secrets"
        ]
    if agree is not None and introduction is None:
        raise UsageError("--agree goes with --introduction, a file with the changed terms")
    if introduction is not None and (folder / INTRODUCTION).exists():
        return agreed(
            open_helper(folder), read_helper_introduction(introduction), agree, introduction
        )
    if introduction is not None:
        made = create_helper(folder, read_helper_introduction(introduction))
        link, terms = made.introduction.link, made.introduction.terms
        output.note(
            f"{folder} holds the helper of the federation {terms.federation}; it tells sums over "
            f"at least {link.min_devices:,} devices, at most {link.groups:,} in a round"
        )
    return HelperService(threads)
