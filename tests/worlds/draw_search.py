"""The search that A13 is spared: of one coordinate of a shuffled batch, the words of the fast
generator by which it may have been drawn."""

import itertools

import numpy as np
from numba import njit, prange, uint64

from sottovoce.attacks.suite import a13_draws
from sottovoce.attacks.suite.a13_draws import CHECKS
from sottovoce.core.one_bit import scaled
from sottovoce.rng import GAMMA, mix

ROUGH = 1 << 15
ROUGH_SHIFT = np.uint64(64 - 15)
"""Stretches of words in which a search looks first whether a coordinate of the batch is near."""
unmix = njit(inline="always")(a13_draws.unmix)


def search(coordinate, present, within=None):
    """The words by which the fast generator may have drawn this coordinate: those after which it
    draws others of the batch, or, if there are none, before which it does. All words that give the
    coordinate are tried, or those `within` two numbers, the second one exclusive."""
    n = len(present)
    first, end = -(-(coordinate << 64) // n), -(-((coordinate + 1) << 64) // n)
    if within is not None:
        first, end = max(first, within[0]), min(end, within[1])
    parts, flags = 1024, np.packbits(present, bitorder="little")
    rough = np.zeros(ROUGH, dtype=np.bool_)  # small enough for the processor's nearest cache
    for place in np.flatnonzero(present).tolist():
        rough[place * ROUGH // n : -(-(place + 1) * ROUGH // n)] = True
    edges = [first + (end - first) * part // parts for part in range(parts + 1)]
    starts = np.array(edges[:-1], dtype=np.uint64)
    counts = np.array([b - a for a, b in itertools.pairwise(edges)], dtype=np.int64)
    for step in (int(GAMMA), (1 << 64) - int(GAMMA)):
        hits, found = _search(starts, counts, np.uint64(step), flags, rough, np.uint64(n))
        if hits.any():
            break
    return [int(word) for word in found[hits]]


@njit(parallel=True, nogil=True, cache=True)
def _search(starts, counts, step, present, rough, n):
    """Of each stretch of words the last one after which (by `step`) others of the batch are
    drawn."""
    hits = np.zeros(len(starts), dtype=np.bool_)
    found = np.zeros(len(starts), dtype=np.uint64)
    for part in prange(len(starts)):
        for k in range(counts[part]):
            word = starts[part] + uint64(k)
            state = unmix(word)
            if rough[mix(state + step) >> ROUGH_SHIFT] and _runs(state, step, present, n):
                hits[part], found[part] = True, word
    return hits, found


@njit(inline="always")
def _runs(state, step, present, n):
    """Whether the next draws are all in the batch."""
    for _ in range(CHECKS):
        state = state + step
        place = scaled(mix(state), n)
        if not (present[place >> uint64(3)] >> (place & uint64(7))) & 1:
            return False
    return True
