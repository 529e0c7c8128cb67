"""An encrypted SQLite file in a folder of its own: `store.db`, its key in `store.key`, a lock."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import apsw

from sottovoce.errors import StoreError
from sottovoce.stores.device_schema import APPLICATION_ID, FORMAT, SCHEMA
from sottovoce.stores.file import SQLiteFile
from sottovoce.stores.locking import is_locked, try_lock
from sottovoce.stores.private import others_may, sync_folder, write_new

DATABASE, KEY, LOCK = "store.db", "store.key", "agent.lock"


class StoreFile(SQLiteFile):
    """The file of a person's store, which one process at a time may serve as its agent."""

    schema, format = SCHEMA, FORMAT
    application_id = APPLICATION_ID
    made_by: ClassVar[str] = "sottovoce device init {folder}"
    """The command that makes such a store."""
    strange = "cannot be read: it is no {kind}, or the store.key beside it is another's"
    in_use = "is in use by another process; one agent at a time may serve it"
    lock = LOCK

    def __init__(
        self,
        folder: Path,
        *,
        readonly: bool = False,
        agent: bool = False,
        fill: Callable[[Any], None] | None = None,
    ) -> None:
        self.folder = folder
        path = folder / DATABASE
        if not path.is_file():
            raise StoreError(
                f"there is no store in {folder}; make one with "
                f"`{self.made_by.format(folder=folder)}`"
            )
        key = _read_key(folder / KEY)
        lock = self.take_lock(folder) if agent else None
        super().__init__(
            path, key=key, readonly=readonly, make=fill is not None, lock=lock, fill=fill
        )

    @classmethod
    def create(cls, folder: Path, fill: Callable[[Any], None]) -> None:
        """Make a store and let `fill` write into it. It is there whole, or not at all."""
        folder = Path(os.path.abspath(folder))
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            what = "a store" if (folder / DATABASE).exists() else "something else"
            raise StoreError(f"there is already {what} in {folder}; choose another place")
        import shutil  # an agent makes no store, and does without them
        import tempfile

        partial = None
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            write_new(partial / KEY, secrets.token_hex(32).encode() + b"\n")
            write_new(partial / DATABASE, b"")
            cls(partial, fill=fill).close()
            sync_folder(partial)
            partial.rename(folder)
            sync_folder(folder.parent)
        except OSError as error:
            raise StoreError(
                f"no store could be made in {folder}: {error.strerror or error}"
            ) from None
        finally:
            if partial is not None and partial.exists():
                shutil.rmtree(partial, ignore_errors=True)

    @classmethod
    def copy(cls, folder: Path, target: Path) -> None:
        """Copy a store that may be in use, as it is at one moment, to a file that is there and
        empty, with the same key. Raises if it is damaged."""
        with cls(folder, readonly=True) as file, file._speaking():
            source: Any = file._connection
            copy = apsw.Connection(str(target), flags=apsw.SQLITE_OPEN_READWRITE)
            try:
                copy.pragma("hexkey", _read_key(folder / KEY))
                with copy.backup("main", source, "main") as all_of_it:
                    all_of_it.step(-1)
                damaged = copy.pragma("quick_check", 1) != "ok"
            finally:
                copy.close()
        if damaged:
            raise StoreError(f"the store {folder / DATABASE} is damaged; no copy was made")

    @classmethod
    def erase(cls, folder: Path) -> None:
        """Take a store away for good: without its key, which goes first, nobody reads the rest.
        Other files in the folder stay. Raises if another process serves it."""
        lock = cls.take_lock(folder)
        try:
            key = folder / KEY
            with contextlib.suppress(FileNotFoundError), key.open("r+b") as out:
                out.write(secrets.token_bytes(key.stat().st_size))
                out.flush()
                os.fsync(out.fileno())
            for name in (KEY, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", LOCK):
                (folder / name).unlink(missing_ok=True)
            sync_folder(folder)
            with contextlib.suppress(OSError):  # something else is in it
                folder.rmdir()
        except OSError as error:
            raise StoreError(
                f"the store in {folder} could not be taken away: {error.strerror or error}"
            ) from None
        finally:
            lock.close()

    def serve(self) -> bool:
        """Become the store's agent, if no other process is; whether this one is now."""
        with self._turn:
            if self._lock is None:
                self._lock = try_lock(self.folder / LOCK)
            return self._lock is not None

    def served(self) -> bool:
        """Whether some process serves this store as its agent."""
        return is_locked(self.folder / LOCK)


def _read_key(path: Path) -> str:
    try:
        if others_may(path):
            mode = path.stat().st_mode & 0o777
            raise StoreError(
                f"{path} may be read by others (mode {mode:o}); run `chmod 600 {path}`, and make a "
                f"new store if somebody may have read it"
            )
        key = path.read_bytes().decode("ascii", "replace").strip()
    except FileNotFoundError:
        raise StoreError(
            f"{path} is missing, without which the store cannot be read; put it back"
        ) from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    if not re.fullmatch(r"[0-9a-f]{64}", key):
        raise StoreError(f"{path} holds no key; put the right one back")
    return key
