"""UC-FedRec's chance: which items a client's steps learn from, and which units they leave out.

Draws are functions of (the round's stream, user, number of the draw), so they do not depend on who
else is in the cohort.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.data.interactions import Interactions
from sottovoce.rng import GAMMA, Streams, words_of

_GAMMA = int(GAMMA) - (1 << 64)
_M1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_M2 = 0x94D049BB133111EB - (1 << 64)


def user_keys(users: NDArray[np.int64], rng: Streams, place: torch.device) -> Tensor:
    """One key per user, as signed numbers: [n], or [n, 4] of secret streams."""
    return torch.from_numpy(np.ascontiguousarray(rng.keys(users)).view(np.int64)).to(place)


def words(keys: Tensor, draws: int, first: int = 0) -> Tensor:
    """Draws `first` to `first + draws` of each key, [len(keys), draws]: what `Streams.words` gives,
    as signed numbers."""
    if keys.dim() == 2:
        made = words_of(keys.cpu().numpy().view(np.uint32), draws, first)
        return torch.from_numpy(made.view(np.int64)).to(keys.device)
    offset = torch.arange(first + 1, first + draws + 1, device=keys.device) * _GAMMA
    z = keys[:, None] + offset
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _M1
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _M2
    return z ^ ((z >> 31) & ((1 << 33) - 1))


@dataclass(frozen=True, slots=True, repr=False)
class Pairs:
    """All items that a round learns from, as places in a client's own list of items."""

    items: Tensor
    """[C, R]: the items that a client touches, ascending; -1 behind the last."""
    liked: Tensor
    """[C]: how many of these are hers."""
    positives: Tensor
    """[E, C, n]"""
    negatives: Tensor
    """[E, C, n, k]: those that go with each positive."""

    def __repr__(self) -> str:
        return f"<Pairs of {len(self.items):,}, redacted>"

    @classmethod
    def draw(
        cls, keys: Tensor, history: Interactions, epochs: int, pairs: int, negatives: int = 1
    ) -> Pairs:
        """n times an item of the client, uniformly, and k that are not hers, uniformly."""
        n, n_items, place = len(keys), history.n_items, keys.device
        counts_there = history.counts
        # Row c: the items of client c, then a number that no item has.
        own = np.full((n, int(counts_there.max())), n_items, dtype=np.int64)
        own[np.arange(own.shape[1]) < counts_there[:, None]] = history.items
        mine = torch.from_numpy(own).to(place)
        counts = torch.from_numpy(counts_there.astype(np.int64)).to(place)[:, None]
        word = words(keys, epochs * pairs * negatives)
        high, low = (word[:, ::negatives] >> 32) & 0xFFFFFFFF, word & 0xFFFFFFFF
        positive = mine.gather(1, (high * counts) >> 32)
        # The r-th item that is not hers is r plus the number of hers before it: those with
        # (k-th item) - k <= r.
        rank = (low * (n_items - counts)) >> 32
        before = mine - torch.arange(mine.shape[1], device=place)
        # Behind the last of hers nothing counts.
        before = torch.where(mine < n_items, before, n_items)
        negative = rank + torch.searchsorted(before, rank, right=True)
        touched = torch.zeros((n, n_items), dtype=torch.bool, device=place)
        liked = touched.scatter_(1, positive, True).sum(dim=1)
        touched.scatter_(1, negative, True)
        where = touched.long().cumsum(1) - 1
        size = int(where[:, -1].max()) + 1
        items = torch.full((n, size), -1, dtype=torch.int64, device=place)
        client, item = touched.nonzero(as_tuple=True)
        items[client, where[client, item]] = item
        shape = (n, epochs, pairs)
        return cls(
            items,
            liked,
            where.gather(1, positive).view(shape).transpose(0, 1).contiguous(),
            where.gather(1, negative).view(*shape, negatives).transpose(0, 1).contiguous(),
        )


@dataclass(frozen=True, slots=True, repr=False)
class Drops:
    """Which units of the towers a step leaves out."""

    keys: Tensor
    share: int
    """Of 256."""
    size: int
    """Units of a tower."""

    def kept(self, epoch: int, rows: int) -> tuple[Tensor | None, Tensor | None]:
        """Factors [C, 1, d] for the user and [C, rows, d] for items; none where all are kept."""
        if not self.share:
            return None, None
        width = -(-self.size // 8)
        word = words(self.keys, (rows + 1) * width, first=epoch * (rows + 1) * width)
        byte = word.view(torch.uint8).view(len(word), rows + 1, 8 * width)[..., : self.size]
        factor = (byte >= self.share).float() * (256 / (256 - self.share))
        return factor[:, :1], factor[:, 1:]
