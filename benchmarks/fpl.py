"""FPL's kernels, full-catalogue ranking and scaling, beside their peers in one run.

    sottovoce bench fpl [--quick] [--json]

benchmarks/README.md says what each figure is and how to read it. Contestants of one comparison take
turns, with the same number of threads; each keeps its best turn, because whatever else runs on a
shared machine can only slow a turn down.
"""

# Kernels carry no types.
# mypy: disable-error-code="no-untyped-def, call-arg, var-annotated, unreachable"

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numba import float32, int64, njit
from numpy.typing import NDArray

from sottovoce.algorithms.pairwise import factors
from sottovoce.algorithms.pairwise.factors import PairStep
from sottovoce.algorithms.simd_rows import load, load_extended, store, store_first, total
from sottovoce.core.consent import ShareRule, thresholds
from sottovoce.core.installed import needs
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer, top_n
from sottovoce.data.shaped import ShapeConfig, generate_shaped
from sottovoce.errors import UsageError
from sottovoce.rng import Streams
from sottovoce.runs.folder import environment

Progress = Callable[[str], None]
Contestant = Callable[[], None]

RATE = 0.05
SIZES = (10, 50)
THREADS = (1, 2)
ROUNDS_AT_ONCE = 1 << 16
"""Rounds of one client that go to the kernel together, as in training."""


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    users: int
    items: int
    interactions: int
    turns: int
    turn_seconds: float
    iterations: int
    """Passes over the data in one call of a peer."""
    rows: tuple[int, ...]
    """Numbers of users in the scaling test; memory is measured at the largest."""


FULL = Scale(6_040, 3_706, 1_000_209, 7, 0.3, 2, (10_000, 100_000, 1_000_000))
QUICK = Scale(2_000, 1_500, 150_000, 3, 0.06, 3, (1_000, 10_000, 100_000))
SCALING_ITEMS, SCALING_COUNT, SCALING_SIZE = 10_000, 50, 50


def run(*, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Every figure, as {"bench", "machine", "results"}."""
    say = progress or (lambda message: None)
    scale = QUICK if quick else FULL
    _peer_modules()
    train = movielens_like(scale)
    say(f"data: {train!r}")
    peers = Peers.on(train)
    results = []
    for size in SIZES:
        for threads in THREADS:
            say(f"triples per second, embedding {size}, {threads} thread(s)")
            results += training(train, scale, peers, size, threads)
    for threads in THREADS:
        say(f"full ranking, embedding 50, {threads} thread(s)")
        results += ranking(train, scale, peers, threads)
    say("scaling and memory")
    results += scaling(scale)
    return {"bench": "fpl", "machine": machine(), "results": results}


def row(
    name: str,
    value: float,
    unit: str,
    *,
    peer: str | None = None,
    ratio: float | None = None,
    target: float | None = None,
    at_most: bool = False,
) -> dict[str, Any]:
    """One figure. The target is for the ratio where there is a peer, else for the value."""
    judged = value if ratio is None else ratio
    met = None if target is None else judged <= target if at_most else judged >= target
    return {
        "name": name,
        "value": float(f"{value:.4g}"),
        "unit": unit,
        "peer": peer,
        "ratio": None if ratio is None else round(ratio, 3),
        "target": target,
        "met": met,
    }


# --- data ----------------------------------------------------------------------------------------


def movielens_like(scale: Scale) -> Interactions:
    """Interactions of MovieLens-1M's shape."""
    return generate_shaped(ShapeConfig(scale.users, scale.items, scale.interactions), max(THREADS))


def even_rows(users: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Row pointers and items of users with 50 interactions each, one from every fiftieth of the
    catalogue: no item is popular, so no row stays in a cache by itself."""
    rng = Streams.from_seed(2).child("even").generator()
    width = SCALING_ITEMS // SCALING_COUNT
    items = rng.integers(0, width, (users, SCALING_COUNT), dtype=np.int32)
    items += np.arange(0, SCALING_ITEMS, width, dtype=np.int32)
    return np.arange(users + 1, dtype=np.int64) * SCALING_COUNT, items.ravel()


# --- contestants: training -----------------------------------------------------------------------


@dataclass(frozen=True)
class Ours:
    """Our kernels on one data set, fed as in training: users, keys and coins are drawn in the
    timed part."""

    indptr: NDArray[np.int64]
    items: NDArray[np.int32]
    model: NDArray[np.float32]
    vectors: NDArray[np.float32]
    sieve: NDArray[np.uint8]
    """Made once per training run."""
    step: PairStep
    """Updates of a whole cohort are summed, so its step is smaller in proportion: a model that runs
    off to infinity would not be what is to be measured."""

    @classmethod
    def on(
        cls,
        indptr: NDArray[np.int64],
        items: NDArray[np.int32],
        n_items: int,
        size: int,
        cohort: int,
    ) -> Ours:
        rate = RATE / max(1, cohort // 100)
        rng = Streams.from_seed(3).child("init").generator()
        model = factors.padded(0.1 * rng.standard_normal((n_items, size + 1), dtype=np.float32))
        vectors = 0.1 * rng.standard_normal((len(indptr) - 1, size), dtype=np.float32)
        step = PairStep(rate, rate / 20, rate / 20, rate / 200, 0.0)
        sieve = factors.make_sieve(indptr, items)
        return cls(indptr, items, model, vectors.astype(np.float32), sieve, step)

    def parallel(self, triples: int, share: float, threads: int) -> None:
        """One round of pFPL (or pFPL+): every device, then the fold."""
        users = np.arange(len(self.vectors), dtype=np.int64)
        root = Streams.from_seed(4)
        rule = ShareRule(
            root.child("share").keys(users),
            thresholds(np.full(len(users), share)),
            np.zeros(0, dtype=bool),
        )
        sums, _, _ = factors.learn_summed(
            self.step, self.model, self.vectors, users, self.indptr, self.items,
            root.child("learn").keys(users), triples, rule, threads=threads, sieve=self.sieve,
        )  # fmt: skip
        factors.fold(self.step, self.model, sums)

    def sequential(self, rounds: int, triples: int, share: float) -> None:
        """Rounds of one client each: sFPL, or sFPL+."""
        root = Streams.from_seed(5)
        limits = thresholds(np.full(ROUNDS_AT_ONCE, share))
        for start in range(0, rounds, ROUNDS_AT_ONCE):
            numbers = np.arange(start, min(rounds, start + ROUNDS_AT_ONCE), dtype=np.int64)
            users = root.child("select").choose_one(len(self.vectors), numbers)
            rule = ShareRule(
                root.child("share").paired_keys(numbers, users),
                limits[: len(users)],
                np.zeros(0, dtype=bool),
            )
            factors.learn_rounds(
                self.step, self.model, self.vectors, users, self.indptr, self.items,
                root.child("learn").paired_keys(numbers, users), triples, rule, self.sieve,
            )  # fmt: skip


def training(
    train: Interactions, scale: Scale, peers: Peers, size: int, threads: int
) -> list[dict[str, Any]]:
    """Triples per second of ours, the peers and the roofline, in turns."""
    data = (train.indptr, train.items, train.n_items, size)
    ours, alone = Ours.on(*data, cohort=train.n_users), Ours.on(*data, cohort=1)
    everyone, long = train.n_users, train.n_interactions // train.n_users
    contestants: dict[str, tuple[int, Contestant]] = {
        "implicit": (
            scale.iterations * train.n_interactions,
            lambda: peers.implicit(size, threads, scale.iterations),
        ),
        "Cornac": (
            scale.iterations * train.n_interactions,
            lambda: peers.cornac(size, threads, scale.iterations),
        ),
        "pFPL+, π = 0.5": (everyone * long, lambda: ours.parallel(long, 0.5, threads)),
        "pFPL+, π = 1": (everyone * long, lambda: ours.parallel(long, 1.0, threads)),
        "pFPL, π = 0.5": (everyone, lambda: ours.parallel(1, 0.5, threads)),
    }
    if threads == 1:
        roof = Roofline.on(train, size, long)
        rounds = max(1, everyone // 4)
        contestants |= {
            "roofline": (everyone * long, roof.turn),
            "sFPL, π = 0.5": (
                train.n_interactions,
                lambda: alone.sequential(train.n_interactions, 1, 0.5),
            ),
            "sFPL, π = 1": (
                train.n_interactions,
                lambda: alone.sequential(train.n_interactions, 1, 1.0),
            ),
            "sFPL+, π = 0.5": (rounds * long, lambda: alone.sequential(rounds, long, 0.5)),
        }
    seconds = in_turns([call for _, call in contestants.values()], scale, threads)
    speed = {
        name: triples / best
        for (name, (triples, _)), best in zip(contestants.items(), seconds, strict=True)
    }
    where = f"embedding {size}, {threads} thread{'s' * (threads > 1)}"
    rival = max(("implicit", "Cornac"), key=lambda name: speed[name])
    targets = {"pFPL+": 5.0 if threads == 1 else 3.0, "sFPL": 1.8}
    if threads == 1 and size == 10:
        targets["pFPL"] = 3.0
    results = []
    for name, value in speed.items():
        if name in ("implicit", "Cornac", "roofline"):
            results.append(row(f"{name}, {where}", value, "triples/s"))
            continue
        results.append(
            row(
                f"{name}, {where}",
                value,
                "triples/s",
                peer=f"{rival} BPR",
                ratio=value / speed[rival],
                target=targets.get(name.partition(",")[0]),
            )
        )
        if "roofline" in speed:
            share = value / speed["roofline"]
            results.append(row(f"{name}, {where}: share of the roofline", share, "of 1"))
    return results


def in_turns(contestants: Sequence[Contestant], scale: Scale, threads: int = 1) -> list[float]:
    """Seconds of one call of each, the best of several turns. A first turn, not counted, compiles
    and warms up, a second finds how many calls make a turn of the same length for everybody: short
    turns would slip between other work on the machine more easily than long ones. With one thread
    the clock is that thread's processor time, with several it is the one on the wall."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    calls = [1] * len(contestants)
    best = [np.inf] * len(contestants)
    for turn in range(-2, scale.turns):
        for k, contestant in enumerate(contestants):
            start = clock()
            for _ in range(calls[k]):
                contestant()
            elapsed = (clock() - start) / calls[k]
            if turn == -1:
                calls[k] = max(1, round(scale.turn_seconds / elapsed))
            elif turn >= 0:
                best[k] = min(best[k], elapsed)
    return best


# --- the roofline: what no triple can do without -------------------------------------------------


@dataclass(frozen=True)
class Roofline:
    """A kernel with the memory traffic and the products of a triple and nothing else. Draws are
    made beforehand; there is no σ, no rounding, no clamping, no overflow, no regulariser, no coin
    and no count. Per triple: two model rows read, one inner product, one vector moved, two rows of
    sums moved, all in single precision; devices take turns draw by draw, eight at a time."""

    kernel: Any
    vectors: NDArray[np.float32]
    model: NDArray[np.float32]
    sums: NDArray[np.float32]
    drawn: NDArray[np.int32]
    moving: NDArray[np.float32]

    @classmethod
    def on(cls, train: Interactions, size: int, triples: int) -> Roofline:
        rng = Streams.from_seed(6).generator()
        shape = (train.n_users, triples)
        place = (rng.random(shape) * train.counts[:, None]).astype(np.int64)
        positive = train.items[train.indptr[:-1, None] + place]
        negative = rng.integers(0, train.n_items, shape, dtype=np.int32)
        model = 0.1 * rng.standard_normal((train.n_items, size + 1), dtype=np.float32)
        vectors = 0.1 * rng.standard_normal((train.n_users, size), dtype=np.float32)
        groups = train.n_users // 8
        drawn = np.stack([positive, negative], axis=2)[: groups * 8]
        return cls(
            _roofline(size),
            vectors.astype(np.float32),
            factors.padded(model),
            factors.padded(0 * model),
            np.ascontiguousarray(drawn.reshape(groups, 8, triples, 2).transpose(0, 2, 1, 3)),
            factors.padded(np.zeros((8, size + 1), dtype=np.float32)),
        )

    def turn(self) -> None:
        self.kernel(self.vectors, self.model, self.sums, self.drawn, self.moving)


def _roofline(size: int) -> Any:
    F = size
    W = size + 1

    @njit(nogil=True, error_model="numpy")
    def kernel(vectors, model, sums, drawn, moving):
        for group in range(drawn.shape[0]):
            for g in range(8):
                store(moving, g, load_extended(vectors, 8 * group + g, F))
            for t in range(drawn.shape[1]):
                for g in range(8):
                    i, j = int64(drawn[group, t, g, 0]), int64(drawn[group, t, g, 1])
                    p, d = load(moving, g, W), load(model, i, W) - load(model, j, W)
                    x = float32(1e-6) * total(p * d)
                    store(moving, g, p + x * d)
                    update = x * p
                    store(sums, j, load(sums, j, W) - update)
                    store(sums, i, load(sums, i, W) + update)
            for g in range(8):
                store_first(vectors, 8 * group + g, F, load(moving, g, W))

    return kernel


# --- ranking -------------------------------------------------------------------------------------


def ranking(train: Interactions, scale: Scale, peers: Peers, threads: int) -> list[dict[str, Any]]:
    """Ten best items of every user, seen ones left out, from one and the same model."""
    model = peers.implicit(50, threads, 1)
    users = np.arange(train.n_users)
    scorer = FactorScorer(
        np.ascontiguousarray(model.user_factors[:, :50]),
        np.ascontiguousarray(model.item_factors[:, :50]),
        np.ascontiguousarray(model.item_factors[:, 50] * model.user_factors[0, 50]),
    )

    def theirs() -> None:
        with peers.blas(threads):
            model.recommend(users, peers.matrix, N=10, filter_already_liked_items=True)

    def ours() -> None:
        top_n(scorer, users, seen=train, n=10, threads=threads)

    theirs_s, ours_s = in_turns([theirs, ours], scale, threads)
    where = f"embedding 50, {threads} thread{'s' * (threads > 1)}"
    return [
        row(f"implicit, ranking, {where}", train.n_users / theirs_s, "users/s"),
        row(
            f"ranking, {where}",
            train.n_users / ours_s,
            "users/s",
            peer="implicit recommend",
            ratio=theirs_s / ours_s,
            target=5.0,
        ),
    ]


# --- scaling -------------------------------------------------------------------------------------


def scaling(scale: Scale) -> list[dict[str, Any]]:
    """Cost of a triple as users multiply, and the memory of the largest run."""
    worlds = [Ours.on(*even_rows(n), SCALING_ITEMS, SCALING_SIZE, n) for n in scale.rows]
    contestants = [partial(world.parallel, SCALING_COUNT, 0.5, 1) for world in worlds]
    seconds = in_turns(contestants, scale)
    cost = [1e9 * s / (n * SCALING_COUNT) for s, n in zip(seconds, scale.rows, strict=True)]
    results = [
        row(f"pFPL+, {n:,} users × {SCALING_COUNT}", c, "ns per triple")
        for n, c in zip(scale.rows, cost, strict=True)
    ]
    first, last = scale.rows[0], scale.rows[-1]
    growth = cost[-1] / cost[0]
    results.append(
        row(f"growth of cost, {first:,} to {last:,} users", growth, "×", target=1.3, at_most=True)
    )
    del worlds, contestants
    called = subprocess.run(
        [sys.executable, __file__, "--peak-memory", str(last)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    peak = json.loads(called.stdout)["bytes"] / 2**30
    name = f"peak memory, {last:,} users × {SCALING_COUNT}"
    results.append(row(name, peak, "GiB", target=4.0, at_most=True))
    return results


def _peak_memory(users: int) -> None:
    """In a process of its own: a round over this many users, then the most memory it ever held."""
    world = Ours.on(*even_rows(users), SCALING_ITEMS, SCALING_SIZE, users)
    world.parallel(SCALING_COUNT, 0.5, 2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"bytes": peak * (1 if sys.platform == "darwin" else 1024)}))


# --- peers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peers:
    """The other implementations on one data set, each told how many threads to use."""

    modules: dict[str, Any]
    matrix: Any
    dataset: Any

    @classmethod
    def on(cls, train: Interactions) -> Peers:
        modules = _peer_modules()
        ones = np.ones(train.n_interactions, dtype=np.float32)
        shape = (train.n_users, train.n_items)
        pointers = train.indptr.astype(np.int32)
        triples = zip(train.users.tolist(), train.items.tolist(), ones.tolist(), strict=True)
        return cls(
            modules,
            sp.csr_matrix((ones, train.items.copy(), pointers), shape=shape),
            modules["cornac.data"].Dataset.from_uir(list(triples)),
        )

    def blas(self, threads: int) -> Any:
        return self.modules["threadpoolctl"].threadpool_limits(limits=threads)

    def implicit(self, size: int, threads: int, iterations: int) -> Any:
        model = self.modules["implicit.cpu.bpr"].BayesianPersonalizedRanking(
            factors=size,
            iterations=iterations,
            learning_rate=RATE,
            num_threads=threads,
            random_state=1,
        )
        with self.blas(threads):
            model.fit(self.matrix, show_progress=False)
        return model

    def cornac(self, size: int, threads: int, iterations: int) -> None:
        model = self.modules["cornac.models"].BPR(
            k=size,
            max_iter=iterations,
            learning_rate=RATE,
            num_threads=threads,
            verbose=False,
            seed=1 if threads == 1 else None,  # with a seed Cornac runs on one thread
        )
        with self.blas(threads):
            model.fit(self.dataset)


def _peer_modules() -> dict[str, Any]:
    names = ("implicit.cpu.bpr", "cornac.models", "cornac.data", "threadpoolctl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return {name: importlib.import_module(name) for name in names}
        except ImportError as missing:
            lacking = needs((missing.name or "implicit").partition(".")[0])
            raise UsageError(
                f"this benchmark measures beside implicit and Cornac: it {lacking}"
            ) from missing


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    here = environment()
    return {
        "cpu": here["hardware"]["processor"],
        "cores": here["hardware"]["cores"],
        **{name: here["versions"][name] for name in ("python", "numpy", "numba")},
        "implicit": importlib.import_module("implicit").__version__,
        "cornac": importlib.import_module("cornac").__version__,
        "timing": "best of several turns; processor time with one thread, wall time with two",
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak-memory"]:
        _peak_memory(int(sys.argv[2]))
    else:
        found = run(quick="--quick" in sys.argv, progress=lambda text: print(text, file=sys.stderr))
        print(json.dumps(found, indent=1, ensure_ascii=False))
