"""One training run of the UC-FedRec study, and what is kept of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.uc.settings import UCConfig
from sottovoce.core.consent import Consent
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import Scorer
from sottovoce.data.dataset import Dataset, Labels
from sottovoce.data.sources import load
from sottovoce.data.splitting import leave_one_out, validation_split
from sottovoce.engines.observers import AtRounds, Moment, Observer, Periodically
from sottovoce.errors import Diverged
from sottovoce.evaluation.protocol import Evaluation, Sampled, evaluate
from sottovoce.evaluation.protocol import Protocol as Ranking
from sottovoce.privacy.updates import Clipped
from sottovoce.rng import Streams
from sottovoce.runs.federation import Federation
from sottovoce_papers.study import Arrays, Floats

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "movielens-1m": ("gender", "age", "occupation"),
    "movielens-100k": ("gender", "age", "occupation"),
    "douban-book": ("location",),
}
"""What users of each source may hide."""
TITLES = {
    "movielens-1m": "MovieLens 1M", "movielens-100k": "MovieLens 100K", "douban-book": "Douban",
}  # fmt: skip
AGES = (1, 18, 25, 35, 45, 50, 56)
"""Where the age groups of MovieLens 1M begin; the ages of 100K are put into the same."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class UCData:
    """One data set with users' attributes, in one split. All parts
    number users and items alike, items of `train` first."""

    source: str
    train: Interactions
    """All but each user's two held-out items."""
    validation: Interactions
    seen: Interactions
    """Training and validation, of the items that can be ranked: what a user knows at test time."""
    test: Interactions
    labels: Mapping[str, Labels]
    fingerprint: str

    @classmethod
    def read(cls, source: str) -> UCData:
        return cls.of(source, load(source))

    @classmethod
    def of(cls, source: str, dataset: Dataset) -> UCData:
        table = dataset.interactions
        # Without times the latest item is not known; every run holds out the same random one.
        which = "latest" if table.timestamps is not None else "random"
        rng = Streams.from_seed(0)
        outer = leave_one_out(table, which, rng.child("test"))  # type: ignore[arg-type]
        inner = validation_split(outer, None, which, rng.child("validation"))  # type: ignore[arg-type]
        number = np.full(table.n_items, -1, dtype=np.int64)
        number[inner.item_map] = np.arange(len(inner.item_map))
        alone = np.flatnonzero((number < 0) & (table.item_counts > 0))
        number[alone] = len(inner.item_map) + np.arange(len(alone))
        items = number[outer.dataset_items(outer.test.items)]
        train, validation = inner.train, inner.test
        users = np.concatenate([train.users, validation.users])
        known = np.concatenate([train.items, validation.items]).astype(np.int64)
        rankable = known < train.n_items
        return cls(
            source,
            train,
            validation,
            Interactions.from_pairs(
                users[rankable], known[rankable], n_users=table.n_users, n_items=train.n_items
            ),
            Interactions.from_pairs(
                outer.test.users, items, n_users=table.n_users, n_items=int(number.max()) + 1
            ),
            {name: _grouped(name, labels) for name, labels in dataset.user_attributes.items()},
            dataset.fingerprint(),
        )

    @property
    def n_users(self) -> int:
        return self.train.n_users

    @property
    def title(self) -> str:
        return TITLES.get(self.source, self.source)

    def describe(self) -> str:
        timed = self.train.timestamps is not None
        held = "latest item for test and second-latest" if timed else "one random item for test and"
        other = "" if timed else " another"
        return (
            f"{self.title}: {self.n_users:,} users, {self.train.n_items:,} training items, "
            f"{self.train.n_interactions:,} training interactions, all of them positive; each "
            f"user's {held}{other} for validation"
        )

    def draw(self, share: float, rng: Streams) -> NDArray[np.bool_]:
        """Users, each with this probability; a larger share keeps those of a smaller one."""
        users = np.arange(self.n_users, dtype=np.int64)
        drawn: NDArray[np.bool_] = rng.uniform(users, 1)[:, 0] < share
        return drawn


def _grouped(name: str, labels: Labels) -> Labels:
    """Ages by year become age groups."""
    if name != "age" or len(labels.values) <= len(AGES):
        return labels
    group = np.searchsorted(AGES, [int(value) for value in labels.values], side="right") - 1
    codes = np.append(np.maximum(group, 0), -1)[labels.codes]
    return Labels(codes.astype(np.int32), tuple(str(age) for age in AGES))


CUT = 10
_TOLD = 10
"""Rounds between two reports of progress."""
DRAWN = 0
"""Seed of the candidates: drawn once, for all systems."""


@dataclass(frozen=True, slots=True, repr=False)
class UCTraining:
    """What a run is made of."""

    world: UCData
    settings: UCConfig
    """With the classes of its attributes."""
    consent: Consent
    release: Clipped
    seed: int
    stops: tuple[int, ...]
    """Rounds at which validation is looked at; training ends with the last."""
    first: int
    """No round before this one is chosen."""
    negatives: int
    final: bool = False
    """Learn from validation items, too, and look at the end alone: the round is settled."""
    device: str = "cpu"
    threads: int = 1
    report: Callable[[int, int], None] | None = None
    """Told now and then how many rounds are done, and how many there are."""


@dataclass(frozen=True, slots=True, repr=False)
class UCSnapshot:
    """A model in training."""

    round: int
    rows: NDArray[np.float32]
    """The published model."""
    embeddings: NDArray[np.float32]
    """The users' e_u, which stay on their devices."""
    sent: tuple[int, int]
    """Uploads so far, and rows in them."""
    scorer: Callable[[], Scorer]
    representations: Callable[[], NDArray[np.float32]]
    """h_u of all users: what attackers see."""


Trainer = Callable[[UCTraining, Callable[[UCSnapshot], None]], None]
"""Trains, and shows the model at every stop."""


@dataclass(frozen=True, slots=True, repr=False)
class UCMeasured:
    """How well a model recommends, on test."""

    hr: float
    ndcg: float
    """At 10, among the sampled candidates."""
    full_hr: float
    full_ndcg: float
    """At 10, among all items."""
    hits: NDArray[np.bool_]
    """[users]: whether her item is among the first 10 of the candidates; false where she has no
    item in test."""
    gains: NDArray[np.float32]
    """[users]: the same as NDCG@10."""

    def of(self, users: NDArray[np.bool_]) -> tuple[float, float]:
        """HR@10 and NDCG@10 of these users alone; NaN where there are none."""
        if not users.any():
            return float("nan"), float("nan")
        return float(self.hits[users].mean()), float(self.gains[users].mean())


@dataclass(frozen=True, slots=True, repr=False)
class Trained(UCMeasured):
    """A run at the round that validation chose."""

    round: int
    rounds: int
    """Rounds that were run."""
    seconds: float
    """Of training, without looks."""
    uploads: float
    """Of a user, over all rounds, on average."""
    sent_rows: float
    """Rows of the model in an upload, on average."""
    stops: NDArray[np.int64]
    validation_hr: Floats
    validation_ndcg: Floats
    test_hr: Floats
    test_ndcg: Floats
    """By stop. Test is for pictures: nothing is chosen by it."""
    table: NDArray[np.float16]
    """h_u [users, width]."""
    embeddings: NDArray[np.float32]
    """e_u [users, d]."""
    rows: NDArray[np.float32]
    """The published model: items, towers, filters."""

    @classmethod
    def of_arrays(cls, found: Arrays) -> Self:
        values: dict[str, Any] = {name: float(found[name]) for name in _NUMBERS}
        values |= {name: int(found[name]) for name in ("round", "rounds")}
        return cls(**values | {name: found[name] for name in _TABLES})

    @property
    def validation(self) -> float:
        """HR@10 on validation at the chosen round."""
        return float(self.validation_hr[int(np.flatnonzero(self.stops == self.round)[0])])


_TABLES = (
    "hits", "gains", "stops", "validation_hr", "validation_ndcg", "test_hr", "test_ndcg", "table",
    "embeddings", "rows",
)  # fmt: skip
_NUMBERS = ("hr", "ndcg", "full_hr", "full_ndcg", "seconds", "uploads", "sent_rows")
KEPT = (*_NUMBERS, "round", "rounds", *_TABLES)
"""Names of what is kept of a run."""


def federated(training: UCTraining, show: Callable[[UCSnapshot], None]) -> None:
    """The real thing."""
    settings, world = training.settings, training.world
    labels = settings.labels(world.labels, world.n_users)
    rng = Streams.from_seed(training.seed).child("federation")
    history = world.seen if training.final else world.train
    federation = Federation.build(
        settings, history, training.consent, training.release, rng, labels
    )
    federation.check_device(training.device)
    if training.device != "cpu":
        federation.accelerate(training.device)
    federation.schedule = replace(federation.schedule, rounds=training.stops[-1])
    federation.devices.ledger.keep_rows = False

    def look(moment: Moment) -> None:
        totals = moment.ledger.totals
        sent = totals.releases, totals.positive_rows + totals.negative_rows
        given = moment.round, moment.items, moment.cohort.vectors, sent
        show(UCSnapshot(*given, federation.scorer, federation.representations))

    observers: list[Observer] = [AtRounds(training.stops, look)]
    if (report := training.report) is not None:
        observers.append(Periodically(_TOLD, lambda moment: report(moment.round, moment.rounds)))
    federation.run(observers, threads=training.threads)


def run(training: UCTraining, trainer: Trainer) -> Arrays:
    """Train, choose the round on validation, and measure that one on test. A run that leaves the
    range of numbers keeps what it had; one that never had anything raises."""
    curve: list[tuple[float, ...]] = []
    best: dict[str, NDArray[Any]] = {}
    looking, sent = 0.0, (0, 0)

    def show(snapshot: UCSnapshot) -> None:
        nonlocal best, looking, sent
        begun = time.perf_counter()
        scorer, sent = snapshot.scorer(), snapshot.sent
        test = _means(_ranked(scorer, training, "test"))
        unseen = (float("nan"), float("nan"))
        if not training.final:
            unseen = _means(_ranked(scorer, training, "validation"))
        curve.append((snapshot.round, *unseen, *test))
        chosen = [row[1] for row in curve if row[0] >= training.first]
        best_yet = bool(chosen) and chosen[-1] == max(chosen) and chosen.count(chosen[-1]) == 1
        if training.final or best_yet:
            measured = measure(scorer, training.world, training.negatives, training.threads)
            best = {
                "hr": np.array(measured.hr),
                "ndcg": np.array(measured.ndcg),
                "full_hr": np.array(measured.full_hr),
                "full_ndcg": np.array(measured.full_ndcg),
                "hits": measured.hits,
                "gains": measured.gains,
                "round": np.array(snapshot.round),
                "table": snapshot.representations().astype(np.float16),
                "embeddings": snapshot.embeddings.astype(np.float32),  # copies
                "rows": snapshot.rows.astype(np.float32),
            }
        looking += time.perf_counter() - begun

    begun = time.perf_counter()
    try:
        trainer(training, show)
    except Diverged:
        if not best:
            raise
    seconds = time.perf_counter() - begun - looking
    columns = np.array(curve).T
    names = ("validation_hr", "validation_ndcg", "test_hr", "test_ndcg")
    return best | {
        "rounds": np.array(curve[-1][0]),
        "seconds": np.array(seconds),
        "uploads": np.array(sent[0] / training.world.n_users),
        "sent_rows": np.array(sent[1] / max(1, sent[0])),
        "stops": columns[0].astype(np.int64),
        **dict(zip(names, columns[1:], strict=True)),
    }


def measure(scorer: Scorer, world: UCData, negatives: int, threads: int = 1) -> UCMeasured:
    """On test: each user's item among the candidates, and among all items."""
    sampled = evaluate(
        scorer, world.seen, world.test, Ranking(CUT, Sampled(negatives, DRAWN)), threads=threads
    )
    full = evaluate(scorer, world.seen, world.test, Ranking(CUT), threads=threads)
    hits = np.zeros(world.n_users, dtype=bool)
    gains = np.zeros(world.n_users, dtype=np.float32)
    hits[sampled.users] = sampled.per_user(f"HR@{CUT}") > 0
    gains[sampled.users] = sampled.per_user(f"NDCG@{CUT}")
    return UCMeasured(*_means(sampled), *_means(full), hits, gains)


def _ranked(scorer: Scorer, training: UCTraining, part: str) -> Evaluation:
    world = training.world
    seen, wanted = (world.train, world.validation) if part == "validation" else (
        world.seen, world.test,
    )  # fmt: skip
    protocol = Ranking(CUT, Sampled(training.negatives, DRAWN))
    return evaluate(scorer, seen, wanted, protocol, threads=training.threads)


def _means(evaluation: Evaluation) -> tuple[float, float]:
    return evaluation.mean(f"HR@{CUT}"), evaluation.mean(f"NDCG@{CUT}")
