"""What a folder holds that has to be in a copy of it. Each kind of folder describes itself.

Databases may be in use: they are copied as of one moment, whatever is written meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sottovoce.errors import CorruptData, ServiceError
from sottovoce.stores.keys import replace_file

_BUSY_SECONDS = 20.0


def copy_sqlite(source: Path, target: Path) -> None:
    """Everything in the database, its log included, to a file that is there and empty. Raises where
    it is damaged."""
    with in_words(source), connected(source) as link, connected(target) as copy:
        link.backup(copy)
        found = [text for (text,) in copy.execute("PRAGMA quick_check(1)")]
    if found != ["ok"]:
        raise CorruptData(f"the database {source} is damaged; no copy was made")


@contextlib.contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a database that is there."""
    link = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_BUSY_SECONDS, isolation_level=None
    )
    try:
        yield link
    finally:
        link.close()


@contextlib.contextmanager
def in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        said = str(error)
        why = "there is no space left; free some and try again" if "full" in said else said
        raise ServiceError(f"{path} cannot be copied: {why}") from None


def keep_newer_files(copy: Path, before: Path, names: Sequence[str]) -> bool:
    """Give a copy these files as they are in the folder that it replaces. Whether they differed."""

    def content(place: Path) -> bytes | None:
        return place.read_bytes() if place.is_file() else None

    differed = False
    for name in names:
        newer = content(before / name)
        if newer == content(copy / name):
            continue
        differed = True
        if newer is None:
            (copy / name).unlink()
        else:
            replace_file(copy / name, newer)
    return differed


CHANGED_TERMS = (
    "Terms were changed after the copy was made. It keeps those of the former folder, by which the "
    "server goes."
)


@dataclass(frozen=True, slots=True)
class Whose:
    """The federation and party that a folder belongs to."""

    federation: str
    """Empty where it is part of none yet."""
    name: str
    """Tells it from the folders of all others; says nothing else."""

    @classmethod
    def of(cls, federation: str, *told: bytes) -> Whose:
        """Return the owner of a folder by what never changes in it."""
        named = hashlib.blake2b(digest_size=16, person=b"sottovoce copy")
        for one in told:
            named.update(len(one).to_bytes(8, "little") + one)
        return cls(federation, named.hexdigest())


@dataclass(frozen=True, slots=True)
class Resumption:
    """What an old copy means, and how it goes on."""

    means: tuple[str, ...]
    """Sentences for whoever has put it back."""
    next_round: int | None = None
    """The first round in which it does anything; None where it has no say in that."""


Settle = Callable[[Path, Path | None, int | None], Resumption]
"""Makes a copy such that nothing that it has forgotten is done again. Gets the copy, before it is
in its place; the folder that it replaces, if there is one, in which no process is at work; and the
first round that nobody has seen yet, where somebody says so. Raises where the copy must not be used
like this."""


@dataclass(frozen=True, slots=True)
class FolderKind:
    name: str
    words: str
    """What it is called in a sentence."""
    mark: str
    """A file that is in every folder of this kind, and in none of another."""
    whose: Callable[[Path], Whose]
    """Raises with one sentence where the folder is incomplete."""
    settle: Settle
    files: tuple[str, ...]
    """Files and folders, as far as they are there."""
    keys: tuple[str, ...]
    """Those of `files` that open or prove something, and may be kept elsewhere."""
    databases: tuple[str, ...] = ()
    """Files of SQLite, as far as they are there."""
    first: tuple[str, ...] = ()
    """Those of `files` that are copied before the databases, which may go before them."""
    copy: Callable[[Path, Path], None] = copy_sqlite
    """Copies a database that may be in use to a file that is there and empty."""
    locks: tuple[str, ...] = ()
    """Which of these files is locked says that a process is at work."""
    ready: tuple[str, ...] = ()
    """Patterns of files that say the same by a process's number, where there is no lock."""
    notes: Callable[[Path], tuple[str, ...]] = lambda path: ()
    """What is not in a copy, in sentences."""

    def holds(self, name: str) -> bool:
        """Whether a file of this name belongs into a copy."""
        top = name.split("/", 1)[0]
        return name in self.databases or top in self.files

    def is_key(self, name: str) -> bool:
        return name.split("/", 1)[0] in self.keys

    def found(self, folder: Path) -> Iterator[str]:
        """The names of all files but databases that are there, with / between their parts."""
        for name in self.files:
            place = folder / name
            if place.is_file():
                yield name
            elif place.is_dir():
                inside = sorted(path for path in place.rglob("*") if path.is_file())
                for path in inside:
                    # Locks, and what is being written, begin with a dot.
                    if not any(part.startswith(".") for part in path.relative_to(place).parts):
                        yield path.relative_to(folder).as_posix()
