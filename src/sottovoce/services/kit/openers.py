"""Processes that open sealed reports side by side, because opening holds the interpreter and a
large batch would keep one core busy for minutes. The server opens reports with them, and a shuffler
of a chain the layer that is its own.

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

from sottovoce.core.links import LAYER_BYTES
from sottovoce.wire.sealing import KEY_BYTES, open_records

WORTH_IT = 50_000
"""Reports from which on workers are started; fewer are opened here before those would be up."""
MOST_WORKERS = 16
_CHUNK = 4096
"""Records that a worker is given at a time."""
_SETTING = struct.Struct(f"<{KEY_BYTES}sII")
_LENGTH, _OPENED = struct.Struct("<I"), struct.Struct("<II")
_NICE = 5
"""Requests come first."""


class Openers:
    """Opens the records of one tier's batch, `size` bytes each, which were sealed for `info`."""

    def __init__(self, private: bytes, info: bytes, size: int) -> None:
        self._private, self._info, self._size = private, info, size
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

    def open(self, sealed: bytes) -> tuple[bytes, int]:
        """As `open_records`."""
        if self._pool is None:
            return self._here(sealed)
        step = _CHUNK * self._size
        chunks = [sealed[at : at + step] for at in range(0, len(sealed), step)]
        found = list(self._pool.map(self._by_worker, chunks))
        return b"".join(opened for opened, _ in found), sum(refused for _, refused in found)

    def _here(self, sealed: bytes) -> tuple[bytes, int]:
        return open_records(sealed, self._size, self._private, self._info)

    def _by_worker(self, sealed: bytes) -> tuple[bytes, int]:
        worker = self._idle.get()
        try:
            found = None if worker is None else _asked(worker, sealed, self._size)
            if found is None:  # it could not be started, or was killed
                worker = None
                found = self._here(sealed)
            return found
        finally:
            self._idle.put(worker)

    def _start(self) -> subprocess.Popen[bytes] | None:
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
        head = _SETTING.pack(self._private, self._size, len(self._info))
        if worker.stdin is not None:
            with contextlib.suppress(OSError):
                worker.stdin.write(head + self._info)
                worker.stdin.flush()
        return worker


def _cores() -> Collection[int]:
    """Those that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return range(os.cpu_count() or 1) if affinity is None else affinity(0)


def _asked(worker: subprocess.Popen[bytes], sealed: bytes, size: int) -> tuple[bytes, int] | None:
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
        body = worker.stdout.read(count * (size - LAYER_BYTES))
    except OSError:
        return None
    if len(body) < count * (size - LAYER_BYTES) or (count + refused) * size != len(sealed):
        return None
    return body, refused


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
    private, size, length = _SETTING.unpack(source.read(_SETTING.size))
    info = source.read(length)
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        (many,) = _LENGTH.unpack(head)
        sealed = source.read(many)
        if len(sealed) < many:
            return
        opened, refused = open_records(sealed, size, private, info)
        sink.write(_OPENED.pack(len(opened) // (size - LAYER_BYTES), refused) + opened)
        sink.flush()


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(OSError, struct.error):
        _work(sys.stdin.buffer, sys.stdout.buffer)
