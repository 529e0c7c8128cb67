"""The rounds of a DRIFT federation as the orchestrator's store keeps them: each counts once.

The number of a round is that of the rounds closed before it. A conductor that is killed finds the
round that it had opened, and does it again under the same number, by which every owner knows that
it is the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift import Orchestrator
from sottovoce.algorithms.known_rows import Row
from sottovoce.errors import DataError, RunError, StoreError
from sottovoce.parties.orchestrator_file import OrchestratorFile
from sottovoce.stamps import stamp, unstamp

ROUNDS_KEPT = 100_000
"""Records of older rounds are dropped: a service that runs for years goes through many."""


GROWING = ("version", "directory", "membership", "next_user", "next_owner", "round")
"""Numbers that never fall, and by which others know an older copy of the store."""


@dataclass(frozen=True, slots=True)
class OpenRound:
    round: int
    flush: bool
    """Whether all streams end with it."""
    ending: frozenset[int] = frozenset()
    """Owners whose streams end with it: all in a flush, in other rounds those that were silent in
    the last one."""


@dataclass(frozen=True, slots=True)
class SiloRound:
    """How a round went. Owners are named."""

    round: int
    flush: bool
    asked: tuple[str, ...]
    """All that were admitted, whether they were there or not."""
    updated: tuple[str, ...]
    """Those whose update was folded."""
    silent: tuple[str, ...]
    """Those that gave no answer in time."""
    refused: tuple[str, ...]
    """Those whose answer was refused."""
    seconds: float
    version: int
    """Of the model after it."""


def stored_rows(kind: str, numbers: Sequence[int], rows: NDArray[np.float32]) -> list[bytes]:
    """Rows of these users or items, stamped for their place."""
    pairs = zip(numbers, rows.astype("<f4"), strict=True)
    return [stamp(row.tobytes(), kind, number) for number, row in pairs]


class RoundStore:
    """The part of the store that a conductor writes."""

    def __init__(self, file: OrchestratorFile) -> None:
        self._file = file

    @property
    def round(self) -> int:
        """Rounds that were closed; the number of the one that is open or comes next."""
        return int(self._meta("round"))

    def counters(self) -> dict[str, int]:
        """All that never falls."""
        return {name: int(self._meta(name)) for name in GROWING}

    def go_on_with(self, counters: Mapping[str, int]) -> None:
        """For an older copy: what was counted since is not counted again, and a round that was open
        is over."""
        with self._file.transaction():
            for name in GROWING:
                self._set(name, max(int(self._meta(name)), counters[name]))
            self._file.write("DELETE FROM open_round")

    def open_round(self) -> OpenRound:
        """Opens the next round. One that was open already is given again as it was, so that every
        owner is asked the same in it."""
        with self._file.transaction():
            found = self._file.rows("SELECT round, flush, requested FROM open_round")
            if not found:
                requested = int(self._meta("flush"))
                found = [(self.round, requested > int(self._meta("flushed")), requested)]
                self._file.write("INSERT INTO open_round VALUES (?, ?, ?)", found[0])
            round, flush, requested = found[0]
            owed = self._file.rows("SELECT number FROM owners WHERE flushed < ?", [requested])
            return OpenRound(round, bool(flush), frozenset(number for (number,) in owed))

    def close_round(
        self,
        record: SiloRound,
        orchestrator: Orchestrator,
        users: NDArray[np.int64],
        items: NDArray[np.int64],
        folded: Iterable[int],
        *,
        ended: Iterable[int] = (),
    ) -> None:
        """The orchestrator has folded the updates of these owners, which moved the rows of these
        users and items. Users who have left since stay erased. Those of the round's `ending` owners
        that are not in `ended` are told again in the next round."""
        model = orchestrator.model
        with self._file.transaction():
            found = self._file.rows("SELECT round, flush, requested FROM open_round")
            if not found or found[0][0] != record.round or bool(found[0][1]) != record.flush:
                raise RunError(f"round {record.round} is not the one that is open")
            for kind, table, numbers in (
                ("users", model.users, users),
                ("items", model.items, items),
            ):
                moved = stored_rows(kind, numbers.tolist(), table[numbers])
                rows = zip(moved, numbers.tolist(), strict=True)
                self._file.write_many(f"UPDATE {kind} SET row = ? WHERE number = ?", rows)
            marks = ((record.round, owner) for owner in folded)
            self._file.write_many("UPDATE owners SET counted = ? WHERE number = ?", marks)
            done = ((found[0][2], owner) for owner in ended)
            self._file.write_many("UPDATE owners SET flushed = ? WHERE number = ?", done)
            self._set("version", record.version)
            self._set("round", record.round + 1)
            if record.flush:
                self._set("flushed", found[0][2])
            self._file.write("DELETE FROM open_round")
            self._log(record)
        if self._meta("erasing"):
            self._erase()

    def _log(self, record: SiloRound) -> None:
        names = json.dumps([record.asked, record.updated, record.silent, record.refused])
        self._file.write(
            "INSERT INTO rounds VALUES (?, ?, ?, ?, ?)",
            [record.round, record.flush, names, record.seconds, record.version],
        )
        self._file.write("DELETE FROM rounds WHERE round <= ?", [record.round - ROUNDS_KEPT])

    def rounds(self, last: int | None = None) -> list[SiloRound]:
        """How rounds went, oldest first."""
        rows = self._file.rows(
            "SELECT * FROM rounds ORDER BY round DESC LIMIT ?", [-1 if last is None else last]
        )
        found = []
        for round, flush, names, seconds, version in rows[::-1]:
            asked, updated, silent, refused = map(tuple, json.loads(names))
            found.append(
                SiloRound(round, bool(flush), asked, updated, silent, refused, seconds, version)
            )
        return found

    def counted(self, owner: int) -> int:
        """The last round in which the owner's update was folded; -1 where none was."""
        found = self.all_counted()
        if owner not in found:
            raise DataError(f"there is no data owner {owner}")
        return found[owner]

    def all_counted(self) -> dict[int, int]:
        """The same of every owner, by number."""
        return dict(self._file.rows("SELECT number, counted FROM owners ORDER BY number"))

    def hear(self, owner: int, round: int) -> None:
        """An answer of this owner with sums in it came in, whether or not it is counted."""
        with self._file.transaction():
            self._file.write(
                "INSERT INTO heard VALUES (?, ?) "
                "ON CONFLICT (owner) DO UPDATE SET round = max(round, excluded.round)",
                [owner, round],
            )

    def all_heard(self) -> dict[int, int]:
        """By owner: the last round of which such an answer came in."""
        return dict(self._file.rows("SELECT owner, round FROM heard"))

    def target(self) -> int:
        """Rounds to run, as far as an operator has said so here."""
        return int(self._meta("target"))

    def raise_target(self, rounds: int) -> None:
        """A conductor that holds goes on to this round; it never falls."""
        with self._file.transaction():
            self._set("target", max(rounds, self.target()))

    def request_flush(self) -> None:
        """The next round that is opened ends all streams."""
        with self._file.transaction():
            self._count("flush", 1)

    @property
    def flush_requested(self) -> bool:
        """Whether a round that ends all streams is still to come."""
        return int(self._meta("flush")) > int(self._meta("flushed"))

    def refuse(self, reason: str, times: int = 1) -> None:
        """Count something that was turned away."""
        with self._file.transaction():
            self._file.write(
                "INSERT INTO refused VALUES (?, ?) "
                "ON CONFLICT (reason) DO UPDATE SET count = count + excluded.count",
                [reason, times],
            )

    def refused(self) -> dict[str, int]:
        return dict(self._file.rows("SELECT reason, count FROM refused ORDER BY reason"))

    # --- rows of the model -----------------------------------------------------------------------

    def _rows(self, kind: str, size: int) -> dict[int, Row]:
        """What `stored_rows` gave, by number. Raises where anything of it is damaged."""
        found = self._file.rows(f"SELECT number, row FROM {kind}")
        rows = [unstamp(row, kind, number) for number, row in found]
        flat = np.frombuffer(b"".join(row or b"" for row in rows), "<f4").astype(np.float32)
        if None in rows or len(flat) != len(found) * size or not np.isfinite(flat).all():
            raise StoreError(f"{self._file.path} is damaged; put back a copy")
        return dict(zip((number for number, _ in found), flat.reshape(-1, size), strict=True))

    # --- numbers ---------------------------------------------------------------------------------

    def _meta(self, name: str) -> Any:
        found = self._file.value("SELECT value FROM meta WHERE name = ?", [name])
        if found is None:
            raise StoreError(f"{self._file.path} is damaged; put back a copy")
        return found

    def _set(self, name: str, value: int) -> None:
        self._file.write("UPDATE meta SET value = ? WHERE name = ?", [value, name])

    def _count(self, name: str, more: int) -> int:
        """Raises a counter; what it was before."""
        before = int(self._meta(name))
        self._set(name, before + more)
        return before

    def _erase(self) -> None:
        """What was deleted goes from the files too. Where another process is in the way, the end of
        the next round does it."""
        asked = self._meta("erasing")
        if self._file.erase_traces():
            with self._file.transaction():  # unless somebody else has left since
                done = "UPDATE meta SET value = 0 WHERE name = 'erasing' AND value = ?"
                self._file.write(done, [asked])
