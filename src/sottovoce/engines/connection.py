"""How a device's requests travel: to which address, how long each step may take, and the line that
their bytes go over.

httpcore2, the transport of httpx2, knows HTTP/1.1, TLS and how to connect. It sends the headers
that it is given and no others, keeps no cookies, follows nothing, reads no environment and repeats
no request. What it would leave open is here: a server may answer and hang up before it has read
everything, and what comes behind an answer is none to the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpcore2

from sottovoce.wire.frames import SLOWEST_LINE

_KEPT_SECONDS = 30.0
"""A connection that was idle for longer is not used again: something on the way has closed it."""

_PART = 1 << 16
_STEPS = 3
"""Steps of the event loop after which a reader has the bytes that had arrived."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each step may take, in seconds."""

    step: float = 20.0
    """To connect, or to send a short request."""
    answer: float = 20.0
    """To wait for the next part of an answer."""

    def of_request(self, size: int) -> dict[str, float]:
        """Return the limits of a request with a body of so many bytes: on the slowest line it takes
        longer to send, and its end may still be on its way when the answer is waited for."""
        more = size / SLOWEST_LINE
        return {"connect": self.step, "write": self.step + more, "read": self.answer + more}


@dataclass(slots=True)
class Traffic:
    """Bytes of HTTP in both directions (TLS adds its own) and requests, since the start."""

    requests: int = 0
    sent: int = 0
    received: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.requests + other.requests,
            self.sent + other.sent,
            self.received + other.received,
        )


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

    def connection(
        self, context: ssl.SSLContext | None, traffic: Traffic
    ) -> httpcore2.AsyncHTTPConnection:
        """A connection that is opened with its first request, and counts its bytes there."""
        return httpcore2.AsyncHTTPConnection(
            self._url("/").origin,
            context,
            keepalive_expiry=_KEPT_SECONDS,
            network_backend=_CountedStreams(traffic),
        )

    def request(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None,
        timeouts: Timeouts,
    ) -> httpcore2.Request:
        """A request with these headers behind the server's name, and the length of its body.
        Raises `ValueError` where there is none for such a path."""
        said = [("Host", self.named), *headers]
        if body is not None:
            said.append(("Content-Length", str(len(body))))
        return httpcore2.Request(
            method,
            self._url(self.path + path),
            headers=[(name.encode("ascii"), value.encode("ascii")) for name, value in said],
            content=body or b"",
            extensions={"timeout": timeouts.of_request(len(body or b""))},
        )

    def _url(self, target: str) -> httpcore2.URL:
        scheme = "https" if self.secure else "http"
        return httpcore2.URL(
            scheme=scheme, host=self.host, port=self.port, target=target.encode("ascii")
        )


class CountedStream(httpcore2.AsyncNetworkStream):
    """Bytes both ways, counted. A request goes out in one piece, once its answer is waited for, and
    what comes meanwhile is read."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream, traffic: Traffic) -> None:
        self._stream, self._traffic = stream, traffic
        self._unsent: list[bytes] = []
        self._step: float | None = None
        self._hearing: asyncio.Future[bytes] | None = None

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._unsent.append(buffer)
        self._step = timeout

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._unsent:
            part = await self._converse(timeout)
        else:
            part = await self._stream.read(max_bytes, timeout)
        self._traffic.received += len(part)
        return part

    async def _converse(self, timeout: float | None) -> bytes:
        """Send what is to be sent; the beginning of the answer."""
        sent, self._unsent = b"".join(self._unsent), []
        self._traffic.sent += len(sent)
        hearing = self._hear()
        with contextlib.suppress(httpcore2.WriteError):  # there may be an answer
            await self._stream.write(sent, self._step)
        await asyncio.wait([hearing], timeout=timeout)
        if not hearing.done():
            raise httpcore2.ReadTimeout
        self._hearing = None
        return hearing.result()

    def _hear(self) -> asyncio.Future[bytes]:
        """The next part of what comes."""
        if self._hearing is None:
            self._hearing = asyncio.ensure_future(self._stream.read(_PART))
        return self._hearing

    async def is_quiet(self) -> bool:
        """Whether it is open and nothing has come that nobody asked for."""
        hearing = self._hear()
        for _ in range(_STEPS):
            await asyncio.sleep(0)
        return not hearing.done()

    async def aclose(self) -> None:
        try:
            if self._hearing is not None:
                self._hearing.cancel()
                await asyncio.gather(self._hearing, return_exceptions=True)
        finally:
            await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> CountedStream:
        try:
            secret = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self._stream.aclose()
            raise
        return CountedStream(secret, self._traffic)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _CountedStreams(httpcore2.AnyIOBackend):
    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    async def connect_tcp(self, *place: Any, **options: Any) -> CountedStream:
        return CountedStream(await super().connect_tcp(*place, **options), self._traffic)


def size_of(answer: httpcore2.Response) -> int:
    """Bytes that an answer takes on the way, if it is written as it usually is."""
    size = len(b"HTTP/1.1 200 \r\n\r\n") + len(answer.extensions["reason_phrase"])
    length = b"0"
    for name, value in answer.headers:
        size += len(name) + len(value) + len(b": \r\n")
        if name.lower() == b"content-length":
            length = value
    return size + int(length)
