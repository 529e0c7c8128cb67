"""An epoch of DRIFT: message by message, and all at once.

`replay` moves the messages one by one between the parties and is the definition. `plan` finds the
same blocks and rounds for a whole table at once, and `blocks.learn` takes the same steps; the model
is the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sottovoce.algorithms import drift_kernels as kernels
from sottovoce.algorithms.blocks import Blocks, Events, Ints, Model, learn
from sottovoce.algorithms.drift import DRIFTConfig, Orchestrator, Owner, User
from sottovoce.algorithms.drift_messages import OwnerTable
from sottovoce.config import require_whole
from sottovoce.data.interactions import Interactions
from sottovoce.errors import DataError
from sottovoce.recommender import FactorScorer
from sottovoce.rng import Streams

Progress = Callable[[int, int], None]
"""Called with epochs done and epochs in all."""


def exchange(owner: Owner, orchestrator: Orchestrator) -> bool:
    """One update: the owner asks, computes and sends. Whether there was anything to send. Where the
    orchestrator refuses, the blocks stay with the owner and the error is passed on."""
    request = owner.request()
    if request is None:
        return False
    accepted = False
    try:
        gradients = owner.gradients(orchestrator.answer(request))
        if gradients is not None:
            orchestrator.fold(gradients)
        accepted = True
    finally:
        owner.settle(accepted)
    return True


class Replayed(NamedTuple):
    """What came of an epoch."""

    updates: int
    undelivered: int
    """Interactions for owners that are in the table but do not answer."""


def replay(
    events: Events,
    users: Mapping[int, User],
    owners: Mapping[int, Owner],
    orchestrator: Orchestrator,
) -> Replayed:
    """One epoch, message by message. Streams end with each user, or with the epoch where it goes by
    time (owner by owner, then user by user); what falls short of Θ is sent at the very end. Owners
    that are missing are left out, and counted."""
    updates = undelivered = 0
    present = [owner for _, owner in sorted(owners.items())]
    last = np.r_[events.user[1:] != events.user[:-1], True] if len(events) else np.zeros(0, bool)
    for k, user in enumerate(events.user.tolist()):
        if user not in users:
            raise DataError("there are interactions of a user who has not joined")
        item, positive, time = int(events.item[k]), bool(events.positive[k]), int(events.time[k])
        for message in users[user].interact(item, positive, time):
            owner = owners.get(message.owner)
            if owner is None:
                undelivered += 1
            elif owner.receive(message):
                updates += exchange(owner, orchestrator)
        if events.order == "user" and last[k]:
            updates += _end(user, present, orchestrator)
    for owner in present:
        for user in sorted(owner.users):
            updates += _end(user, [owner], orchestrator)
    rest = sum(exchange(owner, orchestrator) for owner in present)
    return Replayed(updates + rest, undelivered)


def _end(user: int, owners: list[Owner], orchestrator: Orchestrator) -> int:
    due = [owner for owner in owners if owner.end_stream(user)]
    return sum(exchange(owner, orchestrator) for owner in due)


def plan(events: Events, table: OwnerTable, theta: int) -> Blocks:
    """The blocks and rounds of `replay`, found at once and in linear time: neither depends on the
    model."""
    require_whole("theta", theta, 1)
    pointer, holders, owners = table.arrays(int(events.item.max(initial=-1)) + 1)
    counts = np.diff(pointer)[events.item]
    if not counts.all():
        raise DataError("there are interactions with items that no data owner holds")
    messages = int(counts.sum())
    entries, spans, user, owner, ends = kernels.cut_streams(
        kernels.stable_order(events.user, int(events.user.max(initial=-1)) + 1),
        events.user, events.item, events.positive, np.cumsum(counts) - counts, messages,
        pointer, holders, owners, events.order == "user",
    )  # fmt: skip
    # Blocks come by user, then owner, so those that end together are in their order already.
    turn = kernels.stable_order(ends, 2 * messages + owners)
    rounds, inner = _grouped(owner[turn], theta)
    turn = turn[inner]
    return Blocks(user[turn], spans[turn], entries, rounds)


def _grouped(owner: Ints, theta: int) -> tuple[Ints, Ints]:
    """Blocks by the order in which they ended; their rounds, and the order within those. Θ blocks
    of an owner make a round, when the last of them ends; the rest come last, owner by owner."""
    n, counts = len(owner), np.bincount(owner)
    by_owner = kernels.stable_order(owner, len(counts))
    rank = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    full = rank // theta * theta + theta <= np.repeat(counts, counts)
    closing = np.minimum(np.arange(n) - rank % theta + theta - 1, n - 1)
    when = np.empty(n, dtype=np.int64)
    when[by_owner] = np.where(full, by_owner[closing], n + owner[by_owner])
    turn = kernels.stable_order(when, n + len(counts))
    edges = np.flatnonzero(np.diff(when[turn])) + 1
    return np.r_[0, edges, n][0 if n else 1 :].astype(np.int64), turn


@dataclass(frozen=True, slots=True)
class DRIFT:
    """All parties of a fixed federation at once, at full speed."""

    config: DRIFTConfig

    def fit(
        self,
        train: Interactions,
        table: OwnerTable,
        rng: Streams,
        progress: Progress | None = None,
    ) -> FactorScorer:
        (model,) = self.fit_steps(train, table, rng, [self.config.epochs], progress)
        return FactorScorer.of(model.users, model.items)

    def fit_steps(
        self,
        train: Interactions,
        table: OwnerTable,
        rng: Streams,
        epochs: list[int],
        progress: Progress | None = None,
    ) -> list[Model]:
        """The model after each of these epochs (ascending), from one training run."""
        config, kept = self.config, []
        events = Events.of(train, config.positive_from, config.order)
        blocks = plan(events, table, config.theta)
        model = Model.start(train.n_users, train.n_items, config.embedding_size, rng)
        for epoch in range(1, max(epochs) + 1):
            learn(model, blocks, config.step())
            model.check()
            if progress is not None:
                progress(epoch, max(epochs))
            if epoch in epochs:
                kept.append(model.copy())
        return kept
