"""A whole Flower federation on this machine: SuperLink, gateway, nodes and a run, for trials.

Everything is started here, logs into one folder, and ends with `stop` or with this process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sottovoce.engines.flower.gateway import Site, count_turned_away, find_nginx, start_gateway
from sottovoce.engines.flower.quiet import flower_environment
from sottovoce.engines.flower.superlink import (
    SuperLink,
    SuperLinkPlace,
    count_unknown_nodes,
    register_nodes,
    run_state,
    start_run,
)
from sottovoce.engines.processes import Child, free_port, stop_all
from sottovoce.errors import RunError, ServiceError
from sottovoce.stores.allotment import identity_of_file, ranges_of
from sottovoce.stores.conductor import Checkpoint, conducted, read_status
from sottovoce.stores.device import CohortStore
from sottovoce.stores.private import private_file, private_folder, private_log, privately

Security = Literal["full", "plaintext"]
Progress = Callable[[dict[str, Any]], None]
Settings = dict[str, str | int | float | bool]

_STATUS_SECONDS = 0.2
_LIST_SECONDS = 5.0
_AWAY_SECONDS = 120.0
"""How long a SuperLink may be away before the watching ends."""
_TRIES = 3


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A cohort's store and the private key of its node (its public one is beside it)."""

    name: str
    store: Path
    key: Path | None
    command: tuple[str | Path, ...] = ()
    """What serves it, to which --superlink, --ca and --key are added; else our SuperNode."""

    @property
    def public_key(self) -> Path | None:
        return None if self.key is None else self.key.with_name(f"{self.key.name}.pub")

    def absolute(self) -> NodePlan:
        key = None if self.key is None else self.key.absolute()
        return NodePlan(self.name, self.store.absolute(), key, self.command)


class LocalFlower:
    """`security="full"`: TLS, registered node keys, executor with a secret, and an nginx through
    which nodes come in, where there is one. `plaintext` is for speed in tests, on loopback."""

    def __init__(
        self,
        work: Path,
        nodes: Sequence[NodePlan],
        *,
        keys: Path | None,
        security: Security = "full",
    ) -> None:
        if security == "full" and keys is None:
            raise ServiceError("a secured federation needs a folder with keys")
        # Everything that is started here gets absolute paths: it may run in other folders.
        self.work, self.nodes = private_folder(work.absolute()), [n.absolute() for n in nodes]
        self.keys = keys.absolute() if keys is not None and security == "full" else None
        self.place = SuperLinkPlace(self.work / "superlink", free_port(), self.keys)
        self.link: SuperLink | None = None
        self.gateway: Child | None = None
        self.running: dict[str, Child] = {}
        self.entrance = self.place.address

    def __enter__(self) -> LocalFlower:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def access_log(self) -> Path:
        return self.work / "gateway" / "access.log"

    def start(self) -> None:
        """Everything; ready for a run when this returns."""
        try:
            self.start_superlink()
            self._start_gateway()
            for node in self.nodes:
                self.start_node(node.name)
        except BaseException:
            self.stop()
            raise

    def start_superlink(self) -> None:
        """Also after it was killed: its database knows the nodes still."""
        self.link = SuperLink(self.place)
        publics = [node.public_key for node in self.nodes if node.public_key is not None]
        if not (self.work / "registered").exists():
            register_nodes(self.place, publics)
            private_file(self.work / "registered")

    def _start_gateway(self) -> None:
        if self.keys is None or find_nginx() is None:
            return
        port = free_port()
        site = Site(
            self.keys,
            self.place.port,
            port,
            "127.0.0.1",
            self.access_log,
            nodes_per_address=len(self.nodes) + 1,
        )
        environment = flower_environment(self.work / "gateway")
        self.gateway = start_gateway(site, self.work / "gateway", environment)
        self.entrance = f"127.0.0.1:{port}"

    def start_node(self, name: str) -> Child:
        node = next(node for node in self.nodes if node.name == name)
        ours = sys.executable, "-m", "sottovoce.engines.flower.supernode", node.store
        command: list[str | Path] = [*(node.command or ours), "--superlink", self.entrance]
        if self.keys is not None and node.key is not None:
            command += ["--ca", self.keys / "ca.crt", "--key", node.key]
        self.running[name] = Child(
            f"node {name}",
            privately(command),
            log=private_log(self.work / "nodes" / f"{name}.log"),
            environment=flower_environment(self.work / "nodes"),
        )
        return self.running[name]

    def train(
        self, folder: Path, rounds: int, progress: Progress | None = None, *, hold: bool = False
    ) -> dict[str, Any]:
        """Run to `rounds` from the folder's checkpoint; the last status. A run that is cut off is
        followed by another one from the checkpoint, as long as everything here is alive. With
        `hold` the run stays for the next call, which then starts none."""
        with Checkpoint(folder) as checkpoint:
            checkpoint.raise_target(rounds)
        self._allot(folder)
        settings = self._settings(folder, rounds, hold)
        return go_on(self.place, folder, settings, progress, self._require_alive)

    def _allot(self, folder: Path) -> None:
        """Each node answers for the users of its store."""
        with Checkpoint(folder) as checkpoint:
            for node in self.nodes if self.keys is not None else ():
                if node.public_key is None:
                    continue
                identity = identity_of_file(node.public_key)
                if identity not in checkpoint.allotted():
                    with CohortStore.open(node.store, readonly=True) as store:
                        checkpoint.allot({identity: (node.name, ranges_of(store.users))})

    def start_run(self, folder: Path, rounds: int) -> int:
        self._allot(folder)
        return start_run(self.place, self._settings(folder, rounds, False))

    def wait(self, folder: Path, run: int, rounds: int) -> dict[str, Any]:
        return wait_for_run(self.place, folder, run, rounds, check=self._require_alive)

    def _settings(self, folder: Path, rounds: int, hold: bool) -> Settings:
        return run_settings(
            folder, rounds, len(self.nodes), pinned=self.keys is not None, hold=hold
        )

    def _require_alive(self) -> None:
        if self.link is not None:
            self.link.require_alive()
        if self.gateway is not None:
            self.gateway.require_alive()

    def turned_away(self) -> dict[str, int]:
        """How often strangers were sent away at the gateway, and nodes at the SuperLink whose key
        is not registered."""
        strangers = count_turned_away(self.access_log)
        return {"stranger": strangers, "unknown_node": count_unknown_nodes(self.place)}

    def stop(self) -> None:
        stop_all([*self.running.values()])
        self.running.clear()
        if self.gateway is not None:
            self.gateway.stop()
            self.gateway = None
        if self.link is not None:
            self.link.stop()
            self.link = None


class CutOff(ServiceError):
    """A run ended before its target; its checkpoint is kept."""


def run_settings(
    folder: Path, rounds: int, nodes: int, *, pinned: bool = True, hold: bool = False
) -> Settings:
    """The settings of a run, as the conductor reads them."""
    return {
        "folder": str(folder.absolute()),
        "rounds": rounds,
        "nodes": nodes,
        "pinned": pinned,
        "hold": hold,
    }


def go_on(
    place: SuperLinkPlace,
    folder: Path,
    settings: Settings,
    progress: Progress | None = None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Watch the run that goes on for this folder, or start one from its checkpoint; the last
    status. A run that is cut off is followed by another one, a few times."""
    rounds = int(settings.get("rounds", sys.maxsize))
    run = _current_run(folder)
    for left in reversed(range(_TRIES)):
        if run is None:
            run = start_run(place, settings)
        try:
            return wait_for_run(place, folder, run, rounds, progress, check)
        except CutOff:
            run = None
            if not left:
                raise
    raise CutOff(f"no run could be started in {folder}")


def _current_run(folder: Path) -> int | None:
    """The run whose conductor is at work on this folder."""
    status = read_status(folder)
    return int(status["run"]) if status.get("run") and conducted(folder) else None


def wait_for_run(
    place: SuperLinkPlace,
    folder: Path,
    run: int,
    rounds: int,
    progress: Progress | None = None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Until the run is done with so many rounds; its last status. Raises where it ended before: the
    checkpoint is kept, and a new run goes on from it."""
    listed = heard = time.monotonic()
    shown: dict[str, Any] = {}
    while True:
        status = read_status(folder)
        mine = status.get("run") == str(run)
        if mine and status != shown and progress is not None:
            progress(status)
        shown = status
        if mine and status.get("state") == "failed":
            raise RunError(str(status.get("error")))
        if mine and status.get("state") == "finished" and status.get("round", 0) >= rounds:
            return status
        check()
        now = time.monotonic()
        if now >= listed + _LIST_SECONDS:
            listed = now
            try:
                state, heard = run_state(place, run), now
            except ServiceError:  # the SuperLink may be about to come back
                if now >= heard + _AWAY_SECONDS:
                    raise
                state = "unknown"
            if state.startswith("finished") and read_status(folder) == status:
                raise CutOff(
                    f"the run ended early ({state}); it goes on from the checkpoint in {folder} "
                    "when it is started again"
                )
        time.sleep(_STATUS_SECONDS)
