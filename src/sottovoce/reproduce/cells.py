"""Results of training runs, kept on disk: an interrupted study goes on where it was, and figures
share their runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from sottovoce.runs import load_arrays, save_arrays

Arrays = Mapping[str, NDArray[Any]]


def kept(
    folder: Path,
    prefix: str,
    key: Sequence[object],
    names: Iterable[str],
    train: Callable[[], Arrays],
) -> Arrays:
    """What the folder has of the run that `key` describes, which JSON can write. Where one of
    `names` is missing, train() is added to it. Files of a study begin with its prefix."""
    text = json.dumps(list(key), sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    path = folder / f"{prefix}{digest}.npz"
    found = load_arrays(path) if path.exists() else {}
    if not set(names) <= set(found):
        folder.mkdir(parents=True, exist_ok=True)
        found = {**found, **train()}
        save_arrays(path, **found)
    return found
