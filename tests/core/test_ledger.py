"""The ledger's files: what was recorded is read back, what is no ledger is refused."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sottovoce.core import ledger as ledgers
from sottovoce.core.ledger import Entries, Ledger
from sottovoce.errors import CorruptData


def entries(users, round, kind="share-item"):
    n = len(users)
    return Entries(
        kind,
        np.asarray(users, np.int64),
        np.full(n, round),
        np.arange(n, dtype=np.int32),
        np.full(n, 2, np.int32),
        np.full(n, 100),
        np.full(n, np.inf, np.float32),
    )


def test_parts_come_back_as_one_whatever_the_folder_is_called(tmp_path):
    folder = tmp_path / "lr=0.05"  # not a partition
    folder.mkdir()
    book = Ledger()
    for round in range(3):
        book.record(entries([4, 7], round, f"kind-{round}"))
        book.flush(folder / f"{round}.parquet")
    ledgers.merge(sorted(folder.glob("*.parquet")), folder / "ledger.parquet")
    everything = ledgers.read(folder / "ledger.parquet")
    assert everything["round"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert everything["kind"].to_pylist()[::2] == ["kind-0", "kind-1", "kind-2"]
    assert ledgers.totals_of(everything) == book.totals
    mine = ledgers.read(folder / "ledger.parquet", 7)
    assert mine["user"].to_pylist() == [7, 7, 7]
    assert ledgers.totals_of(mine).positive_rows == 3


def test_totals_alone_can_be_kept():
    book = Ledger(keep_rows=False)
    book.record(entries([1, 2, 3], 0))
    assert (book.totals.releases, book.totals.bytes, book.pending().num_rows) == (3, 300, 0)


def test_rows_are_those_of_the_table_in_their_order():
    book = Ledger()
    book.record(entries([4, 7], 0, "first"))
    book.record(entries([5], 1, "second"))
    columns = ["user", "kind", "round", "bytes"]
    table = book.pending().select(columns).to_pylist()
    assert len(table) == 3
    assert book.pending_rows(columns) == [tuple(row.values()) for row in table]


def test_totals_go_on_from_where_they_were():
    former = Ledger()
    former.record(entries([1, 2, 3], 0))
    book = Ledger(former.totals)
    book.record(entries([1, 2], 1))
    assert (book.totals.releases, book.totals.bytes) == (5, 500)
    assert ledgers.totals_of(Ledger().pending()) == ledgers.Totals()


def test_what_is_no_ledger_is_refused(tmp_path):
    path = tmp_path / "ledger.parquet"
    path.write_bytes(b"junk")
    with pytest.raises(CorruptData, match="cannot be read"):
        ledgers.read(path)
    pq.write_table(pa.table({"a": [1]}), path)
    for user in (None, 3):
        with pytest.raises(CorruptData, match="ledger"):
            ledgers.read(path, user)


def test_rows_of_a_table_become_entries_again():
    book = Ledger()
    book.record(entries([4, 7], 0, "b"))
    book.record(entries([5], 1, "a"))
    book.record(reports([5, 6], 2))
    again = Ledger()
    for part in ledgers.entries_of(book.pending()):
        again.record(part)
    assert again.totals == book.totals
    assert again.pending().sort_by("round").to_pydict() == book.pending().to_pydict()


def reports(users, round, epsilon=0.7, k=3, batch=20):
    n = len(users)
    return Entries(
        "k-reports",
        np.asarray(users, np.int64),
        np.full(n, round),
        np.zeros(n, np.int32),
        np.zeros(n, np.int32),
        np.full(n, 52 * k),
        np.full(n, k * epsilon),
        reports=np.full(n, k, np.int32),
        report_epsilon=np.full(n, epsilon),
        batch=np.full(n, batch),
    )


def test_reports_are_booked_with_their_cost_and_batch(tmp_path):
    book = Ledger()
    book.record(reports([4, 7], 0))
    book.record(entries([4], 1))
    assert (book.totals.releases, book.totals.reports) == (3, 6)
    book.flush(tmp_path / "ledger.parquet")
    table = ledgers.read(tmp_path / "ledger.parquet")
    assert ledgers.totals_of(table) == book.totals
    mine = ledgers.read(tmp_path / "ledger.parquet", 4).to_pylist()
    kept = [(r["reports"], r["report_epsilon"], r["batch"], r["epsilon"]) for r in mine]
    assert kept == [(3, 0.7, 20, 3 * 0.7), (0, 0.0, 0, np.inf)]  # to the last digit
    again = {part.kind: part for part in ledgers.entries_of(table)}
    assert again["k-reports"].report_epsilon.tolist() == [0.7, 0.7]
    assert again["share-item"].batch.tolist() == [0]


def test_columns_without_reports_take_no_memory():
    many = entries(np.arange(100_000), 0)
    for name in ("reports", "report_epsilon", "batch"):
        column = getattr(many, name)
        assert (len(column), column.strides, column.base is not None) == (100_000, (0,), True)
