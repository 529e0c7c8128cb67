"""The compiled half of drift_replay.plan: an epoch's blocks and updates, in linear time.

Each step reads or writes one side in order, so that memory far larger than the caches costs little
more than the caches do; numbers have 32 bits on the way. Arrays come from the caller: NumPy asks
for large pages, which fresh memory needs to be cheap.
"""

# Kernels carry no types (numba infers them); their caller in drift_replay.py does.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

from __future__ import annotations

import numpy as np
from numba import njit

from sottovoce.algorithms.lanes import prefetch

USER, OWNER, END, BEGIN, NEGATIVES, POSITIVES = range(6)
"""What is noted of a block: its end, where it begins in the entries, and how long its sides are."""
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
