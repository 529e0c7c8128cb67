"""An orchestrator's process: users come to it over HTTPS, and rounds with the data owners go on
beside it, on the same store."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from sottovoce.errors import ServiceError, UsageError
from sottovoce.services.kit.serving import Beside, Process, is_loopback, listen, logger, tls_of
from sottovoce.services.orchestrator import OrchestratorLimits, OrchestratorService, figures
from sottovoce.stores.keys import operator_token
from sottovoce.stores.orchestrator import OrchestratorStore
from sottovoce.stores.orchestrator_folder import OrchestratorFolder, open_orchestrator_folder
from sottovoce.wire.refusals import RefusalCounts

_COUNT_SECONDS = 2.0
"""Refusals are stored so often."""


class Rounds(Protocol):
    """Who holds the rounds with the data owners, beside the service, on the same store."""

    entrance: str
    """HOST:PORT at which data owners come in from this machine; empty if there is none."""

    def start(self) -> None: ...

    def watch(self, failed: Callable[[ServiceError], None]) -> None: ...

    def stop(self) -> None: ...


def run_orchestrator(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 8446,
    *,
    rounds: Callable[[OrchestratorFolder, OrchestratorStore, Any], Rounds] | None = None,
    plaintext: bool = False,
    limits: OrchestratorLimits | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the orchestrator in `path` until SIGTERM or SIGINT; SIGHUP takes up a renewed
    certificate. Port 0 takes a free one; where it listens is in the ready file, and `ready` is
    told. `rounds` makes those who hold the rounds; without it only users are served. Raises with
    one sentence if it cannot start."""
    if plaintext and not is_loopback(host):
        raise UsageError(f"--plaintext is for a loopback address, not for {host}")
    folder = open_orchestrator_folder(path)
    limits = limits or OrchestratorLimits()
    tally = RefusalCounts()
    context = None if plaintext else tls_of(folder.keys, tally)
    token = operator_token(folder.keys)
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder.locked())
        store = stack.enter_context(contextlib.closing(folder.store()))
        listener = stack.enter_context(listen(host, port))
        log = logger()
        counts = Counts(store, tally, log)
        beside, facts = [Beside(lambda fail: counts.start(), counts.stop)], {}
        if rounds is not None:
            training = rounds(folder, store, log)
            stack.callback(training.stop)
            with _quiet_end():
                training.start()
            beside.append(Beside(training.watch, training.stop))
            facts = {"gateway": training.entrance}

        def service() -> OrchestratorService:
            return OrchestratorService(
                store,
                folder.issuer(),
                folder.users_identity(),
                token,
                tally,
                limits,
                figures=lambda: figures(store, tally),
            )

        process = Process("the orchestrator", folder, listener, context, tally, log)
        process.run(service, limits, beside, ready, **facts)


class Counts:
    """A thread that brings counts of refusals to the store."""

    def __init__(self, store: OrchestratorStore, tally: RefusalCounts, log: Any) -> None:
        self._store, self._tally, self._log = store, tally, log
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="counts", daemon=True)

    def start(self) -> None:
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


# The orchestrator's rounds: a SuperLink with its executor, the gateway for data owners' nodes,
# and a run that goes on as long as there is something to do. Processes are started where `start`
# is called, which must be the main thread, and end with it. What takes a while at the SuperLink
# happens in a thread of its own.
