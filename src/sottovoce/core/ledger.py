"""The ledger: a row for every release that left a device.

A row says who, in which round, by which release, how many positive and negative rows, how many
bytes and what it cost. `epsilon` is the privacy cost that the release can vouch for; infinity where
it can vouch for nothing. A row of k randomised reports also has k, the ε of each of them, and the
smallest batch in which a proxy hands them on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import CorruptData

if TYPE_CHECKING:
    import pyarrow as pa

COUNTS = ("releases", "positive_rows", "negative_rows", "bytes", "reports")
"""The whole numbers among the totals."""
COLUMNS = (
    *("user", "round", "positive_rows", "negative_rows", "bytes", "epsilon"),
    *("reports", "report_epsilon", "batch"),
)
"""What a row has beside its kind."""
_LATER = ("reports", "report_epsilon", "batch")
"""Columns that are 0 for releases without randomised reports."""


def _none() -> Any:
    return np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, repr=False)
class Entries:
    """Ledger rows of one kind, column by column."""

    kind: str
    user: NDArray[np.int64]
    round: NDArray[np.int64]
    positive_rows: NDArray[np.int32]
    negative_rows: NDArray[np.int32]
    bytes: NDArray[np.int64]
    epsilon: NDArray[np.floating]
    reports: NDArray[np.integer] = field(default_factory=_none)
    """k, the randomised reports of this release; 0 where it has none."""
    report_epsilon: NDArray[np.floating] = field(default_factory=_none)
    """ε of each of them."""
    batch: NDArray[np.integer] = field(default_factory=_none)
    """The fewest devices whose reports a proxy hands on together; 0 where there is no proxy."""

    def __post_init__(self) -> None:
        for name in _LATER:
            if not len(getattr(self, name)):
                # One zero in memory, whatever the number of rows.
                zeros = np.broadcast_to(_ZEROS[name], len(self.user))
                object.__setattr__(self, name, zeros)

    def __len__(self) -> int:
        return len(self.user)


_ZEROS: dict[str, NDArray[Any]] = {
    "reports": np.zeros(1, np.int32),
    "report_epsilon": np.zeros(1, np.float64),
    "batch": np.zeros(1, np.int64),
}


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over some ledger rows."""

    releases: int = 0
    positive_rows: int = 0
    negative_rows: int = 0
    bytes: int = 0
    epsilon: float = 0.0
    reports: int = 0


class Ledger:
    """Rows in memory since the last `flush`, and the running totals of everything recorded.

    `keep_rows=False` keeps the totals alone, for sweeps whose rows nobody will read.
    """

    def __init__(self, totals: Totals | None = None, *, keep_rows: bool = True) -> None:
        self._pending: list[Entries] = []
        self.totals = totals or Totals()
        self.keep_rows = keep_rows

    def __repr__(self) -> str:
        return f"<Ledger of {self.totals.releases:,} releases, redacted>"

    def record(self, entries: Entries) -> None:
        if self.keep_rows:
            self._pending.append(entries)
        self.totals = add_totals(self.totals, entries)

    def pending(self) -> pa.Table:
        """Rows not yet flushed, as a table."""
        return _table(self._pending)

    def pending_rows(self, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """These columns of `pending`, row by row, without what it takes to load a table."""
        rows: list[tuple[Any, ...]] = []
        for chunk in self._pending:
            each = {"kind": [chunk.kind] * len(chunk)}
            found = (each[c] if c in each else getattr(chunk, c).tolist() for c in columns)
            rows += zip(*found, strict=True)
        return rows

    def flush(self, path: Path) -> None:
        """Write pending rows to `path` (atomically) and forget them here."""
        import pyarrow.parquet as pq

        partial = path.with_suffix(".partial")
        pq.write_table(self.pending(), partial, compression="zstd")
        partial.replace(path)
        self._pending.clear()


def add_totals(totals: Totals, entries: Entries) -> Totals:
    return Totals(
        totals.releases + len(entries),
        totals.positive_rows + int(entries.positive_rows.sum()),
        totals.negative_rows + int(entries.negative_rows.sum()),
        totals.bytes + int(entries.bytes.sum()),
        totals.epsilon + float(entries.epsilon.sum(dtype=np.float64)),
        totals.reports + int(entries.reports.sum()),
    )


def merge(parts: list[Path], path: Path) -> None:
    """Join flushed parts, in order, into one file; bounded memory, atomic."""
    import pyarrow.parquet as pq

    partial = path.with_suffix(".partial")
    with pq.ParquetWriter(partial, _schema(), compression="zstd") as writer:
        for part in parts:
            writer.write_table(read(part))
    partial.replace(path)


def read(path: Path, user: int | None = None) -> pa.Table:
    """The ledger of a run, or one user's rows of it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        filters = None if user is None else [("user", "==", user)]
        # Without partitioning: a run folder may be called lr=0.05, which would become a column.
        table = pq.read_table(path, filters=filters, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise CorruptData(f"the ledger {path} cannot be read: {error}") from None
    schema, names = _schema(), list(table.column_names)
    if names != schema.names:
        raise CorruptData(f"{path} is no ledger; its columns are {', '.join(names)}")
    try:
        return table.cast(schema)
    except pa.ArrowException as error:
        raise CorruptData(f"{path} is no ledger: {error}") from None


def joined(tables: list[pa.Table]) -> pa.Table:
    """The rows that ranks have written, as one process writes them: by round, and then by user."""
    import pyarrow as pa

    whole = pa.concat_tables(tables).unify_dictionaries()
    order = np.lexsort((whole["user"].to_numpy(), whole["round"].to_numpy()))
    return whole.take(order)


def entries_of(table: pa.Table) -> list[Entries]:
    """The rows of a ledger table, one `Entries` per kind, in the table's order."""
    import pyarrow.compute as pc

    def column(rows: pa.Table, name: str, dtype: type[Any]) -> Any:
        return rows[name].to_numpy().astype(dtype)

    found = []
    for kind in sorted(pc.unique(table["kind"].cast("string")).to_pylist()):
        rows = table.filter(pc.equal(table["kind"].cast("string"), kind))
        found.append(
            Entries(
                kind=kind,
                user=column(rows, "user", np.int64),
                round=column(rows, "round", np.int64),
                positive_rows=column(rows, "positive_rows", np.int32),
                negative_rows=column(rows, "negative_rows", np.int32),
                bytes=column(rows, "bytes", np.int64),
                epsilon=column(rows, "epsilon", np.float64),
                reports=column(rows, "reports", np.int32),
                report_epsilon=column(rows, "report_epsilon", np.float64),
                batch=column(rows, "batch", np.int64),
            )
        )
    return found


def totals_of(table: pa.Table) -> Totals:
    """Sums of a ledger table."""
    import pyarrow.compute as pc

    def total(column: str) -> Any:
        return pc.sum(table[column]).as_py() or 0

    return Totals(
        table.num_rows,
        int(total("positive_rows")),
        int(total("negative_rows")),
        int(total("bytes")),
        # Whatever the order: rows come in chunks, which several threads add up.
        math.fsum(table["epsilon"].to_numpy()),
        int(total("reports")),
    )


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("user", pa.int64()),
            ("round", pa.int64()),
            ("kind", pa.dictionary(pa.int32(), pa.string())),
            ("positive_rows", pa.int32()),
            ("negative_rows", pa.int32()),
            ("bytes", pa.int64()),
            ("epsilon", pa.float64()),
            ("reports", pa.int32()),
            ("report_epsilon", pa.float64()),
            ("batch", pa.int64()),
        ]
    )


def _table(chunks: list[Entries]) -> pa.Table:
    import pyarrow as pa

    schema = _schema()
    tables = [
        pa.table(
            [
                pa.array(c.user, pa.int64()),
                pa.array(c.round, pa.int64()),
                pa.DictionaryArray.from_arrays(
                    pa.array(np.zeros(len(c), dtype=np.int32)), pa.array([c.kind])
                ),
                *(pa.array(getattr(c, f.name), f.type) for f in list(schema)[3:]),
            ],
            schema=schema,
        )
        for c in chunks
    ]
    return pa.concat_tables(tables).unify_dictionaries() if tables else schema.empty_table()
