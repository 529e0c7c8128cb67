"""The compiled half of blocks.py: the gradient of a block's loss, and the loops around it.

Gradients are added up in double precision in the order of the blocks, rounded once to single
precision, as they travel, and then subtracted. So a row moves by the same bits whether a loop here
moves it or a data owner and the orchestrator do so by messages.
"""

# Kernels carry no types (numba infers them); their callers in blocks.py do.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(nogil=True, error_model="numpy", cache=True)
def score(vectors, u, rows, i):
    total = 0.0
    for f in range(vectors.shape[1]):
        total += np.float64(vectors[u, f]) * np.float64(rows[i, f])
    return total


@njit(nogil=True, error_model="numpy", cache=True)
def add_block(vectors, u, rows, entries, span, ridge, by_pairs, scratch, pull_user, pull_items):
    """Adds the gradient of one block's loss to row u of `pull_user` and to the rows of the block's
    items in `pull_items`. `scratch` is [2, the longest η]."""
    n_neg, n_pos = span[1] - span[0], span[3] - span[2]
    decay_neg = 2.0 * ridge / n_neg if by_pairs else 2.0 * ridge
    decay_pos = 2.0 * ridge / n_pos if by_pairs else 2.0 * ridge
    weight = 1.0 / (n_neg * n_pos)
    size = vectors.shape[1]
    for k in range(n_neg):
        scratch[0, k] = score(vectors, u, rows, entries[span[0] + k])
        scratch[1, k] = 0.0
    for f in range(size):
        pull_user[u, f] += 2.0 * ridge * np.float64(vectors[u, f])
    for at in range(span[2], span[3]):
        p = entries[at]
        high = score(vectors, u, rows, p)
        push = 0.0
        for k in range(n_neg):
            e = weight / (1.0 + math.exp(high - scratch[0, k]))
            push += e
            scratch[1, k] += e
        for f in range(size):
            v, q = np.float64(vectors[u, f]), np.float64(rows[p, f])
            pull_items[p, f] += decay_pos * q - push * v
            pull_user[u, f] -= push * q
    for k in range(n_neg):
        n = entries[span[0] + k]
        pull = scratch[1, k]
        for f in range(size):
            v, q = np.float64(vectors[u, f]), np.float64(rows[n, f])
            pull_items[n, f] += decay_neg * q + pull * v
            pull_user[u, f] += pull * q


@njit(nogil=True, error_model="numpy", cache=True)
def add_blocks(
    vectors, user, rows, entries, spans, ridge, by_pairs, scratch, pull_user, pull_items
):
    """`add_block` for some blocks, one after the other."""
    for k in range(spans.shape[0]):
        add_block(
            vectors, user[k], rows, entries, spans[k], ridge, by_pairs, scratch, pull_user,
            pull_items,
        )  # fmt: skip


@njit(nogil=True, error_model="numpy", cache=True)
def move(table, row, gradient, rate):
    """row −= rate · gradient, where the gradient has been rounded to single precision."""
    for f in range(table.shape[1]):
        table[row, f] = np.float32(np.float64(table[row, f]) - rate * np.float64(gradient[f]))


@njit(nogil=True, error_model="numpy", cache=True)
def move_rows(table, row, gradient, rate):
    """`move` for distinct rows."""
    for k in range(row.shape[0]):
        move(table, row[k], gradient[k], rate)


@njit(nogil=True, error_model="numpy", cache=True)
def _take(touched, count, seen, row):
    """Notes a row that the present round has not met; how many it has met."""
    if seen[row]:
        return count
    seen[row] = True
    touched[count] = row
    return count + 1


@njit(nogil=True, error_model="numpy", cache=True)
def _apply(table, pull, touched, count, seen, rate, gradient):
    """Moves the touched rows and leaves `pull` and `seen` as zeros."""
    for t in range(count):
        row = touched[t]
        for f in range(table.shape[1]):
            gradient[f] = np.float32(pull[row, f])
            pull[row, f] = 0.0
        seen[row] = False
        move(table, row, gradient, rate)


@njit(nogil=True, error_model="numpy", cache=True)
def learn(
    vectors, rows, user, entries, spans, rounds, rate, ridge, by_pairs, scratch, pull_user,
    pull_items, seen_user, seen_item,
):  # fmt: skip
    """Round r takes one step on the blocks rounds[r]..rounds[r + 1], all at the rows as they were
    before it. Returns how many rows were moved, of users and of items. The tables `pull_…` and
    `seen_…` are zeros and are left so."""
    touched_user = np.empty(vectors.shape[0], dtype=np.int64)
    touched_item = np.empty(rows.shape[0], dtype=np.int64)
    gradient = np.empty(vectors.shape[1], dtype=np.float32)
    moved_users = moved_items = 0
    for r in range(rounds.shape[0] - 1):
        users = items = 0
        for k in range(rounds[r], rounds[r + 1]):
            span = spans[k]
            add_block(
                vectors, user[k], rows, entries, span, ridge, by_pairs, scratch, pull_user,
                pull_items,
            )  # fmt: skip
            users = _take(touched_user, users, seen_user, user[k])
            for at in range(span[0], span[1]):
                items = _take(touched_item, items, seen_item, entries[at])
            for at in range(span[2], span[3]):
                items = _take(touched_item, items, seen_item, entries[at])
        _apply(vectors, pull_user, touched_user, users, seen_user, rate, gradient)
        _apply(rows, pull_items, touched_item, items, seen_item, rate, gradient)
        moved_users += users
        moved_items += items
    return moved_users, moved_items


@njit(nogil=True, error_model="numpy", cache=True)
def learn_momentum(
    vectors, rows, user, entries, spans, rate, momentum, ridge, by_pairs, scratch, pull_user,
    pull_items, seen_item,
):  # fmt: skip
    """A step per block along m ← momentum·m + (1 − momentum)·gradient, for the user's row and every
    item of the user's blocks so far; m starts at 0 with each user. The blocks of a user stand
    together. `pull_…` and `seen_item` are zeros and are left so."""
    size = vectors.shape[1]
    touched = np.empty(rows.shape[0], dtype=np.int64)
    speed = np.zeros(rows.shape, dtype=np.float32)
    own = np.zeros(size, dtype=np.float32)
    keep, fresh = np.float32(momentum), np.float32(1.0 - momentum)
    items = 0
    for k in range(spans.shape[0]):
        u, span = user[k], spans[k]
        add_block(
            vectors, u, rows, entries, span, ridge, by_pairs, scratch, pull_user, pull_items
        )  # fmt: skip
        for at in range(span[0], span[1]):
            items = _take(touched, items, seen_item, entries[at])
        for at in range(span[2], span[3]):
            items = _take(touched, items, seen_item, entries[at])
        for f in range(size):
            own[f] = keep * own[f] + fresh * np.float32(pull_user[u, f])
            pull_user[u, f] = 0.0
        move(vectors, u, own, rate)
        for t in range(items):
            i = touched[t]
            for f in range(size):
                speed[i, f] = keep * speed[i, f] + fresh * np.float32(pull_items[i, f])
                pull_items[i, f] = 0.0
            move(rows, i, speed[i], rate)
        if k + 1 == spans.shape[0] or user[k + 1] != u:
            own[:] = 0.0
            for t in range(items):
                speed[touched[t]] = 0.0
                seen_item[touched[t]] = False
            items = 0


@njit(nogil=True, error_model="numpy", cache=True)
def losses(vectors, rows, user, entries, spans, out):
    """The ranking loss of every block, without the ridge."""
    for k in range(spans.shape[0]):
        span, u, total = spans[k], user[k], 0.0
        for p in range(span[2], span[3]):
            high = score(vectors, u, rows, entries[p])
            for n in range(span[0], span[1]):
                w = high - score(vectors, u, rows, entries[n])
                # ln(1 + e^−w) without a power that could overflow.
                total += max(-w, 0.0) + math.log1p(math.exp(-abs(w)))
        out[k] = total / ((span[1] - span[0]) * (span[3] - span[2]))


@njit(nogil=True, cache=True)
def stable_order(keys, bins):
    """The order that sorts keys in [0, bins), equal ones as they come; in linear time."""
    start = np.zeros(bins + 1, dtype=np.int64)
    for k in range(keys.shape[0]):
        start[keys[k] + 1] += 1
    for b in range(bins):
        start[b + 1] += start[b]
    order = np.empty(keys.shape[0], dtype=np.int64)
    for k in range(keys.shape[0]):
        order[start[keys[k]]] = k
        start[keys[k]] += 1
    return order


@njit(nogil=True, cache=True)
def cut_streams(order, user, item, positive, first, messages, pointer, holders, owners, by_user):
    """The blocks of every user's stream at every owner, by user, then owner, then time. `order` has
    the events user by user; event e has the messages first[e], first[e] + 1, ..., one for each of
    holders[pointer[item]:pointer[item + 1]]. Returns item numbers, and for every block its span,
    user, owner and end: twice the message that ends it, or later, where the stream ends it."""
    entries = np.empty(messages, dtype=np.int32)
    spans = np.empty((messages // 2, 4), dtype=np.int64)
    facts = np.empty((3, messages // 2), dtype=np.int64)
    number = np.empty(messages, dtype=np.int64)
    liked = np.empty(messages, dtype=np.bool_)
    start = np.empty(owners + 1, dtype=np.int64)
    fill = np.empty(owners, dtype=np.int64)
    blocks = base = low = 0
    while low < order.shape[0]:
        u, high = user[order[low]], low
        start[:] = 0
        while high < order.shape[0] and user[order[high]] == u:
            i = item[order[high]]
            for h in range(pointer[i], pointer[i + 1]):
                start[holders[h] + 1] += 1
            high += 1
        for o in range(owners):
            start[o + 1] += start[o]
            fill[o] = start[o]
        final = 0
        for k in range(low, high):
            e = order[k]
            i = item[e]
            for h in range(pointer[i], pointer[i + 1]):
                final = first[e] + h - pointer[i]
                w = fill[holders[h]]
                fill[holders[h]] += 1
                entries[base + w], liked[w], number[w] = i, positive[e], final
        for o in range(owners):
            a, end = start[o], start[o + 1]
            while a < end and liked[a]:
                a += 1
            while a < end:
                b = a
                while b < end and not liked[b]:
                    b += 1
                c = b
                while c < end and liked[c]:
                    c += 1
                if c > b:
                    spans[blocks, 0], spans[blocks, 1] = base + a, base + b
                    spans[blocks, 2], spans[blocks, 3] = base + b, base + c
                    behind = 2 * final + 1 if by_user else 2 * messages + o
                    facts[0, blocks], facts[1, blocks] = u, o
                    facts[2, blocks] = 2 * number[c] if c < end else behind
                    blocks += 1
                a = c
        base += start[owners]
        low = high
    return entries, spans[:blocks], facts[0, :blocks], facts[1, :blocks], facts[2, :blocks]
