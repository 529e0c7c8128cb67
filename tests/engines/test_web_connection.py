"""A device's HTTP connection against servers that speak it well, badly, slowly or not to the end;
and what a client sends again, which is nothing that could count twice."""

import asyncio
import contextlib
import time
from socket import SO_RCVBUF, SOL_SOCKET, create_server

import httpcore2
import pytest
import uvloop

from sottovoce.engines import connection
from sottovoce.engines.client import Client
from sottovoce.engines.connection import Address, CountedStream, Timeouts, Traffic
from sottovoce.errors import Unreachable
from sottovoce.parties.leaving import Booked, let_go
from sottovoce.stores import keys

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LARGE = bytes(6_000_000)
"""More than the buffers of two sockets here."""
SOON = Timeouts(step=60.0, answer=60.0)


LOOPS = []


@pytest.fixture(autouse=True, params=[asyncio.new_event_loop, uvloop.new_event_loop])
def loops(request):
    """A device has Python's own, a service another."""
    LOOPS.append(request.param)
    yield
    LOOPS.pop()


class Server:
    """Answers each connection by `talk`, which gets the server, a reader and a writer."""

    def __init__(self, talk):
        self.talk, self.connections, self.heads, self.bodies = talk, 0, [], []
        self.go = asyncio.Event()

    async def request(self, reader):
        """The next request, read to its end."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = [v for k, _, v in (x.partition(": ") for x in head.split("\r\n")) if "Len" in k]
        self.heads.append(head.split(" ")[1])
        self.bodies.append(await reader.readexactly(int(length[0]) if length else 0))
        return self.heads[-1]

    async def _serve(self, reader, writer):
        self.connections += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self.talk(self, reader, writer)
            writer.close()
        except asyncio.CancelledError:  # the test is over
            writer.transport.abort()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()


def visit(talk, do, timeouts=SOON, *, longest=900.0, folder=None):
    """What `do` finds with the server and a client of it; over TLS with the keys of a folder."""

    async def main():
        server = Server(talk)
        socket = create_server(("127.0.0.1", 0))
        socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 1 << 16)
        context = None if folder is None else keys.server_context(folder)
        there = await asyncio.start_server(server._serve, sock=socket, ssl=context)
        at = f"127.0.0.1:{there.sockets[0].getsockname()[1]}"
        trusted = "" if folder is None else keys.authority_pem(folder)
        url = f"{'https' if trusted else 'http'}://{at}"
        client = Client(url, trusted, plaintext=not trusted, timeouts=timeouts, longest=longest)
        found = await do(server, client)
        await client.rest()
        there.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.wait(rest or {asyncio.ensure_future(asyncio.sleep(0))})
        return found

    with asyncio.Runner(loop_factory=LOOPS[-1]) as runner:
        return runner.run(main())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("keys")
    keys.init_keys(made)
    return made


def says(raw, *, then=None):
    """A server that reads each request and sends these bytes; then it closes, or does `then`."""

    async def talk(server, reader, writer):
        await server.request(reader)
        writer.write(raw)
        await writer.drain()
        if then is not None:
            await then(server)

    return talk


async def politely(server, reader, writer):
    while True:
        path = (await server.request(reader)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(path), path))
        await writer.drain()


async def forever(server=None):
    await asyncio.sleep(3600)


async def one(server, client):
    return await client.get("/")


async def over(client):
    """Whether a connection is no longer used, soon."""
    end = time.monotonic() + 600.0
    while client._kept is not None and not client._kept.has_expired() and time.monotonic() < end:
        await asyncio.sleep(0.01)
    return client._kept is None or client._kept.has_expired()


def gone(body):
    return let_go(body, Booked((0,), "report", len(body), 0.0))


# --- answers -------------------------------------------------------------------------------------


def test_a_request_goes_out_in_one_piece_with_these_headers_alone():
    """All devices look alike: neither a program nor its release is named, and nothing is asked
    for that a device does not check."""
    heard = []

    async def listen(server, reader, writer):
        while True:
            heard.append(await reader.read(65536))
            writer.write(OK)

    async def ask(server, client):
        await client.get("/a")
        await client.get("/b", packed=True)
        await client.post("/c", gone(b"body"), headers={"digest": "x"})
        return client._address.named

    at = visit(listen, ask)
    assert heard == [
        f"GET /a HTTP/1.1\r\nHost: {at}\r\n\r\n".encode(),
        f"GET /b HTTP/1.1\r\nHost: {at}\r\naccept-encoding: zstd\r\n\r\n".encode(),
        f"POST /c HTTP/1.1\r\nHost: {at}\r\ndigest: x\r\nContent-Length: 4\r\n\r\nbody".encode(),
    ]


def test_a_server_may_answer_and_hang_up_before_it_has_read_everything(folder):
    refusal = b"HTTP/1.1 413 Large\r\ncontent-length: 3\r\n\r\nno!"

    async def refuse(server, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(refusal)
        await writer.drain()
        writer.transport.abort()

    async def post(server, client):
        answer = await client.post("/", gone(LARGE))
        return answer.status, answer.body, await over(client)

    for place in (None, folder):
        for _ in range(3):
            assert visit(refuse, post, folder=place) == (413, b"no!", True)


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc"]
)
def test_a_server_that_stops_is_left(raw):
    async def wait(server, client):
        with pytest.raises(Unreachable, match=r"broke off|did not answer in time"):
            await client.get("/")
        return client._kept

    assert not visit(says(raw, then=forever), wait, Timeouts(step=60.0, answer=0.1))


def test_a_server_that_reads_nothing_is_left(monkeypatch):
    monkeypatch.setattr(connection, "SLOWEST_LINE", 10 * len(LARGE))  # else that is three minutes

    async def deaf(server, reader, writer):
        writer.transport.pause_reading()
        await forever()

    async def push(server, client):
        with pytest.raises(Unreachable, match="did not answer in time"):
            await client.post("/", gone(LARGE))

    visit(deaf, push, Timeouts(step=0.1, answer=60.0))


@pytest.mark.parametrize("drop", [b"x", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_a_server_that_drips_cannot_hold_a_device(drop):
    """Each drop comes in time; the whole does not."""

    async def drip(server, reader, writer):
        await server.request(reader)
        writer.write(b"" if drop[:4] == b"HTTP" else b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.02)

    async def get(server, client):
        with pytest.raises(Unreachable):
            await client.get("/")
        return len(server.heads)

    assert visit(drip, get, longest=1.0) == 1


# --- connections that were kept ------------------------------------------------------------------


def test_a_connection_that_was_closed_or_says_something_by_itself_is_not_used_again(monkeypatch):
    async def later(server, client):
        await client.get("/")
        first = client._line is not None
        server.go.set()
        before = first and await over(client)
        await client.get("/")
        return first, before, server.connections

    async def told(server):
        await server.go.wait()

    assert visit(says(OK, then=told), later) == (True, True, 2)
    closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"
    assert visit(says(closing, then=forever), later) == (False, False, 2)
    assert visit(says(OK + OK, then=forever), later) == (False, False, 2)
    monkeypatch.setattr(connection, "_KEPT_SECONDS", 0.05)
    assert visit(says(OK, then=forever), later) == (True, True, 2)


def test_a_second_answer_is_not_taken_for_the_next_requests(folder):
    async def talk(server, reader, writer):
        path = (await server.request(reader)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n%s" % path * 2)
        await writer.drain()
        await forever()

    async def two(server, client):
        said = [(await client.get(path)).body for path in ("/a", "/b")]
        return said, server.connections

    for place in (None, folder):
        assert visit(talk, two, longest=5.0, folder=place) == ([b"/a", b"/b"], 2)


class Waiting(httpcore2.AsyncMockStream):
    """Gives the next part of what comes some steps of the event loop later; of nothing, never."""

    def __init__(self, parts, steps=0):
        super().__init__(parts)
        self.parts, self.steps = parts, steps

    async def read(self, max_bytes, timeout=None):
        for _ in range(self.steps):
            await asyncio.sleep(0)
        if not self.parts:
            await forever()
        return await super().read(max_bytes, timeout)


@pytest.mark.parametrize(
    ("stream", "quiet"),
    [
        (lambda: Waiting([]), True),
        (lambda: Waiting([b"a record of TLS that came with the one before"]), False),
        (lambda: Waiting([b"what the socket had at hand"], steps=1), False),
        (lambda: httpcore2.AsyncMockStream([]), False),  # it was closed
    ],
)
def test_what_came_behind_an_answer_and_was_not_read_yet_is_heard(stream, quiet):
    async def look():
        line = CountedStream(stream(), Traffic())
        found = await line.is_quiet()
        await line.aclose()
        return found

    with asyncio.Runner(loop_factory=LOOPS[-1]) as runner:
        assert runner.run(look()) == quiet


def test_nothing_is_sent_over_a_connection_that_the_server_closed_meanwhile():
    async def post(server, client):
        await client.get("/a")
        assert await over(client)
        await client.post("/b", gone(b"body"), once=True)
        return server.heads, server.connections

    assert visit(says(OK), post, longest=5.0) == (["/a", "/b"], 2)


def cuts(number):
    """A server that reads the request of this number and hangs up."""

    async def talk(server, reader, writer):
        while True:
            await server.request(reader)
            if len(server.heads) == number:
                return
            writer.write(OK)
            await writer.drain()

    return talk


@pytest.mark.parametrize(
    ("number", "once", "sent"),
    [
        (1, False, 1),  # over a new connection: the server has it, perhaps
        (2, True, 1),
        (2, False, 2),  # over a kept one: what counts once is sent again
    ],
)
def test_what_was_cut_off_is_sent_again_only_where_that_is_safe(number, once, sent):
    async def post(server, client):
        if number == 2:
            await client.get("/before")
        try:
            await client.post("/b", gone(b"body"), once=once)
        except Unreachable:
            return False, server.bodies.count(b"body")
        return True, server.bodies.count(b"body")

    assert visit(cuts(number), post, longest=5.0) == (sent == 2, sent)


@pytest.mark.parametrize("raw", [b"", b"what?\r\n\r\n"])
def test_what_was_answered_late_or_badly_is_never_sent_again(raw):
    async def talk(server, reader, writer):
        while await server.request(reader) != "/b":
            writer.write(OK)
        writer.write(raw)
        await forever()

    async def post(server, client):
        await client.get("/a")
        with pytest.raises(Unreachable):
            await client.post("/b", gone(b"body"))
        return server.bodies.count(b"body"), server.connections

    assert visit(talk, post, Timeouts(step=5.0, answer=0.1), longest=5.0) == (1, 1)


def test_requests_at_once_take_turns_on_one_connection():
    async def many(server, client):
        paths = [f"/{n}" for n in range(20)]
        answers = await asyncio.gather(*(client.get(path) for path in paths))
        return [a.body.decode() for a in answers] == paths, server.connections

    assert visit(politely, many, longest=5.0) == (True, 1)


@pytest.mark.parametrize(
    ("path", "headers"), [("/a b", {}), ("/ä", {}), ("/a\r\nX: y", {}), ("/", {"x": "a\r\nb: c"})]
)
def test_nothing_is_smuggled_into_a_request(path, headers):
    async def ask(server, client):
        with pytest.raises(Unreachable, match="cannot be asked for that"):
            await client.post(path, gone(b""), headers=headers)
        return (await client.get("/good")).body, server.heads

    assert visit(politely, ask) == (b"/good", ["/good"])


# --- addresses -----------------------------------------------------------------------------------


def test_addresses():
    assert Address.of("https://[::1]:8443/a").named == "[::1]:8443"
    assert Address.of("http://Example.ORG").named == "example.org"
    assert Address.of("https://bücher.example").host == "xn--bcher-kva.example"
    for bad in ("", "x", "ftp://a", "https://", "https://a:b", "https://a:99999", "https://a?b",
                "https://a#b", "https://[::1", "https://" + "ä" * 70 + ".example"):  # fmt: skip
        with pytest.raises(ValueError):
            Address.of(bad)
