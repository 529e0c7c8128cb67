from __future__ import annotations

import csv
import io
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sottovoce.errors import UsageError
from sottovoce.evaluation.tables import Cell, Column, Table

COLUMNS = (
    Column("system", "System"),
    Column("P@10", format=".4f", best="max"),
    Column("CCE", "Cost", format=",.0f", best="min"),
)
TABLE = Table(
    "Italy",
    COLUMNS,
    [
        {"system": "pFPL+", "P@10": Cell(0.05565, "*"), "CCE": 12345.0},
        {"system": "BPR-MF", "P@10": 0.0456, "CCE": 99},
        {"system": "VAE", "P@10": float("nan")},
    ],
    protocol="top 10; all training items",
    notes=("* p < 0.05",),
)


class Reader(HTMLParser):
    """Cells of a table by row, which of them are strong, and the tags seen."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.strong: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        while self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data
            if "strong" in self._open:
                self.strong.append(data)


def read(table: Table) -> Reader:
    reader = Reader()
    reader.feed(table.to_html())
    return reader


def test_markdown():
    assert TABLE.to_markdown() == (
        "**Italy**\n\n"
        "Protocol: top 10; all training items\n\n"
        "| System | P@10 | Cost |\n"
        "| --- | ---: | ---: |\n"
        "| pFPL+ | **0.0556\\*** | 12,345 |\n"
        "| BPR-MF | 0.0456 | **99** |\n"
        "| VAE | – | – |\n"
        "\n\\* p \\< 0.05\n"
    )


def test_csv_keeps_raw_values_and_marks_apart():
    rows = list(csv.DictReader(io.StringIO(TABLE.to_csv())))
    assert rows[0] == {"system": "pFPL+", "P@10": "0.05565", "P@10_mark": "*", "CCE": "12345.0"}
    assert rows[2]["CCE"] == ""


def test_html_is_accessible():
    reader = read(TABLE)
    assert reader.rows[0] == ["System", "P@10", "Cost"]
    assert reader.rows[1] == ["pFPL+", "0.0556*", "12,345"]
    assert reader.strong == ["0.0556*", "99"]
    scopes = [attrs["scope"] for tag, attrs in reader.tags if tag == "th"]
    assert scopes == ["col"] * 3 + ["row"] * 3
    assert "caption" in [tag for tag, _ in reader.tags]
    assert "top 10; all training items" in TABLE.to_html()


def test_terminal_shows_title_values_and_protocol():
    console = Console(file=io.StringIO(), width=100)
    console.print(TABLE.to_terminal())
    text = console.file.getvalue()
    for part in ("Italy", "0.0556*", "12,345", "Protocol: top 10", "* p < 0.05"):
        assert part in text


def test_markup_is_not_interpreted():
    table = Table("a [red]b", [Column("x[bold]")], [{"x[bold]": "[link=z]v[/link]"}])
    console = Console(file=io.StringIO(), width=100)
    console.print(table.to_terminal())
    assert "a [red]b" in console.file.getvalue()
    assert "[link=z]v[/link]" in console.file.getvalue()


@given(
    st.text(alphabet="<>&\"'|*_ab`[", min_size=1, max_size=12),
    st.text(alphabet="<>&\"'ab|", max_size=8),
)
def test_html_escapes_every_text(value, heading):
    plain = read(Table("t", [Column("k", "h")], [{"k": "v"}], protocol="p", notes=("n",)))
    table = Table(heading, [Column("k", heading)], [{"k": value}], protocol=value, notes=(value,))
    reader = read(table)
    assert [tag for tag, _ in reader.tags] == [tag for tag, _ in plain.tags]
    assert reader.rows == [[heading], [value]]


@given(st.text(alphabet="a|\\\n", max_size=8))
def test_markdown_cells_stay_in_their_row(value):
    table = Table("t", [Column("a"), Column("b")], [{"a": value, "b": "end"}])
    line = table.to_markdown().splitlines()[-1]
    bars = line.replace("\\\\", "").replace("\\|", "").count("|")
    assert bars == 3
    assert line.endswith("| end |")


def test_equal_texts_are_best_together():
    table = Table("t", [Column("v", format=".2f", best="max")], [{"v": 0.123}, {"v": 0.121}])
    assert read(table).strong == ["0.12", "0.12"]


def test_words_and_flags_are_never_best():
    table = Table("t", [Column("v", best="max")], [{"v": "z"}, {"v": True}, {"v": None}])
    assert read(table).strong == []
    assert [row[0] for row in read(table).rows] == ["v", "z", "yes", "–"]


def test_unknown_and_repeated_columns_are_refused():
    with pytest.raises(UsageError, match="no column 'z'"):
        Table("t", [Column("a")], [{"z": 1}])
    with pytest.raises(UsageError, match="two columns"):
        Table("t", [Column("a"), Column("a")], [])


def test_latex_is_escaped_and_marked():
    rows = [
        {"run": "a_b & 50% {x} [1] \\ ~^#$", "P": Cell(0.5, "†", 0.25)},
        {"run": "π ≤ ε*", "P": Cell(0.125, "‡")},
        {"run": "none\nat all", "P": None},
    ]
    columns = [Column("run", "run_#"), Column("P", "P@10", ".3f", "max")]
    text = Table("A & B", columns, rows, "top 10", ["† differs_ --all – x"]).to_latex()
    lines = text.splitlines()
    assert lines[2:6] == [
        r"\caption{A \& B}", r"\begin{tabular}{lr}", r"\toprule", r"run\_\# & P@10 \\",
    ]  # fmt: skip
    assert lines[7] == (
        r"a\_b \& 50\% \{x\} {[}1{]} \textbackslash{} \textasciitilde{}\textasciicircum{}\#\$ & "
        r"\textbf{0.500 $\pm$ 0.250}\textsuperscript{\textdagger{}} \\"
    )
    assert lines[8] == (
        r"$\pi$ $\le$ $\varepsilon${*} & 0.125\textsuperscript{\textdaggerdbl{}} \\"
    )
    assert lines[9] == r"none at all & -- \\"
    assert r"Protocol: top 10. \textdagger{} differs\_ -{}-all -- x" in text
    assert text.count("{") == text.count("}")
    assert lines[-1] == r"\end{table}"


def test_intervals_have_columns_of_their_own_in_csv():
    rows = [{"P": Cell(0.5, "", 0.25)}, {"P": Cell(0.125, "†")}]
    table = Table("", [Column("P", format=".2f")], rows)
    assert table.to_csv() == "P,P_half,P_mark\n0.5,0.25,\n0.125,,†\n"
    assert "| 0.50 ± 0.25 |" in table.to_markdown()
