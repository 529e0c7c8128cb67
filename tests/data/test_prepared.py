from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sottovoce.core.interactions import Interactions, Vocabulary
from sottovoce.data.dataset import Dataset, Labels
from sottovoce.data.prepared import read_prepared, write_prepared
from sottovoce.data.sources import available, load, prepared_folder, prepared_root
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.errors import ConfigError, CorruptData, DataError, DataNotFound

NONE = pa.array([], pa.int64())


def put(folder: Path, **files: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, columns in files.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


def test_ids_are_ordered_by_number_where_all_are_numbers(tmp_path: Path) -> None:
    folder = put(tmp_path / "d", interactions={"user": [10, 9, 9], "item": ["b", "10", "9"]})
    table = read_prepared(folder).interactions
    assert table.users_vocabulary().names() == ["9", "10"]
    assert table.items_vocabulary().names() == ["10", "9", "b"]
    texts = put(tmp_path / "e", interactions={"user": ["10", "9"], "item": ["010", "9"]})
    assert read_prepared(texts).interactions.users_vocabulary().names() == ["9", "10"]
    assert read_prepared(texts).interactions.items_vocabulary().names() == ["9", "010"]


def test_side_tables_are_aligned_to_those_who_interact(tmp_path: Path) -> None:
    folder = put(
        tmp_path / "d",
        interactions={"user": [7, 5, 5], "item": ["x", "y", "x"], "timestamp": [3, 1, 2]},
        users={"user": [1, 5, 7], "gender": ["F", "M", None], "age": [30, 40, 50]},
        items={"item": ["z", "y", "x"], "category": ["c", "b", "a"], "city": ["Z", "Y", "X"]},
    )
    dataset = read_prepared(folder)
    assert dataset.interactions.n_users == 2
    assert dataset.user_attributes["gender"].texts() == ["M", ""]
    assert dataset.user_attributes["gender"].codes.tolist() == [0, -1]
    assert dataset.user_attributes["age"].texts() == ["40", "50"]
    assert dataset.item_categories == (("a",), ("b",))
    assert dataset.item_attributes["city"].texts() == ["X", "Y"]
    assert dataset.title(0) == "x"


def test_repeated_events_collapse_and_are_counted(tmp_path: Path) -> None:
    events = {"user": [1, 1, 1], "item": [4, 4, 5], "timestamp": [9, 3, 1]}
    dataset = read_prepared(put(tmp_path / "d", interactions=events))
    assert dataset.interactions.timestamps is not None
    assert dataset.interactions.timestamps.tolist() == [9, 1]
    assert "3 events, 1 repeated" in dataset.provenance


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([1_600_000_000, 1_600_000_001], [1_600_000_000, 1_600_000_001]),
        ([1_600_000_000_500, 1_600_000_001_000], [1_600_000_000, 1_600_000_001]),
        ([1_600_000_000 * 10**9, 1_600_000_001 * 10**9], [1_600_000_000, 1_600_000_001]),
        ([-5, 3], [-5, 3]),
        ([1_600_000_000.9, 1_600_000_001.0], [1_600_000_000, 1_600_000_001]),
        (["2020-09-13 12:26:40", "2020-09-13T12:26:41"], [1_600_000_000, 1_600_000_001]),
        (
            np.array([1_600_000_000, 1_600_000_001], "datetime64[s]").astype("datetime64[us]"),
            [1_600_000_000, 1_600_000_001],
        ),
    ],
)
def test_times_come_in_several_forms(tmp_path: Path, times: Any, expected: list[int]) -> None:
    events = {"user": [1, 1], "item": [1, 2], "timestamp": times}
    table = read_prepared(put(tmp_path / "d", interactions=events)).interactions
    assert table.timestamps is not None
    assert table.timestamps.tolist() == expected


def test_writing_and_reading_gives_the_same(tmp_path: Path) -> None:
    town = generate_town(TownConfig(residents=50, venues=60))
    table = town.interactions
    rated = replace(
        town,
        interactions=replace_ratings(table, np.arange(table.n_interactions) % 5),
        provenance="a made-up town",
    )
    folder = write_prepared(rated, tmp_path / "root" / "small")
    again = read_prepared(folder)
    assert again.fingerprint() == rated.fingerprint()
    assert again.provenance == "a made-up town"
    assert again.name == "small"
    assert [p.name for p in folder.parent.iterdir()] == ["small"]


def replace_ratings(table: Interactions, ratings: Any) -> Interactions:
    return Interactions(
        table.indptr,
        table.items,
        table.n_items,
        table.timestamps,
        ratings,
        table.user_ids,
        table.item_ids,
    )


def test_every_part_counts_in_the_fingerprint() -> None:
    town = generate_town(TownConfig(residents=30, venues=40))
    table = town.interactions
    gender = town.attribute("gender")
    assert town.item_titles is not None
    assert town.item_categories is not None
    others = [
        replace(town, interactions=replace_ratings(table, np.ones(table.n_interactions))),
        replace(town, user_attributes={"gender": Labels(1 - gender.codes, gender.values)}),
        replace(town, item_titles=("Altro", *town.item_titles[1:])),
        replace(town, item_categories=(("Food", "Altro"), *town.item_categories[1:])),
    ]
    prints = {d.fingerprint() for d in [town, *others]}
    assert len(prints) == 5
    assert replace(town, name="other").fingerprint() == town.fingerprint()


def test_data_sets_travel_between_processes() -> None:
    town = generate_town(TownConfig(residents=30, venues=40))
    assert pickle.loads(pickle.dumps(town)).fingerprint() == town.fingerprint()


def test_a_data_set_is_not_overwritten_unless_told(tmp_path: Path) -> None:
    first = generate_town(TownConfig(residents=30, venues=40))
    second = generate_town(TownConfig(residents=31, venues=40))
    folder = write_prepared(first, tmp_path / "d")
    with pytest.raises(DataError, match="exists already"):
        write_prepared(second, folder)
    assert read_prepared(folder).fingerprint() == first.fingerprint()
    write_prepared(second, folder, overwrite=True)
    assert read_prepared(folder).fingerprint() == second.fingerprint()
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_folder_that_is_no_data_set_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "thesis.txt").write_text("do not lose me")
    with pytest.raises(DataError, match="no data set"):
        write_prepared(generate_town(TownConfig(residents=5)), tmp_path / "d", overwrite=True)
    assert (tmp_path / "d" / "thesis.txt").exists()


def test_a_failed_write_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = generate_town(TownConfig(residents=30, venues=40))
    folder = write_prepared(first, tmp_path / "d")

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(DataError, match="no space left"):
        write_prepared(first, folder, overwrite=True)
    assert read_prepared(folder).fingerprint() == first.fingerprint()
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_failed_swap_brings_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = generate_town(TownConfig(residents=30, venues=40))
    folder = write_prepared(first, tmp_path / "d")
    rename = Path.rename

    def jam(source: Path, target: Path) -> Path:
        if source.name.endswith(".partial"):
            raise OSError("device is busy")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", jam)
    with pytest.raises(DataError, match="busy"):
        write_prepared(generate_town(TownConfig(residents=9)), folder, overwrite=True)
    assert read_prepared(folder).fingerprint() == first.fingerprint()
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"interactions": {"user": [1]}}, r"interactions.parquet has no column 'item'.*user"),
        ({"interactions": {"user": [1], "item": [1], "time": [2]}}, "column 'time'"),
        ({"interactions": {"user": [1, None], "item": [1, 2]}}, "column user: row 2 is empty"),
        ({"interactions": {"user": ["a", ""], "item": [1, 2]}}, "without id"),
        ({"interactions": {"user": [1.5], "item": [1]}}, "column user.*whole numbers"),
        ({"interactions": {"user": [1], "item": [1], "timestamp": ["noon"]}}, "must hold times"),
        ({"interactions": {"user": [1], "item": [1], "rating": ["good"]}}, "must hold numbers"),
        ({"interactions": {"user": [1], "item": [1], "timestamp": [True]}}, "must hold times"),
        ({"interactions": {"user": [1], "item": [1], "timestamp": [np.nan]}}, "must hold times"),
        ({"interactions": {"user": [1], "item": [1], "rating": [1e300]}}, "row 1 is not a finite"),
        ({"interactions": {"user": ["a" * 5000], "item": [1]}}, "has 5,000 characters"),
        ({"interactions": {"user": ["9" * 5000], "item": [1]}}, "has 5,000 characters"),
        ({"interactions": {"user": ["a\0", "a"], "item": [1, 2]}}, "NUL"),
        ({"interactions": {"user": [1], "item": [1], "split": ["dev"]}}, "not 'dev'"),
        ({"interactions": {"user": [1], "item": [1], "split": [["test"]]}}, "column split"),
        (
            {
                "interactions": {"user": [1], "item": [1]},
                "items": {"item": [1], "categories": ["abc"]},
            },
            "column categories: it must hold lists of texts",
        ),
        (
            {
                "interactions": {"user": [1], "item": [1]},
                "items": {"item": [1], "categories": [["a", None]]},
            },
            "column categories: row 1 must be a list of texts",
        ),
        (
            {"interactions": {"user": pa.array([], "int64"), "item": pa.array([], "int64")}},
            "holds no",
        ),
        (
            {
                "interactions": {"user": [1], "item": [1]},
                "users": {"user": [1, 1], "a": ["x", "y"]},
            },
            "the users of d: ids must be present and occur once",
        ),
        (
            {"interactions": {"user": [1], "item": [1]}, "items": {"item": [8], "title": ["x"]}},
            "the items of d: none of the ids",
        ),
        (
            {"interactions": {"user": [1], "item": [1]}, "items": {"title": ["x"]}},
            r"items.parquet has no column 'item'",
        ),
    ],
)
def test_corrupt_files_are_named_with_the_reason(
    tmp_path: Path, files: dict[str, dict[str, Any]], reason: str
) -> None:
    folder = put(tmp_path / "d", **files)
    with pytest.raises(CorruptData, match=reason):
        read_prepared(folder)


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    folder = put(tmp_path / "d", interactions={"user": [1], "item": [1]})
    whole = (folder / "interactions.parquet").read_bytes()
    (folder / "interactions.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptData, match=r"interactions.parquet cannot be read"):
        read_prepared(folder)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    twice = pa.Table.from_arrays([pa.array([1])] * 3, names=["user", "item", "user"])
    pq.write_table(twice, tmp_path / "d" / "interactions.parquet")
    with pytest.raises(CorruptData, match="two columns of one name"):
        read_prepared(tmp_path / "d")


def test_folders_above_are_not_taken_for_columns(tmp_path: Path) -> None:
    folder = put(tmp_path / "date=2020" / "d", interactions={"user": [1], "item": [1]})
    assert read_prepared(folder).interactions.n_interactions == 1


@pytest.mark.parametrize("ids", [["9" * 25, "1"], ["-5", "7"], ["007", "7"], ["é", "e\u0301"]])
def test_unusual_ids_survive_a_round_trip(tmp_path: Path, ids: list[str]) -> None:
    events = {"user": ids, "item": ids[::-1]}
    dataset = read_prepared(put(tmp_path / "d", interactions=events))
    again = read_prepared(write_prepared(dataset, tmp_path / "e"))
    assert again.fingerprint() == dataset.fingerprint()
    assert set(again.interactions.users_vocabulary().names()) == set(ids)


def test_numbered_names_are_known_only_as_they_are_written() -> None:
    names = Vocabulary.numbered(10)
    assert (names.index("7"), "7" in names) == (7, True)
    for other in ("07", "٧", "-1", "10", "", "9" * 5000):
        assert other not in names
        with pytest.raises(DataError, match="not known"):
            names.index(other)


@pytest.mark.parametrize(
    ("negatives", "reason"),
    [
        (["0", "1"], "must hold lists"),
        (pa.array([[], []], pa.list_(pa.int64())), "at least one"),
        ([[0], None], "same number"),
        ([[0], [0, 1]], "same number"),
    ],
)
def test_candidates_must_be_lists_of_one_length(
    tmp_path: Path, negatives: Any, reason: str
) -> None:
    events = {"user": [4, 4, 5], "item": [0, 1, 2], "split": ["train", "test", "train"]}
    candidates = {"user": [5, 4], "negatives": negatives}
    folder = put(tmp_path / "d", interactions=events, candidates=candidates)
    with pytest.raises(CorruptData, match=reason):
        read_prepared(folder)


def test_candidates_must_be_known_items(tmp_path: Path) -> None:
    events = {"user": [4, 4, 5], "item": [0, 1, 2], "split": ["train", "test", "train"]}
    candidates = {"user": [5, 4], "positive": [2, 1], "negatives": [[0, 9], [0, 1]]}
    folder = put(tmp_path / "d", interactions=events, candidates=candidates)
    with pytest.raises(CorruptData, match=r"candidates.parquet names an id"):
        read_prepared(folder)
    good = {"user": [5, 4], "positive": [2, 1], "negatives": [[1, 0], [2, 0]]}
    dataset = read_prepared(put(folder, candidates=good))
    assert dataset.published is not None
    assert dataset.published.held_out.tolist() == [False, True, False]
    again = read_prepared(write_prepared(dataset, tmp_path / "e"))
    assert again.fingerprint() == dataset.fingerprint()
    assert again.published is not None
    assert again.published.negatives is not None
    assert again.published.negatives.tolist() == [[2, 0], [1, 0]]


def test_named_sets_are_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "mine"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache = tmp_path / "cache" / "sottovoce" / "data"
    put(tmp_path / "mine" / "a", interactions={"user": [1], "item": [1]})
    put(cache / "a", interactions={"user": [1, 2], "item": [1, 1]})
    put(cache / "b", interactions={"user": [1, 2], "item": [1, 1]})
    put(cache / ".b.12.partial", interactions={"user": [1], "item": [1]})
    (cache / "notes").mkdir()
    assert list(available()) == ["town", "a", "b"]
    assert load("a").interactions.n_users == 1
    assert load("b").interactions.n_users == 2
    assert prepared_root() == tmp_path / "mine"
    assert list(available(cache)) == ["town", "a", "b"]
    assert load("a", cache).interactions.n_users == 2
    assert load("town").name == "town"
    with pytest.raises(DataNotFound, match=r"no data set 'c'.*town, a, b.*data import c PATH"):
        load("c")
    monkeypatch.delenv("SOTTOVOCE_DATA")
    assert prepared_root() == cache


@pytest.mark.parametrize("name", ["town", "../up", "", ".hidden", "a b", "a/b"])
def test_names_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        prepared_folder(name)


def test_describe_is_plain_and_right(tmp_path: Path) -> None:
    events = {"user": [1, 1, 1, 2], "item": [1, 2, 3, 1], "timestamp": [0, 60, 120, 86_400]}
    users = {"user": [1, 2], "gender": ["F", "M"]}
    told = read_prepared(put(tmp_path / "d", interactions=events, users=users)).describe()
    assert (told["users"], told["items"], told["interactions"]) == (2, 3, 4)
    assert told["density"] == pytest.approx(4 / 6)
    assert told["interactions_per_user"]["median"] == 2.0
    assert told["time_range"] == ["1970-01-01T00:00:00", "1970-01-02T00:00:00"]
    assert told["attributes"] == {"gender": 2}


def test_an_unknown_attribute_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="'shoe size'; it has: gender, age"):
        generate_town(TownConfig(residents=5)).attribute("shoe size")


REAL = {
    "movielens-1m": (6_040, 3_706, 1_000_209, 18, {"gender": 2, "age": 7, "occupation": 21}),
    "movielens-100k": (943, 1_682, 100_000, 19, {"gender": 2, "occupation": 21}),
    "foursquare-italy": (6_596, 34_332, 89_616, 402, {}),
    "douban-book": (6_368, 22_347, 647_263, 0, {"location": 364}),
    "movielens-1m-ncf": (6_040, 3_706, 1_000_209, 0, {}),
}


@pytest.mark.data
@pytest.mark.parametrize("name", REAL)
def test_real_sets_have_their_official_counts(name: str, real: Callable[[str], Dataset]) -> None:
    users, items, interactions, categories, attributes = REAL[name]
    told = real(name).describe()
    assert (told["users"], told["items"], told["interactions"]) == (users, items, interactions)
    assert told["categories"] == categories
    assert attributes.items() <= told["attributes"].items()


def test_labels_keep_unknown_apart_and_order_numbers_as_numbers() -> None:
    labels = Labels.of(["10", "", "9", "10"])
    assert labels.values == ("9", "10")
    assert labels.codes.tolist() == [1, -1, 0, 1]
    few = labels.take(np.array([0, 1]))
    assert few.values == ("9", "10")
    assert few.canonical().values == ("10",)
    assert few.canonical().texts() == ["10", ""]
    with pytest.raises(CorruptData, match="outside its values"):
        Labels(np.array([2], dtype=np.int32), ("a", "b"))
