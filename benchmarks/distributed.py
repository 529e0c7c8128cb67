"""Ranks: a round of pFPL+ by one process of one thread and by two, and what adding up costs.

    sottovoce bench distributed [--quick] [--json]

benchmarks/README.md says what each figure is. The ranks are processes of their own, which this one
starts, with the data of their own users alone; groups of one and of two take turns, and each keeps
its best round.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from sottovoce.algorithms.fpl.system import FPLConfig
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.ranks import Ranks, Shard
from sottovoce.engines.distributed import RankPlace, joined
from sottovoce.engines.observers import Periodically
from sottovoce.engines.processes import free_port
from sottovoce.errors import RunError, WrongSum
from sottovoce.privacy.mechanisms import ShareFraction
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.runs.folder import environment

Progress = Callable[[str], None]

ITEMS, POSITIVES, SIZE = 10_000, 16, 10
ROUNDS = 4
"""Of a group's turn; the first one warms up."""
FLOWER_MS, PFL_MS = 14.0, 0.27
"""Per client and round where a client does nothing, on two cores like these: Flower's simulation on
Ray (1.41, 5,000 clients; 5.4 ms at 100) and pfl-research (10,000 clients, one process)."""


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    users: int
    turns: int


FULL, QUICK = Scale(1_000_000, 3), Scale(100_000, 2)


def run(*, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Every figure, as {"bench", "machine", "results"}."""
    say, scale = progress or (lambda message: None), QUICK if quick else FULL
    best: dict[int, dict[str, Any]] = {}
    for turn in range(scale.turns):
        for size in (1, 2):
            say(f"{scale.users:,} users, {size} rank(s), turn {turn + 1} of {scale.turns}")
            found = group(size, scale.users)
            if size not in best or found["round"] < best[size]["round"]:
                best[size] = found
    one, two = best[1], best[2]
    from sottovoce.experiment import load_benchmark  # which ranks do without

    row = load_benchmark("fpl").row
    if one["model"] != two["model"]:
        raise WrongSum("two ranks have come to another model than one")
    faster, what = one["round"] / two["round"], f"pFPL+, {scale.users:,} users × {POSITIVES}"
    each = 1e3 * one["round"] / scale.users
    share = 100.0 * two["sum"] / two["round"]
    mib = 2.0**20
    results = [
        row(f"{what}, 1 rank", one["round"], "s a round"),
        row(f"{what}, 2 ranks", two["round"], "s a round"),
        row("2 ranks", faster, "×", peer="1 rank", ratio=faster, target=1.8),
        row(
            "processor time of a rank of 2, of a round",
            two["busy"],
            "s",
            peer="1 rank",
            ratio=one["busy"] / two["busy"],
        ),
        row("all-reduce, of a round", share, "%", target=10.0, at_most=True),
        row("all-reduce of the table", 1e3 * two["sum"], "ms"),
        row("waiting for the other rank, of a round", 100 * two["waited"] / two["round"], "%"),
        *(
            row(f"a device's round, {name}", each, "ms", peer=name, ratio=ms / each, target=least)
            for name, ms, least in (
                ("Flower's simulation", FLOWER_MS, 1000.0),
                ("pfl-research", PFL_MS, 100.0),
            )
        ),
        row("peak memory of a rank of 1", one["peak"] / mib, "MiB"),
        row("peak memory of a rank of 2", two["peak"] / mib, "MiB"),
    ]
    here = environment()
    machine = {
        "cpu": here["hardware"]["processor"],
        "cores": here["hardware"]["cores"],
        **{name: here["versions"][name] for name in ("python", "numpy", "numba")},
        "timing": "wall time of the best round; one thread a rank; load "
        + " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "peers": "a client that does nothing, measured before on a machine like this",
    }
    return {"bench": "distributed", "machine": machine, "results": results}


def group(size: int, users: int) -> dict[str, Any]:
    """Some rounds of so many ranks, as the first of them tells."""
    place = {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", str(users)],
            env=os.environ | place | {"RANK": str(k)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for k in range(size)
    ]
    try:
        told = [rank.communicate(timeout=600)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        raise RunError("a rank of the benchmark has failed; its message is above")
    found: dict[str, Any] = json.loads(told[0])
    return found


def rows_of(users: range) -> Interactions:
    """As many items of each user, one from each part of the catalogue, by her number alone."""
    numbers, width = np.arange(users.start, users.stop, dtype=np.int64), ITEMS // POSITIVES
    items = np.empty((len(numbers), POSITIVES), dtype=np.int32)
    draws = Streams.from_seed(2).child("even")
    for start in range(0, len(numbers), 1 << 16):
        part = slice(start, start + (1 << 16))
        items[part] = (width * draws.uniform(numbers[part], POSITIVES)).astype(np.int32)
    items += np.arange(0, width * POSITIVES, width, dtype=np.int32)
    indptr = np.arange(len(numbers) + 1, dtype=np.int64) * POSITIVES
    return Interactions(indptr, items.ravel(), ITEMS)


def measured(ranks: Ranks, users: int) -> dict[str, Any]:
    """Rounds of everybody, of which this rank has its share."""
    mine = ranks.span(users)
    consent = Consent.uniform(np.arange(mine.start, mine.stop), Choice(share_positives=0.5))
    # As many devices add up their steps: a rate at which no model runs off.
    rate = 0.05 / (users / 100)
    settings = FPLConfig(SIZE, rate, cohort_size="all", triples=POSITIVES, rounds=ROUNDS)
    federation = Federation.build(
        settings, rows_of(mine), consent, ShareFraction(), Streams.from_seed(1),
        shard=Shard(ranks, mine.start),
    )  # fmt: skip
    federation.devices.ledger.keep_rows = False
    stamps: list[tuple[float, ...]] = []

    def look(moment: object) -> None:
        waited = getattr(ranks, "waited", 0.0)
        stamps.append((time.perf_counter(), waited, time.process_time()))

    federation.run([Periodically(1, look)], threads=1)
    seconds, waited, busy = np.diff(np.array(stamps), axis=0).T
    best = int(np.argmin(seconds))
    table = np.ones((ITEMS, SIZE + 1), dtype=np.int64)
    sums = []
    for _ in range(20):
        ranks.meet()
        begun = time.perf_counter()
        ranks.all_sum(table)
        sums.append(time.perf_counter() - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "round": float(seconds[best]),
        "waited": float(waited[best]),
        "busy": max(ranks.gather(float(busy.min()))),
        "sum": float(np.median(sums)),
        "peak": max(ranks.gather(peak * (1 if sys.platform == "darwin" else 1024))),
        "model": sha256(federation.server.items.tobytes()).hexdigest(),
    }


def _rank(users: int) -> None:
    place = RankPlace.found()
    if place is None:
        raise RunError("a rank needs its place in the environment")
    with joined(place) as ranks:
        found = measured(ranks, users)
    if place.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        _rank(int(sys.argv[2]))
    else:
        found = run(quick="--quick" in sys.argv, progress=lambda text: print(text, file=sys.stderr))
        print(json.dumps(found, indent=1, ensure_ascii=False))
