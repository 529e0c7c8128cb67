"""An experiment run on Flower on loopback: gateways that host a cohort each, of unequal size."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.core.ledger import Entries
from sottovoce.engines.flower.launch import LocalFlower, NodePlan
from sottovoce.engines.processes import Child
from sottovoce.engines.trial import (
    Gathered,
    Tick,
    TrialWorld,
    ledger_of,
    make_server_folder,
    make_store,
    prepare_helper,
    start_helper,
    unequal_parts,
)
from sottovoce.errors import RunError, ServiceError
from sottovoce.stores.conductor import Checkpoint
from sottovoce.stores.device import CohortStore
from sottovoce.stores.keys import node_keys
from sottovoce.stores.private import private_folder
from sottovoce.stores.server_folder import open_folder
from sottovoce.stores.session import DeviceSession


@dataclass(slots=True, repr=False)
class FlowerTrial:
    world: TrialWorld
    folder: Path
    processes: int
    """Gateways."""
    helper: Child | None = field(default=None, init=False)
    _flower: LocalFlower | None = field(default=None, init=False)
    _turned_away: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.folder = self.folder.absolute()  # Flower and nginx run elsewhere

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._prepare()
        keys = self._server / "keys"
        nodes = [NodePlan(path.name, path, keys / path.name) for path in self._cohorts()]
        try:
            if self.world.terms.secure_sum is not None:
                self.start_helper()
            with LocalFlower(self.folder / "logs", nodes, keys=keys) as self._flower:
                yield
                self._turned_away = {k: n for k, n in self._flower.turned_away().items() if n}
        finally:
            self._flower = None
            if self.helper is not None:
                self.helper.stop()

    def start_helper(self) -> None:
        """Start the helper, also after it was stopped."""
        self.helper = start_helper(self.folder, open_folder(self._server), self.folder / "logs")

    def round(self) -> int:
        if not (self._server / "flower.db").exists():
            return 0
        with self._checkpoint() as checkpoint:
            saved = checkpoint.load()
        return 0 if saved is None else saved.round

    def advance(self, to: int, tick: Tick) -> None:
        if self._flower is None:
            raise ServiceError("the trial is not running")
        tick(self.round())
        if self.round() < to:
            self._flower.train(
                self._server,
                to,
                lambda status: tick(min(int(status.get("round", 0)), to)),
                hold=True,  # one run serves every stop
            )

    def gather(self) -> Gathered:
        with self._checkpoint() as checkpoint:
            saved = checkpoint.load()
            if saved is None:
                raise RunError(f"{self._server} holds no model yet")
            published, offered = checkpoint.published(len(saved.items))
        vectors = self.world.cohort.vectors.copy()
        for path in self._cohorts():
            with CohortStore.open(path, readonly=True) as store:
                hosted = DeviceSession(store)
                if hosted.terms is not None:
                    vectors[store.users] = hosted.vectors()
        return Gathered(saved.round, saved.items, vectors, published, tuple(offered))

    def ledger(self) -> list[Entries]:
        return ledger_of(self._cohorts())

    def stores(self) -> list[Path]:
        return self._cohorts()

    def log(self) -> tuple[list[Mapping[str, Any]], Mapping[str, int]]:
        with self._checkpoint() as checkpoint:
            rounds = [asdict(record) for record in checkpoint.rounds()]
            return [*rounds], {**checkpoint.refused(), **self._turned_away}

    # --- what the parties are given ---------------------------------------------------------------

    @property
    def _server(self) -> Path:
        return self.folder / "server"

    def _cohorts(self) -> list[Path]:
        return sorted((self.folder / "cohorts").iterdir())

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(self._server, readonly=True)

    def _name_helper(self) -> None:
        """Put the helper of a secure sum into the terms: the same one where the trial goes on."""
        terms, link = self.world.terms, self.world.terms.secure_sum
        if link is not None:
            summed = prepare_helper(self.folder, link, self.world.root_key)
            self.world = replace(self.world, terms=replace(terms, link=summed))

    def _prepare(self) -> None:
        """Everybody's folders, the server's last: where it is, all of them are whole."""
        if self._server.exists():
            self._name_helper()
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        (private_folder(self.folder) / "cohorts").mkdir()
        self._name_helper()
        fresh, world = self.folder / "fresh", self.world
        make_server_folder(fresh, world)
        for number, rows in enumerate(unequal_parts(len(world.cohort), self.processes)):
            path = self.folder / "cohorts" / f"gateway-{number:03d}"
            node_keys(fresh / "keys", path.name)
            make_store(path, world, rows.astype(np.int64)).close()
        fresh.rename(self._server)
