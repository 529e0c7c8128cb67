"""Several processes, machines or GPUs: ranks over `torch.distributed` (gloo, or NCCL between GPUs).

There is one loop, that of `engines.simulation`. A rank holds the users of one contiguous range, and
has the server whole: sums, which are whole numbers, are added up over all ranks, and every rank
folds them alike. Randomness is keyed by users' numbers. So any number of ranks gives the same bits.

Ranks are processes with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in their environment, as
`torchrun` starts them, or `launch` here. None waits for ever: a rank that stops says why in the
store that all of them share, and the others find its connection closed, or give up after a time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.installed import needs
from sottovoce.core.ranks import Ranks
from sottovoce.engines.processes import free_port, tethered
from sottovoce.errors import ConfigError, RankLost, ServiceError, SottovoceError, UsageError

T = TypeVar("T")
JOIN_SECONDS = 120.0
"""For which ranks wait for each other at the start."""
TIMEOUT_SECONDS = 600.0
"""For which a rank waits for another that neither answers nor has closed its connection."""
RESTARTS = 3
LOST = 75
"""Exit code of a rank that stops because another one has."""
_BEGUN = "begun"
_LINGER = 3.0
"""Seconds for which the rank that keeps the store waits for the others to leave."""
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class RankInterrupted(KeyboardInterrupt):
    """Ctrl-C, on this rank or on another; `said`: another rank tells what to do next."""

    def __init__(self, *, said: bool) -> None:
        super().__init__()
        self.said = said


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Which rank this process is, and where the ranks meet."""

    rank: int
    size: int
    host: str
    port: int
    attempt: int = 0
    """How often the ranks were started before."""
    hosted: bool = False
    """Whether the launcher keeps the store, as torchrun does; otherwise the first rank."""

    @classmethod
    def found(cls, environment: Mapping[str, str] | None = None) -> RankPlace | None:
        """By the variables that torchrun sets; None where this process is no rank."""
        known = os.environ if environment is None else environment
        if "RANK" not in known or "WORLD_SIZE" not in known:
            return None
        missing = [name for name in _NEEDED if name not in known]
        if missing:
            raise UsageError(f"a rank needs {missing[0]} in its environment; start it by torchrun")
        try:
            rank, size, port = (int(known[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
            attempt = int(known.get("TORCHELASTIC_RESTART_COUNT", "0"))
        except ValueError as error:
            raise UsageError(f"RANK, WORLD_SIZE and MASTER_PORT are numbers: {error}") from None
        if not 0 <= rank < size:
            raise UsageError(f"RANK is {rank}, where WORLD_SIZE is {size}")
        hosted = known.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return cls(rank, size, known["MASTER_ADDR"], port, attempt, hosted)


class TorchRanks(Ranks):
    """A rank among others, which it reaches by torch.distributed."""

    together = True

    def __init__(
        self, place: RankPlace, torch: ModuleType, store: Any, device: str, timeout: float
    ) -> None:
        self.rank, self.size = place.rank, place.size
        self.waited = 0.0
        """Seconds in which it waited for others, or for what they sent."""
        self._torch, self._lasting, self._device = torch, store, device
        self._store = torch.distributed.PrefixStore(f"start-{place.attempt}", store)
        self._timeout, self._keeps = timeout, place.rank == 0 and not place.hosted
        self._connected = False
        self.goes_on = place.attempt > 0 and (not place.hosted or bool(store.check([_BEGUN])))
        """Whether ranks before these had begun the run. Torchrun also starts those again whose
        folder was refused."""

    def connect(self, backend: str) -> None:
        """From here on there are the others."""
        try:
            self._torch.distributed.init_process_group(
                backend,
                store=self._torch.distributed.PrefixStore("group", self._store),
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=self._timeout),
            )
        except RuntimeError as error:
            raise ServiceError(
                f"rank {self.rank} cannot reach the others: {_line(error)}"
            ) from None
        self._connected = True

    def all_sum(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        if numbers.dtype != np.int64:
            raise ConfigError("only whole numbers are added up over ranks")
        if not self._connected:
            return numbers
        table = self._torch.from_numpy(np.array(numbers, order="C")).to(self._device)
        with self._together():
            self._torch.distributed.all_reduce(table)
        found: NDArray[np.int64] = table.cpu().numpy()
        return found

    def gather(self, told: T) -> list[T]:
        if not self._connected:
            return [told]
        found: list[Any] = [None] * self.size
        with self._together():
            self._torch.distributed.all_gather_object(found, told)
        return cast(list[T], found)

    def meet(self) -> None:
        self.all_sum(np.zeros(1, np.int64))

    def begun(self) -> None:
        self._lasting.set(_BEGUN, "")

    def same(self, what: str, value: str) -> None:
        told = self.gather(value)
        other = next((k for k, one in enumerate(told) if one != told[0]), None)
        if other is not None:
            differ = told[self.rank] != told[0]
            raise RankLost(
                f"rank {self.rank if differ else other} has another {what} than rank 0; start all "
                "ranks with the same",
                said=not differ,
            )

    # --- one that stops ---------------------------------------------------------------------------

    def say_why(self, sentence: str) -> bool:
        """Tells the others why this rank stops; whether it is the first to say that."""
        try:
            self._store.set(f"stopped/{self.rank}", sentence)
            return int(self._store.add(f"said/{sentence}", 1)) == 1
        except RuntimeError:  # the first rank, which kept the store, is gone
            return self.rank <= 1

    def leave(self) -> None:
        """Closes what connects it with the others, who notice at once. Who keeps the store stays
        until they have read in it, or had the time to."""
        if not self._connected:
            return
        with contextlib.suppress(RuntimeError):
            self._torch.distributed.destroy_process_group()
        with contextlib.suppress(RuntimeError):
            self._store.set(f"left/{self.rank}", "")
            until = time.monotonic() + _LINGER if self._keeps else 0.0
            others = [f"left/{k}" for k in range(self.size)]
            while time.monotonic() < until and not self._store.check(others):
                time.sleep(0.02)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            raise self._lost(error) from None
        finally:
            self.waited += time.perf_counter() - begun

    def _lost(self, error: RuntimeError) -> RankLost:
        """Return which rank has stopped, by the store, if one had the time to say so."""
        time.sleep(0.2)  # a rank that stops closes its connections a moment after it has said why
        for rank in range(self.size):
            try:
                if rank != self.rank and self._store.check([f"stopped/{rank}"]):
                    return RankLost(f"rank {rank} has stopped, and has said why", said=True)
            except RuntimeError:
                break
        late = "imed out" in str(error)
        what = f"has not answered for {self._timeout:g} s" if late else "is gone"
        return RankLost(
            f"a rank {what}, so that the others stop; the run is kept as it was at its last "
            "checkpoint: go on with --resume"
        )


@contextlib.contextmanager
def joined(
    place: RankPlace,
    device: str = "cpu",
    *,
    join_seconds: float = JOIN_SECONDS,
    timeout: float = TIMEOUT_SECONDS,
) -> Iterator[TorchRanks]:
    """This process as a rank, once all are there. Whatever ends it is told to the others."""
    torch = _torch(device)
    store = _store(torch, place, join_seconds, timeout)
    here = _device(torch, place, device)
    # Ranks that share a GPU cannot use NCCL; one rank by itself needs neither.
    shared = int(os.environ.get("LOCAL_WORLD_SIZE", place.size)) > torch.cuda.device_count()
    backend = "nccl" if device == "cuda" and not shared else "gloo"
    ranks = TorchRanks(place, torch, store, here if backend == "nccl" else "cpu", timeout)
    if place.size > 1 or backend == "nccl":
        ranks.connect(backend)
    try:
        yield ranks
    except RankLost as error:
        error.said = error.said or not ranks.say_why(str(error))
        raise
    except SottovoceError as error:
        if not ranks.say_why(str(error)):  # all have found the same
            raise RankLost(str(error), said=True) from error
        raise
    except KeyboardInterrupt:
        raise RankInterrupted(said=not ranks.say_why("interrupted")) from None
    except BaseException as error:
        ranks.say_why(f"{type(error).__name__}: {_line(error)}")
        raise
    finally:
        ranks.leave()


def _torch(device: str) -> ModuleType:
    try:
        import torch
        import torch.distributed
    except ImportError:
        raise UsageError(f"a run of several ranks {needs('torch')}") from None
    if not torch.distributed.is_available():
        raise UsageError("this PyTorch was built without torch.distributed; install another one")
    return torch


def _device(torch: ModuleType, place: RankPlace, device: str) -> str:
    if device != "cuda":
        return device
    here = int(os.environ.get("LOCAL_RANK", place.rank)) % max(1, torch.cuda.device_count())
    torch.cuda.set_device(here)
    return f"cuda:{here}"


def _store(torch: ModuleType, place: RankPlace, join_seconds: float, timeout: float) -> Any:
    """What all ranks can read, once all of them are there."""
    keeps = place.rank == 0 and not place.hosted
    where, until = f"{place.host}:{place.port}", time.monotonic() + join_seconds
    try:
        found = torch.distributed.TCPStore(
            place.host,
            place.port,
            is_master=keeps,
            timeout=timedelta(seconds=join_seconds),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        if keeps and "EADDRINUSE" in str(error):
            raise ServiceError(
                f"port {place.port} is in use on this machine, so that ranks cannot meet there; "
                "choose another (MASTER_PORT, or torchrun's --master-port)"
            ) from None
        raise ServiceError(
            f"rank {place.rank} cannot reach the first rank at {where} within {join_seconds:g} s; "
            "is it running there?"
        ) from None
    lasting = torch.distributed.PrefixStore("sottovoce", found)
    try:
        _wait_for_all(
            torch.distributed.PrefixStore(f"start-{place.attempt}", lasting), place, until
        )
    except RuntimeError:  # the store is gone
        raise RankLost("the first rank has stopped, and has said why", said=True) from None
    lasting.set_timeout(timedelta(seconds=timeout))
    return lasting


def _wait_for_all(store: Any, place: RankPlace, until: float) -> None:
    """Raises where a rank has not joined by then."""
    store.set(f"joined/{place.rank}", socket.gethostname())
    while True:
        missing = [k for k in range(place.size) if not store.check([f"joined/{k}"])]
        if not missing:
            return
        if time.monotonic() > until:
            named = ", ".join(map(str, missing[:8])) + (" and others" if len(missing) > 8 else "")
            raise ServiceError(
                f"{place.size - len(missing)} of {place.size} ranks have joined at {place.host}:"
                f"{place.port} in time; missing: {named}; start all of them, and try again"
            )
        time.sleep(0.05)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


# --- on this machine ------------------------------------------------------------------------------


def launch(command: Sequence[str], ranks: int, restarts: int = RESTARTS) -> int:
    """Runs `command` as so many ranks on this machine, and again, all of them, where one of them
    was killed; they go on from their last checkpoint. Returns the exit code. Ctrl-C is handed on to
    the ranks, which save and stop; the second one, too, at which they stop at once."""
    children: list[subprocess.Popen[bytes]] = []
    told = False

    def hand_on(number: int, frame: object) -> None:
        nonlocal told
        told = True
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, hand_on) for number in numbers}
    try:
        for attempt in range(restarts + 1):
            children[:] = _started(command, ranks, attempt)
            codes = [child.wait() for child in children]
            killed = [k for k, code in enumerate(codes) if code < 0]
            if not killed or attempt == restarts or told:
                break
            print(
                f"rank {killed[0]} was killed by signal {-codes[killed[0]]}; all ranks go on from "
                f"the last checkpoint ({attempt + 1} of at most {restarts} times)",
                file=sys.stderr,
            )
        own = [code for code in codes if code not in (0, LOST)]
        return (own[0] if own[0] > 0 else 128 - own[0]) if own else max(codes)
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _started(command: Sequence[str], ranks: int, attempt: int) -> list[subprocess.Popen[bytes]]:
    place = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
    }
    return [
        subprocess.Popen(
            tethered(command),
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            process_group=0,  # a terminal's Ctrl-C comes once, from here
        )
        for rank in range(ranks)
    ]
