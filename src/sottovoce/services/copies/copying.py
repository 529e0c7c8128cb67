"""Make a backup of a folder, and put it back.

A backup is a folder that only its owner can read, there whole or not at all. Before one is put back
everything is looked at; then the whole folder is exchanged at one moment, logs of databases
included, and what was there is kept beside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sottovoce
from sottovoce.errors import (
    CorruptData,
    DataNotFound,
    ServiceError,
    SottovoceError,
    UsageError,
    VersionMismatch,
)
from sottovoce.services.copies.kind import FolderKind, Resumption
from sottovoce.services.copies.of_helper import AGGREGATOR, HELPER
from sottovoce.services.copies.of_server import SERVER
from sottovoce.services.copies.of_shuffler import SHUFFLER
from sottovoce.services.copies.of_silos import ORCHESTRATOR, OWNER
from sottovoce.services.copies.of_stores import DEVICE, USER, store_kind
from sottovoce.stores.locking import NEW
from sottovoce.stores.private import sync_folder
from sottovoce.stores.ready import locked, running
from sottovoce.stores.server_folder import SETUP

_SERVICES = (SERVER, AGGREGATOR, HELPER, SHUFFLER, OWNER, ORCHESTRATOR)
_ALL = {kind.name: kind for kind in (*_SERVICES, DEVICE, USER)}


def kind_of(folder: Path) -> FolderKind:
    """Raises with one sentence where the folder is none of ours."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    for kind in _SERVICES:
        if (folder / kind.mark).is_file():
            return kind
    if (folder / DEVICE.mark).is_file():
        return store_kind(folder)
    parts = [folder / name for name in ("server", "helper", "shuffler") if (folder / name).is_dir()]
    if (folder / SETUP).exists() and parts:
        each = " and ".join(map(str, parts))
        raise UsageError(
            f"{folder} is of `sottovoce serve setup`; copy each part by itself: {each}"
        )
    raise UsageError(f"{folder} is not the folder of a service, nor a store")


def kind_named(name: str) -> FolderKind:
    if name not in _ALL:
        raise VersionMismatch(
            f"this is a backup of {name[:40]!r}, which this release of Sottovoce does not know; "
            "use the release that made it"
        )
    return _ALL[name]


# Files and folders that nobody but their owner may read, and moves that are done whole.

_CHUNK = 1 << 20
_KEEP, _EXCHANGE = 1, 2
"""Flags of Linux' renameat2."""
_HERE = -100
_NOT_THERE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


@contextlib.contextmanager
def partial_folder(place: Path) -> Iterator[Path]:
    """A new folder beside `place`, under another name. On leaving, what is still there is gone."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}-{secrets.token_hex(6)}")
    partial.mkdir(mode=0o700)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def new_file(path: Path) -> int:
    """A file that was not there, for writing; folders above it are made."""
    make_folders(path.parent)
    return os.open(path, os.O_RDWR | NEW | os.O_EXCL, 0o600)  # which follows no link


def make_folders(path: Path) -> None:
    """As many as are missing, each its owner's alone."""
    if not path.is_dir():
        make_folders(path.parent)
        path.mkdir(mode=0o700)


def write_new(path: Path, content: bytes) -> None:
    with os.fdopen(new_file(path), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def copy_new(source: Path, target: Path) -> tuple[int, str]:
    """Copy a file to one that was not there; length and SHA-256 of what was written."""
    with source.open("rb") as content, os.fdopen(new_file(target), "wb") as out:
        named, size = hashlib.sha256(), 0
        while chunk := content.read(_CHUNK):
            named.update(chunk)
            size += len(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    return size, named.hexdigest()


def measure(path: Path) -> tuple[int, str]:
    """Length and SHA-256 of a file, which is on the disk when this returns."""
    with path.open("rb") as content:
        os.fsync(content.fileno())
        named = hashlib.file_digest(content, "sha256")
        return content.tell(), named.hexdigest()


def sync_folders(path: Path) -> None:
    """The names of all that is in it are on the disk, too."""
    for folder, _, _ in os.walk(path):
        sync_folder(Path(folder))


def give_to(owner: Path, tree: Path) -> None:
    """Where root has made a tree, it becomes that of the one who owns this place."""
    there = owner.stat()
    if sys.platform == "win32" or os.geteuid() or not there.st_uid:
        return
    for folder, _, files in os.walk(tree):
        for path in [folder, *(os.path.join(folder, name) for name in files)]:
            os.chown(path, there.st_uid, there.st_gid, follow_symlinks=False)


def move_new(source: Path, target: Path) -> None:
    """Raises `FileExistsError` where there is something at the target, even an empty folder."""
    if not _renamed(source, target, _KEEP):
        if target.exists() or target.is_symlink():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        source.rename(target)


def exchange(first: Path, second: Path) -> None:
    """Each gets the place of the other, at one moment where the system can do that. Where this
    raises, both are where they were."""
    if not _renamed(first, second, _EXCHANGE):
        aside = first.with_name(f"{first.name}-{secrets.token_hex(4)}")
        second.rename(aside)
        try:
            first.rename(second)
        except OSError:
            aside.rename(second)
            raise
        aside.rename(first)


def _renamed(first: Path, second: Path, flag: int) -> bool:
    """False where the system does not know this."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_HERE, os.fsencode(first), _HERE, os.fsencode(second), flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_THERE:
        return False
    raise OSError(number, os.strerror(number), str(second))


FILE, CONTENT = "backup.json", "content"
"""What is in a backup: its manifest, and a folder like the one it is of."""
FORMAT = 1
_LARGEST = 1 << 24


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup says of itself: of whom it is and of when, and what every file has to be."""

    kind: str
    federation: str
    """Empty where there was none yet."""
    whose: str
    created: str
    """When, in UTC, as 2026-11-16T10:00:00Z."""
    release: str
    """The version of this program that made it."""
    files: Mapping[str, tuple[int, str]]
    """By name: length and SHA-256."""
    left_out: tuple[str, ...]
    """Keys that are kept elsewhere."""

    @property
    def size(self) -> int:
        return sum(length for length, _ in self.files.values())

    def age(self, now: datetime) -> str:
        """How long ago it was made, in words."""
        made = datetime.strptime(self.created, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        minutes = max(0, int((now - made).total_seconds() // 60))
        for unit, name in ((1440, "days"), (60, "hours")):
            if minutes >= 2 * unit:
                return f"{minutes // unit:,} {name} ago"
        return f"{minutes} minutes ago"

    def to_bytes(self) -> bytes:
        table = {
            "format": FORMAT,
            "kind": self.kind,
            "federation": self.federation,
            "whose": self.whose,
            "created": self.created,
            "release": self.release,
            "files": {name: list(facts) for name, facts in self.files.items()},
            "left_out": list(self.left_out),
        }
        return json.dumps({**table, "sha256": _digest(table)}, indent=1).encode() + b"\n"

    @classmethod
    def read(cls, backup: Path) -> Manifest:
        """Raises with one sentence where this is no backup, or not as it was made."""
        place = backup / FILE
        try:
            with place.open("rb") as source:
                table = json.loads(source.read(_LARGEST))
        except (FileNotFoundError, NotADirectoryError):
            raise DataNotFound(
                f"{backup} is no backup of `sottovoce backup`: there is no {FILE} in it"
            ) from None
        except OSError as error:
            raise DataNotFound(f"{place} cannot be read: {error.strerror or error}") from None
        except (ValueError, RecursionError):
            raise _damaged(place) from None
        if not isinstance(table, dict) or not isinstance(table.get("format"), int):
            raise _damaged(place)
        if table["format"] != FORMAT:
            raise VersionMismatch(
                f"{backup} was made by another release of Sottovoce, which this one cannot read; "
                "use the release that made it"
            )
        if table.pop("sha256", None) != _digest(table):
            raise _damaged(place)
        try:
            return _of(table)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _damaged(place) from None


def now_text(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _of(table: dict[str, Any]) -> Manifest:
    files = {_name(name): (int(size), str(sha)) for name, (size, sha) in table["files"].items()}
    datetime.strptime(table["created"], "%Y-%m-%dT%H:%M:%SZ")
    return Manifest(
        str(table["kind"]),
        str(table["federation"]),
        str(table["whose"]),
        str(table["created"]),
        str(table["release"]),
        files,
        tuple(_name(name) for name in table["left_out"]),
    )


def _name(name: object) -> str:
    """Of a file below the folder, and nowhere else."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w.@+-]+(/[\w.@+-]+)*", name):
        raise ValueError
    if {".", ".."} & set(name.split("/")):
        raise ValueError
    return name


def _digest(table: Mapping[str, Any]) -> str:
    plain = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()


def _damaged(place: Path) -> CorruptData:
    return CorruptData(f"{place} is damaged; nothing was changed, use another backup")


_TRIES = 5


@dataclass(frozen=True, slots=True)
class MadeBackup:
    manifest: Manifest
    kind: FolderKind
    notes: tuple[str, ...]
    """What is not in it."""


def make_backup(
    folder: Path, target: Path, *, keys: bool = True, now: datetime | None = None
) -> MadeBackup:
    """Copy a folder, in which processes may be at work, to `target`, where nothing may be. Without
    `keys`, what opens or proves something is left out."""
    kind = kind_of(folder)
    whose = kind.whose(folder)
    target = backup_place(folder, target)
    # Keys come after the database: a ring of keys is only added to while a round needs them.
    with partial_folder(target) as partial:
        content = partial / CONTENT
        files = {}
        for name in kind.first:
            if (folder / name).is_file():
                files[name] = _copy(folder / name, content / name)
        for name in kind.databases:
            if (folder / name).is_file():
                os.close(new_file(content / name))
                kind.copy(folder / name, content / name)
                files[name] = measure(content / name)
        names = list(kind.found(folder))
        left_out = [] if keys else [name for name in names if kind.is_key(name)]
        for name in names:
            if name not in left_out and name not in files:
                files[name] = _copy(folder / name, content / name)
        made = Manifest(
            kind.name,
            whose.federation,
            whose.name,
            now_text(now or datetime.now(UTC)),
            sottovoce.__version__,
            files,
            tuple(left_out),
        )
        write_new(partial / FILE, made.to_bytes())
        sync_folders(partial)
        try:
            move_new(partial, target)
        except FileExistsError:
            raise _there(target) from None
        sync_folder(target.parent)
    return MadeBackup(made, kind, kind.notes(folder))


def backup_place(folder: Path, target: Path) -> Path:
    """The whole path; raises with one sentence where no backup of the folder can be put."""
    try:
        target = Path(os.path.abspath(target))
        if os.path.lexists(target):
            raise _there(target)
        if target.resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"{target} lies in {folder} itself; choose a place outside of it")
        target.lstat()
    except FileNotFoundError:
        return target
    except OSError as error:
        raise UsageError(f"a backup cannot be put there: {error.strerror or error}") from None
    except ValueError:
        raise UsageError("a backup cannot be put there: this is no path") from None
    raise _there(target)


def _copy(source: Path, target: Path) -> tuple[int, str]:
    """Of a file that may be replaced at any moment: the copy is what was there before or after."""
    for _ in range(_TRIES):
        facts = copy_new(source, target)
        if facts == measure(source):
            return facts
        target.unlink()
    raise ServiceError(f"{source} is being written again and again; try again later")


def _there(target: Path) -> UsageError:
    return UsageError(f"{target} is there already and is not overwritten; choose another name")


@dataclass(frozen=True, slots=True)
class Restored:
    manifest: Manifest
    kind: FolderKind
    settled: Resumption
    aside: Path | None
    """Where that is which was in the folder before."""
    open_to_others: bool
    """Whether others could have read the backup."""


def restore_backup(
    backup: Path,
    folder: Path,
    *,
    next_round: int | None = None,
    keys: Path | None = None,
    now: datetime | None = None,
) -> Restored:
    """Make `folder` what it was when the backup was made, but for what must not be done twice.
    `keys` is where keys are that were left out, if not in the folder."""
    manifest = Manifest.read(backup)
    kind = kind_named(manifest.kind)
    folder = Path(os.path.realpath(folder))
    before = _before(folder, kind, manifest)
    with contextlib.ExitStack() as stack:
        if before is not None:
            stack.enter_context(_nobody_at_work(before, kind))
        partial = stack.enter_context(partial_folder(folder))
        _bring(backup, partial, kind, manifest)
        _bring_keys(manifest, partial, keys or before)
        if kind.whose(partial).name != manifest.whose:
            raise UsageError("these keys are not those of the backup; look for the right ones")
        settled = kind.settle(partial, before, next_round)
        _close_databases(partial, kind)
        give_to(before or folder.parent, partial)
        sync_folders(partial)
        aside = _put(partial, folder, before, now or datetime.now(UTC))
    mode = backup.stat().st_mode | (backup / CONTENT).stat().st_mode
    return Restored(manifest, kind, settled, aside, bool(mode & 0o077))


def _before(folder: Path, kind: FolderKind, manifest: Manifest) -> Path | None:
    """The folder that is to be replaced; None where there is nothing."""
    if not os.path.lexists(folder):
        return None
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; choose another place")
    if not any(folder.iterdir()):
        return None
    if not (folder / kind.mark).is_file():
        raise UsageError(
            f"the backup is of {kind.words}, and {folder} holds something else; choose another "
            "place, or move it away first"
        )
    try:
        there = kind.whose(folder)
    except SottovoceError as error:
        raise UsageError(
            f"it cannot be told whose {folder} is, so it is not replaced; move it away first "
            f"({error})"
        ) from None
    if there.name != manifest.whose:
        raise UsageError(
            f"the backup is of {_called(kind, manifest.federation)}, and {folder} holds another "
            f"one{f', of {there.federation}' if there.federation else ''}; choose another place"
        )
    return folder


def _called(kind: FolderKind, federation: str) -> str:
    return f"{kind.words}{f' of {federation}' if federation else ''}"


@contextlib.contextmanager
def _nobody_at_work(folder: Path, kind: FolderKind) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in kind.locks:
            stack.enter_context(locked(folder / name))
        for pattern in kind.ready:
            for place in folder.glob(pattern):
                process = running(place)
                if process is not None:
                    raise ServiceError(
                        f"{folder} is served by process {process['pid']}; stop that one first (or "
                        f"delete {place}, if that process is another)"
                    )
        yield


def _bring(backup: Path, partial: Path, kind: FolderKind, manifest: Manifest) -> None:
    for name, facts in manifest.files.items():
        source = backup / CONTENT / name
        if not kind.holds(name):
            raise CorruptData(f"{backup} holds {name}, which is no part of {kind.words}")
        try:
            found = copy_new(source, partial / name)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise CorruptData(
                f"{source} is missing; nothing was changed, use another backup"
            ) from None
        if found != facts:
            raise CorruptData(f"{source} is damaged; nothing was changed, use another backup")


def _bring_keys(manifest: Manifest, partial: Path, place: Path | None) -> None:
    """Those that were left out."""
    for name in manifest.left_out:
        source = None if place is None else place / name
        if source is None or not source.is_file():
            raise UsageError(
                f"the backup was made without its keys, and {name} is not there; name the folder "
                "that has it with --keys"
            )
        copy_new(source, partial / name)


def _close_databases(partial: Path, kind: FolderKind) -> None:
    """What was written into them is in the files themselves and on the disk."""
    for name in kind.databases:
        for log in (partial / f"{name}-wal", partial / f"{name}-shm"):
            if log.exists():
                raise ServiceError(f"{name} could not be closed; nothing was changed, try again")
    for path in partial.rglob("*"):
        if path.is_file():
            measure(path)


def _put(partial: Path, folder: Path, before: Path | None, now: datetime) -> Path | None:
    if before is None:
        if folder.exists():
            folder.rmdir()  # it is empty
        move_new(partial, folder)
        sync_folder(folder.parent)
        return None
    folder.chmod(0o700)
    aside = _beside(partial, folder, f"{folder.name}.before-{now:%Y%m%d-%H%M%S}")
    try:
        exchange(aside, folder)
    except OSError:
        # Not what was there: that has stayed in its place.
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync_folder(folder.parent)
    return aside


def _beside(partial: Path, folder: Path, name: str) -> Path:
    """Move it to a new place beside the folder, by this name or a longer one."""
    for number in itertools.count(1):
        place = folder.with_name(name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            move_new(partial, place)
            break
    return place
