"""Device agents as a process: one for each store, until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce import compiled
from sottovoce.errors import SottovoceError, UsageError
from sottovoce.services.agent.by_hand import AskingAgent
from sottovoce.services.agent.loop import Log, Loop
from sottovoce.stores.device import CohortStore
from sottovoce.stores.opening import open_store

if TYPE_CHECKING:
    from sottovoce.stores.user import UserStore

_GRACE_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Options:
    server: str | None = None
    """Another address than the invitation's; the same authority is trusted."""
    plaintext: bool = False
    poll: float | None = None
    once: bool = False
    until_finished: bool = False
    foreseen: str = ""
    """Digest of terms to which the stores' owners agree, having seen them elsewhere."""


@dataclass(frozen=True, slots=True)
class Served:
    """What one agent did."""

    store: Path
    visits: int
    counted: int
    refused: int
    failures: int
    bytes_sent: int
    bytes_received: int


def serve_devices(paths: Sequence[Path], options: Options) -> list[Served]:
    """Serve these stores until SIGTERM, SIGINT or the end that `options` names. Every store is
    opened before the first one is served, so that nothing starts where one is in use. One store
    alone is served without the compiler, which takes more than all the rest."""
    folders = [path.resolve() for path in paths]
    if len(set(folders)) != len(folders):
        raise UsageError("a store is named twice")
    with contextlib.ExitStack() as opened:
        stores: list[CohortStore | UserStore] = []
        for path in paths:
            stores.append(store := open_store(path, agent=True))
            opened.callback(store.close)
        with compiled.left_out(len(stores) == 1):
            return asyncio.run(_serve(stores, options))


def visit_once(path: Path, options: Options) -> None:
    """Ask once for this store, without a word. Raises what stands in the way."""

    async def visit(store: CohortStore | UserStore) -> None:
        agent = _agent(store, options, lambda event, **details: None)
        try:
            await agent.run(once=True)
        finally:
            await agent.close()

    with open_store(path, agent=True) as store:
        asyncio.run(visit(store))


class JsonLines:
    """A log on standard error. Where it cannot be written, nobody can be told; the agent goes
    on."""

    def info(self, event: str, **details: Any) -> None:
        self._write(event, "info", details)

    def warning(self, event: str, **details: Any) -> None:
        self._write(event, "warning", details)

    def _write(self, event: str, level: str, details: dict[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        line = {**details, "event": event, "level": level, "timestamp": now}
        try:
            sys.stderr.write(json.dumps(line, default=repr, ensure_ascii=False) + "\n")
            sys.stderr.flush()
        except OSError:
            # It would be tried again, in vain, when the process ends.
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _agent(store: CohortStore | UserStore, options: Options, log: Log) -> Loop:
    """As the store's federation asks for."""
    if isinstance(store, CohortStore):
        return AskingAgent(
            store,
            server=options.server,
            plaintext=options.plaintext,
            poll=options.poll,
            foreseen=options.foreseen,
            log=log,
        )
    from sottovoce.services.agent.user_agent import UserAgent  # DRIFT's, with much behind it

    if options.foreseen:
        raise UsageError(f"{store.path} is in a federation of data owners, which has no terms")
    return UserAgent(store, server=options.server, poll=options.poll, log=log)


async def _serve(stores: Sequence[CohortStore | UserStore], options: Options) -> list[Served]:
    log = JsonLines()
    agents = [_agent(store, options, _named(log, store.path.name)) for store in stores]
    tasks = [asyncio.create_task(_until_over(agent, options)) for agent in agents]
    with _stopping(tasks):
        for agent in agents:
            log.info("serving", store=agent.path.name, server=agent.client.url)
        # A fault of ours ends the process; trouble of one store leaves the others alone.
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for agent in agents:
            await agent.close()
    for error in results:
        if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
            raise error
    served = [_served(agent) for agent in agents]
    for one in served:
        log.info("stopped", store=one.store.name, visits=one.visits, counted=one.counted)
    return served


async def _until_over(agent: Loop, options: Options) -> SottovoceError | None:
    """Run an agent; the trouble that it ended with."""
    try:
        await agent.run(once=options.once, until_finished=options.until_finished)
    except SottovoceError as error:
        return error
    return None


@contextlib.contextmanager
def _stopping(tasks: Sequence[asyncio.Task[SottovoceError | None]]) -> Iterator[None]:
    """Within, SIGTERM and SIGINT end the tasks, and the process within a few seconds."""
    # Learning cannot be interrupted, nor looking up a name. A store bears a process that ends at
    # any moment, so there is nothing to wait for beyond this.
    last_resort = threading.Timer(_GRACE_SECONDS, os._exit, [0])
    last_resort.daemon = True

    def stop() -> None:
        if not last_resort.is_alive() and not last_resort.finished.is_set():
            last_resort.start()
        for task in tasks:
            task.cancel()

    with on_signals(stop):
        try:
            yield
        finally:
            last_resort.cancel()


@contextlib.contextmanager
def on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Within, SIGTERM and SIGINT call `stop` in the running loop."""
    loop, signals = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    if sys.platform == "win32":  # whose loops know no signals; Python's own handlers wake them up
        before = {number: signal.getsignal(number) for number in signals}
        for number in signals:
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    else:
        for number in signals:
            loop.add_signal_handler(number, stop)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def _named(log: JsonLines, store: str) -> Log:
    def write(event: str, **details: Any) -> None:
        level = log.warning if event in ("failed", "refused") else log.info
        level(event, store=store, **{key: _printable(value) for key, value in details.items()})

    return write


def _printable(value: Any) -> Any:
    """A server's words may be in it, and a log be read in a terminal."""
    if not isinstance(value, str):
        return value
    return "".join(c if c.isprintable() else " " for c in value)


def _served(agent: Loop) -> Served:
    traffic, tally = agent.traffic, agent.tally
    return Served(
        store=agent.path,
        visits=tally.visits,
        counted=tally.counted,
        refused=tally.refused,
        failures=tally.failures,
        bytes_sent=traffic.sent,
        bytes_received=traffic.received,
    )
