"""A page on loopback with a provider that only takes notes, and ways to ask it for something."""

import asyncio
import contextlib
import http.client
import json
import re
import threading
from urllib.parse import urlsplit

from talk import until

from sottovoce.errors import Told, Unreachable, UsageError
from sottovoce.web.entrance import Entrance
from sottovoce.web.process import LIMITS, PageProcess

CANARY = "canary-of-her-history"
PAGE = """<!doctype html><html lang="{{ language }}"><head><meta charset="utf-8">
<meta name="sottovoce-token" content="{{ token }}"><title>{{ version }}</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="static/style.css">
<script type="module" src="static/page.js"></script>
<script>document.documentElement.dataset.inline = "ran"</script>
</head><body onload="document.body.dataset.handler = 'ran'"><p id="canary">CANARY</p></body></html>
""".replace("CANARY", CANARY)
SCRIPT = """import { name } from "./other.js";
const token = document.querySelector('meta[name="sottovoce-token"]').content;
window.post = (path, body) => fetch(path, { method: "POST", body: JSON.stringify(body),
  headers: { "Content-Type": "application/json", "X-Sottovoce-Token": token } });
const state = await (await fetch("api/state")).json();
document.body.dataset.state = state.stores[0].name;
document.body.dataset.module = name;
"""


class Notes:
    """A provider: every answer has the canary, and every call is noted."""

    def __init__(self):
        self.calls = []
        self.gate = threading.Event()
        self.gate.set()

    def _note(self, name, *given):
        self.calls.append((name, *given))
        return {"called": name, "canary": CANARY}

    def state(self):
        return {**self._note("state"), "stores": [{"id": "s0", "name": CANARY}]}

    def weigh(self, store, change):
        return self._note("weigh", store, change)

    def choose(self, store, change):
        if "told" in change:
            raise Told("quiet.why", n=3, title=CANARY)
        if "wrong" in change:
            raise UsageError(f"there is no {store}")
        if "gone" in change:
            raise Unreachable("nobody answers")
        if "unforeseen" in change:
            raise ZeroDivisionError(CANARY)
        return self._note("choose", store, change)

    def things(self, store, query, offset, limit):
        return self._note("things", store, query, offset, limit)

    def preview(self, store):
        self._note("preview", store)
        self.gate.wait(20)
        return {"half": "\ud800"}

    def body(self, store, index):
        self._note("body", store, index)
        return b"<script>\x00" + CANARY.encode()

    def send(self, store, nonce):
        return self._note("send", store, nonce)

    def ledger(self, store, offset, limit):
        return self._note("ledger", store, offset, limit)

    def row(self, store, row):
        return self._note("row", store, row)

    def export(self, store, format):
        self._note("export", store, format)
        return f'led"ger\r\nX: y.{format}', iter([b"a,b\n", CANARY.encode()])

    def agree(self, store, digest):
        return self._note("agree", store, digest)

    def stop(self, store, everything):
        return self._note("stop", store, everything)

    def start(self, store):
        return self._note("start", store)

    def remove(self, store, items):
        return self._note("remove", store, items)

    def erase(self, store, what):
        return self._note("erase", store, what)

    def learn(self, store):
        return self._note("learn", store)

    def learnt(self, store):
        return self._note("learnt", store)

    def recommend(self, store, change):
        return self._note("recommend", store, change)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Answer:
    """Of one request."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body[:300]!r}"

    def __getitem__(self, name):
        return [value for key, value in self.headers if key.lower() == name]

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]["key"]


class Page:
    """A page that is served, and a browser's part."""

    def __init__(self, process, provider, clock, links):
        self.process, self.provider, self.clock, self.links = process, provider, clock, links
        self.port = process.port
        self.host = f"127.0.0.1:{process.port}"
        self.cookie = self.token = ""

    @property
    def link(self):
        """Path and key of the latest link."""
        parts = urlsplit(self.links[-1])
        return f"{parts.path}?{parts.query}"

    def renew(self):
        """As Enter does, in the terminal."""
        before = len(self.links)
        self.loop.call_soon_threadsafe(self.process.new_link)
        until(lambda: len(self.links) > before)

    def come_in(self):
        opened = self.ask("GET", self.link, cookie="")
        assert opened.status == 303, opened
        self.cookie = opened["set-cookie"][0].partition(";")[0]
        page = self.ask("GET", "/")
        assert page.status == 200, page
        self.token = re.search(rb'name="sottovoce-token" content="([^"]+)"', page.body)[1].decode()
        return self

    def ask(self, method, path, headers=(), body=None, *, cookie=None, host=None):
        """Headers are pairs, and take the place of none."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(line):
            line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            line.putheader("Host", self.host if host is None else host)
            if held := self.cookie if cookie is None else cookie:
                line.putheader("Cookie", held)
            for name, value in dict(headers).items():
                line.putheader(name, value)
            if body is not None:
                line.putheader("Content-Length", str(len(body)))
            line.endheaders(body)
            answer = line.getresponse()
            return Answer(answer.status, answer.getheaders(), answer.read())

    def post(self, path, content, headers=(), **more):
        """As the page does it; `headers` change its own, and None leaves one out."""
        own = {
            "Content-Type": "application/json",
            "X-Sottovoce-Token": self.token,
            "Origin": f"http://{self.host}",
            "Sec-Fetch-Site": "same-origin",
            **dict(headers),
        }
        own = {name: value for name, value in own.items() if value is not None}
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.ask("POST", path, own, body, **more)

    def get(self, path, headers=(), **more):
        return self.ask("GET", path, {"Sec-Fetch-Site": "same-origin", **dict(headers)}, **more)


def make_pages(folder):
    """A page of few files."""
    folder.mkdir(exist_ok=True)
    (folder / "consent.html").write_text(PAGE)
    (folder / "style.css").write_text("p { color: rgb(1, 2, 3); }\n")
    (folder / "page.js").write_text(SCRIPT)
    (folder / "other.js").write_text('export const name = "loaded";\n')
    (folder / "notes.txt").write_text(CANARY)
    return folder


@contextlib.contextmanager
def serving(pages, limits=LIMITS, **options):
    """A page in a thread of its own."""
    provider, clock, links = Notes(), Clock(), []
    process = PageProcess(
        provider, links.append, pages=pages, entrance=Entrance(clock), limits=limits, **options
    )
    page = Page(process, provider, clock, links)

    async def serve():
        page.loop = asyncio.get_running_loop()
        await process.serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        until(lambda: links or not thread.is_alive())
        yield page
    finally:
        provider.gate.set()
        process.stop()
        thread.join(10)
        assert not thread.is_alive()
