"""A pFPL+ round of ten million devices on one GPU, against the CPU kernels of the same machine; and
of a hundred million.

    PYTHONPATH=src python3 benchmarks/fpl_cuda.py [--quick] [--out FOLDER]

Data are made on the GPU: about 32 positives per device, items drawn by Zipf's law (exponent 1) and
numbered at random, so that the most popular item is in nine histories of ten. Times are medians of
CUDA events after a warm-up; a round is draws, learning, counts of rows sent, and the fold.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.algorithms.pairwise import accelerated as factors_cuda
from sottovoce.algorithms.pairwise import factors
from sottovoce.algorithms.pairwise import triton as factors_triton
from sottovoce.core.consent import ShareRule, thresholds
from sottovoce.errors import UsageError
from sottovoce.rng import Streams

TARGETS = {10_000_000: 0.06, 100_000_000: 0.7}
"""Seconds for a round of so many devices, 32 draws, embedding 32, 10⁵ items."""
N_ITEMS, SIZE, TRIPLES, EVENTS = 100_000, 32, 32, 36


def world(n_users: int, n_items: int, events: int, seed: int) -> tuple[Tensor, Tensor]:
    """Row pointers and items, ascending and distinct within a user, on the GPU."""
    rng = torch.Generator("cuda").manual_seed(seed)
    weight = 1.0 / torch.arange(1, n_items + 1, device="cuda", dtype=torch.float64)
    edges = (weight.cumsum(0) / weight.sum()).float()
    number = torch.randperm(n_items, generator=rng, device="cuda").int()
    counts, items = [], []
    for start in range(0, n_users, 1 << 20):
        shape = (min(1 << 20, n_users - start), events)
        rank = torch.searchsorted(edges, torch.rand(shape, generator=rng, device="cuda"))
        drawn = number[rank.clamp_(max=n_items - 1)].sort(1).values
        fresh = torch.ones_like(drawn, dtype=torch.bool)
        fresh[:, 1:] = drawn[:, 1:] != drawn[:, :-1]
        counts.append(fresh.sum(1))
        items.append(drawn[fresh])
    indptr = torch.zeros(n_users + 1, dtype=torch.int64, device="cuda")
    indptr[1:] = torch.cat(counts).cumsum(0)
    return indptr, torch.cat(items)


def federation(
    n_users: int, n_items: int, size: int, events: int, rate: float, share: float | None = 1.0
) -> factors_cuda.CudaFederation:
    """With `share` None, π is uniform over devices and one in ten does not take part."""
    indptr, items = world(n_users, n_items, events, 1)
    rng = torch.Generator("cuda").manual_seed(2)
    vectors = torch.randn(n_users, size, generator=rng, device="cuda") * 0.1
    model = torch.randn(n_items, size + 1, generator=rng, device="cuda") * 0.1
    cohort = factors_cuda.ResidentCohort(
        vectors=vectors,
        indptr=indptr,
        items=items,
        users=torch.arange(n_users, device="cuda"),
        threshold=torch.zeros(n_users, dtype=torch.int64, device="cuda"),
        takes_part=torch.ones(n_users, dtype=torch.bool, device="cuda"),
    )
    popularity = torch.bincount(items, minlength=n_items)
    tables = factors_cuda.Tables.of(model, size, popularity)
    step = factors.PairStep(rate, rate / 20, rate / 20, rate / 200, 0.0)
    made = factors_cuda.CudaFederation(step, tables, cohort)
    consent(made, share)
    return made


def consent(made: factors_cuda.CudaFederation, share: float | None) -> None:
    cohort = made.cohort
    rng = torch.Generator("cuda").manual_seed(3)
    draw = torch.rand(2, len(cohort.users), generator=rng, device="cuda", dtype=torch.float64)
    chosen = draw[0] if share is None else torch.full_like(draw[0], share)
    cohort.threshold.copy_((chosen * 2.0**32).round())
    cohort.takes_part.copy_(draw[1] >= 0.1 if share is None else torch.ones_like(draw[1]) > 0)


def keys(round: int) -> tuple[int, int]:
    root = Streams.from_seed(7)
    return root.child("learn", round).key, root.child("share", round).key


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The median by CUDA events, after one run to warm up."""
    work()
    times: list[float] = []
    for _ in range(repeats):
        begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def stages(made: factors_cuda.CudaFederation, repeats: int) -> dict[str, float]:
    """Seconds of each stage over the whole cohort, chunk by chunk as in a round."""
    cohort, tables = made.cohort, made.tables
    n, chunk = len(cohort), min(len(cohort), 1 << 20)
    rows = torch.split(torch.arange(n, device="cuda"), chunk)
    packed = torch.empty(TRIPLES * chunk, dtype=torch.int64, device="cuda")
    counts = torch.split(torch.zeros(2, n, dtype=torch.int32, device="cuda"), chunk, 1)
    words = torch.tensor([1, 2], device="cuda")

    def each(stage: Callable[[Tensor, Tensor, Tensor], None]) -> Callable[[], None]:
        def work() -> None:
            for some, count in zip(rows, counts, strict=True):
                stage(some, packed[: TRIPLES * len(some)].view(TRIPLES, len(some)), count)

        return work

    def draw(some: Tensor, into: Tensor, count: Tensor) -> None:
        factors_triton.draw(cohort, len(tables.bias), some, words, into, count)

    def learn(some: Tensor, drawn: Tensor, count: Tensor) -> None:
        saved = cohort.vectors[: len(some)].clone()  # as long as it takes
        factors_cuda._learn_halves(made.step, tables, cohort, some, drawn, saved, 1.0)

    def both(some: Tensor, into: Tensor, count: Tensor) -> None:
        draw(some, into, count)
        learn(some, into, count)

    drawing = seconds(each(draw), repeats)
    together = seconds(each(both), repeats)
    folding = seconds(made.fold, repeats)
    return {"draws": drawing, "learning": together - drawing, "fold": folding}


def cpu_rate(made: factors_cuda.CudaFederation, n_users: int) -> float:
    """Draws per second of the numba kernels, all cores, on the first devices of the same data."""
    cohort = made.cohort
    indptr = cohort.indptr[: n_users + 1].cpu().numpy()
    items = cohort.items[: int(indptr[-1])].cpu().numpy()
    vectors = cohort.vectors[:n_users].cpu().numpy()
    model = factors.padded(made.model())
    users = np.arange(n_users)
    times = []
    for round in range(4):
        learn, share = (Streams(key).keys(users) for key in keys(round))
        rule = ShareRule(share, thresholds(np.ones(n_users)), np.zeros(0, dtype=bool))
        begin = time.perf_counter()
        sums, _, _ = factors.learn_summed(
            made.step, model, vectors, users, indptr, items, learn, TRIPLES, rule,
            threads=os.cpu_count() or 1,
        )  # fmt: skip
        factors.fold(made.step, model, sums)
        times.append(time.perf_counter() - begin)
    return n_users * TRIPLES / statistics.median(times[1:])


def differences(triples: int, rate: float, share: float | None, size: int) -> tuple[float, float]:
    """Largest difference from the CPU after five rounds, of model and vectors, each relative to a
    typical value (the root of the mean square)."""
    made = federation(20_000, 2_000, size, EVENTS, rate, share)
    cohort = made.cohort
    host = {name: getattr(cohort, name).cpu().numpy() for name in ("indptr", "items", "users")}
    model, vectors = factors.padded(made.model()), made.vectors()
    threshold = cohort.threshold.cpu().numpy().astype(np.uint64)
    rows = np.flatnonzero(cohort.takes_part.cpu().numpy())
    for round in range(5):
        counts = made.round(*keys(round), triples)
        learn, coin = (Streams(key).keys(host["users"][rows]) for key in keys(round))
        sums, *sent = factors.learn_summed(
            made.step, model, vectors, rows, host["indptr"], host["items"], learn, triples,
            ShareRule(coin, threshold[rows], np.zeros(0, dtype=bool)),
            threads=os.cpu_count() or 1,
        )  # fmt: skip
        factors.fold(made.step, model, sums)
        for ours, theirs in zip(counts, sent, strict=True):
            if not np.array_equal(ours.cpu().numpy()[rows], theirs):
                raise ArithmeticError("CPU and GPU disagree about the rows sent")
    return relative(made.model(), model[:, : size + 1]), relative(made.vectors(), vectors)


def relative(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    return float(np.abs(ours - theirs).max() / np.sqrt(np.mean(np.square(theirs))))


def row(name: str, value: float, unit: str, **extra: Any) -> dict[str, Any]:
    """`met` compares with `target`: at most, for times and differences."""
    target = extra.get("target")
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "peer": extra.get("peer"),
        "ratio": extra.get("ratio"),
        "target": target,
        "met": None if target is None else value <= target,
    }


def large(n: int, repeats: int, cpu_users: int) -> list[dict[str, Any]]:
    """The round of `n` devices, and where its time goes."""
    at, target = named(n), TARGETS.get(n)
    made = federation(n, N_ITEMS, SIZE, EVENTS, 1e-7)
    torch.cuda.reset_peak_memory_stats()

    def a_round() -> None:
        made.round(*keys(0), TRIPLES)

    whole = seconds(a_round, repeats)
    memory = torch.cuda.max_memory_allocated() / 2**30
    cpu = cpu_rate(made, cpu_users)
    ours = n * TRIPLES / whole
    peer = f"numba on {os.cpu_count()} cores: {cpu:.3g} triples/s"
    results = [
        row(f"pFPL+ round, π=1, {at}", whole, "s", target=target),
        row("triples per second", ours, "1/s", peer=peer, ratio=ours / cpu),
        row("GPU memory, everything resident", memory, "GiB"),
    ]
    for stage, value in stages(made, repeats).items():
        results.append(row(f"of which {stage}", value, "s"))
    for label, share in (("π=0", 0.0), ("π uniform, 1 in 10 not taking part", None)):
        consent(made, share)
        results.append(row(f"pFPL+ round, {label}", seconds(a_round, repeats), "s", target=target))
    return results


def named(n: int) -> str:
    return f"{n:.0e} devices, T={TRIPLES}, embedding {SIZE}, {N_ITEMS:.0e} items".replace(
        "e+0", "e"
    )


def resident(n: int, repeats: int) -> list[dict[str, Any]]:
    """The round of `n` devices alone."""
    made = federation(n, N_ITEMS, SIZE, EVENTS, 1e-7)
    whole = seconds(lambda: made.round(*keys(0), TRIPLES), repeats)
    memory = torch.cuda.max_memory_allocated() / 2**30
    return [
        row(f"pFPL+ round, π=1, {named(n)}, resident", whole, "s", target=TARGETS.get(n)),
        row("GPU memory, with what made them", memory, "GiB"),
    ]


def run(*, quick: bool = False, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Every figure, as {"bench", "machine", "results"}."""
    if not torch.cuda.is_available():
        raise UsageError("bench fpl-cuda needs a GPU that torch can see; there is none here")
    say = progress or (lambda message: None)
    say("one round of many devices")
    results = large(1_000_000, 3, 50_000) if quick else large(10_000_000, 7, 500_000)
    if not quick:
        say("a hundred million devices, resident")
        torch.cuda.empty_cache()
        results += resident(100_000_000, 3)
    say("the same rounds on CPU and GPU")
    for label, triples, rate in (("pFPL", 1, 0.01), ("pFPL+", 32, 0.001)):
        for size in (10, 32, 50):
            model, vectors = differences(triples, rate, None, size)
            name = f"{label}, embedding {size}, 5 rounds: difference from the CPU"
            results.append(row(f"{name}, model", model, "relative", target=1e-5))
            results.append(row(f"{name}, vectors", vectors, "relative", target=1e-5))
    return {"bench": "fpl-cuda", "machine": torch.cuda.get_device_name(), "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tenth of the devices")
    parser.add_argument("--out", type=Path, help="also write fpl_cuda.json to this folder")
    options = parser.parse_args()
    text = json.dumps(run(quick=options.quick), indent=1, ensure_ascii=False)
    if options.out is not None:
        (options.out / "fpl_cuda.json").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
