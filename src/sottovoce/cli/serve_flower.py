"""`sottovoce serve superlink`, `supernode`, `cohort`, `flower` and `nginx`: federations of
organisations, on Flower."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import (
    CatalogueFile,
    ExperimentFile,
    HostNames,
    Json,
    ProxyCa,
    ProxyKey,
    ProxyUrl,
    Said,
    Settings,
    says,
    through_proxy,
)
from sottovoce.cli.serve_server import Folder
from sottovoce.errors import DataNotFound, ServiceError, UsageError

if TYPE_CHECKING:
    from sottovoce.engines.flower.gateway import Site
    from sottovoce.engines.flower.superlink import SuperLinkPlace
    from sottovoce.engines.processes import Child

LinkPort = Annotated[
    int, typer.Option(min=1, max=65535, help="The SuperLink's port, on loopback only.")
]
READY = "superlink.json"
_PRIVATE_PORT, _GATEWAY_PORT = 9091, 9092


def superlink(
    folder: Folder,
    port: LinkPort = _PRIVATE_PORT,
    experiment: ExperimentFile = None,
    catalogue: CatalogueFile = None,
    settings: Settings = None,
    names: HostNames = None,
    proxy: ProxyUrl = None,
    proxy_ca: ProxyCa = None,
    proxy_key: ProxyKey = None,
    rounds: Annotated[int | None, typer.Option(min=0, help="Rounds that it is to run.")] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=0,
            max=65535,
            help="Serve figures of the training for Prometheus at this port, on loopback only.",
        ),
    ] = None,
    gateway_port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Also start an nginx here, through which nodes come in; 0: none."
        ),
    ] = 0,
    gateway_host: Annotated[
        str, typer.Option(help="With --gateway-port: the address to listen at.")
    ] = "0.0.0.0",
    as_json: Json = False,
) -> None:
    """Run a SuperLink and its executor, to which gateways of organisations connect.

    DIR is the folder of a federation, the same as of `sottovoce serve server`; the first start may
    make it from an experiment file. The port is on loopback and must stay there: who reaches it can
    register nodes. Nodes come in through nginx: one that is started here (--gateway-port), or your
    own (`sottovoce serve nginx`). TLS, registered node
    keys, a secret for the executor and a database in DIR/superlink are all on. SIGTERM and Ctrl-C
    stop it; a killed one is started again with the same command.

    gram needs --proxy, --proxy-ca and --proxy-key of its helper (`sottovoce serve helper --init`),
    which is then given what `sottovoce serve introduce DIR` writes. A gateway adds up what its
    people contribute, and counts as one of link.min_devices.

    With --metrics-port, https://127.0.0.1:PORT/metrics is for whoever bears a token of DIR/keys, as
    at a server: state, rounds, nodes and quality of the training, whether or not one runs now.

    \b
    Examples:
      sottovoce serve superlink town --experiment my.toml --catalogue items.csv --name example.org
      sottovoce serve superlink town
      sottovoce serve superlink town --metrics-port 9464
    """
    from sottovoce.engines.flower.superlink import SuperLink
    from sottovoce.engines.processes import told_to_stop
    from sottovoce.stores.private import private_file
    from sottovoce.stores.server_folder import open_folder

    through = through_proxy(proxy, proxy_ca, proxy_key)
    if experiment is not None:
        from sottovoce.cli.making import make_federation

        make_federation(
            *(folder, experiment, settings or [], catalogue, names or [], rounds),
            *(through, proxy_key),
            gateways=True,
        )
    elif catalogue is not None or settings or names or rounds is not None or through:
        raise UsageError("--catalogue, --set, --name, --proxy and --rounds go with --experiment")
    open_folder(folder)
    place = _place(folder, port)
    ready = folder / READY
    with told_to_stop() as stop, contextlib.ExitStack() as stack:
        facts: dict[str, Any] = {"port": port, "pid": os.getpid(), "gateway": gateway_port}
        if metrics_port is not None:
            from sottovoce.services.superlink import exposing

            facts["metrics"] = stack.enter_context(exposing(folder, metrics_port))
        link = stack.enter_context(SuperLink(place))
        gateway = None
        if gateway_port:
            gateway = stack.enter_context(_gateway(folder, place, gateway_port, gateway_host))
        stack.callback(ready.unlink, missing_ok=True)
        private_file(ready).write_text(json.dumps(facts))
        output.note(f"the SuperLink listens on {place.address}; its logs are in {place.work}")
        if gateway is not None:
            output.note(f"nodes come in through nginx at {gateway_host}, port {gateway_port}")
        if "metrics" in facts:
            output.note(f"figures for Prometheus are at {facts['metrics']}/metrics")
        while not stop.wait(1.0):
            link.require_alive()
            if gateway is not None:
                gateway.require_alive()
    if as_json:
        output.emit({"folder": folder, "port": port, "stopped": True})


def supernode(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of a cohort's store.")],
    link: Annotated[
        str, typer.Option("--superlink", metavar="HOST:PORT", help="The federation's gateway.")
    ],
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The authority's certificate, ca.crt.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="This node's private key, of `sottovoce keys node`."),
    ] = None,
    plaintext: Annotated[
        bool, typer.Option("--plaintext", help="No TLS and no key; on loopback only.")
    ] = False,
    agree: Annotated[
        str,
        typer.Option(
            metavar="DIGEST", help="Agree to the terms with this digest, which you saw elsewhere."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Take part in a federation with a cohort: an organisation's gateway.

    STORE holds the people's histories, choices and vectors (`sottovoce serve cohort` makes one).
    They stay there: what leaves is the sum of the reports of those who take part, as far as each
    permits, and choices are read before every round. Not even who is willing is told before whoever
    runs the gateway has agreed to the federation's terms: when the SuperLink has shown them, see
    them with `sottovoce device agree STORE`. Code that the SuperLink hands out is not run; only
    this program touches the store. A gateway may be stopped or killed at any moment. It waits for a
    SuperLink that is away, and for one that does not know the node yet, and says on standard error
    what it waits for. On a terminal, the terms are shown when they come, and you are asked.
    People's choices can be changed meanwhile with `sottovoce device consent STORE --user NAME`.

    \b
    Example:
      sottovoce serve supernode cohort --superlink example.org:9092 --ca ca.crt --key bakery
    """
    if plaintext and (ca is not None or key is not None):
        raise UsageError("--plaintext goes without --ca and --key")
    if not plaintext and (ca is None or key is None):
        raise UsageError("give --ca and --key, the authority's certificate and the node's key")
    from sottovoce.engines.flower.supernode import Connection, serve_node
    from sottovoce.engines.processes import told_to_stop

    connection = Connection(link, ca, key)
    with told_to_stop() as stop:
        if sys.stdin.isatty() and not agree and not as_json:
            threading.Thread(target=_ask_for_agreement, args=(store, stop), daemon=True).start()
        serve_node(store, connection, stop, agree, patient=True)
    if as_json:
        output.emit({"store": store, "stopped": True})


def _ask_for_agreement(path: Path, stop: threading.Event) -> None:
    """When terms have come that nobody has agreed to, show them and ask; on a terminal."""
    from sottovoce.cli import plainly
    from sottovoce.core.words import said
    from sottovoce.errors import SottovoceError
    from sottovoce.stores.opening import open_cohort
    from sottovoce.stores.session import DeviceSession

    seen: str | None = None
    while not stop.wait(1.0):
        with contextlib.suppress(SottovoceError), open_cohort(path, readonly=True) as store:
            shown = DeviceSession(store).pending
            if shown is None or shown.digest() == seen:
                continue
            seen = shown.digest()
            output.show(*plainly.in_words(shown, gateway=True))
            output.show(*output.told(said("terms.digest", digest=seen)))
            if not typer.confirm(f"{output.joined(said('terms.agree'))}?", default=False):
                output.show(*plainly.agreeing(shown, path))
                continue
            with open_cohort(path) as writable:
                session = DeviceSession(writable)
                now = session.pending
                if now is None or now.digest() != seen:
                    output.show("The terms have changed meanwhile; nothing was agreed to.")
                    continue
                session.agree(now)
            output.show(*output.told(said("terms.agreed")))


@says
def cohort(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder to make.")],
    source: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A file with the columns user, item and, if there, timestamp; or a data set's "
            "folder or name.",
        ),
    ],
    consent: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="People's choices: a CSV file with the columns user, takes_part (yes or no), "
            "share_positives (0 to 1) and, for gram, epsilon. People who are not in it take "
            "no part.",
        ),
    ] = None,
    catalogue: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The federation's items: its catalogue.json, or a CSV or Parquet file with the "
            "columns item and title in the same order. The data's own items by default.",
        ),
    ] = None,
    first: Annotated[
        int,
        typer.Option(
            min=0,
            max=2**32 - 1,
            help="The first user's number in the federation; the others follow. The operator "
            "gives each organisation a range of its own.",
        ),
    ] = 0,
    node: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also make the node's key, as `sottovoce keys node` does: FILE, and FILE.pub for "
            "the operator.",
        ),
    ] = None,
) -> Said:
    """Make the store of a cohort from an organisation's own data.

    The store is encrypted, with its key beside it in a file that only you can read. Nothing leaves
    it until people take part.

    \b
    Examples:
      sottovoce serve cohort bakery visits.csv --catalogue catalogue.json --consent choices.csv
      sottovoce serve cohort bakery visits.csv --catalogue catalogue.json --node bakery-node
      sottovoce serve cohort school loans.parquet --catalogue catalogue.json --first 2000
    """
    from sottovoce.data.importers import import_path
    from sottovoce.data.sources import load
    from sottovoce.engines.flower.cohort import make_cohort, read_choices, read_server_catalogue

    known = None
    if catalogue is not None and catalogue.suffix == ".json":
        known = read_server_catalogue(catalogue)
    elif catalogue is not None:
        from sottovoce.cli.making import read_items

        known = read_items(catalogue)
    choices = {} if consent is None else read_choices(consent)
    dataset = import_path(source) if Path(source).exists() else load(source)
    if node is not None and (node.exists() or node.with_name(f"{node.name}.pub").exists()):
        raise UsageError(f"{node} is there already and is not overwritten; choose another name")
    made = make_cohort(store, dataset, known, choices, first)
    last = made.first + made.users - 1
    lines = [
        f"{store}: {made.users:,} people, numbers {made.first} to {last}, "
        f"{made.interactions:,} interactions; {made.take_part:,} take part."
    ]
    if made.unknown_items:
        lines.append(f"{made.unknown_items:,} items are not in the catalogue and are left out.")
    told = {"store": store, **output.plain(made)}
    if node is not None:
        from sottovoce.stores.keys import node_keys

        public = node_keys(node.parent, node.name).with_name(f"{node.name}.pub")
        lines.append(f"Send {public} and these numbers to the operator; neither is a secret.")
        told["public_key"] = public
    return told, lines


def flower(
    folder: Folder,
    nodes: Annotated[
        list[Path] | None,
        typer.Option(
            "--node", metavar="FILE", help="Let a node with this public key in; repeatable."
        ),
    ] = None,
    numbers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A-B",
            help="The devices that the node may answer for, instead of any that it had: one for "
            "each --node, in the same order; several ranges with commas between.",
        ),
    ] = None,
    release: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Take its devices from the node with this public key and do no more; repeatable.",
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=0, help="Run to this round; as DIR says by default.")
    ] = None,
    wait_for: Annotated[
        int | None,
        typer.Option(
            min=1, help="Nodes that must be there before the first round; all that have numbers."
        ),
    ] = None,
    only_register: Annotated[
        bool, typer.Option("--register-only", help="Let the nodes in and do no more.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train with the nodes of a SuperLink: start a run, or go on from the last checkpoint.

    DIR is the folder of `sottovoce serve superlink`, which must be running. Every round is kept in
    DIR; a run that was cut off (a crash, a reboot) goes on with the same command and ends with the
    same model. Ctrl-C ends the watching, not the run.

    A node answers for the devices whose numbers it was given, and no others; no two nodes have the
    same. One without numbers is not spoken to. A change is in force from the next round on.

    \b
    Examples:
      sottovoce serve flower town --node bakery.pub --numbers 1000-1999 --register-only
      sottovoce serve flower town --release bakery.pub
      sottovoce serve flower town --rounds 200
    """
    from sottovoce.engines.flower.launch import go_on, run_settings
    from sottovoce.engines.flower.superlink import register_nodes
    from sottovoce.stores.conductor import read_status
    from sottovoce.stores.server_folder import open_folder

    plan = open_folder(folder).plan
    for path in [*(nodes or []), *(release or [])]:
        if path.suffix != ".pub" or not path.is_file():
            raise DataNotFound(f"{path} is no public key; it is the file that ends in .pub")
    if release:
        if nodes or numbers:
            raise UsageError("--release goes without --node and --numbers")
        _release(folder, release)
        if as_json:
            output.emit({"released": len(release)})
        return
    place = _running_place(folder)
    _allot(folder, nodes or [], numbers or [])
    new = register_nodes(place, nodes or [])
    if nodes:
        output.note(f"{len(nodes)} node(s) may come in, {new} of them new")
    if only_register:
        if as_json:
            output.emit({"registered": len(nodes or []), "new": new})
        return
    target = plan.rounds if rounds is None else rounds
    expected = wait_for or _nodes_with_numbers(folder)
    kept = f"the run goes on at the SuperLink; `sottovoce serve flower {folder}` shows it again"
    with output.interruptible(kept), output.progress() as report:
        said = _WaitingWords()

        def look(status: dict[str, Any]) -> None:
            report("training", int(status.get("round", 0)), int(status.get("target", target)))
            said.look(status)

        output.note("the run begins; it goes on at the SuperLink, also without this command")
        go_on(place, folder, run_settings(folder, target, expected), look)
    if read_status(folder).get("state") != "finished":
        raise ServiceError(f"the run has ended, but {folder} does not say how")
    content, lines = flower_status(folder)
    output.emit(content) if as_json else output.show(*lines)


class _WaitingWords:
    """Says for whom a run waits, since when, and what to do; once each time that it changes."""

    def __init__(self) -> None:
        self._told: tuple[str, ...] = ()
        self._round = -1

    def look(self, status: Mapping[str, Any]) -> None:
        found = tuple(self._sentences(status))
        if found and found != self._told:
            for sentence in found:
                output.note(f"waits since {time.strftime('%H:%M')} {sentence}")
        self._told = found
        done = int(status.get("round", 0))
        if self._round >= 0 and done > self._round:
            output.note(f"round {done} of {status.get('target', '?')} is done")
        self._round = done

    def _sentences(self, status: Mapping[str, Any]) -> Iterator[str]:
        if status.get("state") == "summing":
            yield f"for the helper: {status.get('helper') or 'it has not answered yet'}"
        if status.get("state") != "waiting":
            return
        for name in status.get("away", ()):
            yield (
                f"for the gateway of {name}: it is not connected; there, `sottovoce serve "
                "supernode` has to run"
            )
        for problem in status.get("problems", ()):
            yield f"for whoever runs a gateway, which says: {problem}"
        if not status.get("away") and not status.get("problems"):
            yield (
                f"for people: {status.get('devices', 0)} behind {status.get('nodes', 0)} gateways "
                "take part, which is not enough to begin"
            )


def _gateway(folder: Path, place: SuperLinkPlace, port: int, host: str) -> Child:
    """An nginx of our own that lets through what a registered node needs, and nothing else."""
    from sottovoce.engines.flower.gateway import start_gateway
    from sottovoce.engines.flower.quiet import flower_environment

    work = folder.absolute() / "gateway"
    site = replace(_site(folder, place.port, port, host), access_log=work / "access.log")
    return start_gateway(site, work, flower_environment(work))


def _site(folder: Path, link_port: int, port: int, host: str) -> Site:
    from sottovoce.engines.flower.gateway import Site
    from sottovoce.stores.server_folder import open_folder
    from sottovoce.wire.masked import message_bytes
    from sottovoce.wire.reports import longest_report

    terms = open_folder(folder).plan.terms
    # A row for every item, and the numbers of a million people.
    longest = longest_report(terms.n_items, terms.width) + 4 * 2**20
    if terms.secure_sum is not None:
        longest = message_bytes(terms, terms.most_numbers) + 4 * 2**20
    return Site(folder.absolute() / "keys", link_port, port, host, report_bytes=longest)


def nginx(
    folder: Folder,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="The port at which nodes come in.")
    ] = _GATEWAY_PORT,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "0.0.0.0",
    link_port: Annotated[
        int, typer.Option("--superlink-port", min=1, max=65535, help="The SuperLink's port.")
    ] = _PRIVATE_PORT,
    as_json: Json = False,
) -> None:
    """Print the nginx configuration through which nodes reach the SuperLink.

    It lets through what a registered node needs and nothing else; everything else is 404. Put it
    into /etc/nginx/conf.d/ and reload nginx.

    \b
    Example:
      sottovoce serve nginx town > /etc/nginx/conf.d/sottovoce.conf
    """
    from sottovoce.stores.keys import show_keys

    show_keys(folder / "keys")
    text = _site(folder, link_port, port, host).render()
    if as_json:
        output.emit({"configuration": text})
    else:
        print(text, end="")


def _allot(folder: Path, nodes: list[Path], numbers: list[str]) -> None:
    """Give nodes their devices; all of them or none, and nobody is let in without."""
    from sottovoce.stores.allotment import identity_of_file, parse_ranges
    from sottovoce.stores.conductor import Checkpoint

    if numbers and len(numbers) != len(nodes):
        raise UsageError("give one --numbers for each --node, in the same order")
    identities = [identity_of_file(path) for path in nodes]
    if len(set(identities)) < len(identities):
        raise UsageError("each --node must be another one; write its ranges with commas between")
    with Checkpoint(folder) as checkpoint:
        if numbers:
            checkpoint.allot(
                {
                    identity: (path.stem, parse_ranges(text))
                    for identity, path, text in zip(identities, nodes, numbers, strict=True)
                }
            )
        known = checkpoint.allotted()
    for identity, path in zip(identities, nodes, strict=True):
        if identity not in known:
            raise UsageError(
                f"say which devices {path.name} may answer for, as in --numbers 1000-1999"
            )


def _release(folder: Path, nodes: list[Path]) -> None:
    from sottovoce.stores.allotment import identity_of_file, show_ranges
    from sottovoce.stores.conductor import Checkpoint

    with Checkpoint(folder) as checkpoint:
        known = checkpoint.allotted()
        for path in nodes:
            if identity_of_file(path) not in known:
                raise UsageError(f"{path.name} has no devices in {folder}")
        checkpoint.allot({identity_of_file(path): (path.stem, ()) for path in nodes})
    for path in nodes:
        name, ranges = known[identity_of_file(path)]
        output.note(f"{name} no longer answers for {show_ranges(ranges)}; others may have them")


def _nodes_with_numbers(folder: Path) -> int:
    from sottovoce.stores.conductor import Checkpoint

    with Checkpoint(folder) as checkpoint:
        count = len(checkpoint.allotted())
    if not count:
        raise UsageError(
            "no node has devices here yet; let one in with --node FILE --numbers 1000-1999"
        )
    return count


def _place(folder: Path, port: int) -> SuperLinkPlace:
    from sottovoce.engines.flower.superlink import SuperLinkPlace

    root = folder.absolute()
    return SuperLinkPlace(root / "superlink", port, root / "keys")


def _running_place(folder: Path) -> SuperLinkPlace:
    """The SuperLink that runs from this folder."""
    try:
        found = json.loads((folder / READY).read_text())
        os.kill(found["pid"], 0)
        return _place(folder, int(found["port"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise ServiceError(
            f"no SuperLink runs from {folder}; start it with `sottovoce serve superlink {folder}`"
        ) from None


def flower_status(folder: Path) -> Said:
    """Return the state of a training over Flower, for `serve status`."""
    from sottovoce.stores.allotment import show_ranges
    from sottovoce.stores.conductor import Checkpoint, read_status

    status = read_status(folder)
    with Checkpoint(folder, readonly=True) as checkpoint:
        past, refused = checkpoint.rounds(100), checkpoint.refused()
        saved, allotted = checkpoint.load(), checkpoint.allotted()
    done = 0 if saved is None else saved.round
    given = {name: show_ranges(ranges) for name, ranges in allotted.values()}
    content = {**status, "round": done, "refused": refused, "numbers": given, "rounds": past}
    lines = [
        f"Round {done} of {status.get('target', '?')}: {status.get('state', 'not started')}",
        f"Nodes: {status.get('nodes', 0)}, devices that take part: {status.get('devices', 0)}",
        *(f"  {name}: {numbers}" for name, numbers in given.items()),
        f"Refused: {output.words(refused)}",
        *(f"A node says: {sentence}" for sentence in status.get("problems", [])),
    ]
    if status.get("state") == "summing":
        lines.append(f"Waits for the helper: {status.get('helper')}")
    if strangers := status.get("without_numbers"):
        lines.append(f"Connected without numbers, and not asked: {strangers}; see --numbers")
    for record in past[-10:]:
        silent = ", ".join(map(str, record.missing[:20])) or "nobody"
        lines.append(
            f"  round {record.round}.{record.attempt}: {record.outcome} after "
            f"{record.seconds:.1f} s, {record.reported} of {record.asked} reported; "
            f"missing: {silent}{', …' if len(record.missing) > 20 else ''}"
        )
    return content, lines
