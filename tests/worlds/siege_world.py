"""Strangers that besiege a service from a process of their own, and honest visitors whose answers
are timed meanwhile. Everything stays on loopback, where 127.0.0.x play several addresses."""

import contextlib
import http.client
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOON = 1.0
"""Seconds within which an honest request is to be answered, on a machine that does nothing else."""

ATTACK = r"""
import asyncio, json, random, resource, ssl, sys, time
import uvloop

told = json.loads(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
first, body = told["first"].encode(), bytes(told["body"])
secure = None if told["kind"] in ("silent", "begin") else context
held, tried, cut = set(), 0, 0

class Stranger(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
        held.add(self)
        if told["kind"] == "begin":
            transport.write(b"\x16\x03\x01\x02")
        elif told["kind"] != "silent":
            self.ask()

    def ask(self):
        self.transport.write(first + body)

    def connection_lost(self, error):
        global cut
        held.discard(self)
        cut += 1

async def open_some(number, turn):
    async with turn:
        address = told["addresses"][number % len(told["addresses"])]
        try:
            async with asyncio.timeout(5):
                await asyncio.get_running_loop().create_connection(
                    Stranger, "127.0.0.1", told["port"], ssl=secure,
                    server_hostname="localhost" if secure else None, local_addr=(address, 0),
                )
        except (OSError, TimeoutError):
            pass

async def besiege():
    global tried
    began = time.monotonic()
    turn, opening = asyncio.Semaphore(told["at_once"]), set()
    while time.monotonic() < began + told["seconds"]:
        for _ in range(min(told["count"] - len(held) - len(opening), told["most"] - tried, 512)):
            task = asyncio.create_task(open_some(tried, turn))
            opening.add(task)
            task.add_done_callback(opening.discard)
            tried += 1
        if told["kind"] == "idle":  # each once in 8 seconds or so, or it would be cut off
            for stranger in random.sample(sorted(held, key=id), len(held) // 80):
                stranger.ask()
        done = tried - len(opening)
        print(json.dumps({"held": len(held), "tried": done, "cut": cut}), flush=True)
        await asyncio.sleep(0.1)

uvloop.run(besiege())
"""


@dataclass(frozen=True)
class Siege:
    """What strangers do: `count` connections are held, and those that are cut opened anew, until
    `most` were opened."""

    kind: str
    count: int
    addresses: tuple = ("127.0.0.2",)
    seconds: float = 10.0
    most: int = 0
    first: str = ""
    body: int = 0
    at_once: int = 64

    @contextlib.contextmanager
    def against(self, port):
        """Goes on within; `say()` is what the strangers said last."""
        told = {
            "kind": self.kind, "count": self.count, "addresses": self.addresses, "port": port,
            "seconds": self.seconds, "most": self.most or self.count, "first": self.first,
            "body": self.body, "at_once": self.at_once,
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-c", ATTACK, json.dumps(told)], stdout=subprocess.PIPE, text=True
        )
        said = {}
        try:
            yield lambda: _last(process, said)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def begun(self, last, share=0.5, seconds=600.0):
        """Wait until so many of the connections were tried."""
        end = time.monotonic() + seconds
        while last().get("tried", 0) < share * self.count:
            assert time.monotonic() < end, "the siege does not begin"


def _last(process, said):
    line = process.stdout.readline()
    if line:
        said.update(json.loads(line))
    return said


@dataclass(frozen=True)
class Answered:
    """How honest visitors fared."""

    asked: int
    soon: int
    """Answered well within `SOON`."""
    slowest: float
    wrong: tuple
    """What came instead, of those that were not answered well."""
    within: float = SOON

    @property
    def share(self):
        return self.soon / self.asked

    def __str__(self):
        return (
            f"{self.soon} of {self.asked} ({self.share:.1%}) within {self.within:.2g} s, "
            f"slowest {self.slowest:.2f} s, wrong: {sorted(set(self.wrong))[:4]}"
        )


def timed(ask, count, every=0.1, at_once=16, quiet=None):
    """Ask so often, at fixed times whether or not the last was answered. `ask(n)` returns None
    where all is well, or what is not. `quiet` is how they fared without a siege: where the machine
    has so much else to do that this took long, they have more time."""
    within = SOON if quiet is None else max(SOON, 4 * quiet.slowest)

    def one(number):
        began = time.monotonic()
        try:
            wrong = ask(number)
        except (OSError, http.client.HTTPException) as error:
            wrong = type(error).__name__
        return time.monotonic() - began, wrong

    with ThreadPoolExecutor(at_once) as pool:
        waiting = []
        for number in range(count):
            waiting.append(pool.submit(one, number))
            time.sleep(every)
        found = [each.result() for each in waiting]
    soon = sum(wrong is None and seconds <= within for seconds, wrong in found)
    slowest = max(seconds for seconds, _ in found)
    return Answered(count, soon, slowest, tuple(w for _, w in found if w), within)


def visit(port, context, method="GET", path="/health", body=None, headers=None, wanted=(200,)):
    """A request on a connection of its own; None where it was answered as wanted."""
    link = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=5)
    try:
        link.request(method, path, body=body, headers=headers or {})
        got = link.getresponse()
        got.read()
        return None if got.status in wanted else str(got.status)
    finally:
        link.close()


def resident(pid):
    """Bytes of memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError


def descriptors(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
