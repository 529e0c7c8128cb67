"""A TCP forwarder between clients and a server: counts bytes at the socket, and can cut, delay,
swallow or refuse.

    with Forwarder(port) as forwarder:
        ... connect to forwarder.port ...
        forwarder.sent, forwarder.received      bytes from and to clients so far
        forwarder.cut_after = 5_000             cut each connection after so many bytes of answers
        forwarder.cut_sent_after = 100          the same for bytes of requests
        forwarder.cuts = 1                      how many connections to cut so; None for all
        forwarder.delay = 0.2                   seconds before each piece is passed on
        forwarder.swallow = True                accept, pass nothing on, answer nothing
        forwarder.refuse = True                 close new connections at once
        forwarder.cut()                         cut whatever is open now
        forwarder.requests                      what clients sent, where `record` is on
"""

import asyncio
import contextlib

from listener import Listener


class Forwarder(Listener):
    def __init__(self, port, host="127.0.0.1", *, record=False):
        super().__init__()
        self.target = (host, port)
        self.sent = self.received = self.connections = 0
        self.cut_after = self.cut_sent_after = self.cuts = None
        self.delay = 0.0
        self.swallow = self.refuse = False
        self.record = record
        self.requests = bytearray()

    @property
    def url(self):
        return f"https://127.0.0.1:{self.port}"

    def cut(self):
        """Cut every open connection."""

        def now():
            for writer in list(self._open):
                writer.transport.abort()

        self._loop.call_soon_threadsafe(now)

    def forget(self):
        """Count from zero again."""
        self.sent = self.received = self.connections = 0
        self.requests.clear()

    async def _accept(self, reader, writer):
        self._open.add(writer)
        self.connections += 1
        there = None
        try:
            if self.refuse:
                return
            if self.swallow:
                while data := await reader.read(65536):
                    self._count_sent(data)
                return
            try:
                far, there = await asyncio.open_connection(*self.target)
            except OSError:
                return
            self._open.add(there)
            ways = [
                asyncio.ensure_future(self._pass(reader, there, False)),
                asyncio.ensure_future(self._pass(far, writer, True)),
            ]
            try:
                await asyncio.gather(*ways)
            finally:
                for way in ways:
                    way.cancel()
        except OSError:
            pass
        finally:
            for end in (writer, there):
                if end is not None:
                    self._open.discard(end)
                    end.transport.abort()

    def _count_sent(self, data):
        self.sent += len(data)
        if self.record:
            self.requests += data

    async def _pass(self, reader, writer, answers):
        passed = 0
        while data := await reader.read(65536):
            if self.delay:
                await asyncio.sleep(self.delay)
            limit = self.cut_after if answers else self.cut_sent_after
            last = limit is not None and self.cuts != 0 and passed + len(data) >= limit
            if last:
                data = data[: limit - passed]
            passed += len(data)
            if answers:
                self.received += len(data)
            else:
                self._count_sent(data)
            writer.write(data)
            await writer.drain()
            if last:
                if self.cuts is not None:
                    self.cuts -= 1
                raise ConnectionResetError("cut")
        with contextlib.suppress(OSError):
            writer.write_eof()
