"""The proxy under load: submissions of k = 100 sealed reports over TLS on loopback, its handover,
and its shuffle.

    sottovoce bench proxy [--quick] [--json]

Proxy and load generator are processes of their own and share this machine's processors, so that the
figures are what is left to the proxy beside the load. A submission is acknowledged when it is on
the disk. Latencies are those that the load generator sees, while it sends as fast as it is answered
on 64 connections.

The peer is a bare server in the same run, on the same event loop with the same TLS: it answers
every request with fixed bytes, looks at nothing and stores nothing. No server in Python can do with
less. The shuffle's peer is NumPy's permutation, which is not fit for protection.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import pickle
import secrets
import selectors
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.core.links import Proxied
from sottovoce.engines.processes import Child, sottovoce_command, wait_for
from sottovoce.errors import ServiceError
from sottovoce.experiment import load_benchmark
from sottovoce.parties import shuffler as shuffling
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.services.shuffler import Accounts
from sottovoce.stores.keys import authority_pem, device_context
from sottovoce.stores.server_folder import Introduction
from sottovoce.stores.shuffler_folder import ShufflerFolder, create_shuffler_folder
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.sealing import SEALED_BYTES, key_id
from sottovoce.wire.shuffled import encode_submission, terms_name
from sottovoce.wire.terms import Terms

Progress = Callable[[str], None]
REPORTS = 100
CONNECTIONS = 64
OVERLOAD = 3 * 256
"""Connections that all send at once, three times as many as may wait for the disk."""
_NEVER = 10**9

_https = load_benchmark("https")


def run(*, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Every figure, as {"bench", "machine", "results"}."""
    say = progress or (lambda message: None)
    count, turns = (4_000, 1) if quick else (20_000, 3)
    best: dict[bool, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        for turn in range(turns):
            for bare in (False, True):
                say(f"turn {turn + 1} of {turns}: {'the bare server' if bare else 'the proxy'}")
                found = submitting(Path(place) / f"{turn}-{bare}", count, CONNECTIONS, bare)
                best[bare] = max(best.get(bare, found), found, key=lambda f: float(f["rate"]))
        say("three times more than it takes on")
        crowd = submitting(Path(place) / "crowd", count, OVERLOAD, False)
        say("handover")
        speed = handing_over(Path(place) / "handover", count // 4)
    ours, bare_ = best[False], best[True]
    row = _https.row
    size = (10**6, 10**7) if quick else (10**6, 10**8)
    say("shuffle")
    small, large = (shuffling_nanoseconds(n) for n in size)
    results = [
        row(
            f"submissions acknowledged, {CONNECTIONS} connections, {int(ours['bytes'])} bytes each",
            ours["rate"], "submissions/s", bare=bare_["rate"], target=2000,
        ),
        row("99th percentile of the wait", ours["p99"], "ms", bare=bare_["p99"], target=150,
            at_most=True),
        row("proxy time per submission", ours["cpu"], "ms", bare=bare_["cpu"]),
        _alone("memory that they add", ours["memory"], "MB"),
        _alone("share told to come back, with three times more than it takes on",
               100 * crowd["busy"] / crowd["requests"], "%"),
        _alone("acknowledged meanwhile", crowd["rate"], "submissions/s"),
        _alone("99th percentile of the wait then", crowd["p99"], "ms"),
        _alone("memory that this adds", crowd["memory"], "MB"),
        _alone("handover, from the disk to the server, shuffled", speed, "reports/s"),
        _shuffle_row(size[0], *small),
        _shuffle_row(size[1], *large),
        _alone("shuffle, cost per record, largest over smallest", large[0] / small[0], "×"),
    ]  # fmt: skip
    return {"bench": "proxy", "machine": _https.machine(), "results": results}


def _alone(name: str, value: float, unit: str) -> dict[str, Any]:
    """A figure without peer."""
    return {
        "name": name, "value": float(f"{value:.4g}"), "unit": unit, "peer": "", "ratio": None,
        "target": None, "met": None,
    }  # fmt: skip


def _shuffle_row(n: int, ours: float, theirs: float) -> dict[str, Any]:
    return {
        **_alone(f"shuffle of {n:.0e} records, one thread", ours, "ns/record"),
        "peer": f"NumPy: {theirs:.4g}", "ratio": ours / theirs,
    }  # fmt: skip


# --- submissions ----------------------------------------------------------------------------------


def submitting(path: Path, count: int, connections: int, bare: bool) -> dict[str, float]:
    with Round(path, minimum=_NEVER) as here:
        requests = here.requests(count)
        (path / "requests").write_bytes(pickle.dumps(requests))
        with serving(here.folder, bare) as (port, pid):
            before, memory = _https._processor_seconds(pid), _memory(pid)
            done = _load(path, port, connections)
            spent = _https._processor_seconds(pid) - before
            memory = _memory(pid) - memory
    if done["accepted"] != count:
        raise ServiceError(f"{done['accepted']} of {count} were accepted: {done['other']}")
    return {
        "rate": count / done["seconds"],
        "p99": 1e3 * done["p99"],
        "cpu": 1e3 * spent / done["requests"],
        "bytes": len(requests[0].partition(b"\r\n\r\n")[2]),
        "memory": memory / 1e6,
        "busy": done["busy"],
        "requests": done["requests"],
    }


class Round:
    """An open round, as a server would publish it, and the folder of its proxy. Whatever else is
    sent to the server is taken."""

    def __init__(self, path: Path, *, minimum: int) -> None:
        path.mkdir(parents=True)
        release = KReports(REPORTS, (Tier(2.5, minimum),))
        self.terms = Terms("bench", 10_000, FMFConfig(), release, Proxied())
        self.public = X25519PrivateKey.generate().public_key().public_bytes_raw()
        self.received = 0
        """Bytes of batches."""
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        verifying = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
        url = f"http://127.0.0.1:{self._server.server_port}"
        introduction = Introduction(url, "", "bench", verifying, secrets.token_hex(32))
        self.folder = create_shuffler_folder(path, introduction)

    def __enter__(self) -> Round:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def requests(self, count: int) -> list[bytes]:
        """Submissions of so many accounts, each with its request. The proxy cannot tell random
        bytes from sealed reports, which would take minutes to make."""
        accounts = [secrets.token_bytes(16) for _ in range(count)]
        with contextlib.closing(sqlite3.connect(self.folder.path / "proxy.db")) as link, link:
            link.executemany("INSERT INTO accounts VALUES (?, 0)", [(a,) for a in accounts])
        found, name, terms = [], key_id(self.public), terms_name(self.terms)
        with contextlib.closing(self.folder.store()) as store:
            known = Accounts(store, self.folder.account_secret())
            for account in accounts:
                key = known.key(account) or b""
                sealed = secrets.token_bytes(REPORTS * SEALED_BYTES)
                body = encode_submission(account, key, 0, 0, name, sealed, terms=terms)
                head = (
                    f"POST /v1/submissions HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}"
                )
                found.append(head.encode() + b"\r\n\r\n" + body)
        return found

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        told = {
            "protocol": PROTOCOL, "federation": "bench", "terms": self.terms.digest(), "round": 0,
            "attempt": 0, "state": "open", "selection": "all", "model": 0, "poll_seconds": 60.0,
            "report_key": {"id": key_id(self.public).hex(), "public": self.public.hex()},
        }  # fmt: skip
        fixed = {"/v1/round": told, "/v1/terms": self.terms.to_table()}
        here = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = json.dumps(fixed[self.path]).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                here.received += len(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def _send(path: Path, port: int, connections: int) -> dict[str, Any]:
    """Every request until it is accepted, on so many connections, each the next when it has its
    answer; those told to come back wait for their turn again."""
    waiting = pickle.loads((path / "requests").read_bytes())[::-1]
    context = device_context(authority_pem(path / "keys"))
    ready = selectors.DefaultSelector()
    links = {}
    for _ in range(min(connections, len(waiting))):
        link = _https._connect(context, port)
        links[link.fileno()] = link
        ready.register(link.fileno(), selectors.EVENT_READ)
    accepted, busy, other = 0, 0, b""
    sent: dict[int, tuple[float, bytes]] = {}
    waits: list[float] = []

    def give(file: int) -> None:
        if waiting:
            request = waiting.pop()
            sent[file] = time.perf_counter(), request
            links[file].sendall(request)

    started = time.perf_counter()
    for file in links:
        give(file)
    while sent:
        for key, _ in ready.select():
            file = key.fd
            answer = _answer(links[file])
            begun, request = sent.pop(file)
            if answer.startswith(b"HTTP/1.1 204"):
                accepted += 1
                waits.append(time.perf_counter() - begun)
            elif answer.startswith(b"HTTP/1.1 503"):
                busy += 1
                waiting.insert(0, request)
            else:
                other = answer
            give(file)
    seconds = time.perf_counter() - started
    return {
        "accepted": accepted, "busy": busy, "requests": accepted + busy, "seconds": seconds,
        "p99": float(np.quantile(waits, 0.99)) if waits else 0.0,
        "other": other.decode(errors="replace"),
    }  # fmt: skip


def _answer(link: ssl.SSLSocket) -> bytes:
    """The whole of it."""
    answer = link.recv(4096)
    head, end, body = answer.partition(b"\r\n\r\n")
    size = head.lower().partition(b"content-length: ")[2].split(b"\r")[0]
    left = int(size or 0) - len(body) if end else 0
    while left > 0:
        more = link.recv(left)
        answer, left = answer + more, left - len(more) if more else 0
    return answer


# --- handover and shuffle -------------------------------------------------------------------------


def handing_over(path: Path, count: int) -> float:
    """Reports per second from the disk to the server, of a batch that its goal has set free."""
    with Round(path, minimum=count) as here:
        (path / "requests").write_bytes(pickle.dumps(here.requests(count)))
        with serving(here.folder, False) as (port, _):
            if _load(path, port, CONNECTIONS)["accepted"] != count:
                raise ServiceError("not all submissions were accepted")
            started = time.perf_counter()
            while here.received < count * REPORTS * SEALED_BYTES:
                if time.perf_counter() - started > 120:
                    raise ServiceError("the batch was not handed over")
                time.sleep(0.005)
            return count * REPORTS / (time.perf_counter() - started)


def shuffling_nanoseconds(n: int) -> tuple[float, float]:
    """Per record, ours and NumPy's."""
    values = np.arange(n, dtype=np.uint32)
    shuffling.shuffled(values[: 1 << 19], shuffling.new_seed())  # compiled
    started = time.perf_counter()
    shuffling.shuffled(values, shuffling.new_seed())
    ours = time.perf_counter() - started
    rng = np.random.Generator(np.random.PCG64(1))
    started = time.perf_counter()
    rng.permutation(values)
    theirs = time.perf_counter() - started
    return 1e9 * ours / n, 1e9 * theirs / n


# --- processes ------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(folder: ShufflerFolder, bare: bool) -> Iterator[tuple[int, int]]:
    """A process that listens: its port and its number."""
    command = sottovoce_command("serve", "proxy", folder.path, "--port=0", "--hold-seconds=0")
    ready = folder.ready_file
    if bare:
        ready = folder.path / "server.json"
        command = [sys.executable, str(_https.__file__), "bare", str(folder.path), "0", "0"]
    with Child("the proxy", command, log=folder.path / "proxy.log") as child:
        wait_for(child, ready.exists)
        time.sleep(0.5)  # the round is known
        found = json.loads(ready.read_text())
        yield found["port"], found["pid"]


def _load(path: Path, port: int, connections: int) -> dict[str, Any]:
    """What another process measured."""
    command = [sys.executable, __file__, "send", str(path), str(port), str(connections)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ServiceError(f"the load generator failed: {done.stderr.strip()[-500:]}")
    return dict(json.loads(done.stdout))


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        print(json.dumps(_send(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
    else:
        shown = run(quick="--quick" in sys.argv, progress=lambda text: print(text, file=sys.stderr))
        print(json.dumps(shown, indent=1, ensure_ascii=False))
