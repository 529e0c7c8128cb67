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
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import structlog
import uvicorn
import uvloop

from sottovoce.errors import KeyTrouble, ServiceError, UsageError
from sottovoce.services.kit.application import Hosting, HttpApplication
from sottovoce.services.kit.connections import Acceptor, Limits, reverse_proxies
from sottovoce.services.kit.protocol import WRITE_BUFFER, BoundedProtocol, bounded
from sottovoce.stores.keys import SERVER_CERTIFICATE, SERVER_KEY, RoleTokens, server_context
from sottovoce.stores.locking import write_ready_file
from sottovoce.wire.refusals import Reason, RefusalCounts, count_handshakes

_BACKLOG = 4096
"""Connections that wait to be accepted; where it overflows, honest ones lose a second."""


class Closable(Protocol):
    def close(self) -> object: ...


class HasKeys(Protocol):
    @property
    def keys(self) -> Path:
        """The folder with a certificate and the operator's token."""


class HttpListener(uvicorn.Server):
    """Serves an application on bounded connections; calls `ready` when it does."""

    def __init__(
        self,
        application: Any,
        limits: Limits,
        context: ssl.SSLContext | None,
        tally: RefusalCounts,
        ready: Callable[[], None],
        kind: type[BoundedProtocol] | None = None,
    ) -> None:
        config = uvicorn.Config(
            application,
            http=bounded(limits, kind),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=limits.idle_seconds,
            timeout_graceful_shutdown=1,
        )
        config.load()
        super().__init__(config)
        self._limits, self._context, self._tally = limits, context, tally
        self._ready = ready
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        await self._stopping.wait()  # the library's looks around ten times a second

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers = [
            Acceptor(listener, self._connection, self._context, self._limits, self._tally)  # type: ignore[misc]
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


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
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
            f"with {option}"
        ) from None
    return listener


def address_of(listener: socket.socket, secure: bool) -> tuple[str, int]:
    """URL and port by which this machine reaches a listening socket."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "127.0.0.1"
    name = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{name}:{port}", port


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
    """JSON lines on standard error. They have no address of a device."""
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


_UNFORESEEN = "of an error that nobody has foreseen, which is in its log"
_SWITCH = 0.0005
F = TypeVar("F", bound=HasKeys)
"""The folder of a service."""
L = TypeVar("L", bound=Limits)
C = TypeVar("C", bound=Closable)


class Beside(NamedTuple):
    """A thread that works beside a service."""

    start: Callable[[Callable[..., None]], None]
    """Is given `Start.fail`."""
    stop: Callable[[], None]


class Also(NamedTuple):
    """Something else that a process serves, on a socket of its own and without TLS."""

    name: str
    """Under which the ready file has its address."""
    application: Callable[[], Any]
    """Is made in the event loop that it runs in, and closed at the end."""
    listener: socket.socket
    limits: Limits
    connections: type[BoundedProtocol]


class Parts(NamedTuple):
    """What a service consists of."""

    application: Callable[[], HttpApplication[Any]]
    """Is made in the event loop that it runs in."""
    ready_file: Callable[[int], Path]
    """Where it says that it listens, by its port."""
    beside: Sequence[Beside] = ()
    facts: Mapping[str, str] = {}
    """What the ready file says besides."""
    also: Sequence[Also] = ()


class Service(ABC, Generic[F, L]):
    """A party as a service: everything by which it differs from others. Options of one start are
    its fields."""

    name: ClassVar[str]
    """In a sentence, as "the server"."""
    port: ClassVar[int]
    limits: type[L]

    @abstractmethod
    def open(self, path: Path) -> F:
        """The folder. Raises with one sentence if it is none of this party."""

    @abstractmethod
    def prepare(self, start: Start[F, L]) -> Parts:
        """Lock the folder, open what is in it, and say what is to run. Raises with one sentence if
        it cannot start."""


class Start(Generic[F, L]):
    """A start of a service: what it is given, and what ends with it."""

    def __init__(
        self, service: Service[F, L], path: Path, host: str, port: int, secure: bool, limits: L
    ) -> None:
        self._service, self._where = service, (host, port)
        self.folder: F = service.open(path)
        self.limits: L = limits
        self.tally = RefusalCounts()
        self.context: ssl.SSLContext | None = None
        if secure:
            self.context = server_context(self.folder.keys)
            count_handshakes(self.context, self.tally)  # those that fail
        self.tokens = RoleTokens(self.folder.keys)
        self.log: Any = logger()
        self.stack = contextlib.ExitStack()
        self._listener: socket.socket | None = None
        self._why = ""
        self._stop: Callable[[], object] = lambda: None

    def keep(self, store: C) -> C:
        """It is closed at the end."""
        return self.stack.enter_context(contextlib.closing(store))

    def listen(self) -> socket.socket:
        """Now, if there is much to do before the service answers."""
        if self._listener is None:
            self._listener = self.stack.enter_context(listen(*self._where))
        return self._listener

    @property
    def hosting(self) -> Hosting[L]:
        """For the application."""
        return Hosting(self.tokens, self.tally, self.limits, self._failed, self.fail)

    def _failed(self, error: ServiceError) -> None:
        self.log.error("not stored", detail=str(error))

    def fail(self, why: object = _UNFORESEEN) -> None:
        """From any thread: nothing goes on without what has failed."""
        self._why = str(why)
        self._stop()

    def _renew(self) -> None:
        """Show the certificate that is in the folder now to whoever connects from now on."""
        if self.context is None:
            return
        keys = self.folder.keys
        try:
            server_context(keys)  # looks at everything, and leaves the one in use alone
            self.context.load_cert_chain(keys / SERVER_CERTIFICATE, keys / SERVER_KEY)
        except (KeyTrouble, OSError) as error:
            self.log.error("certificate not renewed", detail=f"{error}; the old one stays in use")
        else:
            self.log.info("certificate renewed")

    def run(self, ready: Callable[[str], None] | None) -> None:
        with self.stack:
            parts = self._service.prepare(self)
            self.listen()
            allow_connections()
            # Requests must not wait long for the threads that write.
            sys.setswitchinterval(_SWITCH)
            # What is loaded by now stays: the collector need not look at it every few requests.
            gc.collect()
            gc.freeze()
            uvloop.run(self._serve(parts, ready))
        if self._why:
            raise ServiceError(
                f"{self._service.name} stopped because {self._why}; what was acknowledged is "
                "stored: start it again"
            )

    async def _serve(self, parts: Parts, ready: Callable[[str], None] | None) -> None:
        loop, log, context = asyncio.get_running_loop(), self.log, self.context
        listener = self.listen()
        url, port = address_of(listener, context is not None)
        place = parts.ready_file(port)

        def listening() -> None:
            addresses = {one.name: address_of(one.listener, False)[0] for one in parts.also}
            write_ready_file(place, url, port, **parts.facts, **addresses)
            log.info("listening", url=url)
            if ready is not None:
                ready(url)

        application = parts.application()
        application.failed = _once_in_a_while(log)
        refusals = RefusalLines(log, loop.call_later)
        if application.logs_refusals:
            application.refused = refusals.count
        server = HttpListener(application, self.limits, context, self.tally, listening)
        others = [(one.application(), one) for one in parts.also]
        beside = [
            HttpListener(made, one.limits, None, RefusalCounts(), _nothing, one.connections)
            for made, one in others
        ]

        def stop() -> None:
            for each in (server, *beside):
                each.stop()

        self._stop = lambda: loop.call_soon_threadsafe(stop)
        loop.set_exception_handler(unforeseen(log))
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, stop)
        loop.add_signal_handler(signal.SIGHUP, self._renew)
        for part in parts.beside:
            part.start(self.fail)
        serving = [
            asyncio.ensure_future(each.serve(sockets=[one.listener]))
            for each, (_, one) in zip(beside, others, strict=True)
        ]
        try:
            await server.serve(sockets=[listener])
        finally:
            stop()
            for error in await asyncio.gather(*serving, return_exceptions=True):
                if error is not None:
                    log.error("unforeseen", kind=type(error).__name__)
            place.unlink(missing_ok=True)
            for made, _ in others:
                made.close()
            application.close()
            for part in parts.beside:
                part.stop()
            refusals.say()
            log.info("stopped")


def _nothing() -> None:
    """Nobody waits for it."""


def serve(
    service: Service[F, L],
    path: Path,
    host: str = "127.0.0.1",
    port: int | None = None,
    *,
    plaintext: bool = False,
    behind: Sequence[str] = (),
    limits: L | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the folder `path` until SIGTERM or SIGINT, or until something fails; SIGHUP takes up a
    renewed certificate. Port 0 takes a free one; where the service listens is in the ready file,
    and `ready` is told. `behind` are reverse proxies. Raises with one sentence if it cannot
    start."""
    if plaintext and not is_loopback(host):
        raise UsageError(f"--plaintext is for a loopback address, not for {host}")
    chosen = limits or service.limits()
    if behind:
        chosen = replace(chosen, behind=reverse_proxies(behind))
    where = host, service.port if port is None else port
    Start(service, path, *where, not plaintext, chosen).run(ready)


class RefusalLines:
    """Says to the operator how many requests were refused, by reason: the first at once, and what
    follows once in a while, however many there are. Works in the event loop alone."""

    def __init__(
        self, log: Any, later: Callable[[float, Callable[[], None]], object], seconds: float = 60.0
    ) -> None:
        self._log, self._later, self._seconds = log, later, seconds
        self._new: Counter[str] = Counter()
        self._resting = False

    def count(self, reason: Reason) -> None:
        self._new[reason] += 1
        if not self._resting:
            self._speak()

    def say(self) -> None:
        """What was not said yet."""
        if self._new:
            self._log.warning("refused", **dict(sorted(self._new.items())))
            self._new.clear()

    def _speak(self) -> None:
        self._resting = bool(self._new)
        if self._resting:
            self.say()
            self._later(self._seconds, self._speak)


def _once_in_a_while(log: Any, seconds: float = 10.0) -> Callable[[ServiceError], None]:
    """Says to the operator that the disk cannot be used, and why, not for every request."""
    said, until = "", 0.0

    def failed(error: ServiceError) -> None:
        nonlocal said, until
        if str(error) != said or time.monotonic() >= until:
            said, until = str(error), time.monotonic() + seconds
            log.error("the disk cannot be used", detail=said)

    return failed
