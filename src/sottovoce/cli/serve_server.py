"""What the operator of a server does: `sottovoce serve server`, `invite`, `introduce`,
`publish`, `target` and `shut-out`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.making import make_federation
from sottovoce.cli.options import (
    AggregatorCas,
    AggregatorKeys,
    AggregatorUrls,
    Behind,
    CatalogueFile,
    ExperimentFile,
    HostNames,
    NextShufflers,
    OpenPlaces,
    PageOrigins,
    ProxyCa,
    ProxyKey,
    ProxyUrl,
    Said,
    Settings,
    says,
    served,
    three_aggregators,
    through_proxy,
)
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.stores.acts import Acts
    from sottovoce.stores.server_folder import ServerFolder


def _server_of(folder: Path) -> Path:
    from sottovoce.stores.server_folder import server_of

    return server_of(folder)


Folder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="Folder of the federation's server, or the one of `serve setup` around it.",
        callback=_server_of,
    ),
]


@served(8443)
def server(
    folder: Folder,
    experiment: ExperimentFile = None,
    catalogue: CatalogueFile = None,
    settings: Settings = None,
    names: HostNames = None,
    proxy: ProxyUrl = None,
    proxy_ca: ProxyCa = None,
    proxy_key: ProxyKey = None,
    aggregators: AggregatorUrls = None,
    aggregator_cas: AggregatorCas = None,
    aggregator_keys: AggregatorKeys = None,
    chain: NextShufflers = None,
    spare: Annotated[
        int,
        typer.Option(
            min=0,
            max=10_000_000,
            help="With --experiment: places for items that are yet to come (`serve catalogue`).",
        ),
    ] = 0,
    rounds: Annotated[int | None, typer.Option(min=0, help="Run at least so many rounds.")] = None,
    skip_to_round: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="After the database was set back to an older copy: go on from its model with "
            "round N, which no device has seen yet.",
        ),
    ] = None,
    console: Annotated[
        bool,
        typer.Option(
            "--console/--no-console",
            help="Whether to serve the operator's console, on this machine alone.",
        ),
    ] = True,
    console_port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="The console's port. By default a free one is taken."),
    ] = 0,
    origins: PageOrigins = None,
    open_places: OpenPlaces = None,
    forwarded: Annotated[
        str,
        typer.Option(
            metavar="HEADER",
            help="With --behind: the header in which your reverse proxy says who asks, like "
            "x-forwarded-for, for the limits of open places. Nobody else's word counts.",
        ),
    ] = "",
    behind: Behind = None,
) -> Any:
    """Serve a federation: publish rounds and models, take reports, fold them.

    The first start makes DIR from an experiment file; later starts need DIR only. If the algorithm
    is FPL, algorithm.triples in the file must be a number. FMF-LDP needs --proxy and --proxy-ca,
    too, and --then for each further shuffler of a chain. A secure sum also needs --proxy-key, from
    `sottovoce serve helper --init`. A checked sum needs --aggregator, --aggregator-ca and
    --aggregator-key, twice each, from two organisations that run `sottovoce serve aggregator
    --init`; this server is the third aggregator. Everything that was acknowledged survives a crash,
    and the next start goes on where the last one was. DIR/server.json says where a running server
    listens. Logs are JSON lines on standard error. SIGTERM and Ctrl-C stop it; SIGHUP takes up a
    renewed certificate. `sottovoce console DIR` opens the operator's console.

    Devices can be tabs of a browser: --origin names the pages that may talk to the server, and
    --open-places lets visitors in whom nobody has invited.

    Several servers can share one federation: give each a copy of DIR (without server.db) and the
    same PostgreSQL database in SOTTOVOCE_DATABASE, as postgresql://user@host/name, and put any load
    balancer in front. All commands with DIR read that variable; without it the state is in DIR.

    \b
    Examples:
      sottovoce serve server town --experiment my.toml --catalogue items.csv --name example.org
      sottovoce serve server town --host 0.0.0.0
      sottovoce serve server town --experiment a.toml --proxy https://p.example --proxy-ca p.crt
      sottovoce serve server town --rounds 200
      sottovoce serve server town --origin https://shop.example --open-places 10000
    """
    from sottovoce.services.kit.cors import Origins
    from sottovoce.services.server.process import ServerService

    Origins.of(origins)
    _require_header(forwarded, behind)

    through = through_proxy(proxy, proxy_ca, proxy_key)
    others = three_aggregators(aggregators, aggregator_cas, aggregator_keys)
    if experiment is not None:
        made = make_federation(
            *(folder, experiment, settings or [], catalogue, names or [], rounds, through),
            proxy_key,
            aggregators=others,
            chain=chain or (),
            spare=spare,
        )
        words = f"{folder} holds the federation {made.plan.terms.federation}"
        output.note(f"{words}, {made.plan.terms.n_items:,} items")
        own = made.plan.terms.release.contributing
        if own is not None and not own.period_days:
            output.note(
                "Periods follow each other at once, and each costs everybody who takes part up to "
                "her loudness. In a federation of people let them last, as with --set "
                "release.period_days=365."
            )
    elif catalogue is not None or settings or names or through or others or chain or spare:
        raise UsageError(
            "--catalogue, --spare, --set, --name, --proxy and --aggregator go with --experiment, "
            "at the first start"
        )
    page = None
    if console:
        from sottovoce.web.console import console_of

        page = console_of(console_port)
    start = rounds, skip_to_round, page
    return ServerService(*start, tuple(origins or ()), open_places, forwarded)


def _require_header(forwarded: str, behind: list[str] | None) -> None:
    if forwarded and not behind:
        raise UsageError("--forwarded goes with --behind, the reverse proxy whose word it is")
    if forwarded and not re.fullmatch(r"[A-Za-z0-9-]{1,64}", forwarded):
        raise UsageError(f"--forwarded is a header's name, like x-forwarded-for, not {forwarded!r}")


@says
def invite(
    folder: Folder,
    count: Annotated[
        int, typer.Option(min=1, max=100_000, help="How many devices are invited.")
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder for the invitation files. By default it is `invitations`, beside "
            "what `serve setup` made if it did.",
        ),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(
            min=0, help="The number of the first device. By default it is the next free one."
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The address at which devices reach the server. By default it is that of the "
            "running one.",
        ),
    ] = None,
    label: Annotated[
        str, typer.Option(metavar="TEXT", help="What you call these devices, in `serve devices`.")
    ] = "",
    link: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="For tabs: write each as a link to this page, which takes it up; the invitation "
            "stands behind #, which browsers send to nobody.",
        ),
    ] = None,
) -> Said:
    """Write invitations, a file for each new device.

    An invitation is good for one device and is a secret: hand it over in confidence. The server may
    be running. Only hashes of the tokens are kept. With --link each file has one line, a link that
    whoever is invited opens in a browser.

    \b
    Examples:
      sottovoce serve invite town --count 20 --server https://example.org:8443
      sottovoce serve invite town --out /media/usb --label "Via Roma 5"
      sottovoce serve invite town --link https://shop.example/ --server https://api.shop.example
    """
    from sottovoce.stores.server_folder import open_folder, setup_around
    from sottovoce.wire.invitations import require_page

    if link is not None:
        require_page(link)
    found = open_folder(folder)
    address = address_of_server(found, server)
    out = out or (setup_around(found.path) or Path()) / "invitations"
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    with acting(folder) as acts:
        numbers = None if first is None else range(first, first + count)
        invitations = acts.invite(address, count, numbers=numbers, label=label)
    ending = "json" if link is None else "link"
    files = [out / f"device-{invitation.number}.{ending}" for invitation in invitations]
    for file, invitation in zip(files, invitations, strict=True):
        if link is None:
            invitation.write(file)
        else:
            invitation.write_link(file, link)
    written = [invitation.number for invitation in invitations]
    return {"server": address, "numbers": written, "files": [*map(str, files)]}, [
        f"{len(files)} invitation(s) to {address} in {out}; each is a secret"
    ]


@says
def introduce(
    folder: Folder,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The file for the introduction.")
    ] = Path("introduction.json"),
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The address at which the shuffler reaches the server. By default it is that of "
            "the running one.",
        ),
    ] = None,
    hop: Annotated[
        int, typer.Option(min=1, help="Which shuffler of a chain it is for; 1 is the first.")
    ] = 1,
) -> Said:
    """Write the introduction of the federation's shuffler or helper, a file for whoever runs it.

    It tells a shuffler where the server is, how it is known and how it knows the shuffler. It tells
    the helper of a secure sum (`sottovoce serve helper`) what the terms are and how it knows the
    server. It is a secret: hand it over in confidence. The federation's terms must name one of the
    two. In a chain of shufflers each has an introduction of its own, which also says how it knows
    the one before it and how the one behind it knows it. If sums are checked, each of the two other
    aggregators (`sottovoce serve aggregator`) gets a file of its own, whose name ends in its
    number. While a change of terms waits for them (`sottovoce serve terms`), the terms in it are
    the new ones.

    \b
    Examples:
      sottovoce serve introduce town --out town.json --server https://example.org:8443
      sottovoce serve introduce town --hop 2 --out second.json --server https://example.org:8443
    """
    from sottovoce.stores import server_folder as folders
    from sottovoce.stores.server_folder import write_introduction

    found = _proposed(folders.open_folder(folder))
    if found.plan.summed:  # the helper is asked by the server and need not know where that is
        from sottovoce.stores.helper_folder import helper_introduction

        helper_introduction(found).write(out)
        told = f"The introduction of the helper is {out}; it is a secret"
        return {"server": None, "file": out}, [told]
    if found.plan.checked:
        from sottovoce.stores.aggregator_folder import OTHERS, aggregator_introduction

        files = [out.with_stem(f"{out.stem}-{number}") for number in OTHERS]
        for number, file in zip(OTHERS, files, strict=True):
            aggregator_introduction(found.plan.terms, found.keys, number).write(file)
        return {"server": None, "files": files}, [
            f"The introduction of aggregator {number}, for {url}, is {file}; it is a secret"
            for number, url, file in zip(OTHERS, _urls(found), files, strict=True)
        ]
    address = address_of_server(found, server)
    write_introduction(out, folders.introduction(found, address, hop - 1))
    which = f"shuffler number {hop}" if found.plan.terms.chained else "the shuffler"
    told = f"The introduction of {which} to {address} is {out}; it is a secret"
    return {"server": address, "file": out}, [told]


def _proposed(folder: ServerFolder) -> ServerFolder:
    """The folder under the terms that will be in force: others have to agree to them first."""
    from dataclasses import replace

    from sottovoce.stores import amending
    from sottovoce.stores.server_folder import DATABASE_VARIABLE, amended

    kept = folder.kept_in()
    elsewhere = kept == "postgresql" and not os.environ.get(DATABASE_VARIABLE)
    if kept in (None, "nowhere") or elsewhere:  # then a change is known by the files alone
        return folder
    with contextlib.closing(folder.database()) as store, store.reading() as link:
        now, after = folder.caught_up(link), amending.proposed_terms(link)
    return now if after is None else replace(now, plan=amended(now.plan, after))


def _urls(folder: ServerFolder) -> tuple[str, ...]:
    link = folder.plan.terms.link.checking
    return () if link is None else link.urls


@says
def publish(
    folder: Folder,
    version: Annotated[int, typer.Argument(min=0, help="Number of the version.")],
) -> Said:
    """Publish a version of the model: one that was held back, or an earlier one again.

    The server may be running. Devices take the version up at their next visit. A version that is
    offered later is compared with this one.

    \b
    Example:
      sottovoce serve publish town 6
    """
    with acting(folder) as acts:
        done = acts.publish(version)
    before, pinned = done["before"], done["pinned"] is not None
    told = [f"Version {version} is published; before, {'none' if before is None else before}"]
    if pinned:
        told.append(
            "It stays published: new versions are held back until you publish another one. "
            "Publishing the newest one lets new versions follow by themselves again."
        )
    return {"folder": folder, "published": version, "before": before, "pinned": pinned}, told


@says
def target(
    folder: Folder,
    rounds: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Rounds to run in all.")],
) -> Said:
    """Raise the number of rounds to run, of a running server or of a stopped one.

    With gram, each further period costs every person who takes part up to her loudness once more.

    \b
    Example:
      sottovoce serve target town --rounds 200
    """
    from sottovoce.stores.server import position
    from sottovoce.stores.server_folder import open_folder

    with acting(folder) as acts:
        with acts.database.reading() as link:
            same = position(link).target == rounds
        if same:  # a script may say it again
            told = [f"{rounds:,} rounds to run, as before: nothing was done"]
            return {"folder": folder, "rounds": rounds, "before": rounds}, told
        before = acts.raise_target(rounds)["before"]
    told = [f"{rounds:,} rounds to run; before, {before:,}"]
    if open_folder(folder).plan.terms.contributes:
        told.append(
            "Each further period costs every person who takes part up to her loudness once more"
        )
    return {"folder": folder, "rounds": rounds, "before": before}, told


@says
def shut_out(
    folder: Folder,
    numbers: Annotated[
        list[int], typer.Argument(metavar="NUMBER...", min=0, help="Numbers of devices.")
    ],
    undo: Annotated[bool, typer.Option("--undo", help="Let them in again.")] = False,
) -> Said:
    """Shut devices out: from now on they are not asked, and their reports are refused and counted.

    The server may be running. An invitation that was not used is good for nobody any more. What a
    device has sent before stays in the model, and what it has sent in the open round counts.

    \b
    Examples:
      sottovoce serve shut-out town 7 12
      sottovoce serve shut-out town 12 --undo
    """
    from sottovoce.stores.server import shut_numbers

    with acting(folder) as acts:
        (acts.readmit if undo else acts.shut_out)(numbers)
        with acts.database.reading() as link:
            out = shut_numbers(link)
    told = f"Shut out: {', '.join(map(str, out)) or 'nobody'}"
    return {"folder": folder, "shut_out": out}, [told]


@contextlib.contextmanager
def acting(folder: Path) -> Iterator[Acts]:
    """What the operator at this machine does to the federation in a folder."""
    from sottovoce.stores.acts import Actor, Acts
    from sottovoce.stores.server_folder import open_folder

    found = open_folder(folder)
    with contextlib.closing(found.database()) as store:
        yield Acts(found, store, Actor.here())


def address_of_server(folder: ServerFolder, server: str | None) -> str:
    """Where a server is, or will be, as its operator says or as it runs."""
    from sottovoce.stores.server_folder import require_address

    running = folder.running()
    address = server or (running and str(running["url"]))
    if not address:
        raise UsageError("no server runs from this folder; say where it will be with --server URL")
    require_address(address)
    return address
