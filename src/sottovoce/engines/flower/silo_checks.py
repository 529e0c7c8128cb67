"""What becomes of data owners' answers in a round: which do not count, and why in a word."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sottovoce.algorithms.drift.aggregated import LARGEST_NUMBER
from sottovoce.algorithms.drift.messages import Gradients, Rows
from sottovoce.algorithms.drift.system import DRIFTConfig
from sottovoce.errors import MessageError


@dataclass(slots=True)
class SiloRoundOutcome:
    """What has become of a round so far; owners by number."""

    answered: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    updated: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    """Those that have ended their streams."""
    users: set[int] = field(default_factory=set)
    items: set[int] = field(default_factory=set)


class OwnerRefused(MessageError):
    """What an owner said does not count; the text is the reason under which that is counted."""


def check_values(now: Rows, gradients: Gradients, settings: DRIFTConfig) -> None:
    """One owner's numbers must not take the model from everybody. Where owners send sums, rows keep
    to the bounds beyond which no owner takes them."""
    summed, rate = settings.release == "aggregated", settings.learning_rate
    for row, pull in (
        (now.user_rows, gradients.user_rows),
        (now.item_rows, gradients.item_rows),
    ):
        if pull.shape != row.shape:
            raise OwnerRefused("malformed")
        with np.errstate(over="ignore", invalid="ignore"):
            moved = (row.astype(np.float64) - rate * pull.astype(np.float64)).astype(np.float32)
        if not np.isfinite(moved).all():
            raise OwnerRefused("not_finite")
        if summed and (np.abs(moved) > LARGEST_NUMBER).any():
            raise OwnerRefused("out_of_bounds")
