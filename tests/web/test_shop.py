"""The demo's shop, in a real Chromium, with real processes: a visitor, whose tab is her device,
clicks places, takes part and sees what a round changes; nothing of her clicks leaves but by the
door, and nothing of the demo stays."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from chromium import serious, started
from playwright.sync_api import expect
from tab_world import built

from sottovoce.errors import FolderInUse, ServiceError
from sottovoce.runs import shop as shops
from sottovoce.runs.shop import ShopTown, shop_folder, tab_library
from sottovoce.web.process import PageProcess
from sottovoce.web.shop import SHOP_CALLS, Shop

FEW = [
    *("town.residents=120", "link.min_devices=50", "service.deadline_seconds=60.0"),
    *("release.epsilon=64.0", "consent={epsilon=64.0, total_epsilon=1024.0}"),
]
"""A smaller town, which is there sooner, and loud enough that so few can be learnt from."""
"""On a machine that does other things, too; alone, the demo is ready within 20 seconds."""


@pytest.fixture(autouse=True, scope="module")
def library():
    """The visitor is a tab: without its files there is no shop."""
    return built()


@contextlib.contextmanager
def opened(folder, settings=FEW, **options):
    """Everything of the demo, with its page in a thread of this process."""
    town, links = ShopTown(folder, lambda words: None, settings=settings, **options), []
    with contextlib.ExitStack() as stack:
        stack.callback(town.close)
        town.prepare()
        page = PageProcess(
            Shop(town), links.append, port=town.page_port, calls=SHOP_CALLS, start="shop.html",
            library=tab_library(print), talks_to=town.url,
        )  # fmt: skip
        town.start()
        thread = threading.Thread(target=lambda: asyncio.run(page.serve()))
        thread.start()
        stack.callback(thread.join, 10)
        stack.callback(page.stop)
        until(lambda: links)
        yield town, links[0]


def until(found, seconds=60.0, watch=lambda: None):
    end = time.monotonic() + seconds
    while not (there := found()):
        watch()
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
    return there


@contextlib.contextmanager
def browsing(link, profile=None, **options):
    with started(profile) as browser:
        context = browser.new_context(**options) if profile is None else browser
        page = context.new_page()
        page.troubles, page.asked, page.left = [], [], []
        page.on("console", lambda m: page.troubles.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("request", lambda one: page.left.append(one) if "/v1/" in one.url else None)
        page.goto(link)
        page.wait_for_selector("[data-open]")
        yield page


def part(page, name):
    return page.locator(f"#{name}")


def titles(page, where):
    return page.locator(f"{where} li .name").evaluate_all("all => all.map(e => e.firstChild.data)")


def take_part(page):
    page.get_by_role("button", name="Read the terms").click()
    part(page, "terms").get_by_role("button", name="Agree to these terms").click()
    page.get_by_role("button", name="Choose", exact=True).click()
    part(page, "choices").get_by_role("switch", name="Take part").click()
    part(page, "choices").get_by_text("Low voice").first.click()
    part(page, "choices").get_by_role("button", name="Keep this choice").click()


def look(page):
    """Digests of what would leave, as she is shown them."""
    page.locator(".next").get_by_role("button", name="Look at what would leave").click()
    preview = part(page, "preview")
    button = preview.get_by_role("button", name="what would leave")
    button.or_(preview.get_by_role("button", name="Look again")).click()
    sends = preview.get_by_role("button", name="Send exactly this")
    expect(sends).to_be_enabled()
    for one in preview.locator("details:has(sv-bytes)").all():
        one.evaluate("one => (one.open = true)")
    expect(preview.locator(".checked.right").first).to_be_visible()
    return preview.locator(".digest code").all_inner_texts()


def press(page):
    part(page, "preview").get_by_role("button", name="Send exactly this").click()
    expect(part(page, "preview")).to_contain_text("It arrived, exactly as you saw it")


def posts(page):
    return [one for one in page.left if one.method == "POST"]


def digest(body):
    return hashlib.sha256(body).hexdigest()


@pytest.mark.slow
def test_a_visitor_clicks_takes_part_and_sees_her_list_change(tmp_path):
    with opened(tmp_path / "shop") as (town, link), browsing(link) as page:
        until(lambda: (town.facts() or {}).get("round") == 3)  # residents wait from here on
        expect(page.locator(".side .mine li")).to_have_count(10)
        everybody = titles(page, ".side .mine")
        clicked = []
        for kind, many in ((2, 6), (5, 4)):
            cards = page.locator(".kind").nth(kind).locator(".place")
            for at in range(many):
                cards.nth(at).click()
                clicked.append((cards.nth(at).get_attribute("data-item"),
                                cards.nth(at).locator(".name").inner_text()))  # fmt: skip
        expect(page.locator(".been li")).to_have_count(10)
        expect(page.locator(".place[aria-pressed=true]")).to_have_count(10)
        mine = titles(page, ".side .mine")
        assert mine != everybody, "her visits count at once, at home"
        assert not {title for _, title in clicked} & set(mine)
        expect(page.locator(".strip .left")).to_contain_text("Nothing of you was here")
        assert posts(page) == []

        # First a place, then her part; each leaves when she has seen it, and as she has seen it.
        take_part(page)
        expect(page.locator(".next")).to_contain_text("asks for a place")
        shown = look(page)
        assert len(shown) == 1
        assert posts(page) == [], "she has only looked"
        press(page)
        expect(page.locator(".next")).to_contain_text("to the last byte")
        shown += look(page)
        assert [urlsplit(one.url).path for one in posts(page)] == ["/v1/enrol"]
        number = page.locator("#page").get_attribute("data-round")
        expect(page.locator(".strip .where")).to_contain_text(f"Round {number} ")
        press(page)
        changes = page.locator(".changes-made")
        expect(changes).to_be_visible(timeout=240_000)
        before, after = titles(page, ".before"), titles(page, ".after")
        assert before == mine, "the same visits"
        assert after != before, "the model is another one"
        expect(changes).to_contain_text("Not all of this comes from you.")
        expect(page.locator(".next")).to_contain_text("your list has changed")
        expect(page.locator(".strip .left")).to_contain_text("Something left this device once")
        past = town.facts()["rounds"][3]
        assert past["reported"] == past["asked"] == town.residents + 1, "she was counted"

        # What left is what was shown, and nothing of her clicks is in it, or in any question.
        assert [urlsplit(one.url).path for one in posts(page)] == ["/v1/enrol", "/v1/reports"]
        assert [digest(one.post_data_buffer) for one in posts(page)] == shown
        for one in page.left:
            told = f"{one.method} {one.url} {one.headers}".encode() + (one.post_data_buffer or b"")
            for item, title in clicked:
                assert item.encode() not in told.lower(), one.url
                assert title.encode() not in told, one.url
        gets = {urlsplit(one.url).path for one in page.left if one.method == "GET"}
        public = {"/v1/round", "/v1/terms", "/v1/catalogue", "/v1/model/", "/v1/challenge"}
        assert {path.rstrip("0123456789") for path in gets} == public
        # Nor is it in anything on this machine but her browser: the catalogue is public.
        for place in town.folder.rglob("*"):
            if not place.is_file() or place.name == "catalogue.json":
                continue
            content = place.read_bytes()
            assert not [title for _, title in clicked if title.encode() in content], place
        host = link.split("/open")[0]
        own = (f"{host}/", f"{town.url}/v1/", "data:")
        assert all(url.startswith(own) for url in page.asked), "no other origin"
        asked = {urlsplit(url).path for url in page.asked if url.startswith(f"{host}/api")}
        assert asked == {"/api/places", "/api/town", "/api/go_on"}, "her page tells nobody"
        assert page.troubles == []
        assert serious(page) == []

        # She comes back, to what she had; another browser has nothing of hers, and a place, too.
        page.reload()
        expect(page.locator(".been li")).to_have_count(10)
        expect(page.locator(".strip .left")).to_contain_text("Something left this device once")

        # The receipt of her report names the round as the page did.
        page.get_by_role("button", name="My privacy").click()
        part(page, "ledger").get_by_role("button", name="Receipt").first.click()
        receipt = json.loads(page.locator("dialog.receipt pre").inner_text())
        assert (receipt["what"], str(receipt["round"])) == ("report", number)


@pytest.mark.slow
def test_the_page_narrow_dark_by_keyboard_and_when_the_server_is_killed(tmp_path):
    narrow = {"width": 360, "height": 740}
    options = {"viewport": narrow, "color_scheme": "dark"}
    with opened(tmp_path / "shop") as (town, link), browsing(link, **options) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert serious(page) == []
        page.locator(".place").first.focus()
        page.keyboard.press("Enter")
        expect(page.locator(".been li[data-item]")).to_have_count(1)
        page.keyboard.press("Enter")
        expect(page.locator(".been li[data-item]")).to_have_count(0)
        page.get_by_role("button", name="My privacy").focus()
        page.keyboard.press("Enter")
        expect(part(page, "stands")).to_be_focused()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert serious(page) == []
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="My privacy")).to_be_focused()
        expect(part(page, "privacy")).to_be_hidden()
        page.get_by_role("button", name="Italiano").click()
        expect(page.locator("h1")).to_have_text("La città")
        page.get_by_role("button", name="English").click()

        # The server is gone: one sentence, and places can still be clicked.
        town._children["server"].kill()
        expect(page.locator(".lead .objection")).to_be_visible(timeout=120_000)
        page.locator(".place").nth(1).click()
        expect(page.locator(".been li[data-item]")).to_have_count(1)
        town.watch()
        expect(page.locator(".lead .objection")).to_be_hidden(timeout=120_000)

        # Who runs the server has a page of their own.
        with page.expect_popup() as popup:
            page.get_by_role("button", name="See the page of who runs it").click()
        popup.value.wait_for_load_state()
        expect(popup.value.locator("h1")).to_be_visible()
        assert popup.value.url.startswith("http://127.0.0.1:")
        assert popup.value.url.split("/")[2] != page.url.split("/")[2]

        # Her store goes when she says so, and the page says what to do.
        page.set_viewport_size({"width": 1280, "height": 900})
        page.get_by_role("button", name="My privacy").click()
        part(page, "stop").get_by_role("button", name="Forget everything here").click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_role("textbox").fill("delete")
        dialog.get_by_role("button").last.click()
        expect(page.locator(".lead .objection")).to_contain_text("Your store is gone")


# --- the processes --------------------------------------------------------------------------------

PROGRAM = "import sys; from sottovoce.cli import call; sys.exit(call(sys.argv[1:]))"
SMALL = (
    "import sys, json; from pathlib import Path; from sottovoce.cli.demo import serve_shop; "
    "given = json.loads(sys.argv[1]); out = given.pop('out', None); "
    "serve_shop(out and Path(out), as_json=True, **given)"
)


@contextlib.contextmanager
def demo(cwd, *, whole=False, **given):
    words = ["-c", PROGRAM, "demo", "--web", "--json"]
    if not whole:
        words = ["-c", SMALL, json.dumps({"settings": FEW, **given})]
    for place in ("tmp", "home"):
        (cwd / place).mkdir(exist_ok=True)
    own = {**os.environ, "TMPDIR": str(cwd / "tmp"), "HOME": str(cwd / "home")}
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=cwd,
        env=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=120)


def told(process):
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return json.loads(line)


def running(folder):
    """Processes whose command names the folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (place / "cmdline").read_bytes():
                found.append(place.name)
    return found


def ports_of(facts):
    folder = Path(facts["folder"])
    kept = json.loads((folder / "shop.json").read_text())["ports"].values()
    page = int(facts["url"].split(":")[2].split("/")[0])
    return [*kept, page, int(facts["console"].rsplit(":", 1)[1])]


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def around(tmp_path):
    """What lies where the demo might leave something: temporary files, home, where it began."""
    return {str(one) for one in tmp_path.rglob("*")} - {str(tmp_path / n) for n in ("tmp", "home")}


@pytest.mark.slow
def test_a_thousand_residents_are_ready_and_ctrl_c_leaves_nothing(tmp_path):
    before = around(tmp_path)
    with demo(tmp_path, whole=True) as process:
        facts = told(process)
        ports = ports_of(facts)
        assert all(is_open(port) for port in ports)
        assert len(running(facts["folder"])) >= 3
        status = httpx2.get(facts["url"], follow_redirects=False)
        assert status.status_code == 303
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "1,000 made-up residents, of whom 915 take part" in err
        assert len([line for line in err.splitlines() if " s  " in line]) >= 6, "a line for a part"
        assert "Traceback" not in err
    assert not running(facts["folder"])
    assert not any(is_open(port) for port in ports)
    assert not Path(facts["folder"]).exists()
    assert around(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_however_it_ends_nothing_runs_on(tmp_path, how, monkeypatch):
    before = around(tmp_path)
    with demo(tmp_path) as process:
        facts = told(process)
        ports = ports_of(facts)
        process.send_signal(how)
        process.communicate(timeout=120)
    until(lambda: not running(facts["folder"]), 15)
    assert not any(is_open(port) for port in ports)
    stays = how == signal.SIGKILL
    assert Path(facts["folder"]).exists() is stays
    outside = {one for one in around(tmp_path) if not one.startswith(facts["folder"])}
    assert outside == before
    if stays:  # nobody could remove it; the next one does
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
        with shop_folder(None) as place:
            assert place != Path(facts["folder"])
        assert around(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGHUP])
def test_it_can_be_stopped_before_it_is_ready(tmp_path, how):
    before = around(tmp_path)
    with demo(tmp_path) as process:
        for line in process.stderr:
            if "start, each as a process" in line:
                break
        (folder,) = (tmp_path / "tmp").glob("sottovoce-shop-*")
        process.send_signal(how)
        _, err = process.communicate(timeout=120)
        assert "Traceback" not in err or "Interrupted" in err
        assert "stopping\n" in err
    assert not running(folder)
    assert around(tmp_path) == before


@pytest.mark.slow
def test_a_folder_of_her_own_stays_and_a_second_start_goes_on(tmp_path):
    out, profile = tmp_path / "mine", tmp_path / "profile"
    with opened(out) as (town, link), browsing(link, profile=profile) as page:
        page.locator(".place").nth(3).click()
        expect(page.locator(".been li[data-item]")).to_have_count(1)
        (item,) = page.locator(".been li").evaluate_all("all => all.map(e => e.dataset.item)")
        first, spent = town.facts()["round"], town.spent()
        assert spent > 0
    with pytest.raises(FolderInUse, match="already; stop it"), shop_folder(out), shop_folder(out):
        pass
    ports = json.loads((out / "shop.json").read_text())["ports"]
    for name in ("helper", "page"):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", ports[name]))
            taken.listen()
            with pytest.raises(
                ServiceError, match=f"by which devices of this shop know its {name}"
            ):
                ShopTown(out, lambda words: None, settings=FEW).prepare()
    with opened(out) as (town, link), browsing(link, profile=profile) as page:
        expect(page.locator(f".been li[data-item='{item}']")).to_be_visible()
        assert town.facts()["round"] >= first
        assert town.spent() >= spent


def test_a_checkout_without_the_files_for_tabs_builds_them_or_says_how(tmp_path, monkeypatch):
    source = tmp_path / "browser"
    (source / "src").mkdir(parents=True)
    (source / "src" / "index.ts").write_text("")
    (source / "node_modules").mkdir()
    script = source / "dist" / "sottovoce.js"
    monkeypatch.setattr(shops, "library_source", lambda: source)
    monkeypatch.setattr(shops, "built_script", lambda: script if script.is_file() else None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServiceError, match="run `make browser`"):
        tab_library(lambda words: None)
    node, npm = (tmp_path / "bin" / name for name in ("node", "npm"))
    npm.parent.mkdir()
    npm.write_text("#!/bin/sh\nexit 1\n")
    node.write_text(
        "#!/bin/sh\necho $* >> asked; /bin/mkdir -p dist; "
        "/usr/bin/touch dist/sottovoce.js dist/provider.js\n"
    )
    npm.chmod(0o755)
    node.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent))
    told = []
    assert tab_library(told.append) == tab_library(told.append) == script.parent
    assert told == ["The files for browser tabs are built, by Node"], "once"
    os.utime(source / "src" / "index.ts", (time.time() + 60, time.time() + 60))
    tab_library(told.append)
    assert (source / "asked").read_text() == "build.mjs\n" * 2
    (source / "node_modules").rmdir()
    node.write_text("#!/bin/sh\nexit 1\n")
    script.unlink()
    with pytest.raises(ServiceError, match="run `make browser`"):
        tab_library(told.append)
    monkeypatch.setattr(shops, "library_source", lambda: None)
    with pytest.raises(ServiceError, match="are not in this wheel: build one with `make wheel`"):
        tab_library(told.append)


def test_what_is_wrong_is_said_in_one_sentence_and_nothing_is_touched(tmp_path):
    other = tmp_path / "photos"
    other.mkdir()
    (other / "me.jpg").write_bytes(b"jpg")
    with pytest.raises(FolderInUse, match="something else than a demo shop"), shop_folder(other):
        pass
    assert [one.name for one in other.iterdir()] == ["me.jpg"]
    with pytest.raises(FolderInUse, match="no folder"), shop_folder(other / "me.jpg"):
        pass
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "demo", "--web", "--port", port],
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 7
    assert f"port {port} on 127.0.0.1 cannot be used" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "shop.json").write_text("{}")
    with pytest.raises(FolderInUse, match="another release or is damaged"):
        ShopTown(damaged, lambda words: None, settings=FEW).prepare()
    for words in (["--port", "80"], ["--no-open"]):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "demo", *words],
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "go with --web" in done.stderr


@pytest.mark.slow
def test_whoever_is_killed_is_started_again_and_rounds_go_on(tmp_path):
    with opened(tmp_path / "shop") as (town, _):
        until(lambda: (town.facts() or {}).get("round", 0) >= 3, watch=town.watch)
        for who in ("helper", "residents"):
            town._children[who].kill()
        town.watch()
        town.go_on()
        until(lambda: (town.facts() or {}).get("round", 0) >= 4, 90, watch=town.watch)
        assert Shop(town).town()["round"]["number"] >= 4
