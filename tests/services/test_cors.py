"""Pages of other origins: named ones may be devices, everybody else's browser is told nothing, and
what is the operator's is nobody's."""

import pytest
from proxy_world import App as ProxyApp
from proxy_world import proxied
from server_world import Client, Fleet, ServerProcess, new_folder

from sottovoce.errors import UsageError
from sottovoce.services.kit.cors import Origins, merged
from sottovoce.services.server.application import PAGES

SHOP, OTHER = "https://shop.example", "https://evil.example"
READ = [
    *("/v1/round", "/v1/terms", "/v1/catalogue", "/v1/model/0", "/v1/rounds/0/0/selected"),
    "/v1/challenge",
]
POSTED = ["/v1/enrol", "/v1/checkin", "/v1/reports"]


def preflight(client, path, origin, method="POST", **more):
    asked = {"Origin": origin, "Access-Control-Request-Method": method, **more}
    return client.ask("OPTIONS", path, headers=asked)


def about_pages(answer):
    return {name for name in answer.headers if name.startswith("access-control-")}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = new_folder(tmp_path_factory.mktemp("cors"), rounds=1)
    options = {"origins": [SHOP, "https://two.example:8443"], "open_places": 0}
    with ServerProcess(folder.path, **options) as server, Client(folder, server.port) as client:
        Fleet().enrol(folder, client)
        client.wait(state="open")
        yield server, client


def test_every_address_of_a_device_is_open_to_named_pages_alone(served):
    _, client = served
    for path in READ:
        plain, mine = client.get(path), client.get(path, Origin=SHOP)
        other, nobody = client.get(path, Origin=OTHER), client.get(path, Origin="null")
        assert mine.headers["access-control-allow-origin"] == SHOP, path
        exposed = mine.headers["access-control-expose-headers"]
        assert {"etag", "retry-after"} <= set(exposed.split(", "))
        assert "access-control-allow-credentials" not in mine.headers
        for answer in (plain, other, nobody):
            assert not about_pages(answer), path
        for answer in (plain, mine, other, nobody):
            assert answer.status == plain.status
            assert answer.body == plain.body or path == "/v1/challenge"
            vary = [one.strip() for one in answer.headers["vary"].split(",")]
            assert "origin" in vary, path
            assert len(vary) == len(set(vary)), path


def test_a_page_hears_why_it_was_refused_and_that_nothing_has_changed(served):
    _, client = served
    tag = client.get("/v1/round", Origin=SHOP).headers["etag"]
    same = client.get("/v1/round", Origin=SHOP, If_None_Match=tag)
    assert (same.status, same.headers["access-control-allow-origin"]) == (304, SHOP)
    wrong = client.ask("POST", "/v1/enrol", body=b"{}", headers={"Origin": SHOP})
    assert (wrong.status, wrong.headers["access-control-allow-origin"]) == (426, SHOP)
    hidden = client.ask("POST", "/v1/enrol", body=b"{}", headers={"Origin": OTHER})
    assert hidden.status == 426
    assert not about_pages(hidden)


def test_preflights_are_exact_and_remembered(served):
    _, client = served
    for path in (*READ, *POSTED):
        method = "GET" if path in READ else "POST"
        answer = preflight(client, path, SHOP, method)
        assert (answer.status, answer.body) == (204, b""), path
        assert answer.headers["access-control-allow-origin"] == SHOP
        assert answer.headers["access-control-allow-methods"] == method
        assert int(answer.headers["access-control-max-age"]) >= 3600
        assert "access-control-allow-credentials" not in answer.headers
        assert answer.headers["vary"] == "origin"
        told = answer.headers["access-control-allow-headers"].split(", ")
        assert "authorization" not in told
        assert "*" not in told
        assert ("sottovoce-digest" in told) == (method == "POST")


def test_other_origins_are_refused_and_counted(served):
    _, client = served
    before = client.status()["refused"].get("other_origin", 0)
    wrong = (OTHER, "null", "https://shop.example.evil.example", "https://shop.example:444",
             "http://shop.example", "https://SHOP.example", "https://shop.example/", "*",
             f"{SHOP} {OTHER}", f"{SHOP}, {OTHER}", "https://shop.exampl")  # fmt: skip
    for origin in wrong:
        answer = preflight(client, "/v1/enrol", origin)
        assert (answer.status, answer.error) == (403, "other_origin"), origin
        assert not about_pages(answer)
        assert answer.headers["vary"] == "origin"
    assert client.status()["refused"]["other_origin"] == before + len(wrong)
    # An OPTIONS that is no preflight is what it always was.
    assert client.ask("OPTIONS", "/v1/enrol", headers={"Origin": SHOP}).status == 405


def test_what_is_the_operators_is_open_to_no_page(served):
    _, client = served
    for path in ("/v1/operator/status", "/v1/operator/target", "/metrics", "/health", "/nothing"):
        for method in ("GET", "POST"):
            answer = preflight(
                client, path, SHOP, method, **{"Access-Control-Request-Headers": "authorization"}
            )
            assert answer.status in (404, 405), path
            assert not about_pages(answer), path
        assert not about_pages(client.get(path, Origin=SHOP))
    mine = client.operator("GET", "/v1/operator/status")
    assert mine.status == 200
    assert not about_pages(mine)


def test_a_server_without_pages_answers_as_ever(tmp_path):
    folder = new_folder(tmp_path, rounds=1)
    with ServerProcess(folder.path) as server, Client(folder, server.port) as client:
        for path in READ[:3]:
            plain, asked = client.get(path), client.get(path, Origin=SHOP)
            assert plain.headers == asked.headers
            assert not about_pages(asked)
            assert "origin" not in asked.headers.get("vary", "")
        assert preflight(client, "/v1/enrol", SHOP).status == 405
        assert client.get("/v1/challenge").error == "no_place"


def test_the_shuffler_is_open_to_the_same_pages(tmp_path):
    with proxied(tmp_path) as (_, folder), ProxyApp(folder, origins=Origins.of([SHOP])) as app:
        for path, method in (
            ("/v1/terms", "GET"), ("/v1/challenge", "GET"), ("/v1/enrol", "POST"),
            ("/v1/submissions", "POST"),
        ):  # fmt: skip
            assert preflight(app, path, SHOP, method).status == 204
            assert preflight(app, path, OTHER, method).error == "other_origin"
            asked = app.ask(method, path, b"{}", {"Origin": SHOP})
            assert asked.headers["access-control-allow-origin"] == SHOP
        for path in ("/v1/agreed", "/metrics"):
            assert not about_pages(app.ask("GET", path, b"", {"Origin": SHOP}))
    with proxied(tmp_path / "second") as (_, folder), ProxyApp(folder) as app:
        assert preflight(app, "/v1/enrol", SHOP).status == 405


def test_origins_as_operators_name_them():
    some = Origins.of(
        ["https://Shop.example/", "https://shop.example:443", "http://localhost:5173"]
    )
    assert some.allowed == {b"https://shop.example", b"http://localhost:5173"}
    assert not Origins.of([])
    assert not Origins.of(None)
    every = Origins.of(["*"])
    assert every.named(b"https://any.example") == b"*"
    assert every.named(b"null") == every.named(b"") == b""
    assert Origins.of(["null"]).named(b"null") == b"null"
    for wrong in ("shop.example", "https://shop.example/path", "https://", "ftp://shop.example",
                  "https://a b", "https://user@shop.example", "https://shop.example?x",
                  "https://shop.example#x", "http://shop.example", "https://shop.example:x",
                  ""):  # fmt: skip
        with pytest.raises(UsageError):
            Origins.of([wrong])


def test_one_vary_says_all():
    vary = (b"vary", b"accept-encoding")
    assert merged([vary, (b"etag", b"1")], [(b"vary", b"origin")]) == [
        (b"etag", b"1"), (b"vary", b"accept-encoding, origin"),
    ]  # fmt: skip
    assert merged([(b"etag", b"1")], []) == [(b"etag", b"1")]


def test_pages_may_use_what_a_device_uses_and_nothing_else():
    """Every path that the device's agent names."""
    import re
    from pathlib import Path

    from sottovoce.services.agent import agent

    text = Path(agent.__file__).read_text()
    used = set(re.findall(r'"(/v1/[a-z]+)', text))
    assert used == {path.rstrip("/") for path in PAGES} - {"/v1/challenge"}
