"""The page's loopback server: who comes in, from where, with what; and what strangers get."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_world import CANARY, make_pages, serving
from talk import until

import sottovoce
from sottovoce.cli import call
from sottovoce.core.words import LANGUAGES, catalogue
from sottovoce.errors import ServiceError
from sottovoce.web.entrance import Entrance, is_another_user, is_our_host, is_our_page
from sottovoce.web.page import ALWAYS, BODY_BYTES, CALLS, ELSEWHERE, PAGES, as_served
from sottovoce.web.process import LIMITS, LinkFile, PageProcess

CHANGES = [one.path for one in CALLS if one.method == "POST"]
READS = [one.path for one in CALLS if one.method == "GET"]
QUICK = replace(
    LIMITS,
    handshake_seconds=2.0,
    head_seconds=1.0,
    body_seconds=1.0,
    rest_seconds=1.0,
    idle_seconds=2,
)
FORMS = ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    return make_pages(tmp_path_factory.mktemp("page") / "pages")


@pytest.fixture(scope="module")
def shared(pages):
    with serving(pages) as page:
        yield page


@pytest.fixture
def page(shared):
    """Somebody who has come in, and a provider that nobody has asked yet."""
    shared.cookie = shared.token = ""
    shared.renew()
    shared.come_in()
    shared.provider.calls.clear()
    return shared


@pytest.fixture
def own(pages):
    """A page of the test's own, with short limits."""
    with serving(pages, QUICK) as page:
        yield page


def said_nothing(answer):
    """Nothing of hers is in it, and it is protected as every answer is."""
    assert CANARY.encode() not in answer.body
    assert not any(CANARY in value for _, value in answer.headers)
    protected(answer)


def protected(answer):
    for name, value in ALWAYS.items():
        if name != "cache-control":
            assert answer[name] == [value], (name, answer)
    assert answer["cache-control"] in (["no-store"], ["private, no-cache"])
    assert not [name for name, _ in answer.headers if name.lower().startswith("access-control")]
    assert not answer["server"]


def refused(page, answer, status, key=None):
    assert answer.status == status, answer
    said_nothing(answer)
    assert key is None or answer.error == key
    assert page.provider.calls == []


# --- the way in -----------------------------------------------------------------------------------


def test_the_link_opens_the_page_and_leaves_the_address_bar(page):
    page.renew()
    assert re.fullmatch(r"/open\?key=[0-9a-f]{64}", page.link)
    answer = page.ask("GET", page.link, {"Sec-Fetch-Site": "none", "Sec-Fetch-Dest": "document"})
    assert (answer.status, answer["location"]) == (303, ["/"])
    (cookie,) = answer["set-cookie"]
    name, *attributes = cookie.split("; ")
    assert re.fullmatch(rf"sottovoce-{page.port}=[0-9a-f]{{64}}", name)
    assert sorted(attributes) == ["HttpOnly", "Path=/", "SameSite=strict"]
    assert page.link.partition("=")[2] not in str(answer.headers)
    said_nothing(answer)


def test_the_page_has_its_token_its_language_and_its_headers(page):
    answer = page.ask("GET", "/", {"Accept-Language": "de, it;q=0.9, en;q=0.8"})
    assert b'<html lang="it">' in answer.body
    assert sottovoce.__version__.encode() in answer.body
    assert answer["content-type"] == ["text/html; charset=utf-8"]
    assert answer["cache-control"] == ["no-store"]
    protected(answer)
    assert b'<html lang="en">' in page.ask("GET", "/", {"Accept-Language": "de"}).body


def test_the_policy_allows_nothing_inline_and_nobody_else():
    policy = dict(part.split(" ", 1) for part in ALWAYS["content-security-policy"].split("; "))
    assert policy.pop("img-src") == "'self' data:"
    for name in ("script-src", "style-src", "connect-src"):
        assert policy.pop(name) == "'self'"
    assert policy == dict.fromkeys(
        ("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'"
    )


def test_the_link_works_once(page):
    link = page.link
    again = page.ask("GET", link, cookie="")
    refused(page, again, 403)
    assert catalogue("en")["trouble.link"] in again.body.decode()
    assert not again["set-cookie"]
    refused(page, page.ask("GET", link), 403)  # nor for her own browser, which stays in
    assert page.get("/api/state").status == 200


def test_a_wrong_key_opens_nothing_and_uses_nothing_up(page):
    page.renew()
    for wrong in ("/open", "/open?key=", "/open?key=" + "0" * 64, page.link + "0", "/open?k=1",
                  page.link[:-1], "/open?key=%C3%A9", page.link + "&key=1"):  # fmt: skip
        refused(page, page.ask("GET", wrong, cookie=""), 403)
    for method in ("POST", "HEAD", "PUT", "OPTIONS"):
        assert page.ask(method, page.link, cookie="").status == 401
    assert page.ask("GET", page.link, cookie="").status == 303


def test_who_looks_ahead_or_frames_it_does_not_use_the_link_up(page):
    page.renew()
    for header in ({"Sec-Purpose": "prefetch;prerender"}, {"Purpose": "prefetch"},
                   {"Sec-Fetch-Dest": "iframe"}, {"Sec-Fetch-Dest": "image"},
                   {"Origin": "http://evil.example"}):  # fmt: skip
        refused(page, page.ask("GET", page.link, header, cookie=""), 403)
    assert page.ask("GET", page.link, cookie="").status == 303


def test_who_comes_by_a_file_goes_on_by_a_page_of_ours(page):
    """A browser would keep a strict cookie from a redirection that another origin began."""
    page.renew()
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}
    answer = page.ask("GET", page.link, headers, cookie="")
    assert answer.status == 200
    assert b'<meta http-equiv="refresh" content="0;url=/">' in answer.body
    assert answer["set-cookie"]
    said_nothing(answer)


def test_an_old_link_opens_nothing(page):
    page.renew()
    page.clock.now += 301
    refused(page, page.ask("GET", page.link, cookie=""), 403)
    page.renew()
    page.clock.now += 299
    assert page.ask("GET", page.link, cookie="").status == 303


def test_a_session_ends_after_half_an_hour_of_silence(page):
    for _ in range(3):
        page.clock.now += 1799
        assert page.get("/api/state").status == 200
    page.provider.calls.clear()
    page.clock.now += 1801
    refused(page, page.get("/api/state"), 401, "trouble.session")
    page.clock.now -= 1801  # a clock that is set back brings nothing back
    refused(page, page.get("/api/state"), 401, "trouble.session")


def test_a_new_link_ends_the_session_and_the_former_link(page):
    former, cookie, token = page.link, page.cookie, page.token
    page.renew()
    waiting = page.link
    refused(page, page.get("/api/state"), 401, "trouble.session")
    page.renew()
    for old in (former, waiting):
        refused(page, page.ask("GET", old, cookie=""), 403)
    page.come_in()
    refused(page, page.get("/api/state", cookie=cookie), 401)
    refused(page, page.post("/api/start", {"store": "s0"}, {"X-Sottovoce-Token": token}), 403)


def test_a_second_browser_does_not_get_in(page):
    for cookie in ("", f"sottovoce-{page.port}=", f"sottovoce-{page.port}={'0' * 64}",
                   page.cookie[:-1], page.cookie.replace("=", "=0"), "sottovoce-1=" + "0" * 64,
                   f"sottovoce-{page.port + 1}={page.cookie.partition('=')[2]}",
                   f"xsottovoce-{page.port}={page.cookie.partition('=')[2]}"):  # fmt: skip
        refused(page, page.ask("GET", "/", cookie=cookie), 401)
        for path in ["/static/page.js", "/words/en.json", "/nowhere", "/static/nowhere", *READS]:
            refused(page, page.get(path, cookie=cookie), 401, "trouble.session")
        for path in CHANGES:
            answer = page.post(path, {"store": "s0"}, cookie=cookie)
            refused(page, answer, 401, "trouble.session")


def test_cookies_of_other_ports_and_tossed_ones_do_no_harm(page):
    crowd = f"sottovoce-1=x; sottovoce-{page.port}=tossed; {page.cookie}; sottovoce=\xff"
    assert page.get("/api/state", cookie=crowd).status == 200


# --- from where -----------------------------------------------------------------------------------

PORT = 40123
HOSTS = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([
        b"", b"127.0.0.1", b"localhost", b"evil.example:40123", b"127.0.0.1:40124",
        b"127.0.0.1:40123.evil.example", b"evil.example#127.0.0.1:40123", b"LOCALHOST:40123",
        b"localhost.:40123", b"127.0.0.1.:40123", b"0.0.0.0:40123", b"[::1]:40123", b"127.1:40123",
        b"2130706433:40123", b"user@127.0.0.1:40123", b"localtest.me:40123", b"127.0.0.1:040123",
        b" 127.0.0.1:40123", b"127.0.0.1:40123 ", b"127.0.0.2:40123", b"localhost:40123:40123",
    ]),
)  # fmt: skip
OURS = (b"127.0.0.1:40123", b"localhost:40123")


@given(st.lists(HOSTS, max_size=3))
def test_only_our_own_names_are_hosts(hosts):
    assert is_our_host({b"host": hosts}, PORT) == (len(hosts) == 1 and hosts[0] in OURS)
    assert not is_our_host({}, PORT)
    assert all(is_our_host({b"host": [ours]}, PORT) for ours in OURS)
    assert not is_our_host({b"host": [*OURS]}, PORT)


@given(
    st.sampled_from(OURS),
    st.one_of(HOSTS.map(b"http://".__add__), HOSTS.map(b"https://".__add__), st.just(b"null")),
    st.booleans(),
    st.booleans(),
)
def test_only_our_own_origin_is_ours(host, origin, document, opening):
    headers = {b"host": [host], b"origin": [origin]}
    ours = origin == b"http://" + host
    assert is_our_page(headers, document=document, opening=opening) == ours


@given(
    st.lists(st.sampled_from([b"same-origin", b"same-site", b"cross-site", b"none", b"x", b""])),
    st.sampled_from([b"document", b"iframe", b"empty", b"script"]),
    st.booleans(),
)
def test_only_our_own_page_asks_and_she_by_hand_for_documents(sites, dest, document):
    headers = {b"host": [OURS[0]], b"sec-fetch-site": sites, b"sec-fetch-dest": [dest]}
    by_hand = document and sites == [b"none"] and dest == b"document"
    expected = by_hand or set(sites) <= {b"same-origin"}
    assert is_our_page(headers, document=document, opening=False) == expected


def test_every_way_in_checks_the_host(page):
    for path in ["/", page.link, "/static/page.js", "/words/en.json", *READS]:
        refused(page, page.get(path, host=f"rebound.example:{page.port}"), 421)
    for path in CHANGES:
        refused(page, page.post(path, {"store": "s0"}, host="127.0.0.1"), 421)


def test_localhost_is_a_name_of_ours_but_another_origin(page):
    localhost = f"localhost:{page.port}"
    assert page.get("/api/state", host=localhost).status == 200
    page.provider.calls.clear()
    refused(page, page.get("/api/state", {"Origin": f"http://{localhost}"}), 403)
    refused(page, page.post("/api/start", {"store": "s0"}, host=localhost), 403)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Dest": "document"},
        {"Sec-Fetch-Site": ""},
        {"Upgrade": "websocket", "Connection": "Upgrade"},
    ],
    ids=str,
)
def test_requests_of_other_pages_are_refused_with_her_cookie_and_token(page, headers):
    for path in READS:
        refused(page, page.get(path, headers), 403, "trouble.origin")
    for path in CHANGES:
        refused(page, page.post(path, {"store": "s0"}, headers), 403, "trouble.origin")


def test_she_may_ask_for_the_page_by_hand_but_nobody_may_frame_it(page):
    by_hand = {"Sec-Fetch-Site": "none", "Sec-Fetch-Dest": "document"}
    assert page.ask("GET", "/", by_hand).status == 200
    for site, dest in (("cross-site", "document"), ("none", "iframe"), ("same-site", "document")):
        answer = page.ask("GET", "/", {"Sec-Fetch-Site": site, "Sec-Fetch-Dest": dest})
        refused(page, answer, 403)


# --- tokens, forms, methods -----------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "", "0" * 64, "\xe9", "{}x", "x{}", "{0}{0}"])
def test_without_the_token_nothing_changes(page, token):
    token = token and token.format(page.token)
    for path in CHANGES:
        answer = page.post(path, {"store": "s0"}, {"X-Sottovoce-Token": token})
        refused(page, answer, 403, "trouble.refused")


@pytest.mark.parametrize("kind", [*FORMS, "application/json; charset=utf-8", "text/json", None, ""])
def test_forms_change_nothing_also_with_the_token(page, kind):
    for path in CHANGES:
        answer = page.post(path, b'{"store": "s0"}', {"Content-Type": kind})
        refused(page, answer, 415, "trouble.refused")


def test_reading_and_changing_do_not_mix(page):
    for path in {*CHANGES} - {*READS}:
        refused(page, page.get(path + "?store=s0"), 405, "trouble.refused")
    for path in {*READS} - {*CHANGES}:
        refused(page, page.post(path, {"store": "s0"}), 405, "trouble.refused")
    for path in ("/", "/static/page.js", "/words/en.json"):
        refused(page, page.post(path, {}), 405, "trouble.refused")
    for method in ("OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "HEAD"):
        for path in ("/", "/api/state", "/api/choose", "/static/page.js"):
            answer = page.ask(method, path)
            assert answer.status == 405
            said_nothing(answer)
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    refused(page, page.ask("OPTIONS", "/api/choose", preflight), 403)


# --- the provider's calls -------------------------------------------------------------------------


def test_every_call_reaches_its_method_with_what_was_given(page):
    change = {"takes_part": True, "epsilon": 0.5, "never_send": ["Horror", "Alien (1979)", "è"]}
    for path, content in [
        ("weigh", {"store": "s0", "change": change}),
        ("choose", {"store": "s0", "change": change}),
        ("preview", {"store": "s0"}),
        ("send", {"store": "s0", "nonce": "ab"}),
        ("agree", {"store": "s0", "digest": "cd"}),
        ("stop", {"store": "s0", "everything": True}),
        ("stop", {"store": None, "everything": False}),
        ("stop", {}),
        ("start", {"store": "s0"}),
        ("remove", {"store": "s0", "items": ["a", "b"]}),
        ("erase", {"store": "s0", "what": "history"}),
        ("learn", {"store": "s0"}),
        ("recommend", {"store": "s0", "change": None}),
        ("recommend", {"store": "s0", "change": change}),
    ]:
        answer = page.post(f"/api/{path}", content)
        assert answer.status == 200, answer
        assert answer["content-type"] == ["application/json"]
        protected(answer)
    for path in ("state", "things?store=s0", "things?store=s0&query=caf%C3%A9+%26&offset=5&limit=7",
                 "ledger?store=s0&limit=10000", "ledger/row?store=s0&row=r-1",
                 "learn?store=s0"):  # fmt: skip
        answer = page.get(f"/api/{path}")
        assert answer.status == 200, answer
        protected(answer)
    assert page.provider.calls == [
        ("weigh", "s0", change),
        ("choose", "s0", change),
        ("preview", "s0"),
        ("send", "s0", "ab"),
        ("agree", "s0", "cd"),
        ("stop", "s0", True),
        ("stop", None, False),
        ("stop", None, False),
        ("start", "s0"),
        ("remove", "s0", ["a", "b"]),
        ("erase", "s0", "history"),
        ("learn", "s0"),
        ("recommend", "s0", None),
        ("recommend", "s0", change),
        ("state",),
        ("things", "s0", "", 0, 100),
        ("things", "s0", "café &", 5, 7),
        ("ledger", "s0", 0, 10000),
        ("row", "s0", "r-1"),
        ("learnt", "s0"),
    ]


def test_every_method_of_a_provider_has_its_address():
    from sottovoce.web.page import Provider

    methods = {name for name in vars(Provider) if not name.startswith("_")}
    assert methods == {one.name for one in CALLS}


def test_files_are_downloads_with_plain_names(page):
    body = page.get("/api/preview/body?store=s0&index=2")
    assert body.body == b"<script>\x00" + CANARY.encode()
    assert body["content-type"] == ["application/octet-stream"]
    assert body["content-disposition"] == ['attachment; filename="message.bin"']
    for form in ("csv", "ndjson"):
        file = page.get(f"/api/ledger/export?store=s0&format={form}")
        assert file.body == b"a,b\n" + CANARY.encode()
        assert file["content-disposition"] == [f'attachment; filename="led_ger__X__y.{form}"']
        assert file["content-type"] == ["text/plain; charset=utf-8"]
        protected(file)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("choose", {}),
        ("choose", {"store": "s0"}),
        ("choose", {"store": 1, "change": {}}),
        ("choose", {"store": None, "change": {}}),
        ("choose", {"store": "s" * 1001, "change": {}}),
        ("choose", {"store": "s0", "change": []}),
        ("choose", {"store": "s0", "change": {}, "more": 1}),
        ("choose", []),
        ("choose", b""),
        ("choose", b"{"),
        ("choose", b"\xff\xfe"),
        ("choose", b'{"store": "s0", "change": {"epsilon": NaN}}'),
        ("choose", b'{"store": "s0", "change": {"epsilon": Infinity}}'),
        ("choose", b'{"store": "s0", "change": {"a": "\\ud800"}}'),
        ("choose", b"[" * 100_000),
        ("choose", b'{"a":' * 100_000),
        ("choose", b'{"store": ' + b"9" * 10_000 + b"}"),
        ("stop", {"store": "s0", "everything": 1}),
        ("remove", {"store": "s0", "items": "abc"}),
        ("remove", {"store": "s0", "items": [1]}),
        ("erase", {"store": "s0", "what": "all"}),
        ("erase", {"store": "s0", "what": ["history"]}),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_no_page_of_ours_says_is_refused(page, path, content):
    refused(page, page.post(f"/api/{path}", content), 400, "trouble.refused")


@pytest.mark.parametrize(
    "path",
    [
        "state?x=1",
        "things",
        "things?store=s0&offset=-1",
        "things?store=s0&offset=1.5",
        "things?store=s0&offset=%D9%A3",
        "things?store=s0&limit=10001",
        "things?store=s0&limit=",
        "things?store=s0&store=s1",
        "things?store=%FF",
        "things?" + "&".join(f"a{i}=1" for i in range(20)),
        "preview/body?store=s0&index=99999999999999999999",
        "ledger/export?store=s0&format=exe",
        "ledger/export?store=s0",
    ],
    ids=lambda path: path[:40],
)
def test_strange_questions_are_refused(page, path):
    refused(page, page.get(f"/api/{path}"), 400, "trouble.refused")


@pytest.mark.parametrize(
    ("change", "status", "key", "values"),
    [
        ({"told": 1}, 409, "quiet.why", {"n": 3, "title": CANARY}),
        ({"wrong": 1}, 400, "trouble.other", {"why": "there is no s0"}),
        ({"gone": 1}, 502, "trouble.other", {"why": "nobody answers"}),
        ({"unforeseen": 1}, 500, "trouble.unforeseen", {}),
    ],
)
def test_trouble_becomes_a_sentence(page, change, status, key, values, capfd):
    answer = page.post("/api/choose", {"store": "s0", "change": change})
    assert (answer.status, answer.json) == (status, {"error": {"key": key, "values": values}})
    protected(answer)
    log = capfd.readouterr().err
    assert CANARY not in log
    assert ("ZeroDivisionError" in log and "page_world.py" in log) == (status == 500)
    assert page.get("/api/state").status == 200


def test_every_sentence_of_the_server_is_in_the_catalogue():
    source = Path(sottovoce.__file__).parent
    text = "".join((source / name).read_text() for name in ("web/page.py", "cli/console.py"))
    keys = set(re.findall(r'"((?:trouble|terminal)\.[a-z_]+)"', text))
    assert len(keys) > 10
    for language in LANGUAGES:
        assert keys <= set(catalogue(language))


def test_one_slow_answer_keeps_nobody_waiting_and_too_many_are_refused(own):
    own.come_in()
    own.provider.gate.clear()
    lines = [slow_line(own) for _ in range(3)]
    until(lambda: len([c for c in own.provider.calls if c[0] == "preview"]) == 3)
    assert own.get("/api/state").status == 200
    lines += [slow_line(own) for _ in range(33)]
    until(lambda: own.get("/").status == 200)
    until(lambda: any(select.select(lines, [], [], 0.1)[0]) or lines.append(slow_line(own)))
    (first,) = select.select(lines, [], [], 5)[0][:1]
    answer = first.recv(4096)
    assert b" 503 " in answer
    assert b"trouble.busy" in answer
    own.provider.gate.set()
    until(lambda: own.get("/api/state").status == 200)
    for line in lines:
        line.close()


def slow_line(page):
    body = b'{"store": "s0"}'
    line = socket.create_connection(("127.0.0.1", page.port))
    line.sendall(
        f"POST /api/preview HTTP/1.1\r\nHost: {page.host}\r\nCookie: {page.cookie}\r\n"
        f"X-Sottovoce-Token: {page.token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return line


# --- files ----------------------------------------------------------------------------------------


def test_public_files_have_their_type_and_are_asked_for_again(page):
    for path, kind in [
        ("/static/page.js", "text/javascript; charset=utf-8"),
        ("/static/style.css", "text/css; charset=utf-8"),
        ("/words/en.json", "application/json"),
        ("/words/it.json", "application/json"),
    ]:
        answer = page.get(path)
        assert (answer.status, answer["content-type"]) == (200, [kind])
        assert answer["cache-control"] == ["private, no-cache"]
        protected(answer)
        again = page.get(path, {"If-None-Match": answer["etag"][0]})
        assert (again.status, again.body) == (304, b"")
        protected(again)
        assert page.get(path, {"If-None-Match": '"other"'}).body == answer.body
    words = page.get("/words/it.json").json
    assert words.items() <= catalogue("it").items()
    kept = catalogue("it").keys() - words.keys()
    assert kept == {key for key in catalogue("it") if key.startswith((*ELSEWHERE, "shop."))}
    assert {key.partition(".")[0] for key in kept} - {key.partition(".")[0] for key in words} == {
        *("attack", "device", "terminal"),  # which no page says
        *("shop", "tab"),  # which other pages say
    }
    named = {
        key
        for path in PAGES.glob("*.js")
        for key in re.findall(r'"([a-z_]+(?:\.[\w-]+)+)"', path.read_text("utf-8"))
    }
    assert not {key for key in named if not key.startswith("shop.")} & {
        *kept,
        *(key.removesuffix(".other") for key in kept),
    }
    assert page.get("/words/it-shop.json").json.items() <= catalogue("it").items()


TRAVERSALS = [
    "/static/../consent.html",
    "/static/..%2fconsent.html",
    "/static/%2e%2e/%2e%2e/etc/passwd",
    "/static/....//etc/passwd",
    "/static//etc/passwd",
    "/static/..\\consent.html",
    "/static/%00",
    "/static/page.js%00.css",
    "/static/page.js%0A",
    "/static/page.js/",
    "/static/",
    "/static",
    "/static/consent.html",
    "/static/notes.txt",
    "/static/{path}",
    "/static/%FF%FE",
    "/words/../../errors.py",
    "/words/de.json",
    "//evil.example/",
    "/api/",
    "/api/state/",
    "/api/state%0A",
    "/API/state",
    "/favicon.ico",
    "/.git/config",
]


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_path_leads_out(page, path):
    refused(page, page.get(path), 404, "trouble.refused")
    refused(page, page.get(path, cookie=""), 401, "trouble.session")


# --- bodies, junk and patience --------------------------------------------------------------------


def test_bodies_have_a_limit(page):
    padded = b'{"store": "s0", "change": {"a": "%s"}}'
    fits = padded % (b"x" * (BODY_BYTES - len(padded) + 2))
    assert len(fits) == BODY_BYTES
    assert page.post("/api/weigh", fits).status == 200
    page.provider.calls.clear()
    answer = raw(page, head(page, "Content-Length: 1048577"))
    assert b" 413 " in answer
    assert b"trouble.too_much" in answer
    chunked = b"100001\r\n" + b" " * 0x100001 + b"\r\n0\r\n\r\n"
    answer = raw(page, head(page, "Transfer-Encoding: chunked") + chunked)
    assert b" 413 " in answer
    assert page.provider.calls == []


def head(page, *more, path="/api/weigh", method="POST"):
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {page.host}",
        f"Cookie: {page.cookie}",
        f"X-Sottovoce-Token: {page.token}",
        "Content-Type: application/json",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def raw(page, *parts, pause=0.0):
    """All that comes back until the line is closed."""
    answer = b""
    line = socket.create_connection(("127.0.0.1", page.port), timeout=60)
    with line, contextlib.suppress(ConnectionError):
        for part in parts:
            line.sendall(part)
            time.sleep(pause)
        while part := line.recv(65536):
            answer += part
    return answer


def test_slow_bodies_are_cut(own):
    own.come_in()
    own.provider.calls.clear()
    answer = raw(own, head(own, "Content-Length: 100"), b" ", b" ", pause=0.1)
    assert b" 408 " in answer
    assert b"trouble.slow" in answer
    assert b"frame-ancestors 'none'" in answer
    assert own.provider.calls == []


def test_slow_heads_are_cut_and_silence_is(own):
    for parts in ([], [b"GET / HT"], [b"GET / HTTP/1.1\r\n", *[b"X: y\r\n"] * 8]):
        assert raw(own, *parts, pause=0.1) == b""
    own.come_in()


def test_many_that_say_nothing_do_not_keep_her_out(pages):
    """Nor is there a limit of time that would let her in: it is that of the real page."""
    with serving(pages) as page:
        lines = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(100)]
        for line in lines[50:]:
            with contextlib.suppress(OSError):  # cut already, to make room
                line.sendall(b"GET / HTTP/1.1\r\n")
        page.come_in()
        for line in lines:
            line.close()


HUGE = b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n"


@pytest.mark.parametrize(
    "junk",
    [
        b"\x00" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /api/stop HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n{}\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        HUGE,
    ],
    ids=lambda junk: repr(junk[:30]),
)
def test_junk_gets_nothing_and_the_page_goes_on(page, junk):
    answer = raw(page, junk)
    assert answer == b"" or re.match(rb"HTTP/1\.1 4\d\d ", answer), answer
    assert CANARY.encode() not in answer
    if answer:
        for name, value in ALWAYS.items():
            assert f"\r\n{name}: {value}\r\n".encode() in answer
    assert page.provider.calls == []
    assert page.get("/api/state").status == 200


def test_what_is_piped_behind_a_refused_request_is_not_heard(page):
    stranger = b"POST /api/stop HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 2\r\n\r\n{}"
    behind = head(page, "Content-Length: 15", path="/api/start") + b'{"store": "s0"}'
    answer = raw(page, stranger + behind)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b" 421 " in answer
    assert page.provider.calls == []


def test_piped_requests_are_each_judged_by_themselves(page):
    good = head(page, path="/api/state", method="GET")
    other = good.replace(page.cookie.encode(), b"x=y")
    answer = raw(page, good + other + good)
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"401"]
    assert page.provider.calls == [("state",)]


# --- this machine's other users -------------------------------------------------------------------


def test_it_listens_on_loopback_alone(shared):
    wanted = f"{shared.port:04X}"
    rows = [line.split() for name in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]  # fmt: skip
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{wanted}")]
    assert listening == [f"0100007F:{wanted}"]


def test_the_other_end_of_a_connection_is_known(shared, monkeypatch):
    with socket.create_connection(("127.0.0.1", shared.port)) as line:
        peer, here = line.getsockname(), line.getpeername()
        assert not is_another_user(peer, here)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert is_another_user(peer, here)
        assert not is_another_user(("127.0.0.1", 1), here)  # nobody is there
    with socket.socket(socket.AF_INET6) as line:  # as some programs reach IPv4
        try:
            line.connect(("::ffff:127.0.0.1", shared.port))
        except OSError:
            return
        assert is_another_user(("127.0.0.1", line.getsockname()[1]), here)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_of_the_machine_is_turned_away_also_with_all_secrets(page):
    page.renew()
    program = textwrap.dedent(f"""
        import encodings.idna, http.client, os
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        for path, headers in [
            ({page.link!r}, {{}}),
            ("/", {{"Cookie": {page.cookie!r}}}),
            ("/api/state", {{"Cookie": {page.cookie!r}}}),
        ]:
            line = http.client.HTTPConnection("127.0.0.1", {page.port}, timeout=60)
            line.request("GET", path, headers=headers)
            answer = line.getresponse()
            print(answer.status, answer.getheader("x-frame-options"), answer.read())
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.count("403 DENY") == 3, done
    assert CANARY not in done.stdout
    assert page.provider.calls == []
    page.come_in()  # the link was not used up


def test_the_file_that_leads_to_the_link_is_private_and_goes_away():
    file = LinkFile()
    first = file.write("http://127.0.0.1:1/open?key=one")
    place = file.write("http://127.0.0.1:1/open?key=two")
    assert not first.parent.exists()
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert 'content="0;url=http://127.0.0.1:1/open?key=two"' in place.read_text()
    file.remove()
    file.remove()
    assert not place.parent.exists()


# --- the process ----------------------------------------------------------------------------------

PROGRAM = """
import fcntl, sys, termios, types
if sys.stdin.isatty():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from pathlib import Path
sys.path.insert(0, {worlds!r})
from page_world import Notes, make_pages
import sottovoce.web.process as process
class Centre(Notes):
    def __init__(self, stores, server, plaintext):
        super().__init__()
        if {held}: self.gate.clear()
    def __enter__(self): return self
    def __exit__(self, *exc): pass
sys.modules["sottovoce.web.centre"] = types.SimpleNamespace(Centre=Centre)
process.PageProcess.__init__.__kwdefaults__["pages"] = Path({pages!r})
from sottovoce.cli import main
main(["device", "page", "store", *sys.argv[1:]])
"""


def start(pages, *options, held=False, **more):
    worlds = str(Path(__file__).parents[1] / "worlds")
    program = PROGRAM.format(worlds=worlds, pages=str(pages), held=held)
    more = {"stdin": subprocess.DEVNULL, **more}
    return subprocess.Popen(
        [sys.executable, "-c", program, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def visitor(port):
    """Somebody who asks a process that was started."""
    from page_world import Page

    class Place:
        pass

    place = Place()
    place.port = port
    return Page(place, None, None, [])


def ends(process, signum=signal.SIGINT):
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_with_json_it_prints_one_object_and_serves(pages):
    with start(pages, "--json") as process:
        told = json.loads(process.stdout.readline())
        assert told.keys() == {"url", "pid"}
        assert told["pid"] == process.pid
        port = int(
            re.fullmatch(r"http://127\.0\.0\.1:(\d+)/open\?key=[0-9a-f]{64}", told["url"])[1]
        )
        page = visitor(port)
        page.links.append(told["url"])
        page.come_in()
        assert page.get("/api/state").status == 200
        proc = Path(f"/proc/{process.pid}")
        key = told["url"].partition("=")[2].encode()
        assert key not in (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
        ends(process)


def test_it_ends_also_while_it_answers(pages):
    with start(pages, "--json", held=True) as process:
        url = json.loads(process.stdout.readline())["url"]
        page = visitor(int(url.split(":")[2].split("/")[0]))
        page.links.append(url)
        page.come_in()
        with slow_line(page), socket.create_connection(("127.0.0.1", page.port)):
            time.sleep(0.2)
            ends(process, signal.SIGTERM)


def test_there_is_no_page_in_other_languages(capsys, monkeypatch):
    monkeypatch.setenv("SOTTOVOCE_LANGUAGE", "de")
    assert call(["device", "page", "store"]) == 2
    assert "SOTTOVOCE_LANGUAGE must be one of en, it" in capsys.readouterr().err


def test_a_taken_port_is_a_sentence(pages):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=f"port {port}: .* choose another with --port"):
            PageProcess(None, print, port=port, pages=pages)


def test_the_browser_is_led_to_the_link_by_a_file(pages, tmp_path):
    """Neither its command line nor its environment has the key."""
    script, seen = tmp_path / "browser", tmp_path / "seen"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {seen}.new; env >> {seen}.new\n'
                      f"mv {seen}.new {seen}\n")  # fmt: skip
    script.chmod(0o755)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "BROWSER": str(script), "DISPLAY": ":9", "TMPDIR": str(temporary)}
    environment["SOTTOVOCE_LANGUAGE"] = "it"
    with start(pages, env=environment) as process:
        words = process.stdout.readline()
        assert words.strip() == catalogue("it")["terminal.link"].split("\n")[0]
        url = process.stdout.readline().strip()
        until(seen.exists)
        text = seen.read_text()
        assert url.partition("=")[2] not in text
        place = Path(text.split("\n")[0].removeprefix("file://"))
        assert url in place.read_text()
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        page = visitor(int(url.split(":")[2].split("/")[0]))
        page.links.append(url)
        page.come_in()
        until(lambda: not place.exists())
        ends(process)
    assert list(temporary.iterdir()) == []


def test_enter_on_a_terminal_makes_a_new_link(pages):
    controller, terminal = os.openpty()
    with start(pages, "--no-open", stdin=terminal, start_new_session=True) as process:
        urls = []
        read_link(process, urls)
        page = visitor(int(urls[0].split(":")[2].split("/")[0]))
        page.links.extend(urls)
        page.come_in()
        os.write(controller, b"\n")
        read_link(process, urls)
        assert urls[0] != urls[1]
        assert page.get("/api/state").status == 401
        page.links.append(urls[1])
        page.come_in()
        ends(process)
    os.close(controller)
    os.close(terminal)


def read_link(process, urls):
    while not (line := process.stdout.readline()).startswith("http"):
        assert line
    urls.append(line.strip())
    assert "Enter" in process.stdout.readline()


def test_keys_are_not_in_what_is_shown_of_an_entrance():
    entrance = Entrance()
    key = entrance.fresh_key()
    session = entrance.open(key)
    for thing in (entrance, session):
        assert key not in repr(thing)
        assert session.token not in repr(thing)
        assert session.cookie not in repr(thing)


def test_modules_are_served_without_the_types_of_their_lines_and_with_their_numbers():
    for path in sorted(PAGES.glob("*.js")):
        content, served = path.read_bytes().splitlines(), as_served(path, PAGES).splitlines()
        assert len(served) == len(content)
        gone = [line.strip() for line, kept in zip(content, served, strict=True) if line != kept]
        assert all(line.startswith((b"/**", b"* ", b"*/")) or line == b"*" for line in gone)
        assert not any(b"* @param" in line for line in served)
    shop = PAGES / "shop.js"
    assert as_served(shop, shop.parent / "elsewhere") == shop.read_bytes()
