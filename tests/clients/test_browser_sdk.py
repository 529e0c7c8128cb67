"""The library of browser tabs, where Node is installed: its types, its tests, and what it weighs.

Nobody who uses Python needs Node. `make browser` does the same by hand.
"""

import json
import os
import sys
from pathlib import Path

import pytest
from tab_world import CLIENT, installed, run

VECTORS = Path(__file__).parents[1] / "vectors" / "device"
CHROMIUM = Path("/usr/bin/chromium")
HTML = "text/html"
ELSEWHERE = ("store", "oracle")
"""Tests of what the library stores and sends are run by `test_tab`; `_compared` asks the oracle."""
CORE = [
    name
    for one in sorted((CLIENT / "test").glob("*.test.ts"))
    if not (name := one.name.removesuffix(".test.ts")).startswith(ELSEWHERE)
]


@pytest.fixture(scope="module")
def npm():
    """Runs npm in the library's folder, where everything is installed that it needs."""
    installed()

    def asked(*command, **more):
        done = run(["npm", "run", "--silent", *command], **more)
        assert done.returncode == 0, done.stdout[-8000:]
        return done.stdout

    return asked


@pytest.mark.slow
def test_types_hold(npm):
    npm("types")


def test_a_tab_computes_what_the_vectors_say_and_refuses_the_rest(npm):
    said = npm("test", "--", *CORE, SOTTOVOCE_FUZZ="300")
    assert "# fail 0" in said
    assert "# pass 0" not in said


@pytest.mark.slow
def test_both_languages_compute_the_same(npm):
    """A few random inputs; the long run has ten thousand."""
    _compared(npm, 20)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_both_languages_compute_the_same_for_long(npm):
    _compared(npm, 10_000)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_whatever_comes_is_read_or_refused(npm):
    assert "# fail 0" in npm("test", "--", "fuzz", SOTTOVOCE_FUZZ="100000")


def test_it_is_small(npm):
    """The build fails where it is not."""
    assert "SDK: " in npm("build")


ONE_PASS = """() => Math.min(...Array.from({ length: 20 }, () => {
  const numbers = new Float32Array(5000 * 130).fill(0.5), begin = performance.now();
  let sum = 0;
  for (let k = 0; k < numbers.length; k++) sum += numbers[k] * numbers[k];
  return sum > 0 ? performance.now() - begin : 0;
}))"""
"""Milliseconds in which this browser goes once through a model of the size of `speed()`."""


@pytest.mark.slow
def test_a_real_browser_computes_the_same_and_is_quick(npm, tmp_path):
    if not CHROMIUM.exists() and not os.environ.get("SOTTOVOCE_REQUIRE_SERVICES"):
        pytest.skip("Chromium is not installed")
    from playwright.sync_api import sync_playwright

    script = tmp_path / "page.js"
    build = CLIENT / "node_modules" / ".bin" / "esbuild"
    done = run([build, "test/page.ts", "--bundle", "--format=iife", f"--outfile={script}"])
    assert done.returncode == 0, done.stdout
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.route("**/*", lambda route: route.fulfill(body="<title>x</title>", content_type=HTML))
        page.goto("http://localhost/")  # is secure, as WebCrypto wants it
        page.add_script_tag(content=script.read_text())
        known, kind = page.evaluate("functions"), page.evaluate("kindOfKey()")
        for name, cases in _cases():
            if name in known:
                asked = [name, [case.pop("in") for case in cases]]
                assert page.evaluate("([name, all]) => answeredAll(name, all)", asked) == cases
        took, one_pass = page.evaluate("speed()"), page.evaluate(ONE_PASS)
        browser.close()
    assert kind == "webcrypto", "a key of this browser cannot be taken out of it"
    print(took, one_pass)
    assert took["contribution"] < 1000 * one_pass
    assert took["list"] < 100 * one_pass


def _cases():
    """Of the vectors; but for numbers that have a point and are whole, and compressed reports."""
    for path in sorted(VECTORS.glob("*.json")):
        for name, cases in json.loads(path.read_text()).items():
            if name not in ("descriptor", "read_report", "terms"):
                yield name, cases


def _compared(npm, inputs):
    there = (Path(__file__).parents[1] / "worlds" / "cross_language.py").exists()
    if not there and not os.environ.get("SOTTOVOCE_REQUIRE_SERVICES"):
        pytest.skip("there is no oracle in this tree to compare with")
    told = {"SOTTOVOCE_PYTHON": sys.executable, "SOTTOVOCE_INPUTS": str(inputs)}
    said = npm("test", "--", "oracle", timeout=3500, **told)  # pytest's own limit is what holds
    assert "# fail 0" in said
    assert "# skipped 0" in said, "there is no oracle to compare with"
