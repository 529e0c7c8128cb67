"""Files as researchers have them: each is imported by one command, and a run learns from it."""

import gzip
import json
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sottovoce.data.importers import files, import_into
from sottovoce.data.sources import load
from sottovoce.errors import ConfigError, DataError

TINY = """
name = "tiny"

[algorithm]
configuration = "pFPL+"
embedding_size = 3
epochs = 1

[baselines.top-pop]
"""
USERS, ITEMS = 12, 15
EVENTS = [(u, (3 * u + 2 * k) % ITEMS, 1 + k % 5, 1_700_000_000 + 3600 * k + u)
          for u in range(USERS) for k in range(7)]  # fmt: skip
"""Everybody has seven items: the first four to learn from, one to tune on, two for the test."""


def part(index):
    return ("train", "train", "train", "train", "valid", "test", "test")[index % 7]


def lines(rows, mark=","):
    return "".join(mark.join(map(str, row)) + "\n" for row in rows)


def of(*names):
    return [event for n, event in enumerate(EVENTS) if part(n) in names]


def split_column(folder):
    rows = [(u, i, part(n).upper()) for n, (u, i, _, _) in enumerate(EVENTS)]
    (folder / "all.csv").write_text("userId,movieId,Split\n" + lines(rows))
    return [folder / "all.csv"], "published"


def three_files(folder):
    for name in ("train", "valid", "test"):
        rows = [(u, i, r) for u, i, r, _ in of(name)]
        (folder / f"my_{name}.tsv").write_text("uid\tsku\tstars\n" + lines(rows, "\t"))
    options = ["--train", "my_train.tsv", "--validation", "my_valid.tsv", "--test", "my_test.tsv"]
    return [folder / o if o.endswith("tsv") else o for o in options], "published"


def lists(folder):
    for name, parts in (("train", ("train", "valid")), ("test", ("test",))):
        rows = [[u, *(i for v, i, _, _ in of(*parts) if v == u)] for u in range(USERS)]
        rows.append([USERS])  # somebody without items
        (folder / f"{name}.txt").write_text(lines(rows, " "))
    (folder / "user_list.txt").write_text("org_id remap_id\n17 0\n")
    return [folder], "published"


def atomic_files(folder):
    rows = [(f"u{u}", f"i{i}", float(r), float(t)) for u, i, r, t in EVENTS]
    head = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    (folder / "mine.inter").write_text(head + lines(rows, "\t"))
    users = [(f"u{u}", "fm"[u % 2], 30.5) for u in range(USERS)]
    head = "user_id:token\tgender:token\theight:float\n"
    (folder / "mine.user").write_text(head + lines(users, "\t"))
    items = [(f"i{i}", f"Film number {i}", "Drama Comedy" if i % 2 else "Western", 1990 + i)
             for i in range(ITEMS)]  # fmt: skip
    head = "item_id:token\tmovie_title:token_seq\tclass:token_seq\trelease_year:token\n"
    (folder / "mine.item").write_text(head + lines(items, "\t"))
    return [folder], "temporal"


def headerless(folder):
    (folder / "ratings.dat").write_text(lines(EVENTS, "::"))
    return [folder / "ratings.dat", "--no-header", "--columns", "user,item,rating,time"], "temporal"


def parquet(folder):
    columns = [*zip(*EVENTS, strict=True)]
    times = pa.array([t * 1000 for t in columns[3]], pa.timestamp("ms", "Europe/Rome"))
    table = {"visitorid": columns[0], "business_id": columns[1], "seen": times}
    pq.write_table(pa.table(table), folder / "log.parquet")
    return [folder / "log.parquet"], "temporal"


def packed(folder):
    rows = [(u, i, t * 1000) for u, i, _, t in EVENTS]
    with gzip.open(folder / "log.csv.gz", "wt") as file:
        file.write("user,item,ts\n" + lines(rows))
    return [folder / "log.csv.gz"], "temporal"


def odd_table(folder):
    zones = ("Z", "+02:00", "-0330")
    rows = [
        ('"Zoë, ""Z"""' if u == 0 else f"u{u}", i, "web;app", f"{iso(t, u % 3)}{zones[u % 3]}")
        for u, i, _, t in EVENTS
    ]
    head = "device_agent;reviewerID;asin;last_played_at;note\r\n"
    text = head + "".join(f'"{how}";{u};{i};{t};\r\n' for u, i, how, t in rows)
    (folder / "odd.txt").write_bytes(text.encode("cp1252"))
    return [folder / "odd.txt"], "temporal"


def iso(seconds, zone):
    ahead = (0, 7200, -12600)[zone]
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds + ahead))


AWKWARD = [
    split_column, three_files, lists, atomic_files, headerless, parquet, packed, odd_table
]  # fmt: skip


@pytest.fixture
def call(sottovoce_, monkeypatch, tmp_path):
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "sets"))
    return sottovoce_


@pytest.mark.parametrize("make", AWKWARD, ids=lambda make: make.__name__)
def test_one_command_imports_an_awkward_file_and_a_run_learns_from_it(
    call, tmp_path, monkeypatch, make
):
    # Its figures take ten times as long as all else, and show nothing of how data came in.
    monkeypatch.setattr("sottovoce.runs.report.write_run_report", lambda outcome: tmp_path / "page")
    (tmp_path / "files").mkdir()
    arguments, split = make(tmp_path / "files")
    code, out, err = call("data", "import", "mine", *arguments, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["users"], found["items"], found["interactions"]) == (USERS, ITEMS, len(EVENTS))
    table = load("mine").interactions
    if split == "temporal":
        times = {(u, i): t for u, i, _, t in EVENTS}
        users = [int(n.removeprefix("u")) if "Z" not in n else 0
                 for n in table.users_vocabulary().names()]  # fmt: skip
        items = [int(n.removeprefix("i")) for n in table.items_vocabulary().names()]
        assert table.timestamps is not None
        assert [times[users[u], items[i]] for u, i in zip(table.users, table.items, strict=True)] \
            == table.timestamps.tolist()  # fmt: skip
    else:
        held_out = USERS * 2
        assert found["parts"]["test"] == held_out
        assert "published" in call("data", "import", "again", *arguments)[1]
    (tmp_path / "tiny.toml").write_text(TINY)
    for judged in ("test", "validation"):
        done = call(
            "run", tmp_path / "tiny.toml", "--set", "data.source=mine", "--set",
            f"data.split={split}", "--set", f"data.part={judged}", "--out", tmp_path / judged,
            "--json",
        )  # fmt: skip
        assert done[0] == 0, done[2]
        assert 0 <= json.loads(done[1])["results"]["pFPL+"]["P@10"] <= 1


def test_what_was_decided_is_said(call, tmp_path):
    code, out, _ = call("data", "import", "mine", *odd_table(tmp_path)[0])
    assert code == 0
    for words in (
        "user: column reviewerID", "item: column asin", "timestamp: column last_played_at, ISO",
        "left out: columns device_agent, note", "separated by: ;",
        f"Windows-1252 for {len(EVENTS) // USERS} lines",
    ):  # fmt: skip
        assert words in out
    assert 'Zoë, "Z"' in load("mine").interactions.users_vocabulary().names()
    out = call("data", "import", "films", *atomic_files(tmp_path)[0], "--kind", "recbole")[1]
    assert "height:float of mine.user" in out
    films = load("films")
    assert films.attribute("gender").texts()[0] == "f"
    assert films.item_categories is not None
    assert set(films.item_categories[1]) == {"Drama", "Comedy"} or films.item_categories[0]
    assert films.title(0) == "Film number 0"
    assert set(films.item_attributes) == {"release_year"}


def test_ready_splits_keep_their_parts(call, tmp_path):
    assert call("data", "import", "mine", *three_files(tmp_path)[0])[0] == 0
    published = load("mine").published
    assert published is not None
    assert published.validation is not None
    assert int(published.validation.sum()) == USERS
    assert int(published.held_out.sum()) == 2 * USERS
    error = call("run", "papers/fpl", "--set", "data.source=mine", "--out", tmp_path / "no")
    assert (error[0], "published" in error[2]) == (3, True)
    assert not (tmp_path / "no").exists()


def test_data_that_a_papers_system_cannot_learn_from_are_refused_in_a_sentence(call, tmp_path):
    """Without ratings there are no dislikes, and without attributes nothing to hide."""
    rows = [(u, i, t) for u, i, _, t in EVENTS]
    (tmp_path / "seen.csv").write_text("user,item,timestamp\n" + lines(rows))
    assert call("data", "import", "mine", tmp_path / "seen.csv")[0] == 0
    for name, said in (
        (
            "drift",
            "mine has no ratings; take data that have both, such as town or movielens-100k; "
            'algorithm.negatives = "untouched" needs no ratings',
        ),
        (
            "uc",
            "hidden attribute 'gender' is not among the data's []; take data that have it, or name "
            "others in hidden_attributes",
        ),
    ):
        out = tmp_path / name
        code, _, error = call("run", f"papers/{name}", "--set", "data.source=mine", "--out", out)
        assert (code, said in " ".join(error.split())) == (2, True), error
        assert not out.exists()


JUNK = [
    b"", b"\n\n\n", b"user\n1\n", b"user,item\n1\n", b"user,item\n,\n", b'user,item\n"1,2\n3,4\n',
    b"user,item,time\n1,2,soon\n", b"\x00\x01\x02" * 99, b"user,item\n" + b"a" * 5000 + b",1\n",
    b"PAR1 not really", b"\x1f\x8b nothing packed", b"user,item\n1,2\x00\n",
    b"1 2 3\n4 5\n\x00 1\n",
    b"user,item,split\n1,2,elsewhere\n", b"user,item,rating\n1,2,1e99\n", b"\xff\xfeu\x00",
]  # fmt: skip


@pytest.mark.parametrize("name", ["x.csv", "x.txt", "x.inter", "x.parquet", "x.csv.gz", "x.zst"])
def test_junk_gives_one_sentence_and_nothing_is_written(tmp_path, name):
    for content in JUNK:
        (tmp_path / name).write_bytes(content)
        with pytest.raises((DataError, ConfigError)) as told:
            import_into(tmp_path / "sets" / "mine", tmp_path / name)
        assert "\n" not in str(told.value).strip()
        assert not (tmp_path / "sets").exists()


@pytest.mark.parametrize("block", [1 << 8, 1 << 25])
def test_bad_rows_are_named_or_skipped_and_counted(call, tmp_path, monkeypatch, block):
    monkeypatch.setattr(files, "BLOCK", block)
    rows = [f"{n % 50},{n % 31},{n % 5 + 1}" for n in range(3000)]
    rows[2998], rows[100] = "7,8,many", '9,"a\nb",3'  # which moves later lines by one
    (tmp_path / "t.csv").write_text("user,item,rating\n" + "\n".join(rows) + "\n")
    code, _, err = call("data", "import", "mine", tmp_path / "t.csv")
    assert (code, err.count("\n")) == (3, 1)
    assert "line 3001: column rating: 'many' is not a finite number; --skip-bad" in err
    rows[50] = "1,2"
    (tmp_path / "t.csv").write_text("user,item,rating\n" + "\n".join(rows) + "\n")
    assert "line 52: 2 fields where 3" in call("data", "import", "mine", tmp_path / "t.csv")[2]
    out = call("data", "import", "mine", tmp_path / "t.csv", "--skip-bad")[1]
    assert "skipped: 2 rows that could not be read, the first in line 52" in out


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("1,2,5\n1,3,4\n", [], "say --no-header and --columns"),
        ("1,2,5\n1,3,4\n", ["--no-header"], "3 columns without names"),
        ("1,2,5\n1,3,4\n", ["--no-header", "--columns", "user,item"], "_ for one"),
        ("user,item\n1,2\n", ["--columns", "a,b"], "say --no-header"),
        ("user,asin,isbn\n1,2,3\n", [], "--column item=asin"),
        ("user,item,first_seen,last_seen\n1,2,2024-05-01,2024-05-02\n", [],
         "--column timestamp=- for none"),
        ("user,item\n1,2\n", ["--column", "item=-"], "every event needs"),
        ("user,item\n1,2\n", ["--train", "x.csv"], "--test is missing"),
        ("user,item\n1,2\n", ["--train", "x.csv", "--test", "x.csv"], "not both"),
        ("user,item\n1,2\n", ["--country", "IT"], "country applies"),
    ],
)  # fmt: skip
def test_what_is_open_is_asked_in_one_sentence(call, tmp_path, monkeypatch, text, options, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text(text)
    code, out, err = call("data", "import", "mine", "x.csv", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert not (tmp_path / "sets").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_import_that_is_stopped_leaves_nothing_behind(tmp_path, monkeypatch, call, number):
    """After a kill the next import of that name clears up."""
    (tmp_path / "x.csv").write_text("user,item\n" + "".join(f"{n},{n % 9}\n" for n in range(99)))
    code = (
        "import sys, time, sottovoce.cli\n"
        "from sottovoce.data.gathering import Gathering\n"
        "add = Gathering.add\n"
        "def slow(self, batch):\n"
        "    add(self, batch)\n"
        "    print('here', flush=True)\n"
        "    time.sleep(60)\n"
        "Gathering.add = slow\n"
        "sys.exit(sottovoce.cli.call(['data', 'import', 'mine', sys.argv[1]]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "x.csv")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    sets = tmp_path / "sets"
    if number == signal.SIGKILL:
        assert [p.name for p in sets.iterdir()] == [f".mine.{process.pid}.partial"]
    else:
        assert (process.returncode, "nothing was imported" in err) == (130, True)
        assert not sets.exists()
    assert call("data", "import", "mine", tmp_path / "x.csv")[0] == 0
    assert [p.name for p in sets.iterdir()] == ["mine"]
