"""The nodes as the conductor knows them, and the post office through which it reaches them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sottovoce.wire.cohort_rounds import Content

Kind = Literal["train", "query"]


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


class Post(Protocol):
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
