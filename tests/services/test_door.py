"""The door of a service: who is let in, who has to go, and what it costs. A listener in a thread,
before a little application; 127.0.0.x play several addresses."""

import asyncio
import contextlib
import http.client
import resource
import socket
import ssl
import threading
import time

import numpy as np
import pytest
import uvloop
from talk import until

from sottovoce.errors import UsageError
from sottovoce.services.kit.connections import reverse_proxies
from sottovoce.services.kit.protocol import BoundedProtocol
from sottovoce.services.kit.serving import HttpListener, listen
from sottovoce.services.server.application import ServerLimits as Limits
from sottovoce.stores.keys import authority_pem, device_context, init_keys, server_context
from sottovoce.wire.refusals import RefusalCounts

SOON = 60.0


class Answering:
    """An application that answers when all of a body is here, and can be made to wait itself."""

    def __init__(self):
        self.senders, self.crowded = [], []
        self.go = None

    async def __call__(self, scope, receive, send):
        self.senders.append(scope["sender"])
        self.crowded.append(scope["crowded"])
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == "/wait":
            await self.go.wait()
        headers = [(b"content-length", b"2")]
        status = 503 if scope["crowded"] else 200
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


class House:
    """A listener with these limits."""

    def __init__(self, keys=None, **limits):
        self.limits, self.tally, self.application = Limits(**limits), RefusalCounts(), Answering()
        self.context = None if keys is None else server_context(keys)
        self.socket = listen("127.0.0.1", 0)
        self.port = self.socket.getsockname()[1]
        self.trust = None if keys is None else device_context(authority_pem(keys))
        self._links, self.unforeseen = [], []

    def __enter__(self):
        ready = threading.Event()

        async def serve():
            self.loop = asyncio.get_running_loop()
            self.loop.set_exception_handler(lambda loop, context: self.unforeseen.append(context))
            self.application.go = asyncio.Event()
            self.listener = HttpListener(
                self.application, self.limits, self.context, self.tally, ready.set
            )
            await self.listener.serve(sockets=[self.socket])

        self.thread = threading.Thread(target=lambda: uvloop.run(serve()), daemon=True)
        self.thread.start()
        assert ready.wait(SOON)
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.listener.stop)
        self.thread.join(SOON)
        assert not self.thread.is_alive(), "it ends although connections are open"
        for link in self._links:
            link.close()
        assert self.unforeseen == []

    def connect(self, address="127.0.0.1"):
        link = socket.create_connection(
            ("127.0.0.1", self.port), timeout=SOON, source_address=(address, 0)
        )
        self._links.append(link)
        return link

    def ask(self, link, path="/", more=""):
        link.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\n{more}\r\n".encode())
        return link

    def idle(self, address="127.0.0.1"):
        """One that was answered."""
        link = self.ask(self.connect(address), more="content-length: 0\r\n")
        assert status(link) == 200
        return link

    def busy(self, address="127.0.0.1"):
        """One that is waited for."""
        before = len(self.application.senders)
        link = self.ask(self.connect(address), more="content-length: 9\r\n")
        until(lambda: len(self.application.senders) > before)
        return link

    def count(self):
        return self.listener.servers[0]._count


def status(link):
    """Of the answer, or None where the connection was cut."""
    try:
        got = link.recv(4096)
    except ConnectionResetError:
        return None
    return int(got[9:12]) if got else None


def is_open(link):
    link.setblocking(False)
    try:
        return bool(link.recv(1))
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    finally:
        link.settimeout(SOON)


def test_the_longest_idle_of_an_address_gives_way_to_its_newcomers():
    with House(connections=50, per_address=3) as house:
        links = [house.idle() for _ in range(3)]
        links[0] = house.ask(links[0], more="content-length: 0\r\n")
        assert status(links[0]) == 200
        links.append(house.idle())
        until(lambda: not is_open(links[1]))
        assert [is_open(link) for link in links] == [True, False, True, True]
        other = house.idle("127.0.0.2")
        assert [is_open(link) for link in (*links, other)] == [True, False, True, True, True]
        assert house.count() == 4


@pytest.mark.parametrize("limits", [{"per_address": 1}, {"connections": 1}])
def test_the_only_connection_of_an_address_gives_way_to_its_next(limits):
    with House(**limits) as house:
        first, second = house.idle(), house.idle()
        until(lambda: not is_open(first))
        assert is_open(second)
        assert house.count() == 1


def test_nobody_is_forgotten_or_counted_twice():
    rng = np.random.default_rng(3)
    with House(connections=9, per_address=3, handshake_seconds=0.3) as house:
        links = []
        for turn in range(400):
            what = rng.integers(4)
            address = f"127.0.0.{rng.integers(2, 8)}"
            if what == 0 and links:
                links.pop(rng.integers(len(links))).close()
                continue
            links.append(house.connect(address))
            if what > 1:
                with contextlib.suppress(OSError):
                    house.ask(links[-1], more=f"content-length: {9 * (what - 2)}\r\n")
            if turn % 20 == 0:
                time.sleep(0.01)
        for link in links:
            link.close()
        until(lambda: house.count() == 0)
        door = house.listener.servers[0]
        assert (door._senders, door._sizes, door._greeting) == ({}, [{}], {})


@pytest.mark.parametrize("secure", [False, True])
def test_one_that_has_to_go_as_it_is_greeted_leaves_no_request_behind(
    monkeypatch, tmp_path, secure
):
    """The newcomer is let in and cut within one turn of the loop, its request under way."""
    greeted = BoundedProtocol.connection_made

    def made(self, transport):
        greeted(self, transport)
        self.door._drop(self.visitor)

    monkeypatch.setattr(BoundedProtocol, "connection_made", made)
    if secure:
        init_keys(tmp_path, ["127.0.0.1"])
    with House(tmp_path if secure else None) as house:
        for _ in range(5):
            link = house.connect()
            with contextlib.suppress(OSError):
                if secure:
                    link = house.trust.wrap_socket(link, server_hostname="127.0.0.1")
                house.ask(link, more="content-length: 9\r\n")
                assert status(link) is None
            link.close()
        until(lambda: house.count() == 0)
        state = house.listener.server_state
        until(lambda: not state.tasks and not state.connections)


def test_the_busy_of_an_address_stay_and_its_newcomers_go():
    with House(connections=50, per_address=3) as house:
        links = [house.busy() for _ in range(3)]
        assert status(house.connect()) is None
        with house.tally.settled() as counts:
            assert counts == {"overload": 1}
        assert all(is_open(link) for link in links)
        links[1].sendall(bytes(9))
        assert status(links[1]) == 200
        house.idle()
        until(lambda: not is_open(links[1]))


def test_who_has_most_gives_way_where_there_are_too_many():
    with House(connections=10, per_address=8) as house:
        greedy = [house.idle("127.0.0.2") for _ in range(7)]
        modest = [house.idle("127.0.0.3") for _ in range(3)]
        newcomers = [house.idle(f"127.0.0.{n}") for n in range(4, 8)]
        until(lambda: sum(map(is_open, greedy)) == 3)
        assert all(map(is_open, [*modest, *newcomers]))
        assert greedy[:4] == [link for link in greedy if not is_open(link)]


def test_the_idle_go_before_the_busy_and_the_busy_of_who_has_most_before_nobody():
    with House(connections=6, per_address=5) as house:
        busy = [house.busy("127.0.0.2") for _ in range(5)]
        idle = house.idle("127.0.0.3")
        first = house.idle("127.0.0.4")
        until(lambda: not is_open(idle))
        assert all(map(is_open, busy))
        first.close()
        until(lambda: house.count() == 5)
        more = [house.busy(f"127.0.0.{n}") for n in range(5, 9)]
        until(lambda: sum(map(is_open, busy)) == 2)
        assert all(map(is_open, more))


def test_what_waits_for_us_is_not_cut_and_more_are_told_so():
    with House(connections=4, per_address=4) as house:
        ours = [house.ask(house.connect("127.0.0.2"), "/wait") for _ in range(4)]
        until(lambda: len(house.application.senders) == 4)
        extra = house.ask(house.connect(), more="content-length: 0\r\n")
        assert status(extra) == 503
        house.loop.call_soon_threadsafe(house.application.go.set)
        assert [status(link) for link in ours] == [200] * 4
        ours[0].close()
        until(lambda: house.count() == 4)
        assert status(house.ask(extra, more="content-length: 0\r\n")) == 200, "not for ever"


def test_the_number_above_the_limit_is_bounded():
    with House(connections=4, per_address=4) as house:
        for n in range(10, 14):
            house.ask(house.connect(f"127.0.0.{n}"), "/wait")
        until(lambda: len(house.application.senders) == 4)
        for n in range(14, 60):
            house.ask(house.connect(f"127.0.0.{n}"), "/wait")
        time.sleep(0.2)
        assert house.count() <= 4 + 16
        house.loop.call_soon_threadsafe(house.application.go.set)


def test_behind_a_reverse_proxy_there_is_no_limit_by_address():
    with House(connections=30, per_address=3, behind=("127.0.0.1", "127.0.9.0/24")) as house:
        links = [house.busy() for _ in range(8)] + [house.busy("127.0.9.5") for _ in range(8)]
        links += [house.idle() for _ in range(4)]
        assert all(map(is_open, links))
        assert len(set(house.application.senders)) == 20, "each has room in its own name"
        strangers = [house.idle("127.0.0.2") for _ in range(5)]
        until(lambda: sum(map(is_open, strangers)) == 3)
        assert all(map(is_open, links)), "nor is it cut for others"


def test_reverse_proxies_are_addresses_or_networks():
    assert reverse_proxies(None) == ()
    assert reverse_proxies(["10.0.0.1", "10.1.2.3/16", "2001:db8::/32"])[1] == "10.1.2.3/16"
    with pytest.raises(UsageError, match="--behind takes an address"):
        reverse_proxies(["nginx"])


def test_silence_is_cut_off_and_costs_nothing(tmp_path):
    init_keys(tmp_path / "keys")
    with House(tmp_path / "keys", handshake_seconds=2.0) as house:
        silent = house.connect()
        begun = house.connect()
        begun.sendall(b"\x16\x03\x01\x02\x00half a hello")
        before = time.process_time()
        began = time.monotonic()
        assert (status(silent), status(begun)) == (None, None)
        took = time.monotonic() - began
        assert time.process_time() - before < took / 2, "nobody looks at it again and again"
        until(lambda: house.count() == 0)


def test_a_handshake_that_stops_halfway_is_cut_off(tmp_path):
    init_keys(tmp_path / "keys")
    with House(tmp_path / "keys", handshake_seconds=0.5) as house:
        link = house.connect()
        link.sendall(hello(house.trust))
        while link.recv(65536):
            pass
        until(lambda: house.count() == 0)


def hello(context):
    """The first bytes of a client."""
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_a_hello_may_come_in_pieces(tmp_path):
    init_keys(tmp_path / "keys")
    with House(tmp_path / "keys") as house:
        link = house.connect()
        outgoing, incoming = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = house.trust.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        first = outgoing.read()
        for part in (first[:1], first[1:3], first[3:9], first[9:100], first[100:-1], first[-1:]):
            link.sendall(part)
            time.sleep(0.02)
        incoming.write(link.recv(65536))
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        assert client.version() == "TLSv1.3"


def test_without_tls_it_is_the_same():
    with House(handshake_seconds=0.5) as house:
        assert status(house.connect()) is None, "who says nothing is cut off"
        link = http.client.HTTPConnection("127.0.0.1", house.port, timeout=SOON)
        link.request("GET", "/")
        assert link.getresponse().status == 200
        link.close()


def test_it_ends_while_strangers_are_silent(tmp_path):
    init_keys(tmp_path / "keys")
    with House(tmp_path / "keys") as house:
        links = [house.connect() for _ in range(20)]
        links[0].sendall(hello(house.trust))
        until(lambda: house.count() == 20)
        house.loop.call_soon_threadsafe(house.listener.stop)
        assert [status(link) for link in links[1:]] == [None] * 19


def test_no_more_connections_than_files_may_be_open():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        with House(connections=4000) as house:
            most = house.listener.servers[0]._most
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert most == 300 - 256
