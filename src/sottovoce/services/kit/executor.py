"""Work that waits for the database, done elsewhere than in the event loop; and answers that wait on
purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sottovoce.wire.refusals import Refused

T = TypeVar("T")


class BoundedExecutor:
    """So many things at once; whoever brings more is told to come back."""

    def __init__(self, name: str, limit: int, threads: int = 1) -> None:
        """`name` is the service's."""
        self._name, self._limit = name, limit
        self._waiting = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="executor")

    async def __call__(self, work: Callable[[], T]) -> T:
        if self._waiting >= self._limit:
            raise Refused("overload", f"{self._name} has too much to do; come back later")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Tarpit:
    """Lets whoever guesses wait for the answer: one guess a connection in so many seconds. It costs
    a timer, and nobody else waits."""

    _MOST = 4096

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting = 0

    async def __call__(self) -> None:
        if self._waiting >= self._MOST:
            return
        self._waiting += 1
        try:
            await asyncio.sleep(self._seconds)
        finally:
            self._waiting -= 1
