"""Tutorials and how-to pages do what they say: their own blocks are executed, as notebooks, and
print what the pages show."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from notebooks import Cell, cells_of, notebook_of, pages, printed
from sottovoce.engines.processes import free_port

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
HOW_TO = ROOT / "docs" / "how-to"
SLOW_HOW_TO = frozenset(
    [
        "compare-and-latex",
        "epsilon-per-user",
        "own-component",
        "resume-a-run",
        "same-numbers",
        "several-machines",
        "tune",
    ]
)
"""More than ten seconds of a processor each. Their commands are parsed in the ordinary tests."""


# --- running a page -------------------------------------------------------------------------------


def substituted(cells, changes):
    """Cells as they are typed where ports are taken and nobody waits."""
    found, used = [], set()
    for cell in cells:
        text = cell.text
        if cell.runs:
            for old, new in changes.items():
                used |= {old} if old in text else set()
                text = text.replace(old, new)
        found.append(Cell(text, cell.language, cell.words, cell.shown))
    assert used == set(changes), "a change for the test changes nothing"
    return found


SCRIPT = """
import json, sys, notebooks
from pathlib import Path

file = Path(sys.argv[1])
made = notebooks.run(json.loads(file.read_text()), file.parent)
file.write_text(json.dumps(made))
"""


class Walking:
    """A page that is executed beside the test."""

    def __init__(self, page, folder, changes=None, *, slow=False):
        cells = [c for c in cells_of(page.read_text("utf-8")) if slow or "slow" not in c.words]
        self.page, self.folder = page, folder
        self.cells = [cell for cell in cells if cell.runs]
        self.file, self.errors = folder / "page.json", folder / "errors"
        self.file.write_text(json.dumps(notebook_of(substituted(cells, changes or {}))))
        for name in ("examples", "experiments"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "home").mkdir()

    def __enter__(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SOTTOVOCE")}
        own = {
            "HOME": str(self.folder / "home"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT / "tools"),
            "SOTTOVOCE_DATA": str(self.folder / "data"),
            "COLUMNS": "120",
        }
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", SCRIPT, str(self.file)],
                cwd=self.folder,
                env={**kept, **own},
                stderr=errors,
            )
        return self

    def __exit__(self, *trouble):
        """Told to stop, it ends the notebook, which ends its services."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def wait_for(self, file, seconds=240.0):
        end = time.monotonic() + seconds
        while not file.exists():
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < end, "it did not come so far"
            time.sleep(0.1)

    def ended(self):
        """What each block printed, once it is as the page shows it."""
        code = self.process.wait(500)
        assert code == 0, self.errors.read_text()
        made = json.loads(self.file.read_text())["cells"]
        made = [one for one in made if one["cell_type"] == "code"][1:-1]
        said = [printed(one) for one in made]
        # What the notebook's kernel says of its own sockets while it ends is not the page's.
        own = r"\[IPKernelApp\].*?zmq\.error\.ZMQError:[^\n]*"
        trouble = re.sub(own, "", self.errors.read_text(), flags=re.DOTALL)
        assert "Error" not in trouble, (said, trouble)
        for cell, one in zip(self.cells, said, strict=True):
            missing = differs(cell, one)
            assert not missing, f"{self.page.name} shows {missing!r}; printed was:\n{one}"
        return said


def walk(page, folder, changes=None, *, slow=False):
    """Execute what a page has to run, and compare what is printed with what is shown."""
    with Walking(page, folder, changes, slow=slow) as walking:
        return walking.ended()


def differs(cell, said):
    """The first line that the page shows and that was not printed, after those before it."""
    vary = "numbers vary" in cell.words
    lines, at = [plain(line, vary) for line in said.splitlines()], 0
    for shown in cell.shown.splitlines():
        if shown.strip() in ("…", ""):
            continue
        wanted = ".*".join(map(re.escape, plain(shown, vary).split("…")))
        found = [n for n in range(at, len(lines)) if re.fullmatch(wanted, lines[n])]
        if not found:
            return shown
        at = found[0] + 1
    return ""


def plain(line, vary):
    """Without what differs from machine to machine: spaces, and where numbers vary, these."""
    line = " ".join(line.split())
    if vary:
        line = re.sub(r"\b(?=\w*\d)[0-9a-f]{6,}\b", "#", line)
        line = re.sub(r"[\d][\d.,:]*\d|\d", "#", line)
    return line


# --- the four tutorials ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_operators_tutorial(tmp_path):
    server, helper = free_port(), free_port()
    said = walk(
        TUTORIALS / "operator.md",
        tmp_path,
        {
            "https://localhost:8447": f"https://localhost:{helper}",
            " --no-start": f" --no-start --port {server}",
            "introduction.json\n": f"introduction.json --port {helper}\n",
        },
    )
    assert any("shut-out" in one for one in said)


@pytest.mark.slow
def test_the_web_developers_tutorial_in_a_browser(tmp_path):
    """The page of the tutorial, by two visitors, with the labels that the tutorial names."""
    from chromium import started
    from playwright.sync_api import expect
    from tab_world import built

    built()
    page_file = TUTORIALS / "web-developer.md"
    server, helper, site = free_port(), free_port(), free_port()
    changes = {
        "localhost:8443": f"localhost:{server}",
        "localhost:8000": f"localhost:{site}",
        "http.server 8000": f"http.server {site}",
        "--least 2 --yes": f"--least 2 --yes --port {server} --helper-port {helper}",
    }
    cells = cells_of(page_file.read_text("utf-8"))
    html = next(c for c in cells if c.words.get("file") == "site/index.html")
    assert len(html.text.splitlines()) <= 42
    labels = set(re.findall(r"\*\*([^*]+)\*\*", text_between(page_file, "## 6.", "## What your")))
    gate, come = tmp_path / "visitors-come", tmp_path / "visitors-went"
    # The visitors come after everything was started, and before the operator looks.
    wait = f"touch {gate}; until [ -e {come} ]; do sleep 0.1; done\nsottovoce serve status"
    changes["sottovoce serve status"] = wait
    with Walking(page_file, tmp_path, changes) as walking, started() as browser:
        walking.wait_for(gate)
        visitors = []
        for first in range(2):
            context = browser.new_context(viewport={"width": 1280, "height": 1400})
            page = context.new_page()
            page.goto(f"http://localhost:{site}/")
            expect(page.locator("#things button")).to_have_count(12, timeout=20_000)
            for at in range(first, 8, 2):
                page.locator("#things button").nth(at).click()
            expect(page.locator("sottovoce-recommendations button")).to_have_count(5)
            frame = page.frame_locator("sottovoce-consent iframe")
            frame.get_by_role("button", name="Agree to these terms").click()
            choices = frame.locator("#choices")
            choices.get_by_role("switch", name="Take part").click()
            choices.get_by_text(re.compile(r"^Loud")).last.click()
            choices.get_by_role("button", name="Keep this choice").click()
            visitors.append((page, frame))
        for page, frame in visitors:
            expect(frame.locator("#stands")).to_contain_text("3 times", timeout=90_000)
            expect(frame.get_by_text("What has left").first).to_be_visible()
            said = page.locator("body").inner_text() + frame.locator("body").inner_text()
            assert {label for label in labels if label not in said} <= {"Agree to these terms"}
        come.touch()
        said = walking.ended()
    assert "Round 3 of 3, attempt 0: finished" in said[-2]
    assert said[-2].count("2 of 2 reported") == 3


def test_the_researchers_tutorial(tmp_path):
    walk(TUTORIALS / "researcher.md", tmp_path)


@pytest.mark.slow
def test_the_researchers_tutorial_with_its_search(tmp_path):
    walk(TUTORIALS / "researcher.md", tmp_path, slow=True)


@pytest.mark.slow
def test_the_users_tutorial(tmp_path):
    from tab_world import built

    built()
    said = walk(TUTORIALS / "user.md", tmp_path, slow=True)
    assert "Recommended to r00011" in said[1]


SMALL_SHOP = """
import json, sys
from sottovoce.cli.demo_web import serve_shop
serve_shop(None, as_json=True, settings=json.loads(sys.argv[1]))
"""
FEW = [
    *("town.residents=120", "link.min_devices=50", "service.deadline_seconds=60.0"),
    *("release.epsilon=64.0", "consent={epsilon=64.0, total_epsilon=1024.0}"),
]


@pytest.mark.slow
def test_a_user_finds_in_the_browser_what_the_tutorial_names(tmp_path):
    """Her way through the demo's shop, which has fewer residents here; every label of the tutorial
    is there when she needs it."""
    from chromium import started
    from playwright.sync_api import expect
    from tab_world import built

    built()
    text = text_between(TUTORIALS / "user.md", "## 5. What would leave", "## On your own computer")
    labels = set(re.findall(r"\*\*([^*]+)\*\*", text)) - {
        "A published sum has you in it, as loudly as you chose. That cannot be undone"
    }
    seen = ""
    command = [sys.executable, "-c", SMALL_SHOP, json.dumps(FEW)]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as shop,
    ):
        try:
            url = json.loads(shop.stdout.readline())["url"]
            with started() as browser:
                page = browser.new_page(viewport={"width": 1280, "height": 1100})
                page.goto(url)
                page.wait_for_selector("[data-open]")
                for at in range(6):
                    page.locator(".kind").nth(2).locator(".place").nth(at).click()

                def press(name, **how):
                    nonlocal seen
                    seen += page.locator("body").inner_text()
                    page.get_by_role("button", name=name, **how).first.click()

                press("Read the terms")
                press("Agree to these terms")
                press("Choose", exact=True)
                page.get_by_role("switch", name="Take part").click()
                page.get_by_text("Low voice").first.click()
                press("Keep this choice")
                for _ in range(2):
                    press("Look at what would leave")
                    press("Show what would leave")
                    sends = page.get_by_role("button", name="Send exactly this")
                    expect(sends).to_be_enabled(timeout=60_000)
                    press("Send exactly this")
                    expect(page.locator("#preview")).to_contain_text("It arrived", timeout=30_000)
                expect(page.locator(".changes-made")).to_be_visible(timeout=120_000)
                seen += page.locator("body").inner_text()
                if not page.locator("#privacy").is_visible():
                    press("My privacy")
                press("Stop everything", exact=True)
                expect(page.locator("#stands")).to_contain_text("You have stopped everything")
                press("Forget everything here")
                dialog = page.locator("dialog[open]")
                dialog.get_by_role("textbox").fill("delete")
                dialog.get_by_role("button").last.click()
                expect(page.locator("body")).to_contain_text("Your store is gone")
                expect(page.locator(".next button")).to_have_count(0)
        finally:
            shop.send_signal(signal.SIGINT)
            assert shop.wait(60) == 0
    assert labels, "the tutorial names what to press"
    assert {label for label in labels if label not in seen} == set()


def text_between(page, start, end):
    return page.read_text("utf-8").split(f"\n{start}", 1)[1].split(f"\n{end}", 1)[0]


# --- how-to pages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [
    pytest.param(page.stem, marks=[pytest.mark.slow] if page.stem in SLOW_HOW_TO else [])
    for page in pages() if page.parent == HOW_TO
])  # fmt: skip
def test_a_how_to_page(name, tmp_path):
    walk(HOW_TO / f"{name}.md", tmp_path)


def all_pages():
    return sorted([*TUTORIALS.glob("*.md"), *HOW_TO.glob("*.md")])


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: page.stem)
def test_a_page_says_what_it_is_and_every_command_is_known(page):
    """Also of blocks that are only shown."""
    import typer.main

    from sottovoce.cli import app

    text = page.read_text("utf-8")
    about = re.match(r"---\ndescription: (.+)\n---\n# (.+)\n", text)
    assert about is not None
    assert len(about[1]) <= 160
    assert text.count("\n# ") - text.count("\n# the same") >= 1
    lines = len(text.splitlines())
    assert 100 <= lines <= 280 if page.parent == TUTORIALS else 25 <= lines <= 90, lines
    for block in re.findall(r"^```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            called = re.search(r"(?:^|\bdo |-m )\s*sottovoce (.*)", line)
            if called:
                words = shlex.split(re.split(r" \| | > | &$|  #", called[1])[0])
                if words[:1] == ["--with"]:
                    words = words[2:]
                known(typer.main.get_command(app), words)


def known(command, words):
    """Raises where the command line does not know these words."""
    context = command.make_context("sottovoce", [], resilient_parsing=True)
    while hasattr(command, "get_command"):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, name
        command = found
    command.make_context(name, [re.sub(r"\$\(.*?\)|\$\w+", "1", word) for word in words])


def test_every_how_to_is_linked_from_somewhere():
    text = " ".join(page.read_text("utf-8") for page in all_pages())
    assert len(list(HOW_TO.glob("*.md"))) >= 16
    for page in [*TUTORIALS.glob("*.md")]:
        assert f"{page.name}" in text


def test_a_mark_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="nobody knows"):
        cells_of("<!-- run by tests/docs/test_tutorials.py, sometimes -->\n```bash\nls\n```\n")
    with pytest.raises(ValueError, match="nobody runs"):
        cells_of("<!-- run by tests/docs/test_tutorial.py -->\n```bash\nls\n```\n")


def test_a_line_that_is_not_printed_is_found():
    cell = Cell("", "bash", {"run": ""}, "first\n…\nlast of … lines\n")
    assert differs(cell, "first\nsecond\nlast of 12 lines\n") == ""
    assert differs(cell, "last of 12 lines\nfirst\n") == "last of … lines"
    assert differs(cell, "second\nlast of 12 lines\n") == "first"
    exact = Cell("", "bash", {"run": ""}, "7 of 9\n")
    assert differs(exact, "8 of 9\n") == "7 of 9"
    vary = Cell("", "bash", {"run": "", "numbers vary": ""}, "7 of 9, 0a1b2c3d\n")
    assert differs(vary, "12 of 1,000, ffff0000\n") == ""
    assert differs(vary, "none of 9, 0a1b2c3d\n") == "7 of 9, 0a1b2c3d"
