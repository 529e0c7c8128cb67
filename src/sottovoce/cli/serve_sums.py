"""`sottovoce serve helper`, the aggregation helper of a secure sum, and `sottovoce serve
aggregator`, one of the three that check a sum and open it together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import HostNames, IntroductionFile, Said, Threads, served
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
    from sottovoce.stores import helper_folder as party

    def holds(made: party.HelperFolder) -> str:
        link, federation = made.introduction.link, made.introduction.terms.federation
        return (
            f"{folder} holds the helper of the federation {federation}; it tells sums over at "
            f"least {link.min_devices:,} devices, at most {link.groups:,} in a round"
        )

    does = _Party(
        "a helper", party.init_helper, party.create_helper, party.open_helper,
        party.HelperIntroduction.read, holds,
    )  # fmt: skip
    return _prepared(does, folder, init, introduction, agree, names) or HelperService(threads)


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
    from sottovoce.stores import aggregator_folder as party

    def holds(made: party.AggregatorFolder) -> str:
        known = made.introduction
        return (
            f"{folder} holds aggregator {known.number} of the federation {known.terms.federation}; "
            f"it helps to open sums over at least {known.link.min_devices:,} devices, one in a "
            "round"
        )

    does = _Party(
        "an aggregator", party.init_aggregator, party.create_aggregator, party.open_aggregator,
        party.AggregatorIntroduction.read, holds,
    )  # fmt: skip
    return _prepared(does, folder, init, introduction, agree, names) or AggregatorService(threads)


@dataclass(frozen=True, slots=True)
class _Party:
    """What helper and aggregators do differently on the way to a folder that can be served."""

    words: str
    init: Callable[[Path, list[str]], str]
    create: Callable[[Path, Any], Any]
    open: Callable[[Path], Any]
    read: Callable[[Path], Any]
    holds: Callable[[Any], str]


def _prepared(
    party: _Party,
    folder: Path,
    init: bool,
    introduction: Path | None,
    agree: str | None,
    names: list[str] | None,
) -> Said | None:
    """Make the keys, or agree to changed terms, and return what to say of it. Return None if the
    folder can be served; with an introduction it becomes that of a federation first."""
    from sottovoce.stores.sum_folder import INTRODUCTION, PUBLIC_KEY

    if init and introduction is not None:
        raise UsageError("--init makes the keys before there is an introduction; use one of them")
    if names and not init:
        raise UsageError("--name goes with --init, when the keys are made")
    if init:
        key, ca = party.init(folder, names or []), folder / "keys" / "ca.crt"
        return {"key": key, "key_file": folder / PUBLIC_KEY, "ca": ca}, [
            f"{folder} has the keys of {party.words}; the server's operator needs {ca} and "
            f"{folder / PUBLIC_KEY}, which are no secrets"
        ]
    if introduction is None:
        if agree is not None:
            raise UsageError("--agree goes with --introduction, a file with the changed terms")
        return None
    if (folder / INTRODUCTION).exists():
        return agreed(party.open(folder), party.read(introduction), agree, introduction)
    output.note(party.holds(party.create(folder, party.read(introduction))))
    return None
