"""What passes through a DRIFT user's door, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sottovoce.parties.leaving import Leaving
from sottovoce.privacy.interactions import Kind, Sender


class Receipt(Protocol):
    """What an owner says of a request (`owner_wire.Receipt`)."""

    @property
    def sequence(self) -> int: ...
    @property
    def repeated(self) -> int: ...
    @property
    def refused(self) -> tuple[tuple[int, str], ...]: ...


@dataclass(frozen=True, slots=True)
class Said:
    """What became of interactions at the door."""

    messages: int
    """In the outbox now, one for each owner that will read it."""
    known: int
    """Not sent again, as the owner was told before."""
    at_home: int
    """Interactions of which nothing leaves: she takes no part, refuses the owners, or nobody holds
    the item."""


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """In the outbox. Private."""

    sequence: int
    kind: Kind
    item: int
    time: int
    sends: int
    """How often it had left before."""
    unanswered: int
    """After how many of these nobody knew whether it had arrived."""

    def __repr__(self) -> str:
        return "<Message, redacted>"


@dataclass(frozen=True, slots=True, repr=False)
class Departure:
    """Messages that may leave now, and are on record as having left."""

    user: int
    owner: int
    messages: tuple[Message, ...]
    _leaving: Leaving

    def __repr__(self) -> str:
        return f"<Departure of {len(self.messages)} to owner {self.owner}, redacted>"

    @property
    def last_words(self) -> bool:
        """Whether the owner forgets her with this, and the session with it."""
        return self.messages[-1].kind == "leave"

    def seal(self, sender: Sender, frame: Callable[[Sequence[bytes]], bytes]) -> Leaving:
        """The request that carries them: each sealed, all of them in a frame."""

        def sealed(_: bytes) -> bytes:
            return frame([sender.seal(m.sequence, m.kind, m.item, m.time) for m in self.messages])

        return self._leaving.wrapped(sealed)


@dataclass(frozen=True, slots=True)
class Settled:
    """What an owner's receipt meant."""

    arrived: int = 0
    refused: int = 0
    """For good."""
    open: int = 0
    """Still to be told."""
    again: bool = False
    """Some of them were not for this session, and need another one."""
