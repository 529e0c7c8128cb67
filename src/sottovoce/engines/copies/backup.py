"""Make a backup: a folder that only its owner can read, there whole or not at all."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import sottovoce
from sottovoce.engines.copies.files import (
    copy_new,
    measure,
    move_new,
    new_file,
    partial_folder,
    sync,
    sync_folders,
    write_new,
)
from sottovoce.engines.copies.kind import Kind
from sottovoce.engines.copies.kinds import kind_of
from sottovoce.engines.copies.manifest import CONTENT, FILE, Manifest, now_text
from sottovoce.errors import ServiceError, UsageError

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Made:
    manifest: Manifest
    kind: Kind
    notes: tuple[str, ...]
    """What is not in it."""


def make_backup(
    folder: Path, target: Path, *, keys: bool = True, now: datetime | None = None
) -> Made:
    """Copy a folder, in which processes may be at work, to `target`, where nothing may be. Without
    `keys`, what opens or proves something is left out."""
    kind = kind_of(folder)
    whose = kind.whose(folder)
    target = Path(os.path.abspath(target))
    if target.exists() or target.is_symlink():
        raise _there(target)
    if target.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{target} lies in {folder} itself; choose a place outside of it")
    # Keys come after the database: a ring of keys is only added to while a round needs them.
    with partial_folder(target) as partial:
        content = partial / CONTENT
        files = {}
        for name in kind.databases:
            if (folder / name).is_file():
                os.close(new_file(content / name))
                kind.copy(folder / name, content / name)
                files[name] = measure(content / name)
        names = list(kind.found(folder))
        left_out = [] if keys else [name for name in names if kind.is_key(name)]
        for name in names:
            if name not in left_out:
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
        sync(target.parent)
    return Made(made, kind, kind.notes(folder))


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
