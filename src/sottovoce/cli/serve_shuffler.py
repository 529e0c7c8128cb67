"""`sottovoce serve proxy`: the anonymising proxy of a federation."""

from __future__ import annotations

from typing import Annotated

import typer

from sottovoce.cli import output
from sottovoce.cli.options import (
    Behind,
    Host,
    HostNames,
    IntroductionFile,
    Json,
    Plaintext,
    Port,
    ProxyDir,
)
from sottovoce.errors import UsageError


def proxy(
    folder: ProxyDir,
    introduction: IntroductionFile = None,
    names: HostNames = None,
    host: Host = "127.0.0.1",
    port: Port = 8444,
    goal: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TIER=]N",
            help="Hand a tier's batch over at once when N devices have sent; for one tier by "
            "number (0 is the first in the terms) or for all others; repeatable.",
        ),
    ] = None,
    hold_seconds: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=30 * 86400.0,
            help="How long a batch that has reached its minimum waits for its goal.",
        ),
    ] = 60.0,
    plaintext: Plaintext = False,
    behind: Behind = None,
    as_json: Json = False,
) -> None:
    """Serve a proxy: take sealed reports, mix them tier by tier, hand them to the server.

    Each device sends exactly k sealed reports a round. The proxy cannot read them, the server
    cannot tell whose they are. A batch leaves when its tier has the minimum of devices that the
    terms ask for and has reached its goal or waited long enough; below the minimum it never does:
    when the round is over, what was held is dropped. Then the proxy forgets it.

    The first start makes DIR from an introduction (`sottovoce serve introduce` at the server);
    later starts need DIR only. The terms of the federation name the proxy's address and its
    certificate authority, so its keys may be needed before: make them with `sottovoce keys init
    DIR/keys`, and the first start will use them. Whoever runs the proxy must not run the server,
    nor share what it sees with those who do.

    What was acknowledged survives a crash. While the server is down, the proxy holds what it has.
    DIR/proxy.json says where a running proxy listens. Logs are JSON lines on standard error and
    name no device and no address. /health says whether it runs, /metrics counts for Prometheus and
    needs the token in DIR/keys/operator.token. SIGTERM and Ctrl-C stop it; SIGHUP takes up a
    renewed certificate.

    \b
    Examples:
      sottovoce serve proxy mixer --introduction town.json --name proxy.example.net
      sottovoce serve proxy mixer --host 0.0.0.0 --goal 500 --hold-seconds 600
      sottovoce serve proxy mixer --goal 0=2000 --goal 1=300
    """
    goals = _goals(goal or [])
    from sottovoce.services.kit.connections import reverse_proxies
    from sottovoce.services.shuffler import ProxyLimits, run_proxy
    from sottovoce.stores.server_folder import read_introduction
    from sottovoce.stores.shuffler_folder import create_proxy_folder

    if introduction is not None:
        made = create_proxy_folder(folder, read_introduction(introduction), names or [])
        output.note(f"{folder} holds a proxy of the federation {made.introduction.federation}")
    elif names:
        raise UsageError("--name goes with --introduction, at the first start")
    run_proxy(
        folder,
        host,
        port,
        goal=goals,
        hold_seconds=hold_seconds,
        plaintext=plaintext,
        limits=ProxyLimits(behind=reverse_proxies(behind)),
        ready=None if as_json else lambda url: output.show(f"The proxy listens at {url}"),
    )
    if as_json:
        output.emit({"folder": folder, "stopped": True})


def _goals(given: list[str]) -> dict[int | None, int]:
    found: dict[int | None, int] = {}
    for text in given:
        tier, equals, count = text.rpartition("=")
        if not count.isdecimal() or int(count) < 1 or (equals and not tier.isdecimal()):
            raise UsageError(f"--goal is a number of devices, or TIER=N, not {text!r}")
        which = int(tier) if equals else None
        if which in found:
            raise UsageError(f"--goal {text!r} says something twice")
        found[which] = int(count)
    return found
