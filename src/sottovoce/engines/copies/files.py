"""Files and folders that nobody but their owner may read, from the first byte on, and moves that
are done whole or not at all."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

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
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


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
        sync(Path(folder))


def sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def give_to(owner: Path, tree: Path) -> None:
    """Where root has made a tree, it becomes that of the one who owns this place."""
    there = owner.stat()
    if os.geteuid() or not there.st_uid:
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
