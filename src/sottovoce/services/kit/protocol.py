"""HTTP connections with bounds, so that strangers can hold neither memory nor connections for long:
a request's head is short and comes soon, nothing follows its body, what was answered is not waited
for, and answers are taken.

httptools reads what comes; an ASGI application answers. A small answer that is ready beforehand
goes out without it, and the head of every other one with the beginning of its body: what a poll
costs beside its handshake is mostly steps that it can do without.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import unquote

import httptools

from sottovoce.errors import MessageError, ServiceError
from sottovoce.services.kit.answers import Headers, Scope, head_of
from sottovoce.services.kit.connections import BUSY, IDLE, Acceptor, Limits, Visitor

HEAD_BYTES = 32 << 10
PIPELINED = 16
"""Requests of one connection that may wait for the answer to an earlier one."""
WRITE_BUFFER = 64 << 10
"""Bytes of an answer that wait in memory until the other side takes some."""
_READ_BUFFER = 64 << 10
"""Bytes of a request that wait in memory until the application takes them."""
_LAST_WORD = 1.0
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = (b"connection", b"close")
_WITH_BODY = (b"content-length", b"transfer-encoding", b"expect", b"upgrade")
_NOT_PLAIN = frozenset((*_WITH_BODY, b"if-none-match", b"if-range", b"range", b"origin"))
"""Headers of requests that may get a partial or conditional response instead of the whole document.
"""
_log = logging.getLogger("uvicorn.error")


def bounded(limits: Limits, kind: type[BoundedProtocol] | None = None) -> type[BoundedProtocol]:
    """Connections with these limits, as uvicorn takes them."""
    return type("Bounded", (kind or BoundedProtocol,), {"_limits": limits})


class Exchange:
    """A request and its answer, which says its length."""

    def __init__(
        self, connection: BoundedProtocol, scope: Scope, keep_alive: bool, awaits_word: bool
    ) -> None:
        """`awaits_word`: the other side sends the body when it is told to."""
        self._connection, self._scope, self.keep_alive = connection, scope, keep_alive
        self._awaits_word = awaits_word
        self._parts: list[bytes] = []
        self._size = 0
        self._news = False
        self._waiter: asyncio.Future[None] | None = None
        self._head = b""
        self._left = 0
        self.more_body = True
        self.response_started = self.response_complete = False
        self.disconnected = False

    async def run(self) -> None:
        """Have the application answer."""
        await self._connection.app(self._scope, self.receive, self.send)

    def over(self, task: asyncio.Task[None]) -> None:
        """The application is done with it."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a request could not be answered", exc_info=error)
        if self.response_complete or self.disconnected:
            return
        if task.cancelled():  # the service ends
            self._connection.transport.abort()
        elif self.response_started:
            self._connection.transport.close()
        else:
            self.keep_alive = False
            self._begin(500, [(b"content-length", b"0"), *self._connection.always])
            self._go_on(b"", more=False)

    # --- the request ------------------------------------------------------------------------------

    def arrive(self, part: bytes) -> None:
        if self.response_complete:
            return
        self._parts.append(part)
        self._size += len(part)
        if self._size > _READ_BUFFER:
            self._connection.pause_reading()
        self.wake()

    def end(self) -> None:
        """All of the body is here."""
        self.more_body = False
        self.wake()

    def wake(self) -> None:
        """There is something to `receive`."""
        self._news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> dict[str, Any]:
        connection = self._connection
        if self._awaits_word and not connection.transport.is_closing():
            self._awaits_word = False
            connection.transport.write(_CONTINUE)
        if not self.disconnected and not self.response_complete:
            connection.resume_reading()
            if not self._news:
                self._waiter = connection.loop.create_future()
                await self._waiter
            self._news = False
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        parts, self._parts, self._size = self._parts, [], 0
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    # --- the answer -------------------------------------------------------------------------------

    async def send(self, message: dict[str, Any]) -> None:
        await self._connection.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            self._begin(message["status"], message["headers"])
        else:
            self._go_on(message["body"], bool(message.get("more_body")))

    def _begin(self, status: int, headers: Headers) -> None:
        self.response_started, self._awaits_word = True, False
        for name, value in headers:
            if name == b"content-length":
                self._left = int(value)
        if _CLOSE in headers:
            self.keep_alive = False
        elif not self.keep_alive:
            headers = [*headers, _CLOSE]
        self._head = head_of(status, headers) + b"\r\n"

    def _go_on(self, body: bytes, more: bool) -> None:
        if self._scope["method"] == "HEAD":
            body, self._left = b"", 0
        self._left -= len(body)
        if self._left < 0 or (self._left and not more):
            raise ServiceError("an answer is not as long as its head says")
        if self._head:
            body, self._head = b"".join((self._head, body)), b""
        self._connection.transport.write(body)
        if not more:
            self.response_complete = True
            self.wake()
            self._connection.answered(self.keep_alive)


class BoundedProtocol(asyncio.Protocol):
    """One connection."""

    _limits = Limits()
    always: ClassVar[Headers] = []
    """What its own answers say besides, which no application has seen."""
    visitor: Visitor
    door: Acceptor
    transport: asyncio.Transport

    def __init__(
        self,
        config: Any,
        server_state: Any,
        app_state: Any = None,
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Is given what uvicorn gives its protocols."""
        self.app = config.loaded_app
        self._state = server_state
        self.loop = _loop or asyncio.get_running_loop()
        self.parser = httptools.HttpRequestParser(self)
        # What follows a request after which the connection ends is nobody's concern.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.cycle: Exchange | None = None
        self._next: deque[Exchange] = deque()
        """Requests that wait for the answer to an earlier one, which is `cycle`."""
        self._url = b""
        self._headers: Headers = []
        self._plain = True
        self._at_hand: bytes | None = None
        self._head_bytes = 0
        self._in_head = True
        self._heard = False
        self._reading, self._may_write = True, True
        self._drained: asyncio.Event | None = None
        self._waiting: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._state.connections.add(self)
        self.transport = transport  # type: ignore[assignment]
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self.visitor.now(IDLE)
        self._expect(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self.door.gone(self.visitor)
        self._stop_waiting()
        self._stop_writing()
        if self.cycle is not None:
            self.cycle.disconnected = not self.cycle.response_complete
            self.cycle.wake()
        self.resume_writing()
        if exc is None:
            self.transport.close()
        del self.parser  # which knows this connection

    def shutdown(self) -> None:
        """The service ends: what is being answered is the last."""
        if self._answering and self.cycle is not None:
            self.cycle.keep_alive = False
        else:
            self.transport.close()

    # --- what comes in ----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # the request is answered as any other, and nothing after it
        except httptools.HttpParserError:
            self._refuse("Invalid HTTP request received.")
            return
        if self._in_head and self._head_bytes > HEAD_BYTES:
            self._refuse("The head of the request is too long.")

    def on_message_begin(self) -> None:
        if len(self._next) >= PIPELINED:
            raise MessageError("too many requests at once")
        if self.transport.is_closing():
            raise MessageError("a request after the last one")
        self._url, self._headers, self._plain = b"", [], True
        self._head_bytes = 0
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # after the body: nobody needs it, and there is no end to it
            raise MessageError("headers after the body")
        name = name.lower()
        self._headers.append((name, value))
        if name in _NOT_PLAIN:
            self._plain = False

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_waiting()
        method, crowded = self.parser.get_method(), self.door.crowds(self.visitor)
        if self._plain and method == b"GET" and not (crowded or self._answering):
            self._at_hand = self._ready_answer()
            if self._at_hand is not None:
                return
        self.visitor.now(BUSY)
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        scope = {
            "type": "http",
            "method": method.decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "query_string": url.query or b"",
            "headers": self._headers,
            "sender": self.visitor.name,
            "crowded": crowded,
        }
        waits = not self._plain and (b"expect", b"100-continue") in self._headers
        exchange = Exchange(self, scope, self._stays, waits)
        if self._answering:
            self.pause_reading()
            self._next.append(exchange)
        else:
            self._start(exchange)

    def on_body(self, body: bytes) -> None:
        self._newest.arrive(body)

    def on_message_complete(self) -> None:
        if self._at_hand is not None:
            self.transport.write(self._at_hand)
            self._at_hand = None
            self.answered(self._stays)
            return
        self._newest.end()
        if not self._answering:
            self._expect_next()

    @property
    def _newest(self) -> Exchange:
        """The one whose request is being read."""
        newest = self._next[-1] if self._next else self.cycle
        if newest is None:
            raise MessageError("a body without a request")
        return newest

    @property
    def _stays(self) -> bool:
        """Whether another request may follow this one."""
        return self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0"

    def _start(self, exchange: Exchange) -> None:
        self.cycle = exchange
        task = self.loop.create_task(exchange.run())
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)
        task.add_done_callback(exchange.over)

    def _refuse(self, words: str) -> None:
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if self._next or (cycle and cycle.response_started and not cycle.response_complete):
            # A second answer would be taken for a part of the first one.
            self.transport.abort()
            return
        text = words.encode()
        length = b"%d" % len(text)
        headers = [
            *((b"content-type", b"text/plain"), (b"content-length", length), _CLOSE),
            *self.always,
        ]
        self.transport.write(head_of(HTTPStatus.BAD_REQUEST, headers) + b"\r\n" + text)
        self.transport.close()
        # Closing waits for the other side, which may go on sending.
        self._stop_writing()
        self._abort_unless_taken(_LAST_WORD)

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.transport.resume_reading()

    # --- what goes out ----------------------------------------------------------------------------

    def _ready_answer(self) -> bytes | None:
        """All of the answer, where the application has it at hand."""
        find = getattr(self.app, "at_hand", None)
        found = None if find is None or not self._may_write else find(self._url)
        if found is None:
            return None
        head, body = found
        return b"".join((head, b"\r\n" if self._stays else b"connection: close\r\n\r\n", body))

    def answered(self, keep_alive: bool) -> None:
        """The answer is written."""
        if not keep_alive:
            self.transport.close()
        if self.transport.is_closing():
            self._abort_unless_taken()
            return
        self.resume_reading()
        if self._next:
            self._start(self._next.popleft())
        else:
            self._expect_next()

    async def drain(self) -> None:
        """Wait until what is written was taken."""
        if not self._may_write and self._drained is not None:
            await self._drained.wait()

    def pause_writing(self) -> None:
        self._may_write, self._drained = False, asyncio.Event()
        self._abort_unless_taken()

    def resume_writing(self) -> None:
        self._may_write = True
        if self._drained is not None:
            self._drained.set()
        if not self.transport.is_closing():
            self._stop_writing()

    # --- waiting ----------------------------------------------------------------------------------

    @property
    def waits_for_line(self) -> bool:
        """Whether only the other side can move this on: it has not sent all, or does not read."""
        if self.cycle is None or self.cycle.response_complete:
            return True
        return self.cycle.more_body or not self._may_write

    @property
    def _answering(self) -> bool:
        return bool(self._next) or (self.cycle is not None and not self.cycle.response_complete)

    def _expect_next(self) -> None:
        """Everything was answered. What comes now must become a request in time; single bytes do
        not put that off."""
        self.visitor.now(IDLE)
        if self.cycle is not None and self.cycle.more_body:
            self._expect(self._limits.rest_seconds)
            return
        self._stop_waiting()
        self._heard = False
        self._waiting = self.loop.call_later(self._limits.idle_seconds, self._end_idle)

    def _end_idle(self) -> None:
        if self._heard:
            self._expect(self._limits.head_seconds)
        else:
            self._waiting = None
            self.transport.close()
            self._abort_unless_taken()

    def _expect(self, seconds: float) -> None:
        self._stop_waiting()
        self._waiting = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        self._waiting = None
        if not self._answering:
            self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _abort_unless_taken(self, seconds: float | None = None) -> None:
        if self._writing is None:
            wait = self._limits.write_seconds if seconds is None else seconds
            self._writing = self.loop.call_later(wait, self.transport.abort)

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
