"""FPL's rounds on a GPU: the same draws and steps as `FPL.device_learn_summed`, the devices' state
resident there. Needs torch; needs Triton to be fast.

Sums are whole numbers of the grid here, too, so a run repeats itself bit for bit. Against the CPU
the order of a score's additions and the exponential differ; models agree to 1e-5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithms.pairwise.factors import PairStep
from sottovoce.core.cohort import Cohort, RowCounts
from sottovoce.core.consent import ShareRule
from sottovoce.core.installed import needs
from sottovoce.core.messages import ModelView
from sottovoce.errors import UsageError

if TYPE_CHECKING:
    from sottovoce.algorithms.pairwise.accelerated import CudaFederation


def require(device: str) -> None:
    """Raises where torch or the device is missing."""
    try:
        import torch
    except ImportError:
        raise UsageError(f"--device cuda {needs('torch')}") from None
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError("--device cuda needs a GPU that torch can see; there is none here")


@dataclass(slots=True, repr=False)
class FPLOnGPU:
    """An `Accelerator` (parties/device.py) for one cohort."""

    own: NDArray[np.int64]
    """Draws of each device."""
    _resident: CudaFederation

    @classmethod
    def load(
        cls,
        step: PairStep,
        width: int,
        own: NDArray[np.int64],
        cohort: Cohort,
        n_items: int,
        rule: ShareRule,
        device: str = "cuda",
    ) -> FPLOnGPU:
        """Move the cohort to `device`. `rule` is that of all devices; its keys are not used."""
        require(device)
        from sottovoce.algorithms.pairwise.accelerated import CudaFederation

        resident = CudaFederation.load(
            step,
            np.zeros((n_items, width), dtype=np.float32),
            cohort.vectors,
            cohort.history.indptr,
            cohort.history.items,
            rule.threshold.astype(np.float64) / float(1 << 32),
            users=cohort.users,
            takes_part=cohort.consent.takes_part,
            allowed=rule.allowed,
            device=device,
        )
        return cls(own, resident)

    def learn_summed(
        self, view: ModelView, rows: NDArray[np.int64], learn_key: int, share_key: int
    ) -> tuple[NDArray[np.int64], RowCounts]:
        import torch

        here = self._resident
        tables, size = here.tables, view.items.shape[1] - 1
        items = torch.from_numpy(np.ascontiguousarray(view.items)).to(tables.bias.device)
        tables.factors[:, :size] = items[:, :size]
        tables.bias.copy_(items[:, size])
        tables.clear()
        positive, negative = np.zeros((2, len(rows)), dtype=np.int32)
        for many in np.unique(self.own[rows]):
            place = np.flatnonzero(self.own[rows] == many)
            everyone = len(place) == len(here.cohort)
            chosen = None if everyone else torch.from_numpy(rows[place]).to(tables.bias.device)
            sent = here.learn(learn_key, share_key, int(many), chosen)
            positive[place], negative[place] = (one.cpu().numpy() for one in sent)
        return here.sums(), RowCounts(positive, negative)

    def vectors(self) -> NDArray[np.float32]:
        return self._resident.vectors()
