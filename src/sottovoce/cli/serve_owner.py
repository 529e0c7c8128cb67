"""`sottovoce serve owner`: a data owner of a DRIFT federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Said, served
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.stores.owner_folder import OwnerFolder


@served(8445, "The data owner listens at")
def owner(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the data owner.")],
    make: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Make the folder and an application to the federation of this federation.json, "
            "and do no more; with --name, --items and --url.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="With --make: the name that everybody will know.")
    ] = None,
    items: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --make: the items that it holds, one name or number in a line, or a CSV "
            "file with the column item.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="With --make: the address at which users will reach it, as https://HOST:PORT."
        ),
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="With --make: another name of this machine; repeatable."),
    ] = None,
    admission: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the orchestrator's answer to the application, and do no more. A later "
            "answer may name another gateway.",
        ),
    ] = None,
    wait_for: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Wait until the orchestrator's answer is in this file, keep it, and serve; also "
            "with --make.",
        ),
    ] = None,
    users_only: Annotated[
        bool,
        typer.Option(
            "--users-only", help="Take users' messages, but no part in the orchestrator's rounds."
        ),
    ] = False,
    add_items: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Hold these items too, and do no more.")
    ] = None,
    withdraw_items: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Hold these items no longer, and do no more."),
    ] = None,
    federation: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --add-items: a newer federation.json, whose catalogue has more items.",
        ),
    ] = None,
    forget: Annotated[
        int | None,
        typer.Option(
            metavar="USER",
            min=0,
            max=2**32 - 1,
            help="Erase all of this user, by the number that `sottovoce device status` tells "
            "her, and do no more.",
        ),
    ] = None,
) -> Any:
    """Serve a data owner: take users' sealed interactions, take part in the orchestrator's rounds.

    A data owner holds items. Users who interact with them send it what they did, sealed for it
    alone. It reads that in full, keeps their blocks on its own disk and computes gradients from
    them. The orchestrator, which holds the model, gets requests and gradients in place of
    interactions. From these it can tell who touched and who liked which items, so choose one that
    users may trust.

    In a federation with release = "aggregated" the data owner keeps users' vectors too, on its own
    disk, and sends sums over many people in place of gradients. An older copy of its store is
    refused there once an answer came in that it lacks: people would be added up twice.

    It joins in two steps. --make writes DIR with new keys, and DIR/application.json in it, which
    goes to the orchestrator's operator (`sottovoce serve orchestrator` admits it). The answer is
    kept with --admission. From then on DIR is all that a start needs. With --make and --wait-for
    one command does it all: it applies, says what it waits for, and serves once the answer is in
    the file. If it was stopped, the same command goes on.

    No crash loses or doubles what was acknowledged to a user. It waits for an orchestrator that is
    away, and for one that does not let the data owner in. You can use --add-items,
    --withdraw-items, --forget and `sottovoce serve status` whether or not the service runs.

    DIR/owner.json says where a running service listens. Logs go to standard error, as JSON lines
    but for those of Flower's part, and name no user and no item. At /health it says whether it
    runs; /metrics counts for Prometheus and needs the token in DIR/keys/operator.token. SIGTERM and
    Ctrl-C stop it; SIGHUP takes up a renewed certificate.

    \b
    Examples:
      sottovoce serve owner bakery --make federation.json --name Bakery --items bread.csv \\
          --url https://bakery.example.net:8445
      sottovoce serve owner bakery --admission admission.json
      sottovoce serve owner bakery --make federation.json --name Bakery --items bread.csv \\
          --url https://bakery.example.net:8445 --wait-for admission.json
      sottovoce serve owner bakery --host 0.0.0.0
      sottovoce serve owner bakery --add-items cakes.txt
    """
    acts = {
        "--make": make is not None,
        "--admission": admission is not None,
        "--add-items": add_items is not None,
        "--withdraw-items": withdraw_items is not None,
        "--forget": forget is not None,
    }
    chosen = [option for option, given in acts.items() if given]
    if len(chosen) > 1:
        raise UsageError(f"choose one of {' and '.join(chosen)}")
    if make is None and (name, items, url, alias) != (None, None, None, None):
        raise UsageError("--name, --items, --url and --alias go with --make")
    if federation is not None and add_items is None:
        raise UsageError("--federation goes with --add-items")
    if make is not None:
        if name is None or items is None or url is None:
            raise UsageError("--make needs --name, --items and --url")
        if wait_for is None:
            return _make(folder, make, name, items, url, alias or [])
        _apply(folder, make, name, items, url, alias or [])
        chosen = []
    elif wait_for is not None and chosen:
        raise UsageError(f"--wait-for goes with --make or alone, not with {chosen[0]}")
    if chosen:
        from sottovoce.stores.owner_folder import open_owner_folder

        found = open_owner_folder(folder)
        if admission is not None:
            return _keep(found, admission)
        if add_items is not None or withdraw_items is not None:
            return _change(found, add_items, withdraw_items, federation)
        return _forget(found, forget or 0)
    from sottovoce.engines.flower.silo_node import Participation, require_flower
    from sottovoce.services.owner import OwnerService

    if not users_only:
        require_flower()
    if wait_for is not None:
        _await_answer(folder, wait_for)
    return OwnerService(None if users_only else Participation)


def _make(folder: Path, make: Path, name: str, items: Path, url: str, alias: list[str]) -> Said:
    from sottovoce.stores.owner_folder import APPLICATION, create_owner_folder, read_items
    from sottovoce.wire.silo_files import FederationFile

    described = FederationFile.read(make)
    numbers = read_items(items, described.catalogue)
    create_owner_folder(folder, described, name, url, numbers, alias)
    application = folder / APPLICATION
    return {"application": application, "items": len(numbers)}, [
        f"{folder} holds the data owner {name} with {len(numbers):,} of "
        f"{len(described.catalogue):,} items.",
        f"Send {application} to the orchestrator's operator; nothing in it is secret.",
    ]


def _apply(folder: Path, make: Path, name: str, items: Path, url: str, alias: list[str]) -> None:
    """Make the folder, unless it was made before for the same data owner."""
    from sottovoce.stores.owner_folder import APPLICATION, open_owner_folder

    if (folder / APPLICATION).exists():
        there = open_owner_folder(folder).application
        if (there.name, there.url) != (name, url):
            raise UsageError(f"{folder} holds the data owner {there.name} at {there.url} already")
        return
    for line in _make(folder, make, name, items, url, alias)[1]:
        output.note(line)


def _await_answer(folder: Path, file: Path) -> None:
    """Until the orchestrator's operator has admitted this data owner, and the answer is here."""
    import time

    from sottovoce.stores.owner_folder import APPLICATION, open_owner_folder

    found = open_owner_folder(folder)
    if found.admission() is not None:
        return
    output.note(
        f"waits since {time.strftime('%H:%M')} for {file}: the orchestrator's operator admits "
        f"{folder / APPLICATION} (`sottovoce serve orchestrator DIR --admit FILE`), and the answer "
        "goes there; nobody is served before"
    )
    with output.interruptible(f"{folder} is made; the same command goes on waiting"):
        while not file.exists():
            time.sleep(0.2)
    for line in _keep(found, file)[1]:
        output.note(line)


def _keep(folder: OwnerFolder, file: Path) -> Said:
    from sottovoce.stores.owner_folder import keep_admission
    from sottovoce.wire.silo_files import Admission

    given = Admission.read(file)
    first = keep_admission(folder, given)
    words = f"{given.name} is data owner {given.number} of the federation {given.federation}"
    if not first:
        words += f"; from its next start on it joins by {given.gateway}"
    content = {"number": given.number, "name": given.name, "gateway": given.gateway}
    return {**content, "first": first}, [words + "."]


def _change(
    folder: OwnerFolder, add: Path | None, withdraw: Path | None, newer: Path | None
) -> Said:
    from sottovoce.services.owner import desk
    from sottovoce.stores.owner_folder import keep_federation, read_items
    from sottovoce.wire.silo_files import FederationFile

    if newer is not None:
        folder = keep_federation(folder, FederationFile.read(newer))
    catalogue = folder.federation.catalogue
    adding = [] if add is None else read_items(add, catalogue)
    leaving = [] if withdraw is None else read_items(withdraw, catalogue)
    with desk(folder) as owner:
        left = owner.change_items(add=adding, withdraw=leaving)
    words = f"{folder.application.name} holds {left:,} items now; users and the orchestrator learn "
    return {"items": left}, [words + "it in the next round."]


def _forget(folder: OwnerFolder, user: int) -> Said:
    from sottovoce.services.owner import desk

    with desk(folder) as owner:
        owner.forget(user)
    return {"forgotten": True}, ["Nothing of this user remains here."]


def owner_status(path: Path) -> Said:
    """Return what a data owner holds and how it is doing, for `serve status`."""
    from sottovoce.services.owner import desk
    from sottovoce.stores.owner_folder import open_owner_folder

    with desk(open_owner_folder(path)) as owner:
        found = dict(owner.status())
    service = "runs" if found["running"] else "does not run"
    words = [
        f"{found['name']}, data owner {found['number']} of {found['federation']}: its service "
        f"{service}",
        f"Items: {found['items']:,}",
        f"Held: {output.words(found['held'])}",
        f"Messages so far: {output.words(found['messages'])}",
        f"Updates so far: {output.words(found['updates'])}",
    ]
    if found["running"]:
        words.append(f"Part in the orchestrator's rounds: {found['node']}")
        words.append(f"Requests refused since its start: {output.words(found['refused'])}")
    return found, words
