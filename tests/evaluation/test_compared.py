"""Runs side by side as a table, and drawings: what is marked, what is escaped, what words say."""

import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import UsageError
from sottovoce.evaluation.compared import Aspect, Compared, ComparedRow, Entry
from sottovoce.evaluation.drawings import Point, best_trades, gauge, key, trades
from sottovoce.evaluation.report import Section, write_report

ASPECTS = [
    Aspect("system", "system", choose=True),
    Aspect("p", "P@10", ".2f", "max", change="difference", own_world=True),
    Aspect("sent", "kB", ",.1f", "min", change="ratio"),
]


def rows(*worlds):
    """Later ones are better and cheaper."""
    return [
        ComparedRow(f"run {n}", world, {"system": "s", "p": Entry(n / 10, 0.01), "sent": 10.0 - n})
        for n, world in enumerate(worlds, 1)
    ]


def marked(table):
    """Labels of the columns in which each row is the best."""
    content = table.content()
    labels = [column["label"] for column in content["columns"]]
    return [
        [
            label
            for label, cell in zip(labels, row["cells"], strict=True)
            if "best" in (cell["attributes"].get("class") or "")
        ]
        for row in content["rows"]
    ]


def test_the_best_is_marked_under_one_protocol_alone():
    assert marked(Compared("t", ASPECTS, rows("a", "a"))) == [[], ["P@10", "kB"]]
    assert marked(Compared("t", ASPECTS, rows("a", "b"))) == [[], ["kB"]]
    assert marked(Compared("t", ASPECTS, rows("a"))) == [[]]  # the best of one is none


def test_equal_texts_are_best_together_and_no_bound_is_never():
    some = [
        ComparedRow("one", "a", {"p": 0.111, "sent": math.inf}),
        ComparedRow("two", "a", {"p": 0.109, "sent": 3.0}),
        ComparedRow("three", "a", {"p": None, "sent": math.nan}),
    ]
    assert marked(Compared("t", ASPECTS, some)) == [["P@10"], ["P@10"], []]
    texts = [
        [cell["text"] for cell in row["cells"]]
        for row in Compared("t", ASPECTS, some).content()["rows"]
    ]
    assert texts[0] == ["one", "–", "0.11", "no bound"]
    assert texts[2] == ["three", "–", "–", "–"]


def test_differences_point_to_rows():
    some = [
        ComparedRow("one", "a", {"p": Entry(0.1, differs=("two", "nobody"))}),
        ComparedRow("two", "a", {"p": 0.2}),
    ]
    table = Compared("t", ASPECTS, some)
    cell = table.content()["rows"][0]["cells"][2]
    assert cell["attributes"]["data-differs"] == table.places()["two"]


def test_unknown_columns_and_two_rows_of_one_name_are_refused():
    with pytest.raises(UsageError, match="one name"):
        Compared("t", ASPECTS, [*rows("a"), *rows("a")])
    with pytest.raises(UsageError, match="no column 'z'"):
        Compared("t", ASPECTS, [ComparedRow("x", "a", {"z": 1})])


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, tuple(name for name, _ in attrs)))


EVIL = st.text(alphabet="<>&\"'ab/ ", min_size=1, max_size=12)


@given(EVIL)
def test_a_page_escapes_every_text_of_a_comparison(tmp_path_factory, text):
    def page(word):
        entry = Entry(word, text=word, choice=word, href="x")
        aspects = [Aspect("k", word, choose=True)]
        table = Compared(word, aspects, [ComparedRow(word, word, {"k": entry}, "y")], [word])
        path = tmp_path_factory.getbasetemp() / "evil.html"
        return write_report(path, "t", [Section("s", [table])]).read_text()

    assert Tags(page(text)).tags == Tags(page("plain")).tags


def point(name, cost, worth, shape="bounded"):
    return Point(name, f"row-{name}", cost, worth, worth - 0.1, worth + 0.1, shape)


POINTS = [point("a", 1, 0.2), point("b", 50, 0.5, "sums"), point("c", 60, 0.4, "open")]


def test_the_front_is_of_those_that_nobody_beats():
    assert [p.name for p in best_trades(POINTS)] == ["a", "b"]
    drawn = trades(POINTS, "kB", "P@10", "words")
    assert drawn.count('class="ring"') == 2
    assert drawn.count("data-point=") == 3
    assert {"mark bounded", "mark sums", "mark open"} <= set(re.findall(r'class="([^"]*)"', drawn))
    assert "no bound" in key(POINTS)
    assert "no bound" not in key(POINTS[:2])
    with pytest.raises(UsageError, match="nothing to draw"):
        trades([], "kB", "P@10", "words")


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1), EVIL), min_size=1, max_size=12))
def test_every_point_is_on_the_paper_and_every_name_escaped(found):
    points = [point(name, cost, worth) for cost, worth, name in found]
    drawn = trades(points, "kB", "P@10", "words")
    at = re.findall(r'class="mark bounded" cx="([^"]*)" cy="([^"]*)"', drawn)
    assert len(at) == len(points)
    assert all(0 <= float(x) <= 520 and 0 <= float(y) <= 360 for x, y in at)
    assert {tag for tag, _ in Tags(drawn).tags} <= {
        "svg", "path", "text", "polyline", "g", "title", "circle",
    }  # fmt: skip


def test_a_gauge_says_what_it_shows():
    drawn = gauge(0.9, (0.8, 1.2), 0.5, mark="broken", words='AUC "0.9"')
    assert "AUC &quot;0.9&quot;" in drawn
    assert 'class="broken"' in drawn
    held = gauge(3.0, (-1.0, math.inf), 0.5, mark="holds", words="ε")
    assert 'class="holds"' in held
    assert "inf" not in held
    assert "nan" not in held
