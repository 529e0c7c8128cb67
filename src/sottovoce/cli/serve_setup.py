"""`sottovoce serve setup`: from nothing to a running federation, with few answers."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sottovoce.cli import output
from sottovoce.cli.options import (
    CatalogueFile,
    Json,
    OpenPlaces,
    PageOrigins,
    ProxyCa,
    ProxyKey,
    ProxyUrl,
    Settings,
    through_proxy,
)
from sottovoce.cli.setting_up import (
    ANSWERS,
    LEAST,
    LOCK,
    SetupAnswers,
    SetupQuestions,
    count_items,
    keep_answers,
    kept_answers,
    locked_by_setup,
    make_all,
    making,
    move_in,
    on_loopback,
    read_answers,
    require_free,
    require_ports,
    require_same,
    say_what_comes_first,
    words_of,
)
from sottovoce.errors import ServiceError, UsageError

if TYPE_CHECKING:
    from sottovoce.engines.processes import Part
    from sottovoce.stores.server_folder import ServerFolder

_TRIES = 16
"""How often ports are asked for before they count as taken; twice a second."""


def setup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make, or to start.")],
    learn: Annotated[
        str | None,
        typer.Option(
            metavar="gram|fmf",
            help="What is learnt: gram, over sums to which a helper adds noise, or fmf, through a "
            "shuffler.",
        ),
    ] = None,
    catalogue: CatalogueFile = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="Name or address by which devices reach this machine. By default it is localhost: "
            "then it listens on loopback alone, and devices ask every 2 seconds instead of every "
            "hour.",
        ),
    ] = None,
    least: Annotated[
        int | None,
        typer.Option(
            min=1, max=1_000_000,
            help=f"The least number of people in a sum or batch, {LEAST} by default; with Flower "
            "of organisations, 3 by default.",
        ),
    ] = None,
    invite: Annotated[
        int | None,
        typer.Option(
            min=0, max=100_000,
            help="Invite so many people now, into DIR/invitations. By default nobody is invited.",
        ),
    ] = None,
    spare: Annotated[
        int | None,
        typer.Option(
            min=0, max=10_000_000,
            help="Places for items to come. By default it is a tenth of the items, and at least "
            "10.",
        ),
    ] = None,
    elsewhere: Annotated[
        bool,
        typer.Option("--elsewhere", help="Another organisation runs the helper or shuffler."),
    ] = False,
    proxy: ProxyUrl = None,
    proxy_ca: ProxyCa = None,
    proxy_key: ProxyKey = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--with", metavar="https|flower", help="Who takes part: people's own devices over "
            "HTTPS, or organisations on Flower.",
        ),
    ] = None,
    settings: Settings = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen at. By default it listens everywhere, unless --name is "
            "localhost."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535,
            help="The server's port, 8443 by default; with Flower the SuperLink's, 9091.",
        ),
    ] = None,
    beside_port: Annotated[
        int | None,
        typer.Option(
            "--helper-port", min=0, max=65535,
            help="The port of the helper (8447 by default) or shuffler (8444 by default) here.",
        ),
    ] = None,
    gateway_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535,
            help="With Flower: the port at which organisations come in; 9092 by default.",
        ),
    ] = None,
    origins: PageOrigins = None,
    open_places: OpenPlaces = None,
    plaintext: Annotated[
        bool,
        typer.Option(
            "--plaintext", help="The server speaks HTTP without TLS, on this machine alone: for "
            "trying pages here, whose browser does not know the federation's certificate.",
        ),
    ] = False,
    start: Annotated[
        bool, typer.Option("--start/--no-start", help="Whether to run it when it is made.")
    ] = True,
    yes: Annotated[
        bool, typer.Option("--yes", help="Take the usual answer to what is not given; ask nothing.")
    ] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Make a federation in DIR from a few answers, and run it; start it again if it is there.

    What is not given as an option is asked on a terminal; --yes takes what is usual. DIR is made
    whole or not at all, and only your account can read it. It has DIR/server, DIR/helper or
    DIR/shuffler if that runs here, DIR/experiment.toml to read, DIR/invitations if people are
    invited, and DIR/logs. Then everything runs in the foreground: a line for each part when it is
    ready, its log in DIR/logs, one that ends is started again, and Ctrl-C or SIGTERM ends all. The
    same command again starts what was made. --origin, --open-places and --plaintext are for devices
    that are tabs of a browser, as in `sottovoce serve server`; they are given at each start.

    A helper or shuffler on this machine is for a try: whoever runs both it and the server can read
    what single people send. For real, another organisation runs it: --elsewhere says what to hand
    over, and makes nothing without the files that it has to give you.

    \b
    Examples:
      sottovoce serve setup town --catalogue places.csv --least 3 --invite 3 --yes
      sottovoce serve setup town
      sottovoce serve setup town --catalogue places.csv --name example.org --least 500 \\
          --proxy https://masks.example.net:8447 --proxy-ca proxy.crt --proxy-key proxy.pub
      sottovoce serve setup shop --catalogue things.csv --least 2 --yes --plaintext \\
          --origin http://localhost:8000 --open-places 20
      sottovoce serve setup readers --with flower --catalogue places.csv --least 3 --yes
    """
    given = {
        "learn": learn, "name": name, "least": least, "spare": spare, "host": host, "port": port,
        "beside_port": beside_port, "proxy": proxy, "engine": engine, "gateway_port": gateway_port,
    }  # fmt: skip
    tabs = _for_tabs(origins, open_places, plaintext, engine)
    if plaintext and invite:
        raise UsageError("invitations name an address with TLS; leave --invite or --plaintext out")
    if (folder / ANSWERS).exists():
        answers = kept_answers(folder)
        require_same(folder, answers, given)
        with locked_by_setup(folder / LOCK, folder):
            _go(folder, answers, start, as_json, tabs)
        return
    require_free(folder)
    through = through_proxy(proxy, proxy_ca, proxy_key)
    asked = SetupQuestions(yes or as_json, sys.stdin.isatty())
    asked.text("catalogue", catalogue, None, "A file with the items (columns item and title)")
    items = count_items(asked.found["catalogue"])
    answers = read_answers(asked, given, items, elsewhere)
    if not answers.beside_port and through is None:
        say_what_comes_first(answers, as_json)
        return
    people = asked.number("invite", invite, 0, "How many people shall be invited now", 0)
    if answers.engine == "flower" and people:
        raise UsageError("organisations on Flower need no invitations; leave --invite out")
    require_ports(answers)
    tabs.url(answers)
    output.note(words_of(answers))
    with making(folder) as (place, lock):
        made = make_all(place, folder, answers, Path(asked.found["catalogue"]), settings or [],
                     through, proxy_key, people)  # fmt: skip
        keep_answers(place, made)
        move_in(place, folder)
        with lock:
            _go(folder, made, start, as_json, tabs)


class _Tabs(NamedTuple):
    """Words of commands for devices that are tabs of a browser."""

    pages: tuple[str, ...]
    places: tuple[str, ...]
    plaintext: bool

    def url(self, answers: SetupAnswers) -> str:
        """Where devices reach the server."""
        if not self.plaintext:
            return answers.url
        if not on_loopback(answers.host):
            raise UsageError(f"--plaintext is for a loopback address, not for {answers.host}")
        return answers.url.replace("https:", "http:", 1)


def _for_tabs(
    origins: list[str] | None, open_places: int | None, plaintext: bool, engine: str | None
) -> _Tabs:
    from sottovoce.services.kit.cors import Origins

    Origins.of(origins)
    if engine == "flower" and (origins or open_places is not None or plaintext):
        raise UsageError(
            "--origin, --open-places and --plaintext are for people's devices, not for Flower"
        )
    pages = tuple(word for one in origins or () for word in ("--origin", one))
    places = () if open_places is None else ("--open-places", str(open_places))
    return _Tabs(pages, places, plaintext)


# --- running -------------------------------------------------------------------------------------


def _go(folder: Path, answers: SetupAnswers, start: bool, as_json: bool, tabs: _Tabs) -> None:
    from sottovoce.stores.server_folder import open_folder

    url, server = tabs.url(answers), open_folder(folder / "server")
    digest, cards = server.plan.terms.digest(), _unused_cards(folder, server)
    told = {
        "folder": folder, "server": folder / "server", "url": url, "terms": digest,
        "invitations": cards, **asdict(answers),
    }  # fmt: skip
    if not start:
        lines = [f"{folder} is made; to run it: sottovoce serve setup {folder}"]
        if as_json:
            output.emit(told)
        else:
            output.show(*lines, *_next_words(folder, answers, digest, cards, tabs))
        return
    from signal import SIGHUP

    from sottovoce.engines.processes import Supervisor, told_to_stop

    with told_to_stop(SIGHUP) as stop:
        _require_ports_soon(answers, stop)
        with Supervisor(_parts(folder, answers, tabs), output.note, stop) as running:
            if as_json and not stop.is_set():
                output.emit(told)
            elif not stop.is_set():
                output.show(*_next_words(folder, answers, digest, cards, tabs))
            running.watch()
            output.note("stopping")


def _unused_cards(folder: Path, server: ServerFolder) -> list[str]:
    """Files of invitations that nobody has used yet."""
    from sottovoce.stores.server import unused_among

    found = {}
    for file in sorted((folder / "invitations").glob("device-*.json")):
        number = file.stem.removeprefix("device-")
        if number.isascii() and number.isdigit():
            found[int(number)] = str(file)
    if not found:
        return []
    with contextlib.closing(server.database()) as store, store.reading() as link:
        unused = unused_among(link, list(found))
    return [file for number, file in sorted(found.items()) if number in unused]


def _require_ports_soon(answers: SetupAnswers, stop: Event) -> None:
    """Parts of one that was killed a moment ago are about to end."""
    for _ in range(_TRIES):
        try:
            return require_ports(answers)
        except ServiceError:
            if stop.wait(0.5):
                return
    require_ports(answers)


def _parts(folder: Path, answers: SetupAnswers, tabs: _Tabs) -> list[Part]:
    from sottovoce.engines.processes import Part, sottovoce_command

    def part(name: str, party: str, ready: str, *words: str | Path) -> Part:
        command = sottovoce_command("serve", *words)
        return Part(name, command, folder / party / ready, folder / "logs" / f"{party}.log")

    found, beside = [], str(answers.beside_port)
    if answers.beside_port and answers.beside == "helper":
        where = folder / "helper"
        found.append(part("the helper", "helper", "masker.json", "helper", where, "--port", beside))
    elif answers.beside_port:
        hold = ("--hold-seconds", "5") if answers.trial else ()
        words = ("shuffler", folder / "shuffler", "--host", answers.host, "--port", beside, *hold)
        found.append(part("the shuffler", "shuffler", "proxy.json", *words, *tabs.pages))
    server, port = folder / "server", str(answers.port)
    if answers.engine == "flower":
        more = ("--gateway-port", str(answers.gateway_port), "--gateway-host", answers.host)
        words = ("superlink", server, "--port", port, *more)
        return [*found, part("the SuperLink", "server", "superlink.json", *words)]
    words = ("server", server, "--host", answers.host, "--port", port, *tabs.pages, *tabs.places)
    words += ("--plaintext",) if tabs.plaintext else ()
    return [*found, part("the server", "server", "server.json", *words)]


def _next_words(
    folder: Path, answers: SetupAnswers, digest: str, cards: list[str], tabs: _Tabs
) -> list[str]:
    """What whoever runs it does next."""
    lines = [f"The terms have the digest {digest}; tell it to people by another way, too."]
    if not answers.beside_port:
        command = answers.beside
        lines.append(
            f"Hand {folder / 'introduction.json'}, a secret, to whoever runs the {answers.beside}; "
            f"there: sottovoce serve {command} DIR --introduction introduction.json --host 0.0.0.0"
        )
    if answers.engine == "flower":
        keys = folder / "server" / "keys" / "ca.crt"
        lines.append(
            f"Hand {keys} and {folder / 'server' / 'catalogue.json'} to each organisation, with "
            "numbers of its own; neither is a secret."
        )
        lines.append(
            f"When they have sent their keys: sottovoce serve flower {folder / 'server'} --node "
            "NAME.pub --numbers 1000-1999"
        )
        return lines
    if tabs.plaintext:
        lines.append(
            f"The files for your pages: sottovoce serve site {folder} --out site --server "
            f"{tabs.url(answers)}"
        )
    elif cards:
        lines.append(
            f"{len(cards)} invitation(s) in {folder / 'invitations'}, each a secret for one "
            "person, who joins with:"
        )
        lines.append(
            f"  sottovoce device join ~/sottovoce --invitation {cards[0]} --history visits.csv "
            "--stay"
        )
    else:
        lines.append(
            f"To invite people: sottovoce serve invite {folder / 'server'} --count 3 --server "
            f"{answers.url}"
        )
    server = folder / "server"
    lines.append(f"To watch it: sottovoce serve status {server}, or sottovoce console {server}")
    return lines
