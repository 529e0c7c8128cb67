"""The processes of a proxy, a data owner and an orchestrator: what they do alike from when they can
listen until they are told to stop."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from sottovoce.engines.https.keys import server_context
from sottovoce.engines.https.listening import (
    Listener,
    address_of,
    allow_connections,
    renew_certificate,
    unforeseen,
)
from sottovoce.engines.https.protocol import PatientLimits
from sottovoce.engines.https.ready import ServiceFolder, write_ready_file
from sottovoce.engines.https.refusals import Tally, count_handshakes
from sottovoce.engines.https.routing import Routed
from sottovoce.errors import ServiceError

_UNFORESEEN = "of an error that nobody has foreseen, which is in its log"


def tls_of(keys: Path, tally: Tally) -> ssl.SSLContext:
    """How strangers are met; handshakes that fail are counted."""
    context = server_context(keys)
    count_handshakes(context, tally)
    return context


def _once_in_a_while(log: Any, seconds: float = 10.0) -> Callable[[ServiceError], None]:
    """Says to the operator that the disk cannot be used, and why, not for every request."""
    said, until = "", 0.0

    def failed(error: ServiceError) -> None:
        nonlocal said, until
        if str(error) != said or time.monotonic() >= until:
            said, until = str(error), time.monotonic() + seconds
            log.error("the disk cannot be used", detail=said)

    return failed


class Beside(NamedTuple):
    """A thread that works beside a service."""

    start: Callable[[Callable[..., None]], None]
    """Is given `Process.fail`."""
    stop: Callable[[], None]


class Process:
    """Serves until SIGTERM or SIGINT, or until something fails; SIGHUP takes up a renewed
    certificate."""

    def __init__(
        self,
        name: str,
        folder: ServiceFolder,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        tally: Tally,
        log: Any,
    ) -> None:
        self._name, self._folder, self._tally, self._log = name, folder, tally, log
        self._listener, self._context = listener, context
        self._why = ""
        self._stop: Callable[[], object] = lambda: None

    def fail(self, why: object = _UNFORESEEN) -> None:
        """From any thread: nothing goes on without what has failed."""
        self._why = str(why)
        self._stop()

    def run(
        self,
        make: Callable[[], Routed],
        limits: PatientLimits,
        beside: Sequence[Beside] = (),
        ready: Callable[[str], None] | None = None,
        **facts: str,
    ) -> None:
        """The service is made in the event loop that it runs in. When it listens, the ready file
        says so, with these facts, and `ready` is told the address. Raises where it has failed."""
        allow_connections()
        # What is loaded by now stays: the collector need not look at it for every few requests.
        gc.collect()
        gc.freeze()
        uvloop.run(self._serve(make, limits, beside, ready, facts))
        if self._why:
            raise ServiceError(
                f"{self._name} stopped because {self._why}; what was acknowledged is stored: "
                "start it again"
            )

    async def _serve(
        self,
        make: Callable[[], Routed],
        limits: PatientLimits,
        beside: Sequence[Beside],
        ready: Callable[[str], None] | None,
        facts: dict[str, str],
    ) -> None:
        loop, place = asyncio.get_running_loop(), self._folder.ready_file
        context, log = self._context, self._log

        def listening() -> None:
            url, port = address_of(self._listener, context is not None)
            write_ready_file(place, url, port, **facts)
            log.info("listening", url=url)
            if ready is not None:
                ready(url)

        service = make()
        server = Listener(service, limits, context, self._tally, listening)
        self._stop = lambda: loop.call_soon_threadsafe(server.stop)
        loop.set_exception_handler(unforeseen(log))
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, server.stop)
        if context is not None:
            loop.add_signal_handler(
                signal.SIGHUP, renew_certificate, context, self._folder.keys, log
            )
        service.failed = _once_in_a_while(log)
        for part in beside:
            part.start(self.fail)
        try:
            await server.serve(sockets=[self._listener])
        finally:
            place.unlink(missing_ok=True)
            service.close()
            for part in beside:
                part.stop()
            log.info("stopped")
