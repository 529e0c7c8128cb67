"""Recommendations to a person who was never in training, on the command line."""

import json

import pytest

import sottovoce as sv
import sottovoce.cli
from sottovoce.data.importers.table import read_history


@pytest.fixture(scope="module")
def run(parts, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "fcf"
    sv.fit(sv.FCF(rounds=2), parts, out=out)
    return out


def command(capsys, *words):
    code = sottovoce.cli.call([str(word) for word in words])
    return code, capsys.readouterr()


def test_items_and_files_of_items(run, tmp_path, capsys):
    mine = ["v0003", "v0010", "v0022"]
    wanted = sv.open_run(run).recommend(history=mine, n=4).items
    files = {
        "bare.txt": "v0003\nv0010\nv0022\n",
        "list.json": json.dumps(mine),
        "one.csv": "item\nv0003\nv0010\nv0022\n",
        "times.csv": "when,venue_id\n2024-05-03,v0022\n2024-05-01,v0003\n2024-05-02,v0010\n",
        "windows.tsv": "\ufeffitem\ttimestamp\r\nv0003\t1700000000\r\nv0010\t1700000001\r\n"
        "v0022\t1700000002\r\n",
    }
    ways = [("--items", ",".join(mine))]
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode())
        assert read_history(tmp_path / name) == mine
        ways.append(("--history", tmp_path / name))
    for way in ways:
        code, said = command(capsys, "recommend", run, *way, "-n", 4, "--json")
        found = json.loads(said.out)
        assert code == 0
        assert found["history"] == mine
        assert [row["item"] for row in found["recommendations"]] == wanted
    code, said = command(capsys, "recommend", run, "--items", "v0003")
    assert code == 0
    assert "who was not in" in said.out


def test_a_history_on_the_page_of_one_user_is_hers_alone(run, history_of, capsys):
    ways = ("--user", "r0003"), ("--items", ",".join(history_of("r0003")))
    lists = [
        json.loads(command(capsys, "recommend", run, *way, "--json")[1].out)["recommendations"]
        for way in ways
    ]
    assert lists[0] == lists[1]


BAD = {
    "nobody": ((), "say to whom, by one of --user, --items and --history"),
    "two": (("--user", "r0003", "--items", "v0003"), "by one of --user, --items and --history"),
    "unknown": (("--items", "v0003,nowhere"), "nobody in training has the item 'nowhere'"),
    "nothing": (("--items", " , "), "a history needs at least one item"),
    "no file": (("--history", "no-such.csv"), "no-such.csv cannot be read"),
    "none": (("--items", "v0003", "-n", "0"), "-n must be at least 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_asked(case, run, capsys):
    words, sentence = BAD[case]
    code, said = command(capsys, "recommend", run, *words)
    assert code in (2, 3)
    assert sentence in " ".join(said.err.split())


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("empty.csv", "", "has no items"),
        ("odd.json", '{"item": 3}', "must be a JSON list of items"),
        ("odd.csv", "who,what\na,b\n", "no column looks like the item"),
        ("short.csv", "item,time\nv0003\n", "more or fewer fields"),
        ("when.csv", "item,time\nv0003,2024-05-01\nv0010,soon\n", "line 3: column time: 'soon' is"),
    ],
)
def test_files_that_are_no_history(name, text, sentence, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(sv.SottovoceError, match=sentence):
        read_history(tmp_path / name)
