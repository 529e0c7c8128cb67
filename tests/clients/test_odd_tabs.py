"""A browser tab where something is odd, in a real Chromium: its clock, a server that does not
answer, a private window, a week without a network, a browser that lacks something, a federation in
which a tab cannot take part. What leaves is right or nothing does, and she is told."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from chromium import browser  # noqa: F401
from consent_world import CATALOGUE, HISTORY, ITEMS, GramTown, gram_terms
from kinds_world import TIERS, K, terms_of
from tab_world import Documents, Front, asked, opened, said, tab_in, take_part
from talk import until

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.core.links import Proxied
from sottovoce.privacy.reports import KReports
from sottovoce.wire.invitations import Invitation
from sottovoce.wire.terms import Terms

YEAR = 365 * 86_400
VISITS = [list(one) for one in HISTORY]


@contextmanager
def served(town):
    """A front before this town, which a page is loaded from."""
    with Front() as front, town.serve() as server:
        front.upstream = server.url
        yield front


@pytest.fixture(scope="module")
def context(browser):  # noqa: F811
    """A private window that tests share whose pages have origins of their own."""
    with browser.new_context() as made:
        yield made


def invited(town, front):
    token = town.tokens[0].hex()
    return Invitation(front.url, "", token, 0, town.terms.federation).to_table()


def reports(front):
    return [body for path, body in front.posted if path == "/v1/reports"]


def arrived(page, round):
    wanted = {"round": round, "attempt": 0, "state": "arrived"}
    until(lambda: asked(page, "status")["report"] == wanted, 90, lambda: asked(page, "status"))


def becomes(page, **odd):
    """Of the worker of this page's device, from now on."""
    page.evaluate("(odd) => new BroadcastChannel('odd').postMessage(odd)", odd)


@pytest.mark.parametrize("years", [10, -60], ids=["ahead", "before 1970"])
def test_a_clock_that_is_wrong_and_jumps_changes_nothing_that_leaves(browser, tmp_path, years):  # noqa: F811
    town = GramTown(gram_terms(tmp_path))
    with served(town) as front, browser.new_context() as context:
        page = tab_in(context, front.url)
        opened(page, front, invited(town, front), odd=f"shift={years * YEAR}")
        take_part(page, VISITS, epsilon=8.0)
        arrived(page, 0)
        becomes(page, shift=-years * YEAR)
        town.next_round()
        arrived(page, 1)
        status, rows = asked(page, "status"), asked(page, "ledger")
        best = asked(page, "recommend", 5)
    assert [row["state"] for row in rows if row["what"] == "report"] == ["arrived", "arrived"]
    assert status["budget"]["spent"] == pytest.approx(8.0), "as with a clock that is right"
    assert status["budget"]["totals"][0]["releases"] == 2
    assert len(reports(front)) == 2
    assert len(best) == 5
    assert not page.troubles


def test_a_server_that_does_not_answer_holds_nobody_up(browser, tmp_path):  # noqa: F811
    town = GramTown(gram_terms(tmp_path))
    quiet, heard = set(), threading.Event()
    go_on = threading.Event()

    def silent(path):
        if path in quiet:
            heard.set()
            go_on.wait(60)

    with served(town) as front, browser.new_context() as context:
        front.after = silent
        page = tab_in(context, front.url)
        opened(page, front, invited(town, front), odd="hurry=20")
        asked(page, "refresh")
        # It takes what leaves, and says nothing: nobody knows whether it counts.
        quiet.add("/v1/reports")
        take_part(page, VISITS, epsilon=8.0)
        until(heard.is_set)
        assert len(asked(page, "recommend", 5)) == 5
        assert len(asked(page, "things")) == len(VISITS)
        assert asked(page, "status")["report"]["state"] == "left"
        assert not go_on.is_set(), "all this while the server was silent"
        until(lambda: "takes too long to answer" in asked(page, "status")["trouble"])
        quiet.clear()
        go_on.set()
        arrived(page, 0)
        # It drips: no answer is worth waiting for that long.
        becomes(page, hurry=100)
        front.drips = "/v1/round"
        until(lambda: "takes too long to answer" in asked(page, "status")["trouble"])
        town.next_round()
        before, looks = len(front.posted), len(front.asked)
        until(lambda: len(front.asked) > looks + 1)
        assert len(asked(page, "recommend", 5)) == 5
        assert len(front.posted) == before, "nothing leaves"
        front.drips = None
        becomes(page, hurry=1)
        arrived(page, 1)
        rows = [row for row in asked(page, "ledger") if row["what"] == "report"]
        spent = asked(page, "status")["budget"]["spent"]
        asked(page, "stop")
    assert len(rows) == 2
    assert spent == pytest.approx(8.0)
    sent = reports(front)
    assert len(sent) > len(set(sent)) == 2, "sent again, the very same bytes"
    assert not page.troubles


def test_a_private_window_takes_part_and_leaves_nothing_behind(browser, tmp_path):  # noqa: F811
    """Chromium's private windows are such contexts: their storage ends with them."""
    town = GramTown(gram_terms(tmp_path))
    with served(town) as front:
        with browser.new_context() as context:
            page = tab_in(context, front.url)
            assert opened(page, front, invited(town, front))["fresh"]
            take_part(page, VISITS, epsilon=8.0)
            arrived(page, 0)
            again = tab_in(context, front.url)
            assert not opened(again, front)["fresh"], "two tabs of the window are one device"
        with browser.new_context() as context:
            page = tab_in(context, front.url)
            status = opened(page, front, invited(town, front), automatic=False)
            assert status["fresh"], "she is told that nothing of her was here"
            assert (status["items"], asked(page, "ledger")) == (0, [])
            assert status["budget"] == {"totals": [], "spent": 0}
            take_part(page, VISITS, epsilon=8.0)
            told = said(page, "send", asked(page, "preview")["name"])
            assert told["kind"] == "KeyTrouble", told
            assert "invitation, which may have been used before" in told["sentence"]
    assert len(reports(front)) == 1


OFFLINE = ["/", "/page.js", "/sottovoce.js", "/odd.js"]


def test_after_a_week_offline_nothing_goes_to_rounds_and_terms_that_are_over(browser, tmp_path):  # noqa: F811
    town = GramTown(gram_terms(tmp_path))
    odd = f"shift={8 * 86_400}"
    with served(town) as front, browser.new_context() as context:
        page = tab_in(context, front.url)
        opened(page, front, invited(town, front))
        take_part(page, VISITS, epsilon=8.0)
        arrived(page, 0)
        front.before = lambda path: path == "/v1/reports"  # the next one is lost on its way
        town.next_round()
        until(lambda: (asked(page, "status")["report"] or {})["state"] == "left")
        until(lambda: asked(page, "status")["model"] == 1)
        files = [*OFFLINE, f"/odd-worker.js?{odd}"]
        page.evaluate("(f) => sottovoce.keepOffline('/service-worker.js', f)", files)
        kept = "caches.open('sottovoce-2').then((kept) => kept.keys()).then((all) => all.length)"
        until(lambda: page.evaluate(kept) >= len(files))
        best, spent = asked(page, "recommend", 5), asked(page, "status")["budget"]["spent"]
        front.down = True
        page.close()
        # A week later there is still no network: page and worker come from the service worker.
        page = tab_in(context, front.url)
        assert not opened(page, front, odd=odd)["fresh"]
        assert asked(page, "recommend", 5) == best
        until(lambda: "nobody answers" in asked(page, "status")["trouble"])
        asked(page, "visited", "venue-1")
        assert "venue-1" not in [one["id"] for one in asked(page, "recommend", 5)]
        # Meanwhile the round is over, and the terms are others.
        town.next_round()
        town.terms, sent = gram_terms(tmp_path, min_devices=3), len(front.posted)
        front.before, front.down = None, False
        pending = until(lambda: asked(page, "status")["pending"], 90)
        assert pending["digest"] == town.terms.digest()
        assert asked(page, "status")["report"]["state"] == "left"
        assert len(front.posted) == sent, "nothing leaves before she agrees"
        asked(page, "agree", pending["digest"])
        arrived(page, 2)
        states = [row["state"] for row in asked(page, "ledger") if row["what"] == "report"]
        assert asked(page, "status")["budget"]["spent"] > spent
    rounds = [int.from_bytes(body[8:12], "little") for body in reports(front)[1:]]
    assert states == ["arrived", "refused", "arrived"]
    assert rounds == [2], "what was for the round that is over never left again"
    assert not page.troubles


LACKING = {
    "subtle": ("Unsupported", "no cryptography"),
    "AES-GCM": ("StorageTrouble", "cannot make keys"),
    "indexedDB": ("StorageTrouble", "store on this device cannot be used"),
    "locks": ("Unsupported", "cannot keep two tabs apart"),
}


def test_a_browser_that_lacks_something_does_without_or_says_so(browser, tmp_path):  # noqa: F811
    town = GramTown(gram_terms(tmp_path))
    with served(town) as front, browser.new_context() as context:
        page = tab_in(context, front.url)
        for what, (kind, sentence) in LACKING.items():
            given = {"federation": front.url, "odd": f"lacks={what}"}
            told = page.evaluate("(given) => window.said(() => window.opened(given))", given)
            assert told.get("kind") == kind, (what, told)
            assert sentence in told["sentence"]
        assert page.evaluate("indexedDB.databases().then((all) => all.length)") <= 1
        assert not front.asked, "nothing was even asked for"
        # Without these two curves, which are recent, it has its own.
        opened(page, front, invited(town, front), odd="lacks=Ed25519,X25519")
        take_part(page, VISITS, epsilon=8.0)
        arrived(page, 0)
        town.next_round()
        page.close()
        # The key is kept; a browser that has learnt them since goes on with it.
        page = tab_in(context, front.url)
        assert not opened(page, front)["fresh"]
        arrived(page, 1)
    assert len(town.keys) == 1
    assert [path for path, _ in front.posted].count("/v1/enrol") == 1
    assert len(reports(front)) == 2
    assert not page.troubles


CANNOT = {
    "fcf": "algorithm fcf",
    "uc": "algorithm uc",
    "fmf": "algorithm fmf",
    "checked": "link checked-sum",
    "parts": "add noise themselves",
    "fpl sum": "noise, whose price a browser tab cannot count yet",
    "drift": "no server of Sottovoce",
}
"""Federations, and what of them a tab cannot do. Servers of DRIFT, whose users ask data owners,
know none of the addresses that a device asks."""


class Server(Documents, Front):
    """One that a page is loaded from, too."""


def terms_called(name, folder):
    if name == "fmf":
        return Terms("fmf", ITEMS, FMFConfig(), KReports(K, TIERS), Proxied("https://mix", ""))
    if name != "parts":
        return terms_of(name, folder / name)
    terms = gram_terms(folder)
    return replace(terms, release=replace(terms.release, parts=5))


@pytest.mark.parametrize("name", CANNOT)
def test_a_tab_sends_nothing_to_a_federation_in_which_it_cannot_take_part(name, context, tmp_path):
    terms = None if name == "drift" else terms_called(name, tmp_path)
    with Server() as front:
        front.publish(terms, CATALOGUE)
        page = tab_in(context, front.url)
        token = None
        if terms is not None:
            token = Invitation(front.url, "", "ab" * 32, 0, terms.federation).to_table()
        opened(page, front, token)
        asked(page, "visited", VISITS)
        loud = {"epsilon": 0.0, "sharePositives": 1.0}
        wanted = loud if name in ("fpl sum", "fcf", "uc") else {"epsilon": 2.0}
        asked(page, "choose", {"takesPart": True, **wanted})
        if name in ("parts", "fpl sum"):  # which it can read, and recommends by
            pending = until(lambda: asked(page, "status")["pending"])
            asked(page, "agree", pending["digest"])
            shown = asked(page, "preview")
            assert (shown["why"], shown["messages"]) == ("choice", [])
            told = shown["detail"]
            until(lambda: told in str(page.evaluate("heard")))  # without being asked
        else:
            told = until(lambda: asked(page, "status")["trouble"])
            assert said(page, "preview")["sentence"] == told
        ledger = asked(page, "ledger")
        page.close()
    assert CANNOT[name] in told
    assert told.replace("127.0.0.1", "").count(".") == 0, "one sentence"
    assert not front.posted
    assert ledger == []
