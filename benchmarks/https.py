"""The server under load: reports, polls and downloads over TLS on loopback.

    sottovoce bench https [--quick] [--json]

Server and load generator are processes of their own and share this machine's processors, so that
the figures are what is left to the server beside the load. Reports are acknowledged when they are
on the disk. Sizes are FPL's: 60 rows of 11 numbers a report, a model of 50 MB.

The peer of each figure is a bare server in the same run, on the same event loop with the same TLS:
it answers every request with fixed bytes, looks at nothing and stores nothing. No server in Python
can do with less.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import secrets
import selectors
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.engines.processes import Child, sottovoce_command, wait_for
from sottovoce.errors import ServiceError
from sottovoce.parties.device import Devices
from sottovoce.parties.rounds import RoundRules
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.runs.folder import environment
from sottovoce.stores.database import devices
from sottovoce.stores.keys import authority_pem, device_context, server_context
from sottovoce.stores.server_folder import ServerFolder, create_folder, open_folder
from sottovoce.wire.reports import encode_report
from sottovoce.wire.signing import seal
from sottovoce.wire.terms import Terms
from sottovoce.wire.versions import full_size

Progress = Callable[[str], None]

CONNECTIONS = 16
POLLS_PER_SECOND = 10_000 / 60
"""Ten thousand devices that ask once a minute, each on a connection of its own."""
POLL_THREADS = 8
POLL_RATIO = 1.15
"""What polls may take beside those of the bare server."""
ROWS, SIZE, ITEMS = 60, 10, 3_706
LARGE_SIZE, LARGE_ITEMS = 50, 245_099


@dataclass(frozen=True)
class Scale:
    reports: int
    poll_seconds: float
    downloads: int
    turns: int


FULL = Scale(20_000, 15.0, 12, 3)
QUICK = Scale(3_000, 4.0, 4, 1)


def run(*, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Every figure, as {"bench", "machine", "results"}."""
    say = progress or (lambda message: None)
    scale = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as place:
        reports: dict[bool, dict[str, float]] = {}
        polls: dict[bool, float] = {}
        downloads: dict[bool, tuple[float, int]] = {}
        for turn in range(scale.turns):
            for bare in (False, True):
                path = Path(place) / f"{turn}-{'bare' if bare else 'ours'}"
                say(f"turn {turn + 1} of {scale.turns}: {'the bare server' if bare else 'ours'}")
                found = reports_per_second(path / "reports", scale.reports, bare)
                best = reports.setdefault(bare, found)
                reports[bare] = {
                    "rate": max(best["rate"], found["rate"]),
                    "bytes": found["bytes"],
                    **{kind: min(best[kind], found[kind]) for kind in ("cpu", "load")},
                }
                share = polling(path / "polls", scale.poll_seconds, bare)
                polls[bare] = min(polls.get(bare, share), share)
                speed = downloading(path / "large", scale.downloads, bare)
                downloads[bare] = max(downloads.get(bare, speed), speed)
    ours, theirs = reports[False], reports[True]
    size = downloads[False][1] / 1e6
    results = [
        row(
            f"reports accepted, {CONNECTIONS} connections, {ours['bytes']} bytes each",
            ours["rate"],
            "reports/s",
            bare=theirs["rate"],
            target=2000,
        ),
        row("server time per report", ours["cpu"], "ms", bare=theirs["cpu"]),
        row("load generator's time per report", ours["load"], "ms", bare=theirs["load"]),
        row(
            f"{POLLS_PER_SECOND:.0f} polls/s, a TLS connection each",
            polls[False],
            "% of a core",
            bare=polls[True],
            target=POLL_RATIO * polls[True],
            at_most=True,
        ),
        row(
            f"model of {size:.0f} MB, one connection",
            downloads[False][0],
            "MB/s",
            bare=downloads[True][0],
            target=200,
        ),
    ]
    return {"bench": "https", "machine": machine(), "results": results}


def row(
    name: str,
    value: float,
    unit: str,
    *,
    bare: float,
    target: float | None = None,
    at_most: bool = False,
) -> dict[str, Any]:
    """One figure beside the bare server's. The targets are what the service promises."""
    met = None if target is None else value <= target if at_most else value >= target
    return {
        "name": name,
        "value": float(f"{value:.4g}"),
        "unit": unit,
        "peer": f"bare server: {bare:.4g}",
        "ratio": value / bare,
        "target": target,
        "met": met,
    }


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    here, (load, *_) = environment(), os.getloadavg()
    return {
        "cpu": here["hardware"]["processor"],
        "cores": here["hardware"]["cores"],
        "python": here["versions"]["python"],
        "tls": ssl.OPENSSL_VERSION,
        "timing": "wall time with server and load generator on the same processors; best turn",
        "load": f"{load:.1f} at the end",
    }


# --- reports --------------------------------------------------------------------------------------


def reports_per_second(path: Path, count: int, bare: bool) -> dict[str, float]:
    folder = _federation(path, ITEMS, SIZE, devices=count)
    requests = _requests(folder, count)
    (path / "requests").write_bytes(pickle.dumps(requests))
    with serving(folder, bare) as (port, busy):
        before = busy()
        done = _load("reports", path, port, CONNECTIONS)
        spent = busy() - before
    if done["accepted"] != count:
        raise ServiceError(f"{done['accepted']} of {count} reports were accepted: {done['other']}")
    return {
        "rate": count / done["seconds"],
        "cpu": 1e3 * spent / count,
        "load": 1e3 * done["cpu"] / count,
        "bytes": len(requests[0].partition(b"\r\n\r\n")[2]),
    }


def enrolled(folder: ServerFolder, count: int) -> list[Ed25519PrivateKey]:
    """So many devices of a federation, by number."""
    keys = [Ed25519PrivateKey.generate() for _ in range(count)]
    database = folder.database()
    with database.writing() as link:
        link.execute(
            devices.insert(),
            [
                {
                    "number": number,
                    "token_hash": secrets.token_bytes(32),
                    "public_key": key.public_key().public_bytes_raw(),
                    "missed": 0,
                    "dormant": False,
                }
                for number, key in enumerate(keys)
            ],
        )
    database.close()
    return keys


def _requests(folder: ServerFolder, count: int) -> list[bytes]:
    """Signed reports of devices that have enrolled, each with its request."""
    rng = Streams.from_seed(1).child("reports").generator()
    keys = enrolled(folder, count)
    body = _some_report(rng)
    found = []
    for number, key in enumerate(keys):
        sealed = seal(
            key,
            folder.plan.terms.federation,
            "report",
            number=number,
            round=0,
            attempt=0,
            nonce=secrets.token_bytes(16),
            body=body,
        )
        head = f"POST /v1/reports HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(sealed)}\r\n\r\n"
        found.append(head.encode() + sealed)
    return found


def _some_report(rng: np.random.Generator) -> bytes:
    """What a device with 30 draws sends, through the door."""
    from sottovoce.core.cohort import Cohort
    from sottovoce.core.consent import Choice, Consent
    from sottovoce.core.interactions import Interactions
    from sottovoce.core.ledger import Ledger
    from sottovoce.core.messages import ModelView

    items = np.sort(rng.choice(ITEMS, 600, replace=False))
    history = Interactions.from_pairs(np.zeros(600), items, n_users=1, n_items=ITEMS)
    algorithm, streams = _terms(ITEMS, SIZE).build(), Streams.from_seed(2)
    user = np.zeros(1, np.int64)
    cohort = Cohort(
        user,
        history,
        Consent.uniform(user, Choice(share_positives=1.0)),
        algorithm.device_init(user, streams),
    )
    door = Devices.behind_door(algorithm, cohort, ShareFraction(), Ledger(), streams)
    return encode_report(door.report(ModelView(0, algorithm.server_init(ITEMS, streams)), user))


def _send_reports(path: Path, port: int, connections: int) -> dict[str, Any]:
    """Every request once, on so many connections, each the next when it has its answer."""
    waiting = iter(pickle.loads((path / "requests").read_bytes()))
    context = device_context(authority_pem(open_folder(path).keys))
    links = [_connect(context, port) for _ in range(connections)]
    ready = selectors.DefaultSelector()
    by_file = {link.fileno(): link for link in links}
    accepted, other, busy = 0, b"", len(links)
    started, before = time.perf_counter(), time.process_time()
    for link in links:
        ready.register(link.fileno(), selectors.EVENT_READ)
        link.sendall(next(waiting))
    while busy:
        for key, _ in ready.select():
            link = by_file[key.fd]
            answer = link.recv(4096)
            if answer.startswith(b"HTTP/1.1 204"):
                accepted += 1
            else:
                other = answer
            request = next(waiting, None)
            if request is None or not answer:
                ready.unregister(key.fd)
                busy -= 1
            else:
                link.sendall(request)
    return {
        "accepted": accepted,
        "seconds": time.perf_counter() - started,
        "cpu": time.process_time() - before,
        "other": other.decode(errors="replace"),
    }


# --- polls ----------------------------------------------------------------------------------------


def polling(path: Path, seconds: float, bare: bool) -> float:
    """Percent of a core that the server takes while devices poll."""
    folder = _federation(path, ITEMS, SIZE, devices=1_000_000)
    with serving(folder, bare) as (port, busy):
        _load("polls", path, port, 1.0)
        before = busy()
        done = _load("polls", path, port, seconds)
        # The load generator takes a while to start: count polls, not seconds.
        share = 100 * (busy() - before) / int(done["polls"]) * POLLS_PER_SECOND
    if done["late"] > 0.1 * seconds:
        raise ServiceError(f"the load generator fell {done['late']:.1f} s behind")
    return share


def _poll(path: Path, port: int, seconds: float) -> dict[str, Any]:
    """Polls at their due times; some overlap where an answer takes long."""
    context = device_context(authority_pem(open_folder(path).keys))
    started, polls = time.perf_counter() + 0.2, round(seconds * POLLS_PER_SECOND)
    request = b"GET /v1/round HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n"

    def devices_of(first: int) -> float:
        late = 0.0
        for number in range(first, polls, POLL_THREADS):
            pause = started + number / POLLS_PER_SECOND - time.perf_counter()
            late = max(0.0, -pause)
            if pause > 0:
                time.sleep(pause)
            with _connect(context, port) as link:
                link.sendall(request)
                if not link.recv(4096).startswith(b"HTTP/1.1 200"):
                    raise ServiceError("a poll was not answered")
        return late

    with ThreadPoolExecutor(POLL_THREADS) as pool:
        late = max(pool.map(devices_of, range(POLL_THREADS)))
    return {"polls": polls, "late": late}


# --- downloads ------------------------------------------------------------------------------------


def downloading(path: Path, times: int, bare: bool) -> tuple[float, int]:
    """Megabytes per second of the best download, and the model's size."""
    folder = _federation(path, LARGE_ITEMS, LARGE_SIZE, devices=1_000_000)
    with serving(folder, bare) as (port, _):
        done = _load("downloads", path, port, times)
    size = full_size(LARGE_ITEMS, LARGE_SIZE + 1)
    return size / done["seconds"] / 1e6, size


def _download(path: Path, port: int, times: int) -> dict[str, Any]:
    context = device_context(authority_pem(open_folder(path).keys))
    best = float("inf")
    buffer = bytearray(1 << 20)
    with _connect(context, port) as link:
        for _ in range(times + 1):  # the first one fills the cache
            started = time.perf_counter()
            link.sendall(b"GET /v1/model/0 HTTP/1.1\r\nhost: bench\r\n\r\n")
            head = link.recv(4096)
            while b"\r\n\r\n" not in head:
                head += link.recv(4096)
            headers, _, rest = head.partition(b"\r\n\r\n")
            left = int(headers.lower().partition(b"content-length: ")[2].split(b"\r")[0])
            left -= len(rest)
            while left:
                left -= link.recv_into(buffer)
            best = min(best, time.perf_counter() - started)
    return {"seconds": best}


# --- processes ------------------------------------------------------------------------------------


def _terms(n_items: int, size: int) -> Terms:
    settings = FPLConfig(embedding_size=size, triples=ROWS // 2)
    return Terms.of("bench", n_items, settings, ROWS // 2, ShareFraction())


def _federation(path: Path, n_items: int, size: int, *, devices: int) -> ServerFolder:
    return create_folder(
        path,
        _terms(n_items, size),
        [(str(number), "") for number in range(n_items)],
        rounds=1,
        rules=RoundRules(over_selection=0.0, min_devices=devices, deadline_seconds=86400.0),
    )


@contextlib.contextmanager
def serving(folder: ServerFolder, bare: bool) -> Iterator[tuple[int, Callable[[], float]]]:
    """A server process: its port, and the processor time it has taken."""
    command = sottovoce_command("serve", "server", folder.path, "--port=0")
    if bare:
        command = [sys.executable, __file__, "bare", str(folder.path), "0", "0"]
    with Child("the server", command, log=folder.path / "server.log") as child:
        wait_for(child, lambda: folder.running() is not None)
        time.sleep(0.5)  # the first round is opened
        found = folder.running() or {}
        yield found["port"], lambda: _processor_seconds(found["pid"])


class _Bare(asyncio.Protocol):
    """Answers at once, whatever is asked."""

    transport: asyncio.Transport
    waiting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.waiting += data
        head, end, body = self.waiting.partition(b"\r\n\r\n")
        if not end:
            return
        if head.startswith(b"POST"):
            if len(body) < int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0]):
                return
            self.transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        elif head.startswith(b"GET /v1/model"):
            self.transport.writelines([_BARE_HEAD % len(_LARGE), _LARGE])
        else:
            self.transport.write(_BARE_HEAD % 300 + bytes(300))
            self.transport.close()
        self.waiting = b""


_BARE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"
_LARGE = bytes(full_size(LARGE_ITEMS, LARGE_SIZE + 1)) if "bare" in sys.argv else b""


async def _serve_bare(path: Path) -> None:
    context = server_context(path / "keys")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Bare, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    (path / "server.json").write_text(json.dumps({"pid": os.getpid(), "port": port}))
    await asyncio.Event().wait()


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _load(kind: str, path: Path, port: int, amount: float) -> dict[str, Any]:
    """What another process measured."""
    command = [sys.executable, __file__, kind, str(path), str(port), str(amount)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ServiceError(f"the load generator failed: {done.stderr.strip()[-500:]}")
    return dict(json.loads(done.stdout))


def _connect(context: ssl.SSLContext, port: int) -> ssl.SSLSocket:
    link = socket.create_connection(("127.0.0.1", port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(link, server_hostname="127.0.0.1")


if __name__ == "__main__":
    if len(sys.argv) == 5:
        _, kind, place, port, amount = sys.argv
        found: dict[str, Any] = {}
        if kind == "bare":
            uvloop.run(_serve_bare(Path(place)))
        elif kind == "reports":
            found = _send_reports(Path(place), int(port), int(float(amount)))
        elif kind == "polls":
            found = _poll(Path(place), int(port), float(amount))
        else:
            found = _download(Path(place), int(port), int(float(amount)))
        print(json.dumps(found))
    else:
        shown = run(quick="--quick" in sys.argv, progress=lambda text: print(text, file=sys.stderr))
        print(json.dumps(shown, indent=1, ensure_ascii=False))
