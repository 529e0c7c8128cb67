"""Put a backup back. Everything is looked at before anything is changed; then the whole folder is
exchanged at one moment, logs of databases included, and what was there is kept beside it."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sottovoce.engines.copies.files import (
    copy_new,
    exchange,
    give_to,
    measure,
    move_new,
    partial_folder,
    sync,
    sync_folders,
)
from sottovoce.engines.copies.kind import Kind, Settled
from sottovoce.engines.copies.kinds import kind_named
from sottovoce.engines.copies.manifest import CONTENT, Manifest
from sottovoce.engines.https.ready import locked, running
from sottovoce.errors import CorruptData, ServiceError, SottovoceError, UsageError


@dataclass(frozen=True, slots=True)
class Restored:
    manifest: Manifest
    kind: Kind
    settled: Settled
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
    kinds: tuple[str, ...] = (),
    now: datetime | None = None,
) -> Restored:
    """Make `folder` what it was when the backup was made, but for what must not be done twice.
    `keys` is where keys are that were left out, if not in the folder; `kinds` are those that are
    wanted, or all."""
    manifest = Manifest.read(backup)
    kind = kind_named(manifest.kind)
    if kinds and kind.name not in kinds:
        raise UsageError(f"{backup} is a backup of {kind.words}, not of a store")
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


def _before(folder: Path, kind: Kind, manifest: Manifest) -> Path | None:
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


def _called(kind: Kind, federation: str) -> str:
    return f"{kind.words}{f' of {federation}' if federation else ''}"


@contextlib.contextmanager
def _nobody_at_work(folder: Path, kind: Kind) -> Iterator[None]:
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


def _bring(backup: Path, partial: Path, kind: Kind, manifest: Manifest) -> None:
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


def _close_databases(partial: Path, kind: Kind) -> None:
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
        sync(folder.parent)
        return None
    folder.chmod(0o700)
    aside = _beside(partial, folder, f"{folder.name}.before-{now:%Y%m%d-%H%M%S}")
    try:
        exchange(aside, folder)
    except OSError:
        # Not what was there: that has stayed in its place.
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync(folder.parent)
    return aside


def _beside(partial: Path, folder: Path, name: str) -> Path:
    """Move it to a new place beside the folder, by this name or a longer one."""
    for number in itertools.count(1):
        place = folder.with_name(name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            move_new(partial, place)
            break
    return place
