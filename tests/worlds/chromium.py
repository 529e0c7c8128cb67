"""The real browser of tests: where it is, how it is started, and what is said where there is
none."""

import contextlib
import os
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    "--host-resolver-rules=MAP rebound.example 127.0.0.1",
]


expect.set_options(timeout=60_000)  # a busy machine is no reason to give up


@contextlib.contextmanager
def started(profile=None):
    """Chromium; or, with the folder of a profile, its only context, which is kept there. Without
    one a test is skipped, or fails where services are required."""
    if not CHROMIUM.exists():
        sentence = "Chromium is not installed here (Debian: apt install chromium)"
        if os.environ.get("SOTTOVOCE_REQUIRE_SERVICES") == "1":
            pytest.fail(sentence)
        pytest.skip(sentence)
    with sync_playwright() as playwright:
        given = {"executable_path": str(CHROMIUM), "args": ARGUMENTS}
        if profile is None:
            browser = playwright.chromium.launch(**given)
        else:
            browser = playwright.chromium.launch_persistent_context(profile, **given)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser():
    """One for a module, with a new context for each test. Not for a session: as long as it is open,
    no other test could run an event loop."""
    with started() as opened:
        yield opened


def is_amiss(line):
    """Whether a line of the browser's log is one of ours: answers that are no success, and a server
    that is gone, are in it as well; tests ask for some."""
    return line.type in ("error", "warning") and "Failed to load resource" not in line.text


def serious(page, **options):
    """What axe-core finds of consequence."""
    quick = {"resultTypes": ["violations"], "preload": False, **options}
    found = Axe().run(page, options=quick).response["violations"]
    return [
        f"{one['id']}: {one['help']} {[node['target'] for node in one['nodes']][:3]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
