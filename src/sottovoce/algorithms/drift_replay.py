"""An epoch of DRIFT: message by message, and all at once.

`replay` moves the messages one by one between the parties and is the definition. `plan` finds the
same blocks and rounds for a whole table at once, and `blocks.learn` takes the same steps; the model
is the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms import plan_kernels as kernels
from sottovoce.algorithms.blocks import Blocks, Events, Ints, Model, learn
from sottovoce.algorithms.drift import DRIFTConfig, Orchestrator, Owner, User
from sottovoce.algorithms.drift_messages import Gradients, Interaction, OwnerTable
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
    return exchange_together([owner], orchestrator) == 1


def exchange_together(owners: Sequence[Owner], orchestrator: Orchestrator) -> int:
    """A round: all owners that have finished blocks compute from the same rows; their gradients are
    folded in the order given. Returns how many had any. Where the orchestrator refuses, the blocks
    that were not folded stay with their owners and the error is passed on."""
    waiting: list[tuple[Owner, Gradients | None]] = []
    asking = [(owner, request) for owner in owners if (request := owner.request()) is not None]
    unsettled = [owner for owner, _ in asking]
    try:
        for owner, request in asking:
            waiting.append((owner, owner.gradients(orchestrator.answer(request))))
        began = orchestrator.version
        for owner, gradients in waiting:
            if gradients is not None:
                orchestrator.fold(gradients, began)
            owner.settle(True)
            unsettled.remove(owner)
    finally:
        for owner in unsettled:
            owner.settle(False)
    return len(asking)


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
    window: int = 0,
    silent: Mapping[int, Collection[int]] | None = None,
) -> Replayed:
    """One epoch, message by message: `deliver` of what these users say."""

    def said() -> Iterable[Sequence[Interaction]]:
        columns = (events.user, events.item, events.positive, events.time)
        for user, item, positive, time in zip(*(c.tolist() for c in columns), strict=True):
            if user not in users:
                raise DataError("there are interactions of a user who has not joined")
            yield users[user].interact(item, positive, time)

    return deliver(events, said(), owners, orchestrator, window, silent)


def deliver(
    events: Events,
    said: Iterable[Sequence[Interaction]],
    owners: Mapping[int, Owner],
    orchestrator: Orchestrator,
    window: int = 0,
    silent: Mapping[int, Collection[int]] | None = None,
) -> Replayed:
    """One epoch of messages, which `said` has for each event. Of the events themselves it takes
    whose turn it is. Streams end with each user, or with the epoch where it goes by time (owner by
    owner, then user by user); what falls short of Θ is sent at the very end. With a window there is
    a round after every so many events, and what ends with the epoch is in the last. Owners that are
    missing are left out, and counted. Where there are windows, `silent` says by round which owners
    do not answer in it; they keep their blocks for the next one."""
    updates = undelivered = 0
    absent = silent or {}
    present = [owner for _, owner in sorted(owners.items())]
    last = np.r_[events.user[1:] != events.user[:-1], True] if len(events) else np.zeros(0, bool)
    for k, (user, messages) in enumerate(zip(events.user.tolist(), said, strict=True)):
        for message in messages:
            owner = owners.get(message.owner)
            if owner is None:
                undelivered += 1
            elif owner.receive(message) and not window:
                updates += exchange(owner, orchestrator)
        if events.order == "user" and last[k]:
            due = [owner for owner in present if owner.end_stream(user)]
            updates += 0 if window else sum(exchange(owner, orchestrator) for owner in due)
        if window and (k + 1) % window == 0 and k + 1 < len(events):
            there = [o for o in present if o.number not in absent.get(k // window, ())]
            updates += exchange_together([o for o in there if o.due], orchestrator)
    for owner in present:
        for user in sorted(owner.users):
            if owner.end_stream(user) and not window:
                updates += exchange(owner, orchestrator)
    if window:
        final = max(len(events) - 1, 0) // window
        there = [o for o in present if o.number not in absent.get(final, ())]
        return Replayed(updates + exchange_together(there, orchestrator), undelivered)
    rest = sum(exchange(owner, orchestrator) for owner in present)
    return Replayed(updates + rest, undelivered)


class Told(NamedTuple):
    """Who is told of each event: of event e, owner[pointer[e]:pointer[e + 1]], as the table counts
    them."""

    pointer: Ints
    owner: Ints


def address(events: Events, table: OwnerTable) -> Told:
    """Every owner of each event's item: what `User.interact` does, for all events at once."""
    first, holders, _ = table.arrays(int(events.item.max(initial=-1)) + 1)
    counts = np.diff(first)[events.item]
    if not counts.all():
        raise DataError(_NOBODY_HOLDS)
    pointer = np.r_[0, np.cumsum(counts)].astype(np.int64)
    within = np.arange(pointer[-1]) - np.repeat(pointer[:-1], counts)
    return Told(pointer, holders[np.repeat(first[events.item], counts) + within])


_NOBODY_HOLDS = "there are interactions with items that no data owner holds"


def plan(
    events: Events, table: OwnerTable, theta: int, window: int = 0, told: Told | None = None
) -> Blocks:
    """The blocks and updates of `replay`, found at once and in linear time: neither depends on the
    model. Every owner of its item is told of an event, or those that `told` says."""
    require_whole("theta", theta, 1)
    require_whole("window", window, 0)
    if window:
        return plan_windows(events, table, theta, window, told)[0]
    facts, entries, owners = _cut(events, table, told)
    n = len(facts)
    ordered = np.empty_like(facts)
    bits = (2 * len(events) + owners).bit_length()
    kernels.by_end(facts, bits, np.empty(n, np.int64), np.empty(n, np.int64), ordered)
    turn, updates = np.empty(n, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)
    count = kernels.group(ordered, theta, owners, turn, updates)
    return Blocks(*_laid_out(ordered, turn, entries), updates[: count + 1].copy())


def plan_windows(
    events: Events, table: OwnerTable, theta: int, window: int, told: Told | None = None
) -> tuple[Blocks, Ints]:
    """`plan` where there are windows; and the owner of each update, as the table counts them."""
    facts, entries, _ = _cut(events, table, told)
    owner = facts[:, kernels.OWNER].astype(np.int64)
    rounds = np.minimum(facts[:, kernels.END] // 2, len(events) - 1) // window
    turn, when = _in_windows(owner, rounds.astype(np.int64), theta, (len(events) - 1) // window)
    new_round = np.diff(when, prepend=-1) != 0
    starts = np.flatnonzero(new_round | (np.diff(owner[turn], prepend=-1) != 0))
    updates = np.r_[starts, len(turn)].astype(np.int64)
    together = np.r_[np.flatnonzero(new_round[starts]), len(starts)].astype(np.int64)
    return Blocks(*_laid_out(facts, turn, entries), updates, together), owner[turn][starts]


def _cut(
    events: Events, table: OwnerTable, told: Told | None
) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    """The facts of all blocks, by user, then owner, then time, the items that they refer to, and
    how many owners there are."""
    pointer, holders, owners = table.arrays(int(events.item.max(initial=-1)) + 1)
    users = int(events.user.max(initial=-1)) + 1
    start, sent = np.zeros(users + 1, dtype=np.int64), np.zeros(users, dtype=np.int64)
    if told is None:
        if kernels.count_messages(events.user, events.item, pointer, start, sent):
            raise DataError(_NOBODY_HOLDS)
    else:
        if len(told.pointer) != len(events) + 1 or told.owner.max(initial=-1) >= owners:
            raise DataError("it must be said of every event which of the data owners are told")
        number = np.arange(len(events), dtype=np.int32)
        kernels.count_messages(events.user, number, told.pointer, start, sent)
        pointer, holders = np.empty_like(told.pointer), np.empty_like(told.owner)
        kernels.told_by_user(
            events.user, *told, np.cumsum(start), np.cumsum(sent) - sent, pointer, holders
        )
    total = int(sent.sum())
    if 2 * max(len(events), total) + owners >= 1 << 31:
        raise DataError("so many interactions cannot be planned at once; take them in parts")
    words = np.empty(len(events), dtype=np.int64)
    kernels.by_user(events.user, events.item, events.positive, start, words)
    entries = np.empty(total, dtype=np.int32)
    facts = np.empty((total // 2, 6), dtype=np.int32)
    blocks, items = kernels.cut_streams(
        start, words, pointer, holders, owners, events.order == "user", told is not None, entries,
        facts, int(sent.max(initial=0)),
    )  # fmt: skip
    return facts[:blocks], entries[:items], owners


def _laid_out(
    facts: NDArray[np.int32], turn: Ints, entries: NDArray[np.int32]
) -> tuple[Ints, Ints, NDArray[np.int32]]:
    """Users, spans and entries of blocks in this order."""
    user, spans = np.empty(len(turn), dtype=np.int64), np.empty((len(turn), 4), dtype=np.int64)
    laid = np.empty_like(entries)
    kernels.lay_out(facts, turn, entries, user, spans, laid)
    return user, spans, laid


def _in_windows(owner: Ints, window: Ints, theta: int, last: int) -> tuple[Ints, Ints]:
    """Blocks by user, then owner, then time, and the windows that they ended in; the order in which
    they are learnt from, and the round of each in that order. An owner is served after a window
    that leaves it with Θ blocks, and after the last."""
    when = np.empty_like(window)
    kernels.serve(owner, window, np.lexsort((window, owner)), theta, last, when)
    turn = np.lexsort((owner, when))
    return turn, when[turn]


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
        blocks = plan(events, table, config.theta, config.window)
        model = Model.start(train.n_users, train.n_items, config.embedding_size, rng)
        for epoch in range(1, max(epochs) + 1):
            learn(model, blocks, config.step())
            model.check()
            if progress is not None:
                progress(epoch, max(epochs))
            if epoch in epochs:
                kept.append(model.copy())
        return kept
