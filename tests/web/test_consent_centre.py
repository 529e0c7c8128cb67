"""A person's whole way through the consent centre, in a real Chromium, on a real page process, with
a federation that keeps every byte that reaches it."""

import contextlib
import csv
import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from consent_world import GramTown, gram_terms, newcomer
from playwright.sync_api import expect

COMMAND = str(Path(sys.executable).with_name("sottovoce"))


@contextlib.contextmanager
def centre(*stores):
    """The page's process; gives its one-time link."""
    process = subprocess.Popen(
        [COMMAND, "device", "page", *map(str, stores), "--plaintext", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield json.loads(process.stdout.readline())["url"], process
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture
def town(tmp_path):
    town = GramTown(gram_terms(tmp_path))
    with town.serve() as server:
        town.url = server.url
        newcomer(tmp_path / "me", town, server.url)
        yield town


def part(page, name):
    return page.locator(f"#{name}")


def look_again(page):
    """What would leave now, once it is worked out."""
    with page.expect_response("**/api/preview") as answer:
        part(page, "preview").get_by_role("button", name="what would leave").or_(
            part(page, "preview").get_by_role("button", name="Look again")
        ).click()
    return answer.value.json()


def press(page):
    with page.expect_response("**/api/send") as answer:
        part(page, "preview").get_by_role("button", name="Send exactly this").click()
    return answer.value.json()


def test_a_new_user_sees_chooses_sends_stops_and_deletes(browser, town, tmp_path):
    with centre(tmp_path / "me") as (url, _), browser.new_context() as context:
        asked = []
        context.on("request", lambda request: asked.append(request.url))
        page = context.new_page()
        problems = []
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else 0)
        page.goto(url)
        page.wait_for_selector("[data-ready]")

        # She reads where she stands.
        expect(part(page, "stands")).to_contain_text("Nothing has left this device")
        assert [r for r in town.heard if r.method == "POST"] == []

        # She asks for the terms, which sends nothing, reads them and agrees.
        part(page, "terms").get_by_role("button", name="Ask for the terms").click()
        agree = part(page, "terms").get_by_role("button", name="Agree to these terms")
        expect(agree).to_be_visible()
        expect(part(page, "terms")).to_contain_text("No sum is opened of fewer than 5 people")
        agree.click()
        expect(part(page, "terms")).to_contain_text("You have agreed")
        assert [r for r in town.heard if r.method == "POST"] == []

        # She chooses to take part, in a low voice, and keeps that.
        part(page, "choices").get_by_role("switch", name="Take part").click()
        part(page, "choices").get_by_text("Low voice").first.click()
        expect(part(page, "choices")).to_contain_text("of 100 cases")
        part(page, "choices").get_by_role("button", name="Keep this choice").click()
        expect(part(page, "stands")).not_to_contain_text("do not take part")

        # The server is told that she is there, when she sends that.
        first = look_again(page)
        assert [one["what"]["key"] for one in first["messages"]] == ["preview.enrolment"]
        assert press(page)["state"] == "arrived"
        assert len(town.bodies("/v1/enrol")) == 1

        # Three things and a category off; the preview changes each time.
        before = look_again(page)
        assert before["total"] == 12
        for name in ("The Food place 0", "The Outdoors place 2", "The Arts place 4"):
            with page.expect_response("**/api/preview"):
                part(page, "never").get_by_role("searchbox").fill(name)
                part(page, "never").get_by_role("switch", name=name, exact=True).click()
        part(page, "never").get_by_role("searchbox").fill("")
        with page.expect_response("**/api/preview") as answer:
            part(page, "never").locator("[data-rule=Food]").click()
        shown = answer.value.json()
        assert (shown["total"], shown["kept_back"]) == (6, 6)
        assert shown["nonce"] != before["nonce"]
        expect(part(page, "preview")).to_contain_text("6 of your things count in it")
        expect(part(page, "preview")).not_to_contain_text("The Food place 6")

        # What she saw, what left and what the ledger says are the same bytes.
        session = context.request.get(page.url.rstrip("/") + "/api/preview/body?store=s0&index=0")
        seen = session.body()
        assert hashlib.sha256(seen).hexdigest() == shown["messages"][0]["sha256"]
        assert press(page)["state"] == "arrived"
        assert town.bodies() == [seen]
        expect(part(page, "ledger")).to_contain_text("Your part of a sum")
        rows = page.evaluate("fetch('api/ledger?store=s0').then((r) => r.json())")["rows"]
        sent = [row for row in rows if row["sha256"]]
        assert [(one["sha256"], one["bytes"]) for one in sent] == [
            (hashlib.sha256(seen).hexdigest(), len(seen))
        ]
        inside = page.evaluate(f"fetch('api/ledger/row?store=s0&row={sent[0]['id']}')"
                               ".then((r) => r.json())")  # fmt: skip
        assert {one["item"] for one in inside["items"]} == {one["item"] for one in shown["items"]}
        assert inside["receipt"]["sha256"] == sent[0]["sha256"]
        with page.expect_download() as saved:
            part(page, "ledger").get_by_role("button", name="CSV").click()
        table = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text())))
        assert sent[0]["sha256"] in {line["sha256"] for line in table}

        # The terms change: nothing leaves, she sees the difference, and agrees to it.
        town.next_round()
        town.terms = gram_terms(tmp_path, min_devices=3)
        assert not look_again(page)["ready"]
        expect(part(page, "terms")).to_contain_text("The terms have changed")
        expect(part(page, "terms")).to_contain_text("link.min_devices")
        part(page, "terms").get_by_role("button", name="Agree to these terms").click()
        expect(part(page, "terms")).to_contain_text("You have agreed")
        assert look_again(page)["ready"]
        assert press(page)["state"] == "arrived"
        assert len(town.bodies()) == 2

        # She stops: from here on only what is public is read; then not even that.
        page.wait_for_timeout(400)
        sent_before = len([r for r in town.heard if r.method == "POST"])
        part(page, "stop").get_by_role("button", name="Stop now").click()
        expect(part(page, "stands")).to_contain_text("do not take part")
        for _ in range(10):
            town.next_round()
            assert not look_again(page)["ready"]
        assert len([r for r in town.heard if r.method == "POST"]) == sent_before
        part(page, "stop").get_by_role("button", name="Stop everything", exact=True).click()
        expect(part(page, "stands")).to_contain_text("stopped everything")
        heard = len(town.heard)
        page.reload()
        page.wait_for_selector("[data-ready]")
        page.wait_for_timeout(500)
        assert len(town.heard) == heard

        # She deletes everything here.
        part(page, "stop").get_by_role("button", name="Forget everything here").click()
        confirm(page)
        expect(page.locator("main")).to_contain_text("There is no store here")
        assert not (tmp_path / "me").exists()
        here = page.url
        assert all(one.startswith((here, "blob:", "data:")) or "/open?key=" in one for one in asked)
        assert problems == []


def confirm(page):
    """What cannot be undone is said before, and asked for twice."""
    dialog = page.locator("dialog[open]")
    expect(dialog).to_be_visible()
    field = dialog.get_by_role("textbox")
    if field.count():
        field.fill("delete")
    dialog.get_by_role("button").last.click()
