"""An experiment run over HTTPS on loopback: a server, the shuffler (in a chain all of them), the
helper or the aggregators if the terms have them, and an agent for every device."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.ledger import Entries, Ledger
from sottovoce.engines.processes import Child, sottovoce_command, stop_all, wait_for
from sottovoce.engines.trial import (
    Gathered,
    Tick,
    TrialWorld,
    aggregator_place,
    hop_folder,
    kept_port,
    ledger_of,
    make_server_folder,
    make_store,
    number_width,
    prepare_aggregators,
    prepare_chain,
    prepare_helper,
    start_aggregator,
    start_helper,
)
from sottovoce.errors import ServiceError, Stalled, Unreachable
from sottovoce.parties.device import Devices
from sottovoce.rng import streams_of
from sottovoce.services.server.operator import Operator
from sottovoce.stores import server as records
from sottovoce.stores.aggregator_folder import OTHERS
from sottovoce.stores.device import CohortStore
from sottovoce.stores.noted import ENVIRONMENT
from sottovoce.stores.server_folder import (
    Introduction,
    ServerFolder,
    introduction,
    invite,
    open_folder,
)
from sottovoce.stores.session import DeviceSession
from sottovoce.stores.shuffler_folder import create_shuffler_folder
from sottovoce.wire.invitations import keep_invitation

_LOOK_SECONDS = 0.1
_SETTLING_SECONDS = 30.0
_HOLD_SECONDS = 20.0
"""How long the shuffler waits for devices that have used up their budgets."""
_INTRODUCTION = "introduction.json"


@dataclass(slots=True, repr=False)
class HttpsTrial:
    """Device agents may die and rounds go on without them; the services may not."""

    world: TrialWorld
    folder: Path
    processes: int
    """Agents; with 0 there are none, and the devices are the caller's to play."""
    reroute: Callable[[str], str] | None = None
    """Gives the agents another address than the server's own, to put something in between."""
    agents: list[Child] = field(default_factory=list, init=False)
    server: Child | None = field(default=None, init=False)
    proxy: Child | None = field(default=None, init=False)
    """The first shuffler, or the helper."""
    hops: list[Child] = field(default_factory=list, init=False)
    """The shufflers behind the first one."""
    aggregators: dict[int, Child] = field(default_factory=dict, init=False)
    _operator: Operator | None = field(default=None, init=False)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        terms = self.world.terms
        mixing, self.hops = terms.link.mixing, []
        if mixing is not None:
            link = prepare_chain(self.folder, mixing.shufflers)
            self.world = replace(self.world, terms=replace(terms, link=link))
        elif terms.secure_sum is not None:
            summed = prepare_helper(self.folder, terms.secure_sum, self.world.root_key)
            self.world = replace(self.world, terms=replace(terms, link=summed))
        elif terms.link.checking is not None:
            checked = prepare_aggregators(self.folder, terms.link.checking, self.world.root_key)
            self.world = replace(self.world, terms=replace(terms, link=checked))
        folder = self._prepared()
        try:
            if terms.secure_sum is not None:
                self.start_helper()
            if terms.link.checking is not None:
                for number in OTHERS:
                    self.start_aggregator(number)
            self.server = self._start("server", "serve", "server", folder.path, "--port", "0")
            wait_for(self.server, lambda: folder.running() is not None)
            url = (folder.running() or {})["url"]
            self._operator = Operator.of(folder, url)
            for hop in range(0 if mixing is None else mixing.shufflers):
                self._start_shuffler(introduction(folder, url, hop))
            self._start_agents(self.reroute(url) if self.reroute else url)
            yield
        finally:
            if self._operator is not None:
                self._operator.close()
            stop_all(self.agents)  # first, so that no report of theirs goes nowhere
            for service in (self.proxy, *self.hops, self.server, *self.aggregators.values()):
                if service is not None:
                    service.stop()

    def round(self) -> int:
        return int(self._status()["round"])

    def advance(self, to: int, tick: Tick) -> None:
        self.operator().raise_target(to)
        last, since = -1, 0.0
        while True:
            done = self.round()
            tick(min(done, to))
            if done >= to:
                return
            self._watch()
            if done != last:
                last, since = done, time.monotonic()
            self._require_movement(done, time.monotonic() - since)
            time.sleep(_LOOK_SECONDS)

    def gather(self) -> Gathered:
        status, terms = self._status(), self.world.terms
        round, version = int(status["round"]), status["published"]
        view, other = self.operator().model(round, terms), None
        if version is not None:
            other = self.operator().model(version, terms)
        kept = round if version is None else version
        vectors = [self._settled_vector(row, kept) for row in range(len(self.world.cohort))]
        offered = tuple(status["versions"])
        return Gathered(round, view.items, np.concatenate(vectors), other, offered)

    def ledger(self) -> list[Entries]:
        return ledger_of(self.stores())

    def stores(self) -> list[Path]:
        return [self.store(row) for row in range(len(self.world.cohort))]

    def log(self) -> tuple[list[Mapping[str, Any]], Mapping[str, int]]:
        database = open_folder(self.folder / "server").database()
        try:
            with database.reading() as link:
                rounds: list[Mapping[str, Any]] = [
                    past.to_table() for past in records.past_rounds(link)
                ]
                return rounds, records.refused(link)
        finally:
            database.close()

    # --- what the parties are given ---------------------------------------------------------------

    def _start(self, name: str, *arguments: str | Path) -> Child:
        command, log = sottovoce_command(*arguments), self.folder / "logs" / f"{name}.log"
        # What a trial notes goes with it.
        notes = {**os.environ, ENVIRONMENT: str((self.folder / "marks").absolute())}
        return Child(f"the {name}", command, log=log, environment=notes)

    def _start_shuffler(self, introduced: Introduction) -> None:
        """At the address that the terms name; the server may listen elsewhere than before."""
        place = hop_folder(self.folder, introduced.hop)
        (place / _INTRODUCTION).unlink(missing_ok=True)
        folder = create_shuffler_folder(place, introduced)
        goals = [
            f"--goal={tier}={devices}" for tier, devices in enumerate(self._tiers()) if devices
        ]
        started = self._start(
            *(place.name, "serve", "shuffler", place, "--port", str(kept_port(place))),
            *([] if introduced.hop else goals),
            f"--hold-seconds={_HOLD_SECONDS}",
        )
        if introduced.hop:
            self.hops.append(started)
        else:
            self.proxy = started
        wait_for(started, lambda: folder.running() is not None)

    def start_helper(self) -> None:
        """Start the helper at the address that the terms name, also after it was stopped."""
        logs = self.folder / "logs"
        self.proxy = start_helper(self.folder, open_folder(self.folder / "server"), logs)

    def start_aggregator(self, number: int) -> None:
        """One of those who check a sum; also after it was stopped."""
        server, logs = open_folder(self.folder / "server"), self.folder / "logs"
        self.aggregators[number] = start_aggregator(self.folder, server, number, logs)

    def _tiers(self) -> list[int]:
        """How many devices report in each tier, in the first round."""
        terms, world = self.world.terms, self.world
        devices = Devices.behind_door(
            terms.build(), world.cohort, terms.release, Ledger(), streams_of(world.root_key)
        )
        there = np.bincount(devices.tiers()[devices.willing()])
        return [int(count) for count in there]

    def _start_agents(self, url: str) -> None:
        stores = [self.store(row) for row in range(len(self.world.cohort))]
        agents = min(self.processes, len(stores))
        for number in range(agents):
            served = stores[number::agents]
            agent = self._start(f"agent-{number:03d}", "serve", "device", *served, "--server", url)
            self.agents.append(agent)

    def operator(self) -> Operator:
        """Whoever may ask the running server how it goes, and set its target."""
        if self._operator is None:
            raise ServiceError("the trial is not running")
        return self._operator

    def _prepared(self) -> ServerFolder:
        """Everybody's folders. Made aside and moved into place, so that they are whole or not
        there at all."""
        place = self.folder / "server"
        if place.exists():
            return open_folder(place)
        fresh = self.folder / "fresh"
        for stale in ("fresh", "devices", "logs"):
            shutil.rmtree(self.folder / stale, ignore_errors=True)
        fresh.mkdir(parents=True)
        world = self.world
        checked = world.terms.link.checking is not None
        first = aggregator_place(self.folder, 0) if checked else None
        server = make_server_folder(fresh / "server", world, first)
        database = server.database()
        try:
            users = world.cohort.users.tolist()
            invitations = invite(server, database, "https://127.0.0.1", users)
        finally:
            database.close()
        for row, invitation in enumerate(invitations):
            path = fresh / "devices" / self.store(row).name
            path.parent.mkdir(exist_ok=True)
            with make_store(path, world, np.array([row])) as store:
                keep_invitation(store, invitation)
        (fresh / "devices").rename(self.folder / "devices")
        (fresh / "server").rename(place)
        fresh.rmdir()
        return open_folder(place)

    def store(self, row: int) -> Path:
        """The folder of one device."""
        return self.folder / "devices" / f"{row:0{number_width(len(self.world.cohort))}d}"

    def _settled_vector(self, row: int, round: int) -> NDArray[np.float32]:
        """A device's vector, once it knows whether its last report counted, and has this model to
        recommend by. An agent that was killed is not waited for."""
        until = time.monotonic() + _SETTLING_SECONDS
        agent = self.agents[row % len(self.agents)] if self.agents else None
        with CohortStore.open(self.store(row), readonly=True) as store:
            hosted = DeviceSession(store)
            while agent and agent.alive and not _settled(hosted, round):
                if time.monotonic() > until:
                    break
                time.sleep(_LOOK_SECONDS)
            return self.world.cohort.vectors[[row]] if hosted.terms is None else hosted.vectors()

    # --- watching ---------------------------------------------------------------------------------

    def _status(self) -> Mapping[str, Any]:
        try:
            return self.operator().status()
        except Unreachable:
            self._watch()
            raise

    def _require_movement(self, round: int, seconds: float) -> None:
        """A server with a shuffler waits for ever for devices that have used up their budgets."""
        longest = self.world.rules.deadline_seconds + 3 * _HOLD_SECONDS
        if self.world.terms.reporting is not None and seconds > longest:
            raise Stalled(
                f"in round {round} the shuffler has held everything back for {seconds:.0f} "
                "seconds: no tier has its minimum of devices with enough budget left; lower "
                "rounds, or let the users permit more"
            )

    def _watch(self) -> None:
        if self.server is not None:
            self.server.require_alive()
        if self.proxy is not None:
            self.proxy.require_alive()
        for aggregator in self.aggregators.values():
            aggregator.require_alive()
        for hop in self.hops:
            hop.require_alive()
        if self.agents and not any(agent.alive for agent in self.agents):
            self.agents[0].require_alive()


def _settled(hosted: DeviceSession, round: int) -> bool:
    model = hosted.model()
    return hosted.unresolved() is None and model is not None and model.round >= round
