"""Work that may block, beside the event loop, in threads that nobody waits for at the end."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from sottovoce.errors import Told

T = TypeVar("T")


class TooBusy(Told):
    """More was brought than may wait."""


class Workers:
    """So many threads and so much that waits for them; whoever brings more is told so. They end
    with the process, also in the midst of something: stores bear that at any moment."""

    def __init__(self, threads: int, waiting: int) -> None:
        self._free = threads + waiting
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    async def __call__(self, work: Callable[[], T]) -> T:
        if self._free <= 0:
            raise TooBusy("trouble.busy")
        self._free -= 1
        future: Future[T] = Future()
        future.add_done_callback(self._done(asyncio.get_running_loop()))
        self._work.put(lambda: _settle(future, work))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """What has not begun is not done any more."""
        for _ in self._threads:
            self._work.put(None)

    def _done(self, loop: asyncio.AbstractEventLoop) -> Callable[[Future[Any]], None]:
        def free() -> None:
            self._free += 1

        def tell(_: Future[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before this
                loop.call_soon_threadsafe(free)

        return tell

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    """Whoever waits for it gets what comes out, an error as well."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
