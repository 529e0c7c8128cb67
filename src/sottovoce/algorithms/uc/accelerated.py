"""UC-FedRec's rounds on a GPU, for simulations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.algorithms.fpl.accelerated import require
from sottovoce.algorithms.uc.rows import ClientUpdates
from sottovoce.algorithms.uc.training import user_keys, words
from sottovoce.core.cohort import Cohort, RowCounts
from sottovoce.core.messages import ModelView
from sottovoce.rng import Streams


class LearnOn(Protocol):
    """A round of some devices as large operations on one place."""

    def __call__(
        self,
        place: torch.device,
        view: ModelView,
        cohort: Cohort,
        rows: NDArray[np.int64],
        rng: Streams,
        perturb: Callable[[ClientUpdates, NDArray[np.int64]], ClientUpdates] | None,
    ) -> tuple[NDArray[np.int64], RowCounts]: ...


@dataclass(slots=True, repr=False)
class UCOnTorch:
    """An `Accelerator` (parties/device.py) for one cohort."""

    learn_on: LearnOn
    cohort: Cohort
    rng: Streams
    """The devices' own."""
    place: torch.device
    scales: NDArray[np.float64]
    """Of the noise on every number that a device sends; 0 where there is none. It has the law of
    the devices' own noise, up to rounding, but comes of the simulation's seed."""

    @classmethod
    def load(
        cls,
        learn_on: LearnOn,
        cohort: Cohort,
        rng: Streams,
        scales: NDArray[np.float64],
        device: str = "cuda",
    ) -> UCOnTorch:
        require(device)
        return cls(learn_on, cohort, rng, torch.device(device), scales)

    def learn_summed(
        self, view: ModelView, rows: NDArray[np.int64], learn_key: int, share_key: int
    ) -> tuple[NDArray[np.int64], RowCounts]:
        """One round of these devices; their vectors come home each time."""
        noise = Streams(share_key).child("noise")

        def perturb(updates: ClientUpdates, part: NDArray[np.int64]) -> ClientUpdates:
            keys = user_keys(self.cohort.users[part], noise, self.place)
            scale = torch.tensor(self.scales[part], dtype=torch.float32, device=self.place)
            return noisy(updates, keys, scale)

        return self.learn_on(
            self.place,
            view,
            self.cohort,
            rows,
            self.rng,
            perturb if self.scales[rows].any() else None,
        )

    def vectors(self) -> NDArray[np.float32]:
        return self.cohort.vectors


def noisy(updates: ClientUpdates, keys: Tensor, scale: Tensor) -> ClientUpdates:
    """With Laplace noise on every number that each client sends."""
    first = 0

    def added(change: Tensor) -> Tensor:
        nonlocal first
        count = change[0].numel()
        noise = scale[:, None] * laplace(words(keys, count, first))
        first += count
        return change + noise.view_as(change)

    def network(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: added(change) for name, change in weights.items()}

    there = (updates.item_rows >= 0)[..., None]
    return replace(
        updates,
        items=added(updates.items) * there,
        towers=network(updates.towers),
        filters=tuple(network(weights) for weights in updates.filters),
    )


def laplace(word: Tensor) -> Tensor:
    """Of scale 1, from words of 64 bits: 53 for the size, one for the sign."""
    size = -torch.log(((word >> 11) & ((1 << 53) - 1)).double().add_(0.5) * 2.0**-53)
    return torch.where((word & 1).bool(), size, -size).float()
