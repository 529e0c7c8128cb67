"""DRIFT in one process, with every message as bytes: what it costs by phase, and who sees what.

The loop is `drift_replay.replay`; the parties here are its parties with a wire between them, so
that the model is the same, bit for bit. Interactions are sealed in one of three ways:

- "pairs": a session for every user and owner (`privacy.interactions`). What owners and the
  orchestrator say to each other is sealed on its way, as TLS does in a real federation.
- "shared": as the DRIFT thesis has it: one key per owner, the flag in the clear, no time. All other
  messages are in the clear.
- "none": everything is in the clear.

There is no network: transport is addressing, and turning messages into bytes and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import cast

import numpy as np

from sottovoce.algorithms.blocks import Events, Model
from sottovoce.algorithms.drift import DRIFTConfig, Orchestrator, Owner
from sottovoce.algorithms.drift_aggregated import AggregatingOwner
from sottovoce.algorithms.drift_messages import Gradients, Interaction, OwnerTable, RowRequest, Rows
from sottovoce.algorithms.drift_replay import replay
from sottovoce.consent import Choice, Consent
from sottovoce.engines.silo_bytes import (
    pack_gradients,
    pack_request,
    pack_rows,
    unpack_gradients,
    unpack_request,
    unpack_rows,
)
from sottovoce.engines.silo_ways import SEALINGS, Link, Meter, Sealing, Way, Witness, way_of
from sottovoce.errors import ConfigError
from sottovoce.links import Sight
from sottovoce.parties.silo_door import InteractionDoor, UserAtDoor
from sottovoce.rng import Streams

_ALL_INTERACTION = frozenset({"owner", "user", "item", "positive", "time"})
_ALL_ROWS = frozenset({"version", "users", "items", "user_rows", "item_rows"})
SIGHT: Sight = MappingProxyType(
    {
        "user": {"Interaction": _ALL_INTERACTION},
        "owner": {"Interaction": _ALL_INTERACTION, "Rows": _ALL_ROWS},
        "orchestrator": {
            "RowRequest": frozenset({"owner", "users", "items"}),
            "Rows": _ALL_ROWS,
            "Gradients": frozenset({"owner", *_ALL_ROWS}),
        },
        "network": {"Packet": frozenset({"sender", "receiver", "content"})},
    }
)
"""Which fields of which messages reach whom. A user sees her own interactions, an owner those with
its items; of a packet's content the network reads what is not sealed. With release = "aggregated"
the fields of users are empty, and those of items have all of the owner's."""


@dataclass(frozen=True, slots=True)
class EpochCost:
    """What an epoch took."""

    updates: int
    seconds: Mapping[str, float]
    """By phase."""
    messages: Mapping[str, int]
    """By kind; so are the bytes."""
    bytes: Mapping[str, int]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def share(self, *phases: str) -> float:
        return sum(self.seconds[phase] for phase in phases) / self.total


class SiloSimulation:
    """A fixed federation: all of the table's owners, and these users."""

    def __init__(
        self,
        config: DRIFTConfig,
        table: OwnerTable,
        users: Iterable[int],
        rng: Streams,
        sealing: Sealing = "pairs",
        witness: Witness | None = None,
        model: Model | None = None,
        door: InteractionDoor | None = None,
    ) -> None:
        """Starts from first rows, or from a model. Without a door everybody takes part and refuses
        nobody; of the users those join who take part."""
        if sealing not in SEALINGS:
            raise ConfigError(f"sealing must be one of {list(SEALINGS)}, not {sealing!r}")
        self.config, self.sealing = config, sealing
        self._meter = Meter(witness)
        owners = table.all_owners()
        wanted = set(users)
        self.door = door or _open_door(wanted, table)
        numbers = sorted(wanted & set(self.door.users()))
        way = way_of(sealing, self._meter, numbers, owners)
        links = {owner: Link(owner, sealing == "pairs", self._meter) for owner in owners}
        self.orchestrator = _joined(config, rng, table, numbers, model)
        self.orchestrator.wire(links, self._meter)
        self.owners: dict[int, Owner] = {
            k: _wired(k, table, config, way, links[k], self._meter) for k in owners
        }
        self._users = {u: _MeteredUser(u, self.door, self._meter) for u in numbers}
        for owner in self.owners.values():
            for user in numbers:
                owner.admit(user)

    def __repr__(self) -> str:
        return f"<SiloSimulation {self.sealing}, {len(self.owners)} owners>"

    @property
    def model(self) -> Model:
        return self.orchestrator.model

    def epoch(self, events: Events) -> EpochCost:
        """All events once, in paper mode or with the settings' window."""
        meter, events = self._meter, self.door.joined(events)
        meter.start()
        started = perf_counter()
        done = replay(events, self._users, self.owners, self.orchestrator, self.config.window)
        whole = perf_counter() - started
        seconds = dict(meter.seconds)
        seconds["other"] = max(0.0, whole - sum(seconds.values()))
        return EpochCost(done.updates, seconds, dict(meter.messages), dict(meter.bytes))


# --- the parties, with a wire between them -------------------------------------------------------


class _MeteredUser(UserAtDoor):
    def __init__(self, number: int, door: InteractionDoor, meter: Meter) -> None:
        super().__init__(number, door)
        self._meter = meter

    def interact(self, item: int, positive: bool, time: int) -> list[Interaction]:
        start = perf_counter()
        found = super().interact(item, positive, time)
        self._meter.spent("transport", start)
        for message in found:
            self._meter.seen("user", self.number, message)
        return found


class _WiredOwner(Owner):
    def wire(self, way: Way, link: Link, meter: Meter) -> None:
        self._way, self._link, self._meter = way, link, meter

    def receive(self, interaction: Interaction) -> bool:
        content = self._way.send(interaction)
        self._meter.sent("interaction", ("user", interaction.user), ("owner", self.number), content)
        arrived = self._way.arrive(self.number, content)
        self._meter.seen("owner", self.number, arrived)
        start = perf_counter()
        due = super().receive(arrived)
        self._meter.spent("blocks", start)
        return due

    def end_stream(self, user: int) -> bool:
        start = perf_counter()
        due = super().end_stream(user)
        self._meter.spent("blocks", start)
        return due

    def request(self) -> RowRequest | None:
        start = perf_counter()
        asked = super().request()
        self._meter.spent("blocks", start)
        if asked is None:
            return None
        start = perf_counter()
        content = pack_request(asked)
        self._meter.spent("transport", start)
        content = self._link.carry("request", content)
        start = perf_counter()
        arrived = unpack_request(content)
        self._meter.spent("transport", start)
        self._meter.seen("orchestrator", 0, arrived)
        return arrived

    def gradients(self, rows: Rows) -> Gradients | None:
        self._meter.seen("owner", self.number, rows)
        start = perf_counter()
        found = super().gradients(rows)
        self._meter.spent("gradients", start)
        if found is None:
            return None
        start = perf_counter()
        content = pack_gradients(found)
        self._meter.spent("transport", start)
        content = self._link.carry("gradients", content)
        start = perf_counter()
        arrived = unpack_gradients(content)
        self._meter.spent("transport", start)
        self._meter.seen("orchestrator", 0, arrived)
        return arrived


class _WiredAggregatingOwner(_WiredOwner, AggregatingOwner):  # type: ignore[misc]
    """Asks and answers always, which is narrower than what any owner may do."""


def _wired(
    number: int, table: OwnerTable, config: DRIFTConfig, way: Way, link: Link, meter: Meter
) -> Owner:
    kind = _WiredAggregatingOwner if config.release == "aggregated" else _WiredOwner
    owner = kind(number, table.items(number), config)
    owner.wire(way, link, meter)
    return owner


class _WiredOrchestrator(Orchestrator):
    def wire(self, links: Mapping[int, Link], meter: Meter) -> None:
        self._links, self._meter = links, meter

    def answer(self, request: RowRequest) -> Rows:
        start = perf_counter()
        rows = super().answer(request)
        self._meter.spent("update", start)
        self._meter.seen("orchestrator", 0, rows)
        start = perf_counter()
        content = pack_rows(rows)
        self._meter.spent("transport", start)
        content = self._links[request.owner].carry("rows", content)
        start = perf_counter()
        arrived = unpack_rows(content)
        self._meter.spent("transport", start)
        return arrived

    def fold(self, gradients: Gradients, began: int | None = None) -> None:
        start = perf_counter()
        super().fold(gradients, began)
        self._meter.spent("update", start)


def _joined(
    config: DRIFTConfig, rng: Streams, table: OwnerTable, users: list[int], model: Model | None
) -> _WiredOrchestrator:
    if model is None:
        orchestrator = _WiredOrchestrator(config, rng)
        for owner in table.all_owners():
            orchestrator.add_items(owner, table.items(owner))
        for user in users if config.release == "printed" else ():
            orchestrator.join_user(user)
        return orchestrator
    if config.release == "aggregated":
        raise ConfigError("aggregating owners have vectors of their own; start from first rows")
    known_users = {user: model.users[user] for user in users}
    known_items = {item: model.items[item] for item in table}
    restored = _WiredOrchestrator.restore(config, rng, 0, table, known_users, known_items)
    return cast(_WiredOrchestrator, restored)


def _open_door(users: set[int], table: OwnerTable) -> InteractionDoor:
    """Of users who take part and refuse nobody."""
    names = tuple(map(str, table.all_owners()))
    numbers = np.array(sorted(users), dtype=np.int64)
    return InteractionDoor(Consent.uniform(numbers, Choice(), owners=names), names, table)
