"""A store's book of rounds: terms, model, vectors, and what was prepared, left and came of it.

One round at a time is open: the latest. `vectors` are those at its start and `learnt` those at its
end; which of them count is told by its state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.hiding import Hidden
from sottovoce.core.ledger import Ledger
from sottovoce.core.messages import ModelView
from sottovoce.parties.device import Contents
from sottovoce.stores.encrypted import StoreFile
from sottovoce.wire.terms import Terms

if TYPE_CHECKING:
    import pyarrow as pa

State = Literal["prepared", "dropped", "left", "arrived", "refused"]
"""`prepared`: nothing has left. `dropped`: nothing will. `left`: its fate is unknown. `arrived`: it
counts. `refused`: it has left, but does not count."""
_GONE = ("left", "arrived", "refused")
_LATEST = ("rounds", "terms")
"""Tables that say which round is the latest."""
_ROUND = "(era, round, attempt) = (?, ?, ?)"
_LEDGER = (
    *("user", "kind", "positive_rows", "negative_rows", "bytes", "epsilon"),
    *("reports", "report_epsilon", "batch"),
)
"""Columns of a ledger as a store has them, after those of the round."""


@dataclass(frozen=True, slots=True, repr=False)
class Round:
    """The latest round of a store."""

    era: int
    round: int
    attempt: int
    state: State
    asked: bytes
    """A digest of what was asked for: model and devices."""
    consent: int
    """The latest choice that was known when the round was prepared."""
    devices: int
    nonce: bytes
    message: bytes

    @property
    def key(self) -> tuple[int, int, int]:
        return self.era, self.round, self.attempt

    @property
    def gone(self) -> bool:
        """Whether its bytes have left, or may have."""
        return self.state in _GONE


@dataclass(frozen=True, slots=True)
class RoundBook:
    file: StoreFile

    # --- terms and model -------------------------------------------------------------------------

    def latest_terms(self) -> tuple[int, Terms] | None:
        """The terms that were written down last, and how many before them. The first are those that
        the server showed first, later ones were agreed to."""
        return self.file.held("terms in force", ("terms",), self._read_terms)

    def _read_terms(self) -> tuple[int, Terms] | None:
        written = self.all_terms()
        return None if not written else (written[-1][0], kept_terms(written[-1][1]))

    def all_terms(self) -> list[tuple[int, str]]:
        """All that were ever written down, by version."""
        sql = "SELECT era, content FROM terms ORDER BY era"
        return self.file.held("terms", ("terms",), lambda: [(e, t) for e, t in self.file.rows(sql)])

    def add_terms(self, era: int, terms: Terms, now: int) -> None:
        content = json.dumps(terms.to_table(), sort_keys=True)
        self.file.write("INSERT INTO terms VALUES (?, ?, ?)", [era, content, now])

    def keep_model(self, view: ModelView) -> None:
        items = np.ascontiguousarray(view.items, dtype="<f4")
        values = [view.round, items.shape[1], items.tobytes()]
        with self.file.transaction():
            self.file.write("INSERT OR REPLACE INTO model VALUES (0, ?, ?, ?)", values)
            self.file.hold("model", ("model",), view.round)

    def model_round(self) -> int | None:
        """Return the round of the model that is kept."""
        sql = "SELECT round FROM model"
        found: int | None = self.file.held("model", ("model",), lambda: self.file.value(sql))
        return found

    def model(self) -> ModelView | None:
        row = self.file.row("SELECT round, width, items FROM model")
        if row is None:
            return None
        items = np.frombuffer(row[2], "<f4").astype(np.float32)
        return ModelView(row[0], items.reshape(-1, row[1]))

    # --- vectors ---------------------------------------------------------------------------------

    def overlay(self, users: NDArray[np.int64], onto: NDArray[np.float32], *, learnt: bool) -> None:
        """Put the vectors that are kept in their users' places: those at the start of the latest
        round or, if wanted, what its participants had learnt at its end."""
        kept = "SELECT number, vector FROM vectors"
        if learnt:
            kept += " WHERE number NOT IN (SELECT number FROM learnt)"
            kept += " UNION ALL SELECT number, vector FROM learnt"
        rows = self.file.rows(f"{kept} ORDER BY number")
        if rows:
            numbers = np.array([number for number, _ in rows], dtype=np.int64)
            flat = np.frombuffer(b"".join(vector for _, vector in rows), "<f4")
            onto[np.searchsorted(users, numbers)] = flat.reshape(len(rows), -1)

    def fold_learnt(self) -> None:
        """From now on, what was learnt in the latest round is what the next one starts from."""
        self.file.write(
            "INSERT INTO vectors SELECT number, vector FROM learnt WHERE true "
            "ON CONFLICT (number) DO UPDATE SET vector = excluded.vector"
        )
        self.forget_learnt()

    def forget_learnt(self) -> None:
        self.file.write("DELETE FROM learnt")

    def keep_learnt(self, numbers: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        rows = np.ascontiguousarray(vectors, dtype="<f4")
        self.file.write_many(
            "INSERT INTO learnt VALUES (?, ?)",
            zip(numbers.tolist(), map(np.ndarray.tobytes, rows), strict=True),
        )

    def stands(self, number: int) -> dict[str, bytes]:
        """One user's vectors, by their table: at the start of the latest round, if it is not the
        first one, and what she had learnt at its end."""
        found = {}
        for table in ("vectors", "learnt"):
            row = self.file.row(f"SELECT vector FROM {table} WHERE number = ?", [number])
            if row is not None:
                found[table] = row[0]
        return found

    def move(self, number: int, table: str, vector: NDArray[np.float32]) -> None:
        """Put another vector in the place of one of these."""
        values = [number, np.ascontiguousarray(vector, dtype="<f4").tobytes()]
        self.file.write(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", values)

    def add_hiding(self, hidden: Hidden, now: int) -> None:
        """Book how far a user's vector moved when she hid something."""
        names = json.dumps(hidden.attributes)
        values = [
            *(hidden.user, hidden.round, names, hidden.before, hidden.after, hidden.moved),
            *(hidden.steps, hidden.reason, now),
        ]
        self.file.write(f"INSERT INTO hidings VALUES (NULL{', ?' * len(values)})", values)

    def forget_vectors(self) -> None:
        """Everybody starts anew."""
        self.forget_learnt()
        self.file.write("DELETE FROM vectors")
        self.file.write("DELETE FROM model")

    # --- rounds ----------------------------------------------------------------------------------

    def latest(self) -> Round | None:
        """The latest round under the terms in force."""
        return self.file.held("round", _LATEST, self._read_latest)

    def _read_latest(self) -> Round | None:
        row = self.file.row(
            "SELECT era, round, attempt, state, asked, consent, devices, nonce,"
            " ifnull(message, x'') FROM rounds WHERE era = (SELECT max(era) FROM terms)"
            " ORDER BY era DESC, round DESC, attempt DESC LIMIT 1"
        )
        return None if row is None else Round(*row)

    def changed_since(self, choice: int) -> NDArray[np.int64]:
        """Return who has chosen anew since that choice."""
        sql = "SELECT DISTINCT number FROM consent WHERE version > ?"
        return np.array([n for (n,) in self.file.rows(sql, [choice])], dtype=np.int64)

    def minds_changed(self, entry: Round) -> bool:
        """Whether one whose report is in this round has chosen anew since it was prepared."""
        sql = (
            f"SELECT 1 FROM ledger WHERE {_ROUND} AND number IN "
            "(SELECT number FROM consent WHERE version > ?) LIMIT 1"
        )
        return self.file.row(sql, [*entry.key, entry.consent]) is not None

    def add(
        self, entry: Round, book: Ledger, digest: str, now: int, contents: Contents | None = None
    ) -> None:
        """Write a prepared round, with the ledger rows of its devices and, of a single one, what of
        her own is in it."""
        latest = self.latest()
        self.file.write(
            "INSERT INTO rounds (era, round, attempt, state, asked, consent, devices, nonce,"
            " message, wire_bytes, digest, prepared_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET state = excluded.state, asked = excluded.asked,"
            " consent = excluded.consent, devices = excluded.devices, nonce = excluded.nonce,"
            " message = excluded.message, wire_bytes = excluded.wire_bytes,"
            " digest = excluded.digest, prepared_at = excluded.prepared_at, reason = ''",
            [
                *entry.key,
                entry.state,
                entry.asked,
                entry.consent,
                entry.devices,
                entry.nonce,
                entry.message,
                # Reports are sealed one by one on their way out, and larger then.
                max(len(entry.message), book.totals.bytes),
                digest,
                now,
            ],
        )
        if latest is None or latest.key <= entry.key:
            self.file.hold("round", _LATEST, entry)
        self.file.write_many(
            f"INSERT INTO ledger VALUES ({entry.era}, {entry.round}, {entry.attempt},"
            f" {', '.join('?' * len(_LEDGER))})",
            book.pending_rows(_LEDGER),
        )
        if contents is not None:
            items, weights = contents.items.astype("<i4"), contents.weight.astype("<f4")
            ((number,),) = book.pending_rows(["user"])
            values = [*entry.key, number, items.tobytes(), weights.tobytes()]
            self.file.write("INSERT INTO contents VALUES (?, ?, ?, ?, ?, ?)", values)

    def drop(self, entry: Round, reason: str) -> None:
        """Forget a prepared round: nothing of it has left, and nothing will."""
        self.file.write(f"DELETE FROM contents WHERE {_ROUND}", entry.key)
        self.file.write(f"DELETE FROM ledger WHERE {_ROUND}", entry.key)
        self.forget_learnt()
        self._mark(entry, "dropped", reason)
        self.forget_message(entry)

    def forget_message(self, entry: Round) -> None:
        latest = self.latest()
        self.file.write(f"UPDATE rounds SET message = NULL WHERE {_ROUND}", entry.key)
        self._hold(entry, latest, message=b"")

    def mark_left(self, entry: Round, now: int) -> None:
        """Book a prepared round as left: its rows count towards the budget from here on."""
        self._mark(entry, "left", "", left_at=now)
        self.file.write(
            "INSERT INTO budget SELECT number, kind, 1, positive_rows, negative_rows, bytes,"
            f" epsilon, reports FROM ledger WHERE {_ROUND} ON CONFLICT (number, kind) DO UPDATE SET"
            " releases = releases + excluded.releases,"
            " positive_rows = positive_rows + excluded.positive_rows,"
            " negative_rows = negative_rows + excluded.negative_rows,"
            " bytes = bytes + excluded.bytes, epsilon = epsilon + excluded.epsilon,"
            " reports = reports + excluded.reports",
            entry.key,
        )
        # A cost that is bounded, but not that of reports, counts as one report of that cost.
        self.file.write(
            "INSERT INTO spent SELECT number, iif(reports > 0, report_epsilon, epsilon), batch,"
            f" max(reports, 1) FROM ledger WHERE {_ROUND} AND epsilon > 0 AND epsilon < 9e999"
            " ON CONFLICT (number, epsilon, batch) DO UPDATE SET"
            " reports = reports + excluded.reports",
            entry.key,
        )

    def costs(self, entry: Round) -> list[tuple[int, float]]:
        """Return whose reports are in this round, and what they cost."""
        sql = (
            "SELECT number, iif(reports > 0, reports * report_epsilon, epsilon) FROM ledger"
            f" WHERE {_ROUND} ORDER BY number"
        )
        return [(int(number), float(cost)) for number, cost in self.file.rows(sql, entry.key)]

    def other_rows(self, entry: Round) -> int:
        """Rows in this round that are not of its users' own items."""
        sql = f"SELECT ifnull(sum(negative_rows), 0) FROM ledger WHERE {_ROUND}"
        return int(self.file.value(sql, entry.key))

    def unbounded_releases(self) -> list[tuple[int, int, int]]:
        """User, era, and how many of her releases have left under its terms, or may have, of which
        no ε of their own bounds what they cost."""
        # Whatever leaves for the first time is written into the budget, and stays gone.
        return self.file.held("unbounded", ("budget", "terms"), self._read_unbounded)

    def _read_unbounded(self) -> list[tuple[int, int, int]]:
        sql = (
            "SELECT l.number, l.era, count(*) FROM ledger l JOIN rounds r"
            f" USING (era, round, attempt) WHERE r.state IN {_GONE} AND l.epsilon >= 9e999"
            " GROUP BY 1, 2"
        )
        return [(int(number), int(era), int(n)) for number, era, n in self.file.rows(sql)]

    def rounds_of(self, kind: str) -> list[tuple[int, int, int, int]]:
        """User, round, era and time of all releases of this kind that have left, or may have, under
        whatever terms."""
        sql = (
            "SELECT l.number, l.round, l.era, max(r.left_at) FROM ledger l JOIN rounds r"
            f" USING (era, round, attempt) WHERE r.state IN {_GONE} AND l.kind = ?"
            " GROUP BY 1, 2, 3 ORDER BY 2, 1, 3"
        )
        rows = self.file.rows(sql, [kind])
        return [(int(n), int(round), int(era), int(at)) for n, round, era, at in rows]

    def contributed(self, kind: str) -> list[tuple[int, int, int, str]]:
        """User, era, round, and the choice under which it was prepared, of all releases of this
        kind that have left, or may have."""
        sql = (
            "SELECT l.number, l.era, l.round, (SELECT choice FROM consent c WHERE"
            " c.number = l.number AND c.version <= r.consent ORDER BY c.version DESC LIMIT 1)"
            " FROM ledger l JOIN rounds r USING (era, round, attempt)"
            f" WHERE r.state IN {_GONE} AND l.kind = ? ORDER BY 3, 1"
        )
        return [
            (int(n), int(era), int(at), text) for n, era, at, text in self.file.rows(sql, [kind])
        ]

    def has_left(self, era: int, round: int) -> NDArray[np.int64]:
        """Return whose reports have left in any attempt at a round, or may have."""
        sql = (
            "SELECT DISTINCT l.number FROM ledger l JOIN rounds r USING (era, round, attempt)"
            f" WHERE l.era = ? AND l.round = ? AND r.state IN {_GONE}"
        )
        return np.array([n for (n,) in self.file.rows(sql, [era, round])], dtype=np.int64)

    def sent_as(self, entry: Round, body: bytes) -> None:
        """Note the bytes in which a report leaves."""
        values = [len(body), hashlib.sha256(body).hexdigest(), *entry.key]
        sql = f"UPDATE rounds SET body_bytes = ?, body_sha256 = ? WHERE {_ROUND}"
        latest = self.latest()
        self.file.write(sql, values)
        self._hold(entry, latest)

    def mark(self, entry: Round, state: Literal["left", "arrived", "refused"], reason: str) -> None:
        """Say what became of a round that has left."""
        self._mark(entry, state, reason)

    def _mark(self, entry: Round, state: State, reason: str, *, left_at: int | None = None) -> None:
        latest = self.latest()
        self.file.write(
            f"UPDATE rounds SET state = ?, reason = ?, left_at = ifnull(?, left_at) WHERE {_ROUND}",
            [state, reason, left_at, *entry.key],
        )
        self._hold(entry, latest, state=state)

    def _hold(self, entry: Round, latest: Round | None, **changes: Any) -> None:
        """What became of a round is known without reading it again."""
        if latest is not None and latest.key == entry.key:
            self.file.hold("round", _LATEST, replace(latest, **changes))


def forget_vectors_of(file: StoreFile, numbers: Collection[int]) -> None:
    """These users start anew, also where a round of theirs is under way."""
    for table in ("vectors", "learnt"):
        file.write_many(
            f"DELETE FROM {table} WHERE number = ?", ((int(number),) for number in numbers)
        )


def drop_outdated(file: StoreFile, reason: str) -> None:
    """Forget what was prepared before somebody whose report is in it chose anew."""
    book = RoundBook(file)
    entry = book.latest()
    if entry is not None and entry.state == "prepared" and book.minds_changed(entry):
        book.drop(entry, reason)


def hidings(file: StoreFile, number: int | None) -> list[tuple[Hidden, int]]:
    """How far vectors moved when their users hid something, and when, of one user or of all; oldest
    first."""
    where, values = ("", []) if number is None else ("WHERE number = ?", [int(number)])
    rows = file.rows(
        "SELECT number, round, attributes, before, after, moved, steps, reason, at "
        f"FROM hidings {where} ORDER BY id",
        values,
    )
    return [
        (Hidden(user, round, tuple(json.loads(names)), *way), at)
        for user, round, names, *way, at in rows
    ]


def kept_terms(text: str) -> Terms:
    """Terms that a store holds."""
    return Terms.from_table(json.loads(text))


def ledger_rows(file: StoreFile, number: int | None) -> pa.Table:
    """What has left, or may have: the columns of a run's ledger, then those of the message."""
    import pyarrow as pa

    schema = Ledger().pending().schema
    for name, kind in (
        ("attempt", pa.int64()),
        ("state", pa.string()),
        ("time", pa.int64()),
        ("wire_bytes", pa.int64()),
        ("devices", pa.int64()),
        ("digest", pa.string()),
        ("terms", pa.int64()),
    ):
        schema = schema.append(pa.field(name, kind))
    where, values = ("", []) if number is None else ("AND l.number = ?", [int(number)])
    rows: Sequence[tuple[Any, ...]] = file.rows(
        "SELECT l.number, l.round, l.kind, l.positive_rows, l.negative_rows, l.bytes, l.epsilon,"
        " l.reports, l.report_epsilon, l.batch,"
        " l.attempt, r.state, r.left_at, r.wire_bytes, r.devices, r.digest, l.era"
        " FROM ledger l JOIN rounds r USING (era, round, attempt)"
        f" WHERE r.state IN {_GONE} {where} ORDER BY l.era, l.round, l.attempt, l.number",
        values,
    )
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)], schema=schema
    )
