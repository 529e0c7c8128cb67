"""A page in a real browser comes to a server of another origin: one that is named gets a place and
checks what it reads; for any other the browser keeps every answer to itself."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from chromium import browser  # noqa: F401
from server_world import ServerProcess, new_folder

from sottovoce.parties.places import PlaceRules
from sottovoce.stores import operating
from sottovoce.stores.places import set_place_rules
from sottovoce.wire.invitations import Invitation

pytestmark = pytest.mark.smoke

VISIT = """async (server) => {
  const two = (byte) => byte.toString(16).padStart(2, "0");
  const hex = (bytes) => Array.from(new Uint8Array(bytes), two).join("");
  const unhex = (text) => Uint8Array.from(text.match(/../g), (each) => parseInt(each, 16));
  const joined = async (...parts) => new Uint8Array(await new Blob(parts).arrayBuffer());
  const sha256 = (bytes) => crypto.subtle.digest("SHA-256", bytes);
  const found = {};
  const round = await fetch(server + "/v1/round");
  found.etag = round.headers.get("etag");
  found.same = (await fetch(server + "/v1/round",
    { headers: { "If-None-Match": found.etag }, cache: "no-store" })).status;
  const catalogue = await (await fetch(server + "/v1/catalogue")).arrayBuffer();
  found.genuine = hex(await sha256(catalogue)) === (await round.json()).catalogue;
  const told = await (await fetch(server + "/v1/challenge")).json();
  const pair = await crypto.subtle.generateKey("Ed25519", true, ["sign", "verify"]);
  const key = new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
  const name = new TextEncoder().encode(told.federation), size = new Uint8Array(4);
  new DataView(size.buffer).setUint32(0, name.length, true);
  const bound = await joined(size, name, await sha256(unhex(told.challenge)), key);
  const work = new Uint8Array(8);
  for (let n = 0; ; n++) {
    new DataView(work.buffer).setUint32(0, n, true);
    const hash = new DataView(await sha256(await joined("sottovoce work\\0", bound, work)));
    if (hash.getUint32(0) >>> (32 - told.bits) === 0) break;
  }
  const signature = await crypto.subtle.sign("Ed25519", pair.privateKey,
    await joined("sottovoce place\\0", bound));
  const post = (body) => fetch(server + "/v1/enrol", { method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" }, credentials: "omit" });
  const body = { protocol: told.protocol, challenge: told.challenge, work: hex(work),
    public_key: hex(key), signature: hex(signature) };
  found.number = (await (await post(body)).json()).number;
  found.refused = (await (await post({ ...body, signature: "00".repeat(64) })).json()).error;
  return found;
}"""
PEEK = """async (server) => {
  const found = [];
  for (const [path, options] of [
    ["/v1/round", {}], ["/v1/challenge", {}], ["/v1/terms", {}],
    ["/v1/enrol", { method: "POST", body: "{}", headers: { "Content-Type": "application/json" } }],
    ["/v1/enrol", { method: "POST", body: "{}" }],
    ["/v1/operator/status", { headers: { Authorization: "Bearer x" } }], ["/metrics", {}],
    ["/v1/round", { credentials: "include" }],
  ]) {
    try { found.push((await fetch(server + path, options)).status); }
    catch (error) { found.push("hidden"); }
  }
  return found;
}"""
LINK = """() => {
  const text = location.hash.slice(4).replaceAll("-", "+").replaceAll("_", "/");
  history.replaceState(null, "", location.pathname);
  return { told: JSON.parse(atob(text)), left: location.href };
}"""


@pytest.fixture(scope="module")
def window(browser):  # noqa: F811
    return browser.new_page()


@pytest.fixture(scope="module")
def shop():
    """A page on this machine: as localhost it is named, as 127.0.0.1 it is another origin."""

    class Handler(BaseHTTPRequestHandler):
        asked = []  # noqa: RUF012

        def do_GET(self):
            self.asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_tab_of_a_named_page_gets_a_place_and_others_read_nothing(window, shop, tmp_path):
    folder, port = new_folder(tmp_path, rounds=1), shop.server_port
    with contextlib.closing(folder.database()) as store, store.writing() as link:
        set_place_rules(link, PlaceRules(places=9, bits=4))
    options = {"origins": [f"http://localhost:{port}"], "plaintext": True}
    with ServerProcess(tmp_path, **options) as server:
        window.goto(f"http://localhost:{port}/")
        found = window.evaluate(VISIT, server.url)
        assert found.pop("etag")
        assert found == {"same": 304, "genuine": True, "number": 0, "refused": "bad_signature"}
        peeked = window.evaluate(PEEK, server.url)
        assert peeked == [200, 200, 200, 426, 426, "hidden", "hidden", "hidden"]
        window.goto(f"http://127.0.0.1:{port}/")
        assert window.evaluate(PEEK, server.url) == ["hidden"] * 8
        assert server.stop() == 0
    with contextlib.closing(folder.database()) as store, store.reading() as link:
        rows = operating.list_devices(link, 0, 9)["rows"]
    assert [(row["number"], row["came"]) for row in rows] == [(0, "open place")]


def test_no_server_hears_of_an_invitation_in_a_link(window, shop):
    page = f"http://localhost:{shop.server_port}/welcome"
    invitation = Invitation("https://api.shop.example", "PEM\n", "ab" * 32, 7, "town")
    shop.RequestHandlerClass.asked.clear()
    window.goto(invitation.link(page))
    found = window.evaluate(LINK)
    assert found == {"told": invitation.to_table(), "left": page}
    assert set(shop.RequestHandlerClass.asked) <= {"/welcome", "/favicon.ico"}
