"""An epoch of DRIFT: message by message, and all at once.

`replay` moves the messages one by one between the parties and is the definition. `plan` finds the
same blocks and rounds for a whole table at once, and `blocks.learn` takes the same steps; the model
is the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.drift.blocks import (
    BEGIN,
    DRAWN,
    END,
    NEGATIVES,
    OWNER,
    POSITIVES,
    USER,
    Blocks,
    Events,
    Ints,
)
from sottovoce.algorithms.drift.messages import Gradients, Interaction, OwnerTable
from sottovoce.algorithms.drift.system import Orchestrator, Owner, User
from sottovoce.algorithms.drift.untouched import Drawing, cut_with_untouched
from sottovoce.algorithms.rows import prefetch
from sottovoce.compiled import njit
from sottovoce.config import require_whole
from sottovoce.errors import DataError

# --- the compiled half of `plan` -----------------------------------------------------------------
# An epoch's blocks and updates, in linear time. Each step reads or writes one side in order, so
# that memory far larger than the caches costs little more than the caches do; numbers have 32 bits
# on the way. Arrays come from the caller: NumPy asks for large pages, which fresh memory needs to
# be cheap.

# Kernels carry no types (numba infers them); their callers do.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"


AHEAD = 16
"""Blocks before its turn a block is fetched from where it lies."""


@njit(nogil=True, cache=True)
def count_messages(user, item, pointer, start, sent):
    """How many events a user has, at start[user + 1], and how many messages, at sent[user]; both
    are zeros before. Returns whether there is an item that nobody holds."""
    missing = False
    for e in range(user.shape[0]):
        held = pointer[item[e] + 1] - pointer[item[e]]
        start[user[e] + 1] += 1
        sent[user[e]] += held
        missing |= held == 0
    return missing


@njit(nogil=True, cache=True)
def by_user(user, item, positive, start, words):
    """The events in the order of users, one user's as they come, each as a word of its number, item
    and flag. `start` is as `count_messages` leaves it, and is left so that the words of user u are
    start[u - 1]..start[u] (from 0 for the first)."""
    for u in range(1, start.shape[0]):
        start[u] += start[u - 1]
    for e in range(user.shape[0]):
        words[start[user[e]]] = (e << 32) | (np.int64(item[e]) << 1) | np.int64(positive[e])
        start[user[e]] += 1


@njit(nogil=True, cache=True)
def told_by_user(user, pointer, owner, place, at, first, laid):
    """The owners that are told of each event, owner[pointer[e]:pointer[e + 1]], in the order of the
    words of `by_user`: those of word k are laid[first[k]:first[k + 1]]. `place` and `at` are where
    a user's words and her owners begin, and are left where they end."""
    for e in range(user.shape[0]):
        u = user[e]
        first[place[u]] = at[u]
        place[u] += 1
        for h in range(pointer[e], pointer[e + 1]):
            laid[at[u]] = owner[h]
            at[u] += 1
    first[user.shape[0]] = laid.shape[0]


@njit(nogil=True, cache=True)
def cut_streams(
    start, words, pointer, holders, owners, by_user, laid_out, entries, facts, longest
):  # fmt: skip
    """The blocks of every user's stream at every owner, by user, then owner, then time. An event
    has a message for each of holders[pointer[i]:pointer[i + 1]], where i is its item, or, where
    they are `laid_out`, the place of its word. `longest` is the most messages of a user.
    Writes the items, and the facts of every block; returns how many blocks and items there are. A
    block ends with event e at 2e, and later where its stream ends it: behind the user's last event,
    or, by time, behind all events, owner by owner."""
    n = words.shape[0]
    mine = np.empty(longest, dtype=np.int64)
    edge = np.empty(owners + 1, dtype=np.int64)
    blocks = at = low = 0
    for u in range(start.shape[0] - 1):
        high = start[u]
        if high == low:
            continue
        edge[:] = 0
        for k in range(low, high):
            i = k if laid_out else (words[k] >> 1) & 0x7FFFFFFF
            for h in range(pointer[i], pointer[i + 1]):
                edge[holders[h] + 1] += 1
        for o in range(owners):
            edge[o + 1] += edge[o]
        for k in range(low, high):
            i = k if laid_out else (words[k] >> 1) & 0x7FFFFFFF
            for h in range(pointer[i], pointer[i + 1]):
                mine[edge[holders[h]]] = words[k]
                edge[holders[h]] += 1
        final = words[high - 1] >> 32
        a = 0
        for o in range(owners):
            end = edge[o]  # the words of owner o have been filled in up to here
            while a < end and mine[a] & 1:
                a += 1
            while a < end:
                b = a
                while b < end and not mine[b] & 1:
                    b += 1
                c = b
                while c < end and mine[c] & 1:
                    c += 1
                if c > b:
                    behind = 2 * final + 1 if by_user else 2 * n + o
                    facts[blocks, USER], facts[blocks, OWNER] = u, o
                    facts[blocks, END] = 2 * (mine[c] >> 32) if c < end else behind
                    facts[blocks, BEGIN] = at
                    facts[blocks, NEGATIVES], facts[blocks, POSITIVES] = b - a, c - b
                    blocks += 1
                    for w in range(a, c):
                        entries[at] = (mine[w] >> 1) & 0x7FFFFFFF
                        at += 1
                a = c
        low = high
    return blocks, at


@njit(nogil=True, cache=True)
def by_end(facts, bits, first, second, result):
    """`result` is the facts in the order of ends, equal ones as they come. Two passes by half of an
    end's bits each; `first` and `second` are room for a word per block."""
    half = (bits + 1) // 2
    mask = (1 << half) - 1
    low, high = np.zeros(mask + 2, dtype=np.int64), np.zeros(mask + 2, dtype=np.int64)
    for k in range(facts.shape[0]):
        end = np.int64(facts[k, END])
        low[(end & mask) + 1] += 1
        high[(end >> half) + 1] += 1
    for b in range(mask + 1):
        low[b + 1] += low[b]
        high[b + 1] += high[b]
    for k in range(facts.shape[0]):
        end = np.int64(facts[k, END])
        first[low[end & mask]] = (end << 32) | k
        low[end & mask] += 1
    for k in range(facts.shape[0]):
        digit = first[k] >> (32 + half)
        second[high[digit]] = first[k]
        high[digit] += 1
    for k in range(facts.shape[0]):
        if k + AHEAD < facts.shape[0]:
            prefetch(facts, second[k + AHEAD] & 0xFFFFFFFF, 1)
        block = second[k] & 0xFFFFFFFF
        for f in range(facts.shape[1]):
            result[k, f] = facts[block, f]


@njit(nogil=True, cache=True)
def group(facts, theta, owners, turn, updates):
    """Blocks by the order in which they ended. Θ blocks of an owner make an update, when the last
    of them ends; the rest come last, owner by owner. Writes the order of the blocks and the edges
    of the updates, the first of which is 0; returns how many updates there are."""
    last = np.full(owners, -1, dtype=np.int64)
    waiting = np.zeros(owners, dtype=np.int64)
    before = np.empty(facts.shape[0], dtype=np.int32)
    at = count = 0
    for k in range(facts.shape[0] + owners):
        at_end = k >= facts.shape[0]
        o = k - facts.shape[0] if at_end else np.int64(facts[k, OWNER])
        if not at_end:
            before[k], last[o] = last[o], k
            waiting[o] += 1
        if waiting[o] == theta or (at_end and waiting[o]):
            at += waiting[o]
            block = last[o]
            for back in range(1, waiting[o] + 1):
                turn[at - back] = block
                block = np.int64(before[block])
            _sort_users(facts, turn, at - waiting[o], at)
            count += 1
            updates[count] = at
            last[o], waiting[o] = -1, 0
    return count


@njit(nogil=True, cache=True)
def serve(owner, window, order, theta, last, when):
    """The window after which each block is learnt from: the first that leaves its owner with Θ
    blocks, or the `last` one. `order` goes by owner, then window."""
    begun = 0
    for k in range(order.shape[0]):
        block = order[k]
        at_end = k + 1 == order.shape[0]
        same = not at_end and owner[order[k + 1]] == owner[block]
        if same and window[order[k + 1]] == window[block]:
            continue
        if k + 1 - begun >= theta or not same:
            served = window[block] if k + 1 - begun >= theta else last
            for waiting in range(begun, k + 1):
                when[order[waiting]] = served
            begun = k + 1


@njit(nogil=True, cache=True)
def _sort_users(facts, turn, low, high):
    """The blocks of an update by their users; one user's as they come. In place."""
    if high - low > 32:
        part = turn[low:high].copy()
        turn[low:high] = part[np.argsort(facts[:, USER][part], kind="mergesort")]
        return
    for at in range(low + 1, high):
        block, place = turn[at], at
        while place > low and facts[turn[place - 1], USER] > facts[block, USER]:
            turn[place] = turn[place - 1]
            place -= 1
        turn[place] = block


@njit(nogil=True, cache=True)
def lay_out(facts, turn, entries, user, spans, laid):
    """Users, spans and entries of the blocks in the order of `turn`, entries one after the
    other: who learns from them reads straight on."""
    at = 0
    for k in range(turn.shape[0]):
        if k + AHEAD < turn.shape[0]:
            prefetch(entries, np.int64(facts[turn[k + AHEAD], BEGIN]), 1)
        block = turn[k]
        begin, negatives = facts[block, BEGIN], facts[block, NEGATIVES]
        length = negatives + facts[block, POSITIVES]
        for e in range(length):
            laid[at + e] = entries[begin + e]
        user[k] = facts[block, USER]
        spans[k, 0], spans[k, 1] = at, at + negatives
        spans[k, 2], spans[k, 3] = at + negatives, at + length
        at += length


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


class Addressed(NamedTuple):
    """Who is told of each event: of event e, owner[pointer[e]:pointer[e + 1]], as the table counts
    them."""

    pointer: Ints
    owner: Ints


def address(events: Events, table: OwnerTable) -> Addressed:
    """Every owner of each event's item: what `User.interact` does, for all events at once."""
    first, holders, _ = table.arrays(int(events.item.max(initial=-1)) + 1)
    counts = np.diff(first)[events.item]
    if not counts.all():
        raise DataError(_NOBODY_HOLDS)
    pointer = np.r_[0, np.cumsum(counts)].astype(np.int64)
    within = np.arange(pointer[-1]) - np.repeat(pointer[:-1], counts)
    return Addressed(pointer, holders[np.repeat(first[events.item], counts) + within])


_NOBODY_HOLDS = "there are interactions with items that no data owner holds"


def plan(
    events: Events,
    table: OwnerTable,
    theta: int,
    window: int = 0,
    told: Addressed | None = None,
    drawing: Drawing | None = None,
) -> Blocks:
    """The blocks and updates of `replay`, found at once and in linear time: neither depends on the
    model. Every owner of its item is told of an event, or those that `told` says. With a `drawing`
    owners also draw what was not touched; the first pass then differs from the others."""
    require_whole("theta", theta, 1)
    require_whole("window", window, 0)
    if window:
        return plan_windows(events, table, theta, window, told, drawing)[0]
    facts, entries, owners = _cut(events, table, told, drawing)
    n = len(facts)
    ordered = np.empty_like(facts)
    bits = (2 * len(events) + owners).bit_length()
    by_end(facts, bits, np.empty(n, np.int64), np.empty(n, np.int64), ordered)
    turn, updates = np.empty(n, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)
    count = group(ordered, theta, owners, turn, updates)
    drawn = _drawn(ordered, turn)
    return Blocks(*_laid_out(ordered, turn, entries), updates[: count + 1].copy(), None, drawn)


def plan_windows(
    events: Events,
    table: OwnerTable,
    theta: int,
    window: int,
    told: Addressed | None = None,
    drawing: Drawing | None = None,
) -> tuple[Blocks, Ints]:
    """`plan` where there are windows; and the owner of each update, as the table counts them."""
    facts, entries, _ = _cut(events, table, told, drawing)
    owner = facts[:, OWNER].astype(np.int64)
    rounds = np.minimum(facts[:, END] // 2, len(events) - 1) // window
    turn, when = _in_windows(owner, rounds.astype(np.int64), theta, (len(events) - 1) // window)
    new_round = np.diff(when, prepend=-1) != 0
    starts = np.flatnonzero(new_round | (np.diff(owner[turn], prepend=-1) != 0))
    updates = np.r_[starts, len(turn)].astype(np.int64)
    together = np.r_[np.flatnonzero(new_round[starts]), len(starts)].astype(np.int64)
    drawn = _drawn(facts, turn)
    return Blocks(*_laid_out(facts, turn, entries), updates, together, drawn), owner[turn][starts]


def _cut(
    events: Events, table: OwnerTable, told: Addressed | None, drawing: Drawing | None
) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    """The facts of all blocks, by user, then owner, then time, the items that they refer to, and
    how many owners there are."""
    if drawing is not None:
        return cut_with_untouched(events, table, *(told or address(events, table)), drawing)
    pointer, holders, owners = table.arrays(int(events.item.max(initial=-1)) + 1)
    users = int(events.user.max(initial=-1)) + 1
    start, sent = np.zeros(users + 1, dtype=np.int64), np.zeros(users, dtype=np.int64)
    if told is None:
        if count_messages(events.user, events.item, pointer, start, sent):
            raise DataError(_NOBODY_HOLDS)
    else:
        if len(told.pointer) != len(events) + 1 or told.owner.max(initial=-1) >= owners:
            raise DataError("it must be said of every event which of the data owners are told")
        number = np.arange(len(events), dtype=np.int32)
        count_messages(events.user, number, told.pointer, start, sent)
        pointer, holders = np.empty_like(told.pointer), np.empty_like(told.owner)
        told_by_user(events.user, *told, np.cumsum(start), np.cumsum(sent) - sent, pointer, holders)
    total = int(sent.sum())
    if 2 * max(len(events), total) + owners >= 1 << 31:
        raise DataError("so many interactions cannot be planned at once; take them in parts")
    words = np.empty(len(events), dtype=np.int64)
    by_user(events.user, events.item, events.positive, start, words)
    entries = np.empty(total, dtype=np.int32)
    facts = np.empty((total // 2, 6), dtype=np.int32)
    blocks, items = cut_streams(
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
    lay_out(facts, turn, entries, user, spans, laid)
    return user, spans, laid


def _drawn(facts: NDArray[np.int32], turn: Ints) -> Ints | None:
    """How many negatives of each block were drawn, in this order; None where owners do not draw."""
    return facts[turn, DRAWN].astype(np.int64) if facts.shape[1] > DRAWN else None


def _in_windows(owner: Ints, window: Ints, theta: int, last: int) -> tuple[Ints, Ints]:
    """Blocks by user, then owner, then time, and the windows that they ended in; the order in which
    they are learnt from, and the round of each in that order. An owner is served after a window
    that leaves it with Θ blocks, and after the last."""
    when = np.empty_like(window)
    serve(owner, window, np.lexsort((window, owner)), theta, last, when)
    turn = np.lexsort((owner, when))
    return turn, when[turn]
