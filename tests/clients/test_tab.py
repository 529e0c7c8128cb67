"""A browser tab as a device of a federation, in a real Chromium, beside agents in Python."""

import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from playwright.sync_api import sync_playwright
from tab_world import (
    Chromium,
    Front,
    asked,
    built,
    installed,
    opened,
    run,
    said,
    take_part,
    trial_of,
    upstream_of,
)
from talk import until


@pytest.fixture
def front():
    with Front() as made:
        yield made


@pytest.fixture
def chromium(tmp_path, front):
    with sync_playwright() as playwright:
        made = Chromium(playwright, tmp_path / "profile", front)
        yield made
        made.stop()


def test_a_store_is_killed_at_every_moment_and_lied_to_without_a_browser():
    """What needs no browser: the library's own tests of store, door, loop and worker."""
    built()
    done = run(["node", "test/run.mjs", "store"])
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_store_fails_at_every_call_in_every_way():
    installed()
    done = run(["node", "test/run.mjs", "store_faults"], SOTTOVOCE_FAULTS="all")
    assert done.returncode == 0, done.stdout[-8000:]


def test_a_tab_and_agents_make_the_model_of_the_simulation(tmp_path, front, chromium):
    simulated, trial = trial_of(tmp_path / "services")
    with trial.running():
        front.upstream = upstream_of(trial)
        trial.operator().raise_target(2)
        page = chromium.start()
        first = opened(page, front, trial.invitation())
        assert first["fresh"]
        take_part(page, trial.visits())
        until(lambda: trial.round() == 2, 120)
        model = trial.operator().model(2, trial.world.terms)
        until(lambda: asked(page, "status")["model"] == 2)
        rows = [row for row in asked(page, "ledger") if row["what"] == "report"]
        best = asked(page, "recommend", 5)
    simulated.run()
    assert np.array_equal(model.items, simulated.server.items), "to the last bit"
    assert [(row["round"], row["state"]) for row in rows] == [(0, "arrived"), (1, "arrived")]
    assert sum(row["epsilon"] for row in rows) == pytest.approx(64.0)
    assert [path for path, _ in front.posted].count("/v1/reports") == 2
    assert len(best) == 5
    assert not page.troubles


def test_a_visitor_of_a_shop_elsewhere_gets_a_place_by_work(tmp_path, front, chromium):
    """The page has another origin than the federation's server, and nobody was invited."""
    _, trial = trial_of(tmp_path / "services")
    trial.options = ("--origin", front.url, "--open-places", "10")
    with trial.running():
        server = SimpleNamespace(url=upstream_of(trial))
        trial.operator().raise_target(1)
        page = chromium.start("--ignore-certificate-errors")
        assert opened(page, server)["number"] is None
        take_part(page, trial.visits())
        until(lambda: trial.round() == 1, 120)
        until(lambda: asked(page, "status")["report"] == {**ARRIVED, "round": 0})
        assert asked(page, "status")["number"] == len(trial.world.cohort)
        told = [(row["what"], row["state"]) for row in asked(page, "ledger")]
    assert told == [("enrolment", "left"), ("report", "arrived")]
    assert not front.posted


MOMENTS = ("before a report", "report lost", "report unanswered", "model", "enrolment", "any")


def arrange(front, chromium, moment, chance):
    """The browser dies at this moment of its next contribution; whether it has."""
    dead = threading.Event()

    def die():
        if not dead.is_set():
            dead.set()
            chromium.kill()

    def before(path):
        if moment == "any" and path == "/v1/round":
            threading.Timer(chance.uniform(0.0, 0.6), die).start()
        elif (moment, path) in (
            ("before a report", "/v1/reports"),
            ("report lost", "/v1/reports"),
            ("enrolment", "/v1/enrol"),
        ) or (moment == "model" and path.startswith("/v1/model")):
            die()
        return moment == "report lost" and path == "/v1/reports"

    def after(path):
        if moment == "report unanswered" and path == "/v1/reports":
            die()

    front.before, front.after = before, after
    # What never comes in some round (an enrolment, a model that is there) must not be waited for.
    late = threading.Timer(6.0, die)
    late.daemon = True
    late.start()
    return dead


def killed_again_and_again(tmp_path, front, chromium, kills):
    """Every round is contributed to once, whenever the browser dies."""
    chance = np.random.default_rng(kills)
    _, trial = trial_of(tmp_path / "services")
    with trial.running():
        front.upstream = upstream_of(trial)
        invitation, spent = trial.invitation(), 0.0
        page = chromium.start()
        opened(page, front, invitation)
        take_part(page, trial.visits())
        for done in range(kills):
            dead = arrange(front, chromium, MOMENTS[done % len(MOMENTS)], chance)
            trial.operator().raise_target(done + 1)
            until(dead.is_set, 60)
            front.before = front.after = None
            chromium.bury()
            page = chromium.start()
            status = opened(page, front, invitation)
            assert not status["fresh"]
            assert status["budget"]["spent"] >= spent, "a budget never falls"
            spent = status["budget"]["spent"]
            until(lambda done=done: trial.round() == done + 1, 120)
        until(lambda: asked(page, "status")["report"] in (None, {**ARRIVED, "round": kills - 1}))
        rows = [row for row in asked(page, "ledger") if row["what"] == "report"]
        status = asked(page, "status")
    log, refused = trial.log()
    assert [past["round"] for past in log] == list(range(kills))
    assert all(not past["missing"] for past in log), "she was in every round"
    assert [row["round"] for row in rows] == list(range(kills)), "once"
    assert {row["state"] for row in rows} == {"arrived"}
    assert status["budget"]["totals"][0]["releases"] == kills
    assert sum(row["epsilon"] for row in rows) == pytest.approx(status["budget"]["spent"])
    assert not {"second_submission", "bad_signature", "malformed"} & refused.keys()
    bodies = {}
    for path, body in front.posted:
        if path == "/v1/reports":
            bodies.setdefault(body[4:16], set()).add(body)
    assert {len(each) for each in bodies.values()} == {1}, "the very same bytes"


ARRIVED = {"attempt": 0, "state": "arrived"}


def test_a_browser_is_killed_three_times_and_contributes_once_each(tmp_path, front, chromium):
    killed_again_and_again(tmp_path, front, chromium, 3)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_browser_is_killed_thirty_times_and_contributes_once_each(tmp_path, front, chromium):
    killed_again_and_again(tmp_path, front, chromium, 30)


CANARY = "canary-that-no-catalogue-has"


def test_two_tabs_share_a_store_that_nobody_else_can_read(tmp_path, front, chromium):
    _, trial = trial_of(tmp_path / "services")
    with trial.running():
        front.upstream = upstream_of(trial)
        trial.operator().raise_target(1)
        one = chromium.start()
        opened(one, front, trial.invitation())
        other = chromium.tab()
        assert not opened(other, front)["fresh"]
        until(lambda: asked(one, "status")["working"])
        assert not asked(other, "status")["working"]
        take_part(other, [*trial.visits(), [CANARY, 5]])
        until(lambda: trial.round() == 1, 120)
        assert len([row for row in asked(other, "ledger") if row["what"] == "report"]) == 1
        assert asked(one, "status")["budget"] == asked(other, "status")["budget"]
        assert CANARY in {thing["id"] for thing in asked(one, "things")}
        # Who works is closed: the other one goes on.
        one.close()
        until(lambda: asked(other, "status")["working"])
        trial.operator().raise_target(2)
        until(lambda: trial.round() == 2, 120)
        until(lambda: asked(other, "status")["model"] == 2)
        best = asked(other, "recommend", 5)
        # Offline, in a page that was loaded while there was nobody to ask.
        files = ["/", "/page.js", "/sottovoce.js"]
        other.evaluate("(f) => sottovoce.keepOffline('/service-worker.js', f)", files)
        kept = "caches.open('sottovoce-2').then((kept) => kept.keys()).then((all) => all.length)"
        until(lambda: other.evaluate(kept) >= 3)
        front.down = True
        other.close()
        alone = chromium.tab()
        opened(alone, front)
        assert asked(alone, "recommend", 5) == best
        until(lambda: "nobody answers" in asked(alone, "status")["trouble"])
        assert asked(alone, "stop") is None
        chromium.stop()
    assert [path for path, _ in front.posted].count("/v1/reports") == 2
    for _, path, headers in front.asked:
        told = {name.lower() for name in headers}
        assert not told & {"cookie", "referer", "authorization"}, path
    read = {file: file.read_bytes() for file in chromium.profile.rglob("*") if file.is_file()}
    assert not [file for file, content in read.items() if has(content, CANARY)]
    lies = chromium.profile / "Default" / "IndexedDB"
    stores = [content for file, content in read.items() if lies in file.parents]
    assert sum(map(len, stores)) > 10_000
    token = trial.invitation()["token"]
    for name in [*(text for item in trial.world.catalogue for text in item), token]:
        assert len(name) < 4 or not any(has(content, name) for content in stores), name


def has(content, text):
    """As the browser writes text: in one byte a sign, or in two."""
    return text.encode() in content or text.encode("utf-16-le") in content


def test_cleared_storage_a_full_disk_and_a_lying_server_send_nothing(tmp_path, front, chromium):
    _, trial = trial_of(tmp_path / "services")
    with trial.running():
        front.upstream, invitation = upstream_of(trial), trial.invitation()
        page = chromium.start()
        line = chromium.context.new_cdp_session(page)
        line.send("Storage.overrideQuotaForOrigin", {"origin": front.url, "quotaSize": 2_000_000})
        opened(page, front, invitation, automatic=False)
        take_part(page, trial.visits())
        cases = {
            "another federation": (lie("/v1/round", federation="elsewhere"), "another federation"),
            "other terms": (lie("/v1/terms", n_items=41), "terms"),
            "other things": (lie("/v1/catalogue", items=[]), "catalogue"),
            "no end": (huge("/v1/round"), "far more"),
            "elsewhere": (status_of("/v1/round", 302), "nobody answers"),
            "another protocol": (lie("/v1/round", protocol=99), "version"),
        }
        for what, (change, sentence) in cases.items():
            front.change = change
            if what in ("other terms", "other things"):
                page.evaluate("window.device.close()")
                page.reload()
                page.wait_for_selector("[data-ready]")
                cleared(page, chromium)
                opened(page, front, invitation, automatic=False)
                asked(page, "choose", {"takesPart": True, "epsilon": 64.0})
            told = said(page, "preview")
            assert sentence in told.get("sentence", ""), (what, told)
        front.change = None
        # A disk without room.
        asked(page, "refresh")
        asked(page, "agree", asked(page, "status")["pending"]["digest"])
        many = f"Array.from({{ length: 100_000 }}, (_, k) => ['{CANARY}-' + k, 1])"
        told = page.evaluate(f"window.said(() => window.device.visited({many}))")
        assert told["kind"] == "StorageTrouble", told
        assert "no room" in told["sentence"]
        assert not front.posted
        assert CANARY not in json.dumps(asked(page, "things"))
        # It enrols, and its site data are cleared: that is another device, and it is said so.
        trial.operator().raise_target(1)
        asked(page, "visited", trial.visits())
        for what in ("enrolment", "report"):  # the server waits for her
            shown = until(lambda what=what: would_leave(page, what))
            sent = asked(page, "send", shown["name"])
            assert sent["messages"] == shown["messages"]
        assert [path for path, _ in front.posted] == ["/v1/enrol", "/v1/reports"]
        assert said(page, "send", shown["name"])["kind"] == "ConsentError"
        page.evaluate("window.device.close()")
        cleared(page, chromium)
        assert opened(page, front, invitation, automatic=False)["fresh"]
        assert asked(page, "ledger") == []
        take_part(page, trial.visits())
        told = until(lambda: pressed(page, "enrolment"))
        assert told["kind"] == "KeyTrouble", "the invitation was used"
        assert [path for path, _ in front.posted].count("/v1/reports") == 1
        asked(page, "erase", "everything")
        names = "indexedDB.databases().then((all) => all.map((one) => one.name))"
        assert page.evaluate(names) == []


def pressed(page, what):
    """What sending it says; None where something else would leave by now, since rounds go on."""
    shown = would_leave(page, what)
    told = said(page, "send", shown["name"]) if shown else {}
    return told if told and "look again" not in told.get("sentence", "") else None


def would_leave(page, what):
    """What the page shows, once this is the first thing that would leave."""
    shown = asked(page, "preview")
    return shown if [one["what"] for one in shown["messages"]][:1] == [what] else None


def cleared(page, chromium):
    """Clear the site's data."""
    line = chromium.context.new_cdp_session(page)
    origin = page.evaluate("location.origin")
    line.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})


def lie(where, **fields):
    def change(path, status, body):
        return status, json.dumps(json.loads(body) | fields).encode() if path == where else body

    return change


def huge(where):
    return lambda path, status, body: (status, bytes(1 << 20) if path == where else body)


def status_of(where, other):
    return lambda path, status, body: (other if path == where else status, body)
