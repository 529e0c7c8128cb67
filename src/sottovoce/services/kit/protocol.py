"""HTTP connections with bounds that the library leaves open, so that strangers can hold neither
memory nor connections for long: a request's head is short and comes soon, nothing follows its body,
what was answered is not waited for, and answers are taken."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sottovoce.errors import MessageError
from sottovoce.services.kit.connections import BUSY, IDLE, Acceptor, Limits, Visitor

HEAD_BYTES = 32 << 10
PIPELINED = 16
"""Requests of one connection that may wait for the answer to an earlier one."""
WRITE_BUFFER = 64 << 10
"""Bytes of an answer that wait in memory until the other side takes some."""
_LAST_WORD = 1.0


def bounded(limits: Limits) -> type[BoundedProtocol]:
    """Connections with these limits, as uvicorn takes them."""
    return type("Bounded", (BoundedProtocol,), {"_limits": limits})


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    _limits = Limits()
    visitor: Visitor
    door: Acceptor

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._in_head = True
        self._waiting: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self.visitor.now(IDLE)
        self._expect(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.door.gone(self.visitor)
        self._stop_waiting()
        self._stop_writing()
        super().connection_lost(exc)

    # --- what comes in ----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED:
            raise MessageError("too many requests at once")
        super().on_message_begin()
        self.scope.update(sender=self.visitor.name, crowded=self.door.crowds(self.visitor))  # type: ignore[call-arg]
        self._head_bytes = 0
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # after the body: nobody needs it, and there is no end to it
            raise MessageError("headers after the body")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_waiting()
        self.visitor.now(BUSY)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.cycle.more_body = False
        if not self._answering:
            self._expect_next()

    def send_400_response(self, msg: str) -> None:
        begun = self.cycle is not None and self.cycle.response_started
        if self.pipeline or (begun and not self.cycle.response_complete):
            # A second answer would be taken for a part of the first one.
            self.transport.abort()
            return
        super().send_400_response(msg)
        # Closing waits for the other side, which may go on sending.
        self._stop_writing()
        self._abort_unless_taken(_LAST_WORD)

    # --- what goes out ----------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_unless_taken()
        elif not self._answering:
            self._expect_next()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_unless_taken()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._abort_unless_taken()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_writing()

    # --- waiting ----------------------------------------------------------------------------------

    @property
    def waits_for_line(self) -> bool:
        """Whether only the other side can move this on: it has not sent all, or does not read."""
        if self.cycle is None or self.cycle.response_complete:
            return True
        return bool(self.cycle.more_body) or bool(self.flow.write_paused)

    @property
    def _answering(self) -> bool:
        return bool(self.pipeline) or (self.cycle is not None and not self.cycle.response_complete)

    def _expect_next(self) -> None:
        """Everything was answered. What comes now must become a request in time; single bytes do
        not put that off."""
        limits = self._limits
        self.visitor.now(IDLE)
        unfinished = self.cycle.more_body
        self._expect(
            limits.rest_seconds if unfinished else limits.idle_seconds + limits.head_seconds
        )

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
