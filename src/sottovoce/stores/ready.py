"""The files by which a running process says where it listens, and keeps others out."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sottovoce.errors import ServiceError
from sottovoce.stores.locking import try_lock


def write_ready_file(place: Path, url: str, port: int, **more: str) -> None:
    """For whoever waits for this process."""
    fresh = place.with_suffix(".new")
    content = json.dumps({"url": url, "pid": os.getpid(), "port": port, **more})
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as out:
        out.write(content)
    os.replace(fresh, place)


def running(place: Path) -> dict[str, Any] | None:
    """What the file says; None where there is none, or the process is gone."""
    try:
        found = dict(json.loads(place.read_text()))
        with contextlib.suppress(PermissionError):  # it runs, as somebody else
            os.kill(found["pid"], 0)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return found


@contextlib.contextmanager
def locked(place: Path, advice: str = "stop that one first") -> Iterator[None]:
    """Within, no other process can serve from the folder in which this file is."""
    lock = try_lock(place)
    if lock is None:
        raise ServiceError(f"{place.parent} is served by another process already; {advice}")
    with lock:
        yield


@dataclass(frozen=True, slots=True, repr=False)
class ServiceFolder:
    """A folder from which one process at a time serves a party."""

    path: Path

    party: ClassVar[str]
    """By which its files are called."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}>"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def ready_file(self) -> Path:
        return self.path / f"{self.party}.json"

    def locked(self) -> AbstractContextManager[None]:
        """Within, no other process can serve from this folder."""
        return locked(self.path / f"{self.party}.lock")

    def running(self) -> dict[str, Any] | None:
        """Address and process of a service that runs from this folder."""
        return running(self.ready_file)
