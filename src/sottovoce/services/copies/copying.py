"""Make a backup of a folder, and put it back.

A backup is one file, a gzipped tar that only its owner can read, there whole or not at all. Before
one is put back all of it is read and checked; then the whole folder is exchanged at one moment,
logs of databases included, and what was there is kept beside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gzip
import io
import itertools
import json
import os
import re
import secrets
import shutil
import sys
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path

import sottovoce
from sottovoce.errors import (
    CorruptData,
    DataNotFound,
    ServiceError,
    SottovoceError,
    UsageError,
    VersionMismatch,
    other_format,
)
from sottovoce.services.copies.kind import FolderKind, Resumption
from sottovoce.services.copies.of_helper import AGGREGATOR, HELPER
from sottovoce.services.copies.of_server import SERVER
from sottovoce.services.copies.of_shuffler import SHUFFLER
from sottovoce.services.copies.of_silos import ORCHESTRATOR, OWNER
from sottovoce.services.copies.of_stores import DEVICE, USER, store_kind
from sottovoce.stores.locking import NEW, locked, running
from sottovoce.stores.private import others_may, sync_folder
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


# --- the file -------------------------------------------------------------------------------------

MANIFEST, FORMAT = "backup.json", 2
_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20
_TRIES = 5
_DAMAGE = (
    *(tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError),
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
    *(FileExistsError, NotADirectoryError),  # one name is a file and a folder
)
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup says of itself: of whom it is and of when. It is the last file in it."""

    kind: str
    federation: str
    """Empty where there was none yet."""
    whose: str
    created: str
    """When, in UTC, as 2026-11-16T10:00:00Z."""
    release: str
    """The version of this program that made it."""
    left_out: tuple[str, ...]
    """Keys that are kept elsewhere."""

    def age(self, now: datetime) -> str:
        """How long ago it was made, in words."""
        made = datetime.strptime(self.created, _MOMENT).replace(tzinfo=UTC)
        minutes = max(0, int((now - made).total_seconds() // 60))
        for unit, name in ((1440, "days"), (60, "hours")):
            if minutes >= 2 * unit:
                return f"{minutes // unit:,} {name} ago"
        return f"{minutes} minutes ago"

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes, backup: Path) -> Manifest:
        """Raise if it is of another format."""
        table = json.loads(content)
        found = table.pop("format")
        if found != FORMAT:
            raise VersionMismatch(other_format(backup, found, FORMAT))
        datetime.strptime(table["created"], _MOMENT)
        made = cls(**{**table, "left_out": tuple(table["left_out"])})
        *texts, left_out = astuple(made)
        if not all(isinstance(text, str) for text in (*texts, *left_out)):
            raise TypeError
        return made


def _add(archive: tarfile.TarFile, name: str, content: io.BufferedIOBase) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.size = 0o600, content.seek(0, os.SEEK_END)
    content.seek(0)
    archive.addfile(entry, content)


def _steady(source: Path) -> io.BytesIO:
    """A file that may be replaced at any moment, as it was before or after."""
    for _ in range(_TRIES):
        content = source.read_bytes()
        if source.read_bytes() == content:
            return io.BytesIO(content)
    raise ServiceError(f"{source} is being written again and again; try again later")


def _unpack(backup: Path, partial: Path) -> tuple[Manifest, list[str]]:
    """Write all files of a backup into a new folder; return what it says of itself, and their
    names. Raise with one sentence where it is no backup, or not as it was made."""
    if backup.is_dir():
        raise DataNotFound(f"{backup} is a folder, and a backup is one file")
    try:
        source = backup.open("rb")
    except OSError as error:
        raise DataNotFound(f"{backup} cannot be read: {error.strerror or error}") from None
    names = []
    try:
        with source, gzip.GzipFile(fileobj=source) as packed:
            if source.read(len(_GZIP)) != _GZIP:
                raise DataNotFound(f"{backup} is no backup of `sottovoce backup`")
            source.seek(0)
            with tarfile.open(fileobj=packed, mode="r|") as archive:
                for entry in archive:
                    content = archive.extractfile(entry) if _is_below(entry.name) else None
                    if content is None or (partial / entry.name).exists():
                        raise _damaged(backup)
                    with os.fdopen(_new_file(partial / entry.name), "wb") as out:
                        shutil.copyfileobj(content, out, _CHUNK)
                    names.append(entry.name)
            while packed.read(_CHUNK):  # up to its checksum
                pass
        names.remove(MANIFEST)
        manifest = Manifest.from_bytes((partial / MANIFEST).read_bytes(), backup)
    except _DAMAGE:
        raise _damaged(backup) from None
    (partial / MANIFEST).unlink()
    return manifest, names


def _is_below(name: str) -> bool:
    """Whether this names a file below the folder, and nowhere else."""
    parts = name.split("/")
    return bool(re.fullmatch(r"[\w.@+-]+(/[\w.@+-]+)*", name)) and not {".", ".."} & set(parts)


def _damaged(place: Path) -> CorruptData:
    return CorruptData(f"{place} is damaged; nothing was changed, use another backup")


# --- files and folders that nobody but their owner may read, and moves that are done whole --------

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


def _new_file(path: Path) -> int:
    """A file that was not there, for writing; folders above it are made, each its owner's alone."""
    for folder in reversed(path.parents):
        if not folder.is_dir():
            folder.mkdir(mode=0o700)
    return os.open(path, os.O_RDWR | NEW | os.O_EXCL, 0o600)  # which follows no link


def _sync(tree: Path) -> None:
    """All that is in it is on the disk, names included."""
    for folder, _, names in os.walk(tree):
        for name in names:
            with open(os.path.join(folder, name), "rb") as content:
                os.fsync(content.fileno())
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


# --- making one -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MadeBackup:
    manifest: Manifest
    kind: FolderKind
    files: int
    bytes: int
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
    created = (now or datetime.now(UTC)).astimezone(UTC).strftime(_MOMENT)
    with partial_folder(target) as partial:
        made = partial / target.name
        with os.fdopen(_new_file(made), "wb") as out:
            with (
                gzip.GzipFile("", "wb", 1, out) as packed,
                tarfile.open(fileobj=packed, mode="w|") as archive,
            ):
                left_out = _pack(folder, kind, keys, partial, archive)
                files = len(archive.getnames())
                about = kind.name, whose.federation, whose.name, created, sottovoce.__version__
                manifest = Manifest(*about, left_out)
                _add(archive, MANIFEST, io.BytesIO(manifest.to_bytes()))
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
        try:
            move_new(made, target)
        except FileExistsError:
            raise _there(target) from None
        sync_folder(target.parent)
    return MadeBackup(manifest, kind, files, size, kind.notes(folder))


def _pack(
    folder: Path, kind: FolderKind, keys: bool, partial: Path, archive: tarfile.TarFile
) -> tuple[str, ...]:
    """Add all that belongs into a backup; return the names of the keys that are left out."""
    for name in kind.first:
        if (folder / name).is_file():
            _add(archive, name, _steady(folder / name))
    for name in kind.databases:
        if (folder / name).is_file():
            copy = partial / "database"
            os.close(_new_file(copy))
            kind.copy(folder / name, copy)
            with copy.open("rb") as content:
                _add(archive, name, content)
            copy.unlink()
    # Keys come after the database: a ring of keys is only added to while a round needs them.
    left_out = []
    for name in kind.found(folder):
        if kind.is_key(name) and not keys:
            left_out.append(name)
        elif name not in kind.first:
            _add(archive, name, _steady(folder / name))
    return tuple(left_out)


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


def _there(target: Path) -> UsageError:
    return UsageError(f"{target} is there already and is not overwritten; choose another name")


# --- putting one back -----------------------------------------------------------------------------


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
    folder = Path(os.path.realpath(folder))
    with contextlib.ExitStack() as stack:
        partial = stack.enter_context(partial_folder(folder))
        manifest, names = _unpack(backup, partial)
        kind = _kind_named(manifest.kind)
        for name in (*names, *manifest.left_out):
            if not _is_below(name) or not kind.holds(name):
                raise CorruptData(f"{backup} holds {name}, which is no part of {kind.words}")
        before = _before(folder, kind, manifest)
        if before is not None:
            stack.enter_context(_nobody_at_work(before, kind))
        _bring_keys(manifest, partial, keys or before)
        if kind.whose(partial).name != manifest.whose:
            raise UsageError("these keys are not those of the backup; look for the right ones")
        settled = kind.settle(partial, before, next_round)
        for name in kind.databases:
            if any((partial / f"{name}-{log}").exists() for log in ("wal", "shm")):
                raise ServiceError(f"{name} could not be closed; nothing was changed, try again")
        give_to(before or folder.parent, partial)
        _sync(partial)
        aside = _put(partial, folder, before, now or datetime.now(UTC))
    return Restored(manifest, kind, settled, aside, bool(others_may(backup)))


def _kind_named(name: str) -> FolderKind:
    if name not in _ALL:
        raise VersionMismatch(
            f"this is a backup of {name[:40]!r}, which this release of Sottovoce does not know; "
            "use the release that made it"
        )
    return _ALL[name]


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


def _bring_keys(manifest: Manifest, partial: Path, place: Path | None) -> None:
    """Those that were left out."""
    for name in manifest.left_out:
        source = None if place is None else place / name
        if source is None or not source.is_file():
            raise UsageError(
                f"the backup was made without its keys, and {name} is not there; name the folder "
                "that has it with --keys"
            )
        with os.fdopen(_new_file(partial / name), "wb") as out:
            out.write(source.read_bytes())


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
