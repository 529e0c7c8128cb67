"""An orchestrator's process: users come to it over HTTPS, and rounds with the data owners go on
beside it, on the same store."""

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from sottovoce.engines.https.orchestrator_folder import (
    OrchestratorFolder,
    open_orchestrator_folder,
)
from sottovoce.engines.https.orchestrator_service import OrchestratorLimits, OrchestratorService
from sottovoce.engines.https.orchestrator_status import figures
from sottovoce.engines.https.protocol import Patience
from sottovoce.engines.https.ready import write_ready_file
from sottovoce.engines.https.refusals import Tally, count_handshakes
from sottovoce.errors import ServiceError, UsageError
from sottovoce.parties.orchestrator_store import OrchestratorStore

if TYPE_CHECKING:
    from sottovoce.engines.https.orchestrator_training import Training, TrainingPlan

_COUNT_SECONDS = 2.0
"""Refusals are stored so often."""


def run_orchestrator(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 8446,
    *,
    plan: TrainingPlan | None = None,
    plaintext: bool = False,
    limits: OrchestratorLimits | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the orchestrator in `path` until SIGTERM or SIGINT; SIGHUP takes up a renewed
    certificate. Port 0 takes a free one; where it listens is in the ready file, and `ready` is
    told. Without a plan users are served, and no rounds are held. Raises with one sentence where
    it cannot start."""
    if plaintext and not is_loopback(host):
        raise UsageError(f"--plaintext is for a loopback address, not for {host}")
    folder = open_orchestrator_folder(path)
    if plan is not None and importlib.util.find_spec("flwr") is None:
        raise ModuleNotFoundError("No module named 'flwr'", name="flwr")
    tally = Tally()
    context = None
    if not plaintext:
        context = server_context(folder.keys)
        count_handshakes(context, tally)
    token = operator_token(folder.keys)
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder.locked())
        store = stack.enter_context(contextlib.closing(folder.store()))
        listener = stack.enter_context(listen(host, port))
        log = logger()
        training = None
        if plan is not None:
            from sottovoce.engines.https.orchestrator_training import Training

            training = Training(folder, store, plan, log)
            stack.callback(training.stop)
            with _quiet_end():
                training.start()
        allow_connections()
        gc.collect()
        gc.freeze()
        process = _Process(
            folder, store, training, tally, token, limits or OrchestratorLimits(), log
        )
        uvloop.run(process.run(listener, context, ready or (lambda url: None)))


class _Process:
    def __init__(
        self,
        folder: OrchestratorFolder,
        store: OrchestratorStore,
        training: Training | None,
        tally: Tally,
        token: str,
        limits: OrchestratorLimits,
        log: Any,
    ) -> None:
        self._folder, self._store, self._training = folder, store, training
        self._tally, self._token, self._limits, self._log = tally, token, limits, log
        self._broken: ServiceError | None = None

    async def run(
        self,
        listener: socket.socket,
        context: ssl.SSLContext | None,
        ready: Callable[[str], None],
    ) -> None:
        limits, loop, training = self._limits, asyncio.get_running_loop(), self._training

        def failed(error: ServiceError) -> None:
            self._broken = error
            loop.call_soon_threadsafe(server.stop)

        def listening() -> None:
            url, port = address_of(listener, context is not None)
            more = {} if training is None else {"gateway": training.entrance}
            write_ready_file(self._folder.ready_file, url, port, **more)
            self._log.info("listening", url=url)
            ready(url)

        service = OrchestratorService(
            self._store,
            self._folder.issuer(),
            self._folder.users_identity(),
            self._token,
            self._tally,
            limits,
            figures=lambda: figures(self._store, self._tally),
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
        counts = Counts(self._store, self._tally, self._log)
        if training is not None:
            training.watch(failed)
        try:
            await server.serve(sockets=[listener])
        finally:
            self._folder.ready_file.unlink(missing_ok=True)
            service.close()
            counts.stop()
            if training is not None:
                training.stop()
            self._log.info("stopped")
        if self._broken is not None:
            raise ServiceError(
                f"the orchestrator stopped because {self._broken}; what was acknowledged is "
                "stored: start it again"
            )


class Counts:
    """A thread that brings counts of refusals to the store."""

    def __init__(self, store: OrchestratorStore, tally: Tally, log: Any) -> None:
        self._store, self._tally, self._log = store, tally, log
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="counts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=3)

    def _run(self) -> None:
        while not self._stopping.wait(_COUNT_SECONDS):
            self._keep()
        self._keep()

    def _keep(self) -> None:
        try:
            with self._tally.storing() as counts:
                for reason, times in counts.items():
                    self._store.refuse(reason, times)
        except ServiceError as error:
            self._log.error("not stored", detail=str(error))


@contextlib.contextmanager
def _quiet_end() -> Iterator[None]:
    """Within, SIGTERM ends the process in order: what was started is stopped."""

    def end(number: int, frame: object) -> None:
        sys.exit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
