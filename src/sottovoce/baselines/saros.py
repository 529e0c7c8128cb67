"""SAROS, the central reference of DRIFT: it learns from blocks of each user's stream, user by user
(Burashnikova et al. 2021). Blocks, their loss and their gradient are in algorithms/drift/blocks.py.

Three variants:

- "b" takes one gradient step per block.
- "m" takes one momentum step per block. The momentum starts at 0 with every user.
- "public" does as the published code: a step for every positive, against the negatives before it. A
  user who starts with positives borrows one of her negatives, drawn at random. No thresholds.

Thresholds. A user's updates stop after B blocks; those of a user with fewer than b are undone. What
a block holds does not depend on the model, so such users are left out from the start, which comes
to the same. b and B are quantiles of the numbers of blocks of users who have any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sottovoce.algorithms.drift.blocks import (
    Blocks,
    BlockStep,
    DriftModel,
    Events,
    Ridge,
    cut,
    learn,
    learn_momentum,
)
from sottovoce.baselines.base import BASELINES, Baseline, Progress
from sottovoce.config import require_number, require_whole
from sottovoce.core.interactions import Interactions
from sottovoce.core.recommender import FactorScorer
from sottovoce.errors import ConfigError
from sottovoce.rng import Streams

VARIANTS = ("b", "m", "public")


@BASELINES.register("saros")
@dataclass(frozen=True, slots=True)
class SAROS(Baseline):
    """SAROS: learning from blocks of ratings in the order of time; needs times and ratings.

    Example:
        ```python
        fitted = sv.fit(sv.SAROS(epochs=50), parts)
        print(fitted.evaluate(["NDCG"]))
        ```
    """

    title = "SAROS"
    listed_at = 90
    learns_from_dislikes = True

    variant: Literal["b", "m", "public"] = "b"
    """A step per block, a momentum step per block, or the published code's step per positive."""
    embedding_size: int = 4
    """Length of a user's or item's vector."""
    learning_rate: float = 0.005
    """Step size."""
    reg: float = 0.01
    """Pull of all rows to 0; μ."""
    ridge: Ridge = "rows"
    """The pull counts once for every row of a block, or is averaged over its pairs."""
    epochs: int = 200
    """Passes over all users."""
    positive_from: float = 4.0
    """Interactions with at least this rating are positive, the others negative."""
    lower: float = 0.05
    """Quantile that gives b; 0 for no threshold."""
    upper: float = 0.95
    """Quantile that gives B; 1 for no threshold."""
    momentum: float = 0.9
    """Share of the former step in the next one, in variant "m"."""

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ConfigError(f"variant must be one of {list(VARIANTS)}, not {self.variant!r}")
        require_whole("embedding_size", self.embedding_size, 1, 4096)
        require_whole("epochs", self.epochs, 1, 1_000_000)
        require_number("lower", self.lower, 0.0, 1.0, above=False)
        require_number("upper", self.upper, 0.0, 1.0, above=False)
        if self.lower > self.upper:
            raise ConfigError(f"lower is {self.lower:g}, above upper, which is {self.upper:g}")
        if not 0.0 <= self.momentum < 1.0:
            raise ConfigError(f"momentum must lie in [0, 1), not {self.momentum:g}")
        self.step()

    def step(self) -> BlockStep:
        """The step of a block with these settings."""
        return BlockStep(self.learning_rate, self.reg, self.ridge)

    def fit(
        self, train: Interactions, rng: Streams, progress: Progress | None = None
    ) -> FactorScorer:
        (model,) = self.fit_steps(train, rng, [self.epochs], progress)
        return FactorScorer.of(model.users, model.items)

    def fit_steps(
        self,
        train: Interactions,
        rng: Streams,
        epochs: list[int],
        progress: Progress | None = None,
    ) -> list[DriftModel]:
        """The model after each of these epochs (ascending), from one training run."""
        blocks = self.blocks(train, rng)
        model = DriftModel.start(train.n_users, train.n_items, self.embedding_size, rng)
        kept = []
        for epoch in range(1, max(epochs) + 1):
            self.epoch(model, blocks)
            if progress is not None:
                progress(epoch, max(epochs))
            if epoch in epochs:
                kept.append(model.copy())
        return kept

    def epoch(self, model: DriftModel, blocks: Blocks) -> None:
        """One pass over the blocks, in place."""
        if self.variant == "m":
            learn_momentum(model, blocks, self.step(), self.momentum)
        else:
            learn(model, blocks, self.step())
        model.check()

    def blocks(self, train: Interactions, rng: Streams) -> Blocks:
        """What an epoch learns from, one step each."""
        events = Events.of(train, self.positive_from, "user")
        if self.variant == "public":
            return single_positives(events, rng.child("first-negative"))
        every = Blocks.of_users(events)
        return within_thresholds(every, *thresholds(every, self.lower, self.upper))


def thresholds(blocks: Blocks, lower: float, upper: float) -> tuple[int, int]:
    """b and B: quantiles of the numbers of blocks, over users who have at least one."""
    _, counts = np.unique(blocks.user, return_counts=True)
    if not len(counts):
        return 0, 0
    b = np.quantile(counts, lower, method="lower")
    return int(b), int(np.quantile(counts, upper, method="higher"))


def within_thresholds(blocks: Blocks, b: int, B: int) -> Blocks:
    """The first B blocks of each user who has at least b."""
    _, first, counts = np.unique(blocks.user, return_index=True, return_counts=True)
    place = np.arange(len(blocks)) - np.repeat(first, counts)
    kept = (place < B) & (np.repeat(counts, counts) >= b)
    return blocks.take(np.flatnonzero(kept))


def single_positives(events: Events, rng: Streams) -> Blocks:
    """A block for every positive, with the run of negatives before it. Positives before a user's
    first negative take one of the user's negatives, the same for all; users without any have no
    block."""
    start, middle, _, _ = cut(events.user, events.positive)
    at = np.flatnonzero(events.positive)
    negatives = np.flatnonzero(~events.positive)
    owner = events.user[negatives]
    users = events.user[at]
    low = np.searchsorted(owner, users, side="left")
    count = np.searchsorted(owner, users, side="right") - low
    at, users, low, count = (a[count > 0] for a in (at, users, low, count))
    drawn = np.floor(rng.uniform(users, 1)[:, 0] * count).astype(np.int64)
    borrowed = negatives[low + drawn]
    run = np.searchsorted(start, at, side="right") - 1
    led = at > negatives[low]
    spans = np.empty((len(at), 4), dtype=np.int64)
    spans[:, 0] = np.where(led, start[run], borrowed)
    spans[:, 1] = np.where(led, middle[run], borrowed + 1)
    spans[:, 2], spans[:, 3] = at, at + 1
    return Blocks.one_by_one(users, spans, events.item.copy())
