"""A device in a frame of another origin, in a real Chromium: a shop's scripts cannot read what is
in it, whatever they try."""

import pytest
from chromium import browser  # noqa: F401
from consent_world import CATALOGUE, GramTown, gram_terms
from people_world import Shop
from playwright.sync_api import expect
from tab_world import built, until

from sottovoce.stores.site import framed

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A shop</title>
<link rel="icon" href="data:,"></head><body><h1>A shop</h1>
<iframe title="For you" width="600" height="600" src="{frame}"></iframe>
<script type="module">
window.heard = [];
addEventListener("message", (event) => window.heard.push([event.origin, event.data]));
window.tell = (data) => frames[0].postMessage(data, "{origin}");
</script></body></html>"""
REACH = """() => {
  const own = ["document", "indexedDB", "localStorage", "sessionStorage", "caches", "sottovoce",
               "device", "name", "performance", "navigator", "frameElement", "fetch"];
  const found = [];
  for (const name of own) {
    try { found.push([name, String(frames[0][name])]); } catch (error) {
      if (error.name !== "SecurityError") found.push([name, error.name]);
    }
  }
  try { found.push(["href", frames[0].location.href]); } catch {}
  if (document.querySelector("iframe").contentDocument !== null) found.push(["contentDocument"]);
  return found;
}"""
STORED = """async () => JSON.stringify([
  await indexedDB.databases(), await caches.keys(), { ...localStorage }, { ...sessionStorage },
  document.cookie, performance.getEntries().map((one) => one.name), await navigator.locks.query(),
])"""
SAY = """(kinds) => {
  for (const channel of ["sottovoce", `sottovoce ${kinds.origin}`]) {
    const line = new BroadcastChannel(channel);
    line.onmessage = (event) => window.heard.push(["channel", event.data]);
    line.postMessage("change");
  }
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = (event) => window.heard.push(["port", event.data]);
  frames[0].postMessage({ sottovoce: "things" }, "*", [port2]);
  for (const kind of kinds.words) {
    for (const said of [kind, [kind], { sottovoce: kind }, { call: kind, id: 0, given: [] },
                        { sottovoce: kind, item: ["venue-1"], what: kind },
                        { sottovoce: "show", what: kind }, { sottovoce: { toString: null } }]) {
      if (said.what !== "consent" && said.what !== "recommendations") window.tell(said);
    }
  }
  for (const odd of [null, undefined, 0, "", new Map([["sottovoce", "things"]])]) window.tell(odd);
}"""
WORDS = [
    *("visited", "show", "ready", "hello", "history", "read", "get", "open", "close", "eval"),
    *("words", "state", "weigh", "choose", "things", "preview", "body", "send", "ledger", "row"),
    *("export", "agree", "stop", "start", "remove", "erase", "learn", "recommend", "status"),
    *("choices", "catalogue", "refresh", "visible", "__proto__", "constructor", "chosen"),
]


@pytest.fixture
def sites(tmp_path):
    """The shop's, the federation's, and another one; the federation names the shop alone."""
    built()
    made = [Shop(), Shop(), Shop()]
    shop, federation, other = made
    town = GramTown(gram_terms(tmp_path))
    with town.serve() as server:
        federation.upstream = server.url
        page = (built() / "frame.html").read_text(encoding="utf-8")
        written = framed(page, federation.url, [shop.url])
        federation.pages["/sottovoce/frame.html"] = written
        federation.ancestors = shop.url
        for site in (shop, other):
            frame = f"{federation.url}/sottovoce/frame.html"
            site.pages["/"] = PAGE.replace("{frame}", frame).replace("{origin}", federation.url)
            site.framed = federation.url
        town.next_round()
        yield *made, town
    for site in made:
        site.close()


@pytest.fixture
def context(browser, sites):  # noqa: F811
    """Closed before the sites are."""
    with browser.new_context(locale="it-IT") as made:
        yield made


def things(frame):
    """What is in her history, as the frame itself knows it."""
    return frame.evaluate(
        """async () => {
          const { openDevice } = await import("/sottovoce/sottovoce.js");
          const device = await openDevice({ federation: location.origin, automatic: false });
          const found = (await device.things()).map((one) => one.id);
          await device.close();
          return found;
        }"""
    )


@pytest.mark.smoke
def test_a_shop_cannot_read_history_from_the_frame(context, sites):
    shop, federation, _, _ = sites
    page = context.new_page()
    page.goto(shop.url)
    inside = page.frame(url=f"{federation.url}/sottovoce/frame.html")
    visited = [CATALOGUE[3], CATALOGUE[7]]
    for item, _ in visited:
        page.evaluate("(item) => window.tell({ sottovoce: 'visited', item })", item)
    until(lambda: sorted(things(inside)) == sorted(item for item, _ in visited))
    page.evaluate("window.tell({ sottovoce: 'show', what: 'recommendations' })")
    best = page.frame_locator("iframe").locator("sottovoce-recommendations button")
    expect(best).to_have_count(10)
    expect(page.frame_locator("iframe").locator("body")).to_contain_text("Tutto si fa in questo")

    assert page.evaluate(REACH) == []
    page.evaluate(SAY, {"words": WORDS, "origin": federation.url})
    page.wait_for_timeout(1000)
    assert page.evaluate("window.heard") == []
    assert sorted(things(inside)) == sorted(item for item, _ in visited), "nothing was done"
    kept = page.evaluate(STORED)
    for item, title in CATALOGUE:
        assert f'"{item}"' not in kept
        assert title not in kept

    # The one thing that is told: what she has clicked.
    title = best.first.inner_text()
    best.first.click()
    until(lambda: page.evaluate("window.heard.length"))
    (item,) = [item for item, name in CATALOGUE if name == title]
    assert page.evaluate("window.heard") == [
        [federation.url, {"sottovoce": "chosen", "item": item}]
    ]


@pytest.mark.smoke
def test_only_the_page_around_it_that_the_operator_names_is_heard(context, sites):
    shop, federation, other, _ = sites
    page = context.new_page()
    # Another origin cannot have it in a frame at all.
    page.goto(other.url)
    expect(page.frame_locator("iframe").locator("#page")).to_have_count(0)
    # One that may, by a mistake in the header, is not listened to all the same.
    federation.ancestors = f"{shop.url} {other.url}"
    page.goto(other.url)
    inside = page.frame(url=f"{federation.url}/sottovoce/frame.html")
    inside.wait_for_selector("#page", state="attached")
    page.evaluate("window.tell({ sottovoce: 'visited', item: 'venue-1' })")
    page.evaluate("window.tell({ sottovoce: 'show', what: 'recommendations' })")
    page.wait_for_timeout(500)
    assert things(inside) == []
    expect(page.frame_locator("iframe").locator("sottovoce-recommendations")).to_have_count(0)
    # Nor is a window that has the right origin and is not around it.
    shop.framed = f"{federation.url} 'self'"
    page.goto(shop.url)
    with context.expect_page() as opened:
        page.evaluate("(url) => { window.popup = window.open(url); }", shop.url)
    popup = opened.value
    popup.wait_for_load_state()
    popup.evaluate(
        "() => opener.frames[0].postMessage({ sottovoce: 'visited', item: 'venue-2' }, '*')"
    )
    page.wait_for_timeout(500)
    inside = page.frame(url=f"{federation.url}/sottovoce/frame.html")
    assert things(inside) == []
    page.evaluate("window.tell({ sottovoce: 'visited', item: 'venue-3' })")
    until(lambda: things(inside) == ["venue-3"])


@pytest.mark.smoke
def test_no_page_around_the_frame_can_lay_anything_over_what_she_agrees_with(context, sites):
    """In a shop's page there is nothing to agree or to choose with: only what opens a window."""
    shop, federation, _, town = sites
    page = context.new_page()
    page.goto(shop.url)
    inside = page.frame(url=f"{federation.url}/sottovoce/frame.html")
    page.evaluate("(item) => window.tell({ sottovoce: 'visited', item })", CATALOGUE[3][0])
    page.evaluate("window.tell({ sottovoce: 'show', what: 'consent' })")
    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("button")).to_have_text("La mia privacy")
    expect(frame.locator("input, select, textarea, [role=switch], a, sv-terms")).to_have_count(0)
    with context.expect_page() as opened:
        frame.get_by_role("button").click()
    popup = opened.value
    assert popup.url == f"{federation.url}/sottovoce/frame.html#centre"
    # The second click of a double click on the shop does nothing in the new window.
    popup.wait_for_selector("#page[inert]", state="attached")
    terms = popup.locator("#terms")
    popup.wait_for_selector("#page:not([inert])")
    # It is the device of the frame, with what she visited in this shop.
    expect(popup.locator("#never")).to_contain_text(CATALOGUE[3][1])
    terms.get_by_role("button", name="Accetta queste condizioni").click()
    status = "async () => (await window.sottovoce).status()"
    until(lambda: inside.evaluate(status)["agreedAt"] is not None)
    # The shop hears nothing of it, and the window goes with the page.
    assert page.evaluate("window.heard") == []
    assert page.evaluate(REACH) == []
    with popup.expect_event("close"):
        page.goto("about:blank")
    assert not town.bodies()


def test_the_centres_own_window_without_its_frame_has_no_device(context, sites):
    _, federation, _, _ = sites
    page = context.new_page()
    page.goto(f"{federation.url}/sottovoce/frame.html#centre")
    expect(page.locator("#page")).to_contain_text("La pagina che ha aperto questa finestra")
    assert page.evaluate("indexedDB.databases().then((all) => all.length)") == 0
