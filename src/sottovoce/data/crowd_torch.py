"""The items of a crowd by torch, on a GPU or not: the same numbers as `SeededCrowd.generate`.

Behind it is what rounds by torch share: the draws of `rng`, and whether users have an item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sottovoce.data.crowd import FIRST, HELD_OUT, TASTES, SeededCrowd
from sottovoce.rng import _M1, _M2, GAMMA

if TYPE_CHECKING:
    from torch import Tensor

LOW32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True, repr=False)
class CrowdThere:
    """A crowd's tables on a device."""

    crowd: SeededCrowd
    table: Tensor

    @classmethod
    def of(cls, crowd: SeededCrowd, device: str) -> CrowdThere:
        import torch

        return cls(crowd, torch.tensor(crowd.table, device=device))

    def keys(self, first: int, stop: int) -> Tensor:
        """The keys of users first to stop, a column."""
        import torch

        users = torch.arange(first + 1, stop + 1, device=self.table.device)[:, None]
        return mixed(users * signed(int(GAMMA)) + signed(self.crowd.key))

    def items(self, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """int64 [users, count]: all items of users first to stop, ascending; and, [users, 1], which
        of them is held out, -1 where none is."""
        import torch

        config = self.crowd.config
        keys = self.keys(first, stop)
        tastes = drawn(keys, TASTES)
        one, other = (
            (half * config.tastes) >> 32 for half in (shifted(tastes, 32), tastes & LOW32)
        )
        entry = torch.arange(config.count, device=keys.device)
        low = entry * config.items // config.count
        width = (entry + 1) * config.items // config.count - low
        word = mixed(keys + (entry + FIRST + 1) * signed(int(GAMMA)))
        slot = low + ((shifted(word, 32) * width) >> 32)
        alias = self.table.view(-1)[torch.where(word & 1 != 0, one, other) * config.items + slot]
        coin = (word & LOW32) >> 1
        found = torch.where(coin < alias >> 32, slot, alias & 0x7FFFFFFF)
        left = torch.full_like(keys, -1)
        if config.held_out:
            left = (shifted(drawn(keys, HELD_OUT), 32) * config.count) >> 32
        return found, left


def signed(key: int) -> int:
    """A 64-bit word as torch holds it."""
    return key - (1 << 64) if key >> 63 else key


def shifted(z: Tensor, bits: int) -> Tensor:
    """z >> bits without sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def mixed(z: Tensor) -> Tensor:
    """`rng.mix`."""
    z = (z ^ shifted(z, 30)) * signed(int(_M1))
    z = (z ^ shifted(z, 27)) * signed(int(_M2))
    return z ^ shifted(z, 31)


def drawn(keys: Tensor, number: int) -> Tensor:
    """`rng.draw`."""
    step = signed(((number + 1) * int(GAMMA)) & ((1 << 64) - 1))
    return mixed(keys + step)


def member(items: Tensor, start: Tensor, count: Tensor, wanted: Tensor) -> Tensor:
    """Whether `wanted` is in the ascending run of `items` at `start`, by binary search."""
    import torch

    low, high = torch.zeros_like(wanted), count.expand_as(wanted)
    if not len(items):
        return low > 0
    last = len(items) - 1
    for _ in range(int(count.max()).bit_length()):
        middle = (low + high) >> 1
        less = items[(start + middle).clamp(max=last)] < wanted
        searching = low < high
        low = torch.where(searching & less, middle + 1, low)
        high = torch.where(searching & ~less, middle, high)
    return (low < count) & (items[(start + low).clamp(max=last)] == wanted)
