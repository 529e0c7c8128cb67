"""What the operator of a server does: `sottovoce serve server`, `invite`, `introduce`, `status`,
`versions`, `publish`, `target` and `shut-out`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.making import make_federation
from sottovoce.cli.options import (
    AggregatorCas,
    AggregatorKeys,
    AggregatorUrls,
    CatalogueFile,
    ExperimentFile,
    HostNames,
    NextShufflers,
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
    from sottovoce.stores.server_folder import ServerFolder

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the federation's server.")]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="A PostgreSQL database, postgresql://user@host/name; also from SOTTOVOCE_DATABASE. "
        "Without it, a SQLite file in DIR.",
    ),
]

Where = Annotated[str, typer.Argument(metavar="DIR|URL", help="Folder or address of the server.")]
OperatorCa = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="FILE", help="With an address: the authority's certificate, ca.crt."
    ),
]
OperatorToken = Annotated[
    Path | None,
    typer.Option("--token", metavar="FILE", help="With an address: the file operator.token."),
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
    database: DatabaseUrl = None,
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
) -> Any:
    """Serve a federation: publish rounds and models, take reports, fold them.

    The first start makes DIR from an experiment file, in which algorithm.triples is a number where
    the algorithm is FPL; later starts need DIR only. FMF-LDP needs --proxy and --proxy-ca, too, and
    --then for each further shuffler of a chain; a secure sum also --proxy-key, from `sottovoce
    serve helper --init`. A checked sum needs --aggregator, --aggregator-ca and --aggregator-key,
    twice each, from two organisations that run `sottovoce serve aggregator --init`; this server is
    the third aggregator.
    Everything that was acknowledged survives a crash, and the next start goes on where the last one
    was. DIR/server.json says where a running server listens. Logs are JSON lines on standard error.
    SIGTERM and Ctrl-C stop it; SIGHUP takes up a renewed certificate.

    Several servers can share one federation: give each a copy of DIR (without server.db) and the
    same --database, and put any load balancer in front.

    \b
    Examples:
      sottovoce serve server town --experiment my.toml --catalogue items.csv --name example.org
      sottovoce serve server town --host 0.0.0.0
      sottovoce serve server town --experiment a.toml --proxy https://p.example --proxy-ca p.crt
      sottovoce serve server town --rounds 200 --database postgresql://sottovoce@db/town
    """
    from sottovoce.services.server.process import ServerService

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
    elif catalogue is not None or settings or names or through or others or chain or spare:
        raise UsageError(
            "--catalogue, --spare, --set, --name, --proxy and --aggregator go with --experiment, "
            "at the first start"
        )
    return ServerService(database, rounds, skip_to_round)


@says
def invite(
    folder: Folder,
    count: Annotated[int, typer.Option(min=1, max=100_000, help="How many devices.")] = 1,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the invitation files are written.")
    ] = Path("invitations"),
    first: Annotated[
        int | None, typer.Option(min=0, help="Number of the first device; the next free one.")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Where devices reach the server; the running one by default."
        ),
    ] = None,
    database: DatabaseUrl = None,
) -> Said:
    """Write invitations, a file for each new device.

    An invitation is good for one device and is a secret: hand it over in confidence. The server may
    be running. Only hashes of the tokens are kept.

    \b
    Examples:
      sottovoce serve invite town --count 20 --server https://example.org:8443
      sottovoce serve invite town --out /media/usb
    """
    from sottovoce.stores import server_folder as folders

    found = folders.open_folder(folder)
    address = _address(found, server)
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.closing(found.database(database)) as store:
        numbers = None if first is None else range(first, first + count)
        invitations = folders.invite(found, store, address, numbers, count=count)
    files = [out / f"device-{invitation.number}.json" for invitation in invitations]
    for file, invitation in zip(files, invitations, strict=True):
        invitation.write(file)
    written = [invitation.number for invitation in invitations]
    return {"server": address, "numbers": written, "files": [*map(str, files)]}, [
        f"{len(files)} invitation(s) to {address} in {out}; each is a secret"
    ]


@says
def introduce(
    folder: Folder,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the introduction is written.")
    ] = Path("introduction.json"),
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Where the shuffler reaches the server; the running one by default."
        ),
    ] = None,
    hop: Annotated[
        int, typer.Option(min=1, help="Which shuffler of a chain it is for; 1 is the first.")
    ] = 1,
) -> Said:
    """Write the introduction of the federation's shuffler or helper, a file for whoever runs it.

    It says where the server is, how it is known and how it knows the shuffler; or, to the helper of
    a secure sum (`sottovoce serve helper`), what the terms are and how it knows the server. It is a
    secret: hand it over in confidence. The federation's terms must name one of the two. In a chain
    of shufflers each has an introduction of its own, which also says how it knows the one before it
    and how the one behind it knows it. Where sums are checked, each of the two other aggregators
    (`sottovoce serve aggregator`) gets a file of its own, whose name ends in its number.

    \b
    Examples:
      sottovoce serve introduce town --out town.json --server https://example.org:8443
      sottovoce serve introduce town --hop 2 --out second.json --server https://example.org:8443
    """
    from sottovoce.stores import server_folder as folders
    from sottovoce.stores.server_folder import write_introduction

    found = folders.open_folder(folder)
    if found.plan.summed:  # the helper is asked by the server and need not know where that is
        from sottovoce.stores.helper_folder import helper_introduction, write_helper_introduction

        write_helper_introduction(out, helper_introduction(found))
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
    address = _address(found, server)
    write_introduction(out, folders.introduction(found, address, hop - 1))
    which = f"shuffler number {hop}" if found.plan.terms.chained else "the shuffler"
    told = f"The introduction of {which} to {address} is {out}; it is a secret"
    return {"server": address, "file": out}, [told]


def _urls(folder: ServerFolder) -> tuple[str, ...]:
    link = folder.plan.terms.link.checking
    return () if link is None else link.urls


@says
def status(
    where: Where, ca: OperatorCa = None, token: OperatorToken = None, database: DatabaseUrl = None
) -> Said:
    """Say where a federation stands: rounds, devices, who was missing, what was refused.

    A folder is looked at whether or not its server runs. An address needs two files of the folder's
    keys, and nothing else of it.

    \b
    Examples:
      sottovoce serve status town
      sottovoce serve status https://example.org:8443 --ca ca.crt --token operator.token
    """
    content = _status(where, ca, token, database)
    words = (
        f"Round {content['round']} of {content['target']}, attempt {content['attempt']}: "
        f"{content['state']}"
    )
    # Through a shuffler nobody is asked by name, and the server does not know who is missing.
    asked = bool(content["asked"]) or any(past["asked"] for past in content["rounds"])
    if content["state"] == "open":
        words += f", {content['reported']} of {content['goal']} reports" if asked else ""
    lines = [words, f"Devices: {content['enrolled']} enrolled, {content['active']} active"]
    for batch in content.get("batches", ()):
        lines.append(
            f"Batch of tier {batch['tier']}: {batch['devices']} devices, {batch['stored']} of "
            f"{batch['parts']} parts are here"
        )
    if content["shut_out"]:
        lines.append(f"Shut out: {', '.join(map(str, content['shut_out']))}")
    for number, why in content.get("shut_out_why", {}).items():
        lines.append(f"  {number}: {why}")
    if content.get("waits"):
        lines.append(f"Waits: {content['waits']}")
    lines += _search_words(content.get("search", {}))
    lines += _version_words(content)
    lines.append(f"Refused: {output.words(content['refused'])}")
    for past in content["rounds"][-10:]:
        ended = f"{past['outcome']} after {past['seconds']:.1f} s, {past['reported']}"
        if past["asked"]:
            silent = ", ".join(map(str, past["missing"][:20])) or "nobody"
            more = ", …" if len(past["missing"]) > 20 else ""
            ended += f" of {past['asked']} reported; missing: {silent}{more}"
        else:
            ended += " devices in batches"
        if past.get("left_out"):
            ended += f"; left out: {output.words(past['left_out'])}"
        lines.append(f"  round {past['round']}.{past['attempt']}: {ended}")
    return content, lines


def _version_words(content: Mapping[str, Any]) -> list[str]:
    """Which version of the model is published, how good it is, and which later one was held
    back."""
    if content.get("published") is None:
        return []
    lines = [f"Published: version {content['published']} of the model"]
    for one in content["versions"]:
        if one["published"] and one["quality"] is not None:
            lines[0] += f"; {_quality_words(one['quality'])}"
        elif one["held_back"] and one["version"] > content["published"]:
            lines.append(f"Held back: version {one['version']}, because {one['held_back']}")
    return lines


def _quality_words(quality: Mapping[str, Any]) -> str:
    rates = [
        f"{words} {rate['value']:.3f} ({rate['low']:.3f} to {rate['high']:.3f})"
        for words, rate in (
            ("hits among ten", quality["candidate"]),
            ("the version before", quality["published"]),
            ("popularity", quality["popularity"]),
        )
    ]
    return ", ".join(rates)


@says
def versions(
    where: Where,
    ca: OperatorCa = None,
    token: OperatorToken = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw how good they are, as FILE.png and FILE.svg."),
    ] = None,
    database: DatabaseUrl = None,
) -> Said:
    """List the versions of the model that are kept: how good each is, which one is published, which
    was held back and why.

    Devices recommend by the published version. How good a version is, devices have found on items
    that they held out at home: for which share of the users one of ten recommendations was among
    them (in brackets the 95 % interval), beside the version that was published then and popularity.
    Where every model is published when it is made, there are no versions.

    \b
    Examples:
      sottovoce serve versions town --plot town-versions
      sottovoce serve versions https://example.org:8443 --ca ca.crt --token operator.token
    """
    content = _status(where, ca, token, database)
    found = content.get("versions", [])
    lines = []
    for one in found:
        state = "published" if one["published"] else "kept"
        if one["held_back"]:
            state = f"held back: {one['held_back']}"
        quality = f"; {_quality_words(one['quality'])}" if one["quality"] is not None else ""
        lines.append(f"Version {one['version']}, made {one['made']}, {state}{quality}")
    told = {"published": content.get("published"), "versions": found}
    if plot is not None:
        from sottovoce.evaluation.plots import quality_of_versions

        drawn = quality_of_versions(plot, found)
        lines.append(f"Drawn: {drawn.png}, {drawn.svg}")
        told |= {"plot": [str(drawn.png), str(drawn.svg)]}
    return told, lines or ["There are no versions: devices recommend by the newest model"]


@says
def publish(
    folder: Folder,
    version: Annotated[int, typer.Argument(min=0, help="Number of the version.")],
    database: DatabaseUrl = None,
) -> Said:
    """Publish a version of the model: one that was held back, or an earlier one again.

    The server may be running. Devices take the version up at their next visit. A version that is
    offered later is compared with this one.

    \b
    Example:
      sottovoce serve publish town 6
    """
    from sottovoce.stores import versions as kept
    from sottovoce.stores.server_folder import open_folder

    store = open_folder(folder).database(database)
    with contextlib.closing(store), store.writing() as link:
        before = kept.publish(link, version)
    told = f"Version {version} is published; before, {'none' if before is None else before}"
    return {"folder": folder, "published": version, "before": before}, [told]


@says
def catalogue(
    folder: Folder,
    add: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Items that come, as CSV or Parquet with the columns item and, if you like, "
            "title and categories (with | between them).",
        ),
    ] = None,
    gone: Annotated[
        list[str] | None,
        typer.Option(metavar="ITEM", help="An item that goes; may be repeated."),
    ] = None,
    database: DatabaseUrl = None,
) -> Said:
    """Change the items of a federation: some come, others go. Without options, say how many there
    are.

    New items take places that were kept for them (`serve server --spare N`, at the first start),
    since devices know items by their place. Items that go keep theirs, and nobody is recommended
    them. Stop the server first. Devices take the new catalogue up when they next ask for the round;
    what they have of a new item counts at home at once.

    \b
    Examples:
      sottovoce serve catalogue town --add new.csv
      sottovoce serve catalogue town --gone venue-17 --gone venue-20
    """
    import json

    from sottovoce.cli.making import read_items
    from sottovoce.stores.server_folder import open_folder
    from sottovoce.wire.catalogue import spare_places

    made = open_folder(folder)
    added, categories = ([], []) if add is None else read_items(add)
    items = [(item, title) for item, title in json.loads(made.catalogue())["items"]]
    if added or gone:
        items = list(made.change_catalogue(added, gone or [], database, categories))
    free = len(spare_places(items))
    there = sum(bool(title) for _, title in items)
    told = {"folder": folder, "items": there, "gone": len(items) - free - there, "spare": free}
    words = f"{there:,} items, {told['gone']:,} that are gone, {free:,} places to spare"
    return told, [words]


def _search_words(search: Mapping[str, Any]) -> list[str]:
    """Whether the server looks for devices that spoil sums, and whom it suspects."""
    if not search.get("on"):
        return []
    suspected = ", ".join(
        f"{one['number']} (in {one['failed']} of {one['rounds']})" for one in search["suspects"]
    )
    return [
        "A device spoils sums; the server looks for it by sums over groups. In spoiled sums again "
        f"and again: {suspected or 'nobody yet'}"
    ]


@says
def target(
    folder: Folder,
    rounds: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Rounds to run in all.")],
    database: DatabaseUrl = None,
) -> Said:
    """Raise the number of rounds to run, of a running server or of a stopped one.

    \b
    Example:
      sottovoce serve target town --rounds 200
    """
    from sottovoce.stores.server_folder import open_folder, raise_target

    with contextlib.closing(open_folder(folder).database(database)) as store:
        before = raise_target(store, rounds)
    told = f"{rounds:,} rounds to run; before, {before:,}"
    return {"folder": folder, "rounds": rounds, "before": before}, [told]


@says
def shut_out(
    folder: Folder,
    numbers: Annotated[
        list[int], typer.Argument(metavar="NUMBER...", min=0, help="Numbers of devices.")
    ],
    undo: Annotated[bool, typer.Option("--undo", help="Let them in again.")] = False,
    database: DatabaseUrl = None,
) -> Said:
    """Shut devices out: from now on they are not asked, and their reports are refused and counted.

    The server may be running. An invitation that was not used is good for nobody any more. What a
    device has sent before stays in the model, and what it has sent in the open round counts.

    \b
    Examples:
      sottovoce serve shut-out town 7 12
      sottovoce serve shut-out town 12 --undo
    """
    from sottovoce.stores import server_folder as folders

    with contextlib.closing(folders.open_folder(folder).database(database)) as store:
        out = folders.shut_out(store, numbers, undo=undo)
    told = f"Shut out: {', '.join(map(str, out)) or 'nobody'}"
    return {"folder": folder, "shut_out": out}, [told]


def _address(folder: ServerFolder, server: str | None) -> str:
    """Where a server is, or will be, as its operator says or as it runs."""
    from sottovoce.stores.server_folder import require_address

    running = folder.running()
    address = server or (running and str(running["url"]))
    if not address:
        raise UsageError("no server runs from this folder; say where it will be with --server URL")
    require_address(address)
    return address


def _status(
    where: str, ca: Path | None, token: Path | None, database: str | None
) -> Mapping[str, Any]:
    if where.startswith(("https://", "http://")):
        return _status_at(where, ca, token)
    if ca is not None or token is not None:
        raise UsageError("--ca and --token go with the address of a server, not with a folder")
    return _status_in(Path(where), database)


def _status_at(url: str, ca: Path | None, token: Path | None) -> Mapping[str, Any]:
    from sottovoce.services.server.operator import Operator

    if token is None:
        raise UsageError(
            "an address needs --ca and --token, the server's ca.crt and operator.token"
        )
    with contextlib.closing(Operator.at(url, ca, token)) as operator:
        return operator.status()


def _status_in(folder: Path, database: str | None) -> Mapping[str, Any]:
    from sottovoce.services.server.operator import status as status_of
    from sottovoce.stores.server_folder import open_folder

    with contextlib.closing(open_folder(folder).database(database)) as store:
        return status_of(store)
