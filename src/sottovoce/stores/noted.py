"""Notes outside a folder of what its owner has told, or let leave.

A folder that is set back to an older copy has forgotten what was told since, and two copies of a
folder that run side by side do not know of each other. Both find the same note: its name follows
from a secret of the folder. It lies in `$SOTTOVOCE_MARKS`, or in `sottovoce/marks` below
`$XDG_STATE_HOME` (by default `~/.local/state`). A machine that is set back as a whole has forgotten
the note, too, and another machine has none.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from sottovoce.errors import ConfigError, KeyTrouble, StoreError
from sottovoce.stores.keys import replace_file
from sottovoce.stores.locking import lock
from sottovoce.stores.private import private_folder

ENVIRONMENT = "SOTTOVOCE_MARKS"


def note_of(folder: Path, secret: bytes, purpose: bytes = b"sottovoce told") -> Path:
    """Return the place of the note of a folder with this secret, which all copies of the folder
    have and no other folder. Raise if it is within the folder, or if the user that runs this
    process has no home and names no place."""
    place = notes_folder().absolute()
    if place.resolve().is_relative_to(folder.absolute().resolve()):
        raise ConfigError(
            f"the notes of what has left must be outside {folder}, or a copy of it would have "
            f"them, too; name another folder with ${ENVIRONMENT}"
        )
    name = hashlib.blake2b(secret, digest_size=16, person=purpose).hexdigest()
    return place / f"{name}.json"


class LastAnswer:
    """The note of a party's last answer: its number, which only grows, and a mark that no other
    answer has. Several processes may use it."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def keep(self, number: int, mark: bytes) -> bool:
        """Return whether no other copy of the folder has given an answer of this number or of a
        later one. If so, this one is noted when this returns."""
        try:
            private_folder(self._place.parent)
            with lock(self._place.with_suffix(".lock")):
                known = self._read()
                if known is not None and number <= known[0]:
                    return (number, mark) == known
                table = {"number": number, "mark": mark.hex()}
                replace_file(self._place, json.dumps(table).encode() + b"\n")
                return True
        except (OSError, KeyTrouble):
            raise StoreError(
                f"{self._place.parent} cannot be read or written, where it is noted what was "
                f"answered; nothing was sent: name another folder with ${ENVIRONMENT}"
            ) from None

    def _read(self) -> tuple[int, bytes] | None:
        try:
            table = json.loads(self._place.read_bytes())
            return int(table["number"]), bytes.fromhex(table["mark"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise StoreError(
                f"{self._place} is damaged, and says what was answered last; remove it, if the "
                "folder was never set back to an older copy"
            ) from None


def notes_folder() -> Path:
    """Return the folder for the notes of this user's parties."""
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
