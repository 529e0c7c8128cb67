"""Contributions of gram over HTTPS: how many a second, and what the server needs for them.

    sottovoce bench contributions [--quick] [--json]

10,000 devices of a federation in MovieLens 1M's shape (3,706 items, 264 of them in the head) post
their second contribution, 34,980 masked numbers of 32 bits, as fast as they are taken. Server and
helper are the real services, with real masks, seals and signatures: at the end the round is closed
and its sum opened, which would fail if one number were wrong. Messages are made beforehand and lie
in a file. Memory is the server's highest, disk that of its database, looked at all the time.

The peer is a bare server in the same run, on the same event loop with the same TLS, that answers at
once and stores nothing. Server, helper and load generator share this machine's processors.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.gram.system import SCALE, GramConfig
from sottovoce.core.contributions import PAIR_STEPS, Contributions, numbers_of
from sottovoce.core.links import SecureSum
from sottovoce.core.masking import masked
from sottovoce.core.messages import MaskedReports, MaskSeeds, ModelView
from sottovoce.engines.processes import Child, sottovoce_command, wait_for
from sottovoce.engines.trial import prepare_helper
from sottovoce.errors import ServiceError
from sottovoce.experiment import load_benchmark
from sottovoce.parties.rounds import RoundRules
from sottovoce.parties.secure_sum import fitted
from sottovoce.privacy.own_epsilon import OwnEpsilon
from sottovoce.rng import Streams
from sottovoce.stores import server as records
from sottovoce.stores.helper_folder import create_helper, helper_introduction, open_helper
from sottovoce.stores.keys import authority_pem, device_context
from sottovoce.stores.server_folder import ServerFolder, create_folder, open_folder
from sottovoce.wire.masked import seal_masked
from sottovoce.wire.signing import DIGEST_HEADER, digest_of, seal
from sottovoce.wire.terms import Terms

Progress = Callable[[str], None]
_HTTPS = load_benchmark("https")
machine, row = _HTTPS.machine, _HTTPS.row
serving, connect = _HTTPS.serving, _HTTPS._connect
CONNECTIONS = 16
ITEMS, HEAD = 3_706, 264
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Scale:
    devices: int
    turns: int


FULL, QUICK = Scale(10_000, 1), Scale(1_000, 1)


def run(*, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Every figure, as {"bench", "machine", "results"}."""
    say = progress or (lambda message: None)
    scale = QUICK if quick else FULL
    found: dict[bool, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place)
        say(f"{scale.devices:,} messages")
        folder, size = _federation(path, scale.devices)
        for bare in (True, False):
            say("the bare server" if bare else "ours")
            found[bare] = _served(path, folder, scale.devices, bare)
    ours, theirs = found[False], found[True]
    model = ITEMS * GramConfig().width * 4
    results = [
        row(
            f"contributions accepted, {CONNECTIONS} connections, {size:,} bytes each",
            ours["rate"],
            "contributions/s",
            bare=theirs["rate"],
        ),
        row("server time per contribution", ours["cpu"], "ms", bare=theirs["cpu"]),
        row(
            "server's highest memory",
            ours["memory"],
            "MB",
            bare=theirs["memory"],
            target=300,
            at_most=True,
        ),
        {
            "name": f"server's disk at its fullest, model of {model / 1e6:.2f} MB",
            "value": float(f"{ours['disk'] / 1e6:.4g}"),
            "unit": "MB",
            "peer": f"all messages: {scale.devices * size / 1e6:,.0f}",
            "ratio": ours["disk"] / model,
            "target": 20 * model / 1e6,
            "met": ours["disk"] <= 20 * model,
        },
        {
            "name": "until the round's sum is opened and folded, after the last contribution",
            "value": float(f"{ours['closing']:.3g}"),
            "unit": "s",
            "peer": "",
            "ratio": None,
            "target": None,
            "met": None,
        },
        {
            "name": "asked to come again, since there was no room",
            "value": ours["again"],
            "unit": "answers",
            "peer": "",
            "ratio": None,
            "target": None,
            "met": None,
        },
    ]
    return {"bench": "contributions", "machine": machine(), "results": results}


def _served(path: Path, folder: ServerFolder, count: int, bare: bool) -> dict[str, float]:
    (folder.path / "server.json").unlink(missing_ok=True)
    if bare:
        with serving(folder, True) as (port, busy):
            return _measured(path, folder, port, busy, count)
    helper = open_helper(path / "proxy")
    kept = (path / "proxy" / "port").read_text()
    command = sottovoce_command("serve", "helper", path / "proxy", "--port", kept)
    with Child("the helper", command, log=path / "helper.log") as child:
        wait_for(child, lambda: helper.running() is not None)
        with serving(folder, False) as (port, busy):
            found = _measured(path, folder, port, busy, count)
            begun = time.perf_counter()
            while _round(folder) < 2:
                if time.perf_counter() - begun > 300:
                    raise ServiceError("the round was not closed")
                time.sleep(0.2)
            return found | {"closing": time.perf_counter() - begun}


def _measured(
    path: Path, folder: ServerFolder, port: int, busy: Callable[[], float], count: int
) -> dict[str, float]:
    """One load, and what the server needed meanwhile."""
    pid = (folder.running() or {})["pid"]
    before, over, fullest = busy(), threading.Event(), [0]

    def look() -> None:
        while not over.wait(0.05):
            fullest[0] = max(fullest[0], _bytes(folder.path))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        done = _load(path, port)
    finally:
        over.set()
        watcher.join()
    if done["accepted"] != count:
        raise ServiceError(f"{done['accepted']} of {count} were accepted: {done['other']}")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    highest = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return {
        "rate": count / done["seconds"],
        "cpu": 1e3 * (busy() - before) / count,
        "memory": highest / 1e3,
        "disk": fullest[0],
        "again": done["again"],
    }


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("server.db*"))


def _round(folder: ServerFolder) -> int:
    database = folder.database()
    try:
        with database.reading() as link:
            return records.position(link).round
    finally:
        database.close()


# --- the federation and its messages --------------------------------------------------------------


def _federation(path: Path, count: int) -> tuple[ServerFolder, int]:
    """A federation between its two rounds, and everybody's second message in a file."""
    config, release = GramConfig(popularity_share=0.1), OwnEpsilon(1.0)
    link = SecureSum(min_devices=100)
    algorithm = config.build_under(release, link, 1)
    narrow = fitted(algorithm, release, link, 1, count).summing
    if narrow is None:
        raise ServiceError("a secure sum is wanted")
    terms = Terms("bench", ITEMS, config, release, prepare_helper(path, narrow, 1))
    folder = create_folder(
        path / "server",
        terms,
        [(str(number), "") for number in range(ITEMS)],
        cohort_size=count,
        rounds=2,
        root_key=1,
        rules=RoundRules(over_selection=0.0, min_devices=count, deadline_seconds=86400.0),
    )
    create_helper(path / "proxy", helper_introduction(folder))
    items = algorithm.server_init(ITEMS, Streams.from_seed(1))
    items[:HEAD, SCALE] = 1.0
    view, keys = ModelView(1, items), _HTTPS.enrolled(folder, count)
    database = folder.database()
    with database.writing() as at:
        records.set_fact(at, "terms", terms.digest())
        memory = algorithm.server_memory(ITEMS)
        records.save_model(at, 1, items, np.zeros(ITEMS, np.int32), memory)
    database.close()
    size, numbers = 0, numbers_of(HEAD, True)
    with (path / "requests").open("wb") as out:
        for number, key in enumerate(keys):
            seed = secrets.token_bytes(32)
            hidden = masked(_contribution(number), seed, terms.bits)[None, :]
            body = seal_masked(
                terms,
                0,
                view,
                MaskedReports(1, np.array([number]), hidden),
                MaskSeeds(1, np.array([number]), (seed,)),
                key,
            )
            about = {"number": number, "round": 1, "attempt": 0}
            sent = seal(key, "bench", "report", **about, nonce=secrets.token_bytes(16), body=body)
            size = len(sent)
            head = (
                f"POST /v1/reports HTTP/1.1\r\nhost: bench\r\n{DIGEST_HEADER}: {digest_of(sent)}"
                f"\r\ncontent-length: {size}\r\n\r\n"
            )
            out.write(_LENGTH.pack(len(head) + size) + head.encode() + sent)
    if len(hidden[0]) != numbers:
        raise ServiceError("a message has other numbers than a contribution")
    return folder, size


def _contribution(number: int) -> NDArray[np.int64]:
    """Of 30 items of the head, all alike."""
    rng = Streams.from_seed(number).child("items").generator()
    place = np.sort(rng.choice(HEAD, 30, replace=False)).astype(np.int32)
    steps = np.full(30, PAIR_STEPS / np.sqrt(30), dtype=np.int32)
    whole = Contributions(np.array([0, 30]), place, steps, HEAD, True, np.array([30], np.int32))
    return whole.whole(0)


# --- the load -------------------------------------------------------------------------------------


def _load(path: Path, port: int) -> dict[str, Any]:
    """What another process measured."""
    command = [sys.executable, __file__, "load", str(path), str(port)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    if done.returncode:
        raise ServiceError(f"the load generator failed: {done.stderr.strip()[-500:]}")
    return dict(json.loads(done.stdout))


def _messages(path: Path) -> Iterator[bytes]:
    with (path / "requests").open("rb") as source:
        while head := source.read(_LENGTH.size):
            yield source.read(_LENGTH.unpack(head)[0])


def _send(path: Path, port: int) -> dict[str, Any]:
    """Every message until it is taken, on so many connections, each the next when it has its
    answer."""
    waiting = _messages(path)
    context = device_context(authority_pem(open_folder(path / "server").keys))
    links = {link.fileno(): link for link in (connect(context, port) for _ in range(CONNECTIONS))}
    ready, sent = selectors.DefaultSelector(), dict[int, bytes]()
    accepted, again, other = 0, 0, b""
    started = time.perf_counter()
    for file, link in links.items():
        ready.register(file, selectors.EVENT_READ)
        sent[file] = next(waiting)
        link.sendall(sent[file])
    while sent:
        for key, _ in ready.select():
            file = key.fd
            answer = links[file].recv(4096)
            if answer.startswith(b"HTTP/1.1 503"):
                again += 1
                time.sleep(0.01)
            elif answer.startswith(b"HTTP/1.1 204"):
                accepted += 1
                sent[file] = next(waiting, b"")
            else:
                other, sent[file] = answer, b""
            if sent[file]:
                links[file].sendall(sent[file])
            else:
                del sent[file]
                ready.unregister(file)
    seconds = time.perf_counter() - started
    return {
        "accepted": accepted,
        "again": again,
        "seconds": seconds,
        "other": other.decode(errors="replace"),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        print(json.dumps(_send(Path(sys.argv[2]), int(sys.argv[3]))))
    else:
        shown = run(quick="--quick" in sys.argv, progress=lambda text: print(text, file=sys.stderr))
        print(json.dumps(shown, indent=1, ensure_ascii=False))
