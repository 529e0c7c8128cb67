"""What every process that serves HTTPS does alike: listen, log, say where it is, take up a renewed
certificate."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import uvicorn
import uvloop

from sottovoce.errors import KeyTrouble, ServiceError
from sottovoce.services.kit.answers import Routed
from sottovoce.services.kit.connections import Door
from sottovoce.services.kit.protocol import WRITE_BUFFER, Patience, PatientLimits, bounded
from sottovoce.stores.keys import SERVER_CERTIFICATE, SERVER_KEY, server_context
from sottovoce.stores.ready import ServiceFolder, write_ready_file
from sottovoce.wire.refusals import RefusalCounts, count_handshakes

_BACKLOG = 4096
"""Connections that wait to be accepted; where it overflows, honest ones lose a second."""


class Listener(uvicorn.Server):
    """Serves an application on bounded connections; calls `ready` when it does."""

    def __init__(
        self,
        application: Any,
        limits: PatientLimits,
        context: ssl.SSLContext | None,
        tally: RefusalCounts,
        ready: Callable[[], None],
    ) -> None:
        patience = Patience.of(limits)
        config = uvicorn.Config(
            application,
            http=bounded(patience),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=patience.idle,
            timeout_graceful_shutdown=1,
        )
        config.load()
        super().__init__(config)
        self._limits, self._context, self._tally = limits, context, tally
        self._ready = ready

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers = [
            Door(listener, self._connection, self._context, self._limits, self._tally)  # type: ignore[misc]
            for listener in sockets or ()
        ]
        self.started = True
        self._ready()

    def _connection(self) -> Any:
        make: Any = self.config.http_protocol_class
        return make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the process has its own


def listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, OverflowError) as error:
        raise ServiceError(f"{host} is no address to listen at: {error}") from None
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            # Megabytes in the system's buffers would hide for minutes that a slow reader reads on.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, WRITE_BUFFER)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ServiceError(
            f"the server cannot listen at {host}, port {port}: {error.strerror}; choose another "
            "with --port"
        ) from None
    return listener


def address_of(listener: socket.socket, secure: bool) -> tuple[str, int]:
    """URL and port by which this machine reaches a listening socket."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "127.0.0.1"
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{name}:{port}", port


def renew_certificate(context: ssl.SSLContext, keys: Path, log: Any) -> None:
    """Show the certificate that is in the folder now to whoever connects from now on."""
    try:
        server_context(keys)  # looks at everything, and leaves the one in use alone
        context.load_cert_chain(keys / SERVER_CERTIFICATE, keys / SERVER_KEY)
    except (KeyTrouble, OSError) as error:
        log.error("certificate not renewed", detail=f"{error}; the old one stays in use")
    else:
        log.info("certificate renewed")


def unforeseen(log: Any) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """What an event loop does with errors that nobody has caught: log them, without saying whose
    request it was."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError):  # strangers and broken lines; those that matter are counted
            return
        log.error("unforeseen", detail=context.get("message", ""), kind=type(error).__name__)

    return handle


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def logger() -> Any:
    """JSON lines on standard error. They name no device and no address of one."""
    log = structlog.wrap_logger(
        _Lines(),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
    for name in ("uvicorn.error", "asyncio"):
        library = logging.getLogger(name)
        library.handlers[:] = [_Errors(log)]
        library.propagate = False
    return log


class _Lines:
    """Lines on standard error. Where they cannot be written, because the disk is full, say, the
    server goes on without them."""

    def msg(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)

    info = error = warning = msg


class _Errors(logging.Handler):
    """What libraries report as an error; their warnings are about strangers' requests."""

    def __init__(self, log: Any) -> None:
        super().__init__(logging.ERROR)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if "graceful shutdown" in record.getMessage():  # idle connections that were cut
            return
        self._log.error("unforeseen", detail=record.getMessage(), exc_info=record.exc_info)


def allow_connections() -> None:
    """Every connection is an open file, and systems allow few of them at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# The processes of a proxy, a data owner and an orchestrator: what they do alike from when they
# can listen until they are told to stop.

_UNFORESEEN = "of an error that nobody has foreseen, which is in its log"


def tls_of(keys: Path, tally: RefusalCounts) -> ssl.SSLContext:
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
        tally: RefusalCounts,
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
