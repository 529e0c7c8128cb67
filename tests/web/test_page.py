"""The consent centre's page in a real browser, against a provider that is made up."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import page_mock
import pytest
from chromium import is_amiss, serious
from page_mock import LARGE, Mock, Served, Wrong
from playwright.sync_api import expect
from talk import until

from sottovoce.core.words import LANGUAGES, Said, catalogue, say

SECTIONS = ["stands", "choices", "never", "preview", "ledger", "learn", "terms", "stop"]
GRAM, PRINTED, OWNERS, CHANGED, HUGE = "s0", "s1", "s2", "s3", "s4"
BYTES, REQUESTS, ANSWERS = 150_000, 40, 4


@pytest.fixture(scope="module")
def server():
    served = Served()
    yield served
    served.stop()


@pytest.fixture
def mock(server):
    server.mock = Mock()
    return server.mock


@pytest.fixture
def visit(browser, server, mock):
    """Opens the page, as often as it is asked; nothing may be amiss in the browser's console."""
    contexts, amiss, requests = [], [], []

    def open_page(width=1200, height=900, context=None, script=None, clock=False, **options):
        if context is None:
            size = {"width": width, "height": height}
            context = browser.new_context(viewport=size, reduced_motion="reduce", **options)
            context.set_default_timeout(60_000)
            contexts.append(context)
        page = context.new_page()
        if script:
            page.add_init_script(script)
        if clock:
            page.clock.install()
        page.on("pageerror", lambda error: amiss.append(str(error)))
        page.on("console", lambda line: amiss.append(line.text) if is_amiss(line) else None)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(server.url)
        page.wait_for_selector("[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert amiss == []
    strangers = [url for url in requests if not url.startswith((server.url, "blob:", "data:"))]
    assert strangers == []


@pytest.fixture
def page(visit):
    return visit()


def t(key, **values):
    """The sentence in English."""
    return say(Said(key, values))


def to_store(page, store):
    page.locator(f'[data-store="{store}"]').click()
    expect(page.locator(f'[data-store="{store}"]')).to_have_attribute("aria-current", "true")


def take_part(page):
    page.get_by_role("switch", name=t("field.takes_part.label")).click()
    page.get_by_role("button", name=t("page.keep")).click()
    expect(page.get_by_role("button", name=t("page.keep"))).to_be_disabled()


def look(page):
    page.get_by_role("button", name=t("page.preview_button")).click()
    expect(page.get_by_text(t("preview.ready"))).to_be_visible()
    folded = page.locator("#preview .message details")
    folded.evaluate_all("found => found.forEach((one) => { one.open = true; })")


# --- sections -------------------------------------------------------------------------------------


def test_the_page_says_where_she_stands_and_has_its_sections_in_order(page):
    assert page.title() == t("page.title")
    assert page.locator(".stands").inner_text() == t("stands.nothing")
    assert [one.get_attribute("id") for one in page.locator("main section").all()] == SECTIONS
    assert page.get_by_role("heading", level=1).count() == 1
    for name in SECTIONS:
        assert page.locator(f"#{name} > h2").count() == 1


def test_nothing_is_saved_until_she_says_so(page, mock):
    page.get_by_role("switch", name=t("field.takes_part.label")).click()
    page.get_by_role("radio", name=t("step.normal")).check()
    expect(page.locator("#choices .dots circle")).to_have_count(100)
    expect(page.locator("#choices .odds")).to_contain_text(t("odds.said", right=60))
    assert page.get_by_label(t("page.exact_number")).first.input_value() == "2"
    assert mock.calls["weigh"] >= 1
    assert mock.calls["choose"] == 0

    page.get_by_role("button", name=t("page.keep")).click()
    until(lambda: mock.shops[0].choice["takes_part"])
    assert mock.shops[0].choice["epsilon"] == 2
    expect(page.get_by_text(t("page.saved"))).to_be_visible()


def test_dots_are_as_many_as_the_odds(page, mock):
    mock.shops[0].weigh = lambda change: {
        "odds": {"right": 55, "of": 100, "said": page_mock.said("odds.said", right=55)},
        "verdict": "good", "said": [], "objection": None, "technical": [],
    }  # fmt: skip
    page.get_by_role("radio", name=t("step.whisper")).check()
    dots = page.locator("#choices .dots")
    expect(dots.locator(".beyond")).to_have_count(5)
    assert dots.locator(".coin").count() == 50
    assert dots.locator(".wrong").count() == 45


def test_what_she_moved_can_be_put_back(page, mock):
    page.get_by_label(t("page.exact_number")).first.fill("3.5")
    expect(page.get_by_text(t("page.unsaved"))).to_be_visible()
    page.get_by_role("button", name=t("page.undo")).click()
    assert page.get_by_label(t("page.exact_number")).first.input_value() == "1"
    expect(page.get_by_text(t("page.unsaved"))).to_be_hidden()
    assert mock.calls["choose"] == 0


def test_a_limit_that_stops_everything_is_objected_to_before_it_is_kept(page):
    page.get_by_role("switch", name=t("field.takes_part.label")).click()
    page.get_by_label(t("page.exact_number")).nth(1).fill("0.5")
    objection = t("objection.limit", cost=1, limit=0.5)
    expect(page.locator("#choices .objection")).to_have_text(objection)


def test_recommendations_before_and_after(page):
    page.get_by_role("radio", name=t("step.loud")).check()
    page.get_by_role("button", name=t("page.recommend_button")).click()
    expect(page.locator("#choices ol")).to_have_count(2)


def test_a_share_and_data_owners_are_drawn_by_their_kind(page, mock):
    to_store(page, PRINTED)
    page.get_by_role("radio", name=t("step.all")).check()
    page.get_by_role("button", name=t("page.keep")).click()
    until(lambda: mock.shops[1].choice["share_positives"] == 1)

    to_store(page, OWNERS)
    page.get_by_role("switch", name="Video Nord").click()
    page.get_by_role("button", name=t("page.keep")).click()
    until(lambda: mock.shops[2].choice["refused_owners"] == ["Video Nord"])
    expect(page.get_by_role("switch", name="Video Nord")).to_have_attribute("aria-checked", "false")
    expect(page.get_by_role("switch", name="Kino Sud")).to_have_attribute("aria-checked", "true")


def test_keep_takes_back_nothing_that_was_refused_elsewhere(page, mock):
    """With a command or on another page, before this one has read what is stored, and after."""
    to_store(page, OWNERS)
    shop, refused = mock.shops[2], page.get_by_role("switch", name="Kino Sud")
    page.get_by_role("switch", name="Video Nord").click()
    shop.choice["refused_owners"] = ["Kino Sud"]
    page.get_by_role("button", name=t("page.keep")).click()
    until(lambda: shop.choice["refused_owners"] == ["Kino Sud", "Video Nord"])
    expect(refused).to_have_attribute("aria-checked", "false")

    page.get_by_role("switch", name="Video Nord").click()
    shop.choice["refused_owners"] = ["Video Nord", "Cinema Aurora"]
    page.evaluate("window.dispatchEvent(new Event('focus'))")
    other = page.get_by_role("switch", name="Cinema Aurora")
    expect(other).to_have_attribute("aria-checked", "false")
    expect(refused).to_have_attribute("aria-checked", "true")
    page.get_by_role("button", name=t("page.keep")).click()
    until(lambda: shop.choice["refused_owners"] == ["Cinema Aurora"])
    expect(other).to_have_attribute("aria-checked", "false")


def test_never_send_holds_at_once_and_the_preview_follows(page, mock):
    take_part(page)
    look(page)
    expect(page.get_by_text(t("preview.items", n=13))).to_be_visible()
    for title in ("Playtime (1967)", "Airplane! (1980)", "Ikiru (1952)"):
        page.locator("#never").get_by_role("switch", name=title).click()
    page.get_by_role("switch", name="Horror").click()
    expect(page.get_by_text(t("preview.items", n=6))).to_be_visible()
    expect(page.get_by_text(t("preview.kept_back", n=7))).to_be_visible()
    assert mock.shops[0].choice["never_send"] == ["f4", "f6", "f9", "Horror"]
    ruled = page.locator("#never").get_by_role("switch", name="Alien (1979)")
    expect(ruled).to_have_attribute("aria-disabled", "true")
    assert page.locator("#preview .bars").inner_text().count("Alien") == 0

    page.locator("#never").get_by_role("switch", name="Playtime (1967)").click()
    expect(page.get_by_text(t("preview.items", n=7))).to_be_visible()


def test_a_rule_in_advance_is_made_and_lifted(page, mock):
    page.get_by_label(t("page.category_name")).fill("War")
    page.get_by_role("button", name=t("page.category_add")).click()
    until(lambda: mock.shops[0].choice["never_send"] == ["War"])
    page.get_by_text(t("page.rules_all")).click()
    page.get_by_role("button", name=t("page.lift_name", name="War")).click()
    until(lambda: mock.shops[0].choice["never_send"] == [])


def test_a_switch_takes_back_no_rule_that_a_page_has_not_seen(page, mock):
    """Another browser or `sottovoce device never` has made it since this page was drawn."""
    mock.shops[0].choice["never_send"] = ["Western"]
    page.locator("#never").get_by_role("switch", name="Playtime (1967)").click()
    until(lambda: mock.shops[0].choice["never_send"] == ["Western", "f4"])
    rule = page.locator('#never [data-rule="Western"]')
    expect(rule).to_have_attribute("aria-checked", "false")


def test_a_switch_that_was_refused_goes_back(page, mock):
    mock.fail["choose"] = Wrong(400, "trouble.refused")
    switch = page.locator("#never").get_by_role("switch", name="Playtime (1967)")
    switch.click()
    expect(page.locator(".told")).to_contain_text(t("trouble.refused"))
    expect(switch).to_have_attribute("aria-checked", "true")


def test_a_thing_is_found_and_removed_after_a_question(page, mock):
    page.get_by_label(t("page.search_things")).fill("suspiria")
    expect(page.locator("#never .count")).to_have_text(t("page.things_total", n=1))
    page.get_by_role("button", name=t("page.remove_name", name="Suspiria (1977)")).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(t("erase.remove_before"))
    dialog.get_by_role("button", name=t("page.cancel")).click()
    assert len(mock.shops[0].things) == 13
    page.get_by_role("button", name=t("page.remove_name", name="Suspiria (1977)")).click()
    dialog.get_by_role("button", name=t("page.remove")).click()
    until(lambda: len(mock.shops[0].things) == 12)
    expect(page.get_by_text(t("page.search_none", query="suspiria"))).to_be_visible()


@pytest.mark.smoke
def test_what_she_saw_is_what_is_sent_and_what_the_ledger_has(page, mock):
    take_part(page)
    look(page)
    expect(page.locator("#preview .checked.right")).to_have_count(2)
    shown = [one.inner_text() for one in page.locator("#preview .digest code").all()]
    page.get_by_role("button", name=t("page.bytes_show")).click()
    dump = page.locator("#preview sv-list").first
    last = mock.shops[0].bodies[0][-16:].hex(" ")

    def at_the_end():  # all of them may have come by now, or not yet
        dump.evaluate("one => one.scrollTo(0, one.scrollHeight)")
        return last in dump.inner_text()

    until(at_the_end)
    page.get_by_role("button", name=t("page.send")).click()
    expect(page.locator("#preview")).to_contain_text(t("preview.arrived"))
    assert mock.shops[0].sent == 1
    assert sorted(row["sha256"] for row in mock.shops[0].rows) == sorted(shown)
    expect(page.locator("#ledger .row")).to_have_count(2)
    expect(page.locator(".stands")).to_contain_text(t("stands.left", n=1, last=page_mock.NOW))
    expect(page.get_by_role("button", name=t("page.send"))).to_be_disabled()


def test_an_old_preview_cannot_be_sent(page, mock):
    take_part(page)
    look(page)
    mock.delay = 0.6
    send = page.get_by_role("button", name=t("page.send"))
    expect(send).to_be_enabled()
    page.locator("#never").get_by_role("switch", name="Playtime (1967)").click()
    expect(page.locator("#preview .shown.stale")).to_be_visible()
    assert send.is_disabled()
    expect(send).to_be_enabled()
    assert page.locator("#preview .shown.stale").count() == 0
    assert mock.calls["send"] == 0


def test_bytes_that_do_not_fit_their_digest_are_told(page, mock):
    take_part(page)
    mock.body = lambda store, index: b"something else"
    look(page)
    expect(page.locator("#preview .checked.wrong").first).to_contain_text(t("page.bytes_wrong"))


def test_without_web_crypto_a_sentence_and_all_else_works(visit, mock):
    script = "Object.defineProperty(Crypto.prototype, 'subtle', {value: undefined})"
    page = visit(script=script)
    take_part(page)
    look(page)
    expect(page.get_by_text(t("page.bytes_no_crypto")).first).to_be_visible()
    page.get_by_role("button", name=t("page.send")).click()
    until(lambda: mock.shops[0].sent == 1)


def test_what_an_agent_sends_by_itself_can_be_looked_at_and_not_sent(page, mock):
    mock.shops[0].beside = True
    take_part(page)
    page.get_by_role("button", name=t("page.preview_button")).click()
    expect(page.locator("#preview [role=status]").first).to_have_text(t("busy.sends"))
    expect(page.locator("#preview .message").first).to_be_visible()
    expect(page.get_by_role("button", name=t("page.send"))).to_be_disabled()


def test_a_ledger_of_a_hundred_thousand_rows_scrolls(page):
    to_store(page, HUGE)
    expect(page.get_by_text(t("ledger.total", n=LARGE))).to_be_visible()
    rows = page.locator("#ledger sv-list")
    assert rows.locator("[role=table]").get_attribute("aria-rowcount") == str(LARGE + 1)
    rows.focus()
    page.keyboard.press("End")
    expect(rows.locator(f'[aria-rowindex="{LARGE + 1}"] .when')).to_be_visible()
    for place in (0.2, 0.5, 0.9):
        rows.evaluate("(one, place) => one.scrollTo(0, one.scrollHeight * place)", place)
        expect(rows.locator(".row .when").first).to_be_visible()
        assert rows.locator(".row").count() < 60
    assert page.locator("*").count() < 2500


def test_a_hundred_thousand_things_are_searched_and_switched(page, mock):
    to_store(page, HUGE)
    things = page.locator("#never sv-list")
    expect(things.get_by_role("switch", name="Place 000000")).to_be_visible()
    assert things.locator(".row").count() < 60
    page.get_by_label(t("page.search_things")).fill("099999")
    things.get_by_role("switch", name="Place 099999").click()
    until(lambda: mock.shops[4].choice["never_send"] == ["p99999"])


def test_the_ledger_is_filtered_exported_and_has_receipts(page, mock):
    mock.shops[4].large = 12_000
    page.reload()
    to_store(page, HUGE)
    page.get_by_label(t("page.search_ledger")).fill(t("ledger.contribution").upper())
    found = t("page.of", part=2400, whole=12000)
    expect(page.locator("#ledger .count")).to_have_text(found, timeout=60_000)
    assert page.locator("#ledger .row .what").first.inner_text() == t("ledger.contribution")
    with page.expect_download() as download:
        page.get_by_role("button", name=t("ledger.ndjson")).click()
    assert download.value.suggested_filename == "ledger-places.ndjson"
    rows = Path(download.value.path()).read_text().splitlines()
    assert json.loads(rows[0])["id"] == "11999"

    page.locator("#ledger .row").first.get_by_role("button", name=t("ledger.receipt")).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("ISO/IEC TS 27560")
    with page.expect_download() as download:
        dialog.get_by_role("button", name=t("page.receipt_save")).click()
    assert json.loads(Path(download.value.path()).read_text())["version"] == "ISO/IEC TS 27560"
    dialog.get_by_role("button", name=t("page.close")).click()
    expect(dialog).to_be_hidden()


def test_what_could_be_learnt_is_a_coin_or_her_own_things(page):
    page.get_by_role("button", name=t("page.learn_button")).click()
    expect(page.locator("#learn progress")).to_be_visible()
    expect(page.locator("#learn svg.coin")).to_be_visible()
    to_store(page, PRINTED)
    expect(page.locator("#learn .finding")).to_have_count(0)
    expect(page.locator("#stands .printed")).to_be_visible()
    page.get_by_role("button", name=t("page.learn_button")).click()
    expect(page.locator("#learn .came-out .right")).to_have_count(5)
    expect(page.locator("#learn .came-out .wrong")).to_have_count(1)
    expect(page.locator("#learn")).to_contain_text(t("learn.broken"))


def test_changed_terms_are_a_difference_and_wait_for_her(page, mock):
    to_store(page, CHANGED)
    expect(page.locator("#stands")).to_contain_text(t("terms.changed"))
    difference = page.locator("#terms .difference").first
    assert difference.locator("del").inner_text().endswith("100")
    assert difference.locator("ins").inner_text().endswith("20")
    page.get_by_role("button", name=t("terms.agree")).click()
    expect(page.locator("#terms .changes")).to_have_count(0)
    assert mock.shops[3].terms["agreed"]


def test_terms_that_changed_again_are_not_agreed_to(page, mock):
    to_store(page, CHANGED)
    mock.shops[3].terms = {**mock.shops[3].terms, "digest": "another"}
    page.get_by_role("button", name=t("terms.agree")).click()
    expect(page.locator(".told")).to_contain_text(t("trouble.terms_other"))
    assert not mock.shops[3].terms["agreed"]


def test_she_stops_and_starts(page, mock):
    take_part(page)
    page.get_by_role("button", name=t("stop.now")).click()
    until(lambda: not mock.shops[0].choice["takes_part"])
    page.get_by_role("button", name=t("stop.everything"), exact=True).click()
    until(lambda: mock.shops[0].stopped)
    expect(page.get_by_role("button", name=t("page.preview_button"))).to_be_disabled()
    assert not mock.shops[1].stopped
    page.get_by_role("button", name=t("stop.start")).click()
    until(lambda: not mock.shops[0].stopped)
    page.get_by_role("button", name=t("page.stop_all")).click()
    until(lambda: all(shop.stopped for shop in mock.shops))


def test_deleting_says_before_what_cannot_be_undone_and_asks_twice(page, mock):
    to_store(page, HUGE)
    expect(page.locator("#stop")).to_contain_text(t("erase.before_sum"))
    page.get_by_role("button", name=t("erase.everything")).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(t("erase.before_sum"))
    sure = dialog.get_by_role("button", name=t("erase.everything"))
    assert sure.is_disabled()
    page.keyboard.press("Escape")
    assert mock.calls["erase"] == 0

    to_store(page, GRAM)
    page.get_by_role("button", name=t("erase.history")).click()
    dialog.get_by_label(t("erase.confirm", word=t("erase.word"))).fill(t("erase.word"))
    dialog.get_by_role("button", name=t("erase.history")).click()
    until(lambda: mock.shops[0].things == [])
    expect(page.get_by_text(t("page.things_empty"))).to_be_visible()


def test_when_the_last_store_is_gone_the_page_says_so(page, mock):
    mock.shops = mock.shops[:1]
    page.reload()
    page.get_by_role("button", name=t("erase.everything")).click()
    page.get_by_role("dialog").get_by_label(t("erase.confirm", word=t("erase.word"))).fill(
        t("erase.word")
    )
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_text(t("trouble.no_store"))).to_be_visible()
    expect(page.locator("main section:visible")).to_have_count(0)


# --- what may go wrong ----------------------------------------------------------------------------


def test_two_tabs_show_the_same(visit, mock):
    one = visit()
    other = visit(context=one.context)
    one.locator("#never").get_by_role("switch", name="Ikiru (1952)").click()
    switch = other.locator("#never").get_by_role("switch", name="Ikiru (1952)")
    expect(switch).to_have_attribute("aria-checked", "false")


def test_what_was_changed_elsewhere_is_told_and_shown(page, mock):
    page.get_by_role("switch", name=t("field.takes_part.label")).click()
    mock.shops[0].choice["epsilon"] = 4.0
    mock.fail["choose"] = Wrong(409, "trouble.other_tab")
    page.get_by_role("button", name=t("page.keep")).click()
    expect(page.get_by_role("alert").filter(has_text=t("trouble.other_tab"))).to_be_visible()
    expect(page.get_by_role("radio", name=t("step.loud"))).to_be_checked()
    expect(page.get_by_role("switch", name=t("field.takes_part.label"))).to_have_attribute(
        "aria-checked", "true"
    )
    assert not mock.shops[0].choice["takes_part"]


def test_when_the_agent_stops_all_stays_and_it_comes_back(page, server, mock):
    take_part(page)
    look(page)
    server.stop()
    try:
        page.locator("#never").get_by_role("switch", name="Playtime (1967)").click()
        banner = page.get_by_role("alert").filter(has_text=t("trouble.agent_stopped"))
        expect(banner).to_be_visible()
        expect(page.get_by_role("button", name=t("page.send"))).to_be_disabled()
        expect(page.get_by_role("switch", name=t("field.takes_part.label"))).to_be_disabled()
        expect(page.locator(".stands")).to_be_visible()
        expect(page.locator("#preview .bars")).to_be_visible()
    finally:
        server.start()
    expect(banner).to_be_hidden()
    expect(page.get_by_role("switch", name=t("field.takes_part.label"))).to_be_enabled()
    assert mock.shops[0].choice["never_send"] == []


def test_when_the_session_is_over_she_is_told_and_nothing_more_is_asked(page, mock):
    mock.over = True
    page.get_by_role("button", name=t("page.recommend_button")).click()
    expect(page.get_by_role("alert").filter(has_text=t("trouble.session"))).to_be_visible()
    expect(page.get_by_role("switch", name=t("field.takes_part.label"))).to_be_disabled()
    asked = sum(mock.calls.values())
    page.wait_for_timeout(300)
    assert sum(mock.calls.values()) == asked


def test_a_page_that_nobody_looks_at_asks_no_more(visit, mock):
    page = visit(clock=True)
    page.clock.run_for(61_000)
    until(lambda: mock.calls["state"] >= 4)
    page.clock.fast_forward(15 * 60_000)
    page.clock.run_for(11_000)
    time.sleep(0.5)  # what was asked before has come
    asked = mock.calls["state"]
    page.clock.run_for(61_000)
    time.sleep(0.5)
    assert mock.calls["state"] == asked


# --- words ----------------------------------------------------------------------------------------


def test_the_language_changes_without_a_reload_and_nothing_is_lost(page):
    page.get_by_role("radio", name=t("step.loud")).check()
    page.get_by_role("button", name=t("page.italian")).click()
    expect(page.locator(".stands")).to_have_text(say(Said("stands.nothing"), "it"))
    assert page.locator("html").get_attribute("lang") == "it"
    assert page.get_by_label(catalogue("it")["page.exact_number"]).first.input_value() == "4"
    page.reload()
    expect(page.locator(".stands")).to_have_text(say(Said("stands.nothing"), "it"))
    assert page.context.cookies() == []
    assert page.evaluate("localStorage.length") == 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_raw_key_is_shown(visit, language, mock):
    page = visit()
    if language == "it":
        page.get_by_role("button", name=t("page.italian")).click()
    words = page_mock.words(language)
    groups = "|".join(sorted({key.split(".")[0] for key in words}))
    raw = re.compile(rf"\b({groups})\.[a-z_]+|\{{\w+(:\w+)?\}}")
    for store in (GRAM, PRINTED, OWNERS, CHANGED, HUGE):
        mock.shops[int(store[1])].choice["takes_part"] = True
        to_store(page, store)
        page.get_by_role("button", name=words["page.preview_button"]).click()
        page.get_by_role("button", name=words["page.learn_button"]).click()
        expect(page.locator("#learn .finding")).to_be_visible()
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert [one.group() for one in raw.finditer(page.evaluate(ALL_TEXT))] == []
    page.get_by_role("button", name=words["erase.everything"]).click()
    assert [one.group() for one in raw.finditer(page.evaluate(ALL_TEXT))] == []


ALL_TEXT = """() => [document.body.innerText, ...[...document.querySelectorAll('*')].flatMap(
    one => ['aria-label', 'title', 'placeholder'].map(name => one.getAttribute(name) ?? ''))]
    .join('\\n')"""


def test_the_browser_says_every_sentence_as_python_does(page):
    values = {
        "n": 12345, "last": 1762160400, "until": 1762160400, "spent": 1.4, "limit": 0.00001,
        "size": 2_345_678, "share": 0.125, "names": ["a", "b", "c"], "right": 55, "of": 100,
    }  # fmt: skip
    cases, wanted = [], []
    for language in ("en", "it"):
        for key, template in page_mock.words(language).items():
            if key.startswith("format."):
                continue
            places = re.findall(r"\{(\w+)(?::\w+)?\}", template)
            kinds = re.findall(r"\{\w+:\w+\}", template)
            given = {name: values.get(name, 7.25 if kinds else "text") for name in places}
            plain = re.sub(r"\.(one|other)$", "", key)
            given["n"] = 1 if key.endswith(".one") else values["n"]
            cases.append([language, plain, given])
            wanted.append(say(Said(plain, given), language))
    spoken = page.evaluate(
        """async (cases) => {
          const words = await import('./static/words.js');
          const known = {};
          for (const name of ['en', 'it']) {
            known[name] = await (await fetch(`words/${name}.json`)).json();
          }
          return cases.map(([language, key, values]) => {
            words.speak(language, known[language]);
            return words.say({key, values});
          });
        }""",
        cases,
    )
    assert [pair for pair in zip(spoken, wanted, strict=True) if pair[0] != pair[1]] == []


# --- for everybody --------------------------------------------------------------------------------

LOOKS = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "narrow": {"width": 360, "height": 740},
}


@pytest.mark.parametrize("look_", LOOKS, ids=str)
def test_axe_finds_nothing_serious_in_any_state(visit, mock, server, look_):
    for shop in mock.shops[:2]:
        shop.choice["takes_part"] = True
    rules = {"runOnly": ["color-contrast"]} if look_ == "dark" else {}  # the rest is the same
    page = visit(**LOOKS[look_])
    for store in (GRAM, PRINTED):
        pick(page, store)
        page.get_by_role("radio").last.check()
        page.locator("#never").get_by_role("switch", name="Horror").click()
        look(page)
        page.get_by_role("button", name=t("page.learn_button")).click()
        page.get_by_role("button", name=t("page.recommend_button")).click()
        expect(page.locator("#learn .finding")).to_be_visible()
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert serious(page, **rules) == []
    for store in (OWNERS, CHANGED, HUGE):
        pick(page, store)
        expect(page.locator("#never .row").first).to_be_visible()
        if store == HUGE:  # a dialog hides nothing of the page from axe
            page.locator("#ledger .row").first.get_by_role("button").click()
            expect(page.get_by_role("dialog")).to_be_visible()
        assert serious(page, **rules) == []
    page.keyboard.press("Escape")
    mock.over = True
    page.get_by_role("button", name=t("page.recommend_button")).click()
    expect(page.get_by_role("alert").filter(has_text=t("trouble.session"))).to_be_visible()
    assert serious(page, **rules) == []
    mock.over = False
    page.reload()
    page.get_by_role("button", name=t("erase.everything")).click()
    assert serious(page, **rules) == []


def pick(page, store):
    """By the list at the side, or what stands for it in a narrow window."""
    if page.locator("#store").is_visible():
        page.locator("#store").select_option(store)
    else:
        to_store(page, store)


def test_a_narrow_window_needs_no_sideways_scrolling(visit, mock):
    mock.shops[0].choice["takes_part"] = True
    page = visit(width=360, height=740)
    look(page)
    page.get_by_role("button", name=t("page.learn_button")).click()
    expect(page.locator("#learn .finding")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    for store in (PRINTED, OWNERS, CHANGED, HUGE):
        pick(page, store)
        assert page.evaluate("document.documentElement.scrollWidth") == 360


class Keyboard:
    """Somebody who has no mouse."""

    def __init__(self, page):
        self.page = page

    def to(self, target, key="Tab", most=250):
        """Tab until the target has the focus, which can be seen."""
        for _ in range(most):
            if target.evaluate("one => one === document.activeElement"):
                assert target.evaluate("one => getComputedStyle(one).outlineStyle") != "none"
                return self
            self.page.keyboard.press(key)
        raise AssertionError("the keyboard does not get there")

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
        return self


def test_every_task_with_the_keyboard_alone(page, mock):
    keyboard = Keyboard(page)
    button = lambda name, inside=page: inside.get_by_role("button", name=name)  # noqa: E731
    shop = mock.shops[0]
    keyboard.to(page.get_by_text(t("page.skip"))).press("Enter")
    keyboard.to(page.get_by_role("switch", name=t("field.takes_part.label"))).press("Space")
    keyboard.to(page.get_by_role("radio", name=t("step.low"))).press("ArrowRight")
    keyboard.to(page.locator("#choices input[type=range]")).press("ArrowRight")
    keyboard.to(button(t("page.keep"))).press("Enter")
    until(lambda: shop.choice["takes_part"] and shop.choice["epsilon"] > 2)
    keyboard.to(page.get_by_role("switch", name="Horror")).press("Space")
    until(lambda: shop.choice["never_send"] == ["Horror"])
    things = page.locator("#never sv-list")
    first = things.get_by_role("switch", name="Alien (1979)")
    expect(first).to_have_attribute("aria-checked", "false")
    keyboard.to(first).press("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "Space")
    until(lambda: shop.choice["never_send"] == ["Horror", "f4"])
    expect(things.get_by_role("switch", name="Playtime (1967)")).to_be_focused()
    keyboard.to(button(t("page.preview_button"))).press("Enter")
    expect(page.get_by_text(t("preview.ready"))).to_be_visible()
    keyboard.to(button(t("page.send"))).press("Enter")
    until(lambda: shop.sent == 1)
    expect(page.locator("#ledger .row")).to_have_count(2)
    keyboard.to(button(t("ledger.receipt"), page.locator("#ledger .row").first)).press("Enter")
    dialog = page.get_by_role("dialog")
    keyboard.to(button(t("page.close"), dialog)).press("Enter")
    expect(dialog).to_be_hidden()
    keyboard.to(button(t("page.learn_button"))).press("Enter")
    expect(page.locator("#learn .finding")).to_be_visible()
    keyboard.to(button(t("stop.now"))).press("Enter")
    until(lambda: not shop.choice["takes_part"])
    keyboard.to(button(t("erase.history"))).press("Enter")
    page.keyboard.type(t("erase.word"))
    keyboard.to(button(t("erase.history"), dialog)).press("Enter")
    until(lambda: shop.things == [])

    keyboard.to(page.locator(f'[data-store="{CHANGED}"]'), key="Shift+Tab").press("Enter")
    keyboard.to(button(t("terms.agree"))).press("Enter")
    until(lambda: mock.shops[3].terms["agreed"])
    keyboard.to(button(t("page.italian")), key="Shift+Tab").press("Enter")
    expect(page.locator("html")).to_have_attribute("lang", "it")


# --- small and quick ------------------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_is_small_and_asks_little_before_it_is_usable(visit, server, mock, language):
    mock.shops = mock.shops[:1]
    server.language = language
    try:
        page = visit()
        page.wait_for_load_state("networkidle")
    finally:
        server.language = "en"
    found = page.evaluate(
        """() => {
            const usable = performance.getEntriesByName("usable")[0].startTime;
            return [...performance.getEntriesByType("navigation"),
                    ...performance.getEntriesByType("resource")]
                .map((one) => [one.name, one.decodedBodySize, one.startTime < usable]);
        }"""
    )
    before = [name for name, _, early in found if early]
    assert sum(size for _, size, _ in found) <= BYTES
    assert len(before) <= REQUESTS, before
    assert sum("/api/" in name for name in before) <= ANSWERS, before


@pytest.mark.slow  # as `make types-js`
def test_types_hold():
    command = typescript()
    if command is None:
        pytest.skip("there is no TypeScript here (make types-js)")
    project = Path(page_mock.PAGES) / "jsconfig.json"
    done = subprocess.run([*command, "-p", project], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def typescript():
    """The compiler: a given one, that of `make types-js`, or one that npm knows."""
    if given := os.environ.get("SOTTOVOCE_TSC"):
        return [given]
    ours = Path(__file__).parents[2] / ".venv/node/node_modules/.bin/tsc"
    if ours.exists():
        return [ours]
    command = ["npx", "--no-install", "tsc"]
    if shutil.which("npx") is None:
        return None
    known = subprocess.run([*command, "--version"], capture_output=True).returncode == 0
    return command if known else None
