"""Reports, comparisons and report cards in a real browser, opened from a file: nothing is asked of
anybody, rows are sorted, filtered and compared by mouse and keyboard, and everybody can read it."""

import json
import math
import re
import shutil

import pytest
from chromium import serious

import sottovoce.cli

TOWN = ["--set", "town.residents=60", "--set", "town.venues=40"]
RUNS = {
    "own": ["sound/gram", "--set", "link.min_devices=20"],
    "loud": ["sound/gram", "--set", "link.min_devices=20", "--set", "consent={epsilon=8.0}"],
    "printed": ["presets/pfpl-plus-per-draw", "--set", "algorithm.epochs=2"],
    "summed": ["presets/pfpl-plus", "--set", "algorithm.epochs=2", "--set", "link.name=secure-sum"],
    "other": ["presets/fcf", "--set", "algorithm.rounds=2", "--set", "evaluation.k=5"],
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


def names(page):
    """Of the rows that are shown, in order."""
    heads = page.locator(".compared tbody tr:visible th").all_inner_texts()
    return [text.strip() for text in heads]


def column(page, label):
    """Place of a column."""
    heads = page.locator(".compared thead th").all_text_contents()
    return [head.strip() for head in heads].index(label)


def values(page, label):
    """Of a column, in order; not a number where there is none."""
    cells = page.locator(f".compared tbody tr:visible > :nth-child({column(page, label) + 1})")
    return cells.evaluate_all("cells => cells.map(cell => Number(cell.dataset.v ?? NaN))")


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
def test_the_policy_takes_one_style_and_one_script_by_their_hashes(look, runs, name):
    text = (runs / name).read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert policy.startswith("default-src &#39;none&#39;")
    assert "unsafe" not in policy
    page = look(runs / name)
    assert page.evaluate("getComputedStyle(document.querySelector('h1')).fontWeight") == "650"
    tried = "() => { const s = document.createElement('style'); s.textContent = 'h1 {color: red}';"
    page.evaluate(f"{tried} document.head.append(s); }}")
    assert page.evaluate("getComputedStyle(document.querySelector('h1')).color") != "rgb(255, 0, 0)"
    page.evaluate("() => fetch('https://example.org/').catch(() => 0)")
    assert len(look.trouble) >= 2
    assert all("Content Security Policy" in said for said in look.trouble)
    look.trouble.clear()


def test_rows_are_sorted_by_mouse_and_by_keyboard(look, runs):
    page = look(runs / "alike/report.html")
    before = names(page)
    assert before[:4] == ["own", "loud", "printed", "summed"]
    head = page.locator(".compared thead th").nth(column(page, "P@10"))
    assert head.get_attribute("aria-sort") is None
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"  # the best first
    assert values(page, "P@10") == sorted(values(page, "P@10"), reverse=True)
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert values(page, "P@10") == sorted(values(page, "P@10"))
    other = page.locator(".compared thead th").nth(column(page, "ε, at most"))
    other.get_by_role("button").press("Space")
    assert other.get_attribute("aria-sort") == "ascending"
    assert head.get_attribute("aria-sort") is None
    assert values(page, "ε, at most")[:2] == [4, 8]
    assert math.isnan(values(page, "ε, at most")[-1])  # what has no value comes last, either way
    other.get_by_role("button").press("Space")
    assert math.isnan(values(page, "ε, at most")[-1])
    assert "Sorted by ε, at most, largest first." in page.get_by_role("status").inner_text()
    page.get_by_role("button", name="Show all again").click()
    assert names(page) == before


def test_rows_are_found_by_words_and_by_values(look, runs):
    page = look(runs / "alike/report.html")
    everybody = len(names(page))
    for _ in range(40):  # to the first field, by the keyboard alone
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "search":
            break
    page.keyboard.type("GRAM lou")
    assert names(page) == ["loud"]
    assert f"1 of {everybody} rows." in page.get_by_role("status").inner_text()
    assert page.locator("[data-point].away").count() > 0  # the drawing follows
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    assert len(names(page)) == everybody
    page.get_by_role("combobox", name="what bounds it").select_option("as printed, no bound")
    assert names(page) == ["printed"]
    page.get_by_role("button", name="Show all again").press("Enter")
    page.get_by_role("combobox", name="promises broken").select_option("some broken")
    assert "printed" in names(page)
    assert "summed" not in names(page)


def test_columns_are_chosen(look, runs):
    page = look(runs / "alike/report.html")
    place = column(page, "R@10")
    head = page.locator(".compared thead th").nth(place)
    assert not head.is_visible()
    page.get_by_text("Columns", exact=True).click()
    box = page.locator("fieldset").get_by_label("R@10", exact=True)
    box.press("Space")
    assert head.is_visible()
    assert page.locator(f".compared tbody tr:first-child > :nth-child({place + 1})").is_visible()
    box.uncheck()
    assert not head.is_visible()


def test_rows_are_held_against_a_chosen_one(look, runs):
    page = look(runs / "mixed/report.html")
    page.get_by_label("Compare with").select_option("printed")
    rows = {row.locator("th").inner_text(): row for row in page.locator(".compared tbody tr").all()}
    place = column(page, "P@10") + 1
    cell = rows["own"].locator(f":scope > :nth-child({place})")
    base = rows["printed"].locator(f":scope > :nth-child({place})")
    by = float(cell.get_attribute("data-v")) - float(base.get_attribute("data-v"))
    said = cell.locator(".change").inner_text()
    assert f"{abs(by):.4f}" in said
    differs = (cell.get_attribute("data-differs") or "").split()
    sure = rows["printed"].get_attribute("id") in differs
    assert ("†" in said, "perhaps" in said) == (sure, not sure)
    # A baseline is tested like a run.
    popular = rows["Top-Pop (baseline beside own)"].locator(f":scope > :nth-child({place})")
    known = popular.locator(".change").inner_text()
    differs = (popular.get_attribute("data-differs") or "").split()
    sure = rows["printed"].get_attribute("id") in differs
    assert ("†" in known, "perhaps" in known) == (sure, not sure)
    assert base.locator(".change").count() == 0
    other = rows["other"].locator(f":scope > :nth-child({column(page, 'P@5') + 1})")
    assert other.locator(".change").count() == 0  # the chosen row has no such value
    sent = rows["other"].locator(f":scope > :nth-child({column(page, 'kB sent by a user') + 1})")
    assert sent.locator(".change").inner_text().startswith("×")


def test_the_best_is_marked_among_runs_that_compare_alone(look, runs):
    page = look(runs / "mixed/report.html")
    assert page.locator(f".compared td:nth-child({column(page, 'P@10') + 1}).best").count() == 0
    assert "no result is marked as best" in page.get_by_role("status").inner_text()
    page.get_by_label("Find").fill("gram")
    marked = page.locator(f".compared td:nth-child({column(page, 'P@10') + 1}).best")
    assert marked.count() == 1
    assert float(marked.get_attribute("data-v")) == max(values(page, "P@10"))
    alike = look(runs / "alike/report.html")
    assert alike.locator(f".compared td:nth-child({column(alike, 'P@10') + 1}).best").count() > 0


def test_without_a_script_the_table_is_there(look, runs):
    page = look(runs / "alike/report.html", java_script_enabled=False)
    assert (
        page.locator(".compared tbody tr").count() == len(set(RUNS) - {"other"}) + 2
    )  # Random, Top-Pop
    assert page.locator(".tools").count() == 0
    assert page.locator(".compared thead th", has_text="R@10").is_visible()
    assert page.locator(".compared .best").count() > 0


def test_a_row_leads_to_its_report_and_its_card(look, runs):
    page = look(runs / "alike/report.html")
    page.get_by_role("link", name="printed", exact=True).click()
    assert "as printed: for comparison and attack" in page.locator(".lead").inner_text()
    page.go_back()
    page.locator(".compared tbody tr", has_text="printed").get_by_role("link", name="✗").click()
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
        assert row.locator("svg[role=img]").count() == bool(attack["claims"])
    first = next(n for n, one in enumerate(content["attacks"]) if one["verdict"] == "broken")
    assert "✗" in rows.nth(first).locator(".verdict").inner_text()
    shown = rows.nth(first).locator("svg[role=img]").get_attribute("aria-label")
    assert f"{content['attacks'][first]['value']:.3f}" in shown
    assert f"{content['attacks'][first]['base_rate']:.3f}" in shown
    rows.nth(first).locator("summary").press("Enter")
    assert "95 % interval" in rows.nth(first).locator("details p").inner_text()


def test_attacks_that_cannot_be_read_are_no_reason_to_fail(runs, tmp_path, look):
    place = shutil.copytree(runs / "own", tmp_path / "own")
    (place / "attacks.json").write_text('{"attacks": [1')
    words = ["report", str(place), str(runs / "loud"), "--out", str(tmp_path / "out")]
    assert sottovoce.cli.call(words) == 0
    page = look(tmp_path / "out/report.html")
    assert page.get_by_text("attacks.json cannot be read").count() > 0
