"""The proxy under load: submissions of k = 100 sealed reports over TLS on loopback, its handover,
and its shuffle; then chains of one, two and three shufflers: bytes and seconds at each.

    sottovoce bench proxy [--quick] [--json]

Proxy and load generator are processes of their own and share this machine's processors, so that the
figures are what is left to the proxy beside the load. A submission is acknowledged when it is on
the disk. Latencies are those that the load generator sees, while it sends as fast as it is answered
on 64 connections.

The peer is a bare server in the same run, on the same event loop with the same TLS: it answers
every request with fixed bytes, looks at nothing and stores nothing. No server in Python can do with
less. The shuffle's peer is NumPy's permutation, which is not fit for protection. A chain's is one
shuffler in the same run.
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
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.core.links import Proxied
from sottovoce.engines.processes import Child, free_port, sottovoce_command, wait_for
from sottovoce.errors import ServiceError
from sottovoce.experiment import load_benchmark
from sottovoce.parties import shuffler as shuffling
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.services.shuffler import Accounts
from sottovoce.stores.keys import authority_pem, device_context
from sottovoce.stores.server_folder import Introduction
from sottovoce.stores.shuffler_folder import (
    ShufflerFolder,
    create_shuffler_folder,
    init_shuffler,
)
from sottovoce.wire.frames import PROTOCOL
from sottovoce.wire.sealing import SEALED_BYTES, key_id
from sottovoce.wire.shuffled import encode_submission, record_bytes, seal_for, terms_name
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
    say("chains")
    results += chains(60 if quick else 1000)
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

    def __init__(self, path: Path, *, minimum: int, link: Proxied | None = None) -> None:
        path.mkdir(parents=True, exist_ok=True)
        release = KReports(REPORTS, (Tier(2.5, minimum),))
        self.terms = Terms("bench", 10_000, FMFConfig(), release, link or Proxied())
        self.public = X25519PrivateKey.generate().public_key().public_bytes_raw()
        self.received = 0
        """Bytes of batches."""
        self.received_at = 0.0
        """When the last of them came."""
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        verifying = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
        url = f"http://127.0.0.1:{self._server.server_port}"
        self.introduction = Introduction(url, "", "bench", verifying, secrets.token_hex(32))
        self.folder = create_shuffler_folder(path, self.introduction)

    def __enter__(self) -> Round:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def requests(self, count: int, seal: Callable[[], bytes] | None = None) -> list[bytes]:
        """Submissions of so many accounts, each with its request. The proxy cannot tell random
        bytes from sealed reports, which would take minutes to make; shufflers behind it can."""
        size = record_bytes(self.terms.link.mixing or Proxied(), 0)
        accounts = [secrets.token_bytes(16) for _ in range(count)]
        with contextlib.closing(sqlite3.connect(self.folder.path / "proxy.db")) as link, link:
            link.executemany("INSERT INTO accounts VALUES (?, 0)", [(a,) for a in accounts])
        found, name, terms = [], key_id(self.public), terms_name(self.terms)
        with contextlib.closing(self.folder.store()) as store:
            known = Accounts(store, self.folder.account_secret())
            for account in accounts:
                key = known.key(account) or b""
                sealed = seal() if seal else secrets.token_bytes(REPORTS * size)
                body = encode_submission(account, key, 0, 0, name, sealed, terms=terms, size=size)
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
                here.received_at = time.time()
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
        "ended": time.time(),
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
            done = _load(path, port, CONNECTIONS)
            if done["accepted"] != count:
                raise ServiceError("not all submissions were accepted")
            end = time.time() + 120
            while here.received < count * REPORTS * SEALED_BYTES:
                if time.time() > end:
                    raise ServiceError("the batch was not handed over")
                time.sleep(0.005)
            return float(count * REPORTS / (here.received_at - done["ended"]))


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


# --- chains ---------------------------------------------------------------------------------------


def chains(devices: int) -> list[dict[str, Any]]:
    """Rows for one, two and three shufflers, of so many devices' reports."""
    rows: list[dict[str, Any]] = []
    first: dict[str, float] = {}
    for shufflers in (1, 2, 3):
        with tempfile.TemporaryDirectory() as place:
            found = passing(Path(place), shufflers, devices)
        first = first or found
        for name, value in found.items():
            unit = name.rpartition(", ")[2]
            shown = _alone(f"chain of {shufflers}: {name.rpartition(', ')[0]}", value, unit)
            if unit == "bytes":
                shown["value"] = value
            if shufflers > 1 and name in first and first[name]:
                shown |= {"peer": f"one shuffler: {first[name]:.4g}", "ratio": value / first[name]}
            rows.append(shown)
    return rows


def passing(path: Path, shufflers: int, devices: int) -> dict[str, float]:
    """A round's reports from the devices to the server: what a device does, and what passes each
    shuffler in how many seconds; by name and unit."""
    ports = [free_port() for _ in range(shufflers)]
    urls = [f"https://127.0.0.1:{port}" for port in ports]
    places = [path / f"shuffler-{hop + 1}" for hop in range(shufflers)]
    chain = tuple(init_shuffler(places[hop], urls[hop]) for hop in range(1, shufflers))
    link = Proxied(urls[0], "", chain)
    with Round(places[0], minimum=devices, link=link) as here, contextlib.ExitStack() as stack:
        tokens = [secrets.token_hex(32) for _ in range(shufflers)]
        for hop, place in enumerate(places):
            told = replace(here.introduction, hop=hop, token=tokens[hop])
            told = replace(told, accepts=tokens[hop - 1] if hop else "")
            (place / "introduction.json").unlink(missing_ok=True)
            folder = create_shuffler_folder(place, told)
            stack.enter_context(serving(folder, False, port=ports[hop]))
        reports, sealing = np.arange(REPORTS, dtype=np.uint32), []

        def seal() -> bytes:
            begun = time.perf_counter()
            sealed = seal_for(reports, here.public, here.terms, round=0, tier=0)
            sealing.append(time.perf_counter() - begun)
            return sealed

        requests = here.requests(devices, seal)
        (places[0] / "requests").write_bytes(pickle.dumps(requests))
        done = _load(places[0], ports[0], CONNECTIONS)
        if done["accepted"] != devices:
            raise ServiceError("not all submissions were accepted")
        last, end = done["ended"], time.time() + 600
        while here.received < devices * REPORTS * SEALED_BYTES:
            if time.time() > end:
                raise ServiceError("the batch was not handed over")
            time.sleep(0.005)
        time.sleep(0.3)
        gone = [_event(place / "proxy.log", "batch handed over") for place in places]
    found = {
        "sealing 100 reports on a device, ms": 1e3 * float(np.median(sealing)),
        "a device's message, bytes": float(len(requests[0].partition(b"\r\n\r\n")[2])),
        f"from the last submission to the server, {devices * REPORTS} reports, s": gone[-1] - last,
    }
    for hop in range(shufflers):
        before = gone[hop - 1] if hop else last
        found[f"of this at shuffler {hop + 1}, s"] = max(0.0, gone[hop] - before)
        found[f"a report behind shuffler {hop + 1}, bytes"] = float(record_bytes(link, hop))
    return found


def _event(log: Path, event: str) -> float:
    """When a process said so."""
    for line in log.read_text().splitlines():
        said = json.loads(line) if line.startswith("{") else {}
        if said.get("event") == event:
            return datetime.fromisoformat(said["timestamp"]).timestamp()
    raise ServiceError(f"{log} does not say {event!r}")


# --- processes ------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(folder: ShufflerFolder, bare: bool, port: int = 0) -> Iterator[tuple[int, int]]:
    """A process that listens: its port and its number."""
    options = (f"--port={port}", "--hold-seconds=0")
    command = sottovoce_command("serve", "shuffler", folder.path, *options)
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
