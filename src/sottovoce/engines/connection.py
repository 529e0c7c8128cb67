"""One connection to a web server: HTTP/1.1 over TCP or TLS, a request at a time.

A device has one server and asks little of it. h11 knows what HTTP is; this moves its bytes, with a
limit of time for every step and no more in memory than was asked for. What goes wrong on the way is
an `OSError` (`TimeoutError` among them), `NotHttp` if the other side speaks something else, and
`Closed` if it hangs up before its answer is there.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import h11

_READ_AHEAD = 1 << 18
_LONGEST_HEAD = 100 * 1024
_KEPT_SECONDS = 30.0
"""A connection that was idle for longer is not used again: something on the way has closed it."""
_NEXT_ADDRESS_SECONDS = 0.25


class NoConnection(OSError):
    """Nobody takes the call."""


class NotHttp(OSError):
    """What the other side says is no HTTP."""


class Closed(OSError):
    """The other side has hung up."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each step may take, in seconds."""

    step: float = 20.0
    """To connect, or to hand over what is sent."""
    answer: float = 20.0
    """To wait for the next part of an answer."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is. `path` comes before every path that is asked for."""

    secure: bool
    host: str
    port: int | None
    path: str

    @classmethod
    def of(cls, url: str) -> Address:
        """Raises `ValueError` where `url` is no address of a web server."""
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise ValueError("no address of a web server")
        if not host.isascii():
            host = host.encode("idna").decode()  # whose errors are `ValueError`s, too
        return cls(parts.scheme == "https", host, port, parts.path)

    @property
    def named(self) -> str:
        """As a request names the server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """How an answer begins."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    size: int
    """Bytes that it took on the way."""


class WebConnection:
    """An open connection. One request is answered to its end before the next one is made."""

    def __init__(self, stream: _Stream, timeouts: Timeouts) -> None:
        self._stream, self._timeouts = stream, timeouts
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LONGEST_HEAD)
        self._idle_since = time.monotonic()

    @classmethod
    async def open(
        cls, address: Address, context: ssl.SSLContext | None, timeouts: Timeouts
    ) -> WebConnection:
        """Raises `NoConnection`, from what stood in the way."""
        loop = asyncio.get_running_loop()
        port = address.port or (443 if address.secure else 80)
        # uvloop, on which services run, tries one address after another.
        hurry: dict[str, Any] = {}
        if isinstance(loop, asyncio.BaseEventLoop):
            hurry["happy_eyeballs_delay"] = _NEXT_ADDRESS_SECONDS
        try:
            async with asyncio.timeout(timeouts.step):
                _, stream = await loop.create_connection(
                    _Stream,
                    address.host,
                    port,
                    ssl=context,
                    **hurry,
                )
        except TimeoutError:
            raise
        except OSError as error:
            raise NoConnection("nobody takes the call") from error
        return cls(stream, timeouts)

    @property
    def ready(self) -> bool:
        """Whether another request can be made. What came behind an answer is none to the next."""
        if self._http.our_state is not h11.IDLE or self._http.trailing_data[0]:
            return False
        return time.monotonic() - self._idle_since < _KEPT_SECONDS and self._stream.quiet

    def drop(self) -> None:
        """Hang up at once."""
        self._stream.drop()

    async def ask(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> int:
        """Send a request; how many bytes it took. Raises `ValueError` where it cannot be made."""
        try:
            request = h11.Request(method=method, target=path, headers=headers)
        except (h11.LocalProtocolError, UnicodeError) as error:
            raise ValueError("such a request cannot be made") from error
        sent = self._http.send(request)
        if body:
            sent += self._http.send(h11.Data(data=body))
        sent += self._http.send(h11.EndOfMessage())
        async with asyncio.timeout(self._timeouts.step):
            await self._stream.write(sent)
        return len(sent)

    async def head(self) -> AnswerHead:
        """How the answer begins."""
        while not isinstance(event := await self._next(), h11.Response):
            if not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                raise NotHttp("the answer is none to what was asked")
        told: dict[str, str] = {}
        size = len(b"HTTP/1.1 200 \r\n\r\n") + len(event.reason)
        for name, value in event.headers:
            size += len(name) + len(value) + 4
            key, text = name.decode("latin-1"), value.decode("latin-1")
            told[key] = f"{told[key]}, {text}" if key in told else text
        return AnswerHead(event.status_code, told, size)

    async def parts(self) -> AsyncIterator[bytes]:
        """The answer's body, as it comes."""
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._idle_since = time.monotonic()

    async def _next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                async with asyncio.timeout(self._timeouts.answer):
                    arrived = await self._stream.read()
                if not arrived and self._http.their_state is h11.SEND_RESPONSE:
                    raise Closed("there is no answer")
                self._http.receive_data(arrived)
        except h11.RemoteProtocolError as error:
            raise NotHttp("what comes is no HTTP") from error
        return event


class _Stream(asyncio.Protocol):
    """Bytes both ways. What arrived before a connection broke can still be read."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._arrived = bytearray()
        self._over = False
        self._trouble: Exception | None = None
        self._changed = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()

    @property
    def quiet(self) -> bool:
        """Whether it is open and nothing has come that nobody asked for."""
        return not self._over and not self._arrived

    async def write(self, content: bytes) -> None:
        """Hand over all of it. A server may answer and hang up before it has read everything: its
        answer is there to be read, or else what went wrong."""
        if self._transport is not None and not self._over:
            self._transport.write(content)
            await self._may_write.wait()

    async def read(self) -> bytes:
        """What has come; nothing when there will be no more."""
        while not self._arrived and not self._over:
            self._changed.clear()
            await self._changed.wait()
        if not self._arrived and self._trouble is not None:
            raise self._trouble
        content = bytes(self._arrived)
        self._arrived.clear()
        if self._transport is not None and not self._over:
            self._transport.resume_reading()
        return content

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        if len(self._arrived) > _READ_AHEAD and self._transport is not None:
            self._transport.pause_reading()
        self._changed.set()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def _end(self, trouble: Exception | None) -> None:
        if not self._over:
            self._over, self._trouble = True, trouble
        self._changed.set()
        self._may_write.set()
