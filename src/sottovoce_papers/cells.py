"""Cells: what one training or one attack left behind, kept on disk under a key that is its content.

An interrupted study goes on where it was, and studies share their cells. Several processes may run
side by side without anybody who coordinates them: what one is training, the others leave to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.arrays import each
from sottovoce.runs.folder import load_arrays, save_arrays
from sottovoce.runs.train import Report

Arrays = Mapping[str, NDArray[Any]]
Given = TypeVar("Given")
Found = TypeVar("Found")


def differing(value: Any) -> Any:
    """Return a value as a key of a cell holds it: of a dataclass its name and the fields that
    differ from their defaults, so that a new field with its default changes no key."""
    if is_dataclass(value) and not isinstance(value, type):
        found: dict[str, Any] = {"": type(value).__name__}
        for field in fields(value):
            usual = field.default
            if field.default_factory is not MISSING:
                usual = field.default_factory()
            mine = getattr(value, field.name)
            if usual is MISSING or mine != usual:
                found[field.name] = differing(mine)
        return found
    if isinstance(value, Mapping):
        return {str(key): differing(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [differing(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


class Cells:
    """A folder of cells, and how they are made: threads, device, and whom to report to."""

    def __init__(self, folder: Path, threads: int, report: Report, device: str = "cpu") -> None:
        self.folder, self.threads, self.report, self.device = folder, threads, report, device

    def kept(
        self, key: Sequence[object], names: Iterable[str], train: Callable[[], Arrays]
    ) -> Arrays:
        """Return what is kept under `key`, which JSON can write. If one of `names` is missing, what
        train() gives is added to it, by one process at a time."""
        path, wanted = self._place(key), set(names)
        found = _there(path)
        if not wanted <= set(found):
            self.folder.mkdir(parents=True, exist_ok=True)
            with _alone(path):
                found = _there(path)
                if not wanted <= set(found):
                    found = {**found, **train()}
                    save_arrays(path, **found)
        return found

    def has(self, key: Sequence[object]) -> bool:
        """Return whether something is kept under this key."""
        return self._place(key).exists()

    def _place(self, key: Sequence[object]) -> Path:
        text = json.dumps(list(key), sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
        return self.folder / f"{digest}.npz"

    def many(
        self,
        what: str,
        work: Callable[[Given], Found],
        parts: Sequence[Given],
        threads: int | None = None,
    ) -> list[Found]:
        """Return work(part) of every part, done side by side and reported as it goes."""
        done = 0
        self.report(what, 0, len(parts))

        def one(part: Given) -> Found:
            nonlocal done
            found = work(part)
            done += 1
            self.report(what, done, len(parts))
            return found

        return each(one, parts, self.threads if threads is None else threads)


def _there(path: Path) -> dict[str, NDArray[Any]]:
    return load_arrays(path) if path.exists() else {}


def _claim(path: Path) -> Path:
    """The file that a process holds while it trains a cell; one that is killed lets go of it."""
    return path.with_suffix(".claim")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep every other process and thread from training this cell; wait until that is so."""
    claim = _claim(path)
    while True:
        with open(claim, "ab") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            # Whoever held it before has removed the file: another one counts now.
            if not claim.exists() or not os.path.samestat(os.fstat(handle.fileno()), claim.stat()):
                continue
            try:
                yield
            finally:
                claim.unlink(missing_ok=True)
            return
