"""Measuring what a plan is computed from: worlds of a few sizes are run, and constants fitted."""

from __future__ import annotations

import math
import os
import platform
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.base import Schedule, Work
from sottovoce.experiment import PreparedExperiment
from sottovoce.runs.devices import federation_of
from sottovoce.runs.federation import Federation
from sottovoce.runs.folder import environment
from sottovoce.runs.owners import build_world
from sottovoce.runs.plan import MeasuredCosts, settings_on
from sottovoce.wire import interactions

Progress = Callable[[str], None]
_ALONE = 20_000
"""Rounds of one device each that are measured together."""
_WARM = 600
"""Devices of the world that is run so that everything is compiled."""
_SIZES = (1_000, 8_000, 64_000, 256_000)
"""Devices that are measured, as far as there is time."""


def repeated(prepared: PreparedExperiment, devices: int) -> PreparedExperiment:
    """The experiment with so many devices: its users, again and again."""
    data, split, n = prepared.dataset, prepared.split, prepared.split.n_users
    rows = np.arange(devices, dtype=np.int64) % n
    consent = replace(prepared.consent.take(rows), users=np.arange(devices, dtype=np.int64))
    known = {name: labels.take(rows) for name, labels in data.user_attributes.items()}
    table, train, test = (
        t.repeat_users(rows) for t in (data.interactions, split.train, split.test)
    )
    return PreparedExperiment(
        prepared.experiment,
        replace(data, interactions=table, user_attributes=known, published=None),
        replace(split, train=train, test=test, negatives=None),
        consent,
    )


@dataclass(frozen=True, slots=True)
class RunSample:
    """A world that was run."""

    devices: int
    entries: int
    numbers: int
    work: Work
    seconds: float
    """Of a round."""
    bytes: float
    """Most that arrays took, beside the histories."""
    up: float
    """Bytes of a device's message, by the ledger."""
    rounds: int
    """That were run."""

    def to_table(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> RunSample:
        return cls(**{**table, "work": Work(**table["work"])})


def run_sample(prepared: PreparedExperiment, devices: int) -> RunSample:
    """So many devices, run for some rounds on one thread: first for memory, then for time."""
    world = repeated(prepared, devices)
    tracemalloc.start()
    try:
        first = SampledRun.of(world)
        first.run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    del first
    best = math.inf
    for _ in range(3):
        running = SampledRun.of(world)
        # Other work on the machine makes the first larger, other threads of ours the second.
        clocks = time.perf_counter, time.process_time
        began = [clock() for clock in clocks]
        running.run()
        took = [clock() - begun for clock, begun in zip(clocks, began, strict=True)]
        best = min(best, *took)
    settings, train = settings_on(world), world.split.train
    plan = running.plan
    numbers = settings.model_rows(train.n_items) * settings.width
    work = settings.work(plan, train.n_items, prepared.experiment.release)
    return RunSample(
        devices,
        train.n_interactions,
        numbers,
        work,
        best / running.rounds,
        float(peak),
        running.up,
        running.rounds,
    )


@dataclass(slots=True)
class SampledRun:
    """A world that is ready to run, with the state of its devices."""

    plan: Schedule
    rounds: int
    federation: Federation | None = None
    silo: Any = None
    up: float = 0.0

    @classmethod
    def of(cls, world: PreparedExperiment, *, keep_rows: bool = False) -> SampledRun:
        if world.experiment.silo is not None:
            owners = build_world(world)[0]
            blocks = owners.blocks()
            learning = owners.learning(blocks, owners.first_model())
            read = owners.departed.read
            members = int(world.consent.takes_part.sum())
            events = int(world.split.train.n_interactions)
            told = int((read.positive + read.negative).sum()) * interactions.SEALED_BYTES
            plan = world.experiment.algorithm.plan(members, events)
            return cls(plan, rounds=2, silo=learning, up=told / members)
        parties = federation_of(world)
        plan, every = parties.schedule, parties.devices.contributes
        rounds = plan.rounds if every else min(plan.rounds, _ALONE if plan.cohort_size == 1 else 2)
        parties.schedule = replace(plan, rounds=rounds)
        parties.devices.ledger.keep_rows = keep_rows
        return cls(plan, rounds, parties)

    def run(self) -> None:
        if self.federation is None:
            for _ in range(self.rounds):
                self.silo.epoch()
            return
        self.federation.run()
        totals = self.federation.devices.ledger.totals
        self.up = totals.bytes / max(1, totals.releases)


def fit(samples: Sequence[RunSample], process: float, where: str) -> MeasuredCosts:
    """Constants, none below 0, by which these samples took about what they took."""
    kinds = sorted({kind for s in samples for kind in (*s.work.shared, *s.work.repeated)})
    counts = np.array(
        [[{**s.work.shared, **s.work.repeated}.get(kind, 0.0) for kind in kinds] for s in samples]
    )
    seconds = _no_less_than_0(counts, np.array([s.seconds for s in samples]))
    of = np.array([[s.devices, s.entries, s.numbers, 1] for s in samples], dtype=np.float64)
    held = _no_less_than_0(of, np.array([s.bytes for s in samples]))
    memory = dict(zip(("device", "entry", "number", "process"), held.tolist(), strict=True))
    memory["process"] += process
    day = datetime.now(UTC).date().isoformat()
    return MeasuredCosts(dict(zip(kinds, seconds.tolist(), strict=True)), memory, where, day)


def _no_less_than_0(counts: NDArray[np.float64], took: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.optimize import nnls

    scale = np.maximum(counts.max(axis=0), 1e-300)
    # What was large counts for more: plans are for what is larger still.
    weight = np.sqrt(took / took.max()) / took
    found, _ = nnls(weight[:, None] * counts / scale, weight * took)
    answer: NDArray[np.float64] = found / scale
    return answer


def measure(
    prepared: PreparedExperiment, sizes: Sequence[int] = (), progress: Progress | None = None
) -> tuple[MeasuredCosts, list[RunSample]]:
    """The constants of an experiment's algorithm on this machine, on one thread."""
    say = progress or (lambda message: None)
    say("a small world, which compiles")
    run_sample(prepared, _WARM)
    process, started = _resident(), time.perf_counter()
    samples: list[RunSample] = []
    for devices in sizes or _SIZES:
        say(f"{devices:,} devices")
        began = time.perf_counter()
        samples.append(run_sample(prepared, devices))
        took = time.perf_counter() - began
        if not sizes and time.perf_counter() - started + 5.0 * took > 50.0:
            break  # the next would take more than the minute that there is
    return fit(samples, process, this_machine()), samples


def _resident() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak * (1 if sys.platform == "darwin" else 1024))


def this_machine() -> str:
    """In words, for whoever reads what was measured there."""
    hardware = environment()["hardware"]
    return f"{hardware['processor'] or platform.machine()}, {os.cpu_count()} cores"
