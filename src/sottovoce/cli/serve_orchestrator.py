"""`sottovoce serve orchestrator`: who holds the model of a DRIFT federation."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Host, Port, Said, served
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.stores.orchestrator import OrchestratorStore
    from sottovoce.stores.orchestrator_folder import OrchestratorFolder

_LONGEST = 30 * 86400.0


@served(8446, "Users are served at")
def orchestrator(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the orchestrator.")],
    make: Annotated[
        bool, typer.Option("--make", help="Make a new federation in DIR, and do no more.")
    ] = False,
    stay: Annotated[
        bool, typer.Option("--stay", help="With --make: invite, if --invite is given, and serve.")
    ] = False,
    catalogue: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --make: the items, as CSV or Parquet with the column item. Alone: append "
            "those that are new, and do no more.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="a=b",
            help="With --make: a setting of DRIFT, such as theta=2; repeatable.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="With --make: what the federation's name begins with; DIR's by default."),
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="With --make: a name of this machine, for its certificate; repeatable.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="With --make: draw the first model from this seed, as a simulation does.",
        ),
    ] = None,
    admit: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Let a data owner in, by its application.json, and do no more; repeatable.",
        ),
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="With --admit: the address at which its node comes in. By default it is that of "
            "the running gateway.",
        ),
    ] = None,
    remove: Annotated[
        str | None, typer.Option(metavar="NAME", help="Take a data owner out, and do no more.")
    ] = None,
    invite: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Invite N users, and do no more.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="With --invite: the address at which users reach the orchestrator, as "
            "https://HOST:PORT. By default it is that of the running one."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="With --admit: the admission to write; by default admission.json, or of several "
            "each NAME-admission.json. With --invite: the folder for invitations, by default "
            "invitations.",
        ),
    ] = None,
    flush: Annotated[
        bool,
        typer.Option(
            "--flush",
            help="Let the next round end all streams of interactions, so that blocks that have "
            "both sides count, and do no more.",
        ),
    ] = False,
    superlink_port: Annotated[
        int, typer.Option(min=1, max=65535, help="The SuperLink's port, on loopback only.")
    ] = 9091,
    gateway_port: Annotated[
        int, typer.Option(min=1, max=65535, help="The port at which data owners' nodes come in.")
    ] = 9092,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**31 - 1,
            help="Rounds to run in all; without end by default, and with 0 none before more are "
            "asked for.",
        ),
    ] = None,
    every: Annotated[
        float,
        typer.Option(min=0.0, max=_LONGEST, help="Seconds from one round to the next."),
    ] = 60.0,
    deadline: Annotated[
        float,
        typer.Option(
            min=1.0, max=_LONGEST, help="Seconds in which data owners answer, twice in a round."
        ),
    ] = 60.0,
    wait_for: Annotated[
        int, typer.Option(min=1, help="Data owners that must be there before the first round.")
    ] = 1,
    patience: Annotated[
        float,
        typer.Option(
            min=0.0, max=_LONGEST, help="Seconds for which a round waits for those that are away."
        ),
    ] = 0.0,
    users_only: Annotated[
        bool, typer.Option("--users-only", help="Serve users, but hold no rounds.")
    ] = False,
    host: Host = "127.0.0.1",
    port: Port = 8446,
) -> Any:
    """Serve an orchestrator: hold rounds with data owners, recommend to users.

    Data owners hold items and what users did with them; the orchestrator holds the model, with a
    vector for everybody. No interaction is sent to it, but it is not kept from knowing them: a data
    owner's request names the users and items of an update, and the gradients tell who liked what.
    Users come to it for a pass, the directory of data owners and recommendations.

    With --set release=aggregated at --make, data owners keep users' vectors and send sums over at
    least min_users people; requests name all of a data owner's items and no user. Data owners then
    answer when --flush ends all streams, and not before, unless a window is set too. Users rank at
    home there, with vectors that data owners give them.

    --make writes DIR with new keys and a federation whose settings do not change afterwards; its
    catalogue can grow. DIR/federation.json is public and goes to those who want to
    join as data owners; each answers with an application (`sottovoce serve owner --make`), which
    --admit turns into an admission. Users need an invitation each, which is a secret. All of this
    may be done while the orchestrator runs; --make with --stay makes and serves at once.

    A plain start serves. It starts a SuperLink, whose port stays on loopback, and, if nginx is
    installed, an nginx through which nodes come in. A round is held every so many seconds. A data
    owner that does not answer is left out of a round, and `serve status` names it. Everything that
    was acknowledged survives a crash, and the next start goes on with the round that was open.

    DIR/orchestrator.json says where it listens. Logs are JSON lines on standard error and name no
    user. /health says whether it runs; /metrics counts for Prometheus and needs the token in
    DIR/keys/operator.token. SIGTERM and Ctrl-C stop it and all that it started; SIGHUP takes up a
    renewed certificate for users, and the next start also for data owners.

    \b
    Examples:
      sottovoce serve orchestrator town --make --catalogue items.csv --set theta=2 \\
          --alias town.example.org
      sottovoce serve orchestrator town --make --catalogue items.csv --invite 3 --stay
      sottovoce serve orchestrator town --admit application.json \\
          --gateway town.example.org:9092 --out bakery-admission.json
      sottovoce serve orchestrator town --invite 20 --url https://town.example.org:8446
      sottovoce serve orchestrator town --host 0.0.0.0 --every 300
      sottovoce serve orchestrator town --remove Bakery
    """
    acts = {
        "--make": make,
        "--admit": bool(admit),
        "--remove": remove is not None,
        "--invite": invite is not None and not stay,
        "--flush": flush,
        "--catalogue": catalogue is not None and not make,
    }
    chosen = [option for option, given in acts.items() if given]
    if len(chosen) > 1:
        raise UsageError(f"choose one of {' and '.join(chosen)}")
    if stay and not make:
        raise UsageError("--stay goes with --make; a plain start stays anyway")
    if not make and (settings, name, alias, seed) != (None, None, None, None):
        raise UsageError("--set, --name, --alias and --seed go with --make")
    if gateway is not None and not admit:
        raise UsageError("--gateway goes with --admit")
    if url is not None and invite is None:
        raise UsageError("--url goes with --invite")
    if out is not None and not admit and invite is None:
        raise UsageError("--out goes with --admit or --invite")
    if make:
        if catalogue is None:
            raise UsageError("--make needs --catalogue, the items of the federation")
        if not stay:
            return _make(folder, catalogue, settings, name, alias, seed)
        if port == 0:
            raise UsageError("--stay needs a --port, which invitations name")
        _make_here(folder, catalogue, settings, name, alias, seed, invite, url, out, port)
        chosen = []
    if not chosen:
        from sottovoce.engines.flower.training import SiloTraining, TrainingPlan
        from sottovoce.services.orchestrator import OrchestratorService

        if users_only and rounds is not None:
            raise UsageError("--users-only goes without --rounds")
        plan = TrainingPlan(
            superlink_port, host, gateway_port, rounds, every, deadline, wait_for, patience
        )
        return OrchestratorService(None if users_only else partial(SiloTraining, plan=plan))
    from sottovoce.stores.orchestrator_folder import open_orchestrator_folder, request_flush

    found = open_orchestrator_folder(folder)
    with contextlib.closing(found.store()) as store:
        if admit is not None:
            return _admit_all(found, store, admit, gateway, out)
        if remove is not None:
            return _remove(store, remove)
        if invite is not None:
            return _invite(found, store, invite, url, out or Path("invitations"))
        if catalogue is not None:
            return _extend(found, store, catalogue)
        request_flush(store)
        return {"flush_requested": True}, ["The next round ends all streams."]


def _make(
    folder: Path,
    catalogue: Path,
    settings: list[str] | None,
    name: str | None,
    alias: list[str] | None,
    seed: int | None,
) -> Said:
    from sottovoce import config
    from sottovoce.algorithms.drift.system import DRIFTConfig
    from sottovoce.cli.making import read_catalogue
    from sottovoce.rng import Streams
    from sottovoce.stores.orchestrator_folder import create_orchestrator_folder

    table: dict[str, Any] = {}
    for setting in settings or []:
        config.assign(table, setting)
    chosen = config.build(DRIFTConfig, table, "settings")
    items = [item for item, _ in read_catalogue(catalogue)]
    made = create_orchestrator_folder(
        folder,
        items,
        chosen,
        name=name,
        hosts=alias or [],
        root_key=None if seed is None else Streams.from_seed(seed).key,
    )
    about = made.federation_file
    words = [
        f"{folder} holds the federation {made.federation}, {len(items):,} items.",
        f"Give {about} to those who want to join as data owners; nothing in it is secret.",
    ]
    if chosen.release == "aggregated":
        when = "in every round" if chosen.window else "when --flush ends all streams, not before"
        words.append(
            f"Data owners keep users' vectors and send sums over at least {chosen.min_users:,} "
            f"people, {when}."
        )
    return {"federation": made.federation, "items": len(items), "file": about}, words


def _make_here(
    folder: Path,
    catalogue: Path,
    settings: list[str] | None,
    name: str | None,
    alias: list[str] | None,
    seed: int | None,
    invite: int | None,
    url: str | None,
    out: Path | None,
    port: int,
) -> None:
    """Make a federation that is served at once, and invite users to it."""
    from sottovoce.stores.orchestrator_folder import open_orchestrator_folder

    for line in _make(folder, catalogue, settings, name, alias, seed)[1]:
        output.note(line)
    if invite is None:
        return
    found = open_orchestrator_folder(folder)
    place = url or f"https://{(alias or ['localhost'])[0]}:{port}"
    with contextlib.closing(found.store()) as store:
        for line in _invite(found, store, invite, place, out or Path("invitations"))[1]:
            output.note(line)


def _admit_all(
    folder: OrchestratorFolder,
    store: OrchestratorStore,
    files: list[Path],
    gateway: str | None,
    out: Path | None,
) -> Said:
    """One after the other; each gets an answer of its own."""
    from sottovoce.wire.silo_files import Application

    if len(files) == 1:
        return _admit(folder, store, files[0], gateway, out or Path("admission.json"))
    if out is not None:
        raise UsageError("--out goes with one --admit; of several, each answer is called after it")
    names = [re.sub(r"[^a-z0-9]+", "-", Application.read(f).name.lower()) for f in files]
    places = [Path(f"{name.strip('-') or 'owner'}-admission.json") for name in names]
    for place in places:  # nobody is admitted where an answer could not be written
        if place.exists() or places.count(place) > 1:
            raise UsageError(f"{place} is there already and is not overwritten; admit one by one")
    done = [
        _admit(folder, store, file, gateway, place)
        for file, place in zip(files, places, strict=True)
    ]
    return {"admitted": [one for one, _ in done]}, [line for _, lines in done for line in lines]


def _admit(
    folder: OrchestratorFolder,
    store: OrchestratorStore,
    file: Path,
    gateway: str | None,
    out: Path,
) -> Said:
    from sottovoce.stores.orchestrator_folder import admit
    from sottovoce.wire.silo_files import Application

    place = gateway or (folder.running() or {}).get("gateway")
    if not place:
        raise UsageError("say where the data owner's node comes in, with --gateway HOST:PORT")
    application = Application.read(file)
    if out.exists():
        raise UsageError(f"{out} is there already and is not overwritten; use --out")
    admission = admit(folder, store, application, str(place))
    admission.write(out)
    content = {"number": admission.number, "name": admission.name, "file": out}
    words = f"{admission.name} is data owner {admission.number}, with "
    return content, [
        f"{words}{len(application.items):,} items; give {out} to its operator: it is no secret."
    ]


def _remove(store: OrchestratorStore, name: str) -> Said:
    from sottovoce.stores.orchestrator_folder import remove

    number = remove(store, name)
    return {"removed": name, "number": number}, [
        f"{name} is not part of the federation any more; from the next round on it is not asked."
    ]


def _invite(
    folder: OrchestratorFolder, store: OrchestratorStore, count: int, url: str | None, out: Path
) -> Said:
    from sottovoce.stores.orchestrator_folder import invite

    address = url or (folder.running() or {}).get("url")
    if not address:
        raise UsageError("no orchestrator runs from this folder; say where it will be with --url")
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    taken = [
        int(match[1])
        for path in out.iterdir()
        if (match := re.fullmatch(r"invitation-(\d{1,9})\.json", path.name))
    ]
    first = max(taken, default=0) + 1
    invitations = invite(folder, store, count, str(address))
    files = [out / f"invitation-{number}.json" for number in range(first, first + count)]
    for file, invitation in zip(files, invitations, strict=True):
        invitation.write(file)
    return {"url": address, "files": files}, [
        f"{count:,} invitation(s) to {address} in {out}; each is a secret."
    ]


def _extend(folder: OrchestratorFolder, store: OrchestratorStore, file: Path) -> Said:
    from sottovoce.cli.making import read_catalogue
    from sottovoce.stores.orchestrator_folder import extend_catalogue

    new = extend_catalogue(folder, store, [item for item, _ in read_catalogue(file)])
    total = store.n_items
    return {"new": new, "items": total}, [
        f"{new:,} new item(s), {total:,} in all; {folder.federation_file} is up to date."
    ]


def orchestrator_status(path: Path) -> Said:
    """Return the state of a federation of data owners, for `serve status`."""
    from sottovoce.services.orchestrator import stands
    from sottovoce.stores.orchestrator_folder import open_orchestrator_folder

    folder = open_orchestrator_folder(path)
    running = folder.running()
    with contextlib.closing(folder.store()) as store:
        found = {**stands(store), "running": running is not None}
    return {**found, **({"url": running["url"]} if running else {})}, _status_words(found)


def _status_words(found: Mapping[str, Any]) -> list[str]:
    target = f" of {found['target']:,}" if found["target"] else ""
    lines = [
        f"{found['federation']}: the orchestrator {'runs' if found['running'] else 'does not run'}",
        f"Round {found['round']:,}{target}"
        + ("; the next one ends all streams" if found["flush_requested"] else ""),
        f"Users: {found['users']:,} enrolled, {found['left']:,} have left",
        f"Items: {found['items']:,}, of which somebody holds {found['held']:,}",
        "Data owners:" if found["owners"] else "Data owners: none",
    ]
    training = found["training"]
    lines.insert(2, f"Rounds with data owners: {training['state']}" + _online(training))
    for owner in found["owners"]:
        counted = owner["counted"]
        last = "no update yet" if counted < 0 else f"last update in round {counted:,}"
        lines.append(f"  {owner['number']} {owner['name']}: {owner['items']:,} items, {last}")
    for name, problem in training.get("problems", {}).items():
        lines.append(f"  {name} says: {problem}")
    lines.append(f"Refused: {output.words(found['refused'])}")
    for past in found["rounds"][-10:]:
        silent = ", ".join(past["silent"]) or "nobody"
        lines.append(
            f"  round {past['round']:,}{' (end of streams)' if past['flush'] else ''}: "
            f"{len(past['updated'])} of {len(past['asked'])} updated after "
            f"{past['seconds']:.1f} s; silent: {silent}"
            + (f"; refused: {', '.join(past['refused'])}" if past["refused"] else "")
        )
    return lines


def _online(training: Mapping[str, Any]) -> str:
    words = f"; there are {', '.join(training['online'])}" if training.get("online") else ""
    if training.get("waiting_for"):
        words += f"; waiting for {', '.join(training['waiting_for'])}"
    if training.get("not_admitted"):
        words += f"; {training['not_admitted']} not admitted, and not asked"
    return words
