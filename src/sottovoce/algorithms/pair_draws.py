"""What a device draws: a pure function of its key and the number of the draw.

Draw t of a device takes the word `draw(key, t)` (rng.py). Its high half picks one of the device's
interactions, the positive. Its low half picks an item of the catalogue, the negative; while that is
one of the device's own, the word is mixed again. A second stream of words, the coins, decides which
positive updates leave. Other implementations (a GPU's) draw the same from the fast generator.
"""

# Kernels carry no types (numba infers them); their callers in factors.py do.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np
from numba import int32, int64, njit, uint64

from sottovoce.consent import ALWAYS
from sottovoce.errors import DataError
from sottovoce.rng import GAMMA, LOW32, below, draw, mix

_ALWAYS = np.uint64(ALWAYS)
WORTH_MARKING = 8
"""Interactions per draw up to which a set of them is marked rather than searched."""
SIEVE = 16
"""Bits per interaction of the sieve: 6 of 100 strangers slip through and are searched for."""


# --- sets of items as bits, and of a device's own ------------------------------------------------


@njit
def is_marked(bits, item):
    return (bits[item >> uint64(6)] >> (item & uint64(63))) & uint64(1) != uint64(0)


@njit
def mark(bits, item):
    bits[item >> uint64(6)] |= uint64(1) << (item & uint64(63))


@njit(inline="always")
def popcount(word):
    word = word - ((word >> uint64(1)) & uint64(0x5555555555555555))
    word = (word & uint64(0x3333333333333333)) + ((word >> uint64(2)) & uint64(0x3333333333333333))
    word = (word + (word >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return int64((word * uint64(0x0101010101010101)) >> uint64(56))


@njit
def count_distinct(negatives, triples, bits):
    """The number of distinct items. `bits` is a scratch set, empty before and after."""
    for t in range(triples):
        mark(bits, uint64(negatives[t]))
    distinct = 0
    for t in range(triples):
        word = uint64(negatives[t]) >> uint64(6)
        distinct += popcount(bits[word])
        bits[word] = uint64(0)
    return distinct


@njit
def holds(items, start, count, item):
    """Whether a device's ascending interactions hold this item; a search without branches."""
    first, left = uint64(start), uint64(count)
    while left > uint64(1):
        half = left >> uint64(1)
        first = first + half if uint64(items[first + half]) <= item else first
        left -= half
    return uint64(items[first]) == item


@njit(inline="always")
def hole(start, count, item):
    """The bit of the sieve for an item of the device whose interactions begin at `start`."""
    word = (uint64(item) * uint64(2654435761)) & uint64(0xFFFFFFFF)
    return uint64(start * SIEVE) + ((word * uint64(count * SIEVE)) >> uint64(32))


@njit(nogil=True, cache=True)
def fill_sieve(indptr, items, sieve):
    """SIEVE bits per interaction, in `sieve` (one byte holds eight), one of them set."""
    for row in range(indptr.shape[0] - 1):
        start = indptr[row]
        count = indptr[row + 1] - start
        for c in range(start, start + count):
            at = hole(start, count, items[c])
            sieve[at >> uint64(3)] |= np.uint8(uint64(1) << (at & uint64(7)))


@njit
def owns(items, start, count, item, sieve):
    """`holds`, with the sieve, where there is one, answering most questions."""
    if sieve.shape[0] > 0:
        at = hole(start, count, item)
        if (uint64(sieve[at >> uint64(3)]) >> (at & uint64(7))) & uint64(1) == uint64(0):
            return False
    return holds(items, start, count, item)


# --- draws ---------------------------------------------------------------------------------------


@njit
def checked(count, n_items):
    """The number of a device's positives, if it can draw both a positive and a negative."""
    if count < 1 or count >= n_items:
        raise DataError("a user with no item, or with every item, cannot learn from pairs")
    return count


@njit
def known(item, n_items):
    """The item, if the catalogue has it; what follows writes to its row unchecked."""
    if item < 0 or item >= n_items:
        raise DataError("an interaction names an item that the model does not have")
    return item


@njit
def draw_device(key, triples, bits, items, start, count, n_items, entries, negatives):
    """All draws of a device: which of its interactions is the positive, and a negative by
    rejection. The high half of a word draws the one, the low half the other; a rejected word is
    mixed again. `bits` is a scratch set over the catalogue, empty before and after; where draws are
    few, interactions are searched instead."""
    checked(count, n_items)
    known(items[start], n_items)
    known(items[start + count - 1], n_items)
    search = triples * WORTH_MARKING < count
    if not search:
        for c in range(start, start + count):
            mark(bits, uint64(items[c]))
    for t in range(triples):
        word = draw(key, t)
        entries[t] = start + int64(below(word >> uint64(32), count))
        negatives[t] = int32(below(word & LOW32, n_items))
    for t in range(triples):
        item = uint64(negatives[t])
        if holds(items, start, count, item) if search else is_marked(bits, item):
            word = draw(key, t)
            while holds(items, start, count, item) if search else is_marked(bits, item):
                word = mix(word + GAMMA)
                item = below(word & LOW32, n_items)
            negatives[t] = int32(item)
    if not search:
        for c in range(start, start + count):
            bits[uint64(items[c]) >> uint64(6)] = uint64(0)


@njit
def choose_targets(
    key, share, allowed, triples, items, start, count, entries, positives, targets, spare, seen
):
    """The positive item of each draw, the row its update is added to (`spare` where it stays at
    home), and the number of distinct positives that leave. `seen` is a scratch set of this
    device's interactions, empty before and after."""
    every = share >= _ALWAYS
    by_item = allowed.shape[0] > 0
    for t in range(triples):
        entry = entries[t]
        item = items[entry]
        positives[t] = item
        leaves = every or coin(key, t) < share
        if by_item:
            leaves = leaves and allowed[entry]
        targets[t] = item if leaves else spare
        place = uint64(entry - start)
        seen[place >> uint64(6)] |= uint64(leaves) << (place & uint64(63))
    distinct = 0
    for w in range((count + 63) >> 6):
        distinct += popcount(seen[w])
        seen[w] = uint64(0)
    return distinct


@njit(inline="always")
def coin(key, number):
    """32 bits that decide whether draw `number` sends its positive update."""
    return draw(key, number) >> uint64(32)
