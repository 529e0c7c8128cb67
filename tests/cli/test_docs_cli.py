"""`sottovoce docs`."""

import json
import webbrowser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import sottovoce.cli
from sottovoce.core import installed


@pytest.fixture
def say(sottovoce_):
    return sottovoce_


def test_the_list_names_every_page(say):
    code, out, _ = say("docs")
    assert code == 0
    listed = {line.split("  ")[0] for line in out.splitlines()}
    assert set(installed.pages()) <= listed
    found = json.loads(say("docs", "--json")[1])["pages"]
    assert [row["page"] for row in found] == list(installed.pages())
    assert all(row["title"] and Path(row["path"]).is_file() for row in found)


def test_a_page_its_place_and_its_json(say, monkeypatch, tmp_path):
    page = tmp_path / "x.md"
    page.write_text("---\ndescription: What it is.\n---\n\n# The title\n\nText [here](x.md).\n")
    for module in (installed, sottovoce.cli.docs):
        monkeypatch.setattr(module, "pages", lambda: {"x": page})
    assert say("docs", "x") == (0, "# The title\n\nText [here](x.md).\n\n", "")
    assert say("docs", "x.md", "--path") == (0, f"{page}\n", "")
    assert json.loads(say("docs", "x", "--json")[1]) == {
        "page": "x",
        "path": str(page),
        "title": "The title",
        "description": "What it is.",
        "text": "# The title\n\nText [here](x.md).\n",
    }
    assert "x  What it is." in say("docs")[1]
    code, out, err = say("docs", "y")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_pages_in_a_browser_have_links_that_lead_somewhere(say, monkeypatch, tmp_path):
    opened = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    assert say("docs", "readme", "--open") == (0, "", "")
    shown = Path(unquote(urlsplit(opened[0]).path))
    assert shown == tmp_path / "sottovoce" / "docs" / "readme.html"
    links = [part.split('"')[0] for part in shown.read_text().split('href="file://')[1:]]
    assert len(links) > 10
    for link in links:
        path, _, anchor = link.partition("#")
        text = Path(unquote(path)).read_text() if Path(unquote(path)).is_file() else ""
        assert Path(unquote(path)).exists(), link
        assert not anchor or f'id="{anchor}"' in text, link
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    code, _, err = say("docs", "readme", "--open")
    assert code == 2
    assert str(shown) in err
