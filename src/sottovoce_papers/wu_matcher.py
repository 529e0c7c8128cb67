"""The third party of FedGNN: it tells devices the embeddings of others who have an item too.

It is given keyed tokens of items (`wu_graph.py`) and embeddings of users, and does not
have the key. What it promises: it answers with embeddings alone, at most so many per item, in an
order that says nothing of whose they are.

What it does not promise, and cannot: it must be trusted with a good deal. From what it is given it

- counts how many devices have each token, and so names the tokens of popular items where it knows
  how popular items are (`wu_item_sets.py`, `by_frequency`);
- counts how many items any two devices have in common (`shared`);
- names every token as soon as one device gives it the key, which all devices have;
- holds everybody's embedding, from which attributes may be guessed.

A device that learns another's embedding may guess from it as well, and sees which neighbours of two
of its items are the same person, as their embeddings are equal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import ConfigError, MessageError
from sottovoce.rng import Streams
from sottovoce_papers.wu_graph import Neighbours

MOST = 100
"""Neighbours per item, as in the paper."""
Ints = NDArray[np.int64]


class Matcher:
    """Holds the newest submission of every device. Devices are rows of it."""

    __slots__ = (
        "_embeddings",
        "_first",
        "_indptr",
        "_members",
        "_place",
        "_size",
        "_tokens",
        "most",
    )

    def __init__(self, most: int = MOST) -> None:
        if most < 0:
            raise ConfigError(f"most must not be below 0, not {most}")
        self.most = most
        self._forget()

    def __repr__(self) -> str:
        return f"<Matcher of {len(self._embeddings):,} devices, redacted>"

    def _forget(self) -> None:
        none = np.zeros(0, dtype=np.int64)
        self._tokens: NDArray[np.uint64] = none.astype(np.uint64)
        self._indptr: Ints = np.zeros(1, dtype=np.int64)
        self._embeddings: NDArray[np.float32] = np.zeros((0, 0), dtype=np.float32)
        # Devices in order of tokens, and by chance within a token.
        self._members: Ints = none
        # Of each entry of the submission: where its token's members begin, how many they are, and
        # which of them the entry's own device is.
        self._first: Ints = none
        self._size: Ints = none
        self._place: Ints = none

    def submit(
        self,
        tokens: NDArray[np.uint64],
        indptr: Ints,
        embeddings: NDArray[np.float32],
        rng: Streams,
    ) -> None:
        """Device c sends `tokens[indptr[c]:indptr[c + 1]]` and a row of `embeddings`; what was
        there before is forgotten, but not where the submission cannot be read."""
        device = _devices(tokens, indptr, embeddings)
        chance = rng.words(np.arange(len(tokens), dtype=np.int64), 1)[:, 0]
        order = np.lexsort((chance, tokens))
        first, size = _runs(tokens[order])
        begins = np.repeat(first, size)
        self._tokens, self._indptr = tokens.copy(), indptr.copy()
        self._embeddings = embeddings.astype(np.float32)
        self._members = device[order]
        self._first, self._size, self._place = (np.empty_like(device) for _ in range(3))
        self._first[order] = begins
        self._size[order] = np.repeat(size, size)
        self._place[order] = np.arange(len(order)) - begins

    def answer(self, devices: Ints) -> Neighbours:
        """For these devices in this order: of each token they sent, those who sent it too, at most
        `most`. The same until the next submission."""
        if len(devices) and not 0 <= devices.min() <= devices.max() < len(self._embeddings):
            raise MessageError("a device asks that has not submitted anything")
        entries = _ranges(self._indptr[devices], self._indptr[devices + 1])
        counts = np.minimum(self._size[entries] - 1, self.most)
        # The next ones after her in a circle. The circle's order is by chance, so that these are
        # as good as any draw from all others.
        step = _ranges(np.ones_like(counts), counts + 1)
        entry = np.repeat(entries, counts)
        at = self._first[entry] + (self._place[entry] + step) % self._size[entry]
        return Neighbours(counts, self._embeddings[self._members[at]])

    # --- what it can still do --------------------------------------------------------------------

    def counted(self) -> tuple[NDArray[np.uint64], Ints]:
        """Every token it was given, ascending, and how many devices have it."""
        tokens, counts = np.unique(self._tokens, return_counts=True)
        return tokens, counts.astype(np.int64)

    def shared(self, one: int, other: int) -> int:
        """How many items two devices have in common."""
        if not (0 <= one < len(self._embeddings) and 0 <= other < len(self._embeddings)):
            raise MessageError("there is no such device")
        first, second = (self._tokens[self._indptr[d] : self._indptr[d + 1]] for d in (one, other))
        return len(np.intersect1d(first, second))


def _devices(
    tokens: NDArray[np.uint64], indptr: Ints, embeddings: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Whose each token is; raises where the submission cannot be read."""
    if tokens.ndim != 1 or indptr.ndim != 1 or embeddings.ndim != 2 or not len(indptr):
        raise MessageError("tokens are a list, embeddings a table with a row per device")
    counts = np.diff(indptr)
    if len(counts) and counts.min() < 0:
        raise MessageError("a device cannot send fewer than no tokens")
    if len(counts) != len(embeddings) or indptr[0] != 0 or indptr[-1] != len(tokens):
        raise MessageError("every device must send an embedding, and every token be a device's")
    if not np.isfinite(embeddings).all():
        raise MessageError("a device sent an embedding that is not finite")
    device = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    order = np.lexsort((tokens, device))
    same = tokens[order][1:] == tokens[order][:-1]
    if bool((same & (device[order][1:] == device[order][:-1])).any()):
        raise MessageError("a device sent a token twice")
    return device


def _runs(values: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Where each run of equal values begins, and how long it is."""
    edge = np.ones(len(values), dtype=np.bool_)
    edge[1:] = values[1:] != values[:-1]
    first = np.flatnonzero(edge)
    return first, np.diff(np.append(first, len(values)))


def _ranges(starts: Ints, ends: Ints) -> Ints:
    """start, …, end − 1 of each pair, one after the other."""
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    every: Ints = np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
    return every
