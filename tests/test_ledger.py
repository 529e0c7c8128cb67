"""The ledger's files: what was recorded is read back, what is no ledger is refused."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sottovoce import ledger as ledgers
from sottovoce.errors import CorruptData
from sottovoce.ledger import Entries, Ledger


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
    again = Ledger()
    for part in ledgers.entries_of(book.pending()):
        again.record(part)
    assert again.totals == book.totals
    assert again.pending().sort_by("round").to_pydict() == book.pending().to_pydict()
