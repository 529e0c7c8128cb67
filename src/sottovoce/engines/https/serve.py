"""A server process: what it needs to start, what it does until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import json
import logging
import os
import resource
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import structlog
import uvicorn
import uvloop

from sottovoce.engines.https.board import Board
from sottovoce.engines.https.coordinator import Coordinator
from sottovoce.engines.https.database import Database
from sottovoce.engines.https.folder import ServerFolder, open_folder
from sottovoce.engines.https.keys import (
    SERVER_CERTIFICATE,
    SERVER_KEY,
    operator_token,
    server_context,
)
from sottovoce.engines.https.protocol import WRITE_BUFFER, Patience, bounded
from sottovoce.engines.https.records import raise_target
from sottovoce.engines.https.refusals import Tally, count_handshakes
from sottovoce.engines.https.service import Limits, Service
from sottovoce.errors import KeyTrouble, ServiceError, SottovoceError, UsageError

_WATCH_SHARED, _WATCH_ALONE = 0.2, 1.0
"""Seconds after which a process looks into the database even if it heard nothing."""
_SPACING = 0.03
_SWITCH = 0.0005
_RETRY = 1.0


def run_server(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 8443,
    *,
    database: str | None = None,
    rounds: int | None = None,
    skip_to_round: int | None = None,
    plaintext: bool = False,
    limits: Limits | None = None,
) -> None:
    """Serve the federation in `path` until SIGTERM or SIGINT; SIGHUP takes up a renewed
    certificate. Port 0 takes a free one; where the server listens is in the ready file.
    `skip_to_round` is for a database that was set back (`Coordinator.skip_to`). Raises with one
    sentence where it cannot start."""
    if plaintext and not _is_loopback(host):
        raise UsageError(f"--plaintext is for a loopback address, not for {host}")
    folder = open_folder(path)
    tally = Tally()
    context = None
    if not plaintext:
        context = server_context(folder.keys)
        count_handshakes(context, tally)
    token = operator_token(folder.keys)
    with contextlib.ExitStack() as stack:
        store = folder.database(database)
        stack.callback(store.close)
        if not store.shared:
            stack.enter_context(folder.locked())
        listener = stack.enter_context(_listen(host, port))
        coordinator = Coordinator(folder.plan, time.monotonic)
        with store.writing() as link:
            store.take_turn(link)
            coordinator.start(link)
            if rounds is not None:
                raise_target(link, rounds)
            if skip_to_round is not None:
                coordinator.skip_to(link, skip_to_round)
        _allow_connections()
        # Requests must not wait long for the thread that writes.
        sys.setswitchinterval(_SWITCH)
        # What is loaded by now stays: the collector need not look at it for every few requests.
        gc.collect()
        gc.freeze()
        process = _Process(folder, store, coordinator, tally, token, limits or Limits())
        uvloop.run(process.run(listener, context))


class _Process:
    def __init__(
        self,
        folder: ServerFolder,
        database: Database,
        coordinator: Coordinator,
        tally: Tally,
        token: str,
        limits: Limits,
    ) -> None:
        self._folder, self._database, self._tally = folder, database, tally
        self._catalogue, self._token, self._limits = folder.catalogue(), token, limits
        self._log = _logger()
        self._board = Board(database, folder.plan)
        self._rounds = RoundsThread(database, coordinator, self._board, self._log)
        self._broken = False
        self._ready_file: Path | None = None

    async def run(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        limits = self._limits
        loop = asyncio.get_running_loop()
        self._board.refresh()

        def died() -> None:
            self._broken = True
            loop.call_soon_threadsafe(server.stop)

        service = Service(
            self._folder.plan,
            self._catalogue,
            self._token,
            self._database,
            self._board,
            self._tally,
            limits,
            moved=self._rounds.wake,
            failed=lambda error: self._log.error("not stored", detail=str(error)),
            died=died,
        )
        patience = Patience(
            limits.head_seconds, limits.rest_seconds, limits.idle_seconds, limits.write_seconds
        )
        config = uvicorn.Config(
            service,
            http=bounded(patience),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            backlog=2048,
            timeout_keep_alive=patience.idle,
            timeout_graceful_shutdown=1,
        )
        config.load()
        config.ssl = context
        server = _Uvicorn(config, lambda: self._ready(listener, context is not None))
        service.connections = server.server_state.connections
        loop.set_exception_handler(self._unforeseen)
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, server.stop)
        loop.add_signal_handler(signal.SIGHUP, self._renew, context)
        self._rounds.start(died)
        try:
            await server.serve(sockets=[listener])
        finally:
            if self._ready_file is not None:
                self._ready_file.unlink(missing_ok=True)
            self._rounds.stop()
            service.close()
            self._log.info("stopped")
        if self._broken:
            raise ServiceError(
                "the server stopped because of an error that nobody has foreseen, which is in its "
                "log; what was acknowledged is stored: start it again"
            )

    def _ready(self, listener: socket.socket, secure: bool) -> None:
        host, port = listener.getsockname()[:2]
        if ipaddress.ip_address(host).is_unspecified:
            host = "127.0.0.1"
        name = f"[{host}]" if ":" in host else host
        url = f"{'https' if secure else 'http'}://{name}:{port}"
        place = self._folder.ready_file(port, shared=self._database.shared)
        fresh = place.with_suffix(".new")
        fresh.write_text(json.dumps({"url": url, "pid": os.getpid(), "port": port}))
        os.replace(fresh, place)
        self._ready_file = place
        self._log.info("listening", url=url)

    def _renew(self, context: ssl.SSLContext | None) -> None:
        """Show the certificate that is in the folder now to whoever connects from now on."""
        if context is None:
            return
        keys = self._folder.keys
        try:
            server_context(keys)  # looks at everything, and leaves the one in use alone
            context.load_cert_chain(keys / SERVER_CERTIFICATE, keys / SERVER_KEY)
        except (KeyTrouble, OSError) as error:
            self._log.error("certificate not renewed", detail=f"{error}; the old one stays in use")
        else:
            self._log.info("certificate renewed")

    def _unforeseen(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError):  # strangers and broken lines; those that matter are counted
            return
        self._log.error("unforeseen", detail=context.get("message", ""), kind=type(error).__name__)


class RoundsThread:
    """Moves rounds on where this process is the one to do it, and keeps the board up to date."""

    def __init__(
        self, database: Database, coordinator: Coordinator, board: Board, log: Any
    ) -> None:
        self._database, self._coordinator, self._board = database, coordinator, board
        self._log = log
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rounds", daemon=True)
        self._died: Callable[[], None] = self._stopping.set

    def start(self, died: Callable[[], None]) -> None:
        """`died` is called where the thread ends by an error that nobody has foreseen."""
        self._died = died
        self._thread.start()

    def wake(self) -> None:
        """Something has happened that may end or open a round."""
        self._woken.set()

    def stop(self) -> None:
        self._stopping.set()
        self._woken.set()
        self._thread.join(timeout=3)

    def _run(self) -> None:
        try:
            self._move_until_stopped()
        finally:
            if not self._stopping.is_set():
                self._died()

    def _move_until_stopped(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._database.leading() as leader:
                    until = float("inf") if leader is not None else time.monotonic() + _RETRY
                    while not self._stopping.is_set() and time.monotonic() < until:
                        self._woken.clear()
                        events = [] if leader is None else self._coordinator.step(leader)
                        for event in events:
                            self._say(event)
                        self._board.refresh()
                        if not events:
                            self._wait()
            except SottovoceError as error:
                self._log.error("rounds do not move on", detail=str(error))
                self._stopping.wait(_RETRY)

    def _wait(self) -> None:
        longest = _WATCH_SHARED if self._database.shared else _WATCH_ALONE
        if self._board.now.position.state == "open":
            longest = min(longest, self._coordinator.seconds_left() + 0.001)
        self._woken.wait(longest)
        self._stopping.wait(_SPACING)  # many reports make one look

    def _say(self, event: Any) -> None:
        self._log.info(
            "round opened" if event.what == "opened" else "round over",
            outcome=event.what,
            round=event.round,
            attempt=event.attempt,
            asked=event.asked,
            reported=event.reported,
            seconds=event.seconds,
        )


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the process has its own


def _listen(host: str, port: int) -> socket.socket:
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
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ServiceError(
            f"the server cannot listen at {host}, port {port}: {error.strerror}; choose another "
            "with --port"
        ) from None
    return listener


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _logger() -> Any:
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


def _allow_connections() -> None:
    """Every connection is an open file, and systems allow few of them at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
