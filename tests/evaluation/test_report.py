from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sottovoce.errors import DataNotFound, UsageError
from sottovoce.evaluation.report import FigureBlock, KeyValues, Section, TextBlock, write_report
from sottovoce.evaluation.tables import Column, Table

EVIL = "<script src=https://evil.example/x.js>alert(1)</script>\" onload='x' &amp;"
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture
def figure(tmp_path: Path) -> Path:
    path = tmp_path / "figure.svg"
    path.write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    return path


def make(tmp_path: Path, figure: Path, text: str = EVIL) -> str:
    sections = [
        Section(text, [TextBlock(f"first {text}\n\nsecond"), KeyValues({text: text, "seed": 7})]),
        Section(
            "Figures",
            [
                Table(text, [Column("k", text)], [{"k": text}], protocol=text),
                FigureBlock(figure, alt=text, caption=text),
            ],
        ),
    ]
    out = write_report(tmp_path / "new" / "report.html", text, sections)
    return out.read_text(encoding="utf-8")


def test_nothing_comes_from_outside(tmp_path, figure):
    page = Page(make(tmp_path, figure))
    for tag, attrs in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "base", "form")
        for name, value in attrs.items():
            assert not name.startswith("on")
            if name in ("src", "href"):
                assert re.match(r"#s\d+$|data:image/(png|svg\+xml);base64,", value or "")
    style = "".join(page.words)
    assert "@import" not in style
    assert "url(" not in style
    policy = next(a for a in page.all("meta") if a.get("http-equiv"))["content"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_values_are_escaped_everywhere(tmp_path, figure):
    plain = Page(make(tmp_path, figure, "plain"))
    evil = Page(make(tmp_path, figure))
    assert [tag for tag, _ in evil.tags] == [tag for tag, _ in plain.tags]
    # The title, the heading and its link, a paragraph, key and value, four in the table, a caption.
    assert sum(EVIL in word for word in evil.words) == sum("plain" in w for w in plain.words) >= 11
    assert evil.all("img")[0]["alt"] == EVIL


def test_a_reader_finds_the_way(tmp_path, figure):
    page = Page(make(tmp_path, figure, "plain"))
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    targets = {attrs["id"] for attrs in page.all("h2")}
    assert {(attrs["href"] or "")[1:] for attrs in page.all("a")} == targets
    assert {attrs["aria-labelledby"] for attrs in page.all("section")} == targets
    assert "second" in page.words
    assert "prefers-color-scheme: dark" in "".join(page.words)


def test_figures_are_embedded_whole(tmp_path, figure):
    source = Page(make(tmp_path, figure)).all("img")[0]["src"] or ""
    assert base64.b64decode(source.split(",", 1)[1]) == figure.read_bytes()


def test_missing_and_strange_figures_are_refused(tmp_path):
    out = tmp_path / "report.html"
    out.write_text("old")
    with pytest.raises(DataNotFound, match=r"nowhere\.png"):
        write_report(out, "t", [Section("s", [FigureBlock(tmp_path / "nowhere.png", "a")])])
    with pytest.raises(UsageError, match="PNG or SVG"):
        write_report(out, "t", [Section("s", [FigureBlock(tmp_path / "x.exe", "a")])])
    assert out.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html"]
