"""The folder of whoever helps a server to open sums that it cannot read: the proxy of a secure sum
(`helper_folder`), an aggregator of a checked one (`aggregator_folder`).

`keys/` (a certificate authority of its own, which the server learns from the terms), `seal.key` and
`seal.pub` (to which devices seal; the public one goes into the terms), `noise.secret` (from which
the noise of every sum is derived), `introduction.json` (the terms that it follows, and the token of
the server; a secret), `next.json` (the same with terms that its operator has agreed to since and
under which no sum was told yet, in the order in which she did), `answered.json` (for which set of
devices it has answered last, and how much room for rounds in groups is used up).
"""

from __future__ import annotations

import contextlib
import json
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.errors import (
    KeyTrouble,
    MessageError,
    ServiceError,
    SottovoceError,
    UsageError,
)
from sottovoce.parties.helper import (
    GROUPED_ROUNDS,
    NEVER,
    REGAINED_AFTER,
    Answered,
    NoiseSecret,
)
from sottovoce.stores.keys import (
    SERVER_KEY,
    init_keys,
    private_key_in,
    read_private_key,
    read_secret,
    replace_file,
    write_new_files,
)
from sottovoce.stores.locking import ServiceFolder, lock
from sottovoce.stores.noted import note_of
from sottovoce.stores.private import private_folder, stamp
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.refusals import Refused
from sottovoce.wire.shuffled import terms_name
from sottovoce.wire.terms import Terms

SEAL_KEY, PUBLIC_KEY, NOISE_SECRET = "seal.key", "seal.pub", "noise.secret"
INTRODUCTION, NEXT, ANSWERED = "introduction.json", "next.json", "answered.json"
_LARGEST = 1 << 22
_NOBODY = b""
"""In the place of a set's name: no set is called so."""


@dataclass(frozen=True, slots=True, repr=False)
class SumIntroduction:
    """All that it needs to know of the federation."""

    terms: Terms
    token: str
    """Token by which it knows the server; hexadecimal. A secret."""

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
        write_new_files(path.parent, {path.name: self.content()})

    def content(self) -> bytes:
        """Return the content of its file."""
        return _json(self.to_table())

    def to_table(self) -> dict[str, Any]:
        table = {"protocol": PROTOCOL, "terms": self.terms.to_table(), "token": self.token}
        return table | self.more()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises with one sentence where the file is missing, of another version or none."""
        return cls._from(_table_in(path), path)

    @classmethod
    def read_all(cls, path: Path) -> list[Self]:
        """Those of a file with several."""
        found = _table_in(path)
        return [cls._from(one, path) for one in (found if isinstance(found, list) else [found])]

    @classmethod
    def _from(cls, table: Any, path: Path) -> Self:
        wrong = UsageError(f"{path} is no introduction to a {cls.sums}; ask the server's operator")
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

    def noise_secret(self) -> NoiseSecret:
        return read_noise(self.path / NOISE_SECRET)

    def answers(self) -> Answers:
        secret = self.noise_secret()  # trials come and go, and repeat their noise anyway
        note = None if secret.simulated else note_of(self.path, secret.key)
        return Answers(self.path / ANSWERED, note)

    def agreed(self) -> list[I]:
        """The introductions that its operator has agreed to since, in that order."""
        place = self.path / NEXT
        if not place.exists():
            return []
        read_secret(place)
        return type(self.introduction).read_all(place)

    def agree(self, introduction: I) -> None:
        """Keep other terms of the same federation beside those in force, and beside others that
        were agreed to before: the server may be about to go by those. They take their place when
        the first sum under them is told (`begin`); nothing that was told is forgotten, and the
        numbers of rounds go on. The terms in force once more take back all that was agreed to.
        Raises where this is another federation's, another server's, or names another key."""
        known, new = self.introduction, introduction
        if new.terms.federation != known.terms.federation:
            raise UsageError(
                f"the introduction is one to the federation {new.terms.federation}, and {self.path}"
                f" serves {known.terms.federation}; use another folder for another federation"
            )
        if (new.token, new.more()) != (known.token, known.more()):
            raise UsageError(
                "the introduction is not from the server that this folder knows; ask its operator "
                "for one with the same token"
            )
        replace(self, introduction=new).require_key()
        agreed = self.agreed()
        if new.terms != known.terms:
            self._keep([one for one in agreed if one != new] + [new])
        elif agreed:  # she does not agree to the others any more
            self._keep([])
        else:
            raise UsageError(f"{self.path} keeps these terms already; nothing was changed")

    def begin(self, introduction: I) -> None:
        """Terms that were agreed to are those in force from now on, and what was agreed to before
        them is over. Where the disk has no room for that, they are when the next sum is told."""
        with contextlib.suppress(OSError, SottovoceError):
            agreed = self.agreed()
            replace_file(self.path / INTRODUCTION, introduction.content())
            self._keep(agreed[agreed.index(introduction) + 1 :] if introduction in agreed else [])

    def _keep(self, agreed: Sequence[I]) -> None:
        if agreed:
            replace_file(self.path / NEXT, _json([one.to_table() for one in agreed]))
        else:
            (self.path / NEXT).unlink(missing_ok=True)

    def require_key(self) -> None:
        """Raises where the terms name another key than its own."""
        introduced = self.introduction
        if introduced.key != public_of(self.seal_key()):
            raise KeyTrouble(
                f"the terms of the federation {introduced.terms.federation} name another key than "
                f"{self.path / PUBLIC_KEY}: devices would seal to somebody else"
            )


F = TypeVar("F", bound=SumFolder[Any])
R = TypeVar("R")


def public_of(key: X25519PrivateKey) -> str:
    """Its public half, in hexadecimal."""
    return key.public_key().public_bytes_raw().hex()


class Answers:
    """For which set of devices the last sum was told, also after a crash. The same is noted outside
    the folder (`noted`), so that an older copy of the folder learns what was told since."""

    def __init__(self, place: Path, note: Path | None = None) -> None:
        self._place, self._note = place, note
        self.last = _answered_in(place, "put the right file back")
        self.unnoted = ""
        """Why what is told cannot be noted outside the folder."""
        self.set_back = 0
        """How often the folder lacked what the note says."""
        self.lacks_note = note is not None and not note.exists() and self.last != NEVER
        """Whether sums were told of which nothing is noted here, as on another machine."""
        with self._alone():
            self._catch_up()
            self._write_note(self.last)

    def keep(self, answered: Answered) -> None:
        """It is on the disk when this returns. Raises if another copy of the folder has told sums
        since."""
        if answered == self.last:
            return
        with self._alone():
            if self._catch_up():
                raise Refused(
                    "second_submission",
                    "another copy of this folder has told a sum in the meantime; let only one run",
                    status=409,
                )
            self._write(answered)
            self._write_note(answered)

    def require_there(self) -> None:
        """Raise if the file is gone or damaged: nothing can be told then."""
        _answered_in(self._place, "put the right file back")

    def go_on_from(self, newer: Answered) -> None:
        """An old copy learns what another one has told since. Of a round of which they disagree,
        nothing is told any more."""
        mine = self.last
        if newer.round > mine.round:
            self._write(newer)
        elif newer.round == mine.round and newer != mine:
            self._write(Answered(mine.round, _NOBODY, max(mine.spent, newer.spent)))

    def _catch_up(self) -> bool:
        """Learn what the note says, and return whether that is news."""
        before = self.last
        if self._note is not None and self._note.exists():
            advice = f"remove it, if {self._place.parent} was never set back to an older copy"
            self.go_on_from(_answered_in(self._note, advice))
        news = self.last != before
        self.set_back += news
        return news

    def _write(self, answered: Answered) -> None:
        try:
            replace_file(self._place, _content(answered))
        except (OSError, KeyTrouble):
            raise ServiceError(f"{self._place} cannot be written; nothing was told") from None
        self.last = answered

    def _write_note(self, answered: Answered) -> None:
        """If it cannot be written, sums are told all the same: the folder is what counts."""
        if self._note is None:
            return
        try:
            replace_file(self._note, _content(answered))
            self.unnoted = ""
        except (OSError, KeyTrouble):
            self.unnoted = f"{self._note.parent} cannot be written"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other copy of the folder reads or writes the note."""
        with contextlib.ExitStack() as stack:
            if self._note is not None:
                with contextlib.suppress(OSError):
                    private_folder(self._note.parent)
                    stack.enter_context(lock(self._note.with_suffix(".lock")))
            yield

    def refuse_before(self, round: int) -> None:
        """Nothing is told of the rounds before this one, which an old copy may have forgotten; of
        the last that it knows of, the same again. Nor is there room for rounds in groups at first:
        how many there were is forgotten, too."""
        if round - 1 > self.last.round:
            self._write(Answered(round - 1, _NOBODY, GROUPED_ROUNDS * REGAINED_AFTER))


@dataclass(frozen=True, slots=True, repr=False)
class AgreedTerms(Generic[I, R]):
    """Terms that are kept, and what follows from them."""

    introduction: I
    name: bytes
    """Name of the terms, in questions."""
    rules: R


class KeptTerms(Generic[I, R]):
    """The terms in force, and those that the operator has agreed to since, which are read as soon
    as they are there."""

    def __init__(self, folder: SumFolder[I], rules: Callable[[I], R]) -> None:
        """`rules` are what follows from an introduction."""
        self._folder, self._rules = folder, rules
        self._now = self._kept(folder.introduction)
        self._agreed: list[AgreedTerms[I, R]] = []
        self._seen = 0, 0
        self._look()

    @property
    def federation(self) -> str:
        return self._now.introduction.terms.federation

    def known(self) -> list[AgreedTerms[I, R]]:
        """As they were read last, those in force first. Any thread may ask."""
        now = self._now
        return [now, *(one for one in self._agreed if one.name != now.name)]

    def names(self) -> list[bytes]:
        self._look()
        return [kept.name for kept in self.known()]

    def named(self, name: bytes) -> AgreedTerms[I, R]:
        """Those that a question is about."""
        self._look()
        for kept in self.known():
            if kept.name == name:
                return kept
        raise Refused("other_terms", "the question is about other terms than ours")

    def begin(self, kept: AgreedTerms[I, R]) -> None:
        """A sum is told under these: what would come of terms before is of rounds that are over."""
        if kept is self._now:
            return
        self._folder.begin(kept.introduction)
        self._agreed = self._agreed[self._agreed.index(kept) + 1 :]
        self._now = kept

    def _look(self) -> None:
        seen = _stamp_of(self._folder.path / NEXT)
        if seen != self._seen:
            self._agreed = [self._kept(one) for one in self._folder.agreed()]
            self._seen = seen

    def _kept(self, introduction: I) -> AgreedTerms[I, R]:
        return AgreedTerms(introduction, terms_name(introduction.terms), self._rules(introduction))


def _stamp_of(place: Path) -> tuple[int, int]:
    """Another whenever a file was replaced; zeros where there is none."""
    try:
        found = place.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def init_folder(
    path: Path,
    hosts: Sequence[str],
    more: Mapping[str, bytes] | None = None,
) -> str:
    """Make the keys of a helper or an aggregator, for its owner alone; its public key, which goes
    into the terms. `more` are files beside."""
    if (path / SEAL_KEY).exists():
        raise UsageError(
            f"{path} has the keys of a helper or an aggregator already; they are not overwritten"
        )
    private_folder(path)
    if not (path / "keys" / SERVER_KEY).exists():
        init_keys(path / "keys", hosts)
    key = X25519PrivateKey.generate()
    public = public_of(key)
    contents = {
        PUBLIC_KEY: public.encode() + b"\n",
        NOISE_SECRET: secrets.token_bytes(32).hex().encode() + b"\n",
        **(more or {}),
        SEAL_KEY: key.private_bytes_raw().hex().encode() + b"\n",
        ANSWERED: _content(NEVER),
    }
    write_new_files(path, contents)
    return public


_SIMULATED = b"simulated "


def simulate_noise(place: Path, key: bytes) -> None:
    """Put the noise of a simulation into a file of a noise secret, marked as such. For trials that
    repeat a simulation bit for bit."""
    replace_file(place, _SIMULATED + key.hex().encode() + b"\n")


def read_noise(place: Path) -> NoiseSecret:
    """Return the secret in such a file. Raises if it is damaged or others may read it."""
    content = read_secret(place)
    simulated = content.startswith(_SIMULATED)
    key = private_key_in(content.removeprefix(_SIMULATED), place)
    return NoiseSecret(key, simulated)


def begin_folder(folder: F) -> F:
    """A folder with keys becomes that of a federation, once and for all."""
    path, introduced = folder.path, folder.introduction
    who, command = introduced.who, introduced.command
    if (path / INTRODUCTION).exists():
        article = "an" if who.startswith("a") else "a"
        raise UsageError(
            f"{path} holds {article} {who} already; start it without --introduction, which shows "
            "what new terms change"
        )
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


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=1).encode() + b"\n"


def _table_in(path: Path) -> Any:
    """What a file says; None where that is nothing."""
    try:
        with path.open("rb") as source:
            return json.loads(source.read(_LARGEST))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        return None


def _answered_in(place: Path, advice: str) -> Answered:
    """Return what such a file says."""
    try:
        table = json.loads(place.read_bytes())
        found = Answered(int(table["round"]), bytes.fromhex(table["set"]), int(table["spent"]))
        if table["stamp"] != _stamp(found):
            raise ValueError("damaged")
        return found
    except FileNotFoundError:
        raise ServiceError(
            f"{place} is not there, but it says which sums were told: whoever lacks it could "
            "tell a second one; put it back, or make new keys in another folder"
        ) from None
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise ServiceError(f"{place} is damaged or cannot be read; {advice}") from None


def _content(answered: Answered) -> bytes:
    table = {"round": answered.round, "set": answered.name.hex(), "spent": answered.spent}
    return json.dumps(table | {"stamp": _stamp(answered)}).encode() + b"\n"


def _stamp(answered: Answered) -> str:
    content = f"{answered.round} {answered.name.hex()} {answered.spent}".encode()
    return stamp(content, "answered")[len(content) :].hex()
