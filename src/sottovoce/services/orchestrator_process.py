"""An orchestrator's process: users come to it over HTTPS, and rounds with the data owners go on
beside it, on the same store."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sottovoce.errors import ServiceError
from sottovoce.services.kit.serving import Beside, Parts, Service, Start
from sottovoce.services.orchestrator import OrchestratorApplication, OrchestratorLimits
from sottovoce.stores.orchestrator import OrchestratorStore
from sottovoce.stores.orchestrator_folder import OrchestratorFolder, open_orchestrator_folder
from sottovoce.wire.refusals import Tally

_COUNT_SECONDS = 2.0
"""Refusals are stored so often."""


class Rounds(Protocol):
    """Who holds the rounds with the data owners, beside the service, on the same store."""

    entrance: str
    """HOST:PORT at which data owners come in from this machine; empty if there is none."""

    def start(self) -> None: ...

    def watch(self, failed: Callable[[ServiceError], None]) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OrchestratorService(Service[OrchestratorFolder, OrchestratorLimits]):
    """An orchestrator. `rounds` makes those who hold the rounds; without it only users are
    served."""

    rounds: Callable[[OrchestratorFolder, OrchestratorStore, Any], Rounds] | None = None

    name = "the orchestrator"
    port = 8446
    limits = OrchestratorLimits

    def open(self, path: Path) -> OrchestratorFolder:
        return open_orchestrator_folder(path)

    def prepare(self, start: Start[OrchestratorFolder, OrchestratorLimits]) -> Parts:
        folder = start.folder
        start.stack.enter_context(folder.locked())
        store = start.keep(folder.store())
        start.listen()
        counts = RefusalCounts(store, start.tally, start.log)
        beside, facts = [Beside(lambda fail: counts.start(), counts.stop)], {}
        if self.rounds is not None:
            training = self.rounds(folder, store, start.log)
            start.stack.callback(training.stop)
            with _quiet_end():
                training.start()
            beside.append(Beside(training.watch, training.stop))
            facts = {"gateway": training.entrance}

        def application() -> OrchestratorApplication:
            return OrchestratorApplication(
                store,
                folder.issuer(),
                folder.users_identity(),
                start.token,
                start.tally,
                start.limits,
            )

        return Parts(application, lambda port: folder.ready_file, beside, facts)


class RefusalCounts:
    """A thread that brings counts of refusals to the store."""

    def __init__(self, store: OrchestratorStore, tally: Tally, log: Any) -> None:
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
