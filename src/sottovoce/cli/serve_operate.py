"""What operators look at and do while a federation runs: `sottovoce serve devices`, `places`,
`pause`, `token` and `log`. The server may be running, and need not be."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Literal

import typer

from sottovoce.cli.options import Said, says
from sottovoce.cli.serve_server import Folder, acting
from sottovoce.cli.serve_status import places_words
from sottovoce.errors import UsageError

_AT_ONCE = 100

Offset = Annotated[int, typer.Option(min=0, help="Leave out so many of them.")]
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="Show so many of them.")]


@says
def devices(
    folder: Folder,
    which: Annotated[
        Literal["all", "active", "silent", "shut-out", "invited"],
        typer.Option(help="Devices of one state only."),
    ] = "all",
    find: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="Show devices with this in the label, or as first digits of the number.",
        ),
    ] = "",
    limit: Limit = _AT_ONCE,
    offset: Offset = 0,
    label: Annotated[
        tuple[int, str] | None,
        typer.Option(
            metavar="NUMBER TEXT",
            help='Call a device so; "" takes the name away. Only operators see it.',
        ),
    ] = None,
) -> Said:
    """List the devices of a federation, with what you call them and when they were last heard of;
    with --label, name one.

    A device that is invited has not enrolled. An active one is asked in rounds. A silent one was
    asked in vain several times and is asked again when it checks in. The last contact is an
    enrolment, a check-in or a report, to the minute; through a shuffler the server hears of a
    device only when it enrols. Nothing of what a device has sent is shown or kept for it. A device
    in an open place came without an invitation (`sottovoce serve places`).

    \b
    Examples:
      sottovoce serve devices town --which silent
      sottovoce serve devices town --find "Via Roma"
      sottovoce serve devices town --label 7 "library, ground floor"
    """
    if label is not None:
        return _label(folder, *label)
    from sottovoce.services.server.operator import devices as list_devices
    from sottovoce.stores.server_folder import open_folder

    with contextlib.closing(open_folder(folder).database()) as store:
        found = list_devices(store, offset, limit, find, which)
    shown = len(found["rows"])
    words = f"{found['total']:,} device(s)"
    if shown < found["total"]:
        words += f", of which {shown:,} are shown"
    lines = [_row("number", "state", "last contact", "enrolled", "label")] if shown else []
    for row in found["rows"]:
        times = _when(row["last_contact"]), _when(row["enrolled"])
        why = f"  ({row['why']})" if row["why"] else ""
        why += "  (open place)" if row["came"] == "open place" else ""
        lines.append(_row(str(row["number"]), row["state"], *times, row["label"] + why))
    return {"folder": folder, **found}, [words, *lines]


def _label(folder: Path, number: int, text: str) -> Said:
    with acting(folder) as acts:
        done = acts.label(number, text)
    text = done["label"]
    told = f"Device {number} is called {text!r}" if text else f"Device {number} has no label"
    return {"folder": folder, **done}, [told]


def _row(number: str, state: str, last: str, enrolled: str, label: str) -> str:
    return f"{number:>10}  {state:<8}  {last:<16}  {enrolled:<16}  {label}".rstrip()


def _when(at: str | None) -> str:
    from sottovoce.stores.acts import clock_time

    return "" if at is None else clock_time(at)


@says
def places(
    folder: Folder,
    total: Annotated[
        int | None,
        typer.Option(
            "--open",
            min=0,
            max=1_000_000_000,
            metavar="N",
            help="Devices without an invitation, in all and ever; 0 takes nobody more.",
        ),
    ] = None,
    per_hour: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many devices of one network may come within an hour; 10 by default."
        ),
    ] = None,
    per_day: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many devices of one network may come within a day; 30 by default."
        ),
    ] = None,
    bits: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=28,
            help="The work for each device: hashes that it tries, as a power of two; 18 by "
            "default.",
        ),
    ] = None,
) -> Said:
    """Say how many devices may come without an invitation, or change that; 0 closes the places.

    A visitor's tab asks for a place, works for a second or so and enrols its own key. That makes
    made-up devices cost something, and not much: `sottovoce docs privacy` says how little. The
    limits per network (an IPv4 address, or a /56 of IPv6) are counted by each server process, in
    memory alone. A device that is shut out gives no place back. The server may be running; those
    who have come stay.

    \b
    Examples:
      sottovoce serve places town
      sottovoce serve places town --open 10000 --per-hour 20
      sottovoce serve places town --open 0
    """
    from dataclasses import asdict, replace

    from sottovoce.parties.places import PlaceRules
    from sottovoce.stores.places import count_places, place_rules

    given = {"places": total, "per_hour": per_hour, "per_day": per_day, "bits": bits}
    changes = {name: value for name, value in given.items() if value is not None}
    with acting(folder) as acts:
        with acts.database.reading() as link:
            before, taken = place_rules(link), count_places(link)
        rules = replace(before or PlaceRules(), **changes)
        if changes and rules != before:  # a script may say it again
            acts.open_places(rules)
    told = places_words({**asdict(rules), "taken": taken})
    return {"folder": folder, **asdict(rules), "taken": taken}, [told]


@says
def pause(
    folder: Folder,
    why: Annotated[str, typer.Option(metavar="TEXT", help="The reason, for other operators.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let rounds go on.")] = False,
) -> Said:
    """Open no new round until `serve pause --undo`. A round that is open goes on to its end.

    Devices are told to wait; they keep what they have, and recommendations go on.

    \b
    Examples:
      sottovoce serve pause town --why "until the helper has moved"
      sottovoce serve pause town --undo
    """
    if undo and why:
        raise UsageError("--why is for a pause that begins; leave it or --undo out")
    with acting(folder) as acts:
        done = acts.go_on() if undo else acts.pause(why)
    told = (
        f"No new round is opened until `sottovoce serve pause {folder} --undo`; an open one goes "
        "on to its end"
    )
    if undo:
        before = done["before"]
        told = f"Rounds go on; they were paused since {_when(before['since'])} by {before['who']}"
    return {"folder": folder, **done}, [told]


@says
def token(
    folder: Folder,
    role: Annotated[
        Literal["look", "act"],
        typer.Option(help="Whether the bearer may only look, or also act."),
    ] = "act",
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Make a new one; the old one is refused from then on.")
    ] = False,
) -> Said:
    """Say in which file the secret of a role is: of who may look, or of who may also act.

    A running server takes up a new one within a second, without a restart; links and pages of the
    console that came with the old one end.

    \b
    Examples:
      sottovoce serve token town --role look
      sottovoce serve token town --rotate
    """
    from sottovoce.stores.keys import role_token
    from sottovoce.stores.server_folder import open_folder

    if rotate:
        with acting(folder) as acts:
            place = acts.rotate_token(role)["file"]
    else:
        place = str(role_token(open_folder(folder).keys, role))
    new = "new " if rotate else ""
    may = "look" if role == "look" else "look and act"
    told = f"The {new}token of who may {may} is in {place}; it is a secret"
    return {"folder": folder, "role": role, "file": place, "rotated": rotate}, [told]


@says
def log(folder: Folder, limit: Limit = _AT_ONCE, offset: Offset = 0) -> Said:
    """Show what operators have done to a federation, newest first: who, when, what, how.

    \b
    Examples:
      sottovoce serve log town
      sottovoce serve log town --limit 1000 --json
    """
    from sottovoce.stores.acts import past_acts
    from sottovoce.stores.server_folder import open_folder

    with (
        contextlib.closing(open_folder(folder).database()) as store,
        store.reading() as link,
    ):
        total, rows = past_acts(link, offset, limit)
    words = [f"{_when(row['at'])}  {row['who']} ({row['how']}): {row['words']}" for row in rows]
    return {"folder": folder, "total": total, "acts": rows}, words or ["Nobody has done anything"]
