"""The console in a real Chromium, on a real server with 200 devices."""

import contextlib
import json
import re
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from chromium import is_amiss, serious
from console_world import GOOD, WORSE, ConsoleServer, Crowd, log_of, offer, signed
from playwright.sync_api import expect
from server_world import new_folder
from talk import until

from sottovoce.stores import server as records
from sottovoce.stores.database import contacts, devices, rounds

PLACES = ("now", "devices", "model", "terms", "health", "log")


class Window:
    """An operator's browser; nothing may be amiss in it, and nobody else is asked."""

    def __init__(self, browser, **how):
        size = {"width": how.pop("width", 1200), "height": 900}
        self.context = browser.new_context(viewport=size, reduced_motion="reduce", **how)
        self.context.set_default_timeout(60_000)
        self.asked, self.amiss, self.origins = [], [], []
        self.context.on("request", lambda request: self.asked.append(request.url))
        self.page = self.tab()

    def tab(self):
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.amiss.append(str(error)))
        page.on("console", lambda line: self.amiss.append(line.text) if is_amiss(line) else None)
        return page

    def open(self, link):
        self.origins.append(link.partition("/open")[0] + "/")
        self.page.goto(link)
        self.page.wait_for_selector("[data-ready]")
        return self.page

    def close(self):
        self.context.close()
        assert self.amiss == []
        ours = ("blob:", "data:", *self.origins)
        assert [url for url in self.asked if not url.startswith(ours)] == []


@pytest.fixture
def window(browser):
    windows = []

    def make(**how):
        windows.append(Window(browser, **how))
        return windows[-1]

    yield make
    for one in windows:
        one.close()


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """Eight devices after two rounds."""
    folder = new_folder(tmp_path_factory.mktemp("console") / "town", rounds=9)
    with ConsoleServer(folder) as server:
        with server.client() as client:
            crowd = Crowd(users=8)
            crowd.enrol(folder, client)
            for round in range(2):
                client.wait(state="open", round=round)
                offer(folder, round + 1, (GOOD, WORSE)[round])
                crowd.run_round(client)
            client.wait(state="open", round=2)
        yield server


def go(page, place):
    page.get_by_role("navigation").get_by_role("link", name=place).click()


def confirm(page, name):
    """The second press; the dialog is gone when it is done."""
    dialog = page.locator("dialog[open]")
    dialog.get_by_role("button", name=name, exact=True).click()
    expect(dialog).to_have_count(0)


def choose_device(page, number):
    page.get_by_label("Search").fill(str(number))
    page.get_by_role("checkbox", name=f"Device {number}", exact=True).check()


# --- a run of a day, by clicks --------------------------------------------------------------------


def test_a_run_with_two_hundred_devices_by_clicks_alone(window, tmp_path):
    folder = new_folder(tmp_path / "town", rounds=4, min_devices=200)
    crowd = Crowd(users=200)
    anna = window()
    with ConsoleServer(folder) as server, server.client() as client:
        crowd.enrol(folder, client)
        page = anna.open(server.link(name="anna"))
        expect(page.locator(".stands")).to_have_text("Round 0 is open: 0 of 200 reports are in.")
        offer(folder, 1, GOOD)
        assert set(crowd.run_round(client)) == {204}
        expect(page.locator(".stands")).to_contain_text("Round 1 is open")
        expect(page.locator(".rounds .row")).to_have_count(1)
        expect(page.locator(".rounds .row")).to_contain_text("200 of 200")
        expect(page.locator("#rounds .chart rect.good").first).to_be_visible()

        # Pause: the open round goes on to its end, and no other is opened.
        page.get_by_role("button", name="Pause").click()
        page.get_by_label("Why").fill("new disk")
        confirm(page, "Pause")
        expect(page.locator(".pill")).to_have_text("paused")
        expect(page.locator(".stands")).to_contain_text(
            re.compile(r"by anna \(uid .+\): new disk\. Round 1 is open")
        )
        offer(folder, 2, WORSE)
        assert set(crowd.run_round(client)) == {204}
        expect(page.locator(".tiles")).to_contain_text("2 of 4")
        expect(page.locator(".reason")).to_contain_text("has paused rounds: new disk")
        assert client.round()["state"] == "waiting"

        # One shut-out, found by number.
        go(page, "Devices")
        expect(page.locator("#devices .count")).to_have_text("200 devices")
        choose_device(page, 17)
        expect(page.get_by_role("button", name="Let device 17 in again")).to_have_count(0)
        page.get_by_role("button", name="Shut out device 17").click()
        confirm(page, "Shut out")
        expect(page.locator(".told")).to_contain_text("Shut out: 17.")

        go(page, "Rounds")
        page.get_by_role("button", name="Go on").click()
        confirm(page, "Go on")
        client.wait(state="open", round=2)
        expect(page.locator(".stands")).to_contain_text("Round 2 is open: 0 of 199")

        # The model is worse than the one before: one click back.
        go(page, "Model")
        expect(page.locator("#model")).to_contain_text("Devices recommend by version 2.")
        expect(page.locator(".chart.quality circle")).to_have_count(2)
        page.get_by_role("button", name="Roll back to this").click()
        confirm(page, "Roll back")
        expect(page.locator("#model")).to_contain_text("Devices recommend by version 1.")
        client.wait(published=1)

        # The server is started anew: the page says that nobody answers.
        before = server.ready["pid"]
        assert server.stop() == 0
        expect(page.get_by_role("alert").filter(has_text="does not answer")).to_be_visible()
    with ConsoleServer(folder) as server, server.client() as client:
        assert server.ready["pid"] != before
        client.wait(state="open", round=2)
        page = anna.open(server.link(name="anna"))  # a new link goes on where the old one was
        expect(page.locator(".stands")).to_contain_text("Round 2 is open: 0 of 199")
        expect(page.get_by_role("alert").filter(has_text="does not answer")).to_have_count(0)

        # Another shut-out, and all of it is in the log.
        assert crowd.run_round(client, [101, 102]) == [204, 204]  # what was sent before counts
        go(page, "Devices")
        choose_device(page, 101)
        page.get_by_role("button", name="Shut out device 101").click()
        confirm(page, "Shut out")
        page.get_by_label("Which").select_option("shut-out")
        page.get_by_label("Search").fill("")
        expect(page.locator("#devices .count")).to_have_text("2 devices")
        page.get_by_role("checkbox", name="Device 17", exact=True).check()
        expect(page.get_by_role("button", name="Let device 17 in again")).to_be_visible()
        expect(page.get_by_role("button", name="Shut out device")).to_have_count(0)
        others = [number for number in range(200) if number not in (17, 101, 102)]
        assert set(crowd.run_round(client, [17])) == {403}
        assert set(crowd.run_round(client, others)) == {204}
        client.wait(state="open", round=3)
        go(page, "Log")
        expect(page.locator(".log .row")).to_have_count(5)
        expect(page.locator(".log .row").first).to_contain_text("shut out: 101")
    done = [(one["who"], one["how"], one["what"]) for one in log_of(folder)]
    acts = ["pause", "shut_out", "go_on", "publish", "shut_out"]
    assert done == [(signed("anna"), "console", what) for what in acts]


# --- sentences ------------------------------------------------------------------------------------


def test_two_operators_and_who_comes_second_is_told(window, town):
    anna, carla = window(), window()
    first, second = anna.open(town.link(name="anna")), carla.open(town.link(name="carla"))
    for page in (first, second):
        page.get_by_role("button", name="Pause").click()
    confirm(first, "Pause")
    dialog = second.locator("dialog[open]")
    dialog.get_by_role("button", name="Pause", exact=True).click()
    expect(dialog.get_by_role("alert")).to_have_text(
        re.compile(
            rf"^rounds were paused at \d\d:\d\d by {re.escape(signed('anna'))}; nothing was done$"
        )
    )
    dialog.get_by_role("button", name="Cancel").click()
    expect(second.get_by_role("button", name="Go on")).to_be_visible()
    second.get_by_role("button", name="Go on").click()
    confirm(second, "Go on")
    expect(first.get_by_role("button", name="Pause")).to_be_visible()
    assert [one["who"] for one in log_of(town.folder)[-2:]] == [signed("anna"), signed("carla")]


def test_no_answer_and_a_second_press_do_nothing_twice(window, town):
    page = window().open(town.link())
    go(page, "Devices")
    before = len(log_of(town.folder))

    def lose(route):
        """It arrives, and the answer is lost."""
        route.fetch()
        route.abort()

    page.route("**/api/label", lose)
    page.get_by_role("button", name="Label of device 3").click()
    page.get_by_label("Label", exact=True).fill("cellar")
    dialog = page.locator("dialog[open]")
    dialog.get_by_role("button", name="Label", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("it is not done twice")
    page.unroute("**/api/label")
    confirm(page, "Label")
    expect(page.locator(".devices .row").nth(3)).to_contain_text("cellar")
    assert [one["what"] for one in log_of(town.folder)[before:]] == ["label"]


def test_nothing_inline_runs_and_nobody_else_is_reached(window, town):
    anna = window()
    page = anna.open(town.link())
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
            document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='ran = true'>");
        }"""
    )
    reached = page.evaluate("fetch('https://example.org/').then(() => true, () => false)")
    assert (page.evaluate("window.ran"), reached) == (None, False)
    assert page.evaluate("document.cookie") == ""
    assert any("Content Security Policy" in text for text in anna.amiss)
    anna.amiss.clear()
    anna.asked[:] = [url for url in anna.asked if "example.org" not in url]


def test_who_may_look_finds_nothing_to_press(window, town):
    page = window().open(town.link("look", "bruno"))
    expect(page.locator(".who").first).to_have_text("bruno, may look")
    for place in PLACES:
        page.evaluate(f"location.hash = '#/{place}'")
        expect(page.locator("main section").first).to_be_visible()
        page.wait_for_timeout(300)
        assert page.locator("[data-deed]").count() == 0
        assert page.locator("main input[type=checkbox]").count() == 0


def test_a_token_that_was_changed_while_the_page_is_open(window, town):
    anna, bruno = window(), window()
    page, other = anna.open(town.link()), bruno.open(town.link("look", "bruno"))
    go(page, "Health")
    page.get_by_role("button", name="Change the viewers' token").click()
    confirm(page, "Change it")
    banner = "The token by which you came in was changed; open the console anew with "
    banner += "`sottovoce console`."
    expect(other.locator(".banner")).to_have_text(banner)
    expect(page.locator(".banner")).to_be_hidden()
    page.get_by_role("button", name="Change the operators' token").click()
    confirm(page, "Change it")
    expect(page.locator(".banner")).to_have_text(banner)
    page = anna.open(town.link())
    expect(page.locator(".banner")).to_be_hidden()


def test_an_old_tab_says_so_and_does_nothing(window, tmp_path):
    folder = new_folder(tmp_path / "town")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    anna = window()
    with ConsoleServer(folder, "--console-port", port) as server:
        old = anna.open(server.link())
        old.get_by_role("button", name="Pause").click()
        server.stop()
    with ConsoleServer(folder, "--console-port", port) as server:
        expect(old.locator(".banner")).to_contain_text("the server was started anew")
        anna.page = anna.tab()
        new = anna.open(server.link())  # the same browser has the cookie for both tabs
        old.locator("dialog[open]").get_by_role("button", name="Pause", exact=True).click()
        sentence = "This page is from before. Load it again. Nothing was done."
        expect(old.locator("dialog[open] [role=alert]")).to_have_text(sentence)
        assert new.evaluate("fetch('api/state').then((r) => r.json())")["paused"] is None
        old.get_by_role("button", name="Cancel").click()
        old.get_by_role("button", name="Load this page again").click()
        old.wait_for_selector("[data-ready]")
        expect(old.locator(".banner")).to_be_hidden()
    assert log_of(folder) == []


def test_invitations_come_as_one_download(window, town):
    page = window().open(town.link())
    go(page, "Devices")
    page.get_by_role("button", name="Invite").click()
    page.get_by_label("How many").fill("2")
    page.get_by_label("Label for all").fill("lab")
    with page.expect_download() as download:
        confirm(page, "Invite and download")
    assert re.fullmatch(r"devices-\d+-\d+\.zip", download.value.suggested_filename)
    expect(page.locator(".told")).to_contain_text("is kept nowhere else")
    page.get_by_label("Which").select_option("invited")
    expect(page.locator("#devices .count")).to_have_text("2 devices")


# --- for everybody --------------------------------------------------------------------------------


@pytest.mark.parametrize("look", [{}, {"color_scheme": "dark"}, {"width": 360}], ids=str)
def test_no_serious_finding_and_no_sideways_scrolling(window, town, look):
    page = window(**look).open(town.link())
    for place in PLACES:
        page.evaluate(f"location.hash = '#/{place}'")
        page.wait_for_timeout(600)
        assert serious(page) == [], place
        assert page.evaluate("document.documentElement.scrollWidth") <= look.get("width", 1200)
    page.evaluate("location.hash = '#/now'")
    page.get_by_role("button", name="Pause").click()
    assert serious(page) == []
    if look.get("width"):
        assert page.locator("dialog[open]").evaluate("one => one.scrollWidth") <= 360


def test_every_act_with_the_keyboard_alone(window, town):
    page = window().open(town.link())
    before = len(log_of(town.folder))

    def reach(target):
        for _ in range(80):
            if target.evaluate("one => one === document.activeElement"):
                assert target.evaluate("one => getComputedStyle(one).outlineStyle") != "none"
                return
            page.keyboard.press("Tab")
        raise AssertionError("the keyboard does not get there")

    def press(target):
        expect(target).to_be_visible()
        reach(target)
        page.keyboard.press("Enter")

    dialog = page.locator("dialog[open]")
    press(page.get_by_role("button", name="Pause"))
    page.keyboard.type("by hand")
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    press(page.get_by_role("button", name="Go on"))
    press(dialog.get_by_role("button", name="Go on", exact=True))
    expect(dialog).to_have_count(0)
    press(page.get_by_role("link", name="Devices"))
    reach(page.get_by_role("checkbox", name="Device 2", exact=True))
    page.keyboard.press("Space")
    for deed, yes in (("Shut out device 2", "Shut out"),):
        press(page.get_by_role("button", name=deed))
        press(dialog.get_by_role("button", name=yes, exact=True))
        expect(dialog).to_have_count(0)
    reach(page.get_by_role("checkbox", name="Device 2", exact=True))
    page.keyboard.press("Space")
    press(page.get_by_role("button", name="Let device 2 in again"))
    press(dialog.get_by_role("button", name="Let in", exact=True))
    expect(dialog).to_have_count(0)
    page.keyboard.press("Shift+Tab")
    press(page.get_by_role("link", name="Model"))
    press(
        page.get_by_role("button", name="Roll back to this")
        .or_(page.get_by_role("button", name="Publish"))
        .first
    )
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    done = [one["what"] for one in log_of(town.folder)[before:]]
    assert done == ["pause", "go_on", "shut_out", "readmit"]


# --- quick ----------------------------------------------------------------------------------------


def many_devices(path, many):
    """A federation of so many devices, with 60 rounds in each of which all of them were missing."""
    folder = new_folder(path, min_devices=10**6)
    database = folder.database()
    with database.writing() as link:
        for start in range(0, many, 10_000):
            numbers = range(start, min(start + 10_000, many))
            link.execute(
                devices.insert(),
                [
                    {
                        "number": n,
                        "token_hash": n.to_bytes(32, "big"),
                        "public_key": n.to_bytes(32, "little") if n % 10 else None,
                        "missed": 0,
                        "dormant": n % 7 == 0,
                    }
                    for n in numbers
                ],
            )
            at = "2026-11-17T12:00+00:00"
            rows = [
                {"number": n, "label": f"shelf {n}", "enrolled": at, "last_contact": at}
                for n in numbers
            ]
            link.execute(contacts.insert(), rows)
        records.shut(link, range(0, 300, 3))
        everybody = records.packed(np.arange(many))
        link.execute(
            rounds.insert(),
            [
                {"round": n, "attempt": 1, "state": "abandoned", "goal": many, "asked": many,
                 "reported": 0, "missing": everybody, "outcome": "abandoned", "seconds": 60.0}
                for n in range(60)
            ],
        )  # fmt: skip
    database.close()
    return folder


def test_every_view_of_many_devices_is_as_light_as_that_of_few(window, tmp_path):
    """What a browser asks for, gets and draws; what it costs the server is in test_operating.py."""
    found = {}
    for many in (1_000, 20_000):
        with ConsoleServer(many_devices(tmp_path / f"town-{many}", many)) as server:
            anna = window()
            page = anna.open(server.link())
            page.evaluate("performance.setResourceTimingBufferSize(10000)")
            for place, shown in SHOWN.items():
                page.evaluate(f"location.hash = '#/{place}'")
                page.wait_for_selector(shown)
                found[many, f"{place}, drawn"] = page.evaluate(
                    "document.querySelectorAll('*').length"
                )
            page.evaluate("location.hash = '#/devices'")
            page.get_by_label("Search").fill(f"shelf {many - 1}")
            expect(page.locator("#devices .count")).to_have_text("1 device")
            seat = server.come_in()
            last = f"offset={many - 100}"
            for path in (
                "state", f"devices?{last}", "devices?which=silent&query=shelf", "rounds",
                f"missing?round=5&attempt=1&{last}",
            ):  # fmt: skip
                found[many, path.replace(last, "")] = len(json.dumps(seat.look(path)))
    names = {name for _, name in found}
    assert len(names) == len(SHOWN) + 5
    for name in names:
        assert found[20_000, name] < 1.5 * found[1_000, name], (name, found)


SHOWN = {
    "devices": "#devices .row .label",
    "model": "#model",
    "terms": "#terms dd",
    "health": "#storage dd",
    "log": "#log",
    "now": ".rounds .row .missing",
}


def wakes(pid):
    """How often a process has waited and gone on, in all of its threads."""
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            words = (task / "status").read_text().split("\nvoluntary_ctxt_switches:")[1]
            found += int(words.split()[0])
    return found


HIDE = """() => {
    Object.defineProperty(document, "visibilityState", {get: () => window.shown ?? "hidden"});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_it_costs_next_to_nothing_when_nobody_looks(window, town):
    def wakes_a_second(seconds=4.0):
        begun, start = wakes(town.ready["pid"]), time.monotonic()
        time.sleep(seconds)
        return (wakes(town.ready["pid"]) - begun) / (time.monotonic() - start)

    anna = window()
    page = anna.open(town.link())
    page.evaluate(HIDE)
    page.wait_for_timeout(500)
    before = len(anna.asked)
    hidden = wakes_a_second()
    page.wait_for_timeout(100)
    assert len(anna.asked) == before, "a hidden page asks nothing"
    page.evaluate("window.shown = 'visible', document.dispatchEvent(new Event('visibilitychange'))")
    until(lambda: page.wait_for_timeout(50) or len(anna.asked) > before)
    page.close()
    nobody = wakes_a_second()
    assert max(hidden, nobody) <= 50


def test_numbers_that_cannot_be_are_not_sent(window, town):
    anna = window()
    page = anna.open(town.link())
    go(page, "Devices")
    page.locator('[data-deed="invite"]').click()
    dialog = page.locator("dialog[open]")
    for wrong in ("", "0", "10001", "1.5"):
        dialog.get_by_label("How many").fill(wrong)
        dialog.get_by_role("button", name="Invite and download").click()
        assert dialog.get_by_label("How many").evaluate("one => !one.validity.valid"), wrong
    assert [url for url in anna.asked if url.endswith("/api/invite")] == []
