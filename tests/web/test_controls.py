"""Every control of every page, found in the DOM and the accessibility tree of a real Chromium: it
is in the list here, and what is shown, what DOM and tree say and what is stored agree after each
click, while something is being kept, and after a reload. Faults that we had are planted, and are
found."""

import contextlib
import re
import subprocess
import threading
from dataclasses import replace
from functools import partial

import pytest
from chromium import is_amiss
from consent_world import HISTORY, GramTown, gram_terms, newcomer
from console_world import GOOD, ConsoleServer, Crowd, log_of, offer
from controls_world import (
    WORDS,
    Seen,
    faint,
    hovered,
    screenshot,
    switched,
    unlisted,
    unmet,
    walk,
    within,
)
from page_mock import PAGES, Mock, Served, Shop, Wrong, field, films, said, terms
from people_world import Shop as ShopSite
from playwright.sync_api import expect
from server_world import new_folder
from tab_world import built
from talk import until
from test_consent_centre import COMMAND
from test_consent_centre import centre as loopback
from test_shop import opened as a_shop

from sottovoce.cli import call
from sottovoce.stores.device import CohortStore
from sottovoce.web.centre import Centre
from sottovoce.web.page import LOOK
from sottovoce.web.process import PageProcess
from sottovoce.wire.invitations import Invitation

GRAM, PRINTED, OWNERS, CHANGED, HUGE = "s0", "s1", "s2", "s3", "s4"
"""The stores of the made-up provider."""


def w(key):
    return re.escape(WORDS[key])


CENTRE = (
    # What is stored when it is kept: `walk` tries each.
    rf"choices switch ({w('field.takes_part.label')}|{w('field.asks_first.label')})",
    r"choices switch (Cinema Aurora|Video Nord|Kino Sud|age|gender|town)",
    r"choices (radio|slider|spinbutton|checkbox) .*",
    # What is stored at once: `at_once`.
    r"never switch .*",
    r"never (textbox|searchbox|button) .*",
    # What is done: the tests of the page try each.
    rf"choices button ({w('page.keep')}|{w('page.undo')}|{w('page.recommend_button')})",
    rf"preview button ({w('page.preview_button')}|{w('page.preview_again')}|{w('page.send')})",
    rf"preview button ({w('page.bytes_show')}|{w('page.download')}|{w('page.more')})",
    r"ledger (searchbox|button) .*",
    rf"learn button {w('page.learn_button')}",
    rf"terms button ({w('terms.agree')}|{w('terms.ask')})",
    rf"stop button ({w('stop.now')}|{w('stop.everything')}|{w('stop.start')}|{w('page.stop_all')})",
    rf"stop button ({w('erase.history')}|{w('erase.everything')})",
    r"dialog (textbox|button) .*",
    # What only leads somewhere, or opens.
    rf"header button ({w('page.english')}|{w('page.italian')})",
    rf"page link {w('page.skip')}",
    r"nav (link|button|combobox) .*",
    rf"stands link {w('page.terms')}",
    r"\w+ DisclosureTriangle .*",
    rf"told button {w('page.close')}",
)


class Every(Shop):
    """A made-up store that asks for what no other does."""

    attributes = ("age", "gender", "town")

    def fields(self):
        *first, things = super().fields()
        choice = self.choice
        hidden = [
            {"name": one, "label": one, "on": one in choice["hidden_attributes"],
             "said": said("attributes.hidden" if one in choice["hidden_attributes"]
                          else "attributes.shared")}
            for one in self.attributes
        ]  # fmt: skip
        strengths = (("gentle", 0.2), ("medium", 0.5), ("strong", 0.8))
        more = [
            field("max_reports", "count", choice["max_reports"], 0, 40),
            field("hidden_attributes", "attributes", choice["hidden_attributes"], options=hidden),
            field("strength", "strength", choice["strength"], 0, 0.99, strengths),
        ]
        return [*first, *more, things]


EVERY = {"max_reports": 1, "hidden_attributes": ["age"], "strength": 0.5}


@pytest.fixture(scope="module")
def server():
    served = Served()
    yield served
    served.stop()


@pytest.fixture
def mock(server):
    server.mock = Mock()
    server.mock.shops[0].choice["asks_first"] = False
    server.mock.shops.append(
        Every("every", "All kinds", "devices", EVERY, films(), agreement=terms())
    )
    return server.mock


@pytest.fixture
def centre(browser, server, mock):
    """Opens the consent centre; `faults` are texts of its files and what stands there instead."""
    with contextlib.ExitStack() as stack:
        amiss = []

        def open_page(faults=()):
            context = stack.enter_context(still(browser))
            context.set_default_timeout(60_000)
            page = context.new_page()
            for name, before, after in faults:
                plant(page, name, before, after)
            page.on("pageerror", lambda error: amiss.append(str(error)))
            page.on("console", lambda line: amiss.append(line.text) if is_amiss(line) else None)
            page.goto(server.url)
            page.wait_for_selector("[data-ready]")
            return page

        yield open_page
        assert amiss == []


def still(browser, **more):
    """A browser of her own in which nothing moves by itself."""
    size = {"width": 1200, "height": 900}
    return browser.new_context(viewport=size, reduced_motion="reduce", **more)


def plant(page, name, before, after):
    """A file of the page is served with a fault."""
    place = f"{PAGES}/{name}" if name != "look.css" else str(LOOK)
    with open(place, encoding="utf-8") as file:
        text = file.read()
    assert text.count(before) == 1, f"{name} does not have {before!r} once: plant another fault"
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    body = text.replace(before, after)
    page.route(f"**/static/{name}", lambda route: route.fulfill(body=body, content_type=kind))


def to_store(page, store):
    page.locator(f'[data-store="{store}"]').click()
    expect(page.locator(f'[data-store="{store}"]')).to_have_attribute("aria-current", "true")


@contextlib.contextmanager
def held(page, path):
    """What the page asks there waits until this ends."""
    waiting = []
    page.route(path, lambda route: waiting.append(route))
    yield
    until(lambda: waiting or page.wait_for_timeout(20))
    for route in waiting:
        route.continue_()
    page.unroute(path)


# --- the consent centre on loopback ---------------------------------------------------------------


def open_all(page):
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")


def test_every_control_of_the_consent_centre_is_in_the_list(centre, mock):
    page, keys = centre(), set()

    def look():
        open_all(page)
        seen = Seen(page)
        assert unlisted(seen, CENTRE) == []
        keys.update(one.key for one in seen.controls)

    look()
    for number, store in enumerate((GRAM, PRINTED, OWNERS, CHANGED, HUGE, "s5")):
        mock.shops[number].choice["takes_part"] = True
        to_store(page, store)
        expect(page.locator("#never .row").first).to_be_visible()
        page.get_by_role("button", name=WORDS["page.preview_button"]).click()
        page.wait_for_timeout(100)
        look()
    page.locator("#ledger").get_by_role("button", name=WORDS["ledger.receipt"])
    page.get_by_role("button", name=WORDS["erase.everything"]).click()
    look()
    page.keyboard.press("Escape")
    page.get_by_role("button", name=WORDS["stop.everything"], exact=True).click()
    expect(page.get_by_role("button", name=WORDS["stop.start"])).to_be_visible()
    look()
    assert unmet(keys, CENTRE) == []


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(0, id="gram", marks=pytest.mark.smoke),
        *(
            pytest.param(number, id=name, marks=pytest.mark.slow)
            for number, name in ((1, "share"), (2, "owners"), (5, "others"))
        ),
    ],
)
def test_what_is_shown_is_what_is_kept(centre, mock, number):
    page, store = centre(), f"s{number}"
    to_store(page, store)
    walk(
        page,
        lambda: kept(mock, number),
        lambda: held(page, "**/api/choose"),
        lambda: again(page, store),
    )


def again(page, store):
    page.reload()
    page.wait_for_selector("[data-ready]")
    to_store(page, store)


def kept(mock, number):
    """What is stored, as a page shows it: of data owners and attributes those that are on."""
    choice = dict(mock.shops[number].choice)
    if "refused_owners" in choice:
        choice["refused_owners"] = {"Cinema Aurora", "Video Nord", "Kino Sud"} - set(
            choice["refused_owners"]
        )
    if "hidden_attributes" in choice:
        choice["hidden_attributes"] = set(choice["hidden_attributes"])
    return choice


def at_once(page, mock):
    """Switches that hold at once: a category and a thing, by one click and by several."""
    shop = mock.shops[0]
    rule = page.locator('#never [data-rule="Western"]')
    thing = page.locator("#never sv-list").get_by_role("switch", name="Playtime (1967)", exact=True)
    for switch, name in ((rule, "Western"), (thing, "f4")):

        def stored(name=name):
            return name not in shop.choice["never_send"]

        for clicks in (1, 1, 2, 3, 1, 3):
            for _ in range(clicks):
                before = switched(page, "#never", switch)
                switch.click()
                assert switched(page, "#never", switch) is not before
            wanted = switched(page, "#never", switch)
            until(lambda now=wanted: stored() is now)
            page.wait_for_timeout(150)  # what was asked before is drawn
            assert stored() is wanted is switched(page, "#never", switch)
        before = stored()
        with held(page, "**/api/choose"):
            switch.click()
            assert switched(page, "#never", switch) is not before
            switch.click()
            assert switched(page, "#never", switch) is before
        page.wait_for_timeout(300)
        assert stored() is before is switched(page, "#never", switch)
        mock.fail["choose"] = Wrong(400, "trouble.refused")
        switch.click()
        expect(page.locator(".told")).to_contain_text(WORDS["trouble.refused"])
        until(lambda one=switch, was=before: switched(page, "#never", one) is was)
        assert stored() is before
        again(page, GRAM)
        expect(switch).to_be_visible()
        assert switched(page, "#never", switch) is before


def test_what_holds_at_once_is_what_is_shown(centre, mock):
    page = centre()
    at_once(page, mock)
    # A switch that a category rules cannot be pressed, and says so.
    page.locator('#never [data-rule="Horror"]').click()
    ruled = page.locator("#never sv-list").get_by_role("switch", name="Alien (1979)")
    expect(ruled).to_have_attribute("aria-disabled", "true")
    ruled.click(force=True)
    expect(ruled).to_have_attribute("aria-checked", "false")
    assert "f0" not in mock.shops[0].choice["never_send"]


def test_a_refusal_that_came_while_nobody_answered_is_not_shown_as_kept(centre, mock, server):
    page = centre()
    switch = page.locator('#never [data-rule="Western"]')
    server.stop()
    try:
        switch.click()
        expect(page.locator(".banner")).to_be_visible()
    finally:
        server.start()
    expect(page.locator(".banner")).to_be_hidden()
    until(lambda: switched(page, "#never", switch))
    assert mock.shops[0].choice["never_send"] == []


KEPT = """		for (const name of done ? Object.keys(keeping) : []) {
			if (this.draft[name] === keeping[name]) delete this.draft[name]; // later moves stay
		}
		this.lay(this.desk.store);
"""
STATE = "element.setAttribute(name, String(value));"
OLD_STATE = 'value ? element.setAttribute(name, "") : element.removeAttribute(name);'
FAULTS = {
    "states as they were": ("dom.js", STATE, OLD_STATE),
    "Keep as it was": (
        "sv-choices.js", KEPT, "		if (done) this.draft = {};\n		this.mark();\n",
    ),
    "a click back during Keep is forgotten": (
        "sv-choices.js", "if (!this.keeping && JSON", "if (JSON",
    ),
    "numbers as they were": (
        "controls.js", "		turn(at, wrong);\n", "		if (!wrong) turn(at);\n",
    ),
    "limits as they were": (
        "controls.js",
        "turn(none.checked || wrong ? null : exact.valueAsNumber, wrong);",
        "if (!wrong) turn(none.checked ? null : exact.valueAsNumber);",
    ),
    "no reason": ("sv-choices.js", 'wrong ? "cannot_keep" : "unsaved"', '"unsaved"'),
    "a switch drawn as on": (
        "style.css",
        '.switch[aria-checked="true"] .knob::after',
        ".switch[aria-checked] .knob::after",
    ),
    "a slider of its own": ("controls.js", "if (at !== null) slider.value", "return; slider.value"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(centre, mock, fault):
    page = centre([FAULTS[fault]])
    to_store(page, GRAM)
    with pytest.raises(AssertionError) as found:
        walk(
            page,
            lambda: kept(mock, 0),
            lambda: held(page, "**/api/choose"),
            lambda: again(page, GRAM),
        )
    print(f"\n{fault}: {str(found.value).splitlines()[0]}")


@pytest.mark.slow
def test_planted_switches_controls_and_colours_are_found(centre, mock):
    page = centre(
        [
            (
                "sv-things.js",
                '		this.drawnFor = this.lawsFor = "";\n		void this.find(false);\n',
                "",
            )
        ]
    )
    with pytest.raises(AssertionError):
        at_once(page, mock)
    new = 'h("p", { class: "stands" }, store.stands),'
    page = centre([("sv-stands.js", new, f'{new} h("button", {{}}, "Send more"),')])
    assert unlisted(Seen(page), CENTRE) == ["stands button Send more"]
    hidden = f'{new} h("button", {{ "aria-hidden": "true" }}, "Send more"),'
    page = centre([("sv-stands.js", new, hidden)])
    assert len(unlisted(Seen(page), CENTRE)) == 1
    page = centre([("look.css", "button:where(:hover:enabled)", "button:hover:enabled")])
    page.get_by_role("switch", name=WORDS["field.takes_part.label"]).click()
    assert WORDS["page.keep"] in {label for _, label, _ in faint(hovered(page))}


# --- what is below the pointer, and what is there before anything ---------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_label_can_be_read_below_the_pointer(browser, server, mock, scheme):
    mock.shops[0].choice["takes_part"] = True
    with still(browser, color_scheme=scheme) as context:
        page = context.new_page()
        page.goto(server.url)
        page.wait_for_selector("[data-ready]")
        page.get_by_role("switch", name=WORDS["field.takes_part.label"]).click()
        page.get_by_role("button", name=WORDS["page.preview_button"]).click()
        expect(page.get_by_role("button", name=WORDS["page.send"])).to_be_enabled()
        open_all(page)
        found = hovered(page)
        assert faint(found) == []
        # With a real pointer, too: the label is there, and so is its ground.
        keep = page.get_by_role("button", name=WORDS["page.keep"])
        before = keep.evaluate("one => getComputedStyle(one).backgroundColor")
        keep.hover()
        assert keep.evaluate("one => getComputedStyle(one).backgroundColor") == before
        screenshot(page, f"hover-{scheme}")
        page.locator("#choices input[type=number]").first.fill("60")
        expect(keep).to_be_disabled()
        screenshot(page, f"wrong-{scheme}")
        page.get_by_role("button", name=WORDS["erase.everything"]).click()
        page.locator("dialog input").fill(WORDS["erase.word"])
        found += (over := hovered(page))
        assert faint(over) == []
    classes = {name for classes, _, _ in found for name in classes.split()}
    assert {"main", "danger", "small", "plain", "switch"} <= classes


def test_the_page_says_that_it_works_until_it_is_there(browser, server, mock):
    """A page whose first answer takes its time is not blank."""
    with browser.new_context() as context:
        page = context.new_page()
        with held(page, "**/api/state*"):
            page.goto(server.url, wait_until="commit")
            expect(page.locator("#page")).to_have_text(WORDS["page.working"])
            expect(page.locator("#page [role=status]")).to_be_visible()
        page.wait_for_selector("[data-ready]")
        expect(page.locator("#page")).not_to_contain_text(WORDS["page.working"])


# --- with real processes --------------------------------------------------------------------------


def on_off_and_keep(page):
    """Somebody looks at a loudness, takes part and thinks better of it, and keeps that."""
    part = page.locator("#choices")
    switch = part.get_by_role("switch", name=WORDS["field.takes_part.label"])
    part.get_by_text(WORDS["step.low"]).first.click()
    switch.click()
    expect(switch).to_have_attribute("aria-checked", "true")
    switch.click()
    expect(switch).to_have_attribute("aria-checked", "false")
    part.get_by_role("button", name=WORDS["page.keep"]).click()
    expect(part.locator(".unsaved")).to_have_text("")
    expect(switch).to_have_attribute("aria-checked", "false")


@pytest.fixture
def town(tmp_path):
    made = GramTown(gram_terms(tmp_path))
    with made.serve() as server:
        made.url = server.url
        yield made


def to_terms(page):
    ask = page.get_by_role("button", name=WORDS["terms.ask"])
    agree = page.get_by_role("button", name=WORDS["terms.agree"])
    expect(ask.or_(agree)).to_be_visible()
    if ask.is_visible():
        ask.click()
    agree.click()
    expect(page.locator("#terms")).to_contain_text(WORDS["terms.agreed"])


@pytest.mark.slow
def test_on_off_and_keep_on_loopback_sends_nothing(browser, town, tmp_path):
    newcomer(tmp_path / "me", town, town.url)
    with loopback(tmp_path / "me") as (url, _), still(browser) as context:
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector("[data-ready]")
        to_terms(page)
        on_off_and_keep(page)

        def stored():
            ask = "fetch('api/state').then((one) => one.json())"
            return page.evaluate(ask)["stores"][0]["choice"]

        def reload():
            page.reload()
            page.wait_for_selector("[data-ready]")

        assert (stored()["takes_part"], stored()["epsilon"]) == (False, 1.0)
        walk(page, stored, lambda: held(page, "**/api/choose"), reload)
        assert not stored()["takes_part"]
    agent = partial(
        subprocess.run,
        [COMMAND, "serve", "device", tmp_path / "me", "--plaintext", "--once"],
        check=True,
    )
    # The agent that the store has then: it reads what is public, and says nothing.
    before = len(town.heard)
    agent()
    assert len(town.heard) > before
    assert {one.method for one in town.heard} == {"GET"}
    # Had she taken part, it would have spoken.
    with CohortStore.open(tmp_path / "me") as store:
        store.set_choice(0, replace(store.choice(0), takes_part=True, epsilon=1.0))
    agent()
    assert town.bodies("/v1/enrol")


OPEN_TAB = """async ([invitation, automatic]) => {
  const library = await import("/sottovoce/sottovoce.js");
  const given = { federation: location.origin, automatic, poll: 0.2 };
  const device = await library.openDevice(invitation ? { ...given, invitation } : given);
  const choose = device.choose.bind(device);
  device.choose = async (change) => {
    await window.gate;
    return choose(change);
  };
  window.device = device;
  await window.sottovoce(device, "en");
}"""
STORED = """() => window.device.status().then(({ choice }) => ({
  takes_part: choice.takesPart, epsilon: choice.epsilon,
  total_epsilon: Number.isFinite(choice.totalEpsilon) ? choice.totalEpsilon : null }))"""


@contextlib.contextmanager
def tab(browser, town, automatic):
    """The consent centre in a tab, and whom its device talks to."""
    with ShopSite() as site, still(browser) as context:
        site.upstream = town.url
        page = context.new_page()
        token = town.tokens[0].hex()
        invitation = Invitation(site.url, "", token, 0, town.terms.federation).to_table()

        def come(given=invitation):
            page.goto(f"{site.url}/sottovoce/consent.html")
            page.evaluate(OPEN_TAB, [given, automatic])
            page.wait_for_selector("[data-ready]")

        come()
        page.evaluate("(given) => window.device.visited(given)", [list(one) for one in HISTORY])
        yield page, site, lambda: come(None)


@contextlib.contextmanager
def held_in_tab(page):
    page.evaluate("() => { window.gate = new Promise((open) => (window.open_gate = open)); }")
    yield
    page.evaluate("() => { window.open_gate(); window.gate = null; }")


@pytest.mark.slow
def test_every_control_of_the_centre_in_a_tab(browser, town):
    with tab(browser, town, False) as (page, site, come_back):
        to_terms(page)
        page.wait_for_timeout(400)
        open_all(page)
        seen = Seen(page)
        assert unlisted(seen, CENTRE) == []
        stored = lambda: page.evaluate(STORED)  # noqa: E731
        walk(page, stored, lambda: held_in_tab(page), come_back)
        rule = page.locator('#never [data-rule="Food"]')
        for clicks in (1, 1, 3):
            for _ in range(clicks):
                before = switched(page, "#never", rule)
                rule.click()
                assert switched(page, "#never", rule) is not before
            page.wait_for_timeout(500)
            wanted = switched(page, "#never", rule)
            never = page.evaluate(
                "() => window.device.status().then((one) => one.choice.neverSend)"
            )
            assert ("Food" not in never) is wanted
        assert site.posted == []


@pytest.mark.slow
def test_on_off_and_keep_in_a_tab_sends_nothing(browser, town):
    with tab(browser, town, True) as (page, site, _):
        to_terms(page)
        on_off_and_keep(page)
        assert page.evaluate(STORED) == {"takes_part": False, "epsilon": 1.0, "total_epsilon": None}
        asked = len(site.asked)
        until(lambda: page.wait_for_timeout(50) or len(site.asked) >= asked + 3, 30)
        assert site.posted == []
        # Had she left it on, the tab would have spoken by itself.
        page.get_by_role("switch", name=WORDS["field.takes_part.label"]).click()
        page.get_by_role("button", name=WORDS["page.keep"]).click()
        until(lambda: page.wait_for_timeout(50) or site.posted, 30)
        assert site.posted[0][0] == "/v1/enrol"


def test_the_page_is_prepared_before_it_is_asked_for(tmp_path, monkeypatch, town):
    """What the first look at a store needs is worked out while the browser starts."""
    newcomer(tmp_path / "me", town, town.url)
    looked = threading.Event()
    state = Centre.state

    def noted(self):
        looked.set()
        return state(self)

    monkeypatch.setattr(Centre, "state", noted)
    monkeypatch.setattr(PageProcess, "run", lambda self: (looked.wait(10), self._listener.close()))
    assert call(["device", "page", str(tmp_path / "me"), "--json"]) == 0
    assert looked.is_set()


# --- the shop, whose visitor is a tab -------------------------------------------------------------

SHOP = (
    *CENTRE,
    rf"(header|page) button ({w('shop.privacy')}|{w('page.english')}|{w('page.italian')})",
    rf"page link {w('shop.skip')}",
    r"places button .*",
    rf"panel-head button {w('shop.close')}",
    rf"page button ({w('shop.go.terms')}|{w('shop.go.choices')}|{w('shop.go.preview')})",
    rf"page button ({w('shop.go.stop')}|{w('stop.start')}|{w('shop.operator')})",
    r"page DisclosureTriangle .*",
)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_shop_shows_what_its_visitor_has_chosen(browser, tmp_path):
    built()
    with a_shop(tmp_path / "shop") as (_, link), still(browser) as context:
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(link)
        page.wait_for_selector("[data-open]")
        assert unlisted(Seen(page), SHOP) == []
        assert faint(hovered(page)) == []
        cards = page.locator(".place")
        been = page.locator(".been li[data-item]")

        def clicked(card):
            """What the card shows, in what is drawn, the DOM and the accessibility tree."""
            at, mark = card.evaluate(
                """(one) => [one.getAttribute("aria-pressed"),
                  getComputedStyle(one.querySelector(".name"), "::after").content.includes("✓")]"""
            )
            name = card.inner_text().split("\n")[0]
            (node,) = [
                c for c in within(page, "#places") if c.role == "button" and c.name.startswith(name)
            ][:1]
            assert (at, node.properties["pressed"]) == (str(mark).lower(),) * 2, (at, mark)
            return mark

        for clicks in (1, 1, 2, 3):
            for _ in range(clicks):
                before = clicked(cards.first)
                cards.first.click()
                assert clicked(cards.first) is not before
            wanted = clicked(cards.first)
            expect(been).to_have_count(int(wanted))
            page.wait_for_timeout(300)
            assert clicked(cards.first) is wanted
        page.reload()
        page.wait_for_selector("[data-open]")
        assert clicked(cards.first)
        for at in range(1, 6):
            cards.nth(at).click()
        expect(been).to_have_count(6)

        # The page names a round as whoever runs it, and as receipts do.
        number = page.get_attribute("#page", "data-round")
        expect(page.locator(".strip .where")).to_contain_text(f"Round {number} ")
        page.locator(".next").get_by_role("button", name=WORDS["shop.go.terms"]).click()
        page.locator("#terms").get_by_role("button", name=WORDS["terms.agree"]).click()
        expect(page.locator("#terms")).to_contain_text(WORDS["terms.agreed"])
        page.wait_for_timeout(400)
        assert unlisted(Seen(page), SHOP) == []
        assert faint(hovered(page)) == []

        # After everything was stopped nothing tells her to send.
        part = page.locator("#choices")
        part.get_by_role("switch", name=WORDS["field.takes_part.label"]).click()
        part.get_by_role("button", name=WORDS["page.keep"]).click()
        expect(part.locator(".unsaved")).to_have_text("")
        page.get_by_role("button", name=WORDS["stop.everything"], exact=True).click()
        expect(page.locator(".next")).to_have_text(
            WORDS["shop.hint.stopped"] + WORDS["shop.go.stop"], use_inner_text=False
        )
        page.locator(".next").get_by_role("button", name=WORDS["shop.go.stop"]).click()
        expect(page.locator("#stop")).to_be_focused()
        page.get_by_role("button", name=WORDS["stop.start"]).click()
        expect(page.locator(".next")).not_to_contain_text(WORDS["shop.hint.stopped"])

        # Deleted: nothing of hers is on the page, at once; and she can start again.
        page.get_by_role("button", name=WORDS["erase.everything"]).click()
        page.locator("dialog input").fill(WORDS["erase.word"])
        page.locator("dialog .danger").click()
        expect(page.locator(".told")).to_contain_text(WORDS["erase.done_everything"])
        assert page.locator(".place[aria-pressed=true]").count() == 0
        assert been.count() == 0
        assert page.locator(".mine li, .changes-made:visible").count() == 0
        assert page.locator("#never sv-list").count() == 0
        screenshot(page, "deleted")
        assert unlisted(Seen(page), SHOP) == []
        page.locator(".next").get_by_role("button", name=WORDS["stop.start"]).click()
        page.wait_for_selector("[data-open]")
        expect(been).to_have_count(0)
        cards.first.click()
        expect(been).to_have_count(1)


# --- the operator's console -----------------------------------------------------------------------

CONSOLE = (
    r"page link Skip to what is shown",
    r"nav link (Rounds|Devices|Model|Terms|Health|Log)",
    r"\w+ DisclosureTriangle .*",
    r"now button (Pause…|Go on…|Set target…)",
    r"rounds button .*",
    r"devices (searchbox Search|combobox Which)",
    r"devices checkbox Device \d+",
    r"devices button (Invite…|Shut out .*|Let .* in again…|Label of device \d+)",
    r"model button (Roll back to this…|Publish…)",
    r"waiting button (Add items…|Withdraw…)",
    r"[\w-]+ button (Back up…|Change the .*token…|Change the report key…)",
    r"dialog (button|textbox|spinbutton) .*",
    r"told button Close",
)


@pytest.mark.slow
def test_the_console_shows_what_its_operator_has_chosen(browser, tmp_path):
    folder = new_folder(tmp_path / "town", rounds=9)
    with ConsoleServer(folder) as server, server.client() as client:
        crowd = Crowd(users=8)
        crowd.enrol(folder, client)
        client.wait(state="open", round=0)
        offer(folder, 1, GOOD)
        crowd.run_round(client)
        client.wait(state="open", round=1)
        for scheme in ("dark", "light"):
            with still(browser, color_scheme=scheme) as context:
                page = context.new_page()
                page.goto(server.link())
                page.wait_for_selector("[data-ready]")
                for place in ("Rounds", "Devices", "Model", "Terms", "Health", "Log"):
                    page.get_by_role("navigation").get_by_role("link", name=place).click()
                    page.wait_for_timeout(300)
                    open_all(page)
                    assert unlisted(Seen(page), CONSOLE) == [], place
                    assert faint(hovered(page)) == [], place
                if scheme == "light":
                    chosen_devices(page, folder)


def chosen_devices(page, folder):
    page.get_by_role("navigation").get_by_role("link", name="Devices").click()
    boxes = page.get_by_role("checkbox")
    expect(boxes).to_have_count(8)
    deed = page.locator('[data-deed="shut_out"]')

    def checked():
        """Which are chosen: as drawn, in the tree, and by what can be done with them."""
        nodes = {c.name: c for c in within(page, "#devices") if c.role == "checkbox"}
        found = set()
        for box in boxes.all():
            node = nodes[box.get_attribute("aria-label")]
            assert node.properties["checked"] == str(box.is_checked()).lower()
            if box.is_checked():
                found.add(int(node.name.split()[1]))
        words = f"{len(found)} devices" if len(found) != 1 else f"device {min(found)}"
        assert (deed.inner_text() if deed.count() else "") == (
            f"Shut out {words}…" if found else ""
        )
        return found

    for at, wanted in ((0, {0}), (1, {0, 1}), (0, {1}), (1, set()), (1, {1}), (2, {1, 2})):
        boxes.nth(at).click()
        assert checked() == wanted
    page.get_by_label("Which").select_option("active")
    page.wait_for_timeout(400)
    assert checked() == {1, 2}
    page.get_by_label("Search").fill("2")
    expect(boxes).to_have_count(1)
    assert page.get_by_role("checkbox", name="Device 2").is_checked()
    # A number that does not fit is refused where it is written, and nothing is done.
    before = log_of(folder)
    for wrong in ("0", "", "10001"):
        page.get_by_role("button", name="Invite…").click()
        dialog = page.locator("dialog[open]")
        assert unlisted(Seen(page), CONSOLE) == []
        dialog.get_by_label("How many").fill(wrong)
        dialog.get_by_role("button", name="Invite and download").click()
        assert dialog.get_by_label("How many").evaluate("one => one.matches(':invalid:focus')")
        (node,) = [c for c in within(page, "dialog[open]") if c.role == "spinbutton"]
        assert node.properties["invalid"] == "true"
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
    assert log_of(folder) == before
    page.reload()
    page.wait_for_selector("[data-ready]")
    expect(boxes).to_have_count(8)
    assert checked() == set()
