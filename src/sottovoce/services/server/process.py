"""A server process: what it needs to start, what it does until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from sottovoce.errors import ServiceError, SottovoceError, UsageError
from sottovoce.services.kit.serving import (
    Listener,
    address_of,
    allow_connections,
    is_loopback,
    listen,
    logger,
    renew_certificate,
    unforeseen,
)
from sottovoce.services.server.application import Limits, Service
from sottovoce.services.server.shuffled_rounds import coordinator_of
from sottovoce.services.server.state import Board
from sottovoce.stores.coordinator import Coordinator
from sottovoce.stores.database import Database
from sottovoce.stores.keys import ReportKeys, operator_token, server_context
from sottovoce.stores.ready import write_ready_file
from sottovoce.stores.server import raise_target, require_catalogue
from sottovoce.stores.server_folder import ProxySecrets, ServerFolder, open_folder
from sottovoce.wire.refusals import Tally, count_handshakes

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
    if plaintext and not is_loopback(host):
        raise UsageError(f"--plaintext is for a loopback address, not for {host}")
    folder = open_folder(path)
    tally = Tally()
    context = None
    if not plaintext:
        context = server_context(folder.keys)
        count_handshakes(context, tally)
    token = operator_token(folder.keys)
    proxy = None
    if folder.plan.proxied:
        proxy = ProxySecrets.of(folder.keys)
        ReportKeys(folder.keys).newest()
    with contextlib.ExitStack() as stack:
        store = folder.database(database)
        stack.callback(store.close)
        if not store.shared:
            stack.enter_context(folder.locked())
        listener = stack.enter_context(listen(host, port))
        coordinator = coordinator_of(folder.plan, time.monotonic, folder.keys)
        with store.writing() as link:
            store.take_turn(link)
            coordinator.start(link)
            require_catalogue(link, folder.catalogue())
            if rounds is not None:
                raise_target(link, rounds)
            if skip_to_round is not None:
                coordinator.skip_to(link, skip_to_round)
        allow_connections()
        # Requests must not wait long for the thread that writes.
        sys.setswitchinterval(_SWITCH)
        # What is loaded by now stays: the collector need not look at it for every few requests.
        gc.collect()
        gc.freeze()
        process = _Process(folder, store, coordinator, tally, token, limits or Limits(), proxy)
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
        proxy: ProxySecrets | None,
    ) -> None:
        self._folder, self._database, self._tally = folder, database, tally
        self._proxy = proxy
        self._catalogue, self._token, self._limits = folder.catalogue(), token, limits
        self._log = logger()
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
            proxy=self._proxy,
        )
        server = Listener(
            service,
            limits,
            context,
            self._tally,
            lambda: self._ready(listener, context is not None),
        )
        loop.set_exception_handler(unforeseen(self._log))
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
        url, port = address_of(listener, secure)
        place = self._folder.ready_file(port, shared=self._database.shared)
        write_ready_file(place, url, port)
        self._ready_file = place
        self._log.info("listening", url=url)

    def _renew(self, context: ssl.SSLContext | None) -> None:
        """Show the certificate that is in the folder now to whoever connects from now on."""
        if context is not None:
            renew_certificate(context, self._folder.keys, self._log)


class RoundsThread:
    """Moves rounds on where this process is the one to do it, and keeps the board up to date."""

    def __init__(
        self, database: Database, coordinator: Coordinator, board: Board, log: Any
    ) -> None:
        self._database, self._coordinator, self._board = database, coordinator, board
        self._log = log
        self._tidied = -1
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
                        self._board.refresh(None if leader is None else self._coordinator.looked)
                        self._tidy()
                        if not events:
                            self._wait()
            except SottovoceError as error:
                self._log.error("rounds do not move on", detail=str(error))
                self._stopping.wait(_RETRY)

    def _tidy(self) -> None:
        now = self._board.now.position
        if now.state == "open" and now.round != self._tidied:
            with self._database.reading() as link:
                self._coordinator.tidy(link)
            self._tidied = now.round

    def _wait(self) -> None:
        longest = _WATCH_SHARED if self._database.shared else _WATCH_ALONE
        if self._board.now.position.state == "open":
            longest = min(longest, self._coordinator.seconds_left() + 0.001)
        self._woken.wait(longest)
        self._stopping.wait(_SPACING)  # many reports make one look

    def _say(self, event: Any) -> None:
        words = {"opened": "round opened", "closing": "round is closing"}
        self._log.info(
            words.get(event.what, "round over"),
            outcome=event.what,
            round=event.round,
            attempt=event.attempt,
            asked=event.asked,
            reported=event.reported,
            seconds=event.seconds,
        )
        if event.trouble:
            self._log.error("round given up", round=event.round, detail=event.trouble)
        for notice in event.notices:
            self._log.warning("secure sum", round=event.round, detail=notice)
