"""An experiment with data owners run for real on loopback: the orchestrator, a process for every
owner, and users who post sealed interactions to them over HTTPS.

Every round takes what was sent in one window of the simulation, so the model is the same, bit for
bit; an owner that is silent in a round is left out of it there, too.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift.aggregated import in_turn, own_vector
from sottovoce.algorithms.drift.blocks import DriftModel
from sottovoce.algorithms.drift.untouched import of_owner
from sottovoce.core.consent import Choice
from sottovoce.engines.observers import Report
from sottovoce.engines.processes import Child, free_port, sottovoce_command, stop_all, wait_for
from sottovoce.engines.silo import SiloWorld
from sottovoce.errors import ConfigError, ServiceError, Stalled
from sottovoce.services.agent.user_agent import Delivery, UserAgent
from sottovoce.stores.keys import authority_pem, write_new_files
from sottovoce.stores.orchestrator import OrchestratorStore
from sottovoce.stores.orchestrator_folder import (
    OrchestratorFolder,
    admit,
    create_orchestrator_folder,
    open_orchestrator_folder,
)
from sottovoce.stores.owner_folder import (
    OwnerFolder,
    create_owner_folder,
    keep_admission,
    open_owner_folder,
)
from sottovoce.stores.user import UserStore
from sottovoce.stores.user_door import UserDoor
from sottovoce.wire.interactions import Identity
from sottovoce.wire.silo_files import FederationFile

MOST_OWNERS = 24
"""Each takes two processes and about 300 MB."""
MOST_USERS = 10_000
DEADLINE = 60.0
_LOOK_SECONDS = 0.1
_LONGEST_SECONDS = 300.0
"""How long a round, or an owner that takes nothing, may keep everybody waiting."""
_PORTS = "ports"


@dataclass(slots=True, repr=False)
class SiloTrial:
    """Whoever starts a trial speaks for its users: each takes part, and refuses the owners that the
    world says."""

    world: SiloWorld
    folder: Path
    processes: int | None = None
    """There is one for each owner; another number is refused."""
    deadline: float = DEADLINE
    """Seconds that owners have for an answer."""
    orchestrator: Child | None = field(default=None, init=False)
    owners: dict[str, Child] = field(default_factory=dict, init=False)
    store: OrchestratorStore | None = field(default=None, init=False)
    agent: UserAgent | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        world, self.folder = self.world, self.folder.absolute()
        if self.processes not in (None, len(world.owners)):
            raise ConfigError(
                f"every data owner is a process of its own, and there are {len(world.owners)}; "
                "leave --processes out"
            )
        if len(world.owners) > MOST_OWNERS or world.n_users > MOST_USERS:
            raise ConfigError(
                f"a trial on one machine takes at most {MOST_OWNERS} data owners and "
                f"{MOST_USERS:,} users; use --engine simulation"
            )
        served_in_rounds = bool(world.config.window) or in_turn(world.config)
        if world.departed.events.order != "time" or not served_in_rounds:
            raise ConfigError(
                'real streams come in the order of time, in rounds: set algorithm.order = "time" '
                "and algorithm.window to the interactions between two rounds"
            )

    # --- all of it --------------------------------------------------------------------------------

    def train(self, report: Report) -> DriftModel:
        """All epochs; goes on from where its folder is. Every user of the world has joined."""
        with self.running():
            total = self.rounds_in_all
            for number in range(self._store().round, total):
                report("training", number, total)
                self.queue(number)
                self.deliver_all()
                self.close_round(number)
            report("training", total, total)
            model = self.model()
        return self.model_at_home() if self.world.config.release == "aggregated" else model

    def rounds(self) -> list[Mapping[str, Any]]:
        """How each round ended, and who was silent."""
        with OrchestratorStore.open(self._place) as store:
            return [asdict(record) for record in store.rounds()]

    def model(self) -> DriftModel:
        """As the orchestrator has it."""
        return DriftModel(*self._store().model())

    def model_at_home(self) -> DriftModel:
        """What users rank with whose vectors are with the owners: each has asked hers for them. For
        when nothing runs any more: the owners' stores are opened here."""
        given: list[list[NDArray[np.float32]]] = [[] for _ in range(self.world.n_users)]
        for name in self.world.owners:
            with contextlib.closing(open_owner_folder(self.owner_folder(name)).owner()) as owner:
                for user, vectors in enumerate(given):
                    vector = owner.vector(user)
                    if vector is not None:
                        vectors.append(vector)
        with OrchestratorStore.open(self._place) as store:
            rows = store.rows_to_rank()
        size, start = self.world.config.embedding_size, self.world.config.start
        return DriftModel(np.stack([own_vector(v, size, start) for v in given]), rows)

    @property
    def rounds_in_all(self) -> int:
        return self.world.config.epochs * self._per_epoch

    @property
    def _per_epoch(self) -> int:
        return max(1, -(-len(self.world.departed.events) // self._window))

    @property
    def _window(self) -> int:
        """Interactions between two rounds; a whole epoch where none is set."""
        return self.world.config.window or max(1, len(self.world.departed.events))

    # --- one round --------------------------------------------------------------------------------

    def queue(self, number: int) -> int:
        """Users do what they do in a window; how many messages wait to be sent. Nothing happens
        where that was done before."""
        agent, left, window = self._agent(), self.world.departed, self._window
        epoch, part = divmod(number, self._per_epoch)
        if epoch and not part:
            self._require_ended(epoch)
        events, pointer = left.events, left.told.pointer
        before = epoch * int(pointer[-1]) + int(pointer[part * window])
        if agent.store.ever_said() <= before:
            rows = np.flatnonzero(np.diff(pointer[part * window : (part + 1) * window + 1]))
            rows += part * window
            columns = (events.user, events.item, events.positive, events.time)
            said = zip(*(column[rows].tolist() for column in columns), strict=True)
            agent.door.interact_many(said, again=True)
        return agent.door.waiting()

    def _require_ended(self, epoch: int) -> None:
        """An owner that did not hear that the epoch is over would refuse the next one's events as
        older than its last."""
        silent = self._store().rounds(last=1)[-1].silent
        if silent:
            raise Stalled(
                f"{', '.join(silent)} gave no answer when epoch {epoch} ended, so that the next "
                "one cannot begin; see the owners' logs, and start again in another folder"
            )

    def deliver(self) -> Delivery:
        """Bring what waits to the owners that are there."""
        return self._agent().send_all()

    def deliver_all(self) -> None:
        """Until nothing waits any more."""
        until = time.monotonic() + _LONGEST_SECONDS
        while (done := self.deliver()).waiting:
            self.watch()
            if time.monotonic() > until:
                names = ", ".join(sorted(done.troubles)) or "nobody"
                raise Stalled(f"{done.waiting:,} interactions wait to be taken; not there: {names}")

    def close_round(self, number: int) -> None:
        """One round with whoever is there; the last one of an epoch ends all streams."""
        store = self._store()
        if (number + 1) % self._per_epoch == 0 and not store.flush_requested:
            store.request_flush()
        store.raise_target(number + 1)
        until = time.monotonic() + _LONGEST_SECONDS + 2 * self.deadline
        while store.round <= number:
            if self.orchestrator is not None:
                self.orchestrator.require_alive()
            if time.monotonic() > until:
                raise Stalled(f"round {number} did not end; see {self.folder / 'logs'}")
            time.sleep(_LOOK_SECONDS)

    def watch(self) -> None:
        """Raises where a process has ended."""
        for child in (self.orchestrator, *self.owners.values()):
            if child is not None:
                child.require_alive()

    # --- processes --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Within, every process runs; after it, none does. What they know stays on disk."""
        self._prepare()
        with contextlib.ExitStack() as stack:
            self.store = stack.enter_context(OrchestratorStore.open(self._place))
            stack.callback(self._stop)
            self._start_orchestrator()
            for name in self.world.owners:
                self.start_owner(name)
            users = stack.enter_context(UserStore.open(self.folder / "users", agent=True))
            self.agent = stack.enter_context(UserAgent(users))
            yield
        self.store = self.agent = None

    def _stop(self) -> None:
        stop_all([*self.owners.values()])
        self.owners.clear()
        if self.orchestrator is not None:
            self.orchestrator.stop()
            self.orchestrator = None

    def _start_orchestrator(self) -> None:
        users, gateway, superlink = self._ports()
        self.orchestrator = self._start(
            *("orchestrator", "serve", "orchestrator", self._place, "--port", str(users)),
            *("--gateway-port", str(gateway), "--superlink-port", str(superlink)),
            *("--rounds", "0", "--every", "0", "--deadline", f"{self.deadline:g}"),
            *("--wait-for", str(len(self.world.owners))),
        )
        folder = open_orchestrator_folder(self._place)
        wait_for(self.orchestrator, lambda: folder.running() is not None)

    def start_owner(self, name: str) -> None:
        """Also after it was killed: its state is on its disk."""
        place = self.owner_folder(name)
        folder = open_owner_folder(place)
        folder.ready_file.unlink(missing_ok=True)
        port = folder.application.url.rpartition(":")[2]
        child = self._start(place.name, "serve", "owner", place, "--port", port)
        self.owners[name] = child
        wait_for(child, lambda: folder.running() is not None)

    def owner_folder(self, name: str) -> Path:
        return self.folder / "owners" / f"owner-{self.world.owners.index(name):02d}"

    def _start(self, name: str, *arguments: str | Path) -> Child:
        command = sottovoce_command(*arguments)
        return Child(f"the {name}", command, log=self.folder / "logs" / f"{name}.log")

    # --- what the parties are given ---------------------------------------------------------------

    @property
    def _place(self) -> Path:
        return self.folder / "orchestrator"

    def _prepare(self) -> None:
        """Everybody's folders, the orchestrator's last: where it is, all of them are whole."""
        if self._place.exists():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o700, parents=True)
        ports = [free_port() for _ in range(3)]
        write_new_files(self.folder, {_PORTS: " ".join(map(str, ports)).encode()})
        world, fresh = self.world, self.folder / "fresh"
        made = create_orchestrator_folder(
            fresh,
            world.catalogue,
            world.config,
            name="trial",
            hosts=["127.0.0.1", "localhost"],
            root_key=world.root.key,
        )
        with made.store() as store:
            about = FederationFile.read(made.federation_file)
            for number, name in enumerate(world.owners):
                self._make_owner(name, about, made, store, world.table.items(number), ports[1])
            self._make_users(made, store)
        fresh.rename(self._place)

    def _make_owner(
        self,
        name: str,
        about: FederationFile,
        made: OrchestratorFolder,
        store: OrchestratorStore,
        items: frozenset[int],
        gateway: int,
    ) -> OwnerFolder:
        url = f"https://127.0.0.1:{free_port()}"
        place = self.owner_folder(name)
        folder = create_owner_folder(place, about, name, url, sorted(items))
        admission = admit(made, store, folder.application, f"127.0.0.1:{gateway}")
        # As the simulation's owner draws; nobody tells one of a real federation what to draw.
        draws = of_owner(self.world.root, self.world.owners.index(name))
        keep_admission(folder, admission, draws.root)
        return folder

    def _make_users(self, made: OrchestratorFolder, store: OrchestratorStore) -> None:
        world, issuer = self.world, made.issuer()
        identities = [Identity() for _ in range(world.n_users)]
        numbers = store.add_users([identity.public for identity in identities])
        people = [
            (identity, issuer.admit(number, identity.public))
            for number, identity in zip(numbers, identities, strict=True)
        ]
        url = f"https://127.0.0.1:{self._ports()[0]}"
        with UserStore.create(
            self.folder / "users", store.federation, issuer.public, url, authority_pem(made.keys)
        ) as users:
            users.add_users(people, made.users_identity().public)
            users.keep_directory(store.directory(issuer.public).sign(issuer))
            door = UserDoor(users)
            with users.file.transaction():
                for number in numbers:
                    door.choose(number, Choice(refused_owners=self._refused(number)))

    def _refused(self, user: int) -> tuple[str, ...]:
        refused = self.world.door.refused
        if refused is None:
            return ()
        shut = refused[user]
        return tuple(name for k, name in enumerate(self.world.owners) if shut[k])

    def _ports(self) -> tuple[int, int, int]:
        """For users, the gateway and the SuperLink; the same ones where a trial is gone on with."""
        users, gateway, superlink = map(int, (self.folder / _PORTS).read_text().split())
        return users, gateway, superlink

    def _store(self) -> OrchestratorStore:
        if self.store is None:
            raise ServiceError("the trial is not running")
        return self.store

    def _agent(self) -> UserAgent:
        if self.agent is None:
            raise ServiceError("the trial is not running")
        return self.agent
