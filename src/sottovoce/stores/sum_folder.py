"""The folder of whoever helps a server to open sums that it cannot read: the proxy of a secure sum
(`helper_folder`), an aggregator of a checked one (`aggregator_folder`).

`keys/` (a certificate authority of its own, which the server learns from the terms), `seal.key` and
`seal.pub` (to which devices seal; the public one goes into the terms), `noise.secret` (from which
the noise of every round is made), `introduction.json` (the terms that it follows for ever, and the
token of the server; a secret), `answered.json` (for which set of devices it has answered last, and
how much room for rounds in groups is used up).
"""

from __future__ import annotations

import json
import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.errors import KeyTrouble, MessageError, ServiceError, UsageError
from sottovoce.parties.helper import GROUPED_ROUNDS, NEVER, REGAINED_AFTER, Answered
from sottovoce.stores.keys import (
    SERVER_KEY,
    init_keys,
    read_private_key,
    read_secret,
    replace_file,
    write_new_files,
)
from sottovoce.stores.private import private_folder
from sottovoce.stores.ready import ServiceFolder
from sottovoce.stores.stamps import stamp
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.terms import Terms

SEAL_KEY, PUBLIC_KEY, NOISE_SECRET = "seal.key", "seal.pub", "noise.secret"
INTRODUCTION, ANSWERED = "introduction.json", "answered.json"
_LARGEST = 1 << 22
_NOBODY = b""
"""In the place of a set's name: no set is called so."""


@dataclass(frozen=True, slots=True, repr=False)
class SumIntroduction:
    """All that it needs to know of the federation."""

    terms: Terms
    token: str
    """By which it knows the server; hexadecimal. A secret."""

    who: ClassVar[str]
    """How sentences call it, what it is of, and with which command it is served."""
    sums: ClassVar[str]
    command: ClassVar[str]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.terms.federation}, redacted>"

    @property
    @abstractmethod
    def key(self) -> str:
        """The public key that the terms name for it. Raises where they name none."""

    def more(self) -> dict[str, int]:
        """What its file says beside terms and token."""
        return {}

    @classmethod
    def of(cls, terms: Terms, token: str, **more: Any) -> Self:
        """From the fields of a file. Raises `ValueError` where they are none."""
        if more:
            raise ValueError("fields that there are not")
        return cls(terms, token)

    def write(self, path: Path) -> None:
        """As a file of mode 600. Never over an existing one."""
        if path.exists():
            raise UsageError(f"{path} is there already and is not overwritten")
        table = {"protocol": PROTOCOL, "terms": self.terms.to_table(), "token": self.token}
        content = json.dumps(table | self.more(), indent=1).encode()
        write_new_files(path.parent, {path.name: content + b"\n"})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises with one sentence where the file is missing, of another version or none."""
        wrong = UsageError(f"{path} is no introduction to a {cls.sums}; ask the server's operator")
        try:
            with path.open("rb") as source:
                table = json.loads(source.read(_LARGEST))
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
        except (ValueError, RecursionError):
            raise wrong from None
        if not isinstance(table, dict) or not {"protocol", "terms", "token"} <= set(table):
            raise wrong
        more = {k: v for k, v in table.items() if k not in ("protocol", "terms", "token")}
        try:
            found = cls.of(Terms.from_table(table["terms"]), str(table["token"]), **more)
            good = len(bytes.fromhex(found.token)) > 0
        except MessageError as error:
            raise UsageError(f"{path}: {error}") from None
        except (ValueError, TypeError):
            good = False
        if not good:
            raise wrong
        _ = found.key  # raises where there is none
        return found


I = TypeVar("I", bound=SumIntroduction)  # noqa: E741


@dataclass(frozen=True, slots=True, repr=False)
class SumFolder(ServiceFolder, Generic[I]):
    introduction: I

    def seal_key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(read_private_key(self.path / SEAL_KEY))

    def noise_key(self) -> bytes:
        return read_private_key(self.path / NOISE_SECRET)

    def answers(self) -> Answers:
        return Answers(self.path / ANSWERED)

    def require_key(self) -> None:
        """Raises where the terms name another key than its own."""
        introduced = self.introduction
        if introduced.key != public_of(self.seal_key()):
            raise KeyTrouble(
                f"the terms of the federation {introduced.terms.federation} name another key than "
                f"{self.path / PUBLIC_KEY}: devices would seal to somebody else"
            )


F = TypeVar("F", bound=SumFolder[Any])


def public_of(key: X25519PrivateKey) -> str:
    """Its public half, in hexadecimal."""
    return key.public_key().public_bytes_raw().hex()


class Answers:
    """For which set of devices the last sum was told, also after a crash."""

    def __init__(self, place: Path) -> None:
        self._place = place
        try:
            table = json.loads(place.read_bytes())
            spent = int(table.get("spent", 0))
            self.last = Answered(int(table["round"]), bytes.fromhex(table["set"]), spent)
            # Earlier releases wrote no stamp.
            if table.get("stamp", _stamp(self.last)) != _stamp(self.last):
                raise ValueError("damaged")
        except FileNotFoundError:
            raise ServiceError(
                f"{place} is not there, but it says which sums were told: whoever lacks it could "
                "tell a second one; put it back, or make new keys in another folder"
            ) from None
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            raise ServiceError(
                f"{place} is damaged or cannot be read; put the right file back"
            ) from None
        if "stamp" not in table:
            self._write(self.last)

    def keep(self, answered: Answered) -> None:
        """It is on the disk when this returns."""
        if answered == self.last:
            return
        self._write(answered)
        self.last = answered

    def _write(self, answered: Answered) -> None:
        try:
            replace_file(self._place, _content(answered))
        except (OSError, KeyTrouble):
            raise ServiceError(f"{self._place} cannot be written; nothing was told") from None

    def go_on_from(self, newer: Answers) -> None:
        """An old copy learns what another one has told since. Of a round of which they disagree,
        nothing is told any more."""
        mine, theirs = self.last, newer.last
        if theirs.round > mine.round:
            self.keep(theirs)
        elif theirs.round == mine.round and theirs != mine:
            self.keep(Answered(mine.round, _NOBODY, max(mine.spent, theirs.spent)))

    def refuse_before(self, round: int) -> None:
        """Nothing is told of the rounds before this one, which an old copy may have forgotten; of
        the last that it knows of, the same again. Nor is there room for rounds in groups at first:
        how many there were is forgotten, too."""
        if round - 1 > self.last.round:
            self.keep(Answered(round - 1, _NOBODY, GROUPED_ROUNDS * REGAINED_AFTER))


def init_folder(
    path: Path,
    hosts: Sequence[str],
    noise_key: bytes | None = None,
    more: Mapping[str, bytes] | None = None,
) -> str:
    """Make the keys of a proxy or an aggregator, for its owner alone; its public key, which goes
    into the terms. The noise is the operating system's unless a trial sets its key. `more` are
    files beside."""
    if (path / SEAL_KEY).exists():
        raise UsageError(
            f"{path} has the keys of a proxy or an aggregator already; they are not overwritten"
        )
    private_folder(path)
    if not (path / "keys" / SERVER_KEY).exists():
        init_keys(path / "keys", hosts)
    key = X25519PrivateKey.generate()
    public = public_of(key)
    noise = secrets.token_bytes(32) if noise_key is None else noise_key
    contents = {
        PUBLIC_KEY: public.encode() + b"\n",
        NOISE_SECRET: noise.hex().encode() + b"\n",
        **(more or {}),
        SEAL_KEY: key.private_bytes_raw().hex().encode() + b"\n",
        ANSWERED: _content(NEVER),
    }
    write_new_files(path, contents)
    return public


def begin_folder(folder: F) -> F:
    """A folder with keys becomes that of a federation, once and for all."""
    path, introduced = folder.path, folder.introduction
    who, command = introduced.who, introduced.command
    if (path / INTRODUCTION).exists():
        article = "an" if who.startswith("a") else "a"
        raise UsageError(f"{path} holds {article} {who} already; start it without --introduction")
    if not (path / SEAL_KEY).exists():
        raise UsageError(
            f"{path} has no keys, which the terms of the federation name; make them first, with "
            f"`sottovoce serve {command} {path} --init`"
        )
    folder.require_key()
    if folder.answers().last != NEVER:
        raise UsageError(
            f"{path} has told sums already, and with another introduction it could tell others of "
            f"the same devices; make a new {who} in another folder"
        )
    introduced.write(path / INTRODUCTION)
    return folder


def introduced(path: Path, kind: type[I]) -> I:
    """The introduction of a folder that `begin_folder` made. Raises with one sentence where it is
    none."""
    place = path / INTRODUCTION
    if not place.exists():
        raise ServiceError(
            f"{path} holds no {kind.who} of a {kind.sums}; make its keys with `sottovoce serve "
            f"{kind.command} {path} --init`, and then start it with --introduction FILE"
        )
    read_secret(place)
    return kind.read(place)


def _content(answered: Answered) -> bytes:
    table: dict[str, int | str] = {"round": answered.round, "set": answered.name.hex()}
    if answered.spent:
        table["spent"] = answered.spent
    return json.dumps(table | {"stamp": _stamp(answered)}).encode() + b"\n"


def _stamp(answered: Answered) -> str:
    content = f"{answered.round} {answered.name.hex()} {answered.spent}".encode()
    return stamp(content, "answered")[len(content) :].hex()
