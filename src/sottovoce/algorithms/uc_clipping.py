"""Bounds on what UC-FedRec's clients send."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from sottovoce.errors import Diverged

WILD = "a client's weights left the range of numbers; lower the rates"
_CELLS = 1 << 24
"""Numbers whose norm is taken at a time."""


def clip(
    changes: Sequence[Tensor],
    limit: float,
    norm: Literal["l2", "l1", "scalar"] = "l2",
    numbers: int = 1 << 30,
) -> None:
    """Shorten each client's changes [C, ...], taken together, to `limit`, in place.

    The norm is added up in whole numbers, rounded up: it is never above the limit afterwards, and
    depends neither on the order of the numbers nor on zeros among them. A client has `numbers` of
    them at most."""
    if not changes:
        return
    largest = torch.stack([c.flatten(1).abs().amax(dim=1) for c in changes]).amax(dim=0).double()
    if not bool(largest.isfinite().all()):
        raise Diverged(WILD)
    if norm == "scalar":
        for change in changes:
            change.clamp_(-limit, limit)
        return
    if not limit < math.inf:
        return
    unit = largest.clamp(min=torch.finfo(torch.float32).tiny)
    steps = 2.0 ** (62 - numbers.bit_length())
    total = torch.zeros_like(unit, dtype=torch.int64)
    for change in changes:
        step = max(1, _CELLS // change[0].numel())
        for start in range(0, len(change), step):
            part = slice(start, start + step)
            share = change[part].flatten(1).abs().double() / unit[part, None]
            share = share.square_() if norm == "l2" else share
            total[part] += (share * steps).ceil_().long().sum(dim=1)
    length = total.double() / steps
    length = unit * (length.sqrt() if norm == "l2" else length)
    # Two roundings may lengthen a number by 2**-23 of it.
    factor = torch.where(length > limit, limit / length * (1 - 2.0**-22), 1.0).float()
    for change in changes:
        change.mul_(factor.view(-1, *[1] * (change.ndim - 1)))
