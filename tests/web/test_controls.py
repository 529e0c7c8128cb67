"""Every control of every page, found in the DOM and the accessibility tree of a real Chromium: it
is in the list here, and what is shown, what DOM and tree say and what is stored agree after each
click, while something is being kept, and after a reload. Faults that we had are planted, and are
found."""

import contextlib
import re

import pytest
from chromium import is_amiss
from controls_world import WORDS, Seen, unlisted, unmet, walk
from page_mock import PAGES, Mock, Served, Shop, Wrong, field, films, said, terms
from playwright.sync_api import expect
from tab_world import until

from sottovoce.web.page import LOOK

GRAM, PRINTED, OWNERS, CHANGED, HUGE = "s0", "s1", "s2", "s3", "s4"
"""The stores of the made-up provider."""


def w(key):
    return re.escape(WORDS[key])


CENTRE = (
    # What is stored when it is kept: `walk` tries each.
    f"choices switch {w('field.takes_part.label')}",
    r"choices switch (Cinema Aurora|Video Nord|Kino Sud|age|gender|town)",
    rf"choices (radio|slider|spinbutton|checkbox) .*",
    # What is stored at once: `at_once`.
    r"never switch .*",
    rf"never (textbox|searchbox|button) .*",
    # What is done: the tests of the page try each.
    rf"choices button ({w('page.keep')}|{w('page.undo')}|{w('page.recommend_button')})",
    rf"preview button ({w('page.preview_button')}|{w('page.preview_again')}|{w('page.send')})",
    rf"preview button ({w('page.bytes_show')}|{w('page.download')}|{w('page.more')})",
    rf"ledger (searchbox|button) .*",
    rf"learn button {w('page.learn_button')}",
    rf"terms button ({w('terms.agree')}|{w('terms.ask')})",
    rf"stop button ({w('stop.now')}|{w('stop.everything')}|{w('stop.start')}|{w('page.stop_all')})",
    rf"stop button ({w('erase.history')}|{w('erase.everything')})",
    rf"dialog (textbox|button) .*",
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
    server.mock.shops.append(Every("every", "All kinds", "devices", EVERY, films(), agreement=terms()))
    return server.mock


@pytest.fixture
def centre(browser, server, mock):
    """Opens the consent centre; `faults` are texts of its files and what stands there instead."""
    with contextlib.ExitStack() as stack:
        amiss = []

        def open_page(faults=()):
            size = {"width": 1200, "height": 900}
            context = stack.enter_context(browser.new_context(viewport=size, reduced_motion="reduce"))
            context.set_default_timeout(5000)
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
    until(lambda: waiting or page.wait_for_timeout(20), 5)
    for route in waiting:
        route.continue_()
    page.unroute(path)


# --- the consent centre on loopback -----------------------------------------------------------------


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


@pytest.mark.parametrize("number", [0, 1, 2, 5], ids=["gram", "share", "owners", "others"])
def test_what_is_shown_is_what_is_kept(centre, mock, number):
    page, store = centre(), f"s{number}"
    to_store(page, store)
    walk(page, lambda: kept(mock, number), lambda: held(page, "**/api/choose"), lambda: again(page, store))


def again(page, store):
    page.reload()
    page.wait_for_selector("[data-ready]")
    to_store(page, store)


def kept(mock, number):
    """What is stored, as a page shows it: of data owners and attributes those that are on."""
    choice = dict(mock.shops[number].choice)
    if "refused_owners" in choice:
        choice["refused_owners"] = {"Cinema Aurora", "Video Nord", "Kino Sud"} - set(choice["refused_owners"])
    if "hidden_attributes" in choice:
        choice["hidden_attributes"] = set(choice["hidden_attributes"])
    return choice
