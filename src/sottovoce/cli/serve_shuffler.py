"""`sottovoce serve shuffler`: it mixes the reports of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import HostNames, IntroductionFile, PageOrigins, served
from sottovoce.cli.serve_terms import Agreed, agreed_by_shuffler
from sottovoce.errors import UsageError


@served(8444, "The shuffler listens at")
def shuffler(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the shuffler.")],
    init: Annotated[
        bool,
        typer.Option(
            "--init",
            help="Only make the keys of a shuffler behind another one, which the terms will name.",
        ),
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="With --init: the address at which the shuffler before reaches this one.",
        ),
    ] = None,
    introduction: IntroductionFile = None,
    terms: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Show what these terms would change; with --agree, follow them."
        ),
    ] = None,
    agree: Agreed = None,
    names: HostNames = None,
    goal: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TIER=]N",
            help="Hand a tier's batch over at once when N devices have sent, but never below the "
            "tier's minimum. Give it for one tier by number (0 is the first in the terms) "
            "or for all others; repeatable.",
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
    next_round: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Once, if the marks of what has left are lost: discard what DIR holds, and take "
            "nothing before round N, in which no device has sent.",
        ),
    ] = None,
    origins: PageOrigins = None,
) -> Any:
    """Serve a shuffler: take sealed reports, mix them tier by tier, hand them to the server.

    Each device sends exactly k sealed reports a round. The shuffler cannot read them, the server
    cannot tell whose they are. A batch leaves when its tier has the minimum of devices that the
    terms ask for and has reached its goal or waited long enough; then the shuffler forgets it.
    Below the minimum it never leaves: when the round is over, what was held is dropped.

    The first start makes DIR from an introduction (`sottovoce serve introduce` at the server);
    later starts need DIR only. The terms of the federation name the shuffler's address and its
    certificate authority, so its keys may be needed before: make them with `sottovoce keys init
    DIR/keys`, and the first start will use them. Whoever runs the shuffler must not run the server,
    nor share what it sees with those who do.

    In a chain of shufflers of different organisations reports pass all of them, and nobody can tell
    whose they are as long as one keeps to the rules. Each but the first makes its keys with --init,
    and DIR/hop.json goes to the server's operator. It takes a layer off each report of a whole
    batch and leaves out what does not open or comes twice (counted, by reason). Then it mixes again
    and hands on; below the tier's minimum it drops what is left. Only the first one uses --goal and
    --hold-seconds.

    The terms are those that the server published first. If its operator wants to change them,
    --terms with the file of `sottovoce serve terms --out` shows what would change. With --agree the
    shuffler, running or not, follows them as soon as the server does.

    What leaves is noted outside DIR first, in $SOTTOVOCE_MARKS or by default in
    ~/.local/state/sottovoce/marks. A DIR that was set back to a copy says so in the log, discards
    what it holds, and takes nothing more in that round. A DIR whose marks are not there does not
    start without --next-round.

    What was acknowledged survives a crash. While the server is down, the shuffler holds it.
    DIR/proxy.json says where a running shuffler listens. Logs are JSON lines on standard error and
    name no device and no address. /health says whether it runs, /metrics counts for Prometheus and
    needs the token in DIR/keys/operator.token. SIGTERM and Ctrl-C stop it; SIGHUP takes up a
    renewed certificate. If devices are tabs of a browser, --origin names the pages that may talk to
    the shuffler; give what you give the server.

    \b
    Examples:
      sottovoce serve shuffler mixer --introduction town.json --name proxy.example.net
      sottovoce serve shuffler mixer --host 0.0.0.0 --goal 500 --hold-seconds 600
      sottovoce serve shuffler mixer --goal 0=2000 --goal 1=300
      sottovoce serve shuffler second --init --url https://b.example.net:8444 --name b.example.net
    """
    goals = _goals(goal or [])
    from sottovoce.services.kit.cors import Origins
    from sottovoce.services.shuffler import ShufflerService
    from sottovoce.stores.server_folder import read_introduction
    from sottovoce.stores.shuffler_folder import (
        HOP_FILE,
        create_shuffler_folder,
        init_shuffler,
        open_shuffler_folder,
    )

    if init != (url is not None):
        raise UsageError("--init and --url go together, when the keys are made")
    if init and introduction is not None:
        raise UsageError("--init makes the keys before there is an introduction; use one of them")
    if init and url is not None:
        hop, file = init_shuffler(folder, url, names or []), folder / HOP_FILE
        return {"key": hop.key, "url": hop.url, "file": file}, [
            f"{folder} has the keys of a shuffler behind another one; the server's operator needs "
            f"{file}, which is no secret"
        ]
    if agree is not None and terms is None:
        raise UsageError("--agree goes with --terms, a file with the changed terms")
    if terms is not None:
        return agreed_by_shuffler(folder, terms, agree)
    if introduction is not None:
        made = create_shuffler_folder(folder, read_introduction(introduction), names or [])
        output.note(f"{folder} holds a shuffler of the federation {made.introduction.federation}")
    elif names:
        raise UsageError("--name goes with --introduction, at the first start")
    if goals and open_shuffler_folder(folder).introduction.hop:
        raise UsageError("--goal is the first shuffler's: those behind it hand on what they get")
    Origins.of(origins)
    if next_round is not None:
        opened = open_shuffler_folder(folder)
        with opened.locked():
            opened.discard_before(next_round)
    return ShufflerService(goals, hold_seconds, tuple(origins or ()))


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
