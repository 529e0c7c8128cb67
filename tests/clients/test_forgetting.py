"""What a tab leaves in a browser and what comes back to a server, in a real Chromium: tags, kept
answers, addresses with an invitation, and what is left after everything was deleted."""

import json

import pytest
from chromium import browser  # noqa: F401
from consent_world import CATALOGUE, GramTown, gram_terms
from people_world import Shop
from playwright.sync_api import expect
from tab_world import Front, asked, opened, said, tab_in, until

from sottovoce.wire.invitations import Invitation

pytestmark = pytest.mark.timeout(120)
QUIET = {"automatic": False, "poll": 1000}
KEPT = """async () => {
  const found = [];
  for (const name of await caches.keys()) {
    for (const { url } of await (await caches.open(name)).keys()) found.push(url);
  }
  return found;
}"""
LEFT = """async () => [
  await caches.keys(), (await navigator.serviceWorker.getRegistrations()).length,
  (await indexedDB.databases()).length,
]"""


class Marking(Front):
    """It marks each answer for its reader, and lets her browser keep it for ever."""

    policy = ""

    def _forward(self, handler, body):
        status, headers, found = super()._forward(handler, body)
        mark = f"you-{len(self.asked)}"
        return status, headers | self._marks(mark), found

    def _own(self, path):
        status, headers, found = super()._own(path)
        if self.policy:
            headers["Content-Security-Policy"] += self.policy
        return status, headers, found

    def _marks(self, mark):
        return {
            "ETag": f'"{mark}"', "Last-Modified": "Wed, 18 Nov 2026 20:00:00 GMT",
            "Cache-Control": "public, max-age=31536000, immutable",
        }  # fmt: skip


@pytest.fixture
def town(tmp_path):
    return GramTown(gram_terms(tmp_path))


@pytest.fixture
def front(town):
    with Marking() as made, town.serve() as server:
        made.upstream = server.url
        yield made


@pytest.fixture
def context(browser, front):  # noqa: F811
    with browser.new_context() as made:
        yield made


@pytest.mark.smoke
def test_no_mark_comes_back_and_a_bad_model_is_gone_with_the_next_answer(context, front):
    front.change = lambda path, status, body: (
        status, b"junk" if path.startswith("/v1/model/") else body,
    )  # fmt: skip
    page = tab_in(context, front.url)
    opened(page, front, **QUIET)
    assert "sentence" in said(page, "refresh")
    front.change = None
    asked(page, "refresh")
    assert len(asked(page, "recommend", 5)) == 5
    asked(page, "erase", "everything")
    page.reload()
    page.wait_for_selector("[data-ready]")
    assert opened(page, front, **QUIET)["fresh"]
    for _ in range(2):
        asked(page, "refresh")
    assert len([path for _, path, _ in front.asked if path == "/v1/round"]) >= 3
    for _, path, headers in front.asked:
        names = {name.lower() for name in headers}
        assert not [name for name in names if name.startswith("if-")], (path, headers)
        assert not [value for value in headers.values() if "you-" in value], (path, headers)
    assert not page.troubles


@pytest.mark.smoke
def test_nothing_is_left_after_everything_was_deleted(context, front, town):
    page = tab_in(context, f"{front.url}/?of=hers#sv=c2VjcmV0")
    page.evaluate("(f) => sottovoce.keepOffline('/service-worker.js', f)", ["/", "/sottovoce.js"])
    until(lambda: len(page.evaluate(KEPT)) >= 2)
    page.reload()  # by the service worker now
    page.wait_for_selector("[data-ready]")
    opened(page, front, **QUIET)
    asked(page, "refresh")
    town.next_round()
    asked(page, "refresh")
    assert not [url for url in page.evaluate(KEPT) if "/v1/" in url or "#" in url]
    asked(page, "erase", "everything")
    assert page.evaluate(LEFT) == [[], 0, 0]
    assert said(page, "status")["kind"] == "Unsupported"


def test_a_page_with_trusted_types_opens_its_device(context, front):
    front.policy = "; require-trusted-types-for 'script'; trusted-types sottovoce"
    page = tab_in(context, front.url)
    assert opened(page, front, **QUIET)["fresh"]
    page.evaluate("(f) => sottovoce.keepOffline('/service-worker.js', f)", ["/"])
    until(lambda: page.evaluate(KEPT))
    assert not page.troubles


def test_no_name_hides_or_turns_a_sign(browser, town):  # noqa: F811
    trick = "safe\u202egnp.exe\u200b"
    titles = [[item, f"{trick}{at}"] for at, (item, _) in enumerate(CATALOGUE)]
    with Shop() as shop, town.serve() as server, browser.new_context() as context:
        shop.upstream = server.url
        shop.change = lambda path, status, body: (
            status, json.dumps({"items": titles}).encode() if path == "/v1/catalogue" else body,
        )  # fmt: skip
        page = context.new_page()
        page.goto(shop.url)
        page.wait_for_selector("[data-ready]")
        page.evaluate("(given) => window.open_device(given)", QUIET)
        page.evaluate("() => window.device.refresh()")
        page.evaluate("(id) => window.device.visited(id)", CATALOGUE[3][0])
        frame = page.frame_locator("sottovoce-consent iframe")
        shown = "safe[U+202E]gnp.exe[U+200B]"
        expect(frame.locator("#never")).to_contain_text(f"{shown}3")
        best = page.locator("sottovoce-recommendations")
        expect(best.locator("li").first).to_contain_text(shown)
        for words in (frame.locator("body").inner_text(), best.inner_text()):
            assert not {"\u202e", "\u200b"} & set(words)


@pytest.mark.smoke
def test_other_tabs_show_nothing_of_what_was_deleted_in_one(browser, town):  # noqa: F811
    with Shop() as shop, town.serve() as server, browser.new_context() as context:
        shop.upstream = server.url
        invitation = Invitation(shop.url, "", town.tokens[0].hex(), 0, town.terms.federation)
        pages = []
        for _ in range(2):
            page = context.new_page()
            page.goto(shop.url)
            page.wait_for_selector("[data-ready]")
            given = {"invitation": invitation.to_table(), **QUIET}
            page.evaluate("(given) => window.open_device(given)", given)
            pages.append(page)
        one, other = pages
        one.evaluate("() => window.device.refresh()")
        one.evaluate("(id) => window.device.visited(id)", CATALOGUE[3][0])
        frame = other.frame_locator("sottovoce-consent iframe")
        expect(frame.locator("#never")).to_contain_text(CATALOGUE[3][1])
        expect(other.locator("sottovoce-recommendations li")).to_have_count(5)
        one.evaluate("() => window.device.erase('everything')")
        for page in pages:
            expect(page.locator("sottovoce-recommendations li")).to_have_count(0)
        expect(frame.locator("main")).to_contain_text("Nothing of you is here any more")
        expect(frame.locator("#never")).to_be_hidden()
