"""What conductors have in common: the nodes, the transport to them, and messages that are sent
again until there is an answer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.stores.conductor import write_status
from sottovoce.wire.cohort_rounds import Content

Kind = Literal["train", "query"]
PULL_SECONDS = 0.2
"""How often replies are fetched."""
LOOK_SECONDS = 1.0
"""How often it is checked who is online, and how long after an error a message is sent again."""
LONGEST_SECONDS = 15.0
"""The longest pause before a message is sent again to a node that fell over each time."""


@dataclass(frozen=True, slots=True)
class OnlineNode:
    """A node that is online."""

    node: int
    identity: str
    """The same after a restart, where nodes have keys."""
    since: str
    """When it came online; changes when it is restarted."""


@dataclass(frozen=True, slots=True, repr=False)
class Reply:
    to: str
    """The message that it answers."""
    content: Mapping[str, Any] | None
    """None where there is an error instead."""
    error: str = ""


class Transport(Protocol):
    """Carries messages. Time is its matter too, so that tests need not wait."""

    def online(self) -> list[OnlineNode]: ...

    def send(self, kind: Kind, letters: Mapping[int, Content], seconds: float) -> dict[int, str]:
        """One message per node; gives the messages' names. They are void after `seconds`."""
        ...

    def collect(self, messages: Collection[str]) -> list[Reply]: ...

    def clock(self) -> float:
        """Seconds, from any start, never going back."""
        ...

    def wait(self, seconds: float) -> None: ...


@dataclass(slots=True, repr=False)
class Member:
    """What is known of one node in this run."""

    node: int
    identity: str
    since: str
    willing: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    kept: int = -1
    """The model version that it says it has."""
    heard: bool = False
    """Whether it ever answered."""
    fresh: bool = False
    """Whether it has answered since the last round began."""
    misses: int = 0
    """Rounds in a row in which it was asked and stayed silent."""
    problem: str = ""
    """What it said stood in its way."""
    question: str = ""
    """The question that it has not answered yet."""

    def __repr__(self) -> str:
        return f"<Member {self.node}, {len(self.willing)} devices>"


@dataclass(slots=True, repr=False)
class Asked:
    """A node that was sent something, until it has answered."""

    messages: set[str] = field(default_factory=set)
    since: str = ""
    """The node's start when it was last sent the message."""
    resend_at: float = math.inf
    errors: int = 0
    settled: bool = False

    def fell_over(self, now: float) -> None:
        """The message never reached the node, or the node fell over."""
        self.resend_at = now + min(LOOK_SECONDS * 2**self.errors, LONGEST_SECONDS)
        self.errors = min(self.errors + 1, 10)

    def is_due(self, since: str, now: float) -> bool:
        """Whether a node that has started then gets the message again: Flower hands one out once,
        also if its answer does not arrive. The node answers with the same bytes, which count
        once."""
        return not self.settled and (self.since != since or now >= self.resend_at)


A = TypeVar("A", bound=Asked)


class RoundLoop(ABC):
    """Holds rounds until `target` (None: without end), and if it is to `hold`, waits for a later
    one."""

    def __init__(
        self, folder: Path, transport: Transport, target: int | None, hold: bool, run: str
    ) -> None:
        self.folder, self.transport, self.target, self.hold = folder, transport, target, hold
        self.run_name = run
        self._looked = -math.inf
        self._said: dict[str, Any] = {}

    def run(self) -> None:
        while True:
            self._reach_target()
            self._status("finished")
            if not self.hold or self.target is None:
                return
            while (raised := self._raised_target()) <= self.target:
                self.transport.wait(PULL_SECONDS)
            self.target = raised

    @abstractmethod
    def _reach_target(self) -> None:
        """Hold all rounds that are to be held now."""

    @abstractmethod
    def _raised_target(self) -> int:
        """What the operator wants now; asked again and again while there is nothing to do."""

    @abstractmethod
    def _facts(self) -> dict[str, Any]:
        """What onlookers are told, beside the state of the run."""

    def _status(self, state: str, **more: Any) -> None:
        status = {"run": self.run_name, "state": state, "target": self.target}
        status |= {**self._facts(), **more}
        if status != self._said:
            self._said = status
            write_status(self.folder, status)

    def _is_time_to_look(self, force: bool = False) -> bool:
        """Whether it is to be checked who is online."""
        now = self.transport.clock()
        if not force and now < self._looked + LOOK_SECONDS:
            return False
        self._looked = now
        return True

    def _replies(self, asked: Mapping[int, A]) -> Iterator[tuple[int, A, Reply]]:
        """Answers that have come from those that were asked; after an error the message is due
        again later."""
        where = {message: key for key, entry in asked.items() for message in entry.messages}
        for reply in self.transport.collect(list(where)) if where else ():
            key = where.pop(reply.to, None)
            if key is None:
                continue
            entry = asked[key]
            entry.messages.discard(reply.to)
            if entry.settled:
                continue
            if reply.content is None:
                entry.fell_over(self.transport.clock())
            else:
                yield key, entry, reply
