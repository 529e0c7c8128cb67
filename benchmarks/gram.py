"""The sum over users of gram's second round, beside scipy's sparse product; how it grows with
users, what memory it takes, and the same sum on a GPU where there is one.

    sottovoce bench gram [--quick] [--json]

A million users have 50 of 1,000 head items each. benchmarks/README.md says what each figure is and
how to read it. Every sum that is timed is compared with that of another computation; were it
another in a single number, there would be no figures.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numba import njit, uint64
from numpy.typing import DTypeLike, NDArray
from scipy.linalg import lapack

from sottovoce.algorithms.gram.kernels import LARGEST_STEP, sum_pairs
from sottovoce.baselines.ease import inverse_gram
from sottovoce.core.arrays import each, equal_spans
from sottovoce.errors import WrongSum
from sottovoce.experiment import load_benchmark
from sottovoce.rng import Streams, draw
from sottovoce.runs.folder import environment

if TYPE_CHECKING:
    from sottovoce.algorithms.gram.accelerated import ResidentProfiles

Progress = Callable[[str], None]
World = tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]
fpl: Any = load_benchmark("fpl")
"""Its way of taking turns and of writing a figure down."""

HEAD, COUNT, THREADS = 1_000, 50, 2
FLAT = 30
"""Popularity falls as 1 / (rank + FLAT): the best-known item is in two profiles of five."""
TRIALS, WEIGHTS = 4, 128
"""Of `checked`."""


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    rows: tuple[int, ...]
    """Numbers of users in the growth test; the last is that of the other figures."""
    beside: int
    """Users for whom scipy multiplies."""
    turns: int
    turn_seconds: float
    gpu_users: int
    ease_items: int
    targets: bool


FULL = Scale((10_000, 100_000, 1_000_000), 200_000, 5, 0.3, 100_000_000, 3_706, True)
QUICK = Scale((2_000, 20_000, 100_000), 20_000, 2, 0.05, 1_000_000, 500, False)


def run(*, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Every figure, as {"bench", "machine", "results"}."""
    say = progress or (lambda message: None)
    scale = QUICK if quick else FULL
    say(f"profiles of {scale.rows[-1]:,} users")
    users = world(scale.rows[-1], THREADS)
    results = whole(users, scale, say)
    results += beside_scipy(users, scale, say)
    results += growth(users, scale, say)
    results += ease_solve(users, scale, say)
    del users
    results += memory(scale, say)
    results += on_gpu(scale, say)
    return {"bench": "gram", "machine": machine(), "results": results}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    here = environment()
    return {
        "cpu": here["hardware"]["processor"],
        "cores": here["hardware"]["cores"],
        **{name: here["versions"][name] for name in ("python", "numpy", "scipy", "numba")},
        "timing": "best of several turns; processor time with one thread, wall time with two",
    }


# --- the crowd -----------------------------------------------------------------------------------


def world(users: int, threads: int, dtype: DTypeLike = np.int32) -> World:
    """Row pointers, places and steps of users with COUNT different places each. A user is the same
    in a crowd of any size. Places are drawn by popularity, whose order is not that of places; the
    order in which she draws hers is that in which she came to them, and gives their weights."""
    rank = np.arange(HEAD)
    chance = np.cumsum(1.0 / (rank + FLAT))
    numbers = Streams.from_seed(1).child("places").generator().permutation(HEAD)
    word = (np.arange(1 << 16) + 0.5) / (1 << 16)
    table = numbers[np.searchsorted(chance / chance[-1], word)].astype(np.int16)
    weight = np.sqrt((np.arange(COUNT) + 1.0) / COUNT)
    known = (LARGEST_STEP * weight / np.linalg.norm(weight)).astype(np.int16)
    place, steps = (np.empty((users, COUNT), dtype=dtype) for _ in range(2))
    key = np.uint64(Streams.from_seed(1).child("users").key)

    def work(some: slice) -> None:
        _draw_users(key, some.start, table, known, place[some], steps[some])

    each(work, equal_spans(users, 4 * threads), threads)
    return np.arange(users + 1, dtype=np.int64) * COUNT, place.ravel(), steps.ravel()


@njit(nogil=True)
def _draw_users(key, first, table, known, place, steps):  # type: ignore[no-untyped-def]
    drawn = np.zeros(HEAD + 1, dtype=np.int16)
    for n in range(place.shape[0]):
        found, number = 0, uint64(first + n) << uint64(32)
        while found < COUNT:
            word = draw(key, number)
            number += uint64(1)
            for _ in range(4):
                p = table[word & uint64(0xFFFF)]
                word >>= uint64(16)
                if found < COUNT and drawn[p] == 0:
                    found += 1
                    drawn[p] = found
        at = 0
        for p in range(HEAD):
            if drawn[p] > 0:
                place[n, at], steps[n, at] = p, known[drawn[p] - 1]
                drawn[p] = 0
                at += 1


def first_of(users: World, n: int) -> World:
    indptr, place, steps = users
    return indptr[: n + 1], place[: n * COUNT], steps[: n * COUNT]


# --- on processors -------------------------------------------------------------------------------


def whole(users: World, scale: Scale, say: Progress) -> list[dict[str, Any]]:
    """All users, on all threads."""
    n = scale.rows[-1]
    say(f"the sum of {n:,} users, {THREADS} threads")
    seconds = fpl.in_turns([partial(sum_pairs, *users, HEAD, THREADS)], scale, THREADS)[0]
    name = f"sum of {n:,} users × {COUNT}, H = {HEAD:,}, {THREADS} threads"
    return [fpl.row(name, seconds, "s", target=10.0 if scale.targets else None, at_most=True)]


def beside_scipy(users: World, scale: Scale, say: Progress) -> list[dict[str, Any]]:
    """One thread each, the same users. scipy multiplies float64 or int64, whichever is faster."""
    say(f"beside scipy, {scale.beside:,} users")
    indptr, place, steps = some = first_of(users, scale.beside)
    shape = (scale.beside, HEAD)
    made = [sp.csr_matrix((steps.astype(kind), place, indptr), shape=shape) for kind in "dl"]
    square = (made[0].T @ made[0]).toarray().astype(np.int64)
    expected = np.concatenate([np.diagonal(square), square[~np.tri(HEAD, dtype=bool)]])
    for threads in (1, THREADS):
        if not np.array_equal(sum_pairs(*some, HEAD, threads), expected):
            raise WrongSum("the sum of pairs is not what scipy finds")
    calls: list[Callable[[], object]] = [lambda x=x: x.T @ x for x in made]  # type: ignore[misc]
    *theirs, ours = fpl.in_turns([*calls, partial(sum_pairs, *some, HEAD, 1)], scale)
    peer, kind = min(zip(theirs, ("float64", "int64"), strict=True))
    name = f"{scale.beside:,} users, 1 thread"
    return [
        fpl.row(f"scipy X.T @ X in {kind}, {name}", peer, "s"),
        fpl.row(
            f"sum of {name}", ours, "s", peer=f"scipy X.T @ X in {kind}", ratio=peer / ours,
            target=5.0 if scale.targets else None,
        ),
    ]  # fmt: skip


def ease_solve(users: World, scale: Scale, say: Progress) -> list[dict[str, Any]]:
    """EASE's inverse beside LAPACK's factor and inverse alone; both begin with a copy of the same
    matrix, and LAPACK's leaves one half of the inverse out."""
    n = scale.ease_items
    say(f"EASE's solve, {n:,} items")
    sums = sum_pairs(*first_of(users, 2_000), HEAD, THREADS)
    counts = np.eye(n)
    block = np.zeros((HEAD, HEAD))
    block[np.triu_indices(HEAD, 1)] = sums[HEAD:] / 2.0**20
    block += block.T + np.diag(sums[:HEAD] / 2.0**20)
    for start in range(0, n, HEAD):
        size = min(HEAD, n - start)
        counts[start : start + size, start : start + size] = block[:size, :size]
    columns = np.asfortranarray(counts)

    def theirs() -> object:
        root, _ = lapack.dpotrf(columns + np.eye(n), lower=1, overwrite_a=1)
        return lapack.dpotri(root, lower=1, overwrite_c=1)[0]

    def ours() -> object:
        return inverse_gram(counts + np.eye(n), 0.0)

    apart = np.abs(np.tril(np.asarray(ours())) - np.tril(np.asarray(theirs()))).max()
    if apart > 1e-8:
        raise WrongSum("EASE's inverse is not LAPACK's")
    peer, own = fpl.in_turns([theirs, ours], scale, THREADS)
    return [
        fpl.row(f"LAPACK's dpotrf and dpotri, {n:,} items", peer, "s"),
        fpl.row(
            f"EASE's solve, {n:,} items", own, "s", peer="LAPACK alone", ratio=own / peer,
            target=1.2 if scale.targets else None, at_most=True,
        ),
    ]  # fmt: skip


def growth(users: World, scale: Scale, say: Progress) -> list[dict[str, Any]]:
    """Cost of a user as users multiply."""
    say(f"growth, {scale.rows[0]:,} to {scale.rows[-1]:,} users")
    calls = [partial(sum_pairs, *first_of(users, n), HEAD, 1) for n in scale.rows]
    cost = [1e6 * s / n for s, n in zip(fpl.in_turns(calls, scale), scale.rows, strict=True)]
    results = [
        fpl.row(f"sum of {n:,} users", c, "µs per user, 1 thread")
        for n, c in zip(scale.rows, cost, strict=True)
    ]
    name = f"growth of cost, {scale.rows[0]:,} to {scale.rows[-1]:,} users"
    target = 1.1 if scale.targets else None
    return [*results, fpl.row(name, cost[-1] / cost[0], "×", target=target, at_most=True)]


def memory(scale: Scale, say: Progress) -> list[dict[str, Any]]:
    """The most that a process of its own ever held, profiles and compiler included."""
    say("memory")
    called = subprocess.run(
        [sys.executable, __file__, "--peak-memory", str(scale.rows[-1])],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    peak = json.loads(called.stdout)["bytes"] / 2**30
    name = f"peak memory, {scale.rows[-1]:,} users × {COUNT}, {THREADS} threads"
    return [fpl.row(name, peak, "GiB", target=2.0 if scale.targets else None, at_most=True)]


def _peak_memory(users: int) -> None:
    sum_pairs(*world(users, THREADS), HEAD, THREADS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"bytes": peak * (1 if sys.platform == "darwin" else 1024)}))


# --- on a GPU ------------------------------------------------------------------------------------


def on_gpu(scale: Scale, say: Progress) -> list[dict[str, Any]]:
    """The same on a GPU, for a larger crowd that is resident there; nothing where there is none."""
    if importlib.util.find_spec("torch") is None:
        say("torch is not installed: no GPU is measured")
        return []
    import torch

    if not torch.cuda.is_available():
        say("there is no GPU here that torch can see: none is measured")
        return []
    from sottovoce.algorithms.gram.accelerated import ResidentProfiles, sum_pairs_on

    n, cores = scale.gpu_users, os.cpu_count() or 1
    say(f"profiles of {n:,} users for the GPU")
    users = world(n, cores, np.int16)
    some = first_of(users, scale.rows[-1])
    if not np.array_equal(sum_pairs_on(*some, HEAD), sum_pairs(*some, HEAD, cores)):
        raise WrongSum("the sum of pairs on the GPU is not that of the processors")
    begun = time.perf_counter()
    resident = ResidentProfiles.load(*users, HEAD)
    torch.cuda.synchronize()
    loading = time.perf_counter() - begun
    del users, some
    say(f"the sum of {n:,} users on the GPU")
    seconds, found = np.inf, resident.sum_pairs()
    for _ in range(scale.turns):
        begun = time.perf_counter()
        again = resident.sum_pairs()
        seconds = min(seconds, time.perf_counter() - begun)
        if not np.array_equal(again, found):
            raise WrongSum("the GPU adds up otherwise the next time")
    held = torch.cuda.max_memory_allocated() / 2**30
    say("the same sum, checked")
    checked(resident, found)
    name = f"sum of {n:,} users × {COUNT}, H = {HEAD:,}, {torch.cuda.get_device_name()}"
    return [
        fpl.row(name, seconds, "s", target=8.0 if scale.targets else None, at_most=True),
        fpl.row("loading and checking these profiles, from the host's memory", loading, "s"),
        fpl.row("GPU memory, everything resident", held, "GiB"),
    ]


def checked(profiles: ResidentProfiles, sums: NDArray[np.int64]) -> None:
    """Raises where sums are not those of the profiles. With a weight r below WEIGHTS for every
    place, drawn at random, r' S r is the sum over users of (r · k)², all in whole numbers. A wrong
    S passes one trial with a chance of 2 / WEIGHTS at most (Schwartz and Zippel)."""
    import torch

    rng = Streams.from_seed(3).child("trials").generator()
    for _ in range(TRIALS):
        r = rng.integers(0, WEIGHTS, profiles.size)
        weight = np.concatenate([r * r, np.outer(r, r)[~np.tri(len(r), dtype=bool)]])
        weight[profiles.size :] *= 2
        claimed = int(np.dot(weight.astype(object), sums.astype(object)))
        there = torch.from_numpy(r).to(profiles.place.device)
        # 2**20 users: below 2**63, if (r · k) is below 2**21 as with COUNT places it is.
        for edges in _overlapping(profiles.indptr, 1 << 20):
            span = slice(int(edges[0]), int(edges[-1]))
            each_one = there[profiles.place[span].int()] * profiles.steps[span]
            upto = torch.nn.functional.pad(each_one.cumsum(0), (1, 0))
            claimed -= int(upto[edges - edges[0]].diff().square().sum())
        if claimed != 0:
            raise WrongSum("the sum of pairs is not that of the profiles")


def _overlapping(indptr: Any, users: int) -> Any:
    return [indptr[first : first + users + 1] for first in range(0, len(indptr) - 1, users)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak-memory"]:
        _peak_memory(int(sys.argv[2]))
    else:
        shown = run(quick="--quick" in sys.argv, progress=lambda text: print(text, file=sys.stderr))
        print(json.dumps(shown, indent=1, ensure_ascii=False))
