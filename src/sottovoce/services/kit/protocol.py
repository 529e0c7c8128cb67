"""HTTP connections with bounds that the library leaves open, so that strangers can hold neither
memory nor connections for long: a request's head is short and comes soon, nothing follows its body,
what was answered is not waited for, and answers are taken."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sottovoce.errors import MessageError
from sottovoce.services.kit.connections import BUSY, IDLE, Door, DoorLimits, Visitor

HEAD_BYTES = 32 << 10
PIPELINED = 16
"""Requests of one connection that may wait for the answer to an earlier one."""
WRITE_BUFFER = 64 << 10
"""Bytes of an answer that wait in memory until the other side takes some."""
_LAST_WORD = 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds after which a connection is cut."""

    head: float = 15.0
    """Until the head of a request is there."""
    rest: float = 5.0
    """Until the rest of a request is there that was answered already."""
    idle: int = 20
    """Until the next request begins."""
    write: float = 60.0
    """In which the other side takes nothing of an answer."""

    @classmethod
    def of(cls, limits: PatientLimits) -> Patience:
        return cls(
            limits.head_seconds, limits.rest_seconds, limits.idle_seconds, limits.write_seconds
        )


class PatientLimits(DoorLimits, Protocol):
    """What a service's limits say of its connections."""

    @property
    def head_seconds(self) -> float: ...

    @property
    def rest_seconds(self) -> float: ...

    @property
    def idle_seconds(self) -> int: ...

    @property
    def write_seconds(self) -> float: ...


def bounded(patience: Patience) -> type[BoundedProtocol]:
    """Connections with this much patience, as a server takes them."""

    class Patient(BoundedProtocol):
        _patience = patience

    return Patient


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    _patience = Patience()
    visitor: Visitor
    door: Door

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
        self._expect(self._patience.head)

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
        patience = self._patience
        self.visitor.now(IDLE)
        unfinished = self.cycle.more_body
        self._expect(patience.rest if unfinished else patience.idle + patience.head)

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
            wait = self._patience.write if seconds is None else seconds
            self._writing = self.loop.call_later(wait, self.transport.abort)

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
