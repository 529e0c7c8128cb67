"""Shares of prepared data sets, read by row groups: together they are the whole, and none of the
ranks has the whole of it at any time. Ranks are threads here, which is all that reading needs."""

from __future__ import annotations

import shutil
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sottovoce.core.ranks import Ranks
from sottovoce.data import row_groups
from sottovoce.data.dataset import Dataset
from sottovoce.data.prepared import read_prepared
from sottovoce.data.splitting import Split
from sottovoce.errors import ConfigError, CorruptData, DataError
from sottovoce.experiment import Experiment

T = TypeVar("T")


class Threads(Ranks):
    """A rank that is a thread. What it hears is kept, so that it can be heard again."""

    together = True

    def __init__(self, rank: int, table: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(table)
        self.table, self.barrier = table, barrier
        self.heard: list[Any] = []

    def gather(self, told: T) -> list[T]:
        self.table[self.rank] = told
        self.barrier.wait(20)
        found = list(self.table)
        self.barrier.wait(20)
        self.heard.append(found)
        return found

    def all_sum(self, numbers: np.ndarray) -> np.ndarray:
        assert numbers.dtype == np.int64
        found = self.gather(numbers.copy())
        self.heard[-1] = sum(found[1:], start=found[0].copy())
        return self.heard[-1].copy()

    def same(self, what: str, value: str) -> None:
        if len(set(self.gather(value))) > 1:
            raise DataError(f"another {what}")


class Again(Ranks):
    """A rank alone, which hears what it heard before."""

    together = True

    def __init__(self, before: Threads) -> None:
        self.rank, self.size, self.heard = before.rank, before.size, iter(before.heard)

    def gather(self, told: T) -> list[T]:
        return next(self.heard)

    def all_sum(self, numbers: np.ndarray) -> np.ndarray:
        return next(self.heard)

    def same(self, what: str, value: str) -> None:
        next(self.heard)


def by_ranks(size: int, work: Callable[[Threads], T]) -> list[T]:
    """What each rank returned; raises what the first one raised, if any did."""
    barrier, table = threading.Barrier(size), [None] * size
    found: dict[int, T] = {}
    raised: list[BaseException] = []

    def rank(k: int) -> None:
        try:
            found[k] = work(Threads(k, table, barrier))
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:  # it is raised below
            raised.append(error)
            barrier.abort()

    threads = [threading.Thread(target=rank, args=(k,)) for k in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return [found[k] for k in range(size)]


def events(users: Any, items: Any, **columns: Any) -> pa.Table:
    return pa.table({"user": users, "item": items, **columns})


def write(folder: Path, rows: int, **tables: pa.Table) -> None:
    folder.mkdir()
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=rows)


def worlds(root: Path) -> list[str]:
    """Small data sets of every kind of id, with row groups that end in the middle of users."""
    rng = np.random.default_rng(5)
    users = (rng.random(500) ** 2 * 37).astype(int)
    items = (rng.random(500) ** 2 * 40).astype(int)
    times, rated = rng.integers(1, 400, 500), rng.integers(1, 6, 500)
    order = np.lexsort((items, users))
    some = np.unique(users)[::2]
    about_users = pa.table(
        {"user": some * 3 - 7, "age": some % 5, "city": [None if u % 4 else f"c{u}" for u in some]}
    )
    about_items = pa.table(
        {
            "item": [f"i{k}" for k in range(39)],
            "title": [f"T{k}" for k in range(39)],
            "categories": [[f"k{k % 4}"] for k in range(39)],
            "maker": [str(k % 7) for k in range(39)],
        }
    )
    write(  # in no order; thousandths, the largest of which are one user's; texts and numbers
        root / "mixed", 7,
        interactions=events(
            users * 3 - 7, [f"i{k}" for k in items],
            timestamp=np.where(users == users.max(), times * 10**10, times), rating=rated,
        ).replace_schema_metadata({"sottovoce.provenance": "somewhere"}),
        users=about_users, items=about_items,
    )  # fmt: skip
    write(  # by user; texts that are whole numbers, which are not in the order of texts
        root / "numerals", 11,
        interactions=events(
            pa.array([str(u) for u in users[order]]).dictionary_encode(),
            pa.array(items[order]), timestamp=pa.array(times[order], pa.timestamp("s")),
        ),
    )  # fmt: skip
    write(  # ids that are any text, by user; no times
        root / "texts", 501,
        interactions=events(
            sorted(f"{'ßzé'[u % 3]} {u}" for u in users), pa.array(items, pa.uint16()),
            rating=rated / 3,
        ),
        users=pa.table({"user": ["z 1"], "age": ["7"]}),
    )  # fmt: skip
    pairs = np.unique(np.stack([users, items]), axis=1)
    last = np.append(np.diff(pairs[0]) > 0, True)
    people = rng.permutation(np.unique(users))
    negatives = [[int(k) for k in rng.choice(np.unique(items), 3)] for _ in people]
    write(  # a published split with candidates
        root / "published", 13,
        interactions=events(
            pairs[0].astype(float), pairs[1], split=np.where(last, "test", "train")
        ),
        candidates=pa.table({"user": people, "negatives": negatives}),
    )  # fmt: skip
    third = np.append(last[1:], False) | np.append(last[2:], [False, False])
    write(  # one with a validation part, by user
        root / "parts", 29,
        interactions=events(
            pairs[0], pairs[1], split=np.where(last, "test", np.where(third, "validation", "train"))
        ),
    )  # fmt: skip
    return ["mixed", "numerals", "texts", "published", "parts"]


SETTINGS = {
    "mixed": [
        {},
        {"min_rating": 4.0, "split": "random"},
        {"min_user_items": 9, "min_item_users": 8, "split": "leave-one-out"},
        {"min_rating": 2.0, "min_user_items": 6, "min_item_users": 12, "part": "validation"},
    ],
    "numerals": [{}, {"min_user_items": 14, "split": "random"}],
    "texts": [{"split": "random"}, {"min_item_users": 20, "split": "random"}],
    "published": [
        {"split": "published"},
        {"split": "published", "part": "validation"},
        {"min_item_users": 9, "split": "random"},
    ],
    "parts": [{"split": "published"}, {"split": "published", "part": "validation"}],
    "town": [{"min_user_items": 8}, {"min_user_items": 9, "min_item_users": 6}],
}
CASES = [(name, index) for name, them in SETTINGS.items() for index in range(len(them))]


def experiment(source: str, settings: dict[str, Any]) -> Experiment:
    town = {"residents": 60, "venues": 50, "visits_per_resident": 14.0, "districts": 3}
    algorithm = {"name": "fpl", "embedding_size": 3}
    return Experiment.from_table(
        {"seed": 3, "data": {"source": source, **settings}, "town": town, "algorithm": algorithm}
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("prepared")
    worlds(place)
    return place


def joined(shares: list[Any]) -> Any:
    return None if shares[0] is None else np.concatenate(shares)


def equal(shares: list[Any], whole: Any) -> None:
    assert (whole is None) == all(share is None for share in shares)
    if whole is not None:
        assert joined(shares).dtype == whole.dtype
        assert np.array_equal(joined(shares), whole)


def same_tables(shares: list[Any], whole: Any) -> None:
    for column in ("items", "counts", "timestamps", "ratings"):
        equal([getattr(share, column) for share in shares], getattr(whole, column))
    assert {share.n_items for share in shares} == {whole.n_items}
    names = [name for share in shares for name in share.users_vocabulary().names()]
    assert names == whole.users_vocabulary().names()
    for share in shares:
        assert share.items_vocabulary().names() == whole.items_vocabulary().names()


def same_data(shares: list[Dataset], whole: Dataset) -> None:
    same_tables([share.interactions for share in shares], whole.interactions)
    first = 0
    for share in shares:
        assert share.shard.first == first
        assert share.shard.ranks.span(whole.interactions.n_users).start == first
        first += share.interactions.n_users
        assert share.fingerprint() == whole.fingerprint()
        assert (share.name, share.provenance) == (whole.name, whole.provenance)
        assert share.item_titles == whole.item_titles
        assert share.item_categories == whole.item_categories
        assert list(share.user_attributes) == list(whole.user_attributes)
        for key, labels in whole.item_attributes.items():
            assert share.item_attributes[key].values == labels.values
            assert np.array_equal(share.item_attributes[key].codes, labels.codes)
    for key, labels in whole.user_attributes.items():
        assert {share.user_attributes[key].values for share in shares} == {labels.values}
        equal([share.user_attributes[key].codes for share in shares], labels.codes)
    assert all((share.published is None) == (whole.published is None) for share in shares)
    if whole.published is not None:
        equal([share.published.held_out for share in shares], whole.published.held_out)
        equal([share.published.negatives for share in shares], whole.published.negatives)


def same_split(shares: list[Split], whole: Split) -> None:
    same_tables([share.train for share in shares], whole.train)
    same_tables([share.test for share in shares], whole.test)
    equal([share.negatives for share in shares], whole.negatives)
    assert all(np.array_equal(share.item_map, whole.item_map) for share in shares)


@pytest.mark.parametrize(("source", "index"), CASES)
def test_shares_together_are_the_whole(
    root: Path, source: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(root))
    asked = experiment(source, SETTINGS[source][index])
    whole = asked.dataset()
    for size, at_once in ((1, 5), (2, 17), (3, 1000), (3, 4)):
        monkeypatch.setattr(row_groups, "AT_ONCE", at_once)

        def work(here: Threads) -> tuple[Dataset, Split]:
            data = asked.dataset(here)
            return data, asked.split(data)

        found = by_ranks(size, work)
        same_data([data for data, _ in found], whole)
        same_split([split for _, split in found], asked.split(whole))


def big(folder: Path) -> None:
    rng = np.random.default_rng(1)
    users = np.sort(rng.integers(0, 900, 240_000))
    table = events(users, rng.integers(0, 5_000, 240_000), rating=rng.random(240_000))
    write(folder, 3_000, interactions=table)


def test_no_rank_has_more_than_its_share_and_a_few_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peak memory of one rank of eight, by itself, beside that of one process."""
    big(tmp_path / "big")
    monkeypatch.setattr(row_groups, "AT_ONCE", 3_000)
    before = by_ranks(8, lambda here: (read_prepared(tmp_path / "big", ranks=here).known(), here))
    ranks = [here for _, here in before]
    decoded, arrow, looked_at = [], [], []
    real, begun = row_groups.parts, pa.total_allocated_bytes()

    def counted(file: Any, columns: Any, groups: Any, *more: Any) -> Iterator[Any]:
        looked_at.append((tuple(columns), len(groups)))
        for first, part in real(file, columns, groups, *more):
            decoded.append(part.num_rows)
            arrow.append(pa.total_allocated_bytes() - begun)
            yield first, part

    monkeypatch.setattr(row_groups, "parts", counted)
    peaks = []
    for here in (Ranks(), Again(ranks[3])):
        tracemalloc.start()
        data = read_prepared(tmp_path / "big", ranks=here).known()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert data.fingerprint() == before[0][0].fingerprint()
    assert max(decoded) == 3_000
    assert data.interactions.n_interactions <= 33_000
    assert peaks[1] < 0.2 * peaks[0]
    # The whole is 5.8 MB in Arrow; what is decoded 72 kB, beside 64 kB a column to read from.
    assert max(arrow) < 1_000_000
    # Of 80 row groups it looks for names in ten, and has its users in ten and those at the edges.
    assert looked_at[:2] == [(("user",), 10), (("item",), 10)]
    assert looked_at[2][1] in (10, 11, 12)


def test_ranks_with_other_files_are_told(root: Path, tmp_path: Path) -> None:
    for place in "ab":
        shutil.copytree(root / "mixed", tmp_path / place)
    table = pq.read_table(tmp_path / "b" / "interactions.parquet")
    rated = table["rating"].to_numpy().copy()
    rated[[3, 4]] = rated[[4, 3]]
    assert not np.array_equal(rated, table["rating"].to_numpy())
    table = table.set_column(3, "rating", pa.array(rated))
    pq.write_table(table, tmp_path / "b" / "interactions.parquet", row_group_size=7)
    with pytest.raises(DataError, match="another data"):
        by_ranks(2, lambda here: read_prepared(tmp_path / "ab"[here.rank], ranks=here))


def test_what_is_wrong_is_named_by_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "AT_ONCE", 4)
    rows = 30
    good = {"user": [*range(rows)], "item": ["x"] * rows, "rating": [1.0] * rows}
    for name, bad, said in (
        ("user", None, "column user: row 24 is empty; every event needs a user and an item"),
        ("item", None, "column item: row 24 is empty"),
        ("rating", None, "column rating: row 24 is empty"),
        ("rating", float("nan"), "column rating: row 24 is not a finite number"),
        ("item", "", "there is an event without id"),
        ("item", "a\0b", "holds a NUL character"),
    ):
        columns = {key: list(values) for key, values in good.items()}
        columns[name][23] = bad
        folder = tmp_path / f"{name} {bad!r}".replace("\0", "0").replace("\\", "")
        write(folder, 5, interactions=pa.table(columns))
        for size in (1, 2, 3):
            with pytest.raises(CorruptData, match=said):
                by_ranks(size, lambda here, at=folder: read_prepared(at, ranks=here))


def test_too_few_users_are_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(root))
    counts = np.sort(experiment("mixed", {}).dataset().interactions.counts)
    two = experiment("mixed", {"min_user_items": int(counts[-2])})
    assert two.dataset().interactions.n_users == 2
    with pytest.raises(ConfigError, match="2 users for 3 ranks"):
        by_ranks(3, two.dataset)
    nobody = experiment("mixed", {"min_user_items": int(counts[-1]) + 1})
    with pytest.raises(DataError, match="nobody is left"):
        by_ranks(3, nobody.dataset)
