"""Processes that open sealed reports side by side, because opening holds the interpreter and a
large batch would keep one core busy for minutes.

A worker gets the private key through its standard input, has it in memory alone, writes nothing
anywhere, and ends when that input does: also if this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import struct
import subprocess
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO

import numpy as np
from numpy.typing import NDArray

from sottovoce.wire.sealing import KEY_BYTES, SEALED_BYTES, open_reports

WORTH_IT = 50_000
"""Reports from which on workers are started; fewer are opened here before those would be up."""
MOST_WORKERS = 16
_CHUNK = 4096 * SEALED_BYTES
_SETTING = struct.Struct(f"<{KEY_BYTES}sIBI")
_LENGTH, _OPENED = struct.Struct("<I"), struct.Struct("<II")
_NICE = 5
"""Requests come first."""


class Openers:
    """Opens the reports of one tier's batch."""

    def __init__(self, private: bytes, *, federation: str, round: int, tier: int) -> None:
        self._private, self._federation = private, federation
        self._round, self._tier = round, tier
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        self._pool: ThreadPoolExecutor | None = None

    @contextlib.contextmanager
    def helped(self, reports: int, workers: int | None = None) -> Iterator[Openers]:
        """Within, with workers if so many reports are worth it; one for each core."""
        cores = len(_cores()) if workers is None else workers
        count = min(cores, MOST_WORKERS) if reports >= WORTH_IT or workers is not None else 0
        if count < 2 and workers is None:
            yield self
            return
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                worker = self._start()
                if worker is not None:
                    stack.callback(_end, worker)
                self._idle.put(worker)
            self._pool = stack.enter_context(ThreadPoolExecutor(count, "opener"))
            yield self

    def open(self, sealed: bytes) -> tuple[NDArray[np.uint32], int]:
        """As `open_reports`."""
        if self._pool is None:
            return self._here(sealed)
        chunks = [sealed[at : at + _CHUNK] for at in range(0, len(sealed), _CHUNK)]
        found = list(self._pool.map(self._by_worker, chunks))
        values = [np.zeros(0, np.uint32), *(opened for opened, _ in found)]
        return np.concatenate(values), sum(refused for _, refused in found)

    def _here(self, sealed: bytes) -> tuple[NDArray[np.uint32], int]:
        place = {"round": self._round, "tier": self._tier}
        return open_reports(sealed, self._private, federation=self._federation, **place)

    def _by_worker(self, sealed: bytes) -> tuple[NDArray[np.uint32], int]:
        worker = self._idle.get()
        try:
            found = None if worker is None else _asked(worker, sealed)
            if found is None:  # it could not be started, or was killed
                worker = None
                found = self._here(sealed)
            return found
        finally:
            self._idle.put(worker)

    def _start(self) -> subprocess.Popen[bytes] | None:
        name = self._federation.encode()
        try:
            worker = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return None
        head = _SETTING.pack(self._private, self._round, self._tier, len(name))
        if worker.stdin is not None:
            with contextlib.suppress(OSError):
                worker.stdin.write(head + name)
                worker.stdin.flush()
        return worker


def _cores() -> Collection[int]:
    """Those that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return range(os.cpu_count() or 1) if affinity is None else affinity(0)


def _asked(worker: subprocess.Popen[bytes], sealed: bytes) -> tuple[NDArray[np.uint32], int] | None:
    """What a worker made of a chunk; None if it is gone."""
    if worker.stdin is None or worker.stdout is None:
        return None
    try:
        worker.stdin.write(_LENGTH.pack(len(sealed)) + sealed)
        worker.stdin.flush()
        head = worker.stdout.read(_OPENED.size)
        if len(head) < _OPENED.size:
            return None
        count, refused = _OPENED.unpack(head)
        body = worker.stdout.read(4 * count)
    except OSError:
        return None
    if len(body) < 4 * count or (count + refused) * SEALED_BYTES != len(sealed):
        return None
    return np.frombuffer(body, "<u4").astype(np.uint32), refused


def _end(worker: subprocess.Popen[bytes]) -> None:
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        worker.wait(timeout=5)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


def _work(source: IO[bytes], sink: IO[bytes]) -> None:
    """A worker's whole life."""
    private, round, tier, length = _SETTING.unpack(source.read(_SETTING.size))
    federation = source.read(length).decode()
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        (size,) = _LENGTH.unpack(head)
        sealed = source.read(size)
        if len(sealed) < size:
            return
        opened, refused = open_reports(
            sealed, private, federation=federation, round=round, tier=tier
        )
        sink.write(_OPENED.pack(len(opened), refused) + opened.astype("<u4").tobytes())
        sink.flush()


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(OSError, struct.error):
        _work(sys.stdin.buffer, sys.stdout.buffer)
