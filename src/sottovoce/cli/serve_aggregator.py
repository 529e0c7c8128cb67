"""`sottovoce serve aggregator`: one of the three that check a sum and open it together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import HostNames, IntroductionFile, Threads, served
from sottovoce.cli.serve_terms import Agreed, agreed
from sottovoce.errors import UsageError


@served(8448, "The aggregator listens at")
def aggregator(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the aggregator.")],
    init: Annotated[
        bool,
        typer.Option("--init", help="Only make the aggregator's keys, which the terms will name."),
    ] = False,
    introduction: IntroductionFile = None,
    agree: Agreed = None,
    names: HostNames = None,
    threads: Threads = None,
) -> Any:
    """Serve an aggregator of a checked sum: it has two of three shares, and no contribution.

    In a federation with link.name = "checked-sum" every device divides its contribution into three
    shares. The server is one of three aggregators, and two organisations besides it run one each.
    Without seeing any contribution the three check that each keeps to its bounds, leave out those
    that do not, and open the noisy sum of the others together. This aggregator answers the server
    alone, for at least link.min_devices devices, and for one set of them in a round; the part of
    the noise that link.noise_by gives it is added here. Devices never come here.

    First --init makes the keys. Hand DIR/keys/ca.crt and DIR/seal.pub to the server's operator, who
    makes the federation with --aggregator, --aggregator-ca and --aggregator-key. The operator gives
    you an introduction (`sottovoce serve introduce`); look at the terms in it. With it the first
    start makes DIR that of the federation. Later starts need DIR only. Whoever runs an aggregator
    must not run another one of the same federation, nor share what it has with those who do: any
    two together could read every contribution.

    If the server's operator wants to change the terms, the same option with a new introduction
    shows what would change. With --agree the change holds, also for the folder of a running
    service; keys and all that was told stay. Until the server goes by the new terms, the former
    ones hold as well.

    What it has told survives a crash, in DIR/answered.json: never put an older copy of DIR back but
    with `sottovoce restore`, which has it tell nothing of rounds that it may have forgotten.
    DIR/shares.db has what devices have shared in the present round, sealed. DIR/aggregator.json
    says where a running aggregator listens. Logs are JSON lines on standard error and name no
    device. /health says whether it runs, /metrics counts for Prometheus and needs the token in
    DIR/keys/operator.token. SIGTERM and Ctrl-C stop it; SIGHUP takes up a renewed certificate.

    \b
    Examples:
      sottovoce serve aggregator sums --init --name aggregator.example.net
      sottovoce serve aggregator sums --introduction town-1.json --host 0.0.0.0
      sottovoce serve aggregator sums --host 0.0.0.0
    """
    from sottovoce.services.aggregator import AggregatorService
    from sottovoce.stores.aggregator_folder import (
        AggregatorIntroduction,
        create_aggregator,
        init_aggregator,
        open_aggregator,
    )
    from sottovoce.stores.sum_folder import INTRODUCTION, PUBLIC_KEY

    if init and introduction is not None:
        raise UsageError("--init makes the keys before there is an introduction; use one of them")
    if names and not init:
        raise UsageError("--name goes with --init, when the keys are made")
    if init:
        key, ca = init_aggregator(folder, names or []), folder / "keys" / "ca.crt"
        return {"key": key, "key_file": folder / PUBLIC_KEY, "ca": ca}, [
            f"{folder} has the keys of an aggregator; the server's operator needs {ca} and "
            f"{folder / PUBLIC_KEY}, which are no secrets"
        ]
    if agree is not None and introduction is None:
        raise UsageError("--agree goes with --introduction, a file with the changed terms")
    if introduction is not None and (folder / INTRODUCTION).exists():
        return agreed(
            open_aggregator(folder), AggregatorIntroduction.read(introduction), agree, introduction
        )
    if introduction is not None:
        made = create_aggregator(folder, AggregatorIntroduction.read(introduction)).introduction
        output.note(
            f"{folder} holds aggregator {made.number} of the federation {made.terms.federation}; "
            f"it helps to open sums over at least {made.link.min_devices:,} devices, one in a round"
        )
    return AggregatorService(threads)
