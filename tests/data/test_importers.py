"""Every importer against small files of the official form, good and bad."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sottovoce.data.dataset import Dataset
from sottovoce.data.importers import files as text
from sottovoce.data.importers import import_path
from sottovoce.data.prepared import write_prepared
from sottovoce.data.town import TownConfig, generate_town
from sottovoce.errors import ConfigError, CorruptData, DataError, DataNotFound

Files = dict[str, str | bytes]

FLAGS = "0|" * 18
ML100K: Files = {
    "u.data": "196\t242\t3\t881250949\n186\t302\t3\t891717742\n196\t302\t1\t878887116\n",
    "u.user": "186|39|F|executive|00000\n196|49|M|writer|55105\n200|40|M|programmer|93402\n",
    "u.item": (
        "242|Kolya (1996)|24-Jan-1997||http://x|0|0|0|0|0|1" + "|0" * 13 + "\n"
        '302|L\'été "confidentiel"|01-Jan-1997||http://y|' + FLAGS + "1\n"
    ).encode("latin-1"),
    "u.genre": "".join(f"G{g}|{g}\n" for g in range(19)) + "\n",
}
ML1M: Files = {
    "ratings.dat": "2::1193::5::978300760\n1::661::3::978302109\n10::1193::4::978301968\n",
    "users.dat": "1::F::1::10::48067\n2::M::56::16::70072\n10::F::35::1::95370\n",
    "movies.dat": (
        "661::James and the Giant Peach: a film (1996)::Animation|Children's\n"
        "1193::Misérables, Les (1995)::Drama\n1::Toy Story (1995)::Comedy\n"
    ).encode("latin-1"),
}
ML10M: Files = {
    "ratings.dat": "1::122::5::838985046\n1::185::3.5::838983525\n",
    "movies.dat": "122::Boomerang (1992)::Comedy|Romance\n185::Net, The (1995)::Action\n",
    "tags.dat": "15::4973::excellent!::1215184630\n",
}
ML20M: Files = {
    "ratings.csv": "userId,movieId,rating,timestamp\r\n"
    "1,2,3.5,1112486027\r\n1,11,4.0,1112484676\r\n",
    "movies.csv": 'movieId,title,genres\n2,"American President, The (1995)",Comedy|Drama\n'
    "11,Été,(no genres listed)\n",
    "tags.csv": "userId,movieId,tag,timestamp\n",
}
TIST: Files = {
    "dataset_TIST2015_Checkins.txt": (
        "50756\tv1\tTue Apr 03 18:00:06 +0000 2012\t120\n"
        "190571\tv2\tTue Apr 03 18:00:07 +0000 2012\t-180\n"
        "50756\tv1\tTue Apr 03 19:00:06 +0000 2012\t120\n"
        "50756\tv3\tMon Sep 16 22:40:46 +0000 2013\t120\n"
        "50756\tv9\tMon Sep 16 22:40:46 +0000 2013\t120\n"
    ),
    # The real file mixes encodings line by line.
    "dataset_TIST2015_POIs.txt": "v1\t45.4\t9.1\tCafé\tIT\n".encode()
    + "v3\t45.5\t9.2\tCafé\tIT\nv4\t45.5\t9.2\tPub\tIT\n".encode("latin-1")
    + b"v2\t-23.5\t-46.6\tBar\tBR\n",
    "dataset_TIST2015_Cities.txt": "Milan\t45.46\t9.19\tIT\tItaly\tProvincial capital\n",
}
BAD_TIME = "1\tv0\t?\t0\n1\tv1\tTue Apr 03 18:00:06 +0000 2012\t0\n1\tv1\tyesterday\t0\n"
DOUBAN: Files = {
    "user_book.dat": "1\t7\t4\n1\t8\t5\n2\t7\t3\n10\t7\t1\n",
    "user_location.dat": "1\t174\n2\t3\n",
}


def unpacked(folder: Path, files: Files) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)
    return folder


def zipped(path: Path, files: Files) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__MACOSX/._u.data", b"\x00\x05")
        for name, content in files.items():
            archive.writestr(f"{path.stem}/{name}", content)
    return path


def pairs(dataset: Dataset) -> set[tuple[str, str]]:
    table = dataset.interactions
    users, items = table.users_vocabulary(), table.items_vocabulary()
    columns = zip(table.users.tolist(), table.items.tolist(), strict=True)
    return {(users.name(u), items.name(i)) for u, i in columns}


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (ML100K, "movielens-100k"),
        (ML1M, "movielens-1m"),
        (ML10M, "movielens-10m"),
        (ML20M, "movielens-csv"),
        (TIST, "foursquare"),
        (DOUBAN, "douban-book"),
    ],
)
def test_zip_and_folder_are_told_apart_by_content(tmp_path: Path, files: Files, name: str) -> None:
    folder = import_path(unpacked(tmp_path / "anything", files))
    archive = import_path(zipped(tmp_path / "download.zip", files))
    assert folder.name == archive.name == name
    assert folder.fingerprint() == archive.fingerprint()
    assert "redistribution" in archive.provenance
    assert str(tmp_path) not in archive.provenance


def test_movielens_100k(tmp_path: Path) -> None:
    dataset = import_path(unpacked(tmp_path / "d", ML100K))
    assert pairs(dataset) == {("196", "242"), ("186", "302"), ("196", "302")}
    assert dataset.item_titles == ("Kolya (1996)", 'L\'été "confidentiel"')
    assert dataset.item_categories == (("G5",), ("G18",))
    assert dataset.attribute("gender").texts() == ["F", "M"]
    assert dataset.attribute("zip").texts() == ["00000", "55105"]
    table = dataset.interactions
    assert table.ratings is not None
    assert table.timestamps is not None
    assert table.ratings.tolist() == [3.0, 3.0, 1.0]
    assert table.timestamps.tolist() == [891717742, 881250949, 878887116]


def test_movielens_1m(tmp_path: Path) -> None:
    dataset = import_path(zipped(tmp_path / "ml-1m.zip", ML1M))
    assert dataset.interactions.users_vocabulary().names() == ["1", "2", "10"]
    assert dataset.attribute("age").texts() == ["1", "56", "35"]
    assert dataset.attribute("age").values == ("1", "35", "56")
    assert dataset.item_titles == (
        "James and the Giant Peach: a film (1996)",
        "Misérables, Les (1995)",
    )
    assert dataset.item_categories == (("Animation", "Children's"), ("Drama",))


def test_later_movielens_editions(tmp_path: Path) -> None:
    ten = import_path(unpacked(tmp_path / "ten", ML10M))
    assert ten.interactions.ratings is not None
    assert ten.interactions.ratings.tolist() == [5.0, 3.5]
    assert not ten.user_attributes
    twenty = import_path(unpacked(tmp_path / "twenty", ML20M), name="movielens-20m")
    assert twenty.name == "movielens-20m"
    assert twenty.item_titles == ("American President, The (1995)", "Été")
    assert twenty.item_categories == (("Comedy", "Drama"), ())


def test_foursquare_keeps_the_last_visit_unless_told(tmp_path: Path) -> None:
    folder = unpacked(tmp_path / "d", TIST)
    last = import_path(folder, country="IT")
    assert pairs(last) == {("50756", "v1"), ("50756", "v3")}
    assert last.item_categories == (("Café",), ("Café",))
    assert last.interactions.timestamps is not None
    assert last.interactions.timestamps.tolist() == [1333479606, 1379371246]
    assert "3 events, 1 repeated (user, item) events collapsed to the last" in last.provenance
    first = import_path(folder, country="ITALY", keep="first")
    assert first.interactions.timestamps is not None
    assert first.interactions.timestamps.tolist() == [1333476006, 1379371246]
    assert import_path(folder).interactions.n_items == 3
    with pytest.raises(DataError, match="no venue in 'FR'; it has the countries BR, IT"):
        import_path(folder, country="FR")


def test_blocks_do_not_change_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = unpacked(tmp_path / "d", TIST)
    whole = import_path(folder).fingerprint()
    monkeypatch.setattr(text, "BLOCK", 110)
    assert import_path(folder).fingerprint() == whole
    bad = str(TIST["dataset_TIST2015_Checkins.txt"]).replace("2013\t120\n", "2013\t12O\n")
    unpacked(folder, {"dataset_TIST2015_Checkins.txt": bad})
    with pytest.raises(CorruptData, match="line 4: offset is '12O'"):
        import_path(folder)


def test_douban(tmp_path: Path) -> None:
    dataset = import_path(unpacked(tmp_path / "d", DOUBAN))
    assert dataset.attribute("location").texts() == ["174", "3", ""]
    assert dataset.interactions.timestamps is None
    active = import_path(tmp_path / "d", min_user_items=2)
    assert active.interactions.users_vocabulary().names() == ["1"]
    assert active.attribute("location").texts() == ["174"]
    assert "at least 2 items" in active.provenance
    located = import_path(tmp_path / "d", require_attribute="location")
    assert located.interactions.users_vocabulary().names() == ["1", "2"]
    assert located.attribute("location").texts() == ["174", "3"]
    with pytest.raises(DataError, match="no user attribute 'shoe'"):
        import_path(tmp_path / "d", require_attribute="shoe")
    bare = import_path(unpacked(tmp_path / "e", {"user_book.dat": "1\t7\n2\t7\n"}))
    assert bare.interactions.ratings is None


@pytest.mark.parametrize(
    "content",
    [
        "userId,movieId,timestamp\nu1,m1,5\nu1,m2,7\n",
        '"User-ID";"ISBN";"When"\n"u1";"m1";"5"\n"u1";"m2";"7"\n',
        "user_id:token\titem_id:token\ttimestamp:float\nu1\tm1\t5.0\nu1\tm2\t7.0\n",
        "uid::asin::time\nu1::m1::1970-01-01 00:00:05\nu1::m2::1970-01-01 00:00:07\n",
        '\ufeff"user","item","date"\n"u1","m1","1970-01-01T00:00:05"\nu1,m2,1970-01-01 00:00:07\n',
    ],
)
def test_plain_tables_with_usual_names(tmp_path: Path, content: str) -> None:
    dataset = import_path(unpacked(tmp_path, {"events.csv": content}) / "events.csv")
    assert dataset.name == "events"
    assert pairs(dataset) == {("u1", "m1"), ("u1", "m2")}
    assert dataset.interactions.timestamps is not None
    assert dataset.interactions.timestamps.tolist() == [5, 7]


def test_plain_tables_with_named_columns(tmp_path: Path) -> None:
    file = unpacked(tmp_path, {"x.tsv": "who\twhat\tuser\nann\tpie\t3\n"}) / "x.tsv"
    named = import_path(file, columns={"user": "who", "item": "what"})
    assert pairs(named) == {("ann", "pie")}
    with pytest.raises(ConfigError, match=r"looks like the item .*who, what, user.*--column item="):
        import_path(file)
    with pytest.raises(ConfigError, match="no column 'whom'; it has: who, what, user"):
        import_path(file, columns={"user": "whom"})
    with pytest.raises(ConfigError, match="unknown column role 'colour'"):
        import_path(file, columns={"colour": "who"})


def test_parquet_tables_and_prepared_folders(tmp_path: Path) -> None:
    table = pa.table({"visitor_id": [3, 3], "item_id": ["a", "b"], "score": [1, 2], "x": [0, 0]})
    pq.write_table(table, tmp_path / "t.parquet")
    dataset = import_path(tmp_path / "t.parquet")
    assert pairs(dataset) == {("3", "a"), ("3", "b")}
    town = generate_town(TownConfig(residents=20, venues=40))
    again = import_path(write_prepared(town, tmp_path / "prepared"))
    assert again.fingerprint() == town.fingerprint()


@pytest.mark.parametrize(
    ("files", "changed", "reason"),
    [
        (ML1M, {"ratings.dat": "1::2::5::9\n1::3::4\n"}, r"ratings.dat, line 2: 3 fields where 4"),
        (ML1M, {"ratings.dat": "1::2::5::9\n\n1::x::4::1\n"}, "line 3: item is 'x'.*whole number"),
        (ML1M, {"ratings.dat": "1::2::good::9\n"}, "line 1: rating is 'good'.*not a number"),
        (ML1M, {"ratings.dat": ""}, r"ratings.dat is empty"),
        (ML1M, {"ratings.dat": "\n\n"}, r"ratings.dat is empty"),
        (ML1M, {"users.dat": "1::F::1::10\n"}, r"users.dat, line 1: 4 fields where 5"),
        (ML100K, {"u.item": "242|Kolya|x\n"}, "u.item, line 1: 3 fields where 24"),
        (ML20M, {"ratings.csv": "user,movie\n1,2\n"}, "no column 'userId' in its first line"),
        (ML20M, {"ratings.csv": "userId,movieId,rating,timestamp\n"}, "ratings.csv is empty"),
        (ML20M, {"ratings.csv": "userId,movieId,rating,timestamp\n1,2,3\n"}, "line 2: 3 fields"),
        (TIST, {"dataset_TIST2015_Checkins.txt": BAD_TIME}, "line 3: 'yesterday' is not a time"),
        (DOUBAN, {"user_book.dat": "1 7 4\n"}, "line 1: 1 fields where 2 or 3 belong"),
        (
            DOUBAN,
            {"user_book.dat": "1\t7\t4\n1\t\t4\n"},
            "column item.*without id",
        ),
    ],
)
def test_bad_files_are_named_with_line_and_reason(
    tmp_path: Path, files: Files, changed: Files, reason: str
) -> None:
    folder = unpacked(tmp_path / "d", {**files, **changed})
    with pytest.raises(CorruptData, match=reason):
        import_path(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("user,item,timestamp\na,b,noon\n", "t.csv, line 2: column timestamp: 'noon' is no time"),
        ("user,item,rating\na,b,high\n", "t.csv, line 2: column rating: 'high' is not a finite"),
        ('user,item,rating\n"a",b,high\n', "t.csv, line 2: column rating: 'high'"),
        ("user,item,rating\na,b,1\na,c,nan\n", "line 3: column rating: 'nan' is not a finite"),
        ("user,item,user\na,b,c\n", "t.csv has two columns 'user'"),
        ("user,item\na,b\n".encode("utf-16"), "t.csv is UTF-16"),
        ('user,item\n"' + "a" * 3_000_000 + "\n", "line 2: 1 fields where 2.*is a quote never"),
        ("", "t.csv is empty"),
    ],
    ids=range(8),
)
def test_bad_tables_are_named_with_the_reason(
    tmp_path: Path, content: str | bytes, reason: str
) -> None:
    unpacked(tmp_path, {"t.csv": content})
    with pytest.raises(CorruptData, match=reason):
        import_path(tmp_path / "t.csv")


def test_wrong_paths_are_answered(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="does not exist"):
        import_path(tmp_path / "nowhere.zip")
    fake = tmp_path / "fake.zip"
    fake.write_text("<html>not found</html>")
    with pytest.raises(CorruptData, match="is not a zip file"):
        import_path(fake)
    with pytest.raises(DataError, match=r"no download known here \(it holds a.csv, b.csv\)"):
        import_path(unpacked(tmp_path / "two", {"a.csv": "", "b.csv": ""}))
    with pytest.raises(DataNotFound, match=r"has no file u.genre"):
        import_path(
            unpacked(tmp_path / "half", {k: v for k, v in ML100K.items() if k != "u.genre"})
        )


def test_an_encrypted_zip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("t.csv", "user,item\na,b\n")
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag in the directory
    path.write_bytes(content)
    with pytest.raises(CorruptData, match=r"x.zip is encrypted"):
        import_path(path)


def test_a_damaged_zip_is_named(tmp_path: Path) -> None:
    path = zipped(tmp_path / "ml-1m.zip", {**ML1M, "ratings.dat": "1::2::5::9\n" * 5_000})
    data = bytearray(path.read_bytes())
    start = data.index(b"ratings.dat") + len("ratings.dat")
    data[start + 10 : start + 40] = bytes(30)
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptData, match=r"ratings.dat is damaged.*download it again"):
        import_path(path)


def test_options_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    folder = unpacked(tmp_path / "d", ML1M)
    with pytest.raises(ConfigError, match="country applies to foursquare alone"):
        import_path(folder, country="IT")
    with pytest.raises(ConfigError, match="apply to recbole, table alone"):
        import_path(folder, columns={"user": "x"})
    with pytest.raises(ConfigError, match="unknown kind 'netflix'; kinds are auto, movielens-100k"):
        import_path(folder, "netflix")
    with pytest.raises(ConfigError, match="keep must be"):
        import_path(folder, keep="best")  # type: ignore[arg-type]


@pytest.mark.data
def test_the_official_form_of_a_real_set_imports_to_the_same(
    tmp_path: Path, real: Callable[[str], Dataset]
) -> None:
    """MovieLens 100K written back in the official form, in shuffled order."""
    known = real("movielens-100k")
    table, genres = known.interactions, known.category_names()
    users, items = table.users_vocabulary().names(), table.items_vocabulary().names()
    assert table.ratings is not None
    assert table.timestamps is not None
    assert known.item_titles is not None
    columns = (table.users, table.items, table.ratings.astype(int), table.timestamps)
    rows = [
        f"{users[u]}\t{items[i]}\t{r}\t{t}\n"
        for u, i, r, t in zip(*(c.tolist() for c in columns), strict=True)
    ]
    order = np.random.default_rng(1).permutation(len(rows))
    sides = [known.attribute(a).texts() for a in ("age", "gender", "occupation", "zip")]
    flags = known.category_matrix().astype(int).astype(str).tolist()
    folder = unpacked(
        tmp_path / "ml-100k",
        {
            "u.data": "".join(rows[k] for k in order),
            "u.user": "".join("|".join(r) + "\n" for r in zip(users, *sides, strict=True)),
            "u.genre": "".join(f"{name}|{g}\n" for g, name in enumerate(genres)),
            "u.item": "".join(
                f"{item}|{title}||||{'|'.join(row)}\n"
                for item, title, row in zip(items, known.item_titles, flags, strict=True)
            ).encode("latin-1"),
        },
    )
    # Genres come in the order of their flags, which is alphabetical here and in the prepared set.
    assert import_path(folder).fingerprint() == known.fingerprint()
