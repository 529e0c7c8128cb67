"""Honest visitors are answered while strangers hold what a server has: its room for messages, its
descriptors, its connections. Small sieges of a small server here; slow ones at full size."""

import contextlib
import os
import resource
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from server_world import (
    SEED,
    Client,
    Fleet,
    ServerProcess,
    authority_pem,
    create_folder,
    device_context,
    quick_rules,
)
from siege_world import Siege, descriptors, resident, timed, visit

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.messages import GRID, DeviceReports
from sottovoce.engines.flower.gateway import find_nginx
from sottovoce.engines.processes import free_port
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.wire.reports import encode_report, longest_report
from sottovoce.wire.signing import DIGEST_HEADER, OVERHEAD, digest_of
from sottovoce.wire.terms import Terms

ENOUGH = 0.99
MANY = tuple(f"127.0.0.{n}" for n in range(2, 10))
BALANCER = "127.0.0.100"
DEPLOY = Path(__file__).parents[2] / "deploy"
HEALTH = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


class Town:
    """A server whose reports can be long, and devices that send the longest."""

    def __init__(self, path, items, **options):
        self.items, self.terms = items, long_terms(items)
        self.longest = OVERHEAD + longest_report(items, self.terms.width)
        catalogue = [(f"v{n}", f"Venue {n}") for n in range(items)]
        self.folder = create_folder(
            path,
            self.terms,
            catalogue,
            cohort_size="all",
            rounds=3,
            root_key=Streams.from_seed(SEED).key,
            rules=quick_rules(deadline_seconds=600.0),
        )
        limits = options.pop("limits", lambda longest: {})(self.longest)
        self.server = ServerProcess(path, limits=limits)
        self.context = device_context(authority_pem(self.folder.keys))
        self.fleet = Fleet()
        with self.client() as client:
            self.fleet.enrol(self.folder, client)
            client.wait(round=0, state="open")
        self.reports = [self._report(number) for number in range(7)]

    def _report(self, number):
        """As long as an honest one can be."""
        rng, n = np.random.default_rng(number), self.items
        most = int(127 * GRID)
        values = rng.integers(-most, most, (n, self.terms.width))
        item = np.arange(n, dtype=np.int32)
        body = encode_report(DeviceReports(0, np.full(n, number), item, values))
        return self.fleet.sealed(number, 0, 0, body)

    def client(self):
        return Client(self.folder, self.server.port)

    def report(self, announced=True):
        """Devices report, again and again: the first time counts, then it is known."""

        def ask(n):
            body = self.reports[n % len(self.reports)]
            headers = {DIGEST_HEADER: digest_of(body)} if announced else {}
            return visit(
                self.server.port, self.context, "POST", "/v1/reports", body, headers, (204, 409)
            )

        return ask

    def look(self, n):
        return visit(self.server.port, self.context, path="/v1/round")

    def begin(self, count, **options):
        """Strangers that announce the longest report."""
        head = f"POST /v1/reports HTTP/1.1\r\nhost: x\r\ncontent-length: {self.longest}\r\n\r\n"
        return Siege("bodies", count, first=head, **options)


def long_terms(items):
    settings = FPLConfig(embedding_size=20, triples=items // 2)
    return Terms.of("little-town", items, settings, items // 2, ShareFraction())


def held_out(siege, port, ask, count, every, share=0.9):
    """How honest visitors fare while the siege goes on."""
    quiet = timed(ask, max(8, count // 4), every)
    with siege.against(port) as last:
        siege.begun(last, share)
        found = timed(ask, count, every, quiet=quiet)
        said = last()
    print(f"{siege.kind} × {siege.count}: {found}; before: {quiet}; strangers: {said}")
    return found


def nothing_left(town, before):
    """Of those that were cut, or have gone."""
    pid, end = town.server.process.pid, time.monotonic() + 600
    while descriptors(pid) > before + 10 and time.monotonic() < end:
        time.sleep(0.1)
    assert descriptors(pid) <= before + 10


# --- small ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    def limits(longest):
        return {
            "in_flight": 31 * longest,
            "unproven": 8 * longest,
            "unproven_per_address": 2 * longest,
            "connections": 200,
            "per_address": 50,
            "handshake_seconds": 5.0,
            "behind": [BALANCER],
        }

    made = Town(tmp_path_factory.mktemp("town"), 500, limits=limits)
    with made.server:
        yield made


def test_strangers_that_announce_reports_keep_none_out(town):
    found = held_out(town.begin(40, body=16, seconds=20), town.server.port, town.report(), 20, 0.05)
    assert found.share >= ENOUGH, found


def test_strangers_that_send_almost_all_of_their_reports_keep_no_device_out(town):
    """They fill the room for messages of which nobody knows whose they are. A device announces its
    report, and has other room."""
    siege = town.begin(40, addresses=MANY, body=town.longest - 1, seconds=30)
    found = held_out(siege, town.server.port, town.report(), 20, 0.05)
    assert found.share >= ENOUGH, found


@pytest.mark.parametrize("kind", ["silent", "begin"])
def test_connections_that_never_begin_tls_take_no_descriptors(town, kind):
    pid, port = town.server.process.pid, town.server.port
    before = descriptors(pid)
    limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, limit[1]))
    siege, quiet = Siege(kind, 1200, MANY[:6], seconds=20, most=2400), timed(town.look, 8, 0.05)
    try:
        with siege.against(port) as last:
            siege.begun(last)
            found, most = timed(town.look, 20, 0.05, quiet=quiet), descriptors(pid)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
    assert found.share >= ENOUGH, found
    assert most - before <= 200 + 40
    nothing_left(town, before)


@pytest.mark.parametrize("addresses", [MANY[:1], MANY])
def test_idle_connections_keep_nobody_out(town, addresses):
    before = descriptors(town.server.process.pid)
    siege = Siege("idle", 400, addresses, seconds=30, most=600, first=HEALTH)
    found = held_out(siege, town.server.port, town.look, 20, 0.05)
    assert found.share >= ENOUGH, found
    nothing_left(town, before)


def test_strangers_behind_our_own_address_keep_us_out_no_more_than_others(town):
    siege = Siege("idle", 100, ("127.0.0.1",), seconds=30, most=100, first=HEALTH)
    found = held_out(siege, town.server.port, town.look, 20, 0.05, share=1.0)
    assert found.share >= ENOUGH, found


def test_busy_connections_of_many_addresses_keep_nobody_out(town):
    """All that the server takes on wait for the rest of a message that does not come."""
    head = "POST /v1/enrol HTTP/1.1\r\nhost: x\r\ncontent-length: 4000\r\n\r\n"
    siege = Siege("bodies", 300, MANY, first=head, body=16, seconds=20, most=400)
    found = held_out(siege, town.server.port, town.look, 20, 0.05)
    assert found.share >= ENOUGH, found


def test_a_connection_that_is_answered_is_cut_for_nobody(town):
    """A device that has sent half of its report goes on when a siege is over it."""
    body = town.reports[0]
    with town.client() as slow:
        slow.get("/health")
        slow.link.putrequest("POST", "/v1/reports")
        slow.link.putheader("Content-Length", str(len(body)))
        slow.link.putheader(DIGEST_HEADER, digest_of(body))
        slow.link.endheaders(body[: len(body) // 2])
        siege = Siege("idle", 300, MANY, seconds=20, most=400, first=HEALTH)
        with siege.against(town.server.port) as last:
            siege.begun(last)
            slow.link.send(body[len(body) // 2 :])
            assert slow.link.getresponse().status in (204, 409)


def test_lengths_that_nobody_can_mean(town):
    """Digits without end, at every address that takes a body."""
    posts = ("/v1/reports", "/v1/checkin", "/v1/enrol", "/v1/operator/target", "/v1/batches")
    lengths = ["0" * 5000 + "2", "0" * 20_000, "9" * 5000, "1" + "0" * 5000]
    with town.client() as client:
        for path in posts:
            for length in lengths:
                with contextlib.suppress(OSError):
                    client.close()
                    client.get("/health")
                    client.link.putrequest("POST", path)
                    client.link.putheader("Content-Length", length)
                    client.link.endheaders(b"{}")
                    status = client.link.getresponse().status
                    assert 400 <= status < 500, (path, len(length), status)
        client.close()
        assert client.get("/health").status == 200
    assert "unforeseen" not in town.server.log.read_text()


# --- behind nginx ---------------------------------------------------------------------------------


@contextlib.contextmanager
def balancer(town, path, connections):
    """The shipped load balancer in front of the town, with so few connections; its port."""
    port = free_port()
    site = (DEPLOY / "nginx-https.conf").read_text()
    for shipped, here in [
        ("/var/lib/sottovoce/town/keys", str(town.folder.keys)),
        ("/var/log/nginx", str(path)),
        ("server-1:8443", f"127.0.0.1:{town.server.port}"),
        ("    server server-2:8443 fail_timeout=1s;\n", ""),
        ("listen 8443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("proxy_pass", f"proxy_bind {BALANCER}; proxy_pass"),
    ]:
        assert shipped in site
        site = site.replace(shipped, here)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = " ".join(f"{kind}_temp_path {path}/{kind};" for kind in kinds)
    own = "user root; " if os.geteuid() == 0 else ""
    own += f"daemon off; worker_processes 1; pid {path}/pid; error_log {path}/error.log;"
    config = path / "nginx.conf"
    config.write_text(
        f"{own} events {{ worker_connections {connections}; }} http {{ {places}\n{site} }}"
    )
    command = [find_nginx(), "-c", config, "-e", path / "error.log"]
    process = subprocess.Popen(list(map(str, command)))
    try:
        end = time.monotonic() + 600
        while not listens(port):
            assert process.poll() is None, (path / "error.log").read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=120)


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed")
def test_nginx_as_shipped_holds_out_too(town, tmp_path):
    """Silent and idle strangers may be more than it has connections; of those that begin to send
    bodies it must have room for more (docs/deploy/limits.md), since it cannot cut these in favour
    of others. The server behind it knows it as a proxy, and would let no other address have so
    many."""
    enrol = "POST /v1/enrol HTTP/1.1\r\nhost: x\r\ncontent-length: 4000\r\n\r\n"
    for connections, siege in (
        (512, Siege("silent", 700, MANY[:1], seconds=30)),
        (512, Siege("idle", 700, MANY[:1], seconds=30, first=HEALTH)),
        (1024, Siege("bodies", 700, MANY[:1], seconds=30, most=4000, first=enrol, body=16)),
    ):
        place = tmp_path / siege.kind
        place.mkdir()
        with balancer(town, place, connections) as port:

            def look(n, port=port):
                return visit(port, town.context, path="/v1/round")

            found = held_out(siege, port, look, 20, 0.05)
            assert found.share >= ENOUGH, (siege.kind, found)


# --- at full size ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def city(tmp_path_factory):
    """With the limits that are shipped, and reports of 4.3 MB."""
    made = Town(tmp_path_factory.mktemp("city"), 25_000)
    with made.server:
        yield made


@pytest.mark.slow
def test_a_full_siege_by_announced_reports(city):
    assert city.longest > 4 << 20
    found = held_out(city.begin(32, body=16, seconds=60), city.server.port, city.report(), 100, 0.2)
    assert found.share >= ENOUGH, found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["silent", "begin"])
def test_a_full_siege_by_silence(city, kind):
    pid = city.server.process.pid
    siege, quiet = Siege(kind, 19_000, MANY, seconds=120, most=25_000), timed(city.look, 25)
    before = resident(pid)
    with siege.against(city.server.port) as last:
        siege.begun(last, 0.2)
        held = last()["held"]
        assert held > 2000
        each = (resident(pid) - before) / held
        found, most = timed(city.look, 100, 0.1, quiet=quiet), descriptors(pid)
    print(f"{kind}: {found}; {each:,.0f} bytes each, {most} descriptors")
    assert found.share >= ENOUGH, found
    assert each <= 16_000
    assert most < 4000 + 200


@pytest.mark.slow
@pytest.mark.parametrize("addresses", [MANY[:1], MANY])
def test_a_full_siege_by_idleness(city, addresses):
    siege = Siege("idle", 4200, addresses, seconds=120, most=8000, first=HEALTH)
    found = held_out(siege, city.server.port, city.look, 100, 0.1)
    assert found.share >= ENOUGH, found
