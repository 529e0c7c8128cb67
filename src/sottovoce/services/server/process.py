"""The server as a service: what it needs to start, and the thread that moves its rounds on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.errors import SottovoceError
from sottovoce.services.kit.serving import Beside, Parts, Service, Start
from sottovoce.services.server.application import ServerApplication, ServerLimits
from sottovoce.services.server.shuffled_rounds import coordinator_of
from sottovoce.services.server.state import RoundState
from sottovoce.stores.catalogue import catalogue_name, require_catalogue
from sottovoce.stores.coordinator import Coordinator
from sottovoce.stores.database import Database
from sottovoce.stores.keys import ReportKeys
from sottovoce.stores.server import raise_target
from sottovoce.stores.server_folder import ServerFolder, ShufflerSecrets, open_folder

_WATCH_SHARED, _WATCH_ALONE = 0.2, 1.0
"""Seconds after which a process looks into the database even if it heard nothing."""
_SPACING = 0.03
_RETRY = 1.0


@dataclass(frozen=True, slots=True)
class ServerService(Service[ServerFolder, ServerLimits]):
    """The server of a federation. `skip_to_round` is for a database that was set back
    (`Coordinator.skip_to`)."""

    database: str | None = None
    rounds: int | None = None
    skip_to_round: int | None = None

    name = "the server"
    port = 8443
    limits = ServerLimits

    def open(self, path: Path) -> ServerFolder:
        return open_folder(path)

    def prepare(self, start: Start[ServerFolder, ServerLimits]) -> Parts:
        folder, plan = start.folder, start.folder.plan
        proxy = None
        if plan.proxied:
            proxy = ShufflerSecrets.of(folder.keys)
            ReportKeys(folder.keys).newest()
        store = start.keep(folder.database(self.database))
        if not store.shared:
            start.stack.enter_context(folder.locked())
        start.listen()
        coordinator, catalogue = (
            coordinator_of(plan, time.monotonic, folder.keys),
            folder.catalogue(),
        )
        with store.writing() as link:
            store.take_turn(link)
            coordinator.start(link)
            require_catalogue(link, catalogue)
            if self.rounds is not None:
                raise_target(link, self.rounds)
            if self.skip_to_round is not None:
                coordinator.skip_to(link, self.skip_to_round)
        state = RoundState(store, plan, catalogue_name(catalogue))
        state.refresh()
        rounds = RoundsThread(store, coordinator, state, start.log)
        return Parts(
            lambda: ServerApplication(
                start.hosting, plan, catalogue, store, state, moved=rounds.wake, proxy=proxy
            ),
            lambda port: folder.ready_file(port, shared=store.shared),
            [Beside(rounds.start, rounds.stop)],
        )


class RoundsThread:
    """Moves rounds on if this process is the one to do it, and keeps the round state up to date."""

    def __init__(
        self, database: Database, coordinator: Coordinator, state: RoundState, log: Any
    ) -> None:
        self._database, self._coordinator, self._state = database, coordinator, state
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
                        self._state.refresh(None if leader is None else self._coordinator.looked)
                        self._tidy()
                        if not events:
                            self._wait()
            except SottovoceError as error:
                self._log.error("rounds do not move on", detail=str(error))
                self._stopping.wait(_RETRY)

    def _tidy(self) -> None:
        now = self._state.now.position
        if now.state == "open" and now.round != self._tidied:
            with self._database.reading() as link:
                self._coordinator.tidy(link)
            self._tidied = now.round

    def _wait(self) -> None:
        longest = _WATCH_SHARED if self._database.shared else _WATCH_ALONE
        if self._state.now.position.state == "open":
            longest = min(longest, self._coordinator.seconds_left() + 0.001)
        self._woken.wait(longest)
        self._stopping.wait(_SPACING)  # many reports make one look

    def _say(self, event: Any) -> None:
        if event.what in ("published", "held_back"):
            say = self._log.warning if event.notices else self._log.info
            detail = {"detail": event.notices[0]} if event.notices else {}
            say(f"version {event.what.replace('_', ' ')}", version=event.round, **detail)
            return
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
