"""The compiled half of drift_aggregated.py: owners that keep users' vectors and send sums."""

# Kernels carry no types (numba infers them); their caller in drift_aggregated.py does.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

from __future__ import annotations

import numpy as np
from numba import njit

from sottovoce.algorithms.drift_kernels import add_block, move, width


@njit(nogil=True, error_model="numpy", cache=True)
def _touch(slot, user, enough, count, people):
    """Notes that a user touched what is in a slot; nothing is noted beyond `enough` people."""
    n = count[slot]
    if n >= enough:
        return
    for k in range(n):
        if people[slot, k] == user:
            return
    people[slot, n] = user
    count[slot] = n + 1


@njit(nogil=True, error_model="numpy", cache=True)
def work_through(
    vectors, seat, local, rows, base, user, entries, spans, low, high, rate, ridge, by_pairs,
    scratch, waiting, enough, count, people, pull_user, pull_items, touched, seen, lanes,
):  # fmt: skip
    """One owner's turn: a step for each of the blocks low..high, on the owner's vectors (`seat` is
    the row of each block's user) and on its own copy of the rows. What is known of item i at this
    owner is in slot base + i. Returns how many items were touched."""
    size = width(vectors, lanes)
    gradient = np.empty(size, dtype=np.float32)
    items = 0
    for b in range(low, high):
        span, v = spans[b], seat[b]
        for side in range(2):
            for at in range(span[2 * side], span[2 * side + 1]):
                i = entries[at]
                if not seen[i]:
                    seen[i] = True
                    touched[items] = i
                    items += 1
                    for f in range(size):
                        local[i, f] = np.float32(
                            np.float64(rows[i, f]) - rate * waiting[base + i, f]
                        )
                for f in range(size):
                    pull_items[i, f] = 0.0
                _touch(base + i, user[b], enough, count, people)
        pull_user[0, :] = 0.0
        add_block(
            vectors, v, local, entries, span, ridge, by_pairs, scratch, pull_user, 0, pull_items,
            lanes,
        )  # fmt: skip
        for f in range(size):
            gradient[f] = np.float32(pull_user[0, f])
        move(vectors, v, gradient, rate, lanes)
        for side in range(2):
            for at in range(span[2 * side], span[2 * side + 1]):
                i = entries[at]
                for f in range(size):
                    gradient[f] = np.float32(pull_items[i, f])
                    pull_items[i, f] = 0.0
                    waiting[base + i, f] += np.float64(gradient[f])
                move(local, i, gradient, rate, lanes)
    return items


@njit(nogil=True, error_model="numpy", cache=True)
def _send(waiting, slot, gradient, count, lanes):
    """Takes what waits in a slot, in single precision, and empties it."""
    for f in range(width(waiting, lanes)):
        gradient[f] = np.float32(waiting[slot, f])
        waiting[slot, f] = 0.0
    count[slot] = 0


@njit(nogil=True, error_model="numpy", cache=True)
def learn(
    vectors, rows, user, seat, entries, spans, updates, rounds, owner, rate, ridge, by_pairs,
    scratch, waiting, enough, count, people, published, lanes,
):  # fmt: skip
    """An epoch: update k is the turn of owner[k], the updates rounds[r]..rounds[r + 1] start from
    the same rows. Returns how many rows were sent that were not zeros, and notes their items in
    `published`."""
    n_items, size = rows.shape
    local = np.empty_like(rows)
    pull_user, pull_items = np.zeros((1, size)), np.zeros((n_items, size))
    touched, seen = np.empty(n_items, dtype=np.int64), np.zeros(n_items, dtype=np.bool_)
    gradient = np.empty(size, dtype=np.float32)
    most = 0
    for r in range(rounds.shape[0] - 1):
        most = max(most, rounds[r + 1] - rounds[r])
    sent_items = np.empty(most * n_items if most > 1 else 0, dtype=np.int64)
    sent_rows = np.empty((sent_items.shape[0], size), dtype=np.float32)
    total = 0
    for r in range(rounds.shape[0] - 1):
        kept = 0
        alone = rounds[r + 1] - rounds[r] == 1
        for k in range(rounds[r], rounds[r + 1]):
            base = owner[k] * n_items
            items = work_through(
                vectors, seat, local, rows, base, user, entries, spans, updates[k],
                updates[k + 1], rate, ridge, by_pairs, scratch, waiting, enough, count, people,
                pull_user, pull_items, touched, seen, lanes,
            )  # fmt: skip
            for t in range(items):
                i = touched[t]
                seen[i] = False
                if count[base + i] < enough:
                    continue
                total += 1
                published[i] = True
                _send(waiting, base + i, gradient, count, lanes)
                if alone:
                    move(rows, i, gradient, rate, lanes)
                else:
                    sent_items[kept] = i
                    sent_rows[kept] = gradient
                    kept += 1
        for t in range(kept):
            move(rows, sent_items[t], sent_rows[t], rate, lanes)
    return total
