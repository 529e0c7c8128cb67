"""The site in a real browser: it opens, its search works without any server, nothing is fetched
from elsewhere, and people who cannot see it well can use it."""

import functools
import http.server
import re
import shutil
import threading

import pytest
from chromium import is_amiss, serious
from playwright.sync_api import expect

import docs

PAGES = ("index.html", "reference/components.html", "data.html")
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def site(documents, tmp_path_factory):
    """The site of these documents, built beside no other build."""
    root = tmp_path_factory.mktemp("site")
    shutil.copyfile(docs.ROOT / docs.CONFIGURATION, root / docs.CONFIGURATION)
    (root / "src").symlink_to(docs.ROOT / "src")
    complaints = docs.build(documents, root)
    assert complaints == [], "\n".join(complaints)
    return root / docs.BUILD / "site"


@pytest.fixture(scope="module")
def address(site):
    """Where a plain static server has it."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words):
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(params=["file", "http"])
def base(request, site):
    return site.as_uri() if request.param == "file" else request.getfixturevalue("address")


@pytest.fixture
def page(browser):
    """A page that tells what it asked for and what its scripts complained of."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        opened = context.new_page()
        opened.asked, opened.amiss = [], []
        opened.on("request", lambda request: opened.asked.append(request.url))
        opened.on("pageerror", lambda error: opened.amiss.append(str(error)))
        opened.on(
            "console", lambda line: opened.amiss.append(line.text) if is_amiss(line) else None
        )
        yield opened


def foreign(page, base):
    ours = (base, "data:", "blob:", "about:")
    return [url for url in page.asked if not url.startswith(ours)]


# --- what was built -------------------------------------------------------------------------------


def test_every_page_of_the_menu_is_there_and_fetches_nothing(site, documents):
    for place in documents.navigation:
        assert (site / place).with_suffix(".html").is_file(), place
    assert [*map(str, docs.check_site(site))] == []


@pytest.mark.parametrize(
    "text",
    ['<script src="https://cdn.example/x.js"></script>', "<img alt='' src=\"//cdn.example/x.png\">",
     '<link rel="stylesheet" href="https://fonts.example/css">',
     "<style>@font-face { src: url(https://fonts.example/x.woff2) }</style>"],
)  # fmt: skip
def test_a_page_that_fetches_something_from_elsewhere_is_found(tmp_path, text):
    (tmp_path / "index.html").write_text(f"<h1>x</h1>\n{text}\n")
    [problem] = docs.check_site(tmp_path)
    assert (problem.page, problem.line) == ("index.html", 2)
    assert "is fetched from elsewhere" in problem.what


def test_links_out_of_docs_lead_to_copies(repository, tmp_path):
    more = "# Changes\n\nSee [it](docs/second.md#a-part), [Makefile](Makefile), [all](docs/).\n"
    documents = repository(CHANGELOG_md=more)
    docs.stage(documents, tmp_path / "staged")
    staged = (tmp_path / "staged" / "changelog.md").read_text()
    assert "[it](second.md#a-part), [Makefile](files/Makefile.txt), all." in staged
    assert "description: What changed" in staged
    assert "(files/notes.txt.txt)" in (tmp_path / "staged" / "second.md").read_text()
    assert (tmp_path / "staged" / "files" / "notes.txt.txt").read_text() == "notes\n"


BROKEN = {
    "second.md#a-prat": "anchor does not exist",
    "gone.md": "page does not exist",
    "#nowhere": "anchor does not exist",
    "../src/gone.py": "leads to src/gone.py, which is not there",
    "no.svg": "leads to docs/no.svg, which is not there",
    "../../elsewhere.md": "leaves the repository",
    "/second.md": "leaves the repository",
}


def test_broken_links_are_found_with_their_lines(repository, tmp_path):
    """Also of images, of HTML, by reference, and of documents that are not in docs/."""
    lines = "".join(f"[a\nlink]({link})\n" for link in BROKEN)
    page = f"---\ndescription: One.\n---\n\n# First\n\n{lines}`[x](code.md)`\n"
    readme = '# Read\n\n![x](pic.svg) <img src="pic.png"> [r]\n\n[r]: docs/gone.md\n'
    more = "# C\n\n[x](docs/index.md#y)\n\n```text\n[z](code.md)\n```\n"
    documents = repository(docs__index_md=page, README_md=readme, CHANGELOG_md=more)
    said = " ".join(" ".join(docs.build(documents, tmp_path)).split())
    for number, words in enumerate(BROKEN.values()):
        line = 8 + 2 * number
        assert re.search(
            rf"{words} ╭─\[ index\.md:{line}:|docs/index\.md:{line}: \S+ {words}", said
        ), words
    assert "README.md:3: (pic.svg) leads to pic.svg, which is not there" in said
    assert "README.md:3: (pic.png) leads to pic.png, which is not there" in said
    assert "page does not exist ╭─[ files/readme.md:" in said
    assert "anchor does not exist ╭─[ changelog.md:7:" in said
    assert said.count("does not exist ╭─") == 7  # both of index.md that leave it, too; no code


def test_the_readme_does_not_lead_to_what_only_the_site_has(repository, tmp_path):
    made = {"docs/reference/python.md": "# Python\n"}
    documents = repository(made, README_md="# R\n\n[x](docs/reference/python.md)\n")
    [said] = docs.stage(documents, tmp_path / "staged")
    assert "that only the site has" in str(said)


def test_a_console_without_a_prompt_is_coloured_as_bash(repository, tmp_path):
    blocks = "```console\nls\n```\n\n- x\n\n    ```console\n    $ ls\n    x\n    ```\n"
    docs.stage(repository(CHANGELOG_md=f"# C\n\n{blocks}"), tmp_path / "staged")
    staged = (tmp_path / "staged" / "changelog.md").read_text()
    assert blocks.replace("console", "bash", 1) in staged


# --- in the browser -------------------------------------------------------------------------------


def test_search_finds_epsilon_without_any_request_elsewhere(page, base):
    page.goto(f"{base}/index.html", wait_until="networkidle")
    page.keyboard.press("Control+k")
    box = page.get_by_role("combobox")
    box.press_sequentially("epsilon", delay=20)
    assert box.input_value() == "epsilon"
    found = page.get_by_role("option").first
    # The list follows each key: for a moment it is still that of the first letters.
    expect(found).to_contain_text("epsilon", ignore_case=True)
    found.click()
    page.wait_for_url(re.compile(r"\.html\?h=epsilon"))
    assert foreign(page, base) == []
    assert page.amiss == []


def test_every_card_leads_to_a_tutorial(page, site):
    page.goto(f"{site.as_uri()}/index.html")
    cards = page.locator(".cards a")
    assert cards.count() == 4
    for number in range(4):
        assert (site / cards.nth(number).get_attribute("href")).is_file()


@pytest.mark.parametrize(
    ("name", "scheme"), [(PAGES[1], "dark"), *((name, "light") for name in PAGES)]
)
def test_nothing_serious_stands_in_the_way_of_anybody(page, site, name, scheme):
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{site.as_uri()}/{name}")
    assert serious(page) == []


def test_the_reader_can_choose_light_and_dark(page, address):
    page.emulate_media(color_scheme="light")
    page.goto(f"{address}/index.html")
    colour = "getComputedStyle(document.body).backgroundColor"
    seen = set()
    for _ in range(3):
        seen.add(page.evaluate(colour))
        page.locator("[data-md-component=palette] label:visible").click()
    assert len(seen) == 2


def test_a_page_fits_a_phone_and_its_menu_opens(page, address):
    page.set_viewport_size(PHONE)
    for name in ("reference/settings.html", "reference/python.html", *PAGES):
        page.goto(f"{address}/{name}")
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{name} is {wide} pixels too wide"
    page.locator("label.md-header__button[for=__drawer]").click()
    page.locator("label.md-nav__link:visible", has_text="Tutorials").click()
    page.locator("a.md-nav__link:visible", has_text="For a user").click()
    page.wait_for_url(re.compile("tutorials/user"))
    assert foreign(page, address) == []
