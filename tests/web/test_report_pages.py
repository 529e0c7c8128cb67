"""Reports, comparisons and report cards in a real browser, opened from a file: nothing is asked of
anybody, and everybody can read it."""

import json
import re
import shutil

import pytest
from chromium import serious

import sottovoce.cli

TOWN = ["--set", "town.residents=60", "--set", "town.venues=40"]
RUNS = {
    "own": ["sound/gram", "--set", "link.min_devices=20"],
    "loud": ["sound/gram", "--set", "link.min_devices=20", "--set", "consent={epsilon=8.0}"],
    "printed": ["papers/fpl", "--set", "algorithm.epochs=2"],
    "summed": ["tuned/fpl", "--set", "algorithm.epochs=2", "--set", "link.name=secure-sum"],
    "other": ["tuned/fcf", "--set", "algorithm.rounds=2", "--set", "evaluation.k=5"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs of <us>")  # a name that an address must have quoted
    for name, words in RUNS.items():
        assert sottovoce.cli.call(["run", *words, *TOWN, "--out", str(root / name)]) == 0
    for name in ("own", "printed"):
        assert sottovoce.cli.call(["attack", str(root / name), "--rounds", "2"]) == 0
    alike = [str(root / name) for name in RUNS if name != "other"]
    assert sottovoce.cli.call(["report", *alike, "--out", str(root / "alike")]) == 0
    every = [str(root / name) for name in RUNS]
    assert sottovoce.cli.call(["report", *every, "--out", str(root / "mixed")]) == 0
    return root


@pytest.fixture
def look(browser):
    """A page that is opened from a file. At the end: nothing was asked for but files, nothing went
    wrong, and nothing that its policy forbids was tried."""
    contexts, asked, trouble = [], [], []

    def open_page(path, **options):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda said: trouble.append(said.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.goto(path.as_uri())
        return page

    open_page.trouble = trouble
    yield open_page
    for context in contexts:
        context.close()
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]
    assert not trouble


PAGES = ["own/report.html", "printed/report-card.html", "mixed/report.html"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_everybody_can_read_it(look, runs, name, dark):
    page = look(runs / name, color_scheme="dark" if dark else "light")
    assert serious(page) == []
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == dark


@pytest.mark.parametrize("name", PAGES)
def test_a_narrow_window_does_not_scroll_sideways(look, runs, name):
    page = look(runs / name, viewport={"width": 360, "height": 740})
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("name", PAGES)
def test_the_policy_takes_one_style_by_its_hash_and_no_script(look, runs, name):
    text = (runs / name).read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert policy.startswith("default-src &#39;none&#39;")
    assert "unsafe" not in policy
    assert "script-src" not in policy
    assert "<script" not in text
    page = look(runs / name)
    assert page.evaluate("getComputedStyle(document.querySelector('h1')).fontWeight") == "650"
    tried = "() => { const s = document.createElement('style'); s.textContent = 'h1 {color: red}';"
    page.evaluate(f"{tried} document.head.append(s); }}")
    assert page.evaluate("getComputedStyle(document.querySelector('h1')).color") != "rgb(255, 0, 0)"
    page.evaluate("() => fetch('https://example.org/').catch(() => 0)")
    assert len(look.trouble) >= 2
    assert all("Content Security Policy" in said for said in look.trouble)
    look.trouble.clear()


def heads(table):
    return [head.strip() for head in table.locator("thead th").all_text_contents()]


def test_a_table_has_every_run_and_marks_the_best_of_runs_that_compare(look, runs):
    page = look(runs / "alike/report.html", java_script_enabled=False)
    table = page.locator("table").first
    rows = table.locator("tbody tr")
    assert rows.count() == len(set(RUNS) - {"other"}) + 2  # Random, Top-Pop
    assert rows.locator("th").all_inner_texts()[:4] == ["own", "loud", "printed", "summed"]
    place = heads(table).index("P@10") + 1
    cells = table.locator(f"tbody td:nth-child({place})").all()
    best = max(cells, key=lambda cell: float(cell.inner_text().split()[0]))
    assert best.locator("strong").count() == 1
    mixed = look(runs / "mixed/report.html").locator("table").first
    for metric in ("P@10", "P@5"):
        column = mixed.locator(f"tbody td:nth-child({heads(mixed).index(metric) + 1})")
        assert column.locator("strong").count() == 0  # they do not compare
    sent = heads(mixed).index("kB sent by a user") + 1
    assert mixed.locator(f"tbody td:nth-child({sent}) strong").count() == 2  # own and loud alike


def test_what_quality_costs_is_drawn_and_said(look, runs):
    page = look(runs / "alike/report.html")
    figure = page.locator("figure").first
    assert figure.locator("img").evaluate("image => image.complete && image.naturalWidth > 0")
    said = figure.locator("img").get_attribute("alt")
    assert all(f"{name}: " in said for name in ("own", "loud", "printed", "summed"))
    assert "No other run is better and sends less than: " in figure.inner_text()


def test_a_row_leads_to_its_report_and_its_card(look, runs):
    page = look(runs / "alike/report.html")
    page.get_by_role("link", name="printed", exact=True).click()
    assert "as printed: for comparison and attack" in page.locator(".lead").inner_text()
    page.go_back()
    page.locator("tbody tr", has_text="printed").get_by_role("link", name="✗").click()
    assert page.locator("h1").inner_text().endswith("what its promises are worth")


def test_a_report_says_first_what_bounds_it(look, runs):
    words = {name: look(runs / name / "report.html").locator(".lead").inner_text() for name in RUNS}
    assert "bounded: ε is 4 at most" in words["own"]
    assert "It holds while the server and the helper work apart." in words["own"]
    assert "as printed" in words["printed"]
    assert "sums of many people, without an ε" in words["summed"]
    for text in words.values():
        assert all(len(s.split()) <= 20 for s in re.split(r"[.:;]\s", text))


def test_a_card_has_a_row_for_each_attack(look, runs):
    page = look(runs / "printed/report-card.html")
    content = json.loads((runs / "printed/attacks.json").read_text())
    rows = page.locator(".verdicts tbody tr")
    assert rows.count() == len(content["attacks"])
    for number, attack in enumerate(content["attacks"]):
        row = rows.nth(number)
        assert attack["promise"].rstrip(".") in row.locator("details p").text_content()
        assert attack["verdict"] in row.locator(".verdict").inner_text()
        assert not row.locator("details p").is_visible()
        if attack["claims"]:
            shown = row.locator("td").last.inner_text()
            assert f"{attack['value']:.3f}" in shown
            assert f"{attack['base_rate']:.3f}" in shown
    first = next(n for n, one in enumerate(content["attacks"]) if one["verdict"] == "broken")
    assert "✗" in rows.nth(first).locator(".verdict").inner_text()
    rows.nth(first).locator("summary").press("Enter")
    assert "95 % interval" in rows.nth(first).locator("details p").inner_text()


def test_attacks_that_cannot_be_read_are_no_reason_to_fail(runs, tmp_path, look):
    place = shutil.copytree(runs / "own", tmp_path / "own")
    (place / "attacks.json").write_text('{"attacks": [1')
    words = ["report", str(place), str(runs / "loud"), "--out", str(tmp_path / "out")]
    assert sottovoce.cli.call(words) == 0
    page = look(tmp_path / "out/report.html")
    assert page.get_by_text("attacks.json cannot be read").count() > 0
