"""From files of one's own to interactions: nothing is lost, added or changed on the way."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sottovoce.data import gathering as gather
from sottovoce.data.assembly import Keep
from sottovoce.data.dataset import Dataset
from sottovoce.data.importers import files as text
from sottovoce.data.importers import import_into, import_path
from sottovoce.data.importers.columns import choose_columns
from sottovoce.data.prepared import read_prepared, write_prepared
from sottovoce.data.splitting import published_split, published_validation
from sottovoce.data.times import seconds_of_texts
from sottovoce.errors import ConfigError, CorruptData, DataError, SottovoceError
from sottovoce.rng import Streams

Row = tuple[str, str, float, int]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and files of a few rows, so that edges fall everywhere."""
    monkeypatch.setattr(text, "BLOCK", 64)
    monkeypatch.setattr(gather, "AT_ONCE", 3)


def rows_of(dataset: Dataset) -> set[Row]:
    table = dataset.interactions
    users, items = table.users_vocabulary(), table.items_vocabulary()
    times = table.timestamps if table.timestamps is not None else np.zeros(len(table.items))
    ratings = table.ratings if table.ratings is not None else np.zeros(len(table.items))
    columns = (table.users, table.items, ratings, times)
    listed = zip(*(c.tolist() for c in columns), strict=True)
    return {(users.name(u), items.name(i), r, int(t)) for u, i, r, t in listed}


def collapsed(rows: list[Row], keep: Keep = "last") -> set[Row]:
    """Of each user and item the first or last in time, of equal times in the file."""
    kept: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=lambda row: row[3]):  # which leaves equal ones in their order
        if keep == "last" or row[:2] not in kept:
            kept[row[:2]] = row
    return set(kept.values())


IDS = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0\r"), min_size=1, max_size=12
) | st.integers(-20, 20).map(str)  # fmt: skip
ROWS = st.lists(
    st.tuples(IDS, IDS, st.integers(-8, 8).map(lambda n: n / 2), st.integers(0, 2**31)),
    min_size=1,
    max_size=12,
)


@pytest.mark.usefixtures("small")
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    rows=ROWS,
    mark=st.sampled_from(",;\t|"),
    packed=st.booleans(),
    keep=st.sampled_from(("first", "last")),
)
def test_any_ids_come_back_from_text(
    tmp_path: Path, rows: list[Row], mark: str, packed: bool, keep: Keep
) -> None:
    page = io.StringIO()
    writer = csv.writer(page, delimiter=mark, quoting=csv.QUOTE_ALL)
    writer.writerows([("user", "item", "rating", "timestamp"), *rows])
    content = page.getvalue().encode()
    file = tmp_path / ("t.csv.gz" if packed else "t.csv")
    file.write_bytes(gzip.compress(content, 1) if packed else content)
    assert rows_of(import_path(file, delimiter=mark, keep=keep)) == collapsed(rows, keep)


@pytest.mark.usefixtures("small")
@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=ROWS)
def test_any_ids_come_back_from_parquet_and_in_pieces(tmp_path: Path, rows: list[Row]) -> None:
    names = ("user", "item", "rating", "timestamp")
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    found = import_path(tmp_path / "t.parquet")
    assert rows_of(found) == collapsed(rows)
    folder = write_prepared(found, tmp_path / "again", overwrite=True)
    assert read_prepared(folder).fingerprint() == found.fingerprint()


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    batches=st.lists(
        st.lists(st.integers(-5, 30).map(str) | st.sampled_from(["07", "x", "٧"]), min_size=1),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_ids_are_numbered_once_whatever_they_look_like(batches: list[list[str]]) -> None:
    ids = gather.Ids()
    numbers = [ids.numbers(pa.array(batch), "here").tolist() for batch in batches]
    names = [str(name) for name in ids.names().to_pylist()]
    assert [[names[n] for n in row] for row in numbers] == batches
    assert sorted(names) == sorted({name for batch in batches for name in batch})


@pytest.mark.usefixtures("small")
def test_a_field_over_several_lines_is_never_cut(tmp_path: Path) -> None:
    note = 'she said ""no"",\nand, ""then"" ' + "x" * 50
    rows = "".join(f'u{n},"i,{n % 3}","{note}\n{n}"\n' for n in range(40))
    (tmp_path / "t.csv").write_text("user,item,note\n" + rows + 'u99,5" disk,plain\n')
    names = import_path(tmp_path / "t.csv").interactions.items_vocabulary().names()
    assert names == ['5" disk', "i,0", "i,1", "i,2"]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, "zst"])
def test_packed_tables(tmp_path: Path, pack: object) -> None:
    content = b"user,item\r\n1,2\r\n1,3\r\n"
    if pack == "zst":
        packed, suffix = bytes(pa.compress(content, "zstd", asbytes=True)), "zst"
    else:
        packed = pack(content)  # type: ignore[operator]
        suffix = {gzip.compress: "gz", bz2.compress: "bz2", lzma.compress: "xz"}[pack]  # type: ignore[index]
    (tmp_path / f"t.csv.{suffix}").write_bytes(packed)
    assert import_path(tmp_path / f"t.csv.{suffix}").interactions.n_interactions == 2
    (tmp_path / f"t.csv.{suffix}").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(CorruptData, match=r"damaged|empty"):
        import_path(tmp_path / f"t.csv.{suffix}")


@given(
    st.lists(
        st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).flatmap(
            lambda moment: st.sampled_from([None, 0, 60, -210, 765]).map(
                lambda zone: moment if zone is None
                else moment.replace(tzinfo=timezone(timedelta(minutes=zone)))
            )
        ),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_iso_times_are_what_python_reads(moments: list[datetime]) -> None:
    def seconds(moment: datetime) -> int:
        known = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return (known - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)

    texts = [moment.isoformat(sep="T" if k % 2 else " ") for k, moment in enumerate(moments)]
    assert seconds_of_texts(pa.array(texts)).to_pylist() == [*map(seconds, moments)]


def test_other_times_and_what_is_none() -> None:
    told = {
        "2024-05-01T10:00+02:00": 1714550400, "2024-05-01T10:00Z": 1714557600,
        "2024-05-01": 1714521600,
        "2019-10-01 00:00:00 UTC": 1569888000, "2024/05/01 10:00": 1714557600,
        "Tue Apr 03 18:00:06 +0000 2012": 1333476006, "06 1, 2013": 1370044800,
        "2024-02-30": None, "2024-05-01T25:00Z": None, "noon": None, "": None, "05/01/2024": None,
    }  # fmt: skip
    assert dict(zip(told, seconds_of_texts(pa.array(told)).to_pylist(), strict=True)) == told


TWO_DAYS = [1714521600, 1735603200]  # 1 May and 31 December 2024


def test_days_that_can_be_read_in_two_ways_are_asked_about(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("user,item,when\na,1,01/05/2024\na,2,06/07/2024\n")
    with pytest.raises(ConfigError, match=r"'01/05/2024' can be read in two ways; say --dates day"):
        import_path(tmp_path / "t.csv")
    for order, first in (("day-first", 1714521600), ("month-first", 1704412800)):
        table = import_path(tmp_path / "t.csv", dates=order).interactions
        assert table.timestamps is not None
        assert table.timestamps[0] == first
    (tmp_path / "t.csv").write_text("user,item,when\na,1,31/05/2024\na,2,06/17/2024\n")
    with pytest.raises(CorruptData, match=r"line 3: column when: '06/17/2024' is no time"):
        import_path(tmp_path / "t.csv")


def test_decimal_commas_and_large_ids(tmp_path: Path) -> None:
    ids = [str(2**63 + 7), "123e4567-e89b-12d3-a456-426614174000"]
    rows = "".join(
        f"{user};{ids[0]};{rating}\n" for user, rating in zip(ids, ("3,5", "-1"), strict=True)
    )
    (tmp_path / "t.csv").write_text("user;item;rating\n" + rows)
    assert rows_of(import_path(tmp_path / "t.csv")) == {
        (ids[0], ids[0], 3.5, 0),
        (ids[1], ids[0], -1.0, 0),
    }
    (tmp_path / "t.csv").write_text("user;item;rating\na;b;1,234\n")  # or one thousand
    with pytest.raises(CorruptData, match="line 2: column rating: '1,234' is not a finite number"):
        import_path(tmp_path / "t.csv")


JSON_ROWS = st.lists(
    st.tuples(IDS, IDS | st.integers(0, 9), st.floats(-9, 9, width=16)), min_size=1
)


@pytest.mark.usefixtures("small")
@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=JSON_ROWS, listed=st.booleans(), packed=st.booleans())
def test_any_events_come_back_from_json(
    tmp_path: Path, rows: list[tuple[str, str | int, float]], listed: bool, packed: bool
) -> None:
    objects = [{"user": u, "item": i, "rating": r, "seen": [1]} for u, i, r in rows]
    lines = [json.dumps(one) for one in objects]
    content = (json.dumps(objects) if listed else "\n".join(lines)).encode()
    file = tmp_path / ("t.json.gz" if packed else "t.json")
    file.write_bytes(gzip.compress(content, 1) if packed else content)
    expected = collapsed([(u, str(i), r, 0) for u, i, r in rows])
    assert rows_of(import_path(file)) == expected


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"user": 1, "item": 2}\n{"user": 1\n', "line 2 is no JSON"),
        ('{"user": 1, "item": 2}\n[1, 2]\n', "line 2 must be an object"),
        ('{"user": 1, "item": 2}\n{"user": 1, "item": true}\n', "row 2: item must be a text or"),
        ('{"user": 1, "item": 2}\n{"user": 1}\n', "line 2: column item: is empty"),
        ('[{"user": 1, "item": 2}, 3]', "entry 2 must be an object"),
        ("[]", "has no rows"),
        (" ", "is empty"),
    ],
)
def test_bad_json_is_named_with_line_and_reason(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "t.jsonl").write_text(content)
    with pytest.raises(CorruptData, match=reason):
        import_path(tmp_path / "t.jsonl")


@pytest.mark.parametrize("listed", [False, True])
def test_bad_json_is_left_out_on_request(tmp_path: Path, listed: bool) -> None:
    good = ['{"user": 1, "item": 2, "rating": 3}', '{"user": 4, "item": 5, "rating": 6}']
    bad = ["7", '{"user": 1, "item": true, "rating": 3}', '{"user": 1, "item": 2, "rating": []}']
    rows = [good[0], *bad, good[1]]
    file = tmp_path / "t.jsonl"
    file.write_text(f"[{','.join(rows)}]" if listed else "\n".join([*rows, '{"user": 1']))
    found = import_path(file, skip_bad=True)
    assert rows_of(found) == {("1", "2", 3.0, 0), ("4", "5", 6.0, 0)}


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (["1700000000", "1700000001.9"], [1700000000, 1700000001]),
        (["1700000000000", "1700000001000"], [1700000000, 1700000001]),
        (["1700000000000000", "1700000001000000"], [1700000000, 1700000001]),
        (["20240501", "20240502"], [1714521600, 1714608000]),
        (["2024-05-01", "2024-05-01T10:00:00-01:00"], [1714521600, 1714561200]),
        (["1/5/2024", "31/12/2024"], TWO_DAYS),
        (["05/01/2024", "12/31/2024"], TWO_DAYS),
        (["01.05.2024", "31.12.2024"], TWO_DAYS),
        (["01-05-2024 00:00", "31-12-2024 10:30:05"], [TWO_DAYS[0], TWO_DAYS[1] + 37805]),
    ],
)
def test_the_values_tell_how_times_are_written(
    tmp_path: Path, values: list[str], seconds: list[int]
) -> None:
    (tmp_path / "t.csv").write_text("user;item;when\n" + f"a;1;{values[0]}\na;2;{values[1]}\n")
    table = import_path(tmp_path / "t.csv").interactions
    assert table.timestamps is not None
    assert table.timestamps.tolist() == seconds


def test_columns_under_usual_and_unusual_names() -> None:
    def chosen(line: str, **sample: str) -> dict[str, str]:
        values = {name: [value] for name, value in sample.items()}
        return choose_columns(line.split(), {}, "t", values)

    amazon = chosen("overall reviewerID asin reviewerName unixReviewTime reviewTime")
    assert amazon == {
        "user": "reviewerID", "item": "asin", "timestamp": "unixReviewTime", "rating": "overall",
    }  # fmt: skip
    assert chosen("review_id user_id business_id stars date")["timestamp"] == "date"
    kept = chosen("user item bought_on birthday", bought_on="2024-05-01", birthday="1990-01-01")
    assert kept["timestamp"] == "bought_on"
    assert "timestamp" not in chosen("user item birth_date", birth_date="1990-01-01")
    assert chosen("user item date time", date="2024-05-01", time="10:00")["timestamp"] == "date"
    assert chosen("user item set", set="train")["split"] == "set"
    assert "split" not in chosen("user item set", set="3")
    with pytest.raises(ConfigError, match=r"item could be the column movie_id or asin.*item=movie"):
        chosen("user movie_id asin")


def test_parts_of_a_split_are_kept_through_files(tmp_path: Path) -> None:
    content = "user,item,split\na,1,Train\na,2, dev \na,3,TEST\nb,1,training\nb,1,test\n"
    (tmp_path / "t.csv").write_text(content)
    found = import_path(tmp_path / "t.csv")
    assert found.published is not None
    assert found.published.validation is not None
    # b's item is in two parts, and counts for the later one.
    assert found.published.held_out.tolist() == [False, False, True, True]
    assert found.published.validation.tolist() == [False, True, False, False]
    again = read_prepared(write_prepared(found, tmp_path / "again"))
    assert again.fingerprint() == found.fingerprint()
    assert "1 of them in two parts" in found.provenance
    split = published_split(found)
    assert (split.train.n_interactions, split.test.n_interactions) == (2, 2)


def splits(dataset: Dataset, seed: int) -> tuple[set[tuple[int, int]], set[tuple[int, int]], str]:
    found = published_validation(dataset, 0.2, "latest", Streams.from_seed(seed))
    train, test = (
        set(zip(part.users.tolist(), found.dataset_items(part.items).tolist(), strict=True))
        for part in (found.train, found.test)
    )
    return train, test, found.protocol


def with_parts(file: Path, rows: list[tuple[int, int, str]]) -> Dataset:
    file.write_text("user,item,split\n" + "".join(f"{u},{i},{p}\n" for u, i, p in rows))
    return import_path(file)


def test_validation_under_a_published_split_without_times(tmp_path: Path) -> None:
    rows = [(u, i, "test" if (u + i) % 5 == 0 else "train") for u in range(9) for i in range(20)]
    data = with_parts(tmp_path / "t.csv", rows)
    train, validation, protocol = splits(data, 1)
    assert train | validation == {(u, i) for u, i, p in rows if p == "train"}
    assert not train & validation
    assert len(validation) == 9 * 3  # floor(0.2 · 16) of each
    assert "random 0.2 of each user held out, within the training part of: published" in protocol
    assert splits(data, 1) == (train, validation, protocol)
    assert splits(data, 2)[1] != validation
    own = [(u, i, "valid" if p == "train" and i == u else p) for u, i, p in rows]
    found = splits(with_parts(tmp_path / "o.csv", own), 1)[1]
    assert found == {(u, i) for u, i, p in own if p == "valid"}


@pytest.mark.data
def test_the_published_split_of_a_real_set_has_a_validation_part(
    real: Callable[[str], Dataset],
) -> None:
    train, validation, _ = splits(real("gowalla"), 1)
    assert 0 < len(validation) < len(train) / 3


def test_lists_name_their_bad_line_and_users_without_items(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("7 1 2 3\n8\n\n 9  2\n")
    (tmp_path / "test.txt").write_text("7 4\n8 1 2")
    found = import_path(tmp_path)
    assert rows_of(found) == {
        (u, i, 0.0, 0) for u, i in ("71", "72", "73", "92", "74", "81", "82")
    }  # fmt: skip
    assert found.published is not None
    assert int(found.published.held_out.sum()) == 3
    (tmp_path / "test.txt").write_bytes(b"7 4 5\n8 1\0\n")
    with pytest.raises(CorruptData, match="NUL"):
        import_path(tmp_path, "lists")


def test_a_ready_split_outlives_the_filter_of_an_import(tmp_path: Path) -> None:
    content = "user,item,split\na,1,train\na,2,test\nb,9,train\n"
    (tmp_path / "t.csv").write_text(content)
    found = import_path(tmp_path / "t.csv", min_user_items=2)
    assert rows_of(found) == {("a", "1", 0.0, 0), ("a", "2", 0.0, 0)}
    assert found.published is not None
    assert "users with at least 2 items" in found.provenance
    with pytest.raises(DataError, match=r"nobody is left; ask for less than --min-user-items 3"):
        import_path(tmp_path / "t.csv", min_user_items=3)


def written(rows: int) -> Iterator[str]:
    yield "user,item,timestamp\n"
    for n in range(rows):
        yield f"u{n % 97},i{n * 31 % 89},{10**9 + n}\n"


def test_memory_does_not_grow_with_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's and numpy's; Arrow's own is bounded by the block."""
    monkeypatch.setattr(text, "BLOCK", 1 << 16)
    monkeypatch.setattr(gather, "AT_ONCE", 1 << 12)
    peaks = []
    for rows in (20_000, 80_000):
        with (tmp_path / "t.csv").open("w") as file:
            file.writelines(written(rows))
        before = pa.total_allocated_bytes()
        tracemalloc.start()
        done = import_into(tmp_path / f"out{rows}", tmp_path / "t.csv")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert done.interactions == 97 * 89
        assert pa.total_allocated_bytes() - before < 1 << 20
    assert peaks[1] < 1.3 * peaks[0]
    files = pq.ParquetFile(tmp_path / "out80000" / "interactions.parquet")
    assert files.metadata.num_row_groups > 5
    assert rows_of(read_prepared(tmp_path / "out80000")) == rows_of(import_path(tmp_path / "t.csv"))


FRAGMENTS = st.sampled_from(
    [b"user", b"item", b"rating", b"timestamp", b"split", b"user_id:token", b"item_id:float_seq",
     b",", b";", b"\t", b"::", b" ", b"\n", b"\r\n", b"\r", b'"', b'""', b"1", b"2", b"-7",
     b"1e400", b"nan", b"2024-05-01T10:00:00+02:00", b"2024-13-41", b"train", b"test", b"\0",
     b"\xff\xfe", b"\xef\xbb\xbf", b"\xe9", b"PAR1", b"\x1f\x8b\x08", b"9" * 40, b"x" * 1200, b""]
)  # fmt: skip


@pytest.mark.usefixtures("small")
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    content=st.lists(FRAGMENTS, max_size=40).map(b"".join),
    head=st.sampled_from([b"", b"user,item,rating,timestamp\n", b"user_id:token\titem_id:token\n"]),
    name=st.sampled_from(["x.csv", "x.txt", "x.inter", "x.parquet", "x.csv.gz"]),
    asked=st.sampled_from([{}, {"skip_bad": True}, {"header": False, "names": ["user", "item"]}]),
)
def test_whatever_a_file_holds_it_is_read_or_refused_in_one_sentence(
    tmp_path: Path, content: bytes, head: bytes, name: str, asked: dict[str, Any]
) -> None:
    (tmp_path / name).write_bytes(head + content)
    sets = tmp_path / "sets"
    shutil.rmtree(sets, ignore_errors=True)
    told = ""
    try:
        done = import_into(sets / "mine", tmp_path / name, **asked)
    except SottovoceError as error:
        told = str(error)
    assert "\n" not in told
    assert sets.exists() == (told == "")
    if not told:
        assert read_prepared(sets / "mine").interactions.n_interactions == done.interactions > 0
