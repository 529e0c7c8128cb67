"""What every process that serves HTTPS does alike: listen, log, say where it is, take up a renewed
certificate."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from sottovoce.engines.https.door import Door
from sottovoce.engines.https.keys import SERVER_CERTIFICATE, SERVER_KEY, server_context
from sottovoce.engines.https.protocol import WRITE_BUFFER, Patience, PatientLimits, bounded
from sottovoce.engines.https.refusals import Tally
from sottovoce.errors import KeyTrouble, ServiceError

_BACKLOG = 4096
"""Connections that wait to be accepted; where it overflows, honest ones lose a second."""


class Listener(uvicorn.Server):
    """Serves an application on bounded connections; calls `ready` when it does."""

    def __init__(
        self,
        application: Any,
        limits: PatientLimits,
        context: ssl.SSLContext | None,
        tally: Tally,
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
