"""One HTTP connection of a device against servers that speak it well, badly, slowly or not to the
end; and what a client sends again, which is nothing that could count twice."""

import asyncio
import contextlib
import time
from socket import SO_RCVBUF, SOL_SOCKET, create_server

import pytest
import uvloop

from sottovoce.engines import connection
from sottovoce.engines.client import Client
from sottovoce.engines.connection import Address, Closed, NotHttp, Timeouts, WebConnection
from sottovoce.errors import Unreachable
from sottovoce.parties.leaving import Booked, let_go

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


def visit(talk, do, timeouts=SOON, **options):
    """What `do` finds, with the server and a connection or, with `client`, a client."""

    async def main():
        server = Server(talk)
        socket = create_server(("127.0.0.1", 0))
        socket.setsockopt(SOL_SOCKET, SO_RCVBUF, 1 << 16)
        there = await asyncio.start_server(server._serve, sock=socket)
        url = f"http://127.0.0.1:{there.sockets[0].getsockname()[1]}"
        if options:
            client = Client(url, "", plaintext=True, timeouts=timeouts, **options)
            found = await do(server, client)
            await client.rest()
        else:
            client = await WebConnection.open(Address.of(url), None, timeouts)
            found = await do(server, client)
            client.drop()
        there.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.wait(rest or {asyncio.ensure_future(asyncio.sleep(0))})
        return found

    with asyncio.Runner(loop_factory=LOOPS[-1]) as runner:
        return runner.run(main())


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


async def answer(to, path="/", body=b""):
    length = [("Content-Length", str(len(body)))] if body else []
    await to.ask("POST" if body else "GET", path, [("Host", "x"), *length], body)
    head = await to.head()
    return head, b"".join([part async for part in to.parts()])


async def one(server, to):
    return await answer(to)


async def over(to):
    """Whether a connection is no longer used, soon."""
    end = time.monotonic() + 60.0
    while to.ready and time.monotonic() < end:
        await asyncio.sleep(0.01)
    return not to.ready


def gone(body):
    return let_go(body, Booked((0,), "report", len(body), 0.0))


# --- answers -------------------------------------------------------------------------------------


def test_a_connection_is_used_again_and_counts_what_it_sends():
    async def three(server, to):
        said = []
        for path in ("/a", "/b", "/c"):
            assert to.ready
            said.append((await answer(to, path, LARGE if path == "/b" else b""))[1])
        sent = await to.ask("GET", "/d", [("Host", "x")], b"")
        assert not to.ready
        return said, sent, server.connections, len(server.bodies[1])

    sent = len(b"GET /d HTTP/1.1\r\nHost: x\r\n\r\n")
    assert visit(politely, three) == ([b"/a", b"/b", b"/c"], sent, 1, len(LARGE))


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n",
         b"ok"),
        (b"HTTP/1.0 200 OK\r\n\r\nup to the end", b"up to the end"),
        (b"HTTP/1.1 204 None\r\n\r\n", b""),
    ],
)  # fmt: skip
def test_every_way_to_write_an_answer_is_read(raw, body):
    head, content = visit(says(raw), one)
    assert (head.status // 100, content) == (2, body)


def test_headers_of_one_name_are_one():
    raw = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\ncontent-length: 0\r\n\r\n"
    assert visit(says(raw), one)[0].headers["x-a"] == "1, 2"


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"\0" * 300,
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 10**6 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10**5 + b"\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nokk",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"f" * 10**5,
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ntoo few",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
    ],
)
def test_what_is_no_answer_is_an_error_and_the_connection_is_over(raw):
    async def bad(server, to):
        with pytest.raises(NotHttp):
            await answer(to)
        return to.ready

    assert visit(says(raw), bad) is False


def test_a_server_that_hangs_up_without_a_word():
    async def cut(server, to):
        for raised in (Closed, OSError):
            with pytest.raises(raised):
                await to.head()
        return to.ready

    async def ask_first(server, to):
        await to.ask("GET", "/", [("Host", "x")], b"")
        return await cut(server, to)

    assert visit(says(b""), ask_first) is False


def test_a_server_may_answer_and_hang_up_before_it_has_read_everything():
    refusal = b"HTTP/1.1 413 Large\r\ncontent-length: 3\r\n\r\nno!"

    async def refuse(server, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(refusal)
        await writer.drain()

    async def post(server, to):
        head, body = await answer(to, "/", LARGE)
        return head.status, body, await over(to)

    for _ in range(5):
        assert visit(refuse, post) == (413, b"no!", True)


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc"]
)
def test_a_server_that_stops_is_left(raw):
    async def wait(server, to):
        with pytest.raises(TimeoutError):
            await answer(to)
        return to.ready

    assert not visit(says(raw, then=forever), wait, Timeouts(step=60.0, answer=0.1))


def test_a_server_that_reads_nothing_is_left():
    async def deaf(server, reader, writer):
        writer.transport.pause_reading()
        await forever()

    async def push(server, to):
        with pytest.raises(TimeoutError):
            await answer(to, "/", LARGE)

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
    async def later(server, to):
        await answer(to)
        first = to.ready
        server.go.set()
        return first, await over(to)

    async def told(server):
        await server.go.wait()

    assert visit(says(OK, then=told), later) == (True, True)
    closing = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"
    assert visit(says(closing, then=forever), later) == (False, True)
    assert visit(says(OK + OK, then=forever), later) == (False, True)
    monkeypatch.setattr(connection, "_KEPT_SECONDS", 0.05)
    assert visit(says(OK, then=forever), later) == (True, True)


def test_a_second_answer_is_not_taken_for_the_next_requests():
    async def talk(server, reader, writer):
        path = (await server.request(reader)).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n%s" % path * 2)
        await writer.drain()
        await forever()

    async def two(server, client):
        said = [(await client.get(path)).body for path in ("/a", "/b")]
        return said, server.connections

    assert visit(talk, two, longest=5.0) == ([b"/a", b"/b"], 2)


def test_nothing_is_sent_over_a_connection_that_the_server_closed_meanwhile():
    async def post(server, client):
        await client.get("/a")
        assert client._kept is None or await over(client._kept)
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
    ("path", "headers"), [("/a b", []), ("/ä", []), ("/a\r\nX: y", []), ("/", [("x", "a\r\nb: c")])]
)
def test_nothing_is_smuggled_into_a_request(path, headers):
    async def ask(server, to):
        with pytest.raises(ValueError, match="cannot be made"):
            await to.ask("GET", path, [("Host", "x"), *headers], b"")
        assert to.ready
        return (await answer(to, "/good"))[1], server.heads

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
