"""A browser tab for people, in a real Chromium: the consent centre in a shop's page, and the
page of the docs."""

import csv
import hashlib
import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from chromium import browser, is_amiss, serious  # noqa: F401
from consent_world import HISTORY, GramTown, gram_terms
from people_world import Shop, link_of, page_of_the_docs
from playwright.sync_api import expect
from tab_world import CLIENT, built, trial_of, until, upstream_of

from sottovoce.cli import call
from sottovoce.wire.invitations import Invitation


@pytest.fixture
def shop():
    with Shop() as made:
        yield made


@pytest.fixture
def town(tmp_path, shop):
    town = GramTown(gram_terms(tmp_path))
    town.folder = tmp_path
    with town.serve() as server:
        shop.upstream = server.url
        yield town


@pytest.fixture
def context(browser, shop):  # noqa: F811
    """Named last by a test, so that it is closed before what it asks. The whole frame of the centre
    is in view, since nothing scrolls the page around it to a dialog that is not."""
    with browser.new_context(viewport={"width": 1280, "height": 1200}) as made:
        yield made


def invitation_to(town, shop):
    token = town.tokens[0].hex()
    return Invitation(shop.url, "", token, 0, town.terms.federation).to_table()


def opened(context, url):
    page = context.new_page()
    page.amiss = []
    page.on("console", lambda line: page.amiss.append(line.text) if is_amiss(line) else None)
    page.on("pageerror", lambda error: page.amiss.append(str(error)))
    page.goto(url)
    return page


def centre_of(page):
    """The consent centre within the page, once it is drawn."""
    frame = page.frame_locator("sottovoce-consent iframe")
    expect(frame.locator("[data-ready]")).to_be_visible()
    return frame


def device(page, call, *given):
    return page.evaluate("([call, given]) => window.device[call](...given)", [call, list(given)])


def shown_preview(frame):
    """What would leave now, once it is worked out."""
    preview = frame.locator("#preview")
    preview.get_by_role("button", name=re.compile("what would leave|Look again")).click()
    expect(preview.get_by_role("status").first).not_to_contain_text("Asking for")
    return preview


def pressed(preview):
    preview.get_by_role("button", name="Send exactly this").click()
    expect(preview).to_contain_text("It arrived, exactly as you saw it")


def agreed_and_takes_part(frame, voice="Low voice"):
    frame.locator("#terms").get_by_role("button", name="Agree to these terms").click()
    expect(frame.locator("#terms")).to_contain_text("You have agreed")
    choices = frame.locator("#choices")
    choices.get_by_role("switch", name="Take part").click()
    choices.get_by_text(voice).first.click()
    expect(choices).to_contain_text("of 100 cases")
    choices.get_by_role("button", name="Keep this choice").click()
    expect(frame.locator("#stands")).not_to_contain_text("do not take part")


@pytest.mark.smoke
def test_she_sees_chooses_sends_stops_and_deletes_in_a_tab(shop, town, context):
    page = opened(context, shop.url)
    page.wait_for_selector("[data-ready]")
    page.evaluate(
        "(given) => window.open_device({ invitation: given, automatic: false })",
        invitation_to(town, shop),
    )
    device(page, "visited", [list(one) for one in HISTORY])
    frame = centre_of(page)
    expect(frame.locator("#stands")).to_contain_text("Nothing of you was here")
    expect(frame.locator("main")).to_contain_text("Your history stays in this browser")
    expect(frame.locator("#terms")).to_contain_text("No sum is opened of fewer than 5 people")
    agreed_and_takes_part(frame)
    assert shop.posted == []

    # The server is told that she is there, when she sends that.
    preview = shown_preview(frame)
    expect(preview).to_contain_text("its key and your invitation")
    assert shop.posted == []
    pressed(preview)
    assert [path for path, _ in shop.posted] == ["/v1/enrol"]
    shown_preview(frame)
    expect(preview).to_contain_text("12 of your things count in it")

    # Three things and a category off: the preview is worked out anew.
    never = frame.locator("#never")
    for name in ("The Food place 0", "The Outdoors place 2", "The Arts place 4"):
        never.get_by_role("searchbox").fill(name)
        never.get_by_role("switch", name=name, exact=True).click()
        expect(never).to_contain_text("never sent")
    never.get_by_role("searchbox").fill("")
    never.locator("[data-rule=Food]").click()
    expect(preview).to_contain_text("6 of your things count in it")
    expect(preview).to_contain_text("6 things stay here")
    expect(preview).not_to_contain_text("The Food place 6")

    # What she saw, what left and what the ledger says are the same bytes.
    seen = device(page, "preview")
    pressed(preview)
    assert [path for path, _ in shop.posted] == ["/v1/enrol", "/v1/reports"]
    sums = [hashlib.sha256(body).hexdigest() for _, body in shop.posted]
    assert [one["sha256"] for one in seen["messages"]] == sums[1:]
    ledger = frame.locator("#ledger")
    expect(ledger).to_contain_text("Your part of a sum")
    with page.expect_download() as saved:
        ledger.get_by_role("button", name="CSV").click()
    table = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text())))
    assert sums[1] in {line["sha256"] for line in table}
    ledger.get_by_role("button", name="Receipt").first.click()
    dialog = frame.get_by_role("dialog")
    receipt = json.loads(dialog.locator("pre").inner_text())
    assert (receipt["sha256"], receipt["items"]) == (sums[1], 6)
    assert receipt["choice_in_force"]["never_send"]
    assert receipt["terms"] == town.terms.digest()
    expect(dialog).not_to_contain_text("The Food place")
    dialog.get_by_role("button", name="Close").click()

    # Recommendations, here and in the page around; links lead where the shop says.
    town.next_round()
    device(page, "refresh")
    best = device(page, "recommend", 5)
    listed = page.locator("sottovoce-recommendations a")
    expect(listed).to_have_count(5)
    assert [one.get_attribute("href") for one in listed.all()] == [
        f"/thing/{one['id']}" for one in best
    ]
    assert serious(page) == []
    assert serious(page.frames[1]) == []

    # New terms are shown as a difference.
    sent = len(shop.posted)
    town.terms = gram_terms(town.folder, min_devices=3)
    shown_preview(frame)
    expect(frame.locator("#terms")).to_contain_text("The terms have changed")
    expect(frame.locator("#terms")).to_contain_text("link.min_devices")

    # She stops: not even what is public is read. Then she deletes everything.
    stop = frame.locator("#stop")
    stop.get_by_role("button", name="Stop everything", exact=True).click()
    expect(frame.locator("#stands")).to_contain_text("stopped everything")
    asked = len(shop.asked)
    page.wait_for_timeout(700)
    assert (len(shop.asked), len(shop.posted)) == (asked, sent)
    stop.get_by_role("button", name="Forget everything here").click()
    dialog = frame.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("delete")
    dialog.get_by_role("button", name="Forget everything here").click()
    expect(frame.locator("main")).to_contain_text("Nothing of you is here any more")
    assert page.evaluate("indexedDB.databases().then((all) => all.length)") == 0
    assert page.amiss == []


KEEP = """async (files) => {
  const { keepOffline } = await import("/sottovoce/sottovoce.js");
  await keepOffline("/service-worker.js", files);
}"""
KEPT = "caches.open('sottovoce-2').then((kept) => kept.keys()).then((all) => all.length)"


def test_the_page_of_the_docs_takes_part_in_a_round(shop, tmp_path, context):
    page_text = page_of_the_docs()
    assert len(page_text.splitlines()) <= 40
    shop.pages["/"] = page_text.replace("https://federation.example", shop.url)
    assert shop.pages["/"] != page_text
    _, trial = trial_of(tmp_path / "services")
    with trial.running():
        shop.upstream = upstream_of(trial)
        out = tmp_path / "www"
        where = ("--out", str(out), "--server", shop.url, "--page", "https://shop.example")
        assert call(["serve", "site", str(trial.folder / "server"), *where]) == 0
        shop.library = out / "sottovoce"
        trial.operator().raise_target(1)
        page = opened(context, link_of(shop.url + "/", trial.invitation()))
        expect(page.locator("#things button")).to_have_count(12)
        assert "sv=" not in page.url, "an invitation does not stay in the address"
        for at in range(4):
            page.locator("#things button").nth(at).click()
        frame = centre_of(page)
        agreed_and_takes_part(frame)
        until(lambda: trial.round() == 1, 90)
        expect(frame.locator("#ledger")).to_contain_text("Your part of a sum")
        expect(frame.locator("#stands")).to_contain_text("Something left this device once")
        expect(page.locator("sottovoce-recommendations button")).to_have_count(5)
        assert page.amiss == []
        # Without a network the page comes from the service worker, says so, and recommends.
        shop.pages["/service-worker.js"] = (shop.library / "service-worker.js").read_text()
        files = ["/", "/sottovoce/sottovoce.js", "/sottovoce/elements.js"]
        page.evaluate(KEEP, files)
        until(lambda: page.evaluate(KEPT) >= len(files))
        shop.down = True
        page.reload()
        expect(page.locator("#things button")).to_have_count(12)
        expect(page.locator("sottovoce-recommendations button")).to_have_count(5)
        expect(page.locator("body")).to_contain_text("nobody answers at")
    log, _ = trial.log()
    assert not log[0]["missing"], "she was in it"
    assert [path for path, _ in shop.posted].count("/v1/reports") == 1


def test_a_wheel_has_what_was_built(tmp_path):
    built()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=CLIENT.parents[1], capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    files = ("sottovoce.js", "elements.js", "consent.html", "consent.js", "words/it.json")
    assert {f"sottovoce/browser/{name}" for name in files} <= names
