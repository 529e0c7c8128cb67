"""A small HTTP server over TLS in a thread, whose answers a test decides, good ones and bad."""

import asyncio
from dataclasses import dataclass, field

from listener import Listener


@dataclass
class Request:
    method: str
    path: str
    headers: dict
    body: bytes
    connection: int


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict = field(default_factory=dict)
    cut_after: int | None = None
    """Close after so many bytes of the body."""
    raw: bytes | None = None
    """Send this instead, and close."""
    hang: float = 0.0
    """Wait so long before answering."""


class FakeServer(Listener):
    """`answer(request)` gives a Reply; requests are kept. Plaintext where there is no context."""

    def __init__(self, answer, context=None):
        super().__init__(context)
        self.answer = answer
        self.requests = []
        self.connections = 0

    @property
    def url(self):
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}"

    @property
    def open_connections(self):
        return len(self._open)

    async def _accept(self, reader, writer):
        self._open.add(writer)
        self.connections += 1
        number = self.connections
        try:
            while await self._one(reader, writer, number):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _one(self, reader, writer, number):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Request(method, path, headers, body, number)
        self.requests.append(request)
        reply = await asyncio.to_thread(self.answer, request)
        if reply.hang:
            await asyncio.sleep(reply.hang)
        if reply.raw is not None:
            writer.write(reply.raw)
            await writer.drain()
            writer.close()
            return False
        told = {"Content-Length": len(reply.body)} if reply.status not in (204, 304) else {}
        lines = "".join(f"{k}: {v}\r\n" for k, v in (told | reply.headers).items())
        writer.write(f"HTTP/1.1 {reply.status} X\r\n{lines}\r\n".encode())
        if reply.cut_after is not None:
            writer.write(reply.body[: reply.cut_after])
            await writer.drain()
            writer.close()
            return False
        writer.write(reply.body)
        await writer.drain()
        return True
