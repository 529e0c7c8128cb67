"""Tutorials and how-to pages do what they say: their own blocks are executed, and print what the
pages show."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from snippets import Walk, differs, words_of

import docs
from sottovoce.engines.processes import free_port

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
HOW_TO = ROOT / "docs" / "how-to"
SLOW_HOW_TO = frozenset(
    [
        "compare-and-latex",
        "early-stopping",
        "epsilon-per-user",
        "new-users",
        "own-component",
        "pandas",
        "resume-a-run",
        "same-numbers",
        "serve-a-model",
        "what-was-sent",
        "several-machines",
        "tune",
    ]
)
"""More than three seconds of a processor each. Their commands are parsed in the ordinary tests."""


def walk(page, folder, changes=None, before=None, *, slow=False):
    """Execute what a page has to run, and compare what is printed with what is shown."""
    for name in ("examples", "experiments"):
        (folder / name).symlink_to(ROOT / name)
    path = page.relative_to(ROOT).as_posix()
    walk = Walk(docs.Page(path, page.read_text("utf-8")), folder, changes, before)
    assert walk.through(slow=slow) > 0
    return walk.said


def blocks(page):
    """What a page has to run."""
    found = docs.Page(page.relative_to(ROOT).as_posix(), page.read_text("utf-8")).blocks
    return [block for block in found if docs.is_run(block) or words_of(block.mark)]


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
    html = next(b for b in blocks(page_file) if words_of(b.mark).get("file") == "site/index.html")
    assert len(html.text.splitlines()) <= 42
    labels = set(re.findall(r"\*\*([^*]+)\*\*", text_between(page_file, "## 6.", "## What your")))

    def visit():
        """After everything was started, and before the operator looks."""
        visitors = []
        for first in range(2):
            context = browser.new_context(viewport={"width": 1280, "height": 1400})
            page = context.new_page()
            page.goto(f"http://localhost:{site}/")
            expect(page.locator("#things button")).to_have_count(12)
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

    with started() as browser:
        said = walk(page_file, tmp_path, changes, {"sottovoce serve status": visit})
    assert "Round 3 of 3, attempt 0: finished" in said[-2]
    assert said[-2].count("2 of 2 reported") == 3


@pytest.mark.slow
def test_the_researchers_tutorial(tmp_path):
    walk(TUTORIALS / "researcher.md", tmp_path, slow=True)


@pytest.mark.slow
def test_the_users_tutorial(tmp_path):
    from tab_world import built

    built()
    said = walk(TUTORIALS / "user.md", tmp_path, slow=True)
    assert "Recommended to r00011" in said[1]


SMALL_SHOP = """
import json, sys
from sottovoce.cli.demo import serve_shop
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
                    expect(page.locator("#preview")).to_contain_text("It arrived")
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
                expect(page.locator(".next button")).to_have_text(["Start again"])
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
    for page in sorted(HOW_TO.glob("*.md")) if blocks(page)
])  # fmt: skip
def test_a_how_to_page(name, tmp_path):
    walk(HOW_TO / f"{name}.md", tmp_path)


def test_a_line_that_is_not_printed_is_found():
    shown = "first\n…\nlast of … lines\n"
    assert differs(shown, "first\nsecond\nlast of 12 lines\n") == ""
    assert differs(shown, "last of 12 lines\nfirst\n") == "last of … lines"
    assert differs(shown, "second\nlast of 12 lines\n") == "first"
    assert differs("7 of 9\n", "8 of 9\n") == "7 of 9"
    vary = "7 of 9, 0a1b2c3d\n"
    assert differs(vary, "12 of 1,000, ffff0000\n", vary=True) == ""
    assert differs(vary, "none of 9, 0a1b2c3d\n", vary=True) == "7 of 9, 0a1b2c3d"
