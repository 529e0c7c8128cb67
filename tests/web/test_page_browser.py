"""The page in a real browser, and another page beside it that tries everything a page can."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from page_world import CANARY, make_pages, serving

from sottovoce.core.words import catalogue
from sottovoce.web.process import LinkFile

EVIL = """<!doctype html><meta charset="utf-8"><title>evil</title><body><script>
const target = "TARGET", found = [];
const late = () => new Promise((go) => setTimeout(go, 3000, "late"));
const soon = (promise) => Promise.race([promise, late()]);
const note = async (what, promise) => {
  try { found.push([what, String(await soon(promise))]); }
  catch (error) { found.push([what, "error " + error]); }
};
const ask = async (path, options) => {
  const answer = await fetch(target + path, { credentials: "include", ...options });
  return answer.type + " " + answer.status + " " + await answer.text();
};
const element = (name, fields) => new Promise((go) => {
  const made = Object.assign(document.createElement(name), fields);
  made.onload = () => { let inside = ""; try { inside = made.contentDocument.body.innerText; }
    catch (error) { inside = "closed"; } go("loaded " + inside); };
  made.onerror = () => go("failed");
  document.body.append(made);
});
const form = (kind, path) => new Promise((go) => {
  const frame = Object.assign(document.createElement("iframe"), { name: "f" + kind + path });
  document.body.append(frame);
  const made = Object.assign(document.createElement("form"),
    { method: "POST", enctype: kind, action: target + path, target: frame.name });
  made.append(Object.assign(document.createElement("input"),
    { name: '{"store": "s0", "x": "', value: '"}' }));
  document.body.append(made);
  frame.onload = () => go("answered");
  made.submit();
});
(async () => {
  for (const path of ["/", "/api/state", "/words/en.json", "/static/page.js"]) {
    for (const mode of ["cors", "no-cors"])
      await note(mode + path, ask(path, { mode }));
    await note("script " + path, element("script", { src: target + path }));
    await note("module " + path, element("script", { src: target + path, type: "module" }));
    await note("image " + path, element("img", { src: target + path }));
    await note("frame " + path, element("iframe", { src: target + path }));
  }
  const body = JSON.stringify({ store: "s0" });
  for (const path of ["/api/stop", "/api/start", "/api/preview", "/api/learn"]) {
    await note("json " + path, ask(path, { method: "POST", body,
      headers: { "Content-Type": "application/json", "X-Sottovoce-Token": "guess" } }));
    await note("text " + path, ask(path, { method: "POST", body, mode: "no-cors" }));
    navigator.sendBeacon(target + path, new Blob([body], { type: "text/plain" }));
    for (const kind of ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data"])
      await note("form " + kind + path, form(kind, path));
  }
  await note("socket", new Promise((go) => {
    const line = new WebSocket(target.replace("http", "ws") + "/api/state");
    line.onopen = () => go("open"); line.onerror = () => go("failed");
  }));
  const other = window.open(target + "/");
  await note("window", new Promise((go) => setTimeout(() => {
    let inside; try { inside = other.document.body.innerText; } catch (e) { inside = "closed"; }
    go(inside);
  }, 500)));
  window.found = found;
})();
</script>"""


@pytest.fixture
def served(tmp_path):
    with serving(make_pages(tmp_path / "pages")) as page:
        yield page


@pytest.fixture
def window(browser):
    """A browser of her own."""
    context = browser.new_context(locale="it-IT")
    yield context.new_page()
    context.close()


@pytest.fixture
def evil(served):
    """Another page on this machine, at another port."""

    class Handler(BaseHTTPRequestHandler):
        heard = []  # noqa: RUF012

        def do_GET(self):
            self.heard.append(self.headers.get("Cookie", ""))
            body = EVIL.replace("TARGET", f"http://{served.host}").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def come_in(window, served, address=None):
    window.goto(address or served.links[-1])
    window.wait_for_selector("body[data-module]")


def test_the_link_opens_a_page_that_works(window, served):
    asked, words = [], []
    window.on("request", lambda request: asked.append(request.url))
    window.on("console", lambda message: words.append(message.text))
    come_in(window, served)
    assert window.url == f"http://{served.host}/"
    assert window.get_attribute("html", "lang") == "it"
    assert window.get_attribute("body", "data-state") == CANARY
    assert window.evaluate("getComputedStyle(document.querySelector('p')).color") == "rgb(1, 2, 3)"
    started = window.evaluate("post('api/start', {store: 's0'}).then(answer => answer.json())")
    assert started["called"] == "start"
    assert all(url.startswith((f"http://{served.host}/", "data:")) for url in asked), asked
    # What stands inline did not run, and the browser says why.
    assert window.get_attribute("html", "data-inline") is None
    assert window.get_attribute("body", "data-handler") is None
    assert len([text for text in words if "Content Security Policy" in text]) >= 2
    assert window.evaluate("document.cookie") == ""
    window.reload()
    window.wait_for_selector("body[data-module]")


def test_a_file_leads_to_the_link(window, served):
    file = LinkFile()
    come_in(window, served, file.write(served.links[-1]).as_uri())
    file.remove()
    assert window.url == f"http://{served.host}/"


def test_a_second_browser_and_another_name_see_a_sentence(browser, window, served):
    come_in(window, served)
    served.provider.calls.clear()
    other = browser.new_context(locale="en-GB")
    stranger = other.new_page()
    for address, key in [
        (served.links[-1], "link"),
        (f"http://{served.host}/", "link"),
        (f"http://localhost:{served.port}/", "link"),
        (f"http://rebound.example:{served.port}/", "origin"),
    ]:
        stranger.goto(address)
        assert stranger.inner_text("body") == catalogue("en")[f"trouble.{key}"]
    other.close()
    assert served.provider.calls == []
    come_in(window, served, f"http://{served.host}/")


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_another_page_gets_nothing_and_changes_nothing(window, served, evil, name):
    """One of the same site, which browsers send the cookie for, and one of another."""
    come_in(window, served)
    served.provider.calls.clear()
    page = window.context.new_page()
    page.goto(f"http://{name}:{evil.server_address[1]}/")
    page.wait_for_function("window.found !== undefined", timeout=120_000)
    found = page.evaluate("window.found")
    assert len(found) == 4 * 6 + 4 * 5 + 2
    assert CANARY not in json.dumps(found)
    for what, outcome in found:
        kind = what.split("/")[0].split()[0]
        if kind in ("cors", "no-cors", "json", "text"):
            assert outcome.startswith(("error ", "opaque 0 ")), (what, outcome)
        elif kind in ("script", "module", "image", "socket"):
            assert outcome == "failed", (what, outcome)
        elif kind == "frame":
            assert outcome in ("loaded closed", "late"), (what, outcome)
    assert dict(found)["window"] in ("closed", "")
    for frame in page.frames[1:]:
        assert CANARY not in frame.content()
    assert served.provider.calls == []
    # Another port of the same name is shown the cookie; on Linux it is of no use to another user.
    heard = "".join(evil.RequestHandlerClass.heard)
    assert ("sottovoce-" in heard) == (name == "127.0.0.1")
    page.close()
    come_in(window, served, f"http://{served.host}/")
