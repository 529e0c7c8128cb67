"""Ranks in processes of their own, forked from one warm process, and small experiments for them."""

import multiprocessing
import os
import signal
import time
import traceback
from pathlib import Path

from sottovoce.engines.distributed import RankPlace, joined
from sottovoce.engines.processes import free_port
from sottovoce.experiment import Experiment
from sottovoce.runs.train import run_experiment

TOWN = {"residents": 90, "venues": 80, "visits_per_resident": 20.0, "districts": 3}
WARM = ("torch.distributed", "sottovoce.algorithms.uc.system", "sottovoce.runs.train", "rank_world")


def table(algorithm, **sections):
    """An experiment in a small town."""
    made = {
        "name": "small",
        "seed": 3,
        "data": {"source": "town"},
        "town": TOWN,
        "algorithm": algorithm,
        "evaluation": {"every_epochs": 1},
        "baselines": {"top-pop": {}},
    }
    for key, value in sections.items():
        made[key] = made[key] | value if isinstance(made.get(key), dict) else value
    return made


MIXED = {"mix": [
    {"weight": 1, "takes_part": False},
    {"weight": 2, "share_positives": 0.5},
    {"weight": 2, "share_positives": 1.0, "never_send": ["Nightlife Spot"]},
]}  # fmt: skip
OWN = {"mix": [
    {"weight": 1, "takes_part": False},
    {"weight": 2, "epsilon": 0.5},
    {"weight": 2, "epsilon": 4.0, "never_send": ["Nightlife Spot"]},
]}  # fmt: skip
UC = {
    "name": "uc", "embedding_size": 8, "item_rate": 3.0, "local_epochs": 2, "pairs": 8,
    "cohort_size": 12, "rounds": 2, "attributes": [{"name": "gender"}],
}  # fmt: skip
HIDING = {"mix": [
    {"weight": 2, "share_positives": 1.0},
    {"weight": 1, "share_positives": 1.0, "hidden_attributes": ["gender"], "strength": 0.8},
    {"weight": 1, "takes_part": False},
]}  # fmt: skip
CLIPPED = {"name": "clipped", "norm": "l2", "clip": 64.0}
REPORTS = {"name": "k-reports", "max_reports": 20, "tiers": [
    {"epsilon": 1.0, "min_devices": 10}, {"epsilon": 2.5, "min_devices": 10},
]}  # fmt: skip
TIERS = {"mix": [
    {"weight": 1, "takes_part": False},
    {"weight": 2, "epsilon": 1.0, "max_reports": 20, "total_epsilon": 45.0},
    {"weight": 2, "epsilon": 2.5, "max_reports": 20, "total_epsilon": 1000.0},
]}  # fmt: skip
FPL = {"name": "fpl", "embedding_size": 4, "triples": 5, "rounds": 8, "cohort_size": 30}
FCF = {"name": "fcf", "embedding_size": 4, "rounds": 2}
GRAM = {"name": "gram", "embedding_size": 4}
SUM = {"name": "secure-sum", "min_devices": 5}

EXPERIMENTS = {
    "fpl": table(FPL, consent=MIXED),
    "fpl, all, sampled": table(
        FPL | {"cohort_size": "all", "rounds": 5},
        data={"split": "leave-one-out", "hold_out": "random", "part": "validation"},
        evaluation={"candidates": 20},
    ),
    "fpl, one by one": table(FPL | {"cohort_size": 1, "rounds": 12}),
    "fpl, noisy sums": table(
        FPL | {"cohort_size": "all", "rounds": 3},
        consent={"share_positives": 1.0, "total_epsilon": 1000.0},
        link=SUM | {"noise": 1.0, "clip": 1.0},
    ),
    "fcf": table(FCF | {"rounds": 3}, consent={"share_positives": 1.0}),
    "fcf, filtered": table(
        FCF,
        data={"min_user_items": 8, "min_item_users": 3},
        consent={"share_positives": 1.0},
        home={"knowledge": True},
    ),
    "gram": table(GRAM, consent=OWN, link=SUM, home={"knowledge": True}),
    "gram, batches and quality": table(
        GRAM | {"batches": 3, "quality_share": 0.2, "noise": "factorised"}, consent=OWN, link=SUM
    ),
    "gram, checked": table(
        GRAM, consent=OWN, link={"name": "checked-sum", "min_devices": 5},
    ),
    "fmf": table(
        {"name": "fmf", "embedding_size": 4, "rounds": 3, "variant": "published"},
        release=REPORTS, consent=TIERS,
    ),
    "fmf, rotated": table(
        {"name": "fmf", "embedding_size": 4, "rounds": 2, "variant": "rotated"},
        release=REPORTS, consent=TIERS,
    ),
    "uc, mf": table(UC | {"recommender": "mf"}, release=CLIPPED, consent=HIDING),
    "uc, ncf": table(UC | {"recommender": "ncf"}, release=CLIPPED, consent=HIDING),
}  # fmt: skip


def run_here(name, out, **options):
    return run_experiment(Experiment.from_table(EXPERIMENTS[name]), out, **options)


def ranks(size, work, *arguments, seconds=120.0, timeout=30.0):
    """Runs `work(ranks, *arguments)` in so many ranks; what each returned, or raised as text, and
    its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(WARM))
    port, told = free_port(), context.Queue()
    processes = [
        context.Process(target=_rank, args=(k, size, port, timeout, told, work, arguments))
        for k in range(size)
    ]
    for process in processes:
        process.start()
    found, until = {}, time.monotonic() + seconds
    while len(found) < size and time.monotonic() < until:
        while not told.empty():
            rank, what = told.get()
            found[rank] = what
        for k, process in enumerate(processes):
            if process.exitcode is not None and k not in found and told.empty():
                found.setdefault(k, ("died", process.exitcode))
        time.sleep(0.01)
    for process in processes:
        process.join(5.0)
        if process.exitcode is None:
            process.kill()
            process.join()
    return [found.get(k, ("hung", None)) for k in range(size)]


def _rank(rank, size, port, timeout, told, work, arguments):
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    place = RankPlace(rank, size, "127.0.0.1", port)
    try:
        with joined(place, join_seconds=timeout, timeout=timeout) as here:
            told.put((rank, ("done", work(here, *arguments))))
    except BaseException as error:  # whatever it is, it is told
        quiet = getattr(error, "said", False)
        told.put((rank, (type(error).__name__, str(error), quiet)))
        if os.environ.get("RANK_TRACES"):
            traceback.print_exc()


def train(ranks, names, folder, resume=False):
    """These experiments, one after the other, each in a folder of its own."""
    for name in names:
        out = Path(folder) / name
        run_here(name, out, engine="distributed", ranks=ranks, resume=resume)
    return "ok"
