"""A data owner's process: it takes users' messages over HTTPS, and takes part in the orchestrator's
rounds as a Flower node; both on the same store."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import signal
import socket
import ssl
import sys
import threading
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
from sottovoce.engines.https.owner_folder import OwnerFolder, open_owner_folder
from sottovoce.engines.https.owner_service import OwnerLimits, OwnerService
from sottovoce.engines.https.protocol import Patience
from sottovoce.engines.https.ready import write_ready_file
from sottovoce.engines.https.refusals import Tally, count_handshakes
from sottovoce.errors import ServiceError, SottovoceError, UsageError
from sottovoce.parties.owner import DataOwner
from sottovoce.parties.silo_files import Admission

_SWITCH = 0.0005
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0
"""Seconds until a node that was not let in knocks again; doubled each time."""
_NODE_ENDS = 20.0
Died = Callable[[], None]


def run_owner(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 8445,
    *,
    plaintext: bool = False,
    users_only: bool = False,
    limits: OwnerLimits | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the data owner in `path` until SIGTERM or SIGINT; SIGHUP takes up a renewed
    certificate. Port 0 takes a free one; where the service listens is in the ready file, and
    `ready` is told. With `users_only` it takes no part in the orchestrator's rounds. Raises with
    one sentence where it cannot start."""
    if plaintext and not is_loopback(host):
        raise UsageError(f"--plaintext is for a loopback address, not for {host}")
    folder = open_owner_folder(path)
    if not users_only and importlib.util.find_spec("flwr") is None:
        raise ModuleNotFoundError("No module named 'flwr'", name="flwr")
    tally = Tally()
    context = None
    if not plaintext:
        context = server_context(folder.keys)
        count_handshakes(context, tally)
    token = operator_token(folder.keys)
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(contextlib.closing(folder.owner()))
        listener = stack.enter_context(listen(host, port))
        log = logger()
        admission = None if users_only else folder.admission()
        node = None if admission is None else Node(folder, admission, owner, log)
        allow_connections()
        # Requests must not wait long for the threads that write and take part in rounds.
        sys.setswitchinterval(_SWITCH)
        gc.collect()
        gc.freeze()
        process = _Process(folder, owner, node, tally, token, limits or OwnerLimits(), log)
        uvloop.run(process.run(listener, context, ready or (lambda url: None)))


class Node:
    """The owner's part in the orchestrator's rounds: a thread, with Flower's SuperNode as its
    child. An orchestrator that is away, or does not let it in, is asked again; users' messages are
    taken meanwhile."""

    def __init__(
        self, folder: OwnerFolder, admission: Admission, owner: DataOwner, log: Any
    ) -> None:
        from sottovoce.engines.flower.supernode import Connection

        secure = bool(admission.ca)
        self._connection = Connection(
            admission.gateway,
            folder.gateway_authority if secure else None,
            folder.node_key if secure else None,
        )
        self._folder, self._owner, self._log = folder, owner, log
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = ""

    @property
    def state(self) -> str:
        """One word, or what stands in the way."""
        return self._trouble or "running"

    def start(self, died: Died) -> None:
        """`died` is called where it ends by an error that nobody has foreseen."""
        self._thread = threading.Thread(target=self._run, args=(died,), name="node", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_NODE_ENDS)

    def _run(self, died: Died) -> None:
        try:
            self._take_part()
        finally:
            if not self._stop.is_set():
                died()

    def _take_part(self) -> None:
        # Flower is imported late: it takes longer than all the rest, and users need not wait.
        from sottovoce.engines.flower.silo_node import build_owner_app
        from sottovoce.engines.flower.supernode import serve_app

        app, pause = build_owner_app(self._owner), _FIRST_PAUSE
        while not self._stop.is_set():
            try:
                self._log.info("joining the orchestrator's rounds", at=self._connection.address)
                serve_app(
                    app, self._connection, self._folder.keep_node, self._folder.node, self._stop
                )
            except SottovoceError as error:
                self._trouble = str(error)
                self._log.error("not part of the orchestrator's rounds", detail=str(error))
                self._stop.wait(pause)
                self._trouble, pause = "", min(2 * pause, _LONGEST_PAUSE)


class _Process:
    def __init__(
        self,
        folder: OwnerFolder,
        owner: DataOwner,
        node: Node | None,
        tally: Tally,
        token: str,
        limits: OwnerLimits,
        log: Any,
    ) -> None:
        self._folder, self._owner, self._node = folder, owner, node
        self._tally, self._token, self._limits, self._log = tally, token, limits, log
        self._broken = False

    async def run(
        self,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        ready: Callable[[str], None],
    ) -> None:
        limits, loop, place = self._limits, asyncio.get_running_loop(), self._folder.ready_file
        node = self._node

        def died() -> None:
            self._broken = True
            loop.call_soon_threadsafe(server.stop)

        def listening() -> None:
            url, port = address_of(listener, context is not None)
            write_ready_file(place, url, port)
            self._log.info("listening", url=url)
            if node is None:
                self._log.info("serving users only, without the orchestrator")
            ready(url)

        service = OwnerService(
            self._owner,
            self._token,
            self._tally,
            limits,
            node=lambda: "none" if node is None else node.state,
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
        if node is not None:
            node.start(died)
        try:
            await server.serve(sockets=[listener])
        finally:
            place.unlink(missing_ok=True)
            service.close()
            if node is not None:
                node.stop()
            self._log.info("stopped")
        if self._broken:
            raise ServiceError(
                "the data owner stopped because of an error that nobody has foreseen, which is in "
                "its log; what was acknowledged is stored: start it again"
            )
