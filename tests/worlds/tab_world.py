"""A browser tab in a federation of real processes: server, helper and agents, a page of the same
origin as what it asks, and a real Chromium whose profile lies in a folder."""

import contextlib
import fcntl
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from talk import until

from sottovoce.core.messages import ModelView
from sottovoce.experiment import Experiment
from sottovoce.runs.devices import federation_of, world_of
from sottovoce.services.trial import HttpsTrial
from sottovoce.stores.device import CohortStore
from sottovoce.stores.server_folder import open_folder
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.invitations import kept_invitation
from sottovoce.wire.versions import encode_model

CHROMIUM = Path("/usr/bin/chromium")
CLIENT = Path(__file__).parents[2] / "clients" / "browser"
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
TABLE = {
    "name": "tab",
    "seed": 5,
    "town": {"residents": 8, "venues": 40, "districts": 1},
    "data": {"source": "town"},
    "algorithm": {
        "name": "gram", "popularity_share": 0.3, "least_head": 10, "embedding_size": 8,
    },
    "release": {"epsilon": 64.0},
    "consent": {"epsilon": 64.0},
    "link": {"min_devices": 4},
    "service": {"poll_seconds": 0.2, "deadline_seconds": 250.0},
}  # fmt: skip
TAB = 3
"""The resident whose device is a tab."""
PAGE = b"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>a shop</title>
<link rel="icon" href="data:,"><script type="module" src="/page.js"></script></head>
<body><p>A shop</p></body></html>"""
SCRIPT = b"""import * as sottovoce from "/sottovoce.js";
window.sottovoce = sottovoce;
window.heard = [];
window.opened = async ({ odd, ...options }) => {
  const worker = odd && new Worker(`/odd-worker.js?${odd}`, { type: "module" });
  const device = window.device = await sottovoce.openDevice({ ...options, ...(odd && { worker }) });
  const events = ["trouble", "enrolled", "counted", "refused", "nothing sent", "shut out", "model"];
  for (const event of events) {
    device.addEventListener(event, ({ detail }) => window.heard.push([event, detail]));
  }
  return device.status();
};
window.said = async (work) => {
  try { return { found: await work() }; } catch (error) {
    return { kind: Object.entries(sottovoce).find(([, one]) => one === error.constructor)?.[0],
             sentence: error.message };
  }
};
document.body.dataset.ready = "yes";
"""
ODD = b"""// A worker in which a test has changed the browser: `shift` puts its clock on by so many
// seconds, `hurry` makes long waits so many times shorter, and `lacks` takes things away.
const given = new URLSearchParams(self.location.search);
let [shift, hurry] = ["shift", "hurry"].map((name) => Number(given.get(name) ?? 0));
const told = new BroadcastChannel("odd");
told.onmessage = ({ data }) => { ({ shift = shift, hurry = hurry } = data); };
const [now, wait, make] = [Date.now, self.setTimeout, SubtleCrypto.prototype.generateKey];
Date.now = () => now() + 1000 * shift;
self.setTimeout = (work, ms, ...more) =>
  wait(work, hurry && ms >= 10_000 ? ms / hurry : ms, ...more);
const lacks = (given.get("lacks") ?? "").split(",");
SubtleCrypto.prototype.generateKey = function (how, ...more) {
  if (!lacks.includes(how.name ?? how)) return make.call(this, how, ...more);
  return Promise.reject(new DOMException("no", "NotSupportedError"));
};
const taken = { subtle: Crypto.prototype, indexedDB: self, locks: WorkerNavigator.prototype };
for (const [name, owner] of Object.entries(taken)) {
  if (lacks.includes(name)) Object.defineProperty(owner, name, { value: undefined });
}
"""
POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self' https://127.0.0.1:*; "
    "img-src data:; worker-src 'self'"
)


def require(there, sentence):
    if there:
        return
    if os.environ.get("SOTTOVOCE_REQUIRE_SERVICES") == "1":
        pytest.fail(sentence)
    pytest.skip(sentence)


@cache
def installed():
    """The library's folder, with everything that it is built with: whichever test comes first
    installs it, and the others wait."""
    npm = shutil.which("npm")
    require(npm and shutil.which("node"), "Node is not installed: the browser's library needs it")
    done, wanted = CLIENT / "node_modules" / ".package-lock.json", CLIENT / "package-lock.json"
    with (CLIENT / ".installing").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.stat().st_mtime < wanted.stat().st_mtime:
            told = run([npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"])
            require(told.returncode == 0, f"npm ci did not work: {told.stdout}")
    return CLIENT


def run(command, timeout=600, **more):
    """A command in the library's folder, and what it said."""
    return subprocess.run(
        command, cwd=CLIENT, env={**os.environ, **more}, timeout=timeout, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@cache
def built():
    """The folder with the library as pages load it."""
    require(CHROMIUM.exists(), "Chromium is not installed here (Debian: apt install chromium)")
    installed()
    told = run(["node", "build.mjs"])
    require(told.returncode == 0, f"the browser's library was not built: {told.stdout}")
    return CLIENT / "dist"


@cache
def bundled(source):
    """A script of the library's tests as one text, for a page to evaluate."""
    installed()
    build = CLIENT / "node_modules" / ".bin" / "esbuild"
    told = subprocess.run(
        [build, source, "--bundle", "--format=iife", "--log-level=error"], cwd=CLIENT,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return told.stdout


class TabTrial(HttpsTrial):
    """A trial in which some residents have no agent: their devices are tabs."""

    options = ()
    """Of the server, besides its own."""
    tabs = (TAB,)
    """Whose devices are tabs."""

    def _start(self, name, *arguments):
        more = self.options if name == "server" else ()
        return super()._start(name, *arguments, *more)

    def _start_agents(self, url):
        others = [self.store(row) for row in range(len(self.world.cohort)) if row not in self.tabs]
        agent = self._start("agent-000", "serve", "device", *others, "--server", url)
        self.agents.append(agent)

    def invitation(self, row=TAB):
        with CohortStore.open(self.store(row), readonly=True) as store:
            return kept_invitation(store).to_table()

    def visits(self, row=TAB):
        """Her history, as a page tells it: id and time of each item."""
        history, catalogue = self.world.cohort.history, self.world.catalogue
        start, stop = history.indptr[row : row + 2].tolist()
        items = history.items[start:stop].tolist()
        times = [None] * len(items)
        if history.timestamps is not None:
            times = history.timestamps[start:stop].tolist()
        return [[catalogue[item][0], at] for item, at in zip(items, times, strict=True)]


def trial_of(folder, **changes):
    """The trial, and what the simulation makes of the same."""
    experiment = Experiment.from_table({**TABLE, **changes})
    prepared = experiment.prepared(experiment.dataset())
    simulated = federation_of(prepared)
    return simulated, TabTrial(world_of(experiment, prepared.dataset, simulated), folder, 1)


class Front:
    """One origin with the page, the library, and what it passes on to a federation's server.

    `change(path, status, body)` makes something else of an answer; `before(path)` is told of each
    request, which goes nowhere if it says so, and `after(path)` when the server has answered;
    `down` lets nobody through, and of answers at `drips` a byte comes now and then."""

    def __init__(self):
        built()
        self.upstream, self.down = None, False
        self.posted, self.asked = [], []
        self.change = self.before = self.after = self.drips = None
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                front.answer(self, b"")

            def do_POST(self):
                front.answer(self, self.rfile.read(int(self.headers["Content-Length"])))

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):  # a browser that was killed
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def answer(self, handler, body):
        path = handler.path.split("?")[0]
        if path.startswith("/v1/"):
            self.asked.append((handler.command, path, dict(handler.headers)))
            lost = self.before is not None and self.before(path)
            if lost or self.down or self.upstream is None:
                handler.close_connection = True
                return
            if handler.command == "POST":
                self.posted.append((path, body))
            status, headers, found = self._forward(handler, body)
            if self.after is not None:
                self.after(path)
            if self.change is not None:
                status, found = self.change(path, status, found)
        elif self.down:
            handler.close_connection = True
            return
        else:
            status, headers, found = self._own(path)
        if status == 302:
            headers = {**headers, "Location": "/elsewhere"}
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(found)))
        handler.end_headers()
        if path == self.drips:
            for byte in found:
                handler.wfile.write(bytes([byte]))
                time.sleep(0.02)
        else:
            handler.wfile.write(found)

    def _own(self, path):
        own = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}
        if path == "/":
            return 200, {**own, "Content-Type": "text/html"}, PAGE
        scripts = {"/page.js": SCRIPT, "/odd.js": ODD}
        scripts["/odd-worker.js"] = b'import "/odd.js"; import "/sottovoce.js";'
        if path in scripts:
            return 200, {**own, "Content-Type": "text/javascript"}, scripts[path]
        if path in ("/sottovoce.js", "/service-worker.js"):
            content = (built() / path[1:]).read_bytes()
            return 200, {**own, "Content-Type": "text/javascript"}, content
        return 404, own, b""

    def _forward(self, handler, body):
        place = urlsplit(self.upstream)
        line = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
        if place.scheme == "https":
            context = ssl._create_unverified_context()
            line = http.client.HTTPSConnection(
                place.hostname, place.port, timeout=60, context=context
            )
        try:
            kept = ("sottovoce-digest", "content-type")
            headers = {name: v for name, v in handler.headers.items() if name.lower() in kept}
            line.request(handler.command, handler.path, body or None, headers)
            got = line.getresponse()
            found = got.read()
            passed = ("cache-control", "content-type", "retry-after")
            return got.status, {n: v for n, v in got.getheaders() if n.lower() in passed}, found
        finally:
            line.close()


class Documents:
    """Of a front that has no server behind it: the documents that one of these terms would publish.
    It takes whatever is posted."""

    def publish(self, terms, catalogue, round=0, items=None):
        """Nothing at all, as a server of another kind, where there are no terms."""
        self.upstream, self.found = "", {}
        if terms is None:
            return
        now = {
            "protocol": PROTOCOL, "federation": terms.federation, "terms": terms.digest(),
            "round": round, "attempt": 0, "state": "open", "selection": "all", "model": round,
            "poll_seconds": 0.2,
        }  # fmt: skip
        documents = {"round": now, "terms": terms.to_table(), "catalogue": {"items": catalogue}}
        documents["enrol"] = {"number": 0}
        self.found = {f"/v1/{name}": json.dumps(told).encode() for name, told in documents.items()}
        self.found["/v1/reports"] = b""
        if terms.algorithm.name in ("fpl", "gram"):  # which a tab can read
            none = np.zeros((terms.n_items, terms.width), dtype=np.float32)
            view = ModelView(round, none if items is None else items)
            self.found[f"/v1/model/{round}"] = encode_model(view)

    def _forward(self, handler, body):
        found = self.found.get(handler.path.split("?")[0])
        return (404, {}, b"") if found is None else (200, {}, found)


class Chromium:
    """A browser with a profile of its own, which can be killed and started again."""

    def __init__(self, playwright, profile, front):
        self.playwright, self.profile, self.front = playwright, Path(profile), front
        self.context = None

    def start(self, *more):
        self.context = self.playwright.chromium.launch_persistent_context(
            str(self.profile), executable_path=str(CHROMIUM), args=[*ARGUMENTS, *more]
        )
        return self.tab()

    def tab(self, url=None):
        return tab_in(self.context, url or self.front.url)

    def stop(self):
        if self.context is not None:
            with contextlib.suppress(Exception):
                self.context.close()
            self.context = None

    def kill(self):
        """As a power cut ends it; from any thread."""
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def bury(self):
        """No process of it lives on, and another may have its profile."""
        self.kill()
        until(lambda: not self._pids())
        self.context = None  # to close it would take half a minute
        (self.profile / "SingletonLock").unlink(missing_ok=True)

    def _pids(self):
        mine = f"--user-data-dir={self.profile}".encode()
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mine in (place / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(place.name))
        return found


def tab_in(context, url):
    """A tab with the storage that this context has for the page's origin."""
    page = context.new_page()
    page.set_default_timeout(120_000)  # a busy machine is no reason to give up
    page.troubles = []
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.goto(url)
    page.wait_for_selector("[data-ready]")
    return page


def asked(page, call, *given):
    """What the page's device answers; raises an AssertionError with its sentence otherwise."""
    told = said(page, call, *given)
    assert "found" in told or "sentence" not in told, told
    return told.get("found")


def said(page, call, *given):
    """The same, or the kind of error and its sentence."""
    work = "([call, given]) => window.said(() => window.device[call](...given))"
    return page.evaluate(work, [call, list(given)])


def opened(page, front, invitation=None, **more):
    options = {"federation": front.url, **more}
    if invitation is not None:
        options["invitation"] = invitation
    told = page.evaluate("(options) => window.said(() => window.opened(options))", options)
    assert "found" in told, told
    return told["found"]


def take_part(page, visits, **choice):
    """A page in whose browser somebody has a history, agrees and takes part."""
    asked(page, "visited", visits)
    until(lambda: asked(page, "status")["pending"], why=lambda: asked(page, "status")["trouble"])
    asked(page, "agree", asked(page, "status")["pending"]["digest"])
    asked(page, "choose", {"takesPart": True, "epsilon": 64.0, **choice})


def upstream_of(trial):
    return (open_folder(trial.folder / "server").running() or {})["url"]
