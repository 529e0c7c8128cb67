"""How DRIFT's messages travel in a simulation: as bytes, sealed or not, measured and witnessed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Literal, Protocol

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sottovoce.algorithms.drift_messages import Gradients, Interaction, RowRequest, Rows
from sottovoce.privacy.interactions import (
    NONCE_BYTES,
    Identity,
    Offer,
    Receiver,
    Sender,
    SharedKey,
    begin,
)
from sottovoce.privacy.passes import PASS_BYTES, Issuer, Pass

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
"""Of messages."""

Party = tuple[Literal["user", "owner", "orchestrator", "network"], int]


@dataclass(frozen=True, slots=True, repr=False)
class Packet:
    """What whoever reads the network sees of a message."""

    sender: Party
    receiver: Party
    content: bytes

    def __repr__(self) -> str:
        return f"<Packet of {len(self.content):,} bytes, redacted>"


Message = Interaction | RowRequest | Rows | Gradients | Packet
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

    def spent(self, phase: str, since: float) -> None:
        self.seconds[phase] += perf_counter() - since

    def sent(self, kind: str, sender: Party, receiver: Party, content: bytes) -> None:
        self.messages[kind] += 1
        self.bytes[kind] += len(content)
        if self.witness is not None:
            self.witness(("network", 0), Packet(sender, receiver, content))

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
        start = perf_counter()
        i = interaction
        content = _INTERACTION.pack(i.user, i.item, i.time, i.positive)
        self._meter.spent("transport", start)
        return content

    def arrive(self, owner: int, content: bytes) -> Interaction:
        start = perf_counter()
        user, item, time, positive = _INTERACTION.unpack(content)
        found = Interaction(owner, user, item, bool(positive), time)
        self._meter.spent("transport", start)
        return found


class Shared:
    def __init__(self, meter: Meter, owners: list[int]) -> None:
        self._meter = meter
        self._keys = {owner: SharedKey(SharedKey.new_key()) for owner in owners}
        self._arrivals = 0

    def send(self, interaction: Interaction) -> bytes:
        start = perf_counter()
        i = interaction
        content = self._keys[i.owner].seal(i.user, i.item, i.positive)
        self._meter.spent("encryption", start)
        return content

    def arrive(self, owner: int, content: bytes) -> Interaction:
        start = perf_counter()
        user, item, positive = self._keys[owner].open(content)
        # The message has no time; owners go by the order in which messages come.
        self._arrivals += 1
        found = Interaction(owner, user, item, positive, self._arrivals)
        self._meter.spent("decryption", start)
        return found


@dataclass(slots=True)
class _Session:
    name: bytes
    sender: Sender
    sequence: int = 0


class Pairs:
    def __init__(self, meter: Meter, users: list[int], owners: list[int]) -> None:
        self._meter = meter
        self._issuer = Issuer("simulation")
        self._identities = {user: Identity() for user in users}
        self._passes = {u: self._issuer.admit(u, i.public) for u, i in self._identities.items()}
        self._owners = {owner: Identity() for owner in owners}
        self._senders: dict[tuple[int, int], _Session] = {}
        self._receivers: dict[tuple[int, bytes], Receiver] = {}

    def send(self, interaction: Interaction) -> bytes:
        i = interaction
        session = self._senders.get((i.user, i.owner)) or self._begin(i.user, i.owner)
        start = perf_counter()
        kind: Literal["positive", "negative"] = "positive" if i.positive else "negative"
        sealed = session.sender.seal(session.sequence, kind, i.item, i.time)
        session.sequence += 1
        self._meter.spent("encryption", start)
        return session.name + sealed

    def arrive(self, owner: int, content: bytes) -> Interaction:
        start = perf_counter()
        opened = self._receivers[owner, content[:SESSION_BYTES]].open(content[SESSION_BYTES:])
        found = Interaction(owner, opened.user, opened.item, opened.kind == "positive", opened.time)
        self._meter.spent("decryption", start)
        return found

    def _begin(self, user: int, owner: int) -> _Session:
        """Her pass, the owner's offer, her hello, the session's name."""
        start = perf_counter()
        given = self._passes[user].encode()
        admitted = Pass.decode(given)
        admitted.check(self._issuer.public, self._issuer.federation)
        offer = Offer(owner, self._owners[owner])
        sender, hello = begin(
            user, self._identities[user], owner, self._owners[owner].public, offer.public
        )
        receiver = offer.accept(admitted.user, admitted.public, hello)
        name = (len(self._senders) + 1).to_bytes(SESSION_BYTES, "big")
        self._meter.spent("keys", start)
        her: Party = ("user", user)
        there: Party = ("owner", owner)
        self._meter.sent("keys", her, there, given)
        self._meter.sent("keys", there, her, name + offer.public)
        self._meter.sent("keys", her, there, name + hello)
        self._meter.sent("keys", there, her, name)
        self._receivers[owner, name] = receiver
        session = self._senders[user, owner] = _Session(name, sender)
        return session


AGREEMENT_BYTES = PASS_BYTES + 3 * SESSION_BYTES + 64
"""What a user and an owner say to each other to agree on a key."""


class Link:
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
        start = perf_counter()
        nonce = self._count.to_bytes(NONCE_BYTES, "big")
        self._count += 1
        head = b"\x17\x03\x03" + ((len(content) + 17) & 0xFFFF).to_bytes(2, "big")
        record = head + self._cipher.encrypt(nonce, content + b"\x17", head)
        self._meter.spent("encryption", start)
        self._meter.sent(kind, sender, receiver, record)
        start = perf_counter()
        opened = self._cipher.decrypt(nonce, record[5:], record[:5])[:-1]
        self._meter.spent("decryption", start)
        return opened


def way_of(sealing: Sealing, meter: Meter, users: list[int], owners: list[int]) -> Way:
    """How these users' interactions reach these owners."""
    if sealing == "pairs":
        return Pairs(meter, users, owners)
    return Shared(meter, owners) if sealing == "shared" else Clear(meter)
