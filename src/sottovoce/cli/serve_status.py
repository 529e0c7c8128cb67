"""`sottovoce serve status`, where a federation stands, whichever party's folder is named, and
`sottovoce serve versions`, from its running server or from the database of its folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Said, says
from sottovoce.errors import ServiceError, UsageError

Where = Annotated[str, typer.Argument(metavar="DIR|URL", help="Folder or address of the server.")]
OperatorCa = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="FILE", help="If you give an address: the authority's certificate, ca.crt."
    ),
]
OperatorToken = Annotated[
    Path | None,
    typer.Option(
        "--token", metavar="FILE", help="If you give an address: the file operator.token."
    ),
]


@says
def status(where: Where, ca: OperatorCa = None, token: OperatorToken = None) -> Said:
    """Say where a federation stands: rounds, devices, for whom it waits, what was refused.

    A folder is looked at whether or not its server runs: of `serve server`, of a SuperLink that
    trains, of an orchestrator, or of a data owner, which says what it holds. An address needs two
    files of the folder's keys, and nothing else of it.

    \b
    Examples:
      sottovoce serve status town
      sottovoce serve status bakery
      sottovoce serve status https://example.org:8443 --ca ca.crt --token operator.token
    """
    party = _party_in(Path(where)) if ca is None and token is None else None
    return server_status(where, ca, token) if party is None else party(Path(where))


def _party_in(folder: Path) -> Callable[[Path], Said] | None:
    """What says where the party stands whose folder this is, if it is not a server for devices."""
    from sottovoce.stores import conductor, orchestrator_folder, owner_folder

    if (folder / owner_folder.APPLICATION).is_file():
        from sottovoce.cli.serve_owner import owner_status

        return owner_status
    if (folder / orchestrator_folder.ISSUER).is_file():
        from sottovoce.cli.serve_orchestrator import orchestrator_status

        return orchestrator_status
    if (folder / conductor.FILE).is_file():
        from sottovoce.cli.serve_flower import flower_status

        return flower_status
    return None


@says
def versions(
    where: Where,
    ca: OperatorCa = None,
    token: OperatorToken = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw how good they are, as FILE.png and FILE.svg."),
    ] = None,
) -> Said:
    """List the versions of the model that are kept: how good each is, which one is published, which
    was held back and why.

    Devices recommend by the published version. Devices have found how good a version is, on items
    that they held out at home. The figure is the share of the users for whom one of ten
    recommendations was among these (in brackets the 95 % interval), beside the version that was
    published then and popularity. If every model is published when it is made, there are no
    versions.

    \b
    Examples:
      sottovoce serve versions town --plot town-versions
      sottovoce serve versions https://example.org:8443 --ca ca.crt --token operator.token
    """
    content = status_of(where, ca, token)
    found = content.get("versions", [])
    lines = []
    for one in found:
        state = "published" if one["published"] else "kept"
        if one["held_back"]:
            state = f"held back: {one['held_back']}"
        quality = f"; {_quality_words(one['quality'])}" if one["quality"] is not None else ""
        lines.append(f"Version {one['version']}, made {one['made']}, {state}{quality}")
    lines += _trouble_words(content)
    trouble = content.get("quality_trouble", "")
    told = {
        "published": content.get("published"),
        "pinned": content.get("pinned"),
        "versions": found,
        "quality_trouble": trouble,
    }
    if plot is not None:
        from sottovoce.evaluation.plots import quality_of_versions

        drawn = quality_of_versions(plot, found)
        lines.append(f"Drawn: {drawn.png}, {drawn.svg}")
        told |= {"plot": [str(drawn.png), str(drawn.svg)]}
    return told, lines or ["There are no versions: devices recommend by the newest model"]


# --- the state ------------------------------------------------------------------------------------


def status_of(where: str, ca: Path | None, token: Path | None) -> Mapping[str, Any]:
    if where.startswith(("https://", "http://")):
        return _status_at(where, ca, token)
    if ca is not None or token is not None:
        raise UsageError("--ca and --token go with the address of a server, not with a folder")
    return _status_in(Path(where))


def _status_at(url: str, ca: Path | None, token: Path | None) -> Mapping[str, Any]:
    from sottovoce.services.server.operator import Operator

    if token is None:
        raise UsageError(
            "an address needs --ca and --token, the server's ca.crt and operator.token"
        )
    with contextlib.closing(Operator.at(url, ca, token)) as operator:
        return operator.status()


_PATIENCE = 5.0
"""Seconds to wait for the server on this machine before its database is read instead."""


def _status_in(folder: Path) -> Mapping[str, Any]:
    """Ask the server that runs from the folder; if none answers, read the database. The server
    knows more: if the disk is full, for example, it cannot write that down."""
    from sottovoce.services.server import operator as running_server
    from sottovoce.stores.server_folder import open_folder, start_command

    found = open_folder(folder)
    if process := found.running():
        with (
            contextlib.suppress(ServiceError),
            contextlib.closing(
                running_server.Operator.of(found, str(process["url"]), _PATIENCE)
            ) as operator,
        ):
            return operator.status()
    with contextlib.closing(found.database()) as store:
        # With PostgreSQL, a server may run on another machine.
        running = store.shared or found.running() is not None
        return running_server.status(
            store, plan=found.plan, running=running, start=start_command(found.path)
        )


# --- in words -------------------------------------------------------------------------------------


def server_status(where: str, ca: Path | None, token: Path | None) -> Said:
    """Return the state of a federation of devices, for `serve status`."""
    content = status_of(where, ca, token)
    words = (
        f"Round {content['round']} of {content['target']}, attempt {content['attempt']}: "
        f"{content['state']}"
    )
    # Through a shuffler nobody is asked by name, and the server does not know who is missing.
    asked = bool(content["asked"]) or any(past["asked"] for past in content["rounds"])
    if content["state"] == "open":
        words += f", {content['reported']} of {content['goal']} reports" if asked else ""
    said = [words]
    if changed := content.get("changed"):
        said.append(
            f"Terms changed at {_clock(changed['at'])} by {changed['who']}; rounds go on with "
            f"number {changed['round']}, and numbers before it that were not run are skipped"
        )
    if paused := content.get("paused"):
        because = f": {paused['why']}" if paused["why"] else ""
        said.append(f"Paused since {_clock(paused['since'])} by {paused['who']}{because}")
    if content.get("running") is False:
        said.append(f"No server runs; to start it: {content['start']}")
    lines = [*said, f"Devices: {content['enrolled']} enrolled, {content['active']} active"]
    if places := content.get("places"):
        lines.append(places_words(places))
    for batch in content.get("batches", ()):
        lines.append(
            f"Batch of tier {batch['tier']}: {batch['devices']} devices, {batch['stored']} of "
            f"{batch['parts']} parts are here"
        )
    for what, many in content.get("objections", {}).items():
        lines.append(f"Devices that refuse the {what}: {many:,}")
    if content["shut_out"]:
        lines.append(f"Shut out: {', '.join(map(str, content['shut_out']))}")
    for number, why in content.get("shut_out_why", {}).items():
        lines.append(f"  {number}: {why}")
    why = content.get("reason")
    if why:
        lines.append(_reason_words(why))
    if content.get("waits") and (not why or why["what"] != content["waits"]):
        lines.append(f"Waits: {content['waits']}")
    if changing := content.get("amendment"):
        why = changing["waits"] or "the open round has to end first"
        lines.append(f"A change of terms by {changing['who']} waits: {why}")
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


def _reason_words(why: Mapping[str, Any]) -> str:
    """For whom rounds wait, in a line."""
    party = why["party"] if why["party"].startswith("aggregator") else f"the {why['party']}"
    since = f" since {_clock(why['since'])}" if why["since"] else ""
    return f"Waits for {party}{since}: {why['words']}: {why['what']}; do: {why['do']}"


def _clock(at: str) -> str:
    from sottovoce.stores.acts import clock_time

    return clock_time(at)


def _version_words(content: Mapping[str, Any]) -> list[str]:
    """Which version of the model is published, how good it is, and which later one was held
    back."""
    if content.get("published") is None:
        return []
    lines = [f"Published: version {content['published']} of the model"]
    if content.get("pinned") is not None:
        lines[0] += ", to which an operator went back; new versions are held back"
    for one in content["versions"]:
        if one["published"] and one["quality"] is not None:
            lines[0] += f"; {_quality_words(one['quality'])}"
        elif one["held_back"] and one["version"] > content["published"]:
            lines.append(f"Held back: version {one['version']}, because {one['held_back']}")
    return [*lines, *_trouble_words(content)]


def _trouble_words(content: Mapping[str, Any]) -> list[str]:
    """What speaks against the published version, and what can be done."""
    trouble = content.get("quality_trouble")
    if not trouble:
        return []
    return [f"Attention: {trouble}. `sottovoce serve publish DIR N` goes back to version N."]


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


def places_words(places: Mapping[str, Any]) -> str:
    """Who may come without an invitation, for the operator."""
    taken = f"{places['taken']:,} have come so"
    if not places["places"]:
        return f"Nobody comes without an invitation; {taken}"
    return (
        f"{places['places']:,} open place(s), of which {places['taken']:,} are taken; of one "
        f"network {places['per_hour']:,} an hour and {places['per_day']:,} a day, with "
        f"{places['bits']} bits of work"
    )
