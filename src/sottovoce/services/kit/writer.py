"""One thread writes what devices sent. Whatever has come in while the last transaction went to the
disk goes into the next one together, and is acknowledged when that is on the disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from sottovoce.errors import ServiceError
from sottovoce.services.kit.application import Hosting
from sottovoce.wire.refusals import Refused

_BATCH = 1000
_COUNT_SECONDS = 0.5
"""Refusals are stored at least so often."""

S = TypeVar("S")
"""What is stored."""
D = TypeVar("D")
"""What was decided about it; "accepted" where it was."""


class GroupWriter(Generic[S, D]):
    def __init__(
        self,
        commit: Callable[[Sequence[S], Mapping[str, int], set[int]], list[D]],
        hosting: Hosting[Any],
        *,
        limit: int,
        accepted: Callable[[], None] = lambda: None,
    ) -> None:
        """`commit` decides about submissions and stores them in one transaction, with new counts of
        refusals and with devices that were seen; all is on the disk when it returns. At most
        `limit` submissions wait; `accepted` is called after each transaction that took some."""
        self._commit, self._hosting, self._accepted = commit, hosting, accepted
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._ready = threading.Condition()
        self._gathered: list[tuple[S, asyncio.Future[D]]] = []
        """What has come while the event loop goes through what is at hand. It is handed over in
        one piece then: every transaction costs as much as some submissions do."""
        self._waiting: list[tuple[S, asyncio.Future[D]]] = []
        self._seen: set[int] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether what comes now would be refused."""
        return len(self._waiting) + len(self._gathered) >= self._limit

    def store(self, submission: S) -> asyncio.Future[D]:
        """Decided when it is on the disk. Raises where too many wait."""
        if self.full:
            raise Refused("overload", "the server has too much to do; come back later")
        future: asyncio.Future[D] = self._loop.create_future()
        self._gathered.append((submission, future))
        if len(self._gathered) == 1:
            self._loop.call_soon(self._hand_over)
        return future

    def _hand_over(self) -> None:
        gathered, self._gathered = self._gathered, []
        with self._ready:
            self._waiting += gathered
            self._ready.notify()

    def seen(self, number: int) -> None:
        """Note that a device is there, soon."""
        with self._ready:
            self._seen.add(number)

    def close(self) -> None:
        """Write what is waiting, and stop."""
        self._stopping = True
        self._hand_over()
        self._thread.join(timeout=3)

    def _run(self) -> None:
        try:
            self._write_until_stopped()
        finally:
            if not self._stopping:
                self._hosting.died()

    def _write_until_stopped(self) -> None:
        while True:
            with self._ready:
                if not self._waiting and not self._stopping:
                    self._ready.wait(_COUNT_SECONDS)
                batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
                seen, self._seen = self._seen, set()
                last = self._stopping and not self._waiting
            self._write(batch, seen)
            if last:
                return

    def _write(self, batch: list[tuple[S, asyncio.Future[D]]], seen: set[int]) -> None:
        decisions: list[D] | None = []
        try:
            with self._hosting.tally.storing() as counts:
                if not batch and not counts and not seen:
                    return
                decisions = self._commit([submission for submission, _ in batch], counts, seen)
        except ServiceError as error:
            decisions = None
            self._hosting.failed(error)
        futures = [future for _, future in batch]
        if futures and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_resolve, futures, decisions)
        if decisions and "accepted" in decisions:
            self._accepted()


def _resolve(futures: list[asyncio.Future[D]], decisions: list[D] | None) -> None:
    if decisions is None:
        for future in futures:
            if not future.done():
                future.set_exception(
                    Refused("unavailable", "the server cannot store anything now; come back later")
                )
        return
    for future, decision in zip(futures, decisions, strict=True):
        if not future.done():
            future.set_result(decision)
