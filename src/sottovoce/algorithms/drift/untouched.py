"""`negatives = "untouched"`, a variant of ours: owners also compare with what nobody touched.

As printed, a positive is compared with items that the same user touched and did not like. Nothing
that is learnt so places an item which she has not touched, and these are what a catalogue is ranked
for. Here every positive is a block of its own. Its negatives are her dislikes since the positive
before it, and beside them a few items that its owner draws among those it holds and she has not
touched, as far as the owner knows: what she told it so far, in earlier passes, too.

What is drawn for a positive depends on the owner's secret, the user and the item alone, and not on
the pass: in every pass the same items come again, less those that she has touched since. Were they
drawn anew, those that come again would be the touched ones. To whoever does not know the secret a
drawn item looks like one that she disliked.

One kernel draws, for an owner that gets a message and for `plan`, which has all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import uint64
from numpy.typing import NDArray

from sottovoce.algorithms.drift.blocks import (
    BEGIN,
    DRAWN,
    END,
    NEGATIVES,
    OWNER,
    POSITIVES,
    USER,
    Events,
    Ints,
)
from sottovoce.algorithms.drift.messages import OwnerTable
from sottovoce.compiled import njit
from sottovoce.rng import Streams, below, draw

# Kernels carry no types (numba infers them); their callers do.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg"

NEVER = np.int64(np.iinfo(np.int64).max)
"""When an item was touched that was not."""


@njit(nogil=True, cache=True)
def draw_untouched(key, items, touched, now, drawn):
    """Fills `drawn` with different items that were touched after `now` or never; there must be
    enough of them."""
    number = found = 0
    while found < drawn.shape[0]:
        item = items[below(draw(key, number) >> uint64(32), items.shape[0])]
        number += 1
        if touched[item] <= now:
            continue
        drawn[found] = item
        new = 1
        for k in range(found):
            if drawn[k] == item:  # an item that counts twice would be known for a drawn one
                new = 0
        found += new


@njit(nogil=True, cache=True)
def cut_single_positives(
    user, owner, item, event, positive, keys, items, first, touched, many, known, facts, entries
):  # fmt: skip
    """The blocks of messages by user, owner and event, in this order, with the facts of `replay`
    and how many were drawn; returns how many blocks and entries there are. What owner o holds is
    items[first[o]:first[o + 1]]; `touched` is NEVER for all, and is left so. With `known`, owners
    know from the start what she will have touched, as after a whole pass."""
    blocks = at = low = 0
    n = user.shape[0]
    while low < n:
        high, distinct = low, 0
        while high < n and user[high] == user[low] and owner[high] == owner[low]:
            if touched[item[high]] == NEVER:
                touched[item[high]] = event[high]
                distinct += 1
            high += 1
        held = items[first[owner[low]] : first[owner[low] + 1]]
        begin, so_far = low, 0
        for m in range(low, high):
            if touched[item[m]] == event[m]:
                so_far += 1
            if not positive[m]:
                continue
            left = held.shape[0] - (distinct if known else so_far)
            drawn = min(many, left)
            if m - begin + drawn:
                facts[blocks, USER], facts[blocks, OWNER] = user[m], owner[m]
                facts[blocks, END], facts[blocks, BEGIN] = 2 * event[m], at
                facts[blocks, NEGATIVES], facts[blocks, POSITIVES] = m - begin + drawn, 1
                facts[blocks, DRAWN] = drawn
                blocks += 1
                for k in range(begin, m):
                    entries[at] = item[k]
                    at += 1
                now = NEVER - 1 if known else event[m]
                draw_untouched(keys[m], held, touched, now, entries[at : at + drawn])
                entries[at + drawn] = item[m]
                at += drawn + 1
            begin = m + 1
        for m in range(low, high):
            touched[item[m]] = NEVER
        low = high
    return blocks, at


class Drawing(NamedTuple):
    """How owners draw in a pass."""

    rng: Streams
    """Of all owners; `of_owner` is one's own."""
    many: int
    """Items for a positive."""
    known: bool
    """Whether there was a pass before, so that owners know all that is touched in this one."""


def of_owner(rng: Streams, owner: int) -> Streams:
    """What an owner draws from in a simulation. A real one has a secret of its own."""
    return rng.child("untouched", owner)


def draw_for(
    rng: Streams, user: int, item: int, items: NDArray[np.int64], touched: set[int], many: int
) -> tuple[int, ...]:
    """What an owner of these items (ascending) draws for a positive of a user who has touched
    those; all that is left where that is not more than `many`."""
    when = np.full(int(items[-1]) + 1, NEVER)
    when[[i for i in touched if i < len(when)]] = 0
    left = int((when[items] == NEVER).sum())
    key = rng.paired_keys(np.array([user]), np.array([item]))[0]
    drawn = np.empty(min(many, left), dtype=np.int32)
    draw_untouched(key, items, when, np.int64(0), drawn)
    return tuple(drawn.tolist())


def cut_with_untouched(
    events: Events, table: OwnerTable, pointer: Ints, told: Ints, drawing: Drawing
) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    """The blocks of all users at all owners, by user, then owner, then time, as `replay` needs
    them; of event e the owners told[pointer[e]:pointer[e + 1]] are told."""
    event = np.repeat(np.arange(len(events), dtype=np.int64), np.diff(pointer))
    order = np.lexsort((event, told, events.user[event]))
    event, owner = event[order], told[order]
    user, item, positive = events.user[event], events.item[event], events.positive[event]
    numbers = table.all_owners()
    held = [np.array(sorted(table.items(number)), dtype=np.int64) for number in numbers]
    first = np.cumsum([0, *map(len, held)], dtype=np.int64)
    keys = np.empty(len(event), dtype=np.uint64)
    for place, number in enumerate(numbers):
        mine = owner == place
        keys[mine] = of_owner(drawing.rng, number).paired_keys(
            user[mine], item[mine].astype(np.int64)
        )
    most = max((int(h[-1]) for h in held if len(h)), default=-1) + 1
    positives = int(positive.sum())
    facts = np.empty((positives, 7), dtype=np.int32)
    entries = np.empty(len(event) + drawing.many * positives, dtype=np.int32)
    blocks, size = cut_single_positives(
        user, owner, item, event, positive, keys, np.concatenate([*held, first[:0]]), first,
        np.full(most, NEVER), drawing.many, drawing.known, facts, entries,
    )  # fmt: skip
    return facts[:blocks], entries[:size], len(numbers)
