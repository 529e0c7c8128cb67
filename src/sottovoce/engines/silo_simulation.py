"""DRIFT in one process, with every message as bytes: what it costs by phase, and who sees what.

The loop is `drift.replay.replay`; the parties here are its parties with a wire between them, so
that the model is the same, bit for bit. What owners and the orchestrator say is encoded as it is
over Flower (`wire.silo_rounds`), so that its length is the one that travels there. Interactions are
sealed in one of three ways:

- "pairs": a session for every user and owner (`wire.interactions`). What owners and the
  orchestrator say to each other is sealed on its way, as TLS does in a real federation.
- "shared": as the DRIFT thesis has it: one key per owner, the flag in the clear, no time. All other
  messages are in the clear.
- "none": everything is in the clear.

There is no network: transport is addressing, and turning messages into bytes and back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import Literal, ParamSpec, Protocol, TypeVar, cast

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sottovoce.algorithms.drift.aggregated import AggregatingOwner
from sottovoce.algorithms.drift.blocks import DriftModel, Events
from sottovoce.algorithms.drift.messages import Gradients, Interaction, OwnerTable, RowRequest, Rows
from sottovoce.algorithms.drift.replay import replay
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator, Owner
from sottovoce.algorithms.drift.untouched import of_owner
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.links import Sight
from sottovoce.core.redacted import Redacted
from sottovoce.errors import ConfigError
from sottovoce.parties.silo_door import InteractionDoor, UserAtDoor
from sottovoce.rng import Streams
from sottovoce.wire.interactions import (
    NONCE_BYTES,
    Identity,
    Offer,
    SessionReceiver,
    SessionSender,
    SharedKey,
    begin,
)
from sottovoce.wire.passes import PASS_BYTES, Issuer, Pass
from sottovoce.wire.silo_rounds import (
    decode_gradients,
    decode_row_request,
    decode_rows,
    encode_gradients,
    encode_row_request,
    encode_rows,
)

P = ParamSpec("P")
T = TypeVar("T")
Sealing = Literal["none", "shared", "pairs"]
SEALINGS: tuple[Sealing, ...] = ("none", "shared", "pairs")
SESSION_BYTES = 16
"""A session's name, in front of every message, and an offer's."""

SECURITY = ("keys", "encryption", "decryption")
PHASES = (*SECURITY, "blocks", "gradients", "update", "transport", "other")
"""What time is spent on. Keys: who agrees on them, once for a user and an owner. Blocks: an owner
fills blocks and lists the rows it needs. Update: the orchestrator looks rows up and moves them.
Other: the loop itself, and the measuring."""
KINDS = ("keys", "interaction", "request", "rows", "gradients")
"""Kinds of messages."""

Party = tuple[Literal["user", "owner", "orchestrator", "network"], int]


@dataclass(frozen=True, slots=True, repr=False)
class WirePacket(Redacted):
    """What whoever reads the network sees of a message."""

    sender: Party
    receiver: Party
    content: bytes


Message = Interaction | RowRequest | Rows | Gradients | WirePacket
Witness = Callable[[Party, Message], None]
"""Is told of everything that a party gets to see, when it sees it."""


# --- measuring -----------------------------------------------------------------------------------


class Meter:
    """Seconds by phase, messages and bytes by kind, and who is told what is seen."""

    def __init__(self, witness: Witness | None) -> None:
        self.witness = witness
        self.start()

    def start(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.messages = dict.fromkeys(KINDS, 0)
        self.bytes = dict.fromkeys(KINDS, 0)

    def timed(self, phase: str, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `do` gives; the seconds that it takes are this phase's."""
        start = perf_counter()
        found = do(*args, **kwargs)
        self.seconds[phase] += perf_counter() - start
        return found

    def sent(self, kind: str, sender: Party, receiver: Party, content: bytes) -> None:
        self.messages[kind] += 1
        self.bytes[kind] += len(content)
        if self.witness is not None:
            self.witness(("network", 0), WirePacket(sender, receiver, content))

    def seen(self, who: Literal["user", "owner", "orchestrator"], number: int, m: Message) -> None:
        if self.witness is not None:
            self.witness((who, number), m)


# --- how interactions travel ---------------------------------------------------------------------


class Way(Protocol):
    def send(self, interaction: Interaction) -> bytes:
        """The user's side."""

    def arrive(self, owner: int, content: bytes) -> Interaction:
        """The owner's side."""


_INTERACTION = struct.Struct("<IIqB")


class Clear:
    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def send(self, interaction: Interaction) -> bytes:
        i = interaction
        fields = i.user, i.item, i.time, i.positive
        return self._meter.timed("transport", _INTERACTION.pack, *fields)

    def arrive(self, owner: int, content: bytes) -> Interaction:
        fields = self._meter.timed("transport", _INTERACTION.unpack, content)
        user, item, time, positive = fields
        return Interaction(owner, user, item, bool(positive), time)


class Shared:
    def __init__(self, meter: Meter, owners: list[int]) -> None:
        self._meter = meter
        self._keys = {owner: SharedKey(SharedKey.new_key()) for owner in owners}
        self._arrivals = 0

    def send(self, interaction: Interaction) -> bytes:
        i = interaction
        return self._meter.timed("encryption", self._keys[i.owner].seal, i.user, i.item, i.positive)

    def arrive(self, owner: int, content: bytes) -> Interaction:
        user, item, positive = self._meter.timed("decryption", self._keys[owner].open, content)
        # The message has no time; owners go by the order in which messages come.
        self._arrivals += 1
        return Interaction(owner, user, item, positive, self._arrivals)


@dataclass(slots=True)
class _Session:
    name: bytes
    sender: SessionSender
    sequence: int = 0


class PairSessions:
    def __init__(self, meter: Meter, users: list[int], owners: list[int]) -> None:
        self._meter = meter
        self._issuer = Issuer("simulation")
        self._identities = {user: Identity() for user in users}
        self._passes = {u: self._issuer.admit(u, i.public) for u, i in self._identities.items()}
        self._owners = {owner: Identity() for owner in owners}
        self._senders: dict[tuple[int, int], _Session] = {}
        self._receivers: dict[tuple[int, bytes], SessionReceiver] = {}

    def send(self, interaction: Interaction) -> bytes:
        i = interaction
        session = self._senders.get((i.user, i.owner)) or self._begin(i.user, i.owner)
        kind: Literal["positive", "negative"] = "positive" if i.positive else "negative"
        said = session.sequence, kind, i.item, i.time
        sealed = self._meter.timed("encryption", session.sender.seal, *said)
        session.sequence += 1
        return session.name + sealed

    def arrive(self, owner: int, content: bytes) -> Interaction:
        receiver = self._receivers[owner, content[:SESSION_BYTES]]
        opened = self._meter.timed("decryption", receiver.open, content[SESSION_BYTES:])
        return Interaction(owner, opened.user, opened.item, opened.kind == "positive", opened.time)

    def _begin(self, user: int, owner: int) -> _Session:
        """Her pass, the owner's offer, her hello, the session's name."""
        given, name = self._passes[user].encode(), (len(self._senders) + 1).to_bytes(SESSION_BYTES)
        sender, receiver, offer, hello = self._meter.timed("keys", self._agree, user, owner, given)
        her: Party = ("user", user)
        there: Party = ("owner", owner)
        self._meter.sent("keys", her, there, given)
        self._meter.sent("keys", there, her, name + offer)
        self._meter.sent("keys", her, there, name + hello)
        self._meter.sent("keys", there, her, name)
        self._receivers[owner, name] = receiver
        session = self._senders[user, owner] = _Session(name, sender)
        return session

    def _agree(
        self, user: int, owner: int, given: bytes
    ) -> tuple[SessionSender, SessionReceiver, bytes, bytes]:
        admitted, identity = Pass.decode(given), self._owners[owner]
        admitted.check(self._issuer.public, self._issuer.federation)
        offer = Offer(owner, identity)
        sender, hello = begin(user, self._identities[user], owner, identity.public, offer.public)
        receiver = offer.accept(admitted.user, admitted.public, hello)
        return sender, receiver, offer.public, hello


AGREEMENT_BYTES = PASS_BYTES + 3 * SESSION_BYTES + 64
"""What a user and an owner say to each other to agree on a key."""


class OwnerChannel:
    """Between an owner and the orchestrator: in the clear, or in records as TLS 1.3 makes them
    (AES-256-GCM, 22 bytes more each; both sides count them). The handshake, once for an owner, is
    not measured."""

    def __init__(self, owner: int, sealed: bool, meter: Meter) -> None:
        self._owner: Party = ("owner", owner)
        self._meter = meter
        self._cipher = AESGCM(AESGCM.generate_key(256)) if sealed else None
        self._count = 0

    def carry(self, kind: Literal["request", "rows", "gradients"], content: bytes) -> bytes:
        """As it arrives."""
        ends: tuple[Party, Party] = (self._owner, ("orchestrator", 0))
        sender, receiver = ends[::-1] if kind == "rows" else ends
        if self._cipher is None:
            self._meter.sent(kind, sender, receiver, content)
            return content
        nonce = self._count.to_bytes(NONCE_BYTES, "big")
        self._count += 1
        head = b"\x17\x03\x03" + ((len(content) + 17) & 0xFFFF).to_bytes(2, "big")
        sealed = self._meter.timed(
            "encryption", self._cipher.encrypt, nonce, content + b"\x17", head
        )
        self._meter.sent(kind, sender, receiver, head + sealed)
        return self._meter.timed("decryption", self._cipher.decrypt, nonce, sealed, head)[:-1]


def way_of(sealing: Sealing, meter: Meter, users: list[int], owners: list[int]) -> Way:
    """How these users' interactions reach these owners."""
    if sealing == "pairs":
        return PairSessions(meter, users, owners)
    return Shared(meter, owners) if sealing == "shared" else Clear(meter)


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
        "network": {"WirePacket": frozenset({"sender", "receiver", "content"})},
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
        model: DriftModel | None = None,
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
        links = {owner: OwnerChannel(owner, sealing == "pairs", self._meter) for owner in owners}
        self.orchestrator = _joined(config, rng, table, numbers, model)
        self.orchestrator.wire(links, self._meter)
        self.owners: dict[int, Owner] = {
            k: _wired(k, table, config, of_owner(rng, k), way, links[k], self._meter)
            for k in owners
        }
        self._users = {u: _MeteredUser(u, self.door, self._meter) for u in numbers}
        for owner in self.owners.values():
            for user in numbers:
                owner.admit(user)

    def __repr__(self) -> str:
        return f"<SiloSimulation {self.sealing}, {len(self.owners)} owners>"

    @property
    def model(self) -> DriftModel:
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
        found = self._meter.timed("transport", super().interact, item, positive, time)
        for message in found:
            self._meter.seen("user", self.number, message)
        return found


class _WiredOwner(Owner):
    def wire(self, way: Way, link: OwnerChannel, meter: Meter) -> None:
        self._way, self._link, self._meter = way, link, meter

    def receive(self, interaction: Interaction) -> bool:
        content = self._way.send(interaction)
        self._meter.sent("interaction", ("user", interaction.user), ("owner", self.number), content)
        arrived = self._way.arrive(self.number, content)
        self._meter.seen("owner", self.number, arrived)
        return self._meter.timed("blocks", super().receive, arrived)

    def end_stream(self, user: int) -> bool:
        return self._meter.timed("blocks", super().end_stream, user)

    def request(self) -> RowRequest | None:
        asked = self._meter.timed("blocks", super().request)
        if asked is None:
            return None
        content = self._meter.timed("transport", encode_row_request, asked)
        content = self._link.carry("request", content)
        arrived = self._meter.timed("transport", decode_row_request, content)
        self._meter.seen("orchestrator", 0, arrived)
        return arrived

    def gradients(self, rows: Rows) -> Gradients | None:
        self._meter.seen("owner", self.number, rows)
        found = self._meter.timed("gradients", super().gradients, rows)
        if found is None:
            return None
        content = self._meter.timed("transport", encode_gradients, found)
        content = self._link.carry("gradients", content)
        arrived = self._meter.timed("transport", decode_gradients, content)
        self._meter.seen("orchestrator", 0, arrived)
        return arrived


class _WiredAggregatingOwner(_WiredOwner, AggregatingOwner):  # type: ignore[misc]
    """Asks and answers always, which is narrower than what any owner may do."""


def _wired(
    number: int,
    table: OwnerTable,
    config: DRIFTConfig,
    draws: Streams,
    way: Way,
    link: OwnerChannel,
    meter: Meter,
) -> Owner:
    kind = _WiredAggregatingOwner if config.sums_over_people else _WiredOwner
    owner = kind(number, table.items(number), config, draws)
    owner.wire(way, link, meter)
    return owner


class _WiredOrchestrator(Orchestrator):
    def wire(self, links: Mapping[int, OwnerChannel], meter: Meter) -> None:
        self._links, self._meter = links, meter

    def answer(self, request: RowRequest) -> Rows:
        rows = self._meter.timed("update", super().answer, request)
        self._meter.seen("orchestrator", 0, rows)
        content = self._meter.timed("transport", encode_rows, rows)
        content = self._links[request.owner].carry("rows", content)
        return self._meter.timed("transport", decode_rows, content)

    def fold(self, gradients: Gradients, began: int | None = None) -> None:
        self._meter.timed("update", super().fold, gradients, began)


def _joined(
    config: DRIFTConfig, rng: Streams, table: OwnerTable, users: list[int], model: DriftModel | None
) -> _WiredOrchestrator:
    if model is None:
        orchestrator = _WiredOrchestrator(config, rng)
        for owner in table.all_owners():
            orchestrator.add_items(owner, table.items(owner))
        for user in () if config.sums_over_people else users:
            orchestrator.join_user(user)
        return orchestrator
    if config.sums_over_people:
        raise ConfigError("aggregating owners have vectors of their own; start from first rows")
    known_users = {user: model.users[user] for user in users}
    known_items = {item: model.items[item] for item in table}
    restored = _WiredOrchestrator.restore(config, rng, 0, table, known_users, known_items)
    return cast(_WiredOrchestrator, restored)


def _open_door(users: set[int], table: OwnerTable) -> InteractionDoor:
    """Make the door of users who take part and refuse nobody."""
    names = tuple(map(str, table.all_owners()))
    numbers = np.array(sorted(users), dtype=np.int64)
    return InteractionDoor(Consent.uniform(numbers, Choice(), owners=names), names, table)
