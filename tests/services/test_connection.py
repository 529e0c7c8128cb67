"""One HTTP connection, without a socket: what is written when, and what is waited for."""

import asyncio
import time

import pytest

from sottovoce.services.kit.answers import JSON, answer, publish, read_body, ready_answer
from sottovoce.services.kit.connections import BUSY, IDLE, Limits, PeerAddress, Visitor
from sottovoce.services.kit.documents import Document
from sottovoce.services.kit.protocol import PIPELINED, WRITE_BUFFER
from sottovoce.services.kit.serving import HttpListener
from sottovoce.wire.refusals import RefusalCounts

DOCUMENT = Document.of(b'{"round": 3}')
HEADERS = [JSON, (b"cache-control", b"public, max-age=5")]
GET = b"GET /ready HTTP/1.1\r\nhost: x\r\n"


class Line(asyncio.Transport):
    """Notes every write."""

    def __init__(self):
        super().__init__()
        self.writes, self.ended, self.reading = [], None, True

    @property
    def said(self):
        return b"".join(self.writes)

    def write(self, data):
        assert self.ended is None, "nothing is written after the end"
        self.writes.append(bytes(data))

    def is_closing(self):
        return self.ended is not None

    def close(self):
        self.ended = self.ended or "closed"

    def abort(self):
        self.ended = "aborted"

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def set_write_buffer_limits(self, high=None, low=None):
        assert high == WRITE_BUFFER


class Application:
    def __init__(self):
        self.asked, self.go = [], asyncio.Event()

    def at_hand(self, url):
        return ready_answer(DOCUMENT, HEADERS) if url == b"/ready" else None

    async def __call__(self, scope, receive, send):
        self.asked.append(scope["path"])
        if scope["path"] == "/wait":
            await self.go.wait()
        if scope["path"] == "/broken":
            raise ZeroDivisionError
        if scope["path"] == "/short":
            headers = [(b"content-length", b"5")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"four"})
        if scope["path"] == "/echo":
            await answer(send, 200, [], await read_body(scope, receive, 1 << 20, 5.0))
        else:
            await publish(scope, send, DOCUMENT, HEADERS)


class Door:
    crowded = False

    def crowds(self, visitor):
        return self.crowded

    def gone(self, visitor):
        pass


class Connection:
    def __init__(self, **limits):
        self.application, self.line, self.door = Application(), Line(), Door()
        listener = HttpListener(
            self.application, Limits(**limits), None, RefusalCounts(), lambda: None
        )
        self.tasks = listener.server_state.tasks
        self.protocol = listener.config.http_protocol_class(
            config=listener.config, server_state=listener.server_state
        )
        self.protocol.visitor = self.visitor = Visitor(None, PeerAddress("x", False), False)
        self.protocol.door = self.door
        self.protocol.connection_made(self.line)

    async def hear(self, *pieces):
        """What is written when these have come, and all that can be done is done."""
        before = len(self.line.writes)
        for piece in pieces:
            self.protocol.data_received(piece)
        for _ in range(6):
            await asyncio.sleep(0)
        return self.line.writes[before:]


def alone(test):
    async def run():
        connection = Connection(idle_seconds=20)
        await test(connection)
        connection.protocol.connection_lost(None)

    def test_alone():
        asyncio.run(run())

    return test_alone


@alone
async def test_an_answer_that_is_ready_goes_out_at_once_in_one_piece(connection):
    connection.protocol.data_received(GET + b"\r\n")
    assert len(connection.line.writes) == 1
    assert connection.line.said.endswith(b"\r\n\r\n" + DOCUMENT.body)
    assert connection.application.asked == []
    assert connection.visitor.stage == IDLE
    assert connection.line.ended is None


@pytest.mark.parametrize("end", [b"", b"connection: close\r\n", b"connection: Close\r\n"])
@pytest.mark.parametrize("body", [b"", b"content-length: 2\r\n"])
def test_what_is_ready_is_what_would_have_been_made(end, body):
    @alone
    async def test(connection):
        rest = end + b"\r\n"
        ready = await connection.hear(GET + rest)
        other = Connection()
        content = b"ab" if body else b""
        made = await other.hear(GET.replace(b"/ready", b"/other") + body + rest + content)
        assert other.application.asked == ["/other"]
        assert ready == made
        assert connection.line.ended == other.line.ended == ("closed" if end else None)
        other.protocol.connection_lost(None)

    test()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"if-none-match: " + DOCUMENT.etag, b"304"),
        (b"If-None-Match: *", b"304"),
        (b"range: bytes=0-3", b"206"),
        (b"range: bytes=900-", b"416"),
        (b"content-length: 0", b"200"),
    ],
)
def test_who_asks_for_something_else_than_all_of_it_gets_that(header, status):
    @alone
    async def test(connection):
        said = await connection.hear(GET + header + b"\r\n\r\n")
        assert len(said) == 1
        assert said[0].startswith(b"HTTP/1.1 " + status)
        assert connection.application.asked == ["/ready"]

    test()


@alone
async def test_a_crowd_and_those_who_read_nothing_are_not_answered_out_of_turn(connection):
    connection.door.crowded = True
    await connection.hear(GET + b"\r\n")
    assert connection.application.asked == ["/ready"]
    connection.door.crowded = False
    connection.protocol.pause_writing()
    assert await connection.hear(GET + b"\r\n") == []
    connection.protocol.resume_writing()
    assert len(await connection.hear()) == 1
    await connection.hear(GET + b"\r\n")
    assert connection.application.asked == ["/ready"] * 2


@alone
async def test_answers_come_in_the_order_of_requests(connection):
    first = b"POST /wait HTTP/1.1\r\ncontent-length: 0\r\n\r\n"
    second = b"POST /echo HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"
    assert await connection.hear(first + second + GET + b"\r\n") == []
    assert connection.visitor.stage == BUSY
    assert not connection.line.reading
    connection.application.go.set()
    said = await connection.hear()
    assert len(said) == 3
    assert said[1].endswith(b"\r\n\r\nabc")
    assert said[0] == said[2]
    assert connection.visitor.stage == IDLE
    assert connection.line.reading


@alone
async def test_only_so_many_requests_wait(connection):
    one = b"POST /wait HTTP/1.1\r\ncontent-length: 0\r\n\r\n"
    await connection.hear(one * (1 + PIPELINED))
    assert connection.line.ended is None
    await connection.hear(one)
    assert connection.line.ended == "aborted"


@alone
async def test_a_body_in_pieces_is_put_together(connection):
    head = b"POST /echo HTTP/1.1\r\ncontent-length: 6\r\n\r\n"
    assert await connection.hear(head) == []
    assert await connection.hear(b"abc", b"de") == []
    said = await connection.hear(b"f")
    assert said[0].endswith(b"content-length: 6\r\n\r\nabcdef")
    assert len(said) == 1


@alone
async def test_whoever_waits_for_a_word_before_the_body_gets_it(connection):
    head = b"POST /echo HTTP/1.1\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"
    assert await connection.hear(head) == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    assert (await connection.hear(b"ab"))[0].endswith(b"\r\n\r\nab")


@alone
async def test_a_head_alone_is_sent_to_whoever_asks_for_one(connection):
    said = await connection.hear(GET.replace(b"GET", b"HEAD") + b"\r\n")
    assert said[0].startswith(b"HTTP/1.1 200")
    assert b"content-length: 12\r\n" in said[0]
    assert said[0].endswith(b"\r\n\r\n")


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1\r\nconnection: close"])
def test_nothing_follows_the_last_request(version):
    @alone
    async def test(connection):
        last = b"GET /ready %s\r\n\r\n" % version
        said = await connection.hear(last + last)
        assert len(said) == 1
        assert b"connection: close\r\n" in said[0]
        assert connection.line.ended == "closed"

    test()


@pytest.mark.parametrize(("path", "said"), [(b"/broken", b"HTTP/1.1 500"), (b"/short", b"")])
def test_an_application_that_fails_ends_the_connection(path, said, caplog):
    @alone
    async def test(connection):
        await connection.hear(b"GET %s HTTP/1.1\r\n\r\n" % path)
        assert connection.line.said[:12] == said
        assert connection.line.ended == "closed"

    test()
    assert "could not be answered" in caplog.text


@alone
async def test_what_is_no_request_is_told_so_unless_an_answer_has_begun(connection):
    said = await connection.hear(b"nonsense\r\n\r\n")
    assert said[0].startswith(b"HTTP/1.1 400")
    assert connection.line.ended == "closed"


@alone
async def test_who_goes_away_is_not_waited_for(connection):
    await connection.hear(b"POST /echo HTTP/1.1\r\ncontent-length: 6\r\n\r\nab")
    assert len(connection.tasks) == 1
    connection.protocol.connection_lost(OSError())
    for _ in range(6):
        await asyncio.sleep(0)
    assert not connection.tasks
    connection.protocol.connection_lost = lambda error: None


@pytest.mark.parametrize(
    ("bytes_", "seconds", "ended"), [(b"", 0.3, "closed"), (b"GE", 1.0, "aborted")]
)
def test_an_idle_connection_is_closed_and_one_that_begins_a_request_has_time_for_it(
    bytes_, seconds, ended
):
    async def test():
        connection = Connection(idle_seconds=0.3, head_seconds=1.0)
        await connection.hear(GET + b"\r\n")
        began = time.monotonic()
        if bytes_:
            await connection.hear(bytes_)
        while connection.line.ended is None:
            await asyncio.sleep(0.01)
        # Timers of an event loop may be early by their resolution.
        assert time.monotonic() - began > seconds - 0.02
        assert connection.line.ended == ended
        connection.protocol.connection_lost(None)

    asyncio.run(test())
