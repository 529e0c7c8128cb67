"""The folder of a server: what the federation is, its catalogue and its keys, and who is invited.

`federation.json` (terms, plan), `catalogue.json` (the items by number), `keys/`, `server.db` (the
state, unless it is in PostgreSQL), `state.json` (in which of both it is), `server.json` (address
and process of a running server).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce import config
from sottovoce.core.links import MOST_SHUFFLERS
from sottovoce.errors import (
    ConfigError,
    KeyTrouble,
    MessageError,
    ServiceError,
    UsageError,
    other_format,
)
from sottovoce.parties.defence import Defence
from sottovoce.parties.rounds import RoundRules
from sottovoce.parties.server import NO_DEFENCE
from sottovoce.rng import SECRET_BYTES
from sottovoce.stores import amending
from sottovoce.stores import server as records
from sottovoce.stores.coordinator import CohortSize, Plan
from sottovoce.stores.database import Database
from sottovoce.stores.keys import (
    ReportKeys,
    authority_pem,
    init_keys,
    read_secret,
    replace_file,
    write_new_files,
)
from sottovoce.stores.locking import locked, running
from sottovoce.stores.private import close_to_others, private_folder
from sottovoce.stores.server import published_catalogue
from sottovoce.wire.catalogue import (
    Categories,
    Items,
    as_table,
    categories_in,
    changed,
    changed_categories,
    require_fit,
    with_spare,
)
from sottovoce.wire.frames import PROTOCOL, check_protocol
from sottovoce.wire.invitations import MAX_NUMBER, Invitation
from sottovoce.wire.shuffled import enrolment_statement
from sottovoce.wire.signing import is_signed
from sottovoce.wire.terms import Terms

# What the server of a federation with a proxy gives to others: to a device, word that it has
# enrolled (an admission), which the proxy asks for; to the proxy's operator, once and in
# confidence, all that the proxy needs of the server (an introduction). Files of the key folder:
# `admission.key` (signs admissions), `proxy.token` (by which the server knows the proxy, or the
# proxy of a secure sum the server). Both have mode 600.

ADMISSION_KEY, PROXY_TOKEN = "admission.key", "proxy.token"
_LARGEST = 1 << 20
_FIELDS = ("server", "ca", "federation", "verifying_key", "token")
_BEHIND = ("hop", "accepts")
"""What is there more for a shuffler behind another one."""


@dataclass(frozen=True, slots=True, repr=False)
class Introduction:
    """All that a proxy needs to know of the server that it hands its batches to."""

    server: str
    """The server's address, as in https://example.org:8443."""
    ca: str
    """The server's certificate authority, as PEM; empty for a plaintext server on loopback."""
    federation: str
    verifying_key: str
    """Key by which admissions are known (Ed25519); hexadecimal."""
    token: str
    """Token by which the party behind it (the server, or the next shuffler of a chain) knows the
    shuffler; hexadecimal. A secret."""
    hop: int = 0
    """Its place in the chain, from 0."""
    accepts: str = ""
    """Token by which it knows the shuffler before it; hexadecimal. A secret."""

    def __repr__(self) -> str:
        return f"<Introduction to {self.federation}, redacted>"

    def to_table(self) -> dict[str, Any]:
        """Return the table of the first shuffler."""
        table = {"protocol": PROTOCOL, **asdict(self)}
        return table if self.hop else {k: v for k, v in table.items() if k not in _BEHIND}


@dataclass(frozen=True, slots=True, repr=False)
class ShufflerSecrets:
    """What a server process needs where reports come through a proxy."""

    admission_key: Ed25519PrivateKey
    token: str

    @classmethod
    def of(cls, folder: Path) -> ShufflerSecrets:
        """From the server's key folder."""
        return cls(admission_key(folder), proxy_token(folder))


def init_proxy_secrets(folder: Path) -> None:
    """Make the server's key for admissions and the proxy's token. Never over existing ones."""
    key = Ed25519PrivateKey.generate().private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
    )
    token = secrets.token_hex(32).encode() + b"\n"
    write_new_files(folder, {ADMISSION_KEY: key, PROXY_TOKEN: token})


def init_proxy_token(folder: Path) -> None:
    """Make the token by which the proxy of a secure sum knows the server. Never over one."""
    write_new_files(folder, {PROXY_TOKEN: secrets.token_hex(32).encode() + b"\n"})


def proxy_token(folder: Path) -> str:
    """The secret with which the proxy hands over batches; or with which the server asks the proxy
    of a secure sum."""
    return read_secret(folder / PROXY_TOKEN).decode("ascii", "replace").strip()


def admission_key(folder: Path) -> Ed25519PrivateKey:
    path = folder / ADMISSION_KEY
    try:
        key = form.load_pem_private_key(read_secret(path), None)
    except (ValueError, TypeError):
        raise KeyTrouble(f"{path} is no private key; put the right file back") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyTrouble(f"{path} is not an Ed25519 key as the server makes it")
    return key


def admission_statement(federation: str, public_key: bytes) -> bytes:
    """What the server signs when a device has enrolled."""
    return b"sottovoce proxy admission\0" + federation.encode() + b"\0" + public_key


def admit(key: Ed25519PrivateKey, federation: str, public_key: bytes) -> bytes:
    """The admission of a device by its public key. The same each time."""
    return key.sign(admission_statement(federation, public_key))


def is_admitted(
    verifying_key: bytes,
    federation: str,
    public_key: bytes,
    admission: bytes,
    signature: bytes,
    challenge: bytes,
) -> bool:
    """Whether the server admitted this key, and whoever shows the admission holds it and was asked
    with this challenge."""
    word = admission_statement(federation, public_key)
    answer = enrolment_statement(federation, admission, challenge)
    return is_signed(verifying_key, word, admission) and is_signed(public_key, answer, signature)


def introduce(
    keys: Path, server: str, ca: str, federation: str, hop: int = 0, shufflers: int = 1
) -> Introduction:
    """What the operator of a shuffler is given, from the server's key folder; `hop` is its place in
    a chain of so many."""
    key = admission_key(keys)
    last = hop == shufflers - 1
    token = proxy_token(keys) if last else _hop_token(key, federation, hop + 1)
    accepts = _hop_token(key, federation, hop) if hop else ""
    public = key.public_key().public_bytes_raw()
    return Introduction(server, ca, federation, public.hex(), token, hop, accepts)


def _hop_token(key: Ed25519PrivateKey, federation: str, hop: int) -> str:
    """By which the shuffler at this place knows the one before it. Made from a key that only the
    server has, so that nobody but these two and the server knows it. (Whoever has it can hand over
    a batch of his own making, in which no report of an honest device is.)"""
    content = federation.encode() + b"\0" + hop.to_bytes(1, "little")
    made = hashlib.blake2b(content, key=key.private_bytes_raw(), person=b"sottovoce hop")
    return made.digest()[:32].hex()


def write_introduction(path: Path, introduction: Introduction) -> None:
    """As a file of mode 600. Never over an existing one."""
    if path.exists():
        raise UsageError(f"{path} is there already and is not overwritten")
    content = json.dumps(introduction.to_table(), indent=1) + "\n"
    write_new_files(path.parent, {path.name: content.encode()})


def read_introduction(path: Path) -> Introduction:
    """Raises with one sentence where the file is missing, of another version or none."""
    try:
        with path.open("rb") as source:
            return parse_introduction(json.loads(source.read(_LARGEST)))
    except OSError as error:
        raise UsageError(
            f"the introduction {path} cannot be read: {error.strerror or error}"
        ) from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is no introduction; ask the server's operator for one") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def parse_introduction(table: Any) -> Introduction:
    """From the content of a file."""
    if not isinstance(table, Mapping):
        raise UsageError("this is no introduction; ask the server's operator for one")
    advice = "install the release of Sottovoce that the server runs"
    check_protocol(table.get("protocol"), "the introduction is for", advice)
    behind = _BEHIND if "hop" in table else ()
    texts = (*_FIELDS, *behind[1:])
    good = set(table) == {"protocol", *_FIELDS, *behind}
    if not good or not all(isinstance(table[f], str) for f in texts):
        raise UsageError(f"an introduction has the fields {', '.join(_FIELDS)}; ask for another")
    found = Introduction(**{name: table[name] for name in (*_FIELDS, *behind)})
    if behind and (type(found.hop) is not int or not 0 < found.hop < MOST_SHUFFLERS):
        raise UsageError("the introduction names no place in a chain of shufflers; ask for another")
    if not found.server.startswith(("https://", "http://")):
        raise UsageError("the introduction's server must begin with https://; ask for another")
    try:
        good = len(bytes.fromhex(found.verifying_key)) == 32 and len(bytes.fromhex(found.token)) > 0
        good = good and (not behind or len(bytes.fromhex(found.accepts)) > 0)
    except ValueError:
        good = False
    if not good:
        raise UsageError("the introduction's keys are not hexadecimal; ask for another")
    return found


DATABASE, SETUP = "server.db", "setup.json"
CHECKPOINT = "flower.db"
"""The same as the database, of rounds that are held by runs on Flower."""
_OF_FLOWER = CHECKPOINT, "superlink"
FORMAT = 1
ROOT_BITS = 8 * SECRET_BYTES
DATABASE_VARIABLE = "SOTTOVOCE_DATABASE"
"""Environment variable with the database's URL: a command line would show its password."""

_KINDS = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}

Catalogue = Sequence[tuple[str, str]]
"""Id and title of every item, by item number."""


@dataclass(frozen=True, slots=True)
class ServerFolder:
    path: Path
    plan: Plan

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    def require_own_rounds(self, instead: str) -> None:
        """Raises where rounds are held by runs at a SuperLink, with what is done there instead."""
        if any((self.path / name).exists() for name in _OF_FLOWER):
            raise UsageError(f"{self.path} is trained on Flower, {instead}; nothing was done")

    def caught_up(self, link: sa.Connection) -> ServerFolder:
        """As the database has it, where its terms were changed since the files were written."""
        terms = amending.ahead(link, self.plan.terms)
        return self if terms is None else replace(self, plan=amended(self.plan, terms))

    def follow(self, database: Database) -> ServerFolder:
        """Bring the files up to what the database has; the folder as it is then."""
        with database.reading() as link:
            now = self.caught_up(link)
            catalogue = now.catalogue(link)
        now.write_down(catalogue)
        return now

    def write_down(self, catalogue: bytes) -> None:
        """Bring the files up to this plan and catalogue, each whole or not at all. What is cut off,
        or finds no room, is done again by the next that starts: the database goes before them."""
        now = {"terms": self.plan.terms.to_table(), "cohort_size": self.plan.cohort_size}
        with contextlib.suppress(OSError, KeyTrouble):
            place = self.path / "catalogue.json"
            if _read(place) != catalogue:
                replace_file(place, catalogue)
            place = self.path / "federation.json"
            table = json.loads(_read(place))
            if open_folder(self.path).plan != self.plan:
                _write(place, table | now)

    def catalogue(self, link: sa.Connection | None = None) -> bytes:
        """As it is published; by the database, where it was changed there. Raises where it is not
        that of the terms."""
        content = None if link is None else published_catalogue(link)
        place = self.path / "catalogue.json"
        content = _read(place) if content is None else content
        try:
            table = json.loads(content)
            items = table["items"]
            good = all(len(item) == 2 and {*map(type, item)} == {str} for item in items)
            categories_in(table, len(items))
        except (ValueError, RecursionError, KeyError, TypeError, MessageError):
            good = False
        if not good:
            raise ServiceError(f"{place} is no catalogue; put the right file back")
        if len(items) != self.plan.terms.n_items:
            raise ServiceError(
                f"{place} has {len(items)} items, the terms of the federation "
                f"{self.plan.terms.n_items}; put the right file back"
            )
        return content

    def database(self, url: str | None = None) -> Database:
        """The database that `url` names, else the folder's own. The first time it is made; later a
        federation without its state is not taken for a new one."""
        named = url or os.environ.get(DATABASE_VARIABLE)
        kind = "postgresql" if named else "sqlite"
        before = self.kept_in()
        if before in _KINDS and before != kind:
            raise ServiceError(
                f"the state of {self.path} is in {_KINDS[before]}, not in {_KINDS[kind]}; "
                + (f"name it in {DATABASE_VARIABLE}" if not named else f"unset {DATABASE_VARIABLE}")
            )
        place = self.path / DATABASE
        if before == "sqlite" and not place.exists():
            raise ServiceError(
                f"{place} is not there, but the state of this federation was in it; put it back "
                "from a copy, or make a new federation in another folder"
            )
        if not named:
            close_to_others(self.path)
        database = Database.at(named) if named else Database.sqlite(place)
        try:
            if before == kind:
                database.require()
            else:
                database.create()
                with contextlib.suppress(OSError):  # it is marked another time
                    _write(self.path / "state.json", {"kept_in": kind})
        except BaseException:
            database.close()
            raise
        return database

    def kept_in(self) -> str:
        """Return the kind of database with the state; "nowhere" before there is one."""
        place = self.path / "state.json"
        try:
            kept = json.loads(_read(place))["kept_in"]
        except (ValueError, RecursionError, KeyError, TypeError):
            kept = None
        if kept not in (*_KINDS, "nowhere"):
            raise ServiceError(f"{place} does not say where the state is; put the right file back")
        return str(kept)

    def locked(self) -> AbstractContextManager[None]:
        """Within, no other process can serve from this folder's own database."""
        advice = f"stop that one, or name a PostgreSQL database in {DATABASE_VARIABLE} for several"
        return locked(self.path / "server.lock", advice)

    def ready_file(self, port: int, *, shared: bool) -> Path:
        """Return the file in which this process notes its address. Servers that share a database
        may share the folder, too, from several machines, addresses or containers."""
        if not shared:
            return self.path / "server.json"
        here = _host()
        for place in self.path.glob(f"server-*-{here}-*.json"):
            if running(place) is None:  # of a process that was killed
                place.unlink(missing_ok=True)
        return self.path / f"server-{port}-{here}-{os.getpid()}.json"

    def running(self) -> dict[str, Any] | None:
        """Return address and process of a server that runs from this folder on this machine; if
        there are several, of one that has a console."""
        places = [self.path / "server.json", *sorted(self.path.glob(f"server-*-{_host()}-*.json"))]
        found = [process for process in map(running, places) if process is not None]
        return max(found, key=lambda process: "console" in process, default=None)


def _host() -> str:
    """Return the name of this machine or container, as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname()) or "host"


def with_items(
    catalogue: bytes, added: Items, gone: Sequence[str], categories: Categories = (), more: int = 0
) -> bytes:
    """A catalogue after a change, as it is published then; with so many places more."""
    told = json.loads(catalogue)
    now = [(item, title) for item, title in told["items"]]
    after = changed(with_spare(now, more) if more else now, added, gone)
    of = changed_categories(now, categories_in(told, len(now)), after, added, categories)
    return json.dumps(as_table(after, of)).encode()


def amended(plan: Plan, terms: Terms) -> Plan:
    """The plan of a federation whose terms were changed to these."""
    size = plan.cohort_size
    if size == plan.terms.algorithm.waits_for:
        size = terms.algorithm.waits_for
    return replace(plan, terms=terms, cohort_size=size)


def create_folder(
    path: Path,
    terms: Terms,
    catalogue: Catalogue,
    *,
    categories: Categories = (),
    cohort_size: CohortSize = "all",
    rounds: int = 100,
    root_key: int | None = None,
    rules: RoundRules | None = None,
    defence: Defence = NO_DEFENCE,
    hosts: Sequence[str] = (),
) -> ServerFolder:
    """The folder of a new federation, for its owner alone, with new keys where it has none. The
    root key has 256 bits from the operating system unless a trial sets it."""
    if (path / "federation.json").exists():
        raise UsageError(f"{path} holds a federation already; start it without --experiment")
    if len(catalogue) != terms.n_items:
        raise ConfigError(f"the catalogue has {len(catalogue)} items, the terms {terms.n_items}")
    if categories and len(categories) != len(catalogue):
        raise ConfigError("the catalogue needs the categories of every item, or none at all")
    table = as_table(catalogue, categories)
    if root_key is None:  # a trial has the names of its data
        require_fit(json.dumps(table).encode())
    if cohort_size != "all" and cohort_size < 1:
        raise ConfigError(f"cohort_size must be at least 1, not {cohort_size}")
    key = secrets.randbits(ROOT_BITS) if root_key is None else root_key
    plan = Plan(terms, cohort_size, rounds, key, rules or RoundRules(), defence)
    private_folder(path)
    if not (path / "keys" / "server.key").exists():
        init_keys(path / "keys", hosts)
    if plan.proxied and not ReportKeys(path / "keys").exists:
        init_proxy_secrets(path / "keys")
        ReportKeys(path / "keys").create()
    if plan.summed and not (path / "keys" / PROXY_TOKEN).exists():
        init_proxy_token(path / "keys")
    if plan.checked:
        from sottovoce.stores.aggregator_folder import first_rules

        first_rules(terms, path / "keys")  # raises where the terms name another key than ours
    _write(path / "catalogue.json", table)
    _write(path / "state.json", {"kept_in": "nowhere"})
    _write(
        path / "federation.json",
        {
            "format": FORMAT,
            "terms": terms.to_table(),
            "cohort_size": cohort_size,
            "rounds": rounds,
            "root_key": key,
            "trial": root_key is not None,
            "rules": asdict(plan.rules),
            "defence": asdict(plan.defence),
        },
    )
    return ServerFolder(path, plan)


def server_of(path: Path) -> Path:
    """The server's folder, where this is the one that `sottovoce serve setup` made around it."""
    inside = path / "server"
    around = (path / SETUP).exists() and not (path / "federation.json").exists()
    return inside if around and (inside / "federation.json").exists() else path


def setup_around(path: Path) -> Path | None:
    """The folder that `sottovoce serve setup` made around this one of a server."""
    made = path.name == "server" and (path.parent / SETUP).exists()
    return path.parent if made else None


def start_command(path: Path) -> str:
    """How the server of this folder is started."""
    around = setup_around(path)
    words = f"server {path}" if around is None else f"setup {around}"
    return f"sottovoce serve {words}"


def open_folder(path: Path) -> ServerFolder:
    """A folder that `create_folder` made, or the one around it (`server_of`). Raises with one
    sentence where it is none."""
    path = server_of(path)
    place = path / "federation.json"
    try:
        table = json.loads(_read(place))
    except (ValueError, RecursionError):
        raise ServiceError(f"{place} is not JSON; put the right file back") from None
    found = table.get("format") if isinstance(table, dict) else None
    if found != FORMAT:
        raise ServiceError(other_format(place, found, FORMAT))
    try:
        rules = config.build(RoundRules, _part(table, "rules", dict), "rules")
        size = table["cohort_size"] if table.get("cohort_size") == "all" else None
        plan = Plan(
            Terms.from_table(table.get("terms")),
            size or _part(table, "cohort_size", int),
            _part(table, "rounds", int),
            _part(table, "root_key", int),
            rules,
            config.build(Defence, _part(table, "defence", dict), "defence"),
        )
    except (ConfigError, MessageError) as error:
        raise ServiceError(f"{place}: {error}") from None
    return ServerFolder(path, plan)


def invite(
    folder: ServerFolder,
    database: Database,
    server: str,
    numbers: Sequence[int] | None = None,
    *,
    count: int = 1,
) -> list[Invitation]:
    """Invitations for devices with these numbers, or for the next `count` ones. The server may be
    running; only hashes of the tokens are stored."""
    with database.writing() as link:
        return invited(link, folder, server, numbers, count=count)


def invited(
    link: sa.Connection,
    folder: ServerFolder,
    server: str,
    numbers: Sequence[int] | None = None,
    *,
    count: int = 1,
) -> list[Invitation]:
    """The same within a transaction of the caller's."""
    require_address(server)
    plaintext = server.startswith("http://")
    authority = "" if plaintext else authority_pem(folder.keys)
    if numbers is None:
        first = records.next_number(link)
        numbers = range(first, first + count)
    if any(not 0 <= number <= MAX_NUMBER for number in numbers):
        raise UsageError(f"a device's number lies between 0 and {MAX_NUMBER}")
    taken = records.known_numbers(link, numbers)
    if taken:
        raise UsageError(f"device {min(taken)} was invited before; choose other numbers")
    tokens = [secrets.token_bytes(32) for _ in numbers]
    records.invite(link, numbers, tokens)
    federation = folder.plan.terms.federation
    return [
        Invitation(server, authority, token.hex(), int(number), federation)
        for number, token in zip(numbers, tokens, strict=True)
    ]


def introduction(folder: ServerFolder, server: str, hop: int = 0) -> Introduction:
    """What the operator of the federation's shuffler is given; in a chain, of the one at this place
    from 0."""
    terms = folder.plan.terms
    if not folder.plan.proxied or terms.link.mixing is None:
        raise UsageError(f"the federation in {folder.path} has no shuffler; its terms name none")
    shufflers = terms.link.mixing.shufflers
    if not 0 <= hop < shufflers:
        raise UsageError(f"the terms name {shufflers} shuffler(s); there is no number {hop + 1}")
    require_address(server)
    authority = "" if server.startswith("http://") else authority_pem(folder.keys)
    return introduce(folder.keys, server, authority, terms.federation, hop, shufflers)


def require_address(server: str, option: str = "--server") -> None:
    """Raises where this is not the address of a server, and nothing but that."""
    wrong = UsageError(f"{option} is an address like https://example.org:8443, not {server!r}")
    try:
        parts = urlsplit(server)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("https", "http") or not host or port == 0:
        raise wrong
    name = f"[{host}]" if ":" in host else host
    plain = f"{parts.scheme}://{name}" + ("" if port is None else f":{port}")
    if server.lower() != plain or not re.fullmatch(r"[a-z0-9.:_\[\]-]+", name):
        raise wrong


def _part(table: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = table.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{name} is missing or of the wrong type")
    return value


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ServiceError(
            f"{path} is not there; make a federation with `sottovoce serve server "
            f"{path.parent} --experiment FILE`"
        ) from None
    except OSError as error:
        raise ServiceError(f"{path} cannot be read: {error.strerror}") from None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all; only for the operator's eyes."""
    replace_file(path, json.dumps(content).encode())
