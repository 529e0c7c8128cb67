"""Notes outside a folder of what its owner has told last.

A folder that is set back to an older copy has forgotten what was told since, and two copies of a
folder that run side by side do not know of each other. Both find the same note: its name follows
from a secret of the folder. It lies in `$SOTTOVOCE_MARKS`, or in `sottovoce/marks` below
`$XDG_STATE_HOME` (by default `~/.local/state`). A machine that is set back as a whole has forgotten
the note, too, and another machine has none.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from sottovoce.errors import ConfigError

ENVIRONMENT = "SOTTOVOCE_MARKS"


def note_of(folder: Path, secret: bytes) -> Path:
    """Return the place of the note of a folder with this secret. Raise if it is within the folder,
    or if the user that runs this process has no home and names no place."""
    place = _notes().absolute()
    if place.resolve().is_relative_to(folder.absolute().resolve()):
        raise ConfigError(
            f"what was told is noted outside {folder}, because a copy of it would have the note, "
            f"too; name another folder with ${ENVIRONMENT}"
        )
    name = hashlib.blake2b(secret, digest_size=16, person=b"sottovoce told").hexdigest()
    return place / f"{name}.json"


def _notes() -> Path:
    named, base = os.environ.get(ENVIRONMENT), os.environ.get("XDG_STATE_HOME")
    if named:
        return Path(named)
    try:
        state = Path(base) if base else Path.home() / ".local" / "state"
    except RuntimeError:
        raise ConfigError(
            f"this user has no home; name a folder for what is noted with ${ENVIRONMENT}"
        ) from None
    return state / "sottovoce" / "marks"
