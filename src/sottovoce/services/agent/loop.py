"""What agents of all federations do alike: they visit, wait and visit again, until told to stop.

Whatever may pass is waited for. A fault of ours is one store's trouble, and not its neighbours'.
"""

from __future__ import annotations

import asyncio
import traceback
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sottovoce.engines.client import Busy, Client, loopback
from sottovoce.engines.connection import Traffic
from sottovoce.errors import (
    ConsentError,
    ServiceError,
    SottovoceError,
    Unreachable,
    VersionMismatch,
)
from sottovoce.services.kit.pacing import Draw, Pace, from_system

T = TypeVar("T")
Log = Callable[..., None]
"""Takes an event and its details, none of them private."""
Sleep = Callable[[float], Awaitable[None]]

_KEPT_OPEN = 2.0
"""A connection outlives waits up to so many seconds."""
FIRST_WAIT, _LONGEST_WAIT = 0.2, 30.0
"""Seconds before a second attempt, doubled each time; an agent that is asked to wait longer than
the second leaves it for the next time."""
FAULTS = (ArithmeticError, LookupError, MemoryError, TypeError, ValueError)
"""What may be raised by an answer that nobody thought of."""


@dataclass(slots=True)
class AgentCounts:
    """What an agent has done since it was started."""

    visits: int = 0
    counted: int = 0
    """Reports or messages that were acknowledged."""
    refused: int = 0
    failures: int = 0


class Visit(Protocol):
    """What a visit has shown."""

    @property
    def poll_seconds(self) -> float: ...
    @property
    def state(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Silent:
    """What a visit shows that was not made."""

    state: str = "stopped"
    poll_seconds: float = 5.0


class Loop(ABC):
    """The agent of one store."""

    def __init__(
        self, path: Path, client: Client, *, poll: float | None, log: Log, draw: Draw, sleep: Sleep
    ) -> None:
        self.path, self.client = path, client
        self.tally = AgentCounts()
        self._pace = Pace(poll, draw, near=loopback(client.url))
        self._log, self._draw, self._sleep = log, draw, sleep
        self._asked_of_owner = ""

    @abstractmethod
    async def visit(self) -> Visit:
        """Ask once, and do what there is to do."""

    @property
    @abstractmethod
    def stopped(self) -> bool:
        """Whether the owner wants that no byte leaves, not even a question for what is public."""

    @property
    @abstractmethod
    def traffic(self) -> Traffic:
        """With all parties."""

    @abstractmethod
    async def rest(self) -> None:
        """Close all connections."""

    @abstractmethod
    async def close(self) -> None:
        """Wait for what is being written. The store stays open."""

    async def run(self, *, once: bool = False, until_finished: bool = False) -> None:
        """Visit until cancelled, or as long as told. Raises what the owner must settle, if the
        caller waits for an end."""
        while True:
            try:
                now = await self._guarded()
            except SottovoceError as error:
                self.tally.failures += 1
                lasting = isinstance(error, VersionMismatch | ConsentError)
                if once or (until_finished and lasting):
                    await self.rest()
                    raise
                wait = self._after(error)
                await self.rest()
            else:
                self._asked_of_owner = ""
                if once or (until_finished and now.state == "finished"):
                    await self.rest()
                    return
                wait = self._pace.after_success(now.poll_seconds)
                if wait > _KEPT_OPEN:
                    await self.rest()
            await self._sleep(wait)

    def _after(self, error: SottovoceError) -> float:
        """Seconds to wait after a visit that came to nothing. Why, is said; what the owner has to
        decide, once."""
        asked = str(error) if isinstance(error, ConsentError) else ""
        if asked:
            wait = self._pace.while_asked()
        else:
            wait = self._pace.after_failure(error.retry_after if isinstance(error, Busy) else 0)
        if not asked or asked != self._asked_of_owner:
            self._log("failed", why=str(error), retry_seconds=round(wait, 1))
        self._asked_of_owner = asked
        return wait

    async def _guarded(self) -> Visit:
        if self.stopped:
            await self.rest()
            return Silent()
        try:
            return await self.visit()
        except FAULTS as error:
            # Neither its words nor its values: they may be private.
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} in {place.name}, line {place.lineno}"
            raise ServiceError(
                f"the store in {self.path} could not go on ({where}); if it lasts, tell the "
                "authors of Sottovoce"
            ) from error


@dataclass(frozen=True, slots=True)
class Retries:
    """How often whoever does not answer is asked in all, with growing waits."""

    tries: int = 4
    sleep: Sleep = asyncio.sleep
    draw: Draw = from_system

    async def __call__(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        given_up: Callable[[], bool] = lambda: False,
    ) -> T:
        """What `work` returns. Raises `Unreachable` if nobody has answered, or if it was `given_up`
        meanwhile."""
        attempt = 0
        while True:
            try:
                return await work()
            except Unreachable as error:
                wait = FIRST_WAIT * 2.0**attempt * (0.5 + self.draw())
                if isinstance(error, Busy):
                    wait = max(wait, error.retry_after)
                attempt += 1
                if attempt >= self.tries or wait > _LONGEST_WAIT or given_up():
                    raise
                await self.sleep(wait)
