"""What every importer promises, and what is said of one that breaks it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_importers import DOUBAN, ML1M, ML10M, ML20M, ML100K, TIST, unpacked

from sottovoce.data.importers import (
    IMPORTERS,
    KINDS,
    Archive,
    Download,
    RawTables,
    Request,
    import_path,
)
from sottovoce.data.prepared import write_prepared
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.errors import DataError
from sottovoce.testing import ImporterContract

FILES = {
    "movielens-100k": ML100K,
    "movielens-1m": ML1M,
    "movielens-10m": ML10M,
    "movielens-csv": ML20M,
    "foursquare": TIST,
    "douban-book": DOUBAN,
    "recbole": {
        "mine.inter": "user_id:token\titem_id:token\na\t1\nb\t2\n",
        "mine.item": "item_id:token\tclass:token_seq\n1\tDrama Comedy\n",
    },
    "lists": {"train.txt": "0 1 2\n1 2\n", "test.txt": "0 3\n1\n"},
    "table": {"visits.csv": "user,item\na,1\nb,2\n"},
}


def held(name: str) -> type[ImporterContract]:
    """The contract of one of them."""

    def write(self: Any, folder: Path) -> None:
        if name == "prepared":
            town = generate_town(TownConfig(residents=20, venues=60, visits_per_resident=5))
            write_prepared(town, folder)
        else:
            unpacked(folder, FILES[name])

    inside = {"importer": lambda self: IMPORTERS[name](), "write": write}
    return type(f"Test_{name}", (ImporterContract,), inside)


globals().update({f"Test_{name}": held(name) for name in IMPORTERS})


def test_kinds_keep_their_order() -> None:
    assert (
        *("auto", "movielens-100k", "movielens-1m", "movielens-10m", "movielens-csv"),
        *("foursquare", "douban-book", "recbole", "lists", "table", "prepared"),
    ) == KINDS


def test_a_stranger_comes_before_the_plain_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = pa.table({"user": ["a", "b"], "item": ["x", "y"]})

    class Mine(Download):
        files = ("likes.csv",)

        def read(self, archive: Archive, request: Request) -> RawTables:
            return RawTables(events)

    for part in ("_found", "_places"):
        monkeypatch.setattr(IMPORTERS, part, dict(getattr(IMPORTERS, part)))
    IMPORTERS.register("likes")(Mine)
    unpacked(tmp_path, {"likes.csv": "user,item\n1,2\n"})
    assert import_path(tmp_path).name == "likes"
    assert import_path(tmp_path / "likes.csv").interactions.n_interactions == 2
    events = pa.table({"who": ["a"], "item": ["x"]})
    with pytest.raises(DataError, match="the importer likes gave events without a column user"):
        import_path(tmp_path)
