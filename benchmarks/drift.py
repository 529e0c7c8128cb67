"""DRIFT: an epoch in simulation beside SAROS_b on as many steps, how plan and epoch grow with
interactions, sealed messages beside the thesis's shared key, and the parties message by message.

    sottovoce bench drift [--quick] [--json]

benchmarks/README.md says what each figure is and how to read it. Contestants take turns, one after
the other, again and again; a figure is the median of its turns, on one thread and by that thread's
processor time. A ratio is the median of the ratios of neighbouring turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift.blocks import Blocks, DriftModel, Events, learn
from sottovoce.algorithms.drift.messages import OwnerTable
from sottovoce.algorithms.drift.replay import plan, replay
from sottovoce.algorithms.drift.system import DRIFTConfig, Orchestrator, Owner, User
from sottovoce.baselines.saros import SAROS, thresholds, within_thresholds
from sottovoce.core.interactions import Interactions
from sottovoce.data.shaped import ShapeConfig, generate_shaped
from sottovoce.data.sources import load
from sottovoce.data.splitting import temporal_holdout
from sottovoce.errors import DataNotFound
from sottovoce.experiment import load_benchmark
from sottovoce.rng import Streams
from sottovoce.runs.folder import environment
from sottovoce.wire.interactions import Identity, Offer, SharedKey, begin

Progress = Callable[[str], None]
Contestant = Callable[[], object]
fpl: Any = load_benchmark("fpl")
"""Its way of writing a figure down."""

SETTINGS = DRIFTConfig()
POSITIVE = 4.0
USERS, ITEMS, INTERACTIONS, GENRES = 6_040, 3_706, 1_000_209, 18
"""Of MovieLens 1M. More interactions have more users in proportion; the catalogue stays."""
RATIO, EXPONENT = 2.0, 1.05
"""The most that an epoch may cost of SAROS_b's, and the most that cost may grow."""


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    turns: int
    sizes: tuple[int, ...]
    """Interactions in the growth test, each ten times the one before."""
    messages: int
    """Sealed and opened in a turn."""
    replayed: int
    """Users whose interactions go through the parties one by one."""
    judged: bool
    """Whether figures have targets; small sizes tell little."""


FULL = Scale(9, (100_000, 1_000_000, 10_000_000), 20_000, 120, True)
QUICK = Scale(3, (10_000, 100_000, 1_000_000), 2_000, 20, False)


def run(*, quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Every figure, as {"bench", "machine", "results"}."""
    say = progress or (lambda message: None)
    scale = QUICK if quick else FULL
    train, table, what = data(say)
    say(f"an epoch of {what} beside SAROS_b")
    results = epochs(train, table, what, scale)
    results += growth(scale, say)
    say("sealed messages")
    results += sealing(scale)
    say("the parties, message by message")
    results += messages(train, table, scale)
    return {"bench": "drift", "machine": machine(), "results": results}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    here = environment()
    return {
        "cpu": here["hardware"]["processor"],
        "cores": here["hardware"]["cores"],
        **{name: here["versions"][name] for name in ("python", "numpy", "numba")},
        "timing": "median of interleaved turns, processor time of one thread",
    }


def in_turns(contestants: Sequence[Contestant], turns: int) -> NDArray[np.float64]:
    """Seconds, [turns, contestants]. A first turn compiles and warms up and is not counted."""
    found = np.empty((turns + 1, len(contestants)))
    for turn in range(turns + 1):
        for k, contestant in enumerate(contestants):
            began = time.thread_time()
            contestant()
            found[turn, k] = time.thread_time() - began
    return found[1:]


# --- data ----------------------------------------------------------------------------------------


def data(say: Progress) -> tuple[Interactions, OwnerTable, str]:
    """The training part of MovieLens 1M with an owner per genre, or generated data of its shape."""
    try:
        dataset = load("movielens-1m")
    except DataNotFound:
        say("MovieLens 1M is not there; generated data take its place")
        return generated(INTERACTIONS), genres(ITEMS), "generated data"
    split = temporal_holdout(dataset.interactions, 0.2)
    numbers = split.dataset_items(np.arange(split.train.n_items))
    return split.train, OwnerTable.of_membership(dataset.category_matrix()[numbers]), "MovieLens 1M"


def generated(interactions: int) -> Interactions:
    """MovieLens 1M's shape with so many interactions. Times are uniform: the events of all users
    interleave evenly, the worst case for caches."""
    users = max(1, round(interactions * USERS / INTERACTIONS))
    shaped = generate_shaped(ShapeConfig(users, ITEMS, interactions), 2)
    rng = Streams.from_seed(3).child("events").generator()
    return replace(
        shaped,
        timestamps=rng.integers(0, 90_000_000, shaped.n_interactions),
        ratings=rng.choice(5, shaped.n_interactions, p=(0.06, 0.11, 0.26, 0.35, 0.22)) + 1.0,
    )


def genres(items: int) -> OwnerTable:
    """Items of 18 genres of very different sizes, 1.65 genres an item."""
    rng = Streams.from_seed(4).child("genres").generator()
    weight = 1.0 / np.arange(1, GENRES + 1)
    member = np.zeros((items, GENRES), dtype=bool)
    for item, count in enumerate(1 + rng.binomial(3, 0.65 / 3, items)):
        member[item, rng.choice(GENRES, count, replace=False, p=weight / weight.sum())] = True
    return OwnerTable.of_membership(member)


# --- an epoch ------------------------------------------------------------------------------------


class Epoch:
    """DRIFT and SAROS_b on one table."""

    def __init__(self, train: Interactions, table: OwnerTable) -> None:
        self.train, self.table = train, table
        self.by_time = Events.of(train, POSITIVE, "time")
        self.by_user = Events.of(train, POSITIVE, "user")
        self.planned, self.cuts = self.plan(), self.cut()
        rng = Streams.from_seed(1)
        size = SETTINGS.embedding_size
        self.models = [DriftModel.start(train.n_users, train.n_items, size, rng) for _ in range(2)]

    def plan(self) -> Blocks:
        return plan(self.by_time, self.table, SETTINGS.theta)

    def cut(self) -> Blocks:
        """SAROS_b's blocks."""
        saros, every = SAROS(), Blocks.of_users(self.by_user)
        return within_thresholds(every, *thresholds(every, saros.lower, saros.upper))

    def drift(self) -> None:
        learn(self.models[0], self.planned, SETTINGS.step())

    def saros(self) -> None:
        """As many steps as an epoch of DRIFT has."""
        left = self.planned.steps
        while left:
            part = self.cuts if left >= len(self.cuts) else self.cuts.take(np.arange(left))
            learn(self.models[1], part, SETTINGS.step())
            left -= len(part)


def epochs(train: Interactions, table: OwnerTable, what: str, scale: Scale) -> list[dict[str, Any]]:
    """An epoch without its plan, and with it."""
    epoch = Epoch(train, table)
    turns = in_turns([epoch.drift, epoch.saros, epoch.plan, epoch.cut], scale.turns)
    drift, saros, planning, cutting = turns.T
    steps, blocks = epoch.planned.steps, len(epoch.planned)
    target = RATIO if scale.judged else None

    def beside(name: str, ours: Any, peer: str, theirs: Any, limit: float | None) -> dict[str, Any]:
        row: dict[str, Any] = fpl.row(
            name, float(np.median(ours)), "s", peer=peer, ratio=float(np.median(ours / theirs)),
            target=limit, at_most=True,
        )  # fmt: skip
        return row

    return [
        fpl.row(f"SAROS_b, {steps:,} steps of a block", float(np.median(saros)), "s"),
        fpl.row("SAROS_b, cutting its blocks", float(np.median(cutting)), "s"),
        fpl.row(f"DRIFT, plan of {what}", float(np.median(planning)), "s"),
        beside(f"DRIFT, epoch of {steps:,} steps on {blocks:,} blocks", drift,
               "SAROS_b, as many steps", saros, target),
        beside("DRIFT, plan and epoch", planning + drift, "SAROS_b, cutting and as many steps",
               cutting + saros, target),
        beside("DRIFT, plan and epoch", planning + drift, "SAROS_b, as many steps", saros, None),
    ]  # fmt: skip


# --- growth --------------------------------------------------------------------------------------


def growth(scale: Scale, say: Progress) -> list[dict[str, Any]]:
    """Cost of an interaction as they multiply, in a process that keeps the memory it was once
    given. What fresh memory costs is the (virtual) machine's affair and has rows of its own."""
    first, last = scale.sizes[0], scale.sizes[-1]
    say(f"growth, {first:,} to {last:,} interactions")
    turns = str(max(3, scale.turns // 2))
    kept = _called("--growth", turns, *map(str, scale.sizes), env=_KEPT)
    fresh = _called("--growth", turns, *map(str, scale.sizes))
    results = []
    for phase, words in (("sort", "sorting events"), ("plan", "plan"), ("learn", "epoch")):
        for n, seconds in zip(scale.sizes, kept[phase], strict=True):
            results.append(fpl.row(f"{words}, {n:,} interactions", 1e9 * seconds / n, "ns each"))
    target = EXPONENT if scale.judged else None
    for phase, words in (("plan", "plan"), ("learn", "epoch")):
        name = f"exponent of {words}, {first:,} to {last:,}"
        results.append(
            fpl.row(name, exponent(scale.sizes, kept[phase]), "", target=target, at_most=True)
        )
        results.append(fpl.row(f"{name}, fresh memory", exponent(scale.sizes, fresh[phase]), ""))
    return results


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of log seconds over log size; 1 is linear."""
    slope, _ = np.polyfit(np.log(sizes), np.log(seconds), 1)
    return float(slope)


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


def _growth(turns: int, sizes: Sequence[int]) -> None:
    """Seconds of each phase for each size. Sizes take turns."""
    table = genres(ITEMS)
    worlds = [generated(n) for n in sizes]
    events = [Events.of(world, POSITIVE, "time") for world in worlds]
    size, rng = SETTINGS.embedding_size, Streams.from_seed(1)
    models = [DriftModel.start(world.n_users, world.n_items, size, rng) for world in worlds]
    found: dict[str, list[list[float]]] = {"sort": [], "plan": [], "learn": []}
    planned = [plan(one, table, SETTINGS.theta) for one in events]
    for model, blocks in zip(models, planned, strict=True):
        learn(model, blocks, SETTINGS.step())
    for _ in range(turns):
        timed: dict[str, list[float]] = {name: [] for name in found}
        for k, world in enumerate(worlds):
            work: dict[str, Contestant] = {
                "sort": lambda w=world: Events.of(w, POSITIVE, "time"),  # type: ignore[misc]
                "plan": lambda k=k: plan(events[k], table, SETTINGS.theta),  # type: ignore[misc]
                "learn": lambda k=k: learn(models[k], planned[k], SETTINGS.step()),  # type: ignore[misc]
            }
            for name, one in work.items():
                began = time.thread_time()
                one()
                timed[name].append(time.thread_time() - began)
        for name, values in timed.items():
            found[name].append(values)
    print(json.dumps({name: np.median(rows, axis=0).tolist() for name, rows in found.items()}))


# --- messages ------------------------------------------------------------------------------------


def sealing(scale: Scale) -> list[dict[str, Any]]:
    """Sealed and opened interactions, and sessions, beside the thesis's variant."""
    owner, user, n = Identity(), Identity(), scale.messages
    shared = SharedKey(SharedKey.new_key())
    sealed: list[bytes] = []
    plain = [shared.seal(1, k % ITEMS, bool(k & 1)) for k in range(n)]
    sessions: list[Any] = []

    def agree() -> None:
        sessions.clear()
        for _ in range(max(1, n // 100)):
            offer = Offer(2, owner)
            sender, hello = begin(1, user, 2, owner.public, offer.public)
            sessions.append((sender, offer.accept(1, user.public, hello)))

    def seal() -> None:
        sender = sessions[0][0]
        sealed[:] = [sender.seal(k, "positive", k % ITEMS, k) for k in range(n)]

    def unseal() -> None:
        receiver = sessions[0][1]
        for one in sealed:
            receiver.open(one)

    def shared_seal() -> None:
        for k in range(n):
            shared.seal(1, k % ITEMS, bool(k & 1))

    def shared_open() -> None:
        for one in plain:
            shared.open(one)

    turns = in_turns([agree, seal, unseal, shared_seal, shared_open], scale.turns)
    agreeing, sealing_, opening, peer_seal, peer_open = turns.T
    peer = "one key per owner, as in the thesis"
    return [
        fpl.row("sessions agreed, both sides", max(1, n // 100) / float(np.median(agreeing)), "/s"),
        fpl.row("thesis's variant: seals", n / float(np.median(peer_seal)), "/s"),
        fpl.row("thesis's variant: opens", n / float(np.median(peer_open)), "/s"),
        fpl.row("seals", n / float(np.median(sealing_)), "/s", peer=peer,
                ratio=float(np.median(peer_seal / sealing_))),
        fpl.row("opens", n / float(np.median(opening)), "/s", peer=peer,
                ratio=float(np.median(peer_open / opening))),
    ]  # fmt: skip


def messages(train: Interactions, table: OwnerTable, scale: Scale) -> list[dict[str, Any]]:
    """An epoch of a few users through users, owners and orchestrator, one message at a time."""
    few = train.take_users(np.arange(min(scale.replayed, train.n_users)))
    events = Events.of(few, POSITIVE, "time")
    orchestrator = Orchestrator(SETTINGS, Streams.from_seed(1))
    owners = {}
    for number in table.all_owners():
        orchestrator.add_items(number, table.items(number))
        owners[number] = Owner(number, table.items(number), SETTINGS)
    users = {number: User(number, orchestrator.table) for number in range(few.n_users)}
    for number in users:
        orchestrator.join_user(number)
        for owner in owners.values():
            owner.admit(number)
    sent = sum(len(table.owners(int(item))) for item in events.item)
    turns = max(1, scale.turns // 3)
    seconds = in_turns([lambda: replay(events, users, owners, orchestrator)], turns)
    middle = float(np.median(seconds))
    return [
        fpl.row(f"parties, {len(events):,} interactions", len(events) / middle, "interactions/s"),
        fpl.row("parties, messages to owners", sent / middle, "messages/s"),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--growth"]:
        _growth(int(sys.argv[2]), [int(n) for n in sys.argv[3:]])
    else:
        shown = run(quick="--quick" in sys.argv, progress=lambda text: print(text, file=sys.stderr))
        print(json.dumps(shown, indent=1, ensure_ascii=False))
