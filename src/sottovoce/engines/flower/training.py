"""The orchestrator's rounds: a SuperLink with its executor, the gateway for data owners' nodes, and
a run that goes on as long as there is something to do.

Processes are started where `start` is called, which must be the main thread, and end with it. What
takes a while at the SuperLink happens in a thread of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sottovoce.engines.flower.gateway import Site, find_nginx, start_gateway
from sottovoce.engines.flower.launch import Settings
from sottovoce.engines.flower.quiet import flower_environment
from sottovoce.engines.flower.silo_node import require_flower
from sottovoce.engines.flower.superlink import (
    SuperLink,
    SuperLinkPlace,
    register_nodes,
    run_state,
    start_run,
)
from sottovoce.engines.processes import Child
from sottovoce.errors import ServiceError, UsageError
from sottovoce.stores.conductor import conducted, read_status
from sottovoce.stores.orchestrator import OrchestratorStore
from sottovoce.stores.orchestrator_folder import OrchestratorFolder
from sottovoce.stores.private import private_file, private_folder

_LOOK_SECONDS = 1.0
_STARTING_SECONDS = 20.0
"""Seconds in which a run that was started takes up its work."""
_AGAIN, _AGAIN_AT_MOST = 5.0, 300.0
"""Seconds until another run follows one that failed."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How rounds are held, and where nodes come in."""

    superlink_port: int = 9091
    gateway_host: str = "127.0.0.1"
    gateway_port: int = 9092
    rounds: int | None = None
    """Rounds to run in all; without end where it is None."""
    every: float = 60.0
    """Seconds from the start of a round to that of the next."""
    deadline: float = 60.0
    """Seconds that data owners have for an answer; there are two in a round."""
    wait_for: int = 1
    """Data owners that must be there before the first round."""
    patience: float = 0.0
    """Seconds for which later rounds wait for those that are away."""


class SiloTraining:
    def __init__(
        self, folder: OrchestratorFolder, store: OrchestratorStore, log: Any, plan: TrainingPlan
    ) -> None:
        require_flower()
        if plan.rounds is not None:
            store.raise_target(plan.rounds)
        self._folder, self._store, self._plan, self._log = folder, store, plan, log
        root = folder.path.absolute()
        self._place = SuperLinkPlace(root / "superlink", plan.superlink_port, folder.keys)
        self._known = self._place.work / "nodes"
        self._work = root / "gateway"
        self._link: SuperLink | None = None
        self._gateway: Child | None = None
        self._seen = -1
        self._run: int | None = None
        self._patient_until = 0.0
        self._again = _AGAIN
        self._stopping = threading.Event()
        self._failed: Callable[[ServiceError], None] = lambda error: None
        self._thread = threading.Thread(target=self._watch, name="training", daemon=True)
        self.entrance = ""
        """HOST:PORT at which nodes come in from this machine; empty where there is no gateway."""

    def start(self) -> None:
        """Start the processes. Raises with one sentence where that fails."""
        private_folder(self._place.work)
        try:
            self._link = SuperLink(self._place)
            self._start_gateway()
        except BaseException:
            self.stop()
            raise

    def _start_gateway(self) -> None:
        plan = self._plan
        private_folder(self._work)
        site = Site(
            self._folder.keys,
            plan.superlink_port,
            plan.gateway_port,
            plan.gateway_host,
            self._work / "access.log",
        )
        if find_nginx() is None:
            place = private_file(self._work / "site.conf")
            place.write_text(site.render())
            self._log.warning(
                "no gateway",
                detail="nginx is not installed: data owners must come in another way, as through "
                f"an nginx elsewhere with {place}, which reaches port {plan.superlink_port} here",
            )
            return
        environment = flower_environment(self._work)
        self._gateway = start_gateway(site, self._work, environment)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(plan.gateway_host, plan.gateway_host)
        self.entrance = f"{f'[{host}]' if ':' in host else host}:{plan.gateway_port}"

    def watch(self, failed: Callable[[ServiceError], None]) -> None:
        """From now on see to it that rounds go on; `failed` is told when they cannot any more."""
        self._failed = failed
        self._thread.start()

    def stop(self) -> None:
        """End all that was started here. The next start goes on with the round that was open."""
        self._stopping.set()
        if self._gateway is not None:
            self._gateway.stop()
            self._gateway = None
        if self._link is not None:
            self._link.stop()
            self._link = None
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    # --- in the thread ----------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stopping.is_set():
            try:
                self._require_alive()
            except ServiceError as error:
                if not self._stopping.is_set():
                    self._failed(error)
                return
            try:
                self._let_in()
                self._go_on()
            except (ServiceError, UsageError) as error:
                if not self._stopping.is_set():
                    self._log.error("rounds do not go on", detail=str(error))
                self._stopping.wait(_AGAIN)
            self._stopping.wait(_LOOK_SECONDS)

    def _require_alive(self) -> None:
        link, gateway = self._link, self._gateway
        if link is not None:
            link.require_alive()
        if gateway is not None:
            gateway.require_alive()

    def _let_in(self) -> None:
        """Register the nodes of data owners that were admitted since the last look."""
        version = self._store.directory_version
        if version == self._seen:
            return
        private_folder(self._known)
        for owner in self._store.owners():
            place = self._known / f"{owner.identity}.pub"
            if place.exists():
                continue
            fresh = private_file(self._known / f"{owner.identity}.new.pub")
            fresh.write_text(f"{owner.node_key} owner-{owner.number}\n")
            register_nodes(self._place, [fresh])
            os.replace(fresh, place)
            self._log.info("data owner registered", owner=owner.name)
        self._seen = version

    def _go_on(self) -> None:
        """Start a run where none is at work and there is something to do."""
        if conducted(self._folder.path):
            self._again = _AGAIN
            return
        now = time.monotonic()
        if now < self._patient_until or not self._due():
            return
        if self._run is not None:
            state = run_state(self._place, self._run)
            if not state.startswith("finished") and state != "unknown":
                return
            self._say_why()
            self._run, self._patient_until = None, now + self._again
            self._again = min(2 * self._again, _AGAIN_AT_MOST)
            return
        self._run = start_run(self._place, self._settings())
        self._patient_until = time.monotonic() + _STARTING_SECONDS
        self._log.info("run started", run=str(self._run))

    def _due(self) -> bool:
        if not self._store.owners():
            return False
        return self._plan.rounds is None or self._store.round < self._store.target()

    def _say_why(self) -> None:
        status = read_status(self._folder.path)
        if status.get("run") == str(self._run) and status.get("state") == "failed":
            self._log.error("run failed", detail=str(status.get("error")))

    def _settings(self) -> Settings:
        plan = self._plan
        end: Settings = {} if plan.rounds is None else {"rounds": self._store.target()}
        return {
            "kind": "drift",
            "folder": str(self._folder.path.absolute()),
            "nodes": plan.wait_for,
            "hold": True,
            "every_seconds": plan.every,
            "deadline_seconds": plan.deadline,
            "patience_seconds": plan.patience,
            **end,
        }
