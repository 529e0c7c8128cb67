"""Whatever strangers and broken devices send: a refusal, never a fault of the proxy's own; and
nothing of a sender but its sealed reports gets past the proxy."""

import contextlib
import json
import os
import resource
import secrets
import socket
import sqlite3
import ssl
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from proxy_world import App, Device, Link, ProxyProcess, challenge_of, proxied
from talk import until
from test_proxy_service import count, devices, opened

from sottovoce.cli import call
from sottovoce.engines.processes import sottovoce_command
from sottovoce.errors import MessageError
from sottovoce.stores.keys import authority_pem, device_context
from sottovoce.stores.server_folder import write_introduction
from sottovoce.wire.sealing import SEALED_BYTES
from sottovoce.wire.shuffled import decode_submission, encode_submission, terms_name

HEAD = 125


def wrong_inputs(rng, server, device, accepted):
    """Malformed, oversized, replayed, forged, misplaced: none of them may count."""
    sealed = secrets.token_bytes(4 * SEALED_BYTES)

    def made(round=0, tier=0, key=None, body=sealed, account=device.account, secret=None):
        name = server.key if key is None else key
        secret, terms = secret or device.account_key, terms_name(server.terms)
        return encode_submission(account, secret, round, tier, name, body, terms=terms)

    good = made()
    while True:
        kind = rng.integers(12)
        if kind == 0:
            yield accepted
        elif kind == 1:
            yield rng.bytes(int(rng.integers(0, 400)))
        elif kind == 2:
            yield good[: int(rng.integers(len(good)))]
        elif kind == 3:
            yield good + rng.bytes(int(rng.integers(1, 3000)))
        elif kind in (4, 5, 6):  # a few bits of a good one
            changed = bytearray(good)
            for _ in range(int(rng.integers(1, 4))):
                changed[int(rng.integers(HEAD if kind == 4 else len(good)))] ^= 1 << rng.integers(8)
            if bytes(changed) != good:
                yield bytes(changed)
        elif kind == 7:
            yield made(account=rng.bytes(16))
        elif kind == 8:
            yield made(secret=rng.bytes(32))
        elif kind == 9:
            yield made(key=rng.bytes(32))
        elif kind == 10:
            yield made(tier=int(rng.integers(2, 256)))
        else:
            count = int(rng.integers(0, 12))
            yield made(body=rng.bytes((count + (count >= 4)) * SEALED_BYTES))


def test_thousands_of_wrong_inputs_are_refused(tmp_path):
    rng = np.random.default_rng(7)
    with proxied(tmp_path) as (server, folder), App(folder, hold_seconds=60) as app:
        opened(app)
        sender, other = devices(app, server, 2)
        assert app.submit(sender.submission(0)).status == 204
        wrong = wrong_inputs(rng, server, other, sender.submission(0))

        async def all_of_them():
            return [
                (await app.asked("POST", "/v1/submissions", next(wrong))).status
                for _ in range(4_000)
            ]

        statuses = app.run(all_of_them())
        assert set(statuses) == {400, 401, 409, 413, 426}
        assert [held.devices for held in app.store.held()] == [1]
        assert app.submit(other.submission(0)).status == 204


def test_enrolments_and_odd_requests_never_fail(tmp_path):
    rng = np.random.default_rng(8)
    with proxied(tmp_path) as (server, folder), App(folder) as app:
        opened(app)
        good = Device(server).enrolment(challenge_of(app.ask))
        table = json.loads(good)
        odd = [
            None,
            1,
            -1,
            2**80,
            1e400,
            "",
            "ü" * 64,
            [],
            {},
            True,
            "00" * 32,
            "00" * 64,
            "0" * 63,
        ]

        async def all_of_them():
            statuses = []
            for turn in range(1_500):
                changed = dict(table)
                name = str(rng.choice(list(table)))
                if turn % 3 == 0:
                    changed[name] = odd[rng.integers(len(odd))]
                    body = json.dumps(changed).encode()
                elif turn % 3 == 1:
                    del changed[name]
                    body = json.dumps(changed).encode()
                else:
                    broken = bytearray(good)
                    broken[rng.integers(len(good))] ^= 1 << rng.choice([0, 1, 2, 3, 4, 6, 7])
                    body = bytes(broken)  # bit 5 makes capital letters, which mean the same
                statuses.append((await app.asked("POST", "/v1/enrol", body)).status)
                path = rng.choice(["/v1/enrol", "/v1/submissions", "/", "/metrics", "/v1/../x"])
                method = rng.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "X"])
                statuses.append((await app.asked(str(method), str(path), b"x")).status)
            return statuses

        assert set(app.run(all_of_them())) <= {400, 401, 403, 404, 405, 413, 426}
        assert app.store.accounts() == 0


def test_bodies_in_pieces_cut_off_and_without_length(tmp_path):
    with proxied(tmp_path) as (server, folder), App(folder, hold_seconds=60) as app:
        opened(app)
        one, two = devices(app, server, 2)

        def sent(pieces, **headers):
            return app.run(
                app.asked("POST", "/v1/submissions", pieces=pieces, headers=headers)
            ).status

        good = one.submission(0)
        assert sent([good[:10], b"", good[10:]]) == 204
        assert sent([two.submission(0), bytes(300), bytes(300)]) == 413
        assert sent([], **{"content-length": "277"}) == 400, "cut off"
        assert sent([b""], **{"content-length": "x"}) == 400
        assert sent([b""], **{"content-length": "9" * 30}) == 413


def test_decoding_takes_exactly_what_was_encoded():
    rng = np.random.default_rng(9)
    for _ in range(300):
        account, key, name, terms = rng.bytes(16), rng.bytes(32), rng.bytes(32), rng.bytes(32)
        round, tier = int(rng.integers(2**32)), int(rng.integers(5))
        sealed = rng.bytes(3 * SEALED_BYTES)
        payload = encode_submission(account, key, round, tier, name, sealed, terms=terms)
        found = decode_submission(payload, 3, 5)
        assert (found.account, found.round, found.tier, found.key) == (account, round, tier, name)
        assert (bytes(found.reports), found.terms) == (sealed, terms)
        assert account.hex() not in repr(found)
        for reports, tiers in [(2, 5), (4, 5), (3, tier)]:
            with pytest.raises(MessageError):
                decode_submission(payload, reports, tiers)


# --- what reaches the server ----------------------------------------------------------------------

SPY = {
    "User-Agent": "canary-agent/7",
    "X-Forwarded-For": "203.0.113.77",
    "Forwarded": "for=203.0.113.77",
    "Cookie": "canary=1",
    "X-Canary": "canary-header",
    "Traceparent": "00-canary",
}


def test_nothing_of_a_sender_but_its_reports_reaches_the_server_the_disk_or_the_log(tmp_path):
    here = {"hold_seconds": 600.0, "goal": {"": 60}}
    with proxied(tmp_path) as (server, folder), ProxyProcess(folder, **here) as proxy:
        with Link(folder, proxy.port) as link:
            some = [Device(server).enrol(link.ask) for _ in range(60)]
            until(lambda: link.ask("POST", "/v1/submissions", b"").status == 400)
            for device in some[:-1]:
                payload = device.submission(0)
                assert link.ask("POST", "/v1/submissions", payload, SPY).status == 204
            assert_no_trace_in_rows(folder, some[:-1])
            assert link.ask("POST", "/v1/submissions", some[-1].submission(0), SPY).status == 204
        batch = until(lambda: server.batch(0, 0))
        until(lambda: not count(folder, "reports"))
        proxy.stop()
        log = proxy.log.read_text()
    owner = {record: n for n, device in enumerate(some) for record in device.records(0)}
    assert len(batch) == len(owner) == 240
    order = [owner[record] for record in batch]
    assert order != sorted(order)
    for headers, body in server.seen:
        assert set(headers) == {"host", "authorization", "content-length"}
        told = json.dumps(headers).encode() + body
        for device in some:
            assert device.account not in body
            assert device.key.public_key().public_bytes_raw() not in body
        for value in SPY.values():
            assert value.lower().encode() not in told.lower()
    for value in [*SPY.values(), *(device.account.hex() for device in some), "127.0.0.1:"]:
        assert value not in log.replace(f"https://127.0.0.1:{proxy.port}", "")
    held = b"".join(p.read_bytes() for p in folder.path.glob("proxy.db*"))
    for value in SPY.values():
        assert value.encode() not in held
    for device in some:
        for record in device.records(0):
            assert record not in held, "what was handed over is forgotten"
    # Arrival: neighbours in the batch are of neighbours at the door no more often than by chance.
    near = np.mean(np.abs(np.diff(order)) <= 1)
    chance = (60 * 4 * 3 + 2 * 59 * 16) / (240 * 239)
    assert near < chance + 5 * np.sqrt(chance / 239)


def assert_no_trace_in_rows(folder, some):
    """A stored submission has a place and a body, and the place is not in the order of arrival."""
    link = sqlite3.connect(folder.path / "proxy.db", timeout=60)
    try:
        columns = [row[1] for row in link.execute("PRAGMA table_info(reports_0)")]
        assert columns == ["place", "body"]
        rows = link.execute("SELECT place, body FROM reports_0 ORDER BY place").fetchall()
        seen = [row[1] for row in link.execute("PRAGMA table_info(seen)")]
        assert seen == ["round", "account", "mark"]
    finally:
        link.close()
    arrival = {b"".join(device.records(0)): n for n, device in enumerate(some)}
    order = [arrival[bytes(body)] for _, body in rows]
    assert len(order) == len(some)
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.7


def test_answers_have_one_length_whoever_asks(tmp_path):
    """And the accepted ones say nothing at all."""
    with proxied(tmp_path) as (server, folder), App(folder, hold_seconds=60) as app:
        opened(app)
        lengths = set()
        for device in devices(app, server, 4):
            payload = device.submission(0)
            lengths.add(len(payload))
            got = app.submit(payload)
            assert (got.status, got.headers, got.body) == (204, {}, b"")
        assert len(lengths) == 1


# --- against the process --------------------------------------------------------------------------


class Raw:
    """Requests as bytes on one connection."""

    def __init__(self, folder, port):
        self.port, self.context = port, device_context(authority_pem(folder.keys))
        self.link = None

    def ask(self, payload):
        for turn in (0, 1):
            try:
                if self.link is None:
                    raw = socket.create_connection(("127.0.0.1", self.port), timeout=120)
                    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.link = self.context.wrap_socket(raw, server_hostname="127.0.0.1")
                return self._ask(payload)
            except (OSError, ssl.SSLError, ValueError):
                self.close()
                if turn:
                    raise
        raise AssertionError

    def _ask(self, payload):
        head = b"POST /v1/submissions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        self.link.sendall(head % len(payload) + payload)
        answer = self.link.recv(65536)
        status = int(answer[9:12])
        top, _, body = answer.partition(b"\r\n\r\n")
        size = int(top.lower().partition(b"content-length: ")[2].split(b"\r")[0] or 0)
        while len(body) < size:
            body += self.link.recv(65536)
        if b"connection: close" in top.lower():
            self.close()
        return status

    def close(self):
        if self.link is not None:
            with contextlib.suppress(OSError):
                self.link.close()
        self.link = None


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_wrong_inputs_against_the_process(tmp_path):
    with (
        proxied(tmp_path) as (server, folder),
        ProxyProcess(folder, hold_seconds=60.0) as proxy,
        Link(folder, proxy.port) as link,
    ):
        sender, other = (Device(server).enrol(link.ask) for _ in range(2))
        until(lambda: link.submit(sender.submission(0)).status in (204, 409))

        def send(seed):
            rng, raw = np.random.default_rng(seed), Raw(folder, proxy.port)
            wrong = wrong_inputs(rng, server, other, sender.submission(0))
            try:
                return Counter(raw.ask(next(wrong)) for _ in range(2_500))
            finally:
                raw.close()

        with ThreadPoolExecutor(8) as pool:
            statuses = sum(pool.map(send, range(8)), Counter())
            before = memory(proxy.process.pid)
            statuses += sum(pool.map(send, range(8, 40)), Counter())
        assert memory(proxy.process.pid) - before < 10 << 20
        assert set(statuses) - {429} == {400, 401, 409, 413, 426}, "429: two at once of one account"
        assert statuses.total() == 100_000
        assert link.submit(other.submission(0)).status == 204
        assert proxy.process.poll() is None
        assert "unforeseen" not in proxy.log.read_text()


def test_slow_garbled_and_oversized_connections(tmp_path):
    with proxied(tmp_path) as (server, folder):
        limits = {"body_seconds": 0.5, "connections": 10}
        with ProxyProcess(folder, limits=limits) as proxy, Link(folder, proxy.port) as link:
            device = Device(server).enrol(link.ask)
            until(lambda: link.submit(b"").status == 400)
            context = device_context(authority_pem(folder.keys))

            def raw(content):
                with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as plain:
                    tls = context.wrap_socket(plain, server_hostname="127.0.0.1")
                    with contextlib.suppress(OSError):
                        tls.sendall(content)
                        answer = tls.recv(4096)
                        tls.close()
                        return answer
                    return b""

            post = b"POST /v1/submissions HTTP/1.1\r\nhost: x\r\n"
            assert b" 400 " in raw(post + b"content-length: 277\r\n\r\nx"), "too slow"
            assert b" 413 " in raw(post + b"content-length: 1073741824\r\n\r\n" + bytes(1 << 20))
            chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
            assert b" 413 " in raw(post + b"transfer-encoding: chunked\r\n\r\n" + chunk * 2)
            assert b" 400 " in raw(b"\x16\x03\x01 nonsense\r\n\r\n")
            assert b" 400 " in raw(post + b"x: " + b"y" * 100_000)
            with socket.create_connection(("127.0.0.1", proxy.port)) as plain:
                plain.sendall(b"GET /health HTTP/1.1\r\n\r\n")
                plain.settimeout(5)
                with contextlib.suppress(OSError):
                    plain.recv(100)
            gzip = {"content-encoding": "gzip"}
            got = link.ask("POST", "/v1/submissions", b"\x1f\x8b" + bytes(275), gzip)
            assert got.status == 400, "nothing is unpacked"
            assert link.submit(device.submission(0)).status == 204


def memory(pid):
    with open(f"/proc/{pid}/statm") as source:
        return int(source.read().split()[1]) * resource.getpagesize()


def test_the_command(tmp_path, capsys):
    """First start from an introduction, a second one from the folder, and what goes wrong."""

    def fails(*arguments):
        code = call(["serve", "shuffler", *map(str, arguments)])
        return code, capsys.readouterr().err

    with proxied(tmp_path) as (server, _):
        write_introduction(tmp_path / "town.json", server.introduction())
        folder = tmp_path / "mixer"
        for arguments in (["--introduction", tmp_path / "town.json", "--goal", "1=5"], []):
            process = subprocess.Popen(
                sottovoce_command("serve", "shuffler", folder, "--port=0", *arguments),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            try:
                assert process.stdout.readline().startswith("The shuffler listens at https://127.")
                ready = json.loads((folder / "proxy.json").read_text())
                assert ready["pid"] == process.pid
                code, words = fails(folder, "--port=0")
                assert (code, "another process" in words) == (7, True)
            finally:
                process.terminate()
                process.communicate(timeout=120)
            assert process.returncode == 0
            assert not (folder / "proxy.json").exists()
        assert os.stat(folder).st_mode & 0o077 == 0
        for path in folder.iterdir():
            if path.is_file() and path.suffix != ".lock":
                assert path.stat().st_mode & 0o077 == 0 or path.name == "terms.json"
        for arguments, code, words in [
            ([folder, "--introduction", tmp_path / "town.json"], 2, "holds a shuffler already"),
            ([folder, "--name", "example.org"], 2, "--introduction"),
            ([folder, "--goal", "many"], 2, "number of devices"),
            ([folder, "--goal", "7=5"], 2, "tier 7"),
            ([folder, "--goal", "5", "--goal", "6"], 2, "twice"),
            ([folder, "--plaintext", "--host", "0.0.0.0"], 2, "loopback"),
            ([tmp_path / "nowhere"], 7, "holds no shuffler"),
        ]:
            got = fails(*arguments, "--port=0")
            assert got[0] == code
            assert words in got[1]
        (folder / "proxy.db").rename(folder / "lost.db")
        assert "put it back" in fails(folder, "--port=0")[1]
