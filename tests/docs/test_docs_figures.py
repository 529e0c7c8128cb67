"""The figures of the documents: drawn anew they are the same, they can be read, and what they show
is what the tables of the results say."""

import json
import re
import xml.etree.ElementTree as ET

import pytest

import facts
import figures
from sottovoce.core.links import SecureSum
from sottovoce.evaluation.plots import page_colours
from sottovoce.experiment import load_benchmark

SVG = "{http://www.w3.org/2000/svg}"
RESULTS = [
    p for p in (facts.ROOT / "docs").rglob("*.md") if "results" in str(p.relative_to(facts.ROOT))
]
FILES = sorted((figures.PLACE / "data").glob("*.json"))
NUMBER = re.compile(r"(?<![\w.])\d*\.?\d+")
RIVALS = {
    "gram, with time": "gram, with time, 8 bits",
    "gram, plain": "gram, plain, 8 bits",
    "private ALS (dpals)": "private ALS, defaults",
    "FMF-LDP, rotated": "FMF-LDP, rotated, k = 25",
}
"""What the table of the results calls a system of the study, if it is something else."""


@pytest.fixture(scope="module")
def drawn():
    return dict(figures.drawn())


def test_drawn_anew_the_figures_are_those_of_the_documents(drawn):
    assert {place.name for place in figures.PLACE.glob("*.svg")} == {p.name for p in drawn}
    old = [place.name for place, content in drawn.items() if place.read_text() != content]
    assert not old, "run `make figures`, look at them and commit them"


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_can_be_read_by_everybody(name, drawn):
    content = drawn[figures.PLACE / f"{name}.svg"]
    root = ET.fromstring(content)
    title, words = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert root.get("role") == "img"
    assert root.get("aria-labelledby").split() == [title.get("id"), words.get("id")]
    assert len(title.text) > 5
    assert len(words.text) > 100
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", content)]
    assert min(sizes) >= 15, "letters of less are too small on a phone"
    assert "var(" not in content
    assert float(root.get("width")) == figures.WIDE
    assert not re.search(r"https?://(?!www\.w3\.org)", content)


def test_every_colour_differs_between_light_and_dark(drawn):
    light, dark = page_colours()
    for content in drawn.values():
        used = set(re.findall(r"(?:fill|stroke): (#\w{6})", content))
        assert len(used) >= 3
        for colour in used:
            [name, *_] = [name for name, value in light.items() if value == colour]
            assert f'{colour}"]{{' in content, "it stays as it is on a dark page"
            assert light[name] != dark[name]


# --- what they show is in the documents -----------------------------------------------------------


def tables():
    """Every row of every table of the results: (label, headers, cells), without marks of bold."""
    for page in RESULTS:
        headers = []
        for line in page.read_text().splitlines():
            if not line.startswith("|"):
                headers = []
                continue
            cells = [
                cell.replace("**", "").replace("*", "").strip() for cell in line[1:-1].split("|")
            ]
            if not headers:
                headers = cells
            elif set(line) - set("|-: "):
                yield cells[0], headers, cells


def cell_of(label, column, beside=""):
    """What stands there, and beside it; a cell that is there twice is a mistake of the test."""
    found = [
        (cells[headers.index(column)], (*cells, "")[headers.index(column) + 1])
        for name, headers, cells in tables()
        if name == label and column in headers and (not beside or beside in headers)
    ]
    assert len(found) == 1, f"{len(found)} rows of docs/results are called {label!r}, {column!r}"
    return found[0]


def numbers(words):
    return [float(number) for number in NUMBER.findall(words)]


def by_name(name):
    return json.loads((figures.PLACE / "data" / f"{name}.json").read_text())


def test_there_is_data_and_it_says_where_it_is_from():
    assert [path.stem for path in FILES] == [
        "bench-distributed", "bench-fpl", "one-shot-rivals", "price-list",
    ]  # fmt: skip
    for path in FILES:
        content = json.loads(path.read_text())
        assert re.search(r"20\d\d-\d\d-\d\d", content["from"])
        kind = {"bench", "machine", "results"} if "bench" in content else {"name", "rows", "claims"}
        assert kind <= set(content)


@pytest.mark.parametrize(
    "row", by_name("price-list")["rows"], ids=lambda r: f"{r['system']} {r['way']}"
)
def test_the_price_list_is_that_of_the_results(row):
    label, column, number = row["cell"]
    accuracy, wins = cell_of(label, column, "" if row["system"] == "gram" else "wins")
    assert numbers(accuracy)[number] == row["P@10"]
    if row["system"] == "gram":
        return  # docs/privacy.md has its attacks
    won = wins.split(" / ")[number] if " / " in wins else wins
    once = re.findall(r"[AN]\d+", " ".join(re.findall(r"\(([^)]*)\)", won)))
    every = re.findall(r"[AN]\d+", re.sub(r"\([^)]*\)", "", won))
    assert (every, once) == (row["broken"], row["broken_once"])


def test_the_price_list_leaves_no_row_of_the_results_out():
    there = {label for label, headers, _ in tables() if "wins" in headers}
    assert there == {row["cell"][0] for row in by_name("price-list")["rows"]} - {"gram, with time"}


@pytest.mark.parametrize("row", by_name("bench-fpl")["results"], ids=lambda row: row["name"])
def test_speeds_are_those_of_the_results(row):
    if row["cell"] is None:
        assert all(words in text_of_results() for words in row["says"])
        assert row["says"]
        return
    label, column, number = row["cell"]
    found = numbers(cell_of(label, column)[0])
    assert found[number] * 1e6 == pytest.approx(row["value"])
    assert row["ratio"] == (found[1] if len(found) > 1 else None)


def test_rounds_of_devices_are_those_of_the_results_and_of_the_benchmark():
    flower, pfl, ours = by_name("bench-distributed")["results"]
    bench = load_benchmark("distributed")
    assert flower["value"] == pytest.approx(1e3 / bench.FLOWER_MS, rel=1e-3)
    assert pfl["value"] == pytest.approx(1e3 / bench.PFL_MS, rel=1e-3)
    assert all(words in text_of_results() for words in ours["says"])
    assert ours["value"] == pytest.approx(1e6 / numbers(ours["says"][0])[0], rel=1e-3)


def text_of_results():
    return " ".join(" ".join(page.read_text() for page in RESULTS).split())


@pytest.mark.parametrize(
    "row", by_name("one-shot-rivals")["rows"], ids=lambda row: f"{row['system']} {row['epsilon']}"
)
def test_accuracy_against_epsilon_is_that_of_the_results(row):
    shown = figures.figure_of(row["P@10"])
    if row["epsilon"] is None:
        name = row["system"].replace(", with", " with")
        assert re.search(rf"{name}\s+(has )?{re.escape(shown)}", text_of_results())
        return
    short = f"{row['epsilon']:g}".removeprefix("0")
    column = f"ε = {short}" if row["epsilon"] == 0.25 else short
    label = RIVALS.get(row["system"], row["system"])
    assert cell_of(label, column)[0] == shown


# --- what they show is in the source --------------------------------------------------------------


def test_a_party_sees_what_its_sight_table_says():
    assert figures.seen_by(SecureSum.sees, "proxy") == ["who takes part", "seeds of the masks"]
    new = {"proxy": {"MaskSeeds": frozenset({"round", "sender", "seeds", "age"})}}
    with pytest.raises(ValueError, match="age"):
        figures.seen_by(new, "proxy")
