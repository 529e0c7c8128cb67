"""Which batches have left a shuffler, kept outside the shuffler's folder.

A folder that is set back, by a copy or by a snapshot, has forgotten which batches have left. Two
batches of one round and tier show whoever gets both, by their difference, whose reports are in one
of them alone. So a shuffler writes a batch's mark here before anything of the batch leaves, and
refuses to send a batch that has another mark than the one written here.

All copies of one folder find the same file (`stores.noted`). A copy that finds none, on another
machine for example, is not started.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sottovoce.errors import ServiceError
from sottovoce.stores.keys import replace_file
from sottovoce.stores.locking import lock
from sottovoce.stores.noted import ENVIRONMENT, note_of
from sottovoce.stores.private import private_folder

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
