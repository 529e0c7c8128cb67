"""The compiled half of blocks.py: the gradient of a block's loss, and the loops around it.

Gradients are added up in double precision in the order of the blocks, rounded once to single
precision, as they travel, and then subtracted. So a row moves by the same bits whether a loop here
moves it or a data owner and the orchestrator do so by messages.
"""

# Kernels carry no types (numba infers them); their callers in blocks.py do.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

from __future__ import annotations

import math

import numpy as np
from numba import njit

from sottovoce.algorithms.lanes import prefetch

AHEAD = 8
"""Blocks before its turn a user's row is fetched: rows of many users are in no near cache."""


@njit(nogil=True, error_model="numpy", cache=True)
def width(table, lanes):
    """The length of a row. Where there are `lanes`, a tuple as long as a row, it is known when the
    kernel is compiled, and loops of a few steps cost half as much."""
    if lanes is None:
        return table.shape[1]
    return len(lanes)


@njit(nogil=True, error_model="numpy", cache=True)
def score(vectors, u, rows, i, lanes):
    total = 0.0
    for f in range(width(vectors, lanes)):
        total += np.float64(vectors[u, f]) * np.float64(rows[i, f])
    return total


@njit(nogil=True, error_model="numpy", cache=True)
def add_block(
    vectors, u, rows, entries, span, ridge, by_pairs, scratch, pull_user, own, pull_items, lanes
):  # fmt: skip
    """Adds the gradient of one block's loss to row `own` of `pull_user` and to the rows of the
    block's items in `pull_items`. `scratch` is [2, the longest η]."""
    n_neg, n_pos = span[1] - span[0], span[3] - span[2]
    decay_neg = 2.0 * ridge / n_neg if by_pairs else 2.0 * ridge
    decay_pos = 2.0 * ridge / n_pos if by_pairs else 2.0 * ridge
    weight = 1.0 / (n_neg * n_pos)
    size = width(vectors, lanes)
    for k in range(n_neg):
        scratch[0, k] = score(vectors, u, rows, entries[span[0] + k], lanes)
        scratch[1, k] = 0.0
    for f in range(size):
        pull_user[own, f] += 2.0 * ridge * np.float64(vectors[u, f])
    for at in range(span[2], span[3]):
        p = entries[at]
        high = score(vectors, u, rows, p, lanes)
        push = 0.0
        for k in range(n_neg):
            e = weight / (1.0 + math.exp(high - scratch[0, k]))
            push += e
            scratch[1, k] += e
        for f in range(size):
            v, q = np.float64(vectors[u, f]), np.float64(rows[p, f])
            pull_items[p, f] += decay_pos * q - push * v
            pull_user[own, f] -= push * q
    for k in range(n_neg):
        n = entries[span[0] + k]
        pull = scratch[1, k]
        for f in range(size):
            v, q = np.float64(vectors[u, f]), np.float64(rows[n, f])
            pull_items[n, f] += decay_neg * q + pull * v
            pull_user[own, f] += pull * q


@njit(nogil=True, error_model="numpy", cache=True)
def add_blocks(
    vectors, user, rows, entries, spans, ridge, by_pairs, scratch, pull_user, pull_items, lanes
):  # fmt: skip
    """`add_block` for some blocks, one after the other; `pull_user` has a row for every user."""
    for k in range(spans.shape[0]):
        add_block(
            vectors, user[k], rows, entries, spans[k], ridge, by_pairs, scratch, pull_user,
            user[k], pull_items, lanes,
        )  # fmt: skip


@njit(nogil=True, error_model="numpy", cache=True)
def move(table, row, gradient, rate, lanes):
    """row −= rate · gradient, where the gradient has been rounded to single precision."""
    for f in range(width(table, lanes)):
        table[row, f] = np.float32(np.float64(table[row, f]) - rate * np.float64(gradient[f]))


@njit(nogil=True, error_model="numpy", cache=True)
def move_rows(table, row, gradient, rate, lanes=None):
    """`move` for one row after the other."""
    for k in range(row.shape[0]):
        move(table, row[k], gradient[k], rate, lanes)


@njit(nogil=True, error_model="numpy", cache=True)
def _take(touched, count, seen, row):
    """Notes a row that the present round has not met; how many it has met."""
    if seen[row]:
        return count
    seen[row] = True
    touched[count] = row
    return count + 1


@njit(nogil=True, error_model="numpy", cache=True)
def _apply(table, pull, touched, count, seen, rate, gradient, lanes):
    """Moves the touched rows and leaves `pull` and `seen` as zeros."""
    for t in range(count):
        row = touched[t]
        for f in range(width(table, lanes)):
            gradient[f] = np.float32(pull[row, f])
            pull[row, f] = 0.0
        seen[row] = False
        move(table, row, gradient, rate, lanes)


@njit(nogil=True, error_model="numpy", cache=True)
def _add_update(
    vectors, rows, user, entries, spans, low, high, ridge, by_pairs, scratch, who, pull_user,
    pull_items, touched, seen, lanes,
):  # fmt: skip
    """The gradients of the blocks low..high, added up; how many users and items they touch. Users
    need no table of everybody: their gradients are the first rows of `pull_user`, and `who` has
    their numbers. Nobody is looked up there as long as the blocks are in the order of users."""
    users = items = 0
    ascending = True
    for k in range(low, high):
        span, own = spans[k], users
        if users and user[k] == who[users - 1]:
            own = users - 1
        elif users and (user[k] < who[users - 1] or not ascending):
            ascending, own = False, 0
            while own < users and who[own] != user[k]:
                own += 1
        if own == users:
            who[users] = user[k]
            for f in range(width(vectors, lanes)):
                pull_user[users, f] = 0.0
            users += 1
        add_block(
            vectors, user[k], rows, entries, span, ridge, by_pairs, scratch, pull_user, own,
            pull_items, lanes,
        )  # fmt: skip
        for at in range(span[0], span[1]):
            items = _take(touched, items, seen, entries[at])
        for at in range(span[2], span[3]):
            items = _take(touched, items, seen, entries[at])
    return users, items


@njit(nogil=True, error_model="numpy", cache=True)
def _widest(edges):
    """The most that lies between two edges."""
    most = 0
    for k in range(edges.shape[0] - 1):
        most = max(most, edges[k + 1] - edges[k])
    return most


@njit(nogil=True, error_model="numpy", cache=True)
def learn(
    vectors, rows, user, entries, spans, updates, rate, ridge, by_pairs, scratch, pull_items,
    seen, lanes,
):  # fmt: skip
    """Update k takes one step on the blocks updates[k]..updates[k + 1], all at the rows as they
    were before it. Returns how many rows were moved, of users and of items. `pull_items` and
    `seen` are zeros and are left so."""
    size, widest = width(vectors, lanes), _widest(updates)
    who = np.empty(widest, dtype=np.int64)
    pull_user = np.empty((widest, size))
    touched = np.empty(rows.shape[0], dtype=np.int64)
    gradient = np.empty(size, dtype=np.float32)
    moved_users = moved_items = 0
    for k in range(updates.shape[0] - 1):
        for block in range(updates[k] + AHEAD, min(updates[k + 1] + AHEAD, user.shape[0])):
            prefetch(vectors, user[block], 1)
        users, items = _add_update(
            vectors, rows, user, entries, spans, updates[k], updates[k + 1], ridge, by_pairs,
            scratch, who, pull_user, pull_items, touched, seen, lanes,
        )  # fmt: skip
        for t in range(users):
            for f in range(size):
                gradient[f] = np.float32(pull_user[t, f])
            move(vectors, who[t], gradient, rate, lanes)
        _apply(rows, pull_items, touched, items, seen, rate, gradient, lanes)
        moved_users += users
        moved_items += items
    return moved_users, moved_items


@njit(nogil=True, error_model="numpy", cache=True)
def _keep(pull, touched, count, seen, numbers, gradients, at, lanes):
    """Writes the touched rows' gradients down from place `at` on, and leaves `pull` and `seen` as
    zeros."""
    for t in range(count):
        row = touched[t]
        numbers[at + t] = row
        for f in range(width(pull, lanes)):
            gradients[at + t, f] = np.float32(pull[row, f])
            pull[row, f] = 0.0
        seen[row] = False


@njit(nogil=True, error_model="numpy", cache=True)
def learn_together(
    vectors, rows, user, entries, spans, updates, rounds, rate, ridge, by_pairs, scratch,
    pull_items, seen, lanes,
):  # fmt: skip
    """As `learn`, but the updates rounds[r]..rounds[r + 1] all start from the same rows; then they
    are applied, one after the other."""
    most_blocks = most_entries = 0
    for r in range(rounds.shape[0] - 1):
        low, high = updates[rounds[r]], updates[rounds[r + 1]]
        found = 0
        for k in range(low, high):
            found += spans[k, 1] - spans[k, 0] + spans[k, 3] - spans[k, 2]
        most_blocks, most_entries = max(most_blocks, high - low), max(most_entries, found)
    size, widest = width(vectors, lanes), _widest(updates)
    who = np.empty(widest, dtype=np.int64)
    pull_user = np.empty((widest, size))
    user_rows = np.empty(most_blocks, dtype=np.int64)
    user_pull = np.empty((most_blocks, size), dtype=np.float32)
    item_rows = np.empty(most_entries, dtype=np.int64)
    item_pull = np.empty((most_entries, size), dtype=np.float32)
    touched = np.empty(rows.shape[0], dtype=np.int64)
    moved_users = moved_items = 0
    for r in range(rounds.shape[0] - 1):
        users = items = 0
        for k in range(rounds[r], rounds[r + 1]):
            more_users, more_items = _add_update(
                vectors, rows, user, entries, spans, updates[k], updates[k + 1], ridge, by_pairs,
                scratch, who, pull_user, pull_items, touched, seen, lanes,
            )  # fmt: skip
            for t in range(more_users):
                user_rows[users + t] = who[t]
                for f in range(size):
                    user_pull[users + t, f] = np.float32(pull_user[t, f])
            _keep(pull_items, touched, more_items, seen, item_rows, item_pull, items, lanes)
            users += more_users
            items += more_items
        move_rows(vectors, user_rows[:users], user_pull, rate, lanes)
        move_rows(rows, item_rows[:items], item_pull, rate, lanes)
        moved_users += users
        moved_items += items
    return moved_users, moved_items


@njit(nogil=True, error_model="numpy", cache=True)
def learn_momentum(
    vectors, rows, user, entries, spans, rate, momentum, ridge, by_pairs, scratch, pull_items,
    seen_item, lanes,
):  # fmt: skip
    """A step per block along m ← momentum·m + (1 − momentum)·gradient, for the user's row and every
    item of the user's blocks so far; m starts at 0 with each user. The blocks of a user stand
    together. `pull_items` and `seen_item` are zeros and are left so."""
    size = width(vectors, lanes)
    touched = np.empty(rows.shape[0], dtype=np.int64)
    speed = np.zeros(rows.shape, dtype=np.float32)
    own, pull_user = np.zeros(size, dtype=np.float32), np.zeros((1, size))
    keep, fresh = np.float32(momentum), np.float32(1.0 - momentum)
    items = 0
    for k in range(spans.shape[0]):
        u, span = user[k], spans[k]
        add_block(
            vectors, u, rows, entries, span, ridge, by_pairs, scratch, pull_user, 0, pull_items,
            lanes,
        )  # fmt: skip
        for at in range(span[0], span[1]):
            items = _take(touched, items, seen_item, entries[at])
        for at in range(span[2], span[3]):
            items = _take(touched, items, seen_item, entries[at])
        for f in range(size):
            own[f] = keep * own[f] + fresh * np.float32(pull_user[0, f])
            pull_user[0, f] = 0.0
        move(vectors, u, own, rate, lanes)
        for t in range(items):
            i = touched[t]
            for f in range(size):
                speed[i, f] = keep * speed[i, f] + fresh * np.float32(pull_items[i, f])
                pull_items[i, f] = 0.0
            move(rows, i, speed[i], rate, lanes)
        if k + 1 == spans.shape[0] or user[k + 1] != u:
            own[:] = 0.0
            for t in range(items):
                speed[touched[t]] = 0.0
                seen_item[touched[t]] = False
            items = 0


@njit(nogil=True, error_model="numpy", cache=True)
def losses(vectors, rows, user, entries, spans, out, lanes):
    """The ranking loss of every block, without the ridge."""
    for k in range(spans.shape[0]):
        span, u, total = spans[k], user[k], 0.0
        for p in range(span[2], span[3]):
            high = score(vectors, u, rows, entries[p], lanes)
            for n in range(span[0], span[1]):
                w = high - score(vectors, u, rows, entries[n], lanes)
                # ln(1 + e^−w) without a power that could overflow.
                total += max(-w, 0.0) + math.log1p(math.exp(-abs(w)))
        out[k] = total / ((span[1] - span[0]) * (span[3] - span[2]))
