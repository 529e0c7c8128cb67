"""What strangers can do: hold neither memory nor connections nor the server's time."""

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from server_world import Client, Fleet, ServerProcess, enrolment, new_folder
from talk import until

from sottovoce.core.messages import ModelView
from sottovoce.services.kit.documents import CHANGES_KEPT, Document, DocumentCache, Version
from sottovoce.services.server.application import ServerApplication
from sottovoce.stores import server as records
from sottovoce.stores.keys import authority_pem, device_context, operator_token
from sottovoce.wire.invitations import Invitation
from sottovoce.wire.versions import decode_model, full_size

QUICK = {"rest_seconds": 0.5, "idle_seconds": 1, "head_seconds": 1.0, "write_seconds": 1.5}
SOON = 60.0


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A server of little patience, with devices."""
    path = tmp_path_factory.mktemp("quick")
    folder, fleet = new_folder(path, rounds=50), Fleet()
    limits = {**QUICK, "body_seconds": 0.5}
    with ServerProcess(path, limits=limits) as server, Client(folder, server.port) as client:
        fleet.enrol(folder, client)
        client.wait(round=0, state="open")
        yield folder, fleet, client, server


@contextlib.contextmanager
def connected(folder, server, *, room=None):
    context = device_context(authority_pem(folder.keys))
    with socket.socket() as raw:
        if room is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        raw.settimeout(SOON)
        raw.connect(("127.0.0.1", server.port))
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as link:
            yield link


def head(path, *headers, method="GET"):
    lines = [f"{method} {path} HTTP/1.1", "host: x", *headers, "", ""]
    return "\r\n".join(lines).encode()


def read_until_cut(link, drip=b"", every=0.2):
    """What comes until the server cuts the line; we send a byte now and then."""
    got, end = b"", time.monotonic() + SOON
    link.settimeout(every)
    while time.monotonic() < end:
        try:
            part = link.recv(65536)
        except TimeoutError:
            try:
                link.sendall(drip)
            except OSError:
                return got
            continue
        except OSError:
            part = b""
        if not part:
            return got
        got += part
    raise AssertionError(f"the connection is held: {got[:200]!r}")


def resident(server):
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError


def test_endless_trailers_are_cut_off(quick):
    folder, _, client, server = quick
    before, most = resident(server), 0
    lines = b"".join(b"a%d: b\r\n" % n for n in range(5000))
    with connected(folder, server) as link:
        link.sendall(head("/v1/enrol", "transfer-encoding: chunked", method="POST"))
        link.sendall(b"2\r\n{}\r\n0\r\n")

        def send():
            nonlocal most
            while True:
                link.sendall(lines)
                most = max(most, resident(server))

        with pytest.raises((ConnectionError, ssl.SSLError)):
            send()
    assert most < before + (20 << 20)
    with connected(folder, server) as link:
        link.sendall(head("/v1/enrol", "transfer-encoding: chunked", method="POST"))
        link.sendall(b"2\r\n{}\r\n0\r\na: b\r\n\r\n")
        assert read_until_cut(link).startswith(b"HTTP/1.1 400")
    assert client.get("/health").status == 200


@pytest.mark.parametrize(
    ("request_head", "answer"),
    [
        (head("/health", "content-length: 100000"), b"200"),
        (head("/v1/enrol", "content-length: 4000", method="POST") + b"{", b"400"),
        (head("/health", "transfer-encoding: chunked", method="POST") + b"5000\r\nabc", b"405"),
        (head("/health", "connection: upgrade", "upgrade: websocket"), b"200"),
    ],
)
def test_a_byte_now_and_then_does_not_hold_a_connection(quick, request_head, answer):
    """The rest of a request that was answered is not waited for."""
    folder, _, _, server = quick
    with connected(folder, server) as link:
        link.sendall(request_head)
        got = read_until_cut(link, b"x")
    assert got.startswith(b"HTTP/1.1 " + answer)


def test_empty_lines_do_not_hold_a_connection(quick):
    folder, _, _, server = quick
    with connected(folder, server) as link:
        began = time.monotonic()
        link.sendall(head("/health"))
        got = read_until_cut(link, b"\r\n")
    assert got.startswith(b"HTTP/1.1 200")
    assert time.monotonic() - began > 0.9, "others may come back on it"


def one_answer(link):
    got = b""
    while not got.endswith(b"ok"):
        part = link.recv(4096)
        assert part, "the connection was cut"
        got += part
    return got


def test_a_body_that_comes_after_the_answer_leaves_the_connection_usable(quick):
    folder, _, _, server = quick
    with connected(folder, server) as link:
        for _ in range(3):
            link.sendall(head("/health", "content-length: 4"))
            assert one_answer(link).startswith(b"HTTP/1.1 200")
            link.sendall(b"body")
        link.sendall(head("/health"))
        assert one_answer(link).startswith(b"HTTP/1.1 200")


def test_too_many_requests_at_once_are_refused(quick):
    folder, _, client, server = quick
    with connected(folder, server) as link:
        link.sendall(head("/health") * 5)
        got = b""
        while got.count(b"HTTP/1.1 200") < 5:
            got += link.recv(65536)
        with contextlib.suppress(OSError):  # the server may cut before all is sent
            link.sendall(head("/health") * 2000)
        got = read_until_cut(link)
    assert got.count(b"HTTP/1.1 200") < 100
    assert client.get("/health").status == 200


def test_downloads_that_nobody_takes_are_cut_off(tmp_path):
    """The catalogue is made so large that no buffer holds it."""
    folder = new_folder(tmp_path)
    items = json.loads((tmp_path / "catalogue.json").read_text())["items"]
    items[0][1] = "x" * (20 << 20)
    (tmp_path / "catalogue.json").write_text(json.dumps({"items": items}))
    with ServerProcess(tmp_path, limits=QUICK) as server, Client(folder, server.port) as client:
        with connected(folder, server, room=4096) as link:
            link.sendall(head("/v1/catalogue") * 5)
            time.sleep(2.5)
            got = read_until_cut(link)
        assert len(got) < 20 << 20
        whole = client.get("/v1/catalogue")
        assert len(whole.body) > 20 << 20, "whoever reads gets it"
        with connected(folder, server, room=65536) as link:
            link.sendall(head("/v1/catalogue", "connection: close"))
            size = 0
            for _ in range(20):  # slow, but it goes on: longer than it may stand still
                time.sleep(0.1)
                size += len(link.recv(1 << 20))
            while part := link.recv(1 << 20):
                size += len(part)
        assert size > 20 << 20


# --- models ---------------------------------------------------------------------------------------


def grown(versions, n_items=60, width=3):
    """The newest of so many versions; in each, one row changes."""
    rng = np.random.default_rng(1)
    items = [rng.normal(size=(n_items, width)).astype(np.float32)]
    changed = np.zeros(n_items, np.int32)
    for version in range(1, versions + 1):
        after = items[-1].copy()
        after[version % n_items] += 1
        changed[version % n_items] = version
        items.append(after)
    return items, changed


def test_the_base_is_known_before_anything_is_encoded():
    items, changed = grown(80)
    version = Version(ModelView(80, items[80]), changed)
    kept = {since: version.base(since) for since in range(83)}
    assert kept[80] == 80
    assert kept[79] == 79
    assert kept[80 - CHANGES_KEPT] == 80 - CHANGES_KEPT
    assert kept[80 - CHANGES_KEPT - 1] is None, "too old"
    assert kept[0] is kept[81] is version.base(None) is None
    for since, base in kept.items():
        content = version.content(since)
        assert (content[:4] == b"SVV1") == (base is None)
        have = None if base is None else ModelView(base, items[base])
        got = decode_model(content, n_items=60, width=3, have=have)
        assert np.array_equal(got.items, items[80])
    everything = Version(ModelView(80, items[80]), np.full(60, 80, np.int32))
    assert [everything.base(since) for since in (79, 80)] == [None, 80]


def test_what_devices_ask_for_is_there_when_a_version_is_published():
    items, changed = grown(5)
    version = Version.prepared(ModelView(5, items[5]), changed)
    assert set(version.ready) == {(None, "zstd"), (4, "zstd"), (None, "gzip")}
    everything = Version.prepared(ModelView(5, items[5]), np.full(60, 5, np.int32))
    assert set(everything.ready) == {(None, "zstd"), (None, "gzip")}


class Encodings(ServerApplication):
    """Only the part that finds the bytes of a model."""

    def __init__(self, cache):
        self._cache = cache


def test_strangers_cannot_make_the_server_encode_for_ever(monkeypatch):
    """Each base is encoded once. What has no room, or has to wait for too many others, is answered
    with the whole model."""
    items, changed = grown(60)
    version = Version.prepared(ModelView(60, items[60]), changed)
    made = []
    original = Version.content
    monkeypatch.setattr(
        Version, "content", lambda self, base: made.append(base) or original(self, base)
    )

    async def ask():
        service = Encodings(DocumentCache(8000))
        for _ in range(5):
            for since in range(59, -1, -1):
                for coding in ("zstd", "identity", "gzip"):
                    got = await service._encoded(version, version.base(since), coding)
                    assert len(got.body) <= full_size(60, 3)
        assert len(made) <= 2 * (CHANGES_KEPT + 1)
        service._cache.close()

        go = threading.Event()
        monkeypatch.setattr(
            Version, "content", lambda self, base: go.wait(60) and original(self, base)
        )
        service = Encodings(DocumentCache(1 << 20))
        waiting = [
            asyncio.ensure_future(service._encoded(version, base, "zstd")) for base in range(50, 58)
        ]
        await asyncio.sleep(0.05)
        whole = version.ready[None, "zstd"]
        assert sum(task.done() and task.result() is whole for task in waiting) == 4
        step = version.ready[59, "zstd"]
        assert await service._encoded(version, 59, "zstd") is step, "nobody waits for strangers"
        go.set()
        await asyncio.gather(*waiting)
        service._cache.close()

    asyncio.run(ask())


def test_what_stays_is_not_let_go():
    async def ask():
        cache, made = DocumentCache(2100), []

        async def get(name, stays=False):
            def make():
                made.append(name)
                return Document(bytes(1000), "identity", b"")

            await cache.get((name,), make, stays=stays)

        await get("kept", stays=True)
        for name in "abc":
            await get(name)
        assert cache.lost(("a",))
        assert not cache.lost(("c",))
        await get("kept", stays=True)
        assert made == ["kept", "a", "b", "c"]
        cache.drop(lambda key: True)
        assert not cache.lost(("a",))
        await get("kept", stays=True)
        assert made[-1] == "kept"
        cache.close()

    asyncio.run(ask())


# --- check-ins and the operator -------------------------------------------------------------------


def test_check_ins_are_of_the_present_round_and_empty(quick):
    _, fleet, client, _ = quick

    def check_in(round, attempt, body=b""):
        got = client.post("/v1/checkin", fleet.sealed(1, round, attempt, body, "check-in"))
        return got.status if got.status == 204 else got.error

    now = client.round()["round"]
    while now < 3:
        fleet.run_round(client)
        now = client.wait(round=now + 1, state="open")["round"]
    assert check_in(now, 0) == 204
    assert check_in(now - 1, 0) == 204, "the round moved on while it was on its way"
    assert check_in(now - 2, 0) == "late"
    assert check_in(now + 1, 0) == "malformed"
    assert check_in(now, 1) == "malformed"
    assert check_in(now, 0, b"x") == "malformed"
    again = fleet.sealed(1, now, 0, b"", "check-in")
    assert [client.post("/v1/checkin", again).status for _ in range(3)] == [204] * 3


def test_the_database_is_spared_and_the_operator_served_when_it_is_slow(tmp_path):
    """While somebody holds the database, devices' requests take up every place but the operator's
    and those of guesses, and what cannot be there is answered at once."""
    folder, fleet = new_folder(tmp_path, rounds=3), Fleet()
    limits = {"queries": 2, "connections": 6, "guess_seconds": 0.1}
    with (
        ServerProcess(tmp_path, limits=limits) as server,
        Client(folder, server.port) as client,
        contextlib.ExitStack() as stack,
    ):
        fleet.enrol(folder, client)
        client.wait(round=0, state="open")
        database = folder.database()
        stack.callback(database.close)
        guess = enrolment(Invitation("https://x", "", "00" * 32, 0, "little-town"), fleet.keys[0])
        with database.writing() as link:  # of whoever was not given up nothing is written
            records.missed(link, [0, 1, 2], 99)
        with database.writing():
            held = [stack.enter_context(connected(folder, server)) for _ in range(2)]
            bodies = [fleet.sealed(number, 0, 0, b"", "check-in") for number in range(2)]
            for body, link in zip(bodies, held, strict=True):
                length = f"content-length: {len(body)}"
                link.sendall(head("/v1/checkin", length, method="POST") + body)
            time.sleep(1.0)
            third = fleet.sealed(2, 0, 0, b"", "check-in")
            assert client.post("/v1/checkin", third).status == 503
            assert client.post("/v1/enrol", guess).status == 403
            assert client.get("/v1/model/999999").status == 410
            assert client.get("/v1/rounds/7/0/selected").status == 410
            assert client.status()["target"] == 3
        for body, link in zip(bodies, held, strict=True):
            # Who has waited for longer than a database is waited for comes again.
            assert link.recv(4096).startswith((b"HTTP/1.1 204", b"HTTP/1.1 503"))
            assert client.post("/v1/checkin", body).status == 204

        pauses = (0.3 * 2**n for n in range(9))

        def full():
            """Whoever comes before the server has read from these six is in one's place."""
            for _ in range(6):
                link = stack.enter_context(connected(folder, server))
                link.sendall(head("/v1/enrol", "content-length: 100", method="POST") + b"{")
            time.sleep(next(pauses))
            with connected(folder, server) as link:
                link.sendall(head("/health"))
                return link.recv(4096).startswith(b"HTTP/1.1 503")

        until(full)
        with connected(folder, server) as link:
            token = operator_token(folder.keys)
            link.sendall(head("/v1/operator/status", f"authorization: Bearer {token}"))
            assert link.recv(4096).startswith(b"HTTP/1.1 200")
