"""The answers from which `sottovoce serve setup` makes a federation, and the making: whole or not
at all."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import typer

from sottovoce.cli import output
from sottovoce.errors import ServiceError, UsageError

if TYPE_CHECKING:
    from sottovoce.stores.server_folder import ServerFolder

ANSWERS, EXPERIMENT, LOCK = "setup.json", "experiment.toml", "setup.lock"
_PORTS = {"gram": 8447, "fmf": 8444}
"""Of whoever is beside the server: the helper, the shuffler."""
_BESIDE = {"gram": "helper", "fmf": "shuffler"}
LEAST, _FEWEST = 100, 2
PERIOD_DAYS = 30
"""Days that one period lasts for a person, unless everything is on this machine."""

_FEW = {
    "gram": (
        "Sums have noise, so that what is published tells of each person no more than the loudness "
        "that she chose, however few they are. But the fewer, the less is learnt through that "
        "noise: three are enough to try it out, and recommend little better than chance; about "
        "1,000 are needed at a loudness of 1. And whoever runs the helper can take the noise off: "
        "then a person hides among those in the sum, and nowhere else."
    ),
    "fmf": (
        "No batch of fewer leaves the shuffler, and what people are told of their privacy is "
        "worked out with this number: with three it is worth nothing but the noise of each report. "
        "`sottovoce budget tuned/fmf --users N` shows what a number is worth."
    ),
}
_TEXTS = {
    "gram": """\
[algorithm]
name = "gram"
popularity_share = 0.2     # of 1/noise²: which items are popular
quality_share = 0.05       # of 1/noise²: devices say how good a new model is

[release]
epsilon = 4.0              # nobody can speak louder
period_days = {days:<12} # a person's next contribution leaves after so many days

[link]
name = "secure-sum"
min_devices = {least}      # a sum over fewer is never opened
""",
    "fmf": """\
[algorithm]
name = "fmf"
variant = "rotated"
embedding_size = 5
rounds = 20

[release]
name = "k-reports"
max_reports = 20           # of each device and round
tiers = [{{ epsilon = 1.0, min_devices = {least} }}]
""",
}
_SERVICE = """
[service]
min_devices = {least}      # enrolled before the first round
deadline_seconds = {deadline}
poll_seconds = {poll}
"""
_HEAD = """\
# What `sottovoce serve setup` made the federation of. It is kept to be read: what people agreed
# to is in server/federation.json, and `sottovoce serve terms` changes that.
name = "{name}"

"""


@dataclass(frozen=True, slots=True)
class SetupAnswers:
    """What was asked, and how it was answered."""

    learn: str
    name: str
    """By which devices reach this machine."""
    least: int
    spare: int
    host: str
    """Address to listen at."""
    port: int
    beside_port: int
    """Of the helper or shuffler on this machine; 0 where there is none here."""
    proxy: str = ""
    """Where the helper or shuffler is, if somebody else runs it."""
    engine: str = "https"
    gateway_port: int = 0
    invited: int = 0

    @property
    def trial(self) -> bool:
        """Whether nobody but this machine takes part."""
        return on_loopback(self.name)

    @property
    def beside(self) -> str:
        """Who is beside the server: helper or shuffler."""
        return _BESIDE[self.learn]

    @property
    def url(self) -> str:
        return f"https://{_bracketed(self.name)}:{self.port}"

    @property
    def proxy_url(self) -> str:
        """Where the terms say that the helper or shuffler is."""
        # Devices come to a shuffler; to a helper the server does, and nobody else.
        name = self.name if self.beside == "shuffler" else "127.0.0.1"
        return self.proxy or f"https://{_bracketed(name)}:{self.beside_port}"


# --- answers -------------------------------------------------------------------------------------


class SetupQuestions:
    """Asks for what was not given; raises where nobody can be asked."""

    def __init__(self, usual: bool, terminal: bool) -> None:
        self._usual, self._terminal = usual, terminal
        self.found: dict[str, Any] = {}

    def text(self, key: str, given: Any, usual: str | None, question: str) -> str:
        if given is None and not self._usual:
            self._require_terminal(key)
            given = typer.prompt(question, default=usual)
        value = usual if given is None else given
        if value is None:
            raise UsageError(f"say --{key}: {question[0].lower()}{question[1:]}")
        self.found[key] = str(value)
        return str(value)

    def number(self, key: str, given: int | None, usual: int, question: str, least: int) -> int:
        import click

        if given is None and not self._usual:
            self._require_terminal(key)
            given = typer.prompt(question, default=usual, type=click.IntRange(min=least))
        self.found[key] = usual if given is None else given
        return int(self.found[key])

    def _require_terminal(self, key: str) -> None:
        if not self._terminal:
            raise UsageError(
                f"say --{key}, or --yes to take what is usual for all that is not said"
            )

    def say(self, text: str) -> None:
        if not self._usual:
            output.note(text)


def read_answers(
    asked: SetupQuestions, given: dict[str, Any], items: int, elsewhere: bool
) -> SetupAnswers:
    engine = given["engine"] or "https"
    if engine not in ("https", "flower"):
        raise UsageError(f"--with is https or flower, not {engine!r}")
    asked.say(
        "gram: one noisy sum that a helper makes, and no server reads anybody. fmf: random answers "
        "through a shuffler."
    )
    learn = asked.text("learn", given["learn"], "gram", "What is learnt: gram or fmf")
    if learn not in _TEXTS:
        raise UsageError(f"--learn is gram or fmf, not {learn!r}")
    if engine == "flower" and learn == "fmf":
        raise UsageError("fmf has devices of its own; with Flower learn gram")
    name = asked.text("name", given["name"], "localhost",
                      "The name by which devices reach this machine")  # fmt: skip
    _require_name(name)
    asked.say(_FEW[learn])
    what = "Organisations" if engine == "flower" else "People"
    least = asked.number("least", given["least"], LEAST if engine == "https" else 3,
                         f"{what} at least in a sum or batch", _FEWEST)  # fmt: skip
    if least < _FEWEST:
        raise UsageError(f"a sum or batch needs {_FEWEST} people at least, not {least}")
    spare = given["spare"]
    spare = max(10, items // 10) if spare is None else spare
    beside = _BESIDE[learn]
    if not elsewhere and given["proxy"] is None:
        question = f"Where the {beside} runs: here, for a try, or elsewhere, by others"
        where = asked.text("elsewhere", None, "here", question)
        if where not in ("here", "elsewhere"):
            raise UsageError(f"the {beside} runs here or elsewhere, not {where!r}")
        elsewhere = where == "elsewhere"
    here = not elsewhere and given["proxy"] is None
    local = on_loopback(name)
    host = given["host"] or ("127.0.0.1" if local else "0.0.0.0")
    flower = engine == "flower"
    return SetupAnswers(
        learn=learn,
        name=name,
        least=least,
        spare=spare,
        host=host,
        port=_port(given["port"], 9091 if flower else 8443),
        beside_port=_port(given["beside_port"], _PORTS[learn]) if here else 0,
        proxy=given["proxy"] or "",
        engine=engine,
        gateway_port=_port(given["gateway_port"], 9092) if flower else 0,
    )


def _port(given: int | None, usual: int) -> int:
    from sottovoce.engines.processes import free_port

    return usual if given is None else given or free_port()


def require_same(folder: Path, answers: SetupAnswers, given: dict[str, Any]) -> None:
    """Raises where a folder that is made was asked for otherwise."""
    for key, value in given.items():
        was = getattr(answers, key)
        if value not in (None, 0, was):
            option = {"beside_port": "helper-port", "engine": "with"}.get(key, key)
            raise UsageError(
                f"{folder} is made already, with --{option.replace('_', '-')} {was}; start it with "
                f"`sottovoce serve setup {folder}`, and change terms with `sottovoce serve terms "
                f"{folder / 'server'}`"
            )


def _require_name(name: str) -> None:
    """Raises where no machine can be called so."""
    try:
        ipaddress.ip_address(name)
        return
    except ValueError:
        pass
    label = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    if len(name) > 253 or not re.fullmatch(rf"{label}(\.{label})*", name) or (
        re.fullmatch(r"[\d.]+", name)
    ):  # fmt: skip
        raise UsageError(
            f"--name is the name or address of a machine, like example.org, not {name!r}"
        )


def on_loopback(name: str) -> bool:
    from sottovoce.services.kit.serving import is_loopback

    return is_loopback(name)


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def count_items(file: str) -> int:
    """Of a catalogue; raises with one sentence where it is none."""
    from sottovoce.cli.making import read_catalogue

    return len(read_catalogue(Path(file)))


def require_free(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is no folder; choose another place")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(
            f"{folder} is not empty, and not of `sottovoce serve setup`; choose another place"
        )
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"{folder.absolute().parent} is no folder; make it first")


def require_ports(answers: SetupAnswers) -> None:
    from sottovoce.engines.processes import require_port

    loopback = "127.0.0.1"
    flower = answers.engine == "flower"
    require_port(loopback if flower else answers.host, answers.port)
    if answers.beside_port:
        shuffler = answers.beside == "shuffler"
        require_port(answers.host if shuffler else loopback, answers.beside_port)
    if answers.gateway_port:
        require_port(answers.host, answers.gateway_port)
    ports = [p for p in (answers.port, answers.beside_port, answers.gateway_port) if p]
    if len(set(ports)) < len(ports):
        raise UsageError("every part needs a port of its own; choose others")


def words_of(answers: SetupAnswers) -> str:
    """What the answers mean for those who will take part."""
    spare = f"{answers.spare:,} places are kept for items to come; each costs what an item costs."
    what = "sum" if answers.beside == "helper" else "batch"
    promise = (
        f"The {answers.beside} will run on this machine, beside the server: fine for a try. "
        "Whoever runs both can read what single people send, so for real another "
        f"organisation has to run the {answers.beside} (--elsewhere)."
        if answers.beside_port
        else f"The {answers.beside} is run elsewhere, at {answers.proxy}."
    )
    return f"{promise} No {what} of fewer than {answers.least:,} is opened. {spare}"


def say_what_comes_first(answers: SetupAnswers, as_json: bool) -> None:
    """What somebody else has to do before there can be a federation."""
    if answers.beside == "helper":
        first = "sottovoce serve helper masks --init --name masks.example.net"
        files, more = "masks/keys/ca.crt and masks/seal.pub", " --proxy-key seal.pub"
        port = _PORTS["gram"]
    else:
        first = "sottovoce keys init mixer/keys --host mixer.example.net"
        files, more, port = "mixer/keys/ca.crt", "", _PORTS["fmf"]
    lines = [
        f"Nothing was made yet. The terms will name the {answers.beside}, so its keys come first.",
        f"Whoever runs it types: {first}",
        f"and hands you {files}, in a way that tells who they are from. Then call this again with",
        f"  --proxy https://THEIR-NAME:{port} --proxy-ca ca.crt{more}",
        "It writes introduction.json, a secret, which goes back to them.",
    ]
    if as_json:
        output.emit({"made": False, "next": lines})
    else:
        output.show(*lines)


# --- making --------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked_by_setup(place: Path, folder: Path) -> Iterator[IO[bytes]]:
    from sottovoce.stores.locking import try_lock

    lock = try_lock(place)
    if lock is None:
        raise ServiceError(f"{folder} is made or run by another process just now; stop that one")
    with lock:
        yield lock


@contextlib.contextmanager
def making(folder: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """A place beside the folder in which it is made; nothing stays of it where that fails. What was
    left by one that was killed is removed."""
    whole = folder.absolute()
    place = whole.with_name(f".{whole.name}.new")
    _take(place)
    with locked_by_setup(place / LOCK, folder) as lock:
        try:
            if (folder / ANSWERS).exists():
                raise ServiceError(f"{folder} was made by another process; call this again")
            for old in place.iterdir():
                if old.name != LOCK:
                    whole_folder = old.is_dir() and not old.is_symlink()
                    shutil.rmtree(old) if whole_folder else old.unlink()
            yield place, lock
        except BaseException:
            if place.exists():
                shutil.rmtree(place, ignore_errors=True)
            raise


def _take(place: Path) -> None:
    """Make it, or take what one that was killed has left. Raises where something else is there:
    nothing that somebody else has put or linked there is touched."""
    from sottovoce.stores.private import close_to_others

    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        there = place.lstat()
        ours = stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid()
        if not ours or (any(place.iterdir()) and not (place / LOCK).is_file()):
            raise UsageError(
                f"{place} is in the way, and was not left by `sottovoce serve setup`; move it away"
            ) from None
    close_to_others(place)


def make_all(
    place: Path,
    folder: Path,
    answers: SetupAnswers,
    catalogue: Path,
    settings: list[str],
    through: tuple[str, Path] | None,
    proxy_key: Path | None,
    people: int,
) -> SetupAnswers:
    """The server's folder, and that of the helper or shuffler if it will run here."""
    from sottovoce.cli.making import make_federation
    from sottovoce.stores.helper_folder import PUBLIC_KEY, init_helper
    from sottovoce.stores.keys import init_keys
    from sottovoce.stores.private import write_new

    poll, deadline, days = (2, 600, 0) if answers.trial else (3600, 30 * 86400, PERIOD_DAYS)
    numbers = {"least": answers.least, "poll": poll, "deadline": deadline, "days": days}
    named = re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or "federation"
    text = _HEAD.format(name=named) + (_TEXTS[answers.learn] + _SERVICE).format(**numbers)
    experiment = place / EXPERIMENT
    write_new(experiment, text.encode())
    shutil.copyfile(catalogue, place / f"catalogue{catalogue.suffix or '.csv'}")
    beside, key = place / answers.beside, proxy_key
    if answers.beside_port and answers.beside == "helper":
        init_helper(beside)
        through, key = (answers.proxy_url, beside / "keys" / "ca.crt"), beside / PUBLIC_KEY
    elif answers.beside_port:
        init_keys(beside / "keys", [answers.name])
        through = answers.proxy_url, beside / "keys" / "ca.crt"
    server = make_federation(
        *(place / "server", str(experiment), settings, catalogue, [answers.name], None, through),
        key,
        gateways=answers.engine == "flower",
        spare=answers.spare,
    )
    _introduce(place, server, answers)
    if people:
        _invite(place, server, answers, people)
    return replace(answers, invited=people)


def _introduce(place: Path, server: ServerFolder, answers: SetupAnswers) -> None:
    """The helper or shuffler is given what it needs: here at once, elsewhere as a file."""
    from sottovoce.stores import server_folder as folders
    from sottovoce.stores.helper_folder import create_helper, helper_introduction
    from sottovoce.stores.shuffler_folder import create_shuffler_folder

    if answers.beside == "helper":
        introduction = helper_introduction(server)
        if answers.beside_port:
            create_helper(place / "helper", introduction)
        else:
            introduction.write(place / "introduction.json")
    elif answers.beside == "shuffler":
        shown = folders.introduction(server, answers.url)
        if answers.beside_port:
            create_shuffler_folder(place / "shuffler", shown, [])
        else:
            folders.write_introduction(place / "introduction.json", shown)


def _invite(place: Path, server: ServerFolder, answers: SetupAnswers, count: int) -> None:
    from sottovoce.stores.private import private_folder
    from sottovoce.stores.server_folder import invite

    out = private_folder(place / "invitations")
    with contextlib.closing(server.database()) as database:
        for invitation in invite(server, database, answers.url, count=count):
            invitation.write(out / f"device-{invitation.number}.json")


def keep_answers(place: Path, answers: SetupAnswers) -> None:
    from sottovoce.stores.private import write_new

    write_new(place / ANSWERS, (json.dumps(asdict(answers), indent=1) + "\n").encode())


def move_in(place: Path, folder: Path) -> None:
    """At one moment."""
    from sottovoce.stores.private import sync_folder

    sync_folder(place)
    try:
        os.rename(place, folder.absolute())
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}; nothing was made") from None
    sync_folder(folder.absolute().parent)


def kept_answers(folder: Path) -> SetupAnswers:
    place = folder / ANSWERS
    try:
        table = json.loads(place.read_bytes())
        found = SetupAnswers(**table)
        kinds = all(type(getattr(found, f.name)).__name__ == f.type for f in fields(SetupAnswers))
        good = kinds and found.learn in _BESIDE
    except (OSError, ValueError, TypeError):
        good = False
    if not good:
        raise ServiceError(f"{place} cannot be read; put the right file back")
    return found
