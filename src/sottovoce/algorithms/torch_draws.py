"""The draws of `rng` by torch, and whether users have an item: what rounds by torch share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sottovoce.rng import _M1, _M2

if TYPE_CHECKING:
    from torch import Tensor

LOW32 = (1 << 32) - 1


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
