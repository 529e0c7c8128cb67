"""A proxy process: what it needs to start, what it does until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from sottovoce.engines.https.keys import operator_token, server_context
from sottovoce.engines.https.listening import (
    Listener,
    address_of,
    allow_connections,
    is_loopback,
    listen,
    logger,
    renew_certificate,
    unforeseen,
)
from sottovoce.engines.https.protocol import Patience
from sottovoce.engines.https.proxy_folder import ProxyFolder, open_proxy_folder
from sottovoce.engines.https.proxy_handover import Courier, Goal
from sottovoce.engines.https.proxy_service import ProxyLimits, ProxyService
from sottovoce.engines.https.proxy_store import ProxyStore
from sottovoce.engines.https.ready import write_ready_file
from sottovoce.engines.https.refusals import Tally, count_handshakes
from sottovoce.errors import ServiceError, UsageError

_SWITCH = 0.0005


def run_proxy(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 8444,
    *,
    goal: Goal | None = None,
    hold_seconds: float = 60.0,
    plaintext: bool = False,
    limits: ProxyLimits | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the proxy in `path` until SIGTERM or SIGINT; SIGHUP takes up a renewed certificate.
    Port 0 takes a free one; where the proxy listens is in the ready file, and `ready` is told.
    Raises with one sentence where it cannot start."""
    if plaintext and not is_loopback(host):
        raise UsageError(f"--plaintext is for a loopback address, not for {host}")
    folder = open_proxy_folder(path)
    tally = Tally()
    context = None
    if not plaintext:
        context = server_context(folder.keys)
        count_handshakes(context, tally)
    token = operator_token(folder.keys)
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder.locked())
        store = folder.store()
        stack.callback(store.close)
        listener = stack.enter_context(listen(host, port))
        log = logger()
        courier = Courier(folder, store, log, goal=goal or {}, hold_seconds=hold_seconds)
        allow_connections()
        # Requests must not wait long for the threads that write and hand over.
        sys.setswitchinterval(_SWITCH)
        gc.collect()
        gc.freeze()
        process = _Process(folder, store, courier, tally, token, limits or ProxyLimits(), log)
        uvloop.run(process.run(listener, context, ready or (lambda url: None)))


class _Process:
    def __init__(
        self,
        folder: ProxyFolder,
        store: ProxyStore,
        courier: Courier,
        tally: Tally,
        token: str,
        limits: ProxyLimits,
        log: Any,
    ) -> None:
        self._folder, self._store, self._courier = folder, store, courier
        self._tally, self._token, self._limits, self._log = tally, token, limits, log
        self._broken = False

    async def run(
        self,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        ready: Callable[[str], None],
    ) -> None:
        limits, loop, place = self._limits, asyncio.get_running_loop(), self._folder.ready_file

        def died() -> None:
            self._broken = True
            loop.call_soon_threadsafe(server.stop)

        def listening() -> None:
            url, port = address_of(listener, context is not None)
            write_ready_file(place, url, port)
            self._log.info("listening", url=url)
            ready(url)

        service = ProxyService(
            self._folder,
            self._token,
            self._store,
            self._courier,
            self._tally,
            limits,
            failed=lambda error: self._log.error("not stored", detail=str(error)),
            died=died,
        )
        patience = Patience(
            limits.head_seconds, limits.rest_seconds, limits.idle_seconds, limits.write_seconds
        )
        server = Listener(service, patience, context, listening)
        service.connections = server.server_state.connections
        loop.set_exception_handler(unforeseen(self._log))
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, server.stop)
        if context is not None:
            loop.add_signal_handler(
                signal.SIGHUP, renew_certificate, context, self._folder.keys, self._log
            )
        self._courier.start(died)
        try:
            await server.serve(sockets=[listener])
        finally:
            place.unlink(missing_ok=True)
            service.close()
            self._courier.stop()
            self._log.info("stopped")
        if self._broken:
            raise ServiceError(
                "the proxy stopped because of an error that nobody has foreseen, which is in its "
                "log; what was acknowledged is stored: start it again"
            )
