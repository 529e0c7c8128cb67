"""Notes outside a folder of what its owner has told, or let leave.

A folder that is set back to an older copy has forgotten what was told since, and two copies of a
folder that run side by side do not know of each other. Both find the same note: its name follows
from a secret of the folder. It lies in `$SOTTOVOCE_MARKS`, or in `sottovoce/marks` below
`$XDG_STATE_HOME` (by default `~/.local/state`). A machine that is set back as a whole has forgotten
the note, too, and another machine has none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sottovoce.errors import ConfigError, KeyTrouble, ServiceError, StoreError
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
        if not Path(named).is_absolute():  # it would be another place with each working directory
            raise ConfigError(f"${ENVIRONMENT} must be a whole path, and {named!r} is none")
        return Path(named)
    try:  # the specification of $XDG_STATE_HOME has paths ignored that are not whole
        whole = base and Path(base).is_absolute()
        state = Path(base or "") if whole else Path.home() / ".local" / "state"
    except RuntimeError:
        raise ConfigError(
            f"this user has no home; name a folder for what is noted with ${ENVIRONMENT}"
        ) from None
    return state / "sottovoce" / "marks"


# Which batches have left a shuffler. Two batches of one round and tier show whoever gets both, by
# their difference, whose reports are in one of them alone. So a shuffler writes a batch's mark here
# before anything of the batch leaves, and refuses to send a batch that has another mark than the
# one written here. A copy of the folder that finds no file, on another machine for example, is not
# started.

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Left:
    """What has left, as far as it matters for what may leave."""

    round: int = 0
    """No batch of an earlier round leaves unless its mark is in `marks`."""
    marks: Mapping[tuple[int, int], bytes] = field(default_factory=dict)
    """By round and tier, the mark of the batch that has left or is leaving."""

    @property
    def next_round(self) -> int:
        """The first round of which nothing has left."""
        return max([self.round, *(round + 1 for round, _ in self.marks)])


class Marks:
    """The marks of one shuffler. Several processes may use them."""

    def __init__(self, folder: Path, secret: bytes) -> None:
        """`secret` is known to all copies of the folder and to no other folder."""
        self.place = note_of(folder, secret, b"sottovoce left")

    def read(self) -> Left | None:
        """None where nothing was ever written for this folder on this machine."""
        try:
            table = json.loads(self.place.read_bytes())
            if table["format"] != _FORMAT:
                raise ValueError
            marks = {(int(r), int(t)): bytes.fromhex(mark) for r, t, mark in table["left"]}
            return Left(int(table["round"]), marks)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ServiceError(f"{self.place} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ServiceError(
                f"{self.place} is damaged, and says which batches have left; remove it, and start "
                "the shuffler once with --next-round"
            ) from None

    def begin(self, round: int = 0) -> None:
        """Let no batch of a round before this one leave from now on."""
        with self._held():
            found = self.read() or Left()
            # Marks of earlier rounds are not needed: nothing of these rounds leaves any more.
            first = max(round, found.round)
            kept = {where: mark for where, mark in found.marks.items() if where[0] >= first}
            self._write(Left(first, kept))

    def commit(self, round: int, tier: int, mark: bytes) -> bool:
        """Whether the batch with this mark may leave. If so, that is on the disk on return, and no
        other batch of the round and tier may leave any more."""
        with self._held():
            found = self.read()
            if found is None:
                raise ServiceError(f"{self.place} was removed; no batch leaves without it")
            known = found.marks.get((round, tier))
            if known is not None or round < found.round:
                return known == mark
            kept = {where: one for where, one in found.marks.items() if where[0] >= round - 2}
            self._write(replace(found, round=round, marks={**kept, (round, tier): mark}))
            return True

    def _write(self, left: Left) -> None:
        rows = [[*where, mark.hex()] for where, mark in sorted(left.marks.items())]
        table = {"format": _FORMAT, "round": left.round, "left": rows}
        replace_file(self.place, json.dumps(table).encode() + b"\n")

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        try:
            private_folder(self.place.parent)
            with lock(self.place.with_suffix(".lock")):
                yield
        except OSError as error:
            raise ServiceError(
                f"{self.place.parent} cannot be written ({error.strerror}), where the shuffler "
                f"notes which batches have left; name a folder outside its own with ${ENVIRONMENT}"
            ) from None
