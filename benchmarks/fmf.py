"""An epoch of FMF-LDP and a round of FCF for the paper's crowd, phase by phase, beside the
straightforward computation; how they grow with users; and MF-NP beside implicit's ALS.

    sottovoce bench fmf [--quick] [--json]

benchmarks/README.md says what each figure is and how to read it. An epoch goes through the parties
as a simulation does: every device solves for its vector and draws, computes and randomises its
reports, the proxy shuffles them with randomness from the operating system, the server counts and
folds. Figures are the best of several turns.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sottovoce.algorithms.closed_form import vectors as closed_form
from sottovoce.algorithms.fcf.system import FCFConfig
from sottovoce.algorithms.fmf.system import FMFConfig
from sottovoce.baselines import MFNP, mf_np
from sottovoce.core.consent import Choice, Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.links import Direct, SecureSum
from sottovoce.data.shaped import ShapeConfig, generate_shaped
from sottovoce.experiment import load_benchmark
from sottovoce.parties.shuffler import Shuffler
from sottovoce.privacy.mechanisms import Everything
from sottovoce.privacy.reports import KReports, Tier
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce.runs.folder import environment

Progress = Callable[[str], None]
Seconds = dict[str, float]
fpl: Any = load_benchmark("fpl")
"""Its way of taking turns and of writing a figure down."""

SIZE, REPORTS, EPSILON = 5, 100, 2.5
RELEASE = KReports(REPORTS, (Tier(EPSILON),))
SETTINGS = FMFConfig(embedding_size=SIZE, learning_rate=0.01, alpha=1.0)
ROTATED = FMFConfig(variant="rotated", embedding_size=8, alpha=1.0)
THREADS = 2
EVEN_ITEMS, EVEN_COUNT = 10_000, 50
"""Of the users in the growth test, all alike: so many items of so many."""
PHASES = ("user solves", "reports", "shuffle", "count", "fold")


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    shape: ShapeConfig
    turns: int
    turn_seconds: float
    sample: int
    """Users for whom the straightforward computation is made."""
    rows: tuple[int, ...]
    """Numbers of users in the growth test; memory is measured at the largest."""
    als: ShapeConfig
    """The data on which ALS is compared."""
    limits: tuple[float, float] | None
    """Most seconds of an epoch, and least ratio to the straightforward computation."""


FULL = Scale(
    ShapeConfig(75_040, 9_781, 17_386_309, 60), 7, 0.3, 600, (10_000, 100_000, 1_000_000),
    ShapeConfig(), (1.0, 100.0),
)  # fmt: skip
QUICK = Scale(
    ShapeConfig(8_000, 2_000, 800_000, 30), 3, 0.05, 200, (2_000, 20_000, 100_000),
    ShapeConfig(2_000, 1_500, 150_000), None,
)  # fmt: skip


def run(*, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Every figure, as {"bench", "machine", "results"}."""
    say = progress or (lambda message: None)
    scale = QUICK if quick else FULL
    train = generate_shaped(scale.shape, THREADS)
    say(f"data: {train!r}")
    results = epochs(train, scale, say)
    say("a round of FCF")
    results += fcf_round(train, scale)
    say("a round of FCF whose messages somebody reads")
    results += fcf_written(scale)
    del train
    results += growth(scale, say)
    results += beside_als(scale, say)
    return {"bench": "fmf", "machine": machine(), "results": results}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    here = environment()
    return {
        "cpu": here["hardware"]["processor"],
        "cores": here["hardware"]["cores"],
        **{name: here["versions"][name] for name in ("python", "numpy", "numba")},
        "timing": "best of several turns, on the wall where threads are two",
    }


# --- an epoch ------------------------------------------------------------------------------------


class Epoch:
    """FMF-LDP on one table, ready to run any number of epochs."""

    def __init__(self, train: Interactions, settings: FMFConfig = SETTINGS) -> None:
        users = np.arange(train.n_users, dtype=np.int64)
        choice = Choice(epsilon=EPSILON, max_reports=REPORTS)
        consent = Consent.uniform(users, choice)
        self.parties = Federation.build(
            settings, train, consent, RELEASE, Streams.from_seed(1).child("bench")
        )
        self.parties.devices.ledger.keep_rows = False

    def turn(self, threads: int) -> Seconds:
        """One epoch: seconds of each phase, and processor seconds of them all."""
        server, devices = self.parties.server, self.parties.devices
        proxy = Shuffler([tier.min_devices for tier in RELEASE.tiers], REPORTS)
        began, worked = time.perf_counter(), time.process_time()
        sent = devices.report_bits(server.publish(), devices.willing(), threads)
        reported = time.perf_counter()
        batches = proxy.collect(sent, threads)
        shuffled = time.perf_counter()
        counts = server.count(batches)
        counted = time.perf_counter()
        server.fold(counts)
        folded, spent = time.perf_counter(), time.process_time() - worked
        return {
            "devices": reported - began,
            "shuffle": shuffled - reported,
            "count": counted - shuffled,
            "fold": folded - counted,
            "epoch": folded - began,
            "processor": spent,
        }

    def solve(self, threads: int) -> float:
        """Seconds of the users' solves, which are part of an epoch."""
        devices, history = self.parties.devices, self.parties.devices.cohort.history
        began = time.perf_counter()
        closed_form.solve(
            SETTINGS.confidence(), self.parties.server.items, devices.willing(), history.indptr,
            history.items, threads,
        )  # fmt: skip
        return time.perf_counter() - began


def epochs(train: Interactions, scale: Scale, say: Progress) -> list[dict[str, Any]]:
    """A full epoch by phases, and the straightforward one."""
    ours = Epoch(train)
    results = []
    best: dict[int, Seconds] = {}
    for threads in (1, THREADS):
        say(f"an epoch of FMF-LDP, {threads} thread(s)")
        ours.turn(threads)
        turns = [ours.turn(threads) | {"solve": ours.solve(threads)} for _ in range(scale.turns)]
        # The phases of the best epoch, so that they add up; a solve alone is timed beside it.
        found = best[threads] = min(turns, key=lambda t: t["epoch"])
        found["solve"] = min(min(t["solve"] for t in turns), found["devices"])
    say(f"the straightforward computation, {scale.sample} users")
    dense = scale_up(Dense(train), scale.sample, train.n_users)
    shape = f"{train.n_users:,} × {train.n_items:,}"
    for threads, found in best.items():
        where = f"{threads} thread{'s' * (threads > 1)}"
        values = (found["solve"], found["devices"] - found["solve"], *(
            found[name] for name in ("shuffle", "count", "fold")))  # fmt: skip
        for phase, seconds in zip(PHASES, values, strict=True):
            results.append(fpl.row(f"{phase}, {where}", seconds, "s"))
        target = scale.limits[0] if scale.limits and threads == THREADS else None
        name = f"epoch of {shape}, k = {REPORTS}, {where}"
        results.append(fpl.row(name, found["epoch"], "s", target=target, at_most=True))
        results.append(fpl.row(f"its processor time, {where}", found["processor"], "s"))
    name = f"straightforward, from {scale.sample} users, 1 thread"
    results.append(fpl.row(name, dense, "s"))
    for threads, found in best.items():
        results.append(
            fpl.row(
                f"epoch, {threads} thread{'s' * (threads > 1)}",
                found["epoch"],
                "s",
                peer="per-user dense",
                ratio=dense / found["epoch"],
                target=scale.limits[1] if scale.limits and threads == THREADS else None,
            )
        )
    return results + rotated(train, scale, say)


def rotated(train: Interactions, scale: Scale, say: Progress) -> list[dict[str, Any]]:
    """The same for reports about rotated histories, which need no solve."""
    say(f"an epoch with rotated histories, {THREADS} threads")
    epoch = Epoch(train, ROTATED)
    epoch.turn(THREADS)
    found = min((epoch.turn(THREADS) for _ in range(scale.turns)), key=lambda t: t["epoch"])
    where = f"rotated, F = {ROTATED.embedding_size}, {THREADS} threads"
    names = {"devices": "reports", "shuffle": "shuffle", "count": "count", "fold": "fold"}
    results = [fpl.row(f"{words}, {where}", found[name], "s") for name, words in names.items()]
    limit = scale.limits[0] if scale.limits else None
    results.append(fpl.row(f"epoch, {where}", found["epoch"], "s", target=limit, at_most=True))
    return [*results, fpl.row(f"its processor time, {where}", found["processor"], "s")]


class Dense:
    """The algorithm as it is printed, user by user: V'CV over all items, a gradient of every item
    and factor cut to [-1, 1], k of its entries randomised into a matrix of zeros, matrices added
    up."""

    def __init__(self, train: Interactions) -> None:
        self.train = train
        self.draws = Streams.from_seed(1).child("dense").generator()
        self.items = 0.1 * self.draws.standard_normal((train.n_items, SIZE))
        self.sums = np.zeros(self.items.shape)

    def report(self, user: int) -> NDArray[np.float64]:
        """One device's epoch, added to the sums; returns its vector."""
        items, alpha = self.items, SETTINGS.alpha
        mine = self.train.row(user)
        confidence, liked = np.ones(len(items)), np.zeros(len(items))
        confidence[mine], liked[mine] = 1.0 + alpha, 1.0
        left = items.T @ (confidence[:, None] * items) + SETTINGS.reg * np.eye(SIZE)
        vector = np.linalg.solve(left, items.T @ (confidence * liked))
        gradient = -2.0 * (confidence * (liked - items @ vector))[:, None] * vector
        cut = np.clip(gradient, -1.0, 1.0)
        drawn = self.draws.integers(items.size, size=REPORTS)
        e = np.exp(EPSILON)
        chance = (cut.ravel()[drawn] * (e - 1) + e + 1) / (2 * e + 2)
        sent = np.zeros(items.size)
        np.add.at(sent, drawn, np.where(self.draws.random(REPORTS) < chance, 1.0, -1.0))
        self.sums += sent.reshape(items.shape)
        return np.asarray(vector)


def scale_up(dense: Dense, sample: int, users: int) -> float:
    """Seconds of all users on the wall, from evenly spaced ones, the best of a few parts."""
    chosen = np.linspace(0, users - 1, sample).astype(int).tolist()
    dense.report(chosen[0])
    each = []
    for part in (chosen[start::6] for start in range(6)):
        began = time.perf_counter()
        for user in part:
            dense.report(user)
        each.append((time.perf_counter() - began) / len(part))
    return min(each) * users


# --- FCF -----------------------------------------------------------------------------------------


def fcf_round(train: Interactions, scale: Scale) -> list[dict[str, Any]]:
    """Every device solves and sends a row for every item, which are rounded and summed; Adam."""
    users = np.arange(train.n_users, dtype=np.int64)
    consent = Consent.uniform(users, Choice(share_positives=1.0))
    rng = Streams.from_seed(1).child("fcf")
    settings = FCFConfig(embedding_size=SIZE)
    parties = Federation.build(settings, train, consent, Everything(), rng)
    server, devices = parties.server, parties.devices
    devices.ledger.keep_rows = False
    best = np.inf
    for _ in range(max(2, scale.turns // 2)):
        began = time.perf_counter()
        server.fold(devices.report_summed(server.publish(), devices.willing(), THREADS))
        best = min(best, time.perf_counter() - began)
    name = f"FCF round, {train.n_users:,} × {train.n_items:,}, {THREADS} threads"
    return [fpl.row(name, best, "s")]


class Listener:
    """Because of whom messages are written out."""

    def on_message(self, party: str, message: object) -> None: ...


def fcf_written(scale: Scale) -> list[dict[str, Any]]:
    """A round of 10 factors on one thread, in processor time: summed at the door; every device's
    message written out, read and added up; and the same masked, for a secure sum."""
    train = generate_shaped(scale.als, THREADS)
    users = np.arange(train.n_users, dtype=np.int64)
    consent = Consent.uniform(users, Choice(share_positives=1.0))
    found = []
    for link, read in ((Direct(), False), (Direct(), True), (SecureSum(), True)):
        best = np.inf
        for turn in range(3):
            settings, rng = FCFConfig(embedding_size=10, rounds=1), Streams.from_seed(turn)
            parties = Federation.build(settings, train, consent, Everything(), rng, link=link)
            parties.devices.ledger.keep_rows = False
            began = time.thread_time()
            parties.run((), [Listener()] if read else [])
            best = min(best, time.thread_time() - began)
        found.append(best)
    summed, direct, masked = found
    name = f"FCF round, {train.n_users:,} × {train.n_items:,}, 1 thread"
    over = "its form over a secure sum, masked"
    return [
        fpl.row(f"{name}, summed at the door", summed, "s"),
        fpl.row(f"{name}, masked", masked, "s"),
        fpl.row(f"{name}, messages written out", direct, "s", peer=over, ratio=direct / masked,
                target=2.0, at_most=True),
        fpl.row(f"{name}, messages written out", direct, "s", peer="summed at the door",
                ratio=direct / summed),
    ]  # fmt: skip


# --- growth --------------------------------------------------------------------------------------


def even(users: int) -> Interactions:
    """Users with 50 items each, one from every fiftieth of the catalogue."""
    rng = Streams.from_seed(2).child("even").generator()
    width = EVEN_ITEMS // EVEN_COUNT
    items = rng.integers(0, width, (users, EVEN_COUNT), dtype=np.int32)
    items += np.arange(0, EVEN_ITEMS, width, dtype=np.int32)
    indptr = np.arange(users + 1, dtype=np.int64) * EVEN_COUNT
    return Interactions(indptr=indptr, items=items.ravel(), n_items=EVEN_ITEMS)


def growth(scale: Scale, say: Progress) -> list[dict[str, Any]]:
    """Cost of a user's epoch as users multiply, and the memory of the largest. In processes of
    their own, one of which keeps the memory it was once given: what fresh memory costs is the
    (virtual) machine's affair and is said in a row of its own."""
    say(f"growth, {scale.rows[0]:,} to {scale.rows[-1]:,} users of {EVEN_COUNT} items")
    last = scale.rows[-1]
    turns = str(max(2, scale.turns // 2))
    cost = _called("--growth", turns, *map(str, scale.rows), env=_KEPT)["cost"]
    fresh = _called("--growth", turns, *map(str, scale.rows))["cost"]
    results = [
        fpl.row(f"epoch, {n:,} users × {EVEN_COUNT}", c, "µs per user, 1 thread")
        for n, c in zip(scale.rows, cost, strict=True)
    ]
    name = f"growth of cost, {scale.rows[0]:,} to {last:,} users"
    results.append(fpl.row(name, cost[-1] / cost[0], "×", target=1.2, at_most=True))
    results.append(fpl.row(f"{name}, fresh memory each epoch", fresh[-1] / fresh[0], "×"))
    peak = _called("--peak-memory", str(last))["bytes"] / 2**30
    return [*results, fpl.row(f"peak memory, {last:,} users × {EVEN_COUNT}", peak, "GiB")]


_KEPT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""The C library gives nothing back."""


def _called(*arguments: str, env: Mapping[str, str] | None = None) -> Any:
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})},
    )
    return json.loads(done.stdout)


def _growth(turns: int, rows: Sequence[int]) -> None:
    """Microseconds of a user's epoch on one thread, for each number of users."""
    worlds = [Epoch(even(n)) for n in rows]
    seconds = fpl.in_turns(
        [partial(world.turn, 1) for world in worlds], replace(QUICK, turns=turns, turn_seconds=0.3)
    )
    print(json.dumps({"cost": [1e6 * s / n for s, n in zip(seconds, rows, strict=True)]}))


def _peak_memory(users: int) -> None:
    """In a process of its own: an epoch over this many users, then the most memory it ever held."""
    Epoch(even(users)).turn(THREADS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"bytes": peak * (1 if sys.platform == "darwin" else 1024)}))


# --- MF-NP and ALS -------------------------------------------------------------------------------


def beside_als(scale: Scale, say: Progress) -> list[dict[str, Any]]:
    """An iteration over users and items, ours beside implicit's; nothing where that is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            als = importlib.import_module("implicit.cpu.als").AlternatingLeastSquares
            limits = importlib.import_module("threadpoolctl").threadpool_limits
        except ImportError:
            say("implicit is not installed: MF-NP is not compared")
            return []
    train = generate_shaped(scale.als, THREADS)
    say(f"MF-NP beside implicit's ALS, {train!r}")
    rounds, results = 4, []
    shape = (train.n_users, train.n_items)
    ones = np.full(train.n_interactions, 4.0, dtype=np.float32)
    matrix = sp.csr_matrix((ones, train.items.copy(), train.indptr.astype(np.int32)), shape=shape)
    for size in (SIZE, 32):

        def theirs(size: int, iterations: int) -> None:
            with limits(limits=1):
                als(
                    factors=size, regularization=10.0, iterations=iterations, num_threads=1,
                    use_cg=False, random_state=1,
                ).fit(matrix, show_progress=False)  # fmt: skip

        def ours(size: int, epochs: int) -> None:
            with patch.object(mf_np, "default_threads", lambda: 1):
                MFNP(embedding_size=size, epochs=epochs).fit(train, Streams.from_seed(1))

        calls = [partial(one, size, n) for one in (theirs, ours) for n in (1, 1 + rounds)]
        seconds = fpl.in_turns(calls, scale)
        # What does not depend on the number of iterations falls out of the difference.
        peer, mine = ((seconds[at + 1] - seconds[at]) / rounds for at in (0, 2))
        results.append(fpl.row(f"implicit ALS, embedding {size}, 1 thread", peer, "s/iteration"))
        results.append(
            fpl.row(
                f"MF-NP, embedding {size}, 1 thread", mine, "s/iteration",
                peer="implicit ALS (Cholesky)", ratio=peer / mine,
            )
        )  # fmt: skip
    return results


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak-memory"]:
        _peak_memory(int(sys.argv[2]))
    elif sys.argv[1:2] == ["--growth"]:
        _growth(int(sys.argv[2]), [int(n) for n in sys.argv[3:]])
    else:
        found = run(quick="--quick" in sys.argv, progress=lambda text: print(text, file=sys.stderr))
        print(json.dumps(found, indent=1, ensure_ascii=False))
